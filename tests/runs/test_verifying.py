"""Run directories against their ledger: one that charges less than they say is found."""

import contextlib
import shutil
import sqlite3
from dataclasses import replace

import pytest
from runs_cases import DATA, Crash, crash, long, method, people, remove, train

from graphveil._errors import InvalidInputError
from graphveil.methods import LateGraph
from graphveil.privacy.ledger import Ledger
from graphveil.privacy.ledger_state import canonical, charges_to_json, entry_hash
from graphveil.runs import Run, check_charged


def forged(ledger, id, charges, kind="settle"):
    """Append an entry as somebody can who writes to the file; the chain fits."""
    book = ledger.read()
    text = canonical({"kind": kind, "id": id, "charges": charges_to_json(charges)})
    row = (len(book.entries) + 1, text, book.head, entry_hash(book.head, text))
    with contextlib.closing(sqlite3.connect(ledger.path)) as connection, connection:
        connection.execute("INSERT INTO entries VALUES (?, ?, ?, ?)", row)


def test_runs_that_are_charged_what_they_say_pass(tmp_path, source, ledger, killed):
    train(tmp_path / "done", source, ledger, method(2.0, LateGraph))
    Run(tmp_path / "done").predict(DATA, mode="noisy", epsilon=1.0)
    assert check_charged(ledger.path, [killed, tmp_path / "done"]) == 3
    remove(tmp_path / "done", "ledger.json")  # its events.json has the reservation, too
    assert check_charged(ledger.path, [tmp_path / "done"]) == 2
    Run(tmp_path / "plain").train(method(1.0), source)
    with pytest.raises(InvalidInputError, match="leave it out"):
        check_charged(ledger.path, [tmp_path / "plain"])
    shutil.copytree(tmp_path / "done", tmp_path / "copy")
    with pytest.raises(InvalidInputError, match="copied"):
        check_charged(ledger.path, [tmp_path / "done", tmp_path / "copy"])


def test_a_forged_settlement_is_found_in_the_run(tmp_path, source, ledger, monkeypatch):
    """A kill leaves the reservation, and somebody settles it to a single step."""
    with monkeypatch.context() as patched:
        patched.setattr("graphveil.runs.charging.Ledger.settle", crash)
        with pytest.raises(Crash):
            train(tmp_path / "run", source, ledger, long())
    head, found = ledger.read().head, people(ledger).charged[0]
    each = found.charges[0]
    forged(ledger, found.id, [replace(each, event=each.event.event)])
    with pytest.raises(InvalidInputError, match="charged less than the run began"):
        ledger.verify()
    with contextlib.closing(sqlite3.connect(ledger.path)) as connection, connection:
        connection.execute("DELETE FROM progress")
    with pytest.raises(InvalidInputError, match="settled already"):
        train(tmp_path / "run", source, ledger, long(), resume=True)
    ledger.verify(head)  # neither the chain nor a head kept elsewhere tells
    with pytest.raises(InvalidInputError, match="released other charges than these") as said:
        check_charged(ledger.path, [tmp_path / "run"])
    assert "\n" not in str(said.value)


def test_a_begun_run_settled_to_nothing_is_no_ledger(killed, ledger):
    forged(ledger, Run(killed).charged_to()["reservation"], [])
    with pytest.raises(InvalidInputError, match="has begun: what it may have released"):
        ledger.read()


def test_a_ledger_put_back_from_a_copy_is_found_in_the_run(tmp_path, source, ledger):
    shutil.copy(ledger.path, tmp_path / "copy.ledger")
    train(tmp_path / "run", source, ledger, method(2.0, LateGraph))
    shutil.copy(ledger.path, tmp_path / "later.ledger")
    shutil.copy(ledger.path, tmp_path / "cut.ledger")
    with contextlib.closing(sqlite3.connect(tmp_path / "cut.ledger")) as connection, connection:
        connection.execute("DROP TRIGGER no_delete")
        connection.execute("DELETE FROM entries WHERE seq = (SELECT max(seq) FROM entries)")
    Run(tmp_path / "run").predict(DATA, mode="noisy", epsilon=1.0)
    for name, why in (
        ("copy", "does not know the run"),
        ("cut", "is finished, and is not settled"),
        ("later", "1 noisy predictions"),
    ):
        Ledger(tmp_path / f"{name}.ledger").verify()
        with pytest.raises(InvalidInputError, match=why):
            check_charged(tmp_path / f"{name}.ledger", [tmp_path / "run"])
