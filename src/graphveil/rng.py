"""Two sources of random numbers, kept apart.

*Seeded*: weights, splits, priorities, partitions. These may be public; the same seed gives the
same numbers. :func:`seeded`.

*Secret*: noise and batch coins. A guarantee holds only against somebody who cannot guess these, so
no user's seed comes near them. :func:`secret`.

The secret stream asks the operating system for every bit (``os.urandom``, a cryptographic generator
on every supported system) and keeps nothing between two draws: there is no state to save, to read
back or to repeat after a fork. numpy's generators are faster but not cryptographic; the state of
its default one can be computed from its output, and with it all noise, past and to come.

**Shapes of noise.** One 64-bit word stands behind every number and behind no other, pushed through
the inverse of its distribution function: 63 bits for the size, which is finest in the tails, and
one for the sign. There is no rejection loop whose length could be timed (Jin et al. 2022). Normal
numbers reach 9.1 standard deviations, Laplace 43 scales, Gumbel 44 scales upwards; what lies beyond
has probability less than 2^-63.

**Low-order bits.** A number of 53 bits is not a real number: added to a value in the plain way, the
last bits of the sum tell which value it was (Mironov 2012). No generator can repair that alone,
so :mod:`graphveil.mechanisms` rounds value and noise to one public grid. Noise taken from here by
hand is not protected in this way: release through a mechanism.

Not protected against: somebody who reads this process's memory, or controls the operating system.
"""

from __future__ import annotations

import builtins
import hashlib
import itertools
import math
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn, final

import numpy as np
from numpy.typing import NDArray
from scipy import special

from graphveil import _validate
from graphveil._errors import InvalidInputError, RefusedError

if TYPE_CHECKING:
    import torch

Shape = int | tuple[int, ...]
Words = NDArray[np.uint64]
Source = Callable[[int], bytes]  # that many random bytes
Law = Callable[[Words], NDArray[Any]]  # random words in, as many numbers out

_SEEDS = "[0, 1e18]"
_BLOCK = 2**16  # numbers made at a time, so that intermediate arrays stay in the cache


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

    Draws are float64 of unit scale. A shape with no entries gives an empty array.
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

    def normal(self, shape: Shape) -> NDArray[np.float64]:
        """Independent draws from N(0, 1)."""
        return self.__fill(shape, np.float64, _normal)

    def laplace(self, shape: Shape) -> NDArray[np.float64]:
        """Independent draws with density exp(-abs(x)) / 2: scale 1, variance 2."""
        return self.__fill(shape, np.float64, _laplace)

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
        return self.__fill(n, np.bool_, lambda words: words < threshold)

    def __fill(self, shape: Shape, dtype: Any, law: Law) -> NDArray[Any]:
        out = np.empty(_checked_shape(shape), dtype)
        flat = out.reshape(-1)
        for start in range(0, flat.size, _BLOCK):
            block = flat[start : start + _BLOCK]
            block[:] = law(np.frombuffer(self.__source(8 * block.size), dtype="<u8"))
        return out

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        # pickle, copy.copy and copy.deepcopy all come through here.
        raise RefusedError(
            "A secret stream cannot be pickled or copied, since a copy might repeat its noise; "
            "make a new one with graphveil.rng.secret() where it is needed."
        )

    def __repr__(self) -> str:
        return "secret()" if self.void_reason is None else "secret(fixed_seed=...)"


def _normal(words: Words) -> NDArray[np.float64]:
    half, sign = _halves(words)
    return special.ndtri(half) * sign


def _laplace(words: Words) -> NDArray[np.float64]:
    half, sign = _halves(words)
    return np.log(2.0 * half) * sign


def _gumbel(words: Words) -> NDArray[np.float64]:
    # log1p(-u), not log(u): uniforms are finest near 0, and large numbers must come from there.
    return -np.log(-np.log1p(-_uniform(words)))


def _halves(words: Words) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Uniform numbers in (0, 1/2], as small as 2^-65, and a sign from the bit that is left."""
    half = (words >> np.uint64(1)).astype(np.float64)
    half += 0.5
    half *= 2.0**-64
    return half, 1.0 - 2.0 * (words & np.uint64(1)).astype(np.float64)


def _uniform(words: Words) -> NDArray[np.float64]:
    """Uniform numbers in the open interval (0, 1), as small as 2^-65."""
    uniforms = words.astype(np.float64)
    uniforms += 0.5
    uniforms *= 2.0**-64
    # The largest words round to 1, where the logarithms of Gumbel noise would be infinite.
    return np.minimum(uniforms, 1.0 - 2.0**-53, out=uniforms)


def _os_source(count: int) -> bytes:
    return os.urandom(count)


def _fixed_source(fixed_seed: int) -> Source:
    """SHAKE-256 of the seed and a block number: as random as the system's, but repeatable."""
    blocks: Iterator[int] = itertools.count()

    def source(count: int) -> bytes:
        key = f"graphveil fixed stream {fixed_seed} block {next(blocks)}"
        return hashlib.shake_256(key.encode()).digest(count)

    return source


def _checked_shape(shape: Shape) -> tuple[int, ...]:
    sizes = shape if isinstance(shape, tuple) else (shape,)
    try:
        return tuple(_validate.integer("shape", size, "[0, 1e12]") for size in sizes)
    except InvalidInputError as error:
        raise InvalidInputError(
            "The 'shape' parameter must be a whole number of 0 or more, or a tuple of them. "
            f"Got {shape!r} instead."
        ) from error
