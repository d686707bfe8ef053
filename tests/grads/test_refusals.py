"""What cannot be done exactly is refused: by name, with a way out."""

import pytest
import torch
from grads_cases import Pair
from torch import nn
from torch.nn import functional as F

from graphveil._errors import InvalidInputError, RefusedError, UnprovenError
from graphveil.grads import ClippedSum, Flat, Off, make_private, ragged
from graphveil.grads.layers import HeadDot
from graphveil.grads.selftest import SelfTest
from graphveil.grads.step import TensorExamples, cross_entropy

X = torch.linspace(-2, 2, 24).view(6, 4).sin() * 3


def squares(module, batch):
    return module(batch).flatten(1).square().sum(1)


def refused(module, *words, losses=squares, batches=(X,), clipping=None):
    """The engine refuses with exit code 3 and a message that has these words."""
    with pytest.raises(RefusedError) as error:
        ClippedSum(module, losses, clipping or Flat(1.0))(batches)
    assert error.value.exit_code == 3
    for word in words:
        assert word in str(error.value)


class Wrapped(nn.Module):
    """A layer, and something made of what it gives."""

    def __init__(self, then, layer=None):
        super().__init__()
        self.lin = nn.Linear(4, 4) if layer is None else layer
        self.then = then

    def forward(self, x):
        return self.then(self.lin(x))


# --- layers that mix or remember ------------------------------------------------------------------


class Renamed(nn.BatchNorm1d):
    pass


@pytest.mark.parametrize(
    "layer",
    [
        nn.BatchNorm1d(4),
        nn.BatchNorm1d(4, affine=False, track_running_stats=False),
        nn.BatchNorm2d(4),
        nn.SyncBatchNorm(4),
        nn.LazyBatchNorm1d(),
        Renamed(4, track_running_stats=False),
        nn.InstanceNorm1d(4, affine=True, track_running_stats=True),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_norms_over_a_batch_or_with_a_memory_are_refused(layer):
    module = nn.Sequential(nn.Linear(4, 4), nn.Sequential(layer))
    refused(module, "'1.0'", type(layer).__name__, "nn.LayerNorm", "InstanceNorm")


@pytest.mark.parametrize(
    "name", ["BatchNorm", "GraphNorm", "PairNorm", "MeanSubtractionNorm", "DiffGroupNorm"]
)
def test_norms_of_pyg_over_all_nodes_are_refused(name):
    gnn = pytest.importorskip("torch_geometric.nn")
    make = getattr(gnn, name)
    layer = {"PairNorm": lambda: make(), "MeanSubtractionNorm": lambda: make(),
             "DiffGroupNorm": lambda: make(4, 2)}.get(name, lambda: make(4))()  # fmt: skip
    refused(nn.Sequential(nn.Linear(4, 4), layer), "'1'", name, "nn.LayerNorm")


@pytest.mark.parametrize("option", [{"max_norm": 1.0}, {"scale_grad_by_freq": True}])
def test_embeddings_that_look_at_the_whole_batch_are_refused(option):
    module = nn.Sequential(nn.Embedding(5, 4, **option))
    refused(module, "'0' (Embedding)", *option, batches=[torch.tensor([[0, 1], [1, 1]])])


def test_a_buffer_that_follows_the_data_is_refused():
    class Memory(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(4, 4)
            self.register_buffer("mean", torch.zeros(4))

        def forward(self, x):
            self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
            return self.lin(x)

    class InPlace(Memory):
        def forward(self, x):
            self.mean.lerp_(x.detach().mean(0), 0.1)
            return self.lin(x)

    for module in (Memory(), InPlace()):
        refused(module, "'mean'", "memory", "forward")


class Kept(nn.Module):
    """A memory in a plain attribute: of the last batch, of a mean, or of everything."""

    def __init__(self, how, layer=None):
        super().__init__()
        self.lin, self.how = nn.Linear(4, 4) if layer is None else layer, how
        self.kept = [] if how == "list" else torch.zeros(4)

    def forward(self, x):
        if self.how == "list":
            self.kept.append(x.detach())
            return self.lin(x - self.kept[0].mean())
        if self.how == "mean":
            self.kept.lerp_(x.detach().mean(0), 0.1)
        else:
            self.kept = 0.9 * self.kept + 0.1 * x.detach().mean(0)
        return self.lin(x - self.kept)


@pytest.mark.parametrize("how", ["list", "mean", "assigned"])
def test_an_attribute_that_follows_the_data_is_refused(how):
    refused(Kept(how), "'kept'", "memory", "local variable")


def test_an_attribute_that_follows_the_data_is_refused_example_by_example():
    refused(Kept("assigned", nn.Sequential(nn.PReLU())), "'kept'", "memory", "local variable")


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="no vmap of nn.LSTM")
@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_the_weights_that_a_recurrent_layer_lists_are_no_memory():
    module = nn.LSTM(4, 2, batch_first=True)
    losses = lambda m, x: m(x)[0].square().sum((1, 2))  # noqa: E731
    ClippedSum(module, losses, Flat(1.0))([X.view(2, 3, 4)])


def test_what_a_module_makes_once_may_be_kept_if_no_example_was_there():
    """From the first batch it could be anything: a table of places, or the mean of the batch."""

    class Lazy(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin, self.place = nn.Linear(4, 4), None

        def forward(self, x):
            if self.place is None:
                self.place = torch.linspace(0, 1, x.shape[1])
            return self.lin(x + self.place)

    with pytest.raises(UnprovenError, match="'place'"):
        ClippedSum(Lazy(), squares, Flat(1.0))([X, X[:3]])
    module = Lazy()
    module(torch.zeros(1, 4))
    ClippedSum(module, squares, Flat(1.0))([X, X[:3]])


# --- losses that depend on other examples ---------------------------------------------------------


def attend(h):
    return torch.softmax(h @ h.t(), 1) @ h


MIXERS = {
    "subtracts the mean": lambda h: h - h.mean(0),
    "softmax over the batch": lambda h: torch.softmax(h, 0),
    "attends to the batch": attend,
    "adds the next example": lambda h: h + h.roll(1, 0),
    "adds all earlier examples": lambda h: h.cumsum(0),
    "adds all later examples": lambda h: h.flip(0).cumsum(0).flip(0),
    "divides by the largest": lambda h: h / h.abs().max(),
}


@pytest.mark.parametrize("mixer", MIXERS)
@pytest.mark.parametrize("clipping", [Flat(1.0), Off()])
def test_mixing_after_a_layer_is_refused(mixer, clipping):
    refused(Wrapped(MIXERS[mixer]), "'lin' (Linear)", "mixes", "Remove it", clipping=clipping)


@pytest.mark.parametrize("batch", [X, (X, X[:, 0])], ids=["tensor", "tuple"])
@pytest.mark.parametrize(
    "module, losses",
    [
        (Wrapped(nn.Identity()), lambda m, x: squares(m, x - x.mean(0))),
        (Wrapped(lambda h: h - h.detach().mean(0)), squares),
        (Wrapped(nn.Identity()), lambda m, x: squares(m, x) / len(x)),
    ],
    ids=["inputs minus their mean", "minus a detached mean", "divided by the batch size"],
)
def test_mixing_that_autograd_does_not_see_is_refused(module, losses, batch):
    first = (lambda b: b) if batch is X else (lambda b: b[0])
    refused(module, "mixes the examples", losses=lambda m, b: losses(m, first(b)), batches=[batch])


def test_mixing_behind_examples_without_a_gradient_is_refused():
    mask = torch.tensor([0.0, 0, 0, 0, 0, 1])
    refused(Wrapped(attend), "mixes examples", losses=lambda m, x: squares(m, x) * mask[-len(x) :])


def test_mixing_is_found_when_the_first_batch_has_one_example():
    summed = ClippedSum(Wrapped(attend), squares, Flat(1.0))
    summed([X[:0], X[:1], X[1:2]])
    with pytest.raises(RefusedError, match="mixes"):
        summed([X])


class Gated(nn.Module):
    """Attention to the whole batch, behind a layer that starts at zero."""

    def __init__(self):
        super().__init__()
        self.value, self.out = nn.Linear(4, 4), nn.Linear(4, 4)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def forward(self, x):
        return x + self.out(attend(self.value(x)))


def test_mixing_behind_a_weight_that_starts_at_zero_is_refused():
    module = Gated()
    before = [p.clone() for p in module.parameters()]
    refused(module, "'value'", "mixes examples")
    assert all(torch.equal(a, b) for a, b in zip(before, module.parameters(), strict=True))


def test_mixing_behind_dropout_that_autograd_does_not_see_is_refused():
    module = Wrapped(lambda h: F.dropout(h, 0.5, module.training) - h.detach().mean(0))
    refused(module, "mixes the examples")
    assert module.training
    assert module.lin.training


def test_two_examples_in_the_middle_that_mix_are_refused():
    def pair(h):
        out = h.clone()
        out[1] = h[1] + h[2].detach()
        return out

    refused(Wrapped(pair), "mixes the examples")


def test_mixing_in_training_mode_is_found_after_a_start_in_evaluation_mode():
    module = Wrapped(lambda h: h - h.mean(0) if module.training else h).eval()
    summed = ClippedSum(module, squares, Flat(1.0))
    summed([X])
    module.train()
    with pytest.raises(RefusedError, match="mixes"):
        summed([X])


def test_mixing_that_starts_later_is_found_at_the_next_test():
    late = []
    summed = ClippedSum(Wrapped(lambda h: h - h.mean(0) if late else h), squares, Flat(1.0))
    for _ in range(10):
        summed([X])
    late.append(True)
    with pytest.raises(RefusedError, match="mixes"):
        summed([X])


def test_mixing_of_ragged_rows_is_refused():
    class Graphs(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(4, 4)

        def forward(self, x, owner, count):
            with ragged(owner, count):
                h = self.lin(x)
            return h.new_zeros(count, 4).index_add(0, owner, h - h.mean(0))

    batch = (X, torch.tensor([2, 0, 0, 1, 2, 2]), 3)
    refused(Graphs(), "'lin'", "mixes", losses=lambda m, b: m(*b).square().sum(1), batches=[batch])


def test_a_row_that_all_examples_share_is_refused():
    class Position(nn.Module):
        def __init__(self):
            super().__init__()
            self.place = nn.Embedding(6, 4)

        def forward(self, x):
            return x.unsqueeze(1) + self.place(torch.arange(self.length))

    module = Position()
    for module.length in (3, len(X)):  # as many rows as there are examples, by chance
        refused(module, "'place'")


# --- parameters used behind the engine's back -----------------------------------------------------


class Tied(nn.Module):
    """The embedding's weight is also the output layer's."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(5, 4)
        self.lin = nn.Linear(4, 4)

    def forward(self, ids):
        return F.linear(self.lin(self.embed(ids)), self.embed.weight)


class Called(nn.Module):
    """A layer that is used in some other way than by calling it."""

    def __init__(self, way):
        super().__init__()
        self.lin, self.way = nn.Linear(4, 4), way

    def forward(self, x):
        return self.way(self.lin, x)


def test_a_weight_tied_by_hand_is_refused():
    ids = torch.tensor([[0, 1], [2, 3], [4, 4]])
    refused(Tied(), "'embed.weight'", "Call the layer itself", batches=[ids])


@pytest.mark.parametrize(
    "way",
    [
        lambda lin, x: lin.forward(x),
        lambda lin, x: lin(x) + lin.weight.sum(),
        lambda lin, x: lin(x) * (1 + 0.01 * lin.bias),
        lambda lin, x: F.linear(x, lin.weight),
    ],
    ids=["forward", "penalty", "a little", "functional"],
)
def test_parameters_used_outside_their_layer_are_refused(way):
    refused(Called(way), "'lin.", "Call the layer itself")


def test_a_weight_tied_by_hand_is_found_behind_dropout():
    module = Called(lambda lin, x: F.linear(F.dropout(lin(x), 0.5), lin.weight))
    refused(module, "'lin.weight'")
    refused(nn.Sequential(module, nn.Dropout(0.5)), "'0.lin.weight'")


def test_inputs_by_name_are_refused():
    refused(Called(lambda lin, x: lin(input=x)), "'lin'", "input", "positions")


@pytest.mark.parametrize(
    "then",
    [nn.ReLU(inplace=True), nn.Dropout(0.5, inplace=True), lambda h: h.mul_(2),
     lambda h: h[:, :2].zero_() + h[:, 2:]],
    ids=["relu", "dropout", "times two", "through a view"],
)  # fmt: skip
def test_a_layer_s_output_changed_in_place_is_refused(then):
    refused(Wrapped(then), "'lin'", "in place", "nn.ReLU()")


def test_an_output_changed_in_place_is_refused_in_any_batch():
    """Also where it happens to change nothing at first."""
    module = Wrapped(nn.ReLU(inplace=True))
    nn.init.zeros_(module.lin.weight)
    nn.init.ones_(module.lin.bias)
    refused(module, "'lin'", "in place")


def test_a_layer_s_input_changed_in_place_is_refused():
    refused(Called(lambda lin, x: lin(x) + x.add_(1)), "'lin'", "in place", batches=[X.clone()])


# --- numbers with too few digits, and none at all -------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.complex64])
@pytest.mark.parametrize("layer", [nn.Linear, lambda d, p: nn.Bilinear(d, 1, p)])
def test_parameters_with_few_digits_are_refused(layer, dtype):
    refused(layer(4, 2).to(dtype), str(dtype), "float32", "module.float()")


def test_parameters_of_two_dtypes_are_refused():
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2).double())
    refused(module, "torch.float32, torch.float64")


def test_autocast_is_refused():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        refused(nn.Linear(4, 2), "torch.bfloat16", "autocast")


def test_parameters_without_a_size_are_refused():
    with pytest.raises(InvalidInputError, match=r"'weight' has no size yet.*Run the module once"):
        ClippedSum(nn.LazyLinear(2), squares, Flat(1.0))


def test_inference_mode_is_refused():
    with torch.inference_mode(), pytest.raises(InvalidInputError, match="inference_mode"):
        ClippedSum(nn.Linear(4, 2), squares, Flat(1.0))([X])


# --- losses and rows of the wrong shape -----------------------------------------------------------


@pytest.mark.parametrize("layer", [nn.Linear(4, 3), Pair(4, 4, 3)])
@pytest.mark.parametrize(
    "reduce", [lambda h: h.mean(), lambda h: h, lambda h: h.sum(1, keepdim=True)],
    ids=["mean", "matrix", "column"],
)  # fmt: skip
def test_losses_must_be_a_vector(layer, reduce):
    inputs = 1 + isinstance(layer, Pair)
    with pytest.raises(InvalidInputError, match=r"one entry for each example.*Got shape") as error:
        ClippedSum(layer, lambda m, x: reduce(m(*[x] * inputs)), Flat(1.0))([X])
    assert error.value.exit_code == 2


@pytest.mark.parametrize("wrong", [None, [1.0], 2.0])
def test_losses_must_be_a_tensor(wrong):
    with pytest.raises(InvalidInputError, match=f"Got {type(wrong).__name__} instead"):
        ClippedSum(nn.Linear(4, 2), lambda m, x: wrong, Flat(1.0))([X])


def test_a_layer_norm_over_the_examples_is_refused():
    refused(nn.LayerNorm([6, 4]), "LayerNorm([6, 4])", "first dimension")


def test_an_instance_norm_without_examples_first_is_refused():
    layer = nn.InstanceNorm1d(6, affine=True)
    refused(layer, "(examples, channels, length)", "(6, 4)")


def test_one_loss_for_many_examples_is_refused():
    refused(nn.Linear(4, 3), "''", "saw 6 rows for 1 examples", "examples first",
            losses=lambda m, x: m(x).mean().view(1))  # fmt: skip


def test_one_loss_for_each_row_is_refused():
    refused(nn.Linear(4, 3), "saw 2 rows for 6 examples", "graphveil.grads.ragged",
            losses=lambda m, x: m(x).sum(2).flatten(), batches=[X.view(2, 3, 4)])  # fmt: skip


def test_examples_must_come_first():
    sequences = torch.randn(5, 3, 4)  # (time, examples, channels)
    refused(nn.Linear(4, 3), "saw 5 rows for 3 examples",
            losses=lambda m, x: m(x).sum((0, 2)), batches=[sequences])  # fmt: skip
    square = torch.randn(3, 3, 4)
    refused(nn.Linear(4, 3), "depends on the rows of another",
            losses=lambda m, x: m(x).square().sum((0, 2)), batches=[square])  # fmt: skip


@pytest.mark.parametrize(
    "owner, count",
    [([0, 0, 1, 1, 2], 3), ([0, 0, 1, 1, 2, 2], 4), ([0, 0, 1, 1, 2, 3], 3),
     ([0, 0, 1, 1, -1, 2], 3), ([0, 0, 1, 1, 2, 2], 2)],
    ids=["too few", "more examples", "a stranger", "negative", "fewer examples"],
)  # fmt: skip
@pytest.mark.parametrize("layer", [nn.Linear(4, 2), nn.LayerNorm(4)])
def test_ragged_rows_must_belong_to_the_examples(layer, owner, count):
    def losses(module, x):
        with ragged(torch.tensor(owner), count):
            return module(x).view(3, -1).sum(1)

    refused(layer, "6 rows for 3 examples", f"{len(owner)} owners among {count}", "owner of every",
            losses=losses)  # fmt: skip


def test_rows_are_checked_in_every_batch():
    def losses(module, x):
        return module(x).flatten().sum() + torch.zeros(6) if x.dim() == 3 else squares(module, x)

    summed = ClippedSum(nn.Linear(4, 2), losses, Flat(1.0))
    summed([X])
    with pytest.raises(RefusedError, match="saw 2 rows for 6"):
        summed([X.view(2, 3, 4)])


# --- example by example ---------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [{"x": X}, (X, "text"), (X, X[:3]), (X, torch.tensor(1.0))])
def test_layers_without_a_rule_need_tensors_with_examples_first(batch):
    refused(nn.Sequential(Pair(4, 4, 2)), "'0' (Pair)", "examples first", "nn.Linear",
            batches=[batch])  # fmt: skip


def test_layers_that_cannot_be_run_example_by_example_are_refused():
    class Branch(Pair):
        def forward(self, x):
            return super().forward(x, x) if float(x.sum()) > 0 else super().forward(x, -x)

    refused(nn.Sequential(Branch(4, 4, 2)), "'0' (Branch)", "nn.Linear", "freeze")


def test_a_frozen_module_has_nothing_to_train():
    with pytest.raises(InvalidInputError, match="requires a gradient"):
        ClippedSum(nn.Linear(2, 2).requires_grad_(False), squares, Flat(1.0))


# --- what must not be refused ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "module",
    [
        nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Dropout(0.5), nn.Linear(4, 2)),
        nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)),
        nn.Sequential(nn.Linear(4, 4), nn.GroupNorm(2, 4)),
        nn.Sequential(nn.Unflatten(1, (2, 2)), nn.InstanceNorm1d(2, affine=True)),
        nn.Sequential(nn.Unflatten(1, (2, 2)), HeadDot(2, 2)),
        nn.Sequential(nn.Linear(4, 4), nn.Softmax(1)),
    ],
    ids=["dropout", "layer norm", "group norm", "instance norm", "head dot", "softmax"],
)
def test_honest_modules_are_accepted(module):
    ClippedSum(module, squares, Flat(1.0))([X, X[:1], X[:0]])


def test_gradients_that_sum_to_nearly_nothing_are_accepted():
    """Rounding is judged by the size of the terms, not of their sum."""
    x = X.clone() + 1e4
    sign = torch.tensor([1.0, -1, 1, -1, 1, -1]).view(6, 1)
    losses = lambda m, b: (m(b[0]) * b[1]).sum(1)  # noqa: E731
    ClippedSum(nn.Linear(4, 3), losses, Flat(1.0))([(x[:1].expand(6, 4), sign), (x, sign)])


def test_a_first_batch_that_is_not_finite_is_accepted():
    summed = ClippedSum(Wrapped(attend), squares, Flat(1.0))
    summed([X * torch.nan])
    with pytest.raises(RefusedError, match="mixes"):  # but does not count as tested
        summed([X])


def test_batches_of_one_are_tested_once_and_the_first_larger_one_again(monkeypatch):
    """One example alone shows no mixing; testing it at every step would cost several steps."""
    clipped = ClippedSum(nn.Linear(3, 2), cross_entropy, Flat(1.0))
    tested, test = [], SelfTest._test_gradients

    def noted(self, batch, states):
        tested.append(len(batch[0]))
        return test(self, batch, states)

    monkeypatch.setattr(SelfTest, "_test_gradients", noted)
    x, y = torch.randn(4, 3), torch.tensor([0, 1, 0, 1])
    for size in (1, 1, 1, 3, 3, 1):
        clipped([(x[:size], y[:size])])
        assert clipped.seen == size
    assert tested == [1, 1, 3, 3]  # each as the module is, and at other weights


def test_mixing_that_only_a_larger_batch_shows_is_refused_then():
    class Centred(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(3, 2)

        def forward(self, x):
            return self.lin(x - x.mean(0))

    clipped = ClippedSum(Centred(), cross_entropy, Flat(1.0))
    x, y = torch.randn(4, 3), torch.tensor([0, 1, 0, 1])
    for _ in range(3):
        clipped([(x[:1], y[:1])])
    with pytest.raises(UnprovenError):
        clipped([(x, y)])


@pytest.mark.parametrize("sizes", [[5], [1, 5], [1, 1, 1, 2]])
@pytest.mark.parametrize("keeps", ["buffer", "attribute"])
def test_what_a_module_remembers_of_its_first_larger_batch_is_refused(sizes, keeps):
    """It starts from the mean of the first batch that has one: exact, and without noise."""

    class Started(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(3, 2)
            self.register_buffer("shift", torch.zeros(3), persistent=keeps == "buffer")
            self.kept = torch.zeros(3)
            self.ready = False

        def forward(self, x):
            if not self.ready and len(x) > 1:
                (self.shift if keeps == "buffer" else self.kept).copy_(x.detach().mean(0))
                self.ready = True
            return self.lin(x - self.shift - self.kept)

    clipped = ClippedSum(Started(), cross_entropy, Flat(1.0))
    x, y = torch.randn(5, 3), torch.tensor([0, 1, 0, 1, 1])
    # A batch of one is filled up, and is larger than it looks.
    with pytest.raises(UnprovenError):
        [clipped([(x[:size], y[:size])]) for size in sizes]


def test_what_is_made_from_the_first_batch_and_kept_is_refused():
    class Lazy(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin, self.centre = nn.Linear(3, 2), None

        def forward(self, x):
            if self.centre is None:
                self.centre = x.detach().mean(0)
            return self.lin(x - self.centre)

    x, y = torch.randn(5, 3), torch.tensor([0, 1, 0, 1, 1])
    with pytest.raises(UnprovenError, match="centre"):
        ClippedSum(Lazy(), cross_entropy, Flat(1.0))([(x, y)])


def test_one_loss_for_several_examples_is_refused():
    def shared(module, batch):
        return cross_entropy(module, (batch[0].mean(0, keepdim=True), batch[1][:1]))

    module = nn.Linear(3, 2)
    step = make_private(
        module, torch.optim.SGD(module.parameters(), lr=0.1),
        TensorExamples(torch.randn(40, 3), torch.arange(40) % 2),
        losses=shared, noise_multiplier=1.0, removed=1, altered=0, sample_rate=0.5, steps=5,
    )  # fmt: skip
    with pytest.raises(UnprovenError, match="loss of its own"):
        step()
