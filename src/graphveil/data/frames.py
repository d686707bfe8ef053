"""A graph out of two tables in memory: pandas, polars, or anything that streams Arrow.

    data = frames_to_data(nodes, edges, classes=["red", "blue"])
    data = frames_to_data(nodes, edges, schema="schema.toml")

``nodes`` has the columns ``id``, perhaps ``label`` and ``split``, and features; ``edges`` has
``source`` and ``target``; a schema may call them otherwise. They mean what they mean in files:
:mod:`graphveil.data.files` reads two tables and calls this. ``data.ids`` keeps the ids, in the
order of the nodes.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch_geometric.data import Data
from torch_geometric.utils import to_undirected

from graphveil import _validate
from graphveil._errors import InvalidInputError
from graphveil.data import _tables
from graphveil.data import classes as _classes
from graphveil.data._tables import Where
from graphveil.data.class_list import Notice, Stated, parse_classes
from graphveil.data.encoding import encode_table
from graphveil.data.schema import Schema, as_schema
from graphveil.graph.checks import check
from graphveil.graph.public_lines import shorten
from graphveil.graph.splits import cap_owners

_PARTS = ("train", "val", "test")
_ENDS = ("source", "target")
_OF_NODES = ("id", "label", "split")  # what is no feature


def is_frame(value: Any) -> bool:
    """Whether :func:`as_frame` takes it; nothing is imported to say so."""
    return isinstance(value, pd.DataFrame) or _streams(value) or _is_lazy(value)


def as_frame(table: Any, where: Where = "the table", *, as_written: bool = False) -> pd.DataFrame:
    """A table as pandas has it: a DataFrame, or anything that streams Arrow.

    Those are polars' frames, pyarrow's tables and DuckDB's relations, read by pyarrow. What is
    given stays as it is. An index with a name is a column like others, one without is left out.
    With ``as_written`` whole numbers of Arrow stay so beside empty cells.

    *Guarantee*: none; reading is not releasing.
    """
    if isinstance(table, pd.DataFrame):
        named = [name for name in table.index.names if name is not None]
        frame = table.reset_index(drop=not named)
        if len(named) < table.index.nlevels and named:
            frame = frame.drop(columns=[name for name in frame if str(name).startswith("level_")])
    elif _is_lazy(table) or _streams(table):
        try:
            import pyarrow as pa
        except ImportError:
            raise InvalidInputError(
                f"Reading {where} needs pyarrow, because it is no pandas.DataFrame; "
                "pip install 'graphveil[frames]'."
            ) from None
        table = pa.table(table.collect() if _is_lazy(table) else table)
        frame = _tables.arrow_to_pandas(where, table, as_written=as_written)
    else:
        raise InvalidInputError(
            f"{where} must be a table: a DataFrame of pandas or polars, or anything that streams "
            f"Arrow (pyarrow, DuckDB). Got {type(table).__name__} instead; convert it to one."
        )
    frame.columns = [str(name) for name in frame.columns]
    _tables.check_columns(where, list(frame.columns), ())
    for name in frame.columns:
        if isinstance(frame[name].dtype, pd.CategoricalDtype):
            frame[name] = frame[name].astype(object)
    return frame


def frames_to_data(
    nodes: Any,
    edges: Any,
    *,
    where: Where = "nodes",
    edges_where: Where = "edges",
    schema: Any = None,
    classes: Any = None,
    directed: bool | None = None,
    public: Sequence[str] = (),
) -> Data:
    """The graph of a table of ``nodes`` and one of ``edges``.

    ``schema`` states what is public of every column: a :class:`~graphveil.data.schema.Schema`, its
    content or its path; without it features are numbers. ``classes`` states which classes there
    are, see :mod:`graphveil.data.classes`. Each line of ``edges`` is a friendship, told to both,
    unless ``directed``. ``public`` are lines about what the tables rest on, which certificates
    repeat. Refusals call the tables ``where`` and ``edges_where``.

    *Guarantee*: none; reading is not releasing. Feature columns with their names, ids, what is
    stated of classes and edges, and who is unlabelled count as public.
    """
    stated, statement = as_schema(schema), parse_classes(classes)
    one_way, names = settle_stated(stated, statement, directed), stated or Schema()
    ends = names.edges.ends
    text = (names.id, names.split or "split", *names.label_names())
    nodes = read_frame(nodes, where, (names.id,), text, as_written=stated is not None)
    edges = read_frame(edges, edges_where, ends, ends, as_written=stated is not None)
    say_unread(edges_where, list(edges.columns), ends)
    if len(nodes) == 0:
        raise InvalidInputError(f"{where} has no rows; give each node one.")
    data = read_numbers(nodes, where) if stated is None else encode_table(stated, nodes, where)
    places = _tables.edge_ends(where, nodes[names.id], edges_where, edges, ends)
    count_odd_lines(edges_where, places, directed=one_way)
    data.directed, data.edge_index = one_way, torch.from_numpy(places)
    if not one_way:
        data.edge_index = to_undirected(data.edge_index, num_nodes=len(nodes))
    put_records(data, nodes, where, schema=stated, public=public)
    if names.label is None and "label" in names.label_names() and "label" in nodes:
        _classes.put(data, where, nodes["label"], statement)
    return check(cap_by_rule(data, stated), labels=False, masks=False)


def cap_by_rule(data: Data, schema: Schema | None) -> Data:
    """The data without the rows of owners that a schema's public rule leaves out."""
    if schema is None or schema.owner_rows is None:
        return data
    return cap_owners(data, schema.owner_rows)


def settle_stated(schema: Schema | None, classes: Stated, directed: bool | None) -> bool:
    """Whether edges have a direction; what is stated twice must be so once, or alike."""
    if schema is None:
        return bool(directed)
    if classes is not None and schema.label is not None:
        raise InvalidInputError(
            "The 'classes' parameter must be left out where the schema states the label. Got "
            f"{_validate.shown(classes)} instead; leave it out, or correct the schema."
        )
    own = schema.edges.directed
    if None not in (own, directed) and own != directed:
        raise InvalidInputError(
            f"The 'directed' parameter must be as the schema says. Got {directed} where it says "
            f"{own} instead; correct either."
        )
    return bool(own if directed is None else directed)


def read_numbers(nodes: pd.DataFrame, where: Where) -> Data:
    """Features of a table without a schema: numbers, as they are."""
    columns = [name for name in nodes.columns if name not in _OF_NODES]
    if not columns:
        raise InvalidInputError(
            f"{where} must have a feature column. Got only "
            f"{', '.join(map(repr, nodes.columns))} instead; where there are no features, add a "
            "column of ones."
        )
    data = Data(x=torch.from_numpy(_tables.numbers(where, nodes, columns)))
    data.columns = columns
    return data


def put_records(
    data: Data,
    table: pd.DataFrame,
    where: Where,
    *,
    schema: Schema | None,
    public: Sequence[str] = (),
) -> None:
    """Give ``data`` the ids of a table of records, the masks, and the ``public`` lines about it."""
    names = schema or Schema()
    data.ids = [str(name) for name in table[names.id]]
    if public:
        data.public = [*getattr(data, "public", ()), *public]
    if (split := names.split_name(table.columns)) is not None:
        put_masks(data, where, table[split])


def put_masks(data: Data, path: Where, parts: pd.Series) -> None:
    """Give ``data`` the masks that a column of ``parts`` says."""
    wrong, way_out = (
        parts.notna() & ~parts.isin(_PARTS),
        "write train, val, test, or leave it empty",
    )
    _tables.check_cells(path, parts, wrong, "train, val or test", way_out)
    for part in _PARTS:
        data[f"{part}_mask"] = torch.tensor((parts == part).to_numpy(bool, na_value=False))


def say_unread(where: Where, columns: Sequence[str], ends: tuple[str, str] = _ENDS) -> None:
    """Tell the owner which columns of edges are not read."""
    if unread := [name for name in columns if name not in ends]:
        read = " and ".join(ends)
        warnings.warn(
            f"{where}: of an edge only {read} are read; not read: {shorten(unread)}",
            Notice,
            stacklevel=2,
        )


def count_odd_lines(where: Where, ends: NDArray[np.int64], *, directed: bool) -> None:
    """Tell the owner how many lines of edges lead from a node to itself, or repeat another.

    No method reads the former, and every method reads the latter once. That every friendship is
    told from both sides is nothing odd.
    """
    loops = ends[0] == ends[1]
    others, nodes = ends[:, ~loops], int(ends.max(initial=0)) + 1
    different = np.unique(others[0] * nodes + others[1])
    repeated = others.shape[1] - len(different)
    if not directed:
        pairs = np.sort(np.stack(np.divmod(different, nodes)), axis=0)
        friendships = len(np.unique(pairs[0] * nodes + pairs[1]))
        if len(different) < 2 * friendships:
            repeated = others.shape[1] - friendships
    say_odd_lines(where, int(loops.sum()), repeated)


def say_odd_lines(where: Where, loops: int, repeated: int) -> None:
    """Tell the owner of lines from a node to itself, and of those that repeat another."""
    lines = []
    if loops:
        lines.append(f"{loops:,} line(s) from a node to itself, which no method reads")
    if repeated:
        lines.append(f"{repeated:,} line(s) that repeat another, which is read once")
    if lines:
        warnings.warn(f"{where}: {'; '.join(lines)}", Notice, stacklevel=2)


def read_frame(
    table: Any, where: Where, required: tuple[str, ...], text: tuple[str, ...], *, as_written: bool
) -> pd.DataFrame:
    """A table whose ``required`` columns are there, and full; an empty text is a missing one."""
    frame = as_frame(table, where, as_written=as_written)
    _tables.check_columns(where, list(frame.columns), required, stated=as_written)
    for name in (name for name in text if name in frame):
        column = frame[name]
        if not pd.api.types.is_numeric_dtype(column):
            frame[name] = column.where(~(column == "").to_numpy(bool, na_value=False))
    for name in required:
        missing = frame[name].isna()
        _tables.check_cells(where, frame[name], missing, "filled in", "every row needs one")
    return frame


def _streams(value: Any) -> bool:
    return hasattr(value, "__arrow_c_stream__")


def _is_lazy(value: Any) -> bool:
    """Whether it is a frame of polars that was not computed yet."""
    return type(value).__module__.startswith("polars.") and hasattr(value, "collect")
