"""How good a figure is by chance: answers are dealt out anew to the test records, whoever they fit.

A model that knows nothing of anybody is as good after such a deal as before it. So a figure that is
better than those of all 99 deals is chance once in a hundred times.

Links are ranked source by source, beside a guess that ranks them for the same sources. A model that
knows nothing of anybody is as often worse than the guess as better: so each source's difference has
its sign drawn, 99 times.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphveil.methods.measures import SMALLER_IS_BETTER

DEALS = 99
_MOST = 10_000  # records that are dealt to; of fewer a figure varies more

Array = NDArray[Any]


def best_by_chance(metric: str, answers: Array, decided: Array, true: Array) -> float | None:
    """The best figure of 99 deals; None of a metric by which no task is judged, or of nobody.

    ``answers`` are (records, columns); of ``true`` -1 is not known where there are several labels.
    """
    figure = _FIGURES.get(metric)
    if figure is None or not len(true) or not np.isfinite(answers).all():
        return None
    rng = np.random.default_rng(0)
    kept = np.sort(rng.permutation(len(true))[:_MOST])
    answers, decided, true = answers[kept], decided[kept], true[kept]
    figures = (figure(answers, decided, true, rng.permutation(len(true))) for _ in range(DEALS))
    known = [one for one in figures if one is not None]
    if not known:
        return None
    return min(known) if metric in SMALLER_IS_BETTER else max(known)


def is_beyond_chance(credit: Array, guess: Array) -> bool:
    """Whether a ``credit`` of each source adds up to more than a ``guess`` of the same ones.

    By more than all 99 sums in which the signs of their differences are drawn.
    """
    rng, off = np.random.default_rng(0), credit - guess
    sums = [float(rng.choice((-1.0, 1.0), len(off)) @ off) for _ in range(DEALS)]
    return float(off.sum()) > max(sums)


def _accuracy(answers: Array, decided: Array, true: Array, deal: Array) -> float:
    return float(np.mean(decided[deal] == true))


def _distance(answers: Array, decided: Array, true: Array, deal: Array) -> float:
    return float(np.abs(decided[deal].astype(float) - true).mean())


def _explained(answers: Array, decided: Array, true: Array, deal: Array) -> float | None:
    spread = float(np.var(true.astype(float)))
    off = decided[deal].astype(float) - true
    return 1 - float((off**2).mean()) / spread if spread else None


def _precision(answers: Array, decided: Array, true: Array, deal: Array) -> float | None:
    """Of two classes that of the second, of labels the mean over those that are told apart."""
    if true.ndim == 1:
        columns = [(answers[deal, -1], true)]
    else:
        columns = list(zip(answers[deal].T, true.T, strict=True))
    figures = [_precision_of(chance[hit >= 0], hit[hit >= 0] == 1) for chance, hit in columns]
    known = [figure for figure in figures if figure is not None]
    return float(np.mean(known)) if known else None


def _precision_of(chance: Array, hit: Array) -> float | None:
    """The average precision of an order; equals stand as they came."""
    if not 0 < hit.sum() < len(hit):
        return None
    places = np.flatnonzero(hit[np.argsort(-chance, kind="stable")]) + 1
    return float((np.arange(1, len(places) + 1) / places).mean())


_FIGURES: dict[str, Callable[[Array, Array, Array, Array], float | None]] = {
    "accuracy": _accuracy,
    "average_precision": _precision,
    "mae": _distance,
    "r2": _explained,
}
