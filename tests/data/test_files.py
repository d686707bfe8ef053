"""A user's own files: read right, or refused in one line, and never run."""

import os
import time

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.data import Data

from graphveil._errors import InvalidInputError
from graphveil.data import load
from graphveil.data.files import read

NODES = "id,label,split,age,posts\nann,red,train,31,12\nbob,blue,val,27,3.5\ncat,,test,44,0\n"
EDGES = "source,target\nann,bob\ncat,ann\n"


def tables(folder, nodes=NODES, edges=EDGES):
    for name, text in (("nodes.csv", nodes), ("edges.csv", edges)):
        mode = "wb" if isinstance(text, bytes) else "w"
        with open(folder / name, mode) as file:
            file.write(text)
    return folder


def refusal(path, **options):
    with pytest.raises(InvalidInputError) as caught:
        read(path, **options)
    message = str(caught.value)
    assert "\n" not in message
    assert str(path) in message
    return message


def pairs(data):
    return sorted(map(tuple, data.edge_index.t().tolist()))


def test_tables_are_read_as_documented(tmp_path):
    data = load(tables(tmp_path), classes="public")
    assert data.x.tolist() == [[31, 12], [27, 3.5], [44, 0]]
    assert data.x.dtype == torch.float32
    assert pairs(data) == [(0, 1), (0, 2), (1, 0), (2, 0)]
    assert data.y.tolist() == [1, 0, -1]
    assert data.class_names == ["blue", "red"]
    assert data.num_classes == 2
    assert (data.columns, data.directed) == (["age", "posts"], False)
    assert data.train_mask.tolist() == [True, False, False]
    assert data.val_mask.tolist() == [False, True, False]
    assert data.test_mask.tolist() == [False, False, True]


def test_directed_edges_are_kept_as_given(tmp_path):
    data = load(str(tables(tmp_path)), directed=True, classes="public")
    assert (pairs(data), data.directed) == ([(0, 1), (2, 0)], True)


def test_a_friendship_told_twice_is_one(tmp_path):
    data = read(tables(tmp_path, edges=EDGES + "bob,ann\nann,bob\n"), classes="public")
    assert pairs(data) == [(0, 1), (0, 2), (1, 0), (2, 0)]


def test_labels_and_split_may_be_missing_and_edges_may_be_none(tmp_path):
    data = read(tables(tmp_path, "id,a\n1,2\n2,3\n", "source,target\n"))
    assert sorted(data.keys()) == ["columns", "directed", "edge_index", "ids", "x"]
    assert data.edge_index.shape == (2, 0)


def test_whole_numbers_are_class_numbers_and_an_empty_cell_is_unlabelled(tmp_path):
    nodes = "id,label,a\n1,2,0\n2,,0\n3,0,0\n4,-1,0\n"
    data = read(tables(tmp_path, nodes, "source,target\n1,2\n"), classes=3)
    assert (data.y.tolist(), data.num_classes) == ([2, -1, 0, -1], 3)
    assert "class_names" not in data


def test_ids_and_names_are_taken_literally(tmp_path):
    nodes = "id,label,a\n01,NA,1\n1,None,2\n1e0,nan,3\n"
    folder = tables(tmp_path, nodes, "source,target\n01,1e0\n")
    data = read(folder, directed=True, classes=["NA", "None", "nan"])
    assert pairs(data) == [(0, 2)]
    assert data.class_names == ["NA", "None", "nan"]


def test_quotes_commas_and_a_byte_order_mark(tmp_path):
    nodes = '\ufeffid,a\n"Doe, Jane",1\nÅsa,2\n'.encode()
    edges = '\ufeffsource,target\n"Doe, Jane",Åsa\n'.encode()
    assert pairs(read(tables(tmp_path, nodes, edges))) == [(0, 1), (1, 0)]


def test_further_edge_columns_are_left_alone(tmp_path):
    data = read(tables(tmp_path, edges="since,source,target\n2004,ann,bob\n"), classes="public")
    assert pairs(data) == [(0, 1), (1, 0)]


FAULTS = {
    "no id column": (NODES.replace("id,", "name,", 1), EDGES, "nodes.csv.*'id'"),
    "no target column": (NODES, EDGES.replace("target", "to"), "edges.csv.*'target'"),
    "empty nodes": ("", EDGES, "nodes.csv.*empty"),
    "empty edges": (NODES, "", "edges.csv.*empty"),
    "header only": ("id,a\n", EDGES, "nodes.csv has no rows"),
    "no feature": ("id,label\n1,0\n", EDGES, "nodes.csv.*feature"),
    "column twice": ("id,a,a\n1,2,3\n", EDGES, "'a' more than once"),
    "duplicate id": (NODES + "ann,red,train,1,1\n", EDGES, "'id'.*'ann' in row 4"),
    "id missing": (NODES + ",red,train,1,1\n", EDGES, "'id'.*empty cell in row 4"),
    "text feature": (NODES.replace("27", "old"), EDGES, "'age'.*'old' in row 2"),
    "feature missing": (NODES.replace("27", ""), EDGES, "'age'.*empty cell in row 2"),
    "infinite feature": (NODES.replace("27", "inf"), EDGES, "'age'.*inf in row 2"),
    "NaN feature": (NODES.replace("27", "nan"), EDGES, "'age'.*nan.* in row 2"),
    "unknown split": (NODES.replace("val", "dev"), EDGES, "'split'.*'dev' in row 2"),
    "absent node": (NODES, EDGES + "bob,dan\n", "edges.csv.*'target'.*'dan' in row 3"),
    "absent source": (NODES, EDGES + "dan,bob\n", "edges.csv.*'source'.*'dan' in row 3"),
    "half an edge": (NODES, EDGES + "bob", "edges.csv.*'target'.*empty cell in row 3"),
    "years as labels": (NODES.replace("red", "2004").replace("blue", "2005"), EDGES, "2004"),
    "line too long": (NODES + "dan,red,train,1,1,9\n", EDGES, "nodes.csv cannot be read.*line 5"),
    "all too long": ("id,a\n1,2,3\n2,3,4\n", EDGES, "nodes.csv cannot be read"),
    "garbled": (
        b"id,a\n\xff\xfe\x00\x81,1\n",
        EDGES,
        "nodes.csv cannot be read.*byte 0xff",
    ),
    "open quote": ('id,a\n"ann,1\n', EDGES, "nodes.csv"),
    "unlabelled in training": (NODES.replace("red", ""), EDGES, "'y'.*node 0"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_bad_tables_get_one_line_that_names_the_place(tmp_path, fault):
    nodes, edges, message = FAULTS[fault]
    with pytest.raises(InvalidInputError, match=message) as caught:
        read(tables(tmp_path, nodes, edges), classes="public")
    assert "\n" not in str(caught.value)


def test_a_folder_needs_each_table_once(tmp_path):
    assert "neither" in refusal(tmp_path)
    tables(tmp_path)
    (tmp_path / "nodes.parquet").write_bytes(b"x")
    assert "both" in refusal(tmp_path)


def test_parquet_and_csv_agree_and_mix(tmp_path):
    pytest.importorskip("pyarrow")
    frame = pd.DataFrame(
        {"id": [7, 8, 9], "label": ["b", None, "a"], "u": [1, 2, 3], "v": [True, False, True]}
    )
    links = pd.DataFrame({"source": [7, 9], "target": [8, 7]})
    results = []
    for ends in (("csv", "csv"), ("csv", "parquet"), ("parquet", "csv"), ("parquet", "parquet")):
        folder = tmp_path / "-".join(ends)
        folder.mkdir()
        for table, stem, end in zip((frame, links), ("nodes", "edges"), ends, strict=True):
            if end == "csv":
                table.to_csv(folder / f"{stem}.csv", index=False)
            else:
                table.to_parquet(folder / f"{stem}.parquet")
        results.append(read(folder, classes="public"))
    for data in results:
        assert data.x.tolist() == [[1, 1], [2, 0], [3, 1]]
        assert pairs(data) == [(0, 1), (0, 2), (1, 0), (2, 0)]
        assert data.y.tolist() == [1, -1, 0]


def test_a_truncated_parquet_file_is_one_line(tmp_path):
    pytest.importorskip("pyarrow")
    pd.DataFrame({"id": range(99), "a": 1.0}).to_parquet(tmp_path / "nodes.parquet")
    whole = (tmp_path / "nodes.parquet").read_bytes()
    (tmp_path / "nodes.parquet").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "edges.csv").write_text("source,target\n")
    with pytest.raises(InvalidInputError, match=r"nodes\.parquet cannot be read"):
        read(tmp_path)


NAMES = st.text(st.characters(codec="utf-8", exclude_categories=["C"]), min_size=1, max_size=6)


@settings(max_examples=40, deadline=None)
@given(
    ids=st.lists(NAMES, min_size=2, max_size=12, unique=True),
    draws=st.lists(st.tuples(st.integers(0, 99), st.integers(0, 99)), max_size=20),
)
def test_any_ids_written_by_pandas_come_back(tmp_path_factory, ids, draws):
    folder = tmp_path_factory.mktemp("ids")
    edges = [(a % len(ids), b % len(ids)) for a, b in draws]
    pd.DataFrame({"id": ids, "a": 0.5}).to_csv(folder / "nodes.csv", index=False)
    named = [(ids[a], ids[b]) for a, b in edges]
    pd.DataFrame(named, columns=["source", "target"]).to_csv(folder / "edges.csv", index=False)
    assert pairs(read(folder, directed=True)) == sorted(edges)


def test_large_tables_are_read_without_a_loop_over_rows(tmp_path):
    count, edges = 100_000, 500_000
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"id": [f"u{i}" for i in range(count)], "a": rng.random(count)})
    frame.to_csv(tmp_path / "nodes.csv", index=False)
    ends = frame["id"].to_numpy()[rng.integers(count, size=(edges, 2))]
    pd.DataFrame(ends, columns=["source", "target"]).to_csv(tmp_path / "edges.csv", index=False)
    start = time.process_time()
    assert read(tmp_path, directed=True).num_edges == edges
    assert time.process_time() - start < 10  # about 1 second


def arrays():
    return dict(
        x=np.arange(6.0).reshape(3, 2),
        edge_index=np.array([[0, 1], [1, 2]], dtype=np.int32),
        y=np.array([0, 1, 0], dtype=np.uint8),
        train_mask=np.array([True, True, False]),
        val_mask=np.array([False, False, False]),
        test_mask=np.array([False, False, True]),
    )


def test_npz_is_read_with_pygs_types(tmp_path):
    np.savez(tmp_path / "g.npz", num_classes=4, **arrays())
    data = load(tmp_path / "g.npz")
    assert (data.x.dtype, data.edge_index.dtype, data.y.dtype) == (
        torch.float32,
        torch.long,
        torch.long,
    )
    assert pairs(data) == [(0, 1), (1, 2)]
    assert data.num_classes == 4
    assert data.test_mask.tolist() == [False, False, True]


def test_npz_with_missing_unknown_or_bad_arrays(tmp_path):
    path = tmp_path / "g.npz"
    np.savez(path, x=arrays()["x"])
    assert "no 'edge_index'" in refusal(path)
    np.savez(path, **arrays(), train_masks=np.zeros(3))
    assert "'train_masks'" in refusal(path)
    np.savez(path, **{**arrays(), "edge_index": np.array([[0], [9]])})
    assert "0 -> 9" in refusal(path)
    np.savez(path, **{**arrays(), "x": np.array([["a"], ["b"], ["c"]])})
    assert "numbers" in refusal(path)


class Bomb:
    """What a hostile pickle does when it is loaded: make a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_pickled_objects_in_an_npz_do_not_run(tmp_path):
    bomb = np.array([Bomb(tmp_path / "ran")], dtype=object)
    np.savez(tmp_path / "g.npz", **{**arrays(), "y": bomb})
    assert "could run its code" in refusal(tmp_path / "g.npz")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("new_format", [False, True])
def test_a_hostile_pt_file_does_not_run(tmp_path, inside, new_format):
    bomb = Bomb(tmp_path / "ran")
    held = Data(x=torch.ones(2, 1), edge_index=torch.zeros(2, 1).long(), y=bomb) if inside else bomb
    path = tmp_path / "g.pt"
    torch.save(held, path, _use_new_zipfile_serialization=new_format)
    assert "could run its code" in refusal(path)
    assert not (tmp_path / "ran").exists()
    torch.load(path, weights_only=False)  # the bomb is a real one
    assert (tmp_path / "ran").exists()


def test_a_saved_data_comes_back(tmp_path):
    data = Data(**{k: torch.from_numpy(v) for k, v in arrays().items()})
    data.edge_index, data.x, data.y = data.edge_index.long(), data.x.float(), data.y.long()
    data.num_classes, data.class_names = 2, ["a", "b"]
    torch.save(data, tmp_path / "g.pt")
    back = load(tmp_path / "g.pt")
    assert back.to_dict().keys() == data.to_dict().keys()
    assert torch.equal(back.x, data.x)
    assert back.class_names == ["a", "b"]


def test_reading_a_pt_file_allows_nothing_afterwards(tmp_path):
    before = set(torch.serialization.get_safe_globals())
    torch.save(Data(x=torch.ones(2, 1), edge_index=torch.zeros(2, 1).long()), tmp_path / "g.pt")
    read(tmp_path / "g.pt")
    assert set(torch.serialization.get_safe_globals()) == before


def test_pt_files_of_something_else_are_refused(tmp_path):
    path = tmp_path / "g.pt"
    torch.save({"x": torch.ones(2, 1)}, path)
    assert "not a torch_geometric.data.Data" in refusal(path)
    torch.save(Data(x=torch.ones(2, 1)), path)
    assert "no 'edge_index'" in refusal(path)
    torch.save(Data(x=torch.ones(2, 1).long(), edge_index=torch.zeros(2, 1).long()), path)
    assert "'x'" in refusal(path)


@pytest.mark.parametrize("name", ["g.npz", "g.pt"])
@pytest.mark.parametrize("keep", [0.0, 0.3, 0.9])
def test_truncated_archives_are_one_line(tmp_path, name, keep):
    path = tmp_path / name
    if name == "g.npz":
        np.savez(path, **arrays())
    else:
        torch.save(Data(x=torch.ones(50, 9), edge_index=torch.zeros(2, 9).long()), path)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(keep * len(whole))])
    assert "cannot be read" in refusal(path)


@settings(max_examples=30, deadline=None)
@given(st.binary(max_size=200), st.sampled_from(["g.npz", "g.pt"]))
def test_noise_is_refused_and_nothing_else_is_raised(tmp_path_factory, noise, name):
    path = tmp_path_factory.mktemp("noise") / name
    path.write_bytes(noise)
    with pytest.raises(InvalidInputError):
        read(path)


def test_unknown_endings_and_absent_paths(tmp_path):
    (tmp_path / "g.txt").write_text("")
    assert "'.txt'" in refusal(tmp_path / "g.txt")
    assert "no file or directory" in refusal(tmp_path / "absent.npz")


def test_a_column_of_nodes_may_be_called_source(tmp_path):
    (tmp_path / "nodes.csv").write_text("id,source\na,1.5\nb,2\n")
    (tmp_path / "edges.csv").write_text("source,target,since\na,b,2001\n")
    data = read(tmp_path)
    assert (data.x.tolist(), data.columns) == ([[1.5], [2.0]], ["source"])
