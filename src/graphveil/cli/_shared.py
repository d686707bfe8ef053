"""What every command shares: options, printing, progress, and the lines of an account."""

from __future__ import annotations

import io
import json
import math
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from graphveil.privacy.accounting import Account

json_option = click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
root_option = click.option("--root", help="Folder with raw data; else GRAPHVEIL_DATA or the cache.")
split_option = click.option(
    "--split",
    type=click.Choice(["transductive", "inductive", "given"]),
    help="Who is trained on: drawn by --seed (one graph, or two without an edge between them), or "
    "the masks that come with the data. Default: given for files, and for sets of graphs, that "
    "have masks, else transductive.",
)
classes_option = click.option(
    "--classes",
    metavar="N|A,B,C|public",
    help="What is public of the classes of your own files: how many there are, their names, or "
    "public: whatever names the file has. Else names are not published.",
)
directed_option = click.option(
    "--directed/--undirected",
    default=None,
    help="Whether edges of your own files have a direction; the unit edge asks for it. A line of "
    "a table goes both ways unless --directed.",
)
set_option = click.option(
    "--set", "sets", multiple=True, metavar="KEY=VALUE", help="A setting of the method; repeat."
)
delta_option = click.option("--delta", type=float, help="Default: below 1/nodes, a power of ten.")
ledger_option = click.option("--ledger", help="A ledger to charge: see 'graphveil ledger'.")
account_option = click.option("--account", help="Its account; may be left out if it has but one.")
force_option = click.option("--force", is_flag=True, help="Replace what is there.")


def open_streams() -> None:
    """Let stdout and stderr say everything: a path may hold bytes that are no text."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def say(message: str, command: str = "") -> None:
    """One line on stderr, and perhaps a command to copy from its end, to the letter."""
    click.echo(
        " ".join(["graphveil:", *message.split(), *([command] if command else [])]), err=True
    )


def show(
    result: dict[str, Any], as_json: bool, title: str, rows: Iterable[tuple[str, str]]
) -> None:
    """The result as JSON, or as a table for a person."""
    try:
        if as_json:
            click.echo(json.dumps(finite(result)))
        else:
            _print_rows(title, rows)
            sys.stdout.flush()
    except BrokenPipeError:  # the reader (head, less) has had enough, which is not our error
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _print_rows(title: str, rows: Iterable[tuple[str, str]]) -> None:
    from rich.table import Table

    table = Table(title=title, title_justify="left", show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for label, text in rows:
        table.add_row(label, text)
    _console().print(table)


def show_table(
    result: dict[str, Any],
    as_json: bool,
    title: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    notes: Sequence[str] = (),
) -> None:
    """The result as JSON, or as a table with a heading for each column and notes below it."""
    if as_json:
        show(result, True, title, [])
        return
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for number, name in enumerate(columns):
        table.add_column(name, overflow="fold", no_wrap=number == 0)
    for row in rows:
        table.add_row(*row)
    try:
        _console().print(table)
        for note in notes:
            _console().print(f"\n{note}")
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _console(stderr: bool = False) -> Any:
    from rich.console import Console

    return Console(highlight=False, markup=False, emoji=False, stderr=stderr)


def bar(label: str) -> Callable[[Iterable[Any]], Iterable[Any]] | None:
    """A progress bar on stderr, if that is a terminal."""
    if not sys.stderr.isatty():
        return None
    from rich.progress import track

    return lambda steps: track(steps, label, console=_console(stderr=True), transient=True)


def finite(value: Any) -> Any:
    """JSON has no infinity; a guarantee that does not exist is the string "inf"."""
    if isinstance(value, dict):
        return {key: finite(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(each) for each in value]
    return "inf" if isinstance(value, float) and math.isinf(value) else value


def figure(value: float | None) -> str:
    """A bound as a person reads it, rounded up."""
    from graphveil.privacy.guarantee import round_up

    return round_up(value)


def account_rows(account: Account) -> list[tuple[str, str]]:
    """What an event costs, by each bound."""
    return [
        ("epsilon", f"{figure(account.epsilon)}  at delta {account.delta:g}"),
        ("by PLD", figure(account.pld)),
        ("by RDP", figure(account.rdp)),
        *(("note", note) for note in account.notes),
    ]
