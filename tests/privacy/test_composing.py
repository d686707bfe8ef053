"""Many runs priced together: never below the truth, never above what one accountant says."""

import dp_accounting as dpa
import numpy as np
import pytest
from scipy import optimize, stats

from graphveil._errors import UnsupportedEventError
from graphveil.privacy import _pld, accounting, composing
from graphveil.privacy.accounting import price
from graphveil.privacy.composing import together
from graphveil.privacy.events import (
    GumbelTopKDpEvent,
    SampledGaussianDpEvent,
    composed,
    repeated,
)

DELTA = 1e-5
GAUSSIAN = dpa.GaussianDpEvent(3.0)
STEPS = repeated(SampledGaussianDpEvent(rate=0.3, noise_multiplier=6.0, removed=1, altered=1), 20)
NAMES = repeated(GumbelTopKDpEvent(noise_multiplier=20.0, k=2), 3)
SAMPLE = dpa.PoissonSampledDpEvent(0.1, composed(GAUSSIAN, STEPS))


def test_what_one_accountant_prices_is_priced_the_same():
    """Also where its RDP bound is the only one, which a curve may only improve on."""
    assert together([GAUSSIAN, STEPS], DELTA) == price(composed(GAUSSIAN, STEPS), DELTA)
    assert together([SAMPLE], DELTA) == price(SAMPLE, DELTA)
    assert together([], DELTA).epsilon == 0.0
    alone = price(composed(NAMES, STEPS, GAUSSIAN), DELTA).epsilon
    assert together([NAMES, STEPS, GAUSSIAN], DELTA).epsilon < 0.99 * alone


@pytest.mark.parametrize("event", [GAUSSIAN, STEPS, repeated(STEPS, 10)], ids=str)
@pytest.mark.parametrize("count", [1, 2, 10])
def test_a_curve_stands_for_its_event_from_above_and_closely(event, count):
    curve = composing._curve_of(event, DELTA, 1e-3 * DELTA)
    truth = price(repeated(event, count), DELTA).epsilon
    assert truth * (1 - 1e-6) <= price(repeated(curve, count), DELTA).epsilon <= 1.02 * truth


@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.0, 1.9])
def test_the_pair_made_of_a_curve_has_that_curve_and_is_symmetric(epsilon):
    """Its hockey-stick divergence, summed by hand, is at least what is known, and no more."""
    known = composing._curve_of(GAUSSIAN, DELTA, 1e-3 * DELTA)
    (losses,) = _pld.discretise(known, 0.003)
    values, probs = losses.values, losses.probs
    assert probs.sum() + losses.infinite == pytest.approx(1.0, abs=1e-9)
    forward = losses.infinite + (probs * np.clip(1 - np.exp(epsilon - values), 0, None)).sum()
    # The other law gives a loss exp(-loss) of the mass, and the rest, with infinite loss, to -inf.
    other = probs * np.exp(-values)
    backward = (other * np.clip(1 - np.exp(epsilon + values), 0, None)).sum() + (1 - other.sum())
    truth = accounting.delta_of(GAUSSIAN, epsilon)
    for found in (forward, backward):
        assert truth * (1 - 1e-6) - 1e-9 <= found <= 1.01 * truth + 1e-6


def test_points_that_contradict_each_other_still_bound_from_above():
    """The bound at 0 is far too large: what the others say of it must be used, not a bent curve."""
    curve = _pld.CurveDpEvent(epsilons=(0.0, 1.0, 2.0), deltas=(0.9, 1e-3, 1e-6))
    (losses,) = _pld.discretise(curve, 0.01)
    assert losses.probs.min() >= 0
    assert losses.probs.sum() + losses.infinite == pytest.approx(1.0)
    single = _pld.CurveDpEvent(epsilons=(1.0,), deltas=(1e-3,))
    assert price(curve, 1e-2).epsilon <= price(single, 1e-2).epsilon


def test_a_single_point_composes_as_the_optimal_theorem_says():
    """Of (epsilon, 0) alone the worst is a coin of odds exp(epsilon) (Kairouz et al. 2015)."""
    each, count = 0.1, 100
    curve = _pld.CurveDpEvent(epsilons=(each,), deltas=(0.0,))
    heads = np.arange(count + 1)
    mass = stats.binom.pmf(heads, count, 1 / (1 + np.exp(-each)))

    def delta(epsilon):
        return mass @ np.clip(1 - np.exp(epsilon - (2 * heads - count) * each), 0, None)

    exact = optimize.brentq(lambda epsilon: delta(epsilon) - DELTA, 0, count * each)
    found = price(repeated(curve, count), DELTA).epsilon
    assert exact * (1 - 1e-6) <= found <= 1.005 * exact


def test_samples_compose_with_everything_else():
    """A sample whose inside is one Gaussian has a price of its own to compare with."""
    plain = dpa.PoissonSampledDpEvent(0.2, dpa.GaussianDpEvent(1.0))
    hidden = dpa.PoissonSampledDpEvent(
        0.2, composed(dpa.GaussianDpEvent(1.0), dpa.ZCDpEvent(rho=1e-12, xi=0.0))
    )
    with pytest.raises(UnsupportedEventError):
        price(composed(hidden, GAUSSIAN), DELTA)
    exact = price(composed(plain, plain, GAUSSIAN), DELTA).epsilon
    found = together([hidden, hidden, GAUSSIAN], DELTA).epsilon
    assert exact <= found <= 1.25 * exact
    assert found < 2 * price(hidden, DELTA).epsilon + price(GAUSSIAN, DELTA).epsilon


def test_everything_at_once_grows_with_every_event():
    events = [GAUSSIAN, NAMES, SAMPLE, STEPS, SAMPLE, NAMES]
    prices = [together(events[: number + 1], DELTA).epsilon for number in range(len(events))]
    assert prices == sorted(prices)
    assert prices[-1] < sum(price(event, DELTA).epsilon for event in events)
    order = together(events[::-1], DELTA).epsilon
    assert order == pytest.approx(prices[-1], rel=1e-6)


def test_raw_data_has_no_price_together_either():
    assert together([GAUSSIAN, dpa.NonPrivateDpEvent()], DELTA).epsilon == np.inf
    sampled = dpa.PoissonSampledDpEvent(0.5, composed(dpa.NonPrivateDpEvent(), NAMES))
    assert together([GAUSSIAN, sampled], DELTA).epsilon == np.inf
