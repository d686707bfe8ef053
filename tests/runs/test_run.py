"""What a directory is taken for, and that reading it changes and plans nothing."""

import os
import subprocess
import sys

import pytest
import torch
from runs_cases import DATA, SOURCE, Crash, crash, held

from graphveil._errors import InvalidInputError
from graphveil.data.synthetic import erdos_renyi
from graphveil.grads.step import PrivateStep
from graphveil.graph.splits import split
from graphveil.methods import (
    DPAR,
    DPGNN,
    DPMLP,
    GAP,
    METHODS,
    GraphSplit,
    LateGraph,
    Method,
    MLPBaseline,
)
from graphveil.runs import Arranged, Run
from graphveil.runs.files import locked

GRAPHS = split(erdos_renyi(num_graphs=30), seed=0)


def test_a_run_reads_back_as_it_was(finished, arranged):
    method, directory = finished
    again = Run(directory).read()
    assert repr(again) == repr(method)
    assert again.plan_ == method.plan_
    assert again.certificate_ == method.certificate_
    assert again.charges_ == method.charges_
    data = arranged.testing
    assert torch.equal(again.predict_proba(data), method.predict_proba(data))


def test_a_record_says_what_the_method_says(finished):
    method, directory = finished
    record = Run(directory).record()
    assert record.kind is type(method)
    assert record.asked.settings == method.get_params()
    assert record.plan == method.plan_
    assert list(record.charges) == method.charges_
    assert record.certificate == method.certificate_
    assert record.reservation is None
    assert 0 <= record.metrics()["test_accuracy"] <= 1
    assert "torch" in record.environment()["versions"]


def test_a_method_fitted_elsewhere_is_written_as_a_run(arranged, tmp_path):
    method = MLPBaseline(steps=3).fit(arranged.training)
    run = Run(tmp_path / "run")
    metrics = run.write(method, SOURCE, arranged)
    assert run.state == "finished"
    assert run.read().score(arranged.testing) == pytest.approx(metrics["test_accuracy"])
    assert run.read().plan_ == method.plan_
    with pytest.raises(InvalidInputError, match="finished"):
        run.write(method, SOURCE, arranged)


# --- what a directory is --------------------------------------------------------------------------


def test_a_directory_is_new_unfinished_or_finished(arranged, tmp_path, monkeypatch):
    run = Run(tmp_path / "run")
    assert run.state == "new"
    run.directory.mkdir()
    assert run.state == "new"
    with pytest.raises(InvalidInputError, match="is not a run"):
        _ = run.state_of_run
    with monkeypatch.context() as patched:
        patched.setattr("graphveil.runs.training.measure", crash)
        with pytest.raises(Crash):
            run.train(DPMLP(epsilon=8.0, steps=2), SOURCE, arranged=arranged)
    assert run.state == run.state_of_run == "unfinished"
    assert run.begun
    assert not run.lost
    for refused in (run.read, run.record, run.check):
        with pytest.raises(InvalidInputError, match="--resume, or start anew with --force"):
            refused()
    run.train(DPMLP(epsilon=8.0, steps=2), SOURCE, arranged=arranged, resume=True)
    assert run.state == "finished"
    for how in ({}, {"resume": True}):
        with pytest.raises(InvalidInputError, match="is finished and is not written over"):
            run.check(**how)
    run.check(force=True)
    with pytest.raises(InvalidInputError, match="Give either"):
        run.check(resume=True, force=True)


def test_what_is_no_run_is_refused_and_left_alone(tmp_path, arranged):
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    for place, why in ((tmp_path, "'file'"), (tmp_path / "file", "is a file")):
        for how in ({}, {"force": True}, {"resume": True}):
            with pytest.raises(InvalidInputError, match=why):
                Run(place).train(DPMLP(epsilon=8.0, steps=2), SOURCE, arranged=arranged, **how)
    assert (tmp_path / "notes.txt").read_text() == (tmp_path / "file").read_text() == "mine"


def test_a_file_in_the_place_of_a_checkpoint_is_somebody_else_s(tmp_path, arranged):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "checkpoint").write_text("mine")
    for how in ({}, {"force": True}, {"resume": True}):
        with pytest.raises(InvalidInputError, match="holds 'checkpoint' instead"):
            Run(tmp_path / "run").train(
                DPMLP(epsilon=8.0, steps=2), SOURCE, arranged=arranged, **how
            )
    assert (tmp_path / "run" / "checkpoint").read_text() == "mine"


def test_a_checkpoint_with_a_release_and_no_settings_is_not_new(copied):
    """Nobody knows what it is, and something of it may have been released."""
    for path in copied.iterdir():
        path.unlink()
    run = Run(copied)
    run.checkpoint.open()
    assert run.state == "new"  # an index that names nothing
    (copied / "checkpoint" / "releases.json").write_text(
        '{"format": 1, "releases": {"counts": {"kind": "histogram", "name": "counts"}}}'
    )
    for content in (None, "{", "[]", '{"format": 2, "releases": {}}'):
        if content is not None:
            (copied / "checkpoint" / "releases.json").write_text(content)
        assert run.begun
        with pytest.raises(InvalidInputError, match=r"has no settings\.json"):
            _ = run.state


# --- reading --------------------------------------------------------------------------------------


@pytest.mark.parametrize("left", [False, True], ids=["whole", "with a checkpoint left"])
def test_reading_changes_nothing(copied, arranged, left):
    """A crash just before the end leaves the checkpoint: it is not for a reader to remove."""
    if left:
        (copied / "checkpoint").mkdir()
        (copied / "checkpoint" / "data.sha256").write_text("0")
        (copied / "checkpoint" / "releases.json").write_text('{"format": 1, "releases": {}}')
    before = held(copied)
    run = Run(copied)
    _ = run.state, run.state_of_run, run.begun, run.lost, run.charged_to(), run.was_charged()
    run.read()
    run.record().metrics()
    run.predict(arranged.testing)
    run.predict(lambda: arranged.testing)
    run.put_in_order(arranged.testing)
    assert held(copied) == before


def test_a_checkpoint_that_a_crash_left_in_a_finished_run_goes_with_the_next_writer(
    copied, arranged
):
    (copied / "checkpoint").mkdir()
    (copied / "checkpoint" / "data.sha256").write_text("0")
    Run(copied).predict(arranged.testing, mode="noisy", epsilon=1.0)
    assert not (copied / "checkpoint").exists()


@pytest.fixture
def nothing_is_planned(monkeypatch):
    """From when it is called on, whoever plans or looks for noise fails."""

    def call():
        def planned(*_, **__):
            raise AssertionError("a plan was made again")

        for place in (
            "privacy.accounting",
            "methods.budget",
            "methods.inference",
            "methods.class_weights",
        ):
            monkeypatch.setattr(f"graphveil.{place}.calibrate", planned)
        monkeypatch.setattr(Method, "plan", planned)
        monkeypatch.setattr(Method, "_plan", planned, raising=False)
        for kind in METHODS.values():
            monkeypatch.setattr(kind, "_plan", planned)

    return call


KINDS = {
    "dp-mlp": lambda: DPMLP(epsilon=8.0, steps=2, sample_rate=1.0),
    "mlp": lambda: MLPBaseline(steps=2),
    "late-graph": lambda: LateGraph(epsilon=8.0, steps=2, sample_rate=1.0),
    "dp-gnn": lambda: DPGNN(epsilon=8.0, steps=2, sample_rate=1.0),
    "dp-gnn paper": lambda: DPGNN(epsilon=8.0, steps=2, paper=True),
    "gap": lambda: GAP(epsilon=8.0, steps=2, hops=1),
    "gap edge": lambda: GAP(epsilon=8.0, steps=2, hops=1, unit="edge", open_steps=2),
    "dpar": lambda: DPAR(epsilon=8.0, steps=2, variant="em0"),
    "graph-split": lambda: GraphSplit(epsilon=8.0, steps=2),
    "graph-dpsgd": lambda: METHODS["graph-dpsgd"](epsilon=8.0, steps=2),
}


def given_to(method):
    data = GRAPHS if method.record == "graph" else SOURCE.arrange(DATA.clone()).training
    return Arranged(training=data, testing=data, mode=None, split="given")


@pytest.mark.parametrize("kind", KINDS)
def test_who_reads_or_predicts_plans_nothing(tmp_path, kind, nothing_is_planned, monkeypatch):
    method, run = KINDS[kind](), Run(tmp_path / "run")
    given = given_to(method)
    run.train(method, SOURCE, arranged=given)
    nothing_is_planned()
    for place in ("guarantee", "accounting"):  # nor priced: the certificate stands there
        monkeypatch.setattr(f"graphveil.privacy.{place}.price", crash)
    again = run.read()
    assert again.plan_ == method.plan_
    assert again.certificate_ == method.certificate_
    assert run.record().plan == method.plan_
    _, chances = run.predict(given.testing)
    assert torch.equal(chances, method.predict_proba(given.testing))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", ["graphveil.runs.training.measure", "first step"])
def test_who_goes_on_plans_nothing(tmp_path, kind, place, nothing_is_planned, monkeypatch):
    method, run = KINDS[kind](), Run(tmp_path / "run")
    given = given_to(method)
    with monkeypatch.context() as patched:
        if place == "first step":
            patched.setattr(PrivateStep, "_draw", crash)
        patched.setattr("graphveil.runs.training.measure", crash)
        with pytest.raises(Crash):
            run.train(method, SOURCE, arranged=given)
    before = (run.directory / "plan.json").read_bytes()
    nothing_is_planned()
    made = KINDS[kind]()
    run.train(made, SOURCE, arranged=given, resume=True)
    assert (run.directory / "plan.json").read_bytes() == before
    assert run.record().plan == made.plan_


def test_a_record_is_read_without_torch(finished):
    program = (
        "import sys; from graphveil.runs import Run; record = Run(sys.argv[1]).record(); "
        "print(record.certificate.guarantee.epsilon, record.metrics()['test_accuracy']); "
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(finished[1])], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(finished[0].certificate_.guarantee.epsilon))


# --- predicting -----------------------------------------------------------------------------------


def test_a_crash_between_charge_and_certificate_keeps_the_charge(copied, arranged, monkeypatch):
    before = Run(copied).read()
    with monkeypatch.context() as patched:
        patched.setattr("graphveil.runs.record.write_certificate", crash)
        with pytest.raises(Crash):
            Run(copied).predict(arranged.testing, mode="noisy", epsilon=1.0)
    assert Run(copied).record().certificate is None  # that there was is about fewer charges
    after = Run(copied).read()
    assert after.certificate_.guarantee.epsilon > before.certificate_.guarantee.epsilon
    assert len(after.charges_) == len(before.charges_) + 1
    assert after.charges_[:-1] == before.charges_
    assert any(line.startswith("noisy") for line in after.certificate_.inference)
    assert "own node only" in after.certificate_.released_to


@pytest.mark.skipif(os.name != "posix", reason="needs flock")
def test_two_processes_cannot_use_one_run(copied, arranged):
    with locked(copied), pytest.raises(InvalidInputError, match="in use by another process"):
        Run(copied).predict(arranged.testing, mode="noisy", epsilon=1.0)


def test_columns_are_put_in_the_order_of_the_run_by_their_names(tmp_path, arranged):
    names = [f"c{number}" for number in range(5)]
    data = arranged.training.clone()
    data.columns = names
    given = Arranged(training=data, testing=data, mode=None, split="given")
    run = Run(tmp_path / "run")
    run.train(DPMLP(epsilon=8.0, steps=2), SOURCE, arranged=given)
    turned = data.clone()
    turned.x, turned.columns = data.x.flip(1), names[::-1]
    assert torch.equal(run.predict(turned)[1], run.predict(data)[1])
    turned.columns = [*names[:4], "other"]
    with pytest.raises(InvalidInputError, match=r"no 'c4' instead; name them alike"):
        run.predict(turned)
