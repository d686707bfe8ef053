"""Means over seeds, the mark for the best, and plain words where the graph does not pay."""

import math

import pytest

from graphveil._errors import InvalidInputError
from graphveil.bench import Row, compare, rank, remarks
from graphveil.data.synthetic import social_network
from graphveil.runs import Source


def row(method, budget, *accuracies, **more):
    more = {"epsilon": math.inf if budget is None else budget, **more}
    private = budget is not None
    return Row(
        method=method,
        private=private,
        target_epsilon=budget,
        scores={"accuracy": accuracies},
        **more,
    )


def test_mean_and_deviation():
    assert row("mlp", None, 0.5, 0.7).mean == pytest.approx(0.6)
    assert row("mlp", None, 0.5, 0.7).deviation == pytest.approx(math.sqrt(0.02))
    assert row("mlp", None, 0.5).deviation is None
    assert row("mlp", None).mean is None


def test_the_best_private_method_is_marked_at_each_epsilon():
    rows = rank(
        [
            row("dp-gnn", 1.0, 0.6),
            row("dp-mlp", 1.0, 0.7),
            row("dp-gnn", 8.0, 0.9),
            row("dp-mlp", 8.0, 0.8),
            row("mlp", None, 0.95),
        ]
    )
    assert [each.best for each in rows] == [False, True, True, False, False]


def test_a_void_certificate_is_never_the_best():
    void = Row(
        method="dp-gnn",
        private=True,
        target_epsilon=8.0,
        scores={"accuracy": (0.9,)},
        void_because=("the sampler",),
    )
    rows = rank([void, row("dp-mlp", 8.0, 0.5)])
    assert [each.best for each in rows] == [False, True]


def test_a_loss_to_the_mlp_is_said_plainly():
    said = remarks([row("dp-gnn", 8.0, 0.78, 0.78), row("dp-mlp", 8.0, 0.82, 0.82)])
    assert said[0].startswith("dp-gnn loses to dp-mlp by 4.0 points at epsilon 8")
    said = remarks([row("dp-gnn", 8.0, 0.9, 0.9), row("dp-mlp", 8.0, 0.6, 0.6)])
    assert said[0].startswith("dp-gnn beats dp-mlp by 30.0 points")
    said = remarks([row("dp-gnn", 8.0, 0.9), row("dp-mlp", 8.0, 0.6)])
    assert "one seed does not tell" in said[0]


def test_under_an_edge_unit_the_open_mlp_is_what_to_beat():
    edge = row("gap", 1.0, 0.7, 0.7, unit="edge-undirected")
    said = remarks([edge, row("dp-mlp", 1.0, 0.6, 0.6), row("mlp", None, 0.8, 0.8)])
    assert said[0].startswith("gap loses to mlp by 10.0 points at epsilon 1")


def test_units_and_claims_are_not_ranked_against_proven_nodes():
    edge = row("gap", 1.0, 0.9, unit="edge-undirected")
    claimed = row("gap", 1.0, 0.95, epsilon=1.4)
    found = rank([edge, claimed, row("dp-mlp", 1.0, 0.6)])
    assert [each.best for each in found] == [True, False, True]


def test_each_seed_has_its_own_split_and_refusals_keep_their_row():
    data = social_network(num_nodes=60, num_classes=3, num_features=5, seed=1)
    methods = [
        ("dp-gnn", {"steps": 3, "sender_cap": None}),
        ("dp-mlp", {"steps": 3, "sample_rate": 1.0}),
    ]
    found = compare(data, Source(data="memory"), methods, epsilons=[8.0], seeds=2)
    assert "cap" in found[0].refused
    assert found[0].mean is None
    assert len(found[1].accuracies) == 2
    assert sum(found[1].class_share) == pytest.approx(1)
    assert "left out" in remarks(found)[-1]
    with pytest.raises(InvalidInputError, match="nobody"):
        compare(data, Source(data="memory"), [("nobody", {})], epsilons=[8.0])
