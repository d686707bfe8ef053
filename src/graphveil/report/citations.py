"""BibTeX of the papers behind a method, and of this library.

The papers are in ``citations.toml`` beside this file. What is not known of one is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any

from graphveil import __version__, _validate
from graphveil._inputs import toml_of

LIBRARY = {  # as CITATION.cff has it
    "title": "graphveil",
    "author": "{graphveil maintainers}",
    "abstract": "A Python library and command line for training graph neural networks with "
    "differential privacy that holds.",
    "license": "Apache-2.0",
}


@cache
def _content() -> dict[str, Any]:
    return toml_of((resources.files("graphveil.report") / "citations.toml").read_text("utf-8"))


def methods() -> tuple[str, ...]:
    """The methods that can be cited."""
    return tuple(_content()["methods"])


def papers(method: str) -> dict[str, Mapping[str, str]]:
    """The papers behind a method, each with its fields, by their keys."""
    _validate.choice("method", method, methods())
    return {key: _content()["papers"][key] for key in _content()["methods"][method]}


def library() -> dict[str, str]:
    """The fields of this library's own entry."""
    return {**LIBRARY, "version": __version__}


def bibtex(method: str | None = None) -> str:
    """The papers behind a ``method`` and the library; the library alone where none is named."""
    entries = [] if method is None else [_entry(key, f) for key, f in papers(method).items()]
    return "\n".join([*entries, _entry("graphveil", {"type": "software", **library()})])


def _entry(key: str, fields: Mapping[str, str]) -> str:
    lines = [f"  {name} = {{{value}}}," for name, value in fields.items() if name != "type"]
    return "\n".join([f"@{fields['type']}{{{key},", *lines, "}", ""])
