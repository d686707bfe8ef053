"""Rows of which what is not zero is kept: tensors of torch, matrices of scipy, and back.

Features may be a sparse tensor (``torch.sparse_csr``, ``torch.sparse_coo``). Its layout is public,
as its shape is; nothing here decides by what rows hold.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

MOST_DENSE = 1024  # columns; wider rows are kept sparse, whatever they hold
LAYOUTS = (torch.sparse_csr, torch.sparse_coo)  # that features may have
_ROWS_AT_ONCE = 2048  # of a dense matrix that are made sparse together


def is_sparse(rows: Tensor) -> bool:
    """Whether a tensor holds what is not zero alone."""
    return rows.layout != torch.strided


def values_of(rows: Tensor) -> Tensor:
    """What a tensor holds: all of it, or what is not zero."""
    if not is_sparse(rows):
        return rows
    return rows.values() if rows.layout == torch.sparse_csr else rows.coalesce().values()


def as_csr(rows: Any) -> sparse.csr_array:
    """A tensor of any layout, or a matrix of scipy, as a sparse one; values may be shared.

    Every column stands in a row once: products add up what stands there twice, and lengths that
    are read off single entries would miss it.
    """
    if not isinstance(rows, Tensor):
        made = sparse.csr_array(rows)
        return _once((made.data, made.indices, made.indptr), made.shape)
    if not is_sparse(rows):
        pieces = [sparse.csr_array(piece.numpy()) for piece in rows.split(_ROWS_AT_ONCE)]
        return pieces[0] if len(pieces) == 1 else sparse.csr_array(sparse.vstack(pieces, "csr"))
    if rows.layout != torch.sparse_csr:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # torch calls the layout new
            rows = rows.to_sparse_csr()
    parts = rows.values(), rows.col_indices(), rows.crow_indices()
    return _once(tuple(part.numpy() for part in parts), tuple(rows.shape))


def _once(parts: tuple[Any, ...], shape: tuple[int, ...]) -> sparse.csr_array:
    """A matrix of these parts that names no column twice in a row, whatever was noted of it."""
    made = sparse.csr_array(parts, shape=shape)
    if not made.has_canonical_format:
        made = made.copy()
        made.sum_duplicates()
    return made


def is_sound(rows: Tensor) -> bool:
    """Whether what a sparse tensor holds stands inside it; torch itself does not look."""
    if rows.layout == torch.sparse_coo:
        places, sizes = rows._indices(), torch.tensor(rows.shape).unsqueeze(1)
        return bool(((places >= 0) & (places < sizes)).all())
    starts, columns = rows.crow_indices(), rows.col_indices()
    ends = len(starts) == rows.shape[0] + 1 and int(starts[0]) == 0
    ends = ends and int(starts[-1]) == len(columns) == len(rows.values())
    inside = bool(((columns >= 0) & (columns < rows.shape[1])).all())
    return ends and inside and bool((starts.diff() >= 0).all())


def as_tensor(rows: sparse.csr_array) -> Tensor:
    """A matrix of scipy as a sparse tensor; values may be shared."""
    rowptr, columns, values = map(torch.from_numpy, (rows.indptr, rows.indices, rows.data))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch calls the layout new
        return torch.sparse_csr_tensor(
            rowptr, columns, values, size=rows.shape, check_invariants=False
        )


def take_rows(rows: Tensor, which: Tensor) -> Tensor:
    """Some rows of a tensor of any layout, by a mask or by ids."""
    if not is_sparse(rows):
        return rows[which]
    ids = which.nonzero().flatten() if which.dtype == torch.bool else which
    return as_tensor(as_csr(rows)[ids.numpy()])


def take_columns(rows: Tensor, which: list[int]) -> Tensor:
    """Some columns of a tensor of any layout, in this order."""
    return rows[:, which] if not is_sparse(rows) else as_tensor(as_csr(rows)[:, which])


def row_lengths(rows: sparse.csr_array) -> np.ndarray[Any, Any]:
    """The Euclidean length of every row."""
    owner = np.repeat(np.arange(rows.shape[0]), np.diff(rows.indptr))
    squares = np.bincount(owner, rows.data.astype(np.float64) ** 2, minlength=rows.shape[0])
    lengths: np.ndarray[Any, Any] = np.sqrt(squares)
    return lengths


def scale_rows(rows: sparse.csr_array, by: np.ndarray[Any, Any]) -> sparse.csr_array:
    """Every row times a number of its own."""
    factors = np.repeat(by, np.diff(rows.indptr))
    data = (rows.data * factors).astype(rows.data.dtype)
    return sparse.csr_array((data, rows.indices, rows.indptr), shape=rows.shape)


def mask_rows(rows: Tensor, kept: Tensor) -> Tensor:
    """The same rows, with zeros in those that are not kept."""
    if not is_sparse(rows):
        return torch.where(kept.unsqueeze(1), rows, 0.0)
    return as_tensor(scale_rows(as_csr(rows), kept.numpy().astype(np.float64)))


def arrays_of(values: Tensor) -> Iterator[np.ndarray[Any, Any]]:
    """What a tensor of any layout holds, zeros included, one part after the other."""
    if not is_sparse(values):
        yield values.contiguous().numpy()
        return
    rows = as_csr(values)
    for start in range(0, rows.shape[0], _ROWS_AT_ONCE):
        yield rows[start : start + _ROWS_AT_ONCE].toarray()
