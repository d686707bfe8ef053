r"""One recipe for training without edges: a linear model of each node's own row.

A loss term reads its own node and nothing else, the cheapest step there is (r = 1, a = 0). What is
decided for whoever does not decide it, from public facts alone:

=================  =================================================================================
layers             one: on own rows a hidden layer won in no trial (five graphs, from 15,000 to
                   127,000 training nodes, epsilon 1 and 8); with beliefs passed on it did on two
                   of them at epsilon 8, facebook100 and debian
columns            all of them, sparse where they are wide; rows of one length
the mean row       taken away where there are at most 1,024 columns. Few columns share most of
                   what they say, which keeps steps short; wide ones do not
steps              100 on all training nodes at once, or on about 50,000 of them
learning rate      as long as the noise in one output, a standard deviation of 0.8, allows
=================  =================================================================================

Noisy sums are released beside the steps, for a small share of the budget: the mean row, and how
many training nodes each class has; of a regression how values spread and how far answers are off
(:mod:`graphveil.methods.moments`). Proofs: docs/guarantees/node.md.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from graphveil._errors import InvalidInputError
from graphveil.mechanisms import Gaussian
from graphveil.methods.budget import (
    choose_delta,
    noise_of_steps,
    scale_within,
    signal_to_noise,
)
from graphveil.methods.class_weights import PART, count_release, pays_for_counts, release_counts
from graphveil.methods.features import Features
from graphveil.methods.moments import plan_errors, plan_moments, release_errors, release_moments
from graphveil.methods.parts import Part, Release, Steps
from graphveil.methods.plan import Facts, Plan
from graphveil.methods.settings import (
    FeatureSettings,
    Optimizer,
    StepSettings,
    check_bound,
    setting,
    settings,
)
from graphveil.nn.descriptions import NodeNetwork

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch_geometric.data import Data

    from graphveil.methods.execution import Execution

INFLUENCE = (1, 0)  # a node removes its own loss term, and alters no other

_NOISE = 0.8  # in one output, at the end
_LONGEST = 5.0  # a learning rate for rows of length 4, beyond which steps overshoot
_DRAWN = 50_000  # training nodes that a step reads, about
_FEW_COLUMNS = 1024
_ROWS_AT_ONCE = 2048  # of a store, in float64 several times over
SHARES = {
    "mean": 0.05,
    "counts": 0.01,
    "moments": 0.01,
    "errors": 0.01,
}  # of a squared Gaussian mu; the steps get the rest


@settings(project_above=1_000_000_000, steps=100, max_grad_norm=2.0, averaged=0.5)
class OwnRowSettings(FeatureSettings, StepSettings):
    """Training on each node's own row."""

    num_layers: int = setting("Layers of the network.", 1, "[1, 10]")
    sample_rate: float | None = setting(  # type: ignore[assignment]
        "The probability with which a step draws each loss term; by default 1, or less where there "
        "are more than 50,000.",
        None,
        "(0, 1]",
    )
    optimizer: Optimizer | None = setting(  # type: ignore[assignment]
        "What steps with the noisy gradients; by default 'sgd' for one layer, 'adam' for more.",
        None,
    )
    learning_rate: float | None = setting(  # type: ignore[assignment]
        "The length of steps; by default what the noise in one output allows, and 0.02 for 'adam'.",
        None,
        "(0, inf)",
    )
    centred: bool | None = setting(
        "Whether a noisy mean row is released and taken away; by default with at most 1,024 "
        "columns.",
        None,
    )


# --- what the settings come to --------------------------------------------------------------------


def is_centred(method: Any, facts: Facts) -> bool:
    """Whether the mean row is released, and taken away from every row."""
    if method.features == "raw":  # rows of any length have no bounded mean
        if method.centred:
            raise InvalidInputError(
                "Rows must have one length for their mean to be released. Got centred=True with "
                "features='raw' instead; scale them ('power' or 'row'), or leave out 'centred'."
            )
        return False
    few = Features.of(method).columns(facts.num_features) <= _FEW_COLUMNS
    return few if method.centred is None else bool(method.centred)


def counts_classes(method: Any, facts: Facts) -> bool:
    """Whether training nodes of each class, or with each label, are counted."""
    return pays_for_counts(method) or (method.reads_prior and facts.task != "regression")


def choose_rate(method: Any, facts: Facts) -> float:
    """The probability with which a step draws each training node."""
    given: float | None = method.sample_rate
    return min(1.0, _DRAWN / facts.num_train) if given is None else given


def choose_optimizer(method: Any) -> str:
    """One layer is a convex problem, which plain steps solve; more are not."""
    given: str | None = method.optimizer
    return given or ("sgd" if method.num_layers == 1 else "adam")


def output_noise(steps: Steps, drawn: float, length: float) -> float:
    r"""The noise in one output of a linear model, on a row of such a length, after ``steps``.

    The noise of step s is added to the weights again and again by the momentum m, by step t with
    the weight (1 - m^{t-s+1}) / (1 - m), and the weights of the last steps are averaged. Left out
    is what the gradients do about it, and the bias: it makes sqrt(length^2 + 1) of the length.
    ``drawn`` is how many terms a step draws on average.
    """
    count, m = steps.count, steps.momentum
    first = count - max(1, round(steps.averaged * count))  # the first step whose weights count
    total = 0.0
    for step in range(count):
        since = max(step, first)
        # The sum over t = since, ..., count - 1 of 1 - m^{t-step+1}.
        powers = m ** (since - step + 1) * (1 - m ** (count - since)) / (1 - m)
        total += ((count - since - powers) / (1 - m) / (count - first)) ** 2
    bound = float(steps.max_grad_norm) * steps.noise_multiplier / drawn
    return steps.learning_rate * bound * length * math.sqrt(total)


def step_size(
    steps: Steps, drawn: float, length: float, *, noise: float = _NOISE, longest: float = math.inf
) -> float:
    """How long steps on rows of such a length are: as long as the ``noise`` in one output allows.

    ``steps`` have length 1 here. ``drawn`` is how many terms a step draws on average.
    """
    if steps.optimizer == "adam":
        return 0.02
    longest = min(longest, _LONGEST * (4.0 / length) ** 2)
    if steps.noise_multiplier == 0 or not isinstance(steps.max_grad_norm, int | float):
        return longest
    return min(longest, noise / output_noise(steps, drawn, length))


def row_length(method: Any) -> float:
    """How long the rows are that the network reads."""
    return 1.0 if method.features == "raw" else float(method.feature_scale)


def trust(method: Any) -> float:
    """How far outputs of a fitted method are believed: noise makes them look too sure."""
    steps, facts = method.plan_.part("weights"), method.plan_.facts
    if method.num_layers > 1:
        return 1.0
    return trust_in(steps, steps.rate * facts.num_train, row_length(method))


def trust_in(steps: Steps, drawn: float, length: float) -> float:
    """How far outputs of a linear model are believed after ``steps`` on rows of such a length.

    Over noise of a known size, a logistic output has the mean of one that is that much smaller.
    """
    if steps.optimizer != "sgd" or steps.clipping != "flat":
        return 1.0
    return 1 / math.sqrt(1 + math.pi / 8 * output_noise(steps, drawn, length) ** 2)


# --- plan -----------------------------------------------------------------------------------------


def describe_network(method: Any, facts: Facts, dropout: float = 0.0) -> NodeNetwork:
    """A network of each node's own row."""
    return NodeNetwork(
        in_channels=Features.of(method).columns(facts.num_features),
        hidden_channels=method.hidden_channels,
        out_channels=method.task(facts).outputs,
        num_layers=0,
        encoder_layers=method.num_layers - 1,
        decoder_layers=1,
        activation=method.activation,
        dropout=dropout,
        prior=_size_of_prior(facts) if method.reads_prior else 0,
    )


def plan_own_rows(method: Any, facts: Facts) -> Plan:
    """Noisy sums, and private steps, with the least noise that fits the budget."""
    check_bound(method.max_grad_norm, method.clipping)
    parameters = method.network(facts).num_parameters  # refuses what makes no network
    delta = choose_delta(method.delta, method.num_units(facts))
    scale = scale_within(
        lambda scale: _parts(method, facts, scale), epsilon=method.epsilon, delta=delta
    )
    parts = _parts(method, facts, scale)
    steps = next(part for part in parts if isinstance(part, Steps))
    drawn = steps.rate * facts.num_train
    return Plan(
        method=method.name,
        facts=facts,
        unit="node",
        delta=delta,
        parts=parts,
        inference=(method.inferences[0].says(method, "node"),),
        details={
            "noise_multiplier": steps.noise_multiplier,
            "sample_rate": steps.rate,
            "steps": steps.count,
            "learning_rate": steps.learning_rate,
            "layers": method.num_layers,
            "columns": Features.of(method).columns(facts.num_features),
            "centred": float(is_centred(method, facts)),
            "removed": steps.removed,
            "altered": steps.altered,
            "parameters": parameters,
            "signal_to_noise": signal_to_noise(drawn, steps.noise_multiplier, parameters),
        },
    )


def _parts(method: Any, facts: Facts, scale: float) -> tuple[Part, ...]:
    """What is released, when a Gaussian with the whole budget has the noise ``scale``."""
    released = _released(method, facts)
    left = 1.0 - sum(SHARES[name] for name in released)
    rate, (removed, altered) = choose_rate(method, facts), INFLUENCE
    strength = left / scale**2
    steps = Steps(
        name="weights",
        count=method.steps,
        rate=rate,
        noise_multiplier=noise_of_steps(strength, rate, method.steps, INFLUENCE),
        removed=removed,
        altered=altered,
        population=facts.num_train,
        clipping=method.clipping,
        max_grad_norm=method.max_grad_norm,
        optimizer=choose_optimizer(method),
        momentum=method.momentum,
        learning_rate=1.0,
        averaged=method.averaged,
    )
    size = method.learning_rate
    if size is None:
        noise = _NOISE * method.task(facts).noise
        size = step_size(steps, rate * facts.num_train, row_length(method), noise=noise)
    noises = {name: scale / math.sqrt(SHARES[name]) for name in released}
    labels = facts.num_classes if facts.task == "multilabel" else None
    sums = {
        "counts": lambda noise: count_release(noise, labels=labels),
        "moments": plan_moments,
        "mean": plan_mean,
        "errors": plan_errors,
    }
    made = {name: sums[name](noises[name]) for name in released}
    after = [made.pop("errors")] if "errors" in made else []
    return *made.values(), replace(steps, learning_rate=size), *after


def _released(method: Any, facts: Facts) -> list[str]:
    """What is released besides the steps, in its order; the errors come after them."""
    values = method.reads_prior and facts.task == "regression"
    return [
        *(["counts"] if counts_classes(method, facts) else []),
        *(["moments"] if values else []),
        *(["mean"] if is_centred(method, facts) else []),
        *(["errors"] if values else []),
    ]


def _size_of_prior(facts: Facts) -> int:
    """How many numbers are known before any row is read: a class's share, or three of values."""
    return 3 if facts.task == "regression" else facts.num_classes


PAID_FOR_MEAN = "a noisy sum of the training nodes' rows"


def plan_mean(noise: float) -> Release:
    """Rows are scaled to length 1: a node moves their sum by one."""
    return Release(
        name="mean",
        paid_for=PAID_FOR_MEAN,
        mechanism=Gaussian(noise_multiplier=noise, sensitivity=1.0),
    )


# --- training -------------------------------------------------------------------------------------


def prepare(method: Any, data: Data) -> Any:
    """The rows that the network reads."""
    return Features.of(method).read(data, keep_sparse=True)


def own_terms(method: Any, data: Data, centre: Tensor | None = None) -> Any:
    """One loss term for each training node, less the ``centre`` if there is one."""
    from graphveil.graph.lazy_rows import LazyRows
    from graphveil.methods.terms import own_row_terms

    rows = prepare(method, data)
    if centre is None:
        return own_row_terms(rows, data)
    if isinstance(rows, LazyRows):
        return own_row_terms(rows.then(lambda some: some.to_dense() - centre), data)
    return own_row_terms(rows.to_dense() - centre, data)


def train_own_rows(method: Any, execution: Execution, data: Data) -> nn.Module:
    """Release the sums, take the steps, and have the network read rows as they are."""
    import torch

    from graphveil.graph.lazy_rows import pick_rows
    from graphveil.methods.terms import node_losses, on_own_rows

    plan = execution.plan
    facts, network = plan.facts, method.build(plan.facts)
    if method.num_layers == 1:  # zero is where noise has told nothing yet
        torch.nn.init.zeros_(network.decoder.linears[0].weight)
        torch.nn.init.zeros_(network.decoder.linears[0].bias)
    values = method.reads_prior and facts.task == "regression"
    if values:
        network.log_prior[:2] = torch.tensor(release_moments(execution, data))
    elif method.reads_prior:
        network.log_prior.copy_(_release_prior(execution, data))
    centre = release_mean(method, execution, data) if is_centred(method, facts) else None
    losses = node_losses(method.task(facts), execution.class_weights)
    execution.train(plan.part("weights"), network, own_terms(method, data, centre), losses)
    if centre is not None:
        first = network.encoder.linears[0] if method.num_layers > 1 else network.decoder.linears[0]
        read_uncentred(first, centre)
    if values:
        rows = pick_rows(prepare(method, data), data.train_mask)
        with torch.no_grad():
            answers = on_own_rows(network.eval(), rows)
        network.log_prior[2] = release_errors(execution, answers, data)
    return network


def read_uncentred(first: nn.Linear, centre: Tensor) -> None:
    """Have a layer that was trained on rows less the ``centre`` read rows as they are."""
    import torch

    with torch.no_grad():
        first.bias.sub_(first.weight @ centre)


def release_mean(method: Any, execution: Execution, data: Data) -> Tensor:
    """The mean of the training nodes' rows, through noise; a row that is not finite is nothing."""
    import torch

    from graphveil.graph.aggregation import bounded_rows
    from graphveil.graph.lazy_rows import LazyRows, pick_rows, slices
    from graphveil.methods.owners import sum_by_owner

    length = row_length(method)
    train = pick_rows(prepare(method, data), data.train_mask)
    parts = [slice(None)]
    if isinstance(train, LazyRows) and "owner" not in data:
        parts = list(slices(len(train), _ROWS_AT_ONCE))
    total = torch.zeros(train.shape[1], dtype=torch.float64)
    for some in parts:
        rows = train[some] if isinstance(train, LazyRows) else train
        # On a grid, so that float64 adds them exactly: a row moves the sum by itself alone.
        total += sum_by_owner(bounded_rows(rows.to_dense() / length), data)
    noisy = execution.release(
        execution.plan.part("mean"),
        lambda mechanism, rng: {"mean": mechanism.release(total, rng)},
    )["mean"]
    return (length * noisy / execution.plan.facts.num_train).float()


def _release_prior(execution: Execution, data: Data) -> Tensor:
    """The logarithms of the classes' shares, through noise, and no smaller than the noise.

    Classes that weigh more are met more often. Of labels it is each one's share of all nodes.
    """
    facts, mechanism = execution.plan.facts, execution.plan.part(PART).mechanism
    noisy = release_counts(execution, data)
    least = max(1.0, mechanism.noise_multiplier * mechanism.sensitivity)
    if facts.task == "multilabel":
        middle = facts.num_train / 2
        share = noisy.clamp(min(least, middle), max(facts.num_train - least, middle))
        return (share / facts.num_train).float().log()
    logarithms = noisy.clamp_min(least).float().log()
    if execution.class_weights is not None:
        logarithms = logarithms + execution.class_weights.log()
    return logarithms.log_softmax(0)
