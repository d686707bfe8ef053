"""What a private step is told: how it samples, how far it may go, how it clips. Without torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import dp_accounting as dpa

from graphveil import _validate
from graphveil._errors import UnprovenError
from graphveil.privacy.events import RevealedCountGaussianDpEvent, SampledGaussianDpEvent

CLIPPINGS = ("flat", "per_layer", "automatic", "quantile")
"""How gradients may be bounded; see :func:`graphveil.grads.clipping.make_clipping`."""


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How one step draws its batch, how much noise it adds, and what one unit touches.

    Every example is drawn with probability ``sample_rate``, or ``fixed_batch`` of them by a uniform
    choice. One unit removes at most ``removed`` loss terms and alters at most ``altered`` others,
    each of them only where a coin of its own, of probability ``delivery``, has delivered what the
    unit sends to it (docs/guarantees/node.md).
    """

    sample_rate: float
    noise_multiplier: float
    removed: int = 1
    altered: int = 0
    fixed_batch: int | None = None
    delivery: float = 1.0

    def __post_init__(self) -> None:
        intervals = {"sample_rate": "(0, 1]", "noise_multiplier": "[0, inf)", "delivery": "(0, 1]"}
        for name, interval in intervals.items():
            value = _validate.number(name, getattr(self, name), interval)
            object.__setattr__(self, name, value)  # a plain float
        if self.delivery < 1 and self.fixed_batch is not None:
            raise UnprovenError(
                "A 'delivery' below 1 must go with batches that are drawn by coins. Got "
                f"{self.delivery:g} with batches of {self.fixed_batch} instead; deliver every "
                "message, or give a 'sample_rate'."
            )

    @property
    def altered_rate(self) -> float | None:
        """The rate at which altered terms count as drawn; None where it is the sample rate."""
        if self.delivery == 1 or self.sample_rate == 1:
            return None
        reached = self.sample_rate * self.delivery
        # Rounded up, and never above the sample rate.
        return min(reached / (1 - self.sample_rate + reached) * (1 + 1e-12), self.sample_rate)

    def event(self, count: int) -> dpa.DpEvent:
        """What one step on ``count`` examples releases.

        Batches of a fixed size have a looser law than Poisson ones.
        """
        alike: dict[str, Any] = {
            name: getattr(self, name) for name in ("noise_multiplier", "removed", "altered")
        }
        if self.fixed_batch is None:
            return SampledGaussianDpEvent(
                rate=self.sample_rate, altered_rate=self.altered_rate, **alike
            )
        return RevealedCountGaussianDpEvent(population=count, batch=self.fixed_batch, **alike)


@dataclass(frozen=True, kw_only=True)
class Target:
    """The epsilon, at a delta, that the steps and all ``others`` it pays for stay within."""

    epsilon: float
    delta: float
    others: dpa.DpEvent = field(default_factory=dpa.NoOpDpEvent)
