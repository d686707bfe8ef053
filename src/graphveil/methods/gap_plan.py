"""What GAP will run and cost: its settings, its network, and how the budget is split.

What the plan says is run in :mod:`graphveil.methods.gap`. Proofs: docs/guarantees/gap.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from scipy import optimize
from torch import Tensor, nn

from graphveil import _validate
from graphveil._errors import BudgetError, InvalidInputError, UnprovenError
from graphveil.graph.choices import CAPS, SIMILARITIES
from graphveil.graph.influence import sensitivity
from graphveil.mechanisms import Gaussian
from graphveil.methods.base import Facts, Plan
from graphveil.methods.node import PrivateNodeMethod
from graphveil.methods.private import LOUDEST, OWN_ONLY, step_noise
from graphveil.methods.training import prepared
from graphveil.nn.gap import (
    COMBINATIONS,
    Encoder,
    GAPNetwork,
    HopHead,
    PairAttention,
    ResidualHead,
    SparseRows,
    SumHead,
)
from graphveil.nn.mlp import MLP
from graphveil.privacy.accounting import calibrate
from graphveil.privacy.claims import CLAIMS, Claim
from graphveil.privacy.events import SampledGaussianDpEvent, composed, repeated
from graphveil.privacy.guarantee import Charge, Claimed

MESSAGES = ("encoding", "label", "evidence")
WEIGHTINGS = ("none", "similarity", "attention")

# How the budget is split where nobody says otherwise: shares of a squared Gaussian mu.
_SHARES = {"encoder": 1.0, "attention": 1.0, "aggregation": 4.0, "classifier": 3.0}
PAID_FOR = {
    "encoder": "training of the encoder",
    "attention": "training of the attention",
    "aggregation": "noisy sums over the neighbours (the cache)",
    "classifier": "training of the classifier",
}
_CACHED = {
    True: "cached: a prediction reads its own node's row and the noisy sums that were cached, at "
    "no further cost; it is shown to its own node only",
    False: "cached: a prediction reads features, which are public under this unit, and the noisy "
    "sums that were cached, at no further cost",
}


@dataclass(kw_only=True)
class PlannedGAP(PrivateNodeMethod):
    """The settings of :class:`~graphveil.methods.gap.GAP`, and its plan."""

    unit: str = "node"
    messages: str | None = None
    weighting: str = "none"
    similarity: str = "sigmoid"
    hops: int | None = None
    combine: str = "concat"
    cap: str | None = None
    sender_cap: int | None = None
    public_edges: int | None = None
    encoder_share: float | None = None
    attention_share: float | None = None
    aggregation_share: float | None = None
    encoder_layers: int = 1
    averaged: float = 0.5
    activation: str = "auto"
    open_steps: int = 300
    open_learning_rate: float = 0.01
    dropout: float = 0.4
    weight_decay: float = 5e-4
    folds: int = 5
    paper: bool = False

    # --- what the settings come to ---------------------------------------------------------------

    @property
    def _messages(self) -> str:
        if self.messages is not None:
            return self.messages
        if self.paper:
            return "encoding"
        return "label" if self.unit == "node" else "evidence"

    @property
    def _hops(self) -> int:
        return (2 if self.paper else 1) if self.hops is None else self.hops

    @property
    def _cap(self) -> str:
        if self.cap is not None:
            return self.cap
        return "hard" if self.paper or self.weighting == "attention" else "soft"

    @property
    def _sender_cap(self) -> int:
        return (1 if self._cap == "soft" else 50) if self.sender_cap is None else self.sender_cap

    @property
    def _encodes(self) -> bool:
        """Whether there is an encoder. Labels need none, and its budget is saved."""
        return self.unit != "node" or self._messages != "label"

    @property
    def _folded(self) -> bool:
        """Whether beliefs about training nodes come from encoders that have not seen them."""
        return self.unit != "node" and self._messages != "encoding"

    @property
    def _activation(self) -> str:
        if self.activation != "auto":
            return self.activation
        return "tanh" if self.unit == "node" else "relu"

    @property
    def _largest_weight(self) -> float:
        return SIMILARITIES[self.similarity] if self.weighting == "similarity" else 1.0

    def _bound(self, unit: str) -> float:
        return sensitivity(unit, self._largest_weight, self._sender_cap)

    def _check_settings(self) -> None:
        super()._check_settings()
        _validate.choice("unit", self.unit, ("node", "edge", "edge-directed", "edge-undirected"))
        _validate.choice("messages", self._messages, MESSAGES)
        _validate.choice("weighting", self.weighting, WEIGHTINGS)
        _validate.choice("similarity", self.similarity, tuple(SIMILARITIES))
        _validate.choice("combine", self.combine, COMBINATIONS)
        _validate.choice("cap", self._cap, CAPS)
        _validate.integer("hops", self._hops, "[1, 100]")
        _validate.integer("sender_cap", self._sender_cap, "[1, 1e9]")
        _validate.integer("encoder_layers", self.encoder_layers, "[1, 10]")
        _validate.integer("steps", self.steps, "[1, 1e9]")
        _validate.integer("open_steps", self.open_steps, "[1, 1e9]")
        _validate.integer("folds", self.folds, "[2, 100]")
        _validate.number("open_learning_rate", self.open_learning_rate, "(0, inf)")
        _validate.number("weight_decay", self.weight_decay, "[0, inf)")
        _validate.number("dropout", self.dropout, "[0, 1)")
        if self.public_edges is not None:
            _validate.integer("public_edges", self.public_edges, "[1, 1e18]")
        if self.weighting == "attention" and self._cap == "soft" and self.unit == "node":
            raise UnprovenError(
                "Under the unit 'node' attention needs cap='hard': its training alters the loss "
                "term of every receiver, and a soft cap does not bound how many there are."
            )
        if self.paper and self.weighting == "similarity" and self.similarity != "sigmoid":
            raise UnprovenError(
                "The paper weighs by a sigmoid of the cosine. Got similarity="
                f"{self.similarity!r} with paper=True; leave one of the two out."
            )
        if self.paper and self._messages != "encoding":
            raise UnprovenError(
                "The papers send encodings. Got messages="
                f"{self.messages!r} with paper=True; leave one of the two out."
            )

    def _units(self, facts: Facts) -> int:
        every = super()._units(facts)
        public = None if self.unit == "node" else self.public_edges
        return every if public is None else min(every, public)

    def _columns(self, facts: Facts) -> int:
        return facts.num_features if self.unit != "node" else super()._columns(facts)

    def _prepared(self, x: Tensor) -> Any:
        if self.unit == "node":
            return super()._prepared(x)
        # Features are public and nothing is trained on them with noise: every column stays.
        x = prepared(x, self.features, self.feature_scale, 1, x.shape[1], self.seed)
        return SparseRows(x) if (x != 0).float().mean() < 0.2 else x

    def _network(self, facts: Facts) -> Any:
        classes, hidden, columns = facts.num_classes, self.hidden_channels, self._columns(facts)
        dropout = 0.0 if self.unit == "node" else self.dropout
        hops, activation = self._hops, self._activation
        encoders = [
            Encoder(columns, hidden, classes, self.encoder_layers, activation, dropout)
            for _ in range((self.folds if self._folded else 1) if self._encodes else 0)
        ]
        width = hidden if self._messages == "encoding" else classes
        heads: list[nn.Module]
        if self._messages == "encoding":
            widths = [hidden] * (1 + hops)
            heads = [HopHead(widths, hidden, classes, self.combine, activation, dropout)]
        elif not self._encodes:
            heads = [MLP(columns + hops * classes, hidden, classes, 2, activation)]
        else:
            heads = [ResidualHead(classes, hops, hidden, activation, 0.75 * dropout)]
            heads += [SumHead(classes, hops)] if self.unit != "node" else []
        attention = [
            PairAttention(width, hidden, activation)
            for _ in range(hops if self.weighting == "attention" else 0)
        ]
        return GAPNetwork(encoders, attention, heads)

    # --- plan ------------------------------------------------------------------------------------

    def _influence(self, facts: Facts) -> tuple[int, int]:
        """Loss terms that encoder and classifier have of one node: its own."""
        return 1, 0

    def _attention_influence(self, unit: str) -> tuple[int, int]:
        """The loss terms of one unit: its own, and those of the receivers of its messages."""
        if unit == "node":
            return 1, self._sender_cap
        return 0, 1 if unit == "edge-directed" else 2

    def _shares(self) -> dict[str, float]:
        """The parts that cost something, and their shares of the budget, which add up to 1."""
        parts = ["aggregation"]
        if self.unit == "node":
            parts += ["classifier", *(["encoder"] if self._encodes else [])]
        if self.weighting == "attention":
            parts.append("attention")
        given = {}
        for part in ("encoder", "attention", "aggregation"):
            share = getattr(self, f"{part}_share")
            if share is None:
                continue
            if part not in parts:
                raise InvalidInputError(
                    f"The '{part}_share' must be left out where there is no such part to pay for. "
                    f"Got {share!r} instead; this method pays for {', '.join(sorted(parts))}."
                )
            given[part] = _validate.number(f"{part}_share", share, "(0, 1]")
        usual = dict(_SHARES)
        if self.unit == "node":
            # The more there is to spend, the more of it pays where the noise is largest.
            usual["aggregation"] = 3.0 * self.epsilon**2 / 20
        rest = {part: usual[part] for part in parts if part not in given}
        left = 1.0 - sum(given.values())
        if (left <= 1e-9) != (not rest) or left < -1e-9:
            stated = ", ".join(f"{part}_share={share:g}" for part, share in given.items())
            raise InvalidInputError(
                "The shares of the budget must add up to 1 with what is left for "
                f"{', '.join(rest) or 'no other part'}. Got {stated} instead; "
                + (f"leave some for {', '.join(rest)}." if rest else "leave the shares out.")
            )
        return given | {part: left * rest[part] / sum(rest.values()) for part in rest}

    def _noises(self, facts: Facts, scale: float) -> dict[str, float]:
        """Every part's noise multiplier, when a Gaussian with the whole budget has ``scale``.

        A part with a share s gets the mu of a Gaussian s times as strong, squared. That is how the
        budget is *split*; what it costs is accounted.
        """
        found = {}
        for part, share in self._shares().items():
            if part == "aggregation":
                found[part] = min(scale * math.sqrt(self._hops / share), LOUDEST)
                continue
            passes = self._hops if part == "attention" else 1
            found[part] = step_noise(
                share / scale**2,
                self.sample_rate,
                self.steps * passes,
                self._step_influence(part, facts),
            )
        return found

    def _step_influence(self, part: str, facts: Facts) -> tuple[int, int]:
        if part == "attention":
            return self._attention_influence(self._unit(facts))
        return self._influence(facts)

    def _charges(self, facts: Facts, noises: dict[str, float]) -> tuple[Charge, ...]:
        charges = []
        for part in PAID_FOR:
            if part not in noises:
                continue
            if part == "aggregation":
                one = Gaussian(
                    noise_multiplier=noises[part], sensitivity=self._bound(self._unit(facts))
                ).event()
                event = composed(*[one] * self._hops)
            else:
                removed, altered = self._step_influence(part, facts)
                step = SampledGaussianDpEvent(
                    rate=self.sample_rate,
                    noise_multiplier=noises[part],
                    removed=removed,
                    altered=altered,
                )
                passes = self._hops if part == "attention" else 1
                event = composed(*[repeated(step, self.steps)] * passes)
            charges.append(Charge(paid_for=PAID_FOR[part], event=event))
        return tuple(charges)

    def plan(self, facts: Facts) -> Plan:
        self._check_settings()
        _validate.number("sample_rate", self.sample_rate, "(0, 1]")
        parameters = sum(p.numel() for p in self._made(facts).parameters())
        unit, delta = self._unit(facts), self._delta(facts)
        noises = self._noises(facts, self._scale(facts, delta))
        claim = self._claim(facts, delta, noises) if self.paper else None
        node, stepped = unit == "node", len(noises) > 1
        return Plan(
            method=self.name,
            facts=facts,
            unit=unit,
            delta=delta,
            charges=self._charges(facts, noises),
            details={
                "noise_multiplier": noises["aggregation"],
                "sensitivity": self._bound(unit),
                "hops": self._hops,
                **{f"{part}_noise": z for part, z in noises.items() if part != "aggregation"},
                **{f"{part}_share": share for part, share in self._shares().items()},
                **({"steps": self.steps, "sample_rate": self.sample_rate} if stepped else {}),
                "parameters": parameters,
            },
            released="model weights"
            if node
            else "model weights, noisy sums and predictions made from them",
            released_to=f"{OWN_ONLY}; the noisy sums to nobody" if node else "anybody",
            settings=self.get_params(deep=False),
            inference=(_CACHED[node],),
            claim=None
            if claim is None
            else Claimed(
                epsilon=claim.claimed_epsilon, source=claim.paper, why_it_differs=claim.flaw
            ),
        )

    def _scale(self, facts: Facts, delta: float) -> float:
        """The least noise for which all parts together fit the budget (or the paper's claim)."""
        epsilon = _validate.number("epsilon", self.epsilon, "(0, inf)")
        if not self.paper:
            return calibrate(
                lambda scale: composed(
                    *(each.event for each in self._charges(facts, self._noises(facts, scale)))
                ),
                epsilon=epsilon,
                delta=delta,
                safe=1e6,
                risky=1e-2,
            )

        def excess(log_scale: float) -> float:
            noises = self._noises(facts, math.exp(log_scale))
            return self._claim(facts, delta, noises).claimed_epsilon - epsilon

        low, high = math.log(1e-2), math.log(1e4)
        try:
            found = excess(high) < 0 < excess(low)
        except InvalidInputError:  # noise beyond what the claim's formula takes
            found = False
        if not found:
            raise BudgetError(
                "The paper must claim the 'epsilon' for some noise. Got "
                f"'epsilon' {epsilon:g} instead; ask for another, or leave out 'paper'."
            )
        return math.exp(optimize.brentq(excess, low, high, xtol=1e-12) + 1e-9)

    def _claim(self, facts: Facts, delta: float, noises: dict[str, float]) -> Claim:
        node = self.unit == "node"
        settings: dict[str, Any] = {
            "unit": "node" if node else "edge",
            "hops": self._hops,
            # The papers' unit of noise is one message, or sqrt(D) of them.
            "noise_multiplier": noises["aggregation"] * self._bound(self._unit(facts)),
            "delta": delta,
            "directed": self._unit(facts) == "edge-directed",
        }
        if node:
            settings |= {
                "max_degree": self._sender_cap,
                "encoder_noise": noises["encoder"],
                "classifier_noise": noises["classifier"],
                "rate": self.sample_rate,
                "steps": self.steps,
            }
        if self.weighting == "none":
            return CLAIMS["gap"](**settings)
        if self.weighting == "attention":
            settings |= {
                "attention_noise": noises["attention"],
                "attention_steps": self.steps,
                "rate": self.sample_rate,
            }
        return CLAIMS["shpilevskiy"](weighting=self.weighting, **settings)
