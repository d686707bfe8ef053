r"""Aggregation perturbation: neighbours are read once, as noisy sums, and never again.

Sajadmanesh et al.'s GAP and Shpilevskiy et al.'s weighted messages, and what measures better::

    encode    each node by itself
    send      a row along every message; sum; noise on every row; keep it (the cache)
    classify  each node from its own row and its cached ones

What is computed from the cache costs nothing more, predictions included. Under the edge units
features and labels are public: only the sums are charged. Under the unit ``node`` the encoder and
the classifier are trained by private steps, and a node's own prediction is shown to itself only.
Proofs: docs/guarantees/gap.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, final

from graphveil._errors import UnprovenError
from graphveil.graph.choices import SIMILARITIES
from graphveil.graph.influence import sensitivity
from graphveil.mechanisms import Gaussian
from graphveil.methods.base import Method
from graphveil.methods.budget import (
    LOUDEST,
    choose_delta,
    claimed_noise,
    noise_of_steps,
    scale_within,
    share_out,
)
from graphveil.methods.features import Features
from graphveil.methods.inference import Cached, Disjoint, Noisy, Visible
from graphveil.methods.parts import Part, Release, Steps
from graphveil.methods.plan import OWN_ONLY, Facts, Plan
from graphveil.methods.settings import (
    Activation,
    Budget,
    FeatureSettings,
    StepSettings,
    check_bound,
    setting,
    settings,
)
from graphveil.nn.descriptions import HopNetwork
from graphveil.privacy.claims import CLAIMS, Claim

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch_geometric.data import Data

    from graphveil.graph.aggregation import Sent
    from graphveil.methods.execution import Execution
    from graphveil.methods.sending import Sending
    from graphveil.nn.gap import GAPNetwork

# How the budget is split where nobody says otherwise: shares of a squared Gaussian mu.
_SHARES = {"encoder": 1.0, "attention": 1.0, "aggregation": 4.0, "classifier": 3.0}
_PAID_FOR = {
    "encoder": "training of the encoder",
    "attention": "training of the attention",
    "aggregation": "noisy sums over the neighbours (the cache)",
    "classifier": "training of the classifier",
}
_BATCH, _HEAD_STEPS = 1024, 200  # training in the open
_CLEARLY = 0.03  # by how much the loss of a less simple head must be smaller


@final
@settings(averaged=0.5)
class GAP(Method, FeatureSettings, StepSettings, Budget):
    """Noisy sums of neighbours' rows, cached; then everything else is free.

    The budget is split by ``encoder_share``, ``attention_share`` and ``aggregation_share``; the
    classifier has the rest. Under the edge units the encoder is trained in the open, as ``folds``
    networks, each without one part of the training nodes, so that what is believed of a training
    node was not learned from it.

    *Guarantee*: under the edge units the weights, the noisy sums and predictions made from noisy
    sums; under ``node`` the weights and such predictions, all but the node's own. Public:
    :class:`Facts`.
    """

    name: ClassVar[str] = "gap"
    baseline: ClassVar[str | None] = "dp-mlp"
    compared: ClassVar[bool] = True
    units: ClassVar[tuple[str, ...]] = ("node", "edge", "edge-directed", "edge-undirected")
    inferences = (Cached(), Noisy(sums="hops_in_use"), Visible(), Disjoint())
    scored_by: ClassVar[str] = "cache"

    unit: Literal["node", "edge", "edge-directed", "edge-undirected"] = setting(
        "What is protected; 'edge' is directed or not, as is stated of the graph.", "node"
    )
    messages: Literal["encoding", "label", "evidence"] | None = setting(
        "What nodes send; by default labels under the unit node, else evidence: labels and "
        "predictions as they bear on what the receiver hesitates between.",
        None,
    )
    weighting: Literal["none", "similarity", "attention"] = setting(
        "What weighs messages: nothing, the cosine of their ends, or a trained network.", "none"
    )
    similarity: Literal["sigmoid", "half", "positive"] = setting(
        "The map of a cosine to a weight.", "sigmoid"
    )
    hops: int | None = setting("How often rows are sent on; by default 1.", None, "[1, 100]")
    combine: Literal["concat", "attention"] = setting(
        "How the head combines the hops of encodings.", "concat"
    )
    capping: Literal["hard", "soft"] | None = setting(
        "A node sends at most 'sender_cap' messages (hard), or all with the weight of so many "
        "(soft); under the unit node.",
        None,
    )
    sender_cap: int | None = setting(
        "Messages that a node may send; by default 1 if soft, 50 if hard.", None, "[1, 1e9]"
    )
    public_edges: int | None = setting(
        "A public bound on the number of edges, for the default delta.", None, "[1, 1e18]"
    )
    encoder_share: float | None = setting("The encoder's share of the budget.", None, "(0, 1]")
    attention_share: float | None = setting("The attention's share of the budget.", None, "(0, 1]")
    aggregation_share: float | None = setting("The sums' share of the budget.", None, "(0, 1]")
    encoder_layers: int = setting("Layers of the encoder.", 1, "[1, 10]")
    activation: Activation | Literal["auto"] = setting(  # type: ignore[assignment]
        "What follows hidden layers; 'auto' follows the unit.", "auto"
    )
    open_steps: int = setting("Steps of the encoder in the open.", 300, "[1, 1e9]")
    open_learning_rate: float = setting("Their length.", 0.01, "(0, inf)")
    dropout: float = setting("The share of values dropped in the open.", 0.4, "[0, 1)")
    weight_decay: float = setting("Shrinks weights at every step in the open.", 5e-4, "[0, inf)")
    folds: int = setting("Encoders in the open.", 5, "[2, 100]")
    paper: bool = setting("Run what was published, with the epsilon it claims.", False)

    cache_: Any = field(init=False)

    # --- what the settings come to ---------------------------------------------------------------

    @property
    def messages_in_use(self) -> str:
        """What nodes send."""
        if self.messages is not None:
            return self.messages
        if self.paper:
            return "encoding"
        return "label" if self.unit == "node" else "evidence"

    @property
    def hops_in_use(self) -> int:
        """How often rows are sent on."""
        return (2 if self.paper else 1) if self.hops is None else self.hops

    @property
    def capping_in_use(self) -> str:
        """How messages are capped."""
        if self.capping is not None:
            return self.capping
        return "hard" if self.paper or self.weighting == "attention" else "soft"

    @property
    def sender_cap_in_use(self) -> int:
        """How many messages a node may send."""
        if self.sender_cap is not None:
            return self.sender_cap
        return 1 if self.capping_in_use == "soft" else 50

    @property
    def encodes(self) -> bool:
        """Whether there is an encoder. Labels need none, and its budget is saved."""
        return self.unit != "node" or self.messages_in_use != "label"

    @property
    def _num_encoders(self) -> int:
        """Beliefs about training nodes come from encoders that have not seen them."""
        if not self.encodes:
            return 0
        return self.folds if self.unit != "node" and self.messages_in_use != "encoding" else 1

    def _bound(self, unit: str) -> float:
        largest = SIMILARITIES[self.similarity] if self.weighting == "similarity" else 1.0
        return sensitivity(unit, largest, self.sender_cap_in_use)

    def _check_together(self) -> None:
        """Refuse settings that do not go together."""
        check_bound(self.max_grad_norm, self.clipping)
        if self.weighting == "attention" and self.capping_in_use == "soft" and self.unit == "node":
            raise UnprovenError(
                "Under the unit 'node' attention needs capping='hard': its training alters the "
                "loss term of every receiver, and a soft cap does not bound how many there are."
            )
        if self.paper and self.weighting == "similarity" and self.similarity != "sigmoid":
            raise UnprovenError(
                "The paper weighs by a sigmoid of the cosine. Got similarity="
                f"{self.similarity!r} with paper=True; leave one of the two out."
            )
        if self.paper and self.messages_in_use != "encoding":
            raise UnprovenError(
                "The papers send encodings. Got messages="
                f"{self.messages!r} with paper=True; leave one of the two out."
            )

    def network(self, facts: Facts) -> HopNetwork:
        activation = self.activation
        if activation == "auto":
            activation = "tanh" if self.unit == "node" else "relu"
        return HopNetwork(
            in_channels=self._features(facts.num_features).columns(facts.num_features),
            hidden_channels=self.hidden_channels,
            out_channels=self.task(facts).outputs,
            messages=self.messages_in_use,
            hops=self.hops_in_use,
            encoders=self._num_encoders,
            encoder_layers=self.encoder_layers,
            attention=self.weighting == "attention",
            public_features=self.unit != "node",
            combine=self.combine,
            activation=activation,
            dropout=self.dropout,
        )

    # --- plan ------------------------------------------------------------------------------------

    def influence(self, facts: Facts, part: str = "classifier") -> tuple[int, int]:
        """The loss terms of one unit: its own, and for attention its messages' receivers'."""
        if part != "attention":
            return 1, 0
        unit = self.unit_for(facts)
        if unit == "node":
            return 1, self.sender_cap_in_use
        return 0, 1 if unit == "edge-directed" else 2

    def _shares(self) -> dict[str, float]:
        """What costs something, with its share of the budget; the shares add up to 1."""
        names = ["aggregation"]
        if self.unit == "node":
            names += ["classifier", *(["encoder"] if self.encodes else [])]
        if self.weighting == "attention":
            names.append("attention")
        usual = {name: _SHARES[name] for name in names}
        if self.unit == "node":
            # The more there is to spend, the more of it pays where the noise is largest.
            usual["aggregation"] = 3.0 * self.epsilon**2 / 20
        shared = ("encoder", "attention", "aggregation")
        return share_out(usual, {name: getattr(self, f"{name}_share") for name in shared})

    def _noises(self, facts: Facts, scale: float) -> dict[str, float]:
        """Noise multipliers, when a Gaussian with the whole budget has ``scale``.

        What has a share s gets the mu of a Gaussian s times as strong, squared.
        """
        noises, hops = {}, self.hops_in_use
        for name, share in self._shares().items():
            if name == "aggregation":
                noises[name] = min(scale * math.sqrt(hops / share), LOUDEST)
                continue
            steps = self.steps * (hops if name == "attention" else 1)
            noises[name] = noise_of_steps(
                share / scale**2, self.sample_rate, steps, self.influence(facts, name)
            )
        return noises

    def _parts(self, facts: Facts, noises: Mapping[str, float]) -> tuple[Part, ...]:
        """What runs, in its order."""

        def steps(kind: str, name: str) -> Steps:
            removed, altered = self.influence(facts, kind)
            return Steps(
                name=name,
                paid_for=_PAID_FOR[kind],
                count=self.steps,
                rate=self.sample_rate,
                noise_multiplier=noises[kind],
                removed=removed,
                altered=altered,
                clipping=self.clipping,
                max_grad_norm=self.max_grad_norm,
                optimizer=self.optimizer,
                momentum=self.momentum,
                learning_rate=self.learning_rate,
                averaged=self.averaged,
            )

        parts: list[Part] = [steps("encoder", "encoder")] if "encoder" in noises else []
        bound = self._bound(self.unit_for(facts))
        for hop in range(1, self.hops_in_use + 1):
            if "attention" in noises:
                parts.append(steps("attention", f"attention{hop}"))
            parts.append(
                Release(
                    name=f"hop{hop}",
                    paid_for=_PAID_FOR["aggregation"],
                    mechanism=Gaussian(noise_multiplier=noises["aggregation"], sensitivity=bound),
                )
            )
        if "classifier" in noises:
            parts.append(steps("classifier", "classifier"))
        return tuple(parts)

    def _plan(self, facts: Facts) -> Plan:
        self._check_together()
        parameters = self.network(facts).num_parameters
        unit, delta = self.unit_for(facts), choose_delta(self.delta, self.num_units(facts))
        noises = self._noises_in_use(facts, delta)
        claim = self._claim(facts, delta, noises) if self.paper else None
        node, stepped = unit == "node", len(noises) > 1
        steps = {"steps": self.steps, "sample_rate": self.sample_rate} if stepped else {}
        others = {f"{name}_noise": z for name, z in noises.items() if name != "aggregation"}
        return Plan(
            method=self.name,
            facts=facts,
            unit=unit,
            delta=delta,
            parts=self._parts(facts, noises),
            details={
                "noise_multiplier": noises["aggregation"],
                "sensitivity": self._bound(unit),
                "hops": self.hops_in_use,
                **others,
                **{f"{name}_share": share for name, share in self._shares().items()},
                **steps,
                "parameters": parameters,
            },
            released="model weights"
            if node
            else "model weights, noisy sums and predictions made from them",
            released_to=f"{OWN_ONLY}; the noisy sums to nobody" if node else "anybody",
            inference=(self.inferences[0].says(self, unit),),
            claim=None if claim is None else claim.on_certificate(),
        )

    def _noises_in_use(self, facts: Facts, delta: float) -> dict[str, float]:
        """The least noise for which all parts together fit the budget, or the paper's claim."""
        if not self.paper:
            scale = scale_within(
                lambda scale: self._parts(facts, self._noises(facts, scale)),
                epsilon=self.epsilon,
                delta=delta,
                loudest=1e6,
            )
            return self._noises(facts, scale)

        def claim(log_scale: float) -> float:
            noises = self._noises(facts, math.exp(log_scale))
            return self._claim(facts, delta, noises).claimed_epsilon

        log_scale = claimed_noise(
            claim,
            self.epsilon,
            math.log(1e-2),
            math.log(1e4),
            "The paper must claim the 'epsilon' for some noise. Got "
            f"'epsilon' {self.epsilon:g} instead; ask for another, or leave out 'paper'.",
            tolerance=1e-12,
        )
        return self._noises(facts, math.exp(log_scale + 1e-9))

    def _claim(self, facts: Facts, delta: float, noises: Mapping[str, float]) -> Claim:
        node, unit = self.unit == "node", self.unit_for(facts)
        terms: dict[str, Any] = {
            "unit": "node" if node else "edge",
            "hops": self.hops_in_use,
            # The papers' unit of noise is one message, or sqrt(D) of them.
            "noise_multiplier": noises["aggregation"] * self._bound(unit),
            "delta": delta,
            "directed": unit == "edge-directed",
        }
        if node:
            terms |= {
                "max_degree": self.sender_cap_in_use,
                "encoder_noise": noises["encoder"],
                "classifier_noise": noises["classifier"],
                "rate": self.sample_rate,
                "steps": self.steps,
            }
        if self.weighting == "none":
            return CLAIMS["gap"](**terms)
        if self.weighting == "attention":
            terms |= {
                "attention_noise": noises["attention"],
                "attention_steps": self.steps,
                "rate": self.sample_rate,
            }
        return CLAIMS["shpilevskiy"](weighting=self.weighting, **terms)

    # --- fit -------------------------------------------------------------------------------------

    def _train(self, execution: Execution, data: Data) -> nn.Module:
        import torch

        from graphveil.graph.aggregation import unit_rows
        from graphveil.methods.sending import check_edges, prepare_to_send, release_sums, send

        plan = execution.plan
        check_edges(self, data.edge_index, plan.unit)
        network, x = self.build(plan.facts), self._rows(data)
        beliefs = self._encode(network, x, data, execution)
        with torch.no_grad():
            sending = prepare_to_send(self, network, x, data, beliefs)
        cache = []
        for hop in range(self.hops_in_use):
            if self.weighting == "attention":
                self._train_attention(network, hop, sending, data, execution)
            with torch.no_grad():
                sent = send(self, network, hop, sending)
                noisy = release_sums(execution, plan.part(f"hop{hop + 1}"), sent)
                cache.append(noisy)
                sending = replace(sending, rows=unit_rows(noisy))
        # From here on nobody reads an edge.
        self.cache_ = torch.stack(cache, 1)
        with torch.no_grad():
            inputs = self.inputs(network, x, self.cache_, beliefs)
        self._classify(network, inputs, data, execution)
        return network

    def _features(self, columns: int) -> Features:
        """Public features stay whole: nothing is trained on them with noise."""
        features = Features.of(self)
        return features if self.unit == "node" else replace(features, project_above=columns)

    def prepare(self, data: Data) -> Tensor:
        """The rows that the network reads."""
        return self._features(data.x.shape[1]).prepare(data.x)

    def _rows(self, data: Data) -> Any:
        """The rows that the network reads; in the open those of mostly zeros are sparse."""
        from graphveil.nn.gap import SparseRows

        x = self.prepare(data)
        sparse = self.unit != "node" and (x != 0).float().mean() < 0.2
        return SparseRows(x) if sparse else x

    def _encode(
        self, network: GAPNetwork, x: Any, data: Data, execution: Execution
    ) -> Tensor | None:
        """Train the encoders; log-probabilities of every node, None if there are no encoders."""
        import torch

        from graphveil.rng import seeded

        if not self.encodes:
            return None
        train = data.train_mask
        if self.unit == "node":
            self._step(execution, "encoder", network.encoders[0], (x[train], data.y[train]))
            with torch.no_grad():
                return network.log_probabilities(x)
        folds = len(network.encoders)
        generator = seeded(self.seed, "folds").torch_generator()
        fold = torch.randint(folds, (len(train),), generator=generator)
        for number, encoder in enumerate(network.encoders):
            seen = train & (fold != number) if folds > 1 else train
            first = encoder.body.linears[0].weight
            rest = [weight for weight in encoder.parameters() if weight is not first]
            groups: list[dict[str, Any]] = [
                {"params": [first], "weight_decay": self.weight_decay},
                {"params": rest},
            ]
            optimizer = torch.optim.Adam(groups, lr=self.open_learning_rate)
            self._fit_openly(
                encoder, optimizer, x, data, execution, seen if seen.any() else train,
                steps=self.open_steps, batch_size=_BATCH, rate=lambda done: 1 - done, every=20,
                progress=execution.progress,
            )  # fmt: skip
        with torch.no_grad():
            unseen = torch.where(train, fold, -1) if folds > 1 else None
            return network.log_probabilities(x, unseen)

    def _step(self, execution: Execution, name: str, network: nn.Module, terms: Any) -> None:
        from graphveil.methods.terms import node_losses

        losses = node_losses(self.task(execution.plan.facts))
        execution.train(execution.plan.part(name), network, terms, losses)

    def _fit_openly(
        self,
        module: nn.Module,
        optimizer: Any,
        inputs: Any,
        data: Data,
        execution: Execution,
        seen: Tensor | None = None,
        **how: Any,
    ) -> float:
        from graphveil.methods.open_training import OpenTraining

        training = OpenTraining(seed=self.seed, by_loss=True, on_loss=execution.on_loss, **how)
        return training(module, optimizer, lambda ids: module(inputs[ids]), data, seen)

    # --- what is made of what was sent ---------------------------------------------------------

    def _train_attention(
        self, network: GAPNetwork, hop: int, sending: Sending, data: Data, execution: Execution
    ) -> None:
        """Train one hop's attention on loss terms that read the messages of their own node."""
        from graphveil.methods.open_training import seeded_weights
        from graphveil.methods.sending import attention_terms
        from graphveil.nn.gap import AttentionTerms

        with seeded_weights(self.seed + 1 + hop):
            classes = execution.plan.facts.num_classes
            trained = AttentionTerms(network.attention[hop], sending.rows.shape[1], classes)
        terms = attention_terms(sending, data, self.seed)
        self._step(execution, f"attention{hop + 1}", trained, terms)

    def inputs(self, network: GAPNetwork, x: Any, cache: Tensor, beliefs: Tensor | None) -> Tensor:
        """What the head reads of each node: its own row, then its cached ones."""
        import torch
        from torch.nn import functional as F

        from graphveil.graph.aggregation import unit_rows

        if self.messages_in_use == "encoding":
            own = unit_rows(network.encoders[0].encode(x))
            return torch.cat([own, F.normalize(cache.float(), dim=2).flatten(1)], 1)
        mechanism = self.plan_.part("hop1").mechanism
        noise = mechanism.noise_multiplier * mechanism.sensitivity
        # Trained with noise of its own, a classifier is slow to ignore a column of mere noise.
        unit = 2 * noise * max(1.0, noise) if self.unit == "node" else noise
        scaled = (cache / unit).flatten(1).float()
        if not self.encodes:
            return torch.cat([x, scaled], 1)
        own = network.log_probabilities(x) if beliefs is None else beliefs
        return torch.cat([own, scaled], 1)

    def _classify(
        self, network: GAPNetwork, inputs: Tensor, data: Data, execution: Execution
    ) -> None:
        import torch

        from graphveil.nn.gap import SumHead

        train = data.train_mask
        if self.unit == "node":
            self._step(execution, "classifier", network.heads[0], (inputs[train], data.y[train]))
            return
        scores = []
        for head in network.heads:
            plain = isinstance(head, SumHead)
            optimizer = torch.optim.Adam(
                head.parameters(),
                lr=self.open_learning_rate * (2 if plain else 1),
                weight_decay=0.0 if plain else 0.2 * self.weight_decay,
            )
            scores.append(
                self._fit_openly(head, optimizer, inputs, data, execution, steps=_HEAD_STEPS)
            )
        # A sum, unless the network is clearly better: it has little to over-fit with.
        simplest = len(scores) - 1
        better = scores[0] > (1 - _CLEARLY) * scores[simplest]
        network.chosen.fill_(0 if better else simplest)

    # --- prediction ------------------------------------------------------------------------------

    def outputs(self, data: Data, mode: str) -> Tensor:
        """From exact sums over the neighbours."""
        return self.outputs_from(data, self._sum_anew(data, lambda sent: sent.sums()))

    def outputs_from(self, data: Data, cache: Tensor) -> Tensor:
        """From a node's own row and sums that were made for it."""
        network = self.network_
        return network.head(self.inputs(network, self._rows(data), cache, None))

    def noisy_outputs(self, data: Data, epsilon: float) -> Tensor:
        """From noisy sums that are made anew."""
        from graphveil.methods.sending import check_edges
        from graphveil.rng import secret

        check_edges(self, data.edge_index, self.plan_.unit)
        part = self.plan_prediction(epsilon, self._bound(self.plan_.unit))
        self.charge(part)
        rng = secret()
        cache = self._sum_anew(data, lambda sent: sent.noisy_sums(part.mechanism, rng))
        # The classifier knows sums of the noise it was trained with; louder ones say less.
        trained_with = self.plan_.part("hop1").mechanism.noise_multiplier
        louder = max(1.0, part.mechanism.noise_multiplier / trained_with)
        return self.outputs_from(data, cache / louder**2)

    def _sum_anew(self, data: Data, total: Callable[[Sent], Tensor]) -> Tensor:
        import torch

        from graphveil.graph.aggregation import unit_rows
        from graphveil.methods.sending import prepare_to_send, send

        network, x = self.network_, self._rows(data)
        beliefs = network.log_probabilities(x) if self.encodes else None
        sending = prepare_to_send(self, network, x, data, beliefs)
        cache = []
        for hop in range(self.hops_in_use):
            cache.append(total(send(self, network, hop, sending)))
            sending = replace(sending, rows=unit_rows(cache[-1]))
        return torch.stack(cache, 1)
