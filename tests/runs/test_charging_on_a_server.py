"""Runs that are charged to a ledger on a server: as to a file, and none without it."""

import json

import pytest
from runs_cases import DELTA, Crash, die_at, long, method, people, train

import postgres_proxy
from graphveil._errors import BudgetError, GraphveilError, InvalidInputError
from graphveil.grads.step import PrivateStep
from graphveil.privacy import ledger_entries
from graphveil.privacy.ledger import Ledger
from graphveil.privacy.ledger_state import count_releases
from graphveil.runs import Run, check_charged


@pytest.fixture
def ledger(postgres):
    made = Ledger(postgres.new_url())
    made.open("people", 10.0, DELTA)
    return made


@pytest.fixture
def proxy(postgres, monkeypatch):
    from graphveil.privacy import ledger_server

    for name, seconds in (("_PAUSE", 0.001), ("_FIRST", 0.05), ("_PATIENCE", 0.05)):
        monkeypatch.setattr(ledger_server, name, seconds)
    made = postgres_proxy.Proxy(postgres)
    yield made
    made.close()


def test_a_run_reserves_begins_and_settles(tmp_path, source, ledger):
    made = train(tmp_path / "run", source, ledger)
    noted = Run(tmp_path / "run").charged_to()
    assert noted["ledger"] == ledger.place
    assert people(ledger).reservations[noted["reservation"]].settled == tuple(made.charges_)
    kinds = [json.loads(text)["kind"] for text, _ in ledger.read().entries]
    assert kinds[2:] == ["reserve", "begin", "settle"]
    assert check_charged(ledger.place, [tmp_path / "run"]) == 1
    with pytest.raises(BudgetError, match="would fit"):
        train(tmp_path / "second", source, ledger, method(9.0))
    assert not (tmp_path / "second").exists()


def test_a_killed_run_goes_on_under_its_own_reservation(tmp_path, source, ledger, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(PrivateStep, "__call__", die_at(5))
        with pytest.raises(Crash):
            train(tmp_path / "run", source, ledger, long())
    (held,) = people(ledger).charged
    assert held.begun
    assert ledger.read().releases_begun(held.id) >= 5
    Run(tmp_path / "run").train(long(), source, resume=True)
    assert [one.id for one in people(ledger).charged] == [held.id]
    assert not people(ledger).waiting


def test_a_run_releases_nothing_that_it_could_not_note(tmp_path, source, ledger, released, proxy):
    """The server goes away at every message in turn: what was released is charged, always."""
    through, number, finished = Ledger(proxy.url(ledger.place)), 1, False
    while not finished:
        released.clear()
        before = {held.id for held in people(ledger).charged}
        proxy.cut(number, always=True)
        try:
            train(tmp_path / str(number), source, through, method(0.2))
            finished = True
        except GraphveilError as error:
            assert "\n" not in str(error)  # noqa: PT017
        proxy.cut(None)
        charged = [held for held in people(ledger).charged if held.id not in before]
        paid = sum(count_releases(held.charges) for held in charged)
        assert len(released) <= paid, number
        if released:
            assert all(held.begun for held in charged)
        number += 15
    assert number > 30
    assert released


def test_a_run_of_a_ledger_that_was_moved_goes_on_where_it_is_now(
    tmp_path, source, ledger, monkeypatch
):
    with monkeypatch.context() as patched:
        patched.setattr(PrivateStep, "__call__", die_at(5))
        with pytest.raises(Crash):
            train(tmp_path / "run", source, ledger, long())
    now = Ledger(tmp_path / "study.ledger")
    ledger.move(now)
    with pytest.raises(InvalidInputError, match="goes on at"):
        Run(tmp_path / "run").train(long(), source, resume=True)
    Run(tmp_path / "run").train(long(), source, ledger=now.path, resume=True)
    assert check_charged(now.path, [tmp_path / "run"]) == 1


def test_no_file_of_a_run_holds_a_password(tmp_path, source, ledger):
    place = ledger.place.replace("postgres@", "postgres:geheim7@")
    Run(tmp_path / "run").train(method(), source, ledger=place)
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert (tmp_path / "run" / "ledger.json") in files
    assert not [path for path in files if b"geheim7" in path.read_bytes()]
    assert ledger_entries.is_url(Run(tmp_path / "run").charged_to()["ledger"])
