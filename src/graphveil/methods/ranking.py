"""How good a ranking of targets is: figures of links that were withheld, in pieces.

Each source with withheld links has its candidates ranked: the targets that it is not known to be
linked to. Ties count half.

===================  ===========================================================================
mrr                  the mean over withheld links of 1 / rank, among the candidates that are no link
hits@k               the share of withheld links whose rank, so counted, is k at most
roc_auc              the mean share of candidates without a link that rank below a withheld link
recall@k             the mean over sources of the share of their withheld targets among the first k
ndcg@k               likewise, each target discounted by the logarithm of its place
average_precision    likewise, the mean precision at the places of the withheld targets
===================  ===========================================================================

*Protocol*: ``full`` ranks all targets. ``sampled(100)`` ranks withheld targets among 100 drawn ones
instead: its figures are larger, and are no estimate of the full ones (Krichene and Rendle 2020), so
figures of the two are never compared. The full one is taken up to 10^8 scores.

*Guarantee*: none. Figures are read off links, outside every certificate.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from graphveil import _validate
from graphveil._errors import InvalidInputError
from graphveil.rng import seeded

if TYPE_CHECKING:
    from torch_geometric.data import Data

Array = NDArray[Any]
Scores = Callable[[Array, Array | None], Array]
"""The scores of some sources: of all targets, or of (sources, n) given ones."""

MAIN = "mrr"
PARTS = ("val", "test")
_MOST_SCORES = 10**8  # of a full ranking that nobody asked for
_NEGATIVES = 100
_AT_ONCE = 1 << 22  # scores in memory


def ranking_metrics(top: int = 10) -> tuple[str, ...]:
    """The names of the figures."""
    return (
        "mrr",
        f"hits@{top}",
        f"ndcg@{top}",
        f"recall@{top}",
        "roc_auc",
        "average_precision",
    )


@dataclass(frozen=True, kw_only=True)
class Ranking:
    """Figures, and how they were measured.

    ``credit`` has of every source, in their order, what its links add to the MRR: sums of 1 / rank.
    """

    figures: dict[str, float | None]
    protocol: str
    sources: int
    links: int
    credit: Array = field(repr=False, compare=False)


# --- who is ranked for ----------------------------------------------------------------------------


@dataclass(frozen=True)
class _Lists:
    """Pairs as sorted keys, source by source."""

    keys: Array
    targets: int

    @classmethod
    def of(cls, links: Array, targets: int, *, both: bool) -> _Lists:
        """Of links; with ``both`` each stands in the lists of both its ends."""
        source, target = links
        if both:
            source, target = np.concatenate([source, target]), np.concatenate([target, source])
        return cls(np.unique(source * targets + target), targets)

    def block(self, sources: Array) -> tuple[Array, Array]:
        """The pairs of some sources: the place of the source among them, and the target."""
        starts = np.searchsorted(self.keys, sources * self.targets)
        counts = np.searchsorted(self.keys, (sources + 1) * self.targets) - starts
        rows = np.repeat(np.arange(len(sources)), counts)
        within = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
        return rows, self.keys[starts[rows] + within] % self.targets

    def holds(self, sources: Array, targets: Array) -> NDArray[np.bool_]:
        """Which pairs stand in the lists."""
        keys = sources * self.targets + targets
        if not len(self.keys):
            return np.zeros(keys.shape, dtype=bool)
        place = np.searchsorted(self.keys, keys)
        return self.keys[np.minimum(place, len(self.keys) - 1)] == keys


def _list_pairs(data: Data, mask: Array, *, own: bool = False) -> _Lists:
    """The lists of the links of a mask; with ``own`` everybody of one type stands in their own."""
    links = data.links.numpy()[:, mask]
    one_type = "target_x" not in data
    targets = len(data.x) if one_type else len(data.target_x)
    if own and one_type:  # nobody is recommended to themselves
        links = np.concatenate([links, np.tile(np.arange(targets), (2, 1))], 1)
    return _Lists.of(links, targets, both=one_type and not data.directed)


# --- ranks ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Ranks:
    """Of every withheld link: its source, its score, its rank among so many others."""

    source: Array
    score: Array
    rank: Array
    others: Array


def measure_links(
    score: Scores,
    data: Data,
    *,
    part: str = "test",
    top: int = 10,
    protocol: str | None = None,
    negatives: int = _NEGATIVES,
    seed: int = 0,
) -> Ranking:
    """The figures of ``score`` on the ``val`` or ``test`` links of ``data``.

    ``protocol`` is ``full`` or ``sampled``; by default it is full where that takes at most 10^8
    scores. ``negatives`` are drawn for each source by ``seed``.

    *Guarantee*: none; see the top of this file.
    """
    _validate.choice("part", part, PARTS)
    top = _validate.integer("top", top, "[1, 1e6]")
    negatives = _validate.integer("negatives", negatives, "[1, 1e6]")
    withheld = data[f"{part}_links"].numpy()
    wanted = _list_pairs(data, withheld)
    known = _list_pairs(data, ~(withheld | data.test_links.numpy()), own=True)
    sources = np.unique(wanted.keys // wanted.targets)
    if not len(sources):
        raise InvalidInputError(
            f"There must be links to rank in '{part}_links'. Got none instead; split the links "
            "with a share for that part."
        )
    if protocol is None:
        protocol = "full" if len(sources) * wanted.targets <= _MOST_SCORES else "sampled"
    if _validate.choice("protocol", protocol, ("full", "sampled")) == "full":
        ranks = _rank_among_all(score, wanted, known, sources)
    else:
        ranks = _rank_among_drawn(score, wanted, known, sources, negatives, seed)
    return Ranking(
        figures=_figures(ranks, top),
        protocol="full" if protocol == "full" else f"sampled({negatives})",
        sources=len(sources),
        links=len(ranks.source),
        credit=np.bincount(np.searchsorted(sources, ranks.source), 1 / ranks.rank),
    )


def _rank_among_all(score: Scores, wanted: _Lists, known: _Lists, sources: Array) -> _Ranks:
    """Among all targets that are no link."""
    pieces = []
    for some in _blocks(sources, wanted.targets):
        scores = _check_scores(score(some, None), (len(some), wanted.targets))
        rows, columns = wanted.block(some)
        own = scores[rows, columns]
        others = scores.copy()
        others[rows, columns] = -np.inf
        others[known.block(some)] = -np.inf
        counts = np.isfinite(others).sum(1)
        others.sort(axis=1)
        above, below = np.empty(len(own)), np.empty(len(own))
        ends = np.searchsorted(rows, np.arange(len(some) + 1))
        for row, (first, last) in enumerate(pairwise(ends)):
            mine = own[first:last]
            above[first:last] = wanted.targets - np.searchsorted(others[row], mine, "right")
            below[first:last] = np.searchsorted(others[row], mine, "left")
        equal = wanted.targets - above - below
        pieces.append((some[rows], own, 1 + above + equal / 2, counts[rows]))
    return _Ranks(*(np.concatenate(column) for column in zip(*pieces, strict=True)))


def _rank_among_drawn(
    score: Scores, wanted: _Lists, known: _Lists, sources: Array, negatives: int, seed: int
) -> _Ranks:
    """Among targets that were drawn for each source, those left out that are links."""
    rng, pieces = seeded(seed, "negatives of a ranking").generator(), []
    for some in _blocks(sources, 4 * negatives):
        drawn = rng.integers(wanted.targets, size=(len(some), negatives))
        holder = np.broadcast_to(some[:, None], drawn.shape)
        linked = wanted.holds(holder, drawn) | known.holds(holder, drawn)
        others = _check_scores(score(some, drawn), drawn.shape).copy()
        others[linked] = -np.inf
        rows, columns = wanted.block(some)
        own = _score_pairs(score, some, rows, columns)
        above = (others[rows] > own[:, None]).sum(1)
        equal = (others[rows] == own[:, None]).sum(1)
        pieces.append((some[rows], own, 1 + above + equal / 2, (~linked).sum(1)[rows]))
    return _Ranks(*(np.concatenate(column) for column in zip(*pieces, strict=True)))


def _score_pairs(score: Scores, sources: Array, rows: Array, columns: Array) -> Array:
    """The scores of single pairs, asked for as a table with as many columns as the longest list."""
    counts = np.bincount(rows, minlength=len(sources))
    within = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    table = np.zeros((len(sources), max(1, int(counts.max(initial=0)))), dtype=np.int64)
    table[rows, within] = columns
    return _check_scores(score(sources, table), table.shape)[rows, within]


def _blocks(sources: Array, width: int) -> list[Array]:
    """Sources that are scored together."""
    return np.array_split(sources, max(1, -(-len(sources) * width // _AT_ONCE)))


def _check_scores(scores: Array, shape: tuple[int, ...]) -> Array:
    """The scores, if they are numbers of this shape."""
    scores = np.asarray(scores)
    if scores.shape != shape or not np.isfinite(scores).all():
        raise InvalidInputError(
            f"Scores must be finite numbers of shape {shape}. Got shape {scores.shape}, or NaN or "
            "infinity, instead; train with a smaller learning rate."
        )
    return scores


# --- figures --------------------------------------------------------------------------------------


def _figures(ranks: _Ranks, top: int) -> dict[str, float | None]:
    """All figures, from the ranks."""
    order = np.lexsort((-ranks.score, ranks.source))
    source, rank, others = ranks.source[order], ranks.rank[order], ranks.others[order]
    _, first, counts = np.unique(source, return_index=True, return_counts=True)
    better = np.arange(len(source)) - np.repeat(first, counts)  # of the source's own, above it
    place = rank + better
    inside = place <= top
    ideal = np.cumsum(1 / np.log2(np.arange(2, top + 2)))[np.minimum(counts, top) - 1]
    gains = np.where(inside, 1 / np.log2(place + 1), 0.0)
    measured = others > 0
    areas = 1 - (rank[measured] - 1) / others[measured]
    return {
        "mrr": float(np.mean(1 / rank)),
        f"hits@{top}": float(np.mean(rank <= top)),
        f"ndcg@{top}": float(np.mean(np.add.reduceat(gains, first) / ideal)),
        f"recall@{top}": float(np.mean(np.add.reduceat(inside.astype(float), first) / counts)),
        "roc_auc": float(np.mean(areas)) if len(areas) else None,
        "average_precision": float(np.mean(np.add.reduceat((better + 1) / place, first) / counts)),
    }
