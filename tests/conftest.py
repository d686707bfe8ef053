"""What tests of several parts share."""

import os
import signal
import subprocess
import threading

# Tensors are tiny here. Workers that share the machine have a thread each: more would wait for each
# other, some tests for minutes. Said before torch is imported, for processes that tests start, too.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest

import postgres_server


def pytest_runtest_setup():
    """Have Ctrl-C interrupt this process at once, wherever it runs, and those that it starts.

    A shell in the background starts processes that ignore it, and libraries put handlers of their
    own there (polars does), which note it and let whoever waits wait on.
    """
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if hasattr(signal, "SIGHUP"):  # which nohup ignores
            signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture
def alarm():
    """Stop what would wait for ever; where there are no alarms, nothing does."""
    if not hasattr(signal, "SIGALRM"):
        yield
        return

    def stop(*_):
        raise AssertionError("it was opened, which never ends")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(20)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def small_disk(tmp_path):
    """A disk of 200 kilobytes, where one can be mounted."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", str(place)]
    try:
        done = subprocess.run(mount, capture_output=True).returncode == 0
    except OSError:
        done = False
    if not done:
        pytest.skip("no disk can be mounted here")
    yield place
    subprocess.run(["umount", str(place)], check=True)


@pytest.fixture(scope="session")
def postgres():
    """A PostgreSQL server, started once; skipped where none is installed."""
    with postgres_server.serving() as server:
        yield server


@pytest.fixture
def new_place(request, tmp_path):
    """Where a ledger can be made: a file, or with the parameter "server" a schema of its own."""
    if getattr(request, "param", "file") == "file":
        return str(tmp_path / "study.ledger")
    return request.getfixturevalue("postgres").new_url()
