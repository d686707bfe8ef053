"""Many graphs as one ``Data``, and back again.

Whole graphs as records are one PyG ``Data``, laid out as PyG's batches are:

========== =============================================================================
x          (nodes, features), float32: the nodes of all graphs
edge_index (2, edges): edges inside a graph only
batch      (nodes,): the graph of each node, in any order
num_graphs how many graphs; one may have no node
y          (graphs,): a class from 0, negative for unlabelled
perhaps    edge_attr (edges, columns), pos (nodes, 2), num_classes, class_names, the masks (graphs,)
========== =============================================================================

    data = collate(TUDataset("data", "MUTAG"))     # or any list of Data
    graphs = uncollate(data)
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.utils import coalesce, to_undirected

from graphveil import _validate
from graphveil._errors import InvalidInputError
from graphveil.graph.checks import (
    OF_ALL,
    check,
    check_edge_index,
    has,
    refusal,
    task_of,
    tensor_of,
)
from graphveil.graph.subsets import OF_EDGES, OF_NODES


def collate(
    graphs: Iterable[Data], *, num_classes: int | None = None, undirected: bool = False
) -> Data:
    """A list of graphs, or a PyG data set of them, as one ``Data``.

    Taken from each: ``x``, ``edge_index``, ``edge_attr``, ``pos``, ``y`` and ``owner``, the number
    of whose it is; the rest is left behind. ``x``, ``edge_attr``, ``pos`` and ``owner`` are in all
    graphs or in none. Where no graph has ``x``, each node gets a 1. ``y`` is one class, or what the
    ``task`` of the first graph says; without it a graph is unlabelled. Edges are taken as they are
    unless ``undirected``, which adds the other direction where it is missing. A ``Data`` that is
    many graphs already comes back as it is.

    *Guarantee*: none needed; each graph's rows are its own.
    """
    if isinstance(graphs, Data):
        return check(graphs, labels=False, masks=False, record="graph")
    listed = _as_list(graphs)
    parts = []
    for number, graph in enumerate(listed):
        try:
            parts.append(_take(graph, listed[0]))
        except InvalidInputError as error:
            raise InvalidInputError(f"In graph {number}: {error}") from None

    sizes = torch.tensor([part["num_nodes"] for part in parts])
    starts = torch.cumsum(sizes, dim=0) - sizes
    data = Data()
    for name in (*OF_NODES, *OF_EDGES):
        if name in parts[0]:
            data[name] = torch.cat([part[name] for part in parts])
    edges = [part["edge_index"] + start for part, start in zip(parts, starts.tolist(), strict=True)]
    data.edge_index = torch.cat(edges, dim=1)
    data.batch = torch.repeat_interleave(torch.arange(len(parts)), sizes)
    data.num_graphs = len(parts)
    if (y := _join_labels([part["y"] for part in parts])) is not None:
        data.y = y
    _put_stated(data, listed)
    if num_classes is not None:
        data.num_classes = _validate.integer("num_classes", num_classes, "[1, 1e6]")
    data = merge_edges(data, mirror=True) if undirected else data
    return check(data, labels=False, masks=False)


def merge_edges(data: Data, *, mirror: bool) -> Data:
    """A copy of ``data`` with each edge once; attributes of doubles are averaged.

    ``mirror`` adds the other direction of each edge first.

    *Guarantee*: none needed; an edge is doubled for itself.
    """
    result, merge = copy.copy(data), to_undirected if mirror else coalesce
    how: dict[str, Any] = {"num_nodes": len(data.x), "reduce": "mean"}
    if "edge_attr" in data:
        result.edge_index, result.edge_attr = merge(data.edge_index, data.edge_attr, **how)
    else:
        result.edge_index = merge(data.edge_index, **how)
    return result


def uncollate(data: Data) -> list[Data]:
    """The graphs of ``data``, each a ``Data`` with nodes from 0; what :func:`collate` takes.

    ``y`` is a tensor of one label. Nodes and edges stay in order within a graph.

    *Guarantee*: none needed.
    """
    check(data, labels=False, masks=False, record="graph")
    sizes = torch.bincount(data.batch, minlength=data.num_graphs)
    by_graph = torch.argsort(data.batch, stable=True)
    starts = torch.repeat_interleave(torch.cumsum(sizes, dim=0) - sizes, sizes)
    place = torch.empty_like(by_graph)
    place[by_graph] = torch.arange(len(by_graph)) - starts
    graph_of = data.batch[data.edge_index[1]]
    edge_sizes = torch.bincount(graph_of, minlength=data.num_graphs)
    edge_order = torch.argsort(graph_of, stable=True)

    columns: dict[str, tuple[Tensor, ...]] = {
        "edge_index": place[data.edge_index[:, edge_order]].split(edge_sizes.tolist(), dim=1)
    }
    for names, order, counts in ((OF_NODES, by_graph, sizes), (OF_EDGES, edge_order, edge_sizes)):
        for name in names:
            if name in data:
                columns[name] = data[name][order].split(counts.tolist())
    if "y" in data:
        columns["y"] = data.y.split(1)
    graphs = [
        Data.from_dict({name: values[number] for name, values in columns.items()})
        for number in range(data.num_graphs)
    ]
    for number, graph in enumerate(graphs):
        for name in OF_ALL:
            if name in data:
                graph[name] = data[name]
        if has(data, "owner"):
            graph.owner = data.owner[number]
    return graphs


def _as_list(graphs: Any) -> list[Data]:
    try:
        listed = list(graphs)
    except TypeError:
        raise InvalidInputError(
            "The 'graphs' parameter must be a list of torch_geometric.data.Data. Got "
            f"{type(graphs).__name__} instead; put each graph into a Data."
        ) from None
    if not listed:
        raise InvalidInputError("The 'graphs' parameter must have a graph. Got none instead.")
    for number, graph in enumerate(listed):
        if not isinstance(graph, Data) or has(graph, "batch"):
            got = "many graphs in one" if isinstance(graph, Data) else type(graph).__name__
            raise InvalidInputError(
                "The 'graphs' parameter must be a list of torch_geometric.data.Data, each one "
                f"graph. Got {got} at {number} instead; convert it, or leave it out."
            )
    return listed


def _take(graph: Data, first: Data) -> dict[str, Any]:
    """What is taken from one graph, of the kinds that the ``first`` has."""
    size = _num_nodes(graph)
    part: dict[str, Any] = {"num_nodes": size, "y": _label(graph)}
    for name in (*OF_NODES, *OF_EDGES):
        if has(graph, name) != has(first, name):
            got = "it in graph 0 alone" if has(first, name) else "it here, but not in graph 0"
            raise refusal(name, "in all graphs or in none", got, "fill it in or leave it out")
    edges = torch.empty(2, 0, dtype=torch.long)
    if has(graph, "edge_index"):
        edges = tensor_of(graph, "edge_index", "a long tensor (2, edges)", "convert it")
        check_edge_index(edges, size)
    part["edge_index"] = edges.cpu()
    part["x"] = _rows(graph.x, "x", size) if has(graph, "x") else torch.ones(size, 1)
    for name, rows in (("pos", size), ("edge_attr", edges.shape[1])):
        if has(graph, name):
            part[name] = _rows(graph[name], name, rows)
    for name in (*OF_NODES, *OF_EDGES):
        if has(first, name) and part[name].shape[1] != (wide := _width(first[name])):
            got = f"{part[name].shape[1]} columns"
            raise refusal(name, f"as wide as in graph 0, {wide} columns", got, "make them alike")
    return part


def _num_nodes(graph: Data) -> int:
    for name in OF_NODES:
        if has(graph, name) and isinstance(graph[name], Tensor) and graph[name].dim():
            return len(graph[name])
    if "num_nodes" in graph and graph["num_nodes"] is not None:
        return _validate.integer("num_nodes", graph["num_nodes"], "[0, 1e9]")
    way_out = "without features, set num_nodes: edges do not tell of nodes that have none"
    raise refusal("x", "there, a float tensor (nodes, features)", "nothing", way_out)


def _rows(value: Any, name: str, rows: int) -> Tensor:
    """One float32 row for each node or edge; edge attributes may be whole numbers, or one each."""
    if not isinstance(value, Tensor):
        raise refusal(name, "a tensor", type(value).__name__, "convert it with torch.as_tensor")
    if name != "x":
        value = value.float()
    if not value.is_floating_point():
        way_out = "convert it with x.float(), or make columns of 0 and 1 by a public list of codes"
        raise refusal(name, "a float tensor", str(value.dtype), way_out)
    if name == "edge_attr" and value.dim() == 1:
        value = value.unsqueeze(1)
    if value.dim() != 2 or len(value) != rows:
        got = f"shape {tuple(value.shape)}"
        raise refusal(name, f"of shape ({rows}, columns)", got, "give each its row")
    return value.detach().cpu().float()


def _width(value: Tensor) -> int:
    return value.shape[1] if value.dim() > 1 else 1


def _label(graph: Data) -> Tensor | None:
    """One class, one value, or for every label 0 or 1, by the task that the graph states."""
    if not has(graph, "y"):
        return None
    y, task = graph["y"], task_of(graph)
    y = torch.tensor(y) if isinstance(y, (int, float)) else y
    got = f"{y.dtype} of shape {tuple(y.shape)}" if isinstance(y, Tensor) else repr(y)
    if task == "multilabel":
        if not isinstance(y, Tensor) or y.is_floating_point() or y.is_complex():
            raise refusal("y", "0 or 1 for every label", got, "convert it with y.long()")
        return y.flatten().long()
    number = isinstance(y, Tensor) and y.numel() == 1 and not y.is_complex()
    if task == "regression":
        if not number:
            raise refusal("y", "one number", got, "leave y out where it is unknown")
        return y.flatten()[0].float()
    if not number or y.is_floating_point():
        way_out = "a graph has one class, from 0; leave y out where it is unknown, or state a task"
        raise refusal("y", "one whole number", got, way_out)
    return y.flatten()[0].long()


def _put_stated(data: Data, graphs: list[Data]) -> None:
    """Give ``data`` what the first graph states of all, and whose each graph is."""
    for name in ("task", "value_range", "owner_name", "owner_rows"):
        if has(graphs[0], name):
            data[name] = graphs[0][name]
    if any(has(graph, "owner") for graph in graphs):
        data.owner = torch.stack([_owner(graph) for graph in graphs])


def _owner(graph: Data) -> Tensor:
    """The number of whose a graph is."""
    owner = torch.as_tensor(graph["owner"]) if has(graph, "owner") else torch.empty(0)
    if owner.numel() != 1 or owner.is_floating_point() or owner.is_complex():
        got = f"{owner.dtype} of shape {tuple(owner.shape)}" if has(graph, "owner") else "nothing"
        raise refusal("owner", "one whole number, in all graphs or in none", got, "correct it")
    return owner.flatten()[0].long()


def _join_labels(labels: list[Tensor | None]) -> Tensor | None:
    """The labels of all graphs; who has none gets what means so. None if nobody has one."""
    known = next((label for label in labels if label is not None), None)
    if known is None:
        return None
    nothing = torch.full_like(known, float("nan") if known.is_floating_point() else -1)
    full = [nothing if label is None else label for label in labels]
    if len({(label.shape, label.dtype) for label in full}) > 1:
        way_out = "give every graph as many labels, or state one task for all"
        raise refusal("y", "of one shape in all graphs", "several", way_out)
    return torch.stack(full)
