"""Whole graphs side by side: none sees another, and odd ones work."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from nn_cases import CLASSES, FEATURES, random_graph
from torch import nn
from torch_geometric import nn as pyg

from graphveil._errors import InvalidInputError, UnprovenError
from graphveil.nn import GraphClassifier, InstanceNorm
from graphveil.nn.graph_classifier import pool_nodes

ARCHITECTURES = {
    "gcn": {"conv": "gcn"},
    "gcn-instance": {"conv": "gcn", "norm": "instance", "pool": "max", "head_layers": 2},
    "sage": {"conv": "sage", "pool": "sum", "norm": "instance"},
    "sage-max": {"conv": "sage", "aggregation": "max", "activation": "relu"},
    "gin": {"conv": "gin", "pool": "sum"},
    "gat": {"conv": "gat", "heads": 2, "pool": "max"},
    "dot": {"conv": "gat", "heads": 2, "attention": "dot", "norm": "instance"},
    "sum": {"conv": "sum", "scale": 0.2, "pool": "sum"},
    "sum-widths": {"conv": "sum", "hidden_channels": [4, 6], "head_channels": 5, "head_layers": 3},
}
# Nodes and edges of graphs: ordinary ones, and every odd one.
SIZES = [(5, 9), (1, 0), (4, 0), (0, 0), (7, 20), (2, 3)]


def classifier(name, num_layers=2):
    torch.manual_seed(0)
    options = {"hidden_channels": 4, **ARCHITECTURES[name]}
    if isinstance(options["hidden_channels"], int):
        options["num_layers"] = num_layers
    return GraphClassifier(FEATURES, out_channels=CLASSES, **options).double()


def some_graphs(sizes=SIZES):
    return [random_graph(seed, *size) for seed, size in enumerate(sizes)]


def batched(graphs, shuffle=False):
    """What a classifier takes, with the nodes of all graphs in one row after another, or mixed."""
    x = torch.cat([x for x, _ in graphs])
    sizes = torch.tensor([len(x) for x, _ in graphs])
    start = torch.cumsum(sizes, 0) - sizes
    edges = torch.cat([e + int(s) for (_, e), s in zip(graphs, start, strict=True)], 1)
    batch = torch.repeat_interleave(torch.arange(len(graphs)), sizes)
    if shuffle:
        order = torch.randperm(len(x))
        x, batch, edges = x[order], batch[order], torch.argsort(order)[edges]
        edges = edges[:, torch.randperm(edges.shape[1])]
    return x, edges, batch, len(graphs)


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_graphs_logits_do_not_depend_on_the_others(name, shuffle):
    model, graphs = classifier(name), some_graphs()
    together = model(*batched(graphs, shuffle))
    alone = torch.cat([model(*batched([graph])) for graph in graphs])
    assert torch.isfinite(together).all()
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-10)


@settings(deadline=None, max_examples=30)
@given(
    name=st.sampled_from(sorted(ARCHITECTURES)),
    sizes=st.lists(st.tuples(st.integers(0, 6), st.integers(0, 9)), min_size=1, max_size=5),
    chosen=st.integers(0, 4),
)
def test_replacing_the_other_graphs_changes_nothing(name, sizes, chosen):
    model, graphs = classifier(name), some_graphs(sizes)
    chosen %= len(graphs)
    before = model(*batched(graphs))[chosen]
    others = [random_graph(99 + i, 3, 4) for i in range(len(graphs))]
    others[chosen] = graphs[chosen]
    torch.testing.assert_close(model(*batched(others))[chosen], before, rtol=0, atol=1e-10)


def test_the_empty_graph_pools_to_zeros():
    model = classifier("gcn")
    empty = [(torch.zeros(0, FEATURES).double(), torch.empty(2, 0, dtype=torch.long))] * 2
    zeros = torch.zeros(2, 4, dtype=torch.float64)
    assert torch.equal(model(*batched(empty)), model.head(zeros))


@pytest.mark.parametrize("how", ["sum", "mean", "max"])
def test_pools_are_pygs(how):
    x, _, batch, count = batched(some_graphs())
    theirs = {"sum": pyg.global_add_pool, "mean": pyg.global_mean_pool, "max": pyg.global_max_pool}
    expected = theirs[how](x, batch, count)
    torch.testing.assert_close(pool_nodes(x, batch, count, how), expected)


def test_instance_norm_is_torchs_for_each_graph():
    ours, theirs = (
        InstanceNorm(FEATURES).double(),
        nn.InstanceNorm1d(FEATURES, affine=True).double(),
    )
    for parameter in ("weight", "bias"):
        value = torch.randn(FEATURES, dtype=torch.float64)
        getattr(ours.affine, parameter).data.copy_(value)
        getattr(theirs, parameter).data.copy_(value)
    graphs = some_graphs()
    x, _, batch, count = batched(graphs)
    found = ours(x, batch, count)
    for graph, (rows, _) in enumerate(graphs):
        if len(rows) > 1:
            expected = theirs(rows.t().unsqueeze(0)).squeeze(0).t()
            torch.testing.assert_close(found[batch == graph], expected)
    shift = ours.affine.bias.unsqueeze(0)
    torch.testing.assert_close(found[batch == 1], shift)  # a single node is its own mean


def test_a_norm_before_the_first_layer_reads_each_graph_alone():
    model = GraphClassifier(FEATURES, 4, CLASSES, num_layers=1, norm_first=True).double()
    x, edges, batch, count = batched(some_graphs())
    given = []
    model.convs[0].register_forward_pre_hook(lambda _, inputs: given.append(inputs[0]))
    logits = model(x, edges, batch, count)
    assert torch.equal(given[0], model.first(x, batch, count))
    scaled = (3.0 + 7.0 * torch.arange(count))[batch].unsqueeze(1).double()
    moved = model(x * scaled + scaled, edges, batch, count)
    torch.testing.assert_close(moved, logits, atol=1e-3, rtol=0)  # but for its eps


def test_the_head_has_a_layer_for_each_width_and_one_for_the_logits():
    def shapes(**options):
        head = GraphClassifier(FEATURES, [4, 6], CLASSES, **options).head
        return [(linear.in_features, linear.out_features) for linear in head.linears]

    assert shapes() == [(6, CLASSES)]
    assert shapes(head_channels=5) == [(6, 5), (5, CLASSES)]
    assert shapes(head_channels=[5, 3]) == [(6, 5), (5, 3), (3, CLASSES)]
    assert shapes(head_channels=[5, 3], head_layers=3) == shapes(head_channels=[5, 3])
    assert shapes(head_layers=2) == [(6, 6), (6, CLASSES)]


def test_without_convolutions_it_classifies_sets():
    model = GraphClassifier(FEATURES, 8, CLASSES, num_layers=0, head_layers=2, head_channels=5)
    x, edges, batch, count = batched(some_graphs())
    expected = model.head(pool_nodes(x.float(), batch, count, "mean"))
    assert torch.equal(model(x.float(), edges, batch, count), expected)


def test_only_the_sum_convolution_sees_density():
    """Equal features: a normalised mean is blind to edges, and a sum is not."""
    ring = torch.stack([torch.arange(6), (torch.arange(6) + 1) % 6])
    dense = torch.combinations(torch.arange(6)).t()
    x = torch.ones(6, FEATURES, dtype=torch.float64)
    graphs = [(x, ring), (x, torch.cat([dense, dense.flip(0)], 1))]
    for name, blind in (("sage", True), ("gat", True), ("sum", False)):
        one, other = classifier(name)(*batched(graphs))
        assert torch.allclose(one, other) == blind


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"hidden_channels": [4, 5], "num_layers": 3}, "one width for each of the 3 layers"),
        ({"hidden_channels": [4, 0]}, "'hidden_channels'"),
        ({"pool": "attention"}, "'pool'"),
        ({"normalisation": "random-walk"}, "'normalisation'"),
        ({"head_layers": 0}, "'head_layers'"),
        ({"head_layers": 2, "head_channels": [4, 4]}, "one width for each of the 1 hidden layers"),
        ({"head_channels": "wide"}, "'head_channels'"),
        ({"conv": "gat", "heads": 3}, "3 heads"),
    ],
)
def test_what_makes_no_sense_is_refused(options, words):
    with pytest.raises(InvalidInputError, match=words):
        GraphClassifier(FEATURES, out_channels=2, **{"hidden_channels": 4, **options})


def test_batch_norm_is_refused_by_name_with_the_reason():
    with pytest.raises(UnprovenError, match="BatchNorm and its like mix the graphs"):
        GraphClassifier(FEATURES, 4, 2, norm="batch")


def test_edges_between_graphs_are_refused():
    x, batch = torch.randn(4, FEATURES).double(), torch.tensor([0, 0, 1, 1])
    model = classifier("gcn", num_layers=1)
    model(x, torch.tensor([[0, 2], [1, 3]]), batch, 2)
    with pytest.raises(InvalidInputError, match="inside a graph"):
        model(x, torch.tensor([[0, 1], [1, 2]]), batch, 2)
