r"""The clipped sum for a linear scorer of pairs, in closed form.

A source's row h becomes z = A h + c by one linear layer, and the score of a target with the row f
is z . f. With e = softmax(scores) - (1, 0, ..., 0), the loss of a pair has the gradient b = sum_j
e_j f_j at z. So a term that is a mean over k pairs has the gradient

    1/k \sum_p b_p (h_p, 1)^T,

whose norm and weighted sums follow from the rows b_p and h_p by the rule of a linear layer
(:class:`~graphveil.grads.rules.LinearRule`). There is no backward pass and no gradient per term.

Everything is in float64, products row by row and by one thread (:mod:`graphveil.grads.products`):
a term does not know its company.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from graphveil._errors import InvalidInputError
from graphveil.grads.clipping import Clipping
from graphveil.grads.modules import empty_sum, noise_units, trained_blocks
from graphveil.grads.own_rows import one_thread
from graphveil.grads.products import RowByRow
from graphveil.grads.rows import Rows
from graphveil.grads.rules import Call, LinearRule
from graphveil.graph.link_terms import PairBatch

BLOCK = "linear"  # the one layer of a scorer that this sum can read
# How far rounding may move a step's sum when one term leaves it, in bounds, is paid for as in
# graphveil.grads.rules. Of T terms with P pairs together, which may cancel within a term, it is
# 2 (1024 + P / 1024) 2^-53 256 T. That is below 2^-11 for three million pairs, two in a term or
# more; a term of one pair does not cancel.
PAY_FOR_PAIRS = (1 + 2.0**-11) ** 2


class PairSum:
    """The clipped sum over :class:`~graphveil.graph.link_terms.PairBatch`, as ClippedSum has it.

    The module's one trained layer is its ``linear``.
    """

    def __init__(self, module: nn.Module, losses: Any, clipping: Clipping) -> None:
        self.module, self.clipping = module, clipping
        self.seen, self.loss = 0, 0.0  # terms in the last sum, and their losses; both private
        blocks = trained_blocks(module, clipping)
        layer = blocks.get(BLOCK)
        if len(blocks) != 1 or type(layer) is not nn.Linear or layer.bias is None:
            raise InvalidInputError(
                "A sum over pairs in closed form must have one linear layer to train. Got "
                f"{', '.join(blocks)} instead; take ClippedSum."
            )
        self.layer: nn.Linear = layer

    @property
    def scales(self) -> dict[str, float]:
        """The noise unit of every parameter (see :mod:`graphveil.grads.clipping`)."""
        return noise_units(self.module, self.clipping, [BLOCK])

    @torch.no_grad()
    def __call__(self, batches: Iterable[PairBatch]) -> dict[str, Tensor]:
        """The clipped sum over all terms of all ``batches``, by parameter name; float64."""
        total = empty_sum(self.module)
        weight, bias = self.layer.weight.double(), self.layer.bias.double()
        self.seen, self.loss = 0, 0.0
        with one_thread():
            for batch in batches:
                self._add(total, weight, bias, batch)
        return total

    def _add(
        self, total: dict[str, Tensor], weight: Tensor, bias: Tensor, batch: PairBatch
    ) -> None:
        """Add the clipped gradients of a few terms to ``total``."""
        with RowByRow():
            gradients, losses = pair_gradients(batch, F.linear(batch.rows, weight, bias))
            share = batch.share.unsqueeze(1)
            call = Call((batch.rows,), gradients * share, Rows(batch.owner, batch.count))
            rule = LinearRule(self.layer, [call], batch.count)
            factor = self.clipping.factors({BLOCK: rule.squared_norms() * PAY_FOR_PAIRS})[BLOCK]
            for name, value in rule.weighted_sum(factor).items():
                total[f"{BLOCK}.{name}"] += value
        self.seen += batch.count
        self.loss += float((losses * share.squeeze(1)).sum())


def pair_gradients(batch: PairBatch, z: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient of each pair's loss at ``z``, and the loss."""
    table, own = batch.table, batch.table[batch.positive]
    mine = (z * own).sum(1, keepdim=True)
    shared = batch.negative.dim() == 1
    others = table[batch.negative]
    if shared:
        scores = F.linear(z, others)
    else:
        scores = (z.unsqueeze(1) * others).sum(2)
    logs = torch.cat([mine, scores], 1).log_softmax(1)
    errors = logs.exp()
    # The target's own error is minus the others': so small ones do not cancel.
    # A view would be laid out by how many pairs there are, which products must not know.
    rest = errors[:, 1:].contiguous()
    if shared:
        pulled = F.linear(rest, others.t().contiguous())
    else:
        pulled = (rest.unsqueeze(2) * others).sum(1)
    return pulled - rest.sum(1, keepdim=True) * own, -logs[:, 0]
