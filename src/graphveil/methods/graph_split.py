"""Random groups with no edge between them: Igamberdiev and Habernal's graph splits.

The nodes fall into groups at random and edges between groups are cut. Each document, a node with a
label, is one loss term, which reads its group: a node's row reaches as many terms as its group has
members. By default that is itself alone, and the edges are read in prediction. With
``clip_by="group"``, as the paper proposes, a whole group is one loss term, and withholding a node
alters one term, however deep the network is. Proofs: docs/guarantees/graph-split.md.
``paper=True`` runs what the authors released, for which nothing is proven.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, final

from graphveil import _validate
from graphveil._errors import InvalidInputError, UnprovenError
from graphveil.methods.base import Method
from graphveil.methods.budget import choose_delta, claimed_noise, plan_steps
from graphveil.methods.class_weights import plan_counts
from graphveil.methods.features import Features
from graphveil.methods.inference import (
    NOTHING_PROMISED,
    Disjoint,
    Noisy,
    Visible,
    hear_neighbours,
)
from graphveil.methods.parts import Unclipped
from graphveil.methods.plan import Facts, Plan
from graphveil.methods.settings import (
    Budget,
    FeatureSettings,
    Normalisation,
    StepSettings,
    check_bound,
    setting,
    settings,
)
from graphveil.methods.task import check_released_task
from graphveil.nn.descriptions import NodeNetwork
from graphveil.privacy.claims import CLAIMS, Claim, igamberdiev_epsilon

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch_geometric.data import Data

    from graphveil.methods.execution import Execution

_SGD_REACH = 0.05

# What the released code decides, or has not.
_DECIDED = (
    *("conv", "normalisation", "heads", "clip_by", "fresh_groups", "unit", "decay", "steps"),
    *("features", "feature_scale", "projection", "project_above", "sample_rate", "averaged"),
    *(
        "max_grad_norm",
        "clipping",
        "momentum",
        "claimed_noise",
        "members",
        "class_weights",
        "huber",
    ),
)
_PAPER_EPOCHS = {"sgd": 2000, "adam": 500}
_PAPER_RATES = {"sgd": 0.01, "adam": 1.0}
_NEVER_CLIPPED = "nothing is clipped, so that one node may move a gradient by any length"
_EDGES_LEFT_IN = "edges between groups stay in, so that other groups' losses read a node, too"
_IN_TURN = "groups are visited in turn, which is no sampling at rate 1 / splits"


@final
@settings(hidden_channels=32, activation="relu", project_above=8192)
class GraphSplit(Method, FeatureSettings, StepSettings, Budget):
    """A GCN (or SAGE, GAT, GIN) on random groups of nodes, edges between groups cut.

    With ``clip_by="document"``, the default, the gradient of each node's own loss is bounded: one
    node removes its term and alters those of its group. With ``clip_by="group"``, as published, the
    gradient of a whole group is: one node alters one term.

    *Sharp edge*: the noise of a private step dwarfs the gradient, and Adam divides it away: Adam
    needs a large learning rate to move at all, SGD one that falls with the noise.

    ``paper=True`` is Igamberdiev and Habernal's code as released: unclipped, edges left in, groups
    in turn, raw features, the last weights. ``claimed_noise=True`` takes the paper's noise alone.

    *Guarantee*: the weights are (epsilon, delta)-private for one unit, ``node`` or ``edge``; none
    with ``paper=True``. Public: :class:`Facts`, and the groups.
    """

    name: ClassVar[str] = "graph-split"
    baseline: ClassVar[str | None] = "dp-mlp"
    units: ClassVar[tuple[str, ...]] = ("node", "edge")
    inferences = (Visible(reach="num_layers"), Noisy(), Disjoint())
    scored_by: ClassVar[str] = "own row"
    reads_stores: ClassVar[bool] = True

    conv: Literal["gcn", "gin", "gat", "sage"] = setting("The convolution.", "gcn")
    num_layers: int = setting("Convolutions.", 2, "[1, 10]")
    dropout: float | None = setting(
        "The share of hidden values dropped in training; by default 0.5 where groups are clipped, "
        "and none where documents are.",
        None,
        "[0, 1)",
    )
    normalisation: Normalisation = setting("The weights of messages.", "symmetric")
    heads: int = setting("Heads of the convolution 'gat'.", 1, "[1, inf)")
    splits: int | None = setting(
        "The number of groups; 1 is the whole graph as one. By default 10 where groups are "
        "clipped, and where documents are as many as 'members' says.",
        None,
        "[1, inf)",
    )
    members: int | None = setting(
        "The size of groups where documents are clipped and there are no 'splits'; by default 1: "
        "a document is trained on by itself, and edges are read in prediction.",
        None,
        "[1, inf)",
    )
    clip_by: Literal["document", "group"] | None = setting(
        "Whose gradient is bounded; by default that of documents, and of groups with 'paper', "
        "'claimed_noise' or 'fresh_groups' and under the unit 'edge', which need them.",
        None,
    )
    fresh_groups: int | None = setting(
        "Draw new groups after every so many steps; each step costs the same.", None, "[1, 1e9]"
    )
    unit: Literal["node", "edge"] = setting("What is protected.", "node")
    learning_rate: float | None = setting(  # type: ignore[assignment]
        "The length of steps; by default as long as the optimizer needs.", None, "(0, inf)"
    )
    decay: float = setting("The share of the learning rate that is left at the end.", 1.0, "(0, 1]")
    claimed_noise: bool = setting(
        "Take the noise for which the paper claims 'epsilon', everything else as proven.", False
    )
    paper: bool = setting(
        "Run what the paper's authors released, for which nothing is proven, and show the epsilon "
        "they claim.",
        False,
    )
    epochs: int | None = setting(
        "Of 'paper': how often all groups are visited; by default 2000 times with SGD, 500 with "
        "Adam.",
        None,
        "[1, 1e9]",
    )

    def network(self, facts: Facts) -> NodeNetwork:
        return NodeNetwork(
            in_channels=self._features.columns(facts.num_features),
            hidden_channels=self.hidden_channels,
            out_channels=self.task(facts).outputs,
            conv=self.conv,
            num_layers=self.num_layers,
            encoder_layers=0,
            decoder_layers=0,
            activation=self.activation,
            dropout=self._dropout,
            heads=self.heads,
        )

    @property
    def _features(self) -> Features:
        stated = Features.of(self)
        # The released code reads rows as they are, with all their columns.
        return replace(stated, how="raw", project_above=10**9) if self.paper else stated

    @property
    def _clips(self) -> str:
        """Whose gradient is bounded in this run."""
        if self.clip_by is not None:
            return self.clip_by
        whole = self.paper or self.claimed_noise or self.unit == "edge"
        return "group" if whole or self.fresh_groups is not None else "document"

    @property
    def _dropout(self) -> float:
        if self.dropout is not None:
            return self.dropout
        return 0.5 if self._clips == "group" else 0.0

    # --- what one unit touches -------------------------------------------------------------------

    def influence(self, facts: Facts) -> tuple[int, int]:
        """One group alters its gradient; or a node's own term goes, and its group's change."""
        if self.splits is not None:
            _validate.integer("splits", self.splits, f"[1, {facts.num_nodes}]")
        if self._clips == "group":
            return 0, 1
        others = -(-facts.num_nodes // self.num_groups(facts.num_nodes)) - 1
        # A node without a loss removes no term and may alter all there are.
        return (1, others) if others < facts.num_train else (0, facts.num_train)

    def num_groups(self, num_nodes: int) -> int:
        """How many groups so many nodes fall into."""
        if self.splits is not None:
            return int(self.splits)
        if self._clips == "group":
            return min(10, num_nodes)
        return -(-num_nodes // (self.members or 1))

    def _num_terms(self, facts: Facts) -> int:
        return self.num_groups(facts.num_nodes) if self._clips == "group" else facts.num_train

    # --- plan ------------------------------------------------------------------------------------

    def _plan(self, facts: Facts) -> Plan:
        if self.paper:
            return self._plan_as_released(facts)
        self._check_together()
        plan = plan_steps(
            self,
            facts,
            influence=self.influence(facts),
            units=self.num_units(facts),
            unit=self.unit_for(facts),
            noise=self._paper_noise if self.claimed_noise else None,
            terms=self._num_terms(facts),
            before=lambda delta: plan_counts(self, delta),
        )
        steps = plan.part("weights")
        rate = self._step_size(facts, steps.noise_multiplier)
        claim = self._claim(steps.noise_multiplier, plan.delta) if self.claimed_noise else None
        edges = ("whether edges have a direction",) if self.unit == "edge" else ()
        return replace(
            plan,
            parts=(*plan.parts[:-1], replace(steps, learning_rate=rate, decay=self.decay)),
            inference=(self.inferences[0].says(self, plan.unit),),
            public=("who is in which group", *edges),
            details={
                **plan.details,
                "splits": self.num_groups(facts.num_nodes),
                "dropout": self._dropout,
            },
            claim=None if claim is None else claim.on_certificate(),
        )

    def _check_together(self) -> None:
        """Refuse settings that do not go together."""
        check_bound(self.max_grad_norm, self.clipping)
        if self.members is not None and (self._clips == "group" or self.splits is not None):
            raise InvalidInputError(
                "The 'members' parameter must go with clip_by='document', without 'splits'. Got "
                f"{self.members} with clip_by={self._clips!r} and splits={self.splits} instead; "
                "leave it out."
            )
        if self.clip_by == "document" and self.fresh_groups is not None:
            raise InvalidInputError(
                "Fresh groups must go with clip_by='group'. Got fresh_groups="
                f"{self.fresh_groups} with clip_by='document' instead; leave one of the two out."
            )
        if self.clip_by == "document" and self.unit == "edge":
            raise UnprovenError(
                "Under the unit 'edge' groups must be clipped whole: an edge then alters one term. "
                "Got clip_by='document' instead; use clip_by='group', or 'dp-gnn'."
            )
        if self.claimed_noise and (self._clips != "group" or self.unit != "node"):
            raise UnprovenError(
                "The paper clips whole groups and protects nodes. Got "
                f"clip_by={self._clips!r}, unit={self.unit!r} with claimed_noise=True; leave one "
                "of them out."
            )
        if self.claimed_noise and abs(round(1 / self.sample_rate) * self.sample_rate - 1) > 1e-6:
            raise InvalidInputError(
                "The 'sample_rate' parameter must be one over a whole number where "
                "claimed_noise=True, as the paper's claim is for one group in so many. Got "
                f"{self.sample_rate:g} instead; try {1 / round(1 / self.sample_rate):g}, or leave "
                "out 'claimed_noise'."
            )

    def _plan_as_released(self, facts: Facts) -> Plan:
        """Noise on gradients that nothing bounds: the paper's claim, and no epsilon."""
        self._check_released(facts)
        groups, delta = self._released_groups, choose_delta(self.delta, facts.num_nodes)
        noise, rate = self._paper_noise(delta), self.learning_rate
        part = Unclipped(
            epochs=self._epochs,
            groups=groups,
            noise=noise,
            optimizer=self.optimizer,
            learning_rate=_PAPER_RATES[self.optimizer] if rate is None else rate,
        )
        claim = self._claim(noise, delta)
        flaws = (_NEVER_CLIPPED, *((_EDGES_LEFT_IN, _IN_TURN) if groups > 1 else ()))
        return Plan(
            method=self.name,
            facts=facts,
            unit=self.unit,
            delta=delta,
            parts=(part,),
            inference=(NOTHING_PROMISED,),
            public=("who is in which group",),
            void_because=flaws,
            details={
                "noise_multiplier": noise,
                "epochs": self._epochs,
                "steps": part.count,
                "splits": groups,
                "dropout": self._dropout,
                "parameters": self.network(facts).num_parameters,
            },
            claim=claim.on_certificate(claim.as_run),
        )

    def _check_released(self, facts: Facts) -> None:
        """Refuse settings that the released code does not have."""
        defaults = {field.name: field.default for field in fields(self)}
        changed = [name for name in _DECIDED if getattr(self, name) != defaults[name]]
        if changed:
            stated = ", ".join(f"{name}={getattr(self, name)!r}" for name in changed)
            raise InvalidInputError(
                "With paper=True the released code decides everything but the network's size, "
                "'splits', 'epochs', 'optimizer', 'learning_rate' and 'dropout'. Got "
                f"{stated} instead; leave {'it' if len(changed) == 1 else 'them'} out, or take "
                "'claimed_noise'."
            )
        check_released_task(facts)
        _validate.integer("splits", self._released_groups, f"[1, {facts.num_train}]")

    @property
    def _released_groups(self) -> int:
        return 10 if self.splits is None else self.splits

    @property
    def _epochs(self) -> int:
        return _PAPER_EPOCHS[self.optimizer] if self.epochs is None else self.epochs

    def _step_size(self, facts: Facts, multiplier: float) -> float:
        if self.learning_rate is not None:
            return self.learning_rate
        if self.optimizer == "adam":
            return 0.02 if self._clips == "group" else 0.03
        # All steps' noise together moves a weight about as far as it should go.
        terms = self.sample_rate * self._num_terms(facts)
        bound = self.max_grad_norm
        bound = max(bound.values()) if isinstance(bound, Mapping) else bound
        noise = multiplier * bound / terms
        return _SGD_REACH / (noise * math.sqrt(self.steps))

    def _paper_noise(self, delta: float) -> float:
        """The noise for which the paper claims ``epsilon``, and no more."""
        steps, splits = self._claimed_steps
        noise = claimed_noise(
            lambda noise: igamberdiev_epsilon(noise, steps, splits, delta),
            self.epsilon,
            0.3,
            1e5,
            "The paper must claim the 'epsilon' for some noise from 0.3 to 100000 bounds. Got "
            f"{self.epsilon:g} over {steps} steps instead; ask for another, or leave out "
            f"'{'paper' if self.paper else 'claimed_noise'}'.",
            tolerance=1e-9,
        )
        return noise * (1 + 1e-8)  # on the side where the claim is not exceeded

    def _claim(self, noise: float, delta: float) -> Claim:
        steps, splits = self._claimed_steps
        return CLAIMS["igamberdiev"](
            noise_multiplier=noise, steps=steps, splits=splits, delta=delta
        )

    @property
    def _claimed_steps(self) -> tuple[int, int]:
        """How many steps the claim is about, and of how many groups each takes one."""
        if self.paper:
            return self._epochs * self._released_groups, self._released_groups
        return self.steps, round(1 / self.sample_rate)

    # --- training --------------------------------------------------------------------------------

    def _train(self, execution: Execution, data: Data) -> nn.Module:
        from graphveil.methods.open_training import seeded_weights
        from graphveil.methods.terms import group_losses, node_losses

        facts = execution.plan.facts
        if self.paper:
            return self._train_as_released(execution, data)
        task, weights = self.task(facts), execution.class_weights
        lose = group_losses if self._clips == "group" else node_losses
        losses = lose(task, weights)
        with seeded_weights(self.seed):
            network = self.build(facts)
            execution.train(execution.plan.part("weights"), network, self.terms(data), losses)
        return network

    def _train_as_released(self, execution: Execution, data: Data) -> nn.Module:
        from graphveil.methods.released_training import ReleasedTraining
        from graphveil.methods.terms import every_message

        part = execution.plan.part("weights")
        training = ReleasedTraining(
            epochs=part.epochs,
            groups=part.groups,
            noise=part.noise,
            optimizer=part.optimizer,
            learning_rate=part.learning_rate,
            seed=self.seed,
        )
        network = self.build(execution.plan.facts)
        messages = every_message(data, self.seed, self.normalisation)
        training(network, self.prepare(data), messages, data, execution)
        return network

    def terms(self, data: Data) -> Any:
        """The loss terms to draw from: groups, or neighbourhoods inside them."""
        from graphveil.graph.groups import random_groups, within
        from graphveil.graph.messages import weigh_messages
        from graphveil.graph.stored import edges_of
        from graphveil.graph.targets import hide_targets
        from graphveil.methods.terms import GroupTerms, node_terms
        from graphveil.rng import seeded

        x, nodes = self.prepare(data), len(data.x)
        count, stream = self.num_groups(nodes), seeded(self.seed, "groups")
        if self._clips == "document":
            cut = within(edges_of(data), random_groups(nodes, count, stream))
            messages = weigh_messages(cut, nodes, self.normalisation)
            return node_terms(x, data, messages, self.num_layers)
        return GroupTerms(
            x,
            hide_targets(data.y, ~data.train_mask),
            edges_of(data),
            count,
            stream,
            normalisation=self.normalisation,
            fresh=self.fresh_groups,
        )

    # --- prediction ------------------------------------------------------------------------------

    def prepare(self, data: Data) -> Any:
        """The rows that the network reads."""
        return self._features.read(data)

    def outputs(self, data: Data, mode: str) -> Tensor:
        """Every neighbour is read, whichever group it was in."""
        from graphveil.methods.terms import every_message, on_messages

        messages = every_message(data, self.seed, self.normalisation)
        return on_messages(self.network_, self.prepare(data), messages)

    noisy_outputs = hear_neighbours
