"""Small graphs, quick settings, and a tuning run to start from."""

import pytest
import torch
from tuning_cases import QUICK, VARY, drawn_graph

from graphveil.graph.splits import split
from graphveil.methods import Facts, dpar_plan, gap_plan, private
from graphveil.privacy import guarantee
from graphveil.tuning import Tuning, plan, values_of


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True, scope="session")
def prices_are_remembered():
    """Many runs here cost the same: each noise is sought, and each event priced, once."""
    known, calibrate, account = {}, private.calibrate, guarantee.account

    def remembered_noise(make_event, **settings):
        key = repr((make_event(1.0), make_event(2.0), settings))
        if key not in known:
            known[key] = calibrate(make_event, **settings)
        return known[key]

    def remembered_price(event, delta):
        key = repr((event, delta))
        if key not in known:
            known[key] = account(event, delta)
        return known[key]

    with pytest.MonkeyPatch.context() as patch:
        for module in (private, gap_plan, dpar_plan, plan):
            patch.setattr(module, "calibrate", remembered_noise)
        patch.setattr(guarantee, "account", remembered_price)
        patch.setattr(plan, "price", lambda event, delta: remembered_price(event, delta).epsilon)
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
        settings = QUICK | changed.pop("settings", {})
        asked = {"trials": 4, "epsilon": 4.0, "settings": settings} | changed
        return Tuning(
            method=method,
            vary={key: values_of(key, values) for key, values in vary.items()},
            **asked,
        )

    return call
