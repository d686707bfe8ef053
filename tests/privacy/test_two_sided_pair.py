"""The dominating pair of a step: reference values, and arrangements that must not beat it."""

import itertools
import math

import dp_accounting as dpa
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from graphveil.privacy import accounting
from graphveil.privacy.events import (
    RevealedCountGaussianDpEvent,
    SampledGaussianDpEvent,
    repeated,
)

# nodes, batch, K, noise over 2 (K + 1) C, steps, delta; two-sided, coupled with 2C and with C
REFERENCE = [
    (90941, 10000, 7, 1.0, 100, 1e-6, 5.056, 8.89, 8.32),
    (90941, 10000, 7, 1.0, 1000, 1e-6, 20.168, 35.54, 32.90),
    (196615, 10000, 10, 0.8, 1000, 1e-6, 10.455, 20.95, 19.92),
    (2000, 200, 7, 1.0, 500, 1e-4, 9.411, 17.12, 15.87),
]


def step(rate, noise, removed=1, altered=0):
    return SampledGaussianDpEvent(
        rate=rate, noise_multiplier=noise, removed=removed, altered=altered
    )


@pytest.mark.parametrize("row", REFERENCE)
def test_the_published_setting_costs_what_two_independent_computations_say(row):
    nodes, batch, cap, ratio, steps, delta, two_sided, coupled, own = row
    noise = 2 * (cap + 1) * ratio
    found = accounting.account(repeated(step(batch / nodes, noise, 1, cap), steps), delta)
    assert found.pld == pytest.approx(two_sided, rel=5e-3)
    for removed, altered, wanted in ((0, cap + 1, coupled), (1, cap, own)):
        event = RevealedCountGaussianDpEvent(
            noise_multiplier=noise, removed=removed, altered=altered, rate=batch / nodes
        )
        assert accounting.account(repeated(event, steps), delta).pld == pytest.approx(
            wanted, rel=5e-3
        )


def _plane(vectors, coins, noise, grid):
    """Density of a sum of sampled vectors plus noise, on a grid of the plane."""
    density = np.zeros(grid[0].shape)
    for pattern in itertools.product((0, 1), repeat=len(vectors)):
        weight = math.prod(coins if drawn else 1 - coins for drawn in pattern)
        mean = np.array(pattern) @ vectors if len(vectors) else np.zeros(2)
        square = (grid[0] - mean[0]) ** 2 + (grid[1] - mean[1]) ** 2
        density += weight * np.exp(-square / (2 * noise**2)) / (2 * math.pi * noise**2)
    return density


@settings(max_examples=10, deadline=None)
@given(
    removed=st.integers(0, 2),
    altered=st.integers(0, 2),
    rate=st.floats(0.05, 1.0),
    noise=st.floats(0.6, 3.0),
    seed=st.integers(0, 10**6),
    collinear=st.booleans(),
)
def test_no_arrangement_of_clipped_gradients_in_the_plane_leaks_more(
    removed, altered, rate, noise, seed, collinear
):
    """Gradients of norm at most one, removed and altered as they like, in both directions."""
    rng = np.random.default_rng(seed)

    def vectors(n):
        angle = rng.uniform(0, 2 * math.pi, n) * (not collinear)
        length = np.where(rng.random(n) < 0.7, 1.0, rng.random(n))
        return length[:, None] * np.stack([np.cos(angle), np.sin(angle)], 1)

    present, withheld = vectors(removed + altered), -vectors(altered)
    reach = removed + altered + 6 * noise
    line = np.linspace(-reach, reach, 1201)
    grid = np.meshgrid(line, line)
    cell = (line[1] - line[0]) ** 2
    p, q = _plane(present, rate, noise, grid), _plane(withheld, rate, noise, grid)
    for epsilon in (0.0, 0.3, 1.0, 2.5):
        bound = accounting.delta(step(rate, noise, removed, altered), epsilon)
        for upper, lower in ((p, q), (q, p)):
            leak = np.maximum(upper - math.exp(epsilon) * lower, 0).sum() * cell
            assert leak <= bound + 2e-5  # the grid errs by up to 1e-5


def test_altered_terms_pointing_opposite_ways_reach_the_bound():
    """The worst case is attained: the test above compares with something that can be reached."""
    line = np.linspace(-14, 14, 200001)
    rate, noise = 0.3, 1.0
    p = sum(stats.binom.pmf(i, 3, rate) * stats.norm.pdf(line, i, noise) for i in range(4))
    q = sum(stats.binom.pmf(j, 2, rate) * stats.norm.pdf(line, -j, noise) for j in range(3))
    for epsilon in (0.0, 0.5, 2.0):
        exact = max(
            np.trapezoid(np.maximum(u - math.exp(epsilon) * v, 0), line)
            for u, v in ((p, q), (q, p))
        )
        assert accounting.delta(step(rate, noise, 1, 2), epsilon) == pytest.approx(exact, rel=2e-3)


@pytest.mark.parametrize(
    ("removed", "relation"),
    [(1, dpa.NeighboringRelation.ADD_OR_REMOVE_ONE), (0, dpa.NeighboringRelation.REPLACE_ONE)],
)
@pytest.mark.parametrize(("rate", "noise", "steps"), [(0.01, 1.0, 300), (0.3, 4.0, 50)])
def test_one_removed_or_one_altered_term_is_dp_accounting_s_event(
    removed, relation, rate, noise, steps
):
    theirs = dpa.pld.PLDAccountant(relation, 1e-4)
    theirs.compose(dpa.PoissonSampledDpEvent(rate, dpa.GaussianDpEvent(noise)), steps)
    ours = accounting.account(
        repeated(step(rate, noise, removed, 1 - removed), steps), 1e-6, interval=1e-4
    )
    assert ours.pld == pytest.approx(theirs.get_epsilon(1e-6), abs=1e-6)


@settings(max_examples=20, deadline=None)
@given(
    removed=st.integers(0, 3),
    altered=st.integers(0, 40),
    noise=st.floats(5.0, 200.0),
    steps=st.integers(1, 300),
)
def test_full_batches_are_one_gaussian(removed, altered, noise, steps):
    reach = removed + 2 * altered
    found = accounting.account(repeated(step(1.0, noise, removed, altered), steps), 1e-5)
    if reach == 0:
        assert found.epsilon == 0
        return
    exact = dpa.get_epsilon_gaussian(noise / reach / math.sqrt(steps), 1e-5)
    assert exact * (1 - 1e-9) <= found.epsilon <= exact * 1.005 + 1e-9


@settings(max_examples=15, deadline=None)
@given(
    rate=st.floats(1e-3, 0.9),
    noise=st.floats(2.0, 50.0),
    removed=st.integers(0, 2),
    altered=st.integers(0, 12),
    steps=st.integers(1, 400),
)
def test_more_influence_rate_or_steps_cost_more_and_revealing_counts_costs_most(
    rate, noise, removed, altered, steps
):
    def cost(**changes):
        settings = {"rate": rate, "noise": noise, "removed": removed, "altered": altered}
        times = changes.pop("steps", steps)
        return accounting.epsilon(repeated(step(**(settings | changes)), times), 1e-6)

    here = cost()
    slack = 2e-3 * here + 1e-6  # grids differ
    assert cost(removed=removed + 1) >= here - slack
    assert cost(altered=altered + 1) >= here - slack
    assert (
        cost(removed=removed + 1, altered=max(altered - 1, 0)) <= cost(altered=altered + 1) + slack
    )
    assert cost(rate=min(1.0, rate * 1.3)) >= here - slack
    assert cost(steps=2 * steps) >= here - slack
    assert cost(noise=noise * 1.3) <= here + slack
    revealed = RevealedCountGaussianDpEvent(
        noise_multiplier=noise, removed=removed, altered=altered, rate=rate
    )
    assert here <= accounting.epsilon(repeated(revealed, steps), 1e-6) * 1.002 + 1e-9
