"""Searches that are charged to a ledger; how they run is in tests/tuning."""

import json

import pytest
from runs_cases import DATA, DELTA, Crash, Given, crash, method, people

from graphveil._errors import BudgetError, InvalidInputError
from graphveil.methods import Facts
from graphveil.runs import Run, check_charged, check_search, search_into
from graphveil.tuning import Tuning, search, values_of


def searched(directory, source, ledger, find=None, epsilon=2.0, **how):
    """A search of two trials, charged unless there is no ledger."""
    tuning = Tuning(
        method="dp-mlp",
        vary={"learning_rate": values_of("learning_rate", [0.1, 0.2])},
        trials=2,
        epsilon=epsilon,
        settings={"steps": 2, "sample_rate": 1.0},
        delta=DELTA,
    )
    priced = tuning.priced()

    def find_one(arranged):
        planned = priced.planned(Facts.of(arranged.training))
        return search(planned, arranged.training).method, {}

    run, said = Run(directory), tuning.describe()
    how |= {} if ledger is None else {"ledger": ledger.path}
    return search_into(run, find or find_one, priced, source, said, **how)[0]


def test_a_search_is_charged_what_its_run_says(tmp_path, source, ledger):
    made = searched(tmp_path / "run", source, ledger)
    assert check_charged(ledger.path, [tmp_path / "run"]) == 1
    (charged,) = people(ledger).charged
    assert charged.settled == tuple(made.charges_) == Run(tmp_path / "run").record().charges
    assert Run(tmp_path / "run").was_charged()


def test_a_search_is_settled_before_its_first_trial(tmp_path, source, ledger):
    """Else the dates of its entries, or that it has none, would tell how long the trials took."""

    def look(arranged):
        (charged,) = people(ledger).charged
        assert charged.settled
        raise Crash

    with pytest.raises(Crash):
        searched(tmp_path / "run", source, ledger, look)
    kinds = [json.loads(body)["kind"] for body, _ in ledger.read().entries[2:]]
    assert kinds == ["reserve", "settle"]


@pytest.mark.parametrize(
    ("place", "charges"),
    [
        ("graphveil.runs.charging.Ledger.reserve", 1),
        ("graphveil.runs.charging.Spending.reserve_seen", 1),
        ("graphveil.runs.searching.write_json", 1),
        ("graphveil.runs.charging.Ledger.settle", 1),
        ("graphveil.tuning.trials.draw_count", 2),
        ("graphveil.runs.searching.measure", 2),
        ("graphveil.runs.record.write_events", 2),
        ("graphveil.runs.record.write_certificate", 2),
    ],
)
def test_a_killed_search_stays_charged_once_it_may_have_released(
    tmp_path, source, ledger, monkeypatch, place, charges
):
    run = Run(tmp_path / "run")
    with monkeypatch.context() as patched:
        patched.setattr(place, crash)
        with pytest.raises(Crash):
            searched(run.directory, source, ledger)
    assert run.state == "unfinished"
    before = [each.settled for each in people(ledger).charged if each.settled]
    assert len(before) == charges - 1
    read = Given.read
    for refused in (check_search, lambda run: searched(run.directory, source, ledger)):
        with pytest.raises(InvalidInputError, match=r"was begun and not finished.*--force"):
            refused(run)
    assert Given.read == read
    if run.has("settings.json"):
        with pytest.raises(InvalidInputError, match="cannot go on"):
            run.train(method(), source, ledger=ledger.path, resume=True)
    made = searched(run.directory, source, ledger, force=True)
    assert len(people(ledger).charged) == charges
    assert people(ledger).charged[-1].settled == tuple(made.charges_)
    assert not people(ledger).waiting
    assert run.state == "finished"
    ledger.verify()


def test_a_search_over_budget_reads_nothing_and_leaves_nothing(tmp_path, source, ledger):
    searched(tmp_path / "first", source, ledger)
    read = Given.read
    with pytest.raises(BudgetError, match=r"--epsilon .* would fit"):
        searched(tmp_path / "run", source, ledger, crash, epsilon=9.9)
    assert Given.read == read
    assert not (tmp_path / "run").exists()
    assert len(people(ledger).charged) == 1


def test_a_search_whose_data_cannot_be_loaded_costs_nothing(tmp_path, source, ledger, monkeypatch):
    searched(tmp_path / "first", source, ledger)
    monkeypatch.setattr(Given, "data_now", InvalidInputError("no such file"))
    with pytest.raises(InvalidInputError, match="no such file") as caught:
        searched(tmp_path / "run", source, ledger, crash)
    assert caught.value.__notes__ == ["Nothing was released or charged."]
    assert not people(ledger).waiting
    assert len(people(ledger).charged) == 1
    assert not (tmp_path / "run").exists()


def test_a_charged_search_is_not_replaced_by_one_that_is_not(tmp_path, source, ledger):
    searched(tmp_path / "run", source, ledger)
    with pytest.raises(InvalidInputError, match=r"must not be replaced.*--ledger"):
        searched(tmp_path / "run", source, None, crash, force=True)
    assert Run(tmp_path / "run").state == "finished"
    assert not (tmp_path / ".run.replaced").exists()


def test_data_that_is_at_hand_is_not_charged(tmp_path, source, ledger):
    """What it costs is reserved before data is loaded."""
    given = {"arranged": source.arrange(DATA.clone())}
    with pytest.raises(InvalidInputError, match="must load its data itself"):
        searched(tmp_path / "run", source, ledger, crash, **given)
    with pytest.raises(InvalidInputError, match="must load its data itself"):
        Run(tmp_path / "run").train(method(), source, ledger=ledger.path, **given)
    assert not (tmp_path / "run").exists()
