r"""Sums of what neighbours send, with noise on every row, and how far one unit can move them.

Row i of an aggregate is the sum of its messages, c_ij h_j for every message j -> i, where h_j is a
row of norm at most 1 and c_ij a weight. With evidence messages it is then looked at through the
receiver's own beliefs, a linear map of that row alone (:class:`Sent`).

**Sums are exact.** Rows are multiples of 2^-16 and weights of 2^-14, both rounded towards zero, so
that no norm and no weight grows. Their products are multiples of 2^-30, which float64 adds without
rounding up to a total of 2^23; without weights even float32 adds them exactly, 256 at a time.
Taking one message away therefore changes a sum by that message, and by nothing else: no rounding
error in the row of a hub can hide or betray a sender, and the order of messages does not matter.

**Sensitivity** (docs/guarantees/gap.md; :func:`graphveil.graph.influence.sensitivity`), with every
weight at most ``w``:

==================  ============================================  ==========================
unit                what changes                                  l2 norm at most
==================  ============================================  ==========================
edge-directed       one message, in one row                       w
edge-undirected     two messages, in two rows                     sqrt(2) w
node                the messages of one sender, capped at D,      sqrt(D) w
                    in as many rows, its own row left out
==================  ============================================  ==========================

A *hard* cap keeps at most D messages of a sender's list. A *soft* cap keeps all and gives each the
weight min(1, sqrt(D / length of the list)): their squares add up to at most D.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from graphveil import _validate, processes
from graphveil.graph.caps import cap_receivers, cap_senders
from graphveil.graph.choices import CAPS, SIMILARITIES
from graphveil.graph.lists import Lists, ranges
from graphveil.graph.messages import Messages
from graphveil.graph.stored_messages import StoredMessages, Weigh
from graphveil.mechanisms import Gaussian
from graphveil.rng import SecretStream

EDGES_AT_ONCE = 1 << 19
ROWS_AT_ONCE = 1 << 17
_BLOCK = 1 << 14
_ROW_STEP, _WEIGHT_STEP = 2.0**-16, 2.0**-14
_PIECE = 256  # sums of so many rows are below 2^8, which leaves float32 the 16 bits it needs
_FAINT = 2.0**-7  # evidence shorter than this is not scaled up to length 1

_WEIGHT_OF_COSINE: dict[str, Callable[[Tensor], Tensor]] = {
    "sigmoid": torch.sigmoid,
    "half": lambda cosine: (1 + cosine) / 2,
    "positive": lambda cosine: cosine.clamp_min(0.0),
}


def incoming(
    edge_index: Tensor | Lists,
    num_nodes: int,
    *,
    seed: int,
    sender_cap: int | None = None,
    cap: str = "",
) -> Messages | StoredMessages:
    """The messages of a graph, repeated ones merged, sorted by receiver, with their weights.

    Of a store they stay on disk, unless a hard cap keeps some.

    Without a ``sender_cap`` every message weighs 1. A sender's cap is a function of its own list
    alone, so that withholding another node changes nothing about it.
    """
    if sender_cap is not None and _validate.choice("cap", cap, CAPS) == "hard":
        edge_index = cap_senders(edge_index, num_nodes, sender_cap, seed=seed)
    nothing = torch.zeros(1).expand(num_nodes)
    if isinstance(edge_index, Lists):
        if sender_cap is None:
            return StoredMessages(edge_index, nothing)
        lengths = torch.from_numpy(edge_index.offsets[1:] - edge_index.offsets[:-1])
        share = _soft_weights(lengths, sender_cap)
        return StoredMessages(edge_index, nothing, lambda senders, _: share[senders])
    edges = cap_receivers(edge_index, num_nodes, None, seed=seed)
    weight = torch.ones(1, dtype=torch.float64).expand(edges.shape[1])
    if sender_cap is not None and cap == "soft":
        weight = _soft_weights(torch.bincount(edges[0], minlength=num_nodes), sender_cap)[edges[0]]
    return Messages(edges, weight, nothing)


def _soft_weights(lengths: Tensor, sender_cap: int) -> Tensor:
    """The weight of a node's messages, by the length of its list."""
    return (sender_cap / lengths.clamp_min(1).double()).sqrt().clamp_max(1.0)


def unit_rows(h: Tensor) -> Tensor:
    """Rows scaled to length 1, on the grid; a row of zeros, or one not finite, stays or gets 0."""
    return _by_blocks(h, lambda rows: _bound_rows(F.normalize(_scale_rows(rows), dim=1)))


def bounded_rows(h: Tensor) -> Tensor:
    """Rows of length 1 at most, longer ones cut to it, on the grid (which float32 holds)."""
    return _by_blocks(h, _bound_rows)


def _by_blocks(h: Tensor, make: Callable[[Tensor], Tensor]) -> Tensor:
    out = torch.empty(h.shape, dtype=torch.float32)
    for first in range(0, len(h), _BLOCK):
        rows = h[first : first + _BLOCK].double()
        rows = rows.where(rows.isfinite().all(1, keepdim=True), 0.0)
        out[first : first + _BLOCK] = make(rows)
    return out


def _scale_rows(rows: Tensor) -> Tensor:
    """Largest entry 1: no square of an entry overflows, nor all of them underflow."""
    return rows / rows.abs().amax(1, keepdim=True).clamp_min(torch.finfo(rows.dtype).tiny)


def _bound_rows(rows: Tensor) -> Tensor:
    length = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    return _truncate(rows / length.clamp_min(1.0), _ROW_STEP)


@dataclass(frozen=True, eq=False)
class Sent:
    """What is sent in one hop: a row by every node, times a weight for every message.

    ``rows`` come from :func:`unit_rows` or :func:`bounded_rows`. ``weight`` stands in the order of
    the messages' senders and is rounded here. With ``beliefs`` q, each receiver looks at what
    arrives, A_i, through q_i * (A_i - <q_i, A_i>), row by row.
    """

    messages: Messages | StoredMessages
    rows: Tensor
    weight: Tensor | Weights | None = None
    beliefs: Tensor | None = None

    def __post_init__(self) -> None:
        weight = own_weights(self.messages) if self.weight is None else self.weight
        if isinstance(weight, Tensor):
            plain = self.weight is None and weight.numel() and weight.stride(0) == 0
            weight = None if plain else _truncate(weight, _WEIGHT_STEP)
        object.__setattr__(self, "weight", weight)

    def _weights(self, some: slice) -> Tensor:
        """The weights of some messages, rounded."""
        if isinstance(self.weight, Weights):
            return _truncate(self.weight[some], _WEIGHT_STEP)
        assert self.weight is not None
        return self.weight[some]

    def blocks(self) -> Iterator[tuple[slice, Tensor]]:
        """Exact sums, a few receivers at a time."""
        table = self._table()
        for some in self._places():
            yield some, self._sum(some, table)

    def _places(self) -> Iterator[slice]:
        """The receivers that are summed, and get their noise, together."""
        for first in range(0, len(self.rows), ROWS_AT_ONCE):
            yield slice(first, min(first + ROWS_AT_ONCE, len(self.rows)))

    def _table(self) -> Tensor:
        """The rows as products read them: not to be kept, for it is twice as large."""
        return self.rows if self.weight is None else _double(self.rows)

    def _sum(self, some: slice, table: Tensor) -> Tensor:
        """The sums of some receivers; which others are summed with them changes no bit."""
        total = torch.zeros(some.stop - some.start, self.rows.shape[1], dtype=torch.float64)
        start = self.messages.start[some.start : some.stop + 1]
        for first, last in ranges(start.numpy()):
            here, bounds = slice(first, last), start[first : last + 1]
            held = slice(int(bounds[0]), int(bounds[-1]))
            senders, bounds = self.messages.senders[held], bounds - bounds[0]
            if self.weight is None:
                total[here] = _plain_sums(senders, table, bounds)
            else:
                total[here] = _weighted_sums(senders, table, bounds, self._weights(held))
        if self.beliefs is not None:
            total = open_evidence(self.beliefs[some].double(), total)
        return total

    def sums(self) -> Tensor:
        """Exact sums of all rows, in float64: nothing to show to anybody."""
        out = torch.empty(self.rows.shape, dtype=torch.float64)
        for some, total in self.blocks():
            out[some] = total
        return out

    def list_sums(self, sums: Tensor, out: Tensor | None = None) -> Tensor:
        r"""Of every node the sums of those it sends to, without what it sent: what its list says.

        Node i gets \sum_j (S_j - c_ij h_i) / sqrt(n) over the n of its own list, with ``sums`` S:
        the noise stays as large as in one S_j. It reads node i's own row and list, and released
        sums; nothing is released here. The answer is in float32, in ``out`` if that is given.
        """
        out = torch.empty(sums.shape) if out is None else out
        sums = _double(sums)
        for some, bounds, read, weight in self._own_lists():
            ones = torch.ones(len(read), dtype=torch.float64)
            heard = _weighted_sums(read, sums, bounds, ones)
            sent = weight.double().unsqueeze(1)
            own = _weighted_sums(torch.arange(len(read)), sent, bounds, ones)
            own = own * self.rows[some].double()
            counts = bounds.diff().clamp_min(1).double().sqrt().unsqueeze(1)
            out[some] = ((heard - own) / counts).float()
        return out

    def _own_lists(self) -> Iterator[tuple[slice, Tensor, Tensor, Tensor]]:
        """Some senders, where the list of each begins, whom it names, and with what weights."""
        messages, weights = self.messages, None
        if isinstance(messages, StoredMessages):
            lists = messages.lists
        else:
            order = torch.argsort(messages.senders, stable=True)
            counts = torch.bincount(messages.senders, minlength=len(self.rows))
            offsets = F.pad(counts.cumsum(0), (1, 0))
            lists = Lists(offsets.numpy(), messages.receivers[order].numpy())
            weights = self.weight[order] if isinstance(self.weight, Tensor) else None
        for first, last in ranges(lists.offsets):
            bounds = torch.from_numpy(lists.offsets[first : last + 1] - lists.offsets[first])
            held = slice(int(lists.offsets[first]), int(lists.offsets[last]))
            read = torch.from_numpy(lists.others[held].astype("int64"))
            weight = torch.ones(len(read)) if weights is None else weights[held]
            if isinstance(self.weight, Weights):
                owners = torch.arange(first, last).repeat_interleave(bounds.diff())
                weight = _truncate(self.weight.of(owners, read), _WEIGHT_STEP)
            yield slice(first, last), bounds, read, weight

    def noisy_sums(
        self, mechanism: Gaussian, rng: SecretStream, ranks: processes.Ranks = processes.ALONE
    ) -> Tensor:
        """Sums with noise on every row, in float32: one release of ``mechanism``.

        Of several ``ranks`` each sums some rows. Rank 0 adds the noise, to each row once, and has
        the answer; that of others is of no use.
        """
        out, table = torch.empty(self.rows.shape, dtype=torch.float32), self._table()
        for some in self._places():
            total = ranks.collect(self._sum(ranks.rows(some), table), some)
            if ranks.first:
                out[some] = mechanism.release(total, rng, block_of=out.numel())
        return out


def _double(rows: Tensor) -> Tensor:
    """Rows in float64, by numpy: it asks for large pages, in which products find rows faster."""
    return torch.from_numpy(rows.detach().numpy().astype("float64"))


def _plain_sums(senders: Tensor, table: Tensor, bounds: Tensor) -> Tensor:
    """Sums of float32 rows, exact: long lists are added in pieces, and pieces in float64."""
    pieces = (bounds.diff() + _PIECE - 1).div(_PIECE, rounding_mode="floor").clamp_min(1)
    ends = torch.cumsum(pieces, 0)
    place = torch.arange(int(ends[-1])) - torch.repeat_interleave(ends - pieces, pieces)
    offsets = torch.repeat_interleave(bounds[:-1], pieces) + _PIECE * place
    sums = F.embedding_bag(senders, table, offsets.to(senders.dtype), mode="sum").double()
    if len(sums) == len(pieces):
        return sums
    order = torch.arange(len(sums))
    return F.embedding_bag(order, sums, ends - pieces, mode="sum")


def _weighted_sums(senders: Tensor, table: Tensor, bounds: Tensor, weight: Tensor) -> Tensor:
    """Sums of float64 rows times weights; bags are twice as slow in float64 as sparse products."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
        sparse = torch.sparse_csr_tensor(
            bounds, senders.long(), weight, (len(bounds) - 1, len(table)), check_invariants=False
        )
    return sparse @ table


# --- weights --------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Weights:
    """Weights of the messages of a store, made when they are read: products of ``factors``.

    A factor makes the weights of pairs of senders and receivers, ``at_once`` of them together.
    """

    messages: StoredMessages
    factors: tuple[Weigh, ...]
    at_once: int = EDGES_AT_ONCE

    def __getitem__(self, some: slice) -> Tensor:
        return self.of(*self.messages.ends(some))

    def of(self, senders: Tensor, receivers: Tensor) -> Tensor:
        """The weights of some pairs, in float64."""
        out = torch.empty(len(senders), dtype=torch.float64)
        for first in range(0, len(out), self.at_once):
            some = slice(first, first + self.at_once)
            made = [weigh(senders[some], receivers[some]) for weigh in self.factors]
            out[some] = functools.reduce(torch.mul, made)
        return out


def own_weights(messages: Messages | StoredMessages) -> Tensor | Weights | None:
    """The weights that messages have by themselves; None of those of a store that have none."""
    if not isinstance(messages, StoredMessages):
        return messages.weights
    return None if messages.weigh is None else Weights(messages, (messages.weigh,))


def multiply_weights(weights: Sequence[Tensor | Weights | None]) -> Tensor | Weights | None:
    """The product of weights of the same messages, or None of none."""
    stored = [weight for weight in weights if isinstance(weight, Weights)]
    if stored:
        at_once = min(weight.at_once for weight in stored)
        factors = tuple(weigh for weight in stored for weigh in weight.factors)
        return Weights(stored[0].messages, factors, at_once)
    tensors = [weight for weight in weights if isinstance(weight, Tensor)]
    return functools.reduce(torch.mul, tensors) if tensors else None


def weigh_pairs(
    messages: Messages | StoredMessages, weigh: Weigh, at_once: int = EDGES_AT_ONCE
) -> Tensor | Weights:
    """``weigh(senders, receivers)`` of every message in float64, a few messages at a time.

    Of a store they are made when they are read.
    """
    if isinstance(messages, StoredMessages):
        return Weights(messages, (weigh,), at_once)
    out = torch.empty(len(messages.senders), dtype=torch.float64)
    receivers = messages.receivers
    for first in range(0, len(out), at_once):
        some = slice(first, first + at_once)
        out[some] = weigh(messages.senders[some], receivers[some])
    return out


def similarity_weights(
    messages: Messages | StoredMessages, rows: Tensor, how: str
) -> Tensor | Weights:
    """The weight of every message by the cosine of its two ends' rows, which have length 1."""
    how = _validate.choice("similarity", how, tuple(SIMILARITIES))
    map_cosine, largest = _WEIGHT_OF_COSINE[how], SIMILARITIES[how]

    def weigh(senders: Tensor, receivers: Tensor) -> Tensor:
        cosine = (rows[senders].double() * rows[receivers].double()).sum(1)
        return map_cosine(cosine.clamp(-1.0, 1.0)).clamp(0.0, largest)

    return weigh_pairs(messages, weigh)


def evidence_weights(
    messages: Messages | StoredMessages, rows: Tensor, beliefs: Tensor, share: Tensor | None
) -> Tensor | Weights:
    r"""Weights that make every message of evidence one of length 1 (or its edge's share).

    Seen through the receiver's beliefs q_i, row M_j becomes q_i * (M_j - <q_i, M_j>): it speaks of
    the classes the receiver hesitates between, and is silent where q_i is certain. ``share`` has a
    number h for each node; the two messages of an edge then get sqrt(2 h_i / (h_i + h_j)) and
    sqrt(2 h_j / (h_i + h_j)), i.e. the same budget as 1 and 1, most of it for who needs it.
    """

    def weigh(senders: Tensor, receivers: Tensor) -> Tensor:
        seen = open_evidence(beliefs[receivers].double(), rows[senders].double())
        # A hair too long: the weight must not be too large, nor may rounding make it so.
        length = torch.linalg.vector_norm(seen, dim=1) * (1 + 1e-6)
        weight = 1.0 / length.clamp_min(_FAINT)
        if share is not None:
            own, other = share[receivers].double(), share[senders].double()
            weight = weight * (2 * own / (own + other)).sqrt()
        return weight

    return weigh_pairs(messages, weigh)


def open_evidence(beliefs: Tensor, arrived: Tensor) -> Tensor:
    """What arrives, as evidence between the classes that ``beliefs`` leave open."""
    return beliefs * (arrived - (beliefs * arrived).sum(1, keepdim=True))


def _truncate(values: Tensor, step: float) -> Tensor:
    """Multiples of ``step``, a power of two, rounded towards zero: no size grows."""
    return torch.trunc(values.double() / step) * step
