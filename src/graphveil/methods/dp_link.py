r"""Private link prediction: which targets a source will be linked to.

    score(u, i) = (A h_u + c) . f_i,        f_i = (content of i, noisy log popularity of i)

h_u is the source's own row and, where targets are public, the mean content of its own list, read
without the target that is asked for. A and c are trained by clipped, noisy steps on loss terms that
set each kept link against public negatives (:mod:`graphveil.graph.link_terms`).

====================  ===========================  =============================================
unit                  targets                      (r, a) of a step
====================  ===========================  =============================================
``node``              public rows                  (1, 0), at any length of lists
``node``              people, as sources are       (0, K + K_in + K_neg)
``edge``              rows of both ends public     (1, 0)
====================  ===========================  =============================================

Besides the steps, two noisy values are released for a small share of the budget: how often each
target is linked, and, under the unit edge, how many links there are, by which steps are divided.
Proofs: docs/guarantees/links.md.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, final

from graphveil._errors import UnprovenError
from graphveil.mechanisms import Gaussian
from graphveil.methods import link_models
from graphveil.methods.base import Method
from graphveil.methods.budget import choose_delta, noise_of_steps, scale_within, signal_to_noise
from graphveil.methods.inference import Disjoint, Visible
from graphveil.methods.link_models import LinkSettings
from graphveil.methods.own_row import output_noise
from graphveil.methods.parts import Part, Release, Steps
from graphveil.methods.plan import Facts, Plan
from graphveil.methods.settings import (
    Budget,
    Optimizer,
    StepSettings,
    check_bound,
    setting,
    settings,
)

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch_geometric.data import Data

    from graphveil.methods.execution import Execution
    from graphveil.nn.link_descriptions import LinkNetwork

MOST_DRAWN = 3_000_000  # pairs in a step: see graphveil.grads.pair_sums.PAY_FOR_PAIRS
_MOST_CANCELLING = 2**26  # (1024 + pairs / 1024) terms: see graphveil.grads.rules.PAY_FOR_SUMS
_DRAWN = {"dot": 50_000, "mlp": 40_000}  # loss terms that a step reads, about
_NOISE = 0.5  # in one score, at the end
_LONGEST = 10.0  # a learning rate beyond which steps may overshoot where rows are private
_LONGEST_PUBLIC = 50.0  # where public rows of targets say later when steps overshoot
SHARES = {"popularity": 0.1, "links": 0.01}  # of a squared Gaussian mu; the steps get the rest
PAID_FOR_POPULARITY = "noisy counts of how often each target is linked"
PAID_FOR_NUMBER = "a noisy number of links"

OWN_ROW_AND_LIST = (
    "visible: a score reads its source's own row and list and public rows; scores are shown to "
    "their own source only"
)
BOTH_ENDS = (
    "visible: a score reads its source's row and its target's in the open; nothing is promised to "
    "the target"
)
PUBLIC_ENDS = "visible: a score reads rows, which are public under this unit, and no list"


@final
@settings(steps=60, max_grad_norm=0.5, averaged=0.5)
class DPLink(Method, LinkSettings, StepSettings, Budget):
    """Private link prediction, for people and public targets, for people alone, or for edges.

    Public facts decide what nobody states, and ``plan`` shows it. Which unit a certificate names
    follows from ``unit``, and from whether targets are public rows (``target_x``) or people.

    *Guarantee*: the weights, and what is released beside them, are (epsilon, delta)-private for one
    node withheld, with its row and its own list, or for one edge.
    """

    name: ClassVar[str] = "dp-link"
    record: ClassVar[str] = "link"
    tasks: ClassVar[tuple[str, ...]] = ("link",)
    units: ClassVar[tuple[str, ...]] = ("node", "edge")
    baseline: ClassVar[str | None] = None
    compared: ClassVar[bool] = True
    inferences = (Visible(OWN_ROW_AND_LIST), Disjoint())

    sample_rate: float | None = setting(  # type: ignore[assignment]
        "The probability with which a step draws each loss term; by default 1, or less where there "
        "are more than 50,000 sources.",
        None,
        "(0, 1]",
    )
    optimizer: Optimizer = setting("What steps with the noisy gradients.", "sgd")
    learning_rate: float | None = setting(  # type: ignore[assignment]
        "The length of steps; by default what the noise in one score allows, and 0.02 for 'adam'.",
        None,
        "(0, inf)",
    )
    public_edges: int | None = setting(
        "Of the unit 'edge': a public bound on the number of links, which delta is chosen for; by "
        "default all pairs.",
        None,
        "[1, inf)",
    )

    def network(self, facts: Facts) -> LinkNetwork:
        return link_models.describe_network(self, facts)

    def influence(self, facts: Facts) -> tuple[int, int]:
        """How many loss terms one unit removes and alters."""
        return link_models.influence_of_unit(self, facts)

    def _plan(self, facts: Facts) -> Plan:
        check_bound(self.max_grad_norm, self.clipping)
        link_models.check_unit(self, facts)
        parameters = self.network(facts).num_parameters
        unit, delta = self.unit_for(facts), choose_delta(self.delta, self.num_units(facts))
        scale = scale_within(
            lambda scale: _parts(self, facts, scale), epsilon=self.epsilon, delta=delta
        )
        parts = _parts(self, facts, scale)
        steps = next(part for part in parts if isinstance(part, Steps))
        if unit == "node":
            kept = 1 if link_models.is_of_people(self, facts) else link_models.kept_of(self, facts)
            _check_drawn(self, steps.rate * steps.population, kept)
        drawn = steps.rate * steps.population
        return Plan(
            method=self.name,
            facts=facts,
            unit=unit,
            delta=delta,
            parts=parts,
            public=_public_lines(self, facts),
            inference=(_read_by_scores(self, facts),),
            details={
                "noise_multiplier": steps.noise_multiplier,
                "sample_rate": steps.rate,
                "steps": steps.count,
                "learning_rate": steps.learning_rate,
                "links_kept": link_models.kept_of(self, facts),
                "negatives": link_models.negatives_of(self, facts),
                "removed": steps.removed,
                "altered": steps.altered,
                "parameters": parameters,
                "signal_to_noise": signal_to_noise(drawn, steps.noise_multiplier, parameters),
            },
        )

    def _train(self, execution: Execution, data: Data) -> nn.Module:
        from graphveil.nn.link_scorers import link_losses

        plan = execution.plan
        facts, network = plan.facts, self.build(plan.facts)
        if self.popularity:
            part = plan.part("popularity")
            noise = part.mechanism.noise_multiplier * part.mechanism.sensitivity
            link_models.set_popularity(network, release_popularity(execution, data), noise)
        link_models.fit_content(self, facts, network, data)
        divisor = _release_number(execution, data) if self.unit == "edge" else None
        steps = plan.part("weights")
        if divisor is not None:
            _check_drawn(self, steps.rate * divisor, 1 if facts.directed else 2)
            divisor = max(divisor, _least_divisor(self, facts, steps))
        terms = link_models.make_terms(self, facts, network, data, rate=steps.rate, divisor=divisor)
        shortened = 1.0
        if not link_models.is_of_people(self, facts):
            longest = link_models.longest_step(network, terms.table)
            shortened = min(1.0, longest / steps.learning_rate)
        execution.train(steps, network, terms, link_losses, shortened=shortened)
        return network

    outputs, link_scores, recommend = (
        link_models.outputs,
        link_models.link_scores,
        link_models.recommend,
    )


# --- plan -----------------------------------------------------------------------------------------


def _parts(method: DPLink, facts: Facts, scale: float) -> tuple[Part, ...]:
    """What is released, when a Gaussian with the whole budget has the noise ``scale``."""
    released = [
        *(["popularity"] if method.popularity else []),
        *(["links"] if method.unit == "edge" else []),
    ]
    left = 1.0 - sum(SHARES[name] for name in released)
    rate, (removed, altered) = _choose_rate(method, facts), method.influence(facts)
    noise = noise_of_steps(left / scale**2, rate, method.steps, (removed, altered))
    steps = Steps(
        name="weights",
        count=method.steps,
        rate=rate,
        noise_multiplier=noise,
        removed=removed,
        altered=altered,
        population=_population(method, facts),
        clipping=method.clipping,
        max_grad_norm=method.max_grad_norm,
        optimizer=method.optimizer,
        momentum=method.momentum,
        learning_rate=1.0,
        averaged=method.averaged,
    )
    steps = replace(steps, learning_rate=_choose_length(method, facts, steps))
    noises = {name: scale / math.sqrt(SHARES[name]) for name in released}
    return (
        *(plan_popularity(method, facts, noises[name]) for name in released[:1] if name != "links"),
        *(_plan_number(noises[name]) for name in released if name == "links"),
        steps,
    )


def plan_popularity(method: Any, facts: Facts, noise: float) -> Release:
    """A person's list counts as a vector of length 1; an edge moves one count, or two."""
    both = method.unit == "edge" and not facts.directed
    return Release(
        name="popularity",
        paid_for=PAID_FOR_POPULARITY,
        mechanism=Gaussian(noise_multiplier=noise, sensitivity=math.sqrt(2) if both else 1.0),
    )


def _plan_number(noise: float) -> Release:
    return Release(
        name="links",
        paid_for=PAID_FOR_NUMBER,
        mechanism=Gaussian(noise_multiplier=noise, sensitivity=1.0),
    )


def _population(method: Any, facts: Facts) -> int:
    """The public number of loss terms; of links, whose number is private, that of sources."""
    slots = link_models.kept_of(method, facts) if link_models.is_of_people(method, facts) else 1
    return facts.num_train * slots


def _choose_rate(method: Any, facts: Facts) -> float:
    given: float | None = method.sample_rate
    return min(1.0, _DRAWN[method.scorer] / facts.num_train) if given is None else given


def _length(method: Any, facts: Facts) -> float:
    """How long the rows are that a source is read by."""
    network = method.network(facts)
    own = 1.0 if facts.target_features is None else float(method.feature_scale)
    return math.hypot(own, 1.0 if network.reads_list else 0.0)


def _choose_length(method: Any, facts: Facts, steps: Steps) -> float:
    """How long steps are: as the noise in one score allows.

    Under the unit edge it is the divisor that keeps the noise down (:func:`_least_divisor`).
    """
    if method.learning_rate is not None:
        return float(method.learning_rate)
    if steps.optimizer == "adam":
        return 0.02
    length, longest = _length(method, facts), _LONGEST_PUBLIC
    if link_models.is_of_people(method, facts):
        longest = _LONGEST / max(1.0, length**2)
    if method.unit == "edge" or not isinstance(steps.max_grad_norm, int | float):
        return longest
    noise = output_noise(steps, steps.rate * steps.population, length)
    return min(longest, _NOISE / noise) if noise else longest


def _check_drawn(method: Any, terms: float, pairs: int) -> None:
    """Refuse more ``terms`` of so many ``pairs`` in a step than rounding is paid for."""
    drawn = terms * pairs
    # Sums by ClippedSum are paid for less than those of graphveil.grads.pair_sums.
    cancels = method.scorer == "mlp" and pairs > 1
    if drawn > MOST_DRAWN or (cancels and (1024 + drawn / 1024) * terms > _MOST_CANCELLING):
        raise UnprovenError(
            f"A step must draw fewer pairs, for which rounding is paid. Got about {drawn:,.0f} of "
            f"{terms:,.0f} terms with the scorer {method.scorer!r} instead; take a smaller "
            "'sample_rate', or fewer 'links_kept'."
        )


def _least_divisor(method: Any, facts: Facts, steps: Steps) -> float:
    """The number of links below which noise in a score would be too much."""
    if steps.optimizer == "adam" or not isinstance(steps.max_grad_norm, int | float):
        return 1.0
    return max(1.0, output_noise(steps, steps.rate, _length(method, facts)) / _NOISE)


def _public_lines(method: Any, facts: Facts) -> tuple[str, ...]:
    """What the certificate takes as public besides the usual."""
    if method.unit == "edge":
        return ("the rows of sources and targets", "which pairs are drawn as negatives")
    if facts.target_features is not None:
        return (f"the rows of all {facts.num_classes:,} targets", "who is a source, who a target")
    return ("which people each slot is set against",)


def _read_by_scores(method: Any, facts: Facts) -> str:
    if method.unit == "edge":
        return PUBLIC_ENDS
    return BOTH_ENDS if facts.target_features is None else OWN_ROW_AND_LIST


# --- releases -------------------------------------------------------------------------------------


def release_popularity(execution: Execution, data: Data) -> Tensor:
    """How often training sources are linked to each target, through noise."""
    from graphveil.graph.link_terms import count_targets
    from graphveil.graph.links import num_targets, own_lists

    part = execution.plan.part("popularity")
    node = execution.plan.unit == "node"
    trained = data.train_links & data.train_mask[data.links[0]]
    if node and "target_x" not in data:  # without a direction both ends state it, each its own
        trained = data.train_links
    counts = count_targets(own_lists(data, trained), num_targets(data), balanced=node)
    return execution.release(
        part, lambda mechanism, rng: {part.name: mechanism.release(counts, rng)}
    )[part.name]


def _release_number(execution: Execution, data: Data) -> float:
    """How many links are trained on, through noise."""
    import torch

    part = execution.plan.part("links")
    trained = data.train_links & data.train_mask[data.links[0]]
    count = torch.tensor([float(trained.sum())], dtype=torch.float64)
    noisy = execution.release(
        part, lambda mechanism, rng: {part.name: mechanism.release(count, rng)}
    )[part.name]
    return float(noisy)
