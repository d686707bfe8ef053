"""The laws a step's price must obey, whatever its parameters.

Sampled steps are compared with other people's accountants where one covers them, with weaker
theorems that must never be beaten by us, and with attacks that must never beat us.
"""

import itertools
import math

import dp_accounting as dpa
import numpy as np
import pytest
from dp_accounting.pld.pld_privacy_accountant import PLDAccountant
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import special, stats

from graphveil.privacy import accounting
from graphveil.privacy.events import (
    RevealedCountGaussianDpEvent,
    SampledGaussianDpEvent,
    composed,
    repeated,
)

GRID = 2e-3  # of epsilon: what rounding up to a grid may add to either of two prices
DELTA = 1e-5


def law(examples):
    return settings(max_examples=examples, deadline=None, derandomize=True, database=None)


def spread(low, high):
    """Numbers whose logarithm is spread evenly."""
    return st.floats(math.log(low), math.log(high)).map(math.exp)


rates = spread(0.01, 0.6)
noises = spread(0.8, 20.0)
step_counts = spread(1, 300).map(round)


def step(rate, noise, removed=1, altered=0):
    return SampledGaussianDpEvent(
        rate=rate, noise_multiplier=noise, removed=removed, altered=altered
    )


def pld(event, steps=1, delta=DELTA, interval=None):
    return accounting.account(repeated(event, steps), delta, interval=interval).pld


# --- equal to other accountants -------------------------------------------------------------------


@pytest.mark.parametrize(
    "removed, altered, relation",
    [
        (1, 0, dpa.NeighboringRelation.ADD_OR_REMOVE_ONE),
        (0, 1, dpa.NeighboringRelation.REPLACE_ONE),
    ],
)
@law(6)
@given(rate=rates, noise=spread(1.5, 6.0), steps=step_counts)
def test_one_term_is_dp_accountings_sampled_gaussian(
    removed, altered, relation, rate, noise, steps
):
    reference = PLDAccountant(relation, value_discretization_interval=1e-4)
    reference.compose(dpa.PoissonSampledDpEvent(rate, dpa.GaussianDpEvent(noise)), steps)
    ours = pld(step(rate, noise, removed, altered), steps, interval=1e-4)
    assert ours == pytest.approx(reference.get_epsilon(DELTA), rel=1e-6)


@pytest.mark.parametrize(
    "rate, noise, steps, delta",
    [(0.02, 1.1, 1000, 1e-5), (0.3, 4.0, 150, 1e-5), (0.1, 2.0, 100, 1e-6)],
)
def test_one_removed_term_is_opacus_sampled_gaussian(rate, noise, steps, delta):
    accountants = pytest.importorskip("opacus.accountants")
    reference = accountants.PRVAccountant()
    reference.history = [(noise, rate, steps)]
    assert pld(step(rate, noise), steps, delta) == pytest.approx(
        reference.get_epsilon(delta, eps_error=1e-3), rel=0.01
    )


@law(25)
@given(
    total=spread(0.2, 50.0),
    removed=st.integers(0, 3),
    altered=st.integers(0, 20),
    steps=spread(1, 1e6).map(round),
    delta=spread(1e-12, 1e-2),
)
def test_full_batches_are_one_gaussian(total, removed, altered, steps, delta):
    """Drawn for certain, a removed term moves the sum by C and an altered one by 2C."""
    assume(removed + altered)
    noise = total * (removed + 2 * altered) * math.sqrt(steps)
    exact = dpa.get_epsilon_gaussian(total, delta)
    ours = pld(step(1.0, noise, removed, altered), steps, delta)
    assert exact * (1 - 1e-9) <= ours <= exact * 1.001 + 1e-6


# --- order ----------------------------------------------------------------------------------------


@law(12)
@given(rate=rates, noise=noises, steps=step_counts, data=st.data())
def test_more_influence_costs_more(rate, noise, steps, data):
    """(r, a) is at least (r', a') whenever r + a >= r' + a' and a >= a': also (0, 2) and (1, 1)."""
    altered = data.draw(st.integers(0, 8))
    removed = data.draw(st.integers(0 if altered else 1, 3))
    fewer = data.draw(st.integers(0, altered))
    least = 0 if fewer else 1
    others = data.draw(st.integers(least, max(least, removed + altered - fewer)))
    assume(fewer + others <= removed + altered)
    more = pld(step(rate, noise, removed, altered), steps)
    less = pld(step(rate, noise, others, fewer), steps)
    assert less <= more * (1 + GRID)


@pytest.mark.parametrize("chain", [[(1, 0), (2, 0), (1, 1), (0, 2), (1, 2)], [(0, 1), (1, 1)]])
def test_each_unit_of_influence_costs_something(chain):
    """Pairs in ascending order are apart by far more than the grid."""
    prices = [pld(step(0.1, 3.0, *pair), 50) for pair in chain]
    assert all(b > 1.02 * a for a, b in itertools.pairwise(prices))


@law(10)
@given(rate=rates, noise=noises, altered=st.integers(0, 8), steps=step_counts)
def test_price_grows_with_rate_and_steps_and_falls_with_noise(rate, noise, altered, steps):
    base = pld(step(rate, noise, 1, altered), steps)
    assert pld(step(1.2 * rate, noise, 1, altered), steps) > base
    assert pld(step(rate, noise, 1, altered), math.ceil(1.2 * steps)) > base
    assert pld(step(rate, 1.2 * noise, 1, altered), steps) < base


@law(15)
@given(
    rate=rates,
    noise=noises,
    removed=st.integers(0, 2),
    altered=st.integers(0, 8),
    steps=step_counts,
    delta=spread(1e-9, 1e-3),
)
def test_loss_distributions_are_never_worse_than_renyi_divergences(
    rate, noise, removed, altered, steps, delta
):
    """Renyi divergences forget something, so they can only cost more; epsilon is the smaller."""
    assume(removed + altered)
    event = repeated(step(rate, noise, removed, altered), steps)
    priced = accounting.account(event, delta)
    assert priced.pld <= 1.005 * priced.rdp
    assert priced.epsilon == min(priced.pld, priced.rdp)


# --- weaker theorems ------------------------------------------------------------------------------


@law(12)
@given(
    rate=rates,
    noise=noises,
    removed=st.integers(0, 2),
    altered=st.integers(0, 8),
    steps=step_counts,
)
def test_revealing_the_count_never_helps_privacy(rate, noise, removed, altered, steps):
    assume(removed + altered)
    event = RevealedCountGaussianDpEvent(
        rate=rate, noise_multiplier=noise, removed=removed, altered=altered
    )
    hidden = accounting.account(repeated(step(rate, noise, removed, altered), steps), DELTA)
    revealed = accounting.account(repeated(event, steps), DELTA)
    assert hidden.rdp <= revealed.rdp * (1 + 1e-6)
    if revealed.pld is not None:
        assert hidden.pld <= revealed.pld * (1 + GRID)


def theorem_one(log_weights, noise, steps, delta):
    """Daigavane et al., Theorem 1, with the law of the number of affected terms left open.

    gamma = log E[exp(2 alpha (alpha - 1) rho^2 / noise^2)] / (alpha - 1) for each step, where rho
    terms are affected and each moves the sum by 2C; epsilon = steps gamma + log(1/delta)/(alpha-1).
    """
    orders = 1 + np.geomspace(0.05, 500, 400)[:, None]
    rho = np.arange(len(log_weights))
    exponents = 2 * orders * (orders - 1) * rho**2 / noise**2 + log_weights
    gamma = special.logsumexp(exponents, axis=1) / (orders[:, 0] - 1)
    return float(np.min(steps * gamma + math.log(1 / delta) / (orders[:, 0] - 1)))


@pytest.mark.parametrize(
    "population, batch, K, ratio, steps, delta, published",
    [
        (90941, 10000, 7, 1.0, 100, 1e-6, 10.47),
        (90941, 10000, 7, 1.0, 1000, 1e-6, 38.92),
        (196615, 10000, 10, 0.8, 1000, 1e-6, 23.39),
        (2000, 200, 7, 1.0, 500, 1e-4, 19.81),
    ],
)
def test_theorem_one_is_written_down_rightly_here(
    population, batch, K, ratio, steps, delta, published
):
    weights = stats.hypergeom(population, K + 1, batch).logpmf(np.arange(K + 2))
    found = theorem_one(weights, ratio * 2 * (K + 1), steps, delta)
    assert found == pytest.approx(published, rel=0.002)


@law(15)
@given(rate=rates, ratio=spread(0.2, 3.0), K=st.integers(0, 10), steps=step_counts)
def test_never_above_theorem_one_for_poisson_batches(rate, ratio, K, steps):
    noise = ratio * 2 * (K + 1)
    claimed = theorem_one(stats.binom(K + 1, rate).logpmf(np.arange(K + 2)), noise, steps, DELTA)
    assert accounting.epsilon_of(repeated(step(rate, noise, 1, K), steps), DELTA) <= claimed


# --- attacks --------------------------------------------------------------------------------------


def mixture(vectors, rate, noise, axis):
    """Density on a plane grid of sampled vectors plus Gaussian noise, all coins enumerated."""
    total = 0.0
    for coins in itertools.product([0, 1], repeat=len(vectors)):
        weight = rate ** sum(coins) * (1 - rate) ** (len(coins) - sum(coins))
        x, y = sum((c * v for c, v in zip(coins, vectors, strict=True)), np.zeros(2))
        along, across = (np.exp(-((axis - m) ** 2) / (2 * noise**2)) for m in (x, y))
        total = total + weight * np.multiply.outer(along, across)
    return total / (2 * math.pi * noise**2)


def hockey_sticks(removed, altered_from, altered_to, rate, noise, epsilons):
    """Both directions' hockey-stick divergences of one step in which terms are these vectors."""
    reach = len(removed) + len(altered_from) + 7 * noise
    axis = np.arange(-reach, reach, 0.05 * noise)
    cell = (axis[1] - axis[0]) ** 2
    # Turned, so that the edge of what is integrated meets the grid at every offset: along an axis
    # the rule would be off by up to step^2 / 24 of the slope, which is more than the tolerance.
    turn = np.array([[math.cos(0.7), -math.sin(0.7)], [math.sin(0.7), math.cos(0.7)]])
    present = mixture([turn @ v for v in (*removed, *altered_from)], rate, noise, axis)
    withheld = mixture([turn @ v for v in altered_to], rate, noise, axis)
    return [
        max(
            np.maximum(present - math.exp(e) * withheld, 0).sum() * cell,
            np.maximum(withheld - math.exp(e) * present, 0).sum() * cell,
        )
        for e in epsilons
    ]


# Any vector of the disc; half of them near the ends of the first axis, where the worst case is.
angles = st.one_of(st.floats(-math.pi, math.pi), st.floats(-0.3, 0.3), st.floats(2.9, 3.4))
vectors = st.tuples(st.one_of(st.floats(0, 1), st.just(1.0)), angles).map(
    lambda polar: polar[0] * np.array([math.cos(polar[1]), math.sin(polar[1])])
)
EPSILONS = (0.0, 0.1, 0.5, 1.5, 3.0)


@law(40)
@given(
    rate=st.floats(0.05, 0.95),
    noise=spread(0.4, 3.0),
    removed=st.lists(vectors, max_size=2),
    altered=st.lists(st.tuples(vectors, vectors), max_size=2),
)
def test_no_arrangement_of_clipped_vectors_leaks_more(rate, noise, removed, altered):
    assume(removed or altered)
    before, after = [pair[0] for pair in altered], [pair[1] for pair in altered]
    leaks = hockey_sticks(removed, before, after, rate, noise, EPSILONS)
    event = step(rate, noise, len(removed), len(altered))
    for eps, leak in zip(EPSILONS, leaks, strict=True):
        assert leak <= accounting.delta_of(event, eps) + 1e-5


@pytest.mark.parametrize("removed, altered", [(1, 0), (0, 1), (1, 1), (2, 1), (0, 2)])
@pytest.mark.parametrize("rate, noise", [(0.2, 1.0), (0.7, 0.6)])
def test_the_collinear_arrangement_leaks_all_of_it(removed, altered, rate, noise):
    """So the price is not only safe but the least there is for one step."""
    e = np.array([1.0, 0.0])
    leaks = hockey_sticks([e] * removed, [e] * altered, [-e] * altered, rate, noise, EPSILONS)
    event = step(rate, noise, removed, altered)
    for eps, leak in zip(EPSILONS, leaks, strict=True):
        assert accounting.delta_of(event, eps) == pytest.approx(leak, abs=2e-6, rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize(
    "rate, noise, removed, altered, steps",
    [
        (0.2, 1.0, 1, 0, 10),
        (0.2, 1.5, 1, 1, 10),
        (0.1, 4.0, 1, 7, 20),
        (0.5, 1.0, 0, 1, 2),
        (0.05, 0.7, 0, 3, 1),
    ],
)
def test_no_likelihood_ratio_test_on_simulated_runs_beats_epsilon(
    rate, noise, removed, altered, steps
):
    """Clopper-Pearson at 1 - 1e-6: a run in which this fails by chance is one in 10,000."""
    rng, runs, delta = np.random.default_rng(20240229), 1_000_000, 1e-3
    present, withheld = removed + altered, altered

    def log_density(x, terms, side):
        weights = stats.binom(terms, rate).pmf(np.arange(terms + 1))
        return np.log(
            sum(w * np.exp(-((x - side * i) ** 2) / (2 * noise**2)) for i, w in enumerate(weights))
        )

    def losses(terms, side):
        total = np.zeros(runs)
        for _ in range(steps):
            x = side * rng.binomial(terms, rate, runs) + noise * rng.standard_normal(runs)
            total += log_density(x, present, 1) - log_density(x, withheld, -1)
        return np.sort(total)

    of_present, of_withheld = losses(present, 1), losses(withheld, -1)
    epsilon = accounting.epsilon_of(repeated(step(rate, noise, removed, altered), steps), delta)
    best = 0.0
    for yes, no, sign in ((of_present, of_withheld, 1), (of_withheld, of_present, -1)):
        yes, no = np.sort(sign * yes), np.sort(sign * no)
        for threshold in np.quantile(yes, [0.2, 0.5, 0.8, 0.9, 0.95, 0.98]):
            hits = runs - np.searchsorted(yes, threshold, side="right")
            false = runs - np.searchsorted(no, threshold, side="right")
            hit_rate = stats.beta.ppf(1e-6, hits, runs - hits + 1)
            false_rate = stats.beta.ppf(1 - 1e-6, false + 1, runs - false)
            if hit_rate > delta:
                best = max(best, math.log((hit_rate - delta) / false_rate))
    assert best <= epsilon
    assert best >= 0.5 * epsilon  # an attack worth the name


# --- inverse, and composition ---------------------------------------------------------------------


@law(10)
@given(
    rate=rates,
    noise=noises,
    altered=st.integers(0, 8),
    steps=step_counts,
    delta=spread(1e-9, 1e-3),
)
def test_epsilon_and_delta_are_inverse(rate, noise, altered, steps, delta):
    event = repeated(step(rate, noise, 1, altered), steps)
    epsilon = accounting.epsilon_of(event, delta)
    assume(0 < epsilon < 100)
    back = accounting.delta_of(event, epsilon)
    assert back <= delta * (1 + 1e-3)
    assert accounting.delta_of(event, epsilon * 1.005) <= back
    # and delta is not needlessly small either: its own epsilon is the one we came from
    assert accounting.epsilon_of(event, back) == pytest.approx(epsilon, rel=5e-3)


KINDS = (
    step(0.2, 2.0, 1, 3),
    step(0.05, 1.0, 0, 1),
    dpa.LaplaceDpEvent(8.0),
    dpa.GaussianDpEvent(5.0),
    RevealedCountGaussianDpEvent(noise_multiplier=4.0, removed=1, altered=2, rate=0.1),
)


@pytest.mark.parametrize("event", KINDS, ids=lambda event: type(event).__name__)
def test_a_list_of_equal_events_is_their_self_composition(event):
    listed = accounting.account(dpa.ComposedDpEvent([event] * 7), DELTA)
    counted = accounting.account(dpa.SelfComposedDpEvent(event, 7), DELTA)
    assert (listed.pld, listed.rdp) == pytest.approx((counted.pld, counted.rdp), rel=1e-12)
    nested = dpa.SelfComposedDpEvent(composed(event, dpa.SelfComposedDpEvent(event, 6)), 1)
    assert accounting.account(nested, DELTA).pld == pytest.approx(counted.pld, rel=1e-12)


def test_order_does_not_matter():
    events = [repeated(KINDS[0], 20), repeated(KINDS[1], 50), KINDS[2]]
    prices = {
        accounting.account(dpa.ComposedDpEvent(list(order)), DELTA, interval=2e-3).pld
        for order in itertools.permutations(events)
    }
    assert max(prices) == pytest.approx(min(prices), rel=1e-9)


def test_nothing_costs_nothing():
    event = repeated(KINDS[0], 20)
    alone = accounting.account(event, DELTA)
    nothing = [
        dpa.NoOpDpEvent(),
        dpa.SelfComposedDpEvent(KINDS[1], 0),
        step(0.0, 1.0, 1, 3),
        step(0.5, 1.0, 0, 0),
    ]
    with_nothing = accounting.account(dpa.ComposedDpEvent([*nothing, event]), DELTA)
    assert (with_nothing.pld, with_nothing.rdp) == (alone.pld, alone.rdp)
    assert accounting.account(dpa.ComposedDpEvent(nothing), DELTA).epsilon == 0


@law(6)
@given(
    rate=rates,
    noise=spread(0.8, 4.0),
    steps=step_counts,
    laplace=spread(1.0, 20.0),
    gaussian=spread(1.0, 20.0),
    times=st.integers(1, 20),
)
def test_mixed_composition_agrees_with_dp_accounting(rate, noise, steps, laplace, gaussian, times):
    """Directions are composed apart: dp_accounting's result is the same to the last digits."""
    plain = [
        dpa.SelfComposedDpEvent(dpa.LaplaceDpEvent(laplace), times),
        dpa.GaussianDpEvent(gaussian),
        dpa.SelfComposedDpEvent(dpa.PoissonSampledDpEvent(0.3, dpa.LaplaceDpEvent(1.0)), 2),
    ]
    reference = PLDAccountant(value_discretization_interval=1e-3)
    sampled = dpa.PoissonSampledDpEvent(rate, dpa.GaussianDpEvent(noise))
    reference.compose(dpa.ComposedDpEvent([dpa.SelfComposedDpEvent(sampled, steps), *plain]))
    ours = composed(repeated(step(rate, noise), steps), *plain)
    assert accounting.account(ours, DELTA, interval=1e-3).pld == pytest.approx(
        reference.get_epsilon(DELTA), rel=1e-6
    )
