"""A student: what a private model believes of a graph, learned once more from that graph alone.

A private model errs where noise in its weights pushes it, which has nothing to do with the graph it
is shown. A linear model that learns the private model's beliefs from the rows of that graph, own
and smoothed, can follow what is common to many nodes and not the noise.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from scipy import sparse
from torch import Tensor
from torch.nn import functional as F

from graphveil.graph.messages import Messages
from graphveil.graph.propagation import spread_rows

_ITERATIONS = 30


def teach_student(beliefs: Tensor, x: Tensor, messages: Messages, decay: float) -> Tensor:
    """Log-probabilities (nodes, classes) of a linear model that was taught ``beliefs``.

    Multinomial regression on each node's unit row beside its smoothed one, with ``decay`` times
    half the squared weights, by L-BFGS from zero.

    *Guarantee*: none to the nodes of this graph, all of whose rows it reads in the open; to those
    that the private model was trained on, post-processing of its weights.
    """
    own = F.normalize(x, dim=1)
    rows = torch.cat([own, F.normalize(spread_rows(own, messages, 2, 0.1), dim=1)], 1)
    down, up = _times(rows), _times(rows.t())
    nodes = len(rows)
    weight = torch.zeros(rows.shape[1], beliefs.shape[1], requires_grad=True)
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


def _times(rows: Tensor) -> Callable[[Tensor], Tensor]:
    """Products with a matrix, which may be mostly zeros."""
    if (rows != 0).float().mean() >= 0.2:
        return lambda weight: rows @ weight
    matrix = sparse.csr_array(rows.numpy())
    return lambda weight: torch.from_numpy(matrix @ weight.detach().numpy())
