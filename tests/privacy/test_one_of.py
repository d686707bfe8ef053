"""One of several events: the largest divergence at each order, and why that is enough."""

import math

import dp_accounting as dpa
import numpy as np
import pytest
from dp_accounting import dp_event

from graphveil._errors import InvalidInputError, UnsupportedEventError
from graphveil.privacy import _rdp, accounting
from graphveil.privacy.events import OneOfDpEvent, SampledGaussianDpEvent, one_of, repeated

FEW = repeated(SampledGaussianDpEvent(rate=0.5, noise_multiplier=2.0), 50)
MANY = repeated(SampledGaussianDpEvent(rate=0.05, noise_multiplier=0.9), 400)


def rdp(event):
    return _rdp.RdpAccountant().compose(event).rdp


def test_it_costs_at_each_order_what_the_dearer_one_does():
    few, many, either = rdp(FEW), rdp(MANY), rdp(OneOfDpEvent([FEW, MANY]))
    assert (few > many).any()  # the curves cross, so that neither event would do for both
    assert (many > few).any()
    np.testing.assert_array_equal(either, np.maximum(few, many))
    np.testing.assert_allclose(rdp(repeated(OneOfDpEvent([FEW, MANY]), 3)), 3 * either)


def test_a_mixture_of_known_parts_is_never_dearer_than_the_dearest():
    """The law in the docstring, against the divergence of two explicit mixtures by summation."""
    random = np.random.default_rng(0)
    for _ in range(200):
        weights, order = random.dirichlet(np.ones(3)), random.uniform(1.05, 30)
        present, withheld = random.dirichlet(np.ones(5), 3), random.dirichlet(np.ones(5), 3)
        each = np.log((present**order * withheld ** (1 - order)).sum(1)) / (order - 1)
        joint_present, joint_withheld = (weights[:, None] * law for law in (present, withheld))
        total = (joint_present**order * joint_withheld ** (1 - order)).sum()
        divergence = math.log(total) / (order - 1)
        assert divergence <= each.max() + 1e-9
        mixed = math.log(weights @ np.exp((order - 1) * each)) / (order - 1)
        assert divergence == pytest.approx(mixed, rel=1e-9)


def test_it_has_no_loss_distribution_wherever_it_stands():
    for event in (
        OneOfDpEvent([FEW, MANY]),
        dpa.ComposedDpEvent([FEW, OneOfDpEvent([FEW, MANY])]),
        dp_event.RepeatAndSelectDpEvent(OneOfDpEvent([FEW, dpa.ComposedDpEvent([FEW])]), 4.0, 0.0),
    ):
        priced = accounting.price(event, 1e-5)
        assert priced.pld is None
        assert priced.notes[0].endswith("is bounded by its Renyi divergences only.")
        assert priced.epsilon == priced.rdp > 0


def test_equal_events_count_once():
    assert one_of(FEW, FEW) == FEW
    assert one_of(FEW, MANY, FEW) == OneOfDpEvent([FEW, MANY])


def test_what_makes_no_sense_is_refused():
    with pytest.raises(InvalidInputError, match="Got none"):
        OneOfDpEvent([])
    with pytest.raises(UnsupportedEventError):
        accounting.price(OneOfDpEvent([FEW, dpa.UnsupportedDpEvent()]), 1e-5)
    assert accounting.price(OneOfDpEvent([FEW, dpa.NonPrivateDpEvent()]), 1e-5).epsilon == (
        math.inf
    )
    for mean, shape in ((0.5, 1.0), (math.nan, 1.0), (2.0, -0.5)):
        with pytest.raises(InvalidInputError, match=r"mean|shape"):
            accounting.price(dp_event.RepeatAndSelectDpEvent(FEW, mean, shape), 1e-5)
