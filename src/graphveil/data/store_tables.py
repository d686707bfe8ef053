"""Tables read some rows at a time: csv, parquet, streams of Arrow, DataFrames, queries of DuckDB.

A :class:`RowTable` gives parts of a table of nodes as pandas has them, with what a csv reader for
the whole table would make of each cell; and the two ends of edges as Arrow has them.
"""

from __future__ import annotations

import contextlib
import re
import warnings
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from graphveil._errors import InvalidInputError
from graphveil._inputs import regular
from graphveil.data import _tables
from graphveil.data._tables import Where
from graphveil.data.frames import as_frame
from graphveil.data.store_texts import Keys, keys_of, require_arrow

_PARTS = re.compile(r"(.+?)-(.+)\.(csv|parquet)$")
_BLOCK = 1 << 24  # bytes of a csv of edges that are read together
_TEXT_ROWS = 1 << 14  # of a table with texts, that are read together


class Part(NamedTuple):
    """Some rows of a table: how many stand before them, in the file that ``where`` names."""

    where: Where
    before: int
    table: Any


class Ends(NamedTuple):
    """Both ends of some edges, as ids."""

    where: Where
    before: int
    senders: Keys
    receivers: Keys


class RowTable:
    """A table that is read once or more, some rows at a time. ``is_repeatable`` if more.

    ``rows`` of :meth:`parts` is how many at a time.
    """

    where: Where
    is_repeatable = False

    def columns(self) -> list[str]:
        """The names of the columns."""
        raise NotImplementedError

    def parts(
        self, rows: int, text: tuple[str, ...], only: tuple[str, ...] | None, *, as_written: bool
    ) -> Iterator[Part]:
        """All rows in order: DataFrames, or with ``only`` some columns, batches of Arrow."""
        raise NotImplementedError

    def fingerprint(self) -> Any:
        """What must be the same for a build to go on; None where that cannot be said."""
        return None

    def length(self) -> int | None:
        """How many rows there are, if that is known."""
        return None


class FileTable(RowTable):
    """One table in one file or several, csv or parquet."""

    is_repeatable = True

    def __init__(self, paths: list[Path]) -> None:
        self.paths, self.where = paths, paths[0]
        self._path = paths[0]

    def columns(self) -> list[str]:
        return _tables.column_names(self._path)

    def fingerprint(self) -> Any:
        facts = [(path, path.stat()) for path in self.paths]
        return [[str(path.absolute()), stat.st_size, stat.st_mtime_ns] for path, stat in facts]

    def length(self) -> int | None:
        if any(path.suffix != ".parquet" for path in self.paths):
            return None
        parquet = _parquet(self._path)
        with _tables.reading_file(self._path):
            return sum(parquet.read_metadata(path).num_rows for path in self.paths)

    def parts(
        self, rows: int, text: tuple[str, ...], only: tuple[str, ...] | None, *, as_written: bool
    ) -> Iterator[Part]:
        for path in self.paths:
            before = 0
            regular(path)
            if path.suffix == ".parquet":
                batches = _read_parquet(path, rows, text, only, as_written=as_written)
            elif only is not None:
                batches = _read_ends(path, only)
            else:
                batches = _read_csv(path, rows, None if as_written else text)
            with _tables.reading_file(path):
                for table in batches:
                    yield Part(path, before, table)
                    before += len(table)


def find_tables(folder: Path, stem: str) -> FileTable:
    """The table ``stem`` in a folder: one file, or parts called ``stem-1.parquet`` and so on."""
    parts = [path for path in folder.glob(f"{stem}-*") if _PARTS.match(path.name)]
    whole = [path for end in ("csv", "parquet") if (path := folder / f"{stem}.{end}").is_file()]
    if not parts or whole:
        if parts:
            raise InvalidInputError(
                f"The directory {folder} must hold the table {stem} whole or in parts. Got both "
                f"{whole[0].name} and {sorted(parts)[0].name} instead; remove one of them."
            )
        return FileTable([_tables.table_path(folder, stem)])
    if len({path.suffix for path in parts}) > 1:
        raise InvalidInputError(
            f"The parts of the table {stem} in {folder} must all be csv or all be parquet. Got "
            "both instead; write them alike."
        )
    return FileTable(sorted(parts, key=_natural))


def has_tables(folder: Path) -> bool:
    """Whether a folder holds a table of nodes."""
    return any(folder.glob("nodes.*")) or any(_PARTS.match(p.name) for p in folder.glob("nodes-*"))


def _natural(path: Path) -> list[Any]:
    """Parts in the order of their numbers, so that 10 comes after 9."""
    words = re.split(r"(\d+)", path.name)
    return [(int(word), "") if word.isdigit() else (-1, word) for word in words]


class StreamTable(RowTable):
    """What streams Arrow, batches of Arrow, or a DataFrame: read once."""

    def __init__(self, source: Any, where: str) -> None:
        self.where = where
        self._frame: pd.DataFrame | None = None
        self._first: Any = None
        if isinstance(source, pd.DataFrame) or type(source).__module__.startswith("pandas."):
            self._frame = as_frame(source, where)
            self._columns = list(self._frame.columns)
            return
        pa = require_arrow(str(where))
        if type(source).__module__.startswith("polars.") and hasattr(source, "collect"):
            source = source.collect()
        if isinstance(source, pa.RecordBatch):
            source = [source]
        if hasattr(source, "__arrow_c_stream__"):
            self._batches: Iterator[Any] = iter(pa.RecordBatchReader.from_stream(source))
        elif isinstance(source, Iterable) and not isinstance(source, (str, bytes)):
            self._batches = iter(source)
        else:
            raise InvalidInputError(
                f"{where} must be a table: something that streams Arrow, batches of Arrow, or a "
                f"DataFrame. Got {type(source).__name__} instead; convert it to one."
            )
        self._first = next(self._batches, None)
        if self._first is None or not hasattr(self._first, "schema"):
            raise InvalidInputError(f"{where} has no rows, or gives no batches of Arrow.")
        self._columns = list(self._first.schema.names)

    def columns(self) -> list[str]:
        return self._columns

    def length(self) -> int | None:
        return None if self._frame is None else len(self._frame)

    def parts(
        self, rows: int, text: tuple[str, ...], only: tuple[str, ...] | None, *, as_written: bool
    ) -> Iterator[Part]:
        before = 0
        if self._frame is not None:
            for start in range(0, len(self._frame), rows):
                part = self._frame.iloc[start : start + rows]
                yield Part(self.where, start, part if only is None else _to_arrow(part, only))
            return
        first, self._first = self._first, None
        if first is None:
            raise InvalidInputError(f"{self.where} was read already; give the stream anew.")
        for batch in chain([first], self._batches):
            for start in range(0, batch.num_rows, rows):
                piece = batch.slice(start, rows)
                yield Part(self.where, before, _as_asked(self.where, piece, text, only, as_written))
                before += piece.num_rows


class QueryTable(RowTable):
    """The rows of a query to a file of DuckDB, in the order in which it gives them."""

    def __init__(self, path: Path, query: str, where: str, *, memory: int, temporary: Path) -> None:
        self.path, self.query, self.where = path, query, where
        self.memory, self.temporary = memory, temporary

    def fingerprint(self) -> Any:
        stat = self.path.stat()
        return [str(self.path.absolute()), stat.st_size, stat.st_mtime_ns, self.query]

    def columns(self) -> list[str]:
        with self._run(f"SELECT * FROM ({self.query.strip().rstrip(';')}) LIMIT 0", 1) as reader:
            return list(reader.schema.names)

    def parts(
        self, rows: int, text: tuple[str, ...], only: tuple[str, ...] | None, *, as_written: bool
    ) -> Iterator[Part]:
        before = 0
        with self._run(self.query, rows) as reader:
            for batch in reader:
                yield Part(self.where, before, _as_asked(self.where, batch, text, only, as_written))
                before += batch.num_rows

    @contextlib.contextmanager
    def _run(self, query: str, rows: int) -> Iterator[Any]:
        try:
            import duckdb
        except ImportError:
            raise InvalidInputError(
                f"Reading {self.path} needs duckdb; pip install 'graphveil[large]'."
            ) from None
        require_arrow(str(self.where))
        self.temporary.mkdir(mode=0o700, parents=True, exist_ok=True)
        limits: dict[str, Any] = {
            "memory_limit": f"{max(self.memory // 4 >> 20, 64)}MiB",
            "temp_directory": str(self.temporary),
        }
        try:
            with duckdb.connect(str(self.path), read_only=True, config=limits) as connection:
                answer = connection.sql(query)
                if answer is None:
                    raise InvalidInputError(
                        f"{self.where} must be a query that gives rows. Got {query!r} instead."
                    )
                names = ("to_arrow_reader", "fetch_arrow_reader")  # the second in older versions
                yield next(getattr(answer, n) for n in names if hasattr(answer, n))(rows)
        except duckdb.Error as error:
            reason = str(error).strip().splitlines()[0]
            raise InvalidInputError(
                f"{self.where} cannot be read ({reason}); correct the query or the file."
            ) from None


# --- parts ----------------------------------------------------------------------------------------


def edge_parts(
    table: RowTable, rows: int, names: tuple[str, str], *, as_written: bool
) -> Iterator[Ends]:
    """Both ends of edges, some at a time; an empty cell is refused."""
    for where, before, batch in table.parts(rows, names, names, as_written=as_written):
        senders, receivers = (_filled(where, before, batch.column(name), name) for name in names)
        yield Ends(where, before, senders, receivers)


def _filled(where: Where, before: int, column: Any, name: str) -> Keys:
    pa = require_arrow("tables")
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    missing = column.null_count > 0
    if not missing and (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        missing = pa.compute.any(pa.compute.equal(column, "")).as_py() or False
    if missing:
        cells = column.to_pandas().rename(name).reset_index(drop=True)
        empty = cells.isna() | (cells.astype(object) == "")
        with _tables.counting_rows(before):
            cells = cells.where(~empty)
            _tables.check_cells(where, cells, empty, "filled in", "every row needs one")
    return keys_of(column)


def _to_arrow(frame: pd.DataFrame, only: tuple[str, ...]) -> Any:
    """Some columns of a DataFrame; what is neither whole nor text is as pandas writes it."""
    pa = require_arrow("tables")
    arrays = []
    for name in only:
        column = frame[name]
        if column.dtype.kind not in "iu":
            missing = column.isna()
            texts = column.astype("str").astype(object).where(~missing, None)
            arrays.append(pa.array(texts.tolist(), pa.large_string()))
        else:
            arrays.append(pa.array(column.to_numpy()))
    return pa.RecordBatch.from_arrays(arrays, list(only))


def _as_asked(
    where: Where, batch: Any, text: tuple[str, ...], only: tuple[str, ...] | None, as_written: bool
) -> Any:
    """A batch as a DataFrame; or ``only`` some columns as they are, text decoded."""
    pa = require_arrow(str(where))
    if only is None:
        table = pa.Table.from_batches([batch])
        return _tables.arrow_to_pandas(where, table, text, as_written=as_written)
    batch = batch.select(list(only))
    binary = [
        pa.types.is_binary(kind) or pa.types.is_large_binary(kind) for kind in batch.schema.types
    ]
    if any(binary):
        try:
            columns = [
                column.cast(pa.large_string()) if is_binary else column
                for column, is_binary in zip(batch.columns, binary, strict=True)
            ]
        except pa.ArrowInvalid:
            raise InvalidInputError(
                f"{where}: ids must be UTF-8 text. Got other bytes instead; decode them before "
                "you save the table."
            ) from None
        batch = pa.RecordBatch.from_arrays(columns, list(only))
    return batch


def _parquet(path: Path) -> Any:
    require_arrow(str(path))
    import pyarrow.parquet

    return pyarrow.parquet


def _read_parquet(
    path: Path,
    rows: int,
    text: tuple[str, ...],
    only: tuple[str, ...] | None,
    *,
    as_written: bool,
) -> Iterator[Any]:
    pa, parquet = require_arrow(str(path)), _parquet(path)
    # With pre_buffer all that was read of the file would stay in memory.
    with parquet.ParquetFile(path, pre_buffer=False) as file:
        schema = file.schema_arrow
        _tables.check_columns(path, schema.names, only or ())
        if only is None and not all(map(pa.types.is_primitive, schema.types)):
            rows = min(rows, _TEXT_ROWS)
        columns = None if only is None else list(only)
        for batch in file.iter_batches(batch_size=rows, columns=columns, use_threads=False):
            yield _as_asked(path, batch, text, only, as_written)


def _read_csv(path: Path, rows: int, text: tuple[str, ...] | None) -> Iterator[pd.DataFrame]:
    """A csv as :func:`graphveil.data._tables.read_table` reads it."""
    columns = _tables.column_names(path)
    with path.open("rb") as file, warnings.catch_warnings():
        warnings.simplefilter("error", pd.errors.ParserWarning)
        warnings.simplefilter("ignore", pd.errors.DtypeWarning)
        with pd.read_csv(
            file,
            dtype="str" if text is None else {name: "str" for name in text if name in columns},
            index_col=False,
            encoding="utf-8-sig",
            keep_default_na=False,
            na_values=[""],
            chunksize=rows,
        ) as chunks:
            for chunk in chunks:
                yield chunk.reset_index(drop=True)


def _read_ends(path: Path, only: tuple[str, ...]) -> Iterator[Any]:
    """Two columns of a csv as text, by Arrow, which is many times faster."""
    pa = require_arrow(str(path))
    import pyarrow.csv as csv

    _tables.check_columns(path, _tables.column_names(path), only)
    convert = csv.ConvertOptions(
        include_columns=list(only),
        column_types=dict.fromkeys(only, pa.string()),
        strings_can_be_null=False,
    )
    parse = csv.ParseOptions(newlines_in_values=True)
    read = csv.ReadOptions(block_size=_BLOCK, use_threads=False)
    with csv.open_csv(path, read, parse, convert) as batches:
        yield from batches
