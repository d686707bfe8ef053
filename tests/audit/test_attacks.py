"""Attacks: known answers on small graphs, coins, rates by brute force, broken promises."""

import copy
import itertools
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from audit_cases import data_of, make
from scipy import stats
from torch_geometric.data import Data

from graphveil._errors import InvalidInputError
from graphveil.audit.attacks import (
    attack,
    attributes,
    curves,
    graphs,
    kinds_of,
    links,
    membership,
    training,
)
from graphveil.audit.attacks import scores as scoring
from graphveil.audit.attacks.curves import Allowance, judge
from graphveil.audit.neighbours import delete_edge, leave, withhold
from graphveil.graph.collate import collate
from graphveil.graph.splits import split
from graphveil.methods import METHODS, Facts, Method
from graphveil.privacy.tradeoff import largest_tpr
from graphveil.rng import secret

NODES = 240


def graph(*, informative=0.0, nodes=NODES, features=40, seed=0):
    """Random rows and labels: whatever a model knows of a node's label, it has by heart."""
    rng = torch.Generator().manual_seed(seed)
    y = torch.randint(2, (nodes,), generator=rng)
    x = (torch.rand(nodes, features, generator=rng) < 0.5).float()
    x = x + informative * y.unsqueeze(1)
    ends = torch.randint(nodes, (2, nodes), generator=rng)
    ends = ends[:, ends[0] != ends[1]]
    data = Data(x=x, edge_index=torch.cat([ends, ends.flip(0)], 1).unique(dim=1), y=y)
    data.num_classes, data.directed = 2, False
    data = split(data, seed=seed)
    data.val_mask[:] = False  # the last weights are kept, not the best
    return data


def graph_set(count=160, seed=0):
    rng = torch.Generator().manual_seed(seed)
    listed = []
    for _ in range(count):
        ends = torch.randint(5, (2, 6), generator=rng)
        ends = ends[:, ends[0] != ends[1]]
        x = torch.rand(5, 12, generator=rng)
        y = torch.randint(2, (1,), generator=rng)
        listed.append(Data(x=x, edge_index=torch.cat([ends, ends.flip(0)], 1).unique(dim=1), y=y))
    data = collate(listed, num_classes=2)
    data.directed = False
    data = split(data, seed=seed)
    data.val_mask[:] = False
    return data


def by_heart(name="mlp", **settings):
    """A model in the open that fits what it is given."""
    usual = {"steps": 150, "dropout": 0.0, "weight_decay": 0.0, "hidden_channels": 32}
    return METHODS[name](**(usual | settings))


def aucs(findings):
    return {finding.name.split(", ")[1]: finding.figures["auc"] for finding in findings}


# --- curves ---------------------------------------------------------------------------------------


@pytest.fixture(params=range(3))
def scored(request):
    rng = np.random.default_rng(request.param)
    inside = rng.random(60) < 0.5
    return np.round(rng.normal(inside, 1.0), 1), inside  # with ties


def test_auc_is_the_share_of_pairs_in_order(scored):
    scores, inside = scored
    pairs = itertools.product(scores[inside], scores[~inside])
    wins = [1.0 if a > b else 0.5 if a == b else 0.0 for a, b in pairs]
    assert curves.auc(scores, inside) == pytest.approx(np.mean(wins))


@pytest.mark.parametrize("fpr", [0.0, 0.01, 0.1, 0.5, 1.0])
def test_rates_are_those_of_the_best_threshold(scored, fpr):
    scores, inside = scored
    rates = [
        (np.mean(scores[~inside] > level), np.mean(scores[inside] > level))
        for level in [-math.inf, *scores]
    ]
    best = max(true for false, true in rates if false <= fpr)
    assert curves.tpr_at(scores, inside, fpr) == pytest.approx(best)


def test_thresholds_are_chosen_at_even_places_and_counted_at_odd_ones(scored):
    scores, inside = scored
    rates = curves.hold_out(scores, inside, 0.1)
    pilot_out = scores[0::2][~inside[0::2]]
    assert np.mean(pilot_out > rates.threshold) <= 0.1
    assert np.mean(pilot_out >= rates.threshold) > 0.1  # a lower one accuses too many
    tested = scores[1::2] > rates.threshold
    assert rates.hits == (tested & inside[1::2]).sum()
    assert rates.misses == (tested & ~inside[1::2]).sum()
    changed = scores.copy()
    changed[1::2] = 0
    assert curves.hold_out(changed, inside, 0.1).threshold == rates.threshold


def test_limits_are_clopper_and_pearsons():
    rates = curves.Rates(0.0, hits=7, positives=20, misses=1, negatives=30, confidence=0.975)
    interval = stats.binomtest(7, 20).proportion_ci(0.95, method="exact")
    assert (rates.tpr_low, rates.tpr_high) == pytest.approx((interval.low, interval.high))
    assert stats.binom.cdf(1, 30, rates.fpr_high) == pytest.approx(0.025)


def test_f1_is_counted_where_no_threshold_was_chosen():
    inside = np.tile([True, True, False, False], 10)
    perfect = inside.astype(float)
    assert curves.hold_out_f1(perfect, inside) == 1
    swapped = perfect.copy()
    swapped[1::2] = 1 - perfect[1::2]  # right at even places alone
    assert curves.hold_out_f1(swapped, inside) == 0
    assert curves.hold_out_f1(np.zeros(40), inside) == pytest.approx(2 / 3)  # everybody is accused


@pytest.mark.parametrize(
    "scores, inside, match",
    [
        (np.zeros(9), np.ones(8, bool), "one score"),
        (np.full(8, np.nan), np.tile([True, False], 4), "numbers"),
        (np.zeros(8), np.ones(8, bool), "more candidates"),
    ],
)
def test_what_cannot_be_judged_is_refused(scores, inside, match):
    with pytest.raises(InvalidInputError, match=match):
        curves.auc(scores, inside)


# --- the certificate beside them ------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificate():
    data = graph()
    return make("dp-mlp", epsilon=1.0, delta=1e-6).plan(Facts.of(data)).certificate()


def answers(count=400, seed=0):
    inside = np.random.default_rng(seed).random(count) < 0.5
    return inside + 0.01 * np.random.default_rng(seed + 1).random(count), inside


def test_a_result_that_the_certificate_forbids_does_not_hold(certificate):
    finding = judge("perfect", *answers(), Allowance(certificate))
    assert not finding.holds
    assert finding.figures["tpr_low@0.01"] > finding.figures["largest_tpr_at_fpr_high@0.01"]
    assert finding.epsilon_at_least > certificate.guarantee.epsilon
    assert finding.figures["epsilon_if_independent"] > certificate.guarantee.epsilon


def test_rates_alone_contradict_a_certificate(certificate, monkeypatch):
    monkeypatch.setattr(curves, "_guess", lambda *_: None)
    assert not judge("perfect", *answers(), Allowance(certificate)).holds


def test_guesses_alone_contradict_a_certificate(certificate, monkeypatch):
    monkeypatch.setattr(Allowance, "largest_tpr", lambda *_: 1.0)
    assert not judge("perfect", *answers(), Allowance(certificate)).holds


@pytest.mark.parametrize("allowance", [Allowance(None), Allowance(None, None)])
def test_without_a_promise_everything_is_allowed(allowance):
    finding = judge("perfect", *answers(), allowance)
    assert finding.holds
    assert finding.figures["largest_tpr@0.001"] == 1


def test_scores_that_know_nothing_hold(certificate):
    _, inside = answers()
    for seed in range(20):
        scores = np.random.default_rng(seed).random(len(inside))
        finding = judge("blind", scores, inside, Allowance(certificate))
        assert finding.holds
        assert finding.epsilon_at_least < 0.5


def test_the_largest_rate_is_the_tradeoffs_and_grows_with_the_distance(certificate):
    near, far, silent = (Allowance(certificate, distance) for distance in (1, 2, None))
    own = largest_tpr(certificate.event, 0.01)
    assert near.largest_tpr(0.01) == pytest.approx(own)
    assert far.largest_tpr(0.01) == pytest.approx(largest_tpr(certificate.event, own))
    assert 0.01 < near.largest_tpr(0.01) < far.largest_tpr(0.01) < 1
    assert silent.largest_tpr(0.01) == 1


@pytest.mark.slow
def test_the_simulated_optimum_stays_below_the_largest_rate():
    """A Gaussian of known noise, one candidate a run: the best test there is."""
    import dp_accounting as dpa

    from graphveil.privacy.guarantee import Charge, certify

    event = dpa.GaussianDpEvent(1.0)
    paid = certify(
        [Charge(paid_for="a number", event=event)], unit="node", delta=1e-6, released="a number"
    )
    for seed in range(3):
        rng = np.random.default_rng(seed)
        inside = rng.random(4000) < 0.5
        finding = judge("optimal", rng.normal(inside, 1.0), inside, Allowance(paid))
        assert finding.holds
        assert finding.figures["tpr_high@0.01"] > 0.5 * finding.figures["largest_tpr@0.01"]


# --- scores ---------------------------------------------------------------------------------------


def simulated(shift, seed=0, count=400, shadows=8):
    """Signals that move by ``shift`` where a record is in; each has a mean of its own."""
    rng = np.random.default_rng(seed)
    own = rng.normal(0, 2, count)
    inside = rng.random(count) < 0.5
    among = training.flip_shadow_coins(shadows, count, seed, "test")
    signals = own + shift * np.concatenate([inside[None], among]) + rng.normal(0, 1, (9, count))
    return inside, signals[0], signals[1:], among


@pytest.mark.parametrize("shift, low, high", [(2.0, 0.75, 1.0), (0.0, 0.42, 0.58)])
def test_scores_see_a_shift_and_nothing_else(shift, low, high):
    inside, target, shadows, among = simulated(shift)
    _, others, other_shadows, _ = simulated(0.0, seed=5)
    for score in (
        scoring.lira(target, shadows, among),
        scoring.lira_offline(target, shadows, among),
        scoring.rmia(target, shadows, (others, other_shadows)),
        scoring.base(target, shadows),
    ):
        assert low < curves.auc(score, inside) < high
    if shift:  # each record's own mean taken off
        plain = curves.auc(target, inside)
        assert curves.auc(scoring.lira(target, shadows, among), inside) > plain + 0.05


def test_lira_is_the_ratio_of_two_normal_laws():
    shadows = np.array([[0.0], [2.0], [5.0], [9.0]])
    among = np.array([[False], [False], [True], [True]])
    out = stats.norm(1.0, math.sqrt(2 * 1.5)), stats.norm(7.0, math.sqrt(8 * 1.5))
    wanted = out[1].logpdf(4.0) - out[0].logpdf(4.0)
    assert scoring.lira(np.array([4.0]), shadows, among)[0] == pytest.approx(wanted)


def test_rmia_counts_who_has_a_smaller_ratio():
    target, shadows = np.array([0.0, 3.0]), np.zeros((2, 2))
    others = np.array([-1.0, 1.0, 2.0, 4.0]), np.zeros((2, 4))
    assert scoring.rmia(target, shadows, others) == pytest.approx([0.25, 0.75], abs=1e-5)


def test_g_base_adds_the_mean_of_the_neighbours():
    odds = np.array([1.0, 2.0, np.nan, 4.0])
    around = [np.array([1, 2, 3]), np.array([2]), np.array([], dtype=int)]
    assert scoring.g_base(odds, [0, 1, 3], around) == pytest.approx([4.0, 2.0, 4.0])


def test_signals_are_logits_also_where_a_model_is_sure():
    outputs = torch.tensor([[0.0, 30.0], [1.0, 0.0], [0.0, 0.0]], dtype=torch.float64)
    signals = training.scaled_logits(outputs.softmax(1), torch.tensor([1, 1, -1]))
    assert signals[:2] == pytest.approx([30.0, -1.0])
    assert np.isnan(signals[2])


# --- coins and what they withhold -----------------------------------------------------------------


def same(one, two):
    return all(torch.equal(one[name], two[name]) for name in ("x", "edge_index", "y", "train_mask"))


def test_withholding_one_is_withholding_many():
    data = data_of("dp-gnn")
    for node in (0, 5):
        assert same(training.withhold_nodes(data, torch.tensor([node])), withhold(data, node))
    both = withhold(withhold(data, 3), 0)
    assert same(training.withhold_nodes(data, torch.tensor([0, 3])), both)
    many = data_of("graph-dpsgd")
    assert same(training.withhold_graphs(many, torch.tensor([4])), leave(many, 4))
    for directed in (False, True):
        one = training.delete_edges(data, torch.tensor([[0], [7]]), directed=directed)
        assert same(one, delete_edge(data, 0, 7, directed=directed))


def test_shadows_have_every_candidate_in_half_of_them():
    coins = training.flip_shadow_coins(6, 50, 1, "test")
    assert (coins.sum(0) == 3).all()
    assert not np.array_equal(coins[0], coins[2])
    assert not np.array_equal(coins, training.flip_shadow_coins(6, 50, 2, "test"))


class Watch:
    """What a method was trained on, and what it was asked."""

    def __init__(self, monkeypatch):
        self.trained, self.asked = [], []
        run, infer = Method.run, Method.infer

        def watch_run(method, plan, data, **how):
            self.trained.append(copy.copy(data))
            return run(method, plan, data, **how)

        def watch_infer(method, data, *args):
            self.asked.append((data.x.clone(), data.edge_index.clone()))
            return infer(method, data, *args)

        monkeypatch.setattr(Method, "run", watch_run)
        monkeypatch.setattr(Method, "infer", watch_infer)


def test_nodes_are_withheld_by_coins_and_queries_do_not_follow_them(monkeypatch):
    watch, data = Watch(monkeypatch), graph()
    membership.attack_nodes(by_heart(steps=2), data, candidates=60, shadows=2)
    train = data.train_mask.nonzero().flatten()
    null = [set((seen.x == 0).all(1).nonzero().flatten().tolist()) for seen in watch.trained]
    candidates = set().union(*null)
    assert len(watch.trained) == 3
    assert len(candidates) == 60
    assert candidates <= set(train.tolist())  # nobody of the test set
    assert all(15 < len(gone) < 45 for gone in null)
    assert null[1] | null[2] == candidates
    assert not null[1] & null[2]  # opposite coins
    for seen, gone in zip(watch.trained, null, strict=True):
        assert all(seen.y[node] == -1 for node in gone)
        assert not gone & set(seen.edge_index[0].tolist())
    for x, edges in watch.asked:
        assert torch.equal(x, data.x)
        assert torch.equal(edges, data.edge_index) or not edges.numel()


@pytest.mark.parametrize("name", ["dp-mlp", "late-graph", "dp-gnn", "gap", "graph-split", "dpar"])
def test_private_methods_keep_public_places_and_their_plan(name, monkeypatch):
    watch, data = Watch(monkeypatch), graph(nodes=80, features=6)
    findings = membership.attack_nodes(make(name), data, candidates=40, shadows=2)
    assert all(torch.equal(seen.train_mask, data.train_mask) for seen in watch.trained)
    assert all((seen.y[seen.train_mask] == -1).any() for seen in watch.trained)
    assert all(finding.holds for finding in findings)
    assert all(finding.figures["largest_tpr@0.01"] < 1 for finding in findings)


def of(model):
    return torch.cat([value.detach().flatten() for value in model.network_.parameters()])


def test_who_is_out_does_nothing_whatever_its_row_and_label_were():
    """With the same noise in all worlds."""
    data = graph(nodes=60, features=6)
    nodes = data.train_mask.nonzero().flatten()[:10]
    other = copy.copy(data)
    other.x, other.y = data.x.clone(), data.y.clone()
    other.x[nodes], other.y[nodes] = 1 - other.x[nodes], 1 - other.y[nodes]
    for name in ("dp-mlp", "dp-gnn"):
        weights = []
        for seen in (data, other):
            victim = training.Victim.of(make(name), seen, "node")
            gone = training.withhold_nodes(seen, nodes)
            weights.append(of(victim.train(seen, rng=secret(fixed_seed=1))))
            weights.append(of(victim.train(gone, nodes, rng=secret(fixed_seed=1))))
        assert not torch.equal(weights[0], weights[2])
        assert torch.equal(weights[1], weights[3])


# --- attacks on models that know by heart, and on those that cannot -------------------------------


def test_membership_of_nodes_shows_where_a_model_knows_them_by_heart():
    found = aucs(membership.attack_nodes(by_heart(), graph(), candidates=160, shadows=4))
    assert set(found) == {"loss", "LiRA", "LiRA offline", "RMIA", "BASE", "G-BASE"}
    assert min(found.values()) > 0.6
    assert found["LiRA"] > 0.85


def test_membership_of_nodes_does_not_show_where_nothing_was_learnt():
    method = by_heart(steps=1, learning_rate=1e-9)
    found = aucs(membership.attack_nodes(method, graph(), candidates=160, shadows=4))
    assert all(0.37 < value < 0.63 for value in found.values())


@pytest.mark.slow
def test_membership_of_graphs_shows_where_a_model_knows_them_by_heart():
    method = METHODS["graph-gnn"](conv="gcn", steps=300, hidden_channels=64)
    findings = graphs.attack_graphs(method, graph_set(), candidates=100, shadows=4)
    assert min(aucs(findings).values()) > 0.65
    assert max(aucs(findings).values()) > 0.8


@pytest.mark.parametrize("settings", [{}, {"conv": "gcn", "hidden_channels": 4}])
def test_membership_of_graphs_stays_within_the_certificate(settings):
    method = METHODS["graph-dpsgd"](epsilon=8.0, steps=4, **settings)
    findings = graphs.attack_graphs(method, graph_set(80), candidates=50, shadows=2)
    assert all(finding.holds for finding in findings)
    assert all(finding.figures["largest_tpr@0.001"] < 1 for finding in findings)


def test_links_show_in_served_answers_and_not_in_a_model_that_reads_no_edge():
    data = graph(nodes=160, features=8)
    found = {}
    for name in ("gnn", "mlp"):
        findings = links.attack_links(by_heart(name, steps=20), data, candidates=120, shadows=2)
        found[name] = {finding.name: finding for finding in findings}
    influence = "links as served, LinkTeller"
    assert found["gnn"][influence].figures["auc"] > 0.85
    assert found["mlp"][influence].figures["auc"] == 0.5
    assert found["gnn"]["links against any pair, LinkTeller"].figures["auc"] > 0.9
    assert "promises nothing" in found["gnn"][influence].note
    assert "not a test" in found["gnn"]["links against any pair, cosine"].note


def test_edges_are_deleted_by_coins_in_both_directions(monkeypatch):
    watch, data = Watch(monkeypatch), graph(nodes=80, features=6)
    links.attack_links(by_heart("gnn", steps=1), data, candidates=40, shadows=2)
    whole = set(map(tuple, data.edge_index.T.tolist()))
    gone = [whole - set(map(tuple, seen.edge_index.T.tolist())) for seen in watch.trained]
    assert all({(w, u) for u, w in some} == some for some in gone)
    assert len(gone[1] | gone[2]) == 80
    assert not gone[1] & gone[2]
    assert all(torch.equal(seen.x, data.x) for seen in watch.trained)


def test_what_noisy_sums_serve_is_covered_under_the_unit_edge():
    findings = links.attack_links(
        make("gap", unit="edge"), graph(nodes=80, features=6), candidates=40, shadows=2
    )
    covered = [f for f in findings if f.figures["largest_tpr@0.01"] < 1]
    assert {f.name.split(", ")[0] for f in covered} == {"links by weights", "links as served"}
    assert all(finding.holds for finding in findings)


@pytest.mark.slow
def test_attributes_show_where_a_model_knows_rows_by_heart():
    data = graph(nodes=200, features=12)
    method = by_heart(steps=300, learning_rate=0.02, hidden_channels=64)
    found = aucs(attributes.attack_attributes(method, data, candidates=140, shadows=6))
    assert min(found.values()) > 0.65
    blind = by_heart(steps=1, learning_rate=1e-9)
    found = aucs(attributes.attack_attributes(blind, data, candidates=140, shadows=2))
    assert all(0.35 < value < 0.65 for value in found.values())


def test_attributes_are_set_by_coins_and_asked_with_both_values(monkeypatch):
    watch, data = Watch(monkeypatch), graph(nodes=80, features=4)
    finding = attributes.attack_attributes(make("dp-mlp"), data, candidates=40, shadows=2)[0]
    column = attributes.choose_column(data)[0]
    set_to = [seen.x[:, column] for seen in watch.trained]
    candidates = (set_to[1] != set_to[2]).nonzero().flatten()  # opposite coins
    assert len(candidates) == 40
    assert {tuple(x[candidates, column].unique().tolist()) for x, _ in watch.asked} == {(0,), (1,)}
    plan = make("dp-mlp").plan(Facts.of(data))
    one = largest_tpr(plan.certificate().event, 0.01)
    assert finding.figures["largest_tpr@0.01"] >= one  # two rows away
    assert finding.epsilon_at_least is None


# --- the entry ------------------------------------------------------------------------------------


def test_kinds_follow_the_unit():
    assert kinds_of(make("late-graph")) == ("nodes", "links", "attributes")
    assert kinds_of(make("dp-gnn", unit="edge")) == ("links",)
    assert kinds_of(make("graph-dpsgd")) == kinds_of(METHODS["graph-gnn"]()) == ("graphs",)


def test_all_attacks_run_with_a_bar_and_give_findings():
    seen = []
    findings = attack(
        by_heart("gnn", steps=2),
        graph(nodes=80, features=4),
        candidates=40,
        shadows=2,
        progress=lambda worlds: seen.append(len(worlds)) or worlds,
    )
    assert seen == [3, 3, 3]
    assert all(finding.kind == "attack" for finding in findings)
    assert len({finding.name for finding in findings}) == len(findings)
    for finding in findings:
        assert type(finding).from_json(finding.to_json()).figures == finding.figures
    with pytest.raises(InvalidInputError, match="kinds"):
        attack(by_heart(), graph(), ["edges"])


def test_the_package_loads_no_torch():
    code = "import sys, graphveil.audit.attacks; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    "method, kind",
    [
        (make("gap", unit="edge"), "nodes"),  # nothing is promised for rows
        (make("dp-gnn", paper=True), "nodes"),  # nothing is proven
        (make("dp-gnn", relation="remove", public_degree=30), "nodes"),
        (make("dp-gnn", unit="edge"), "links"),
        (make("open-gap"), "attributes"),
        (make("open-dpar"), "nodes"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.name,
)
@pytest.mark.parametrize("layout", ["dense", "sparse"])
def test_other_units_relations_and_layouts_are_attacked_as_well(method, kind, layout):
    data = graph(nodes=80, features=6)
    if layout == "sparse":
        data.x = data.x.to_sparse_coo()
    findings = attack(method, data, [kind], candidates=40, shadows=2)
    assert all(finding.holds for finding in findings)
    promised = method.private and not getattr(method, "paper", False) and kind != "attributes"
    covered = promised and (kind == "links") == (method.unit == "edge")
    assert (findings[0].figures["largest_tpr@0.01"] < 1) == covered


# --- real data ------------------------------------------------------------------------------------

_GIVEN = os.environ.get("GRAPHVEIL_DATA")
ROOT = Path(_GIVEN) if _GIVEN else Path(__file__).resolve().parents[2].parent / "shared" / "data"


def real(name, folder):
    from graphveil.data import load

    if not (ROOT / folder).is_dir():
        pytest.skip(f"no {ROOT / folder}; set GRAPHVEIL_DATA to a folder with the raw files")
    data = split(load(name, root=ROOT), seed=0)
    data.val_mask[:] = False
    return data


@pytest.mark.slow
def test_open_models_give_nodes_away_and_private_ones_do_not():
    data = real("cora", "Cora")
    found = aucs(membership.attack_nodes(by_heart(steps=300), data, candidates=400, shadows=4))
    assert found["LiRA"] > 0.9
    assert found["loss"] > 0.7
    method = METHODS["late-graph"](epsilon=4.0)
    findings = membership.attack_nodes(method, data, candidates=400, shadows=4)
    assert all(finding.holds for finding in findings)
    assert max(aucs(findings).values()) < 0.75  # .54 to .66 were seen


@pytest.mark.slow
def test_open_models_give_graphs_away_and_private_ones_do_not():
    data = real("tu:ENZYMES", "ENZYMES")
    open_, private = (
        graphs.attack_graphs(method, data, candidates=400, shadows=4)
        for method in (METHODS["graph-gnn"](), METHODS["graph-dpsgd"](epsilon=4.0))
    )
    assert max(finding.figures["f1"] for finding in open_) > 0.9
    assert all(finding.holds for finding in private)
    assert max(aucs(private).values()) < 0.7


@pytest.mark.slow
def test_open_models_give_links_away():
    findings = links.attack_links(METHODS["gnn"](), real("cora", "Cora"), candidates=300, shadows=2)
    found = {finding.name: finding.figures["auc"] for finding in findings}
    assert found["links against any pair, cosine"] > 0.85
    assert found["links against any pair, LinkTeller"] > 0.95
    assert found["links as served, LinkTeller"] > 0.75
