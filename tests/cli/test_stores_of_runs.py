"""A run is trained and predicted on a store as on the graph in memory."""

import csv
import json

import pytest
import torch
from click.testing import CliRunner
from torch_geometric.data import Data

from graphveil import InvalidInputError
from graphveil.cli import cli, predict
from graphveil.data.store import write_store
from graphveil.graph.splits import split
from graphveil.methods import METHODS


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    generator = torch.Generator().manual_seed(1)
    y = torch.randint(2, (300,), generator=generator)
    x = torch.randn(300, 5, generator=generator) + y.unsqueeze(1)
    edges = torch.randint(300, (2, 900), generator=generator)
    data = split(Data(x=x, y=y, edge_index=edges, num_classes=2, directed=True), seed=1)
    data.ids = [f"id {number}" for number in range(300)]
    return write_store(data, tmp_path_factory.mktemp("stores") / "store")


def run(*arguments):
    result = CliRunner().invoke(
        cli, [str(argument) for argument in arguments], catch_exceptions=False
    )
    return result.exit_code, result.output


def test_a_run_on_a_store(stored, tmp_path, monkeypatch):
    monkeypatch.setattr(predict, "_AT_ONCE", 128)  # several pieces
    place, out = tmp_path / "run", tmp_path / "classes.csv"
    code, text = run("train", "late-graph", "--data", stored, "--epsilon", 8, "--out", place)
    assert code == 0, text
    assert json.loads((place / "metrics.json").read_text())["test_accuracy"] > 0.6
    code, text = run("predict", place, "--data", stored, "--out", out)
    assert code == 0, text
    with out.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["id"] for row in rows] == [f"id {number}" for number in range(300)]
    assert sorted(int(row["rank"]) for row in rows) == list(range(1, 301))
    for row in rows:
        assert abs(float(row["probability_0"]) + float(row["probability_1"]) - 1) < 1e-5
        assert float(row["probability"]) == float(row[f"probability_{row['class']}"])


def test_an_inductive_split_of_a_store_is_refused(stored, tmp_path):
    inductive = ("--out", tmp_path / "run", "--split", "inductive")
    with pytest.raises(InvalidInputError, match="in memory"):  # which main prints as one line
        run("train", "late-graph", "--data", stored, "--epsilon", 8, *inductive)
    assert not (tmp_path / "run").exists()


def test_a_comparison_on_a_store(stored):
    """Every method for nodes is measured, the open ones among them; none is refused."""
    names = [name for name, method in METHODS.items() if method.record == "node"]
    quick = [f"{name}:{'open_steps' if 'gap' in name else 'steps'}=5" for name in names]
    options = ("--epsilon", 8, "--seeds", 1, "--methods", ",".join(quick), "--json")
    code, text = run("compare", "--data", stored, *options)
    assert code == 0, text
    rows = json.loads(text)["rows"]
    assert sorted(row["method"] for row in rows) == sorted(names)
    for row in rows:
        assert row["refused"] is None, row["refused"]
        assert 0 <= row["mean"] <= 1
