"""A run that a search found: nothing is written of what it was chosen from."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from graphveil._errors import InvalidInputError
from graphveil.methods import Method
from graphveil.runs.directory import FORMAT, _finish, _plain, _set_aside, _settings, check, state
from graphveil.runs.files import locked, write_json
from graphveil.runs.metrics import measure
from graphveil.runs.source import Arranged, Source

Found = tuple[Method, Mapping[str, Any]]


def tune(
    find: Callable[[], Found],
    name: str,
    arranged: Arranged,
    directory: str | Path,
    source: Source,
    tuning: Mapping[str, Any],
    *,
    force: bool = False,
) -> tuple[Method, dict[str, Any]]:
    """Write what ``find`` finds, a fitted method and further metrics, as a finished run.

    Until then the directory holds settings.json alone, with ``tuning`` and without a setting: a
    search that was killed leaves no trace of what it tried, or how often. It is not gone on with.
    No metric says how long it took.

    *Guarantee*: that of the method found.
    """
    directory = Path(directory)
    check_tuning(directory, force=force)
    aside = directory.absolute().with_name(f".{directory.absolute().name}.replaced")
    try:
        if force and state(directory) != "new":
            _set_aside(directory, aside)
        directory.mkdir(parents=True, exist_ok=True)
        with locked(directory):
            check_tuning(directory)  # again: now nobody else can change it
            begun = {"data": asdict(source), "tuning": dict(tuning)}
            write_json(
                directory / "settings.json", _plain({"format": FORMAT, "method": name, **begun})
            )
            method, metrics = find()
            found = {**measure(method, arranged.testing, arranged.mode), **metrics}
            asked = _settings(method, source, arranged, tuning)
            write_json(directory / "settings.json", asked)
            _finish(directory, method, found, asked)
        if force:
            shutil.rmtree(aside, ignore_errors=True)
    except OSError as error:
        raise InvalidInputError(
            f"{directory} cannot be written: {error.strerror or error}; make room, or choose "
            "another place. What the trials may have spent stays spent."
        ) from error
    return method, found


def check_tuning(directory: str | Path, *, force: bool = False) -> None:
    """Refuse a directory that :func:`tune` would refuse; before any data is loaded."""
    if not force and state(directory) == "unfinished":
        raise InvalidInputError(
            f"The run in {directory} was begun and not finished. What it may have spent stays "
            "spent; start anew with --force, or choose another directory."
        )
    check(directory, force=force)
