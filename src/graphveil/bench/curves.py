"""How a model learns: its loss on the test records after every few steps.

    for curve in loss_curves(arranged, [GraphDPSGD(epsilon=5, conv="gcn"), baseline]):
        print(curve.label, curve.loss[-1])

The weights after every step of a private run are released anyway, so looking at them costs the
training records nothing. Training losses would be a release; these are of test records.

*Guarantee*: none for the curves, which read the labels of test records, as an accuracy does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from graphveil import _validate
from graphveil._errors import InvalidInputError
from graphveil.graph.targets import is_labelled
from graphveil.methods import Facts, Method, Plan

if TYPE_CHECKING:
    from graphveil._progress import Progress
    from graphveil.runs import Arranged


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Mean cross-entropy and accuracy on the test records after so many steps."""

    label: str
    steps: tuple[int, ...]
    loss: tuple[float, ...]
    accuracy: tuple[float, ...]


def loss_curves(
    arranged: Arranged,
    methods: Sequence[Method],
    labels: Sequence[str] | None = None,
    *,
    every: int = 5,
    progress: Progress | None = None,
) -> list[Curve]:
    """Train each method, and look at it before the first step and after every ``every`` steps.

    The curve is of the weights as they are then, before any average over steps. Methods are those
    that train one network: a gap run has parts that cannot be looked at half-way.
    """
    _validate.integer("every", every, "[1, 1e9]")
    names = [method.name for method in methods] if labels is None else list(labels)
    plans = [_plan(arranged, method) for method in methods]
    return [
        _curve(arranged, method, plan, label, every, progress)
        for method, plan, label in zip(methods, plans, names, strict=True)
    ]


def fit_with_curve(arranged: Arranged, method: Method, label: str, *, every: int) -> Curve:
    """Train one method, which is fitted then, and look at it after every ``every`` steps."""
    return _curve(arranged, method, _plan(arranged, method), label, every, None)


def _plan(arranged: Arranged, method: Method) -> Plan:
    plan = method.plan(Facts.of(arranged.training)).on(arranged.training)
    if plan.parts[-1].name != "weights":
        raise InvalidInputError(
            "A curve must be of a method that trains one network step by step. Got "
            f"'{method.name}' instead; leave it out."
        )
    return plan


def _curve(
    arranged: Arranged,
    method: Method,
    plan: Plan,
    label: str,
    every: int,
    progress: Progress | None,
) -> Curve:
    from torch.nn import functional as F

    testing = arranged.testing
    tested = testing.test_mask & is_labelled(testing.y)
    if not tested.any():
        raise InvalidInputError("The 'test_mask' must hold a labelled record. Got none instead.")
    y = testing.y[tested]
    points: list[tuple[int, float, float]] = []

    def look(network: Any, step: int) -> None:
        if step % every:
            return
        training, method.network_ = network.training, network
        chances = method.predict_proba(testing)[tested]
        network.train(training)
        loss = float(F.nll_loss(chances.clamp_min(1e-12).log(), y))
        points.append((step, loss, float((chances.argmax(1) == y).float().mean())))

    method.run(plan, arranged.training, progress=progress, on_step=look)
    steps, losses, accuracies = zip(*points, strict=True)
    return Curve(label=label, steps=steps, loss=losses, accuracy=accuracies)
