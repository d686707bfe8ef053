r"""The clipped sum of per-example gradients, without per-example gradients.

*Book-keeping*, for each chunk of examples: one forward pass that records what goes into every
layer; one backward pass, to the layers' outputs only; norms layer by layer
(:mod:`graphveil.grads.rules`); then each layer's weighted sum, which is the matrix product a plain
backward pass would have made. There is no second backward pass and no gradient per example.

*By example*: where a layer has no rule, ``torch.func.vmap`` over a few examples at a time; the same
sums, several times slower.

Both are exact. What cannot be done exactly is refused, by name: layers that mix examples, and
parameters used behind the engine's back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from graphveil._errors import InvalidInputError, UnprovenError
from graphveil.grads.clipping import Clipping, Off
from graphveil.grads.rows import current_rows
from graphveil.grads.rules import RULES, Call

Batch = Any
Losses = Callable[[nn.Module, Batch], Tensor]

_MIXING = (
    "BatchNorm", "SyncBatchNorm", "GraphNorm", "PairNorm", "DiffGroupNorm", "GraphSizeNorm",
    "MeanSubtractionNorm", "HeteroBatchNorm",
)  # fmt: skip


class ClippedSum:
    r"""``\sum_i clip(gradient of loss i)`` for one module and one way to compute its losses.

    ``losses(module, batch)`` gives one loss for each example of a batch, in a vector. Example i's
    loss must depend on example i's data alone; this is tested on the first batch.
    """

    def __init__(self, module: nn.Module, losses: Losses, clipping: Clipping) -> None:
        refuse_mixing(module)
        self.module, self.losses, self.clipping = module, losses, clipping
        self.blocks = layers_with_parameters(module)
        if not self.blocks:
            raise InvalidInputError("The module must have a parameter that requires a gradient.")
        self.by_example = any(type(layer) not in RULES for layer in self.blocks.values())
        self._tested = False

    @property
    def scales(self) -> dict[str, float]:
        """The noise unit of every parameter (see :mod:`graphveil.grads.clipping`)."""
        of_block = self.clipping.scales(list(self.blocks))
        return {name: of_block[name.rpartition(".")[0]] for name in self.zeros()}

    def zeros(self) -> dict[str, Tensor]:
        """A sum with no terms: what an empty batch gives."""
        return {
            name: torch.zeros_like(value)
            for name, value in self.module.named_parameters()
            if value.requires_grad
        }

    def __call__(self, batches: Iterable[Batch]) -> dict[str, Tensor]:
        """The clipped sum over all examples of all ``batches``, by parameter name."""
        total = self.zeros()
        for batch in batches:
            if not self._tested:
                self._test(batch)
            add = self._sum_by_example if self.by_example else self._sum_by_book
            for name, value in add(batch).items():
                total[name] += value
        return total

    # --- book-keeping ---------------------------------------------------------------------------

    def _sum_by_book(self, batch: Batch) -> dict[str, Tensor]:
        calls, count = self._record(batch)
        rules = {
            name: RULES[type(layer)](layer, calls[name], count)
            for name, layer in self.blocks.items()
            if calls[name]
        }
        if not rules:  # no examples, or losses without a gradient
            return {}
        with torch.no_grad():
            if isinstance(self.clipping, Off):
                ones = torch.ones(count, device=next(self.module.parameters()).device)
                factors = dict.fromkeys(rules, ones)
            else:
                norms = {name: rule.squared_norms() for name, rule in rules.items()}
                factors = self.clipping.factors(norms)
            return {
                f"{block}.{name}" if block else name: value
                for block, rule in rules.items()
                for name, value in rule.weighted_sum(factors[block]).items()
            }

    def _record(self, batch: Batch, pick: int | None = None) -> tuple[dict[str, list[Call]], int]:
        """Calls of every layer with the gradients of the summed loss (or of one loss) at them."""
        seen: list[tuple[str, tuple[Tensor, ...], Tensor, Any]] = []

        def hook(name: str) -> Callable[..., None]:
            def record(_: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
                seen.append((name, tuple(x.detach() for x in inputs), output, current_rows()))

            return record

        handles = [layer.register_forward_hook(hook(n)) for n, layer in self.blocks.items()]
        try:
            with torch.enable_grad():
                losses = self.losses(self.module, batch)
        finally:
            for handle in handles:
                handle.remove()
        if losses.dim() != 1:
            raise InvalidInputError(
                "The losses must be a vector with one entry for each example (no reduction). Got "
                f"shape {tuple(losses.shape)} instead."
            )
        calls: dict[str, list[Call]] = {name: [] for name in self.blocks}
        if not seen or not len(losses):
            return calls, len(losses)
        target = losses.sum() if pick is None else losses[pick]
        grads = torch.autograd.grad(target, [output for _, _, output, _ in seen], allow_unused=True)
        for (name, inputs, _, rows), value in zip(seen, grads, strict=True):
            if value is not None:
                calls[name].append(Call(inputs, value, rows))
        return calls, len(losses)

    # --- by example -----------------------------------------------------------------------------

    def _sum_by_example(self, batch: Batch) -> dict[str, Tensor]:
        parameters = {n: p.detach() for n, p in self.module.named_parameters() if p.requires_grad}
        fixed = {n: p.detach() for n, p in self.module.named_parameters() if not p.requires_grad}
        buffers = dict(self.module.named_buffers())

        def loss(values: dict[str, Tensor], example: tuple[Tensor, ...]) -> Tensor:
            def call(*inputs: Any, **options: Any) -> Any:
                return functional_call(self.module, (values, fixed, buffers), inputs, options)

            return self.losses(call, tuple(x.unsqueeze(0) for x in example)).squeeze(0)  # type: ignore[arg-type]

        examples = _as_tensors(batch)
        size = sum(value.numel() for value in parameters.values())
        at_once = max(1, min(256, (1 << 24) // size))
        total = {name: torch.zeros_like(value) for name, value in parameters.items()}
        for start in range(0, len(examples[0]), at_once):
            part = tuple(x[start : start + at_once] for x in examples)
            try:
                gradients = vmap(grad(loss), in_dims=(None, 0), randomness="different")(
                    parameters, part
                )
            except RuntimeError as error:
                names = sorted({type(b).__name__ for b in self.blocks.values()} - _RULED)
                raise UnprovenError(
                    f"{', '.join(names)} has no gradient rule here and cannot be run one example "
                    f"at a time ({str(error).splitlines()[0]}). Build it from nn.Linear and "
                    "graphveil.grads.layers, or freeze its parameters."
                ) from error
            norms: dict[str, Tensor] = {}
            for name, value in gradients.items():
                block = name.rpartition(".")[0]
                square = (value * value).flatten(1).sum(1) * (1 + 4e-6)
                norms[block] = norms[block] + square if block in norms else square
            factors = self.clipping.factors(norms)
            for name, value in gradients.items():
                weights = factors[name.rpartition(".")[0]]
                total[name] += torch.tensordot(weights, value, dims=1)
        return total

    # --- the test on the first batch --------------------------------------------------------------

    def _test(self, batch: Batch) -> None:
        """Refuse a module whose losses mix examples or whose gradients escape the book-keeping."""
        if self.by_example:
            self._tested = True  # vmap shows each example alone; there is nothing to mix
            return
        calls, count = self._record(batch)
        if count == 0:
            return
        self._test_alone(batch, count)
        self._test_total(batch, calls, count)
        self._tested = True

    def _test_alone(self, batch: Batch, count: int) -> None:
        """One example's loss must have no gradient at the rows of another."""
        pick = count // 2
        calls, _ = self._record(batch, pick)
        for name, uses in calls.items():
            for call in uses:
                if call.rows is not None:
                    others = call.grad[call.rows.owner != pick]
                elif len(call.grad) == count:
                    others = torch.cat([call.grad[:pick], call.grad[pick + 1 :]])
                else:
                    raise UnprovenError(
                        f"The layer '{name}' saw {len(call.grad)} rows for {count} examples: put "
                        "examples first, or say whose the rows are with graphveil.grads.ragged."
                    )
                if others.numel() and float(others.abs().max()) > 0:
                    raise UnprovenError(
                        f"The loss of one example depends on the rows of another at layer "
                        f"'{name}' ({type(self.blocks[name]).__name__}): something after it mixes "
                        "examples. Remove it, or normalise each example by itself."
                    )

    def _test_total(self, batch: Batch, calls: dict[str, list[Call]], count: int) -> None:
        """The book-keeping's plain sum must be autograd's."""
        with torch.enable_grad():
            total = self.losses(self.module, batch).sum()
        names, values = zip(*self.zeros_like_parameters(), strict=True)
        if any(isinstance(m, nn.Dropout) and m.training and m.p for m in self.module.modules()):
            return  # two passes draw two masks: nothing to compare
        plain = torch.autograd.grad(total, values, allow_unused=True)
        ones = torch.ones(count, device=values[0].device, dtype=values[0].dtype)
        booked: dict[str, Tensor] = {}
        for block, layer in self.blocks.items():
            if calls[block]:
                rule = RULES[type(layer)](layer, calls[block], count)
                for name, value in rule.weighted_sum(ones).items():
                    booked[f"{block}.{name}" if block else name] = value
        for name, wanted in zip(names, plain, strict=True):
            found = booked.get(name, torch.zeros(()))
            wanted = torch.zeros_like(found) if wanted is None else wanted
            scale = float(wanted.abs().max()) + 1e-6 * count
            if not math.isclose(float((found - wanted).abs().max()) / scale, 0.0, abs_tol=1e-3):
                raise UnprovenError(
                    f"The parameter '{name}' is used in a way the engine does not see (outside its "
                    "layer's forward, or changed in place after it). Call the layer itself, and "
                    "avoid in-place operations on its output."
                )

    def zeros_like_parameters(self) -> list[tuple[str, Tensor]]:
        """Parameters that are trained, by name."""
        return [(n, p) for n, p in self.module.named_parameters() if p.requires_grad]


_RULED = {rule.__name__ for rule in RULES}


def layers_with_parameters(module: nn.Module) -> dict[str, nn.Module]:
    """The submodules that own a trained parameter, by name: the blocks of the gradient."""
    return {
        name: layer
        for name, layer in module.named_modules()
        if any(p.requires_grad for p in layer.parameters(recurse=False))
    }


def refuse_mixing(module: nn.Module) -> None:
    """Refuse layers known to mix the examples of a batch, or to remember earlier ones."""
    for name, layer in module.named_modules():
        kind = type(layer).__name__
        remembers = getattr(layer, "track_running_stats", False)
        if kind.startswith(_MIXING) or remembers:
            raise UnprovenError(
                f"The module '{name}' ({kind}) mixes the examples of a batch, so one example's "
                "gradient has no bound. Use nn.LayerNorm, or an InstanceNorm of each example "
                "without running statistics."
            )


def _as_tensors(batch: Batch) -> tuple[Tensor, ...]:
    tensors = batch if isinstance(batch, (tuple, list)) else (batch,)
    if not all(isinstance(x, Tensor) and x.dim() for x in tensors):
        raise UnprovenError(
            "A module with a layer that has no gradient rule needs examples that are tensors with "
            f"the examples first. Got {type(batch).__name__} instead."
        )
    return tuple(tensors)
