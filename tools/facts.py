"""The tables of figures that pages hold beside their words: ``python tools/facts.py`` writes them.

A table stands between two marks, and is made of result files or of the library's own functions::

    <!-- facts: KIND ARGUMENTS -->
    <!-- end of facts -->

``tests/test_facts.py`` compares every one with what is made anew. The kinds:

=====================  =============================================================================
epsilons               odds, guesses and rates of membership tests, by the library
accuracy METHOD        its mean test accuracy by data set and epsilon, beside the best of the others
lost METHOD            accuracy at epsilon 8 and 1, and what is lost between the two
targets METHOD         the first figure of other targets, beside the best of the others
graphs                 whole graphs at epsilon 8, at 1 and in the open
stores                 what two large graphs on disk take, beside what was asked for
=====================  =============================================================================
"""

from __future__ import annotations

import json
import math
import re
import statistics
import sys
from collections.abc import Iterable, Sequence
from functools import cache

import pages

RESULTS = pages.ROOT / "results"
_MARKED = re.compile(r"(<!-- facts: (.*?) -->\n).*?(<!-- end of facts -->)", re.DOTALL)
OPEN = ("mlp", "gnn", "graph-gnn")

Key = tuple[str, str, float | None]  # method, data, epsilon; None in the open


def refresh(text: str) -> str:
    """The page with every table made anew."""
    return _MARKED.sub(lambda match: f"{match[1]}\n{make(match[2])}\n\n{match[3]}", text)


def make(mark: str) -> str:
    """The table of a mark."""
    kind, *arguments = mark.split()
    return KINDS[kind](*arguments)


@cache
def scores(name: str, figure: str = "accuracy") -> dict[Key, list[float]]:
    """A figure of every run in a file of results, by method, data and epsilon."""
    by_key: dict[Key, list[float]] = {}
    for line in (RESULTS / f"{name}.jsonl").read_text().splitlines():
        line = json.loads(line)
        run, outcome = line["run"], line["outcome"]
        value = outcome["seconds"] if figure == "seconds" else outcome["scores"][figure]
        by_key.setdefault((run["method"], run["data"], run["epsilon"]), []).append(value)
    return by_key


def mean(values: Sequence[float] | None) -> float | None:
    """The mean of some runs."""
    return statistics.fmean(values) if values else None


def percent(value: float | None) -> str:
    """A share as pages show it."""
    return "" if value is None else f"{100 * value:.1f}"


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def epsilons() -> str:
    """What epsilon allows, by one Gaussian release at delta 1e-5."""
    import dp_accounting

    from graphveil.privacy.accounting import calibrate
    from graphveil.privacy.tradeoff import largest_tprs, tpr_of

    def shown(share: float) -> str:
        """A ceiling in percent with two digits or three, rounded up."""
        digits = 1 - math.floor(math.log10(100 * share)) if share < 0.1 else 1
        digits = 2 if share > 0.99 else digits
        rounded = math.ceil(100 * share * 10**digits - 1e-9) / 10**digits
        return f"{rounded:.{digits}f} %" if rounded < 100 or share == 1 else "below 100 %"

    rows = []
    for epsilon in (0.1, 0.5, 1, 2, 4, 8, 16):
        noise = calibrate(
            dp_accounting.GaussianDpEvent, epsilon=epsilon, delta=1e-5, safe=1e7, risky=1e-2
        )
        rates = largest_tprs(dp_accounting.GaussianDpEvent(noise), (0.001, 0.01))
        factor = math.exp(epsilon)
        odds = f"{math.ceil(factor):,}" if factor > 100 else f"{math.ceil(100 * factor) / 100:.2f}"
        guess = 1 / (1 + math.exp(-epsilon))
        rates += (tpr_of(epsilon, 1e-5, 0.01),)
        rows.append([f"{epsilon:g}", odds, shown(guess), *map(shown, rates)])
    return table(
        [
            "epsilon", "odds change by at most", "an even guess becomes at most",
            "a test finds at most, at 0.1 % false accusations", "at 1 %", "at 1 %, any release",
        ],
        rows,
    )  # fmt: skip


def accuracy(method: str) -> str:
    """A method's accuracy beside the best of the other private ones and an open network."""
    known, took = scores("graphveil-nodes"), scores("graphveil-nodes", "seconds")
    sets = sorted({data for name, data, _ in known if name == method})
    rows = []
    for data in sets:
        cells = [data]
        for epsilon in (8.0, 1.0):
            own = mean(known.get((method, data, epsilon)))
            others = {
                name: mean(values)
                for (name, other, spent), values in known.items()
                if (other, spent) == (data, epsilon) and name not in (method, *OPEN)
            }
            best = max(others, key=lambda name: others[name] or 0, default=None)
            wins = own is not None and best is not None and own >= (others[best] or 0)
            cells.append(f"**{percent(own)}**" if wins else percent(own))
            cells.append("" if best is None else f"{percent(others[best])} ({best})")
        cells.append(percent(mean(known.get(("gnn", data, None)))))
        spent = [took.get((method, data, epsilon), []) for epsilon in (8.0, 1.0)]
        cells.append(f"{statistics.median(spent[0] + spent[1]):.0f}")
        rows.append(cells)
    return table(
        ["data", "epsilon 8", "best other", "epsilon 1", "best other", "open network", "seconds"],
        rows,
    )


def lost(method: str) -> str:
    """Accuracy at two epsilons under seeds that nobody had looked at, small graphs first."""
    from graphveil.data import sizes_of

    known = scores("graphveil-nodes-fresh")
    sizes = {data: sizes_of(data).num_records for name, data, _ in known if name == method}
    rows = []
    for data in sorted(sizes, key=lambda data: sizes[data] or 0):
        most, least = (mean(known[method, data, epsilon]) or 0 for epsilon in (8.0, 1.0))
        rows.append(
            [
                data,
                f"{sizes[data]:,}",
                percent(most),
                percent(least),
                percent(round(most, 3) - round(least, 3)),
            ]
        )
    return table(["data", "nodes", "epsilon 8", "epsilon 1", "lost"], rows)


def targets(method: str) -> str:
    """A method's first figure on other targets, beside the best of the other private ones."""
    known: dict[Key, list[float]] = {}
    took: dict[tuple[str, str], list[float]] = {}
    metrics: dict[str, str] = {}
    for key, figures in json.loads((RESULTS / "targets.json").read_text()).items():
        data, _, name, epsilon, settings = json.loads(key)
        if not settings:
            metrics[data] = figures["metric"]
            known.setdefault((name, data, epsilon), []).append(figures[f"test_{figures['metric']}"])
            took.setdefault((name, data), []).append(figures["seconds"])
    rows = []
    for data, metric in metrics.items():
        sign = -1 if metric in ("mae", "rmse") else 1  # of errors the least is best
        cells = [f"{data}: {metric.replace('_', ' ')}{', less is better' if sign < 0 else ''}"]
        for epsilon in (8.0, 1.0):
            others = {
                name: mean(values) or 0.0
                for (name, other, spent), values in known.items()
                if (other, spent) == (data, epsilon)
            }
            own = others.pop(method)
            best = max(others, key=lambda name: sign * others[name])
            wins = sign * own >= sign * others[best]
            cells += [f"**{own:.3f}**" if wins else f"{own:.3f}", f"{others[best]:.3f} ({best})"]
        cells.append(f"{mean(known.get(('gnn', data, None))) or 0:.3f}")
        cells.append(f"{statistics.median(took[method, data]):.1f}")
        rows.append(cells)
    return table(
        ["target", "epsilon 8", "best other", "epsilon 1", "best other", "open network", "seconds"],
        rows,
    )


def graphs() -> str:
    """Accuracy on whole graphs."""
    known, took = scores("graphveil-graphs"), scores("graphveil-graphs", "seconds")
    rows = []
    for data in sorted({data for _, data, _ in known}):
        rows.append(
            [
                data,
                percent(mean(known.get(("graph-dpsgd", data, 8.0)))),
                percent(mean(known.get(("graph-dpsgd", data, 1.0)))),
                percent(mean(known.get(("graph-gnn", data, None)))),
                f"{statistics.median(took['graph-dpsgd', data, 8.0]):.1f}",
            ]
        )
    return table(["data", "epsilon 8", "epsilon 1", "in the open", "seconds"], rows)


def stores() -> str:
    """Time and memory of two large graphs on disk."""
    rows = []
    for name, row in json.loads((RESULTS / "products.json").read_text())["rows"].items():
        asked, method = row["asked"], name.split()[0]
        for phase in ("build", "fit", "hops", "predict"):
            if phase not in row:
                continue
            figures, limits = row[phase], [f"{asked[phase]} s"] if phase in asked else []
            if phase == "fit" and "fit and predict" in asked:
                limits.append(f"{asked['fit and predict']} s with its prediction")
            if "gib" in figures and "gib" in asked:
                limits.append(f"{asked['gib']} GiB")
            before, after = row["load"]
            rows.append(
                [
                    row["graph"],
                    _PHASES[phase].format(method=f"`{method}`"),
                    f"{figures['wall']:.0f}",
                    f"{figures['processor']:.0f}",
                    f"{figures['gib']:.2f}" if "gib" in figures else "",
                    ", ".join(limits),
                    f"{before:.1f} to {after:.1f}",
                ]
            )
    columns = ["graph", "what", "seconds", "of the processor", "GiB", "asked: at most", "load"]
    return table(columns, rows)


_PHASES = {
    "build": "store from Parquet",
    "fit": "{method}, training",
    "hops": "its two hops, a part of it",
    "predict": "{method}, prediction of all nodes",
}

KINDS = {
    "accuracy": accuracy,
    "epsilons": epsilons,
    "graphs": graphs,
    "lost": lost,
    "stores": stores,
    "targets": targets,
}


def marked() -> dict[str, str]:
    """The pages that hold tables of facts, with their text."""
    texts = {name: (pages.DOCS / name).read_text() for name in pages.page_names()}
    return {name: text for name, text in texts.items() if _MARKED.search(text)}


if __name__ == "__main__":
    for name, text in marked().items():
        (pages.DOCS / name).write_text(refresh(text))
        print(name, file=sys.stderr)
