"""Small layers whose gradients the engine can read, for what ``nn.Linear`` does not cover.

They are ordinary modules. A model that keeps its parameters in these, in ``nn.Linear``,
``nn.Embedding``, ``nn.LayerNorm`` and ``nn.InstanceNorm1d`` trains at nearly the price of a plain
step.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Affine(nn.Module):
    """``weight * x + bias`` for each channel: what a normalisation learns."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        """Scale and shift the last dimension."""
        return x * self.weight + self.bias


class HeadDot(nn.Module):
    """``(..., heads, channels)`` to ``(..., heads)``: a dot product with one vector a head."""

    def __init__(self, heads: int, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(heads, channels))
        nn.init.xavier_uniform_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        """One number for each head."""
        return (x * self.weight).sum(-1)


class SelfWeight(nn.Module):
    """GIN's ``(1 + eps) x``."""

    def __init__(self) -> None:
        super().__init__()
        self.eps = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        """Weigh a node's own state against its neighbours'."""
        return x * (1 + self.eps)
