"""Figures on the command line: their names, and those of a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from graphveil import _validate
from graphveil._errors import InvalidInputError
from graphveil.cli._output import Result
from graphveil.methods.measures import OF_LINKS, is_better

_NAMES = {"r2": "R2", "mae": "MAE", "rmse": "RMSE", "roc_auc": "ROC AUC", "micro_auc": "micro AUC"}
_NAMES |= {"mrr": "MRR", "ndcg@10": "NDCG@10"}
# What is worth a line beside the metric of a task.
_BESIDES = {
    "multiclass": ("accuracy", "macro_f1"),
    "binary": ("average_precision", "roc_auc", "balanced_accuracy", "accuracy"),
    "ordinal": ("mae", "accuracy"),
    "multilabel": ("average_precision", "macro_f1", "micro_f1"),
    "regression": ("r2", "mae", "rmse"),
    "link": ("mrr", "recall@10", "ndcg@10", "hits@10", "roc_auc"),
}
_OF_CLASSES = ("multiclass", "binary", "ordinal")
_GUESSES = {
    "regression": "always the mean",
    "multilabel": "how often each label occurs",
    "ordinal": "always the middle class",
    "link": "how often each target is linked",
}


def check_metric(metric: str | None) -> None:
    """Refuse a figure that there is not; before any data is touched."""
    if metric is not None:
        from graphveil.methods.measures import METRICS

        _validate.choice("metric", metric, (*METRICS, *OF_LINKS))


def check_fits(metric: str | None, task: str) -> None:
    """Refuse a figure that means nothing for a task."""
    if metric is None:
        return
    of_values = ("r2", "mae", "rmse")
    if task == "link":
        wrong = metric not in _BESIDES[task] + ("average_precision",)
    elif task == "regression":
        wrong = metric not in of_values
    else:  # an order has errors in classes
        wrong = metric in (of_values if task != "ordinal" else ("r2",)) + OF_LINKS
    if wrong:
        usual = ", ".join(_BESIDES[task])
        raise InvalidInputError(
            f"The 'metric' parameter must mean something for the task {task!r}. Got {metric!r} "
            f"instead; try {usual}."
        )


def name_metric(metric: str) -> str:
    """A figure as a person calls it."""
    return _NAMES.get(metric, metric.replace("_", " ").replace(" f1", " F1"))


def show_figure(metric: str, value: float) -> str:
    """A figure as a person reads it: the accuracy in percent."""
    return f"{value:.2%}" if metric == "accuracy" else f"{value:.3f}"


def add_figures(result: Result, metrics: Mapping[str, Any]) -> None:
    """What a run learnt, beside the best guess; in a line, whether it learnt anything."""
    task, metric = metrics.get("task", "multiclass"), metrics.get("metric", "accuracy")
    guesses = metrics.get("baseline", {})
    result.add("task", task)
    result.add("metric", metric)
    figures = {
        name.removeprefix("test_"): value
        for name, value in metrics.items()
        if name.startswith("test_") and isinstance(value, float)
    }
    result.add("metrics", figures)
    for name in ("accuracy", "macro_f1"):
        result.add(f"test_{name}", figures.get(name))
    result.add("baseline", guesses)
    result.add("learnt", metrics.get("learnt"))
    result.add("constant", metrics.get("constant"))
    if figures.get(metric) is None:
        result.row(f"test {name_metric(metric)}", "no labelled record")
        return
    shown = list(dict.fromkeys([metric, *_BESIDES[task]]))
    if task == "multiclass" and len(metrics.get("class_count", ())) == 2:
        shown = ["accuracy", "roc_auc", "average_precision"]
    for name in shown:
        if figures.get(name) is not None:
            label = f"test {name_metric(name)}" if name == metric else name_metric(name)
            guess = guesses.get(name)
            beside = "" if guess is None else f"  (guess: {show_figure(name, guess)})"
            result.row(label, show_figure(name, figures[name]) + beside)
    _say_idle(result, metrics, task, name_metric(metric))


def _say_idle(result: Result, metrics: Mapping[str, Any], task: str, metric: str) -> None:
    constant = bool(metrics.get("constant"))
    weigh = ", weigh rare classes (--set class_weights=noisy)" if task in _OF_CLASSES else ""
    if metrics.get("learnt") is not False:
        if constant:
            result.row(
                "same of all",
                "nobody's probability crosses one half, so that the same is decided of everybody: "
                f"go by the order of probabilities{weigh or ', not by decisions'}",
            )
        return
    result.row(
        "learnt nothing",
        f"{_describe_idle(metrics, task, metric)} "
        f"Spend more, train on more records{weigh}, or give it columns that say more.",
    )


def _describe_idle(metrics: Mapping[str, Any], task: str, metric: str) -> str:
    """Why a run is said to have learnt nothing."""
    main = metrics.get("metric", "accuracy")
    mine, theirs = metrics.get(f"test_{main}"), metrics.get("baseline", {}).get(main)
    better = mine is not None and theirs is not None and is_better(main, mine, theirs)
    if better and task == "link":
        return (
            f"its {metric} is better than the guess's, but not told apart from chance: of so few "
            "sources as many may be ranked worse by another draw."
        )
    if better and not metrics.get("constant"):
        return (
            f"its {metric} is better than the guess's, but not told apart from chance: answers "
            "dealt out at random to so few test records may have as good a one."
        )
    guess = _GUESSES.get(task, "always the commonest class")
    what = "it decides the same of everybody" if metrics.get("constant") else "it is no better"
    return (
        f"{what}: the guess ({guess}, whatever a row says) has as good a {metric} or a better one."
    )
