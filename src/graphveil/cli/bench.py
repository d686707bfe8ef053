"""Published tables and figures: what is known of them, and running them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from graphveil._errors import InvalidInputError, ToleranceError
from graphveil._inputs import read_text
from graphveil.cli import _options as option
from graphveil.cli._notices import notices
from graphveil.cli._output import Result, bar, check_file, figure, plural, say, write_text
from graphveil.cli._results import goes_on, make_folder
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
        ["name", "shows", "data", "title"],
        [[one["name"], one["shows"], _here(one), one["title"]] for one in listed],
    )
    result.note(
        "Data: how many of a description's data sets are on disk, and what runs for others."
    )
    result.show(as_json)


def _about(described: Description, root: str | None) -> dict[str, Any]:
    from graphveil import bench as benches

    places = benches.find_places(described, root)
    names = ("name", "paper", "shows", "title", "shape", "source", "section")
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
            "recipe or method",
            *described.data,
        ],
        [
            [
                line.name,
                line.setting,
                line.recipe or line.request.method,
                *(_published(*line.figure(described.metric, name)) for name in described.data),
            ]
            for line in described.lines
        ],
    )
    where = described.where
    if where:
        result.note(f"{where}. Figures are published ones, in percent: {described.metric}.")
    result.note(
        f"{plural(described.seeds, 'seed')}. Measured: {', '.join(described.metrics)}. Shape: "
        f"{described.shape}."
    )
    if described.finding:
        result.note(f"Finding: {described.finding}")
    if described.shortened:
        result.note(described.shortened)
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
@click.option("--seed", type=int, help="The first of them, instead of the description's.")
@click.option("--shard", metavar="I/N", help="Every N-th run, from the I-th on.")
@option.jobs
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
    --jobs N runs N at a time in processes of their own; docs/jobs.md has clusters. A figure below
    what a description demands: exit code 4, after everything has been run.

    \b
    graphveil bench run igamberdiev-table2 --root data --out results
    graphveil bench run --all --quick --out quick
    graphveil bench run daigavane-table1 --shard 2/4 --jobs 8 --out results
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
    folder = None if out is None else make_folder(out)
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
    with notices(), goes_on(notes):
        measured = benches.run(
            described,
            root=how["root"],
            seed=described.first_seed if how["seed"] is None else how["seed"],
            shard=shard,
            jobs=how["jobs"],
            progress=bar(described.name),
            memory=notes,
        )
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
    from graphveil.report import bench_pictures, plots

    try:
        plots.require_matplotlib()
    except InvalidInputError as error:
        say(str(error))
        return [str(path)]
    drawn = bench_pictures.draw(described, measured, folder / f"{stem}.png")
    return [str(path), *([] if drawn is None else [str(drawn)])]


# --- checking -------------------------------------------------------------------------------------


@bench.command()
@click.argument("descriptions", nargs=-1)
@click.option("--form", help="Write the form of a second reading there, without the figures.")
@click.option("--reading", help="Another second reading than the package's: a CSV file.")
@click.option("--plans/--no-plans", default=True, help="Plan every run where sizes are known.")
@option.force
@option.as_json
def check(
    descriptions: tuple[str, ...],
    form: str | None,
    reading: str | None,
    plans: bool,
    force: bool,
    as_json: bool,
) -> None:
    """Check descriptions: their schema, their runs, and their figures by a second reading.

    Without a name: all of them. Nothing is loaded or trained. The second reading has every
    published figure once more, typed from the papers without sight of the descriptions; --form
    writes what such a reader fills in. A figure that differs: exit code 4; any other problem: 2.

    \b
    graphveil bench check
    graphveil bench check my.toml --reading mine.csv
    graphveil bench check --form to-fill-in.csv
    """
    from graphveil import bench as benches
    from graphveil.bench import checking

    names = descriptions or tuple(benches.names())
    if form is not None:
        check_file(form, force)
        write_text(form, checking.make_form(benches.read(name) for name in names))
        result = Result("A form for a second reading", form=form)
        result.row("written to", form)
        result.show(as_json)
        return
    findings = checking.check(names, reading=reading, plans=plans, progress=bar("checking"))
    result = Result(f"{plural(len(names), 'description')} checked")
    result.add("checked", list(findings.checked))
    result.add("figures", findings.figures, "published figures")
    result.add("problems", findings.problems, "problem")
    result.add("differences", findings.differences, "differs")
    result.add("unread", findings.unread)
    result.row("not read twice", _count(findings.unread))
    result.add("unknown", findings.unknown, "in no description")
    result.add("refused", findings.refused, "refused")
    result.show(as_json)
    if findings.problems:
        raise InvalidInputError(f"{plural(len(findings.problems), 'problem')} in descriptions.")
    if findings.differences:
        count = plural(len(findings.differences), "published figure")
        raise ToleranceError(f"{count} must be read again: two readers typed them differently.")


def _count(keys: Sequence[str]) -> str:
    names = dict.fromkeys(key.partition(" / ")[0] for key in keys)
    of = f" of {', '.join(names)}" if names else ""
    return plural(len(keys), "figure") + of


# --- a page of results ----------------------------------------------------------------------------


@bench.command()
@click.argument("descriptions", nargs=-1)
@click.option("--results", default="results", help="The folder of results.")
@click.option("--out", help="The page, in Markdown; pictures go to a folder beside it.")
@click.option("--into", multiple=True, help="A page with blocks to be made anew; repeat.")
@option.as_json
def page(
    descriptions: tuple[str, ...],
    results: str,
    out: str | None,
    into: tuple[str, ...],
    as_json: bool,
) -> None:
    """Make the page of results from files of results, and tables in other pages.

    Without a description: all that the folder has results of. In a page --into, what stands
    between '<!-- bench: NAME -->' and '<!-- end -->' is replaced by the table of that name;
    '<!-- bench: NAME; only WORDS; data DATA -->' takes some of its rows.

    \b
    graphveil bench page --results results --out docs/results.md --into docs/choose-a-method.md
    """
    from graphveil.bench import page as pages

    if out is None and not into:
        raise click.UsageError("Give '--out' a page to make, or '--into' one to refresh, or both.")
    measured = pages.read_results(results, descriptions)
    if not measured:
        raise InvalidInputError(
            f"{results} must hold whole results of a description: NAME.jsonl. Got none instead; "
            "results of --quick are none, and a description of your own must be named."
        )
    written = []
    if out is not None:
        pictures = _draw_page(measured, Path(out))
        write_text(out, pages.make_page(measured, pictures, Path(results).name))
        written = [out, *(str(Path(out).parent / path) for path in pictures.values())]
    for path in into:
        try:
            text = read_text(path)
        except OSError as error:
            raise InvalidInputError(f"{path} cannot be read: {error.strerror}.") from None
        write_text(path, pages.refresh(text, measured))
        written.append(path)
    stale = {one.described.name: one.stale for one in measured if one.stale}
    result = Result("Pages of results", written=written, stale=stale)
    result.table(
        ["description", "rows", "outcomes"],
        [[one.described.name, str(len(one.measured)), str(len(one.outcomes))] for one in measured],
    )
    result.note(
        *(
            f"{name}: {plural(count, 'outcome')} belong to no row, of other settings or seeds than "
            "the description has now."
            for name, count in stale.items()
        ),
        f"Written to {', '.join(written)}.",
    )
    result.show(as_json)


def _draw_page(measured: Sequence[Any], out: Path) -> dict[str, str]:
    """The pictures of a page, in a folder of its name beside it."""
    from graphveil.bench import page as pages
    from graphveil.report import bench_pictures, plots

    plots.require_matplotlib()
    folder = make_folder(str(out.with_suffix("")))
    drawn = {}
    if claimed := pages.claimed_points(measured):
        drawn["proven"] = bench_pictures.proven_against_claimed(
            claimed, folder / "proven-and-claimed.svg"
        )
    if points := pages.accuracy_points(measured):
        drawn["accuracy"] = bench_pictures.ours_against_published(
            points, folder / "ours-and-published.svg"
        )
    if claimed and points:
        drawn["overview"] = bench_pictures.overview(claimed, points, folder / "overview.svg")
    for one in measured:
        if one.described.shape == "table":  # which the page prints
            continue
        # Points in the plane are small as a bitmap alone.
        ending = ".png" if one.described.shape in ("embedding", "confusion") else ".svg"
        path = folder / f"{one.described.name}{ending}"
        picture = bench_pictures.draw(one.described, one.measured, path)
        if picture is not None:
            drawn[one.described.name] = picture
    return {key: f"{folder.name}/{path.name}" for key, path in drawn.items()}


# --- what is shown --------------------------------------------------------------------------------


def _result(described: Description, measured: Sequence[Measured]) -> Result:
    """A line for each run on each data set: published, claimed, proven, ours."""
    from graphveil import bench as benches
    from graphveil.bench.places import describe_missing

    metric = described.metric.replace("_", " ")
    small = ", the small version" if described.quick else ""
    result = Result(f"{described.title}: {metric}, {plural(described.seeds, 'seed')}{small}")
    plain = ("name", "title", "paper", "shows", "source", "section", "metrics", "seeds", "quick")
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
    if described.shortened:
        result.note(described.shortened)
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
        notes = [f"Each proven epsilon is for {ONE[unit]}, at delta {delta:g}."]
    else:
        notes = [
            f"Proven for {ONE[unit]}, at delta {delta:g}: "
            f"{', '.join(dict.fromkeys(labels[unit, delta]))}."
            for unit, delta in sorted(labels, key=str)
        ]
    void: dict[str, dict[str, None]] = {}
    for row in rows:
        for reason in row.void_because:
            void.setdefault(reason, {})[row.label] = None
    refusals = (f"No epsilon holds for {', '.join(who)}: {reason}." for reason, who in void.items())
    return [*notes, *refusals]
