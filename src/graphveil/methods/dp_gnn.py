"""Node-level private GNNs: sampled neighbourhoods, clipped gradients, senders capped.

The network is Daigavane et al.'s; what is charged is proven (docs/guarantees/node.md).
``paper=True`` runs their mechanism instead, and shows the epsilon they claim beside what can be
proven for it; their settings are recipes (:mod:`graphveil.methods.recipes`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, final

from graphveil import _validate
from graphveil._errors import BudgetError, InvalidInputError, UnprovenError
from graphveil.graph.influence import cap_under_removal, influence
from graphveil.methods.base import Method
from graphveil.methods.budget import claimed_noise, plan_steps, signal_to_noise
from graphveil.methods.class_weights import plan_counts
from graphveil.methods.features import Features
from graphveil.methods.inference import Disjoint, Noisy, Visible, check_degrees, hear_neighbours
from graphveil.methods.owners import records_charged, scale_influence
from graphveil.methods.plan import Facts, Plan
from graphveil.methods.settings import (
    Budget,
    FeatureSettings,
    Normalisation,
    StepSettings,
    check_bound,
    setting,
    setting_fields,
    settings,
)
from graphveil.nn.descriptions import NodeNetwork
from graphveil.privacy.claims import CLAIMS, daigavane_epsilon

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch_geometric.data import Data

    from graphveil.graph.messages import Messages
    from graphveil.methods.execution import Execution
    from graphveil.rng import SecretStream

_SHARED_PASS = (
    "the paper's sampler bounds both ends of an edge in one pass, so that one node changes more "
    "neighbourhoods than its cap says; no bound is proven"
)
_SHARED_LENGTH = (
    "the released sampler draws a node's messages by the length of its list, which changes with an "
    "edge and with a node that it names; no bound is proven but for a node withheld"
)
_READ_OFF = "the clipping thresholds were read off the training gradients"
_LAYERS_FLAW = (
    "The paper charges for one layer's threshold; the clipped gradient of L layers is one vector "
    "of norm sqrt(L) in units of the thresholds."
)
_DELIVERY = 0.5  # of the kept messages, in each step: docs/guarantees/node.md has what was measured
_LOOKED_AT = 10_000  # training nodes whose gradients give the thresholds, as in the released code


@final
@settings(project_above=4096)
class DPGNN(Method, FeatureSettings, StepSettings, Budget):
    """A GCN, GIN, GAT or SAGE of ``num_layers`` layers whose weights protect every node.

    What graph information costs follows from ``sender_cap``: one row is read in at most
    1 + K + ... + K^L loss terms. One layer spends K on receivers that are trained on, whose ids are
    public. ``paper=True`` takes the paper's sampler unless told otherwise, its fixed-size batches,
    its noise and its thresholds: ``clip_factor`` times the 75 % quantiles of the gradient norms of
    the first weights, unless ``max_grad_norm`` gives one for each layer.

    *Guarantee*: the weights are (epsilon, delta)-private for one unit. Public: :class:`Facts`.
    """

    name: ClassVar[str] = "dp-gnn"
    owners: ClassVar[str | None] = "rows"
    baseline: ClassVar[str | None] = "dp-mlp"
    compared: ClassVar[bool] = True
    units: ClassVar[tuple[str, ...]] = ("node", "edge")
    inferences = (Visible(reach="num_layers"), Noisy(), Disjoint())
    scored_by: ClassVar[str] = "neighbourhood"
    reads_stores: ClassVar[bool] = True

    conv: Literal["gcn", "gin", "gat", "sage"] = setting("The convolution.", "gcn")
    num_layers: int = setting("Convolutions, and hops that are read.", 1, "[1, 10]")
    encoder_layers: int = setting("Layers on each node before them.", 0, "[0, inf)")
    decoder_layers: int = setting("Layers on each node after them.", 1, "[0, inf)")
    heads: int = setting("Heads of the convolution 'gat'.", 1, "[1, inf)")
    attention: Literal["additive", "dot"] = setting("Scores of the convolution 'gat'.", "additive")
    normalisation: Normalisation = setting("The weights of messages.", "inverse-degree")
    sender_cap: int | None = setting(
        "Messages that a node may send: what graph information costs.", 1, "[1, inf)"
    )
    delivery: float | None = setting(
        "The probability with which a step delivers a message that is kept, by a secret coin of "
        "its own: a fraction of a cap. By default 0.5 with one layer of means, the unit 'node' "
        "withheld and batches that are sampled, and else 1.",
        None,
        "(0, 1]",
    )
    receiver_cap: int | None = setting("Messages that a node may read; free.", 10, "[1, inf)")
    unit: Literal["node", "edge"] = setting("What is protected.", "node")
    relation: Literal["withhold", "remove"] = setting(
        "How neighbouring data differ; 'remove' is the strict one, and needs 'public_degree'.",
        "withhold",
    )
    public_degree: int | None = setting(
        "A public rule on degrees that the data is known to obey.", None, "[1, inf)"
    )
    sampler: Literal["senders", "printed", "released"] | None = setting(
        "How messages are capped: 'senders' by each sender, 'released' by coins of each sender, as "
        "the authors' code does, 'printed' by the paper's Algorithm 2, for which nothing is "
        "proven; by default 'senders', and 'printed' with 'paper'.",
        None,
    )
    paper: bool = setting(
        "Run the paper's batches, thresholds and noise, and show the epsilon it claims.", False
    )
    clip_factor: float = setting(
        "With 'paper': thresholds over the quantiles of gradient norms, the paper's C_f.",
        1.0,
        "(0, inf)",
    )
    noise_ratio: float | None = setting(
        "With 'paper': noise over sensitivity, the paper's lambda; steps end where the epsilon is "
        "claimed, or at 'steps'.",
        None,
        "(0, inf)",
    )
    batch_size: int | None = setting(
        "With 'paper': nodes that a step draws, in place of the 'sample_rate'.", None, "[1, 1e9]"
    )

    def network(self, facts: Facts) -> NodeNetwork:
        return NodeNetwork(
            in_channels=Features.of(self).columns(facts.num_features),
            hidden_channels=self.hidden_channels,
            out_channels=self.task(facts).outputs,
            conv=self.conv,
            num_layers=self.num_layers,
            encoder_layers=self.encoder_layers,
            decoder_layers=self.decoder_layers,
            activation=self.activation,
            heads=self.heads,
            attention=self.attention,
        )

    # --- what one unit touches -------------------------------------------------------------------

    @property
    def sender_cap_in_use(self) -> int | None:
        """The sender cap that runs: none where it would only cost."""
        if self.unit == "edge" and self.num_layers == 1:
            return None
        if self.relation == "remove" and self.public_degree is not None:
            return cap_under_removal(self.num_layers, self.sender_cap, self.public_degree)
        return self.sender_cap

    def influence(self, facts: Facts) -> tuple[int, int]:
        """How many loss terms one unit removes, and how many others it alters."""
        counted = influence(  # refuses what has no bound, delivered by coins or not
            unit=self.unit_for(facts),
            num_layers=self.num_layers,
            sender_cap=self.sender_cap_in_use,
            num_train=facts.num_train,
            normalisation=self.normalisation,
            relation=self.relation,
            public_degree=self.public_degree,
        )
        if facts.num_owners is not None:
            return scale_influence(facts, counted)
        if self.delivery_in_use < 1 and self.sender_cap is not None:
            # The own term is drawn at another rate than those that are altered: each counts apart.
            return 1, min(self.sender_cap, facts.num_train)
        return counted

    def read_in_training(self, data: Data) -> Messages:
        """The messages that loss terms read.

        The only layer of a network is read by training nodes alone, whose ids are public: each
        sender's list holds these before it is capped. GIN's sums must be as long in training as in
        prediction, which has no such list.
        """
        alone = self.num_layers == 1 and (self.conv != "gin" or self._sampler != "senders")
        return self.capped_messages(data, data.train_mask if alone else None)

    def capped_messages(self, data: Data, readers: Tensor | None = None) -> Messages:
        """The messages of a graph under the caps; of ``readers`` alone, where a mask says so."""
        from graphveil.graph.caps import cap_receivers, cap_senders
        from graphveil.graph.daigavane import sample_paper
        from graphveil.graph.messages import weigh_messages
        from graphveil.graph.stored import edges_of

        nodes, sampler = len(data.x), self._sampler
        if sampler == "senders":
            cap, edges = self.sender_cap_in_use, edges_of(data)
            kept = cap_senders(edges, nodes, cap, seed=self.seed, readers=readers)
        else:
            kept = sample_paper(
                data.edge_index,
                nodes,
                self._paper_cap,
                seed=self.seed,
                reading=sampler,
                train=readers,
            )
        read = kept
        if self.receiver_cap is not None:
            read = cap_receivers(kept, nodes, self.receiver_cap, seed=self.seed)
        return weigh_messages(read, nodes, self.normalisation, sender_lists=kept)

    # --- plan ------------------------------------------------------------------------------------

    def _plan(self, facts: Facts) -> Plan:
        self._check_paper_settings()
        self._check_delivery()
        delivery = self.delivery_in_use
        if facts.num_owners is not None:
            self._check_owners()
            delivery = 1.0
        check_bound(self.max_grad_norm, "per_layer" if self.paper else self.clipping)
        plan = replace(
            plan_steps(
                self,
                facts,
                influence=self.influence(facts),
                units=self.num_units(facts),
                unit=self.unit_for(facts),
                noise=(lambda delta: self._paper_multiplier(facts, delta)) if self.paper else None,
                batch=self._batch(facts) if self.paper else None,
                delivery=delivery,
                before=lambda delta: plan_counts(self, delta, records_charged(facts)),
            ),
            relation=self.relation,
            public_degree=self.public_degree,
            inference=(self.inferences[0].says(self, self.unit),),
            void_because=self._sampler_flaw,
            public=("whether edges have a direction",) if self.unit == "edge" else (),
        )
        if delivery < 1:
            plan = replace(plan, details={**plan.details, "delivery": delivery})
        return self._claim(plan) if self.paper else plan

    def _check_owners(self) -> None:
        """Refuse what is proven for one row alone."""
        settled = {
            "paper": (self.paper, not self.paper),
            "relation": (self.relation, self.relation == "withhold"),
            "sampler": (self._sampler, self._sampler == "senders"),
            "delivery": (self.delivery, self.delivery in (None, 1.0)),
        }
        for name, (value, fits) in settled.items():
            if not fits:
                raise UnprovenError(
                    f"The '{name}' must be left out for owners of several nodes: its proof is for "
                    f"one. Got {value!r} instead; leave it out, or keep one node of each owner "
                    "with graphveil.cap_owners(data, 1)."
                )

    def _claim(self, plan: Plan) -> Plan:
        """With the paper's batches, thresholds, number of steps and claim."""
        read_off = not isinstance(self.max_grad_norm, Mapping)
        facts, cap, delta = plan.facts, self._paper_cap, plan.delta
        noise = self._paper_noise(facts, delta)
        steps = replace(
            plan.part("weights"),
            count=self._paper_steps(facts, noise, delta),
            clipping="per_layer",
            max_grad_norm=None if read_off else self.max_grad_norm,
        )
        claim = CLAIMS["daigavane"](
            nodes=facts.num_train,
            batch=steps.batch,
            max_degree=cap,
            noise_ratio=noise / (2 * (cap + 1)),
            steps=steps.count,
            delta=delta,
        )
        parameters = self.network(facts).num_parameters
        numbers = {
            "steps": steps.count,
            "batch_size": steps.batch,
            "sample_rate": steps.rate,
            "noise_ratio": noise / (2 * (cap + 1)),
            "signal_to_noise": signal_to_noise(steps.batch, steps.noise_multiplier, parameters),
        }
        return replace(
            plan,
            parts=(steps,),
            void_because=(*plan.void_because, *((_READ_OFF,) if read_off else ())),
            claim=claim.on_certificate(_LAYERS_FLAW if self._sampler != "printed" else None),
            details={**plan.details, **numbers},
        )

    # --- the paper's mechanism -------------------------------------------------------------------

    @property
    def _sampler(self) -> str:
        return self.sampler or ("printed" if self.paper else "senders")

    @property
    def _sampler_flaw(self) -> tuple[str, ...]:
        """Why nothing is proven for what the sampler keeps, if nothing is."""
        if self._sampler == "printed":
            return (_SHARED_PASS,)
        withheld = self.unit == "node" and self.relation == "withhold"
        return () if self._sampler == "senders" or withheld else (_SHARED_LENGTH,)

    def _check_paper_settings(self) -> None:
        """Refuse settings of the paper's mechanism that would not be looked at."""
        if self._sampler != "senders" and self.num_layers != 1:
            raise UnprovenError(
                f"The sampler {self._sampler!r} must have one layer to sample for. Got "
                f"num_layers={self.num_layers} instead; take the sampler 'senders'."
            )
        given = {
            "clip_factor": None if self.clip_factor == 1 else self.clip_factor,
            "noise_ratio": self.noise_ratio,
            "batch_size": self.batch_size,
        }
        for name, value in given.items():
            if value is not None and not self.paper:
                raise InvalidInputError(
                    f"The '{name}' parameter must be left out unless 'paper' is true. Got "
                    f"{value!r} instead; without it the noise follows from epsilon, and batches "
                    "from 'sample_rate'."
                )
        if not self.paper or self.max_grad_norm == setting_fields(DPGNN)["max_grad_norm"].default:
            return
        if not isinstance(self.max_grad_norm, Mapping) or self.clip_factor != 1:
            raise InvalidInputError(
                "With 'paper' true 'max_grad_norm' must be a table of thresholds by layer, without "
                f"a 'clip_factor'. Got {self.max_grad_norm!r} instead; leave it out, and the "
                "thresholds are 'clip_factor' times the quantiles."
            )

    @property
    def delivery_in_use(self) -> float:
        """The probability with which a step delivers a message: 1 where another is not proven."""
        if self.delivery is not None:
            return self.delivery
        # Full batches hide no coin.
        proven = not self._undelivered and self.sample_rate < 1
        return _DELIVERY if proven else 1.0

    @property
    def _undelivered(self) -> str | None:
        """The setting for which no coins are proven, or for which they make no sense."""
        settled = {
            "num_layers": (self.num_layers, self.num_layers == 1),
            "unit": (self.unit, self.unit == "node"),
            "relation": (self.relation, self.relation == "withhold"),
            "sampler": (self._sampler, self._sampler == "senders"),
            "paper": (self.paper, not self.paper),
            "sender_cap": (self.sender_cap, self.sender_cap is not None),
            "conv": (self.conv, self.conv != "gin"),  # its sums must be as long in prediction
        }
        return next(
            (f"{name}={value!r}" for name, (value, fits) in settled.items() if not fits), None
        )

    def _check_delivery(self) -> None:
        """Refuse coins where what they save is not proven."""
        if self.delivery_in_use < 1 and (other := self._undelivered):
            raise UnprovenError(
                "A 'delivery' below 1 must go with one layer that takes means, the unit 'node' "
                "withheld, a 'sender_cap' and the sampler 'senders', for which its rate is proven. "
                f"Got {self.delivery:g} with {other} instead; set delivery=1."
            )

    @property
    def _paper_cap(self) -> int:
        if self.sender_cap is None:
            raise InvalidInputError("The paper's sampler needs a 'sender_cap', its K. Got None.")
        return self.sender_cap

    def _batch(self, facts: Facts) -> int:
        if self.batch_size is None:
            return max(1, round(self.sample_rate * facts.num_train))
        return _validate.integer("batch_size", self.batch_size, f"[1, {facts.num_train}]")

    def _paper_multiplier(self, facts: Facts, delta: float) -> float:
        """The paper adds sigma C_l to layer l: sigma / sqrt(L), as one vector of L layers."""
        return self._paper_noise(facts, delta) / self.network(facts).num_blocks ** 0.5

    def _theorem(self, facts: Facts, delta: float) -> Callable[[float, int], float]:
        """Theorem 1's epsilon for a noise, in units of C_l, and a number of steps."""
        if self.num_layers != 1 or self.unit != "node" or self.relation != "withhold":
            raise UnprovenError(
                "The paper's Theorem 1 is about one layer and nodes. Got "
                f"num_layers={self.num_layers}, unit={self.unit!r}, relation={self.relation!r}; "
                "leave out 'paper', which has bounds for these."
            )
        cap, batch = self._paper_cap, self._batch(facts)
        _validate.integer("sender_cap", cap, f"[1, {facts.num_train - 1}]")
        return lambda noise, steps: daigavane_epsilon(
            facts.num_train, batch, cap, noise, steps, delta
        )

    def _paper_noise(self, facts: Facts, delta: float) -> float:
        """The noise, in units of C_l: lambda's, or that for which Theorem 1 claims ``epsilon``."""
        claimed = self._theorem(facts, delta)
        if self.noise_ratio is not None:
            return 2 * (self._paper_cap + 1) * self.noise_ratio
        return claimed_noise(
            lambda noise: claimed(noise, self.steps),
            self.epsilon,
            1e-2,
            1e6,
            "Theorem 1 must claim the 'epsilon' for some noise from 0.01 to 1e+06 thresholds. Got "
            f"{self.epsilon:g} over {self.steps} steps instead; ask for another epsilon, or leave "
            "out 'paper'.",
        )

    def _paper_steps(self, facts: Facts, noise: float, delta: float) -> int:
        """All steps, or with lambda given as many as Theorem 1 claims ``epsilon`` for."""
        claimed = self._theorem(facts, delta)
        if self.noise_ratio is None or claimed(noise, self.steps) <= self.epsilon:
            return self.steps
        if (least := claimed(noise, 1)) > self.epsilon:
            raise BudgetError(
                f"Theorem 1 claims an epsilon of {least:.4g} for one step with noise_ratio="
                f"{self.noise_ratio:g}, which must be within 'epsilon'. Got {self.epsilon:g} "
                "instead; ask for more noise, or a larger epsilon."
            )
        within, beyond = 1, self.steps
        while beyond - within > 1:
            middle = (within + beyond) // 2
            if claimed(noise, middle) <= self.epsilon:
                within = middle
            else:
                beyond = middle
        return within

    # --- training --------------------------------------------------------------------------------

    def _train(self, execution: Execution, data: Data) -> nn.Module:
        from graphveil.graph.caps import cap_senders
        from graphveil.graph.lists import Lists
        from graphveil.graph.stored import edges_of
        from graphveil.methods.terms import node_losses

        facts = execution.plan.facts
        if self.public_degree is not None:
            nodes = len(data.x)
            edges = edges_of(data)
            simple = edges
            if not isinstance(edges, Lists):
                simple = cap_senders(edges, nodes, None, seed=self.seed)
            check_degrees(simple, nodes, self.public_degree)
        steps = execution.plan.part("weights")
        losses = node_losses(self.task(facts), execution.class_weights)
        network = self.build(facts)
        terms = self.terms(data) if steps.delivery == 1 else self._delivered(data, execution.rng)
        thresholds = None
        if steps.max_grad_norm is None:
            quantiles = _quantiles(network, terms, losses)
            thresholds = {name: self.clip_factor * value for name, value in quantiles.items()}
        execution.train(steps, network, terms, losses, thresholds)
        return network

    def terms(self, data: Data) -> Any:
        """The loss terms to draw from."""
        from graphveil.methods.terms import node_terms

        messages, rows = self.read_in_training(data), self.prepare(data)
        mixed = self._mixes_sizes
        return node_terms(rows, data, messages, self.num_layers, side_by_side=mixed)

    @property
    def _mixes_sizes(self) -> bool:
        """Whether neighbourhoods of several sizes are computed together."""
        return self.conv != "gat"

    def _delivered(self, data: Data, rng: SecretStream) -> Any:
        """The loss terms to draw from, where messages arrive by coins."""
        from graphveil.graph.delivery import DeliveredTerms, Delivery
        from graphveil.graph.stored import edges_of

        assert self.sender_cap is not None
        how = Delivery(
            sender_cap=self.sender_cap,
            probability=self.delivery_in_use,
            receiver_cap=self.receiver_cap,
            normalisation=self.normalisation,
            seed=self.seed,
            side_by_side=self._mixes_sizes,
        )
        roots = data.train_mask.nonzero().flatten()
        return DeliveredTerms(self.prepare(data), data.y, edges_of(data), roots, how, rng)

    # --- prediction ------------------------------------------------------------------------------

    def prepare(self, data: Data) -> Any:
        """The rows that the network reads."""
        return Features.of(self).read(data)

    def outputs(self, data: Data, mode: str) -> Tensor:
        """Every neighbour is read, as in the paper.

        GIN adds them up, and is shown no longer sums than those it was trained on, unless the
        sampler is the paper's.
        """
        from graphveil.methods.terms import every_message, on_messages

        messages = (
            self.capped_messages(data)
            if self.conv == "gin" and self._sampler == "senders"
            else every_message(data, self.seed, self.normalisation)
        )
        return on_messages(self.network_, self.prepare(data), messages)

    noisy_outputs = hear_neighbours


def _quantiles(network: nn.Module, terms: Any, losses: Any) -> dict[str, float]:
    """The paper's thresholds: where three quarters of the layers' gradient norms lie below."""
    import torch

    from graphveil.grads.clipped import ClippedSum

    norms: dict[str, list[Tensor]] = {}

    class Watch:
        """A clipping that looks and does nothing."""

        def factors(self, squared_norms: Any) -> dict[str, Tensor]:
            for name, values in squared_norms.items():
                norms.setdefault(name, []).append(values.sqrt())
            return {name: torch.zeros_like(values) for name, values in squared_norms.items()}

        def scales(self, blocks: list[str]) -> dict[str, float]:
            return dict.fromkeys(blocks, 1.0)

    batches = terms.batches(torch.arange(min(len(terms), _LOOKED_AT)))
    ClippedSum(network, losses, Watch())(tuple(batch) for batch in batches)
    return {
        name: max(float(torch.cat(values).quantile(0.75)), 1e-6) for name, values in norms.items()
    }
