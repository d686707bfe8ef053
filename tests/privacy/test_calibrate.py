"""The noise, steps or rate that just fit a budget: inside it, and the next value is outside."""

import math

import dp_accounting as dpa
import pytest

from graphveil._errors import BudgetError, InvalidInputError, UnsupportedEventError
from graphveil.privacy.accounting import calibrate, epsilon_of
from graphveil.privacy.events import (
    GumbelTopKDpEvent,
    RevealedCountGaussianDpEvent,
    SampledGaussianDpEvent,
    composed,
    repeated,
)


def run(rate=0.1, noise=4.0, steps=100, removed=1, altered=0):
    return repeated(
        SampledGaussianDpEvent(rate=rate, noise_multiplier=noise, removed=removed, altered=altered),
        steps,
    )


def just_fits(make_event, target, delta, found, riskier):
    assert epsilon_of(make_event(found), delta) <= target < epsilon_of(make_event(riskier), delta)


NOISE = {
    "one term": (lambda s: run(noise=s), 2.0, 1e-5),
    "with influence": (lambda s: run(noise=s, altered=7), 8.0, 1e-6),
    "one step": (lambda s: run(rate=1.0, noise=s, steps=1), 1.0, 1e-5),
    "tiny epsilon": (lambda s: run(rate=0.01, noise=s, steps=10), 0.01, 1e-6),
    "large epsilon": (lambda s: run(rate=0.5, noise=s, steps=50), 60.0, 1e-5),
    "with a fixed charge": (lambda s: composed(run(noise=s), dpa.LaplaceDpEvent(4.0)), 2.0, 1e-5),
    "count revealed": (
        lambda s: repeated(
            RevealedCountGaussianDpEvent(
                noise_multiplier=s, altered=3, population=1000, batch=100
            ),
            50,
        ),
        3.0,
        1e-5,
    ),
    "Renyi only": (lambda s: GumbelTopKDpEvent(noise_multiplier=s, k=4), 1.5, 1e-5),
    "no Renyi": (lambda s: dpa.PoissonSampledDpEvent(0.2, dpa.LaplaceDpEvent(s)), 0.1, 1e-6),
    "on a sample of the units": (lambda s: dpa.PoissonSampledDpEvent(0.3, run(noise=s)), 1.0, 1e-6),
}  # fmt: skip


@pytest.mark.parametrize("case", NOISE)
def test_the_least_noise_fits_and_a_thousandth_less_does_not(case):
    make_event, target, delta = NOISE[case]
    safe, risky = (5.0, 1.0) if case == "no Renyi" else (1000.0, 0.01)  # the first is slow
    found = calibrate(make_event, epsilon=target, delta=delta, safe=safe, risky=risky)
    just_fits(make_event, target, delta, found, riskier=found * (1 - 1e-3))


@pytest.mark.parametrize("altered, target", [(0, 1.0), (3, 4.0)])
def test_the_most_steps_fit_and_one_more_does_not(altered, target):
    def make_event(steps):
        return run(noise=6.0, steps=steps, altered=altered)

    found = calibrate(make_event, epsilon=target, delta=1e-5, safe=1, risky=10**6, integer=True)
    assert isinstance(found, int)
    just_fits(make_event, target, 1e-5, found, riskier=found + 1)


def test_the_largest_rate_fits_and_a_thousandth_more_does_not():
    def make_event(rate):
        return run(rate=rate, altered=2)

    found = calibrate(make_event, epsilon=4.0, delta=1e-5, safe=1e-6, risky=1.0)
    just_fits(make_event, 4.0, 1e-5, found, riskier=found * (1 + 1e-3))


def test_whole_numbers_may_also_be_risky_when_small():
    """Privacy grows with the number of groups a node set is split into: steps of rate 1/s."""

    def make_event(groups):
        return run(rate=1 / groups, noise=2.0, steps=20, removed=0, altered=1)

    found = calibrate(make_event, epsilon=3.0, delta=1e-5, safe=10_000, risky=1, integer=True)
    assert found > 2
    just_fits(make_event, 3.0, 1e-5, found, riskier=found - 1)


def test_whole_numbers_are_exact():
    """A budget made for exactly so many steps buys exactly so many."""

    def make_event(steps):
        return run(rate=1.0, noise=30.0, steps=steps)

    for steps in (*range(1, 40), 100, 101, 999):
        budget = epsilon_of(make_event(steps), 1e-5)
        found = calibrate(
            make_event, epsilon=budget, delta=1e-5, safe=1, risky=10_000, integer=True
        )
        assert found == steps


def test_tighter_budgets_need_more_noise():
    found = [
        calibrate(lambda s: run(noise=s), epsilon=target, delta=1e-5, safe=1000.0, risky=0.1)
        for target in (4.0, 1.0)
    ]
    assert found == sorted(found)
    assert found[0] > 0.5


@pytest.mark.parametrize(
    "make_event, safe, risky, integer",
    [
        (lambda s: run(noise=s), 1.0, 0.1, False),
        (lambda n: run(noise=0.5, steps=n), 10, 10**6, True),
        (lambda q: run(rate=q, noise=0.3), 0.1, 1.0, False),
    ],
)
def test_a_target_out_of_reach_is_refused_with_what_the_safe_end_costs(
    make_event, safe, risky, integer
):
    cost = epsilon_of(make_event(safe), 1e-5)
    with pytest.raises(BudgetError, match=f"Even {safe:g} spends epsilon {cost:.4g}") as refusal:
        calibrate(make_event, epsilon=cost / 2, delta=1e-5, safe=safe, risky=risky, integer=integer)
    assert refusal.value.exit_code == 3
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("target", [100.0, "its own"])
def test_the_risky_end_is_the_answer_when_everything_fits(target):
    if target == "its own":
        target = epsilon_of(run(noise=2.0), 1e-5)
    found = calibrate(lambda s: run(noise=s), epsilon=target, delta=1e-5, safe=50.0, risky=2.0)
    assert found == 2.0
    steps = calibrate(
        lambda n: run(steps=n), epsilon=100.0, delta=1e-5, safe=1, risky=50, integer=True
    )
    assert steps == 50


def test_the_safe_end_is_the_answer_when_only_it_fits():
    target = epsilon_of(run(noise=5.0), 1e-5)
    found = calibrate(lambda s: run(noise=s), epsilon=target, delta=1e-5, safe=5.0, risky=1.0)
    assert found == pytest.approx(5.0, rel=1e-4)
    assert epsilon_of(run(noise=found), 1e-5) <= target


@pytest.mark.parametrize(
    "wrong", [{"epsilon": 0}, {"epsilon": math.inf}, {"delta": 0}, {"delta": 1.0}]
)
def test_budgets_must_make_sense(wrong):
    (name,) = wrong
    with pytest.raises(InvalidInputError, match=f"The '{name}' parameter must be a number in"):
        calibrate(
            lambda s: run(noise=s), **{"epsilon": 1, "delta": 1e-5, **wrong}, safe=10, risky=1
        )


def test_events_nothing_covers_are_refused_by_name():
    with pytest.raises(UnsupportedEventError, match="UnsupportedDpEvent"):
        calibrate(
            lambda s: composed(run(noise=s), dpa.UnsupportedDpEvent()),
            epsilon=1.0, delta=1e-5, safe=10.0, risky=1.0,
        )  # fmt: skip
