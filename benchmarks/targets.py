"""Other targets than one class of several, with default settings, at a proven epsilon of 1 and 8.

    python benchmarks/targets.py --root DATA --out results/targets.json [--only hospital]

Beside private methods stand open ones and the best guess that reads no row. Real graphs are turned
to other targets: a class of Computers against all others (a twenty-fifth of the nodes),
what kind of package a Debian package is by its name (several labels), the year of students of
Berkeley in its order. Rows that the file has are not run again.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch_geometric.data import Data

from graphveil._files import write_file
from graphveil.data import load
from graphveil.data.class_list import Notice
from graphveil.data.text import build
from graphveil.graph.splits import split
from graphveil.methods import METHODS

PRIVATE = ("late-graph", "gap", "dp-gnn", "dpar", "dp-mlp")
OPEN = ("gnn", "mlp")
NAMES = {  # of Debian packages, by what a name begins or ends with
    "library": ("lib", ""),
    "development": ("", "-dev"),
    "documentation": ("", "-doc"),
    "data": ("", "-data"),
    "python": ("python", ""),
    "perl": ("", "-perl"),
}


def rare_computers(root: str) -> Data:
    """One class against all others."""
    data = load("computers", root)
    data.y, data.num_classes, data.task = (data.y == 3).long(), 2, "binary"
    data.class_names = ["other", "this one"]
    return data


def debian_kinds(root: str) -> Data:
    """Several labels of a package, by its name; its row is its description."""
    folder = Path(root) / "debian"
    data = build(folder / "packages.csv.gz", folder / "links.csv.gz", "hash", directed=False)
    names = pd.read_csv(folder / "packages.csv.gz", keep_default_na=False)["name"]
    labels = [
        names.str.startswith(begin).to_numpy() & names.str.endswith(end).to_numpy()
        for begin, end in NAMES.values()
    ]
    data.y = torch.stack([torch.tensor(label) for label in labels], 1).long()
    data.num_classes, data.class_names, data.task = len(NAMES), list(NAMES), "multilabel"
    return data


def berkeley_years(root: str) -> Data:
    """Years in their order."""
    data = load("facebook100:Berkeley13", root)
    data.task = "ordinal"
    return data


def hospital(variant: str) -> Callable[[str], Data]:
    return lambda root: load(f"hospital{variant}")


DATA: dict[str, Callable[[str], Data]] = {
    "hospital": hospital(""),
    "hospital:lab": hospital(":lab"),
    "hospital:triage": hospital(":triage"),
    "hospital:diagnoses": hospital(":diagnoses"),
    "computers, one class": rare_computers,
    "berkeley, years": berkeley_years,
    "debian, kinds": debian_kinds,
}
WEIGHED = ("hospital", "computers, one class")  # also with noisy class weights


def requests(name: str) -> list[tuple[str, float | None, dict[str, Any]]]:
    """Methods with what they may spend and their settings."""
    settings: list[dict[str, Any]] = [{}]
    if name in WEIGHED:
        settings.append({"class_weights": "noisy"})
    private = [(m, e, s) for e in (1.0, 8.0) for m in PRIVATE for s in settings]
    return [*private, *((m, None, s) for m in OPEN for s in settings)]


def measure(name: str, root: str, seed: int, request: tuple[Any, ...]) -> dict[str, Any]:
    method, epsilon, settings = request
    data = split(DATA[name](root), seed=seed)
    budget = {} if epsilon is None else {"epsilon": epsilon}
    start = time.monotonic()
    fitted = METHODS[method](seed=seed, **budget, **settings).fit(data, progress=False)
    task = fitted.task(fitted.plan_.facts)
    figures = task.measure_test(fitted.predict_proba(data), data, "node")
    figures["seconds"] = round(time.monotonic() - start, 1)
    figures["proven"] = None if epsilon is None else fitted.certificate_.guarantee.epsilon
    return {key: value for key, value in figures.items() if key != "confusion"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", default=".", help="folder with raw data")
    parser.add_argument("--out", default="targets.json", help="the file of results")
    parser.add_argument("--only", nargs="*", help="data")
    parser.add_argument("--methods", nargs="*", help="methods")
    parser.add_argument("--seeds", type=int, default=3)
    asked = parser.parse_args()
    warnings.simplefilter("ignore", Notice)
    out = Path(asked.out)
    results = json.loads(out.read_text()) if out.exists() else {}
    for name in asked.only or DATA:
        for seed in range(asked.seeds):
            for request in requests(name):
                key = json.dumps([name, seed, *request])
                if key in results or (asked.methods and request[0] not in asked.methods):
                    continue
                results[key] = measure(name, asked.root, seed, request)
                figures = results[key]
                main_figure = figures[f"test_{figures['metric']}"]
                print(f"{key}: {figures['metric']} {main_figure:.3f}", flush=True)
                write_file(out, json.dumps(results, indent=1).encode())
    print(table(results))


FIGURES = {
    "binary": ("average_precision", "macro_f1"),
    "multilabel": ("average_precision", "macro_f1"),
    "ordinal": ("mae", "accuracy"),
    "multiclass": ("accuracy", "macro_f1"),
    "regression": ("r2", "mae"),
}


def table(results: dict[str, Any]) -> str:
    """A table for each data set in Markdown: means over seeds, and deviations of the first."""
    groups: dict[str, dict[tuple[str, str], list[dict[str, Any]]]] = {}
    for key, figures in results.items():
        name, _, method, epsilon, settings = json.loads(key)
        label = f"{method}, rare class weighed" if settings else method
        spent = "open" if epsilon is None else f"{epsilon:g}"
        groups.setdefault(name, {}).setdefault((label, spent), []).append(figures)
    return "\n\n".join(_section(name, cells) for name, cells in groups.items())


def _section(name: str, cells: dict[tuple[str, str], list[dict[str, Any]]]) -> str:
    every = [figures for rows in cells.values() for figures in rows]
    main, besides = FIGURES[every[0]["task"]]
    called = [name.replace("_", " ").replace("f1", "F1") for name in (main, besides)]
    guesses = [_mean([f["baseline"].get(name) for f in every]) for name in (main, besides)]
    seeds = min(len(rows) for rows in cells.values())
    lines = [
        f"**{name}** ({every[0]['task']}; {called[0]} / {called[1]}; the best guess "
        f"{guesses[0]:.3f} / {guesses[1]:.3f}; {seeds} seeds)",
        "",
        "| method | epsilon 1 | epsilon 8 | in the open |",
        "| --- | --- | --- | --- |",
    ]
    for label in dict.fromkeys(label for label, _ in cells):
        shown = (
            _cell(cells.get((label, spent), []), main, besides) for spent in ("1", "8", "open")
        )
        lines.append(f"| {label} | {' | '.join(shown)} |")
    return "\n".join(lines)


def _cell(rows: list[dict[str, Any]], main: str, besides: str) -> str:
    if not rows:
        return ""
    values = [row[f"test_{main}"] for row in rows]
    spread = f" ± {statistics.stdev(values):.3f}" if len(values) > 1 else ""
    return f"{_mean(values):.3f}{spread} / {_mean([r[f'test_{besides}'] for r in rows]):.3f}"


def _mean(values: list[float | None]) -> float:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else float("nan")


if __name__ == "__main__":
    main()
