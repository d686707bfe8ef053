"""A user's own graph or graphs: tables, a ``.npz``, or a saved ``Data``. No file can run code.

**A directory** with ``nodes.csv`` and ``edges.csv`` (or ``.parquet``)::

    nodes.csv                          edges.csv
    id,label,split,age,posts           source,target
    ann,red,train,31,12                ann,bob
    bob,blue,test,27,3

``id`` may be text or number. ``label`` and ``split`` may be missing; every other column is a
feature and holds numbers. Labels are class numbers from 0, or names, which are kept only if they
are stated to be public (``classes``, see :mod:`graphveil.data.classes`). An empty label means
unlabelled, an empty split neither trained on nor tested. Each line of ``edges`` is a friendship
unless ``directed``; then messages go from ``source`` to ``target`` only. Beside the tables there
may be a ``public.txt``: a line for each thing that they rest on and that counts as public
(``data.public``), which certificates repeat.

**A .npz** with the arrays ``x`` and ``edge_index``, perhaps ``y``, ``train_mask``, ``val_mask``,
``test_mask``, ``edge_attr``, ``pos``, ``num_classes``, ``class_names``, ``columns`` and
``directed``: named and shaped as in PyG, taken as they are. What is not a row counts as public;
``public`` is the lines of ``public.txt``.

**A .pt** written by ``torch.save(data, path)``, with the same names, taken as they are.

**Many graphs**, each a record: a directory with ``graphs.csv`` besides, see
:mod:`graphveil.data.graph_tables`; a ``.npz`` or ``.pt`` with ``batch`` and ``num_graphs``; or a
``.pt`` with a list of ``Data``, joined by :func:`graphveil.data.graphs.collated`.
"""

from __future__ import annotations

import codecs
import csv
import io
import math
import os
import re
import warnings
from datetime import date
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch_geometric.data import Data
from torch_geometric.data.data import DataEdgeAttr, DataTensorAttr
from torch_geometric.data.storage import GlobalStorage
from torch_geometric.utils import coalesce

from graphveil import _validate
from graphveil._errors import InvalidInputError
from graphveil._inputs import ARRAYS, TABLE, at_home, check_unpacked, check_zip, read_text, regular
from graphveil.data import classes as _classes
from graphveil.graph.checks import MASKS, OF_ALL, check_layout, checked, directed_of

_TEXT = ("id", "label", "split", "source", "target")  # read as written: "01" is not "1"
_PARTS = ("train", "val", "test")
_OF_GRAPHS = ("batch", "num_graphs", "pos")
_NAMELESS = re.compile(r"__index_level_\d+__$")  # pandas' own numbers of rows
_LARGEST = float(np.finfo(np.float32).max)
_LINES = ("class_names", "columns", "public", "void_because")
_NAMES = ("x", "edge_index", "y", *MASKS, "edge_attr", *OF_ALL, *_OF_GRAPHS)
PUBLIC = "public.txt"  # what tables rest on, beside them


def read(path: str | Path, *, classes: Any = None, directed: bool | None = None) -> Data:
    """Read the graph at ``path``.

    ``classes`` states which classes there are: their number, a list of names, or ``"public"``; see
    :mod:`graphveil.data.classes`. ``directed`` states whether edges have a direction. A line of a
    table is one message then, and else two; of arrays, which are taken as they are, nobody knows
    unless it is said.

    Refused, in one line: absent, empty, truncated or garbled files, missing columns, duplicate ids,
    edges to absent nodes, features that are no numbers, labels that look like identifiers, and
    every file that would run code.

    *Guarantee*: none; reading is not releasing. Feature columns with their names, ids, what is
    stated of classes and edges, and who is unlabelled count as public.
    """
    path = at_home(path)
    if not os.path.exists(path):  # unlike path.exists(), False for a name that is too long
        raise InvalidInputError(f"There is no file or directory {path}; check the path.")
    said = _classes.stated(classes)
    if path.is_dir() and any((path / f"graphs.{end}").exists() for end in ("csv", "parquet")):
        from graphveil.data.graph_tables import read_graphs

        data = read_graphs(path, classes=said, directed=bool(directed))
    elif path.is_dir():
        data = _read_tables(path, said, bool(directed))
    elif path.suffix == ".npz":
        data = _read_npz(regular(path))
    elif path.suffix in (".pt", ".pth"):
        data = _read_pt(regular(path))
    elif path.stem in ("nodes", "edges", "graphs") and path.suffix in (".csv", ".parquet"):
        raise InvalidInputError(
            f"The file {path} is one of several tables that are read together; give its "
            f"directory: {path.parent}."
        )
    else:
        raise InvalidInputError(
            f"The file {path} must be a .npz, a .pt, or a directory with nodes.csv and edges.csv. "
            f"Got {path.suffix or 'no ending'!r} instead; convert it to one of them."
        )
    try:
        checked(data, labels=False, masks=False)
        if not path.is_dir():
            _classes.settle(data, path, said)
            _settle_direction(data, directed)
        return checked(data, labels=False, masks=False)
    except InvalidInputError as error:
        said_where = str(error).startswith(f"{path}: ")
        raise InvalidInputError(str(error) if said_where else f"{path}: {error}") from None


def _settle_direction(data: Data, directed: bool | None) -> None:
    """Compare what is stated of edges with what the file says itself."""
    found = directed_of(data)
    if directed is not None and found is not None and directed != found:
        raise InvalidInputError(
            f"The 'directed' parameter must be as the file says. Got {directed} where it says "
            f"{found} instead; correct either."
        )
    if directed is not None:
        data.directed = directed


def node_ids(folder: str | Path) -> list[str]:
    """The ids in the tables at ``folder``, as written there, in the order of the nodes."""
    table = _read_table(_table_path(at_home(folder), "nodes"), required=("id",))
    return [str(each) for each in table["id"]]


def _read_tables(folder: Path, classes: _classes.Stated, directed: bool) -> Data:
    nodes_path, edges_path = _table_path(folder, "nodes"), _table_path(folder, "edges")
    nodes = _read_table(nodes_path, required=("id",))
    edges = _read_table(edges_path, required=("source", "target"))
    if len(nodes) == 0:
        raise InvalidInputError(f"{nodes_path} has no rows; give each node one.")

    if "graph" in nodes and floats(nodes["graph"]).isna().any():
        raise InvalidInputError(
            f"{nodes_path} has a column 'graph' of names, so that {folder} must hold a table of "
            "graphs. Got none instead; add graphs.csv with a column 'id'."
        )
    columns = _feature_columns(nodes_path, nodes)
    data = Data(x=torch.from_numpy(_numbers(nodes_path, nodes, columns)))
    data.columns, data.directed = columns, directed
    data.edge_index = _edge_index(nodes_path, nodes["id"], edges_path, edges)
    if not directed:
        both = torch.cat([data.edge_index, data.edge_index.flip(0)], dim=1)
        data.edge_index = coalesce(both, num_nodes=len(nodes))
    _put_public(data, folder)
    if "label" in nodes:
        _classes.put(data, nodes_path, nodes["label"], classes)
    if "split" in nodes:
        _put_masks(data, nodes_path, nodes["split"])
    return data


def _put_public(data: Data, folder: Path) -> None:
    if (lines := folder / PUBLIC).is_file():
        try:
            data.public = [line for line in read_text(lines).splitlines() if line.strip()]
        except (OSError, UnicodeDecodeError) as error:
            _unreadable(lines, error)


def _put_masks(data: Data, path: Path, parts: pd.Series) -> None:
    wrong = parts.notna() & ~parts.isin(_PARTS)
    if wrong.any():
        way_out = "write train, val, test, or leave it empty"
        _bad_cell(path, parts, wrong, "train, val or test", way_out)
    for part in _PARTS:
        data[f"{part}_mask"] = torch.tensor((parts == part).to_numpy(bool, na_value=False))


def _table_path(folder: Path, stem: str) -> Path:
    found = [path for end in ("csv", "parquet") if (path := folder / f"{stem}.{end}").is_file()]
    if len(found) != 1:
        got = "both" if found else "neither"
        raise InvalidInputError(
            f"The directory {folder} must hold either {stem}.csv or {stem}.parquet. Got {got} "
            "instead; docs/data.md says what columns it has."
        )
    return found[0]


def _read_table(
    path: Path,
    required: tuple[str, ...],
    text: tuple[str, ...] = _TEXT,
    only: tuple[str, ...] | None = ("source", "target"),
) -> pd.DataFrame:
    """The table at ``path``, ``text`` columns as written; of a table of edges, ``only`` these."""
    try:
        if path.suffix == ".csv":
            with path.open("rb") as file:
                columns = header(path, file)
            _check_columns(path, columns, required)
            kept = list(only) if only and "source" in columns else None
            table = _read_csv(path, columns, text, kept)
        else:
            table = _read_parquet(path, required, text)
    except InvalidInputError:
        raise
    except ImportError:
        raise InvalidInputError(
            f"Reading {path} needs pyarrow; pip install 'graphveil[data]', or save it as csv."
        ) from None
    except Exception as error:  # the readers raise a dozen kinds
        _unreadable(path, error)
    for name in required:
        if name in table and (missing := table[name].isna()).any():
            _bad_cell(path, table[name], missing, "filled in", "every row needs one")
    return table


def header(path: Path, file: io.BufferedReader) -> list[str]:
    """The columns that the first line of a csv names; text that is no UTF-8 is called so."""
    start = file.peek(4)[:4]
    if start[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) or b"\0" in start:
        raise InvalidInputError(
            f"{path} must be UTF-8 text. It looks like UTF-16 instead; save it as UTF-8."
        )
    with io.TextIOWrapper(file, encoding="utf-8-sig", newline="") as lines:
        return next(csv.reader(lines), [])


def _read_parquet(path: Path, required: tuple[str, ...], text: tuple[str, ...]) -> pd.DataFrame:
    """All columns, an index of pandas that has a name among them."""
    import pyarrow as pa
    import pyarrow.parquet

    way_out = "write it without compression and dictionaries, or as csv"
    with pyarrow.parquet.ParquetFile(path) as file:
        schema = file.schema_arrow
        _check_columns(path, schema.names, required)
        # Runs of one value take hardly any room in the file, in which metadata count them so.
        wide = sum(getattr(kind, "bit_width", 8) if _fixed(kind) else 8 for kind in schema.types)
        check_unpacked(path, file.metadata.num_rows * wide // 8, TABLE, way_out)
        # A text told once may stand in every row, so that few rows are read at a time.
        rows = 1 << 16 if all(map(_fixed, schema.types)) else 1 << 10
        batches, size = [], 0
        for batch in file.iter_batches(batch_size=rows):
            size += batch.nbytes
            check_unpacked(path, size, TABLE, way_out)
            batches.append(batch)
    table = pa.Table.from_batches(batches, schema=schema)
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
    return table.to_pandas(ignore_metadata=True)


def _fixed(kind: Any) -> bool:
    """Whether all values of an Arrow type take the same room."""
    import pyarrow as pa

    return pa.types.is_primitive(kind)


def _check_columns(path: Path, columns: list[str], required: tuple[str, ...]) -> None:
    missing = [name for name in required if name not in columns]
    if missing:
        for mark, name in ((";", "semicolons"), ("\t", "tabs"), ("|", "bars")):
            if set(required) <= {each.strip(' "') for each in ",".join(columns).split(mark)}:
                raise InvalidInputError(
                    f"{path} must have commas between its columns. Got {name} instead; save it "
                    "with commas, and with points in numbers."
                )
        got = ", ".join(_validate.shown(name) for name in columns[:8]) or "an empty file"
        raise InvalidInputError(
            f"{path} must have the column(s) {', '.join(map(repr, missing))}. Got {got} instead; "
            "name them in the first line."
        )
    twice = sorted({name for name in columns if columns.count(name) > 1})
    if twice:
        raise InvalidInputError(f"{path} has the column {twice[0]!r} more than once; rename one.")


def _read_csv(
    path: Path, columns: list[str], text: tuple[str, ...], only: list[str] | None
) -> pd.DataFrame:
    with warnings.catch_warnings():
        # Otherwise a line that is too long loses its last cell with no more than a warning.
        warnings.simplefilter("error", pd.errors.ParserWarning)
        warnings.simplefilter("ignore", pd.errors.DtypeWarning)
        return pd.read_csv(
            path,
            dtype={name: "str" for name in text if name in columns},
            usecols=only,
            index_col=False,
            encoding="utf-8-sig",
            # A class may be called "NA" or "None": only an empty cell is missing.
            keep_default_na=False,
            na_values=[""],
        )


def _feature_columns(path: Path, nodes: pd.DataFrame) -> list[str]:
    columns = [name for name in nodes.columns if name not in ("id", "label", "split")]
    if not columns:
        raise InvalidInputError(
            f"{path} must have a feature column. Got only {', '.join(map(repr, nodes.columns))} "
            "instead; where there are no features, add a column of ones."
        )
    return columns


# Ways to make a cell a number that read no other row.
_FREE_CONSTANT = (
    "put a public constant there, and a column of 0 and 1 that says where it was missing; a mean "
    "or median of the column is read off private rows: a release that no certificate covers"
)
_FREE_WORDS = (
    "make columns of 0 and 1 by a public list of categories, or by a hash of the cell alone; the "
    "categories that occur are read off private rows: a release that no certificate covers"
)


_COMMA = re.compile(r"\s*([+-]?[0-9]+),([0-9]+)\s*")
_DATE = re.compile(r"\s*(\d{4}-\d{1,2}-\d{1,2}|\d{1,2}([./])\d{1,2}\2\d{2,4})\b")


def _way_to_number(cell: Any) -> str:
    """What to do about a cell that is no finite number."""
    if isinstance(cell, (date, np.datetime64)) or (isinstance(cell, str) and _DATE.match(cell)):
        return "give days since a public date"
    if not isinstance(cell, str):
        return _FREE_CONSTANT
    if comma := _COMMA.fullmatch(cell):
        return f"write numbers with a point: {comma[1]}.{comma[2]}"
    return _FREE_WORDS


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


def _numbers(path: Path, table: pd.DataFrame, columns: list[str]) -> NDArray[np.float32]:
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
            _bad_cell(path, column, wrong, "a finite number", _way_to_number(first))
        numbers = floats(column)
        if (wrong := numbers.abs() > _LARGEST).any():
            _bad_cell(path, column, wrong, "finite as float32", "numbers go up to 3.4e38")
        if not pd.api.types.is_numeric_dtype(column):
            table[name] = numbers
    return np.array(table[columns].to_numpy(np.float32), order="C")


def _edge_index(
    nodes_path: Path, ids: pd.Series, edges_path: Path, edges: pd.DataFrame
) -> torch.Tensor:
    columns = _comparable([ids, edges["source"], edges["target"]])
    index = pd.Index(columns[0])
    twice = pd.Series(index.duplicated())
    if twice.any():
        _bad_cell(nodes_path, ids, twice, "unlike all other ids", "keep one row for each node")
    ends = []
    for column in columns[1:]:
        positions = index.get_indexer(pd.Index(column))
        absent = pd.Series(positions < 0)
        if absent.any():
            rule, way_out = f"an id in {nodes_path.name}", "add the node or drop the edge"
            _bad_cell(edges_path, column, absent, rule, way_out)
        ends.append(torch.from_numpy(positions.astype(np.int64)))
    return torch.stack(ends)


def _comparable(columns: list[pd.Series]) -> list[pd.Series]:
    """All as whole numbers if all are written plainly, which is faster to look up; else as text."""
    plain = r"0|[1-9][0-9]{0,17}"  # "01" and "+1" are not 1, and 18 digits fit
    texts = [None if pd.api.types.is_integer_dtype(c) else c.astype("str") for c in columns]
    if all(text is None or text.str.fullmatch(plain).all() for text in texts):
        return [column.astype("int64") for column in columns]
    return [column.astype("str") for column in columns]


def _read_npz(path: Path) -> Data:
    try:
        check_zip(path, ARRAYS, "write it with numpy.savez, which does not compress")
        with np.load(path, allow_pickle=False) as file:
            if not isinstance(file, np.lib.npyio.NpzFile):
                raise ValueError("one array, not an archive of named ones")
            _check_names(path, file.files)
            arrays = {name: file[name] for name in file.files}
    except InvalidInputError:
        raise
    except Exception as error:  # zip, zlib, header and pickle errors are of many kinds
        _unreadable(path, error)
    data = Data()
    for name, array in arrays.items():
        if name in ("num_classes", "num_graphs", "directed"):
            data[name] = array.item() if array.ndim == 0 else array.tolist()
        elif name in _LINES:
            if array.ndim > 1 or (array.size and array.dtype.kind != "U"):
                got = f"{array.dtype} of {array.ndim} dimensions"
                raise InvalidInputError(f"{path}: {name!r} must be a list of texts, got {got}.")
            data[name] = [str(line) for line in np.atleast_1d(array).tolist()]
        elif array.dtype.kind not in "biuf":
            raise InvalidInputError(f"{path}: {name!r} must hold numbers, got {array.dtype}.")
        else:
            data[name] = torch.from_numpy(_as_pyg_has_it(path, name, array))
    return data


def _as_pyg_has_it(path: Path, name: str, array: NDArray[Any]) -> NDArray[Any]:
    """Features as float32, ids and labels as int64. What is neither is left to the checks."""
    if name in ("x", "edge_attr", "pos"):
        with np.errstate(over="ignore"):  # what is infinite then, the checks refuse
            return array.astype(np.float32)
    if name in ("edge_index", "y", "batch") and array.dtype.kind in "iu":
        if array.dtype.kind == "u" and array.size and array.max() > np.iinfo(np.int64).max:
            raise InvalidInputError(
                f"{path}: {name!r} must be whole numbers below 2^63, got {array.max()}; correct it."
            )
        return array.astype(np.int64)
    return np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("="))


def _read_pt(path: Path) -> Data:
    allowed = [Data, DataEdgeAttr, DataTensorAttr, GlobalStorage]
    try:
        check_zip(path, ARRAYS, "write it with torch.save, which does not compress")
        # Of what is deprecated, such as quantized tensors, torch warns; the checks refuse it.
        with warnings.catch_warnings(), torch.serialization.safe_globals(allowed):
            warnings.simplefilter("ignore", UserWarning)
            saved = torch.load(path, map_location="cpu", weights_only=True)
        _check_tensors(path, saved)
        if isinstance(saved, (list, tuple)) and all(type(each) is Data for each in saved):
            return _joined(path, list(saved))
        if not isinstance(saved, Data):
            raise ValueError(
                f"a {type(saved).__name__}, not a torch_geometric.data.Data or a list of them"
            )
        found = {name: saved[name] for name in saved.keys() if saved[name] is not None}  # noqa: SIM118
    except InvalidInputError:
        raise
    except Exception as error:
        _unreadable(path, error)
    _check_names(path, list(found))
    # A fresh Data: whatever else the file hung on its own is left behind.
    return Data.from_dict(found)


def _check_tensors(path: Path, saved: Any) -> None:
    """Refuse tensors that are not laid out in memory, or that together say more than the file.

    One number may stand for a tensor of any shape (``expand``), and one graph in a list for many.
    """
    graphs = saved if isinstance(saved, (list, tuple)) else [saved]
    size = 0
    for graph in graphs:
        for name, value in graph.to_dict().items() if type(graph) is Data else ():
            if isinstance(value, torch.Tensor):
                try:
                    check_layout(name, value)
                except InvalidInputError as error:
                    raise InvalidInputError(f"{path}: {error}") from None
                size += value.numel() * value.element_size()
    check_unpacked(path, size, ARRAYS, "save contiguous tensors, each graph once")


def _joined(path: Path, graphs: list[Data]) -> Data:
    from graphveil.data.graphs import collated

    try:
        return collated([Data.from_dict(graph.to_dict()) for graph in graphs])
    except InvalidInputError as error:
        raise InvalidInputError(f"{path}: {error}") from None


def _check_names(path: Path, names: list[str]) -> None:
    unknown = [name for name in names if name not in _NAMES]
    missing = [name for name in ("x", "edge_index") if name not in names]
    if unknown or missing:
        fault = f"has the unknown {unknown[0]!r}" if unknown else f"has no {missing[0]!r}"
        raise InvalidInputError(f"{path} {fault}; it may hold {', '.join(_NAMES)}.")


def _bad_cell(path: Path, column: pd.Series, wrong: pd.Series, rule: str, way_out: str) -> NoReturn:
    """Name the first wrong cell; rows count from 1, below the header."""
    row = int(np.argmax(wrong.to_numpy(bool)))
    value = column.iloc[row]
    value = getattr(value, "item", lambda: value)()
    got = "an empty cell" if np.ndim(value) == 0 and pd.isna(value) else _validate.shown(value)
    raise InvalidInputError(
        f"{path}: column {column.name!r} must be {rule}. Got {got} in row {row + 1} instead; "
        f"{way_out}."
    )


def _unreadable(path: Path, error: Exception) -> NoReturn:
    reason = " ".join(str(error).split())
    if isinstance(error, UnicodeDecodeError):
        reason = f"it is no UTF-8 text: byte 0x{error.object[error.start]:02x}"
        way_out = "save it as UTF-8; it may be latin-1 or Windows-1252"
    elif "Weights only load failed" in reason or "allow_pickle" in reason:
        reason = "it holds more than plain arrays, and loading that could run its code"
        way_out = "save a plain Data with torch.save, or arrays with numpy.savez"
    else:
        if len(reason) > 160:
            reason = reason[:160].rpartition(". ")[0] or reason[:160]
        reason = f"{type(error).__name__}: {reason.rstrip('.')}"
        way_out = "it may be cut short, empty or of another format; write it again"
    raise InvalidInputError(f"{path} cannot be read ({reason}); {way_out}.") from None
