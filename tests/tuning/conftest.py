"""Small graphs, quick settings, and a tuning run to start from."""

import pytest
import torch
from tuning_cases import QUICK, VARY, drawn_graph

from graphveil.graph.splits import split
from graphveil.methods import Facts
from graphveil.tuning import Tuning, values_of


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


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
        settings = QUICK | changed.pop("settings", {})
        asked = {"trials": 4, "epsilon": 4.0, "settings": settings} | changed
        return Tuning(
            method=method,
            vary={key: values_of(key, values) for key, values in vary.items()},
            **asked,
        )

    return call
