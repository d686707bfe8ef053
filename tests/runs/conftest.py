"""Data in memory, a finished run, a ledger, and noise that is sought once."""

import shutil

import pytest
from runs_cases import DATA, DELTA, SOURCE, Crash, Given, die_at, long, train

import prices
from graphveil import _files
from graphveil.grads import checkpoint as checkpoint_of_steps
from graphveil.grads import journal
from graphveil.grads.step import PrivateStep
from graphveil.mechanisms import Gaussian
from graphveil.methods import LateGraph, budget, checkpoint, class_weights, execution, inference
from graphveil.privacy.ledger import Ledger
from graphveil.runs import Run, charging, files, record, searching, training

WRITERS = (
    files, record, charging, training, searching, checkpoint, execution, journal,
    checkpoint_of_steps,
)  # fmt: skip


@pytest.fixture(autouse=True)
def noise_is_sought_once(monkeypatch):
    """Many runs here have the same plan."""
    for module in (budget, inference, class_weights):
        monkeypatch.setattr(module, "calibrate", prices.calibrate)


@pytest.fixture
def source(monkeypatch):
    """Data in memory, which counts how often it is read."""
    monkeypatch.setattr(Given, "data_now", DATA)
    monkeypatch.setattr(Given, "read", 0)
    return Given(data="memory")


@pytest.fixture
def ledger(tmp_path):
    made = Ledger(tmp_path / "study.ledger")
    made.open("people", 10.0, DELTA)
    return made


@pytest.fixture(scope="session")
def arranged():
    return SOURCE.arrange(DATA.clone())


@pytest.fixture(scope="session")
def finished(arranged, tmp_path_factory):
    """A fitted method, and the run it was written to."""
    directory = tmp_path_factory.mktemp("runs") / "run"
    method = LateGraph(epsilon=8.0, steps=3, sample_rate=1.0)
    Run(directory).train(method, SOURCE, arranged=arranged)
    return method, directory


@pytest.fixture
def copied(finished, tmp_path):
    return shutil.copytree(finished[1], tmp_path / "run")


@pytest.fixture
def released(monkeypatch):
    """How often noise was added to anything, whatever the files say."""
    counted, real = [], Gaussian.release

    def release(self, *given, **how):
        counted.append(self)
        return real(self, *given, **how)

    monkeypatch.setattr(Gaussian, "release", release)
    return counted


@pytest.fixture
def killed(tmp_path, source, ledger, released, monkeypatch):
    """A run that was killed after eleven of its twelve steps; the last checkpoint has ten."""
    with monkeypatch.context() as patched:
        patched.setattr(PrivateStep, "__call__", die_at(11))
        with pytest.raises(Crash):
            train(tmp_path / "run", source, ledger, long())
    assert len(released) == 11
    return tmp_path / "run"


@pytest.fixture
def writing(monkeypatch):
    """Do something at every write of a file, wherever it is made; how many there were."""
    real = _files.write_file

    def call(patched, at):
        count = [0]

        def write(path, content, **how):
            count[0] += 1
            at(count[0], path, content)
            real(path, content, **how)

        for module in WRITERS:
            assert module.write_file is real
            patched.setattr(module, "write_file", write)
        return count

    return call
