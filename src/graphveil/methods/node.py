"""What all methods for nodes share: features, networks, three ways to predict.

A subclass says three things: which network it trains, which messages a loss term reads (and so how
many terms one unit touches), and how it predicts on a graph in the open.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.data import Data

from graphveil import _validate
from graphveil._errors import InvalidInputError
from graphveil.grads.clipped import Losses
from graphveil.graph.caps import cap_senders
from graphveil.graph.checks import checked
from graphveil.graph.influence import count_units
from graphveil.graph.messages import Messages, normalised
from graphveil.graph.neighbourhoods import Rooted, RootedTerms
from graphveil.mechanisms import Gaussian
from graphveil.methods.base import Facts, Method
from graphveil.methods.private import INFERENCE, PrivateMethod, SteppedMethod
from graphveil.methods.training import FEATURES, prepared
from graphveil.nn import NodeClassifier
from graphveil.privacy.accounting import calibrate
from graphveil.privacy.events import repeated
from graphveil.privacy.guarantee import Charge, check_delta
from graphveil.rng import secret


def rooted_losses(network: nn.Module, batch: tuple[Rooted, Tensor]) -> Tensor:
    """One loss for each root."""
    around, labels = batch
    return F.cross_entropy(network(around), labels, reduction="none")


@dataclass(kw_only=True)
class NodeMethod(Method):
    """Settings every method for nodes has. The defaults were chosen on public graphs.

    ``features``: ``power`` takes the square root of every entry (keeping its sign) and scales each
    row to length ``feature_scale``; ``row`` scales only; ``raw`` leaves them. Where there are more
    columns than ``project_above`` they go through a random projection to ``projection`` columns,
    drawn without looking at data. All of it is row by row, and free.
    """

    features: str = "power"
    feature_scale: float = 4.0
    projection: int = 256
    project_above: int = 1024
    hidden_channels: int = 64
    activation: str = "tanh"

    @abstractmethod
    def _logits(self, x: Tensor, data: Data) -> Tensor:
        """Logits of every node, neighbours read in the open."""

    def _check_settings(self) -> None:
        super()._check_settings()
        _validate.choice("features", self.features, FEATURES)
        _validate.number("feature_scale", self.feature_scale, "(0, inf)")
        _validate.integer("projection", self.projection, "[1, inf)")
        _validate.integer("project_above", self.project_above, "[1, inf)")

    def _mlp(self, facts: Facts, layers: int, dropout: float = 0.0) -> NodeClassifier:
        """A network of each node's own row."""
        return NodeClassifier(
            self._columns(facts),
            self.hidden_channels,
            facts.num_classes,
            num_layers=0,
            encoder_layers=_validate.integer("num_layers", layers, "[1, 10]") - 1,
            decoder_layers=1,
            activation=self.activation,
            dropout=dropout,
        )

    def _prepared(self, x: Tensor) -> Tensor:
        return prepared(
            x, self.features, self.feature_scale, self.projection, self.project_above, self.seed
        )

    def _columns(self, facts: Facts) -> int:
        wide = facts.num_features > self.project_above
        return self.projection if wide else facts.num_features

    # --- prediction ----------------------------------------------------------------------------

    def predict_proba(
        self, data: Data, *, mode: str | None = None, epsilon: float | None = None
    ) -> Tensor:
        mode = _validate.choice("mode", self.modes[0] if mode is None else mode, self.modes)
        x = self._readable(data)
        if (mode == "noisy") != (epsilon is not None):
            raise InvalidInputError(
                "The mode 'noisy' needs an 'epsilon', and no other mode takes one. Got mode "
                f"{mode!r} with epsilon={epsilon!r} instead."
            )
        self.network_.eval()
        with torch.no_grad():
            if epsilon is not None:
                return self._noisy(x, data, epsilon).softmax(1)
            logits = self._logits_apart if mode == "disjoint" else self._logits
            found = logits(x, data).softmax(1)
        self._predicted(mode)
        return found

    def _logits_apart(self, x: Tensor, data: Data) -> Tensor:
        """Logits of every node of a graph that was not trained on."""
        return self._logits(x, data)

    def _readable(self, data: Data) -> Tensor:
        """The prepared features of a graph that this fitted method can read."""
        if not hasattr(self, "network_"):
            raise InvalidInputError(f"This {type(self).__name__} has not been fitted; call 'fit'.")
        checked(data, labels=False, masks=False)
        wanted = self.plan_.facts.num_features
        if data.x.shape[1] != wanted:
            raise InvalidInputError(
                f"The 'x' parameter must have {wanted} columns, as the training graph had. Got "
                f"{data.x.shape[1]} instead."
            )
        return self._prepared(data.x)

    def _noisy(self, x: Tensor, data: Data, epsilon: float) -> Tensor:
        raise InvalidInputError(
            "The mode 'noisy' must belong to a private method that reads neighbours when it "
            f"predicts. Got the method '{self.name}' instead; use the mode 'visible'."
        )


@dataclass(kw_only=True)
class PrivateNodeMethod(PrivateMethod, NodeMethod):
    """A private method for the nodes of one graph; see docs/guarantees/node.md.

    Those that have a setting ``unit`` protect nodes, or edges.
    """

    def _unit(self, facts: Facts) -> str:
        unit: str = getattr(self, "unit", "node")
        if unit != "edge":
            return unit
        if facts.directed is None:
            raise InvalidInputError(
                "The unit 'edge' must know whether edges have a direction: one edge is one message "
                "then, and else two. Got data of which nobody says so, and measuring it would read "
                "private edges; write --directed or --undirected, or set data.directed."
            )
        return "edge-directed" if facts.directed else "edge-undirected"

    def _units(self, facts: Facts) -> int:
        return count_units(self._unit(facts), facts.num_nodes)

    # --- noisy prediction --------------------------------------------------------------------

    def _noisy(self, x: Tensor, data: Data, epsilon: float) -> Tensor:
        r"""Every node's own prediction, corrected by a noisy sum of its neighbours'.

        Message m_j is node j's prediction from its own row, centred and of norm at most 1. The sum
        over all rows but a node's own changes by at most ``bound`` when a unit is taken away, and
        noise goes on every row.
        """
        nodes, classes = len(x), self.plan_.facts.num_classes
        # This graph may have more units than the one trained on, whose number delta was made for.
        facts = replace(self.plan_.facts, num_nodes=max(nodes, self.plan_.facts.num_train))
        check_delta(self.plan_.delta, self._units(facts))
        # In float64: rounding in the row of a hub must not move it more than one message does.
        own = self.network_.on_graph(x, alone(nodes)).double().log_softmax(1)
        centred = (own.exp() - 1 / classes) / math.sqrt(1 - 1 / classes)
        centred = centred.nan_to_num(0.0)  # a row that overflows sends nothing, and stops nobody
        centred = centred / torch.linalg.vector_norm(centred, dim=1, keepdim=True).clamp_min(1.0)
        edges = cap_senders(data.edge_index, nodes, None, seed=self.seed)
        weight, bound = self._message_weights(edges, nodes)
        noise = self._noise_of_prediction(epsilon)
        mechanism = Gaussian(noise_multiplier=noise, sensitivity=bound)
        summed = Messages(edges, weight, torch.zeros(nodes)).total(centred, weighted=True)
        self._charge_prediction(mechanism)
        heard = mechanism.release(summed, secret())
        # Evidence shrinks towards nothing as noise grows beyond one message.
        return (own + 2.0 * heard / (1.0 + (noise * bound) ** 2)).to(x.dtype)

    @property
    def _noisy_sums(self) -> int:
        """How many sums, each with noise, a noisy prediction makes."""
        return 1

    def planned_prediction(self, epsilon: float) -> Charge:
        """What a noisy prediction will be charged. Touches no data."""
        noise = self._noise_of_prediction(epsilon)
        return self._charge_of_prediction(Gaussian(noise_multiplier=noise, sensitivity=1.0))

    def _noise_of_prediction(self, epsilon: float) -> float:
        def event(noise: float) -> Any:
            mechanism = Gaussian(noise_multiplier=noise, sensitivity=1.0)
            return self._charge_of_prediction(mechanism).event

        epsilon = _validate.number("epsilon", epsilon, "(0, inf)")
        return calibrate(event, epsilon=epsilon, delta=self.plan_.delta, safe=1e7, risky=1e-3)

    def _charge_of_prediction(self, mechanism: Gaussian) -> Charge:
        event = repeated(mechanism.event(), self._noisy_sums)
        return Charge(paid_for="a noisy prediction", event=event)

    def _charge_prediction(self, mechanism: Gaussian) -> None:
        """Charge first: whatever comes after it, a release was made."""
        self.charges_.append(self._charge_of_prediction(mechanism))
        if INFERENCE["noisy"] not in self.inference_:
            self.inference_.append(INFERENCE["noisy"])
        self._certify()

    def _message_weights(self, edges: Tensor, nodes: int) -> tuple[Tensor, float]:
        """Weights of messages of norm at most 1, and by how much a unit can move their sums."""
        unit = self.plan_.unit
        ones = torch.ones(edges.shape[1], dtype=torch.float64)
        if self.plan_.public_degree is not None:
            # Nobody sends more than the public degree, and no list of another node changes weight.
            check_degrees(edges, nodes, self.plan_.public_degree)
            return ones, math.sqrt(self.plan_.public_degree)
        if unit != "node":
            return ones, 1.0 if unit == "edge-directed" else math.sqrt(2)
        # A node shares one unit of squared weight among all it sends to (soft cap, D = 1).
        lists = torch.bincount(edges[0], minlength=nodes).clamp_min(1)
        return lists.double().rsqrt()[edges[0]], 1.0


@dataclass(kw_only=True)
class SteppedNodeMethod(SteppedMethod, PrivateNodeMethod):
    """One network over rooted neighbourhoods, whose private steps are all that is released."""

    @abstractmethod
    def _read_in_training(self, data: Data) -> tuple[Messages, int]:
        """The messages that loss terms read, and how many hops."""

    def _terms(self, data: Data) -> Any:
        messages, hops = self._read_in_training(data)
        roots = data.train_mask.nonzero().flatten()
        return RootedTerms(self._prepared(data.x), data.y, messages, roots, hops)

    @property
    def _losses(self) -> Losses:
        return rooted_losses


def check_degrees(edges: Tensor, num_nodes: int, public_degree: int) -> None:
    """Refuse a graph that breaks the promise a guarantee rests on; for the data's owner to read."""
    found = max(int(torch.bincount(end, minlength=num_nodes).max()) for end in edges)
    if found > public_degree:
        raise InvalidInputError(
            "The 'public_degree' parameter must be a rule that the data obeys: no node lists more "
            f"others, nor is in more lists. Got {public_degree} for a graph with {found} instead; "
            "state the rule as it is, or use relation 'withhold', which needs none."
        )


def alone(num_nodes: int) -> Messages:
    """A graph without messages: every node by itself."""
    return normalised(torch.empty(2, 0, dtype=torch.long), num_nodes)
