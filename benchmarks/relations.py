"""The typed hospital: own lists of public rows beside own rows alone, at the same proven epsilon.

    python benchmarks/relations.py --out results/relations.json [--seeds 5]

Who is readmitted is predicted from a patient's own row (`own rows`), and from the same row with
what the lists of drugs and diagnoses become. All private rows are `dp-mlp`, whose loss terms read
their own node: r = 1, a = 0, at any length of the lists. Every figure is of test patients, who are
15 in 100. The whole file is written anew.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import time
from pathlib import Path
from typing import Any

from torch_geometric.data import Data, HeteroData

from graphveil import DPMLP, MLPBaseline, split
from graphveil._files import write_file
from graphveil.data import typed_hospital
from graphveil.graph.shares import MASKS
from graphveil.graph.typed import flatten
from graphveil.methods import Facts
from graphveil.methods.public_sums import release_sums

EPSILONS = (1.0, 4.0, 8.0)
ROWS: dict[str, Any] = {
    "own rows": [],
    "own lists: count, mean": ["count", "mean"],
    "own lists: count, mean, sum": None,  # as usual
    "own lists: count, mean, max": ["count", "mean", "max"],
    "own lists: bag": ["bag"],
    "own lists: all": ["count", "mean", "sum", "max", "min", "bag"],
}
SHARE_OF_SUMS = 0.3  # of epsilon, for each of two relations
FIGURES = ("average_precision", "roc_auc")


def run(data: Data, epsilon: float | None, seed: int) -> dict[str, Any]:
    """Figures of one training, and what it was charged."""
    method = MLPBaseline(seed=seed) if epsilon is None else DPMLP(epsilon=epsilon, seed=seed)
    started = time.monotonic()
    method.fit(data)
    answers = method.predict_proba(data)
    figures = method.task(Facts.of(data)).measure_test(answers, data, method.record)
    row = {name: round(figures[f"test_{name}"], 4) for name in FIGURES}
    row["seconds"] = round(time.monotonic() - started, 2)
    if epsilon is not None:
        guarantee = method.certificate_.guarantee
        weights = method.plan_.part("weights").event.event
        row |= {
            "epsilon": round(guarantee.epsilon, 4),
            "delta": guarantee.delta,
            "removed": weights.removed,
            "altered": weights.altered,
        }
    return row


def with_sums(graph: HeteroData, epsilon: float, seed: int) -> dict[str, Any]:
    """Drugs and diagnoses hold noisy sums of labels; sums and training cost `epsilon` together."""
    drawn, graph = split(flatten(graph), seed=seed), copy.copy(graph)
    for mask in MASKS:
        graph["patient"][mask] = drawn[mask]
    for relation in ("patient-takes-drug", "patient-has-diagnosis"):
        spends = SHARE_OF_SUMS * epsilon
        graph = release_sums(graph, relation, epsilon=spends, most=8, sends="label")
    data = flatten(graph, lists=["count", "mean"])
    low, high = 0.0, epsilon
    for _ in range(6):  # what is left for training
        middle = (low + high) / 2
        total = DPMLP(epsilon=middle).plan(Facts.of(data)).on(data).epsilon
        low, high = (middle, high) if total <= epsilon else (low, middle)
    return run(data, low, seed)


def compare(graph: HeteroData, seeds: int) -> list[dict[str, Any]]:
    rows = []
    for name, lists in ROWS.items():
        flat = flatten(graph, lists=lists)
        for epsilon in (None, *EPSILONS):
            of_seeds = [run(split(flat, seed=seed), epsilon, seed) for seed in range(seeds)]
            row = {"rows": name, "columns": flat.x.shape[1], "target": epsilon, "seeds": of_seeds}
            row |= {f: round(statistics.mean(r[f] for r in of_seeds), 4) for f in FIGURES}
            rows.append(row)
            shown = "open" if epsilon is None else f"epsilon {epsilon:g}"
            print(f"{name:30} {shown:10} {row['average_precision']:.3f} {row['roc_auc']:.3f}")
    for epsilon in EPSILONS:
        of_seeds = [with_sums(graph, epsilon, seed) for seed in range(seeds)]
        row = {"rows": "own lists: count, mean, and noisy sums of labels", "target": epsilon}
        row |= {"seeds": of_seeds}
        row |= {f: round(statistics.mean(r[f] for r in of_seeds), 4) for f in FIGURES}
        rows.append(row)
        print(f"{'with noisy sums':30} {epsilon:10g} {row['average_precision']:.3f}")
    return rows


def table(content: dict[str, Any]) -> str:
    """What docs/relations.md shows."""
    cells: dict[str, dict[float | None, str]] = {}
    for row in content["rows"]:
        figures = " / ".join(f"{row[name]:.3f}" for name in FIGURES)
        cells.setdefault(row["rows"], {})[row["target"]] = figures
    lines = ["| rows | epsilon 1 | epsilon 4 | epsilon 8 | in the open |", "| --- |" + " --- |" * 4]
    for name, of in cells.items():
        shown = " | ".join(of.get(epsilon, "") for epsilon in (*EPSILONS, None))
        lines.append(f"| {name} | {shown} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", required=True)
    parser.add_argument("--seeds", type=int, default=5)
    args = parser.parse_args()
    graph = typed_hospital.graph()
    content = {
        "data": typed_hospital.NAME,
        "figures": "average precision and ROC AUC of test patients, means over the seeds",
        "rows": compare(graph, args.seeds),
    }
    write_file(Path(args.out), (json.dumps(content, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()
