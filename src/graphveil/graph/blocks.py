"""Blocks of loss terms, which a step may compute together and add up in float32.

Float32 sums are fast and coarse: their rounding depends on all that is added. A step may use them
inside a block, if a term that leaves touches its own block and no other. So blocks follow from
public numbers: halve the range of all numbers until a half holds no more rows than allowed. When a
term leaves, blocks can only join that were one range before it was halved.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

# In how many ways, at most, layers of a network may cut a batch into blocks: see grads/rules.py.
MOST_WIDTHS = 5


class Numbered(tuple[Any, ...]):
    """A batch whose examples have public ``numbers``, ascending and distinct.

    Of examples of several sizes ``runs`` says how many there are of each; numbers ascend in each.
    """

    numbers: Tensor
    runs: tuple[int, ...]
    _blocks: dict[bytes | int, list[int]]

    def __new__(cls, parts: Iterable[Any], numbers: Tensor, runs: Iterable[int] = ()) -> Self:
        batch = super().__new__(cls, parts)
        batch.numbers, batch.runs, batch._blocks = numbers, tuple(runs) or (len(numbers),), {}
        return batch

    def rows_of_blocks(self, rows: Tensor | int, most: int) -> list[int]:
        """How many rows each block has: ``most``, where an example has so many ``rows``."""
        key = rows if isinstance(rows, int) else rows.numpy().tobytes()
        if key not in self._blocks:  # layers ask for the same ones
            heights = torch.full_like(self.numbers, rows) if isinstance(rows, int) else rows
            parts = zip(self.numbers.split(self.runs), heights.split(self.runs), strict=True)
            sizes = [size for part in parts for size in block_sizes(*part, most)]
            ends = heights.cumsum(0)[torch.tensor(sizes, dtype=torch.long).cumsum(0) - 1]
            self._blocks[key] = ends.diff(prepend=ends.new_zeros(1)).tolist()
        return self._blocks[key]


def block_sizes(numbers: Tensor, rows: Tensor, most: int) -> list[int]:
    """How many of the ascending ``numbers`` each block holds: ``most`` rows at most, or one."""
    if not len(numbers):
        return []
    places, heights = numbers.numpy(), rows.numpy()
    # Ranges of 2^level numbers; so short that they cannot hold too much, then twice as long, ...
    shortest = max(most // max(int(heights.max()), 1), 1).bit_length() - 1
    level = np.full(len(places), shortest)
    for longer in range(shortest + 1, int(places[-1]).bit_length() + 1):
        cells = places >> longer
        starts = _starts(cells[1:] != cells[:-1])
        fits = np.add.reduceat(heights, starts) <= most
        if not fits.any():
            break
        level[np.repeat(fits, np.diff(starts, append=len(places)))] = longer
    block = places >> level
    starts = _starts((block[1:] != block[:-1]) | (level[1:] != level[:-1]))
    return np.diff(starts, append=len(places)).tolist()


def _starts(changes: NDArray[np.bool_]) -> NDArray[np.int64]:
    return np.concatenate([[0], np.flatnonzero(changes) + 1])
