"""A run that has released stays charged, and goes on once, whatever happens to its files."""

import json
import os
import shutil
import stat

import pytest
import torch
from runs_cases import (
    DATA,
    DELTA,
    STEPS,
    Crash,
    Given,
    crash,
    die_at,
    long,
    method,
    people,
    remove,
    train,
)

from graphveil._errors import GraphveilError, InvalidInputError
from graphveil.grads.step import PrivateStep
from graphveil.mechanisms import Gaussian
from graphveil.methods import DPMLP, GAP, LateGraph
from graphveil.privacy.ledger_state import count_releases
from graphveil.runs import Run, training
from graphveil.runs.charging import Spending, begun


def empty_journal(directory):
    (directory / "checkpoint" / "weights" / "steps").write_bytes(b"")


def forget(directory):
    """The journal and the checkpoint agree that nothing was begun."""
    empty_journal(directory)
    place = directory / "checkpoint" / "weights" / "checkpoint.pt"
    state = torch.load(place, weights_only=True)
    state["taken"] = 0
    torch.save(state, place)


def write_index(checkpoint, releases):
    """Have the index name these releases."""
    place = checkpoint / "releases.json"
    place.write_text(json.dumps({**json.loads(place.read_text()), "releases": releases}))


def forget_all(directory):
    write_index(directory / "checkpoint", {})
    remove(directory, "checkpoint/weights")


DAMAGE = {
    "journal": lambda run: remove(run, "checkpoint/weights/steps"),
    "checkpoint and journal": lambda run: remove(
        run, "checkpoint/weights/steps", "checkpoint/weights/checkpoint.pt"
    ),
    "steps": lambda run: remove(run, "checkpoint/weights"),
    "directory and settings": lambda run: remove(run, "checkpoint", "settings.json"),
    "directory": lambda run: remove(run, "checkpoint"),
    "turn": lambda run: remove(run, "checkpoint/turn.json"),
    "index": lambda run: remove(run, "checkpoint/releases.json"),
    "index and settings": lambda run: remove(run, "checkpoint/releases.json", "settings.json"),
    "index and steps": lambda run: remove(run, "checkpoint/releases.json", "checkpoint/weights"),
    "index emptied": lambda run: write_index(run / "checkpoint", {}),
    "index emptied and steps": forget_all,
    "plan": lambda run: remove(run, "plan.json"),
    "settings": lambda run: remove(run, "settings.json"),
    "plan and settings": lambda run: remove(run, "plan.json", "settings.json"),
    "fingerprint": lambda run: remove(run, "checkpoint/data.sha256"),
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
            Run(tmp_path / "run").train(long(), source, **of)
    place = tmp_path / "run" / "checkpoint" / "weights" / "checkpoint.pt"
    state = torch.load(place, weights_only=True)
    state[edited] = {**state["one_step"], "noise_multiplier": 1e6}
    torch.save(state, place)
    with pytest.raises(InvalidInputError, match=r"other noise or batches.*--force"):
        Run(tmp_path / "run").train(long(), source, resume=True, **of)
    assert len(released) == 11


def test_a_checkpoint_behind_a_link_takes_no_step_twice(killed, source, ledger, released, tmp_path):
    """A part of a run has one name, wherever a link leads."""
    (killed / "checkpoint").rename(tmp_path / "before")
    (tmp_path / "fresh").mkdir()
    for name in ("turn.json", "data.sha256", "releases.json"):
        shutil.copy(tmp_path / "before" / name, tmp_path / "fresh" / name)
    write_index(tmp_path / "fresh", {})
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


@pytest.mark.parametrize("how", ["resume", "force"])
@pytest.mark.parametrize("index", ["named", "", "{}", "gone"])
def test_a_release_of_an_unknown_kind_is_a_release(
    tmp_path, source, ledger, released, monkeypatch, index, how
):
    """Whatever a checkpoint names was begun. So was what cannot be read, or is gone.

    The ledger was not told: it would give back what is asked for.
    """
    with monkeypatch.context() as patched:
        patched.setattr("graphveil.runs.charging.Ledger.begin", crash)
        with pytest.raises(Crash):
            train(tmp_path / "run", source, ledger, long())
    run = Run(tmp_path / "run")
    checkpoint, id = run.checkpoint, run.charged_to()["reservation"]
    assert not run.begun
    assert not people(ledger).reservations[id].begun
    if index == "named":
        part = {"kind": "histogram", "name": "ages", "paid_for": "a histogram of ages"}
        write_index(checkpoint.directory, {"ages": part})
    elif index == "gone":
        (checkpoint.directory / "releases.json").unlink()
    else:
        (checkpoint.directory / "releases.json").write_text(index)
    assert run.begun
    if how == "resume":
        with pytest.raises(GraphveilError) as said:
            train(run.directory, source, ledger, long(), resume=True)
        assert "\n" not in str(said.value)
        assert not released
        assert len(people(ledger).charged) == 1
    else:
        train(run.directory, source, ledger, long(), force=True)
        assert len(people(ledger).charged) == 2
    assert count_releases(people(ledger).reservations[id].charges) == STEPS


def test_what_goes_on_before_it_has_begun_is_the_plan_that_was_reserved(
    tmp_path, source, ledger, monkeypatch
):
    """Another version would find another noise, and reserve what does not run."""
    with monkeypatch.context() as patched:
        patched.setattr("graphveil.runs.charging.Ledger.begin", crash)
        with pytest.raises(Crash):
            train(tmp_path / "run", source, ledger, long())
    before, entries = people(ledger).charged[0].reserved, len(ledger.read().entries)
    with monkeypatch.context() as patched:
        plan = DPMLP.plan
        patched.setattr(DPMLP, "plan", lambda self, facts: plan(method(3.0, steps=STEPS), facts))
        made = train(tmp_path / "run", source, ledger, long(), resume=True)
    assert tuple(made.charges_) == before
    (charged,) = people(ledger).charged
    assert charged.reserved == charged.settled == before
    assert len(ledger.read().entries) == entries + 2  # it begins, and is settled


@pytest.mark.parametrize(
    "place",
    [
        "graphveil.runs.charging.Ledger.begin",
        "graphveil.grads.step.PrivateStep._draw",
        "graphveil.runs.training.measure",
        "graphveil.runs.charging.Ledger.settle",
        "graphveil.runs.record.write_certificate",
    ],
)
def test_a_charged_run_goes_on_without_a_plan(tmp_path, source, ledger, monkeypatch, place):
    with monkeypatch.context() as patched:
        patched.setattr(place, crash)
        with pytest.raises(Crash):
            train(tmp_path / "run", source, ledger, long())

    def planned(*_, **__):
        raise AssertionError("a plan was made again")

    for module in ("methods.budget", "methods.inference", "privacy.accounting"):
        monkeypatch.setattr(f"graphveil.{module}.calibrate", planned)
    monkeypatch.setattr(DPMLP, "plan", planned)
    made = train(tmp_path / "run", source, ledger, long(), resume=True)
    assert people(ledger).charged[0].settled == tuple(made.charges_)
    assert Run(tmp_path / "run").read().certificate_ == made.certificate_


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
    assert Run(tmp_path / "copy").state == "finished"
    assert Run(tmp_path / "run").state == "unfinished"
    assert count_releases(people(ledger).charged[0].settled) == STEPS


def test_what_is_settled_elsewhere_while_a_run_is_measured_is_not_finished(
    killed, source, ledger, monkeypatch
):
    real = training.measure

    def measure(*given):
        ledger.settle(Run(killed).charged_to()["reservation"], long_charges)
        return real(*given)

    long_charges = people(ledger).charged[0].reserved
    monkeypatch.setattr("graphveil.runs.training.measure", measure)
    with pytest.raises(InvalidInputError, match="do not use it"):
        train(killed, source, ledger, long(), resume=True)
    assert Run(killed).state == "unfinished"


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
        (tmp_path / "run" / "checkpoint" / "weights" / "steps").write_bytes(b"..")
    with pytest.raises(InvalidInputError, match="12"):
        train(tmp_path / "run", source, ledger, long(), resume=True)
    assert count_releases(people(ledger).charged[0].charges) == STEPS
    content["charges"][0]["event"]["count"] = STEPS
    place.write_text(json.dumps(content))
    (tmp_path / "run" / "checkpoint" / "weights" / "steps").write_bytes(b"." * STEPS)
    train(tmp_path / "run", source, ledger, long(), resume=True)
    assert not people(ledger).waiting


@pytest.mark.parametrize("charged", [True, False])
def test_events_json_does_not_say_that_there_was_more_noise(
    tmp_path, source, ledger, monkeypatch, charged
):
    """As many releases, and others than were made: the plan knows, and so does the ledger."""
    run, of = tmp_path / "run", {"ledger": ledger.path} if charged else {}
    with monkeypatch.context() as patched:
        patched.setattr("graphveil.runs.record.describe_environment", crash)
        patched.setattr("graphveil.runs.charging.Ledger.settle", crash)
        with pytest.raises(Crash):
            Run(run).train(long(), source, **of)
    content = json.loads((run / "events.json").read_text())
    content["charges"][0]["event"]["event"]["noise_multiplier"] *= 50
    (run / "events.json").write_text(json.dumps(content))
    before = people(ledger).spent()
    with pytest.raises(InvalidInputError, match=r"events.json with other events.*--force"):
        Run(run).train(long(), source, resume=True, **of)
    assert people(ledger).spent() == before
    assert Run(run).state == "unfinished"


@pytest.mark.parametrize("charged", [True, False])
def test_events_json_does_not_leave_out_a_release(
    tmp_path, source, ledger, released, monkeypatch, charged
):
    """Of several parts: fewer events than planned, and each of them planned."""
    run, of = Run(tmp_path / "run"), {"ledger": ledger.path} if charged else {}

    def made():
        return method(4.0, GAP, steps=2, hops=1)

    with monkeypatch.context() as patched:
        patched.setattr("graphveil.runs.record.describe_environment", crash)
        patched.setattr("graphveil.runs.charging.Ledger.settle", crash)
        with pytest.raises(Crash):
            run.train(made(), source, **of)
    place = run.directory / "events.json"
    content, before = json.loads(place.read_text()), place.read_bytes()
    assert len(content["charges"]) == 4
    for paid in content["charges"]:
        kept = [other for other in content["charges"] if other is not paid]
        place.write_text(json.dumps({**content, "charges": kept}))
        with pytest.raises(InvalidInputError, match=r"events\.json.*--force") as said:
            run.train(made(), source, resume=True, **of)
        assert "\n" not in str(said.value)
        assert run.state == "unfinished"
    place.write_bytes(before)
    drawn = len(released)
    run.train(made(), source, resume=True, **of)
    assert len(released) == drawn
    assert run.state == "finished"


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
            Run(killed).train(long(), source, resume=True, **where)


def test_the_ledger_hears_of_a_long_run_in_hundredths(tmp_path, source, ledger, monkeypatch):
    """And what it heard of and was not taken before a crash is not taken afterwards."""
    steps = 250
    with monkeypatch.context() as patched:
        patched.setattr(PrivateStep, "__call__", die_at(101))
        with pytest.raises(Crash):
            train(tmp_path / "run", source, ledger, method(2.0, steps=steps))
    id = Run(tmp_path / "run").charged_to()["reservation"]
    assert ledger.read().progress[id] == {"checkpoint/weights": 102}
    made = train(tmp_path / "run", source, ledger, method(2.0, steps=steps), resume=True)
    assert count_releases(made.charges_) == steps


# --- predictions, and versions of the data --------------------------------------------------------


def test_a_prediction_that_has_begun_is_not_given_back(tmp_path, source, ledger, monkeypatch):
    train(tmp_path / "run", source, ledger, method(kind=LateGraph))
    with monkeypatch.context() as patched:
        patched.setattr(Gaussian, "release", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            Run(tmp_path / "run").predict(DATA, mode="noisy", epsilon=1.0)
    (waiting,) = people(ledger).waiting
    assert waiting.begun
    narrow = DATA.clone()
    narrow.x = narrow.x[:, :2]
    with pytest.raises(InvalidInputError, match="must have 5 columns"):
        Run(tmp_path / "run").predict(narrow, mode="noisy", epsilon=1.0)
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
                Run(tmp_path / "run").train(made, source, private_losses=True, **where)
    finally:
        os.umask(before)
    run = tmp_path / "run"
    found = [run, run / "private-losses.jsonl", run / "checkpoint"]
    found += [*(run / "checkpoint").rglob("*"), *([run / "ledger.json"] if charged else [])]
    names = {path.name for path in found}
    assert {"data.sha256", "releases.json", "checkpoint.pt", "steps", "hop1.safetensors"} < names
    assert {"classifier", "finished.safetensors", "turn.json" if charged else "data.key"} < names
    for path in found:
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o700 if path.is_dir() else 0o600), (path, oct(mode))


@pytest.mark.skipif(os.name != "posix", reason="needs file modes")
@pytest.mark.parametrize("unit", ["node", "edge"])
def test_in_a_finished_run_the_files_of_nobody_else_stay_private(tmp_path, source, ledger, unit):
    """The cache is for nobody under the unit node; certificate and weights have the usual mode."""
    made = method(4.0, GAP, steps=2, unit=unit, open_steps=2, folds=2, delta=1e-5)
    before = os.umask(0)
    try:
        train(tmp_path / "run", source, ledger, made, private_losses=unit == "node")
    finally:
        os.umask(before)
    run = tmp_path / "run"
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (run, *run.iterdir())}
    private = {"run": 0o700, "ledger.json": 0o600}
    if unit == "node":
        private |= {"cache.safetensors": 0o600, "private-losses.jsonl": 0o600}
    assert {name: modes[name] for name in private} == private
    assert {mode for name, mode in modes.items() if name not in private} == {0o666}
    assert "cache.safetensors" in modes
    assert stat.S_IMODE(ledger.path.stat().st_mode) == 0o600


def test_what_a_checkpoint_keeps_of_the_data_is_keyed(tmp_path, source, ledger, monkeypatch):
    """Two runs on the same data keep different hashes, and no hash that a guess could check."""
    monkeypatch.setattr("graphveil.runs.training.measure", crash)
    for name, where in (("one", {}), ("two", {}), ("charged", {"ledger": ledger.path})):
        with pytest.raises(Crash):
            Run(tmp_path / name).train(method(2.0), source, **where)
    kept = {
        (tmp_path / name / "checkpoint" / "data.sha256").read_text()
        for name in ("one", "two", "charged")
    }
    assert len(kept) == 3
    assert not (tmp_path / "charged" / "checkpoint" / "data.key").exists()  # it is the ledger's
