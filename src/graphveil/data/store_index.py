"""From the ids of nodes to their rows, with no more memory than is allowed.

Ids are hashed to 64 bits and sorted by hash, part by part, on disk. A look-up sorts what it looks
for, so that it goes through the file once, and compares texts where hashes are equal. Whole numbers
have hashes of their own. Where two texts share one, all are hashed again with another seed.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphveil.data.store_arrays import GrowingArray
from graphveil.data.store_format import Track
from graphveil.data.store_texts import (
    Ints,
    Keys,
    Texts,
    are_equal,
    as_numbers,
    as_texts,
    hash_keys,
)

_PIECE = 1 << 20  # ids that are hashed together
_RECORD = np.dtype([("hash", "<u8"), ("row", "<i8")])
_SORTING = 6  # times the size of a part, while it is sorted


class Ids:
    """The ids of all nodes in the files of a store: ``stem`` + s, or offsets and bytes of it."""

    def __init__(self, folder: Path, *, text: bool, stem: str = "id") -> None:
        self.folder, self.is_text = folder, text
        names = (f"{stem}_offsets", f"{stem}_bytes") if text else (f"{stem}s",)
        arrays = [_open(folder / f"{name}.npy") for name in names]
        self.keys: Keys = Texts(*arrays) if text else arrays[0]

    def __len__(self) -> int:
        return len(self.keys.offsets) - 1 if isinstance(self.keys, Texts) else len(self.keys)

    def part(self, start: int, end: int) -> Keys:
        """Some of them, in memory."""
        if not isinstance(self.keys, Texts):
            return np.array(self.keys[start:end])
        offsets = np.array(self.keys.offsets[start : end + 1])
        return Texts(offsets - offsets[0], np.array(self.keys.content[offsets[0] : offsets[-1]]))

    def are_places(self) -> bool:
        """Whether the ids are 0, 1, ... in the order of the nodes."""
        if self.is_text:
            return False
        parts = ((start, self.part(start, start + _PIECE)) for start in range(0, len(self), _PIECE))
        return all(
            np.array_equal(part, np.arange(start, start + len(part))) for start, part in parts
        )


class Index:
    """Looks up rows by ids. It is made by :func:`build_index` in the ``folder``."""

    def __init__(self, ids: Ids, folder: Path, seed: int | None, memory: int) -> None:
        self._ids, self._seed = ids, seed
        if seed is not None:
            self._hashes, self._rows = (_open(folder / f"{n}.npy") for n in ("hashes", "rows"))
            self._forget = self._hashes.nbytes + self._rows.nbytes > memory // 4

    def look_up(self, keys: Keys) -> Ints:
        """The row of each id, -1 where no node has it."""
        known = None
        if self._ids.is_text:
            keys = as_texts(keys)
        else:
            keys, known = as_numbers(keys)
        if self._seed is None:  # ids are rows
            assert not isinstance(keys, Texts)
            rows = np.where((keys >= 0) & (keys < len(self._ids)), keys, -1)
        else:
            rows = self._search(keys)
        return rows if known is None else np.where(known, rows, -1)

    def _search(self, keys: Keys) -> Ints:
        assert self._seed is not None
        hashes = hash_keys(keys, self._seed)
        order = np.argsort(hashes)
        wanted = hashes[order]
        places = np.searchsorted(self._hashes, wanted)
        inside = np.minimum(places, len(self._hashes) - 1)
        rows = np.empty(len(hashes), np.int64)
        rows[order] = np.where(self._hashes[inside] == wanted, self._rows[inside], -1)
        if isinstance(keys, Texts):
            assert isinstance(self._ids.keys, Texts)
            same = are_equal(keys, self._ids.keys, np.maximum(rows, 0))
            rows = np.where(same, rows, -1)
        if self._forget:
            self._release()
        return rows

    def _release(self) -> None:
        """Let the system take the pages back at once: they come from files."""
        arrays = [self._hashes, self._rows]
        if isinstance(self._ids.keys, Texts):
            arrays += [*self._ids.keys]
        for array in arrays:
            mapped = getattr(array, "_mmap", None)
            if mapped is not None and hasattr(mmap, "MADV_DONTNEED"):
                mapped.madvise(mmap.MADV_DONTNEED)


def build_index(ids: Ids, folder: Path, memory: int, track: Track) -> tuple[int, int | None]:
    """Make the index in ``folder``: its seed, and the first row with an id that another had before.

    The second is None where all ids are different.
    """
    for seed in range(100):
        twice, collides = _build(ids, folder, seed, memory, track)
        if twice is not None or not collides:
            return seed, twice
    raise AssertionError("no hash tells the ids apart")


def _build(ids: Ids, folder: Path, seed: int, memory: int, track: Track) -> tuple[int | None, bool]:
    parts = 1
    while len(ids) * _RECORD.itemsize * _SORTING > memory // 4 * parts and parts < 256:
        parts *= 2
    files = [folder / f"index-{part}.part" for part in range(parts)]
    writers = [path.open("wb") for path in files]
    shift = np.uint64(64 - parts.bit_length() + 1)
    try:
        starts = range(0, len(ids), _PIECE)
        for start in track("hashing ids", starts):
            records = _records(ids, start, seed)
            where = (records["hash"] >> shift).astype(np.int64) if parts > 1 else None
            for part, writer in enumerate(writers):
                chosen = records if where is None else records[where == part]
                writer.write(chosen.tobytes())
    finally:
        for writer in writers:
            writer.close()
    hashes = GrowingArray(folder / "hashes.npy", np.uint64)
    rows = GrowingArray(folder / "rows.npy", np.int32 if len(ids) < 2**31 else np.int64)
    twice, collides = [], False
    for path in track("sorting ids", files):
        records = np.fromfile(path, _RECORD)
        order = np.argsort(records["hash"], kind="stable")
        records = records[order]
        equal = np.flatnonzero(records["hash"][1:] == records["hash"][:-1])
        for earlier, later in _pairs(records["row"], equal):
            same = np.array([True])
            if isinstance(ids.keys, Texts):
                same = are_equal(_at(ids, int(later)), ids.keys, np.array([earlier]))
            if same[0]:
                twice.append(int(later))
            else:
                collides = True
        hashes.append(records["hash"])
        rows.append(records["row"])
        path.unlink()
    hashes.finish()
    rows.finish()
    return min(twice, default=None), collides


def _pairs(rows: NDArray[np.int64], equal: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Neighbours with one hash, of very many the first in the order of rows."""
    chosen = equal[np.argsort(rows[equal + 1])[:1000]]
    return ((int(rows[place]), int(rows[place + 1])) for place in chosen)


def _at(ids: Ids, row: int) -> Texts:
    part = ids.part(row, row + 1)
    assert isinstance(part, Texts)
    return part


def _records(ids: Ids, start: int, seed: int) -> NDArray[Any]:
    keys = ids.part(start, min(start + _PIECE, len(ids)))
    hashes = hash_keys(keys, seed)
    records = np.empty(len(hashes), _RECORD)
    records["hash"] = hashes
    records["row"] = np.arange(start, start + len(hashes))
    return records


def _open(path: Path) -> NDArray[Any]:
    array: NDArray[Any] = np.load(path, allow_pickle=False)
    return array if array.size == 0 else np.load(path, mmap_mode="r", allow_pickle=False)
