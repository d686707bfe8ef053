r"""A guarantee in words and figures that need no mathematics; every figure is rounded against us.

*Whether* a unit took part compares its data with nothing, one step of the relation: the odds move
by at most ``exp(epsilon)``. *What* its data says compares one content with another, two steps by
way of nothing: ``exp(2 epsilon)``, with the delta of two steps, ``(1 + exp(epsilon)) delta``
(docs/guarantees/units.md). An edge is there or not, and needs the first only.

*Delta.* If two laws are (epsilon, delta)-close, there are two others that are (epsilon, 0)-close,
each within total variation ``delta / (1 + exp(epsilon))`` of its own (Dwork, Rothblum and Vadhan
2010). So what is released behaves like something for which the bound on odds always holds, but for
a failure of probability at most delta. Where the delta of two steps reaches 1, which any two laws
meet, two steps say nothing, and no bound is shown. It is not said that the odds themselves exceed
the bound with probability at most delta.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import dp_accounting as dpa

from graphveil.privacy.events import to_json
from graphveil.privacy.guarantee import Certificate, Charge, round_up

if TYPE_CHECKING:
    from graphveil.methods.plan import Plan

OUTSIDE = (
    "Accuracies, F1 and the like are read off the labels of test records. They are outside every "
    "certificate, and showing them, this page included, is a release of its own."
)
SCORES = {  # on test records: what a page calls them
    "accuracy": "accuracy",
    "micro_f1": "micro F1",
    "macro_f1": "macro F1",
    "f1": "F1",
    "roc_auc": "ROC AUC",
    "mrr": "MRR",
    "recall@10": "recall@10",
    "ndcg@10": "NDCG@10",
    "hits@10": "hits@10",
    "micro_auc": "micro AUC",
    "sensitivity": "sensitivity",
    "specificity": "specificity",
    "balanced_accuracy": "balanced accuracy",
    "average_precision": "average precision",
    "brier": "Brier score",
    "calibration_error": "calibration error",
    "r2": "R\N{SUPERSCRIPT TWO}",
    "mae": "mean absolute error",
    "rmse": "root mean square error",
}
IN_PERCENT = ("accuracy", "balanced_accuracy", "sensitivity", "specificity")
OF_VALUES = ("r2", "mae", "rmse")  # neither shares nor in [0, 1]
TASK_SCORES = {  # what is shown of a task, those by which runs are compared first
    "multiclass": (
        "accuracy", "macro_f1", "balanced_accuracy", "roc_auc", "specificity", "brier",
        "calibration_error",
    ),
    "binary": (
        "average_precision", "roc_auc", "f1", "sensitivity", "specificity", "accuracy", "brier",
        "calibration_error",
    ),
    "ordinal": ("mae", "accuracy", "rmse", "balanced_accuracy", "macro_f1", "calibration_error"),
    "multilabel": (
        "average_precision", "macro_f1", "micro_f1", "roc_auc", "accuracy", "brier",
        "calibration_error",
    ),
    "regression": ("r2", "mae", "rmse"),
    "link": ("mrr", "recall@10", "ndcg@10", "hits@10", "roc_auc", "average_precision"),
}  # fmt: skip
RECORD_WORDS = {"node": "node", "graph": "graph", "link": "source"}  # what num_nodes counts
TASK_WORDS = {
    "multiclass": "one of several classes",
    "binary": "one of two classes",
    "ordinal": "one of several classes in their order",
    "multilabel": "several labels",
    "regression": "a number",
    "link": "the targets that it will be linked to",
}
GUESSES = {  # the best answer that reads no row, by the labels that were trained on
    "multiclass": "always the commonest class",
    "binary": "the same answer for everybody",
    "ordinal": "always the median class",
    "multilabel": "how often each label occurs",
    "regression": "always the mean",
    "link": "how often each target is linked",
}
BEST_GUESS = "the best guess, figure by figure"  # no one answer is the best by all figures
MEANINGS = {  # of scores that not everybody knows
    "balanced_accuracy": "Balanced accuracy: the mean over classes of how many of their records "
    "are right.",
    "average_precision": "Average precision: how far up the ranking those stand who are looked "
    "for; 1 if nobody else stands above them.",
    "brier": "Brier score: the squared distance of probabilities from what is true; less is "
    "better.",
    "calibration_error": "Calibration error: how far probabilities are from how often they come "
    "true; less is better.",
    "r2": "R\N{SUPERSCRIPT TWO}: the share of the spread of values that is explained; 0 is the "
    "mean of the test records, 1 is perfect.",
    "mae": "Mean absolute error: how far off values, or classes in their order, are; less is "
    "better.",
    "rmse": "Root mean square error: the same with far ones counting more; less is better.",
}
LEARNT_NOTHING = "learnt nothing"

PERCENT = "\N{NO-BREAK SPACE}%"
BEFORE = (0.01, 0.1, 0.5)  # how sure of something a guesser may be beforehand
MOST_FACTOR = 1e6  # beyond it a factor is not worth writing out

TOOK_PART = {
    "node": "the data of one node was used",
    "edge-directed": "one directed edge is there",
    "edge-undirected": "one undirected edge is there",
    "graph": "one graph was used",
    "owner": "the data of one owner was used",
}
NO_PART = {
    "node": "took no part (their rows are empty)",
    "edge-directed": "are not there",
    "edge-undirected": "are not there",
    "graph": "took no part (their places are empty)",
    "owner": "took no part (all their records are empty)",
}
_AS_IT_IS = "all else, other nodes' lists too, is the same"
WORLDS = {
    "node": f"one with the node's row as it is, and one in which that row is empty; {_AS_IT_IS}",
    "edge-directed": "one in which the edge is there, and one in which it is not",
    "edge-undirected": "one in which the edge is there, and one in which it is not",
    "graph": "one with the graph as it is, and one in which it is empty",
    "owner": "one with all records of the owner as they are, and one in which they are empty; "
    f"{_AS_IT_IS}",
}
CONTENT = {
    "node": "what that node's row holds (its label, for one)",
    "graph": "what is in that graph",
    "owner": "what the owner's records hold",
}
STATUS = {
    "proven": "proven",
    "void": "void",
    "unproven": "not proven",
    "open": "not private",
}


def after(before: float, epsilon: float) -> float:
    """The most that a probability can become once the odds are multiplied by exp(epsilon)."""
    return 1 / (1 + (1 - before) / before * math.exp(-epsilon))


def guess_content(what: str, epsilon: float, delta: float) -> str:
    """How far a guess about what a unit's data says can move: two steps, by way of none of it."""
    two_steps = f"A guess about {what} compares two contents by way of none, which is two steps"
    failure = delta + delta * math.exp(min(epsilon, 700))
    if failure >= 1:
        return (
            f"{two_steps}. Their delta, (1 + exp(epsilon)) delta, reaches 1, so that this argument "
            "gives no bound on it."
        )
    squared = at_most(after(0.5, 2 * epsilon))
    most = "as good as certain" if squared == at_most(1.0) else f"at most {squared}"
    bound = f"it can move by at most that factor squared: from 50{PERCENT} to {most}"
    if not failure:
        return f"{two_steps}; {bound}."
    return (
        f"{two_steps}; but for a failure of probability at most (1 + exp(epsilon)) delta, here "
        f"{round_up(failure, 3)}, {bound}."
    )


def at_most(share: float) -> str:
    """A probability in percent, rounded up: one digit behind the point, two next to certainty."""
    digits = 2 if share > 0.99 else 1
    return f"{math.ceil(share * 100 * 10**digits - 1e-9) / 10**digits:.{digits}f}{PERCENT}"


def at_least(share: float) -> str:
    """A probability in percent, rounded down."""
    digits = 2 if share < 0.01 else 1
    return f"{math.floor(share * 100 * 10**digits + 1e-9) / 10**digits:.{digits}f}{PERCENT}"


def round_down(value: float, digits: int = 4) -> str:
    """A floor with a few digits: never a larger number than what was shown."""
    if value == 0:
        return "0"
    unit = 10.0 ** (math.floor(math.log10(value)) + 1 - digits)
    return f"{math.floor(value / unit + 1e-9) * unit:.{digits}g}"


def factor(epsilon: float) -> str | None:
    """exp(epsilon), rounded up to three digits or a whole number; None if beyond all use."""
    value = math.exp(min(epsilon, 700))
    if value > MOST_FACTOR:
        return None
    if value >= 100:
        return f"{math.ceil(value - 1e-9):,}"
    return f"{math.ceil(value * 100 - 1e-7) / 100:.2f}"


def one_in(delta: float) -> str:
    """A small probability as one in so many, rounded against us."""
    if not delta:
        return "never"
    return f"one in {math.floor(1 / delta + 1e-6):,}"


def strength(epsilon: float) -> str:
    """What the ceiling on an even guess leaves open; no verdict beyond what the figure says."""
    most = after(0.5, epsilon)
    if most <= 0.75:
        return "Even in the worst case a guess stays a guess."
    if most <= 0.95:
        return "In the worst case a guess can become a well founded suspicion."
    return (
        "So high a ceiling leaves room for near certainty in the worst case. It is a limit on all "
        "attacks there can be, not an estimate of one; how near real attacks come is a question "
        "for an audit."
    )


def percent(share: float | None) -> str:
    """A measured share, rounded to the nearest tenth of a percent."""
    return "–" if share is None else f"{100 * share:.1f}{PERCENT}"


def small_percent(share: float) -> str:
    """A bound on a share that may be small, rounded up to three digits."""
    return f"{round_up(100 * share, 3)}{PERCENT}"


def score(name: str, value: float | None) -> str:
    """A score of :data:`SCORES`: what counts records in percent, all others as a number."""
    if value is None or name in IN_PERCENT:
        return percent(value)
    return f"{value:.4g}" if name in ("mae", "rmse") else f"{value:.3f}"


def scores_of(task: str, metric: str) -> list[str]:
    """What is shown of a task, ``metric`` first."""
    return [metric, *(name for name in TASK_SCORES[task] if name != metric)]


def score_axis(name: str) -> str:
    """What the axis of a score is called."""
    from graphveil.methods.measures import SMALLER_IS_BETTER

    less = " (less is better)" if name in SMALLER_IS_BETTER else ""
    return f"test {SCORES.get(name, name)}{' (%)' if name in IN_PERCENT else less}"


def name_with_article(noun: str) -> str:
    """``a patient``, ``an owner``."""
    return f"{'an' if noun[:1].lower() in 'aeiou' else 'a'} {noun}"


@dataclass(frozen=True)
class Idle:
    """Why a run learnt ``nothing``, or else that it merely decides the same of everybody."""

    nothing: bool
    why: str


def idle(
    task: str,
    metric: str,
    figures: tuple[float | None, float | None],
    learnt: bool | None,
    constant: bool | None,
    record: str = "record",
    answer: str = "the same",
) -> Idle | None:
    """What is said of a run that is no use, on every page and command; None of any other.

    ``figures`` are its own and the best guess's, by ``metric``. ``answer`` is what it decides of
    everybody where it is ``constant``.
    """
    from graphveil.methods.measures import RANKINGS, is_better

    if learnt is not False and not constant:
        return None
    mine, theirs = figures
    better = mine is not None and theirs is not None and is_better(metric, mine, theirs)
    name = SCORES.get(metric, metric.replace("_", " "))
    own, other = score(metric, mine), score(metric, theirs)
    guess = f"the {other} of a guess that reads no {record} ({GUESSES[task]})"
    same = f"it says {answer} of every test {record}"
    if learnt is not False:
        still = f"; its {name}, {own}, is better than {guess}: it may still rank" if better else ""
        return Idle(False, f"{same}{still}.")
    reasons = [same] if constant else []
    if better and not (constant and metric not in RANKINGS):
        reasons.append(
            f"its {name}, {own}, is better than {guess}, but not told apart from chance: answers "
            f"dealt out at random to so few test {record}s may be as good"
        )
    elif not better:
        reasons.append(f"its {name}, {own}, is no better than {guess}")
    return Idle(True, f"{', and '.join(reasons)}.")


def setting(value: Any) -> str:
    """The value of a setting, or of whatever else a JSON file holds."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {setting(inner)}" for key, inner in value.items())
    return str(value)


def trains_in_the_open(charges: Iterable[Charge]) -> bool:
    """Whether a plan releases everything without noise: then there is no budget to speak of."""
    return all(isinstance(charge.event, dpa.NonPrivateDpEvent) for charge in charges)


def is_private(plan: Plan) -> bool:
    """Whether a plan has a budget, or claims one."""
    return plan.claim is not None or not trains_in_the_open(plan.charges)


def status_of(plan: Plan, certificate: Certificate) -> str:
    """``proven``, ``void``, ``unproven``, or ``open`` for a method without a budget."""
    if not is_private(plan):
        return "open"
    if certificate.void_because:
        return "void"
    return "unproven" if math.isinf(certificate.guarantee.epsilon) else "proven"


_KINDS = {
    "SampledGaussianDpEvent": "Gaussian noise on a clipped sum over sampled terms",
    "RevealedCountGaussianDpEvent": "Gaussian noise on a clipped sum over a batch of fixed size",
    "GaussianDpEvent": "Gaussian noise",
    "LaplaceDpEvent": "Laplace noise",
    "GumbelTopKDpEvent": "choice of the largest noisy scores",
    "NonPrivateDpEvent": "release without noise",
    "ZCDpEvent": "a release bounded by zCDP",
    "PoissonSampledDpEvent": "on a secret sample of the units,",
    "RepeatAndSelectDpEvent": "the best of a secret number of runs, each of them",
    "OneOfDpEvent": "one of these, whichever costs most",
}


@dataclass(frozen=True)
class Release:
    """What a part of an event is, how often, and with which figures."""

    times: int
    kind: str
    figures: str


def releases(event: dpa.DpEvent, times: int = 1) -> list[Release]:
    """What an event is made of, from the outside in."""
    if isinstance(event, dpa.SelfComposedDpEvent):
        return releases(event.event, times * int(event.count))
    if isinstance(event, dpa.ComposedDpEvent):
        return [release for part in event.events for release in releases(part, times)]
    figures = to_json(event)
    name = figures.pop("type")
    inner = [event.event] if figures.pop("event", None) else list(getattr(event, "events", ()))
    figures.pop("events", None)
    texts = [f"{key.replace('_', ' ')} {_figure(value)}" for key, value in figures.items()]
    release = Release(times, _KINDS.get(name, name.removesuffix("DpEvent")), ", ".join(texts))
    return [release, *(release for part in inner for release in releases(part))]


def _figure(value: Any) -> str:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return f"{value:.6g}" if number else str(value)
