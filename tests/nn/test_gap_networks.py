"""Encoders, heads and attention: clipped sums against autograd, sparse rows against dense ones."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from nn_cases import CLASSES, assert_clipped_sums_are_right, random_graph
from torch.nn import functional as F

from graphveil._errors import InvalidInputError
from graphveil.grads import ClippedSum, Flat
from graphveil.graph.messages import Messages
from graphveil.graph.neighbourhoods import gather_neighbourhoods
from graphveil.nn.gap import (
    AttentionTerms,
    Encoder,
    HopHead,
    PairAttention,
    ResidualHead,
    SparseRows,
    SumHead,
)

WIDTHS = (3, 4, 2)
ROWS = {  # a network of rows, and how wide they are
    "encoder": (lambda: Encoder(6, 4, CLASSES), 6),
    "deep encoder": (lambda: Encoder(6, 4, CLASSES, num_layers=3, activation="selu"), 6),
    "hops side by side": (lambda: HopHead(WIDTHS, 4, CLASSES), 9),
    "hops weighed": (lambda: HopHead(WIDTHS, 4, CLASSES, "attention"), 9),
    "one hop weighed": (lambda: HopHead([5], 4, CLASSES, "attention"), 5),
    "correction": (lambda: ResidualHead(CLASSES, 2, 4), 3 * CLASSES),
}


def made(make, seed=0):
    """In float64, with random parameters everywhere: none of them hides behind a zero."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        module = make().double()
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.copy_(torch.randn_like(parameter))
    return module.eval()


def normal(*shape, seed=0):
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=rng, dtype=torch.float64)


# --- clipped sums ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("count", [1, 7])
def test_clipped_sums_of_networks_of_rows(name, count):
    make, width = ROWS[name]
    rows, labels = normal(count, width), torch.arange(count) % CLASSES
    single = [((row,), label) for row, label in zip(rows.split(1), labels.split(1), strict=True)]
    assert_clipped_sums_are_right(made(make), ((rows,), labels), single)


def heard(edges, nodes):
    """A node's own state has a weight, which no message is."""
    return Messages(edges, torch.ones(edges.shape[1]), torch.ones(nodes))


def check_attention(seed, nodes, edges, roots, activation="tanh"):
    x, edge_index = random_graph(seed, nodes, edges, features=4)
    messages = heard(edge_index, nodes)
    attention = lambda: AttentionTerms(PairAttention(4, 3, activation), 4, CLASSES)  # noqa: E731
    labels = torch.arange(len(roots)) % CLASSES
    single = [
        ((gather_neighbourhoods(x, messages, root, 1),), label)
        for root, label in zip(roots.split(1), labels.split(1), strict=True)
    ]
    whole = (gather_neighbourhoods(x, messages, roots, 1),), labels
    assert_clipped_sums_are_right(made(attention, seed), whole, single)
    return messages.in_degree[roots]


def test_clipped_sums_of_attention():
    reached = check_attention(7, 9, 14, torch.arange(9))
    assert (reached == 0).any()  # somebody hears nothing
    assert reached.max() > 2  # neighbourhoods differ, so that there is padding


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 99), st.integers(2, 7), st.integers(0, 16), st.data())
def test_clipped_sums_of_attention_on_any_graph(seed, nodes, edges, data):
    roots = data.draw(st.lists(st.integers(0, nodes - 1), min_size=1, max_size=5, unique=True))
    check_attention(seed, nodes, edges, torch.tensor(roots), "softplus")


def test_no_network_trained_with_noise_needs_the_slow_way():
    modules = [made(make) for make, _ in ROWS.values()]
    modules.append(made(lambda: AttentionTerms(PairAttention(4, 3), 4, CLASSES)))
    for module in modules:
        assert not ClippedSum(module, lambda *_: None, Flat(1.0)).by_example


def test_the_formula_of_sums_has_no_rule_and_is_clipped_one_by_one():
    head = made(lambda: SumHead(CLASSES, 1))
    assert ClippedSum(head, lambda *_: None, Flat(1.0)).by_example


# --- what they compute ----------------------------------------------------------------------------


def test_attention_terms_are_the_formula():
    """A loop over the messages of each root, one pair at a time."""
    x, edges = random_graph(3, 8, 20, features=4)
    module = made(lambda: AttentionTerms(PairAttention(4, 3), 4, CLASSES))
    found = module(gather_neighbourhoods(x, heard(edges, 8), torch.arange(8), 1))
    pair = module.attention
    for root in range(8):
        total = torch.zeros(4, dtype=torch.float64)
        for sender in edges[0][edges[1] == root].tolist():
            first = pair.sender(x[sender]) + pair.receiver(x[root])
            total = total + torch.sigmoid(pair.out(torch.tanh(first))) * x[sender]
        total = total / (total.square().sum() + 1e-6).sqrt()
        expected = module.readout(torch.cat([x[root], total]))
        torch.testing.assert_close(found[root], expected)


def test_a_root_reads_nobody_but_itself_and_its_senders():
    x, edges = random_graph(3, 8, 20, features=4)
    module = made(lambda: AttentionTerms(PairAttention(4, 3), 4, CLASSES))
    whole = gather_neighbourhoods(x, heard(edges, 8), torch.arange(8), 1)
    found = module(whole)
    for node in range(8):
        other = x.clone()
        other[node] += 1.0
        moved = (
            module(gather_neighbourhoods(other, heard(edges, 8), torch.arange(8), 1)) != found
        ).any(1)
        reads = torch.zeros(8, dtype=torch.bool)
        reads[node] = True
        reads[edges[1][edges[0] == node]] = True
        assert torch.equal(moved, reads)


@pytest.mark.parametrize("size", [1.0, 1e3, 1e30])
def test_attention_is_never_outside_zero_and_one(size):
    pair = PairAttention(4, 8, "relu")
    with torch.no_grad():
        for parameter in pair.parameters():
            parameter.mul_(size)
    rows = 1e3 * normal(200, 4).float()
    found = pair(rows, rows.flip(0))
    known = found[~found.isnan()]  # infinity less infinity
    assert known.min() >= 0
    assert known.max() <= 1


def test_the_formula_of_sums():
    head = made(lambda: SumHead(3, 2))
    rows = normal(5, 9)
    own, first, second = rows.split(3, 1)
    b, a1, a2 = head.scale
    torch.testing.assert_close(head(rows), b * own + a1 * first + a2 * second + head.bias)
    fresh = SumHead(3, 2).double()
    torch.testing.assert_close(fresh(rows), own + 0.1 * first + 0.1 * second)


def test_a_correction_starts_at_nothing_and_may_read_certainty():
    head = ResidualHead(3, 1, 4)
    rows = normal(5, 6).float()
    rows[:, 0] = -torch.inf
    assert torch.equal(head(rows), rows[:, :3])
    trained = made(lambda: ResidualHead(3, 1, 4))
    found = trained(rows.double())
    assert (found[:, 0] == -torch.inf).all()
    assert found[:, 1:].isfinite().all()


def test_hops_side_by_side_and_weighed_are_the_formula():
    rows = normal(5, sum(WIDTHS))
    for combine in ("concat", "attention"):
        head = made(lambda combine=combine: HopHead(WIDTHS, 4, CLASSES, combine))
        parts = rows.split(WIDTHS, 1)
        hops = [torch.tanh(layer(part)) for layer, part in zip(head.each, parts, strict=True)]
        if combine == "concat":
            expected = head.head(torch.cat(hops, 1))
        else:
            share = torch.softmax(torch.cat([head.score(hop) for hop in hops], 1), 1)
            expected = head.head(sum(share[:, [i]] * hop for i, hop in enumerate(hops)))
        torch.testing.assert_close(head(rows), expected)


# --- sparse rows ----------------------------------------------------------------------------------


@pytest.mark.parametrize("layers", [1, 3])
def test_sparse_rows_are_dense_rows_forward_and_back(layers):
    x = normal(20, 12) * (normal(20, 12, seed=1) > 1)
    x[4] = 0
    x[:, 5] = 0
    module = made(lambda: Encoder(12, 4, CLASSES, layers))
    sparse, labels = SparseRows(x), torch.arange(20) % CLASSES
    assert len(sparse) == 20
    torch.testing.assert_close(module.encode(sparse), module.encode(x))
    found = {}
    for name, rows in (("dense", x), ("sparse", sparse)):
        module.zero_grad()
        F.cross_entropy(module(rows), labels).backward()
        found[name] = [parameter.grad.clone() for parameter in module.parameters()]
    for dense, other in zip(found["dense"], found["sparse"], strict=True):
        assert dense.abs().sum() > 0
        torch.testing.assert_close(other, dense)


def test_some_sparse_rows_are_those_rows_and_dropping_keeps_the_mean():
    x = normal(20, 300) * (normal(20, 300, seed=1) > 1)
    some, weight = torch.tensor([3, 0, 3, 19]), normal(300, 2)
    sparse = SparseRows(x)
    torch.testing.assert_close(sparse[some].times(weight), x[some] @ weight)
    unit = torch.eye(300, dtype=torch.float64)
    dropped = SparseRows(x).drop(0.25).times(unit)
    kept = dropped != 0
    torch.testing.assert_close(dropped[kept], x[kept] / 0.75)
    assert 0.65 < kept.sum() / (x != 0).sum() < 0.85
    torch.testing.assert_close(sparse.times(unit), x)  # and the rows themselves stay


def test_the_gradient_of_a_sparse_product_is_the_numerical_one():
    sparse = SparseRows(normal(6, 5) * (normal(6, 5, seed=1) > 0))
    weight = normal(5, 3).requires_grad_()
    assert torch.autograd.gradcheck(sparse.times, (weight,))


@pytest.mark.parametrize(
    "make",
    [
        lambda: Encoder(3, 4, 2, num_layers=0),
        lambda: Encoder(3, 4, 2, activation="x"),
        lambda: HopHead([3], 4, 2, combine="x"),
    ],
)
def test_bad_settings_are_refused(make):
    with pytest.raises(InvalidInputError, match=r"must .* Got .* instead"):
        make()
