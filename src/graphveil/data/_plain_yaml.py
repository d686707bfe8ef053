"""The little of YAML that descriptions of data sets use, without a library for all of it.

Keys on the left edge with a plain value, a list (``- a`` on lines below, or ``[a, b]``) or a table
of plain values (``a: 1`` on indented lines). Anything else is refused.
"""

from __future__ import annotations

import json
import re
from typing import Any

_KEY = re.compile(r"""([A-Za-z_][\w -]*?|'[^']*'|"[^"]*")\s*:(?:\s+(.*))?""")
_ITEM = re.compile(r"""\s*('(?:[^']|'')*'|"(?:[^"\\]|\\.)*"|[^\s,'"\[\]{}][^,\[\]{}]*?)\s*(,|$)""")
_COMMENT = re.compile(r"""^((?:[^#'"]|'[^']*'|"[^"]*")*?)(?:(?<=\s)|^)#.*$""")
_WORDS = {"true": True, "false": False, "null": None, "~": None, "": None}
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?")


def parse_yaml(text: str) -> dict[str, Any]:
    """The table in a plain YAML text; ValueError names the line that is not plain."""
    table: dict[str, Any] = {}
    key, inner = "", False
    for number, line in _lines(text):
        if line[0] not in " -":
            key, value = _pair(line, number)
            if key in table:
                raise ValueError(f"line {number} has the key {key!r} once more")
            table[key], inner = value, value is None
        elif not inner:
            raise ValueError(f"line {number} belongs to no key")
        else:
            table[key] = _add(table[key], line.strip(), number)
    return table


def _lines(text: str) -> list[tuple[int, str]]:
    """Lines that say something, with their numbers; a list in brackets is one line."""
    lines: list[tuple[int, str]] = []
    is_open = False
    for number, raw in enumerate(text.lstrip("\ufeff").splitlines(), start=1):
        line = (match[1] if (match := _COMMENT.match(raw)) else raw).rstrip()
        if is_open:
            start, before = lines[-1]
            lines[-1] = (start, f"{before} {line.strip()}")
        elif line.strip() and line not in ("---", "..."):
            lines.append((number, line))
        is_open = bool(lines) and ": [" in lines[-1][1] and not lines[-1][1].endswith("]")
    return lines


def _pair(line: str, number: int) -> tuple[str, Any]:
    if (match := _KEY.fullmatch(line)) is None:
        raise ValueError(f"line {number} is no plain 'key: value'")
    return str(_plain(match[1], number, word=True)), _value(match[2] or "", number)


def _value(text: str, number: int) -> Any:
    """A list in brackets, or a plain value."""
    if not text.startswith("["):
        return _plain(text, number)
    items, rest = [], text[1:-1].strip().removesuffix(",")
    if not text.endswith("]"):
        raise ValueError(f"line {number} has a list without an end")
    while rest:
        if (match := _ITEM.match(rest)) is None:
            raise ValueError(f"line {number} has a list that is not plain")
        items.append(_plain(match[1], number))
        rest = rest[match.end() :]
    return items


def _add(value: Any, line: str, number: int) -> Any:
    """What a key holds, with one more line below it: an item of a list, or a pair of a table."""
    if line == "-" or line.startswith("- "):
        if not isinstance(value, list | None):
            raise ValueError(f"line {number} mixes a list and a table")
        return [*(value or []), _plain(line[1:].strip(), number)]
    if not isinstance(value, dict | None):
        raise ValueError(f"line {number} mixes a list and a table")
    name, inner = _pair(line, number)
    return {**(value or {}), name: inner}


def _plain(text: str, number: int, *, word: bool = False) -> Any:
    """A text in quotes or without, a number, true, false or nothing."""
    if len(text) > 1 and text[0] == text[-1] == "'":
        return text[1:-1].replace("''", "'")
    if len(text) > 1 and text[0] == text[-1] == '"':
        return json.loads(text)
    if word:
        return text
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if _NUMBER.fullmatch(text):
        return int(text) if re.fullmatch(r"[+-]?\d+", text) else float(text)
    if text[0] in "\"'[]{}&*!|>%@`?" or ": " in text:
        raise ValueError(f"line {number} has a value that is not plain")
    return text
