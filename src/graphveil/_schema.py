"""What a table of TOML may hold: one check for every file of settings or descriptions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

from graphveil import _validate
from graphveil._errors import InvalidInputError
from graphveil._inputs import read_toml

Schema = Mapping[str, type | tuple[type, ...]]
NUMBER = (int, float)
_WORDS = {
    bool: "true or false", int: "a whole number", float: "a number", str: "a text",
    list: "a list", tuple: "a list", dict: "a table", Mapping: "a table", date: "a date",
}  # fmt: skip


def read_table(path: Path, schema: Schema) -> dict[str, Any]:
    """The table in a TOML file, checked against a ``schema``."""
    try:
        table = read_toml(path)
    except OSError as error:
        raise InvalidInputError(f"{path} cannot be read: {error.strerror}.") from None
    check_table(table, schema, str(path))
    return table


def check_table(
    table: Mapping[str, Any], schema: Schema, place: str, required: Sequence[str] = ()
) -> None:
    """Refuse an unknown key, a value of another kind, and a ``required`` key that is absent.

    ``place`` says in the message where the table stands. A boolean is no number.
    """
    for key, value in table.items():
        if key not in schema:
            raise InvalidInputError(
                f"{place} has the unknown key {key!r}; it may hold {', '.join(schema)}."
            )
        kind = schema[key]
        if isinstance(value, bool) != (kind is bool) or not isinstance(value, kind):
            quoted = isinstance(value, str) and kind in (bool, int, float, NUMBER)
            raise InvalidInputError(
                f"{place}: {key!r} must be {_words_for(kind)}. Got {_validate.shown(value)} "
                f"instead{'; write it without quotes' if quoted else ''}."
            )
    for key in required:
        if key not in table:
            raise InvalidInputError(f"{place} must have the key {key!r}.")


def _words_for(kind: type | tuple[type, ...]) -> str:
    """What a value of a kind is called: "a number", "a text or a list"."""
    kinds = kind if isinstance(kind, tuple) else (kind,)
    if float in kinds:
        kinds = tuple(one for one in kinds if one is not int)
    return " or ".join(_WORDS.get(one, one.__name__) for one in kinds)
