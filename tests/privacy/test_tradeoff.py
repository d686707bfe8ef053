"""No membership test beats the bound on its true positive rate, and the best one reaches it."""

import math
import subprocess
import sys

import dp_accounting as dpa
import numpy as np
import pytest
from dp_accounting import dp_event
from scipy import special, stats

from graphveil._errors import InvalidInputError, UnsupportedEventError
from graphveil.privacy.accounting import delta_of, epsilon_of
from graphveil.privacy.events import (
    GumbelTopKDpEvent,
    SampledGaussianDpEvent,
    composed,
    one_of,
    repeated,
)
from graphveil.privacy.tradeoff import largest_tpr, largest_tprs, tpr_of

RATES = (1e-6, 1e-3, 0.01, 0.1, 0.3, 0.5, 0.9, 0.999)
EVENTS = (
    dpa.GaussianDpEvent(1.5),
    dpa.LaplaceDpEvent(0.8),
    repeated(SampledGaussianDpEvent(rate=0.2, noise_multiplier=1.0, removed=1, altered=2), 20),
    composed(dpa.GaussianDpEvent(2.0), dpa.LaplaceDpEvent(2.0)),
    composed(dpa.GaussianDpEvent(2.0), GumbelTopKDpEvent(noise_multiplier=6.0, k=2)),
    dpa.PoissonSampledDpEvent(0.3, composed(dpa.GaussianDpEvent(1.0), dpa.LaplaceDpEvent(1.0))),
)


def gaussian(mu, fpr):
    return special.ndtr(mu + special.ndtri(fpr))


@pytest.mark.parametrize("mu", [1e-3, 0.05, 0.5, 1.0, 3.0, 6.0, 10.0])
def test_a_gaussian_is_met_from_above(mu):
    for fpr in (1e-9, *RATES):
        exact = gaussian(mu, fpr)
        assert exact <= largest_tpr(dpa.GaussianDpEvent(1 / mu), fpr) <= exact + 1e-3
        assert largest_tpr(dpa.GaussianDpEvent(1 / mu), fpr) <= exact * (1 + 1e-3)


@pytest.mark.parametrize("scale", [0.2, 1.0, 3.0, 10.0])
def test_laplace_noise_is_met_from_above(scale):
    for fpr in RATES:
        exact = stats.laplace.sf(stats.laplace.isf(fpr, scale=scale), loc=1, scale=scale)
        assert exact <= largest_tpr(dpa.LaplaceDpEvent(scale), fpr) <= exact + 1e-3


def test_small_rates_against_laplace_noise_grow_by_the_factor_of_pure_epsilon():
    answer = largest_tpr(dpa.LaplaceDpEvent(1.0), 0.01)
    assert answer == pytest.approx(math.e / 100, rel=1e-6)
    assert answer >= math.e / 100
    assert tpr_of(1.0, 0.0, 0.01) == pytest.approx(math.e / 100)


def test_the_larger_of_both_orientations_counts():
    # Present: the true one of two buckets with probability 3/4. Withheld: either with 1/2.
    event = dp_event.RandomizedResponseDpEvent(0.5, 2)
    larger = []
    for fpr in (0.001, 0.1, 0.25, 0.4, 0.5, 0.9):
        present = min(1.5 * fpr, 0.75 + (fpr - 0.5) / 2)  # accused of having taken part
        withheld = min(2 * fpr, 0.5 + (fpr - 0.25) / 1.5)  # accused of having been withheld
        exact = max(present, withheld)
        larger.append(exact == present)
        assert exact <= largest_tpr(event, fpr) <= exact + 1e-3
    assert len(set(larger)) == 2


@pytest.mark.parametrize("epsilon, delta", [(0.0, 0.0), (1.0, 1e-5), (8.0, 0.01), (1.0, 1.0)])
def test_one_pair_allows_the_corner_of_its_two_lines(epsilon, delta):
    for fpr in (0.0, *RATES, 1.0):
        answer = tpr_of(epsilon, delta, fpr)
        lines = (delta + math.exp(epsilon) * fpr, 1 - math.exp(-epsilon) * (1 - delta - fpr))
        assert answer == pytest.approx(min(1.0, *lines))
        assert fpr <= answer + 1e-15


def test_an_infinite_epsilon_allows_everything():
    assert tpr_of(math.inf, 1e-5, 0.001) == tpr_of(900.0, 0.0, 0.001) == 1.0
    assert tpr_of(900.0, 0.0, 0.0) == 0.0


@pytest.mark.parametrize("event", EVENTS, ids=str)
def test_no_single_pair_of_the_event_says_more(event):
    for fpr in RATES:
        answer = largest_tpr(event, fpr)
        for epsilon in (0.01, 0.3, 1.0, 3.0):
            assert answer <= tpr_of(epsilon, delta_of(event, epsilon), fpr) + 2e-3
        assert answer <= tpr_of(epsilon_of(event, 1e-5), 1e-5, fpr) + 2e-3


@pytest.mark.parametrize("event", EVENTS, ids=str)
def test_the_answer_grows_with_the_rate_and_is_never_below_it(event):
    rates = (0.0, *RATES, 1.0)
    answers = largest_tprs(event, rates)
    assert all(np.diff(answers) >= 0)
    assert all(rate <= answer <= 1 for rate, answer in zip(rates, answers, strict=True))
    assert answers[-1] == 1
    for rate, answer in zip(rates, answers, strict=True):
        assert largest_tpr(event, rate) == pytest.approx(answer, rel=1e-3)


def test_more_noise_never_helps_an_attacker_and_more_steps_never_hurt_one():
    def answer(noise, steps):
        step = SampledGaussianDpEvent(rate=0.1, noise_multiplier=noise, removed=1, altered=1)
        return largest_tpr(repeated(step, steps), 0.01)

    noises, steps = (0.5, 0.7, 1.0, 2.0, 5.0, 50.0), (1, 2, 10, 100, 1000)
    assert all(np.diff([answer(noise, 30) for noise in noises]) < 0)
    assert all(np.diff([answer(1.0, count) for count in steps]) > 0)


def test_gaussians_compose_to_the_gaussian_that_they_are():
    event = composed(repeated(dpa.GaussianDpEvent(6.0), 20), dpa.GaussianDpEvent(1.0))
    mu = math.sqrt(20 / 36 + 1)
    for fpr in RATES:
        assert gaussian(mu, fpr) <= largest_tpr(event, fpr) <= gaussian(mu, fpr) + 1e-3


def test_many_steps_of_little_loss_are_nearly_a_gaussian():
    rate, noise, steps = 0.01, 2.0, 20_000
    step = SampledGaussianDpEvent(rate=rate, noise_multiplier=noise, removed=1, altered=0)
    mu = rate * math.sqrt(steps * math.expm1(noise**-2))
    assert largest_tpr(repeated(step, steps), 0.01) == pytest.approx(gaussian(mu, 0.01), rel=0.05)


def rates_of(losses_above, losses_below, fpr):
    """The rates of the likelihood-ratio test, from samples of its score under both laws."""
    threshold = np.quantile(losses_below, 1 - fpr)
    return float((losses_above > threshold).mean())


@pytest.mark.parametrize("rate, noise, steps", [(0.5, 0.7, 1), (0.3, 0.8, 3), (0.1, 0.4, 2)])
def test_the_best_test_of_simulated_outputs_reaches_it_and_no_more(rate, noise, steps):
    rng, count = np.random.default_rng(5), 400_000
    withheld = noise * rng.standard_normal((count, steps))
    present = (rng.random((count, steps)) < rate) + noise * rng.standard_normal((count, steps))

    def loss(x):
        return np.log1p(rate * np.expm1((2 * x - 1) / (2 * noise**2))).sum(axis=1)

    step = SampledGaussianDpEvent(rate=rate, noise_multiplier=noise, removed=1, altered=0)
    for fpr in (0.01, 0.1, 0.5):
        bound = largest_tpr(repeated(step, steps), fpr)
        accused = rates_of(loss(present), loss(withheld), fpr)
        spared = rates_of(-loss(withheld), -loss(present), fpr)
        slack = 5 / math.sqrt(count * fpr)  # relative: of an empirical quantile
        assert max(accused, spared) <= bound * (1 + slack)
        assert max(accused, spared) >= bound * (1 - slack) - 1e-3


def test_losses_in_two_far_clusters_are_told_apart():
    # Half of the mass is far out if the unit is present.
    step = SampledGaussianDpEvent(rate=0.5, noise_multiplier=0.1, removed=1, altered=0)
    for fpr, exact in ((1e-4, 0.5), (0.25, 0.5 + 0.25 / 2), (0.5, 1.0)):
        assert largest_tpr(step, fpr) == pytest.approx(exact, abs=1e-3)


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_a_sample_of_the_units_hides_who_takes_part(rate):
    inner = composed(dpa.GaussianDpEvent(1.0), dpa.LaplaceDpEvent(1.0))
    for fpr in RATES:
        sampled = largest_tpr(dpa.PoissonSampledDpEvent(rate, inner), fpr)
        least = (1 - rate) * fpr + rate * largest_tpr(inner, fpr)  # by accusing alike
        assert least - 1e-3 <= sampled <= largest_tpr(inner, fpr) + 1e-9


@pytest.mark.parametrize("mu", [0.05, 0.5, 1.0, 3.0])
def test_events_with_renyi_divergences_alone_are_bounded_from_above(mu):
    event = one_of(dpa.GaussianDpEvent(1 / mu), dpa.GaussianDpEvent(2 / mu))
    for fpr in RATES:
        assert gaussian(mu, fpr) <= largest_tpr(event, fpr) <= 1
    assert largest_tpr(event, 0.001) <= 2 * gaussian(mu, 0.001)


def test_raw_data_allows_everything_and_nothing_released_allows_the_rate_itself():
    assert largest_tpr(dpa.NonPrivateDpEvent(), 0.001) == 1.0
    assert largest_tpr(composed(dpa.GaussianDpEvent(1.0), dpa.GaussianDpEvent(0.0)), 0.001) == 1.0
    assert largest_tpr(dpa.NoOpDpEvent(), 0.001) == 0.001
    assert largest_tpr(repeated(dpa.GaussianDpEvent(1.0), 0), 0.2) == 0.2
    assert largest_tprs(dpa.NoOpDpEvent(), ()) == ()


def test_extremes_are_numbers_between_the_rate_and_one():
    for noise in (1e-3, 0.05, 1e3, 1e6):
        for fpr in (0.0, 1e-12, 0.5, 1.0):
            assert fpr <= largest_tpr(dpa.GaussianDpEvent(noise), fpr) <= 1.0
    far = SampledGaussianDpEvent(rate=1e-6, noise_multiplier=0.3, removed=1, altered=0)
    assert 0.001 <= largest_tpr(repeated(far, 1_000), 0.001) < 0.01


def test_what_cannot_be_is_refused():
    for fpr in (-0.1, 1.1, math.nan, "0.1"):
        with pytest.raises(InvalidInputError, match="fpr"):
            largest_tpr(dpa.GaussianDpEvent(1.0), fpr)
    with pytest.raises(InvalidInputError, match="epsilon"):
        tpr_of(-1.0, 0.0, 0.1)
    with pytest.raises(UnsupportedEventError):
        largest_tpr(dpa.UnsupportedDpEvent(), 0.1)


def test_it_needs_no_torch():
    check = "import sys, graphveil.privacy.tradeoff; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", check], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "False"
