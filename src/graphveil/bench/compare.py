"""Several methods on one graph, or one method under several settings; means over seeds.

    rows = compare(data, source, [("dp-mlp", {}), ("mlp", {})], epsilons=[8.0], seeds=3)
    for row in rank(rows):
        print(row.method, row.mean, row.deviation)

*Guarantee*: none for the table as a whole. Each private run has its own certificate; that figures
of several runs on the same private data stand side by side is a release that none of them covers.
"""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch_geometric.data import Data

from graphveil import _validate
from graphveil._errors import InvalidInputError, RefusedError
from graphveil.methods import METHODS, Method
from graphveil.runs import METRICS, Arranged, Source, measure

CAUTION = (
    "Each epsilon is one run's. Showing such a table, whose accuracies are read off test labels, "
    "or choosing by it on private data is itself a release, which no certificate covers; choose "
    "settings in advance, or on public data."
)

Track = Callable[[Iterable[Any]], Iterable[Any]]


@dataclass(frozen=True, kw_only=True)
class Row:
    """One method under one setting, over all seeds."""

    method: str
    private: bool
    budget: float | None = None
    setting: Mapping[str, Any] = field(default_factory=dict)
    name: str | None = None
    data: str = ""
    train_share: float = 1.0
    unit: str = "node"
    epsilon: float = math.inf
    delta: float | None = None
    claimed_epsilon: float | None = None
    noise_multiplier: float | None = None
    scores: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    class_accuracy: tuple[float | None, ...] = ()
    class_share: tuple[float, ...] = ()
    seconds: float = 0.0
    void_because: tuple[str, ...] = ()
    refused: str | None = None
    best: bool = False

    @property
    def label(self) -> str:
        """The method, or the name it goes by, with what tells it from others of the same name."""
        called = self.name or self.method
        if not self.setting:
            return called
        return f"{called} ({', '.join(f'{k}={v}' for k, v in self.setting.items())})"

    @property
    def accuracies(self) -> tuple[float, ...]:
        """Test accuracy of every seed."""
        return self.scores.get("accuracy", ())

    @property
    def mean(self) -> float | None:
        """Mean test accuracy over the seeds."""
        return self.score("accuracy")[0]

    @property
    def deviation(self) -> float | None:
        """Standard deviation over the seeds; None for a single one."""
        return self.score("accuracy")[1]

    def score(self, metric: str) -> tuple[float | None, float | None]:
        """Mean and standard deviation of one of :data:`METRICS` over the seeds."""
        found = self.scores.get(_validate.choice("metric", metric, METRICS), ())
        return (
            statistics.fmean(found) if found else None,
            statistics.stdev(found) if len(found) > 1 else None,
        )


def compare(
    data: Data,
    source: Source,
    methods: Sequence[tuple[str, Mapping[str, Any]]],
    *,
    epsilons: Sequence[float],
    delta: float | None = None,
    seeds: int = 3,
    track: Track | None = None,
) -> list[Row]:
    """One row for each method and epsilon; methods without a budget have one row.

    ``methods`` are names with settings; one that stands there several times is told apart by them.
    Seeds are ``source.seed``, ``source.seed + 1``, ...; each draws its own split and first weights.
    A method whose plan is refused keeps its row, and says why in ``refused``.
    """
    asked = [
        Asked(name, budget, delta, dict(settings), varied=_own(name, settings, methods))
        for budget in (*epsilons, None)
        for name, settings in methods
        if is_private(name) == (budget is not None)
    ]
    return measured(data, source, asked, seeds, track)


def _own(
    name: str, settings: Mapping[str, Any], methods: Sequence[tuple[str, Mapping[str, Any]]]
) -> dict[str, Any]:
    """The settings that tell a method from others of the same name."""
    others = [each for other, each in methods if other == name]
    return {
        key: value
        for key, value in settings.items()
        if any(key not in each or each[key] != value for each in others)
    }


def sweep(
    data: Data,
    source: Source,
    name: str,
    settings: Mapping[str, Any],
    key: str,
    values: Sequence[Any],
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    seeds: int = 3,
    track: Track | None = None,
) -> list[Row]:
    """One row for each value of the setting ``key``, all else equal: an ablation."""
    asked = [
        Asked(name, epsilon, delta, {**settings, key: value}, varied={key: value})
        for value in values
    ]
    return measured(data, source, asked, seeds, track)


def rank(rows: Iterable[Row]) -> list[Row]:
    """The rows, the best private method for each unit and epsilon marked.

    A void certificate never is; promises about nodes and about edges are not set side by side.
    """
    rows = list(rows)
    best: dict[tuple[str, float | None], float] = {}
    for row in rows:
        if row.mean is not None and _counts(row):
            place = row.unit, row.budget
            best[place] = max(best.get(place, 0.0), row.mean)
    return [
        replace(
            row,
            best=_counts(row) and row.mean is not None and row.mean == best[row.unit, row.budget],
        )
        for row in rows
    ]


def remarks(rows: Iterable[Row]) -> list[str]:
    """What a reader should not overlook: where the graph costs more than it tells."""
    found: dict[tuple[str, float | None], Row] = {(row.label, row.budget): row for row in rows}
    said = []
    for (name, budget), row in found.items():
        # Under an edge unit features are public: what never reads an edge needs no privacy there.
        other = found.get(("dp-mlp", budget) if row.unit == "node" else ("mlp", None))
        if row.method not in ("dp-gnn", "gap", "dpar", "graph-split") or other is None:
            continue
        if row.mean is None or other.mean is None:
            continue
        pair, difference = f"{name} and {other.method}", 100 * (row.mean - other.mean)
        claimed = "a claimed " if row.claimed_epsilon is not None else ""
        at = f"at {claimed}epsilon {budget:g}"
        if row.deviation is None or other.deviation is None:
            said.append(
                f"{pair} are {abs(difference):.1f} points apart {at}: one seed does not tell which "
                "is better."
            )
        elif abs(row.mean - other.mean) <= row.deviation + other.deviation:
            said.append(
                f"{pair} are {abs(difference):.1f} points apart {at}, within what they vary by: "
                "these seeds do not tell which is better."
            )
        elif difference < 0:
            said.append(
                f"{name} loses to {other.method} by {-difference:.1f} points {at}: reading the "
                "graph costs more here than the graph tells."
            )
        else:
            said.append(
                f"{name} beats {other.method} by {difference:.1f} points {at}: the graph is worth "
                "its price here."
            )
    said += [f"{row.label} was left out: {row.refused}" for row in found.values() if row.refused]
    return said


def _counts(row: Row) -> bool:
    """Whether a row holds what was asked of it; a paper's claim alone does not count."""
    within = row.budget is None or row.epsilon <= row.budget * (1 + 1e-6)
    return row.private and within and not row.void_because and not row.refused


def is_private(name: str) -> bool:
    """Whether the method of that name has a budget."""
    if name not in METHODS:
        raise InvalidInputError(
            f"The method must be one of {', '.join(METHODS)}. Got {name!r} instead."
        )
    return "epsilon" in METHODS[name].__dataclass_fields__


# --- running --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Asked:
    """One row to be measured: a method, its settings and its budget."""

    method: str
    budget: float | None
    delta: float | None
    settings: Mapping[str, Any]
    train_share: float = 1.0
    name: str | None = None
    varied: Mapping[str, Any] = field(default_factory=dict)

    def made(self, seed: int) -> Method:
        """The method, not yet fitted."""
        private = is_private(self.method)
        budget: dict[str, Any] = {"epsilon": self.budget, "delta": self.delta} if private else {}
        return METHODS[self.method](**self.settings, **budget, seed=seed)

    def key(self, source: Source) -> str:
        """All that decides one run's outcome, chance apart, in one line of JSON."""
        run = {
            "data": source.data,
            "split": source.split,
            "train_share": source.train_share,
            "seed": source.seed,
            "method": self.method,
            "epsilon": self.budget,
            "delta": self.delta,
            "settings": dict(sorted(self.settings.items())),
        }
        return json.dumps(run)


Outcome = dict[str, Any]  # of one run; plain values, so that it can be written down
Memory = MutableMapping[str, Outcome]  # outcomes by the key of what was asked


def measured(
    data: Data,
    source: Source,
    asked: Sequence[Asked],
    seeds: int,
    track: Track | None = None,
    memory: Memory | None = None,
) -> list[Row]:
    """One row for each of ``asked``; what ``memory`` holds is not run again."""
    count = _validate.integer("seeds", seeds, "[1, 1000]")
    planned = [
        (each, replace(source, seed=source.seed + number, train_share=each.train_share))
        for each in asked
        for number in range(count)
    ]
    found: Memory = {} if memory is None else memory
    outcomes: list[list[Outcome]] = [[] for _ in asked]
    for number, (each, where) in enumerate(planned if track is None else track(planned)):
        row, key = outcomes[number // count], each.key(where)
        if row and row[-1].get("refused"):
            continue  # a plan that one seed has refused is not tried with others
        if key not in found:
            found[key] = _outcome(each.made(where.seed), where.arrange(data))
        row.append(found[key])
    return [_row(each, source, row) for each, row in zip(asked, outcomes, strict=True)]


def _outcome(method: Method, arranged: Arranged) -> Outcome:
    begun = time.monotonic()
    try:
        method.fit(arranged.training)
    except RefusedError as error:
        return {"refused": str(error)}
    metrics = measure(method, arranged.testing, arranged.mode)
    if metrics["test_accuracy"] is None:
        raise InvalidInputError("The 'test_mask' must hold a labelled record. Got none instead.")
    certificate = method.certificate_
    proven = certificate.guarantee.epsilon
    total = sum(metrics["class_count"])
    return {
        "unit": certificate.guarantee.unit,
        "epsilon": proven if math.isfinite(proven) else None,  # JSON has no infinity
        "delta": certificate.guarantee.delta,
        "claimed_epsilon": None if certificate.claim is None else certificate.claim.epsilon,
        "noise_multiplier": method.plan_.details.get("noise_multiplier"),
        "void_because": list(certificate.void_because),
        "scores": {metric: metrics[f"test_{metric}"] for metric in METRICS},
        "class_accuracy": metrics["class_accuracy"],
        "class_share": [count / total for count in metrics["class_count"]],
        "seconds": time.monotonic() - begun,
    }


def _row(asked: Asked, source: Source, outcomes: Sequence[Outcome]) -> Row:
    row = Row(
        method=asked.method,
        private=is_private(asked.method),
        budget=asked.budget,
        setting=asked.varied,
        name=asked.name,
        data=source.data,
        train_share=asked.train_share,
        refused=next((each["refused"] for each in outcomes if each.get("refused")), None),
    )
    ran = [each for each in outcomes if not each.get("refused")]
    if not ran:
        return row
    # The costliest run speaks for all of them.
    last = max(ran, key=_proven)
    same = ("unit", "delta", "claimed_epsilon", "noise_multiplier")
    return replace(
        row,
        **{name: last[name] for name in same},
        epsilon=_proven(last),
        void_because=tuple(last["void_because"]),
        scores={
            metric: tuple(each["scores"][metric] for each in ran)
            for metric in METRICS
            if all(each["scores"].get(metric) is not None for each in ran)
        },
        class_accuracy=_averaged([each["class_accuracy"] for each in ran]),
        class_share=_averaged([each["class_share"] for each in ran]),
        seconds=sum(each["seconds"] for each in ran),
    )


def _proven(outcome: Outcome) -> float:
    return math.inf if outcome["epsilon"] is None else float(outcome["epsilon"])


def _averaged(lists: Sequence[Sequence[float | None]]) -> tuple[Any, ...]:
    """Means by place, over the lists that have a value there."""
    there = [
        [value for value in values if value is not None] for values in zip(*lists, strict=True)
    ]
    return tuple(statistics.fmean(values) if values else None for values in there)
