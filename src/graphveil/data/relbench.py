"""RelBench: the rows of one table of a database as nodes, and a task's values to predict.

A database is a folder with ``db/TABLE.parquet`` and ``tasks/TASK/train.parquet`` (``val``,
``test``). The metadata of each file name its primary key (``pkey_col``), the tables its foreign
keys point to (``fkey_col_to_pkey_table``) and its time (``time_col``), as RelBench saves them.

**Read** are the table of the task's entities, the task, and tables with two foreign keys to these
entities: links. **Not read** is everything else: other tables, and what they say of an entity.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch_geometric.data import Data

from graphveil._errors import InvalidInputError
from graphveil.data._cache import find, reading, refuse_variant
from graphveil.data._ends import go_both_ways
from graphveil.data._row_columns import (
    SQUASHED,
    TEXT_WIDTH,
    Columns,
    as_numbers,
    join_columns,
    number_columns,
    text_columns,
)
from graphveil.data._stated_targets import put_targets
from graphveil.data._tables import comparable, read_table
from graphveil.data._variants import RelBench, parse_relbench
from graphveil.graph.public_lines import shorten
from graphveil.graph.shares import MASKS

_PARTS = ("train", "val", "test")
_METADATA = ("pkey_col", "fkey_col_to_pkey_table", "time_col")
_ORIGIN = pd.Timestamp("2000-01-01", tz="UTC")
_YEAR = pd.Timedelta(days=365.25)
_WORDS = f"no list of words: those of a cell are hashed into {TEXT_WIDTH} columns by themselves"
_DATES = "dates are years since 2000, squashed likewise"
_TIMES = "the timestamps of the task, by which it is split and after which links are left out"


@dataclass(frozen=True)
class _Schema:
    """What the metadata of a file say: its keys, its time, and the kind of each column."""

    path: Path
    key: str | None
    foreign: dict[str, str]
    time: str | None
    kinds: dict[str, str]


def relbench(name: str, root: Path, variant: str) -> Data:
    """A task of RelBench: ``relbench:DATABASE:TASK[:TARGET]``, binary unless a target is stated.

    Nodes are the rows of the entities' table; features come of a row's own cells. Keys are left
    out, and so are lists and the like. A node's target is that of its last timestamp, in the last
    of train, val and test that names it: nobody is trained and tested on, and one row of the task
    counts for each. Links are those up to the first timestamp of the test, told to both ends.
    """
    parsed = parse_relbench(variant)
    if parsed is None:
        rule = "':DATABASE:TASK', and a public ':CLASSES' or ':LOW..HIGH'"
        refuse_variant("relbench", rule, name, "; write 'relbench:rel-f1:driver-dnf'")
    place = _find(name, root, parsed)
    with reading(name, place, passing=(InvalidInputError,)):
        tables = {
            path.stem: _read_schema(path) for path in sorted((place / "db").glob("*.parquet"))
        }
        parts = [_read_schema(place / "tasks" / parsed.task / f"{p}.parquet") for p in _PARTS]
        entity, table_name = _entity_of(parts[0])
        if table_name not in tables or tables[table_name].key is None:
            raise ValueError(f"there is no db/{table_name}.parquet with a primary key")
        table = tables[table_name]
        target = _target_of(parts[0], entity)
        if target in table.kinds:
            raise ValueError(f"the target {target} is a column of {table_name}, and others tell it")
        rows = _read_rows(table)
        ids = _keys(rows[table.key])
        if ids.isna().any() or ids.duplicated().any():
            raise ValueError(f"the primary key {table.key} must be filled in, each once")
        columns, lines = _features(table, rows)
        values, part_of, first_test = _read_targets(parts, entity, target, ids)
        links = [schema for schema in tables.values() if _points_twice(schema, table_name)]
        ends = [_read_links(schema, table_name, ids, first_test) for schema in links]
    data = Data(x=torch.from_numpy(columns.values))
    joined = np.concatenate([np.empty((2, 0), dtype=np.int64), *ends], axis=1)
    data.edge_index = torch.from_numpy(go_both_ways(joined, len(ids)))
    put_targets(data, name, values, parsed.target)
    for number, mask in enumerate(MASKS):
        data[mask] = torch.from_numpy(part_of == number)
    data.columns, data.public = columns.names, [*lines, _TIMES]
    return data


def _find(name: str, root: Path, parsed: RelBench) -> Path:
    files = [f"tasks/{parsed.task}/{part}.parquet" for part in _PARTS]
    place = find(root, Path(parsed.database), files)
    if place is None:
        raise InvalidInputError(
            f"The data set {name!r} is not in {root / parsed.database} (looked for {files[0]}) and "
            f"not downloaded; get it by relbench.tasks.get_task({parsed.database!r}, "
            f"{parsed.task!r}, download=True) and pass the folder ~/.cache/relbench as root."
        )
    return place


# --- schemas --------------------------------------------------------------------------------------


def _read_schema(path: Path) -> _Schema:
    try:
        import pyarrow.parquet
    except ImportError:
        raise InvalidInputError(
            f"Reading {path} needs pyarrow; pip install 'graphveil[data]'."
        ) from None
    schema = pyarrow.parquet.read_schema(path)
    metadata = schema.metadata or {}
    if any(key.encode() not in metadata for key in _METADATA):
        raise ValueError(f"{path.name} must have the metadata {', '.join(_METADATA)}")
    key, foreign, time = (json.loads(metadata[key.encode()]) for key in _METADATA)
    kinds = {field.name: _kind_of(field.type) for field in schema}
    for column in (*(foreign or {}), *filter(None, (key, time))):
        if column not in kinds:
            raise ValueError(f"{path.name} has no column {column}, which its metadata name")
    return _Schema(path, key, dict(foreign or {}), time, kinds)


def _kind_of(kind: Any) -> str:
    """What becomes of a column of a type of arrow: number, date, text, or nothing."""
    from pyarrow import types

    if types.is_dictionary(kind):
        kind = kind.value_type
    if types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind):
        return "number"
    if types.is_timestamp(kind) or types.is_date(kind):
        return "date"
    return "text" if types.is_string(kind) or types.is_large_string(kind) else ""


def _entity_of(task: _Schema) -> tuple[str, str]:
    """The column of the task that names an entity, and the entities' table."""
    if len(task.foreign) != 1 or task.time is None:
        keys = ", ".join(task.foreign) or "none"
        raise ValueError(f"a task must have one foreign key and a time, got {keys}: no links")
    return next(iter(task.foreign.items()))


def _target_of(task: _Schema, entity: str) -> str:
    others = [column for column in task.kinds if column not in (entity, task.time)]
    if len(others) != 1 or task.kinds[others[0]] != "number":
        shown = ", ".join(others) or "none"
        raise ValueError(f"a task must have one target that is a number, got {shown}")
    return others[0]


def _points_twice(schema: _Schema, table: str) -> bool:
    return list(schema.foreign.values()).count(table) == 2


# --- rows -----------------------------------------------------------------------------------------


def _read_rows(schema: _Schema) -> pd.DataFrame:
    return read_table(schema.path, (), text=())


def _keys(column: pd.Series) -> pd.Series:
    """Keys as they are; whole numbers that became floats beside an empty cell are whole again."""
    return column.astype("Int64") if pd.api.types.is_float_dtype(column) else column


def _look_up(schema: _Schema, column: pd.Series, ids: pd.Series) -> NDArray[np.int64]:
    """In which row of the entities' table each key is; -1 for an empty cell."""
    filled = column.notna().to_numpy(bool)
    known, keys = comparable([ids, _keys(column)[filled]])
    places = np.full(len(column), -1, dtype=np.int64)
    places[filled] = pd.Index(known).get_indexer(pd.Index(keys))
    if (places[filled] < 0).any():
        row = int(np.flatnonzero(filled & (places < 0))[0])
        raise ValueError(f"{schema.path.name}: {column.name} in row {row + 1} is no known key")
    return places


def _features(schema: _Schema, rows: pd.DataFrame) -> tuple[Columns, list[str]]:
    """Columns made of a row's own cells, and what is public about how."""
    kinds = {
        name: kind
        for name, kind in schema.kinds.items()
        if name != schema.key and name not in schema.foreign and name in rows
    }
    blocks = []
    for name, kind in kinds.items():
        if kind == "number":
            blocks.append(number_columns(name, as_numbers(name, _numeric(rows[name]))))
        elif kind == "date":
            blocks.append(number_columns(name, _years(rows[name])))
        elif kind == "text":
            texts = rows[name].astype(object).where(rows[name].notna(), "").astype(str)
            blocks.append(text_columns(name, texts.tolist()))
    line_of = {"number": SQUASHED, "date": _DATES, "text": _WORDS}
    lines = [line for kind, line in line_of.items() if kind in kinds.values()]
    if left_out := [name for name, kind in kinds.items() if not kind]:
        lines.append(f"which columns are left out: {shorten(left_out, 5)}")
    return join_columns(blocks, len(rows)), lines


def _numeric(column: pd.Series) -> pd.Series:
    """Numbers, also of a column of categories or of true and false."""
    if isinstance(column.dtype, pd.CategoricalDtype):
        column = column.astype(column.cat.categories.dtype)
    # Beside an empty cell, true and false are objects; numbers are floats then.
    return column.map({True: 1.0, False: 0.0}) if column.dtype.kind in "bO" else column


def _years(column: pd.Series) -> NDArray[np.float64]:
    times = pd.to_datetime(column, errors="coerce", utc=True)
    return np.ascontiguousarray(((times - _ORIGIN) / _YEAR).to_numpy(np.float64))


def _read_targets(
    parts: list[_Schema], entity: str, target: str, ids: pd.Series
) -> tuple[NDArray[np.float64], NDArray[np.int64], Any]:
    """The target of each node, the part of the split it is in (-1: none), the test's first time."""
    values, part_of = np.full(len(ids), np.nan), np.full(len(ids), -1, dtype=np.int64)
    first_test = None
    for number, schema in enumerate(parts):
        if _entity_of(schema)[0] != entity or _target_of(schema, entity) != target:
            raise ValueError(f"{schema.path.name} must have the columns of {parts[0].path.name}")
        table = _read_rows(schema)
        times = pd.to_datetime(table[schema.time], utc=True)
        numbers = as_numbers(target, _numeric(table[target]))
        rows = _look_up(schema, table[entity], ids)
        wanted = np.flatnonzero((rows >= 0) & ~np.isnan(numbers) & times.notna().to_numpy(bool))
        order = wanted[np.argsort(times.to_numpy()[wanted], kind="stable")]
        values[rows[order]], part_of[rows[order]] = numbers[order], number  # the last one stays
        first_test = times.min() if number == len(parts) - 1 else None
    return values, part_of, first_test


def _read_links(schema: _Schema, table: str, ids: pd.Series, last: Any) -> NDArray[np.int64]:
    """(2, links): the rows that both keys name, of links up to the time ``last``."""
    links = _read_rows(schema)
    ends = np.stack(
        [_look_up(schema, links[key], ids) for key, to in schema.foreign.items() if to == table]
    )
    kept = (ends >= 0).all(axis=0)
    if schema.time is not None and not pd.isna(last):
        times = pd.to_datetime(links[schema.time], utc=True)
        kept &= (times <= last).to_numpy(bool)
    return ends[:, kept]
