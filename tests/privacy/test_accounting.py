"""From events to epsilon: never optimistic, right at the extremes, refused where unproven."""

import itertools
import math
import warnings

import dp_accounting as dpa
import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.pld.pld_privacy_accountant import PLDAccountant
from scipy import integrate, stats

from graphveil._errors import BudgetError, GraphveilError, InvalidInputError, UnsupportedEventError
from graphveil.privacy import _pld, _rdp, accounting
from graphveil.privacy.events import (
    GumbelTopKDpEvent,
    RevealedCountGaussianDpEvent,
    SampledGaussianDpEvent,
    composed,
    from_json,
    repeated,
    to_json,
)


def step(rate, noise, removed=1, altered=0):
    return SampledGaussianDpEvent(
        rate=rate, noise_multiplier=noise, removed=removed, altered=altered
    )


# --- never optimistic ---------------------------------------------------------------------------


@pytest.mark.parametrize("delta", [1e-5, 1e-10, 1e-12])
@pytest.mark.parametrize("steps", [1, 1000, 10**5, 10**6])
def test_a_million_convolutions_stay_above_the_exact_gaussian(steps, delta):
    """Untilted, dp_accounting's own convolution gives 6.519 for the 6.548 of (1e6, 1e-10)."""
    mu = 1 / math.sqrt(steps)
    (losses,) = _pld.discretise(step(1.0, 1 / mu), 0.03 * mu)
    found = _pld.Composition([(losses, steps)]).epsilon(delta)
    exact = dpa.get_epsilon_gaussian(1.0, delta)
    assert exact * (1 - 1e-9) <= found <= exact * 1.005


@pytest.mark.parametrize(("removed", "altered"), [(1, 0), (0, 1), (1, 3)])
@pytest.mark.parametrize(("rate", "noise"), [(0.2, 1.0), (0.01, 0.5), (0.7, 3.0)])
def test_discretised_losses_dominate_the_exact_curve_in_each_direction(
    rate, noise, removed, altered
):
    event = step(rate, noise, removed, altered)
    directions = _pld.discretise(event, 0.01)
    n = removed + altered

    def present(x):
        counts = np.arange(n + 1)
        return (stats.binom.pmf(counts, n, rate) * stats.norm.pdf(x, counts, noise)).sum()

    def withheld(x):
        counts = np.arange(altered + 1)
        return (stats.binom.pmf(counts, altered, rate) * stats.norm.pdf(x, -counts, noise)).sum()

    reach = (altered + 10 * noise, n + 10 * noise)
    line = np.linspace(-reach[0], reach[1], 20001)
    p, q = np.array([[present(x), withheld(x)] for x in line]).T
    for (upper, lower), losses in zip(((p, q), (q, p)), directions * 2, strict=False):
        for epsilon in (-0.5, 0.0, 0.017, 0.3, 1.0, 3.0):
            exact = integrate.simpson(np.maximum(upper - math.exp(epsilon) * lower, 0), x=line)
            values, probs = losses.values, losses.probs
            beyond = values > epsilon
            found = losses.infinite + probs[beyond] @ -np.expm1(epsilon - values[beyond])
            assert found >= exact - 1e-6
            assert found <= exact + 5e-4  # cells are 0.01 wide


@pytest.mark.parametrize(
    ("rate", "noise", "removed", "altered"),
    [(0.1, 1.0, 1, 0), (1e-6, 1.0, 1, 0), (0.3, 8.0, 1, 5), (0.05, 2.0, 0, 3), (0.9, 3.0, 2, 1)],
)
def test_renyi_divergences_are_the_integrals_they_claim_to_be(rate, noise, removed, altered):
    curve = _rdp.sampled_gaussian(step(rate, noise, removed, altered))
    n = removed + altered
    counts, others = np.arange(n + 1), np.arange(altered + 1)
    weights = stats.binom.pmf(counts, n, rate)
    other_weights = stats.binom.pmf(others, altered, rate)
    for place in (0, 40, 57, 63):
        order = _rdp.ORDERS[place]
        x = np.linspace(-altered * order - 14 * noise, n * order + 14 * noise, 400_001)
        x = np.concatenate([-x[::-1], x])
        x = np.unique(x)
        p = np.log((weights * np.exp((counts * x[:, None] - counts**2 / 2) / noise**2)).sum(1))
        q = np.log(
            (other_weights * np.exp((-others * x[:, None] - others**2 / 2) / noise**2)).sum(1)
        )
        base = stats.norm.pdf(x, 0, noise)
        found = []
        for upper, lower in ((p, q), (q, p)):
            loss = upper - lower
            excess = base * np.exp(lower) * (np.expm1(order * loss) - order * np.expm1(loss))
            found.append(math.log1p(integrate.trapezoid(excess, x)) / (order - 1))
        assert curve[place] == pytest.approx(max(found), rel=2e-6)


# --- the extremes -------------------------------------------------------------------------------

RATES, ALTERED, NOISES = (1.0, 0.5, 1e-6), (0, 7, 5000), (0.3, 16.0, 1e4)


def priced(rate, altered, noise, steps, delta):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            found = accounting.account(repeated(step(rate, noise, 1, altered), steps), delta)
        except GraphveilError as error:
            message = str(error)
            found = None
    if found is None:
        assert "\n" not in message
        return
    assert 0 <= found.epsilon < math.inf
    for bound in (found.pld, found.rdp):
        assert bound is None or (bound >= found.epsilon and math.isfinite(bound))
    assert found.pld is not None or found.rdp is not None


@pytest.mark.parametrize(("rate", "altered"), list(itertools.product(RATES, ALTERED)))
def test_extremes_get_an_answer(rate, altered):
    for noise, (steps, delta) in itertools.product(NOISES, ((1, 1e-12), (1000, 1e-5))):
        priced(rate, altered, noise, steps, delta)


@pytest.mark.slow
@pytest.mark.parametrize(("rate", "altered"), list(itertools.product(RATES, ALTERED)))
def test_extremes_get_an_answer_after_a_million_steps(rate, altered):
    for noise, delta in itertools.product(NOISES, (1e-5, 1e-12)):
        priced(rate, altered, noise, 10**6, delta)


def test_steps_of_rate_zero_and_no_steps_cost_nothing():
    assert accounting.epsilon(repeated(step(0.0, 1.0, 1, 3), 50), 1e-5) == 0
    assert accounting.epsilon(repeated(step(0.5, 1.0), 0), 1e-5) == 0
    assert accounting.epsilon(dpa.NoOpDpEvent(), 1e-5) == 0


@pytest.mark.parametrize(
    "event",
    [
        dpa.NonPrivateDpEvent(),
        dpa.GaussianDpEvent(0.0),
        dpa.LaplaceDpEvent(0.0),
        dpa.ComposedDpEvent([dpa.GaussianDpEvent(1.0), dpa.NonPrivateDpEvent()]),
        dpa.PoissonSampledDpEvent(0.1, dpa.GaussianDpEvent(0.0)),
        dpa.RandomizedResponseDpEvent(0.0, 3),
    ],
)
def test_a_release_without_noise_has_no_epsilon_and_says_why(event):
    found = accounting.account(event, 1e-5)
    assert found.epsilon == math.inf
    assert "without noise" in found.notes[0]
    assert accounting.delta(event, 3.0) == 1


# --- other events ---------------------------------------------------------------------------------


def test_a_mixed_composition_agrees_with_dp_accounting():
    parts = [
        dpa.SelfComposedDpEvent(dpa.PoissonSampledDpEvent(0.1, dpa.GaussianDpEvent(2.0)), 40),
        dpa.LaplaceDpEvent(3.0),
        dpa.GaussianDpEvent(5.0),
    ]
    theirs = PLDAccountant(dpa.NeighboringRelation.REPLACE_SPECIAL, 1e-3)
    theirs.compose(dpa.ComposedDpEvent(parts))
    for order in itertools.permutations(parts):
        ours = accounting.account(composed(*order), 1e-6, interval=1e-3)
        assert ours.pld == pytest.approx(theirs.get_epsilon(1e-6), rel=1e-6)


def test_directions_are_not_mixed():
    """Forward with forward: composing each event's worse direction would cost more."""
    parts = [(step(0.02, 0.7), 40), (step(0.5, 6.0, 1, 3), 40)]
    whole = accounting.epsilon(composed(*(repeated(*part) for part in parts)), 1e-6)
    losses = [(_pld.discretise(event, 1e-3), count) for event, count in parts]
    each = [
        _pld.Composition([(directions[k], count) for directions, count in losses]).epsilon(1e-6)
        for k in (0, 1)
    ]
    assert whole == pytest.approx(max(each), rel=2e-3)


def test_gumbel_top_k_is_priced_by_its_range():
    event = GumbelTopKDpEvent(noise_multiplier=5.0, k=3)
    found = accounting.account(repeated(event, 10), 1e-6)
    assert found.pld is None
    assert "GumbelTopK" in found.notes[0]
    rho = 10 * 3 / (2 * 25)
    theirs = dpa.rdp.RdpAccountant(_rdp.ORDERS).compose(dpa.ZCDpEvent(rho)).get_epsilon(1e-6)
    assert found.epsilon == pytest.approx(theirs)


def test_repeat_and_select_prices_our_own_events():
    ours = dp_event.RepeatAndSelectDpEvent(repeated(step(0.1, 4.0), 20), 10, 1)
    plain = dp_event.RepeatAndSelectDpEvent(
        dpa.SelfComposedDpEvent(dpa.PoissonSampledDpEvent(0.1, dpa.GaussianDpEvent(4.0)), 20), 10, 1
    )
    theirs = dpa.rdp.RdpAccountant().compose(plain).get_epsilon(1e-5)
    found = accounting.account(ours, 1e-5)
    assert found.pld is None
    assert found.epsilon == pytest.approx(theirs, rel=0.02)


def test_sampling_the_units_first_obeys_the_amplification_formula():
    inner = composed(repeated(step(0.2, 8.0, 1, 3), 10), dpa.LaplaceDpEvent(2.0))
    outer = dpa.PoissonSampledDpEvent(0.1, inner)
    e = accounting.epsilon(inner, 1e-6 / 0.1)
    wanted = math.log1p(0.1 * math.expm1(e))
    assert accounting.epsilon(outer, 1e-6) == pytest.approx(wanted, rel=1e-9)
    assert accounting.delta(outer, wanted) == pytest.approx(1e-6, rel=0.02)
    assert accounting.amplify(8 / 0.09, 0.09) == pytest.approx(86.48, abs=5e-3)
    assert accounting.amplify(1 / 0.09, 0.09) == pytest.approx(8.70, abs=5e-3)


def test_sampled_randomised_response_by_hand():
    """A bit flipped with probability 1/(1 + e^e), run on a unit that takes part at rate q."""
    e, q = 1.3, 0.25
    truth = 1 / (1 + math.exp(-e))
    present, absent = q * truth + (1 - q) * (1 - truth), 1 - truth
    worst = max(math.log(present / absent), math.log((1 - absent) / (1 - present)))
    assert worst <= accounting.amplify(e, q) + 1e-12
    assert worst == pytest.approx(accounting.amplify(e, q))


@pytest.mark.parametrize(
    ("event", "name"),
    [
        (dpa.UnsupportedDpEvent(), "UnsupportedDpEvent"),
        (dpa.SampledWithReplacementDpEvent(10, 2, dpa.GaussianDpEvent(1.0)), "SampledWithReplace"),
        (
            dpa.ComposedDpEvent(
                [
                    dpa.GaussianDpEvent(1.0),
                    dpa.PoissonSampledDpEvent(0.1, GumbelTopKDpEvent(noise_multiplier=1.0)),
                ]
            ),
            "PoissonSampled",
        ),
    ],
)
def test_what_no_bound_covers_is_refused_by_name(event, name):
    for call in (accounting.account, accounting.delta):
        with pytest.raises(UnsupportedEventError, match=name) as caught:
            call(event, 1e-5)
        assert caught.value.exit_code == 3


@pytest.mark.parametrize("delta", [0, 1, -1e-5, 1.5, math.nan, "1e-5", None])
def test_a_delta_that_is_none_is_refused(delta):
    with pytest.raises(InvalidInputError, match="'delta'"):
        accounting.account(step(0.1, 1.0), delta)


def test_epsilon_and_delta_undo_each_other():
    event = repeated(step(0.1, 3.0, 1, 2), 50)
    for delta in (1e-3, 1e-6, 1e-9):
        e = accounting.epsilon(event, delta)
        assert accounting.delta(event, e) == pytest.approx(delta, rel=0.03)


# --- calibration ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("altered", "epsilon"), [(0, 8.0), (7, 1.0), (0, 0.1)])
def test_the_least_noise_fits_and_a_little_less_does_not(altered, epsilon):
    def run(noise):
        return repeated(step(0.2, noise, 1, altered), 100)

    noise = accounting.calibrate(run, epsilon=epsilon, delta=1e-5, safe=1e6, risky=1e-2)
    assert accounting.epsilon(run(noise), 1e-5) <= epsilon
    assert accounting.epsilon(run(noise * 0.998), 1e-5) > epsilon


def test_the_most_steps_fit_and_one_more_does_not():
    def run(steps):
        return repeated(step(0.1, 5.0, 1, 1), steps)

    steps = accounting.calibrate(run, epsilon=1.0, delta=1e-5, safe=1, risky=10**6, integer=True)
    assert isinstance(steps, int)
    assert accounting.epsilon(run(steps), 1e-5) <= 1 < accounting.epsilon(run(steps + 1), 1e-5)


def test_the_largest_rate_fits_and_a_little_more_does_not():
    def run(rate):
        return repeated(step(rate, 5.0), 200)

    rate = accounting.calibrate(run, epsilon=1.0, delta=1e-5, safe=1e-9, risky=1.0)
    assert accounting.epsilon(run(rate), 1e-5) <= 1 < accounting.epsilon(run(rate * 1.002), 1e-5)


def test_a_target_out_of_reach_is_refused_and_one_within_reach_of_all_is_the_end():
    def run(steps):
        return repeated(step(1.0, 1.0), steps)

    ends = {"safe": 1, "risky": 100, "integer": True}
    with pytest.raises(BudgetError, match="Even 1 spends"):
        accounting.calibrate(run, epsilon=0.01, delta=1e-5, **ends)
    assert accounting.calibrate(run, epsilon=1e4, delta=1e-5, **ends) == 100


# --- writing events down --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "event",
    [
        step(0.1, 2.0, 1, 3),
        RevealedCountGaussianDpEvent(noise_multiplier=2.0, rate=0.1, altered=2),
        RevealedCountGaussianDpEvent(noise_multiplier=2.0, population=10, batch=2, altered=2),
        GumbelTopKDpEvent(noise_multiplier=2.0, k=3),
        dp_event.RepeatAndSelectDpEvent(repeated(step(0.1, 4.0), 20), 10, math.inf),
        dpa.ComposedDpEvent([dpa.GaussianDpEvent(1.0), repeated(dpa.LaplaceDpEvent(2.0), 3)]),
        dpa.PoissonSampledDpEvent(0.5, dpa.NoOpDpEvent()),
        dpa.ZCDpEvent(0.5, 0.1),
    ],
)
def test_an_event_survives_json(event):
    import json

    assert from_json(json.loads(json.dumps(to_json(event)))) == event


@pytest.mark.parametrize(
    "raw",
    [
        {},
        [],
        None,
        {"type": "os.system"},
        {"type": "GaussianDpEvent"},
        {"type": "GaussianDpEvent", "noise_multiplier": 1.0, "extra": 2},
        {"type": "SampledGaussianDpEvent", "rate": 2.0, "noise_multiplier": 1.0},
    ],
)
def test_what_is_not_an_event_is_refused_in_one_line(raw):
    with pytest.raises(InvalidInputError) as caught:
        from_json(raw)
    assert "\n" not in str(caught.value)
