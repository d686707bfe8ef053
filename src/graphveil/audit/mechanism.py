r"""Many draws of one release, beside the law that is charged.

Every part of a plan is released on its worst pair of values, the unit present and withheld, by the
code that a run uses. What comes out is reduced to one number, in units of what the unit can move,
and three things are looked at:

*Law*. Both empirical distribution functions lie within their band (DKW) around those of the event's
own law. Noise that is too small shows, and noise that is too large as well.

*Curve*. At epsilons and thresholds that the law fixes in advance, Clopper-Pearson bounds of delta
stay below the event's delta, in both directions; for series (below) as well.

*Epsilon*. One release may cost so little that no count of 100,000 shows most of it: the mean alone
has a standard error of .0045 times the noise. So a draw is a *series* of independent releases, as
many as the law fixes in advance, and the statistic is the sum of their log likelihood ratios. What
counts prove at one delta, one threshold and in one direction, all fixed by the law, is compared
with the event's price for that many releases. And where the law is known but for its noise: the
price of the most noise that the band allows.

The ratio is 9/10 or more at 100,000 draws where the pair is as bad as the event says. It is not for
messages that a coin may withhold (``delivery``), nor for names (Gumbel noise), nor for batches of a
fixed size: those are charged by bounds above the law of any pair that is tried here.

A sound part fails the first two with probability ``FALSE_ALARM`` at most, all checks together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import dp_accounting as dpa
import numpy as np
from numpy.typing import NDArray

from graphveil import _validate
from graphveil._progress import Progress
from graphveil.audit.bounds import dkw_band, log_ratio, lower_rate, upper_rate
from graphveil.audit.laws import FALSE_ALARM, Array, Law, compare, cuts_of, sum_up
from graphveil.audit.results import Finding, Violation
from graphveil.audit.trials import CALLS, NUMBERS, WORLDS, Trial, excuse_for, make_trial
from graphveil.methods.parts import Part, Steps
from graphveil.methods.plan import Plan
from graphveil.privacy.accounting import delta_of, epsilon_of, price
from graphveil.privacy.events import composed, repeated
from graphveil.rng import SecretStream, secret

DELTAS = (0.3, 0.2, 0.1, 0.05, 0.02, 1e-2, 3e-3, 1e-3, 1e-4)
"""At which epsilon is sought; fixed in advance."""

_SPREAD = 0.64  # variance of a log likelihood ratio that counts can show
_SERIES = 1e8  # random numbers that the series of one world may take
_AT_ONCE = 2**21  # random numbers that are held in memory
_BY_CALLS = "in calls of their own"


# --- draws ----------------------------------------------------------------------------------------


def _draw(
    trial: Trial, count: int, rng: SecretStream, reduce: Callable[[Array], Array], releases: int = 1
) -> tuple[Array, Array]:
    """Both worlds: so many series of releases, of each what ``reduce`` makes of its numbers."""
    at_once = max(1, int(_AT_ONCE / (trial.cost * releases)))
    sizes = [min(at_once, count - start) for start in range(0, count, at_once)]

    def world(present: bool) -> Array:
        series = (trial.draw(present, size * releases, rng) for size in sizes)
        return np.concatenate([reduce(numbers.reshape(-1, releases)) for numbers in series])

    return world(True), world(False)


def _draw_series(
    trial: Trial, numbers: tuple[Array, Array], most: float, rng: SecretStream
) -> tuple[int, tuple[_Test, _Test]]:
    """How many releases a series has, and what series show.

    Their laws, rounded to a grid, choose thresholds; no proof rests on that.
    """
    count, cuts = len(numbers[0]), cuts_of(*trial.laws)
    chances = [np.diff(law.cdf(cuts), prepend=0.0) for law in trial.laws]
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = np.subtract(*(np.log(law.density(cuts)) for law in trial.laws))
    known = np.isfinite(ratios)
    table = cuts[known], ratios[known]
    means = [float(chance[known] @ table[1]) for chance in chances]
    spreads = [
        float(chance[known] @ (table[1] - mean) ** 2)
        for chance, mean in zip(chances, means, strict=True)
    ]
    most = min(most, _SERIES / (count * trial.cost))
    releases = max(1, math.floor(min(most, math.ceil(_SPREAD / max(min(spreads), 1e-12)))))
    if releases == 1:
        return 1, _make_tests(trial.laws, numbers)

    def add_up(series: Array) -> Array:
        return np.asarray(np.interp(series, *table).sum(1))

    laws = [sum_up(table[1], chance[known], releases) for chance in chances]
    sums = _draw(trial, count, rng, add_up, releases)
    return releases, _make_tests((laws[0], laws[1]), sums)


# --- comparisons ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Test:
    """Two events of the line, by the laws and as counted, for every threshold.

    The unit present against withheld reads upper tails, the other direction lower ones.
    """

    expected: tuple[Array, Array]
    counts: tuple[NDArray[np.int64], NDArray[np.int64]]
    trials: tuple[int, int]

    def plan(self, score: Callable[[Array, Array], Array], confidence: float) -> tuple[float, int]:
        """The best score that the laws promise, and its threshold."""
        planned = [np.rint(p * n) for p, n in zip(self.expected, self.trials, strict=True)]
        with np.errstate(divide="ignore", invalid="ignore"):
            scores = score(
                lower_rate(planned[0], self.trials[0], confidence),
                upper_rate(planned[1], self.trials[1], confidence),
            )
        scores = np.where(np.isnan(scores), -np.inf, scores)
        best = int(np.argmax(scores))
        return float(scores[best]), best

    def rates(self, place: int, confidence: float) -> tuple[float, float]:
        """Bounds of both at a threshold, from below and from above."""
        return (
            float(lower_rate(self.counts[0][place], self.trials[0], confidence)),
            float(upper_rate(self.counts[1][place], self.trials[1], confidence)),
        )


def _make_tests(laws: tuple[Law, Law], numbers: tuple[Array, Array]) -> tuple[_Test, _Test]:
    cuts = cuts_of(*laws)
    below = [law.cdf(cuts) for law in laws]
    counts = [np.searchsorted(np.sort(one), cuts, side="right") for one in numbers]
    sizes = len(numbers[0]), len(numbers[1])
    upper = _Test((1 - below[0], 1 - below[1]), (sizes[0] - counts[0], sizes[1] - counts[1]), sizes)
    return upper, _Test((below[1], below[0]), (counts[1], counts[0]), sizes[::-1])


def _check_curve(
    event: dpa.DpEvent, tests: tuple[_Test, _Test], releases: int = 1
) -> Iterator[Violation]:
    """No delta is shown to be larger than that of so many events, in either direction."""
    level = 1 - FALSE_ALARM / 2 / (8 * len(DELTAS))  # single releases and series share it
    event, suffix = repeated(event, releases), f", {releases} releases" if releases > 1 else ""
    for delta in DELTAS:
        epsilon = epsilon_of(event, delta)
        odds = math.exp(min(epsilon, 700.0))
        paid = min(delta, delta_of(event, epsilon)) if epsilon else delta_of(event, 0.0)
        for test, direction in zip(tests, ("present", "withheld"), strict=True):
            side = direction + suffix
            _, place = test.plan(lambda p, q, odds=odds: p - odds * q, level)  # type: ignore[misc]
            first, second = test.rates(place, level)
            if first - odds * second > paid * (1 + 1e-6) + 1e-12:
                yield Violation(
                    rule=f"delta at epsilon {epsilon:.4g} is larger than paid for ({side})",
                    value=f"{first - odds * second:.4g} or more",
                    allowed=f"{paid:.4g}",
                )


def _prove_epsilon(
    event: dpa.DpEvent, tests: tuple[_Test, _Test], confidence: float
) -> dict[str, float]:
    """The epsilon that is proven and the event's, at the delta where the laws promise most."""
    level = (1 + confidence) / 2
    best, promised = None, -math.inf
    for delta in DELTAS:
        priced = epsilon_of(event, delta)
        for test in tests if priced > 0 else ():
            score, place = test.plan(
                lambda p, q, delta=delta: np.log(p - delta) - np.log(q),  # type: ignore[misc]
                level,
            )
            if score / priced > promised:
                best, promised = (test, place, delta, priced), score / priced
    if best is None:
        return {}
    test, place, delta, priced = best
    proven = log_ratio(*test.rates(place, level), delta)
    return {"epsilon": proven, "delta": delta, "ratio": proven / priced, "priced": priced}


def _most_noise(
    laws: tuple[Law, Law], numbers: tuple[Array, Array], confidence: float
) -> float | None:
    """How many times the noise charged there can be: the largest factor that both bands allow."""
    allowed = None
    cuts = cuts_of(*laws)[::10]
    empirical = [np.searchsorted(np.sort(one), cuts, side="right") / len(one) for one in numbers]
    bands = [dkw_band(len(one), (1 - confidence) / 2) for one in numbers]
    for factor in np.geomspace(0.5, 8.0, 556):
        louder = [replace(law, noise=law.noise * factor) for law in laws]  # type: ignore[type-var, attr-defined]
        if all(
            np.abs(seen - law.cdf(cuts)).max() <= band
            for seen, law, band in zip(empirical, louder, bands, strict=True)
        ):
            allowed = float(factor) * 1.005
    return allowed


# --- parts and plans ------------------------------------------------------------------------------


def audit_part(
    part: Part,
    *,
    delta: float = 1e-5,
    draws: int = 100_000,
    confidence: float = 0.95,
    rng: SecretStream | None = None,
    progress: Progress | None = None,
) -> Finding:
    """Draw one release of a part, ``draws`` times in either world, and compare with its event.

    ``epsilon_at_least`` is for the whole part, at ``delta``: what a series of no more releases than
    the part has proves at a larger delta or, where the law is known but for its noise, the price of
    all releases with the most noise that the draws allow (as sharp as prices are, a thousandth).
    ``figures`` has the share of the event's epsilon that series prove by counts alone: epsilon,
    delta, ratio, priced, and how many releases a series has.

    No data is touched. A fixed ``rng`` serves tests.
    """
    _validate.integer("draws", draws, "[100, 1e9]")
    _validate.number("confidence", confidence, "(0, 1)")
    _validate.number("delta", delta, "(0, 1)")
    stream = secret() if rng is None else rng
    trial = make_trial(part, progress)
    if trial is None:
        return Finding(kind="mechanism", name=part.name, holds=True, note=excuse_for(part))
    count = max(1, min(draws, int(NUMBERS / trial.cost)))
    numbers = _draw(trial, count, stream, np.ravel)
    violations = [*trial.check(stream)]
    for present, law, batch in zip(WORLDS, trial.laws, numbers, strict=True):
        world = "present" if present else "withheld"
        violations += compare(world, batch, law)
        single = trial.call(present, min(CALLS, draws), stream)
        violations += compare(f"{world}, {_BY_CALLS}", single, law)
    violations += _check_curve(trial.event, _make_tests(trial.laws, numbers))
    times = part.count if isinstance(part, Steps) else getattr(part, "times", 1)
    known_law = trial.rescale is not None
    # Two bounds share the error.
    level = (1 + confidence) / 2 if known_law else confidence
    releases, series = _draw_series(trial, numbers, math.inf if known_law else times, stream)
    if releases > 1:
        violations += _check_curve(trial.event, series, releases)
    figures = _prove_epsilon(repeated(trial.event, releases), series, level)
    at_least, bound = 0.0, "Clopper-Pearson at fixed thresholds"
    if figures and figures["delta"] >= delta and releases <= times:
        at_least = figures["epsilon"]
    figures |= {"releases": releases} if figures else {}
    noise = _most_noise(trial.laws, numbers, level) if known_law and not violations else None
    if noise is not None and trial.rescale is not None:
        known = epsilon_of(trial.rescale(noise), delta)
        figures |= {"noise_at_most": noise, "epsilon_by_law": known, "delta_by_law": delta}
        figures |= {"epsilon_of_part": epsilon_of(part.event, delta)}
        if known > at_least:
            at_least, bound = known, "known law, noise by DKW"
    return Finding(
        kind="mechanism",
        name=part.name,
        holds=not violations,
        epsilon_at_least=at_least,
        confidence=confidence,
        trials=min(len(numbers[0]), len(numbers[1])),
        bound=bound,
        figures=figures,
        violations=tuple(replace(violation, part=part.name) for violation in violations),
    )


def audit_plan(
    plan: Plan,
    *,
    draws: int = 100_000,
    confidence: float = 0.95,
    rng: SecretStream | None = None,
    progress: Progress | None = None,
) -> list[Finding]:
    """All parts of a plan, by :func:`audit_part` at the plan's delta, and what the plan costs.

    A plan on a secret sample of the units is held to ln(1 + q (exp(epsilon) - 1)) of what its parts
    cost at delta / q. There ``epsilon_at_least`` of parts is left out: it is for those who take
    part.
    """
    rate = plan.sampled_at
    delta = min(plan.delta / rate, 0.5)
    findings = []
    for part in plan.parts if progress is None else progress(plan.parts):
        finding = audit_part(part, delta=delta, draws=draws, confidence=confidence, rng=rng)
        if rate < 1 and finding.epsilon_at_least is not None:
            inside = {**finding.figures, "epsilon_inside": finding.epsilon_at_least}
            finding = replace(finding, epsilon_at_least=None, confidence=None, figures=inside)
        findings.append(finding)
    return [*findings, _audit_price(plan)]


def _audit_price(plan: Plan) -> Finding:
    """The certificate's epsilon is not below what the parts cost."""
    whole, rate = composed(*(part.event for part in plan.parts)), plan.sampled_at
    claimed, violations = plan.epsilon, []
    least = _least_price(whole, rate, plan.delta)
    if not claimed >= least * (1 - 1e-6):
        rule = "the certificate is below the price of its parts"
        violations.append(Violation(rule=rule, value=f"{claimed:.6g}", allowed=f"{least:.6g}"))
    return Finding(
        kind="mechanism",
        name="price of the plan",
        holds=not violations,
        figures={} if math.isinf(claimed) else {"epsilon": claimed, "least": least},
        violations=tuple(violations),
    )


def _least_price(whole: dpa.DpEvent, rate: float, delta: float) -> float:
    """What a secret sample makes of the price of ``whole``."""
    if rate == 1:
        return price(whole, delta).epsilon
    if delta >= rate:
        return 0.0
    inside = price(whole, delta / rate).epsilon
    return float(np.logaddexp(math.log1p(-rate), math.log(rate) + inside))
