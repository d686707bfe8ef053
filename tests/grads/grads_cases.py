"""Batches of every layout, and the oracle: each example alone, by autograd in float64."""

import copy
import math
from contextlib import nullcontext
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from graphveil.grads import Automatic, ClippedSum, Flat, PerLayer, ragged
from graphveil.grads.layers import Affine, HeadDot, SelfWeight

LAYOUTS = ("rows", "table", "deep table", "ragged", "ragged table")


@dataclass
class Part:
    """One use of a layer: what goes in, its rows last, and the gradient at what comes out."""

    inputs: tuple[Tensor, ...]
    target: Tensor
    owner: Tensor | None = None

    def of(self, example):
        """The rows of one example, as a batch of one."""
        rows = slice(example, example + 1) if self.owner is None else self.owner == example
        owner = None if self.owner is None else torch.zeros_like(self.owner[rows])
        return Part((*self.inputs[:-1], self.inputs[-1][rows]), self.target[rows], owner)


def losses(module, batch):
    """Losses whose gradient at the output of every use is the target of that use."""
    parts, count = batch
    total = parts[0].target.new_zeros(count)
    for part in parts:
        if isinstance(module, nn.InstanceNorm1d) and not len(part.target):
            continue  # torch refuses no rows
        with nullcontext() if part.owner is None else ragged(part.owner, count):
            values = (module(*part.inputs) * part.target).flatten(1).sum(1)
        total = total + values if part.owner is None else total.index_add(0, part.owner, values)
    return total


def one_by_one(batch):
    """Batches of one example each."""
    if isinstance(batch[-1], int):
        parts, count = batch
        return [([part.of(i) for part in parts], 1) for i in range(count)]
    return [tuple(x[i : i + 1] for x in batch) for i in range(len(batch[0]))]


def mapped(function, value):
    """A batch with every float replaced by a function of it."""
    if isinstance(value, Tensor):
        return function(value) if value.is_floating_point() else value
    if isinstance(value, Part):
        return replace(value, inputs=mapped(function, value.inputs), target=function(value.target))
    if isinstance(value, (tuple, list)):
        return type(value)(mapped(function, each) for each in value)
    return value


# --- the oracle -----------------------------------------------------------------------------------


def per_example(module, batch, losses=losses):
    """The gradient of each example alone, by parameter name, in float64."""
    exact = copy.deepcopy(module).double()
    trained = {name: p for name, p in exact.named_parameters() if p.requires_grad}
    out = []
    for single in one_by_one(mapped(Tensor.double, batch)):
        loss = losses(exact, single).sum()
        grads = [None] * len(trained)
        if loss.requires_grad:
            grads = torch.autograd.grad(loss, list(trained.values()), allow_unused=True)
        pairs = zip(trained.items(), grads, strict=True)
        out.append({name: torch.zeros_like(p) if g is None else g for (name, p), g in pairs})
    return out


def norm(gradient):
    """Of all parameters together."""
    return math.sqrt(sum(float((value.double() ** 2).sum()) for value in gradient.values()))


def block_of(name):
    return name.rpartition(".")[0]


def blocks(gradient):
    """The gradient cut by layers."""
    names = dict.fromkeys(map(block_of, gradient))
    return {b: {n: v for n, v in gradient.items() if block_of(n) == b} for b in names}


def factor(clipping, gradient, name):
    """What a parameter's gradient is multiplied by, written out as in the papers."""
    whole = norm(gradient)
    if isinstance(clipping, Flat):
        return min(1.0, clipping.max_grad_norm / whole) if whole else 1.0
    if isinstance(clipping, Automatic):
        return clipping.max_grad_norm / (whole + clipping.gamma)
    if isinstance(clipping, PerLayer):
        bound = clipping.max_grad_norm
        bound = bound if isinstance(bound, float) else bound[block_of(name)]
        own = norm(blocks(gradient)[block_of(name)])
        return min(1.0, bound / own) if own else 1.0
    return 1.0


def clipped_sum(gradients, clipping):
    """The sum of clipped gradients, and the sum of their absolute values."""
    total = {name: torch.zeros_like(value) for name, value in gradients[0].items()}
    size = copy.deepcopy(total)
    for gradient in gradients:
        for name, value in gradient.items():
            total[name] += value * factor(clipping, gradient, name)
            size[name] += value.abs() * factor(clipping, gradient, name)
    return total, size


def relative_error(found, gradients, clipping):
    """The largest difference from the oracle, to the largest entry it could have."""
    wanted, size = clipped_sum(gradients, clipping)
    assert found.keys() == wanted.keys()
    scale = max(float(value.max()) for value in size.values())
    difference = max(float((found[name] - wanted[name]).abs().max()) for name in wanted)
    return difference / scale if scale else difference


def error_of(module, batch, clipping, losses=losses):
    """The engine against the oracle."""
    found = ClippedSum(module, losses, clipping)([batch])
    return relative_error(found, per_example(module, batch, losses), clipping)


def middling(gradients):
    """A bound that some norms exceed and others do not."""
    norms = sorted(size for size in map(norm, gradients) if size > 0)
    return norms[len(norms) // 2] if norms else 1.0


class Spy:
    """A clipping that remembers what it was given and what it said."""

    def __init__(self, clipping):
        self.clipping, self.scales = clipping, clipping.scales
        self.norms, self.said = {}, {}

    def factors(self, squared_norms):
        self.norms = {name: value.double().sqrt() for name, value in squared_norms.items()}
        self.said = self.clipping.factors(squared_norms)
        return self.said


class Pair(nn.Module):
    """A bilinear layer: one the engine has no rule for."""

    def __init__(self, left, right, out):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(out, left, right))

    def forward(self, x, z):
        return torch.einsum("bi,bj,oij->bo", x, z, self.weight)


# --- layers and batches of all kinds --------------------------------------------------------------


@dataclass
class Kind:
    """A layer, and what one row of its input (none for ids) and of its output looks like."""

    make: object
    row: object
    out: object


KINDS = {
    "Linear": Kind(nn.Linear, lambda d, p: (d,), lambda d, p: (p,)),
    "Linear without bias": Kind(
        lambda d, p: nn.Linear(d, p, bias=False), lambda d, p: (d,), lambda d, p: (p,)
    ),
    "Embedding": Kind(lambda d, p: nn.Embedding(4, p), None, lambda d, p: (p,)),
    "Embedding with padding": Kind(
        lambda d, p: nn.Embedding(4, p, padding_idx=-1), None, lambda d, p: (p,)
    ),
    "LayerNorm": Kind(lambda d, p: nn.LayerNorm(d), lambda d, p: (d,), lambda d, p: (d,)),
    "LayerNorm without bias": Kind(
        lambda d, p: nn.LayerNorm(d, bias=False), lambda d, p: (d,), lambda d, p: (d,)
    ),
    "LayerNorm of matrices": Kind(
        lambda d, p: nn.LayerNorm((p, d)), lambda d, p: (p, d), lambda d, p: (p, d)
    ),
    "InstanceNorm1d": Kind(
        lambda d, p: nn.InstanceNorm1d(d, affine=True), lambda d, p: (d, p + 1),
        lambda d, p: (d, p + 1),
    ),
    "Affine": Kind(lambda d, p: Affine(d), lambda d, p: (d,), lambda d, p: (d,)),
    "HeadDot": Kind(lambda d, p: HeadDot(p, d), lambda d, p: (p, d), lambda d, p: (p,)),
    "SelfWeight": Kind(lambda d, p: SelfWeight(), lambda d, p: (d,), lambda d, p: (d,)),
}  # fmt: skip


def layer_of(kind, d, p, rng):
    """A layer with random parameters, in float64."""
    layer = KINDS[kind].make(d, p).double()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=rng, dtype=torch.float64))
    return layer


def part_of(kind, layout, count, d, p, rng, width=None):
    """A use of the layer on rows in some layout; sizes of examples and of entries differ a lot."""

    def normal(*shape):
        value = torch.randn(shape, generator=rng, dtype=torch.float64)
        spread = torch.rand(shape[:1], generator=rng, dtype=torch.float64) * 3 - 1.5
        return value * 10 ** spread.view(-1, *[1] * (len(shape) - 1))

    def whole(high):
        return int(torch.randint(high, (), generator=rng))

    many = whole(9) if width is None else width
    owner = None
    leading = {"rows": (count,), "table": (count, many), "deep table": (count, whole(3) + 1, many)}
    if layout.startswith("ragged"):
        # Squares of uniform numbers: the first examples get most rows, some get none.
        owner = (torch.rand(count * many, generator=rng) ** 2 * count).long()
        leading = {"ragged": owner.shape, "ragged table": (*owner.shape, whole(3) + 1)}
    shape = leading[layout]
    spec = KINDS[kind]
    target = normal(*shape, *spec.out(d, p))
    if spec.row is not None:
        return Part((normal(*shape, *spec.row(d, p)),), target, owner)
    return Part((torch.randint(4, shape, generator=rng),), target, owner)


def layouts_of(kind):
    """A norm over an example's own length takes rows only: (rows, channels, length)."""
    return ("rows", "ragged") if kind == "InstanceNorm1d" else LAYOUTS
