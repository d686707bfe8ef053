"""What a fitted scorer of links says: scores of pairs, and the best targets of each source.

Scores of a source read its own row and, where targets are public, its own list. They are for the
source itself, or for whoever holds its data. Where targets are people, a score reads the target's
row as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch_geometric.data import Data

from graphveil import _validate
from graphveil._errors import InvalidInputError
from graphveil.graph.link_terms import OwnRow, OwnRowAndList, Reads, ranges_of
from graphveil.graph.links import is_one_type, own_lists
from graphveil.graph.lists import Lists
from graphveil.methods.features import Features
from graphveil.methods.link_models import target_features

MOST_SCORES = 10**8  # in one table
_AT_ONCE = 1 << 22  # scores in memory
_MATCHED = 1 << 23  # numbers that single pairs are matched by, in memory

ITS_OWN = (
    "each source's list to that source, or to whoever holds its data: it is made from the "
    "source's own row and list"
)
READS_TARGETS = (
    "whoever may see the rows of the targets: a score reads both ends' rows in the open, and "
    "nothing is promised to a target"
)
PUBLIC_ROWS = (
    "anybody but for the links that are left out: scores read rows, which are public under this "
    "unit, and a list leaves out the links of its source"
)


@dataclass(frozen=True, eq=False)
class Recommendations:
    """The best targets of some sources, best first.

    ``targets`` and ``scores`` are (sources, top); where a source has fewer targets that it is not
    linked to, -1 and minus infinity. ``seen_by`` says who may see them.
    """

    sources: NDArray[np.int64]
    targets: NDArray[np.int64]
    scores: NDArray[np.float32]
    seen_by: str


@dataclass(frozen=True, eq=False)
class LinkScores:
    """Scores by a fitted network; called with sources, and perhaps with targets for each."""

    network: Any
    reads: Reads
    table: Tensor

    @torch.no_grad()
    def __call__(self, sources: Any, targets: Any = None) -> NDArray[np.float32]:
        """(sources, targets) with all targets, or (sources, n) with given ones."""
        sources = np.asarray(sources, dtype=np.int64)
        network, table = self.network, self.table
        z = network.represent(self.reads.whole(sources)).float()
        if targets is None:
            parts = [network.score(some, table) for some in z.split(self._rows(len(table)))]
        else:
            places = torch.from_numpy(np.asarray(targets, dtype=np.int64))
            step = max(1, _MATCHED // max(1, places.shape[1] * table.shape[1]))
            cut = zip(z.split(step), places.split(step), strict=True)
            parts = [network.score_some(some, table[place]) for some, place in cut]
        scores: NDArray[np.float32] = torch.cat(parts).numpy()
        return scores

    def _rows(self, width: int) -> int:
        """How many sources are scored with all targets at a time."""
        heavy = 1 if self.network.is_linear else 2 * self.table.shape[1]
        return max(1, _AT_ONCE // max(1, width * heavy))


def read_sources(method: Any, data: Data, network: Any) -> tuple[Reads, Tensor, Lists]:
    """What a scorer reads of sources, the numbers of all targets, and the lists."""
    lists = own_lists(data, known_links(data))
    content = network.content(rows_of_targets(method, data))
    table = network.table(content).float()
    if is_one_type(data):
        return OwnRow(content.float()), table, lists
    rows = Features.of(method).prepare(data.x)
    if method.unit == "edge":
        return OwnRow(rows), table, lists
    return OwnRowAndList(rows, lists, content), table, lists


def rows_of_targets(method: Any, data: Data) -> Tensor:
    """Targets' features as a scorer reads them, before it makes content of them."""
    one_type = is_one_type(data)
    people = one_type and method.unit == "node"
    rows = data.x if one_type else data.target_x
    return target_features(method, people=people).prepare(rows)


def known_links(data: Data) -> Tensor:
    """Which links a prediction may read: those that are not withheld for validation or testing."""
    known = torch.ones(data.links.shape[1], dtype=torch.bool)
    for name in ("val_links", "test_links"):
        if name in data and data[name] is not None:
            known &= ~data[name]
    return known


def score_all(scores: LinkScores, sources: int, targets: int) -> Tensor:
    """One table of all scores; a large one is refused."""
    if sources * targets > MOST_SCORES:
        raise InvalidInputError(
            f"A table of scores must have at most {MOST_SCORES:,} of them. Got {sources:,} sources "
            f"and {targets:,} targets instead; take 'recommend', or 'link_scores' of some sources."
        )
    return torch.from_numpy(scores(np.arange(sources)))


def recommend(
    scores: LinkScores, lists: Lists, seen_by: str, top: int, sources: Any, *, one_type: bool
) -> Recommendations:
    """The ``top`` targets of each source that are not in its list.

    *Guarantee*: that of the weights. Leaving a source's own list out is a function of what that
    source sees anyway; ``seen_by`` of the answer says who may see it.
    """
    targets = scores.table.shape[0]
    top = _validate.integer("top", top, "[1, inf)")
    wanted = _check_sources(sources, lists.num_nodes)
    width = min(top, targets)
    best = np.full((len(wanted), top), -1, dtype=np.int64)
    values = np.full((len(wanted), top), -np.inf, dtype=np.float32)
    for first, some in _pieces(wanted, targets):
        table = torch.from_numpy(scores(some))
        starts = np.asarray(lists.offsets)[some]
        lengths = np.asarray(lists.offsets)[some + 1] - starts
        rows = np.repeat(np.arange(len(some)), lengths)
        table[rows, np.asarray(lists.others)[ranges_of(starts, lengths)]] = -torch.inf
        if one_type:
            table[np.arange(len(some)), some] = -torch.inf
        value, place = table.topk(width, dim=1)
        here = slice(first, first + len(some))
        values[here, :width] = value.numpy()
        best[here, :width] = np.where(value.numpy() == -np.inf, -1, place.numpy())
    return Recommendations(wanted, best, values, seen_by)


def _pieces(sources: NDArray[np.int64], width: int) -> Iterator[tuple[int, NDArray[np.int64]]]:
    step = max(1, _AT_ONCE // max(1, width))
    for first in range(0, len(sources), step):
        yield first, sources[first : first + step]


def _check_sources(sources: Sequence[int] | Any, count: int) -> NDArray[np.int64]:
    """Ids of sources; by default all."""
    if sources is None:
        return np.arange(count)
    wanted = np.asarray(sources)
    if wanted.ndim != 1 or wanted.dtype.kind not in "iu":
        raise InvalidInputError(
            "The 'sources' parameter must be a list of numbers of sources. Got "
            f"{wanted.dtype} of shape {wanted.shape} instead; leave it out for all of them."
        )
    if len(wanted) and not 0 <= wanted.min() <= wanted.max() < count:
        raise InvalidInputError(
            f"The 'sources' parameter must name sources from 0 to {count - 1}. Got "
            f"{int(wanted.min())} to {int(wanted.max())} instead; leave others out."
        )
    return wanted.astype(np.int64)
