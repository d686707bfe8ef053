"""Typed graphs: a folder with a table for each type and each relation, or PyG's ``HeteroData``.

::

    nodes-patient.csv                     nodes-drug.csv       edges-patient-takes-drug.csv
    id,label,split,age                    id,strength          source,target
    ann,yes,train,71                      aspirin,3            ann,aspirin

A table of edges is called after its ends: ``edges-SOURCE-RELATION-TARGET``, csv or parquet. Tables
of types are read as ``nodes.csv`` of one type is (:mod:`graphveil.data.files`), by the
``schema.toml`` beside them if there is one (:mod:`graphveil.data.typed_schema`). Who is a person
(``people``) must be stated: rows of all other types are public, and so must be the tables that hold
them. An edge to a row that its table does not have is refused: it would be read off a private list.
A relation may have a column ``time``, of numbers or dates.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch_geometric.data import Data, HeteroData

from graphveil import _validate
from graphveil._errors import InvalidInputError
from graphveil.data import _tables
from graphveil.data import classes as _classes
from graphveil.data._tables import Where
from graphveil.data.class_list import Notice, Stated
from graphveil.data.column_kinds import parse_date
from graphveil.data.encoding import encode_table
from graphveil.data.files import naming, read_public
from graphveil.data.frames import cap_by_rule, put_records, read_numbers, say_unread
from graphveil.data.schema import FILE, Schema, as_schema, schema_beside
from graphveil.data.typed_schema import (
    Relation,
    Types,
    relation_names,
    split_relation,
    type_names,
)
from graphveil.graph.checks import check
from graphveil.graph.typed import flatten, links_of, people_of, target_of

_MOST_LINKED = 20  # public rows of which all may be linked by chance
Frames = Mapping[str, tuple[Where, pd.DataFrame]]  # by the words behind nodes- or edges-


def read_typed(
    folder: Path,
    *,
    schema: Any = None,
    people: Any = None,
    target: str | None = None,
    link: str | None = None,
    classes: Stated = None,
    directed: bool | None = None,
) -> Data:
    """The people of a folder of typed tables as one graph, or a relation as the data of links.

    ``people``, ``target`` and ``link`` say what the schema does not; what both say must agree.

    *Guarantee*: none; reading is not releasing. Tables of all types that are no people are public.
    """
    stated = schema_beside(folder) if schema is None else as_schema(schema)
    if stated is not None and stated.typed is None:
        raise InvalidInputError(
            f"The schema of {folder} must be about types, because it has a table for each. Got one "
            "of one table instead; 'graphveil data schema' writes a first one."
        )
    types = Types() if stated is None or stated.typed is None else stated.typed
    names, asked = type_names(folder), _as_names(people)
    _check_types(folder, types if asked is None else Types(people=asked), names)
    types = types.stating(asked, target, _full_name(folder, link))
    _check_types(folder, types, names)
    _check_relations(folder, types, relation_names(folder))
    nodes, edges = {}, {}
    for name in names:
        own = types.types.get(name, Schema())
        path = _tables.table_path(folder, f"nodes-{name}")
        table = _tables.read_table(
            path, (own.id,), text=(*_tables.TEXT, own.id), as_written=stated is not None,
            stated=stated is not None,
        )  # fmt: skip
        nodes[name] = path, table
    for name in relation_names(folder):
        relation = types.relations.get(name, Relation())
        path = _tables.table_path(folder, f"edges-{name}")
        edges[name] = path, _read_edges(path, relation, stated=stated is not None)
    return build(
        nodes, edges, types, where=folder, stated=stated is not None, classes=classes,
        directed=directed, public=read_public(folder),
    )  # fmt: skip


def _full_name(folder: Path, link: str | None) -> str | None:
    """A relation as its file is called, where its own word is enough to tell it."""
    names, types = relation_names(folder), type_names(folder)
    if link is None or link in names:
        return link
    fit = [name for name in names if split_relation(name, types)[1] == link]
    if len(fit) != 1:
        raise InvalidInputError(
            f"The 'link' parameter must be a relation of {folder}: {', '.join(names) or 'none'}. "
            f"Got {_validate.shown(link)} instead; write all of its name."
        )
    return fit[0]


def _read_edges(path: Path, relation: Relation, *, stated: bool) -> pd.DataFrame:
    ends = relation.ends
    columns = _tables.column_names(path)
    time = relation.time or ("time" if "time" in columns else None)
    wanted = ends if time is None else (*ends, time)
    say_unread(path, [name for name in columns if name != time], ends)
    table = _tables.read_table(path, wanted, text=wanted, only=wanted, filled=wanted, stated=stated)
    return table[list(wanted)]


def build(
    nodes: Frames,
    edges: Frames,
    types: Types,
    *,
    where: Where,
    stated: bool = True,
    classes: Stated = None,
    directed: bool | None = None,
    public: Sequence[str] = (),
) -> Data:
    """What :func:`read_typed` makes of tables; ``stated`` says that a schema is about columns.

    *Guarantee*: as for :func:`read_typed`.
    """
    graph = make_graph(
        nodes, edges, types, where=where, stated=stated, classes=classes, directed=directed
    )
    if public:
        graph.public = list(public)
    with naming(where):
        data = _of_task(graph, types.target or types.record, types.link)
    if types.link is None:
        data = cap_by_rule(data, types.types.get(types.target or types.record or ""))
    if stated:
        data.schema = types.as_schema().to_dict()
    return data


def make_graph(
    nodes: Frames,
    edges: Frames,
    types: Types,
    *,
    where: Where,
    stated: bool = True,
    classes: Stated = None,
    directed: bool | None = None,
) -> HeteroData:
    """Tables of types and relations as PyG's ``HeteroData``.

    *Guarantee*: none; reading is not releasing.
    """
    _check_types(where, types, list(nodes))
    _check_relations(where, types, list(edges))
    graph, ids = HeteroData(), {}
    graph.people = list(types.people)
    for name, (path, table) in nodes.items():
        schema = types.types.get(name, Schema()) if stated else None
        is_person = name in types.people
        of_classes = classes if name == (types.record or name) else None
        data = _read_type(name, path, table, schema, is_person, of_classes)
        graph[name].update(data.to_dict())
        ids[name] = path, table[(schema or Schema()).id]
    for name, (path, table) in edges.items():
        source, word, target = split_relation(name, list(nodes))
        relation = types.relations.get(name, Relation())
        store = graph[source, word, target]
        store.edge_index = torch.from_numpy(_ends(path, table, relation, ids[source], ids[target]))
        if source == target:
            store.directed = _direction(name, relation, directed)
        if relation.lists is not None:
            store.lists = list(relation.lists)
        if table.shape[1] > 2:
            store.time = torch.from_numpy(_times(path, table[table.columns[2]]))
    _say_all_linked(graph)
    return graph


def _check_types(where: Where, types: Types, nodes: Sequence[str]) -> None:
    """Refuse what is stated of types without a table, and a folder without people."""
    if not types.people:
        raise InvalidInputError(
            f"{where} has tables of several types: {', '.join(nodes)}. Which of them are people "
            f'must be stated; write people = ["..."] at the head of {FILE}, or --people. Rows of '
            "all others count as public."
        )
    named = [("people", name) for name in types.people] + [("types", name) for name in types.types]
    named += [] if types.target is None else [("target", types.target)]
    for what, name in named:
        if name not in nodes:
            raise InvalidInputError(
                f"{where} must have a table for each type that {what!r} names. Got "
                f"{_validate.shown(name)} instead, where the types are {', '.join(nodes)}; correct "
                f"it, or add nodes-{name}.csv."
            )


def _check_relations(where: Where, types: Types, edges: Sequence[str]) -> None:
    """Refuse what is stated of relations without a table."""
    for name in types.relations:
        if name not in edges:
            raise InvalidInputError(
                f"{where} must have a table for each relation that the schema names. Got "
                f"{_validate.shown(name)} instead, where the relations are "
                f"{', '.join(edges) or 'none'}; correct it, or add edges-{name}.csv."
            )


def _read_type(
    name: str,
    path: Where,
    table: pd.DataFrame,
    schema: Schema | None,
    is_person: bool,
    classes: Stated,
) -> Data:
    """Rows of one type, with labels and masks of people."""
    own = schema or Schema()
    if len(table) == 0:
        raise InvalidInputError(f"{path} has no rows; give each {name} one.")
    ids = table[own.id].astype("str")
    _tables.unique_index(path, ids, "unlike all other ids", "keep one row for each")
    if not is_person and list(table.columns) == [own.id]:
        data = Data(x=torch.ones(len(table), 1), columns=["one"])
    elif schema is None or (not is_person and schema == Schema()):
        data = read_numbers(table.rename(columns={own.id: "id"}), path)
    else:
        data = encode_table(replace(schema, unit=schema.unit or name), table, path)
        del data.schema
    if not is_person:
        return Data(x=data.x, columns=data.columns, ids=list(ids))
    put_records(data, table, path, schema=schema)
    if own.label is None and "label" in own.label_names() and "label" in table:
        _classes.put(data, path, table["label"], classes)
    return data


def _ends(
    path: Where,
    table: pd.DataFrame,
    relation: Relation,
    sources: tuple[Where, pd.Series],
    targets: tuple[Where, pd.Series],
) -> NDArray[np.int64]:
    """(2, edges): both ends of a relation as places in the tables of their types."""
    sides = []
    for column, (of, ids) in zip(relation.ends, (sources, targets), strict=True):
        known, cells = _tables.comparable([ids, table[column]])
        index = _tables.unique_index(of, ids, "unlike all other ids", "keep one row", keys=known)
        way_out = (
            "add the row there or drop the edge: rows that edges alone bring are read off private "
            "lists"
        )
        rule = f"an id in {Path(of).name}"
        sides.append(_tables.places(index, path, table[column], rule, way_out, keys=cells))
    return np.stack(sides)


def _direction(name: str, relation: Relation, directed: bool | None) -> bool:
    own = relation.directed
    if None not in (own, directed) and own != directed:
        raise InvalidInputError(
            f"The 'directed' parameter must be as the schema says. Got {directed} where it says "
            f"{own} of {name!r} instead; correct either."
        )
    return bool(own if directed is None else directed)


def _times(path: Where, column: pd.Series) -> NDArray[np.float64]:
    """Times as numbers: as they are, or days since 1970 of dates."""
    values = _tables.floats(column)
    if values.isna().any():
        values = pd.Series([_days(cell) for cell in column.tolist()], dtype="float64")
    wrong = ~np.isfinite(values)
    _tables.check_cells(path, column, wrong, "a number or a date as 2020-12-31", "correct it")
    return np.array(values, np.float64)


def _days(cell: Any) -> float:
    moment = parse_date(cell.isoformat() if isinstance(cell, date) else str(cell))
    start = parse_date("1970-01-01")
    assert start is not None
    return float("nan") if moment is None else (moment - start).total_seconds() / 86_400


def _say_all_linked(graph: HeteroData) -> None:
    """Tell the owner of public types of which every row is on somebody's list."""
    people = people_of(graph)
    for kind in graph.node_types:
        if kind in people or len(graph[kind].x) < _MOST_LINKED:
            continue
        linked = torch.zeros(len(graph[kind].x), dtype=torch.bool)
        for source, word, target in graph.edge_types:
            ends = graph[source, word, target].edge_index
            if source in people and target == kind:
                linked[ends[1]] = True
            if target in people and source == kind:
                linked[ends[0]] = True
        if linked.all():
            warnings.warn(
                f"every row of {kind!r} is on the list of somebody; if its table was made from the "
                "lists, it is private, and what is trained on it has no guarantee: take a public "
                "catalog",
                Notice,
                stacklevel=2,
            )


# --- in memory ------------------------------------------------------------------------------------


def take_hetero(
    graph: HeteroData, *, people: Any = None, target: str | None = None, link: str | None = None
) -> Data:
    """The people of a ``HeteroData`` as one graph, or a relation as the data of links.

    ``people`` may stand in ``graph.people``; the graph stays as it is.

    *Guarantee*: as for :func:`read_typed`.
    """
    names = _as_names(people)
    own = getattr(graph, "people", None)
    own = [own] if isinstance(own, str) else own
    if names is not None and own is not None and list(own) != names:
        raise InvalidInputError(
            f"The 'people' parameter must be as the graph says. Got {names} where it says "
            f"{list(own)} instead; correct either."
        )
    if names is not None:
        graph = graph.clone() if own is None else graph
        graph.people = names
    if target is not None and link is not None:
        Types(target=target, link=link)  # refused
    return _of_task(graph, target, link)


def _of_task(graph: HeteroData, target: str | None, link: str | None) -> Data:
    if link is not None:
        return links_of(graph, link)
    return check(flatten(graph, target_of(graph, target)), labels=False, masks=False)


def _as_names(people: Any) -> list[str] | None:
    if people is None:
        return None
    return [people] if isinstance(people, str) else [str(name) for name in people]
