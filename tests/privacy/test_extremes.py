"""The ends of every range, the events nothing covers, and sampling around a whole run."""

import math

import dp_accounting as dpa
import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.rdp import rdp_privacy_accountant as reference

from graphveil._errors import InvalidInputError, UnsupportedEventError
from graphveil.privacy import _rdp, accounting
from graphveil.privacy.events import (
    GumbelTopKDpEvent,
    RevealedCountGaussianDpEvent,
    SampledGaussianDpEvent,
    composed,
    repeated,
)

pytestmark = pytest.mark.filterwarnings("error")


def step(rate, noise, removed=1, altered=0):
    return SampledGaussianDpEvent(
        rate=rate, noise_multiplier=noise, removed=removed, altered=altered
    )


# --- the ends of the ranges -----------------------------------------------------------------------


def price(event, delta):
    """The account, after a look at each number in it."""
    priced = accounting.price(event, delta)
    for bound in (priced.epsilon, priced.pld, priced.rdp):
        assert bound is None or 0 <= bound < math.inf
    assert priced.epsilon == min(b for b in (priced.pld, priced.rdp) if b is not None)
    assert len(priced.notes) == (priced.pld is None) + (priced.rdp is None)
    assert not any("\n" in note for note in priced.notes)
    return priced.epsilon


@pytest.mark.parametrize(
    "rate, noise, altered, steps",
    [
        (1.0, 0.3, 0, 1),
        (1.0, 0.3, 5000, 1_000_000),
        (1.0, 1e4, 5000, 1),
        (0.3, 0.3, 0, 1_000_000),
        (0.3, 1e4, 5000, 1_000_000),
        (0.3, 0.3, 100, 1000),
        (1e-3, 0.3, 0, 1000),
        (1e-3, 1e4, 0, 1),
        (1e-3, 1e4, 5000, 1),
        (1e-3, 1.0, 5000, 1000),
        (1e-6, 0.3, 0, 1),
        (1e-6, 0.3, 0, 1000),
        (1e-6, 0.3, 10, 1),
        (1e-6, 1e4, 0, 1),
        (1e-6, 1e4, 5000, 1000),
        (1e-6, 30.0, 5000, 1000),
        (0.5, 1e-6, 1, 1),
        (0.5, 1e9, 1, 1),
    ],
)
def test_extremes_get_a_price(rate, noise, altered, steps):
    event = step(rate, noise, 1, altered)
    assert price(repeated(event, steps), 1e-12) > 0
    assert price(repeated(event, steps), 0.5) >= 0


@pytest.mark.parametrize("rate", [1e-15, 1e-17, 1e-30, 1e-300])
def test_rates_below_double_precision_cost_next_to_nothing(rate):
    event = repeated(step(rate, 1.0, 1, 3), 1000)
    assert accounting.price(event, 1e-5).pld == 0
    assert price(event, 1e-12) < 1e-3
    revealed = RevealedCountGaussianDpEvent(noise_multiplier=1.0, altered=3, rate=rate)
    assert price(revealed, 1e-5) == 0


@pytest.mark.slow
@pytest.mark.parametrize("altered", [0, 10, 5000])
@pytest.mark.parametrize("rate", [1.0, 0.3, 1e-3, 1e-6])
def test_all_extremes_get_a_price_that_grows_with_steps(rate, altered):
    for noise, delta in ((0.3, 1e-12), (1.0, 1e-12), (30.0, 1e-12), (1e4, 1e-12), (1.0, 0.1)):
        prices = [
            price(repeated(step(rate, noise, 1, altered), steps), delta)
            for steps in (1, 1000, 1_000_000)
        ]
        assert prices == sorted(prices)


@pytest.mark.parametrize("altered", [0, 500])
@pytest.mark.parametrize("noise", [0.3, 30.0])
@pytest.mark.parametrize("size", [{"rate": 1e-6}, {"population": 10**9, "batch": 10**6}])
def test_revealed_counts_get_a_price(altered, noise, size):
    event = RevealedCountGaussianDpEvent(noise_multiplier=noise, altered=altered, **size)
    assert price(repeated(event, 1000), 1e-12) > 0


@pytest.mark.parametrize("rate, noise", [(1e-3, 0.3), (1e-6, 0.3)])
def test_losses_flat_to_the_last_digit_still_have_a_distribution(rate, noise):
    """Far out on the side where the term was surely not drawn, the loss is log(1 - rate)."""
    assert accounting.price(repeated(step(rate, noise), 1000), 1e-12).pld is not None


@pytest.mark.parametrize("epsilon", [0.0, 1e-3, 10.0, 700.0, 1e6])
@pytest.mark.parametrize(
    "event",
    [
        step(1.0, 0.3),
        repeated(step(1e-3, 1.0, 1, 10), 100),
        step(0.3, 1e4, 1, 5000),
        dpa.PoissonSampledDpEvent(1e-6, repeated(step(0.1, 1.0), 10)),
        GumbelTopKDpEvent(noise_multiplier=3.0, k=5),
    ],
    ids=lambda event: type(event).__name__,
)
def test_delta_is_a_probability_at_every_epsilon(event, epsilon):
    assert 0 <= accounting.delta_of(event, epsilon) <= 1


@pytest.mark.parametrize(
    "event",
    [
        dpa.NonPrivateDpEvent(),
        dpa.GaussianDpEvent(0.0),
        dpa.LaplaceDpEvent(0.0),
        dpa.PoissonSampledDpEvent(0.01, dpa.GaussianDpEvent(0.0)),
        dpa.PoissonSampledDpEvent(0.01, dpa.NonPrivateDpEvent()),
        dpa.ComposedDpEvent([step(0.1, 1.0), dpa.NonPrivateDpEvent()]),
        dpa.SelfComposedDpEvent(dpa.GaussianDpEvent(0), 3),
        dp_event.RepeatAndSelectDpEvent(dpa.GaussianDpEvent(0.0), 5.0, 1.0),
        # dp_accounting keeps these apart from the loss distribution, which then looks free
        dpa.RandomizedResponseDpEvent(0.0, 2),
        dpa.TruncatedSubsampledGaussianDpEvent(100, 0.1, 20, 0.0),
        dp_event.MixtureOfGaussiansDpEvent(0.0, (0.0, 1.0), (0.5, 0.5)),
        dp_event.DiscreteLaplaceDpEvent(0.0, 1),
    ],
    ids=lambda event: type(event).__name__,
)
def test_a_release_without_noise_has_no_epsilon_and_says_so(event):
    priced = accounting.price(event, 1e-5)
    assert (priced.epsilon, priced.pld, priced.rdp) == (math.inf, None, None)
    assert "without noise" in priced.notes[0]
    if not isinstance(event, dpa.PoissonSampledDpEvent):
        assert accounting.delta_of(event, 10.0) == 1


# --- refused --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "event",
    [
        dpa.UnsupportedDpEvent(),
        dpa.SampledWithReplacementDpEvent(100, 10, dpa.GaussianDpEvent(1.0)),
        dpa.SampledWithoutReplacementDpEvent(100, 10, dpa.GaussianDpEvent(1.0)),
    ],
    ids=lambda event: type(event).__name__,
)
def test_what_nothing_covers_is_refused_by_name(event):
    name = type(event).__name__
    whole = dpa.ComposedDpEvent([step(0.1, 1.0), dpa.SelfComposedDpEvent(event, 2)])
    for function in (accounting.price, accounting.delta_of):
        for tree in (event, whole):
            with pytest.raises(UnsupportedEventError, match=name) as refusal:
                function(tree, 0.5)
            assert refusal.value.exit_code == 3
            assert "\n" not in str(refusal.value)


def test_sampling_the_units_inside_a_composition_is_refused():
    """Amplification is proven for a whole run on one sample, not for a part of one."""
    part = dpa.PoissonSampledDpEvent(0.1, repeated(step(0.1, 1.0), 10))
    with pytest.raises(UnsupportedEventError, match="PoissonSampledDpEvent"):
        accounting.price(composed(part, step(0.1, 1.0)), 1e-5)


@pytest.mark.parametrize(
    "event, value",
    [
        (dpa.SelfComposedDpEvent(step(0.1, 1.0), -3), "-3"),
        (composed(dpa.GaussianDpEvent(1), dpa.SelfComposedDpEvent(step(1, 2), -1)), "-1"),
        (dpa.GaussianDpEvent(-1.0), "-1.0"),
        (dpa.GaussianDpEvent(math.nan), "nan"),
        (dpa.LaplaceDpEvent(-2.0), "-2.0"),
        (dpa.PoissonSampledDpEvent(1.5, dpa.GaussianDpEvent(1.0)), "1.5"),
        (dpa.PoissonSampledDpEvent(-0.5, dpa.LaplaceDpEvent(1.0)), "-0.5"),
        (dpa.PoissonSampledDpEvent(0.0, repeated(step(0.1, 1.0), 3)), "0.0"),
        (dpa.ZCDpEvent(-0.1), "-0.1"),
        (dpa.GaussianDpEvent(1e200), "1e\\+200"),
        (step(0.1, 1e-200), "1e-200"),
        (dpa.GaussianDpEvent("1"), "'1'"),
        (dpa.ComposedDpEvent(3), "3"),
        (dpa.ComposedDpEvent([step(0.1, 1.0), 3]), "3"),
        (dpa.SelfComposedDpEvent("step", 3), "'step'"),
        ("gaussian", "'gaussian'"),
    ],
    ids=str,
)  # fmt: skip
def test_senseless_parameters_are_refused_with_their_value(event, value):
    """A negative count would hand budget back; dp_accounting's events check nothing themselves."""
    for function in (accounting.price, accounting.delta_of):
        with pytest.raises(InvalidInputError, match=f"Got {value} instead"):
            function(event, 0.5)


@pytest.mark.parametrize("delta", [0, 1, -1e-5, 1.5, math.nan, math.inf, "1e-5", None, True])
def test_delta_must_be_between_zero_and_one(delta):
    with pytest.raises(InvalidInputError, match="'delta' parameter must be a number in"):
        accounting.price(step(0.1, 1.0), delta)


@pytest.mark.parametrize("epsilon", [-1e-9, math.nan, math.inf, "1"])
def test_epsilon_must_be_a_finite_number_of_at_least_zero(epsilon):
    with pytest.raises(InvalidInputError, match="'epsilon' parameter must be a number in"):
        accounting.delta_of(step(0.1, 1.0), epsilon)


@pytest.mark.parametrize("interval", [0, -1e-4, math.nan])
def test_the_grid_must_have_a_width(interval):
    with pytest.raises(InvalidInputError, match="'interval' parameter must be a number in"):
        accounting.price(step(0.1, 1.0), 1e-5, interval=interval)


# --- Renyi divergences only -----------------------------------------------------------------------


def test_gumbel_top_k_is_concentrated_dp_and_has_no_loss_distribution():
    """k bounded-range mechanisms of range 2 / noise: rho = k / (2 noise^2) together."""
    priced = accounting.price(GumbelTopKDpEvent(noise_multiplier=5.0, k=3), 1e-5)
    assert priced.pld is None
    assert "GumbelTopKDpEvent" in priced.notes[0]
    rho = 3 * (2 / 5.0) ** 2 / 8
    theirs = reference.RdpAccountant(_rdp.ORDERS, dpa.NeighboringRelation.REPLACE_SPECIAL)
    theirs.compose(dpa.ZCDpEvent(rho))
    assert priced.epsilon == priced.rdp == pytest.approx(theirs.get_epsilon(1e-5), rel=1e-12)
    # the textbook conversion is a little looser
    textbook = rho + 2 * math.sqrt(rho * math.log(1e5))
    assert 0.7 * textbook < priced.epsilon < textbook


def test_gumbel_top_k_composes_with_loss_distributions_by_renyi_divergences():
    topk, run = GumbelTopKDpEvent(noise_multiplier=5.0, k=3), repeated(step(0.1, 2.0, 1, 2), 50)
    both = accounting.price(composed(topk, run), 1e-5)
    assert both.pld is None
    parts = [accounting.price(event, 1e-5).rdp for event in (topk, run)]
    assert max(parts) < both.rdp < sum(parts)


@pytest.mark.parametrize("shape", [0.0, 1.0, 2.5, math.inf])
def test_repeat_and_select_over_our_step_is_dp_accountings_formula(shape):
    ours = dp_event.RepeatAndSelectDpEvent(repeated(step(0.1, 2.0), 50), 10.0, shape)
    sampled = dpa.PoissonSampledDpEvent(0.1, dpa.GaussianDpEvent(2.0))
    theirs = dp_event.RepeatAndSelectDpEvent(dpa.SelfComposedDpEvent(sampled, 50), 10.0, shape)
    accountant = reference.RdpAccountant(_rdp.ORDERS[:140], dpa.NeighboringRelation.REPLACE_SPECIAL)
    accountant.compose(theirs)
    priced = accounting.price(ours, 1e-5)
    assert priced.pld is None
    assert priced.rdp == pytest.approx(accountant.get_epsilon(1e-5), rel=5e-4)
    assert priced.rdp > accounting.price(ours.event, 1e-5).rdp


def test_repeat_and_select_takes_steps_with_influence():
    """No other accountant has them: the formula is applied to their divergences by hand."""
    run = repeated(step(0.1, 8.0, 1, 3), 50)
    rdp = reference._compute_rdp_repeat_and_select(
        _rdp.ORDERS, _rdp.RdpAccountant().compose(run).rdp, 10.0, 1.0
    )
    expected, _ = reference.compute_epsilon(_rdp.ORDERS, rdp, 1e-5)
    ours = accounting.price(dp_event.RepeatAndSelectDpEvent(run, 10.0, 1.0), 1e-5)
    assert ours.epsilon == pytest.approx(expected, rel=1e-12)


# --- a whole run on a sample of the units ---------------------------------------------------------


@pytest.mark.parametrize("claimed, proven", [(8.0, 86.48), (1.0, 8.70)])
def test_multiplying_epsilon_by_the_rate_is_not_amplification(claimed, proven):
    """DPAR multiplies by q' = 0.09; what is proven for the epsilon it starts from is this."""
    assert accounting.amplify(claimed / 0.09, 0.09) == pytest.approx(proven, abs=0.005)


@pytest.mark.parametrize("rate", [1.0, 0.3, 1e-3])
def test_amplification_is_the_formula_also_where_exp_overflows(rate):
    for epsilon in (0.0, 1e-12, 0.5, 49.999, 50.001, 700.0):
        expected = math.log1p(rate * math.expm1(epsilon))
        assert accounting.amplify(epsilon, rate) == pytest.approx(expected, rel=1e-12)
        assert accounting.undo_amplify(expected, rate) == pytest.approx(epsilon, rel=1e-9)
    assert accounting.amplify(1e4, rate) == pytest.approx(1e4 + math.log(rate))
    assert accounting.undo_amplify(1e4, rate) == pytest.approx(1e4 - math.log(rate))


def test_outer_sampling_is_amplified_at_delta_over_rate():
    run = composed(repeated(step(0.1, 2.0, 1, 2), 50), dpa.LaplaceDpEvent(3.0))
    rate, delta = 0.2, 1e-6
    inner = accounting.price(run, delta / rate)
    outer = accounting.price(dpa.PoissonSampledDpEvent(rate, run), delta)
    for name in ("epsilon", "pld", "rdp"):
        expected = math.log1p(rate * math.expm1(getattr(inner, name)))
        assert getattr(outer, name) == pytest.approx(expected, rel=1e-12)
    assert outer.delta == delta
    back = accounting.delta_of(dpa.PoissonSampledDpEvent(rate, run), outer.epsilon)
    assert back == pytest.approx(delta, rel=0.02)
    # twice: each id is kept with probability 0.5 * 0.2
    twice = dpa.PoissonSampledDpEvent(0.5, dpa.PoissonSampledDpEvent(rate, run))
    once = dpa.PoissonSampledDpEvent(0.5 * rate, run)
    assert accounting.epsilon_of(twice, delta) == pytest.approx(
        accounting.epsilon_of(once, delta), rel=1e-9
    )


def test_who_hardly_ever_takes_part_needs_no_epsilon():
    rare = dpa.PoissonSampledDpEvent(1e-6, repeated(step(0.5, 0.5, 1, 9), 100))
    assert accounting.epsilon_of(rare, 1e-5) == 0
    assert accounting.delta_of(rare, 0.0) <= 1e-6
    assert accounting.epsilon_of(rare, 1e-7) > 0


def test_amplification_holds_for_discrete_mechanisms_by_brute_force():
    """A unit takes part with probability q; all outputs of both worlds are enumerated."""
    rng, delta = np.random.default_rng(7), 0.02

    def divergence(p, q, epsilon):
        return np.maximum(p - math.exp(epsilon) * q, 0).sum()

    def either(p, q, epsilon):
        return max(divergence(p, q, epsilon), divergence(q, p, epsilon))

    tight = 0
    for _ in range(150):
        present, withheld = rng.dirichlet(np.full(6, 0.7), size=2)
        rate = rng.uniform(0.05, 1.0)
        grid = np.linspace(0, 12, 2401)
        inner = next(e for e in grid if either(present, withheld, e) <= delta / rate or e == 12)
        if inner in (0, 12):
            continue
        sampled = rate * present + (1 - rate) * withheld
        outer = accounting.amplify(inner, rate)
        leak = either(sampled, withheld, outer)
        assert leak <= delta + 1e-12
        # exact in the direction present against withheld
        assert divergence(sampled, withheld, outer) == pytest.approx(
            rate * divergence(present, withheld, inner), abs=1e-12
        )
        tight += leak > 0.98 * delta
    assert tight > 15
