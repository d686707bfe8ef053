"""Descriptions in TOML of published tables and figures: which runs, on which data, beside what.

    title = "GCNs on documents, private and in the open"
    paper = "igamberdiev"
    shows = "Table 2"
    section = "Section 6"
    source = "Igamberdiev and Habernal 2022, Table 2"
    data = ["cora:full", "pubmed:full"]
    stand_in = { "pubmed:full" = "social" }
    split = "given"
    metrics = ["micro_f1"]
    seeds = 5
    delta = 1e-5
    deviations = ["Two of five data sets."]

    [quick]
    data = ["cora:full"]
    settings = { steps = 20 }

    [[run]]
    name = "GCN, 10 splits"
    method = "graph-split"
    settings = { splits = 10 }
    vary = { epsilon = [1, 2, 8] }
    published = { "cora:full" = [0.55, 0.55, nan] }

    [[run]]
    method = "gnn"
    published = { "cora:full" = 0.88 }
    deviation = { "cora:full" = 0.02 }
    at_least = { "cora:full" = 0.8 }

``vary`` makes a row of every combination of its values; ``epsilon`` and ``train_share`` may stand
in it beside settings. Figures of a run that varies one thing are lists in its order, with nan where
nothing was printed. docs/bench.md says what every key means. Descriptions that come with the
package have names: :func:`names`.

Nothing here loads torch or data.

*Guarantee*: none for a table as a whole; see :mod:`graphveil.bench.compare`.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Any

from graphveil import _validate
from graphveil._errors import InvalidInputError
from graphveil._given_settings import check_settings
from graphveil._inputs import read_toml, toml_of
from graphveil._schema import NUMBER, Schema, check_table
from graphveil.bench.quick import make_quick
from graphveil.bench.requests import Request, is_private
from graphveil.methods import METHODS
from graphveil.methods.task import METRICS

OWN = "graphveil"  # descriptions that reproduce nobody: what our defaults do
PAPERS = {
    "daigavane": "Daigavane et al. 2021",
    "igamberdiev": "Igamberdiev and Habernal 2022",
    "mueller": "Mueller et al. 2022",
    "shpilevskiy": "Shpilevskiy et al.",
    "zhang": "Zhang et al. 2024",
    "gap": "Sajadmanesh et al. 2023",
    "dpdgc": "Chien et al. 2023",
    OWN: "graphveil itself",
}
# What each shape measures besides METRICS; the first is its main figure where none is named.
SHAPES: dict[str, tuple[str, ...]] = {
    "table": (),
    "lines": (),
    "bars": (),
    "confusion": (),
    "embedding": (),
    "hard-cases": ("stay_hard",),
    "curves": ("loss",),
    "explanations": ("iou_reference", "iou_original"),
}
_COMPARING = ("hard-cases", "explanations")  # with a run called 'reference'
_KEYS: Schema = {
    **dict.fromkeys(("title", "paper", "shows", "section", "source", "shape", "split"), str),
    **dict.fromkeys(("across", "thinned", "finding", "reference"), str),
    **dict.fromkeys(("data", "run", "metrics", "deviations", "fractions"), list),
    **dict.fromkeys(("seeds", "first_seed", "min_class"), int),
    **dict.fromkeys(("stand_in", "quick"), dict),
    "delta": float,
}
_FIGURES = ("published", "deviation", "at_least")
_RUN_KEYS: Schema = {
    **dict.fromkeys(("name", "method", "recipe"), str),
    **dict.fromkeys(("epsilon", "train_share"), NUMBER),
    **dict.fromkeys(("settings", "vary", "published_of", "deviation_of", *_FIGURES), dict),
    "delta": float,
}
_FOLDER = resources.files("graphveil.bench") / "tables"

ByData = Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Line:
    """One row: what to run, what was published for it, and what must be met.

    ``published`` and ``deviation`` are by metric and data set, ``at_least`` is by data set, of the
    main metric.
    """

    request: Request
    recipe: str | None = None
    published: Mapping[str, ByData] = field(default_factory=dict)
    deviation: Mapping[str, ByData] = field(default_factory=dict)
    at_least: ByData = field(default_factory=dict)

    @property
    def name(self) -> str:
        """What the row is called, without what it varies."""
        return self.request.name or self.request.method

    @property
    def setting(self) -> str:
        """What tells it from rows of the same name: epsilon, and what is varied."""
        epsilon = self.request.epsilon
        parts = {} if epsilon is None else {"epsilon": f"{epsilon:g}"}
        return ", ".join(f"{k}={v}" for k, v in {**parts, **self.request.varied}.items())

    @property
    def whole_name(self) -> str:
        """The name, and behind it the setting."""
        return f"{self.name} ({self.setting})" if self.setting else self.name

    def figure(self, metric: str, data: str) -> tuple[float | None, float | None]:
        """What was published, and its deviation."""
        values = (kind.get(metric, {}).get(data) for kind in (self.published, self.deviation))
        value, deviation = values
        return value, deviation


@dataclass(frozen=True, kw_only=True)
class Description:
    """A table or figure to be measured: lines by data sets.

    ``shortened`` says what the small version runs otherwise.
    ``replaced`` are the data sets whose stand-ins run even where they are on disk. With
    ``first_only`` the first data set at hand runs, and no other.
    """

    name: str
    title: str
    data: tuple[str, ...]
    lines: tuple[Line, ...]
    paper: str = ""
    shows: str = ""
    section: str = ""
    source: str = ""
    shape: str = "table"
    stand_in: Mapping[str, str] = field(default_factory=dict)
    split: str | None = None
    fractions: tuple[float, ...] | None = None
    min_class: int | None = None
    thinned: str | None = None
    metrics: tuple[str, ...] = ("accuracy",)
    across: str | None = None
    seeds: int = 3
    first_seed: int = 0
    finding: str = ""
    deviations: tuple[str, ...] = ()
    reference: str | None = None
    quick: bool = False
    shortened: str = ""
    replaced: frozenset[str] = frozenset()
    first_only: bool = False

    @property
    def metric(self) -> str:
        """The main one."""
        return self.metrics[0]

    @property
    def where(self) -> str:
        """Where it stands: the source, and the section."""
        return ", ".join(filter(None, [self.source, self.section]))

    def figures(self) -> Iterator[tuple[Line, str, str, float, float | None]]:
        """Every published figure: line, data set, metric, value, deviation."""
        for line, data, metric in itertools.product(self.lines, self.data, self.metrics):
            value, deviation = line.figure(metric, data)
            if value is not None:
                yield line, data, metric, value, deviation


# --- files ----------------------------------------------------------------------------------------


def names() -> list[str]:
    """The descriptions that come with the package: by paper, tables before figures, by number."""
    files = (path.name for path in _FOLDER.iterdir() if path.name.endswith(".toml"))
    return sorted((file[:-5] for file in files), key=_order)


def _order(name: str) -> tuple[Any, ...]:
    paper, _, rest = name.partition("-")
    kind = 0 if rest.startswith("table") else 1
    digits = "".join(
        itertools.takewhile(str.isdigit, rest.removeprefix("table").removeprefix("figure"))
    )
    place = list(PAPERS).index(paper) if paper in PAPERS else len(PAPERS)
    return place, kind, int(digits or 0), name


def read(description: str | Path, *, quick: bool = False) -> Description:
    """The description of a name from :func:`names`, or of the path of a TOML file.

    ``quick`` makes the small one of it: what its [quick] part says, or one seed, one data set and
    two epsilons.
    """
    name = str(description)
    try:
        if name in names():
            content = toml_of((_FOLDER / f"{name}.toml").read_text(encoding="utf-8"))
        else:
            content = read_toml(Path(description))
            name = Path(description).stem
    except FileNotFoundError:
        raise InvalidInputError(
            "A description must be a TOML file, or a name that 'graphveil bench list' lists. Got "
            f"{_validate.shown(name)} instead{_validate.near(name, names())}"
        ) from None
    except OSError as error:
        raise InvalidInputError(f"{name} cannot be read: {error.strerror}.") from None
    with _named(str(description)):
        return parse(content, name, place=str(description), quick=quick)


@contextlib.contextmanager
def _named(place: str) -> Iterator[None]:
    """Let every refusal say which file, or which part of it, it is about."""
    try:
        yield
    except InvalidInputError as error:
        if place in str(error):
            raise
        raise InvalidInputError(f"{place}: {error}") from None


def parse(
    content: Mapping[str, Any], name: str, *, place: str = "", quick: bool = False
) -> Description:
    """The description that a table of TOML is; ``place`` says in messages where it stands."""
    place = place or name
    content = dict(content)
    check_table(content, _KEYS, place, required=("title", "data", "run"))
    _check_lists(content, place)
    more: dict[str, Any] = {}
    if quick:
        content, more = make_quick(content, place)
    shape = _validate.choice("shape", content.get("shape", "table"), tuple(SHAPES))
    metrics = tuple(content.get("metrics") or SHAPES[shape] or ("accuracy",))
    for metric in metrics:
        _validate.choice("metrics", metric, (*SHAPES[shape], *METRICS))
    lines = [
        line
        for number, run in enumerate(content["run"], 1)
        for line in _lines(run, content, metrics, f"{place}: [[run]] {number}")
    ]
    words = (
        "title",
        "paper",
        "shows",
        "section",
        "source",
        "split",
        "thinned",
        "across",
        "finding",
    )
    made = Description(
        name=name,
        **{key: content[key] for key in (*words, "reference", "min_class") if key in content},
        shape=shape,
        metrics=metrics,
        data=tuple(content["data"]),
        stand_in=content.get("stand_in", {}),
        fractions=_fractions(content.get("fractions"), place),
        seeds=_validate.integer("seeds", content.get("seeds", 3), "[1, 1000]"),
        first_seed=_validate.integer("first_seed", content.get("first_seed", 0), "[0, 1e9]"),
        deviations=tuple(content.get("deviations", ())),
        lines=tuple(lines),
        quick=quick,
        **more,
    )
    _check_whole(made, place)
    return made


def _check_lists(content: Mapping[str, Any], place: str) -> None:
    """Refuse lists and tables of other things than they should hold, and a data set twice."""
    data, runs = content["data"], content["run"]
    if not data or not all(isinstance(name, str) for name in data) or not runs:
        raise InvalidInputError(f"{place} must name graphs in 'data' and have a [[run]] or more.")
    if len(set(data)) < len(data):
        raise InvalidInputError(f"{place} must name every data set once in 'data'.")
    for number, run in enumerate(runs, 1):
        if not isinstance(run, dict):
            raise InvalidInputError(
                f"{place}: [[run]] {number} cannot be {run!r}; write it as a table."
            )
    for key in ("metrics", "deviations"):
        if not all(isinstance(word, str) for word in content.get(key, ())):
            raise InvalidInputError(f"{place}: {key!r} must be a list of words.")
    for name, other in content.get("stand_in", {}).items():
        if name not in data or not isinstance(other, str):
            raise InvalidInputError(
                f"{place}: 'stand_in' must have a data set's name for names in 'data'. Got "
                f"{name!r} = {other!r} instead."
            )


def _fractions(values: Sequence[Any] | None, place: str) -> tuple[float, ...] | None:
    if values is None:
        return None
    shares = tuple(_validate.number("fractions", value, "[0, 1]") for value in values)
    if len(shares) != 3 or not math.isclose(sum(shares), 1.0):
        raise InvalidInputError(
            f"{place}: 'fractions' must be three numbers that sum to 1. Got {list(shares)} instead."
        )
    return shares


def _check_whole(made: Description, place: str) -> None:
    """What only the whole shows: a reference that is there, an axis that has values."""
    runs = [line.name for line in made.lines]
    if made.shape in _COMPARING and made.reference not in runs:
        raise InvalidInputError(
            f"{place}: 'reference' must name a run that others are compared with, one of "
            f"{', '.join(dict.fromkeys(map(repr, runs)))}. Got {made.reference!r} instead."
        )
    if made.shape == "lines" and made.across is None:
        raise InvalidInputError(
            f"{place}: lines must go over something; say across = 'epsilon', 'data', "
            "'train_share' or a setting that is varied."
        )


# --- runs -----------------------------------------------------------------------------------------


def _lines(
    run: Mapping[str, Any], table: Mapping[str, Any], metrics: Sequence[str], place: str
) -> Iterator[Line]:
    """A line for each combination of what a [[run]] varies."""
    run = follow_recipe(run, place)
    vary = run.get("vary", {})
    for key, values in vary.items():
        if not isinstance(values, list) or not values:
            raise InvalidInputError(f"{place}: {key!r} must have a list of values in 'vary'.")
    figures = _Figures(run, table["data"], metrics, place)
    for number, values in enumerate(itertools.product(*vary.values())):
        with _named(place):
            request = _request(run, dict(zip(vary, values, strict=True)), table.get("delta"), place)
        yield Line(request=request, recipe=run.get("recipe"), **figures.at(number))


def follow_recipe(run: Mapping[str, Any], place: str) -> dict[str, Any]:
    """A [[run]] with its recipe's method, settings and budget, where it says nothing else."""
    check_table(run, _RUN_KEYS, place, required=() if "recipe" in run else ("method",))
    if "recipe" not in run:
        return dict(run)
    if "method" in run:
        raise InvalidInputError(f"{place} must have a 'recipe' or a 'method', not both.")
    from graphveil.methods.recipes import read as read_recipe

    with _named(place):
        recipe = read_recipe(run["recipe"])
    settings = {**recipe.settings, **run.get("settings", {})}
    return {**recipe.budget, **run, "method": recipe.method, "settings": settings}


def _request(
    run: Mapping[str, Any], varied: dict[str, Any], delta: float | None, place: str
) -> Request:
    """One run, every value of it checked: before the first is run, whose results would be left."""
    private = is_private(run["method"])
    epsilon = varied.pop("epsilon", run.get("epsilon"))
    if private != (epsilon is not None):
        rule = "must have an 'epsilon'" if private else "trains in the open, without 'epsilon'"
        raise InvalidInputError(f"{place}: the method '{run['method']}' {rule}.")
    of_run = {"train_share": varied["train_share"]} if "train_share" in varied else {}
    share = varied.pop("train_share", run.get("train_share", 1.0))
    settings = {**run.get("settings", {}), **varied}
    return Request(
        method=run["method"],
        epsilon=_number("epsilon", epsilon, "(0, inf)"),
        delta=_number("delta", run.get("delta", delta) if private else None, "(0, 1)"),
        settings=check_settings(METHODS[run["method"]], settings),
        train_share=_validate.number("train_share", share, "(0, 1]"),
        name=run.get("name"),
        varied={**of_run, **varied},
    )


def _number(name: str, value: Any, interval: str) -> float | None:
    return None if value is None else _validate.number(name, value, interval)


class _Figures:
    """What was published for the lines of one [[run]], in the order of what it varies."""

    def __init__(
        self, run: Mapping[str, Any], data: Sequence[str], metrics: Sequence[str], place: str
    ) -> None:
        self._data, self._place = data, place
        sizes = [len(values) for values in run.get("vary", {}).values()]
        self._lines = math.prod(sizes)
        self._single = sum(size > 1 for size in sizes) <= 1
        self._kinds: dict[str, dict[str, dict[str, list[float]]]] = {}
        for kind in ("published", "deviation"):
            by_metric = {metrics[0]: run.get(kind, {}), **run.get(f"{kind}_of", {})}
            for metric, by_data in by_metric.items():
                if metric not in metrics or not isinstance(by_data, dict):
                    raise InvalidInputError(
                        f"{place}: '{kind}_of' must have a table for names in 'metrics'. Got "
                        f"{metric!r} instead."
                    )
            self._kinds[kind] = {
                metric: self._read(kind, by_data) for metric, by_data in by_metric.items()
            }
        self._least = self._read("at_least", run.get("at_least", {}))

    def at(self, number: int) -> dict[str, Any]:
        """The figures of one line; a NaN is none."""
        kinds: dict[str, Any] = {
            kind: {metric: _there(by_data, number) for metric, by_data in by_metric.items()}
            for kind, by_metric in self._kinds.items()
        }
        return {**kinds, "at_least": _there(self._least, number)}

    def _read(self, kind: str, by_data: Mapping[str, Any]) -> dict[str, list[float]]:
        """Lists as long as there are lines, by data set."""
        return {name: self._list(kind, name, value) for name, value in by_data.items()}

    def _list(self, kind: str, name: str, value: Any) -> list[float]:
        if name not in self._data:
            raise InvalidInputError(
                f"{self._place}: {kind!r} has {name!r}, which is not in 'data'."
            )
        values = value if isinstance(value, list) else [value]
        for one in values:
            if not (isinstance(one, float) and math.isnan(one)):
                _validate.number(f"{kind}.{name}", one, "[0, 1]")
        if len(values) > 1 and not self._single:
            raise InvalidInputError(
                f"{self._place} must not have {kind!r} where several things vary: nobody could say "
                "which row it is about. Write a [[run]] for each."
            )
        if len(values) != self._lines:
            raise InvalidInputError(
                f"{self._place}: {kind!r} of {name!r} must have a figure for each of the "
                f"{self._lines} values that vary. Got {len(values)} instead; write nan for one "
                "that was not printed."
            )
        return [float(one) for one in values]


def _there(by_data: Mapping[str, Sequence[float]], number: int) -> dict[str, float]:
    return {
        name: values[number] for name, values in by_data.items() if not math.isnan(values[number])
    }


def select(made: Description, *, data: Sequence[str] = (), only: Sequence[str] = ()) -> Description:
    """The part of a description about some ``data``, of lines whose names contain ``only``.

    Data may be named by their stand-ins. The run that others are compared with stays.
    """
    graphs = tuple(
        name for name in made.data if not data or name in data or made.stand_in.get(name) in data
    )
    lines = tuple(
        line
        for line in made.lines
        if not only or line.name == made.reference or any(word in line.name for word in only)
    )
    if not graphs or not any(not only or any(word in one.name for word in only) for one in lines):
        listed = dict.fromkeys(repr(line.name) for line in made.lines)
        raise InvalidInputError(
            f"Nothing is left of {made.name}; it has data {', '.join(made.data)} and runs "
            f"{', '.join(listed)}."
        )
    return replace(made, data=graphs, lines=lines)
