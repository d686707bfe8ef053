"""Private rows: laws of selection and noise, what one node can change, what is charged."""

import itertools
import math
from functools import cache

import dp_accounting as dpa
import numpy as np
import pytest
import torch
from scipy import sparse, stats

from graphveil._errors import GraphveilError, InvalidInputError
from graphveil.graph import private_rows
from graphveil.graph.pagerank import pagerank
from graphveil.graph.private_rows import CHOICES, PrivateRows, clipped_rows, kept_columns
from graphveil.mechanisms import Gaussian, GumbelTopK, Laplace
from graphveil.privacy.accounting import epsilon_of
from graphveil.rng import secret

UNLIKELY = 1e-5  # of a test that a right law passes
BOUND = 0.1
# Beyond the bound, at it, within, and three times nothing.
SCORES = np.array([3.0, 1.0, 0.5, 0.0, 0.9, 0.0, 0.0]) * BOUND


def made(how="em0", rows=1, k=1, bound=BOUND, noise_multiplier=1.0):
    return PrivateRows(how=how, rows=rows, k=k, bound=bound, noise_multiplier=noise_multiplier)


def selecting(how, rows, k, scale):
    """Noise such that every selection is an exponential mechanism of scale ``scale`` times bound.

    A selection of scale s costs 1/(2 s^2), and there are rows * k of them.
    """
    spent = rows * k / scale**2 * (1 if how == "em0" else 2)
    return made(how, rows, k, noise_multiplier=spent**-0.5)


def stacked(scores, rows):
    return sparse.csr_array(np.tile(scores, (rows, 1)))


def likely(counts, law):
    counts, law = np.asarray(counts, float), np.asarray(law, float)
    assert law.sum() == pytest.approx(1)
    assert (counts[law == 0] == 0).all()
    kept = law > 0
    return stats.chisquare(counts[kept], counts.sum() * law[kept]).pvalue > UNLIKELY


@pytest.fixture(params=["whole", "blocks"])
def blocks(request, monkeypatch):
    """All rows at once, or seventy at a time."""
    if request.param == "blocks":
        monkeypatch.setattr(private_rows, "_SCORES_AT_ONCE", 70 * len(SCORES))


@pytest.fixture
def gaussians(monkeypatch):
    """Every Gaussian release: the mechanism, what went in, the noise that came out."""
    seen, release = [], Gaussian.release

    def note(self, value, rng, **block):
        noisy = release(self, value, rng, **block)
        seen.append((self, value.copy(), noisy - value, block))
        return noisy

    monkeypatch.setattr(Gaussian, "release", note)
    return seen


# --- the law of a selection -----------------------------------------------------------------------


def exponential(scores, scale):
    """P(i) ~ exp(clipped score / (scale * bound))."""
    law = np.exp(np.clip(scores, 0, BOUND) / (scale * BOUND))
    return law / law.sum()


@pytest.mark.parametrize("how", ["em0", "em1"])
@pytest.mark.parametrize("scale", [0.3, pytest.param(1.0, marks=pytest.mark.slow)])
def test_the_first_choice_follows_the_exponential_mechanism(how, scale, blocks):
    rows = 6000
    chosen, _ = selecting(how, rows, 1, scale).release(
        stacked(SCORES, rows), secret(fixed_seed=int(10 * scale))
    )
    counts = np.bincount(chosen.ravel(), minlength=len(SCORES))
    law = exponential(SCORES, scale)
    assert law[0] == law[1]  # beyond the bound is tied with the bound
    assert counts[SCORES == 0].min() > 0  # nothing is selectable
    assert likely(counts, law)
    assert not likely(counts, exponential(SCORES, 1.5 * scale))
    unclipped = np.exp(SCORES / (scale * BOUND))
    assert not likely(counts, unclipped / unclipped.sum())


@pytest.mark.parametrize("how", ["em0", "em1"])
def test_two_choices_follow_the_peeled_law(how, blocks):
    rows, scale = 8000, 0.5
    chosen, _ = selecting(how, rows, 2, scale).release(stacked(SCORES, rows), secret(fixed_seed=3))
    first = exponential(SCORES, scale)
    n = len(SCORES)
    law = np.zeros((n, n))
    for i, j in itertools.permutations(range(n), 2):
        law[i, j] = first[i] * first[j] / (1 - first[i])
    counts = np.zeros((n, n))
    np.add.at(counts, (chosen[:, 0], chosen[:, 1]), 1)
    assert likely(counts.ravel(), law.ravel())
    assert not likely(counts.ravel(), law.T.ravel())


def test_the_scale_of_a_selection_is_charged_for_in_full():
    """Renyi divergences of the exact laws, over all pairs of scores: nowhere above the event's."""
    scale, k = 3.0, 2
    event = selecting("em0", 1, k, scale).event()
    worst = 0.0
    every = [np.array(s) * BOUND for s in itertools.product((0.0, 1.0), repeat=4)]

    def peeled(scores):
        one = exponential(scores, scale)
        return np.array(
            [one[i] * one[j] / (1 - one[i]) for i, j in itertools.permutations(range(4), 2)]
        )

    laws = [peeled(scores) for scores in every]
    for p, q in itertools.permutations(laws, 2):
        for order in (2.0, 10.0):
            renyi = math.log((p**order * q ** (1 - order)).sum()) / (order - 1)
            worst = max(worst, renyi / order)
    assert 0.3 * event.rho < worst <= event.rho
    assert event.rho == pytest.approx(k / (2 * scale**2))


def test_names_alone_have_equal_weights():
    chosen, weight = made("em0", 40, 4).release(stacked(SCORES, 40), secret())
    assert chosen.shape == weight.shape == (40, 4)
    assert (weight == 0.25).all()
    assert all(len(set(row)) == 4 for row in chosen.tolist())


# --- the law of noisy values ----------------------------------------------------------------------


def normal(noise, deviation):
    return stats.kstest(noise.ravel() / deviation, "norm").pvalue > UNLIKELY


def test_noise_goes_on_every_entry_of_every_row(gaussians, blocks):
    """Of the deviation that the event stands for: noise_multiplier sqrt(2 rows) bound."""
    rows, z = 901, 0.7
    chosen, weight = made("gm", rows, 3, noise_multiplier=z).release(
        stacked(SCORES, rows), secret(fixed_seed=4)
    )
    deviation = z * math.sqrt(2 * rows) * BOUND
    entered = np.concatenate([value for _, value, _, _ in gaussians])
    noise = np.concatenate([noise for *_, noise, _ in gaussians])
    assert entered.shape == noise.shape == (rows, len(SCORES))
    assert entered == pytest.approx(clipped_rows(np.tile(SCORES, (rows, 1)), BOUND), abs=1e-9)
    assert np.linalg.norm(entered, axis=1).max() <= BOUND
    for column in range(len(SCORES)):
        assert normal(noise[:, column], deviation)
        assert noise[:, column].std() == pytest.approx(deviation, rel=5 / math.sqrt(2 * rows))
    correlation = np.corrcoef(noise.T) - np.eye(len(SCORES))
    assert np.abs(correlation).max() < 5 / math.sqrt(rows)
    for mechanism, _, _, block in gaussians:
        assert mechanism.event() == dpa.GaussianDpEvent(z)
        assert mechanism.sensitivity == pytest.approx(math.sqrt(2 * rows) * BOUND, rel=1e-12)
        assert block["block_of"] == entered.size
    # What comes out is the three largest, and their positive parts as weights.
    noisy = entered + noise
    assert np.array_equal(chosen, np.argsort(-noisy, axis=1)[:, :3])
    positive = np.maximum(np.take_along_axis(noisy, chosen, 1), 0.0)
    total = positive.sum(1, keepdims=True)
    expected = np.where(total > 0, positive / np.where(total > 0, total, 1.0), 1 / 3)
    assert weight == pytest.approx(expected)


@pytest.mark.parametrize("how", ["gm", "em1"])
def test_the_noise_that_comes_out_is_that_of_the_event(how):
    """No spy: one entry at the bound, all others nothing, and every entry of every row released.

    Weights over that of the first are then noise over bound, half of it cut off at zero.
    """
    rows, nodes, ratio = 3, 900, 0.01
    known = {"gm": math.sqrt(2 * rows), "em1": math.sqrt(2 * rows * nodes)}[how]
    scores = np.zeros((rows, nodes))
    scores[:, 7] = 5.0
    chosen, weight = made(how, rows, nodes, noise_multiplier=ratio / known).release(
        sparse.csr_array(scores), secret(fixed_seed=5)
    )
    by_node = np.empty_like(weight)
    np.put_along_axis(by_node, chosen, weight, 1)
    others = np.delete(by_node / by_node[:, [7]], 7, axis=1)
    heard = others[others > 0]
    assert stats.binomtest(len(heard), others.size, 0.5).pvalue > UNLIKELY
    assert stats.kstest(heard / ratio, "halfnorm").pvalue > UNLIKELY


def test_values_of_names_get_noise_of_their_own(gaussians, blocks):
    rows, k, z = 901, 3, 0.7
    chosen, _ = made("em1", rows, k, noise_multiplier=z).release(
        stacked(SCORES, rows), secret(fixed_seed=6)
    )
    ((mechanism, entered, noise, _),) = gaussians
    assert mechanism.event() == dpa.GaussianDpEvent(z * math.sqrt(2))
    assert entered.shape == (rows, k)
    assert np.array_equal(entered, np.clip(SCORES, 0, BOUND)[chosen])
    deviation = z * math.sqrt(2) * math.sqrt(rows * k) * BOUND
    assert normal(noise, deviation)
    assert noise.std() == pytest.approx(deviation, rel=5 / math.sqrt(2 * noise.size))
    assert normal(noise[entered == 0], deviation)


@pytest.mark.parametrize("how", CHOICES)
def test_rows_without_scores_choose_anybody(how, blocks):
    rows = 3000
    chosen, weight = made(how, rows, 2).release(
        sparse.csr_array((rows, len(SCORES))), secret(fixed_seed=7)
    )
    counts = np.bincount(chosen.ravel(), minlength=len(SCORES))
    # Two of a row differ, which makes counts steadier than draws with replacement would be.
    assert likely(counts, np.full(len(SCORES), 1 / len(SCORES)))
    assert weight.sum(1) == pytest.approx(np.ones(rows))
    assert (weight >= 0).all()


# --- what is charged ------------------------------------------------------------------------------


@pytest.mark.parametrize("rows, k", [(1, 1), (70, 2), (400, 5)])
@pytest.mark.parametrize("z", [0.8, 5.0])
def test_events_are_those_composed_by_hand(rows, k, z):
    by_hand = {
        "gm": dpa.GaussianDpEvent(z),
        "em0": dpa.ZCDpEvent(1 / (2 * z**2)),
        "em1": dpa.ComposedDpEvent(
            [dpa.ZCDpEvent(1 / (4 * z**2)), dpa.GaussianDpEvent(z * math.sqrt(2))]
        ),
    }
    for how, event in by_hand.items():
        found = epsilon_of(made(how, rows, k, noise_multiplier=z).event(), 1e-5)
        assert found == pytest.approx(epsilon_of(event, 1e-5), rel=1e-6)
    names = epsilon_of(made("em0", rows, k, noise_multiplier=z).event(), 1e-5)
    both = epsilon_of(made("em1", rows, k, noise_multiplier=z).event(), 1e-5)
    assert both == pytest.approx(names, rel=1e-6)


def test_all_rows_are_charged_whatever_their_blocks(monkeypatch):
    selections, release = [], GumbelTopK.release

    def note(self, scores, rng):
        selections.append(self)
        assert scores.shape == (self.rows, len(SCORES))
        return release(self, scores, rng)

    monkeypatch.setattr(GumbelTopK, "release", note)
    for how, at_once in itertools.product(("em0", "em1"), (1, 3 * len(SCORES), 2**22)):
        monkeypatch.setattr(private_rows, "_SCORES_AT_ONCE", at_once)
        selections.clear()
        method = made(how, 10, 2, noise_multiplier=2.0)
        method.release(stacked(SCORES, 10), secret())
        assert len(selections) == {1: 10, 21: 4, 2**22: 1}[at_once]
        assert sum(each.rows for each in selections) == 10
        spent = sum(each.rows * each.k / (2 * each.noise_multiplier**2) for each in selections)
        assert spent == pytest.approx((1 if how == "em0" else 0.5) / (2 * 2.0**2))


# --- what one node can change ---------------------------------------------------------------------


def rows_of(edges, nodes, seeds, rho=1e-4):
    """Scores as DPAR hands them over: without a row's own node."""
    scores = pagerank(edges, nodes, seeds, rho=rho)
    own = np.repeat(seeds.numpy(), np.diff(scores.indptr))
    scores.data[scores.indices == own] = 0.0
    return scores


def every_graph(size, directed):
    """All graphs on ``size`` nodes (at most 1200 at random, if directed), side by side."""
    pairs = list((itertools.permutations if directed else itertools.combinations)(range(size), 2))
    total = 2 ** len(pairs)
    codes = range(total) if total <= 1200 else np.random.default_rng(0).integers(total, size=1200)
    edges = [
        (size * place + u, size * place + w)
        for place, code in enumerate(codes)
        for bit, (u, w) in enumerate(pairs)
        if int(code) >> bit & 1
    ]
    return torch.tensor(edges).t(), len(codes)


@cache
def scored(size, directed, v=None, relation=""):
    """(graphs, size, size): the row of every node; without node v of each graph."""
    edges, count = every_graph(size, directed)
    if v is not None:
        ends = edges[:1] if relation == "withheld" else edges
        edges = edges[:, (ends % size != v).all(0)]
    rows = rows_of(edges, count * size, torch.arange(count * size)).tocoo()
    found = np.zeros((count, size, size))
    assert (rows.row // size == rows.col // size).all()
    found[rows.row // size, rows.row % size, rows.col % size] = rows.data
    return found


@pytest.mark.parametrize("size, directed", [(5, False), (4, True)])
@pytest.mark.parametrize("bound", [0.02, 0.1, 1.0])
def test_no_node_moves_the_rows_by_more_than_is_charged(size, directed, bound):
    whole = scored(size, directed)
    moved, entries = [], []
    for v, relation in itertools.product(range(size), ("withheld", "removed")):
        other = scored(size, directed, v, relation)
        l2 = [clipped_rows(each.reshape(-1, size), bound) for each in (whole, other)]
        apart = (l2[0] - l2[1]).reshape(whole.shape)
        for rows in (1, size):  # of one row, and of all together
            total = np.sqrt(np.square(apart[:, :rows]).sum((1, 2)))
            moved.append(total.max() / (math.sqrt(2 * rows) * bound))
        capped = [np.clip(each, 0, bound) for each in (whole, other)]
        entries.append(np.abs(capped[0] - capped[1]).max() / bound)
        assert all((each >= 0).all() and (each <= bound).all() for each in capped)
    assert max(moved) <= 1
    assert max(moved) > 0.5 if bound < 1 else max(moved) > 0.05  # somebody does move them
    assert max(entries) <= 1
    assert max(entries) == 1 or bound == 1


def crossroads(rows, leaves=50):
    """Seeds 1..rows, each between node 0 and a hub of its own: hubs are heard only without 0."""
    seeds = torch.arange(1, rows + 1)
    hubs = seeds + rows
    nodes = 2 * rows + 1
    lists = [torch.stack([0 * seeds, seeds]), torch.stack([seeds, hubs])]
    for hub in hubs:
        lists.append(torch.stack([hub.repeat(leaves), torch.arange(nodes, nodes + leaves)]))
        nodes += leaves
    return torch.cat(lists, 1), nodes, seeds


@pytest.mark.parametrize("rows", [1, 5, 12])
def test_the_bound_on_rows_is_reached_and_the_papers_is_not_one(rows):
    """One node turns every row of a real graph to other entries: sqrt(2) apart, not 1."""
    edges, nodes, seeds = crossroads(rows)
    with_0 = rows_of(edges, nodes, seeds, rho=0.008).toarray()
    without = rows_of(edges[:, (edges != 0).all(0)], nodes, seeds, rho=0.008).toarray()
    assert not (with_0 * without).any()
    bound = 0.02
    apart = clipped_rows(with_0, bound) - clipped_rows(without, bound)
    charged = made("gm", rows, 1, bound)._gaussian.sensitivity
    assert 0.99 * charged < np.linalg.norm(apart) <= charged
    assert np.linalg.norm(apart, axis=1).min() > 1.4 * bound  # of each row the paper charges bound
    entries = np.abs(np.clip(with_0, 0, bound) - np.clip(without, 0, bound))
    assert entries.max() == bound


def test_values_lie_within_the_charged_distance_and_reach_it():
    rows, k = 6, 4
    charged = made("em1", rows, k)._gaussian.sensitivity
    assert charged == pytest.approx(np.linalg.norm(np.full((rows, k), BOUND)), rel=1e-12)


@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e9])
def test_clipped_rows_are_never_longer_than_the_bound(scale):
    rows = np.random.default_rng(0).normal(size=(4000, 9)) * scale
    rows[0] = 0.0
    found = clipped_rows(rows, BOUND)
    assert (found >= 0).all()
    assert np.linalg.norm(found, axis=1).max() <= BOUND
    assert (found[0] == 0).all()
    positive = np.maximum(rows, 0)
    short = np.linalg.norm(positive, axis=1) < BOUND
    assert found[short] == pytest.approx(positive[short])
    some = positive.any(1)
    assert np.linalg.norm(found[some & ~short], axis=1) == pytest.approx(BOUND)
    assert scale < 1 or (some & ~short).sum() > 3900


# --- how likely a right choice is -----------------------------------------------------------------


@pytest.mark.parametrize("how", CHOICES)
@pytest.mark.parametrize("scale", [0.15, 0.5])
def test_the_chance_is_that_of_one_node_at_the_bound(how, scale):
    rows, nodes = 4000, len(SCORES)
    method = (
        made("gm", rows, 1, noise_multiplier=scale / math.sqrt(2 * rows))
        if how == "gm"
        else selecting(how, rows, 1, scale)
    )
    scores = np.zeros(nodes)
    scores[2] = 2 * BOUND
    chosen, _ = method.release(stacked(scores, rows), secret(fixed_seed=8))
    right = int((chosen[:, 0] == 2).sum())
    chance = method.chance(nodes)
    assert 0.3 < chance < 1
    assert stats.binomtest(right, rows, chance).pvalue > UNLIKELY


@pytest.mark.parametrize("how", CHOICES)
def test_the_chance_falls_with_noise_and_with_nodes(how):
    by_noise = [made(how, 10, 2, noise_multiplier=z).chance(50) for z in (0.01, 0.1, 0.3, 3.0)]
    assert by_noise == sorted(by_noise, reverse=True)
    assert len(set(by_noise)) == 4
    by_nodes = [made(how, 10, 2, noise_multiplier=0.2).chance(n) for n in (2, 50, 10**4, 10**6)]
    assert by_nodes == sorted(by_nodes, reverse=True)
    assert len(set(by_nodes)) == 4
    by_rows = [made(how, m, 2, noise_multiplier=0.2).chance(50) for m in (1, 10, 1000)]
    assert by_rows == sorted(by_rows, reverse=True)
    assert made(how, 10, 2, noise_multiplier=1e-4).chance(50) == pytest.approx(1, abs=1e-6)
    assert made(how, 10, 2, noise_multiplier=1e6).chance(50) == pytest.approx(1 / 50, rel=1e-3)
    assert made(how, 10, 1).chance(1) == pytest.approx(1)


# --- columns --------------------------------------------------------------------------------------


@pytest.mark.parametrize("cap", [0, 1, 2, 5])
def test_no_column_is_kept_more_often_than_the_cap(cap):
    rng = np.random.default_rng(cap)
    for nodes, rows, k in ((4, 9, 3), (30, 50, 2), (1, 6, 1)):
        chosen = np.stack([rng.permutation(nodes)[:k] for _ in range(rows)])
        kept = kept_columns(chosen, cap, seed=0)
        asked = np.bincount(chosen.ravel(), minlength=nodes)
        found = np.bincount(chosen[kept], minlength=nodes)
        assert np.array_equal(found, np.minimum(asked, cap))  # and none dropped in vain
        assert np.array_equal(kept, kept_columns(chosen.copy(), cap, seed=0))


def test_columns_are_dropped_by_the_seed_and_the_choice_alone():
    chosen = np.random.default_rng(1).integers(0, 6, (40, 2))
    kept = [kept_columns(chosen, 2, seed=seed) for seed in range(4)]
    assert len({each.tobytes() for each in kept}) == 4
    # Renaming nodes renames nothing else: who keeps a column is a matter of places.
    names = np.random.default_rng(2).permutation(6)
    assert np.array_equal(kept_columns(names[chosen], 2, seed=0), kept[0])
    # A column is not touched by what others chose.
    other = np.where(chosen == 3, 3, 7)
    assert np.array_equal(kept_columns(other, 2, seed=0)[chosen == 3], kept[0][chosen == 3])


def test_nothing_is_dropped_without_need():
    chosen = np.random.default_rng(3).integers(0, 9, (20, 3))
    most = int(np.bincount(chosen.ravel()).max())
    assert kept_columns(chosen, most, seed=0).all()
    assert not kept_columns(chosen, most - 1, seed=0).all()
    assert not kept_columns(chosen, 0, seed=0).any()


# --- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings, said",
    [
        ({"how": "em2"}, "'how'"),
        ({"rows": 0}, "'rows'"),
        ({"k": 0}, "'k'"),
        ({"k": 1.5}, "'k'"),
        ({"bound": 0.0}, "'bound'"),
        ({"bound": math.inf}, "'bound'"),
        ({"noise_multiplier": 0.0}, "'noise_multiplier'"),
        ({"noise_multiplier": math.nan}, "'noise_multiplier'"),
    ],
)
def test_bad_settings_are_refused_in_one_line(settings, said):
    with pytest.raises(InvalidInputError, match=said) as refusal:
        made(**settings)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("how", CHOICES)
def test_other_rows_than_are_charged_are_refused(how):
    for rows in (1, 3):
        with pytest.raises(InvalidInputError, match="as many rows as are charged, 2"):
            made(how, 2, 1).release(stacked(SCORES, rows), secret())
    with pytest.raises(InvalidInputError, match=r"at most the number of nodes, 7. Got 8") as said:
        made(how, 2, 8).release(stacked(SCORES, 2), secret())
    assert "\n" not in str(said.value)
    chosen, _ = made(how, 2, 7).release(stacked(SCORES, 2), secret())
    assert np.array_equal(np.sort(chosen, 1), np.tile(np.arange(7), (2, 1)))


@pytest.mark.parametrize("how", CHOICES)
def test_noise_from_another_stream_is_refused(how):
    with pytest.raises(GraphveilError, match="secret stream"):
        made(how, 2, 1).release(stacked(SCORES, 2), np.random.default_rng(0))


def test_a_cap_that_is_no_number_is_refused():
    with pytest.raises(InvalidInputError, match="'cap'"):
        kept_columns(np.zeros((2, 1), np.int64), -1, seed=0)


# --- values as published --------------------------------------------------------------------------


def test_published_values_have_laplace_noise_each_and_names_the_whole_budget(monkeypatch):
    seen, release = [], Laplace.release

    def note(self, value, rng):
        noisy = release(self, value, rng)
        seen.append((self, float(value), float(noisy - value)))
        return noisy

    monkeypatch.setattr(Laplace, "release", note)
    rows, k, scale, values = 600, 2, 3.0, 7.0
    chooser = PrivateRows(
        how="em1",
        rows=rows,
        k=k,
        bound=BOUND,
        noise_multiplier=scale / math.sqrt(rows * k),
        value_noise=values,
    )
    assert chooser._gumbel(rows).noise_multiplier == pytest.approx(scale)
    chosen, _ = chooser.release(stacked(SCORES, rows), secret(fixed_seed=5))
    assert len(seen) == rows * k  # a mechanism for each value
    assert {(each.noise_multiplier, each.sensitivity) for each, _, _ in seen} == {(values, BOUND)}
    given = [value for _, value, _ in seen]
    assert given == pytest.approx(np.clip(SCORES[chosen], 0, BOUND).ravel())
    noise = np.array([each for _, _, each in seen]) / (values * BOUND)
    assert stats.kstest(noise, stats.laplace.cdf).pvalue > UNLIKELY
    names, charged = chooser.event().events
    assert names.event.noise_multiplier == pytest.approx(scale)
    assert (names.event.k, names.count) == (k, rows)
    assert charged == dpa.SelfComposedDpEvent(dpa.LaplaceDpEvent(values), rows * k)


@pytest.mark.parametrize("how", ["gm", "em0"])
def test_only_where_values_are_released_have_they_noise(how):
    with pytest.raises(InvalidInputError, match=r"'value_noise'.*Got 2.0 with how=.*use how='em1'"):
        PrivateRows(how=how, rows=3, k=1, bound=1.0, noise_multiplier=1.0, value_noise=2.0)
