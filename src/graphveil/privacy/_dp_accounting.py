"""Everything of dp_accounting's loss distributions that is read past its public interface.

dp_accounting offers no way to read a distribution's grid. The few private attributes it takes stand
here and nowhere else; ``tests/privacy/test_dp_accounting.py`` holds them to what they mean, and the
dependency is pinned below 0.7.
"""

from __future__ import annotations

from typing import NamedTuple

import dp_accounting as dpa
from dp_accounting.pld import pld_pmf
from dp_accounting.pld.pld_privacy_accountant import PLDAccountant

from graphveil.privacy._mixture import Array


class Grid(NamedTuple):
    """Losses ``(lower + k) * interval`` with probabilities ``probs[k]``; the rest is infinite."""

    interval: float
    lower: int
    probs: Array
    infinite: float


def is_supported(event: dpa.DpEvent) -> bool:
    """Whether dp_accounting has a loss distribution of an event with one unit withheld."""
    return bool(PLDAccountant(dpa.NeighboringRelation.REPLACE_SPECIAL).supports(event))


def loss_grids(event: dpa.DpEvent, interval: float) -> tuple[Grid, ...]:
    """The losses of an event, present against withheld, and back; one if they are equal."""
    accountant = PLDAccountant(dpa.NeighboringRelation.REPLACE_SPECIAL, interval).compose(event)
    losses = accountant._pld
    pmfs = (losses._pmf_remove,) if losses._symmetric else (losses._pmf_remove, losses._pmf_add)
    return tuple(_read(pmf.to_dense_pmf()) for pmf in pmfs)


def convolve(one: Grid, other: Grid, truncation: float) -> Grid:
    """The sum of two independent losses on one grid, but for ``truncation`` of its mass."""
    return _read(_write(one).compose(_write(other), truncation))


def _read(pmf: pld_pmf.DensePLDPmf) -> Grid:
    return Grid(pmf._discretization, pmf._lower_loss, pmf._probs, pmf._infinity_mass)


def _write(grid: Grid) -> pld_pmf.DensePLDPmf:
    return pld_pmf.DensePLDPmf(*grid, True)
