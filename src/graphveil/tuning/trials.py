"""Run the trials of a plan, and keep the best.

Nothing of a trial that did not win outlives it, and how many there were is a local variable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

from torch_geometric.data import Data

from graphveil._errors import InvalidInputError, UnprovenError
from graphveil._jobs import check_jobs, do_all, show_progress
from graphveil._progress import Progress
from graphveil.methods import Facts, Method
from graphveil.rng import SecretStream, secret
from graphveil.tuning.candidates import Between, drawn
from graphveil.tuning.counting import draw_count
from graphveil.tuning.plan import Tuning, TuningPlan
from graphveil.tuning.scores import private_count, public_count, score_openly, validation

Tell = Callable[[float], None]


@dataclass(frozen=True, kw_only=True)
class Winner:
    """The best trial: its fitted method, what was varied in it, and its score.

    ``score`` is the share of validation records answered rightly, with noise of standard deviation
    ``noise`` if it was private: a difference in accuracy that is much smaller decided nothing.
    """

    method: Method
    candidate: dict[str, Any]
    score: float
    noise: float = 0.0


def search(
    planned: TuningPlan,
    data: Data,
    *,
    rng: SecretStream | None = None,
    track: Progress | None = None,
) -> Winner:
    """Train and score as many candidates as the plan says; the best, charged for all of them.

    ``track`` shows progress, where the number of trials is no secret.

    *Guarantee*: that of the plan. The winner's certificate is the plan's, and each trial is checked
    against what the plan charges for it, before it reads any data and after it.
    """
    tuning, facts = planned.tuning, Facts.of(data)
    rng = secret() if rng is None else rng

    def tried(candidate: dict[str, Any]) -> tuple[Method, float]:
        method: Any = tuning.make(candidate, planned.trial_epsilon)
        scorer = planned.scorer(method, facts)
        _check_price(planned, method.plan(facts).charges, scorer)
        method.fit(data, rng=rng)
        _check_price(planned, method.charges_, scorer)
        if tuning.scores == "public-validation":
            return method, public_count(method, data, tuning.metric)
        right = float(private_count(method, data))
        return method, right if scorer is None else float(scorer.release([right], rng)[0])

    winner = _best(tuning, data, tried, asked(tuning, rng), rng, track)
    scorer = planned.scorer(winner.method, facts)
    if scorer is not None:
        records = int(validation(data).sum())
        winner = replace(winner, noise=scorer.noise_multiplier * scorer.sensitivity / records)
    winner.method.plan_ = tuning.apply_to(winner.method.plan_)
    winner.method.charges_ = list(planned.charges)
    winner.method.certify()
    return winner


def search_openly(
    tuning: Tuning,
    data: Data,
    *,
    rng: SecretStream | None = None,
    track: Progress | None = None,
    jobs: int = 1,
) -> Winner:
    """The best candidate on public ``data``; what was trained there is of no further use.

    ``jobs`` processes share the trials, where none learns from another.

    *Guarantee*: none to ``data``, which is public. Nothing private is read.
    """
    check_jobs_of(tuning, jobs)
    trial, rng = _OpenTrial(tuning, data), secret() if rng is None else rng
    if jobs == 1:
        return _best(tuning, data, trial, asked(tuning, rng), rng, track)
    candidates = [drawn(tuning.vary, rng) for _ in range(int(tuning.trials))]
    tried = iter(_try_all(trial, candidates, jobs, track))
    ask = ((candidate, _tell_nobody) for candidate in candidates)
    return _best(tuning, data, lambda _: next(tried), ask, rng, None)


def check_jobs_of(tuning: Tuning, jobs: int) -> None:
    """Refuse several processes where they would tell what is secret, or prove nothing."""
    if check_jobs(jobs) == 1:
        return
    if not tuning.counted:
        raise UnprovenError(
            "The number of trials is secret, and whoever sees several processes at work can count "
            f"them. Got --jobs {jobs}; leave it out, or choose on public data (--public-data)."
        )
    if tuning.scores != "public-data" or tuning.sampler == "optuna":
        why = "learn from one another" if tuning.sampler == "optuna" else "are charged as one run"
        raise InvalidInputError(
            f"Trials that {why} are done by one process. Got --jobs {jobs}; leave it out, or "
            "choose at random on public data (--public-data)."
        )


def _try_all(
    trial: _OpenTrial, candidates: Sequence[dict[str, Any]], jobs: int, track: Progress | None
) -> list[tuple[Method, float]]:
    """What comes of each candidate, in their order."""

    def name(number: int) -> str:
        return f"trial {number + 1} of {len(candidates)}, {candidates[number]}"

    results: dict[int, tuple[Method, float]] = {}
    work = _Numbered(trial, candidates)
    with (
        show_progress(track, len(candidates)) as advance,
        closing(do_all(work, range(len(candidates)), jobs=jobs, name=name)) as ready,
    ):
        for done in ready:
            results[done.item] = done.take()
            advance()
    return [results[number] for number in range(len(candidates))]


class _OpenTrial:
    """One trial on public data, as another process can be given it."""

    def __init__(self, tuning: Tuning, data: Data) -> None:
        self._tuning = replace(tuning, delta=None)  # below one in so many nodes of this data, too
        self._data = data

    def __call__(self, candidate: dict[str, Any]) -> tuple[Method, float]:
        data, wanted = self._data, validation(self._data)
        method = self._tuning.make(candidate).fit(data)
        answers = method.predict_proba(data)
        right = score_openly(method, answers[wanted], data.y[wanted], self._tuning.metric)
        return method, right


class _Numbered:
    """A trial by the number of its candidate."""

    def __init__(self, trial: _OpenTrial, candidates: Sequence[dict[str, Any]]) -> None:
        self._trial, self._candidates = trial, candidates

    def __call__(self, number: int) -> tuple[Method, float]:
        return self._trial(self._candidates[number])


def _tell_nobody(score: float) -> None:
    """Of a trial from which no other learns."""


def _best(
    tuning: Tuning,
    data: Data,
    tried: Callable[[dict[str, Any]], tuple[Method, float]],
    ask: Iterator[tuple[dict[str, Any], Tell]],
    rng: SecretStream,
    track: Progress | None,
) -> Winner:
    records = int(validation(data).sum())
    count = int(tuning.trials) if tuning.counted else draw_count(tuning.law, tuning.trials, rng)
    numbers: Iterable[int] = range(count)
    if track is not None and tuning.counted:
        numbers = track(numbers)
    best, place = None, (0.0, 0.0)
    for _ in numbers:
        candidate, tell = next(ask)
        method, right = tried(candidate)
        score = right / records
        tell(score)
        # Equal scores: a coin that belongs to the trial decides, so that trials stay alike.
        standing = (score, float(rng.normal(1)[0]))
        if best is None or standing > place:
            best, place = Winner(method=method, candidate=candidate, score=score), standing
    assert best is not None
    return best


def _check_price(planned: TuningPlan, charges: Any, scorer: Any) -> None:
    if planned.trial_event(charges, scorer) not in planned.events:
        raise UnprovenError(
            "Every trial must cost what was planned. Got a candidate that costs something else; "
            "vary the settings that change its price as lists, or one at a time."
        )


# --- who is tried next ----------------------------------------------------------------------------


def asked(tuning: Tuning, rng: SecretStream) -> Iterator[tuple[dict[str, Any], Tell]]:
    """Candidates without end, each with whom to tell its score."""
    if tuning.sampler == "optuna":
        yield from _by_optuna(tuning)
    while True:
        yield drawn(tuning.vary, rng), _tell_nobody


def require_optuna(sampler: str) -> None:
    """Refuse in one line where optuna is missing; before anything is spent."""
    if sampler != "optuna":
        return
    try:
        import optuna  # noqa: F401
    except ImportError:
        raise InvalidInputError(
            "The sampler 'optuna' needs optuna; pip install 'graphveil[tune]', or use --sampler "
            "random."
        ) from None


def _by_optuna(tuning: Tuning) -> Iterator[tuple[dict[str, Any], Tell]]:
    """What optuna makes of the scores so far, all of which are paid for."""
    require_optuna("optuna")
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = optuna.samplers.TPESampler(seed=tuning.seed % 2**32)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    while True:
        trial = study.ask()
        candidate = {key: _suggest(trial, key, values) for key, values in tuning.vary.items()}

        def tell(score: float, trial: Any = trial) -> None:
            study.tell(trial, score)

        yield candidate, tell


def _suggest(trial: Any, key: str, values: Any) -> Any:
    if not isinstance(values, Between):  # by its number: values may be lists or tables
        return values.values[trial.suggest_categorical(key, list(range(len(values.values))))]
    if values.whole:
        return trial.suggest_int(key, values.low, values.high, log=not values.even)
    return trial.suggest_float(key, values.low, values.high, log=not values.even)
