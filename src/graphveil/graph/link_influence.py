"""How many loss terms of links one unit touches; without torch, for plans."""

from __future__ import annotations


def people_influence(cap: int, cap_in: int, negatives: int) -> tuple[int, int]:
    """What one person touches where both ends are people: (0, K + K_in + K_neg).

    K_neg is ``negatives * cap``: of each slot an id is a negative of ``negatives`` sources.
    """
    return 0, cap + cap_in + negatives * cap


def count_pairs(sources: int, targets: int | None, *, directed: bool | None) -> int:
    """How many links there may be: all pairs; ``targets`` None where they are the sources."""
    if targets is not None:
        return max(sources, targets, sources * targets)
    pairs = sources * (sources - 1)
    return max(sources, pairs if directed else pairs // 2)
