"""What comes from outside: regular files, of a bounded size, with numbers that a float can hold.

Every reader of a user's files begins here, so that a pipe, a device, a file that unpacks to more
than it should, and a number of 5,000 digits are refused in one place and with one line each.

*Sizes*. A text of settings, results or a ledger is at most 64 MB. What a compressed file unpacks to
is at most 1 GB as arrays and 500 MB as a table, or 20 times the file where that is more: a table
takes several times as much memory while it is read. What is not compressed has no limit.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import stat
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from graphveil._errors import InvalidInputError

TEXT = 64_000_000
ARRAYS = 1_000_000_000
TABLE = 500_000_000
RATIO = 20

_DIGITS = 300  # a float holds 308
_DEPTH = 100
_LONG = f"it has a whole number of more than {_DIGITS} digits"
_NESTED = f"it is nested more than {_DEPTH} levels deep"
_KINDS = (
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


# --- files ----------------------------------------------------------------------------------------


def at_home(path: str | Path) -> Path:
    """The ``path`` with ``~`` as somebody's folder, or as it is where there is no such person.

    Not ``Path.expanduser``, which raises then.
    """
    return Path(os.path.expanduser(path))


def regular(path: Path) -> Path:
    """The ``path``, if a file is there, or a link to one: a pipe or a device may never end.

    What is absent raises FileNotFoundError, as opening it would.
    """
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode):
        kind = next((name for test, name in _KINDS if test(mode)), "something else")
        raise InvalidInputError(f"{path} must be a file. Got {kind} instead; copy it to a file.")
    return path


def read_text(path: str | Path) -> str:
    """The text of a small file: settings, a description, results, an export.

    Raises OSError and UnicodeDecodeError as ``Path.read_text`` does.
    """
    path = Path(path)
    if (size := regular(path).stat().st_size) > TEXT:
        raise InvalidInputError(
            f"{path} must have at most {_megabytes(TEXT)}. Got {_megabytes(size)} instead; it is "
            "hardly what it should be."
        )
    return path.read_text(encoding="utf-8")


def read_toml(path: Path) -> dict[str, Any]:
    """The table in a TOML file; OSError where there is none that can be opened."""
    try:
        text = read_text(path)
    except UnicodeDecodeError as error:
        raise InvalidInputError(f"{path} is no TOML file: {error}.") from None
    try:
        return toml_of(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidInputError(f"{path} is no TOML file: {error}.") from None
    except InvalidInputError as error:
        raise InvalidInputError(f"{path} cannot be used: {error}.") from None


def check_unpacked(path: Path, size: int, most: int, way_out: str) -> None:
    """Refuse a file that unpacks to a ``size`` above ``most`` and RATIO times its own."""
    packed = path.stat().st_size
    limit = max(most, RATIO * packed)
    if size > limit:
        raise InvalidInputError(
            f"{path} must unpack to at most {_megabytes(limit)}, as it has {_megabytes(packed)}. "
            f"Got {_megabytes(size)} or more instead; {way_out}."
        )


def check_zip(path: Path, most: int, way_out: str) -> None:
    """Refuse an archive whose members unpack to too much; they never give more than they say."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            size = sum(member.file_size for member in archive.infolist())
            check_unpacked(path, size, most, way_out)


class Unpacked(io.RawIOBase):
    """What a ``.gz`` holds, refused once it gives too much."""

    def __init__(self, path: Path, most: int, way_out: str) -> None:
        self._stream = gzip.GzipFile(path, "rb")
        self._path, self._most, self._way_out = path, most, way_out
        self._size = 0

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: Any) -> int:
        """As of any stream."""
        content = self._stream.read(len(buffer))
        buffer[: len(content)] = content
        self._size += len(content)
        check_unpacked(self._path, self._size, self._most, self._way_out)
        return len(content)

    def close(self) -> None:
        """Close both."""
        self._stream.close()
        super().close()


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.0f} MB" if size >= 1e7 else f"{size / 1e6:.2g} MB"


# --- values ---------------------------------------------------------------------------------------


def json_of(text: str | bytes) -> Any:
    """The value of a JSON text, if :func:`plain` has nothing against it; ValueError otherwise."""
    with _limits():
        return plain(json.loads(text))


def toml_of(text: str) -> dict[str, Any]:
    """The table of a TOML text, if :func:`plain` has nothing against it; ValueError otherwise."""
    with _limits():
        return plain(tomllib.loads(text))


def toml_value(text: str) -> Any:
    """A value as TOML reads it, or else the word itself."""
    try:
        table = toml_of(f"value = {text.strip()}")
    except ValueError:
        return text.strip()
    return table["value"] if set(table) == {"value"} else text.strip()


@contextlib.contextmanager
def _limits() -> Iterator[None]:
    """Python's own limits in the words of :func:`plain`."""
    try:
        yield
    except RecursionError:
        raise InvalidInputError(_NESTED) from None
    except ValueError as error:
        if "integer string conversion" in str(error):
            raise InvalidInputError(_LONG) from None
        raise


def plain(value: Any) -> Any:
    """The ``value``, if its numbers fit a float, no text has a NUL, and it is not nested deeply."""
    level = [value]
    for _ in range(_DEPTH):
        inner: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                inner += [*item.keys(), *item.values()]
            elif isinstance(item, list):
                inner += item
            elif isinstance(item, int) and abs(item) >= 10**_DIGITS:
                raise InvalidInputError(_LONG)
            elif isinstance(item, str) and "\0" in item:
                raise InvalidInputError("it has a text with a NUL character")
        if not inner:
            return value
        level = inner
    raise InvalidInputError(_NESTED)
