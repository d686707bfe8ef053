"""What the owner of tables states of them in public: every column, the label, the unit.

A ``schema.toml`` beside the tables::

    unit = "patient"                # what one row is about
    id = "patient_id"               # the column of ids; "id" unless stated
    empty = ["NA", "?"]             # words that count as an empty cell

    [columns.age]
    kind = "number"
    low = 0
    high = 120

    [columns.sex]
    kind = "category"
    values = ["female", "male"]
    optional = true

    [label]
    column = "outcome"
    task = "binary"
    classes = ["alive", "died"]     # the second is looked for, or: positive = "died"

    [edges]
    source = "from"
    target = "to"

The kinds of columns are in :mod:`graphveil.data.column_kinds`. How cells become numbers, row by
row, is in :mod:`graphveil.data.encoding`. Neither pandas nor torch is loaded here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from graphveil import _schema, _validate
from graphveil._errors import InvalidInputError
from graphveil._inputs import at_home, plain, read_toml, toml_of
from graphveil.data.column_kinds import (
    KINDS,
    Category,
    Column,
    Date,
    Flag,
    Ignored,
    Number,
    Text,
    build,
    check_filled,
    check_span,
    column_from_dict,
    plain_fields,
    word_of,
    words_of,
)
from graphveil.graph.targets import OF_CLASSES, TASKS

if TYPE_CHECKING:
    from graphveil.data.typed_schema import Types

__all__ = [
    "FILE", "KINDS", "Category", "Column", "Date", "Edges", "Flag", "Ignored", "Label", "Number",
    "Schema", "Text", "as_schema", "schema_beside",
]  # fmt: skip

FILE = "schema.toml"
_BARE = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True, kw_only=True)
class Label:
    """What is predicted: the ``column`` with it, the ``task``, and what is public of its values.

    ==============================  ============================================================
    multiclass, binary, ordinal     ``classes``, in their order; of a binary task the second is
                                    looked for, or the one that is ``positive``
    multilabel                      ``labels``, and as many ``columns`` of 0 and 1; or one
                                    ``column`` of labels with a ``separator`` between them, in
                                    which the word ``none`` says that there are none
    regression                      ``low`` and ``high``, to which values are cut
    ==============================  ============================================================

    An empty cell means that a row has no label.
    """

    task: str
    column: str | None = None
    classes: Sequence[str] = ()
    positive: str | None = None
    labels: Sequence[str] = ()
    columns: Sequence[str] = ()
    separator: str | None = None
    none: str | None = None
    low: float | None = None
    high: float | None = None

    keys: ClassVar[_schema.Schema] = {
        "column": str, "task": str, "classes": list, "positive": (str, int), "labels": list,
        "columns": list, "separator": str, "none": str, "low": _schema.NUMBER,
        "high": _schema.NUMBER,
    }  # fmt: skip

    def __post_init__(self) -> None:
        _validate.choice("task", self.task, TASKS)
        self._check_keys()
        if self.task in OF_CLASSES:
            self._settle_classes()
        elif self.task == "multilabel":
            self._settle_labels()
        else:
            self._settle_range()

    def _check_keys(self) -> None:
        own = {
            "multilabel": ("labels", "columns", "separator", "none"),
            "regression": ("low", "high"),
            "binary": ("classes", "positive"),
        }.get(self.task, ("classes",))
        for name in plain_fields(self):
            if name not in ("task", "column", *own):
                raise InvalidInputError(
                    f"The '{name}' parameter cannot go with the task '{self.task}', which takes "
                    f"{', '.join(own)}; leave it out."
                )

    def _settle_classes(self) -> None:
        classes = words_of("classes", self.classes, alike=True)
        two = self.task == "binary"
        if len(classes) < 2 or (two and len(classes) > 2):
            raise InvalidInputError(
                "The 'classes' parameter must be the public list of "
                f"{'two' if two else 'two or more'} classes for the task '{self.task}'. Got "
                f"{len(classes)} instead."
            )
        if self.positive is not None:
            (positive,) = words_of("positive", [self.positive])
            looked_for = [name for name in classes if word_of(name) == word_of(positive)]
            if not looked_for:
                raise InvalidInputError(
                    "The 'positive' parameter must be one of the classes, "
                    f"{' or '.join(classes)}. Got {positive!r} instead."
                )
            others = [name for name in classes if name not in looked_for]
            classes = (*others, *looked_for)
            object.__setattr__(self, "positive", None)  # the order says it
        object.__setattr__(self, "classes", classes)

    def _settle_labels(self) -> None:
        labels = words_of("labels", self.labels or self.columns, alike=True)
        columns = words_of("columns", self.columns)
        if not labels or bool(columns) == (self.separator is not None):
            raise InvalidInputError(
                "The task 'multilabel' must have 'labels' with as many 'columns' of 0 and 1, or "
                "'labels' and one 'column' with a 'separator'. Got something else instead."
            )
        if columns and (len(columns) != len(labels) or self.column is not None):
            got = f"{len(columns)}" if self.column is None else "'column' besides"
            raise InvalidInputError(
                f"The 'columns' parameter must name one for each of {len(labels)} labels. Got "
                f"{got} instead."
            )
        if self.separator == "" or (self.none is not None and (columns or self.none in labels)):
            raise InvalidInputError(
                "The 'separator' parameter must be text, and 'none' a word beside the labels that "
                "goes with it. Got something else instead."
            )
        object.__setattr__(self, "labels", labels)
        object.__setattr__(self, "columns", columns)

    def _settle_range(self) -> None:
        if self.low is None or self.high is None:
            raise InvalidInputError(
                "The task 'regression' must have 'low' and 'high', the public range of its values."
            )
        low = _validate.number("low", self.low, "[-1e30, 1e30]")
        high = _validate.number("high", self.high, "[-1e30, 1e30]")
        check_span(low, high)
        object.__setattr__(self, "low", low)
        object.__setattr__(self, "high", high)

    @property
    def names(self) -> tuple[str, ...]:
        """The columns of a table that hold the label."""
        return tuple(self.columns) or (self.column or "label",)

    @property
    def class_names(self) -> tuple[str, ...]:
        """The classes or labels; none of a regression."""
        return tuple(self.labels or self.classes)

    @property
    def value_range(self) -> tuple[float, float] | None:
        """The range of a regression."""
        return None if self.low is None or self.high is None else (self.low, self.high)


@dataclass(frozen=True, kw_only=True)
class Edges:
    """The columns of the table of edges, and whether edges have a direction, if that is stated."""

    source: str = "source"
    target: str = "target"
    directed: bool | None = None

    keys: ClassVar[_schema.Schema] = {"source": str, "target": str, "directed": bool}

    @property
    def ends(self) -> tuple[str, str]:
        """Both columns."""
        return self.source, self.target


@dataclass(frozen=True, kw_only=True)
class Schema:
    """What is public of tables: all that encoding a row may depend on, beside the row.

    ``columns`` say what becomes of features, in the order that ``x`` has. ``unit`` is what one row
    is about. ``id``, ``split`` and ``owner`` name columns; without ``split``, a column called split
    is taken if there is one. An ``owner`` is the person a row belongs to: all rows of one are one
    unit. ``owner_rows`` is a public rule, by which nobody has more rows; surplus ones are left out,
    see :func:`graphveil.graph.splits.cap_owners`. ``empty`` are words that count as an empty cell.
    ``fixed`` says that a model was trained by it, so that no refusal asks for another one; it is
    written nowhere. Where tables have types, this is the schema of the records, and ``typed`` knows
    all of them: :mod:`graphveil.data.typed_schema`.

    *Guarantee*: none is needed; certificates of what is trained by it list it as public.
    """

    columns: Mapping[str, Column] = field(default_factory=dict)
    label: Label | None = None
    unit: str | None = None
    id: str = "id"
    split: str | None = None
    owner: str | None = None
    owner_rows: int | None = None
    edges: Edges = field(default_factory=Edges)
    empty: Sequence[str] = ()
    fixed: bool = field(default=False, compare=False, repr=False)
    typed: Types | None = None

    keys: ClassVar[_schema.Schema] = {
        "unit": str, "id": str, "split": str, "owner": str, "owner_rows": int, "empty": list,
        "columns": dict, "label": dict, "edges": dict,
    }  # fmt: skip

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", dict(self.columns))
        object.__setattr__(self, "empty", words_of("empty", self.empty))
        if self.unit is not None and not _validate.is_name(self.unit):
            raise InvalidInputError(
                "The 'unit' parameter must be a word such as 'patient', or up to four without "
                f"punctuation. Got {_validate.shown(self.unit)} instead; name what one row is."
            )
        for name, column in self.columns.items():
            if not isinstance(name, str) or not isinstance(column, Column):
                raise InvalidInputError(
                    "The 'columns' parameter must be columns by their names. Got "
                    f"{_validate.shown(column)} for {_validate.shown(name)} instead."
                )
        if self.owner_rows is not None:
            _validate.integer("owner_rows", self.owner_rows, "[1, 1e9]")
            if self.owner is None:
                raise InvalidInputError(
                    "The 'owner_rows' parameter must go with an 'owner', the column that says "
                    f"whose a row is. Got {self.owner_rows} without one instead; name it, or leave "
                    "this out."
                )
        self._check_roles()
        names = self.encoded_names()
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise InvalidInputError(
                f"The columns must give different names. Got {twice!r} from two instead; rename "
                "one of them in the table."
            )

    def _check_roles(self) -> None:
        """Refuse a column with two roles."""
        roles = {self.id: "the id"}
        given = [(self.split, "the split"), (self.owner, "the owner")]
        given += [(name, "the label") for name in (() if self.label is None else self.label.names)]
        given += [(name, "a column of features") for name in self.columns]
        for name, role in given:
            if name is None:
                continue
            if not name or name in roles:
                more = ""
                if role == "a column of features" and name:
                    more = f"; delete [columns.{write_key(name)}]"
                    if roles[name] == "the label":
                        more += ", because a label among the features predicts itself"
                raise InvalidInputError(
                    f"Each column must have one role. Got {name!r} as {roles.get(name, 'nothing')} "
                    f"and as {role} instead{more}."
                )
            roles[name] = role

    # --- what it says of a table -----------------------------------------------------------------

    def encoded_names(self) -> list[str]:
        """The names of the columns of ``x``, without those that a language model gives."""
        names: list[str] = []
        for name, column in self.columns.items():
            names += column.names(name)
            names += [missing_name(name)] if column.optional else []
        return names

    def label_names(self) -> tuple[str, ...]:
        """The columns that hold the label; where none is stated, the column label, as ever."""
        if self.label is not None:
            return self.label.names
        return () if "label" in self.columns else ("label",)

    def split_name(self, columns: Iterable[str]) -> str | None:
        """Which of the ``columns`` of a table says who is trained on, if any does."""
        name = self.split or ("split" if "split" not in self.columns else None)
        return name if name is not None and name in columns else None

    def check_owner(self, columns: Sequence[str], where: Any) -> None:
        """Refuse a table without the column of owners, and name those called most alike."""
        if self.owner is not None and self.owner not in columns:
            way_out = "name the column of owners, or leave 'owner' out"
            raise InvalidInputError(
                f"The schema's 'owner' must be a column of {where}. Got {self.owner!r} instead; "
                f"{way_out}{_validate.near(self.owner, columns)}"
            )

    def check_names(self, columns: Sequence[str], where: Any) -> None:
        """Refuse a table without a column that is read, or with one that nobody stated."""
        self.check_owner(columns, where)
        roles = (self.id, self.split or "split", self.owner, *self.label_names())
        features = [name for name in columns if name in self.columns or name not in roles]
        self.check_columns(features, where)

    def check_columns(self, columns: Sequence[str], where: Any) -> None:
        """Refuse features without a column that is read, or with one that nobody stated."""
        unknown = [name for name in columns if name not in self.columns]
        for name, column in self.columns.items():
            if name not in columns and column.kind != "ignored":
                got = f"{unknown[0]!r}" if unknown else "no such column"
                raise InvalidInputError(
                    f"{where} must have the column {name!r}, which the schema names. Got {got} "
                    "instead; name columns as the schema does, in any order."
                )
        if unknown:
            raise InvalidInputError(
                f"{where} has the column {unknown[0]!r}, which the schema does not name; leave it "
                'out, or name it there before training (kind = "ignored" leaves it unread).'
            )

    def for_prediction(self) -> Schema:
        """The same for tables to predict on, in which nobody asks whose a row is."""
        schema = replace(self, fixed=True)
        if self.owner is not None:
            columns = {**self.columns, self.owner: Ignored()}
            schema = replace(schema, owner=None, owner_rows=None, columns=columns)
        return schema if self.typed is None else replace(schema, typed=self.typed.fixed(schema))

    def difference(self, other: Schema) -> str | None:
        """The first thing that ``other`` states differently, in half a sentence; None if nothing.

        The order of columns counts for nothing. This is the schema of a run, the other is here.
        """
        if self.typed is not None and other.typed is not None:
            return self.typed.difference(other.typed)
        if self.typed is not None or other.typed is not None:
            one_table, typed = "about one table", "about several types"
            run, here = (one_table, typed) if self.typed is None else (typed, one_table)
            return f"it is {run} in the run and {here} here"
        one, two = self.to_dict(), other.to_dict()
        for key in self.keys:
            mine, others = one.get(key), two.get(key)
            if mine == others:
                continue
            if key == "columns":
                mine, others = mine or {}, others or {}
                name = next(n for n in (*mine, *others) if mine.get(n) != others.get(n))
                return _differ(f"column {name!r}", mine.get(name), others.get(name))
            if key in ("label", "edges"):
                return _differ(f"the {key}", mine or {}, others or {})
            return _differ(repr(key), mine, others)
        return None

    # --- files -----------------------------------------------------------------------------------

    @classmethod
    def read(cls, path: str | Path) -> Schema:
        """The schema in a TOML file; a draft that is not filled in is refused."""
        path = at_home(path)
        try:
            table = read_toml(path)
        except OSError as error:
            raise InvalidInputError(
                f"{path} cannot be read ({error.strerror}); name a schema that 'graphveil data "
                "schema' has made."
            ) from None
        return cls.from_dict(table, str(path))

    @classmethod
    def from_dict(cls, table: Any, place: str = "The schema") -> Schema:
        """The schema that a table of TOML or JSON states; refusals name the ``place``."""
        if not isinstance(table, Mapping):
            raise InvalidInputError(f"{place} must be a table. Got {_validate.shown(table)}.")
        if "types" in table or "people" in table:
            from graphveil.data.typed_schema import Types

            return Types.from_dict(table, place).as_schema()
        _schema.check_table(table, cls.keys, place)
        content = dict(table)
        columns = {
            name: column_from_dict(column, f"{place}, column {name!r}")
            for name, column in content.pop("columns", {}).items()
        }
        if "label" in content:
            check_filled(content["label"], f"{place}, the label")
            content["label"] = build(Label, content["label"], Label.keys, f"{place}, the label")
        if "edges" in content:
            check_filled(content["edges"], f"{place}, the edges")
            content["edges"] = build(Edges, content["edges"], Edges.keys, f"{place}, the edges")
        check_filled(content, f"{place}, its head")
        return build(cls, {**content, "columns": columns}, {**cls.keys, **_BUILT}, place)

    def to_dict(self) -> dict[str, Any]:
        """What is stated, as JSON has it; :meth:`from_dict` gives the same schema back."""
        if self.typed is not None:
            return self.typed.to_dict()
        content = plain_fields(self)
        content["columns"] = {name: column.to_dict() for name, column in self.columns.items()}
        for name in ("label", "edges"):
            content[name] = plain_fields(value) if (value := getattr(self, name)) else {}
        return {
            name: content[name]
            for name in self.keys
            if name in content and content[name] not in ({}, None)
        }

    def to_toml(self) -> str:
        """The text of a ``schema.toml``; :meth:`read` gives the same schema back."""
        if self.typed is not None:
            return self.typed.to_toml()
        content = self.to_dict()
        heads = {key: value for key, value in content.items() if not isinstance(value, dict)}
        tables = {
            f"columns.{write_key(n)}": table for n, table in content.get("columns", {}).items()
        }
        tables |= {name: content[name] for name in ("label", "edges") if name in content}
        blocks = [write_lines(heads)] if heads else []
        blocks += [f"[{name}]\n{write_lines(table)}" for name, table in tables.items()]
        return "\n".join(blocks)

    @staticmethod
    def draft(columns: Sequence[str], **names: Sequence[str]) -> str:
        """A first ``schema.toml`` by the names of columns alone: see :mod:`.schema_draft`."""
        from graphveil.data.schema_draft import draft

        return draft(columns, **names)


_BUILT: _schema.Schema = {"label": Label, "edges": Edges}


def missing_name(column: str) -> str:
    """The name of the column that says where cells of another are empty."""
    return f"{column} is missing"


def as_schema(schema: Any) -> Schema | None:
    """A schema, its path or its content as a schema; None stays None."""
    if schema is None or isinstance(schema, Schema):
        return schema
    if isinstance(schema, Mapping):
        return Schema.from_dict(plain(dict(schema)))
    if isinstance(schema, (str, Path)):
        return Schema.read(schema)
    raise InvalidInputError(
        "The 'schema' parameter must be a Schema, the path of a schema.toml, or None. Got "
        f"{type(schema).__name__} instead."
    )


def schema_beside(folder: Path) -> Schema | None:
    """The schema that stands beside tables, if there is one."""
    path = folder / FILE
    return Schema.read(path) if path.is_file() else None


# --- TOML -----------------------------------------------------------------------------------------


def write_key(name: str) -> str:
    """A key as TOML writes it."""
    return name if _BARE.fullmatch(name) else write_value(name)


def write_lines(table: Mapping[str, Any]) -> str:
    """A table as TOML writes it, a line for each entry."""
    return "".join(f"{write_key(name)} = {write_value(value)}\n" for name, value in table.items())


def write_value(value: Any) -> str:
    """A value as TOML writes it: text, a number, a boolean, or a list of them."""
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(write_value, value))}]"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    if isinstance(value, (int, float)):
        return repr(value)
    text = json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
    toml_of(f"value = {text}")  # a NUL, or half a character
    return text


def _differ(what: str, run: Any, here: Any) -> str:
    """Where two statements about one thing differ: an entry of both tables, or all of them."""
    if isinstance(run, dict) and isinstance(here, dict):
        key = next(key for key in (*run, *here) if run.get(key) != here.get(key))
        what, run, here = f"{key!r} of {what}", run.get(key), here.get(key)
    one, two = ("not stated" if v is None else _brief(v) for v in (run, here))
    return f"{what} is {one} in the run and {two} here"


def _brief(value: Any) -> str:
    """A value of a schema as its owner wrote it."""
    if isinstance(value, dict):
        return f"of the kind {value['kind']}" if "kind" in value else "stated"
    if isinstance(value, list):
        return _validate.shown(value)
    return write_value(value)
