"""Several methods on one graph, or one method under several settings; means over seeds.

    rows = compare(data, source, [("dp-mlp", {}), ("mlp", {})], epsilons=[8.0], seeds=3)
    for row in rank(rows):
        print(row.method, row.mean, row.deviation)

*Guarantee*: none for the table as a whole. Each private run has its own certificate; that figures
of several runs on the same private data stand side by side is a release that none of them covers.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Unpack

from graphveil import _validate
from graphveil.bench.measuring import MEASURES
from graphveil.bench.requests import Memory, Outcome, Request, is_private
from graphveil.bench.results import Notes
from graphveil.bench.running import Attempt, Cell, How, measure_cells, share
from graphveil.methods import METHODS
from graphveil.methods.measures import (
    METRICS,
    OF_LINKS,
    ONE_SIDED,
    RANKINGS,
    SMALLER_IS_BETTER,
    UNBOUNDED,
    is_better,
)

if TYPE_CHECKING:
    from torch_geometric.data import Data

    from graphveil.runs import Source

CAUTION = (
    "Each epsilon is one run's. Showing such a table, whose accuracies are read off test labels, "
    "or choosing by it on private data is itself a release, which no certificate covers; choose "
    "settings in advance, or on public data."
)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One method under one setting, over all seeds.

    ``target_epsilon`` is what each run was allowed to spend, ``epsilon`` what the costliest of them
    is proven to spend. ``setting`` tells the row from others of the same method or ``name``.
    ``scores`` has a value for each seed, by metric, and ``baseline`` the mean figures of the best
    guess that reads no row. Rows are set side by side by ``metric``. ``learnt`` says whether more
    than half of the seeds did better than that guess and than chance, and the mean does better than
    the guess; ``constant`` whether all decided the same of everybody. ``refused`` says why nothing
    was run.
    """

    method: str
    private: bool
    target_epsilon: float | None = None
    setting: Mapping[str, Any] = field(default_factory=dict)
    name: str | None = None
    data: str = ""
    train_share: float = 1.0
    unit: str = "node"
    epsilon: float = math.inf
    delta: float | None = None
    claimed_epsilon: float | None = None
    noise_multiplier: float | None = None
    task: str = "multiclass"
    metric: str = "accuracy"
    scores: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    baseline: Mapping[str, float] = field(default_factory=dict)
    learnt: bool | None = None
    constant: bool = False
    class_accuracy: tuple[float | None, ...] = ()
    class_share: tuple[float, ...] = ()
    seconds: float = 0.0
    void_because: tuple[str, ...] = ()
    refused: str | None = None
    best: bool = False

    @property
    def label(self) -> str:
        """The method, or the name it goes by, with what tells it from others of the same name."""
        name = self.name or self.method
        if not self.setting:
            return name
        return f"{name} ({', '.join(f'{k}={v}' for k, v in self.setting.items())})"

    @property
    def accuracies(self) -> tuple[float, ...]:
        """Test accuracy of every seed."""
        return self.scores.get("accuracy", ())

    @property
    def seeds(self) -> int:
        """How many runs it is about."""
        return max(map(len, self.scores.values()), default=0)

    @property
    def mean(self) -> float | None:
        """The mean of the metric over the seeds."""
        return self.score(self.metric)[0]

    @property
    def deviation(self) -> float | None:
        """Standard deviation over the seeds; None for a single one."""
        return self.score(self.metric)[1]

    @property
    def standing(self) -> float:
        """What rows are ranked by: the larger, the better."""
        if self.mean is None:
            return -math.inf
        return -self.mean if self.metric in SMALLER_IS_BETTER else self.mean

    def measured_by(self, metric: str) -> Row:
        """The same row, set beside others by another metric."""
        row = replace(self, metric=_validate.choice("metric", metric, (*METRICS, *OF_LINKS)))
        if metric == self.metric or self.learnt is None:
            return row
        # Who says yes to everybody finds everybody: one rate alone is no achievement.
        judge = "balanced_accuracy" if metric in ONE_SIDED else metric
        mean, guess = row.score(judge)[0], self.baseline.get(judge)
        if row.mean is None or mean is None or guess is None:
            return row
        tells_apart = not self.constant or metric in RANKINGS
        return replace(row, learnt=self.learnt and tells_apart and is_better(judge, mean, guess))

    def score(self, metric: str) -> tuple[float | None, float | None]:
        """Mean and standard deviation of one of :data:`MEASURES` over the seeds."""
        values = self.scores.get(_validate.choice("metric", metric, MEASURES), ())
        return (
            statistics.fmean(values) if values else None,
            statistics.stdev(values) if len(values) > 1 else None,
        )

    def json(self) -> dict[str, Any]:
        """The row as plain values, for programs."""
        fields = asdict(self)
        del fields["data"]
        return fields | {
            "unit": self.unit if self.private else None,
            "mean": self.mean,
            "deviation": self.deviation,
            "accuracies": self.accuracies,
            "seconds": round(self.seconds, 3),
        }


def compare(
    data: Data | None,
    source: Source,
    methods: Sequence[tuple[str, Mapping[str, Any]]],
    *,
    epsilons: Sequence[float],
    delta: float | None = None,
    seeds: int = 3,
    **how: Unpack[How],
) -> list[Row]:
    """One row for each method and epsilon; methods without a budget have one row.

    ``methods`` are names with settings; one that stands there several times is told apart by them.
    Seeds are ``source.seed``, ``source.seed + 1``, ...; each draws its own split and first weights.
    A method whose plan is refused keeps its row, and says why in ``refused``. Without ``data`` each
    process loads it from the source. ``how`` is ``jobs``, ``memory``, ``shard`` and ``progress``,
    see :class:`graphveil.bench.running.How`.
    """
    requests = [
        Request(
            name,
            epsilon,
            delta,
            dict(settings),
            train_share=source.train_share,
            varied=_own(name, settings, methods),
        )
        for epsilon in (*epsilons, None)
        for name, settings in methods
        if is_private(name) == (epsilon is not None)
    ]
    return measure_rows(data, source, requests, seeds, **how)


def _own(
    name: str, settings: Mapping[str, Any], methods: Sequence[tuple[str, Mapping[str, Any]]]
) -> dict[str, Any]:
    """The settings that tell a method from others of the same name."""
    namesakes = [other for method, other in methods if method == name]
    return {
        key: value
        for key, value in settings.items()
        if any(key not in other or other[key] != value for other in namesakes)
    }


def sweep(
    data: Data | None,
    source: Source,
    name: str,
    settings: Mapping[str, Any],
    key: str,
    values: Sequence[Any],
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    seeds: int = 3,
    **how: Unpack[How],
) -> list[Row]:
    """One row for each value of the setting ``key``, all else equal: an ablation.

    As in :func:`compare`, ``how`` says by how many processes, and where outcomes are kept.
    """
    requests = [
        Request(
            name,
            epsilon,
            delta,
            {**settings, key: value},
            train_share=source.train_share,
            varied={key: value},
        )
        for value in values
    ]
    return measure_rows(data, source, requests, seeds, **how)


def rank(rows: Iterable[Row]) -> list[Row]:
    """The rows, the best private method for each unit and epsilon marked.

    A void certificate never is, nor what learnt nothing; promises about nodes and about edges are
    not set side by side.
    """
    rows = list(rows)
    best: dict[tuple[str, float | None], float] = {}
    for row in filter(_may_be_best, rows):
        place = row.unit, row.target_epsilon
        best[place] = max(best.get(place, -math.inf), row.standing)
    return [
        replace(
            row,
            best=_may_be_best(row) and row.standing == best[row.unit, row.target_epsilon],
        )
        for row in rows
    ]


def _may_be_best(row: Row) -> bool:
    return _holds(row) and row.learnt is not False


def remarks(rows: Iterable[Row]) -> list[str]:
    """What a reader should not overlook: what learnt nothing, where the graph costs too much."""
    by_place = {(row.label, row.target_epsilon): row for row in rows}
    idle = [_describe_idle(row) for row in by_place.values() if row.learnt is False]
    verdicts = [_verdict(row, by_place.get(_baseline(row))) for row in by_place.values()]
    refusals = [
        f"{row.label} was left out: {row.refused}" for row in by_place.values() if row.refused
    ]
    return [*idle, *filter(None, verdicts), *refusals]


GUESSES = {
    "regression": "the mean of the training values",
    "multilabel": "how often each label occurs",
    "ordinal": "the middle class",
    "link": "how often each target is linked",
}


def _describe_idle(row: Row) -> str:
    at = "" if row.target_epsilon is None else f" at epsilon {row.target_epsilon:g}"
    guess = GUESSES.get(row.task, "the commonest class")
    return (
        f"{row.label}{at} learnt nothing that its {row.metric.replace('_', ' ')} shows: always "
        f"answering {guess}, without reading a row, does as well or better, or chance may."
    )


def _baseline(row: Row) -> tuple[str, float | None]:
    """The row that never reads an edge: its label, and what it may spend."""
    name = METHODS[row.method].baseline or ""
    # Under an edge unit features are public: what never reads an edge needs no privacy there.
    return ("mlp", None) if name and row.unit.startswith("edge") else (name, row.target_epsilon)


def _verdict(row: Row, baseline: Row | None) -> str | None:
    """Which of two is better, where both were run."""
    if baseline is None or baseline.mean is None or row.mean is None:
        return None
    if row.metric != baseline.metric or row.metric in UNBOUNDED:
        return None
    difference = 100 * (row.mean - baseline.mean)
    claimed = "a claimed " if row.claimed_epsilon is not None else ""
    at = f"at {claimed}epsilon {row.target_epsilon:g}"
    apart = f"{row.label} and {baseline.method} are {abs(difference):.1f} points apart {at}"
    if row.deviation is None or baseline.deviation is None:
        return f"{apart}: one seed does not tell which is better."
    if abs(row.mean - baseline.mean) <= row.deviation + baseline.deviation:
        return f"{apart}, within what they vary by: these seeds do not tell which is better."
    if difference < 0:
        return (
            f"{row.label} loses to {baseline.method} by {-difference:.1f} points {at}: reading the "
            "graph costs more here than the graph tells."
        )
    return (
        f"{row.label} beats {baseline.method} by {difference:.1f} points {at}: the graph is worth "
        "its price here."
    )


def _holds(row: Row) -> bool:
    """Whether a row was measured and holds what was asked of it; a paper's claim alone does not."""
    target = row.target_epsilon
    within = target is None or row.epsilon <= target * (1 + 1e-6)
    return row.private and within and not row.void_because and row.mean is not None


# --- running --------------------------------------------------------------------------------------


def measure_rows(
    data: Data | None,
    source: Source,
    requests: Sequence[Request],
    seeds: int,
    **how: Unpack[How],
) -> list[Row]:
    """One row for each of ``requests``; what the memory holds is not run again.

    Of a shard, rows are of what is known so far.
    """
    count = _validate.integer("seeds", seeds, "[1, 1000]")
    memory = how.get("memory")
    known: Memory = {} if memory is None else memory
    content = memory.content if isinstance(memory, Notes) else None
    rows = [
        [
            Cell(key=request.key(where, content), row=number, request=request, source=where)
            for where in _sources(source, request, count)
        ]
        for number, request in enumerate(requests)
    ]
    measure_cells(
        share([cell for row in rows for cell in row], how.get("shard")),
        known,
        Attempt(data, known),
        jobs=how.get("jobs", 1),
        progress=how.get("progress"),
    )
    return [
        make_row(request, source.data, _outcomes(row, known))
        for request, row in zip(requests, rows, strict=True)
    ]


def _sources(source: Source, request: Request, count: int) -> list[Source]:
    """Of every seed."""
    seeds = range(source.seed, source.seed + count)
    return [replace(source, seed=seed, train_share=request.train_share) for seed in seeds]


def _outcomes(row: Sequence[Cell], known: Memory) -> list[Outcome]:
    """What is known of a row; after a refusal nothing, whether or not it was measured."""
    outcomes: list[Outcome] = []
    for cell in row:
        outcome = known.get(cell.key)
        if outcome is None or not cell.request.made(outcome):
            continue
        outcomes.append(outcome)
        if outcome.get("refused"):
            break
    return outcomes


def make_row(request: Request, data: str, outcomes: Sequence[Outcome]) -> Row:
    """The row of a request, over the outcomes of its seeds."""
    row = Row(
        method=request.method,
        private=is_private(request.method),
        target_epsilon=request.epsilon,
        setting=request.varied,
        name=request.name,
        data=data,
        train_share=request.train_share,
        refused=next((one["refused"] for one in outcomes if one.get("refused")), None),
    )
    ran = [one for one in outcomes if not one.get("refused")]
    if not ran:
        return row
    # The costliest run speaks for all of them.
    last = max(ran, key=_epsilon)
    same = ("unit", "delta", "claimed_epsilon", "noise_multiplier")
    stated = {name: last[name] for name in ("task", "metric") if name in last}
    learnt = [one.get("learnt") for one in ran]
    return replace(
        row,
        **{name: last[name] for name in same},
        **stated,
        baseline=_mean_figures([one.get("baseline", {}) for one in ran]),
        learnt=None if None in learnt else _learnt_mostly(learnt) and _beats_guess(ran),
        constant=all(bool(one.get("constant")) for one in ran),
        epsilon=_epsilon(last),
        void_because=tuple(last["void_because"]),
        scores={
            metric: tuple(one["scores"][metric] for one in ran)
            for metric in MEASURES
            if all(one["scores"].get(metric) is not None for one in ran)
        },
        class_accuracy=_means([one["class_accuracy"] for one in ran]),
        class_share=_means([one["class_share"] for one in ran]),
        seconds=sum(one["seconds"] for one in ran),
    )


def _learnt_mostly(learnt: Sequence[Any]) -> bool:
    """Whether more than half of the seeds learnt something."""
    return 2 * sum(map(bool, learnt)) > len(learnt)


def _beats_guess(ran: Sequence[Outcome]) -> bool:
    """Whether the mean of the metric over the seeds is better than that of the guess."""
    metric = ran[0]["metric"]
    mine = statistics.fmean(one["scores"][metric] for one in ran)
    return is_better(metric, mine, _mean_figures([one["baseline"] for one in ran])[metric])


def _mean_figures(figures: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The means of figures that all of them have."""
    shared = set.intersection(*(set(one) for one in figures))
    return {name: statistics.fmean(one[name] for one in figures) for name in sorted(shared)}


def _epsilon(outcome: Outcome) -> float:
    return math.inf if outcome["epsilon"] is None else float(outcome["epsilon"])


def _means(lists: Sequence[Sequence[float | None]]) -> tuple[Any, ...]:
    """Means by place, over the lists that have a value there."""
    there = ([value for value in at if value is not None] for at in zip(*lists, strict=True))
    return tuple(statistics.fmean(values) if values else None for values in there)
