"""Networks whose loss terms each read one root's neighbourhood, and nothing else."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from graphveil._errors import InvalidInputError
from graphveil.devices import CPU, at_home, home_of
from graphveil.graph.lazy_rows import BLOCK, LEAST, LazyRows, map_places, map_rows
from graphveil.graph.messages import Messages
from graphveil.graph.neighbourhoods import Rooted
from graphveil.graph.sparse_rows import is_sparse
from graphveil.graph.stored_messages import Received, StoredMessages, around
from graphveil.nn.descriptions import NodeNetwork
from graphveil.nn.mlp import Activated

_AT_ONCE, _FEWEST = 1 << 22, 1 << 12  # numbers of a block of a store, and messages


class NodeClassifier(nn.Module):
    """An encoder of each node by itself, ``num_layers`` convolutions, a decoder of the root.

    It takes the fields of a :class:`~graphveil.nn.descriptions.NodeNetwork`, in their order.
    Norm, activation and dropout follow every layer but the last. Any of the three parts may have no
    layers: without convolutions it is an MLP on the root's own row, without a decoder the last
    convolution gives the logits (the mean over its heads, for GAT). With ``prior`` it keeps the
    logarithms of the classes' shares, which are released and not learned.

    *Guarantee conditions*: a root's logits are a function of that root's neighbourhood alone.
    ``norm`` is a LayerNorm of one row at a time.
    """

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__()
        description = NodeNetwork(*args, **settings)
        self.encoder = description.encoder.build()
        self.convs = nn.ModuleList(conv.build() for conv in description.convs)
        self.decoder = description.decoder.build()
        self.after = nn.ModuleList(
            nn.Identity() if part is None else part.build() for part in description.after
        )
        if description.prior:
            self.register_buffer("log_prior", torch.zeros(description.prior))

    @at_home
    def forward(self, around: Rooted) -> Tensor:
        """Logits of the roots: (b, out)."""
        if around.num_layers != len(self.convs):
            raise InvalidInputError(
                f"The neighbourhoods must be as deep as the network, {len(self.convs)} layers. Got "
                f"{around.num_layers} instead."
            )
        ids = around.ids
        h = self.encoder(F.embedding(around.index, around.table), ids)
        h = _follow(self.after[0], h, ids)
        for conv, after, messages in zip(self.convs, self.after[1:], around.layers(), strict=True):
            h = conv(h, messages)
            h = _follow(after, h, ids[:, : h.shape[1]])
        return self.decoder(h.squeeze(1), ids[:, 0])

    def chain(self) -> list[nn.Module]:
        """What is applied to a root's own row, in this order, without convolutions."""
        return [self.encoder, *self.after[:1], *self.convs, self.decoder]

    @at_home
    def encode(self, rows: Tensor) -> Tensor:
        """The first states of rows by themselves."""
        return _follow(self.after[0], self.encoder(rows), None)

    @at_home
    def on_graph(self, x: Tensor, messages: Messages, ids: Tensor | None = None) -> Tensor:
        """Logits of every node of a graph: (nodes, out), the same as from their neighbourhoods.

        ``ids`` are the nodes' public ids, by which a private step drops.
        """
        h = _follow(self.after[0], self.encoder(x, ids), ids)
        for conv, after in zip(self.convs, self.after[1:], strict=True):
            h = _follow(after, conv(h, messages), ids)
        return self.decoder(h, ids)

    def in_blocks(self, rows: Any, messages: Messages | StoredMessages) -> Tensor:
        """As :meth:`on_graph`, layer by layer and some receivers at a time.

        Rows may stay on disk, and messages, too: blocks are the same as in memory, and so are the
        answers, to the last bit. States between two layers are in memory. Rows of a store are not:
        dense ones are made ready in a file, which sums read in any order.
        """
        states = rows
        if len(self.encoder.linears):
            states = map_rows(self.encode, rows)
        elif isinstance(rows, LazyRows) and not is_sparse(rows.x) and len(self.convs):
            states = rows.write_out()
        for place, conv in enumerate(self.convs):
            states = self._next_states(place, conv, states, messages)
        return states if len(self.convs) else map_rows(self.decoder, states)

    def _next_states(self, place: int, conv: Any, states: Any, messages: Any) -> Tensor:
        """The states after a convolution; behind the last one what the decoder makes of them."""
        follow = partial(self._finish, place)
        whole = isinstance(states, Tensor)
        if whole and conv.adds_first and home_of(self).type == CPU:

            def receive(some: slice) -> Tensor:
                return follow(conv(states, Received(messages, some)))

            return map_places(receive, messages.num_nodes, BLOCK)
        if whole and isinstance(messages, Messages):
            return map_rows(follow, self._convolve(place, states, messages), BLOCK)
        made: Any = None
        for some, _ in messages.blocks(max(_FEWEST, _AT_ONCE // states.shape[1]), LEAST):
            nodes, part = around(messages, some)
            h = self._convolve(place, states[nodes], part)[: some.stop - some.start]
            made = h.new_empty(messages.num_nodes, h.shape[1]) if made is None else made
            made[some] = h
        return map_rows(follow, made, BLOCK)

    @at_home
    def _convolve(self, place: int, states: Tensor, messages: Messages) -> Tensor:
        """What a convolution makes of states."""
        made: Tensor = self.convs[place](states, messages)
        return made

    @at_home
    def _finish(self, place: int, h: Tensor) -> Tensor:
        """What follows a convolution: every row by itself."""
        h = _follow(self.after[place + 1], h, None)
        return self.decoder(h) if place == len(self.convs) - 1 else h


def _follow(after: nn.Module, h: Tensor, ids: Tensor | None) -> Tensor:
    return after(h, ids) if isinstance(after, Activated) else h
