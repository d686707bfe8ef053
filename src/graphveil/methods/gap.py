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
from collections.abc import Mapping
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, final

from graphveil._errors import InvalidInputError, UnprovenError
from graphveil.graph.choices import SIMILARITIES
from graphveil.graph.influence import sensitivity
from graphveil.mechanisms import Gaussian
from graphveil.methods import own_row
from graphveil.methods.base import Method
from graphveil.methods.budget import (
    LOUDEST,
    choose_delta,
    claimed_noise,
    noise_of_steps,
    scale_within,
    share_out,
)
from graphveil.methods.class_weights import count_release, pays_for_counts
from graphveil.methods.features import Features
from graphveil.methods.hop_rules import (
    PAID_FOR,
    FirstClassifier,
    HopSettings,
    RuledSteps,
    Stepping,
    check_beliefs,
    check_paper,
    usual_shares,
)
from graphveil.methods.inference import Cached, Disjoint, Noisy, Visible
from graphveil.methods.parts import Part, Release, Steps
from graphveil.methods.plan import OWN_ONLY, Facts, Plan
from graphveil.methods.settings import Budget, check_bound, setting, settings
from graphveil.methods.task import has_classes
from graphveil.nn.descriptions import HopNetwork
from graphveil.privacy.claims import CLAIMS, Claim
from graphveil.privacy.guarantee import Claimed

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch_geometric.data import Data

    from graphveil.methods.execution import Execution

_NARROW = 1024  # columns that are not projected
_PUBLISHED_NOISE = 1.3  # of the attention's steps, in Shpilevskiy et al.


@final
@settings()
class GAP(Method, HopSettings, RuledSteps, Budget):
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
    inferences = (Cached(), Noisy(sums="hops_in_use"), Visible(reach="reach"), Disjoint())
    scored_by: ClassVar[str] = "cache"
    reads_stores: ClassVar[bool] = True

    unit: Literal["node", "edge", "edge-directed", "edge-undirected"] = setting(
        "What is protected; 'edge' is directed or not, as is stated of the graph.", "node"
    )
    messages: Literal["encoding", "label", "belief", "evidence"] | None = setting(
        "What nodes send: 'belief' is the label of a training node and what is believed of any "
        "other, and a node reads the sums of those in its own list, too; 'evidence' is the same as "
        "it bears on what the receiver hesitates between. By default 'belief' under the unit node "
        "('label' where messages are weighed), else 'evidence'.",
        None,
    )
    weighting: Literal["none", "similarity", "attention"] = setting(
        "What weighs messages: nothing, the cosine of their ends, or a trained network.", "none"
    )
    hops: int | None = setting("How often rows are sent on; by default 1.", None, "[1, 100]")
    capping: Literal["hard", "soft"] | None = setting(
        "A node sends at most 'sender_cap' messages (hard), or all with the weight of so many "
        "(soft); under the unit node.",
        None,
    )
    sender_cap: int | None = setting(
        "Messages that a node may send; by default 1 if soft, 50 if hard.", None, "[1, 1e9]"
    )
    centred: bool | None = setting(
        "Of beliefs: whether a noisy mean row is released and taken away; by default with at most "
        "1,024 columns.",
        None,
    )
    public_edges: int | None = setting(
        "A public bound on the number of edges, for the default delta.", None, "[1, 1e18]"
    )
    encoder_share: float | None = setting("The encoder's share of the budget.", None, "(0, 1]")
    attention_share: float | None = setting("The attention's share of the budget.", None, "(0, 1]")
    aggregation_share: float | None = setting("The sums' share of the budget.", None, "(0, 1]")
    attention_noise: float | None = setting(
        "The noise multiplier of the attention's steps, in place of its share; under 'paper' 1.3.",
        None,
        "(0, 1e8]",
    )
    project_above: int | None = setting(  # type: ignore[assignment]
        "Columns above which features are projected; by default 1024, and never where rows are "
        "public or a linear classifier reads them.",
        None,
        "[1, inf)",
    )
    batch_size: int | None = setting(
        "Training nodes that a private step draws on average, in place of 'sample_rate'.",
        None,
        "[1, 1e12]",
    )
    epochs: int | None = setting(
        "How often private steps draw each training node on average, in place of 'steps'.",
        None,
        "[1, 1e9]",
    )
    folds: int = setting("Encoders in the open.", 5, "[2, 100]")
    paper: bool = setting("Run what was published, with the epsilon it claims.", False)
    claimed_delta: float | None = setting(
        "The delta of the paper's claim; by default the one that is proven for.", None, "(0, 1)"
    )

    cache_: Any = field(init=False)
    cache_ids_: list[str] | None = field(init=False)

    # --- what the settings come to ---------------------------------------------------------------

    @property
    def messages_in_use(self) -> str:
        """What nodes send; values and several labels are not sent, and their encodings are."""
        if self.messages is not None:
            return self.messages
        if self.paper or (hasattr(self, "plan_") and not has_classes(self.plan_.facts)):
            return "encoding"
        if self.unit != "node":
            return "evidence"
        # Where the receiver's row weighs messages, nobody but the receiver may read their sum.
        return "belief" if self.weighting == "none" else "label"

    @property
    def hops_in_use(self) -> int:
        """How often rows are sent on."""
        return (2 if self.paper else 1) if self.hops is None else self.hops

    @property
    def reach(self) -> int:
        """How many steps away a prediction reads; with beliefs also the sums of its own list."""
        return self.hops_in_use * (2 if self.messages_in_use == "belief" else 1)

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
    def message_cap(self) -> int | None:
        """How many messages a node may send; None where edges are the unit, and all are sent."""
        return self.sender_cap_in_use if self.unit == "node" else None

    @property
    def attention_noise_in_use(self) -> float | None:
        """The noise of the attention's steps where it is given; else it comes from a share."""
        if self.attention_noise is None and self.paper:
            return _PUBLISHED_NOISE
        return self.attention_noise

    @property
    def trains_openly(self) -> bool:
        """Whether encoders and heads see public rows alone."""
        return self.unit != "node"

    @property
    def cache_unit(self) -> float:
        """What sums of labels are measured in before a head reads them."""
        mechanism = self.plan_.part("hop1").mechanism
        noise: float = mechanism.noise_multiplier * mechanism.sensitivity
        # Trained with noise of its own, a classifier is slow to ignore a column of mere noise.
        plain = self.trains_openly or self.messages_in_use == "belief"
        return noise if plain else 2 * noise * max(1.0, noise)

    @property
    def reads_lists(self) -> bool:
        """Whether a node reads the sums of those in its own list, too."""
        return self.messages_in_use == "belief"

    @property
    def own_rows(self) -> FirstClassifier:
        """With beliefs: how the first classifier is trained."""
        return FirstClassifier.of(self)

    def steps_and_rate(self, facts: Facts, part: str = "classifier") -> tuple[int, float]:
        """How many private steps a part takes, and how often they draw a training node."""
        train, batch, how = facts.num_train, self.batch_size, Stepping.of(self, part)
        rate = how.rate(facts) if batch is None else min(1.0, batch / train)
        if self.epochs is None:
            return how.steps, rate
        drawn = self.epochs / rate if batch is None else self.epochs * train // min(batch, train)
        return max(1, int(drawn)), rate

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
        if self.max_grad_norm is not None:
            check_bound(self.max_grad_norm, self.clipping)
        check_beliefs(self)
        if self.weighting == "attention" and self.capping_in_use == "soft" and self.unit == "node":
            raise UnprovenError(
                "Under the unit 'node' attention needs capping='hard': its training alters the "
                "loss term of every receiver, and a soft cap does not bound how many there are."
            )
        if self.attention_noise is not None and self.weighting != "attention":
            raise InvalidInputError(
                "The 'attention_noise' must be left out where there is no attention to train. Got "
                f"{self.attention_noise:g} with weighting={self.weighting!r} instead."
            )
        if self.paper:
            check_paper(self)
        elif self.claimed_delta is not None:
            raise InvalidInputError(
                "The 'claimed_delta' is a paper's: it must be left out unless 'paper' is true. Got "
                f"{self.claimed_delta:g} instead; 'delta' is what is proven for."
            )

    def _for(self, facts: Facts) -> GAP:
        """The same settings, with the messages that the task decides."""
        if has_classes(facts):
            return self if not hasattr(self, "plan_") else replace(self)
        if self.messages not in (None, "encoding"):
            raise InvalidInputError(
                "Nodes must send encodings unless they are in one class each. Got messages="
                f"{self.messages!r} with the task {facts.task!r} instead; leave 'messages' out."
            )
        return replace(self, messages="encoding")

    def network(self, facts: Facts) -> HopNetwork:
        return self._for(facts)._network(facts)

    def _network(self, facts: Facts) -> HopNetwork:
        activation = self.activation
        if activation == "auto":
            activation = "tanh" if self.unit == "node" else "relu"
        return HopNetwork(
            in_channels=self.features_for(facts.num_features).columns(facts.num_features),
            hidden_channels=self.hidden_channels,
            out_channels=self.task(facts).outputs,
            halved=self.halved,
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

    def _shares(self, facts: Facts) -> dict[str, float]:
        """What costs something, with its share of the budget; the shares add up to 1."""
        names = ["aggregation"]
        if self.unit == "node":
            names += ["classifier", *(["encoder"] if self.encodes else [])]
        if self.weighting == "attention" and self.attention_noise_in_use is None:
            names.append("attention")
        usual = usual_shares(self, facts, names)
        shared = ("encoder", "attention", "aggregation")
        return share_out(usual, {name: getattr(self, f"{name}_share") for name in shared})

    def _centres(self, facts: Facts) -> bool:
        """Whether a noisy mean row is released before the first classifier is trained."""
        return self.messages_in_use == "belief" and own_row.is_centred(self.own_rows, facts)

    def _noises(self, facts: Facts, scale: float) -> dict[str, float]:
        """Noise multipliers, when a Gaussian with the whole budget has ``scale``.

        What has a share s gets the mu of a Gaussian s times as strong, squared. In the papers all
        parts have the noise multiplier ``scale``, but for an attention whose noise is given.
        """
        noises, hops = {}, self.hops_in_use
        if pays_for_counts(self):
            noises["counts"] = scale / math.sqrt(own_row.SHARES["counts"])
        if self.weighting == "attention" and self.attention_noise_in_use is not None:
            noises["attention"] = self.attention_noise_in_use
        for name, share in self._shares(facts).items():
            if self.paper:
                noises[name] = scale
            elif name == "aggregation":
                noises[name] = min(scale * math.sqrt(hops / share), LOUDEST)
            else:
                steps, rate = self.steps_and_rate(facts, name)
                taken = steps * (hops if name == "attention" else 1)
                influence, strength = self.influence(facts, name), share / scale**2
                if name == "encoder" and self._centres(facts):
                    noises["mean"] = scale / math.sqrt(share * own_row.SHARES["mean"])
                    strength *= 1 - own_row.SHARES["mean"]
                noises[name] = noise_of_steps(strength, rate, taken, influence)
        return noises

    def _parts(self, facts: Facts, noises: Mapping[str, float]) -> tuple[Part, ...]:
        """What runs, in its order."""

        def steps(kind: str, name: str) -> Steps:
            removed, altered = self.influence(facts, kind)
            (count, rate), how = self.steps_and_rate(facts, kind), Stepping.of(self, kind)
            unsized = Steps(
                name=name,
                paid_for=PAID_FOR[kind],
                count=count,
                rate=rate,
                noise_multiplier=noises[kind],
                removed=removed,
                altered=altered,
                clipping=self.clipping,
                max_grad_norm=how.max_grad_norm,
                optimizer=how.optimizer,
                momentum=how.momentum,
                learning_rate=1.0,
                averaged=how.averaged,
            )
            return replace(unsized, learning_rate=how.size(unsized, rate * facts.num_train))

        parts: list[Part] = []
        if "counts" in noises:
            parts.append(count_release(noises["counts"]))
        if "mean" in noises:
            parts.append(own_row.plan_mean(noises["mean"]))
        if "encoder" in noises:
            parts.append(steps("encoder", "encoder"))
        bound = self._bound(self.unit_for(facts))
        for hop in range(1, self.hops_in_use + 1):
            if "attention" in noises:
                parts.append(steps("attention", f"attention{hop}"))
            parts.append(
                Release(
                    name=f"hop{hop}",
                    paid_for=PAID_FOR["aggregation"],
                    mechanism=Gaussian(noise_multiplier=noises["aggregation"], sensitivity=bound),
                )
            )
        if "classifier" in noises:
            parts.append(steps("classifier", "classifier"))
        return tuple(parts)

    def _plan(self, facts: Facts) -> Plan:
        return self._for(facts)._plan_parts(facts)

    def _plan_parts(self, facts: Facts) -> Plan:
        self._check_together()
        parameters = self._network(facts).num_parameters
        unit, delta = self.unit_for(facts), choose_delta(self.delta, self.num_units(facts))
        noises = self._noises_in_use(facts, delta)
        node, stepped = unit == "node", len(noises) > 1
        steps = dict(zip(("steps", "sample_rate"), self.steps_and_rate(facts), strict=True))
        shares = {} if self.paper else self._shares(facts)
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
                **{f"{name}_share": share for name, share in shares.items()},
                **(steps if stepped else {}),
                "parameters": parameters,
            },
            released="model weights"
            if node
            else "model weights, noisy sums and predictions made from them",
            released_to=f"{OWN_ONLY}; the noisy sums to nobody" if node else "anybody",
            inference=(self.inferences[0].says(self, unit),),
            claim=self._claimed(facts, delta, noises) if self.paper else None,
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

        claimed_delta = self.claimed_delta or delta

        def claim(log_scale: float) -> float:
            noises = self._noises(facts, math.exp(log_scale))
            return self._claim(facts, claimed_delta, noises).claimed_epsilon

        quietest, loudest = math.log(2e-2), math.log(1e5)
        refusal = (
            f"The paper must claim the 'epsilon' for some noise. Got 'epsilon' {self.epsilon:g} "
            "instead; ask for another, or leave out 'paper'."
        )
        if self.weighting == "attention" and (trained := claim(loudest)) >= self.epsilon:
            steps, rate = self.steps_and_rate(facts)
            refusal = (
                "By the paper's Theorem 2 training of the attention must leave some 'epsilon' for "
                f"the noisy sums. Got 'epsilon' {self.epsilon:g}, of which {steps:,} steps at "
                f"noise {self.attention_noise_in_use:g} and rate {rate:.3g} take {trained:.2f} "
                "already: as published, it cannot be trained here; ask for more, or leave out "
                "'paper'."
            )
        log_scale = claimed_noise(claim, self.epsilon, quietest, loudest, refusal, tolerance=1e-12)
        return self._noises(facts, math.exp(log_scale + 1e-9))

    def _claimed(self, facts: Facts, delta: float, noises: Mapping[str, float]) -> Claimed:
        """What the paper says of it, at its own delta."""
        claim = self._claim(facts, self.claimed_delta or delta, noises).on_certificate()
        if self.claimed_delta is None:
            return claim
        return replace(claim, source=f"{claim.source}, at delta {self.claimed_delta:g}")

    def _claim(self, facts: Facts, delta: float, noises: Mapping[str, float]) -> Claim:
        node, unit = self.unit == "node", self.unit_for(facts)
        steps, rate = self.steps_and_rate(facts)
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
                "rate": rate,
                "steps": steps,
            }
        if self.weighting == "none":
            return CLAIMS["gap"](**terms)
        if self.weighting == "attention":
            terms |= {
                "attention_noise": noises["attention"],
                "attention_steps": steps,
                "rate": rate,
            }
        return CLAIMS["shpilevskiy"](weighting=self.weighting, **terms)

    # --- fit -------------------------------------------------------------------------------------

    def _train(self, execution: Execution, data: Data) -> nn.Module:
        import torch

        from graphveil.graph.checks import ids_of
        from graphveil.methods import hop_training as hops
        from graphveil.methods.sending import check_edges, prepare_to_send, release_sums, send

        plan = execution.plan
        check_edges(self, data, plan.unit)
        network, x = self.build(plan.facts), hops.read_rows(self, data)
        beliefs = None
        if self.encodes:
            encode = hops.encode_openly if self.trains_openly else hops.encode_privately
            beliefs = encode(self, network, x, data, execution)
        with torch.no_grad():
            sending = prepare_to_send(self, network, x, data, beliefs)
        cache = None
        for hop in range(self.hops_in_use):
            if self.weighting == "attention":
                hops.train_attention(self, network, hop, sending, data, execution)
            with torch.no_grad():
                sent = send(self, network, hop, sending)
                sums = release_sums(execution, plan.part(f"hop{hop + 1}"), sent)
                cache = hops.lay_up(self, cache, hop, sums, sent)
                sending = sending.onwards(sums)
        # From here on nobody reads an edge.
        self.cache_ = cache
        ids = ids_of(data)
        # Nodes of a store stand where they stand, and their ids stay on disk.
        self.cache_ids_ = list(ids) if isinstance(ids, list) else None
        with torch.no_grad():
            own = hops.own_inputs(self, network, x, beliefs)
        hops.classify(self, network, own, self.cache_, data, execution)
        return network

    def features_for(self, columns: int) -> Features:
        """Public features stay whole unless a paper's are narrower: no noise is trained with."""
        features = Features.of(self)
        if self.project_above is not None:
            return features
        whole = self.messages_in_use == "belief" or (self.trains_openly and not self.paper)
        return replace(features, project_above=columns if whole else _NARROW)

    def prepare(self, data: Data) -> Any:
        """The rows that the network reads; with beliefs sparse ones stay sparse."""
        if self.messages_in_use == "belief":
            return own_row.prepare(self.own_rows, data)
        return self.features_for(data.x.shape[1]).read(data)

    # --- prediction ------------------------------------------------------------------------------

    def outputs(self, data: Data, mode: str) -> Tensor:
        """From exact sums over the neighbours."""
        from graphveil.methods.hop_training import sum_anew

        return self.outputs_from(data, sum_anew(self, data, lambda sent: sent.sums()))

    def outputs_from(self, data: Data, cache: Tensor) -> Tensor:
        """From a node's own row and sums that were made for it."""
        from graphveil.methods.hop_training import outputs_from

        return outputs_from(self, data, cache)

    def noisy_outputs(self, data: Data, epsilon: float) -> Tensor:
        """From noisy sums that are made anew."""
        from graphveil.methods.hop_training import sum_anew
        from graphveil.methods.sending import check_edges
        from graphveil.rng import secret

        check_edges(self, data, self.plan_.unit)
        part = self.plan_prediction(epsilon, self._bound(self.plan_.unit))
        self.charge(part)
        rng = secret()
        cache = sum_anew(self, data, lambda sent: sent.noisy_sums(part.mechanism, rng))
        # The classifier knows sums of the noise it was trained with; louder ones say less.
        trained_with = self.plan_.part("hop1").mechanism.noise_multiplier
        louder = max(1.0, part.mechanism.noise_multiplier / trained_with)
        return self.outputs_from(data, cache / louder**2)
