"""What runs is what is charged, nothing of the losers is left, and the best one wins."""

import copy
import json
import sys
from collections import Counter

import pytest
import torch
from dp_accounting import dp_event

from graphveil._errors import InvalidInputError, UnprovenError
from graphveil.mechanisms import Gaussian
from graphveil.methods.late_graph import DPMLP
from graphveil.privacy.events import SampledGaussianDpEvent, composed, one_of, repeated
from graphveil.rng import secret
from graphveil.runs import FILES, Arranged, Run, Source, check_search, search_into
from graphveil.tuning import require_optuna, search, search_openly


@pytest.fixture
def counted(monkeypatch):
    """Fix the number of trials, and note what every trial really did."""
    seen = {"steps": [], "scores": [], "fits": []}
    release, fit = Gaussian.release, DPMLP.fit

    def note_release(self, value, rng, **block):
        found = release(self, value, rng, **block)
        scored = isinstance(value, list)  # of one number; a step releases a tensor
        seen["scores" if scored else "steps"].append((self, value, found))
        return found

    def note_fit(self, *args, **kwargs):
        seen["fits"].append(self)
        return fit(self, *args, **kwargs)

    def call(count):
        monkeypatch.setattr("graphveil.tuning.trials.draw_count", lambda *asked: count)
        monkeypatch.setattr(Gaussian, "release", note_release)
        monkeypatch.setattr(DPMLP, "fit", note_fit)
        return seen

    return call


def arranged(data):
    return Arranged(training=data, testing=data, mode=None, split="given")


@pytest.mark.parametrize("count", [1, 5])
def test_what_runs_is_what_is_charged(tuning, data, facts, counted, count):
    seen = counted(count)
    planned = tuning().plan(facts)
    winner = search(planned, data)
    assert len(seen["fits"]) == len(seen["scores"]) == count
    steps, trials = iter(seen["steps"]), []
    for mechanism, value, _ in seen["scores"]:
        assert mechanism.sensitivity == 1.0
        assert value[0] == round(value[0])  # a count
        taken = [next(steps)[0] for _ in range(4)]
        (noise,) = {step.noise_multiplier for step in taken}
        step = SampledGaussianDpEvent(rate=1.0, noise_multiplier=noise)
        trials.append(composed(repeated(step, len(taken)), mechanism.event()))
    assert next(steps, None) is None
    (charge,) = winner.method.certificate_.charges
    assert charge.event == dp_event.RepeatAndSelectDpEvent(one_of(*trials), 4.0, 0.0)
    assert winner.method.certificate_ == planned.plan.certificate()
    # It is the one with the best noisy score.
    best = max(range(count), key=lambda number: seen["scores"][number][2][0])
    assert winner.method is seen["fits"][best]
    records = int(data.val_mask.sum())
    assert winner.score == seen["scores"][best][2][0] / records
    assert winner.noise == seen["scores"][best][0].noise_multiplier / records
    assert all(winner.candidate[key] == getattr(winner.method, key) for key in winner.candidate)


def test_candidates_are_drawn_anew_and_weights_are_fresh(tuning, data, facts, counted):
    seen = counted(6)
    search(tuning(vary={"learning_rate": "0.01..0.1"}).plan(facts), data)
    assert len({method.learning_rate for method in seen["fits"]}) == 6
    again = {method.learning_rate for method in seen["fits"]}
    seen["fits"].clear()
    search(tuning(vary={"learning_rate": "0.01..0.1"}).plan(facts), data)
    assert not again & {method.learning_rate for method in seen["fits"]}  # no seed repeats them


def test_equal_scores_are_decided_by_a_coin(tuning, data, facts, counted, monkeypatch):
    """The first of equals would tell how early it came, and trials would not be alike."""
    seen = counted(3)
    monkeypatch.setattr("graphveil.tuning.trials.public_count", lambda *_: 7)
    planned, won = tuning(scores="public-validation").plan(facts), Counter()
    for number in range(9):
        seen["fits"].clear()
        winner = search(planned, data, rng=secret(fixed_seed=number))
        won[[method is winner.method for method in seen["fits"]].index(True)] += 1
    assert set(won) == {0, 1, 2}


def test_a_trial_of_another_price_is_refused_before_it_reads_data(tuning, data, facts, counted):
    seen = counted(3)
    planned = tuning().plan(facts)
    wrong = copy.copy(planned)
    object.__setattr__(wrong, "events", ())
    with pytest.raises(UnprovenError, match="cost what was planned"):
        search(wrong, data)
    assert not seen["fits"]


def test_a_fixed_secret_stream_voids_the_certificate(tuning, data, facts):
    winner = search(tuning().plan(facts), data, rng=secret(fixed_seed=1))
    assert "fixed_seed=1" in winner.method.certificate_.void_because[0]


def test_progress_is_shown_only_where_the_number_is_no_secret(tuning, data, facts):
    shown = []

    def track(numbers):
        shown.append(len(list(numbers)))
        return iter(range(shown[-1]))

    search(tuning().plan(facts), data, track=track)
    assert not shown
    winner = search(tuning(fixed=True).plan(facts), data, track=track)
    assert shown == [4]
    assert "TUNED by 4 trials" in str(winner.method.certificate_)


def test_the_better_setting_wins(tuning, data, facts):
    """A learning rate of 1e-9 learns nothing: of six trials the other one wins."""
    vary, settings = {"learning_rate": [1e-9, 0.05]}, {"steps": 30, "num_layers": 2}
    planned = tuning(vary=vary, settings=settings, epsilon=60.0, trials=6, fixed=True).plan(facts)
    for seed in range(2):
        winner = search(planned, data, rng=secret(fixed_seed=seed))
        assert winner.candidate == {"learning_rate": 0.05}


def test_trials_on_public_data_cost_nothing_and_keep_no_certificate(tuning, data, counted):
    seen = counted(99)
    winner = search_openly(tuning(scores="public-data", public_data="cora", delta=1e-9), data)
    assert len(seen["fits"]) == 4  # as many as asked for
    assert not seen["scores"]
    assert all(method.epsilon == 4.0 for method in seen["fits"])
    assert winner.score * int(data.val_mask.sum()) == pytest.approx(
        round(winner.score * int(data.val_mask.sum()))
    )


def test_trials_on_public_data_are_shared_by_processes(tuning, data, monkeypatch):
    """Whichever ends first; the processes themselves are tried in tests/test_jobs.py."""
    import pickle

    from graphveil._jobs import do_all

    asked = []

    def do_backwards(work, items, *, jobs, name):
        asked.append((jobs, [name(item) for item in items]))
        return do_all(pickle.loads(pickle.dumps(work)), list(items)[::-1], jobs=1, name=name)

    monkeypatch.setattr("graphveil.tuning.trials.do_all", do_backwards)
    openly = tuning(scores="public-data", public_data="cora", delta=1e-9)
    shown = []
    winner = search_openly(
        openly, data, jobs=3, track=lambda steps: (shown.append(n) or n for n in steps)
    )
    ((jobs, names),) = asked
    assert (jobs, len(names), shown) == (3, 4, [0, 1, 2, 3])
    assert all(name.startswith(f"trial {n} of 4, ") for n, name in enumerate(names, 1))
    params = winner.method.get_params()
    assert {key: params[key] for key in winner.candidate} == winner.candidate
    pickle.loads(pickle.dumps(winner.method)).predict_proba(data)  # as it comes back


# --- the run --------------------------------------------------------------------------------------


def tuned(tuning, data, facts, directory, **how):
    priced = tuning.priced()

    def find(arranged):
        winner = search(priced.planned(facts), arranged.training)
        return winner.method, {"validation_accuracy": winner.score}

    source, said = Source(data="files", split="given"), tuning.describe()
    return search_into(Run(directory), find, priced, source, said, arranged=arranged(data), **how)


def test_a_run_is_read_back_with_its_certificate(tuning, data, facts, tmp_path):
    method, metrics = tuned(tuning(), data, facts, tmp_path / "run")
    assert Run(tmp_path / "run").state == "finished"
    back = Run(tmp_path / "run").read()
    assert back.certificate_ == method.certificate_
    assert back.plan_ == method.plan_
    assert torch.equal(back.predict(data), method.predict(data))
    # How long it took would tell how many trials there were: one date, that of the beginning.
    assert "seconds" not in metrics
    assert len({path.stat().st_mtime for path in (tmp_path / "run").iterdir()}) == 1
    assert not any(letter.isdigit() for letter in (tmp_path / "run" / "log.txt").read_text())
    released = "model weights, the chosen settings and their noisy validation score"
    assert back.certificate_.released == released
    # Were certificate.json written anew, it would say the same.
    back.certify()
    assert back.certificate_ == method.certificate_


def test_a_noisy_prediction_later_is_charged_beside_it(tuning, data, facts, tmp_path):
    made = tuning("late-graph")
    method, _ = tuned(made, data, facts, tmp_path / "run")
    before = method.certificate_
    after, _ = Run(tmp_path / "run").predict(data, mode="noisy", epsilon=1.0)
    text = str(after.certificate_)
    assert "TUNED" in text
    assert "the time the trials took" in text
    assert len(after.certificate_.charges) == 2
    assert after.certificate_.guarantee.epsilon > before.guarantee.epsilon
    assert Run(tmp_path / "run").read().certificate_ == after.certificate_


def test_nothing_of_losers_or_their_number_is_written(tuning, data, facts, tmp_path, counted):
    seen = counted(7)
    with_seven = tmp_path / "seven"
    tuned(tuning(), data, facts, with_seven)
    losers = [method for method in seen["fits"] if method.learning_rate not in _rates(with_seven)]
    assert len(losers) == 6
    names = {path.name for path in with_seven.rglob("*")}
    assert names <= {*FILES, "log.txt"}
    for path in with_seven.rglob("*"):
        content = path.read_bytes().decode(errors="replace")
        for method in losers:
            assert repr(method.learning_rate) not in content
            assert repr(method.max_grad_norm) not in content
    # What is written does not depend on how often was tried.
    counted(1)
    tuned(tuning(), data, facts, tmp_path / "one")
    for name in ("events.json", "certificate.txt", "environment.json"):
        one, seven = ((tmp_path / run / name).read_text() for run in ("one", "seven"))
        assert _without_hashes(one) == _without_hashes(seven)
    assert set(_json(tmp_path / "one" / "metrics.json")) == set(_json(with_seven / "metrics.json"))
    plans = [_json(tmp_path / run / "plan.json")["plan"] for run in ("one", "seven")]
    for plan in plans:  # of the winner: its own settings, and what all trials share
        settings = {key: plan["settings"].pop(key) for key in ("learning_rate", "max_grad_norm")}
        (part,) = plan["parts"]
        assert settings == {key: part.pop(key) for key in settings}
        assert settings["learning_rate"] == plan["details"].pop("learning_rate")
    assert plans[0] == plans[1]
    assert names == {path.name for path in (tmp_path / "one").rglob("*")}


def _json(path):
    return json.loads(path.read_text())


def _rates(directory):
    return {_json(directory / "settings.json")["settings"]["learning_rate"]}


def _without_hashes(text):
    return [line for line in text.splitlines() if "sha256" not in line]


def test_a_killed_search_leaves_no_trace_and_is_not_gone_on_with(
    tuning, data, facts, tmp_path, monkeypatch
):
    directory, made = tmp_path / "run", tuning()
    planned = made.plan(facts)
    fit, fits = DPMLP.fit, []

    def dying(self, *args, **kwargs):
        fits.append(self)
        if len(fits) == 3:
            raise KeyboardInterrupt
        return fit(self, *args, **kwargs)

    monkeypatch.setattr("graphveil.tuning.trials.draw_count", lambda *asked: 5)
    monkeypatch.setattr(DPMLP, "fit", dying)
    source = Source(data="files", split="given")

    def run(**how):
        return tuned(made, data, facts, directory, **how)

    with pytest.raises(KeyboardInterrupt):
        run()
    assert Run(directory).state == "unfinished"
    assert {path.name for path in directory.rglob("*")} <= {"settings.json", "log.txt"}
    content = (directory / "settings.json").read_text()
    assert not any(repr(method.learning_rate) in content for method in fits)
    with pytest.raises(InvalidInputError, match="--force"):
        run()
    for refused in (Run(directory).check, Run(directory).read, Run(directory).record):
        with pytest.raises(InvalidInputError, match="cannot go on: start anew with --force"):
            refused()
    with pytest.raises(InvalidInputError, match="was begun and not finished"):
        check_search(Run(directory))
    with pytest.raises(InvalidInputError, match="cannot go on"):
        Run(directory).train(made.make({}), source, arranged=arranged(data), resume=True)
    run(force=True)
    assert Run(directory).read().certificate_ == planned.plan.certificate()


def test_a_run_that_is_there_is_kept_until_the_new_one_is_finished(tuning, data, facts, tmp_path):
    directory = tmp_path / "run"
    tuned(tuning(), data, facts, directory)
    with pytest.raises(InvalidInputError, match="--force"):
        tuned(tuning(), data, facts, directory)
    first = (directory / "model.safetensors").read_bytes()
    tuned(tuning(), data, facts, directory, force=True)
    assert (directory / "model.safetensors").read_bytes() != first
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_run_chosen_on_public_data_says_so_and_costs_one_training(tuning, data, tmp_path):
    made = tuning(scores="public-data", public_data="somewhere")
    method = made.make({"learning_rate": 0.03, "max_grad_norm": 0.5})
    source = Source(data="files", split="given")
    run = Run(tmp_path / "run")
    run.train(method, source, arranged=arranged(data), tuning=made.describe())
    back = run.read()
    text = str(back.certificate_)
    assert "TUNED on somewhere, declared public" in text
    assert "somewhere was not public" in text
    (charge,) = back.certificate_.charges
    assert charge.paid_for == "training of the weights"
    assert back.certificate_.guarantee.epsilon <= 4.0
    assert method.certificate_ == back.certificate_


def test_a_garbled_account_of_the_choice_is_refused_in_one_line(tuning, data, facts, tmp_path):
    tuned(tuning(), data, facts, tmp_path / "run")
    file = tmp_path / "run" / "settings.json"
    written = _json(file)
    for block in (7, "x", ["private"]):
        file.write_text(json.dumps(written | {"tuning": block}))
        _refused(tmp_path / "run", r"settings\.json")
    file.write_text(json.dumps(written))
    # What the certificate says of it is said in the plan.
    file = tmp_path / "run" / "plan.json"
    written = _json(file)
    for said in (
        *({"public": 3}, {"public": "x"}, {"public": [7]}, {"unprotected": None}),
        *({"voided_by": None}, {"voided_by": [[]]}, {"released": []}, {"released": None}),
    ):
        file.write_text(json.dumps(written | {"plan": written["plan"] | said}))
        _refused(tmp_path / "run", r"plan\.json")


def _refused(directory, match):
    with pytest.raises(InvalidInputError, match=match) as refusal:
        Run(directory).read()
    assert "\n" not in str(refusal.value)


# --- optuna ---------------------------------------------------------------------------------------


def test_optuna_searches_where_every_trial_is_charged(tuning, data, facts, counted):
    pytest.importorskip("optuna", reason="the extra 'tune' is not installed")
    seen = counted(99)
    vary = {"learning_rate": "0.01..0.1", "averaged": "0..1:even", "num_layers": [1, 2]}
    vary |= {"project_above": "16..128"}
    made = tuning(vary=vary, sampler="optuna", fixed=True, trials=12)
    winner = search(made.plan(facts), data)
    assert len(seen["fits"]) == 12
    assert {method.num_layers for method in seen["fits"]} <= {1, 2}
    assert all(0.01 <= method.learning_rate <= 0.1 for method in seen["fits"])
    assert all(isinstance(method.project_above, int) for method in seen["fits"])
    assert winner.method.certificate_.charges[0].event.count == 12


def test_without_optuna_one_line_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(InvalidInputError, match=r"graphveil\[tune\]"):
        require_optuna("optuna")
