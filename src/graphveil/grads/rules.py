r"""How each kind of layer gives the norms, and the weighted sum, of its per-example gradients.

A rule is made for one layer and one chunk of examples, after the backward pass, from the calls that
were recorded: what went in, and the loss's gradient at what came out. It never needs a per-example
gradient unless that is the cheapest way. With A the rows that went into a Linear and B the
gradients at its output, an example's gradient is A^T B, and

    |A^T B|^2 = <A A^T, B B^T>           (Gram: T^2 (d + p) operations for T rows)
              = |a|^2 |b|^2               for a single row.

A layer called several times has one gradient, the sum over its calls: rows of all calls are joined
before a norm is taken, since cross terms count.

Every rule errs on the safe side: a norm is never read smaller than that of what is added, so that
what is scaled down to the bound stays below it. A sum of n products of floats, in any order, errs
by at most n u / (1 - n u) of the sum of their sizes, u half the machine's epsilon (Higham 2002,
section 3.1). Every norm is enlarged by that bound for the sums it went through.

Weighted sums are in float64, products included, or in float32 inside public blocks: leaving one
term out moves the rounding of others by a part of the bound that is paid for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from graphveil._errors import UnprovenError
from graphveil.grads.layers import Affine, HeadDot, SelfWeight
from graphveil.grads.modules import empty_sum
from graphveil.grads.products import one_thread_of_numpy
from graphveil.grads.rows import Rows
from graphveil.graph.blocks import Numbered

# How far rounding may move the sum of a step when one term leaves it, in bounds. It is paid for:
# squared norms are read larger by these factors, so that clipped terms are that much shorter.
#
# Sums in float64: n rows move by at most 2 (1024 + n / 1024) 2^-53 n, times 1 / _CANCEL where they
# cancel. That is below 2^-18 for three million rows, and for 50,000 that all cancel. (Rows of an
# embedding are added one after the other: 2 n 2^-53 n for n examples with one id, 100,000 of them.)
PAY_FOR_SUMS = (1 + 2.0**-18) ** 2
# Sums in float32 inside blocks of at most R = 96 rows (graphveil.graph.blocks). A block holds
# terms of T rows whose lengths add up to at most T times their norm, 1.25 T where rows are ragged;
# the others are added in float64. So a block errs by R u times 1.25 R bounds. A term's leaving
# undoes blocks of 2 R rows at most, and makes one of R. Layers that see as many rows have the same
# blocks, and their errors are no more together than one layer's; of W kinds of layers they are
# sqrt(W) times that. For ragged rows W = 2, and sqrt(2) 3 1.25 R^2 2^-24 < 2^-8; for tables,
# without 1.25, W <= 5: MOST_WIDTHS.
PAY_FOR_BLOCKS = (1 + 2.0**-8) ** 2
# Where rows cancel, a norm is read as no less than this part of their sizes added up: float64 sums
# err by the sizes of what they add.
_CANCEL = 1 / 256
_TINY = 1e-36  # below it squares underflow
_SPARE = 16  # roundings of single operations that a norm passes through
_DIRECT_ELEMENTS = 1 << 22  # per-example gradients held at once
_LONG = 2048  # numbers whose squares are added up at a time
_BLOCK_ROWS = 96  # added up in float32, at most
_ROWS_AT_ONCE = 1024  # that are turned into float64 together, in the cache


@dataclass
class Call:
    """One use of a layer: its inputs, the gradient at its output, and whose rows they are."""

    inputs: tuple[Tensor, ...]
    grad: Tensor
    rows: Rows | None

    def first(self, count: int) -> Call:
        """The same call of the first examples alone, where the leading dimension counts them."""
        return Call(tuple(x[:count] for x in self.inputs), self.grad[:count], None)

    def absolute(self) -> Call:
        """The same call with everything positive."""
        return Call(tuple(x.abs() for x in self.inputs), self.grad.abs(), self.rows)


class Rule(Protocol):
    """What the engine asks of a layer."""

    def __init__(self, layer: Any, calls: Sequence[Call], count: int) -> None: ...

    def squared_norms(self) -> Tensor:
        """|gradient|^2 of each example, over all parameters of the layer; never too small."""

    def weighted_sum(self, weights: Tensor, numbered: Numbered | None = None) -> dict[str, Tensor]:
        r"""\sum_i weights_i gradient_i, by parameter name, in float64.

        A rule may use the examples' own precision inside the blocks of a ``numbered`` batch.
        """


class LinearRule:
    """``nn.Linear`` on plain rows, on fixed-width tables and on ragged rows."""

    def __init__(self, layer: Any, calls: Sequence[Call], count: int) -> None:
        self.layer, self.calls, self.count = layer, calls, count
        self.with_weight = layer.weight.requires_grad
        self.with_bias = layer.bias is not None and layer.bias.requires_grad
        self._light: Tensor | None = None  # who adds no more than it may; None: everybody

    def squared_norms(self) -> Tensor:
        calls, count = self.calls, self.count
        if all(call.rows is None for call in calls):
            a = _side_by_side([_table(call.inputs[0], count) for call in calls], 1)
            b = _side_by_side([_table(call.grad, count) for call in calls], 1)
            return self._norms(a, b)
        rows = _join_owners(calls, count)
        a = _side_by_side([_flat(call.inputs[0]) for call in calls], 0)
        b = _side_by_side([_flat(call.grad) for call in calls], 0)
        out, light = b.new_zeros(count), b.new_ones(count, dtype=torch.bool)
        for (ids, x), (_, gradient) in zip(rows.tables(a), rows.tables(b), strict=True):
            out[ids] = self._norms(x, gradient)
            if self._light is not None:
                light[ids] = self._light
        self._light = light
        return out

    def _gradients(self, a: Tensor, b: Tensor, short: int) -> dict[str, Tensor]:
        """Per-example gradients from rows (examples, T, d), output gradients (examples, T, p)."""
        out = {}
        if self.with_weight:
            out["weight"] = _product(b.transpose(1, 2), a.transpose(1, 2), short)
        if self.with_bias:
            out["bias"] = b.sum(1)
        return out

    def _norms(self, a: Tensor, b: Tensor) -> Tensor:
        """Squared norms, without holding gradients."""
        width, d, p = *a.shape[1:], b.shape[2]
        if width == 1:
            self._light = None
            of_inputs = _sum_squares(a.squeeze(1)) if self.with_weight else b.new_zeros(len(b))
            product = (of_inputs + (float(self.with_bias) + _TINY)) * (
                _sum_squares(b.squeeze(1)) + _TINY
            )
            return product * enlarge(_depth(d) + _depth(p), a.dtype)
        gram = self.with_weight and width * (d + p) < d * p
        norms, sizes = (self._gram if gram else self._direct)(a, b)
        self._light = sizes <= width * norms.sqrt()
        return torch.maximum(norms, (_CANCEL * sizes).square()) * enlarge(0, a.dtype)

    def _gram(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        """By the products of rows with each other; and what the rows are long, added up.

        Rounding shifts a product of two rows by a part of their lengths multiplied, so it shifts
        the sum over all pairs by the same part of the lengths added up and squared.
        """
        width, d, p = *a.shape[1:], b.shape[2]
        of_inputs, of_grads = _with_itself(a), _with_itself(b)
        of_inputs = of_inputs + float(self.with_bias)
        products = _halving_depth(d + 3, 160) + _halving_depth(p + 3, 160)
        traces = _diagonal(of_inputs), _diagonal(of_grads)
        sizes = ((traces[0] + _TINY) * (traces[1] + _TINY)).sqrt().sum(1)
        sizes = sizes * enlarge(products + width, a.dtype)
        norms = (of_inputs * of_grads).sum(2).sum(1).clamp_min(0)
        norms = norms + rounding(products + 2 * width, a.dtype) * sizes.square()
        # Squares that underflow.
        return norms + width * _TINY * (traces[0].sum(1) + traces[1].sum(1)), sizes

    def _direct(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        """By the gradients of a few examples at a time; and what the rows are long, added up.

        Rows begin alike in memory, whoever stands before them: see products.
        """
        a, b = _align(a), _align(b)
        width, d, p = *a.shape[1:], b.shape[2]
        at_once = max(1, _DIRECT_ELEMENTS // (d * p))
        parts = zip(a.split(at_once), b.split(at_once), strict=True)
        norms = torch.cat([squares(self._gradients(*part, 16)) for part in parts])
        inputs = _sum_squares(a) * self.with_weight + float(self.with_bias)
        sizes = ((inputs + _TINY) * (_sum_squares(b) + _TINY)).sqrt()
        sizes = sizes.sum(1) * enlarge(_depth(d) + _depth(p) + width, a.dtype)
        hidden = rounding(width + _halving_depth(width, 16), a.dtype) * sizes
        return (norms.sqrt() + hidden).square(), sizes

    def weighted_sum(self, weights: Tensor, numbered: Numbered | None = None) -> dict[str, Tensor]:
        out = empty_sum(self.layer)
        for call in self.calls:
            # Of a layer that is used once, or one term's rows would be in several blocks.
            in_blocks = numbered is not None and len(self.calls) == 1
            rows = _rows_in_turn(call, self.count) if in_blocks else None
            if numbered is None or rows is None or weights.device.type != "cpu":
                self._add(out, call, weights.double())
                continue
            light = self._choose_light(rows, weights)
            self._add_blocks(out, call, light, numbered.rows_of_blocks(rows, _BLOCK_ROWS))
            if light is not weights:
                self._add(out, call, (weights - light).double())
        return out

    def _choose_light(self, rows: Tensor | int, weights: Tensor) -> Tensor:
        """The weights of who may be in a block, of ``rows`` each; zeros for others."""
        light = self._light
        if isinstance(rows, Tensor) or rows > _BLOCK_ROWS:
            fits = torch.as_tensor(rows) <= _BLOCK_ROWS
            light = fits.expand(len(weights)) if light is None else fits & light
        if light is None or bool(light.all()):
            return weights
        return torch.where(light, weights, 0.0)

    def _add(self, out: dict[str, Tensor], call: Call, weights: Tensor) -> None:
        """Add what a call gives, in float64."""
        inputs, grads, factors = self._rows(call, weights)
        pieces = zip(*(part.split(_ROWS_AT_ONCE) for part in (inputs, grads, factors)), strict=True)
        drop = not _all(weights)
        for x, gradient, factor in pieces:
            gradient, x = gradient * factor, x.double()
            if drop:
                gradient, x = _finite(gradient), _finite(x)
            if self.with_weight:
                out["weight"].addmm_(gradient.t(), x)
            if self.with_bias:
                out["bias"] += gradient.sum(0)

    def _add_blocks(
        self, out: dict[str, Tensor], call: Call, weights: Tensor, blocks: list[int]
    ) -> None:
        """Add what a call gives, a block of rows in its own precision and the blocks in float64."""
        inputs, grads, factors = self._rows(call, weights)
        grads = grads * factors
        if not _all(weights):
            inputs, grads = _finite(inputs), _finite(grads)
        if self.with_bias:  # an example's own rows first
            own = _sum_rows(grads.view_as(call.grad), call.rows, self.layer.bias.shape)
            out["bias"] += own.sum(0, dtype=torch.float64)
        if self.with_weight:
            # Many small products: numpy calls them at half of torch's price.
            total, x, gradient = out["weight"].numpy(), inputs.numpy(), grads.numpy()
            product = np.empty(total.shape, gradient.dtype)
            start = 0
            with one_thread_of_numpy():
                for size in blocks:
                    rows = slice(start, start + size)
                    np.dot(gradient[rows].T, x[rows], out=product)
                    total += product
                    start += size

    def _rows(self, call: Call, weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What went in, the gradient at what came out, and the weight, row by row."""
        if call.rows is None:
            repeats = math.prod(call.grad.shape[1:-1])
            factors = weights.unsqueeze(1)
            if repeats != 1:
                factors = factors.expand(-1, repeats).reshape(-1, 1)
        else:
            factors = weights[_owner(call, self.count)].unsqueeze(1)
        return _flat(call.inputs[0]), _flat(call.grad), factors


class EmbeddingRule:
    """``nn.Embedding``: rows of one example with the same id share a gradient row."""

    def __init__(self, layer: Any, calls: Sequence[Call], count: int) -> None:
        self.layer, self.count = layer, count
        ids = torch.cat([call.inputs[0].flatten() for call in calls])
        grads = torch.cat([_flat(call.grad) for call in calls])
        if layer.padding_idx is not None:
            grads = grads * (ids != layer.padding_idx).unsqueeze(1)
        owner = _join_owners(calls, count).owner.long()
        keys, place = torch.unique(owner * layer.num_embeddings + ids, return_inverse=True)
        self.owner, self.ids = keys // layer.num_embeddings, keys % layer.num_embeddings
        self.gradients = grads.new_zeros(len(keys), grads.shape[1]).index_add_(0, place, grads)

    def squared_norms(self) -> Tensor:
        # A long running sum: in float32 it would drift.
        of_rows = _sum_squares(self.gradients).double()
        out = of_rows.new_zeros(self.count).index_add_(0, self.owner, of_rows)
        kind = self.gradients.dtype
        return out.to(kind) * enlarge(_depth(self.gradients.shape[1]), kind)

    def weighted_sum(self, weights: Tensor, numbered: Numbered | None = None) -> dict[str, Tensor]:
        rows = self.gradients * weights.double()[self.owner].unsqueeze(1)
        out = torch.zeros_like(self.layer.weight, dtype=torch.float64)
        return {"weight": out.index_add_(0, self.ids, rows if _all(weights) else _finite(rows))}


Local = Callable[[Any, Tensor, Tensor], dict[str, Tensor]]


def small(local: Local) -> type:
    """The rule of a layer with few parameters: per-example gradients, held as they are.

    ``local(layer, input, grad)`` gives what each row adds to each parameter's gradient.
    """

    class SmallRule:
        def __init__(self, layer: Any, calls: Sequence[Call], count: int) -> None:
            self.gradients: dict[str, Tensor] = {}
            for call in calls:
                for name, rows in local(layer, call.inputs[0], call.grad).items():
                    shape = getattr(layer, name).shape
                    total = _sum_rows(rows, call.rows, shape)
                    self.gradients[name] = self.gradients.get(name, 0) + total

        def squared_norms(self) -> Tensor:
            return squares(self.gradients)

        def weighted_sum(
            self, weights: Tensor, numbered: Numbered | None = None
        ) -> dict[str, Tensor]:
            return {name: combine(rows, weights) for name, rows in self.gradients.items()}

    return SmallRule


def _affine(layer: Any, normalised: Tensor, grad: Tensor) -> dict[str, Tensor]:
    out = {}
    if layer.weight is not None and layer.weight.requires_grad:
        out["weight"] = normalised * grad
    if layer.bias is not None and layer.bias.requires_grad:
        out["bias"] = grad
    return out


def _layer_norm(layer: Any, x: Tensor, grad: Tensor) -> dict[str, Tensor]:
    if x.dim() <= len(layer.normalized_shape):
        raise UnprovenError(
            f"nn.LayerNorm({list(layer.normalized_shape)}) normalises over the examples of a "
            "batch. Leave the first dimension out of its shape."
        )
    return _affine(layer, F.layer_norm(x, layer.normalized_shape, eps=layer.eps), grad)


def _instance_norm(layer: Any, x: Tensor, grad: Tensor) -> dict[str, Tensor]:
    # (examples, channels, length): channels go last, as everywhere else
    if x.dim() != 3:
        raise UnprovenError(
            "nn.InstanceNorm1d takes (examples, channels, length). Got an input of shape "
            f"{tuple(x.shape)} instead, whose rows it would not keep apart."
        )
    normalised = F.instance_norm(x, eps=layer.eps)
    return _affine(layer, normalised.transpose(1, 2), grad.transpose(1, 2))


RULES: dict[type[nn.Module], type[Rule]] = {
    nn.Linear: LinearRule,
    nn.Embedding: EmbeddingRule,
    nn.LayerNorm: small(_layer_norm),
    nn.InstanceNorm1d: small(_instance_norm),
    Affine: small(_affine),
    HeadDot: small(lambda layer, x, grad: {"weight": x * grad.unsqueeze(-1)}),
    SelfWeight: small(lambda layer, x, grad: {"eps": (x * grad).unsqueeze(-1)}),
}


def squares(gradients: dict[str, Tensor]) -> Tensor:
    """|gradient|^2 of each example, a little enlarged."""
    flat = [rows.reshape(len(rows), -1) for rows in gradients.values()]
    roundings = max(_depth(rows.shape[1]) for rows in flat) + len(flat)
    return reduce(torch.add, map(_sum_squares, flat)) * enlarge(roundings, flat[0].dtype)


def combine(gradients: Tensor, weights: Tensor) -> Tensor:
    r"""\sum_i weights_i gradients_i, in float64. A weight of 0 drops a gradient, even a NaN."""
    if not _all(weights):
        gradients, weights = gradients[weights > 0], weights[weights > 0]
    flat = gradients.reshape(len(gradients), math.prod(gradients.shape[1:]))
    out = torch.zeros(flat.shape[1], dtype=torch.float64, device=flat.device)
    at_once = max(1, min(_ROWS_AT_ONCE, _ROWS_AT_ONCE * 128 // max(flat.shape[1], 1)))
    for part, factors in zip(flat.split(at_once), weights.double().split(at_once), strict=True):
        out.addmv_(part.double().t(), factors)
    return out.view(gradients.shape[1:])


def rounding(roundings: int, kind: torch.dtype) -> float:
    """What that many roundings in a row may add, as a part of the sizes of what is added."""
    share = roundings * torch.finfo(kind).eps / 2
    return share / (1 - share) if share < 0.5 else math.inf


def enlarge(roundings: int, kind: torch.dtype) -> float:
    """The factor for a squared norm that came through so many roundings."""
    return 1 + 2 * rounding(roundings + _SPARE, kind)


def _sum_squares(values: Tensor) -> Tensor:
    """Squares added up along the last dimension, through :func:`_depth` roundings."""
    if values.shape[-1] <= _LONG:
        return values.square().sum(-1)
    return reduce(torch.add, (part.square().sum(-1) for part in values.split(_LONG, -1)))


def _depth(length: int) -> int:
    return min(length, _LONG) + -(-length // _LONG)


def _all(weights: Tensor) -> bool:
    return bool((weights > 0).all())


def _finite(values: Tensor) -> Tensor:
    """With zeros for what is not finite: that is in rows of weight 0 only."""
    return values.nan_to_num(0.0, 0.0, 0.0)


def _product(x: Tensor, y: Tensor, short: int) -> Tensor:
    """``x y^T`` for each example, long sums by halves: see :func:`_halving_depth`."""
    half = x.shape[2] // 2
    if half < short:
        return torch.bmm(x, y.transpose(1, 2))
    first = _product(x[..., :half], y[..., :half], short)
    return first.add_(_product(x[..., half:], y[..., half:], short))


def _with_itself(rows: Tensor) -> Tensor:
    """Products of an example's rows with each other. Rows begin alike in memory: see products."""
    rows = _align(rows)
    return _product(rows, rows, 160)


def _align(rows: Tensor) -> Tensor:
    """With columns of zeros up to a multiple of four."""
    return F.pad(rows, (0, -rows.shape[-1] % 4)) if rows.shape[-1] % 4 else rows


def _halving_depth(length: int, short: int) -> int:
    """Through how many roundings a sum goes that is halved until a half is short."""
    half = length // 2
    return length if half < short else 1 + _halving_depth(length - half, short)


def _diagonal(squared: Tensor) -> Tensor:
    return squared.diagonal(dim1=1, dim2=2)


def _side_by_side(parts: list[Tensor], dim: int) -> Tensor:
    """Rows of several calls as one; a single one is not copied."""
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim)


def _flat(values: Tensor) -> Tensor:
    return values.reshape(-1, values.shape[-1])


def _table(values: Tensor, count: int) -> Tensor:
    """Rows as (examples, T, channels)."""
    return values.reshape(count, -1, values.shape[-1])


def _join_owners(calls: Sequence[Call], count: int) -> Rows:
    """Whose the rows of all calls are, one call after the other."""
    first = calls[0]
    if len(calls) == 1 and first.rows is not None and first.grad.dim() == 2:
        return first.rows  # its buckets may be at hand
    return Rows(torch.cat([_owner(call, count) for call in calls]), count)


def _owner(call: Call, count: int) -> Tensor:
    """The example of each row of a call, when all dimensions but the last are flattened."""
    device = call.grad.device
    leading = torch.arange(count) if call.rows is None else call.rows.owner
    leading = leading.to(device)
    return leading.repeat_interleave(math.prod(call.grad.shape[1:-1]))


def _rows_in_turn(call: Call, count: int) -> Tensor | int | None:
    """How many rows each example has, or all of them, if one's rows follow the other's."""
    if call.rows is None:
        return math.prod(call.grad.shape[:-1]) // count
    rows = call.rows if call.grad.dim() == 2 else Rows(_owner(call, count), count)
    return rows.of_each


def _sum_rows(values: Tensor, rows: Rows | None, shape: torch.Size) -> Tensor:
    """What rows contribute, added up for each example: (examples, *shape)."""
    between = math.prod(values.shape[1 : values.dim() - len(shape)])
    total = values.reshape(len(values), between, *shape)
    total = total.squeeze(1) if between == 1 else total.sum(1)
    return total if rows is None else rows.sum(total)
