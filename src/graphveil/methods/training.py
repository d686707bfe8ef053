"""Small parts of training: features row by row, optimisers by name, averaged and seeded weights."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from graphveil import _validate
from graphveil.rng import seeded

FEATURES = ("power", "row", "raw")
OPTIMIZERS = ("adam", "sgd")
CLIPPINGS = ("flat", "per_layer", "automatic", "quantile")


def prepared(
    x: Tensor, how: str, scale: float, projection: int, project_above: int, seed: int
) -> Tensor:
    """Features as a network reads them: every row by itself, or through a public random matrix."""
    x = x.float()
    if how == "power":
        x = x.sign() * x.abs().sqrt()
    if x.shape[1] > project_above:
        generator = seeded(seed, "projection").torch_generator()
        x = F.normalize(x, dim=1) if how != "raw" else x
        x = x @ (torch.randn(x.shape[1], projection, generator=generator) / projection**0.5)
    return x if how == "raw" else scale * F.normalize(x, dim=1)


def make_optimizer(
    name: str,
    parameters: Iterable[nn.Parameter],
    learning_rate: float,
    weight_decay: float = 0.0,
) -> torch.optim.Optimizer:
    """Adam, or SGD with momentum 0.9."""
    _validate.choice("optimizer", name, OPTIMIZERS)
    rate = _validate.number("learning_rate", learning_rate, "(0, inf)")
    if name == "sgd":
        return torch.optim.SGD(parameters, lr=rate, momentum=0.9, weight_decay=weight_decay)
    return torch.optim.Adam(parameters, lr=rate, weight_decay=weight_decay)


class Average:
    """The mean of a module's weights over the last ``last`` steps; one at least."""

    def __init__(self, module: nn.Module, last: int) -> None:
        self.module, self.last, self.noted = module, max(1, last), 0
        self.mean = {name: torch.zeros_like(p) for name, p in module.named_parameters()}

    def note(self, left: int) -> None:
        """After a step, with ``left`` steps left before it, itself included."""
        if left > self.last:
            return
        self.noted += 1
        with torch.no_grad():
            for name, parameter in self.module.named_parameters():
                self.mean[name] += (parameter - self.mean[name]) / self.noted

    def apply(self) -> None:
        """Put the mean in the place of the weights."""
        if not self.noted:
            return
        with torch.no_grad():
            for name, parameter in self.module.named_parameters():
                parameter.copy_(self.mean[name])


def fit_open(
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    logits: Callable[[Tensor], Tensor],
    y: Tensor,
    train: Tensor,
    chosen: Tensor,
    *,
    steps: int,
    batch_size: int | None = None,
    rate: Callable[[float], float] = lambda done: 1.0,
    loss: Callable[[Tensor, Tensor], Tensor] = F.cross_entropy,
    classes: Callable[[Tensor], Tensor] = lambda logits: logits.argmax(1),
    every: int = 5,
    by_loss: bool = False,
    on_loss: Callable[[float], None] | None = None,
    progress: Callable[[Iterable[int]], Iterable[int]] | None = None,
) -> float:
    """Train without privacy; keep the weights that do best on the nodes ``chosen``, if any.

    ``logits`` gives those of some nodes, by their ids; ``train`` and ``chosen`` are ids. Every step
    reads all training nodes, or ``batch_size`` of them, shuffled. ``rate`` gives the share of the
    learning rate when a share of the steps is done. Returns the accuracy of the weights kept, or
    with ``by_loss`` minus their loss.
    """
    rates = [group["lr"] for group in optimizer.param_groups]
    best, kept = (-math.inf, 0.0), copy.deepcopy(module.state_dict())
    queue = train
    planned = range(steps)
    for taken in planned if progress is None else progress(planned):
        for group, whole in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = whole * rate(taken / steps)
        ids = train
        if batch_size is not None and batch_size < len(train):
            if len(queue) < batch_size or taken == 0:
                queue = train[torch.randperm(len(train))]
            ids, queue = queue[:batch_size], queue[batch_size:]
        module.train()
        optimizer.zero_grad()
        paid = loss(logits(ids), y[ids])
        paid.backward()
        optimizer.step()
        if on_loss is not None:
            on_loss(float(paid.detach()))
        if len(chosen) and taken % every == every - 1:
            module.eval()
            with torch.no_grad():
                found = logits(chosen)
            right = float((classes(found) == y[chosen]).float().mean())
            gained = -float(loss(found, y[chosen]))
            score = (gained, right) if by_loss else (right, gained)
            if score > best:
                best, kept = score, copy.deepcopy(module.state_dict())
    if math.isfinite(best[0]):
        module.load_state_dict(kept)
    module.eval()
    return best[0]


@contextmanager
def seeded_weights(seed: int) -> Iterator[None]:
    """Draw initial weights from ``seed``; torch's own stream goes on as if nothing had happened."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_validate.integer("seed", seed, "[0, 1e18]"))
        yield
