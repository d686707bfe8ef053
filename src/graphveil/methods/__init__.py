"""One file a method; METHODS is the table of contents.

Nothing here imports torch: a plan is made of numbers. What computes on tensors is imported when it
first runs.
"""

from graphveil.methods.base import Method
from graphveil.methods.baselines import GNNBaseline, MLPBaseline
from graphveil.methods.dp_gnn import DPGNN
from graphveil.methods.dp_link import DPLink
from graphveil.methods.dpar import DPAR
from graphveil.methods.gap import GAP
from graphveil.methods.graph_baseline import GraphBaseline
from graphveil.methods.graph_dpsgd import GraphDPSGD
from graphveil.methods.graph_split import GraphSplit
from graphveil.methods.late_graph import DPMLP, LateGraph
from graphveil.methods.open_dpar import OpenDPAR
from graphveil.methods.open_gap import OpenGAP
from graphveil.methods.open_link import OpenLink
from graphveil.methods.plan import Facts, Plan
from graphveil.methods.popularity import DPPopularity, ItemItem, Popularity

METHODS: dict[str, type[Method]] = {
    kind.name: kind
    for kind in (
        DPGNN,
        LateGraph,
        GAP,
        DPAR,
        GraphSplit,
        DPMLP,
        GraphDPSGD,
        MLPBaseline,
        GNNBaseline,
        OpenGAP,
        GraphBaseline,
        OpenDPAR,
        DPLink,
        DPPopularity,
        OpenLink,
        Popularity,
        ItemItem,
    )
}

__all__ = [
    "DPAR",
    "DPGNN",
    "DPMLP",
    "GAP",
    "METHODS",
    "DPLink",
    "DPPopularity",
    "Facts",
    "GNNBaseline",
    "GraphBaseline",
    "GraphDPSGD",
    "GraphSplit",
    "ItemItem",
    "LateGraph",
    "MLPBaseline",
    "Method",
    "OpenDPAR",
    "OpenGAP",
    "OpenLink",
    "Plan",
    "Popularity",
]
