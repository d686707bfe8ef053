"""Links by default settings, beside what every recommender must beat, at proven epsilons.

    python benchmarks/links.py --root DATA --out results/links.json [--only shop]

`shop` is synthetic: a person is the unit, or one purchase. Debian's dependencies (one way) and the
likes between Facebook pages (both ways) have packages and pages at both ends: the unit is one link
at epsilon 1, or one node at epsilon 8. Popularity is counted in the open, or through noise. Rows
that the file has are not run again.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch_geometric.data import Data

from graphveil._files import write_file
from graphveil.data import load
from graphveil.data.text import build
from graphveil.graph.link_splits import split_links
from graphveil.graph.links import edges_as_links
from graphveil.methods import METHODS
from graphveil.methods.ranking import measure_links, ranking_metrics

SHOWN = ("mrr", "recall@10")
OPEN = ("popularity", "item-item")
TRAINED_ON = {"shop": "node", "debian": "edge", "pages": "edge"}  # by open-link: whose terms
PRIVATE = ("dp-link", "dp-popularity")


def shop(root: str, seed: int) -> Data:
    """Another shop for each seed, split by time."""
    return load(f"shop:20000:{seed}")


def debian(root: str, seed: int) -> Data:
    """Which package depends on which, of all sections; a row is the hashed description."""
    folder = Path(root) / "debian"
    graph = build(folder / "packages.csv.gz", folder / "links.csv.gz", "hash", directed=True)
    return split_links(edges_as_links(graph), seed=seed)


def pages(root: str, seed: int) -> Data:
    """Which page likes which; likes go both ways."""
    return split_links(edges_as_links(load("facebook-pages", root)), seed=seed)


DATA: dict[str, Callable[[str, int], Data]] = {"shop": shop, "debian": debian, "pages": pages}
BUDGETS = {  # of the units
    "shop": [("node", 4.0), ("node", 1.0), ("node", 8.0), ("edge", 1.0), ("edge", 4.0)],
    "debian": [("edge", 1.0), ("node", 8.0)],
    "pages": [("edge", 1.0), ("node", 8.0)],
}
TITLES = {
    "shop": "shop, 20,000 people and 2,000 items",
    "debian": "Debian, which package depends on which",
    "pages": "Facebook pages, which likes which",
}


def requests(name: str) -> list[tuple[str, str | None, float | None]]:
    """Methods with their unit and what they may spend."""
    private = [(method, unit, epsilon) for unit, epsilon in BUDGETS[name] for method in PRIVATE]
    open_link = ("open-link", TRAINED_ON[name], None)
    return [*((method, None, None) for method in OPEN), open_link, *private]


def measure(name: str, root: str, seed: int, request: tuple[Any, ...]) -> dict[str, Any]:
    method, unit, epsilon = request
    data = DATA[name](root, seed)
    given = {"unit": unit, "epsilon": epsilon}
    settings = {name: value for name, value in given.items() if value is not None}
    start = time.monotonic()
    fitted = METHODS[method](seed=seed, **settings).fit(data, progress=False)
    seconds = round(time.monotonic() - start, 1)
    ranking = measure_links(fitted.link_scores(data), data)
    return {
        **ranking.figures,
        "protocol": ranking.protocol,
        "sources": ranking.sources,
        "links": ranking.links,
        "seconds": seconds,
        "proven": None if epsilon is None else fitted.certificate_.guarantee.epsilon,
        "certificate_unit": fitted.certificate_.guarantee.unit,
    }


# --- tables ---------------------------------------------------------------------------------------


def mean_of(rows: dict[str, Any], name: str, request: tuple[Any, ...], figure: str) -> str:
    """The mean over seeds, and the deviation where there are several."""
    values = [
        row[figure]
        for key, row in rows.items()
        if (parts := json.loads(key))[0] == name and tuple(parts[2:]) == request
    ]
    if not values:
        return "not run"
    text = f"{statistics.fmean(values):.4f}"
    return text if len(values) == 1 else f"{text} ± {statistics.stdev(values):.4f}"


def table(rows: dict[str, Any], name: str) -> str:
    """Methods down, figures across, as Markdown."""
    keys = [key for key in rows if json.loads(key)[0] == name]
    seeds = len({json.loads(key)[1] for key in keys})
    protocols = sorted({rows[key]["protocol"] for key in keys})
    lines = [
        f"**{TITLES[name]}** (protocol {', '.join(protocols)}; {seeds} seed{'s'[: seeds > 1]})",
        "",
        "| method | unit | epsilon | MRR | recall@10 |",
        "| --- | --- | --- | --- | --- |",
    ]
    for request in requests(name):
        method, unit, epsilon = request
        figures = [mean_of(rows, name, request, figure) for figure in SHOWN]
        if figures[0] != "not run":
            spent = "in the open" if epsilon is None else f"{epsilon:g}"
            lines.append(f"| {method} | {unit or ''} | {spent} | {' | '.join(figures)} |")
    return "\n".join(lines)


def gains(rows: dict[str, Any]) -> str:
    """How much of the open model's gain over popularity each private one on `shop` has."""

    def mrr(*request: Any) -> float:
        return float(mean_of(rows, "shop", request, "mrr").partition(" ")[0])

    least = mrr("popularity", None, None)
    lines = []
    for open_method, trained_on in (("open-link", "node"), ("item-item", None)):
        gain = mrr(open_method, trained_on, None) - least
        shares = [
            f"{100 * (mrr('dp-link', unit, epsilon) - least) / gain:.0f} % at epsilon {epsilon:g} "
            f"({unit})"
            for unit, epsilon in BUDGETS["shop"]
        ]
        lines.append(f"Of the MRR that {open_method} gains over popularity: {', '.join(shares)}.")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", default=".", help="folder with raw data")
    parser.add_argument("--out", default="links.json", help="the file of results")
    parser.add_argument("--only", nargs="*", help="data")
    parser.add_argument("--methods", nargs="*", help="methods")
    parser.add_argument("--seeds", type=int, default=1)
    asked = parser.parse_args()
    path = Path(asked.out)
    content = json.loads(path.read_text()) if path.exists() else {}
    rows = content.setdefault("figures", {})
    for seed in range(asked.seeds):
        for name in asked.only or DATA:
            for request in requests(name):
                key = json.dumps([name, seed, *request])
                if key in rows or (asked.methods and request[0] not in asked.methods):
                    continue
                rows[key] = measure(name, asked.root, seed, request)
                print(key, {figure: round(rows[key][figure], 4) for figure in SHOWN}, flush=True)
                write_file(path, (json.dumps(content, indent=1) + "\n").encode())
    for name in DATA:
        if any(json.loads(key)[0] == name for key in rows):
            print(f"\n{table(rows, name)}")
    try:
        print(f"\n{gains(rows)}")
    except ValueError:
        print("\nThe rows of shop are not all there.")


if __name__ == "__main__":
    assert set(SHOWN) <= set(ranking_metrics())
    main()
