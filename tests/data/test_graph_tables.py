"""A user's own graphs: three tables, a saved list, or arrays."""

import os

import numpy as np
import pytest
import torch
from torch_geometric.data import Batch, Data

from graphveil._errors import InvalidInputError
from graphveil.data import load
from graphveil.data.graph_tables import graph_ids
from graphveil.graph.collate import collate
from graphveil.graph.splits import split


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


def test_a_missing_table_of_graphs_is_named(tmp_path):
    (tmp_path / "nodes.csv").write_text("graph,id,a\ng0,1,0.5\ng0,2,1\n")
    (tmp_path / "edges.csv").write_text("graph,source,target\ng0,1,2\n")
    assert "graphs.csv" in refused(load, str(tmp_path))


TABLES = {
    "graphs": "id,label,split,note\na,active,train,x\nb,inactive,test,y\nc,,,z\n",
    "nodes": "graph,id,charge\nb,1,0.5\na,1,1\na,2,2\nb,2,-0.5\n",
    "edges": "graph,source,target,length\na,1,2,1.5\nb,2,1,2\n",
}


def tables(folder, **changes):
    folder.mkdir(exist_ok=True)
    for name, text in {**TABLES, **changes}.items():
        (folder / f"{name}.csv").write_text(text)
    return folder


def test_three_tables_are_read_as_documented(tmp_path):
    data = load(tables(tmp_path / "own"), classes="public")
    assert data.num_graphs == 3
    assert (data.columns, data.directed) == (["charge"], False)
    assert data.batch.tolist() == [1, 0, 0, 1]
    assert data.x.flatten().tolist() == [0.5, 1, 2, -0.5]
    assert sorted(map(tuple, data.edge_index.t().tolist())) == [(0, 3), (1, 2), (2, 1), (3, 0)]
    assert data.edge_attr.flatten().tolist() == [2, 1.5, 1.5, 2]
    assert data.y.tolist() == [0, 1, -1]
    assert data.class_names == ["active", "inactive"]
    assert data.train_mask.tolist() == [True, False, False]
    assert data.test_mask.tolist() == [False, True, False]
    assert graph_ids(tmp_path / "own") == ["a", "b", "c"]
    one_way = load(tmp_path / "own", directed=True, classes="public")
    assert sorted(map(tuple, one_way.edge_index.t().tolist())) == [(1, 2), (3, 0)]


def test_tables_may_have_no_features_attributes_labels_or_edges(tmp_path):
    folder = tables(
        tmp_path / "own",
        graphs="id\n01\n1\n",
        nodes="graph,id\n1,x\n01,x\n",
        edges="graph,source,target\n",
    )
    data = load(folder)
    assert data.x.tolist() == [[1.0], [1.0]]
    assert data.batch.tolist() == [1, 0]
    assert sorted(data.keys()) == ["batch", "directed", "edge_index", "ids", "num_graphs", "x"]


TABLE_FAULTS = {
    "graph twice": (dict(graphs="id\na\na\n"), "graphs.csv.*'id'.*'a' in row 2"),
    "unknown graph": (dict(nodes="graph,id\na,1\nz,1\n"), "nodes.csv.*'graph'.*'z' in row 2"),
    "node twice": (dict(nodes="graph,id\na,1\na,1\n"), "nodes.csv.*'id'.*'1' in row 2"),
    "edge to no graph": (dict(edges="graph,source,target\nz,1,2\n"), "edges.csv.*'z' in row 1"),
    "edge to no node": (dict(edges="graph,source,target\na,1,9\n"), "edges.csv.*'9' in row 1"),
    "other graph's": (
        dict(nodes="graph,id,q\na,1,0\nb,2,0\n", edges="graph,source,target\na,1,2\n"),
        "edges.csv.*'target'.*id of that graph.*'2' in row 1",
    ),
    "text feature": (dict(nodes="graph,id,q\na,1,hot\n"), "nodes.csv.*'q'.*'hot' in row 1"),
    "text attribute": (dict(edges="graph,source,target,k\na,1,2,x\n"), "edges.csv.*'k'.*'x'"),
    "no nodes": (dict(nodes="graph,id\n"), "nodes.csv has no rows"),
    "no graphs": (dict(graphs="id\n"), "graphs.csv has no rows"),
    "no column": (dict(nodes="id,q\n1,2\n"), "nodes.csv.*'graph'"),
    "empty id": (dict(nodes="graph,id\na,\n"), "nodes.csv.*'id'.*empty cell in row 1"),
    "bad split": (dict(graphs="id,split\na,dev\nb,\n"), "'split'.*'dev' in row 1"),
    "years": (dict(graphs="id,label\na,2004\nb,1\n"), "number of graphs, 2"),
    "unlabelled": (dict(graphs="id,label,split\na,,train\nb,0,test\n"), "'y'.*at graph 0"),
}


@pytest.mark.parametrize("fault", TABLE_FAULTS)
def test_bad_tables_of_graphs_are_one_line(tmp_path, fault):
    changes, message = TABLE_FAULTS[fault]
    folder = tables(tmp_path / "own", **changes)
    with pytest.raises(InvalidInputError, match=message):
        load(folder)
    refused(load, folder)


def test_a_folder_of_graphs_needs_all_three_tables(tmp_path):
    folder = tables(tmp_path / "own")
    (folder / "edges.csv").unlink()
    assert "edges.csv" in refused(load, folder)


def test_saved_lists_sets_and_arrays_come_back(tmp_path):
    listed = [graph(3, 0), graph(2, 1, ((0, 1),), seed=1)]
    data = split(collate(listed, num_classes=2), (0.5, 0, 0.5))
    torch.save(listed, tmp_path / "list.pt")
    torch.save(data, tmp_path / "set.pt")
    arrays = {name: np.asarray(data[name]) for name in data.keys()}  # noqa: SIM118
    np.savez(tmp_path / "set.npz", **arrays)
    for name in ("list.pt", "set.pt", "set.npz"):
        back = load(tmp_path / name)
        assert back.num_graphs == 2
        for key in ("x", "edge_index", "batch", "y"):
            assert torch.equal(back[key], data[key])
    assert load(tmp_path / "set.npz").train_mask.tolist() == data.train_mask.tolist()


def test_bad_saved_lists_are_one_line(tmp_path):
    path = tmp_path / "list.pt"
    for held, message in (
        ([], "must have a graph"),
        ([graph(), graph(2)], "0 -> 1|1 -> 2"),
        ([graph(), 3], "not a torch_geometric.data.Data"),
        ([Batch.from_data_list([graph()])], "list.pt"),
    ):
        torch.save(held, path)
        with pytest.raises(InvalidInputError, match=message):
            load(path)
        assert str(path) in refused(load, path)


class Bomb:
    """What a hostile pickle does when it is loaded: make a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_a_hostile_list_does_not_run(tmp_path):
    held = [graph(), Data(x=torch.ones(2, 2), note=Bomb(tmp_path / "ran"))]
    torch.save(held, tmp_path / "list.pt")
    assert "could run its code" in refused(load, tmp_path / "list.pt")
    assert not (tmp_path / "ran").exists()
