"""Whole graphs as records: Mueller et al.'s private graph classification.

Every graph (a patient, a molecule, a fingerprint) is one loss term that reads nothing but itself,
so that withholding a graph removes one term and alters none: r = 1, a = 0. Many graphs are one PyG
``Data`` with a ``batch``; see docs/formats.md. Proofs: docs/guarantees/graph.md.

By default the model is linear in counts of each graph's own patterns, and public facts decide how
it is trained; a convolution, or any setting of one, trains convolutions instead
(:mod:`graphveil.methods.graph_models`).

``paper=True`` trains as they do: with a noise that is given, until the epsilon they claim is spent;
the certificate has what is proven beside it.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, final

import numpy as np

from graphveil import _validate
from graphveil._errors import BudgetError, InvalidInputError
from graphveil.methods.base import Method
from graphveil.methods.budget import choose_delta, least_noise, plan_steps
from graphveil.methods.class_weights import plan_counts
from graphveil.methods.graph_models import (
    GraphSettings,
    choose_length,
    choose_rounds,
    count_examples,
    count_losses,
    describe_model,
    outputs_of_graphs,
    reads_counts,
)
from graphveil.methods.inference import OWN_GRAPH, Disjoint, Visible
from graphveil.methods.parts import Steps
from graphveil.methods.plan import Facts, Plan
from graphveil.methods.settings import (
    Budget,
    Optimizer,
    StepSettings,
    check_bound,
    setting,
    settings,
)
from graphveil.nn.descriptions import GraphNetwork, Perceptron
from graphveil.privacy.claims import CLAIMS
from graphveil.privacy.formulas import OPACUS_ORDERS, sampled_rdp

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch_geometric.data import Data

    from graphveil.methods.execution import Execution


@settings()
class PublishedSettings:
    """Training as Mueller et al. do."""

    paper: bool = setting(
        "Train with a given noise, for as many steps as the paper claims 'epsilon' for, and keep "
        "the last weights.",
        False,
    )
    noise_multiplier: float | None = setting(
        "Of 'paper': the noise that the paper prints.", None, "(0, 1e6]"
    )
    noise_times_bound: bool = setting(
        "Of 'paper': multiply the noise by the clipping bound. The authors' code for Fingerprint "
        "and molbace does not.",
        True,
    )
    batch_size: int | None = setting(
        "Of 'paper': how many graphs a step draws on average, in place of 'sample_rate'.",
        None,
        "[1, 1e9]",
    )
    max_steps: int | None = setting(
        "Take no more steps than these; with 'paper' some of 'epsilon' is left then.",
        None,
        "[1, 1e9]",
    )


_BARE_NOISE = (
    "The paper claims its epsilon for a noise that is multiplied by the clipping bound. The "
    "authors' code for Fingerprint and molbace does not multiply it, and neither does this run: "
    "a noise of {noise:g} at a bound of {bound:g} is a multiplier of {multiplier:.3g}, which is "
    "what is charged."
)
_TIGHTER = (
    "The claim holds; the proven epsilon is of the same noise, batches and steps, by a tighter "
    "accountant."
)


_STEP = 0.02  # a learning rate that no rule decides


@final
@settings(averaged=0.5)
class GraphDPSGD(Method, GraphSettings, StepSettings, PublishedSettings, Budget):
    """A private classifier of whole graphs: linear in what each graph is by itself.

    A graph's row has its sizes, degrees, moments of columns and of edges, and hashed
    Weisfeiler-Lehman counts; all of it is the graph's own, and free. Steps on rows read all graphs.
    With a convolution, or any setting of one, the model is convolutions, a pool, a head.

    ``class_weights="noisy"`` counts the graphs of each class with noise, for ``weights_share`` of
    the budget, and weighs rare classes more. Counts read in the open would be a release that
    nothing pays for. ``paper=True`` runs the published training instead: ``epsilon`` is what the
    paper claims then, and the certificate says what is proven for the same run.

    *Guarantee*: the weights are (epsilon, delta)-private for one graph that is withheld: its
    nodes, its edges and its label. Public: :class:`Facts`.
    """

    name: ClassVar[str] = "graph-dpsgd"
    record: ClassVar[str] = "graph"
    compared: ClassVar[bool] = True
    units: ClassVar[tuple[str, ...]] = ("graph",)
    inferences = (Visible(OWN_GRAPH), Disjoint())
    scored_by: ClassVar[str] = "own graph"
    owners: ClassVar[str | None] = "one term"

    steps: int | None = setting(  # type: ignore[assignment]
        "Private steps; by default 100 on counts and 80 with convolutions.", None, "[1, 1e9]"
    )
    sample_rate: float | None = setting(  # type: ignore[assignment]
        "The probability with which a step draws each graph; by default 1 on counts and 0.25 with "
        "convolutions.",
        None,
        "(0, 1]",
    )
    optimizer: Optimizer | None = setting(  # type: ignore[assignment]
        "What steps with the noisy gradients; by default 'sgd' on counts and 'adam' with "
        "convolutions.",
        None,
    )
    learning_rate: float | None = setting(  # type: ignore[assignment]
        "The length of steps; by default 0.02, and of 'sgd' on counts what the noise in one output "
        "allows.",
        None,
        "(0, inf)",
    )
    max_grad_norm: Any = setting(
        "The bound on the gradient of one loss term; with clipping 'per_layer' perhaps one for "
        "each layer, by name. By default 2 on counts and 1 with convolutions.",
        None,
    )
    weights_share: float = setting(
        "The share of the budget that counting classes gets.", 0.05, "(0, 1)"
    )

    def network(self, facts: Facts) -> GraphNetwork | Perceptron:
        return describe_model(self, facts)

    # --- what the settings come to ---------------------------------------------------------------

    def rounds_for(self, facts: Facts) -> int:
        """How often colours are refined."""
        if self.rounds is not None:
            return self.rounds
        delta = choose_delta(self.delta, self.num_units(facts))
        return choose_rounds(facts, least_noise(self.epsilon, delta))

    def _resolved(self) -> GraphDPSGD:
        """The same method, with a value for every setting of its steps but a rate by rule."""
        counts = reads_counts(self)
        bound = self.max_grad_norm
        return replace(
            self,
            steps=self.steps or (100 if counts else 80),
            sample_rate=self.sample_rate or (1.0 if counts else 0.25),
            optimizer=self.optimizer or ("sgd" if counts else "adam"),
            max_grad_norm=(2.0 if counts else 1.0) if bound is None else bound,
            learning_rate=self.learning_rate or _STEP,
        )

    def _stepping(self, plan: Plan) -> Plan:
        """The plan with the learning rate that the noise of its steps allows."""
        *before, steps = plan.parts
        assert isinstance(steps, Steps)
        if reads_counts(self) and self.learning_rate is None and steps.optimizer == "sgd":
            bearable = self.task(plan.facts).noise
            length = choose_length(plan.facts, steps, bearable)
            steps = replace(steps, learning_rate=length)
        details = {**plan.details, "learning_rate": steps.learning_rate}
        return replace(plan, parts=(*before, steps), details=details)

    def influence(self, facts: Facts) -> tuple[int, int]:
        """A graph removes its own loss term."""
        return 1, 0

    # --- plan ------------------------------------------------------------------------------------

    def _plan(self, facts: Facts) -> Plan:
        check_bound(self._resolved().max_grad_norm, self.clipping)
        self._check_published(facts)
        plan = self._plan_published(facts) if self.paper else self._plan_noise(facts)
        details = dict(plan.details)
        if reads_counts(self):
            details |= {"rounds": self.rounds_for(facts), "hash_columns": self.hash_columns}
        return replace(plan, details=details, inference=(self.inferences[0].says(self, "graph"),))

    def _plan_noise(self, facts: Facts) -> Plan:
        """The least noise that fits the budget."""
        resolved = self._resolved()
        steps = min(resolved.steps or 0, self.max_steps or resolved.steps or 0)
        plan = plan_steps(
            replace(resolved, steps=steps),
            facts,
            influence=self.influence(facts),
            units=self.num_units(facts),
            unit="graph",
            before=lambda delta: plan_counts(self, delta),
        )
        return self._stepping(plan)

    # --- the paper's recipe ----------------------------------------------------------------------

    def _check_published(self, facts: Facts) -> None:
        """Refuse settings of 'paper' without it, and with it what the paper has no word about."""
        published = {name: getattr(self, name) for name in ("noise_multiplier", "batch_size")}
        if not self.paper:
            stated = [name for name, value in published.items() if value is not None]
            stated += [] if self.noise_times_bound else ["noise_times_bound"]
            if stated:
                raise InvalidInputError(
                    f"The '{stated[0]}' parameter must be left out unless paper is true. Got "
                    f"{getattr(self, stated[0])!r} instead; the noise follows from 'epsilon'."
                )
            return
        if facts.num_owners is not None:
            raise InvalidInputError(
                "The paper claims its epsilon for one graph. Got owners of several with "
                "paper=True; leave out 'paper', or the owners."
            )
        for name in ("noise_multiplier", "batch_size"):
            if published[name] is None:
                raise InvalidInputError(
                    f"The '{name}' parameter must be given where paper is true. Got None instead; "
                    "take a recipe, or write the number that the paper prints."
                )
        _validate.integer("batch_size", self.batch_size, f"[1, {facts.num_train}]")
        if self.clipping != "flat":
            raise InvalidInputError(
                "The paper must clip whole gradients. Got clipping="
                f"{self.clipping!r} with paper=True; leave it out."
            )

    def _plan_published(self, facts: Facts) -> Plan:
        """Steps with the paper's noise, as many as it claims ``epsilon`` for."""
        delta = choose_delta(self.delta, self.num_units(facts))
        noise, batch, graphs = float(self.noise_multiplier or 0), self.batch_size, facts.num_train
        steps = self._claimed_steps(graphs, delta)
        resolved = self._resolved()
        bound = 1.0 if self.noise_times_bound else float(resolved.max_grad_norm)
        plan = plan_steps(
            replace(
                resolved,
                steps=steps,
                sample_rate=(batch or 0) / graphs,
                averaged=0.0,
            ),
            facts,
            influence=self.influence(facts),
            units=self.num_units(facts),
            unit="graph",
            noise=lambda delta: noise / bound,
        )
        claim = CLAIMS["mueller"](
            graphs=graphs, batch=batch, noise_multiplier=noise, steps=steps, delta=delta
        )
        bare = _BARE_NOISE.format(noise=noise, bound=bound, multiplier=noise / bound)
        return replace(
            plan,
            claim=claim.on_certificate(_TIGHTER if self.noise_times_bound else bare),
            details={**plan.details, "batch_size": float(batch or 0), "paper_noise": noise},
        )

    def _claimed_steps(self, graphs: int, delta: float) -> int:
        """The largest number of steps for which the paper claims at most ``epsilon``.

        Its epsilon is the least of lines in the number of steps, one for each order of RDP.
        """
        noise, batch, orders = float(self.noise_multiplier or 0), self.batch_size, OPACUS_ORDERS
        rate = (batch or 0) / graphs
        slopes = np.array([sampled_rdp(rate, noise, order) for order in orders])
        at_zero = np.log1p(-1 / orders) - np.log(delta * orders) / (orders - 1)
        most = float(((self.epsilon - at_zero) / slopes).max())
        steps = math.floor(min(most, 1e9))
        if steps < 1:
            raise BudgetError(
                "The paper must claim the 'epsilon' for a step or more. Got "
                f"{self.epsilon:g} with a noise of {noise:g} and batches of {batch} of {graphs} "
                "graphs instead; ask for more epsilon, or give more noise."
            )
        return steps if self.max_steps is None else min(steps, self.max_steps)

    # --- training --------------------------------------------------------------------------------

    def _train(self, execution: Execution, data: Data) -> nn.Module:
        import torch

        from graphveil.methods.terms import graph_losses

        facts = execution.plan.facts
        network, part = self.build(facts), execution.plan.part("weights")
        weights, task = execution.class_weights, self.task(facts)
        if reads_counts(self):
            for parameter in network.parameters():
                torch.nn.init.zeros_(parameter)
            losses = count_losses(task, weights)
            execution.train(part, network, count_examples(self, data), losses)
        else:
            execution.train(part, network, self.terms(data), graph_losses(task, weights))
        return network

    def terms(self, data: Data) -> Any:
        """The loss terms of convolutions to draw from: training graphs, or those of an owner."""
        from graphveil.graph.owners import group_training

        graphs = self.graphs(data)
        graphs.ids = data.train_mask.nonzero().flatten()
        grouped = group_training(data)
        if grouped is not None and bool((grouped.sizes > 1).any()):
            graphs.ids, graphs.sizes = graphs.ids[grouped.order], grouped.sizes
        return graphs

    def graphs(self, data: Data) -> Any:
        """The graphs as convolutions read them."""
        from graphveil.methods.terms import Graphs

        return Graphs.of(data, degree=self.degree, geometry=self.geometry)

    # --- prediction ------------------------------------------------------------------------------

    def outputs(self, data: Data, mode: str) -> Tensor:
        """From each graph alone."""
        return outputs_of_graphs(self, data)
