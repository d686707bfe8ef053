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

from graphveil.privacy._mixture import Array
from graphveil.privacy._rdp import ORDERS, RdpAccountant
from graphveil.privacy.accounting import epsilon_of
from graphveil.privacy.event_tree import outer_sampling, parts, releases_raw, validate
from graphveil.privacy.events import from_json, to_json

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
        return self.epsilon - np.log1p(-1 / ORDERS) + np.log(self.delta * ORDERS) / (ORDERS - 1)

    @property
    def _limit(self) -> float:
        """Of the order that counts; not above 0 if the budget is too small for a second run."""
        return float(self._limits[self._order])

    def used(self, events: Sequence[dpa.DpEvent]) -> float:
        """The share of the budget that ``events`` take; above 1 they do not fit."""
        divergence = math.fsum(
            float(_divergences(json.dumps(to_json(event)))[self._order]) for event in events
        )
        if not divergence:
            return 0.0
        return divergence / self._limit if self._limit > 0 else math.inf

    def left(self, events: Sequence[dpa.DpEvent]) -> float:
        """The epsilon, at delta, of the largest Gaussian release that fits beside ``events``."""
        if self._limit <= 0 or (used := self.used(events)) >= 1:
            return 0.0
        room = (1 - used) * self._limit
        noise = math.sqrt(float(ORDERS[self._order]) / (2 * room)) * (1 + 1e-9)
        epsilon = epsilon_of(dpa.GaussianDpEvent(noise), self.delta)
        return epsilon if epsilon >= _HARDLY else 0.0


@lru_cache(maxsize=512)
def _divergences(event: str) -> Array:
    """The divergences of an event at all orders; infinite where none is known."""
    whole = from_json(json.loads(event))
    validate(whole)
    if releases_raw(whole):
        return np.full_like(ORDERS, np.inf)
    accountant, curve = RdpAccountant(), np.zeros_like(ORDERS)
    for part, count in parts(whole):
        if outer_sampling(part) is None and accountant.supports(part):
            accountant.compose(part, count)
        elif isinstance(part, dpa.PoissonSampledDpEvent):
            curve = curve + count * _on_a_sample(part.sampling_probability, part.event)
        else:
            return np.full_like(ORDERS, np.inf)
    curve += accountant.rdp
    return curve


def _on_a_sample(rate: float, inner: dpa.DpEvent) -> Array:
    """Of ``inner``, run on a secret sample in which each unit is with probability ``rate``.

    The mean of a power of the likelihood ratio is jointly convex in the two laws, and where the
    unit is not in the sample they are one.
    """
    within = _divergences(json.dumps(to_json(inner)))
    growth = (ORDERS - 1) * within
    if not 0 < rate < 1:
        return within * rate
    apart = np.logaddexp(np.log1p(-rate), np.log(rate) + growth)
    divergence: Array = np.maximum(apart / (ORDERS - 1), 0.0)
    return divergence
