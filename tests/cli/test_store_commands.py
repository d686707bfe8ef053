"""graphveil data store, verify and show: a table, one JSON object, or one line on stderr."""

import json
import shlex

import numpy as np
import pytest

from graphveil.data import load
from graphveil.data.store_format import Manifest, open_array

pytest.importorskip("pyarrow", reason="stores of tables need pyarrow")
NODES = "id,label,split,age\n" + "".join(f"n{i},{i % 2},train,{i}\n" for i in range(30))
EDGES = "source,target\n" + "".join(f"n{i},n{(i * 7) % 30}\n" for i in range(30))


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "ward").mkdir()
    (tmp_path / "ward/nodes.csv").write_text(NODES)
    (tmp_path / "ward/edges.csv").write_text(EDGES)
    return tmp_path / "ward"


def test_a_store_is_built_shown_and_verified(run, folder, tmp_path):
    out = tmp_path / "ward.store"
    code, text, notes = run(f"data store {folder} --out {out} --classes 2 --json")
    assert code == 0
    assert "line(s) from a node to itself" in notes
    answer = json.loads(text)
    data = load(folder, classes=2)
    assert (answer["num_nodes"], answer["num_features"], answer["num_classes"]) == (30, 1, 2)
    assert answer["edges"] == "undirected"
    assert answer["peak_memory"] is None or answer["peak_memory"] > 1 << 20
    assert answer["seconds"] > 0
    manifest = Manifest.read(out)
    assert answer["messages"] == manifest.num_messages
    assert answer["bytes"] == manifest.nbytes
    assert np.array_equal(open_array(out, "x", manifest), data.x.numpy())

    code, text, _ = run(f"data show {out} --json")
    shown = json.loads(text)
    assert (code, shown["num_nodes"], shown["messages"]) == (0, 30, manifest.num_messages)
    assert shown["source"] == str(folder)
    code, text, _ = run(f"data verify {out}")
    assert (code, "receivers" in text) == (0, True)


def test_a_store_that_is_there_or_damaged_is_refused(run, refused, folder, tmp_path):
    out = tmp_path / "ward.store"
    assert run(f"data store {folder} --out {out} --directed --dtype float16")[0] == 0
    assert "--force" in refused(f"data store {folder} --out {out}")
    assert run(f"data store {folder} --out {out} --force --undirected")[0] == 0
    assert Manifest.read(out).directed is False
    content = (out / "x.npy").read_bytes()
    (out / "x.npy").write_bytes(content[:-1] + b"\x55")
    assert "checksum" in refused(f"data verify {out}")
    (out / "manifest.json").unlink()
    assert "There is no store" in refused(f"data verify {out}")
    refused(f"data store {tmp_path / 'nowhere'} --out {tmp_path / 'new'}")
    refused(f"data store {folder} --out {tmp_path / 'new'} --memory little")


def test_queries_are_options(run, folder, tmp_path):
    duckdb = pytest.importorskip("duckdb", reason="queries need duckdb")
    with duckdb.connect(str(tmp_path / "ward.db")) as connection:
        for name in ("nodes", "edges"):
            connection.execute(f"CREATE TABLE {name} AS FROM '{folder / name}.csv'")
    queries = "--nodes 'SELECT * FROM nodes' --edges 'SELECT * FROM edges'"
    command = f"data store duckdb://{tmp_path}/ward.db --out {tmp_path}/q.store {queries}"
    code, _, error = run([*shlex.split(command), "--classes", "2"])
    assert code == 0, error
    assert run(f"data store {folder} --out {tmp_path}/f.store --classes 2")[0] == 0
    one, other = (Manifest.read(tmp_path / f"{name}.store") for name in "qf")
    assert one.arrays == other.arrays
