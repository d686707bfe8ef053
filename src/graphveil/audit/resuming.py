"""Kills a run in the middle, resumes it, and looks for noise that was used twice."""

from __future__ import annotations

import contextlib
import copy
import hashlib
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from torch_geometric.data import Data

from graphveil._observing import Observer, observe
from graphveil.audit.results import Finding, Violation
from graphveil.mechanisms import GumbelTopK
from graphveil.methods.base import Method
from graphveil.methods.parts import Steps
from graphveil.methods.plan import Facts
from graphveil.privacy.accounting import epsilon_of
from graphveil.privacy.events import composed, repeated


class _Killed(BaseException):
    """Ends a run in the middle, as a signal would."""


class _Noises(Observer):
    """Notes the noise of every release, and kills the run before a step."""

    def __init__(self, kill_at: int | None) -> None:
        self.kill_at, self.part = kill_at, None
        self.noises: list[tuple[str, bytes]] = []
        self.steps: Counter[str] = Counter()

    def begin(self, part: Any) -> None:
        self.part = part

    def step(self, step: Any, drawn: Any, vector: Any) -> None:
        if self.kill_at is not None and step.taken > self.kill_at:
            raise _Killed

    def release(self, mechanism: Any, value: Any, result: Any) -> Any:
        name = "" if self.part is None else self.part.name
        if isinstance(self.part, Steps):
            self.steps[name] += 1
        if not isinstance(mechanism, GumbelTopK):
            noise = np.round(np.asarray(result - value, dtype=float), 9)
            self.noises.append((name, hashlib.blake2b(noise.tobytes()).digest()))
        return result


def replay_resume(method: Method, data: Data, directory: Path, *, name: str = "data") -> Finding:
    """Kill a run in the middle, resume it, and look for noise that was used twice.

    ``directory`` must be empty; what is left there is a run like any other.
    """
    plan = method.plan(Facts.of(data)).on(data)
    counts = [part.count for part in plan.parts if isinstance(part, Steps)]
    killed = _Noises(max(1, max(counts, default=0) // 2))
    fitted = copy.copy(method)
    with contextlib.suppress(_Killed), observe(killed):
        fitted.fit(data, directory=directory)
    resumed = _Noises(None)
    with observe(resumed):
        fitted.fit(data, directory=directory)
    noises = [*killed.noises, *resumed.noises]
    repeated_noises = len(noises) - len({digest for _, digest in noises})
    violations = []
    if repeated_noises:
        rule = "noise is used a second time after a resume"
        violations.append(Violation(rule=rule, value=f"{repeated_noises} times", allowed="0"))
    begun = killed.steps + resumed.steps
    cost = epsilon_of(composed(*(_event(part, begun) for part in plan.parts)), plan.delta)
    certificate = fitted.certificate_.guarantee.epsilon
    if plan.sampled_at == 1 and not certificate >= cost * (1 - 1e-6):
        violations.append(
            Violation(
                rule="a resumed run is charged for less than it released",
                value=f"epsilon {certificate:.6g}",
                allowed=f"{cost:.6g} or more",
            )
        )
    return Finding(
        kind="replay",
        name=f"{method.name} on {name}, killed and resumed",
        holds=not violations,
        figures={"released": len(noises), "killed after": sum(killed.steps.values())},
        violations=tuple(violations),
    )


def _event(part: Any, begun: Counter[str]) -> Any:
    """What a part cost, by the releases that were seen."""
    if isinstance(part, Steps):
        return repeated(part.sampling.event(part.population), begun[part.name])
    return part.event
