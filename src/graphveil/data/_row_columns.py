"""Features made of one cell at a time: no row moves another, and nothing is learnt from a column.

For tables that come without public ranges and lists. A number is squashed, a code sets one of so
many columns, a text's words are hashed; a missing cell is 0, and a column of its own says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

CODE_WIDTH = 32  # columns for codes of which nobody states how many there are
TEXT_WIDTH = 64  # columns for the words of a cell

SQUASHED = "no range of any number: each is squashed to sign(x) log(1 + abs(x)) by itself"


class Columns(NamedTuple):
    """Names of columns, and their values (rows, names)."""

    names: list[str]
    values: NDArray[np.float32]


def squash(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Numbers of any size as small ones, in their order: sign(x) log(1 + |x|)."""
    return np.sign(values) * np.log1p(np.abs(values))


def number_columns(
    name: str, values: NDArray[np.float64], *, gaps: bool = True, fraction: bool = False
) -> Columns:
    """A number squashed, or a ``fraction`` cut to 0 and 1; with ``gaps`` a column says what is NaN.

    Without ``gaps`` a NaN is refused.
    """
    missing = np.isnan(values)
    if missing.any() and not gaps:
        raise ValueError(f"{name} is empty in row {int(np.argmax(missing)) + 1}")
    if np.isinf(values).any():
        raise ValueError(f"{name} is infinite in row {int(np.argmax(np.isinf(values))) + 1}")
    filled = np.where(missing, 0.0, values)
    filled = np.clip(filled, 0.0, 1.0) if fraction else squash(filled)
    names, columns = [name], [filled]
    if gaps:
        names, columns = [name, f"{name} missing"], [filled, missing.astype(np.float64)]
    return Columns(names, np.stack(columns, axis=1).astype(np.float32))


def code_columns(name: str, values: NDArray[np.float64], size: int | None = None) -> Columns:
    """A code 0, 1, ... as columns of 0 and 1: ``size`` of them, above which codes are refused.

    Without a size, a code c sets column c modulo :data:`CODE_WIDTH`: codes collide where there are
    more. A missing code (NaN or negative) sets none.
    """
    codes = np.where(np.isnan(values), -1.0, values)
    wrong = (codes != np.floor(codes)) | (np.abs(codes) > 2.0**53)
    if size is not None:
        wrong |= codes >= size
    if wrong.any():
        row = int(np.argmax(wrong))
        rule = "a whole number" if size is None else f"a whole number below {size}"
        raise ValueError(f"{name} must be {rule}, got {values[row]:g} in row {row + 1}")
    width = CODE_WIDTH if size is None else size
    places = np.where(codes >= 0, codes % width, -1).astype(np.int64)
    hot = places[:, None] == np.arange(width)
    return Columns([f"{name} {place}" for place in range(width)], hot.astype(np.float32))


def text_columns(name: str, texts: Sequence[str]) -> Columns:
    """The words of each text, counted in :data:`TEXT_WIDTH` columns by a fixed hash."""
    from graphveil.data.text_features import hash_counts

    counts = hash_counts(texts, TEXT_WIDTH)
    return Columns([f"{name} {place}" for place in range(TEXT_WIDTH)], counts)


def join_columns(blocks: Sequence[Columns], rows: int) -> Columns:
    """All side by side; a column of 1 where there are none."""
    if not blocks:
        return Columns(["one"], np.ones((rows, 1), dtype=np.float32))
    names = [name for block in blocks for name in block.names]
    return Columns(names, np.concatenate([block.values for block in blocks], axis=1))


def as_numbers(name: str, column: pd.Series) -> NDArray[np.float64]:
    """A column as float64, NaN where a cell is empty; ValueError where one is no number."""
    numbers = pd.to_numeric(column, errors="coerce").to_numpy(np.float64, na_value=np.nan)
    wrong = np.isnan(numbers) & ~column.isna().to_numpy(bool)
    if wrong.any() and not pd.api.types.is_numeric_dtype(column):
        wrong &= column.astype("str").str.strip().str.lower().to_numpy() != "nan"
    if wrong.any():
        raise ValueError(f"{name} is no number in row {int(np.argmax(wrong)) + 1}")
    return np.ascontiguousarray(numbers)
