"""Several runs on one page: which may stand in one table, and what they cost together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from graphveil.privacy.composing import together
from graphveil.privacy.guarantee import round_up
from graphveil.report import svg, wording
from graphveil.report.sections import Legend, predicted

if TYPE_CHECKING:
    from graphveil.report.evidence import Evidence

Cell = tuple[float | None, str]  # what a table is sorted by, and what it shows
_SCORES = 2  # in a table, the main one first
_RANKS = {"proven": 0, "open": 1, "unproven": 2, "void": 2}


@dataclass(frozen=True, kw_only=True)
class Row:
    """One run in a table; ``ranked`` unless nothing is known of what it reveals.

    One that ``failed`` learnt nothing, and has no rank by its scores.
    """

    anchor: str
    run: Evidence
    label: str
    ranked: bool
    failed: bool
    cells: Mapping[str, Cell]


@dataclass(frozen=True, kw_only=True)
class Together:
    """What several private runs cost if all are released.

    ``elsewhere`` says that some are on other data of the same account, ``less`` that they cost less
    than their ``sum``, ``unbounded`` how many have no guarantee and are not counted.
    """

    count: int
    elsewhere: bool
    unbounded: int
    epsilon: str
    delta: str
    sum: str
    less: bool


@dataclass(frozen=True, kw_only=True)
class Group:
    """Runs on the same data with the same promise, which is the ``first`` one's, and open ones.

    All predict the same, and are compared by the same figure: ``target`` says what, where a page
    has several. ``columns`` are the names of cells, what a page calls them, and whether they are
    scores.
    """

    anchor: str
    first: Evidence
    target: str | None
    columns: list[tuple[str, str, bool]]
    rows: list[Row]
    plot: Markup | None
    legend: Legend
    together: Together | None


def baselines(run: Evidence, evidence: Iterable[Evidence]) -> list[Evidence]:
    """The open runs that a run may be compared with, the best first, and last what learnt nothing.

    Which is the best is decided by the main figure, of which less may be better.
    """
    fit = [other for other in evidence if _is_baseline(other, run)]
    return sorted(fit, key=lambda other: (other.failed, -other.merit))


def _is_baseline(other: Evidence, run: Evidence) -> bool:
    """In the open, another run, and tested on the same records: as many, of the same classes."""
    return (
        other is not run
        and other.status == "open"
        and other.trained_alike == run.trained_alike
        and other.tests == run.tests
        and other.metrics["class_count"] == run.metrics["class_count"]
        and other.figure is not None
        and (run.source["split"] == "given" or other.source["seed"] == run.source["seed"])
    )


def groups(evidence: Sequence[Evidence]) -> list[Group]:
    """Runs that may stand in one table: the same data and promise; open ones in each."""
    private = [run for run in evidence if run.status != "open"]
    tables = []
    for key in dict.fromkeys(_key(run) for run in private):
        members = [run for run in private if _key(run) == key]
        tables.append((members, members[0].trained_alike))
    covered = {alike for _, alike in tables}
    rest = dict.fromkeys(run.trained_alike for run in evidence)
    tables += [([], alike) for alike in rest if alike not in covered]
    return [
        _group(
            f"group-{number}",
            members,
            [run for run in evidence if run.status == "open" and run.trained_alike == alike],
            evidence,
        )
        for number, (members, alike) in enumerate(tables, 1)
    ]


def _key(run: Evidence) -> tuple[Any, ...]:
    return (*run.trained_alike, *run.promise)


def _group(
    anchor: str,
    private: Sequence[Evidence],
    opened: Sequence[Evidence],
    evidence: Sequence[Evidence],
) -> Group:
    labels = _labels([*private, *opened])
    first = (*private, *opened)[0]
    several = len({run.target for run in evidence}) > 1
    rows = sorted(
        (*private, *opened),
        key=lambda run: (_RANKS[run.status], run.epsilon or 0.0, labels[run.path], run.path),
    )
    series = _series(private, opened, labels, first)
    counted = [
        run
        for run in (_same_people(first, evidence) if private else ())
        if run.status != "open" and run.promise == first.promise
    ]
    return Group(
        anchor=anchor,
        first=first,
        target=predicted(first) if several else None,
        columns=_columns(first),
        rows=[_row(run, 1 + list(evidence).index(run), labels[run.path]) for run in rows],
        plot=svg.curve(f"{anchor}-curve", series, first.metric)
        if sum(len(line.points) + len(line.failed) for line in series) > 1
        else None,
        legend=_legend(series),
        together=_together(counted),
    )


def _labels(members: Sequence[Evidence]) -> dict[str, str]:
    """Methods by name, and by the settings of their own in which runs of one method differ."""
    labels = {}
    for run in members:
        alike = [other.settings for other in members if other.method == run.method]
        differing = ", ".join(
            f"{name}={wording.setting(value)}"
            for name, value in sorted(run.settings.items())
            if name not in ("epsilon", "delta", "seed")
            and value != run.usual.get(name)
            and any(settings.get(name) != value for settings in alike)
        )
        labels[run.path] = run.method + (f" ({differing})" if differing else "")
    return labels


def _same_people(first: Evidence, evidence: Sequence[Evidence]) -> list[Evidence]:
    """The runs on a page that are about the same people as one of them, as far as is known."""
    same = [first]
    for known in same:  # which grows: people are the same through others, too
        same += [run for run in evidence if run not in same and run.shares_people(known)]
    return [run for run in evidence if run in same]


def _columns(first: Evidence) -> list[tuple[str, str, bool]]:
    """The cells of a row: what was spent, two scores, what a guess reaches, the seed."""
    scores = wording.scores_of(first.facts.task, first.metric)[:_SCORES]
    return [
        *((name, name, False) for name in ("epsilon", "delta", "claimed")),
        *((name, wording.SCORES[name], True) for name in scores),
        ("guess", "guess", False),
        ("seed", "seed", False),
    ]


def _row(run: Evidence, number: int, label: str) -> Row:
    epsilon, claim, seed = run.epsilon, run.certificate.claim, run.source["seed"]
    claimed = None if claim is None else claim.epsilon
    delta = None if epsilon is None else run.certificate.guarantee.delta
    names = wording.scores_of(run.facts.task, run.metric)[:_SCORES]
    return Row(
        anchor=f"run-{number}",
        run=run,
        label=label,
        ranked=run.status in ("proven", "open"),
        failed=run.failed,
        cells={
            "epsilon": (epsilon, round_up(epsilon)),
            "delta": (delta, "–" if delta is None else f"{delta:g}"),
            "claimed": (claimed, "–" if claimed is None else round_up(claimed)),
            **{name: (run.metrics[name], _score(run, name)) for name in names},
            "guess": (run.guess, wording.score(run.metric, run.guess)),
            "seed": (seed, str(seed)),
        },
    )


def _score(run: Evidence, name: str) -> str:
    return wording.score(name, run.metrics[name])


def _series(
    private: Iterable[Evidence],
    opened: Iterable[Evidence],
    labels: Mapping[str, str],
    first: Evidence,
) -> list[svg.Series]:
    """Lines of the curve: proven runs by method, the open ones level; void ones are not drawn."""
    drawn = [run for run in private if run.epsilon and run.figure is not None]  # log epsilon
    names = dict.fromkeys(labels[run.path] for run in drawn)
    points: dict[tuple[str, bool], list[tuple[float, float]]] = {}
    for run in drawn:
        place = (run.epsilon or 0.0, run.figure or 0.0)
        points.setdefault((labels[run.path], run.failed), []).append(place)
    levels = [
        (f"{labels[run.path]}, not private{f', {wording.LEARNT_NOTHING}' * run.failed}", run.figure)
        for run in opened
    ]
    return [
        *(
            svg.Series(
                label=name,
                points=tuple(sorted(points.get((name, False), ()))),
                failed=tuple(sorted(points.get((name, True), ()))),
            )
            for name in names
        ),
        *(
            svg.Series(label=name, level=level)
            for name, level in (*levels, (wording.GUESSES[first.facts.task], first.guess))
            if level is not None
        ),
    ]


def _legend(series: Sequence[svg.Series]) -> Legend:
    curves = [line for line in series if line.level is None]
    levels = [line.label for line in series if line.level is not None]
    legend = [
        *(
            (svg.legend_mark(n, failed=not line.points), line.label)
            for n, line in enumerate(curves)
        ),
        *((svg.legend_level(number), label) for number, label in enumerate(levels)),
    ]
    if any(line.failed for line in series):
        legend.append((svg.legend_failed(), f"empty and grey: {wording.LEARNT_NOTHING}"))
    return legend


def _together(private: Sequence[Evidence]) -> Together | None:
    """What private runs on the same people, which promise the same, cost if all are released.

    Split, sizes and encoding may differ. Those without a bound are left out.
    """
    held = [run for run in private if run.epsilon is not None]
    if len(held) < 2:
        return None
    delta = max(run.certificate.guarantee.delta for run in held)
    price = together([run.certificate.event for run in held], delta)
    added = sum(run.epsilon or 0.0 for run in held)
    return Together(
        count=len(held),
        elsewhere=len({run.data for run in private}) > 1,
        unbounded=len(private) - len(held),
        epsilon=round_up(price.epsilon),
        delta=f"{delta:g}",
        sum=round_up(added),
        less=price.epsilon < added,
    )
