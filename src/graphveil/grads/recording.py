"""The book-keeping: one forward pass that records every use of a layer, one backward pass to them.

A :class:`Recorder` gives the losses of a batch and the calls from which each layer's rule
(:mod:`graphveil.grads.rules`) reads norms and sums. Uses that cannot be read are refused by name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from graphveil._errors import InvalidInputError, UnprovenError
from graphveil.grads.products import RowByRow, repeat_first_row
from graphveil.grads.rows import Rows, current_rows
from graphveil.grads.rules import RULES, Call, Rule
from graphveil.graph.blocks import Numbered

Batch = Any
Losses = Callable[[nn.Module, Batch], Tensor]


@dataclass
class LayerUse:
    """One call of a layer in a forward pass."""

    name: str
    inputs: tuple[Tensor, ...]
    output: Tensor
    rows: Rows | None

    def __post_init__(self) -> None:
        self.versions = self._versions()

    def _versions(self) -> list[int]:
        return [tensor._version for tensor in (*self.inputs, self.output)]

    def refuse_changes(self) -> None:
        """Refuse an in-place operation on what went in or came out."""
        if self.versions != self._versions():
            raise UnprovenError(
                f"What went into the layer '{self.name}' or came out of it was changed in place "
                "afterwards, so its gradient cannot be read. Use the ordinary operation "
                "(nn.ReLU() for nn.ReLU(inplace=True))."
            )


class Recorder:
    """Computes the losses of a module, and keeps what the rules of its ``blocks`` read."""

    def __init__(self, module: nn.Module, losses: Losses, blocks: dict[str, nn.Module]) -> None:
        self.module, self.losses, self.blocks = module, losses, blocks

    def forward(self, batch: Batch) -> tuple[Tensor, list[LayerUse]]:
        """The losses, and every use of a layer on the way to them."""
        uses: list[LayerUse] = []

        def hook(name: str) -> Callable[..., None]:
            def record(
                _: nn.Module, inputs: tuple[Tensor, ...], named: dict[str, Any], output: Tensor
            ) -> None:
                if named:
                    raise UnprovenError(
                        f"The layer '{name}' was called with {', '.join(named)} by name, which the "
                        "engine does not read. Call it with positions only."
                    )
                if output.requires_grad:
                    inputs = tuple(x.detach() for x in inputs)
                    length = len(output) if output.dim() else 0
                    uses.append(LayerUse(name, inputs, output, current_rows(length)))

            return record

        handles = [
            layer.register_forward_hook(hook(name), with_kwargs=True)
            for name, layer in self.blocks.items()
        ]
        try:
            with torch.enable_grad(), RowByRow():
                losses = check_losses(self.losses(self.module, batch))
        finally:
            for handle in handles:
                handle.remove()
        for use in uses:
            use.refuse_changes()
        return losses, uses

    def calls(
        self, target: Tensor, uses: list[LayerUse], count: int, *, keep_graph: bool = False
    ) -> dict[str, list[Call]]:
        """Every layer's calls with the gradient of ``target`` at what came out of them."""
        calls: dict[str, list[Call]] = {name: [] for name in self.blocks}
        if not uses or not count or not target.requires_grad:
            return calls
        outputs = [use.output for use in uses]
        grads = torch.autograd.grad(target, outputs, allow_unused=True, retain_graph=keep_graph)
        for use, grad in zip(uses, grads, strict=True):
            if grad is not None:
                _check_rows(use, count)
                calls[use.name].append(Call(use.inputs, grad, use.rows))
        return calls

    def rules(self, calls: dict[str, list[Call]], count: int) -> dict[str, Rule]:
        """The rule of every layer that was used, made from its calls."""
        return {
            name: RULES[type(layer)](layer, calls[name], count)
            for name, layer in self.blocks.items()
            if calls[name]
        }


def weighted_sums(
    rules: dict[str, Rule], weights: dict[str, Tensor], numbered: Numbered | None = None
) -> dict[str, Tensor]:
    """The examples' gradients times their ``weights``, which each block has, added up."""
    return {
        f"{block}.{name}" if block else name: value
        for block, rule in rules.items()
        for name, value in rule.weighted_sum(weights[block], numbered).items()
    }


def check_losses(losses: Any) -> Tensor:
    """Refuse what is not one loss for each example."""
    if not isinstance(losses, Tensor):
        raise InvalidInputError(
            "The losses must be a tensor with one entry for each example. Got "
            f"{type(losses).__name__} instead."
        )
    if losses.dim() != 1:
        raise InvalidInputError(
            "The losses must be a vector with one entry for each example (no reduction). Got "
            f"shape {tuple(losses.shape)} instead."
        )
    return losses


def _check_rows(use: LayerUse, count: int) -> None:
    """Refuse rows that are not the examples', and those with too few digits."""
    if use.output.dtype not in (torch.float32, torch.float64):
        raise UnprovenError(
            f"The layer '{use.name}' ran in {use.output.dtype}, too coarse for a norm that bounds "
            "anything. Leave out autocast, or run the layer in float32."
        )
    outputs, rows = len(use.output) if use.output.dim() else 0, use.rows
    if rows is None and outputs != count:
        raise UnprovenError(
            f"The layer '{use.name}' saw {outputs} rows for {count} examples: put examples first, "
            "or say whose the rows are with graphveil.grads.ragged."
        )
    if rows is not None and (rows.count != count or len(rows.owner) != outputs or not rows.valid):
        raise UnprovenError(
            f"The layer '{use.name}' saw {outputs} rows for {count} examples, inside "
            f"graphveil.grads.ragged with {len(rows.owner)} owners among {rows.count} examples. "
            "Name the owner of every row, or call the layer outside."
        )


def as_tuple(batch: Batch) -> tuple[Any, ...]:
    """The elements of a batch; a tensor is its own."""
    return tuple(batch) if isinstance(batch, (tuple, list)) else (batch,)


def rows_of_tensors(batch: Batch) -> int | None:
    """How many rows each tensor of a batch has; None if it is not one of tensors of one length."""
    tensors = as_tuple(batch)
    if not all(isinstance(x, Tensor) and x.dim() and len(x) == len(tensors[0]) for x in tensors):
        return None
    return len(tensors[0]) if tensors else 0


def fill_up(batch: Batch) -> tuple[Batch, int | None]:
    """A batch of plain tensors with more rows, and how many were its own; others as they are."""
    count = rows_of_tensors(batch)
    if not count:
        return batch, None
    filled = repeat_first_row(as_tuple(batch))
    return (filled if isinstance(batch, (tuple, list)) else filled[0]), count
