r"""Decoupled training on private PageRank rows (Zhang et al.'s DPAR), and the honest best of it.

Structure and features are paid for separately::

    choose   for each of M rows the K nodes that matter most to it, through noise (DP-APPR)
    train    private steps on loss terms that read a row's own node and those chosen for it
    predict  power iteration over the log-probabilities of a graph in the open

A node may change every row in any way, so the choice needs noise for all rows together: at no
sensible epsilon does it find a neighbour. By default, therefore, the structure gets no budget and
is used in prediction alone (the variant ``features``); the plan says how likely a right choice
would be. Proofs: docs/guarantees/dpar.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, final

from graphveil import _validate
from graphveil._errors import InvalidInputError, UnprovenError
from graphveil.graph.private_rows import CHOICES, PrivateRows
from graphveil.methods.base import Method
from graphveil.methods.budget import (
    LOUDEST,
    choose_delta,
    claimed_noise,
    noise_of_steps,
    scale_within,
    signal_to_noise,
)
from graphveil.methods.features import Features
from graphveil.methods.inference import Disjoint, Noisy, Visible, hear_neighbours
from graphveil.methods.parts import Part, Release, Steps
from graphveil.methods.plan import Facts, Plan
from graphveil.methods.settings import (
    Budget,
    FeatureSettings,
    StepSettings,
    check_bound,
    setting,
    settings,
)
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
_NO_LABEL = -100  # of loss terms that are zero


@final
@settings(
    project_above=1_000_000, steps=40, sample_rate=1.0, max_grad_norm=1.0, optimizer="sgd",
    averaged=0.5,
)  # fmt: skip
class DPAR(Method, FeatureSettings, StepSettings, Budget):
    """Private PageRank rows, private steps on them, power iteration in prediction.

    The network is linear, reads every column, and takes its steps on all rows at once: with
    thousands of columns a random projection costs more than the noise it saves. Prediction smooths
    log-probabilities over the graph. On a graph that was not trained on (``disjoint``) a student
    then learns them from that graph's own rows.

    ``paper=True`` takes the noise for which Zhang et al. claim ``epsilon``, and their sampling rate
    of 0.09 and 70 rows unless told otherwise; network and steps are as the settings say.

    *Guarantee*: the weights are (epsilon, delta)-private for one node, withheld or removed with all
    its edges. Public: :class:`Facts`.
    """

    name: ClassVar[str] = "dpar"
    baseline: ClassVar[str | None] = "dp-mlp"
    compared: ClassVar[bool] = True
    inferences = (Visible(), Noisy(), Disjoint(student="student"))
    scored_by: ClassVar[str] = "own row"

    num_layers: int = setting("Layers of the network.", 1, "[1, 10]")
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
    rows: int | None = setting(
        "Training nodes that have a row (M); by default all of them.", None, "[1, inf)"
    )
    neighbours: int = setting("Nodes chosen for each row (K).", 2, "[1, 1e9]")
    row_bound: float = setting(
        "The clipping bound of rows (C1 of 'gm', C2 of the others).", 0.1, "(0, 1]"
    )
    own_weight: float = setting("The weight of a row's own node.", 0.5, "(0, 1)")
    column_cap: int = setting("Rows beside its own that may read a node.", 1, "[1, 1e9]")
    ranking: Literal["ista", "push"] = setting("How PageRank is approximated.", "ista")
    ranking_teleport: float = setting(
        "PageRank's probability of a jump back (its alpha).", 0.25, "(0, 1)"
    )
    rho: float = setting("What PageRank gives up for locality.", 1e-4, "(0, 1)")
    graph_rate: float | None = setting(
        "Train on a secret random part of the nodes, which amplifies the whole; by default all.",
        None,
        "(0, 1]",
    )
    smoothing_steps: int = setting(
        "How often means over neighbourhoods are taken.", 2, "[0, 1000]", predicts=True
    )
    teleport: float = setting(
        "The share of a node's own value in such a mean.", 0.25, "[0, 1]", predicts=True
    )
    student: bool = setting(
        "Whether a student learns predictions on a disjoint graph.", True, predicts=True
    )
    paper: bool = setting("Take the noise for which the paper claims 'epsilon'.", False)

    def network(self, facts: Facts) -> NodeNetwork:
        """Hidden layers of each node, their weighted sum, logits: the same as summing logits."""
        return NodeNetwork(
            in_channels=Features.of(self).columns(facts.num_features),
            hidden_channels=self.hidden_channels,
            out_channels=self.task(facts).outputs,
            num_layers=1,
            encoder_layers=self.num_layers - 1,
            decoder_layers=0,
            activation=self.activation,
        )

    # --- what the settings come to ---------------------------------------------------------------

    @property
    def graph_rate_in_use(self) -> float:
        """The probability with which a node takes part."""
        return (0.09 if self.paper else 1.0) if self.graph_rate is None else self.graph_rate

    @property
    def _share(self) -> float:
        """What the choice gets of the budget, if there is a choice."""
        return 0.5 if self.structure_share is None else self.structure_share

    def num_rows(self, facts: Facts, variant: str) -> int:
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
        if self.clipping == "quantile" and self.graph_rate_in_use < 1:
            raise UnprovenError(
                "With a 'graph_rate' below 1 the clipping must not count loss terms; 'quantile' "
                "counts those of nodes that take no part. Got clipping='quantile' instead; use "
                "'flat', or train on all nodes."
            )

    # --- plan ------------------------------------------------------------------------------------

    def influence(self, facts: Facts, variant: str) -> tuple[int, int]:
        """The loss terms that one node removes, and how many others it alters.

        Its own, and those of the rows that chose it. Where some rows are drawn from a secret sample
        of the nodes, who joins the sample may take another's place: that alters a term.
        """
        others = 0 if variant == "features" else self.column_cap
        fixed = self.graph_rate_in_use == 1 or self.num_rows(facts, variant) == facts.num_train
        return (1, others) if fixed else (0, others + 1)

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
        steps = Steps(
            name="weights",
            count=self.steps,
            rate=self.sample_rate,
            noise_multiplier=noises.steps,
            removed=removed,
            altered=altered,
            clipping=self.clipping,
            max_grad_norm=self.max_grad_norm,
            optimizer=self.optimizer,
            momentum=self.momentum,
            learning_rate=self._step_size(facts, variant, noises.steps),
            averaged=self.averaged,
        )
        if noises.choice is None:
            return (steps,)
        mechanism = self.chooser(facts, variant, noises.choice, noises.values)
        return Release(name="rows", paid_for=_CHOICE, mechanism=mechanism), steps

    def _live(self, facts: Facts, rows: int) -> float:
        """About how many rows have a loss term."""
        return min(float(rows), self.graph_rate_in_use * facts.num_train)

    def _step_size(self, facts: Facts, variant: str, noise: float) -> float:
        """Longer steps for more rows and less noise; Adam has a size of its own."""
        if self.learning_rate is not None:
            return self.learning_rate
        if self.optimizer == "adam":
            return 0.02
        noise_of_all = noise / (self.sample_rate * math.sqrt(self.steps))  # steps as one release
        live = self._live(facts, self.num_rows(facts, variant))
        return _STEP * facts.num_classes * math.sqrt(live / noise_of_all)

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
        rows, steps = self.num_rows(facts, variant), parts[-1]
        assert isinstance(steps, Steps)
        details: dict[str, float] = {
            "noise_multiplier": noises.steps,
            "sample_rate": self.sample_rate,
            "steps": self.steps,
            "rows": rows,
            "removed": steps.removed,
            "altered": steps.altered,
            "graph_rate": self.graph_rate_in_use,
            "learning_rate": steps.learning_rate,
            "parameters": parameters,
            "signal_to_noise": signal_to_noise(
                self.sample_rate * self._live(facts, rows), noises.steps, parameters
            ),
        }
        return Plan(
            method=self.name,
            facts=facts,
            unit="node",
            delta=delta,
            parts=parts,
            sampled_at=self.graph_rate_in_use,
            details=details | self._structure_details(facts, delta, parts[0], noises),
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

        def noises(scale: float) -> _Noises:
            if variant == "features":
                return _Noises(None, scale)
            left = 1 - self._share
            steps = noise_of_steps(
                left / scale**2, self.sample_rate, self.steps, self.influence(facts, variant)
            )
            return _Noises(min(scale / math.sqrt(self._share), LOUDEST), steps)

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
        rate = self.sample_rate * self._live(facts, rows)
        rate = rate / (self.graph_rate_in_use * facts.num_train)
        return math.exp(
            claimed_noise(
                lambda log_noise: dpar_steps_epsilon(rate, math.exp(log_noise), self.steps, delta),
                epsilon,
                math.log(0.05),
                math.log(1e6),
                "The paper must claim the 'epsilon' for some noise of the steps. Got 'epsilon' "
                f"{self.epsilon:g} over {self.steps} steps instead; ask for another, or leave out "
                "'paper'.",
                tolerance=1e-9,
            )
        )

    # --- fit -------------------------------------------------------------------------------------

    def _train(self, execution: Execution, data: Data) -> nn.Module:
        import torch

        from graphveil.methods.terms import no_messages, node_losses

        plan = execution.plan
        chosen = len(plan.parts) > 1
        variant = plan.part("rows").mechanism.how if chosen else "features"
        drawn = self.draw_sample(data, self.num_rows(plan.facts, variant), execution.rng)
        messages = no_messages(len(data.x))
        if chosen:
            messages = self._choose(data, drawn, execution)
        x = torch.where(drawn.sample.unsqueeze(1), self.prepare(data), 0.0)
        y = torch.where(drawn.sample, data.y, _NO_LABEL)
        network = self.build(plan.facts)
        if self.num_layers == 1:
            for parameter in network.parameters():
                torch.nn.init.zeros_(parameter)
        terms = self._terms(x, y, messages, drawn.rows)
        losses = node_losses(self.task(plan.facts))
        execution.train(plan.part("weights"), network, terms, losses)
        return network

    def _terms(self, x: Tensor, y: Tensor, messages: Messages, rows: Tensor) -> Any:
        """The loss terms of the rows. A linear network may sum features first."""
        from scipy import sparse

        from graphveil.grads.linear import SparseExamples
        from graphveil.graph.neighbourhoods import RootedTerms

        if self.num_layers == 1:
            return SparseExamples(sparse.csr_array(messages.weighted(x)[rows].numpy()), y[rows])
        return RootedTerms(x, y, messages, rows, 1)

    def draw_sample(self, data: Data, rows: int, rng: SecretStream) -> Sample:
        """Who takes part, and whose rows are trained on; from public ids and secret coins.

        Without sampling the rows are public, and so they are if every training node has one. Else
        they are drawn from the sample, in secret; should it be too small, others make up the
        number, whose terms are zero. Which row stands in which place is secret, too: a node that
        joins the sample must not push others from their places.
        """
        import numpy as np
        import torch

        from graphveil.rng import seeded

        train = data.train_mask.nonzero().flatten()
        sample = torch.ones(len(data.x), dtype=torch.bool)
        order = seeded(self.seed, "rows").generator().permutation(len(train))
        if self.graph_rate_in_use < 1:
            sample = torch.from_numpy(rng.bernoulli(self.graph_rate_in_use, len(data.x)))
            if rows < len(train):
                live_first = np.lexsort((rng.normal(len(train)), ~sample[train].numpy()))[:rows]
                order = live_first[np.argsort(rng.normal(rows))]
        return Sample(sample, train[torch.from_numpy(order[:rows].copy())])

    def _choose(self, data: Data, drawn: Sample, execution: Execution) -> Messages:
        """What each row reads: its own node, and those chosen for it."""
        import torch

        from graphveil.graph.messages import Messages
        from graphveil.graph.private_rows import kept_columns

        def draw(mechanism: PrivateRows, rng: SecretStream) -> dict[str, Tensor]:
            chosen, weight = mechanism.release(self._scores(data, drawn), rng)
            return {"chosen": torch.from_numpy(chosen), "weight": torch.from_numpy(weight).float()}

        released = execution.release(execution.plan.part("rows"), draw)
        chosen, weight = released["chosen"], released["weight"]
        kept = torch.from_numpy(kept_columns(chosen.numpy(), self.column_cap, seed=self.seed))
        kept &= chosen != drawn.rows.unsqueeze(1)  # its own node is read anyway
        read = torch.where(kept, (1 - self.own_weight) * weight, 0.0)
        total = self.own_weight + read.sum(1)
        own = torch.ones(len(data.x))
        own[drawn.rows] = self.own_weight / total
        receivers = drawn.rows.unsqueeze(1).expand_as(chosen)
        edges = torch.stack([chosen[kept], receivers[kept]])
        return Messages(edges, (read / total.unsqueeze(1))[kept], own)

    def _scores(self, data: Data, drawn: Sample) -> Any:
        """How much every node matters to each row, inside the sample."""
        import numpy as np

        from graphveil.graph.pagerank import pagerank

        inside = drawn.sample[data.edge_index].all(0)
        scores = pagerank(
            data.edge_index[:, inside],
            len(data.x),
            drawn.rows,
            how=self.ranking,
            alpha=self.ranking_teleport,
            rho=self.rho,
        )
        # A row's own node is kept for nothing, so it need not be chosen; a row outside the sample
        # has no scores at all.
        own = np.repeat(drawn.rows.numpy(), np.diff(scores.indptr))
        scores.data[scores.indices == own] = 0.0
        return scores

    # --- prediction ------------------------------------------------------------------------------

    def prepare(self, data: Data) -> Tensor:
        """The rows that the network reads."""
        return Features.of(self).prepare(data.x)

    def outputs(self, data: Data, mode: str) -> Tensor:
        """Power iteration over log-probabilities; on a disjoint graph a student follows them.

        A student follows what nodes have in common; the less noise, the less it is needed.
        """
        from graphveil.graph.propagation import spread_rows
        from graphveil.methods.distillation import teach_student
        from graphveil.methods.terms import every_message, no_messages

        x, nodes = self.prepare(data), len(data.x)
        own = self.network_.on_graph(x, no_messages(nodes)).log_softmax(1)
        messages = every_message(data, self.seed)
        spread = spread_rows(own, messages, self.smoothing_steps, self.teleport)
        if mode != "disjoint" or not self.student:
            return spread
        steps = self.plan_.part("weights")
        noise = steps.noise_multiplier / (steps.rate * math.sqrt(steps.count))
        learned = teach_student(spread.softmax(1), x, messages, 0.5 * math.sqrt(noise) / len(x))
        kept = 0.5 / (1 + 2 * noise)
        return kept * own + (1 - kept) * learned

    noisy_outputs = hear_neighbours


@dataclass(frozen=True)
class _Noises:
    """Of the choice, as one Gaussian; of the steps; and of values that are released apart."""

    choice: float | None
    steps: float
    values: float | None = None


@dataclass(frozen=True, eq=False)
class Sample:
    """Which nodes take part, and whose rows are trained on."""

    sample: Tensor
    rows: Tensor


def least_noise(epsilon: float, delta: float) -> float:
    """The noise multiplier of a Gaussian that spends all of (epsilon, delta)."""
    from scipy import optimize, special

    def excess(log_mu: float) -> float:
        mu = math.exp(log_mu)
        far, near = (special.log_ndtr(sign * mu / 2 - epsilon / mu) for sign in (-1, 1))
        return math.exp(near) - math.exp(epsilon + far) - delta

    return math.exp(-optimize.brentq(excess, math.log(1e-9), math.log(1e6)))
