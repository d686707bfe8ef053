"""Whole graphs as records: Mueller et al.'s private graph classification, and it in the open.

Every graph (a patient, a molecule, a fingerprint) is one loss term that reads nothing but itself,
so that withholding a graph removes one term and alters none: r = 1, a = 0. Many graphs are one PyG
``Data`` with a ``batch``; see docs/data.md. Proofs: docs/guarantees/graph.md.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import dp_accounting as dpa
import safetensors.torch
import torch
from torch import Tensor
from torch.nn import functional as F
from torch_geometric.data import Data
from torch_geometric.utils import coalesce, remove_self_loops

from graphveil import _validate
from graphveil._errors import InvalidInputError, UnprovenError
from graphveil.data.graphs import GEOMETRIES, collated, with_degree, with_edge_geometry
from graphveil.grads.clipped import Losses
from graphveil.graph.blocks import Numbered, block_sizes
from graphveil.graph.checks import MASKS, checked
from graphveil.mechanisms import Gaussian
from graphveil.methods.base import Facts, Method, Plan, Progress
from graphveil.methods.private import SteppedMethod
from graphveil.methods.training import OPTIMIZERS, fit_open, make_optimizer, seeded_weights
from graphveil.nn import GraphClassifier
from graphveil.privacy.accounting import calibrate
from graphveil.privacy.events import repeated
from graphveil.privacy.guarantee import Charge, default_delta
from graphveil.rng import SecretStream

CONVS = ("sum", "gcn", "sage", "gat", "gin")
LOSSES = ("softmax", "binary")
_NODES_AT_ONCE = 20_000  # that go through the network together
_COUNTS = "noisy numbers of graphs in each class"
_OWN_GRAPH = "visible: a prediction reads its own graph and no other"


@dataclass(kw_only=True)
class GraphMethod(Method):
    """Settings of every method for whole graphs. The defaults were chosen on public graphs.

    ``degree`` and ``geometry`` add columns to every node: the logarithm of its degree, and, where
    the data has places, which way its edges point (``edges``) and where in the graph they do so
    (``moments``). All are inside the graph, and free.
    ``hidden_channels`` is one width for all of ``num_layers`` convolutions (2 unless told), or a
    list with one for each; without layers the classifier is linear in the pooled columns.
    ``scale`` multiplies the sums of the convolution ``sum`` and of the pool ``sum``.
    ``loss="binary"`` has one logit for two classes.
    """

    modes: ClassVar[tuple[str, ...]] = ("visible", "disjoint")
    record: ClassVar[str] = "graph"

    conv: str = "sum"
    num_layers: int | None = None
    hidden_channels: Any = 32
    pool: str = "mean"
    norm: str | None = None
    head_layers: int = 1
    head_channels: int | None = None
    activation: str = "tanh"
    normalisation: str | None = None
    heads: int = 1
    scale: float = 0.2
    degree: bool = True
    geometry: str | None = None
    loss: str = "softmax"
    class_weights: Any = None
    learning_rate: float = 0.05

    def _classifier(self, facts: Facts, dropout: float = 0.0) -> GraphClassifier:
        _validate.choice("conv", self.conv, CONVS)
        if _validate.choice("loss", self.loss, LOSSES) == "binary" and facts.num_classes != 2:
            raise InvalidInputError(
                "The loss 'binary' must have two classes. Got data with "
                f"{facts.num_classes} instead; use the loss 'softmax'."
            )
        columns = facts.num_features + self.degree
        if self.geometry is not None:
            columns += GEOMETRIES[_validate.choice("geometry", self.geometry, tuple(GEOMETRIES))]
        if self.num_layers is not None:
            _validate.integer("num_layers", self.num_layers, "[0, 20]")
        return GraphClassifier(
            columns,
            self.hidden_channels,
            1 if self.loss == "binary" else facts.num_classes,
            self.conv,
            self.num_layers,
            self.pool,
            self.norm,
            self.head_layers,
            self.activation,
            dropout,
            head_channels=self.head_channels,
            normalisation=self.normalisation,
            heads=_validate.integer("heads", self.heads, "[1, inf)"),
            scale=self.scale,
        )

    def _check_settings(self) -> None:
        super()._check_settings()
        if not isinstance(self.degree, bool):
            raise InvalidInputError(
                f"The 'degree' parameter must be true or false. Got {self.degree!r} instead."
            )

    def _graphs(self, data: Data) -> Graphs:
        """The graphs as the network reads them: every edge once, and none from a node to itself."""
        data = copy.copy(data)
        edges = remove_self_loops(data.edge_index)[0]
        data.edge_index, data.edge_attr = coalesce(edges, num_nodes=len(data.x)), None
        if self.geometry is not None:
            data = with_edge_geometry(data, moments=self.geometry == "moments")
        if self.degree:
            data = with_degree(data)
        return Graphs(data)

    def predict_proba(
        self, data: Data, *, mode: str | None = None, epsilon: float | None = None
    ) -> Tensor:
        """Class probabilities of every graph: (graphs, classes)."""
        mode = _validate.choice("mode", self.modes[0] if mode is None else mode, self.modes)
        if epsilon is not None:
            raise InvalidInputError(
                "A prediction must cost nothing where it reads its own graph alone. Got "
                f"epsilon={epsilon!r} instead; leave it out."
            )
        if not hasattr(self, "network_"):
            raise InvalidInputError(f"This {type(self).__name__} has not been fitted; call 'fit'.")
        data = self._taken(data)
        checked(data, labels=False, masks=False, record="graph")
        wanted = self.plan_.facts.num_features
        if data.x.shape[1] != wanted:
            raise InvalidInputError(
                f"The 'x' parameter must have {wanted} columns, as in training. Got "
                f"{data.x.shape[1]} instead."
            )
        graphs = self._graphs(data)
        self.network_.eval()
        with torch.no_grad():
            every = torch.arange(len(graphs))
            empty = torch.empty(0, self.plan_.facts.num_classes)
            logits = graphs.logits(self.network_, every) if len(every) else empty
        self._predicted(mode)
        return self._probabilities(logits)

    def _probabilities(self, logits: Tensor) -> Tensor:
        if self.loss == "softmax":
            return logits.softmax(1)
        chance = logits.sigmoid()
        return torch.cat([1 - chance, chance], 1)

    def _taken(self, data: Any) -> Data:
        """One ``Data`` of many graphs, also from a list or a data set of them."""
        return data if isinstance(data, Data) else collated(data)


class Graphs:
    """Graphs to draw from, each with its nodes, its edges and its label.

    *Guarantee conditions*: a batch holds of every graph what that graph itself is.
    """

    def __init__(self, data: Data) -> None:
        order = torch.argsort(data.batch, stable=True)
        number = torch.empty_like(order)
        number[order] = torch.arange(len(order))
        self.x = data.x[order].float()
        count = int(data.num_graphs)
        self.nodes = torch.bincount(data.batch, minlength=count)
        self.first = self.nodes.cumsum(0) - self.nodes
        owner = data.batch[data.edge_index[0]]
        by_owner = torch.argsort(owner, stable=True)
        self.edges = number[data.edge_index[:, by_owner]]
        self.sent = torch.bincount(owner, minlength=count)
        self.first_edge = self.sent.cumsum(0) - self.sent
        self.y = data.y if "y" in data and data.y is not None else torch.full((count,), -1)
        self.ids = torch.arange(count)  # those that are drawn from

    def __len__(self) -> int:
        return len(self.ids)

    def batches(self, drawn: Tensor) -> Iterator[Numbered]:
        """Rows, edges, owners, how many graphs, labels; ascending, as many graphs as fit."""
        drawn = drawn.sort().values
        sizes = block_sizes(drawn, self.nodes[self.ids[drawn]], _NODES_AT_ONCE)
        for part in drawn.split(sizes):
            yield Numbered(self._batch(self.ids[part]), part)

    def logits(self, network: GraphClassifier, drawn: Tensor) -> Tensor:
        """What a network says of the graphs, in the order in which they are named."""
        found = torch.cat([network(*batch[:-1]) for batch in self.batches(drawn)])
        return found[drawn.argsort().argsort()]

    def _batch(self, ids: Tensor) -> tuple[Tensor, Tensor, Tensor, int, Tensor]:
        nodes, sent = self.nodes[ids], self.sent[ids]
        rows, owner = _ranges(self.first[ids], nodes)
        edges, edge_owner = _ranges(self.first_edge[ids], sent)
        # A graph's edges move with its nodes, from where they stand to where they go.
        moved = (nodes.cumsum(0) - nodes - self.first[ids])[edge_owner]
        return self.x[rows], self.edges[:, edges] + moved, owner, len(ids), self.y[ids]


def _ranges(first: Tensor, length: Tensor) -> tuple[Tensor, Tensor]:
    """The numbers first, first + 1, ... of every range, and whose they are."""
    owner = torch.arange(len(first)).repeat_interleave(length)
    within = torch.arange(len(owner)) - (length.cumsum(0) - length)[owner]
    return first[owner] + within, owner


def _loss(logits: Tensor, y: Tensor, loss: str, weights: Tensor | None) -> Tensor:
    """One loss for each graph; a class's weight does not depend on who else is there."""
    if loss == "softmax":
        each = F.cross_entropy(logits, y, reduction="none")
    else:
        each = F.binary_cross_entropy_with_logits(logits.squeeze(1), y.to(logits), reduction="none")
    return each if weights is None else each * weights[y]


@dataclass(kw_only=True)
class GraphDPSGD(SteppedMethod, GraphMethod):
    """A private classifier of whole graphs: convolutions, a pool, a linear head.

    ``class_weights`` multiply the losses of classes: a list of public numbers, or ``"noisy"``,
    which counts the graphs of each class with noise, for ``weights_share`` of the budget, and
    weighs rare classes more. Counts read in the open would be a release that nothing pays for.

    *Guarantee*: the weights are (epsilon, delta)-private for one graph that is withheld: its
    nodes, its edges and its label. Public: :class:`Facts`.
    """

    name: ClassVar[str] = "graph-dpsgd"
    _visible: ClassVar[str] = _OWN_GRAPH

    weights_share: float = 0.05
    steps: int = 80
    sample_rate: float = 0.25
    max_grad_norm: Any = 1.0
    averaged: float = 0.5

    def _network(self, facts: Facts) -> GraphClassifier:
        return self._classifier(facts)

    def _unit(self, facts: Facts) -> str:
        return "graph"

    def _influence(self, facts: Facts) -> tuple[int, int]:
        return 1, 0

    def _check_settings(self) -> None:
        super()._check_settings()
        _validate.number("weights_share", self.weights_share, "(0, 1)")
        if self._counts_classes and self.class_weights != "noisy":
            raise UnprovenError(
                "The 'class_weights' parameter must be public numbers, one for each class, or "
                f"'noisy', which counts classes for a share of the budget. Got "
                f"{self.class_weights!r} instead; counts read off private labels are a release."
            )

    # --- class weights -----------------------------------------------------------------------

    @property
    def _counts_classes(self) -> bool:
        return isinstance(self.class_weights, str)

    def _counter(self, delta: float) -> Gaussian:
        """One graph is in one class: it moves one number by one."""
        noise = calibrate(
            lambda sigma: Gaussian(noise_multiplier=sigma, sensitivity=1.0).event(),
            epsilon=self.weights_share * self.epsilon,
            delta=delta / 10,
            safe=1e7,
            risky=1e-2,
        )
        return Gaussian(noise_multiplier=noise, sensitivity=1.0)

    def plan(self, facts: Facts) -> Plan:
        plan = super().plan(facts)
        if not self._counts_classes:
            _weights(self.class_weights, facts)  # refused now, if they are
            return plan
        counted = Charge(paid_for=_COUNTS, event=self._counter(plan.delta).event())
        return replace(plan, charges=(counted, *plan.charges))

    def _noise_multiplier(self, facts: Facts, delta: float) -> float:
        if not self._counts_classes:
            return super()._noise_multiplier(facts, delta)
        epsilon = _validate.number("epsilon", self.epsilon, "(0, inf)")
        steps = _validate.integer("steps", self.steps, "[1, 1e9]")
        counted = self._counter(delta).event()
        return calibrate(
            lambda noise: dpa.ComposedDpEvent(
                [counted, repeated(self._step_event(facts, noise), steps)]
            ),
            epsilon=epsilon,
            delta=delta,
            safe=1e7,
            risky=1e-2,
        )

    # --- fit ---------------------------------------------------------------------------------

    def fit(
        self,
        data: Any,
        *,
        directory: str | Path | None = None,
        progress: Progress | None = None,
        rng: SecretStream | None = None,
    ) -> Self:
        """Train on many graphs: a ``Data`` with a ``batch``, or a list or data set of ``Data``."""
        data = _split_before(self._taken(data))
        return super().fit(data, directory=directory, progress=progress, rng=rng)

    def _release_first(
        self, data: Data, directory: str | Path | None, rng: SecretStream
    ) -> list[Charge]:
        kept = None if directory is None else Path(directory) / "counts.safetensors"
        if not self._counts_classes and (kept is None or not kept.exists()):
            self.class_weights_ = _weights(self.class_weights, self.plan_.facts)
            return []

        def draw() -> dict[str, Tensor]:
            counter = self._counter(self.plan_.delta)
            counts = torch.bincount(data.y[data.train_mask], minlength=self.plan_.facts.num_classes)
            noise = torch.tensor(counter.noise_multiplier, dtype=torch.float64)
            return {"counts": counter.release(counts.double(), rng), "noise_multiplier": noise}

        if kept is None:
            found = draw()
        else:
            # Perhaps released by an earlier attempt, under other settings: its price is its own.
            self._release_once(kept, draw)
            found = safetensors.torch.load(kept.read_bytes())
        noisy = found["counts"]
        counter = Gaussian(noise_multiplier=float(found["noise_multiplier"]), sensitivity=1.0)
        if self._counts_classes:
            # Rare classes weigh up to ten times as much as the largest.
            share = (noisy / noisy.max().clamp_min(1.0)).clamp(0.1, 1.0)
            self.class_weights_ = (share.min() / share).float()
        else:
            self.class_weights_ = _weights(self.class_weights, self.plan_.facts)
        return [Charge(paid_for=_COUNTS, event=counter.event())]

    def _terms(self, data: Data) -> Graphs:
        graphs = self._graphs(data)
        graphs.ids = data.train_mask.nonzero().flatten()
        return graphs

    @property
    def _losses(self) -> Losses:
        loss, weights = self.loss, self.class_weights_

        def losses(network: Any, batch: tuple[Tensor, Tensor, Tensor, int, Tensor]) -> Tensor:
            *graphs, y = batch
            return _loss(network(*graphs), y, loss, weights)

        return losses


@dataclass(kw_only=True)
class GraphBaseline(GraphMethod):
    """A classifier of whole graphs trained without privacy.

    ``cycles`` above 0 moves the learning rate up and down so often, between a tenth of it and all
    of it.
    """

    name: ClassVar[str] = "graph-gnn"

    dropout: float = 0.0
    weight_decay: float = 0.0
    steps: int = 400
    batch_size: int = 64
    cycles: int = 0
    optimizer: str = "adam"
    learning_rate: float = 0.01

    def _network(self, facts: Facts) -> GraphClassifier:
        return self._classifier(facts, self.dropout)

    def _check_settings(self) -> None:
        super()._check_settings()
        _validate.integer("steps", self.steps, "[1, 1e9]")
        _validate.integer("batch_size", self.batch_size, "[1, 1e9]")
        _validate.integer("cycles", self.cycles, "[0, 1e6]")
        _validate.number("weight_decay", self.weight_decay, "[0, inf)")
        _validate.choice("optimizer", self.optimizer, OPTIMIZERS)

    def plan(self, facts: Facts) -> Plan:
        self._check_settings()
        self._made(facts)
        _weights(self.class_weights, facts)
        return Plan(
            method=self.name,
            facts=facts,
            unit="graph",
            delta=default_delta(facts.num_nodes),
            charges=(Charge(paid_for="training in the open", event=dpa.NonPrivateDpEvent()),),
            inference=("visible: nothing is promised to anybody",),
        )

    def fit(
        self, data: Any, *, directory: str | Path | None = None, progress: Progress | None = None
    ) -> Self:
        """Batches of graphs; the weights that do best on the validation graphs."""
        data = _split_before(self._taken(data))
        self._started(self.plan(Facts.of(data)), data)
        network, graphs = self._made(self.plan_.facts), self._graphs(data)
        weights = _weights(self.class_weights, self.plan_.facts)
        with seeded_weights(self.seed):
            fit_open(
                network,
                make_optimizer(
                    self.optimizer, network.parameters(), self.learning_rate, self.weight_decay
                ),
                lambda ids: graphs.logits(network, ids),
                data.y,
                data.train_mask.nonzero().flatten(),
                (data.val_mask & (data.y >= 0)).nonzero().flatten(),
                steps=self.steps,
                batch_size=self.batch_size,
                rate=self._rate,
                loss=lambda logits, y: _loss(logits, y, self.loss, weights).mean(),
                classes=lambda logits: self._probabilities(logits).argmax(1),
                on_loss=self.on_loss,
                progress=progress,
            )
        self.network_ = network.eval()
        self.charges_ = list(self.plan_.charges)
        self.certificate_ = self.plan_.certificate()
        return self

    def _rate(self, done: float) -> float:
        """The share of the learning rate when a share of the steps is done."""
        if not self.cycles:
            return 1.0
        place = done * self.cycles % 1
        return 0.1 + 0.9 * (1 - abs(2 * place - 1))


def _split_before(data: Data) -> Data:
    """Refuse graphs of which nobody has said who is trained on, with the way from a list."""
    if any(mask not in data for mask in MASKS):
        raise InvalidInputError(
            "The graphs must be split: their 'train_mask', 'val_mask' and 'test_mask' must be "
            "there. Got none, or not all, instead; fit split(collated(graphs)), with "
            "graphveil.split and graphveil.data.graphs.collated."
        )
    return data


def _weights(class_weights: Any, facts: Facts) -> Tensor | None:
    """Public weights of classes, largest 1; None where there are none."""
    if class_weights is None:
        return None
    listed = list(class_weights) if isinstance(class_weights, Sequence) else []
    if len(listed) != facts.num_classes:
        raise InvalidInputError(
            f"The 'class_weights' parameter must have {facts.num_classes} numbers, one for each "
            f"class. Got {class_weights!r} instead."
        )
    for weight in listed:
        _validate.number("class_weights", weight, "(0, inf)")
    return torch.tensor(listed, dtype=torch.float32) / max(listed)
