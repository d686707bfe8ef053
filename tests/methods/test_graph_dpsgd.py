"""Whole graphs as records: withholding one removes one term, and nothing of it is left."""

import copy
import math
from pathlib import Path
from typing import get_args

import pytest
import torch
from methods_cases import made, recorded, weights
from torch import nn
from torch_geometric.data import Data

from graphveil._errors import BudgetError, InvalidInputError, RefusedError, UnprovenError
from graphveil.grads.clipped import ClippedSum
from graphveil.grads.clipping import Flat
from graphveil.graph.collate import collate, uncollate
from graphveil.graph.splits import split
from graphveil.methods import METHODS, Facts, GraphBaseline, GraphDPSGD, terms
from graphveil.methods.checkpoint import INDEX
from graphveil.methods.graph_models import count_examples
from graphveil.methods.recipes import recipes
from graphveil.methods.settings import setting_types
from graphveil.methods.terms import Graphs
from graphveil.nn.descriptions import GraphNetwork
from graphveil.privacy.accounting import epsilon_of
from graphveil.privacy.claims import CLAIMS
from graphveil.privacy.events import SampledGaussianDpEvent, repeated
from graphveil.privacy.guarantee import round_up
from graphveil.rng import secret, seeded

QUICK = {"steps": 4, "hidden_channels": 4}
CONVS = get_args(get_args(setting_types(GraphDPSGD)["conv"])[0])


def private(**settings):
    return GraphDPSGD(**({"epsilon": 8.0} | settings))


def graphs(count=24, classes=2, seed=0):
    """Small graphs of one to six nodes; the mean of their features says a little of the class."""
    rng = torch.Generator().manual_seed(seed)
    listed = []
    for number in range(count):
        size = 1 + number % 6
        x = torch.randn(size, 3, generator=rng) + number % classes
        edges = torch.randint(size, (2, 2 * size), generator=rng)
        edges = edges[:, edges[0] != edges[1]]
        listed.append(
            Data(
                x=x,
                edge_index=torch.cat([edges, edges.flip(0)], 1),
                y=torch.tensor([number % classes]),
            )
        )
    return split(collate(listed, num_classes=classes), (0.5, 0.25, 0.25), seed=1)


DATA = graphs()
FACTS = Facts.of(DATA)


def clipped_sum(method):
    """Clipped gradients of a new network."""
    losses = terms.graph_losses(method.task(FACTS), None)
    return ClippedSum(method.build(Facts.of(DATA)), losses, Flat(1.0))


def gradients(method, data, clipped):
    """The clipped gradient of every training graph, by graph."""
    training = method.terms(data)
    found = {}
    for place, graph in enumerate(training.ids.tolist()):
        total = clipped(training.batches(torch.tensor([place])))
        found[graph] = torch.cat([value.flatten() for value in total.values()])
    return found


# --- one graph, one term --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("conv", "pool"),
    [  # every convolution and every pooling at once; each with each is slow
        pytest.param(conv, pool, marks=[] if number % 3 == place else pytest.mark.slow)
        for number, conv in enumerate(CONVS)
        for place, pool in enumerate(["mean", "max", "sum"])
    ],
)
def test_withholding_one_graph_removes_one_term_and_alters_none(conv, pool):
    """Brute force over every training graph: the others' gradients stay bit-equal."""
    norms = {"norm": "instance", "norm_first": True}
    method = private(conv=conv, pool=pool, head_channels=[5, 3], **norms, **QUICK)
    clipped = clipped_sum(method)
    whole = gradients(method, DATA, clipped)
    for graph in DATA.train_mask.nonzero().flatten().tolist():
        # Withheld: the public place is there, nothing in it, and nothing to train on.
        parts = uncollate(DATA)
        parts[graph] = Data(x=torch.zeros(0, 3), edge_index=torch.zeros(2, 0, dtype=torch.long))
        left = collate(parts, num_classes=2)
        for name in ("train_mask", "val_mask", "test_mask"):
            left[name] = DATA[name].clone()
        left.train_mask[graph] = False
        after = gradients(method, left, clipped)
        assert after.keys() == whole.keys() - {graph}
        for other, gradient in after.items():
            assert torch.equal(gradient, whole[other])


def test_a_graph_may_add_its_whole_bound():
    method = private(**QUICK)
    every = gradients(method, DATA, clipped_sum(method)).values()
    norms = torch.stack([gradient.norm() for gradient in every])
    assert norms.max() <= 1 + 1e-6
    assert norms.max() > 0.9
    assert method.influence(FACTS) == (1, 0)


@pytest.mark.parametrize("conv", CONVS)
def test_batches_hold_every_graph_as_it_is(conv, monkeypatch):
    monkeypatch.setattr("graphveil.methods.terms._NODES_AT_ONCE", 7)
    method = private(conv=conv, degree=False, **QUICK)
    network = method.build(FACTS).eval()
    shuffled = _with_nodes_shuffled(DATA)
    for data in (DATA, shuffled):
        every = Graphs(data)
        order = torch.randperm(len(every), generator=torch.Generator().manual_seed(3))
        batches = list(every.batches(order))
        assert len(batches) > 5
        assert sum(batch[3] for batch in batches) == len(every)
        assert all(len(batch[0]) <= 7 or batch[3] == 1 for batch in batches)
        together = every.logits(network, order)
        for place, graph in enumerate(order.tolist()):
            one = uncollate(DATA)[graph]
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


def test_batch_normalisation_is_refused_by_name(monkeypatch):
    build = GraphNetwork.build

    def mixing(self):
        network = build(self)
        network.head = nn.Sequential(nn.BatchNorm1d(4), network.head)
        return network

    monkeypatch.setattr(GraphNetwork, "build", mixing)
    with pytest.raises(UnprovenError, match="BatchNorm"):
        private(**QUICK).fit(DATA)


# --- counts of each graph's own patterns ----------------------------------------------------------


def test_withholding_one_graph_leaves_the_rows_of_all_others():
    method = private()
    method.plan_ = method.plan(FACTS)
    whole = count_examples(method, DATA)
    ids = DATA.train_mask.nonzero().flatten().tolist()
    for graph in ids:
        parts = uncollate(DATA)
        parts[graph] = Data(x=torch.zeros(0, 3), edge_index=torch.zeros(2, 0, dtype=torch.long))
        left = collate(parts, num_classes=2)
        left.train_mask = DATA.train_mask.clone()
        left.train_mask[graph] = False
        after = count_examples(method, left)
        kept = [place for place, other in enumerate(ids) if other != graph]
        assert (after.rows != whole.rows[kept]).nnz == 0


@pytest.mark.parametrize(
    "settings", [{}, {"class_weights": [1.0, 2.0]}, {"class_weights": "noisy"}]
)
def test_counts_learn_what_sizes_tell(settings):
    """Paths against circles; the same is learnt with and without weights of classes."""
    listed = []
    for number in range(120):
        size = 4 + number % 5
        ring = torch.arange(size)
        pairs = torch.stack([ring, (ring + 1) % size])[:, : size - number % 2]
        edges = torch.cat([pairs, pairs.flip(0)], 1)
        listed.append(Data(x=torch.ones(size, 1), edge_index=edges, y=torch.tensor([number % 2])))
    data = split(collate(listed, num_classes=2), (0.7, 0.1, 0.2), seed=0)
    method = private(**settings).fit(data, rng=secret())
    assert method.score(data) >= 0.9
    assert GraphBaseline(steps=60).fit(data).score(data) == 1.0


def test_the_rule_follows_public_facts_and_settings_win():
    facts = [Facts(num_nodes=n, num_features=3, num_classes=2, num_train=n, record="graph")
             for n in (200, 1500, 20_000)]  # fmt: skip
    plans = [private(epsilon=1.0).plan(one) for one in facts]
    rounds = [plan.details["rounds"] for plan in plans]
    rates = [plan.part("weights").learning_rate for plan in plans]
    assert rounds == [1, 2, 3]
    assert rates == sorted(rates)
    assert rates[-1] > rates[0]
    assert all(plan.part("weights").optimizer == "sgd" for plan in plans)
    told = private(rounds=0, steps=7, sample_rate=0.5, learning_rate=3.0, optimizer="adam")
    part = told.plan(facts[1]).part("weights")
    assert (part.count, part.rate, part.learning_rate, part.optimizer) == (7, 0.5, 3.0, "adam")
    assert told.plan(facts[1]).details["rounds"] == 0


def test_a_setting_of_convolutions_means_convolutions():
    for settings in ({"conv": "gcn"}, {"pool": "max"}, {"num_layers": 1}, {"geometry": "edges"}):
        method = private(**settings)
        plan = method.plan(FACTS)
        assert isinstance(method.network(FACTS), GraphNetwork)
        assert "rounds" not in plan.details
        part = plan.part("weights")
        assert (part.count, part.rate, part.optimizer) == (80, 0.25, "adam")
    assert method.network(FACTS).conv == "sum"


def test_what_counts_cost_is_what_the_same_steps_cost_with_convolutions():
    steps = {"steps": 12, "sample_rate": 0.5}
    events = [
        private(**steps, **more).plan(FACTS).parts[-1].event for more in ({}, {"conv": "sum"})
    ]
    assert events[0] == events[1]


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
    step = SampledGaussianDpEvent(
        rate=method.plan_.details["sample_rate"], noise_multiplier=noise.pop(), removed=1, altered=0
    )
    steps = repeated(step, method.steps)
    if not counts:
        assert epsilon_of(steps, method.plan_.delta) == pytest.approx(
            method.certificate_.guarantee.epsilon, rel=1e-6
        )
    assert method.certificate_.guarantee.epsilon <= 3.0 * (1 + 1e-6)
    assert method.certificate_.guarantee.epsilon > 2.5
    assert method.certificate_.guarantee.unit == "graph"


@pytest.fixture
def weighed(monkeypatch):
    """What the losses of classes are multiplied by, in every fit from here on."""
    found, losses = [], terms.graph_losses
    monkeypatch.setattr(
        terms, "graph_losses", lambda task, weights: found.append(weights) or losses(task, weights)
    )
    return found


def test_noisy_counts_are_of_the_training_graphs_and_within_one(monkeypatch, weighed):
    seen = recorded(monkeypatch)
    method = GraphDPSGD(class_weights="noisy", epsilon=3.0, **QUICK).fit(DATA)
    mechanism, counts, _ = seen.releases[0]
    assert counts.tolist() == torch.bincount(DATA.y[DATA.train_mask], minlength=2).tolist()
    assert mechanism.sensitivity == 1.0
    assert epsilon_of(mechanism.event(), method.plan_.delta) < 0.05 * 3.0
    (weights,) = weighed
    assert weights.max() == 1.0
    assert weights.min() >= 0.1


def test_rare_classes_weigh_more_with_enough_budget(weighed):
    rare = copy.copy(DATA)
    rare.y = torch.zeros_like(DATA.y)
    rare.y[DATA.train_mask.nonzero().flatten()[:2]] = 1
    GraphDPSGD(class_weights="noisy", epsilon=1e4, weights_share=0.5, **QUICK).fit(rare)
    assert weighed[0].tolist() == pytest.approx([2 / 10, 1.0], abs=0.1)


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
def test_counts_of_an_earlier_attempt_keep_their_price(tmp_path, then, monkeypatch):
    """What was released is not used under other settings; under its own it costs what it did."""

    class KilledError(Exception):
        pass

    def stops(steps):
        for step in steps:
            if step == 2:
                raise KilledError
            yield step

    settings = {**QUICK, "class_weights": "noisy", "epsilon": 6.0, "weights_share": 0.5}
    first, place = GraphDPSGD(**settings), tmp_path / "new"
    with pytest.raises(KilledError):
        first.fit(DATA, directory=place, progress=stops)
    before = {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}
    seen = recorded(monkeypatch)
    with pytest.raises(UnprovenError) as refusal:
        GraphDPSGD(**settings | then).fit(DATA, directory=place)
    assert "resume with the same" in str(refusal.value)
    assert not seen.releases
    assert before == {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}
    assert place / INDEX in before
    method = GraphDPSGD(**settings).fit(DATA, directory=place)
    assert len(seen.releases) == 2  # of four steps, and the counts were not drawn again
    counted = first.plan_.part("counts").event
    assert method.charges_[0].event == counted
    assert method.certificate_.charges == method.plan_.charges == first.plan_.charges
    found = method.certificate_.guarantee.epsilon
    assert epsilon_of(counted, method.plan_.delta) <= found <= 6.0 * (1 + 1e-6)


def test_a_seeded_stream_voids_the_certificate_and_repeats():
    twins = [private(**QUICK).fit(DATA, rng=secret(fixed_seed=3)) for _ in range(2)]
    assert torch.equal(weights(twins[0]), weights(twins[1]))
    assert twins[0].certificate_.void_because
    assert not private(**QUICK).fit(DATA).certificate_.void_because


def test_seeded_noise_is_refused():
    with pytest.raises(RefusedError, match="secret stream"):
        private(**QUICK).fit(DATA, rng=seeded(1, "noise"))


# --- the paper's recipe ---------------------------------------------------------------------------

PAPER = {"paper": True, "noise_multiplier": 2.0, "batch_size": 3, "max_grad_norm": 4.0}


def published(**settings):
    return private(**(QUICK | PAPER | settings))


def claimed(steps, *, graphs=FACTS.num_train, batch=3, noise=2.0, delta=0.01):
    shape = {"graphs": graphs, "batch": batch, "noise_multiplier": noise}
    return CLAIMS["mueller"](**shape, steps=steps, delta=delta).claimed_epsilon


@pytest.mark.parametrize("epsilon", [1.0, 2.5, 8.0, 30.0])
@pytest.mark.parametrize("noise", [1.0, 2.0])
def test_it_trains_until_the_claimed_budget_is_gone_and_no_further(epsilon, noise):
    if claimed(1, noise=noise) > epsilon:
        with pytest.raises(BudgetError, match="a step or more"):
            published(epsilon=epsilon, noise_multiplier=noise).plan(FACTS)
        return
    plan = published(epsilon=epsilon, noise_multiplier=noise).plan(FACTS)
    steps = plan.part("weights").count
    assert plan.claim.epsilon == claimed(steps, noise=noise) <= epsilon
    assert claimed(steps + 1, noise=noise) > epsilon
    assert plan.part("weights").averaged == 0


def test_fewer_steps_claim_less():
    plan = published(max_steps=2).plan(FACTS)
    assert plan.part("weights").count == 2
    assert plan.claim.epsilon == claimed(2) < 8
    assert private(steps=9, max_steps=4).plan(FACTS).parts == private(steps=4).plan(FACTS).parts


@pytest.mark.parametrize("times_bound", [True, False])
def test_the_papers_noise_is_what_is_added_and_what_is_charged(monkeypatch, times_bound):
    seen = recorded(monkeypatch)
    method = published(noise_times_bound=times_bound, max_steps=4).fit(DATA)
    assert len(seen.releases) == 4
    multiplier = 2.0 if times_bound else 2.0 / 4.0
    for mechanism, *_ in seen.releases:
        assert mechanism.noise_multiplier == pytest.approx(multiplier)  # in units of the bound
    rate = 3 / FACTS.num_train
    step = SampledGaussianDpEvent(rate=rate, noise_multiplier=multiplier, removed=1, altered=0)
    certificate = method.certificate_
    assert certificate.guarantee.epsilon == pytest.approx(
        epsilon_of(repeated(step, 4), 0.01), rel=1e-6
    )
    assert not certificate.void_because
    assert certificate.claim.epsilon == claimed(4)
    if times_bound:
        assert certificate.guarantee.epsilon <= certificate.claim.epsilon
        assert "claim holds" in certificate.claim.why_it_differs
    else:
        assert certificate.guarantee.epsilon > 2 * certificate.claim.epsilon
        assert "multiplier of 0.5" in certificate.claim.why_it_differs


@pytest.mark.parametrize("times_bound", [True, False])
def test_weights_move_by_sigma_or_by_sigma_times_the_bound(times_bound):
    steps = {"optimizer": "sgd", "momentum": 0.0, "learning_rate": 3.0, "max_steps": 1}
    loud = {"noise_multiplier": 200.0, "noise_times_bound": times_bound, "hidden_channels": 32}
    method = published(**steps, **loud)
    first = torch.cat([value.flatten() for value in method.build(FACTS).parameters()]).detach()
    moved = (weights(method.fit(DATA)) - first).std()  # three is the rate, and the batch
    assert float(moved) == pytest.approx(800.0 if times_bound else 200.0, rel=0.1)


@pytest.mark.parametrize(
    "settings, words",
    [
        ({"noise_multiplier": None}, "'noise_multiplier' parameter must be given"),
        ({"batch_size": None}, "'batch_size' parameter must be given"),
        ({"batch_size": 13}, "batch_size"),
        ({"clipping": "automatic"}, "whole gradients"),
        ({"class_weights": "noisy"}, "[Nn]o paper counts classes"),
        ({"paper": False}, "'noise_multiplier' parameter must be left out"),
    ],
)
def test_what_the_paper_has_no_word_about_is_refused(settings, words):
    with pytest.raises(InvalidInputError, match=words):
        published(**settings).plan(FACTS)


MUELLER = [recipe for recipe in recipes().values() if recipe.name.startswith("mueller-")]
SETS = {  # graphs, columns, classes, training graphs
    "synthetic-er": (1000, 9, 2, 600),
    "fingerprint": (1900, 2, 4, 1140),
    "ecg:cpsc": (1125, 512, 2, 844),
    "molbace:codes": (1513, 9, 2, 1210),
}


def facts_of(recipe):
    graphs, columns, classes, training = SETS[recipe.data]
    sizes = {"num_nodes": graphs, "num_features": columns, "num_classes": classes}
    return Facts(**sizes, num_train=training, record="graph")


def test_there_is_a_recipe_for_every_network_of_the_paper():
    names = {recipe.name.removeprefix("mueller-") for recipe in MUELLER}
    assert names == {
        f"{data}-{conv}{ending}"
        for data in ("synthetic", "fingerprint", "ecg", "molbace")
        for conv in ("gcn", "gat", "sage")
        for ending in ("", "-open")
    }


@pytest.mark.parametrize("recipe", MUELLER, ids=lambda recipe: recipe.name)
def test_a_recipe_of_the_paper_claims_its_epsilon_and_says_what_is_proven(recipe):
    method, facts = recipe.make(), facts_of(recipe)
    if not method.private:
        assert math.isinf(method.plan(facts).epsilon)
        return
    method.set_params(max_steps=20)  # what all of them cost is below
    plan = method.plan(facts)
    proven, stated = plan.epsilon, plan.claim.epsilon
    bare = recipe.data in ("fingerprint", "molbace:codes")
    assert method.noise_times_bound != bare
    assert proven > 3 * stated if bare else proven <= stated
    method.set_params(max_steps=None)
    assert method._claimed_steps(facts.num_train, recipe.delta) > 200


@pytest.mark.parametrize(
    "epsilon, noise, steps, proven",
    [(5, 1.0, 242, 70.04), (1, 1.8, 75, 7.833), (0.5, 2.3, 38, 3.188)],
)
def test_what_fingerprints_published_epsilons_are_worth(epsilon, noise, steps, proven):
    recipe = recipes()["mueller-fingerprint-gcn"]
    plan = recipe.make(epsilon=epsilon, noise_multiplier=noise).plan(facts_of(recipe))
    assert plan.part("weights").count == steps
    assert plan.claim.epsilon == pytest.approx(epsilon, rel=0.01)
    assert round_up(plan.epsilon) == f"{proven:g}"
    page = Path(__file__).parents[2] / "docs" / "guarantees" / "graph.md"
    (row,) = (
        line for line in page.read_text().splitlines() if "| Fingerprint, noise alone" in line
    )
    assert round_up(plan.epsilon) in row.replace("*", "").replace(",", "").split()


def test_the_networks_are_those_of_appendix_b():
    sizes = {recipe.name: recipe.make().network(facts_of(recipe)) for recipe in MUELLER}
    assert sizes["mueller-synthetic-gcn"].widths == [200, 400, 800, 1600]
    assert sizes["mueller-ecg-sage"].head.widths == [512, 128, 56, 24, 1]
    assert sizes["mueller-fingerprint-gcn"].normalised == [2]
    assert sizes["mueller-molbace-gat"].normalised == [9, 256, 512, 1024]
    pools = {name.split("-")[1]: network.pool for name, network in sizes.items()}
    assert pools == {"synthetic": "mean", "fingerprint": "max", "ecg": "max", "molbace": "mean"}


def test_the_last_weights_are_kept_where_asked_for():
    seen = []
    for keep in ("best", "last"):
        method = GraphBaseline(steps=12, hidden_channels=4, keep=keep)
        last = {}
        method.run(
            method.plan(FACTS).on(DATA),
            DATA,
            on_step=lambda network, _, last=last: last.update(copy.deepcopy(network.state_dict())),
        )
        kept = method.network_.state_dict()
        seen.append(all(torch.equal(kept[name], value) for name, value in last.items()))
    assert seen == [False, True]  # after step 10 nothing was compared


# --- the contract ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["graph-dpsgd", "graph-gnn"])
def test_lists_and_data_sets_are_taken(name):
    method = made(name, **QUICK).fit(DATA)
    chances = method.predict_proba(DATA)
    assert chances.shape == (24, 2)
    torch.testing.assert_close(chances.sum(1), torch.ones(24))
    torch.testing.assert_close(method.predict_proba(uncollate(DATA)), chances)
    torch.testing.assert_close(method.predict_proba(DATA, mode="disjoint"), chances)
    assert torch.equal(method.predict(DATA), chances.argmax(1))
    found = method.score(DATA)
    right = (chances.argmax(1) == DATA.y)[DATA.test_mask]
    assert found == pytest.approx(float(right.float().mean()))
    assert "reads its own graph" in str(method.plan_.inference) or name == "graph-gnn"


@pytest.mark.parametrize("name", ["graph-dpsgd", "graph-gnn"])
def test_a_list_that_nobody_has_split_is_refused_with_the_way_out(name):
    with pytest.raises(InvalidInputError, match=r"split\(collate\(graphs\)\)"):
        made(name, **QUICK).fit(uncollate(DATA))


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
        method = private(steps=2, **{"hidden_channels": 4, **settings}).fit(data)
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
        private(**settings).plan(FACTS)


@pytest.mark.parametrize(
    "settings, said", [({"norm": "batch"}, "BatchNorm"), ({"class_weights": "balanced"}, "release")]
)
def test_what_would_read_other_graphs_is_refused_with_the_reason(settings, said):
    with pytest.raises(UnprovenError, match=said):
        private(**settings).plan(FACTS)


def test_binary_losses_need_two_classes_and_delta_stays_below_one_in_n():
    with pytest.raises(InvalidInputError, match="two classes"):
        private(loss="binary").plan(Facts.of(graphs(30, classes=3)))
    with pytest.raises(UnprovenError, match="1/n"):
        private(delta=1 / 24).plan(FACTS)
    assert private().plan(FACTS).delta == 0.01


def test_nodes_and_graphs_are_not_mixed_up():
    one = split(
        Data(
            x=torch.randn(20, 3),
            edge_index=torch.zeros(2, 0, dtype=torch.long),
            y=torch.arange(20) % 2,
        )
    )
    for method in (private(**QUICK), GraphBaseline(**QUICK)):
        with pytest.raises(InvalidInputError, match="many graphs"):
            method.fit(one)
        fitted = copy.copy(method).fit(DATA)
        with pytest.raises(InvalidInputError, match="many graphs"):
            fitted.predict(one)
    for name in ("dp-mlp", "mlp", "gap", "dpar", "dp-gnn", "graph-split", "late-graph", "gnn"):
        with pytest.raises(InvalidInputError, match="one graph of nodes"):
            made(name).plan(FACTS)


def test_predictions_are_refused_where_they_mean_nothing():
    with pytest.raises(InvalidInputError, match="not been fitted"):
        private().predict(DATA)
    method = private(**QUICK).fit(DATA)
    with pytest.raises(InvalidInputError, match="mode"):
        method.predict(DATA, mode="noisy")
    with pytest.raises(InvalidInputError, match="leave it out"):
        method.predict(DATA, epsilon=1.0)
    wide = copy.copy(DATA)
    wide.x = torch.zeros(len(DATA.x), 5)
    with pytest.raises(InvalidInputError, match="3 columns"):
        method.predict(wide)
    with pytest.raises(InvalidInputError, match="pos"):
        private(geometry="edges", **QUICK).fit(DATA)


def test_the_open_rate_goes_up_and_down():
    method = GraphBaseline(cycles=2)
    rates = [method.rate(done) for done in (0.0, 0.25, 0.5, 0.75)]
    assert rates == pytest.approx([0.1, 1.0, 0.1, 1.0])
    assert GraphBaseline().rate(0.3) == 1.0
    assert math.isinf(GraphBaseline(**QUICK, cycles=1).fit(DATA).certificate_.guarantee.epsilon)
