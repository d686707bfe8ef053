r"""A budget for people who look at one result before they choose the next run.

The price of a list of events holds if the list was fixed beforehand. Whoever chooses each run after
seeing the last can do better: of two runs, each of which would fit, take the one that hurts most
where the last result points. A *filter* bounds what can be learnt by any such choice. This one adds
up Renyi divergences of one order, which is fixed with the budget: if the sum stays below a limit
whatever is chosen, then the whole has at most that divergence (Feldman and Zrnic 2021), and with it
the budget's epsilon at its delta. Proof and figures: docs/guarantees/ledger.md.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import dp_accounting as dpa
import numpy as np

from graphveil.privacy import accounting
from graphveil.privacy._mixture import Array
from graphveil.privacy._rdp import ORDERS, RdpAccountant
from graphveil.privacy.accounting import account
from graphveil.privacy.events import from_json, to_json

_ASIDE = 0.1  # of delta: for what has an epsilon and a delta, and no divergence
_EACH = 0.01  # of delta: what each of these takes
_HARDLY = 1e-3  # an epsilon that is not worth offering


@dataclass(frozen=True, kw_only=True)
class Filter:
    """What fits into (epsilon, delta), however each run is chosen by the results before it."""

    epsilon: float
    delta: float

    @cached_property
    def _order(self) -> int:
        """Which of ORDERS: the one that leaves most room for Gaussians, whose divergence is linear.

        It may depend on nothing but the budget.
        """
        return int(np.argmax(self._limits / ORDERS))

    @cached_property
    def _limits(self) -> Array:
        """The divergence of each order that gives epsilon (Canonne, Kamath and Steinke 2020)."""
        delta = (1 - _ASIDE) * self.delta
        return self.epsilon - np.log1p(-1 / ORDERS) + np.log(delta * ORDERS) / (ORDERS - 1)

    def used(self, events: Sequence[dpa.DpEvent]) -> float:
        """The share of the budget that ``events`` take; above 1 they do not fit."""
        limit = float(self._limits[self._order])
        spent = [self._spent(event) for event in events]
        if not spent:
            return 0.0
        divergence, aside = (math.fsum(each) for each in zip(*spent, strict=True))
        return max(divergence / limit if limit > 0 else math.inf, aside / _ASIDE)

    def left(self, events: Sequence[dpa.DpEvent]) -> float:
        """The epsilon, at delta, of the largest Gaussian release that fits beside ``events``."""
        room = (1 - self.used(events)) * float(self._limits[self._order])
        if not room > 0:
            return 0.0
        noise = math.sqrt(float(ORDERS[self._order]) / (2 * room)) * (1 + 1e-9)
        epsilon = account(dpa.GaussianDpEvent(noise), self.delta).epsilon
        return epsilon if epsilon >= _HARDLY else 0.0

    def _spent(self, event: dpa.DpEvent) -> tuple[float, float]:
        """Its divergence, and the share of delta that it takes aside."""
        curve, aside = _divergences(json.dumps(to_json(event)), _EACH * self.delta)
        return float(curve[self._order]), aside * _EACH


@lru_cache(maxsize=512)
def _divergences(event: str, delta: float) -> tuple[Array, int]:
    """Divergences at all orders, and how many parts entered by their epsilon at ``delta``."""
    whole = from_json(json.loads(event))
    if accounting._releases_raw(whole):
        return np.full_like(ORDERS, np.inf), 0
    accountant, stated = RdpAccountant(), 0
    curve = np.zeros_like(ORDERS)
    for part, count in _parts(whole):
        if accounting._outer_sampling(part) is None and accountant.supports(part):
            accountant.compose(part, count)
        else:  # on a secret sample of the units
            curve += count * _pure(account(part, delta).epsilon)
            stated += count
    return curve + accountant.rdp, stated


def _parts(event: dpa.DpEvent) -> list[tuple[dpa.DpEvent, int]]:
    if isinstance(event, dpa.ComposedDpEvent):
        return [found for part in event.events for found in _parts(part)]
    if isinstance(event, dpa.SelfComposedDpEvent):
        return [(part, count * event.count) for part, count in _parts(event.event)]
    return [(event, 1)]


def _pure(epsilon: float) -> Array:
    """The largest divergences that two laws within exp(epsilon) of each other can have."""
    if math.isinf(epsilon):
        return np.full_like(ORDERS, np.inf)
    up, down = -np.logaddexp(0, -epsilon), -np.logaddexp(0, epsilon)
    found = np.logaddexp(ORDERS * up + (1 - ORDERS) * down, ORDERS * down + (1 - ORDERS) * up)
    divergence: Array = np.maximum(found / (ORDERS - 1), 0.0)
    return divergence
