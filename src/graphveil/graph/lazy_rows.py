"""Rows that are made ready when they are read: a matrix that does not fit in memory.

What a network reads of a row is a function of that row alone. So rows of a store are scaled, and
taken less their mean, a block at a time; a block holds the same numbers as the whole would.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from graphveil.graph.scratch import scratch_tensor
from graphveil.graph.sparse_rows import as_tensor, is_sparse, take_rows

BLOCK = 1 << 14
LEAST = 16  # rows of a block: products of fewer round otherwise


@dataclass(frozen=True, eq=False)
class LazyRows:
    """Rows of ``x``, of those ``which`` if there is a list, each as ``make`` makes it of a block.

    ``make`` treats every row by itself. ``x`` may be dense or sparse, and stay on disk; it may also
    be numbers, by which ``make`` knows what to make.
    """

    x: Tensor
    make: Callable[[Tensor], Tensor]
    columns: int
    which: Tensor | None = None

    def __len__(self) -> int:
        return self.x.shape[0] if self.which is None else len(self.which)

    @property
    def shape(self) -> tuple[int, int]:
        """As of a matrix."""
        return len(self), self.columns

    def __getitem__(self, some: slice | Tensor) -> Tensor:
        """Some rows in memory: a slice, a mask, or ids in any order."""
        if isinstance(some, Tensor) and some.dtype == torch.bool:
            some = some.nonzero().flatten()
        if self.which is not None:
            some = self.which[some]
        return self.make(_read(self.x, some))

    def take(self, which: Tensor) -> LazyRows:
        """Some of these rows, not yet read."""
        if which.dtype == torch.bool:
            which = which.nonzero().flatten()
        return replace(self, which=which if self.which is None else self.which[which])

    def write_out(self) -> Tensor:
        """All rows, made ready in a file: to be read in any order, more often than once."""
        table = None
        for some in slices(len(self)):
            rows = self[some]
            table = scratch_tensor(self.shape, rows.dtype) if table is None else table
            table[some] = rows
        assert table is not None
        return table

    def then(self, make: Callable[[Tensor], Tensor]) -> LazyRows:
        """The same rows, of which one more thing is made; they stay as wide as they are."""
        first = self.make
        return replace(self, make=lambda rows: make(first(rows)))


def read_rows(rows: Any, which: Tensor) -> Tensor:
    """Some rows in memory, by their ids: of a tensor of any layout, or of :class:`LazyRows`."""
    return rows[which] if isinstance(rows, LazyRows) else take_rows(rows, which)


def pick_rows(rows: Any, which: Tensor) -> Any:
    """Some rows of a tensor of any layout, or of :class:`LazyRows`, which are not read by it."""
    return rows.take(which) if isinstance(rows, LazyRows) else take_rows(rows, which)


def slices(count: int, at_once: int = BLOCK, least: int = 1) -> Iterator[slice]:
    """Places 0, ..., count - 1, so many at a time; one empty slice if there is none.

    Where fewer than ``least`` are left at the end, the last slice has them, too.
    """
    if not count:
        yield slice(0, 0)
    first = 0
    while first < count:
        last = first + at_once
        last = count if count - last < least else last
        yield slice(first, last)
        first = last


def map_rows(function: Callable[[Any], Tensor], rows: Any, at_once: int = BLOCK) -> Tensor:
    """What ``function`` makes of every row by itself, a block of rows at a time.

    In memory or on disk blocks are the same, and so are the answers, to the last bit. A sparse
    tensor in memory is read at once.
    """
    if isinstance(rows, Tensor) and is_sparse(rows):
        return function(rows)
    return map_places(lambda some: function(rows[some]), len(rows), at_once)


def map_places(function: Callable[[slice], Tensor], count: int, at_once: int = BLOCK) -> Tensor:
    """What ``function`` makes of the places 0, ..., count - 1, a block of them at a time."""
    result = None
    for some in slices(count, at_once, LEAST):
        part = function(some)
        if some.stop - some.start == count:
            return part
        if result is None:
            result = part.new_empty((count, *part.shape[1:]))
        result[some] = part
    assert result is not None
    return result


def _read(x: Tensor, some: slice | Tensor) -> Tensor:
    if not is_sparse(x):
        return x[some]
    return as_tensor(_sparse_part(x, some))


def _sparse_part(x: Tensor, some: slice | Tensor) -> sparse.csr_array:
    """Some rows of a sparse tensor; nothing but these is read."""
    offsets, columns, values = (
        part.numpy() for part in (x.crow_indices(), x.col_indices(), x.values())
    )
    if isinstance(some, slice):
        bounds = offsets[some.start : some.stop + 1].astype(np.int64)
        held: Any = slice(bounds[0], bounds[-1])
        bounds = bounds - bounds[0]
    else:
        ids = some.numpy()
        starts = offsets[ids].astype(np.int64)
        sizes = offsets[ids + 1] - starts
        bounds = np.concatenate([[0], np.cumsum(sizes)])
        held = np.arange(bounds[-1]) + np.repeat(starts - bounds[:-1], sizes)
    parts = values[held].astype(np.float32), columns[held], bounds.astype(columns.dtype)
    return sparse.csr_array(parts, shape=(len(bounds) - 1, x.shape[1]))
