"""The part of a graph that some nodes read, and messages turned round; also of a store."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from graphveil.graph.messages import Messages
from graphveil.graph.stored_messages import StoredMessages


@dataclass(frozen=True, eq=False)
class Surroundings:
    """Nodes, ascending; messages among them, which name their places; where the readers stand."""

    nodes: Tensor
    messages: Messages
    readers: Tensor


def surround(messages: Messages | StoredMessages, readers: Tensor, hops: int) -> Surroundings:
    """What some nodes read over so many hops: all messages to whoever is less far away.

    What reaches a node stands in one order, whether messages are in memory or in a store, and
    whoever else reads: sums are the same to the last bit.
    """
    near = readers.unique()
    for _ in range(hops - 1):
        near = torch.cat([near, _arriving(messages, near)[0]]).unique()
    senders, receivers, weight = _arriving(messages, near if hops else near[:0])
    nodes = torch.cat([near, senders]).unique()
    edges = torch.stack([torch.searchsorted(nodes, end) for end in (senders, receivers)])
    among = Messages(edges, weight, messages.self_weight[nodes])
    return Surroundings(nodes, among, torch.searchsorted(nodes, readers))


def turn_round(messages: Messages | StoredMessages) -> Messages | StoredMessages:
    """The same messages with the same weights, each sent back by who received it."""
    if not isinstance(messages, StoredMessages):
        # Sorted by receiver, so that in the end each list ascends, as lists of a store do.
        edges = torch.stack([messages.receivers, messages.senders])
        return Messages(edges, messages.weights, messages.self_weight)
    weigh = messages.weigh
    back = None if weigh is None else lambda senders, receivers: weigh(receivers, senders)
    return StoredMessages(messages.lists.transposed, messages.self_weight, back)


def _arriving(
    messages: Messages | StoredMessages, receivers: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """All messages that reach some nodes: senders, receivers, weights."""
    first = messages.start[receivers]
    sizes = messages.start[receivers + 1] - first
    places = torch.arange(int(sizes.sum()))
    places += torch.repeat_interleave(first - (sizes.cumsum(0) - sizes), sizes)
    senders = messages.senders[places].long()
    receivers = torch.repeat_interleave(receivers, sizes)
    if not isinstance(messages, StoredMessages):
        return senders, receivers, messages.weights[places]
    weigh = messages.weigh
    weight = torch.ones(len(senders)) if weigh is None else weigh(senders, receivers)
    return senders, receivers, weight
