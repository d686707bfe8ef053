"""The clipped sum of multinomial regression on sparse rows equals the engine's on dense ones."""

import numpy as np
import pytest
import torch
from scipy import sparse
from torch import nn

from graphveil import make_private, secret
from graphveil._errors import InvalidInputError
from graphveil.grads.clipped import ClippedSum
from graphveil.grads.clipping import Automatic, Flat, PerLayer
from graphveil.grads.linear import LinearSum, SparseExamples
from graphveil.grads.step import TensorExamples, cross_entropy

ROWS, COLUMNS, CLASSES = 40, 30, 4


@pytest.fixture
def rows():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(ROWS, COLUMNS, generator=generator) * 3
    x[torch.rand(ROWS, COLUMNS, generator=generator) < 0.8] = 0.0
    x[5] = 0.0
    y = torch.randint(0, CLASSES, (ROWS,), generator=generator)
    y[[3, 11]] = -100  # no loss
    return x, y


@pytest.fixture
def layer():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(COLUMNS, CLASSES))


@pytest.mark.parametrize(
    "clipping", [Flat(0.3), Flat(100.0), PerLayer(0.5), Automatic(1.0)], ids=repr
)
@pytest.mark.parametrize("drawn", [range(ROWS), [0, 3, 5, 17], [3]], ids=["all", "some", "none"])
def test_it_is_the_sum_of_the_engine(rows, layer, clipping, drawn):
    x, y = rows
    drawn = torch.tensor(list(drawn))
    ours = LinearSum(layer, clipping)(SparseExamples(sparse.csr_array(x), y).batches(drawn))
    engine = ClippedSum(layer, cross_entropy, clipping)
    theirs = engine(TensorExamples(x, y).batches(drawn))
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        torch.testing.assert_close(ours[name], value, rtol=2e-5, atol=2e-6)


def test_no_example_moves_the_sum_by_more_than_the_bound(rows, layer):
    x, y = rows
    examples, total = SparseExamples(sparse.csr_array(x), y), LinearSum(layer, Flat(0.3))
    moved = []
    for place in range(ROWS):
        found = total(examples.batches(torch.tensor([place])))
        moved.append(float(torch.cat([v.flatten() for v in found.values()]).norm()))
    assert max(moved) <= 0.3 * (1 + 1e-6)
    assert max(moved) >= 0.3 * (1 - 1e-6)
    assert moved[3] == moved[11] == 0.0


def test_rows_that_overflow_count_for_nothing(rows, layer):
    x, y = rows
    x[0] = 1e30
    found = LinearSum(layer, Flat(0.3))(
        SparseExamples(sparse.csr_array(x), y).batches(torch.arange(ROWS))
    )
    assert all(bool(value.isfinite().all()) for value in found.values())
    alone = LinearSum(layer, Flat(0.3))(
        SparseExamples(sparse.csr_array(x), y).batches(torch.tensor([0]))
    )
    assert all(float(value.norm()) <= 0.3 * (1 + 1e-6) for value in alone.values())


def test_a_step_on_sparse_examples_trains_and_is_charged(rows, layer):
    x, y = rows
    step = make_private(
        layer, torch.optim.SGD(layer.parameters(), lr=1.0),
        SparseExamples(sparse.csr_array(x), y),
        sample_rate=0.5, noise_multiplier=1.0, steps=3, rng=secret(),
    )  # fmt: skip
    before = layer[0].weight.clone()
    for _ in range(3):
        step()
    assert isinstance(step.clipped, LinearSum)
    assert not torch.equal(before, layer[0].weight)
    assert step.event.count == 3


def test_what_is_not_one_linear_layer_is_refused(rows):
    with pytest.raises(InvalidInputError, match="linear layer with a bias"):
        LinearSum(nn.Linear(3, 2, bias=False), Flat(1.0))
    with pytest.raises((InvalidInputError, ValueError)):
        LinearSum(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2)), Flat(1.0))
    with pytest.raises(InvalidInputError, match="as many"):
        SparseExamples(sparse.csr_array(np.eye(3)), torch.zeros(2, dtype=torch.long))
