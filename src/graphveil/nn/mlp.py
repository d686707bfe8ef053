"""Multi-layer perceptrons: encoders, decoders and heads.

Parameters live in ``nn.Linear`` and ``nn.LayerNorm`` alone, so that the engine in
:mod:`graphveil.grads` reads their per-example gradients without forming them.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from graphveil.devices import at_home
from graphveil.grads.coins import Dropout
from graphveil.nn.descriptions import Follow, Perceptron
from graphveil.nn.smooth import elu, gelu, leaky_relu, relu, selu, softplus

FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh,  # bounded: what clips least in private training
    "relu": relu,
    "elu": elu,
    "selu": selu,
    "gelu": gelu,
    "leaky_relu": leaky_relu,
    "softplus": softplus,
}


class Activated(nn.Module):
    """What follows a hidden layer: normalisation of each row by itself, activation, dropout."""

    def __init__(
        self, channels: int, activation: str, dropout: float = 0.0, norm: str | None = None
    ) -> None:
        super().__init__()
        Follow(channels, activation, dropout, norm)  # checks its settings
        self.norm = nn.LayerNorm(channels) if norm else nn.Identity()
        self.activation = FUNCTIONS[activation]
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor, ids: Tensor | None = None) -> Tensor:
        """Works on rows of any arrangement: the last dimension is the channels.

        ``ids`` are the rows' public ids, by which a private step drops.
        """
        return self.dropout(self.activation(self.norm(x)), ids)

    def chain(self) -> list[Any]:
        """What is applied, in this order; what does nothing is left out."""
        normed = [] if isinstance(self.norm, nn.Identity) else [self.norm]
        return [*normed, self.activation, *([self.dropout] if self.dropout.p else [])]


class MLP(nn.Module):
    """``num_layers`` linear layers, all but the last followed by norm, activation and dropout.

    It takes the fields of a :class:`~graphveil.nn.descriptions.Perceptron`, in their order. With
    ``num_layers=0`` it is the identity, and ``in_channels`` must be ``out_channels``.
    """

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__()
        description = Perceptron(*args, **settings)
        self.linears = nn.ModuleList(nn.Linear(*pair) for pair in pairwise(description.widths))
        self.between = nn.ModuleList(follow.build() for follow in description.between)

    @at_home
    def forward(self, x: Tensor, ids: Tensor | None = None) -> Tensor:
        """Rows of any arrangement; the last dimension is the channels. See :class:`Activated`."""
        for place, linear in enumerate(self.linears):
            x = linear(self.between[place - 1](x, ids) if place else x)
        return x

    def chain(self) -> list[nn.Module]:
        """What is applied, in this order."""
        between = (self.between[place - 1 : place] for place in range(len(self.linears)))
        pairs = zip(between, self.linears, strict=True)
        return [layer for before, linear in pairs for layer in (*before, linear)]
