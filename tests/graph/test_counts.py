"""Rows of whole graphs: each graph's own to the last bit, whatever its order and company."""

import copy

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

from graphveil.graph.collate import collate, uncollate
from graphveil.graph.counts import LENGTH, WAVES, count_patterns, num_columns

SIZES = {"rounds": 2, "columns": 64}


def graphs(count=12, *, seed=0, smallest=1, places=False, bonds=False):
    """Labels in the first two columns, attributes in the others; some graphs are tiny."""
    rng = torch.Generator().manual_seed(seed)
    listed = []
    for number in range(count):
        size = smallest + number % 7
        labels = torch.nn.functional.one_hot(torch.randint(2, (size,), generator=rng), 2)
        x = torch.cat([labels.float(), torch.randn(size, 2, generator=rng)], 1)
        pairs = torch.randint(max(size, 1), (2, 2 * size), generator=rng)
        pairs = pairs[:, pairs[0] < pairs[1]].unique(dim=1)
        kinds = torch.randint(2, (pairs.shape[1], 1), generator=rng).float()
        graph = Data(x=x, edge_index=torch.cat([pairs, pairs.flip(0)], 1))
        if places:
            graph.pos = 30 * torch.randn(size, 2, generator=rng)
        if bonds:
            graph.edge_attr = torch.cat([kinds, kinds])
        graph.y = torch.tensor([number % 2])
        listed.append(graph)
    return listed


def numbers(row, nodes):
    """How many nodes each column of a round stands for; all nodes are counted once a round."""
    squares = row**2
    whole = squares * nodes / squares.sum()
    assert np.abs(whole - np.rint(whole)).max() < 1e-9
    return np.rint(whole)


def rows(listed, **sizes):
    return count_patterns(collate(listed), **(SIZES | sizes)).toarray()


@pytest.mark.parametrize("places", [False, True])
@pytest.mark.parametrize("bonds", [False, True])
def test_a_row_is_its_own_graph_s_whatever_company_it_has(places, bonds):
    listed = graphs(places=places, bonds=bonds)
    whole = rows(listed)
    for place, graph in enumerate(listed):
        assert np.array_equal(whole[place], rows([graph])[0])
        others = [other for other in graphs(seed=9, smallest=0, places=places, bonds=bonds)]
        for other in others:
            other.x = 1e20 * other.x
        assert np.array_equal(whole[place], rows([*others, graph])[-1])


@pytest.mark.parametrize("places", [False, True])
def test_the_order_of_nodes_and_edges_changes_no_bit(places):
    for seed, graph in enumerate(graphs(places=places, bonds=True)):
        rng = torch.Generator().manual_seed(seed)
        order = torch.randperm(len(graph.x), generator=rng)
        place = order.argsort()
        edges = torch.randperm(graph.edge_index.shape[1], generator=rng)
        moved = copy.copy(graph)
        moved.x, moved.edge_index = graph.x[order], place[graph.edge_index[:, edges]]
        moved.edge_attr = graph.edge_attr[edges]
        if places:
            moved.pos = graph.pos[order]
        assert np.array_equal(rows([graph]), rows([moved]))


def test_counts_are_those_of_a_plain_refinement():
    """Two nodes share a column of the last round if and only if they have the same colour."""
    listed = graphs(40)
    data = collate(listed)
    for rounds in (0, 1, 2):
        seen = {}
        for graph in uncollate(data):
            colours = [tuple(row) for row in (graph.x[:, :2] == 1).tolist()]
            source, target = graph.edge_index.tolist()
            for _ in range(rounds):
                heard = [[] for _ in colours]
                for one, other in zip(source, target, strict=True):
                    heard[other].append(colours[one])
                colours = [
                    (colour, tuple(sorted(map(repr, around))))
                    for colour, around in zip(colours, heard, strict=True)
                ]
            patterns = tuple(sorted(map(repr, colours)))
            row = count_patterns(collate([graph]), rounds=rounds, columns=4096).toarray()[0, -4096:]
            seen.setdefault(patterns, []).append(numbers(row, len(graph.x)))
        kinds = list(seen.values())
        assert all(np.array_equal(row, same[0]) for same in kinds for row in same)
        first = [same[0] for same in kinds]
        assert len(np.unique(np.stack(first), axis=0)) == len(kinds)


def test_rows_have_the_square_roots_of_counts():
    graph = Data(x=torch.tensor([[1.0], [1.0], [0.0]]), edge_index=torch.zeros(2, 0).long())
    row = count_patterns(collate([graph]), rounds=0, columns=4096).toarray()[0, -4096:]
    assert sorted(numbers(row, 3)[row > 0]) == [1, 2]


def test_labels_of_edges_are_seen():
    path = torch.tensor([[0, 1], [1, 0]])
    x = torch.ones(2, 1)
    one, other = (
        Data(x=x, edge_index=path, edge_attr=torch.full((2, 1), value)) for value in (0.0, 1.0)
    )
    width = SIZES["columns"]
    assert not np.array_equal(rows([one])[0, -width:], rows([other])[0, -width:])


def test_attributes_leave_colours_alone():
    """A column that is not of 0 and 1 in a graph is no label there, and splits no colour."""
    listed = graphs()
    plain = [copy.copy(graph) for graph in listed]
    for graph in plain:
        graph.x = torch.cat([graph.x[:, :2], 0.5 + graph.x[:, 2:].abs()], 1)
    width = SIZES["columns"]
    for place in range(3):
        block = slice(-width * (place + 1), -width * place or None)
        for graph, one, other in zip(listed, rows(listed), rows(plain), strict=True):
            nodes = len(graph.x)
            assert np.array_equal(numbers(one[block], nodes), numbers(other[block], nodes))


def test_rows_have_a_public_width_and_bounded_dense_columns():
    listed = graphs(places=True, bonds=True)
    for graph in listed:
        graph.x = 1e30 * graph.x
        graph.pos = 1e30 * graph.pos
    made = rows(listed)
    assert made.shape[1] == num_columns(4, **SIZES)
    assert np.isfinite(made).all()
    assert np.sqrt((made**2).sum(1)) == pytest.approx(np.full(len(listed), LENGTH))


def waves(listed):
    start = num_columns(4, **SIZES) - 3 * SIZES["columns"] - 2 * WAVES
    return rows(listed)[:, start : start + 2 * WAVES]


def test_waves_tell_places_apart_and_need_them():
    """The same pattern turned round has other waves; moved, it has the same of centred places."""
    (graph,) = graphs(7, places=True)[6:]
    turned, moved = copy.copy(graph), copy.copy(graph)
    turned.pos = graph.pos @ torch.tensor([[0.0, 1.0], [-1.0, 0.0]])
    moved.pos = graph.pos + 64.0
    one, other, third = (waves([graph])[0] for graph in (graph, turned, moved))
    assert np.abs(one - other).max() > 0.01
    assert np.abs(one[WAVES:] - third[WAVES:]).max() > 0.01
    lengths = [np.linalg.norm(row[:WAVES]) for row in (one, third)]
    assert one[:WAVES] / lengths[0] == pytest.approx(third[:WAVES] / lengths[1], abs=1e-4)
    assert not waves(graphs()).any()
