"""Noisy sums: how far one unit moves them by brute force, exact addition, noise on every row."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from graphveil._errors import InvalidInputError, RefusedError
from graphveil.graph import aggregation
from graphveil.graph.aggregation import (
    Sent,
    bounded_rows,
    evidence_weights,
    incoming,
    open_evidence,
    similarity_weights,
    unit_rows,
    weigh_pairs,
)
from graphveil.graph.choices import SIMILARITIES
from graphveil.graph.influence import sensitivity
from graphveil.graph.messages import Messages
from graphveil.mechanisms import Gaussian
from graphveil.nn.gap import PairAttention
from graphveil.rng import secret, seeded

NODES, CLASSES = 12, 4
ROW, WEIGHT = 2**16, 2**14  # rows and weights are whole numbers of these parts


def a_graph(seed, *, directed):
    """A hub, two isolated nodes, repeated edges and self-loops."""
    rng = torch.Generator().manual_seed(seed)
    live = NODES - 2
    edges = torch.randint(live, (2, 18), generator=rng)
    hub = torch.stack([torch.zeros(live - 3, dtype=torch.long), torch.arange(3, live)])
    loops = torch.arange(3).expand(2, 3)
    edges = torch.cat([edges, hub if seed % 2 else hub.flip(0), loops, edges[:, :4]], 1)
    return edges if directed else torch.cat([edges, edges.flip(0)], 1)


def without_each_edge(edges, *, directed):
    """Every edge that is no self-loop, all its copies gone."""
    ends = edges if directed else edges.sort(0).values
    for u, w in {(u, w) for u, w in ends.t().tolist() if u != w}:
        yield None, edges[:, ~((ends[0] == u) & (ends[1] == w))]


def without_each_node(edges):
    """Every node's list empty; others still name it."""
    for v in range(NODES):
        yield v, edges[:, edges[0] != v]


class Rows:
    """Encodings, ends and beliefs of each node: random, all alike or certain."""

    def __init__(self, kind, seed):
        rng = torch.Generator().manual_seed(seed)
        raw = torch.randn(NODES, CLASSES, generator=rng)
        if kind == "alike":
            raw[:] = raw[0]
        if kind == "certain":
            raw = 12 * torch.eye(CLASSES)[torch.arange(NODES) % CLASSES] + 0.01 * raw
        self.encoding = unit_rows(raw)
        self.beliefs = raw.softmax(1)
        labelled = torch.rand(NODES, 1, generator=rng) < 0.5
        label = torch.eye(CLASSES)[torch.randint(CLASSES, (NODES,), generator=rng)]
        self.told = bounded_rows(torch.where(labelled, label, self.beliefs))

    def null(self, v):
        """The same with row v withheld."""
        other = object.__new__(Rows)
        other.encoding, other.told = self.encoding.clone(), self.told.clone()
        other.encoding[v], other.told[v] = 0.0, 0.0
        other.beliefs = self.beliefs.clone()
        other.beliefs[v] = 1 / CLASSES
        return other


def attention(saturated):
    with torch.random.fork_rng():
        torch.manual_seed(3)
        pair = PairAttention(CLASSES, 6)
        if saturated:
            torch.nn.init.constant_(pair.out.bias, 30.0)
    return pair


PAIRS = {"attention": attention(False), "saturated attention": attention(True)}
# What a message's weight is a product of, and the largest it can be (by its evidence's length).
WEIGHTINGS = {
    "none": 1.0,
    **SIMILARITIES,
    "attention": 1.0,
    "saturated attention": 1.0,
    "evidence": 1.0,
    "evidence, shared": 1.0,
    "evidence, sigmoid": SIMILARITIES["sigmoid"],
    "evidence, shared, half": 1.0,
    "evidence, shared, saturated attention": 1.0,
}
CAPPED = list(itertools.product(("hard", "soft"), (1, 3, 50)))


def sent(rows, edges, weighting, sender_cap=None, cap=""):
    """One hop, put together as GAP does."""
    messages = incoming(edges, NODES, seed=0, sender_cap=sender_cap, cap=cap)
    parts = weighting.split(", ")
    seen = "evidence" in parts
    what = rows.told if seen else rows.encoding
    weights = [messages.weights] if cap == "soft" else []
    for part in parts:
        if part in SIMILARITIES:
            weights.append(similarity_weights(messages, rows.encoding, part))
        elif part in PAIRS:
            pair = PAIRS[part]

            def weigh(senders, receivers, pair=pair):
                return pair(what[senders], what[receivers]).double().clamp(0.0, 1.0)

            with torch.no_grad():
                weights.append(weigh_pairs(messages, weigh))
    if seen:
        share = None
        if "shared" in parts:
            share = -(rows.beliefs * rows.beliefs.clamp_min(1e-30).log()).sum(1) + 1e-3
        weights.append(evidence_weights(messages, what, rows.beliefs, share))
    weight = math.prod(weights) if weights else None
    return Sent(messages, what, weight, rows.beliefs if seen else None)


def moved(unit, weighting, sender_cap=None, cap=""):
    """How far each unit of several graphs moves the sums, a node's own row left out."""
    directed = unit != "edge-undirected"
    for seed, kind in itertools.product(range(4), ("random", "alike", "certain")):
        edges, rows = a_graph(seed, directed=directed), Rows(kind, seed)
        before = sent(rows, edges, weighting, sender_cap, cap).sums()
        neighbours = (
            without_each_node(edges)
            if unit == "node"
            else without_each_edge(edges, directed=directed)
        )
        for own, other in neighbours:
            there = rows if own is None else rows.null(own)
            change = sent(there, other, weighting, sender_cap, cap).sums() - before
            if own is not None:
                change[own] = 0.0
            yield change.norm().item()


# --- sensitivity ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "unit, weighting",
    [
        (unit, weighting)
        for unit, weighting in itertools.product(("edge-directed", "edge-undirected"), WEIGHTINGS)
        if unit == "edge-undirected" or "shared" not in weighting  # there is nobody to share with
    ],
)
def test_no_edge_moves_the_sums_further_than_the_bound_and_some_edge_that_far(unit, weighting):
    found, bound = max(moved(unit, weighting)), sensitivity(unit, WEIGHTINGS[weighting])
    assert found <= bound * (1 + 1e-12)
    if weighting != "attention":  # of no saturated network
        assert found > 0.99 * bound


@pytest.mark.parametrize("weighting", [key for key in WEIGHTINGS if "shared" not in key])
@pytest.mark.parametrize("cap, sender_cap", CAPPED)
def test_no_node_moves_the_sums_further_than_the_bound_and_some_node_that_far(
    cap, sender_cap, weighting
):
    found = max(moved("node", weighting, sender_cap, cap))
    bound = sensitivity("node", WEIGHTINGS[weighting], sender_cap)
    assert found <= bound * (1 + 1e-12)
    if weighting != "attention" and sender_cap < 50:  # nobody here has so long a list
        assert found > 0.99 * bound


def test_the_published_claims_are_reached_or_broken():
    """sigmoid(1) is the largest weight of a similarity, and an undirected edge is two messages."""
    assert 0.99 * 0.7311 < max(moved("edge-directed", "sigmoid")) <= 0.73106
    assert max(moved("edge-undirected", "none")) > 1.41
    assert sensitivity("edge-undirected") == math.sqrt(2)
    assert max(moved("edge-undirected", "sigmoid")) > 1.02


def test_the_two_messages_of_an_edge_share_its_budget_unequally():
    """One of the two may be longer than 1; charged one by one they would break the bound."""
    rows = Rows("random", 0)
    rows.beliefs[0] = torch.tensor([0.97, 0.01, 0.01, 0.01])
    rows.beliefs[1] = 1 / CLASSES
    edges = torch.tensor([[0, 1], [1, 0]])
    lengths = sent(rows, edges, "evidence, shared").sums()[:2].norm(dim=1)
    assert lengths[1] > 1.25
    assert lengths.norm() <= math.sqrt(2)


def test_a_cap_by_the_receivers_list_is_noticed(monkeypatch):
    right = max(moved("node", "none", 1, "soft"))
    make = incoming

    def wrong(*args, **settings):
        found = make(*args, **settings)
        reached = found.in_degree.clamp_min(1)[found.receivers]
        return Messages(found.edge_index, reached.double().rsqrt(), found.self_weight)

    monkeypatch.setattr("test_aggregation.incoming", wrong)
    assert right <= 1 < max(moved("node", "none", 1, "soft"))


def test_weights_that_look_at_the_whole_neighbourhood_are_noticed(monkeypatch):
    """Divided by their sum, weights stay below 1, and yet a message moves more than its own."""

    def softmax(messages, weigh, at_once=0):
        score = (20 * weigh(messages.senders, messages.receivers)).exp()
        total = torch.zeros(NODES, dtype=torch.float64)
        return score / total.index_add(0, messages.receivers, score)[messages.receivers]

    monkeypatch.setattr("test_aggregation.weigh_pairs", softmax)
    assert max(moved("edge-directed", "attention")) > 1


@pytest.mark.parametrize("wrong", [0, -1, 2.5])
def test_a_cap_of_nothing_has_no_sensitivity(wrong):
    with pytest.raises(InvalidInputError, match="sender_cap"):
        sensitivity("node", 1.0, wrong)


# --- exact sums -----------------------------------------------------------------------------------


def whole(values, part):
    """Values on a grid, as whole numbers; nothing is rounded away."""
    numbers = values.double().numpy() * part
    assert (numbers == np.rint(numbers)).all()
    return numbers.astype(np.int64)


def rough_rows(count, columns=3, seed=0):
    """Long and short rows, of both signs: floats would round their sum."""
    rng = torch.Generator().manual_seed(seed)
    h = torch.randn(count, columns, generator=rng)
    h[::3] *= 1e-4
    h[1::3] = h[1::3].abs() + 3
    return bounded_rows(h)


def hub(senders):
    """Everybody sends to node 0, and a few to node 1."""
    every = torch.arange(1, senders + 1)
    edges = torch.stack([every, torch.zeros_like(every)])
    return torch.cat([edges, torch.tensor([[2, 3], [1, 1]])], 1)


def weights_of(messages, seed=0):
    rng = torch.Generator().manual_seed(seed)
    return torch.rand(len(messages.senders), generator=rng, dtype=torch.float64)


def by_hand(messages, rows, weight=None):
    """Sums in whole numbers, of 2^-30."""
    total = np.zeros(rows.shape, dtype=np.int64)
    parts = whole(rows, ROW)[messages.senders]
    scale = WEIGHT if weight is None else whole(weight, WEIGHT)[:, None]
    np.add.at(total, messages.receivers.numpy(), parts * scale)
    return total


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("senders", [1, 255, 256, 257, 512, 5000])
def test_sums_are_those_of_whole_numbers(senders, weighted):
    rows, edges = rough_rows(senders + 4), hub(senders + 3)
    messages = incoming(edges, len(rows), seed=0)
    one = Sent(messages, rows, weights_of(messages) if weighted else None)
    assert (one.weight is not None) == weighted
    found = whole(one.sums(), ROW * WEIGHT)
    assert np.array_equal(found, by_hand(messages, rows, one.weight))
    assert one.sums().dtype == torch.float64


def test_float32_would_round_those_sums():
    rows = rough_rows(5004)
    naive = rows[1:].cumsum(0)[-1].double()
    messages = incoming(hub(5003), 5004, seed=0)
    assert not torch.equal(naive, Sent(messages, rows).sums()[0])


@pytest.mark.parametrize("weighted", [False, True])
def test_one_message_less_changes_a_hubs_sum_by_that_message_and_nothing_else(weighted):
    count = 5000
    rows, edges = rough_rows(count + 1), hub(count)
    messages = incoming(edges, count + 1, seed=0)
    weight = weights_of(messages) if weighted else None
    one = Sent(messages, rows, weight)
    before = one.sums()
    for gone in (1, 2, 300, count):
        place = ((messages.senders == gone) & (messages.receivers == 0)).nonzero().item()
        kept = torch.arange(len(messages.senders)) != place
        fewer = Messages(
            messages.edge_index[:, kept],
            messages.weight[:1].expand(int(kept.sum())),
            messages.self_weight,
        )
        change = before - Sent(fewer, rows, None if weight is None else weight[kept]).sums()
        scale = 1.0 if one.weight is None else one.weight[place]
        assert torch.equal(change[0], rows[gone].double() * scale)
        assert not change[1:].any()


@pytest.mark.parametrize("weighted", [False, True])
def test_the_order_of_messages_changes_no_bit(weighted):
    rows, edges = rough_rows(700), hub(699)
    messages = incoming(edges, 700, seed=0)
    weight = weights_of(messages)
    ones = torch.ones(1, dtype=torch.float64).expand(len(weight))
    before = Sent(messages, rows, weight if weighted else None).sums()
    for seed in range(3):
        order = torch.randperm(len(weight), generator=torch.Generator().manual_seed(seed))
        given = weight[order] if weighted else ones
        shuffled = Messages(messages.edge_index[:, order], given, messages.self_weight)
        again = Sent(shuffled, rows, shuffled.weights if weighted else None)
        assert torch.equal(again.sums(), before)
        anew = incoming(edges[:, torch.randperm(edges.shape[1])], 700, seed=0)
        assert torch.equal(anew.edge_index, messages.edge_index)


@pytest.mark.parametrize("weighting", ["none", "half", "evidence", "evidence, shared, attention"])
@pytest.mark.parametrize("at_once", [1, 5, NODES, 100])
def test_blocks_change_no_bit(weighting, at_once, monkeypatch):
    edges, rows = a_graph(0, directed=False), Rows("random", 0)
    before = sent(rows, edges, weighting)
    monkeypatch.setattr(aggregation, "ROWS_AT_ONCE", at_once)
    monkeypatch.setattr(aggregation.weigh_pairs, "__defaults__", (at_once,))
    again = sent(rows, edges, weighting)
    assert torch.equal(again.sums(), before.sums())
    blocks = [some for some, _ in again.blocks()]
    assert [some.start for some in blocks] == list(range(0, NODES, at_once))
    assert blocks[-1].stop == NODES


def test_a_graph_without_edges_has_sums_of_nothing():
    empty, rows = torch.empty(2, 0, dtype=torch.long), Rows("random", 0)
    for weighting in WEIGHTINGS:
        assert not sent(rows, empty, weighting).sums().any()
    assert not sent(rows, empty, "none", 3, "soft").sums().any()


def test_weights_are_rounded_towards_zero():
    messages = incoming(a_graph(0, directed=True), NODES, seed=0)
    weight = weights_of(messages)
    rounded = Sent(messages, Rows("random", 0).encoding, weight).weight
    assert (rounded <= weight).all()
    assert (weight - rounded < 1 / WEIGHT).all()


def test_evidence_is_the_sum_of_what_each_message_says():
    """Linear in what arrives: seen through the receiver's beliefs before or after the sum."""
    edges, rows = a_graph(0, directed=True), Rows("random", 0)
    one = sent(rows, edges, "evidence")
    total = torch.zeros(NODES, CLASSES, dtype=torch.float64)
    ends = zip(one.messages.senders, one.messages.receivers, strict=True)
    for place, (j, i) in enumerate(ends):
        q, told = rows.beliefs[i].double(), rows.told[j].double()
        says = torch.stack([q[c] * (told[c] - (q * told).sum()) for c in range(CLASSES)])
        length = says.norm()
        assert length * one.weight[place] <= 1
        assert length * one.weight[place] > 0.99
        total[i] += says * one.weight[place]
    torch.testing.assert_close(one.sums(), total)
    assert torch.equal(open_evidence(rows.beliefs, 0 * rows.told), 0 * rows.told)


# --- rows -----------------------------------------------------------------------------------------


def exact_lengths(rows):
    """Squared norms in units of 2^-32, as Python's whole numbers."""
    return [sum(int(part) ** 2 for part in row) for row in whole(rows, ROW)]


numbers = st.one_of(
    st.floats(-2, 2),
    st.floats(width=32, allow_nan=True, allow_infinity=True),
    st.floats(allow_nan=True, allow_infinity=True),
    st.sampled_from([0.0, 1.0, -1.0, 0.6, 0.8, 0.5, 5e-324, 1e-45, 1.2e-38, 3.4e38, 1.7e308]),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.lists(numbers, min_size=3, max_size=3), min_size=1, max_size=5))
def test_no_row_is_longer_than_one(content):
    for dtype, make in itertools.product((torch.float64, torch.float32), (unit_rows, bounded_rows)):
        h = torch.tensor(content, dtype=torch.float64).to(dtype)
        rows = make(h)
        assert rows.dtype == torch.float32
        assert max(exact_lengths(rows)) <= 2**32
        lost = ~h.isfinite().all(1)
        assert not rows[lost].any()
        assert not rows[(h == 0).all(1)].any()


@pytest.mark.parametrize("size", [1e-30, 1e-3, 1.0, 1e30])
def test_rows_are_scaled_to_length_one(size):
    h = size * torch.randn(50, 8, generator=torch.Generator().manual_seed(0))
    rows = unit_rows(h)
    assert rows.norm(dim=1).min() > 1 - 8 / ROW
    direction = h.double() / h.double().norm(dim=1, keepdim=True)
    torch.testing.assert_close(rows.double(), direction, rtol=0, atol=2 / ROW)
    cut = bounded_rows(h)
    expected = h.double() / h.double().norm(dim=1, keepdim=True).clamp_min(1.0)
    torch.testing.assert_close(cut.double(), expected, rtol=0, atol=2 / ROW)


@pytest.mark.parametrize("columns", [1, 2, 3, 64, 1000])
def test_rows_of_equal_entries_stay_within_one(columns):
    for make in (unit_rows, bounded_rows):
        assert max(exact_lengths(make(torch.full((2, columns), 7.0)))) <= 2**32
        assert max(exact_lengths(make(torch.full((2, columns), columns**-0.5)))) <= 2**32


def test_a_row_is_made_of_itself_alone(monkeypatch):
    h = torch.randn(50, 4, generator=torch.Generator().manual_seed(0))
    h[7] = torch.nan
    h[9, 2] = torch.inf
    for make in (unit_rows, bounded_rows):
        before = make(h)
        assert torch.equal(make(h[20:23]), before[20:23])
        with monkeypatch.context() as patch:
            patch.setattr(aggregation, "_BLOCK", 7)
            assert torch.equal(make(h), before)


# --- noise ----------------------------------------------------------------------------------------

QUIET = torch.tensor([[0, 1, 2, 0], [1, 2, 0, 2]])  # most nodes hear nothing


def noises(count=4000, columns=6, noise=1.7, bound=0.6, rng=None):
    rows = rough_rows(count, columns)
    one = Sent(incoming(QUIET, count, seed=0), rows)
    mechanism = Gaussian(noise_multiplier=noise, sensitivity=bound)
    found = one.noisy_sums(mechanism, secret() if rng is None else rng)
    assert found.dtype == torch.float32
    assert found.shape == rows.shape
    return found.double() - one.sums(), noise * bound


@pytest.mark.parametrize("at_once", [1 << 17, 1000, 37])
def test_noise_is_on_every_row_and_as_large_as_charged_in_blocks_of_any_size(at_once, monkeypatch):
    monkeypatch.setattr(aggregation, "ROWS_AT_ONCE", at_once)
    drawn, deviation = noises()
    assert (drawn != 0).all()
    count = drawn.numel()
    assert abs(drawn.mean().item()) < 5 * deviation / count**0.5
    assert drawn.std().item() == pytest.approx(deviation, rel=5 / (2 * count) ** 0.5)
    assert stats.kstest(drawn.flatten().numpy() / deviation, "norm").pvalue > 1e-5
    # Independent from row to row, and from block to block.
    assert len(drawn.unique(dim=0)) == len(drawn)
    for lag in (1, at_once):
        if lag < len(drawn):
            both = (drawn[lag:] * drawn[:-lag]).mean().item()
            assert abs(both) < 6 * deviation**2 / count**0.5


@pytest.mark.parametrize("at_once", [1 << 17, 1000, 37])
def test_blocks_are_one_release_of_the_whole_array(at_once, monkeypatch):
    calls, release = [], Gaussian.release

    def note(self, value, rng, *, block_of=None):
        calls.append((len(value), block_of, value.dtype))
        return release(self, value, rng, block_of=block_of)

    monkeypatch.setattr(Gaussian, "release", note)
    monkeypatch.setattr(aggregation, "ROWS_AT_ONCE", at_once)
    noises()
    assert sum(rows for rows, *_ in calls) == 4000
    assert {(block_of, dtype) for _, block_of, dtype in calls} == {(24000, torch.float64)}
    assert len(calls) == math.ceil(4000 / at_once)


def test_noise_is_drawn_anew_and_from_the_secret_stream_alone():
    assert not torch.equal(noises(50)[0], noises(50)[0])
    fixed = [noises(50, rng=secret(fixed_seed=1))[0] for _ in range(2)]
    assert torch.equal(*fixed)
    with pytest.raises(RefusedError, match="secret stream"):
        noises(50, rng=seeded(1))


# --- messages and their caps ----------------------------------------------------------------------


@pytest.mark.parametrize("sender_cap", [1, 2, 3, 7, 50])
def test_a_soft_cap_gives_each_sender_the_squared_weight_of_so_many_messages(sender_cap):
    for seed in range(6):
        edges = a_graph(seed, directed=bool(seed % 2))
        messages = incoming(edges, NODES, seed=0, sender_cap=sender_cap, cap="soft")
        every = incoming(edges, NODES, seed=0)
        assert torch.equal(messages.edge_index, every.edge_index)
        weight = Sent(messages, torch.zeros(NODES, 1)).weight
        squares = torch.zeros(NODES, dtype=torch.float64)
        squares.index_add_(0, messages.senders, weight.square())
        lists = torch.bincount(messages.senders, minlength=NODES)
        assert (squares <= sender_cap).all()
        assert (squares > 0.999 * lists.clamp(max=sender_cap)).logical_or(lists == 0).all()
        assert (weight <= 1).all()


@pytest.mark.parametrize("cap", ["hard", "soft"])
@pytest.mark.parametrize("sender_cap", [1, 3])
def test_withholding_a_node_leaves_the_weights_of_all_others_as_they_were(cap, sender_cap):
    for seed in range(4):
        edges = a_graph(seed, directed=False)
        messages = incoming(edges, NODES, seed=0, sender_cap=sender_cap, cap=cap)
        for v, fewer in without_each_node(edges):
            found = incoming(fewer, NODES, seed=0, sender_cap=sender_cap, cap=cap)
            kept = messages.senders != v
            assert torch.equal(found.edge_index, messages.edge_index[:, kept])
            assert torch.equal(found.weights, messages.weights[kept])


def test_messages_are_merged_sorted_and_without_self_loops():
    edges = a_graph(1, directed=True)
    messages = incoming(edges, NODES, seed=0)
    pairs = {(u, w) for u, w in edges.t().tolist() if u != w}
    assert len(pairs) < edges.shape[1]
    assert sorted(map(tuple, messages.edge_index.t().tolist())) == sorted(pairs)
    assert (messages.receivers.diff() >= 0).all()
    assert (messages.weights == 1).all()
    capped = incoming(edges, NODES, seed=0, sender_cap=2, cap="hard")
    assert torch.bincount(capped.senders).max() == 2
    assert (capped.weights == 1).all()
    assert not torch.equal(
        capped.edge_index, incoming(edges, NODES, seed=1, sender_cap=2, cap="hard").edge_index
    )


def test_an_unknown_cap_or_similarity_is_refused():
    edges = a_graph(0, directed=True)
    for cap in ("", "x"):
        with pytest.raises(InvalidInputError, match=r"'cap' .* must .* Got .* instead"):
            incoming(edges, NODES, seed=0, sender_cap=2, cap=cap)
    with pytest.raises(InvalidInputError, match=r"'similarity' .* must .* Got .* instead"):
        similarity_weights(incoming(edges, NODES, seed=0), Rows("random", 0).encoding, "x")


def test_weights_by_similarity_are_the_map_of_the_cosine():
    rows, messages = Rows("random", 0).encoding, incoming(a_graph(0, directed=True), NODES, seed=0)
    cosine = torch.nn.functional.cosine_similarity(
        rows[messages.senders].double(), rows[messages.receivers].double()
    )
    expected = {
        "sigmoid": 1 / (1 + (-cosine).exp()),
        "half": (1 + cosine) / 2,
        "positive": cosine.clamp_min(0),
    }
    for how, weight in expected.items():
        found = similarity_weights(messages, rows, how)
        torch.testing.assert_close(found, weight, rtol=0, atol=1e-4)
        assert found.min() >= 0
        assert found.max() <= SIMILARITIES[how]
