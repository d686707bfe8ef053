"""What SQLite keeps beside a database, read without SQLite: was any of it damaged?

SQLite takes a write-ahead log (``NAME-wal``) for ended at the first frame whose checksum is wrong,
and says nothing: a flipped bit would drop every transaction from there on. Here such a log is told
apart from one that has really ended. The format is that of https://www.sqlite.org/fileformat2.html.
"""

from __future__ import annotations

import contextlib
import struct
import time
from pathlib import Path

_HEADER, _FRAME = 32, 24  # bytes before the first frame, and before the page of each
_LITTLE, _BIG = 0x377F0682, 0x377F0683  # the first word: how checksums read words
_TRIES, _PAUSE = 5, 0.02  # somebody may be writing just now


def damaged(path: Path) -> bool:
    """Whether a log holds whole frames of its own that SQLite would pass over.

    Frames of an earlier log, which a new one has not reached yet, have other salts and are none.
    Neither is one that was cut short, as a kill does it: its transaction had not been committed.
    """
    for _ in range(_TRIES):
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return False
        if not _passed_over(content):
            return False
        time.sleep(_PAUSE)
    return True


def holds_entries(path: Path) -> bool:
    """Whether there is a log with something in it; another process may remove it at any time."""
    try:
        return path.stat().st_size > 0
    except FileNotFoundError:
        return False


def _passed_over(content: bytes) -> bool:
    if len(content) <= _HEADER + _FRAME:
        return False
    magic, _, page, _, *salts = struct.unpack(">6I", content[:24])
    order = {_LITTLE: "<", _BIG: ">"}.get(magic)
    if order is None:
        return True
    sums = _checksum(content[:24], (0, 0), order)
    if sums != struct.unpack(">2I", content[24:_HEADER]):
        return True
    frames = range(_HEADER, len(content) - _FRAME - page + 1, _FRAME + page)
    whole = True
    for start in frames:
        body = start + _FRAME
        frame = struct.unpack(">6I", content[start:body])
        if whole and [*frame[2:4]] == salts:
            sums = _checksum(content[start : start + 8], sums, order)
            sums = _checksum(content[body : body + page], sums, order)
            if sums == frame[4:]:
                continue
        whole = False
        if frame[2] == salts[0] or frame[3] == salts[1]:  # one of them may be what was damaged
            return True
    return False


def _checksum(content: bytes, sums: tuple[int, ...], order: str) -> tuple[int, ...]:
    first, second = sums
    words = struct.unpack(f"{order}{len(content) // 4}I", content)
    for one, two in zip(words[::2], words[1::2], strict=True):
        first = (first + one + second) & 0xFFFFFFFF
        second = (second + two + first) & 0xFFFFFFFF
    return first, second


def names(file: Path) -> int:
    """How many names a file has: SQLite keeps a log for each, and loses entries with two.

    The name that a ledger was made under is one that a kill may have left; it is removed.
    """
    if not file.exists() or file.stat().st_nlink == 1:
        return 1
    for other in file.parent.iterdir():
        if other.name.startswith(f".{file.name}."):
            with contextlib.suppress(OSError):
                if other.samefile(file):
                    other.unlink()
    return file.stat().st_nlink
