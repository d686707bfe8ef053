"""Weights of classes: public numbers, or noisy counts, for which the plan has a part.

A weight multiplies the loss of every record of a class. The largest weight is 1, so that rare
classes are not clipped away: common ones weigh less. Counts read in the open would be a release
that nothing pays for; under edge units labels are public, and so are their counts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from graphveil import _validate
from graphveil._errors import InvalidInputError, UnprovenError
from graphveil.graph.targets import OF_CLASSES
from graphveil.mechanisms import Gaussian
from graphveil.methods.parts import Part, Release
from graphveil.privacy.accounting import calibrate

if TYPE_CHECKING:
    from torch import Tensor
    from torch_geometric.data import Data

    from graphveil.methods.execution import Execution
    from graphveil.methods.plan import Facts

PART = "counts"
SHARE = 0.05  # of epsilon, where a method has no share of its own
_LEAST = 0.1  # of the weight of the rarest class: that of the commonest


def is_noisy(method: Any) -> bool:
    """Whether classes are counted."""
    return isinstance(method.class_weights, str)


def pays_for_counts(method: Any) -> bool:
    """Whether counts cost something: labels are private under units that hold them."""
    unit: str = getattr(method, "unit", method.units[0])
    return is_noisy(method) and method.private and not unit.startswith("edge")


def check_class_weights(method: Any, facts: Facts) -> None:
    """Refuse anything but None, 'noisy', and a public number for each class or label."""
    weights = method.class_weights
    if weights is None:
        return
    if facts.task in ("regression", "link"):
        raise InvalidInputError(
            f"The 'class_weights' parameter must go with classes or labels. Got {weights!r} for a "
            f"{facts.task} instead; leave it out."
        )
    if isinstance(weights, str):
        _check_counting(method, facts)
        return
    listed = list(weights) if isinstance(weights, Sequence) else []
    if len(listed) != facts.num_classes:
        of = "label" if facts.task == "multilabel" else "class"
        raise InvalidInputError(
            f"The 'class_weights' parameter must have {facts.num_classes} numbers, one for each "
            f"{of}. Got {weights!r} instead."
        )
    for weight in listed:
        _validate.number("class_weights", weight, "(0, inf)")


def _check_counting(method: Any, facts: Facts) -> None:
    if method.class_weights != "noisy":
        raise UnprovenError(
            "The 'class_weights' parameter must be public numbers, one for each class, or 'noisy', "
            "which counts classes for a share of the budget. Got "
            f"{method.class_weights!r} instead; counts read off private labels are a release."
        )
    if facts.task not in OF_CLASSES:
        raise InvalidInputError(
            "The 'class_weights' must be 'noisy' for records that are in one class each. Got the "
            f"task {facts.task!r} instead; give public numbers, one for each label."
        )
    claims = getattr(method, "paper", False) or getattr(method, "claimed_noise", False)
    if method.private and claims:  # who trains in the open counts in the open
        raise InvalidInputError(
            "No paper counts classes. Got class_weights='noisy' with what a paper claims; leave "
            "one of the two out."
        )


def plan_counts(method: Any, delta: float, records: int = 1) -> list[Part]:
    """The release that counts classes, if there is one; a record is in one class, and moves it.

    A unit may have several ``records``, all in one class.
    """
    if not pays_for_counts(method):
        return []
    noise = calibrate(
        lambda sigma: Gaussian(noise_multiplier=sigma, sensitivity=1.0).event(),
        epsilon=getattr(method, "weights_share", SHARE) * method.epsilon,
        delta=delta / 10,
        safe=1e7,
        risky=1e-2,
    )
    return [count_release(noise, method.record, records=records)]


def count_release(
    noise: float, record: str = "node", labels: int | None = None, records: int = 1
) -> Release:
    """Noisy numbers of training records in each class: a record moves one of them by one.

    With several ``labels`` a record may have them all.
    """
    of = "graphs" if record == "graph" else "training nodes"
    counted = "in each class" if labels is None else "with each label"
    bound = 1.0 if labels is None else math.sqrt(labels)
    return Release(
        name=PART,
        paid_for=f"noisy numbers of {of} {counted}",
        mechanism=Gaussian(noise_multiplier=noise, sensitivity=records * bound),
    )


def weigh_classes(method: Any, execution: Execution, data: Data) -> Tensor | None:
    """The weights of classes, the largest 1; None where there are none. Releases what it counts."""
    import torch

    if method.class_weights is None:
        return None
    if not is_noisy(method):
        listed = torch.tensor(method.class_weights, dtype=torch.float32)
        return listed / listed.max()
    if pays_for_counts(method):
        return weights_from(release_counts(execution, data))
    return weights_from(_count_classes(execution.plan.facts, data))


def release_counts(execution: Execution, data: Data) -> Tensor:
    """How many training records each class or label has, through noise; once in an execution."""
    if execution.class_counts is None:
        counts = _count_classes(execution.plan.facts, data)
        execution.class_counts = execution.release(
            execution.plan.part(PART),
            lambda mechanism, rng: {PART: mechanism.release(counts, rng)},
        )[PART]
    return execution.class_counts


def _count_classes(facts: Facts, data: Data) -> Tensor:
    """How many training records each class or label has; who is withheld is in none.

    Where an owner's records are one term, an owner is in each class by the share of their records.
    """
    import torch
    from torch.nn import functional as F

    from graphveil.methods.owners import sum_by_owner

    labels = data.y[data.train_mask]
    if facts.pools_owners:
        several = facts.task == "multilabel"
        flags = labels == 1 if several else F.one_hot(labels + 1, facts.num_classes + 1)[:, 1:]
        return sum_by_owner(flags.double(), data, math.sqrt(facts.num_classes) if several else 1.0)
    if facts.task == "multilabel":
        return (labels == 1).sum(0).double()
    return torch.bincount(labels[labels >= 0], minlength=facts.num_classes).double()


def weights_from(counts: Tensor) -> Tensor:
    """Rare classes weigh up to ten times as much as the commonest."""
    share = (counts / counts.max().clamp_min(1.0)).clamp(_LEAST, 1.0)
    return (share.min() / share).float()
