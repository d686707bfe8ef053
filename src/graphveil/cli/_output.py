"""What a command says: its result, lines on stderr, progress, and files that it writes."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from graphveil._errors import InvalidInputError
from graphveil._files import write_pieces

# --- results --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Field:
    """One thing that a command found out: a key of the JSON, a row for a person, or both."""

    key: str | None
    value: Any
    label: str | None = None
    show: Callable[[Any], str] = str

    def rows(self) -> list[tuple[str, str]]:
        """A row, one for each item of a list, or none for what is not there."""
        if self.label is None or self.value is None:
            return []
        items = self.value if isinstance(self.value, (list, tuple)) else [self.value]
        return [(self.label, visible(self.show(item))) for item in items]


class Result:
    """What a command answers: one JSON object for programs, or a table for a person.

    A table has a row of label and text for each field; after :meth:`table` it has columns, and the
    texts of the fields are notes below it.
    """

    def __init__(self, title: str, /, **values: Any) -> None:
        self.title = title
        self.fields = [Field(key, value) for key, value in values.items()]
        self._columns: Sequence[str] = ()
        self._cells: list[Sequence[str]] = []

    def add(
        self, key: str, value: Any, label: str | None = None, show: Callable[[Any], str] = str
    ) -> None:
        """A value of the JSON, and with a ``label`` a row that ``show`` makes of it."""
        self.fields.append(Field(key, value, label, show))

    def update(self, values: Mapping[str, Any]) -> None:
        """Values of the JSON alone."""
        self.fields += [Field(key, value) for key, value in values.items()]

    def row(self, label: str, text: str | None) -> None:
        """A row for a person alone, unless there is nothing to say."""
        self.fields.append(Field(None, text, label))

    def note(self, *texts: str) -> None:
        """Sentences for a person alone."""
        self.fields += [Field(None, text, "note") for text in texts]

    def table(self, columns: Sequence[str], cells: Iterable[Sequence[str]]) -> None:
        """Show a table with a heading for each column."""
        self._columns = columns
        self._cells = [[visible(cell) for cell in row] for row in cells]

    def json(self) -> dict[str, Any]:
        """The JSON object. It has no infinity: a guarantee that does not exist is "inf"."""
        content: dict[str, Any] = _finite(
            {field.key: field.value for field in self.fields if field.key is not None}
        )
        return content

    def rows(self) -> list[tuple[str, str]]:
        """Label and text of every field that is shown."""
        return [row for field in self.fields for row in field.rows()]

    def show(self, as_json: bool) -> None:
        """Print the JSON, or the table."""
        try:
            if as_json:
                click.echo(json.dumps(self.json()))
            else:
                self._print()
                sys.stdout.flush()
        except BrokenPipeError:  # the reader (head, less) has had enough, which is not our error
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    def _print(self) -> None:
        console = _console()
        if self._columns:
            self._print_columns(console)
            for _, text in self.rows():
                console.print(f"\n{text}")
            return
        table = _make_table(self.title)
        table.add_column(no_wrap=True, style="bold")
        table.add_column(overflow="fold")
        for cells in self.rows():
            table.add_row(*cells)
        console.print(table)

    def _print_columns(self, console: Any) -> None:
        """The table without a broken word, which nobody could read or copy.

        Where even that is too wide, a file or a pipe gets long lines, and a terminal row by row.
        """
        widths = _share_width([self._columns, *self._cells], console.width)
        wide = sum(widths) + _GAP * (len(widths) - 1)
        if console.is_terminal and wide > console.width:
            return self._print_blocks(console)
        table = _make_table(self.title, show_header=True, header_style="bold")
        for number, (name, width) in enumerate(zip(self._columns, widths, strict=True)):
            table.add_column(name, width=width, no_wrap=number == 0)
        for cells in self._cells:
            table.add_row(*cells)
        printer = _console()
        printer.width = max(console.width, wide)
        printer.print(table)

    def _print_blocks(self, console: Any) -> None:
        console.print(self.title, style="italic")
        for cells in self._cells:
            console.print(f"\n{cells[0]}", style="bold")
            for name, cell in zip(self._columns[1:], cells[1:], strict=True):
                if cell:
                    console.print(f"  {name}: {cell}")


# Control characters but tab and newline, and those that set the direction of text.
_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_GAP = 2  # blanks between two columns
_SHORT = 14  # characters of a figure with its deviation, and some


def _make_table(title: str, show_header: bool = False, **more: Any) -> Any:
    from rich.table import Table

    return Table(
        title=title, title_justify="left", box=None, pad_edge=False, show_header=show_header, **more
    )


def _unbreakable(cell: str) -> list[str]:
    """The parts of a cell that stay on one line: its words, and a short cell whole."""
    return [cell] if len(cell) <= _SHORT else cell.split()


def _share_width(rows: Sequence[Sequence[str]], room: int) -> list[int]:
    """The widths of columns: the widest give way, none below its longest word or short cell."""
    from rich.cells import cell_len

    columns = list(zip(*rows, strict=True))
    widths = [max(map(cell_len, column)) for column in columns]
    least = [
        max(cell_len(part) for cell in column for part in _unbreakable(cell)) for column in columns
    ]
    least[0] = widths[0]
    while sum(widths) + _GAP * (len(widths) - 1) > room:
        slack = [number for number, width in enumerate(widths) if width > least[number]]
        if not slack:
            break
        widths[max(slack, key=widths.__getitem__)] -= 1
    return widths


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return "inf" if isinstance(value, float) and math.isinf(value) else value


def figure(value: float | None) -> str:
    """A bound as a person reads it, rounded up."""
    from graphveil.privacy.guarantee import round_up

    return round_up(value)


def visible(text: str) -> str:
    """Text from a file, for a terminal: what would move the cursor or reorder it is escaped."""
    return _OBEYED.sub(lambda mark: ascii(mark[0])[1:-1], text)


def plural(count: int, noun: str) -> str:
    """A count with its noun."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


# --- streams --------------------------------------------------------------------------------------


def open_streams() -> None:
    """Let stdout and stderr say everything: a path may hold bytes that are no text."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


quiet = False  # whether another process says what there is to say


def say(message: str, command: str = "") -> None:
    """One line on stderr, and perhaps a command to copy from its end, to the letter.

    But for passwords of a ledger's URL, wherever a message has taken one up.
    """
    if quiet:
        return
    text = " ".join(["graphveil:", *visible(message).split(), *([command] if command else [])])
    if "postgres" in text:
        from graphveil.privacy.ledger_entries import hide_passwords

        text = hide_passwords(text)
    click.echo(text, err=True)


def bar(label: str) -> Callable[[Iterable[Any]], Iterable[Any]] | None:
    """A progress bar on stderr, if that is a terminal."""
    if not sys.stderr.isatty():
        return None
    from rich.progress import track

    return lambda steps: track(steps, label, console=_console(stderr=True), transient=True)


def track(label: str, items: Iterable[Any]) -> Iterable[Any]:
    """The ``items``, with a progress bar where there is a terminal."""
    progress = bar(label)
    return items if progress is None else progress(items)


def _console(stderr: bool = False) -> Any:
    from rich.console import Console

    return Console(highlight=False, markup=False, emoji=False, stderr=stderr)


# --- files ----------------------------------------------------------------------------------------


def check_file(path: str | None, force: bool) -> None:
    """Refuse a file that is there, or cannot be; before anything is spent on it. None is none."""
    if path is None:
        return
    file = Path(path)
    if file.is_dir() or (file.exists() and not force):
        raise InvalidInputError(
            f"{path} exists and is not written over; choose another name, or use --force."
        )
    parent = file.absolute().parent
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        raise InvalidInputError(f"{path} cannot be written: {parent} is no writable directory.")


def check_page(path: str | None, force: bool) -> None:
    """Refuse a page that cannot be written; before anything is read or planned."""
    if path is not None and Path(path).suffix not in (".html", ".htm"):
        raise InvalidInputError(f"A page must end in .html. Got {path!r} instead.")
    check_file(path, force)


def check_picture(path: str | None, force: bool) -> None:
    """Refuse a picture that cannot be drawn or written; before anything is loaded."""
    if path is not None:
        from graphveil.report import plots

        plots.check_path(path)
    check_file(path, force)


def check_folder(path: str, names: Iterable[str], force: bool) -> list[Path]:
    """The files of those ``names`` in a folder for plots, if they can be drawn and written."""
    from graphveil.report import plots

    plots.require_matplotlib()
    folder = Path(path)
    if folder.exists() and not folder.is_dir():
        raise InvalidInputError(f"{path} cannot be a directory for plots; choose another.")
    files = [folder / name for name in names]
    for file in files if folder.exists() else [folder]:
        check_file(str(file), force)
    return files


def write_text(path: str, text: str | Iterable[str], *, private: bool = False) -> None:
    """Write a file whole or not at all; a ``private`` one is its owner's alone.

    A long text may come in pieces.
    """
    pieces = [text] if isinstance(text, str) else text
    try:
        # A path may hold bytes that are no UTF-8, which Python keeps as surrogates.
        encoded = (piece.encode(errors="backslashreplace") for piece in pieces)
        write_pieces(Path(path), encoded, private=private)
    except OSError as error:
        raise InvalidInputError(
            f"{path} cannot be written: {error.strerror or error}; make room, or choose another "
            "place."
        ) from error


def write_json(path: str, content: Mapping[str, Any]) -> None:
    """One JSON object as a file."""
    write_text(path, json.dumps(content, indent=2) + "\n")


_ROWS_AT_ONCE = 1 << 13  # of a table, that are made into text together


def csv_pieces(columns: Sequence[str], rows: Iterable[list[Any]]) -> Iterator[str]:
    """The table as text, a few thousand rows at a time."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for number, row in enumerate(rows, 1):
        writer.writerow(row)
        if number % _ROWS_AT_ONCE == 0:
            yield text.getvalue()
            text.seek(0)
            text.truncate()
    yield text.getvalue()
