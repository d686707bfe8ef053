"""Settings for the tests of this directory."""

import pytest
import torch

import prices
from graphveil.methods import dpar_plan, gap_plan, graph_dpsgd, node, private


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Tensors are tiny here: threads would only spin, several times slower on shared cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True, scope="session")
def prices_are_remembered():
    """Hundreds of fits here cost the same."""
    with prices.remembered(private, node, gap_plan, dpar_plan, graph_dpsgd):
        yield
