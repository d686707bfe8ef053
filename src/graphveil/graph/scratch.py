"""Arrays in files that nobody else sees: what does not fit in memory, and is gone afterwards."""

from __future__ import annotations

import tempfile
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def scratch(shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    """An array in a file without a name, in the folder for temporary files (``TMPDIR``).

    It goes with the last that refers to it, or with the process.
    """
    if not all(shape):
        return np.empty(shape, dtype)
    with tempfile.TemporaryFile() as file:
        return np.memmap(file, dtype, "w+", shape=shape)


def scratch_tensor(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Tensor:
    """A tensor over such a file."""
    return torch.from_numpy(scratch(shape, torch.empty(0, dtype=dtype).numpy().dtype))
