"""A run as a directory: what stands in it, how it is written and read."""

from __future__ import annotations

import copy
import hashlib
import json
import platform
import shutil
import warnings
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch_geometric.data import Data

from graphveil._errors import InvalidInputError
from graphveil._files import partial_name, write_file
from graphveil.data.catalog import CATALOG, load
from graphveil.data.classes import Notice
from graphveil.graph.checks import columns_of, public_of, void_of
from graphveil.methods import METHODS, Facts, Method
from graphveil.methods.base import Plan
from graphveil.methods.private import PrivateMethod
from graphveil.privacy.events import from_json, to_json
from graphveil.privacy.guarantee import Certificate, Charge, versions
from graphveil.runs.charging import CHECKPOINT, LEDGER, Spending, noted_in
from graphveil.runs.files import LOG, log, read_json, reading, unusable, write_json
from graphveil.runs.source import Arranged, Source

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
_FINGERPRINT, _KEY = "data.sha256", "data.key"


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
    ours = {*written, CHECKPOINT, *(partial_name(name) for name in written)}
    if foreign := sorted(found - ours):
        raise InvalidInputError(
            f"The directory {directory} must be new, empty or a run. Got one that holds "
            f"{foreign[0]!r} instead; choose another."
        )
    if "certificate.json" in found:
        return "finished"
    if found & {"settings.json", LEDGER}:
        return "unfinished"
    unused = {CHECKPOINT} if not _begun(directory) else set()
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


def _begun(directory: Path) -> bool:
    """Whether files know of a release: a step, a noisy sum or count, or private rows.

    Where the checkpoint of a run is gone nobody knows, and so they do. A run that is charged to a
    ledger has begun when the ledger says so, whatever its files say.
    """
    checkpoint = directory / CHECKPOINT
    return (
        steps_noted(directory) > 0
        or _lost(directory)
        or any(
            path
            for name in ("hop*", "rows", "counts")
            for path in checkpoint.glob(f"{name}.safetensors")
        )
    )


def steps_noted(directory: Path) -> int:
    """How many steps the journals of an unfinished run hold."""
    return sum(path.stat().st_size for path in (directory / CHECKPOINT).rglob("steps"))


def _lost(directory: Path) -> bool:
    """Whether a run that is not trained has no checkpoint, which comes with its settings."""
    noted = directory / CHECKPOINT / _FINGERPRINT
    begun = (directory / "settings.json").exists() and not (directory / "events.json").exists()
    return begun and not noted.exists()


def _settings(
    method: Method,
    source: Source,
    arranged: Arranged,
    tuning: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """All that settings.json says, and all that must be equal for a run to go on."""
    facts, training = asdict(Facts.of(arranged.training)), arranged.training
    return _plain(
        {
            "format": FORMAT,
            "method": method.name,
            "settings": method.get_params(),
            "data": {**asdict(source), "split": arranged.split},
            "facts": facts,
            "class_names": getattr(training, "class_names", None),
            "columns": columns_of(training),
            "public": public_of(training),
            "void_because": void_of(training),
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


# --- writing --------------------------------------------------------------------------------------


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
        write_file(directory / CACHE, sums, private=method.plan_.unit == "node")
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
    shutil.rmtree(directory / CHECKPOINT, ignore_errors=True)


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
    shutil.rmtree(directory / CHECKPOINT, ignore_errors=True)
    return method


def class_names(directory: str | Path) -> list[str] | None:
    """The names of a run's classes, where its data had them."""
    with reading(Path(directory), "settings.json"):
        saved = read_json(Path(directory) / "settings.json")
        found, number = saved["class_names"], saved["facts"]["num_classes"]
        if found is not None and len(found) != number:
            raise ValueError(f"it has {len(found)} names for {number} classes")
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
    return source.arrange(in_order(directory, source.load()))


def load_for(directory: str | Path, data: str, root: str | None = None) -> Data:
    """Data for a run to predict on, with the classes that the run has; others are refused.

    *Guarantee*: none; loading is not releasing.
    """
    if data.partition(":")[0] in CATALOG:
        return load(data, root)
    names = class_names(directory)
    with reading(Path(directory), "settings.json"):
        saved = read_json(Path(directory) / "settings.json")
        known = names or saved["facts"]["num_classes"]
        directed = saved["data"].get("directed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)  # the statement is the run's
        return load(data, root, classes=known, directed=directed)


def in_order(directory: str | Path, data: Data) -> Data:
    """``data`` with its feature columns in the order of a run's, by their names.

    Where the run or the data has no names they are taken as they come.
    """
    with reading(Path(directory), "settings.json"):
        wanted = read_json(Path(directory) / "settings.json").get("columns")
    found = columns_of(data)
    if wanted is None or found is None or list(found) == wanted:
        return data
    missing = [name for name in wanted if name not in found]
    unknown = [name for name in found if name not in wanted]
    if missing or unknown:
        got = (
            f"no {missing[0]!r} instead; name them alike"
            if missing
            else f"one more, {unknown[0]!r}; leave it out"
        )
        raise InvalidInputError(
            f"The feature columns must be those that the run in {directory} was trained on: "
            f"{len(wanted)}, by their names. Got {got}."
        )
    data = copy.copy(data)
    data.x = data.x[:, [found.index(name) for name in wanted]]
    data.columns = list(wanted)
    return data


def _source(directory: Path) -> Source:
    with reading(directory, "settings.json"):
        return Source(**read_json(directory / "settings.json")["data"])


def _restore(directory: Path, method: Method, facts: Facts) -> None:
    """Weights and charges into a method made from the settings, as `fit` would have left them."""
    with reading(directory, "settings.json"):
        saved = read_json(directory / "settings.json")
        public, void_of_data = (
            [str(line) for line in saved.get(name, ())] for name in ("public", "void_because")
        )
    method.plan_ = method.plan(facts).taking(public, void_of_data)
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
