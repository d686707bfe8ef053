"""Settings for the tests of this directory."""

import pytest

import prices
from graphveil.audit import mechanism
from graphveil.methods import budget, class_weights, inference


@pytest.fixture(autouse=True, scope="session")
def prices_are_remembered():
    """Many fits here cost the same, and so do many releases that are drawn."""
    with prices.remembered(budget, inference, class_weights) as patch:
        patch.setattr(
            mechanism, "epsilon_of", lambda event, delta: prices.price(event, delta).epsilon
        )
        yield
