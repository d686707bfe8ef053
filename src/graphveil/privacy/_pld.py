r"""Privacy loss distributions of the events, discretised from above and composed by dp_accounting.

*Discretisation* is connect-the-dots (Doroshenko et al. 2022), written with masses instead of
differences of the hockey-stick curve: the pair of masses (U, V) that two laws give to the losses in
[e, e + d] moves to the two ends so that both totals stay what they are,

    at e + d: (U - exp(e) V) / (1 - exp(-d)),        at e: the rest of U,

which is the same distribution, but keeps its relative precision however far out in a tail.

*Composition* is dp_accounting's convolution of *tilted* distributions, p(l) exp(s l) / M(s). A tilt
commutes with convolution; with s near the best Renyi order the losses around epsilon become the
bulk, so that rounding errors of the Fourier transform are relative to delta rather than to 1.
Untilted, a million steps leave errors of 1e-10 of either sign. What rounding remains is bounded and
added to delta.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import attr
import dp_accounting as dpa
import numpy as np
from scipy import fft, signal, special

from graphveil.privacy._dp_accounting import Grid, convolve, loss_grids
from graphveil.privacy._mixture import Array, BinomialGaussian
from graphveil.privacy._rdp import laws_of, revealed_shifts
from graphveil.privacy.events import RevealedCountGaussianDpEvent, SampledGaussianDpEvent

TAIL = 1e-25  # probability cut off on either side of one event; the upper side counts as infinite
MAX_LOSS = 600.0  # larger losses are infinite ones here: exp would leave double precision
MAX_POINTS = 1 << 16
_ALLOWANCES = (1e-8, 1e-6, 1e-4, 1e-2, 0.05, 0.3)  # shares of delta for rounding: least that does
_EPS = float(np.finfo(float).eps)
_TRUNCATION = 1e-15  # of the tilted mass, at every convolution
_CHERNOFF: Array = np.geomspace(0.01, 30, 20)  # orders, over the spread, that bound a window


class Losses(Grid):
    """A grid of losses, and what is computed from it."""

    @cached_property
    def values(self) -> Array:
        """The losses themselves."""
        return np.asarray((self.lower + np.arange(len(self.probs))) * self.interval, np.float64)

    @property
    def variance(self) -> float:
        """The variance of the finite losses."""
        mean = float(self.values @ self.probs)
        return float((self.values - mean) ** 2 @ self.probs)

    @cached_property
    def log_probs(self) -> Array:
        """Logarithms of the probabilities, -inf where there is none."""
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(self.probs))

    @cached_property
    def _log_moments(self) -> dict[float, float]:
        return {}

    def log_moment(self, tilt: float) -> float:
        """log E[exp(tilt * loss)] over the finite losses."""
        if tilt not in self._log_moments:  # searches for a tilt ask for the same ones again
            exponents = tilt * self.values + self.log_probs
            top = exponents.max()
            self._log_moments[tilt] = float(top + math.log(np.exp(exponents - top).sum()))
        return self._log_moments[tilt]

    def tilted(self, tilt: float) -> Losses:
        """The finite losses with probabilities times exp(tilt * loss), normalised."""
        probs = np.exp(tilt * self.values + self.log_probs - self.log_moment(tilt))
        return Losses(self.interval, self.lower, probs, 0.0)

    def untilted(self, tilt: float, log_scale: float, floor: float, delta: float) -> Losses:
        """Undo :meth:`tilted` above ``floor``; a last 1e-9 of delta at the top goes to infinity."""
        start = int(np.searchsorted(self.values, floor, side="right"))
        start = min(start, len(self.probs) - 1)
        probs = np.maximum(self.probs[start:], 0.0)
        probs = probs * np.exp(log_scale - tilt * self.values[start:])
        beyond = np.cumsum(probs[::-1])
        cut = min(int(np.searchsorted(beyond, 1e-9 * delta)), len(probs) - 1)
        infinite = float(beyond[cut - 1]) if cut else 0.0
        kept = probs[: len(probs) - cut]
        return Losses(self.interval, self.lower + start, kept, infinite)

    def epsilon(self, delta: float) -> float:
        r"""The least epsilon at which the hockey-stick divergence is at most delta.

        Between two losses of the grid, epsilon <= l_k, it is a constant less an exponential:
        ``above_k - exp(epsilon - l_k) kept_k``, with ``above_k`` the mass from l_k on and
        ``kept_k = \sum_(j >= k) p_j exp(l_k - l_j)``. Written so, nothing overflows.
        """
        if self.infinite > delta:
            return math.inf
        above = self.infinite + np.cumsum(self.probs[::-1])[::-1]
        kept = signal.lfilter([1.0], [1.0, -math.exp(-self.interval)], self.probs[::-1])[::-1]
        # At l_k itself it is above_k - kept_k, which falls with k: the first within delta counts.
        k = min(int(np.searchsorted(kept - above, -delta)), len(kept) - 1)
        if above[k] <= delta:  # delta covers everything
            return float(self.values[k - 1]) if k else -math.inf
        return float(self.values[k] + math.log((above[k] - delta) / kept[k]))


Directions = tuple[Losses, ...]  # present against withheld, and back; one if they are equal


@attr.s(frozen=True, slots=True, auto_attribs=True, kw_only=True, repr=False)
class CurveDpEvent(dpa.DpEvent):
    """A release of which this alone is known: it is (epsilons[k], deltas[k])-private for every k.

    What other events cost together can be handed on so, where their losses cannot; it is never
    written down. Proof: docs/guarantees/ledger.md.
    """

    epsilons: tuple[float, ...]
    deltas: tuple[float, ...]

    def __repr__(self) -> str:
        return f"CurveDpEvent({len(self.epsilons)} points up to {self.epsilons[-1]:.4g})"


# --- one event ------------------------------------------------------------------------------------


@lru_cache(maxsize=256)
def loss_range(event: dpa.DpEvent) -> float:
    """Width of the interval of losses that one event can cause, the far tails aside."""
    if isinstance(event, SampledGaussianDpEvent):
        low, high, *_ = _support(event)
        lowest, highest = _loss(event, np.array([low, high]))[0]
        return float(highest - lowest)
    if isinstance(event, RevealedCountGaussianDpEvent):
        shifts, weights = revealed_shifts(event)
        shift = shifts[weights > TAIL].max() / event.noise_multiplier
        return float(min(2 * MAX_LOSS, shift**2 + 2 * shift * _GAUSSIAN_REACH))
    if isinstance(event, CurveDpEvent):
        return 2 * max(event.epsilons)
    return 1.0  # dp_accounting's own events choose their range themselves


def discretise(event: dpa.DpEvent, interval: float) -> Directions:
    """The privacy losses of one event on a grid, rounded against us."""
    if isinstance(event, SampledGaussianDpEvent):
        return _sampled_gaussian(event, interval)
    if isinstance(event, RevealedCountGaussianDpEvent):
        return _revealed_count(event, interval)
    if isinstance(event, CurveDpEvent):
        return _curve(event, interval)
    grids = loss_grids(event, interval)
    return tuple(Losses(*grid._replace(probs=np.maximum(grid.probs, 0.0))) for grid in grids)


_GAUSSIAN_REACH = -float(special.ndtri(TAIL / 2))


def _loss(event: SampledGaussianDpEvent, x: Array) -> tuple[Array, Array]:
    """log P(x)/Q(x), which increases with x, and its slope; ``x`` ascends."""
    present, withheld = laws_of(event)
    above, drawn = present.log_tilt(x)
    below, altered = withheld.log_tilt(-x[::-1])
    return above - below[::-1], (drawn + altered[::-1]) / event.noise_multiplier**2


@lru_cache(maxsize=64)
def _support(event: SampledGaussianDpEvent) -> tuple[float, float, Array, Array]:
    """Ends of the line that matter, and a table of losses between them."""
    present, withheld = laws_of(event)
    low, high = -withheld.upper_quantile(TAIL), present.upper_quantile(TAIL)
    for _ in range(6):  # each look cuts off what is out of reach, and looks closer at the rest
        x = np.linspace(low, high, 4097)
        loss = np.maximum.accumulate(_loss(event, x)[0])
        inside = np.nonzero(np.abs(loss) <= MAX_LOSS)[0]
        if len(inside) == len(x) or len(inside) == 0:
            break
        low, high = x[max(inside[0] - 1, 0)], x[min(inside[-1] + 1, len(x) - 1)]
    # Not by interpolation where nothing is cut off: a loss may be flat to the last digit.
    low = np.interp(-MAX_LOSS, loss, x) if loss[0] < -MAX_LOSS else x[0]
    high = np.interp(MAX_LOSS, loss, x) if loss[-1] > MAX_LOSS else x[-1]
    return float(low), float(high), x, loss


def _sampled_gaussian(event: SampledGaussianDpEvent, interval: float) -> Directions:
    present, withheld = laws_of(event)
    low, high, table_x, table_loss = _support(event)
    ends = _loss(event, np.array([low, high]))[0]
    first, last = math.floor(ends[0] / interval), math.ceil(ends[1] / interval)
    last = max(last, first + 1)
    inner = np.arange(first + 1, last) * interval
    x = np.concatenate([[low], _invert(event, inner, table_x, table_loss, interval), [high]])
    of_present, of_withheld = present.masses(x), withheld.masses(-x[::-1])[::-1]
    outside = present.below(low), present.above(high)
    forward = _connect_the_dots(of_present, of_withheld, interval, first, *outside)
    if event.removed == 0 or event.rate == 1:
        return (forward,)  # P and Q are mirror images
    outside = withheld.below(-high), withheld.above(-low)
    return forward, _connect_the_dots(
        of_withheld[::-1], of_present[::-1], interval, -last, *outside
    )


def _invert(
    event: SampledGaussianDpEvent, losses: Array, table_x: Array, table_loss: Array, interval: float
) -> Array:
    """The ``x`` with these ascending losses: Newton's method, kept inside a shrinking bracket."""
    cell = np.clip(np.searchsorted(table_loss, losses) - 1, 0, len(table_x) - 2)
    low, high = table_x[cell], table_x[cell + 1]
    x = np.clip(np.interp(losses, table_loss, table_x), low, high)
    left = np.arange(len(x))  # those not yet close enough
    for _ in range(60):
        value, slope = _loss(event, x[left])
        miss = value - losses[left]
        low[left] = np.where(miss < 0, x[left], low[left])
        high[left] = np.where(miss > 0, x[left], high[left])
        far = np.abs(miss) > 1e-8 * interval + 1e-14 * np.abs(losses[left]) + 1e-15
        left = left[far]
        if not len(left):
            break
        with np.errstate(divide="ignore", invalid="ignore"):
            step = x[left] - miss[far] / slope[far]
        inside = (step > low[left]) & (step < high[left])
        x[left] = np.where(inside, step, (low[left] + high[left]) / 2)
    return np.asarray(np.maximum.accumulate(x))


def _connect_the_dots(
    upper: Array, lower: Array, interval: float, first: int, below: float, above: float
) -> Losses:
    """Masses of the cells ``[first + k, first + k + 1] * interval``, moved to the cells' ends.

    ``below`` is upper mass whose loss is smaller than all cells: raised to the first end.
    ``above`` is upper mass beyond the last end: counted as infinite loss.
    """
    left = (first + np.arange(len(upper))) * interval
    raised = np.clip((upper - np.exp(left) * lower) / -math.expm1(-interval), 0.0, upper)
    probs = np.zeros(len(upper) + 1)
    probs[1:] += raised
    probs[:-1] += upper - raised
    probs[0] += below
    return Losses(interval, first, probs, above)


def _revealed_count(event: RevealedCountGaussianDpEvent, interval: float) -> Directions:
    """A mixture of Gaussians' losses; the count is known, so each has its own line to live on."""
    shifts, weights = revealed_shifts(event)
    likely = weights > TAIL / len(weights)
    infinite = float(weights[~likely].sum())
    shifts, weights = shifts[likely] / event.noise_multiplier, weights[likely]
    largest = min(MAX_LOSS, shifts.max() ** 2 / 2 + shifts.max() * _GAUSSIAN_REACH)
    last = math.ceil(largest / interval)
    first = -last
    edges = np.arange(first, last + 1) * interval
    total = np.zeros(len(edges))
    for shift, weight in zip(shifts, weights, strict=True):
        if shift == 0:
            total[-first] += weight
            continue
        x = edges / shift + shift / 2  # N(shift, 1) against N(0, 1)
        withheld, present = _STANDARD.masses(x), _STANDARD.masses(x - shift)
        outside = special.ndtr(x[0] - shift), special.ndtr(shift - x[-1])
        dots = _connect_the_dots(present, withheld, interval, first, *outside)
        total += weight * dots.probs
        infinite += weight * dots.infinite
    return (Losses(interval, first, total, infinite),)


_STANDARD = BinomialGaussian(0, 0.0, 1.0)


def _curve(event: CurveDpEvent, interval: float) -> Directions:
    r"""The symmetric pair of laws whose hockey-stick curve is the convex hull of what is known.

    A curve h(x), x = exp(epsilon), is convex, and that of the other direction is
    ``1 - x + x h(1/x)``. Known points and their mirror images lie above it, hence so do the chords
    between them; a corner of the hull at x > 1 is an atom of loss log x and of mass x times the
    change of slope there, with exp(-loss) of it at the opposite loss.
    """
    epsilons, deltas = np.array(event.epsilons), np.minimum.accumulate(event.deltas)
    x = np.exp(epsilons)
    points = [(0.0, 1.0), *zip(1 / x[::-1], (1 - 1 / x + deltas / x)[::-1], strict=True)]
    points += [(1.0, 1.0), *zip(x, deltas, strict=True)]
    hull: list[tuple[float, float]] = []
    for a, b in sorted(set(points)):
        if hull and a == hull[-1][0]:
            continue  # of one x the lower point came first
        while len(hull) > 1 and (b - hull[-2][1]) * (hull[-1][0] - hull[-2][0]) <= (
            hull[-1][1] - hull[-2][1]
        ) * (a - hull[-2][0]):
            hull.pop()
        hull.append((a, b))
    corners, heights = np.array(hull).T
    slopes = np.append(np.diff(heights) / np.diff(corners), 0.0)  # beyond the last it is flat
    masses = np.maximum(corners[1:] * np.diff(slopes), 0.0)
    right = corners[1:] >= 1
    atoms, masses = np.log(corners[1:][right]), masses[right]
    apart = atoms > 0
    losses = np.concatenate([-atoms[apart], atoms])
    upper = np.concatenate([masses[apart] * np.exp(-atoms[apart]), masses])
    cells = np.floor(losses / interval).astype(int)
    first = int(cells.min())
    of_upper, of_lower = np.zeros(cells.max() - first + 1), np.zeros(cells.max() - first + 1)
    np.add.at(of_upper, cells - first, upper)
    np.add.at(of_lower, cells - first, upper * np.exp(-losses))
    infinite = float(max(heights[-1], 1 - upper.sum()))
    return (_connect_the_dots(of_upper, of_lower, interval, first, 0.0, infinite),)


# --- composition ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Composition:
    """Several events' losses in one direction, each with its number of repetitions."""

    parts: Sequence[tuple[Losses, int]]

    @property
    def infinite(self) -> float:
        """The probability that any of the losses is infinite."""
        kept = sum(count * math.log1p(-min(part.infinite, 1 - 1e-16)) for part, count in self.parts)
        return -math.expm1(kept)

    @property
    def spread(self) -> float:
        """The standard deviation of the total loss, infinite losses aside."""
        return math.sqrt(sum(count * part.variance for part, count in self.parts))

    def log_moment(self, tilt: float) -> float:
        """log E[exp(tilt * total loss)]."""
        return sum(count * part.log_moment(tilt) for part, count in self.parts)

    def chernoff(self, delta: float) -> tuple[float, float]:
        """Least over tilts of the epsilon that a moment bound gives, and that tilt."""
        budget = delta - self.infinite
        if budget <= 0:
            return math.inf, 0.0
        return _least(lambda tilt: (self.log_moment(tilt) - math.log(budget)) / tilt)

    def tilt_for(self, epsilon: float) -> float:
        """The tilt whose moment bounds the probability of losses above epsilon best."""
        return _least(lambda tilt: self.log_moment(tilt) - tilt * epsilon)[1]

    def epsilon(self, delta: float) -> float:
        """The smallest epsilon with hockey-stick divergence at most delta; inf if there is none."""
        best, tilt = self.chernoff(delta)
        for _ in range(4):
            if not 0 < best < math.inf:
                break
            # Any tilt gives a valid answer. Where large losses are rare the moments say little and
            # the first answer is far below their bound: then a tilt that suits it gives a better.
            before, best = best, min(best, self._epsilon(delta, tilt, best))
            if best > 0.7 * before:
                break
            tilt = self.tilt_for(best)
        return best

    def _epsilon(self, delta: float, tilt: float, bound: float) -> float:
        """An epsilon read off the losses convolved at this tilt; ``bound`` is one known to hold."""
        pmf, error = self._convolved(tilt)
        log_scale = self.log_moment(tilt)
        for allowance in _ALLOWANCES:
            # Rounding may misplace `error` of the tilted mass. Above `floor` that is at most this
            # share of delta, which we count as infinite; below it we do not look.
            floor = (log_scale + math.log(error / (allowance * delta))) / tilt
            if floor > bound - 3 / tilt and allowance < _ALLOWANCES[-1]:
                continue
            final = pmf.untilted(tilt, log_scale, floor, delta)
            charged = final.infinite + self.infinite + allowance * delta
            value = final._replace(infinite=charged).epsilon(delta)
            if value > floor or floor <= 0:
                break
        return max(0.0, floor, value)

    def delta(self, epsilon: float) -> float:
        """The hockey-stick divergence at epsilon."""
        tilt = self.tilt_for(epsilon)
        pmf, error = self._convolved(tilt)
        values = pmf.values
        beyond = values > epsilon
        scale = self.log_moment(tilt) - tilt * values[beyond]
        probs = np.maximum(pmf.probs[beyond], 0.0) * -np.expm1(epsilon - values[beyond])
        misplaced = error * math.exp(min(0.0, self.log_moment(tilt) - tilt * epsilon))
        return float(min(1.0, self.infinite + np.exp(scale) @ probs + misplaced))

    def deltas(self, epsilons: Array, delta: float, tilt: float | None = None) -> Array:
        """Bounds on the hockey-stick divergence at many epsilons, sharpest where it is delta.

        Any ``tilt`` gives bounds that hold; that of the Chernoff bound suits delta best.
        """
        tilt = self.chernoff(delta)[1] if tilt is None else tilt
        pmf, error = self._convolved(tilt)
        log_scale = self.log_moment(tilt)
        positive = pmf.values > 0
        values = pmf.values[positive][::-1]
        # Where the exponent is cut off, `misplaced` is above 1 at this loss and all below it.
        scale = np.exp(np.minimum(log_scale - tilt * values, 600.0))
        above = scale * np.maximum(pmf.probs[positive][::-1], 0.0)
        beyond = np.concatenate([[0.0], np.cumsum(above)])
        kept = np.concatenate([[0.0], np.cumsum(above * np.exp(-values))])
        larger = np.searchsorted(-values, -epsilons)  # how many losses are
        inside = beyond[larger] * (1 + 1e-12) - np.exp(epsilons) * kept[larger]
        misplaced = error * np.exp(np.minimum(log_scale - tilt * epsilons, 50.0))
        bound = self.infinite + np.maximum(inside, 0.0) + misplaced
        return np.asarray(np.minimum(1.0, bound), np.float64)

    def _convolved(self, tilt: float) -> tuple[Losses, float]:
        """The tilted total loss, and a bound on how much of its mass rounding may misplace."""
        total, error = None, 0.0
        for part, count in self.parts:
            power, rounding = _power(part.tilted(tilt), count)
            if total is not None:
                power = Losses(*convolve(total, power, _TRUNCATION))
            total = power
            error += rounding + _EPS * math.log2(len(total.probs) + 2) ** 2 + 2 * _TRUNCATION
        assert total is not None
        return total._replace(infinite=0.0), error


def _power(losses: Losses, count: int) -> tuple[Losses, float]:
    """``losses`` added up ``count`` times, and a bound on the rounding error in total mass.

    As dp_accounting's own self-composition, but with the window's moment orders fitted to the
    count (the fixed ones make it hundreds of times too wide for a million steps) and with the error
    of the power read off the spectrum: one of size e in z becomes at most n |z|^(n-1) e in z^n.
    """
    if count == 1:
        return losses, 0.0
    probs, points = losses.probs, len(losses.probs)
    index = np.arange(points)
    mean = float(index @ probs)
    spread = math.sqrt(max(float((index - mean) ** 2 @ probs), 1e-12) * count)
    high = math.ceil(min(_reach(probs, count, spread, 1), (points - 1) * count))
    low = math.floor(max(-_reach(probs, count, spread, -1), 0))
    size = fft.next_fast_len(max(high - low + 1, points), real=True)
    spectrum = fft.rfft(probs, size)
    power = np.roll(fft.irfft(spectrum**count, size), -low)[: high - low + 1]
    strength = math.sqrt(2 * float((np.abs(spectrum) ** (2 * (count - 1))).sum()))
    error = _EPS * math.log2(size) * count * strength + _TRUNCATION
    return Losses(losses.interval, losses.lower * count + low, power, 0.0), error


def _reach(probs: Array, count: int, spread: float, sign: int) -> float:
    """The index beyond which the sum of ``count`` ones has half the truncation, by Chernoff.

    ``(count log E[exp(order index)] + log(2 / truncation)) / order`` falls and then rises with the
    order, and is least near ``8.4 / spread``: a walk downhill from there finds what a search of all
    orders would. An order whose moment overflows tells nothing; then all are searched.
    """
    index = np.arange(len(probs))

    @lru_cache
    def bound(k: int) -> float:
        order = sign * float(_CHERNOFF[k] / spread)
        with np.errstate(over="ignore"):
            log_moment = special.logsumexp(index * order, b=probs)
        value = sign * (count * log_moment + math.log(2 / _TRUNCATION)) / order
        return float(value) if math.isfinite(value) else math.inf

    best, last = len(_CHERNOFF) - 4, len(_CHERNOFF) - 1
    for step in (-1, 1):
        while 0 <= best + step <= last and bound(best + step) < bound(best):
            best += step
    near = [bound(k) for k in range(max(best - 1, 0), min(best + 1, last) + 1)]
    if math.inf in near:
        near = [bound(k) for k in range(last + 1)]
    return min(near)


def _least(objective: Callable[[float], float]) -> tuple[float, float]:
    """Minimum of a unimodal function of a positive tilt: a coarse sweep, then a finer one."""
    tilts = np.geomspace(1e-4, 1e6, 41)
    for _ in range(2):
        values = [objective(tilt) for tilt in tilts]
        best = int(np.argmin(values))
        least, at = values[best], float(tilts[best])
        tilts = np.geomspace(tilts[max(best - 1, 0)], tilts[min(best + 1, len(tilts) - 1)], 9)
    return least, at
