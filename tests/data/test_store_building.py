"""A store holds what the in-memory reader gives, bit for bit, whatever it was built from."""

import gzip
import os
import stat
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from store_cases import contents, frames, same, write_tables
from torch_geometric.data import Data

import graphveil.data.store_building as building
import graphveil.data.store_edges as store_edges
import graphveil.data.store_index as store_index
import graphveil.data.store_sources as store_sources
import graphveil.data.store_tables as store_tables
from graphveil.data import load
from graphveil.data.class_list import Notice
from graphveil.data.store_building import build_store, parse_memory
from graphveil.data.store_format import Manifest

pa = pytest.importorskip("pyarrow", reason="stores of tables need pyarrow")
pytestmark = pytest.mark.filterwarnings("ignore::graphveil.data.class_list.Notice")


@pytest.fixture
def out(tmp_path):
    return tmp_path / "graph.store"


@pytest.fixture
def small_parts(monkeypatch):
    """Parts of a few rows, so that tables have many."""
    monkeypatch.setattr(store_sources.TableSource, "_node_rows", lambda *a: 7)
    monkeypatch.setattr(store_sources, "_edge_rows", lambda memory: 11)
    monkeypatch.setattr(store_tables, "_BLOCK", 700)
    monkeypatch.setattr(store_index, "_PIECE", 5)
    monkeypatch.setattr(store_edges, "LEAST_SENDERS", 9)


# --- every kind of source -------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize("text", [True, False], ids=["names", "numbers"])
@pytest.mark.parametrize("directed", [True, False])
def test_tables(tmp_path, out, small_parts, kind, text, directed):
    folder = write_tables(tmp_path / "tables", *frames(text=text), kind)
    build_store(folder, out, directed=directed)
    same(out, load(folder, directed=directed))


def test_ids_that_are_places_need_no_index(tmp_path, out, small_parts, monkeypatch):
    monkeypatch.setattr(store_index, "build_index", None)
    nodes, _ = frames()
    nodes["id"] = np.arange(len(nodes))
    edges = pd.DataFrame({"source": [5, 4, 59], "target": [0, 5, 58]})
    folder = write_tables(tmp_path / "tables", nodes, edges)
    build_store(folder, out)
    same(out, load(folder))


@pytest.mark.parametrize(
    "ids",
    [
        ["1", "01", "+1", "-1", "1.0", "a", " a", "", "ä" * 40],
        ["0", "-5", "999999999999999999", "7"],
        ["9223372036854775807", "92233720368547758079", "x", "-9223372036854775808"],
        ["12345678", "123456789", "12345678a", "1234567\0", "1234567"],
    ],
)
def test_ids_are_kept_as_written(tmp_path, out, small_parts, ids):
    ids = [name for name in ids if name and "\0" not in name]
    nodes = pd.DataFrame({"id": ids, "a": range(len(ids))})
    edges = pd.DataFrame({"source": ids, "target": [ids[0], *ids[:-1]]})
    folder = write_tables(tmp_path / "tables", nodes, edges)
    build_store(folder, out)
    same(out, load(folder))


def test_numbers_and_texts_meet(tmp_path, out):
    """A table of numbers, and one that writes the same ids as text."""
    nodes = pd.DataFrame({"id": [3, -1, 12], "a": [1, 2, 3]})
    edges = pd.DataFrame({"source": ["3", "12"], "target": ["-1", "3"]})
    folder = write_tables(tmp_path / "tables", nodes, edges, "parquet")
    build_store(folder, out)
    same(out, load(folder))


def test_ids_that_become_text_in_a_later_part(tmp_path, out, small_parts):
    ids = [*map(str, range(30)), "x", *map(str, range(30, 40))]
    nodes = pd.DataFrame({"id": ids, "a": range(41)})
    edges = pd.DataFrame({"source": ids[:-1], "target": ids[1:]})
    folder = write_tables(tmp_path / "tables", nodes, edges)
    build_store(folder, out)
    same(out, load(folder))


def test_tables_in_parts_are_read_in_the_order_of_their_numbers(tmp_path, out):
    nodes, edges = frames()
    whole = write_tables(tmp_path / "whole", nodes, edges, "parquet")
    (parts := tmp_path / "parts").mkdir()
    for part in range(12):
        nodes[part * 5 : part * 5 + 5].to_parquet(parts / f"nodes-{part}.parquet")
        edges[part * 25 : part * 25 + 25].to_parquet(parts / f"edges-{part}.parquet")
    build_store(parts, out)
    same(out, load(whole))


SCHEMA = """
unit = "person"
empty = ["?"]
[columns.age]
kind = "number"
low = 0
high = 50
[columns.weight]
kind = "number"
low = -3
high = 3
optional = true
[columns.words]
kind = "text"
buckets = {buckets}
[label]
column = "label"
task = "multiclass"
classes = ["red", "green", "blue"]
"""


@pytest.mark.parametrize("buckets", [16, 5000], ids=["dense", "sparse"])
@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_schema_is_applied_row_by_row(tmp_path, out, small_parts, kind, buckets):
    nodes, edges = frames()
    nodes["words"] = [f"word{i} and word{i * i}" for i in range(60)]
    nodes.loc[[3, 40], "weight"] = np.nan
    folder = write_tables(tmp_path / "tables", nodes, edges, kind)
    (folder / "schema.toml").write_text(SCHEMA.format(buckets=buckets))
    (folder / "public.txt").write_text("the words of the vocabulary\n")
    with pytest.warns(Notice) as notices:
        build_store(folder, out)
    with pytest.warns(Notice) as expected:
        data = load(folder)
    manifest = same(out, data)
    assert manifest.sparse == (buckets > 16)
    texts = {str(notice.message) for notice in notices}
    assert texts == {str(notice.message) for notice in expected}
    assert any("were cut to it" in text for text in texts)


@pytest.mark.parametrize("task", ["regression", "multilabel"])
def test_other_tasks(tmp_path, out, small_parts, task):
    nodes, edges = frames()
    nodes["height"], nodes["tags"] = np.linspace(0, 2, 60), ["a;b", "b", "", "none"] * 15
    nodes.loc[5, "height"] = np.nan
    schema = {"columns": {"age": {"kind": "number", "low": 0, "high": 99}}}
    ignored = {"weight", "height", "tags", "label"}
    nodes["split"] = None
    if task == "regression":
        schema["label"] = {"column": "height", "task": task, "low": 0, "high": 1.5}
        ignored -= {"height"}
    else:
        tags = {"labels": ["a", "b"], "separator": ";", "none": "none"}
        schema["label"] = {"column": "tags", "task": task, **tags}
        ignored -= {"tags"}
    schema["columns"] |= {name: {"kind": "ignored"} for name in ignored}
    folder = write_tables(tmp_path / "tables", nodes, edges)
    build_store(folder, out, schema=schema)
    same(out, load(folder, schema=schema))


@pytest.mark.parametrize(
    "labels, classes",
    [
        (["b", "a", None], None),
        (["b", "a", None], "public"),
        (["b", "a", "b"], ["a", "b", "c"]),
        ([2, 0, 1], None),
        ([2.0, None, 0.0], 3),
        ([2, -1, -7], 3),
        (["1", "0", ""], ["no", "yes"]),
        ([True, False, True], "public"),
        ([True, False, None], "public"),
        ([None, None, None], 3),
    ],
)
@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_labels_mean_what_they_mean_in_memory(tmp_path, out, small_parts, kind, labels, classes):
    nodes = pd.DataFrame({"id": range(60), "a": 1.0, "label": labels * 20})
    edges = pd.DataFrame({"source": [1], "target": [0]})
    folder = write_tables(tmp_path / "tables", nodes, edges, kind)
    build_store(folder, out, classes=classes)
    same(out, load(folder, classes=classes))


def as_reader(table):
    return pa.Table.from_pandas(table, preserve_index=False).to_reader(max_chunksize=13)


def as_batches(table):
    yield from pa.Table.from_pandas(table, preserve_index=False).to_batches(max_chunksize=13)


def as_polars(table):
    return pytest.importorskip("polars").from_pandas(table)


@pytest.mark.parametrize("convert", [as_reader, as_batches, as_polars, lambda table: table])
def test_tables_in_memory(out, small_parts, convert):
    nodes, edges = frames()
    build_store(nodes=convert(nodes), edges=convert(edges), out=out)
    same(out, load(nodes=nodes, edges=edges))


def test_queries_of_duckdb(tmp_path, out, small_parts):
    duckdb = pytest.importorskip("duckdb", reason="queries need duckdb")
    nodes, edges = frames()
    with duckdb.connect(str(tmp_path / "graph.db")) as connection:
        connection.execute("CREATE TABLE people AS SELECT * FROM nodes")
        connection.execute("CREATE TABLE ties AS SELECT * FROM edges")
    queries = "nodes=SELECT%20*%20FROM%20people&edges=SELECT+source,target+FROM+ties;"
    build_store(f"duckdb://{tmp_path / 'graph.db'}?{queries}", out)
    same(out, load(nodes=nodes, edges=edges))


@pytest.mark.parametrize("name", ["synthetic-citations:1000", "hospital"])
def test_names_of_the_catalog(out, name):
    build_store(name, out)
    same(out, load(name))


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
def test_files_and_graphs_in_memory(tmp_path, out, small_parts, sparse):
    torch.manual_seed(0)
    x = torch.relu(torch.randn(40, 9))
    edge_index = torch.randint(40, (2, 200))
    data = Data(x=x.to_sparse_csr() if sparse else x, edge_index=edge_index)
    data.y, data.num_classes, data.directed = torch.randint(-1, 3, (40,)), 3, True
    data.train_mask = (torch.rand(40) < 0.5) & (data.y >= 0)
    data.val_mask, data.test_mask = ~data.train_mask, torch.zeros(40, dtype=torch.bool)
    torch.save(data, tmp_path / "graph.pt")
    build_store(tmp_path / "graph.pt", out)
    loaded = load(tmp_path / "graph.pt")
    manifest = same(out, loaded)
    assert manifest.sparse == sparse
    build_store(data, tmp_path / "memory")
    assert contents(tmp_path / "memory") == contents(out)


def test_half_precision(tmp_path, out, small_parts):
    folder = write_tables(tmp_path / "tables", *frames())
    build_store(folder, out, dtype="float16")
    same(out, load(folder), dtype=np.float16)


def write_raw(folder, arrays=False, seed=0):
    """The raw files of a set of OGB, in both of its formats, and the graph they stand for."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(50, 4)).astype(np.float32)
    y = np.where(rng.random(50) < 0.3, np.nan, rng.integers(0, 3, 50))
    edges = rng.integers(0, 50, (120, 2))
    (folder / "raw").mkdir(parents=True)
    (folder / "split" / "time").mkdir(parents=True)
    if arrays:
        np.savez(folder / "raw/data.npz", node_feat=x, edge_index=edges.T, num_nodes_list=[50])
        np.savez(folder / "raw/node-label.npz", node_label=y[:, None])
    else:
        pieces = {"node-feat": x, "edge": edges, "num-node-list": np.array([50])}
        for name, array in pieces.items():
            pd.DataFrame(array).to_csv(folder / f"raw/{name}.csv.gz", header=False, index=False)
        with gzip.open(folder / "raw/node-label.csv.gz", "wt") as file:
            file.write("".join("nan\n" if np.isnan(v) else f"{int(v)}\n" for v in y))
    masks = {}
    for name, part in (("train", "train"), ("val", "valid"), ("test", "test")):
        places = {"train": np.flatnonzero(y >= 1), "valid": np.flatnonzero(y < 1)}.get(
            part, np.flatnonzero(np.isnan(y))
        )
        pd.DataFrame(places).to_csv(folder / f"split/time/{part}.csv.gz", header=False, index=False)
        masks[name] = torch.zeros(50, dtype=torch.bool)
        masks[name][torch.from_numpy(places)] = True
    if not arrays:
        x = pd.read_csv(folder / "raw/node-feat.csv.gz", header=None, dtype=np.float32).to_numpy()
    data = Data(x=torch.from_numpy(np.ascontiguousarray(x)), num_classes=3)
    data.y = torch.from_numpy(np.nan_to_num(y, nan=-1)).long()
    data.edge_index = torch.from_numpy(edges.T.copy())
    for name, mask in masks.items():
        data[f"{name}_mask"] = mask
    return data


@pytest.mark.parametrize("arrays", [False, True], ids=["csv", "npz"])
@pytest.mark.parametrize("directed", [False, True])
def test_raw_files_of_ogb(tmp_path, out, small_parts, arrays, directed):
    data = write_raw(tmp_path / "ogbn_set", arrays)
    data.directed = directed
    if not directed:
        data.edge_index = torch.cat([data.edge_index, data.edge_index.flip(0)], 1)
    build_store(tmp_path / "ogbn_set", out, classes=3, directed=directed)
    same(out, data)


# --- edges ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("directed", [True, False])
@pytest.mark.parametrize("both", [True, False], ids=["from both sides", "from one"])
def test_odd_lines_are_counted_as_in_memory(tmp_path, out, small_parts, directed, both):
    nodes, _ = frames(text=False)
    ids = nodes["id"].to_numpy()
    pairs = [(ids[a], ids[b]) for a, b in [(0, 1), (2, 3), (4, 4), (0, 1), (2, 3), (5, 6)]]
    pairs += [(b, a) for a, b in pairs] if both else []
    edges = pd.DataFrame(pairs, columns=["source", "target"])
    folder = write_tables(tmp_path / "tables", nodes, edges)
    with pytest.warns(Notice) as mine:
        manifest = build_store(folder, out, directed=directed)
    with pytest.warns(Notice) as memory:
        same(out, load(folder, directed=directed))
    assert [str(n.message) for n in mine] == [str(n.message) for n in memory]
    assert manifest.loops_removed == 1 + both
    assert manifest.repeats_removed == (4 if both else 2)


@pytest.mark.parametrize("directed", [True, False])
def test_popular_nodes_and_repeated_lines_are_cut_to_size(tmp_path, out, monkeypatch, directed):
    """Ranges larger than memory are cut again, down to one message that is there many times."""
    monkeypatch.setattr(store_edges, "_SORTING", 1 << 17)  # of 64 MiB, 64 numbers
    rng = np.random.default_rng(3)
    nodes = pd.DataFrame({"id": range(300), "a": 1.0})
    hub = np.stack([np.zeros(400, int), rng.integers(0, 300, 400)], 1)
    line = np.tile([[7, 9]], (500, 1))
    pairs = np.concatenate([hub, line, rng.integers(0, 300, (300, 2))])
    edges = pd.DataFrame(rng.permutation(pairs), columns=["source", "target"])
    folder = write_tables(tmp_path / "tables", nodes, edges)
    build_store(folder, out, directed=directed, memory="64MiB")
    same(out, load(folder, directed=directed))


# --- files ----------------------------------------------------------------------------------------


@pytest.mark.skipif(os.name != "posix", reason="modes are POSIX's")
def test_a_store_is_its_owners_alone(tmp_path, out):
    before = os.umask(0)
    try:
        build_store(write_tables(tmp_path / "tables", *frames()), out)
    finally:
        os.umask(before)
    assert stat.S_IMODE(out.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in out.iterdir()} == {0o600}


def test_the_memory_setting_changes_nothing(tmp_path, out):
    folder = write_tables(tmp_path / "tables", *frames(500, 2000))
    build_store(folder, out)
    build_store(folder, tmp_path / "small", memory="64MiB")
    assert contents(out) == contents(tmp_path / "small")


def test_amounts_of_memory():
    assert parse_memory("4GiB") == parse_memory(4 << 30) == parse_memory(" 4 gib")
    assert parse_memory("1.5GB") == 1_500_000_000


def test_a_manifest_gives_itself_back(tmp_path, out):
    manifest = build_store(write_tables(tmp_path / "tables", *frames()), out)
    assert Manifest.from_dict(manifest.to_dict() | {"added later": 1}) == manifest


def test_nothing_is_said_where_nothing_is_odd(tmp_path, out):
    nodes, _ = frames()
    edges = pd.DataFrame({"source": nodes["id"][:-1], "target": nodes["id"].to_numpy()[1:]})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        build_store(
            write_tables(tmp_path / "t", nodes, edges), out, classes=["red", "blue", "green"]
        )


def test_passes_are_shown(tmp_path, out):
    shown = []

    def track(label, items):
        shown.append(label)
        return items

    build_store(write_tables(tmp_path / "tables", *frames()), out, track=track)
    assert shown == [
        "reading nodes", "hashing ids", "sorting ids", "reading edges", "sorting edges",
        "computing checksums",
    ]  # fmt: skip
    assert building.PASSES == ("nodes", "index", "edges", "order", "checksums")
    assert store_tables.has_tables(tmp_path / "tables")
