"""A method that was fitted by hand is saved as a run, and comes back to the last bit."""

import json
import shutil

import pandas as pd
import pytest
import torch
from click.testing import CliRunner
from methods_cases import data_for, graph, made, weights
from test_prediction_table import IDS, people

import graphveil
from graphveil._errors import InvalidInputError, NotFittedError
from graphveil.cli import cli
from graphveil.methods import METHODS
from graphveil.runs import Run


def call(*words):
    result = CliRunner().invoke(cli, list(words), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture
def ward(tmp_path):
    """A folder of two tables, and a method that was fitted on them."""
    nodes, edges = people()
    folder = tmp_path / "ward"
    folder.mkdir()
    nodes.to_csv(folder / "nodes.csv", index=False)
    edges.to_csv(folder / "edges.csv", index=False)
    data = graphveil.load(nodes=nodes, edges=edges, classes=["well", "sick"])
    return folder, data


@pytest.mark.parametrize("name", METHODS)
def test_a_saved_method_predicts_the_same_bits(name, tmp_path):
    data = data_for(name)
    method = made(name).fit(data)
    method.save(tmp_path / "run")
    again = graphveil.read(tmp_path / "run")
    assert type(again) is type(method)
    assert again.get_params() == method.get_params()
    assert (again.certificate_, again.plan_) == (method.certificate_, method.plan_)
    assert torch.equal(weights(again), weights(method))
    for mode in set(method.modes) - {"noisy"}:
        expected = method.predict_proba(data, mode=mode)
        assert torch.equal(again.predict_proba(data, mode=mode), expected)


def test_names_come_back_with_a_saved_method(ward, tmp_path):
    _, data = ward
    method = made("late-graph").fit(data)
    method.save(tmp_path / "run", data)
    again = graphveil.read(tmp_path / "run")
    assert again.classes_.tolist() == ["well", "sick"]
    assert again.feature_names_in_.tolist() == ["age", "b"]
    pd.testing.assert_frame_equal(again.predict_frame(data), method.predict_frame(data))


def test_a_saved_method_is_a_run_on_the_command_line(ward, tmp_path):
    folder, data = ward
    method = made("late-graph").fit(data)
    run = str(tmp_path / "run")
    method.save(run, data)
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert metrics["test_accuracy"] == pytest.approx(method.score(data))
    call("predict", run, "--data", str(folder), "--out", str(tmp_path / "out.csv"))
    table = pd.read_csv(tmp_path / "out.csv", dtype={"id": str})
    expected = method.predict_frame(data)
    assert table["id"].tolist() == IDS
    assert table["name"].tolist() == expected["prediction"].tolist()
    call("report", run, "--out", str(tmp_path / "page.html"))
    assert "(in memory)" in (tmp_path / "page.html").read_text()


def test_without_data_nothing_is_measured(ward, tmp_path):
    folder, data = ward
    made("late-graph").fit(data).save(tmp_path / "run")
    metrics = Run(tmp_path / "run").record().metrics()
    assert (metrics["test_accuracy"], metrics["class_count"]) == (None, [0, 0])
    call("report", str(tmp_path / "run"), "--out", str(tmp_path / "page.html"))
    call("predict", str(tmp_path / "run"), "--data", str(folder))


def test_a_run_that_was_trained_is_read_with_its_names(ward, tmp_path):
    folder, data = ward
    run = str(tmp_path / "run")
    words = ["--data", str(folder), "--classes", "well,sick", "--epsilon", "8", "--out", run]
    call("train", "late-graph", *words)
    method = graphveil.read(run)
    assert method.classes_.tolist() == ["well", "sick"]
    assert method.predict_frame(data)["id"].tolist() == IDS


def test_a_noisy_prediction_is_saved_with_its_charge(ward, tmp_path):
    _, data = ward
    method = made("late-graph").fit(data)
    trained = method.certificate_.guarantee.epsilon
    method.predict_frame(data, mode="noisy", epsilon=1.0)
    method.save(tmp_path / "run")
    again = graphveil.read(tmp_path / "run")
    assert again.certificate_ == method.certificate_
    assert again.certificate_.guarantee.epsilon > trained
    assert len(again.charges_) == len(method.charges_)


def test_a_copy_by_hand_says_which_reservation_paid_for_it(ward, tmp_path):
    """As a copied directory does: else its noisy predictions would be charged to nobody."""
    folder, _ = ward
    ledger = str(tmp_path / "ledger.json")
    opened = ["--name", "ward", "--epsilon", "20", "--delta", "1e-3", "--who", "patients"]
    call("ledger", "open", ledger, *opened)
    words = ["--data", str(folder), "--classes", "well,sick", "--epsilon", "8"]
    run = str(tmp_path / "run")
    call("train", "late-graph", *words, "--out", run, "--ledger", ledger, "--account", "ward")
    reservation = Run(run).record().reservation
    assert reservation is not None
    graphveil.read(run).save(tmp_path / "copy")
    assert Run(tmp_path / "copy").record().reservation == reservation
    assert Run(tmp_path / "copy").was_charged()


def test_what_cannot_be_saved_is_refused_in_a_line(ward, tmp_path):
    _, data = ward
    with pytest.raises(NotFittedError):
        made("dp-mlp").save(tmp_path / "new")
    assert not (tmp_path / "new").exists()
    method = made("dp-mlp").fit(data)
    method.save(tmp_path / "run")
    with pytest.raises(InvalidInputError, match="save does not write over a run") as caught:
        method.save(tmp_path / "run")
    assert "--force" not in str(caught.value)
    with pytest.raises(InvalidInputError, match="must have 2 columns"):
        method.save(tmp_path / "other", graph())
    assert not (tmp_path / "other").exists()


def test_the_data_of_a_saved_method_is_nowhere_else(ward, tmp_path):
    _, data = ward
    made("dp-mlp").fit(data).save(tmp_path / "run")
    with pytest.raises(InvalidInputError, match="was in memory when it was trained"):
        Run(tmp_path / "run").arrange()
    for path in (tmp_path / "run").iterdir():
        assert b"p07" not in path.read_bytes(), path  # not even an id
    shutil.rmtree(tmp_path / "run")
