"""Bad input and damaged stores: one line with the value, the rule and the way out."""

import json
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import torch
from store_cases import frames, write_tables
from torch_geometric.data import Data

import graphveil.data.store_sources as store_sources
import graphveil.data.store_tables as store_tables
import graphveil.data.store_texts as store_texts
from graphveil._errors import InvalidInputError
from graphveil.data import load
from graphveil.data.store_building import build_store
from graphveil.data.store_format import MANIFEST, Manifest, is_store, open_array, verify

pytest.importorskip("pyarrow", reason="stores of tables need pyarrow")
pytestmark = pytest.mark.filterwarnings("ignore::graphveil.data.class_list.Notice")


def refusal(*arguments, call=build_store, **options):
    with pytest.raises(InvalidInputError) as caught:
        call(*arguments, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture
def small_parts(monkeypatch):
    monkeypatch.setattr(store_sources.TableSource, "_node_rows", lambda *a: 7)
    monkeypatch.setattr(store_sources, "_edge_rows", lambda memory: 11)
    monkeypatch.setattr(store_tables, "_BLOCK", 500)


def spoil_id(nodes, edges):
    nodes.loc[50, "id"] = nodes["id"][20]


def spoil_missing_id(nodes, edges):
    nodes.loc[50, "id"] = None


def spoil_feature(nodes, edges):
    nodes.loc[50, "weight"] = np.nan


def spoil_text(nodes, edges):
    nodes["weight"] = nodes["weight"].astype(object)
    nodes.loc[50, "weight"] = "heavy"


def spoil_split(nodes, edges):
    nodes.loc[50, "split"] = "dev"


def spoil_source(nodes, edges):
    edges.loc[250, "source"] = "nobody"


def spoil_target(nodes, edges):
    edges.loc[250, "target"] = None


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize(
    "spoil",
    [
        spoil_id,
        spoil_missing_id,
        spoil_feature,
        spoil_text,
        spoil_split,
        spoil_source,
        spoil_target,
    ],
)
def test_a_bad_cell_is_named_as_in_memory(tmp_path, small_parts, kind, spoil):
    """The same words, with the row in the whole table."""
    if spoil is spoil_text and kind == "parquet":
        pytest.skip("a column of parquet has one type")
    nodes, edges = frames()
    spoil(nodes, edges)
    folder = write_tables(tmp_path / "tables", nodes, edges, kind)
    message = refusal(folder, call=load)
    assert " in row 51 " in message or " in row 251 " in message
    assert refusal(folder, tmp_path / "out") == message
    assert not is_store(tmp_path / "out")


def test_numbers_of_nodes_that_are_not_there(tmp_path, small_parts):
    nodes, _ = frames()
    nodes["id"] = range(60)
    for wrong in (60, -1, 2**40):
        edges = pd.DataFrame({"source": [0] * 30, "target": [*[1] * 29, wrong]})
        folder = write_tables(tmp_path / "tables", nodes, edges)
        assert f"Got {wrong} in row 30 " in refusal(folder, tmp_path / "out", force=True)


def test_texts_with_one_hash_are_told_apart(tmp_path, monkeypatch):
    """The first seed gives some ids one hash, and the second does not."""
    original = store_texts.hash_keys

    def weak(keys, seed=0):
        return original(keys, seed) & np.uint64(7) if seed == 0 else original(keys, seed)

    monkeypatch.setattr("graphveil.data.store_index.hash_keys", weak)
    folder = write_tables(tmp_path / "tables", *frames())
    build_store(folder, tmp_path / "out")
    from store_cases import same

    same(tmp_path / "out", load(folder))


def test_an_owner_has_one_row(tmp_path, small_parts):
    nodes, edges = frames()
    nodes["person"] = [f"p{i}" for i in range(59)] + ["p3"]
    folder = write_tables(tmp_path / "tables", nodes[["id", "age", "person"]], edges)
    schema = {"owner": "person", "columns": {"age": {"kind": "number", "low": 0, "high": 99}}}
    message = refusal(folder, tmp_path / "out", schema=schema)
    assert "'p3' in row 60" in message
    assert "read the tables into memory" in message
    several = load(folder, schema=schema)
    assert len(several.owner.unique()) == 59
    assert "one node of each person" in refusal(several, tmp_path / "other")
    nodes.loc[59, "person"] = "p59"
    folder = write_tables(tmp_path / "tables", nodes[["id", "age", "person"]], edges)
    assert build_store(folder, tmp_path / "out", schema=schema, force=True).owner == "person"


def test_labels_that_are_identifiers(tmp_path, small_parts, monkeypatch):
    nodes, edges = frames()
    nodes["label"] = [f"name {i}" for i in range(60)]
    folder = write_tables(tmp_path / "tables", nodes, edges)
    message = refusal(folder, call=load)
    assert refusal(folder, tmp_path / "out") == message
    monkeypatch.setattr("graphveil.data.store_nodes.MOST_LABELS", 20)
    assert refusal(folder, tmp_path / "out", force=True) == message


def test_nobody_is_trained_on_without_a_label(tmp_path, small_parts):
    nodes, edges = frames()
    nodes.loc[33, ["label", "split"]] = [None, "train"]
    folder = write_tables(tmp_path / "tables", nodes, edges)
    refusal(folder, call=load)
    assert "Got none in row 34 instead" in refusal(folder, tmp_path / "out")


def test_features_too_large_for_half_precision(tmp_path):
    nodes, edges = frames()
    nodes.loc[5, "age"] = 70_000
    folder = write_tables(tmp_path / "tables", nodes, edges)
    assert "65,504" in refusal(folder, tmp_path / "out", dtype="float16")


@pytest.mark.parametrize("name", ["nodes", "edges"])
def test_files_that_are_cut_or_garbled(tmp_path, name):
    folder = write_tables(tmp_path / "tables", *frames(), "parquet")
    path = folder / f"{name}.parquet"
    whole = path.read_bytes()
    for content in (whole[: len(whole) // 2], b"", b"\0" * 100):
        path.write_bytes(content)
        assert path.name in refusal(folder, tmp_path / "out", force=True)


def test_tables_that_are_not_there(tmp_path):
    out = tmp_path / "out"
    assert "no file or directory" in refusal(tmp_path / "nowhere", out)
    nodes, edges = frames()
    folder = write_tables(tmp_path / "tables", nodes, edges.rename(columns={"source": "from"}))
    assert "must have the column(s) 'source'" in refusal(folder, out, force=True)
    write_tables(folder, nodes.drop(columns="id"), edges)
    assert "must have the column(s) 'id'" in refusal(folder, out, force=True)
    write_tables(folder, nodes[:0], edges[:0])
    assert "has no rows" in refusal(folder, out, force=True)
    nodes.to_csv(folder / "nodes-1.csv")
    assert "Got both" in refusal(folder, out, force=True)


def test_parts_that_do_not_fit(tmp_path):
    nodes, edges = frames()
    folder = tmp_path / "parts"
    folder.mkdir()
    edges.to_csv(folder / "edges.csv", index=False)
    nodes[:30].to_csv(folder / "nodes-1.csv", index=False)
    nodes[30:].drop(columns="label").to_csv(folder / "nodes-2.csv", index=False)
    assert "'label' in all parts" in refusal(folder, tmp_path / "out")
    nodes[30:].drop(columns="age").to_csv(folder / "nodes-2.csv", index=False)
    assert "feature columns of the other parts" in refusal(folder, tmp_path / "out", force=True)


def test_parameters_that_make_no_sense(tmp_path):
    folder = write_tables(tmp_path / "tables", *frames())
    out = tmp_path / "out"
    for memory in ("much", "4 XB", "1MiB", 0, -5, ""):
        assert "'memory' parameter" in refusal(folder, out, memory=memory)
    assert "'dtype' parameter" in refusal(folder, out, dtype="int8")
    assert "'out' parameter" in refusal(folder)
    assert "both 'nodes' and 'edges'" in refusal(folder, out, nodes=frames()[0])
    assert not is_store(out)
    (tmp_path / "file").write_text("")
    assert "choose another" in refusal(folder, tmp_path / "file")


def test_many_graphs_are_no_store(tmp_path):
    assert "must hold one graph" in refusal("synthetic-er", tmp_path / "out")
    data = Data(x=torch.ones(2, 1), edge_index=torch.zeros(2, 0, dtype=torch.long))
    data.edge_index = torch.tensor([[0], [5]])
    assert "edge_index" in refusal(data, tmp_path / "other")


def test_queries_that_fail(tmp_path):
    duckdb = pytest.importorskip("duckdb", reason="queries need duckdb")
    path = tmp_path / "graph.db"
    duckdb.connect(str(path)).close()
    out = tmp_path / "out"
    assert "the edges" in refusal(f"duckdb://{path}?nodes=SELECT 1", out)
    assert "no file" in refusal("duckdb:///nowhere.db?nodes=a&edges=b", out)
    message = refusal(f"duckdb://{path}", out, nodes="SELECT * FROM nothing", edges="SELECT 1")
    assert "correct the query" in message
    path.write_bytes(b"garbled")
    assert "cannot be read" in refusal(f"duckdb://{path}", out, nodes="SELECT 1", edges="SELECT 1")


@pytest.mark.parametrize("missing", ["pyarrow", "duckdb"])
def test_a_library_that_is_missing_is_named(tmp_path, monkeypatch, missing):
    folder = write_tables(tmp_path / "tables", *frames())
    monkeypatch.setitem(sys.modules, missing, None)
    source, options = folder, {}
    if missing == "duckdb":
        source, options = f"duckdb://{folder / 'nodes.csv'}", {"nodes": "a", "edges": "b"}
    assert f"needs {missing}; pip install 'graphveil[large]'" in refusal(
        source, tmp_path / "out", **options
    )


# --- damaged stores -------------------------------------------------------------------------------


@pytest.fixture
def store(tmp_path):
    build_store(write_tables(tmp_path / "tables", *frames()), tmp_path / "store")
    return tmp_path / "store"


@pytest.mark.parametrize("place", [0, 70, 128, -1])
def test_a_changed_byte_is_noticed(store, place):
    path = store / "receivers.npy"
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)
    assert "receivers.npy is damaged" in refusal(store, call=verify)


@pytest.mark.parametrize("content", [b"", b"\x93NUMPY", None])
def test_an_array_that_is_cut_or_gone(store, content):
    path = store / "x.npy"
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    manifest = Manifest.read(store)
    assert "x.npy is damaged" in refusal(store, "x", manifest, call=open_array)


def test_an_array_of_another_size(store):
    manifest = Manifest.read(store)
    np.save(store / "x.npy", np.zeros((60, 3), np.float32))
    assert "is damaged" in refusal(store, "x", manifest, call=open_array)


def change(store, **values):
    content = json.loads((store / MANIFEST).read_text())
    (store / MANIFEST).write_text(json.dumps(content | values))


@pytest.mark.parametrize(
    "values",
    [
        {"format": 2},
        {"arrays": {}},
        {"arrays": []},
        {"num_nodes": 61},
        {"arrays": {"x": {"dtype": "float64", "shape": [60, 2], "sha256": ""}}},
        {"arrays": {"../x": {"dtype": "float32", "shape": [60, 2], "sha256": ""}}},
    ],
)
def test_a_manifest_that_does_not_fit(store, values):
    change(store, **values)
    assert "is no manifest of a store" in refusal(store, call=Manifest.read)


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"\xff", b'{"format": 1}'])
def test_a_manifest_that_is_none(store, content):
    (store / MANIFEST).write_bytes(content)
    assert "is no manifest of a store" in refusal(store, call=Manifest.read)


def test_a_directory_that_is_no_store(tmp_path):
    assert "There is no store" in refusal(tmp_path, call=Manifest.read)


# --- memory ---------------------------------------------------------------------------------------

SCRIPT = """
import resource, sys
import numpy as np, pyarrow as pa
from graphveil.data.store_building import build_store

parts = int(sys.argv[2])
nodes, width, edges = 1000 * parts, 256, 5000 * parts
words = np.array([f"person number {i:09d}" for i in range(nodes)])

def node_batches():
    rng = np.random.default_rng(0)
    for start in range(0, nodes, 1000):
        columns = rng.standard_normal((width, 1000), dtype=np.float32)
        arrays = [pa.array(words[start:start + 1000]), *map(pa.array, columns)]
        yield pa.RecordBatch.from_arrays(arrays, ["id", *map(str, range(width))])

def edge_batches():
    rng = np.random.default_rng(0)
    for start in range(0, edges, 10_000):
        ends = [pa.array(words[rng.integers(0, nodes, 10_000)]) for _ in range(2)]
        yield pa.RecordBatch.from_arrays(ends, ["source", "target"])

build_store(nodes=node_batches(), edges=edge_batches(), out=sys.argv[1], memory="64MiB")
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="peaks are measured as Linux does")
def test_memory_is_bounded_by_the_setting(tmp_path):
    """A store of twice the setting takes less than the setting above what a small one takes."""
    peaks = []
    for parts in (2, 128):
        command = [sys.executable, "-W", "ignore", "-c", SCRIPT, str(tmp_path / f"{parts}")]
        answer = subprocess.run([*command, str(parts)], capture_output=True, check=True)
        peaks.append(int(answer.stdout) * 1024)
    assert verify(tmp_path / "128").nbytes > 2 * (64 << 20)
    assert peaks[1] - peaks[0] < 64 << 20
