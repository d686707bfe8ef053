"""MLP, GCN, SAGE, GIN, GAT and sum convolutions, over rooted neighbourhoods and over graphs.

Ordinary modules. Every parameter lives in a layer whose per-example gradients
:mod:`graphveil.grads` can read, and every architecture is local: a loss term reads its own
neighbourhood, or its own graph, and nothing else.
"""

from graphveil.nn.convs import CONVS, GAT, GCN, GIN, SAGE, Conv, Sum, make_conv
from graphveil.nn.graph_classifier import GraphClassifier, InstanceNorm
from graphveil.nn.mlp import ACTIVATIONS, MLP
from graphveil.nn.node_classifier import NodeClassifier

__all__ = [
    "ACTIVATIONS",
    "CONVS",
    "GAT",
    "GCN",
    "GIN",
    "MLP",
    "SAGE",
    "Conv",
    "GraphClassifier",
    "InstanceNorm",
    "NodeClassifier",
    "Sum",
    "make_conv",
]
