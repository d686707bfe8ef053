"""Late-graph: the prior that is released with it, and beliefs that are passed when predicting."""

import copy
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from methods_cases import FEATURES, NODES, changed, graph, weights

from graphveil import runs
from graphveil.cli.plan import plan_rows
from graphveil.graph.beliefs import pass_beliefs
from graphveil.methods import METHODS, Facts, own_row
from graphveil.methods.distillation import follow_beliefs
from graphveil.methods.execution import Execution
from graphveil.methods.terms import every_message, no_messages
from graphveil.rng import secret

DATA = graph()
FACTS = Facts.of(DATA)


def made(name, **settings):
    return METHODS[name](**({"epsilon": 8.0, "steps": 4} | settings))


# --- the prior ------------------------------------------------------------------------------------


def prior_of(counts, epsilon=8.0):
    y = torch.cat([torch.full((count,), c) for c, count in enumerate(counts)])
    nodes = len(y)
    everybody = torch.ones(nodes, dtype=torch.bool)
    masks = {"train_mask": everybody, "val_mask": ~everybody, "test_mask": ~everybody}
    data = changed(graph(nodes=nodes), y=y, **masks)
    method = made("late-graph", epsilon=epsilon)
    plan = method.plan(Facts.of(data))
    return own_row._release_prior(Execution(plan), data), plan.part("counts").mechanism


def test_the_prior_is_the_classes_shares():
    prior, _ = prior_of([600, 300, 100], epsilon=1e4)
    assert prior.exp().tolist() == pytest.approx([0.6, 0.3, 0.1], abs=0.01)


def test_no_share_is_less_than_the_noise():
    prior, mechanism = prior_of([1000, 1000, 0], epsilon=0.5)
    assert torch.isfinite(prior).all()
    assert float(prior.exp().sum()) == pytest.approx(1, abs=1e-5)
    least = mechanism.noise_multiplier
    assert float(prior.exp().min()) >= 0.999 * least / (2000 + 20 * least)


def test_training_nodes_without_a_label_are_in_no_class():
    data = changed(DATA, y=DATA.y.clone())
    data.y[DATA.train_mask.nonzero().flatten()[:5]] = -1
    method = made("late-graph")
    method.run(method.plan(FACTS), data)
    assert torch.isfinite(method.predict_proba(DATA)).all()


def test_two_classes():
    data = changed(DATA, y=DATA.y % 2, num_classes=2)
    method = made("late-graph").fit(data)
    assert method.network_.log_prior.shape == (2,)
    assert method.predict_proba(data).shape == (NODES, 2)
    assert set(method.predict(data, mode="disjoint").tolist()) <= {0, 1}


def test_dp_mlp_keeps_no_prior():
    assert "log_prior" not in made("dp-mlp").fit(DATA).network_.state_dict()


def test_a_run_that_is_read_back_predicts_as_before(tmp_path):
    source = runs.Source(data="memory", split="given")
    arranged = runs.Arranged(training=DATA, testing=DATA, mode=None, split="given")
    for name in ("dp-mlp", "late-graph"):
        method = made(name)
        runs.Run(tmp_path / name).train(method, source, arranged=arranged)
        again = runs.Run(tmp_path / name).read()
        for mode in ("visible", "disjoint"):
            assert torch.equal(
                again.predict_proba(DATA, mode=mode), method.predict_proba(DATA, mode=mode)
            )
        if name == "late-graph":
            prior = again.network_.log_prior
            assert torch.equal(prior, method.network_.log_prior)
            assert prior.any()


# --- beliefs --------------------------------------------------------------------------------------

FITTED = {}


def fitted(**settings):
    key = repr(settings)
    if key not in FITTED:
        FITTED[key] = made("late-graph", epsilon=50.0, **settings).fit(DATA)
    return copy.copy(FITTED[key])


def own_beliefs(method, data=DATA):
    with torch.no_grad():
        rows = method.prepare(data)
        return method.network_.on_graph(rows, no_messages(len(data.y))).log_softmax(1)


def test_noise_that_is_known_makes_outputs_less_sure():
    method = fitted()
    steps = method.plan_.part("weights")
    noise = own_row.output_noise(steps, FACTS.num_train, 4.0)
    assert own_row.trust(method) == pytest.approx((1 + math.pi / 8 * noise**2) ** -0.5)
    assert 0.8 < own_row.trust(method) < 1
    for settings in ({"num_layers": 2}, {"optimizer": "adam"}, {"clipping": "automatic"}):
        assert own_row.trust(fitted(**settings)) == 1


def test_the_mean_of_a_logistic_output_over_noise_is_what_trust_says():
    draws = np.random.default_rng(0).normal(size=200_000)
    for noise in (0.4, 0.8, 1.5):
        for output in (0.5, 2.0):
            mean = np.mean(1 / (1 + np.exp(-(output + noise * draws))))
            smaller = output / math.sqrt(1 + math.pi / 8 * noise**2)
            assert mean == pytest.approx(1 / (1 + math.exp(-smaller)), abs=0.01)


def test_a_visible_prediction_passes_beliefs():
    method = fitted()
    prior, own = method.network_.log_prior, own_beliefs(method)
    doubted = (prior + own_row.trust(method) * (own - prior)).log_softmax(1)
    expected = pass_beliefs(doubted, prior, every_message(DATA, 0), 3, 0.85).softmax(1)
    torch.testing.assert_close(method.predict_proba(DATA), expected)


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("reading", ["beliefs", "smoothing", "inside"])
def test_every_way_to_read_the_graph(reading, sparse, layers):
    method = fitted(num_layers=layers)
    method.reading = reading
    data = changed(DATA, x=DATA.x.to_sparse_csr()) if sparse else DATA
    for mode in ("visible", "disjoint"):
        chances = method.predict_proba(data, mode=mode)
        assert torch.isfinite(chances).all()
        dense = method.predict_proba(DATA, mode=mode)
        # A student is fitted in float32, whose rounding differs between the two (1e-12 in float64).
        near = 1e-5 if mode == "visible" else 2e-3
        torch.testing.assert_close(chances, dense, atol=near, rtol=0)
    method.rounds = 0
    if reading != "beliefs":  # which doubt even a node's own row
        torch.testing.assert_close(
            method.predict_proba(data), own_beliefs(method).exp(), atol=1e-4, rtol=1e-4
        )


@pytest.mark.parametrize("reading", ["beliefs", "smoothing", "inside"])
def test_a_visible_prediction_reads_so_many_rounds_and_no_further(reading):
    path = torch.stack([torch.arange(NODES - 1), torch.arange(1, NODES)])
    data, method = changed(DATA, edge_index=path), fitted()
    method.reading = reading
    other = changed(data, x=data.x.clone())
    other.x[0] = -other.x[0]
    for rounds in (0, 1, 3):
        method.rounds = rounds
        apart = method.predict_proba(data) - method.predict_proba(other)
        moved = (apart.abs().amax(1) > 0).nonzero().flatten().tolist()
        assert moved
        assert max(moved) <= rounds


def test_a_student_is_asked_on_another_graph_alone():
    method, other = fitted(), graph(seed=5, nodes=70, edges=150)
    messages, own = every_message(other, 0), own_beliefs(method, other)
    prior = method.network_.log_prior
    doubted = (prior + own_row.trust(method) * (own - prior)).log_softmax(1)
    heard = pass_beliefs(doubted, prior, messages, 3, 0.85)
    noise = method.plan_.part("weights").noise_multiplier / math.sqrt(4)
    taught = follow_beliefs(own, heard, method.prepare(other), messages, noise).softmax(1)
    torch.testing.assert_close(method.predict_proba(other, mode="disjoint"), taught)
    torch.testing.assert_close(method.predict_proba(other), heard.softmax(1))
    method.student = False
    torch.testing.assert_close(method.predict_proba(other, mode="disjoint"), heard.softmax(1))


def test_sparse_rows_train_to_the_same_network():
    """Of few columns, which are centred, and of many, which stay sparse."""
    for features in (FEATURES, 1100):
        data = graph(features=features)
        data.x = data.x * (data.x > 1)
        thin = changed(data, x=data.x.to_sparse_csr())
        one, other = (
            made("late-graph", epsilon=50.0).fit(d, rng=secret(fixed_seed=1)) for d in (data, thin)
        )
        torch.testing.assert_close(weights(one), weights(other), rtol=1e-3, atol=1e-4)


def test_wide_rows_are_not_made_dense(monkeypatch):
    """Twelve thousand columns must not become gigabytes."""
    data = graph(features=1100)
    thin = changed(data, x=(data.x * (data.x > 2)).to_sparse_csr())
    method = made("late-graph")

    def refuse(self, *_, **__):
        raise AssertionError(f"{tuple(self.shape)} was made dense")

    monkeypatch.setattr(torch.Tensor, "to_dense", refuse)
    method.fit(thin)
    assert method.prepare(thin).layout == torch.sparse_csr
    assert len(method.predict_proba(thin)) == len(thin.x)
    assert len(method.predict_proba(thin, mode="disjoint")) == len(thin.x)


# --- what the plan says ---------------------------------------------------------------------------


def test_the_plan_says_what_was_decided():
    facts = Facts(num_nodes=20_000, num_features=500, num_classes=5, num_train=15_000)
    plan = METHODS["late-graph"](epsilon=8.0).plan(facts)
    rows = dict(plan_rows(plan, plan.certificate()))
    assert rows["network"] == "1 layer on 500 columns, less a noisy mean row"
    assert rows["learning rate"] == f"{plan.part('weights').learning_rate:.4g}"
    wide = METHODS["dp-mlp"](epsilon=8.0).plan(replace(facts, num_features=12_000))
    rows = dict(plan_rows(wide, wide.certificate()))
    assert rows["network"] == "1 layer on 12,000 columns"


@pytest.mark.parametrize("settings", [{}, {"variant": "em0"}], ids=str)
def test_dpar_names_late_graph_where_its_structure_gets_nothing(settings):
    plan = METHODS["dpar"](epsilon=8.0, **settings).plan(FACTS)
    rows = dict(plan_rows(plan, plan.certificate()))
    spends_nothing = plan.details["structure_share"] == 0
    assert spends_nothing == (not settings)
    assert ("take late-graph" in rows["structure"]) == spends_nothing
