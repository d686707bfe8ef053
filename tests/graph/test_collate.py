"""Many graphs as one: joined, taken apart, and refused by the number of a graph."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.data import Batch, Data

from graphveil._errors import InvalidInputError
from graphveil.graph.checks import check
from graphveil.graph.collate import collate, uncollate


def refused(call, *args, **options):
    with pytest.raises(InvalidInputError) as caught:
        call(*args, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def edges(*pairs):
    return torch.tensor(pairs, dtype=torch.long).reshape(-1, 2).t().contiguous()


def graph(nodes=3, y=0, pairs=((0, 1), (1, 2)), seed=0, **more):
    x = torch.randn(nodes, 2, generator=torch.Generator().manual_seed(seed))
    return Data(x=x, edge_index=edges(*pairs), y=torch.tensor([y]), **more)


def test_graphs_are_laid_out_as_pyg_lays_out_a_batch():
    listed = [graph(3, 0), graph(1, 2, ()), graph(4, 1, ((0, 3),), seed=1)]
    data, batch = collate(listed, num_classes=5), Batch.from_data_list(listed)
    for name in ("x", "edge_index", "batch", "y"):
        assert torch.equal(data[name], batch[name])
    assert (data.num_graphs, data.num_classes) == (3, 5)
    check(batch, labels=False, masks=False, record="graph")
    assert collate(data) is data


GRAPHS = st.lists(
    st.tuples(
        st.integers(0, 5),
        st.integers(-1, 3),
        st.lists(st.tuples(st.integers(0, 99), st.integers(0, 99)), max_size=8),
    ),
    min_size=1,
    max_size=8,
).filter(lambda listed: any(nodes for nodes, _, _ in listed))


@settings(max_examples=60, deadline=None)
@given(GRAPHS, st.integers(0, 2**20))
def test_apart_and_together_again_is_the_same_in_any_order_of_nodes(listed, seed):
    generator = torch.Generator().manual_seed(seed)
    originals = []
    for nodes, y, draws in listed:
        pairs = [(a % nodes, b % nodes) for a, b in draws] if nodes else []
        more = {"edge_attr": torch.rand(len(pairs), 2, generator=generator)}
        more["pos"] = torch.rand(nodes, 2, generator=generator)
        originals.append(graph(nodes, y, pairs, seed=seed, **more))
    data = collate(originals)
    # Shuffle the nodes of all graphs; within a graph the order then is that of the shuffle.
    order = torch.randperm(len(data.x), generator=generator)
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order))
    mixed = data.clone()
    mixed.x, mixed.pos, mixed.batch = data.x[order], data.pos[order], data.batch[order]
    mixed.edge_index = place[data.edge_index]
    for one, other, moved in zip(originals, uncollate(data), uncollate(mixed), strict=True):
        for name in ("x", "edge_index", "edge_attr", "pos", "y"):
            assert torch.equal(one[name], other[name])
        assert torch.equal(moved.x[moved.edge_index], one.x[one.edge_index])
        assert torch.equal(moved.edge_attr, one.edge_attr)
    again = collate(uncollate(data))
    assert all(torch.equal(again[n], data[n]) for n in ("x", "edge_index", "batch", "y"))


def test_nodes_without_features_get_a_one_and_unlabelled_graphs_minus_one():
    bare = [Data(num_nodes=2, edge_index=edges((0, 1)), y=1), Data(num_nodes=3)]
    data = collate(bare)
    assert data.x.tolist() == [[1.0]] * 5
    assert data.y.tolist() == [1, -1]
    assert "y" not in collate([Data(num_nodes=2)])


def test_edges_are_doubled_only_on_demand():
    attributes = torch.tensor([1.0, 2.0])
    listed = [graph(3, edge_attr=attributes), graph(2, pairs=(), edge_attr=attributes[:0])]
    assert collate(listed).num_edges == 2
    both = collate(listed, undirected=True)
    assert both.is_undirected()
    assert sorted(both.edge_attr.flatten().tolist()) == [1, 1, 2, 2]


def test_other_types_of_features_labels_and_attributes():
    one = graph(2, pairs=((0, 1),), edge_attr=torch.tensor([[3]]))
    one.x, one.y = one.x.double(), torch.tensor([[True]])
    data = collate([one])
    assert (data.x.dtype, data.edge_attr.dtype) == (torch.float32, torch.float32)
    assert data.y.tolist() == [1]


FAULTS = {
    "nothing": ([], "must have a graph"),
    "no list": (7, "Got int"),
    "one graph": (graph(), "one graph"),
    "no graph": ([graph(), "g"], "Got str at 1"),
    "nested": ([collate([graph()])], "many graphs in one at 0"),
    "no size": ([graph(), Data(edge_index=edges((0, 1)))], "graph 1.*'x'.*num_nodes"),
    "x here only": ([Data(num_nodes=2), graph()], "graph 1.*'x'.*not in graph 0"),
    "x missing": ([graph(), Data(num_nodes=2)], "graph 1.*'x'.*graph 0 alone"),
    "widths": ([graph(), Data(x=torch.ones(2, 5))], "graph 1.*2 columns. Got 5"),
    "whole numbers": ([Data(x=torch.ones(2, 2).long())], r"graph 0.*x\.float\(\)"),
    "flat": ([Data(x=torch.ones(2))], r"graph 0.*'x'.*\(2,\)"),
    "edge outside": ([graph(2, pairs=((0, 2),))], "graph 0.*0 -> 2"),
    "negative edge": ([graph(2, pairs=((-1, 1),))], "graph 0.*-1 -> 1"),
    "edges as pairs": ([Data(x=torch.ones(4, 1), edge_index=torch.zeros(3, 2))], "edge_index"),
    "two labels": ([Data(x=torch.ones(2, 1), y=torch.tensor([0, 1]))], r"'y'.*\(2,\)"),
    "float label": ([Data(x=torch.ones(2, 1), y=torch.tensor([0.5]))], "'y'.*float32"),
    "text label": ([Data(x=torch.ones(2, 1), y="active")], "'y'.*'active'"),
    "short attributes": ([graph(edge_attr=torch.ones(1, 2))], "'edge_attr'"),
    "NaN": ([graph(), Data(x=torch.full((2, 2), math.nan), y=0)], "'x'.*nan at node 0 of graph 1"),
    "no node": ([Data(x=torch.ones(0, 2))], "at least one node"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_bad_graphs_are_one_line_that_names_the_graph(fault):
    given, message = FAULTS[fault]
    with pytest.raises(InvalidInputError, match=message):
        collate(given)
    refused(collate, given)
