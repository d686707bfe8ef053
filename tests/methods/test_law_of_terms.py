"""A term may not know its company: one law, asked of every method and every way to draw randomness.

What a loss term adds to a step is a function of its own data, of the weights and of secret numbers
that follow neither who else was drawn nor where it stands in a batch. So the sums of two halves of
the terms add up to the sum of all, with the same secret stream.
"""

import dataclasses
import math
import random

import numpy as np
import pytest
import torch
from methods_cases import changed, data_for, graph, made

from graphveil.grads.step import PrivateStep
from graphveil.methods import METHODS, Facts
from graphveil.rng import secret

# Every setting by which a method draws, or reads, more: one value, or several together.
VARIED = [
    {},
    {"dropout": 0.5},
    {"clip_by": "document", "dropout": 0.5},
    {"clip_by": "document", "dropout": 0.5, "splits": 3, "num_layers": 3},
    {"fresh_groups": 1},
    {"unit": "node", "dropout": 0.5},
    {"unit": "edge", "weighting": "attention"},
    {"unit": "node", "weighting": "attention", "messages": "label", "sender_cap": 3},
    {"graph_rate": 0.5},
    {"num_layers": 2},
    {"sender_cap": 3, "receiver_cap": 2},
    {"delivery": 0.5, "sender_cap": 3, "receiver_cap": 2},
    {"delivery": 1.0},
    {"clipping": "automatic"},
    {"activation": "relu", "conv": "gin"},
    {"activation": "selu", "conv": "sage"},
    {"activation": "selu", "weighting": "attention", "unit": "node"},
    {"conv": "gat", "num_layers": 2},
]


def settings_of(name):
    known = {field.name for field in dataclasses.fields(METHODS[name])}
    return [each for each in VARIED if known.issuperset(each)]


CASES = [(name, settings) for name in METHODS for settings in settings_of(name)]


class TakenError(Exception):
    """One step is enough."""


class Noted:
    """A clipped sum that notes what it gives, and whether it drew from a shared generator."""

    def __init__(self, clipped, found):
        self.clipped, self.found = clipped, found

    def __call__(self, batches):
        before = shared()
        total = self.clipped(batches)
        self.found["drew"] = shared() != before
        flat = [value.flatten().double() for value in total.values()]
        self.found["sum"] = torch.cat(flat) if flat else torch.zeros(0)
        return total

    def __getattr__(self, name):
        return getattr(self.clipped, name)


def everybody(count):
    return torch.ones(count, dtype=torch.bool)


def shared():
    """Where the generators stand that all code shares."""
    numpy = np.random.get_state(legacy=True)[1].tobytes()
    return torch.get_rng_state().numpy().tobytes(), numpy, random.getstate()


def first_sum(monkeypatch, method, data, coins=everybody, fixed_seed=3):
    """The first private step's sum before noise, if there is a step, with these coins."""
    found = {}
    release = PrivateStep._release

    def note(self, batches):
        self.clipped, found["step"] = Noted(self.clipped, found), self
        release(self, batches)
        raise TakenError

    with monkeypatch.context() as patch:
        # To find the noise takes longer than a step.
        patch.setattr("graphveil.methods.budget.calibrate", lambda *_, **__: 1.0)
        patch.setattr("graphveil.grads.rules._BLOCK_ROWS", 0)  # a block's rounding has its own test
        patch.setattr(PrivateStep, "_release", note)
        patch.setattr(
            PrivateStep, "_draw", lambda self: coins(len(self.examples)).nonzero().flatten()
        )
        try:
            method.fit(data, rng=secret(fixed_seed=fixed_seed))
        except TakenError:
            return found
    return None


def halves(count):
    """Three ways to cut terms in two."""
    each = torch.arange(count)
    mixed = torch.randperm(count, generator=torch.Generator().manual_seed(1)) < count // 2
    return [each % 2 == 0, each == 0, mixed]


@pytest.mark.parametrize(("name", "settings"), CASES, ids=str)
def test_what_a_term_adds_does_not_depend_on_who_else_was_drawn(name, settings, monkeypatch):
    data = data_for(name)
    if not METHODS[name].private:
        certificate = made(name, **settings).plan(Facts.of(data)).certificate()
        assert math.isinf(certificate.guarantee.epsilon)  # no private step, and no promise
        return

    def summed(coins):
        return first_sum(monkeypatch, made(name, **settings), data, coins)

    whole = summed(everybody)
    if whole is None:
        assert name in ("gap", "dp-popularity")  # whose noise may all be on sums
        assert not settings or "dropout" in settings
        return
    assert not whole["drew"], "a mask follows the order of a batch"
    assert whole["sum"].norm() > 0
    for half in halves(len(whole["step"].examples)):
        one, other = summed(lambda _, half=half: half), summed(lambda _, half=half: ~half)
        apart = (one["sum"] + other["sum"] - whole["sum"]).norm()
        # Terms are equal to the last bit, and their sum is in float64.
        assert apart <= 1e-13 * (one["sum"].norm() + other["sum"].norm())


@pytest.mark.parametrize(
    ("settings", "moves"),
    [
        ({"clip_by": "document", "dropout": 0.5}, 3),
        ({"clip_by": "document", "dropout": 0.5, "splits": 20}, 5),
        ({"clip_by": "group"}, 2),
    ],
    ids=str,
)
def test_withholding_a_node_moves_masks_of_nobody(settings, moves, monkeypatch):
    """The private size of neighbourhoods orders a batch; whoever moves up in it keeps its mask."""
    data = graph(nodes=60, edges=3000)
    without_loss = (~data.train_mask).nonzero().flatten()[:8].tolist()

    def summed(data):
        found = first_sum(monkeypatch, made("graph-split", **settings), data)
        return found["sum"] / found["step"].clipped.clipping.max_grad_norm

    whole = summed(data)
    for v in without_loss:
        x = data.x.clone()
        x[v] = 0
        kept = data.edge_index[:, data.edge_index[0] != v]
        moved = float((summed(changed(data, x=x, edge_index=kept)) - whole).norm())
        assert moved <= moves


def test_masks_follow_the_secret_stream_and_no_seed(monkeypatch):
    data, found = data_for("graph-split"), []
    for torch_seed, fixed_seed in ((1, 1), (2, 1), (1, 2)):
        torch.manual_seed(torch_seed)
        method = made("graph-split", clip_by="document", splits=20, dropout=0.5)
        found.append(first_sum(monkeypatch, method, data, fixed_seed=fixed_seed)["sum"])
    assert torch.equal(found[0], found[1])
    assert not torch.allclose(found[0], found[2])
