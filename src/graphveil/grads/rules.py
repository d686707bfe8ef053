r"""How each kind of layer gives the norms, and the weighted sum, of its per-example gradients.

A rule is made for one layer and one chunk of examples, after the backward pass, from the calls that
were recorded: what went in, and the loss's gradient at what came out. It never needs a per-example
gradient unless that is the cheapest way. With A the rows that went into a Linear and B the
gradients at its output, an example's gradient is A^T B, and

    |A^T B|^2 = <A A^T, B B^T>           (Gram: T^2 (d + p) operations for T rows)
              = |a|^2 |b|^2               for a single row.

A layer called several times has one gradient, the sum over its calls: rows of all calls are joined
before a norm is taken, since cross terms count.

Every rule errs on the safe side: a norm is never read smaller than it is, so that what is scaled
down to the bound stays below it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from graphveil.grads.layers import Affine, HeadDot, SelfWeight, TableLinear
from graphveil.grads.rows import Rows

# Sums of squares in float32 are good to a few 1e-7; norms are enlarged by more than that.
_ENLARGE = 1 + 4e-6
# Of the absolute terms of a Gram norm, what cancellation may hide (measured below 2e-7).
_CANCELLATION = 1e-6
_DIRECT_ELEMENTS = 1 << 22  # per-example gradients held at once


@dataclass
class Call:
    """One use of a layer: its inputs, the gradient at its output, and whose rows they are."""

    inputs: tuple[Tensor, ...]
    grad: Tensor
    rows: Rows | None


class Rule(Protocol):
    """What the engine asks of a layer."""

    def __init__(self, layer: Any, calls: Sequence[Call], count: int) -> None: ...

    def squared_norms(self) -> Tensor:
        """|gradient|^2 of each example, over all parameters of the layer; never too small."""

    def weighted_sum(self, weights: Tensor) -> dict[str, Tensor]:
        r"""\sum_i weights_i gradient_i, by parameter name."""


class LinearRule:
    """``nn.Linear`` on plain rows, on fixed-width tables and on ragged rows."""

    def __init__(self, layer: Any, calls: Sequence[Call], count: int) -> None:
        self.layer, self.calls, self.count = layer, calls, count
        self.with_weight = layer.weight.requires_grad
        self.with_bias = layer.bias is not None and layer.bias.requires_grad
        self._per_example: Tensor | None = None  # kept if the norm needed them anyway

    def rows(self, call: Call) -> Tensor:
        """What went in, with the rows as the gradient has them."""
        return call.inputs[0]

    def squared_norms(self) -> Tensor:
        first = self.calls[0]
        if len(self.calls) == 1 and first.rows is not None:
            out = first.grad.new_zeros(self.count)
            inputs, grads = _flat(self.rows(first)), _flat(first.grad)
            for ids, table in first.rows.buckets:
                padded = (first.rows.padded(values, table) for values in (inputs, grads))
                out[ids] = self._norms(*padded, keep=False)
            return out
        inputs = torch.cat([_joined(self.rows(c), c.rows, self.count) for c in self.calls], 1)
        grads = torch.cat([_joined(c.grad, c.rows, self.count) for c in self.calls], 1)
        return self._norms(inputs, grads, keep=True)

    def _norms(self, a: Tensor, b: Tensor, *, keep: bool) -> Tensor:
        """Squared norms from rows (examples, T, d) and output gradients (examples, T, p)."""
        examples, width, d = a.shape
        p = b.shape[2]
        if width == 1:
            of_inputs = (a * a).sum((1, 2)) * self.with_weight + float(self.with_bias)
            return of_inputs * (b * b).sum((1, 2)) * _ENLARGE
        if self.with_weight and width * (d + p) >= d * p:
            return self._direct(a, b, keep and examples * d * p <= _DIRECT_ELEMENTS)
        gram = torch.bmm(a, a.transpose(1, 2)) * self.with_weight + float(self.with_bias)
        terms = gram * torch.bmm(b, b.transpose(1, 2))
        return (terms.sum((1, 2)) + _CANCELLATION * terms.abs().sum((1, 2))) * _ENLARGE

    def _direct(self, a: Tensor, b: Tensor, keep: bool) -> Tensor:
        """By the per-example gradients themselves, a slice of the examples at a time."""
        at_once = max(1, _DIRECT_ELEMENTS // (a.shape[2] * b.shape[2]))
        norms = []
        for start in range(0, len(a), at_once):
            part = slice(start, start + at_once)
            gradient = torch.bmm(b[part].transpose(1, 2), a[part])
            norms.append((gradient * gradient).sum((1, 2)))
        if keep:
            self._per_example = gradient
        squares = torch.cat(norms) if norms else a.new_zeros(0)
        if self.with_bias:
            bias = b.sum(1)
            squares = squares + (bias * bias).sum(1)
        return squares * _ENLARGE

    def weighted_sum(self, weights: Tensor) -> dict[str, Tensor]:
        out = {}
        scaled = [_weighted(call.grad, call.rows, weights) for call in self.calls]
        if self.with_weight and self._per_example is not None:
            gradients = self._per_example
            out["weight"] = (weights @ gradients.flatten(1)).view_as(self.layer.weight)
        elif self.with_weight:
            parts = zip(self.calls, scaled, strict=True)
            products = [grads.t() @ _flat(self.rows(call)) for call, grads in parts]
            out["weight"] = torch.stack(products).sum(0) if len(products) > 1 else products[0]
        if self.with_bias:
            out["bias"] = torch.cat(scaled).sum(0) if len(scaled) > 1 else scaled[0].sum(0)
        return out


class TableLinearRule(LinearRule):
    """A Linear on rows looked up in a table: they are gathered only when they are needed."""

    def rows(self, call: Call) -> Tensor:
        table, index = call.inputs
        return table[index]


class EmbeddingRule:
    """``nn.Embedding``: rows with the same id share a gradient row."""

    def __init__(self, layer: Any, calls: Sequence[Call], count: int) -> None:
        self.layer, self.calls, self.count = layer, calls, count
        for call in calls:
            if layer.padding_idx is not None:
                real = torch.ne(call.inputs[0], layer.padding_idx)
                call.grad = call.grad * real.unsqueeze(-1)

    def squared_norms(self) -> Tensor:
        ids = torch.cat([_joined_ids(c.inputs[0], c.rows, self.count) for c in self.calls], 1)
        grads = torch.cat([_joined(c.grad, c.rows, self.count) for c in self.calls], 1)
        same = ids.unsqueeze(1) == ids.unsqueeze(2)
        terms = torch.bmm(grads, grads.transpose(1, 2)) * same
        return (terms.sum((1, 2)) + _CANCELLATION * terms.abs().sum((1, 2))) * _ENLARGE

    def weighted_sum(self, weights: Tensor) -> dict[str, Tensor]:
        out = torch.zeros_like(self.layer.weight)
        for call in self.calls:
            out.index_add_(0, call.inputs[0].flatten(), _weighted(call.grad, call.rows, weights))
        return {"weight": out}


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
                    total = _summed(rows, call.rows, count, shape)
                    self.gradients[name] = self.gradients.get(name, 0) + total

        def squared_norms(self) -> Tensor:
            flat = torch.cat([each.flatten(1) for each in self.gradients.values()], 1)
            return (flat * flat).sum(1) * _ENLARGE

        def weighted_sum(self, weights: Tensor) -> dict[str, Tensor]:
            return {
                name: torch.tensordot(weights, each, dims=1)
                for name, each in self.gradients.items()
            }

    return SmallRule


def _affine(layer: Any, normalised: Tensor, grad: Tensor) -> dict[str, Tensor]:
    out = {}
    if layer.weight is not None and layer.weight.requires_grad:
        out["weight"] = normalised * grad
    if layer.bias is not None and layer.bias.requires_grad:
        out["bias"] = grad
    return out


def _layer_norm(layer: Any, x: Tensor, grad: Tensor) -> dict[str, Tensor]:
    return _affine(layer, F.layer_norm(x, layer.normalized_shape, eps=layer.eps), grad)


def _instance_norm(layer: Any, x: Tensor, grad: Tensor) -> dict[str, Tensor]:
    # (examples, channels, length): channels go last, as everywhere else
    normalised = F.instance_norm(x, eps=layer.eps)
    return _affine(layer, normalised.transpose(1, 2), grad.transpose(1, 2))


RULES: dict[type[nn.Module], type[Rule]] = {
    nn.Linear: LinearRule,
    TableLinear: TableLinearRule,
    nn.Embedding: EmbeddingRule,
    nn.LayerNorm: small(_layer_norm),
    nn.InstanceNorm1d: small(_instance_norm),
    Affine: small(_affine),
    HeadDot: small(lambda layer, x, grad: {"weight": x * grad.unsqueeze(-1)}),
    SelfWeight: small(lambda layer, x, grad: {"eps": (x * grad).sum(-1, keepdim=True)}),
}


def _flat(values: Tensor) -> Tensor:
    return values.reshape(-1, values.shape[-1])


def _joined(values: Tensor, rows: Rows | None, count: int) -> Tensor:
    """Rows as (examples, T, channels), padded with zeros if they are ragged."""
    if rows is None:
        return values.reshape(count, -1, values.shape[-1])
    width = max((table.shape[1] for _, table in rows.buckets), default=0)
    flat = _flat(values)
    out = values.new_zeros(count, width, flat.shape[1])
    for ids, table in rows.buckets:
        out[ids, : table.shape[1]] = rows.padded(flat, table)
    return out


def _joined_ids(ids: Tensor, rows: Rows | None, count: int) -> Tensor:
    """Ids as (examples, T); padding gets an id of its own for each place."""
    if rows is None:
        return ids.reshape(count, -1)
    shifted = _joined((ids + 1).unsqueeze(-1), rows, count).squeeze(-1)
    return shifted - 1


def _weighted(grad: Tensor, rows: Rows | None, weights: Tensor) -> Tensor:
    """Output gradients times their examples' weights, as (rows, channels)."""
    if rows is None:
        return _flat(grad * weights.view(-1, *[1] * (grad.dim() - 1)))
    return _flat(grad) * weights[rows.owner].unsqueeze(1)


def _summed(values: Tensor, rows: Rows | None, count: int, shape: torch.Size) -> Tensor:
    """What rows contribute, added up for each example: (examples, *shape)."""
    if rows is None:
        return values.reshape(count, -1, *shape).sum(1)
    return rows.sum(values.reshape(-1, *shape))
