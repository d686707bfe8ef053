"""Node-level private GNNs: sampled neighbourhoods, clipped gradients, senders capped.

The network is Daigavane et al.'s; what is charged is proven (docs/guarantees/node.md).
``paper=True`` runs their recipe instead, and shows the epsilon they claim beside what can be proven
for it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from scipy import optimize
from torch import Tensor
from torch_geometric.data import Data

from graphveil import _validate
from graphveil._errors import BudgetError, InvalidInputError, UnprovenError
from graphveil.grads.clipped import ClippedSum
from graphveil.graph.caps import cap_receivers, cap_senders
from graphveil.graph.daigavane import sample_paper
from graphveil.graph.influence import cap_under_removal, influence
from graphveil.graph.messages import Messages, normalised
from graphveil.methods.base import Facts, Plan
from graphveil.methods.node import SteppedNodeMethod, check_degrees, rooted_losses
from graphveil.nn import NodeClassifier
from graphveil.privacy.claims import CLAIMS, daigavane_epsilon
from graphveil.privacy.events import RevealedCountGaussianDpEvent
from graphveil.privacy.guarantee import Claimed

SAMPLERS = ("senders", "paper")


@dataclass(kw_only=True)
class DPGNN(SteppedNodeMethod):
    """A GCN, GIN, GAT or SAGE of ``num_layers`` layers whose weights protect every node.

    ``sender_cap`` is how many messages a node may send, and what graph information costs: one row
    is read in at most 1 + K + ... + K^L loss terms. ``receiver_cap`` bounds what a node reads, and
    is free. ``unit`` is ``node`` or ``edge``; ``relation="remove"`` is the strict one, and needs
    ``public_degree``, a rule on degrees that the data is known to obey.

    ``sampler="paper"`` is the paper's Algorithm 2, which has no proven epsilon; ``"senders"``, the
    default, has one. ``paper=True`` takes the paper's sampler unless told otherwise, its fixed-size
    batches, its noise and its thresholds (75 % quantiles of the gradient norms of the first
    weights, unless ``max_grad_norm`` gives one for each layer).

    *Guarantee*: the weights are (epsilon, delta)-private for one unit. Public: :class:`Facts`.
    """

    name: ClassVar[str] = "dp-gnn"

    conv: str = "gcn"
    num_layers: int = 1
    encoder_layers: int = 0
    decoder_layers: int = 1
    heads: int = 1
    attention: str = "additive"
    weights: str = "inverse-degree"
    sender_cap: int | None = 1
    receiver_cap: int | None = 10
    unit: str = "node"
    relation: str = "withhold"
    public_degree: int | None = None
    sampler: str | None = None
    paper: bool = False

    def _network(self, facts: Facts) -> NodeClassifier:
        _validate.choice("conv", self.conv, ("gcn", "gin", "gat", "sage"))
        return NodeClassifier(
            self._columns(facts),
            self.hidden_channels,
            facts.num_classes,
            self.conv,
            _validate.integer("num_layers", self.num_layers, "[1, 10]"),
            self.encoder_layers,
            self.decoder_layers,
            self.activation,
            heads=self.heads,
            attention=self.attention,
        )

    # --- what one unit touches -------------------------------------------------------------------

    def _relation(self) -> tuple[str, int | None]:
        return self.relation, self.public_degree

    @property
    def _cap(self) -> int | None:
        """The sender cap that runs: none where it would only cost."""
        if self.unit == "edge" and self.num_layers == 1:
            return None
        if self.relation == "remove" and self.public_degree is not None:
            return cap_under_removal(self.num_layers, self.sender_cap, self.public_degree)
        return self.sender_cap

    def _influence(self, facts: Facts) -> tuple[int, int]:
        return influence(
            unit=self._unit(facts),
            num_layers=self.num_layers,
            sender_cap=self._cap,
            num_train=facts.num_train,
            weights=self.weights,
            relation=self.relation,
            public_degree=self.public_degree,
        )

    def _read_in_training(self, data: Data) -> tuple[Messages, int]:
        nodes = len(data.x)
        if self._sampler == "paper":
            kept = sample_paper(data.edge_index, nodes, self._paper_cap, seed=self.seed)
        else:
            kept = cap_senders(data.edge_index, nodes, self._cap, seed=self.seed)
        read = kept
        if self.receiver_cap is not None:
            read = cap_receivers(kept, nodes, self.receiver_cap, seed=self.seed)
        return normalised(read, nodes, self.weights, sender_lists=kept), self.num_layers

    def _terms(self, data: Data) -> Any:
        if self.public_degree is not None:
            nodes = len(data.x)
            simple = cap_senders(data.edge_index, nodes, None, seed=self.seed)
            check_degrees(simple, nodes, self.public_degree)
        return super()._terms(data)

    # --- prediction ------------------------------------------------------------------------------

    def _logits(self, x: Tensor, data: Data) -> Tensor:
        """Every neighbour is read, but by GIN: its sums would leave the range it was trained on."""
        if self.conv == "gin":
            messages, _ = self._read_in_training(data)
        else:
            edges = cap_senders(data.edge_index, len(x), None, seed=self.seed)
            messages = normalised(edges, len(x), self.weights)
        return self.network_.on_graph(x, messages)

    # --- the paper's recipe ----------------------------------------------------------------------

    @property
    def _sampler(self) -> str:
        return self.sampler or ("paper" if self.paper else "senders")

    @property
    def _target(self) -> float:
        return math.inf if self.paper else self.epsilon  # there it is a claim, which binds nothing

    @property
    def _by_layer(self) -> bool:
        return self.paper or super()._by_layer

    def _check_settings(self) -> None:
        super()._check_settings()
        _validate.choice("unit", self.unit, ("node", "edge"))
        _validate.choice("sampler", self._sampler, SAMPLERS)
        _validate.choice("attention", self.attention, ("additive", "dot"))
        _validate.integer("heads", self.heads, "[1, inf)")
        if self.receiver_cap is not None:
            _validate.integer("receiver_cap", self.receiver_cap, "[1, inf)")

    @property
    def _paper_cap(self) -> int:
        if self.sender_cap is None:
            raise InvalidInputError("The paper's sampler needs a 'sender_cap', its K. Got None.")
        return self.sender_cap

    def _batch(self, facts: Facts) -> int:
        rate = _validate.number("sample_rate", self.sample_rate, "(0, 1]")
        return max(1, round(rate * facts.num_train))

    def plan(self, facts: Facts) -> Plan:
        plan = super().plan(facts)
        if plan.unit != "node":
            plan = replace(plan, public=("whether edges have a direction",))
        void = []
        if self._sampler == "paper":
            void.append(
                "the paper's sampler bounds both ends of an edge in one pass, so that one node "
                "changes more neighbourhoods than its cap says; no bound is proven"
            )
        if not self.paper:
            return replace(plan, void_because=tuple(void))
        if not isinstance(self.max_grad_norm, Mapping):
            void.append("the clipping thresholds were read off the training gradients")
        claim = CLAIMS["daigavane"](
            nodes=facts.num_train,
            batch=self._batch(facts),
            max_degree=self._paper_cap,
            noise_ratio=self._paper_noise(facts, plan.delta) / (2 * (self._paper_cap + 1)),
            steps=self.steps,
            delta=plan.delta,
        )
        flaw = claim.flaw
        if self._sampler == "senders":
            flaw = (
                "The paper charges for one layer's threshold; the clipped gradient of L layers is "
                "one vector of norm sqrt(L) in units of the thresholds."
            )
        return replace(
            plan,
            void_because=tuple(void),
            claim=Claimed(epsilon=claim.claimed_epsilon, source=claim.paper, why_it_differs=flaw),
            details={**plan.details, "batch_size": self._batch(facts)},
        )

    def _noise_multiplier(self, facts: Facts, delta: float) -> float:
        if not self.paper:
            return super()._noise_multiplier(facts, delta)
        # The paper adds sigma C_l to layer l; as one vector of L layers that is sigma / sqrt(L).
        layers = sum(
            any(True for _ in layer.parameters(recurse=False))
            for layer in self._made(facts).modules()
        )
        return self._paper_noise(facts, delta) / layers**0.5

    def _paper_noise(self, facts: Facts, delta: float) -> float:
        """The noise, in units of C_l, for which Theorem 1 claims ``epsilon``."""
        if self.num_layers != 1 or self.unit != "node" or self.relation != "withhold":
            raise UnprovenError(
                "The paper's Theorem 1 is about one layer and nodes. Got "
                f"num_layers={self.num_layers}, unit={self.unit!r}, relation={self.relation!r}; "
                "leave out 'paper', which has bounds for these."
            )
        epsilon = _validate.number("epsilon", self.epsilon, "(0, inf)")
        _validate.integer("steps", self.steps, "[1, 1e9]")
        _validate.integer("sender_cap", self._paper_cap, f"[1, {facts.num_train - 1}]")
        quietest, loudest = 1e-2, 1e6

        def excess(noise: float) -> float:
            claimed = daigavane_epsilon(
                facts.num_train, self._batch(facts), self._paper_cap, noise, self.steps, delta
            )
            return claimed - epsilon

        if not excess(loudest) < 0 < excess(quietest):
            raise BudgetError(
                f"Theorem 1 must claim the 'epsilon' for some noise from {quietest:g} to "
                f"{loudest:g} thresholds. Got {epsilon:g} over {self.steps} steps instead; ask for "
                "another epsilon, or leave out 'paper'."
            )
        return float(optimize.brentq(excess, quietest, loudest, xtol=1e-6))

    def _step_event(self, facts: Facts, noise: float) -> Any:
        if not self.paper:
            return super()._step_event(facts, noise)
        removed, altered = self._influence(facts)
        return RevealedCountGaussianDpEvent(
            noise_multiplier=noise,
            removed=removed,
            altered=altered,
            population=facts.num_train,
            batch=self._batch(facts),
        )

    def _step_settings(self, network: Any, terms: Any) -> dict[str, Any]:
        if not self.paper:
            return super()._step_settings(network, terms)
        thresholds = self.max_grad_norm
        if not isinstance(thresholds, Mapping):
            thresholds = _quantiles(network, terms)
        return {
            "batch_size": self._batch(self.plan_.facts),
            "fixed_size": True,
            "clipping": "per_layer",
            "max_grad_norm": thresholds,
        }


class _Norms:
    """A clipping that looks and does nothing."""

    def __init__(self) -> None:
        self.found: dict[str, list[Tensor]] = {}

    def factors(self, squared_norms: Any) -> dict[str, Tensor]:
        for name, values in squared_norms.items():
            self.found.setdefault(name, []).append(values.sqrt())
        return {name: torch.zeros_like(values) for name, values in squared_norms.items()}

    def scales(self, blocks: list[str]) -> dict[str, float]:
        return dict.fromkeys(blocks, 1.0)


def _quantiles(network: NodeClassifier, terms: Any) -> dict[str, float]:
    """The paper's thresholds: where three quarters of the layers' gradient norms lie below."""
    norms = _Norms()
    batches = terms.batches(torch.arange(min(len(terms), 2000)))
    ClippedSum(network, rooted_losses, norms)(tuple(batch) for batch in batches)
    return {
        name: max(float(torch.cat(values).quantile(0.75)), 1e-6)
        for name, values in norms.found.items()
    }
