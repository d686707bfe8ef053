"""Modules and losses that mix examples in training, or remember them: refused, by name."""

import array
import functools
import logging
import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from graphveil._errors import UnprovenError
from graphveil.grads import ClippedSum, Quantile, make_private
from graphveil.grads.company import check_parts, check_same
from graphveil.grads.step import cross_entropy
from graphveil.graph.messages import weigh_messages
from graphveil.graph.neighbourhoods import RootedTerms
from graphveil.nn import NodeClassifier

COUNT, FEATURES, CLASSES = 60, 6, 3
X = torch.randn(COUNT, FEATURES, generator=torch.Generator().manual_seed(0))
Y = torch.arange(COUNT) % CLASSES


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin, self.out = nn.Linear(FEATURES, 8), nn.Linear(8, CLASSES)

    def body(self, x):
        return self.out(torch.tanh(self.lin(x)))

    def forward(self, x):
        return self.body(self.seen(x) if self.training else x)

    def seen(self, x):
        return x


def trained(module, losses=cross_entropy, steps=12, examples=(X, Y), **settings):
    parameters = [p for p in module.parameters() if p.requires_grad]
    step = make_private(
        module, torch.optim.SGD(parameters, lr=0.1), examples, losses=losses, sample_rate=0.5,
        noise_multiplier=4.0, **settings,
    )  # fmt: skip
    for _ in range(steps):
        step()
    return step


# --- mixing ---------------------------------------------------------------------------------------


class Mixup(Net):
    def seen(self, x):
        share = 0.5 + 0.5 * torch.rand(())
        return share * x + (1 - share) * x[torch.randperm(len(x))]


class NoiseOfTheBatch(Net):
    def seen(self, x):
        return x + torch.randn_like(x) * x.std(0)


class StatsInTraining(Net):
    def seen(self, x):
        return F.dropout((x - x.mean(0)) / x.std(0), 0.1)


class NegativesOfTheBatch(Net):
    """Each row beside another one, drawn at random."""

    def seen(self, x):
        return x - 0.1 * x[torch.randint(len(x), (len(x),))]


@pytest.mark.parametrize("kind", [Mixup, NoiseOfTheBatch, StatsInTraining, NegativesOfTheBatch])
def test_mixing_by_randomness_in_training_mode_is_refused(kind):
    with pytest.raises(UnprovenError, match=f"other examples are replaced.*{kind.__name__}"):
        trained(kind(), steps=1)


class Reseeded(Net):
    """The same masks in every step, by the place in a batch: who is drawn moves all that follow."""

    def seen(self, x):
        torch.manual_seed(0)
        return F.dropout(x, 0.5)


def test_masks_by_the_place_in_a_batch_are_refused():
    with pytest.raises(UnprovenError, match="when fewer examples are in the batch"):
        trained(Reseeded(), steps=1)


class ReseededGNN(NodeClassifier):
    def forward(self, around):
        torch.manual_seed(0)
        return F.dropout(super().forward(around), 0.5)


def test_masks_by_the_place_among_neighbourhoods_are_refused():
    with pytest.raises(UnprovenError, match="when fewer examples are in the batch"):
        trained(ReseededGNN(FEATURES, 4, CLASSES), rooted_losses, 1, neighbourhoods())


def test_mixing_of_labels_in_the_loss_is_refused():
    def losses(module, batch):
        x, y = batch
        return F.cross_entropy(module(x), y[torch.randperm(len(y))], reduction="none")

    with pytest.raises(UnprovenError, match="other examples are replaced"):
        trained(Net(), losses, steps=1)


def test_mixing_of_equal_rows_is_found_by_rows_that_nobody_has():
    x = torch.ones(COUNT, FEATURES)
    with pytest.raises(UnprovenError, match="other examples are replaced"):
        trained(Mixup(), steps=1, examples=(x, Y))


def neighbourhoods(num_layers=1):
    edges = torch.randint(COUNT, (2, 90), generator=torch.Generator().manual_seed(1))
    return RootedTerms.capped(X, Y, edges, torch.arange(COUNT), num_layers, max_sent=2)


def rooted_losses(module, batch):
    around, labels = batch
    return F.cross_entropy(module(around), labels, reduction="none")


def test_mixing_of_neighbourhoods_before_the_first_layer_is_refused():
    class Centred(NodeClassifier):
        def forward(self, around):
            mean = around.table[around.index].mean()
            shifted = around.__class__(
                around.table - mean, around.index, around.weight, around.mask, around.widths
            )
            return super().forward(shifted)

    trained(NodeClassifier(FEATURES, 4, CLASSES), rooted_losses, 1, neighbourhoods())
    with pytest.raises(UnprovenError, match="other examples are replaced"):
        trained(Centred(FEATURES, 4, CLASSES), rooted_losses, 1, neighbourhoods())


class Standardised(NodeClassifier):
    """By the mean and the spread of all rows, those that no root here reads among them."""

    def forward(self, around):
        table = (around.table - around.table.mean(0)) / around.table.std(0)
        return super().forward(replace(around, table=table))


def test_a_model_that_looks_at_everybody_s_rows_is_refused():
    with pytest.raises(UnprovenError, match=r"other examples are replaced.*Standardised"):
        trained(Standardised(FEATURES, 4, CLASSES), rooted_losses, 1, neighbourhoods())


@pytest.mark.parametrize("large", [1e9, torch.inf])
def test_one_very_large_loss_hides_no_mixing(large):
    """The other losses are divided by how many there are, and are small beside the one."""

    def losses(module, batch):
        *inputs, size = batch
        each = cross_entropy(module, inputs)
        return torch.where(size > 1, each * size, each / len(size))

    size = torch.ones(COUNT)
    size[COUNT // 3] = large
    batch, net = (X, Y, size), Net()
    with torch.no_grad(), pytest.raises(UnprovenError, match="when fewer examples are in the"):
        check_parts(lambda part: losses(net, part), batch, losses(net, batch), "Net")


def test_losses_that_round_are_taken_however_small_they_are():
    """As those of a classifier that is sure of itself: differences of larger numbers."""
    each = torch.full((COUNT,), 1e-9)
    each[0] = 2.0
    run = lambda rows: each[rows] + 1e-6  # noqa: E731
    check_parts(run, torch.arange(COUNT), each, "Net")
    check_same(each + 1e-6, each, "Net")


def test_rows_taken_from_neighbourhoods_are_those_of_their_roots():
    around, _ = max(neighbourhoods(2).batches(torch.arange(20)), key=lambda batch: len(batch[0]))
    module = NodeClassifier(FEATURES, 4, CLASSES, num_layers=2)
    rows = torch.tensor([3, 3, 0, len(around) - 1])
    torch.testing.assert_close(module(around.take(rows)), module(around)[rows])


# --- memory ---------------------------------------------------------------------------------------


class FloatMemory(Net):
    scale = 1.0

    def seen(self, x):
        self.scale = 0.9 * self.scale + 0.1 * float(x.abs().max())
        return x / self.scale


class SlowMemory(Net):
    """Moves by less than any comparison of losses can tell."""

    mean = 0.0

    def seen(self, x):
        self.mean += 1e-9 * float(x.mean())
        return x + self.mean


class FrozenMemory(Net):
    def __init__(self):
        super().__init__()
        self.centre = nn.Parameter(torch.zeros(FEATURES), requires_grad=False)

    def seen(self, x):
        with torch.no_grad():
            self.centre.copy_(x[0])
        return x


class PastVersions(FrozenMemory):
    def seen(self, x):
        self.centre.data.copy_(x[0])
        return x


class OfTheClass(Net):
    met = 0

    def seen(self, x):
        OfTheClass.met += len(x)
        return x


class Counted(Net):
    def __init__(self):
        super().__init__()
        self.state = {"classes": {0: 0}}

    def seen(self, x):
        self.state["classes"][0] += 1
        return x


class Queue(Net):
    def __init__(self):
        super().__init__()
        self.rows = np.zeros(4)

    def seen(self, x):
        self.rows[:] = x[0, :4].detach().numpy()
        return x


class LargeQueue(Queue):
    def __init__(self):
        super().__init__()
        self.rows = np.zeros((1000, 100))[:, ::2]

    def seen(self, x):
        self.rows[333, :4] = x[0, :4].detach().numpy()
        return x


class OfBytes(Net):
    def __init__(self, kept):
        super().__init__()
        self.kept = kept

    def seen(self, x):
        memoryview(self.kept).cast("B")[:] = x[0].detach().numpy().tobytes()
        return x


class OfASet(Net):
    def __init__(self):
        super().__init__()
        self.kept = {0.0}

    def seen(self, x):
        self.kept.clear()
        self.kept.add(float(x[0, 0]))
        return x


class OfNumpy(Net):
    mean = np.float32(0)

    def seen(self, x):
        self.mean = np.float32(x.mean())
        return x


class LongList(Net):
    def __init__(self):
        super().__init__()
        self.kept = [0.0] * 1000

    def seen(self, x):
        self.kept[900] = float(x[0, 0])
        return x


STORE = []


def put(row):
    STORE.append(row)


class OfAGlobal(Net):
    def seen(self, x):
        STORE.append(x[0].detach())
        return x


class OfAHelper(Net):
    def seen(self, x):
        put(x[0].detach())
        return x


class OfAParent(Net):
    kept = [0.0]  # noqa: RUF012

    def seen(self, x):
        self.kept[0] = float(x[0, 0])
        return x


class Child(OfAParent):
    pass


class OnALayer(Net):
    def seen(self, x):
        self.lin.kept = x[0].detach()
        return x


class OnAParameter(Net):
    def seen(self, x):
        self.lin.weight.kept = float(x[0, 0])
        return x


class AsAGradient(FrozenMemory):
    def seen(self, x):
        self.centre.grad = x[0].detach().clone()
        return x


class BehindMuch(Net):
    def __init__(self):
        super().__init__()
        self.much = [[float(i) for i in range(64)] for _ in range(64)]
        self.kept = [0.0]

    def seen(self, x):
        self.kept[0] = float(x[0, 0])
        return x


class InTheState(Net):
    def __init__(self):
        super().__init__()
        self.kept = Slots()
        self.kept.row = np.zeros(FEATURES)

    def get_extra_state(self):
        return {"row": torch.from_numpy(self.kept.row.copy())}

    def set_extra_state(self, state):
        pass

    def seen(self, x):
        self.kept.row[:] = x[0].detach().numpy()
        return x


class Slots:
    __slots__ = ("row",)


class OwnGenerator(Net):
    """Masks from a generator that nobody else reads: they follow the order of the batches."""

    def __init__(self, made):
        super().__init__()
        self.made = made

    def seen(self, x):
        if isinstance(self.made, torch.Generator):
            return x * torch.rand(x.shape, generator=self.made)
        if isinstance(self.made, random.Random):
            return x * self.made.random()
        return x * float(self.made.random())


class LaterMemory(Net):
    """Begins to remember at some time, when no test is made."""

    def __init__(self):
        super().__init__()
        self.last = torch.zeros(FEATURES)

    def seen(self, x):
        if not torch.equal(self.lin.weight, self.first):
            self.last = x[0]
        return x


@pytest.mark.parametrize(
    ("module", "name"),
    [
        (FloatMemory, "attribute 'scale'"),
        (SlowMemory, "attribute 'mean'"),
        (FrozenMemory, "parameter 'centre'"),
        (PastVersions, "parameter 'centre'"),
        (OfTheClass, "attribute 'OfTheClass.met'"),
        (Counted, "attribute 'state['classes'][0]'"),
        (Queue, "attribute 'rows'"),
        (LargeQueue, "attribute 'rows'"),
        (lambda: OfBytes(bytearray(4 * FEATURES)), "attribute 'kept'"),
        (lambda: OfBytes(array.array("f", [0.0] * FEATURES)), "attribute 'kept'"),
        (OfASet, "attribute 'kept'"),
        (OfNumpy, "attribute 'mean'"),
        (LongList, "attribute 'kept'"),
        (OfAGlobal, "attribute 'global STORE"),
        (OfAHelper, "attribute 'global put.global STORE"),
        (Child, "attribute 'OfAParent.kept[0]'"),
        (OnALayer, "attribute 'lin.kept'"),
        (OnAParameter, "parameter 'lin.weight.kept'"),
        (AsAGradient, "parameter 'centre.grad'"),
        (BehindMuch, "attribute 'kept[0]'"),
        (InTheState, "extra state 'get_extra_state()['row']'"),
        (lambda: OwnGenerator(torch.Generator()), "attribute 'made'"),
        (lambda: OwnGenerator(np.random.default_rng(1)), "attribute 'made'"),
        (lambda: OwnGenerator(np.random.RandomState(1)), "attribute 'made'"),
        (lambda: OwnGenerator(random.Random(1)), "attribute 'made'"),
    ],
)
def test_what_a_module_remembers_is_refused(module, name):
    with pytest.raises(UnprovenError) as refusal:
        trained(module(), steps=1)
    assert f"The {name}" in str(refusal.value)
    assert "changes when a batch is seen: it keeps a memory" in str(refusal.value)


def test_a_memory_that_begins_between_two_tests_is_refused_at_once():
    module = LaterMemory()
    object.__setattr__(module, "first", module.lin.weight.detach().clone())
    with pytest.raises(UnprovenError, match="attribute 'last'"):
        trained(module, steps=2)


def test_a_forward_hook_that_remembers_is_refused():
    module, met = Net(), []
    module.lin.register_forward_hook(lambda layer, inputs, output: met.append(len(output)))
    with pytest.raises(UnprovenError, match=r"attribute 'lin\._forward_hooks.*met"):
        trained(module, steps=1)


@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
@pytest.mark.parametrize("once", [False, True])
@pytest.mark.parametrize("kind", ["full_backward_hook", "full_backward_pre_hook"])
def test_a_backward_hook_that_remembers_is_refused(kind, once):
    module, kept = Net(), [None]

    def keep(layer, *grads):
        if not once or kept[0] is None:
            kept[0] = grads[-1][0].detach()

    getattr(module.lin, f"register_{kind}")(keep)
    with pytest.raises(UnprovenError, match=r"attribute 'lin\._backward.*hooks.*kept"):
        trained(module, steps=1)


def test_a_hook_of_a_parameter_that_remembers_is_refused():
    module, kept = Net(), []
    module.lin.weight.register_hook(kept.append)
    module.lin.weight.register_hook(lambda grad: kept.append(grad) and None)
    with pytest.raises(UnprovenError, match=r"parameter 'lin\.weight\._backward_hooks.*kept"):
        trained(module, steps=1)


def test_more_values_than_are_watched_are_refused():
    module = Net()
    module.much = [[[0.0] * 64 for _ in range(64)] for _ in range(9)]
    with pytest.raises(UnprovenError, match=r"more than 32768 values.*Hold tables as tensors"):
        trained(module, steps=1)


class RunningLoss:
    mean = 1.0

    def __call__(self, module, batch):
        each = cross_entropy(module, batch)
        self.mean = 0.5 * self.mean + 0.5 * float(each.detach().mean())
        return each / self.mean


def running_closure():
    mean = 1.0

    def losses(module, batch):
        nonlocal mean
        each = cross_entropy(module, batch)
        mean = 0.5 * mean + 0.5 * float(each.detach().mean())
        return each / mean

    return losses


GLOBAL_MEAN = 1.0


def running_global(module, batch):
    global GLOBAL_MEAN
    each = cross_entropy(module, batch)
    GLOBAL_MEAN = 0.5 * GLOBAL_MEAN + 0.5 * float(each.detach().mean())
    return each / GLOBAL_MEAN


def running_default(module, batch, state={"mean": 1.0}):  # noqa: B006
    each = cross_entropy(module, batch)
    state["mean"] = 0.5 * state["mean"] + 0.5 * float(each.detach().mean())
    return each / state["mean"]


class Teacher(nn.Module):
    """A loss that is a module, with a buffer of its own."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.ones(()))

    def forward(self, module, batch):
        each = cross_entropy(module, batch)
        self.mean.lerp_(each.detach().mean(), 0.1)
        return each / self.mean


@pytest.mark.parametrize(
    ("losses", "name"),
    [
        (RunningLoss(), "mean"),
        (RunningLoss().__call__, "mean"),
        (running_closure(), "mean"),
        (functools.partial(running_closure()), "mean"),
        (running_global, "GLOBAL_MEAN"),
        (running_default, "mean"),
        (Teacher(), "mean"),
    ],
    ids=["object", "method", "closure", "partial", "global", "default", "module"],
)
def test_what_a_loss_remembers_is_refused(losses, name):
    with pytest.raises(UnprovenError, match=f"The loss's .*{name}.* changes when a batch is seen"):
        trained(Net(), losses, steps=1)


def test_losses_that_differ_when_a_batch_is_seen_again_are_refused():
    """State where nobody looks: in the slots of an object."""

    class Slots:
        __slots__ = ("calls",)

    state = Slots()
    state.calls = 1.0

    def losses(module, batch):
        state.calls *= 1.5
        return cross_entropy(module, batch) * state.calls

    with pytest.raises(UnprovenError, match="when it is seen again"):
        trained(Net(), losses, steps=1)


@pytest.mark.parametrize("option", [{"max_norm": 1.0}, {"scale_grad_by_freq": True}])
def test_bags_that_look_at_the_whole_batch_are_refused(option):
    bag = nn.EmbeddingBag.from_pretrained(5 * torch.randn(50, 8), **option)
    with pytest.raises(UnprovenError, match=r"'0' .EmbeddingBag. changes its weights"):
        trained(nn.Sequential(bag, nn.Linear(8, CLASSES)), examples=(torch.randint(50, (60, 4)), Y))


# --- what is fine ---------------------------------------------------------------------------------


class Augmented(Net):
    def seen(self, x):
        return F.dropout(x, 0.2) + 0.1 * torch.randn_like(x) * float(np.random.random() + 0.5)


class WithSettings(Net):
    def __init__(self):
        super().__init__()
        self.names, self.sizes, self.act = ["a", "b"], {"hidden": 8}, torch.tanh
        self.table, self.words = np.arange(10_000), {f"word {i}": i for i in range(9000)}
        self.lin.note, self.kinds = "the first one", {"a", "b"}
        self.register_buffer("scale", torch.ones(FEATURES))

    def get_extra_state(self):
        return {"sizes": dict(self.sizes), "scale": self.scale.clone().bfloat16()}

    def set_extra_state(self, state):
        pass

    def seen(self, x):
        return x * self.scale


def smooth(share):
    messages = weigh_messages(torch.empty(2, 0, dtype=torch.long), COUNT)  # with cached properties

    def losses(module, batch):
        assert len(messages.in_degree) == COUNT
        x, y = batch
        return F.cross_entropy(module(x), y, reduction="none", label_smoothing=share)

    return losses


@pytest.mark.parametrize("losses", [cross_entropy, smooth(0.1)], ids=["plain", "closure"])
@pytest.mark.parametrize("module", [Net, Augmented, WithSettings])
def test_honest_modules_and_losses_are_taken(module, losses):
    assert trained(module(), losses, steps=12).taken == 12


def test_a_loss_may_belong_to_whoever_holds_the_step():
    class Trainer:
        def __init__(self):
            self.module, self.log = Net(), logging.getLogger("trainer")
            optimizer = torch.optim.SGD(self.module.parameters(), lr=0.1)
            self.step = make_private(
                self.module, optimizer, (X, Y), losses=self.losses, sample_rate=0.5,
                noise_multiplier=4.0, clipping="quantile",
            )  # fmt: skip

        def losses(self, module, batch):
            self.log.debug("a batch")
            return cross_entropy(module, batch)

    trainer = Trainer()
    for _ in range(12):
        trainer.step()
    assert trainer.step.taken == 12


# --- counts ---------------------------------------------------------------------------------------


def test_a_test_of_the_engine_adds_nothing_to_the_count_of_norms():
    """Layers without a rule run one by one, in tests as well: these are no part of the step."""
    clipping = Quantile(1e9, share=0.25)
    clipping.start()
    module = nn.Sequential(nn.Linear(FEATURES, 4), nn.PReLU(), nn.Linear(4, CLASSES))
    ClippedSum(module, cross_entropy, clipping)([(X[:10], Y[:10])])
    assert clipping.count() == 10 * 0.5  # ten norms within the bound, each once


def test_a_term_without_a_gradient_is_not_counted():
    def losses(module, batch):
        return cross_entropy(module, batch[:2]) * batch[2]

    clipping = Quantile(1e9, share=0.25)
    clipping.start()
    labelled = (torch.arange(10) < 4).float()
    ClippedSum(Net(), losses, clipping)([(X[:10], Y[:10], labelled)])
    assert clipping.count() == 4 * 0.5
