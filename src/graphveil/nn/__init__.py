"""MLP, GCN, SAGE, GIN, GAT and sum convolutions, over rooted neighbourhoods and over graphs.

Ordinary modules. Every parameter lives in a layer whose per-example gradients
:mod:`graphveil.grads` can read, and every architecture is local: a loss term reads its own
neighbourhood, or its own graph, and nothing else.
"""

from graphveil.nn.batched import GraphClassifier, InstanceNorm
from graphveil.nn.convs import CONVS, GAT, GCN, GIN, SAGE, Conv, Sum, make_conv
from graphveil.nn.mlp import ACTIVATIONS, MLP
from graphveil.nn.rooted import RootedGNN

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
    "RootedGNN",
    "Sum",
    "make_conv",
]
