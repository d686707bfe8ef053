r"""Rooted neighbourhoods: what one loss term may read, as a small graph of its own.

A node that several roots can reach stands in the neighbourhood of each: every loss term has its own
copies, and so its own gradient. Within one neighbourhood a node stands once. Nodes are ordered by
their distance from the root, so that the receivers of a layer are always the first ones::

    layer 1 of L   all nodes within L of the root   ->  those within L - 1
    ...
    layer L        the root and who sends to it     ->  the root

"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor

from graphveil import _validate
from graphveil._errors import InvalidInputError
from graphveil.graph.blocks import MOST_WIDTHS, Numbered, block_sizes
from graphveil.graph.caps import cap_receivers, cap_senders
from graphveil.graph.influence import count_units, influence
from graphveil.graph.lazy_rows import LazyRows
from graphveil.graph.messages import DenseMessages, Messages, weigh_messages

if TYPE_CHECKING:
    from graphveil.graph.side_by_side import SideBySide

Piece = tuple[tuple[int, ...], Tensor]  # sizes, and the terms that have them
_MANY = 1 << 15  # roots from which on speed is in large products, and not in few operations


@dataclass(frozen=True, eq=False)
class Rooted:
    """b rooted neighbourhoods of depth L, padded to one size.

    ``table`` is (nodes, features), and ``index`` (b, T) names its rows: the root first, then those
    one message away, and so on; padding repeats the root, so that a neighbourhood holds no row that
    its root may not read. ``weight`` and ``mask`` (b, M, T) say who hears whom, see
    :class:`~graphveil.graph.messages.DenseMessages`. ``widths`` are the sizes T = R_0 >= M = R_1
    ... >= R_L = 1: layer l makes the states of the first R_l nodes out of those of the first
    R_(l-1). ``nodes`` has the id of every row of a table that holds some nodes alone.
    """

    table: Tensor
    index: Tensor
    weight: Tensor
    mask: Tensor
    widths: tuple[int, ...]
    nodes: Tensor | None = None

    @property
    def ids(self) -> Tensor:
        """The public ids of the nodes: those that ``index`` names, unless rows have others."""
        return self.index if self.nodes is None else self.nodes[self.index]

    def __len__(self) -> int:
        """How many roots there are."""
        return len(self.index)

    def take(self, rows: Tensor) -> Rooted:
        """The neighbourhood of root ``rows[i]`` in place i, of the same sizes."""
        rows = rows.to(self.index.device)
        return replace(self, index=self.index[rows], weight=self.weight[rows], mask=self.mask[rows])

    @property
    def num_layers(self) -> int:
        """The depth L."""
        return len(self.widths) - 1

    def layers(self) -> Iterator[DenseMessages]:
        """Who hears whom in each layer, the first layer first."""
        for senders, receivers in zip(self.widths, self.widths[1:], strict=False):
            part = slice(None), slice(receivers), slice(senders)
            yield DenseMessages(self.weight[part], self.mask[part])


def gather_neighbourhoods(
    x: Tensor | LazyRows,
    messages: Messages,
    roots: Tensor,
    num_layers: int,
    widths: tuple[int, ...] | None = None,
) -> Rooted:
    """The neighbourhoods of ``roots``, ``num_layers`` deep, with the weights of ``messages``.

    ``widths`` are the sizes to pad to, by default those of the largest among these roots. Of rows
    on disk those that are read are in the table, and no others.

    *Guarantee conditions*: ``messages`` are the kept ones, the same list in every layer. How many
    reach one node has no bound unless receivers were capped, too: a hub makes a wide table.
    """
    _validate.integer("num_layers", num_layers, "[0, inf)")
    b, n, device = len(roots), max(messages.num_nodes, 1), roots.device
    # A member is a pair of an example and a node, as one number; it is met once, at its distance.
    members = torch.arange(b, device=device) * n + roots
    rings, sent = [members], []
    for _ in range(num_layers):
        receivers, senders, weights = _arriving(messages, rings[-1], n)
        sent.append((receivers, senders, weights))
        ring = torch.unique(senders)
        known = torch.searchsorted(members, ring).clamp(max=max(len(members) - 1, 0))
        rings.append(ring[members[known] != ring] if len(members) else ring)
        members = torch.cat([members, rings[-1]]).sort().values

    # Places: members of one example in the order of their distance, then of their ids.
    every = torch.cat(rings)
    sizes = torch.stack([torch.bincount(ring // n, minlength=b) for ring in rings]).cumsum(0)
    order = torch.argsort(every // n, stable=True)
    ahead = torch.cumsum(sizes[-1], 0) - sizes[-1]
    place = torch.empty_like(every)
    place[order] = torch.arange(len(every), device=device) - ahead[every[order] // n]
    if widths is None:
        widths = tuple(int(ring.max()) if b else 1 for ring in sizes.flip(0))
    by_id = torch.argsort(every)

    def place_of(wanted: Tensor) -> Tensor:
        return place[by_id][torch.searchsorted(members, wanted)]

    index = roots.unsqueeze(1).repeat(1, widths[0])
    index[every // n, place] = every % n
    receivers, senders, weights = (
        torch.cat([part[k] for part in sent] or [messages.weights[:0] if k == 2 else every[:0]])
        for k in range(3)
    )
    width = widths[min(1, num_layers)]
    weight = messages.self_weight.new_zeros(b, width, widths[0])
    mask = torch.eye(width, widths[0], dtype=torch.bool, device=device).repeat(b, 1, 1)
    inner = place < width
    weight[every[inner] // n, place[inner], place[inner]] = messages.self_weight[every[inner] % n]
    cell = receivers // n, place_of(receivers), place_of(senders)
    weight[cell] = weights
    mask[cell] = True
    if int(mask.sum()) != b * width + len(receivers):
        raise InvalidInputError(
            "The messages must hold every pair of sender and receiver at most once, and no "
            "self-loop: every layer reads a node's own state anyway. Merge repeated edges first."
        )
    if isinstance(x, LazyRows):  # the rows that these neighbourhoods read, and no others
        nodes, places = index.unique(return_inverse=True)
        return Rooted(x[nodes], places, weight, mask, widths, nodes)
    return Rooted(x, index, weight, mask, widths)


def reach(messages: Messages, num_layers: int) -> Tensor:
    """At most how many nodes each node's neighbourhood holds, itself included (float64)."""
    return _reaches(messages, num_layers)[-1]


def _reaches(messages: Messages, num_layers: int) -> list[Tensor]:
    """:func:`reach` for every depth from 0 on."""
    reaches = [torch.ones(messages.num_nodes, dtype=torch.float64)]
    for _ in range(num_layers):
        reaches.append(1 + messages.total(reaches[-1].unsqueeze(1)).squeeze(1))
    return reaches


def _own_sizes(messages: Messages, roots: Tensor, num_layers: int) -> Tensor:
    """What each root's neighbourhood is padded to in every layer: a function of its own sizes."""
    depths = [sizes[roots].long() for sizes in _reaches(messages, num_layers)]
    # Few sizes make few batches, many make little padding: which is worth more, numbers tell.
    steps, least = 1, 1
    if len(roots) >= _MANY:
        steps, least = ((8, 1), (8, 4), (2, 12))[min(num_layers, 2)]
    outermost = _next_size(depths[-1].clamp_min(least), steps)
    between = [_next_size(sizes.clamp_min(12), 2).minimum(outermost) for sizes in depths[1:-1]]
    return torch.stack([outermost, *reversed(between), *depths[:1][:num_layers]], 1)


def _next_size(sizes: Tensor, steps: int) -> Tensor:
    """The next larger one of a public list of sizes, so many ``steps`` from 2^k to 2^(k + 1)."""
    octave = 2 ** sizes.double().log2().floor().long()
    unit = (octave // steps).clamp_min(1)
    return -(-sizes // unit) * unit


class RootedTerms:
    """Loss terms to draw from, one for each root: its neighbourhood and its label.

    A batch holds neighbourhoods that are padded to one size, about ``rows_at_once`` rows in all, by
    default some million numbers: enough to keep two threads busy, little enough to stay in the
    cache. A neighbourhood's size after padding is its own: who else was drawn never shows in it.
    With ``side_by_side`` it holds those of several sizes, where there is room (see
    :mod:`graphveil.graph.side_by_side`).

    :meth:`capped` makes the messages from edges and knows how many terms one unit touches. Of
    ``messages`` made elsewhere nothing is known: any row may be read by every term, unless
    ``touched`` says how many terms one unit removes and alters, on the word of whoever says so.
    """

    def __init__(
        self,
        x: Tensor | LazyRows,
        y: Tensor,
        messages: Messages,
        roots: Tensor,
        num_layers: int,
        rows_at_once: int | None = None,
        *,
        touched: tuple[int, int] | None = None,
        side_by_side: bool = False,
    ) -> None:
        if not isinstance(messages, Messages):
            raise InvalidInputError(
                "The 'messages' parameter must be Messages, not edges. Got "
                f"{type(messages).__name__} instead; RootedTerms.capped(..., max_sent=K) makes "
                "them."
            )
        if roots.dim() != 1 or roots.dtype != torch.long or len(roots.unique()) != len(roots):
            raise InvalidInputError(
                "The 'roots' parameter must be distinct node ids: one node has one loss term. Got "
                f"{len(roots)} values of {roots.dtype} instead; a mask's are mask.nonzero()."
            )
        if not len(x) == len(y) == messages.num_nodes:
            raise InvalidInputError(
                "The 'x', 'y' and 'messages' parameters must be of one graph. Got "
                f"{len(x)} rows, {len(y)} labels and {messages.num_nodes} nodes instead."
            )
        self.x, self.y, self.messages, self.roots = x, y, messages, roots
        self.num_layers, self.touched = num_layers, touched
        self._caps: dict[str, Any] | None = None
        if rows_at_once is None:
            rows_at_once = max(256, (2**21 if side_by_side else 2**22) // x.shape[1])
        self.rows_at_once = rows_at_once
        kinds = _own_sizes(messages, roots, num_layers).unique(dim=0, return_inverse=True)
        self.sizes, self.size_of = kinds
        self.in_blocks = len(roots) >= _MANY
        # A deeper network cuts a batch in more ways than are paid for: how many there are must not
        # follow from who was drawn, as it would with several sizes.
        self.side_by_side = side_by_side and num_layers < MOST_WIDTHS

    @classmethod
    def capped(
        cls,
        x: Tensor,
        y: Tensor,
        edge_index: Tensor,
        roots: Tensor,
        num_layers: int,
        *,
        max_sent: int | None,
        max_read: int | None = None,
        normalisation: str = "inverse-degree",
        seed: int = 0,
    ) -> Self:
        """Terms over the edges of a graph, of which each node sends along ``max_sent`` at most.

        ``max_read`` bounds what reaches one node, for speed; it costs nothing. ``normalisation`` is
        as in :func:`~graphveil.graph.messages.weigh_messages`. Which edges are kept follows from
        ``seed`` and the ids alone.
        """
        if max_sent is not None:
            _validate.integer("max_sent", max_sent, "[1, inf)")
        kept = cap_senders(edge_index, len(x), max_sent, seed=seed)
        read = kept if max_read is None else cap_receivers(kept, len(x), max_read, seed=seed)
        messages = weigh_messages(read, len(x), normalisation, sender_lists=kept)
        terms = cls(x, y, messages, roots, num_layers)
        terms._caps = {"sender_cap": max_sent, "normalisation": normalisation}
        return terms

    @property
    def vouched(self) -> bool:
        """Whether how many terms one unit touches is somebody's word."""
        return self.touched is not None

    def influence(self, unit: str = "node", **relation: Any) -> tuple[int, int]:
        """How many terms one unit removes and alters, at most; where nothing is known, all.

        See :mod:`graphveil.graph.influence`.
        """
        if self.touched is not None:
            return self.touched
        if not self.num_layers:
            return (1, 0)
        if self._caps is None:
            return (0, len(self))
        known = {"num_layers": self.num_layers, "num_train": len(self), **self._caps}
        return influence(unit=unit, **known, **relation)

    def num_units(self, unit: str = "node") -> int:
        """Nodes that there are, with a loss or without; for edges, the pairs of them."""
        return count_units(unit, len(self.x))

    def __len__(self) -> int:
        return len(self.roots)

    def batches(self, drawn: Tensor) -> Iterator[tuple[Rooted | SideBySide, Tensor]]:
        """Neighbourhoods and labels of the terms drawn, one size after the other.

        Many roots come in blocks (:mod:`~graphveil.graph.blocks`), which are faster for many.
        """
        from graphveil.graph.side_by_side import lay_side_by_side

        for pieces in self._group(self._cut(drawn)):
            parts = [
                gather_neighbourhoods(
                    self.x, self.messages, self.roots[part], self.num_layers, widths
                )
                for widths, part in pieces
            ]
            around = lay_side_by_side(parts) if self.side_by_side else parts[0]
            numbers = torch.cat([part for _, part in pieces])
            batch = around, self.y[self.roots[numbers]]
            yield Numbered(batch, numbers, map(len, parts)) if self.in_blocks else batch

    def _cut(self, drawn: Tensor) -> Iterator[Piece]:
        """The terms drawn, in pieces of one size that are no longer than a batch."""
        drawn = drawn.sort().values
        size_of = self.size_of[drawn]
        order = torch.argsort(size_of, stable=True)
        counts = torch.bincount(size_of, minlength=len(self.sizes)).tolist()
        for widths, alike in zip(self.sizes.tolist(), drawn[order].split(counts), strict=True):
            rows = torch.full_like(alike, widths[0])
            for part in alike.split(block_sizes(alike, rows, self.rows_at_once)):
                yield tuple(widths), part

    def _group(self, pieces: Iterator[Piece]) -> Iterator[list[Piece]]:
        """Pieces that make a batch together."""
        group: list[Piece] = []
        room = 0
        for widths, part in pieces:
            rows = widths[0] * len(part)
            if group and (rows > room or not self.side_by_side):
                yield group
                group = []
            room = (room if group else self.rows_at_once) - rows
            group.append((widths, part))
        if group:
            yield group


def _arriving(messages: Messages, ring: Tensor, n: int) -> tuple[Tensor, Tensor, Tensor]:
    """All messages that reach the members of a ring: receivers, senders (members), weights."""
    node = ring % n
    reached = messages.in_degree[node]
    before = torch.cumsum(reached, 0) - reached
    edge = torch.arange(int(reached.sum()), device=ring.device)
    edge = edge + torch.repeat_interleave(messages.start[node] - before, reached)
    receivers = torch.repeat_interleave(ring, reached)
    senders = torch.repeat_interleave(ring - node, reached) + messages.senders[edge]
    return receivers, senders, messages.weights[edge]
