"""How a model learns: its loss on the test records after every few steps.

    for curve in loss_curves(arranged, [GraphDPSGD(conv="gcn"), GraphDPSGD(conv="gat")]):
        print(curve.label, curve.loss[-1])

The weights after every step of a private run are released anyway, so looking at them costs the
training records nothing. Training losses would be a release; these are of test records.

*Guarantee*: none for the curves, which read the labels of test records, as an accuracy does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch.nn import functional as F

from graphveil import _validate
from graphveil._errors import InvalidInputError
from graphveil.methods import Facts, Method
from graphveil.methods.base import Progress
from graphveil.methods.private import PrivateMethod, SteppedMethod
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
    that train one network: a gap or dpar run has parts that cannot be looked at half-way.
    """
    _validate.integer("every", every, "[1, 1e9]")
    names = [method.name for method in methods] if labels is None else list(labels)
    for method in methods:
        if isinstance(method, PrivateMethod) and not isinstance(method, SteppedMethod):
            raise InvalidInputError(
                "A curve must be of a method that trains one network step by step. Got "
                f"'{method.name}' instead; leave it out."
            )
    return [
        _curve(arranged, method, label, every, progress)
        for method, label in zip(methods, names, strict=True)
    ]


def _curve(
    arranged: Arranged, method: Method, label: str, every: int, progress: Progress | None
) -> Curve:
    testing = arranged.testing
    wanted = testing.test_mask & (testing.y >= 0)
    if not wanted.any():
        raise InvalidInputError("The 'test_mask' must hold a labelled record. Got none instead.")
    made, networks = method._made, []

    def kept(facts: Facts) -> Any:
        networks.append(made(facts))
        return networks[-1]

    found: list[tuple[int, float, float]] = []

    def look(step: int) -> None:
        network = networks[-1]
        training = network.training
        method.network_ = network
        chances = method.predict_proba(testing)[wanted]
        network.train(training)
        y = testing.y[wanted]
        loss = float(F.nll_loss(chances.clamp_min(1e-12).log(), y))
        found.append((step, loss, float((chances.argmax(1) == y).float().mean())))

    def watched(steps: Iterable[int]) -> Iterator[int]:
        look(0)
        for taken, step in enumerate(steps if progress is None else progress(steps), 1):
            yield step
            if taken % every == 0:
                look(taken)

    method._made = kept  # type: ignore[method-assign]
    try:
        method.fit(arranged.training, progress=watched)
    finally:
        del method._made
    steps, losses, accuracies = zip(*found, strict=True)
    return Curve(label=label, steps=steps, loss=losses, accuracy=accuracies)
