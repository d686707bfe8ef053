"""Composition: directions stay apart, and what is one release is priced as one."""

import dp_accounting as dpa
import pytest

from graphveil.privacy import _pld, accounting
from graphveil.privacy.events import SampledGaussianDpEvent, composed, repeated


def test_directions_are_not_mixed():
    """Like composes with like: the worse direction of each event would cost more."""
    parts = [
        (SampledGaussianDpEvent(rate=0.02, noise_multiplier=0.7), 40),
        (SampledGaussianDpEvent(rate=0.5, noise_multiplier=6.0, altered=3), 40),
    ]
    whole = accounting.epsilon_of(composed(*(repeated(*part) for part in parts)), 1e-6)
    losses = [(_pld.discretise(event, 1e-3), count) for event, count in parts]
    each = [
        _pld.Composition([(directions[k], count) for directions, count in losses]).epsilon(1e-6)
        for k in (0, 1)
    ]
    assert each[0] != pytest.approx(each[1], rel=0.01)
    assert whole == pytest.approx(max(each), rel=2e-3)


@pytest.mark.parametrize("place", ["root", "inside"])
def test_gaussians_on_one_sample_are_one_gaussian_wherever_they_stand(place):
    inner = dpa.ComposedDpEvent([repeated(dpa.GaussianDpEvent(4.0), 3), dpa.GaussianDpEvent(2.0)])
    event = dpa.PoissonSampledDpEvent(0.1, inner)
    event = event if place == "root" else dpa.ComposedDpEvent([event])
    one = SampledGaussianDpEvent(rate=0.1, noise_multiplier=(3 / 16 + 1 / 4) ** -0.5)
    assert accounting.price(event, 1e-6) == accounting.price(one, 1e-6)


def test_a_raw_release_on_a_sample_stays_raw():
    inner = dpa.ComposedDpEvent([dpa.GaussianDpEvent(4.0), dpa.GaussianDpEvent(0.0)])
    found = accounting.price(dpa.PoissonSampledDpEvent(0.1, inner), 1e-6)
    assert found.epsilon == float("inf")
