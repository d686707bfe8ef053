"""Settings for the tests of this directory."""

import pytest

import prices
from graphveil.methods import budget, graph_dpsgd, inference


@pytest.fixture(autouse=True, scope="session")
def prices_are_remembered():
    """Many fits here cost the same."""
    with prices.remembered(budget, inference, graph_dpsgd):
        yield
