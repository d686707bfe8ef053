"""Rows of nodes, some at a time: from cells of a table to numbers, and from there into a store.

Cells become numbers by what reads a whole table in memory (:mod:`graphveil.data.frames`,
:mod:`graphveil.data.encoding`): each row by itself. Labels without a schema are the one thing that
is settled by all rows: the different cells are kept in memory, which are few where they are
classes, and each row's number on disk.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch_geometric.data import Data

from graphveil._errors import InvalidInputError
from graphveil.data import _tables, frames
from graphveil.data import classes as _classes
from graphveil.data._tables import Where
from graphveil.data.class_list import Stated
from graphveil.data.encoding import put_label, put_rows, read_cells
from graphveil.data.files import naming
from graphveil.data.schema import Schema
from graphveil.data.store_arrays import GrowingArray
from graphveil.data.store_format import MASK_ARRAYS, array_path
from graphveil.data.store_texts import Keys, Texts, as_texts, keys_of
from graphveil.graph.checks import OF_ALL, check, has
from graphveil.graph.sparse_rows import as_csr, is_sparse
from graphveil.graph.targets import is_labelled

MOST_LABELS = 1 << 20  # different ones; nothing that has more is a class
_PIECE = 1 << 20
_LARGEST_HALF = 65504.0


class NodeRows(NamedTuple):
    """Some nodes: features (an array, or a sparse one of scipy), and what else stands in rows."""

    x: Any
    arrays: dict[str, NDArray[Any]]  # y and masks
    ids: Keys | None = None
    owners: Keys | None = None
    labels: pd.Series | None = None  # which no schema states


# --- from tables ----------------------------------------------------------------------------------


class TableRows:
    """Encodes parts of a table of nodes; ``facts`` is what is public of it, after the first."""

    def __init__(self, schema: Schema | None) -> None:
        self.schema, self.names = schema, schema or Schema()
        self.facts: dict[str, Any] = {}
        self.cut: Counter[str] = Counter()

    @property
    def text(self) -> tuple[str, ...]:
        """The columns that are read as written."""
        return (self.names.id, self.names.split or "split", *self.names.label_names())

    def encode(self, where: Where, table: Any, before: int) -> NodeRows:
        """Numbers for a part of the table ``where`` that has so many rows ``before`` it."""
        names, stated = self.names, self.schema
        with _tables.counting_rows(before):
            nodes = frames.read_frame(
                table, where, (names.id,), self.text, as_written=stated is not None
            )
            if stated is None:
                data = frames.read_numbers(nodes, where)
                data = self._in_order(data, where)
            else:
                data = Data()
                stated.check_names([*nodes.columns], where)
                put_rows(data, stated, nodes, where, cut=self.cut)
                put_label(data, stated, nodes, where, cut=self.cut)
            if (split := names.split_name(nodes.columns)) is not None:
                frames.put_masks(data, where, nodes[split])
            owners = self._owners(nodes, where)
        labels = None
        if names.label is None and "label" in names.label_names() and "label" in nodes:
            labels = nodes["label"]
        self._settle(data, where)
        ids = keys_of(nodes[names.id])
        arrays = {name: data[name].numpy() for name in ("y", *MASK_ARRAYS) if name in data}
        x = as_csr(data.x) if is_sparse(data.x) else data.x.numpy()
        return NodeRows(x, arrays, ids, owners, labels)

    def _owners(self, nodes: pd.DataFrame, where: Where) -> Keys | None:
        if (owner := self.names.owner) is None:
            return None
        self.names.check_owner([*nodes.columns], where)
        cells = read_cells(nodes[owner], where, self.names)
        _tables.check_cells(
            where, cells.column, pd.Series(cells.empty), "filled in", "every row needs one"
        )
        return keys_of(pd.Series(cells.words(), dtype=object))

    def _in_order(self, data: Data, where: Where) -> Data:
        """Features in the order of the first part, which has the same ones."""
        columns = self.facts.get("columns")
        if columns is None or columns == data.columns:
            return data
        if sorted(columns) != sorted(data.columns):
            name = next(iter(set(columns) ^ set(data.columns)))
            raise InvalidInputError(
                f"{where} must have the feature columns of the other parts. Got a difference in "
                f"{name!r} instead; write all parts with the same columns."
            )
        data.x = data.x[:, [data.columns.index(name) for name in columns]].contiguous()
        data.columns = columns
        return data

    def _settle(self, data: Data, where: Where) -> None:
        """Keep what is said of all rows, and check what a whole graph would be checked for."""
        if self.facts:
            return
        self.facts = facts_of(data)
        data = Data(x=data.x, edge_index=torch.empty(2, 0, dtype=torch.long), **self.facts)
        with naming(where):
            check(data, labels=False, masks=False)


def facts_of(data: Data) -> dict[str, Any]:
    """What is said of all records of ``data`` together, as JSON has it; nothing of owners.

    A store holds one row of each owner.
    """
    names = [name for name in OF_ALL if not name.startswith("owner_")]
    facts = {name: data[name] for name in names if has(data, name)}
    return {
        name: list(value) if isinstance(value, (tuple, torch.Tensor)) else value
        for name, value in facts.items()
    }


# --- into a store ---------------------------------------------------------------------------------


class Arrays:
    """The arrays of a store while they grow. ``state`` says of each what a later process needs."""

    def __init__(self, folder: Path, state: dict[str, Any]) -> None:
        self.folder, self.state = folder, state
        self._open: dict[str, GrowingArray] = {}

    def append(self, name: str, values: NDArray[Any], dtype: Any = None) -> None:
        """Add rows to the array ``name``, which is made with the first of them."""
        self.get(name, dtype or values.dtype, values.shape[1:]).append(values)

    def get(self, name: str, dtype: Any = None, row_shape: tuple[int, ...] = ()) -> GrowingArray:
        """An array that grows."""
        if name not in self._open:
            kept = self.state.get(name)
            if kept is not None:
                dtype, row_shape = kept["dtype"], tuple(kept["row_shape"])
            rows = 0 if kept is None else kept["rows"]
            path = array_path(self.folder, name)
            self._open[name] = GrowingArray(path, dtype, row_shape, rows=rows)
        return self._open[name]

    def rows(self, name: str) -> int:
        """How many rows an array has; 0 if there is none."""
        if name in self._open:
            return self._open[name].rows
        return int(self.state[name]["rows"]) if name in self.state else 0

    def note(self) -> None:
        """Put everything on disk, and its size in the state."""
        for name, array in self._open.items():
            array.sync()
            self.state[name] = {
                "dtype": array.dtype.str, "row_shape": list(array.row_shape), "rows": array.rows,
            }  # fmt: skip

    def finish(self) -> None:
        """Write the shapes, and close; also of what an earlier process wrote."""
        for name in list(self.state):
            self.get(name)
        self.note()
        for array in self._open.values():
            array.finish()
        self._open = {}

    def close(self) -> None:
        """Close what is unfinished."""
        for array in self._open.values():
            array.close()


class NodeWriter:
    """Writes :class:`NodeRows` into a store; ``state`` is what a later process goes on from."""

    def __init__(self, out: Path, work: Path, state: dict[str, Any], dtype: str) -> None:
        self.out, self.work, self.state, self.dtype = out, work, state, dtype
        self.arrays = Arrays(out, state.setdefault("arrays", {}))
        self.notes = Arrays(work, state.setdefault("notes", {}))
        self.labels = Labels(*state.get("labels", ()))
        state.setdefault("rows", 0)

    def add(self, where: Where, rows: NodeRows) -> None:
        """Add some nodes."""
        count = rows.x.shape[0]
        self._check_halves(where, rows.x)
        if isinstance(rows.x, np.ndarray):
            self.arrays.append("x", rows.x, self.dtype)
        else:
            self._add_sparse(rows.x)
        for name, values in rows.arrays.items():
            self._check_even(where, self.arrays, name)
            self.arrays.append(name, values)
        if rows.ids is not None:
            self._add_keys(self.out, self.arrays, "id", rows.ids)
        if rows.owners is not None:
            self._add_keys(self.work, self.notes, "owner", rows.owners)
        if rows.labels is not None:
            self._check_even(where, self.notes, "labels")
            self.notes.append("labels", self.labels.number(where, rows.labels, self.state["rows"]))
        self.state["rows"] += count
        for name in ("y", *MASK_ARRAYS):
            if self.arrays.rows(name):
                self._check_even(where, self.arrays, name)
        if self.notes.rows("labels"):
            self._check_even(where, self.notes, "labels")

    def _check_even(self, where: Where, arrays: Arrays, name: str) -> None:
        """Refuse what some parts of a table have, and others do not."""
        if arrays.rows(name) != self.state["rows"]:
            raise InvalidInputError(
                f"{where} must have {name.removesuffix('s')!r} in all parts of the table, or in "
                "none. Got it in some instead; add it, with empty cells, to the others."
            )

    def _check_halves(self, where: Where, x: Any) -> None:
        values = x if isinstance(x, np.ndarray) else x.data
        if self.dtype == "float16" and values.size and np.abs(values).max() > _LARGEST_HALF:
            raise InvalidInputError(
                f"{where} must have features up to 65,504 to be kept as float16. Got "
                f"{float(np.abs(values).max()):g} instead; keep them as float32."
            )

    def _add_sparse(self, rows: Any) -> None:
        offsets = self.arrays.get("x_offsets", np.int64)
        if offsets.rows == 0:
            offsets.append(np.zeros(1, np.int64))
        rows.sort_indices()
        self.state["width"] = int(rows.shape[1])
        offsets.append(rows.indptr[1:].astype(np.int64) + self.arrays.rows("x_values"))
        self.arrays.append("x_columns", rows.indices, np.int32)
        self.arrays.append("x_values", rows.data, self.dtype)

    def _add_keys(self, folder: Path, arrays: Arrays, stem: str, keys: Keys) -> None:
        """Add ids: numbers as long as all are, then text."""
        kept = f"{stem}_text"
        if isinstance(keys, Texts) and not self.state.get(kept):
            written = arrays.rows(f"{stem}s")
            self.state[kept] = True
            arrays.get(f"{stem}_offsets", np.int64).append(np.zeros(1, np.int64))
            if written:
                arrays.get(f"{stem}s").finish()
                numbers = np.load(array_path(folder, f"{stem}s"), mmap_mode="r")
                for start in range(0, written, _PIECE):
                    self._add_texts(arrays, stem, as_texts(np.array(numbers[start:][:_PIECE])))
                # The file stays until the state is written that knows of the texts.
                arrays._open.pop(f"{stem}s")
                arrays.state.pop(f"{stem}s", None)
        if self.state.get(kept):
            self._add_texts(arrays, stem, as_texts(keys))
        else:
            assert not isinstance(keys, Texts)
            arrays.append(f"{stem}s", keys)

    def _add_texts(self, arrays: Arrays, stem: str, texts: Texts) -> None:
        before = arrays.rows(f"{stem}_bytes")
        arrays.append(f"{stem}_bytes", texts.content)
        arrays.append(f"{stem}_offsets", texts.offsets[1:] + before)

    def note(self) -> None:
        """Put everything on disk, and what it takes to go on in the state."""
        self.arrays.note()
        self.notes.note()
        if self.notes.rows("labels"):
            self.state["labels"] = self.labels.content()

    def finish(self) -> None:
        """Close all arrays."""
        self.note()
        self.arrays.finish()
        self.notes.finish()

    def close(self) -> None:
        """Close what is unfinished."""
        self.arrays.close()
        self.notes.close()


class Labels:
    """The different cells of a column of labels: where each stands first, and how many rows it has.

    The missing one has the number -1.
    """

    def __init__(
        self, values: list[Any] | None = None, first: list[int] | None = None,
        counts: list[int] | None = None, missing: int = 0,
    ) -> None:  # fmt: skip
        self.values, self.first, self.counts = values or [], first or [], counts or []
        self.missing = missing
        self._places = {value: place for place, value in enumerate(self.values)}

    def number(self, where: Where, labels: pd.Series, before: int) -> NDArray[np.int32]:
        """The number of each cell, in the order in which they appear."""
        codes, different = pd.factorize(labels, use_na_sentinel=True)
        firsts = np.full(len(different), len(codes), np.int64)
        np.minimum.at(firsts, codes[codes >= 0], np.flatnonzero(codes >= 0))
        pairs = zip(different, firsts.tolist(), strict=True)
        places = np.array([self._place(value, before + row) for value, row in pairs], np.int32)
        self.missing += int((codes < 0).sum())
        counted = np.bincount(codes[codes >= 0], minlength=len(different))
        for place, count in zip(places.tolist(), counted.tolist(), strict=True):
            self.counts[place] += count
        if len(self.values) > MOST_LABELS:
            _classes.check_number(where, len(self.values), sum(self.counts))
        return np.where(codes >= 0, places[codes] if len(places) else -1, -1).astype(np.int32)

    def _place(self, value: Any, row: int) -> int:
        value = value.item() if isinstance(value, np.generic) else value
        if not isinstance(value, (bool, int, float, str)):
            value = str(value)
        if value not in self._places:
            self._places[value] = len(self.values)
            self.values.append(value)
            self.first.append(row)
            self.counts.append(0)
        return self._places[value]

    def settle(self, data: Data, where: Where, classes: Stated) -> NDArray[np.int64]:
        """Give ``data`` what is known of the classes; the class of each number, and of -1 last."""
        cells = [*self.values, *([None] if self.missing else [])]
        column = pd.Series(cells, name="label", dtype=None if cells else object)
        counts = np.array([*self.counts, *([self.missing] if self.missing else [])], np.int64)
        with _tables.counting_rows([*self.first, 0]):
            _classes.put(data, where, column, classes, counts=counts)
        y: NDArray[np.int64] = data.y.numpy()
        return y if self.missing else np.append(y, -1)

    def content(self) -> list[Any]:
        """What makes them anew."""
        return [list(self.values), list(self.first), list(self.counts), self.missing]


def write_classes(
    writer: NodeWriter, where: Where, classes: Stated, facts: dict[str, Any]
) -> dict[str, Any]:
    """Write ``y`` by the labels that the ``writer`` collected; the ``facts``, with the classes."""
    data = Data()
    if "public" in facts:
        data.public = facts["public"]
    y_of = writer.labels.settle(data, where, classes)
    numbers = np.load(array_path(writer.work, "labels"), mmap_mode="r")
    y = GrowingArray(array_path(writer.out, "y"), np.int64)
    for start in range(0, len(numbers), _PIECE):
        y.append(y_of[numbers[start : start + _PIECE]])
    y.finish()
    return {**facts, **facts_of(data)}


def check_split(folder: Path, where: Where, names: set[str]) -> None:
    """Refuse a node in two parts of the split, and one that is trained on without a label."""
    present = [name for name in MASK_ARRAYS if name in names]
    if not present:
        return
    arrays = {name: np.load(array_path(folder, name), mmap_mode="r") for name in present}
    if "y" in names:
        arrays["y"] = np.load(array_path(folder, "y"), mmap_mode="r")
    for start in range(0, len(arrays[present[0]]), _PIECE):
        part = {name: np.array(array[start : start + _PIECE]) for name, array in arrays.items()}
        several = np.stack([part[name] for name in present]).sum(0) > 1
        if several.any():
            raise InvalidInputError(
                f"{where} must have every node in one part of the split. Got row "
                f"{start + int(np.argmax(several)) + 1} in several instead; correct it."
            )
        if "y" in part and "train_mask" in part:
            bare = part["train_mask"] & ~is_labelled(torch.from_numpy(part["y"])).numpy()
            if bare.any():
                raise InvalidInputError(
                    f"{where} must have a label in every row that is trained on. Got none in row "
                    f"{start + int(np.argmax(bare)) + 1} instead; give it one, or leave its split "
                    "empty."
                )
