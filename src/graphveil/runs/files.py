"""Files of a run: written whole or not at all, read with one line for every fault, locked."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from filelock import lock_descriptor
from safetensors import SafetensorError

from graphveil._errors import InvalidInputError
from graphveil._files import write_file
from graphveil._inputs import json_of, read_text, regular

LOG = "log.txt"
_LOCKS_DIRECTORIES = os.name == "posix"


def behind_links(directory: str | Path) -> Path:
    """The directory itself, where a link leads to it: that is set aside and removed, not the link.

    Not ``Path.resolve``, which raises for a link to itself.
    """
    return Path(os.path.realpath(directory) if os.path.islink(directory) else directory)


def write_text(path: str | Path, text: str, *, private: bool = False) -> None:
    """Write a file whole or not at all; a ``private`` one is its owner's alone."""
    try:
        # A path may hold bytes that are no UTF-8, which Python keeps as surrogates.
        write_file(Path(path), text.encode(errors="backslashreplace"), private=private)
    except OSError as error:
        raise unusable(Path(path), error) from error


def write_json(path: Path, content: Mapping[str, Any], *, private: bool = False) -> None:
    """One JSON object as a file."""
    text = json.dumps(content, indent=2, allow_nan=False) + "\n"
    write_file(path, text.encode(), private=private)


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file."""
    content = json_of(read_text(path))
    if not isinstance(content, dict):
        raise ValueError(f"it holds a {type(content).__name__}")
    return content


def log(directory: Path, what: str) -> None:
    """One line more on what happened when; never a number read off private data."""
    line = f"{datetime.now(UTC).isoformat(timespec='seconds')} {what}\n"
    with (directory / LOG).open("a") as file:
        file.write(line)


@contextlib.contextmanager
def reading(directory: Path, name: str) -> Iterator[None]:
    """One line for whatever a file of a run can be instead of what it should be."""
    try:
        if (path := directory / name).exists():
            regular(path)
        yield
    except FileNotFoundError:
        raise InvalidInputError(
            f"The run in {directory} cannot be read: {name} is missing; copy the whole directory, "
            "or train again."
        ) from None
    except (
        OSError,
        ValueError,  # JSON, Unicode, and graphveil's own refusals of a value
        KeyError,
        TypeError,
        AttributeError,
        RuntimeError,  # weights of another shape
        OverflowError,
        RecursionError,
        SafetensorError,
    ) as error:
        reason = " ".join(str(error).split())[:200].rstrip(".") or "empty"
        if isinstance(error, KeyError):
            reason = f"{reason} is missing"
        raise InvalidInputError(
            f"The run in {directory} cannot be read: {name}: {reason}; it may be cut short or "
            "another run's."
        ) from None


@contextlib.contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Nobody else trains into, or charges, the same run. The lock ends with the process.

    It is on the directory itself, wherever that is moved to. Windows has no such locks: there it is
    on a file beside the directory, which is removed afterwards.
    """
    place = directory if _LOCKS_DIRECTORIES else _lock_file(directory)
    flags = os.O_RDONLY if place is directory else os.O_RDWR | os.O_CREAT
    handle = os.open(place, flags, 0o600)
    try:
        if not lock_descriptor(handle, blocking=False) or _was_moved(directory, handle):
            raise InvalidInputError(
                f"The run in {directory} is in use by another process, which trains or predicts "
                "there now; wait until it has ended, or choose another directory."
            )
        yield
    finally:
        os.close(handle)
        if place is not directory:
            with contextlib.suppress(OSError):  # another process has it open
                place.unlink()


def _lock_file(directory: Path) -> Path:
    return (path := Path(os.path.realpath(directory))).with_name(f".{path.name}.lock")


def _was_moved(directory: Path, handle: int) -> bool:
    """Whether somebody moved the directory away after it was opened, and before it was locked."""
    if not _LOCKS_DIRECTORIES:
        return False
    try:
        return not os.path.samestat(os.fstat(handle), directory.stat())
    except FileNotFoundError:
        return True


def unusable(path: Path, error: OSError) -> InvalidInputError:
    """One line for a disk that is full, read-only or not there."""
    reason = error.strerror or str(error)
    # Not path.is_dir(), which raises where the name is too long.
    begun = " What was begun there goes on with --resume." if os.path.isdir(path) else ""
    return InvalidInputError(
        f"{path} cannot be written: {reason}; make room, or choose another place.{begun}"
    )
