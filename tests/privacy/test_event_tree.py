"""The table of event types: parts, raw releases, what is refused."""

import attr
import dp_accounting as dpa
import pytest
from dp_accounting import dp_event

from graphveil._errors import InvalidInputError
from graphveil.privacy import composing, filters
from graphveil.privacy.accounting import delta_of, epsilon_of
from graphveil.privacy.event_tree import (
    leaves,
    outer_sampling,
    parts,
    releases_raw,
    renyi_only,
    validate,
)
from graphveil.privacy.events import OneOfDpEvent, SampledGaussianDpEvent, repeated

RAW = dpa.GaussianDpEvent(0.0)
STEP = SampledGaussianDpEvent(rate=0.1, noise_multiplier=2.0)
LAPLACE = dpa.LaplaceDpEvent(2.0)


def test_parts_come_in_order_with_how_often_they_happen():
    inner = dpa.ComposedDpEvent([STEP, dpa.SelfComposedDpEvent(LAPLACE, 2)])
    tree = dpa.ComposedDpEvent([LAPLACE, dpa.SelfComposedDpEvent(inner, 3)])
    assert list(parts(tree)) == [(LAPLACE, 1), (STEP, 3), (LAPLACE, 6)]
    assert leaves(tree) == [(LAPLACE, 7), (STEP, 3)]


def test_gaussians_are_one():
    tree = dpa.ComposedDpEvent([dpa.GaussianDpEvent(2.0), repeated(dpa.GaussianDpEvent(2.0), 3)])
    assert leaves(tree) == [(SampledGaussianDpEvent(rate=1.0, noise_multiplier=1.0), 1)]


@pytest.mark.parametrize(
    "event",
    [
        RAW,
        dpa.LaplaceDpEvent(0.0),
        dpa.NonPrivateDpEvent(),
        dpa.RandomizedResponseDpEvent(0.0, 4),
        dp_event.DiscreteLaplaceDpEvent(0.0, 1),
        dpa.ComposedDpEvent([STEP, RAW]),
        dpa.SelfComposedDpEvent(RAW, 2),
        dpa.PoissonSampledDpEvent(0.1, RAW),
        OneOfDpEvent([STEP, RAW]),
        dp_event.RepeatAndSelectDpEvent(RAW, 2, 1),
    ],
)
def test_raw_releases_are_seen_wherever_they_stand(event):
    assert releases_raw(event)
    assert releases_raw(dpa.ComposedDpEvent([LAPLACE, dpa.SelfComposedDpEvent(event, 3)]))


@pytest.mark.parametrize("nothing", [dpa.SelfComposedDpEvent(RAW, 0), dpa.ComposedDpEvent([])])
def test_what_never_happens_releases_nothing(nothing):
    assert not releases_raw(nothing)
    assert leaves(nothing) == list(parts(nothing)) == []


def test_no_events_cost_nothing():
    nothing = dpa.ComposedDpEvent([])
    assert epsilon_of(nothing, 1e-5) == delta_of(nothing, 0.0) == 0.0
    assert composing.together([nothing], 1e-5).epsilon == 0.0
    assert filters.Filter(epsilon=1.0, delta=1e-5).used([nothing]) == 0.0


def test_a_sample_of_the_units_is_told_from_a_sampled_release():
    assert outer_sampling(dpa.PoissonSampledDpEvent(0.1, repeated(STEP, 5)))[0] == 0.1
    assert outer_sampling(dpa.PoissonSampledDpEvent(0.1, dpa.GaussianDpEvent(1.0))) is None
    assert outer_sampling(STEP) is None


def test_renyi_only_parts_are_named():
    tree = dpa.ComposedDpEvent([STEP, dpa.SelfComposedDpEvent(dpa.ZCDpEvent(0.1), 2)])
    assert renyi_only(tree) == "ZCDpEvent"
    assert renyi_only(dpa.SelfComposedDpEvent(dpa.ZCDpEvent(0.1), 0)) is None


@attr.s(frozen=True, auto_attribs=True)
class Derived(dpa.GaussianDpEvent):
    """Somebody else's event."""


def test_a_derived_event_is_held_to_what_its_base_is():
    assert releases_raw(Derived(0.0))
    with pytest.raises(InvalidInputError, match=r"'noise_multiplier' parameter must be a number"):
        validate(Derived(-1.0))


@pytest.mark.parametrize(
    "event, message",
    [
        ("noise", "An event must be a DpEvent. Got 'noise' instead."),
        (dpa.ComposedDpEvent(STEP), "Composed events are a list. Got SampledGaussianDpEvent"),
        (dpa.SelfComposedDpEvent(STEP, -1), "'count' parameter must be a whole number"),
        (dpa.PoissonSampledDpEvent(2.0, STEP), "'sampling_probability' parameter must be"),
        (dpa.ComposedDpEvent([STEP, dpa.ZCDpEvent(-1.0)]), "'rho' parameter must be"),
        (dp_event.RepeatAndSelectDpEvent(STEP, 0.5, 1), "'mean' parameter must be"),
    ],
)
def test_what_makes_no_sense_is_refused(event, message):
    with pytest.raises(InvalidInputError, match=message):
        validate(event)
