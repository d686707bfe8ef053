"""What the adapter reads past dp_accounting's public interface means what we take it for."""

from importlib import metadata

import dp_accounting as dpa
import numpy as np
import pytest
from dp_accounting.pld.pld_privacy_accountant import PLDAccountant

from graphveil.privacy import _dp_accounting
from graphveil.privacy._dp_accounting import Grid, convolve, is_supported, loss_grids
from graphveil.privacy._rdp import ORDERS, RdpAccountant

RAISED = "dp-accounting was raised: check every attribute that _dp_accounting.py and _rdp.py read."


def test_the_pin_and_what_it_pins():
    """Private attributes of dp_accounting, each compared with what its public interface says."""
    assert metadata.version("dp-accounting").startswith("0.6."), RAISED
    grids = loss_grids(dpa.PoissonSampledDpEvent(0.2, dpa.LaplaceDpEvent(1.0)), 1e-2)
    assert len(grids) == 2, RAISED  # a sample: the two directions differ
    theirs = PLDAccountant(dpa.NeighboringRelation.REPLACE_SPECIAL, 1e-2)
    theirs.compose(dpa.PoissonSampledDpEvent(0.2, dpa.LaplaceDpEvent(1.0)))
    for epsilon in (0.0, 0.05, 0.1):
        deltas = []
        for grid in grids:
            losses = (grid.lower + np.arange(len(grid.probs))) * grid.interval
            beyond = np.maximum(-np.expm1(epsilon - losses), 0.0)
            deltas.append(grid.infinite + beyond @ grid.probs)
        assert max(deltas) == pytest.approx(theirs.get_delta(epsilon), abs=1e-12), RAISED
    (grid,) = loss_grids(dpa.LaplaceDpEvent(1.0), 1e-2)
    assert (grid.interval, grid.lower, len(grid.probs)) == (1e-2, -100, 201), RAISED
    assert grid.probs.sum() + grid.infinite == pytest.approx(1.0), RAISED
    assert _dp_accounting._read(_dp_accounting._write(grid)) == grid, RAISED
    accountant = RdpAccountant()
    accountant._rdp += ORDERS / 8
    expected = RdpAccountant().compose(dpa.GaussianDpEvent(2.0))
    assert accountant.get_epsilon(1e-5) == pytest.approx(expected.get_epsilon(1e-5)), RAISED


def test_convolution_adds_losses_up():
    one = Grid(0.5, -1, np.array([0.25, 0.5, 0.25]), 0.0)
    other = Grid(0.5, 4, np.array([0.5, 0.5]), 0.0)
    both = convolve(one, other, 0.0)
    assert (both.interval, both.lower, both.infinite) == (0.5, 3, 0.0)
    assert both.probs == pytest.approx(np.convolve(one.probs, other.probs))
    with pytest.raises(ValueError, match="Discretization intervals are different"):
        convolve(one, other._replace(interval=0.25), 0.0)


def test_support_is_dp_accountings():
    assert is_supported(dpa.LaplaceDpEvent(1.0))
    assert not is_supported(dpa.UnsupportedDpEvent())
