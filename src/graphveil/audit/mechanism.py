r"""Many draws of one release, beside the law that is charged.

Every part of a plan is released on its worst pair of values, the unit present and withheld, by the
code that a run uses. What comes out is reduced to one number, in units of what the unit can move,
and three things are looked at:

*Law*. Both empirical distribution functions lie within their band (DKW) around those of the event's
own law. Noise that is too small shows, and noise that is too large as well.

*Curve*. At epsilons and thresholds that the law fixes in advance, Clopper-Pearson bounds of delta
stay below the event's delta, in both directions.

*Epsilon*. At deltas and thresholds fixed in advance likewise: the epsilon that the draws prove. And
where the law is known but for its noise: the price of the most noise that the band allows.

A sound part fails the first two with probability ``FALSE_ALARM`` at most, all checks together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

import dp_accounting as dpa
import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse, special, stats
from torch import Tensor, nn

from graphveil import _observing, _validate
from graphveil._progress import Progress
from graphveil.audit.bounds import dkw_band, log_ratio, lower_rate, upper_rate
from graphveil.audit.results import Finding, Violation
from graphveil.grads.clipped import ClippedSum
from graphveil.grads.clipping import Flat, make_clipping
from graphveil.grads.step import PrivateStep
from graphveil.graph.private_rows import PrivateRows
from graphveil.mechanisms import Gaussian, GumbelTopK, Laplace
from graphveil.methods.parts import Part, Release, Steps
from graphveil.methods.plan import Plan
from graphveil.privacy.accounting import delta_of, epsilon_of, price
from graphveil.privacy.event_tree import parts as parts_of
from graphveil.privacy.event_tree import releases_raw
from graphveil.privacy.events import (
    GumbelTopKDpEvent,
    RevealedCountGaussianDpEvent,
    SampledGaussianDpEvent,
    composed,
)
from graphveil.rng import SecretStream, secret

FALSE_ALARM = 1e-4
DELTAS = (0.3, 0.2, 0.1, 0.05, 0.02, 1e-2, 3e-3, 1e-3, 1e-4)
"""At which epsilon is sought; fixed in advance."""

Array = NDArray[np.float64]
_CHECKS = 16  # of the law, at most, that share half of the false alarms
_REAL = 1000  # releases of either world that are made by calls of their own
_NUMBERS = 2e7  # random numbers that one world may take
_VALUES = 5000  # that are released by calls of their own
_CUTS = 2001  # points at which a law is looked at
_COINS = 20_000, 50  # examples, and pairs of batches, that show how batches are drawn
_WORLDS = (True, False)  # the unit is present, or withheld
_BY_CALLS = "in calls of their own"


# --- laws -----------------------------------------------------------------------------------------


class _Law(Protocol):
    """A law on the line."""

    def cdf(self, x: Array) -> Array:
        """The probability of (-inf, x]."""

    def ends(self) -> tuple[float, float]:
        """Beyond which next to nothing lies."""


@dataclass(frozen=True)
class _Noisy:
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
class _Count:
    """How many of ``trials`` happen."""

    trials: int
    chance: float

    def cdf(self, x: Array) -> Array:
        """The probability of (-inf, x]."""
        return np.asarray(stats.binom.cdf(np.floor(x), self.trials, self.chance))

    def ends(self) -> tuple[float, float]:
        """Beyond which nothing lies."""
        return -1.0, self.trials + 1.0


def _binomial(terms: int, rate: float) -> Array:
    return np.asarray(stats.binom.pmf(np.arange(terms + 1), terms, rate))


def _fixed(shift: float, noise: float, *, laplace: bool = False) -> _Noisy:
    return _Noisy(np.array([shift]), np.array([1.0]), noise, laplace)


def _delivered(terms: int, rate: float, delivery: float) -> tuple[Array, Array]:
    """The law of altered terms: +1 drawn and delivered, -1 drawn and not, 0 not drawn."""
    shifts = np.arange(-terms, terms + 1, dtype=np.float64)
    weights = np.zeros(2 * terms + 1)
    for drawn, weight in enumerate(_binomial(terms, rate)):
        if weight > 1e-14:
            weights[terms - drawn : terms + drawn + 1 : 2] += weight * _binomial(drawn, delivery)
    return shifts, weights


def _laws_of_step(event: dpa.DpEvent, delivery: float) -> tuple[_Noisy, _Noisy]:
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
        return _Noisy(shifts, laws[0], noise), _Noisy(-shifts, laws[1], noise)
    assert isinstance(event, SampledGaussianDpEvent)
    shifts, altered = _delivered(event.altered, event.rate, delivery)
    present = np.convolve(altered, _binomial(event.removed, event.rate))
    down, withheld = _delivered(event.altered, event.rate, 0.0)
    up = np.arange(len(present)) + shifts[0]
    return (
        _Noisy(up, present, event.noise_multiplier),
        _Noisy(down, withheld, event.noise_multiplier),
    )


# --- what is drawn --------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _Trial:
    """One release on its worst pair: its event, its laws and two ways to draw it.

    ``draw(present, count, rng)`` gives numbers of the laws, as many as it can afford; ``call`` the
    same by one call of the mechanism each. ``check`` looks at what is not in that number.
    ``rescale`` gives the event of the whole part with so many times the noise, where the pair is
    as bad as the event says.
    """

    event: dpa.DpEvent
    laws: tuple[_Law, _Law]
    draw: Callable[[bool, int, SecretStream], Array]
    call: Callable[[bool, int, SecretStream], Array]
    check: Callable[[SecretStream], Iterable[Violation]] = lambda rng: ()
    rescale: Callable[[float], dpa.DpEvent] | None = None


def _try_additive(part: Release, mechanism: Gaussian | Laplace) -> _Trial:
    """0, and a vector of the sensitivity's length: along the diagonal (l2), or one entry (l1)."""
    event: Any = mechanism.event()
    noise, laplace = event.noise_multiplier, isinstance(mechanism, Laplace)
    direction = np.array([1.0]) if laplace else np.full(4, 0.5)

    def release(present: bool, rows: int, rng: SecretStream) -> Array:
        value = np.zeros((rows, len(direction))) + present * mechanism.sensitivity * direction
        return np.asarray(mechanism.release(value, rng))

    def draw(present: bool, count: int, rng: SecretStream) -> Array:
        return release(present, count, rng) @ direction / mechanism.sensitivity

    def call(present: bool, count: int, rng: SecretStream) -> Array:
        return np.concatenate([draw(present, 1, rng) for _ in range(count)])

    def check(rng: SecretStream) -> Iterator[Violation]:
        coordinates = release(False, 10 * _REAL, rng).ravel() / mechanism.sensitivity
        law = _fixed(0.0, noise, laplace=laplace)
        yield from _compare("noise of single coordinates", coordinates, law)

    return _Trial(
        event=event,
        laws=(_fixed(1.0, noise, laplace=laplace), _fixed(0.0, noise, laplace=laplace)),
        draw=draw,
        call=call,
        check=check,
        rescale=lambda factor: replace(part, mechanism=_louder(mechanism, factor)).event,
    )


def _louder(mechanism: Any, factor: float) -> Any:
    return replace(mechanism, noise_multiplier=mechanism.noise_multiplier * factor)


class _Keep(_observing.Observer):
    """Keeps what inner mechanisms of one kind were given and what they released."""

    def __init__(self, kind: type) -> None:
        self.kind = kind
        self.pairs: list[tuple[Array, Array]] = []

    def release(self, mechanism: Any, value: Any, result: Any) -> Any:
        """Nothing is changed."""
        if isinstance(mechanism, self.kind):
            self.pairs.append((np.atleast_2d(value), np.atleast_2d(result)))
        return result

    @property
    def results(self) -> Array:
        return np.concatenate([result for _, result in self.pairs])


def _multiply(mechanism: Any, groups: int) -> Any:
    """As many releases in one: more rows, and every row with the noise it had."""
    if isinstance(mechanism, PrivateRows):
        noise = mechanism.noise_multiplier / math.sqrt(groups)
        return replace(mechanism, rows=mechanism.rows * groups, noise_multiplier=noise)
    return replace(mechanism, rows=mechanism.rows * groups)


def _release_rows(mechanism: Any, row: Array, rng: SecretStream, kind: type) -> _Keep:
    """The mechanism on scores that are the same in every row."""
    scores = np.tile(row, (mechanism.rows, 1))
    keep = _Keep(kind)
    with _observing.observe(keep):
        mechanism.release(
            sparse.csr_array(scores) if isinstance(mechanism, PrivateRows) else scores, rng
        )
    return keep


def _by_groups(rows: int, nodes: int, release: Callable[[bool, int, SecretStream], Array]) -> Any:
    """``draw`` and ``call`` for a mechanism of many rows: so many releases at a time."""

    def draw(present: bool, count: int, rng: SecretStream) -> Array:
        most, at_once = max(1, int(_NUMBERS / (rows * nodes))), max(1, 2**21 // (rows * nodes))
        count = min(count, most)
        sizes = [min(at_once, count - start) for start in range(0, count, at_once)]
        return np.concatenate([release(present, size, rng) for size in sizes])

    def call(present: bool, count: int, rng: SecretStream) -> Array:
        count = min(count, max(1, int(_NUMBERS / 10 / (rows * nodes))))
        return np.concatenate([release(present, 1, rng) for _ in range(count)])

    return {"draw": draw, "call": call}


def _try_values(part: Release, mechanism: PrivateRows) -> _Trial:
    """Rows with all their weight on one node, and rows with all of it on another."""
    event: Any = mechanism.event()
    rows, nodes = mechanism.rows, max(mechanism.k, 2)
    apart = np.zeros(nodes)
    apart[:2] = mechanism.bound, -mechanism.bound

    def release(present: bool, groups: int, rng: SecretStream) -> Array:
        row = np.maximum(apart if present else -apart, 0.0)
        noisy = _release_rows(_multiply(mechanism, groups), row, rng, Gaussian).results
        along = (noisy @ apart).reshape(groups, rows).sum(1)
        return along / (2 * rows * mechanism.bound**2) + 0.5

    return _Trial(
        event=event,
        laws=(_fixed(1.0, event.noise_multiplier), _fixed(0.0, event.noise_multiplier)),
        rescale=lambda factor: replace(part, mechanism=_louder(mechanism, factor)).event,
        **_by_groups(rows, nodes, release),
    )


def _try_names(mechanism: PrivateRows | GumbelTopK) -> _Trial:
    """One node at the bound and all others at 0, and the other way round; how often it is first."""
    event = mechanism.event()
    leaves: list[Any] = [leaf for leaf, _ in parts_of(event)]
    noise = next(leaf.noise_multiplier for leaf in leaves if isinstance(leaf, GumbelTopKDpEvent))
    rows, k = mechanism.rows, mechanism.k
    nodes = max(k + 1, 3)
    values = isinstance(mechanism, PrivateRows) and mechanism.value_noise is not None

    def row(present: bool) -> Array:
        first = np.arange(nodes) == 0
        return mechanism.bound * (first if present else ~first).astype(np.float64)

    def chance(present: bool, places: int) -> float:
        """That the node is among the first ``places``."""
        own, other = (1.0, math.exp(-1 / noise)) if present else (math.exp(-1 / noise), 1.0)
        missed = 1.0
        for place in range(places):
            left = (nodes - 1 - place) * other
            missed *= left / (own + left)
        return 1 - missed

    def release(present: bool, groups: int, rng: SecretStream) -> Array:
        kept = _release_rows(_multiply(mechanism, groups), row(present), rng, GumbelTopK)
        return (kept.results[:, 0] == 0).reshape(groups, rows).sum(1).astype(np.float64)

    def check(rng: SecretStream) -> Iterator[Violation]:
        groups = max(1, (_VALUES if values else 20 * _REAL) // (rows * k))
        many = _multiply(mechanism, groups)
        for present in _WORLDS:
            chosen = _release_rows(many, row(present), rng, GumbelTopK).results
            hits = int((chosen == 0).any(1).sum())
            yield from _compare_rate(
                f"a node among the first {k}", hits, len(chosen), chance(present, k)
            )
        for kind, leaf in ((Gaussian, dpa.GaussianDpEvent), (Laplace, dpa.LaplaceDpEvent)):
            for paid in (paid for paid in leaves if isinstance(paid, leaf)):
                kept = _release_rows(many, row(True), rng, kind).pairs
                noises = np.concatenate([(result - value).ravel() for value, result in kept])
                unit = mechanism.bound * (math.sqrt(rows * k) if kind is Gaussian else 1.0)
                law = _fixed(0.0, paid.noise_multiplier, laplace=kind is Laplace)
                yield from _compare("noise of values", noises / unit, law)

    laws = _Count(rows, chance(True, 1)), _Count(rows, chance(False, 1))
    # Values one by one are slow: so many numbers as if a row of them were long.
    drawing = _by_groups(rows, nodes * (400 * k if values else 1), release)
    return _Trial(event=event, laws=laws, check=check, **drawing)


# --- steps ----------------------------------------------------------------------------------------


class _Crafted:
    """Loss terms whose gradients, once clipped, all point one way: those of one unit.

    ``removed`` come first, then ``altered``; all others have no gradient. A message that is not
    delivered leaves an altered term as it is without the unit.
    """

    def __init__(self, part: Steps, present: bool, rng: SecretStream) -> None:
        self.delivery, self.rng, self.present = part.delivery, rng, present
        touched = part.removed + part.altered
        self.signs = torch.zeros(max(touched + 2, part.population if part.batch else 0))
        self.signs[: part.removed] = float(present)
        self.altered = slice(part.removed, touched)
        self.signs[self.altered] = 1.0 if present else -1.0

    def __len__(self) -> int:
        return len(self.signs)

    def begin(self, step: int) -> None:
        """Throw the coins of a step."""
        if self.present and self.delivery < 1:
            coins = self.rng.bernoulli(self.delivery, len(self.signs[self.altered]))
            self.signs[self.altered] = torch.from_numpy(2.0 * coins - 1.0).float()

    def batches(self, drawn: Tensor) -> Iterator[tuple[Tensor]]:
        """One batch; gradients are far beyond every bound."""
        yield (1e6 * self.signs[drawn].double()[:, None] * torch.tensor([0.6, 0.8]).double(),)


class _Blank:
    """Examples that are only drawn."""

    def __init__(self, count: int, delivery: float = 1.0) -> None:
        self.count, self.delivery = count, delivery

    def __len__(self) -> int:
        return self.count

    def batches(self, drawn: Tensor) -> Iterator[Any]:
        yield from ()


def _make_step(part: Steps, examples: Any, rng: SecretStream) -> PrivateStep:
    """A step of a run, on a module whose gradients are its inputs."""
    module = nn.Linear(2, 1, bias=False, dtype=torch.float64)
    plain = part.clipping in ("flat", "automatic") and isinstance(part.max_grad_norm, (int, float))
    clipping = make_clipping(part.clipping, part.max_grad_norm) if plain else Flat(1.0)
    clipped = ClippedSum(module, lambda module, batch: module(*batch).squeeze(-1), clipping)
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    return PrivateStep(clipped, optimizer, examples, sampling=part.sampling, rng=rng)


def _try_steps(part: Steps, progress: Progress | None) -> _Trial:
    """Terms of the unit that all point one way, and none or the other way without it."""
    event = part.sampling.event(part.population)
    removed, touched = part.removed, part.removed + part.altered
    terms = part.population if part.batch else touched

    def count_drawn(count: int, rng: SecretStream) -> NDArray[np.bool_]:
        if part.batch is None:
            return rng.bernoulli(part.rate, count * touched).reshape(count, touched)
        keys = rng.gumbel((count, terms))
        least = np.partition(keys, terms - part.batch, axis=1)[:, terms - part.batch]
        return keys[:, :touched] >= least[:, None]

    def draw(present: bool, count: int, rng: SecretStream) -> Array:
        count = max(1, min(count, int(_NUMBERS / max(terms, 1))))
        at_once = max(1, 2**21 // max(terms, 1))
        noise = _make_step(part, _Blank(1, part.delivery), rng)._noise
        totals = []
        for start in range(0, count, at_once):
            drawn = count_drawn(min(at_once, count - start), rng)
            ours = drawn[:, removed:].sum(1, dtype=np.float64)
            if not present:
                totals.append(-ours)
                continue
            if part.delivery < 1:
                coins = rng.bernoulli(part.delivery, drawn[:, removed:].size)
                signs = 2.0 * coins.reshape(len(drawn), -1) - 1.0
                ours = (drawn[:, removed:] * signs).sum(1)
            totals.append(ours + drawn[:, :removed].sum(1))
        return np.asarray(noise.release(np.concatenate(totals), rng))

    def call(present: bool, count: int, rng: SecretStream) -> Array:
        examples = _Crafted(part, present, rng)
        step = _make_step(part, examples, rng)
        bound = next(iter(step.clipped.scales.values()))
        weight = next(step.module.parameters())
        direction = torch.tensor([0.6, 0.8], dtype=torch.float64)
        sums = np.empty(count)
        for place in range(count) if progress is None else progress(range(count)):
            before = weight.detach().clone()
            step()
            moved = (before - weight.detach()).flatten() @ direction
            sums[place] = float(moved) * part.rate * len(examples) / bound
        return sums

    # A message that may not be delivered is charged by a bound, not by the law of this pair.
    exact = part.delivery == 1 and part.batch is None
    return _Trial(
        event=event,
        laws=_laws_of_step(event, part.delivery),
        draw=draw,
        call=call,
        check=lambda rng: _check_batches(part, event, rng),
        rescale=(lambda factor: _louder(part, factor).event) if exact else None,
    )


def _check_batches(part: Steps, event: Any, rng: SecretStream) -> Iterator[Violation]:
    """Every batch is drawn afresh, at the rate that is charged."""
    size, pairs = part.population if part.batch else _COINS[0], _COINS[1]
    step = _make_step(part, _Blank(size, part.delivery), rng)
    sizes, common = [], 0
    for _ in range(pairs):
        one, other = (set(step._draw().tolist()) for _ in range(2))
        sizes += [len(one), len(other)]
        common += len(one & other)
    if part.batch is None:
        rate = event.rate
        yield from _compare_rate("drawn terms", sum(sizes), 2 * pairs * size, rate)
        yield from _compare_rate("terms in both of two batches", common, pairs * size, rate**2)
        return
    if set(sizes) != {event.batch}:
        sizes_seen = f"{min(sizes)} to {max(sizes)}"
        yield Violation(rule="batches of another size", value=sizes_seen, allowed=str(event.batch))
    # Hoeffding's inequality, which holds for draws without replacement too.
    share = common / (pairs * event.batch)
    band = dkw_band(pairs * event.batch, FALSE_ALARM / 2 / _CHECKS)
    if abs(share - event.batch / size) > band:
        allowed = f"{event.batch / size:.5g} +- {band:.2g}"
        rule = "the share of a batch that is in another one is not that of fresh batches"
        yield Violation(rule=rule, value=f"{share:.5g}", allowed=allowed)


# --- comparisons ----------------------------------------------------------------------------------


def _compare(what: str, numbers: Array, law: _Law) -> Iterator[Violation]:
    """The empirical distribution function lies in its band around ``law``."""
    cuts = _cuts(law)
    empirical = np.searchsorted(np.sort(numbers), cuts, side="right") / len(numbers)
    gaps = np.abs(empirical - law.cdf(cuts))
    band = dkw_band(len(numbers), FALSE_ALARM / 2 / _CHECKS)
    if gaps.max() > band:
        yield Violation(
            rule=f"{what}: not the law that is charged",
            value=f"{gaps.max():.4f} off at {cuts[gaps.argmax()]:.3g}",
            allowed=f"{band:.4f}",
        )


def _compare_rate(what: str, count: int, trials: int, rate: float) -> Iterator[Violation]:
    """A count is one that the rate allows."""
    level = 1 - FALSE_ALARM / 4 / _CHECKS
    low, high = lower_rate(count, trials, level), upper_rate(count, trials, level)
    if not low <= rate * (1 + 1e-12) or not rate * (1 - 1e-12) <= high:
        yield Violation(
            rule=f"{what}: not the rate that is charged",
            value=f"{count / trials:.6g} of {trials:,}",
            allowed=f"{rate:.6g}",
        )


def _cuts(*laws: _Law) -> Array:
    """Thresholds that the laws fix; between whole numbers for counts."""
    low, high = min(law.ends()[0] for law in laws), max(law.ends()[1] for law in laws)
    if isinstance(laws[0], _Count):
        return np.arange(low, high) + 0.5
    return np.linspace(low, high, _CUTS)


@dataclass(frozen=True)
class _Test:
    """Two events of the line, by the laws and as counted, for every threshold.

    The unit present against withheld reads upper tails, the other direction lower ones.
    """

    expected: tuple[Array, Array]
    counts: tuple[NDArray[np.int64], NDArray[np.int64]]
    trials: tuple[int, int]

    def rates(
        self, score: Callable[[Array, Array], Array], confidence: float
    ) -> tuple[float, float]:
        """Bounds of both, from below and from above, at the threshold that promises most."""
        planned = [np.rint(p * n) for p, n in zip(self.expected, self.trials, strict=True)]
        with np.errstate(divide="ignore", invalid="ignore"):
            scores = score(
                lower_rate(planned[0], self.trials[0], confidence),
                upper_rate(planned[1], self.trials[1], confidence),
            )
        best = int(np.argmax(np.where(np.isnan(scores), -np.inf, scores)))
        return (
            float(lower_rate(self.counts[0][best], self.trials[0], confidence)),
            float(upper_rate(self.counts[1][best], self.trials[1], confidence)),
        )


def _make_tests(laws: tuple[_Law, _Law], numbers: tuple[Array, Array]) -> tuple[_Test, _Test]:
    cuts = _cuts(*laws)
    below = [law.cdf(cuts) for law in laws]
    counts = [np.searchsorted(np.sort(one), cuts, side="right") for one in numbers]
    sizes = len(numbers[0]), len(numbers[1])
    upper = _Test((1 - below[0], 1 - below[1]), (sizes[0] - counts[0], sizes[1] - counts[1]), sizes)
    return upper, _Test((below[1], below[0]), (counts[1], counts[0]), sizes[::-1])


def _check_curve(event: dpa.DpEvent, tests: tuple[_Test, _Test]) -> Iterator[Violation]:
    """No delta is shown to be larger than the event's, in either direction."""
    level = 1 - FALSE_ALARM / 2 / (4 * len(DELTAS))
    for delta in DELTAS:
        epsilon = epsilon_of(event, delta)
        odds = math.exp(min(epsilon, 700.0))
        paid = min(delta, delta_of(event, epsilon)) if epsilon else delta_of(event, 0.0)
        for test, direction in zip(tests, ("present", "withheld"), strict=True):
            first, second = test.rates(lambda p, q, odds=odds: p - odds * q, level)  # type: ignore[misc]
            if first - odds * second > paid * (1 + 1e-6) + 1e-12:
                yield Violation(
                    rule=f"delta at epsilon {epsilon:.4g} is larger than paid for ({direction})",
                    value=f"{first - odds * second:.4g} or more",
                    allowed=f"{paid:.4g}",
                )


def _prove_epsilon(
    event: dpa.DpEvent, tests: tuple[_Test, _Test], confidence: float
) -> list[dict[str, float]]:
    """At every delta of the grid: the epsilon that is proven, and the event's."""
    level = 1 - (1 - confidence) / (4 * len(DELTAS))
    figures = []
    for delta in DELTAS:
        priced = epsilon_of(event, delta)
        proven = 0.0
        for test in tests:
            rates = test.rates(lambda p, q, delta=delta: np.log(p - delta) - np.log(q), level)  # type: ignore[misc]
            proven = max(proven, log_ratio(*rates, delta))
        if priced > 0:
            figures.append(
                {"epsilon": proven, "delta": delta, "ratio": proven / priced, "priced": priced}
            )
    return figures


def _most_noise(
    laws: tuple[_Law, _Law], numbers: tuple[Array, Array], confidence: float
) -> float | None:
    """How many times the noise charged there can be: the largest factor that both bands allow."""
    allowed = None
    cuts = _cuts(*laws)[::10]
    empirical = [np.searchsorted(np.sort(one), cuts, side="right") / len(one) for one in numbers]
    bands = [dkw_band(len(one), (1 - confidence) / 2) for one in numbers]
    for factor in np.geomspace(0.5, 8.0, 556):
        louder = [replace(law, noise=law.noise * factor) for law in laws]  # type: ignore[type-var, attr-defined]
        if all(
            np.abs(seen - law.cdf(cuts)).max() <= band
            for seen, law, band in zip(empirical, louder, bands, strict=True)
        ):
            allowed = float(factor) * 1.005
    return allowed


# --- parts and plans ------------------------------------------------------------------------------


def audit_part(
    part: Part,
    *,
    delta: float = 1e-5,
    draws: int = 100_000,
    confidence: float = 0.95,
    rng: SecretStream | None = None,
    progress: Progress | None = None,
) -> Finding:
    """Draw one release of a part, ``draws`` times in either world, and compare with its event.

    ``epsilon_at_least`` is for the whole part, at ``delta``: what one release proves at a larger
    delta or, where the law is known but for its noise, the price of all releases with the most
    noise that the draws allow (as sharp as prices are, a thousandth). ``figures`` has the largest
    share of the event's epsilon that one release proves by counts alone: epsilon, delta, ratio.

    No data is touched. A fixed ``rng`` serves tests.
    """
    _validate.integer("draws", draws, "[100, 1e9]")
    _validate.number("confidence", confidence, "(0, 1)")
    _validate.number("delta", delta, "(0, 1)")
    stream = secret() if rng is None else rng
    trial = _try(part, progress)
    if trial is None:
        return Finding(kind="mechanism", name=part.name, holds=True, note=_excuse(part))
    numbers = trial.draw(True, draws, stream), trial.draw(False, draws, stream)
    tests = _make_tests(trial.laws, numbers)
    violations = [*trial.check(stream)]
    for present, law, batch in zip(_WORLDS, trial.laws, numbers, strict=True):
        world = "present" if present else "withheld"
        violations += _compare(world, batch, law)
        single = trial.call(present, min(_REAL, draws), stream)
        violations += _compare(f"{world}, {_BY_CALLS}", single, law)
    violations += _check_curve(trial.event, tests)
    proven = _prove_epsilon(trial.event, tests, confidence)
    at_least = max((one["epsilon"] for one in proven if one["delta"] >= delta), default=0.0)
    bound, figures = "Clopper-Pearson at fixed thresholds", _best(proven)
    noise = None
    if trial.rescale is not None and not violations:
        noise = _most_noise(trial.laws, numbers, confidence)
    if noise is not None and trial.rescale is not None:
        known = epsilon_of(trial.rescale(noise), delta)
        figures |= {"noise_at_most": noise, "epsilon_by_law": known, "delta_by_law": delta}
        figures |= {"epsilon_of_part": epsilon_of(part.event, delta)}
        if known > at_least:
            at_least, bound = known, "known law, noise by DKW"
    return Finding(
        kind="mechanism",
        name=part.name,
        holds=not violations,
        epsilon_at_least=at_least,
        confidence=confidence,
        trials=min(len(numbers[0]), len(numbers[1])),
        bound=bound,
        figures=figures,
        violations=tuple(replace(violation, part=part.name) for violation in violations),
    )


def _best(proven: list[dict[str, float]]) -> dict[str, float]:
    return dict(max(proven, key=lambda one: one["ratio"])) if proven else {}


def _try(part: Part, progress: Progress | None) -> _Trial | None:
    """How a part is put on trial; None where it cannot be, or promises nothing."""
    if releases_raw(part.event):
        return None
    if isinstance(part, Steps):
        return _try_steps(part, progress)
    mechanism = part.mechanism if isinstance(part, Release) else None
    if isinstance(part, Release) and isinstance(mechanism, (Gaussian, Laplace)):
        return _try_additive(part, mechanism)
    if isinstance(part, Release) and isinstance(mechanism, PrivateRows) and mechanism.how == "gm":
        return _try_values(part, mechanism)
    if isinstance(mechanism, (PrivateRows, GumbelTopK)):
        return _try_names(mechanism)
    return None


def _excuse(part: Part) -> str:
    if releases_raw(part.event):
        return "nothing is promised, and nothing was drawn"
    return (
        f"a {part.kind} of this kind has no single release to draw: see the replay and the canaries"
    )


def audit_plan(
    plan: Plan,
    *,
    draws: int = 100_000,
    confidence: float = 0.95,
    rng: SecretStream | None = None,
    progress: Progress | None = None,
) -> list[Finding]:
    """All parts of a plan, by :func:`audit_part` at the plan's delta, and what the plan costs.

    A plan on a secret sample of the units is held to ln(1 + q (exp(epsilon) - 1)) of what its parts
    cost at delta / q. There ``epsilon_at_least`` of parts is left out: it is for those who take
    part.
    """
    rate = plan.sampled_at
    delta = min(plan.delta / rate, 0.5)
    findings = []
    for part in plan.parts if progress is None else progress(plan.parts):
        finding = audit_part(part, delta=delta, draws=draws, confidence=confidence, rng=rng)
        if rate < 1 and finding.epsilon_at_least is not None:
            inside = {**finding.figures, "epsilon_inside": finding.epsilon_at_least}
            finding = replace(finding, epsilon_at_least=None, confidence=None, figures=inside)
        findings.append(finding)
    return [*findings, _audit_price(plan, findings)]


def _audit_price(plan: Plan, findings: list[Finding]) -> Finding:
    """The certificate's epsilon is neither below what the parts cost nor below what they prove."""
    whole, rate = composed(*(part.event for part in plan.parts)), plan.sampled_at
    claimed, violations = plan.epsilon, []
    least = _least_price(whole, rate, plan.delta)
    if not claimed >= least * (1 - 1e-6):
        rule = "the certificate is below the price of its parts"
        violations.append(Violation(rule=rule, value=f"{claimed:.6g}", allowed=f"{least:.6g}"))
    for finding in findings:
        proven = finding.epsilon_at_least
        if proven is not None and proven > claimed * (1 + 1e-3) + 1e-9:
            rule = f"part '{finding.name}' proves more than the certificate says"
            violations.append(Violation(rule=rule, value=f"{proven:.6g}", allowed=f"{claimed:.6g}"))
    return Finding(
        kind="mechanism",
        name="price of the plan",
        holds=not violations,
        figures={} if math.isinf(claimed) else {"epsilon": claimed, "least": least},
        violations=tuple(violations),
    )


def _least_price(whole: dpa.DpEvent, rate: float, delta: float) -> float:
    """What a secret sample makes of the price of ``whole``."""
    if rate == 1:
        return price(whole, delta).epsilon
    if delta >= rate:
        return 0.0
    inside = price(whole, delta / rate).epsilon
    return float(np.logaddexp(math.log1p(-rate), math.log(rate) + inside))
