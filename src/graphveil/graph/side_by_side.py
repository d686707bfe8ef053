"""Neighbourhoods of several sizes as one batch: all their nodes are rows of one table.

What a layer costs beside its products it costs once, and not once for each size. A row's state has
the same bits as in a batch of one size: layers treat rows apart, and messages are added up size by
size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from graphveil.graph.messages import DenseMessages
from graphveil.graph.neighbourhoods import Rooted

Sizes = tuple[tuple[int, int], ...]  # examples, and rows of each, one size after the other


@dataclass(frozen=True, eq=False)
class SideBySide:
    """``parts``, each of one size and all of one depth, one after the other.

    ``index`` (rows) names the row of ``table`` that each node has; ``nodes`` is as of
    :class:`~graphveil.graph.neighbourhoods.Rooted`. Convolutions that pair up ends (``gat``) want
    neighbourhoods of one size.
    """

    table: Tensor
    index: Tensor
    parts: tuple[Rooted, ...]
    nodes: Tensor | None = None

    @property
    def ids(self) -> Tensor:
        """The public ids of the nodes: (rows,)."""
        return self.index if self.nodes is None else self.nodes[self.index]

    @property
    def num_layers(self) -> int:
        """The depth L."""
        return self.parts[0].num_layers

    @cached_property
    def sizes(self) -> tuple[Sizes, ...]:
        """For the nodes that there are before each layer, and after the last one."""
        depths = range(self.num_layers + 1)
        return tuple(tuple((len(part), part.widths[d]) for part in self.parts) for d in depths)

    def __len__(self) -> int:
        """How many roots there are."""
        return sum(map(len, self.parts))

    def layers(self) -> Iterator[SizedMessages]:
        """Who hears whom in each layer, the first layer first."""
        for parts in zip(*(part.layers() for part in self.parts), strict=True):
            yield SizedMessages(parts)

    def keep(self, rows: Tensor) -> SideBySide:
        """Some of the roots, by ascending ``rows``, in the sizes that they have."""
        parts, first = [], 0
        for index, part in zip(_split(self.index, self.sizes[0]), self.parts, strict=True):
            mine = rows[(rows >= first) & (rows < first + len(part))] - first
            whole = replace(part, table=self.table, index=index, nodes=self.nodes)
            parts += [whole.take(mine)] if len(mine) else []
            first += len(part)
        index = torch.cat([part.index.flatten() for part in parts])
        return replace(self, index=index, parts=tuple(parts))

    def take(self, rows: Tensor) -> Rooted:
        """The neighbourhood of root ``rows[i]`` in place i, all padded to one size."""
        return self._of_one_size.take(rows)

    @cached_property
    def _of_one_size(self) -> Rooted:
        widths = tuple(map(max, zip(*(part.widths for part in self.parts), strict=True)))
        (most, receivers), indices = (widths[0], widths[min(1, self.num_layers)]), []
        for index, part in zip(_split(self.index, self.sizes[0]), self.parts, strict=True):
            padding = index[:, :1].expand(-1, most - part.widths[0])
            indices.append(torch.cat([index, padding], 1))
        own = torch.eye(receivers, most, dtype=torch.bool, device=self.index.device)

        def pad(table: Tensor) -> Tensor:
            return F.pad(table, (0, most - table.shape[2], 0, receivers - table.shape[1]))

        weight = torch.cat([pad(part.weight) for part in self.parts])
        mask = torch.cat([pad(part.mask) for part in self.parts]) | own
        return Rooted(self.table, torch.cat(indices), weight, mask, widths, self.nodes)


def lay_side_by_side(parts: list[Rooted]) -> SideBySide:
    """Neighbourhoods as one batch: of one table, or each of the rows that it reads."""
    if parts[0].nodes is None:
        index = torch.cat([part.index.flatten() for part in parts])
        return SideBySide(parts[0].table, index, tuple(parts))
    first, indices = 0, []
    for part in parts:
        indices.append(part.index.flatten() + first)
        first += len(part.table)
    table = torch.cat([part.table for part in parts])
    nodes = torch.cat([part.nodes for part in parts if part.nodes is not None])
    return SideBySide(table, torch.cat(indices), tuple(parts), nodes)


@dataclass(frozen=True, eq=False)
class SizedMessages:
    """One layer's messages, of one size after the other; states are rows, as in the batch."""

    parts: tuple[DenseMessages, ...]

    def weighted(self, h: Tensor) -> Tensor:
        """Own state and messages, each times its weight, for each receiver: (receivers, ...)."""
        return self._each(lambda part, states: part.weighted(states), h)

    def own_and_rest(self, h: Tensor) -> tuple[Tensor, Tensor]:
        """The receivers' own states, and what the three sums below take."""
        return self._each(lambda part, states: part.own_and_rest(states)[0], h), h

    def total(self, rest: Tensor, *, weighted: bool = False) -> Tensor:
        """Messages added up for each receiver, without its own state."""
        return self._each(lambda part, states: part.total(states, weighted=weighted), rest)

    def mean(self, rest: Tensor) -> Tensor:
        """Mean of the messages that reach a node, zero where there are none."""
        return self._each(lambda part, states: part.mean(states), rest)

    def largest(self, rest: Tensor) -> Tensor:
        """Largest of the messages in every channel, zero where there are none."""
        return self._each(lambda part, states: part.largest(states), rest)

    @cached_property
    def _senders(self) -> Sizes:
        return tuple((len(part.mask), part.mask.shape[2]) for part in self.parts)

    def _each(self, add_up: Callable[[DenseMessages, Tensor], Tensor], h: Tensor) -> Tensor:
        pairs = zip(self.parts, _split(h, self._senders), strict=True)
        return torch.cat([add_up(part, states).flatten(0, 1) for part, states in pairs])


def _split(rows: Tensor, sizes: Sizes) -> list[Any]:
    """Rows as one table for each size: (examples, rows of each, ...)."""
    pieces = rows.split([count * width for count, width in sizes])
    return [piece.unflatten(0, size) for piece, size in zip(pieces, sizes, strict=True)]
