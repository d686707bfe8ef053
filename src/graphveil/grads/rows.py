"""Which rows of a tensor belong to which example.

A layer sees rows: all the nodes of a batch of graphs, or all the neighbours of a batch of roots.
Its per-example gradient is a sum over the rows of one example, so the engine must know whose they
are. By default the leading dimension counts examples: ``(b, d)`` has one row for each,
``(b, T, d)`` has T. A model over ragged batches says so around the layers it applies to them::

    with ragged(batch, num_graphs):
        h = self.conv(h, edge_index)      # h is (rows, d); row r belongs to example batch[r]

Or rows are those of tables of several sizes, one after the other (:func:`tables`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import torch
from torch import Tensor

_current: ContextVar[tuple[Rows, ...]] = ContextVar("rows", default=())
_groups: ContextVar[Rows | None] = ContextVar("groups", default=None)


@dataclass(frozen=True)
class Rows:
    """Rows of ``count`` examples, row r belonging to example ``owner[r]``.

    ``sizes`` are those of tables that stand one after the other, if they do: so many examples, and
    so many rows of each.
    """

    owner: Tensor
    count: int
    sizes: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of_tables(cls, sizes: tuple[tuple[int, int], ...]) -> Self:
        """The rows of tables that stand one after the other."""
        count = sum(examples for examples, _ in sizes)
        widths = torch.cat([torch.full((examples,), width) for examples, width in sizes])
        return cls(torch.repeat_interleave(torch.arange(count), widths), count, sizes)

    @cached_property
    def valid(self) -> bool:
        """Whether every owner is one of the examples."""
        owner = self.owner
        if owner.dim() != 1 or owner.is_floating_point() or owner.dtype == torch.bool:
            return False
        return not len(owner) or (int(owner.min()) >= 0 and int(owner.max()) < self.count)

    @cached_property
    def buckets(self) -> list[tuple[Tensor, Tensor]]:
        """Examples of similar size together: their ids, and a table of their rows.

        A table has one line for each example; unused places hold the number of rows, which is the
        index of a row of zeros in :meth:`tables`. How long a line is follows from its example's own
        size: at most a quarter is unused.
        """
        sizes = torch.bincount(self.owner, minlength=self.count)
        order = torch.argsort(self.owner, stable=True)
        start = torch.cumsum(sizes, 0) - sizes
        widths = _line_widths(sizes)
        out = []
        for width in widths[sizes > 0].unique().tolist():
            ids = torch.nonzero(widths == width).flatten()
            place = torch.arange(width, device=self.owner.device)
            inside = place < sizes[ids, None]
            position = torch.where(inside, start[ids, None] + place, 0)
            out.append((ids, torch.where(inside, order[position], len(self.owner))))
        return out

    @cached_property
    def of_each(self) -> Tensor | None:
        """How many rows each example has, if one's rows follow the other's."""
        in_turn = bool(self.sizes) or bool((self.owner[1:] >= self.owner[:-1]).all())
        return torch.bincount(self.owner, minlength=self.count) if in_turn else None

    def tables(self, values: Tensor) -> Iterator[tuple[Tensor | slice, Tensor]]:
        """Examples of similar size, and their rows: (examples, width, ...).

        Zeros stand in unused places. An example's width is its own, whoever else there is.
        """
        if self._laid_out:
            yield from self._cut(values)
            return
        padded = torch.cat([values, values.new_zeros(1, *values.shape[1:])])
        for ids, table in self.buckets:
            yield ids, padded[table]

    @cached_property
    def _laid_out(self) -> tuple[tuple[int, int], ...]:
        """The sizes of tables, if rows stand one after the other as :meth:`tables` has them."""
        if self.sizes or not len(self.owner) or self.of_each is None:
            return self.sizes
        alike = bool((self.of_each == _line_widths(self.of_each[:1])).all())
        return ((self.count, int(self.of_each[0])),) if alike else ()

    def _cut(self, values: Tensor) -> Iterator[tuple[slice, Tensor]]:
        first, pieces = 0, values.split([count * width for count, width in self._laid_out])
        for piece, (count, width) in zip(pieces, self._laid_out, strict=True):
            yield slice(first, first + count), piece.unflatten(0, (count, width))
            first += count

    def sum(self, values: Tensor) -> Tensor:
        """Rows added up for each example: (examples, ...)."""
        if self.sizes:
            return torch.cat([rows.sum(1) for _, rows in self._cut(values)])
        out = values.new_zeros(self.count, *values.shape[1:])
        return out.index_add_(0, self.owner, values)


def _line_widths(sizes: Tensor) -> Tensor:
    """How long a line is that holds so many rows: at most a quarter is unused."""
    unit = (2 ** sizes.clamp_min(1).double().log2().floor().long() // 4).clamp_min(1)
    return -(-sizes // unit) * unit


@contextmanager
def ragged(owner: Tensor, count: int) -> Iterator[None]:
    """Say that layers called inside see rows, row r belonging to example ``owner[r]``."""
    token = _current.set((Rows(owner, count),))
    try:
        yield
    finally:
        _current.reset(token)


@contextmanager
def tables(*sizes: tuple[tuple[int, int], ...]) -> Iterator[None]:
    """Say that layers called inside see rows of tables, which stand one after the other.

    Every argument is a way in which they may: for each table how many examples it has, and how many
    rows each of these has. Which one it is their number of rows tells.
    """
    token = _current.set(tuple(map(Rows.of_tables, dict.fromkeys(sizes))))
    try:
        yield
    finally:
        _current.reset(token)


@contextmanager
def grouped(owner: Tensor, count: int) -> Iterator[None]:
    """Say that what counts as an example inside is a part of one: example e is of ``owner[e]``.

    Rows, those of :func:`ragged` inside too, are then rows of the ``count`` owners.
    """
    token = _groups.set(Rows(owner, count))
    try:
        yield
    finally:
        _groups.reset(token)


def current_rows(length: int) -> Rows | None:
    """Whose so many rows are, by the innermost statement; None where each is an example's own.

    Where several are stated and none is of that length it is the first, which is refused for it.
    """
    stated, groups = _current.get(), _groups.get()
    fitting = (rows for rows in stated if len(rows.owner) == length)
    rows = next(fitting, stated[0] if stated else None)
    if rows is not None and rows.sizes and all(width == 1 for _, width in rows.sizes):
        rows = None
    if groups is None:
        return rows
    if rows is None:
        return groups
    return Rows(groups.owner[rows.owner], groups.count)
