"""From cells to numbers, row by row, by a public schema.

What becomes of a row depends on that row and on the :class:`~graphveil.data.schema.Schema`, bit for
bit: no mean, no vocabulary, no kind of a column is read off a table. Encoding therefore costs
nothing. Refusals name a cell and are for whoever holds the data, and so is the notice that counts
values outside a range.
"""

from __future__ import annotations

import hashlib
import math
import re
import unicodedata
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import date
from decimal import Decimal
from numbers import Real
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from scipy import sparse
from torch_geometric.data import Data

from graphveil._errors import InvalidInputError
from graphveil.data._tables import check_cells
from graphveil.data.class_list import Notice
from graphveil.data.column_kinds import (
    MODEL,
    Category,
    Column,
    Date,
    Flag,
    Number,
    Text,
    is_rounded,
    parse_date,
    text_of,
    word_of,
)
from graphveil.data.schema import Label, Schema, missing_name
from graphveil.data.schema_lines import public_lines
from graphveil.graph.owners import OWNER, is_plain_word
from graphveil.graph.public_lines import shorten
from graphveil.graph.sparse_rows import as_tensor

MOST_DENSE = 4096  # columns of x; wider rows are sparse, whatever they hold
_WORD = re.compile(r"\w+")
_COMMA = re.compile(r"[+-]?[0-9]+,[0-9]+")
_PADDED = re.compile(r"[+-]?0[0-9]+")  # what a number cannot hold
_PUBLISHED = " (which is published: only if it is known without this table)"
_AS_TEXT = "read it as text: pd.read_csv(..., dtype=str)"

Rows = Any  # (records, columns) of float32: an array, or a sparse one of scipy


class Cells(NamedTuple):
    """A column of a table: where it stands, what it holds, as text too, and what is empty.

    ``texts`` has None where a cell is empty, or nothing that has a text. ``fixed`` is that of the
    schema.
    """

    where: Any
    column: pd.Series
    texts: list[str | None]
    empty: NDArray[np.bool_]
    fixed: bool = False

    def words(self) -> list[str | None]:
        """The texts as they are told apart: the same for a csv, a parquet file and a frame.

        *Guarantee*: no cost. Each is read off its own cell. A float that others were rounded to is
        refused.
        """
        kind = getattr(self.column.dtype, "numpy_dtype", self.column.dtype)  # of an extension
        exact = 2.0 ** (np.finfo(kind).nmant + 1) if kind.kind == "f" else 2.0**53
        rounded = np.array([is_rounded(cell, exact) for cell in self.column.tolist()], dtype=bool)
        self.check(rounded, "text or exact numbers", f"a float has rounded it; {_AS_TEXT}")
        return [None if text is None else word_of(text) for text in self.texts]

    def check(self, wrong: NDArray[np.bool_], rule: str, way_out: str) -> None:
        """Refuse the column if a cell that is not empty is ``wrong``, and name the first."""
        check_cells(self.where, self.column, pd.Series(wrong & ~self.empty), rule, way_out)

    def ways(self, restate: str, *, may_be_empty: bool) -> str:
        """What to do about a cell; to ``restate`` something helps before training alone."""
        ways = ["correct it", *(["leave it empty"] if may_be_empty else [])]
        return way_out([*ways, restate], fixed=self.fixed)


def way_out(ways: list[str], *, fixed: bool) -> str:
    """The ``ways`` in a line; the last one restates the schema, which after training is fixed."""
    if fixed:
        anew = "; this run's schema is fixed, and another one needs training anew"
        return " or ".join(ways[:-1]) + anew
    return ", ".join(ways[:-1]) + (", or " if len(ways) > 2 else " or ") + ways[-1]


# --- a whole table --------------------------------------------------------------------------------


def encode_table(schema: Schema, table: pd.DataFrame, where: Any) -> Data:
    """A table of nodes, without edges: ``x``, labels, owners, and all that is stated of them.

    ``where`` names the table in refusals.

    *Guarantee*: no cost. Each row of ``x`` and ``y`` depends on its own row and on ``schema``.
    """
    data = Data()
    schema.check_names([*table.columns], where)
    if not isinstance(where, Path):
        check_kinds(schema, table, where)
    put_rows(data, schema, table, where)
    put_label(data, schema, table, where)
    put_owner(data, schema, table, where)
    return data


def check_kinds(schema: Schema, table: pd.DataFrame, where: Any) -> None:
    """Refuse a table in memory whose categories or texts were read as numbers before, or say so.

    Whoever reads a csv without ``dtype=str`` gets 1067 for 01067, or 1067.0 where another cell of
    the column is empty: that depends on other rows, and happened before the table came here. A
    public list of values that has no such number tells all apart.
    """
    whole = []
    for name, column in schema.columns.items():
        if not isinstance(column, (Category, Text)) or name not in table:
            continue
        cells, what = table[name], "category" if isinstance(column, Category) else "text"
        values = column.values if isinstance(column, Category) else ()
        padded = any(map(_PADDED.fullmatch, values))
        told_apart = bool(values) and not getattr(column, "other", False)
        of_floats = pd.api.types.is_float_dtype(cells.dtype)
        if not any(map(_is_number, cells.tolist())):
            continue
        if of_floats or padded:
            raise InvalidInputError(
                f"{where}: column {name!r} is a {what}, but the table holds numbers "
                f"({'floats' if of_floats else 'integers'}), which lose zeros in front; "
                f"{_AS_TEXT}."
            )
        if not told_apart:
            whole.append(name)
    if whole:
        warnings.warn(
            f"{where}: the table holds numbers in {shorten(whole)}, for which 01067 and 1067 are "
            f"the same; if the column was text before, {_AS_TEXT}",
            Notice,
            stacklevel=2,
        )


def _is_number(cell: Any) -> bool:
    """Whether a cell of a column of any kind is a number, and no boolean."""
    number = isinstance(cell, (Real, Decimal)) and not isinstance(cell, bool)
    return number and not math.isnan(cell)


def put_rows(
    data: Data,
    schema: Schema,
    table: pd.DataFrame,
    where: Any,
    *,
    dense: bool = False,
    cut: Counter[str] | None = None,
) -> None:
    """Give ``data`` its features ``x``, their names, and what certificates list of the schema.

    Above 4,096 columns ``x`` is sparse, unless it must be ``dense``. Values outside a range are
    counted in ``cut``, or the owner is told of them at once.
    """
    blocks, names, outsiders = [], [], Counter[str]()
    for name, column in schema.columns.items():
        if column.kind == "ignored":
            continue
        cells = read_cells(table[name], where, schema)
        if not column.optional:
            ways = way_out(["fill it in", "state optional = true"], fixed=schema.fixed)
            check_cells(where, cells.column, pd.Series(cells.empty), "filled in", ways)
        rows, outside = _ENCODERS[type(column)](column, cells)
        outsiders[name] = outside
        blocks.append(rows)
        # A language model gives as many columns as it has.
        own = column.names(name) or [f"{name}#{place}" for place in range(rows.shape[1])]
        names += own
        if column.optional:
            blocks.append(cells.empty[:, None].astype(np.float32))
            names.append(missing_name(name))
    if not blocks:
        raise InvalidInputError(
            f"{where} must have a column of features. Got a schema that reads none instead; state "
            "one, such as a column of ones (a number from 0 to 1)."
        )
    data.x = _join(blocks, dense=dense or len(names) <= MOST_DENSE)
    data.columns = names
    data.schema = schema.to_dict()
    if schema.unit is not None:
        data.unit_name = schema.unit
    before = list(getattr(data, "public", ()))
    data.public = before + [line for line in public_lines(schema) if line not in before]
    _count_cut(where, outsiders, cut)


def put_label(
    data: Data,
    schema: Schema,
    table: pd.DataFrame,
    where: Any,
    *,
    cut: Counter[str] | None = None,
) -> None:
    """Give ``data`` the task of a schema, its public classes or range, and labels if it has any.

    ``cut`` is as for :func:`put_rows`.
    """
    label = schema.label
    if label is None:
        return
    data.task = label.task
    if label.value_range is not None:
        data.value_range = label.value_range
    else:
        data.class_names, data.num_classes = list(label.class_names), len(label.class_names)
    absent = [name for name in label.names if name not in table]
    if len(absent) == len(label.names):
        return  # to predict
    if absent:
        raise InvalidInputError(
            f"{where} must have the column {absent[0]!r} of labels, as it has others. Got none "
            "instead; add it, or leave all of them out to predict."
        )
    columns = [read_cells(table[name], where, schema) for name in label.names]
    if label.task == "regression":
        data.y, outside = _take_values(label, columns[0])
        _count_cut(where, Counter({label.names[0]: outside}), cut)
    elif label.columns:
        data.y = torch.stack([_take_flag(cells) for cells in columns], dim=1)
    elif label.task == "multilabel":
        data.y = _take_labels(label, columns[0])
    else:
        data.y = _take_class(label, columns[0])


def put_owner(data: Data, schema: Schema, table: pd.DataFrame, where: Any) -> None:
    """Number the owners of rows, if the schema names them; the column says what an owner is."""
    if schema.owner is None:
        return
    schema.check_owner([*table.columns], where)
    cells = read_cells(table[schema.owner], where, schema)
    check_cells(where, cells.column, pd.Series(cells.empty), "filled in", "every row needs one")
    owners, _ = pd.factorize(pd.Series(cells.words(), dtype=object))
    data.owner = torch.from_numpy(owners.astype(np.int64))
    name = re.sub(r"[ _-](id|number|no|key)$", "", schema.owner, flags=re.IGNORECASE)
    data.owner_name = name if is_plain_word(name) else OWNER


def _count_cut(where: Any, outsiders: Counter[str], cut: Counter[str] | None) -> None:
    if cut is None:
        say_cut(where, outsiders)
    else:
        cut.update(outsiders)


def say_cut(where: Any, cut: Counter[str]) -> None:
    """Tell the owner how many values were cut to their range."""
    counts = ", ".join(f"{name!r} {count:,}" for name, count in cut.items() if count)
    if counts:
        warnings.warn(
            f"{where}: values outside the range that the schema states were cut to it: {counts}",
            Notice,
            stacklevel=2,
        )


def _join(blocks: list[Rows], *, dense: bool) -> torch.Tensor:
    if dense:
        parts = [rows.toarray() if sparse.issparse(rows) else rows for rows in blocks]
        return torch.from_numpy(np.ascontiguousarray(np.concatenate(parts, axis=1), np.float32))
    joined = sparse.csr_array(sparse.hstack([sparse.csr_array(rows) for rows in blocks], "csr"))
    joined.sort_indices()
    return as_tensor(joined.astype(np.float32))


# --- cells ----------------------------------------------------------------------------------------


def read_cells(column: pd.Series, where: Any, schema: Schema) -> Cells:
    """The cells of a column, each by itself; some words count as no cell."""
    column, words = column.reset_index(drop=True), {"", *schema.empty, *map(word_of, schema.empty)}
    missing = column.isna().to_numpy(bool)
    texts = [
        None if none else text_of(cell) for none, cell in zip(missing, column.tolist(), strict=True)
    ]
    empty = [text is not None and (text in words or word_of(text) in words) for text in texts]
    missing = missing | np.array(empty, dtype=bool)
    texts = [None if none else text for none, text in zip(missing, texts, strict=True)]
    return Cells(where, column, texts, missing, schema.fixed)


def _numbers(cells: Cells, *, may_be_empty: bool) -> NDArray[np.float64]:
    """Every cell as a number; NaN where it is empty, and refused where it is none."""
    if pd.api.types.is_numeric_dtype(cells.column) and cells.column.dtype.kind in "iuf":
        values = cells.column.to_numpy(np.float64, na_value=np.nan)
    else:
        values = np.array([_number(text) for text in cells.texts], dtype=np.float64)
    wrong = ~np.isfinite(values)
    if (wrong & ~cells.empty).any():
        first = cells.texts[int(np.argmax(wrong & ~cells.empty))]
        ways = cells.ways(f"list it as empty in the schema{_PUBLISHED}", may_be_empty=may_be_empty)
        if first is not None and _COMMA.fullmatch(first):
            ways = f"write numbers with a point: {first.replace(',', '.')}"
        cells.check(wrong, "a finite number", ways)
    return np.where(cells.empty, np.nan, values)


def _number(text: str | None) -> float:
    try:
        return math.nan if text is None or "_" in text else float(text)
    except ValueError:
        return math.nan


def _cut(values: NDArray[np.float64], column: Number | Date, cells: Cells) -> tuple[Any, int]:
    """Values cut to the range of a ``column``, and how many were outside; or refused."""
    outside = (values < column.low) | (values > column.high)
    if column.outside == "refuse":
        rule = f"from {column.low:g} to {column.high:g}, as the schema states"
        if isinstance(column, Date):
            rule += f", in units of {column.scale} since {column.origin}"
        ways = cells.ways('state outside = "cut"', may_be_empty=column.optional)
        cells.check(outside, rule, ways)
    return np.clip(values, column.low, column.high), int(outside.sum())


def _encode_number(column: Number, cells: Cells) -> tuple[Rows, int]:
    values, outside = _cut(_numbers(cells, may_be_empty=column.optional), column, cells)
    middle = column.low / 2 + column.high / 2
    constant = column.constant
    values = np.where(cells.empty, constant, values)
    scaled = (values - middle) / (column.high / 2 - column.low / 2)
    return np.clip(scaled, -1.0, 1.0)[:, None].astype(np.float32), outside


def _encode_date(column: Date, cells: Cells) -> tuple[Rows, int]:
    origin = parse_date(column.origin)
    assert origin is not None

    def units(text: str | None, form: str | None) -> float:
        moment = None if text is None else parse_date(text, form)
        if moment is None:
            return math.nan
        return (moment - origin).total_seconds() / 86_400 / column.days

    # A cell that holds a date, and no text, is written out in one way.
    forms = [None if isinstance(cell, date) else column.format for cell in cells.column.tolist()]
    values = np.array([units(*pair) for pair in zip(cells.texts, forms, strict=True)], np.float64)
    written = "as 2020-12-31" if column.format is None else f"as {column.format}"
    ways = cells.ways("state another format in the schema", may_be_empty=column.optional)
    cells.check(np.isnan(values), f"a date {written}", ways)
    values, outside = _cut(values, column, cells)
    constant = column.low / 2 + column.high / 2
    if column.missing is not None:
        constant = min(max(units(column.missing, None), column.low), column.high)
    return np.where(cells.empty, constant, values)[:, None].astype(np.float32), outside


def _encode_category(column: Category, cells: Cells) -> tuple[Rows, int]:
    name = str(cells.column.name)
    unreadable = np.array([text is None for text in cells.texts], dtype=bool)
    cells.check(unreadable, "a text or a number", "write one value a cell")
    words = cells.words()
    if column.buckets is not None:
        known: dict[str, int] = {}
        for text in words:
            if text is not None and text not in known:
                known[text] = hash_word(name, text) % column.buckets
        width = column.buckets
    else:
        known = {word_of(value): place for place, value in enumerate(column.values)}
        width = len(column.values) + column.other
    places = np.array([-1 if t is None else known.get(t, -1) for t in words], np.int64)
    if column.other:
        places = np.where((places < 0) & ~cells.empty, width - 1, places)
    rule = f"one of the categories that the schema states, {shorten(column.values, 8)}"
    restate = f"state other = true in the schema, or the category{_PUBLISHED}"
    cells.check(places < 0, rule, cells.ways(restate, may_be_empty=column.optional))
    return _ones(places, width), 0


def _ones(places: NDArray[np.int64], width: int) -> sparse.csr_array:
    """A 1 in each row at its place; none where the place is negative."""
    filled = places >= 0
    starts = np.concatenate([[0], np.cumsum(filled)])
    values = np.ones(int(filled.sum()), np.float32)
    return sparse.csr_array((values, places[filled], starts), shape=(len(places), width))


def _encode_flag(column: Flag, cells: Cells) -> tuple[Rows, int]:
    values = _flags(cells, column)
    return np.maximum(values, 0)[:, None].astype(np.float32), 0


def _flags(cells: Cells, flag: Flag) -> NDArray[np.int64]:
    """1 for yes, 0 for no, -1 for an empty cell."""
    known = {word_of(word).casefold(): 1 for word in flag.true}
    known |= {word_of(word).casefold(): 0 for word in flag.false}
    words = cells.words()
    values = np.array([-1 if w is None else known.get(w.casefold(), -1) for w in words], np.int64)
    rule = f"yes or no: {', '.join(flag.true)}; {', '.join(flag.false)}"
    ways = cells.ways(f"state the words in the schema{_PUBLISHED}", may_be_empty=flag.optional)
    cells.check(values < 0, rule, ways)
    return values


def _encode_text(column: Text, cells: Cells) -> tuple[Rows, int]:
    unreadable = np.array([text is None for text in cells.texts], dtype=bool)
    cells.check(unreadable, "a text", "write one text a cell")
    words = cells.words()
    if column.embed:
        return _embed(column, cells, words), 0
    return hash_texts(str(cells.column.name), words, column.buckets or 0), 0


def hash_texts(name: str, texts: Sequence[str | None], buckets: int) -> sparse.csr_array:
    """Words counted in ``buckets`` columns by a fixed hash with signs; rows of length 1 or 0.

    *Guarantee*: no cost. Nothing is learnt from the texts.
    """
    hashes: dict[str, int] = {}
    columns: list[int] = []
    values: list[float] = []
    starts = [0]
    for text in texts:
        counts: dict[int, int] = {}
        for word in _WORD.findall(unicodedata.normalize("NFKC", text or "").casefold()):
            if word not in hashes:
                hashes[word] = hash_word(name, word)
            sign, place = 1 - 2 * (hashes[word] & 1), (hashes[word] >> 1) % buckets
            counts[place] = counts.get(place, 0) + sign
        filled = sorted((place, count) for place, count in counts.items() if count)
        length = math.sqrt(sum(count * count for _, count in filled))
        columns += [place for place, _ in filled]
        values += [count / length for _, count in filled]
        starts.append(len(columns))
    parts = np.array(values, np.float32), np.array(columns, np.int64), np.array(starts, np.int64)
    return sparse.csr_array(parts, shape=(len(texts), buckets))


def hash_word(name: str, word: str) -> int:
    """A fixed number for a word of the column ``name``, the same on every machine."""
    content = f"{len(name)}:{name}:{word}".encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")


def _embed(column: Text, cells: Cells, texts: Sequence[str | None]) -> NDArray[np.float32]:
    from graphveil.data.text_features import sentences

    try:
        return sentences([text or "" for text in texts], column.model or MODEL)
    except InvalidInputError as error:
        raise InvalidInputError(
            f"{cells.where}: column {cells.column.name!r} has embed = true in the schema. {error} "
            "Or write buckets = 256 there instead."
        ) from None


_Encoder = Callable[[Any, Cells], tuple[Rows, int]]
_ENCODERS: dict[type[Column], _Encoder] = {
    Number: _encode_number,
    Category: _encode_category,
    Date: _encode_date,
    Flag: _encode_flag,
    Text: _encode_text,
}


# --- labels ---------------------------------------------------------------------------------------


def _take_class(label: Label, cells: Cells) -> torch.Tensor:
    known = {word_of(name): place for place, name in enumerate(label.classes)}
    places = np.array([-1 if w is None else known.get(w, -1) for w in cells.words()], np.int64)
    rule = f"one of the classes that the schema states, {shorten(label.class_names, 8)}"
    ways = cells.ways("state another public list there", may_be_empty=True)
    cells.check(places < 0, rule, ways)
    return torch.from_numpy(places)


def _take_flag(cells: Cells) -> torch.Tensor:
    return torch.from_numpy(_flags(cells, Flag(optional=True)))


def _take_labels(label: Label, cells: Cells) -> torch.Tensor:
    known = {word_of(name): place for place, name in enumerate(label.labels)}
    none = None if label.none is None else word_of(label.none)
    y = np.full((len(cells.texts), len(known)), -1, np.int64)
    wrong = np.zeros(len(cells.texts), dtype=bool)
    for row, text in enumerate(cells.words()):
        if text is None:
            wrong[row] = True
            continue
        parts = [] if text == none else text.split(label.separator)
        words = [word_of(part.strip()) for part in parts]
        wrong[row] = not all(word in known for word in words)
        y[row] = 0
        y[row, [known[word] for word in words if word in known]] = 1
    rule = f"labels that the schema states, {shorten(label.class_names, 8)}"
    rule += f", with {label.separator!r} between them"
    cells.check(wrong, rule, cells.ways("state the word for none there", may_be_empty=True))
    return torch.from_numpy(y)


def _take_values(label: Label, cells: Cells) -> tuple[torch.Tensor, int]:
    low, high = label.value_range or (0.0, 0.0)
    values = _numbers(cells, may_be_empty=True)
    outside = int(((values < low) | (values > high)).sum())
    return torch.from_numpy(np.clip(values, low, high).astype(np.float32)), outside
