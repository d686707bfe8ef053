"""Scores of membership: what an attacker makes of a target model and of shadow models.

``signals`` are scaled logits, log p - log(1 - p) for the probability p of the true class: one
number for each model and record. A larger score says "in".

==============  ==================================================================================
loss            the target's signal alone
lira            normal laws of the signals in and out (Carlini et al. 2022, online)
lira offline    the law out alone (Carlini et al. 2022, offline)
rmia            how many other records have a smaller likelihood ratio (Zarifzadeh et al. 2024)
base            log-odds of the likelihood against its mean over shadows (Lassila et al. 2025)
g-base          the same, the mean of the neighbours' log-odds added
==============  ==================================================================================

Everything is numpy; nothing here knows the target's coins.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, log_expit

Array = NDArray[np.float64]
Coins = NDArray[np.bool_]

_LEAST = 1e-6  # of a spread: shadows that all say one thing
_MORE_LIKELY = 1.0  # gamma of RMIA


def lira(target: Array, shadows: Array, inside: Coins) -> Array:
    """The log-likelihood ratio of the target's signals, in against out.

    ``shadows`` and ``inside`` have a row for each shadow. Means are each record's own, the spread
    is one for all, in and out, as few shadows allow; it is widened by what such a mean errs.
    """
    present = _log_normal(target, *_law(shadows, inside))
    return present - _log_normal(target, *_law(shadows, ~inside))


def lira_offline(target: Array, shadows: Array, inside: Coins) -> Array:
    """By how many spreads the target's signals exceed those of shadows without the record."""
    mean, spread = _law(shadows, ~inside)
    score: Array = (target - mean) / spread
    return score


def rmia(target: Array, shadows: Array, others: tuple[Array, Array]) -> Array:
    """The share of a population whose likelihood ratio is not above the record's.

    ``others`` are the target's and the shadows' signals of records that are no candidates.
    """
    own = base(target, shadows)
    population = np.sort(base(*others)) + np.log(_MORE_LIKELY)
    below = np.searchsorted(population, own, side="right") / max(1, len(population))
    # Records above or below all of the population are ranked by their ratio itself.
    score: Array = below + 1e-6 * expit(own)
    return score


def base(target: Array, shadows: Array) -> Array:
    """The log-likelihood under the target less the logarithm of its mean over shadows."""
    reference = log_expit(shadows)
    mean = np.logaddexp.reduce(reference, axis=0) - np.log(len(reference))
    score: Array = log_expit(target) - mean
    return score


def g_base(odds: Array, records: Sequence[int], neighbours: Sequence[Array]) -> Array:
    """Own log-odds and the mean of the neighbours', by ``odds`` of all records; nan is no label."""
    around = [odds[ids] for ids in neighbours]
    means = [float(np.nanmean(some)) if np.isfinite(some).any() else 0.0 for some in around]
    score: Array = odds[np.asarray(records)] + np.array(means)
    return score


def _law(signals: Array, chosen: Coins) -> tuple[Array, Array]:
    """Mean and spread of the ``chosen`` signals of every record.

    A record that no shadow chose has the mean of all its signals.
    """
    count = chosen.sum(0)
    mean = np.where(chosen, signals, 0.0).sum(0) / np.maximum(count, 1)
    mean = np.where(count > 0, mean, signals.mean(0))
    squares = np.where(chosen, (signals - mean) ** 2, 0.0).sum()
    freedom = max(1, int(np.maximum(count - 1, 0).sum()))
    spread = max(_LEAST, float(np.sqrt(squares / freedom)))
    return mean, spread * np.sqrt(1 + 1 / np.maximum(count, 1))


def _log_normal(value: Array, mean: Array, spread: Array) -> Array:
    score: Array = -0.5 * ((value - mean) / spread) ** 2 - np.log(spread)
    return score
