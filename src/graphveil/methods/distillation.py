"""A student: what a private model believes of a graph, learned once more from that graph alone.

A private model errs where noise in its weights pushes it, which has nothing to do with the graph it
is shown. A linear model that learns the private model's beliefs from the rows of that graph, own
and smoothed, can follow what is common to many nodes and not the noise.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from scipy import sparse
from torch import Tensor
from torch.nn import functional as F

from graphveil.graph.lazy_rows import LazyRows, slices
from graphveil.graph.messages import Messages
from graphveil.graph.propagation import spread_rows
from graphveil.graph.sparse_rows import MOST_DENSE, as_csr, is_sparse, row_lengths, scale_rows
from graphveil.graph.stored_messages import StoredMessages
from graphveil.graph.surroundings import turn_round

_ITERATIONS = 30
# Columns that are spread together, to measure rows: as many as make so many numbers.
_FEWEST_COLUMNS, _MOST_COLUMNS, _NUMBERS_AT_ONCE = 16, 256, 1 << 24


def teach_student(
    beliefs: Tensor, x: Any, messages: Messages | StoredMessages, decay: float
) -> Tensor:
    """Log-probabilities (nodes, classes) of a linear model that was taught ``beliefs``.

    Multinomial regression on each node's unit row beside its smoothed one, with ``decay`` times
    half the squared weights, by L-BFGS from zero.

    *Guarantee*: none to the nodes of this graph, all of whose rows it reads in the open; to those
    that the private model was trained on, post-processing of its weights.
    """
    rows = _Rows(x, messages)
    down, up = rows.times, rows.transposed_times
    nodes = len(x)
    weight = torch.zeros(2 * x.shape[1], beliefs.shape[1], requires_grad=True)
    solver = torch.optim.LBFGS(
        [weight], max_iter=_ITERATIONS, history_size=8, line_search_fn="strong_wolfe"
    )

    @torch.no_grad()
    def loss() -> Tensor:
        log_chances = down(weight).log_softmax(1)
        weight.grad = up(log_chances.exp() - beliefs) / nodes + decay * weight
        return -(beliefs * log_chances).sum() / nodes + decay / 2 * (weight**2).sum()

    solver.step(loss)
    with torch.no_grad():
        return down(weight).log_softmax(1)


def follow_beliefs(
    own: Tensor, heard: Tensor, x: Any, messages: Messages | StoredMessages, noise: float
) -> Tensor:
    """Log-beliefs on a graph that was not trained on: what a student makes of those ``heard``.

    ``noise`` is that of training as one release. A student follows what nodes have in common; the
    less noise, the less it is needed, and the more is kept of a node's ``own``.
    """
    learned = teach_student(heard.softmax(1), x, messages, 0.5 * math.sqrt(noise) / len(x))
    kept = 0.5 / (1 + 2 * noise)
    return kept * own + (1 - kept) * learned


class _Rows:
    """Every node's unit row beside the unit row of what is spread over the graph.

    Only the first half is held, and of a store nothing: blocks of rows are read when products with
    them are asked for, the same blocks as in memory. Spreading is linear, so that products with the
    second half spread what comes of products with the first: sparse rows stay as sparse as they
    are.
    """

    def __init__(self, x: Any, messages: Messages | StoredMessages) -> None:
        self._there, self._back = messages, turn_round(messages)
        self._nodes, columns = x.shape
        self._own: Any = x if isinstance(x, LazyRows) else _unit_rows(x)
        self._scale = 1 / self._spread_lengths(columns).clamp_min(1e-12).unsqueeze(1)

    def _blocks(self) -> Iterator[tuple[slice, Any]]:
        """Unit rows, a few thousand at a time."""
        for some in slices(self._nodes):
            rows = self._own[some]
            yield some, _unit_rows(rows) if isinstance(self._own, LazyRows) else rows

    def _spread_lengths(self, columns: int) -> Tensor:
        """Of rows that were spread, a few columns at a time."""
        squares = torch.zeros(self._nodes)
        at_once = max(_FEWEST_COLUMNS, min(_MOST_COLUMNS, _NUMBERS_AT_ONCE // self._nodes))
        for start in range(0, columns, at_once):
            dense = torch.empty(self._nodes, min(at_once, columns - start))
            for some, rows in self._blocks():
                part = rows[:, start : start + at_once]
                dense[some] = part if isinstance(part, Tensor) else torch.from_numpy(part.toarray())
            squares += _spread(dense, self._there).square().sum(1)
        return squares.sqrt()

    def times(self, weight: Tensor) -> Tensor:
        """Rows times columns of weights."""
        parts = weight.detach().split(len(weight) // 2)
        own, spread = (torch.empty(self._nodes, weight.shape[1]) for _ in parts)
        for some, rows in self._blocks():
            own[some], spread[some] = (_product(rows, part) for part in parts)
        return own.add_(self._scale * _spread(spread, self._there))

    def transposed_times(self, values: Tensor) -> Tensor:
        """What every column adds up to, over the rows times their values."""
        spread = _spread(self._scale * values, self._back)
        sums = (
            torch.cat([_product(rows.T, v[some]) for v in (values, spread)])
            for some, rows in self._blocks()
        )
        return functools.reduce(torch.Tensor.add_, sums)


def _unit_rows(x: Tensor) -> sparse.csr_array | Tensor:
    if not is_sparse(x) and x.shape[1] <= MOST_DENSE:
        return F.normalize(x, dim=1)
    rows = as_csr(x)
    return scale_rows(rows, 1 / np.maximum(row_lengths(rows), 1e-12))


def _product(rows: Any, weight: Tensor) -> Tensor:
    if isinstance(rows, Tensor):
        return rows @ weight
    return torch.from_numpy(rows @ weight.contiguous().numpy())


def _spread(rows: Tensor, messages: Messages | StoredMessages) -> Tensor:
    return spread_rows(rows, messages, 2, 0.1)
