"""Caps against a plain loop, and what their priorities promise."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from graphveil._errors import InvalidInputError
from graphveil.graph import caps
from graphveil.graph.caps import cap_receivers, cap_senders, priorities, priority_keys
from graphveil.graph.daigavane import sample_paper

WORD = 2**32 - 1
FULL = 2**31  # any number of nodes: what is chosen does not depend on it


def mixed(x):
    """The finaliser, in plain whole numbers."""
    x ^= x >> 16
    x = x * 0x85EBCA6B & WORD
    x ^= x >> 13
    x = x * 0xC2B2AE35 & WORD
    return x ^ x >> 16


def priority(keys, owner, other):
    for key in keys:
        other = mixed(other ^ mixed(owner ^ key))
    return other


def slow_cap(pairs, cap, keys, owner):
    """Kept pairs, by a loop; ``owner`` says which end chooses."""
    lists = {}
    for pair in sorted({pair for pair in pairs if pair[0] != pair[1]}):
        lists.setdefault(pair[owner], []).append(pair)
    kept = []
    for node in sorted(lists):
        ranked = sorted(lists[node], key=lambda p: (priority(keys, node, p[1 - owner]), p))
        kept += ranked if cap is None else ranked[:cap]
    return kept


def tensor(pairs):
    return torch.tensor(pairs, dtype=torch.long).reshape(-1, 2).t()


def listed(edge_index):
    return [tuple(pair) for pair in edge_index.t().tolist()]


def star(receivers):
    """Node 0 sends to 1, 2, ..., ``receivers``."""
    return torch.stack([torch.zeros(receivers, dtype=torch.long), torch.arange(1, receivers + 1)])


def random_edges(seed, nodes=50, edges=600):
    return torch.randint(nodes, (2, edges), generator=torch.Generator().manual_seed(seed))


nodes = st.one_of(st.integers(0, 6), st.integers(0, FULL - 1))
edge_lists = st.lists(st.tuples(nodes, nodes), max_size=60)
some_caps = st.one_of(st.none(), st.integers(1, 5), st.just(10**12))


@settings(max_examples=300)
@given(edge_lists, some_caps, st.integers(0, 10**18))
def test_the_senders_kept_are_those_of_a_plain_loop(pairs, cap, seed):
    found = cap_senders(tensor(pairs), FULL, cap, seed=seed)
    assert listed(found) == slow_cap(pairs, cap, caps.priority_keys(seed, "cap senders"), 0)


@settings(max_examples=300)
@given(edge_lists, some_caps, st.integers(0, 10**18), st.integers(0, 3))
def test_the_receivers_kept_are_those_of_a_plain_loop(pairs, cap, seed, layer):
    found = cap_receivers(tensor(pairs), FULL, cap, seed=seed, layer=layer)
    keys = caps.priority_keys(seed, f"cap receivers {layer}")
    assert listed(found) == slow_cap(pairs, cap, keys, 1)


def test_large_graphs_are_hashed_in_blocks_with_the_same_result(monkeypatch):
    edges = random_edges(1, nodes=40, edges=1000)
    whole = cap_senders(edges, 40, 3, seed=5)
    monkeypatch.setattr(caps, "_BLOCK", 7)
    assert torch.equal(cap_senders(edges, 40, 3, seed=5), whole)


def test_priorities_of_one_sender_never_tie_and_can_be_undone():
    keys = caps.priority_keys(3, "any")
    others = np.arange(2**20, dtype=np.uint32) * np.uint32(4093)
    owners = np.full_like(others, 77)
    drawn = caps.priorities(owners, others, keys)
    assert len(np.unique(drawn)) == len(others)
    assert np.array_equal(caps._other(owners, drawn, keys), others)


@settings(max_examples=50)
@given(st.integers(0, 999), st.integers(1, 6), st.integers(0, 49))
def test_withholding_a_node_leaves_all_other_lists_as_they_were(seed, cap, withheld):
    edges = random_edges(seed)
    kept = cap_senders(edges, 50, cap, seed=seed)
    without = cap_senders(edges[:, edges[0] != withheld], 50, cap, seed=seed)
    assert torch.equal(without, kept[:, kept[0] != withheld])


def test_what_is_kept_does_not_depend_on_the_number_of_nodes_nor_on_the_order_of_edges():
    edges = random_edges(2)
    kept = cap_senders(edges, 50, 3, seed=0)
    shuffled = edges[:, torch.randperm(edges.shape[1])]
    assert torch.equal(cap_senders(shuffled, 10**9, 3, seed=0), kept)


def test_capping_again_changes_nothing_and_a_smaller_cap_keeps_a_part():
    edges = random_edges(3)
    five = cap_senders(edges, 50, 5, seed=9)
    assert torch.equal(cap_senders(five, 50, 5, seed=9), five)
    assert torch.equal(cap_senders(five, 50, 2, seed=9), cap_senders(edges, 50, 2, seed=9))
    read = cap_receivers(five, 50, 4, seed=9)
    assert torch.equal(cap_receivers(read, 50, 4, seed=9), read)


def test_caps_hold_and_nothing_is_dropped_without_need():
    edges = random_edges(4)
    simple = cap_senders(edges, 50, None, seed=1)
    lists = torch.bincount(simple[0], minlength=50)
    kept = cap_senders(edges, 50, 4, seed=1)
    assert torch.equal(torch.bincount(kept[0], minlength=50), lists.clamp(max=4))
    reached = torch.bincount(kept[1], minlength=50)
    read = cap_receivers(kept, 50, 3, seed=1)
    assert torch.equal(torch.bincount(read[1], minlength=50), reached.clamp(max=3))


def test_a_message_the_receiver_drops_is_not_offered_back():
    edges = random_edges(5)
    kept = cap_senders(edges, 50, 4, seed=1)
    assert set(listed(cap_receivers(kept, 50, 2, seed=1))) < set(listed(kept))


def test_seeds_purposes_and_layers_choose_differently():
    edges = random_edges(6)
    assert not torch.equal(cap_senders(edges, 50, 3, seed=0), cap_senders(edges, 50, 3, seed=1))
    layers = [set(listed(cap_receivers(edges, 50, 3, seed=0, layer=i))) for i in range(2)]
    assert layers[0] != layers[1]
    # A sender's choice among its receivers says nothing about the mirrored choice.
    mirrored = {(u, w) for w, u in layers[0]}
    assert mirrored != set(listed(cap_senders(edges.flip(0), 50, 3, seed=0)))


def test_the_choice_is_uniform_over_receivers_and_over_pairs_of_them():
    n, cap, draws = 12, 2, 6000
    singles, pairs = np.zeros(n), np.zeros((n, n))
    for seed in range(draws):
        u, w = (cap_senders(star(n), n + 1, cap, seed=seed)[1] - 1).tolist()
        singles[[u, w]] += 1
        pairs[min(u, w), max(u, w)] += 1
    assert stats.chisquare(singles).pvalue > 1e-4
    assert stats.chisquare(pairs[np.triu_indices(n, 1)]).pvalue > 1e-4


def test_the_choice_is_uniform_over_the_lists_of_many_senders():
    """One seed, many senders with the same list: which receivers are kept, and in which order."""
    count, n, cap = 20_000, 16, 3
    senders = (torch.arange(count) + n).repeat_interleave(n)
    edges = torch.stack([senders, torch.arange(n).repeat(count)])
    kept = cap_senders(edges, count + n, cap, seed=0)[1].reshape(count, cap)
    for place in range(cap):
        assert stats.chisquare(torch.bincount(kept[:, place], minlength=n)).pvalue > 1e-4
    # neighbouring senders choose independently of each other
    both = np.histogram2d(kept[:-1:2, 0], kept[1::2, 0], bins=[range(n + 1)] * 2)[0]
    assert stats.chisquare(both.ravel()).pvalue > 1e-4


def test_an_undirected_graph_may_keep_one_way_of_an_edge():
    one_way = random_edges(7)
    edges = torch.cat([one_way, one_way.flip(0)], 1)
    kept = set(listed(cap_senders(edges, 50, 3, seed=0)))
    assert any((w, u) not in kept for u, w in kept)
    simple = set(listed(cap_senders(edges, 50, None, seed=0)))
    assert simple == {(w, u) for u, w in simple}


@pytest.mark.parametrize("cap", [None, 1, 3])
@pytest.mark.parametrize("num_nodes", [0, 5])
def test_an_empty_list_of_edges_stays_empty(cap, num_nodes):
    empty = torch.empty(2, 0, dtype=torch.long)
    for kept in (
        cap_senders(empty, num_nodes, cap, seed=0),
        cap_receivers(empty, num_nodes, cap, seed=0),
        sample_paper(empty, num_nodes, 2, seed=0),
        sample_paper(empty, num_nodes, 2, seed=0, reading="released"),
    ):
        assert kept.shape == (2, 0)
        assert kept.dtype == torch.long


def test_self_loops_go_and_repeated_edges_are_one_message():
    edges = tensor([(0, 0), (0, 1), (0, 1), (0, 2), (3, 3), (2, 0), (2, 0)])
    assert sorted(listed(cap_senders(edges, 9, None, seed=0))) == [(0, 1), (0, 2), (2, 0)]
    assert len(listed(cap_senders(edges, 9, 2, seed=0))) == 3
    assert not listed(cap_senders(tensor([(4, 4)]), 9, 2, seed=0))


def test_the_input_is_left_alone_and_may_be_of_32_bits():
    edges = random_edges(8)
    before = edges.clone()
    kept = cap_senders(edges, 50, 3, seed=0)
    assert torch.equal(edges, before)
    assert torch.equal(cap_senders(edges.int(), 50, 3, seed=0), kept)


@pytest.mark.parametrize(
    "edges, num_nodes, cap, seed",
    [
        (torch.zeros(2, 3), 4, 2, 0),
        (torch.zeros(3, 3, dtype=torch.long), 4, 2, 0),
        (torch.zeros(6, dtype=torch.long), 4, 2, 0),
        (tensor([(0, 4)]), 4, 2, 0),
        (tensor([(-1, 0)]), 4, 2, 0),
        (tensor([(0, 1)]), 4, 0, 0),
        (tensor([(0, 1)]), 4, 2.5, 0),
        (tensor([(0, 1)]), -1, 2, 0),
        (tensor([(0, 1)]), 4, 2, -1),
    ],
)
def test_bad_input_is_refused(edges, num_nodes, cap, seed):
    for function in (cap_senders, cap_receivers, sample_paper):
        with pytest.raises(InvalidInputError, match=r"must .* Got .* instead"):
            function(edges, num_nodes, cap, seed=seed)


@pytest.mark.parametrize("reading", ["printed", "released"])
def test_the_papers_sampler_bounds_degrees_on_one_graph(reading):
    """The first half of the paper's claim, which holds; the other half is in test_influence."""
    edges = random_edges(9, edges=2000)
    train = torch.arange(50) % 3 > 0
    kept = sample_paper(edges, 50, 4, seed=0, reading=reading, train=train)
    there = set(listed(cap_senders(edges, 50, None, seed=0)))
    assert train[kept[1]].all()
    assert torch.bincount(kept[0]).max() <= 4
    if reading == "printed":  # a pair that was kept is read from both sides
        assert torch.bincount(kept[1]).max() <= 4
        assert set(listed(kept)) <= there | {(w, u) for u, w in there}
    else:
        assert set(listed(kept)) <= there


def test_algorithm_2_against_the_lines_of_the_paper():
    """The paper's lines, one by one, over the same random orders."""
    train, cap = torch.arange(50) % 3 > 0, 3
    edges = random_edges(5, edges=300)
    simple = cap_senders(edges, 50, None, seed=0).numpy().astype(np.uint32)
    keys, order = (priority_keys(0, f"paper {what}") for what in ("sampler", "order"))
    turn = priorities(np.arange(50, dtype=np.uint32), np.arange(50, dtype=np.uint32), order)
    drawn = priorities(*simple, keys)
    count, subgraphs = [0] * 50, [set() for _ in range(50)]
    for v in sorted(train.nonzero().flatten().tolist(), key=lambda v: turn[v]):
        reads = sorted((drawn[i], u) for i, (u, w) in enumerate(simple.T.tolist()) if w == v)
        for _, u in reads:
            if count[u] == cap:
                continue
            if count[v] == cap:
                break
            subgraphs[v].add(u)
            subgraphs[u].add(v)
            count[u] += 1
            count[v] += 1
    expected = {(u, v) for v in train.nonzero().flatten().tolist() for u in subgraphs[v]}
    kept = sample_paper(edges, 50, cap, seed=0, reading="printed", train=train)
    assert set(listed(kept)) == expected


def test_the_released_reading_keeps_half_of_the_cap_on_average():
    count, n, cap = 4000, 40, 8
    senders = (torch.arange(count) + n).repeat_interleave(n)
    edges = torch.stack([senders, torch.arange(n).repeat(count)])
    kept = torch.bincount(sample_paper(edges, count + n, cap, seed=0, reading="released")[0] - n)
    expected = stats.binom(n, cap / (2 * n)).pmf(np.arange(1, cap + 1))
    counts = np.bincount(kept, minlength=cap + 1)[1 : cap + 1]
    assert stats.chisquare(counts, expected * counts.sum() / expected.sum()).pvalue > 1e-4
    # A node never keeps more than the cap: of those above, all messages are lost.
    assert kept.max() <= cap
