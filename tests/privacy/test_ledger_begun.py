"""Begun is begun, settled is settled: what the ledger itself knows, whatever files say."""

import hashlib
import json
import os
import sqlite3
import stat
from contextlib import closing

import dp_accounting as dpa
import pytest

from graphveil import runs
from graphveil._errors import InvalidInputError
from graphveil.privacy import ledger_file
from graphveil.privacy.events import composed, repeated
from graphveil.privacy.guarantee import Charge
from graphveil.privacy.ledger import Ledger, round_down
from graphveil.privacy.ledger_state import (
    NO_HASH,
    Promise,
    canonical,
    charges_to_json,
    count_releases,
    entry_hash,
)

NODE = Promise(unit="node")


def charges(count=1, noise=40.0):
    return [Charge(paid_for="a test", event=repeated(dpa.GaussianDpEvent(noise), count))]


def reserve(ledger, id, count=30, name="people", **more):
    ledger.reserve(id, name, charges(count), NODE, purpose="a test", **more)


@pytest.fixture(params=["file", "server"])
def ledger(request, tmp_path):
    place = tmp_path / "study.ledger"
    if request.param == "server":
        place = request.getfixturevalue("postgres").new_url()
    found = Ledger(place)
    found.open("people", 3.0, 1e-5)
    return found


in_a_file = pytest.mark.parametrize("ledger", ["file"], indirect=True)


def test_what_has_begun_is_not_given_back_and_not_reserved_again(ledger):
    reserve(ledger, "one")
    ledger.begin("one", "first")
    assert ledger.read().reservation("one").begun
    with pytest.raises(InvalidInputError, match="not given back"):
        ledger.settle("one", [])
    with pytest.raises(InvalidInputError, match="has begun"):
        reserve(ledger, "one", 2)
    ledger.settle("one", charges(30), "first")
    with pytest.raises(InvalidInputError, match="settled already"):
        ledger.begin("one", "second", "first")


def test_of_two_copies_that_follow_the_same_turn_one_goes_on(ledger):
    reserve(ledger, "one")
    ledger.begin("one", "first")
    ledger.begin("one", "second", "first")
    for follows in (None, "first"):
        with pytest.raises(InvalidInputError, match="went on elsewhere"):
            ledger.begin("one", "copy", follows)
    ledger.note("one", "second", "checkpoint", 3)
    with pytest.raises(InvalidInputError, match="This one stops"):
        ledger.note("one", "first", "checkpoint", 4)
    with pytest.raises(InvalidInputError, match="do not use it"):
        ledger.settle("one", charges(30), "first")
    ledger.settle("one", charges(30), "second")
    with pytest.raises(InvalidInputError, match="This one stops"):
        ledger.note("one", "second", "checkpoint", 4)


def test_whoever_has_just_released_is_told_that_it_was_settled_before(ledger):
    reserve(ledger, "one")
    ledger.begin("one", "first")
    ledger.settle("one", charges(30), "first")
    ledger.settle("one", charges(30))  # the last files of a run that was killed here
    with pytest.raises(InvalidInputError, match="do not use it"):
        ledger.settle("one", charges(30), "first")


def test_a_run_does_not_settle_to_less_than_it_noted(ledger, tmp_path):
    reserve(ledger, "one")
    ledger.begin("one", "first")
    ledger.note("one", "first", "checkpoint", 20)
    ledger.note("one", "first", "checkpoint", 10)  # never less
    ledger.note("one", "first", "sums", 1)
    assert ledger.read().progress == {"one": {"checkpoint": 20, "sums": 1}}
    again = Ledger(tmp_path / "again.ledger")
    again.restore(ledger.export())
    for each in (ledger, again):
        with pytest.raises(InvalidInputError, match=r"21 releases that it began.*Got 20"):
            each.settle("one", charges(20), "first")
        each.settle("one", charges(21), "first")


@pytest.mark.parametrize(
    ("event", "count"),
    [
        (dpa.NoOpDpEvent(), 0),
        (dpa.GaussianDpEvent(1.0), 1),
        (repeated(dpa.GaussianDpEvent(1.0), 7), 7),
        (composed(dpa.GaussianDpEvent(2.0), repeated(dpa.GaussianDpEvent(1.0), 7)), 8),
        (dpa.PoissonSampledDpEvent(0.5, repeated(dpa.GaussianDpEvent(1.0), 7)), 7),
    ],
)
def test_releases_are_counted_in_every_part(event, count):
    assert count_releases([Charge(paid_for="a test", event=event)]) == count


# --- people, not bytes ----------------------------------------------------------------------------


def test_a_new_version_of_the_data_is_charged_to_the_same_account(ledger):
    ledger.open("others", 3.0, 1e-5, who="clients of the bank")
    reserve(ledger, "one", fingerprint="abc")
    reserve(ledger, "two", fingerprint="xyz")
    people = ledger.read().account("people")
    assert list(people.versions) == ["abc", "xyz"]
    assert people.seen.id == "two"
    assert people.who is None
    for version in ("abc", "xyz"):  # of either version there is one budget
        with pytest.raises(InvalidInputError, match="--account people"):
            reserve(ledger, "three", name="others", fingerprint=version)
    assert ledger.read().account("others").who == "clients of the bank"


@in_a_file
@pytest.mark.parametrize("who", ["", " ", "two\nlines", 5])
def test_who_is_in_an_account_is_said_on_one_line(ledger, who):
    with pytest.raises(InvalidInputError, match="in words on one line"):
        ledger.open("others", 3.0, 1e-5, who=who)


# --- the file -------------------------------------------------------------------------------------


class Crash(BaseException):
    """What a kill looks like from inside."""


def die(*_, **__):
    raise Crash


def test_a_kill_while_a_ledger_is_made_leaves_nothing_in_the_way(tmp_path, monkeypatch):
    ledger = Ledger(tmp_path / "study.ledger")
    for place in ("_connection", "_fill"):
        with monkeypatch.context() as patched:
            patched.setattr(ledger_file.FileEntries, place, die)
            with pytest.raises(Crash):
                ledger.open("people", 3.0, 1e-5)
        assert not ledger.path.exists()
    ledger.open("people", 3.0, 1e-5)
    assert [path.name for path in tmp_path.iterdir()] == ["study.ledger"]


def test_what_an_earlier_kill_left_is_made_a_ledger(tmp_path):
    """SQLite's header and no table: it was in the way for good."""
    path = tmp_path / "study.ledger"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
    assert path.stat().st_size == 4096
    Ledger(path).open("people", 3.0, 1e-5)
    assert list(Ledger(path).verify().accounts) == ["people"]


def test_a_full_disk_leaves_no_half_of_a_ledger(small_disk):
    ledger, made = Ledger(small_disk / "study.ledger"), []
    for room in range(4, 84, 4):
        (small_disk / "filling").write_bytes(b"x" * 1024 * (200 - room))
        try:
            ledger.open("people", 3.0, 1e-5)
            made.append(room)
        except InvalidInputError as error:
            assert str(ledger.path) in str(error)  # noqa: PT017
            assert [path.name for path in small_disk.iterdir()] == ["filling"]
        (small_disk / "filling").unlink()
        if ledger.path.exists():
            assert list(ledger.verify().accounts) == ["people"]
            for path in small_disk.iterdir():
                path.unlink()
    assert 0 < len(made) < 20


@pytest.mark.skipif(os.name != "posix", reason="needs file modes")
def test_a_ledger_is_its_owner_s_alone(tmp_path):
    before = os.umask(0)
    try:
        ledger = Ledger(tmp_path / "study.ledger")
        ledger.open("people", 3.0, 1e-5)
        reserve(ledger, "one")
        assert [path.name for path in tmp_path.iterdir()] == ["study.ledger"]
        assert stat.S_IMODE(ledger.path.stat().st_mode) == 0o600
    finally:
        os.umask(before)


@in_a_file
def test_fingerprints_are_keyed_with_a_secret_of_each_ledger(ledger, tmp_path):
    other = Ledger(tmp_path / "other.ledger")
    other.open("people", 3.0, 1e-5)

    def fingerprint(found):
        digest = found.read().fingerprint_hash()
        digest.update(b"somebody's row")
        return digest.hexdigest()

    guessed = {hashlib.new(name, b"somebody's row").hexdigest() for name in ("sha256", "blake2b")}
    assert len({fingerprint(ledger), fingerprint(other), *guessed}) == 4
    assert fingerprint(ledger) == fingerprint(ledger)


# --- ledgers of the first format ------------------------------------------------------------------


@pytest.fixture
def first_format(tmp_path):
    """As the first version wrote it: nobody noted what had begun."""
    path = tmp_path / "old.ledger"
    promise, listed = (
        {"unit": "node", "relation": "withhold"},
        [{"paid_for": "a test", "event": {"type": "GaussianDpEvent", "noise_multiplier": 9.0}}],
    )
    common = {"account": "people", "charges": listed, "promise": promise, "purpose": "x", "run": ""}
    bodies = [
        {"kind": "ledger", "format": 1, "salt": "5" * 32},
        {"kind": "open", "account": "people", "epsilon": 3.0, "delta": 1e-5},
        {"kind": "reserve", "id": "done", "fingerprint": "abc", **common},
        {"kind": "settle", "id": "done", "charges": listed},
        {"kind": "reserve", "id": "left", **common},
    ]
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(f"PRAGMA application_id = {ledger_file._APPLICATION}")
        for statement in ledger_file._SCHEMA:
            connection.execute(statement)
        before = NO_HASH
        for number, body in enumerate(bodies, 1):
            text = canonical(body)
            row = (number, text, before, entry_hash(before, text))
            connection.execute("INSERT INTO entries VALUES (?, ?, ?, ?)", row)
            before = row[3]
    return Ledger(path)


def test_a_ledger_of_the_first_format_is_read_as_it_is(first_format):
    before = first_format.path.read_bytes()
    state = first_format.verify()
    assert [each.id for each in state.account("people").waiting] == ["left"]
    digest = state.fingerprint_hash()
    digest.update(b"data")
    assert digest.hexdigest() == hashlib.sha256(b"5" * 32 + b"data").hexdigest()
    assert first_format.path.read_bytes() == before


def test_a_ledger_of_the_first_format_goes_on_in_the_new_one(first_format):
    """What it had reserved and not settled may have begun: it stays charged."""
    reserve(first_format, "new")
    kinds = [json.loads(text)["kind"] for text, _ in first_format.read().entries]
    assert kinds[5:] == ["format", "reserve"]
    state = first_format.verify()
    assert {id: state.reservation(id).begun for id in ("done", "left", "new")} == {
        "done": False,
        "left": True,
        "new": False,
    }
    with pytest.raises(InvalidInputError, match="not given back"):
        first_format.settle("left", [])
    with pytest.raises(InvalidInputError, match="went on elsewhere"):
        first_format.begin("left", "a turn")
    first_format.begin("new", "a turn")
    first_format.note("new", "a turn", "checkpoint", 3)
    reserve(first_format, "later")
    assert [json.loads(t)["kind"] for t, _ in first_format.read().entries].count("format") == 1
    again = Ledger(first_format.path.with_name("again.ledger"))
    again.restore(first_format.export())
    assert again.verify() == first_format.read()


@pytest.mark.parametrize("purpose", ["training, dp-mlp", "a noisy prediction"])
def test_a_noisy_prediction_is_told_by_a_field_and_in_old_entries_by_its_purpose(ledger, purpose):
    old = purpose == "a noisy prediction"  # as it was written before there was a field
    ledger.reserve("old", "people", charges(2), NODE, purpose=purpose)
    ledger.reserve("new", "people", charges(2), NODE, purpose="in other words", prediction=True)
    state = ledger.verify()
    assert state.reservation("old").prediction is old
    assert state.reservation("new").prediction is True
    entries = len(state.entries)
    ledger.reserve("old", "people", charges(2), NODE, purpose=purpose, prediction=old)
    assert len(ledger.read().entries) == entries  # the same reservation, though it says more


def written(ledger, id, listed):
    """Append a settlement as somebody can who writes to the place; the chain fits."""
    state = ledger.read()
    text = canonical({"kind": "settle", "id": id, "charges": charges_to_json(listed)})
    row = (len(state.entries) + 1, text, state.head, entry_hash(state.head, text))
    assert ledger._entries.append([row], (len(state.entries), state.head))


CHEAP, DEAR = dpa.GaussianDpEvent(90.0), dpa.GaussianDpEvent(10.0)
OTHERS = {
    "more noise": charges(30, noise=400.0),
    "more often, and less of another": [Charge(paid_for="a test", event=repeated(CHEAP, 31))],
    "nothing, in words": [Charge(paid_for="a test", event=dpa.NoOpDpEvent())],
}


@pytest.mark.parametrize("how", OTHERS)
def test_what_has_begun_is_settled_to_the_events_that_were_reserved(ledger, how):
    mixed = [Charge(paid_for="a test", event=composed(repeated(CHEAP, 30), DEAR))]
    asked = mixed if how.startswith("more often") else charges(30)
    ledger.reserve("one", "people", asked, NODE, purpose="a test")
    ledger.begin("one", "first")
    ledger.note("one", "first", "checkpoint", 30)
    before = ledger.read().account("people").spent()
    with pytest.raises(InvalidInputError, match=r"(events that it reserved|not given back|Got 0)"):
        ledger.settle("one", OTHERS[how], "first")
    assert ledger.read().account("people").spent() == before
    written(ledger, "one", OTHERS[how])
    with pytest.raises(InvalidInputError, match="does not hold: entry 5 cannot be"):
        ledger.read()


def test_what_was_reserved_may_be_settled_in_parts_and_to_more(ledger):
    mixed = [Charge(paid_for="a test", event=composed(repeated(CHEAP, 30), DEAR))]
    for number, paid in enumerate((20, 30, 4000)):
        ledger.reserve(str(number), "people", mixed, NODE, purpose="a test")
        ledger.begin(str(number), "first")
        parts = [Charge(paid_for="one", event=DEAR), Charge(paid_for="two", event=CHEAP)]
        parts += [Charge(paid_for="the rest", event=repeated(CHEAP, paid - 1))]
        ledger.settle(str(number), parts, "first")
    assert count_releases(ledger.read().reservation("2").charges) == 4001


def test_no_part_of_a_run_begins_more_than_all_of_it_reserved(ledger):
    reserve(ledger, "one", 30)
    ledger.begin("one", "first")
    ledger.note("one", "first", "checkpoint", 29)
    ledger.note("one", "first", "sums", 1)
    for place, count in (("checkpoint", 30), ("sums", 2), ("../elsewhere", 1)):
        with pytest.raises(InvalidInputError, match=r"at most the 30 releases.*Got 31 instead"):
            ledger.note("one", "first", place, count)
    assert ledger.read().releases_begun("one") == 30


@in_a_file
@pytest.mark.skipif(os.name != "posix", reason="needs hard links")
def test_a_ledger_has_one_name(ledger, tmp_path):
    """What a kill left beside one name is not seen by whoever opens the other."""
    os.link(ledger.path, tmp_path / ".study.ledger.made")  # as a kill leaves it when it is made
    reserve(ledger, "one", 2)
    assert not (tmp_path / ".study.ledger.made").exists()
    os.link(ledger.path, tmp_path / "other.ledger")
    for name in (ledger.path, tmp_path / "other.ledger"):
        with pytest.raises(InvalidInputError, match=r"must have one name. Got a file of 2"):
            reserve(Ledger(name), "two", 2)
    (tmp_path / "other.ledger").unlink()
    (tmp_path / "other.ledger").symlink_to(ledger.path)
    reserve(Ledger(tmp_path / "other.ledger"), "two", 2)
    assert len(ledger.verify().account("people").charged) == 2


def test_what_is_left_is_never_more_than_there_is(tmp_path):
    ledger = Ledger(tmp_path / "large.ledger")
    ledger.open("people", 1e308, 1e-3)
    reserve(ledger, "one", 2)
    assert round_down(ledger.read().account("people").left()) == "1e+308"
    assert round_down(5e-324) == "0"


def test_a_run_of_the_first_format_that_goes_on_is_no_false_alarm(first_format, tmp_path):
    """Nobody noted there what had begun, and all of it is charged."""
    (tmp_path / "run" / "checkpoint").mkdir(parents=True)
    (tmp_path / "run" / "checkpoint" / "steps").write_bytes(b".")
    (tmp_path / "run" / "settings.json").write_text("{}")
    named = {"ledger": str(first_format.path), "account": "people", "reservation": "left"}
    (tmp_path / "run" / "ledger.json").write_text(json.dumps({"format": 1, **named}))
    assert runs.check_charged(first_format.path, [tmp_path / "run"]) == 1
