"""What nobody but the owner of the data knows of a run: its name, its purpose, who answers for it.

One file, ``owner.toml``, serves a deployment card, an officer's page and a model card::

    name = "Readmission risk, ward 3"
    owner = ["Hospital of Anytown"]
    purpose = "To plan beds a week ahead."
    region = "Anytown, and the law of its country"
    published = 2026-11-19
    releases = "One release"
    data_source = "Static"
    authors = ["Ann Example"]
    license = "apache-2.0"

Nothing here is ever guessed: what is not stated is left out, or asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import date
from pathlib import Path
from typing import Any

from graphveil import _schema, _validate
from graphveil._errors import InvalidInputError
from graphveil._inputs import at_home

RELEASES = ("One release", "Many releases")
DATA_SOURCES = ("Static", "Dynamic")
SECTORS = ("Technology", "Healthcare", "Education", "Government", "Energy", "Finance")
_CHOICES = {"releases": RELEASES, "data_source": DATA_SOURCES, "sector": SECTORS}
_LISTS = ("owner", "authors")
_KEYS: _schema.Schema = {
    "name": str, "owner": (str, list), "purpose": str, "description": str, "region": str,
    "published": (str, date), "sector": str, "releases": str, "data_source": str, "actors": str,
    "preprocessing": str, "justification": str, "sources": str, "notes": str,
    "authors": (str, list), "slug": str, "license": str,
}  # fmt: skip
MEANINGS = {  # how a refusal asks for what is missing
    "name": "what the model is called",
    "owner": "who publishes it",
    "purpose": "what it is for",
    "region": "where its people live, or whose law applies",
    "published": "the day it was or will be published",
    "releases": "one of One release, Many releases",
    "data_source": "one of Static, Dynamic: whether new data comes in",
    "authors": "who fills in the card",
    "license": "under which licence the model is given away",
}


@dataclass(frozen=True, kw_only=True)
class Owner:
    """What the owner states; None or empty where nothing was."""

    name: str | None = None
    owner: Sequence[str] = ()
    purpose: str | None = None
    description: str | None = None
    region: str | None = None
    published: str | None = None
    sector: str | None = None
    releases: str | None = None
    data_source: str | None = None
    actors: str | None = None
    preprocessing: str | None = None
    justification: str | None = None
    sources: str | None = None
    notes: str | None = None
    authors: Sequence[str] = ()
    slug: str | None = None
    license: str | None = None

    def __post_init__(self) -> None:
        for name in (field.name for field in fields(self)):
            value = getattr(self, name)
            if name in _LISTS:
                value = (value,) if isinstance(value, str) else tuple(value)
                object.__setattr__(self, name, value)
            elif isinstance(value, date):
                object.__setattr__(self, name, value.isoformat()[:10])
            elif value is None:
                continue
            for text in getattr(self, name) if name in _LISTS else [getattr(self, name)]:
                _check_text(name, text)
        for name, allowed in _CHOICES.items():
            if (word := getattr(self, name)) is not None:
                _validate.choice(name, word, allowed)
        if self.published is not None:
            object.__setattr__(self, "published", _day(self.published))

    def missing(self, names: Sequence[str]) -> list[str]:
        """Which of those are not stated."""
        return [name for name in names if not getattr(self, name)]


def _check_text(name: str, text: Any) -> None:
    plain = isinstance(text, str) and text.strip()
    if not plain or not all(line.isprintable() for line in text.split("\n")):
        raise InvalidInputError(
            f"The '{name}' parameter must be text without control characters. Got "
            f"{_validate.shown(text)} instead."
        )


def check_reason(metrics_public: str | None) -> None:
    """Refuse a reason to show test scores that is no text: showing them is a release."""
    if metrics_public is not None and not any(map(str.isalnum, metrics_public)):
        raise InvalidInputError(
            "The 'metrics_public' parameter must say why test scores may be shown. Got "
            f"{_validate.shown(metrics_public)} instead; give a reason, or leave it out."
        )


def _day(text: str) -> str:
    try:
        return date.fromisoformat(text).isoformat()
    except ValueError:
        raise InvalidInputError(
            f"The 'published' parameter must be a day such as 2026-11-19. Got {text!r} instead."
        ) from None


def read_owner(path: str | None, given: Mapping[str, Any]) -> Owner:
    """The owner's facts in a file; what is ``given`` besides counts more. None and () are none."""
    table = {} if path is None else _schema.read_table(at_home(Path(path)), _KEYS)
    return Owner(**{**table, **{name: value for name, value in given.items() if value}})


def require(owner: Owner, names: Sequence[str], what: str) -> None:
    """Refuse in one line, with all that is missing, what only the owner can say."""
    if missing := owner.missing(names):
        asked = "; ".join(f"{name} ({MEANINGS[name]})" for name in missing)
        raise InvalidInputError(
            f"{what} must have what only the owner knows. Missing: {asked}. State them in a file "
            "for --facts, or as options."
        )
