r"""The laws that events charge for, as laws of one number, and bands around them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import dp_accounting as dpa
import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

from graphveil.audit.bounds import dkw_band, lower_rate, upper_rate
from graphveil.audit.results import Violation
from graphveil.privacy.events import RevealedCountGaussianDpEvent, SampledGaussianDpEvent

FALSE_ALARM = 1e-4
"""Of all checks of one part together."""

Array = NDArray[np.float64]
CHECKS = 16  # of the law, at most, that share half of the false alarms
_CUTS = 2001  # points at which a law is looked at


class Law(Protocol):
    """A law on the line."""

    def cdf(self, x: Array) -> Array:
        """The probability of (-inf, x]."""

    def density(self, x: Array) -> Array:
        """The probability of a number, or its density, up to a factor."""

    def ends(self) -> tuple[float, float]:
        """Beyond which next to nothing lies."""


@dataclass(frozen=True)
class Noisy:
    """A whole number of units, by ``weights``, and noise of scale ``noise``."""

    shifts: Array
    weights: Array
    noise: float
    laplace: bool = False

    def cdf(self, x: Array) -> Array:
        """The probability of (-inf, x]."""
        total = np.zeros(len(x))
        for shift, weight in zip(self.shifts, self.weights, strict=True):
            if weight > 1e-12:
                total += weight * self._noise_cdf((x - shift) / self.noise)
        return total

    def density(self, x: Array) -> Array:
        """The probability density, up to a factor."""
        total = np.zeros(len(x))
        for shift, weight in zip(self.shifts, self.weights, strict=True):
            if weight > 1e-12:
                u = np.abs(x - shift) / self.noise
                total += weight * np.exp(-u if self.laplace else -u * u / 2)
        return total

    def ends(self) -> tuple[float, float]:
        """Beyond which next to nothing lies."""
        likely = self.shifts[self.weights > 1e-9]
        reach = (21 if self.laplace else 6) * self.noise
        return float(likely.min() - reach), float(likely.max() + reach)

    def _noise_cdf(self, u: Array) -> Array:
        if not self.laplace:
            return np.asarray(special.ndtr(u))
        half = np.exp(-np.abs(u)) / 2
        return np.where(u < 0, half, 1 - half)


@dataclass(frozen=True)
class Count:
    """How many of ``trials`` happen."""

    trials: int
    chance: float

    def cdf(self, x: Array) -> Array:
        """The probability of (-inf, x]."""
        return np.asarray(stats.binom.cdf(np.floor(x), self.trials, self.chance))

    def density(self, x: Array) -> Array:
        """The probability of the whole number at or below ``x``."""
        return np.asarray(stats.binom.pmf(np.floor(x), self.trials, self.chance))

    def ends(self) -> tuple[float, float]:
        """Beyond which nothing lies."""
        return -1.0, self.trials + 1.0


@dataclass(frozen=True)
class Summed:
    """A law on the points of a grid."""

    grid: Array
    below: Array

    def cdf(self, x: Array) -> Array:
        """The probability of (-inf, x]."""
        return np.interp(x, self.grid, self.below, left=0.0, right=1.0)

    def density(self, x: Array) -> Array:
        """The probability density, up to a factor."""
        return np.interp(x, self.grid, np.gradient(self.below), left=0.0, right=0.0)

    def ends(self) -> tuple[float, float]:
        """Beyond which next to nothing lies."""
        inside = self.grid[(self.below > 1e-9) & (self.below < 1 - 1e-9)]
        return float(inside[0]), float(inside[-1])


def sum_up(values: Array, chances: Array, times: int) -> Summed:
    """The law of a sum of so many independent ``values``, which have these ``chances``.

    On a grid that goes twelve standard deviations to either side; what lies beyond is wrapped
    round. Values between two points are shared by both, so that the mean stays.
    """
    chances = chances / chances.sum()
    mean = float(chances @ values)
    spread = max(math.sqrt(float(chances @ (values - mean) ** 2)), 1e-12)
    whole = spread * math.sqrt(times)
    gap = min(whole / 500, spread / 4)
    size = 2 ** math.ceil(math.log2(24 * whole / gap))
    places = (values - mean) / gap
    lower = np.floor(places).astype(np.int64)
    one = np.zeros(size)
    np.add.at(one, lower % size, chances * (lower + 1 - places))
    np.add.at(one, (lower + 1) % size, chances * (places - lower))
    sums = np.fft.fftshift(np.fft.irfft(np.fft.rfft(one) ** times, size))
    below = np.cumsum(np.maximum(sums, 0.0))
    return Summed(times * mean + gap * (np.arange(size) - size // 2), below / below[-1])


def _binomial(terms: int, rate: float) -> Array:
    return np.asarray(stats.binom.pmf(np.arange(terms + 1), terms, rate))


def fixed(shift: float, noise: float, *, laplace: bool = False) -> Noisy:
    """Noise around one number."""
    return Noisy(np.array([shift]), np.array([1.0]), noise, laplace)


def _delivered(terms: int, rate: float, delivery: float) -> tuple[Array, Array]:
    """The law of altered terms: +1 drawn and delivered, -1 drawn and not, 0 not drawn."""
    shifts = np.arange(-terms, terms + 1, dtype=np.float64)
    weights = np.zeros(2 * terms + 1)
    for drawn, weight in enumerate(_binomial(terms, rate)):
        if weight > 1e-14:
            weights[terms - drawn : terms + drawn + 1 : 2] += weight * _binomial(drawn, delivery)
    return shifts, weights


def laws_of_step(event: dpa.DpEvent, delivery: float) -> tuple[Noisy, Noisy]:
    """Of a step in which terms of the unit all point one way: present, withheld; in bounds."""
    if isinstance(event, RevealedCountGaussianDpEvent):
        assert event.population is not None
        drawn = np.arange(event.removed + event.altered + 1)
        laws = [
            stats.hypergeom.pmf(drawn, event.population, touched, event.batch)
            for touched in (event.removed + event.altered, event.altered)
        ]
        noise = event.noise_multiplier
        shifts = drawn.astype(np.float64)
        return Noisy(shifts, laws[0], noise), Noisy(-shifts, laws[1], noise)
    assert isinstance(event, SampledGaussianDpEvent)
    shifts, altered = _delivered(event.altered, event.rate, delivery)
    present = np.convolve(altered, _binomial(event.removed, event.rate))
    down, withheld = _delivered(event.altered, event.rate, 0.0)
    up = np.arange(len(present)) + shifts[0]
    return (
        Noisy(up, present, event.noise_multiplier),
        Noisy(down, withheld, event.noise_multiplier),
    )


def compare(what: str, numbers: Array, law: Law) -> Iterator[Violation]:
    """The empirical distribution function lies in its band around ``law``."""
    cuts = cuts_of(law)
    empirical = np.searchsorted(np.sort(numbers), cuts, side="right") / len(numbers)
    gaps = np.abs(empirical - law.cdf(cuts))
    band = dkw_band(len(numbers), FALSE_ALARM / 2 / CHECKS)
    if gaps.max() > band:
        yield Violation(
            rule=f"{what}: not the law that is charged",
            value=f"{gaps.max():.4f} off at {cuts[gaps.argmax()]:.3g}",
            allowed=f"{band:.4f}",
        )


def compare_rate(what: str, count: int, trials: int, rate: float) -> Iterator[Violation]:
    """A count is one that the rate allows."""
    level = 1 - FALSE_ALARM / 4 / CHECKS
    low, high = lower_rate(count, trials, level), upper_rate(count, trials, level)
    if not low <= rate * (1 + 1e-12) or not rate * (1 - 1e-12) <= high:
        yield Violation(
            rule=f"{what}: not the rate that is charged",
            value=f"{count / trials:.6g} of {trials:,}",
            allowed=f"{rate:.6g}",
        )


def cuts_of(*laws: Law) -> Array:
    """Thresholds that the laws fix; between whole numbers for counts."""
    low, high = min(law.ends()[0] for law in laws), max(law.ends()[1] for law in laws)
    if isinstance(laws[0], Count):
        return np.arange(low, high) + 0.5
    return np.linspace(low, high, _CUTS)
