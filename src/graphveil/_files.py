"""Files written whole or not at all."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def write_file(path: Path, content: bytes) -> None:
    """Write a file whole or not at all, and on disk when this returns."""
    partial = path.with_name(partial_name(path.name))
    try:
        with partial.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise
    sync(path.parent)


def sync(directory: Path) -> None:
    """Put the names in a directory on disk: a new one is there only once its directory is."""
    if os.name == "posix":
        handle = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def partial_name(name: str) -> str:
    """What a file is called while it is being written."""
    return f".{name}.partial"
