"""Train into a directory: reserved before data, charged for every step, whole after a crash."""

from __future__ import annotations

import contextlib
import json
import math
import os
import secrets
import shutil
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from torch_geometric.data import Data

from graphveil._errors import InvalidInputError
from graphveil._files import open_file, private_directory, sync, write_file
from graphveil.grads.journal import Nobody
from graphveil.graph.checks import MASKS
from graphveil.methods import Facts, Method
from graphveil.methods.base import Progress
from graphveil.privacy.ledger_state import count_events, count_releases, keyed_hash
from graphveil.runs.charging import (
    CHECKPOINT,
    LEDGER,
    Spending,
    abandoned,
    content_hash,
    kept_beside,
    noted_in,
    refuse_uncharged,
)
from graphveil.runs.charging import begun as spending_begun
from graphveil.runs.directory import (
    _FINGERPRINT,
    _KEY,
    LOSSES,
    _begun,
    _begun_tuning,
    _finish,
    _lost,
    _plain,
    _resting_on,
    _restore,
    _settings,
    _tuning,
    _way_on,
    state,
    steps_noted,
)
from graphveil.runs.files import behind_links, locked, log, read_json, reading, unusable, write_json
from graphveil.runs.metrics import measure
from graphveil.runs.source import Arranged, Source

NOTHING = "Nothing was released or charged."
_PRIVATE = "training losses, read off records without noise; no certificate covers them"


def check(directory: str | Path, *, resume: bool = False, force: bool = False) -> None:
    """Refuse a directory that :func:`train` would refuse; before any data is loaded."""
    if state(directory) == "unfinished":
        with locked(Path(directory)):
            pass  # who trains there now is told apart from who was killed there
    _check(directory, resume=resume, force=force)


def _check(directory: str | Path, *, resume: bool = False, force: bool = False) -> None:
    directory = Path(directory)
    found = state(directory)
    if resume and force:
        raise InvalidInputError("Give either 'resume' or 'force': go on, or start anew.")
    if found == "finished" and not force:
        raise InvalidInputError(
            f"The run in {directory} is finished and is not written over; choose another "
            "directory, or replace it with --force."
        )
    if found == "unfinished" and not (resume or force):
        raise InvalidInputError(
            f"The run in {directory} was begun and not finished; {_way_on(directory)}."
        )
    if found == "unfinished" and resume and _begun_tuning(directory):
        raise InvalidInputError(
            f"The tuning run in {directory} cannot go on: how many trials it had begun is kept "
            "nowhere. What it may have spent stays spent; start anew with --force."
        )
    if found == "unfinished" and resume and _lost(directory):
        raise InvalidInputError(
            f"The run in {directory} cannot go on: its {CHECKPOINT} is gone, and how many steps "
            "it took is kept nowhere else. What it may have spent stays spent; start anew with "
            "--force."
        )
    nearest = next(path for path in (directory, *directory.absolute().parents) if path.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        raise InvalidInputError(
            f"The directory {directory} must be one that can be written. {nearest} cannot; choose "
            "another."
        )


def train(
    method: Method,
    arranged: Arranged | None,
    directory: str | Path,
    source: Source,
    *,
    resume: bool = False,
    force: bool = False,
    ledger: str | Path | None = None,
    account: str | None = None,
    progress: Progress | None = None,
    tuning: Mapping[str, Any] | None = None,
    private_losses: bool = False,
    notify: Callable[[str], None] = warnings.warn,
) -> dict[str, Any]:
    """Fit ``method`` into ``directory``, and return its metrics.

    Without ``arranged`` the data of ``source`` is loaded. An unfinished run goes on with
    ``resume``, under the same settings and on the same data. A run that is there is replaced with
    ``force``; it is kept beside, as ``.NAME.replaced``, until the new one is finished. ``tuning``
    says how the settings were chosen; see graphveil.tuning.

    With a ``ledger`` the run is charged to an ``account`` of it: reserved before data is loaded,
    settled when it is trained. Data must then come from ``source``. ``notify`` is told what its
    owner should know, such as that the account has not seen this version of the data.

    With ``private_losses`` the training loss of every step is written down, in the open: the file
    stays with whoever holds the data, and is covered by no certificate.

    *Guarantee*: that of the method. The certificate counts every step ever begun; so does the
    ledger, at every moment.
    """
    directory = behind_links(directory)
    check(directory, resume=resume, force=force)
    charged = ledger is not None or (resume and noted_in(directory) is not None)
    if force and not charged:
        refuse_uncharged(directory)
    if charged and arranged is not None:
        raise InvalidInputError("What is charged to a ledger must load its data itself.")
    if not charged:
        arranged = source.arrange(source.load()) if arranged is None else arranged
        _settings(method, source, arranged, tuning)  # refuse data before anything is set aside
    aside = kept_beside(directory)
    created, begun = not directory.exists(), time.monotonic()
    try:
        if force and state(directory) != "new":
            _set_aside(directory, aside)
        private_directory(directory)
        with locked(directory):
            _check(directory, resume=resume)  # again: now nobody else can change it
            spending, fitting = None, False
            try:
                log(directory, f"{'goes on' if resume else 'begun'}: {method.name}")
                spending = spending_begun(
                    directory,
                    f"training, {method.name}",
                    ledger,
                    account,
                    _begun(directory),
                    notify,
                )
                arranged = _loaded(method, arranged, directory, source, spending)
                asked = _settings(method, source, arranged, tuning)
                if not _restored(method, arranged.training, directory, asked, spending):
                    fitting = True
                    if spending is not None:
                        spending.begin(directory)
                    with _written(method, directory, private_losses):
                        _fit(method, arranged.training, directory, asked, progress, spending)
            except (Exception, KeyboardInterrupt) as error:
                _stopped(directory, error)
                # What is charged is not asked of the disk, where somebody may have removed it.
                released = fitting and (spending is not None or _begun(directory))
                harmless = not resume and not released
                if harmless and (spending is None or spending.give_back()):
                    _undo(directory, aside, created)
                    error.add_note(NOTHING)
                else:
                    error.add_note(_said(directory, spending, released))
                raise
            log(directory, "trained")
            metrics = measure(method, arranged.testing, arranged.mode)
            metrics["seconds"] = round(time.monotonic() - begun, 3)
            _finish(directory, method, metrics, asked, spending)
        _discard(aside)
    except OSError as error:
        raise unusable(directory, error) from error
    except KeyboardInterrupt as error:
        if not hasattr(error, "__notes__") and state(directory) == "unfinished":
            error.add_note(f"The run in {directory} is trained, and is finished with --resume.")
        raise
    return metrics


def _said(directory: Path, spending: Spending | None, released: bool) -> str:
    """What is left of a run that was stopped, and how it goes on."""
    steps = steps_noted(directory)
    if spending is not None:
        what = "all that it reserved" if released or steps else "its reservation"
        stays = f"stays charged to the account {spending.account!r} with {what}"
    else:
        stays = f"counts the {steps} steps that it began"
    return f"The run in {directory} {stays}, and goes on with --resume."


def write(
    directory: str | Path, method: Method, arranged: Arranged, source: Source
) -> dict[str, Any]:
    """Write a method that was fitted elsewhere as a finished run, and return its metrics."""
    directory = behind_links(directory)
    check(directory)
    metrics = measure(method, arranged.testing, arranged.mode)
    try:
        private_directory(directory)
        with locked(directory):
            _check(directory)
            asked = _settings(method, source, arranged)
            write_json(directory / "settings.json", asked)
            _finish(directory, method, metrics, asked)
    except OSError as error:
        raise unusable(directory, error) from error
    return metrics


def _loaded(
    method: Method,
    arranged: Arranged | None,
    directory: Path,
    source: Source,
    spending: Spending | None,
) -> Arranged:
    """The data of a run, after what it will cost is reserved."""
    if spending is None:
        assert arranged is not None
        return arranged
    if (directory / "settings.json").exists():
        _same_method(directory, method)  # before prices, which do not say what differs
    reserved = spending.reservation()
    begun = (reserved is not None and reserved.begun) or (directory / "events.json").exists()
    if not begun:
        spending.reserve_unseen(method, source)
        log(directory, f"reservation {spending.id} in account {spending.account!r}")
    data = source.load()
    arranged = source.arrange(data)
    how = spending.check_same if begun else spending.reserve_seen
    how(method, Facts.of(arranged.training), data)
    log(directory, "data loaded")
    return arranged


def _stopped(directory: Path, error: BaseException) -> None:
    """Note that a run stopped; on a full disk that is not to hide why."""
    with contextlib.suppress(OSError):
        log(directory, f"stopped: {type(error).__name__}")


def _restored(
    method: Method,
    data: Data,
    directory: Path,
    asked: dict[str, Any],
    spending: Spending | None,
) -> bool:
    """Make a run ready to be fitted; True if it is trained, and only its last files are missing."""
    checkpoint = directory / CHECKPOINT
    private_directory(checkpoint)
    checkpoint.chmod(0o700)  # an earlier version left it open
    noted, fingerprint = checkpoint / _FINGERPRINT, _fingerprint(data, checkpoint, spending)
    if (directory / "settings.json").exists():
        _same_settings(directory, asked)
        known = noted.read_text() if noted.exists() else None
        if known != fingerprint and (known is not None or _begun(directory)):
            raise InvalidInputError(
                f"The run in {directory} was begun on other data, on another split of it, or by an "
                "earlier version; resume with the same, or start anew with --force."
            )
        if (directory / "events.json").exists():
            _restore(directory, method, Facts(**asked["facts"]))
            _check_counted(directory, method)
            return True
        asked["tuning"] = _tuning(directory)  # the run's own: how its settings came about
    # A function of private data: it stays in the checkpoint, which is not part of a finished run.
    # Before the settings: a run that has these and not this has lost its checkpoint.
    write_file(noted, fingerprint.encode(), private=True)
    write_json(directory / "settings.json", asked)
    return False


def _check_counted(directory: Path, method: Method) -> None:
    """Refuse charges for other events than planned, or fewer than the journals hold."""
    steps, paid = steps_noted(directory), count_releases(method.charges_)
    if not count_events(method.charges_) <= count_events(method.plan_.charges):
        raise InvalidInputError(
            f"The run in {directory} must be charged for what its settings release. Got an "
            "events.json with other events instead; put the right one back, or start anew with "
            "--force."
        )
    if steps > paid:
        raise InvalidInputError(
            f"The run in {directory} began {steps} steps. Got an events.json that charges for "
            f"{paid:g} instead; put the right one back, or start anew with --force."
        )


def _fit(
    method: Method,
    data: Data,
    directory: Path,
    asked: dict[str, Any],
    progress: Progress | None,
    spending: Spending | None,
) -> None:
    method.witness = Nobody() if spending is None else spending
    try:
        method.fit(data, directory=directory / CHECKPOINT, progress=progress)
    finally:
        method.witness = None
    if asked["tuning"] is not None:
        method.plan_ = _resting_on(method.plan_, asked["tuning"])
        method._certify()


@contextlib.contextmanager
def _written(method: Method, directory: Path, wanted: bool) -> Iterator[None]:
    """Write the loss of every step to a file of its own, if it is wanted."""
    if not wanted:
        yield
        return
    log(directory, f"writes {LOSSES}, which are private")
    with open_file(directory / LOSSES, "ab", private=True) as file:

        def write(line: dict[str, Any]) -> None:
            file.write(f"{json.dumps(line)}\n".encode())
            file.flush()

        if not file.tell():
            write({"private": _PRIVATE})

        def note(loss: float) -> None:
            write({"loss": loss if math.isfinite(loss) else None})

        method.on_loss = note
        try:
            yield
        finally:
            method.on_loss = None


def _set_aside(directory: Path, aside: Path) -> None:
    with locked(directory):
        abandoned(directory)  # if it has not begun, it gives back what it reserved
        if aside.exists():  # a forced run that was killed: what it replaced is worth more
            _discard(directory)
        else:
            directory.rename(aside)


def _discard(directory: Path) -> None:
    """Remove a run; what it reserved, and may have released, stays charged."""
    if directory.exists():
        # First: a run that was removed in part must not pass for one that released nothing.
        (directory / LEDGER).unlink(missing_ok=True)
        sync(directory)
        shutil.rmtree(directory, ignore_errors=True)


def _undo(directory: Path, aside: Path, created: bool) -> None:
    """Nothing was spent: leave everything as it was found."""
    for path in list(directory.iterdir()):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    if aside.exists() or created:
        directory.rmdir()
    if aside.exists():
        aside.rename(directory)


def _same_method(directory: Path, method: Method) -> None:
    with reading(directory, "settings.json"):
        before = read_json(directory / "settings.json")
        then = {**before["settings"], "method": before["method"]}
    _same(directory, then, _plain({**method.get_params(), "method": method.name}))


def _same_settings(directory: Path, asked: dict[str, Any]) -> None:
    with reading(directory, "settings.json"):
        before = read_json(directory / "settings.json")
        then = {**before["settings"], **before["facts"], "method": before["method"]}
        then |= _drawn(Source(**before["data"]))
    now = {**asked["settings"], **asked["facts"], "method": asked["method"]}
    now |= _drawn(Source(**asked["data"]))
    _same(directory, then, now)


def _same(directory: Path, then: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    for name in sorted(then.keys() | now.keys()):
        if then.get(name) != now.get(name):
            raise InvalidInputError(
                f"The run in {directory} was begun with {name} = {then.get(name)!r}. Got "
                f"{now.get(name)!r} instead; resume with the same, or start anew with --force."
            )


def _drawn(source: Source) -> dict[str, Any]:
    """What decides who is trained on, and how classes and edges are read."""
    names = ("split", "seed", "train_share", "classes", "directed")
    return {name: getattr(source, name) for name in names}


def _fingerprint(data: Data, checkpoint: Path, spending: Spending | None) -> str:
    """A hash of the data and its split, keyed with a secret of the ledger, or of the run's own."""
    if spending is not None:
        digest = spending.ledger.read().fingerprint_hash()
    else:
        key = checkpoint / _KEY
        if not key.exists():
            write_file(key, secrets.token_hex(32).encode(), private=True)
        digest = keyed_hash(key.read_text())
    return content_hash(data, ("x", "edge_index", "y", *MASKS, "batch"), digest)
