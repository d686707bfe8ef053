"""Tables of runs, as a TOML file describes them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from graphveil._errors import InvalidInputError, ToleranceError
from graphveil.cli import _options as option
from graphveil.cli._output import Result, bar, check_file, check_picture, figure, plural
from graphveil.cli._rows import percent
from graphveil.cli._settings import check_settings, method_named

if TYPE_CHECKING:
    from graphveil.bench import Row, Table
    from graphveil.bench.table import Line


@click.command()
@click.argument("description", required=False)
@option.root
@click.option("--out", help="A file of results, a line each; what is in it is not run again.")
@click.option("--data", multiple=True, help="Only these graphs of the table; repeat.")
@click.option("--only", multiple=True, help="Only runs whose name contains this; repeat.")
@click.option("--seeds", type=int, help="Runs of each, instead of what the description says.")
@click.option("--seed", type=int, default=0, help="The first of them.")
@click.option("--plot", help="A file for a plot: .png, .svg or .pdf.")
@option.force
@option.as_json
def bench(
    description: str | None,
    root: str | None,
    out: str | None,
    data: tuple[str, ...],
    only: tuple[str, ...],
    seeds: int | None,
    seed: int,
    plot: str | None,
    force: bool,
    as_json: bool,
) -> None:
    """A table of runs, described in TOML, beside published figures.

    DESCRIPTION is a TOML file or a name; without it: the names there are. With --out every run is
    written down as it ends, and the same command goes on after a crash. A figure below what the
    description demands: exit code 4, after everything has been run. --force replaces a plot, never
    results.

    \b
    graphveil bench
    graphveil bench splits-table2 --root data --out table2.jsonl
    graphveil bench my.toml --seeds 1 --only mlp
    """
    from graphveil import bench as benches

    if description is None:
        titles = benches.titles()
        result = Result("Tables known by name", tables=titles)
        result.table(["name", "title"], titles.items())
        result.show(as_json)
        return
    table = benches.select(benches.read(description), data=data, only=only)
    table = replace(
        table, seeds=table.seeds if seeds is None else seeds, lines=tuple(map(_check, table.lines))
    )
    check_picture(plot, force)
    if plot is not None and table.across is None:
        raise InvalidInputError(
            "A plot needs something to go over. The description must say across = 'epsilon', "
            "'data', 'train_share' or a setting that it varies."
        )
    if out is not None and not Path(out).is_file():
        check_file(out, force=False)
    columns = table.run(
        root=root,
        seed=seed,
        progress=bar("measuring"),
        memory=None if out is None else benches.Notes(out),
    )
    result, missed = _result(table, columns), table.missed(columns)
    result.add("missed", missed)
    rows = [row for column in columns for row in column]
    if plot is not None:
        from graphveil.report.plots import over_table

        drawn = over_table(rows, table.across or "", table.metric, plot, table.title)
        result.add("plot", str(drawn), "note", "Drawn in {}.".format)
    result.note(*sorted({f"{row.label}: {row.refused}" for row in rows if row.refused}))
    result.add("note", benches.CAUTION, "note")
    result.show(as_json)
    if missed:
        raise ToleranceError(" ".join(missed))


def _check(line: Line) -> Line:
    """The line with settings as the method takes them, or one line on what is wrong."""
    settings = check_settings(method_named(line.request.method), line.request.settings)
    return replace(line, request=replace(line.request, settings=settings))


def _result(table: Table, columns: list[list[Row]]) -> Result:
    """A line for each run, a column for each graph; what was published, in brackets."""
    metric = table.metric.replace("_", " ")
    result = Result(f"{table.title}: {metric}, {plural(table.seeds, 'seed')}")
    result.update({key: getattr(table, key) for key in ("title", "source", "metric", "seeds")})
    result.add(
        "rows",
        [
            {
                "data": name,
                **row.json(),
                "published": line.published.get(name),
                "at_least": line.at_least.get(name),
            }
            for name, column in zip(table.data, columns, strict=True)
            for line, row in zip(table.lines, column, strict=True)
        ],
    )
    result.table(*_table(table, columns))
    result.note(*_promises([row for column in columns for row in column]))
    if any(line.published for line in table.lines):
        origin = f": {table.source}" if table.source else ""
        result.note(f"In brackets, what was published{origin}.")
    return result


def _table(table: Table, columns: list[list[Row]]) -> tuple[list[str], list[list[str]]]:
    """Headings and cells; claimed epsilons where there are any."""
    claims = any(row.claimed_epsilon is not None for column in columns for row in column)
    cells = []
    for line, *rows in zip(table.lines, *columns, strict=True):
        proven = _largest(row.epsilon for row in rows if row.mean is not None and row.private)
        claimed = _largest(row.claimed_epsilon for row in rows if row.claimed_epsilon is not None)
        scores = [
            _score(row, table.metric, line.published.get(name))
            for name, row in zip(table.data, rows, strict=True)
        ]
        cells.append([rows[0].label, proven, *([claimed] if claims else []), *scores])
    return ["run", "epsilon", *(["claimed"] if claims else []), *table.data], cells


def _promises(rows: list[Row]) -> list[str]:
    """For which unit and at what delta the epsilons are; one line where all are alike."""
    from graphveil.privacy.guarantee import ONE

    rows = [row for row in rows if row.private and row.mean is not None]
    labels: dict[tuple[str, float | None], list[str]] = {}
    for row in rows:
        labels.setdefault((row.unit, row.delta), []).append(row.label)
    if len(labels) == 1:
        ((unit, delta),) = labels
        notes = [f"Each epsilon is for {ONE[unit]}, at delta {delta:g}."]
    else:
        notes = [
            f"For {ONE[unit]}, at delta {delta:g}: {', '.join(dict.fromkeys(labels[unit, delta]))}."
            for unit, delta in sorted(labels, key=str)
        ]
    void = dict.fromkeys(f"{row.label}: {reason}" for row in rows for reason in row.void_because)
    return [*notes, *(f"No epsilon holds for {reason}" for reason in void)]


def _largest(values: Iterable[float]) -> str:
    largest = max(values, default=-math.inf)
    return "" if largest == -math.inf else figure(largest)


def _score(row: Row, metric: str, published: float | None) -> str:
    text = percent(*row.score(metric))
    return text if published is None else f"{text} [{100 * published:.1f}]"
