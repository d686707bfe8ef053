"""Linear layers that give a row the same bits whatever rows stand beside it.

A loss term may not know its company: what it adds to a sum must be the same, to the last bit,
whoever else was drawn. Libraries of matrix products keep the rows of a product apart, with two
exceptions: the rows that are left over when they have cut a matrix into pieces, and matrices that
are small, where the order of additions depends on how many rows there are or on where in memory a
row begins. So float32 matrices with few rows, or few columns on either side, are padded with zeros
to sizes of :data:`SMALL`, and all float64 ones; which is exact. Batches of plain tensors have as
many rows as a multiple of it, for what a module computes by other means.

Which sizes these are was found by trial for the library that torch brings (MKL). The law itself is
tested over every method: ``tests/methods/test_law_of_terms.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from threadpoolctl import ThreadpoolController
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

SMALL = 16


class RowByRow(TorchFunctionMode):
    """Inside, ``F.linear`` and so ``nn.Linear`` treat every row alike.

    ``inside_vmap``: inside a ``vmap`` over examples, whose number is a multiple of the small size.
    """

    def __init__(self, *, inside_vmap: bool = False) -> None:
        super().__init__()
        self.inside_vmap = inside_vmap

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if function is F.linear:
            return _linear(*args, inside_vmap=self.inside_vmap, **(kwargs or {}))
        return function(*args, **(kwargs or {}))


def _linear(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, *, inside_vmap: bool = False
) -> Tensor:
    columns, outputs = weight.shape[-1], len(weight)
    rows = input.numel() // max(columns, 1)
    wide = weight.dtype == torch.float64  # rows left over matter there at any size
    few = not inside_vmap and (rows < SMALL or (wide and rows % SMALL > 0))
    narrow = wide or min(columns, outputs) < SMALL
    if not (few or narrow) or not rows or not columns:
        return F.linear(input, weight, bias)
    # By the layer's own sizes: the same columns and outputs, whatever rows there are.
    right, below = (-columns % SMALL, -outputs % SMALL) if narrow else (0, 0)
    flat, beneath = input.reshape(rows, columns), -rows % SMALL if few else 0
    flat = F.pad(flat, (0, right, 0, beneath)) if right or beneath else flat
    weight = F.pad(weight, (0, right, 0, below))
    bias = None if bias is None else F.pad(bias, (0, below))
    product = F.linear(flat, weight, bias)[:rows, :outputs]
    return product.reshape(*input.shape[:-1], outputs).clone(memory_format=torch.contiguous_format)


def one_thread_of_numpy() -> Any:
    """A context in which numpy's products are made by one thread.

    It has threads of its own. To wake one for a product of a hundred rows costs many such products
    where cores are busy.
    """
    return _libraries_of_numpy().limit(limits=1)


@cache
def _libraries_of_numpy() -> ThreadpoolController:
    return ThreadpoolController().select(user_api="blas")


def repeat_first_row(tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """With the first row again and again, until their number is a multiple of the small size."""
    count = len(tensors[0])
    rows = torch.cat([torch.arange(count), torch.zeros(-count % SMALL, dtype=torch.long)])
    return tuple(x[rows.to(x.device)] for x in tensors)
