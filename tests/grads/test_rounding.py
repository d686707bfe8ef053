"""Rounding: no norm is read too small, and a term that leaves takes no other's digits with it."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from graphveil.grads import ClippedSum, Flat, Quantile, rules
from graphveil.grads.products import RowByRow
from graphveil.grads.step import cross_entropy
from graphveil.graph.blocks import MOST_WIDTHS, Numbered, block_sizes
from graphveil.graph.messages import weigh_messages
from graphveil.graph.neighbourhoods import RootedTerms
from graphveil.methods.terms import no_messages
from graphveil.nn import NodeClassifier

MOVES = 2.0**-8  # what is paid for, in bounds


def flat(total):
    return torch.cat([value.flatten().double() for value in total.values()])


# --- sums -----------------------------------------------------------------------------------------


def aligned_rows(count, columns=16, classes=16):
    """A network and rows whose gradients all point one way, as long as the bound and shorter."""
    network = NodeClassifier(columns, 1, classes, num_layers=0, encoder_layers=0, decoder_layers=1)
    for parameter in network.parameters():
        nn.init.zeros_(parameter)
    x = torch.zeros(count, columns)
    x[:, 0] = 60 + 40 * torch.rand(count, generator=torch.Generator().manual_seed(0))
    residual = torch.full((classes,), 1 / classes)
    residual[0] -= 1
    bound = float(residual.norm()) * (1 + 100.0**2) ** 0.5
    return network, x, bound


@pytest.mark.parametrize("numbered", [True, False])
def test_one_term_less_moves_the_sum_by_no_more_than_its_own_gradient(numbered):
    """In float32 throughout, the rounding of 131,072 others moves by a part of the bound."""
    count = 2**17
    network, x, bound = aligned_rows(count)
    terms = RootedTerms(
        x, torch.zeros(count, dtype=torch.long), no_messages(count), torch.arange(count), 0
    )
    clipped = ClippedSum(network, cross_entropy, Flat(bound))

    def total(drawn):
        batches = terms.batches(drawn)
        return flat(clipped(batches if numbered else (tuple(batch) for batch in batches)))

    every = torch.arange(count)
    whole = total(every)
    for left in (0, 5, count // 3, count - 1):
        moved = float((whole - total(every[every != left])).norm()) / bound
        assert moved <= 1 + (MOVES if numbered else 2.0**-18)


@pytest.mark.parametrize(("kinds", "padding"), [(MOST_WIDTHS, 1.0), (2, 1.25)])
def test_what_blocks_may_err_is_what_is_paid_for(kinds, padding):
    """As full as they may be, before a term leaves and after, of terms as long as they may be."""
    rows = rules._BLOCK_ROWS
    one = rules.rounding(rows, torch.float32) * padding * rows
    assert kinds**0.5 * 3 * one <= rules.PAY_FOR_BLOCKS**0.5 - 1


# --- blocks ---------------------------------------------------------------------------------------


def halved(numbers, rows, most):
    """Blocks as their definition has them."""
    found = []

    def cut(low, high, inside):
        if len(inside) == 1 or sum(size for _, size in inside) <= most:
            found.append(inside)
        else:
            middle = (low + high) // 2
            for part in (
                (low, middle, [each for each in inside if each[0] < middle]),
                (middle, high, [each for each in inside if each[0] >= middle]),
            ):
                if part[2]:
                    cut(*part)

    cut(0, 2**30, list(zip(numbers, rows, strict=True)))
    return found


NUMBERS = st.lists(st.integers(0, 3000), min_size=2, max_size=60, unique=True).map(sorted)


@settings(deadline=None)
@given(NUMBERS, st.data(), st.integers(1, 40))
def test_blocks_halve_the_range_of_numbers_until_they_fit(numbers, data, most):
    rows = data.draw(st.lists(st.integers(0, 12), min_size=len(numbers), max_size=len(numbers)))
    expected = halved(numbers, rows, most)
    assert block_sizes(torch.tensor(numbers), torch.tensor(rows), most) == [*map(len, expected)]


@settings(deadline=None)
@given(NUMBERS, st.data(), st.integers(2, 40), st.integers(1, 5))
def test_a_number_that_leaves_undoes_blocks_of_few_rows(numbers, data, most, width):
    left = data.draw(st.integers(0, len(numbers) - 1))

    def blocks(kept):
        sizes = block_sizes(torch.tensor(kept), torch.full((len(kept),), width), most)
        parts = torch.tensor(kept).split(sizes)
        return {tuple(part.tolist()) for part in parts}

    before, after = blocks(numbers), blocks(numbers[:left] + numbers[left + 1 :])
    allowed = max(most, width)
    assert sum(map(len, before - after)) * width <= allowed + width
    assert sum(map(len, after - before)) * width <= allowed


def test_sums_inside_blocks_are_those_of_float64():
    count, bound = 400, 0.05
    generator = torch.Generator().manual_seed(0)
    edges = torch.randint(count, (2, 1200), generator=generator).unique(dim=1)
    edges = edges[:, edges[0] != edges[1]]
    x, y = torch.randn(count, 20, generator=generator), torch.arange(count) % 3
    terms = RootedTerms(x, y, weigh_messages(edges, count), torch.arange(count), 1)
    clipped = ClippedSum(NodeClassifier(20, 32, 3), cross_entropy, Flat(bound))
    terms.in_blocks = True
    batches = list(terms.batches(torch.arange(count)))
    assert all(isinstance(batch, Numbered) for batch in batches)
    plain = flat(clipped(tuple(batch) for batch in batches))
    found = flat(clipped(batches))
    shorter = 1 / (1 + MOVES)  # what is paid for blocks
    assert float((found - plain * shorter).norm()) <= 1e-5 * float(plain.norm())


# --- norms ----------------------------------------------------------------------------------------


def test_a_gram_norm_under_cancellation_is_not_read_too_small():
    """Sixteen rows whose products' rounding errors all point one way, and which nearly cancel."""
    v, w, u, t = map(
        float.fromhex, ("0x1.3a2fe2p+0", "0x1.3ae1b8p+0", "0x1.94a4fp+0", "0x1.9557aap+0")
    )
    width = 319
    x = torch.cat([torch.full((1, 8, width), v), torch.full((1, 8, width), w)], 1)
    b = torch.cat([torch.full((1, 8, width), u), -torch.full((1, 8, width), t)], 1) * 1024
    layer = nn.Linear(width, width, bias=False)
    total = ClippedSum(layer, lambda m, batch: (m(batch[0]) * batch[1]).sum((1, 2)), Flat(1.0))
    assert float(total([(x, b)])["weight"].norm()) <= 1


# --- products -------------------------------------------------------------------------------------


@pytest.mark.parametrize("columns", [1, 3, 9, 16, 37, 100, 319])
@pytest.mark.parametrize("outputs", [1, 2, 7, 8, 16, 47, 100])
def test_a_linear_layer_gives_a_row_the_same_bits_in_any_company(columns, outputs):
    generator = torch.Generator().manual_seed(0)
    layer = nn.Linear(columns, outputs)
    x = torch.randn(300, columns, generator=generator)
    sent = torch.randn(300, outputs, generator=generator)

    def both(rows):
        part = x[rows].clone().requires_grad_()
        with RowByRow():
            found = layer(part)
        return found.detach(), torch.autograd.grad(found, part, sent[rows])[0]

    whole = both(torch.arange(300))
    mixed = torch.randperm(300, generator=generator)
    for rows in (mixed, mixed[:1], mixed[:5], mixed[:17], mixed[::2], torch.arange(1, 300)):
        for few, all_of_them in zip(both(rows), whole, strict=True):
            assert torch.equal(few, all_of_them[rows])
    torch.testing.assert_close(whole[0], layer(x).detach(), rtol=1e-5, atol=1e-5)


# --- models of one's own --------------------------------------------------------------------------


class Readout(nn.Module):
    """A product that is no linear layer's."""

    def __init__(self, width):
        super().__init__()
        self.lin = nn.Linear(20, width)
        self.register_buffer("v", torch.randn(width, generator=torch.Generator().manual_seed(4)))

    def forward(self, x):
        return torch.tanh(self.lin(x)) @ self.v


class Convolved(nn.Module):
    """Layers without a rule: one example at a time."""

    def __init__(self, width):
        super().__init__()
        self.conv, self.bend = nn.Conv1d(1, 4, 5), nn.PReLU()
        self.lin, self.out = nn.Linear(64, width), nn.Linear(width, 1)

    def forward(self, x):
        h = self.bend(self.conv(x.unsqueeze(1))).flatten(1)
        return self.out(torch.tanh(self.lin(h))).squeeze(1)


class Perceptron(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(20, width), nn.Tanh(), nn.Linear(width, 1))

    def forward(self, x):
        return self.body(x).squeeze(1)


@pytest.mark.parametrize("width", [5, 64])
@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
@pytest.mark.parametrize("model", [Readout, Convolved, Perceptron])
def test_what_an_example_adds_is_the_same_in_any_company(model, kind, width):
    """Also where a gradient jumps, at the very values at which it does."""
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    module = model(width).to(kind)
    x = torch.randn(333, 20, generator=generator).to(kind)
    with RowByRow(), torch.no_grad():  # where an absolute error has its kink
        y = torch.cat([module(row).detach() for row in x.split(16)])
    y[::3] += 1  # some losses that are not zero
    clipped = ClippedSum(module, lambda m, batch: (m(batch[0]) - batch[1]).abs(), Flat(0.5))

    def total(rows):
        return flat(clipped([(x[rows], y[rows])]))

    every = torch.arange(333)
    whole = total(every)
    for kept in (every > 0, every % 2 == 0, every < 17, every == 200, every % 7 > 3):
        apart = total(every[kept]) + total(every[~kept]) - whole
        assert float(apart.norm()) <= 1e-12 * 333


def test_a_layer_that_is_used_twice_is_added_up_in_float64():
    """A term's few rows in one call may be as long as its many rows in another one allow."""
    count, width = 128, 128.0

    def losses(module, batch):
        around, _ = batch
        x = around.table[around.index].squeeze(1)
        wide = torch.cat([x, torch.zeros(len(x), 255, 2)], 1) if x.dim() == 3 else x.unsqueeze(1)
        wide = torch.cat([wide, wide.new_ones(len(x), 255, 2)], 1)
        return width * (module(x) - module(wide)[:, 0]).squeeze(-1) + module(wide)[:, 1, 0]

    numbers = torch.arange(count)
    x = torch.rand(count, 2, generator=torch.Generator().manual_seed(0))
    terms = RootedTerms(x, torch.zeros(count, dtype=torch.long), no_messages(count), numbers, 0)
    clipped = ClippedSum(nn.Linear(2, 1), losses, Flat(1.0))

    def total(drawn):
        return flat(clipped(Numbered(batch, part) for batch, part in whole(terms, drawn)))

    def whole(terms, drawn):
        for batch in terms.batches(drawn):
            yield batch, drawn

    every = total(numbers)
    for left in (0, 60, 127):
        one, rest = total(numbers[left : left + 1]), total(numbers[numbers != left])
        assert float((every - one - rest).norm()) <= 1e-9


@pytest.mark.parametrize("size", [1.0, 1e12])
@pytest.mark.parametrize("model", [Perceptron, Convolved])
def test_what_fills_a_batch_up_is_counted_nowhere(model, size):
    """Quantile clipping releases a count of examples, and each may move it by one."""
    torch.manual_seed(0)
    clipping, module = Quantile(1e6), model(64)
    x, y = size * torch.randn(40, 20), torch.randn(40)
    clipped = ClippedSum(module, lambda m, batch: (m(batch[0]) - batch[1]).square(), clipping)

    def counted(rows):
        clipping.start()
        clipped([(x[rows], y[rows])])
        assert clipped.seen == len(rows)
        return clipping.count() / clipping.share**0.5

    each = [counted(torch.tensor([row])) for row in range(40)]
    assert all(abs(abs(one) - 1) < 1e-9 for one in each)
    for count in (5, 16, 17, 33, 40):
        assert counted(torch.arange(count)) == pytest.approx(sum(each[:count]))
