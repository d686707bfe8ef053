"""Noisy sums over a large graph: 2.4 million nodes, 60 million edges, 64 channels, two hops.

    python benchmarks/aggregate.py [--nodes N] [--edges E] [--channels C] [--hops K] [--json]

A random graph of heavy-tailed degrees, as large as ogbn-products. Timed is everything that gap does
with edges: merging repeated ones and sorting the rest by receiver, then for each hop rows of length
1, exact sums, noise on every entry (cryptographic, from the operating system) and the cast to what
is cached. Peak memory is what the process grows by, the graph itself included. Beside it the sums
alone, without noise, and torch's index_add for the same ones on a part of the edges.
"""

import argparse
import json
import resource
import time

import torch

from graphveil.graph.aggregation import Sent, incoming, unit_rows
from graphveil.graph.influence import sensitivity
from graphveil.mechanisms import Gaussian
from graphveil.rng import secret


def graph(nodes, edges):
    """Senders drawn at random, receivers by a power law."""
    generator = torch.Generator().manual_seed(0)
    edge_index = torch.empty(2, edges, dtype=torch.long)
    edge_index[0] = torch.randint(nodes, (edges,), generator=generator)
    for start in range(0, edges, 1 << 22):
        some = edge_index[1, start : start + (1 << 22)]
        some.copy_((nodes * torch.rand(len(some), generator=generator) ** 2).long())
    return edge_index


def peak_gib():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def seconds(run, *given, **named):
    start = time.monotonic()
    result = run(*given, **named)
    return result, time.monotonic() - start


def hop(messages, rows, mechanism, rng):
    return Sent(messages, unit_rows(rows)).noisy_sums(mechanism, rng)


def sums(sent):
    for _ in sent.blocks():
        pass


def measure(options):
    before = peak_gib()
    edge_index = graph(options.nodes, options.edges)
    some = edge_index[:, : options.edges // 20].clone()
    messages, sorting = seconds(incoming, edge_index, options.nodes, seed=0)
    del edge_index
    kept = messages.edge_index.shape[1]
    bound = sensitivity("edge-undirected")
    mechanism, rng = Gaussian(noise_multiplier=3.7, sensitivity=bound), secret()
    rows, hops = torch.randn(options.nodes, options.channels), []
    for _ in range(options.hops):
        rows, spent = seconds(hop, messages, rows, mechanism, rng)
        hops.append(spent)
    peak = peak_gib() - before
    _, without_noise = seconds(sums, Sent(messages, unit_rows(rows)))
    # Torch's obvious way, on a twentieth of the edges and scaled up.
    total = torch.zeros(options.nodes, options.channels)
    _, by_index = seconds(lambda: total.index_add_(0, some[1], rows[some[0]]))
    return {
        "nodes": options.nodes,
        "edges": options.edges,
        "kept_edges": kept,
        "channels": options.channels,
        "sort_seconds": sorting,
        "hop_seconds": hops,
        "total_seconds": sorting + sum(hops),
        "sums_alone_seconds": without_noise,
        "index_add_over_sums": 20 * by_index / without_noise,
        "peak_gib": peak,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=2_400_000)
    parser.add_argument("--edges", type=int, default=60_000_000)
    parser.add_argument("--channels", type=int, default=64)
    parser.add_argument("--hops", type=int, default=2)
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    options = parser.parse_args()
    result = measure(options)
    if options.json:
        print(json.dumps(result))
        return
    for name, value in result.items():
        shown = [round(each, 2) for each in value] if isinstance(value, list) else value
        print(f"{name:22s} {shown if not isinstance(shown, float) else round(shown, 2)}")


if __name__ == "__main__":
    main()
