"""The parts of a split, and how large they are: public, and needed by a plan without any data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate

MASKS = ("train_mask", "val_mask", "test_mask")
TRAIN_SHARE, VAL_SHARE, TEST_SHARE = 0.75, 0.1, 0.15
SHARES = (TRAIN_SHARE, VAL_SHARE, TEST_SHARE)  # of a split that nobody gave


def part_ends(count: int, shares: Sequence[float] = SHARES) -> list[int]:
    """Where the parts of ``count`` drawn records end: the first has the records before the first.

    A boundary in the middle of a record goes up: a share of 0.75 of 2 records is 2.
    """
    return [math.floor(share * count + 0.5) for share in accumulate(shares)]
