"""Files that are written whole or not at all, and refused in one line where they cannot be."""

from __future__ import annotations

from pathlib import Path

from graphveil._errors import InvalidInputError
from graphveil._files import write_file


def write_whole(path: str | Path, content: bytes, *, private: bool) -> None:
    """Write a file; a ``private`` one is its owner's alone."""
    try:
        write_file(Path(path), content, private=private)
    except OSError as error:
        raise InvalidInputError(
            f"{path} cannot be written: {error.strerror or error}; make room, or choose another "
            "place."
        ) from error
