"""Ids of nodes: whole numbers or text, many at once, hashed and compared without Python objects.

A text that is a whole number in its plain spelling ("12", not "012") and that number are one id.
Ids that all are such are kept as int64, and others as UTF-8.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from graphveil._errors import InvalidInputError

Ints = NDArray[np.int64]
Hashes = NDArray[np.uint64]
_PLAIN = r"^(0|-?[1-9][0-9]{0,17})$"
_TAILS = np.array([(1 << (8 * size)) - 1 for size in range(9)], dtype=np.uint64)


class Texts(NamedTuple):
    """Texts in UTF-8: where each begins in ``content``, and where the last one ends."""

    offsets: Ints
    content: NDArray[np.uint8]

    @property
    def lengths(self) -> Ints:
        """Bytes of each."""
        return np.diff(self.offsets)

    def text(self, place: int) -> str:
        """One of them."""
        start, end = int(self.offsets[place]), int(self.offsets[place + 1])
        return bytes(self.content[start:end]).decode("utf-8", "replace")


Keys = Ints | Texts


def number_of(keys: Keys) -> int:
    """How many ids there are."""
    return len(keys.offsets) - 1 if isinstance(keys, Texts) else len(keys)


def drop_first(keys: Keys, number: int) -> Keys:
    """All ids but the first."""
    if not isinstance(keys, Texts):
        return keys[number:]
    start = int(keys.offsets[number])
    return Texts(keys.offsets[number:] - start, keys.content[start:])


def require_arrow(what: str) -> Any:
    """The library that reads and casts tables."""
    try:
        import pyarrow
        import pyarrow.compute
    except ImportError:
        raise InvalidInputError(
            f"Building a store from {what} needs pyarrow; pip install 'graphveil[large]'."
        ) from None
    return pyarrow


def keys_of(column: Any) -> Keys:
    """The ids in a column, an array of Arrow or a Series, without a missing cell."""
    pa = require_arrow("tables")
    array = column if isinstance(column, (pa.Array, pa.ChunkedArray)) else _as_arrow(pa, column)
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    if pa.types.is_dictionary(array.type):
        array = array.cast(array.type.value_type)
    if pa.types.is_integer(array.type):
        try:
            return np.asarray(array.cast(pa.int64()).to_numpy(zero_copy_only=False))
        except pa.ArrowInvalid:  # above 2^63
            array = array.cast(pa.string())
    if not _is_text(pa, array.type):
        array = _as_arrow(pa, array.to_pandas())
    array = array.cast(pa.large_string())
    if pa.compute.all(pa.compute.match_substring_regex(array, _PLAIN)).as_py() is not False:
        return np.asarray(array.cast(pa.int64()).to_numpy(zero_copy_only=False))
    return _texts_of(array)


def as_texts(keys: Keys) -> Texts:
    """Ids as text, whatever they were."""
    if isinstance(keys, Texts):
        return keys
    pa = require_arrow("tables")
    return _texts_of(pa.array(keys).cast(pa.large_string()))


def as_numbers(keys: Keys) -> tuple[Ints, NDArray[np.bool_]]:
    """Ids as whole numbers, and which of them are; others are 0."""
    if not isinstance(keys, Texts):
        return keys, np.ones(len(keys), dtype=bool)
    values = np.zeros(number_of(keys), np.int64)
    plain = np.zeros(len(values), dtype=bool)
    for place in range(len(values)):  # some of these are unknown, which ends the build
        text = keys.text(place)
        if text.removeprefix("-").isdecimal() and len(text) < 21 and str(int(text)) == text:
            number = int(text)
            if -(2**63) <= number < 2**63:
                values[place], plain[place] = number, True
    return values, plain


def _is_text(pa: Any, kind: Any) -> bool:
    kinds = (pa.types.is_string, pa.types.is_large_string)
    return any(test(kind) for test in kinds)


def _as_arrow(pa: Any, column: Any) -> Any:
    """A Series as Arrow; what is neither text nor whole numbers becomes what pandas writes."""
    if column.dtype.kind in "iu":
        return pa.array(column.to_numpy())
    return pa.array(column.astype("str").astype(object).tolist(), pa.large_string())


def _texts_of(array: Any) -> Texts:
    _, places, content = array.buffers()
    offsets = np.frombuffer(places, np.int64)[array.offset : array.offset + len(array) + 1]
    if content is None:
        return Texts(np.zeros(len(array) + 1, np.int64), np.zeros(0, np.uint8))
    start, end = (int(offsets[0]), int(offsets[-1])) if len(offsets) else (0, 0)
    return Texts(offsets - start, np.frombuffer(content, np.uint8)[start:end])


# --- hashes ---------------------------------------------------------------------------------------


def hash_keys(keys: Keys, seed: int = 0) -> Hashes:
    """A number of 64 bits for each id; of whole numbers never the same for two of them."""
    if not isinstance(keys, Texts):
        return _mix(keys.view(np.uint64) ^ np.uint64(seed))
    lengths, starts = keys.lengths, keys.offsets[:-1]
    hashes = _mix(lengths.astype(np.uint64) ^ _mix(np.array([seed], np.uint64)))
    longest = int(lengths.max(initial=0))
    for place in range(0, longest, 8):
        live = np.flatnonzero(lengths > place)
        words = _words(keys.content, starts[live] + place, lengths[live] - place)
        hashes[live] = _mix(hashes[live] ^ words)
    return hashes


def are_equal(one: Texts, other: Texts, places: Ints) -> NDArray[np.bool_]:
    """Whether each text is the one of ``other`` at its place."""
    starts, lengths = other.offsets[places], other.offsets[places + 1] - other.offsets[places]
    equal = lengths == one.lengths
    longest = int(lengths[equal].max(initial=0))
    for place in range(0, longest, 8):
        live = np.flatnonzero(equal & (lengths > place))
        left = lengths[live] - place
        mine = _words(one.content, one.offsets[live] + place, left)
        equal[live] = mine == _words(other.content, starts[live] + place, left)
    return equal


def _words(content: NDArray[np.uint8], starts: Ints, lengths: Ints) -> Hashes:
    """Up to eight bytes from each start, as a number."""
    if len(content) < 8:
        content = np.concatenate([content, np.zeros(8 - len(content), np.uint8)])
    last = len(content) - 8
    windows: Hashes = np.ndarray((last + 1,), "<u8", content, strides=(1,))
    inside = np.minimum(starts, last)
    words = windows[inside] >> ((starts - inside) * 8).astype(np.uint64)
    masked: Hashes = words & _TAILS[np.minimum(lengths, 8)]
    return masked


def _mix(values: Hashes) -> Hashes:
    """A bijection of numbers of 64 bits that leaves no order (the end of SplitMix64)."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
