"""Lower bounds on epsilon from one run each, beside what is proven: every method, unit and epsilon.

    python benchmarks/audit_runs.py [--out audit-runs.json] [--canaries 5000]

Every private method is trained on its synthetic data with canaries at a proven epsilon of 1, 4 and
8, and so are full-batch steps of a
model of one's own, where a unit is one removed term: there the law is a Gaussian one, and the
bounds are sharpest. A row has the best bound that holds for every mechanism, the sharpest
finite-sample one, and the asymptotic one, which is no proof. Rows that are in the file are not run
again. It ends with the number of runs and of bounds above what is proven. Methods without steps
(`gap` under the unit edge) have no canaries and no row.
"""

import argparse
import json
import time
from pathlib import Path

import torch
from torch import nn

from graphveil import split
from graphveil.audit.one_run import audit_run, audit_steps
from graphveil.data import load
from graphveil.grads import make_private
from graphveil.methods import METHODS
from graphveil.rng import secret

EPSILONS = (1.0, 4.0, 8.0)
DELTA = 1e-5
AGNOSTIC = ("agnostic one-run", "ordered one-run")
SHARP = ("normal scores", "family of the event")
DATA = {"node": "social", "graph": "synthetic-er"}


def list_runs(counts):
    """Name and work of every run."""
    runs = {}
    for epsilon in EPSILONS:
        for name, kind in METHODS.items():
            for unit in kind.units if kind.private else ():
                if unit in ("edge-directed", "edge-undirected"):
                    continue  # 'edge' is one of them, by the data
                runs[f"{name}, {unit}, epsilon {epsilon:g}"] = of_method(kind, unit, epsilon)
        for count in counts:
            runs[f"full batches, row, epsilon {epsilon:g}, {count} canaries"] = of_steps(
                epsilon, count
            )
    return runs


def of_method(kind, unit, epsilon):
    """One run of a method on its synthetic data."""

    def work(canaries):
        settings = {"unit": unit} if len(kind.units) > 1 else {}
        method = kind(epsilon=epsilon, **settings)
        return audit_run(method, split(load(DATA[kind.record])), canaries=canaries, progress=False)

    return work


def of_steps(epsilon, count, *, seed=0):
    """Full-batch steps of a wide network: room for so many canaries."""

    def work(_):
        generator = torch.Generator().manual_seed(1)
        rows = torch.randn(64, 6, generator=generator), torch.arange(64) % 3
        module = nn.Sequential(nn.Linear(6, count // 9), nn.Tanh(), nn.Linear(count // 9, 3))
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        step = make_private(
            module,
            optimizer,
            rows,
            sample_rate=1.0,
            steps=3,
            target_epsilon=epsilon,
            target_delta=DELTA,
            rng=secret(fixed_seed=seed),
        )
        return audit_steps(step, delta=DELTA, canaries=count, seed=seed)

    return work


def say(name, findings, seconds):
    """The rows of one run: one for each part and kind of canaries."""
    rows = {}
    for finding in findings:
        what = finding.name.rsplit(":", 1)[0]
        row = rows.setdefault(what, {"run": name, "what": what, "canaries": finding.trials})
        row["proven"] = finding.figures["proven"]
        row[finding.bound] = finding.epsilon_at_least
        row["holds"] = row.get("holds", True) and finding.holds
        row["seconds"] = seconds
    return list(rows.values())


def best(row, names):
    """The largest bound of these; a dash where there is none."""
    known = [row[name] for name in names if name in row]
    return f"{max(known):.2f}" if known else "-"


def main():
    """Run what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("audit-runs.json"))
    parser.add_argument("--canaries", type=int, default=5000)
    parser.add_argument("--only", default="", help="runs whose name holds this")
    arguments = parser.parse_args()
    rows = json.loads(arguments.out.read_text()) if arguments.out.exists() else []
    known = {row["run"] for row in rows}
    for name, work in list_runs((5000, 50_000)).items():
        if name in known or arguments.only not in name:
            continue
        start = time.perf_counter()
        found = say(name, work(arguments.canaries), 0.0)
        for row in found:
            row["seconds"] = round(time.perf_counter() - start, 1)
            print(json.dumps(row), flush=True)
        rows += found
        arguments.out.write_text(json.dumps(rows, indent=1) + "\n")
    print("| run | canaries | proven | any mechanism | finite-sample | asymptotic | seconds |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for row in rows:
        figures = [best(row, AGNOSTIC), best(row, SHARP), best(row, ("asymptotic Gauss",))]
        print(
            f"| {row['run']}: {row['what']} | {row['canaries']} | {row['proven']:.2f} | "
            f"{' | '.join(figures)} | {row['seconds']:.0f} |"
        )
    bounds = [(row, name) for row in rows for name in AGNOSTIC + SHARP if name in row]
    above = [f"{row['run']}: {name}" for row, name in bounds if row[name] > row["proven"]]
    runs = len({row["run"] for row in rows})
    print(f"{runs} runs, {len(rows)} rows, {len(bounds)} finite-sample bounds")
    print("above what is proven, as one in twenty may be:", above or "none")
    print("broken:", [row["run"] for row in rows if not row["holds"]] or "none")


if __name__ == "__main__":
    main()
