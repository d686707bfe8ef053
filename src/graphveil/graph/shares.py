"""The parts of a split, and how large they are: public, and needed by a plan without any data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate

from graphveil import _validate
from graphveil._errors import InvalidInputError

MASKS = ("train_mask", "val_mask", "test_mask")
TRAIN_SHARE, VAL_SHARE, TEST_SHARE = 0.75, 0.1, 0.15
SHARES = (TRAIN_SHARE, VAL_SHARE, TEST_SHARE)  # of a split that nobody gave


def part_ends(count: int, shares: Sequence[float] = SHARES) -> list[int]:
    """Where the parts of ``count`` drawn records end: the first has the records before the first.

    A boundary in the middle of a record goes up: a share of 0.75 of 2 records is 2.
    """
    return [math.floor(share * count + 0.5) for share in accumulate(shares)]


def thinned_size(count: int, share: float) -> int:
    """How many of ``count`` training records a ``share`` of them is: one at least."""
    return max(1, math.floor(share * count + 0.5))


def check_fractions(fractions: Sequence[float]) -> tuple[float, float, float]:
    """The shares of the three parts, if they are three numbers that sum to 1 at most."""
    listed = tuple(fractions) if isinstance(fractions, Sequence) else (fractions,)
    if isinstance(fractions, str) or len(listed) != 3:
        raise InvalidInputError(
            "The 'fractions' parameter must be three numbers: train, val, test. "
            f"Got {_validate.shown(fractions)} instead; write 0 for a part that is not wanted."
        )
    train, val, test = (_validate.number("fractions", share, "[0, 1]") for share in listed)
    if train + val + test > 1 + 1e-9:
        raise InvalidInputError(
            "The 'fractions' parameter must sum to 1 at most. "
            f"Got {listed} instead; divide each by {train + val + test:g}."
        )
    return train, val, test
