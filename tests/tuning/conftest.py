"""Small graphs, quick settings, and a tuning run to start from."""

import pytest
from tuning_cases import QUICK, VARY, drawn_graph

import prices
from graphveil.graph.splits import split
from graphveil.methods import Facts, budget, class_weights, inference
from graphveil.tuning import Tuning, plan, values_of


@pytest.fixture(autouse=True, scope="session")
def prices_are_remembered():
    """Many runs here cost the same."""
    with prices.remembered(budget, inference, class_weights, plan) as patch:
        patch.setattr(plan, "epsilon_of", lambda event, delta: prices.price(event, delta).epsilon)
        yield


@pytest.fixture
def data():
    return split(drawn_graph(), seed=0)


@pytest.fixture
def facts(data):
    return Facts.of(data)


@pytest.fixture
def tuning():
    """A tuning run with quick settings, some of them replaced."""

    def call(method="dp-mlp", vary=VARY, **changed):
        # Steps are all that dp-mlp releases here; late-graph has sums beside them.
        alone = {"centred": False} if method == "dp-mlp" else {}
        settings = QUICK | alone | changed.pop("settings", {})
        asked = {"trials": 4, "epsilon": 4.0, "settings": settings} | changed
        return Tuning(
            method=method,
            vary={key: values_of(key, values) for key, values in vary.items()},
            **asked,
        )

    return call
