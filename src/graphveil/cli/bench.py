"""Published tables and figures: what is known of them, and running them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from graphveil._errors import InvalidInputError, ToleranceError
from graphveil.cli import _options as option
from graphveil.cli._output import Result, bar, figure, plural, say
from graphveil.cli._rows import percent

if TYPE_CHECKING:
    from graphveil.bench import Description, Measured, Row


@click.group()
def bench() -> None:
    """Published tables and figures, run beside what was published.

    \b
    graphveil bench list
    graphveil bench show daigavane-table1
    graphveil bench run daigavane-table1 --root data --out results
    graphveil bench run --all --quick --out quick
    """


# --- what there is --------------------------------------------------------------------------------


@bench.command("list")
@option.root
@option.as_json
def list_all(root: str | None, as_json: bool) -> None:
    """Every table and figure there is a description of.

    \b
    graphveil bench list --root data
    """
    from graphveil import bench as benches

    described = [benches.read(name) for name in benches.names()]
    result = Result("Tables and figures known by name")
    listed = [_about(one, root) for one in described]
    result.add("descriptions", listed)
    result.table(
        ["name", "shows", "shape", "data", "title"],
        [[one["name"], one["shows"], one["shape"], _here(one), one["title"]] for one in listed],
    )
    result.note(
        "Data: how many of a description's data sets are on disk, and what runs for others."
    )
    result.show(as_json)


def _about(described: Description, root: str | None) -> dict[str, Any]:
    from graphveil import bench as benches

    places = benches.find_places(described, root)
    names = ("name", "paper", "shows", "title", "shape", "source", "page")
    return {
        **{name: getattr(described, name) for name in names},
        "data": [
            {
                "name": place.data,
                "here": place.runs_on == place.data,
                "stand_in": place.stand_in_for and place.runs_on,
                "get": place.get or None,
            }
            for place in places
        ],
    }


def _here(about: dict[str, Any]) -> str:
    here = sum(one["here"] for one in about["data"])
    stand_ins = sum(one["stand_in"] is not None for one in about["data"])
    more = f", {plural(stand_ins, 'stand-in')}" if stand_ins else ""
    return f"{here} of {len(about['data'])}{more}"


@bench.command()
@click.argument("description")
@click.option("--quick", is_flag=True, help="The small version.")
@option.root
@option.as_json
def show(description: str, quick: bool, root: str | None, as_json: bool) -> None:
    """One description: runs, published figures, deviations, data and how to get it.

    \b
    graphveil bench show igamberdiev-table2
    """
    from graphveil import bench as benches
    from graphveil.bench.places import describe_missing

    described = benches.read(description, quick=quick)
    result = Result(f"{described.name}: {described.title}")
    about = _about(described, root)
    result.update(about)
    plain = ("metrics", "across", "seeds", "split", "reference", "finding", "deviations")
    result.update({name: getattr(described, name) for name in plain})
    result.add("runs", [_line_json(line) for line in described.lines])
    result.table(
        [
            "run",
            "setting",
            "method",
            "recipe",
            *(f"{name} [{described.metric}]" for name in described.data),
        ],
        [
            [
                line.name,
                line.setting,
                line.request.method,
                line.recipe or "",
                *(_published(*line.figure(described.metric, name)) for name in described.data),
            ]
            for line in described.lines
        ],
    )
    where = ", ".join(filter(None, [described.source, described.page and f"page {described.page}"]))
    if where:
        result.note(f"{where}. Figures are published ones, in percent.")
    if described.finding:
        result.note(f"Finding: {described.finding}")
    result.note(*(f"Here: {sentence}" for sentence in described.deviations))
    result.note(*describe_missing(benches.find_places(described, root)))
    result.show(as_json)


def _line_json(line: Any) -> dict[str, Any]:
    request = line.request
    return {
        "name": line.name,
        "setting": line.setting,
        "method": request.method,
        "recipe": line.recipe,
        "epsilon": request.epsilon,
        "delta": request.delta,
        "train_share": request.train_share,
        "settings": dict(request.settings),
        "published": line.published,
        "deviation": line.deviation,
        "at_least": line.at_least,
    }


def _published(value: float | None, deviation: float | None) -> str:
    return "" if value is None else percent(value, deviation)


# --- running --------------------------------------------------------------------------------------


@bench.command()
@click.argument("descriptions", nargs=-1)
@click.option("--all", "every", is_flag=True, help="Every description there is.")
@click.option("--out", help="A folder for results; what is in it is not run again.")
@click.option("--quick", is_flag=True, help="The small version, of a minute at most.")
@click.option("--seeds", type=int, help="Runs of each, instead of what the description says.")
@click.option("--seed", type=int, default=0, help="The first of them.")
@click.option("--shard", metavar="I/N", help="Every N-th run, from the I-th on.")
@click.option("--data", multiple=True, help="Only these graphs; repeat.")
@click.option("--only", multiple=True, help="Only runs whose name contains this; repeat.")
@option.root
@option.as_json
def run(
    descriptions: tuple[str, ...],
    every: bool,
    out: str | None,
    as_json: bool,
    **how: Any,
) -> None:
    """Run descriptions, and show published, claimed, proven and ours side by side.

    A description is a TOML file or a name of 'bench list'. With --out every run is written down as
    it ends, as a line of JSON in NAME.jsonl, and the same command goes on after a crash; at the end
    there are a tidy NAME.csv and a picture NAME.png. Shards may run side by side, on one machine or
    several; once all are done, the command without --shard makes table and picture of their files.
    A figure below what a description demands: exit code 4, after everything has been run.

    \b
    graphveil bench run igamberdiev-table2 --root data --out results
    graphveil bench run --all --quick --out quick
    graphveil bench run daigavane-table1 --shard 2/4 --out results
    """
    from graphveil import bench as benches

    if every == bool(descriptions):
        raise click.UsageError("Name a description or several, or give --all.")
    names = benches.names() if every else descriptions
    shard = None if how["shard"] is None else benches.parse_shard(how["shard"])
    if shard is not None and out is None:
        raise click.UsageError("'--shard' needs '--out': a folder that the shards share.")
    described = [benches.read(name, quick=how["quick"]) for name in names]
    wanted = _select(described, how, every)
    folder = None if out is None else _folder(out)
    results, misses = [], []
    for one in wanted:
        if len(wanted) > 1 and not as_json:
            say(f"{one.name}: {one.title}")
        result, missed = _run_one(one, folder, shard, how)
        results.append(result)
        misses += missed
        if not as_json:
            result.show(False)
    if as_json:
        if len(names) == 1 and not every:
            results[0].show(True)
        else:
            Result("", descriptions=[result.json() for result in results]).show(True)
    if misses:
        raise ToleranceError(" ".join(misses))


def _select(
    described: Sequence[Description], how: dict[str, Any], every: bool
) -> list[Description]:
    """The parts that are asked for; of all descriptions, those that have such a part."""
    from graphveil import bench as benches

    parts = []
    for one in described:
        try:
            part = benches.select(one, data=how["data"], only=how["only"])
        except InvalidInputError:
            if not every:
                raise
            continue
        parts.append(part if how["seeds"] is None else replace(part, seeds=how["seeds"]))
    return parts


def _folder(out: str) -> Path:
    folder = Path(out)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInputError(f"{out} cannot be a folder: {error.strerror}.") from None
    return folder


def _run_one(
    described: Description,
    folder: Path | None,
    shard: tuple[int, int] | None,
    how: dict[str, Any],
) -> tuple[Result, list[str]]:
    """Run what is left to run of one description, and write what comes of it."""
    from graphveil import bench as benches

    notes = None
    if folder is not None:
        quick = described.quick
        path = benches.results_file(folder, described.name, quick=quick, shard=shard)
        notes = benches.Notes(path, benches.results_files(folder, described.name, quick=quick))
    try:
        measured = benches.run(
            described,
            root=how["root"],
            seed=how["seed"],
            shard=shard,
            progress=bar(described.name),
            memory=notes,
        )
    except KeyboardInterrupt as error:
        if notes is not None:
            error.add_note(
                "What was measured is written down; the same command goes on from there."
            )
        raise
    result = _result(described, measured)
    if shard is not None:
        result.note(f"Shard {shard[0]} of {shard[1]}: rows are of what all files hold so far.")
        return result, []
    missed = benches.missed(described, measured)
    result.add("missed", missed)
    if folder is not None:
        result.add("files", _write(described, measured, folder), "note", "Written to {}.".format)
    return result, missed


def _write(described: Description, measured: Sequence[Measured], folder: Path) -> list[str]:
    """The tidy table, and the picture where one can be drawn."""
    from graphveil import bench as benches

    stem = f"{described.name}.quick" if described.quick else described.name
    path = folder / f"{stem}.csv"
    benches.write_csv(path, benches.tidy(measured, described.metrics))
    return [str(path)]


# --- what is shown --------------------------------------------------------------------------------


def _result(described: Description, measured: Sequence[Measured]) -> Result:
    """A line for each run on each data set: published, claimed, proven, ours."""
    from graphveil import bench as benches
    from graphveil.bench.places import describe_missing

    metric = described.metric.replace("_", " ")
    small = ", the small version" if described.quick else ""
    result = Result(f"{described.title}: {metric}, {plural(described.seeds, 'seed')}{small}")
    plain = ("name", "title", "paper", "shows", "source", "page", "metrics", "seeds", "quick")
    result.update({name: getattr(described, name) for name in plain})
    result.add("rows", [_row_json(described, one) for one in measured])
    result.table(
        ["run", "data", "published", "claimed", "proven", "ours"],
        [_cells(described, one) for one in measured],
    )
    rows = [one.row for one in measured]
    result.note(*_promises(rows))
    if any(True for _ in described.figures()):
        result.note(
            f"Published: {described.source or 'by the description'}. Figures are in percent."
        )
    if described.finding:
        result.note(f"The finding to look for: {described.finding}")
    result.note(*(f"Unlike the paper: {sentence}" for sentence in described.deviations))
    result.note(*describe_missing(list(dict.fromkeys(one.place for one in measured))))
    refused = {f"{one.row.label}: {one.row.refused}": None for one in measured if one.row.refused}
    here = [sentence for sentence in refused if "is not on disk" not in sentence]
    result.note(*here)
    result.add("note", benches.CAUTION, "note")
    return result


def _row_json(described: Description, one: Measured) -> dict[str, Any]:
    value, deviation = one.line.figure(described.metric, one.place.data)
    return {
        "data": one.place.runs_on or one.place.data,
        "stand_in_for": one.place.stand_in_for,
        **one.row.json(),
        "recipe": one.line.recipe,
        "published": value,
        "published_deviation": deviation,
        "published_of": {
            metric: one.line.figure(metric, one.place.data)[0] for metric in described.metrics
        },
        "means": {metric: one.row.score(metric)[0] for metric in described.metrics},
        "at_least": one.line.at_least.get(one.place.data),
    }


def _cells(described: Description, one: Measured) -> list[str]:
    row = one.row
    value, deviation = one.line.figure(described.metric, one.place.data)
    published = _published(value, deviation)
    if published and one.place.stand_in_for is not None:
        published += " (other data)"
    asked = "" if row.target_epsilon is None else f", epsilon {row.target_epsilon:g}"
    return [
        f"{row.label}{asked}",
        one.place.label,
        published,
        "" if row.claimed_epsilon is None else figure(row.claimed_epsilon),
        _proven(row),
        _ours(row, described.metric),
    ]


def _proven(row: Row) -> str:
    if not row.private or not row.scores:
        return ""
    return "none" if row.void_because or math.isinf(row.epsilon) else figure(row.epsilon)


def _ours(row: Row, metric: str) -> str:
    if row.refused and not row.scores:
        return "not on disk" if "is not on disk" in row.refused else "refused"
    mean, deviation = row.score(metric)
    if mean is None:
        return "" if row.scores else "not run"
    return f"{mean:.3f}" if metric == "loss" else percent(mean, deviation)


def _promises(rows: Sequence[Row]) -> list[str]:
    """For which unit and at what delta the epsilons are; one line where all are alike."""
    from graphveil.privacy.guarantee import ONE

    rows = [row for row in rows if row.private and row.scores]
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
