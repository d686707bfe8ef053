"""What commands share that measure rows of runs: plans first, a table, and its cells."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from graphveil._errors import RefusedError
from graphveil.cli._output import figure

if TYPE_CHECKING:
    from graphveil.bench import Row
    from graphveil.methods import Method
    from graphveil.runs import Source


def plan_first(methods: Sequence[Method], source: Source) -> None:
    """Refuse bad values before data is touched. One plan refused among others is no error."""
    expected = source.expected()
    if expected is None:
        return
    refusals = []
    for method in methods:
        try:
            method.plan(expected)
        except RefusedError as error:
            refusals.append(error)
    if refusals and len(refusals) == sum(method.private for method in methods):
        raise refusals[0]


def check_ran(rows: Sequence[Row]) -> None:
    """Refuse for all of them if no private run was possible."""
    refusals = [row.refused for row in rows if row.refused]
    if refusals and len(refusals) == sum(row.private for row in rows):
        raise RefusedError(refusals[0])


def score_cell(row: Row, metric: str | None = None) -> str:
    """A mean with its deviation: shares in percent, other figures as they are."""
    from graphveil.methods.measures import UNBOUNDED

    metric = metric or row.metric
    mean, deviation = row.score(metric)
    if metric not in UNBOUNDED or row.refused:
        return percent(mean, deviation)
    if mean is None:
        return ""
    return f"{mean:.3f}" + ("" if deviation is None else f" ± {deviation:.3f}")


def guess_cell(row: Row) -> str:
    """What the best guess gets that reads no row."""
    from graphveil.methods.measures import UNBOUNDED

    guess = row.baseline.get(row.metric)
    if guess is None:
        return ""
    return f"{guess:.3f}" if row.metric in UNBOUNDED else f"{100 * guess:.1f}"


def percent(mean: float | None, deviation: float | None) -> str:
    """A mean with its deviation, in percent."""
    if mean is None:
        return "refused"
    return f"{100 * mean:.1f}" + ("" if deviation is None else f" ± {100 * deviation:.1f}")


def has_claims(rows: Sequence[Row]) -> bool:
    """Whether a paper claims an epsilon for one of them, which has a column of its own then."""
    return any(row.claimed_epsilon is not None for row in rows)


def claim_cell(row: Row) -> str:
    """The epsilon that a paper claims."""
    return "" if row.claimed_epsilon is None else figure(row.claimed_epsilon)


def cost_cells(row: Row) -> list[str]:
    """Epsilon, which is proven, and delta."""
    target = row.target_epsilon
    if row.mean is None:
        return ["-" if target is None else f"{target:g}", ""]
    epsilon = "none" if row.void_because else figure(row.epsilon)
    return [epsilon, f"{row.delta:g}" if row.private and row.delta is not None else ""]


def seconds_of(row: Row) -> str:
    """How long one run took."""
    return "" if row.mean is None else f"{row.seconds / row.seeds:.1f}"
