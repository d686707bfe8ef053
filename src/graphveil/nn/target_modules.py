"""Modules that hold a table of targets, which they know by their places."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch
from scipy import sparse
from torch import Tensor, nn


class PopularTargets(nn.Module):
    """How often each target is linked, perhaps through noise."""

    knows_targets: ClassVar[bool] = True
    popularity: Tensor

    def __init__(self, num_targets: int) -> None:
        super().__init__()
        self.register_buffer("popularity", torch.zeros(num_targets, dtype=torch.float64))


class SimilarTargets(nn.Module):
    """Row i names the targets that are most like target i, and how much; zeros fill it up."""

    knows_targets: ClassVar[bool] = True
    others: Tensor
    likeness: Tensor

    def __init__(self, num_targets: int, similar: int) -> None:
        super().__init__()
        self.register_buffer("others", torch.zeros(num_targets, similar, dtype=torch.long))
        self.register_buffer("likeness", torch.zeros(num_targets, similar))

    def matrix(self) -> Any:
        """The sparse matrix (targets, targets)."""
        count, similar = self.others.shape
        rows = np.arange(count + 1) * similar
        parts = self.likeness.cpu().numpy().ravel(), self.others.cpu().numpy().ravel(), rows
        table = sparse.csr_array(parts, shape=(count, count))
        table.sum_duplicates()
        return table
