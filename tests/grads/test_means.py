"""Examples that are means of rows, clipped as one: against autograd, and in other company."""

import pytest
import torch
from scipy import sparse
from torch import nn
from torch.nn import functional as F

from graphveil._errors import InvalidInputError, UnprovenError
from graphveil.grads.clipping import Flat, PerLayer
from graphveil.grads.own_rows import _CANCEL, RowExamples, RowSum
from graphveil.grads.step import make_private

COLUMNS, CLASSES, COUNT = 13, 3, 40
PAID = 2.0**-17  # how much shorter what is added may be than autograd has it
FORMS = {
    "dense": lambda x: x,
    "csr of torch": lambda x: x.to_sparse_csr(),
    "csr of scipy": lambda x: sparse.csr_array(x.numpy()),
}
NETWORKS = {
    "linear": lambda: nn.Linear(COLUMNS, CLASSES),
    "deep": lambda: nn.Sequential(nn.Linear(COLUMNS, 7), nn.Tanh(), nn.Linear(7, CLASSES)),
}
every_form = pytest.mark.parametrize("form", FORMS)
every_network = pytest.mark.parametrize("network", NETWORKS)
pytestmark = pytest.mark.filterwarnings("ignore:Sparse CSR")


def losses(module, batch):
    return F.cross_entropy(module(batch[0]), batch[1], reduction="none")


def rows(seed=0):
    """Rows of owners of one to eight, of mixed sizes; some have no label."""
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.randint(1, 9, (COUNT,), generator=generator)
    count = int(sizes.sum())
    x = torch.randn(count, COLUMNS, generator=generator) * 2.0 ** torch.randint(-3, 4, (count, 1))
    x = x * (torch.rand(count, COLUMNS, generator=generator) < 0.5)
    y = torch.randint(0, CLASSES, (count,), generator=generator)
    y[::9] = -1
    return x, y, sizes


def build(network, clipping, seed=1):
    torch.manual_seed(seed)
    return RowSum(NETWORKS[network]().double(), losses, clipping)


def flat(total):
    return torch.cat([value.flatten() for value in total.values()])


def by_autograd(module, x, y, sizes, drawn, bound):
    """The sum of clipped gradients of means, an example at a time."""
    ends, total = sizes.cumsum(0), 0.0
    for number in drawn.tolist():
        at = slice(int(ends[number] - sizes[number]), int(ends[number]))
        each_row = losses(module, (x[at].double(), y[at].clamp_min(0))) * (y[at] >= 0)
        gradient = torch.autograd.grad(each_row.mean(), list(module.parameters()))
        vector = torch.cat([part.flatten() for part in gradient])
        total = total + vector * (bound / vector.norm().clamp_min(1e-30)).clamp_max(1.0)
    return total


@every_form
@every_network
@pytest.mark.parametrize("bound", [0.2, 1e3], ids=["clipped", "whole"])
def test_means_are_clipped_as_one(network, form, bound):
    x, y, sizes = rows()
    examples, summed = RowExamples(FORMS[form](x), y, sizes), build(network, Flat(bound))
    assert len(examples) == COUNT
    for drawn in (torch.arange(COUNT), torch.tensor([1, 4, 5, 20, 39])):
        total = flat(summed(examples.batches(drawn)))
        plain = by_autograd(summed.module, x, y, sizes, drawn, bound)
        assert summed.seen == len(drawn)
        torch.testing.assert_close(total, plain, rtol=PAID, atol=PAID * bound * len(drawn))


def test_rows_clipped_one_by_one_are_another_sum():
    """What the tests above would not see if means were not clipped as one."""
    x, y, sizes = rows()
    drawn, summed = torch.arange(COUNT), build("linear", Flat(0.2))
    plain = by_autograd(summed.module, x, y, sizes, drawn, 0.2)
    apart = flat(summed(RowExamples(x, y).batches(torch.arange(len(y)))))
    assert float((apart - plain).norm()) > 1.0


@every_form
@every_network
def test_no_mean_is_longer_than_the_bound(network, form):
    """Also with rows that cancel, that overflow, and that are no numbers."""
    x, y, sizes = rows(3)
    x[0], x[5, 2], x[9, 1] = 1e30, torch.nan, torch.inf
    first = sizes.cumsum(0) - sizes
    two = int((sizes == 2).nonzero()[0])
    x[first[two]], x[first[two] + 1] = 1e4, -1e4
    examples = RowExamples(FORMS[form](x), y, sizes)
    for clipping in (Flat(0.5), PerLayer(0.5)):
        summed = build(network, clipping)
        for number in range(COUNT):
            total = summed(examples.batches(torch.tensor([number])))
            unit = torch.cat([v.flatten() / summed.scales[name] for name, v in total.items()])
            assert torch.isfinite(unit).all()
            assert float(unit.norm()) <= 1.0


@every_form
@every_network
def test_a_mean_does_not_know_its_company(network, form, monkeypatch):
    """Its factor is the same, to the last bit, whoever else is drawn."""
    x, y, sizes = rows(5)
    examples = RowExamples(FORMS[form](x), y, sizes)
    summed = build(network, Flat(0.2))
    factors = []

    class Watching(Flat):
        def factors(self, squared_norms):
            result = super().factors(squared_norms)
            factors.append(next(iter(result.values())).clone())
            return result

    summed.clipping = Watching(0.2)
    monkeypatch.setattr("graphveil.grads.own_rows._ROWS_AT_ONCE", 50)
    summed(examples.batches(torch.arange(COUNT)))
    together = torch.cat(factors)
    for drawn in (torch.arange(0, COUNT, 2), torch.arange(COUNT)[-7:], torch.tensor([11])):
        factors.clear()
        summed(examples.batches(drawn))
        assert torch.equal(torch.cat(factors), together[drawn])


def test_rows_that_cancel_are_read_as_no_shorter_than_a_part_of_their_sizes():
    """Rounding of a sum is a part of what is added up, which must be paid for."""
    x = torch.tensor([[3000.0], [3000.0]])
    layer = nn.Linear(1, 2).double()
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    summed = RowSum(layer, losses, Flat(1.0))
    # Opposite labels: the gradients of both rows add up to nothing.
    examples = RowExamples(x, torch.tensor([0, 1]), torch.tensor([2]))
    seen = []
    summed.clipping = type(
        "Watching", (Flat,), {"factors": lambda self, n: seen.append(n) or Flat.factors(self, n)}
    )(1.0)
    assert float(flat(summed(examples.batches(torch.tensor([0])))).norm()) < 1e-9
    length = float((x[0] ** 2 + 1).sqrt()) * 0.5**0.5
    assert float(seen[0][""].sqrt()) >= _CANCEL * length


@every_network
def test_examples_of_one_row_each_are_rows_to_the_last_bit(network):
    x, y, _ = rows()
    summed, drawn = build(network, Flat(0.2)), torch.arange(0, len(y), 3)
    ones = RowExamples(x, y, torch.ones(len(y), dtype=torch.long))
    total = flat(summed(ones.batches(drawn)))
    assert torch.equal(total, flat(summed(RowExamples(x, y).batches(drawn))))


def test_sizes_that_are_not_paid_for_are_refused(monkeypatch):
    x, y, sizes = rows()
    with pytest.raises(InvalidInputError, match="must add up to"):
        RowExamples(x, y, sizes[:-1])
    with pytest.raises(UnprovenError, match="cap_owners"):
        RowExamples(torch.zeros(8193, 1), torch.zeros(8193).long(), torch.tensor([8193]))
    monkeypatch.setattr("graphveil.grads.own_rows.MOST_MEANS", COUNT // 2)
    examples, layer = RowExamples(x, y, sizes), nn.Linear(COLUMNS, CLASSES)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    make_private(layer, optimizer, examples, sample_rate=0.5, noise_multiplier=1.0)
    with pytest.raises(UnprovenError, match="at most 20"):
        make_private(layer, optimizer, examples, sample_rate=1.0, noise_multiplier=1.0)


def test_what_rounding_is_paid_for_is_below_the_payment():
    """(R + batches) roundings of 16 bounds for each example, twice: the formula of the module."""
    from graphveil.grads.own_rows import _ROWS_AT_ONCE, MOST_DRAWN, MOST_MEANS

    batches = 2 * MOST_DRAWN / _ROWS_AT_ONCE + 1
    moved = 2 * (_ROWS_AT_ONCE + batches) * 2.0**-53 * MOST_MEANS / _CANCEL
    assert moved < 2.0**-18
