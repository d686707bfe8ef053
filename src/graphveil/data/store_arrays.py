"""Arrays that grow at their end on disk, and say how long they are once they are finished.

They are plain ``.npy`` files from their first byte, with a header of a fixed size whose shape is
written last.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphveil._files import open_file

_HEADER = 128  # bytes
_MAGIC = b"\x93NUMPY\x01\x00"


class GrowingArray:
    """An array at ``path`` that takes more rows at its end; ``row_shape`` is of one of them.

    ``rows`` is how many it holds already: what stands behind them, from a build that was
    interrupted, is cut off.
    """

    def __init__(
        self, path: Path, dtype: Any, row_shape: tuple[int, ...] = (), *, rows: int = 0
    ) -> None:
        self.path, self.dtype, self.row_shape = path, np.dtype(dtype), row_shape
        self.rows = rows
        self._row_bytes = self.dtype.itemsize * int(np.prod(row_shape, dtype=np.int64))
        self._file = open_file(path, "r+b" if rows and path.exists() else "w+b", private=True)
        size = _HEADER + rows * self._row_bytes
        if os.fstat(self._file.fileno()).st_size < size and rows:
            self._file.close()
            raise EOFError(f"{path} is shorter than it was")
        self._file.truncate(size)
        self._file.seek(size)

    def append(self, values: NDArray[Any]) -> None:
        """Add rows, in the type of this array."""
        values = np.ascontiguousarray(values, self.dtype)
        if len(values) and self._row_bytes:
            self._file.write(values.reshape(-1).view(np.uint8).data)
        self.rows += len(values)

    def sync(self) -> None:
        """Put on disk what was added."""
        self._file.flush()
        os.fsync(self._file.fileno())

    def finish(self) -> None:
        """Write the shape, and close."""
        self._file.flush()
        self._file.seek(0)
        self._file.write(_header(self.dtype, (self.rows, *self.row_shape)))
        self.sync()
        self._file.close()

    def close(self) -> None:
        """Close, and leave the array unfinished."""
        try:
            self._file.close()
        except OSError:  # what is buffered does not fit on the disk; it counts for nothing
            self._file.raw.close()  # type: ignore[attr-defined]


def _header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    kind = np.lib.format.dtype_to_descr(dtype)
    text = str({"descr": kind, "fortran_order": False, "shape": shape}).encode()
    room = _HEADER - len(_MAGIC) - 2
    return _MAGIC + room.to_bytes(2, "little") + text.ljust(room - 1) + b"\n"
