"""Accuracy at node level with defaults only, beside the honest baselines.

    python benchmarks/node_level.py --root DATA [--data pubmed,cs,...] [--epsilon 8,1] [--seeds 3]

Random 75/10/15 transductive splits, `visible` inference, proven epsilon, delta the largest power of
ten below 1/n. One line for each data set, method and epsilon: mean and deviation of the test
accuracy. `--json` prints one object instead.
"""

import argparse
import json
import os
import statistics
import time

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from graphveil.data import load
from graphveil.graph.splits import split
from graphveil.methods import METHODS


def scores(source, root, method, epsilon, seeds):
    found = []
    for seed in seeds:
        data = split(load(source, root), seed=seed)
        settings = {"seed": seed} | ({} if epsilon is None else {"epsilon": epsilon})
        fitted = METHODS[method](**settings).fit(data)
        found.append(100 * fitted.score(data))
    return found, fitted.certificate_.guarantee


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", default=os.environ.get("GRAPHVEIL_DATA", "../shared/data"))
    parser.add_argument("--data", default="pubmed,cs,computers,facebook-pages,cora,social")
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--epsilon", default="8,1")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    results = []
    for source in options.data.split(","):
        for method in options.methods.split(","):
            private = hasattr(METHODS[method](), "epsilon")
            for epsilon in [float(e) for e in options.epsilon.split(",")] if private else [None]:
                start = time.perf_counter()
                found, guarantee = scores(source, options.root, method, epsilon, seeds)
                result = {
                    "data": source,
                    "method": method,
                    "epsilon": guarantee.epsilon if private else None,
                    "delta": guarantee.delta,
                    "accuracy": statistics.fmean(found),
                    "deviation": statistics.pstdev(found),
                    "seconds": (time.perf_counter() - start) / options.seeds,
                }
                results.append(result)
                if not options.json:
                    print(
                        f"{source:16s} {method:12s} eps {epsilon or 'none'!s:5s} "
                        f"{result['accuracy']:6.2f} +- {result['deviation']:.2f}"
                        f"   {result['seconds']:.0f} s a run",
                        flush=True,
                    )
    if options.json:
        print(json.dumps(results))


if __name__ == "__main__":
    main()
