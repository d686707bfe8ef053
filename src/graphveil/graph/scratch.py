"""Arrays in files that nobody else sees: what does not fit in memory, and is gone afterwards."""

from __future__ import annotations

import contextlib
import errno
import math
import os
import tempfile
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from graphveil._errors import InvalidInputError

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@contextlib.contextmanager
def scratch_file(size: int) -> Iterator[Any]:
    """A file without a name, in the folder for temporary files (``TMPDIR``), for so many bytes.

    Their room is taken at once: a disk that is full says so here.
    """
    with tempfile.TemporaryFile() as file:
        try:
            if hasattr(os, "posix_fallocate"):  # not on macOS
                os.posix_fallocate(file.fileno(), 0, size)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT):
                raise
            raise InvalidInputError(
                f"The folder for temporary files must have room for {size:,} bytes. Got "
                f"{tempfile.gettempdir()} instead, which has not; name another by TMPDIR."
            ) from error
        yield file


def scratch(shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    """An array in such a file, which goes with the last that refers to it."""
    if not all(shape):
        return np.empty(shape, dtype)
    with scratch_file(math.prod(shape) * np.dtype(dtype).itemsize) as file:
        return np.memmap(file, dtype, "w+", shape=shape)


def scratch_tensor(shape: tuple[int, ...], dtype: torch.dtype | None = None) -> Tensor:
    """A tensor over such a file, of float32 by default."""
    import torch

    return torch.from_numpy(scratch(shape, torch.empty(0, dtype=dtype).numpy().dtype))
