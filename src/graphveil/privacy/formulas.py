r"""The papers' formulas: numbers in, numbers out.

Nothing here is a guarantee. What is claimed with them, and what can be proven instead, is in
:mod:`graphveil.privacy.claims`. Noise is in units of the clipping bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import optimize, special

DPAR_MECHANISMS = ("gm", "em0", "em1")
OPACUS_ORDERS = np.array([1 + x / 10 for x in range(1, 100)] + [*range(12, 64)])


# --- RDP ------------------------------------------------------------------------------------------


def classic(rdp: Callable[[float], float], delta: float) -> float:
    """``min over alpha > 1 of rdp(alpha) + ln(1 / delta) / (alpha - 1)`` (Mironov 2017).

    (alpha - 1) rdp(alpha) is convex, so that there is one valley and a line search finds it.
    """
    log_inverse = -math.log(delta)
    valley = optimize.minimize_scalar(
        lambda log_x: rdp(1 + math.exp(log_x)) + log_inverse / math.exp(log_x),
        bounds=(math.log(1e-5), math.log(1e5)),
        method="bounded",
        options={"xatol": 1e-7},
    )
    return float(valley.fun)


def sampled_rdp(rate: float, noise: float, order: float) -> float:
    """RDP of the Poisson-sampled Gaussian, one term removed: ln A(alpha) / (alpha - 1), where

        A(alpha) = E_{z ~ N(0, noise^2)} (1 - rate + rate exp((2 z - 1) / (2 noise^2)))^alpha

    By the trapezoidal rule, up to 12 standard deviations beyond where the integrand can peak.
    """
    if rate == 1:
        return order / (2 * noise**2)
    z = np.arange(-12 * noise, order + 12 * noise, noise / 8)
    log_ratio = np.logaddexp(math.log1p(-rate), math.log(rate) + (2 * z - 1) / (2 * noise**2))
    log_terms = order * log_ratio - z**2 / (2 * noise**2)
    return float(special.logsumexp(log_terms) - math.log(8 * math.sqrt(2 * math.pi))) / (order - 1)


# --- DPAR: Corollary 1, Theorems 1 and 3 as printed, and back -------------------------------------


@dataclass(frozen=True)
class RowNoise:
    """The noise on all scores, and for ``em1`` the Laplace scale of the values."""

    scores: float
    values: float | None = None


def dpar_row_epsilon(
    mechanism: str, noise: RowNoise, *, delta: float, rows: int, neighbours: int
) -> float:
    """One row of ``rows``: the Gaussian mechanism (``gm``), or Corollary 1, for ``em1`` and values.

    It holds at delta / (2 rows); the other half of ``delta`` is the composition's.
    """
    if mechanism == "gm":
        return _gaussian(delta, rows) / noise.scores
    values = 0.0 if noise.values is None else neighbours / noise.values
    return _selection(1 / noise.scores, neighbours, delta, rows) + values


def dpar_rows_epsilon(row: float, *, delta: float, rows: int) -> float:
    """Theorems 1 and 3: the epsilon at ``delta`` of so many rows of epsilon ``row`` each."""
    log_epsilon = optimize.brentq(
        lambda log: math.log(_share(math.exp(log), delta, rows) / row),
        math.log(row),  # rows together never cost less than one
        math.log(row) + 60,
        xtol=1e-14,
    )
    return math.exp(log_epsilon)


def dpar_rows_noise(
    mechanism: str, *, epsilon: float, delta: float, rows: int, neighbours: int
) -> RowNoise:
    """The noise for which the theorems print ``epsilon``; of ``em1`` half goes to the values."""
    row = _share(epsilon, delta, rows)
    if mechanism == "gm":
        return RowNoise(_gaussian(delta, rows) / row)
    names = row if mechanism == "em0" else row / 2
    log_e = optimize.brentq(
        lambda log: math.log(_selection(math.exp(log), neighbours, delta, rows) / names),
        math.log(names / (2 * neighbours)) - 1,  # a selection costs between 2 e and 2 K e
        math.log(names / 2) + 1,
        xtol=1e-14,
    )
    return RowNoise(math.exp(-log_e), None if mechanism == "em0" else neighbours / names)


def _share(epsilon: float, delta: float, rows: int) -> float:
    """epsilon / (2 sqrt(M ln(e + epsilon / delta))), what each row has of ``epsilon``."""
    wide = float(np.logaddexp(1.0, math.log(epsilon) - math.log(delta)))
    return epsilon / (2 * math.sqrt(rows * wide))


def _gaussian(delta: float, rows: int) -> float:
    return math.sqrt(2 * (math.log(1.25) + _log_inverse(delta, rows)))


def _selection(e: float, k: int, delta: float, rows: int) -> float:
    """Corollary 1: the k largest after Gumbel noise of scale (largest score) / e."""
    advanced = k * e * math.tanh(e) + e * math.sqrt(2 * k * _log_inverse(delta, rows))
    return 2 * min(k * e, advanced)


def _log_inverse(delta: float, rows: int) -> float:
    """ln(1 / d) for the d = delta / (2 rows) of one row."""
    return math.log(2 * rows) - math.log(delta)


def dpar_steps_epsilon(rate: float, noise: float, steps: int, delta: float) -> float:
    """eps_sgd as the released code has it, since Theorem 2 leaves its constants open.

    RDP of plain DP-SGD (one term a node, removed) at ``rate`` = batch / sampled training nodes, and
    the classic conversion at the orders 1.1 to 10.9 and 12 to 63.
    """
    rdp = steps * np.array([sampled_rdp(rate, noise, order) for order in OPACUS_ORDERS])
    return float((rdp - math.log(delta) / (OPACUS_ORDERS - 1)).min())
