"""Random groups with no edge between them: Igamberdiev and Habernal's graph splits.

The nodes fall into groups at random, edges between groups are cut, and each group is one loss term:
withholding a node alters one term, however deep the network is. ``clip="document"`` clips each
node's own gradient instead, and a node's row reaches the terms of its group: as many as it has
members. Proofs: docs/guarantees/graph-split.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from scipy import optimize
from torch import Tensor
from torch.nn import functional as F
from torch_geometric.data import Data

from graphveil import _validate
from graphveil._errors import BudgetError, InvalidInputError, UnprovenError
from graphveil.grads.clipped import Losses
from graphveil.grads.rows import ragged
from graphveil.graph.caps import cap_senders
from graphveil.graph.choices import NORMALISATIONS
from graphveil.graph.groups import random_groups, within
from graphveil.graph.messages import Messages, normalised
from graphveil.methods.base import Facts, Plan, Progress, signal_to_noise
from graphveil.methods.node import SteppedNodeMethod, rooted_losses
from graphveil.methods.training import seeded_weights
from graphveil.nn import NodeClassifier
from graphveil.privacy.claims import CLAIMS, Claim
from graphveil.privacy.guarantee import Claimed
from graphveil.rng import SecretStream, SeededStream, seeded

CLIPS = ("group", "document")
_SGD_REACH = 0.05
_NODES_AT_ONCE = 20_000  # that go through the network together


@dataclass(kw_only=True)
class GraphSplit(SteppedNodeMethod):
    """A GCN (or SAGE, GAT, GIN) on random groups of nodes, edges between groups cut.

    ``splits`` is the number of groups; 1 is the whole graph as one loss term. ``clip="group"``, as
    published, bounds the gradient of a whole group: one node alters one term. ``clip="document"``
    bounds each node's own: one node removes its term and alters those of its group. By default
    there are 10 groups, and with ``clip="document"`` groups of two.
    ``fresh_groups`` draws new groups after every so many steps instead of once; each step costs the
    same either way, since groups know nothing of the data.

    ``dropout=None`` is the paper's 0.5 where groups are clipped, and none where documents are.
    With ``learning_rate=None`` a step is as long as ``optimizer`` needs. *Sharp edge*: the noise of
    a private step dwarfs the gradient, and Adam divides it away: Adam needs a large rate to move at
    all, SGD one that falls with the noise. ``decay`` lowers the rate to that share by the end.

    ``paper=True`` takes the noise for which the paper claims ``epsilon``.

    *Guarantee*: the weights are (epsilon, delta)-private for one unit, ``node`` or ``edge``.
    Public: :class:`Facts`, and the groups.
    """

    name: ClassVar[str] = "graph-split"
    _sizes_its_steps: ClassVar[bool] = True

    conv: str = "gcn"
    num_layers: int = 2
    hidden_channels: int = 32
    activation: str = "relu"
    dropout: float | None = None
    weights: str = "symmetric"
    heads: int = 1
    splits: int | None = None
    clip: str = "group"
    fresh_groups: int | None = None
    unit: str = "node"
    learning_rate: float | None = None  # type: ignore[assignment]
    decay: float = 1.0
    paper: bool = False

    def _network(self, facts: Facts) -> NodeClassifier:
        _validate.choice("conv", self.conv, ("gcn", "gin", "gat", "sage"))
        return NodeClassifier(
            self._columns(facts),
            self.hidden_channels,
            facts.num_classes,
            self.conv,
            _validate.integer("num_layers", self.num_layers, "[1, 10]"),
            encoder_layers=0,
            decoder_layers=0,
            activation=self.activation,
            dropout=self._dropout,
            heads=self.heads,
        )

    def _check_settings(self) -> None:
        super()._check_settings()
        _validate.choice("unit", self.unit, ("node", "edge"))
        _validate.choice("clip", self.clip, CLIPS)
        _validate.choice("weights", self.weights, NORMALISATIONS)
        _validate.integer("heads", self.heads, "[1, inf)")
        _validate.number("decay", self.decay, "(0, 1]")
        if self.fresh_groups is not None:
            _validate.integer("fresh_groups", self.fresh_groups, "[1, 1e9]")
            if self.clip == "document":
                raise InvalidInputError(
                    "Fresh groups must go with clip='group'. Got fresh_groups="
                    f"{self.fresh_groups} with clip='document' instead; leave one of the two out."
                )
        if self.clip == "document" and self.unit == "edge":
            raise UnprovenError(
                "Under the unit 'edge' groups must be clipped whole: an edge then alters one term. "
                "Got clip='document' instead; use clip='group', or 'dp-gnn'."
            )

    # --- what one unit touches -------------------------------------------------------------------

    def _influence(self, facts: Facts) -> tuple[int, int]:
        """One group alters its gradient; or a node's own term goes, and its group's change."""
        if self.splits is not None:
            _validate.integer("splits", self.splits, f"[1, {facts.num_nodes}]")
        if self.clip == "group":
            return 0, 1
        others = -(-facts.num_nodes // self._groups(facts.num_nodes)) - 1
        # A node without a loss removes no term and may alter all there are.
        return (1, others) if others < facts.num_train else (0, facts.num_train)

    def _groups(self, num_nodes: int) -> int:
        if self.splits is not None:
            return self.splits
        return min(10, num_nodes) if self.clip == "group" else -(-num_nodes // 2)

    def _num_terms(self, facts: Facts) -> int:
        return self._groups(facts.num_nodes) if self.clip == "group" else facts.num_train

    # --- training --------------------------------------------------------------------------------

    def fit(
        self,
        data: Data,
        *,
        directory: str | Path | None = None,
        progress: Progress | None = None,
        rng: SecretStream | None = None,
    ) -> Self:
        with seeded_weights(self.seed):
            return super().fit(data, directory=directory, progress=progress, rng=rng)

    def _read_in_training(self, data: Data) -> tuple[Messages, int]:
        groups = random_groups(len(data.x), self._groups(len(data.x)), seeded(self.seed, "groups"))
        cut = within(data.edge_index, groups)
        return normalised(cut, len(data.x), self.weights), self.num_layers

    def _terms(self, data: Data) -> Any:
        if self.clip == "document":
            return super()._terms(data)
        return GroupTerms(
            self._prepared(data.x),
            torch.where(data.train_mask, data.y, -1),
            data.edge_index,
            self._groups(len(data.x)),
            seeded(self.seed, "groups"),
            weights=self.weights,
            fresh=self.fresh_groups,
        )

    @property
    def _losses(self) -> Losses:
        return group_losses if self.clip == "group" else rooted_losses

    @property
    def _dropout(self) -> float:
        if self.dropout is not None:
            return self.dropout
        return 0.5 if self.clip == "group" else 0.0

    @property
    def _learning_rate(self) -> float:
        if self.learning_rate is not None:
            return self.learning_rate
        if self.optimizer == "adam":
            return 0.02 if self.clip == "group" else 0.03
        # All steps' noise together moves a weight about as far as it should go.
        details = self.plan_.details
        terms = self.sample_rate * self._num_terms(self.plan_.facts)
        bound = self.max_grad_norm
        bound = max(bound.values()) if isinstance(bound, Mapping) else bound
        noise = details["noise_multiplier"] * bound / terms
        return _SGD_REACH / (noise * math.sqrt(self.steps))

    def _pace(self, optimizer: torch.optim.Optimizer, done: float) -> None:
        for group in optimizer.param_groups:
            group["lr"] = self._learning_rate * self.decay**done

    # --- plan ------------------------------------------------------------------------------------

    def plan(self, facts: Facts) -> Plan:
        plan = super().plan(facts)
        details = {
            **plan.details,
            "splits": self._groups(facts.num_nodes),
            "dropout": self._dropout,
            "signal_to_noise": signal_to_noise(
                self.sample_rate * self._num_terms(facts),
                plan.details["noise_multiplier"],
                int(plan.details["parameters"]),
            ),
        }
        public = ["who is in which group"]
        if plan.unit != "node":
            public.append("whether edges have a direction")
        return replace(
            plan,
            details=details,
            public=tuple(public),
            claim=self._claim(plan) if self.paper else None,
        )

    def _claim(self, plan: Plan) -> Claimed:
        noise = float(plan.details["noise_multiplier"])
        claim = self._claimed(noise, plan.delta)
        return Claimed(epsilon=claim.claimed_epsilon, source=claim.paper, why_it_differs=claim.flaw)

    def _claimed(self, noise: float, delta: float) -> Claim:
        return CLAIMS["igamberdiev"](
            noise_multiplier=noise,
            steps=self.steps,
            splits=round(1 / self.sample_rate),
            delta=delta,
        )

    def _noise_multiplier(self, facts: Facts, delta: float) -> float:
        """The paper's noise in paper mode: that for which it claims ``epsilon``."""
        if not self.paper:
            return super()._noise_multiplier(facts, delta)
        if self.clip != "group" or self.unit != "node":
            raise UnprovenError(
                "The paper clips whole groups and protects nodes. Got "
                f"clip={self.clip!r}, unit={self.unit!r} with paper=True; leave one of them out."
            )
        epsilon = _validate.number("epsilon", self.epsilon, "(0, inf)")
        _validate.integer("steps", self.steps, "[1, 1e9]")
        rate = _validate.number("sample_rate", self.sample_rate, "(0, 1]")
        if abs(round(1 / rate) * rate - 1) > 1e-6:
            raise InvalidInputError(
                "The 'sample_rate' parameter must be one over a whole number where paper=True, as "
                f"the paper's claim is for one group in so many. Got {rate:g} instead; try "
                f"{1 / round(1 / rate):g}, or leave out 'paper'."
            )

        def excess(noise: float) -> float:
            return self._claimed(noise, delta).claimed_epsilon - epsilon

        quietest, loudest = 0.3, 1e5
        if not excess(loudest) < 0 < excess(quietest):
            raise BudgetError(
                f"The paper must claim the 'epsilon' for some noise from {quietest:g} to "
                f"{loudest:g} bounds. Got {epsilon:g} over {self.steps} steps instead; ask for "
                "another, or leave out 'paper'."
            )
        return float(optimize.brentq(excess, quietest, loudest, xtol=1e-6))

    @property
    def _target(self) -> float:
        return math.inf if self.paper else self.epsilon  # there it is a claim, which binds nothing

    # --- prediction ------------------------------------------------------------------------------

    def _logits(self, x: Tensor, data: Data) -> Tensor:
        edges = cap_senders(data.edge_index, len(x), None, seed=self.seed)
        return self.network_.on_graph(x, normalised(edges, len(x), self.weights))


GroupBatch = tuple[Tensor, Messages, Tensor, int, Tensor, Tensor]


class GroupTerms:
    """Loss terms to draw from, one for each group: its nodes, its edges, its labels.

    ``labels`` are negative where a node has no loss. With ``fresh`` set, groups are drawn anew
    after every so many steps; otherwise they stay.

    *Guarantee conditions*: withholding a node, or an edge, changes what one group holds and nothing
    else: no other term reads its row, whichever groups there are.
    """

    def __init__(
        self,
        x: Tensor,
        labels: Tensor,
        edge_index: Tensor,
        count: int,
        stream: SeededStream,
        *,
        weights: str = "symmetric",
        fresh: int | None = None,
    ) -> None:
        self.x, self.labels, self.edge_index = x, labels, edge_index
        self.count, self.stream, self.weights, self.fresh = count, stream, weights, fresh
        self._draw(0)

    def _draw(self, time: int) -> None:
        """The groups of the ``time``-th drawing, whichever others were drawn before."""
        self._time = time
        purpose = f"{self.stream.purpose} {time}" if time else self.stream.purpose
        self.groups = random_groups(len(self.x), self.count, seeded(self.stream.seed, purpose))
        cut = within(self.edge_index, self.groups)
        self.messages = normalised(cut, len(self.x), self.weights)

    def __len__(self) -> int:
        return self.count

    def influence(self, unit: str = "node", **_: Any) -> tuple[int, int]:
        """A node or an edge alters one group, whatever else is gone with it."""
        return 0, self.count if unit == "graph" else 1

    def begin(self, step: int) -> None:
        """Draw the groups of a step. They follow its public number alone.

        A count of batches would not do: it stands still where a secret batch was empty.
        """
        if self.fresh is not None and step // self.fresh != self._time:
            self._draw(step // self.fresh)

    def batches(self, drawn: Tensor) -> Iterator[GroupBatch]:
        """Rows, messages, owners, how many groups, labels, ids; whole groups, as many as fit."""
        size = -(-len(self.x) // self.count)
        for part in drawn.split(max(1, _NODES_AT_ONCE // size)):
            place = torch.full((self.count,), -1)
            place[part] = torch.arange(len(part))
            owner = place[self.groups]
            nodes = (owner >= 0).nonzero().flatten()
            number = torch.empty(len(self.x), dtype=torch.long)
            number[nodes] = torch.arange(len(nodes))
            source, target = self.messages.edge_index
            kept = owner[target] >= 0
            messages = Messages(
                torch.stack([number[source[kept]], number[target[kept]]]),
                self.messages.weight[kept],
                self.messages.self_weight[nodes],
            )
            yield self.x[nodes], messages, owner[nodes], len(part), self.labels[nodes], nodes


def group_losses(network: Any, batch: GroupBatch) -> Tensor:
    """One loss for each group: the mean over its labelled nodes, zero if there is none."""
    x, messages, owner, count, labels, ids = batch
    with ragged(owner, count):
        logits = network.on_graph(x, messages, ids)
    labelled = labels >= 0
    each = F.cross_entropy(logits, labels.clamp_min(0), reduction="none") * labelled
    total = each.new_zeros(count).index_add(0, owner, each)
    return total / torch.bincount(owner[labelled], minlength=count).clamp_min(1)
