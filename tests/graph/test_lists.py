"""Lists of a graph that is larger than memory say what a table of its edges would say."""

import numpy as np
import pytest
import torch

from graphveil.graph import aggregation, lists
from graphveil.graph.aggregation import Sent, bounded_rows, incoming, unit_rows
from graphveil.graph.beliefs import pass_beliefs
from graphveil.graph.caps import cap_receivers, cap_senders
from graphveil.graph.choices import NORMALISATIONS
from graphveil.graph.groups import random_groups, within
from graphveil.graph.lazy_rows import slices
from graphveil.graph.lists import Lists, ranges
from graphveil.graph.messages import weigh_messages
from graphveil.graph.neighbourhoods import gather_neighbourhoods
from graphveil.graph.pagerank import pagerank
from graphveil.graph.stored_messages import Received, around, weigh_lists
from graphveil.graph.surroundings import surround, turn_round
from graphveil.rng import seeded

NODES = 300


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Several blocks, also of a small graph."""
    monkeypatch.setattr(lists, "MESSAGES_AT_ONCE", 150)
    monkeypatch.setattr(lists, "_SORTED", 300)
    monkeypatch.setattr(aggregation, "ROWS_AT_ONCE", 64)


def a_graph(*, directed):
    generator = torch.Generator().manual_seed(5)
    edges = torch.randint(NODES, (2, 2000), generator=generator)
    edges[1, :400] = 7  # a hub, whose messages fill more than one block
    edges = edges[:, (edges[0] != edges[1]) & (edges < NODES - 3).all(0)]  # and nodes without any
    edges = edges if directed else torch.cat([edges, edges.flip(0)], 1)
    return edges.unique(dim=1)  # by sender, then by receiver


def as_lists(edges):
    counts = np.bincount(edges[0], minlength=NODES)
    return Lists(np.concatenate([[0], np.cumsum(counts)]), edges[1].numpy().astype(np.int32))


@pytest.fixture(params=[True, False], ids=["directed", "undirected"])
def graph(request):
    edges = a_graph(directed=request.param)
    return edges, as_lists(edges)


def test_blocks_hold_whole_lists_and_every_message_once(graph):
    edges, stored = graph
    blocks = [np.stack(block) for block in stored.blocks(100)]
    assert len(blocks) > 10
    assert np.array_equal(np.concatenate(blocks, 1), edges.numpy())
    owners = [set(block[0]) for block in blocks]
    assert sum(map(len, owners)) == len(set.union(*owners))


def test_lists_of_some_nodes_are_theirs_in_the_order_asked_for(graph):
    edges, stored = graph
    nodes = np.array([7, 299, 0, 150, 8])
    for at_once in (None, 1, 20):
        blocks = [np.stack(block) for block in stored.lists_of(nodes, at_once)]
        wanted = torch.cat([edges[:, edges[0] == node] for node in nodes], 1)
        assert np.array_equal(np.concatenate(blocks, 1), wanted)
    assert len(blocks) > 1
    assert list(stored.lists_of(nodes[:0])) == []


def test_ranges_have_as_many_owners_as_are_asked_for(graph):
    _, stored = graph
    for least in (1, 5, 290):
        parts = list(ranges(stored.offsets, 60, least))
        assert [first for first, _ in parts] == [0, *(last for _, last in parts[:-1])]
        assert parts[-1][1] == NODES
        assert min(last - first for first, last in parts) >= least
    assert len(list(ranges(stored.offsets, 60))) > len(list(ranges(stored.offsets, 60, 20))) > 5
    assert list(ranges(stored.offsets, 60, 400)) == [(0, NODES)]


def test_slices_leave_no_few_at_the_end():
    assert list(slices(10, 4)) == [slice(0, 4), slice(4, 8), slice(8, 10)]
    assert list(slices(10, 4, 2)) == list(slices(10, 4))
    assert list(slices(10, 4, 3)) == [slice(0, 4), slice(4, 10)]
    assert list(slices(2, 4, 3)) == [slice(0, 2)]
    assert list(slices(0, 4, 3)) == [slice(0, 0)]


def test_ranges_of_empty_lists_end():
    assert list(ranges(np.zeros(11, np.int64), 4)) == [(0, 4), (4, 8), (8, 10)]
    assert list(ranges(np.array([0, 9, 9, 10]), 4)) == [(0, 1), (1, 3)]
    assert list(ranges(np.zeros(1, np.int64), 4)) == []


def test_lists_know_whether_every_message_has_its_reverse(graph):
    edges, stored = graph
    reverse = {tuple(pair) for pair in edges.flip(0).t().tolist()}
    assert stored.is_symmetric == (reverse == {tuple(pair) for pair in edges.t().tolist()})
    assert not as_lists(a_graph(directed=False)[:, 1:]).is_symmetric  # one message short of it


def test_transposed_lists_name_senders_in_their_order(graph):
    edges, stored = graph
    turned = stored.transposed
    assert (turned is stored) == stored.is_symmetric
    order = torch.argsort(edges[1], stable=True)
    assert np.array_equal(turned.others, edges[0][order])
    assert np.array_equal(np.diff(turned.offsets), np.bincount(edges[1], minlength=NODES))
    assert turned.transposed is stored


def test_lists_are_compared(graph):
    edges, stored = graph
    assert stored.equals(as_lists(edges))
    assert not stored.equals(as_lists(edges[:, 1:]))
    other = edges.clone()
    other[1, 0] = (other[1, 0] + 1) % NODES
    assert not stored.equals(as_lists(other))


def test_pairs_are_counted_once(graph):
    edges, stored = graph
    assert stored.count_pairs() == edges.sort(0).values.unique(dim=1).shape[1]


@pytest.mark.parametrize("cap", [None, 1, 4])
@pytest.mark.parametrize("some", [False, True])
def test_caps_keep_the_same_messages(graph, cap, some):
    edges, stored = graph
    readers = torch.arange(NODES) % 3 > 0 if some else None
    kept = cap_senders(stored, NODES, cap, seed=3, readers=readers)
    read = edges if readers is None else edges[:, readers[edges[1]]]
    assert torch.equal(kept, cap_senders(read, NODES, cap, seed=3))
    assert torch.equal(kept, cap_senders(edges, NODES, cap, seed=3, readers=readers))


@pytest.mark.parametrize("cap", [None, 1, 4])
def test_receivers_keep_the_same_messages(graph, cap):
    edges, stored = graph
    kept = cap_receivers(stored, NODES, cap, seed=3, layer=1)
    assert torch.equal(kept, cap_receivers(edges, NODES, cap, seed=3, layer=1))


@pytest.mark.parametrize("count", [1, 4, NODES])
def test_groups_hold_the_same_edges(graph, count):
    edges, stored = graph
    groups = random_groups(NODES, count, seeded(1, "groups"))
    inside = within(edges, groups)
    assert torch.equal(within(stored, groups), inside)
    some = (groups == 0).nonzero().flatten()
    assert torch.equal(within(stored, groups, some), inside[:, groups[inside[0]] == 0])


@pytest.mark.parametrize("how", ["ista", "push"])
@pytest.mark.parametrize("some", [False, True])
def test_pagerank_is_the_same_to_the_last_bit(graph, how, some):
    edges, stored = graph
    inside = torch.rand(NODES, generator=torch.Generator().manual_seed(4)) < 0.7 if some else None
    seeds = torch.tensor([7, 3, NODES - 1, 250, 3, 12])  # a hub, and one without an edge
    rows = pagerank(edges, NODES, seeds, how=how, rho=1e-4, inside=inside)
    others = pagerank(stored, NODES, seeds, how=how, rho=1e-4, inside=inside)
    assert rows.nnz > 100
    for part in ("data", "indices", "indptr"):
        assert np.array_equal(getattr(rows, part), getattr(others, part)), part
    if inside is not None:
        among = edges[:, inside[edges].all(0)]
        assert (rows != pagerank(among, NODES, seeds, how=how, rho=1e-4)).nnz == 0


@pytest.mark.parametrize("how", NORMALISATIONS)
def test_sums_are_the_same_to_the_last_bit(graph, how):
    edges, stored = graph
    one = weigh_messages(cap_senders(edges, NODES, None, seed=0), NODES, how)
    other = weigh_lists(stored, how)
    rows = torch.randn(NODES, 5, generator=torch.Generator().manual_seed(1))
    assert torch.equal(one.in_degree, other.in_degree)
    for weighted in (False, True):
        total = other.total(rows, weighted=weighted)
        assert torch.equal(one.total(rows, weighted=weighted), total)
    assert torch.equal(one.weighted(rows), other.weighted(rows))
    prior = torch.full((5,), 0.2).log()
    own = rows.log_softmax(1)
    assert torch.equal(
        pass_beliefs(own, prior, one, 3, 0.9), pass_beliefs(own, prior, other, 3, 0.9)
    )


def test_a_part_of_a_graph_is_all_that_its_receivers_read(graph):
    edges, stored = graph
    messages, rows = weigh_lists(stored), torch.randn(NODES, 4)
    whole = messages.weighted(rows)
    one = weigh_messages(edges, NODES)
    for some, _ in messages.blocks(60):
        count = some.stop - some.start
        for read in (messages, one):
            nodes, part = around(read, some)
            assert torch.equal(nodes[:count], torch.arange(some.start, some.stop))
            assert len(nodes.unique()) == len(nodes)
            assert torch.equal(part.weighted(rows[nodes])[:count], whole[some])


@pytest.mark.parametrize("hops", [0, 1, 2])
def test_surroundings_are_what_some_nodes_read_and_no_more(graph, hops):
    edges, stored = graph
    one = weigh_messages(cap_senders(edges, NODES, None, seed=0), NODES, "symmetric")
    other = weigh_lists(stored, "symmetric")
    readers, rows = torch.tensor([7, 299, 20, 5]), torch.randn(NODES, 4)
    whole = rows
    for _ in range(hops):
        whole = one.weighted(whole)
    parts = [surround(messages, readers, hops) for messages in (one, other)]
    for part in parts:
        h = rows[part.nodes]
        for _ in range(hops):
            h = part.messages.weighted(h)
        assert torch.equal(h[part.readers], whole[readers])
    rooted = gather_neighbourhoods(rows, one, readers, hops)
    assert torch.equal(rooted.index.unique(), parts[0].nodes)
    for field in ("edge_index", "weight", "self_weight"):
        assert torch.equal(*(getattr(part.messages, field) for part in parts)), field


@pytest.mark.parametrize("how", NORMALISATIONS)
def test_messages_turned_round_are_sent_back(graph, how):
    edges, stored = graph
    messages = weigh_messages(cap_senders(edges, NODES, None, seed=0), NODES, how)
    rows = torch.randn(NODES, 4)
    one, other = turn_round(messages), turn_round(weigh_lists(stored, how))
    assert torch.equal(one.weighted(rows), other.weighted(rows))
    dense = torch.zeros(NODES, NODES).index_put(
        (messages.edge_index[1], messages.edge_index[0]), messages.weight
    )
    expected = dense.t() @ rows + messages.self_weight.unsqueeze(1) * rows
    torch.testing.assert_close(one.weighted(rows), expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("how", NORMALISATIONS)
def test_receivers_read_of_the_whole_what_the_whole_reads(graph, how):
    edges, stored = graph
    one = weigh_messages(cap_senders(edges, NODES, None, seed=0), NODES, how)
    rows = torch.randn(NODES, 5, generator=torch.Generator().manual_seed(1))
    reads = {
        "weighted": lambda via: via.weighted(rows),
        "total": lambda via: via.total(rows),
        "weighted total": lambda via: via.total(rows, weighted=True),
        "mean": lambda via: via.mean(rows),
        "largest": lambda via: via.largest(rows),
        "own": lambda via: via.own_and_rest(rows)[0],
    }
    for name, read in reads.items():
        whole = read(one)
        for messages in (one, weigh_lists(stored, how)):
            parts = [read(Received(messages, some)) for some in slices(NODES, 37)]
            assert torch.equal(torch.cat(parts), whole), name


@pytest.mark.parametrize("sender_cap", [None, 2])
@pytest.mark.parametrize("weighing", ["none", "similarity", "evidence"])
def test_aggregates_are_the_same_to_the_last_bit(graph, sender_cap, weighing):
    edges, stored = graph
    generator = torch.Generator().manual_seed(2)
    beliefs = torch.randn(NODES, 4, generator=generator).softmax(1)
    rows, share = unit_rows(torch.randn(NODES, 4, generator=generator)), torch.rand(NODES)
    sums = torch.randn(NODES, 4, generator=generator)

    def send(read):
        messages = incoming(read, NODES, seed=1, sender_cap=sender_cap, cap="soft")
        weights = [] if sender_cap is None else [aggregation.own_weights(messages)]
        if weighing == "similarity":
            weights.append(aggregation.similarity_weights(messages, rows, "half"))
        if weighing == "evidence":
            weights.append(aggregation.evidence_weights(messages, rows, beliefs, share))
        seen = beliefs if weighing == "evidence" else None
        return Sent(messages, bounded_rows(rows), aggregation.multiply_weights(weights), seen)

    one, other = send(edges), send(stored)
    assert torch.equal(one.sums(), other.sums())
    assert torch.equal(one.list_sums(sums), other.list_sums(sums))


def test_a_hard_cap_keeps_the_same_messages(graph):
    one, other = (incoming(read, NODES, seed=1, sender_cap=2, cap="hard") for read in graph)
    assert torch.equal(one.edge_index, other.edge_index)
