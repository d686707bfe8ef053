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
    if os.name == "posix":  # the new name is on disk only once its directory is
        handle = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def partial_name(name: str) -> str:
    """What a file is called while it is being written."""
    return f".{name}.partial"
