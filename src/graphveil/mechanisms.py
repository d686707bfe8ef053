"""Gaussian, Laplace and Gumbel top-k: one frozen object adds the noise and names the event.

    mechanism = Gaussian(noise_multiplier=4.0, sensitivity=1.0)
    charge = mechanism.event()                      # what to pay, for each call of release
    noisy = mechanism.release(value, secret())      # what may be shown

Every mechanism takes numpy arrays and torch tensors and answers in kind (same dtype and device;
whole numbers become float64). Noise is drawn and added in float64 on the CPU, and the result is
cast back at the end. Results carry no gradient.

**Low-order bits** (Mironov 2012; Haney et al. 2022). Value and noise are taken in whole steps of a
power of two, about 2^-36 of the noise. The value, rounded to v steps, is a whole number, so
v + floor(z) = floor(v + z): what leaves is a function of v + z, and its last bits say no more.
Rounding moves a coordinate by at most half a step, so two neighbouring values of d coordinates may
end up sqrt(d) steps (l2) or d steps (l1) further apart than ``sensitivity``; the noise is scaled up
by exactly that much (about one part in 10^8 for noise_multiplier 1 on a million coordinates, l2),
and the event needs no correction. The stream draws floor(z) itself: every number of steps within
13 scales has the probability that a real z gives it, up to a factor 1 +- 2^-45. So the loss of d
coordinates may exceed what is charged by d 2^-44 (a thousand million: 0.00006), and delta by
d 2^-124; docs/guarantees/randomness.md has the proof.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar, final

import dp_accounting as dpa
import numpy as np
from numpy.typing import NDArray

from graphveil import _observing, _validate
from graphveil._errors import InvalidInputError, RefusedError
from graphveil.privacy.events import GumbelTopKDpEvent, repeated
from graphveil.rng import SecretStream

# numpy arrays (and what numpy makes an array of) come back as numpy, torch tensors as torch.
Value = TypeVar("Value")

_GRID_BITS = 36  # a grid step is 2^-36 of the noise's scale, or up to half of that
_MOST_STEPS = 2.0**46  # of the noise's scale: what the stream can draw
_LARGEST = 1e150  # beyond this, dividing by a grid step could overflow
_NOISE_BLOCK = 2**16  # coordinates that get their noise together, in the cache
_ROWS_BLOCK = 2**20  # scores whose noise is held in memory at a time


@dataclass(frozen=True, kw_only=True)
class _Additive:
    noise_multiplier: float
    sensitivity: float

    def __post_init__(self) -> None:
        _check_scale(self, "sensitivity")


@final
@dataclass(frozen=True, kw_only=True)
class Gaussian(_Additive):
    """Adds N(0, (noise_multiplier * sensitivity)^2) to every coordinate, zeros included.

    ``sensitivity`` is the largest l2 distance between the *whole* arrays given to one call of
    ``release`` with the unit present and with the unit withheld, not a distance for each row. It
    is the caller's promise, for the value as computed in floats, and is not checked.

    *Guarantee*: one call of ``release`` costs one ``event()``, for whichever unit and relation
    ``sensitivity`` was derived for, in both directions. Public: shape, dtype, both parameters.
    Values may depend on earlier releases; every call is charged again.

    Edge cases: NaN, infinite and empty inputs are refused (the refusal itself tells that there was
    one, so clip before). A float16 result may overflow to infinity: that is post-processing.
    """

    def event(self) -> dpa.DpEvent:
        """What one call of :meth:`release` costs."""
        return dpa.GaussianDpEvent(self.noise_multiplier)

    def release(self, value: Value, rng: SecretStream, *, block_of: int | None = None) -> Value:
        """``value`` with noise on every coordinate.

        An array too large for memory may be released in blocks, at the price of one release: each
        call then says by ``block_of`` how many coordinates the whole array has.
        """
        array, restore = _as_array(value, rng)
        whole = array.size
        if block_of is not None:
            whole = _validate.integer("block_of", block_of, f"[{array.size}, 1e18]")
        return restore(_show(self, array, _noisy(array, self, math.sqrt(whole), rng)))


@final
@dataclass(frozen=True, kw_only=True)
class Laplace(_Additive):
    """Adds Laplace noise of scale noise_multiplier * sensitivity to every coordinate.

    ``sensitivity`` is the largest *l1* distance between the whole arrays given to one call of
    ``release`` with the unit present and with the unit withheld. It is the caller's promise and is
    not checked.

    *Guarantee*: one call of ``release`` costs one ``event()``, which is
    1 / noise_multiplier-DP, for whichever unit and relation ``sensitivity`` was derived for, in
    both directions, up to a delta of 2^-124 for each coordinate. Public: shape, dtype, both
    parameters. Every call is charged again.

    Edge cases: as for :class:`Gaussian`.
    """

    def event(self) -> dpa.DpEvent:
        """What one call of :meth:`release` costs."""
        return dpa.LaplaceDpEvent(self.noise_multiplier)

    def release(self, value: Value, rng: SecretStream) -> Value:
        """``value`` with noise on every coordinate."""
        array, restore = _as_array(value, rng)
        return restore(_show(self, array, _noisy(array, self, array.size, rng)))


@final
@dataclass(frozen=True, kw_only=True)
class GumbelTopK:
    """The indices of the ``k`` largest noisy scores of each row, largest first; no scores.

    Scores (..., n) are clipped to [0, bound], every entry gets Gumbel noise of scale
    noise_multiplier * bound. The first index follows the exponential mechanism,
    P(i) ~ exp(score_i / (noise_multiplier * bound)); each next one the same law on those left.

    *Guarantee*: one call of ``release`` costs one ``event()``, which charges every one of the
    ``rows``; withholding the unit may change all scores of all rows in any way, so this holds for
    every unit and relation, in both directions. Public: shape, all parameters.

    Edge cases: ``release`` refuses any other number of rows than ``rows``; ``k`` equal to n returns
    a random order; scores beyond the bound are tied. NaN and infinity are refused.
    """

    noise_multiplier: float
    bound: float
    k: int
    rows: int = 1

    def __post_init__(self) -> None:
        _check_scale(self, "bound")
        object.__setattr__(self, "k", _validate.integer("k", self.k, "[1, 1e9]"))
        object.__setattr__(self, "rows", _validate.integer("rows", self.rows, "[1, 1e9]"))

    def event(self) -> dpa.DpEvent:
        """What one call of :meth:`release` costs: all rows together."""
        one_row = GumbelTopKDpEvent(noise_multiplier=self.noise_multiplier, k=self.k)
        return repeated(one_row, self.rows)

    def release(self, scores: Value, rng: SecretStream) -> Value:
        """Integer indices, of shape (..., k), into the last axis of ``scores``."""
        array, restore = _as_array(scores, rng)
        n = array.shape[-1] if array.ndim else 0
        rows = array.size // n if n else 0
        if rows != self.rows:
            raise InvalidInputError(
                f"The scores must have as many rows as are charged, {self.rows}. Got {rows} rows "
                f"in shape {array.shape} instead; set GumbelTopK(rows=...) to the rows released."
            )
        if self.k > n:
            raise InvalidInputError(
                f"The 'k' parameter must be at most the number of scores in a row, {n}. Got "
                f"{self.k} instead; lower k or give more candidates."
            )
        flat = array.reshape(rows, n)
        chosen = np.empty((rows, self.k), dtype=np.int64)
        step = max(1, _ROWS_BLOCK // n)
        for start in range(0, rows, step):
            block = np.clip(flat[start : start + step], 0.0, self.bound)
            block += rng.gumbel(block.shape) * (self.noise_multiplier * self.bound)
            chosen[start : start + step] = largest(block, self.k)
        return restore(_show(self, array, chosen.reshape(*array.shape[:-1], self.k)))


def _show(mechanism: Any, value: NDArray[Any], result: NDArray[Any]) -> NDArray[Any]:
    """What leaves the mechanism; an audit looks on, and may put an earlier result in its place."""
    observer = _observing.current()
    return result if observer is None else observer.release(mechanism, value, result)


def _noisy(
    array: NDArray[np.float64], mechanism: Gaussian | Laplace, steps_apart: float, rng: SecretStream
) -> NDArray[np.float64]:
    """Value plus noise, both on the grid (see the top of this file).

    ``steps_apart``: the norm of a vector of ones, which is what rounding adds to the sensitivity.
    """
    multiplier, sensitivity = mechanism.noise_multiplier, mechanism.sensitivity
    draw = rng.normal if isinstance(mechanism, Gaussian) else rng.laplace
    grid = 2.0 ** (math.floor(math.log2(multiplier * sensitivity)) - _GRID_BITS)
    # The last factor is larger than what the operations before it may have rounded off.
    steps = multiplier * (sensitivity + grid * steps_apart) / grid * (1.0 + 2.0**-50)
    if steps > _MOST_STEPS:
        raise RefusedError(
            "Noise must stay below 500 times noise_multiplier * sensitivity, with what covers the "
            f"rounding of {array.size} coordinates. Got noise_multiplier={multiplier:g}, for which "
            f"it would be {steps * grid / (multiplier * sensitivity):.3g} times that; lower "
            "noise_multiplier and raise sensitivity by as much, or release fewer coordinates."
        )
    result = np.empty(array.shape)
    values, out = array.reshape(-1), result.reshape(-1)

    def fill(start: int) -> None:
        rounded = np.rint(values[start : start + _NOISE_BLOCK] / grid)
        # The sum is exact, except for values of 2^16 noise scales and more, where floats are
        # coarser than a step: there it is the exact sum rounded once, again a function of it alone.
        rounded += draw(rounded.size, steps=steps)
        np.multiply(rounded, grid, out=out[start : start + _NOISE_BLOCK])

    blocks = range(0, out.size, _NOISE_BLOCK)
    if len(blocks) < 16 or rng.void_reason is not None:  # a fixed stream has an order to keep
        for start in blocks:
            fill(start)
    else:
        with ThreadPoolExecutor(os.cpu_count()) as threads:
            for _ in threads.map(fill, blocks):
                pass
    return result


def largest(scores: NDArray[np.float64], k: int) -> NDArray[np.int64]:
    """Indices of the k largest of each row, largest first."""
    top = np.argpartition(-scores, k - 1, axis=-1)[:, :k]
    order = np.argsort(-np.take_along_axis(scores, top, axis=-1), axis=-1)
    return np.take_along_axis(top, order, axis=-1)


def _as_array(value: Any, rng: Any) -> tuple[NDArray[np.float64], Callable[[Any], Any]]:
    """The value in float64 and the way back to its own kind, once both have passed the checks."""
    if not isinstance(rng, SecretStream):
        raise RefusedError(
            f"The noise must come from the secret stream. Got {type(rng).__name__} instead, whose "
            "numbers can be repeated; pass graphveil.rng.secret()."
        )
    # A tensor can only be here if somebody has imported torch already.
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        if value.layout != torch.strided or value.is_complex():
            raise _not_numbers(f"a {value.dtype} tensor of layout {value.layout}")
        dtype = value.dtype if value.is_floating_point() else torch.float64
        array = value.detach().to(device="cpu", dtype=torch.float64).numpy()

        def restore(result: Any) -> Any:
            indices = result.dtype == np.int64
            tensor = torch.from_numpy(np.asarray(result))
            return tensor.to(device=value.device, dtype=None if indices else dtype)
    else:
        given = np.asarray(value)
        if given.dtype.kind not in "fiub":
            raise _not_numbers(f"{type(value).__name__} of dtype {given.dtype}")
        array = given.astype(np.float64)

        def restore(result: Any) -> Any:
            floats = given.dtype.kind == "f" and result.dtype == np.float64
            return result.astype(given.dtype) if floats else result

    if array.size == 0:
        raise InvalidInputError(
            f"The value to release must have at least one entry. Got shape {array.shape} instead; "
            "an empty array needs no release."
        )
    # Written so that NaN fails it. The entry is private, so the message does not show it.
    if not np.max(np.abs(array)) <= _LARGEST:
        raise InvalidInputError(
            f"The value to release must be finite and at most {_LARGEST:g} in size. Got NaN, "
            "infinity or a larger number instead; clip or replace such entries first."
        )
    return array, restore


def _not_numbers(got: str) -> InvalidInputError:
    return InvalidInputError(
        f"The value to release must be a dense array of real numbers. Got {got} instead; make it "
        "dense, so that zeros get noise too, or convert it."
    )


def _check_scale(mechanism: Any, bound: str) -> None:
    """Check noise_multiplier and the field named ``bound``, and keep them as plain floats."""
    for name in ("noise_multiplier", bound):
        checked = _validate.number(name, getattr(mechanism, name), "(0, inf)")
        object.__setattr__(mechanism, name, checked)
    scale = mechanism.noise_multiplier * getattr(mechanism, bound)
    _validate.number(f"noise_multiplier * {bound}", scale, "[1e-100, 1e100]")
