r"""Lower bounds on epsilon from counts and scores. Without torch; everything is deterministic.

==================================  ============================================================
:func:`epsilon_from_rates`          a test that was fixed in advance, on independent runs
:func:`one_run_agnostic`            canaries in one run; Steinke, Nasr and Jagielski (2023), 5.2
:func:`one_run_ordered`             the same, with guesses revealed from the surest on
:func:`gdp_from_scores`             independent scores, mu-GDP; a threshold is held out
:func:`gdp_from_normal_scores`      independent normal scores of one variance; exact
:func:`gdp_asymptotic`              difference of means; **asymptotic**, not a proof
:func:`epsilon_from_family`         a family of events, of which only the noise is unknown
==================================  ============================================================

Unless its name says otherwise a bound holds for every finite sample: whatever the mechanism is, the
number returned exceeds its true epsilon with probability at most ``1 - confidence``. Auditing f-DP
in one run by the recursion of Mahloujifar et al. (2024) is left out: we have no proof of our own
for guesses that are withheld.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import dp_accounting as dpa
import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import optimize, special, stats

from graphveil import _validate
from graphveil._errors import InvalidInputError
from graphveil.privacy.accounting import delta_of, epsilon_of

Array = NDArray[np.float64]
_LARGEST = 200.0  # no bound here says more than this epsilon
_STAKES: Array = np.concatenate([np.linspace(0.02, 0.98, 49), 1 - np.geomspace(1e-2, 1e-5, 7)])
_FLOORS = (0.0, 3.0)  # of epsilon: from each on, delta costs bets so much error
_CELL = 0.02  # of epsilon, where a p-value is not known to be monotone


class GdpBound(NamedTuple):
    """A lower bound on mu, and the epsilon of mu-GDP at the delta that was asked for."""

    mu: float
    epsilon: float


# --- counts ---------------------------------------------------------------------------------------


def lower_rate(count: ArrayLike, trials: ArrayLike, confidence: float = 0.95) -> Any:
    """Clopper-Pearson: the probability behind ``count`` of ``trials`` is not below this."""
    count, trials = np.asarray(count, np.float64), np.asarray(trials, np.float64)
    below = special.betaincinv(np.maximum(count, 1), trials - count + 1, 1 - confidence)
    return np.where(count > 0, below, 0.0)[()]


def upper_rate(count: ArrayLike, trials: ArrayLike, confidence: float = 0.95) -> Any:
    """Clopper-Pearson: the probability behind ``count`` of ``trials`` is not above this."""
    return 1.0 - lower_rate(np.asarray(trials) - np.asarray(count), trials, confidence)


def dkw_band(trials: int, error: float) -> float:
    """No empirical distribution function strays further, but with probability ``error``.

    Dvoretzky, Kiefer and Wolfowitz with Massart's constant; for laws with jumps as well.
    """
    return math.sqrt(math.log(2 / error) / (2 * trials))


def epsilon_from_rates(
    false_positives: int,
    negatives: int,
    false_negatives: int,
    positives: int,
    *,
    delta: float,
    confidence: float = 0.95,
) -> float:
    """Epsilon at ``delta``, at least, of whatever a test *fixed in advance* tells apart.

    The test says "present" in ``false_positives`` of ``negatives`` runs without the unit, and
    "withheld" in ``false_negatives`` of ``positives`` runs with it; all runs are independent.

    Proof: both rates are below their Clopper-Pearson bounds with probability ``confidence``. Then
    P(says present) >= 1 - fnr, Q(says present) <= fpr, and privacy says P <= exp(eps) Q + delta;
    "says withheld" gives the other direction from the same two rates.
    """
    _check_level(delta, confidence)
    side_level = (1 + confidence) / 2
    fpr = float(upper_rate(false_positives, negatives, side_level))
    fnr = float(upper_rate(false_negatives, positives, side_level))
    forward = log_ratio(1 - fnr, fpr, delta)
    return max(forward, log_ratio(1 - fpr, fnr, delta))


def log_ratio(first: float, second: float, delta: float) -> float:
    """The least epsilon, 0 or more, for which ``first <= exp(epsilon) second + delta``."""
    if first - delta <= second:
        return 0.0
    return math.log((first - delta) / second) if second > 0 else _LARGEST


# --- one run, whatever the mechanism is -----------------------------------------------------------


def one_run_agnostic(
    correct: int, guesses: int, canaries: int, *, delta: float, confidence: float = 0.95
) -> float:
    r"""Epsilon at ``delta``, at least, from guesses on ``canaries`` that fair coins put in.

    ``guesses`` of them were made, ``correct`` were right; which and how many were made may depend
    on what was released, but not on the answers. Any two canaries' coins are independent, and each
    canary is one unit.

    Steinke, Nasr and Jagielski (2023), Theorem 5.2: at p = exp(eps) / (1 + exp(eps))

        P(correct >= v) <= P(B >= v) + 2 m delta max_i P(v - i <= B < v) / i,   B ~ Bin(guesses, p).

    The answer is the first epsilon that this does not refuse. For 2 m delta <= 1 the right side is
    the largest of expectations of functions that grow with B, hence grows with epsilon, and a
    bisection is exact; beyond, cells of epsilon are bounded one after the other.
    """
    _check_level(delta, confidence)
    _validate.integer("canaries", canaries, "[1, 1e9]")
    _validate.integer("guesses", guesses, f"[0, {canaries}]")
    _validate.integer("correct", correct, f"[0, {guesses}]")
    slack, error = 2 * canaries * delta, 1 - confidence

    def excess(low: float, high: float | None = None) -> float:
        """A bound of the p-value for every epsilon from ``low`` to ``high``, less ``error``."""
        high = low if high is None else high
        least, most = special.expit(low), special.expit(high)
        fewer = np.arange(1, correct + 1)
        beyond = stats.binom.sf(correct - 1, guesses, least)
        near = stats.binom.sf(correct - fewer - 1, guesses, most) - beyond if slack else fewer * 0.0
        alpha = float(np.max(near / fewer, initial=0.0))
        return float(stats.binom.sf(correct - 1, guesses, most)) + slack * alpha - error

    if slack <= 1:
        return _last_refused(excess)
    epsilon = 0.0
    while epsilon < _LARGEST and excess(epsilon, epsilon + _CELL) <= 0:
        epsilon += _CELL
    return epsilon


def order_guesses(
    scores: Sequence[float] | Array, included: Sequence[bool] | Array, *, ends: str = "both"
) -> NDArray[np.bool_]:
    """Whether the guesses are right, the surest first; for :func:`one_run_ordered`.

    The largest scores are guessed to be included and, with both ``ends``, the smallest not to be;
    with ``ends="top"`` only the largest half is guessed. Equal scores stand in the canaries' order,
    which must not depend on the coins.
    """
    _validate.choice("ends", ends, ("both", "top"))
    order = np.argsort(-np.asarray(scores, np.float64), kind="stable")
    inside = np.asarray(included, np.bool_)[order]
    half = (len(order) + 1) // 2
    if ends == "top":
        return inside[:half]
    correct = np.empty(len(order), np.bool_)
    correct[0::2] = inside[:half]
    correct[1::2] = ~inside[half:][::-1]
    return correct


def one_run_ordered(
    correct: Sequence[bool] | NDArray[np.bool_],
    *,
    canaries: int,
    delta: float,
    confidence: float = 0.95,
) -> float:
    r"""Epsilon at ``delta``, at least, from guesses that are revealed one after the other.

    Their order, the guesses and where they end may depend on what was released, and on the coins
    revealed before; nobody has to say in advance how many guesses to make.

    Two bounds share the error; the larger is returned. *Bets*, with p = exp(eps) / (1 + exp(eps)):

        K_k = mean over stakes s of  \prod_(i <= k) (1 - s + s X_i / p),    X_i: guess i is right.

    Given the release y and all other coins, coin i is right with probability p + F_i(y) at most,
    where F_i = (max(P_0, P_1) / (P_0 + P_1) - p)_+ and E F_i <= (1 - p) delta: integrate
    ((1 - p) P_1 - p P_0)_+ = (1 - p) (P_1 - exp(eps) P_0)_+ and its mirror over y. Let X' be X with
    ones struck out such that X'_i is 1 with probability p at most, given the past. X' differs from
    X with probability at most m (1 - p) delta, and K of X' is a supermartingale. By Ville's
    inequality K of X ever reaches 1 / a with probability at most a + m delta / (1 + exp(eps)). K
    falls with epsilon. So, for a floor e fixed in advance, all epsilons from e on may be refused
    where K reaches 1 / a, at an error of a + m delta / (1 + exp(e)) for all of them; whoever is
    refused above e is refused at e. The errors of the floors 0 and 3 add up. *Counts*:
    :func:`one_run_agnostic` after the first 8, 16, 32, ... guesses and after all, likewise.
    """
    _check_level(delta, confidence)
    right = np.asarray(correct, np.bool_)
    _validate.integer("canaries", canaries, "[1, 1e9]")
    _validate.integer("guesses", len(right), f"[0, {canaries}]")
    if not len(right):
        return 0.0
    if delta == 0:
        return _by_bets(right, 0.0, 1 - confidence)
    share = (1 - confidence) / 2
    bets = [
        _by_bets(right, floor, share / len(_FLOORS) - canaries * delta * special.expit(-floor))
        for floor in _FLOORS
    ]
    ends = sorted({*(8 << k for k in range(31) if 8 << k < len(right)), len(right)})
    level = 1 - share / len(ends)
    totals = np.cumsum(right)
    counts = (
        one_run_agnostic(int(totals[end - 1]), end, canaries, delta=delta, confidence=level)
        for end in ends
    )
    return max(*bets, *counts)


def _by_bets(right: NDArray[np.bool_], floor: float, error: float) -> float:
    """From ``floor`` on, the first epsilon at which no bet ever reaches 1 / ``error``; else 0."""
    if error <= 0:
        return 0.0
    hits = np.cumsum(right)[:, None]
    misses = np.arange(1, len(right) + 1)[:, None] - hits

    def excess(epsilon: float) -> float:
        won = np.log1p(_STAKES * math.exp(-epsilon))  # 1 - s + s / p
        capital = special.logsumexp(hits * won + misses * np.log1p(-_STAKES), axis=1)
        return float(-math.log(error) - (capital.max() - math.log(len(_STAKES))))

    return 0.0 if excess(floor) > 0 else _last_refused(excess)


# --- scores of a known law ------------------------------------------------------------------------


def gdp_delta(mu: float, epsilon: float) -> float:
    """Delta of mu-GDP at ``epsilon`` (Dong, Roth and Su 2022, Corollary 2.13)."""
    if mu <= 0:
        return 0.0
    if math.isinf(mu):
        return 1.0
    low = epsilon / mu
    kept = math.exp(min(epsilon + special.log_ndtr(-low - mu / 2), 0.0))
    return float(max(special.ndtr(-low + mu / 2) - kept, 0.0))


def gdp_epsilon(mu: float, delta: float) -> float:
    """Epsilon of mu-GDP at ``delta``, rounded down by 1e-9 at most."""
    if gdp_delta(mu, 0.0) <= delta:
        return 0.0
    high = 1.0
    while gdp_delta(mu, high) > delta:
        high *= 2
        if high > 1e6:
            return high
    root = optimize.brentq(lambda epsilon: gdp_delta(mu, epsilon) - delta, 0.0, high, xtol=1e-10)
    return max(float(root) - 1e-10, 0.0)


def gdp_mu(epsilon: float, delta: float) -> float:
    """The mu of which ``epsilon`` at ``delta`` is all that mu-GDP gives away."""
    high = 1.0
    while gdp_delta(high, epsilon) < delta:
        high *= 2
    low = high / 2
    while gdp_delta(low, epsilon) > delta:
        low /= 2
    return float(optimize.brentq(lambda mu: gdp_delta(mu, epsilon) - delta, low, high, xtol=1e-12))


def gdp_from_rates(
    false_positives: int,
    negatives: int,
    false_negatives: int,
    positives: int,
    *,
    delta: float,
    confidence: float = 0.95,
) -> GdpBound:
    """Mu, at least, from a test fixed in advance: as :func:`epsilon_from_rates`, under mu-GDP.

    No test of mu-GDP has rates below its trade-off curve: mu >= z(1 - fpr) - z(fnr), z the normal
    quantile, at the Clopper-Pearson bounds of both rates.
    """
    _check_level(delta, confidence)
    side_level = (1 + confidence) / 2
    fpr = float(upper_rate(false_positives, negatives, side_level))
    fnr = float(upper_rate(false_negatives, positives, side_level))
    return _as_gdp(float(-special.ndtri(fpr) - special.ndtri(fnr)), delta)


def gdp_from_scores(
    included: Sequence[float] | Array,
    excluded: Sequence[float] | Array,
    *,
    delta: float,
    confidence: float = 0.95,
) -> GdpBound:
    """Mu, at least, where scores are independent, of one law in and of another law out.

    Every second score of either kind chooses the threshold; the others, which are independent of
    it, are counted as in :func:`gdp_from_rates`. No law has to be normal.
    """
    _check_level(delta, confidence)
    inside, outside = (np.asarray(scores, np.float64) for scores in (included, excluded))
    _check_scores(inside, outside)
    pilot = [np.sort(scores[0::2]) for scores in (inside, outside)]
    levels = np.quantile(np.concatenate(pilot), np.linspace(0.01, 0.99, 99))
    missed, hit = (np.searchsorted(scores, levels, side="right") for scores in pilot)
    side_level = (1 + confidence) / 2
    fpr = upper_rate(len(pilot[1]) - hit, len(pilot[1]), side_level)
    fnr = upper_rate(missed, len(pilot[0]), side_level)
    level = levels[int(np.argmax(-special.ndtri(fpr) - special.ndtri(fnr)))]
    tested_in, tested_out = inside[1::2], outside[1::2]
    return gdp_from_rates(
        int((tested_out > level).sum()),
        len(tested_out),
        int((tested_in <= level).sum()),
        len(tested_in),
        delta=delta,
        confidence=confidence,
    )


def gdp_from_normal_scores(
    included: Sequence[float] | Array,
    excluded: Sequence[float] | Array,
    *,
    delta: float,
    confidence: float = 0.95,
) -> GdpBound:
    """Mu, at least, where scores are independent and *normal*, with one unknown variance.

    This is the law of canaries whose gradients are orthogonal, under Gaussian noise. Exact: the
    two-sample t statistic has a noncentral t law, which falls with mu = (difference of means) /
    (standard deviation), and is inverted.
    """
    _check_level(delta, confidence)
    inside, outside = (np.asarray(scores, np.float64) for scores in (included, excluded))
    distance = _standardise(inside, outside)
    root_size = math.sqrt(1 / (1 / len(inside) + 1 / len(outside)))
    freedom = len(inside) + len(outside) - 2

    def excess(mu: float) -> float:
        return confidence - float(special.nctdtr(freedom, mu * root_size, distance * root_size))

    if excess(0.0) > 0:
        return GdpBound(0.0, 0.0)
    low, high = 0.0, distance
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if excess(middle) <= 0 else (low, middle)
    return _as_gdp(low, delta)


def gdp_asymptotic(
    included: Sequence[float] | Array,
    excluded: Sequence[float] | Array,
    *,
    delta: float,
    confidence: float = 0.95,
) -> GdpBound:
    """**Asymptotic**: difference of means over the pooled deviation, less its standard error.

    The delta method for two normal laws of one variance: the variance of the estimate tends to
    1/n + 1/m + mu^2 / (2 (n + m)). No guarantee for any finite sample; not a proof.
    """
    _check_level(delta, confidence)
    inside, outside = (np.asarray(scores, np.float64) for scores in (included, excluded))
    mu, total = _standardise(inside, outside), len(inside) + len(outside)
    variance = 1 / len(inside) + 1 / len(outside) + mu**2 / (2 * total)
    return _as_gdp(mu - float(special.ndtri(confidence)) * math.sqrt(variance), delta)


def epsilon_from_family(
    make_event: Callable[[float], dpa.DpEvent],
    rates: tuple[int, int, int, int],
    *,
    delta: float,
    quiet: float,
    noisy: float,
    confidence: float = 0.95,
) -> float:
    """Epsilon at ``delta``, at least, where a release is known but for its noise.

    ``make_event(noise)`` is the event, for noise from ``quiet`` to ``noisy``; more noise is more
    private. ``rates`` are the four counts of :func:`epsilon_from_rates`. A noise is refused where
    its event's delta at some epsilon of a grid, fixed by the two confidence bounds, is below what
    the test shows. The answer is the price of the least private noise that must be conceded: all
    that is noisier was refused. Prices are bounds from above, which refuses less; the answer itself
    is as sharp as they are (a thousandth, by losses). Where ``noisy`` is not refused, there may be
    more noise than that as well, and the answer is 0.
    """
    _check_level(delta, confidence)
    side_level = (1 + confidence) / 2
    fpr = float(upper_rate(rates[0], rates[1], side_level))
    fnr = float(upper_rate(rates[2], rates[3], side_level))
    shown: list[tuple[float, float]] = []
    for first, second in ((1 - fnr, fpr), (1 - fpr, fnr)):
        top = log_ratio(first, second, 0.0)
        grid = np.linspace(0.0, 1.0, 7)[:-1] * top
        shown += [(float(e), float(first - math.exp(e) * second)) for e in grid if top]

    def refused(noise: float) -> bool:
        event = make_event(noise)
        return any(delta_of(event, epsilon) < least for epsilon, least in shown)

    if not refused(noisy):
        return 0.0
    if refused(quiet):
        return epsilon_of(make_event(quiet), delta)
    low, high = math.log(quiet), math.log(noisy)
    for _ in range(12):
        middle = (low + high) / 2
        low, high = (low, middle) if refused(math.exp(middle)) else (middle, high)
    return epsilon_of(make_event(math.exp(high)), delta)


# --- helpers --------------------------------------------------------------------------------------


def _last_refused(excess: Callable[[float], float]) -> float:
    """Where a growing function of epsilon turns positive, from below; 0 where it always is."""
    if excess(0.0) > 0:
        return 0.0
    low, high = 0.0, 1.0
    while excess(high) <= 0:
        low, high = high, 2 * high
        if low > _LARGEST:
            return _LARGEST
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if excess(middle) <= 0 else (low, middle)
    return low


def _as_gdp(mu: float, delta: float) -> GdpBound:
    mu = max(mu, 0.0)
    return GdpBound(mu, gdp_epsilon(mu, delta))


def _standardise(inside: Array, outside: Array) -> float:
    """The difference of means over the pooled standard deviation."""
    _check_scores(inside, outside)
    squares = inside.var() * len(inside) + outside.var() * len(outside)
    deviation = math.sqrt(squares / (len(inside) + len(outside) - 2))
    if deviation == 0:
        raise InvalidInputError(
            "The scores must differ among themselves. Got one value alone on either side instead; "
            "take a score without ties, or count guesses (one_run_agnostic)."
        )
    return float((inside.mean() - outside.mean()) / deviation)


def _check_scores(inside: Array, outside: Array) -> None:
    if min(len(inside), len(outside)) < 2:
        raise InvalidInputError(
            "There must be at least two scores with the canary and two without. Got "
            f"{len(inside)} and {len(outside)} instead; use more canaries."
        )
    if not (np.isfinite(inside).all() and np.isfinite(outside).all()):
        raise InvalidInputError("All scores must be finite. Got NaN or infinity; replace them.")


def _check_level(delta: float, confidence: float) -> None:
    _validate.number("delta", delta, "[0, 1)")
    _validate.number("confidence", confidence, "(0, 1)")
