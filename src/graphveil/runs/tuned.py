"""A run that a search found: nothing is written of what it was chosen from."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from graphveil._errors import InvalidInputError
from graphveil._files import private_directory, write_file
from graphveil.methods import Facts, Method
from graphveil.runs.charging import begun as spending_begun
from graphveil.runs.charging import kept_beside
from graphveil.runs.directory import FORMAT, LOG, _finish, _plain, _settings, state
from graphveil.runs.files import behind_links, locked, write_json
from graphveil.runs.metrics import measure
from graphveil.runs.source import Arranged, Source
from graphveil.runs.training import NOTHING, _check, _discard, _loaded, _set_aside, _undo

_STAYS = (
    "The search in {directory} cannot go on, and what its trials may have spent stays spent; start "
    "anew with --force."
)

Find = Callable[[Arranged], tuple[Method, Mapping[str, Any]]]


def tune(
    find: Find,
    priced: Any,
    directory: str | Path,
    source: Source,
    tuning: Mapping[str, Any],
    *,
    arranged: Arranged | None = None,
    force: bool = False,
    ledger: str | Path | None = None,
    account: str | None = None,
    notify: Callable[[str], None] = warnings.warn,
) -> tuple[Method, dict[str, Any]]:
    """Write what ``find`` finds, a fitted method and further metrics, as a finished run.

    ``priced`` has a ``name`` and plans what the search costs. With a ``ledger`` that is reserved
    before data is loaded, and settled before the first trial: it is the same however many trials
    follow, and so no entry tells how long they took.

    Until the search has ended the directory says what was asked, and nothing of what was tried: a
    search that was killed is not gone on with, and stays charged. No metric or line, and no date in
    a copy of the directory, says how long it took. (Whoever watched the process knows all the same,
    and so does the disk it was written to: no program may set a file's ctime.)

    *Guarantee*: that of the method found.
    """
    directory = behind_links(directory)
    check_tuning(directory, force=force)
    if ledger is not None and arranged is not None:
        raise InvalidInputError("What is charged to a ledger must load its data itself.")
    if ledger is None and arranged is None:
        arranged = source.arrange(source.load())
    aside = kept_beside(directory)
    created = not directory.exists()
    try:
        if force and state(directory) != "new":
            _set_aside(directory, aside)
        private_directory(directory)
        with locked(directory):
            _check_tuning(directory)  # again: now nobody else can change it
            spending = None
            try:
                purpose = f"tuning, {priced.name}"
                spending = spending_begun(directory, purpose, ledger, account, False, notify)
                arranged = _loaded(priced, arranged, directory, source, spending)
                planned = priced.plan(Facts.of(arranged.training))
            except (Exception, KeyboardInterrupt) as error:
                if spending is None or spending.give_back():
                    _undo(directory, aside, created)
                    error.add_note(NOTHING)
                raise
            begun = time.time()
            said = {"method": priced.name, "data": asdict(source), "tuning": dict(tuning)}
            write_json(directory / "settings.json", _plain({"format": FORMAT, **said}))
            if spending is not None:
                spending.settle(planned.charges)
            try:
                method, metrics = find(arranged)
            except KeyboardInterrupt as error:
                error.add_note(_STAYS.format(directory=directory))
                raise
            found = {**measure(method, arranged.testing, arranged.mode), **metrics}
            asked = _settings(method, source, arranged, tuning)
            write_json(directory / "settings.json", asked)
            _finish(directory, method, found, asked)
            _forget_the_time(directory, begun)
        _discard(aside)
    except OSError as error:
        raise InvalidInputError(
            f"{directory} cannot be written: {error.strerror or error}; make room, or choose "
            "another place. What the trials may have spent stays spent."
        ) from error
    return method, found


def _forget_the_time(directory: Path, begun: float) -> None:
    """Leave no date but that of the first trial: with the last one's it would tell their number."""
    write_file(directory / LOG, b"finished: a tuning run keeps no dates\n")
    for path in (*directory.iterdir(), directory):
        os.utime(path, (begun, begun))


def check_tuning(directory: str | Path, *, force: bool = False) -> None:
    """Refuse a directory that :func:`tune` would refuse; before any data is loaded."""
    if state(directory) == "unfinished":
        with locked(Path(directory)):
            pass  # who is at work there now is told apart from who was killed there
    _check_tuning(directory, force=force)


def _check_tuning(directory: str | Path, *, force: bool = False) -> None:
    if not force and state(directory) == "unfinished":
        raise InvalidInputError(
            f"The run in {directory} was begun and not finished. What it may have spent stays "
            "spent; start anew with --force, or choose another directory."
        )
    _check(directory, force=force)
