r"""Renyi divergences of the events, on top of dp_accounting's RDP accountant.

For the sampled Gaussian with influence the divergence of order ``alpha`` is one integral over the
line, taken by the trapezoidal rule: the integrand is smooth and decays like a Gaussian, so the
rule's error falls below double precision once the step is half the narrowest width. The grid ends
where a proven tail bound says nothing of weight is left. Orders that would need too many points get
the closed form with the count revealed, which is never smaller.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from itertools import pairwise
from typing import Any

import attr
import dp_accounting as dpa
import numpy as np
from dp_accounting.rdp import rdp_privacy_accountant as reference
from scipy import special

from graphveil.privacy import events
from graphveil.privacy._mixture import Array, BinomialGaussian
from graphveil.privacy.events import RevealedCountGaussianDpEvent, SampledGaussianDpEvent

# alpha - 1 from 0.011 (dp_accounting converts no order below 1.01) to 30,000, 8 % apart: epsilon is
# within 0.1 % of what the best order gives.
ORDERS: Array = 1 + 0.011 * np.power(1.08, np.arange(194.0))

_REACH = 12.0  # standard deviations: exp(-72) of the integral lies further out
_MAX_POINTS = 400_000
_LEAST_LOG_DELTA = 40.0  # deltas down to exp(-40) = 4e-18 find their best order
_STRIDE = 8  # of the search for the best order, at most
_ROUNDING = 1e-6  # of a divergence, far more than what the integrals and chords are off


class RdpAccountant(reference.RdpAccountant):
    """dp_accounting's accountant, taught graphveil's events; withholding is REPLACE_SPECIAL."""

    def __init__(self) -> None:
        super().__init__(ORDERS, dpa.NeighboringRelation.REPLACE_SPECIAL)

    def _maybe_compose(self, event: dpa.DpEvent, count: int, do_compose: bool) -> Any:
        event = events.as_sampled_gaussian(event) or event
        if isinstance(event, SampledGaussianDpEvent):
            curve = sampled_gaussian
        elif isinstance(event, RevealedCountGaussianDpEvent):
            curve = revealed_count
        elif isinstance(event, events.GumbelTopKDpEvent):
            return super()._maybe_compose(dpa.ZCDpEvent(event.rho), count, do_compose)
        elif isinstance(event, events.OneOfDpEvent):
            return self._compose_largest(event, count, do_compose)
        else:
            return super()._maybe_compose(event, count, do_compose)
        if do_compose:
            self._rdp += count * curve(event)
        return None

    def _compose_largest(self, event: events.OneOfDpEvent, count: int, do_compose: bool) -> Any:
        """Whichever part happens: the largest divergence at each order."""
        accountants = [RdpAccountant() for _ in event.events]
        for accountant, part in zip(accountants, event.events, strict=True):
            if error := accountant._maybe_compose(part, 1, do_compose):
                return error
        if do_compose:
            self._rdp += count * np.max([accountant.rdp for accountant in accountants], axis=0)
        return None


class SparseRdpAccountant(RdpAccountant):
    """The same epsilon, to the digit, from the few orders that decide it.

    A sampled Gaussian costs an integral an order. ``(order - 1) * divergence`` is convex in the
    order, so what is known at some orders bounds it from below at all others. Orders are computed
    until no bound is below the least epsilon found.
    """

    def __init__(self) -> None:
        super().__init__()
        self._terms: list[tuple[int, Array | _Curve]] = []  # in the order of composition

    def _maybe_compose(self, event: dpa.DpEvent, count: int, do_compose: bool) -> Any:
        if not do_compose or isinstance(event, (dpa.ComposedDpEvent, dpa.SelfComposedDpEvent)):
            return super()._maybe_compose(event, count, do_compose)
        event = events.as_sampled_gaussian(event) or event
        if isinstance(event, SampledGaussianDpEvent) and _is_mixed(event):
            self._terms.append((count, _curve(event)))
        else:
            alone = RdpAccountant()
            alone._maybe_compose(event, count, True)
            self._terms.append((1, alone.rdp))
        return None

    def get_epsilon(self, target_delta: float) -> float:
        """The least epsilon over all orders; NaN if a divergence could not be computed."""
        try:
            return self._search(target_delta)
        except _UndecidedError:
            whole = RdpAccountant().compose(self.ledger)
            value = float(whole.get_epsilon(target_delta))
            return math.nan if np.isnan(whole.rdp).any() else value

    def _search(self, delta: float) -> float:
        curves = [curve for _, curve in self._terms if isinstance(curve, _Curve)]
        if not curves:
            raise _UndecidedError
        prices: dict[int, float] = {}
        start = int(np.argmin(_epsilons(self._total(lambda curve: curve.revealed), delta)))
        for k in (0, start, min(start + 1, len(ORDERS) - 1)):
            prices[k] = self._epsilon_at(k, delta)
        while True:
            bounds = _epsilons(self._total(_Curve.lower_bounds), delta)
            bounds[list(prices)] = np.inf
            least, k = min((price, k) for k, price in prices.items())
            if least <= bounds.min():
                break
            # Far beyond what is known the bounds are loose, and integrals may be dear.
            bounds[max(prices) + _STRIDE + 1 :] = np.inf
            k = int(np.argmin(bounds))
            prices[k] = self._epsilon_at(k, delta)
        if not all(curve.is_integrated(k) for curve in curves):
            raise _UndecidedError
        return least

    def _total(self, vector: Callable[[_Curve], Array]) -> Array:
        total = np.zeros_like(ORDERS)
        for count, curve in self._terms:
            total = total + count * (vector(curve) if isinstance(curve, _Curve) else curve)
        if np.isnan(total).any():
            raise _UndecidedError
        return total

    def _epsilon_at(self, k: int, delta: float) -> float:
        divergence = 0.0
        for count, curve in self._terms:
            divergence += float(count * curve[k])
        if not math.isfinite(divergence):
            raise _UndecidedError
        return float(reference.compute_epsilon(ORDERS[k : k + 1], [divergence], delta)[0])


class _UndecidedError(Exception):
    """A few orders do not tell: all must be computed."""


def _epsilons(divergences: Array, delta: float) -> Array:
    """The epsilon that each order gives, as dp_accounting converts it; 0 where it is negative."""
    converted = divergences + np.log1p(-1 / ORDERS) - np.log(delta * ORDERS) / (ORDERS - 1)
    return np.where(delta**2 + np.expm1(-divergences) > 0, 0.0, np.maximum(converted, 0.0))


def _is_mixed(event: SampledGaussianDpEvent) -> bool:
    """Whether its divergences are integrals: neither zero nor those of one Gaussian."""
    return 0 < event.rate < 1 and event.removed + event.altered > 0


@lru_cache(maxsize=64)
def laws_of(event: SampledGaussianDpEvent) -> tuple[BinomialGaussian, BinomialGaussian]:
    """The unit present, and (mirrored) the unit withheld."""
    rate, noise, altered = event.rate, event.noise_multiplier, event.altered
    withheld = BinomialGaussian(altered, event.altered_at, noise)
    if event.altered_at == rate:
        return BinomialGaussian(event.removed + altered, rate, noise), withheld
    return BinomialGaussian(event.removed, rate, noise, (altered, event.altered_at)), withheld


class _Curve:
    """The divergences of a sampled Gaussian, the larger of both directions, order by order."""

    def __init__(self, event: SampledGaussianDpEvent) -> None:
        self._laws = laws_of(event)
        self._known: dict[int, float] = {}
        # Never smaller.
        self.revealed = revealed_count(RevealedCountGaussianDpEvent(**attr.asdict(event)))

    def __getitem__(self, k: int) -> float:
        if k not in self._known:
            laws, order = self._laws, float(ORDERS[k])
            self._known[k] = max(_divergence(*laws, order), _divergence(*laws[::-1], order))
        return self._known[k]

    def lower_bounds(self) -> Array:
        """At all orders, from those known: a convex function is above its chords' extensions."""
        x, bounds = ORDERS - 1, np.zeros_like(ORDERS)
        points = [(0.0, 0.0), *((x[k], x[k] * self._known[k]) for k in sorted(self._known))]
        for (left, low), (right, high) in pairwise(points):
            chord = low + (high - low) / (right - left) * (x - left)
            outside = (x <= left) | (x >= right)
            bounds = np.where(outside, np.maximum(bounds, chord), bounds)
        return bounds / x * (1 - _ROUNDING)

    def is_integrated(self, k: int) -> bool:
        """Whether :meth:`all_orders` certainly holds the integral at this order."""
        useful = self.lower_bounds() + _LEAST_LOG_DELTA / (ORDERS - 1)
        return bool(self[k] <= useful[:k].min(initial=np.inf))

    def all_orders(self) -> Array:
        """Every order that can give the least epsilon, and of the others the revealed count's."""
        curve = np.full_like(ORDERS, np.inf)
        useful = math.inf
        for k, order in enumerate(ORDERS):
            curve[k] = self[k]
            if not curve[k] <= useful:
                break  # divergences grow with the order: no higher one can give the least epsilon
            useful = min(useful, curve[k] + _LEAST_LOG_DELTA / (order - 1))
        return np.where(np.isinf(curve), self.revealed, curve)


_curve = lru_cache(maxsize=256)(_Curve)


@lru_cache(maxsize=256)
def sampled_gaussian(event: SampledGaussianDpEvent) -> Array:
    """The larger of both directions at each of :data:`ORDERS`, by quadrature."""
    if _is_mixed(event):
        return _curve(event).all_orders()
    reach = (event.removed + 2 * event.altered) * (event.rate == 1)
    return ORDERS * reach**2 / (2 * event.noise_multiplier**2)


def _divergence(upper: BinomialGaussian, lower: BinomialGaussian, order: float) -> float:
    r"""``D_order(upper || lower)`` where ``lower`` is mirrored: it puts its counts at ``-j``.

    The other direction is the same call with the roles swapped, since mirroring both laws changes
    no divergence. The logarithm of the integrand has the slope

        g'(x) = (-x + order E[i | x] + (order - 1) E[j | x]) / sigma^2,

    with both means at least 0, the first at most that of the binomial tilted by ``x / sigma^2``,
    the second at most its prior mean when ``x > 0``. So g falls at least as fast as a Gaussian's
    left of 0, and where it falls to the right :func:`_end` tells. The grid also holds the bulk of
    ``lower``, whose total mass the integral below relies on. The curvature of g is at most
    ``(1 + order V) / sigma^2`` with V the largest conditional variance of a count over sigma^2: at
    most n/4 over sigma^2, and 1 + 1 / (4 sigma^2) since the law is log-concave on the integers.
    """
    noise, last = upper.noise, max(upper.counts[-1], lower.counts[-1])
    prior = (order - 1) * float(lower.weights @ lower.counts)
    left, right = -_end(lower, 1.0, 0.0), _end(upper, order, prior)
    variance = min(1 + 1 / (2 * noise) ** 2, last / (2 * noise) ** 2)
    step = noise / (2 * math.sqrt(1 + order * variance))
    if not (right - left) / step <= _MAX_POINTS:
        return math.inf
    x = np.arange(left, right + step, step)
    of_upper = upper.log_tilt(x)[0]
    of_lower = lower.log_tilt(-x[::-1])[0][::-1]
    log_lower = of_lower - x**2 / (2 * noise**2) + math.log(step / (noise * math.sqrt(2 * math.pi)))
    loss = of_upper - of_lower
    exponent = log_lower + order * loss
    if exponent.max() < 300:
        # \int lower (u^order - order u + order - 1), u = upper / lower, is the integral minus one:
        # nothing is lost to rounding however close the two laws are.
        small = order * loss < 30
        near = np.where(small, loss, 0.0)
        excess = np.where(
            small,
            np.exp(log_lower) * (np.expm1(order * near) - order * np.expm1(near)),
            np.exp(exponent) - order * np.exp(log_lower + loss) + (order - 1) * np.exp(log_lower),
        )
        log_integral = np.log1p(max(0.0, excess.sum()))
    else:
        top = exponent.max()
        log_integral = top + np.log(np.exp(exponent - top).sum())
    return float(log_integral / (order - 1)) * (1 + 1e-9)


def _end(law: BinomialGaussian, order: float, prior: float) -> float:
    """Where a logarithm with a slope of at most ``(B(x) - x) / sigma^2`` has lost 72 for good.

    ``B(x) = order n expit(log odds + x / sigma^2) + prior`` increases. The search starts above the
    largest root of ``B(x) = x`` and integrates the bound: past a root where B nearly follows x the
    fall is much slower than a Gaussian's.
    """
    variance, height = law.noise**2, order * law.counts[-1]

    def rise(x: float) -> float:
        tilted = np.logaddexp(0, law.log_odds + x / variance)
        return float(height * tilted + prior * x / variance - x**2 / (2 * variance))

    turn = height + prior
    for _ in range(30):  # decreasing, and above the largest root at every stage
        turn = height * special.expit(law.log_odds + turn / variance) + prior
    reach = _REACH * law.noise
    while height and rise(turn) - rise(turn + reach) < _REACH**2 / 2:
        reach *= 1.25
    return float(turn + reach)


@lru_cache(maxsize=256)
def revealed_count(event: RevealedCountGaussianDpEvent) -> Array:
    r"""``log(\sum_s w_s exp(order (order - 1) s^2 / 2 sigma^2)) / (order - 1)`` at each order."""
    shifts, weights = revealed_shifts(event)
    exponents = np.multiply.outer(ORDERS * (ORDERS - 1), shifts**2 / 2) / event.noise_multiplier**2
    top = exponents.max(axis=1)
    # log of the mean of exp: as 1 + (mean of expm1) where that can be held, scaled where it cannot
    near = np.log1p(np.expm1(np.minimum(exponents, 30.0)) @ weights)
    far = top + np.log(np.exp(exponents - top[:, None]) @ weights)
    return np.where(top < 30, near, far) / (ORDERS - 1)


@lru_cache(maxsize=64)
def revealed_shifts(event: RevealedCountGaussianDpEvent) -> tuple[Array, Array]:
    """How far the sum can move, in units of C, and with what probability."""
    if event.rate is not None:
        altered_at = event.rate if event.altered_rate is None else event.altered_rate
        altered = BinomialGaussian(event.altered, altered_at, 1.0)
        removed = BinomialGaussian(event.removed, event.rate, 1.0)
        shifts = np.add.outer(2 * altered.counts, removed.counts)
        weights = np.multiply.outer(altered.weights, removed.weights)
    else:
        assert event.population is not None
        assert event.batch is not None
        affected = event.removed + event.altered
        drawn, log_weights = _log_hypergeometric(event.population, affected, event.batch)
        own = np.arange(event.removed + 1)[None, :]
        shifts = 2 * drawn[:, None] - own
        weights = np.exp(log_weights[:, None] + _log_share(own, drawn[:, None], event))
        weights /= weights.sum()
    possible = weights > 0
    return shifts[possible], weights[possible]


def _log_hypergeometric(population: int, marked: int, batch: int) -> tuple[Array, Array]:
    """The possible numbers of marked ones in a batch, and the logarithms of their probabilities.

    By the ratio of neighbouring ones: logarithms of factorials of a large population would leave
    few digits when subtracted.
    """
    counts = np.arange(max(0, marked + batch - population), min(marked, batch) + 1.0)
    k = counts[:-1]
    rest = population - marked - batch
    ratios = np.log((marked - k) * (batch - k)) - np.log((k + 1) * (rest + k + 1))
    log_weights = np.concatenate([[0.0], np.cumsum(ratios)])
    return counts, log_weights - special.logsumexp(log_weights)


def _log_share(own: Any, drawn: Any, event: RevealedCountGaussianDpEvent) -> Any:
    """log P(``own`` of the ``drawn`` affected terms are removed ones), -inf where impossible."""

    def log_choose(n: Any, r: Any) -> Array:
        inside = (r >= 0) & (r <= n)
        r = np.where(inside, r, 0)
        value = special.gammaln(n + 1) - special.gammaln(r + 1) - special.gammaln(n - r + 1)
        return np.where(inside, value, -np.inf)

    return np.asarray(
        log_choose(event.removed, own)
        + log_choose(event.altered, drawn - own)
        - log_choose(event.removed + event.altered, drawn)
    )
