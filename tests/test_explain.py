"""Explanations: the edge that matters is found, the model stays as it was, and IoU is IoU."""

from itertools import combinations

import pytest
import torch
from torch_geometric import nn as pyg
from torch_geometric.data import Data
from torch_geometric.explain.algorithm.utils import clear_masks, set_masks
from torch_geometric.utils import coalesce, remove_self_loops

from graphveil._errors import InvalidInputError
from graphveil.explain import (
    EXPLAINERS,
    Explanation,
    Masked,
    _slopes,
    agreement,
    explain,
    iou,
    iou_by_chance,
    with_edges,
)
from graphveil.graph.collate import collate as collated
from graphveil.graph.splits import split
from graphveil.methods import Facts
from graphveil.methods.baselines import MLPBaseline
from graphveil.methods.graph_baseline import GraphBaseline

every_explainer = pytest.mark.parametrize("explainer", EXPLAINERS)
CONVS = {
    "sum": {},
    "gcn": {"norm": "instance", "pool": "max"},
    "sage": {"pool": "sum"},
    "gin": {},
    "gat": {"heads": 2},
}


def fitted(features=2, classes=3, seed=0, **settings):
    """A method with the weights it begins with, as if it had been trained."""
    method = GraphBaseline(hidden_channels=4, seed=seed, **settings)
    facts = Facts(
        num_nodes=10, num_features=features, num_classes=classes, num_train=5, record="graph"
    )
    method.plan_ = method.plan(facts)
    method.network_ = method.build(facts).eval()
    return method


def path(x, directions=2):
    """A path through the rows of x, in both directions or one."""
    ends = torch.stack([torch.arange(len(x) - 1), torch.arange(1, len(x))])
    edges = torch.cat([ends, ends.flip(0)], 1) if directions == 2 else ends
    rows = torch.as_tensor(x, dtype=torch.float32).view(len(x), -1)
    return Data(x=rows, edge_index=edges, y=torch.tensor([1]))


def some_graphs():
    torch.manual_seed(3)
    rows = [torch.randn(nodes, 2) for nodes in (5, 1, 4, 7)]
    graphs = [path(x) for x in rows[:1] + rows[2:]]
    graphs.insert(1, Data(x=rows[1], edge_index=torch.empty(2, 0, dtype=torch.long)))
    loop = torch.tensor([[0, 0, 0], [0, 2, 2]])  # a loop, and an edge that stands there twice
    graphs[2].edge_index = torch.cat([graphs[2].edge_index, loop], 1)
    return graphs


def one_edge_decides(loss, others):
    """Along 0 -> 1 -> 2 -> 3 -> 4, node 2 sends 3.0. Own states and messages above 4.5: class 1."""
    method = fitted(
        1, 2, conv="sum", scale=1.0, num_layers=1, pool="sum", activation="relu", degree=False,
        loss=loss,
    )  # fmt: skip
    with torch.no_grad():
        for parameter in method.network_.parameters():
            parameter.zero_()
        method.network_.convs[0].lin.weight[0] = 1.0
        last = [part for part in method.network_.head.modules() if hasattr(part, "in_features")][-1]
        last.weight[-1, 0] = 2.0
        last.bias[-1] = -9.0
    return method, path([others, others, 3.0, others, others], directions=1)


@pytest.mark.parametrize("loss", ["softmax", "binary"])
@every_explainer
def test_the_one_edge_that_matters_is_kept_alone(explainer, loss):
    method, graph = one_edge_decides(loss, others=0.0)
    (explanation,) = explain(method, [graph], [0], explainer=explainer)
    without = graph.clone()
    without.edge_index = graph.edge_index[:, [0, 1, 3]]
    assert (explanation.predicted, int(method.predict([without]))) == (1, 0)
    assert explanation.kept() == {(2, 3)}
    assert explanation.importance.nonzero().tolist() == [[2]]


@every_explainer
def test_an_edge_that_decides_is_kept_from_every_start_and_no_other_is(explainer):
    """A gate of little consequence ends up open or closed by where gnn happens to start it."""
    method, graph = one_edge_decides("softmax", others=0.05)
    starts = range(8 if explainer == "gnn" else 1)
    explanations = [
        explain(method, [graph], [0], explainer=explainer, seed=seed)[0] for seed in starts
    ]
    least = torch.stack([one.importance for one in explanations]).amin(0)
    assert float(least[2]) > 0.5
    assert float(least[[0, 1, 3]].max()) < 0.2


@pytest.mark.parametrize("conv", CONVS)
@every_explainer
def test_importance_is_in_range_and_the_same_both_ways(explainer, conv):
    method = fitted(conv=conv, **CONVS[conv])
    for explanation, graph in zip(
        explain(method, some_graphs(), range(4), explainer=explainer, epochs=5),
        some_graphs(),
        strict=True,
    ):
        assert torch.equal(explanation.edge_index, coalesce(remove_self_loops(graph.edge_index)[0]))
        assert explanation.importance.shape == explanation.edge_index.shape[1:]
        assert ((explanation.importance >= 0) & (explanation.importance <= 1)).all()
        ends = explanation.edge_index.t().tolist()
        for (one, other), value in zip(ends, explanation.importance.tolist(), strict=True):
            assert value == explanation.by_edge[min(one, other), max(one, other)]
        if explainer != "gnn" and explanation.by_edge:
            assert float(explanation.importance.max()) == 1


@every_explainer
def test_the_model_and_the_stream_of_torch_stay_as_they_were(explainer):
    method = fitted(conv="gat", dropout=0.5)
    before = {name: value.clone() for name, value in method.network_.state_dict().items()}
    wanted = [parameter.requires_grad for parameter in method.network_.parameters()]
    assert True in wanted
    assert False in wanted
    graphs = some_graphs()
    stream = torch.get_rng_state()
    explain(method, graphs, [0, 3], explainer=explainer, epochs=3)
    assert torch.equal(torch.get_rng_state(), stream)
    assert [parameter.requires_grad for parameter in method.network_.parameters()] == wanted
    assert all(parameter.grad is None for parameter in method.network_.parameters())
    assert not method.network_.training
    after = method.network_.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(after[name], value) for name, value in before.items())


@every_explainer
def test_the_seed_decides_and_other_graphs_do_not(explainer):
    """Nor does dropout: a model is explained as it predicts."""
    method, graphs = fitted(dropout=0.5), some_graphs()

    def importance(chosen, seed=0):
        explanations = explain(method, graphs, chosen, explainer=explainer, epochs=5, seed=seed)
        return {one.graph: one.importance for one in explanations}

    every = importance([0, 1, 2, 3])
    for some in (importance([3, 2]), importance(torch.tensor([2]))):
        assert all(torch.equal(value, every[graph]) for graph, value in some.items())
    assert torch.equal(importance([3], seed=1)[3], every[3]) == (explainer != "gnn")


def test_predictions_and_labels_are_those_of_the_method():
    method, data = fitted(), collated(some_graphs())
    explanations = explain(method, data, [3, 1, 0], explainer="saliency")
    chances = method.predict_proba(data)
    assert [one.graph for one in explanations] == [3, 1, 0]
    assert [one.label for one in explanations] == [1, -1, 1]
    assert [one.num_nodes for one in explanations] == [7, 1, 5]
    assert [one.predicted for one in explanations] == chances.argmax(1)[[3, 1, 0]].tolist()
    assert [one.probability for one in explanations] == pytest.approx(
        chances.amax(1)[[3, 1, 0]].tolist()
    )


@every_explainer
def test_a_model_that_reads_no_edge_finds_none_important(explainer):
    method = fitted()
    with torch.no_grad():
        for parameter in method.network_.parameters():
            parameter.zero_()
    explanations = explain(method, some_graphs(), [0, 1], explainer=explainer, epochs=3)
    assert not any(one.importance.any() for one in explanations)
    assert [one.kept() for one in explanations] == [frozenset(), frozenset()]


@pytest.mark.parametrize("loss", ["softmax", "binary"])
def test_integrated_gradients_add_up_to_the_change_of_the_log_odds(loss):
    classes = 2 if loss == "binary" else 3
    method, graph = fitted(classes=classes, loss=loss, degree=False), some_graphs()[3]
    network = method.network_
    x, edges = graph.x, graph.edge_index
    none = torch.zeros(len(x), dtype=torch.long)
    slopes = _slopes(network, x, edges, (torch.arange(200) + 0.5) / 200)

    def chance(gate):
        with torch.no_grad():
            return method.answers(network(x, edges, none, 1, gate=gate))[0]

    opened = chance(torch.ones(edges.shape[1]))
    closed = chance(torch.zeros(edges.shape[1]))
    change = (opened.logit() - closed.logit())[opened.argmax()]
    assert abs(float(change)) > 0.01
    assert float(slopes.sum()) == pytest.approx(float(change), abs=1e-4)


def test_pygs_masks_become_gates():
    network, graph = fitted(degree=False).network_, some_graphs()[0]
    x, edges = graph.x, graph.edge_index
    model, none = Masked(network), torch.zeros(5, dtype=torch.long)
    mask = torch.randn(edges.shape[1])
    for sigmoid, gate in ((False, mask), (True, mask.sigmoid())):
        set_masks(model, mask, edges, apply_sigmoid=sigmoid)
        assert torch.equal(model(x, edges), network(x, edges, none, 1, gate=gate))
    clear_masks(model)
    assert torch.equal(model(x, edges), network(x, edges, none, 1))


def test_graphs_that_have_an_edge():
    data = collated(some_graphs())
    mask = torch.tensor([True, True, False, True])
    assert with_edges(data, mask).tolist() == [0, 3]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"explainer": "magic"}, "'explainer'"),
        ({"epochs": 0}, "'epochs'"),
        ({"seed": -1}, "'seed'"),
        ({"graphs": [4]}, "ids of graphs"),
        ({"method": MLPBaseline()}, "whole graphs"),
        ({"method": GraphBaseline()}, "not been fitted"),
    ],
)
def test_what_makes_no_sense_is_refused(change, words):
    asked = {"method": fitted(), "graphs": [0], **change}
    with pytest.raises(InvalidInputError, match=words):
        explain(asked.pop("method"), some_graphs(), asked.pop("graphs"), **asked)


# --- agreement ------------------------------------------------------------------------------------


def test_iou_by_hand():
    a, b = frozenset({(0, 1), (1, 2)}), frozenset({(1, 2), (2, 3), (3, 4)})
    assert iou(a, b) == 1 / 4
    assert iou(a, a) == 1
    assert iou(a, frozenset()) == 0
    assert iou(frozenset(), frozenset()) == 1


@pytest.mark.parametrize("edges", range(6))
def test_iou_by_chance_is_the_mean_over_all_sets(edges):
    for one in range(edges + 1):
        for other in range(edges + 1):
            every = [
                iou(frozenset((e, e) for e in a), frozenset((e, e) for e in b))
                for a in combinations(range(edges), one)
                for b in combinations(range(edges), other)
            ]
            assert iou_by_chance(edges, one, other) == pytest.approx(sum(every) / len(every))


def explanation_of(*importance, graph=0, predicted=0):
    """An explanation of a path, an importance for each edge."""
    edges = torch.stack([torch.arange(len(importance)), torch.arange(1, len(importance) + 1)])
    return Explanation(
        graph=graph,
        num_nodes=len(importance) + 1,
        edge_index=torch.cat([edges, edges.flip(0)], 1),
        importance=torch.tensor(importance * 2, dtype=torch.float64),
        predicted=predicted,
        probability=0.5,
    )


def test_agreement_by_hand():
    private = [explanation_of(0.2, 0.1, 0.9, 0.0), explanation_of(1.0, 0.3, graph=7, predicted=1)]
    in_the_open = [explanation_of(0.5, 0.5, 0.1, 0.1), explanation_of(0.0, 0.0, graph=7)]
    compared = agreement(private, in_the_open, again=private)
    first, second = compared.ious
    assert (first.original_private, first.original_open) == (2 / 4, 2 / 4)
    assert first.private_open == first.again == 1 / 3  # edge 0, which reaches the threshold
    assert (second.original_private, second.original_open, second.private_open) == (1, 0, 0)
    assert (first.same_class, second.same_class) == (1, 0)
    assert compared.mean.private_open == pytest.approx(1 / 6)
    assert compared.mean.same_class == 1 / 2
    assert compared.mean_same_class == first
    assert agreement(private[1:], in_the_open[1:]).mean_same_class is None
    assert agreement(private, in_the_open).mean.again is None
    assert agreement(private, in_the_open, threshold=0.6).ious[0].private_open == 0


def test_explanations_of_other_graphs_are_refused():
    for one, other in (
        ([explanation_of(0.5)], [explanation_of(0.5, graph=1)]),
        ([explanation_of(0.5)], [explanation_of(0.5, 0.5)]),
        ([explanation_of(0.5)], []),
        ([], []),
    ):
        with pytest.raises(InvalidInputError, match="same graphs"):
            agreement(one, other)
    with pytest.raises(InvalidInputError, match="'threshold'"):
        agreement([explanation_of(0.5)], [explanation_of(0.5)], threshold=2)


def test_explaining_leaves_pygs_own_layers_as_they_were():
    before = pyg.MessagePassing.propagate
    graph = some_graphs()[0]
    explain(fitted(), [graph], [0], epochs=1)
    assert pyg.MessagePassing.propagate is before
    assert pyg.GraphConv(2, 3)(graph.x, graph.edge_index).shape == (len(graph.x), 3)


def test_a_model_of_counts_is_refused_with_a_way_out():
    edge = torch.tensor([[0, 1], [1, 0]])
    listed = [Data(x=torch.ones(3, 1), edge_index=edge, y=torch.tensor([n % 2])) for n in range(12)]
    data = split(collated(listed, num_classes=2), (0.5, 0.25, 0.25), seed=0)
    method = GraphBaseline(steps=2).fit(data)
    with pytest.raises(InvalidInputError, match="conv='sum'"):
        explain(method, data, [0])
