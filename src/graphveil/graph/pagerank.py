r"""Approximate personalised PageRank: whom a walk that starts at a seed meets, and how often.

A lazy walk stays where it is or follows an edge, with even odds, and jumps back to its seed with
probability ``alpha``; the seed's row is where it spends its time. Rows are sparse and *local*: what
a row costs depends on the neighbourhood that carries it, not on the size of the graph.

``ista`` solves the l1-regularised problem of Fountoulakis et al. (2017) by proximal gradient steps.
In rows p, with degrees d, adjacency A and the seed's indicator s, a step reads::

    p  <-  max(0, (1 - alpha) / 2 (p + p D^-1 A) + alpha s - rho alpha d)

It is a contraction by 1 - alpha in the norm max |p / d|, so that a step of at most ``tolerance rho
alpha`` in that norm leaves an error of at most ``tolerance rho``. From zero the steps only ever
add: no node outside the solution's support is met. ``push`` is Andersen, Chung and Lang's method:
it moves residuals larger than ``rho d`` on until there are none, and is within ``rho`` of the exact
row in the same norm.

*Guarantee*: none. Rows read every edge in the open; :mod:`graphveil.graph.private_rows` does not.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor

from graphveil import _validate
from graphveil._errors import InvalidInputError
from graphveil.graph.choices import RANKINGS
from graphveil.graph.lists import Lists, ranges

Ids = NDArray[np.int64]

_SEEDS_AT_ONCE = 256
_ROUNDING = 1e-15  # steps this short are made of rounding
_GROWING = 1.01  # supports that grow by less are worth solving on


def pagerank(edges: Tensor | Lists, num_nodes: int, seeds: Tensor, **how: Any) -> sparse.csr_array:
    """One row for each seed: (seeds, num_nodes), non-negative and sparse.

    ``how`` is as of :func:`make_ranker`.
    """
    return make_ranker(edges, num_nodes, **how)(seeds)


def make_ranker(
    edges: Tensor | Lists,
    num_nodes: int,
    *,
    inside: Tensor | None = None,
    how: str = "ista",
    alpha: float = 0.25,
    rho: float = 1e-4,
    tolerance: float = 1e-4,
) -> Callable[[Tensor], sparse.csr_array]:
    """A function of seeds that makes one row for each, of which a store's may not all fit.

    Edges count in both directions, repeated ones once, self-loops not at all. A walk on a node
    without edges stays there. ``rho`` is what is given up for locality: larger ones give fewer
    entries. ``tolerance`` matters to ``ista`` alone. With a mask ``inside`` edges count if both
    ends are in it. Of a store, whose edges are lists, what a row meets is read and nothing else,
    but for one pass that counts degrees; the answer is the same to the last bit.
    """
    _validate.choice("how", how, RANKINGS)
    _validate.number("alpha", alpha, "(0, 1)")
    _validate.number("rho", rho, "(0, 1)")
    _validate.number("tolerance", tolerance, "(0, 1]")
    walk = _walk_over(edges, num_nodes, inside)
    if how == "ista":
        rank = functools.partial(walk.ista, alpha=alpha, rho=rho, tolerance=tolerance)
    else:
        # A lazy walk in the steps it takes: with what probability it jumps before the next one.
        rank = functools.partial(walk.push, teleport=2 * alpha / (1 + alpha), rho=rho)

    def rank_all(seeds: Tensor) -> sparse.csr_array:
        wanted = _ids("seeds", seeds, num_nodes, 1)
        parts = [wanted[i : i + _SEEDS_AT_ONCE] for i in range(0, len(wanted), _SEEDS_AT_ONCE)]
        if not parts:
            return sparse.csr_array((0, num_nodes))
        with ThreadPoolExecutor(os.cpu_count()) as threads:
            ranks = sparse.vstack(list(threads.map(rank, parts)), format="csr")
        ranks.sort_indices()
        return ranks

    return rank_all


def _ids(name: str, given: Tensor, num_nodes: int, dimensions: int) -> Ids:
    """Node ids as numpy has them, once they have passed the checks."""
    if not isinstance(given, Tensor) or given.dtype != torch.long or given.dim() != dimensions:
        got = str(given.dtype) if isinstance(given, Tensor) else type(given).__name__
        raise InvalidInputError(
            f"The '{name}' parameter must be a long tensor of {dimensions} dimensions. Got "
            f"{got} instead; a mask's ids are mask.nonzero().flatten()."
        )
    ids: Ids = given.numpy()
    outside = ids[(ids < 0) | (ids >= num_nodes)]
    if outside.size or (dimensions == 2 and len(ids) != 2):
        got = str(outside[0]) if outside.size else f"shape {tuple(given.shape)}"
        raise InvalidInputError(
            f"The '{name}' parameter must hold node ids from 0 to {num_nodes - 1}"
            f"{', in two rows' if dimensions == 2 else ''}. Got {got} instead; check it, or "
            "'num_nodes'."
        )
    return ids


def _walk_over(edges: Tensor | Lists, num_nodes: int, inside: Tensor | None) -> _Walk:
    if isinstance(edges, Lists):
        some = None if inside is None or bool(inside.all()) else inside.numpy()
        listed = _ListedSteps(edges, some)
        return _Walk(listed.count_degrees(), listed)
    _ids("edge_index", edges, num_nodes, 2)
    source, target = (edges if inside is None else edges[:, inside[edges].all(0)]).numpy()
    source, target = source[source != target], target[source != target]
    ones = np.ones(2 * len(source))
    ends = np.concatenate([source, target]), np.concatenate([target, source])
    matrix = sparse.csr_array((ones, ends), shape=(num_nodes, num_nodes))
    matrix.sum_duplicates()
    lonely = np.diff(matrix.indptr) == 0
    if lonely.any():
        matrix = sparse.csr_array(matrix + sparse.diags_array(lonely.astype(float)))
    degree = np.diff(matrix.indptr).astype(float)
    matrix.data = 1.0 / np.repeat(degree, np.diff(matrix.indptr))
    return _Walk(degree, _MatrixSteps(matrix))


class _Steps(Protocol):
    """Where one step of a walk leads from each node, and with what probability."""

    def after(self, rows: sparse.csr_array) -> sparse.csr_array:
        """Where rows are after one step."""

    def of(self, nodes: Ids) -> tuple[Ids, sparse.csr_array, Ids]:
        """How many places each of the nodes leads to; steps, and in which row of them each is."""


@dataclass(frozen=True, eq=False)
class _MatrixSteps:
    """Steps of a graph in memory."""

    matrix: sparse.csr_array

    def after(self, rows: sparse.csr_array) -> sparse.csr_array:
        return rows @ self.matrix

    def of(self, nodes: Ids) -> tuple[Ids, sparse.csr_array, Ids]:
        return np.diff(self.matrix.indptr)[nodes], self.matrix, nodes


@dataclass(frozen=True, eq=False)
class _ListedSteps:
    """Steps over lists on disk, of which those that rows stand on are read."""

    lists: Lists
    inside: NDArray[np.bool_] | None

    def after(self, rows: sparse.csr_array) -> sparse.csr_array:
        # Ids are renamed in their order, so that products add up in the order of all steps.
        _, steps, places = self.of(rows.indices)
        shape = rows.shape[0], steps.shape[0]
        return sparse.csr_array((rows.data, places, rows.indptr), shape=shape) @ steps

    def of(self, nodes: Ids) -> tuple[Ids, sparse.csr_array, Ids]:
        some, places = np.unique(nodes.astype(np.int64), return_inverse=True)
        starts, others = self._neighbours(some)
        counts = np.diff(starts)
        odds = 1.0 / np.repeat(counts.astype(float), counts)
        shape = len(some), self.lists.num_nodes
        return counts[places], sparse.csr_array((odds, others, starts), shape=shape), places

    def count_degrees(self) -> NDArray[np.float64]:
        """Of all nodes."""
        counts = np.empty(self.lists.num_nodes)
        for first, last in ranges(self.lists.offsets):
            starts, _ = self._neighbours(np.arange(first, last))
            counts[first:last] = np.diff(starts)
        return counts

    def _neighbours(self, nodes: Ids) -> tuple[Ids, Ids]:
        """Whom some nodes (ascending) have an edge with, either way, and where each one's begin.

        One without an edge has itself.
        """
        size = self.lists.num_nodes
        lists = self.lists if self.lists.is_symmetric else self.lists.transposed
        parts = [self._pairs(self.lists, nodes)]
        if lists is not self.lists:
            parts.append(self._pairs(lists, nodes))
        pairs = parts[0] if len(parts) == 1 else np.unique(np.concatenate(parts))
        known = np.searchsorted(pairs // size, [nodes, nodes + 1])
        lonely = nodes[known[0] == known[1]]
        if len(lonely):
            pairs = np.sort(np.concatenate([pairs, lonely * size + lonely]))
        starts = np.searchsorted(pairs, np.append(nodes, size) * size)
        return starts, pairs % size

    def _pairs(self, lists: Lists, nodes: Ids) -> Ids:
        """Owners and whom they list, as one number each, ascending."""
        parts = [np.empty(0, np.int64)]
        for owners, others in lists.lists_of(nodes):
            pairs = owners * lists.num_nodes + others.astype(np.int64)
            if self.inside is not None:
                pairs = pairs[self.inside[owners] & self.inside[others]]
            parts.append(pairs)
        return np.concatenate(parts)


@dataclass(frozen=True, eq=False)
class _Walk:
    """A graph as a walk sees it: degrees, and where one step leads from each node."""

    degree: NDArray[np.float64]
    steps: _Steps

    def starts(self, seeds: Ids, value: float) -> sparse.csr_array:
        places, shape = (np.arange(len(seeds)), seeds), (len(seeds), len(self.degree))
        return sparse.csr_array((np.full(len(seeds), value), places), shape=shape)

    def ista(self, seeds: Ids, alpha: float, rho: float, tolerance: float) -> sparse.csr_array:
        start, ranks = self.starts(seeds, alpha), self.starts(seeds, 0.0)
        enough = max(tolerance * rho * alpha, _ROUNDING)
        while True:
            after = (1 - alpha) / 2 * (ranks + self.steps.after(ranks)) + start
            after.data -= rho * alpha * self.degree[after.indices]
            _positive(after)
            moved = after - ranks
            if np.max(np.abs(moved.data) / self.degree[moved.indices], initial=0) <= enough:
                return after
            settled = after.nnz <= _GROWING * ranks.nnz
            ranks = self._solve(after, seeds, alpha, rho, 0.1 * enough) if settled else after

    def _solve(
        self, ranks: sparse.csr_array, seeds: Ids, alpha: float, rho: float, enough: float
    ) -> sparse.csr_array:
        """The same steps, on the entries there are: no longer on rows, on one vector of them."""
        ranks.sort_indices()
        inside, nodes = self._within(ranks), ranks.indices
        here = alpha * (nodes == np.repeat(seeds, np.diff(ranks.indptr)))
        here -= rho * alpha * self.degree[nodes]
        values = ranks.data
        while True:
            after = np.maximum((1 - alpha) / 2 * (values + inside @ values) + here, 0.0)
            moved = np.max(np.abs(after - values) / self.degree[nodes], initial=0)
            values = after
            if moved <= max(enough, _ROUNDING):
                break
        ranks.data = values
        _positive(ranks)
        return ranks

    def _within(self, ranks: sparse.csr_array) -> sparse.csr_array:
        """One step of the walk from entry to entry of the same row."""
        nodes, entries = ranks.indices, ranks.nnz
        row = np.repeat(np.arange(ranks.shape[0]), np.diff(ranks.indptr))
        reached, steps, places = self.steps.of(nodes)
        before = np.cumsum(reached) - reached
        edge = np.arange(reached.sum()) + np.repeat(steps.indptr[places] - before, reached)
        # Entries are sorted by row and node: one number each, to look them up by.
        n = len(self.degree)
        known = row * n + nodes
        wanted = np.repeat(row * n, reached) + steps.indices[edge]
        place = np.minimum(np.searchsorted(known, wanted), max(entries - 1, 0))
        met = known[place] == wanted
        origin = np.repeat(np.arange(entries), reached)[met]
        step = steps.data[edge][met]
        return sparse.csr_array((step, (place[met], origin)), shape=(entries, entries))

    def push(self, seeds: Ids, teleport: float, rho: float) -> sparse.csr_array:
        ranks, residual = self.starts(seeds, 0.0), self.starts(seeds, 1.0)
        while True:
            moved = residual.copy()
            moved.data[moved.data <= rho * self.degree[moved.indices]] = 0.0
            moved.eliminate_zeros()
            if not moved.nnz:
                ranks.eliminate_zeros()
                return ranks
            ranks = ranks + teleport * moved
            residual = residual - moved + (1 - teleport) * self.steps.after(moved)


def _positive(rows: sparse.csr_array) -> None:
    rows.data[rows.data < 0] = 0.0
    rows.eliminate_zeros()
