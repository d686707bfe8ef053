"""Curves: training goes its way, and what is seen is the loss of the weights at that step."""

import dataclasses

import pytest
import torch
from torch.nn import functional as F

from graphveil import split
from graphveil._errors import InvalidInputError
from graphveil.bench import loss_curves
from graphveil.data.synthetic import erdos_renyi, social_network
from graphveil.methods import METHODS
from graphveil.runs import Arranged, Source

DATA = split(erdos_renyi(10, num_graphs=60), seed=0)
ARRANGED = Arranged(training=DATA, testing=DATA, mode=None, split="transductive")


def test_every_look_is_at_the_weights_of_that_step():
    method = METHODS["graph-gnn"](steps=12, hidden_channels=4)
    (curve,) = loss_curves(ARRANGED, [method], ["open"], every=4)
    assert curve.label == "open"
    assert curve.steps == (0, 4, 8, 12)
    first = METHODS["graph-gnn"](steps=12, hidden_channels=4)
    network = first.build(method.plan_.facts)
    graphs = first.graphs(DATA)
    with torch.no_grad():
        (batch,) = graphs.batches(torch.arange(60))
        logits = network.eval()(*batch[:-1])[DATA.test_mask]
    assert curve.loss[0] == pytest.approx(float(F.cross_entropy(logits, DATA.y[DATA.test_mask])))


def test_looking_changes_nothing_about_the_run():
    settings = {"steps": 6, "hidden_channels": 4}
    seen, plain = METHODS["graph-gnn"](**settings), METHODS["graph-gnn"](**settings).fit(DATA)
    loss_curves(ARRANGED, [seen], every=1)
    for name, value in plain.network_.state_dict().items():
        assert torch.equal(value, seen.network_.state_dict()[name])
    private = METHODS["graph-dpsgd"](epsilon=8.0, **settings)
    (curve,) = loss_curves(ARRANGED, [private], every=2)
    assert curve.steps == (0, 2, 4, 6)
    assert private.certificate_ == private.plan_.certificate()


def test_what_has_no_one_network_or_no_test_record_is_refused():
    nodes = social_network(num_nodes=60, num_classes=3, num_features=5, seed=1)
    graph = Source(data="memory").arrange(nodes)
    with pytest.raises(InvalidInputError, match="one network"):
        loss_curves(graph, [METHODS["gap"](epsilon=8.0)])
    nobody = dataclasses.replace(ARRANGED, testing=DATA.clone())
    nobody.testing.test_mask = torch.zeros_like(DATA.test_mask)
    with pytest.raises(InvalidInputError, match="test_mask"):
        loss_curves(nobody, [METHODS["graph-gnn"]()])
    with pytest.raises(InvalidInputError, match="every"):
        loss_curves(ARRANGED, [METHODS["graph-gnn"]()], every=0)
