"""Does tuning pay? Defaults with the whole budget against settings chosen by charged trials.

    python benchmarks/tuning.py --root DATA --data social,computers --seeds 3

Test accuracies are read off labels: for public data only.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch

from graphveil.methods import METHODS, Facts
from graphveil.runs import Source
from graphveil.tuning import Tuning, search, values_of

METHOD = {"synthetic-er": "graph-dpsgd"}
VARY = {"learning_rate": "0.002..0.2", "max_grad_norm": "0.1..2.0"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="social,synthetic-er")
    parser.add_argument("--root")
    parser.add_argument("--epsilons", default="1,8")
    parser.add_argument("--trials", default="4,10")
    parser.add_argument("--seeds", type=int, default=3)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    vary = {key: values_of(key, values) for key, values in VARY.items()}
    for name in asked.data.split(","):
        method = METHOD.get(name, "dp-mlp")
        graphs = []
        for seed in range(asked.seeds):
            source = Source(data=name, root=asked.root, seed=seed)
            graphs.append(source.arrange(source.load()))
        for epsilon in map(float, asked.epsilons.split(",")):
            begun = time.monotonic()
            plain = [
                METHODS[method](epsilon=epsilon, seed=seed)
                .fit(each.training)
                .score(each.testing, mode=each.mode)
                for seed, each in enumerate(graphs)
            ]
            show(name, method, epsilon, "defaults", epsilon, plain, begun)
            for trials in asked.trials.split(","):
                begun, found = time.monotonic(), []
                for seed, each in enumerate(graphs):
                    tuning = Tuning(
                        method=method, vary=vary, trials=float(trials), epsilon=epsilon, seed=seed
                    )
                    planned = tuning.plan(Facts.of(each.training))
                    winner = search(planned, each.training)
                    found.append(winner.method.score(each.testing, mode=each.mode))
                show(name, method, epsilon, trials, planned.trial_epsilon, found, begun)


def show(
    name: str,
    method: str,
    epsilon: float,
    how: str,
    trial: float,
    found: list[float],
    begun: float,
) -> None:
    mean, spread = 100 * statistics.fmean(found), 100 * statistics.stdev(found)
    print(
        f"{name:14} {method:12} epsilon {epsilon:3g}  trials {how:8}  each at {trial:5.3f}  "
        f"{mean:5.1f} ± {spread:.1f}  {time.monotonic() - begun:5.0f} s",
        flush=True,
    )


if __name__ == "__main__":
    main()
