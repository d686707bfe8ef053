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
``test_mask``, ``edge_attr``, ``pos``, ``num_classes``, ``class_names``, ``columns``, ``ids``
and ``directed``: named and shaped as in PyG, taken as they are. What is not a row counts as public;
``public`` is the lines of ``public.txt``, and ``unprotected`` those of them that are about units of
the data itself. Of one graph ``edge_attr`` is left out, and its owner hears so: no method for nodes
reads it.

**A .pt** written by ``torch.save(data, path)``, with the same names, taken as they are. The ``x``
of one graph may be a sparse tensor, by rows or by coordinates. It may hold links, named as in
:mod:`graphveil.graph.links`.

**Tables of several types**, a directory with ``nodes-TYPE.csv`` and
``edges-SOURCE-RELATION-TARGET.csv``, see :mod:`graphveil.data.typed`.

**A store**, a directory with a ``manifest.json``: arrays that stay on disk, see
:mod:`graphveil.data.store`.

**Many graphs**, each a record: a directory with ``graphs.csv`` besides, see
:mod:`graphveil.data.graph_tables`; a ``.npz`` or ``.pt`` with ``batch`` and ``num_graphs``; or a
``.pt`` with a list of ``Data``, joined by :func:`graphveil.graph.collate.collate`.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch_geometric.data import Data
from torch_geometric.data.data import DataEdgeAttr, DataTensorAttr
from torch_geometric.data.storage import GlobalStorage

from graphveil._errors import InvalidInputError
from graphveil._inputs import ARRAYS, at_home, check_unpacked, check_zip, read_text, regular
from graphveil.data import _tables
from graphveil.data import classes as _classes
from graphveil.data._tables import Where
from graphveil.data.class_list import Stated, parse_classes
from graphveil.data.frames import frames_to_data, say_unread
from graphveil.data.in_memory import refuse_stated
from graphveil.data.schema import Schema, as_schema, schema_beside
from graphveil.data.store import open_store
from graphveil.data.store_format import is_store, is_unfinished
from graphveil.data.typed_schema import is_typed_place
from graphveil.graph.checks import (
    LINES,
    MASKS,
    OF_ALL,
    check,
    check_layout,
    directed_of,
    has,
    record_of,
)
from graphveil.graph.collate import collate
from graphveil.graph.links import LINK_MASKS, OF_LINKS
from graphveil.graph.sparse_rows import is_sparse, values_of

_OF_GRAPHS = ("batch", "num_graphs", "pos", "owner")
_TEXTS = ("class_names", "columns", "ids", "own_lists", *LINES)
_NAMES = ("x", "edge_index", "y", *MASKS, "edge_attr", *OF_ALL, "ids", *_OF_GRAPHS)
_NAMES_OF_LINKS = ("target_ids", "target_columns", "source_name", "target_name", "relation")
_PLAIN = (
    "num_classes", "num_graphs", "directed", "task", "unit_name", "owner_name", "owner_rows",
    "value_range",
)  # fmt: skip
PUBLIC = "public.txt"  # what tables rest on, beside them


def read(
    path: str | Path,
    *,
    schema: Any = None,
    classes: Any = None,
    directed: bool | None = None,
    **typed: Any,
) -> Data:
    """Read the graph at ``path``.

    ``classes`` states which classes there are: their number, a list of names, or ``"public"``; see
    :mod:`graphveil.data.classes`. ``directed`` states whether edges have a direction. A line of a
    table is one message then, and else two; of arrays, which are taken as they are, nobody knows
    unless it is said.

    ``schema`` states what is public of every column of tables: a
    :class:`~graphveil.data.schema.Schema` or the path of one. None takes the ``schema.toml`` beside
    them, if there is one; without any, features are numbers. Of a folder with a table for each
    type, ``typed`` are ``people``, ``target`` and ``link``: see :mod:`graphveil.data.typed`.

    Refused, in one line: absent, empty, truncated or garbled files, missing columns, duplicate ids,
    edges to absent nodes, features that are no numbers, labels that look like identifiers, and
    every file that would run code.

    *Guarantee*: none; reading is not releasing. Feature columns with their names, ids, what is
    stated of classes and edges, and who is unlabelled count as public.
    """
    path = at_home(path)
    if not os.path.exists(path):  # unlike path.exists(), False for a name that is too long
        raise InvalidInputError(f"There is no file or directory {path}; check the path.")
    statement = parse_classes(classes)
    if is_typed_place(path):
        from graphveil.data.typed import read_typed

        return read_typed(path, schema=schema, classes=statement, directed=directed, **typed)
    refuse_stated("a graph without types", **typed)
    if path.is_dir() and (is_store(path) or is_unfinished(path)):
        _refuse_statements(path, schema, statement)
        data = open_store(path)
        _settle_direction(data, directed)
        return data
    stated = _schema_for(path, schema)
    if path.is_dir() and _has_graphs(path):
        from graphveil.data.graph_tables import read_graphs

        data = read_graphs(path, classes=statement, directed=directed, schema=stated)
    elif path.is_dir():
        data = _read_tables(path, statement, directed, stated)
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
    with naming(path):
        check(data, labels=False, masks=False)
        if not path.is_dir():
            _classes.settle(data, path, statement)
            _settle_direction(data, directed)
            _leave_attributes(data, path)
        return check(data, labels=False, masks=False)


def _schema_for(path: Path, schema: Any) -> Schema | None:
    """The schema that is named, or the one beside tables."""
    if path.is_dir():
        stated = schema_beside(path) if schema is None else as_schema(schema)
        if stated is not None and stated.typed is not None:
            raise InvalidInputError(
                f"The schema is about several types, so that {path} must hold a table for each, "
                "such as nodes-patient.csv. Got one of all nodes instead; give a folder of types."
            )
        return stated
    if schema is not None:
        raise InvalidInputError(
            f"The 'schema' parameter is for a directory with tables. Got it for {path} instead, "
            "which holds numbers already; leave it out."
        )
    return None


def _refuse_statements(path: Path, schema: Any, classes: Stated) -> None:
    """What is public of a store was stated when it was built."""
    for name, value in (("schema", schema), ("classes", classes)):
        if value is not None:
            raise InvalidInputError(
                f"The '{name}' parameter must be left out of a store, whose manifest has it. Got "
                f"it for {path} instead; state it when the store is built."
            )


def _has_graphs(folder: Path) -> bool:
    return any((folder / f"graphs.{end}").exists() for end in ("csv", "parquet"))


def _settle_direction(data: Data, directed: bool | None) -> None:
    """Compare what is stated of edges with what the file says itself."""
    in_file = directed_of(data)
    if directed is not None and in_file is not None and directed != in_file:
        raise InvalidInputError(
            f"The 'directed' parameter must be as the file says. Got {directed} where it says "
            f"{in_file} instead; correct either."
        )
    if directed is not None:
        data.directed = directed


def _leave_attributes(data: Data, path: Path) -> None:
    """Leave out attributes of edges that no method reads, and tell the owner."""
    if record_of(data) == "node" and has(data, "edge_attr"):
        say_unread(path, ["edge_attr"])
        del data.edge_attr


def node_ids(folder: str | Path, column: str = "id") -> list[str]:
    """The ids in the tables at ``folder``, as written there, in the order of the nodes."""
    return _tables.ids_of(folder, "nodes", column)


def _read_tables(
    folder: Path, classes: Stated, directed: bool | None, schema: Schema | None
) -> Data:
    nodes_path, edges_path = (
        _tables.table_path(folder, "nodes"),
        _tables.table_path(folder, "edges"),
    )
    names = schema or Schema()
    ends = names.edges.ends
    stated = schema is not None
    nodes = _tables.read_table(nodes_path, (names.id,), as_written=stated, stated=stated)
    edges = _tables.read_table(edges_path, ends, text=ends, only=ends, stated=stated)
    if schema is None and "graph" in nodes and _tables.floats(nodes["graph"]).isna().any():
        raise InvalidInputError(
            f"{nodes_path} has a column 'graph' of names, so that {folder} must hold a table of "
            "graphs. Got none instead; add graphs.csv with a column 'id'."
        )
    say_unread(edges_path, _tables.column_names(edges_path), ends)
    return frames_to_data(
        nodes,
        edges[list(ends)],
        where=nodes_path,
        edges_where=edges_path,
        schema=schema,
        classes=classes,
        directed=directed,
        public=read_public(folder),
    )


def read_public(folder: Path) -> list[str]:
    """The lines of the ``public.txt`` in ``folder``, if there is one."""
    if not (lines := folder / PUBLIC).is_file():
        return []
    with _tables.reading_file(lines):
        return [line for line in read_text(lines).splitlines() if line.strip()]


def _read_npz(path: Path) -> Data:
    with _tables.reading_file(path):
        check_zip(path, ARRAYS, "write it with numpy.savez, which does not compress")
        with np.load(path, allow_pickle=False) as file:
            if not isinstance(file, np.lib.npyio.NpzFile):
                raise ValueError("one array, not an archive of named ones")
            _check_names(path, file.files)
            arrays = {name: file[name] for name in file.files}
    data = Data()
    for name, array in arrays.items():
        if name in _PLAIN:
            data[name] = array.item() if array.ndim == 0 else array.tolist()
        elif name in _TEXTS:
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
    if name in ("edge_index", "y", "batch", "owner") and array.dtype.kind in "iu":
        if array.dtype.kind == "u" and array.size and array.max() > np.iinfo(np.int64).max:
            raise InvalidInputError(
                f"{path}: {name!r} must be whole numbers below 2^63, got {array.max()}; correct it."
            )
        return array.astype(np.int64)
    return np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("="))


def _read_pt(path: Path) -> Data:
    allowed = [Data, DataEdgeAttr, DataTensorAttr, GlobalStorage]
    with _tables.reading_file(path):
        check_zip(path, ARRAYS, "write it with torch.save, which does not compress")
        # Of what is deprecated, such as quantized tensors, torch warns; the checks refuse it.
        # A sparse tensor that names places it does not have is refused, too.
        sound = torch.sparse.check_sparse_tensor_invariants(enable=True)
        with warnings.catch_warnings(), torch.serialization.safe_globals(allowed), sound:
            warnings.simplefilter("ignore", UserWarning)
            saved = torch.load(path, map_location="cpu", weights_only=True)
        _check_tensors(path, saved)
        if isinstance(saved, (list, tuple)) and all(type(graph) is Data for graph in saved):
            with naming(path):
                return collate([Data.from_dict(graph.to_dict()) for graph in saved])
        if not isinstance(saved, Data):
            raise ValueError(
                f"a {type(saved).__name__}, not a torch_geometric.data.Data or a list of them"
            )
        content = {name: saved[name] for name in saved.keys() if saved[name] is not None}  # noqa: SIM118
    _check_names(path, list(content))
    # A fresh Data: whatever else the file hung on its own is left behind.
    return Data.from_dict(content)


def _check_tensors(path: Path, saved: Any) -> None:
    """Refuse tensors that are not laid out in memory, or that together say more than the file.

    One number may stand for a tensor of any shape (``expand``), and one graph in a list for many.
    """
    many = isinstance(saved, (list, tuple))
    graphs = saved if many else [saved]
    size = 0
    for graph in graphs:
        for name, value in graph.to_dict().items() if type(graph) is Data else ():
            if isinstance(value, torch.Tensor):
                with naming(path):
                    check_layout(name, value, sparse=name == "x" and not many)
                rows = len(value) if is_sparse(value) else 0  # each has a place, if nothing else
                size += (values_of(value).numel() + rows) * value.element_size()
    check_unpacked(path, size, ARRAYS, "save contiguous tensors, each graph once")


@contextlib.contextmanager
def naming(path: Where) -> Iterator[None]:
    """Put the ``path`` before a refusal that does not begin with it."""
    try:
        yield
    except InvalidInputError as error:
        start = "" if str(error).startswith(f"{path}: ") else f"{path}: "
        raise InvalidInputError(f"{start}{error}") from None


def _check_names(path: Path, names: list[str]) -> None:
    """Refuse what a graph does not hold; links (:mod:`graphveil.graph.links`) are a .pt."""
    of_links = "links" in names and path.suffix != ".npz"
    known = _NAMES if not of_links else (*_NAMES, *OF_LINKS, *LINK_MASKS, *_NAMES_OF_LINKS)
    unknown = [name for name in names if name not in known]
    missing = [n for n in ("x", "links" if of_links else "edge_index") if n not in names]
    if unknown or missing:
        fault = f"has the unknown {unknown[0]!r}" if unknown else f"has no {missing[0]!r}"
        raise InvalidInputError(f"{path} {fault}; it may hold {', '.join(known)}.")
