"""Neighbourhoods hold what they should; networks on them and on graphs are one network."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from nn_cases import CLASSES, FEATURES, graphs, random_graph

from graphveil._errors import InvalidInputError, UnprovenError
from graphveil.graph.lazy_rows import LazyRows
from graphveil.graph.messages import weigh_messages
from graphveil.graph.neighbourhoods import RootedTerms, gather_neighbourhoods, reach
from graphveil.nn import NodeClassifier, node_classifier

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
    return NodeClassifier(FEATURES, 4, CLASSES, num_layers=num_layers, **options).double()


def walked(messages, root, depth):
    """Distances from a root against the direction of messages, by plain search."""
    found, ring = {root: 0}, {root}
    for distance in range(1, depth + 1):
        pairs = messages.edge_index.t().tolist()
        ring = {u for u, v in pairs if v in ring and u not in found}
        found |= dict.fromkeys(ring, distance)
    return found


@settings(deadline=None, max_examples=60)
@given(graph=graphs(6, 12), depth=st.integers(0, 3), data=st.data())
def test_a_neighbourhood_holds_what_its_root_may_read_and_nothing_else(graph, depth, data):
    x, messages = graph
    roots = data.draw(st.lists(st.integers(0, len(x) - 1), min_size=1, max_size=3))
    around = gather_neighbourhoods(x, messages, torch.tensor(roots), depth)
    assert (len(around), around.num_layers) == (len(roots), depth)
    weight_of = dict(zip(map(tuple, messages.edge_index.t().tolist()), messages.weight.tolist()))  # noqa: B905
    for example, root in enumerate(roots):
        distance = walked(messages, root, depth)
        nodes = around.index[example].tolist()
        real, padding = nodes[: len(distance)], nodes[len(distance) :]
        assert sorted(real) == sorted(distance)
        assert [distance[v] for v in real] == sorted(distance.values())
        assert set(padding) <= {root}
        for i, receiver in enumerate(real[: around.mask.shape[1]]):
            if distance[receiver] == depth:
                continue  # read for its features alone
            senders = {real[j] for j in around.mask[example, i].nonzero().flatten().tolist()}
            assert senders == {u for u, v in weight_of if v == receiver} | {receiver}
            for j in around.mask[example, i].nonzero().flatten().tolist():
                own = float(messages.self_weight[receiver])
                expected = own if i == j else weight_of[real[j], receiver]
                assert float(around.weight[example, i, j]) == pytest.approx(expected)


def test_layers_work_on_those_who_can_still_reach_the_root():
    edges = torch.tensor([[1, 2, 3, 4, 5], [0, 0, 1, 1, 1]])
    messages = weigh_messages(edges, 7)
    around = gather_neighbourhoods(torch.eye(7), messages, torch.tensor([0, 6]), 2)
    assert around.widths == (6, 3, 1)
    assert [fan.mask.shape for fan in around.layers()] == [(2, 3, 6), (2, 1, 3)]
    assert around.mask[1].equal(torch.eye(3, 6, dtype=torch.bool))
    assert gather_neighbourhoods(torch.eye(7), messages, torch.tensor([4]), 2).index.tolist() == [
        [4]
    ]


@pytest.mark.parametrize("edges", [[[1, 1], [0, 0]], [[0, 1], [0, 0]], [[2, 1, 1], [1, 0, 1]]])
def test_repeated_edges_and_self_loops_are_refused(edges):
    messages = weigh_messages(torch.tensor(edges), 3)
    with pytest.raises(InvalidInputError, match="at most once, and no self-loop"):
        gather_neighbourhoods(torch.eye(3), messages, torch.tensor([0]), 2)


@settings(deadline=None, max_examples=40)
@given(graph=graphs(8, 20), depth=st.integers(0, 3), rows=st.integers(1, 30), data=st.data())
def test_every_term_drawn_is_in_one_batch(graph, depth, rows, data):
    x, messages = graph
    roots = torch.tensor(data.draw(st.permutations(range(len(x)))))[: 1 + len(x) // 2]
    terms = RootedTerms(x, torch.arange(len(x)) * 10, messages, roots, depth, rows)
    drawn = torch.tensor(list(data.draw(st.sets(st.integers(0, len(terms) - 1)))), dtype=torch.long)
    found = [(around.index[:, 0], y) for around, y in terms.batches(drawn)]
    met = torch.cat([torch.arange(0), *(nodes for nodes, _ in found)])
    assert sorted(met.tolist()) == sorted(roots[drawn].tolist())
    assert all(torch.equal(nodes * 10, labels) for nodes, labels in found)
    sizes = reach(messages, depth)
    assert all(len(walked(messages, v, depth)) <= sizes[v] for v in range(len(x)))


def test_no_roots():
    around = gather_neighbourhoods(
        torch.eye(3), weigh_messages(torch.tensor([[0], [1]]), 3), torch.arange(0), 2
    )
    assert NodeClassifier(3, 4, 2, num_layers=2)(around).shape == (0, 2)


@pytest.mark.parametrize("name", ARCHITECTURES)
@settings(deadline=None, max_examples=15)
@given(graph=graphs(), depth=st.integers(0, 3), data=st.data())
def test_neighbourhoods_and_the_graph_give_the_same_logits(name, graph, depth, data):
    x, messages = graph
    roots = torch.tensor(data.draw(st.lists(st.integers(0, len(x) - 1), min_size=1, max_size=4)))
    model = network(name, depth)
    found = model(gather_neighbourhoods(x, messages, roots, depth))
    assert found.shape == (len(roots), CLASSES)
    expected = model.on_graph(x, messages)[roots]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("depth", [0, 1, 2])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_blocks_of_a_graph_give_the_logits_of_the_whole(name, depth, monkeypatch):
    monkeypatch.setattr(node_classifier, "BLOCK", 20)
    monkeypatch.setattr(node_classifier, "_AT_ONCE", 1)
    monkeypatch.setattr(node_classifier, "_FEWEST", 30)
    generator = torch.Generator().manual_seed(6)
    x = torch.randn(90, FEATURES, generator=generator).double()
    edges = torch.randint(90, (2, 400), generator=generator)
    messages = weigh_messages(edges[:, edges[0] != edges[1]], 90)
    model, from_disk = network(name, depth), LazyRows(x, lambda rows: rows.clone(), FEATURES)
    whole = model.on_graph(x, messages)
    for rows in (x, from_disk):
        torch.testing.assert_close(model.in_blocks(rows, messages), whole, rtol=0, atol=1e-10)


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_what_stands_in_the_padding_never_matters(name, depth):
    x, edges = random_graph(3, 9, 20)
    model = network(name, depth)
    around = gather_neighbourhoods(x, weigh_messages(edges, 9, "symmetric"), torch.arange(9), depth)
    expected = model(around)
    # A row of junk behind the table for every place that is not a node's, and junk for weights.
    table = torch.cat([x, torch.full_like(x[:1], 1e30)])
    root = around.index[:, :1]
    padding = (around.index == root) & (torch.arange(around.index.shape[1]) > 0)
    assert padding.any()
    junk = replace(
        around,
        table=table,
        index=around.index.masked_fill(padding, len(x)),
        weight=around.weight.double().masked_fill(~around.mask, -1e30),
    )
    torch.testing.assert_close(model(junk), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_root_reads_its_own_neighbourhood_alone(name):
    """Not even a NaN elsewhere, in another root's part of the same batch, may show."""
    x, _ = random_graph(4, 6, 0)
    edges = torch.tensor([[1, 2, 4, 5, 0], [0, 1, 3, 4, 3]])  # 2 -> 1 -> 0 -> 3, 5 -> 4 -> 3
    messages = weigh_messages(edges, 6, "symmetric")
    model = network(name, 2)
    expected = model(gather_neighbourhoods(x, messages, torch.tensor([0, 1]), 2))
    x[3:] = torch.nan
    found = model(gather_neighbourhoods(x, messages, torch.tensor([0, 3, 1, 4]), 2))
    torch.testing.assert_close(found[[0, 2]], expected, rtol=0, atol=1e-12)
    assert found[[1, 3]].isnan().all()


def test_dropout_is_drawn_in_training_only():
    x, edges = random_graph(5, 8, 16)
    around = gather_neighbourhoods(x.float(), weigh_messages(edges, 8), torch.arange(8), 1)
    model = NodeClassifier(FEATURES, 8, CLASSES, dropout=0.5)
    assert not torch.equal(model(around), model(around))
    model.eval()
    assert torch.equal(model(around), model(around))


def test_depth_zero_is_an_mlp_on_the_root():
    x, edges = random_graph(6, 8, 16)
    model = network("gcn-deep", 0)
    found = model(gather_neighbourhoods(x, weigh_messages(edges, 8), torch.tensor([5, 5, 2]), 0))
    h = model.after[0](model.encoder(x[[5, 5, 2]]))
    torch.testing.assert_close(found, model.decoder(h))


def test_networks_and_neighbourhoods_that_do_not_fit_are_refused():
    around = gather_neighbourhoods(
        torch.eye(3), weigh_messages(torch.tensor([[0], [1]]), 3), torch.arange(3), 1
    )
    with pytest.raises(InvalidInputError, match=r"as deep as the network, 2 layers. Got 1"):
        NodeClassifier(3, 4, 2, num_layers=2)(around)
    with pytest.raises(InvalidInputError, match="must have a layer"):
        NodeClassifier(3, 4, 2, num_layers=0, encoder_layers=0, decoder_layers=0)
    with pytest.raises(InvalidInputError, match="'num_layers'"):
        NodeClassifier(3, 4, 2, num_layers=-1)


def test_terms_are_made_from_messages_and_name_their_cap():
    x, y, roots = torch.ones(3, 2), torch.zeros(3).long(), torch.arange(3)
    edges = torch.tensor([[0, 1], [1, 2]])
    with pytest.raises(InvalidInputError, match=r"RootedTerms.capped\(..., max_sent=K\)"):
        RootedTerms(x, y, edges, roots, 1)
    with pytest.raises(InvalidInputError, match="'max_sent' parameter"):
        RootedTerms.capped(x, y, edges, roots, 1, max_sent=0)
    with pytest.raises(UnprovenError, match="'max_sent'"):
        RootedTerms.capped(x, y, edges, roots, 1, max_sent=None).influence()
