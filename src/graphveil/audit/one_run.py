r"""An audit in one run: canaries in its steps, looked for in what the steps released.

    findings = audit_run(LateGraph(epsilon=8.0), data)
    findings = audit_steps(make_private(module, optimizer, ...), delta=1e-5)

Canaries (:mod:`graphveil.audit.canaries`) are further training terms with the influence that is
charged for one unit, so the event of the steps is the same with them. Whoever looks for them knows
all real data. For each part that takes steps, each kind of canaries has lower bounds
(:mod:`graphveil.audit.bounds`) on the epsilon of that part alone:

====================  ==========================================================================
agnostic one-run      whatever the mechanism is: guesses on the surest, as many as were planned
ordered one-run       whatever the mechanism is: all guesses, revealed from the surest on
normal scores         if every step adds Gaussian noise and draws all terms: exact
family of the event   if the steps are as charged but for their noise: exact
asymptotic Gauss      if there are so many canaries and steps that scores are normal: not a proof
====================  ==========================================================================

**Fixed in advance**, by the plan and the settings alone: scores are log-likelihood ratios under the
law that is charged (or plain sums); a positive one is guessed to be in. The agnostic bound guesses
on that many of the largest, and of the smallest, as would give most on average under this law. Only
on the largest where terms are drawn by coins and none are altered: whoever was never drawn looks as
if out.

**When a promise is broken.** A bound of 95 % may be too high once in twenty runs, and those that
know the law are, where the law that is charged is the true one. For these ``holds`` is False only
if the bound at a confidence of 99.99 % is above the epsilon that is proven; that of 95 % is what is
reported. The others are far below on honest runs, and speak at 95 %. The asymptotic bound is no
proof: what it alone shows above the proven epsilon is *suspect*, and breaks nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import attr
import dp_accounting as dpa
import numpy as np
from scipy import special

from graphveil import _validate
from graphveil._errors import InvalidInputError
from graphveil._observing import observe
from graphveil.audit import bounds
from graphveil.audit.canaries import KINDS, Array, Canaries, Group, Law, Trial
from graphveil.audit.results import ASYMPTOTIC, Finding
from graphveil.grads.clipping import Off
from graphveil.grads.step import PrivateStep
from graphveil.methods.base import Method
from graphveil.privacy.accounting import epsilon_of
from graphveil.privacy.events import SampledGaussianDpEvent, repeated
from graphveil.rng import SecretStream

SCORES = ("likelihood", "sum")
ALARM = 0.9999  # the confidence at which a promise is seen broken by bounds that know the law

_AGNOSTIC = "agnostic one-run", "ordered one-run"
_MOST_GUESSES = 20_000  # among which the best number is sought
_NOTE = (
    "Canaries took part in this run as further training terms. Scores are functions of noise and "
    "of the canaries' coins, not of private rows. The weights hold canaries and are thrown away."
)
Bound = Callable[[float], float]  # of the confidence


def audit_run(
    method: Method,
    data: Any,
    *,
    canaries: int = 5000,
    kinds: Sequence[str] = KINDS,
    score: str = "likelihood",
    delta: float | None = None,
    confidence: float = 0.95,
    seed: int = 0,
    rng: SecretStream | None = None,
    progress: Any = None,
) -> list[Finding]:
    """Lower bounds on epsilon from one run of a private method with ``canaries`` of each kind.

    A copy of ``method`` is trained, and thrown away. There are fewer canaries where a network has
    fewer weights. ``delta`` is the plan's, unless given. ``seed`` draws the canaries and their
    coins, ``rng`` is the run's secret stream. There are no findings where there are no steps, and
    none of altered canaries where a unit alters no term.

    *Guarantee*: none is given, one is tried: the price of each part that takes steps, by itself.
    Findings depend on no private row.
    """
    _check(canaries, kinds, score, confidence)
    if not method.private:
        raise InvalidInputError(
            f"The 'method' parameter must be a private method. Got {method.name!r} instead, which "
            "promises nothing."
        )
    audited = type(method)(**method.get_params())
    observer = Canaries(canaries=canaries, kinds=kinds, seed=seed)
    with observe(observer):
        audited.fit(data, rng=rng, progress=progress)
    delta = audited.plan_.delta if delta is None else delta
    return [
        finding
        for trial in observer.trials
        for finding in report(trial, delta=delta, confidence=confidence, score=score)
    ]


def audit_steps(
    step: PrivateStep,
    *,
    delta: float,
    steps: int | None = None,
    canaries: int = 5000,
    kinds: Sequence[str] = KINDS,
    score: str = "likelihood",
    confidence: float = 0.95,
    seed: int = 0,
) -> list[Finding]:
    """As :func:`audit_run`, of ``steps`` of one's own, by default all that it may take.

    The step is used up: it takes its steps, and its module holds canaries afterwards. Make another
    one to train with.

    *Guarantee*: none is given, one is tried: ``step.event``.
    """
    _check(canaries, kinds, score, confidence)
    steps = step.max_steps if steps is None else steps
    if steps is None or step.taken:
        raise InvalidInputError(
            "The 'step' parameter must be a fresh one, and know how many steps to take. Got "
            f"{step.taken} steps taken and steps={steps} instead; make one for the audit, with "
            "'steps'."
        )
    if step.noise_multiplier == 0 or isinstance(step.clipped.clipping, Off):
        raise InvalidInputError(
            "The 'step' parameter must be private. Got one without noise or without a bound "
            "instead, which promises nothing."
        )
    observer = Canaries(canaries=canaries, kinds=kinds, seed=seed)
    trial = Trial("steps", step._sampling, canaries=canaries, kinds=kinds, seed=seed)
    real: tuple[Any, Any] = step.clipped, step.examples
    equipped = trial.equip(*real)
    if not trial.groups:
        return []
    observer.trials.append(trial)
    step.clipped, step.examples = equipped
    try:
        with observe(observer):
            for _ in range(steps):
                step()
    finally:
        step.clipped, step.examples = real
    return report(trial, delta=delta, confidence=confidence, score=score)


def _check(canaries: int, kinds: Sequence[str], score: str, confidence: float) -> None:
    _validate.integer("canaries", canaries, "[1, 1e7]")
    _validate.choice("score", score, SCORES)
    _validate.number("confidence", confidence, "(0, 1)")
    for kind in kinds:
        _validate.choice("kinds", kind, KINDS)


def report(
    trial: Trial, *, delta: float, confidence: float = 0.95, score: str = "likelihood"
) -> list[Finding]:
    """What the scores of a trial say, after its last step."""
    proven = epsilon_of(repeated(trial.one_step, trial.taken), delta)
    findings = []
    for group, law in zip(trial.groups, trial.laws, strict=True):
        evidence = _Evidence(trial, group, law, delta, score)
        for name, bound, figures in evidence.bounds(confidence, proven):
            at_least = bound(confidence)
            alarm = confidence if name in _AGNOSTIC else max(ALARM, confidence)
            within = at_least <= proven or bound(alarm) <= proven
            findings.append(
                Finding(
                    kind="run",
                    name=f"{group.kind} canaries in '{trial.name}': {name}",
                    holds=within or name == ASYMPTOTIC,
                    suspect=not within and name == ASYMPTOTIC,
                    epsilon_at_least=at_least,
                    confidence=confidence,
                    trials=len(group),
                    bound=name,
                    note=_NOTE + _cut(len(group), trial.canaries),
                    figures={**evidence.figures, "proven": proven, **figures},
                )
            )
    return findings


def _cut(count: int, wanted: int) -> str:
    """That there was no room for as many canaries as were asked for."""
    if count >= wanted:
        return ""
    return f" There was room for {count:,} canaries, of {wanted:,} that were asked for."


@dataclass(frozen=True)
class _Evidence:
    """The scores of one group, and the bounds that rest on them."""

    trial: Trial
    group: Group
    law: Law
    delta: float
    score: str

    @property
    def scores(self) -> Array:
        """One for each canary; larger if it is likely to be in."""
        if self.score == "likelihood":
            return self.group.likelihoods
        middle = self.trial.taken * sum(self.law.means) / 2
        result: Array = self.group.sums - middle
        return result

    @property
    def figures(self) -> dict[str, Any]:
        """How it was tried."""
        return {
            "delta": self.delta,
            "steps": self.trial.taken,
            "inside": int(self.group.inside.sum()),
            "removed": self.group.own,
            "altered": self.group.receivers,
            "score": self.score,
        }

    def bounds(
        self, confidence: float, proven: float
    ) -> Iterator[tuple[str, Bound, dict[str, Any]]]:
        """Name, bound and further figures of all bounds there are."""
        scores, inside, count = self.scores, self.group.inside, len(self.group)
        separation = self.law.separation(self.trial.taken)
        ends = "top" if self.law.rate < 1 and not self.law.receivers else "both"
        guesses = plan_guesses(count, separation, self.delta, confidence, ends=ends)
        correct = count_correct(scores, inside, guesses, ends=ends)
        delta = self.delta

        def agnostic(level: float) -> float:
            return bounds.one_run_agnostic(correct, guesses, count, delta=delta, confidence=level)

        def ordered(level: float) -> float:
            right = bounds.order_guesses(scores, inside.astype(np.float64), ends=ends)
            return bounds.one_run_ordered(right, canaries=count, delta=delta, confidence=level)

        yield "agnostic one-run", agnostic, {"guesses": guesses, "correct": correct}
        yield "ordered one-run", ordered, {}
        members, others = scores[inside], scores[~inside]
        if min(len(members), len(others)) < 2:
            return  # too few for anything that estimates a spread
        if self._is_normal:
            sums = self.group.sums[inside], self.group.sums[~inside]
            yield "normal scores", _of_scores(bounds.gdp_from_normal_scores, sums, delta), {}
        else:
            rates = (
                int((others > 0).sum()),
                len(others),
                int((members <= 0).sum()),
                len(members),
            )
            right = {"correct": len(inside) - rates[0] - rates[2]}
            yield "family of the event", self._of_family(rates), right
        # Where the charged law is so far from normal that its own scores would go beyond what is
        # proven, they say nothing.
        if bounds.gdp_epsilon(separation, delta) <= 1.02 * proven:
            pair = members, others
            yield ASYMPTOTIC, _of_scores(bounds.gdp_asymptotic, pair, delta), {}

    @property
    def _is_normal(self) -> bool:
        law = self.law
        return law.rate == 1 and (law.receivers == 0 or law.receiver_rate == 1)

    def _of_family(self, rates: tuple[int, int, int, int]) -> Bound:
        noise, law, steps = self.law.noise, self.law, self.trial.taken

        def make_event(multiplier: float) -> dpa.DpEvent:
            event = self.trial.one_step
            if isinstance(event, SampledGaussianDpEvent):
                thinned = law.rate < 1 and law.receivers > 0
                event = SampledGaussianDpEvent(
                    rate=law.rate,
                    noise_multiplier=multiplier,
                    removed=law.own,
                    altered=law.receivers,
                    altered_rate=law.receiver_rate if thinned else None,
                )
            return repeated(attr.evolve(event, noise_multiplier=multiplier), steps)

        def bound(level: float) -> float:
            return bounds.epsilon_from_family(
                make_event,
                rates,
                delta=self.delta,
                quiet=noise / 8,
                noisy=noise * 100,
                confidence=level,
            )

        return bound


def _of_scores(bound: Any, scores: tuple[Array, Array], delta: float) -> Bound:
    def at_least(level: float) -> float:
        return float(bound(*scores, delta=delta, confidence=level).epsilon)

    return at_least


# --- guesses --------------------------------------------------------------------------------------


def plan_guesses(
    count: int, separation: float, delta: float, confidence: float, *, ends: str = "both"
) -> int:
    """How many guesses on ``count`` canaries show most, on average; half of them with one end.

    Scores are taken to be normal, ``separation`` standard deviations apart.
    """
    whole = count if ends == "both" else (count + 1) // 2
    best, most = min(whole, _MOST_GUESSES), -1.0
    for halvings in range(32):
        guesses = round(whole / 2 ** (halvings / 2))
        if guesses > _MOST_GUESSES or guesses < min(whole, 8):
            continue
        accuracy = _expect_accuracy(guesses / whole, separation)
        expected = math.floor(guesses * accuracy)
        at_least = bounds.one_run_agnostic(
            expected, guesses, count, delta=delta, confidence=confidence
        )
        if at_least > most:
            best, most = guesses, at_least
    return best


def _expect_accuracy(share: float, separation: float) -> float:
    """How many are right of the guesses on the surest ``share`` of the canaries, on average."""
    low, high = 0.0, 40.0
    for _ in range(60):
        level = (low + high) / 2
        right, wrong = special.ndtr(separation / 2 - level), special.ndtr(-separation / 2 - level)
        low, high = (level, high) if right + wrong > share else (low, level)
    return float(right / (right + wrong)) if right + wrong else 1.0


def count_correct(scores: Array, inside: Any, guesses: int, *, ends: str = "both") -> int:
    """The right ones among guesses that the largest scores are in, and the smallest out."""
    right = bounds.order_guesses(scores, inside, ends=ends)
    return int(right[:guesses].sum())
