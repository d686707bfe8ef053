"""Many writers of one ledger, while it, its server or they are killed: nothing is under-counted."""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import dp_accounting as dpa
import pytest

import postgres_server
from graphveil._errors import InvalidInputError
from graphveil.privacy.guarantee import Charge
from graphveil.privacy.ledger import Ledger
from graphveil.privacy.ledger_state import Promise, count_releases, entry_hash

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")

PROGRAM = Path(__file__).with_name("ledger_writers.py")


@contextlib.contextmanager
def writing(place, folder, writers, each, *only):
    """Writers at work; their process, and their ids."""
    folder.mkdir()
    process = subprocess.Popen(
        [sys.executable, str(PROGRAM), str(place), str(folder), str(writers), str(each), *only],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    try:
        children = [int(word) for word in process.stdout.readline().split()]
        yield process, children
    finally:
        process.kill()
        process.wait()


def finish(process):
    out, err = process.communicate()
    return [int(word) for word in out.split()], err


def calls(folder):
    """What returned to whom: how often, by kind and id."""
    counts = Counter()
    for file in folder.iterdir():
        counts.update(tuple(line.split()) for line in file.read_text().splitlines())
    return counts


def wait_for(folder, lines):
    """Until the writers have had so many answers."""
    while sum(calls(folder).values()) < lines:
        time.sleep(0.02)


def check(ledger, folder):
    """All that anybody was told was done stands, once; and nobody overdraws."""
    state, told = ledger.verify(), calls(folder)
    account = state.account("people")
    for (what, id), count in told.items():
        held = state.reservation(id)
        if what == "refused":
            assert held is None, id
            continue
        assert held is not None, id
        assert held.begun or what == "reserved"
        assert held.settled is not None or what != "settled"
        if what == "noted":
            assert state.releases_begun(id) >= count
    for held in account.charged:
        assert count_releases(held.charges) >= state.releases_begun(held.id)
    assert account.used() <= 1
    assert account.spent() <= account.epsilon
    return told


def reserve(ledger, id):
    padding = "".join(entry_hash(id, str(number)) for number in range(1000))
    charges = [Charge(paid_for="a test", event=dpa.GaussianDpEvent(90.0))]
    node, facts = Promise(unit="node"), {"padding": padding}
    ledger.reserve(id, "people", charges, node, purpose="a test", facts=facts)


def opened(place, epsilon=3.0):
    ledger = Ledger(place)
    ledger.open("people", epsilon, 1e-3)
    return ledger


def counted(told):
    return Counter(what for what, _ in told)


@pytest.mark.parametrize("new_place", ["server"], indirect=True)
def test_two_writers_agree_on_what_is_left(new_place, tmp_path):
    ledger = opened(new_place, 0.4)
    with writing(new_place, tmp_path / "told", 2, 5) as (process, _):
        codes, err = finish(process)
    assert codes == [0, 0], err
    told = counted(check(ledger, tmp_path / "told"))
    assert told["reserved"] + told["refused"] == 10
    assert told["reserved"]
    assert told["refused"]


@pytest.mark.slow
@pytest.mark.parametrize("new_place", ["server"], indirect=True)
def test_eight_writers_of_25_reservations_do_not_overdraw(new_place, tmp_path):
    ledger = opened(new_place, 1.5)
    with writing(new_place, tmp_path / "told", 8, 25, "reserve") as (process, _):
        codes, err = finish(process)
    assert codes == [0] * 8, err
    told = counted(check(ledger, tmp_path / "told"))
    assert told["reserved"] + told["refused"] == 200
    assert told["reserved"] >= 20
    assert told["refused"] >= 20


@pytest.mark.slow
@pytest.mark.parametrize("new_place", ["server"], indirect=True)
def test_writers_that_are_killed_at_random_lose_nothing(new_place, tmp_path):
    ledger, chance = opened(new_place, 20.0), random.Random(1)
    with writing(new_place, tmp_path / "told", 6, 50) as (process, children):
        lines = 0
        for child in children:
            lines += chance.randint(1, 8)
            wait_for(tmp_path / "told", lines)
            time.sleep(chance.uniform(0, 0.05))
            os.kill(child, signal.SIGKILL)
        codes, _ = finish(process)
    assert codes == [-signal.SIGKILL] * 6
    assert counted(check(ledger, tmp_path / "told"))["reserved"]


@pytest.mark.slow
def test_a_server_that_is_stopped_and_killed_under_load_loses_nothing(tmp_path):
    """Writers wait for it, and go on: none of them fails, and nothing is counted twice."""
    with postgres_server.serving() as server:
        place = server.new_url()
        ledger = opened(place, 20.0)
        with writing(place, tmp_path / "told", 3, 6) as (process, _):
            for lines, how in ((3, "fast"), (12, "immediate"), (24, "immediate")):
                wait_for(tmp_path / "told", lines)
                server.restart(how)
            codes, err = finish(process)
        assert codes == [0] * 3, err
        told = check(ledger, tmp_path / "told")
        assert counted(told)["reserved"] == 18
        assert list(told.values()) == [3 if what == "noted" else 1 for what, _ in told]
        kinds = Counter(json.loads(text)["kind"] for text, _ in ledger.read().entries)
        assert kinds["reserve"] == 18
        assert kinds["begin"] == 12
        assert kinds["settle"] == 6


@pytest.mark.slow
def test_a_standby_takes_over_under_load_and_nothing_is_lost(tmp_path):
    """A synchronous standby has all that was answered; writers find it by their URL."""
    with postgres_server.serving() as primary:
        standby = postgres_server.Server()
        try:
            schema = primary.new_schema()
            opened(primary.url(schema=schema), 20.0)
            standby.follow(primary)
            both = primary.url(schema=schema).replace(
                f"host={primary.socket}", f"host={primary.socket},{standby.socket}"
            )
            with writing(both, tmp_path / "told", 3, 6) as (process, _):
                wait_for(tmp_path / "told", 12)
                primary.stop("immediate")
                standby.control("promote")
                codes, err = finish(process)
            assert codes == [0] * 3, err
            ledger = Ledger(standby.url(schema=schema))
            told = check(ledger, tmp_path / "told")
            assert counted(told)["reserved"] == 18
        finally:
            standby.remove()


@pytest.mark.slow
def test_a_server_whose_whole_disk_is_full_loses_nothing(monkeypatch):
    """Its log cannot grow, and it goes down; with room it comes back, and has all it answered."""
    folder = Path(tempfile.mkdtemp(prefix="disk"))  # where its user may go, too
    folder.chmod(0o755)
    mount = ["mount", "-t", "tmpfs", "-o", "size=80m", "tmpfs", str(folder)]
    if postgres_server.why_not() or subprocess.run(mount, capture_output=True).returncode:
        folder.rmdir()
        pytest.skip("no server, or no disk can be mounted here")
    try:
        with postgres_server.serving(folder=folder, settings=["wal_init_zero=off"]) as server:
            ledger = opened(server.new_url(), 90.0)
            filling = folder / "filling"
            with filling.open("wb", buffering=0) as file, contextlib.suppress(OSError):
                while True:
                    file.write(b"x" * 65536)
            written = []

            def reserve_more():
                while True:
                    reserve(ledger, str(len(written)))
                    written.append(str(len(written)))

            monkeypatch.setattr("graphveil.privacy.ledger_server._PATIENCE", 1.0)
            with pytest.raises(InvalidInputError, match="cannot be used"):
                reserve_more()
            monkeypatch.undo()
            filling.unlink()
            server.stop()
            server.start()
            stand = list(ledger.verify().account("people").reservations)
            assert stand[: len(written)] == written
            assert len(stand) <= len(written) + 1
            reserve(ledger, "later")
    finally:
        subprocess.run(["umount", str(folder)], check=True)
        folder.rmdir()
