"""Results in files: outcomes as lines of JSON, and a tidy table of them as CSV.

A folder of results has for a description NAME the file NAME.jsonl, or NAME.1-of-4.jsonl and so on
of shards, or both; NAME.quick.jsonl is of the small version. All files of a name are read, and one
is written to.
"""

from __future__ import annotations

import csv
import io
import json
import os
import platform
from collections import UserDict
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import lock_descriptor

from graphveil import __version__
from graphveil._errors import InvalidInputError
from graphveil._files import write_file
from graphveil._inputs import json_of, regular
from graphveil.bench.requests import Outcome

if TYPE_CHECKING:
    from graphveil.bench.table import Measured

COLUMNS = (
    "data", "stand_in_for", "run", "method", "setting", "epsilon", "seed", "metric", "value",
    "published", "published_deviation", "claimed_epsilon", "proven_epsilon", "delta", "void",
    "refused", "seconds",
)  # fmt: skip


class Notes(UserDict[str, Outcome]):
    """Outcomes in a file, one line of JSON each, written down before the next run begins.

    ``also`` are other files whose outcomes are known. A line cut short by a crash is dropped, and
    its run is done again; with ``keep`` nothing is written. Of two lines about one run the later
    counts. ``content`` tells data from others of the same name; without it, its name is what it is
    known by. A ``private`` file is its owner's alone.
    """

    def __init__(
        self,
        path: str | Path,
        also: Iterable[Path] = (),
        *,
        keep: bool = False,
        content: str | None = None,
        private: bool = False,
    ) -> None:
        self._handles: tuple[int, ...] = ()  # of the file, and of what is locked
        super().__init__()
        self.path, self.content = Path(path), content
        self._keep, self._private = keep, private
        for other in also:
            if other != self.path:
                self._read_file(other)
        if self.path.exists():
            self._read_file(self.path)

    def hold(self) -> None:
        """Be the only one who writes here, and know what others wrote until now.

        Whoever starts the same command twice would else measure everything twice.
        """
        if self._handles:
            return
        if self._keep:
            raise InvalidInputError(f"Results in {self.path} were opened to be read only.")
        try:
            self._handles = _open_to_write(self.path, private=self._private)
            alone = _take_lock(self._handles[-1])
        except OSError as error:
            raise InvalidInputError(f"{self.path} cannot be written: {error.strerror}.") from None
        if not alone:
            self.close()
            raise InvalidInputError(
                f"{self.path} is being written by another process, which measures the same runs; "
                "wait until it has ended, or give each its own part by --shard I/N."
            )
        cut = self._read_file(self.path)
        if cut is not None:
            os.truncate(self.path, cut)

    def close(self) -> None:
        """Let others write here."""
        handles, self._handles = self._handles, ()
        for handle in handles:
            os.close(handle)

    def __del__(self) -> None:
        self.close()

    def _read_file(self, path: Path) -> int | None:
        """Read the whole lines of a file; where they end, if something is left."""
        try:
            text = regular(path).read_bytes()
        except OSError as error:
            raise InvalidInputError(f"{path} cannot be read: {error.strerror}.") from None
        whole = text[: text.rfind(b"\n") + 1]
        for number, line in enumerate(whole.splitlines(), 1):
            self._read(line, path, number)
        return len(whole) if len(whole) < len(text) else None

    def _read(self, line: bytes, path: Path, number: int) -> None:
        try:
            entry = json_of(line)
            self.data[json.dumps(entry["run"])] = dict(entry["outcome"])
        except (ValueError, KeyError, TypeError):
            raise InvalidInputError(
                f"{path} must hold results, one line of JSON each. Got something else in line "
                f"{number}; move the file away, or name another."
            ) from None

    def __setitem__(self, key: str, outcome: Outcome) -> None:
        line = json.dumps({"run": json.loads(key), "outcome": outcome}, allow_nan=False) + "\n"
        self.hold()
        try:
            _append(self._handles[0], line.encode())
        except OSError as error:
            raise InvalidInputError(f"{self.path} cannot be written: {error.strerror}.") from None
        self.data[key] = outcome

    def __delitem__(self, key: str) -> None:
        raise InvalidInputError(f"Results in {self.path} are added, never taken away.")


def _open_to_write(path: Path, *, private: bool) -> tuple[int, ...]:
    """Handles of a file to add to, and of what is locked: it, or a file beside it.

    Windows lets nobody read what is locked.
    """
    flags, mode = os.O_CREAT | os.O_RDWR | getattr(os, "O_BINARY", 0), 0o600 if private else 0o666
    handle = os.open(path, flags | os.O_APPEND, mode)
    if os.name == "posix":
        return (handle,)
    return handle, os.open(path.with_name(f".{path.name}.lock"), flags, mode)


def _append(handle: int, content: bytes) -> None:
    while content:
        content = content[os.write(handle, content) :]
    os.fsync(handle)


def _take_lock(handle: int) -> bool:
    """Whether nobody else has it; a file system that has no locks is taken at its word."""
    try:
        return lock_descriptor(handle, blocking=False)
    except OSError:
        return True


# --- folders --------------------------------------------------------------------------------------


def results_file(
    folder: Path, name: str, *, quick: bool, shard: tuple[int, int] | None = None
) -> Path:
    """The file that the results of a description, or of a shard of it, are written to."""
    part = "" if shard is None else f".{shard[0]}-of-{shard[1]}"
    return folder / f"{name}{'.quick' if quick else ''}{part}.jsonl"


def results_files(folder: Path, name: str, *, quick: bool) -> list[Path]:
    """All files with results of a description: the whole one first, then those of shards."""
    stem = f"{name}.quick" if quick else name
    shards = (path for path in folder.glob("*.jsonl") if _is_shard(path.name, stem))
    whole = folder / f"{stem}.jsonl"
    return [*([whole] if whole.exists() else []), *sorted(shards)]


def _is_shard(file: str, stem: str) -> bool:
    part = file.removeprefix(f"{stem}.").removesuffix(".jsonl")
    number, of, count = part.partition("-of-")
    return file.startswith(f"{stem}.") and bool(of) and number.isdigit() and count.isdigit()


# --- where and when -------------------------------------------------------------------------------


@cache
def describe_machine() -> str:
    """The cores, their model and torch's version, in a few words."""
    from importlib.metadata import version

    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    cores = f"{count} core{'' if count == 1 else 's'}"
    return f"{cores}, {_processor()}, torch {version('torch')}"


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor() or platform.machine()
    models = [line.partition(":")[2].strip() for line in text.splitlines() if "model name" in line]
    return models[0] if models else platform.machine()


def stamp(outcome: Outcome) -> Outcome:
    """The outcome with where, when and by which version it was measured."""
    return _round(outcome) | {
        "machine": describe_machine(),
        "date": datetime.now(UTC).date().isoformat(),
        "version": __version__,
    }


def _round(value: Any, name: str = "") -> Any:
    """Six digits of every measured number; what is proven or claimed stays to the last."""
    if isinstance(value, dict):
        return {key: _round(item, key) for key, item in value.items()}
    if isinstance(value, list):
        return [_round(item, name) for item in value]
    return round(value, 6) if isinstance(value, float) and name not in _EXACT else value


_EXACT = ("epsilon", "delta", "claimed_epsilon", "noise_multiplier")


# --- a tidy table ---------------------------------------------------------------------------------


def tidy(measured: Iterable[Measured], metrics: Iterable[str]) -> Iterator[dict[str, Any]]:
    """A record for each data set, line, seed and metric."""
    wanted = list(metrics)
    for one in measured:
        line, place = one.line, one.place
        about = {
            "data": place.runs_on or place.data,
            "stand_in_for": place.stand_in_for,
            "run": line.name,
            "method": line.request.method,
            "setting": ", ".join(f"{k}={v}" for k, v in line.request.varied.items()),
            "epsilon": line.request.epsilon,
        }
        if not one.outcomes:
            yield about | {"refused": one.row.refused}
        for seed, outcome in one.outcomes:
            for metric in wanted:
                published, deviation = line.figure(metric, place.data)
                yield about | {
                    "seed": seed,
                    "metric": metric,
                    "value": outcome.get("scores", {}).get(metric),
                    "published": published,
                    "published_deviation": deviation,
                    "claimed_epsilon": outcome.get("claimed_epsilon"),
                    "proven_epsilon": outcome.get("epsilon"),
                    "delta": outcome.get("delta") if one.row.private else None,
                    "void": bool(outcome.get("void_because")) if one.row.private else None,
                    "refused": outcome.get("refused"),
                    "seconds": outcome.get("seconds"),
                }


def write_csv(path: Path, records: Iterable[dict[str, Any]]) -> None:
    """Write records under :data:`COLUMNS`."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, COLUMNS, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: _cell(value) for key, value in record.items()} for record in records)
    try:
        write_file(path, text.getvalue().encode())
    except OSError as error:
        raise InvalidInputError(f"{path} cannot be written: {error.strerror}.") from None


def _cell(value: Any) -> Any:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.6g}" if isinstance(value, float) else value
