"""Sets of graphs by name: synthetic ones, TU files, fingerprints and molecules."""

import gzip
import io
import math
import shutil
import zipfile

import numpy as np
import pandas as pd
import pytest
import torch

from graphveil._errors import InvalidInputError
from graphveil.data import CATALOG, load, sizes_of
from graphveil.data.graph_sets import ATOM, BOND
from graphveil.graph.checks import MASKS, check
from graphveil.graph.collate import collate, uncollate
from graphveil.graph.splits import split


def refused(call, *args, **options):
    with pytest.raises(InvalidInputError) as caught:
        call(*args, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_the_synthetic_set_is_as_described():
    data = check(load("synthetic-er"))
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
    assert [len(each.x) for each in uncollate(data)] == [3, 0, 2, 0]


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
    mine, joined = load("tu:MUTAG", root=folder.parent), collate(theirs)
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
    assert data.y.tolist() == [0, 0, 1, 1, 2, 3, 3, 3, 3]
    assert data.class_names == ["L", "R", "W", "A"]
    assert data.x[:, 0].tolist() == [0, 1, 2, 3, 4, 7, 8, 9, 12]
    assert data.pos[1].tolist() == [192, 64]
    whorls = load("fingerprint:whorls", root=root)
    assert whorls.y.tolist() == [0, 0, 1, 1, 2, 2, 2, 3, 3, 3]
    assert whorls.x.tolist() == [[n, -1] for n in range(10)]
    assert "':whorls'" in refused(load, "fingerprint:all", root=root)
    write(root / "Fingerprint", node_attributes=["1"] * 15)
    assert "not x and y" in refused(load, "fingerprint", root=root)


def test_real_fingerprint_has_the_papers_counts(real):
    root = real("Fingerprint").parent
    before = {path: path.lstat().st_mtime_ns for path in (root / "Fingerprint").rglob("*")}
    data = load("fingerprint", root=root)
    assert {path: path.lstat().st_mtime_ns for path in (root / "Fingerprint").rglob("*")} == before
    assert (data.num_graphs, len(data.x)) == (1900, 14_347)
    assert len(data.x) / data.num_graphs == pytest.approx(7.55, abs=0.005)
    assert torch.bincount(data.y).tolist() == [541, 526, 538, 295]
    assert int(torch.bincount(data.batch, minlength=1900).min()) >= 1
    # The file's angle is that of the edge, up to its direction: edge geometry can use pos.
    dx, dy = (data.pos[data.edge_index[1]] - data.pos[data.edge_index[0]]).unbind(1)
    angle = data.edge_attr[:, 1]
    assert torch.allclose(torch.atan2(dy, dx).mul(2).cos(), angle.mul(2).cos(), atol=1e-4)
    everything = load("tu:Fingerprint", root=root)
    assert everything.num_graphs == 2800
    assert int((torch.bincount(everything.batch, minlength=2800) == 0).sum()) == 651
    check(split(data))


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
    data = check(load("molbace", root=root), labels=False)
    assert data.x.shape == (5, 174)
    assert data.x.sum(1).tolist() == [9] * 5
    starts = np.cumsum([0, *ATOM.values()])[:-1]
    assert data.x[0].nonzero().flatten().tolist() == (starts + ATOMS[0]).tolist()
    assert data.x[1].nonzero().flatten().tolist() == (starts + ATOMS[1]).tolist()
    assert data.edge_index.tolist() == [[0, 3, 1, 2], [1, 2, 0, 3]]
    assert data.edge_attr.shape == (4, 13)
    assert data.edge_attr[0].nonzero().flatten().tolist() == [0, 5 + 5, 11 + 1]
    assert data.y.tolist() == [1, 0, 1]
    codes = load("molbace:codes", root=root)
    assert codes.x[:4].tolist() == ATOMS
    assert torch.equal(codes.edge_attr, data.edge_attr)
    assert sizes_of("molbace:codes").num_features == 9
    assert "':codes'" in refused(load, "molbace:raw", root=root)
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
    data = check(load("molbace", root=real("ogbg_molbace").parent))
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
    assert set(kinds.values()) == {"node", "graph", "link"}
    for entry in CATALOG.values():
        assert entry.num_graphs is None or entry.record == "graph"
