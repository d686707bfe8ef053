"""Every rule's norms and weighted sums are those of each example alone."""

import numpy as np
import pytest
import torch
from grads_cases import (
    KINDS,
    Part,
    Spy,
    layer_of,
    layouts_of,
    losses,
    mapped,
    middling,
    norm,
    one_by_one,
    part_of,
    per_example,
    relative_error,
)
from hypothesis import event, given, settings
from hypothesis import strategies as st
from threadpoolctl import ThreadpoolController
from torch import Tensor, nn

from graphveil.grads import Automatic, ClippedSum, Flat, PerLayer, rules
from graphveil.grads.rows import Rows, current_rows, tables
from graphveil.grads.step import cross_entropy
from graphveil.graph.blocks import Numbered

quick = settings(deadline=None, max_examples=25)
ERROR = 4.5e-6  # norms are read 4e-6 too large on purpose


@st.composite
def uses(draw, kind):
    """A layer of this kind, perhaps partly frozen, and a batch in which it is used 1-3 times."""
    rng = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    d, p, count = draw(st.integers(2, 9)), draw(st.integers(1, 9)), draw(st.integers(1, 6))
    layouts = draw(st.lists(st.sampled_from(layouts_of(kind)), min_size=1, max_size=3))
    layer = layer_of(kind, d, p, rng)
    parameters = list(layer.parameters())
    if len(parameters) > 1 and draw(st.booleans()):
        draw(st.sampled_from(parameters)).requires_grad_(False)
    return layer, ([part_of(kind, layout, count, d, p, rng) for layout in layouts], count)


@pytest.mark.parametrize("kind", KINDS)
def test_norms_and_clipped_sums_are_those_of_each_example_alone(kind):
    @quick
    @given(uses(kind))
    def law(case):
        layer, batch = case
        gradients = per_example(layer, batch)
        spy = Spy(Flat(middling(gradients)))
        found = ClippedSum(layer, losses, spy)([batch])
        assert relative_error(found, gradients, spy.clipping) <= ERROR
        for read, gradient in zip(spy.norms.get("", []), gradients, strict=bool(spy.norms)):
            assert norm(gradient) <= float(read) <= norm(gradient) * (1 + ERROR) + 1e-12

    law()


@pytest.mark.parametrize("kind", KINDS)
def test_clipped_sums_in_float32_are_good_to_nearly_five_digits(kind):
    @quick
    @given(uses(kind))
    def law(case):
        layer = case[0].float()
        batch = mapped(lambda value: value.abs().float(), case[1])  # so that little cancels
        if "Norm" in kind:  # of nearly equal numbers has few digits
            for part in batch[0]:
                x = part.inputs[0]
                x.tanh_().mul_(0.3).add_(torch.arange(x.shape[-1]))
        gradients = per_example(layer, batch)
        clipping = Flat(middling(gradients))
        found = ClippedSum(layer, losses, clipping)([batch])
        assert relative_error(found, gradients, clipping) <= 2e-5

    law()


@pytest.mark.parametrize(
    "layout, width, d, p",
    [
        ("rows", 1, 300, 40), ("table", 11, 128, 64), ("table", 30, 64, 16),
        ("table", 64, 512, 256), ("ragged", 20, 100, 50), ("ragged", 50, 16, 16),
        ("ragged table", 10, 32, 32),
    ],
)  # fmt: skip
def test_real_sizes_in_float32_are_good_to_three_digits(layout, width, d, p):
    """Norms are enlarged by all that rounding could hide, which is more than it does."""
    rng = torch.Generator().manual_seed(0)
    layer = layer_of("Linear", d, p, rng).float()
    batch = mapped(Tensor.float, ([part_of("Linear", layout, 15, d, p, rng, width)], 15))
    gradients = per_example(layer, batch)
    clipping = Flat(middling(gradients))
    found = ClippedSum(layer, losses, clipping)([batch])
    assert relative_error(found, gradients, clipping) <= 1e-3


@pytest.mark.parametrize(
    "layout, width, d, p, ran",
    [
        ("rows", 1, 5, 4, []),
        ("table", 1, 5, 4, []),
        ("table", 3, 20, 15, ["gram", "gram"]),
        ("table", 9, 4, 5, ["direct"]),
        ("table", 200, 4, 5, ["direct"] * 8),  # a long sum, by halves
        ("table", 3, 400, 20, ["gram"] * 3),
        ("ragged", 6, 200, 100, {"gram"}),
        ("ragged", 10, 20, 60, {"gram", "direct"}),  # by the size of an example
        ("ragged", 60, 4, 3, {"direct"}),
    ],
)
def test_the_cheaper_of_gram_and_direct_runs_and_both_are_right(
    monkeypatch, layout, width, d, p, ran
):
    rng = torch.Generator().manual_seed(0)
    layer = layer_of("Linear", d, p, rng)
    batch = [part_of("Linear", layout, 5, d, p, rng, width)], 5
    shapes, plain, plain_norms = [], torch.bmm, rules.LinearRule.squared_norms

    def bmm(x, y):
        shapes.append((x.shape[1], y.shape[2]))
        return plain(x, y)

    def norms(rule):
        with monkeypatch.context() as patch:
            patch.setattr(torch, "bmm", bmm)
            return plain_norms(rule)

    monkeypatch.setattr(rules.LinearRule, "squared_norms", norms)
    spy = Spy(Flat(1.0))
    found = ClippedSum(layer, losses, spy)([batch])
    gradients = per_example(layer, batch)
    assert relative_error(found, gradients, spy.clipping) <= ERROR
    wide = p + -p % 4, d + -d % 4  # with columns of zeros
    branches = ["direct" if shape == wide else "gram" for shape in shapes]
    assert (set(branches) if isinstance(ran, set) else branches) == ran


def test_ids_of_many_examples_in_a_large_vocabulary_do_not_collide():
    layer = nn.Embedding(100_000, 1)
    owner = torch.tensor([29_999, 0, 29_999], dtype=torch.int32)
    batch = [Part((torch.tensor([99_999, 99_999, 99_999]),), torch.ones(3, 1), owner)], 30_000
    spy = Spy(Flat(1e9))
    ClippedSum(layer, losses, spy)([batch])
    assert spy.norms[""][[0, 1, 29_999]].tolist() == pytest.approx([1.0, 0.0, 2.0], abs=2e-5)


@pytest.mark.parametrize("sizes", [[], [0, 0], [1], [3, 0, 1, 17, 2, 16, 1, 5]])
def test_buckets_hold_every_row_once_and_no_line_is_more_than_a_quarter_empty(sizes):
    owner = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes, dtype=torch.long))
    owner = owner[torch.randperm(len(owner), generator=torch.Generator().manual_seed(1))]
    rows = Rows(owner, len(sizes))
    held = [(int(i), int(r)) for ids, table in rows.buckets for i, t in zip(ids, table) for r in t]  # noqa: B905
    assert sorted(r for _, r in held if r < len(owner)) == list(range(len(owner)))
    assert all(owner[r] == i for i, r in held if r < len(owner))
    for _, table in rows.buckets:
        assert all(4 * (line < len(owner)).sum() >= 3 * len(line) for line in table)


# --- the safe side, in float32 --------------------------------------------------------------------


def cancelling(family, width, d, p, rng):
    """Rows of three examples whose gradient is much smaller than its terms."""

    def normal(*shape):
        return torch.randn(shape, generator=rng)

    def uniform(*shape):
        return torch.rand(shape, generator=rng)

    sign = torch.ones(width, 1)
    sign[width // 2 :] = -1
    remainder = 1 - 10 ** (-7 * uniform(3, 1))
    if family == "nearly equal rows":
        a = normal(3, 1, d) + 10 ** (-6 * uniform(3, 1, 1)) * normal(3, width, d)
        b = normal(3, width, p)
        return a, b - b.mean(1, keepdim=True)
    if family == "large offset":
        return normal(3, width, d) + 10 ** (4 * uniform(3, 1, 1)), normal(3, 1, p) * sign
    a = torch.ones(3, width, d) * (0.1 + uniform(3, 1, 1))
    b = torch.ones(3, width, p) * (0.1 + uniform(3, 1, 1))
    if family == "equal rows":  # nothing cancels, but rounding errors have one direction
        return a, b
    if family == "equal rows against one output":
        b[:, -1] = -(b[:, :-1].double().sum(1) * remainder).float()
    elif family == "equal rows against one input":
        a[:, -1] = -(a[:, :-1].double().sum(1) * remainder).float()
    elif family == "halves":
        a, b = a * torch.linspace(0.1, 1, width).unsqueeze(1), b * sign
    elif family == "many scales":
        a = normal(3, width, d) * 10 ** (12 * uniform(3, width, 1) - 6)
        b = normal(3, width, p) * 10 ** (12 * uniform(3, width, 1) - 6)
    return a, b


FAMILIES = (
    "nearly equal rows", "large offset", "equal rows", "equal rows against one output",
    "equal rows against one input", "halves", "many scales",
)  # fmt: skip
SHAPES = (
    (1, 40, 9), (2, 3, 3), (2, 64, 64), (4, 3000, 8), (11, 128, 64), (30, 128, 64), (60, 7, 300),
    (100, 8, 8), (255, 32, 32), (1000, 4, 4),
)  # fmt: skip


@settings(deadline=None, max_examples=150)
@given(
    st.sampled_from(FAMILIES), st.sampled_from(SHAPES), st.booleans(), st.booleans(),
    st.sampled_from([Flat, PerLayer, Automatic]), st.floats(-6, 6), st.floats(-3, 0.1),
    st.integers(0, 2**32),
)  # fmt: skip
def test_no_float32_gradient_exceeds_the_bound(
    family, shape, bias, in_ragged_rows, mode, scale, ratio, seed
):
    width, d, p = shape
    a, b = cancelling(family, width, d, p, torch.Generator().manual_seed(seed))
    a = a * 10**scale
    owner = torch.arange(3).repeat_interleave(width) if in_ragged_rows else None
    if in_ragged_rows:
        a, b = a.flatten(0, 1), b.flatten(0, 1)
    layer, batch = nn.Linear(d, p, bias=bias), ([Part((a,), b, owner)], 3)
    gradients = per_example(layer, batch)
    bound = max(norm(gradients[0]) * 10**ratio, 1e-30)
    direct = width * (d + p) >= d * p
    event("one row" if width == 1 else "direct" if direct else "gram")
    spy = Spy(mode(bound))
    ClippedSum(layer, losses, spy)([batch])
    alone = ClippedSum(layer, losses, spy.clipping)
    added = [norm(alone([single])) for single in one_by_one(batch)]
    for factor, gradient in zip(spy.said[""].double().tolist(), gradients, strict=True):
        assert factor * norm(gradient) <= bound
    assert max(added) <= bound


@settings(deadline=None, max_examples=50)
@given(
    st.sampled_from([kind for kind in KINDS if "Linear" not in kind]),
    st.sampled_from(["rows", "ragged"]),
    st.sampled_from([Flat, PerLayer, Automatic]),
    st.floats(-6, 6),
    st.integers(0, 2**32),
)
def test_no_float32_gradient_of_a_small_layer_exceeds_the_bound(kind, layout, mode, scale, seed):
    rng = torch.Generator().manual_seed(seed)
    layer = layer_of(kind, 5, 3, rng).float()
    part = mapped(Tensor.float, part_of(kind, layout, 4, 5, 3, rng, width=20))
    part.target *= 10**scale
    if part.owner is not None:  # rows that nearly cancel
        part.target[1::2] = -part.target[::2] * (1 + 1e-6 * part.target[1::2].sign())
    bound = middling(per_example(layer, ([part], 4)))
    for single in one_by_one(([part], 4)):
        assert norm(ClippedSum(layer, losses, mode(bound))([single])) <= bound


@pytest.mark.parametrize("in_ragged_rows", [True, False])
@pytest.mark.parametrize("width, d, p", [(4000, 4, 4), (5000, 3, 20), (6, 10_000, 8)])
def test_long_sums_do_not_drift(width, d, p, in_ragged_rows):
    """Sums of equal numbers in float32 are off by 1e-8 a term if they are added in a row."""
    a, b = torch.full((width, d), 0.123), torch.full((width, p), 0.3456)
    layer = nn.Linear(d, p)
    part = Part((a,), b, torch.zeros(width, dtype=torch.long))
    if not in_ragged_rows:
        part = Part((a[None],), b[None])
    gradients = per_example(layer, ([part], 1))
    clipping = Flat(norm(gradients[0]) / 3)
    found = ClippedSum(layer, losses, clipping)([([part], 1)])
    assert relative_error(found, gradients, clipping) <= 5e-4  # the bound, which is proven


def test_tiny_inputs_with_huge_gradients_are_clipped():
    """1e-22 squared is nothing in float32, but the gradient is 1e-3 here."""
    a, b = torch.full((1, 1), 1e-22), torch.full((1, 1), 1e19)
    found = ClippedSum(nn.Linear(1, 1, bias=False), losses, Flat(1e-5))([([Part((a,), b)], 1)])
    assert norm(found) <= 1e-5


def test_tiny_rows_with_huge_gradients_are_clipped():
    """Products of rows that underflow to zero do not make a norm of zero."""
    layer = torch.nn.Linear(200, 200, bias=False)
    batch = torch.full((1, 4, 200), 2e-23), torch.full((1, 4, 200), 1e18)
    summed = ClippedSum(layer, lambda m, b: (m(b[0]) * b[1]).sum((1, 2)), Flat(1e-5))
    assert float(summed([batch])["weight"].double().norm()) <= 1e-5


def test_numpy_makes_products_of_blocks_by_one_thread(monkeypatch):
    threads = []

    def spy(*args, **kwargs):
        threads.extend(pool["num_threads"] for pool in blas())
        return product(*args, **kwargs)

    def blas():
        return ThreadpoolController().select(user_api="blas").info()

    product = np.dot
    monkeypatch.setattr(rules.np, "dot", spy)
    x, y = torch.randn(200, 8), torch.randint(0, 3, (200,))
    with ThreadpoolController().limit(limits=2, user_api="blas"):
        before = blas()
        summed = ClippedSum(nn.Linear(8, 3), cross_entropy, Flat(1.0))
        summed([Numbered((x, y), torch.arange(200))])
        assert blas() == before
    assert set(threads) == {1}


def test_tables_one_after_the_other_are_the_rows_of_their_examples():
    sizes = ((2, 3), (4, 1), (1, 5))
    rows, values = Rows.of_tables(sizes), torch.randn(15, 2)
    assert rows.owner.tolist() == [0, 0, 0, 1, 1, 1, 2, 3, 4, 5, 6, 6, 6, 6, 6]
    assert rows.of_each.tolist() == [3, 3, 1, 1, 1, 1, 5]
    torch.testing.assert_close(rows.sum(values), Rows(rows.owner, 7).sum(values))
    held = torch.cat([table.flatten(0, 1) for _, table in rows.tables(values)])
    assert torch.equal(held, values)


def test_the_number_of_rows_tells_which_tables_are_meant():
    with tables(((2, 3), (1, 2)), ((2, 2), (1, 1)), ((2, 1), (1, 1))):
        assert current_rows(8).sizes == ((2, 3), (1, 2))
        assert current_rows(5).sizes == ((2, 2), (1, 1))
        assert current_rows(3) is None  # each is an example's own
        assert len(current_rows(7).owner) == 8  # which is refused, as it does not fit
    assert current_rows(8) is None


@pytest.mark.parametrize("size", [1, 5, 8, 9, 20, 21])
def test_the_norm_of_ragged_rows_does_not_know_how_many_rows_others_have(size):
    """Where all have one size their rows are not copied, and where sizes differ they are."""
    torch.manual_seed(0)
    layer, others = nn.Linear(30, 20), torch.tensor([size, 3, size, 7])
    alone, beside = torch.full((3,), size), torch.cat([torch.full((3,), size), others])
    x, gradient = torch.randn(int(beside.sum()), 30), torch.randn(int(beside.sum()), 20)

    def norms(sizes):
        rows = Rows(torch.repeat_interleave(torch.arange(len(sizes)), sizes), len(sizes))
        some = int(sizes.sum())
        call = rules.Call((x[:some].clone(),), gradient[:some].clone(), rows)
        return rules.LinearRule(layer, [call], len(sizes)).squared_norms()

    assert torch.equal(norms(alone), norms(beside)[:3])


def test_rows_of_one_size_are_looked_at_where_they_stand():
    values = torch.randn(60, 4)
    even = Rows(torch.arange(3).repeat_interleave(20), 3)
    ((_, table),) = even.tables(values)
    assert table.data_ptr() == values.data_ptr()
    (_, table), *_ = Rows(torch.arange(3).repeat(20), 3).tables(values)
    assert table.data_ptr() != values.data_ptr()
    assert torch.equal(table[1], values[1::3])


@pytest.mark.parametrize("d, p", [(7, 31), (15, 2), (1, 7), (8, 16), (100, 3)])
@pytest.mark.parametrize("width", [4, 8, 20])
def test_a_norm_does_not_know_who_stands_before_it(width, d, p):
    """Where matrices begin in memory decides in which order products are added up."""
    torch.manual_seed(0)
    layer = nn.Linear(d, p)
    x, gradient = torch.randn(40, width, d), torch.randn(40, width, p)

    def norms(first):
        call = rules.Call((x[first:].clone(),), gradient[first:].clone(), None)
        return rules.LinearRule(layer, [call], 40 - first).squared_norms()

    everybody = norms(0)
    for first in (1, 2, 3, 5, 39):
        assert torch.equal(norms(first), everybody[first:])
