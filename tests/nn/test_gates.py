"""Gates on messages: open ones change no bit, closed ones silence an edge, as PyG's masks do."""

import pytest
import torch
from nn_cases import CLASSES, FEATURES, copied, random_graph
from torch_geometric import nn as pyg
from torch_geometric.explain.algorithm.utils import clear_masks, set_masks

from graphveil._errors import InvalidInputError
from graphveil.graph.messages import weigh_messages
from graphveil.nn import GAT, GCN, GIN, SAGE, GraphClassifier, Sum

# Whether closing all gates is the same as having no edges.
ARCHITECTURES = {
    "sum": ({"conv": "sum", "scale": 0.3}, True),
    "gcn-none": ({"conv": "gcn", "normalisation": "none"}, True),
    "gcn": ({"conv": "gcn"}, False),  # the weight of a node's own state counts its edges
    "gcn-inverse": ({"conv": "gcn", "normalisation": "inverse-degree"}, False),
    "sum-symmetric": ({"conv": "sum", "normalisation": "symmetric"}, True),
    "sage": ({"conv": "sage"}, True),
    "sage-max": ({"conv": "sage", "aggregation": "max"}, True),
    "gin": ({"conv": "gin", "norm": "instance"}, True),
    "gat": ({"conv": "gat", "heads": 2}, False),  # the softmax is shared with silenced edges
    "dot": ({"conv": "gat", "attention": "dot"}, False),
}
every_architecture = pytest.mark.parametrize("name", ARCHITECTURES)


def classifier(name):
    torch.manual_seed(0)
    options = {"hidden_channels": 4, "pool": "sum", **ARCHITECTURES[name][0]}
    return GraphClassifier(FEATURES, out_channels=CLASSES, **options)


def two_graphs(dtype=torch.float32):
    """Rows and edges in any order, with a self-loop and a repeated edge, and a node alone."""
    (x, edges), (y, more) = random_graph(1, 6, 12), random_graph(2, 5, 7)
    odd = torch.tensor([[2, 0], [2, 1]])
    edges = torch.cat([edges, odd, odd[:, 1:], more + 6], 1)
    edges = edges[:, torch.randperm(edges.shape[1], generator=torch.Generator().manual_seed(0))]
    rows = torch.cat([x, y, torch.ones(1, FEATURES)]).to(dtype)
    return rows, edges, torch.tensor([0] * 6 + [1] * 5 + [0]), 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@every_architecture
def test_open_gates_change_no_bit(name, dtype):
    graphs = two_graphs(dtype)
    model = classifier(name).to(dtype)
    found = model(*graphs, gate=torch.ones(graphs[1].shape[1]))
    assert torch.equal(found, model(*graphs))


@every_architecture
def test_closed_gates_are_no_edges_where_weights_do_not_count_them(name):
    x, edges, batch, count = two_graphs()
    model = classifier(name)
    closed = model(x, edges, batch, count, gate=torch.zeros(edges.shape[1]))
    without = model(x, edges[:, :0], batch, count)
    assert torch.allclose(closed, without, atol=1e-5) == ARCHITECTURES[name][1]


@pytest.mark.parametrize("name", ["sum", "gin", "gcn-none"])
def test_a_gate_belongs_to_its_edge_whatever_the_order(name):
    """Sums without weights: closing gate e is leaving out edge e, and no other."""
    x, edges, batch, count = two_graphs(torch.float64)
    model = classifier(name).double()
    for edge in range(edges.shape[1]):
        rest = torch.arange(edges.shape[1]) != edge
        found = model(x, edges, batch, count, gate=rest.double())
        expected = model(x, edges[:, rest], batch, count)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)


@every_architecture
def test_gates_are_moved_with_their_edges(name):
    x, edges, batch, count = two_graphs(torch.float64)
    model, gate = classifier(name).double(), torch.rand(edges.shape[1]).double()
    order = torch.randperm(edges.shape[1])
    found = model(x, edges[:, order], batch, count, gate=gate[order])
    expected = model(x, edges, batch, count, gate=gate)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)
    assert not torch.allclose(model(x, edges, batch, count, gate=gate[order]), expected, atol=1e-6)


@every_architecture
def test_gradients_of_gates_are_differences(name, monkeypatch):
    monkeypatch.setattr("graphveil.nn.smooth.WIDTH", 1e-12)  # else a bend's gradient is none
    x, edges, batch, count = two_graphs(torch.float64)
    model = classifier(name).double()
    gate = 0.2 + 0.8 * torch.rand(edges.shape[1], dtype=torch.float64)

    def gated(gate):
        return model(x, edges, batch, count, gate=gate)

    assert torch.autograd.gradcheck(gated, gate.requires_grad_())


@every_architecture
def test_a_graph_without_edges_has_no_gates(name):
    x, edges, batch, count = two_graphs()
    model, gate = classifier(name), torch.ones(0, requires_grad=True)
    found = model(x, edges[:, :0], batch, count, gate=gate)
    assert torch.equal(found, model(x, edges[:, :0], batch, count))


def pairs():
    """Our convolutions, PyG's with the same parameters, and the weights that ours need."""
    torch.manual_seed(1)
    theirs = pyg.SAGEConv(FEATURES, 4).double()
    weights = {
        "lin_neighbours__weight": theirs.lin_l.weight,
        "lin_neighbours__bias": theirs.lin_l.bias,
        "lin_self__weight": theirs.lin_r.weight,
    }
    yield copied(SAGE(FEATURES, 4), **weights), theirs
    largest = pyg.SAGEConv(FEATURES, 4, aggr="max").double()
    largest.load_state_dict(theirs.state_dict())
    yield copied(SAGE(FEATURES, 4, "max"), **weights), largest
    ours = GIN(FEATURES, 4).double()
    yield ours, pyg.GINConv(ours.mlp)
    theirs = pyg.GATConv(FEATURES, 2, heads=2).double()
    yield (
        copied(
            GAT(FEATURES, 4, heads=2),
            lin_value__weight=theirs.lin.weight,
            att_sender__weight=theirs.att_src,
            att_receiver__weight=theirs.att_dst,
        ),
        theirs,
    )
    theirs = pyg.GCNConv(FEATURES, 4).double()
    yield copied(GCN(FEATURES, 4), lin__weight=theirs.lin.weight, lin__bias=theirs.bias), theirs
    theirs = pyg.GraphConv(FEATURES, 4).double()  # own state and sum under one matrix
    theirs.lin_root.weight = theirs.lin_rel.weight
    ours = copied(
        Sum(FEATURES, 4), lin__weight=theirs.lin_rel.weight, lin__bias=theirs.lin_rel.bias
    )
    yield ours, theirs


@pytest.mark.parametrize("number", range(6))
def test_gates_do_what_pygs_masks_do(number):
    ours, theirs = list(pairs())[number]
    x, edges = random_graph(3, 9, 20)
    edges = torch.cat([edges, edges.flip(0)], 1).unique(dim=1)  # PyG's symmetric weights need both
    gate = torch.rand(edges.shape[1]).double()
    messages = weigh_messages(edges, len(x), "none" if isinstance(ours, Sum) else "symmetric")
    set_masks(theirs, gate, edges, apply_sigmoid=False)
    expected = theirs(x, edges)
    clear_masks(theirs)
    torch.testing.assert_close(ours(x, messages.with_gates(gate)), expected, rtol=0, atol=1e-6)
    assert not torch.allclose(ours(x, messages), expected, atol=1e-3)


def test_a_gate_for_another_number_of_edges_is_refused():
    graphs = two_graphs()
    with pytest.raises(InvalidInputError, match="'gate'"):
        classifier("sum")(*graphs, gate=torch.ones(3))
