"""Settings for the tests of this directory."""

import pytest

import prices
from graphveil.methods import budget, class_weights, inference


@pytest.fixture(autouse=True, scope="session")
def prices_are_remembered():
    """Hundreds of fits here cost the same."""
    with prices.remembered(budget, inference, class_weights):
        yield
