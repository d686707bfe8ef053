r"""How well scores tell who is in, and whether a certificate allows it.

Candidates are in random order and were put in by coins of their own. Those at even places choose
the thresholds, those at odd places are counted: what is counted knows nothing of the choice.

**Against the certificate** stand two arguments:

1. *Rates.* At each false positive rate of :data:`RATES` the lower Clopper-Pearson limit of the true
   positive rate is compared with the largest that the certificate's event allows at the *upper*
   limit of the false positive rate. The four limits hold together with probability ``confidence``,
   if candidates are independent given their coins. In one run they share a model, and this is an
   approximation.
2. *Guesses.* :func:`~graphveil.audit.bounds.one_run_ordered` needs no independence but that of the
   coins: it gives ``epsilon_at_least``. It pays delta for every candidate, and says nothing where
   that is too much; ``epsilon_if_independent`` is what the counts at odd places would say if each
   came from a run of its own.

A finding does not hold where either contradicts the certificate; each finding has the whole
``confidence`` for itself.

Of n candidates that are out no rate below 1/n can be seen. With a few hundred, ``tpr@0.001`` is
that of a threshold above all of those at even places, whose false positive rate may be anything up
to ``fpr_high@0.001``. So it may exceed ``largest_tpr@0.001``; what its lower limit is compared with
is ``largest_tpr_at_fpr_high@0.001``. Nothing here loads torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from graphveil import _validate
from graphveil._errors import InvalidInputError, UnsupportedEventError
from graphveil.audit.attacks.scores import Array, Coins
from graphveil.audit.bounds import (
    epsilon_from_rates,
    lower_rate,
    one_run_ordered,
    order_guesses,
    upper_rate,
)
from graphveil.audit.results import Finding
from graphveil.privacy.guarantee import Certificate

RATES = (0.001, 0.01)
_LIMITS = 2 * len(RATES)  # a lower and an upper one at each rate


# --- curves ---------------------------------------------------------------------------------------


def roc(scores: Array, inside: Coins) -> tuple[Array, Array]:
    """False and true positive rates of every threshold, from (0, 0) to (1, 1)."""
    scores, inside = _check(scores, inside)
    order = np.argsort(-scores, kind="stable")
    last = np.append(np.diff(scores[order]) != 0, True)  # of equal scores
    hits, misses = np.cumsum(inside[order])[last], np.cumsum(~inside[order])[last]
    start = np.zeros(1)
    return np.append(start, misses / misses[-1]), np.append(start, hits / hits[-1])


def auc(scores: Array, inside: Coins) -> float:
    """The probability that one who is in scores higher than one who is out; ties count half."""
    false, true = roc(scores, inside)
    return float(np.trapezoid(true, false))


def tpr_at(scores: Array, inside: Coins, fpr: float) -> float:
    """The largest true positive rate of a threshold whose false positive rate is at most ``fpr``.

    Threshold and rate are of the same candidates: for a figure, not for a limit.
    """
    false, true = roc(scores, inside)
    return float(true[false <= fpr].max())


def f1(guesses: Coins, inside: Coins) -> float:
    """Twice the right accusations, over accusations and those who are in."""
    total = int(guesses.sum()) + int(inside.sum())
    return 2 * int((guesses & inside).sum()) / total if total else 0.0


# --- held out -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rates:
    """What a threshold, chosen on other candidates, does: counts, rates and their limits."""

    threshold: float
    hits: int
    positives: int
    misses: int
    negatives: int
    confidence: float  # of each limit

    @property
    def tpr(self) -> float:
        """Of those who are in, the share that is accused."""
        return self.hits / self.positives

    @property
    def fpr(self) -> float:
        """Of those who are out, the share that is accused."""
        return self.misses / self.negatives

    @property
    def tpr_low(self) -> float:
        """The true positive rate is not below this."""
        return float(lower_rate(self.hits, self.positives, self.confidence))

    @property
    def tpr_high(self) -> float:
        """The true positive rate is not above this."""
        return float(upper_rate(self.hits, self.positives, self.confidence))

    @property
    def fpr_high(self) -> float:
        """The false positive rate is not above this."""
        return float(upper_rate(self.misses, self.negatives, self.confidence))


def hold_out(scores: Array, inside: Coins, fpr: float, confidence: float = 0.95) -> Rates:
    """Choose the threshold for ``fpr`` at even places, count at odd ones.

    ``confidence`` is that of each limit of the rates.
    """
    scores, inside = _check(scores, inside)
    outside = np.sort(scores[0::2][~inside[0::2]])[::-1]
    # Whoever scores above the first that may not be accused.
    threshold = float(outside[math.floor(fpr * len(outside))])
    accused, present = scores[1::2] > threshold, inside[1::2]
    return Rates(
        threshold=threshold,
        hits=int((accused & present).sum()),
        positives=int(present.sum()),
        misses=int((accused & ~present).sum()),
        negatives=int((~present).sum()),
        confidence=confidence,
    )


def hold_out_f1(scores: Array, inside: Coins) -> float:
    """F1 at odd places of the threshold that is best at even ones."""
    scores, inside = _check(scores, inside)
    pilot, present = scores[0::2], inside[0::2]
    # Between two scores, so that a score seen there is not itself the line.
    values = np.unique(pilot)
    levels = np.append(-np.inf, (values[1:] + values[:-1]) / 2)
    best = max(levels, key=lambda level: f1(pilot > level, present))
    return f1(scores[1::2] > best, inside[1::2])


def hold_out_epsilon(scores: Array, inside: Coins, delta: float, confidence: float = 0.95) -> float:
    """Epsilon at least, by the counts at odd places, *if* candidates are independent.

    The threshold is the best at even places.
    """
    scores, inside = _check(scores, inside)

    def count(level: float, start: int) -> float:
        accused, present = scores[start::2] > level, inside[start::2]
        return epsilon_from_rates(
            int((accused & ~present).sum()),
            int((~present).sum()),
            int((~accused & present).sum()),
            int(present.sum()),
            delta=delta,
            confidence=confidence,
        )

    levels = np.quantile(scores[0::2], np.linspace(0.01, 0.99, 99))
    return count(max(levels, key=lambda level: count(level, 0)), 1)


# --- what is allowed ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Allowance:
    """What a certificate allows to be told of a candidate.

    ``distance`` is how many units must be withheld or put back to turn "out" into "in": 1 where a
    candidate is one unit, 2 where its row is one of two others, None where the certificate is
    silent. A test with rate q on one data set has at most L(q) on a neighbour, L(L(q)) two away.
    """

    certificate: Certificate | None = None
    distance: int | None = 1

    @property
    def epsilon(self) -> float:
        """What is promised for one candidate of distance 1; infinite where nothing is."""
        if self.certificate is None or self.distance is None:
            return math.inf
        return self.certificate.guarantee.epsilon

    @property
    def delta(self) -> float:
        """At which epsilon is asked for."""
        return 0.0 if self.certificate is None else self.certificate.guarantee.delta

    def largest_tpr(self, fpr: float) -> float:
        """The largest true positive rate at ``fpr``; 1 where nothing is promised."""
        from graphveil.privacy.tradeoff import largest_tpr, tpr_of

        if math.isinf(self.epsilon):
            return 1.0
        assert self.certificate is not None
        assert self.distance is not None
        rate = fpr
        for _ in range(self.distance):
            # Both hold, and the smaller one counts.
            stated = tpr_of(self.epsilon, self.delta, rate)
            try:
                rate = min(stated, largest_tpr(self.certificate.event, rate))
            except UnsupportedEventError:
                rate = stated
        return rate


def judge(
    name: str,
    scores: Array,
    inside: Coins,
    allowance: Allowance,
    *,
    note: str = "",
    confidence: float = 0.95,
    more: Mapping[str, Any] | None = None,
) -> Finding:
    """A finding: figures of the scores, and whether the certificate allows them."""
    _validate.number("confidence", confidence, "(0, 1)")
    scores, inside = _check(scores, inside)
    figures: dict[str, Any] = {"auc": auc(scores, inside), "f1": hold_out_f1(scores, inside)}
    holds = True
    for rate in RATES:
        rates = hold_out(scores, inside, rate, 1 - (1 - confidence) / _LIMITS)
        allowed = allowance.largest_tpr(rates.fpr_high)
        holds = holds and not rates.tpr_low > allowed
        figures |= {
            f"tpr@{rate:g}": rates.tpr,
            f"fpr@{rate:g}": rates.fpr,
            f"tpr_low@{rate:g}": rates.tpr_low,
            f"tpr_high@{rate:g}": rates.tpr_high,
            f"fpr_high@{rate:g}": rates.fpr_high,
            f"largest_tpr@{rate:g}": allowance.largest_tpr(rate),
            f"largest_tpr_at_fpr_high@{rate:g}": allowed,
        }
    if allowance.distance == 1:
        independent = hold_out_epsilon(scores, inside, allowance.delta, confidence)
        figures["epsilon_if_independent"] = independent
    at_least = _guess(scores, inside, allowance, confidence)
    if at_least is not None and at_least > allowance.epsilon:
        holds = False
    return Finding(
        kind="attack",
        name=name,
        holds=holds,
        epsilon_at_least=at_least,
        confidence=confidence,
        trials=len(scores),
        bound="" if at_least is None else "one run, ordered guesses",
        note=note,
        figures=figures | dict(more or {}),
    )


def _guess(scores: Array, inside: Coins, allowance: Allowance, confidence: float) -> float | None:
    """Epsilon at least, by guesses from the surest on; None where a candidate is not one unit."""
    if allowance.distance != 1:
        return None
    right = order_guesses(scores, inside.tolist())
    return one_run_ordered(right, canaries=len(right), delta=allowance.delta, confidence=confidence)


def _check(scores: Array, inside: Coins) -> tuple[Array, Coins]:
    scores, inside = np.asarray(scores, np.float64), np.asarray(inside, np.bool_)
    if scores.shape != inside.shape or scores.ndim != 1:
        raise InvalidInputError(
            "There must be one score and one coin for each candidate. Got shapes "
            f"{scores.shape} and {inside.shape} instead."
        )
    if np.isnan(scores).any():
        raise InvalidInputError("All scores must be numbers. Got NaN instead; replace it.")
    halves = [inside[0::2], inside[1::2]]
    if any(half.all() or not half.any() for half in halves):
        raise InvalidInputError(
            "Both halves of the candidates must have some who are in and some who are out. Got "
            f"{int(inside.sum())} of {len(inside)} in instead; take more candidates."
        )
    return scores, inside
