"""dp-gnn on a graph of ogbn-arxiv's size: seconds and memory of one whole run.

    python benchmarks/arxiv_sized.py [--json]

169,343 nodes, 1.17 million edges, 128 features, 40 classes (synthetic, directed); at most 7
messages from each node, batches of 10,000 expected, 100 steps.
"""

import argparse
import json
import os
import resource
import time

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from graphveil.data.synthetic import citation_like
from graphveil.graph.splits import split
from graphveil.methods import DPGNN

BATCH = 10_000


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    options = parser.parse_args()
    data = split(citation_like(), fractions=(0.537, 0.2, 0.263), seed=0)
    method = DPGNN(
        epsilon=8.0,
        sender_cap=7,
        sample_rate=BATCH / int(data.train_mask.sum()),
        steps=100,
        encoder_layers=1,
        decoder_layers=2,
    )
    start = time.perf_counter()
    method.fit(data)
    fitted = time.perf_counter() - start
    result = {
        "nodes": data.num_nodes,
        "edges": data.num_edges,
        "fit_seconds": fitted,
        "peak_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        "test_accuracy": method.score(data),
        "epsilon": method.certificate_.guarantee.epsilon,
        "delta": method.certificate_.guarantee.delta,
    }
    if options.json:
        print(json.dumps(result))
        return
    for name, value in result.items():
        print(f"{name:14s} {value:,.4g}" if isinstance(value, float) else f"{name:14s} {value:,}")


if __name__ == "__main__":
    main()
