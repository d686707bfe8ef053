"""The last hidden state of every method that has one."""

import pytest
import torch

from graphveil._errors import InvalidInputError
from graphveil.bench.hidden import hidden_states
from graphveil.data.synthetic import erdos_renyi, social_network
from graphveil.graph.splits import split
from graphveil.methods import METHODS

BUDGET = {"epsilon": 20.0, "delta": 1e-4}
NODES = split(social_network(120, 3, 8))


@pytest.mark.parametrize("name", ["mlp", "gnn", "dp-gnn", "late-graph", "gap", "graph-split"])
def test_every_node_has_a_row_that_leads_to_its_class(name):
    kind = METHODS[name]
    hidden = {"num_layers": 2} if name == "late-graph" else {}
    method = kind(steps=2, **hidden, **(BUDGET if kind.private else {}))
    method.fit(NODES)
    before = method.infer(NODES)
    states = hidden_states(method, NODES)
    assert len(states) == 120
    assert states.shape[1] not in (8, 3)
    assert torch.equal(method.infer(NODES), before)  # nothing stays hooked


def test_of_an_mlp_they_are_what_the_last_layer_reads():
    method = METHODS["mlp"](steps=2)
    method.fit(NODES)
    last = [part for part in method.network_.modules() if isinstance(part, torch.nn.Linear)][-1]
    logits = last(hidden_states(method, NODES))
    assert torch.allclose(logits.softmax(1).float(), method.infer(NODES).float(), atol=1e-6)


def test_of_graphs_there_is_one_for_each():
    graphs = erdos_renyi(10, num_graphs=60)
    method = METHODS["graph-gnn"](steps=2)
    method.fit(graphs)
    assert len(hidden_states(method, graphs)) == 60


def test_a_network_of_one_layer_has_none():
    method = METHODS["dpar"](steps=2, **BUDGET)
    method.fit(NODES)
    with pytest.raises(InvalidInputError, match="hidden layer"):
        hidden_states(method, NODES)
