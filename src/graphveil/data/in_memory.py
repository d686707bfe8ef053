"""Graphs that are in memory already: two tables, or a graph of NetworkX.

data = load(nodes=nodes, edges=edges, classes=["red", "blue"])     # see frames.py
data = load(nodes=nodes, edges=edges, schema="schema.toml")
data = from_networkx(graph, features=["age", "posts"], label="party")
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from graphveil._errors import InvalidInputError

if TYPE_CHECKING:
    import networkx as nx
    import pandas as pd
    from torch_geometric.data import Data

    from graphveil.data.schema import Schema


def read_memory(
    source: Any,
    *,
    schema: Any = None,
    classes: Any = None,
    directed: bool | None = None,
    people: Any = None,
    target: str | None = None,
    link: str | None = None,
) -> Data:
    """The graph of a pair of tables, ``(nodes, edges)``, of NetworkX, or of a ``HeteroData``.

    ``people``, ``target`` and ``link`` are for the latter: :mod:`graphveil.data.typed`.

    *Guarantee*: none; reading is not releasing. See :func:`graphveil.data.frames.frames_to_data`.
    """
    from graphveil.data.frames import frames_to_data, is_frame

    if _is_hetero(source):
        from graphveil.data.typed import take_hetero

        refuse_stated("a HeteroData", schema=schema, classes=classes, directed=directed)
        return take_hetero(source, people=people, target=target, link=link)
    refuse_stated("a graph without types", people=people, target=target, link=link)
    if _is_networkx(source):
        if directed not in (None, source.is_directed()):
            raise InvalidInputError(
                "The 'directed' parameter must be as the graph is. Got "
                f"{directed} for a {type(source).__name__} instead; leave it out."
            )
        return from_networkx(source, schema=schema, classes=classes)
    pair = isinstance(source, (tuple, list)) and len(source) == 2
    if pair and any(map(is_frame, source)):
        nodes, edges = source
        return frames_to_data(nodes, edges, schema=schema, classes=classes, directed=directed)
    raise InvalidInputError(
        "A graph must be a torch_geometric.data.Data, a pair of tables (nodes, edges), a graph of "
        "NetworkX, a HeteroData, or loaded by its name or path. Got "
        f"{type(source).__name__} instead; see docs/data.md."
    )


def from_networkx(
    graph: nx.Graph,
    *,
    features: Sequence[str] | None = None,
    label: str = "label",
    split: str = "split",
    schema: Any = None,
    classes: Any = None,
) -> Data:
    """The graph of NetworkX, by the attributes of its nodes.

    ``features`` names those that are features, in their order; without it all are that are neither
    ``label`` nor ``split``. ``label`` and ``split`` may be missing at some nodes or at all. A node
    is called by its text. Edges have a direction if the graph has, and nothing else of them is
    read. ``classes`` states which classes there are, see :mod:`graphveil.data.classes`.

    A ``schema`` (a :class:`~graphveil.data.schema.Schema`, its content or its path) is about all
    attributes, which have their own names then: ``features``, ``label`` and ``split`` are left out.

    *Guarantee*: none; reading is not releasing. What counts as public is as for tables: the names
    of features, ids, what is stated of classes and edges, and who is unlabelled.
    """
    from graphveil.data.frames import frames_to_data
    from graphveil.data.schema import as_schema

    if not _is_networkx(graph):
        raise InvalidInputError(
            f"The 'graph' parameter must be a graph of NetworkX. Got {type(graph).__name__} "
            "instead; load takes tables, names and paths."
        )
    stated, ends = as_schema(schema), ("source", "target")
    if stated is None:
        nodes = _node_table(graph, features, label, split)
    else:
        if (features, label, split) != (None, "label", "split"):
            raise InvalidInputError(
                "The parameters 'features', 'label' and 'split' must be left out where there is a "
                "schema, which says what attributes are. Got one of them instead; leave it out."
            )
        nodes, ends = _stated_table(graph, stated), stated.edges.ends
    return frames_to_data(
        nodes,
        _edge_table(graph, ends),
        where="the nodes of the graph",
        edges_where="the edges of the graph",
        schema=stated,
        classes=classes,
        directed=graph.is_directed(),
    )


def _node_table(
    graph: nx.Graph, features: Sequence[str] | None, label: str, split: str
) -> pd.DataFrame:
    import pandas as pd

    _check_nodes(graph)
    attributes = pd.DataFrame.from_records([row for _, row in graph.nodes(data=True)])
    attributes.columns = [str(name) for name in attributes.columns]
    wanted = list(attributes.columns) if features is None else [str(name) for name in features]
    columns = [name for name in wanted if name not in (label, split)]
    if "id" in columns:
        raise InvalidInputError(
            "A node's id is what NetworkX calls it. Got an attribute 'id' among the features "
            "instead; rename it, or name the features without it."
        )
    if missing := [name for name in columns if name not in attributes]:
        raise InvalidInputError(
            f"The 'features' parameter must name attributes of nodes. Got {missing[0]!r} instead, "
            "which no node has; correct it."
        )
    table = attributes[columns]
    for name, attribute in (("split", split), ("label", label)):
        if attribute in attributes:
            table.insert(0, name, attributes[attribute])
    table.insert(0, "id", [str(node) for node in graph.nodes])
    return table


def _stated_table(graph: nx.Graph, schema: Schema) -> pd.DataFrame:
    """All attributes under their own names, no cell changed by others, and ids."""
    import pandas as pd

    _check_nodes(graph)
    table = pd.DataFrame([row for _, row in graph.nodes(data=True)], dtype=object)
    table.columns = [str(name) for name in table.columns]
    if schema.id in table:
        raise InvalidInputError(
            f"A node's id is what NetworkX calls it. Got an attribute {schema.id!r} besides "
            "instead, which the schema calls the id; rename either."
        )
    table.insert(0, schema.id, [str(node) for node in graph.nodes])
    return table


def _check_nodes(graph: nx.Graph) -> None:
    if graph.number_of_nodes() == 0:
        raise InvalidInputError("The graph has no nodes; there is nothing to learn from.")


def _edge_table(graph: nx.Graph, ends: tuple[str, str]) -> pd.DataFrame:
    """The ends of every edge; further columns have names alone, for the owner to hear."""
    import pandas as pd

    pairs = [(str(source), str(target)) for source, target in graph.edges()]
    table = pd.DataFrame(pairs, columns=list(ends), dtype=object)
    for name in dict.fromkeys(str(n) for *_, row in graph.edges(data=True) for n in row):
        if name not in table:
            table[name] = 0
    return table


def refuse_stated(of: str, **stated: Any) -> None:
    """Refuse what is stated ``of`` data that takes no such statement."""
    for name, value in stated.items():
        if value is not None:
            raise InvalidInputError(
                f"The '{name}' parameter cannot go with {of}. Got {value!r} instead; leave it out."
            )


def _is_hetero(value: Any) -> bool:
    module = sys.modules.get("torch_geometric.data")  # whoever has such a graph has imported it
    return module is not None and isinstance(value, module.HeteroData)


def _is_networkx(value: Any) -> bool:
    networkx = sys.modules.get("networkx")  # whoever has such a graph has imported it
    return networkx is not None and isinstance(value, networkx.Graph)
