"""Arrays in files that nobody else sees."""

import errno
import os
import tempfile

import numpy as np
import pytest
import torch

from graphveil import InvalidInputError
from graphveil.graph.scratch import scratch, scratch_file, scratch_tensor


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_an_array_is_in_a_file_without_a_name(folder):
    array = scratch((300, 7), np.int32)
    array[:] = np.arange(2100).reshape(300, 7)
    assert isinstance(array, np.memmap)
    assert list(folder.iterdir()) == []
    assert array.sum() == 2099 * 2100 // 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_tensor_outlives_what_made_it(dtype):
    tensor = scratch_tensor((40, 3), dtype)
    assert tensor.dtype == dtype
    tensor[:] = 2.0
    part = tensor[10:20]
    del tensor
    assert float(part.sum()) == 60.0


@pytest.mark.parametrize("shape", [(0,), (0, 4), (4, 0)])
def test_nothing_needs_no_file(shape):
    assert scratch(shape, np.float32).shape == shape


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="room is not taken at once here")
def test_a_full_disk_is_said_before_anything_is_written(folder, monkeypatch):
    def refuse(file, offset, size):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with pytest.raises(InvalidInputError, match=r"room for 4,000 bytes.*TMPDIR") as refused:
        scratch((1000,), np.int32)
    assert str(folder) in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="room is not taken at once here")
def test_a_file_has_its_room_from_the_start():
    with scratch_file(123_456) as file:
        assert os.fstat(file.fileno()).st_size == 123_456
        assert os.fstat(file.fileno()).st_blocks * 512 >= 123_456
