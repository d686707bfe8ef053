"""MLP, GCN, SAGE, GIN, GAT and sum convolutions, over rooted neighbourhoods and over graphs.

Ordinary modules. Every parameter lives in a layer whose per-example gradients
:mod:`graphveil.grads` can read, and every architecture is local: a loss term reads its own
neighbourhood, or its own graph, and nothing else. :mod:`graphveil.nn.descriptions` has the same
networks as data. Names load on first use, so that the descriptions do without torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from graphveil.nn.convs import GAT, GCN, GIN, SAGE, Conv, Sum
    from graphveil.nn.descriptions import ACTIVATIONS, CONVS, GraphNetwork, HopNetwork, NodeNetwork
    from graphveil.nn.graph_classifier import GraphClassifier, InstanceNorm
    from graphveil.nn.mlp import MLP
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
    "GraphNetwork",
    "HopNetwork",
    "InstanceNorm",
    "NodeClassifier",
    "NodeNetwork",
    "Sum",
]

_MODULE_OF = {
    **dict.fromkeys(("GAT", "GCN", "GIN", "SAGE", "Conv", "Sum"), "convs"),
    **dict.fromkeys(
        ("ACTIVATIONS", "CONVS", "GraphNetwork", "HopNetwork", "NodeNetwork"), "descriptions"
    ),
    **dict.fromkeys(("GraphClassifier", "InstanceNorm"), "graph_classifier"),
    "MLP": "mlp",
    "NodeClassifier": "node_classifier",
}


def __getattr__(name: str) -> Any:
    """Load a public name from its module the first time it is asked for."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    globals()[name] = value  # the next look-up finds it without coming here
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULE_OF})
