"""Settings for the tests of this directory."""

import pytest

import prices
from graphveil.methods import dpar_plan, gap_plan, graph_dpsgd, node, private


@pytest.fixture(autouse=True, scope="session")
def prices_are_remembered():
    """Hundreds of fits here cost the same."""
    with prices.remembered(private, node, gap_plan, dpar_plan, graph_dpsgd):
        yield
