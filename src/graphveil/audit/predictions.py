"""Replays of predictions, of the modes that promise something to whoever is not asked about.

*Cached*. Given the same releases of training, the answers about everybody but the withheld record
must be the same, to the last bit: they are functions of a record's own row, which is not released
to others, and of released sums. *Noisy*. What goes into the release moves by at most its
sensitivity, the noise on it is that of the charge, and the answers about everybody else follow from
what was released.

Predictions in the open (``visible``, ``disjoint``) promise nothing to whoever is read, and are not
replayed.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from graphveil._observing import Observer, observe
from graphveil.audit.noise import Noises, check_noise
from graphveil.audit.recording import Released
from graphveil.audit.results import Violation
from graphveil.methods.base import Method
from graphveil.methods.plan import Plan
from graphveil.privacy.accounting import epsilon_of
from graphveil.privacy.events import composed, repeated

MODES = ("cached", "noisy")
_EPSILON = 1.0  # that a noisy prediction may spend here
_ROUNDING = 1e-6  # of a sensitivity, and of a price


@dataclass
class Answers(Observer):
    """The answers in one mode, and what was released for them; with ``first``, as there."""

    mode: str
    first: Answers | None = None
    released: list[Released] = field(default_factory=list)
    values: Tensor | None = None

    def release(self, mechanism: Any, value: Any, result: Any) -> Any:
        """Note it, and answer with what the first world released."""
        place = len(self.released)
        self.released.append(Released(self.mode, mechanism, np.array(value), np.array(result)))
        if self.first is None or place >= len(self.first.released):
            return result
        other = self.first.released[place].result
        return other.copy() if other.shape == np.shape(result) else result


def modes_of(method: Method, plan: Plan) -> tuple[str, ...]:
    """The modes that are replayed."""
    if plan.relation != "withhold" or plan.sampled_at < 1:
        return ()
    return tuple(mode for mode in MODES if mode in method.modes)


def predict(
    fitted: Method, data: Data, mode: str, first: Answers | None = None
) -> tuple[Method, Answers]:
    """What a trained method answers, and the method as it was charged for that."""
    answers, method = Answers(mode, first), copy.copy(fitted)
    method.charges_, method.inference_ = list(fitted.charges_), list(fitted.inference_)
    with observe(answers):
        answers.values = method.infer(data, mode, _EPSILON if mode == "noisy" else None)
    return method, answers


def check_prediction(fitted: Method, data: Data, mode: str) -> tuple[Answers, list[Violation]]:
    """What one world shows by itself: as much noise as is charged."""
    before = len(fitted.charges_)
    method, answers = predict(fitted, data, mode)
    violations = check_noise([Noises(mode, answers.released, _scale_of)])
    delta = method.plan_.delta
    charged = composed(*(charge.event for charge in method.charges_[before:]))
    # Rows that are released in blocks are one release of the whole.
    rows: dict[Any, int] = {}
    for one in answers.released:
        rows[one.mechanism] = rows.get(one.mechanism, 0) + len(one.value)
    seen = [
        repeated(mechanism.event(), max(1, round(count / len(data.x))))
        for mechanism, count in rows.items()
    ]
    cost = epsilon_of(composed(*seen), delta) if seen else 0.0
    paid = epsilon_of(charged, delta) if len(method.charges_) > before else 0.0
    if not cost <= paid * (1 + _ROUNDING):
        violations.append(
            Violation(
                rule="a prediction is charged for less than it released",
                part=mode,
                value=f"epsilon {paid:.6g}",
                allowed=f"{cost:.6g} or more",
            )
        )
    return answers, violations


def compare_predictions(
    first: Answers, second: Answers, record: int | list[int] | None, *, own_rows: bool
) -> list[Violation]:
    """What a neighbour shows; with ``own_rows`` those of the record itself may differ."""
    assert first.values is not None
    assert second.values is not None
    mode, kept = first.mode, torch.ones(len(first.values), dtype=torch.bool)
    if record is not None:
        kept[record] = False
    violations = []
    one, two = first.values[kept], second.values[kept]
    apart = ~((one == two) | (one.isnan() & two.isnan()))
    if bool(apart.any()):
        violations.append(
            Violation(
                rule="answers about others differ although all releases are the same: something "
                "else is let out",
                part=f"prediction, {mode}",
                value=f"{int(apart.any(1).sum())} of {len(one)} records",
                allowed="0",
            )
        )
    for old, new in zip(first.released, second.released, strict=False):
        moved = np.abs(new.value - old.value)
        if own_rows and isinstance(record, int) and len(moved) > record:
            moved[record] = 0
        distance = float(np.linalg.norm(moved))
        most = old.mechanism.sensitivity
        if not distance <= most * (1 + _ROUNDING):
            violations.append(
                Violation(
                    rule="a released value moves further than its sensitivity",
                    part=f"prediction, {mode}",
                    value=f"{distance:.6g}",
                    allowed=f"{most:.6g}",
                )
            )
    if len(first.released) != len(second.released):
        violations.append(Violation(rule="another number of releases", part=f"prediction, {mode}"))
    return violations


def _scale_of(mechanism: Any) -> float:
    return float(mechanism.noise_multiplier * mechanism.sensitivity)
