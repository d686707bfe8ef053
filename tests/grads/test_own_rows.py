"""The clipped sum of linear layers in a chain equals the engine's, and autograd's one by one."""

import copy

import numpy as np
import pytest
import torch
from scipy import sparse
from torch import Tensor, nn

from graphveil import make_private, secret
from graphveil._errors import InvalidInputError, UnprovenError
from graphveil.grads import own_rows
from graphveil.grads.clipped import ClippedSum
from graphveil.grads.clipping import Automatic, Flat, PerLayer, Quantile
from graphveil.grads.own_rows import RowExamples, RowSum
from graphveil.grads.step import TensorExamples, cross_entropy
from graphveil.methods.task import Classification
from graphveil.methods.terms import node_losses
from graphveil.nn import MLP, NodeClassifier
from graphveil.nn.mlp import FUNCTIONS

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
    linear = RowSum(layer, cross_entropy, clipping)
    ours = linear(RowExamples(sparse.csr_array(x), y).batches(drawn))
    engine = ClippedSum(layer, cross_entropy, clipping)
    theirs = engine(TensorExamples(x, y).batches(drawn))
    assert ours.keys() == theirs.keys()
    assert linear.seen == engine.seen
    assert linear.loss == pytest.approx(engine.loss, rel=1e-5)
    for name, value in theirs.items():
        torch.testing.assert_close(ours[name], value, rtol=2e-5, atol=2e-6)


def test_no_example_moves_the_sum_by_more_than_the_bound(rows, layer):
    x, y = rows
    examples, total = RowExamples(sparse.csr_array(x), y), RowSum(layer, cross_entropy, Flat(0.3))
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
    total, labels = RowSum(layer, cross_entropy, Flat(1.0)), y.clone()
    labels[0] = -100
    with_it, without_it = (
        torch.cat([v.flatten() for v in total(examples.batches(torch.arange(count))).values()])
        for examples in (
            RowExamples(sparse.csr_array(x), y),
            RowExamples(sparse.csr_array(x), labels),
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
    total = RowSum(layer, cross_entropy, Flat(bound))
    examples = RowExamples(sparse.csr_array(x), torch.arange(300) % 5)
    for place in range(300):
        found = total(examples.batches(torch.tensor([place])))
        assert float(torch.cat([v.flatten() for v in found.values()]).norm()) <= bound * (1 + 1e-12)


@pytest.mark.parametrize("broken", [float("inf"), float("nan")])
def test_rows_that_are_not_finite_count_for_nothing(rows, layer, broken):
    x, y = rows
    x[0, 1] = broken
    examples = RowExamples(sparse.csr_array(x), y)
    found = RowSum(layer, cross_entropy, Flat(0.3))(examples.batches(torch.tensor([0])))
    assert all((value == 0).all() for value in found.values())
    assert y[0] >= 0  # the caller's labels stay


def test_rows_that_overflow_count_for_nothing(rows, layer):
    x, y = rows
    x[0] = 1e30
    found = RowSum(layer, cross_entropy, Flat(0.3))(
        RowExamples(sparse.csr_array(x), y).batches(torch.arange(ROWS))
    )
    assert all(bool(value.isfinite().all()) for value in found.values())
    alone = RowSum(layer, cross_entropy, Flat(0.3))(
        RowExamples(sparse.csr_array(x), y).batches(torch.tensor([0]))
    )
    assert all(float(value.norm()) <= 0.3 * (1 + 1e-6) for value in alone.values())


def test_a_step_on_sparse_examples_trains_and_is_charged(rows, layer):
    x, y = rows
    step = make_private(
        layer, torch.optim.SGD(layer.parameters(), lr=1.0),
        RowExamples(sparse.csr_array(x), y),
        sample_rate=0.5, noise_multiplier=1.0, steps=3, rng=secret(),
    )  # fmt: skip
    before = layer[0].weight.clone()
    for _ in range(3):
        step()
    assert isinstance(step.clipped, RowSum)
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
        summed = RowSum(module, cross_entropy, clipping)
        total = summed(RowExamples(rows, labels).batches(torch.arange(4)))
        parts = [value.flatten() / summed.scales[name] for name, value in total.items()]
        return torch.cat([*parts, torch.tensor([clipping.count()], dtype=torch.float64)])

    moved = released(torch.tensor([0, 1, 2, 0])) - released(torch.tensor([-1, 1, 2, 0]))
    assert 0.99 < float(moved.norm()) <= 1 + 1e-9


# --- hidden layers --------------------------------------------------------------------------------


def perceptron(activation="tanh", layers=2, **settings):
    torch.manual_seed(2)
    return MLP(COLUMNS, 7, CLASSES, layers, activation, **settings)


def one_by_one(module, x, y, bound):
    """Every example's gradient by plain autograd, clipped, added up."""
    module = copy.deepcopy(module).double()
    total = {name: torch.zeros_like(value) for name, value in module.named_parameters()}
    for row, label in zip(x.double(), y, strict=True):
        if label < 0:
            continue
        loss = nn.functional.cross_entropy(module(row.unsqueeze(0)), label.unsqueeze(0))
        grads = torch.autograd.grad(loss, list(module.parameters()))
        norm = torch.cat([grad.flatten() for grad in grads]).norm()
        for name, grad in zip(total, grads, strict=True):
            total[name] += grad * min(1.0, bound / float(norm))
    return total


@pytest.mark.parametrize("form", ["scipy", "csr", "coo", "dense"])
@pytest.mark.parametrize("activation", FUNCTIONS)
def test_hidden_layers_are_summed_as_autograd_does_one_by_one(rows, activation, form):
    x, y = rows
    module = perceptron(activation, 3)
    given = {
        "scipy": sparse.csr_array, "csr": Tensor.to_sparse_csr, "coo": Tensor.to_sparse_coo,
        "dense": Tensor.clone,
    }[form](x)  # fmt: skip
    for drawn in (torch.arange(ROWS), torch.tensor([7, 3, 0, 5, 30])):
        ours = RowSum(module, cross_entropy, Flat(0.4))(RowExamples(given, y).batches(drawn))
        theirs = one_by_one(module, x[drawn], y[drawn], 0.4)
        assert ours.keys() == theirs.keys()
        for name, value in theirs.items():
            torch.testing.assert_close(ours[name], value, rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize(
    "clipping", [lambda: Flat(0.3), lambda: PerLayer(0.2), Automatic, lambda: Quantile(0.3)]
)
def test_every_clipping_of_hidden_layers_is_that_of_the_engine(rows, clipping):
    x, y = rows
    module, (mine, other) = perceptron(), (clipping(), clipping())
    ours = RowSum(module, cross_entropy, mine)
    engine = ClippedSum(module, cross_entropy, other)
    sums = ours(RowExamples(x, y).batches(torch.arange(ROWS)))
    for name, value in engine(TensorExamples(x, y).batches(torch.arange(ROWS))).items():
        torch.testing.assert_close(sums[name], value, rtol=2e-5, atol=2e-6)
    assert ours.scales == engine.scales
    assert ours.loss == pytest.approx(engine.loss, rel=1e-5)
    if isinstance(mine, Quantile):
        assert mine.count() == pytest.approx(other.count())


def test_a_node_network_without_convolutions_is_a_chain(rows):
    x, y = rows
    torch.manual_seed(3)
    network = NodeClassifier(COLUMNS, 6, CLASSES, num_layers=0, encoder_layers=2, decoder_layers=2)
    ours = RowSum(network, cross_entropy, Flat(0.3))(RowExamples(x, y).batches(torch.arange(ROWS)))
    plain = nn.Module()
    plain.forward = lambda rows: network.on_graph(rows, None)
    plain.network = network
    engine = ClippedSum(plain, cross_entropy, Flat(0.3))
    theirs = engine(TensorExamples(x, y).batches(torch.arange(ROWS)))
    for name, value in theirs.items():
        torch.testing.assert_close(ours[name.removeprefix("network.")], value, rtol=2e-5, atol=2e-6)


def test_one_logit_has_a_binary_loss(rows):
    x, y = rows
    torch.manual_seed(3)
    module, labels = MLP(COLUMNS, 5, 1, 2), torch.where(y < 0, y, y % 2)
    task = Classification(num_classes=2, binary=True)
    ours = RowSum(module, node_losses(task), Flat(0.3))
    sums = ours(RowExamples(x, labels).batches(torch.arange(ROWS)))
    kept = (labels >= 0).nonzero().flatten()
    engine = ClippedSum(module, node_losses(task), Flat(0.3))
    for name, value in engine(TensorExamples(x[kept], labels[kept]).batches(kept[:0] + 0)).items():
        assert not value.any(), name
    theirs = engine([(x[kept], labels[kept])])
    for name, value in theirs.items():
        torch.testing.assert_close(sums[name], value, rtol=2e-5, atol=2e-6)


def test_a_loss_that_mixes_examples_is_refused(rows):
    x, y = rows

    def mixed(module, batch):
        losses = cross_entropy(module, batch)
        return losses - losses.mean()

    with pytest.raises(UnprovenError, match="mixes the examples"):
        RowSum(perceptron(), mixed, Flat(0.3))(RowExamples(x, y).batches(torch.arange(ROWS)))


@pytest.mark.parametrize("columns", [30, 300, 1500])
@pytest.mark.parametrize("activation", ["tanh", "selu"])
def test_a_term_is_the_same_to_the_last_bit_in_any_company(columns, activation, monkeypatch):
    """One live term among others without a loss, whose place and whose company's size change."""
    monkeypatch.setattr(own_rows, "_ROWS_AT_ONCE", 256)
    generator = torch.Generator().manual_seed(columns)
    x = torch.randn(700, columns, generator=generator)
    x[torch.rand(x.shape, generator=generator) < 0.9] = 0.0
    torch.manual_seed(0)
    total = RowSum(MLP(columns, 13, 5, 3, activation), cross_entropy, Flat(0.3))
    for live in (0, 255, 333, 699):
        y = torch.full((700,), -1)
        y[live] = 3
        examples, sums = RowExamples(x, y), []
        others = torch.randperm(700, generator=generator)
        for count in (0, 1, 5, 16, 100, 257, 400, 700):
            drawn = torch.cat([others[others != live][:count], torch.tensor([live])]).sort().values
            found = total(examples.batches(drawn))
            sums.append(torch.cat([value.flatten() for value in found.values()]))
        assert sums[0].norm() > 0
        assert all(torch.equal(value, sums[0]) for value in sums)


def test_no_example_moves_the_sum_of_hidden_layers_by_more_than_the_bound():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(400, 3, generator=generator) * torch.logspace(-30, 37, 400).unsqueeze(1)
    torch.manual_seed(0)
    for activation in ("tanh", "relu", "softplus"):
        total = RowSum(MLP(3, 4, 5, 3, activation), cross_entropy, Flat(0.3))
        for given in (x, sparse.csr_array(x)):
            examples = RowExamples(given, torch.arange(400) % 5)
            for place in range(0, 400, 7):
                found = total(examples.batches(torch.tensor([place])))
                moved = torch.cat([value.flatten() for value in found.values()])
                assert float(moved.norm()) <= 0.3 * (1 + 1e-12)


@pytest.mark.parametrize("form", [sparse.csr_array, Tensor.clone])
def test_a_hidden_row_that_is_not_finite_leaves_the_others_alone(rows, form):
    x, y = rows
    module = perceptron("relu", 3)
    huge = x.double()
    huge[1], huge[2, 3] = 1e200, float("nan")
    with torch.no_grad():
        for linear in module.linears:
            linear.weight.mul_(1e30)
    total = RowSum(module.double(), cross_entropy, Flat(0.3))
    found = total(RowExamples(form(huge), y).batches(torch.arange(ROWS)))
    kept = torch.tensor([place for place in range(ROWS) if place not in (1, 2)])
    expected = total(RowExamples(form(huge), y).batches(kept))
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-12, atol=1e-12)


def test_wide_rows_are_kept_sparse_by_their_number_of_columns_alone():
    y = torch.zeros(3, dtype=torch.long)
    assert isinstance(RowExamples(torch.zeros(3, 1024), y).rows, Tensor)
    assert not isinstance(RowExamples(torch.ones(3, 1025), y).rows, Tensor)


def frozen():
    module = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 2))
    module[0].weight.requires_grad_(False)
    return module


def used_twice():
    layer = nn.Linear(3, 3)
    return nn.Sequential(layer, nn.Tanh(), layer)


@pytest.mark.parametrize(
    "module",
    [
        nn.Linear(3, 2, bias=False),
        nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5), nn.Linear(3, 2)),
        nn.Sequential(nn.Tanh(), nn.Linear(3, 3), nn.Linear(3, 2)),
        nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2), nn.Tanh()),
        perceptron(norm="layer"),
        perceptron(dropout=0.5),
        NodeClassifier(3, 4, 2, num_layers=2),
        frozen(),
        used_twice(),
    ],
    ids=lambda module: type(module).__name__,
)
def test_what_is_not_a_chain_of_linear_layers_is_refused(module):
    with pytest.raises(InvalidInputError, match="linear layers with a bias"):
        RowSum(module, cross_entropy, Flat(1.0))


def test_rows_without_a_label_each_are_refused():
    with pytest.raises(InvalidInputError, match="as many"):
        RowExamples(sparse.csr_array(np.eye(3)), torch.zeros(2, dtype=torch.long))


def test_more_rows_than_rounding_is_paid_for_are_refused(monkeypatch):
    monkeypatch.setattr("graphveil.grads.own_rows.MOST_DRAWN", 20)
    examples = RowExamples(torch.randn(40, 3), torch.zeros(40, dtype=torch.long))

    def step(rate):
        layer = nn.Linear(3, 2)
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        return make_private(layer, optimizer, examples, sample_rate=rate, noise_multiplier=1.0)

    assert isinstance(step(0.5).clipped, RowSum)
    with pytest.raises(UnprovenError, match="at most 20"):
        step(1.0)
