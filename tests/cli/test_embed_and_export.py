"""Embeddings and ONNX files from the command line; every bad input is one line."""

import json
import stat

import numpy as np
import pytest
import torch

from graphveil import runs
from graphveil.data import load

QUICK = "--epsilon 20 --delta 1e-3 --set steps=3"


@pytest.fixture
def trained(answer, graph, tmp_path):
    """Train a method on the small graph; its directory."""

    def call(name, more=QUICK):
        out = tmp_path / name
        answer(f"train {name} --data {graph} {more} --out {out}")
        return out

    return call


@pytest.fixture
def ward(tmp_path, arrays):
    """The small graph as tables, with ids and names of columns."""
    folder = tmp_path / "ward"
    folder.mkdir()
    names = ["age", "pulse", "weight", "height", "stay"]
    rows = [
        f"p{number},c{label}," + ",".join(f"{value:.4f}" for value in row)
        for number, (row, label) in enumerate(zip(arrays["x"], arrays["y"], strict=True))
    ]
    (folder / "nodes.csv").write_text("\n".join(["id,label," + ",".join(names), *rows]) + "\n")
    edges = [f"p{one},p{other}" for one, other in arrays["edge_index"].T if one < other]
    (folder / "edges.csv").write_text("\n".join(["source,target", *edges]) + "\n")
    return folder


# --- embed ----------------------------------------------------------------------------------------


def test_embeddings_go_to_a_table_that_says_who_may_see_it(answer, run, ward, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    out = tmp_path / "run"
    answer(f"train late-graph --data {ward} --classes c0,c1,c2 {QUICK} --out {out}")
    table = tmp_path / "rows.parquet"
    result = answer(f"embed {out} --data {ward} --out {table}")
    assert (result["rows"], result["columns"]) == (60, 3)
    assert (result["mode"], result["of"]) == ("visible", "output")
    assert "up to 3 steps away" in result["seen_by"]
    assert result["costs"].startswith("nothing beyond the run")
    assert result["epsilon"] <= 20
    written = parquet.read_table(table)
    assert written.column_names == ["id", "e0", "e1", "e2"]
    assert written.column("id").to_pylist() == [f"p{number}" for number in range(60)]
    statement = json.loads(written.schema.metadata[b"graphveil"])
    assert statement["seen_by"] == result["seen_by"]
    assert statement["costs"] == result["costs"]
    assert float(statement["epsilon_of_weights"]) == result["epsilon"]
    assert stat.S_IMODE(table.stat().st_mode) == 0o600
    code, shown, _ = run(f"embed {out} --data {ward} --out {table} --force")
    assert code == 0
    assert "up to 3 steps away" in " ".join(shown.split())


def test_a_csv_has_the_same_numbers_as_the_method(answer, graph, trained, tmp_path):
    out = trained("gap")
    result = answer(f"embed {out} --data {graph} --out {tmp_path / 'rows.csv'}")
    assert result["seen_by"].startswith("its own node only")
    assert result["private"]
    first, *lines = (tmp_path / "rows.csv").read_text().splitlines()
    assert len(first.split(",")) == 1 + result["columns"]
    values = np.array([line.split(",")[1:] for line in lines], dtype=np.float32)
    method = runs.Run(out).read()
    expected = method.embed(load(str(graph))).rows
    assert np.array_equal(values, expected.numpy())


def test_another_mode_stands_on_the_certificate_and_costs_nothing(answer, graph, trained, tmp_path):
    out = trained("gap")
    before = json.loads((out / "certificate.json").read_text())
    line = f"embed {out} --data {graph} --out {tmp_path / 'rows.csv'} --force"
    answer(line)
    assert json.loads((out / "certificate.json").read_text()) == before
    result = answer(f"{line} --mode visible --of output")
    assert (result["mode"], result["of"], result["columns"]) == ("visible", "output", 3)
    after = json.loads((out / "certificate.json").read_text())
    assert (before["guarantee"], before["charges"]) == (after["guarantee"], after["charges"])
    (new,) = set(after["inference"]) - set(before["inference"])
    assert new.startswith("visible: ")
    answer(f"report {out} --out {tmp_path / 'page.html'}")  # charges and certificate agree


def test_under_the_edge_unit_anybody_may_see_them(answer, graph, tmp_path):
    out = tmp_path / "run"
    more = "--undirected --set unit=edge --set open_steps=3 --set head_steps=3"
    answer(f"train gap --data {graph} --epsilon 20 {more} --out {out}")
    result = answer(f"embed {out} --data {graph} --out {tmp_path / 'rows.csv'}")
    assert result["seen_by"].startswith("anybody")
    assert not result["private"]
    assert stat.S_IMODE((tmp_path / "rows.csv").stat().st_mode) & 0o044


def test_bad_embeddings_are_one_line_and_write_nothing(refused, graph, save, trained, tmp_path):
    out, rows = trained("late-graph"), tmp_path / "rows.csv"
    line = f"embed {out} --data {graph} --out {rows}"
    assert "predict in it" in refused(f"{line} --mode noisy")
    assert "cached" in refused(f"{line} --mode cached")
    assert "--of output" in refused(f"{line} --of hidden")
    assert ".parquet or .csv" in refused(f"embed {out} --data {graph} --out {tmp_path / 'r.txt'}")
    assert "is not a run" in refused(f"embed {tmp_path} --data {graph} --out {rows}")
    assert "no finished run" in refused(f"embed {tmp_path / 'no'} --data {graph} --out {rows}")
    assert "directory" in refused(f"embed {out} --data {graph} --out {tmp_path / 'no' / 'r.csv'}")
    wide = save("wide.npz", x=np.ones((60, 7), np.float32))
    assert "5 columns" in refused(f"embed {out} --data {wide} --out {rows}")
    assert not rows.exists()
    rows.write_text("kept")
    assert "--force" in refused(line)
    assert rows.read_text() == "kept"


def test_sums_are_for_the_graph_that_was_trained_on(refused, save, trained, tmp_path):
    out, other = trained("gap"), save("other.npz")
    err = refused(f"embed {out} --data {other} --out {tmp_path / 'rows.csv'}")
    assert "name a --mode: visible or disjoint" in err


def test_without_pyarrow_parquet_is_one_line(refused, graph, trained, tmp_path, monkeypatch):
    monkeypatch.setattr("graphveil.export.tables.find_spec", lambda name: None)
    out = trained("dp-mlp")
    err = refused(f"embed {out} --data {graph} --out {tmp_path / 'rows.parquet'}")
    assert "pip install 'graphveil[data]', or write a .csv" in err


# --- export ---------------------------------------------------------------------------------------


def test_a_run_becomes_a_file_that_answers_alike(answer, run, ward, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    pytest.importorskip("onnx", reason="onnx is not installed")
    out, path = tmp_path / "run", tmp_path / "model.onnx"
    answer(f"train dp-mlp --data {ward} --classes c0,c1,c2 {QUICK} --out {out}")
    result = answer(f"export {out} --out {path}")
    assert (result["method"], result["opset"]) == ("dp-mlp", 17)
    assert result["inputs"] == ["x: float32 (n, 5)"]
    assert result["class_names"] == ["c0", "c1", "c2"]
    assert result["columns"] == ["age", "pulse", "weight", "height", "stay"]
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    metadata = session.get_modelmeta().custom_metadata_map
    assert json.loads(metadata["class_names"]) == result["class_names"]
    assert json.loads(metadata["columns"]) == result["columns"]
    assert float(metadata["epsilon"]) == result["epsilon"] <= 20
    data = runs.Run(out).load(str(ward))
    (answers,) = session.run(["probabilities"], {"x": data.x.float().numpy()})
    expected = runs.Run(out).read().predict_proba(data)
    assert torch.allclose(torch.from_numpy(answers), expected, atol=1e-5)
    code, shown, _ = run(f"export {out} --out {path} --force")
    assert code == 0
    assert "own row" in shown


def test_the_sums_of_gap_come_from_the_run(answer, graph, trained, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    pytest.importorskip("onnx", reason="onnx is not installed")
    from safetensors.torch import load_file

    out, path = trained("gap"), tmp_path / "model.onnx"
    result = answer(f"export {out} --out {path}")
    sums = load_file(out / "cache.safetensors")["sums"]
    assert result["inputs"][1] == f"sums: float32 (n, {sums.shape[1]}, {sums.shape[2]})"
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    data = load(str(graph))
    given = {"x": data.x.float().numpy(), "sums": sums.float().numpy()}
    (answers,) = session.run(None, given)
    expected = runs.Run(out).read().predict_proba(data)
    assert torch.allclose(torch.from_numpy(answers), expected, atol=1e-5)


def test_what_cannot_be_exported_is_one_line(refused, trained, tmp_path, monkeypatch):
    path = tmp_path / "model.onnx"
    pytest.importorskip("onnx", reason="onnx is not installed")
    err = refused(f"export {trained('dp-gnn')} --out {path}")
    assert "reads neighbours inside its network" in err
    assert "or train dp-mlp, late-graph, dpar or gap" in err
    out = trained("dp-mlp")
    assert ".onnx" in refused(f"export {out} --out {tmp_path / 'model.pt'}")
    assert "no finished run" in refused(f"export {tmp_path / 'no'} --out {path}")
    assert not path.exists()
    path.write_text("kept")
    assert "--force" in refused(f"export {out} --out {path}")
    assert path.read_text() == "kept"
    monkeypatch.setattr("graphveil.export.models.find_spec", lambda name: None)
    assert "pip install 'graphveil[onnx]'" in refused(f"export {out} --out {path} --force")
