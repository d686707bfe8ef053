"""Tables described in TOML: which runs, on which graphs, and what was published for them.

    title = "Graph splits, private"
    source = "Igamberdiev and Habernal 2022, Table 2"
    data = ["cora:full", "citeseer:full"]
    split = "given"
    metric = "micro_f1"
    seeds = 5
    delta = 1e-5

    [[run]]
    name = "GCN, 10 splits"
    method = "graph-split"
    settings = { splits = 10 }
    vary = { epsilon = [1, 2, 8] }

    [[run]]
    method = "gnn"
    published = { "cora:full" = 0.88 }
    at_least = { "cora:full" = 0.8 }

``vary`` makes a row of every combination of its values; ``epsilon`` and ``train_share`` (the share
of the training nodes that is trained on) may stand in it beside settings. ``across`` names the one
a plot goes over. Descriptions that come with the package have names: :func:`titles`.

*Guarantee*: none for a table as a whole; see :mod:`graphveil.bench.compare`.
"""

from __future__ import annotations

import itertools
import json
import os
from collections import UserDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Any

from graphveil import _validate
from graphveil._errors import InvalidInputError
from graphveil._files import append_file
from graphveil._inputs import json_of, read_toml, regular, toml_of
from graphveil._progress import Progress
from graphveil._schema import NUMBER, Schema, check_table
from graphveil.bench.compare import Memory, Outcome, Request, Row, is_private, measure_rows
from graphveil.methods.task import METRICS

_KEYS: Schema = {
    **dict.fromkeys(("title", "source", "split", "metric", "across"), str),
    **dict.fromkeys(("data", "run"), list),
    "seeds": int,
    "delta": float,
}
_RUN_KEYS: Schema = {
    **dict.fromkeys(("name", "method"), str),
    **dict.fromkeys(("epsilon", "train_share"), NUMBER),
    **dict.fromkeys(("settings", "vary", "published", "at_least"), dict),
    "delta": float,
}


@dataclass(frozen=True, kw_only=True)
class Line:
    """One row of a table: what to run, and by data set what was published and what must be met."""

    request: Request
    published: Mapping[str, float] = field(default_factory=dict)
    at_least: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table to be measured: lines by data sets."""

    title: str
    data: tuple[str, ...]
    lines: tuple[Line, ...]
    source: str = ""
    split: str | None = None
    metric: str = "accuracy"
    across: str | None = None
    seeds: int = 3

    def run(
        self,
        *,
        root: str | None = None,
        seed: int = 0,
        progress: Progress | None = None,
        memory: Memory | None = None,
    ) -> list[list[Row]]:
        """A list of rows for each data set, in the order of the lines.

        What ``memory`` holds already is not run again.
        """
        from graphveil.runs import Source

        sources = [Source(data=name, root=root, split=self.split, seed=seed) for name in self.data]
        requests = [line.request for line in self.lines]
        return [
            measure_rows(source.load(), source, requests, self.seeds, progress, memory)
            for source in sources
        ]

    def missed(self, rows: Sequence[Sequence[Row]]) -> list[str]:
        """Every figure below what the description demands of it, in words."""
        sentences = []
        for name, column in zip(self.data, rows, strict=True):
            for line, row in zip(self.lines, column, strict=True):
                least, mean = line.at_least.get(name), row.score(self.metric)[0]
                if least is not None and (mean is None or mean < least):
                    got = "no figure" if mean is None else f"{100 * mean:.1f}"
                    sentences.append(
                        f"{row.label} on {name} must reach {100 * least:.3g}. Got {got} instead."
                    )
        return sentences


def titles() -> dict[str, str]:
    """The descriptions that come with the package: name and title."""
    names = sorted(path.name for path in _FOLDER.iterdir() if path.name.endswith(".toml"))
    return {name[:-5]: toml_of((_FOLDER / name).read_text())["title"] for name in names}


_FOLDER = resources.files("graphveil.bench") / "tables"


def read(description: str | Path) -> Table:
    """The table of a description: a name from :func:`titles`, or the path of a TOML file."""
    name = str(description)
    try:
        if name in titles():
            content = toml_of((_FOLDER / f"{name}.toml").read_text())
        else:
            content = read_toml(Path(description))
    except FileNotFoundError:
        raise InvalidInputError(
            f"A description must be a TOML file or one of {', '.join(titles())}. Got {name!r} "
            "instead."
        ) from None
    except OSError as error:
        raise InvalidInputError(f"{name} cannot be read: {error.strerror}.") from None
    return _table(content, name)


def _table(content: dict[str, Any], path: str) -> Table:
    check_table(content, _KEYS, path, required=("title", "data", "run"))
    data, runs = tuple(content["data"]), content["run"]
    if not data or not all(isinstance(name, str) for name in data) or not runs:
        raise InvalidInputError(f"{path} must name graphs in 'data' and have a [[run]] or more.")
    lines = [
        line
        for number, run in enumerate(runs, 1)
        for line in _lines(run, content, f"{path}: [[run]] {number}")
    ]
    return Table(
        title=content["title"],
        source=content.get("source", ""),
        data=data,
        lines=tuple(lines),
        split=content.get("split"),
        metric=_validate.choice("metric", content.get("metric", "accuracy"), METRICS),
        across=content.get("across"),
        seeds=_validate.integer("seeds", content.get("seeds", 3), "[1, 1000]"),
    )


def _lines(run: Any, table: dict[str, Any], place: str) -> Iterator[Line]:
    """A line for each combination of what a [[run]] varies."""
    if not isinstance(run, dict):
        raise InvalidInputError(f"{place} cannot be {run!r}; write it as a table.")
    check_table(run, _RUN_KEYS, place, required=("method",))
    private, vary = is_private(run["method"]), run.get("vary", {})
    for key, values in vary.items():
        if not isinstance(values, list) or not values:
            raise InvalidInputError(f"{place}: {key!r} must have a list of values in 'vary'.")
    for kind in ("published", "at_least"):
        _check_figures(kind, run.get(kind, {}), vary, table["data"], place)
    for values in itertools.product(*vary.values()):
        varied = dict(zip(vary, values, strict=True))
        epsilon = varied.pop("epsilon", run.get("epsilon"))
        if private != (epsilon is not None):
            rule = "must have an 'epsilon'" if private else "trains in the open, without 'epsilon'"
            raise InvalidInputError(f"{place}: the method '{run['method']}' {rule}.")
        share = varied.pop("train_share", run.get("train_share", 1.0))
        # Checked here, before the first line is run, whose results would be left.
        delta = run.get("delta", table.get("delta")) if private else None
        yield Line(
            request=Request(
                method=run["method"],
                epsilon=_number("epsilon", epsilon, "(0, inf)"),
                delta=_number("delta", delta, "(0, 1)"),
                settings={**run.get("settings", {}), **varied},
                train_share=_validate.number("train_share", share, "(0, 1]"),
                name=run.get("name"),
                varied={"train_share": share, **varied} if "train_share" in vary else varied,
            ),
            published=run.get("published", {}),
            at_least=run.get("at_least", {}),
        )


def _check_figures(
    kind: str,
    figures: Mapping[str, Any],
    vary: Mapping[str, Sequence[Any]],
    data: Sequence[str],
    place: str,
) -> None:
    """Refuse figures for other data, and figures for several rows at once."""
    for name, value in figures.items():
        if name not in data or isinstance(value, bool):
            raise InvalidInputError(f"{place}: {kind!r} has {name!r}, which is not in 'data'.")
        _validate.number(f"{kind}.{name}", value, "[0, 1]")
    if figures and any(len(values) > 1 for values in vary.values()):
        raise InvalidInputError(
            f"{place} must not have {kind!r} beside values to vary: nobody could say which row it "
            "is about. Write a [[run]] of its own."
        )


def _number(name: str, value: Any, interval: str) -> float | None:
    return None if value is None else _validate.number(name, value, interval)


class Notes(UserDict[str, Outcome]):
    """Outcomes in a file, one line of JSON each, written down before the next run begins.

    A line cut short by a crash is dropped, and its run is done again.
    """

    def __init__(self, path: str | Path) -> None:
        super().__init__()
        self.path = Path(path)
        try:
            text = regular(self.path).read_bytes() if self.path.exists() else b""
            whole = text[: text.rfind(b"\n") + 1]
            for number, line in enumerate(whole.splitlines()):
                self._read(line, number + 1)
            if len(whole) < len(text):
                os.truncate(self.path, len(whole))
        except OSError as error:
            raise InvalidInputError(f"{path} cannot be read: {error.strerror}.") from None

    def _read(self, line: bytes, number: int) -> None:
        try:
            entry = json_of(line)
            self.data[json.dumps(entry["run"])] = entry["outcome"]
        except (ValueError, KeyError, TypeError):
            raise InvalidInputError(
                f"{self.path} must hold results, one line of JSON each. Got something else in line "
                f"{number}; move the file away, or name another."
            ) from None

    def __setitem__(self, key: str, outcome: Outcome) -> None:
        line = json.dumps({"run": json.loads(key), "outcome": outcome}, allow_nan=False) + "\n"
        try:
            append_file(self.path, line.encode())
        except OSError as error:
            raise InvalidInputError(f"{self.path} cannot be written: {error.strerror}.") from None
        self.data[key] = outcome

    def __delitem__(self, key: str) -> None:
        raise InvalidInputError(f"Results in {self.path} are added, never taken away.")


def select(table: Table, *, data: Sequence[str] = (), only: Sequence[str] = ()) -> Table:
    """The part of a table that is about some ``data`` and lines whose names contain ``only``."""
    graphs = tuple(name for name in table.data if not data or name in data)
    names = [line.request.name or line.request.method for line in table.lines]
    lines = tuple(
        line
        for name, line in zip(names, table.lines, strict=True)
        if not only or any(word in name for word in only)
    )
    if not graphs or not lines:
        raise InvalidInputError(
            f"Nothing is left of the table; it has data {', '.join(table.data)} and runs "
            f"{', '.join(dict.fromkeys(map(repr, names)))}."
        )
    return replace(table, data=graphs, lines=lines)
