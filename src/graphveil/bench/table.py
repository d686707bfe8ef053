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
a plot goes over. Descriptions that come with the package have names: :func:`described`.

*Guarantee*: none for a table as a whole; see :mod:`graphveil.bench.compare`.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Any

from graphveil import _validate
from graphveil._errors import InvalidInputError
from graphveil._files import append_file
from graphveil._inputs import json_of, read_toml, regular, toml_of
from graphveil.bench.compare import (
    Asked,
    Memory,
    Outcome,
    Row,
    Track,
    is_private,
    measured,
)
from graphveil.runs import METRICS, Source

_KEYS: dict[str, type | tuple[type, ...]] = {
    "title": str,
    "source": str,
    "data": list,
    "split": str,
    "metric": str,
    "across": str,
    "seeds": int,
    "delta": float,
    "run": list,
}
_RUN_KEYS: dict[str, type | tuple[type, ...]] = {
    "name": str,
    "method": str,
    "settings": dict,
    "epsilon": (int, float),
    "delta": float,
    "train_share": (int, float),
    "vary": dict,
    "published": dict,
    "at_least": dict,
}


@dataclass(frozen=True, kw_only=True)
class Line:
    """One row of a table: what to run, and by data set what was published and what must be met."""

    asked: Asked
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
        track: Track | None = None,
        memory: Memory | None = None,
    ) -> list[list[Row]]:
        """A list of rows for each data set, in the order of the lines.

        What ``memory`` holds already is not run again.
        """
        sources = [Source(data=name, root=root, split=self.split, seed=seed) for name in self.data]
        asked = [line.asked for line in self.lines]
        return [
            measured(source.load(), source, asked, self.seeds, track, memory) for source in sources
        ]

    def missed(self, rows: Sequence[Sequence[Row]]) -> list[str]:
        """Every figure below what the description demands of it, in words."""
        said = []
        for name, column in zip(self.data, rows, strict=True):
            for line, row in zip(self.lines, column, strict=True):
                wanted, found = line.at_least.get(name), row.score(self.metric)[0]
                if wanted is not None and (found is None or found < wanted):
                    got = "no figure" if found is None else f"{100 * found:.1f}"
                    least = f"{100 * wanted:.3g}"
                    said.append(f"{row.label} on {name} must reach {least}. Got {got} instead.")
        return said


def described() -> dict[str, str]:
    """The descriptions that come with the package: name and title."""
    folder = resources.files("graphveil.bench") / "tables"
    found = sorted(path.name for path in folder.iterdir() if path.name.endswith(".toml"))
    return {name[:-5]: toml_of((folder / name).read_text())["title"] for name in found}


def read(description: str | Path) -> Table:
    """The table of a description: a name from :func:`described`, or the path of a TOML file."""
    named = str(description) in described()
    path = resources.files("graphveil.bench") / "tables" / f"{description}.toml"
    try:
        found = toml_of(path.read_text()) if named else read_toml(Path(description))
    except FileNotFoundError:
        raise InvalidInputError(
            f"A description must be a TOML file or one of {', '.join(described())}. Got "
            f"{str(description)!r} instead."
        ) from None
    except OSError as error:
        raise InvalidInputError(f"{description} cannot be read: {error.strerror}.") from None
    return _table(found, str(description))


def _table(found: dict[str, Any], path: str) -> Table:
    _check_keys(found, _KEYS, path, needed=("title", "data", "run"))
    data, runs = tuple(found["data"]), found["run"]
    if not data or not all(isinstance(name, str) for name in data) or not runs:
        raise InvalidInputError(f"{path} must name graphs in 'data' and have a [[run]] or more.")
    lines = [line for number, run in enumerate(runs) for line in _lines(run, found, path, number)]
    return Table(
        title=found["title"],
        source=found.get("source", ""),
        data=data,
        lines=tuple(lines),
        split=found.get("split"),
        metric=_validate.choice("metric", found.get("metric", "accuracy"), METRICS),
        across=found.get("across"),
        seeds=_validate.integer("seeds", found.get("seeds", 3), "[1, 1000]"),
    )


def _lines(run: Any, table: dict[str, Any], path: str, number: int) -> Iterator[Line]:
    """A line for each combination of what a [[run]] varies."""
    place = f"{path}: [[run]] {number + 1}"
    if not isinstance(run, dict):
        raise InvalidInputError(f"{place} cannot be {run!r}; write it as a table.")
    _check_keys(run, _RUN_KEYS, place, needed=("method",))
    vary, private = run.get("vary", {}), is_private(run["method"])
    for key, values in vary.items():
        if not isinstance(values, list) or not values:
            raise InvalidInputError(f"{place}: {key!r} must have a list of values in 'vary'.")
    for kind in ("published", "at_least"):
        figures = run.get(kind, {})
        for name, value in figures.items():
            if name not in table["data"] or isinstance(value, bool):
                raise InvalidInputError(f"{place}: {kind!r} has {name!r}, which is not in 'data'.")
            _validate.number(f"{kind}.{name}", value, "[0, 1]")
        if figures and any(len(values) > 1 for values in vary.values()):
            raise InvalidInputError(
                f"{place} must not have {kind!r} beside values to vary: nobody could say which "
                "row it is about. Write a [[run]] of its own."
            )
    for values in itertools.product(*vary.values()):
        varied = dict(zip(vary, values, strict=True))
        free = {key: varied.pop(key) for key in ("epsilon", "train_share") if key in varied}
        budget = free.get("epsilon", run.get("epsilon"))
        if private != (budget is not None):
            rule = "must have an 'epsilon'" if private else "trains in the open, without 'epsilon'"
            raise InvalidInputError(f"{place}: the method '{run['method']}' {rule}.")
        delta = run.get("delta", table.get("delta")) if private else None
        if delta is not None:  # before the first line is run, whose results would be left
            delta = _validate.number("delta", delta, "(0, 1)")
        share = free.get("train_share", run.get("train_share", 1.0))
        shown = varied if "train_share" not in free else {"train_share": share, **varied}
        yield Line(
            asked=Asked(
                method=run["method"],
                budget=None if budget is None else _validate.number("epsilon", budget, "(0, inf)"),
                delta=delta,
                settings={**run.get("settings", {}), **varied},
                train_share=_validate.number("train_share", share, "(0, 1]"),
                name=run.get("name"),
                varied=shown,
            ),
            published=run.get("published", {}),
            at_least=run.get("at_least", {}),
        )


def _check_keys(
    found: Mapping[str, Any],
    known: Mapping[str, type | tuple[type, ...]],
    place: str,
    needed: Sequence[str],
) -> None:
    for key, value in found.items():
        if key not in known:
            raise InvalidInputError(
                f"{place} has the unknown key {key!r}; it may hold {', '.join(known)}."
            )
        if isinstance(value, bool) or not isinstance(value, known[key]):
            raise InvalidInputError(f"{place}: {key!r} cannot be {_validate.shown(value)}.")
    for key in needed:
        if key not in found:
            raise InvalidInputError(f"{place} must have the key {key!r}.")


class Notes(MutableMapping[str, Outcome]):
    """Outcomes in a file, one line of JSON each, written down before the next run begins.

    A line cut short by a crash is dropped, and its run is done again.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.found: dict[str, Outcome] = {}
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
            noted = json_of(line)
            self.found[json.dumps(noted["run"])] = noted["outcome"]
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
        self.found[key] = outcome

    def __getitem__(self, key: str) -> Outcome:
        return self.found[key]

    def __delitem__(self, key: str) -> None:
        raise InvalidInputError(f"Results in {self.path} are added, never taken away.")

    def __iter__(self) -> Iterator[str]:
        return iter(self.found)

    def __len__(self) -> int:
        return len(self.found)


def chosen(table: Table, *, data: Sequence[str] = (), only: Sequence[str] = ()) -> Table:
    """The part of a table that is about some ``data`` and lines whose names contain ``only``."""
    kept = tuple(name for name in table.data if not data or name in data)
    lines = tuple(
        line
        for line in table.lines
        if not only or any(word in (line.asked.name or line.asked.method) for word in only)
    )
    if not kept or not lines:
        names = ", ".join(
            dict.fromkeys(repr(line.asked.name or line.asked.method) for line in table.lines)
        )
        raise InvalidInputError(
            f"Nothing is left of the table; it has data {', '.join(table.data)} and runs {names}."
        )
    return replace(table, data=kept, lines=lines)
