r"""Classification of whole graphs, many side by side in one ragged batch.

Each graph is one loss term. Nothing here lets one graph see another: convolutions follow edges,
pools and norms add up the nodes of a graph, and :func:`graphveil.grads.ragged` tells the engine
which rows are whose.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from graphveil._errors import InvalidInputError
from graphveil.devices import at_home
from graphveil.grads.layers import Affine
from graphveil.grads.rows import ragged
from graphveil.graph.messages import weigh_messages
from graphveil.nn.descriptions import GraphNetwork
from graphveil.nn.smooth import largest


class InstanceNorm(nn.Module):
    """Every channel of every graph to mean 0 and variance 1 over the graph's nodes; scale, shift.

    The variance is the biased one. A graph of a single node becomes zeros, then the shift.
    """

    def __init__(self, channels: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.affine = Affine(channels)

    def forward(self, x: Tensor, batch: Tensor, num_graphs: int) -> Tensor:
        """Rows of ``x`` (nodes, channels), row r a node of graph ``batch[r]``."""
        centred = x - pool_nodes(x, batch, num_graphs, "mean")[batch]
        variance = pool_nodes(centred * centred, batch, num_graphs, "mean")
        return self.affine(centred * torch.rsqrt(variance + self.eps)[batch])


def pool_nodes(x: Tensor, batch: Tensor, num_graphs: int, how: str) -> Tensor:
    """``sum``, ``mean`` or ``max`` over each graph's nodes; zeros for a graph without nodes."""
    if how == "max":
        return largest(x, batch, num_graphs)
    total = x.new_zeros(num_graphs, x.shape[1]).index_add(0, batch, x)
    if how == "sum":
        return total
    return total / torch.bincount(batch, minlength=num_graphs).clamp_min(1).unsqueeze(1)


class GraphClassifier(nn.Module):
    """Convolutions on the nodes, a pool over each graph, an MLP on what it gives.

    It takes the fields of a :class:`~graphveil.nn.descriptions.GraphNetwork`, in their order.
    ``hidden_channels`` is one width for all of ``num_layers`` convolutions (2 unless told), or a
    list with one for each. ``normalisation`` says what weights the messages have; by default
    ``symmetric``, and ``none`` for the ``sum`` convolution. The head's hidden layers are
    ``head_channels`` wide, one width for all or a list with one for each, by default as wide as the
    last convolution; without ``head_layers`` a list says how many there are. ``norm="instance"``
    normalises after each convolution, ``norm_first`` the columns before the first one. ``scale``
    multiplies the sums of the ``sum`` convolution and of the ``sum`` pool. Without convolutions (no
    layers) the pool is over the nodes' own columns: a linear classifier, if the head has one layer.

    *Guarantee conditions* (unit ``graph``): a graph's logits are a function of that graph alone.
    """

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__()
        description = GraphNetwork(*args, **settings)
        self.pool, self.scale = description.pool, float(description.scale)
        self.normalisation = description.weights
        first, norms = description.norm_first, list(map(InstanceNorm, description.normalised))
        self.first = norms[0] if first else None
        self.convs = nn.ModuleList(conv.build() for conv in description.convs)
        self.norms = nn.ModuleList(norms[int(first) :])
        self.after = nn.ModuleList(part.build() for part in description.after)
        self.head = description.head.build()

    @at_home
    def forward(
        self,
        x: Tensor,
        edge_index: Tensor,
        batch: Tensor,
        num_graphs: int,
        *,
        gate: Tensor | None = None,
    ) -> Tensor:
        """Logits (num_graphs, out) of graphs whose nodes are the rows of ``x``.

        Row r is a node of graph ``batch[r]``, in any order; edges stay inside a graph. Graphs may
        have a single node, no edges, or no nodes at all: these pool to zeros. ``gate`` multiplies
        the messages of every layer, one number for each edge; see
        :class:`~graphveil.graph.messages.GatedMessages`.
        """
        source, target = edge_index
        if bool((batch[source] != batch[target]).any()):
            raise InvalidInputError(
                "Edges must stay inside a graph. Got one between two graphs of the batch; add the "
                "number of earlier nodes to each graph's edges."
            )
        messages = weigh_messages(edge_index, len(x), self.normalisation)
        if gate is not None:
            if gate.shape != source.shape:
                raise InvalidInputError(
                    f"The 'gate' parameter must have one number for each of the {len(source)} "
                    f"edges. Got shape {tuple(gate.shape)} instead."
                )
            messages = messages.with_gates(gate)
        h = x
        with ragged(batch, num_graphs):
            if self.first is not None:
                h = self.first(h, batch, num_graphs)
            for place, (conv, after) in enumerate(zip(self.convs, self.after, strict=True)):
                h = conv(h, messages)
                if len(self.norms):
                    h = self.norms[place](h, batch, num_graphs)
                h = after(h)
        rows = pool_nodes(h, batch, num_graphs, self.pool)
        return self.head(rows * self.scale if self.pool == "sum" else rows)
