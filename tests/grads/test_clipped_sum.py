"""Clipped sums of whole networks are the oracle's, and planted mistakes are caught."""

import copy
import math

import pytest
import torch
from grads_cases import (
    KINDS,
    Pair,
    Spy,
    block_of,
    clipped_sum,
    error_of,
    layer_of,
    layouts_of,
    middling,
    norm,
    part_of,
    per_example,
    relative_error,
)
from grads_cases import losses as uses_of_one_layer
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from graphveil._errors import InvalidInputError
from graphveil.grads import Automatic, ClippedSum, Flat, Off, PerLayer, ragged, rules
from graphveil.grads import clipped as clipped_module
from graphveil.grads.layers import Affine, SelfWeight

ERROR = 4.5e-6  # norms are read 4e-6 too large on purpose
quick = settings(deadline=None, max_examples=25)


class Network(nn.Module):
    """Roots with a table of neighbours: every kind of layer, one of them used three times."""

    def __init__(self, d=4, hidden=5, classes=3):
        super().__init__()
        self.embed = nn.Embedding(7, d, padding_idx=0)
        self.lin = nn.Linear(d, hidden)
        self.norm = nn.LayerNorm(hidden)
        self.own = SelfWeight()
        self.again = nn.Linear(hidden, hidden, bias=False)
        self.scale = Affine(hidden)
        self.head = nn.Linear(hidden, classes)
        self.never = nn.Linear(2, 2)
        self.twin = self.again  # the same layer by another name

    def forward(self, x, ids):
        h = torch.tanh(self.lin(x) + self.lin(self.embed(ids)).mean(1))
        h = self.own(self.norm(h)) + torch.relu(self.again(h))
        self.again(h)  # goes nowhere
        return self.head(torch.tanh(self.scale(self.twin(h))))


def losses(module, batch):
    x, ids, labels = batch
    return F.cross_entropy(module(x, ids), labels, reduction="none")


def network(seed=0, dtype=torch.float64):
    torch.manual_seed(seed)
    module = Network().to(dtype)
    with torch.no_grad():
        module.own.eps.fill_(0.3)
    return module


def batch_of(count, seed=0, width=4, dtype=torch.float64):
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 4, generator=rng, dtype=torch.float64) * 2
    ids = torch.randint(7, (count, width), generator=rng)
    return x.to(dtype), ids, torch.randint(3, (count,), generator=rng)


def clippings(gradients):
    """Each way to clip, at bounds that matter."""
    bound = middling(gradients)
    names = dict.fromkeys(map(block_of, gradients[0]))
    own = {name: bound * (0.1 + 0.2 * place) for place, name in enumerate(names)}
    return [Flat(bound), PerLayer(bound / 3), PerLayer(own), Automatic(bound), Off()]


# --- equal to the oracle --------------------------------------------------------------------------


@quick
@given(st.integers(1, 6), st.integers(0, 5), st.integers(0, 999))
def test_a_network_s_clipped_sum_is_the_oracle_s_for_every_clipping(count, width, seed):
    module, batch = network(seed), batch_of(count, seed, max(width, 1))
    gradients = per_example(module, batch, losses)
    for clipping in clippings(gradients):
        found = ClippedSum(module, losses, clipping)([batch])
        assert relative_error(found, gradients, clipping) <= ERROR


@pytest.mark.parametrize("place", range(4))
def test_a_network_in_float32_is_good_to_five_digits(place):
    module, batch = network(dtype=torch.float32), batch_of(50, dtype=torch.float32)
    gradients = per_example(module, batch, losses)
    clipping = clippings(gradients)[place]
    found = ClippedSum(module, losses, clipping)([batch])
    assert relative_error(found, gradients, clipping) <= 1e-5


@quick
@given(st.integers(0, 999))
def test_roots_in_rows_and_neighbours_in_ragged_rows_share_a_layer(seed):
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(3, 4)

        def forward(self, x, neighbours, owner):
            with ragged(owner, len(x)):
                sent = torch.tanh(self.lin(neighbours))
            return torch.tanh(self.lin(x)).index_add(0, owner, sent)

    class Batch(tuple):  # the neighbours of an example are not a slice of a tensor
        pass

    def apart(module, batch):
        if not isinstance(batch, Batch):
            batch = examples[int(batch[0])]
        return module(*batch).square().sum(1)

    rng = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    x = torch.randn(4, 3, generator=rng, dtype=torch.float64)
    neighbours = torch.randn(9, 3, generator=rng, dtype=torch.float64)
    owner = torch.randint(4, (9,), generator=rng)
    examples = [
        Batch((x[i : i + 1], neighbours[owner == i], owner[owner == i] * 0)) for i in range(4)
    ]
    module = Both().double()
    gradients = per_example(module, (torch.arange(4),), apart)
    clipping = Flat(middling(gradients))
    found = ClippedSum(module, apart, clipping)([Batch((x, neighbours, owner))])
    assert relative_error(found, gradients, clipping) <= ERROR


def test_off_is_the_gradient_of_the_summed_loss():
    module, batch = network(), batch_of(20)
    found = ClippedSum(module, losses, Off())([batch])
    losses(module, batch).sum().backward()
    for name, parameter in module.named_parameters():
        wanted = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        torch.testing.assert_close(found[name], wanted, rtol=1e-10, atol=1e-12)


def test_a_batch_in_pieces_is_the_same_sum():
    module, batch = network(), batch_of(12)
    summed = ClippedSum(module, losses, Flat(0.5))
    whole = summed([batch])
    pieces = summed([tuple(x[a:b] for x in batch) for a, b in [(0, 1), (1, 1), (1, 7), (7, 12)]])
    for name, value in whole.items():
        torch.testing.assert_close(pieces[name], value, rtol=1e-10, atol=1e-12)


def test_no_step_leaves_anything_for_the_next():
    module, first, second = network(), batch_of(9, 1), batch_of(5, 2)
    summed = ClippedSum(module, losses, Flat(0.5))
    fresh = ClippedSum(module, losses, Flat(0.5))([second])
    summed([first])
    assert all(torch.equal(summed([second])[name], fresh[name]) for name in fresh)
    assert all(parameter.grad is None for parameter in module.parameters())
    assert not any(layer._forward_hooks for layer in module.modules())


def test_layers_never_called_or_not_used_by_the_loss_get_zeros():
    found = ClippedSum(network(), losses, Flat(0.5))([batch_of(5)])
    assert torch.equal(found["never.weight"], torch.zeros(2, 2, dtype=torch.float64))
    assert "twin.weight" not in found  # once, by its first name
    assert ClippedSum(nn.Linear(2, 2), lambda m, b: m(b).detach().sum(1), Flat(1.0))(
        [torch.randn(3, 2)]
    )["weight"].tolist() == [[0, 0], [0, 0]]


def test_calls_without_a_gradient_do_not_count():
    def with_targets(module, batch):
        with torch.no_grad():
            target = module(batch[0])
        return (module(batch[0]) * (1 + target)).sum(1)

    module = nn.Linear(3, 2).double()
    batch = (torch.randn(4, 3, dtype=torch.float64),)
    assert error_of(module, batch, Flat(0.5), with_targets) <= ERROR


@pytest.mark.parametrize("make", [network, lambda: nn.Conv1d(2, 3, 2).double()])
def test_no_examples_give_zeros(make):
    module = make()
    empty = (torch.zeros(0, 2, 5, dtype=torch.float64),)
    plain = losses if isinstance(module, Network) else lambda m, b: m(b[0]).sum((1, 2))
    for batches in ([], [batch_of(0) if plain is losses else empty]):
        found = ClippedSum(module, plain, Flat(1.0))(batches)
        assert found.keys() == {name for name, _ in module.named_parameters()}
        assert all(not value.any() for value in found.values())


@pytest.mark.parametrize("kind, layout", [(k, layout) for k in KINDS for layout in layouts_of(k)])
def test_no_examples_in_any_layout_give_zeros(kind, layout):
    rng = torch.Generator().manual_seed(0)
    layer, part = layer_of(kind, 3, 2, rng), part_of(kind, layout, 0, 3, 2, rng)
    found = ClippedSum(layer, uses_of_one_layer, Flat(1.0))([([part], 0)])
    assert all(not value.any() for value in found.values())


@pytest.mark.parametrize("kind", KINDS)
def test_examples_without_rows_give_zeros(kind):
    rng = torch.Generator().manual_seed(0)
    layer, part = layer_of(kind, 3, 2, rng), part_of(kind, "ragged", 5, 3, 2, rng, width=0)
    found = ClippedSum(layer, uses_of_one_layer, Flat(1.0))([([part], 5)])
    assert all(not value.any() for value in found.values())


def test_a_zero_gradient_adds_nothing():
    for clipping in (Flat(1.0), PerLayer(1.0), Automatic(1.0)):
        found = ClippedSum(network(), lambda m, b: 0 * losses(m, b), clipping)([batch_of(4)])
        assert norm(found) == 0


@pytest.mark.parametrize("frozen", ["lin.weight", "lin.bias", "embed.weight", "norm.bias", "head"])
def test_frozen_parameters_are_left_out_of_norm_and_sum(frozen):
    module, batch = network(), batch_of(6)
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(not name.startswith(frozen))
    gradients = per_example(module, batch, losses)
    clipping = Flat(middling(gradients))
    found = ClippedSum(module, losses, clipping)([batch])
    assert not any(name.startswith(frozen) for name in found)
    assert relative_error(found, gradients, clipping) <= ERROR


def test_the_test_of_the_first_batch_draws_no_random_numbers():
    module = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, 2))
    summed = ClippedSum(module, lambda m, b: m(b).square().sum(1), Flat(0.5))
    batch, sums = torch.randn(6, 3), []
    for _ in range(2):
        torch.manual_seed(5)
        sums.append(summed([batch]))
    assert all(torch.equal(sums[0][name], sums[1][name]) for name in sums[0])


def test_layers_may_be_frozen_and_unfrozen_between_sums():
    module = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    batch = (torch.randn(6, 3, dtype=torch.float64),)
    summed = ClippedSum(module, lambda m, b: m(b[0]).square().sum(1), PerLayer(0.1))
    for trained in (module, module[0], module[2], module):
        module.requires_grad_(False)
        trained.requires_grad_(True)
        found = summed([batch])
        fresh = ClippedSum(module, summed.losses, summed.clipping)
        assert summed.scales == fresh.scales
        torch.testing.assert_close(found, fresh([batch]))


def test_losses_may_have_more_digits_than_the_module():
    """As they do where labels came from numpy."""
    module, x = nn.Linear(3, 1), torch.randn(5, 3)
    y = torch.randn(5, dtype=torch.float64)
    found = ClippedSum(module, lambda m, b: (m(b[0])[:, 0] - b[1]) ** 2, Flat(1e6))([(x, y)])
    plain = torch.autograd.grad(((module(x)[:, 0] - y) ** 2).sum(), module.weight)
    torch.testing.assert_close(found["weight"].float(), plain[0])


def test_one_dropout_mask_serves_norm_and_sum():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, 2)).double()
    x = torch.randn(1, 3, dtype=torch.float64)
    summed = ClippedSum(module, lambda m, b: m(b).square().sum(1), Flat(1e-3))
    assert [norm(summed([x])) for _ in range(5)] == pytest.approx([1e-3] * 5, rel=ERROR)


# --- clippings on a network -----------------------------------------------------------------------


@quick
@given(st.integers(0, 999), st.floats(-3, 1))
def test_one_example_adds_at_most_one_in_units_of_the_scales(seed, bound):
    module, batch = network(seed, torch.float32), batch_of(1, seed, dtype=torch.float32)
    names = list(ClippedSum(module, losses, Off()).blocks)
    own = {name: 10**bound * (1 + place) for place, name in enumerate(names)}
    for clipping in (Flat(10**bound), PerLayer(10**bound), PerLayer(own), Automatic(10**bound)):
        summed = ClippedSum(module, losses, clipping)
        added, scales = summed([batch]), summed.scales
        assert norm({name: value / scales[name] for name, value in added.items()}) <= 1


def test_scales_of_parameters_are_those_of_their_layers():
    module = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))
    scales = ClippedSum(module, losses, PerLayer({"0": 1.0, "2": 3.0})).scales
    assert scales == pytest.approx(
        {"0.weight": 2**0.5, "0.bias": 2**0.5, "2.weight": 3 * 2**0.5, "2.bias": 3 * 2**0.5}
    )


def test_a_missing_threshold_is_named_before_any_data_is_seen():
    with pytest.raises(InvalidInputError, match=r"'2'"):
        ClippedSum(nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2)), losses,
                   PerLayer({"0": 1.0}))  # fmt: skip


# --- gradients that are not finite ----------------------------------------------------------------


WITH_IDS = [kind for kind in KINDS if kind.startswith("Embedding")]
POISONED = [
    (kind, layout, where)
    for kind in KINDS
    for layout in layouts_of(kind)
    for where in ("inputs", "target")
    if where == "target" or kind not in WITH_IDS
]


@pytest.mark.parametrize("poison", [math.nan, math.inf])
@pytest.mark.parametrize("kind, layout, where", POISONED)
def test_a_gradient_that_is_not_finite_adds_nothing(kind, layout, where, poison):
    rng = torch.Generator().manual_seed(0)
    layer = layer_of(kind, 5, 4, rng)
    part = part_of(kind, layout, 4, 5, 4, rng, width=3)
    mine = 1 if part.owner is None else part.owner == 1
    gradients = [per_example(layer, ([part.of(i)], 1))[0] for i in (0, 2, 3)]
    if where == "target":
        part.target[mine] = poison
    else:
        part.inputs[0][mine] = poison
    for clipping in (Flat(middling(gradients)), Automatic(1.0), PerLayer(1.0)):
        found = ClippedSum(layer, uses_of_one_layer, clipping)([([part], 4)])
        assert relative_error(found, gradients, clipping) <= ERROR


def test_a_network_and_its_example_by_example_twin_drop_what_is_not_finite():
    x = torch.randn(5, 3, dtype=torch.float64)
    x[2] = math.nan
    for layer in (nn.Linear(3, 2), Pair(3, 3, 2)):
        inputs = 1 + isinstance(layer, Pair)
        module = layer.double()

        def square(m, batch, inputs=inputs):
            return m(*[batch[0]] * inputs).square().sum(1)

        gradients = per_example(module, (x[[0, 1, 3, 4]],), square)
        found = ClippedSum(module, square, Flat(0.1))([(x,)])
        assert relative_error(found, gradients, Flat(0.1)) <= ERROR


# --- example by example ---------------------------------------------------------------------------


class Signal(nn.Module):
    """A convolution over time, a bilinear layer, a temperature and a fixed filter."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(2, 3, 3, padding=1)
        self.pair = Pair(3, 2, 4)
        self.temperature = nn.Parameter(torch.tensor(0.7))
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.register_buffer("filter", torch.linspace(0.5, 1.5, 6))

    def features(self, x):
        return torch.tanh(self.conv(x * self.filter)).mean(2)

    def forward(self, x, z):
        return self.frozen(self.pair(self.features(x), z)) * self.temperature


def signal_losses(module, batch):
    x, z, labels = batch
    assert isinstance(module, nn.Module)
    penalty = module.features(x).square().sum(1)  # a method of its own
    return F.cross_entropy(module(x, z), labels, reduction="none") + 0.1 * penalty


def signals(count, seed=0):
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 2, 6, generator=rng, dtype=torch.float64)
    z = torch.randn(count, 2, generator=rng, dtype=torch.float64)
    return x, z, torch.randint(4, (count,), generator=rng)


@pytest.mark.parametrize("at_once", [1, 3, 256])
@pytest.mark.parametrize("count", [1, 7])
def test_layers_without_a_rule_are_run_example_by_example(monkeypatch, count, at_once):
    torch.manual_seed(0)
    module, batch = Signal().double(), signals(count)
    size = sum(p.numel() for p in module.parameters() if p.requires_grad)
    monkeypatch.setattr(clipped_module, "_VMAP_ELEMENTS", at_once * size)
    gradients = per_example(module, batch, signal_losses)
    for clipping in clippings(gradients):
        summed = ClippedSum(module, signal_losses, clipping)
        assert summed.by_example
        found = summed([batch])
        assert "frozen.weight" not in found
        assert relative_error(found, gradients, clipping) <= ERROR
        assert found.keys() == summed.scales.keys()


def test_example_by_example_and_book_keeping_agree():
    class Unknown(nn.Linear):
        pass

    torch.manual_seed(0)
    known = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    unknown = nn.Sequential(Unknown(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    unknown.load_state_dict(known.state_dict())
    x = torch.randn(6, 3, dtype=torch.float64)
    sums = [ClippedSum(m, lambda m, b: m(b).square().sum(1), Flat(0.3)) for m in (known, unknown)]
    assert [summed.by_example for summed in sums] == [False, True]
    for name, value in sums[0]([x]).items():
        torch.testing.assert_close(sums[1]([x])[name], value, rtol=1e-5, atol=0)


def test_a_weight_that_two_layers_own_has_one_gradient():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3)).double()
    module[2].weight = module[0].weight
    batch = (torch.randn(5, 3, dtype=torch.float64),)
    assert error_of(module, batch, Flat(0.2), lambda m, b: m(b[0]).square().sum(1)) <= ERROR


def test_random_layers_draw_anew_for_each_example():
    module = nn.Sequential(nn.Conv1d(1, 1, 1, bias=False), nn.Dropout(0.5))
    torch.manual_seed(0)
    x = torch.ones(200, 1, 1)
    found = ClippedSum(module, lambda m, b: m(b).sum((1, 2)), Off())([x])
    assert 100 < float(found["0.weight"]) < 300  # half of the examples, twice each


# --- planted mistakes -----------------------------------------------------------------------------


def drop_the_clip(patch):
    patch.setattr(Flat, "factors", lambda self, norms: Off().factors(norms))


def halve_the_norm(patch, plain=Flat.factors):
    patch.setattr(
        Flat, "factors", lambda self, norms: plain(self, {n: v / 4 for n, v in norms.items()})
    )


def clip_by_layer(patch):
    patch.setattr(Flat, "factors", lambda self, norms: PerLayer(self.max_grad_norm).factors(norms))


def forget_the_bias_in_the_norm(patch, plain=rules.LinearRule.squared_norms):
    def norms(rule):
        without = copy.copy(rule)
        without.with_bias = False
        return plain(without)

    patch.setattr(rules.LinearRule, "squared_norms", norms)


def forget_the_bias_in_the_sum(patch, plain=rules.LinearRule.weighted_sum):
    def without(rule, weights, numbered):
        return {n: v for n, v in plain(rule, weights, numbered).items() if n != "bias"}

    patch.setattr(rules.LinearRule, "weighted_sum", without)


def take_the_norm_of_each_call(patch, plain=rules.LinearRule.squared_norms):
    def norms(rule):
        return sum(plain(type(rule)(rule.layer, [call], rule.count)) for call in rule.calls)

    patch.setattr(rules.LinearRule, "squared_norms", norms)


def forget_the_second_call(patch, plain=rules.LinearRule.__init__):
    patch.setattr(
        rules.LinearRule, "__init__",
        lambda self, layer, calls, count: plain(self, layer, calls[:1], count),
    )  # fmt: skip


def take_the_rows_of_another_example(patch, plain=rules.LinearRule.__init__):
    def init(self, layer, calls, count):
        calls = [rules.Call((c.inputs[0].roll(1, 0),), c.grad, c.rows) for c in calls]
        plain(self, layer, calls, count)

    patch.setattr(rules.LinearRule, "__init__", init)


def take_the_weight_of_another_example(patch, plain=rules.LinearRule.weighted_sum):
    def rolled(rule, weights, numbered):
        return plain(rule, weights.roll(1), numbered)

    patch.setattr(rules.LinearRule, "weighted_sum", rolled)


def add_the_rows_of_the_batch_in_a_small_layer(patch):
    def summed(values, rows, shape, plain=rules._sum_rows):
        total = plain(values, rows, shape)
        return total.mean(0, keepdim=True).expand_as(total)

    patch.setattr(rules, "_sum_rows", summed)


def count_padding(patch, plain=rules.EmbeddingRule.__init__):
    def init(self, layer, calls, count):
        layer = copy.copy(layer)
        layer.padding_idx = None
        plain(self, layer, calls, count)

    patch.setattr(rules.EmbeddingRule, "__init__", init)


def count_every_id_by_itself(patch, plain=torch.unique):
    patch.setattr(torch, "unique", lambda keys, return_inverse: (keys, torch.arange(len(keys))))


MISTAKES = [
    drop_the_clip,
    halve_the_norm,
    clip_by_layer,
    forget_the_bias_in_the_norm,
    forget_the_bias_in_the_sum,
    take_the_norm_of_each_call,
    forget_the_second_call,
    take_the_rows_of_another_example,
    take_the_weight_of_another_example,
    add_the_rows_of_the_batch_in_a_small_layer,
    count_padding,
    count_every_id_by_itself,
]


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda f: f.__name__)
def test_a_planted_mistake_differs_from_the_oracle(monkeypatch, mistake):
    module, batch = network(), batch_of(6)
    clipping = Flat(0.5 * middling(per_example(module, batch, losses)))
    assert error_of(module, batch, clipping, losses) <= ERROR
    # Without the engine's own test of the first batch, which would refuse some of these.
    monkeypatch.setattr(ClippedSum, "_test", lambda self, batch: None)
    with monkeypatch.context() as patch:
        mistake(patch)
        found = ClippedSum(module, losses, clipping)([batch])
    assert relative_error(found, per_example(module, batch, losses), clipping) > 10 * ERROR


@pytest.mark.parametrize("mistake", [drop_the_clip, halve_the_norm, clip_by_layer])
def test_a_mistake_planted_example_by_example_differs_from_the_oracle(monkeypatch, mistake):
    torch.manual_seed(0)
    module, batch = Signal().double(), signals(6)
    gradients = per_example(module, batch, signal_losses)
    clipping = Flat(0.5 * middling(gradients))
    mistake(monkeypatch)
    found = ClippedSum(module, signal_losses, clipping)([batch])
    assert relative_error(found, gradients, clipping) > 10 * ERROR


def test_norms_come_one_for_each_layer_and_example():
    module, batch = network(), batch_of(6)
    spy = Spy(Flat(1.0))
    ClippedSum(module, losses, spy)([batch])
    gradients = per_example(module, batch, losses)
    for block, read in spy.norms.items():
        own = [norm({n: v for n, v in g.items() if block_of(n) == block}) for g in gradients]
        assert read.tolist() == pytest.approx(own, rel=ERROR)
    total, _ = clipped_sum(gradients, Off())
    assert {block_of(name) for name, value in total.items() if value.any()} == set(spy.norms)
    assert all(isinstance(value, Tensor) for value in spy.said.values())


def test_leaving_one_example_out_of_very_many_moves_the_sum_by_its_own_term():
    """In float32 a hundred thousand gradients that agree round by a hundredth of one of them."""
    module = nn.Linear(1, 1, bias=False)
    count, chunk = 200_000, 1_000
    x = torch.full((count, 1), 0.7)
    summed = ClippedSum(module, lambda m, b: m(b)[:, 0], Flat(1.0))
    whole = summed(x.split(chunk))["weight"]
    for out in (1, 777):
        left = torch.cat([x[:out], x[out + 1 :]])
        assert float((whole - summed(left.split(chunk))["weight"]).abs()) == pytest.approx(
            0.7, abs=2e-4
        )
