"""How long private steps on many links take, and how much memory: people, items, purchases.

    python benchmarks/links_scale.py --out results/links.json
        [--people 1000000] [--items 100000] [--purchases 20000000]

A shop is generated, and `dp-link` is trained for one epoch-equivalent: as many steps as draw every
person once on average. `steps_seconds` are those of the steps, `fit_seconds` with reading lists and
noisy sums. `peak_mib` is the largest the process ever was, data, its making and libraries included;
`data_mib` is what it was before the fit. Figures are of one process with as many threads as torch
is given (OMP_NUM_THREADS).
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import time
from pathlib import Path

import torch

from graphveil._files import write_file
from graphveil.data.shop import shop_links
from graphveil.methods import METHODS, Facts


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--people", type=int, default=1_000_000)
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--purchases", type=int, default=20_000_000)
    parser.add_argument("--epsilon", type=float, default=4.0)
    parser.add_argument("--out", default="links.json", help="the file of results")
    asked = parser.parse_args()
    start = time.monotonic()
    data = shop_links(asked.people, asked.items, asked.purchases)
    making, before = time.monotonic() - start, peak_mib()

    facts = Facts.of(data)
    rate = METHODS["dp-link"](epsilon=asked.epsilon).plan(facts).part("weights").rate
    method = METHODS["dp-link"](epsilon=asked.epsilon, steps=math.ceil(1 / rate))
    plan = method.plan(facts).on(data)
    moments: list[float] = []
    start, cpu = time.monotonic(), time.process_time()
    method.run(plan, data, on_step=lambda network, step: moments.append(time.monotonic()))
    fit, cpu = time.monotonic() - start, time.process_time() - cpu
    row = {
        "people": asked.people,
        "items": asked.items,
        "purchases": data.links.shape[1],
        "sample_rate": rate,
        "steps": method.steps,
        "steps_seconds": round(moments[-1] - moments[0], 1),
        "fit_seconds": round(fit, 1),
        "fit_cpu_seconds": round(cpu, 1),
        "making_seconds": round(making, 1),
        "data_mib": round(before),
        "peak_mib": round(peak_mib()),
        "threads": torch.get_num_threads(),
        "load": [round(value, 1) for value in os.getloadavg()],
        "epsilon": method.certificate_.guarantee.epsilon,
    }
    path = Path(asked.out)
    content = json.loads(path.read_text()) if path.exists() else {}
    content["scale"] = row
    write_file(path, (json.dumps(content, indent=1) + "\n").encode())
    for name, value in row.items():
        print(f"{name:16s} {value}")


if __name__ == "__main__":
    main()
