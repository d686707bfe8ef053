"""Train without edges, use the graph when predicting.

A loss term reads its own node and nothing else, the cheapest step there is (r = 1, a = 0). Only the
weights are charged, so prediction may read the graph: what neighbours' rows say about a node
reaches whoever sees the prediction (`visible`), goes through noise (`noisy`), or is another graph's
(`disjoint`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor
from torch_geometric.data import Data

from graphveil import _validate
from graphveil.graph.caps import cap_senders
from graphveil.graph.messages import Messages, normalised
from graphveil.graph.propagation import smoothed
from graphveil.methods.base import Facts
from graphveil.methods.node import NodeMethod, SteppedNodeMethod, alone
from graphveil.methods.private import INFERENCE
from graphveil.nn import NodeClassifier


@dataclass(kw_only=True)
class DPMLP(SteppedNodeMethod):
    """A private MLP on each node's own features: the baseline that never reads an edge.

    *Guarantee*: the weights are (epsilon, delta)-private for one node, withheld or removed.
    """

    name: ClassVar[str] = "dp-mlp"
    _visible: ClassVar[str] = "visible: a prediction reads its own node's row and no other"

    num_layers: int = 2

    def _network(self, facts: Facts) -> NodeClassifier:
        return self._mlp(facts, self.num_layers)

    def _influence(self, facts: Facts) -> tuple[int, int]:
        return 1, 0

    def _read_in_training(self, data: Data) -> tuple[Messages, int]:
        return alone(len(data.x)), 0

    def _logits(self, x: Tensor, data: Data) -> Tensor:
        return self.network_.on_graph(x, alone(len(x)))

    def _noisy(self, x: Tensor, data: Data, epsilon: float) -> Tensor:
        return NodeMethod._noisy(self, x, data, epsilon)  # it reads no neighbour


@dataclass(kw_only=True)
class LateGraph(DPMLP):
    """A private MLP whose predictions are smoothed over the graph.

    ``reading="smoothing"``: personalised PageRank over log-posteriors, ``smoothing_steps`` times
    ``(1 - teleport)`` of the neighbourhood's mean and ``teleport`` of the node's own.
    ``reading="inside"``: the mean over the neighbourhood is taken of the hidden states, inside the
    network, as often.

    *Guarantee*: that of the weights, as for :class:`DPMLP`; prediction has its own line.
    """

    name: ClassVar[str] = "late-graph"
    _visible: ClassVar[str] = INFERENCE["visible"]

    reading: str = "smoothing"
    smoothing_steps: int = 2
    teleport: float = 0.3

    def _check_settings(self) -> None:
        super()._check_settings()
        _validate.choice("reading", self.reading, ("smoothing", "inside"))
        _validate.integer("smoothing_steps", self.smoothing_steps, "[0, 1000]")
        _validate.number("teleport", self.teleport, "[0, 1]")

    def _logits(self, x: Tensor, data: Data) -> Tensor:
        self._check_settings()  # prediction has settings of its own, which may have been changed
        steps, teleport = self.smoothing_steps, self.teleport
        edges = cap_senders(data.edge_index, len(x), None, seed=self.seed)
        messages = normalised(edges, len(x))
        if self.reading == "smoothing":
            own = self.network_.on_graph(x, alone(len(x))).log_softmax(1)
            return smoothed(own, messages, steps, teleport)
        hidden = self.network_.after[0](self.network_.encoder(x))
        return self.network_.decoder(smoothed(hidden, messages, steps, teleport))

    def _noisy(self, x: Tensor, data: Data, epsilon: float) -> Tensor:
        return SteppedNodeMethod._noisy(self, x, data, epsilon)
