"""A run as a directory: train into it, read it, predict with it."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import platform
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch_geometric.data import Data

from graphveil._errors import InvalidInputError
from graphveil._files import partial_name, sync, write_file
from graphveil.graph.checks import MASKS, public_of
from graphveil.methods import METHODS, Facts, Method
from graphveil.methods.base import Plan, Progress
from graphveil.methods.private import PrivateMethod
from graphveil.privacy.events import from_json, to_json
from graphveil.privacy.guarantee import Certificate, Charge, versions
from graphveil.runs.files import LOG, locked, log, read_json, reading, unusable, write_json
from graphveil.runs.metrics import measure
from graphveil.runs.source import Arranged, Source
from graphveil.runs.spending import (
    LEDGER,
    Spending,
    abandoned,
    content_hash,
    kept_beside,
    noted_in,
    refuse_uncharged,
)
from graphveil.runs.spending import begun as spending_begun

FORMAT = 1
FILES = (
    "settings.json",
    "model.safetensors",
    "events.json",
    "metrics.json",
    "environment.json",
    LOG,
    "certificate.txt",
    "certificate.md",
    "certificate.json",
)
CACHE = "cache.safetensors"  # of methods that have one
AUDIT = "audit.json"  # of runs that were attacked, see docs/report.md
LOSSES = "private-losses.jsonl"  # of runs that were asked for them
_PRIVATE = "training losses, read off records without noise; no certificate covers them"
_CHECKPOINT, _FINGERPRINT = "checkpoint", "data.sha256"


def state(directory: str | Path) -> str:
    """``new``, ``unfinished`` or ``finished``; a directory with other things in it is refused."""
    directory = Path(directory)
    try:
        if not directory.exists():
            return "new"
        if not directory.is_dir():
            raise InvalidInputError(f"A run must be a directory. {directory} is a file.")
        found = {path.name for path in directory.iterdir()}
    except OSError as error:
        raise unusable(directory, error) from error
    written = (*FILES, CACHE, LEDGER, AUDIT, LOSSES)
    ours = {*written, _CHECKPOINT, *(partial_name(name) for name in written)}
    if foreign := sorted(found - ours):
        raise InvalidInputError(
            f"The directory {directory} must be new, empty or a run. Got one that holds "
            f"{foreign[0]!r} instead; choose another."
        )
    if "certificate.json" in found:
        return "finished"
    if found & {"settings.json", LEDGER}:
        return "unfinished"
    unused = {_CHECKPOINT} if not _begun(directory) else set()
    if found - {partial_name("settings.json"), partial_name(LEDGER), LOG, *unused}:
        raise InvalidInputError(
            f"The run in {directory} has no settings.json, so nobody can say what it is; move it "
            "away, or choose another directory."
        )
    return "new"


def state_of_run(directory: str | Path) -> str:
    """The :func:`state` of what should be a run; a directory that is none is called so."""
    directory = Path(directory)
    if directory.is_dir() and not any((directory / name).exists() for name in (*FILES, LEDGER)):
        raise InvalidInputError(
            f"{directory} is not a run; name a directory that 'graphveil train --out' has made."
        )
    return state(directory)


def check(directory: str | Path, *, resume: bool = False, force: bool = False) -> None:
    """Refuse a directory that :func:`train` would refuse; before any data is loaded."""
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
            f"The run in {directory} cannot go on: its {_CHECKPOINT} is gone, and how many steps "
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
) -> dict[str, Any]:
    """Fit ``method`` into ``directory``, and return its metrics.

    Without ``arranged`` the data of ``source`` is loaded. An unfinished run goes on with
    ``resume``, under the same settings and on the same data. A run that is there is replaced with
    ``force``; it is kept beside, as ``.NAME.replaced``, until the new one is finished. ``tuning``
    says how the settings were chosen; see graphveil.tuning.

    With a ``ledger`` the run is charged to an ``account`` of it: reserved before data is loaded,
    settled when it is trained. Data must then come from ``source``.

    With ``private_losses`` the training loss of every step is written down, in the open: the file
    stays with whoever holds the data, and is covered by no certificate.

    *Guarantee*: that of the method. The certificate counts every step ever begun; so does the
    ledger, at every moment.
    """
    directory = Path(directory)
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
        directory.mkdir(parents=True, exist_ok=True)
        with locked(directory):
            check(directory, resume=resume)  # again: now nobody else can change it
            spending, fitting = None, False
            try:
                log(directory, f"{'goes on' if resume else 'begun'}: {method.name}")
                spending = spending_begun(
                    directory, f"training, {method.name}", ledger, account, _begun(directory)
                )
                arranged = _loaded(method, arranged, directory, source, spending)
                asked = _settings(method, source, arranged, tuning)
                if not _restored(method, arranged.training, directory, asked):
                    fitting = True
                    with _written(method, directory, private_losses):
                        _fit(method, arranged.training, directory, asked, progress)
            except (Exception, KeyboardInterrupt) as error:
                _stopped(directory, error)
                # What is charged is not asked of the disk, where somebody may have removed it.
                released = fitting and (spending is not None or _begun(directory))
                harmless = not resume and not released
                if harmless and (spending is None or spending.give_back()):
                    _undo(directory, aside, created)
                raise
            log(directory, "trained")
            metrics = measure(method, arranged.testing, arranged.mode)
            metrics["seconds"] = round(time.monotonic() - begun, 3)
            _finish(directory, method, metrics, asked, spending)
        _discard(aside)
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
    begun = _begun(directory) or (directory / "events.json").exists()
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


def _restored(method: Method, data: Data, directory: Path, asked: dict[str, Any]) -> bool:
    """Make a run ready to be fitted; True if it is trained, and only its last files are missing."""
    checkpoint, fingerprint = directory / _CHECKPOINT, _fingerprint(data)
    noted = checkpoint / _FINGERPRINT
    if (directory / "settings.json").exists():
        _same_settings(directory, asked)
        known = noted.read_text() if noted.exists() else None
        if known != fingerprint and (known is not None or _begun(directory)):
            raise InvalidInputError(
                f"The run in {directory} was begun on other data, or on another split of it; "
                "resume with the same data, or start anew with --force."
            )
        if (directory / "events.json").exists():
            _restore(directory, method, Facts(**asked["facts"]))
            return True
        asked["tuning"] = _tuning(directory)  # the run's own: how its settings came about
    checkpoint.mkdir(exist_ok=True)
    # A function of private data: it stays in the checkpoint, which is not part of a finished run.
    # Before the settings: a run that has these and not this has lost its checkpoint.
    write_file(noted, fingerprint.encode())
    write_json(directory / "settings.json", asked)
    return False


def _fit(
    method: Method,
    data: Data,
    directory: Path,
    asked: dict[str, Any],
    progress: Progress | None,
) -> None:
    method.fit(data, directory=directory / _CHECKPOINT, progress=progress)
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
    with (directory / LOSSES).open("a", buffering=1) as file:
        if not file.tell():
            file.write(json.dumps({"private": _PRIVATE}) + "\n")

        def note(loss: float) -> None:
            file.write(json.dumps({"loss": loss if math.isfinite(loss) else None}) + "\n")

        method.on_loss = note
        try:
            yield
        finally:
            method.on_loss = None


def _begun(directory: Path) -> bool:
    """Whether anything may have been released: a step, a noisy sum or count, or private rows.

    Where the checkpoint of a run is gone nobody knows, and so it may.
    """
    checkpoint = directory / _CHECKPOINT
    steps = any(path.stat().st_size for path in checkpoint.rglob("steps"))
    return (
        steps
        or _lost(directory)
        or any(
            path
            for name in ("hop*", "rows", "counts")
            for path in checkpoint.glob(f"{name}.safetensors")
        )
    )


def _lost(directory: Path) -> bool:
    """Whether a run that is not trained has no checkpoint, which comes with its settings."""
    noted = directory / _CHECKPOINT / _FINGERPRINT
    begun = (directory / "settings.json").exists() and not (directory / "events.json").exists()
    return begun and not noted.exists()


def _set_aside(directory: Path, aside: Path) -> None:
    with locked(directory):
        if not _begun(directory) and not (directory / "events.json").exists():
            abandoned(directory)  # it released nothing, and gives back what it reserved
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


def _settings(
    method: Method,
    source: Source,
    arranged: Arranged,
    tuning: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """All that settings.json says, and all that must be equal for a run to go on."""
    facts = asdict(Facts.of(arranged.training))
    if getattr(method, "unit", "node") == "node":
        # Whether every edge stands in both rows is read off private lists: one row withheld, and it
        # does not. It is public under the edge units only, and decides nothing elsewhere.
        facts["directed"] = False
    return _plain(
        {
            "format": FORMAT,
            "method": method.name,
            "settings": method.get_params(),
            "data": {**asdict(source), "split": arranged.split},
            "facts": facts,
            "class_names": getattr(arranged.training, "class_names", None),
            "public": list(public_of(arranged.training)),
            "tuning": None if tuning is None else dict(tuning),
        }
    )


def _tuning(directory: Path) -> dict[str, Any] | None:
    """How the settings were chosen, if a tuning run chose them."""
    with reading(directory, "settings.json"):
        found = read_json(directory / "settings.json").get("tuning")
        if not (found is None or isinstance(found, dict)):
            raise TypeError(f"'tuning' cannot be {found!r}")
        return found


def _begun_tuning(directory: Path) -> bool:
    """Whether trials on the private data were begun here; nothing of them is kept."""
    found = _tuning(directory) if (directory / "settings.json").exists() else None
    return found is not None and found.get("scores") != "public-data"


def _way_on(directory: Path) -> str:
    """What can be done about a run that was begun and not finished."""
    anew = "start anew with --force"
    if _begun_tuning(directory):
        return f"a tuning run cannot go on: {anew}"
    return f"go on with --resume, or {anew}"


def _resting_on(plan: Plan, tuning: Mapping[str, Any]) -> Plan:
    """The plan of a run whose certificate says how its settings were chosen."""
    return plan.resting_on(list(map(str, tuning["public"])), list(map(str, tuning["voided_by"])))


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
    """What decides who is trained on."""
    return {name: getattr(source, name) for name in ("split", "seed", "train_share")}


def _fingerprint(data: Data) -> str:
    return content_hash(data, ("x", "edge_index", "y", *MASKS, "batch"))


# --- writing --------------------------------------------------------------------------------------


def write(
    directory: str | Path, method: Method, arranged: Arranged, source: Source
) -> dict[str, Any]:
    """Write a method that was fitted elsewhere as a finished run, and return its metrics."""
    directory = Path(directory)
    check(directory)
    metrics = measure(method, arranged.testing, arranged.mode)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with locked(directory):
            check(directory)
            asked = _settings(method, source, arranged)
            write_json(directory / "settings.json", asked)
            _finish(directory, method, metrics, asked)
    except OSError as error:
        raise unusable(directory, error) from error
    return metrics


def _finish(
    directory: Path,
    method: Method,
    metrics: dict[str, Any],
    asked: dict[str, Any],
    spending: Spending | None = None,
) -> None:
    weights = {name: value.contiguous() for name, value in method.network_.state_dict().items()}
    model = safetensors.torch.save(weights)
    write_file(directory / "model.safetensors", model)
    hashes = {"model_sha256": hashlib.sha256(model).hexdigest()}
    if (cache := getattr(method, "cache_", None)) is not None:
        sums = safetensors.torch.save({"sums": cache.contiguous()})
        write_file(directory / CACHE, sums)
        hashes["cache_sha256"] = hashlib.sha256(sums).hexdigest()
    if (charged := noted_in(directory)) is not None:
        hashes["reservation"] = charged["reservation"]  # a copy without ledger.json tells, too
    write_events(directory, method, hashes)
    if spending is not None:  # now it is known, and no step can follow; before the run is finished
        spending.settle(method.charges_)
        log(directory, f"settled {spending.id}")
    write_json(directory / "metrics.json", metrics)
    write_json(directory / "environment.json", _environment())
    log(directory, "finished")
    write_certificate(directory, method.certificate_)
    shutil.rmtree(directory / _CHECKPOINT, ignore_errors=True)


def write_events(directory: Path, method: Method, hashes: Mapping[str, str]) -> None:
    """Every charge of a method, with the hashes of the files it paid for.

    Among them is the id of the reservation, if the run was charged to a ledger.
    """
    write_json(
        directory / "events.json",
        {
            "format": FORMAT,
            **hashes,
            "void_because": list(getattr(method, "void_because_", ())),
            "inference": list(getattr(method, "inference_", ())),
            "charges": [
                {"paid_for": charge.paid_for, "event": to_json(charge.event)}
                for charge in method.charges_
            ],
        },
    )


def write_certificate(directory: Path, certificate: Certificate) -> None:
    """A certificate in all its forms; the last of them makes a run finished."""
    write_file(directory / "certificate.txt", f"{certificate}\n".encode())
    write_file(directory / "certificate.md", certificate.to_markdown().encode())
    write_file(directory / "certificate.json", f"{certificate.to_json()}\n".encode())


def _environment() -> dict[str, Any]:
    return {
        "versions": {**versions(), "safetensors": safetensors.__version__},
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "threads": torch.get_num_threads(),
    }


# --- reading --------------------------------------------------------------------------------------


def read(directory: str | Path) -> Method:
    """The fitted method of a finished run.

    A file that is missing, cut short, garbled or another run's is refused in one line.
    """
    directory = Path(directory)
    if (found := state_of_run(directory)) != "finished":
        raise InvalidInputError(
            f"There is no finished run in {directory}; "
            + (_way_on(directory) if found == "unfinished" else "check the path")
            + "."
        )
    with reading(directory, "settings.json"):
        saved = read_json(directory / "settings.json")
        if saved["format"] != FORMAT:
            raise ValueError(f"format {saved['format']!r} is not {FORMAT}")
        if saved["method"] not in METHODS:
            raise ValueError(f"there is no method {saved['method']!r}")
        method = METHODS[saved["method"]](**saved["settings"])
        facts = Facts(**saved["facts"])
    _restore(directory, method, facts)
    with reading(directory, "certificate.json"):
        certificate = Certificate.from_json((directory / "certificate.json").read_text())
        charges = tuple(method.charges_)
        if certificate.charges != charges[: len(certificate.charges)]:
            raise ValueError("it is not about the charges in events.json")
    if certificate.charges == charges:
        method.certificate_ = certificate  # else a crash came between the two: the charges hold
    # A crash just before the end leaves the checkpoint, and in it the hash of the data.
    shutil.rmtree(directory / _CHECKPOINT, ignore_errors=True)
    return method


def class_names(directory: str | Path) -> list[str] | None:
    """The names of a run's classes, where its data had them."""
    with reading(Path(directory), "settings.json"):
        found = read_json(Path(directory) / "settings.json")["class_names"]
        return None if found is None else [str(name) for name in found]


def has_cache(directory: str | Path) -> bool:
    """Whether a run predicts from sums that it cached."""
    return (Path(directory) / CACHE).exists()


def trained_on(directory: str | Path) -> str:
    """The name or path of the data that a run was trained on."""
    return _source(Path(directory)).data


def arranged(directory: str | Path, root: str | None = None) -> Arranged:
    """A run's data, loaded and split as it was for training; raw data may be elsewhere now."""
    source = _source(Path(directory))
    source = source if root is None else replace(source, root=root)
    return source.arrange(source.load())


def _source(directory: Path) -> Source:
    with reading(directory, "settings.json"):
        return Source(**read_json(directory / "settings.json")["data"])


def _restore(directory: Path, method: Method, facts: Facts) -> None:
    """Weights and charges into a method made from the settings, as `fit` would have left them."""
    with reading(directory, "settings.json"):
        public = [str(line) for line in read_json(directory / "settings.json").get("public", ())]
    method.plan_ = method.plan(facts).taking(public)
    if (tuning := _tuning(directory)) is not None:
        with reading(directory, "settings.json"):
            method.plan_ = _resting_on(method.plan_, tuning)
    with reading(directory, "events.json"):
        events = read_json(directory / "events.json")
        charges = [
            Charge(paid_for=str(each["paid_for"]), event=from_json(each["event"]))
            for each in events["charges"]
        ]
        void = tuple(str(reason) for reason in events["void_because"])
        inference = [str(line) for line in events["inference"]]
        hashes = {key: events[key] for key in ("model_sha256", "cache_sha256") if key in events}
        expected = hashes["model_sha256"]
        if not charges:
            raise ValueError("it charges for nothing")
    with reading(directory, "model.safetensors"):
        model = (directory / "model.safetensors").read_bytes()
        if hashlib.sha256(model).hexdigest() != expected:
            raise ValueError("these are not the weights that events.json charges for")
        network = method._made(facts)
        network.load_state_dict(safetensors.torch.load(model))
    method.network_ = network.eval()
    if "cache_sha256" in hashes:
        with reading(directory, CACHE):
            sums = (directory / CACHE).read_bytes()
            if hashlib.sha256(sums).hexdigest() != hashes["cache_sha256"]:
                raise ValueError("these are not the noisy sums that events.json charges for")
            method.cache_ = safetensors.torch.load(sums)["sums"]
    method.charges_ = charges
    method.void_because_, method.inference_ = void, inference
    if isinstance(method, PrivateMethod):
        method._certify()  # also who may see noisy predictions
    else:
        method.certificate_ = method.plan_.certificate(charges, void_because=void)


def _plain(content: dict[str, Any]) -> dict[str, Any]:
    """As JSON gives it back: tuples are lists, so that what is read equals what was written."""
    return json.loads(json.dumps(content, allow_nan=False))
