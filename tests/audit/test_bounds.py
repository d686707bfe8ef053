"""Lower bounds on epsilon: how often they are too high, known values, order and edges."""

import itertools
import math
from functools import cache

import dp_accounting as dpa
import numpy as np
import pytest
from scipy import stats

from graphveil._errors import GraphveilError
from graphveil.audit import bounds

ERROR = 0.05
SURE = 1 - 1e-4  # of a test that a valid bound passes


def generator(seed=0):
    return np.random.default_rng(seed)


def too_high(answers, truth):
    """Whether the answers are above the truth too often to be bounds at 95 %."""
    above = int((np.asarray(answers) > truth + 1e-9).sum())
    return bounds.lower_rate(above, len(answers), SURE) > ERROR


def chance_of(epsilon):
    return 1 / (1 + math.exp(-epsilon))


def p_value(m, r, v, epsilon, delta):
    """Theorem 5.2 of Steinke, Nasr and Jagielski (2023), term by term."""
    law = stats.binom(r, chance_of(epsilon))
    near = np.cumsum([law.pmf(v - i) for i in range(1, v + 1)])
    alpha = max((near / np.arange(1, v + 1)).max(initial=0.0), 0.0)
    return law.sf(v - 1) + 2 * m * delta * alpha


# --- coverage -------------------------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [0.0, 0.5, 2.0])
def test_counts_of_randomized_response_are_rarely_too_high(epsilon):
    """The test that says what was answered has exactly this epsilon, at delta 0."""
    wrong = generator().binomial(4000, 1 - chance_of(epsilon), (3000, 2))
    answers = [bounds.epsilon_from_rates(int(a), 4000, int(b), 4000, delta=0.0) for a, b in wrong]
    assert not too_high(answers, epsilon)
    assert np.median(answers) >= 0.7 * epsilon
    loose = [bounds.epsilon_from_rates(int(a), 4000, int(b), 4000, delta=0.0, confidence=0.5)
             for a, b in wrong]  # fmt: skip
    assert too_high(loose, epsilon)


@pytest.mark.parametrize("delta", [0.0, 1e-5])
@pytest.mark.parametrize("epsilon", [0.0, 1.0, 4.0])
def test_one_run_of_randomized_response_is_rarely_too_high(epsilon, delta):
    @cache
    def bound(correct, confidence=0.95):
        return bounds.one_run_agnostic(correct, 300, 300, delta=delta, confidence=confidence)

    correct = generator().binomial(300, chance_of(epsilon), 3000).tolist()
    assert not too_high([bound(v) for v in correct], epsilon)
    assert too_high([bound(v, 0.8) for v in correct], epsilon)
    assert np.median([bound(v) for v in correct]) >= 0.7 * epsilon


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [0.0, 2.0])
def test_ordered_guesses_are_rarely_too_high(epsilon):
    right = generator().random((60, 200)) < chance_of(epsilon)
    answers = [bounds.one_run_ordered(row, canaries=200, delta=1e-5) for row in right]
    assert not too_high(answers, epsilon)
    assert np.median(answers) >= 0.5 * epsilon


def test_an_order_by_scores_is_rarely_too_high():
    """Laplace noise on coins: 1-DP; a score may not be surer than that."""
    random, answers = generator(), []
    for _ in range(150):
        included = random.random(200) < 0.5
        guesses = bounds.order_guesses(included + random.laplace(0.0, 1.0, 200), included)
        answers.append(bounds.one_run_ordered(guesses, canaries=200, delta=0.0))
    assert not too_high(answers, 1.0)
    assert np.median(answers) > 0.2


@pytest.mark.parametrize("mu", [0.0, 1.0])
def test_bounds_of_normal_scores_are_rarely_too_high(mu):
    random = generator()
    pairs = [(random.normal(mu, 1, 60), random.normal(0, 1, 50)) for _ in range(2000)]
    exact = [bounds.gdp_from_normal_scores(*pair, delta=1e-5).mu for pair in pairs]
    held_out = [bounds.gdp_from_scores(*pair, delta=1e-5).mu for pair in pairs]
    assert not too_high(exact, mu)
    assert not too_high(held_out, mu)
    # The exact one is too high just as often as it may be.
    above = sum(one > mu for one in exact)
    assert bounds.upper_rate(above, len(exact), SURE) >= ERROR


def test_the_asymptotic_bound_is_about_right_for_many_scores():
    random = generator()
    pairs = [(random.normal(1, 1, 1000), random.normal(0, 1, 1000)) for _ in range(1000)]
    above = sum(bounds.gdp_asymptotic(*pair, delta=1e-5).mu > 1 for pair in pairs)
    assert bounds.lower_rate(above, 1000, SURE) <= ERROR <= bounds.upper_rate(above, 1000, SURE)


@pytest.mark.slow
def test_a_family_of_events_concedes_the_noise_that_made_the_counts():
    truth = bounds.gdp_epsilon(1.0, 1e-3)
    wrong = generator().binomial(5000, stats.norm.cdf(-0.5), (12, 2))
    answers = [
        bounds.epsilon_from_family(
            dpa.GaussianDpEvent, (int(a), 5000, int(b), 5000), delta=1e-3, quiet=0.2, noisy=10.0
        )
        for a, b in wrong
    ]
    assert not too_high(answers, truth * 1.001)
    assert min(answers) > 0.85 * truth


def test_a_family_whose_most_noise_is_not_refused_proves_nothing():
    rates = (2500, 5000, 2500, 5000)  # a guess
    shown = bounds.epsilon_from_family(
        dpa.GaussianDpEvent, rates, delta=1e-3, quiet=0.2, noisy=10.0
    )
    assert shown == 0.0


# --- known values ---------------------------------------------------------------------------------


@pytest.mark.parametrize("m", [1, 10, 100, 1000])
def test_all_guesses_right_without_delta(m):
    p = ERROR ** (1 / m)  # p^m = 5 %
    expected = max(math.log(p / (1 - p)), 0.0)
    assert bounds.one_run_agnostic(m, m, m, delta=0.0) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(
    ("m", "r", "v"), [(100, 100, 100), (1000, 100, 98), (1000, 1000, 900), (500, 200, 130)]
)
@pytest.mark.parametrize("delta", [1e-6, 1e-5, 1e-4])
def test_steinke_nasr_jagielski_theorem_5_2(m, r, v, delta):
    epsilon = bounds.one_run_agnostic(v, r, m, delta=delta)
    assert epsilon > 0.3
    assert p_value(m, r, v, epsilon, delta) == pytest.approx(ERROR, rel=1e-6)
    assert p_value(m, r, v, epsilon + 1e-3, delta) > ERROR


def test_beyond_a_slack_of_one_no_epsilon_below_the_answer_is_conceded():
    m, r, v, delta = 2000, 400, 390, 4e-4
    epsilon = bounds.one_run_agnostic(v, r, m, delta=delta)
    assert epsilon > 0
    assert all(p_value(m, r, v, one, delta) <= ERROR for one in np.linspace(0, epsilon, 100))


def test_clopper_pearson_and_its_mirror():
    known = stats.binomtest(7, 50).proportion_ci(0.9, method="exact")
    assert bounds.lower_rate(7, 50, 0.95) == pytest.approx(known.low)
    assert bounds.upper_rate(7, 50, 0.95) == pytest.approx(known.high)


def test_mu_and_epsilon_are_inverse():
    event = dpa.GaussianDpEvent(1 / 1.5)
    epsilon = bounds.gdp_epsilon(1.5, 1e-5)
    assert bounds.gdp_mu(epsilon, 1e-5) == pytest.approx(1.5, abs=1e-6)
    assert epsilon == pytest.approx(bounds.epsilon_of(event, 1e-5), rel=2e-3)


# --- order ----------------------------------------------------------------------------------------


def grows(answers):
    return all(a <= b for a, b in itertools.pairwise(answers)) and (answers[0] < answers[-1])


def test_bounds_move_the_way_they_should():
    def one(v=95, r=100, m=200, delta=1e-5, confidence=0.95):
        return bounds.one_run_agnostic(v, r, m, delta=delta, confidence=confidence)

    assert grows([one(v=v) for v in range(60, 101, 5)])
    assert grows([one(delta=delta) for delta in (1e-2, 1e-3, 1e-4, 1e-5, 0.0)])
    assert grows([one(m=m, delta=1e-4) for m in (4000, 2000, 1000, 500, 100)])
    assert grows([one(confidence=c) for c in (0.999, 0.99, 0.95, 0.8)])
    assert grows([bounds.epsilon_from_rates(k, 100, k, 100, delta=1e-5) for k in (40, 20, 5, 0)])
    ordered = [[True] * k + [False] * (50 - k) for k in (20, 30, 40, 50)]
    assert grows([bounds.one_run_ordered(row, canaries=50, delta=0.0) for row in ordered])
    assert grows([bounds.gdp_epsilon(mu, 1e-5) for mu in (0.0, 0.5, 1.0, 3.0)])


# --- edges ----------------------------------------------------------------------------------------


def test_nothing_is_proven_by_no_guess_or_wrong_ones():
    assert bounds.one_run_agnostic(0, 0, 100, delta=1e-5) == 0
    assert bounds.one_run_agnostic(0, 100, 100, delta=1e-5) == 0
    assert bounds.one_run_agnostic(50, 100, 100, delta=0.0) == 0
    assert bounds.one_run_ordered([], canaries=100, delta=1e-5) == 0
    assert bounds.one_run_ordered([False] * 100, canaries=100, delta=1e-5) == 0
    assert bounds.epsilon_from_rates(50, 100, 50, 100, delta=0.0) == 0
    assert bounds.gdp_from_rates(50, 100, 50, 100, delta=1e-5) == (0.0, 0.0)


def test_a_delta_that_explains_all_leaves_nothing():
    assert bounds.one_run_agnostic(10, 10, 1000, delta=0.1) == 0
    assert bounds.one_run_ordered([True] * 10, canaries=1000, delta=0.1) == 0
    assert bounds.epsilon_from_rates(0, 10, 0, 10, delta=0.9) == 0


def test_all_right_proves_a_finite_epsilon():
    assert 2 < bounds.one_run_ordered([True] * 1000, canaries=1000, delta=1e-6) < 10
    fewest = 1 - 0.025 ** (1 / 100)
    assert bounds.epsilon_from_rates(0, 100, 0, 100, delta=0.0) == pytest.approx(
        math.log((1 - fewest) / fewest)
    )
    assert bounds.lower_rate(0, 10) == 0
    assert bounds.upper_rate(10, 10) == 1
    assert bounds.log_ratio(0.5, 0.0, 0.0) == bounds._LARGEST


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: bounds.one_run_agnostic(3, 2, 10, delta=0.0),
        lambda: bounds.one_run_agnostic(2, 11, 10, delta=0.0),
        lambda: bounds.one_run_agnostic(2, 5, 10, delta=1.0),
        lambda: bounds.one_run_agnostic(2, 5, 10, delta=0.0, confidence=1.0),
        lambda: bounds.one_run_ordered([True] * 3, canaries=2, delta=0.0),
        lambda: bounds.gdp_from_normal_scores([1.0], [0.0, 1.0], delta=1e-5),
        lambda: bounds.gdp_from_normal_scores([1.0, 1.0], [0.0, 0.0], delta=1e-5),
        lambda: bounds.gdp_from_scores([1.0, math.nan], [0.0, 1.0], delta=1e-5),
    ],
)
def test_what_makes_no_sense_is_refused(wrong):
    with pytest.raises(GraphveilError):
        wrong()


def test_guesses_come_from_the_surest_on():
    scores, included = [0.1, 5.0, -4.0, 1.0], [False, True, True, True]
    assert bounds.order_guesses(scores, included).tolist() == [True, False, True, True]
    assert bounds.order_guesses(scores, included, ends="top").tolist() == [True, True]
