"""Prices that tests ask for again and again: each noise is sought, and each event priced, once."""

from contextlib import contextmanager

import pytest

from graphveil.privacy import accounting, guarantee

_KNOWN = {}


def calibrate(make_event, **settings):
    """The accountant's, which remembers."""
    key = repr((make_event(1.0), make_event(2.0), settings))
    if key not in _KNOWN:
        _KNOWN[key] = accounting.calibrate(make_event, **settings)
    return _KNOWN[key]


def price(event, delta):
    """The accountant's, which remembers."""
    key = repr((event, delta))
    if key not in _KNOWN:
        _KNOWN[key] = accounting.price(event, delta)
    return _KNOWN[key]


@contextmanager
def remembered(*modules):
    """Have ``modules`` ask for noise here, and every certificate for its price."""
    with pytest.MonkeyPatch.context() as patch:
        for module in modules:
            patch.setattr(module, "calibrate", calibrate)
        patch.setattr(guarantee, "price", price)
        yield patch
