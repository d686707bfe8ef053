"""Of a regression: how values spread, and how far answers from own rows are off; through noise.

Values v are in half ranges from the middle of the range, in [-1, 1]. Two sums are released:

=========  ============================================  ======================================
moments    the sum over training nodes of                a node moves it by 1 at most, since
           (v, v^2) / sqrt(2)                            v^2 + v^4 is at most 2
errors     the sum over training nodes of                a node moves it by 1 at most: an error
           (answer - v)^2, at most 1 each                of half the range counts as the worst
=========  ============================================  ======================================

Rows are on a grid on which float64 adds exactly, so that a node moves a sum by its own row alone.
Of an owner of several nodes it is the mean of their rows that is added.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from graphveil.mechanisms import Gaussian
from graphveil.methods.parts import Release

if TYPE_CHECKING:
    from torch import Tensor
    from torch_geometric.data import Data

    from graphveil.methods.execution import Execution

LEVEL = 0.9  # of intervals
_NINE_OF_TEN = 1.645  # standard deviations of a normal number
_LEAST = 1e-4  # of a variance, in squared half ranges


def plan_moments(noise: float) -> Release:
    """The release of the moments, with such a noise multiplier."""
    return Release(
        name="moments",
        paid_for="noisy moments of the training nodes' values",
        mechanism=Gaussian(noise_multiplier=noise, sensitivity=1.0),
    )


def plan_errors(noise: float) -> Release:
    """The release of the errors, with such a noise multiplier."""
    return Release(
        name="errors",
        paid_for="a noisy sum of the training nodes' squared errors",
        mechanism=Gaussian(noise_multiplier=noise, sensitivity=1.0),
    )


def release_moments(execution: Execution, data: Data) -> tuple[float, float]:
    """The mean and the variance of the training nodes' values."""
    import torch

    values = _values(data)
    rows = torch.stack([values, values.square()], 1) / math.sqrt(2)
    total = _release(execution, "moments", rows, data) * math.sqrt(2)
    mean, square = (total / execution.plan.facts.num_train).clamp(-1.0, 1.0).tolist()
    return mean, max(square - mean**2, _LEAST)


def release_errors(execution: Execution, answers: Tensor, data: Data) -> float:
    """The mean squared error of ``answers`` (training nodes, 1) on the training nodes.

    One deviation of its noise is added: answers are trusted too little rather than too much.
    """
    off = answers.squeeze(1).double().clamp(-1.0, 1.0) - _values(data)
    known = data.y[data.train_mask] >= 0
    rows = off.square().clamp_max(1.0).where(known, 0.0).unsqueeze(1)
    total = _release(execution, "errors", rows, data)
    noise = execution.plan.part("errors").mechanism.noise_multiplier
    return max(float(total[0]) + noise, noise) / execution.plan.facts.num_train + _LEAST


def has_interval(method: Any) -> bool:
    """Whether :func:`interval_of` a method's answers is known: of values whose errors it has."""
    known = getattr(method.network_, "log_prior", None)
    return method.plan_.facts.task == "regression" and known is not None


def interval_of(method: Any, answers: Tensor) -> tuple[Tensor, Tensor] | None:
    """Around every value, where nine of ten true ones lie if errors are normal; None if not known.

    The size is that of errors from own rows on the training nodes, which was released. Nothing is
    promised for records that are unlike those.
    """
    from graphveil.methods.task import Regression

    if not has_interval(method):
        return None
    task, known = method.task(method.plan_.facts), method.network_.log_prior
    assert isinstance(task, Regression)
    reach = _NINE_OF_TEN * math.sqrt(float(known[2])) * (task.high - task.low) / 2
    value = answers.squeeze(1)
    return (value - reach).clamp_min(task.low), (value + reach).clamp_max(task.high)


def _values(data: Data) -> Tensor:
    """In half ranges; nothing of who is withheld."""
    targets = data.y[data.train_mask].double()
    return (2 * targets - 1).where(targets >= 0, 0.0)


def _release(execution: Execution, name: str, rows: Tensor, data: Data) -> Tensor:
    from graphveil.graph.aggregation import bounded_rows
    from graphveil.methods.owners import sum_by_owner

    total = sum_by_owner(bounded_rows(rows), data)
    noisy: Tensor = execution.release(
        execution.plan.part(name), lambda mechanism, rng: {name: mechanism.release(total, rng)}
    )[name]
    return noisy
