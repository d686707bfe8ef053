"""Training without privacy: batches, a learning rate that may move, the best weights kept."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from graphveil import _validate, devices
from graphveil.graph.checks import MASKS
from graphveil.graph.targets import OF_CLASSES, is_live
from graphveil.methods.task import Task

OPTIMIZERS = ("adam", "sgd")


def make_optimizer(
    name: str,
    parameters: Iterable[nn.Parameter],
    learning_rate: float,
    weight_decay: float = 0.0,
    momentum: float = 0.9,
) -> torch.optim.Optimizer:
    """Adam, or SGD with ``momentum``."""
    _validate.choice("optimizer", name, OPTIMIZERS)
    rate = _validate.number("learning_rate", learning_rate, "(0, inf)")
    if name == "sgd":
        return torch.optim.SGD(parameters, lr=rate, momentum=momentum, weight_decay=weight_decay)
    return torch.optim.Adam(parameters, lr=rate, weight_decay=weight_decay)


@contextmanager
def seeded_weights(seed: int) -> Iterator[None]:
    """Draw initial weights from ``seed``; torch's own stream goes on as if nothing had happened."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_validate.integer("seed", seed, "[0, 1e18]"))
        yield


def build_seeded(description: Any, seed: int) -> Any:
    """A network with fresh weights, the same for the same seed."""
    with seeded_weights(seed):
        return description.build()


@dataclass(frozen=True, kw_only=True)
class OpenTraining:
    """How to train in the open, and which weights to keep: the best on validation records.

    Every step reads all training records, or ``batch_size`` of them, shuffled. ``rate`` gives the
    share of the learning rate when a share of the steps is done. Weights are compared ``every`` few
    steps by the share of right decisions, or with ``by_loss`` by their loss. With ``at_once`` so
    many records go through the module together, and gradients of a step are added up; ``answer``
    gives the logits of validation records where that is faster all at once.
    """

    steps: int
    seed: int
    task: Task
    batch_size: int | None = None
    at_once: int | None = None
    answer: Callable[[Tensor], Tensor] | None = None
    rate: Callable[[float], float] = lambda done: 1.0
    weights: Tensor | None = None
    every: int = 5
    by_loss: bool = False
    on_loss: Callable[[float], None] | None = None
    on_step: Callable[[nn.Module, int], None] | None = None
    progress: Callable[[Iterable[int]], Iterable[int]] | None = None

    def __call__(
        self,
        module: nn.Module,
        optimizer: torch.optim.Optimizer,
        logits: Callable[[Tensor], Tensor],
        data: Any,
        train: Tensor | None = None,
    ) -> float:
        """Train ``module``, and return the score of the weights that were kept.

        ``logits`` gives those of some records, by their ids; ``train`` masks the records to learn
        from, by default those of the training mask.
        """
        # Dropout, too: no noise here is secret.
        with devices.placed(module), seeded_weights(self.seed):
            ids = data[MASKS[0]] if train is None else train
            return self._train(module, optimizer, logits, data, ids)

    def _train(
        self,
        module: nn.Module,
        optimizer: torch.optim.Optimizer,
        logits: Callable[[Tensor], Tensor],
        data: Any,
        train: Tensor,
    ) -> float:
        y, ids = data.y, train.nonzero().flatten()
        compared = (data.val_mask & is_live(y)).nonzero().flatten()
        rates = [group["lr"] for group in optimizer.param_groups]
        best, kept = (-math.inf, 0.0), copy.deepcopy(module.state_dict())
        planned, batches = range(self.steps), self._batches(ids)
        if self.on_step is not None:
            self.on_step(module, 0)
        for taken in planned if self.progress is None else self.progress(planned):
            for group, whole in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = whole * self.rate(taken / self.steps)
            batch = next(batches)
            module.train()
            optimizer.zero_grad()
            total = 0.0
            for part in self._parts(batch):
                loss = self._loss(logits(part), y[part]) * (len(part) / len(batch))
                loss.backward()
                total += float(loss.detach())
            optimizer.step()
            if self.on_loss is not None:
                self.on_loss(total)
            if self.on_step is not None:
                self.on_step(module, taken + 1)
            if len(compared) and taken % self.every == self.every - 1:
                score = self._score(module, logits, y, compared)
                if score > best:
                    best, kept = score, copy.deepcopy(module.state_dict())
        if math.isfinite(best[0]):
            module.load_state_dict(kept)
        module.eval()
        return best[0]

    def _batches(self, ids: Tensor) -> Iterator[Tensor]:
        size = self.batch_size
        queue = ids[:0]
        while True:
            if size is None or size >= len(ids):
                yield ids
                continue
            if len(queue) < size:
                queue = ids[torch.randperm(len(ids))]
            yield queue[:size]
            queue = queue[size:]

    def _parts(self, ids: Tensor) -> tuple[Tensor, ...]:
        """Records that go through the module together."""
        return (ids,) if self.at_once is None else ids.split(self.at_once)

    def _score(
        self, module: nn.Module, logits: Callable[[Tensor], Tensor], y: Tensor, ids: Tensor
    ) -> tuple[float, float]:
        """Right decisions and loss, what decides first."""
        module.eval()
        with torch.no_grad():
            if self.answer is not None:
                outputs = self.answer(ids)
            else:
                outputs = torch.cat([logits(part) for part in self._parts(ids)])
        gained = -float(self._loss(outputs, y[ids]))
        if self.by_loss or self.task.name not in OF_CLASSES:
            return gained, 0.0
        right = float(self.task.credit(self.task.answers(outputs), y[ids]).mean())
        return right, gained

    def _loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        return self.task.losses(outputs, y, self.weights).mean()
