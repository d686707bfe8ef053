"""Whether recorded noise is what is charged: on every coordinate, of its size, fresh each time.

All noise is turned into normal scores, which are independent and standard where the code is sound.
Looked at are sums of their squares, which have a chi-square law: of a part, of 1, 2, 4, ...
releases in a row, of each tensor, of blocks of 64, 16 and 4 coordinates over all releases, of
columns, and of coordinates on which there is nothing to hide. So noise that is too small in a
corner is not lost in the crowd. And inner products of one noise with an earlier one, over the
earlier one's length, which are standard normal: of successive releases, rows, columns and halves.
All tests of a run share one false alarm in 10^9 (union bound).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

from graphveil.audit.results import Violation
from graphveil.mechanisms import GumbelTopK, Laplace

FALSE_ALARM = 1e-9
"""Of all statistical tests of a run's noise together."""

Array = NDArray[np.float64]
_BLOCKS = (4, 16, 64)  # coordinates
_LAGS = (1, 2, 3)  # releases
_LEAST = 2  # coordinates, for an inner product to say anything


@dataclass(frozen=True)
class Noises:
    """The releases of a part, the scale that is charged of each, and the sizes of its tensors."""

    part: str
    released: Sequence[Any]
    scale: Callable[[Any], float]
    sizes: Sequence[int] = ()


@dataclass(frozen=True)
class _Test:
    """How likely a result is that is as extreme as the one seen, and what it would mean."""

    chance: float
    rule: str
    part: str
    value: str
    allowed: str


def check_noise(parts: Iterable[Noises]) -> list[Violation]:
    """All rules of this file; of each rule and part the least likely result is told."""
    violations: list[Violation] = []
    tests: list[_Test] = []
    count = 0
    seen: dict[bytes, str] = {}
    for noises in parts:
        scores = []
        for number, released in enumerate(noises.released):
            if isinstance(released.mechanism, GumbelTopK):
                continue
            noise = (released.result - released.value).astype(np.float64)
            violations += _check_single(noises.part, number, noise, seen)
            scores.append((released.value == 0, _normalise(noise, released, noises.scale)))
        for test, tried in _list_tests(noises, scores):
            tests.append(test)
            count += tried
    alarms = sorted(
        (test for test in tests if test.chance * count < FALSE_ALARM), key=lambda test: test.chance
    )
    first = {(test.part, test.rule): test for test in reversed(alarms)}
    return violations + [
        Violation(rule=test.rule, part=test.part, value=test.value, allowed=test.allowed)
        for test in first.values()
    ]


def _check_single(
    part: str, number: int, noise: Array, seen: dict[bytes, str]
) -> Iterator[Violation]:
    """No coordinate without noise, and no noise, or its mirror image, a second time."""
    if np.any(noise == 0):
        yield Violation(
            rule="a coordinate has no noise",
            part=part,
            step=number,
            value=f"{int((noise == 0).sum())} of {noise.size}",
            allowed="0",
        )
    if noise.size <= 3:
        return
    rounded = np.round(noise, 12) + 0.0  # no negative zeros
    digest, mirrored = (hashlib.blake2b(one.tobytes()).digest() for one in (rounded, 0.0 - rounded))
    for known, rule in (
        (digest, "noise is used a second time"),
        (mirrored, "noise is used a second time, negated"),
    ):
        if known in seen:
            yield Violation(rule=rule, part=part, step=number, value=f"that of {seen[known]}")
    seen[digest] = f"part '{part}', step {number}"


def _normalise(noise: Array, released: Any, scale: Callable[[Any], float]) -> Array:
    """As standard normal numbers."""
    scaled: Array = noise / scale(released.mechanism)
    if isinstance(released.mechanism, Laplace):
        scaled = -np.sign(scaled) * special.ndtri(np.exp(-np.abs(scaled)) / 2)
    return scaled


def _list_tests(noises: Noises, scores: Sequence[tuple[Any, Array]]) -> Iterator[tuple[_Test, int]]:
    """Tests, and of how many each is the least likely one."""
    scores = [one for one in scores if one[1].size]
    if not scores:
        return
    flat = [score.ravel() for _, score in scores]
    yield from _of_spans(noises, flat)
    idle = [score[zero] for zero, score in scores if np.any(zero)]
    if idle:
        size = sum(one.size for one in idle)
        energy = sum(float(np.sum(one**2)) for one in idle)
        yield _of_sizes(noises, "where the value is 0", [energy], [size])
    shapes: dict[tuple[int, ...], list[Array]] = {}
    for _, score in scores:
        shapes.setdefault(score.shape, []).append(score)
    for shape, alike in shapes.items():
        stack = np.stack(alike)
        yield from _of_blocks(noises, stack.reshape(len(stack), -1))
        if len(shape) == 2:
            squares = np.sum(stack**2, axis=(0, 1))
            yield _of_sizes(noises, "in a column", squares, [len(stack) * shape[0]] * shape[1])
        yield from _of_products(noises, stack)


def _of_spans(noises: Noises, flat: Sequence[Array]) -> Iterator[tuple[_Test, int]]:
    """Single releases, two that follow each other, four, ..., and all."""
    squares = np.array([np.sum(score**2) for score in flat])
    freedoms = np.array([float(score.size) for score in flat])
    span = 1
    while True:
        starts = np.arange(0, len(flat), span)
        where = "in a release" if span == 1 else f"in {span} releases, one after the other"
        if span >= len(flat):
            where = "over all of it"
        sums = [np.add.reduceat(one, starts) for one in (squares, freedoms)]
        yield _of_sizes(noises, where, *sums)
        if span >= len(flat):
            return
        span *= 2


def _of_blocks(noises: Noises, stack: Array) -> Iterator[tuple[_Test, int]]:
    """Tensors, and blocks within them, over all releases of one shape."""
    count, width = stack.shape
    if not width:
        return
    energies = np.sum(stack**2, axis=0)
    sizes = [size for size in noises.sizes if size]
    left = width - sum(sizes)
    sizes = [width] if not sizes or left < 0 else [*sizes, *([left] if left else [])]
    ends = np.cumsum(sizes)
    for most in (*_BLOCKS, width):
        starts = np.concatenate(
            [np.arange(end - size, end, most) for size, end in zip(sizes, ends, strict=True)]
        )
        lengths = np.diff(starts, append=width)
        where = f"in a block of {most} coordinates" if most < width else "in a tensor"
        yield _of_sizes(noises, where, np.add.reduceat(energies, starts), count * lengths)


def _of_sizes(noises: Noises, where: str, squares: Any, freedoms: Any) -> tuple[_Test, int]:
    """The least likely of some sums of squares."""
    squares, freedoms = np.asarray(squares, float), np.asarray(freedoms, float)
    chances = np.minimum(stats.chi2.cdf(squares, freedoms), stats.chi2.sf(squares, freedoms))
    least = int(np.argmin(chances))
    value = f"{math.sqrt(squares[least] / max(freedoms[least], 1.0)):.4g} of it"
    test = _Test(
        chance=2 * float(chances[least]),
        rule="noise has another size than is charged",
        part=noises.part,
        value=f"{value}, {where} ({int(freedoms[least])} numbers)",
        allowed="1",
    )
    return test, len(chances)


def _of_products(noises: Noises, stack: Array) -> Iterator[tuple[_Test, int]]:
    """Inner products of noises with earlier ones, single and added up."""
    flat = stack.reshape(len(stack), -1)
    for lag in _LAGS:
        if len(flat) > lag:
            yield from _of_pairs(noises, "releases", flat[lag:], flat[:-lag])
    half = flat.shape[1] // 2
    yield from _of_pairs(noises, "halves", flat[:, :half], flat[:, half : 2 * half])
    if stack.ndim == 3:
        for one, what in ((stack, "rows"), (stack.transpose(0, 2, 1), "columns")):
            width = one.shape[2]
            later, earlier = one[:, 1:].reshape(-1, width), one[:, :-1].reshape(-1, width)
            yield from _of_pairs(noises, what, later, earlier)


def _of_pairs(
    noises: Noises, what: str, later: Array, earlier: Array
) -> Iterator[tuple[_Test, int]]:
    if not len(later) or later.shape[1] < _LEAST:
        return
    products = np.einsum("ij,ij->i", later, earlier) / np.linalg.norm(earlier, axis=1)
    products = np.append(products, products.sum() / math.sqrt(len(products)))
    chances = 2 * special.ndtr(-np.abs(products))
    least = int(np.argmin(chances))
    test = _Test(
        chance=float(chances[least]),
        rule=f"noises of successive {what} are not independent",
        part=noises.part,
        value=f"{products[least]:.4g} standard deviations from 0",
        allowed=f"{-special.ndtri(FALSE_ALARM / 2):.2g} or a little more",
    )
    yield test, len(chances)
