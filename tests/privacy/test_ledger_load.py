"""Many writers of one ledger, while it, its server or they are killed: nothing is under-counted."""

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import dp_accounting as dpa
import pytest

import postgres_server
from graphveil.privacy.ledger import Ledger
from graphveil.privacy.ledger_state import count_releases

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")

PROGRAM = Path(__file__).with_name("ledger_writers.py")


@contextmanager
def writing(place, folder, writers, each):
    """Writers at work; their process, and their ids."""
    folder.mkdir()
    process = subprocess.Popen(
        [sys.executable, str(PROGRAM), str(place), str(folder), str(writers), str(each)],
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


def opened(place, epsilon=3.0):
    ledger = Ledger(place)
    ledger.open("people", epsilon, 1e-3)
    return ledger


def counted(told):
    return Counter(what for what, _ in told)


@pytest.mark.parametrize("new_place", ["file", "server"], indirect=True)
def test_two_writers_agree_on_what_is_left(new_place, tmp_path):
    ledger = opened(new_place, 0.5)
    with writing(new_place, tmp_path / "told", 2, 5) as (process, _):
        codes, err = finish(process)
    assert codes == [0, 0], err
    told = counted(check(ledger, tmp_path / "told"))
    assert told["reserved"] + told["refused"] == 10
    assert told["reserved"]
    assert told["refused"]


@pytest.mark.slow
@pytest.mark.parametrize("new_place", ["file", "server"], indirect=True)
def test_eight_writers_of_25_reservations_do_not_overdraw(new_place, tmp_path):
    ledger = opened(new_place, 1.5)
    with writing(new_place, tmp_path / "told", 8, 25) as (process, _):
        codes, err = finish(process)
    assert codes == [0] * 8, err
    told = counted(check(ledger, tmp_path / "told"))
    assert told["reserved"] + told["refused"] == 200
    assert told["reserved"] >= 20
    assert told["refused"] >= 20
