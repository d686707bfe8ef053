"""Whole graphs as records: joined and taken apart, features, sets by name, and a user's own."""

import gzip
import io
import math
import os
import shutil
import zipfile

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.data import Batch, Data

from graphveil._errors import InvalidInputError
from graphveil.data import CATALOG, load
from graphveil.data.graph_sets import ATOM, BOND
from graphveil.data.graph_tables import graph_ids
from graphveil.data.graphs import (
    GEOMETRIES,
    collated,
    separated,
    with_degree,
    with_edge_geometry,
)
from graphveil.graph.checks import MASKS, checked
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


# --- Joined, and taken apart ----------------------------------------------------------------------


def test_graphs_are_laid_out_as_pyg_lays_out_a_batch():
    listed = [graph(3, 0), graph(1, 2, ()), graph(4, 1, ((0, 3),), seed=1)]
    data, batch = collated(listed, num_classes=5), Batch.from_data_list(listed)
    for name in ("x", "edge_index", "batch", "y"):
        assert torch.equal(data[name], batch[name])
    assert (data.num_graphs, data.num_classes) == (3, 5)
    checked(batch, labels=False, masks=False, record="graph")
    assert collated(data) is data


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
    data = collated(originals)
    # Shuffle the nodes of all graphs; within a graph the order then is that of the shuffle.
    order = torch.randperm(len(data.x), generator=generator)
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order))
    mixed = data.clone()
    mixed.x, mixed.pos, mixed.batch = data.x[order], data.pos[order], data.batch[order]
    mixed.edge_index = place[data.edge_index]
    for one, other, moved in zip(originals, separated(data), separated(mixed), strict=True):
        for name in ("x", "edge_index", "edge_attr", "pos", "y"):
            assert torch.equal(one[name], other[name])
        assert torch.equal(moved.x[moved.edge_index], one.x[one.edge_index])
        assert torch.equal(moved.edge_attr, one.edge_attr)
    again = collated(separated(data))
    assert all(torch.equal(again[n], data[n]) for n in ("x", "edge_index", "batch", "y"))


def test_nodes_without_features_get_a_one_and_unlabelled_graphs_minus_one():
    bare = [Data(num_nodes=2, edge_index=edges((0, 1)), y=1), Data(num_nodes=3)]
    data = collated(bare)
    assert data.x.tolist() == [[1.0]] * 5
    assert data.y.tolist() == [1, -1]
    assert "y" not in collated([Data(num_nodes=2)])


def test_edges_are_doubled_only_on_demand():
    attributes = torch.tensor([1.0, 2.0])
    listed = [graph(3, edge_attr=attributes), graph(2, pairs=(), edge_attr=attributes[:0])]
    assert collated(listed).num_edges == 2
    both = collated(listed, undirected=True)
    assert both.is_undirected()
    assert sorted(both.edge_attr.flatten().tolist()) == [1, 1, 2, 2]


def test_other_types_of_features_labels_and_attributes():
    one = graph(2, pairs=((0, 1),), edge_attr=torch.tensor([[3]]))
    one.x, one.y = one.x.double(), torch.tensor([[True]])
    data = collated([one])
    assert (data.x.dtype, data.edge_attr.dtype) == (torch.float32, torch.float32)
    assert data.y.tolist() == [1]


FAULTS = {
    "nothing": ([], "must have a graph"),
    "no list": (7, "Got int"),
    "one graph": (graph(), "one graph"),
    "no graph": ([graph(), "g"], "Got str at 1"),
    "nested": ([collated([graph()])], "many graphs in one at 0"),
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
        collated(given)
    refused(collated, given)


# --- Features -------------------------------------------------------------------------------------


def test_the_degree_is_counted_inside_the_graph():
    data = collated([graph(3, pairs=((0, 1), (1, 0), (2, 1))), graph(2, pairs=())])
    added = with_degree(data)
    assert added.x[:, -1].tolist() == pytest.approx([math.log(2), math.log(3), 0, 0, 0])
    assert data.x.shape[1] == 2


def test_edge_geometry_by_hand_and_whichever_end_comes_first():
    pos = torch.tensor([[0.0, 0.0], [4.0, 3.0], [0.0, 2.0], [0.0, 0.0]])
    pairs = ((0, 1), (1, 0), (0, 2), (2, 0), (0, 3), (3, 0))
    data = collated([Data(x=torch.zeros(4, 1), edge_index=edges(*pairs), pos=pos)])
    found = with_edge_geometry(data, scale=2.0).x[:, 1:]
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
    found = with_edge_geometry(collated(listed), scale=2.0, moments=True).x[:, 1:]
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
    again = with_edge_geometry(collated(moved), scale=2.0, moments=True).x[:, 1:]
    torch.testing.assert_close(again, found)


def test_features_of_a_graph_do_not_depend_on_the_others():
    listed = [graph(4, pos=torch.rand(4, 2)), graph(3, seed=1, pos=torch.rand(3, 2))]
    both = with_edge_geometry(with_degree(collated(listed)), moments=True)
    alone = with_edge_geometry(with_degree(collated(listed[1:])), moments=True)
    assert torch.equal(both.x[4:], alone.x)


def test_features_refuse_one_graph_of_many_people_and_missing_places():
    assert "many graphs" in refused(with_degree, graph())
    assert "'pos'" in refused(with_edge_geometry, collated([graph()]))
    solid = collated([graph(pos=torch.rand(3, 3))])
    assert "(3, 3)" in refused(with_edge_geometry, solid)
    flat = collated([graph(pos=torch.rand(3, 2))])
    assert "'scale'" in refused(with_edge_geometry, flat, scale=0)


def test_a_missing_table_of_graphs_is_named(tmp_path):
    (tmp_path / "nodes.csv").write_text("graph,id,a\ng0,1,0.5\ng0,2,1\n")
    (tmp_path / "edges.csv").write_text("graph,source,target\ng0,1,2\n")
    assert "graphs.csv" in refused(load, str(tmp_path))


# --- Sets by name ---------------------------------------------------------------------------------


def test_the_synthetic_set_is_as_described():
    data = checked(load("synthetic-er"))
    assert (data.num_graphs, data.x.shape, data.num_classes) == (1000, (20_000, 9), 2)
    assert [int(data[mask].sum()) for mask in MASKS] == [600, 100, 300]
    assert data.is_undirected()
    assert not data.has_self_loops()
    assert torch.bincount(data.y).tolist() == [500, 500]
    of_edge, of_node = data.y[data.batch[data.edge_index[0]]], data.y[data.batch]
    for label, chance, mean in ((0, 0.2, 0.0), (1, 0.3, 0.1)):
        joined = int((of_edge == label).sum()) / (500 * 20 * 19)
        assert joined == pytest.approx(chance, abs=5 * math.sqrt(chance * (1 - chance) / 95_000))
        features = data.x[of_node == label].double()
        assert features.mean().item() == pytest.approx(mean, abs=5 * 0.5 / 300)
        assert features.std().item() == pytest.approx(0.5, abs=0.01)
    assert 0 < data.y[:600].float().mean() < 1


def test_the_synthetic_set_has_other_sizes_and_seeds():
    assert torch.equal(load("synthetic-er:20:0").edge_index, load("synthetic-er").edge_index)
    assert not torch.equal(load("synthetic-er:20:1").y, load("synthetic-er").y)
    assert load("synthetic-er:10").x.shape == (10_000, 9)
    assert load("synthetic-er:100").x.shape == (100_000, 9)
    for bad in ("9", "501", "x", "20:x", "20:1:2", "-20", "1e2"):
        assert "from 10 to 500" in refused(load, f"synthetic-er:{bad}")


def write(folder, **parts):
    """The files of a TU data set called after its folder."""
    raw = folder / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    for part, lines in parts.items():
        (raw / f"{folder.name}_{part}.txt").write_text("".join(f"{line}\n" for line in lines))


TINY = dict(
    A=["1, 2", "2, 1", "2, 2", "4, 5", "5, 4", "5, 4"],
    graph_indicator=[1, 1, 1, 3, 3],
    graph_labels=[7, -1, 7, -1],
    node_labels=[4, 6, 4, 4, 9],
    node_attributes=["0.5, 1", "0, 2", "0, 3", "1e3, 4", "-1, 5"],
    edge_labels=[0, 0, 1, 1, 1, 1],
)


def test_tu_files_are_read_with_empty_graphs_anywhere(root):
    write(root / "TINY", **TINY)
    data = load("tu:TINY", root=root)
    assert data.num_graphs == 4
    assert data.y.tolist() == [1, 0, 1, 0]
    assert data.class_names == ["-1", "7"]
    assert data.batch.tolist() == [0, 0, 0, 2, 2]
    assert data.x[:, :2].tolist() == [[0.5, 1], [0, 2], [0, 3], [1000, 4], [-1, 5]]
    assert data.x[:, 2:].argmax(1).tolist() == [0, 1, 0, 0, 2]
    assert data.edge_index.tolist() == [[0, 1, 3, 4], [1, 0, 4, 3]]  # no loops, no repeats
    assert data.edge_attr.tolist() == [[1, 0], [1, 0], [0, 1], [0, 1]]
    assert [len(each.x) for each in separated(data)] == [3, 0, 2, 0]


def test_tu_files_without_features(root):
    write(root / "BARE", **{key: TINY[key] for key in ("A", "graph_indicator", "graph_labels")})
    data = load("tu:BARE", root=root)
    assert data.x.tolist() == [[1.0]] * 5
    assert "edge_attr" not in data


TU_FAULTS = {
    "cut short": (dict(graph_indicator=[1, 1]), "cannot be read"),
    "no number": (dict(A=["1, x"]), "cannot be read"),
    "no graph": (dict(graph_indicator=[1, 1, 1, 3, 9]), "'batch'.*8 at node 4"),
    "graph 0": (dict(graph_indicator=[0, 1, 1, 3, 3]), "'batch'.*-1 at node 0"),
    "edge out": (dict(A=["1, 9"], edge_labels=[0]), "0 -> 8"),
    "between": (dict(A=["1, 4"], edge_labels=[0]), "0 -> 3 from graph 0 to 2"),
    "rows": (dict(node_labels=[1, 2]), "2 rows of node_labels"),
    "two labels": (dict(graph_labels=["1, 2", "1, 1", "1, 2", "2, 2"]), "cannot be read"),
    "empty": (dict(A=[]), "cannot be read"),
    "NaN": (dict(node_attributes=["nan"] + ["1"] * 4), "'x'.*nan"),
}


@pytest.mark.parametrize("fault", TU_FAULTS)
def test_damaged_tu_files_are_one_line(root, fault):
    changes, message = TU_FAULTS[fault]
    write(root / "TINY", **{**TINY, **changes})
    with pytest.raises(InvalidInputError, match=message):
        load("tu:TINY", root=root)
    assert "tu:TINY" in refused(load, "tu:TINY", root=root)


def test_tu_names_classes_and_downloads(root, tmp_path, serve):
    for bad in ("tu", "tu:", "tu:../x", "tu:a/b", "tu:.."):
        assert "tu:MUTAG" in refused(load, bad, root=root)
    assert "could not be downloaded" in refused(load, "tu:TINY", root=root)
    write(tmp_path / "TINY", **TINY)
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        for path in (tmp_path / "TINY" / "raw").iterdir():
            file.write(path, f"TINY/{path.name}")
    asked = serve(lambda url: archive.getvalue())
    for _ in range(2):
        assert load("tu:TINY", root=root).num_graphs == 4
    assert asked == ["https://www.chrsmrrs.com/graphkerneldatasets/TINY.zip"]
    assert not list(root.iterdir())
    write(root / "REAL", A=["1, 2"], graph_indicator=[1, 1], graph_attributes=[0.5])
    assert "classes" in refused(load, "tu:REAL", root=root)


def test_real_mutag_is_what_pyg_reads(tmp_path, real):
    from torch_geometric.datasets import TUDataset

    folder = real("MUTAG")
    shutil.copytree(folder / "raw", tmp_path / "MUTAG" / "raw")
    theirs = TUDataset(str(tmp_path), "MUTAG")
    mine, joined = load("tu:MUTAG", root=folder.parent), collated(theirs)
    for name in ("x", "edge_index", "edge_attr", "batch", "y"):
        assert torch.equal(mine[name], joined[name])
    assert (mine.num_graphs, mine.num_classes) == (188, 2)


def test_fingerprint_merges_classes_and_leaves_out_the_rest(root):
    labels = [0, 9, 5, 11, 4, 7, 12, 2, 3, 6, 1, 8, 10, 13, 14, 0]
    nodes = list(range(1, 16))  # the last graph is empty
    write(
        root / "Fingerprint",
        A=["1, 1"],
        edge_attributes=["0, 0"],
        graph_indicator=nodes,
        graph_labels=labels,
        node_attributes=[f"{128 + 64 * n}, 64" for n in range(15)],
    )
    data = load("fingerprint", root=root)
    assert data.y.tolist() == [0, 0, 1, 1, 2, 2, 2, 3, 3, 3]
    assert data.class_names == ["L", "R", "W", "A"]
    assert data.x.tolist() == [[n, -1] for n in range(10)]
    assert data.pos[1].tolist() == [192, 64]
    write(root / "Fingerprint", node_attributes=["1"] * 15)
    assert "not x and y" in refused(load, "fingerprint", root=root)


def test_real_fingerprint_has_the_papers_counts(real):
    root = real("Fingerprint").parent
    before = {path: path.lstat().st_mtime_ns for path in (root / "Fingerprint").rglob("*")}
    data = load("fingerprint", root=root)
    assert {path: path.lstat().st_mtime_ns for path in (root / "Fingerprint").rglob("*")} == before
    assert (data.num_graphs, len(data.x)) == (1900, 14_387)
    assert len(data.x) / data.num_graphs == pytest.approx(7.57, abs=0.005)
    assert torch.bincount(data.y).tolist() == [541, 526, 544, 289]
    assert int(torch.bincount(data.batch, minlength=1900).min()) >= 1
    # The file's angle is that of the edge, up to its direction: edge geometry can use pos.
    dx, dy = (data.pos[data.edge_index[1]] - data.pos[data.edge_index[0]]).unbind(1)
    angle = data.edge_attr[:, 1]
    assert torch.allclose(torch.atan2(dy, dx).mul(2).cos(), angle.mul(2).cos(), atol=1e-4)
    everything = load("tu:Fingerprint", root=root)
    assert everything.num_graphs == 2800
    assert int((torch.bincount(everything.batch, minlength=2800) == 0).sum()) == 651
    checked(split(data))


def csv(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt") as file:
        pd.DataFrame(rows).to_csv(file, header=False, index=False)


ATOMS = [[5, 0, 4, 5, 2, 0, 2, 0, 1], [118, 4, 11, 11, 9, 5, 5, 1, 0], [0] * 9, [7] + [0] * 8]


def write_molecules(base, **changes):
    rows = {
        "raw/node-feat": [*ATOMS, [1] + [0] * 8],
        "raw/edge": [(0, 1), (1, 0)],
        "raw/edge-feat": [(0, 5, 1), (4, 0, 0)],
        "raw/num-node-list": [2, 2, 1],
        "raw/num-edge-list": [1, 1, 0],
        "raw/graph-label": [1, 0, 1],
        "split/scaffold/train": [0],
        "split/scaffold/valid": [2],
        "split/scaffold/test": [1],
        **changes,
    }
    for name, content in rows.items():
        csv(base / f"{name}.csv.gz", content)


def test_molecules_are_read_with_ogbs_lists_and_split(root):
    write_molecules(root / "ogbg_molbace")
    data = checked(load("molbace", root=root), labels=False)
    assert data.x.shape == (5, 174)
    assert data.x.sum(1).tolist() == [9] * 5
    starts = np.cumsum([0, *ATOM.values()])[:-1]
    assert data.x[0].nonzero().flatten().tolist() == (starts + ATOMS[0]).tolist()
    assert data.x[1].nonzero().flatten().tolist() == (starts + ATOMS[1]).tolist()
    assert data.edge_index.tolist() == [[0, 3, 1, 2], [1, 2, 0, 3]]
    assert data.edge_attr.shape == (4, 13)
    assert data.edge_attr[0].nonzero().flatten().tolist() == [0, 5 + 5, 11 + 1]
    assert data.y.tolist() == [1, 0, 1]
    assert [data[mask].nonzero().flatten().tolist() for mask in MASKS] == [[0], [2], [1]]


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"raw/node-feat": [[119] + [0] * 8] * 5}, "atomic number 119 in row 1"),
        ({"raw/node-feat": ATOMS[:3]}, "codes of shape"),
        ({"raw/edge": [(0, 2), (1, 0)]}, "not in the molecule"),
        ({"raw/num-node-list": [2]}, "1 sizes"),
        ({"split/scaffold/train": [9]}, "cannot be read"),
        ({"split/scaffold/test": [2]}, "graph 2 in both"),
        ({"raw/graph-label": [1, 0, 5]}, "5 at graph 2"),
        ({"raw/edge-feat": [(0, 6, 1), (0, 0, 0)]}, "stereo 6 in row 1"),
    ],
)
def test_damaged_molecules_are_one_line(root, changes, message):
    write_molecules(root / "ogbg_molbace", **changes)
    assert message in refused(load, "molbace", root=root)


def test_absent_molecules_are_asked_for_where_ogb_has_them(root, serve):
    asked = serve(lambda url: b"no zip")
    assert "could not be downloaded" in refused(load, "molbace", root=root)
    assert asked == ["https://snap.stanford.edu/ogb/data/graphproppred/csv_mol_download/bace.zip"]


def test_the_lists_are_ogbs():
    features = pytest.importorskip("ogb.utils.features", reason="ogb is not installed")
    assert list(ATOM.values()) == features.get_atom_feature_dims()
    assert list(BOND.values()) == features.get_bond_feature_dims()


def test_real_molecules_have_ogbs_counts(real):
    data = checked(load("molbace", root=real("ogbg_molbace").parent))
    assert (data.num_graphs, data.x.shape) == (1513, (51_577, 174))
    assert data.edge_index.shape[1] == 2 * 55_768
    assert data.is_undirected()
    assert [int(data[mask].sum()) for mask in MASKS] == [1210, 151, 152]
    assert torch.bincount(data.y).tolist() == [822, 691]


def test_entries_of_graphs_say_so():
    kinds = {name: entry.record for name, entry in CATALOG.items()}
    assert {name for name, kind in kinds.items() if kind == "graph"} == {
        "synthetic-er", "fingerprint", "molbace", "ecg", "tu",
    }  # fmt: skip
    assert set(kinds.values()) == {"node", "graph"}
    for entry in CATALOG.values():
        assert entry.num_graphs is None or entry.record == "graph"


# --- A user's own ---------------------------------------------------------------------------------

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
    assert sorted(data.keys()) == ["batch", "directed", "edge_index", "num_graphs", "x"]


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
    data = split(collated(listed, num_classes=2), (0.5, 0, 0.5))
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
