r"""What a tuning run will run and cost, before any data is touched.

    tuning = Tuning(method="dp-mlp", vary={"learning_rate": Between(1e-3, 1e-1)}, trials=10,
                    epsilon=2.0)
    planned = tuning.plan(facts)
    planned.charges, planned.certificate()

One *trial* draws a candidate, trains it and scores it. A secret number of trials, of which the best
alone is released, costs ``RepeatAndSelectDpEvent(trial, mean, shape)``; a fixed number, of which
everything may be, its composition. Candidates share one budget for training, found so that the
whole fits. Proofs: docs/guarantees/tuning.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import dp_accounting as dpa
from dp_accounting import dp_event

from graphveil import _validate
from graphveil._errors import BudgetError, InvalidInputError, UnprovenError
from graphveil.mechanisms import Gaussian
from graphveil.methods import METHODS, Facts, Plan, tuned
from graphveil.methods.base import Method
from graphveil.methods.measures import METRICS
from graphveil.methods.parts import Search
from graphveil.privacy.accounting import calibrate, epsilon_of
from graphveil.privacy.events import composed, one_of, repeated
from graphveil.privacy.guarantee import Charge
from graphveil.tuning.candidates import Between, Values
from graphveil.tuning.counting import LAWS, MEANS
from graphveil.tuning.scores import sensitivity, unseen

SCORES = ("private", "public-validation", "public-data")
SAMPLERS = ("random", "optuna")
_MOST_PRICES = 64  # candidates that differ in what they cost
_CLOSE = 1e-3  # of the budget: what the search for a trial's budget may leave unspent
_OWN_OPTIONS = ("epsilon", "delta", "seed")


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """What is tried, how it is scored, and what may be spent.

    ``settings`` are the same in every trial, ``vary`` says what the others may be. ``trials`` is
    the mean of a secret number of trials, drawn by ``law``; with ``fixed``, or where nothing is
    charged, it is their number. ``scores`` is one of SCORES. ``score_share`` is about the share of
    a trial's budget that its score gets, if it costs anything. ``metric`` is what public scores go
    by; a private one counts right answers, which one unit moves by a bound.
    """

    method: str
    vary: Mapping[str, Values]
    trials: float
    epsilon: float
    delta: float | None = None
    seed: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)
    scores: str = "private"
    public_data: str | None = None
    fixed: bool = False
    law: str = "logarithmic"
    sampler: str = "random"
    score_share: float = 0.1
    metric: str | None = None

    def __post_init__(self) -> None:
        _validate.number("epsilon", self.epsilon, "(0, inf)")
        _validate.number("score_share", self.score_share, "(0, 1)")
        _validate.choice("scores", self.scores, SCORES)
        _validate.choice("law", self.law, tuple(LAWS))
        _validate.choice("sampler", self.sampler, SAMPLERS)
        if self.metric is not None:
            _validate.choice("metric", self.metric, METRICS)
        if self.metric is not None and self.scores == "private":
            raise UnprovenError(
                "A private score must count right answers, which one unit moves by a bound. Got "
                f"metric={self.metric!r} instead; leave it out, or choose on public records or "
                "data (--public-validation, --public-data)."
            )
        if (self.scores == "public-data") != (self.public_data is not None):
            raise InvalidInputError("Scores on public data need its name, and no others take one.")
        if self.counted:
            _validate.integer("trials", self.trials, "[2, 10000]")
        else:
            _validate.number("trials", self.trials, MEANS)
        kind = METHODS.get(self.method)
        if kind is None or not kind.private:
            raise InvalidInputError(
                f"A tuning run must have a private method. Got {self.method!r} instead; a method "
                "in the open has no budget to keep ('graphveil sweep' shows how it does)."
            )
        self._check_varied()
        if self.sampler == "optuna" and not self.counted:
            raise UnprovenError(
                "The sampler 'optuna' lets a trial depend on the scores of earlier ones; what is "
                "proven for a secret number of trials needs independent ones. Use --sampler "
                "random, or --fixed, which charges every trial and its score."
            )

    def _check_varied(self) -> None:
        if not self.vary:
            raise InvalidInputError(
                "There must be candidates to choose from. Got none; name a setting and what it may "
                "be, e.g. --vary learning_rate=0.001..0.1."
            )
        for key in self.vary:
            if key in _OWN_OPTIONS:
                raise InvalidInputError(
                    f"The setting {key!r} cannot be varied: all trials share it. Give --{key}."
                )
            if key in self.settings:
                raise InvalidInputError(
                    f"The setting {key!r} must be either set or varied. Got both; leave one out."
                )
            if self.scores == "private" and key in unseen(self.method):
                raise UnprovenError(
                    f"A private score of '{self.method}' reads each node's own row, where "
                    f"{key!r} makes no difference: a score that reads neighbours has no bound. "
                    "Choose it by --public-validation or --public-data."
                )
        if "paper" in self.vary or self.settings.get("paper"):
            raise UnprovenError(
                "The epsilon of 'paper' is a claim, and a tuning run spends what is proven. Got "
                "'paper' among the settings; leave it out."
            )

    @property
    def counted(self) -> bool:
        """Whether the number of trials is fixed and may be known."""
        return self.fixed or self.scores == "public-data"

    @property
    def first(self) -> dict[str, Any]:
        """One of the candidates."""
        return {key: values.looked_at[0] for key, values in self.vary.items()}

    def make(self, candidate: Mapping[str, Any], epsilon: float | None = None) -> Method:
        """The method of one candidate, with a trial's budget (by default the whole)."""
        kind: Any = METHODS[self.method]
        return kind(
            **{**self.settings, **candidate},
            epsilon=self.epsilon if epsilon is None else epsilon,
            delta=self.delta,
            seed=self.seed,
        )

    # --- plan ------------------------------------------------------------------------------------

    def plan(self, facts: Facts) -> TuningPlan:
        """What trials on private data will cost. Touches no data."""
        if self.scores == "public-data":
            raise InvalidInputError("Trials on public data cost nothing: plan the last run alone.")
        planner = _Planner(self, facts)
        return planner.planned(_largest(planner.total, self.epsilon))

    def priced(self) -> PricedTuning:
        """As a ledger sees it."""
        return PricedTuning(tuning=self, epsilon=self.epsilon)

    def describe(self) -> dict[str, Any]:
        """For settings.json: what was tried and how it was chosen, and what that rests on."""
        number = "trials" if self.counted else "mean_trials"
        return {
            "scores": self.scores,
            **({"public_data": self.public_data} if self.public_data else {}),
            **({"metric": self.metric} if self.metric else {}),
            number: self.trials,
            **({} if self.counted else {"law": self.law}),
            "sampler": self.sampler,
            "vary": {key: values.plain() for key, values in self.vary.items()},
            "epsilon": self.epsilon,
            "rests_on": self._rests_on(),
        }

    def apply_to(self, plan: Plan) -> Plan:
        """A plan that says how its settings were chosen."""
        return plan.resting_on(**self._rests_on())

    def _rests_on(self) -> dict[str, Any]:
        """What the certificate says of how the settings were chosen."""
        public, unprotected = self._public()
        also = [] if self.scores == "public-data" else [self._also_released()]
        return {
            "tuned": True,
            "public": public,
            "unprotected": unprotected,
            "also_released": also,
            "voided_by": list(self._voided_by()),
        }

    def _public(self) -> tuple[list[str], list[str]]:
        """What counts as public, and what of it is not protected."""
        record = METHODS[self.method].record
        tried = ", ".join(f"{key} = {values.plain()}" for key, values in self.vary.items())
        if self.scores == "public-data":
            return [tuned.ON_PUBLIC_DATA.format(data=self.public_data, tried=tried)], []
        number = tuned.COUNTED if self.counted else tuned.SECRET
        number = number.format(trials=self.trials, law=self.law)
        line = tuned.BY_TRIALS.format(number=number, tried=tried)
        if self.scores == "private":
            return [line, tuned.VALIDATION.format(records=f"{record}s")], []
        read = " and the edges among them" if record == "node" else ""
        declared = tuned.DECLARED.format(records=f"{record}s", read=read)
        return [line, declared], [declared]

    def _also_released(self) -> str:
        if self.scores == "public-validation":
            return tuned.PUBLIC_SCORE
        # An edge may move no score, which then has no noise; the charge says so.
        edge = "edge" in str(getattr(self.make(self.first), "unit", ""))
        return tuned.SCORE if edge else tuned.NOISY_SCORE

    def _voided_by(self) -> tuple[str, ...]:
        if self.scores == "public-data":
            return (tuned.NOT_PUBLIC_DATA.format(data=self.public_data),)
        lines = [tuned.NOT_PUBLIC_RECORD] if self.scores == "public-validation" else []
        return (*lines, *([] if self.counted else [tuned.SHOWN]))


@dataclass(frozen=True, kw_only=True)
class TuningPlan:
    """What a tuning run will run and be charged.

    ``plan`` is of the whole: its charges are all that the run may spend, its certificate what it
    will promise. Each trial trains with ``trial_epsilon`` and costs one of ``events``; a private
    score has the noise multiplier ``score_noise``.
    """

    tuning: Tuning
    plan: Plan
    trial_epsilon: float
    events: tuple[dpa.DpEvent, ...]
    score_noise: float | None

    @property
    def charges(self) -> tuple[Charge, ...]:
        """All that the run may spend."""
        return self.plan.charges

    def scorer(self, method: Method, facts: Facts) -> Gaussian | None:
        """The mechanism that releases a candidate's score; None where it costs nothing."""
        if self.score_noise is None or not (moved := sensitivity(method, facts)):
            return None
        return Gaussian(noise_multiplier=self.score_noise, sensitivity=moved)

    def trial_event(self, charges: Any, scorer: Gaussian | None) -> dpa.DpEvent:
        """What one trial costs: its training, then its score."""
        return composed(
            *(charge.event for charge in charges), *([] if scorer is None else [scorer.event()])
        )


@dataclass(kw_only=True)
class PricedTuning:
    """A tuning run as a ledger sees it: its plan, and what it would be with another epsilon."""

    tuning: Tuning
    epsilon: float

    def __post_init__(self) -> None:
        self._known: dict[Facts, TuningPlan] = {}

    @property
    def name(self) -> str:
        """Of the method that is tuned."""
        return self.tuning.method

    def planned(self, facts: Facts) -> TuningPlan:
        """The whole plan, made once for the same facts."""
        if facts not in self._known:
            self._known[facts] = replace(self.tuning, epsilon=self.epsilon).plan(facts)
        return self._known[facts]

    def plan(self, facts: Facts) -> Plan:
        """What it may spend. Touches no data."""
        return self.planned(facts).plan

    def num_units(self, facts: Facts) -> int:
        """The public number of units."""
        return self.tuning.make(self.tuning.first).num_units(facts)

    def get_params(self) -> dict[str, Any]:
        """What another one like it is made of."""
        return {"tuning": self.tuning, "epsilon": self.epsilon}


class _Planner:
    """Plans every candidate that costs something of its own, for one budget after the other."""

    def __init__(self, tuning: Tuning, facts: Facts) -> None:
        self.tuning, self.facts = tuning, facts
        self.known: dict[tuple[float, tuple[Any, ...]], Plan] = {}
        self.first = tuning.first
        self.candidates = self._different()

    def planned(self, trial_epsilon: float) -> TuningPlan:
        """The whole plan, when each trial trains with this budget."""
        tuning, noise = self.tuning, self._score_noise(trial_epsilon)
        base = self._plan(self.first, trial_epsilon)
        made = TuningPlan(
            tuning=tuning, plan=base, trial_epsilon=trial_epsilon, events=(), score_noise=noise
        )
        scorers = [
            made.scorer(tuning.make(candidate, trial_epsilon), self.facts)
            for candidate in self.candidates
        ]
        events: list[dpa.DpEvent] = []
        for candidate, scorer in zip(self.candidates, scorers, strict=True):
            charges = self._plan(candidate, trial_epsilon).charges
            if (event := made.trial_event(charges, scorer)) not in events:
                events.append(event)
        paid_for = self._paid_for(scored=any(scorer is not None for scorer in scorers))
        search = Search(paid_for=paid_for, event=self._whole(one_of(*events)))
        plan = replace(tuning.apply_to(base), parts=(search,))
        return replace(made, plan=plan, events=tuple(events))

    def total(self, trial_epsilon: float) -> float:
        """What the whole costs, when each trial trains with this budget."""
        planned = self.planned(trial_epsilon)
        whole = composed(*(charge.event for charge in planned.charges))
        return epsilon_of(whole, planned.plan.delta)

    def _whole(self, trial: dpa.DpEvent) -> dpa.DpEvent:
        tuning = self.tuning
        if tuning.fixed:
            return repeated(trial, int(tuning.trials))
        return dp_event.RepeatAndSelectDpEvent(trial, float(tuning.trials), LAWS[tuning.law])

    def _paid_for(self, scored: bool) -> str:
        tuning = self.tuning
        score = ", scored on validation records declared public"
        if tuning.scores == "private":
            score = f", each with its {'noisy score' if scored else 'score, which no edge moves,'}"
            score += " on private validation records"
        if tuning.fixed:
            return f"{tuning.trials:g} trainings{score}, composed"
        return f"the best of a secret number of trainings{score}, by repeat-and-select"

    def _score_noise(self, trial_epsilon: float) -> float | None:
        """The noise with which a score is about ``score_share`` of a trial, as Gaussians go."""
        if self.tuning.scores != "private":
            return None
        share, delta = self.tuning.score_share, self._plan(self.first, trial_epsilon).delta
        alone = calibrate(
            dpa.GaussianDpEvent, epsilon=trial_epsilon, delta=delta, safe=1e8, risky=1e-3
        )
        # Squared inverse multipliers of Gaussians add up: a share of them is the score's.
        return alone * math.sqrt((1 - share) / share)

    # --- candidates that cost something of their own ---------------------------------------------

    def _different(self) -> list[dict[str, Any]]:
        """A candidate for each price: those that differ in settings that a price depends on."""
        dear: dict[str, tuple[Any, ...]] = {}
        for key, values in self.tuning.vary.items():
            plans = [
                self._plan({**self.first, key: value}, self.tuning.epsilon)
                for value in values.looked_at
            ]
            for value in values.looked_at:  # whether the score has a bound, too
                if self.tuning.scores == "private":
                    sensitivity(self.tuning.make({**self.first, key: value}), self.facts)
            if all(plan.charges == plans[0].charges for plan in plans):
                continue
            if isinstance(values, Between):
                raise UnprovenError(
                    f"The setting {key!r} changes what a trial costs, and every price must be "
                    f"known. Got the range {values.plain()} instead; give a list, e.g. "
                    f"--vary {key}={values.low},{values.high}."
                )
            dear[key] = values.looked_at
        if math.prod(len(values) for values in dear.values()) > _MOST_PRICES:
            raise InvalidInputError(
                f"Candidates must not have more than {_MOST_PRICES} different prices. Got more "
                f"from {', '.join(dear)} instead; give shorter lists."
            )
        return [
            {**self.first, **dict(zip(dear, values, strict=True))}
            for values in product(*dear.values())
        ]

    def _plan(self, candidate: Mapping[str, Any], epsilon: float) -> Plan:
        key = (epsilon, tuple(map(repr, candidate.values())))
        if key not in self.known:
            plan = self.tuning.make(candidate, epsilon).plan(self.facts)
            if plan.void_because or plan.claim is not None:
                raise UnprovenError(
                    "Every candidate must have a proven epsilon. Got one that has none: "
                    f"{(*plan.void_because, 'its epsilon is a claim')[0]}."
                )
            if plan.sampled_at < 1:
                raise UnprovenError(
                    "What a secret sample of the nodes amplifies cannot be repeated or composed. "
                    "Got a 'graph_rate' below 1; leave it out, or choose on public data."
                )
            self.known[key] = plan
        return self.known[key]


def _largest(total: Callable[[float], float], budget: float) -> float:
    """The largest budget of a trial with which the ``total`` stays within ``budget``; nearly.

    The total is about a power of it: steps follow the chord of logarithms, and halve the bracket
    where that does not help.
    """
    fits, exceeds = 0.0, budget
    points: list[tuple[float, float]] = []
    value = budget / 2
    for _ in range(40):
        spent = total(value)
        points.append((math.log(value), math.log(spent)))
        if spent <= budget:
            fits = max(fits, value)
            if spent >= (1 - _CLOSE) * budget:
                break
        else:
            exceeds = min(exceeds, value)
        if fits and exceeds - fits < 1e-6 * fits:
            break  # prices jump here
        value = _next(points, math.log((1 - _CLOSE / 2) * budget))
        if not fits < value < exceeds:
            value = math.sqrt(fits * exceeds) if fits else exceeds / 4
        if value < 1e-4 * budget:
            break
    if not fits:
        raise BudgetError(
            f"No budget of a trial keeps the tuning run within epsilon {budget:g}. Raise epsilon, "
            "or ask for fewer trials."
        )
    return fits


def _next(points: list[tuple[float, float]], wanted: float) -> float:
    """Where the chord through the two last points, or a line of slope 1, reaches ``wanted``."""
    (x, y), slope = points[-1], 1.0
    if len(points) > 1 and points[-2][0] != x:
        slope = (y - points[-2][1]) / (x - points[-2][0])
    return math.exp(x + (wanted - y) / slope) if slope > 0.05 else 0.0
