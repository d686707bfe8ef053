"""Features as networks read them: every row by itself, or through a public random matrix."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scipy import sparse
    from torch import Tensor
    from torch_geometric.data import Data


@dataclass(frozen=True, kw_only=True)
class Features:
    """What is done to features; see :class:`~graphveil.methods.settings.FeatureSettings`.

    *Guarantee*: row by row, so that it costs nothing. Public: all fields, and the number of
    columns.
    """

    how: str
    scale: float
    projection: int
    project_above: int
    seed: int

    @classmethod
    def of(cls, method: Any) -> Features:
        """Those that the settings of a method say."""
        return cls(
            how=method.features,
            scale=method.feature_scale,
            projection=method.projection,
            project_above=method.project_above,
            seed=method.seed,
        )

    def columns(self, num_features: int) -> int:
        """How many columns a network reads."""
        return self.projection if num_features > self.project_above else num_features

    def read(self, data: Data, *, keep_sparse: bool = False) -> Any:
        """The rows of a graph that a network reads; those of a store are read when they are asked.

        See :meth:`prepare`, and :class:`~graphveil.graph.lazy_rows.LazyRows`.
        """
        from graphveil.graph.lazy_rows import LazyRows
        from graphveil.graph.stored import is_stored

        if not is_stored(data):
            return self.prepare(data.x, keep_sparse=keep_sparse)
        make = partial(self.prepare, keep_sparse=keep_sparse)
        return LazyRows(data.x, make, self.columns(data.x.shape[1]))

    def prepare(self, x: Tensor, *, keep_sparse: bool = False) -> Tensor:
        """The rows that a network reads, of a dense or a sparse tensor.

        With ``keep_sparse`` those of a sparse tensor, and wide ones, come as a sparse tensor
        (``torch.sparse_csr``), unless they are projected.
        """
        from torch.nn import functional as F

        from graphveil.graph.sparse_rows import MOST_DENSE, as_tensor, is_sparse

        projected = x.shape[1] > self.project_above
        wide = keep_sparse and not projected and x.shape[1] > MOST_DENSE
        if is_sparse(x) or wide:
            rows = self._prepare_sparse(x)
            if not projected:
                return as_tensor(rows) if keep_sparse else as_tensor(rows).to_dense()
            x = self._project(as_tensor(rows))
        else:
            x = x.float()
            if self.how == "power":
                x = x.sign() * x.abs().sqrt()
            if projected:
                x = self._project(F.normalize(x, dim=1) if self.how != "raw" else x)
        return x if self.how == "raw" else self.scale * F.normalize(x, dim=1)

    def _prepare_sparse(self, x: Tensor) -> sparse.csr_array:
        """Square roots and lengths keep zeros; rows that are to be projected have length 1."""
        import numpy as np

        from graphveil.graph.sparse_rows import as_csr, row_lengths, scale_rows

        rows = as_csr(x).astype(np.float32)
        if self.how == "power":
            rows.data = np.sign(rows.data) * np.sqrt(np.abs(rows.data))
        if self.how == "raw":
            return rows
        scale = 1.0 if x.shape[1] > self.project_above else self.scale
        return scale_rows(rows, scale / np.maximum(row_lengths(rows), 1e-12))

    def matrix(self, columns: int) -> Tensor:
        """The public random matrix that so many columns are projected by."""
        import torch

        from graphveil.rng import seeded

        generator = seeded(self.seed, "projection").torch_generator()
        drawn = torch.randn(columns, self.projection, generator=generator)
        return drawn / self.projection**0.5

    def _project(self, x: Tensor) -> Tensor:
        return x @ self.matrix(x.shape[1])
