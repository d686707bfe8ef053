"""Lists of nodes, as graphs on disk have them: whom each node sends to, read in blocks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from graphveil.graph.scratch import scratch, scratch_file

MESSAGES_AT_ONCE = 1 << 21  # that are read together, unless somebody says otherwise
_SORTED = 1 << 25  # that are sorted in memory together
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
    def _ends(self) -> Ids:
        """Where the lists of :attr:`transposed` begin: how many lists name each node, added up."""
        counts = np.zeros(self.num_nodes, np.int64)
        at_once = max(MESSAGES_AT_ONCE, self.num_nodes)  # each time costs as much as the nodes
        for first in range(0, self.num_messages, at_once):
            counts += np.bincount(self.others[first : first + at_once], minlength=self.num_nodes)
        return np.concatenate([[0], np.cumsum(counts)])

    @cached_property
    def is_symmetric(self) -> bool:
        """Whether every message has its reverse.

        Then every node is named as often as it names others. Where that is so, one pass over all:
        keyed hashes of all pairs add up to those of the pairs turned round. They would by accident
        with a probability of 2^-64 or so.
        """
        if not np.array_equal(self._ends, self.offsets):
            return False
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
        gone with the process, and while it is sorted into one of twice the size.
        """
        if self.is_symmetric:
            return self
        turned = scratch((self.num_messages,), self.others.dtype)
        with scratch_file(2 * turned.nbytes) as file:
            for some, owners in self._turn(file):
                turned[some] = owners
        back = Lists(self._ends, turned)
        vars(back)["transposed"] = self
        return back

    def _turn(self, file: Any) -> Iterator[tuple[slice, Ids]]:
        """Who names each node, node by node: places, and owners there.

        All messages are spilt by ranges of nodes, so many as fit in memory, and then each range is
        put in order by counting. Both keep the owners of a node as they come, ascending.
        """
        parts = list(ranges(self._ends, _SORTED))
        range_of = np.repeat(np.arange(len(parts)), [last - first for first, last in parts])
        range_of = range_of.astype(np.min_scalar_type(len(parts)))  # short: sorted by its bytes
        bounds = [int(self._ends[first]) for first, _ in parts]
        filled = bounds.copy()
        for owners, others in self.blocks():
            numbers = range_of[others]
            order = np.argsort(numbers, kind="stable")
            pairs = np.stack([others[order], owners[order]], 1)
            ends = np.cumsum(np.bincount(numbers, minlength=len(parts))).tolist()
            for number, (begin, end) in enumerate(pairwise([0, *ends])):
                file.seek(filled[number] * pairs.itemsize * 2)
                file.write(pairs[begin:end].data)
                filled[number] += end - begin
        for (first, last), begin, end in zip(parts, bounds, filled, strict=True):
            file.seek(begin * self.others.itemsize * 2)
            pairs = np.fromfile(file, self.others.dtype, 2 * (end - begin)).reshape(-1, 2)
            shape, there = (last - first, self.num_nodes), np.ones(len(pairs), np.int8)
            rows = sparse.coo_array((there, (pairs[:, 0] - first, pairs[:, 1])), shape).tocsr()
            yield slice(begin, end), rows.indices

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


def ranges(offsets: Ids, at_once: int | None = None, least: int = 1) -> Iterator[tuple[int, int]]:
    """Owners first, ..., last - 1, whose lists are about ``at_once`` long together.

    They are ``least`` at least, however long their lists are.
    """
    at_once = MESSAGES_AT_ONCE if at_once is None else at_once
    first, owners = 0, len(offsets) - 1
    while first < owners:
        within = np.searchsorted(offsets, offsets[first] + at_once, side="right") - 1
        last = min(max(int(within), first + least), first + max(at_once, least))
        last = owners if owners - last < least else last
        yield first, last
        first = last


def _hash_pairs(one: NDArray[np.uint64], other: NDArray[np.uint64]) -> NDArray[np.uint64]:
    mixed = (one * _ODD[0]) ^ (other * _ODD[1] + (one >> np.uint64(7)))
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))
