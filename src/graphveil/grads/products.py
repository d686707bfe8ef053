"""Linear layers that give a row the same bits whatever rows stand beside it.

A loss term may not know its company: what it adds to a sum must be the same, to the last bit,
whoever else was drawn. Libraries of matrix products keep the rows of a product apart, except where
a matrix is small: with few rows, or few columns on either side, they choose another order of
additions by how many rows there are or by where in memory a row begins. There, and only there, the
matrices are padded with zeros to sizes of :data:`_SMALL`, which is exact.

Which sizes these are was found by trial for the library that torch brings (MKL). The law itself is
tested over every method: ``tests/methods/test_law_of_terms.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

_SMALL = 16


class RowByRow(TorchFunctionMode):
    """Inside, ``F.linear`` and so ``nn.Linear`` treat every row alike."""

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        return (_linear if function is F.linear else function)(*args, **(kwargs or {}))


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    columns, outputs = weight.shape[-1], len(weight)
    rows = input.numel() // max(columns, 1)
    few, narrow = rows < _SMALL, min(columns, outputs) < _SMALL
    if not (few or narrow) or not rows or not columns:
        return F.linear(input, weight, bias)
    # By the layer's own sizes: the same columns and outputs, whatever rows there are.
    right, below = (-columns % _SMALL, -outputs % _SMALL) if narrow else (0, 0)
    flat = F.pad(input.reshape(rows, columns), (0, right, 0, max(_SMALL - rows, 0)))
    weight = F.pad(weight, (0, right, 0, below))
    bias = None if bias is None else F.pad(bias, (0, below))
    found = F.linear(flat, weight, bias)[:rows, :outputs]
    return found.reshape(*input.shape[:-1], outputs).contiguous()
