r"""Loss terms of links: which pairs each one holds, what it reads, and how many a unit touches.

A pair is a source and a target that it is linked to. Its loss is

    -log softmax(score(source, target) among the scores of the target and of some negatives),

negatives being targets that public numbers draw. A term's loss is the mean over its pairs.

====================  ============================  =================================  ===========
who is a unit         a term                        a pair reads of its source         (r, a)
====================  ============================  =================================  ===========
a source; targets     a training source: all kept   its own row, and its own list      (1, 0)
are public            targets of its list           without the target
a node; both ends     one slot of a training        its own row                        (0, K +
are people            source's list                                                    K_in +
                                                                                       K_neg)
an edge               a training link; without a    its own row, which is public       (1, 0)
                      direction both ways at once
====================  ============================  =================================  ===========

*Guarantee conditions*: (1) **Negatives** are a function of a public seed, of the step and of a
term's public place, and are never compared with links: which pairs are none is private. (2) Where
they are people, every id is a negative in at most K_neg terms of a step: of slot j of all sources
they are a permutation of the ids. (3) A list is read by its own source alone. Proofs and brute
force: docs/guarantees/links.md, tests/graph/test_link_terms.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor

from graphveil.graph.link_influence import people_influence
from graphveil.graph.links import Pairs, keep_people, keep_targets
from graphveil.graph.lists import Lists
from graphveil.rng import seeded

SHARING = 512  # sources, on average, that share a step's negatives
PAIRS_AT_ONCE = 4096
_GRID = 2.0**28  # counts of up to 2^25 fit beside it

Ids = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class PairBatch:
    """The pairs of a few loss terms.

    Pair p belongs to term ``owner[p]`` of ``count``; ``rows[p]`` is what is read of its source,
    ``positive[p]`` its target. ``negative`` are (n,) for all pairs, or (pairs, n). ``table`` has
    the rows of all targets.
    """

    rows: Tensor
    owner: Tensor
    count: int
    positive: Tensor
    negative: Tensor
    table: Tensor

    @property
    def share(self) -> Tensor:
        """What each pair is of its term's mean."""
        return 1.0 / torch.bincount(self.owner, minlength=self.count)[self.owner].double()


# --- what is read of a source ---------------------------------------------------------------------


class Reads(Protocol):
    """What is read of sources."""

    def without(self, sources: Ids, targets: Ids) -> Tensor:
        """A row for each pair, which does not know the pair's target."""

    def whole(self, sources: Ids) -> Tensor:
        """A row for each source."""


@dataclass(frozen=True, eq=False)
class OwnRow:
    """A source's row."""

    x: Tensor

    def without(self, sources: Ids, targets: Ids) -> Tensor:
        """A row holds no target."""
        return self.whole(sources)

    def whole(self, sources: Ids) -> Tensor:
        """The rows."""
        return self.x[torch.from_numpy(sources)].double()


@dataclass(frozen=True, eq=False)
class OwnRowAndList:
    """A source's row, and beside it the mean row of the targets in its list.

    *Guarantee conditions*: targets are public. A row is a function of its source's row and list, to
    the last bit: a product with a sparse matrix adds one row at a time.
    """

    x: Tensor
    lists: Lists
    content: Tensor  # of targets

    def _sums(self, sources: Ids) -> tuple[Tensor, Tensor]:
        """The sum over each list, and how long it is."""
        lists = self.lists
        starts, ends = lists.offsets[sources], lists.offsets[sources + 1]
        lengths = ends - starts
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        others = np.asarray(lists.others)[ranges_of(starts, lengths)]
        shape = (len(sources), len(self.content))
        rows = sparse.csr_array((np.ones(len(others)), others, offsets), shape=shape)
        return torch.from_numpy(rows @ self.content.numpy()), torch.from_numpy(lengths)

    def without(self, sources: Ids, targets: Ids) -> Tensor:
        """The mean over the other targets; a list of one has none."""
        unique, place = np.unique(sources, return_inverse=True)
        sums, lengths = self._sums(unique)
        others = (lengths[place] - 1).unsqueeze(1)
        left = sums[place] - self.content[torch.from_numpy(targets)]
        means = torch.where(others > 0, left / others.clamp_min(1), 0.0)
        return torch.cat([self.x[torch.from_numpy(sources)].double(), means], 1)

    def whole(self, sources: Ids) -> Tensor:
        """The mean over the whole list."""
        sums, lengths = self._sums(sources)
        means = sums / lengths.clamp_min(1).unsqueeze(1)
        return torch.cat([self.x[torch.from_numpy(sources)].double(), means], 1)


# --- negatives ------------------------------------------------------------------------------------


class Negatives(Protocol):
    """Who is set against the targets of pairs."""

    def block_of(self, sources: Ids) -> Ids:
        """By which number sources share their negatives."""

    def draw(self, step: int, block: int, sources: Ids, slots: Ids) -> Tensor:
        """Ids of targets: (n,) for all pairs of a block, or (pairs, n)."""


@dataclass(frozen=True, kw_only=True)
class DrawnNegatives:
    """``count`` public targets, drawn with replacement by step and block of sources.

    A ``block`` is so many sources, one after the other by their public ids. Where there are no more
    than ``count`` targets, all of them are taken.

    *Guarantee conditions*: targets are public. Any draw will do that reads no link.
    """

    count: int
    targets: int
    seed: int
    block: int = SHARING

    def block_of(self, sources: Ids) -> Ids:
        """A stretch of public ids."""
        return sources // self.block

    def draw(self, step: int, block: int, sources: Ids, slots: Ids) -> Tensor:
        """The same for all sources of a block, whoever of them was drawn."""
        if self.count >= self.targets:
            return torch.arange(self.targets)
        stream = seeded(self.seed, f"negatives of step {step}, block {block}")
        return torch.from_numpy(stream.generator().integers(self.targets, size=self.count))


@dataclass(kw_only=True)
class AssignedNegatives:
    """``count`` people for each slot: of one slot and place, all sources' are a permutation.

    *Guarantee conditions*: an id is a negative in ``count`` terms of each of the ``cap`` slots, so
    in ``count * cap`` terms of a step, whatever the links are.
    """

    count: int
    cap: int
    people: int
    seed: int

    def __post_init__(self) -> None:
        self._step, self._table = -1, np.empty((0, 0, 0), np.int64)

    def block_of(self, sources: Ids) -> Ids:
        """One for all."""
        return np.zeros_like(sources)

    def draw(self, step: int, block: int, sources: Ids, slots: Ids) -> Tensor:
        """Those of each pair's own source and slot."""
        if step != self._step:
            rng = seeded(self.seed, f"negatives of step {step}").generator()
            places = range(self.cap * self.count)
            drawn = np.stack([rng.permutation(self.people) for _ in places])
            self._table = drawn.reshape(self.cap, self.count, self.people)
            self._step = step
        return torch.from_numpy(self._table[slots, :, sources])


# --- terms ----------------------------------------------------------------------------------------


class LinkTerms:
    """Loss terms over pairs; made by :func:`person_terms`, :func:`people_terms` or
    :func:`edge_terms`.

    Term t holds the pairs ``offsets[t] : offsets[t + 1]``, perhaps none. ``divisor`` is the public
    number that a step's sum is divided by; by default the number of terms, which then is public.
    """

    def __init__(
        self,
        pairs: Pairs,
        offsets: Ids,
        *,
        places: Ids,
        slots: Ids | None = None,
        reads: Reads,
        table: Tensor,
        negatives: Negatives,
        touched: tuple[int, int],
        divisor: float | None = None,
    ) -> None:
        self.source, self.target = pairs
        self.offsets, self.places = offsets, places  # a term's place: the id of its source
        self.slots = np.zeros_like(self.source) if slots is None else slots
        self.reads, self.table, self.negatives = reads, table, negatives
        self.touched = touched
        self.divisor = float(len(self)) if divisor is None else divisor
        self._step = 0

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def begin(self, step: int) -> None:
        """Be told the public number of the step that is about to be taken."""
        self._step = step

    def influence(self, unit: str = "node", **relation: Any) -> tuple[int, int]:
        """Terms removed and altered by one unit of the kind that these were made for."""
        return self.touched

    def batches(self, drawn: Tensor) -> Iterator[PairBatch]:
        """The drawn terms that hold pairs, a few thousand pairs at a time."""
        terms = np.sort(drawn.numpy())
        sizes = self.offsets[terms + 1] - self.offsets[terms]
        terms, sizes = terms[sizes > 0], sizes[sizes > 0]
        blocks = self.negatives.block_of(self.places[terms])
        cuts = np.flatnonzero(np.diff(blocks)) + 1
        for first, last in zip([0, *cuts], [*cuts, len(terms)], strict=True):
            if last > first:
                block = int(blocks[first])
                yield from self._block(terms[first:last], sizes[first:last], block)

    def _block(self, terms: Ids, sizes: Ids, block: int) -> Iterator[PairBatch]:
        """Terms that share a block, whole ones together."""
        piece = (np.cumsum(sizes) - 1) // PAIRS_AT_ONCE
        cuts = np.flatnonzero(np.diff(piece)) + 1
        for first, last in zip([0, *cuts], [*cuts, len(terms)], strict=True):
            some, long = terms[first:last], sizes[first:last]
            places = ranges_of(self.offsets[some], long)
            source, target = self.source[places], self.target[places]
            yield PairBatch(
                rows=self.reads.without(source, target),
                owner=torch.from_numpy(np.repeat(np.arange(len(some)), long)),
                count=len(some),
                positive=torch.from_numpy(target),
                negative=self.negatives.draw(self._step, block, source, self.slots[places]),
                table=self.table,
            )


def ranges_of(starts: Ids, lengths: Ids) -> Ids:
    """The numbers start, ..., start + length - 1 of all starts, one after the other."""
    before = np.cumsum(lengths) - lengths
    total = int(lengths.sum())
    numbers: Ids = np.arange(total) + np.repeat(starts - before, lengths)
    return numbers


def person_terms(
    x: Tensor,
    lists: Lists,
    table: Tensor,
    content: int,
    train: Tensor,
    *,
    keep: int,
    negatives: int,
    seed: int,
    block: int = SHARING,
) -> LinkTerms:
    """One term a training source, over at most ``keep`` targets of its list; targets are public.

    The first ``content`` columns of the ``table`` are what a source reads of its list.

    *Guarantee*: taking one source away removes its term and alters no other: (1, 0), at any length
    of lists.
    """
    source, target = keep_targets(lists, keep, num_targets=len(table), seed=seed)
    places = train.nonzero().flatten().numpy()
    counts = np.bincount(source, minlength=lists.num_nodes)
    starts = np.cumsum(counts) - counts
    kept = ranges_of(starts[places], counts[places])
    return LinkTerms(
        (source[kept], target[kept]),
        np.concatenate([[0], np.cumsum(counts[places])]),
        places=places,
        reads=OwnRowAndList(x, lists, table[:, :content].contiguous()),
        table=table,
        negatives=DrawnNegatives(count=negatives, targets=len(table), seed=seed, block=block),
        touched=(1, 0),
    )


def people_terms(
    x: Tensor,
    lists: Lists,
    table: Tensor,
    train: Tensor,
    *,
    cap: int,
    cap_in: int,
    negatives: int,
    seed: int,
) -> LinkTerms:
    """One term for each of ``cap`` slots of a training source; both ends are people.

    Lists of sources that are not trained on take no places: who is trained on is public.

    *Guarantee*: taking one person away deletes at most ``cap`` pairs of its own, lets at most as
    many of others into the places that they leave, alters at most ``cap_in`` that name it and at
    most ``negatives * cap`` in which it is a negative.
    """
    people = lists.num_nodes
    counts = np.where(train.numpy(), np.diff(lists.offsets), 0)
    others = np.asarray(lists.others)[ranges_of(np.asarray(lists.offsets[:-1]), counts)]
    trained = Lists(np.concatenate([[0], np.cumsum(counts)]), others)
    (source, target), slot = keep_people(trained, cap, cap_in, seed=seed)
    order = np.lexsort((slot, source))
    source, target, slot = source[order], target[order], slot[order]
    places = train.nonzero().flatten().numpy()
    rank = np.cumsum(train.numpy()) - 1
    held = np.bincount(rank[source] * cap + slot, minlength=len(places) * cap)
    return LinkTerms(
        (source, target),
        np.concatenate([[0], np.cumsum(held)]),
        places=np.repeat(places, cap),
        slots=slot,
        reads=OwnRow(x),
        table=table,
        negatives=AssignedNegatives(count=negatives, cap=cap, people=people, seed=seed),
        touched=people_influence(cap, cap_in, negatives),
    )


def edge_terms(
    x: Tensor,
    links: Tensor,
    table: Tensor,
    *,
    both: bool,
    negatives: int,
    seed: int,
    divisor: float,
    block: int = SHARING,
) -> LinkTerms:
    """One term a link; with ``both`` it holds the pair and its reverse. All rows are public.

    *Guarantee*: one link more or less is one term more or less: (1, 0). How many there are is
    private, so that the ``divisor`` is a public number, or one that noise was added to.
    """
    source, target = links[:, links[0].argsort(stable=True)].numpy()
    places, per_link = source, 1
    if both:
        source, target = (
            np.stack([source, target], 1).ravel(),
            np.stack([target, source], 1).ravel(),
        )
        per_link = 2
    return LinkTerms(
        (source, target),
        per_link * np.arange(len(places) + 1),
        places=places,
        reads=OwnRow(x),
        table=table,
        negatives=DrawnNegatives(count=negatives, targets=len(table), seed=seed, block=block),
        touched=(1, 0),
        divisor=divisor,
    )


# --- popularity -----------------------------------------------------------------------------------


def count_targets(lists: Lists, num_targets: int, *, balanced: bool) -> Tensor:
    r"""How often each target stands in a list; ``balanced`` entries weigh 1 / sqrt(its length).

    *Guarantee conditions*: a balanced list is a vector of length at most 1, so a person moves the
    counts by at most 1, at any length of lists, also where targets are people: lists of others do
    not change. Unbalanced, an edge moves one count by one, or two of them without a direction.
    """
    lengths = np.diff(lists.offsets)
    # Rounded down to a grid, so that float64 adds them exactly: a list moves sums by itself alone.
    grid = np.floor(_GRID / np.sqrt(np.maximum(lengths, 1))) / _GRID
    weights = np.repeat(grid, lengths) if balanced else None
    counts = np.bincount(lists.others, weights, minlength=num_targets)
    return torch.from_numpy(counts.astype(np.float64))
