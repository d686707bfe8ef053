"""Attacks on real data: what they get without privacy, and at a proven epsilon of 4.

    python benchmarks/audit_attacks.py --root DATA --out attacks.json [--only gnn]

Rows that the file has are not run again. Every attack of a row is in the file, and all are counted;
the table shows the score that TABLE names for each kind, fixed before the runs. Settings are the
methods' defaults. Candidates are in or out by coins of --seed.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from pathlib import Path
from typing import Any

import torch

from graphveil._files import write_file
from graphveil.audit.attacks import attack
from graphveil.data.class_list import Notice
from graphveil.methods import METHODS
from graphveil.runs import Source

OPEN = [
    ("gnn", "cora", "nodes", {}),
    ("gnn", "citeseer", "nodes", {}),
    ("gnn", "cora", "links", {}),
    ("gnn", "citeseer", "links", {}),
    ("graph-gnn", "tu:ENZYMES", "graphs", {}),
]
PRIVATE = [
    *(
        (method, data, "nodes", {})
        for method in ("dp-gnn", "gap", "dpar", "late-graph", "dp-mlp")
        for data in ("cora", "citeseer")
    ),
    ("gap", "cora", "links", {"unit": "edge"}),
    ("gap", "citeseer", "links", {"unit": "edge"}),
    ("graph-dpsgd", "tu:ENZYMES", "graphs", {}),
]
TABLE = {
    "nodes": "node membership, LiRA",
    "links": "links as served, LinkTeller",
    "graphs": "graph membership, LiRA",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", help="folder with raw data")
    parser.add_argument("--out", default="attacks.json", help="the file of results")
    parser.add_argument("--only", nargs="*", help="methods")
    parser.add_argument("--epsilon", type=float, default=4.0)
    parser.add_argument("--candidates", type=int, default=1000)
    parser.add_argument("--shadows", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", Notice)
    file = Path(asked.out)
    rows = json.loads(file.read_text()) if file.exists() else []
    for method, data, kind, settings in OPEN + PRIVATE:
        if asked.only and method not in asked.only:
            continue
        if METHODS[method].private:
            settings = {**settings, "epsilon": asked.epsilon}
        what: dict[str, Any] = {
            "method": method,
            "data": data,
            "kind": kind,
            "settings": settings,
            "candidates": asked.candidates,
            "shadows": asked.shadows,
            "seed": asked.seed,
        }
        row = next((one for one in rows if what.items() <= one.items()), None)
        if row is None:
            row = {**what, **run(what, asked.root)}
            rows.append(row)
            write_file(file, json.dumps(rows, indent=1).encode() + b"\n")
        print(said(row), flush=True)
    findings = [finding for row in rows for finding in row["findings"]]
    broken = [finding["name"] for finding in findings if not finding["holds"]]
    print(f"\n{len(findings)} findings, {len(broken)} of them do not hold {broken or ''}")


def run(what: dict[str, Any], root: str | None) -> dict[str, Any]:
    source = Source(data=what["data"], root=root)
    data = source.arrange(source.load()).training
    method = METHODS[what["method"]](**what["settings"])
    begun = time.monotonic()
    findings = attack(
        method,
        data,
        [what["kind"]],
        candidates=what["candidates"],
        shadows=what["shadows"],
        seed=what["seed"],
        progress=True,
    )
    return {
        "seconds": round(time.monotonic() - begun, 1),
        "findings": [finding.to_json() for finding in findings],
    }


def said(row: dict[str, Any]) -> str:
    """A row of the table in docs/guarantees/audits.md."""
    shown = next(one for one in row["findings"] if one["name"] == TABLE[row["kind"]])
    figures = shown["figures"]
    best = max(one["figures"]["auc"] for one in row["findings"] if covered(one, row))
    rates = [
        f"{figures[f'tpr@{rate}']:.3f} of {figures[f'largest_tpr@{rate}']:.3f}"
        for rate in ("0.001", "0.01")
    ]
    name = row["method"] + (", unit edge" if row["settings"].get("unit") == "edge" else "")
    held = sum(one["holds"] for one in row["findings"])
    cells = [
        name,
        row["data"],
        shown["name"],
        str(shown["trials"]),
        f"{figures['auc']:.3f} (best {best:.3f})",
        f"{figures['f1']:.3f}",
        *rates,
        f"{held} of {len(row['findings'])}",
        f"{row['seconds']:.0f}",
    ]
    return f"| {' | '.join(cells)} |"


def covered(finding: dict[str, Any], row: dict[str, Any]) -> bool:
    """Pairs that were not put in by coins test no membership."""
    return row["kind"] != "links" or "any pair" not in finding["name"]


if __name__ == "__main__":
    main()
