"""The clipped sum of multinomial regression on sparse rows equals the engine's on dense ones."""

import numpy as np
import pytest
import torch
from scipy import sparse
from torch import nn

from graphveil import make_private, secret
from graphveil._errors import InvalidInputError
from graphveil.grads.clipped import ClippedSum
from graphveil.grads.clipping import Automatic, Flat, PerLayer, Quantile
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
    linear = LinearSum(layer, clipping)
    ours = linear(SparseExamples(sparse.csr_array(x), y).batches(drawn))
    engine = ClippedSum(layer, cross_entropy, clipping)
    theirs = engine(TensorExamples(x, y).batches(drawn))
    assert ours.keys() == theirs.keys()
    assert linear.seen == engine.seen
    assert linear.loss == pytest.approx(engine.loss, rel=1e-5)
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
    assert max(moved) >= 0.3 * (1 - 1e-5)
    assert moved[3] == moved[11] == 0.0


def test_rounding_of_many_terms_does_not_add_up():
    """Rows laid out so that float32 sums of the two worlds round on different grids.

    Without one of them the running sum stays below a power of two, with it it crosses; the rows
    that follow add up to nothing, but for what rounding makes of them: 2.05 bounds in float32.
    """
    count, top = 14_666, 2048.0
    step = 400.51 * 2.0 ** (np.log2(top) - 23)
    climb = np.r_[[0.5] * int(2 * top), 0.25]
    drift = np.tile([step, step, -2 * step], (count - len(climb)) // 3)
    value = np.r_[climb, drift, np.zeros(count - len(climb) - len(drift))]
    x, y = np.abs(2 * value)[:, None], torch.from_numpy((value < 0).astype(np.int64))
    layer = nn.Linear(1, 2)
    for parameter in layer.parameters():
        nn.init.zeros_(parameter)
    total, labels = LinearSum(layer, Flat(1.0)), y.clone()
    labels[0] = -100
    with_it, without_it = (
        torch.cat([v.flatten() for v in total(examples.batches(torch.arange(count))).values()])
        for examples in (
            SparseExamples(sparse.csr_array(x), y),
            SparseExamples(sparse.csr_array(x), labels),
        )
    )
    assert float((with_it - without_it).norm()) <= 1 + 1e-9


@pytest.mark.parametrize("bound", [1.0, 1e-5])
def test_no_row_is_too_large_or_too_small_for_the_bound(bound):
    """Features near the ends of what floats hold, residuals that underflow when squared."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(300, 3, generator=generator) * torch.logspace(-30, 30, 300).unsqueeze(1)
    layer = nn.Linear(3, 5)
    torch.nn.init.normal_(layer.weight, generator=generator)
    total = LinearSum(layer, Flat(bound))
    examples = SparseExamples(sparse.csr_array(x), torch.arange(300) % 5)
    for place in range(300):
        found = total(examples.batches(torch.tensor([place])))
        assert float(torch.cat([v.flatten() for v in found.values()]).norm()) <= bound * (1 + 1e-12)


@pytest.mark.parametrize("broken", [float("inf"), float("nan")])
def test_rows_that_are_not_finite_count_for_nothing(rows, layer, broken):
    x, y = rows
    x[0, 1] = broken
    examples = SparseExamples(sparse.csr_array(x), y)
    found = LinearSum(layer, Flat(0.3))(examples.batches(torch.tensor([0])))
    assert all((value == 0).all() for value in found.values())
    assert y[0] >= 0  # the caller's labels stay


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


@pytest.mark.parametrize("share", [0.01, 0.1, 0.5])
def test_withholding_a_label_moves_the_released_vector_by_one_at_most(share):
    """Its gradient and its part in the count are gone; nothing takes their place."""
    rows = sparse.csr_array(np.eye(4) * 50.0)

    def released(labels):
        module = nn.Sequential(nn.Linear(4, 3))
        for parameter in module.parameters():
            nn.init.zeros_(parameter)
        clipping = Quantile(1.0, share=share)
        clipping.start()
        summed = LinearSum(module, clipping)
        total = summed(SparseExamples(rows, labels).batches(torch.arange(4)))
        parts = [value.flatten() / summed.scales[name] for name, value in total.items()]
        return torch.cat([*parts, torch.tensor([clipping.count()], dtype=torch.float64)])

    moved = released(torch.tensor([0, 1, 2, 0])) - released(torch.tensor([-1, 1, 2, 0]))
    assert 0.99 < float(moved.norm()) <= 1 + 1e-9


def test_what_is_not_one_linear_layer_is_refused(rows):
    with pytest.raises(InvalidInputError, match="linear layer with a bias"):
        LinearSum(nn.Linear(3, 2, bias=False), Flat(1.0))
    with pytest.raises(InvalidInputError, match="Got Linear, Linear instead"):
        LinearSum(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2)), Flat(1.0))
    with pytest.raises(InvalidInputError, match="as many"):
        SparseExamples(sparse.csr_array(np.eye(3)), torch.zeros(2, dtype=torch.long))
