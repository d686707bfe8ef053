"""From events to epsilon and delta, and back to the noise, steps or rate that fit a budget.

Two bounds are computed wherever both exist: privacy loss distributions (PLD) and Renyi divergences
(RDP). Each is valid alone, so epsilon is the smaller. Losses of "present against withheld" compose
only with each other, and likewise back; the larger of the two directions counts.

>>> from graphveil.privacy.events import SampledGaussianDpEvent, repeated
>>> step = SampledGaussianDpEvent(rate=0.3, noise_multiplier=4.0, removed=1, altered=0)
>>> round(epsilon(repeated(step, 150), delta=1e-5), 2)
4.13
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import attr
import dp_accounting as dpa
from dp_accounting import dp_event
from dp_accounting.pld.pld_privacy_accountant import PLDAccountant

from graphveil import _validate
from graphveil._errors import (
    BudgetError,
    InvalidInputError,
    UnprovenError,
    UnsupportedEventError,
)
from graphveil.privacy import _pld
from graphveil.privacy._rdp import RdpAccountant, SparseRdpAccountant
from graphveil.privacy.events import (
    GumbelTopKDpEvent,
    OneOfDpEvent,
    RevealedCountGaussianDpEvent,
    SampledGaussianDpEvent,
    as_sampled_gaussian,
)

_TOLERANCE = 3e-4  # of epsilon, what rounding losses up to the grid may cost
_CELLS = 100  # of the grid of losses between 0 and epsilon, at least
_LEAST_RATE = 1e-12  # below this one plus a loss is hardly more than one
_MAX_STEPS = 10_000_000  # beyond this the Fourier transform's rounding eats the advantage of PLD


@dataclass(frozen=True, kw_only=True)
class Account:
    """What an event costs at one delta: epsilon is the smaller of the bounds that exist.

    ``notes`` says, for each bound that is ``None``, why it is missing.
    """

    epsilon: float
    delta: float
    pld: float | None
    rdp: float | None
    notes: tuple[str, ...] = ()


def account(event: dpa.DpEvent, delta: float, *, interval: float | None = None) -> Account:
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
    _check(event)
    sampled = _outer_sampling(event)
    if sampled is not None:
        return _amplified_account(*sampled, delta, interval)
    if _releases_raw(event):
        return Account(epsilon=math.inf, delta=delta, pld=None, rdp=None, notes=(_RAW,))
    pld, pld_note = _by_pld(event, delta, interval)
    rdp, rdp_note = _by_rdp(event, delta)
    bounds = [bound for bound in (pld, rdp) if bound is not None]
    notes = tuple(note for note in (pld_note, rdp_note) if note)
    if not bounds:
        raise UnsupportedEventError("No bound covers this event. " + " ".join(notes))
    return Account(epsilon=min(bounds), delta=delta, pld=pld, rdp=rdp, notes=notes)


def epsilon(event: dpa.DpEvent, delta: float) -> float:
    """The smallest proven epsilon of ``event`` at ``delta``."""
    return account(event, delta).epsilon


def delta(event: dpa.DpEvent, epsilon: float) -> float:
    """The smallest proven delta of ``event`` at ``epsilon``."""
    epsilon = _validate.number("epsilon", epsilon, "[0, inf)")
    _check(event)
    sampled = _outer_sampling(event)
    if sampled is not None:
        rate, inner = sampled
        return rate * delta(inner, _undo_amplify(epsilon, rate))
    if _releases_raw(event):
        return 1.0
    bounds = []
    problem = _pld_problem(event)
    if problem is None:
        bounds.append(_delta_by_pld(event, epsilon))
    accountant = RdpAccountant()
    if accountant.supports(event):
        bounds.append(float(accountant.compose(event).get_delta(epsilon)))
    if not bounds:
        raise UnsupportedEventError(f"No bound covers this event. {problem}")
    return min(1.0, *bounds)


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
        return _price(make_event(round(value) if integer else value), delta)

    @lru_cache
    def spends_at_most(value: float) -> float:
        return _cheap_price(make_event(round(value) if integer else value), delta)

    if spends_at_most(safe) > epsilon and (least := spends(safe)) > epsilon:
        raise BudgetError(
            f"Even {safe:g} spends epsilon {least:.4g} at delta {delta:g}, above the target "
            f"{epsilon:g}. Raise epsilon, or change what the event keeps fixed."
        )
    if spends_at_most(risky) <= epsilon or spends(risky) <= epsilon:
        return risky
    # First by RDP alone, which takes milliseconds and is never below the best bound; from there
    # step towards the risky end until the best bound is exceeded too, and search in between.
    fits, exceeds = safe, risky
    while max(fits, exceeds) > 1.05 * min(fits, exceeds) and abs(fits - exceeds) > integer:
        middle = math.sqrt(fits * exceeds)
        middle = round(middle) if integer else middle
        if middle in (fits, exceeds):
            break
        if spends_at_most(middle) <= epsilon:
            fits = middle
        else:
            exceeds = middle
    towards = 1.1 if risky > safe else 1 / 1.1
    exceeds = fits
    while True:
        exceeds = exceeds * towards if not integer else math.ceil(exceeds * towards)
        exceeds = min(exceeds, risky) if risky > safe else max(exceeds, risky)
        if spends(exceeds) > epsilon:
            break
        fits, towards = exceeds, towards**2
    answer = dpa.calibrate_dp_mechanism(
        lambda: _Priced(spends),
        lambda value: value,
        epsilon,
        delta,
        dpa.ExplicitBracketInterval(min(fits, exceeds), max(fits, exceeds)),
        discrete=integer,
        tol=1e-5 * min(fits, exceeds),
    )
    if integer:
        towards = 1 if risky > safe else -1
        while answer + towards != exceeds and spends(answer + towards) <= epsilon:
            answer += towards
    return float(answer) if not integer else int(answer)


class _Priced:
    """What dp_accounting's search asks of an accountant; an event is a value, priced once."""

    ledger = dpa.NoOpDpEvent()

    def __init__(self, price: Callable[[float], float]) -> None:
        self._price = price

    def compose(self, value: float) -> _Priced:
        self._value = value
        return self

    def get_epsilon(self, _: float) -> float:
        return self._price(self._value)


class BestAccountant(dpa.PrivacyAccountant):
    """dp_accounting's interface to :func:`account`, for its calibration search and other tools."""

    def __init__(self) -> None:
        super().__init__(dpa.NeighboringRelation.REPLACE_SPECIAL)

    def _maybe_compose(
        self, event: dpa.DpEvent, count: int, do_compose: bool
    ) -> dpa.PrivacyAccountant.CompositionErrorDetails | None:
        _check(event)
        sampled = _outer_sampling(event)
        if sampled is not None and count == 1:
            return self._maybe_compose(sampled[1], 1, do_compose)
        if _pld_problem(event) is None or RdpAccountant().supports(event):
            return None
        return self.CompositionErrorDetails(event, "no bound covers it")

    def get_epsilon(self, target_delta: float) -> float:
        return epsilon(self.ledger, target_delta)

    def get_delta(self, target_epsilon: float) -> float:
        return delta(self.ledger, target_epsilon)


# --- the tree of events ---------------------------------------------------------------------------

_RAW = "The event releases data without noise: no epsilon holds."


def _releases_raw(event: dpa.DpEvent) -> bool:
    if isinstance(event, (dpa.ComposedDpEvent, OneOfDpEvent)):
        return any(_releases_raw(part) for part in event.events)
    if isinstance(event, dpa.SelfComposedDpEvent):
        return bool(event.count) and _releases_raw(event.event)
    if isinstance(event, dpa.PoissonSampledDpEvent):
        return bool(event.sampling_probability) and _releases_raw(event.event)
    if isinstance(event, dp_event.RepeatAndSelectDpEvent):
        return _releases_raw(event.event)
    if isinstance(event, (dpa.GaussianDpEvent, dpa.LaplaceDpEvent)):
        return bool(event.noise_multiplier == 0)
    # dp_accounting notes a raw release of its other events beside its loss distribution, which
    # would pass for that of a release that costs nothing.
    if isinstance(event, dpa.RandomizedResponseDpEvent):
        return bool(event.noise_parameter == 0 and event.num_buckets > 1)
    if isinstance(event, dpa.TruncatedSubsampledGaussianDpEvent):
        return bool(event.noise_multiplier == 0)
    if isinstance(event, dp_event.MixtureOfGaussiansDpEvent):
        return bool(event.standard_deviation == 0)
    if isinstance(event, dp_event.DiscreteLaplaceDpEvent):
        return bool(event.noise_parameter == 0)  # as dp_accounting has it
    return isinstance(event, dpa.NonPrivateDpEvent)


def _check(event: dpa.DpEvent) -> None:
    """Refuse what dp_accounting's events take without a look, such as negative counts.

    A negative count would hand budget back. Noise outside the range leaves double precision once
    it is squared; graphveil's own events are checked here for that only.
    """
    if not isinstance(event, dpa.DpEvent):
        raise InvalidInputError(f"An event must be a DpEvent. Got {event!r} instead.")
    if isinstance(event, (dpa.ComposedDpEvent, OneOfDpEvent)):
        if not isinstance(event.events, (list, tuple)):
            raise InvalidInputError(f"Composed events are a list. Got {event.events!r} instead.")
        for part in event.events:
            _check(part)
    elif isinstance(event, dpa.SelfComposedDpEvent):
        _validate.integer("count", event.count, "[0, 1e12]")
        _check(event.event)
    elif isinstance(event, dpa.PoissonSampledDpEvent):
        _validate.number("sampling_probability", event.sampling_probability, "[0, 1]")
        _check(event.event)
    elif isinstance(event, dp_event.RepeatAndSelectDpEvent):
        _validate.number("mean", event.mean, "[1, 1e9]")
        _validate.number("shape", event.shape, "[0, inf]")
        _check(event.event)
    elif isinstance(event, dpa.ZCDpEvent):
        _validate.number("rho", event.rho, "[0, inf)")
        _validate.number("xi", event.xi, "[0, inf)")
    elif isinstance(event, _NOISY) and event.noise_multiplier != 0:
        _validate.number("noise_multiplier", event.noise_multiplier, "[1e-9, 1e9]")


_NOISY = (
    dpa.GaussianDpEvent,
    dpa.LaplaceDpEvent,
    SampledGaussianDpEvent,
    RevealedCountGaussianDpEvent,
    GumbelTopKDpEvent,
)


def _outer_sampling(event: dpa.DpEvent) -> tuple[float, dpa.DpEvent] | None:
    """The rate and inner event if the whole of ``event`` runs on a sample of the units."""
    if not isinstance(event, dpa.PoissonSampledDpEvent):
        return None
    if as_sampled_gaussian(event) or isinstance(
        event.event, (dpa.GaussianDpEvent, dpa.LaplaceDpEvent)
    ):
        return None
    rate = _validate.number("sampling_probability", event.sampling_probability, "(0, 1]")
    return rate, event.event


def _amplified_account(
    rate: float, inner: dpa.DpEvent, delta: float, interval: float | None
) -> Account:
    """(e, d) for those who take part is (log(1 + q (exp(e) - 1)), q d) for all, at d = delta/q."""
    if delta >= rate:
        zero = "With probability 1 - rate >= 1 - delta the unit takes no part: epsilon is 0."
        return Account(epsilon=0.0, delta=delta, pld=0.0, rdp=0.0, notes=(zero,))
    priced = account(inner, delta / rate, interval=interval)
    return Account(
        epsilon=amplify(priced.epsilon, rate),
        delta=delta,
        pld=None if priced.pld is None else amplify(priced.pld, rate),
        rdp=None if priced.rdp is None else amplify(priced.rdp, rate),
        notes=priced.notes,
    )


def amplify(epsilon: float, rate: float) -> float:
    """``log(1 + rate (exp(epsilon) - 1))``, also where exp would overflow."""
    if epsilon > 50:
        return epsilon + math.log(rate + (1 - rate) * math.exp(-epsilon))
    return math.log1p(rate * math.expm1(epsilon))


def _undo_amplify(epsilon: float, rate: float) -> float:
    """The inverse of :func:`amplify`: ``log(1 + (exp(epsilon) - 1) / rate)``."""
    if epsilon > 50:
        return epsilon - math.log(rate) + math.log1p(-(1 - rate) * math.exp(-epsilon))
    return math.log1p(math.expm1(epsilon) / rate)


def _leaves(event: dpa.DpEvent) -> list[tuple[dpa.DpEvent, int]]:
    """The events that make up the tree, each once, with how often it happens.

    Plain Gaussians, however many, are one Gaussian: squared inverse multipliers add up.
    """
    counts: dict[dpa.DpEvent, int] = {}
    inverse_square = 0.0

    def visit(node: dpa.DpEvent, times: int) -> None:
        nonlocal inverse_square
        if isinstance(node, dpa.ComposedDpEvent):
            for part in node.events:
                visit(part, times)
        elif isinstance(node, dpa.SelfComposedDpEvent):
            visit(node.event, times * node.count)
        elif isinstance(node, dpa.GaussianDpEvent):
            inverse_square += times / node.noise_multiplier**2
        elif (one := as_sampled_gaussian(node)) is not None:
            visit(one, times)
        elif isinstance(node, SampledGaussianDpEvent) and node.rate == 1:
            reach = node.removed + 2 * node.altered
            inverse_square += times * (reach / node.noise_multiplier) ** 2
        elif isinstance(node, (SampledGaussianDpEvent, RevealedCountGaussianDpEvent)):
            if node.rate is not None and 0 < node.rate < _LEAST_RATE:
                node = attr.evolve(node, rate=_LEAST_RATE)  # costs no less
            affected = (node.removed + node.altered) * (1 if node.rate is None else node.rate)
            if times and affected:
                counts[node] = counts.get(node, 0) + times
        elif times and not isinstance(node, dpa.NoOpDpEvent):
            counts[node] = counts.get(node, 0) + times

    visit(event, 1)
    if inverse_square:
        one = SampledGaussianDpEvent(rate=1.0, noise_multiplier=inverse_square**-0.5)
        counts[one] = 1
    return list(counts.items())


# --- privacy loss distributions -------------------------------------------------------------------


def _pld_problem(event: dpa.DpEvent) -> str | None:
    """Why there is no PLD bound, or None if there is one."""
    if (name := _renyi_only(event)) is not None:
        return f"PLD: {name} is bounded by its Renyi divergences only."
    try:
        leaves = _leaves(event)
    except TypeError:  # an event with an unhashable field (a list) cannot be counted
        return f"PLD: an event in {type(event).__name__} cannot be composed."
    for leaf, _ in leaves:
        if isinstance(leaf, (SampledGaussianDpEvent, RevealedCountGaussianDpEvent)):
            if _pld.loss_range(leaf) > 0:
                continue
            return f"PLD: hardly any loss of {leaf} is below {_pld.MAX_LOSS:g}."
        if isinstance(leaf, _pld.CurveDpEvent):
            continue
        if not PLDAccountant(dpa.NeighboringRelation.REPLACE_SPECIAL).supports(leaf):
            return f"PLD: {type(leaf).__name__} is not supported: {leaf}."
    if sum(count for _, count in leaves) > _MAX_STEPS:
        return f"PLD: more than {_MAX_STEPS:,} steps are left to RDP."
    return None


_RENYI_ONLY = (
    GumbelTopKDpEvent,
    OneOfDpEvent,
    dpa.ZCDpEvent,
    dp_event.RepeatAndSelectDpEvent,
)


def _renyi_only(event: dpa.DpEvent) -> str | None:
    """The name of a part that has a bound on its Renyi divergences and no pair of laws."""
    if isinstance(event, dpa.ComposedDpEvent):
        return next((name for part in event.events if (name := _renyi_only(part))), None)
    if isinstance(event, dpa.SelfComposedDpEvent):
        return _renyi_only(event.event) if event.count else None
    return type(event).__name__ if isinstance(event, _RENYI_ONLY) else None


def _by_pld(
    event: dpa.DpEvent, delta: float, interval: float | None
) -> tuple[float | None, str | None]:
    problem = _pld_problem(event)
    if problem is not None:
        return None, problem
    leaves = _leaves(event)
    if not leaves:
        return 0.0, None
    directions = _composed(leaves, interval, lambda direction: direction.chernoff(delta))
    expected = max(direction.chernoff(delta)[0] for direction in directions)
    value = max(direction.epsilon(delta) for direction in directions)
    while interval is None and 0 < value < 0.6 * expected:
        # Where large losses are rare, epsilon is far below what the moments say of it, and a grid
        # fit for those is too coarse.
        expected = value

        def likely(direction: _pld.Composition, value: float = value) -> tuple[float, float]:
            # Beyond all losses of the cheaper direction the best tilt is endless.
            return value, min(direction.tilt_for(value), 100 / value)

        directions = _composed(leaves, None, likely)
        value = min(value, max(direction.epsilon(delta) for direction in directions))
    if math.isinf(value):
        return None, f"PLD: losses above {_pld.MAX_LOSS:g} are likelier than delta."
    return value, None


def _delta_by_pld(event: dpa.DpEvent, epsilon: float) -> float:
    leaves = _leaves(event)
    if not leaves:
        return 0.0

    def likely(direction: _pld.Composition) -> tuple[float, float]:
        # Far beyond all losses the best tilt is endless, and delta does not depend on the grid.
        return direction.spread, min(direction.tilt_for(epsilon), 1e3)

    directions = _composed(leaves, None, likely)
    return max(direction.delta(epsilon) for direction in directions)


def _composed(
    leaves: list[tuple[dpa.DpEvent, int]],
    interval: float | None,
    scale: Callable[[_pld.Composition], tuple[float, float]],
) -> list[_pld.Composition]:
    r"""Both directions' losses on a grid fine enough for what is asked of them.

    Moving losses to the ends of cells of width d adds at most d^2 / 4 to the variance of one event,
    d^2 / 6 on average, so that epsilon grows by about ``order * steps * d^2 / 12``. The grid starts
    coarse; ``scale`` reads epsilon and the order off it; finer grids follow until they suffice.
    """
    steps = sum(count for _, count in leaves)
    widest = max(_pld.loss_range(leaf) for leaf, _ in leaves)
    width = interval or widest / 2000
    for _ in range(20):
        losses = [(_pld.discretise(leaf, width), count) for leaf, count in leaves]
        directions = [_pld.Composition([(each[0], count) for each, count in losses])]
        if any(len(each) > 1 for each, _ in losses):
            directions.append(_pld.Composition([(each[-1], count) for each, count in losses]))
        if interval is not None:
            break
        value, tilt = max(scale(direction) for direction in directions)
        if not 0 < value < math.inf:
            break
        wanted = min(math.sqrt(12 * _TOLERANCE * value / ((1 + tilt) * steps)), value / _CELLS)
        wanted = max(wanted, widest / _pld.MAX_POINTS)
        if width <= 1.5 * wanted:
            break
        width = wanted
    return directions


# --- Renyi divergences ----------------------------------------------------------------------------


def _by_rdp(event: dpa.DpEvent, delta: float) -> tuple[float | None, str | None]:
    try:
        value = SparseRdpAccountant().compose(event).get_epsilon(delta)
    except dpa.UnsupportedEventError as error:
        return None, f"RDP: {error}"
    if math.isnan(value):
        raise UnprovenError(f"RDP: the divergences of {event} could not be computed.")
    return (value, None) if math.isfinite(value) else (None, "RDP: no order gives a finite bound.")


def _price(event: dpa.DpEvent, delta: float) -> float:
    return account(event, delta).epsilon


def _cheap_price(event: dpa.DpEvent, delta: float) -> float:
    """RDP where it exists; it is enough to find the neighbourhood of an answer."""
    if _outer_sampling(event) is None and not _releases_raw(event):
        value, _ = _by_rdp(event, delta)
        if value is not None:
            return value
    return _price(event, delta)
