"""How good answers are: figures of classes, of labels and of values, None where one means nothing.

Every task has the same names, so that tables of several tasks have the same columns.

*Guarantee*: none. Figures are read off labels, outside every certificate.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

METRICS = (
    "accuracy",
    "micro_f1",
    "macro_f1",
    "f1",
    "roc_auc",
    "micro_auc",
    "sensitivity",
    "specificity",
    "balanced_accuracy",
    "average_precision",
    "brier",
    "calibration_error",
    "r2",
    "mae",
    "rmse",
)
OF_LINKS = ("mrr", "hits@10", "ndcg@10", "recall@10")  # see graphveil.methods.ranking
SMALLER_IS_BETTER = ("brier", "calibration_error", "mae", "rmse", "loss")
# Who says the same of everybody has all of one and nothing of the other.
ONE_SIDED = ("sensitivity", "specificity")
RANKINGS = ("roc_auc", "micro_auc", "average_precision")  # by probabilities, not by decisions
UNBOUNDED = ("r2", "mae", "rmse", "loss")  # figures that are no shares
_BINS = 15  # of the calibration error

Figures = dict[str, float | None]
Array = NDArray[Any]


def is_better(metric: str, one: float, other: float) -> bool:
    """Whether ``one`` is the better figure of the two."""
    return one < other if metric in SMALLER_IS_BETTER else one > other


# --- classes --------------------------------------------------------------------------------------


def measure_classes(chances: Array, true: Array, decided: Array) -> Figures:
    """Figures of one class a record; ``chances`` are (records, classes).

    Micro F1 counts every record alike, and is the accuracy where one has one class. Macro F1 counts
    every class alike, those that neither stand in the labels nor are predicted left out. ``f1``,
    ``sensitivity``, ``specificity`` and ``average_precision`` are those of class 1 where there are
    two classes; with more, ``f1`` is the micro one, and the others are means over the classes, each
    against the rest, those without a record (for ``specificity``: without a record of another) left
    out. ``balanced_accuracy`` is the mean over classes of how many of their records are right.
    ``roc_auc`` is a mean over classes, and None where one has no record; ``micro_auc`` ranks all
    pairs of a record and a class together. ``brier`` is the squared distance of probabilities from
    what is true, summed over classes. ``calibration_error`` is how far the probability of what was
    decided is from how often it was right, in 15 bins. What needs probabilities is None where
    weights have left the numbers.
    """
    from sklearn.metrics import average_precision_score, f1_score, roc_auc_score

    figures: Figures = dict.fromkeys(METRICS)
    if not len(true):
        return figures
    classes = chances.shape[1]
    figures["accuracy"] = float(np.mean(true == decided))
    figures["micro_f1"] = float(f1_score(true, decided, average="micro"))
    figures["macro_f1"] = float(f1_score(true, decided, average="macro", zero_division=0.0))
    figures["f1"] = figures["micro_f1"]
    if classes == 2:
        figures["f1"] = float(f1_score(true, decided, zero_division=0.0))
    figures |= _rates(true, decided, classes)
    if not np.isfinite(chances).all():
        return figures
    hits = true[:, None] == np.arange(classes)
    figures["brier"] = float(np.mean(((chances - hits) ** 2).sum(1)))
    sure = np.take_along_axis(chances, decided[:, None], 1)[:, 0]
    figures["calibration_error"] = _calibration_error(sure, true == decided)
    there = [c for c in ([1] if classes == 2 else range(classes)) if hits[:, c].any()]
    precisions = [average_precision_score(hits[:, c], chances[:, c]) for c in there]
    figures["average_precision"] = _mean(precisions)
    if hits.any() and not hits.all():
        figures["micro_auc"] = float(roc_auc_score(hits.ravel(), chances.ravel()))
    if len(np.unique(true)) == classes:
        areas = [roc_auc_score(hits[:, c], chances[:, c]) for c in range(classes)]
        figures["roc_auc"] = float(areas[1] if classes == 2 else np.mean(areas))
    return figures


def measure_order(true: Array, decided: Array) -> Figures:
    """How many classes decisions are off: the mean, and the root of the mean square."""
    if not len(true):
        return {}
    off = np.abs(true - decided).astype(float)
    return {"mae": float(off.mean()), "rmse": float(np.sqrt((off**2).mean()))}


def _rates(true: Array, decided: Array, classes: int) -> Figures:
    """Sensitivity and specificity: of class 1 of two, else means over classes against the rest."""
    recalls: dict[int, float] = {}
    others: dict[int, float] = {}
    for which in range(classes):
        inside, called = true == which, decided == which
        if inside.any():
            recalls[which] = float(np.mean(called[inside]))
        if not inside.all():
            others[which] = float(np.mean(~called[~inside]))
    wanted = [1] if classes == 2 else range(classes)
    return {
        "sensitivity": _mean(recalls[c] for c in wanted if c in recalls),
        "specificity": _mean(others[c] for c in wanted if c in others),
        "balanced_accuracy": _mean(recalls.values()),
    }


def _calibration_error(sure: Array, right: Array) -> float:
    """The distance of confidence and accuracy, over bins of confidence, by how full they are."""
    bins = np.minimum((sure * _BINS).astype(int), _BINS - 1)
    full = np.bincount(bins, minlength=_BINS)
    gaps = np.bincount(bins, sure - right, minlength=_BINS)
    return float(np.abs(gaps).sum() / full.sum())


# --- labels ---------------------------------------------------------------------------------------


def measure_labels(chances: Array, true: Array, decided: Array) -> Figures:
    """Figures of several labels a record; of ``true`` -1 is not known, and left out.

    ``accuracy`` is the share of right answers, over all records and labels. Micro figures take all
    answers together, macro ones (``macro_f1``, ``roc_auc``, ``average_precision``, ``sensitivity``,
    ``specificity``, ``balanced_accuracy``) are means over the labels, those without both answers
    left out.
    """
    from sklearn.metrics import average_precision_score, f1_score, roc_auc_score

    figures: Figures = dict.fromkeys(METRICS)
    known = true >= 0
    if not known.any():
        return figures
    all_true, all_decided = true[known], decided[known]
    figures["accuracy"] = float(np.mean(all_true == all_decided))
    figures["micro_f1"] = float(f1_score(all_true, all_decided, zero_division=0.0))
    figures["f1"] = figures["micro_f1"]
    columns = [(true[k, c], decided[k, c], chances[k, c]) for c, k in enumerate(known.T)]
    both = [column for column in columns if 0 < column[0].sum() < len(column[0])]
    figures["macro_f1"] = _mean(f1_score(y, d, zero_division=0.0) for y, d, _ in both)
    figures["sensitivity"] = _mean(float(d[y == 1].mean()) for y, d, _ in both)
    figures["specificity"] = _mean(float(1 - d[y == 0].mean()) for y, d, _ in both)
    if figures["sensitivity"] is not None and figures["specificity"] is not None:
        figures["balanced_accuracy"] = (figures["sensitivity"] + figures["specificity"]) / 2
    if not np.isfinite(chances).all():
        return figures
    figures["roc_auc"] = _mean(roc_auc_score(y, p) for y, _, p in both)
    figures["average_precision"] = _mean(average_precision_score(y, p) for y, _, p in both)
    flat = chances[known]
    if 0 < all_true.sum() < len(all_true):
        figures["micro_auc"] = float(roc_auc_score(all_true, flat))
    figures["brier"] = float(np.mean((flat - all_true) ** 2))
    sure = np.where(all_decided == 1, flat, 1 - flat)
    figures["calibration_error"] = _calibration_error(sure, all_true == all_decided)
    return figures


# --- values ---------------------------------------------------------------------------------------


def measure_values(values: Array, true: Array) -> Figures:
    """Figures of one number a record: R2 (None where all are the same), MAE and RMSE."""
    figures: Figures = dict.fromkeys(METRICS)
    if not len(true) or not np.isfinite(values).all():
        return figures
    off = values.astype(float) - true.astype(float)
    figures["mae"] = float(np.abs(off).mean())
    figures["rmse"] = float(np.sqrt((off**2).mean()))
    spread = float(((true - true.mean(dtype=float)) ** 2).mean())
    figures["r2"] = 1 - float((off**2).mean()) / spread if spread else None
    return figures


def _mean(values: Iterable[float]) -> float | None:
    listed = [float(value) for value in values]
    return float(np.mean(listed)) if listed else None
