r"""How gradients are bounded, and how much noise goes with each bound.

A clipping turns the squared norms of an example's gradient, one for each block (layer), into a
factor for each block. Its promise: after dividing block l by ``scales[l]``, the clipped gradient of
one example is a vector of norm at most 1. Noise of standard deviation ``sigma * scales[l]`` on
block l is then the Gaussian of multiplier sigma, whatever the clipping.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from graphveil import _validate
from graphveil._errors import InvalidInputError
from graphveil.grads.settings import CLIPPINGS

_NONE = 1e-30  # a squared norm that is read of no gradient at all: it is never read as zero


class Clipping(Protocol):
    """Factors for the blocks of each example's gradient."""

    def factors(self, squared_norms: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """For each block, what every example's gradient is multiplied by."""

    def scales(self, blocks: list[str]) -> dict[str, float]:
        """For each block, the unit in which the whole clipped gradient has norm at most 1."""


@runtime_checkable
class Adaptive(Clipping, Protocol):
    """A clipping that learns from the data, by one more number in what every step releases.

    ``max_grad_norm`` is the bound as it stands, which a checkpoint keeps.
    """

    max_grad_norm: float

    def start(self) -> None:
        """Forget the examples counted so far: a new step begins."""

    def count(self) -> float:
        """What this step's examples add up to, in the unit of the gradient's vector."""

    def learn(self, noisy_count: float, expected_batch: float) -> None:
        """Move the bound by the released count."""


@dataclass(frozen=True)
class Flat:
    """The gradient as one vector: ``g * min(1, C / |g|)``."""

    max_grad_norm: float

    def __post_init__(self) -> None:
        _validate.number("max_grad_norm", self.max_grad_norm, "(0, inf)")

    def factors(self, squared_norms: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """min(1, C / norm), the same for every block; 0 where the norm is not finite."""
        factor = _shrink(self.max_grad_norm, _total(squared_norms))
        return dict.fromkeys(squared_norms, factor)

    def scales(self, blocks: list[str]) -> dict[str, float]:
        """C for every block."""
        return dict.fromkeys(blocks, self.max_grad_norm)


@dataclass(frozen=True)
class PerLayer:
    """Every block by itself, to norm C_l: one vector of norm sqrt(L) in units of the C_l.

    The noise on block l is therefore ``sigma C_l sqrt(L)``. Thresholds must not be read off the
    training data.
    """

    max_grad_norm: Mapping[str, float] | float

    def _bound(self, block: str) -> float:
        bounds = self.max_grad_norm
        if not isinstance(bounds, Mapping):
            return _validate.number("max_grad_norm", bounds, "(0, inf)")
        if block not in bounds:
            raise InvalidInputError(
                f"The 'max_grad_norm' parameter must have a threshold for every layer. Got none "
                f"for {block!r}; give one, or a single number for all."
            )
        return _validate.number(f"max_grad_norm[{block}]", bounds[block], "(0, inf)")

    def factors(self, squared_norms: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """min(1, C_l / norm_l) for each block."""
        return {name: _shrink(self._bound(name), norm) for name, norm in squared_norms.items()}

    def scales(self, blocks: list[str]) -> dict[str, float]:
        """C_l sqrt(L) for each of the L blocks."""
        return {name: self._bound(name) * math.sqrt(len(blocks)) for name in blocks}


@dataclass(frozen=True)
class Automatic:
    """``C g / (|g| + gamma)`` (Bu et al. 2022): every gradient near norm C, nothing to tune."""

    max_grad_norm: float = 1.0
    gamma: float = 0.01

    def __post_init__(self) -> None:
        _validate.number("max_grad_norm", self.max_grad_norm, "(0, inf)")
        _validate.number("gamma", self.gamma, "(0, inf)")

    def factors(self, squared_norms: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """C / (norm + gamma), the same for every block; 0 where the norm is not finite."""
        factor = self.max_grad_norm / (_total(squared_norms).sqrt() + self.gamma)
        return dict.fromkeys(squared_norms, _zero_if_infinite(factor))

    def scales(self, blocks: list[str]) -> dict[str, float]:
        """C for every block."""
        return dict.fromkeys(blocks, self.max_grad_norm)


class Quantile:
    r"""Flat clipping at a quantile of the gradient norms, learnt privately (Andrew et al. 2021).

    Each step also releases how many norms were below the bound. An example adds its clipped
    gradient, in units of C / sqrt(1 - share), and +-sqrt(share) to that count: together one vector
    of norm at most 1, charged as one. The gradient's noise grows by 1 / sqrt(1 - share), 0.5 % by
    default. The starting bound must not be read off the data.
    """

    def __init__(
        self,
        max_grad_norm: float,
        *,
        quantile: float = 0.5,
        learning_rate: float = 0.2,
        share: float = 0.01,
    ) -> None:
        self.max_grad_norm = _validate.number("max_grad_norm", max_grad_norm, "(0, inf)")
        self.quantile = _validate.number("quantile", quantile, "(0, 1)")
        self.learning_rate = _validate.number("learning_rate", learning_rate, "(0, inf)")
        self.share = _validate.number("share", share, "(0, 1)")
        self._signs = 0.0

    def factors(self, squared_norms: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """As :class:`Flat`, and counts +1 for a norm within the bound, -1 for one beyond.

        A gradient of zero counts for nothing: a term without a loss is as one that is not there.
        """
        total = _total(squared_norms)
        within = total <= self.max_grad_norm**2
        self._signs += float(((2.0 * within - 1.0) * (total > _NONE)).sum())
        return dict.fromkeys(squared_norms, _shrink(self.max_grad_norm, total))

    def scales(self, blocks: list[str]) -> dict[str, float]:
        """C / sqrt(1 - share) for every block."""
        return dict.fromkeys(blocks, self.max_grad_norm / math.sqrt(1 - self.share))

    def start(self) -> None:
        """A new step counts from zero."""
        self._signs = 0.0

    def count(self) -> float:
        """The sum of the signs, scaled to what one example may add."""
        return self._signs * math.sqrt(self.share)

    def learn(self, noisy_count: float, expected_batch: float) -> None:
        """Geometric update: towards the bound that ``quantile`` of the norms do not exceed."""
        below = (noisy_count / math.sqrt(self.share) / expected_batch + 1) / 2
        excess = min(max(below, 0), 1) - self.quantile
        self.max_grad_norm *= math.exp(-self.learning_rate * excess)


@dataclass(frozen=True)
class Off:
    """No clipping: the plain sum of gradients, for training without privacy."""

    def factors(self, squared_norms: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """One for everybody."""
        return {name: torch.ones_like(norm) for name, norm in squared_norms.items()}

    def scales(self, blocks: list[str]) -> dict[str, float]:
        """No bound."""
        return dict.fromkeys(blocks, math.inf)


_CLASSES: dict[str, Callable[[Any], Clipping]] = {
    "flat": Flat,
    "per_layer": PerLayer,
    "automatic": Automatic,
    "quantile": Quantile,
}


def make_clipping(kind: str, max_grad_norm: Any) -> Clipping:
    """A clipping by name, one of :data:`~graphveil.grads.settings.CLIPPINGS`.

    ``max_grad_norm`` is a number; ``per_layer`` also takes one for each layer, by name.
    """
    return _CLASSES[_validate.choice("clipping", kind, CLIPPINGS)](max_grad_norm)


def _total(squared_norms: Mapping[str, Tensor]) -> Tensor:
    # One after the other: a sum over a stack adds in an order that depends on an example's place.
    return reduce(torch.add, squared_norms.values())


def _shrink(bound: float, squared_norm: Tensor) -> Tensor:
    return _zero_if_infinite((bound * squared_norm.clamp_min(1e-38).rsqrt()).clamp_max(1.0))


def _zero_if_infinite(factor: Tensor) -> Tensor:
    """A gradient with an infinite or NaN norm has no bounded multiple but zero."""
    return torch.where(factor > 0, factor, 0.0).nan_to_num(0.0)
