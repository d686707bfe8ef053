"""Methods side by side, and one method under several values of a setting."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from graphveil._errors import InvalidInputError, RefusedError
from graphveil._inputs import toml_value
from graphveil.cli._asked import (
    OWN_OPTIONS,
    check_setting,
    has_setting,
    is_private,
    made,
    method_named,
    parsed,
)
from graphveil.cli._notices import notices
from graphveil.cli._shared import (
    bar,
    classes_option,
    delta_option,
    directed_option,
    figure,
    force_option,
    json_option,
    root_option,
    set_option,
    show_table,
    split_option,
)
from graphveil.cli.training import METHOD_NAMES, check_file, write_json

if TYPE_CHECKING:
    from graphveil.bench import Row
    from graphveil.methods import Method
    from graphveil.runs import Source

_data = click.option("--data", required=True, help="A name of the catalog, or a path.")
_seeds = click.option("--seeds", type=int, default=3, show_default=True, help="Runs of each.")
_seed = click.option("--seed", type=int, default=0, show_default=True, help="The first of them.")
_out = click.option("--out", help="Write the results there as JSON, too.")

# Their order in the table: private ones, then what is possible in the open.
DEFAULT_METHODS = {
    "node": "dp-gnn,late-graph,gap,dpar,dp-mlp,mlp,gnn",
    "graph": "graph-dpsgd,graph-gnn",
}
PLOTS = ("privacy-utility.png", "class-accuracy.png")
_UNITS = {"edge-undirected": "edge", "edge-directed": "arc"}  # a table has little room


@click.command(epilog=f"Methods: {METHOD_NAMES}.")
@_data
@root_option
@click.option("--epsilon", "epsilons", type=float, multiple=True, required=True, help="Repeatable.")
@delta_option
@click.option(
    "--methods",
    help=f"Names, with commas. Default: {DEFAULT_METHODS['node']}, or for whole graphs "
    f"{DEFAULT_METHODS['graph']}.",
)
@_seeds
@_seed
@split_option
@classes_option
@directed_option
@set_option
@_out
@click.option("--plots", help="A directory for plots: over epsilon, and by class.")
@force_option
@json_option
@notices()
def compare(
    data: str,
    root: str | None,
    epsilons: tuple[float, ...],
    delta: float | None,
    methods: str | None,
    seeds: int,
    seed: int,
    split: str | None,
    classes: str | None,
    directed: bool | None,
    sets: tuple[str, ...],
    out: str | None,
    plots: str | None,
    force: bool,
    as_json: bool,
) -> None:
    """All methods on one graph, several seeds each, in one table with the baselines.

    A setting given by --set goes to every method that has it. One method under several settings:
    NAME:KEY=VALUE, several joined by +.

    \b
    graphveil compare --data social --epsilon 1 --epsilon 8 --seeds 3
    graphveil compare --data social --epsilon 1 --set unit=edge \\
        --methods gap:weighting=none,gap:weighting=similarity,gap:weighting=attention,mlp,gnn
    """
    from graphveil import bench, runs

    source = runs.Source(
        data=data, root=root, split=split, seed=seed, classes=classes, directed=directed
    )
    if methods is None:
        methods = DEFAULT_METHODS[_record(source)]
    specs = [_spec(text.strip()) for text in methods.split(",") if text.strip()]
    if not specs:
        raise click.UsageError("'--methods' names none; leave it out, or name one.")
    kinds = [kind for kind, _ in specs]
    settings = parsed(sets)
    for key in settings:
        if key in OWN_OPTIONS or not any(has_setting(kind, key) for kind in kinds):
            check_setting(kinds[0], key, settings[key])  # refuses, and lists what there is
    chosen = [
        (kind, {key: value for key, value in settings.items() if has_setting(kind, key)} | own)
        for kind, own in specs
    ]
    _check_outputs(out, plots, force)
    budgets = sorted(set(epsilons))
    ready, planned = [], []
    for kind, own in chosen:
        ready.append((kind.name, {key: check_setting(kind, key, own[key]) for key in own}))
        for budget in budgets if is_private(kind) else [None]:
            private = {"epsilon": budget, "delta": delta} if budget is not None else {}
            planned.append(made(kind, own, seed=seed, **private))
    _plan_first(planned, source)
    graph = source.load()
    rows = bench.compare(
        graph,
        source,
        ready,
        epsilons=budgets,
        delta=delta,
        seeds=seeds,
        progress=bar("comparing"),
    )
    _some_ran(rows)
    rows = bench.rank(rows)
    remarks = bench.remarks(rows)
    result = {
        "data": data,
        "split": split,
        "seeds": seeds,
        "rows": [row.json() for row in rows],
        "remarks": remarks,
        "note": bench.CAUTION,
    }
    written = []
    if plots is not None:
        names = getattr(graph, "class_names", None)
        written = [str(path) for path in _draw(rows, Path(plots), data, names)]
        result["plots"] = list(written)
    if out is not None:
        write_json(out, result)
        written.append(out)
    ranked = any(row.score("sensitivity")[0] is not None for row in rows)  # of two classes
    columns = ["method", "unit", "epsilon", "delta", "accuracy", "seconds", ""]
    columns[5:5] = ["ROC AUC"] if ranked else []
    table = [
        [row.label, row.unit if row.private else "", *_cells(row, ranked), _mark(row)]
        for row in rows
    ]
    title = f"Test accuracy on {data}, {seeds} seed{'s' if seeds != 1 else ''}"
    if any(row.unit == "edge-directed" for row in rows):
        remarks = [*remarks, "An arc is a directed edge (edge-directed)."]
    remarks = [*remarks, *([f"Written to {', '.join(written)}."] if written else [])]
    show_table(result, as_json, title, columns, table, [*remarks, bench.CAUTION])


@click.command(epilog=f"METHOD: {METHOD_NAMES}.")
@click.argument("method")
@_data
@root_option
@click.option("--vary", required=True, metavar="KEY=V1,V2,...", help="A setting and its values.")
@click.option("--epsilon", type=float, help="What each run may spend.")
@delta_option
@_seeds
@_seed
@split_option
@classes_option
@directed_option
@set_option
@_out
@click.option("--plot", help="A file for a plot, .png, .svg or .pdf.")
@force_option
@json_option
@notices()
def sweep(
    method: str,
    data: str,
    root: str | None,
    vary: str,
    epsilon: float | None,
    delta: float | None,
    seeds: int,
    seed: int,
    split: str | None,
    classes: str | None,
    directed: bool | None,
    sets: tuple[str, ...],
    out: str | None,
    plot: str | None,
    force: bool,
    as_json: bool,
) -> None:
    """One method under several values of a setting, all else equal.

    \b
    graphveil sweep dp-gnn --data social --epsilon 8 --vary sender_cap=1,3,7
    graphveil sweep dp-gnn --data social --epsilon 8 --vary sample_rate=0.1,0.3,0.5
    """
    kind = method_named(method)
    key, equals, listed = (part.strip() for part in vary.partition("="))
    values = [toml_value(text) for text in listed.split(",") if text.strip()]
    if not equals or not values:
        raise click.UsageError(f"Write '--vary' as KEY=V1,V2, e.g. sender_cap=1,3. Got {vary!r}.")
    if out is not None:
        check_file(out, force)
    if plot is not None:
        from graphveil.report import plots

        plots.needed()
        if Path(plot).suffix not in plots.ENDINGS:
            raise InvalidInputError(
                f"A plot must end in {', '.join(plots.ENDINGS)}. Got {plot!r} instead."
            )
        check_file(plot, force)

    from graphveil import bench, runs

    settings = {name: check_setting(kind, name, value) for name, value in parsed(sets).items()}
    values = [check_setting(kind, key, value) for value in values]
    source = runs.Source(
        data=data, root=root, split=split, seed=seed, classes=classes, directed=directed
    )
    planned = [
        made(kind, {**settings, key: value}, epsilon=epsilon, delta=delta, seed=seed)
        for value in values
    ]
    _plan_first(planned, source)
    rows = bench.sweep(
        source.load(),
        source,
        kind.name,
        settings,
        key,
        values,
        epsilon=epsilon,
        delta=delta,
        seeds=seeds,
        progress=bar(f"varying {key}"),
    )
    _some_ran(rows)
    refusals = [f"{key} = {row.setting[key]}: {row.refused}" for row in rows if row.refused]
    result = {
        "data": data,
        "method": kind.name,
        "vary": key,
        "seeds": seeds,
        "rows": [row.json() for row in rows],
        "remarks": refusals,
        "note": bench.CAUTION,
    }
    if plot is not None:
        from graphveil.report.plots import over_setting

        result["plot"] = str(over_setting(rows, plot, _title(kind.name, data, rows)))
    if out is not None:
        write_json(out, result)
    table = [
        [
            "none" if row.setting[key] is None else str(row.setting[key]),
            "" if row.noise_multiplier is None else f"{row.noise_multiplier:.4g}",
            *_cells(row),
        ]
        for row in rows
    ]
    columns = [key, "noise", "epsilon", "delta", "accuracy", "seconds"]
    title = f"{kind.name} on {data} under several {key}, {seeds} seed{'s' if seeds != 1 else ''}"
    show_table(result, as_json, title, columns, table, [*refusals, bench.CAUTION])


def _title(name: str, data: str, rows: list[Row]) -> str:
    """What a plot of one method shows; a claimed epsilon is called one."""
    budget = rows[0].target_epsilon
    if budget is None:
        return f"{name} on {data}"
    claimed = any(row.claimed_epsilon is not None for row in rows)
    return f"{name} on {data}, {'claimed ' if claimed else ''}epsilon {budget:g}"


def _record(source: Source) -> str:
    """What the data's records are, before it is loaded where its name tells."""
    from graphveil.data.catalog import CATALOG
    from graphveil.graph.checks import record_of

    entry = CATALOG.get(source.data.partition(":")[0])
    return record_of(source.load()) if entry is None else entry.record


def _spec(text: str) -> tuple[type[Method], dict[str, Any]]:
    """A method's name, and the settings that stand behind it."""
    name, colon, rest = text.partition(":")
    if colon and not all("=" in each for each in rest.split("+")):
        raise click.UsageError(
            f"Write a method in '--methods' as NAME or NAME:KEY=VALUE+KEY=VALUE. Got {text!r}."
        )
    return method_named(name.strip()), parsed(rest.split("+")) if rest else {}


def _plan_first(methods: list[Method], source: Source) -> None:
    """Refuse bad values before data is touched. One plan refused among others is no error."""
    expected = source.expected()
    if expected is None:
        return
    refused = []
    for method in methods:
        try:
            method.plan(expected)
        except RefusedError as error:
            refused.append(error)
    if refused and len(refused) == sum(is_private(type(method)) for method in methods):
        raise refused[0]


def _some_ran(rows: list[Row]) -> None:
    """Refuse for all of them if no private run was possible."""
    refused = [row.refused for row in rows if row.refused]
    if refused and len(refused) == sum(row.private for row in rows):
        raise RefusedError(refused[0])


def _check_outputs(out: str | None, plots: str | None, force: bool) -> None:
    if out is not None:
        check_file(out, force)
    if plots is None:
        return
    from graphveil.report import plots as drawing

    drawing.needed()
    folder = Path(plots)
    if folder.is_dir():
        for name in PLOTS:
            check_file(str(folder / name), force)
    elif folder.exists() or not os.access(folder.absolute().parent, os.W_OK | os.X_OK):
        raise InvalidInputError(f"{plots} cannot be a directory for plots; choose another.")


def _draw(rows: list[Row], folder: Path, data: str, names: list[str] | None) -> list[Path]:
    from graphveil.report import plots

    folder.mkdir(exist_ok=True)
    drawn = [plots.privacy_utility(rows, folder / PLOTS[0], data)]
    private = [row for row in rows if row.best]
    in_the_open = [row for row in rows if not row.private and row.mean is not None]
    if private and in_the_open:
        widest = max(private, key=lambda row: row.target_epsilon or 0.0)
        honest = max(in_the_open, key=lambda row: row.mean or 0.0)
        drawn.append(plots.class_accuracy(widest, honest, folder / PLOTS[1], data, names))
    return drawn


def _cells(row: Row, ranked: bool = False) -> list[str]:
    """Epsilon, delta, accuracy with its deviation, perhaps ROC AUC, seconds of one run."""
    auc = row.score("roc_auc")[0]
    area = [("" if auc is None else f"{auc:.3f}")] if ranked else []
    if row.mean is None:
        return [
            "-" if row.target_epsilon is None else f"{row.target_epsilon:g}",
            "",
            "refused",
            *area,
            "",
        ]
    accuracy = f"{100 * row.mean:.1f}"
    if row.deviation is not None:
        accuracy += f" ± {100 * row.deviation:.1f}"
    epsilon = "none" if row.void_because else figure(row.epsilon)
    delta = f"{row.delta:g}" if row.private and row.delta is not None else ""
    return [epsilon, delta, accuracy, *area, f"{row.seconds / len(row.accuracies):.1f}"]


def _mark(row: Row) -> str:
    if row.void_because:
        return "void certificate"
    if not row.private:
        return "not private"
    return "best private" if row.best else ""
