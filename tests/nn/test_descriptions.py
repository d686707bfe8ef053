"""Descriptions: the same counts, weights and refusals as the modules they build, without torch."""

import subprocess
import sys
from itertools import product

import pytest
import torch

from graphveil._errors import GraphveilError
from graphveil.graph.aggregation import _WEIGHT_OF_COSINE
from graphveil.graph.choices import SIMILARITIES
from graphveil.nn import convs, mlp
from graphveil.nn.descriptions import (
    ACTIVATIONS,
    COMBINATIONS,
    CONVS,
    MESSAGES,
    GraphNetwork,
    HopNetwork,
    NodeNetwork,
)
from graphveil.nn.gap import SumHead
from graphveil.nn.graph_classifier import GraphClassifier
from graphveil.nn.node_classifier import NodeClassifier

ENDS = {"in_channels": 5, "hidden_channels": 6, "out_channels": 3}
NODE = [
    {"conv": conv, "num_layers": layers, "encoder_layers": before, "decoder_layers": after, **more}
    for conv, layers, before, after in product(CONVS, (0, 1, 2), (0, 1, 3), (0, 1, 2))
    for more in ({}, {"norm": "layer", "heads": 3}, {"heads": 2, "attention": "dot"})
    if layers or before or after
]
GRAPH = [
    {"conv": conv, "norm": norm, "head_layers": head, **more}
    for conv, norm, head in product(CONVS, (None, "instance"), (1, 2, 3))
    for more in (
        {},
        {"num_layers": 0},
        {"num_layers": 3, "heads": 2, "attention": "dot"},
        {"hidden_channels": [4, 8], "head_channels": 7, "heads": 4, "pool": "sum"},
    )
] + [
    {"norm": norm, "norm_first": True, "head_channels": widths, "num_layers": layers}
    for norm, widths, layers in product((None, "instance"), ([], [7], [8, 7, 4]), (0, 2))
]
HOP = [
    {"messages": messages, "hops": hops, "encoders": encoders, "encoder_layers": layers,
     "combine": combine, "attention": attention, "public_features": public, "dropout": 0.4}
    for messages, hops, encoders, layers, combine, attention, public in product(
        MESSAGES, (1, 3), (0, 1, 5), (1, 2), COMBINATIONS, (False, True), (False, True)
    )
    if encoders or messages == "label"
]  # fmt: skip
KINDS = {NodeNetwork: NODE, GraphNetwork: GRAPH, HopNetwork: HOP}
CLASSES = {NodeNetwork: NodeClassifier, GraphNetwork: GraphClassifier}


def count(module):
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize("kind", KINDS)
def test_parameters_are_counted_without_torch(kind):
    for settings in KINDS[kind]:
        description = kind(**{**ENDS, **settings})
        assert description.num_parameters == count(description.build()), settings


@pytest.mark.parametrize("kind", CLASSES)
def test_a_description_builds_the_module_of_its_settings(kind):
    for settings in KINDS[kind][::7]:
        torch.manual_seed(3)
        built = kind(**{**ENDS, **settings}).build()
        torch.manual_seed(3)
        module = CLASSES[kind](**{**ENDS, **settings})
        assert repr(built) == repr(module)
        assert all(map(torch.equal, built.state_dict().values(), module.state_dict().values()))


@pytest.mark.parametrize(
    ("settings", "modules"),
    [
        ({"messages": "encoding"}, ["HopHead"]),
        ({"messages": "label", "encoders": 0}, ["MLP"]),
        ({"messages": "evidence"}, ["ResidualHead"]),
        ({"messages": "evidence", "public_features": True}, ["ResidualHead", "SumHead"]),
        ({"messages": "encoding", "public_features": True}, ["HopHead"]),
    ],
)
def test_heads_follow_what_was_summed(settings, modules):
    network = HopNetwork(**ENDS, **settings, attention=True, hops=2, dropout=0.5).build()
    assert [type(head).__name__ for head in network.heads] == modules
    assert len(network.attention) == 2
    drops = [layer.p for layer in network.modules() if hasattr(layer, "p")]
    assert any(drops) == settings.get("public_features", False)
    assert not any(isinstance(head, SumHead) for head in network.heads[:1])


WRONG = [
    *(
        (kind, {name: wrong})
        for kind in CLASSES
        for name, wrong in (
            ("hidden_channels", 0), ("hidden_channels", 2.5),
            ("out_channels", -1), ("conv", "cheb"), ("num_layers", -1), ("activation", "sine"),
            ("dropout", 1.0), ("norm", "batch"),
        )
    ),
    *(
        (kind, {"conv": conv, name: wrong, "num_layers": 1})
        for kind in CLASSES
        for conv, name, wrong in (
            ("gat", "heads", 0), ("gat", "heads", 4), ("gat", "attention", "loud"),
            ("sage", "aggregation", "median"), ("sum", "scale", 0.0),
        )
    ),
    (NodeNetwork, {"in_channels": 0}),
    (NodeNetwork, {"encoder_layers": -1}),
    (NodeNetwork, {"decoder_layers": 1.5}),
    (NodeNetwork, {"encoder_layers": 0, "num_layers": 0, "decoder_layers": 0}),
    (GraphNetwork, {"pool": "median"}),
    (GraphNetwork, {"head_layers": 0}),
    (GraphNetwork, {"head_channels": 0}),
    (GraphNetwork, {"head_channels": [4, 0]}),
    (GraphNetwork, {"head_channels": [4, 4], "head_layers": 2}),
    (GraphNetwork, {"normalisation": "softmax"}),
    (GraphNetwork, {"hidden_channels": [4, 4], "num_layers": 3}),
    (GraphNetwork, {"hidden_channels": [4, 0]}),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "settings"), WRONG)
def test_a_description_refuses_what_its_module_refuses(kind, settings):
    refusals = []
    for make in (kind, CLASSES[kind]):
        with pytest.raises(GraphveilError) as refusal:
            make(**{**ENDS, **settings})
        refusals.append((refusal.type, str(refusal.value)))
    assert refusals[0] == refusals[1]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"messages": "gossip"}, "'messages'"),
        ({"combine": "sum"}, "'combine'"),
        ({"hops": 0}, "'hops'"),
        ({"encoder_layers": 0}, "'encoder_layers'"),
        ({"encoders": 0}, "'encoders' parameter must be at least 1 for messages 'encoding'"),
        ({"hidden_channels": 0}, "'hidden_channels'"),
        ({"in_channels": 0}, "'in_channels'"),
        ({"out_channels": 0}, "'out_channels'"),
        ({"activation": "sine"}, "'activation'"),
        ({"dropout": 1.0}, "'dropout'"),
    ],
)
def test_hops_that_make_no_sense_are_refused(settings, words):
    with pytest.raises(GraphveilError, match=words):
        HopNetwork(**{**ENDS, **settings})


def test_every_name_has_what_it_names():
    assert tuple(mlp.FUNCTIONS) == ACTIVATIONS
    assert tuple(convs.CLASSES) == CONVS == tuple(convs.OPTIONS)
    assert tuple(_WEIGHT_OF_COSINE) == tuple(SIMILARITIES)


def test_counting_and_refusing_load_no_torch():
    code = """
import sys
from graphveil.graph.choices import CAPS, NORMALISATIONS, RANKINGS, SIMILARITIES
from graphveil.graph.influence import influence, sensitivity
from graphveil.graph.private_rows import PrivateRows
from graphveil.mechanisms import Gaussian
from graphveil.nn.descriptions import GraphNetwork, HopNetwork, NodeNetwork
ends = {"in_channels": 5, "hidden_channels": 6, "out_channels": 3}
print(*(kind(**ends).num_parameters > 0 for kind in (NodeNetwork, GraphNetwork, HopNetwork)))
try:
    NodeNetwork(**ends, conv="cheb")
except ValueError as refusal:
    print(refusal)
assert "torch" not in sys.modules, "torch was loaded"
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    counted, refusal = done.stdout.splitlines()
    assert counted == "True True True"
    assert refusal.startswith("The 'conv' parameter must be one of 'gcn'")
