"""Node-level private GNNs: sampled neighbourhoods, clipped gradients, senders capped.

The network is Daigavane et al.'s; what is charged is proven (docs/guarantees/node.md).
``paper=True`` runs their recipe instead, and shows the epsilon they claim beside what can be proven
for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, final

from graphveil import _validate
from graphveil._errors import InvalidInputError, UnprovenError
from graphveil.graph.influence import cap_under_removal, influence
from graphveil.methods.base import Method
from graphveil.methods.budget import claimed_noise, plan_steps
from graphveil.methods.features import Features
from graphveil.methods.inference import Disjoint, Noisy, Visible, check_degrees, hear_neighbours
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
from graphveil.nn.descriptions import NodeNetwork
from graphveil.privacy.claims import CLAIMS, daigavane_epsilon

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch_geometric.data import Data

    from graphveil.graph.messages import Messages
    from graphveil.methods.execution import Execution

_SHARED_PASS = (
    "the paper's sampler bounds both ends of an edge in one pass, so that one node changes more "
    "neighbourhoods than its cap says; no bound is proven"
)
_READ_OFF = "the clipping thresholds were read off the training gradients"
_LAYERS_FLAW = (
    "The paper charges for one layer's threshold; the clipped gradient of L layers is one vector "
    "of norm sqrt(L) in units of the thresholds."
)


@final
@settings()
class DPGNN(Method, FeatureSettings, StepSettings, Budget):
    """A GCN, GIN, GAT or SAGE of ``num_layers`` layers whose weights protect every node.

    What graph information costs follows from ``sender_cap``: one row is read in at most
    1 + K + ... + K^L loss terms. ``paper=True`` takes the paper's sampler unless told otherwise,
    its fixed-size batches, its noise and its thresholds (75 % quantiles of the gradient norms of
    the first weights, unless ``max_grad_norm`` gives one for each layer).

    *Guarantee*: the weights are (epsilon, delta)-private for one unit. Public: :class:`Facts`.
    """

    name: ClassVar[str] = "dp-gnn"
    baseline: ClassVar[str | None] = "dp-mlp"
    compared: ClassVar[bool] = True
    units: ClassVar[tuple[str, ...]] = ("node", "edge")
    inferences = (Visible(), Noisy(), Disjoint())
    scored_by: ClassVar[str] = "neighbourhood"

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
    receiver_cap: int | None = setting("Messages that a node may read; free.", 10, "[1, inf)")
    unit: Literal["node", "edge"] = setting("What is protected.", "node")
    relation: Literal["withhold", "remove"] = setting(
        "How neighbouring data differ; 'remove' is the strict one, and needs 'public_degree'.",
        "withhold",
    )
    public_degree: int | None = setting(
        "A public rule on degrees that the data is known to obey.", None, "[1, inf)"
    )
    sampler: Literal["senders", "paper"] | None = setting(
        "How messages are capped: 'senders', which has a proven epsilon, or the paper's "
        "Algorithm 2, which has none.",
        None,
    )
    paper: bool = setting("Run the paper's recipe, and show the epsilon it claims.", False)

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
        return influence(
            unit=self.unit_for(facts),
            num_layers=self.num_layers,
            sender_cap=self.sender_cap_in_use,
            num_train=facts.num_train,
            normalisation=self.normalisation,
            relation=self.relation,
            public_degree=self.public_degree,
        )

    def read_in_training(self, data: Data) -> Messages:
        """The messages that loss terms read."""
        from graphveil.graph.caps import cap_receivers, cap_senders
        from graphveil.graph.daigavane import sample_paper
        from graphveil.graph.messages import weigh_messages

        nodes = len(data.x)
        if self._sampler == "paper":
            kept = sample_paper(data.edge_index, nodes, self._paper_cap, seed=self.seed)
        else:
            kept = cap_senders(data.edge_index, nodes, self.sender_cap_in_use, seed=self.seed)
        read = kept
        if self.receiver_cap is not None:
            read = cap_receivers(kept, nodes, self.receiver_cap, seed=self.seed)
        return weigh_messages(read, nodes, self.normalisation, sender_lists=kept)

    # --- plan ------------------------------------------------------------------------------------

    def _plan(self, facts: Facts) -> Plan:
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
            ),
            relation=self.relation,
            public_degree=self.public_degree,
            inference=(self.inferences[0].says(self, self.unit),),
            void_because=(_SHARED_PASS,) if self._sampler == "paper" else (),
            public=("whether edges have a direction",) if self.unit == "edge" else (),
        )
        return self._claim(plan) if self.paper else plan

    def _claim(self, plan: Plan) -> Plan:
        """With the paper's batches, thresholds and claim."""
        read_off = not isinstance(self.max_grad_norm, Mapping)
        steps = plan.part("weights")
        steps = replace(
            steps, clipping="per_layer", max_grad_norm=None if read_off else self.max_grad_norm
        )
        facts, cap = plan.facts, self._paper_cap
        claim = CLAIMS["daigavane"](
            nodes=facts.num_train,
            batch=steps.batch,
            max_degree=cap,
            noise_ratio=self._paper_noise(facts, plan.delta) / (2 * (cap + 1)),
            steps=self.steps,
            delta=plan.delta,
        )
        return replace(
            plan,
            parts=(steps,),
            void_because=(*plan.void_because, *((_READ_OFF,) if read_off else ())),
            claim=claim.on_certificate(_LAYERS_FLAW if self._sampler == "senders" else None),
            details={**plan.details, "batch_size": steps.batch},
        )

    # --- the paper's recipe ----------------------------------------------------------------------

    @property
    def _sampler(self) -> str:
        return self.sampler or ("paper" if self.paper else "senders")

    @property
    def _paper_cap(self) -> int:
        if self.sender_cap is None:
            raise InvalidInputError("The paper's sampler needs a 'sender_cap', its K. Got None.")
        return self.sender_cap

    def _batch(self, facts: Facts) -> int:
        return max(1, round(self.sample_rate * facts.num_train))

    def _paper_multiplier(self, facts: Facts, delta: float) -> float:
        """The paper adds sigma C_l to layer l: sigma / sqrt(L), as one vector of L layers."""
        return self._paper_noise(facts, delta) / self.network(facts).num_blocks ** 0.5

    def _paper_noise(self, facts: Facts, delta: float) -> float:
        """The noise, in units of C_l, for which Theorem 1 claims ``epsilon``."""
        if self.num_layers != 1 or self.unit != "node" or self.relation != "withhold":
            raise UnprovenError(
                "The paper's Theorem 1 is about one layer and nodes. Got "
                f"num_layers={self.num_layers}, unit={self.unit!r}, relation={self.relation!r}; "
                "leave out 'paper', which has bounds for these."
            )
        cap, batch = self._paper_cap, self._batch(facts)
        _validate.integer("sender_cap", cap, f"[1, {facts.num_train - 1}]")
        return claimed_noise(
            lambda noise: daigavane_epsilon(facts.num_train, batch, cap, noise, self.steps, delta),
            self.epsilon,
            1e-2,
            1e6,
            "Theorem 1 must claim the 'epsilon' for some noise from 0.01 to 1e+06 thresholds. Got "
            f"{self.epsilon:g} over {self.steps} steps instead; ask for another epsilon, or leave "
            "out 'paper'.",
        )

    # --- training --------------------------------------------------------------------------------

    def _train(self, execution: Execution, data: Data) -> nn.Module:
        from graphveil.graph.caps import cap_senders
        from graphveil.methods.terms import node_losses

        facts = execution.plan.facts
        if self.public_degree is not None:
            nodes = len(data.x)
            simple = cap_senders(data.edge_index, nodes, None, seed=self.seed)
            check_degrees(simple, nodes, self.public_degree)
        network, terms = self.build(facts), self.terms(data)
        losses, steps = node_losses(self.task(facts)), execution.plan.part("weights")
        thresholds = None
        if steps.max_grad_norm is None:
            thresholds = _quantiles(network, terms, losses)
        execution.train(steps, network, terms, losses, thresholds)
        return network

    def terms(self, data: Data) -> Any:
        """The loss terms to draw from."""
        from graphveil.methods.terms import node_terms

        return node_terms(self.prepare(data), data, self.read_in_training(data), self.num_layers)

    # --- prediction ------------------------------------------------------------------------------

    def prepare(self, data: Data) -> Tensor:
        """The rows that the network reads."""
        return Features.of(self).prepare(data.x)

    def outputs(self, data: Data, mode: str) -> Tensor:
        """Every neighbour is read, but by GIN: its sums would leave the range it was trained on."""
        from graphveil.methods.terms import every_message

        messages = (
            self.read_in_training(data)
            if self.conv == "gin"
            else every_message(data, self.seed, self.normalisation)
        )
        return self.network_.on_graph(self.prepare(data), messages)

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

    batches = terms.batches(torch.arange(min(len(terms), 2000)))
    ClippedSum(network, losses, Watch())(tuple(batch) for batch in batches)
    return {
        name: max(float(torch.cat(values).quantile(0.75)), 1e-6) for name, values in norms.items()
    }
