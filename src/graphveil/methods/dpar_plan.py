"""What DPAR will run and cost: its settings, its network, and how the budget is split.

What the plan says is run in :mod:`graphveil.methods.dpar`. Proofs: docs/guarantees/dpar.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import dp_accounting as dpa
import torch
from scipy import optimize, special

from graphveil import _validate
from graphveil._errors import BudgetError, InvalidInputError, UnprovenError
from graphveil.graph.choices import RANKINGS
from graphveil.graph.private_rows import CHOICES, PrivateRows
from graphveil.methods.base import Facts, Plan, signal_to_noise
from graphveil.methods.node import PrivateNodeMethod
from graphveil.methods.private import LOUDEST, step_noise
from graphveil.nn import NodeClassifier
from graphveil.privacy.accounting import calibrate
from graphveil.privacy.claims import CLAIMS
from graphveil.privacy.events import SampledGaussianDpEvent, composed, repeated
from graphveil.privacy.formulas import dpar_rows_noise, dpar_steps_epsilon
from graphveil.privacy.guarantee import Charge, Claimed

VARIANTS = ("features", *CHOICES)
CHOICE, STEPS = "the choice of who is read (DP-APPR)", "training of the weights"
_LIKELY = 0.5  # how likely a right choice must be for the structure to be given a budget
_STEP = 0.0075  # of a learning rate that was not given


@dataclass(kw_only=True)
class PlannedDPAR(PrivateNodeMethod):
    """The settings of :class:`~graphveil.methods.dpar.DPAR`, and its plan."""

    name: ClassVar[str] = "dpar"
    _sizes_its_steps: ClassVar[bool] = True

    project_above: int = 1_000_000
    num_layers: int = 1
    steps: int = 40
    sample_rate: float = 1.0
    max_grad_norm: Any = 1.0
    optimizer: str = "sgd"
    learning_rate: float | None = None  # type: ignore[assignment]
    averaged: float = 0.5
    variant: str | None = None
    structure_share: float | None = None
    rows: int | None = None
    neighbours: int = 2
    row_bound: float = 0.1
    own_weight: float = 0.5
    column_cap: int = 1
    ranking: str = "ista"
    alpha: float = 0.25
    rho: float = 1e-4
    graph_rate: float | None = None
    smoothing_steps: int = 2
    teleport: float = 0.25
    student: bool = True
    paper: bool = False

    # --- what the settings come to ---------------------------------------------------------------

    @property
    def _graph_rate(self) -> float:
        return (0.09 if self.paper else 1.0) if self.graph_rate is None else self.graph_rate

    @property
    def _share(self) -> float:
        """What the choice gets of the budget, if there is a choice."""
        return 0.5 if self.structure_share is None else self.structure_share

    def _rows(self, facts: Facts, variant: str) -> int:
        """M; every training node: rows beyond the first few cost no more noise in the steps."""
        if self.rows is not None:
            return _validate.integer("rows", self.rows, f"[1, {facts.num_train}]")
        few = self.paper and variant != "features"
        return min(70, facts.num_train) if few else facts.num_train

    def _variant(self, facts: Facts, delta: float) -> str:
        """The variant that runs: ``features``, unless a right choice is likely or paid for."""
        if self.variant is not None:
            return self.variant
        if self.paper:
            return "features" if self.structure_share == 0 else "gm"
        best, chance = self._best_choice(facts, delta)
        wanted = chance >= _LIKELY if self.structure_share is None else self.structure_share > 0
        return best if wanted else "features"

    def _best_choice(self, facts: Facts, delta: float) -> tuple[str, float]:
        """How to choose with the whole budget, and at most how often the first choice is right."""
        least = _least_noise(self.epsilon, delta)
        likely = {how: self._chooser(facts, how, least).chance(facts.num_nodes) for how in CHOICES}
        best = max(CHOICES, key=lambda how: likely[how])
        return best, likely[best]

    def _check_settings(self) -> None:
        super()._check_settings()
        _validate.number("epsilon", self.epsilon, "(0, inf)")
        _validate.number("sample_rate", self.sample_rate, "(0, 1]")
        _validate.integer("steps", self.steps, "[1, 1e9]")
        if self.variant is not None:
            _validate.choice("variant", self.variant, VARIANTS)
        _validate.number("structure_share", self._share, "[0, 1)")
        both = self.structure_share is not None and self.variant is not None
        if both and (self.structure_share == 0) != (self.variant == "features"):
            raise InvalidInputError(
                "The 'structure_share' must be 0 for the variant 'features' and above it for the "
                f"others. Got {self.structure_share!r} with variant={self.variant!r} instead; "
                "leave one of the two out."
            )
        if self.clipping == "quantile" and self._graph_rate < 1:
            raise UnprovenError(
                "With a 'graph_rate' below 1 the clipping must not count loss terms; 'quantile' "
                "counts those of nodes that take no part. Got clipping='quantile' instead; use "
                "'flat', or train on all nodes."
            )
        _validate.choice("ranking", self.ranking, RANKINGS)
        _validate.integer("neighbours", self.neighbours, "[1, 1e9]")
        _validate.integer("column_cap", self.column_cap, "[1, 1e9]")
        _validate.integer("smoothing_steps", self.smoothing_steps, "[0, 1000]")
        _validate.number("row_bound", self.row_bound, "(0, 1]")
        _validate.number("own_weight", self.own_weight, "(0, 1)")
        _validate.number("alpha", self.alpha, "(0, 1)")
        _validate.number("rho", self.rho, "(0, 1)")
        _validate.number("graph_rate", self._graph_rate, "(0, 1]")
        _validate.number("teleport", self.teleport, "[0, 1]")

    def _network(self, facts: Facts) -> NodeClassifier:
        """Hidden layers of each node, their weighted sum, logits: the same as summing logits."""
        network = NodeClassifier(
            self._columns(facts),
            self.hidden_channels,
            facts.num_classes,
            num_layers=1,
            encoder_layers=_validate.integer("num_layers", self.num_layers, "[1, 10]") - 1,
            decoder_layers=0,
            activation=self.activation,
        )
        if self.num_layers == 1:
            for parameter in network.parameters():
                torch.nn.init.zeros_(parameter)
        return network

    # --- plan ------------------------------------------------------------------------------------

    def _influence(self, facts: Facts, variant: str) -> tuple[int, int]:
        """The loss terms that one node removes, and how many others it alters.

        Its own, and those of the rows that chose it. Where some rows are drawn from a secret sample
        of the nodes, who joins the sample may take another's place: that alters a term.
        """
        others = 0 if variant == "features" else self.column_cap
        fixed = self._graph_rate == 1 or self._rows(facts, variant) == facts.num_train
        return (1, others) if fixed else (0, others + 1)

    def _live(self, facts: Facts, rows: int) -> float:
        """About how many rows have a loss term."""
        return min(float(rows), self._graph_rate * facts.num_train)

    def _step_size(self, facts: Facts, rows: int, noise: float) -> float:
        """Longer steps for more rows and less noise; Adam has a size of its own."""
        if self.learning_rate is not None:
            return self.learning_rate
        if self.optimizer == "adam":
            return 0.02
        noise_of_all = noise / (self.sample_rate * math.sqrt(self.steps))  # steps as one release
        return _STEP * facts.num_classes * math.sqrt(self._live(facts, rows) / noise_of_all)

    @property
    def _learning_rate(self) -> float:
        return float(self.plan_.details["learning_rate"])

    def _chooser(
        self, facts: Facts, variant: str, noise: float, values: float | None = None
    ) -> PrivateRows:
        return PrivateRows(
            how=variant,
            rows=self._rows(facts, variant),
            k=_validate.integer("neighbours", self.neighbours, f"[1, {facts.num_nodes}]"),
            bound=self.row_bound,
            noise_multiplier=noise,
            value_noise=values,
        )

    def _step(self, facts: Facts, variant: str, noise: float) -> SampledGaussianDpEvent:
        removed, altered = self._influence(facts, variant)
        return SampledGaussianDpEvent(
            rate=self.sample_rate, noise_multiplier=noise, removed=removed, altered=altered
        )

    def _charges(self, facts: Facts, variant: str, noises: _Noises) -> tuple[Charge, ...]:
        steps = repeated(self._step(facts, variant, noises.steps), self.steps)
        parts = [Charge(paid_for=STEPS, event=steps)]
        if noises.choice is not None:
            event = self._chooser(facts, variant, noises.choice, noises.values).event()
            parts.insert(0, Charge(paid_for=CHOICE, event=event))
        return self._sampled(parts)

    def _sampled(self, parts: list[Charge]) -> tuple[Charge, ...]:
        """With a secret sample of the nodes it is the whole that is amplified, not its parts."""
        if self._graph_rate == 1:
            return tuple(parts)
        whole = dpa.PoissonSampledDpEvent(
            self._graph_rate, composed(*(part.event for part in parts))
        )
        said = " and ".join(part.paid_for for part in parts)
        return (Charge(paid_for=f"{said}, on a secret sample of the nodes", event=whole),)

    def plan(self, facts: Facts) -> Plan:
        self._check_settings()
        parameters = sum(p.numel() for p in self._made(facts).parameters())
        delta = self._delta(facts)
        if delta >= self._graph_rate:
            raise UnprovenError(
                f"The 'graph_rate' must be above delta, {delta:g}: else a node may be published "
                f"whenever it takes part. Got {self._graph_rate:g} instead; sample more."
            )
        variant = self._variant(facts, delta)
        rows = self._rows(facts, variant)
        noises = (self._paper_noises if self.paper else self._noises)(facts, delta, variant)
        removed, altered = self._influence(facts, variant)
        details: dict[str, float] = {
            "noise_multiplier": noises.steps,
            "sample_rate": self.sample_rate,
            "steps": self.steps,
            "rows": rows,
            "removed": removed,
            "altered": altered,
            "graph_rate": self._graph_rate,
            "learning_rate": self._step_size(facts, rows, noises.steps),
            "parameters": parameters,
            "signal_to_noise": signal_to_noise(
                self.sample_rate * self._live(facts, rows), noises.steps, parameters
            ),
        }
        if noises.choice is None:
            details |= {"structure_share": 0.0, "right_choice": self._best_choice(facts, delta)[1]}
        else:
            chooser = self._chooser(facts, variant, noises.choice, noises.values)
            details |= {
                "structure_share": self._share,
                "right_choice": chooser.chance(facts.num_nodes),
                "structure_noise": noises.choice,
                **({} if noises.values is None else {"value_noise": noises.values}),
            }
        claim = None
        if self.paper:
            found = CLAIMS["dpar"](epsilon=self.epsilon, graph_rate=self._graph_rate, delta=delta)
            claim = Claimed(
                epsilon=found.claimed_epsilon, source=found.paper, why_it_differs=found.flaw
            )
        return Plan(
            method=self.name,
            facts=facts,
            unit="node",
            delta=delta,
            charges=self._charges(facts, variant, noises),
            details=details,
            inference=(self._visible,),
            claim=claim,
            settings={"variant": variant},
        )

    def _noises(self, facts: Facts, delta: float, variant: str) -> _Noises:
        """The least noise with which everything fits the budget, split by the share."""

        def noises(scale: float) -> _Noises:
            if variant == "features":
                return _Noises(None, scale)
            left = 1 - self._share
            steps = step_noise(
                left / scale**2, self.sample_rate, self.steps, self._influence(facts, variant)
            )
            return _Noises(min(scale / math.sqrt(self._share), LOUDEST), steps)

        def whole(scale: float) -> dpa.DpEvent:
            parts = self._charges(facts, variant, noises(scale))
            return composed(*(part.event for part in parts))

        return noises(calibrate(whole, epsilon=self.epsilon, delta=delta, safe=1e6, risky=1e-2))

    def _paper_noises(self, facts: Facts, delta: float, variant: str) -> _Noises:
        """The noise for which the paper claims (``epsilon``, ``delta``).

        Theorem 2 divides both by the graph's rate and adds up what rows and steps cost: the rows
        get their share of epsilon and half of delta, and Theorems 1 and 3 say their noise. Steps
        are charged as if rows were drawn at the rate of the batch in the sampled graph, and a node
        had one loss term.
        """
        inside, slack = self.epsilon / self._graph_rate, delta / self._graph_rate
        rows = self._rows(facts, variant)
        if variant == "features":
            return _Noises(None, self._paper_step_noise(facts, rows, inside, slack))
        steps = self._paper_step_noise(facts, rows, (1 - self._share) * inside, slack / 2)
        printed = dpar_rows_noise(
            variant,
            epsilon=self._share * inside,
            delta=slack / 2,
            rows=rows,
            neighbours=self.neighbours,
        )
        # Of one Gaussian that costs as much as all rows: see PrivateRows.
        together = math.sqrt(rows * (2 if variant == "gm" else self.neighbours))
        return _Noises(printed.scores / together, steps, printed.values)

    def _paper_step_noise(self, facts: Facts, rows: int, epsilon: float, delta: float) -> float:
        rate = self.sample_rate * self._live(facts, rows) / (self._graph_rate * facts.num_train)

        def excess(log_noise: float) -> float:
            return dpar_steps_epsilon(rate, math.exp(log_noise), self.steps, delta) - epsilon

        quietest, loudest = math.log(0.05), math.log(1e6)
        if not excess(loudest) < 0 < excess(quietest):
            raise BudgetError(
                "The paper must claim the 'epsilon' for some noise of the steps. Got 'epsilon' "
                f"{self.epsilon:g} over {self.steps} steps instead; ask for another, or leave out "
                "'paper'."
            )
        return math.exp(optimize.brentq(excess, quietest, loudest, xtol=1e-9))


@dataclass(frozen=True)
class _Noises:
    """Of the choice, as one Gaussian; of the steps; and of values that are released apart."""

    choice: float | None
    steps: float
    values: float | None = None


def _least_noise(epsilon: float, delta: float) -> float:
    """The noise multiplier of a Gaussian that spends all of (epsilon, delta)."""

    def excess(log_mu: float) -> float:
        mu = math.exp(log_mu)
        far, near = (special.log_ndtr(sign * mu / 2 - epsilon / mu) for sign in (-1, 1))
        return math.exp(near) - math.exp(epsilon + far) - delta

    return math.exp(-optimize.brentq(excess, math.log(1e-9), math.log(1e6)))
