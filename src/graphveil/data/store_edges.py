"""Edges put in order on disk: by sender, then by receiver, with no more memory than is allowed.

A message is one whole number, ``2 (sender * nodes + receiver)``, with 1 added if nobody wrote it:
it answers a friendship. The first pass sorts as many as fit and adds them to the files of ranges
of senders; the second sorts range by range and writes receivers, each once. A range that is too
large is cut again by its numbers, so that no node is too popular. Both passes are linear in edges.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphveil._errors import InvalidInputError
from graphveil._files import open_file
from graphveil.data.store_arrays import GrowingArray

RANGES = 256  # of senders, at most
LEAST_SENDERS = 4096  # in a range
MOST_NODES = 2**31 - 1
_SORTING = 8  # times the size of a range, while it is sorted and written
Ints = NDArray[np.int64]


def check_nodes(where: Any, number: int) -> None:
    """Refuse more nodes than a number of a message has room for."""
    if number > MOST_NODES:
        raise InvalidInputError(
            f"{where} must have at most {MOST_NODES:,} nodes. Got {number:,} instead; split the "
            "graph."
        )


class Ranges:
    """The files of ranges of senders: ``sizes`` is how many messages each has."""

    def __init__(self, folder: Path, num_nodes: int) -> None:
        self.folder, self.num_nodes = folder, num_nodes
        self.width = max(LEAST_SENDERS, math.ceil(num_nodes / RANGES))
        self.count = max(1, math.ceil(num_nodes / self.width))

    def path(self, number: int) -> Path:
        """The file of a range."""
        return self.folder / f"messages-{number:03d}.part"

    def check(self, sizes: list[int], first: int) -> None:
        """Refuse files, from ``first`` on, that are shorter than what was written to them."""
        for number in range(first, self.count):
            if sizes[number] * 8 > self.path(number).stat().st_size:
                raise EOFError(f"{self.path(number)} is shorter than it was")

    def first_key(self, number: int) -> int:
        """The smallest number that a message of this range may have."""
        return 2 * min(number * self.width, self.num_nodes) * self.num_nodes

    def senders(self, number: int) -> tuple[int, int]:
        """The first sender of a range, and the first of the next."""
        return number * self.width, min((number + 1) * self.width, self.num_nodes)


class Spill:
    """The first pass. ``state`` counts what was read, and is what a later process goes on from."""

    def __init__(self, ranges: Ranges, state: dict[str, Any], *, mirror: bool) -> None:
        self.ranges, self.state, self.mirror = ranges, state, mirror
        state.setdefault("lines", 0)
        state.setdefault("loops", 0)
        sizes = state.setdefault("sizes", [0] * ranges.count)
        self._files = []
        for number, size in enumerate(sizes):
            path = ranges.path(number)
            file = open_file(path, "r+b" if size and path.exists() else "w+b", private=True)
            self._files.append(file)
            if size * 8 > path.stat().st_size:
                self.close()
                raise EOFError(f"{path} is shorter than it was")
            file.truncate(size * 8)
            file.seek(size * 8)
        starts = [ranges.first_key(number) for number in range(1, ranges.count)]
        self._starts = np.array(starts, np.int64)

    def add(self, senders: Ints, receivers: Ints) -> None:
        """Add edges; those from a node to itself are counted and left out."""
        self.state["lines"] += len(senders)
        kept = senders != receivers
        if not kept.all():
            self.state["loops"] += int(len(kept) - kept.sum())
            senders, receivers = senders[kept], receivers[kept]
        nodes = self.ranges.num_nodes
        keys = np.empty(len(senders) * (1 + self.mirror), np.int64)
        _key(senders, receivers, nodes, keys[: len(senders)])
        if self.mirror:
            _key(receivers, senders, nodes, keys[len(senders) :])
            keys[len(senders) :] += 1
        keys.sort()
        ends = np.searchsorted(keys, self._starts)
        start = 0
        for number, end in enumerate((*ends.tolist(), len(keys))):
            if end > start:
                self._files[number].write(keys[start:end].view(np.uint8).data)
                self.state["sizes"][number] += end - start
            start = end

    def sync(self) -> None:
        """Put everything on disk."""
        for file in self._files:
            file.flush()
            os.fsync(file.fileno())

    def close(self) -> None:
        """Close the files; what is not yet counted in the state is lost."""
        for file in self._files:
            try:
                file.close()
            except OSError:
                file.raw.close()  # type: ignore[attr-defined]


def _key(senders: Ints, receivers: Ints, nodes: int, out: Ints) -> None:
    np.multiply(senders, nodes, out=out)
    out += receivers
    out <<= 1


def write_range(
    ranges: Ranges, number: int, offsets: GrowingArray, receivers: GrowingArray, memory: int
) -> int:
    """The second pass, of one range: how many of its messages somebody wrote, each counted once."""
    first, end = ranges.senders(number)
    counts, written, nodes = np.zeros(end - first, np.int64), 0, ranges.num_nodes
    start = receivers.rows
    bounds = ranges.first_key(number), ranges.first_key(number + 1)
    for keys in _sorted_pieces(ranges.path(number), *bounds, memory // _SORTING):
        pairs = keys >> 1
        new = np.empty(len(pairs), bool)
        new[:1] = True
        np.not_equal(pairs[1:], pairs[:-1], out=new[1:])
        written += int((new & ((keys & 1) == 0)).sum())
        pairs = pairs[new]
        senders = pairs // nodes
        pairs -= senders * nodes
        receivers.append(pairs)
        senders -= first
        counts += np.bincount(senders, minlength=end - first)
    offsets.append(start + np.cumsum(counts))
    return written


def _sorted_pieces(path: Path, low: int, high: int, limit: int) -> Iterator[Ints]:
    """The numbers in a file, each at least ``low`` and below ``high``, in order.

    No two pieces have a message in common.
    """
    if path.stat().st_size <= limit:
        keys = np.fromfile(path, np.int64)
        keys.sort()
        yield keys
        return
    if high - low <= 2:  # one message, perhaps a billion times
        yield _first_of(path)
        return
    # All cuts are even: a message and its answer are one.
    count = min(64, (high - low) // 2, 2 * math.ceil(path.stat().st_size / limit))
    cuts = [low + (high - low) // 2 * part // count * 2 for part in range(count + 1)]
    files = [path.with_name(f"{path.name}.{part}") for part in range(count)]
    _distribute(path, files, cuts[1:-1], limit)
    for part, file in enumerate(files):
        yield from _sorted_pieces(file, cuts[part], cuts[part + 1], limit)
        file.unlink()


def _distribute(path: Path, files: list[Path], cuts: list[int], limit: int) -> None:
    """Put the numbers in a file into others by the ``cuts`` between them."""
    writers = [file.open("wb") for file in files]
    try:
        for keys in _read(path, limit // 2):
            keys.sort()
            ends = np.searchsorted(keys, np.array(cuts, np.int64)).tolist()
            start = 0
            for writer, end in zip(writers, (*ends, len(keys)), strict=True):
                writer.write(keys[start:end].view(np.uint8).data)
                start = end
    finally:
        for writer in writers:
            writer.close()


def _first_of(path: Path) -> Ints:
    """The smallest number in a file."""
    smallest = min(int(keys.min()) for keys in _read(path, 1 << 22))
    return np.array([smallest], np.int64)


def _read(path: Path, size: int) -> Iterator[Ints]:
    with path.open("rb") as file:
        while len(keys := np.fromfile(file, np.int64, max(size // 8, 1024))):
            yield keys
