"""Trees hold what they should; networks on trees and on graphs are one network."""

import itertools
import time

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from nn_cases import CLASSES, FEATURES, graphs, random_graph

from graphveil._errors import InvalidInputError
from graphveil.nn import RootedGNN, Tree, grow_tree, normalised

ARCHITECTURES = {
    "gcn": {"conv": "gcn"},
    "gcn-bare": {"conv": "gcn", "encoder_layers": 0, "decoder_layers": 0},
    "gcn-deep": {"conv": "gcn", "encoder_layers": 2, "decoder_layers": 2, "norm": "layer"},
    "sage": {"conv": "sage", "activation": "elu"},
    "sage-max": {"conv": "sage", "aggregation": "max"},
    "gin": {"conv": "gin", "decoder_layers": 0},
    "gat": {"conv": "gat", "heads": 2},
    "gat-bare": {"conv": "gat", "heads": 2, "encoder_layers": 0, "decoder_layers": 0},
    "dot": {"conv": "gat", "heads": 2, "attention": "dot"},
    "sum": {"conv": "sum", "scale": 0.2},
}


def network(name, num_layers):
    torch.manual_seed(0)
    options = dict(ARCHITECTURES[name])
    if num_layers == 0 and name.endswith("bare"):
        options["decoder_layers"] = 1
    return RootedGNN(FEATURES, 4, CLASSES, num_layers=num_layers, **options).double()


def walked(messages, node, depth):
    """The tree of a node by recursion: (node, weight from it to its parent, ..., subtrees)."""
    if depth == 0:
        return node
    sent = [
        (walked(messages, int(u), depth - 1), round(float(w), 6))
        for (u, v), w in zip(messages.edge_index.t(), messages.weight, strict=True)
        if int(v) == node
    ]
    own = (walked(messages, node, depth - 1), round(float(messages.self_weight[node]), 6))
    return [own, *sorted(sent, key=repr)]


def unpacked(tree, example, level, receiver):
    """The same from the padded tables; features of the table's rows are the nodes' own numbers."""
    if level == tree.num_layers:
        return int(tree.table[tree.index[example, receiver], 0])
    width = tree.masks[level].shape[2]
    places = [
        (
            unpacked(tree, example, level + 1, receiver * width + place),
            round(float(tree.weights[level][example, receiver, place]), 6),
        )
        for place in range(width)
        if tree.masks[level][example, receiver, place]
    ]
    return [places[0], *sorted(places[1:], key=repr)]


@settings(deadline=None, max_examples=40)
@given(graph=graphs(6, 10), depth=st.integers(0, 3), data=st.data())
def test_a_tree_holds_the_walks_to_its_root_and_nothing_else(graph, depth, data):
    x, messages = graph
    ids = torch.arange(len(x)).unsqueeze(1)
    roots = data.draw(st.lists(st.integers(0, len(x) - 1), min_size=1, max_size=3))
    tree = grow_tree(ids, messages, torch.tensor(roots), depth)
    assert len(tree) == len(roots)
    assert tree.num_layers == depth
    assert all(mask[..., 0].all() for mask in tree.masks)
    for example, root in enumerate(roots):
        assert unpacked(tree, example, 0, 0) == walked(messages, root, depth)
        # Also in the padding: no row that this root may not read.
        met = set(tree.table[tree.index[example]].flatten().tolist())
        assert met <= set(numbers(walked(messages, root, depth)))


def numbers(tree):
    return [tree] if isinstance(tree, int) else itertools.chain(*(numbers(t) for t, _ in tree))


def test_levels_are_as_wide_as_the_largest_in_degree_met_there():
    edges = torch.tensor([[1, 2, 3, 4, 5, 6], [0, 0, 1, 1, 1, 6]])[:, :5]
    messages = normalised(edges, 7)
    tree = grow_tree(torch.eye(7), messages, torch.tensor([0, 6]), 2)
    assert [mask.shape for mask in tree.masks] == [(2, 1, 3), (2, 3, 4)]
    assert tree.index.shape == (2, 12)
    assert tree.masks[0][1, 0].tolist() == [True, False, False]
    assert grow_tree(torch.eye(7), messages, torch.tensor([4]), 2).index.tolist() == [[4]]


def test_no_roots():
    tree = grow_tree(torch.eye(3), normalised(torch.tensor([[0], [1]]), 3), torch.arange(0), 2)
    assert RootedGNN(3, 4, 2, num_layers=2)(tree).shape == (0, 2)


@pytest.mark.parametrize("name", ARCHITECTURES)
@settings(deadline=None, max_examples=15)
@given(graph=graphs(), depth=st.integers(0, 3), data=st.data())
def test_trees_and_the_graph_give_the_same_logits(name, graph, depth, data):
    x, messages = graph
    roots = torch.tensor(data.draw(st.lists(st.integers(0, len(x) - 1), min_size=1, max_size=4)))
    model = network(name, depth)
    found = model(grow_tree(x, messages, roots, depth))
    assert found.shape == (len(roots), CLASSES)
    expected = model.on_graph(x, messages)[roots]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_what_stands_in_the_padding_never_matters(name, depth):
    x, edges = random_graph(3, 9, 20)
    model = network(name, depth)
    tree = grow_tree(x, normalised(edges, 9, "symmetric"), torch.arange(9), depth)
    expected = model(tree)
    # Rows of junk behind the table, junk for weights, and all places below a padded one.
    table = torch.cat([tree.table, torch.full_like(tree.table[:1], 1e30)])
    real = torch.ones(9, 1, dtype=torch.bool)
    weights = []
    for mask, weight in zip(tree.masks, tree.weights, strict=True):
        weights.append(weight.double().masked_fill(~mask, -1e30))
        real = (real.unsqueeze(-1) & mask).flatten(1)
    index = torch.where(real, tree.index, len(tree.table))
    assert not real.all()
    found = model(Tree(table, index, tree.masks, weights))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_root_reads_its_own_tree_alone(name):
    """Not even a NaN elsewhere, in another root's tree of the same batch, may show."""
    x, _ = random_graph(4, 6, 0)
    edges = torch.tensor([[1, 2, 4, 5, 0], [0, 1, 3, 4, 3]])  # 2 -> 1 -> 0 -> 3, 5 -> 4 -> 3
    messages = normalised(edges, 6, "symmetric")
    model = network(name, 2)
    expected = model(grow_tree(x, messages, torch.tensor([0, 1]), 2))
    x[3:] = torch.nan
    found = model(grow_tree(x, messages, torch.tensor([0, 3, 1, 4]), 2))
    torch.testing.assert_close(found[[0, 2]], expected, rtol=0, atol=1e-12)
    assert found[[1, 3]].isnan().all()


def test_dropout_is_drawn_in_training_only():
    x, edges = random_graph(5, 8, 16)
    tree = grow_tree(x.float(), normalised(edges, 8), torch.arange(8), 1)
    model = RootedGNN(FEATURES, 8, CLASSES, dropout=0.5)
    assert not torch.equal(model(tree), model(tree))
    model.eval()
    assert torch.equal(model(tree), model(tree))


def test_depth_zero_is_an_mlp_on_the_root():
    x, edges = random_graph(6, 8, 16)
    model = network("gcn-deep", 0)
    found = model(grow_tree(x, normalised(edges, 8), torch.tensor([5, 5, 2]), 0))
    h = model.after[0](model.encoder(x[[5, 5, 2]]))
    torch.testing.assert_close(found, model.decoder(h))


def test_networks_and_trees_that_do_not_fit_are_refused():
    tree = grow_tree(torch.eye(3), normalised(torch.tensor([[0], [1]]), 3), torch.arange(3), 1)
    with pytest.raises(InvalidInputError, match=r"as deep as the network, 2 layers. Got 1"):
        RootedGNN(3, 4, 2, num_layers=2)(tree)
    with pytest.raises(InvalidInputError, match="must have a layer"):
        RootedGNN(3, 4, 2, num_layers=0, encoder_layers=0, decoder_layers=0)
    with pytest.raises(InvalidInputError, match="'num_layers'"):
        RootedGNN(3, 4, 2, num_layers=-1)


def test_ten_thousand_roots_of_a_large_graph_are_a_matter_of_milliseconds():
    nodes, kept = 169_000, 7
    source = torch.arange(nodes).repeat_interleave(kept)
    messages = normalised(torch.stack([source, torch.randint(nodes, source.shape)]), nodes)
    x, roots = torch.zeros(nodes, 32), torch.randperm(nodes)[:10_000]
    grow_tree(x, messages, roots[:1], 1)  # sorts the messages, once for each kept list
    start = time.process_time()
    tree = grow_tree(x, messages, roots, 1)
    assert time.process_time() - start < 0.5  # takes 0.04 s; a loop over nodes takes 10
    assert len(tree) == 10_000
