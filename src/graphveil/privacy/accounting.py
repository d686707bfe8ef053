"""From events to epsilon and delta, and back to the noise, steps or rate that fit a budget.

Two bounds are computed wherever both exist: privacy loss distributions (PLD) and Renyi divergences
(RDP). Each is valid alone, so epsilon is the smaller. Losses of "present against withheld" compose
only with each other, and likewise back; the larger of the two directions counts.

>>> from graphveil.privacy.events import SampledGaussianDpEvent, repeated
>>> step = SampledGaussianDpEvent(rate=0.3, noise_multiplier=4.0, removed=1, altered=0)
>>> round(epsilon_of(repeated(step, 150), delta=1e-5), 2)
4.13
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import dp_accounting as dpa

from graphveil import _validate
from graphveil._errors import BudgetError, UnsupportedEventError
from graphveil.privacy._bounds import delta_by_pld, epsilon_by_pld, epsilon_by_rdp, pld_problem
from graphveil.privacy._rdp import RdpAccountant
from graphveil.privacy.event_tree import outer_sampling, releases_raw, validate


@dataclass(frozen=True, kw_only=True)
class Price:
    """What an event costs at one delta: epsilon is the smaller of the bounds that exist.

    ``notes`` says, for each bound that is ``None``, why it is missing.
    """

    epsilon: float
    delta: float
    pld: float | None
    rdp: float | None
    notes: tuple[str, ...] = ()

    @classmethod
    def of_raw_data(cls, delta: float) -> Price:
        """Of a release without noise."""
        note = "The event releases data without noise: no epsilon holds."
        return cls(epsilon=math.inf, delta=delta, pld=None, rdp=None, notes=(note,))


def price(event: dpa.DpEvent, delta: float, *, interval: float | None = None) -> Price:
    """Price ``event`` at ``delta`` by every bound that covers it.

    ``interval`` fixes the grid of privacy losses; by default it follows from the event, so that
    rounding costs less than a thousandth of epsilon.

    *Guarantee.* Never below the true epsilon of the dominating pair of laws: losses are rounded up,
    cut-off tails count as infinite, numerical error is charged to delta. Infinite only for
    `NonPrivateDpEvent` and noise of zero. An event no bound covers is refused by name.
    """
    delta = _validate.number("delta", delta, "(0, 1)")
    if interval is not None:
        interval = _validate.number("interval", interval, "(0, 10]")
    validate(event)
    if (sampled := outer_sampling(event)) is not None:
        return _amplified_price(*sampled, delta, interval)
    if releases_raw(event):
        return Price.of_raw_data(delta)
    pld, pld_note = epsilon_by_pld(event, delta, interval)
    rdp, rdp_note = epsilon_by_rdp(event, delta)
    bounds = [bound for bound in (pld, rdp) if bound is not None]
    notes = tuple(note for note in (pld_note, rdp_note) if note)
    if not bounds:
        raise UnsupportedEventError("No bound covers this event. " + " ".join(notes))
    return Price(epsilon=min(bounds), delta=delta, pld=pld, rdp=rdp, notes=notes)


def epsilon_of(event: dpa.DpEvent, delta: float) -> float:
    """The smallest proven epsilon of ``event`` at ``delta``."""
    return price(event, delta).epsilon


def delta_of(event: dpa.DpEvent, epsilon: float) -> float:
    """The smallest proven delta of ``event`` at ``epsilon``."""
    epsilon = _validate.number("epsilon", epsilon, "[0, inf)")
    validate(event)
    if (sampled := outer_sampling(event)) is not None:
        rate, inner = sampled
        return rate * delta_of(inner, undo_amplify(epsilon, rate))
    if releases_raw(event):
        return 1.0
    bounds = []
    problem = pld_problem(event)
    if problem is None:
        bounds.append(delta_by_pld(event, epsilon))
    accountant = RdpAccountant()
    if accountant.supports(event):
        bounds.append(float(accountant.compose(event).get_delta(epsilon)))
    if not bounds:
        raise UnsupportedEventError(f"No bound covers this event. {problem}")
    return min(1.0, *bounds)


# --- a sample of the units ------------------------------------------------------------------------


def _amplified_price(
    rate: float, inner: dpa.DpEvent, delta: float, interval: float | None
) -> Price:
    """(e, d) for those who take part is (log(1 + q (exp(e) - 1)), q d) for all, at d = delta/q."""
    if delta >= rate:
        zero = "With probability 1 - rate >= 1 - delta the unit takes no part: epsilon is 0."
        return Price(epsilon=0.0, delta=delta, pld=0.0, rdp=0.0, notes=(zero,))
    inside = price(inner, delta / rate, interval=interval)
    return Price(
        epsilon=amplify(inside.epsilon, rate),
        delta=delta,
        pld=None if inside.pld is None else amplify(inside.pld, rate),
        rdp=None if inside.rdp is None else amplify(inside.rdp, rate),
        notes=inside.notes,
    )


def amplify(epsilon: float, rate: float) -> float:
    """``log(1 + rate (exp(epsilon) - 1))``, also where exp would overflow."""
    if epsilon > 50:
        return epsilon + math.log(rate + (1 - rate) * math.exp(-epsilon))
    return math.log1p(rate * math.expm1(epsilon))


def undo_amplify(epsilon: float, rate: float) -> float:
    """The inverse of :func:`amplify`: ``log(1 + (exp(epsilon) - 1) / rate)``."""
    if epsilon > 50:
        return epsilon - math.log(rate) + math.log1p(-(1 - rate) * math.exp(-epsilon))
    return math.log1p(math.expm1(epsilon) / rate)


# --- calibration ----------------------------------------------------------------------------------


def calibrate(
    make_event: Callable[[float], dpa.DpEvent],
    *,
    epsilon: float,
    delta: float,
    safe: float,
    risky: float,
    integer: bool = False,
) -> float:
    """The value nearest to ``risky`` for which ``make_event(value)`` stays within the budget.

    Spending must grow from ``safe`` to ``risky``: for a noise multiplier ``safe`` is the large end,
    for steps and rates the small one. Both must be positive. The answer is within 1e-4 of the best
    one (exact if ``integer``) and never spends more than ``epsilon`` at ``delta``.
    """
    epsilon = _validate.number("epsilon", epsilon, "(0, inf)")
    delta = _validate.number("delta", delta, "(0, 1)")

    @lru_cache
    def spends(value: float) -> float:
        return epsilon_of(make_event(round(value) if integer else value), delta)

    @lru_cache
    def spends_at_most(value: float) -> float:
        return _cheap_epsilon(make_event(round(value) if integer else value), delta)

    if spends_at_most(safe) > epsilon and (least := spends(safe)) > epsilon:
        raise BudgetError(
            f"Even {safe:g} spends epsilon {least:.4g} at delta {delta:g}, above the target "
            f"{epsilon:g}. Raise epsilon, or change what the event keeps fixed."
        )
    if spends_at_most(risky) <= epsilon or spends(risky) <= epsilon:
        return risky
    # First by RDP alone, which takes milliseconds and is never below the best bound; from there
    # step towards the risky end until the best bound is exceeded too, and search in between.
    fits = _bisect(lambda value: spends_at_most(value) <= epsilon, safe, risky, integer)
    fits, exceeds = _step_out(lambda value: spends(value) <= epsilon, fits, risky, integer)
    answer = dpa.calibrate_dp_mechanism(
        lambda: _PricedOnce(spends),
        lambda value: value,
        epsilon,
        delta,
        dpa.ExplicitBracketInterval(min(fits, exceeds), max(fits, exceeds)),
        discrete=integer,
        tol=1e-5 * min(fits, exceeds),
    )
    if not integer:
        return float(answer)
    towards = 1 if risky > safe else -1
    while answer + towards != exceeds and spends(answer + towards) <= epsilon:
        answer += towards
    return int(answer)


def _cheap_epsilon(event: dpa.DpEvent, delta: float) -> float:
    """RDP where it exists; it is enough to find the neighbourhood of an answer."""
    if outer_sampling(event) is None and not releases_raw(event):
        value, _ = epsilon_by_rdp(event, delta)
        if value is not None:
            return value
    return epsilon_of(event, delta)


def _bisect(fit: Callable[[float], bool], safe: float, risky: float, integer: bool) -> float:
    """A value that fits, within 5 % of one that does not."""
    fits, exceeds = safe, risky
    while max(fits, exceeds) > 1.05 * min(fits, exceeds) and abs(fits - exceeds) > integer:
        middle = math.sqrt(fits * exceeds)
        middle = round(middle) if integer else middle
        if middle in (fits, exceeds):
            break
        if fit(middle):
            fits = middle
        else:
            exceeds = middle
    return fits


def _step_out(
    fit: Callable[[float], bool], fits: float, risky: float, integer: bool
) -> tuple[float, float]:
    """The last value that fits and the first that does not, in steps that grow from 10 %."""
    towards = 1.1 if risky > fits else 1 / 1.1
    exceeds = fits
    while True:
        exceeds = exceeds * towards if not integer else math.ceil(exceeds * towards)
        exceeds = min(exceeds, risky) if towards > 1 else max(exceeds, risky)
        if not fit(exceeds):
            return fits, exceeds
        fits, towards = exceeds, towards**2


class _PricedOnce:
    """What dp_accounting's search asks of an accountant: its events are values, priced once."""

    ledger = dpa.NoOpDpEvent()

    def __init__(self, spends: Callable[[float], float]) -> None:
        self._spends = spends

    def compose(self, value: float) -> _PricedOnce:
        self._value = value
        return self

    def get_epsilon(self, _: float) -> float:
        return self._spends(self._value)
