"""Descriptions are checked: against their schema, against the methods, and by a second reading.

``second_reading.csv`` holds every published figure once more, typed from the papers by somebody who
had not seen the descriptions' figures. Whatever differs was mistyped once.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path

from graphveil._errors import InvalidInputError, RefusedError
from graphveil._inputs import read_text
from graphveil._progress import Progress
from graphveil.bench.description import OWN, PAPERS, Description, Line, names, read
from graphveil.bench.places import Place, is_known, make_source

READING = resources.files("graphveil.bench") / "second_reading.csv"
KEYS = ("description", "run", "setting", "data", "metric")
COLUMNS = (*KEYS, "published", "deviation")

Key = tuple[str, ...]
Figures = dict[Key, tuple[float | None, float | None]]


@dataclass(frozen=True, kw_only=True)
class Findings:
    """What a check of descriptions came to, in sentences.

    ``problems`` must be mended. ``differences`` are figures that two readers typed differently.
    ``unread`` are figures that the second reading does not have; ``unknown`` are lines of it that
    no description has. ``refused`` are plans that graphveil will not run, which keep their rows.
    """

    checked: tuple[str, ...]
    figures: int = 0
    problems: list[str] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)


def check(
    descriptions: Sequence[str],
    *,
    reading: str | Path | None = None,
    plans: bool = True,
    progress: Progress | None = None,
) -> Findings:
    """Check descriptions by name or path; nothing is loaded or trained.

    With ``plans`` every [[run]] is planned once: at its smallest epsilon, on the first data set
    whose sizes are known. ``reading`` is another second reading than the package's.
    """
    findings = Findings(checked=tuple(descriptions))
    whole = []
    for name in descriptions if progress is None else progress(descriptions):
        try:
            described = read(name)
            small = read(name, quick=True)
        except InvalidInputError as error:
            findings.problems.append(_one(name, error))
            continue
        whole.append(described)
        findings.problems.extend(f"{name}: {sentence}" for sentence in find_problems(described))
        if plans:
            _plan_all(described, findings)
            _plan_all(small, findings)
    figures = figures_of(whole)
    _compare(figures, read_reading(reading), {one.name for one in whole}, findings)
    return replace(findings, figures=len(figures))


def _one(name: str, error: Exception) -> str:
    text = str(error)
    return text if name in text else f"{name}: {text}"


# --- schema ---------------------------------------------------------------------------------------


def find_problems(described: Description) -> list[str]:
    """What is wrong with a description that can be read."""
    return [
        *_about_the_paper(described),
        *_about_data(described),
        *_about_lines(described),
    ]


def _about_the_paper(described: Description) -> Iterator[str]:
    if described.paper not in PAPERS and described.name in names():
        yield f"'paper' must be one of {', '.join(PAPERS)}. Got {described.paper!r} instead."
    if described.paper == OWN or described.paper not in PAPERS:  # of graphveil, or of the user
        return
    shown = re.fullmatch(r"(Table|Figure) (\d+)", described.shows)
    if shown is None:
        yield f"'shows' must be 'Table N' or 'Figure N'. Got {described.shows!r} instead."
    else:
        start = f"{described.paper}-{shown[1].lower()}{shown[2]}"
        if not re.fullmatch(rf"{re.escape(start)}([a-z]|-.*)?", described.name):
            yield f"the name must begin with {start!r}. Got {described.name!r} instead."
    if not described.section:
        yield "'section' must say in which section of the paper it stands."
    if not described.source:
        yield "'source' must name the paper, and the table or figure."
    if not described.finding and not any(True for _ in described.figures()):
        yield "there must be published figures, or a 'finding' where a picture prints none."


def _about_data(described: Description) -> Iterator[str]:
    for name in described.data:
        if not is_known(name):
            yield f"'data' must name data sets that are known. Got {name!r} instead."
    for name in described.stand_in.values():
        if not is_known(name):
            yield f"'stand_in' must name data sets that are known. Got {name!r} instead."
    axis = described.across
    if axis == "data" and len(described.data) < 2:
        yield "across = 'data' must have two data sets or more."
    elif axis not in (None, "data") and not any(_has(line, axis) for line in described.lines):
        yield f"across = {axis!r} must be what a run varies. Got no run that does."


def _has(line: Line, axis: str) -> bool:
    return line.request.epsilon is not None if axis == "epsilon" else axis in line.request.varied


def _about_lines(described: Description) -> Iterator[str]:
    seen: set[tuple[str, str]] = set()
    for line in described.lines:
        row = line.name, line.setting
        if row in seen:
            yield f"two rows are called {line.name!r} ({line.setting}); give one another name."
        seen.add(row)
        for metric, by_data in line.deviation.items():
            for name in by_data:
                if line.figure(metric, name)[0] is None:
                    yield (
                        f"{line.name!r} has a published deviation on {name}, and no figure that it "
                        "is the deviation of."
                    )


# --- plans ----------------------------------------------------------------------------------------


def _plan_all(described: Description, findings: Findings) -> None:
    """Plan every run, as far as runs differ in more than epsilon, where the catalog knows sizes."""
    part = " [quick]" if described.quick else ""
    for line in _distinct(described.lines):
        where = f"{described.name}{part}: {line.name} ({line.setting})"
        try:
            _plan(described, line)
        except RefusedError as error:
            findings.refused.append(f"{where}: {error}")
        except InvalidInputError as error:
            findings.problems.append(f"{where}: {error}")


def _distinct(lines: Sequence[Line]) -> list[Line]:
    """Of lines that differ in epsilon alone, the one with the smallest."""
    smallest: dict[str, Line] = {}
    for line in sorted(lines, key=lambda line: line.request.epsilon or 0.0):
        same = replace(line.request, epsilon=None)
        smallest.setdefault(repr(same), line)
    return list(smallest.values())


def _plan(described: Description, line: Line) -> None:
    for place in _all_places(described):
        source = make_source(described, place, None, 0)
        expected = replace(source, train_share=line.request.train_share).expected()
        if expected is not None:
            line.request.make(0).plan(expected)
            return
    line.request.make(0).check_settings()


def _all_places(described: Description) -> list[Place]:
    """The data sets, and their stand-ins, as if all were on disk."""
    here = [name for name in described.data if name not in described.replaced]
    stand_ins = described.stand_in.items()
    return [
        *(Place(data=name, runs_on=name) for name in here),
        *(Place(data=name, runs_on=other) for name, other in stand_ins),
    ]


# --- a second reading -----------------------------------------------------------------------------


def figures_of(descriptions: Iterable[Description]) -> Figures:
    """Every published figure, with its deviation, by the columns of a second reading."""
    return {
        (described.name, line.name, line.setting, data, metric): (value, deviation)
        for described in descriptions
        for line, data, metric, value, deviation in described.figures()
    }


def make_form(descriptions: Iterable[Description]) -> str:
    """A second reading to be filled in: the keys of every figure, and nothing of the figures."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows((*key, "", "") for key in figures_of(descriptions))
    return text.getvalue()


def read_reading(path: str | Path | None = None) -> Figures:
    """A second reading: the package's, or the one of a file."""
    if path is None:
        text = READING.read_text(encoding="utf-8") if READING.is_file() else ",".join(COLUMNS)
    else:
        try:
            text = read_text(path)
        except OSError as error:
            raise InvalidInputError(f"{path} cannot be read: {error.strerror}.") from None
    rows = csv.DictReader(io.StringIO(text))
    if tuple(rows.fieldnames or ()) != COLUMNS:
        raise InvalidInputError(
            f"A second reading must have the columns {', '.join(COLUMNS)}. Got "
            f"{', '.join(rows.fieldnames or ['none'])} instead."
        )
    figures: Figures = {}
    for number, row in enumerate(rows, 2):
        key = tuple(row[name] for name in KEYS)
        if key in figures:
            raise InvalidInputError(
                f"The second reading has {' / '.join(key)} twice (line {number})."
            )
        figures[key] = _number(row, "published", number), _number(row, "deviation", number)
    return figures


def _number(row: Mapping[str, str | None], column: str, line: int) -> float | None:
    text = (row[column] or "").strip()
    try:
        return float(text) if text else None
    except ValueError:
        raise InvalidInputError(
            f"The second reading must have numbers in {column!r}. Got {text!r} in line {line}."
        ) from None


def _compare(figures: Figures, reading: Figures, names: set[str], findings: Findings) -> None:
    for key, (value, deviation) in figures.items():
        again, deviation_again = reading.get(key, (None, None))
        where = " / ".join(part for part in key if part)
        if again is None:
            findings.unread.append(where)
        elif again != value:
            findings.differences.append(f"{where}: published {value} here, {again} there.")
        elif deviation != deviation_again:
            findings.differences.append(
                f"{where}: deviation {_shown(deviation)} here, {_shown(deviation_again)} there."
            )
    findings.unknown.extend(
        " / ".join(part for part in key if part)
        for key, (value, _) in reading.items()
        if key[0] in names and key not in figures and value is not None
    )


def _shown(value: float | None) -> str:
    return "none" if value is None else f"{value:g}"
