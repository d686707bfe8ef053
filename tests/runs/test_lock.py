"""One process at a time trains into a directory, also while another replaces it."""

import os
import signal
import subprocess
import sys
import time

import pytest

from graphveil._errors import InvalidInputError
from graphveil.runs import Run
from graphveil.runs.files import locked

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")

_RACE = """
import os, sys, time
from pathlib import Path
from graphveil._errors import GraphveilError
from graphveil.data.synthetic import social_network
from graphveil.grads.journal import Journal
from graphveil.methods import DPMLP
from graphveil.runs import Run, Source

directory, witness, how = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]
data = social_network(num_nodes=60, num_classes=3, num_features=5, seed=1)
source = Source(data="memory")
method = DPMLP(epsilon=8.0, steps=10, sample_rate=1.0)
if how:
    Run(directory).train(method, source, arranged=source.arrange(data))
else:
    method.fit(source.arrange(data).training)  # prices are remembered
note = Journal.note

def note_alone(self):
    try:
        witness.mkdir()  # somebody else is in the middle of a step
    except FileExistsError:
        os._exit(9)
    time.sleep(0.01)
    note(self)
    witness.rmdir()

Journal.note = note_alone
children, start = [], time.time() + 0.5
for _ in range(4):
    if (child := os.fork()) == 0:
        code = 0
        time.sleep(max(0.0, start - time.time()))
        try:
            given = {"arranged": source.arrange(data), **dict.fromkeys(how, True)}
            Run(directory).train(method, source, **given)
        except GraphveilError as error:
            code = error.exit_code
            os.write(1, f"{error}\\n".encode())
        os._exit(code)
    children.append(child)
print(*(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children))
"""


def race(directory, *how):
    """Four processes train into one directory; their exit codes, and what the losers were told."""
    arguments = [str(directory), str(directory.parent / "witness"), *how]
    program = [sys.executable, "-c", _RACE, *arguments]
    done = subprocess.run(program, capture_output=True, text=True, check=True)
    *sentences, codes = done.stdout.splitlines()
    return sorted(map(int, codes.split())), sentences


def test_of_four_processes_one_trains(tmp_path):
    codes, sentences = race(tmp_path / "run")
    assert codes == [0] + [2] * 3
    assert len(sentences) == 3
    for sentence in sentences:
        assert "in use by another process" in sentence or "not written over" in sentence
    assert Run(tmp_path / "run").state == "finished"
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_four_processes_that_replace_a_run_never_train_at_once(tmp_path):
    codes, _ = race(tmp_path / "run", "force")
    assert set(codes) <= {0, 2}
    assert codes[0] == 0
    assert Run(tmp_path / "run").state == "finished"
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_lock_ends_with_its_process(tmp_path):
    ready = tmp_path / "ready"
    child = os.fork()
    if child == 0:
        with locked(tmp_path):
            ready.touch()
            time.sleep(60)
    try:
        while not ready.exists():
            time.sleep(0.01)
        with pytest.raises(InvalidInputError, match="in use by another process"), locked(tmp_path):
            pass
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    with locked(tmp_path):
        pass


def test_a_directory_that_was_moved_away_before_it_was_locked_is_in_use(tmp_path, monkeypatch):
    """Whoever replaces a run has moved it; another would have the lock of what is no run here."""
    directory = tmp_path / "run"
    directory.mkdir()

    def moved_first(handle, *, blocking):
        directory.rename(tmp_path / ".run.replaced")
        directory.mkdir()
        return True

    monkeypatch.setattr("graphveil.runs.files.lock_descriptor", moved_first)
    with pytest.raises(InvalidInputError, match="in use by another process"), locked(directory):
        pass


def test_where_directories_have_no_locks_a_file_beside_has(tmp_path, monkeypatch):
    directory = tmp_path / "run"
    directory.mkdir()
    monkeypatch.setattr("graphveil.runs.files._LOCKS_DIRECTORIES", False)
    with locked(directory):
        assert [path.name for path in tmp_path.glob(".*")] == [".run.lock"]
        assert (tmp_path / ".run.lock").stat().st_mode & 0o777 == 0o600
        with pytest.raises(InvalidInputError, match="in use by another process"), locked(directory):
            pass
    assert not any(directory.iterdir())
    assert not (tmp_path / ".run.lock").exists()
