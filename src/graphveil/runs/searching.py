"""A run that a search found: nothing is written of what it was chosen from."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from graphveil._errors import InvalidInputError
from graphveil._files import private_directory, write_file
from graphveil.methods import Method
from graphveil.runs import charging
from graphveil.runs import record as _record
from graphveil.runs.charging import kept_beside
from graphveil.runs.files import LOG, locked, write_json
from graphveil.runs.record import Asked
from graphveil.runs.run import Run
from graphveil.runs.source import Arranged, Source
from graphveil.runs.training import (
    NOTHING,
    Training,
    discard,
    finish,
    measure,
    set_aside,
    undo,
    write_asked,
)

_STAYS = (
    "The search in {directory} cannot go on, and what its trials may have spent stays spent; start "
    "anew with --force."
)

Find = Callable[[Arranged], tuple[Method, Mapping[str, Any]]]


def search_into(
    run: Run,
    find: Find,
    priced: Any,
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
    search that was killed does not go on, and stays charged. No metric or line, and no date in a
    copy of the directory, says how long it took. (Whoever watched the process knows all the same,
    and so does the disk it was written to: no program may set a file's ctime.)

    *Guarantee*: that of the method found.
    """
    directory = run.directory
    check_search(run, force=force)
    if ledger is not None and arranged is not None:
        raise InvalidInputError("What is charged to a ledger must load its data itself.")
    if ledger is None and arranged is None:
        arranged = source.arrange(source.load())
    aside, created = kept_beside(directory), not directory.exists()
    training = Training(run, priced, source, ledger=ledger, account=account, notify=notify)
    try:
        if force and run.state != "new":
            set_aside(run, aside)
        private_directory(directory)
        with locked(directory):
            _check_state(run)  # again: now nobody else can change it
            try:
                training.spending = charging.begun(
                    directory, f"tuning, {priced.name}", ledger, account, False, notify
                )
                if training.spending is not None:
                    arranged = training._load_charged(training.spending)
                assert arranged is not None
                charges = training.plans.on(arranged.training).charges
            except (Exception, KeyboardInterrupt) as error:
                if training.spending is None or training.spending.give_back():
                    undo(directory, aside, created)
                    error.add_note(NOTHING)
                raise
            start = time.time()
            asked = Asked(method=priced.name, settings={}, source=source, tuning=tuning)
            write_json(directory / _record.SETTINGS, asked.to_json())
            if training.spending is not None:
                training.spending.settle(charges)
            try:
                method, more = find(arranged)
            except KeyboardInterrupt as error:
                error.add_note(_STAYS.format(directory=directory))
                raise
            metrics = {**measure(method, arranged), **more}
            write_asked(directory, method, source, arranged, tuning)
            finish(directory, method, metrics)
            _forget_the_time(directory, start)
        discard(aside)
    except OSError as error:
        raise InvalidInputError(
            f"{directory} cannot be written: {error.strerror or error}; make room, or choose "
            "another place. What the trials may have spent stays spent."
        ) from error
    return method, metrics


def _forget_the_time(directory: Path, start: float) -> None:
    """Leave no date but that of the first trial: with the last one's it would tell their number."""
    write_file(directory / LOG, b"finished: a tuning run keeps no dates\n")
    for path in (*directory.iterdir(), directory):
        os.utime(path, (start, start))


def check_search(run: Run, *, force: bool = False) -> None:
    """Refuse a directory that :func:`search_into` would refuse; before any data is loaded."""
    if run.state == "unfinished":
        with locked(run.directory):
            pass  # who is at work there now is told apart from who was killed there
    _check_state(run, force=force)


def _check_state(run: Run, *, force: bool = False) -> None:
    if not force and run.state == "unfinished":
        raise InvalidInputError(
            f"The run in {run.directory} was begun and not finished. What it may have spent stays "
            "spent; start anew with --force, or choose another directory."
        )
    run.check_state(force=force)
