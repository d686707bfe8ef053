"""Docstrings for the site: roles become code, drawn tables stay as they are drawn."""

from __future__ import annotations

import re
from typing import Any

import griffe

_ROLE = re.compile(r":(?:py:)?(?:class|func|meth|mod|attr|data|exc|obj):`~?([^`]+)`")
_TABLE = re.compile(r"^=[= ]+$\n(?:.*\n)*?^=[= ]+$\n(?:.*\n)*?^=[= ]+$", re.MULTILINE)


_DOCTEST = re.compile(r"^>>> (?:.+\n?)+", re.MULTILINE)


class PlainRoles(griffe.Extension):
    """Rewrite the docstring of every object that is read."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Rewrite one docstring."""
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)


def as_markdown(text: str) -> str:
    """A docstring as Markdown."""
    text = _ROLE.sub(r"`\1`", text)
    text = _TABLE.sub(lambda match: f"```text\n{match[0]}\n```", text)
    text = _DOCTEST.sub(lambda match: f"```pycon\n{match[0].rstrip()}\n```\n", text)
    return re.sub(r"::$", ":", text, flags=re.MULTILINE)
