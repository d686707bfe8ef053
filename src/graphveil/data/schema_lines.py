"""What a certificate takes as public of a schema, in words; torch is not loaded."""

from __future__ import annotations

from collections import Counter

from graphveil.data.schema import Label, Schema
from graphveil.graph.public_lines import plain, shorten

_LISTED = 40  # columns that a certificate lists one by one
_LONGEST = 400  # characters of such a line


def public_lines(schema: Schema) -> list[str]:
    """What a certificate takes as public of a schema: a line for each column, and the label.

    Of very many columns the first are listed, and the others counted by kind.
    """
    lines = []
    if schema.unit is not None:
        lines.append(f"the schema: a record is one {schema.unit}")
    read = [(name, column) for name, column in schema.columns.items() if column.kind != "ignored"]
    for name, column in read[:_LISTED]:
        empty = f", or missing, {column.describe_missing()}" if column.optional else ""
        line = f"the schema, column {shorten([name])}: {column.describe()}{empty}"
        lines.append(_plain(line))
    if more := Counter(column.kind for _, column in read[_LISTED:]):
        kinds = ", ".join(f"{count:,} of the kind {kind}" for kind, count in more.items())
        lines.append(f"the schema, further columns: {kinds}; all in settings.json")
    unread = [name for name, column in schema.columns.items() if column.kind == "ignored"]
    if unread:
        lines.append(_plain(f"the schema, not read: {shorten(unread, 8)}"))
    if schema.empty:
        lines.append(_plain(f"the schema, counted as empty cells: {shorten(schema.empty, 8)}"))
    if schema.label is not None:
        lines.append(_plain(f"the schema, {_describe_label(schema.label)}"))
    return lines


def _describe_label(label: Label) -> str:
    of = shorten(label.names, 8)
    if label.value_range is not None:
        low, high = label.value_range
        return f"label {of}: a number from {low:g} to {high:g}, cut to it"
    names = shorten(label.class_names, 8)
    what = "any of" if label.task == "multilabel" else "one of"
    looked_for = f"; {shorten(label.class_names[-1:])} is looked for"
    return f"label {of}: {what} {names}{looked_for if label.task == 'binary' else ''}"


def _plain(line: str) -> str:
    """A line as a certificate may print it."""
    line = plain(line)
    return line[:_LONGEST] + ("..." if len(line) > _LONGEST else "")
