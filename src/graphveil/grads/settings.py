"""What a private step is told: how it samples, how far it may go, how it clips. Without torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import dp_accounting as dpa

from graphveil import _validate
from graphveil.privacy.events import RevealedCountGaussianDpEvent, SampledGaussianDpEvent

CLIPPINGS = ("flat", "per_layer", "automatic", "quantile")
"""How gradients may be bounded; see :func:`graphveil.grads.clipping.make_clipping`."""


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How one step draws its batch, how much noise it adds, and what one unit touches.

    Every example is drawn with probability ``sample_rate``, or ``fixed_batch`` of them by a uniform
    choice. One unit removes at most ``removed`` loss terms and alters at most ``altered`` others.
    """

    sample_rate: float
    noise_multiplier: float
    removed: int = 1
    altered: int = 0
    fixed_batch: int | None = None

    def __post_init__(self) -> None:
        for name, interval in (("sample_rate", "(0, 1]"), ("noise_multiplier", "[0, inf)")):
            value = _validate.number(name, getattr(self, name), interval)
            object.__setattr__(self, name, value)  # a plain float

    def event(self, count: int) -> dpa.DpEvent:
        """What one step on ``count`` examples releases.

        Batches of a fixed size have a looser law than Poisson ones.
        """
        alike: dict[str, Any] = {
            name: getattr(self, name) for name in ("noise_multiplier", "removed", "altered")
        }
        if self.fixed_batch is None:
            return SampledGaussianDpEvent(rate=self.sample_rate, **alike)
        return RevealedCountGaussianDpEvent(population=count, batch=self.fixed_batch, **alike)


@dataclass(frozen=True, kw_only=True)
class Target:
    """The epsilon, at a delta, that the steps and all ``others`` it pays for stay within."""

    epsilon: float
    delta: float
    others: dpa.DpEvent = field(default_factory=dpa.NoOpDpEvent)
