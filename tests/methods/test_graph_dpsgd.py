"""Whole graphs as records: withholding one removes one term, and nothing of it is left."""

import copy
import math

import pytest
import torch
from methods_cases import recorded, weights
from torch import nn
from torch_geometric.data import Data

from graphveil._errors import InvalidInputError, RefusedError, UnprovenError
from graphveil.data.graphs import collated, separated
from graphveil.grads.clipped import ClippedSum
from graphveil.grads.clipping import Flat
from graphveil.graph.splits import split
from graphveil.methods import METHODS, Facts
from graphveil.methods.graph_dpsgd import CONVS, GraphBaseline, GraphDPSGD, Graphs
from graphveil.privacy.accounting import epsilon
from graphveil.privacy.events import repeated
from graphveil.rng import secret, seeded

QUICK = {"steps": 4, "hidden_channels": 4}


def graphs(count=24, classes=2, seed=0):
    """Small graphs of one to six nodes; the mean of their features says a little of the class."""
    rng = torch.Generator().manual_seed(seed)
    made = []
    for number in range(count):
        size = 1 + number % 6
        x = torch.randn(size, 3, generator=rng) + number % classes
        edges = torch.randint(size, (2, 2 * size), generator=rng)
        edges = edges[:, edges[0] != edges[1]]
        made.append(
            Data(
                x=x,
                edge_index=torch.cat([edges, edges.flip(0)], 1),
                y=torch.tensor([number % classes]),
            )
        )
    return split(collated(made, num_classes=classes), (0.5, 0.25, 0.25), seed=1)


DATA = graphs()
FACTS = Facts.of(DATA)


def gradients(method, data):
    """The clipped gradient of every training graph, by graph."""
    network = method._made(Facts.of(DATA))
    terms = method._terms(data)
    method.class_weights_ = None
    clipped = ClippedSum(network, method._losses, Flat(1.0))
    found = {}
    for place, graph in enumerate(terms.ids.tolist()):
        total = clipped(terms.batches(torch.tensor([place])))
        found[graph] = torch.cat([value.flatten() for value in total.values()])
    return found


# --- one graph, one term --------------------------------------------------------------------------


@pytest.mark.parametrize("conv", CONVS)
@pytest.mark.parametrize("pool", ["mean", "max", "sum"])
def test_withholding_one_graph_removes_one_term_and_alters_none(conv, pool):
    """Brute force over every training graph: the others' gradients stay bit-equal."""
    method = GraphDPSGD(conv=conv, pool=pool, norm="instance", **QUICK)
    whole = gradients(method, DATA)
    for graph in DATA.train_mask.nonzero().flatten().tolist():
        # Withheld: the public place is there, nothing in it, and nothing to train on.
        parts = separated(DATA)
        parts[graph] = Data(x=torch.zeros(0, 3), edge_index=torch.zeros(2, 0, dtype=torch.long))
        left = collated(parts, num_classes=2)
        for name in ("train_mask", "val_mask", "test_mask"):
            left[name] = DATA[name].clone()
        left.train_mask[graph] = False
        after = gradients(method, left)
        assert after.keys() == whole.keys() - {graph}
        for other, gradient in after.items():
            assert torch.equal(gradient, whole[other])


def test_a_graph_may_add_its_whole_bound():
    method = GraphDPSGD(**QUICK)
    norms = torch.stack([gradient.norm() for gradient in gradients(method, DATA).values()])
    assert norms.max() <= 1 + 1e-6
    assert norms.max() > 0.9
    assert method._influence(FACTS) == (1, 0)


@pytest.mark.parametrize("conv", CONVS)
def test_batches_hold_every_graph_as_it_is(conv, monkeypatch):
    monkeypatch.setattr("graphveil.methods.graph_dpsgd._NODES_AT_ONCE", 7)
    method = GraphDPSGD(conv=conv, degree=False, **QUICK)
    network = method._made(FACTS).eval()
    shuffled = _with_nodes_shuffled(DATA)
    for data in (DATA, shuffled):
        terms = Graphs(data)
        order = torch.randperm(len(terms), generator=torch.Generator().manual_seed(3))
        batches = list(terms.batches(order))
        assert len(batches) > 5
        assert sum(batch[3] for batch in batches) == len(terms)
        assert all(len(batch[0]) <= 7 or batch[3] == 1 for batch in batches)
        together = terms.logits(network, order)
        for place, graph in enumerate(order.tolist()):
            one = separated(DATA)[graph]
            owner = torch.zeros(len(one.x), dtype=torch.long)
            alone = network(one.x, one.edge_index, owner, 1)
            torch.testing.assert_close(together[place], alone[0])
        assert torch.equal(torch.cat([batch[4] for batch in batches]), DATA.y)


def _with_nodes_shuffled(data):
    order = torch.randperm(len(data.x), generator=torch.Generator().manual_seed(5))
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order))
    result = copy.copy(data)
    result.x, result.batch = data.x[order], data.batch[order]
    result.edge_index = place[data.edge_index]
    return result


def test_batch_normalisation_is_refused_by_name():
    class Mixing(GraphDPSGD):
        def _network(self, facts):
            network = super()._network(facts)
            network.head = nn.Sequential(nn.BatchNorm1d(4), network.head)
            return network

    with pytest.raises(UnprovenError, match="BatchNorm"):
        Mixing(**QUICK).fit(DATA)


# --- what runs is what is charged -----------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [{}, {"sample_rate": 1.0}, {"class_weights": "noisy"}, {"class_weights": [1.0, 3.0]}],
)
def test_the_certificate_is_what_was_released(monkeypatch, settings):
    seen = recorded(monkeypatch)
    method = GraphDPSGD(epsilon=3.0, **QUICK, **settings).fit(DATA)
    counts = 1 if settings.get("class_weights") == "noisy" else 0
    assert len(seen.releases) == method.steps + counts
    assert len(seen.coins) == method.steps
    assert all(len(drawn) == FACTS.num_train for _, drawn in seen.coins)
    noise = {round(mechanism.noise_multiplier, 9) for mechanism, *_ in seen.releases[counts:]}
    assert noise == {round(method.plan_.details["noise_multiplier"], 9)}
    assert len(method.charges_) == 1 + counts
    steps = repeated(method._step_event(FACTS, noise.pop()), method.steps)
    if not counts:
        assert epsilon(steps, method.plan_.delta) == pytest.approx(
            method.certificate_.guarantee.epsilon, rel=1e-6
        )
    assert method.certificate_.guarantee.epsilon <= 3.0 * (1 + 1e-6)
    assert method.certificate_.guarantee.epsilon > 2.5
    assert method.certificate_.guarantee.unit == "graph"


def test_noisy_counts_are_of_the_training_graphs_and_within_one(monkeypatch):
    seen = recorded(monkeypatch)
    method = GraphDPSGD(class_weights="noisy", epsilon=3.0, **QUICK).fit(DATA)
    mechanism, counts, _ = seen.releases[0]
    assert counts.tolist() == torch.bincount(DATA.y[DATA.train_mask], minlength=2).tolist()
    assert mechanism.sensitivity == 1.0
    assert epsilon(mechanism.event(), method.plan_.delta) < 0.05 * 3.0
    assert method.class_weights_.max() == 1.0
    assert method.class_weights_.min() >= 0.1


def test_rare_classes_weigh_more_with_enough_budget():
    rare = copy.copy(DATA)
    rare.y = torch.zeros_like(DATA.y)
    rare.y[DATA.train_mask.nonzero().flatten()[:2]] = 1
    method = GraphDPSGD(class_weights="noisy", epsilon=1e4, weights_share=0.5, **QUICK).fit(rare)
    assert method.class_weights_.tolist() == pytest.approx([2 / 10, 1.0], abs=0.1)


def test_a_killed_run_keeps_its_counts_and_is_charged_once(tmp_path, monkeypatch):
    class KilledError(Exception):
        pass

    def stops(steps):
        for step in steps:
            if step == 2:
                raise KilledError
            yield step

    settings = {**QUICK, "class_weights": "noisy", "epsilon": 3.0}
    with pytest.raises(KilledError):
        GraphDPSGD(**settings).fit(DATA, directory=tmp_path, progress=stops)
    seen = recorded(monkeypatch)
    method = GraphDPSGD(**settings).fit(DATA, directory=tmp_path)
    assert len(seen.releases) < method.steps + 1
    assert all(len(value) != 2 for _, value, _ in seen.releases)  # the counts were not drawn again
    assert len(method.charges_) == 2
    assert method.certificate_.guarantee.epsilon <= 3.0 * (1 + 1e-6)


@pytest.mark.parametrize(
    "then", [{"epsilon": 0.5}, {"class_weights": None, "epsilon": 1.0}, {"steps": 8}]
)
def test_counts_of_an_earlier_attempt_keep_their_price(tmp_path, then):
    """What was released under other settings is charged as it was released."""

    class KilledError(Exception):
        pass

    def stops(steps):
        for step in steps:
            if step == 2:
                raise KilledError
            yield step

    first = GraphDPSGD(**QUICK, class_weights="noisy", epsilon=6.0, weights_share=0.5)
    with pytest.raises(KilledError):
        first.fit(DATA, directory=tmp_path / "new", progress=stops)
    settings = {**QUICK, "class_weights": "noisy", "epsilon": 6.0, "weights_share": 0.5, **then}
    method = GraphDPSGD(**settings).fit(DATA, directory=tmp_path / "new")
    counted = first._counter(first.plan_.delta).event()
    assert method.charges_[0].event == counted
    found = method.certificate_.guarantee.epsilon
    assert found >= epsilon(counted, method.plan_.delta)
    if "steps" in then:
        assert found <= 6.0 * (1 + 1e-6)


def test_a_seeded_stream_voids_the_certificate_and_repeats():
    twins = [GraphDPSGD(**QUICK).fit(DATA, rng=secret(fixed_seed=3)) for _ in range(2)]
    assert torch.equal(weights(twins[0]), weights(twins[1]))
    assert twins[0].certificate_.void_because
    assert not GraphDPSGD(**QUICK).fit(DATA).certificate_.void_because


def test_seeded_noise_is_refused():
    with pytest.raises(RefusedError, match="secret stream"):
        GraphDPSGD(**QUICK).fit(DATA, rng=seeded(1, "noise"))


# --- the contract ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["graph-dpsgd", "graph-gnn"])
def test_lists_and_data_sets_are_taken(name):
    method = METHODS[name](**QUICK).fit(DATA)
    chances = method.predict_proba(DATA)
    assert chances.shape == (24, 2)
    torch.testing.assert_close(chances.sum(1), torch.ones(24))
    torch.testing.assert_close(method.predict_proba(separated(DATA)), chances)
    torch.testing.assert_close(method.predict_proba(DATA, mode="disjoint"), chances)
    assert torch.equal(method.predict(DATA), chances.argmax(1))
    found = method.score(DATA)
    right = (chances.argmax(1) == DATA.y)[DATA.test_mask]
    assert found == pytest.approx(float(right.float().mean()))
    assert "reads its own graph" in str(method.plan_.inference) or name == "graph-gnn"


@pytest.mark.parametrize("name", ["graph-dpsgd", "graph-gnn"])
def test_a_list_that_nobody_has_split_is_refused_with_the_way_out(name):
    with pytest.raises(InvalidInputError, match=r"split\(collated\(graphs\)\)"):
        METHODS[name](**QUICK).fit(separated(DATA))


@pytest.mark.parametrize("loss", ["softmax", "binary"])
@pytest.mark.parametrize("name", ["graph-dpsgd", "graph-gnn"])
def test_both_losses_learn(name, loss):
    data = graphs(120, seed=2)
    budget = {"epsilon": 50.0} if name == "graph-dpsgd" else {}
    settings = {"loss": loss, "steps": 60, "learning_rate": 0.05, **budget}
    assert METHODS[name](**settings).fit(data).score(data, mask="train_mask") > 0.7


def test_several_classes_and_every_form_of_the_network():
    data = graphs(30, classes=3)
    for settings in (
        {"hidden_channels": [3, 5, 4], "head_layers": 2, "head_channels": 6},
        {"conv": "gat", "heads": 2},
        {"norm": "instance", "pool": "sum"},
        {"degree": False, "normalisation": "symmetric"},
        {"optimizer": "sgd", "clipping": "automatic"},
    ):
        method = GraphDPSGD(steps=2, **{"hidden_channels": 4, **settings}).fit(data)
        assert method.predict_proba(data).shape == (30, 3)


@pytest.mark.parametrize(
    "settings, said",
    [
        ({"conv": "dense"}, "conv"),
        ({"loss": "hinge"}, "loss"),
        ({"pool": "median"}, "pool"),
        ({"degree": 1}, "degree"),
        ({"num_layers": -1}, "num_layers"),
        ({"num_layers": 2.0}, "whole number"),
        ({"num_layers": 3, "hidden_channels": [4, 4]}, "hidden_channels"),
        ({"class_weights": [1.0]}, "class_weights"),
        ({"class_weights": [1.0, -1.0]}, "class_weights"),
        ({"class_weights": 3}, "class_weights"),
        ({"weights_share": 1.0}, "weights_share"),
        ({"epsilon": 0.0}, "epsilon"),
        ({"steps": 0}, "steps"),
        ({"sample_rate": 2.0}, "sample_rate"),
        ({"scale": 0.0}, "scale"),
        ({"learning_rate": -1.0}, "learning_rate"),
    ],
)
def test_bad_settings_are_refused_by_the_plan(settings, said):
    with pytest.raises(InvalidInputError, match=said):
        GraphDPSGD(**settings).plan(FACTS)


@pytest.mark.parametrize(
    "settings, said", [({"norm": "batch"}, "BatchNorm"), ({"class_weights": "balanced"}, "release")]
)
def test_what_would_read_other_graphs_is_refused_with_the_reason(settings, said):
    with pytest.raises(UnprovenError, match=said):
        GraphDPSGD(**settings).plan(FACTS)


def test_binary_losses_need_two_classes_and_delta_stays_below_one_in_n():
    with pytest.raises(InvalidInputError, match="two classes"):
        GraphDPSGD(loss="binary").plan(Facts.of(graphs(30, classes=3)))
    with pytest.raises(UnprovenError, match="1/n"):
        GraphDPSGD(delta=1 / 24).plan(FACTS)
    assert GraphDPSGD().plan(FACTS).delta == 0.01


def test_nodes_and_graphs_are_not_mixed_up():
    one = split(
        Data(
            x=torch.randn(20, 3),
            edge_index=torch.zeros(2, 0, dtype=torch.long),
            y=torch.arange(20) % 2,
        )
    )
    for method in (GraphDPSGD(**QUICK), GraphBaseline(**QUICK)):
        with pytest.raises(InvalidInputError, match="many graphs"):
            method.fit(one)
        fitted = copy.copy(method).fit(DATA)
        with pytest.raises(InvalidInputError, match="many graphs"):
            fitted.predict(one)
    for name in ("dp-mlp", "mlp", "gap", "dpar", "dp-gnn", "graph-split", "late-graph", "gnn"):
        with pytest.raises(InvalidInputError, match="one graph of nodes"):
            METHODS[name]().plan(FACTS)


def test_predictions_are_refused_where_they_mean_nothing():
    with pytest.raises(InvalidInputError, match="not been fitted"):
        GraphDPSGD().predict(DATA)
    method = GraphDPSGD(**QUICK).fit(DATA)
    with pytest.raises(InvalidInputError, match="mode"):
        method.predict(DATA, mode="noisy")
    with pytest.raises(InvalidInputError, match="leave it out"):
        method.predict(DATA, epsilon=1.0)
    wide = copy.copy(DATA)
    wide.x = torch.zeros(len(DATA.x), 5)
    with pytest.raises(InvalidInputError, match="3 columns"):
        method.predict(wide)
    with pytest.raises(InvalidInputError, match="pos"):
        GraphDPSGD(geometry="edges", **QUICK).fit(DATA)


def test_the_open_rate_goes_up_and_down():
    method = GraphBaseline(cycles=2)
    rates = [method._rate(done) for done in (0.0, 0.25, 0.5, 0.75)]
    assert rates == pytest.approx([0.1, 1.0, 0.1, 1.0])
    assert GraphBaseline()._rate(0.3) == 1.0
    assert math.isinf(GraphBaseline(**QUICK, cycles=1).fit(DATA).certificate_.guarantee.epsilon)
