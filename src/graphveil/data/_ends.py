"""Links as pairs of rows."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def go_both_ways(ends: NDArray[np.int64], num_nodes: int) -> NDArray[np.int64]:
    """Each link once in either direction, in order; ``ends`` are (2, links)."""
    pairs = np.concatenate([ends, ends[::-1]], axis=1)
    return np.stack(np.divmod(np.unique(pairs[0] * num_nodes + pairs[1]), max(num_nodes, 1)))


def check_ends(ends: NDArray[np.int64], num_nodes: int, file: str) -> None:
    """Refuse a link to a row that is not there."""
    if ends.size and (ends.min() < 0 or ends.max() >= num_nodes):
        raise ValueError(f"{file} has a link to a node that is not there")
