"""Spreading rows over a graph in the open."""

from __future__ import annotations

from torch import Tensor

from graphveil.graph.messages import Messages
from graphveil.graph.stored_messages import StoredMessages


def spread_rows(
    rows: Tensor, messages: Messages | StoredMessages, steps: int, teleport: float
) -> Tensor:
    """Personalised PageRank by power iteration: each row spread over who hears it, and kept.

    Every step takes ``1 - teleport`` of the weighted neighbourhood, a node's own row included, and
    ``teleport`` of the row it started with.

    *Guarantee*: none. Neighbours' rows are read in the open.
    """
    spread = rows
    for _ in range(steps):
        spread = messages.weighted(spread).mul_(1 - teleport).add_(teleport * rows)
    return spread
