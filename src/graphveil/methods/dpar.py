r"""Decoupled training on private PageRank rows (Zhang et al.'s DPAR), and the honest best of it.

Structure and features are paid for separately::

    choose   for each of M rows the K nodes that matter most to it, through noise (DP-APPR)
    train    private steps on loss terms that read a row's own node and those chosen for it
    predict  power iteration over the log-probabilities of a graph in the open

A node may change every row in any way, so the choice needs noise for all rows together: at no
sensible epsilon does it find a neighbour. By default, therefore, the structure gets no budget and
is used in prediction alone (the variant ``features``); the plan says how likely a right choice
would be. That is the case of ``late-graph``, which trains and predicts better: take it, unless the
paper's system is what you want. Proofs: docs/guarantees/dpar.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, final

from graphveil import _validate, processes
from graphveil._errors import InvalidInputError, UnprovenError
from graphveil.graph.private_rows import CHOICES, PrivateRows
from graphveil.methods import own_row
from graphveil.methods.base import Method
from graphveil.methods.budget import (
    LOUDEST,
    choose_delta,
    claimed_noise,
    least_noise,
    noise_of_steps,
    scale_within,
    signal_to_noise,
)
from graphveil.methods.class_weights import count_release, pays_for_counts
from graphveil.methods.features import Features
from graphveil.methods.inference import Disjoint, Noisy, Visible, hear_neighbours
from graphveil.methods.parts import Part, Release, Steps
from graphveil.methods.plan import Facts, Plan
from graphveil.methods.rows import (
    Pace,
    RowSettings,
    Sample,
    count_rows,
    describe_network,
    draw_sample,
    pace,
    rank_nodes,
    read_by_rows,
    row_terms,
    smooth_predictions,
)
from graphveil.methods.settings import (
    Budget,
    FeatureSettings,
    StepSettings,
    check_bound,
    setting,
    settings,
)
from graphveil.methods.task import has_classes
from graphveil.nn.descriptions import NodeNetwork
from graphveil.privacy.claims import CLAIMS
from graphveil.privacy.formulas import dpar_rows_noise, dpar_steps_epsilon
from graphveil.privacy.guarantee import Claimed

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch_geometric.data import Data

    from graphveil.graph.messages import Messages
    from graphveil.methods.execution import Execution
    from graphveil.rng import SecretStream

_CHOICE = "the choice of who is read (DP-APPR)"
_LIKELY = 0.5  # how likely a right choice must be for the structure to be given a budget
_STEP = 0.0075  # of a learning rate that was not given


@final
@settings(
    project_above=1_000_000, steps=40, sample_rate=1.0, max_grad_norm=1.0, optimizer="sgd",
    averaged=0.5,
)  # fmt: skip
class DPAR(Method, RowSettings, FeatureSettings, StepSettings, Budget):
    """Private PageRank rows, private steps on them, power iteration in prediction.

    The network is linear, reads every column, and takes its steps on all rows at once: with
    thousands of columns a random projection costs more than the noise it saves. Prediction smooths
    log-probabilities over the graph. On a graph that was not trained on (``disjoint``) a student
    then learns them from that graph's own rows.

    Where the structure gets no budget (the variant ``features``, the default at every usual
    epsilon) this is late-graph's case: no edge is read in training. Take
    :class:`~graphveil.methods.late_graph.LateGraph` there, which has the better recipe.

    ``paper=True`` takes the noise for which Zhang et al. claim ``epsilon``, and their sampling rate
    of 0.09 and 70 rows unless told otherwise; the recipes ``zhang-...`` have the rest of theirs.

    *Guarantee*: the weights are (epsilon, delta)-private for one node, withheld or removed with all
    its edges. Public: :class:`Facts`.
    """

    name: ClassVar[str] = "dpar"
    baseline: ClassVar[str | None] = "dp-mlp"
    compared: ClassVar[bool] = True
    inferences = (Visible(reach="smoothing_steps"), Noisy(), Disjoint(student="student"))
    scored_by: ClassVar[str] = "own row"
    reads_stores: ClassVar[bool] = True

    learning_rate: float | None = setting(  # type: ignore[assignment]
        "The length of steps; by default it follows from rows, classes and noise.", None, "(0, inf)"
    )
    variant: Literal["features", "gm", "em0", "em1"] | None = setting(
        "How neighbours are chosen through noise; 'features' chooses none, and is the default "
        "unless the budget makes a right choice likely.",
        None,
    )
    structure_share: float | None = setting(
        "The share of the budget that the choice gets.", None, "[0, 1)"
    )
    steps_epsilon: float | None = setting(
        "With 'paper': what of 'epsilon' the steps get; the choice gets the rest, in place of a "
        "share.",
        None,
        "(0, inf)",
    )
    row_bound: float = setting(
        "The clipping bound of rows (C1 of 'gm', C2 of the others).", 0.1, "(0, 1]"
    )
    column_cap: int = setting("Rows beside its own that may read a node.", 1, "[1, 1e9]")
    student: bool = setting(
        "Whether a student learns predictions on a disjoint graph.", True, predicts=True
    )
    paper: bool = setting("Take the noise for which the paper claims 'epsilon'.", False)

    def network(self, facts: Facts) -> NodeNetwork:
        return describe_network(self, facts)

    # --- what the settings come to ---------------------------------------------------------------

    @property
    def graph_rate_in_use(self) -> float:
        """The probability with which a node takes part."""
        return (0.09 if self.paper else 1.0) if self.graph_rate is None else self.graph_rate

    @property
    def _share(self) -> float:
        """What the choice gets of the budget, if there is a choice."""
        if self.steps_epsilon is not None:
            return 1 - self.steps_epsilon / self.epsilon
        return 0.5 if self.structure_share is None else self.structure_share

    def num_rows(self, facts: Facts, variant: str) -> int:
        """M; every training node: rows beyond the first few cost no more noise in the steps."""
        few = self.paper and variant != "features"
        return count_rows(self, facts, usual=70 if few else None)

    def pace(self, facts: Facts, variant: str) -> Pace:
        """How many loss terms there are, and how fast steps go over them."""
        rows = self.num_rows(facts, variant)
        terms = facts.num_train if self.train_on == "nodes" else rows
        return pace(self, min(float(terms), self.graph_rate_in_use * facts.num_train), terms)

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
        least = least_noise(self.epsilon, delta)
        likely = {how: self.chooser(facts, how, least).chance(facts.num_nodes) for how in CHOICES}
        best = max(CHOICES, key=lambda how: likely[how])
        return best, likely[best]

    def _check_together(self) -> None:
        """Refuse settings that do not go together."""
        check_bound(self.max_grad_norm, self.clipping)
        both = self.structure_share is not None and self.variant is not None
        if both and (self.structure_share == 0) != (self.variant == "features"):
            raise InvalidInputError(
                "The 'structure_share' must be 0 for the variant 'features' and above it for the "
                f"others. Got {self.structure_share!r} with variant={self.variant!r} instead; "
                "leave one of the two out."
            )
        if self.steps_epsilon is not None:
            self._check_steps_epsilon(self.steps_epsilon)
        if self.clipping == "quantile" and self.graph_rate_in_use < 1:
            raise UnprovenError(
                "With a 'graph_rate' below 1 the clipping must not count loss terms; 'quantile' "
                "counts those of nodes that take no part. Got clipping='quantile' instead; use "
                "'flat', or train on all nodes."
            )
        if pays_for_counts(self) and self.graph_rate_in_use < 1:
            raise UnprovenError(
                "With a 'graph_rate' below 1 nobody outside the secret sample may be counted. Got "
                "class_weights='noisy' instead; give public numbers, or train on all nodes."
            )

    def _check_steps_epsilon(self, steps: float) -> None:
        """Two budgets are the paper's, which adds them up."""
        if self.variant == "features":
            raise InvalidInputError(
                "The 'steps_epsilon' must go with a choice that gets the rest of 'epsilon'. Got "
                f"{steps:g} with variant='features' instead, whose steps get all of it; ask for "
                "that epsilon, or leave one of the two out."
            )
        if not self.paper or self.structure_share is not None or steps >= self.epsilon:
            raise InvalidInputError(
                "The 'steps_epsilon' must be below 'epsilon', with paper=True, and in place of a "
                f"'structure_share'. Got {steps:g} of {self.epsilon:g}, with paper={self.paper} "
                f"and structure_share={self.structure_share}, instead; what is proven of two parts "
                "is no sum, so that without 'paper' there are shares."
            )

    # --- plan ------------------------------------------------------------------------------------

    def influence(self, facts: Facts, variant: str) -> tuple[int, int]:
        """The loss terms that one node removes, and how many others it alters.

        Its own, and those of the rows that chose it. Where some rows are drawn from a secret sample
        of the nodes, who joins the sample may take another's place: that alters a term. Where every
        node has a term, it does so beside its own.
        """
        others = 0 if variant == "features" else self.column_cap
        every = self.num_rows(facts, variant) == facts.num_train
        if self.graph_rate_in_use == 1 or every:
            return 1, others
        if self.train_on == "rows":
            return 0, others + 1
        return (1, 0) if variant == "features" else (1, others + 1)

    def chooser(
        self, facts: Facts, variant: str, noise: float, values: float | None = None
    ) -> PrivateRows:
        """The mechanism that chooses, with such noise."""
        return PrivateRows(
            how=variant,
            rows=self.num_rows(facts, variant),
            k=_validate.integer("neighbours", self.neighbours, f"[1, {facts.num_nodes}]"),
            bound=self.row_bound,
            noise_multiplier=noise,
            value_noise=values,
        )

    def _parts(self, facts: Facts, variant: str, noises: _Noises) -> tuple[Part, ...]:
        removed, altered = self.influence(facts, variant)
        drawn = self.pace(facts, variant)
        # A step divides by all terms that it may draw; we mean those that are not zero.
        shorter = drawn.terms / drawn.live if self.optimizer == "sgd" else 1.0
        steps = Steps(
            name="weights",
            count=drawn.count,
            rate=drawn.rate,
            noise_multiplier=noises.steps,
            removed=removed,
            altered=altered,
            clipping=self.clipping,
            max_grad_norm=self.max_grad_norm,
            optimizer=self.optimizer,
            momentum=self.momentum,
            learning_rate=shorter * self._step_size(facts, variant, noises.steps),
            averaged=self.averaged,
        )
        counts = () if noises.counts is None else (count_release(noises.counts),)
        if noises.choice is None:
            return *counts, steps
        mechanism = self.chooser(facts, variant, noises.choice, noises.values)
        return *counts, Release(name="rows", paid_for=_CHOICE, mechanism=mechanism), steps

    def _step_size(self, facts: Facts, variant: str, noise: float) -> float:
        """Longer steps for more rows and less noise; Adam has a size of its own."""
        if self.learning_rate is not None:
            return self.learning_rate
        if self.optimizer == "adam":
            return 0.02
        drawn = self.pace(facts, variant)
        noise_of_all = noise / (drawn.rate * math.sqrt(drawn.count))  # steps as one release
        bearable = self.task(facts).noise
        return bearable * _STEP * facts.num_classes * math.sqrt(drawn.live / noise_of_all)

    def _plan(self, facts: Facts) -> Plan:
        self._check_together()
        parameters = self.network(facts).num_parameters
        delta = choose_delta(self.delta, self.num_units(facts))
        if delta >= self.graph_rate_in_use:
            raise UnprovenError(
                f"The 'graph_rate' must be above delta, {delta:g}: else a node may be published "
                f"whenever it takes part. Got {self.graph_rate_in_use:g} instead; sample more."
            )
        variant = self._variant(facts, delta)
        noises = (self._paper_noises if self.paper else self._noises)(facts, delta, variant)
        parts = self._parts(facts, variant, noises)
        drawn, steps = self.pace(facts, variant), parts[-1]
        assert isinstance(steps, Steps)
        details: dict[str, float] = {
            "noise_multiplier": noises.steps,
            "sample_rate": steps.rate,
            "steps": steps.count,
            "rows": self.num_rows(facts, variant),
            "terms": drawn.terms,
            "removed": steps.removed,
            "altered": steps.altered,
            "graph_rate": self.graph_rate_in_use,
            "learning_rate": steps.learning_rate,
            "parameters": parameters,
            "signal_to_noise": signal_to_noise(drawn.rate * drawn.live, noises.steps, parameters),
        }
        return Plan(
            method=self.name,
            facts=facts,
            unit="node",
            delta=delta,
            parts=parts,
            sampled_at=self.graph_rate_in_use,
            details=details | self._structure_details(facts, delta, parts[-2:][0], noises),
            inference=(self.inferences[0].says(self, "node"),),
            claim=self._claim(delta) if self.paper else None,
        )

    def _structure_details(
        self, facts: Facts, delta: float, first: Part, noises: _Noises
    ) -> dict[str, float]:
        """What the choice of neighbours gets, and what can come of it."""
        if not isinstance(first, Release) or noises.choice is None:
            return {"structure_share": 0.0, "right_choice": self._best_choice(facts, delta)[1]}
        return {
            "structure_share": self._share,
            "right_choice": first.mechanism.chance(facts.num_nodes),
            "structure_noise": noises.choice,
            **({} if noises.values is None else {"value_noise": noises.values}),
        }

    def _claim(self, delta: float) -> Claimed:
        rate = self.graph_rate_in_use
        claim = CLAIMS["dpar"](epsilon=self.epsilon, graph_rate=rate, delta=delta)
        return claim.on_certificate()

    def _noises(self, facts: Facts, delta: float, variant: str) -> _Noises:
        """The least noise with which everything fits the budget, split by the share."""
        drawn = self.pace(facts, variant)

        def noises(scale: float) -> _Noises:
            counts = scale / math.sqrt(own_row.SHARES["counts"]) if pays_for_counts(self) else None
            if variant == "features":
                return _Noises(None, scale, counts=counts)
            left = 1 - self._share
            steps = noise_of_steps(
                left / scale**2, drawn.rate, drawn.count, self.influence(facts, variant)
            )
            return _Noises(min(scale / math.sqrt(self._share), LOUDEST), steps, counts=counts)

        return noises(
            scale_within(
                lambda scale: self._parts(facts, variant, noises(scale)),
                epsilon=self.epsilon,
                delta=delta,
                loudest=1e6,
                sampled_at=self.graph_rate_in_use,
            )
        )

    def _paper_noises(self, facts: Facts, delta: float, variant: str) -> _Noises:
        """The noise for which the paper claims (``epsilon``, ``delta``).

        Theorem 2 divides both by the graph's rate and adds up what rows and steps cost: the rows
        get their share of epsilon and half of delta, and Theorems 1 and 3 say their noise. Steps
        are charged as if rows were drawn at the rate of the batch in the sampled graph, and a node
        had one loss term.
        """
        inside, slack = self.epsilon / self.graph_rate_in_use, delta / self.graph_rate_in_use
        rows = self.num_rows(facts, variant)
        if variant == "features":
            return _Noises(None, self._paper_step_noise(facts, variant, inside, slack))
        steps = self._paper_step_noise(facts, variant, (1 - self._share) * inside, slack / 2)
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

    def _paper_step_noise(self, facts: Facts, variant: str, epsilon: float, delta: float) -> float:
        drawn = self.pace(facts, variant)
        rate = drawn.rate * drawn.live / (self.graph_rate_in_use * facts.num_train)
        return math.exp(
            claimed_noise(
                lambda log_noise: dpar_steps_epsilon(rate, math.exp(log_noise), drawn.count, delta),
                epsilon,
                math.log(0.05),
                math.log(1e6),
                "The paper must claim the 'epsilon' for some noise of the steps. Got 'epsilon' "
                f"{self.epsilon:g} over {drawn.count} steps instead; ask for another, or leave out "
                "'paper'.",
                tolerance=1e-9,
            )
        )

    # --- fit -------------------------------------------------------------------------------------

    def _train(self, execution: Execution, data: Data) -> nn.Module:
        import torch

        from graphveil.methods.terms import no_messages, node_losses

        plan = execution.plan
        chosen = any(part.name == "rows" for part in plan.parts)
        variant = plan.part("rows").mechanism.how if chosen else "features"
        drawn = self.draw_sample(data, self.num_rows(plan.facts, variant), execution.rng)
        messages = no_messages(len(data.x))
        if chosen:
            messages = self._choose(data, drawn, execution)
        network = self.build(plan.facts)
        if self.num_layers == 1:
            for parameter in network.parameters():
                torch.nn.init.zeros_(parameter)
        terms = row_terms(self, data, drawn, messages)
        losses = node_losses(self.task(plan.facts), execution.class_weights)
        execution.train(plan.part("weights"), network, terms, losses)
        return network

    def draw_sample(self, data: Data, rows: int, rng: SecretStream) -> Sample:
        """Who takes part, and who has a row."""
        from graphveil.methods.rows import Sample
        from graphveil.rng import seeded

        train, public = data.train_mask.nonzero().flatten(), seeded(self.seed, "rows")
        rate = self.graph_rate_in_use

        def draw() -> dict[str, Tensor]:
            return vars(draw_sample(train, len(data.x), rows, rate=rate, public=public, rng=rng))

        return Sample(**processes.current().once_named(draw))

    def _choose(self, data: Data, drawn: Sample, execution: Execution) -> Messages:
        """What each row reads: its own node, and those chosen for it."""
        import torch

        from graphveil.graph.private_rows import kept_columns

        def draw(mechanism: PrivateRows, rng: SecretStream) -> dict[str, Tensor]:
            rank = rank_nodes(self, data, drawn.sample)
            chosen, weight = mechanism.release(rank(drawn.rows), rng)
            return {"chosen": torch.from_numpy(chosen), "weight": torch.from_numpy(weight).float()}

        released = execution.release(execution.plan.part("rows"), draw)
        chosen, weight = released["chosen"], released["weight"]
        kept = torch.from_numpy(kept_columns(chosen.numpy(), self.column_cap, seed=self.seed))
        return read_by_rows(chosen, weight, kept, drawn.rows, self.own_weight, len(data.x))

    # --- prediction ------------------------------------------------------------------------------

    def prepare(self, data: Data) -> Any:
        """The rows that the network reads."""
        return Features.of(self).read(data, keep_sparse=True)

    def outputs(self, data: Data, mode: str) -> Tensor:
        """Power iteration over log-probabilities; on a disjoint graph a student follows them."""
        from graphveil.methods.distillation import follow_beliefs

        own, spread, messages = smooth_predictions(self, data)
        if mode != "disjoint" or not self.student or not has_classes(self.plan_.facts):
            return spread
        steps = self.plan_.part("weights")
        noise = steps.noise_multiplier / (steps.rate * math.sqrt(steps.count))
        return follow_beliefs(own, spread, self.prepare(data), messages, noise)

    noisy_outputs = hear_neighbours


@dataclass(frozen=True)
class _Noises:
    """Of the choice, as one Gaussian; of the steps; of values released apart; of counts."""

    choice: float | None
    steps: float
    values: float | None = None
    counts: float | None = None
