"""What is left out to save time changes no digit."""

import dp_accounting as dpa
import numpy as np
import pytest
from dp_accounting.pld import common

from graphveil.privacy import _pld, _rdp
from graphveil.privacy.accounting import calibrate
from graphveil.privacy.events import (
    GumbelTopKDpEvent,
    SampledGaussianDpEvent,
    composed,
    repeated,
)


def steps(count, rate, noise, removed=1, altered=0):
    step = SampledGaussianDpEvent(
        rate=rate, noise_multiplier=noise, removed=removed, altered=altered
    )
    return repeated(step, count)


EVENTS = {
    "150 steps": steps(150, 0.5, 11.0, altered=1),
    "no edges": steps(150, 0.5, 3.8),
    "much influence": steps(1000, 0.05, 200.0, altered=110),
    "one step": steps(1, 0.5, 5.9, altered=1),
    "a rare term": steps(20_000, 1e-3, 0.63),
    "hardly any loss": steps(150, 0.5, 1e7),
    "hardly any noise": steps(150, 0.1, 0.01, altered=7),
    "the whole batch": steps(40, 1.0, 24.0, altered=2),
    "two kinds of steps, and sums": composed(
        repeated(dpa.GaussianDpEvent(4.0), 2), steps(120, 0.3, 6.0, altered=1), steps(150, 0.25, 8)
    ),
    "beside Renyi only": composed(
        repeated(GumbelTopKDpEvent(noise_multiplier=90.0, k=4), 20), steps(120, 0.3, 6.0, altered=1)
    ),
    "beside Laplace noise": composed(dpa.LaplaceDpEvent(4.0), steps(100, 0.1, 5.0)),
    "a sample": repeated(dpa.PoissonSampledDpEvent(0.2, dpa.GaussianDpEvent(2.6)), 100),
}


@pytest.mark.parametrize("delta", [1e-2, 1e-5, 1e-9, 1e-18])
@pytest.mark.parametrize("name", EVENTS)
def test_few_orders_give_the_epsilon_of_all_to_the_digit(name, delta):
    few = _rdp.SparseRdpAccountant().compose(EVENTS[name]).get_epsilon(delta)
    assert few == _rdp.RdpAccountant().compose(EVENTS[name]).get_epsilon(delta)


@pytest.mark.parametrize("name", EVENTS)
def test_bounds_from_a_few_orders_are_below_all_others(name):
    for _, curve in _rdp.SparseRdpAccountant().compose(EVENTS[name])._terms:
        if isinstance(curve, _rdp._Curve):
            whole = curve.all_orders()
            for few in ([0, 60, 61], [0, 90], [0, 30, 60, 70]):
                curve._known = {k: whole[k] for k in few}
                assert (curve.lower_bounds() <= whole).all()
                assert curve.lower_bounds()[few] == pytest.approx(whole[few], rel=2e-6)
            curve._known = {}


def test_a_price_takes_a_few_integrals(monkeypatch):
    orders, divergence = [], _rdp._divergence
    monkeypatch.setattr(
        _rdp, "_divergence", lambda *args: orders.append(args[-1]) or divergence(*args)
    )
    _rdp.SparseRdpAccountant().compose(steps(150, 0.4987, 11.0, altered=1)).get_epsilon(1e-5)
    assert 0 < len(set(orders)) <= 12
    assert len(orders) == 2 * len(set(orders))


def test_each_value_is_priced_once(monkeypatch):
    noises, discretise = [], _pld.discretise
    monkeypatch.setattr(
        _pld,
        "discretise",
        lambda leaf, width: (
            noises.append((leaf.noise_multiplier, width)) or discretise(leaf, width)
        ),
    )
    calibrate(
        lambda noise: steps(150, 0.4, noise, altered=1),
        epsilon=8.0, delta=1e-5, safe=1e7, risky=1e-2,
    )  # fmt: skip
    assert len(noises) == len(set(noises))
    assert len({noise for noise, _ in noises}) <= 9
    assert max(noise for noise, _ in noises) < 100  # not at the safe end, which RDP decides


CALIBRATED = {  # as certificates carry them since 0.1.0
    (0.5, 1, 1, 150, 8.0, 1e-5): 11.043248015229706,
    (0.5, 1, 0, 150, 8.0, 1e-5): 3.7699306402749277,
    (0.1, 1, 7, 150, 8.0, 1e-5): 11.009990240284147,
    (0.05, 1, 110, 1000, 8.0, 1e-5): 209.73095984820299,
    (0.8, 0, 1, 60, 16.0, 1e-4): 3.915413052889221,
    (0.4, 2, 0, 77, 0.1, 1e-12): 432.2207067644843,
}


@pytest.mark.parametrize("case", CALIBRATED)
def test_calibrated_noise_keeps_its_digits(case):
    rate, removed, altered, count, epsilon, delta = case
    noise = calibrate(
        lambda noise: steps(count, rate, noise, removed, altered),
        epsilon=epsilon, delta=delta, safe=1e7, risky=1e-2,
    )  # fmt: skip
    assert noise == pytest.approx(CALIBRATED[case], rel=1e-12)


@pytest.mark.parametrize("count", [2, 150, 100_000])
@pytest.mark.parametrize("seed", range(5))
def test_the_window_of_a_power_is_that_of_all_orders(count, seed):
    rng = np.random.default_rng(seed)
    probs = np.exp(-(((np.arange(3000) - rng.uniform(0, 3000)) / rng.uniform(3, 1000)) ** 2))
    probs *= rng.random(3000) ** 3
    probs /= probs.sum()
    index = np.arange(3000)
    mean = float(index @ probs)
    spread = float(np.sqrt((index - mean) ** 2 @ probs * count))
    orders = _pld._CHERNOFF / spread
    low, high = common.compute_self_convolve_bounds(
        probs, count, _pld._TRUNCATION, np.concatenate([-orders, orders])
    )
    assert np.ceil(min(_pld._reach(probs, count, spread, 1), 2999 * count)) == high
    assert np.floor(max(-_pld._reach(probs, count, spread, -1), 0)) == low
