"""Tables of runs, as a TOML file describes them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from graphveil._errors import InvalidInputError, ToleranceError
from graphveil.cli._asked import check_setting, method_named
from graphveil.cli._shared import bar, figure, force_option, json_option, root_option, show_table
from graphveil.cli.training import check_file

if TYPE_CHECKING:
    from graphveil.bench import Row, Table
    from graphveil.bench.table import Line


@click.command()
@click.argument("description", required=False)
@root_option
@click.option("--out", help="A file of results, a line each; what is in it is not run again.")
@click.option("--data", multiple=True, help="Only these graphs of the table; repeat.")
@click.option("--only", multiple=True, help="Only runs whose name contains this; repeat.")
@click.option("--seeds", type=int, help="Runs of each, instead of what the description says.")
@click.option("--seed", type=int, default=0, show_default=True, help="The first of them.")
@click.option("--plot", help="A file for a plot: .png, .svg or .pdf.")
@force_option
@json_option
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
    """A table of runs, described in a TOML file or known by name, beside published figures.

    Without DESCRIPTION: the names there are. With --out every run is written down as it ends, and
    the same command goes on after a crash. A figure below what the description demands: exit code
    4, after everything has been run. --force replaces a plot, never results.

    \b
    graphveil bench
    graphveil bench splits-table2 --root data --out table2.jsonl
    graphveil bench my.toml --seeds 1 --only mlp
    """
    from dataclasses import replace

    from graphveil import bench as benches

    if description is None:
        known = benches.titles()
        rows = [[name, title] for name, title in known.items()]
        show_table({"tables": known}, as_json, "Tables known by name", ["name", "title"], rows)
        return
    table = benches.select(benches.read(description), data=data, only=only)
    if seeds is not None:
        table = replace(table, seeds=seeds)
    table = replace(table, lines=tuple(_checked(line) for line in table.lines))
    if plot is not None:
        _check_plot(plot, table, force)
    if out is not None and not Path(out).is_file():
        check_file(out, force=False)
    found = table.run(
        root=root,
        seed=seed,
        progress=bar("measuring"),
        memory=None if out is None else benches.Notes(out),
    )
    missed = table.missed(found)
    result = {
        "title": table.title,
        "source": table.source,
        "metric": table.metric,
        "seeds": table.seeds,
        "rows": [
            {
                "data": name,
                **row.json(),
                "published": line.published.get(name),
                "at_least": line.at_least.get(name),
            }
            for name, column in zip(table.data, found, strict=True)
            for line, row in zip(table.lines, column, strict=True)
        ],
        "missed": missed,
        "note": benches.CAUTION,
    }
    if plot is not None:
        from graphveil.report.plots import over_table

        rows_ = [row for column in found for row in column]
        result["plot"] = str(over_table(rows_, table.across or "", table.metric, plot, table.title))
    columns, lines = _shown(table, found)
    several = "s" if table.seeds != 1 else ""
    title = f"{table.title}: {table.metric.replace('_', ' ')}, {table.seeds} seed{several}"
    notes = _promised(found)
    if _published(table):
        notes.append(
            f"In brackets, what was published{f': {table.source}' if table.source else ''}."
        )
    if plot is not None:
        notes.append(f"Drawn in {plot}.")
    refused = {f"{row.label}: {row.refused}" for column in found for row in column if row.refused}
    show_table(result, as_json, title, columns, lines, [*notes, *sorted(refused), benches.CAUTION])
    if missed:
        raise ToleranceError(" ".join(missed))


def _checked(line: Line) -> Line:
    """The line with settings as the method takes them, or one line on what is wrong."""
    from dataclasses import replace

    kind = method_named(line.request.method)
    settings = {
        key: check_setting(kind, key, value) for key, value in line.request.settings.items()
    }
    return replace(line, request=replace(line.request, settings=settings))


def _check_plot(plot: str, table: Table, force: bool) -> None:
    from graphveil.report import plots

    plots.needed()
    if table.across is None:
        raise InvalidInputError(
            "A plot needs something to go over. The description must say across = 'epsilon', "
            "'data', 'train_share' or a setting that it varies."
        )
    if Path(plot).suffix not in plots.ENDINGS:
        raise InvalidInputError(
            f"A plot must end in {', '.join(plots.ENDINGS)}. Got {plot!r} instead."
        )
    check_file(plot, force)


def _published(table: Table) -> bool:
    return any(line.published for line in table.lines)


def _shown(table: Table, found: list[list[Row]]) -> tuple[list[str], list[list[str]]]:
    """A line for each run, a column for each graph; claimed epsilons where there are any."""
    claims = any(row.claimed_epsilon is not None for column in found for row in column)
    columns = ["run", "epsilon", *(["claimed"] if claims else []), *table.data]
    lines = []
    for number, line in enumerate(table.lines):
        rows = [column[number] for column in found]
        proven = _worst(row.epsilon for row in rows if row.mean is not None and row.private)
        claimed = _worst(row.claimed_epsilon for row in rows if row.claimed_epsilon is not None)
        cells = [
            _cell(row, table.metric, line.published.get(name))
            for name, row in zip(table.data, rows, strict=True)
        ]
        lines.append([rows[0].label, proven, *([claimed] if claims else []), *cells])
    return columns, lines


def _promised(found: list[list[Row]]) -> list[str]:
    """For which unit and at what delta the epsilons are; one line where all are alike."""
    from graphveil.privacy.guarantee import ONE

    rows = [row for column in found for row in column if row.private and row.mean is not None]
    kinds = sorted({(row.unit, row.delta) for row in rows}, key=str)
    if len(kinds) == 1:
        ((unit, delta),) = kinds
        notes = [f"Each epsilon is for {ONE[unit]}, at delta {delta:g}."]
    else:
        notes = [
            f"For {ONE[unit]}, at delta {delta:g}: "
            + ", ".join(
                dict.fromkeys(row.label for row in rows if (row.unit, row.delta) == (unit, delta))
            )
            + "."
            for unit, delta in kinds
        ]
    void = dict.fromkeys(f"{row.label}: {reason}" for row in rows for reason in row.void_because)
    return [*notes, *(f"No epsilon holds for {each}" for each in void)]


def _worst(values: Any) -> str:
    largest = max(values, default=-math.inf)
    return "" if largest == -math.inf else figure(largest)


def _cell(row: Row, metric: str, published: float | None) -> str:
    mean, deviation = row.score(metric)
    text = "refused" if mean is None else f"{100 * mean:.1f}"
    text += "" if deviation is None else f" ± {100 * deviation:.1f}"
    return text if published is None else f"{text} [{100 * published:.1f}]"
