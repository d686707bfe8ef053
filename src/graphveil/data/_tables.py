"""Tables of one's own, csv or parquet: read, looked up, and refused cell by cell.

A refusal names the file, the column, the row, the rule and the way out. Rows count from 1, below
the header. Only an empty cell is missing: a class may be called "NA" or "None".
"""

from __future__ import annotations

import codecs
import contextlib
import csv
import io
import math
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from datetime import date
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from graphveil import _validate
from graphveil._errors import InvalidInputError
from graphveil._inputs import TABLE, Unpacked, at_home, check_unpacked

Names = tuple[str, ...]  # of columns
Where = Path | str  # the file of a table, or what a frame is called in refusals
TEXT = ("id", "label", "split", "source", "target")  # read as written: "01" is not "1"
_NAMELESS = re.compile(r"__index_level_\d+__$")  # pandas' own numbers of rows
_LARGEST = float(np.finfo(np.float32).max)
_ROWS: ContextVar[int | Sequence[int]] = ContextVar("_ROWS", default=0)
_TOO_MANY_CELLS = re.compile(r"Expected (\d+) fields in line (\d+), saw (\d+)")  # pandas' words
_COMMA = re.compile(r"\s*([+-]?[0-9]+),([0-9]+)\s*")
_DATE = re.compile(r"\s*(\d{4}-\d{1,2}-\d{1,2}|\d{1,2}([./])\d{1,2}\2\d{2,4})\b")

# Ways to make a cell a number that read no other row.
_SCHEMA = "'graphveil data schema' writes a first schema"
_FREE_CONSTANT = (
    "put a public constant there, and a column of 0 and 1 that says where it was missing, as a "
    f"schema does ({_SCHEMA}); a mean or median of the column is read off private rows: a release "
    "that no certificate covers"
)
_FREE_WORDS = (
    "make columns of 0 and 1 by a public list of categories, or by a hash of the cell alone, as a "
    f"schema does ({_SCHEMA}); the categories that occur are read off private rows: a release that "
    "no certificate covers"
)


def table_path(folder: Path, stem: str) -> Path:
    """The one table called ``stem`` in ``folder``: csv or parquet."""
    paths = [path for end in ("csv", "parquet") if (path := folder / f"{stem}.{end}").is_file()]
    if len(paths) != 1:
        got = "both" if paths else "neither"
        raise InvalidInputError(
            f"The directory {folder} must hold either {stem}.csv or {stem}.parquet. Got {got} "
            "instead; docs/data.md says what columns it has."
        )
    return paths[0]


def read_table(
    path: Path,
    required: Names,
    *,
    text: Names | None = TEXT,
    only: Names | None = None,
    filled: Names | None = None,
    as_written: bool = False,
    stated: bool = False,
) -> pd.DataFrame:
    """The table at ``path``: ``.csv``, ``.csv.gz`` or ``.parquet``.

    ``required`` columns must be there, and those ``filled`` (``required`` unless told) have no
    empty cell. ``text`` columns are read as written; None takes a csv, all columns as written. Of a
    csv, ``only`` these columns are kept. With ``as_written`` no cell depends on others: all columns
    of a csv are text, and whole numbers of a parquet file stay so beside empty cells. ``stated``
    says that a schema names the ``required`` columns.
    """
    with reading_file(path):
        if text is not None and path.suffix == ".parquet":
            table = _read_parquet(path, required, text, as_written, stated)
        else:
            table = _read_csv(path, required, None if as_written else text, only, stated)
    for name in required if filled is None else filled:
        if name in table:
            check_cells(path, table[name], table[name].isna(), "filled in", "every row needs one")
    return table


def read_texts(path: str | Path, required: Names, filled: Names = ()) -> pd.DataFrame:
    """A csv, perhaps ``.gz``, with every cell as text, and none empty in ``filled`` columns."""
    path = at_home(path)
    if not path.is_file():
        raise InvalidInputError(f"There is no file {path}; check the path.")
    return read_table(path, required, text=None, filled=filled)


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Say in one line that ``path`` cannot be written."""
    try:
        yield
    except OSError as error:
        raise InvalidInputError(
            f"{path} cannot be written ({error.strerror}); choose another place."
        ) from None


def open_table(path: Path) -> io.BufferedReader:
    """A file as bytes; a ``.gz`` that unpacks to too much is refused on the way."""
    if path.suffix != ".gz":
        return path.open("rb")
    return io.BufferedReader(Unpacked(path, TABLE, "unpack it, and name the table"))


def _read_csv(
    path: Path, required: Names, text: Names | None, only: Names | None, stated: bool
) -> pd.DataFrame:
    with open_table(path) as file:
        columns = _header(path, file)
    check_columns(path, columns, required, stated=stated)
    with open_table(path) as file, warnings.catch_warnings():
        # Otherwise a line that is too long loses its last cell with no more than a warning.
        warnings.simplefilter("error", pd.errors.ParserWarning)
        warnings.simplefilter("ignore", pd.errors.DtypeWarning)
        return pd.read_csv(
            file,
            dtype="str" if text is None else {name: "str" for name in text if name in columns},
            usecols=only,
            index_col=False,
            encoding="utf-8-sig",
            keep_default_na=False,
            na_values=[""],
        )


def _header(path: Path, file: io.BufferedReader) -> list[str]:
    """The columns that the first line of a csv names; text that is no UTF-8 is called so."""
    start = file.peek(4)[:4]
    if start[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) or b"\0" in start:
        raise InvalidInputError(
            f"{path} must be UTF-8 text. It looks like UTF-16 instead; save it as UTF-8."
        )
    with io.TextIOWrapper(file, encoding="utf-8-sig", newline="") as lines:
        return next(csv.reader(lines), [])


def column_names(path: Path) -> list[str]:
    """The names of the columns of a table, csv or parquet; no cell is read."""
    with reading_file(path):
        if path.suffix == ".parquet":
            columns = [name for name in _parquet(path).read_schema(path).names if name]
        elif path.suffix in (".csv", ".gz"):
            with open_table(path) as file:
                columns = _header(path, file)
        else:
            raise ValueError("its name must end in .csv or .parquet")
    check_columns(path, columns, ())
    if len(columns) == 1:
        _check_commas(path, lambda mark: mark in columns[0])
    if not columns:
        raise InvalidInputError(f"{path} has no columns; name them in its first line.")
    return [name for name in columns if not _NAMELESS.match(name)]


def _check_commas(path: Where, is_mark: Callable[[str], bool]) -> None:
    """Refuse a first line whose columns stand apart by another mark than commas."""
    for mark, marks in ((";", "semicolons"), ("\t", "tabs"), ("|", "bars")):
        if is_mark(mark):
            raise InvalidInputError(
                f"{path} must have commas between its columns. Got {marks} instead; save it "
                "with commas, and with points in numbers."
            )


def _split_at(mark: str, line: str) -> set[str]:
    return {cell.strip(' "') for cell in line.split(mark)}


def check_columns(
    path: Where, columns: list[str], required: Names, *, stated: bool = False
) -> None:
    """Refuse a table without a ``required`` column, or with two of one name.

    ``stated`` says that a schema calls them so.
    """
    missing = [name for name in required if name not in columns]
    if missing:
        cells = ",".join(columns)
        _check_commas(path, lambda mark: set(required) <= _split_at(mark, cells))
        got = ", ".join(_validate.shown(name) for name in columns[:8]) or "an empty table"
        got += f" and {len(columns) - 8:,} more" if len(columns) > 8 else ""
        way_out = "name them in the first line" if isinstance(path, Path) else "rename yours"
        if stated:
            way_out += ", because the schema calls them so"
            if {"source", "target"} & set(missing):
                way_out += ", or does not say under [edges] what they are called"
        elif not isinstance(path, Path) or path.stem.split("-")[0] in ("nodes", "edges", "graphs"):
            place = f" {path.parent}" if isinstance(path, Path) else ""
            way_out += (
                f", or say in a schema what they are called ('graphveil data schema{place}' writes "
                "a first schema)"
            )
        raise InvalidInputError(
            f"{path} must have the column(s) {', '.join(map(repr, missing))}. Got {got} instead; "
            f"{way_out}."
        )
    if twice := sorted({name for name in columns if columns.count(name) > 1}):
        raise InvalidInputError(f"{path} has the column {twice[0]!r} more than once; rename one.")


def _read_parquet(
    path: Path, required: Names, text: Names, as_written: bool, stated: bool
) -> pd.DataFrame:
    """All columns, an index of pandas that has a name among them."""
    parquet = _parquet(path)
    import pyarrow as pa

    fixed = pa.types.is_primitive  # all values of such a type take the same room
    way_out = "write it without compression and dictionaries, or as csv"
    with parquet.ParquetFile(path) as file:
        schema = file.schema_arrow
        check_columns(path, schema.names, required, stated=stated)
        # Runs of one value take hardly any room in the file, in which metadata count them so.
        wide = sum(getattr(kind, "bit_width", 8) if fixed(kind) else 8 for kind in schema.types)
        check_unpacked(path, file.metadata.num_rows * wide // 8, TABLE, way_out)
        # A text told once may stand in every row, so that few rows are read at a time.
        rows = 1 << 16 if all(map(fixed, schema.types)) else 1 << 10
        batches, size = [], 0
        for batch in file.iter_batches(batch_size=rows):
            size += batch.nbytes
            check_unpacked(path, size, TABLE, way_out)
            batches.append(batch)
    table = pa.Table.from_batches(batches, schema=schema)
    return arrow_to_pandas(path, table, text, as_written=as_written)


def arrow_to_pandas(
    path: Where, table: Any, text: Names = TEXT, *, as_written: bool = False
) -> pd.DataFrame:
    """A table of Arrow; ``text`` columns of bytes are decoded, numbers of rows are left out.

    With ``as_written`` whole numbers stay so beside empty cells.
    """
    import pyarrow as pa

    table = table.drop_columns([name for name in table.column_names if _NAMELESS.match(name)])
    for place, (name, kind) in enumerate(zip(table.column_names, table.schema.types, strict=True)):
        if name in text and (pa.types.is_binary(kind) or pa.types.is_large_binary(kind)):
            try:
                table = table.set_column(place, name, table[name].cast(pa.string()))
            except pa.ArrowInvalid:
                raise InvalidInputError(
                    f"{path}: column {name!r} must be UTF-8 text. Got other bytes instead; decode "
                    "them before you save the table."
                ) from None
    return table.to_pandas(ignore_metadata=True, integer_object_nulls=as_written)


def _parquet(path: Path) -> Any:
    """The library that reads parquet."""
    try:
        import pyarrow.parquet
    except ImportError:
        raise InvalidInputError(
            f"Reading {path} needs pyarrow; pip install 'graphveil[data]', or save it as csv."
        ) from None
    return pyarrow.parquet


def read_numbers(path: Path, dtype: Any) -> NDArray[Any]:
    """The numbers of a csv without a header, perhaps ``.gz``, as data sets are published."""
    table = pd.read_csv(path, header=None, skipinitialspace=True, dtype=dtype)
    # A copy, row by row: what pandas hands out is read-only and lies column by column.
    return np.array(table.to_numpy(), order="C")


def comparable(columns: list[pd.Series]) -> list[pd.Series]:
    """All as whole numbers if all are written plainly, which is faster to look up; else as text."""
    plain = r"0|[1-9][0-9]{0,17}"  # "01" and "+1" are not 1, and 18 digits fit
    texts = [None if pd.api.types.is_integer_dtype(c) else c.astype("str") for c in columns]
    if all(text is None or text.str.fullmatch(plain).all() for text in texts):
        return [column.astype("int64") for column in columns]
    return [column.astype("str") for column in columns]


def unique_index(
    path: Where, ids: pd.Series, rule: str, way_out: str, *, keys: pd.Series | None = None
) -> pd.Index:
    """The ``ids``, or what stands for them in ``keys``, to look others up in; refused if twice."""
    index = pd.Index(ids if keys is None else keys)
    check_cells(path, ids, pd.Series(index.duplicated()), rule, way_out)
    return index


def places(
    index: pd.Index,
    path: Where,
    column: pd.Series,
    rule: str,
    way_out: str,
    *,
    keys: pd.Series | None = None,
) -> NDArray[np.int64]:
    """Where in ``index`` each cell of ``column``, or what stands for it in ``keys``, is."""
    positions = index.get_indexer(pd.Index(column if keys is None else keys))
    check_cells(path, column, pd.Series(positions < 0), rule, way_out)
    return positions.astype(np.int64)


def ids_of(folder: str | Path, stem: str, column: str = "id") -> list[str]:
    """The ids in the table ``stem`` at ``folder``, as written there, in their order."""
    table = read_table(table_path(at_home(folder), stem), (column,), text=(*TEXT, column))
    return [str(name) for name in table[column]]


def edge_ends(
    nodes_path: Where,
    ids: pd.Series,
    edges_path: Where,
    edges: pd.DataFrame,
    ends: tuple[str, str] = ("source", "target"),
) -> NDArray[np.int64]:
    """(2, edges): the columns ``ends`` of ``edges`` as places among the ``ids`` of nodes."""
    known, *columns = comparable([ids, *(edges[name] for name in ends)])
    rule, way_out = "unlike all other ids", "keep one row for each node"
    index = unique_index(nodes_path, ids, rule, way_out, keys=known)
    rule, way_out = f"an id in {Path(nodes_path).name}", "add the node or drop the edge"
    return np.stack([places(index, edges_path, column, rule, way_out) for column in columns])


def floats(column: pd.Series) -> pd.Series:
    """A column as float64: NaN where it is no number, infinite where it is too large for one."""
    try:
        return pd.to_numeric(column, errors="coerce").astype("float64")
    except OverflowError:
        return column.map(_float).astype("float64")


def _float(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf
    except (TypeError, ValueError):
        return math.nan


def numbers(path: Where, table: pd.DataFrame, columns: list[str]) -> NDArray[np.float32]:
    """The ``columns``, each a finite number in every row."""
    for name in columns:
        column = table[name]
        if column.dtype.kind in "cmM":  # complex numbers, dates and durations
            wrong = pd.Series(True, index=column.index)
        elif not pd.api.types.is_numeric_dtype(column):
            wrong = floats(column).isna()
        else:
            wrong = ~np.isfinite(column.astype("float64"))
        if wrong.any():
            first = column[wrong.to_numpy(bool)].iloc[0]
            check_cells(path, column, wrong, "a finite number", _way_to_number(first))
        values = floats(column)
        large = values.abs() > _LARGEST
        check_cells(path, column, large, "finite as float32", "numbers go up to 3.4e38")
        if not pd.api.types.is_numeric_dtype(column):
            table[name] = values
    return np.array(table[columns].to_numpy(np.float32), order="C")


def _way_to_number(cell: Any) -> str:
    """What to do about a cell that is no finite number."""
    if isinstance(cell, (date, np.datetime64)) or (isinstance(cell, str) and _DATE.match(cell)):
        return f"give days since a public date, as a schema does ({_SCHEMA})"
    if not isinstance(cell, str):
        return _FREE_CONSTANT
    if comma := _COMMA.fullmatch(cell):
        return f"write numbers with a point: {comma[1]}.{comma[2]}"
    return _FREE_WORDS


@contextlib.contextmanager
def counting_rows(rows: int | Sequence[int]) -> Iterator[None]:
    """Have refusals name the rows of a whole table where a part of it is read.

    ``rows`` is how many stand before the part, or the place of each of its rows.
    """
    token = _ROWS.set(rows)
    try:
        yield
    finally:
        _ROWS.reset(token)


def check_cells(path: Where, column: pd.Series, wrong: pd.Series, rule: str, way_out: str) -> None:
    """Refuse a ``column`` with a ``wrong`` cell, and name the first."""
    if not wrong.any():
        return
    row = int(np.argmax(wrong.to_numpy(bool)))
    value = column.iloc[row]
    value = getattr(value, "item", lambda: value)()
    before = _ROWS.get()
    row = before + row if isinstance(before, int) else before[row]
    got = "an empty cell" if np.ndim(value) == 0 and pd.isna(value) else _validate.shown(value)
    raise InvalidInputError(
        f"{path}: column {column.name!r} must be {rule}. Got {got} in row {row + 1} instead; "
        f"{way_out}."
    )


@contextlib.contextmanager
def reading_file(path: Path) -> Iterator[None]:
    """Say in one line why the file at ``path`` cannot be read; what is said already stays."""
    try:
        yield
    except InvalidInputError:
        raise
    except Exception as error:  # zip, gzip, pickle, header and parser errors: a dozen kinds
        refuse_file(path, error)


def refuse_file(path: Path, error: Exception) -> NoReturn:
    """Say in one line why the file at ``path`` cannot be read."""
    reason = " ".join(str(error).split())
    if isinstance(error, UnicodeDecodeError):
        reason = f"it is no UTF-8 text: byte 0x{error.object[error.start]:02x}"
        way_out = "save it as UTF-8; it may be latin-1 or Windows-1252"
    elif cells := _TOO_MANY_CELLS.search(reason):
        reason = f"line {cells[2]} has {cells[3]} cells, and the lines before it {cells[1]}"
        way_out = "put a cell that holds a comma between quotation marks"
    elif "Weights only load failed" in reason or "allow_pickle" in reason:
        reason = "it holds more than plain arrays, and loading that could run its code"
        way_out = "save a plain Data with torch.save, or arrays with numpy.savez"
    else:
        if len(reason) > 160:
            reason = reason[:160].rpartition(". ")[0] or reason[:160]
        reason = f"{type(error).__name__}: {reason.rstrip('.')}"
        way_out = "it may be cut short, empty or of another format; write it again"
    raise InvalidInputError(f"{path} cannot be read ({reason}); {way_out}.") from None
