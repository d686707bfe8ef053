"""One method under several values of a setting."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from graphveil._inputs import toml_value
from graphveil.cli import _options as option
from graphveil.cli import _runs, _settings
from graphveil.cli._metrics import check_fits, check_metric, name_metric
from graphveil.cli._notices import notices
from graphveil.cli._output import Result, bar, check_file, check_picture, plural, write_json
from graphveil.cli._results import check_shard, open_results, show_shard
from graphveil.cli._rows import (
    check_ran,
    claim_cell,
    cost_cells,
    guess_cell,
    has_claims,
    plan_first,
    score_cell,
    seconds_of,
)

if TYPE_CHECKING:
    from graphveil.bench import Row


@click.command(cls=_settings.MethodCommand)
@click.argument("method", shell_complete=option.complete_method)
@option.data
@click.option("--vary", required=True, metavar="KEY=V1,V2,...", help="A setting and its values.")
@click.option("--epsilon", type=float, help="What each run may spend.")
@option.delta
@option.metric
@option.seeds
@option.source
@option.sets
@option.results
@option.shard
@option.jobs
@click.option("--out", help="Write the table there as JSON, too.")
@click.option("--plot", help="A file for a plot, .png, .svg or .pdf.")
@option.force
@option.as_json
@notices()
def sweep(
    method: str,
    vary: str,
    epsilon: float | None,
    delta: float | None,
    seeds: int,
    sets: tuple[str, ...],
    out: str | None,
    plot: str | None,
    as_json: bool,
    **given: Any,
) -> None:
    """One method under several values of a setting, all else equal.

    --jobs N runs N at a time. With --results DIR every run is kept as it ends; shards of the work
    (--shard I/N) share DIR, and once all are done, the command without --shard shows the table.

    \b
    graphveil sweep dp-gnn --data social --epsilon 8 --vary sender_cap=1,3,7
    graphveil sweep dp-gnn --data social --epsilon 8 --vary sample_rate=0.1,0.3,0.5 --jobs 2
    """
    kind = _settings.method_named(method)
    key, equals, listed = (part.strip() for part in vary.partition("="))
    words = [toml_value(text) for text in listed.split(",") if text.strip()]
    if not equals or not words:
        raise click.UsageError(f"Write '--vary' as KEY=V1,V2, e.g. sender_cap=1,3. Got {vary!r}.")
    from graphveil._jobs import check_jobs

    check_metric(metric := given.pop("metric"))
    shard, force = check_shard(given, out, plot), given["force"]
    jobs = check_jobs(given["jobs"])
    check_file(out, force)
    check_picture(plot, force)

    from graphveil import bench
    from graphveil.graph.checks import task_of

    settings = _settings.check_settings(kind, _settings.parse(sets))
    values = [_settings.check_setting(kind, key, word) for word in words]
    source, budget = _runs.make_source(given), {"epsilon": epsilon, "delta": delta}
    plan_first(
        [
            _settings.make(kind, {**settings, key: value}, seed=source.seed, **budget)
            for value in values
        ],
        source,
    )
    graph = source.load()
    check_fits(metric, task_of(graph))
    with open_results("sweep", given["results"], shard, source, graph) as notes:
        rows = bench.sweep(
            graph if jobs == 1 else None,
            source,
            kind.name,
            settings,
            key,
            values,
            seeds=seeds,
            jobs=jobs,
            shard=shard,
            memory=notes,
            progress=bar(f"varying {key}"),
            **budget,
        )
    if shard is not None:
        show_shard(rows, seeds, shard, notes, as_json)
        return
    check_ran(rows)
    rows = rows if metric is None else [row.measured_by(metric) for row in rows]
    title = f"{kind.name} on {source.data} under several {key}, {plural(seeds, 'seed')}"
    result = Result(title, data=source.data, method=kind.name, vary=key, seeds=seeds)
    result.add("rows", [row.json() for row in rows])
    claims = has_claims(rows)
    result.table(
        [
            key,
            "noise",
            *(["claimed", "proven"] if claims else ["epsilon"]),
            "delta",
            name_metric(rows[0].metric),
            "guess",
            "seconds",
        ],
        [
            [
                "none" if row.setting[key] is None else str(row.setting[key]),
                "" if row.noise_multiplier is None else f"{row.noise_multiplier:.4g}",
                *([claim_cell(row)] if claims else []),
                *cost_cells(row),
                score_cell(row),
                guess_cell(row),
                seconds_of(row),
            ]
            for row in rows
        ],
    )
    refusals = [f"{key} = {row.setting[key]}: {row.refused}" for row in rows if row.refused]
    result.add("remarks", refusals, "note")
    result.add("note", bench.CAUTION, "note")
    if plot is not None:
        from graphveil.report.plots import over_setting

        result.add("plot", str(over_setting(rows, plot, _plot_title(kind.name, source.data, rows))))
    if out is not None:
        write_json(out, result.json())
    result.show(as_json)


def _plot_title(name: str, data: str, rows: list[Row]) -> str:
    """What a plot of one method shows; a claimed epsilon is called one."""
    target = rows[0].target_epsilon
    if target is None:
        return f"{name} on {data}"
    claimed = any(row.claimed_epsilon is not None for row in rows)
    return f"{name} on {data}, {'claimed ' if claimed else ''}epsilon {target:g}"
