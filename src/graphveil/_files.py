"""Files written whole or not at all, or added to, and then on disk.

Private ones are their owner's alone, whatever the umask.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import IO


def write_file(path: Path, content: bytes, *, private: bool = False) -> None:
    """Write a file whole or not at all, and on disk when this returns.

    A ``private`` file is its owner's alone.
    """
    write_pieces(path, [content], private=private)


def write_pieces(path: Path, pieces: Iterable[bytes], *, private: bool = False) -> None:
    """As :func:`write_file`, of a content that is made while it is written."""
    partial = path.with_name(partial_name(path.name))
    try:
        _write(partial, "wb", pieces, private)
        partial.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise
    sync(path.parent)


def append_file(path: Path, content: bytes, *, private: bool = False) -> None:
    """Add to the end of a file, which is made if there is none; on disk when this returns.

    A crash may leave a part of ``content`` there. A ``private`` file is its owner's alone.
    """
    _write(path, "ab", [content], private)


def _write(path: Path, mode: str, pieces: Iterable[bytes], private: bool) -> None:
    with open_file(path, mode, private=private) as file:
        file.writelines(pieces)
        file.flush()
        os.fsync(file.fileno())


def open_file(path: Path, mode: str, *, private: bool = False) -> IO[bytes]:
    """Open a file to write bytes; a ``private`` one that is made here is its owner's alone."""
    file: IO[bytes] = open(  # noqa: SIM115
        path, mode, opener=lambda name, flags: os.open(name, flags, 0o600 if private else 0o666)
    )
    return file


def private_directory(path: Path) -> None:
    """Make a directory that is its owner's alone; one that is there stays what it is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir(mode=0o700, exist_ok=True)


def link(made: Path, path: Path) -> bool:
    """Give a file that was made under another name its own; False if somebody else was first."""
    try:
        os.link(made, path)
    except FileExistsError:
        return False
    except OSError:  # a file system without links
        if path.exists():
            return False
        made.rename(path)
    sync(path.absolute().parent)
    return True


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
