"""Messages of a graph that is larger than memory: sorted by receiver on disk, summed in blocks.

:class:`StoredMessages` adds up as :class:`~graphveil.graph.messages.Messages` does, in the same
order and to the last bit, and holds nothing that is as long as the edges: who sends is read from
the store, and weights are made of what each end is known by, a block of receivers at a time.
Nothing is trained through it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from graphveil import _validate
from graphveil._errors import InvalidInputError
from graphveil.graph.choices import NORMALISATIONS
from graphveil.graph.lists import Lists, ranges
from graphveil.graph.messages import Messages, add_up

Weigh = Callable[[Tensor, Tensor], Tensor]  # of senders and receivers


@dataclass(frozen=True, eq=False)
class StoredMessages:
    """All messages of a store: ``lists`` by sender; ``weigh`` makes weights, None ones.

    ``self_weight`` has a number for each node, as of :class:`Messages`.
    """

    lists: Lists
    self_weight: Tensor
    weigh: Weigh | None = None

    @property
    def num_nodes(self) -> int:
        """Nodes of the graph, those without any edge included."""
        return self.lists.num_nodes

    @cached_property
    def start(self) -> Tensor:
        """Node w's messages stand at ``start[w] : start[w + 1]``."""
        return _as_tensor(self.lists.transposed.offsets)

    @cached_property
    def in_degree(self) -> Tensor:
        """How many messages reach each node."""
        return self.start.diff()

    @cached_property
    def senders(self) -> Tensor:
        """Senders, sorted by receiver: a tensor over the file."""
        return _as_tensor(self.lists.transposed.others)

    def ends(self, some: slice) -> tuple[Tensor, Tensor]:
        """Senders and receivers of some messages, as they are sorted."""
        start = self.start.numpy()
        last = min(some.stop, len(self.senders))
        first = min(some.start, last)
        rows = np.searchsorted(start, [first, max(last - 1, first)], side="right") - 1
        low, high = int(rows[0]), min(int(rows[1]) + 1, self.num_nodes)
        bounds = start[low : high + 1].clip(first, last)
        receivers = torch.repeat_interleave(
            torch.arange(low, high), torch.from_numpy(np.diff(bounds))
        )
        return self.senders[first:last].long(), receivers

    def blocks(self, at_once: int | None = None, least: int = 1) -> Iterator[tuple[slice, slice]]:
        """Receivers, and where their messages stand; so many messages at a time, about.

        There are ``least`` receivers at least.
        """
        start = self.start
        for first, last in ranges(self.lists.transposed.offsets, at_once, least):
            yield slice(first, last), slice(int(start[first]), int(start[last]))

    def weights_of(self, some: slice) -> Tensor | None:
        """The weights of some messages; None of ones."""
        return None if self.weigh is None else self.weigh(*self.ends(some))

    # --- sums, in blocks -------------------------------------------------------------------------

    def total(self, rest: Tensor, *, weighted: bool = False) -> Tensor:
        """Messages added up for each receiver."""
        out = rest.new_empty(self.num_nodes, *rest.shape[1:])
        for rows, some in self.blocks():
            bounds = (self.start[rows.start : rows.stop + 1] - some.start).to(self.senders.dtype)
            weights = self.weights_of(some) if weighted else None
            out[rows] = add_up(rest, self.senders[some], bounds, weights)
        return out

    def weighted(self, h: Tensor) -> Tensor:
        """Own state and messages, each times its weight."""
        own = h * self.self_weight.to(h.dtype).unsqueeze(-1)
        return own.add_(self.total(h, weighted=True))


@dataclass(frozen=True, eq=False)
class Received:
    """What some receivers read of a whole graph, for layers that add up before they do anything.

    A layer is given the states of all nodes, in memory or over a file, and answers for ``rows``
    alone: nothing is gathered but what is added up, in the order in which the graph adds it.
    """

    messages: Messages | StoredMessages
    rows: slice

    def _blocks(self) -> Iterator[tuple[slice, slice, Tensor]]:
        """Some of the receivers, where their messages stand, and where each one's begin there."""
        start = self.messages.start[self.rows.start : self.rows.stop + 1]
        for first, last in ranges(start.numpy()):
            some = slice(int(start[first]), int(start[last]))
            bounds = start[first : last + 1] - some.start
            yield slice(first, last), some, bounds.to(self.messages.senders.dtype)

    def own_and_rest(self, h: Tensor) -> tuple[Tensor, Tensor]:
        """The receivers' own states, and those of everybody who may send."""
        return h[self.rows], h

    def weighted(self, h: Tensor) -> Tensor:
        """Own state and messages, each times its weight."""
        own = h[self.rows] * self.messages.self_weight[self.rows].to(h.dtype).unsqueeze(-1)
        return own.add_(self.total(h, weighted=True))

    def total(self, rest: Tensor, *, weighted: bool = False) -> Tensor:
        """Messages added up for each receiver."""
        out = rest.new_empty(self.rows.stop - self.rows.start, *rest.shape[1:])
        for here, some, bounds in self._blocks():
            weights = self.messages.weights_of(some) if weighted else None
            out[here] = add_up(rest, self.messages.senders[some], bounds, weights)
        return out

    def mean(self, rest: Tensor) -> Tensor:
        """Mean of the messages that reach a receiver."""
        reached = self.messages.in_degree[self.rows].clamp_min(1)
        return self.total(rest) / reached.unsqueeze(-1)

    def largest(self, rest: Tensor) -> Tensor:
        """Largest of the messages that reach a receiver."""
        out = rest.new_empty(self.rows.stop - self.rows.start, *rest.shape[1:])
        for here, some, bounds in self._blocks():
            senders = self.messages.senders[some]
            out[here] = F.embedding_bag(senders, rest, bounds, mode="max", include_last_offset=True)
        return out


def around(messages: Messages | StoredMessages, rows: slice) -> tuple[Tensor, Messages]:
    """The part of a graph that some receivers read: its nodes, and messages among these.

    The receivers are the first nodes of the part.
    """
    start = messages.start
    some = slice(int(start[rows.start]), int(start[rows.stop]))
    senders, receivers = messages.ends(some)
    count = rows.stop - rows.start
    outside = (senders < rows.start) | (senders >= rows.stop)
    others = senders[outside].unique()
    place = senders - rows.start
    place[outside] = count + torch.searchsorted(others, senders[outside])
    nodes = torch.cat([torch.arange(rows.start, rows.stop), others])
    weight = messages.weights_of(some)
    weight = torch.ones(len(senders)) if weight is None else weight
    edges = torch.stack([place, receivers - rows.start])
    return nodes, Messages(edges, weight, messages.self_weight[nodes])


def weigh_lists(lists: Lists, how: str = "inverse-degree") -> StoredMessages:
    """All messages of a store with their weights, as of ``weigh_messages``."""
    _validate.choice("how", how, NORMALISATIONS)
    reached = 1.0 + _as_tensor(np.diff(lists.transposed.offsets))
    if how == "inverse-degree":
        by_receiver = 1.0 / reached
        return StoredMessages(lists, by_receiver, lambda _, receivers: by_receiver[receivers])
    if how == "symmetric":
        inwards = reached.rsqrt()
        outwards = (1.0 + _as_tensor(np.diff(lists.offsets))).rsqrt()
        return StoredMessages(
            lists,
            outwards * inwards,
            lambda senders, receivers: outwards[senders] * inwards[receivers],
        )
    ones = torch.ones_like(reached)
    return StoredMessages(lists, ones, lambda _, receivers: ones[receivers])


def read_all(messages: Any, what: str) -> Messages:
    """Messages that are in memory; for ``what``, those of a store are refused."""
    if isinstance(messages, StoredMessages):
        raise InvalidInputError(
            f"{what} must have all messages in memory. Got those of a store instead; take a graph "
            "in files that fit in memory."
        )
    return messages


def _as_tensor(array: Any) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch has no tensors for reading alone
        return torch.from_numpy(np.asarray(array))
