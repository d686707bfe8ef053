"""Features that a graph has of itself."""

import math

import pytest
import torch
from torch_geometric.data import Data

from graphveil._errors import InvalidInputError
from graphveil.graph.collate import collate
from graphveil.graph.transforms import GEOMETRIES, add_degree, add_edge_geometry


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


def test_the_degree_is_counted_inside_the_graph():
    data = collate([graph(3, pairs=((0, 1), (1, 0), (2, 1))), graph(2, pairs=())])
    added = add_degree(data)
    assert added.x[:, -1].tolist() == pytest.approx([math.log(2), math.log(3), 0, 0, 0])
    assert data.x.shape[1] == 2


def test_edge_geometry_by_hand_and_whichever_end_comes_first():
    pos = torch.tensor([[0.0, 0.0], [4.0, 3.0], [0.0, 2.0], [0.0, 0.0]])
    pairs = ((0, 1), (1, 0), (0, 2), (2, 0), (0, 3), (3, 0))
    data = collate([Data(x=torch.zeros(4, 1), edge_index=edges(*pairs), pos=pos)])
    found = add_edge_geometry(data, scale=2.0).x[:, 1:]
    assert found.shape[1] == GEOMETRIES["edges"]
    slanted = [7 / 25, 24 / 25, 12 / 4, 7 / 4]  # along (4, 3)
    upright = [-1, 0, 0, -4 / 4]  # along (0, 2)
    assert found[1].tolist() == pytest.approx(slanted)
    assert found[2].tolist() == pytest.approx(upright)
    assert found[3].tolist() == [0, 0, 0, 0]  # an edge of no length
    assert found[0].tolist() == pytest.approx(
        [a + b for a, b in zip(slanted, upright, strict=True)]
    )


def test_moments_say_where_in_its_graph_an_edge_lies():
    pos = torch.tensor([[2.0, 1.0], [6.0, 4.0], [1.0, 1.0]])
    listed = [
        Data(x=torch.zeros(2, 1), edge_index=edges((0, 1), (1, 0)), pos=pos[:2]),
        Data(x=torch.zeros(1, 1), edge_index=edges(), pos=pos[2:]),
    ]
    found = add_edge_geometry(collate(listed), scale=2.0, moments=True).x[:, 1:]
    assert found.shape[1] == GEOMETRIES["moments"]
    four = [7 / 25, 24 / 25, 12 / 4, 7 / 4]
    u, v = 2 / 4, 1.5 / 4  # from the middle (4, 2.5), in units of 4
    second = [u * u / 2, v * v / 2, u * v / 2]
    wanted = [*four, *second, *(by * each for by in (u, v, *second) for each in four)]
    assert found[1].tolist() == pytest.approx(wanted)
    odd = [(-1) ** (4 + 3 <= place < 4 + 3 + 8) for place in range(27)]  # those with u or v alone
    assert found[0].tolist() == pytest.approx([a * b for a, b in zip(wanted, odd, strict=True)])
    assert found[2].tolist() == [0.0] * 27
    moved = [Data(x=d.x, edge_index=d.edge_index, pos=d.pos + 100) for d in listed]
    again = add_edge_geometry(collate(moved), scale=2.0, moments=True).x[:, 1:]
    torch.testing.assert_close(again, found)


def test_features_of_a_graph_do_not_depend_on_the_others():
    listed = [graph(4, pos=torch.rand(4, 2)), graph(3, seed=1, pos=torch.rand(3, 2))]
    both = add_edge_geometry(add_degree(collate(listed)), moments=True)
    alone = add_edge_geometry(add_degree(collate(listed[1:])), moments=True)
    assert torch.equal(both.x[4:], alone.x)


def test_features_refuse_one_graph_of_many_people_and_missing_places():
    assert "many graphs" in refused(add_degree, graph())
    assert "'pos'" in refused(add_edge_geometry, collate([graph()]))
    solid = collate([graph(pos=torch.rand(3, 3))])
    assert "(3, 3)" in refused(add_edge_geometry, solid)
    flat = collate([graph(pos=torch.rand(3, 2))])
    assert "'scale'" in refused(add_edge_geometry, flat, scale=0)
