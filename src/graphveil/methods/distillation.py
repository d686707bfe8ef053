"""A student: what a private model believes of a graph, learned once more from that graph alone.

A private model errs where noise in its weights pushes it, which has nothing to do with the graph it
is shown. A linear model that learns the private model's beliefs from the rows of that graph, own
and smoothed, can follow what is common to many nodes and not the noise.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from scipy import sparse
from torch import Tensor
from torch.nn import functional as F

from graphveil.graph.messages import Messages
from graphveil.graph.propagation import spread_rows
from graphveil.graph.sparse_rows import MOST_DENSE, as_csr, is_sparse, row_lengths, scale_rows

_ITERATIONS = 30
_COLUMNS_AT_ONCE = 256  # that are spread together, to measure rows


def teach_student(beliefs: Tensor, x: Tensor, messages: Messages, decay: float) -> Tensor:
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
    own: Tensor, heard: Tensor, x: Tensor, messages: Messages, noise: float
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

    Only the first half is held. Spreading is linear, so that products with the second half spread
    what comes of products with the first: sparse rows stay as sparse as they are.
    """

    def __init__(self, x: Tensor, messages: Messages) -> None:
        back = Messages(messages.edge_index.flip(0), messages.weight, messages.self_weight)
        self._there, self._back = messages, back
        self._own: sparse.csr_array | Tensor
        if is_sparse(x) or x.shape[1] > MOST_DENSE:
            rows = as_csr(x)
            self._own = scale_rows(rows, 1 / np.maximum(row_lengths(rows), 1e-12))
        else:
            self._own = F.normalize(x, dim=1)
        self._scale = 1 / self._spread_lengths(x.shape[1]).clamp_min(1e-12).unsqueeze(1)

    def _spread_lengths(self, columns: int) -> Tensor:
        """Of rows that were spread, a few columns at a time."""
        squares = torch.zeros(self._own.shape[0])
        for start in range(0, columns, _COLUMNS_AT_ONCE):
            part = self._own[:, start : start + _COLUMNS_AT_ONCE]
            dense = part if isinstance(part, Tensor) else torch.from_numpy(part.toarray())
            squares += _spread(dense, self._there).square().sum(1)
        return squares.sqrt()

    def times(self, weight: Tensor) -> Tensor:
        """Rows times columns of weights."""
        weight = weight.detach()
        own, spread = weight.split(len(weight) // 2)
        return self._product(own) + self._scale * _spread(self._product(spread), self._there)

    def transposed_times(self, values: Tensor) -> Tensor:
        """What every column adds up to, over the rows times their values."""
        spread = _spread(self._scale * values, self._back)
        own = self._own
        if isinstance(own, Tensor):
            return torch.cat([own.t() @ values, own.t() @ spread])
        return torch.cat([torch.from_numpy(own.T @ v.numpy()) for v in (values, spread)])

    def _product(self, weight: Tensor) -> Tensor:
        if isinstance(self._own, Tensor):
            return self._own @ weight
        return torch.from_numpy(self._own @ weight.contiguous().numpy())


def _spread(rows: Tensor, messages: Messages) -> Tensor:
    return spread_rows(rows, messages, 2, 0.1)
