"""A budget holds however runs are chosen by looking at others: checked by exact integrals."""

import dp_accounting as dpa
import numpy as np
import pytest
from scipy import optimize, stats

from graphveil._errors import InvalidInputError
from graphveil.privacy._rdp import ORDERS, sampled_gaussian
from graphveil.privacy.accounting import price
from graphveil.privacy.composing import together
from graphveil.privacy.events import (
    GumbelTopKDpEvent,
    SampledGaussianDpEvent,
    composed,
    repeated,
)
from graphveil.privacy.filters import Filter, _on_a_sample

DELTA = 1e-5
STEPS = repeated(SampledGaussianDpEvent(rate=0.3, noise_multiplier=9.0, removed=1, altered=1), 20)
NAMES = repeated(GumbelTopKDpEvent(noise_multiplier=20.0, k=2), 3)
SAMPLE = dpa.PoissonSampledDpEvent(0.1, composed(dpa.GaussianDpEvent(3.0), STEPS))


def sampled(rate, noise):
    return SampledGaussianDpEvent(rate=rate, noise_multiplier=noise, removed=1, altered=0)


# --- the truth, when the second run is chosen by the first one's result ---------------------------


def of_gaussian(epsilon, noise):
    """The least delta of a Gaussian at many epsilons."""
    return stats.norm.cdf(0.5 / noise - epsilon * noise) - np.exp(epsilon) * stats.norm.cdf(
        -0.5 / noise - epsilon * noise
    )


def of_sampled(epsilon, rate, noise):
    """The same of one sampled step, for the law with the record against that without."""
    odds = np.expm1(epsilon) / rate + 1
    at = noise**2 * np.log(np.maximum(odds, 1e-300)) + 0.5
    above, other = stats.norm.sf(at / noise), stats.norm.sf((at - 1) / noise)
    found = (1 - rate) * above + rate * other - np.exp(epsilon) * above
    return np.where(odds > 0, found, -np.expm1(epsilon))


def true_delta(epsilon, first, options):
    """Of a Gaussian with noise ``first``, then whichever option hurts most at its result."""
    x = np.linspace(1 - 12 * first, 1 + 12 * first, 40_001)
    weight = stats.norm.pdf(x, 1, first) * (x[1] - x[0])
    left = epsilon - (2 * x - 1) / (2 * first**2)
    return float(weight @ np.max([option(left) for option in options], axis=0))


def least_noise(make, filter, others):
    """The least noise, but for a thousandth, with which an event fits beside others."""
    low, high = 0.05, 500.0
    while high > 1.001 * low:
        middle = float(np.sqrt(low * high))
        fits = filter.used([*others, make(middle)]) <= 1
        low, high = (low, middle) if fits else (middle, high)
    return high


@pytest.mark.parametrize("epsilon", [0.5, 2.0, 6.0])
@pytest.mark.parametrize("rate", [1e-4, 1e-2, 0.3])
def test_whoever_chooses_by_the_first_result_stays_within_the_budget(epsilon, rate):
    filter = Filter(epsilon=epsilon, delta=DELTA)
    first = 1.3 * least_noise(dpa.GaussianDpEvent, filter, [])
    spent = [dpa.GaussianDpEvent(first)]
    plain = least_noise(dpa.GaussianDpEvent, filter, spent)
    small = least_noise(lambda noise: sampled(rate, noise), filter, spent)
    options = (lambda e: of_gaussian(e, plain), lambda e: of_sampled(e, rate, small))
    assert true_delta(epsilon, first, options) <= DELTA
    # Each option is worth having: the filter is no wall.
    assert together([*spent, dpa.GaussianDpEvent(plain)], DELTA).epsilon > 0.88 * epsilon


def test_the_price_of_a_fixed_list_is_no_filter():
    """Two runs that each fit by their price, and of which one may choose, do not."""
    first, rate, noise = 2.6, 1.0047e-5, 0.12
    lists = [
        [dpa.GaussianDpEvent(first), dpa.GaussianDpEvent(3.108)],
        [dpa.GaussianDpEvent(first), sampled(rate, noise)],
    ]
    assert all(together(events, DELTA).epsilon <= 2.0 for events in lists)
    options = (lambda e: of_gaussian(e, 3.108), lambda e: of_sampled(e, rate, noise))
    assert true_delta(2.0, first, options) > 1.9 * DELTA
    assert all(true_delta(2.0, first, [option]) <= DELTA for option in options)
    assert all(Filter(epsilon=2.0, delta=DELTA).used(events) > 1 for events in lists)


# --- what it adds up ------------------------------------------------------------------------------


def test_shares_add_up_whatever_the_order():
    filter = Filter(epsilon=3.0, delta=DELTA)
    events = [STEPS, dpa.GaussianDpEvent(8.0), NAMES, dpa.LaplaceDpEvent(9.0)]
    alone = [filter.used([event]) for event in events]
    assert min(alone) > 0
    assert filter.used(events) == pytest.approx(sum(alone), rel=1e-12)
    assert filter.used(events[::-1]) == pytest.approx(sum(alone), rel=1e-12)
    assert filter.used([composed(*events)]) == pytest.approx(sum(alone), rel=1e-12)
    assert filter.used([]) == 0.0


@pytest.mark.parametrize("epsilon, delta", [(0.1, 1e-4), (1.0, 1e-5), (8.0, 1e-6), (30.0, 1e-9)])
def test_a_full_budget_is_the_budget_s_epsilon_and_not_much_less(epsilon, delta):
    filter = Filter(epsilon=epsilon, delta=delta)
    whole = filter.left([])
    assert 0.85 * epsilon < whole < epsilon
    noise = optimize.brentq(
        lambda noise: price(dpa.GaussianDpEvent(noise), delta).epsilon - whole, 0.05, 1000
    )
    assert filter.used([dpa.GaussianDpEvent(noise)]) == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize("spent", [[STEPS], [NAMES, STEPS], [SAMPLE, STEPS]], ids=len)
def test_what_is_left_fits_and_a_little_more_does_not(spent):
    filter = Filter(epsilon=4.0, delta=DELTA)
    left = filter.left(spent)
    assert 0 < left < 4.0
    for share, fits in ((0.999, True), (1.01, False)):
        noise = optimize.brentq(
            lambda z, share=share: price(dpa.GaussianDpEvent(z), DELTA).epsilon - share * left,
            0.05,
            1000,
        )
        assert (filter.used([*spent, dpa.GaussianDpEvent(noise)]) <= 1) is fits


def test_nothing_is_left_where_all_is_used():
    filter = Filter(epsilon=1.0, delta=DELTA)
    assert filter.left([dpa.GaussianDpEvent(0.5)]) == 0.0
    assert filter.used([dpa.NonPrivateDpEvent()]) == np.inf
    assert Filter(epsilon=1e-9, delta=1e-12).left([]) == 0.0


@pytest.mark.parametrize("rate", [0.01, 0.3, 1.0])
@pytest.mark.parametrize("noise", [0.5, 3.0, 40.0])
def test_a_secret_sample_has_at_least_the_divergence_that_it_has(rate, noise):
    """Against the one case in which it is known exactly: a Gaussian."""
    found = _on_a_sample(rate, dpa.GaussianDpEvent(noise))
    true = sampled_gaussian(sampled(rate, noise))
    assert (found >= true * (1 - 1e-9)).all()
    assert (found <= ORDERS / (2 * noise**2) * (1 + 1e-9)).all()


def test_runs_on_a_secret_sample_cost_less_than_on_all():
    filter = Filter(epsilon=4.0, delta=DELTA)
    inner = composed(dpa.GaussianDpEvent(3.0), STEPS, NAMES)
    shares = [filter.used([dpa.PoissonSampledDpEvent(rate, inner)]) for rate in (0.1, 0.5, 1.0)]
    assert 0 < shares[0] < shares[1] < shares[2]
    assert shares[2] == pytest.approx(filter.used([inner]))
    nested = dpa.PoissonSampledDpEvent(0.5, dpa.PoissonSampledDpEvent(0.5, inner))
    assert filter.used([nested]) < shares[1]
    assert filter.used([dpa.PoissonSampledDpEvent(0.5, dpa.NonPrivateDpEvent())]) == np.inf


def test_what_has_no_divergence_fits_beside_nothing_and_what_never_ran_costs_nothing():
    filter = Filter(epsilon=4.0, delta=DELTA)
    assert filter.used([dpa.SelfComposedDpEvent(STEPS, 0)]) == 0.0
    assert filter.used([dpa.UnsupportedDpEvent()]) == np.inf
    with pytest.raises(InvalidInputError):
        filter.used([dpa.SelfComposedDpEvent(STEPS, -1)])


def test_a_budget_too_small_for_two_runs_leaves_nothing():
    filter = Filter(epsilon=5e-5, delta=1e-6)
    assert filter.left([dpa.GaussianDpEvent(1e7)]) == 0.0
    assert filter.used([dpa.GaussianDpEvent(1e7)]) == np.inf
    assert filter.used([]) == 0.0
