"""Runs that are charged to a ledger: reserved before data, settled to what was released."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from runs_cases import DATA, DELTA, Crash, Given, crash, method, name_plan, people, train

from graphveil._errors import BudgetError, InvalidInputError, RefusedError, UnprovenError
from graphveil._files import partial_name
from graphveil.data.synthetic import social_network
from graphveil.grads.step import PrivateStep
from graphveil.methods import (
    DPAR,
    DPGNN,
    DPMLP,
    GAP,
    METHODS,
    Facts,
    GraphSplit,
    LateGraph,
    MLPBaseline,
)
from graphveil.privacy.accounting import price
from graphveil.privacy.events import composed
from graphveil.privacy.ledger import Ledger
from graphveil.runs import Run, Source, search_into, training
from graphveil.runs.charging import _largest, promise_of
from graphveil.runs.fingerprints import fingerprint_of


def kinds(ledger):
    return [json.loads(body)["kind"] for body, _ in ledger.read().entries[2:]]


# --- the usual way --------------------------------------------------------------------------------


def test_a_run_is_charged_what_its_certificate_says(tmp_path, source, ledger):
    made = train(tmp_path / "run", source, ledger)
    noted = Run(tmp_path / "run").charged_to()
    reservation = people(ledger).reservations[noted["reservation"]]
    assert (
        reservation.settled
        == tuple(made.charges_)
        == Run(tmp_path / "run").read().certificate_.charges
    )
    assert reservation.fingerprint == fingerprint_of(DATA, ledger.read().fingerprint_hash())
    assert reservation.facts["num_nodes"] == 60
    assert noted["ledger"] == ledger.place
    assert Run(tmp_path / "run").state == "finished"
    assert kinds(ledger) == ["reserve", "begin", "settle"]  # sizes were known with the data only
    train(tmp_path / "second", source, ledger)
    assert kinds(ledger)[3:] == ["reserve", "reserve", "begin", "settle"]  # now they were
    both = composed(*(charge.event for charge in made.charges_ * 2))
    assert people(ledger).spent() == price(both, 1e-4).epsilon


def test_the_log_says_what_happened_and_no_number_of_the_data(tmp_path, source, ledger):
    train(tmp_path / "run", source, ledger)
    lines = [
        line.split(" ", 1)[1] for line in (tmp_path / "run" / "log.txt").read_text().splitlines()
    ]
    id = Run(tmp_path / "run").charged_to()["reservation"]
    assert lines == [
        "begun: dp-mlp",
        f"reservation {id} in account 'people'",
        "data loaded",
        "trained",
        f"settled {id}",
        "finished",
    ]


def test_over_budget_is_refused_before_data_is_read(tmp_path, source, ledger):
    """First by the lifetime's epsilon, then, when sizes are known, by the accountant."""
    with pytest.raises(BudgetError, match="at most --epsilon 10"):
        train(tmp_path / "run", source, ledger, method(11.0))
    train(tmp_path / "first", source, ledger, method(6.0))
    read, entries = Given.read, ledger.read().entries
    with pytest.raises(BudgetError, match=r"is spent.*left is.*--epsilon .* would fit") as said:
        train(tmp_path / "run", source, ledger, method(8.0))
    assert Given.read == read
    assert ledger.read().entries == entries
    assert not (tmp_path / "run").exists()
    offered = float(str(said.value).split("--epsilon ")[1].split(" ")[0])
    assert 5.0 < offered < 8.0
    train(tmp_path / "run", source, ledger, method(offered))
    ledger.verify()


def test_the_catalog_s_sizes_are_known_before_anything_is_loaded(tmp_path, ledger, monkeypatch):
    monkeypatch.setattr(Source, "load", crash)
    ledger.open("many", 10.0, 1e-6)
    with pytest.raises(BudgetError, match="would bring it to"):
        train(
            tmp_path / "run", Source(data="social"), ledger, method(12.0, delta=1e-6),
            account="many",
        )  # fmt: skip


@pytest.mark.parametrize(
    "made",
    [
        lambda: MLPBaseline(steps=2),
        lambda: DPGNN(epsilon=2.0, steps=2, paper=True),
        lambda: DPGNN(epsilon=2.0, steps=2, sampler="printed"),
    ],
)
def test_what_is_not_proven_is_not_charged_and_not_run(tmp_path, source, ledger, made):
    with pytest.raises(RefusedError, match=r"proven|open"):
        train(tmp_path / "run", source, ledger, made())
    assert not people(ledger).charged
    assert not (tmp_path / "run").exists()


def test_a_delta_too_large_for_the_data_is_refused(tmp_path, source, ledger):
    ledger.open("careless", 10.0, 0.1)
    with pytest.raises(UnprovenError, match="which must be below 1/n"):
        train(tmp_path / "run", source, ledger, account="careless")


# --- what an account is about ---------------------------------------------------------------------


def test_data_of_another_account_is_refused_and_what_was_reserved_is_given_back(
    tmp_path, source, ledger
):
    train(tmp_path / "first", source, ledger)
    ledger.open("others", 10.0, DELTA)
    with pytest.raises(InvalidInputError, match="--account people"):
        train(tmp_path / "run", source, ledger, account="others")
    assert not ledger.read().account("others").charged
    assert not (tmp_path / "run").exists()


def test_an_inductive_split_is_the_same_data(tmp_path, source, ledger):
    train(tmp_path / "first", source, ledger)
    train(tmp_path / "second", Given(data="memory", split="inductive"), ledger)
    assert len(people(ledger).charged) == 2


@pytest.mark.parametrize(
    ("unit", "made"),
    [
        ("node", lambda: METHODS["graph-dpsgd"](epsilon=1.0)),
        ("node", lambda: method(kind=GAP, unit="edge", delta=1e-9)),
        ("graph", lambda: method()),
        ("edge-undirected", lambda: method()),
    ],
)
def test_a_method_for_another_unit_is_told_so_and_nothing_else(
    tmp_path, source, ledger, unit, made
):
    ledger.open("given", 10.0, DELTA, unit=unit)
    for known in (source, Source(data="social")):  # sizes are not known, or are
        with pytest.raises(InvalidInputError, match=f"is for the unit '{unit}'"):
            train(tmp_path / "run", known, ledger, made(), account="given")
    assert Given.read == 0


def test_what_is_offered_is_the_largest_but_for_a_hundredth():
    for limit in (0.0123, 0.777, 1.0099, 3.4567, 42.0):
        for left in (0.8 * limit, limit, 1.3 * limit):
            asked = []

            def could_have(epsilon, limit=limit, asked=asked):
                asked.append(epsilon)
                return epsilon <= limit

            said = _largest(2 * limit, left, could_have)
            offered = float(said.split("--epsilon ")[1].split(" ")[0])
            assert 0.988 * limit <= offered <= limit
            assert len(asked) <= 12
    assert "not even --epsilon 0.01" in _largest(1.0, 0.5, lambda epsilon: epsilon < 0.01)


def test_another_unit_is_refused(tmp_path, source, ledger):
    train(tmp_path / "first", source, ledger)
    with pytest.raises(InvalidInputError, match=r"unit 'node'.*protects one edge"):
        train(tmp_path / "run", source, ledger, method(kind=DPGNN, unit="edge"))
    assert not people(ledger).waiting


# --- when things go wrong -------------------------------------------------------------------------


def test_data_that_cannot_be_loaded_costs_nothing(tmp_path, source, ledger, monkeypatch):
    train(tmp_path / "first", source, ledger)
    spent = people(ledger).spent()
    monkeypatch.setattr(Given, "data_now", InvalidInputError("no such file"))
    with pytest.raises(InvalidInputError, match="no such file"):
        train(tmp_path / "run", source, ledger)
    assert kinds(ledger)[-2:] == ["reserve", "settle"]
    assert people(ledger).spent() == spent
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "place",
    [
        "graphveil.runs.charging.Ledger.reserve",
        "graphveil.runs.charging.Spending.reserve_seen",
        "graphveil.grads.step.PrivateStep._draw",
        "graphveil.runs.training.measure",
        "graphveil.runs.record.write_events",
        "graphveil.runs.charging.Ledger.settle",
        "graphveil.runs.record.write_certificate",
    ],
)
@pytest.mark.parametrize("how", ["resume", "force"])
def test_a_killed_run_goes_on_under_its_own_reservation(
    tmp_path, source, ledger, monkeypatch, place, how
):
    train(tmp_path / "first", source, ledger, method(2.0))
    with monkeypatch.context() as patched:
        patched.setattr(place, crash)
        with pytest.raises(Crash):
            train(tmp_path / "run", source, ledger)
    begun = (tmp_path / "run" / "checkpoint" / "weights" / "steps").exists()
    first = people(ledger)
    made = train(tmp_path / "run", source, ledger, **{how: True})
    now = people(ledger)
    id = Run(tmp_path / "run").charged_to()["reservation"]
    assert now.reservations[id].settled == tuple(made.charges_)
    assert made.charges_[0].event.count == 3  # the step that was begun included
    if how == "resume":
        assert len(now.charged) == 2
        assert not now.waiting
        assert now.spent() <= first.spent() or not first.waiting
    else:  # what may have been released stays charged, and nothing else does
        assert len(now.charged) == (3 if begun else 2)
    ledger.verify()


@pytest.mark.parametrize(
    ("number", "how"),
    [  # anew at every third write; at every one is slow
        pytest.param(n, how, marks=[pytest.mark.slow] if how == "force" and n % 3 != 1 else [])
        for n in range(1, 20)
        for how in ("resume", "force")
    ],
)
def test_a_crash_at_any_write_is_charged_once(
    tmp_path, source, ledger, released, writing, monkeypatch, number, how
):
    """As without a ledger, but for a key; with ledger.json, and with turn.json before the steps."""

    def crash_there(now, path, content):
        if now == number:
            path.with_name(partial_name(path.name)).write_bytes(content[:3])
            raise Crash

    with monkeypatch.context() as patched:
        writing(patched, crash_there)
        with pytest.raises(Crash) if number < 19 else contextlib.nullcontext():
            train(tmp_path / "run", source, ledger)
    if number == 19:
        return  # there is no further write
    before = people(ledger)
    begun = any(each.begun for each in before.charged)
    assert begun == (number > 6)
    assert begun or not released
    taken = len(released)
    made = train(tmp_path / "run", source, ledger, **{how: True})
    now, id = people(ledger), Run(tmp_path / "run").charged_to()["reservation"]
    assert now.reservations[id].settled == tuple(made.charges_)
    assert not [each for each in now.waiting if each.id == id]
    assert made.charges_[0].event.count == 3
    if how == "resume":
        assert len(now.charged) == 1
        assert len(released) == 3
    else:
        assert len(now.charged) == 1 + begun
        assert len(released) == taken + 3
    assert Run(tmp_path / "run").state == "finished"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "study.ledger"]
    ledger.verify()


def test_a_run_that_fails_after_its_first_step_stays_reserved(
    tmp_path, source, ledger, monkeypatch
):
    with monkeypatch.context() as patched:
        patched.setattr("graphveil.grads.step.PrivateStep._draw", lambda self: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            train(tmp_path / "run", source, ledger)
    assert len(people(ledger).waiting) == 1
    train(tmp_path / "run", source, ledger, resume=True)
    assert not people(ledger).waiting


def test_a_run_is_resumed_with_its_own_ledger_and_account_only(
    tmp_path, source, ledger, monkeypatch
):
    ledger.open("others", 10.0, 1e-4)
    with monkeypatch.context() as patched:
        patched.setattr("graphveil.runs.training.measure", crash)
        with pytest.raises(Crash):
            train(tmp_path / "run", source, ledger, account="people")
        with pytest.raises(Crash):
            Run(tmp_path / "plain").train(method(), source)
    with pytest.raises(InvalidInputError, match="account 'people'"):
        train(tmp_path / "run", source, ledger, resume=True, account="others")
    with pytest.raises(InvalidInputError, match="begun without a ledger"):
        train(tmp_path / "plain", source, ledger, resume=True, account="people")
    other = Ledger(tmp_path / "other.ledger")
    other.open("people", 10.0, 1e-4)
    with pytest.raises(InvalidInputError, match="does not know what the run"):
        train(tmp_path / "run", source, other, resume=True)
    moved = Ledger(shutil.move(ledger.path, tmp_path / "moved.ledger"))
    with pytest.raises(InvalidInputError, match="was it moved"):
        Run(tmp_path / "run").train(method(), source, resume=True)
    train(tmp_path / "run", source, moved, resume=True)
    assert Run(tmp_path / "run").charged_to()["ledger"] == str(moved.path)
    assert not people(moved).waiting


def test_a_run_goes_on_with_the_same_data_and_price_only(tmp_path, source, ledger, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr("graphveil.grads.step.PrivateStep._draw", crash)
        with pytest.raises(Crash):
            train(tmp_path / "run", source, ledger)
    other = DATA.clone()
    other.x[0, 0] += 1
    with monkeypatch.context() as patched:
        patched.setattr(Given, "data_now", other)
        with pytest.raises(InvalidInputError, match="charged for other data"):
            train(tmp_path / "run", source, ledger, resume=True)
    with pytest.raises(InvalidInputError, match=r"begun with epsilon = 4\.0\. Got 3\.0"):
        train(tmp_path / "run", source, ledger, method(3.0), resume=True)
    place = tmp_path / "run" / "plan.json"
    whole = json.loads(place.read_text())
    before, settings = place.read_text(), (tmp_path / "run" / "settings.json").read_text()
    for less in ({"noise_multiplier": 0.1}, {"count": 30}, {"noise_multiplier": 100.0}):
        (part,) = whole["plan"]["parts"]
        changed = whole | {"plan": whole["plan"] | {"parts": [part | less]}}
        place.write_text(json.dumps(changed))
        with pytest.raises(InvalidInputError, match=r"plan\.json: it is another plan"):
            train(tmp_path / "run", source, ledger, resume=True)
        name_plan(tmp_path / "run")
        with pytest.raises(InvalidInputError, match=r"reserved other charges.*plan\.json"):
            train(tmp_path / "run", source, ledger, resume=True)
        (tmp_path / "run" / "settings.json").write_text(settings)
    place.write_text(before)
    with monkeypatch.context() as patched:  # another version, which would find another noise
        plan = DPMLP.plan
        patched.setattr(DPMLP, "plan", lambda self, facts: plan(method(3.0), facts))
        made = train(tmp_path / "run", source, ledger, resume=True)
    assert people(ledger).charged[0].reserved == tuple(made.charges_)


def test_a_half_removed_run_does_not_pass_for_one_that_released_nothing(
    tmp_path, source, ledger, monkeypatch
):
    with monkeypatch.context() as patched:
        patched.setattr("graphveil.runs.training.measure", crash)
        for how in ({}, {"force": True}):
            with pytest.raises(Crash):
                train(tmp_path / "run", source, ledger, method(1.0), **how)
    with monkeypatch.context() as patched:  # forced again, and killed while the last is removed
        patched.setattr("graphveil.runs.training.shutil.rmtree", crash)
        with pytest.raises(Crash):
            train(tmp_path / "run", source, ledger, method(1.0), force=True)
    assert not (tmp_path / "run" / "ledger.json").exists()
    shutil.rmtree(tmp_path / "run" / "checkpoint")
    train(tmp_path / "run", source, ledger, method(1.0), force=True)
    assert len(people(ledger).charged) == 3


@pytest.mark.parametrize("ending", [KeyboardInterrupt, Crash])
def test_a_checkpoint_that_somebody_removed_gives_nothing_back(
    tmp_path, source, ledger, monkeypatch, ending
):
    """While the run goes on, which then fails; or after it was killed."""
    real = PrivateStep.__call__

    def step_and_end(self):
        real(self)
        shutil.rmtree(tmp_path / "run" / "checkpoint")
        raise ending

    with monkeypatch.context() as patched:
        patched.setattr(PrivateStep, "__call__", step_and_end)
        with pytest.raises(ending):
            train(tmp_path / "run", source, ledger, method(2.0))
    assert len(people(ledger).waiting) == 1
    with pytest.raises(InvalidInputError, match=r"checkpoint is gone.*--force") as refused:
        train(tmp_path / "run", source, ledger, method(2.0), resume=True)
    assert "\n" not in str(refused.value)
    train(tmp_path / "run", source, ledger, method(2.0), force=True)
    assert len(people(ledger).charged) == 2
    assert len(people(ledger).waiting) == 1


def test_what_failed_while_fitting_is_not_asked_of_the_disk(tmp_path, source, ledger, monkeypatch):
    """Only the journal is removed: the disk looks as if nothing was released."""
    real = PrivateStep.__call__

    def step_and_fail(self):
        real(self)
        (tmp_path / "run" / "checkpoint" / "weights" / "steps").unlink()
        raise ZeroDivisionError

    monkeypatch.setattr(PrivateStep, "__call__", step_and_fail)
    with pytest.raises(ZeroDivisionError):
        train(tmp_path / "run", source, ledger)
    assert len(people(ledger).waiting) == 1


def test_a_charged_run_is_not_replaced_by_one_that_is_not(tmp_path, source, ledger):
    train(tmp_path / "run", source, ledger, method(1.0))
    before = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    for left in (True, False):
        if not left:  # a copy without it is a charged run all the same
            before.pop("ledger.json")
            (tmp_path / "run" / "ledger.json").unlink()
        read = Given.read
        with pytest.raises(InvalidInputError, match=r"must not be replaced.*--ledger"):
            Run(tmp_path / "run").train(method(1.0), source, force=True)
        assert Given.read == read
        with pytest.raises(InvalidInputError, match=r"must not be replaced.*--ledger"):
            search_into(Run(tmp_path / "run"), crash, method(1.0), source, {}, force=True)
        now = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}
        assert now == before
    train(tmp_path / "run", source, ledger, method(1.0), force=True)
    assert len(people(ledger).charged) == 2


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b'{"format": 2}', b"\xff",
    b'{"format": 1, "ledger": 1, "account": "a", "reservation": "b"}'])  # fmt: skip
def test_a_damaged_ledger_json_is_one_clear_line(tmp_path, source, ledger, content):
    train(tmp_path / "run", source, ledger, method(kind=LateGraph))
    (tmp_path / "run" / "ledger.json").write_bytes(content)
    with pytest.raises(InvalidInputError, match=r"ledger\.json") as caught:
        Run(tmp_path / "run").predict(DATA, mode="noisy", epsilon=1.0)
    assert "\n" not in str(caught.value)
    (tmp_path / "run" / "certificate.json").unlink()
    with pytest.raises(InvalidInputError, match=r"ledger\.json"):
        train(tmp_path / "run", source, ledger, method(kind=LateGraph), resume=True)
    assert len(people(ledger).charged) == 1


@pytest.mark.parametrize("kind", [GAP, DPAR, GraphSplit])
@pytest.mark.parametrize("steps", [1, 3])
def test_no_kill_makes_a_run_settle_to_more_than_it_reserved(
    tmp_path, source, ledger, monkeypatch, kind, steps
):
    """Methods of several parts: killed in the first steps, and again when they have gone on."""

    def made():
        return method(8.0, kind, steps=2, **({"variant": "em0"} if kind is DPAR else {}))

    def die_at(number):
        real, left = PrivateStep.__call__, iter(range(number))

        def step(self):
            real(self)
            if next(left) == number - 1:
                raise Crash

        return step

    for how in ({}, {"resume": True}):
        with monkeypatch.context() as patched:
            patched.setattr(PrivateStep, "__call__", die_at(steps))
            with contextlib.suppress(Crash):
                train(tmp_path / "run", source, ledger, made(), **how)
        if Run(tmp_path / "run").state == "finished":
            break
        assert len(people(ledger).waiting) == 1
    else:
        train(tmp_path / "run", source, ledger, made(), resume=True)
    (found,) = people(ledger).charged
    events = [
        composed(*(charge.event for charge in each)) for each in (found.settled, found.reserved)
    ]
    assert price(events[0], DELTA).epsilon <= price(events[1], DELTA).epsilon * (1 + 1e-9)
    assert found.settled == tuple(Run(tmp_path / "run").read().charges_)


def test_a_full_disk_stops_a_run_which_goes_on_when_there_is_room(source, small_disk):
    """Wherever it strikes: less room every time, until not even the reservation fits."""
    ledger = Ledger(small_disk / "study.ledger")
    ledger.open("people", 50.0, DELTA)
    stopped = 0
    for room in range(36, 200, 8):
        (small_disk / "filling").write_bytes(b"x" * 1000 * (200 - room))
        directory = small_disk / "run"
        try:
            train(directory, source, ledger)
        except InvalidInputError:
            stopped += 1
        noted, found = Run(directory).charged_to(), people(ledger)
        journal = directory / "checkpoint" / "weights" / "steps"
        if journal.exists() and journal.stat().st_size:
            assert found.reservations[noted["reservation"]].charges
        (small_disk / "filling").unlink()
        if Run(directory).state == "unfinished":
            train(directory, source, ledger, resume=True)
        if Run(directory).state == "finished":
            assert not people(ledger).waiting
            shutil.rmtree(directory)
        ledger.verify()
    assert stopped >= 3


def test_a_ledger_that_cannot_be_written_stops_a_run_before_and_after(
    tmp_path, source, small_disk, monkeypatch
):
    ledger = Ledger(small_disk / "study.ledger")
    ledger.open("people", 10.0, DELTA)

    def remounted(how):
        subprocess.run(["mount", "-o", f"remount,{how}", str(small_disk)], check=True)

    remounted("ro")
    with pytest.raises(InvalidInputError, match="cannot be used"):
        train(tmp_path / "run", source, ledger)
    remounted("rw")
    assert not (tmp_path / "run").exists()
    measure = training.measure

    def then_read_only(*asked):
        remounted("ro")
        return measure(*asked)

    with monkeypatch.context() as patched:
        patched.setattr("graphveil.runs.training.measure", then_read_only)
        with pytest.raises(InvalidInputError, match="cannot be used"):
            train(tmp_path / "run", source, ledger)
    assert len(people(ledger).waiting) == 1
    remounted("rw")
    train(tmp_path / "run", source, ledger, resume=True)
    assert not people(ledger).waiting


# --- noisy predictions ----------------------------------------------------------------------------


@pytest.fixture
def trained(tmp_path, source, ledger):
    train(tmp_path / "run", source, ledger, method(kind=LateGraph))
    return tmp_path / "run"


def test_a_noisy_prediction_is_charged_to_the_run_s_account(trained, ledger):
    made, _ = Run(trained).predict(DATA, mode="noisy", epsilon=1.0)
    assert (
        people(ledger).spent() == price(composed(*(c.event for c in made.charges_)), 1e-4).epsilon
    )
    assert not people(ledger).waiting
    assert people(ledger).charged[-1].settled == (made.charges_[-1],)
    Run(trained).predict(DATA, mode="visible")
    assert len(people(ledger).charged) == 2


def test_a_noisy_prediction_over_budget_reads_nothing(trained, ledger):
    before = Run(trained).read().charges_
    with pytest.raises(BudgetError, match=r"--epsilon .* would fit"):
        Run(trained).predict(crash, mode="noisy", epsilon=20.0)
    assert Run(trained).read().charges_ == before
    assert len(people(ledger).charged) == 1


def test_a_noisy_prediction_without_its_data_costs_nothing(trained, ledger):
    before = Run(trained).read().charges_
    with pytest.raises(ZeroDivisionError):
        Run(trained).predict(lambda: 1 / 0, mode="noisy", epsilon=1.0)
    assert not people(ledger).waiting
    assert len(people(ledger).charged) == 1
    assert Run(trained).read().charges_ == before
    ledger.open("others", 10.0, 1e-4)
    with pytest.raises(InvalidInputError, match="--account people"):
        Run(trained).predict(DATA, mode="noisy", epsilon=1.0, account="others")
    other = DATA.clone()
    other.x[0, 0] += 1
    Run(trained).predict(other, mode="noisy", epsilon=1.0, account="others")
    assert len(ledger.read().account("others").charged) == 1


def test_a_noisy_prediction_is_charged_where_the_run_was_and_nowhere_else(
    trained, ledger, tmp_path
):
    other = Ledger(tmp_path / "other.ledger")
    other.open("people", 10.0, DELTA)

    def refused(words, **where):
        with pytest.raises(InvalidInputError, match=words) as said:
            Run(trained).predict(crash, mode="noisy", epsilon=1.0, **where)
        assert "\n" not in str(said.value)
        assert "ledger open" not in str(said.value)

    refused("does not know", ledger=other.path)
    moved = Ledger(shutil.move(ledger.path, tmp_path / "moved.ledger"))
    refused("was it moved")
    (trained / "ledger.json").unlink()  # as somebody may who publishes the run
    refused("was charged to a ledger.*--ledger")
    refused("does not know", ledger=other.path)
    refused("was it moved", ledger=ledger.path)
    assert len(people(moved).charged) == 1
    for number in (2, 3):  # the second time, too: what is written keeps the reservation
        Run(trained).predict(DATA, mode="noisy", epsilon=1.0, ledger=moved.path)
        assert len(people(moved).charged) == number
    refused("was charged to a ledger.*--ledger")
    assert not people(other).charged


def test_a_noisy_prediction_needs_a_delta_below_one_in_n(trained, ledger):
    ledger.open("careless", 10.0, 0.1)
    with pytest.raises(UnprovenError, match="which must be below 1/n"):
        Run(trained).predict(crash, mode="noisy", epsilon=1.0, account="careless")
    ledger.open("small", 10.0, 0.01)  # below 1/60, and not below 1/120
    larger = social_network(num_nodes=120, num_classes=3, num_features=5, seed=1)
    with pytest.raises(UnprovenError, match="which must be below 1/n"):
        Run(trained).predict(larger, mode="noisy", epsilon=1.0, account="small")
    assert not ledger.read().account("small").charged


@pytest.mark.parametrize(
    "place", ["record.write_events", "record.write_certificate", "charging.Spending.settle"]
)
def test_a_noisy_prediction_that_was_killed_stays_charged(trained, ledger, monkeypatch, place):
    with monkeypatch.context() as patched:
        patched.setattr(f"graphveil.runs.{place}", crash)
        with pytest.raises(Crash):
            Run(trained).predict(DATA, mode="noisy", epsilon=1.0)
    assert len(people(ledger).charged) == 2
    assert people(ledger).spent() >= Run(trained).read().certificate_.guarantee.epsilon


def test_only_noisy_predictions_take_a_ledger(trained, ledger):
    with pytest.raises(InvalidInputError, match="Only the mode 'noisy'"):
        Run(trained).predict(DATA, mode="visible", ledger=ledger.path)


# --- kills, and many runs -------------------------------------------------------------------------


def killed(kills, seed, *place):
    """Run ledger_kills.py; where possible in memory, since no kill is lost with a disk."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    folder = tempfile.mkdtemp(dir=memory)
    program = str(Path(__file__).with_name("ledger_kills.py"))
    try:
        done = subprocess.run(
            [sys.executable, program, folder, str(kills), str(seed), *place],
            capture_output=True,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
        )  # fmt: skip
    finally:
        shutil.rmtree(folder)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_few_kills_lose_nothing_and_spend_nothing_twice():
    assert killed(6, 1)["kills"] == 6


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_kills_of_runs_that_are_charged_on_a_server_lose_nothing(postgres):
    counts = killed(12, 3, postgres.new_url())
    assert counts["kills"] == 12
    assert counts["kills: statement"] >= 2


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_two_hundred_kills_lose_nothing_and_spend_nothing_twice():
    counts = killed(200, 2)
    assert counts["kills"] == 200
    for what in (
        "kills: time",
        "kills: statement",
        "killed in training",
        "gone on",
        "started anew",
    ):
        assert counts[what] >= 5, what
    assert counts["finished"] >= 5
    assert counts["refused"] >= 1


def plans(epsilons):
    """Real plans of four methods: three for nodes, one for graphs."""
    nodes = Facts(num_nodes=2000, num_features=32, num_classes=4, num_train=1500)
    graphs = Facts(num_nodes=2000, num_features=8, num_classes=2, num_train=1500, record="graph")
    return [
        METHODS[name](epsilon=epsilon).plan(graphs if name == "graph-dpsgd" else nodes)
        for epsilon in epsilons
        for name in ("dp-gnn", "gap", "dpar", "graph-dpsgd")
    ]


def check_mixed(ledger, count, epsilons):
    planned = plans(epsilons)
    for number in range(count):
        plan = planned[number % len(planned)]
        name = "graphs" if plan.unit == "graph" else "nodes"
        ledger.reserve(str(number), name, plan.charges, promise_of(plan), purpose=plan.method)
        ledger.settle(str(number), plan.charges)
    for name in ("nodes", "graphs"):
        found = ledger.read().account(name)
        events = [c.event for each in found.reservations.values() for c in each.charges]
        assert found.spent() == price(composed(*events), 1e-4).epsilon
        assert found.spent() < 0.8 * found.plain_sum()
        assert found.spent() <= found.epsilon
        assert 0 < found.left() < found.epsilon
    ledger.verify()


def open_both(ledger):
    for name in ("nodes", "graphs"):
        ledger.open(name, 12.0, 1e-4)


def test_a_few_mixed_runs_cost_what_one_accountant_says(ledger):
    open_both(ledger)
    check_mixed(ledger, 8, [1.0])


@pytest.mark.slow
def test_fifty_mixed_runs_cost_what_one_accountant_says(ledger):
    open_both(ledger)
    check_mixed(ledger, 50, [0.6, 1.0])


def test_runs_on_a_secret_sample_are_charged_beside_the_others(tmp_path, source, ledger):
    """Their event is priced as a whole only, and yet a second one, or another kind, can follow."""
    sampled = {"kind": DPAR, "graph_rate": 0.5, "variant": "features"}
    for number, made in enumerate([method(2.0, **sampled), method(2.0, **sampled), method(2.0)]):
        train(tmp_path / str(number), source, ledger, made)
    assert 2.0 < people(ledger).spent() < people(ledger).plain_sum()
    ledger.verify()
