"""Whether an optimiser follows its plan: what may leave a step is the released vector, and no more.

A learning rate that follows the batch says how large it was, and weights that something else than
the optimiser moves may say anything. So at every step the optimiser's numbers must be those of the
plan, and the weights those that its last step left.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from graphveil.audit.results import Violation
from graphveil.grads.modules import trained_parameters
from graphveil.methods.open_training import make_optimizer
from graphveil.methods.parts import Steps


class Optimising:
    """Watches the optimiser of one step; what is wrong goes to ``violations``."""

    def __init__(self, part: Any, step: Any, violations: list[Violation]) -> None:
        self.part, self.step, self.violations = part, step, violations
        self.numbers = self._plan()
        self.weights: dict[str, Tensor] | None = None

    def watch(self) -> None:
        """From the next step on."""
        self.step.optimizer.register_step_pre_hook(lambda *_: self._before())
        self.step.optimizer.register_step_post_hook(lambda *_: self._after())

    def _plan(self) -> list[dict[str, Any]]:
        """The numbers of every group of parameters; of a part by its plan, else as they are."""
        if not isinstance(self.part, Steps):
            return _numbers_of(self.step.optimizer)
        part = self.part
        weight = nn.Parameter(torch.zeros(1))
        made = make_optimizer(part.optimizer, [weight], part.learning_rate, momentum=part.momentum)
        return _numbers_of(made)

    def _before(self) -> None:
        number = self.step.taken - 1
        if isinstance(self.part, Steps):
            steps = self.part.count if self.step.max_steps is None else self.step.max_steps
            rate = self.part.learning_rate * self.part.decay ** (number / steps)
            self.numbers = [{**group, "lr": rate} for group in self.numbers]
        seen = _numbers_of(self.step.optimizer)
        for planned, group in zip(self.numbers, seen, strict=False):
            for name, value in group.items():
                if name not in planned or value != planned[name]:
                    self._note(
                        f"the optimiser gets something else than is planned: '{name}'",
                        f"{value}",
                        f"{planned.get(name)}",
                    )
        if len(seen) != len(self.numbers):
            self._note("the optimiser has other groups of parameters than are planned", "", "")
        for name, value in trained_parameters(self.step.module).items():
            if self.weights is not None and not torch.equal(value, self.weights[name]):
                self._note(
                    f"weights '{name}' were changed by something else than the optimiser", "", ""
                )

    def _after(self) -> None:
        """An optimiser may change its own numbers by what it was given; nobody else may."""
        self.weights = {
            name: value.detach().clone()
            for name, value in trained_parameters(self.step.module).items()
        }
        if not isinstance(self.part, Steps):
            self.numbers = _numbers_of(self.step.optimizer)

    def _note(self, rule: str, value: str, allowed: str) -> None:
        name = "" if self.part is None else str(self.part.name)
        self.violations.append(
            Violation(rule=rule, part=name, step=self.step.taken - 1, value=value, allowed=allowed)
        )


def _numbers_of(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """All settings of every group, but for the parameters."""
    return [
        {
            name: tuple(value) if isinstance(value, (list, tuple)) else _plain(value)
            for name, value in group.items()
            if name != "params"
        }
        for group in optimizer.param_groups
    ]


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, Tensor) and value.numel() == 1 else value
