"""Settings for the tests of this directory."""

import pytest
import torch


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Tensors are tiny here: threads would only spin, several times slower on shared cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
