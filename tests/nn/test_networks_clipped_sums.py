"""Clipped sums of every architecture: the engine's on a batch, autograd's for each example."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from nn_cases import (
    CLASSES,
    FEATURES,
    assert_clipped_sums_are_right,
    assert_same,
    graphs,
    losses,
    random_graph,
)
from test_graph_classifier import ARCHITECTURES as BATCHED
from test_graph_classifier import batched, classifier, some_graphs
from test_node_classifier import ARCHITECTURES as ROOTED
from test_node_classifier import network

from graphveil._errors import UnprovenError
from graphveil.grads import ClippedSum, Flat, ragged
from graphveil.graph.messages import weigh_messages
from graphveil.graph.neighbourhoods import gather_neighbourhoods
from graphveil.nn import NodeClassifier


def labels_of(count):
    return torch.arange(count) % CLASSES


def check_rooted(model, x, messages, roots, depth):
    """Each example has a neighbourhood of its own, with its own padding."""
    labels = labels_of(len(roots))
    whole = (gather_neighbourhoods(x, messages, roots, depth),), labels
    single = [
        ((gather_neighbourhoods(x, messages, root, depth),), label)
        for root, label in zip(roots.split(1), labels.split(1), strict=True)
    ]
    assert_clipped_sums_are_right(model, whole, single)


@pytest.mark.parametrize("depth", range(4))
@pytest.mark.parametrize("name", ROOTED)
def test_rooted(name, depth):
    x, edges = random_graph(7, 9, 14)
    messages = weigh_messages(edges, 9, "symmetric")
    assert (messages.in_degree == 0).any()  # some neighbourhoods are empty
    check_rooted(network(name, depth), x, messages, torch.tensor([0, 3, 3, 5, 8, 1]), depth)


@settings(deadline=None, max_examples=40)
@given(
    name=st.sampled_from(sorted(ROOTED)),
    graph=graphs(7, 12),
    depth=st.integers(0, 2),
    data=st.data(),
)
def test_rooted_of_any_shape(name, graph, depth, data):
    x, messages = graph
    roots = data.draw(st.lists(st.integers(0, len(x) - 1), min_size=1, max_size=4))
    check_rooted(network(name, depth), x, messages, torch.tensor(roots), depth)


@pytest.mark.parametrize("name", ROOTED)
def test_rooted_of_one_example_and_without_edges(name):
    x, edges = random_graph(8, 6, 10)
    check_rooted(network(name, 2), x, weigh_messages(edges, 6), torch.tensor([2]), 2)
    check_rooted(network(name, 2), x, weigh_messages(edges[:, :0], 6), torch.arange(3), 2)


@pytest.mark.parametrize("name", [name for name in ROOTED if not name.endswith("bare")])
def test_rooted_with_one_convolution_at_every_level(name):
    model = network(name, 3)
    model.convs[1] = model.convs[0]
    model.after[2] = model.after[1]
    x, edges = random_graph(9, 8, 12)
    check_rooted(model, x, weigh_messages(edges, 8), torch.tensor([1, 2, 6, 6]), 3)


def check_batched(model, graphs, shuffle=False):
    labels = labels_of(len(graphs))
    single = [
        (batched([graph]), label) for graph, label in zip(graphs, labels.split(1), strict=True)
    ]
    assert_clipped_sums_are_right(model, (batched(graphs, shuffle), labels), single)


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("name", BATCHED)
def test_batched(name, shuffle):
    check_batched(classifier(name), some_graphs(), shuffle)


@settings(deadline=None, max_examples=40)
@given(
    name=st.sampled_from(sorted(BATCHED)),
    sizes=st.lists(st.tuples(st.integers(0, 6), st.integers(0, 9)), min_size=1, max_size=5),
    num_layers=st.integers(0, 3),
)
def test_batched_of_any_shape(name, sizes, num_layers):
    check_batched(classifier(name, num_layers), some_graphs(sizes))


@pytest.mark.parametrize("name", [name for name in BATCHED if name != "sum-widths"])
def test_batched_with_one_convolution_for_every_layer(name):
    model = classifier(name, 3)
    model.convs[2] = model.convs[1]
    check_batched(model, some_graphs())


@pytest.mark.parametrize("name", ROOTED)
def test_groups_of_a_split_graph_are_examples_too(name):
    """A rooted network over a graph whose edges between groups were cut, one loss for a group."""
    graphs = some_graphs([(5, 9), (3, 4), (1, 0)])
    x, edges, group, count = batched(graphs)
    model = network(name, 2)

    def of_groups(module, batch):
        x, edges, group, count = batch
        with ragged(group, count):
            logits = module.on_graph(x, weigh_messages(edges, len(x)))
        own = torch.nn.functional.cross_entropy(logits, labels_of(len(x)), reduction="none")
        return torch.zeros(count, dtype=own.dtype).index_add(0, group, own)

    total = ClippedSum(model, of_groups, Flat(1e9))([(x, edges, group, count)])
    plain = of_groups(model, (x, edges, group, count)).sum()
    for name_, p in model.named_parameters():
        if p.requires_grad:
            (expected,) = torch.autograd.grad(plain, p, retain_graph=True)
            torch.testing.assert_close(total[name_], expected)


@pytest.mark.parametrize("name", ROOTED)
def test_a_broken_row_spoils_no_term_but_those_that_read_it(name):
    """A gradient that is not finite counts as zero; the other roots' must not notice."""
    x, _ = random_graph(12, 6, 0)
    edges = torch.tensor([[1, 2, 4, 5, 0], [0, 1, 3, 4, 3]])  # 2 -> 1 -> 0 -> 3, 5 -> 4 -> 3
    messages, model = weigh_messages(edges, 6, "symmetric"), network(name, 2)
    clipped = ClippedSum(model, losses, Flat(0.5))
    sound = (gather_neighbourhoods(x, messages, torch.tensor([0, 1]), 2),), torch.tensor([1, 2])
    expected = clipped([sound])
    x[3:] = torch.nan
    some_broken = (
        (gather_neighbourhoods(x, messages, torch.tensor([0, 3, 1, 4]), 2),),
        torch.tensor([1, 0, 2, 0]),
    )
    assert_same(clipped([some_broken]), expected, 1e-12)


@pytest.mark.parametrize("name", BATCHED)
def test_a_broken_graph_spoils_no_other(name):
    graphs, model = some_graphs(), classifier(name)
    clipped = ClippedSum(model, losses, Flat(0.5))
    expected = clipped([(batched(graphs), labels_of(6))])
    broken = (torch.full((2, FEATURES), torch.inf).double(), torch.tensor([[0], [1]]))
    found = clipped([(batched([*graphs, broken]), labels_of(7))])
    assert_same(found, expected, 1e-12)


def test_a_graph_taken_for_a_batch_of_nodes_is_refused():
    """Without saying whose rows are whose, nodes of one graph are no examples: they mix."""
    x, edges = random_graph(10, 6, 12)
    model = NodeClassifier(FEATURES, 4, CLASSES).double()
    whole_graph = ClippedSum(
        model,
        lambda module, batch: losses(lambda: module.on_graph(*batch), ((), labels_of(6))),
        Flat(1.0),
    )
    with pytest.raises(UnprovenError, match="mixes examples"):
        whole_graph([(x, weigh_messages(edges, 6))])


def test_dropout_does_not_disturb_the_bound():
    x, edges = random_graph(11, 8, 16)
    model = NodeClassifier(FEATURES, 4, CLASSES, dropout=0.5, norm="layer").double()
    tree = gather_neighbourhoods(x, weigh_messages(edges, 8), torch.tensor([4]), 1)
    total = ClippedSum(model, losses, Flat(1e-3))([((tree,), labels_of(1))])
    assert sum(float((v * v).sum()) for v in total.values()) <= 1e-6
