"""Two sources of random numbers, kept apart.

*Seeded*: weights, splits, priorities, partitions. These may be public; the same seed gives the
same numbers. :func:`seeded`.

*Secret*: noise and batch coins. A guarantee holds only against somebody who cannot guess these, so
no user's seed comes near them. :func:`secret`.

The secret stream asks the operating system for every bit (``os.urandom``, a cryptographic generator
on every supported system) and keeps nothing between two draws: there is no state to save, to read
back or to repeat after a fork. numpy's generators are faster but not cryptographic; the state of
its default one can be computed from its output, and with it all noise, past and to come.

**Shapes of noise.** Behind every number stands a real uniform number, whose bits are drawn as far
as they decide something. A normal or Laplace number comes out rounded down to a public grid. Two
draws decide which cell of the grid it is:

1. *Which stretch* of 2^-21 of the scale, or down to half of that. The inverse of the distribution
   function, in floats, says so, unless it comes out within 2^-20 of a stretch's end, which is many
   times its error; then 256 bits of the uniform number are compared with the exact probability.
2. *Which cell of the stretch*. A second uniform number of 64 bits, which has nothing to do with the
   first, tilted by less than one part in 2^17 towards the likelier end.

So each cell within 13 standard deviations (normal) or 88 scales (Laplace) has the probability that
a real number gives it, up to a factor 1 +- 2^(b - 61), where a stretch is 2^b cells long (in
mechanisms at most 2^16); what lies beyond has probability less than 2^-125. A Gumbel number is a
float within 2^-44 of a real one. docs/guarantees/randomness.md has the proof.

There is no rejection loop whose length could be timed (Jin et al. 2022). Every number takes 64 bits
for the stretch and 32 for the cell. What else is drawn does not depend on where it lies: numbers in
the tails have 192 bits more, from a reserve that is drawn with each block whether needed or not;
the exact comparison befalls one number in 2^19 and takes the same steps each time; 32 bits
more for the cell are needed once in 2^15 times, wherever the cell lies.

**Low-order bits.** A number of 53 bits is not a real number: added to a value in the plain way, the
last bits of the sum tell which value it was (Mironov 2012). No generator can repair that alone,
so :mod:`graphveil.mechanisms` takes value and noise in whole steps of one public grid. Noise taken
from here by hand is not protected in this way: release through a mechanism.

Not protected against: somebody who reads this process's memory, or controls the operating system.
"""

from __future__ import annotations

import builtins
import hashlib
import itertools
import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Context, Decimal, localcontext
from typing import TYPE_CHECKING, Any, NoReturn, final

import numpy as np
from numpy.typing import NDArray
from scipy import special

from graphveil import _observing, _validate
from graphveil._errors import InvalidInputError, RefusedError

if TYPE_CHECKING:
    import torch

Shape = int | tuple[int, ...]
Floats = NDArray[np.float64]
Words = NDArray[np.uint64]
Source = Callable[[int], bytes]  # that many random bytes
Law = Callable[[int, Source], NDArray[Any]]  # that many numbers, from this source

_SEEDS = "[0, 1e18]"
_BLOCK = 2**14  # numbers made at a time, so that intermediate arrays stay in the cache
_FINEST = 2**46  # cells of the scale: 2^7 scales of them are still whole numbers in a float
_SMALL = np.uint64(2**45)  # halves of words below this need further bits
_RESERVE = 16  # how many such numbers a block is prepared for; more come with probability 2^-116
_UNSURE = 2.0**-20  # of a stretch: results this near to its end are decided exactly
_DIGITS = Context(prec=90)  # of exact probabilities; the 256 bits compared with them are 77 digits
_TERMS = 400  # of the series; at 13 standard deviations the rest is below 10^-80
_SQRT_TWO_PI = Decimal(
    "2.506628274631000502415765284811045253006986740609938316629923576342293654607841974946595838"
    "3780572661"
)


def seeded(seed: int, purpose: str = "") -> SeededStream:
    """The reproducible stream of ``seed``; streams of different ``purpose`` are independent.

    >>> first, again = seeded(7, "splits"), seeded(7, "splits")
    >>> first.generator().random() == again.generator().random()
    True

    *Guarantee*: none. Whatever is drawn here counts as public, and no mechanism takes its noise
    from here.
    """
    return SeededStream(seed, purpose)


def secret(*, fixed_seed: int | None = None) -> SecretStream:
    """The unpredictable stream, for noise and batch coins.

    ``fixed_seed`` makes it repeat itself, for experiments and tests only: the numbers follow the
    same laws by the same code, but whoever knows the seed can subtract the noise. Such a stream
    carries a ``void_reason``, which belongs on every certificate made from it.

    *Guarantee*: without ``fixed_seed``, draws are independent of the data, of every seed and of
    each other, as far as the operating system's generator is. With it, none: the guarantee is void.
    """
    return SecretStream(fixed_seed=fixed_seed)


@final
class SeededStream:
    """Reproducible random numbers; made by :func:`seeded`.

    It offers the generators of numpy and of torch and no noise of its own.
    """

    void_reason = "Random numbers came from a seeded stream, which anybody can repeat."

    def __init__(self, seed: int, purpose: str = "") -> None:
        self.seed = _validate.integer("seed", seed, _SEEDS)
        self.purpose = purpose
        # The purpose enters as a spawn key, which SeedSequence keeps apart from every plain seed.
        self._entropy = np.random.SeedSequence(self.seed, spawn_key=tuple(purpose.encode()))
        self._generator = np.random.default_rng(self._entropy)
        self._torch_generators: dict[str, torch.Generator] = {}

    def generator(self) -> np.random.Generator:
        """The stream's one numpy generator: a second call goes on where the first one stopped."""
        return self._generator

    def torch_generator(self, device: str | torch.device = "cpu") -> torch.Generator:
        """The stream's one torch generator on ``device``, with numbers of its own."""
        import torch

        name = str(device)
        if name not in self._torch_generators:
            seed = int(self._entropy.generate_state(1, np.uint64)[0])
            self._torch_generators[name] = torch.Generator(device).manual_seed(seed)
        return self._torch_generators[name]

    def __repr__(self) -> str:
        return f"seeded({self.seed}, {self.purpose!r})" if self.purpose else f"seeded({self.seed})"


@final
class SecretStream:
    """Unpredictable random numbers; made by :func:`secret`. Cannot be copied, pickled or saved.

    Draws are float64 of unit scale. A shape with no entries gives an empty array. With ``steps``,
    draws are rounded down to whole numbers of steps, so many to the scale; without, they are the
    middles of cells of 2^-46.
    """

    __slots__ = ("__source", "__void_reason")

    def __init__(self, *, fixed_seed: int | None = None) -> None:
        self.__void_reason: str | None = None
        self.__source: Source = _os_source
        if fixed_seed is not None:
            fixed_seed = _validate.integer("fixed_seed", fixed_seed, _SEEDS)
            self.__source = _fixed_source(fixed_seed)
            self.__void_reason = (
                f"The secret stream was fixed (fixed_seed={fixed_seed}): whoever knows the seed "
                "can subtract the noise, so no privacy guarantee holds."
            )

    @property
    def void_reason(self) -> str | None:
        """Why nothing drawn here is private; None for the operating system's numbers."""
        return self.__void_reason

    def bytes(self, count: int) -> builtins.bytes:
        """``count`` independent bytes: a key, or the state of another generator.

        What a generator makes of them is as secret as that generator, no more.
        """
        return self.__source(_validate.integer("count", count, "[0, 1e9]"))

    def normal(self, shape: Shape, *, steps: float | None = None) -> Floats:
        """Independent draws from N(0, 1)."""
        return self.__on_grid(_NORMAL, shape, steps)

    def laplace(self, shape: Shape, *, steps: float | None = None) -> Floats:
        """Independent draws with density exp(-abs(x)) / 2: scale 1, variance 2."""
        return self.__on_grid(_LAPLACE, shape, steps)

    def gumbel(self, shape: Shape) -> NDArray[np.float64]:
        """Independent draws with distribution function exp(-exp(-x)): scale 1."""
        return self.__fill(shape, np.float64, _gumbel)

    def bernoulli(self, probability: float, n: int) -> NDArray[np.bool_]:
        """``n`` independent coins, each True with ``probability``: the Poisson batch.

        Exact from 2^-12 up to and including 1, and at 0; in between smaller by less than 2^-64,
        never larger than what is charged.
        """
        probability = _validate.number("probability", probability, "[0, 1]")
        n = _validate.integer("n", n, "[0, 1e12]")
        if probability == 1:
            return np.ones(n, dtype=np.bool_)  # 2^64 below does not fit in a word
        threshold = np.uint64(int(math.ldexp(probability, 64)))
        return self.__fill(n, np.bool_, lambda count, source: _words(source, count) < threshold)

    def __on_grid(self, law: _Symmetric, shape: Shape, steps: float | None) -> Floats:
        if steps is None:
            middles = self.__on_grid(law, shape, _FINEST)
            middles += 0.5
            return np.divide(middles, _FINEST, out=middles)
        steps = _validate.number("steps", steps, f"[{2**22}, {_FINEST}]")
        return self.__fill(
            shape, np.float64, lambda count, source: _cells(law, steps, count, source)
        )

    def __fill(self, shape: Shape, dtype: Any, law: Law) -> NDArray[Any]:
        out = np.empty(_check_shape(shape), dtype)
        flat = out.reshape(-1)
        for start in range(0, flat.size, _BLOCK):
            block = flat[start : start + _BLOCK]
            block[:] = law(block.size, self.__source)
        return out

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        # pickle, copy.copy and copy.deepcopy all come through here.
        raise RefusedError(
            "A secret stream cannot be pickled or copied, since a copy might repeat its noise; "
            "make a new one with graphveil.rng.secret() where it is needed."
        )

    def __repr__(self) -> str:
        return "secret()" if self.void_reason is None else "secret(fixed_seed=...)"


@dataclass(frozen=True)
class _Symmetric:
    """A law that is symmetric around 0, by its upper half."""

    # The size that is exceeded, on the positive side, with the given probability; in floats.
    size: Callable[[Floats], Floats]
    # The probability of exceeding this size on the positive side; to all of _DIGITS.
    beyond: Callable[[Decimal], Decimal]
    # In stretch number i, of this width, the density falls like exp(-a y - c y^2 / 2): a and c.
    fall: Callable[[Floats, float], tuple[Floats, float]]


def _normal_beyond(size: Decimal) -> Decimal:
    """1/2 - phi(x) (x + x^3/3 + x^5/15 + ...), always with as many terms."""
    square, term, series = size * size, size, size
    for factor in range(3, 2 * _TERMS, 2):
        term = term * square / factor
        series += term
    return Decimal("0.5") - (-square / 2).exp() / _SQRT_TWO_PI * series


_NORMAL = _Symmetric(
    size=lambda half: -special.ndtri(half),
    beyond=_normal_beyond,
    fall=lambda stretch, width: (stretch * width**2, width**2),
)
_LAPLACE = _Symmetric(
    size=lambda half: -np.log(2.0 * half),
    beyond=lambda size: (-size).exp() / 2,
    fall=lambda stretch, width: (np.full(stretch.shape, width), 0.0),
)


def _cells(law: _Symmetric, steps: float, count: int, source: Source) -> Floats:
    """Whole numbers floor(steps * z), for ``count`` real numbers z of the law."""
    bits = math.floor(math.log2(steps)) - 21  # a stretch is 2^bits cells long
    halves = _Halves(count, source)
    cells = _stretches(law, math.ldexp(steps, -bits), halves)
    a, c = law.fall(cells, math.ldexp(1.0, bits) / steps)
    cells *= 2.0**bits
    cells += _places(a, c, bits, count, source)
    # The cell of -z is -1 minus the cell of z.
    return np.subtract(-1.0, cells, out=cells, where=halves.negative)


def _places(a: Floats, c: float, bits: int, count: int, source: Source) -> NDArray[np.int64]:
    """Whole numbers floor(2^bits y), for y in [0, 1) of density ~ exp(-a y - c y^2 / 2).

    32 bits decide most of them, 64 bits the rest.
    """
    words = np.frombuffer(source(4 * count), dtype="<u4").astype(np.uint64)
    words <<= np.uint64(32)
    places = _tilt(words, a, c)
    # The bits to come add less than 2^33.
    unsure = np.flatnonzero((places ^ (places + np.uint64(2**33))) >> np.uint64(64 - bits))
    further = np.frombuffer(source(4 * unsure.size), dtype="<u4")
    places[unsure] = _tilt(words[unsure] + further, a[unsure], c)
    places >>= np.uint64(64 - bits)
    return places.view(np.int64)


def _tilt(words: Words, a: Floats, c: float) -> Words:
    """2^64 y for words 2^64 t, where t is the share of the density that lies below y."""
    t = (words >> np.uint64(1)).view(np.int64) * 2.0**-63
    # y = t - t (1 - t) (a/2 - a^2/6 (1 - 2t) + c/6 (1 + t)), up to third powers of a.
    tilt = a * (1 / 3)
    tilt *= t
    tilt -= a * (1 / 6) - 0.5
    tilt *= a
    tilt += (t + 1.0) * (c / 6)
    tilt *= t
    tilt *= 2.0**64 - 2.0**64 * t
    moved: Words = words - tilt.astype(np.int64).view(np.uint64)
    return moved


def _stretches(law: _Symmetric, per_scale: float, halves: _Halves) -> Floats:
    """floor(per_scale * size) for the real sizes that belong to the real numbers ``halves``."""
    sizes = law.size(halves.floats)
    sizes *= per_scale
    stretch: Floats = np.floor(sizes)
    ends = np.rint(sizes)
    for index in np.flatnonzero(np.abs(sizes - ends) < _UNSURE).tolist():
        with localcontext(_DIGITS):
            reached = halves.below(index, law.beyond(Decimal(ends[index]) / Decimal(per_scale)))
        stretch[index] = ends[index] if reached else ends[index] - 1.0
    return stretch


class _Halves:
    """Real uniform numbers in (0, 1/2) and coins, drawn as far as somebody looks.

    ``floats`` are within a factor 1 +- 2^-46 of the real numbers, down to 2^-210.
    """

    def __init__(self, count: int, source: Source) -> None:
        words = _words(source, count)
        self.negative = (words & np.uint64(1)).astype(np.bool_)
        self._words = words >> np.uint64(1)
        self._source = source
        self.floats = self._words.view(np.int64).astype(np.float64)
        self.floats += 0.5
        self.floats *= 2.0**-64
        small = np.flatnonzero(self._words < _SMALL).tolist()
        reserve = source(24 * max(len(small), min(count, _RESERVE)))
        self._further = {
            index: int.from_bytes(reserve[24 * place : 24 * place + 24], "little")
            for place, index in enumerate(small)
        }
        for index, bits in self._further.items():
            whole = (int(self._words[index]) << 192) + bits
            self.floats[index] = math.ldexp(2 * whole + 1, -257)

    def below(self, index: int, bound: Decimal) -> bool:
        """Whether the real number is smaller, as its first 256 bits say."""
        bits = self._further.get(index, int.from_bytes(self._source(24), "little"))
        return (int(self._words[index]) << 192) + bits < bound * 2**256


def _gumbel(count: int, source: Source) -> Floats:
    # Both ends of the uniform numbers are fine, so that both tails are.
    halves = _Halves(count, source)
    return -np.log(-np.where(halves.negative, np.log(halves.floats), np.log1p(-halves.floats)))


def _words(source: Source, count: int) -> Words:
    return np.frombuffer(source(8 * count), dtype="<u8")


def _os_source(count: int) -> bytes:
    return os.urandom(count)


def _fixed_source(fixed_seed: int) -> Source:
    """SHAKE-256 of the seed and a block number: as random as the system's, but repeatable."""
    blocks: Iterator[int] = itertools.count()

    def source(count: int) -> bytes:
        if (observer := _observing.current()) is not None:
            observer.draw(count)
        key = f"graphveil fixed stream {fixed_seed} block {next(blocks)}"
        return hashlib.shake_256(key.encode()).digest(count)

    return source


def _check_shape(shape: Shape) -> tuple[int, ...]:
    sizes = shape if isinstance(shape, tuple) else (shape,)
    try:
        return tuple(_validate.integer("shape", size, "[0, 1e12]") for size in sizes)
    except InvalidInputError as error:
        raise InvalidInputError(
            "The 'shape' parameter must be a whole number of 0 or more, or a tuple of them. "
            f"Got {shape!r} instead."
        ) from error
