"""The clipped sum for multinomial regression on rows of mostly zeros.

The gradient of one example is the outer product of its residual and its row, so norms and sums need
no backward pass, and products cost what the rows hold: the sum of
:class:`~graphveil.grads.clipped.ClippedSum`, many times faster on bags of words.

Everything is in float64. Sparse products add one row after the other: in float32 rounding alone, on
rows laid out for it, moves a sum of 100,000 terms by many bounds when one of them is left out.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from scipy import sparse
from torch import Tensor, nn
from torch.nn import functional as F

from graphveil._errors import InvalidInputError
from graphveil.grads.clipping import Clipping
from graphveil.grads.modules import empty_sum, noise_units, trained_blocks
from graphveil.grads.rules import PAY_FOR_SUMS

# Norms are in float64. Sums add one row after the other: 2 n 2^-53 n of the bound for n rows that
# share a column, 100,000 of them within what is paid.
_ENLARGE = (1 + 1e-12) * PAY_FOR_SUMS


class SparseExamples:
    """Examples that are sparse rows with a label each; a negative label has no loss.

    A row with an entry that is not finite counts for nothing.
    """

    def __init__(self, rows: sparse.csr_array, labels: Tensor) -> None:
        if rows.shape[0] != len(labels):
            raise InvalidInputError(
                f"Rows and labels must be as many. Got {rows.shape[0]} and {len(labels)} instead."
            )
        self.rows, self.labels = sparse.csr_array(rows, dtype=np.float64), labels.clone()
        owner = np.repeat(np.arange(len(labels)), np.diff(self.rows.indptr))
        broken = np.unique(owner[~np.isfinite(self.rows.data)])
        self.rows.data[np.isin(owner, broken)] = 0.0
        self.labels[torch.from_numpy(broken)] = -1
        squares = np.bincount(owner, self.rows.data**2, minlength=len(labels))
        self.squares = torch.from_numpy(squares)

    def __len__(self) -> int:
        return len(self.labels)

    def batches(self, drawn: Tensor) -> Iterable[tuple[sparse.csr_array, Tensor, Tensor]]:
        """All that were drawn, at once: rows, their squared lengths, labels."""
        if len(drawn) == len(self):
            yield self.rows, self.squares, self.labels
        else:
            yield self.rows[drawn.numpy()], self.squares[drawn], self.labels[drawn]


class LinearSum:
    """The clipped sum of a module that is one linear layer, over :class:`SparseExamples`."""

    def __init__(self, module: nn.Module, clipping: Clipping) -> None:
        self.module, self.clipping = module, clipping
        self.seen, self.loss = 0, 0.0  # examples in the last sum, and their losses; both private
        (block, layer), *others = trained_blocks(module, clipping).items()
        if others or not isinstance(layer, nn.Linear) or layer.bias is None:
            kinds = ", ".join(type(one).__name__ for one in (layer, *dict(others).values()))
            raise InvalidInputError(
                f"The module must be one linear layer with a bias. Got {kinds} instead."
            )
        self._block, self._layer = block, layer

    @property
    def scales(self) -> dict[str, float]:
        """The noise unit of every parameter (see :mod:`graphveil.grads.clipping`)."""
        return noise_units(self.module, self.clipping, [self._block])

    @torch.no_grad()
    def __call__(
        self, batches: Iterable[tuple[sparse.csr_array, Tensor, Tensor]]
    ) -> dict[str, Tensor]:
        """The clipped sum over all examples of all ``batches``, by parameter name; float64."""
        total = empty_sum(self.module)
        self.seen, self.loss = 0, 0.0
        weight, bias = self._layer.weight.double(), self._layer.bias.double()
        within = f"{self._block}." if self._block else ""
        for rows, squares, labels in batches:
            logits = torch.from_numpy(rows @ weight.t().contiguous().numpy()) + bias
            known = labels.clamp_min(-1)  # those without a label add nothing
            losses = F.cross_entropy(logits, known, reduction="none", ignore_index=-1)
            self.seen += len(losses)
            self.loss += float(losses.sum())
            residual = logits.softmax(1) - F.one_hot(labels.clamp_min(0), logits.shape[1])
            residual *= (labels >= 0).unsqueeze(1)
            # A norm is never read too small: rounding makes it larger, if anything.
            norms = residual.square().sum(1) * (squares + 1.0) * _ENLARGE
            factor = self.clipping.factors({self._block: norms})[self._block]
            clipped = torch.where(factor.unsqueeze(1) > 0, residual * factor.unsqueeze(1), 0.0)
            total[f"{within}weight"] += torch.from_numpy(rows.T @ clipped.numpy()).t()
            total[f"{within}bias"] += clipped.sum(0)
        return total
