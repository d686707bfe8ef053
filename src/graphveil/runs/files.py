"""Files of a run: written whole or not at all, read with one line for every fault, locked."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from graphveil._errors import InvalidInputError
from graphveil._files import write_file
from graphveil._inputs import json_of, read_text, regular

try:
    import fcntl
except ImportError:  # no such locks on Windows
    fcntl = None  # type: ignore[assignment]

LOG = "log.txt"


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
    """Nobody else trains into, or charges, the same run. The lock ends with the process."""
    if fcntl is None:
        yield
        return
    handle = os.open(directory, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InvalidInputError(
                f"The run in {directory} is in use by another process, which trains or predicts "
                "there now; wait until it has ended, or choose another directory."
            ) from None
        yield
    finally:
        os.close(handle)


def unusable(path: Path, error: OSError) -> InvalidInputError:
    """One line for a disk that is full, read-only or not there."""
    reason = error.strerror or str(error)
    # Not path.is_dir(), which raises where the name is too long.
    begun = " What was begun there goes on with --resume." if os.path.isdir(path) else ""
    return InvalidInputError(
        f"{path} cannot be written: {reason}; make room, or choose another place.{begun}"
    )
