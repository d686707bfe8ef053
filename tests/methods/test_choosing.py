"""Which method is chosen, by public facts alone, and why no other is."""

from dataclasses import FrozenInstanceError, replace

import pytest
import torch
from torch_geometric.data import Data

import graphveil
from graphveil import METHODS, Facts, InvalidInputError
from graphveil.data.synthetic import social_network
from graphveil.graph.collate import collate
from graphveil.graph.splits import split
from graphveil.methods.choosing import SHOWN_TO, SUMS_PAY, UNITS, choose, gaussian_mu

NODES = Facts(num_nodes=20_000, num_features=64, num_classes=6, num_train=15_000, directed=False)
FEW = Facts(num_nodes=2_708, num_features=1_433, num_classes=7, num_train=2_031, directed=False)
GRAPHS = Facts(num_nodes=900, num_features=4, num_classes=2, num_train=600, record="graph")

CASES = [
    (NODES, None, "owner", 1.0, "late-graph", "visible"),
    (FEW, "node", "owner", 0.1, "late-graph", "visible"),
    (NODES, None, "other-graph", 1.0, "late-graph", "disjoint"),
    (NODES, None, "themselves", 1.0, "gap", "cached"),
    (FEW, None, "themselves", 8.0, "gap", "cached"),
    (FEW, None, "themselves", 1.0, "dp-mlp", "visible"),
    (NODES, None, "themselves", 0.1, "dp-mlp", "visible"),
    (NODES, None, "anybody", 8.0, "dp-mlp", "visible"),
    (FEW, "edge", "themselves", 1.0, "gap", "cached"),
    (FEW, "edge", "owner", 1.0, "gap", "cached"),
    (FEW, "edge", "other-graph", 1.0, "gap", "disjoint"),
    (GRAPHS, None, "owner", 1.0, "graph-dpsgd", "visible"),
    (GRAPHS, "graph", "anybody", 1.0, "graph-dpsgd", "visible"),
    (GRAPHS, None, "other-graph", 1.0, "graph-dpsgd", "disjoint"),
]


@pytest.mark.parametrize(("facts", "unit", "shown_to", "epsilon", "method", "mode"), CASES)
def test_the_rules(facts, unit, shown_to, epsilon, method, mode):
    choice = choose(facts, unit=unit, shown_to=shown_to, epsilon=epsilon)
    assert (choice.method, choice.mode) == (method, mode)
    assert choice.unit == (unit or facts.record)
    assert mode in METHODS[method].modes
    assert choice.prediction.startswith(f"{mode}: ")


@pytest.mark.parametrize("shown_to", SHOWN_TO)
@pytest.mark.parametrize(("facts", "unit"), [(NODES, "node"), (NODES, "edge"), (GRAPHS, "graph")])
def test_every_answer_has_its_reasons_and_a_reason_against_every_other(facts, unit, shown_to):
    choice = choose(facts, unit=unit, shown_to=shown_to, epsilon=1.0)
    assert choice.why
    for sentence in choice.why:
        assert sentence[0].isupper() or sentence[0].isdigit()
        assert sentence.endswith(".")
    private = {name for name, kind in METHODS.items() if kind.private}
    assert set(choice.others) == private - {choice.method}
    assert all(choice.others.values())


@pytest.mark.parametrize("shown_to", ["themselves", "anybody"])
def test_what_neighbours_must_keep_is_never_read_in_the_open(shown_to):
    """The promise behind the choice: neighbours are read through noise, or not at all."""
    for facts in (NODES, FEW):
        for epsilon in (0.1, 1.0, 8.0):
            choice = choose(facts, shown_to=shown_to, epsilon=epsilon)
            assert "neighbours' rows in the open" not in choice.prediction
            if shown_to == "anybody":  # sums are for a node's own eyes
                assert "cached" not in choice.prediction


def test_whoever_publishes_predictions_learns_what_they_show():
    for facts in (NODES, GRAPHS):
        why = choose(facts, shown_to="anybody", epsilon=1.0).why
        assert any(f"learns of that {facts.record}" in sentence for sentence in why)


def test_sums_pay_from_a_product_of_nodes_and_budget_on():
    mu = gaussian_mu(2.0, 1e-5)
    least = int(SUMS_PAY / mu) + 1
    enough = replace(NODES, num_train=least)
    below = replace(NODES, num_train=least - 1)
    asked = {"shown_to": "themselves", "epsilon": 2.0}
    assert choose(enough, **asked).method == "gap"
    assert choose(below, **asked).method == "dp-mlp"
    # The facts that decided are in the sentence.
    assert f"{least - 1:,} training nodes at epsilon 2" in choose(below, **asked).why[-1]
    # A smaller delta leaves less.
    assert choose(enough, **asked, delta=1e-9).method == "dp-mlp"


def test_the_mu_of_a_budget_is_that_of_the_gaussian_mechanism():
    """Balle and Wang: delta(epsilon) of mu, solved by hand."""
    from scipy.stats import norm

    for epsilon, delta in ((0.5, 1e-5), (1.0, 1e-4), (8.0, 1e-6)):
        mu = gaussian_mu(epsilon, delta)
        upper = norm.logcdf(mu / 2 - epsilon / mu)
        lower = epsilon + norm.logcdf(-mu / 2 - epsilon / mu)
        spent = torch.tensor(upper).exp() - torch.tensor(lower).exp()
        assert float(spent) == pytest.approx(delta, rel=1e-2)
        assert float(spent) <= delta * (1 + 1e-6)


def test_the_method_is_made_and_planned():
    choice = graphveil.choose(FEW, unit="edge", epsilon=2.0, delta=1e-9)
    method = choice.make()
    assert (method.name, method.unit, method.epsilon, method.delta) == ("gap", "edge", 2.0, 1e-9)
    assert choice.make(hops=2, unit="edge-directed").get_params()["unit"] == "edge-directed"
    plan = choice.plan
    assert (plan.method, plan.unit, plan.facts) == ("gap", "edge-undirected", FEW)
    assert plan.epsilon <= 2.0
    with pytest.raises(FrozenInstanceError):
        choice.method = "dp-mlp"


def test_data_at_hand_is_read_for_its_facts_alone():
    data = split(social_network(num_nodes=200, num_classes=3, num_features=5, seed=1), seed=0)
    data.directed = False
    other = data.clone()
    other.x, other.y = torch.zeros_like(data.x), data.y.flip(0)
    other.edge_index = data.edge_index[:, :2]
    choices = [graphveil.choose(known, epsilon=1.0) for known in (data, other, Facts.of(data))]
    assert choices[0] == choices[1] == choices[2]


def test_many_graphs_at_hand_are_whole_graphs():
    graph = social_network(num_nodes=20, num_classes=2, num_features=5, seed=1)
    graphs = [Data(x=graph.x, edge_index=graph.edge_index, y=number % 2) for number in range(8)]
    choice = graphveil.choose(split(collate(graphs), seed=0), epsilon=1.0)
    assert (choice.method, choice.facts.num_nodes) == ("graph-dpsgd", 8)
    with pytest.raises(InvalidInputError, match="split"):
        graphveil.choose(graphs, epsilon=1.0)


@pytest.mark.parametrize(
    ("facts", "asked", "match"),
    [
        (NODES, {"epsilon": 0.0}, "'epsilon'"),
        (NODES, {"epsilon": float("inf")}, "'epsilon'"),
        (NODES, {"epsilon": 1.0, "delta": 1.0}, "'delta'"),
        (NODES, {"epsilon": 1.0, "shown_to": "nobody"}, "'shown_to'.*'themselves'"),
        (NODES, {"epsilon": 1.0, "unit": "person"}, "'unit'"),
        (NODES, {"epsilon": 1.0, "unit": "graph"}, "'node' or 'edge' for one graph"),
        (GRAPHS, {"epsilon": 1.0, "unit": "node"}, "'graph' for many graphs"),
    ],
)
def test_wrong_questions_are_refused(facts, asked, match):
    with pytest.raises(InvalidInputError, match=match):
        choose(facts, **asked)


def test_an_edge_must_be_known_to_have_a_direction_or_not():
    choice = choose(replace(FEW, directed=None), unit="edge", epsilon=1.0)
    with pytest.raises(InvalidInputError, match="direction"):
        _ = choice.plan


def test_auto_is_no_method():
    assert "auto" not in METHODS
    assert set(UNITS) == {"node", "edge", "graph"}
