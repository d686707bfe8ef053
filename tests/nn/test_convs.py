"""Convolutions: a fan and a graph give the same numbers, and they are PyG's."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from nn_cases import HOWS, copied, graphs, random_graph
from torch import nn
from torch_geometric import nn as pyg

from graphveil._errors import InvalidInputError
from graphveil.graph.messages import DenseMessages, Messages, weigh_messages
from graphveil.graph.neighbourhoods import gather_neighbourhoods
from graphveil.nn import GAT, GCN, GIN, SAGE, Sum
from graphveil.nn.descriptions import Convolution

IN, OUT = 3, 6
CONVS = {
    "gcn": lambda: GCN(IN, OUT),
    "sage": lambda: SAGE(IN, OUT),
    "sage-max": lambda: SAGE(IN, OUT, "max"),
    "gin": lambda: GIN(IN, OUT),
    "sum": lambda: Sum(IN, OUT, scale=0.3),
    "gat": lambda: GAT(IN, OUT),
    "gat-3": lambda: GAT(IN, OUT, heads=3),
    "gat-3-mean": lambda: GAT(IN, OUT, heads=3, concat=False),
    "dot": lambda: GAT(IN, OUT, attention="dot"),
    "dot-3": lambda: GAT(IN, OUT, heads=3, attention="dot"),
    "dot-3-mean": lambda: GAT(IN, OUT, heads=3, attention="dot", concat=False),
}
every_conv = pytest.mark.parametrize("name", CONVS)


def made(name):
    """A convolution in float64 whose parameters are all different from their defaults."""
    torch.manual_seed(0)
    conv = CONVS[name]().double()
    with torch.no_grad():
        for parameter in conv.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) / 2)
    return conv


def fan_of(x, messages, extra=0, junk=0.0):
    """Every node's own small graph: states (nodes, T, channels) and a fan, with junk as padding."""
    around = gather_neighbourhoods(x, messages, torch.arange(len(x)), 1)
    pad = (0, extra)
    mask = nn.functional.pad(around.mask, pad)
    weight = nn.functional.pad(around.weight, pad).to(x.dtype).masked_fill(~mask, junk)
    h = nn.functional.pad(x[around.index], (0, 0, *pad))
    return h.masked_fill(~mask[:, 0].unsqueeze(-1), junk), DenseMessages(weight, mask)


@every_conv
@settings(deadline=None, max_examples=25)
@given(graph=graphs(), extra=st.integers(0, 4), junk=st.sampled_from([0.0, 1e30, -1e30]))
def test_a_fan_gives_what_the_graph_gives_whatever_stands_in_the_padding(name, graph, extra, junk):
    x, messages = graph
    conv = made(name)
    found = conv(*fan_of(x, messages, extra, junk))
    assert found.shape == (len(x), 1, OUT)
    torch.testing.assert_close(found.squeeze(1), conv(x, messages), rtol=0, atol=1e-10)


@every_conv
def test_a_whole_graph_may_be_a_fan_and_the_order_of_senders_does_not_matter(name):
    x, edges = random_graph(1, 12, 40)
    messages = weigh_messages(edges, 12, "symmetric")
    conv = made(name)
    mask, weight = torch.eye(12, dtype=torch.bool), torch.diag(messages.self_weight).double()
    mask[edges[1], edges[0]] = True
    weight[edges[1], edges[0]] = messages.weight.double()
    whole = conv(x.unsqueeze(0), DenseMessages(weight.unsqueeze(0), mask.unsqueeze(0)))
    h, fan = fan_of(x, messages)
    order = torch.cat([torch.tensor([0]), 1 + torch.randperm(h.shape[1] - 1)])
    mixed = conv(h[:, order], DenseMessages(fan.weight[..., order], fan.mask[..., order]))
    for found in (whole.view(12, OUT), mixed.view(12, OUT)):
        torch.testing.assert_close(found, conv(x, messages), rtol=0, atol=1e-10)


@every_conv
def test_padding_gets_no_gradient(name):
    x, edges = random_graph(2, 6, 12)
    h, fan = fan_of(x, weigh_messages(edges, 6), extra=2, junk=1e30)
    h.requires_grad_(True)
    made(name)(h, fan).square().sum().backward()
    padding = ~fan.mask[:, 0]
    assert padding.any()
    assert h.grad[padding].abs().max() == 0
    assert torch.isfinite(h.grad).all()


@every_conv
def test_graphs_without_edges_or_without_nodes(name):
    conv = made(name)
    for nodes in (0, 1, 3):
        x, _ = random_graph(0, nodes, 0)
        messages = weigh_messages(torch.empty(2, 0, dtype=torch.long), nodes, "symmetric")
        x.requires_grad_(True)
        out = conv(x, messages)
        assert out.shape == (nodes, OUT)
        out.sum().backward()
        assert torch.isfinite(out).all()
        alone = [conv(row.unsqueeze(0), weigh_messages(messages.edge_index, 1)) for row in x]
        torch.testing.assert_close(out, torch.cat([out[:0], *alone]), rtol=0, atol=1e-10)


@every_conv
def test_a_fan_without_messages(name):
    h, own = torch.randn(2, 5, IN, dtype=torch.float64), torch.eye(5).expand(2, 5, 5)
    conv = made(name)
    found = conv(h, DenseMessages(own, own.bool()))
    assert found.shape == (2, 5, OUT)
    alone = conv(
        h.view(10, 1, IN), DenseMessages(torch.ones(10, 1, 1), torch.ones(10, 1, 1).bool())
    )
    torch.testing.assert_close(found, alone.view(2, 5, OUT))


# --- weights --------------------------------------------------------------------------------------


def test_weights_by_hand():
    edges = torch.tensor([[0, 1, 0, 3], [1, 2, 2, 2]])
    inverse = weigh_messages(edges, 4, "inverse-degree")
    assert inverse.weight.tolist() == pytest.approx([1 / 2, 1 / 4, 1 / 4, 1 / 4])
    assert inverse.self_weight.tolist() == pytest.approx([1, 1 / 2, 1 / 4, 1])
    symmetric = weigh_messages(edges, 4, "symmetric")
    # out-degrees 2 1 0 1, in-degrees 0 1 3 0
    expected = [(3 * 2) ** -0.5, (2 * 4) ** -0.5, (3 * 4) ** -0.5, (2 * 4) ** -0.5]
    assert symmetric.weight.tolist() == pytest.approx(expected)
    own = [3**-0.5, (2 * 2) ** -0.5, 4**-0.5, 2**-0.5]
    assert symmetric.self_weight.tolist() == pytest.approx(own)
    assert weigh_messages(edges, 4, "none").weight.tolist() == [1, 1, 1, 1]
    with pytest.raises(InvalidInputError, match="'how'"):
        weigh_messages(edges, 4, "textbook")


@pytest.mark.parametrize("how", HOWS)
@settings(deadline=None, max_examples=60)
@given(graph=graphs(), chosen=st.integers(0, 7))
def test_messages_to_a_node_are_no_part_of_the_weights_of_those_it_sends(how, graph, chosen):
    """The sender's in-degree would cost a hop: what reaches u must not change what u sends."""
    x, messages = graph
    u, edges = chosen % len(x), messages.edge_index
    fewer = edges[:, edges[1] != u]
    before = weigh_messages(edges, len(x), how).weight[edges[0] == u]
    after = weigh_messages(fewer, len(x), how).weight[fewer[0] == u]
    assert torch.equal(before, after)


# --- PyG ------------------------------------------------------------------------------------------


@pytest.fixture(params=range(3))
def graph(request):
    x, edges = random_graph(request.param, 10, 20)
    return x, edges.unique(dim=1)  # PyG's add_self_loops and ours agree on multi-edges, too


def with_loops(edges, nodes):
    return torch.cat([edges, torch.arange(nodes).repeat(2, 1)], 1)


def agree(found, expected):
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("how", HOWS)
def test_gcn_is_pygs(graph, how):
    x, edges = graph
    messages, ours = weigh_messages(edges, len(x), how), made("gcn")
    theirs = copied(
        pyg.GCNConv(IN, OUT, normalize=False, add_self_loops=False),
        lin__weight=ours.lin.weight,
        bias=ours.lin.bias,
    )
    weight = torch.cat([messages.weight, messages.self_weight]).double()
    agree(ours(x, messages), theirs(x, with_loops(edges, len(x)), weight))


def test_symmetric_weights_are_pygs_on_an_undirected_graph(graph):
    x, edges = graph
    edges = torch.cat([edges, edges.flip(0)], 1).unique(dim=1)
    ours = made("gcn")
    theirs = copied(pyg.GCNConv(IN, OUT), lin__weight=ours.lin.weight, bias=ours.lin.bias)
    found = ours(x, weigh_messages(edges, len(x), "symmetric"))
    torch.testing.assert_close(found, theirs(x, edges), rtol=0, atol=1e-6)


@pytest.mark.parametrize("aggregation", ["mean", "max"])
def test_sage_is_pygs(graph, aggregation):
    x, edges = graph
    ours = made("sage" if aggregation == "mean" else "sage-max")
    theirs = copied(
        pyg.SAGEConv(IN, OUT, aggr=aggregation),
        lin_l__weight=ours.lin_neighbours.weight,
        lin_l__bias=ours.lin_neighbours.bias,
        lin_r__weight=ours.lin_self.weight,
    )
    agree(ours(x, weigh_messages(edges, len(x))), theirs(x, edges))


def test_gin_is_pygs(graph):
    x, edges = graph
    ours = made("gin")
    theirs = copied(pyg.GINConv(ours.mlp, train_eps=True), eps=ours.own.eps)
    agree(ours(x, weigh_messages(edges, len(x))), theirs(x, edges))


@pytest.mark.parametrize("name", ["gat", "gat-3", "gat-3-mean"])
def test_additive_attention_is_pygs(graph, name):
    x, edges = graph
    ours = made(name)
    theirs = copied(
        pyg.GATConv(IN, ours.channels, heads=ours.heads, concat=ours.concat),
        lin__weight=ours.lin_value.weight,
        att_src=ours.att_sender.weight,
        att_dst=ours.att_receiver.weight,
        bias=ours.bias.bias,
    )
    agree(ours(x, weigh_messages(edges, len(x))), theirs(x, edges))


@pytest.mark.parametrize("name", ["dot", "dot-3", "dot-3-mean"])
def test_dot_attention_is_pygs(graph, name):
    x, edges = graph
    ours = made(name)
    parts = {"key": ours.lin_key, "query": ours.lin_query, "value": ours.lin_value}
    theirs = copied(
        pyg.TransformerConv(
            IN, ours.channels, heads=ours.heads, concat=ours.concat, root_weight=False
        ),
        **{f"lin_{part}__weight": linear.weight for part, linear in parts.items()},
        **{f"lin_{part}__bias": linear.bias for part, linear in parts.items()},
    )
    agree(ours(x, weigh_messages(edges, len(x))), theirs(x, with_loops(edges, len(x))))


def test_sum_by_hand(graph):
    x, edges = graph
    ours = made("sum")
    weight = torch.rand(edges.shape[1], dtype=torch.float64)
    adjacency = torch.eye(len(x), dtype=torch.float64)
    adjacency.index_put_((edges[1], edges[0]), weight, accumulate=True)
    found = ours(x, Messages(edges, weight, torch.zeros(len(x))))
    agree(found, 0.3 * adjacency @ x @ ours.lin.weight.t() + ours.lin.bias)


# --- what is refused ------------------------------------------------------------------------------


def test_words_and_shapes_that_make_no_sense_are_refused():
    with pytest.raises(InvalidInputError, match=r"'conv' .* Got 'cheb'"):
        Convolution(kind="cheb", in_channels=3, out_channels=4)
    with pytest.raises(InvalidInputError, match="multiple of its 3 heads"):
        GAT(3, 4, heads=3)
    with pytest.raises(InvalidInputError, match="'attention'"):
        GAT(3, 4, attention="multiplicative")
    with pytest.raises(InvalidInputError, match="'aggregation'"):
        SAGE(3, 4, "median")
    with pytest.raises(InvalidInputError, match="'scale'"):
        Sum(3, 4, scale=0.0)
