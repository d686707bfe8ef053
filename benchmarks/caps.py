"""How long it takes to cap the messages of a large graph, and how much memory.

    python benchmarks/caps.py [--edges 60000000] [--nodes 2400000] [--cap 10] [--json]

The graph is random, in random order: a few senders and receivers hold most of the edges, some edges
stand twice. `peak_mib` is the largest the process ever was, edges and libraries included;
`over_sort` divides by the time of sorting as many random 64-bit words, measured in the same run.
"""

import argparse
import json
import resource
import time

import numpy as np
import torch

from graphveil.graph.caps import cap_receivers, cap_senders


def skewed_edges(nodes, edges):
    """Ends drawn with density falling like a power of the id; one edge in fifty stands twice."""
    rng = np.random.default_rng(0)
    result = np.empty((2, edges), np.int64)
    block = 1_000_000  # so that making the edges takes less memory than capping them
    for start in range(0, edges, block):
        part = result[:, start : start + block]
        part[0] = nodes * rng.random(part.shape[1]) ** 3
        part[1] = nodes * rng.random(part.shape[1]) ** 2
        twice = part.shape[1] // 50
        part[:, :twice] = part[:, twice : 2 * twice]
    return torch.from_numpy(result)


def timed(work):
    start, cpu = time.perf_counter(), time.process_time()
    result = work()
    return result, time.perf_counter() - start, time.process_time() - cpu


def peak_mib():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--edges", type=int, default=60_000_000)
    parser.add_argument("--nodes", type=int, default=2_400_000)
    parser.add_argument("--cap", type=int, default=10)
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    options = parser.parse_args()
    nodes, cap = options.nodes, options.cap
    edges = skewed_edges(nodes, options.edges)
    before = peak_mib()
    kept, seconds, cpu = timed(lambda: cap_senders(edges, nodes, cap, seed=0))
    read, receivers, _ = timed(lambda: cap_receivers(kept, nodes, cap, seed=0))
    peak = peak_mib()
    words = np.random.default_rng(1).integers(0, 2**64, size=options.edges, dtype=np.uint64)
    _, sorting, _ = timed(words.sort)
    results = {
        "edges": options.edges,
        "nodes": nodes,
        "cap": cap,
        "kept_by_senders": kept.shape[1],
        "kept_by_receivers": read.shape[1],
        "largest_list": int(torch.bincount(edges[0]).max()),
        "senders_seconds": seconds,
        "senders_cpu_seconds": cpu,
        "receivers_seconds": receivers,
        "over_sort": seconds / sorting,
        "peak_mib": peak,
        "peak_mib_before": before,
    }
    if options.json:
        print(json.dumps(results))
        return
    for name, value in results.items():
        print(f"{name:20s}{value:14.6g}" if isinstance(value, float) else f"{name:20s}{value:14d}")


if __name__ == "__main__":
    main()
