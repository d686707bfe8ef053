"""A small network, data for it, and a private step over both."""

import torch
from torch import nn
from torch.nn import functional as F

from graphveil.grads import make_private

FEATURES, CLASSES, COUNT = 4, 3, 60


def data(seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(COUNT, FEATURES, generator=generator)
    return x, torch.randint(0, CLASSES, (COUNT,), generator=generator)


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(FEATURES, 5), nn.Tanh(), nn.Linear(5, CLASSES))


def silent(module, batch):
    """Losses without a gradient: what a step then releases is the noise alone."""
    return 0 * F.cross_entropy(module(batch[0]), batch[1], reduction="none")


def private(module=None, optimizer=None, **settings):
    module = network() if module is None else module
    optimizer = optimizer or torch.optim.SGD(module.parameters(), lr=1.0)
    defaults = {"sample_rate": 0.3, "noise_multiplier": 1.5, "max_grad_norm": 0.5}
    return make_private(module, optimizer, data(), **(defaults | settings))


def parameters(step):
    return torch.cat([p.detach().flatten() for p in step.module.parameters()])
