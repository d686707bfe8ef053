"""What would be possible without privacy: an MLP and a GNN trained in the open.

No guarantee: their certificates say so. They are here because a private figure means little without
the honest ones beside it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

import dp_accounting as dpa
from torch import Tensor
from torch_geometric.data import Data

from graphveil import _validate
from graphveil.graph.caps import cap_senders
from graphveil.graph.choices import NORMALISATIONS
from graphveil.graph.groups import random_groups, within
from graphveil.graph.messages import Messages, normalised
from graphveil.methods.base import Facts, Plan, Progress
from graphveil.methods.node import NodeMethod, alone
from graphveil.methods.training import OPTIMIZERS, fit_open, make_optimizer, seeded_weights
from graphveil.nn import NodeClassifier
from graphveil.privacy.guarantee import Charge, default_delta
from graphveil.rng import seeded


@dataclass(kw_only=True)
class MLPBaseline(NodeMethod):
    """An MLP on each node's own features, trained without privacy."""

    name: ClassVar[str] = "mlp"

    project_above: int = 1_000_000  # without noise there is nothing to gain from fewer columns
    num_layers: int = 2
    activation: str = "relu"
    learning_rate: float = 0.01
    dropout: float = 0.5
    weight_decay: float = 5e-4
    steps: int = 150
    optimizer: str = "adam"

    def _network(self, facts: Facts) -> NodeClassifier:
        return self._mlp(facts, self.num_layers, self.dropout)

    def _messages(self, data: Data) -> Messages:
        return alone(len(data.x))

    def _read_in_training(self, data: Data) -> Messages:
        return self._messages(data)

    def _logits(self, x: Tensor, data: Data) -> Tensor:
        return self.network_.on_graph(x, self._messages(data))

    def _check_settings(self) -> None:
        super()._check_settings()
        _validate.integer("steps", self.steps, "[1, 1e9]")
        _validate.choice("optimizer", self.optimizer, OPTIMIZERS)
        _validate.number("weight_decay", self.weight_decay, "[0, inf)")

    def plan(self, facts: Facts) -> Plan:
        self._check_settings()
        self._made(facts)  # settings that make no network are refused here
        spent = Charge(paid_for="training in the open", event=dpa.NonPrivateDpEvent())
        return Plan(
            method=self.name,
            facts=facts,
            unit="node",
            delta=default_delta(facts.num_nodes),
            charges=(spent,),
            inference=("visible: nothing is promised to anybody",),
        )

    def fit(
        self, data: Data, *, directory: str | Path | None = None, progress: Progress | None = None
    ) -> Self:
        """The whole graph at every step; the weights that do best on the validation nodes."""
        self._started(self.plan(Facts.of(data)), data)
        x, read = self._prepared(data.x), self._read_in_training(data)
        messages = self._messages(data)
        network = self._made(self.plan_.facts)
        with seeded_weights(self.seed):  # dropout, too: no noise here is secret
            fit_open(
                network,
                make_optimizer(
                    self.optimizer, network.parameters(), self.learning_rate, self.weight_decay
                ),
                lambda ids: network.on_graph(x, read if network.training else messages)[ids],
                data.y,
                data.train_mask.nonzero().flatten(),
                (data.val_mask & (data.y >= 0)).nonzero().flatten(),
                steps=self.steps,
                on_loss=self.on_loss,
                progress=progress,
            )
        self.network_ = network.eval()
        self.charges_ = list(self.plan_.charges)
        self.certificate_ = self.plan_.certificate()
        return self


@dataclass(kw_only=True)
class GNNBaseline(MLPBaseline):
    """A GNN on the whole graph, trained without privacy.

    ``splits`` above 1 trains on as many random groups without an edge between them, as graph-split
    does; predictions read the whole graph.
    """

    name: ClassVar[str] = "gnn"

    conv: str = "gcn"
    weights: str = "symmetric"
    heads: int = 1
    encoder_layers: int = 1
    splits: int = 1

    def _network(self, facts: Facts) -> NodeClassifier:
        _validate.integer("splits", self.splits, f"[1, {facts.num_nodes}]")
        return NodeClassifier(
            self._columns(facts),
            self.hidden_channels,
            facts.num_classes,
            self.conv,
            _validate.integer("num_layers", self.num_layers, "[1, 10]"),
            encoder_layers=_validate.integer("encoder_layers", self.encoder_layers, "[0, 10]"),
            decoder_layers=0,
            activation=self.activation,
            dropout=self.dropout,
            heads=self.heads,
        )

    def _check_settings(self) -> None:
        super()._check_settings()
        _validate.choice("weights", self.weights, NORMALISATIONS)
        _validate.integer("heads", self.heads, "[1, inf)")

    def _read_in_training(self, data: Data) -> Messages:
        groups = random_groups(len(data.x), self.splits, seeded(self.seed, "groups"))
        return normalised(within(data.edge_index, groups), len(data.x), self.weights)

    def _messages(self, data: Data) -> Messages:
        edges = cap_senders(data.edge_index, len(data.x), None, seed=self.seed)
        return normalised(edges, len(data.x), self.weights)
