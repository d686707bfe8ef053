"""One file a method; METHODS is the table of contents."""

from graphveil.methods.base import Facts, Method, Plan
from graphveil.methods.baselines import GNNBaseline, MLPBaseline
from graphveil.methods.dp_gnn import DPGNN
from graphveil.methods.dpar import DPAR
from graphveil.methods.gap import GAP
from graphveil.methods.graph_split import GraphSplit
from graphveil.methods.late_graph import DPMLP, LateGraph

METHODS: dict[str, type[Method]] = {
    "dp-gnn": DPGNN,
    "late-graph": LateGraph,
    "dp-mlp": DPMLP,
    "gap": GAP,
    "dpar": DPAR,
    "graph-split": GraphSplit,
    "mlp": MLPBaseline,
    "gnn": GNNBaseline,
}

__all__ = [
    "DPAR",
    "DPGNN",
    "DPMLP",
    "GAP",
    "METHODS",
    "Facts",
    "GNNBaseline",
    "GraphSplit",
    "LateGraph",
    "MLPBaseline",
    "Method",
    "Plan",
]
