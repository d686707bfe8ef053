"""A user's own graphs, each a record: a directory with three tables.

::

    graphs.csv            nodes.csv               edges.csv
    id,label,split        graph,id,charge,mass    graph,source,target,length
    a,active,train        a,1,0.5,12              a,1,2,1.4
    b,inactive,test       a,2,-0.5,16             b,1,2,1.1

Any may be ``.parquet`` instead. In ``graphs``, ``label`` and ``split`` may be missing or empty, as
for nodes in :mod:`graphveil.data.files`; further columns are ignored. In ``nodes``, ``id`` need
only differ within a graph, and every further column is a feature; without one, each node gets a 1.
In ``edges``, every further column is an attribute (``edge_attr``). All of these hold numbers. A
graph without nodes is one all the same. Each line of ``edges`` goes both ways unless ``directed``;
a line told twice is one edge, with the mean of the attributes.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch_geometric.data import Data

from graphveil._errors import InvalidInputError
from graphveil.data import _tables, encoding
from graphveil.data import classes as _classes
from graphveil.data.class_list import Stated
from graphveil.data.files import read_public
from graphveil.data.frames import cap_by_rule, put_records, settle_stated
from graphveil.data.schema import Schema
from graphveil.graph.collate import merge_edges

_TEXT = (*_tables.TEXT, "graph")


def read_graphs(
    folder: Path,
    *,
    classes: Stated = None,
    directed: bool | None = None,
    schema: Schema | None = None,
) -> Data:
    """The graphs in the three tables at ``folder``, in the order of ``graphs``.

    Refused, in one line: what :func:`graphveil.data.files.read` refuses, ids of a graph or node
    that are not in their table, and ids that are there twice. By a ``schema``, ``[columns]`` are
    those of nodes, and id, label, split and owner those of graphs.

    *Guarantee*: none; reading is not releasing. Columns with their names, ids, and what is stated
    of classes count as public.
    """
    graphs_path, nodes_path, edges_path = (
        _tables.table_path(folder, stem) for stem in ("graphs", "nodes", "edges")
    )
    names, as_written = schema or Schema(), schema is not None
    directed = settle_stated(schema, classes, directed)
    ends = names.edges.ends
    graphs = _tables.read_table(
        graphs_path, (names.id,), text=_TEXT, as_written=as_written, stated=as_written
    )
    nodes = _tables.read_table(nodes_path, ("graph", "id"), text=_TEXT, as_written=as_written)
    edges = _tables.read_table(
        edges_path, ("graph", *ends), text=(*_TEXT, *ends), stated=as_written
    )
    for path, table in ((graphs_path, graphs), (nodes_path, nodes)):
        if len(table) == 0:
            raise InvalidInputError(f"{path} has no rows; give each {path.stem[:-1]} one.")

    known, of_nodes, of_edges = _tables.comparable(
        [graphs[names.id], nodes["graph"], edges["graph"]]
    )
    rule, way_out = "unlike all others", "keep one row for each"
    index = _tables.unique_index(graphs_path, graphs[names.id], rule, way_out, keys=known)
    rule, way_out = f"an id in {graphs_path.name}", "add the graph"
    batch = _tables.places(index, nodes_path, of_nodes, rule, way_out)
    edge_batch = _tables.places(index, edges_path, of_edges, rule, way_out)
    data = _rows_of(nodes, nodes_path, schema)
    paths, batches = [nodes_path, edges_path], [batch, edge_batch]
    data.edge_index = _edge_index(paths, nodes, edges, batches, ends)
    columns = [name for name in edges.columns if name not in ("graph", *ends)]
    if columns:
        data.edge_attr = torch.from_numpy(_tables.numbers(edges_path, edges, columns))
    data.batch, data.num_graphs = torch.from_numpy(batch), len(graphs)
    data = merge_edges(data, mirror=not directed)
    data.directed = directed
    if schema is not None:
        encoding.put_label(data, schema, graphs, graphs_path)
        encoding.put_owner(data, schema, graphs, graphs_path)
    put_records(data, graphs, graphs_path, schema=schema, public=read_public(folder))
    if names.label is None and "label" in graphs:
        _classes.put(data, graphs_path, graphs["label"], classes, "graphs")
    return cap_by_rule(data, schema)


def _rows_of(nodes: pd.DataFrame, path: Path, schema: Schema | None) -> Data:
    """The features of nodes: by a schema, else numbers as they are, or a 1 each."""
    data = Data(x=torch.ones(len(nodes), 1))
    features = [name for name in nodes.columns if name not in ("graph", "id")]
    if schema is not None and (schema.columns or features):
        schema.check_columns(features, path)
        encoding.put_rows(data, schema, nodes, path, dense=True)
    elif features:
        data.x = torch.from_numpy(_tables.numbers(path, nodes, features))
        data.columns = features
    return data


def graph_ids(folder: str | Path, column: str = "id") -> list[str]:
    """The ids of the graphs in the tables at ``folder``, as written there, in their order."""
    return _tables.ids_of(folder, "graphs", column)


def _edge_index(
    paths: list[Path],
    nodes: pd.DataFrame,
    edges: pd.DataFrame,
    batches: list[NDArray[np.int64]],
    names: tuple[str, str],
) -> torch.Tensor:
    """Ends as places in ``nodes``: a node is known by its graph and its id together."""
    (nodes_path, edges_path), (batch, edge_batch) = paths, batches
    columns = _tables.comparable([nodes["id"], *(edges[name] for name in names)])
    codes, different = pd.factorize(pd.concat(columns, ignore_index=True))
    width = len(different)
    keys = pd.Series(batch * width + codes[: len(nodes)])
    rule, way_out = "unlike all others of its graph", "keep one row for each node"
    index = _tables.unique_index(nodes_path, nodes["id"], rule, way_out, keys=keys)
    rule, way_out = f"an id of that graph in {nodes_path.name}", "add the node or drop the edge"
    ends = []
    for name, part in zip(names, np.split(codes[len(nodes) :], 2), strict=True):
        keys = pd.Series(edge_batch * width + part)
        ends.append(_tables.places(index, edges_path, edges[name], rule, way_out, keys=keys))
    return torch.from_numpy(np.stack(ends))
