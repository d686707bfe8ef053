"""Random groups: one node changes one group's gradient, and nothing crosses between groups."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from methods_cases import changed, graph, made, weights
from torch_geometric.data import Data

from graphveil._errors import BudgetError, InvalidInputError, UnprovenError
from graphveil.grads.clipped import ClippedSum
from graphveil.grads.clipping import Flat
from graphveil.grads.step import PrivateStep
from graphveil.graph.groups import random_groups, within
from graphveil.methods import METHODS, Facts
from graphveil.methods.terms import GroupTerms, group_losses, node_losses
from graphveil.privacy import claims
from graphveil.privacy.accounting import epsilon_of
from graphveil.privacy.events import SampledGaussianDpEvent, repeated
from graphveil.rng import secret, seeded

DATA = graph()
FACTS = Facts.of(DATA)
LOSSES = group_losses(made("graph-split").task(FACTS))


def terms_of(data, splits=3, **settings):
    settings = {"clip_by": "group", "dropout": 0.0, "hidden_channels": 4, **settings}
    method = made("graph-split", splits=splits, **settings)
    return method, method.terms(data)


def gradients(network, terms, bound=0.5):
    """Every term's clipped gradient, as one vector each."""
    clipped = ClippedSum(network, LOSSES, Flat(bound))
    found = []
    for place in range(len(terms)):
        total = clipped(terms.batches(torch.tensor([place])))
        found.append(torch.cat([value.flatten() for value in total.values()]))
    return torch.stack(found)


def without(data, v):
    """The same public ids; node v has no row of its own: no features, no label, no edges."""
    x, y, mask = data.x.clone(), data.y.clone(), data.train_mask.clone()
    x[v], y[v], mask[v] = 0.0, -1, False
    kept = (data.edge_index != v).all(0)
    return changed(data, x=x, y=y, train_mask=mask, edge_index=data.edge_index[:, kept])


# --- groups ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("nodes, count", [(10, 1), (10, 3), (10, 10), (101, 7)])
def test_groups_are_equal_give_or_take_one_and_know_nothing_but_ids(nodes, count):
    groups = random_groups(nodes, count, seeded(4, "groups"))
    sizes = torch.bincount(groups, minlength=count)
    assert sizes.max() - sizes.min() <= 1
    assert torch.equal(groups, random_groups(nodes, count, seeded(4, "groups")))
    if 1 < count < nodes:
        assert not torch.equal(groups, random_groups(nodes, count, seeded(5, "groups")))


def test_no_edge_between_groups_is_kept_and_every_other_is():
    groups = random_groups(len(DATA.x), 4, seeded(0, "groups"))
    kept = within(DATA.edge_index, groups)
    assert (groups[kept[0]] == groups[kept[1]]).all()
    wanted = {(u, v) for u, v in DATA.edge_index.t().tolist() if groups[u] == groups[v] and u != v}
    assert {(u, v) for u, v in kept.t().tolist()} == wanted


# --- one node changes one term --------------------------------------------------------------------


@pytest.mark.parametrize("conv", ["gcn", "sage", "gat", "gin"])
@pytest.mark.parametrize("num_layers", [1, 3])
def test_a_withheld_node_changes_its_groups_gradient_and_no_other_bit(conv, num_layers):
    """Brute force over every node of a small graph."""
    data = graph(seed=3, nodes=12, edges=30)
    method, terms = terms_of(data, conv=conv, num_layers=num_layers)
    network = method.build(Facts.of(data)).eval()
    before = gradients(network, terms)
    changed_terms = set()
    for v in range(12):
        after = gradients(network, method.terms(without(data, v)))
        differ = [g for g in range(3) if not torch.equal(before[g], after[g])]
        assert set(differ) <= {int(terms.groups[v])}
        moved = float((before.sum(0) - after.sum(0)).norm())
        assert moved <= 2 * 0.5 * (1 + 1e-5)
        changed_terms |= set(differ)
    assert changed_terms == {0, 1, 2}  # the test can tell


def test_an_edge_between_groups_changes_nothing_and_one_within_changes_one_group():
    data = graph(seed=3, nodes=12, edges=30)
    method, terms = terms_of(data)
    network = method.build(Facts.of(data)).eval()
    before, seen = gradients(network, terms), {0: 0, 1: 0}
    for u, v in itertools.combinations(range(12), 2):
        both = torch.tensor([[u, v], [v, u]])
        present = ((data.edge_index[0] == u) & (data.edge_index[1] == v)).any()
        if present:
            continue
        other = changed(data, edge_index=torch.cat([data.edge_index, both], 1))
        after = gradients(network, method.terms(other))
        differ = sum(not torch.equal(before[g], after[g]) for g in range(3))
        assert differ == int(terms.groups[u] == terms.groups[v])
        seen[differ] += 1
    assert min(seen.values()) > 0


def test_the_bound_of_two_is_reached():
    """A group whose one label turns round: its clipped gradient points the other way."""
    x = torch.ones(2, 1)
    masks = {name: torch.tensor([True, True]) for name in ("train_mask", "val_mask", "test_mask")}
    data = Data(
        x=x, edge_index=torch.empty(2, 0, dtype=torch.long), y=torch.tensor([0, 1]), **masks
    )
    settings = {"num_layers": 1, "normalisation": "none", "features": "raw", "dropout": 0.0}
    method = made("graph-split", splits=1, clip_by="group", **settings)
    network = method.build(Facts(num_nodes=2, num_features=1, num_classes=2, num_train=2))
    one = changed(data, train_mask=torch.tensor([True, False]))
    two = changed(data, train_mask=torch.tensor([False, True]))
    bound = 1e-3
    moved = gradients(network, method.terms(one), bound) - gradients(
        network, method.terms(two), bound
    )
    assert float(moved.norm()) == pytest.approx(2 * bound, rel=1e-4)


@pytest.mark.parametrize("train, charged", [(2, (0, 2)), (11, (0, 11)), (12, (1, 11))])
def test_few_documents_in_large_groups_are_charged_for_all(train, charged):
    """A node without a loss removes no term, and may alter all of them."""
    data = graph(seed=3, nodes=12, edges=60)
    first = torch.arange(12) < train
    nobody = torch.zeros(12, dtype=torch.bool)
    data = changed(data, train_mask=first, val_mask=nobody, test_mask=~first)
    method = made("graph-split", splits=1, clip_by="document", hidden_channels=4, dropout=0.0)
    facts = Facts.of(data)
    assert method.influence(facts) == charged
    network = method.build(facts).eval()

    def each(data):
        clipped = ClippedSum(network, node_losses(method.task(facts)), Flat(0.5))
        terms = method.terms(data)
        return {
            int(root): torch.cat(
                [v.flatten() for v in clipped(terms.batches(torch.tensor([place]))).values()]
            )
            for place, root in enumerate(terms.roots)
        }

    before, most = each(data), 0
    for v in range(train, 12):  # no loss of its own
        after = each(without(data, v))
        most = max(most, sum(not torch.equal(before[u], after[u]) for u in before))
    assert most == (train if train < 12 else 0)
    assert most <= sum(charged)


def test_a_document_reaches_the_terms_of_its_group_and_no_other():
    """clip_by="document": r = 1, a = members - 1, however deep the network is."""
    data = graph(seed=3, nodes=12, edges=30)
    facts = Facts.of(data)
    method = made(
        "graph-split", splits=4, clip_by="document", num_layers=4, hidden_channels=4, dropout=0.0
    )
    assert method.influence(facts) == (1, 2)
    groups = random_groups(12, 4, seeded(0, "groups"))
    network = method.build(facts).eval()

    def each(data):
        terms = method.terms(data)
        clipped = ClippedSum(network, node_losses(method.task(facts)), Flat(0.5))
        return {
            int(root): torch.cat(
                [v.flatten() for v in clipped(terms.batches(torch.tensor([place]))).values()]
            )
            for place, root in enumerate(terms.roots)
        }

    before, most = each(data), 0
    for v in range(12):
        after = each(without(data, v))
        altered = [u for u in after if not torch.equal(before[u], after[u])]
        assert all(groups[u] == groups[v] for u in altered)
        assert len(altered) <= 2
        most = max(most, len(altered))
    assert most == 2


def test_groups_in_pieces_add_up_to_groups_together(monkeypatch):
    method, terms = terms_of(DATA, splits=6)
    network = method.build(FACTS).eval()
    whole = ClippedSum(network, LOSSES, Flat(0.5))(terms.batches(torch.arange(6)))
    monkeypatch.setattr("graphveil.methods.terms._NODES_AT_ONCE", 12)
    assert len(list(terms.batches(torch.arange(6)))) == 6
    pieces = ClippedSum(network, LOSSES, Flat(0.5))(terms.batches(torch.arange(6)))
    for name, value in whole.items():
        torch.testing.assert_close(pieces[name], value, rtol=1e-5, atol=1e-7)


def test_fresh_groups_come_when_they_should_and_old_ones_stay():
    stream = seeded(0, "groups")
    labels = torch.where(DATA.train_mask, DATA.y, -1)
    terms = GroupTerms(DATA.x, labels, DATA.edge_index, 5, stream, fresh=2)
    met = []
    for step in range(5):
        terms.begin(step)
        met.append(terms.groups)
    assert torch.equal(met[0], met[1])
    assert not torch.equal(met[1], met[2])
    assert torch.equal(met[2], met[3])
    assert not torch.equal(met[3], met[4])
    terms.begin(3)  # whatever came before
    assert torch.equal(terms.groups, met[3])


def groups_of_steps(monkeypatch, data, coins, *, directory=None, steps=6):
    """Who is in which group in every step of a fit whose batches are empty or full by ``coins``."""
    met, left = [], iter(coins)
    batch = PrivateStep._draw

    def draw(self):
        met.append(self.examples.groups.tolist())
        return batch(self)[: 0 if not next(left) else None]

    with monkeypatch.context() as patch:
        patch.setattr(PrivateStep, "_draw", draw)
        made("graph-split", splits=3, fresh_groups=1, steps=steps).fit(data, directory=directory)
    return met


def test_groups_do_not_tell_whether_a_secret_batch_was_empty(monkeypatch):
    full = groups_of_steps(monkeypatch, DATA, [1, 1, 1, 1, 1, 1])
    assert groups_of_steps(monkeypatch, DATA, [1, 0, 0, 1, 0, 1]) == full
    assert full[0] != full[1] != full[2]


def test_groups_of_a_resumed_run_follow_the_number_of_the_step(monkeypatch, tmp_path):
    full = groups_of_steps(monkeypatch, DATA, [1] * 6)
    with pytest.raises(StopIteration):
        groups_of_steps(monkeypatch, DATA, [1, 0, 1], directory=tmp_path)
    # Nothing was saved since the beginning: the steps that were begun are lost, and stay charged.
    assert groups_of_steps(monkeypatch, DATA, [1] * 6, directory=tmp_path) == full[4:]


# --- what it costs --------------------------------------------------------------------------------


def test_the_charge_is_one_altered_term_for_each_step():
    plan = made("graph-split", clip_by="group", splits=7, sample_rate=0.3).plan(FACTS)
    event = SampledGaussianDpEvent(
        rate=0.3, noise_multiplier=plan.details["noise_multiplier"], removed=0, altered=1
    )
    assert plan.charges[0].event == repeated(event, 4)
    assert "who is in which group" in plan.public


@pytest.mark.parametrize("unit", ["node", "edge"])
def test_units(unit):
    plan = made("graph-split", unit=unit, sample_rate=1.0).plan(FACTS)
    assert plan.unit == ("node" if unit == "node" else "edge-undirected")
    assert plan.epsilon <= 8.0


@pytest.mark.parametrize(
    "noise, claimed", [(4.0, 136.51), (26.0, 9.75), (48.0, 4.91), (112.0, 2.00)]
)
def test_the_papers_figures_stand_beside_proven_ones(noise, claimed):
    """Table 3: the whole graph as one term, 2000 steps, delta 1e-5; and ten splits by coins."""
    whole = claims.igamberdiev(noise_multiplier=noise, steps=2000, splits=1, delta=1e-5)
    assert whole.claimed_epsilon == pytest.approx(claimed, abs=0.005)
    full = epsilon_of(whole.proven, 1e-5)
    by_hand = SampledGaussianDpEvent(rate=1.0, noise_multiplier=noise, removed=0, altered=1)
    assert full == pytest.approx(epsilon_of(repeated(by_hand, 2000), 1e-5), rel=1e-6)
    assert full > claimed
    ten = claims.igamberdiev(noise_multiplier=noise, steps=2000, splits=10, delta=1e-5)
    assert epsilon_of(ten.proven, 1e-5) < full


def test_the_papers_noise_shows_claimed_and_proven():
    settings = {"steps": 200, "sample_rate": 0.1, "splits": 10, "delta": 1e-5}
    plan = made("graph-split", claimed_noise=True, epsilon=2.0, **settings).plan(FACTS)
    certificate = plan.certificate()
    assert certificate.claim.epsilon == pytest.approx(2.0, rel=1e-4)
    assert certificate.guarantee.epsilon > 2.0
    honest = made("graph-split", clip_by="group", epsilon=2.0, **settings).plan(FACTS)
    assert honest.details["noise_multiplier"] > plan.details["noise_multiplier"]


@pytest.mark.parametrize(
    "settings, error, said",
    [
        ({"clip_by": "document", "unit": "edge"}, UnprovenError, "edge"),
        ({"clip_by": "group", "members": 2}, InvalidInputError, "without 'splits'"),
        ({"splits": 3, "members": 2}, InvalidInputError, "splits=3 instead"),
        ({"clip_by": "document", "fresh_groups": 3}, InvalidInputError, "fresh_groups=3"),
        ({"claimed_noise": True, "clip_by": "document"}, UnprovenError, "claimed_noise=True"),
        ({"claimed_noise": True, "sample_rate": 0.3}, InvalidInputError, "try 0.333"),
        ({"claimed_noise": True, "epsilon": 1e-9}, BudgetError, "leave out 'claimed_noise'"),
    ],
)
def test_refusals(settings, error, said):
    with pytest.raises(error, match=said):
        made("graph-split", **settings).plan(FACTS)


# --- it learns ------------------------------------------------------------------------------------


def test_with_a_huge_budget_it_learns_and_with_dropout_it_repeats():
    data = graph(seed=1, nodes=300, edges=200)
    settings = {"epsilon": 1e5, "steps": 100, "splits": 30, "sample_rate": 1.0, "dropout": 0.0}
    method = METHODS["graph-split"](clip_by="group", learning_rate=0.05, **settings).fit(data)
    assert method.score(data, mask="train_mask") > 0.42  # a third by chance
    twins = [
        made("graph-split", clip_by="group", splits=5, dropout=0.5).fit(
            DATA, rng=secret(fixed_seed=3)
        )
        for _ in range(2)
    ]
    assert torch.equal(weights(twins[0]), weights(twins[1]))


def test_by_default_documents_by_themselves_are_clipped():
    method = made("graph-split")
    plan = method.plan(FACTS)
    assert method._clips == "document"
    assert plan.details["splits"] == FACTS.num_nodes
    assert method.influence(FACTS) == (1, 0)
    assert (plan.part("weights").removed, plan.part("weights").altered) == (1, 0)


@pytest.mark.parametrize("settings", [{"unit": "edge"}, {"fresh_groups": 2}, {"paper": True}])
def test_groups_are_clipped_where_something_needs_them(settings):
    method = made("graph-split", **settings)
    assert method._clips == "group"
    assert method.influence(FACTS) == (0, 1)


def test_ten_groups_with_dropout_or_pairs_without():
    groups, pairs = made("graph-split", clip_by="group"), made("graph-split", members=2)
    assert groups.plan(FACTS).details["splits"] == 10
    assert groups.build(FACTS).after[1].dropout.p == 0.5
    assert pairs.plan(FACTS).details["splits"] == FACTS.num_nodes // 2
    assert pairs.influence(FACTS) == (1, 1)
    assert pairs.build(FACTS).after[1].dropout.p == 0.0
    odd = replace(FACTS, num_nodes=FACTS.num_nodes + 1)
    assert pairs.influence(odd) == (1, 1)
    few = replace(FACTS, num_nodes=4, num_train=4)
    assert made("graph-split", clip_by="group").plan(few).details["splits"] == 4


@pytest.mark.parametrize("clip_by", ["group", "document"])
def test_sgd_takes_shorter_steps_where_there_is_more_noise(clip_by):
    rates = []
    for budget in (1.0, 8.0):
        settings = {"clip_by": clip_by, "optimizer": "sgd", "epsilon": budget}
        plan = made("graph-split", **settings).fit(DATA).plan_
        rates.append(plan.part("weights").learning_rate * plan.details["noise_multiplier"])
    assert rates[0] == pytest.approx(rates[1])
    adam = made("graph-split", clip_by=clip_by, epsilon=1.0).fit(DATA).plan_.part("weights")
    assert adam.learning_rate in (0.02, 0.03)


def rates_of(monkeypatch, **settings):
    """The learning rate of every step of a fit."""
    rates, take = [], PrivateStep.__call__

    def note(self):
        rates.extend(group["lr"] for group in self.optimizer.param_groups)
        return take(self)

    with monkeypatch.context() as patch:
        patch.setattr(PrivateStep, "__call__", note)
        method = made("graph-split", **settings).fit(DATA)
    return rates, method.plan_.part("weights").learning_rate


def test_the_rate_falls_as_told(monkeypatch):
    told = {"learning_rate": 0.1, "steps": 4}
    rates, first = rates_of(monkeypatch, decay=0.01, **told)
    assert first == 0.1
    assert np.allclose(rates, [0.1 * 0.01 ** (taken / 4) for taken in range(4)])
    assert rates[2] == pytest.approx(0.01)
    assert rates_of(monkeypatch, **told) == ([0.1] * 4, 0.1)
    # A rate that was not told is the plan's, and falls as well.
    rates, first = rates_of(monkeypatch, decay=0.01, optimizer="sgd", steps=2)
    assert rates == pytest.approx([first, 0.1 * first])
