"""Settings for the tests of this directory."""

import pytest
import torch

from graphveil.methods import dpar_plan, gap_plan, node, private
from graphveil.privacy import guarantee

_PRICES = {}


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Tensors are tiny here: threads would only spin, several times slower on shared cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True, scope="session")
def prices_are_remembered():
    """Hundreds of fits here cost the same: each noise is sought, and each event priced, once."""
    calibrate, account = node.calibrate, guarantee.account

    def remembered_noise(make_event, **settings):
        key = repr((make_event(1.0), make_event(2.0), settings))
        if key not in _PRICES:
            _PRICES[key] = calibrate(make_event, **settings)
        return _PRICES[key]

    def remembered_price(event, delta):
        key = repr((event, delta))
        if key not in _PRICES:
            _PRICES[key] = account(event, delta)
        return _PRICES[key]

    with pytest.MonkeyPatch.context() as patch:
        for module in (private, node, gap_plan, dpar_plan):
            patch.setattr(module, "calibrate", remembered_noise)
        patch.setattr(guarantee, "account", remembered_price)
        yield
