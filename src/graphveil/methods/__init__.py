"""One file a method; METHODS is the table of contents."""

from graphveil.methods.base import Facts, Method, Plan
from graphveil.methods.baselines import GNNBaseline, MLPBaseline
from graphveil.methods.dp_gnn import DPGNN
from graphveil.methods.dpar import DPAR
from graphveil.methods.gap import GAP
from graphveil.methods.graph_dpsgd import GraphBaseline, GraphDPSGD
from graphveil.methods.graph_split import GraphSplit
from graphveil.methods.late_graph import DPMLP, LateGraph

METHODS: dict[str, type[Method]] = {
    "dp-gnn": DPGNN,
    "late-graph": LateGraph,
    "dp-mlp": DPMLP,
    "gap": GAP,
    "dpar": DPAR,
    "graph-split": GraphSplit,
    "graph-dpsgd": GraphDPSGD,
    "mlp": MLPBaseline,
    "gnn": GNNBaseline,
    "graph-gnn": GraphBaseline,
}

__all__ = [
    "DPAR",
    "DPGNN",
    "DPMLP",
    "GAP",
    "METHODS",
    "Facts",
    "GNNBaseline",
    "GraphBaseline",
    "GraphDPSGD",
    "GraphSplit",
    "LateGraph",
    "MLPBaseline",
    "Method",
    "Plan",
]
