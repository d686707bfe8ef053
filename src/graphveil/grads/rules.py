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
what is scaled down to the bound stays below it. Where the gradients themselves are held, they are
what is added. Elsewhere a norm is enlarged by what rounding may have hidden from it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from graphveil._errors import UnprovenError
from graphveil.grads.layers import Affine, HeadDot, SelfWeight
from graphveil.grads.rows import Rows

# Of a squared norm: what rounding hides when nothing cancels (measured below 3e-6).
ENLARGE = 1 + 4e-6
# What cancellation may hide, in units of the rounding error: of the absolute terms of a Gram norm
# (measured below 12.5), of the sizes of the rows of a gradient (measured below 3.7).
_GRAM, _DIRECT = 20.0, 5.0
# Rows 32 times as large as their sum leave rounding errors wherever they are added; from there on
# they are scaled down by their sizes.
_HEAVY = 32.0**2
_TINY = 1e-36  # below it squares underflow
_DIRECT_ELEMENTS = 1 << 22  # per-example gradients held at once


@dataclass
class Call:
    """One use of a layer: its inputs, the gradient at its output, and whose rows they are."""

    inputs: tuple[Tensor, ...]
    grad: Tensor
    rows: Rows | None

    def absolute(self) -> Call:
        """The same call with everything positive."""
        return Call(tuple(x.abs() for x in self.inputs), self.grad.abs(), self.rows)


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
        self._held: dict[str, Tensor] = {}  # per-example gradients, if the norm needed them anyway

    def squared_norms(self) -> Tensor:
        calls, count = self.calls, self.count
        if all(call.rows is None for call in calls):
            a = _side_by_side([_table(call.inputs[0], count) for call in calls], 1)
            b = _side_by_side([_table(call.grad, count) for call in calls], 1)
            if a.shape[1] == 1 or not self._holds(a, b):
                return self._norms(a, b)
            self._held = self._gradients(a, b, 64)
            return squares(self._held)
        rows = _owned(calls, count)
        a = _side_by_side([_flat(call.inputs[0]) for call in calls], 0)
        b = _side_by_side([_flat(call.grad) for call in calls], 0)
        hold, out = self._holds(a, b), b.new_zeros(count)
        for ids, table in rows.buckets:
            part = rows.padded(a, table), rows.padded(b, table)
            if not hold:
                out[ids] = self._norms(*part)
                continue
            for name, each in self._gradients(*part, 64).items():
                held = self._held.setdefault(name, each.new_zeros(count, *each.shape[1:]))
                held[ids] = each
        return squares(self._held) if self._held else out

    def _holds(self, a: Tensor, b: Tensor) -> bool:
        """Whether the gradients themselves are the cheapest way to their norms, and fit."""
        d, p, rows = a.shape[-1], b.shape[-1], b.numel() // b.shape[-1]
        if not self.with_weight:
            return True
        return self.count * d * p <= min(rows * (d + p), _DIRECT_ELEMENTS)

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
            of_inputs = (a * a).sum((1, 2)) * self.with_weight + float(self.with_bias)
            return (of_inputs + _TINY) * ((b * b).sum((1, 2)) + _TINY) * ENLARGE
        if width * (d + p) >= d * p:
            return self._direct(a, b)
        of_inputs, of_grads = _product(a, a, 160), _product(b, b, 160)
        terms = (of_inputs + float(self.with_bias)) * of_grads
        hidden = _GRAM * torch.finfo(a.dtype).eps * terms.abs().sum((1, 2))
        hidden += width * _TINY * (_trace(of_inputs) + _trace(of_grads))  # squares that underflow
        return (terms.sum((1, 2)).clamp_min(0) + hidden) * ENLARGE

    def _direct(self, a: Tensor, b: Tensor) -> Tensor:
        """By the gradients of a few examples at a time, enlarged by what rounding may hide."""
        at_once = max(1, _DIRECT_ELEMENTS // (a.shape[2] * b.shape[2]))
        parts = zip(a.split(at_once), b.split(at_once), strict=True)
        found = torch.cat([squares(self._gradients(*part, 16)) for part in parts])
        of_inputs = torch.linalg.vector_norm(a, dim=2).square() + float(self.with_bias)
        sizes = (of_inputs.sqrt() * torch.linalg.vector_norm(b, dim=2)).sum(1)
        eps = torch.finfo(a.dtype).eps
        heavy = (sizes.square() - _HEAVY * found).clamp_min(0)
        return (found.sqrt() + _DIRECT * eps * sizes).square() + 16 * eps * heavy

    def weighted_sum(self, weights: Tensor) -> dict[str, Tensor]:
        if self._held:
            return {name: combined(each, weights) for name, each in self._held.items()}
        out: dict[str, Tensor] = {}
        for call in self.calls:
            grads = _weighted(call, weights)
            parts = {"bias": grads.sum(0)} if self.with_bias else {}
            if self.with_weight:
                inputs = _flat(call.inputs[0])
                inputs = inputs if _all(weights) else _finite(inputs)
                parts["weight"] = _long_product(grads.t(), inputs.t())
            for name, value in parts.items():
                out[name] = out[name] + value if name in out else value
        return out


class EmbeddingRule:
    """``nn.Embedding``: rows of one example with the same id share a gradient row."""

    def __init__(self, layer: Any, calls: Sequence[Call], count: int) -> None:
        self.layer, self.count = layer, count
        ids = torch.cat([call.inputs[0].flatten() for call in calls])
        grads = torch.cat([_flat(call.grad) for call in calls])
        if layer.padding_idx is not None:
            grads = grads * (ids != layer.padding_idx).unsqueeze(1)
        owner = _owned(calls, count).owner.long()
        keys, place = torch.unique(owner * layer.num_embeddings + ids, return_inverse=True)
        self.owner, self.ids = keys // layer.num_embeddings, keys % layer.num_embeddings
        self.gradients = grads.new_zeros(len(keys), grads.shape[1]).index_add_(0, place, grads)

    def squared_norms(self) -> Tensor:
        # A long running sum: in float32 it would drift.
        of_rows = self.gradients.square().sum(1).double()
        out = of_rows.new_zeros(self.count).index_add_(0, self.owner, of_rows)
        return out.to(self.gradients.dtype) * ENLARGE

    def weighted_sum(self, weights: Tensor) -> dict[str, Tensor]:
        rows = self.gradients * weights[self.owner].unsqueeze(1)
        out = torch.zeros_like(self.layer.weight)
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
                    total = _summed(rows, call.rows, shape)
                    self.gradients[name] = self.gradients.get(name, 0) + total

        def squared_norms(self) -> Tensor:
            return squares(self.gradients)

        def weighted_sum(self, weights: Tensor) -> dict[str, Tensor]:
            return {name: combined(each, weights) for name, each in self.gradients.items()}

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
    parts = [each.reshape(len(each), -1).square().sum(1) for each in gradients.values()]
    return torch.stack(parts).sum(0) * ENLARGE


def combined(gradients: Tensor, weights: Tensor) -> Tensor:
    r"""\sum_i weights_i gradients_i. A weight of 0 drops a gradient, even one that is NaN."""
    if not _all(weights):
        gradients, weights = gradients[weights > 0], weights[weights > 0]
    flat = gradients.reshape(len(gradients), math.prod(gradients.shape[1:]))
    return _long_product(weights.unsqueeze(0), flat.t()).view(gradients.shape[1:])


def _all(weights: Tensor) -> bool:
    return bool((weights > 0).all())


def _finite(values: Tensor) -> Tensor:
    """With zeros for what is not finite: that is in rows of weight 0 only."""
    return values.nan_to_num(0.0, 0.0, 0.0)


def _product(x: Tensor, y: Tensor, short: int) -> Tensor:
    """``x y^T`` for each example, long sums by halves: plain ones drift, by 1e-8 a term."""
    half = x.shape[2] // 2
    if half < short:
        return torch.bmm(x, y.transpose(1, 2))
    first = _product(x[..., :half], y[..., :half], short)
    return first.add_(_product(x[..., half:], y[..., half:], short))


def _long_product(x: Tensor, y: Tensor) -> Tensor:
    """``x y^T`` over the rows of a batch. Matrix products block their sums, but not narrow ones."""
    if min(len(x), len(y)) >= 16:
        return x @ y.t()
    return _product(x.unsqueeze(0), y.unsqueeze(0), 256).squeeze(0)


def _trace(squared: Tensor) -> Tensor:
    return squared.diagonal(dim1=1, dim2=2).sum(1)


def _side_by_side(parts: list[Tensor], dim: int) -> Tensor:
    """Rows of several calls as one; a single one is not copied."""
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim)


def _flat(values: Tensor) -> Tensor:
    return values.reshape(-1, values.shape[-1])


def _table(values: Tensor, count: int) -> Tensor:
    """Rows as (examples, T, channels)."""
    return values.reshape(count, -1, values.shape[-1])


def _owned(calls: Sequence[Call], count: int) -> Rows:
    """Whose the rows of all calls are, one call after the other."""
    first = calls[0]
    if len(calls) == 1 and first.rows is not None and first.grad.dim() == 2:
        return first.rows  # its buckets may be at hand
    return Rows(torch.cat([_owner(call, count) for call in calls]), count)


def _owner(call: Call, count: int) -> Tensor:
    """The example of each row of a call, when all dimensions but the last are flattened."""
    if call.rows is None:
        leading = torch.arange(count, device=call.grad.device)
    else:
        leading = call.rows.owner
    return leading.repeat_interleave(math.prod(call.grad.shape[1:-1]))


def _weighted(call: Call, weights: Tensor) -> Tensor:
    """Output gradients times their examples' weights, as (rows, channels)."""
    leading = weights if call.rows is None else weights[call.rows.owner]
    out = _flat(call.grad * leading.view(-1, *[1] * (call.grad.dim() - 1)))
    return out if _all(weights) else _finite(out)


def _summed(values: Tensor, rows: Rows | None, shape: torch.Size) -> Tensor:
    """What rows contribute, added up for each example: (examples, *shape)."""
    between = math.prod(values.shape[1 : values.dim() - len(shape)])
    total = values.reshape(len(values), between, *shape).sum(1)
    return total if rows is None else rows.sum(total)
