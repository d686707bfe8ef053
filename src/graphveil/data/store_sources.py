"""What a store is built from: tables, queries, streams, raw files of OGB, or a graph in memory.

:func:`open_source` looks at what it is given, and :class:`Source` is what building reads: rows of
nodes first, then edges.
"""

from __future__ import annotations

import math
import uuid
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch_geometric.data import Data

from graphveil._errors import InvalidInputError
from graphveil._inputs import at_home
from graphveil.data import _tables
from graphveil.data.class_list import Stated, parse_classes
from graphveil.data.files import PUBLIC, read_public
from graphveil.data.frames import say_unread, settle_stated
from graphveil.data.schema import Schema, as_schema, schema_beside
from graphveil.data.store_format import MASK_ARRAYS
from graphveil.data.store_nodes import NodeRows, TableRows, facts_of
from graphveil.data.store_tables import (
    Ends,
    FileTable,
    QueryTable,
    RowTable,
    StreamTable,
    edge_parts,
    find_tables,
    has_tables,
)
from graphveil.data.store_texts import drop_first, keys_of, number_of, require_arrow
from graphveil.data.typed_schema import is_typed_place
from graphveil.graph.checks import check, directed_of, record_of
from graphveil.graph.owners import check_one_each
from graphveil.graph.sparse_rows import as_csr, is_sparse

_EDGES = 1 << 20  # edges that are read together, at most
_OGB_EDGES = ("raw/edge.csv.gz", "edge.csv.gz", "raw/data.npz")
DUCKDB = "duckdb://"


class Source:
    """Nodes and edges, some at a time. ``facts`` is what is said of all, once nodes were read."""

    name = ""
    where: Any = ""
    edges_where: Any = ""
    directed: bool | None = None
    mirror = False  # whether each line of edges goes both ways
    has_ids = False  # whether ends of edges are ids, not numbers of nodes
    classes: Stated = None
    ends = ("source", "target")  # the columns of edges
    is_repeatable = True  # whether rows come in the same order once more

    def __init__(self) -> None:
        self.facts: dict[str, Any] = {}
        self.cut: dict[str, int] = {}

    def fingerprint(self) -> Any:
        """What must be the same for a build to go on."""
        return uuid.uuid4().hex

    def nodes(self, memory: int, skip: int) -> Iterator[tuple[Any, NodeRows]]:
        """Rows of nodes, without the first that are to ``skip``, and what to call their table."""
        raise NotImplementedError

    def edges(self, memory: int, skip: int) -> Iterator[Ends]:
        """Ends of edges, without the first that are to ``skip``."""
        raise NotImplementedError

    def lengths(self, memory: int) -> tuple[int | None, int | None]:
        """How many parts of nodes and edges there will be, if that is known."""
        return None, None


class TableSource(Source):
    """Two tables, perhaps with a schema."""

    has_ids = True

    def __init__(
        self,
        name: str,
        nodes: RowTable,
        edges: RowTable,
        *,
        schema: Schema | None,
        classes: Any,
        directed: bool | None,
        public: list[str] | None = None,
        also: Any = None,
    ) -> None:
        super().__init__()
        require_arrow(name)
        self.name, self.schema, self.classes = name, schema, parse_classes(classes)
        self.where, self.edges_where = nodes.where, edges.where
        self.directed = settle_stated(schema, self.classes, directed)
        self.mirror = not self.directed
        self._nodes, self._edges, self._public, self._also = nodes, edges, public or [], also
        self.is_repeatable = nodes.is_repeatable and edges.is_repeatable
        self.ends = (schema or Schema()).edges.ends
        self._rows = TableRows(schema)
        _tables.check_columns(nodes.where, nodes.columns(), (self._rows.names.id,))
        columns = edges.columns()
        _tables.check_columns(edges.where, columns, self.ends)
        say_unread(edges.where, columns, self.ends)

    def fingerprint(self) -> Any:
        tables = [self._nodes.fingerprint(), self._edges.fingerprint()]
        if None in tables:
            return super().fingerprint()
        schema = None if self.schema is None else self.schema.to_dict()
        return [tables, schema, _plain(self.classes), self.directed, self._public]

    def nodes(self, memory: int, skip: int) -> Iterator[tuple[Any, NodeRows]]:
        self._rows.facts = {name: self.facts[name] for name in self.facts}
        self._rows.cut.update(self.cut)
        rows, written = self._node_rows(memory), self.schema is not None
        for where, before, table in self._nodes.parts(
            rows, self._rows.text, None, as_written=written
        ):
            if skip >= len(table):
                skip -= len(table)
                continue
            part = self._rows.encode(where, table[skip:].reset_index(drop=True), before + skip)
            skip = 0
            if not self.facts:
                self.facts = dict(self._rows.facts)
                if self._public:
                    self.facts["public"] = [*self.facts.get("public", ()), *self._public]
            self.cut = dict(self._rows.cut)
            yield where, part

    def edges(self, memory: int, skip: int) -> Iterator[Ends]:
        rows = _edge_rows(memory)
        written = self.schema is not None
        for ends in edge_parts(self._edges, rows, self.ends, as_written=written):
            count = number_of(ends.senders)
            if skip < count:
                yield _without(ends, skip)
            skip = max(0, skip - count)

    def lengths(self, memory: int) -> tuple[int | None, int | None]:
        sizes = self._nodes.length(), self._edges.length()
        rows = self._node_rows(memory), _edge_rows(memory)
        return tuple(  # type: ignore[return-value]
            None if size is None else math.ceil(size / most)
            for size, most in zip(sizes, rows, strict=True)
        )

    def _node_rows(self, memory: int) -> int:
        width = len(self._nodes.columns())
        if self.schema is not None:
            width += len(self.schema.encoded_names())
        return int(min(1 << 16, max(1 << 10, memory // (64 * 8 * width))))


class GraphSource(Source):
    """A graph in memory, taken as it is: its messages, each once, without self-loops."""

    def __init__(self, data: Data, name: str, fingerprint: Any = None) -> None:
        super().__init__()
        if record_of(data) == "graph":
            raise InvalidInputError(
                f"A store must hold one graph. Got many in {name} instead; they are small, so load "
                "them as they are."
            )
        if not isinstance(getattr(data, "x", None), torch.Tensor) or "links" in data:
            raise InvalidInputError(
                f"A store must hold one graph of nodes with features. Got {name} instead, which "
                "has links or several tables; load it as it is. If a folder of that name is meant, "
                f"write ./{name}."
            )
        self.data, self.name, self.where, self.edges_where = data, name, name, name
        self.directed, self._fingerprint = directed_of(data), fingerprint
        check_one_each(data)
        self.facts = facts_of(data)

    def fingerprint(self) -> Any:
        return self._fingerprint or super().fingerprint()

    def nodes(self, memory: int, skip: int) -> Iterator[tuple[Any, NodeRows]]:
        x = as_csr(self.data.x) if is_sparse(self.data.x) else self.data.x
        ids = getattr(self.data, "ids", None)
        arrays = {name: self.data[name] for name in ("y", *MASK_ARRAYS) if name in self.data}
        for start in range(skip, x.shape[0], 1 << 16):
            part = slice(start, start + (1 << 16))
            rows = {name: _as_stored(values[part]) for name, values in arrays.items()}
            keys = None if ids is None else keys_of(pd.Series(ids[part], dtype=object))
            block = x[part] if is_sparse(self.data.x) else x[part].float().numpy()
            yield self.where, NodeRows(block, rows, keys)

    def edges(self, memory: int, skip: int) -> Iterator[Ends]:
        edge_index, rows = self.data.edge_index, _edge_rows(memory)
        for start in range(skip, edge_index.shape[1], rows):
            senders, receivers = edge_index[:, start : start + rows].numpy()
            yield Ends(self.where, start, senders, receivers)


def _as_stored(values: torch.Tensor) -> NDArray[Any]:
    return values.float().numpy() if values.is_floating_point() else values.numpy()


class OgbSource(Source):
    """The raw files of a node property prediction set of OGB, as csv.gz or as .npz.

    The split is the one in ``split``, if there is just one.
    """

    def __init__(self, folder: Path, *, classes: Any, directed: bool | None) -> None:
        super().__init__()
        raw = folder / "raw" if (folder / "raw").is_dir() else folder
        self.raw, self.name, self.where = raw, str(folder), raw
        self.edges_where = raw / "edge.csv.gz"
        self._arrays = raw / "data.npz" if (raw / "data.npz").is_file() else None
        if self._arrays is not None:
            self.edges_where = self._arrays
        self.classes, self.directed = parse_classes(classes), bool(directed)
        self.mirror = not self.directed
        self._splits = sorted(path.parent for path in folder.glob("split/*/train.csv.gz"))
        self._masks: dict[str, NDArray[np.bool_]] = {}
        for name in self._files():
            if not (path := raw / name).is_file():
                raise InvalidInputError(
                    f"The directory {raw} must hold the raw files {', '.join(self._files())} of "
                    f"OGB. Got no {path.name} instead; get the whole folder."
                )

    def _files(self) -> tuple[str, ...]:
        if self._arrays is not None:
            return "data.npz", "node-label.npz"
        return "edge.csv.gz", "node-feat.csv.gz", "node-label.csv.gz"

    def fingerprint(self) -> Any:
        table = FileTable([self.raw / name for name in self._files()])
        return [table.fingerprint(), _plain(self.classes), self.directed]

    def nodes(self, memory: int, skip: int) -> Iterator[tuple[Any, NodeRows]]:
        start, rows = 0, 1 << 14
        if self._arrays is not None:
            features = _read_member(self._arrays, "node_feat", rows)
            labels = _read_member(self.raw / "node-label.npz", "node_label", rows)
        else:
            features = _read_plain(self.raw / "node-feat.csv.gz", np.float32, rows)
            labels = _read_plain(self.raw / "node-label.csv.gz", np.float64, rows)
        number = self._number()
        masks = self._read_masks(number)
        for x, y in zip(features, labels, strict=True):
            if len(x) != len(y) or not np.isfinite(x).all():
                fault = (
                    "no label for each node" if len(x) != len(y) else "a feature that is no number"
                )
                raise InvalidInputError(f"{self.raw} has {fault}; get the files anew.")
            end = start + len(x)
            if start >= skip:
                column = pd.Series(
                    np.asarray(y, np.float64).reshape(len(y), -1)[:, 0], name="label"
                )
                rows_of = {name: mask[start:end] for name, mask in masks.items()}
                yield self.where, NodeRows(np.asarray(x, np.float32), rows_of, labels=column)
            start = end
        if start != number:
            raise InvalidInputError(
                f"{self.raw} must have a row of features for each of {number:,} nodes, which "
                f"num-node-list counts. Got {start:,} instead; get the files anew."
            )

    def _number(self) -> int:
        """How many nodes the files say that there are."""
        if self._arrays is not None:
            with (
                _tables.reading_file(self._arrays),
                zipfile.ZipFile(self._arrays) as archive,
                archive.open("node_feat.npy") as member,
            ):
                return int(_read_header(member)[0][0])
        path = self.raw / "num-node-list.csv.gz"
        if path.is_file():
            with _tables.reading_file(path):
                return int(_tables.read_numbers(path, np.int64)[0, 0])
        return sum(len(y) for y in _read_plain(self.raw / "node-label.csv.gz", np.float64, 1 << 16))

    def _read_masks(self, number: int) -> dict[str, NDArray[np.bool_]]:
        if len(self._splits) != 1:
            return {}
        masks = {}
        for name, part in zip(MASK_ARRAYS, ("train", "valid", "test"), strict=True):
            path = self._splits[0] / f"{part}.csv.gz"
            with _tables.reading_file(path):
                places = _tables.read_numbers(path, np.int64)[:, 0]
                masks[name] = np.zeros(number, bool)
                masks[name][places] = True
        return masks

    def edges(self, memory: int, skip: int) -> Iterator[Ends]:
        rows, before = _edge_rows(memory), 0
        if self._arrays is not None:
            pieces = _read_pairs(self._arrays, "edge_index", rows)
        else:
            parts = _read_plain(self.edges_where, np.int64, rows)
            pieces = ((part[:, 0], part[:, 1]) for part in parts)
        for senders, receivers in pieces:
            if before + len(senders) > skip:
                ends = Ends(self.edges_where, before, senders, receivers)
                yield _without(ends, max(0, skip - before))
            before += len(senders)


def _read_plain(path: Path, dtype: Any, rows: int) -> Iterator[NDArray[Any]]:
    """The numbers of a csv without a header, some lines at a time."""
    with (
        _tables.reading_file(path),
        pd.read_csv(
            path, header=None, skipinitialspace=True, dtype=dtype, chunksize=rows
        ) as chunks,
    ):
        for chunk in chunks:
            yield np.array(chunk.to_numpy(), order="C")


def _read_header(member: Any) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, whether it lies column by column, type; the stream stands at the first number."""
    version = np.lib.format.read_magic(member)
    read = np.lib.format.read_array_header_1_0
    if version != (1, 0):
        read = np.lib.format.read_array_header_2_0
    shape, by_column, dtype = read(member)
    if dtype.hasobject:
        raise ValueError("an array that holds objects")
    return shape, by_column, dtype


def _read_member(path: Path, name: str, rows: int) -> Iterator[NDArray[Any]]:
    """An array of an archive, some rows at a time."""
    with (
        _tables.reading_file(path),
        zipfile.ZipFile(path) as archive,
        archive.open(f"{name}.npy") as member,
    ):
        shape, by_column, dtype = _read_header(member)
        if by_column and len(shape) > 1 and min(shape) > 1:
            raise ValueError(f"{name} must lie row by row")
        width = math.prod(shape[1:])
        for start in range(0, shape[0], rows):
            count = min(rows, shape[0] - start)
            values = _numbers(member, count * width, dtype)
            yield values.reshape(count, *shape[1:])


def _read_pairs(
    path: Path, name: str, rows: int
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """An array of two rows, some columns at a time."""
    with (
        _tables.reading_file(path),
        zipfile.ZipFile(path) as archive,
        archive.open(f"{name}.npy") as first,
        zipfile.ZipFile(path) as again,
        again.open(f"{name}.npy") as second,
    ):
        shape, by_column, dtype = _read_header(first)
        _read_header(second)
        if len(shape) != 2 or shape[0] != 2:
            raise ValueError(f"{name} of the shape {shape}, not (2, edges)")
        if by_column:  # pair after pair
            for start in range(0, shape[1], rows):
                pairs = _numbers(first, 2 * min(rows, shape[1] - start), dtype).astype(np.int64)
                yield pairs[::2], pairs[1::2]
            return
        left = shape[1] * dtype.itemsize
        while left:  # a compressed archive cannot jump
            left -= len(second.read(min(left, 1 << 24))) or left
        for start in range(0, shape[1], rows):
            count = min(rows, shape[1] - start)
            yield (
                _numbers(first, count, dtype).astype(np.int64),
                _numbers(second, count, dtype).astype(np.int64),
            )


def _numbers(member: Any, count: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    content = member.read(count * dtype.itemsize)
    if len(content) < count * dtype.itemsize:
        raise ValueError("it ends too early")
    return np.frombuffer(content, dtype)


def _without(ends: Ends, skip: int) -> Ends:
    """Edges without the first of them."""
    senders, receivers = drop_first(ends.senders, skip), drop_first(ends.receivers, skip)
    return Ends(ends.where, ends.before + skip, senders, receivers)


def _edge_rows(memory: int) -> int:
    return int(min(_EDGES, max(1 << 14, memory // 1024)))


def _plain(classes: Stated) -> Any:
    return list(classes) if isinstance(classes, tuple) else classes


# --- which one ------------------------------------------------------------------------------------


def open_source(
    source: Any,
    *,
    nodes: Any = None,
    edges: Any = None,
    root: Any = None,
    schema: Any = None,
    classes: Any = None,
    directed: bool | None = None,
    memory: int,
    temporary: Path,
) -> Source:
    """What is called ``source``: see :func:`graphveil.data.store_building.build_store`."""
    stated = {"schema": schema, "classes": classes, "directed": directed}
    if isinstance(source, str) and source.startswith(DUCKDB):
        return _open_duckdb(source, nodes, edges, stated, memory, temporary)
    if (nodes is None) != (edges is None) or (nodes is not None and source is not None):
        raise InvalidInputError(
            "Give a name or a path, or both 'nodes' and 'edges'. Got something else instead."
        )
    if isinstance(source, (tuple, list)) and len(source) == 2:
        nodes, edges = source
    if nodes is not None:
        stated["schema"] = as_schema(schema)
        tables = StreamTable(nodes, "nodes"), StreamTable(edges, "edges")
        return TableSource("tables in memory", *tables, **stated)
    if isinstance(source, Data):
        return GraphSource(check(source, labels=False, masks=False), "a graph in memory")
    if not isinstance(source, (str, Path)):
        from graphveil.data.in_memory import read_memory

        return GraphSource(read_memory(source, **stated), "a graph in memory")
    return _open_named(source, root, stated)


def _open_named(source: str | Path, root: Any, stated: dict[str, Any]) -> Source:
    from graphveil.data.catalog import entry_of, load

    path = at_home(source)
    if is_typed_place(path):
        raise InvalidInputError(
            f"A store must hold one table of nodes. Got tables of several types in {path} instead; "
            "load them as they are."
        )
    if isinstance(source, str) and entry_of(source) is not None:
        data = load(source, root, **stated)
        return GraphSource(data, source, ["catalog", source, str(root)])
    if path.is_dir() and has_tables(path):
        schema = schema_beside(path) if stated["schema"] is None else as_schema(stated["schema"])
        if any((path / f"graphs.{end}").exists() for end in ("csv", "parquet")):
            raise InvalidInputError(
                f"A store must hold one graph. Got a table of graphs in {path} instead; load them "
                "as they are."
            )
        tables = find_tables(path, "nodes"), find_tables(path, "edges")
        public = read_public(path) if (path / PUBLIC).is_file() else []
        return TableSource(str(path), *tables, **{**stated, "schema": schema}, public=public)
    if path.is_dir() and any((path / name).is_file() for name in _OGB_EDGES):
        if stated.pop("schema") is not None:
            raise InvalidInputError(
                f"The 'schema' parameter is for tables. Got it for {path} instead, which holds "
                "numbers already; leave it out."
            )
        return OgbSource(path, **stated)
    data = load(source, root, **stated)
    kept = FileTable([path]).fingerprint() if path.is_file() else None
    facts = None if kept is None else [kept, _plain(parse_classes(stated["classes"]))]
    return GraphSource(data, str(path), facts)


def _open_duckdb(
    source: str, nodes: Any, edges: Any, stated: dict[str, Any], memory: int, temporary: Path
) -> Source:
    parts = urlsplit(source)
    text = unquote(parts.netloc + parts.path)
    path = at_home(text.removeprefix("/"))
    if not path.is_file():
        path = at_home(text)
    queries = {name: values[0] for name, values in parse_qs(parts.query).items()}
    queries |= {n: q for n, q in (("nodes", nodes), ("edges", edges)) if q is not None}
    for name in ("nodes", "edges"):
        if not isinstance(queries.get(name), str):
            raise InvalidInputError(
                f"A query must be given for the {name} of {source}; write "
                f"'duckdb:///file.db?nodes=SELECT...&edges=SELECT...', or --{name}."
            )
    if not path.is_file():
        raise InvalidInputError(f"There is no file {text}, which {source} names; check the path.")
    tables = [
        QueryTable(path, queries[name], f"the {name} of {path}", memory=memory, temporary=temporary)
        for name in ("nodes", "edges")
    ]
    stated["schema"] = as_schema(stated["schema"])
    return TableSource(f"duckdb://{path}", tables[0], tables[1], **stated)
