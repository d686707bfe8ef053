"""Is this set of graphs fit to train on? What :func:`graphveil.graph.checks.check` asks of many."""

from __future__ import annotations

import torch
from torch_geometric.data import Data

from graphveil import _validate
from graphveil.graph.checks import has, num_records, refusal, shape_of, tensor_of


def check_graphs(data: Data, num_nodes: int) -> None:
    """``batch``, that edges stay inside a graph, and what else a set of graphs may carry."""
    number = _validate.integer("num_graphs", num_records(data), "[1, 1e9]")
    way_out = "say of each node which graph it is in"
    batch = tensor_of(data, "batch", "a long tensor (nodes,)", way_out)
    if batch.dtype != torch.long:
        raise refusal("batch", "a long tensor", str(batch.dtype), "convert it with batch.long()")
    if batch.shape != (num_nodes,):
        raise refusal("batch", f"of shape ({num_nodes},)", shape_of(batch), way_out)
    outside = ((batch < 0) | (batch >= number)).nonzero()
    if len(outside):
        node = int(outside[0])
        got = f"{int(batch[node])} at node {node}"
        way_out = "number the graphs from 0, or correct num_graphs"
        raise refusal("batch", f"made of graphs from 0 to {number - 1}", got, way_out)
    graph_of = batch[data["edge_index"]]
    between = (graph_of[0] != graph_of[1]).nonzero()
    if len(between):
        source, target = data["edge_index"][:, int(between[0])].tolist()
        one, other = graph_of[:, int(between[0])].tolist()
        got = f"the edge {source} -> {target} from graph {one} to {other} ({len(between)} such)"
        way_out = "add the number of earlier nodes to each graph's edges"
        raise refusal("edge_index", "inside one graph everywhere", got, way_out)
    for name, rows, of in (("edge_attr", len(graph_of[0]), "edge"), ("pos", num_nodes, "node")):
        if has(data, name):
            _rows(data, name, rows, of)


def _rows(data: Data, name: str, rows: int, of: str) -> None:
    way_out = f"give every {of} a row, or leave it out"
    value = tensor_of(data, name, f"a float tensor ({of}s, columns)", way_out)
    if not value.is_floating_point():
        raise refusal(name, "a float tensor", str(value.dtype), f"convert it with {name}.float()")
    if value.dim() != 2 or len(value) != rows:
        raise refusal(name, f"of shape ({rows}, columns)", shape_of(value), way_out)
    bad = (~torch.isfinite(value.float())).nonzero()
    if len(bad):
        row, column = bad[0].tolist()
        got = f"{value[row, column].item()} at {of} {row}, column {column}"
        raise refusal(name, "finite everywhere", got, "fill it in or leave it out")
