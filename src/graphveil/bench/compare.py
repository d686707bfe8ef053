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
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch_geometric.data import Data

from graphveil import _validate
from graphveil._errors import InvalidInputError, RefusedError
from graphveil.methods import METHODS, Method
from graphveil.runs import Source, measure

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
    unit: str = "node"
    epsilon: float = math.inf
    delta: float | None = None
    claimed_epsilon: float | None = None
    noise_multiplier: float | None = None
    accuracies: tuple[float, ...] = ()
    class_accuracy: tuple[float | None, ...] = ()
    class_share: tuple[float, ...] = ()
    seconds: float = 0.0
    void_because: tuple[str, ...] = ()
    refused: str | None = None
    best: bool = False

    @property
    def label(self) -> str:
        """The method, with what tells it from others of the same name."""
        if not self.setting:
            return self.method
        return f"{self.method} ({', '.join(f'{k}={v}' for k, v in self.setting.items())})"

    @property
    def mean(self) -> float | None:
        """Mean test accuracy over the seeds."""
        return statistics.fmean(self.accuracies) if self.accuracies else None

    @property
    def deviation(self) -> float | None:
        """Standard deviation over the seeds; None for a single one."""
        return statistics.stdev(self.accuracies) if len(self.accuracies) > 1 else None


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
        _Asked(name, private, budget, delta, dict(settings), _own(name, settings, methods))
        for budget in (*epsilons, None)
        for name, settings in methods
        if (private := _is_private(name)) == (budget is not None)
    ]
    return _measured(data, source, asked, seeds, track)


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
    private = _is_private(name)
    asked = [
        _Asked(name, private, epsilon, delta, {**settings, key: value}, {key: value})
        for value in values
    ]
    return _measured(data, source, asked, seeds, track)


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


def _is_private(name: str) -> bool:
    if name not in METHODS:
        raise InvalidInputError(
            f"The method must be one of {', '.join(METHODS)}. Got {name!r} instead."
        )
    return "epsilon" in METHODS[name].__dataclass_fields__


# --- running --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Asked:
    name: str
    private: bool
    budget: float | None
    delta: float | None
    settings: Mapping[str, Any]
    varied: Mapping[str, Any]

    def made(self, seed: int) -> Method:
        budget = {"epsilon": self.budget, "delta": self.delta} if self.private else {}
        return METHODS[self.name](**self.settings, **budget, seed=seed)


def _measured(
    data: Data, source: Source, asked: Sequence[_Asked], seeds: int, track: Track | None
) -> list[Row]:
    count = _validate.integer("seeds", seeds, "[1, 1000]")
    every = [source.seed + number for number in range(count)]
    arranged = {seed: replace(source, seed=seed).arrange(data) for seed in every}
    planned = [(each, seed) for each in asked for seed in every]
    rows: dict[int, Row] = {}
    for number, (each, seed) in enumerate(planned if track is None else track(planned)):
        place = number // count
        row = rows.get(place) or Row(
            method=each.name, private=each.private, budget=each.budget, setting=each.varied
        )
        if row.refused is None:
            rows[place] = _with(row, each.made(seed), arranged[seed])
    return [rows[place] for place in range(len(asked))]


def _with(row: Row, method: Method, arranged: Any) -> Row:
    """The row with one more seed in it."""
    begun = time.monotonic()
    try:
        method.fit(arranged.training)
    except RefusedError as error:
        return replace(row, refused=str(error))
    metrics = measure(method, arranged.testing, arranged.mode)
    if metrics["test_accuracy"] is None:
        raise InvalidInputError("The 'test_mask' must hold a labelled node. Got none instead.")
    certificate, seen = method.certificate_, len(row.accuracies)
    total = sum(metrics["class_count"])
    return replace(
        row,
        unit=certificate.guarantee.unit,
        epsilon=certificate.guarantee.epsilon,
        delta=certificate.guarantee.delta,
        claimed_epsilon=None if certificate.claim is None else certificate.claim.epsilon,
        noise_multiplier=method.plan_.details.get("noise_multiplier"),
        void_because=certificate.void_because,
        accuracies=(*row.accuracies, metrics["test_accuracy"]),
        class_accuracy=_averaged(row.class_accuracy, metrics["class_accuracy"], seen),
        class_share=_averaged(row.class_share, [n / total for n in metrics["class_count"]], seen),
        seconds=row.seconds + time.monotonic() - begun,
    )


def _averaged(before: tuple[Any, ...], now: Sequence[Any], seen: int) -> tuple[Any, ...]:
    if not seen:
        return tuple(now)
    return tuple(
        new if old is None else old if new is None else (old * seen + new) / (seen + 1)
        for old, new in zip(before, now, strict=True)
    )
