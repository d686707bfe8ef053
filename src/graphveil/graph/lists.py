"""Lists of nodes, as graphs on disk have them: whom each node sends to, read in blocks."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

MESSAGES_AT_ONCE = 1 << 21  # that are read together, unless somebody says otherwise
_ODD = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F)

Ids = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Lists:
    """Lists of nodes, one for each node: node u's stand at ``offsets[u] : offsets[u + 1]``.

    Both are arrays that may be on disk; every list ascends, names nobody twice, and not its owner.
    """

    offsets: Ids
    others: Ids

    @property
    def num_nodes(self) -> int:
        """How many lists there are."""
        return len(self.offsets) - 1

    @property
    def num_messages(self) -> int:
        """How long all lists are together."""
        return len(self.others)

    def blocks(self, at_once: int | None = None) -> Iterator[tuple[Ids, Ids]]:
        """Owners and what their lists hold, a few whole lists at a time."""
        for first, last in ranges(self.offsets, at_once):
            bounds = np.asarray(self.offsets[first : last + 1])
            others = np.asarray(self.others[bounds[0] : bounds[-1]])
            owners = np.repeat(np.arange(first, last, dtype=others.dtype), np.diff(bounds))
            yield owners, others

    def lists_of(self, nodes: Ids, at_once: int | None = None) -> Iterator[tuple[Ids, Ids]]:
        """Owners and what their lists hold, of some nodes alone, in this order."""
        starts = np.asarray(self.offsets[nodes], np.int64)
        ends = np.concatenate([[0], np.cumsum(np.asarray(self.offsets[nodes + 1]) - starts)])
        for first, last in ranges(ends, at_once):
            sizes = np.diff(ends[first : last + 1])
            places = np.arange(ends[first], ends[last])
            places += np.repeat(starts[first:last] - ends[first:last], sizes)
            yield np.repeat(nodes[first:last], sizes), np.asarray(self.others[places])

    def equals(self, other: Lists) -> bool:
        """Whether both hold the same."""
        if not np.array_equal(self.offsets, other.offsets):
            return False
        blocks = zip(self.blocks(), other.blocks(), strict=True)
        return all(np.array_equal(one, another) for (_, one), (_, another) in blocks)

    @cached_property
    def is_symmetric(self) -> bool:
        """Whether every message has its reverse.

        One pass over all: keyed hashes of all pairs add up to those of the pairs turned round. They
        would by accident with a probability of 2^-64 or so.
        """
        there = back = np.uint64(0)
        with np.errstate(over="ignore"):
            for owners, others in self.blocks():
                owner, other = owners.astype(np.uint64), others.astype(np.uint64)
                there += _hash_pairs(owner, other).sum(dtype=np.uint64)
                back += _hash_pairs(other, owner).sum(dtype=np.uint64)
        return bool(there == back)

    @cached_property
    def transposed(self) -> Lists:
        """For each node those whose lists it is in, ascending; itself where all is symmetric.

        Otherwise it is sorted into a file without a name, four bytes for each message, which is
        gone with the process.
        """
        if self.is_symmetric:
            return self
        counts = np.zeros(self.num_nodes, np.int64)
        for _, others in self.blocks():
            ids, times = np.unique(others, return_counts=True)
            counts[ids] += times
        offsets = np.concatenate([[0], np.cumsum(counts)])
        turned, place = _scratch(self.num_messages, self.others.dtype), offsets[:-1].copy()
        for owners, others in self.blocks():
            order = np.argsort(others, kind="stable")
            ids, firsts, times = np.unique(others[order], return_index=True, return_counts=True)
            within = np.arange(len(others)) - np.repeat(firsts, times)
            turned[np.repeat(place[ids], times) + within] = owners[order]
            place[ids] += times
        back = Lists(offsets, turned)
        vars(back)["transposed"] = self
        return back

    def count_pairs(self) -> int:
        """How many pairs of nodes there are with a message one way or the other, or both."""
        if self.is_symmetric:
            return self.num_messages // 2
        count, turned = 0, self.transposed
        for first, last in ranges(self.offsets):
            pairs = []
            for lists in (self, turned):
                bounds = lists.offsets[first : last + 1]
                owners = np.repeat(np.arange(first, last), np.diff(bounds))
                others = lists.others[bounds[0] : bounds[-1]].astype(np.int64)
                above = others > owners
                pairs.append(owners[above] * self.num_nodes + others[above])
            count += len(np.unique(np.concatenate(pairs)))
        return count


def ranges(offsets: Ids, at_once: int | None = None) -> Iterator[tuple[int, int]]:
    """Owners first, ..., last - 1, whose lists are about ``at_once`` long together, or one."""
    at_once = MESSAGES_AT_ONCE if at_once is None else at_once
    first, owners = 0, len(offsets) - 1
    while first < owners:
        within = np.searchsorted(offsets, offsets[first] + at_once, side="right") - 1
        last = min(max(int(within), first + 1), first + at_once, owners)
        yield first, last
        first = last


def _hash_pairs(one: NDArray[np.uint64], other: NDArray[np.uint64]) -> NDArray[np.uint64]:
    mixed = (one * _ODD[0]) ^ (other * _ODD[1] + (one >> np.uint64(7)))
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def _scratch(length: int, dtype: Any) -> Ids:
    """An array in a file that nobody else sees."""
    if not length:
        return np.empty(0, dtype)
    with tempfile.TemporaryFile() as file:
        return np.memmap(file, dtype, "w+", shape=(length,))
