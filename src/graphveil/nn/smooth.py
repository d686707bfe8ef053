r"""Functions with a kink, given gradients without a jump.

A gradient that jumps makes a private sum fragile. If the last bits of a matrix product depend on
how many rows it has, and so on who else was drawn (:mod:`graphveil.grads.products`), then at a jump
one unit's absence could flip the gradients of others, each by twice the clipping bound. Here values
are the usual ones, and gradients change gradually over a hundredth of a unit: the last bits of what
goes in move the last bits of what comes out. Any vector may be clipped and noised, so this costs no
privacy.

Some of torch's own functions give the last few places of a tensor other bits than those before
them, so that an element's value tells where it stands. Those here do not.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

WIDTH = 1e-2  # over which a gradient goes from one side of a kink to the other
_SELU_ALPHA, _SELU_SCALE = 1.6732632423543772848, 1.0507009873554804934


class _Bent(torch.autograd.Function):
    """leaky_relu; its slope goes from ``slope`` at 0 to 1 at ``WIDTH``."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, slope: float) -> Tensor:
        return F.leaky_relu(x, slope)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, float], output: Tensor) -> None:
        x, ctx.slope = inputs
        ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        return grad * (x / WIDTH).clamp(0.0, 1.0).mul(1.0 - ctx.slope).add(ctx.slope), None


class _Selu(torch.autograd.Function):
    """selu; its slope goes from that below 0 to that above it over ``WIDTH``."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        below = _SELU_ALPHA * x.clamp_max(0.0).expm1()
        return _SELU_SCALE * torch.where(x > 0, x, below)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        ramp = (x / WIDTH).clamp(0.0, 1.0)
        below = _SELU_SCALE * _SELU_ALPHA * x.clamp_max(0.0).exp()
        return grad * (below + ramp * (_SELU_SCALE - below))


def selu(x: Tensor) -> Tensor:
    """A multiple of ``x`` above 0, of exp(x) - 1 below (Klambauer et al. 2017)."""
    return _Selu.apply(x)


def elu(x: Tensor) -> Tensor:
    """``x`` above 0, exp(x) - 1 below."""
    return torch.where(x > 0, x, x.clamp_max(0.0).expm1())


def softplus(x: Tensor) -> Tensor:
    """log(1 + exp(x))."""
    return x.clamp_min(0.0) + x.abs().neg().exp().log1p()


def gelu(x: Tensor) -> Tensor:
    """``x`` times the probability that a normal number is below it."""
    return 0.5 * x * (1.0 + torch.erf(x * 0.7071067811865476))


def sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + exp(-x))."""
    return 0.5 * torch.tanh(0.5 * x) + 0.5


def leaky_relu(x: Tensor, slope: float = 0.01) -> Tensor:
    """``x`` above 0, ``slope`` times it below."""
    return _Bent.apply(x, slope)


def relu(x: Tensor) -> Tensor:
    """``x`` above 0, 0 below."""
    return leaky_relu(x, 0.0)


def largest(x: Tensor, owner: Tensor, count: int) -> Tensor:
    """The largest of each owner's rows, channel by channel; zeros for an owner without rows.

    The gradient goes to all rows that are nearly as large, the nearer the more.
    """
    zeros = x.new_zeros(count, x.shape[1])
    rows = x.detach()
    top = zeros.scatter_reduce(0, owner.unsqueeze(1).expand_as(x), rows, "amax", include_self=False)
    width = WIDTH * (1.0 + top.abs())
    near = (rows - (top - width)[owner]).clamp_min(0.0)
    share = near / zeros.index_add(0, owner, near)[owner]
    mixed = zeros.index_add(0, owner, share * x)
    return top + (mixed - mixed.detach())
