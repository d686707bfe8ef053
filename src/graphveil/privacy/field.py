r"""The field: what works on private graph networks claim, what holds of it, and who looked where.

The facts are in ``field.toml`` beside this file, and docs/guarantees/field.md is written from them.
Each is something that was read, in a paper or in its code, with the place; what nobody has read is
"not checked". Figures are computed by :mod:`graphveil.privacy.claims`, never typed.

*Guarantee.* None. A proven figure is one for runs that are as its claim's ``proven_note`` says.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from typing import Any

from graphveil import _validate
from graphveil._errors import InvalidInputError
from graphveil._inputs import toml_of
from graphveil._schema import Schema, check_table
from graphveil.privacy.claims import CLAIMS, Claim

CHECKED = ("paper", "code", "paper and code", "not checked")
HOLDS = ("yes", "no", "in part", "not checked")
UNITS = ("node", "edge", "graph")
BY_READING = "by reading"


@dataclass(frozen=True, kw_only=True)
class Example:
    """A setting, in the words of one of :data:`graphveil.privacy.claims.CLAIMS`.

    ``source`` says what of it is the paper's. ``run`` is what a run had otherwise than was claimed
    for it: the proven epsilon is for the run.
    """

    claim: str
    source: str
    settings: Mapping[str, Any]
    run: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @cached_property
    def claimed(self) -> Claim:
        """With the epsilon that is claimed."""
        return CLAIMS[self.claim](**self.settings)

    @cached_property
    def proven(self) -> Claim:
        """With the epsilon that is proven for the same noise.

        *Guarantee.* The proven epsilon, for a run as its note says.
        """
        return CLAIMS[self.claim](**{**self.settings, **self.run}) if self.run else self.claimed

    @property
    def commands(self) -> tuple[str, ...]:
        """What prints the two: one command, or one each."""
        lines = [self.settings, {**self.settings, **self.run}] if self.run else [self.settings]
        return tuple(
            " ".join(
                ["graphveil claims", self.claim]
                + [f"--{key.replace('_', '-')} {value}" for key, value in settings.items()]
            )
            for settings in lines
        )


@dataclass(frozen=True, kw_only=True)
class Statement:
    """One claim of a work: for whom, what is said, whether it holds, and what shows it."""

    unit: str
    relation: str
    claimed: str
    holds: str
    because: str
    places: tuple[str, ...]
    shown_by: tuple[str, ...]
    example: Example | None = None


@dataclass(frozen=True, kw_only=True)
class Work:
    """A paper, or a repository that has none, and its statements."""

    name: str
    title: str
    authors: str
    year: int | None
    reference: str
    code: str | None
    checked: str
    statements: tuple[Statement, ...]


def works() -> dict[str, Work]:
    """Every work by its name, in the order of the file."""
    content = toml_of((resources.files("graphveil.privacy") / "field.toml").read_text())
    return parse(content)


def parse(content: Mapping[str, Any]) -> dict[str, Work]:
    """Works out of the content of such a file, which is checked."""
    return {name: _work(name, table) for name, table in content.items()}


def find(name: str) -> Work:
    """The work of that name."""
    field = works()
    _validate.choice("name", name, tuple(field))
    return field[name]


# --- reading --------------------------------------------------------------------------------------

_WORK: Schema = {
    "title": str,
    "authors": str,
    "year": int,
    "reference": str,
    "code": str,
    "checked": str,
    "statement": list,
}
_STATEMENT: Schema = {
    "unit": str,
    "relation": str,
    "claimed": str,
    "holds": str,
    "because": str,
    "places": list,
    "shown_by": list,
    "example": dict,
}
_EXAMPLE: Schema = {"claim": str, "source": str, "settings": dict, "run": dict}


def _work(name: str, table: Mapping[str, Any]) -> Work:
    required = [key for key in _WORK if key not in ("year", "code")]
    check_table(table, _WORK, name, required)
    _one_of(table, name, "checked", CHECKED)
    statements = tuple(
        _statement(entry, f"{name}, statement {number}")
        for number, entry in enumerate(table["statement"], 1)
    )
    if not statements:
        raise InvalidInputError(f"{name} must have a statement or more.")
    facts = {key: table.get(key) for key in _WORK if key != "statement"}
    return Work(name=name, statements=statements, **facts)  # type: ignore[arg-type]


def _statement(table: Mapping[str, Any], place: str) -> Statement:
    check_table(table, _STATEMENT, place, [key for key in _STATEMENT if key != "example"])
    _one_of(table, place, "unit", UNITS)
    _one_of(table, place, "holds", HOLDS)
    facts = {key: value for key, value in table.items() if key != "example"}
    for key in ("places", "shown_by"):
        if not table[key] or not all(isinstance(text, str) for text in table[key]):
            raise InvalidInputError(f"{place}: {key!r} must be a list of texts and not empty.")
        facts[key] = tuple(table[key])
    example = None
    if "example" in table:
        check_table(
            table["example"], _EXAMPLE, f"{place}, example", ("claim", "source", "settings")
        )
        _one_of(table["example"], f"{place}, example", "claim", tuple(CLAIMS))
        example = Example(**table["example"])
    return Statement(example=example, **facts)


def _one_of(table: Mapping[str, Any], place: str, key: str, choices: tuple[str, ...]) -> None:
    if table[key] not in choices:
        raise InvalidInputError(
            f"{place}: {key!r} must be one of {', '.join(choices)}. Got {table[key]!r} instead."
        )
