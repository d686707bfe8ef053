"""Methods side by side."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from graphveil.cli import _options as option
from graphveil.cli import _runs, _settings
from graphveil.cli._metrics import check_fits, check_metric, name_metric
from graphveil.cli._notices import notices
from graphveil.cli._output import Result, bar, check_file, check_folder, plural, write_json
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
    from graphveil.methods import Method
    from graphveil.runs import Source

PLOTS = ("privacy-utility.png", "class-accuracy.png")


@click.command(cls=_settings.MethodCommand)
@option.data
@click.option("--epsilon", "epsilons", type=float, multiple=True, required=True, help="Repeatable.")
@option.delta
@click.option(
    "--methods",
    help="NAME or NAME:KEY=VALUE+KEY=VALUE, with commas. Default: what there is for such data.",
)
@option.metric
@option.seeds
@option.source
@option.sets
@option.results
@option.shard
@option.jobs
@click.option("--out", help="Write the table there as JSON, too.")
@click.option("--plots", help="A directory for plots: over epsilon, and by class.")
@option.force
@option.as_json
@notices()
def compare(
    epsilons: tuple[float, ...],
    delta: float | None,
    methods: str | None,
    metric: str | None,
    seeds: int,
    sets: tuple[str, ...],
    out: str | None,
    plots: str | None,
    as_json: bool,
    **given: Any,
) -> None:
    """All methods on one graph, with the honest baselines.

    Each is trained under several seeds. A setting given by --set goes to every method that has it.
    One method under several settings: NAME:KEY=VALUE, several joined by +. NAME may be a recipe.
    --jobs N runs N at a time. With --results DIR every run is kept as it ends; shards of the work
    (--shard I/N) share DIR, and once all are done, the command without --shard shows the table.

    \b
    graphveil compare --data social --epsilon 1 --epsilon 8 --seeds 3 --jobs 2
    graphveil compare --data social --epsilon 8 --seeds 10 --results grid --shard 2/4
    graphveil compare --data social --epsilon 1 --set unit=edge \\
        --methods gap:weighting=none,gap:weighting=similarity,gap:weighting=attention,mlp,gnn
    """
    from graphveil import bench
    from graphveil._jobs import check_jobs
    from graphveil.graph.checks import task_of

    check_metric(metric)
    shard, force = check_shard(given, out, plots), given["force"]
    jobs = check_jobs(given["jobs"])
    source = _runs.make_source(given)
    names = ",".join(_settings.compared_methods(_record(source))) if methods is None else methods
    chosen = _choose(names, _settings.parse(sets))
    check_file(out, force)
    files = [] if plots is None else check_folder(plots, PLOTS, force)
    targets = sorted(set(epsilons))
    plan_first(_make_all(chosen, targets, delta, source.seed), source)
    graph = source.load()
    check_fits(metric, task_of(graph))
    with open_results("compare", given["results"], shard, source, graph) as notes:
        rows = bench.compare(
            graph if jobs == 1 else None,
            source,
            [(kind.name, settings) for kind, settings in chosen],
            epsilons=targets,
            delta=delta,
            seeds=seeds,
            jobs=jobs,
            shard=shard,
            memory=notes,
            progress=bar("comparing"),
        )
    if shard is not None:
        show_shard(rows, seeds, shard, notes, as_json)
        return
    check_ran(rows)
    rows = bench.rank(rows if metric is None else [row.measured_by(metric) for row in rows])
    ran = next((row for row in rows if not row.refused), rows[0])
    title = f"Test {name_metric(ran.metric)} on {source.data}, {plural(seeds, 'seed')}"
    result = Result(title, data=source.data, split=source.split, seeds=seeds)
    result.add("task", ran.task)
    result.add("metric", ran.metric)
    result.add("baseline", dict(ran.baseline))
    result.add("rows", [row.json() for row in rows])
    result.table(*_table(rows))
    result.add("remarks", bench.remarks(rows), "note")
    written = []
    if files:
        labels = getattr(graph, "class_names", None)
        written = [str(path) for path in _draw(rows, files, source.data, labels)]
        result.add("plots", written)
    if written or out is not None:
        result.note(f"Written to {', '.join([*written, *([] if out is None else [out])])}.")
    result.add("note", bench.CAUTION, "note")
    if out is not None:
        write_json(out, result.json())
    result.show(as_json)


Chosen = list[tuple[type["Method"], dict[str, Any]]]


def _choose(methods: str, shared: dict[str, Any]) -> Chosen:
    """Methods with their settings; those that are shared go to every method that has them."""
    from graphveil.methods.settings import setting_fields

    parsed = [
        (kind, own, setting_fields(kind)) for _, kind, own in _settings.parse_methods(methods)
    ]
    for key, value in shared.items():
        if key in _settings.OWN_OPTIONS or not any(key in known for _, _, known in parsed):
            _settings.check_setting(parsed[0][0], key, value)  # refuses, and lists what there is
    return [
        (
            kind,
            _settings.check_settings(
                kind, {key: shared[key] for key in shared if key in known} | own
            ),
        )
        for kind, own, known in parsed
    ]


def _make_all(
    chosen: Chosen, epsilons: list[float], delta: float | None, seed: int
) -> list[Method]:
    """Every method that will be trained; of those in the open, one."""
    return [
        _settings.make(
            kind, settings, seed=seed, epsilon=epsilon, delta=None if epsilon is None else delta
        )
        for kind, settings in chosen
        for epsilon in (epsilons if kind.private else [None])
    ]


def _record(source: Source) -> str:
    """What the data's records are, before it is loaded where its name tells."""
    from graphveil.data.catalog import CATALOG
    from graphveil.graph.checks import record_of

    entry = CATALOG.get(source.data.partition(":")[0])
    return record_of(source.load()) if entry is None else entry.record


def _draw(rows: list[Row], files: list[Path], data: str, names: list[str] | None) -> list[Path]:
    from graphveil.report import plots

    curve, bars = files
    curve.parent.mkdir(exist_ok=True)
    drawn = [plots.privacy_utility(rows, curve, data)]
    private = [row for row in rows if row.best]
    in_the_open = [row for row in rows if not row.private and row.mean is not None]
    if private and in_the_open and private[0].class_accuracy:
        widest = max(private, key=lambda row: row.target_epsilon or 0.0)
        honest = max(in_the_open, key=lambda row: row.standing)
        drawn.append(plots.class_accuracy(widest, honest, bars, data, names))
    return drawn


def _table(rows: list[Row]) -> tuple[list[str], list[list[str]]]:
    """Columns and cells: the metric, the best guess, and figures that a task has besides."""
    claims, metric = has_claims(rows), rows[0].metric
    besides = [name for name in _BESIDES.get(_kind(rows), ()) if name != metric]
    costs = ["claimed", "proven"] if claims else ["epsilon"]
    columns = ["method", "unit", *costs, "delta", name_metric(metric), "guess"]
    cells = [
        [
            row.label,
            row.unit if row.private else "",
            *([claim_cell(row)] if claims else []),
            *cost_cells(row),
            score_cell(row),
            guess_cell(row),
            *(score_cell(row, name) if not row.refused else "" for name in besides),
            seconds_of(row),
            _mark(row),
        ]
        for row in rows
    ]
    return [*columns, *map(name_metric, besides), "seconds", ""], cells


# Figures that stand beside the metric.
_BESIDES = {
    "two classes": ("roc_auc", "average_precision"),
    "ordinal": ("accuracy", "mae"),
    "multilabel": ("macro_f1", "average_precision"),
    "regression": ("r2", "mae"),
    "link": ("recall@10", "ndcg@10"),
}


def _kind(rows: list[Row]) -> str:
    two = any(len(row.class_share) == 2 for row in rows)
    return "two classes" if two else rows[0].task


def _mark(row: Row) -> str:
    marks = [
        ("void certificate", bool(row.void_because)),
        ("not private", not row.private),
        ("best private", row.best),
        ("learnt nothing", row.learnt is False),
    ]
    return ", ".join(mark for mark, holds in marks if holds)
