"""Data as people have it: what a method takes for a graph, and what it does not drop silently."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from graphveil._errors import InvalidInputError
from graphveil.data.class_list import Notice
from graphveil.methods.graph_models import reads_counts

if TYPE_CHECKING:
    from torch_geometric.data import Data

    from graphveil.methods.base import Method


def take_graph(method: Method, data: Any) -> Data:
    """One graph: a ``Data``, a pair of tables (nodes, edges), or a graph of NetworkX.

    Of a ``HeteroData`` that names its people these are taken, with their lists.

    A fitted method reads tables by the schema that it was trained by, and else labels as numbers of
    the classes that it knows; of others the labels say which classes there are, see
    :mod:`graphveil.data.classes`.
    """
    from torch_geometric.data import Data
    from torch_geometric.data.hetero_data import HeteroData

    if isinstance(data, HeteroData):
        from graphveil.graph.typed import flatten

        return flatten(data)
    if isinstance(data, Data) or data is None:
        return data  # the checks say what is wrong with what is no Data
    from graphveil.data.in_memory import read_memory

    if not hasattr(method, "network_"):
        return read_memory(data)
    facts, schema = method.plan_.facts, method.schema_
    names, number = method.class_names_, facts.num_classes
    classes = list(names) if names is not None else number if number > 1 else None
    if schema is not None:
        schema = schema.for_prediction()
        if schema.label is not None:
            return read_memory(data, schema=schema, directed=facts.directed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)  # the statement is the method's
        return read_memory(data, schema=schema, classes=classes, directed=facts.directed)


def take_graphs(method: Method, data: Any) -> Data:
    """Many graphs in one ``Data``, also from a list or a data set of them."""
    from torch_geometric.data import Data

    from graphveil.graph.collate import collate

    if isinstance(data, Data):
        return data
    if hasattr(data, "__len__") and hasattr(data, "__getitem__"):  # it can be gone through twice
        for graph in data:
            if isinstance(graph, Data):
                _refuse_unread(method, graph)
    return collate(data)


def take_links(method: Method, data: Any) -> Data:
    """Links as they are: a ``Data`` with ``links``, as graphveil.graph.links says."""
    return data  # the checks say what is wrong with it


def refuse_links(record: str, what: str) -> None:
    """Refuse links where ``what`` somebody asks for is about records with an answer each."""
    if record == "link":
        raise InvalidInputError(
            f"{what} must be of nodes or graphs. Got a method that learns links instead, whose "
            "answers are lists of targets; take 'graphveil recommend', or method.recommend(data)."
        )


def check_targets(method: Method, data: Data) -> None:
    """Refuse other targets than a fitted method knows."""
    facts = method.plan_.facts
    columns = data.target_x.shape[1] if "target_x" in data else None
    targets = len(data.x) if columns is None else len(data.target_x)
    by_place = method.network_.knows_targets  # has numbers for each of them
    if columns != facts.target_features or (by_place and targets != facts.num_classes):
        raise InvalidInputError(
            f"The targets must be those of training: {facts.num_classes:,} rows of "
            f"{facts.target_features or facts.num_features} columns. Got {targets:,} rows of "
            f"{columns or data.x.shape[1]} instead; give the same, or train with popularity=False, "
            "which takes new rows."
        )


def check_edges_read(method: Method, data: Data) -> None:
    """Refuse what is said of edges and would be dropped; say what is dropped as documented.

    Methods for nodes read of an edge its two ends. Methods for whole graphs count ``edge_attr``
    with the patterns; their convolutions leave it out.
    """
    from graphveil.graph.stored import is_stored

    _refuse_unread(method, data)
    if is_stored(data) and not method.reads_stores:
        raise InvalidInputError(
            f"The method '{method.name}' must have a graph that is in memory. Got the store "
            f"{data.stored.path} instead; take a method for nodes, such as late-graph or dp-gnn, "
            "which reads a store in blocks, or a graph in files."
        )
    if "edge_attr" in _about_edges(data) and not reads_counts(method):
        warnings.warn(
            f"convolutions of {method.name} read no edge_attr; counts of patterns do",
            Notice,
            stacklevel=3,
        )


def _refuse_unread(method: Method, data: Data) -> None:
    read = ("edge_attr",) if method.record == "graph" else ()
    if unread := [name for name in _about_edges(data) if name not in read]:
        of = "of edges edge_attr alone" if read else "the ends of an edge alone"
        raise InvalidInputError(
            f"The method '{method.name}' reads {of}. Got data with {unread[0]!r}, which it would "
            f"drop, instead; say that it is not needed with del data.{unread[0]}."
        )


def _about_edges(data: Data) -> list[str]:
    """The names of what is said of edges, beside their ends."""
    names = [name for name in data.keys() if name.startswith("edge_")]  # noqa: SIM118
    return [name for name in names if name != "edge_index" and data[name] is not None]
