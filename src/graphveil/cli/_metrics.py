"""Figures on the command line: their names, and those of a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from graphveil import _validate
from graphveil._errors import InvalidInputError
from graphveil.cli._output import Result
from graphveil.methods.measures import OF_LINKS

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


def add_figures(result: Result, metrics: Mapping[str, Any], *, weighs: bool = False) -> None:
    """What a run learnt, beside the best guess; in a line, whether it learnt anything.

    ``weighs`` says whether its classes have weights already, which is then no advice.
    """
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
    _say_idle(result, metrics, task, weighs)


def _say_idle(result: Result, metrics: Mapping[str, Any], task: str, weighs: bool) -> None:
    from graphveil.report import wording

    metric = metrics.get("metric", "accuracy")
    idle = wording.idle(
        task,
        metric,
        (metrics.get(f"test_{metric}"), metrics.get("baseline", {}).get(metric)),
        metrics.get("learnt"),
        metrics.get("constant"),
    )
    if idle is None:
        return
    why = idle.why.replace("\N{NO-BREAK SPACE}", " ")
    advise = task in _OF_CLASSES and not weighs
    weigh = ", weigh rare classes (--set class_weights=noisy)" if advise else ""
    if idle.nothing:
        more = (
            f"What may help: a larger epsilon, more records{weigh}, columns that say more. "
            "Training again on these records is a second release: add it up, or try on public data."
        )
        result.row(wording.LEARNT_NOTHING, f"{why} {more}")
    else:
        more = f"Go by the order of probabilities{weigh or ', not by decisions'}."
        result.row("same of all", f"{why} {more}")
