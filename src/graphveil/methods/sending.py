"""What nodes send in a hop of GAP: rows along messages, with their weights."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F
from torch_geometric.data import Data

from graphveil._errors import InvalidInputError
from graphveil.graph import aggregation
from graphveil.graph.aggregation import (
    Sent,
    bounded_rows,
    incoming,
    multiply_weights,
    own_weights,
    unit_rows,
)
from graphveil.graph.caps import cap_receivers
from graphveil.graph.contents import compare_tensors
from graphveil.graph.lazy_rows import map_rows, slices
from graphveil.graph.lists import Lists
from graphveil.graph.messages import Messages
from graphveil.graph.neighbourhoods import RootedTerms
from graphveil.graph.stored import edges_of
from graphveil.graph.stored_messages import StoredMessages
from graphveil.methods.terms import node_terms
from graphveil.nn.gap import GAPNetwork

if TYPE_CHECKING:
    from graphveil.methods.execution import Execution
    from graphveil.methods.gap import GAP
    from graphveil.methods.parts import Release
    from graphveil.methods.task import Task
    from graphveil.rng import SecretStream

_PAIRS_AT_ONCE = 1 << 16  # pairs that attention weighs together
_READ_AT_ONCE = 50  # messages that a loss term of the attention reads; free


class Sender(Protocol):
    """A method whose nodes send rows: :class:`GAP`, and what it would be without noise.

    ``message_cap`` is how many messages a node may send, None if all. ``trains_openly`` says that
    encoders and heads are trained without noise. ``cache_unit`` is what sums of labels are measured
    in. ``reads_lists`` says that a node reads the sums of those in its own list, too.
    """

    seed: int
    weighting: Any
    similarity: Any
    open_steps: int
    head_steps: int
    open_batch: int
    open_learning_rate: float
    weight_decay: float
    plan_: Any
    network_: Any

    @property
    def paper(self) -> bool: ...
    @property
    def messages_in_use(self) -> str: ...
    @property
    def hops_in_use(self) -> int: ...
    @property
    def capping_in_use(self) -> str: ...
    @property
    def message_cap(self) -> int | None: ...
    @property
    def reads_lists(self) -> bool: ...
    @property
    def encodes(self) -> bool: ...
    @property
    def trains_openly(self) -> bool: ...
    @property
    def cache_unit(self) -> float: ...
    def prepare(self, data: Data) -> Tensor: ...
    def task(self, facts: Any) -> Task: ...


@dataclass(frozen=True, eq=False)
class Sending:
    """What every node sends in a hop, and what weights are made of."""

    messages: Messages | StoredMessages
    rows: Any
    ends: Any
    beliefs: Tensor | None = None

    def onwards(self, sums: Tensor) -> Sending:
        """What is sent next: what the last hop summed, each row of length 1."""
        return replace(self, rows=unit_rows(sums))


def prepare_to_send(
    method: Sender, network: GAPNetwork, x: Any, data: Data, beliefs: Tensor | None
) -> Sending:
    """What every node sends first, along which messages."""
    kind = method.messages_in_use
    messages = incoming(
        edges_of(data),
        len(x),
        seed=method.seed,
        sender_cap=method.message_cap,
        cap=method.capping_in_use,
    )
    ends = None
    if kind == "encoding" or method.weighting == "similarity":
        encode = network.encoders[0].encode if method.encodes else torch.Tensor.float
        ends = unit_rows(map_rows(encode, x))
    if kind == "encoding":
        return Sending(messages, ends, ends)
    labels = _label_rows(method, network, x, data, beliefs)
    if kind == "evidence":
        assert beliefs is not None
        return Sending(messages, bounded_rows(labels), ends, beliefs.exp())
    classes = labels.shape[1]
    labels -= labels.sum(1, keepdim=True) / classes
    labels /= math.sqrt(1 - 1 / classes)
    return Sending(messages, bounded_rows(labels), ends)


def _label_rows(
    method: Sender, network: GAPNetwork, x: Any, data: Data, beliefs: Tensor | None
) -> Tensor:
    """The label of a training node, what is believed of any other; (nodes, classes).

    Where there is no encoder others say nothing, unless nobody has a label: on a new graph each
    sends what the classifier makes of it alone.
    """
    classes = method.plan_.facts.num_classes
    labelled = "y" in data and "train_mask" in data and bool(data.train_mask.any())
    if beliefs is not None:
        rows = beliefs.exp()
    elif labelled:
        rows = torch.zeros(len(x), classes)
    else:

        def decide(own: Tensor) -> Tensor:
            nothing = torch.zeros(len(own), method.hops_in_use * classes)
            chances: Tensor = network.head(torch.cat([own, nothing], 1)).softmax(1)
            return chances

        rows = map_rows(decide, x)
    if not labelled:
        return rows
    if int(data.y.max()) >= classes:
        raise InvalidInputError(
            f"The labels must be of the {classes} classes that were trained on. Got "
            f"{int(data.y.max())} instead; leave 'y' out to predict without labels."
        )
    for some in slices(len(rows)):
        labels = F.one_hot(data.y[some].clamp_min(0), classes).to(rows)
        rows[some] = torch.where(data.train_mask[some].unsqueeze(1), labels, rows[some])
    return rows


def send(method: Sender, network: GAPNetwork, hop: int, sending: Sending) -> Sent:
    """The messages of one hop with their weights."""
    messages, rows, beliefs = sending.messages, sending.rows, sending.beliefs
    soft = method.message_cap is not None and method.capping_in_use == "soft"
    weights = [own_weights(messages)] if soft else []
    if method.weighting == "similarity":
        weights.append(aggregation.similarity_weights(messages, sending.ends, method.similarity))
    elif method.weighting == "attention":
        score = network.attention[hop].between(rows)

        def weigh(senders: Tensor, receivers: Tensor) -> Tensor:
            return score(senders, receivers).nan_to_num(0.0).clamp(0.0, 1.0)

        weights.append(aggregation.weigh_pairs(messages, weigh, _PAIRS_AT_ONCE))
    if beliefs is not None:
        share = None
        if method.plan_.unit == "edge-undirected":
            share = -(beliefs * beliefs.clamp_min(1e-30).log()).sum(1) + 1e-3
        weights.append(aggregation.evidence_weights(messages, rows, beliefs, share))
    return Sent(messages, rows, multiply_weights(weights), beliefs)


def attention_terms(sending: Sending, data: Data, seed: int, *, whole: bool = False) -> RootedTerms:
    """Loss terms of the attention: each reads messages of its own node, some or the ``whole``."""
    rows, messages = sending.rows, sending.messages
    edges = messages.lists if isinstance(messages, StoredMessages) else messages.edge_index
    read = cap_receivers(edges, len(rows), None if whole else _READ_AT_ONCE, seed=seed)
    heard = Messages(read, torch.ones(read.shape[1]), torch.zeros(len(rows)))
    return node_terms(rows, data, heard, 1)


def release_sums(execution: Execution, part: Release, sent: Sent) -> Tensor:
    """The noisy sums of one hop.

    Two ends of an edge share a budget by what is believed of both, which must then be the same on
    all processes that sum: it is compared.
    """
    if sent.beliefs is not None:
        compare_tensors("rows that nodes send", [sent.rows, sent.beliefs])

    def draw(mechanism: Any, rng: SecretStream) -> dict[str, Tensor]:
        return {"sums": sent.noisy_sums(mechanism, rng, execution.ranks)}

    return execution.release(part, draw, together=True)["sums"]


def check_edges(method: GAP, data: Data, unit: str) -> None:
    """Refuse a graph that breaks the promise delta rests on; for the data's owner to read.

    And one that does not fit in memory, for settings that read it whole.
    """
    edges = edges_of(data)
    if isinstance(edges, Lists):
        _check_store(method)
    if method.unit == "node" or method.public_edges is None:
        return
    if isinstance(edges, Lists):
        count = edges.num_messages if unit == "edge-directed" else edges.count_pairs()
    else:
        ends = edges[:, edges[0] != edges[1]]
        if unit == "edge-undirected":
            ends = ends.sort(dim=0).values
        count = ends.unique(dim=1).shape[1]
    if count > method.public_edges:
        raise InvalidInputError(
            "The 'public_edges' parameter must be a bound that the data is known to obey. Got "
            f"{method.public_edges} for a graph with more edges instead; state one that holds, "
            "or leave it out: all pairs of nodes are counted then."
        )


def _check_store(method: GAP) -> None:
    """Refuse settings that read a whole matrix of features, or all messages at once."""
    if not method.encodes and method.weighting == "similarity":
        raise InvalidInputError(
            "On a store messages must be weighed by what an encoder makes of rows. Got "
            "weighting='similarity' with messages='label' instead, which compares whole rows; take "
            "messages='encoding', or weighting='none'."
        )
    if method.weighting == "attention" and method.message_cap is None and method.paper:
        raise InvalidInputError(
            "On a store a loss term of the attention must read few messages. Got paper=True under "
            "an edge unit instead, where it reads all of its node's; leave out 'paper', or take "
            "weighting='similarity'."
        )
