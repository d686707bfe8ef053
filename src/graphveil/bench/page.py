"""A page of results, from files of results: tables, pictures, and blocks in other pages.

Whatever stands on such a page was measured: rows are made from the outcomes in ``NAME.jsonl`` and
of nothing else. A row that no outcome is there for is left out, and counted.

In a page that is written by hand, a block between two marks is replaced by a table::

    <!-- bench: NAME -->
    <!-- end -->
    <!-- bench: NAME; only WORDS; only WORDS; data DATA -->
    <!-- end -->

``only`` keeps rows whose names contain the words, ``data`` those of a data set or stand-in.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from graphveil._errors import InvalidInputError
from graphveil.bench.description import PAPERS, Description, names, read, select
from graphveil.bench.places import Place
from graphveil.bench.requests import Memory, Outcome
from graphveil.bench.results import Notes, results_files
from graphveil.bench.table import Measured, gather, plan_singles
from graphveil.privacy.guarantee import round_up

_BLOCK = re.compile(r"(<!-- bench: (.*?) -->\n).*?(<!-- end -->)", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class Results:
    """What the files of one description hold: its rows, and outcomes that belong to none."""

    described: Description
    measured: tuple[Measured, ...]
    stale: int = 0

    @property
    def outcomes(self) -> list[Outcome]:
        """Every outcome that a row has."""
        return [outcome for one in self.measured for _, outcome in one.outcomes]

    def stamps(self, key: str) -> list[str]:
        """The machines, dates or versions there are."""
        return sorted({str(one[key]) for one in self.outcomes if key in one})


def read_results(folder: str | Path, descriptions: Sequence[str] = ()) -> list[Results]:
    """The results in a folder, of the descriptions that have some; by default the package's."""
    folder = Path(folder)
    if not folder.is_dir():
        raise InvalidInputError(
            f"Results must be a folder of .jsonl files, as 'bench run --out' writes. Got "
            f"{str(folder)!r} instead."
        )
    read_all = []
    for name in descriptions or names():
        files = results_files(folder, Path(name).stem, quick=False)
        if files:
            known: Memory = {}
            for file in files:
                known.update(Notes(file, keep=True))
            read_all.append(gather_results(read(name), known))
    return read_all


def gather_results(described: Description, known: Mapping[str, Outcome]) -> Results:
    """The rows of a description from outcomes, whatever seeds they were measured under."""
    seeds = sorted({json.loads(key)["seed"] for key in known})
    places = _places(described, known)
    used: dict[str, Outcome] = {}
    singles = [
        single
        for seed in seeds
        for single in plan_singles(replace(described, seeds=1), places, None, seed)
    ]
    for single in singles:
        outcome = known.get(single.key)
        if outcome is not None and single.line.request.made(outcome):
            used[single.key] = outcome
    measured = gather(described, places, singles, used)
    done = tuple(one for one in measured if one.outcomes)
    return Results(described=described, measured=done, stale=len(known) - len(used))


def _places(described: Description, known: Mapping[str, Outcome]) -> list[Place]:
    """What ran for each data set: itself, else its stand-in, as the outcomes say."""
    ran = {json.loads(key)["data"] for key in known}
    places = []
    for name in described.data:
        other = described.stand_in.get(name)
        if name in ran:
            places.append(Place(data=name, runs_on=name))
        elif other in ran:
            places.append(Place(data=name, runs_on=other))
    return places


# --- tables ---------------------------------------------------------------------------------------


def make_table(results: Results, measured: Sequence[Measured] | None = None) -> str:
    """A table in Markdown: published, claimed, proven, ours; a column for each further metric."""
    described = results.described
    rows = results.measured if measured is None else measured
    others = described.metrics[1:]
    heads = ["run", "data", "published", "claimed", "proven", "ours", "seeds"]
    heads += [f"{_words(metric)} [published]" for metric in others]
    cells = [
        [*_cells(described, one), *(_further(one, metric) for metric in others)] for one in rows
    ]
    # What nobody published or claimed has no column.
    kept = [number for number in range(len(heads)) if any(line[number] for line in cells)]
    lines = [heads, ["---"] * len(heads), *cells]
    return "\n".join(_markdown([line[number] for number in kept]) for line in lines)


def _markdown(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _words(metric: str) -> str:
    return metric.replace("_", " ")


def _cells(described: Description, one: Measured) -> list[str]:
    row = one.row
    asked = "" if row.target_epsilon is None else f", epsilon {row.target_epsilon:g}"
    published = _figure(*one.line.figure(described.metric, one.place.data), described.metric)
    if published and one.place.stand_in_for is not None:
        published = f"({published}, of {one.place.data})"
    ran = sum("refused" not in outcome for _, outcome in one.outcomes)
    ours = _figure(*row.score(described.metric), described.metric) if ran else "refused"
    return [
        f"{row.label}{asked}",
        one.place.label,
        published,
        "" if row.claimed_epsilon is None else round_up(row.claimed_epsilon),
        _proven(one) if ran else "",
        ours,
        str(ran) if ran else "",
    ]


def _further(one: Measured, metric: str) -> str:
    published = _figure(*one.line.figure(metric, one.place.data), metric)
    ours = _figure(*one.row.score(metric), metric)
    of = "" if one.place.stand_in_for is None else f", of {one.place.data}"
    return f"{ours} [{published}{of}]" if published else ours


def _proven(one: Measured) -> str:
    if not one.row.private:
        return "in the open"
    none = bool(one.row.void_because) or math.isinf(one.row.epsilon)
    return "none" if none else round_up(one.row.epsilon)


def _figure(mean: float | None, deviation: float | None, metric: str) -> str:
    if mean is None:
        return ""
    scale, digits = (1, 3) if metric == "loss" else (100, 1)
    spread = "" if deviation is None else f" ± {scale * deviation:.{digits}f}"
    return f"{scale * mean:.{digits}f}{spread}"


# --- the page -------------------------------------------------------------------------------------


def make_page(
    results: Sequence[Results], pictures: Mapping[str, str], commands: str = "results"
) -> str:
    """The page in Markdown; ``pictures`` are paths beside it, by description, and two of all."""
    parts = [
        "# Results",
        "This page is made by `graphveil bench page` from the files in "
        f"`{commands}/`; nothing on it is typed. `graphveil bench run NAME --out {commands}` "
        "measures a table anew. **Published** is what the paper prints, **claimed** the epsilon "
        "that it claims for such a run, **proven** the epsilon that graphveil proves for what ran "
        "here, and **ours** what was measured here: figures are in percent, means with standard "
        "deviations over the seeds. A **stand-in** runs where the paper's data cannot be had by "
        "everybody; figures of the paper beside it are of other data.",
        *_opening(pictures),
        _overview(results),
        *(_section(one, pictures.get(one.described.name)) for one in results),
    ]
    return "\n\n".join(parts) + "\n"


def _opening(pictures: Mapping[str, str]) -> Iterator[str]:
    texts = {
        "proven": "Proven against claimed epsilon: every run with the noise of a paper's claim, by "
        "paper. On the dotted line the claim holds.",
        "accuracy": "Accuracy at a proven epsilon against the published accuracy at a claimed one "
        "of the same size or more, by paper: the best run on the same data that holds what it "
        "says.",
    }
    for key, text in texts.items():
        if key in pictures:
            yield f"![{text}]({pictures[key]})\n\n{text}"


def _overview(results: Sequence[Results]) -> str:
    lines = [
        _markdown(["name", "shows", "rows", "seeds", "measured", "on"]),
        _markdown(["---"] * 6),
    ]
    for one in results:
        described = one.described
        seeds = sorted({len(row.outcomes) for row in one.measured}) or [0]
        counts = str(seeds[0]) if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
        lines.append(
            _markdown(
                [
                    f"[{described.name}](#{described.name})",
                    f"{PAPERS.get(described.paper, described.paper)}, {described.shows}",
                    str(len(one.measured)),
                    counts,
                    _span(one.stamps("date")),
                    "; ".join(one.stamps("machine")),
                ]
            )
        )
    return "\n".join(lines)


def _span(dates: Sequence[str]) -> str:
    """From the first to the last."""
    return " to ".join(dict.fromkeys([*dates[:1], *dates[-1:]]))


def _section(results: Results, picture: str | None) -> str:
    described = results.described
    title = described.title if described.title.endswith("?") else f"{described.title}."
    parts = [
        f"## {described.name}",
        f"{title} {described.where}. Metric: {_words(described.metric)}.",
    ]
    if described.finding:
        parts.append(f"**What the paper finds**: {described.finding}")
    parts.append(make_table(results))
    if picture is not None:
        parts.append(f"![{described.title}]({picture})")
    notes = [*(f"Unlike the paper: {text}" for text in described.deviations), *_notes(results)]
    if notes:
        parts.append("\n".join(f"- {text}" for text in notes))
    return "\n\n".join(parts)


def _notes(results: Results) -> list[str]:
    rows = [one.row for one in results.measured]
    void = dict.fromkeys(
        f"No epsilon holds for {row.label}: {reason}" for row in rows for reason in row.void_because
    )
    refused = dict.fromkeys(f"{row.label}: {row.refused}" for row in rows if row.refused)
    missing = len(results.described.lines) * len(results.described.data) - len(results.measured)
    left = [f"Not measured yet: {missing} rows."] if missing else []
    versions = results.stamps("version")
    mixed = [f"Measured by graphveil {', '.join(versions)}."] if len(versions) > 1 else []
    return [*void, *refused, *left, *mixed]


def claimed_points(results: Sequence[Results]) -> list[tuple[str, float, float | None]]:
    """Paper, claimed epsilon and proven one (None is none), of every run with a claim."""
    return [
        (
            PAPERS.get(one.described.paper, one.described.paper),
            row.claimed_epsilon,
            None if row.void_because or math.isinf(row.epsilon) else row.epsilon,
        )
        for one in results
        for row in (measured.row for measured in one.measured)
        if row.claimed_epsilon is not None and row.scores
    ]


def accuracy_points(results: Sequence[Results]) -> list[tuple[str, float, float, bool]]:
    """Paper, published figure, ours at a proven epsilon no larger, and whether on a stand-in."""
    points = []
    for one in results:
        metric = one.described.metric
        if metric in ("loss", "stay_hard", "iou_reference", "iou_original"):
            continue
        for row in one.measured:
            published = row.line.figure(metric, row.place.data)[0]
            # What the paper prints for the row; steps are whole, and a claim may end a hair below.
            printed = row.row.target_epsilon
            if published is None or printed is None or row.row.claimed_epsilon is None:
                continue
            ours = [
                other.row.score(metric)[0] or 0.0
                for other in one.measured
                if other.place == row.place
                and other.row.unit == row.row.unit
                and _holds(other, printed)
            ]
            if ours:
                paper = PAPERS.get(one.described.paper, one.described.paper)
                points.append((paper, published, max(ours), row.place.stand_in_for is not None))
    return points


def _holds(one: Measured, epsilon: float) -> bool:
    row = one.row
    within = row.private and row.epsilon <= epsilon * (1 + 1e-6)
    return within and not row.void_because and bool(row.scores)


# --- blocks in other pages ------------------------------------------------------------------------


def refresh(text: str, results: Sequence[Results]) -> str:
    """The text of a page, every block between marks made anew."""
    by_name = {one.described.name: one for one in results}

    def make(match: re.Match[str]) -> str:
        return f"{match[1]}\n{_block(match[2], by_name)}\n\n{match[3]}"

    if text.count("<!-- bench:") != len(_BLOCK.findall(text)):
        raise InvalidInputError(
            "Every '<!-- bench: NAME -->' must stand on a line of its own, with '<!-- end -->' "
            "after it. Got one without instead."
        )
    return _BLOCK.sub(make, text)


def _block(mark: str, by_name: Mapping[str, Results]) -> str:
    name, *parts = (part.strip() for part in mark.split(";"))
    if name not in by_name:
        raise InvalidInputError(
            f"A block must name a description with results, one of {', '.join(by_name)}. Got "
            f"{name!r} instead."
        )
    wanted: dict[str, list[str]] = {"only": [], "data": []}
    for part in parts:
        kind, _, words = part.partition(" ")
        if kind not in wanted or not words:
            raise InvalidInputError(
                f"A block may say 'only WORDS' and 'data NAME' after its name. Got {part!r} "
                "instead."
            )
        wanted[kind].append(words.strip())
    results = by_name[name]
    part_of = select(results.described, data=wanted["data"], only=wanted["only"])
    rows = [
        one
        for one in results.measured
        if one.place.data in part_of.data and any(one.line is line for line in part_of.lines)
    ]
    metric = _words(results.described.metric)
    return f"{make_table(results, rows)}\n\nFrom `results/{name}.jsonl`; {metric}, in percent."
