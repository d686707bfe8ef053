"""MLP, GCN, SAGE, GIN, GAT and sum convolutions, over rooted neighbourhoods and over graphs.

Ordinary modules. Every parameter lives in a layer whose per-example gradients
:mod:`graphveil.grads` can read, and every architecture is local: a loss term reads its own
neighbourhood, or its own graph, and nothing else. :mod:`graphveil.nn.descriptions` has the same
networks as data. Names load on first use, so that the descriptions do without torch.
"""

from typing import TYPE_CHECKING

from graphveil._lazy import lazy_names

if TYPE_CHECKING:
    from graphveil.nn.convs import GAT, GCN, GIN, SAGE, Conv, Sum
    from graphveil.nn.descriptions import ACTIVATIONS, CONVS, GraphNetwork, HopNetwork, NodeNetwork
    from graphveil.nn.graph_classifier import GraphClassifier, InstanceNorm
    from graphveil.nn.mlp import MLP
    from graphveil.nn.node_classifier import NodeClassifier

__all__ = [
    "ACTIVATIONS", "CONVS", "GAT", "GCN", "GIN", "MLP", "SAGE", "Conv", "GraphClassifier",
    "GraphNetwork", "HopNetwork", "InstanceNorm", "NodeClassifier", "NodeNetwork", "Sum",
]  # fmt: skip

_NAMES_OF = {
    "graphveil.nn.convs": "GAT GCN GIN SAGE Conv Sum",
    "graphveil.nn.descriptions": "ACTIVATIONS CONVS GraphNetwork HopNetwork NodeNetwork",
    "graphveil.nn.graph_classifier": "GraphClassifier InstanceNorm",
    "graphveil.nn.mlp": "MLP",
    "graphveil.nn.node_classifier": "NodeClassifier",
}
__getattr__, __dir__ = lazy_names(globals(), _NAMES_OF)
