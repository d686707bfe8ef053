"""Events survive being written down, and refuse what makes no sense in one line."""

import json
import math

import attr
import dp_accounting as dpa
import numpy as np
import pytest
from dp_accounting import dp_event

from graphveil._errors import InvalidInputError
from graphveil.privacy import events
from graphveil.privacy.events import (
    GumbelTopKDpEvent,
    OneOfDpEvent,
    RevealedCountGaussianDpEvent,
    SampledGaussianDpEvent,
    composed,
    from_json,
    repeated,
    to_json,
)

STEP = SampledGaussianDpEvent(rate=0.1, noise_multiplier=2.0, removed=1, altered=3)
GAUSSIAN = dpa.GaussianDpEvent(1.5)

ALL = [
    STEP,
    RevealedCountGaussianDpEvent(noise_multiplier=2.0, removed=0, altered=4, rate=0.25),
    RevealedCountGaussianDpEvent(noise_multiplier=2.0, altered=4, population=100, batch=10),
    GumbelTopKDpEvent(noise_multiplier=3.5, k=7),
    OneOfDpEvent([dpa.SelfComposedDpEvent(STEP, 3), dpa.ComposedDpEvent([STEP, GAUSSIAN])]),
    dpa.NoOpDpEvent(),
    dpa.NonPrivateDpEvent(),
    dpa.UnsupportedDpEvent(),
    dpa.RandomizedResponseDpEvent(0.3, 4),
    GAUSSIAN,
    dpa.LaplaceDpEvent(2),
    dp_event.DiscreteLaplaceDpEvent(0.5, 2),
    dpa.SelfComposedDpEvent(STEP, 1000),
    dpa.ComposedDpEvent([STEP, GAUSSIAN, dpa.ComposedDpEvent([])]),
    dpa.PoissonSampledDpEvent(0.09, dpa.SelfComposedDpEvent(STEP, 3)),
    dpa.SampledWithReplacementDpEvent(100, 10, GAUSSIAN),
    dpa.SampledWithoutReplacementDpEvent(100, 10, GAUSSIAN),
    dpa.SingleEpochTreeAggregationDpEvent(2.0, [3, 4, 5]),
    dpa.SingleEpochTreeAggregationDpEvent(2.0, 8),
    dp_event.RepeatAndSelectDpEvent(dpa.SelfComposedDpEvent(STEP, 3), 10.0, math.inf),
    dpa.ZCDpEvent(0.5),
    dpa.ZCDpEvent(math.inf, 0.1),
    dp_event.MixtureOfGaussiansDpEvent(1.0, [0.0, 1.0], [0.75, 0.25]),
    dpa.TruncatedSubsampledGaussianDpEvent(100, 0.1, 20, 1.0),
]


@pytest.mark.parametrize("event", ALL, ids=lambda event: type(event).__name__)
def test_an_event_survives_being_written_down(event):
    text = json.dumps(to_json(event), allow_nan=False)  # no Infinity: that is not JSON
    back = from_json(json.loads(text))
    assert type(back) is type(event)
    assert back == event


def test_no_event_class_is_left_out():
    """A new class in dp_accounting or here must come with a line above."""
    every = {
        cls.__name__
        for module in (dp_event, events)
        for cls in vars(module).values()
        if isinstance(cls, type) and issubclass(cls, dpa.DpEvent) and cls is not dpa.DpEvent
    }
    assert {type(event).__name__ for event in ALL} == every


def test_deep_nesting_survives():
    tree = STEP
    for depth in range(1, 30):
        tree = composed(GAUSSIAN, repeated(tree, depth + 1), GumbelTopKDpEvent(noise_multiplier=2))
    assert from_json(json.loads(json.dumps(to_json(tree)))) == tree


def test_numpy_numbers_become_plain_ones():
    event = dpa.SelfComposedDpEvent(dpa.GaussianDpEvent(np.float32(1.5)), np.int64(3))
    assert from_json(json.loads(json.dumps(to_json(event)))) == dpa.SelfComposedDpEvent(GAUSSIAN, 3)


def test_the_written_form_is_the_class_name_and_its_fields():
    assert to_json(STEP) == {
        "type": "SampledGaussianDpEvent",
        "rate": 0.1,
        "noise_multiplier": 2.0,
        "removed": 1,
        "altered": 3,
    }
    assert "rate" not in to_json(ALL[2])  # what was not given is not written


# --- refused --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "bad, part",
    [
        (None, "Got None instead"),
        ([], "Got None instead"),
        ("GaussianDpEvent", "Got None instead"),
        ({}, "Got None instead"),
        ({"type": 3}, "Got 3 instead"),
        ({"type": "os.system"}, "Got 'os.system' instead"),
        ({"type": "DpEvent"}, "Got 'DpEvent' instead"),
        ({"type": "gaussiandpevent", "noise_multiplier": 1.0}, "Got 'gaussiandpevent' instead"),
        ({"type": "GaussianDpEvent"}, "noise_multiplier"),
        ({"type": "GaussianDpEvent", "noise_multiplier": 1.0, "extra": 2}, "extra"),
        ({"type": "SampledGaussianDpEvent", "rate": 0.1}, "noise_multiplier"),
        (
            {"type": "SampledGaussianDpEvent", "rate": 2.0, "noise_multiplier": 1.0},
            "'rate' parameter must be a number in [0, 1]. Got 2.0",
        ),
        (
            {"type": "SampledGaussianDpEvent", "rate": "0.1", "noise_multiplier": 1.0},
            "'rate' parameter must be a number in [0, 1]. Got '0.1'",
        ),
        (
            {"type": "SelfComposedDpEvent", "count": 3, "event": {"type": "Nothing"}},
            "Got 'Nothing' instead",
        ),
        (
            {"type": "ComposedDpEvent", "events": [{"type": "NoOpDpEvent"}, {"typ": "x"}]},
            "Got None instead",
        ),
    ],
)
def test_what_is_no_event_is_refused_in_one_line(bad, part):
    with pytest.raises(InvalidInputError) as refusal:
        from_json(bad)
    assert part in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert refusal.value.exit_code == 2


def test_a_stranger_is_not_written_down():
    @attr.s(frozen=True, auto_attribs=True)
    class HomemadeDpEvent(dpa.DpEvent):
        noise: float

    for event in (HomemadeDpEvent(1.0), dpa.SelfComposedDpEvent(HomemadeDpEvent(1.0), 3)):
        with pytest.raises(InvalidInputError, match="HomemadeDpEvent is not one graphveil can"):
            to_json(event)


SAMPLED = {"rate": 0.1, "noise_multiplier": 1.0, "removed": 1, "altered": 2}
FINE = {
    SampledGaussianDpEvent: SAMPLED,
    RevealedCountGaussianDpEvent: SAMPLED,
    GumbelTopKDpEvent: {"noise_multiplier": 1.0, "k": 3},
}


@pytest.mark.parametrize(
    "cls, name, value, rule",
    [
        (SampledGaussianDpEvent, "rate", 1.5, "a number in [0, 1]"),
        (SampledGaussianDpEvent, "rate", -0.1, "a number in [0, 1]"),
        (SampledGaussianDpEvent, "rate", math.nan, "a number in [0, 1]"),
        (SampledGaussianDpEvent, "rate", "0.1", "a number in [0, 1]"),
        (SampledGaussianDpEvent, "rate", True, "a number in [0, 1]"),
        (SampledGaussianDpEvent, "rate", None, "a number in [0, 1]"),
        (SampledGaussianDpEvent, "noise_multiplier", 0.0, "a number in (0, inf)"),
        (SampledGaussianDpEvent, "noise_multiplier", -1, "a number in (0, inf)"),
        (SampledGaussianDpEvent, "noise_multiplier", math.inf, "a number in (0, inf)"),
        (SampledGaussianDpEvent, "noise_multiplier", 1j, "a number in (0, inf)"),
        (SampledGaussianDpEvent, "removed", -1, "a whole number in [0, 1e6]"),
        (SampledGaussianDpEvent, "removed", 0.5, "a whole number in [0, 1e6]"),
        (SampledGaussianDpEvent, "altered", 1e7, "a whole number in [0, 1e6]"),
        (SampledGaussianDpEvent, "altered", True, "a whole number in [0, 1e6]"),
        (RevealedCountGaussianDpEvent, "rate", 1.5, "a number in [0, 1]"),
        (RevealedCountGaussianDpEvent, "noise_multiplier", 0, "a number in (0, inf)"),
        (RevealedCountGaussianDpEvent, "removed", -2, "a whole number in [0, 1e6]"),
        (RevealedCountGaussianDpEvent, "altered", 2.5, "a whole number in [0, 1e6]"),
        (GumbelTopKDpEvent, "noise_multiplier", 0.0, "a number in (0, inf)"),
        (GumbelTopKDpEvent, "k", 0, "a whole number in [1, 1e9]"),
        (GumbelTopKDpEvent, "k", 2.5, "a whole number in [1, 1e9]"),
    ],
)
def test_a_refusal_names_the_parameter_the_rule_and_the_value(cls, name, value, rule):
    cls(**FINE[cls])
    with pytest.raises(InvalidInputError) as refusal:
        cls(**{**FINE[cls], name: value})
    assert str(refusal.value) == f"The '{name}' parameter must be {rule}. Got {value!r} instead."


@pytest.mark.parametrize(
    "name, value, rule",
    [
        ("population", 0, "a whole number in [1, 1e12]"),
        ("population", 10.5, "a whole number in [1, 1e12]"),
        ("batch", -1, "a whole number in [0, 100]"),
        ("batch", 101, "a whole number in [0, 100]"),
    ],
)
def test_fixed_batches_must_fit_their_population(name, value, rule):
    fine = {"noise_multiplier": 1.0, "removed": 1, "altered": 3, "population": 100, "batch": 10}
    RevealedCountGaussianDpEvent(**fine)
    with pytest.raises(InvalidInputError) as refusal:
        RevealedCountGaussianDpEvent(**{**fine, name: value})
    assert str(refusal.value) == f"The '{name}' parameter must be {rule}. Got {value!r} instead."


def test_no_more_terms_are_affected_than_there_are():
    RevealedCountGaussianDpEvent(noise_multiplier=1.0, altered=4, population=5, batch=2)
    with pytest.raises(InvalidInputError, match=r"'removed \+ altered' .* \[0, 5\]"):
        RevealedCountGaussianDpEvent(noise_multiplier=1.0, altered=5, population=5, batch=2)


@pytest.mark.parametrize(
    "sizes",
    [
        {},
        {"rate": 0.1, "population": 10, "batch": 2},
        {"rate": 0.1, "batch": 2},
        {"population": 10},
        {"batch": 2},
    ],
)
def test_a_revealed_count_has_one_way_of_sampling(sizes):
    with pytest.raises(InvalidInputError, match=r"needs either 'rate' .* or both 'population' and"):
        RevealedCountGaussianDpEvent(noise_multiplier=1.0, **sizes)


@pytest.mark.parametrize("count", [-1, 2.5, 1e13, "3", None, True])
def test_repetitions_are_whole_and_not_negative(count):
    with pytest.raises(InvalidInputError, match=r"'steps' parameter must be a whole number in"):
        repeated(STEP, count)


# --- helpers --------------------------------------------------------------------------------------


def test_composed_and_repeated_make_the_smallest_tree():
    nothing = dpa.NoOpDpEvent()
    assert composed() == composed(nothing, nothing) == nothing
    assert composed(nothing, STEP) is STEP
    assert composed(STEP, nothing, GAUSSIAN) == dpa.ComposedDpEvent([STEP, GAUSSIAN])
    assert repeated(STEP, 0) == nothing
    assert repeated(STEP, 1) is STEP
    assert repeated(STEP, 5.0) == dpa.SelfComposedDpEvent(STEP, 5)


def test_events_are_values():
    same = SampledGaussianDpEvent(rate=0.1, noise_multiplier=2.0, removed=1, altered=3)
    assert same == STEP
    assert hash(same) == hash(STEP)
    assert attr.evolve(STEP, removed=0) != STEP
    with pytest.raises(attr.exceptions.FrozenInstanceError):
        same.rate = 0.2


def test_rho_of_top_k_is_an_eighth_of_the_squared_range_for_each_name():
    assert GumbelTopKDpEvent(noise_multiplier=4.0).rho == (2 / 4.0) ** 2 / 8
    assert GumbelTopKDpEvent(noise_multiplier=4.0, k=6).rho == 6 * (2 / 4.0) ** 2 / 8
