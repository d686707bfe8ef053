r"""Who sends to whom, and with what weight: the two layouts every convolution runs on.

A private step works on *rooted neighbourhoods*: each loss term has its own copy of the nodes it
may read, so that its gradient can be bounded by itself. Prediction, and training on whole graphs,
work on *edges*. A convolution is written once, against :class:`Neighbourhoods`; what differs
between the two layouts is how states are added up, and that is what this file holds::

    DenseMessages   (b, T, channels): b examples of T nodes each, the first M of which are
                    receivers; who sends to whom stands in a table (b, M, T)
    Messages        (nodes, channels) and a list of edges without self-loops

*Guarantee conditions* (unit ``node``, senders capped at K, L layers: at most 1 + K + ... + K^L loss
terms read a row). The weight of a message u -> w may depend on the states of u and w, on the number
of messages u sends after its cap, and on the messages that reach w after all caps; never on how
many messages reach u, nor on a degree counted before the caps. So the edges here are the kept
messages, the same for every layer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from scipy import sparse
from torch import Tensor
from torch.nn import functional as F

from graphveil import _validate
from graphveil.graph.choices import NORMALISATIONS
from graphveil.graph.lists import ranges
from graphveil.graph.sparse_rows import as_csr, as_tensor, is_sparse

_AT_ONCE = 1 << 14  # messages whose states are held together


@dataclass(frozen=True, eq=False)
class DenseMessages:
    """A small graph for each example, as a table: receiver i, the i-th node, hears from node j.

    ``weight`` and ``mask`` are (b, M, T) for M receivers among T nodes. The mask is True on the
    diagonal (a node's own state) and where there is a message; what stands elsewhere never matters.
    Tables are dense: neighbourhoods are small, and one matrix product beats a list of edges.
    """

    weight: Tensor
    mask: Tensor

    @cached_property
    def sent(self) -> Tensor:
        """The mask without the diagonal."""
        own = torch.eye(*self.mask.shape[1:], dtype=torch.bool, device=self.mask.device)
        return self.mask & ~own

    def weighted(self, h: Tensor) -> Tensor:
        """Own state and messages, each times its weight, for each receiver: (b, M, channels)."""
        return _mix(self._shares(self.mask, h), h)

    def own_and_rest(self, h: Tensor) -> tuple[Tensor, Tensor]:
        """The receivers' own states, which come first, and what the three sums below take."""
        return h[:, : self.mask.shape[1]], h

    def total(self, rest: Tensor, *, weighted: bool = False) -> Tensor:
        """Messages added up for each receiver, without its own state."""
        share = self._shares(self.sent, rest) if weighted else self.sent.to(rest.dtype)
        return _mix(share, rest)

    def mean(self, rest: Tensor) -> Tensor:
        """Mean of the messages that reach a node, zero where there are none."""
        inside = self.sent.to(rest.dtype)
        return _mix(inside / inside.sum(-1, keepdim=True).clamp_min(1.0), rest)

    def largest(self, rest: Tensor) -> Tensor:
        """Largest of the messages in every channel, zero where there are none."""
        hidden = ~self.sent.unsqueeze(-1)
        top = rest.unsqueeze(1).masked_fill(hidden, -torch.inf).amax(2)
        return torch.where(self.sent.any(-1, keepdim=True), top, 0.0)

    def pairs(self, senders: Tensor, receivers: Tensor) -> Tensor:
        """Sender's and receiver's (..., heads) added for each message, own state included."""
        return senders.unsqueeze(1) + receivers.unsqueeze(2)

    def products(self, senders: Tensor, receivers: Tensor) -> Tensor:
        """Dot products of (..., heads, channels) for each message, own state included."""
        return torch.einsum("bthc,bmhc->bmth", senders, receivers)

    def attend(self, scores: Tensor, values: Tensor) -> Tensor:
        """Softmax over a node's messages and its own state: (b, M, heads, channels)."""
        hidden = ~self.mask.unsqueeze(-1)
        share = torch.softmax(scores.masked_fill(hidden, -torch.inf), 2)
        return torch.einsum("bmth,bthc->bmhc", share, values)

    def _shares(self, where: Tensor, h: Tensor) -> Tensor:
        return self.weight.to(h.dtype).masked_fill(~where, 0.0)


@dataclass(frozen=True, eq=False)
class Messages:
    """Messages of a graph, or of several side by side: edge e is sent from row 0 to row 1.

    ``weight`` has one entry for each edge, ``self_weight`` one for each node (its own state's). A
    self-loop among the edges is one more message, added to the node's own state; a repeated edge is
    two messages.
    """

    edge_index: Tensor
    weight: Tensor
    self_weight: Tensor

    @property
    def num_nodes(self) -> int:
        """Nodes of the graph, those without any edge included."""
        return len(self.self_weight)

    @cached_property
    def order(self) -> Tensor | slice:
        """Edges sorted by receiver; everything as it is, if it is."""
        receivers = self.edge_index[1]
        if bool((receivers[1:] >= receivers[:-1]).all()):
            return slice(None)
        return torch.argsort(receivers.int(), stable=True)

    @cached_property
    def start(self) -> Tensor:
        """Node w's messages stand at ``start[w] : start[w + 1]`` of the sorted edges."""
        return F.pad(torch.cumsum(self.in_degree, 0), (1, 0))

    @cached_property
    def in_degree(self) -> Tensor:
        """How many messages reach each node."""
        return torch.bincount(self.edge_index[1], minlength=self.num_nodes)

    @cached_property
    def senders(self) -> Tensor:
        """Senders, sorted by receiver."""
        return self.edge_index[0][self.order]

    @cached_property
    def receivers(self) -> Tensor:
        """Receivers, sorted."""
        return self.edge_index[1][self.order]

    @cached_property
    def weights(self) -> Tensor:
        """Weights, sorted by receiver."""
        return self.weight[self.order]

    def ends(self, some: slice) -> tuple[Tensor, Tensor]:
        """Senders and receivers of some messages, as they are sorted."""
        return self.senders[some], self.receivers[some]

    def weights_of(self, some: slice) -> Tensor | None:
        """Weights of some messages, as they are sorted."""
        return self.weights[some]

    def blocks(self, at_once: int | None = None, least: int = 1) -> Iterator[tuple[slice, slice]]:
        """Receivers, and where their messages stand; so many messages at a time, about.

        There are ``least`` receivers at least.
        """
        start = self.start.numpy()
        for first, last in ranges(start, at_once, least):
            yield slice(first, last), slice(int(start[first]), int(start[last]))

    @cached_property
    def _ends(self) -> tuple[Tensor, Tensor]:
        """Senders and receivers, sorted by receiver, and then every node to itself."""
        nodes = torch.arange(self.num_nodes, device=self.edge_index.device)
        return torch.cat([self.senders, nodes]), torch.cat([self.receivers, nodes])

    def weighted(self, h: Tensor) -> Tensor:
        """Own state and messages, each times its weight: (nodes, channels)."""
        if is_sparse(h):  # what is read of rows, and never trained
            rows = as_csr(h.cpu())
            return as_tensor(sparse.csr_array(self._matrix @ rows).astype(rows.dtype)).to(h.device)
        own = h * self.self_weight.to(h.dtype).unsqueeze(-1)
        return own + self.total(h, weighted=True)

    @cached_property
    def _matrix(self) -> sparse.csr_array:
        """The weights of all messages, and of every node's own state, from column to row."""
        source, target = (end.cpu().numpy() for end in self._ends)
        weights = torch.cat([self.weights.double(), self.self_weight.double()]).cpu().numpy()
        shape = self.num_nodes, self.num_nodes
        return sparse.csr_array(sparse.coo_array((weights, (target, source)), shape=shape))

    def own_and_rest(self, h: Tensor) -> tuple[Tensor, Tensor]:
        """Every node is a receiver, and every node may be a sender."""
        return h, h

    def total(self, rest: Tensor, *, weighted: bool = False) -> Tensor:
        """Messages added up for each receiver."""
        return _Total.apply(rest, self, weighted)

    def mean(self, rest: Tensor) -> Tensor:
        """Mean of the messages that reach a node."""
        return self.total(rest) / self.in_degree.clamp_min(1).unsqueeze(-1)

    def largest(self, rest: Tensor) -> Tensor:
        """Largest of the messages that reach a node."""
        return F.embedding_bag(self.senders, rest, self.start, mode="max", include_last_offset=True)

    def pairs(self, senders: Tensor, receivers: Tensor) -> Tensor:
        """(edges + nodes, heads)."""
        source, target = self._ends
        return senders[source] + receivers[target]

    def products(self, senders: Tensor, receivers: Tensor) -> Tensor:
        """(edges + nodes, heads)."""
        source, target = self._ends
        # One head at a time: (edges, heads, channels) would be the largest tensor of the network.
        heads = zip(senders.unbind(1), receivers.unbind(1), strict=True)
        return torch.stack([(s[source] * r[target]).sum(-1) for s, r in heads], 1)

    def attend(self, scores: Tensor, values: Tensor) -> Tensor:
        """Softmax over a node's messages and its own state: (nodes, heads, channels)."""
        _, target = self._ends
        edges = len(self.senders)
        places = target.unsqueeze(1).expand_as(scores)
        with torch.no_grad():  # any shift gives the same softmax; the largest score never overflows
            top = scores[edges:].scatter_reduce(0, places, scores, "amax")
        share = torch.exp(scores - top[target])
        share = share / torch.zeros_like(top).index_add(0, target, share)[target]
        by_head = zip(values.unbind(1), self._gated_share(share[:edges]).unbind(1), strict=True)
        summed = [_LearntTotal.apply(value, passed, self) for value, passed in by_head]
        return share[edges:].unsqueeze(-1) * values + torch.stack(summed, 1)

    def _gated_share(self, share: Tensor) -> Tensor:
        """How much of each message, sorted by receiver, goes into the attended sum."""
        return share

    @cached_property
    def _by_sender(self) -> tuple[Tensor, Tensor, Tensor]:
        """The sorted edges sorted by sender, their receivers, and where each sender's begin."""
        order = torch.argsort(self.senders, stable=True)
        return order, self.receivers[order], self._to_senders[2]

    @cached_property
    def _to_senders(self) -> tuple[Tensor, Tensor, Tensor]:
        """Receivers and weights sorted by sender, and where each sender's begin: for gradients."""
        order = torch.argsort(self.edge_index[0].int(), stable=True)
        sent = torch.bincount(self.edge_index[0], minlength=self.num_nodes)
        start = F.pad(torch.cumsum(sent, 0), (1, 0))
        return self.edge_index[1][order], self.weight[order], start

    def with_gates(self, gate: Tensor) -> GatedMessages:
        """The same messages behind gates, one for each edge."""
        return GatedMessages(self.edge_index, self.weight, self.self_weight, gate)


@dataclass(frozen=True, eq=False)
class GatedMessages(Messages):
    """Messages behind gates: edge e's is multiplied by ``gate[e]``, to ask what it is worth.

    A node's own state passes no gate. Weights, counts and attention are those of all edges, however
    far their gates are open, as in PyG's explainers: a closed gate silences an edge and does not
    take it away. Gradients reach the gates. Gates of 1 change no bit of any sum.
    """

    gate: Tensor

    @cached_property
    def gates(self) -> Tensor:
        """Gates, sorted by receiver."""
        return self.gate[self.order]

    def total(self, rest: Tensor, *, weighted: bool = False) -> Tensor:
        """Messages added up for each receiver."""
        share = self.gates.to(rest.dtype)
        if weighted:
            share = share * self.weights.to(rest.dtype)
        return add_up(rest, self.senders, self.start, share)

    def largest(self, rest: Tensor) -> Tensor:
        """Largest of the messages that reach a node; a closed gate sends zeros."""
        sent = rest[self.senders] * self.gates.to(rest.dtype).unsqueeze(-1)
        edges = torch.arange(len(sent), device=sent.device)
        return F.embedding_bag(edges, sent, self.start, mode="max", include_last_offset=True)

    def _gated_share(self, share: Tensor) -> Tensor:
        return share * self.gates.to(share.dtype).unsqueeze(-1)


Neighbourhoods = DenseMessages | Messages  # with the same methods, which is all that layers call


class _Total(torch.autograd.Function):
    """Messages added up by bags, and gradients by the same bags the other way round.

    Bags never gather the edges' states, as index_add would: ten times faster and edges times
    leaner. The gradient that comes with them is as slow as index_add.
    """

    @staticmethod
    def forward(ctx: Any, h: Tensor, messages: Messages, weighted: bool) -> Tensor:
        ctx.messages, ctx.weighted = messages, weighted
        weights = messages.weights if weighted else None
        return add_up(h, messages.senders, messages.start, weights)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        receivers, weights, start = ctx.messages._to_senders
        return add_up(grad, receivers, start, weights if ctx.weighted else None), None, None


class _LearntTotal(torch.autograd.Function):
    """Messages times weights that are learnt, added up by bags, and both gradients.

    The gradient of a weight is a sum over one message's channels. torch's own takes dot products,
    whose last bits depend on where in memory a row begins.
    """

    @staticmethod
    def forward(ctx: Any, h: Tensor, share: Tensor, messages: Messages) -> Tensor:
        ctx.messages = messages
        ctx.save_for_backward(h, share)
        return add_up(h, messages.senders, messages.start, share)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        (h, share), messages = ctx.saved_tensors, ctx.messages
        order, receivers, start = messages._by_sender
        both = messages.senders, messages.receivers
        ends = zip(*(some.split(_AT_ONCE) for some in both), strict=True)
        shares = [(h[senders] * grad[heard]).sum(-1) for senders, heard in ends]
        return add_up(grad, receivers, start, share[order]), torch.cat(shares), None


def add_up(h: Tensor, senders: Tensor, start: Tensor, weights: Tensor | None) -> Tensor:
    """Rows of ``h`` in bags, added up: bag w's are named at ``start[w] : start[w + 1]``."""
    weights = None if weights is None else weights.to(h.dtype)
    return F.embedding_bag(
        senders, h.contiguous(), start, mode="sum", per_sample_weights=weights,
        include_last_offset=True,
    )  # fmt: skip


def weigh_messages(
    edge_index: Tensor,
    num_nodes: int,
    how: str = "inverse-degree",
    *,
    sender_lists: Tensor | None = None,
) -> Messages:
    """Weights for kept messages, from the kept messages alone.

    ``inverse-degree``: 1 / (1 + in(w)) for every message that reaches w and for w's own state.
    ``symmetric``: 1 / sqrt((1 + out(u)) (1 + in(w))) for u -> w, and 1 / sqrt((1 + out(w)) (1 +
    in(w))) for w's own state. The sender counts what it *sends*: the textbook's in-degree of the
    sender would let a row reach one hop further than the network is deep. ``none``: ones.

    *Guarantee conditions*: where receivers were capped, too, ``sender_lists`` must be the edges
    before that cap: a place freed at a receiver must not change another sender's count. Under the
    edge units, and under the relation ``remove``, symmetric weights have no proven bound.
    """
    _validate.choice("how", how, NORMALISATIONS)
    source, target = edge_index
    reached = 1.0 + torch.bincount(target, minlength=num_nodes)
    if how == "inverse-degree":
        return Messages(edge_index, 1.0 / reached[target], 1.0 / reached)
    if how == "symmetric":
        sent = source if sender_lists is None else sender_lists[0]
        by_receiver = reached.rsqrt()
        by_sender = (1.0 + torch.bincount(sent, minlength=num_nodes)).rsqrt()
        weight = by_sender[source] * by_receiver[target]
        return Messages(edge_index, weight, by_sender * by_receiver)
    ones = torch.ones_like(reached)
    return Messages(edge_index, ones[target], ones)


def _mix(share: Tensor, h: Tensor) -> Tensor:
    """``share @ h`` for each example."""
    if share.shape[1] == 1:  # the gradient would be a product with one column, slow as a matrix
        return (share.transpose(1, 2) * h).sum(1, keepdim=True)
    return share @ h
