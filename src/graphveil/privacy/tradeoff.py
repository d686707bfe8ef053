r"""What a membership test can reach: the largest true positive rate at a false positive rate.

A test accuses or does not; its rates are averages over the noise. Let S be what makes it accuse, Q
the law of the release without the unit and P that with it. (epsilon, delta) in both directions says
of p = P(S) and q = Q(S)

    p <= delta + exp(epsilon) q,        1 - q <= delta + exp(epsilon) (1 - p),

and the second gives p <= 1 - exp(-epsilon) (1 - delta - q). A release has one delta for every
epsilon, each pair of them holds, and so the least p over all epsilons does.

>>> import dp_accounting as dpa
>>> round(largest_tpr(dpa.GaussianDpEvent(1.0), 0.01), 3)
0.092
>>> round(tpr_of(1.0, 0.0, 0.01), 4)
0.0272
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import dp_accounting as dpa
import numpy as np

from graphveil import _validate
from graphveil._errors import UnsupportedEventError
from graphveil.privacy import _pld
from graphveil.privacy._bounds import compositions, pld_problem
from graphveil.privacy._mixture import Array
from graphveil.privacy._rdp import ORDERS, RdpAccountant
from graphveil.privacy.accounting import amplify
from graphveil.privacy.event_tree import leaves, outer_sampling, releases_raw, validate

_LEAST = 1e-12  # smaller rates count as this one, which allows no less
_END = 30.0  # exp(-30) < _LEAST: an epsilon beyond says nothing more
_MOST_POINTS = 1 << 15
_TILTS = 8.0  # over the spread of losses: bounded ones keep some weight away from their end
_RARE = 1e-4  # the tilt that suits this tail serves rarer ones, and blurs the bulk less
_NEARLY_ALL = 0.999  # infinite losses as likely as this leave nothing to tell
_ROUNDING = 1 + 1e-9


def tpr_of(epsilon: float, delta: float, fpr: float) -> float:
    """The largest true positive rate that (``epsilon``, ``delta``) alone allows at ``fpr``."""
    epsilon = _validate.number("epsilon", epsilon, "[0, inf]")
    delta = _validate.number("delta", delta, "[0, 1]")
    fpr = _validate.number("fpr", fpr, "[0, 1]")
    if math.isinf(epsilon):
        return 1.0
    accused = math.exp(min(epsilon, 700.0)) * fpr + delta
    return min(1.0, accused, 1 - math.exp(-epsilon) * (1 - delta - fpr))


def largest_tpr(event: dpa.DpEvent, fpr: float) -> float:
    """The largest true positive rate of any test at ``fpr`` against a release of ``event``.

    The losses of "present against withheld" and those back bound different tests: one that accuses
    of having taken part and one that accuses of having been withheld. A guarantee is for
    both, and which of two neighbouring data sets lacks the unit is not for the attacker to choose;
    so the larger of the two answers counts.

    *Guarantee.* Never below the truth for the dominating pair of laws, as :func:`price
    <graphveil.privacy.accounting.price>` is never below its epsilon; from the losses where they
    have a distribution, else from the Renyi divergences. 1 where anything is released without
    noise. An event that no bound covers is refused by name.
    """
    return largest_tprs(event, (fpr,))[0]


def largest_tprs(event: dpa.DpEvent, fprs: Sequence[float]) -> tuple[float, ...]:
    """:func:`largest_tpr` at several rates, from one composition for all of them."""
    fprs = [_validate.number("fpr", fpr, "[0, 1]") for fpr in fprs]
    validate(event)
    if releases_raw(event):
        return (1.0,) * len(fprs)
    curve = _curve(event, min(fprs, default=1.0))
    return tuple(curve.largest_tpr(fpr) for fpr in fprs)


class _Curve(NamedTuple):
    """Pairs that hold: at each epsilon a delta of present against withheld, and one of back."""

    epsilons: Array
    forth: Array
    back: Array

    def largest_tpr(self, fpr: float) -> float:
        """The larger of what the two orientations of a test can reach."""
        if not self.epsilons[-1]:  # nothing is released
            return fpr
        fpr = max(fpr, _LEAST)
        return max(
            _least(self.epsilons, self.forth, self.back, fpr),
            _least(self.epsilons, self.back, self.forth, fpr),
        )

    def amplified(self, rate: float) -> _Curve:
        """(e, d) for those who take part is (log(1 + q (exp(e) - 1)), q d) for all."""
        epsilons = np.array([amplify(epsilon, rate) for epsilon in self.epsilons])
        return _Curve(epsilons, rate * self.forth, rate * self.back)


def _least(epsilons: Array, forth: Array, back: Array, fpr: float) -> float:
    accused = forth + np.exp(epsilons) * fpr
    spared = np.exp(-epsilons) * (1 - back - fpr)
    return float(min(1.0, accused.min() * _ROUNDING, (1 - spared.max()) * _ROUNDING))


def _curve(event: dpa.DpEvent, fpr: float) -> _Curve:
    """The pairs of an event, sharpest at the epsilons that decide about ``fpr`` and above."""
    if (sampled := outer_sampling(event)) is not None:
        rate, inner = sampled
        return _curve(inner, fpr).amplified(rate)
    problem = pld_problem(event)
    if problem is None:
        return _curve_by_pld(event, max(fpr, _LEAST))
    accountant = RdpAccountant()
    if not accountant.supports(event):
        raise UnsupportedEventError(f"No bound covers this event. {problem}")
    return _curve_by_rdp(accountant.compose(event).rdp)


def _curve_by_pld(event: dpa.DpEvent, fpr: float) -> _Curve:
    """On the grid of losses, where the curve has its corners and so its least."""
    costs = leaves(event)
    if not costs:
        return _Curve(*np.zeros((3, 1)))

    def scale(direction: _pld.Composition) -> tuple[float, float]:
        # A loss that is off by 1e-3 moves a rate by a thousandth of itself: no need of finer grids.
        if direction.infinite > _NEARLY_ALL:
            return 0.0, 0.0
        spread = direction.spread
        tilt = direction.chernoff(max(fpr, _RARE))[1]
        return min(1.0, spread), min(tilt, _TILTS / max(spread, 1e-9))

    directions = compositions(costs, None, scale)
    if any(direction.infinite > _NEARLY_ALL for direction in directions):
        return _Curve(np.array([0.0, 1.0]), np.ones(2), np.ones(2))
    interval = directions[0].parts[0][0].interval
    largest = max(
        sum(count * float(part.values[-1]) for part, count in direction.parts)
        for direction in directions
    )
    points = math.ceil(min(_END, max(largest, interval)) / interval)
    stride = math.ceil(points / _MOST_POINTS)
    epsilons = np.asarray(np.arange(0, points + stride, stride) * interval, np.float64)
    deltas = [direction.deltas(epsilons, fpr, scale(direction)[1]) for direction in directions]
    return _Curve(epsilons, deltas[0], deltas[-1])


def _curve_by_rdp(divergences: Array) -> _Curve:
    """Every order's delta as dp_accounting converts it; the divergences hold in both directions."""
    epsilons = np.concatenate([[0.0], np.geomspace(1e-4, _END, 2000)])
    divergences = np.where(np.isnan(divergences), np.inf, np.maximum(divergences, 0.0))[:, None]
    orders = ORDERS[:, None]
    by_order = (orders - 1) * (divergences - epsilons + np.log1p(-1 / orders)) - np.log(orders)
    with np.errstate(divide="ignore"):
        by_kl = 0.5 * np.log(-np.expm1(-divergences))
    deltas = np.exp(np.minimum(np.minimum(by_order, by_kl).min(axis=0), 0.0))
    return _Curve(epsilons, deltas, deltas)
