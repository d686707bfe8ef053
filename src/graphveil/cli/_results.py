"""Folders of results, which several processes share: what commands do with them."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from graphveil._errors import InvalidInputError
from graphveil.cli._output import Result, plural, say
from graphveil.cli._runs import is_cataloged

if TYPE_CHECKING:
    from graphveil.bench import Notes, Row
    from graphveil.runs import Source


def make_folder(path: str) -> Path:
    """A folder that is there, or is made."""
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInputError(f"{path} cannot be a folder: {error.strerror}.") from None
    return folder


def check_shard(given: Mapping[str, Any], *written: str | None) -> tuple[int, int] | None:
    """The shard that is asked for; it has a folder, and writes nothing of the whole."""
    from graphveil import bench

    if given["shard"] is None:
        return None
    shard = bench.parse_shard(given["shard"])
    if given["results"] is None:
        raise click.UsageError("'--shard' needs '--results': a folder that the shards share.")
    if path := next(filter(None, written), None):
        raise click.UsageError(
            f"A shard has no table to write. Got {path!r}; leave it to the command without "
            "'--shard', which makes it of all shards."
        )
    return shard


@contextlib.contextmanager
def open_results(
    name: str, path: str | None, shard: tuple[int, int] | None, source: Source, graph: Any
) -> Iterator[Notes | None]:
    """What is written down of a command's runs, and where the next ones are; None without a folder.

    A graph of one's own is known by its content: what was measured before it changed is left out.
    """
    from graphveil import bench

    if path is None:
        yield None
        return
    folder, own = make_folder(path), not is_cataloged(source.data)
    notes = bench.Notes(
        bench.results_file(folder, name, quick=False, shard=shard),
        bench.results_files(folder, name, quick=False),
        content=bench.content_of(graph, folder) if own else None,
        private=own,
    )
    if stale := _count_stale(notes, source):
        say(
            f"{plural(stale, 'run')} in {path} of other content of {source.data} left out: the "
            "file has changed since, or is another one"
        )
    with goes_on(notes):
        yield notes


def _count_stale(notes: Notes, source: Source) -> int:
    """How many runs are of other data under the same name."""
    if notes.content is None:
        return 0
    runs = map(json.loads, notes)
    here = [run for run in runs if "content" in run and run["data"] == Path(source.data).name]
    return sum(run["content"] != notes.content for run in here)


@contextlib.contextmanager
def goes_on(notes: Notes | None) -> Iterator[None]:
    """Tell who interrupts that nothing is lost, where that is so."""
    try:
        yield
    except KeyboardInterrupt as error:
        if notes is not None:
            error.add_note(
                "What was measured is written down; the same command goes on from there."
            )
        raise


def show_shard(
    rows: Sequence[Row], seeds: int, shard: tuple[int, int], notes: Notes | None, as_json: bool
) -> None:
    """How far the whole is, after a shard of it."""
    assert notes is not None
    refused = [row for row in rows if row.refused]
    total = seeds * len(rows)
    left = sum(seeds - row.seeds for row in rows if not row.refused)
    result = Result(f"Shard {shard[0]} of {shard[1]}", shard=list(shard))
    result.add("results", str(notes.path), "written to")
    result.add("runs", total)
    result.add("left", left)
    result.row("runs", f"{total - left} of {total} are done or refused, by all shards so far")
    result.add("refused", [f"{row.label}: {row.refused}" for row in refused], "refused")
    rest = "the command without --shard shows the table"
    result.note(f"{rest}." if not left else f"Once the other shards are done, {rest}.")
    result.show(as_json)
