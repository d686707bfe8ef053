"""A run that has released stays charged, and goes on once, whatever happens to its files."""

import contextlib
import json
import os
import shutil
import sqlite3
import stat
from dataclasses import replace

import pytest
import torch

import prices
from graphveil import runs
from graphveil._errors import InvalidInputError
from graphveil.grads.step import PrivateStep
from graphveil.mechanisms import Gaussian
from graphveil.methods import GAP, Facts, LateGraph, private
from graphveil.privacy.ledger import Ledger
from graphveil.privacy.ledger_state import canonical, charges_to_json, count_releases, entry_hash
from graphveil.runs.charging import Spending, begun
from graphveil.tuning import Tuning, search, values_of
from ledger_cases import DATA, DELTA, Crash, Given, crash, method, people, train

STEPS = 12


@pytest.fixture(autouse=True)
def source(monkeypatch):
    """Data in memory; a plan's noise is sought once."""
    monkeypatch.setattr(private, "calibrate", prices.calibrate)
    monkeypatch.setattr(Given, "data_now", DATA)
    return Given(data="memory")


@pytest.fixture
def ledger(tmp_path):
    found = Ledger(tmp_path / "study.ledger")
    found.open("people", 10.0, DELTA)
    return found


@pytest.fixture
def released(monkeypatch):
    """How often noise was added to anything, whatever the files say."""
    counted, real = [], Gaussian.release

    def release(self, *given, **how):
        counted.append(self)
        return real(self, *given, **how)

    monkeypatch.setattr(Gaussian, "release", release)
    return counted


def long():
    return method(2.0, steps=STEPS)


def die_at(number):
    """A step that dies, as by a kill, once so many were taken."""
    real, left = PrivateStep.__call__, iter(range(1, 1000))

    def step(self):
        real(self)
        if next(left) == number:
            raise Crash

    return step


@pytest.fixture
def killed(tmp_path, source, ledger, released, monkeypatch):
    """A run that was killed after eleven of its twelve steps; the last checkpoint has ten."""
    with monkeypatch.context() as patched:
        patched.setattr(PrivateStep, "__call__", die_at(11))
        with pytest.raises(Crash):
            train(tmp_path / "run", source, ledger, long())
    assert len(released) == 11
    return tmp_path / "run"


def remove(directory, *names):
    for name in names:
        path = directory / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def empty_journal(directory):
    (directory / "checkpoint" / "steps").write_bytes(b"")


def forget(directory):
    """The journal and the checkpoint agree that nothing was begun."""
    empty_journal(directory)
    place = directory / "checkpoint" / "checkpoint.pt"
    state = torch.load(place, weights_only=True)
    state["taken"] = 0
    torch.save(state, place)


DAMAGE = {
    "journal": lambda run: remove(run, "checkpoint/steps"),
    "checkpoint and journal": lambda run: remove(
        run, "checkpoint/steps", "checkpoint/checkpoint.pt"
    ),
    "directory and settings": lambda run: remove(run, "checkpoint", "settings.json"),
    "directory": lambda run: remove(run, "checkpoint"),
    "turn": lambda run: remove(run, "checkpoint/turn.json"),
    "journal emptied": empty_journal,
    "all counts forgotten": forget,
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_files_that_are_gone_give_nothing_back(killed, source, ledger, released, damage):
    DAMAGE[damage](killed)
    train(killed, source, ledger, long(), force=True)
    charged = people(ledger).charged
    assert len(charged) == 2
    assert sum(count_releases(each.charges) for each in charged) == 2 * STEPS >= len(released)
    ledger.verify()


@pytest.mark.parametrize("damage", DAMAGE)
def test_files_that_are_gone_take_no_step_twice(killed, source, ledger, released, damage):
    """It goes on with all that the ledger knows, or it does not go on."""
    DAMAGE[damage](killed)
    if damage == "all counts forgotten":
        made = train(killed, source, ledger, long(), resume=True)
        assert count_releases(made.charges_) == STEPS
    else:
        with pytest.raises(InvalidInputError) as refused:
            train(killed, source, ledger, long(), resume=True)
        assert "\n" not in str(refused.value)
    assert len(released) <= STEPS
    (charged,) = people(ledger).charged
    assert count_releases(charged.charges) == STEPS


def test_a_checkpoint_put_back_from_a_copy_takes_no_step_twice(
    tmp_path, source, ledger, released, monkeypatch
):
    """The copy was made after five steps, its run killed after eleven."""
    real, left = PrivateStep.__call__, iter(range(1, 100))

    def step(self):
        real(self)
        taken = next(left)
        if taken == 5:
            shutil.copytree(tmp_path / "run" / "checkpoint", tmp_path / "copy")
        if taken == 11:
            raise Crash

    with monkeypatch.context() as patched:
        patched.setattr(PrivateStep, "__call__", step)
        with pytest.raises(Crash):
            train(tmp_path / "run", source, ledger, long())
    remove(tmp_path / "run", "checkpoint")
    shutil.copytree(tmp_path / "copy", tmp_path / "run" / "checkpoint")
    made = train(tmp_path / "run", source, ledger, long(), resume=True)
    assert len(released) == STEPS == count_releases(made.charges_)


@pytest.mark.parametrize("charged", [True, False])
@pytest.mark.parametrize("edited", ["one_step", "earlier"])
def test_a_checkpoint_does_not_say_that_there_was_more_noise(
    tmp_path, source, ledger, released, monkeypatch, charged, edited
):
    """Steps under other settings would be charged as what the checkpoint says of them."""
    of = {"ledger": ledger.path} if charged else {}
    with monkeypatch.context() as patched:
        patched.setattr(PrivateStep, "__call__", die_at(11))
        with pytest.raises(Crash):
            runs.train(long(), None, tmp_path / "run", source, **of)
    place = tmp_path / "run" / "checkpoint" / "checkpoint.pt"
    state = torch.load(place, weights_only=True)
    state[edited] = {**state["one_step"], "noise_multiplier": 1e6}
    torch.save(state, place)
    with pytest.raises(InvalidInputError, match=r"other noise or batches.*--force"):
        runs.train(long(), None, tmp_path / "run", source, resume=True, **of)
    assert len(released) == 11


def test_a_checkpoint_behind_a_link_takes_no_step_twice(killed, source, ledger, released, tmp_path):
    """A part of a run has one name, wherever a link leads."""
    (killed / "checkpoint").rename(tmp_path / "before")
    (tmp_path / "fresh").mkdir()
    for name in ("turn.json", "data.sha256"):
        shutil.copy(tmp_path / "before" / name, tmp_path / "fresh" / name)
    (killed / "checkpoint").symlink_to(tmp_path / "fresh")
    with pytest.raises(InvalidInputError, match="journal is gone"):
        train(killed, source, ledger, long(), resume=True)
    assert len(released) == 11
    shutil.copy(tmp_path / "fresh" / "turn.json", tmp_path / "before" / "turn.json")
    (killed / "checkpoint").unlink()
    (killed / "checkpoint").symlink_to(tmp_path / "before")  # as on another disk
    train(killed, source, ledger, long(), resume=True)
    assert len(released) == STEPS


def test_a_copy_of_a_run_does_not_go_on_as_well(killed, source, ledger, released):
    copy = killed.with_name("copy")
    shutil.copytree(killed, copy)
    train(killed, source, ledger, long(), resume=True)
    with pytest.raises(InvalidInputError, match=r"is settled, as by a copy.*--force"):
        train(copy, source, ledger, long(), resume=True)
    assert len(released) == STEPS
    assert not (copy / "events.json").exists()


def test_a_copy_of_a_run_that_was_killed_again_does_not_go_on(
    killed, source, ledger, released, monkeypatch
):
    """Neither is settled: what tells them apart is whose turn it is."""
    copy = killed.with_name("copy")
    shutil.copytree(killed, copy)
    with monkeypatch.context() as patched:
        patched.setattr(PrivateStep, "_draw", crash)
        with pytest.raises(Crash):
            train(killed, source, ledger, long(), resume=True)
    with pytest.raises(InvalidInputError, match="not the one that the ledger knows"):
        train(copy, source, ledger, long(), resume=True)
    train(killed, source, ledger, long(), resume=True)
    assert len(released) <= STEPS


def test_of_two_copies_that_ask_at_the_same_moment_one_begins(killed, ledger):
    """Both have seen that it is their turn before either takes it."""
    copy = killed.with_name("copy")
    shutil.copytree(killed, copy)
    first, second = (begun(each, "training", None, None, True) for each in (killed, copy))
    first.begin(killed)
    with pytest.raises(InvalidInputError, match="went on elsewhere"):
        second.begin(copy)
    with pytest.raises(InvalidInputError, match="not the one that the ledger knows"):
        begun(copy, "training", None, None, True)
    assert begun(killed, "training", None, None, True).id == first.id


def test_a_run_whose_beginning_was_not_noted_begins_again(
    tmp_path, source, ledger, released, monkeypatch
):
    """Its files have a turn that the ledger never heard of: nothing was released."""
    with monkeypatch.context() as patched:
        patched.setattr("graphveil.runs.charging.Ledger.begin", crash)
        with pytest.raises(Crash):
            train(tmp_path / "run", source, ledger, long())
    assert (tmp_path / "run" / "checkpoint" / "turn.json").exists()
    assert not released
    train(tmp_path / "run", source, ledger, long(), resume=True)
    assert len(released) == STEPS


def test_a_run_stops_when_a_copy_of_it_has_gone_on(tmp_path, source, ledger, released, monkeypatch):
    """The copy is made, and trained, while the run takes its fourth step."""
    real, left = PrivateStep.__call__, iter(range(1, 100))

    def step(self):
        real(self)
        if next(left) == 3:
            shutil.copytree(tmp_path / "run", tmp_path / "copy")
            train(tmp_path / "copy", source, ledger, long(), resume=True)

    monkeypatch.setattr(PrivateStep, "__call__", step)
    with pytest.raises(InvalidInputError, match="This one stops"):
        train(tmp_path / "run", source, ledger, long())
    assert len(released) == STEPS
    assert runs.state(tmp_path / "copy") == "finished"
    assert runs.state(tmp_path / "run") == "unfinished"
    assert count_releases(people(ledger).charged[0].settled) == STEPS


def test_what_is_settled_elsewhere_while_a_run_is_measured_is_not_finished(
    killed, source, ledger, monkeypatch
):
    real = runs.training.measure

    def measure(*given):
        ledger.settle(runs.charged_to(killed)["reservation"], long_charges)
        return real(*given)

    long_charges = people(ledger).charged[0].reserved
    monkeypatch.setattr("graphveil.runs.training.measure", measure)
    with pytest.raises(InvalidInputError, match="do not use it"):
        train(killed, source, ledger, long(), resume=True)
    assert runs.state(killed) == "unfinished"


@pytest.mark.parametrize("also", ["events", "events and journal"])
def test_events_json_does_not_lower_a_settlement(tmp_path, source, ledger, monkeypatch, also):
    with monkeypatch.context() as patched:
        patched.setattr("graphveil.runs.charging.Ledger.settle", crash)
        with pytest.raises(Crash):
            train(tmp_path / "run", source, ledger, long())
    place = tmp_path / "run" / "events.json"
    content = json.loads(place.read_text())
    content["charges"][0]["event"]["count"] = 2
    place.write_text(json.dumps(content))
    if also != "events":
        (tmp_path / "run" / "checkpoint" / "steps").write_bytes(b"..")
    with pytest.raises(InvalidInputError, match="12"):
        train(tmp_path / "run", source, ledger, long(), resume=True)
    assert count_releases(people(ledger).charged[0].charges) == STEPS
    content["charges"][0]["event"]["count"] = STEPS
    place.write_text(json.dumps(content))
    (tmp_path / "run" / "checkpoint" / "steps").write_bytes(b"." * STEPS)
    train(tmp_path / "run", source, ledger, long(), resume=True)
    assert not people(ledger).waiting


@pytest.mark.parametrize("charged", [True, False])
def test_events_json_does_not_say_that_there_was_more_noise(
    tmp_path, source, ledger, monkeypatch, charged
):
    """As many releases, and others than were made: the plan knows, and so does the ledger."""
    run, of = tmp_path / "run", {"ledger": ledger.path} if charged else {}
    with monkeypatch.context() as patched:
        patched.setattr("graphveil.runs.directory.log", crash)
        patched.setattr("graphveil.runs.charging.Ledger.settle", crash)
        with pytest.raises(Crash):
            runs.train(long(), None, run, source, **of)
    content = json.loads((run / "events.json").read_text())
    content["charges"][0]["event"]["event"]["noise_multiplier"] *= 50
    (run / "events.json").write_text(json.dumps(content))
    before = people(ledger).spent()
    with pytest.raises(InvalidInputError, match=r"events.json with other events.*--force"):
        runs.train(long(), None, run, source, resume=True, **of)
    assert people(ledger).spent() == before
    assert runs.state(run) == "unfinished"


def test_noisy_sums_that_are_gone_are_not_drawn_again(
    tmp_path, source, ledger, released, monkeypatch
):
    """Released before, or between, the steps: the ledger knows of them, too."""
    made = method(4.0, GAP, steps=2, hops=1)
    train(tmp_path / "whole", source, ledger, made)
    whole = len(released)
    with monkeypatch.context() as patched:
        patched.setattr("graphveil.runs.training.measure", crash)
        with pytest.raises(Crash):
            train(tmp_path / "run", source, ledger, method(4.0, GAP, steps=2, hops=1))
    assert len(released) == 2 * whole
    remove(tmp_path / "run", "checkpoint/hop1.safetensors")
    with pytest.raises(InvalidInputError, match=r"paid for once, and is gone.*--force"):
        train(tmp_path / "run", source, ledger, method(4.0, GAP, steps=2, hops=1), resume=True)
    assert len(released) == 2 * whole


@pytest.mark.parametrize("when", ["before the note", "after it"])
def test_noisy_sums_are_not_on_disk_before_they_are_noted(
    tmp_path, source, ledger, released, monkeypatch, when
):
    """Else whoever takes the file away has them drawn again."""
    run, real = tmp_path / "run", Spending.note

    def note(self, place, count):
        if place.name == "hop1.safetensors":
            if when == "after it":
                real(self, place, count)
            raise Crash
        real(self, place, count)

    with monkeypatch.context() as patched:
        patched.setattr(Spending, "note", note)
        with pytest.raises(Crash):
            train(run, source, ledger, method(4.0, GAP, steps=2, hops=1))
    assert not (run / "checkpoint" / "hop1.safetensors").exists()
    before = len(released)
    if when == "before the note":  # nobody has seen them
        train(run, source, ledger, method(4.0, GAP, steps=2, hops=1), resume=True)
    else:
        with pytest.raises(InvalidInputError, match="paid for once, and is gone"):
            train(run, source, ledger, method(4.0, GAP, steps=2, hops=1), resume=True)
        assert len(released) == before


def test_a_run_without_its_ledger_json_does_not_go_on_outside_the_ledger(killed, source, ledger):
    remove(killed, "ledger.json")
    for where in ({}, {"ledger": ledger.path}):
        with pytest.raises(InvalidInputError, match=r"its ledger\.json is gone"):
            runs.train(long(), None, killed, source, resume=True, **where)


def test_the_ledger_hears_of_a_long_run_in_hundredths(tmp_path, source, ledger, monkeypatch):
    """And what it heard of and was not taken before a crash is not taken afterwards."""
    steps = 250
    with monkeypatch.context() as patched:
        patched.setattr(PrivateStep, "__call__", die_at(101))
        with pytest.raises(Crash):
            train(tmp_path / "run", source, ledger, method(2.0, steps=steps))
    id = runs.charged_to(tmp_path / "run")["reservation"]
    assert ledger.read().progress[id] == {"checkpoint": 102}
    made = train(tmp_path / "run", source, ledger, method(2.0, steps=steps), resume=True)
    assert count_releases(made.charges_) == steps


# --- predictions, and versions of the data --------------------------------------------------------


def test_a_prediction_that_has_begun_is_not_given_back(tmp_path, source, ledger, monkeypatch):
    train(tmp_path / "run", source, ledger, method(kind=LateGraph))
    with monkeypatch.context() as patched:
        patched.setattr(Gaussian, "release", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            runs.predict(tmp_path / "run", DATA, mode="noisy", epsilon=1.0)
    (waiting,) = people(ledger).waiting
    assert waiting.begun
    narrow = DATA.clone()
    narrow.x = narrow.x[:, :2]
    with pytest.raises(InvalidInputError, match="must have 5 columns"):
        runs.predict(tmp_path / "run", narrow, mode="noisy", epsilon=1.0)
    assert len(people(ledger).charged) == 2  # which was refused while it cost nothing


def test_people_whose_data_has_changed_are_charged_as_the_same(
    tmp_path, source, ledger, monkeypatch
):
    ledger.open("others", 10.0, DELTA)
    train(tmp_path / "first", source, ledger, account="people")
    changed = DATA.clone()
    changed.y[0] = (changed.y[0] + 1) % 3
    monkeypatch.setattr(Given, "data_now", changed)
    said = []
    train(tmp_path / "second", source, ledger, account="people", notify=said.append)
    assert len(people(ledger).charged) == len(people(ledger).versions) == 2
    assert "version 2" in said[0]
    assert len(said) == 1
    train(tmp_path / "third", source, ledger, account="people", notify=said.append)
    assert len(said) == 1
    for data in (DATA, changed):
        monkeypatch.setattr(Given, "data_now", data)
        with pytest.raises(InvalidInputError, match="--account people"):
            train(tmp_path / "fourth", source, ledger, account="others")


# --- private files --------------------------------------------------------------------------------


@pytest.mark.skipif(os.name != "posix", reason="needs file modes")
@pytest.mark.parametrize("charged", [True, False])
def test_private_files_are_their_owner_s_alone(tmp_path, source, ledger, monkeypatch, charged):
    where = {"ledger": ledger.path} if charged else {}
    before = os.umask(0)
    try:
        with monkeypatch.context() as patched:
            patched.setattr("graphveil.runs.training.measure", crash)
            made = method(4.0, GAP, steps=2)
            with pytest.raises(Crash):
                runs.train(made, None, tmp_path / "run", source, private_losses=True, **where)
    finally:
        os.umask(before)
    run = tmp_path / "run"
    found = [run, run / "private-losses.jsonl", run / "checkpoint"]
    found += [*(run / "checkpoint").rglob("*"), *([run / "ledger.json"] if charged else [])]
    names = {path.name for path in found}
    assert {"data.sha256", "checkpoint.pt", "steps", "hop1.safetensors"} < names
    for path in found:
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o700 if path.is_dir() else 0o600), (path, oct(mode))


def test_what_a_checkpoint_keeps_of_the_data_is_keyed(tmp_path, source, ledger, monkeypatch):
    """Two runs on the same data keep different hashes, and no hash that a guess could check."""
    monkeypatch.setattr("graphveil.runs.training.measure", crash)
    for name, where in (("one", {}), ("two", {}), ("charged", {"ledger": ledger.path})):
        with pytest.raises(Crash):
            runs.train(method(2.0), None, tmp_path / name, source, **where)
    kept = {
        (tmp_path / name / "checkpoint" / "data.sha256").read_text()
        for name in ("one", "two", "charged")
    }
    assert len(kept) == 3
    assert not (tmp_path / "charged" / "checkpoint" / "data.key").exists()  # it is the ledger's


# --- runs against the ledger ----------------------------------------------------------------------


def forged(ledger, id, charges, kind="settle"):
    """Append an entry as somebody can who writes to the file; the chain fits."""
    book = ledger.read()
    text = canonical({"kind": kind, "id": id, "charges": charges_to_json(charges)})
    row = (len(book.entries) + 1, text, book.head, entry_hash(book.head, text))
    with contextlib.closing(sqlite3.connect(ledger.path)) as connection, connection:
        connection.execute("INSERT INTO entries VALUES (?, ?, ?, ?)", row)


def test_runs_that_are_charged_what_they_say_pass(tmp_path, source, ledger, killed):
    train(tmp_path / "done", source, ledger, method(2.0, LateGraph))
    runs.predict(tmp_path / "done", DATA, mode="noisy", epsilon=1.0)
    assert runs.check_charged(ledger.path, [killed, tmp_path / "done"]) == 3
    remove(tmp_path / "done", "ledger.json")  # its events.json has the reservation, too
    assert runs.check_charged(ledger.path, [tmp_path / "done"]) == 2
    runs.train(method(1.0), None, tmp_path / "plain", source)
    with pytest.raises(InvalidInputError, match="leave it out"):
        runs.check_charged(ledger.path, [tmp_path / "plain"])
    shutil.copytree(tmp_path / "done", tmp_path / "copy")
    with pytest.raises(InvalidInputError, match="copied"):
        runs.check_charged(ledger.path, [tmp_path / "done", tmp_path / "copy"])


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
        runs.check_charged(ledger.path, [tmp_path / "run"])
    assert "\n" not in str(said.value)


def test_a_begun_run_settled_to_nothing_is_no_ledger(killed, ledger):
    forged(ledger, runs.charged_to(killed)["reservation"], [])
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
    runs.predict(tmp_path / "run", DATA, mode="noisy", epsilon=1.0)
    for name, why in (
        ("copy", "does not know the run"),
        ("cut", "is finished, and is not settled"),
        ("later", "1 noisy predictions"),
    ):
        Ledger(tmp_path / f"{name}.ledger").verify()
        with pytest.raises(InvalidInputError, match=why):
            runs.check_charged(tmp_path / f"{name}.ledger", [tmp_path / "run"])


def test_a_search_is_charged_what_its_run_says(tmp_path, source, ledger):
    tuning = Tuning(
        method="dp-mlp",
        vary={"learning_rate": values_of("learning_rate", [0.1, 0.2])},
        trials=2,
        epsilon=2.0,
        settings={"steps": 2, "sample_rate": 1.0},
        delta=DELTA,
    )
    priced = tuning.priced()

    def find(arranged):
        planned = priced.planned(Facts.of(arranged.training))
        return search(planned, arranged.training).method, {}

    runs.tune(find, priced, tmp_path / "run", source, tuning.described(), ledger=ledger.path)
    assert runs.check_charged(ledger.path, [tmp_path / "run"]) == 1
