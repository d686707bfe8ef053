"""Neighbourhoods of several sizes in one batch give what each of them gives alone."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from graphveil.grads import ClippedSum, Flat
from graphveil.grads.company import shorten
from graphveil.grads.products import RowByRow
from graphveil.graph import neighbourhoods
from graphveil.graph.blocks import Numbered, block_sizes
from graphveil.graph.messages import weigh_messages
from graphveil.graph.neighbourhoods import RootedTerms
from graphveil.graph.side_by_side import SideBySide
from graphveil.nn import NodeClassifier

NODES, FEATURES, CLASSES = 300, 7, 3


def losses(module, batch):
    around, labels = batch
    return F.cross_entropy(module(around), labels, reduction="none")


def terms_of(hops, *, side_by_side, seed=0, rows_at_once=None):
    """Terms of a graph whose nodes hear from 0 to 12 others."""
    rng = torch.Generator().manual_seed(seed)
    heard = torch.randint(0, 13, (NODES,), generator=rng)
    target = torch.repeat_interleave(torch.arange(NODES), heard)
    source = torch.randint(0, NODES, (len(target),), generator=rng)
    edges = torch.stack([source, target])[:, source != target].unique(dim=1)
    x = torch.randn(NODES, FEATURES, generator=rng)
    y = torch.randint(0, CLASSES, (NODES,), generator=rng)
    messages = weigh_messages(edges, NODES)
    roots = torch.arange(NODES)
    return RootedTerms(x, y, messages, roots, hops, rows_at_once, side_by_side=side_by_side)


def network(conv, hops, seed=0):
    torch.manual_seed(seed)
    return NodeClassifier(FEATURES, 6, CLASSES, conv, hops, encoder_layers=1, decoder_layers=1)


@pytest.mark.parametrize("blocks", [False, True])
@pytest.mark.parametrize("hops", [0, 1, 2])
@pytest.mark.parametrize("conv", ["gcn", "sage", "gin", "sum"])
def test_sums_are_those_of_one_size_at_a_time(conv, hops, blocks, monkeypatch):
    if blocks:
        monkeypatch.setattr(neighbourhoods, "_MANY", 1)
    drawn, module = torch.arange(0, NODES, 2), network(conv, hops)
    several = list(terms_of(hops, side_by_side=True).batches(drawn))
    alone = list(terms_of(hops, side_by_side=False).batches(drawn))
    assert len(several) == 1
    assert len(alone) >= (3 if hops else 1)
    assert isinstance(several[0], Numbered) == blocks
    sums = [ClippedSum(module, losses, Flat(0.3)) for _ in range(2)]
    one, other = sums[0](several), sums[1](alone)
    assert sums[0].seen == sums[1].seen == len(drawn)
    for name, value in other.items():
        torch.testing.assert_close(one[name], value, rtol=1e-6, atol=1e-6)
        assert float(value.abs().max()) > 0


def test_a_loss_does_not_know_who_else_there_is():
    module, found = network("gcn", 2), []
    for drawn in (torch.arange(NODES), torch.arange(3, NODES, 2), torch.arange(3, 40, 2)):
        terms = terms_of(2, side_by_side=True)
        terms.y = torch.arange(NODES)
        ((around, who),) = terms.batches(drawn)
        with RowByRow():
            outputs = module(around).detach()
        found.append({int(node): row for node, row in zip(who, outputs, strict=True)})
    everybody, *others = found
    for some in others:
        assert all(torch.equal(row, everybody[node]) for node, row in some.items())


@pytest.mark.parametrize("conv", ["gcn", "sage", "gin", "sum"])
def test_a_loss_has_the_same_bits_as_in_a_batch_of_its_own_size(conv):
    drawn, module = torch.arange(NODES), network(conv, 2)
    found = {}
    for side_by_side in (True, False):
        terms = terms_of(2, side_by_side=side_by_side)
        terms.y = torch.arange(NODES)  # who it is, in place of the label
        found[side_by_side] = {}
        for around, who in terms.batches(drawn):
            with RowByRow():
                outputs = module(around).detach()
            found[side_by_side] |= {int(node): row for node, row in zip(who, outputs, strict=True)}
    assert found[True].keys() == found[False].keys() == set(range(NODES))
    for node, row in found[False].items():
        assert torch.equal(row, found[True][node])


def test_the_sum_is_that_of_gradients_one_by_one():
    drawn, module = torch.arange(0, NODES, 5), network("gcn", 2)
    clipped = ClippedSum(module, losses, Flat(0.05))
    summed = clipped(terms_of(2, side_by_side=True).batches(drawn))
    exact = clipped.zeros()
    for node in drawn:
        for batch in terms_of(2, side_by_side=False).batches(node.view(1)):
            gradients = torch.autograd.grad(losses(module, batch)[0], list(module.parameters()))
            norm = torch.sqrt(sum(g.double().square().sum() for g in gradients))
            for value, gradient in zip(exact.values(), gradients, strict=True):
                value += gradient.double() * min(1.0, 0.05 / float(norm))
    for name, value in exact.items():
        torch.testing.assert_close(summed[name], value, rtol=1e-4, atol=1e-6)


def test_batches_hold_what_there_is_room_for():
    terms = terms_of(2, side_by_side=True, rows_at_once=1000)
    held = []
    for around, labels in terms.batches(torch.arange(NODES)):
        rows = [len(part) * part.widths[0] for part in around.parts]
        assert sum(rows) <= 1000 or len(rows) == 1
        assert len(around) == len(labels) == sum(map(len, around.parts))
        held.append(len(around))
    assert len(held) > 2
    assert sum(held) == NODES


@pytest.mark.parametrize("take", ["keep", "take"])
def test_some_of_the_roots_have_the_states_that_they_had(take):
    module = network("sage", 2)
    (around, _), *rest = terms_of(2, side_by_side=True).batches(torch.arange(0, NODES, 3))
    assert not rest
    assert len(around.parts) > 2
    rows = torch.tensor([0, 1, 17, 40, len(around) - 1])
    some = getattr(around, take)(rows)
    assert isinstance(some, SideBySide) == (take == "keep")
    torch.testing.assert_close(module(some), module(around)[rows], rtol=1e-5, atol=1e-6)


def test_a_test_sees_examples_of_every_common_size():
    batch = next(iter(terms_of(2, side_by_side=True).batches(torch.arange(NODES))))
    around, labels = shorten(batch)
    assert len(around) == len(labels) == 64 < len(batch[0])
    common = {part.widths for part in batch[0].parts if len(part) > len(batch[0]) // 32}
    assert common <= {part.widths for part in around.parts}
    assert shorten((around, labels))[0] is around


class Mixing(nn.Module):
    """What a root says depends on the others of its batch."""

    def __init__(self):
        super().__init__()
        self.inner = network("gcn", 1)

    def forward(self, around):
        outputs = self.inner(around)
        return outputs - outputs.mean(0)


def test_a_module_that_mixes_examples_is_refused():
    batches = terms_of(1, side_by_side=True).batches(torch.arange(NODES))
    with pytest.raises(Exception, match="mixes"):
        ClippedSum(Mixing(), losses, Flat(1.0))(batches)


def test_blocks_end_where_a_size_ends():
    numbers = torch.tensor([0, 1, 2, 3, 4, 5, 6, 7])  # they would be one block
    rows = torch.full((8,), 4)
    assert Numbered((), numbers).rows_of_blocks(rows, 96) == [32]
    assert Numbered((), numbers, [3, 5]).rows_of_blocks(rows, 96) == [12, 20]
    rng = torch.Generator().manual_seed(0)
    first, second = (torch.randperm(900, generator=rng)[:k].sort().values for k in (200, 300))
    sizes = torch.cat([torch.full((200,), 3), torch.full((300,), 5)])
    both = Numbered((), torch.cat([first, second]), [200, 300]).rows_of_blocks(sizes, 96)
    apart = [3 * n for n in block_sizes(first, sizes[:200], 96)]
    apart += [5 * n for n in block_sizes(second, sizes[200:], 96)]
    assert both == apart


def test_a_deep_term_does_not_decide_how_others_are_added_up(monkeypatch):
    """Six depths have six numbers of rows if one drawn term is deep, and one number if none is."""
    monkeypatch.setattr(neighbourhoods, "_MANY", 1)
    hops, alone = 5, 4000
    kids = torch.arange(1, 364)  # a tree, three to each, five deep
    edges = torch.stack([kids, (kids - 1) // 3])
    nodes = 364 + alone
    torch.manual_seed(0)
    x, y = torch.randn(nodes, 2), torch.randint(0, CLASSES, (nodes,))
    x[364:], y[364:] = x[364], 0
    module = NodeClassifier(2, 16, CLASSES, "gcn", hops, encoder_layers=1, decoder_layers=1)
    terms = RootedTerms(
        x, y, weigh_messages(edges, nodes), torch.arange(nodes), hops, side_by_side=True
    )
    clipped, bound = ClippedSum(module, losses, Flat(1e-3)), 1e-3

    def total(drawn):
        return torch.cat([value.flatten() for value in clipped(terms.batches(drawn)).values()])

    deep, others = torch.tensor([0]), torch.arange(364, nodes)
    moved = total(torch.cat([deep, others])) - total(deep) - total(others)
    assert float(moved.norm()) < 2.0**-18 * bound * 10
