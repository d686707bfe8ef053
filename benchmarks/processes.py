"""One against several processes, a thread each: how long a step takes, and how much work it is.

    python benchmarks/processes.py --ranks 1 2

Two cases in which a step computes for long: dp-gnn on two hops, and convolutions on whole graphs.
Wall time says what is gained on the machine as it was; other work on it makes that worse. CPU time
of all ranks says what sharing costs: without any cost it would be the same for every number.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import socket
import subprocess
import sys
import time
import warnings
from pathlib import Path

WARM = 3  # steps before the clock starts


def method_of(case: str):
    """A method and its data."""
    from graphveil.data.synthetic import social_network
    from graphveil.methods import DPGNN, GraphDPSGD

    warnings.simplefilter("ignore")
    if case == "two hops":
        data = social_network(num_nodes=20_000, num_classes=10, num_features=64, seed=1)
        how = {"num_layers": 2, "sender_cap": 5, "receiver_cap": 5, "hidden_channels": 64}
        return DPGNN(epsilon=8.0, steps=25, sample_rate=0.1, **how), data
    import torch
    from torch_geometric.data import Data

    from graphveil.graph.collate import collate
    from graphveil.graph.splits import split

    rng, listed = torch.Generator().manual_seed(0), []
    for number in range(4000):
        edges = torch.randint(30, (2, 60), generator=rng)
        edges = edges[:, edges[0] != edges[1]]
        edges = torch.cat([edges, edges.flip(0)], 1).unique(dim=1)
        x, label = torch.randn(30, 32, generator=rng), torch.tensor([number % 2])
        listed.append(Data(x=x, edge_index=edges, y=label))
    data = split(collate(listed, num_classes=2), seed=0)
    how = {"conv": "gin", "num_layers": 3, "hidden_channels": 64}
    return GraphDPSGD(epsilon=8.0, steps=25, sample_rate=0.2, **how), data


def run(case: str) -> None:
    """What one rank does; the clock runs from a step on which all have begun."""
    import torch

    from graphveil import processes
    from graphveil.grads.step import PrivateStep
    from graphveil.graph.splits import split
    from graphveil.methods import Facts

    torch.set_num_threads(1)
    method, data = method_of(case)
    if "train_mask" not in data:
        data = split(data, seed=0)
    marks, step = [], PrivateStep.__call__

    def noted(self):
        marks.append((time.perf_counter(), time.process_time()))
        step(self)

    PrivateStep.__call__ = noted
    with processes.join() as ranks:
        plan = method.plan(Facts.of(data)).on(data)
        method.run(plan, data)
        marks.append((time.perf_counter(), time.process_time()))
        wall, cpu = (marks[-1][k] - marks[WARM][k] for k in (0, 1))
        steps = len(marks) - 1 - WARM
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        print(json.dumps({"rank": ranks.rank, "wall": wall / steps, "cpu": cpu / steps,
                          "gib": memory}))  # fmt: skip


def measure(case: str, world: int) -> list[dict[str, float]]:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    plain = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    ours = {"WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    command = [sys.executable, str(Path(__file__)), "--case", case]
    ranks = [
        subprocess.Popen(
            command,
            env=os.environ | plain | ours | {"RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(world)
    ]
    said = [rank.communicate()[0] for rank in ranks]
    assert not any(rank.returncode for rank in ranks)
    return [json.loads(one.splitlines()[-1]) for one in said]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--case")
    arguments = parser.parse_args()
    if arguments.case:
        run(arguments.case)
        return
    print(f"load of the machine now: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    for case in ("two hops", "graphs"):
        alone = None
        for world in arguments.ranks:
            runs = [measure(case, world) for _ in range(arguments.repeats)]
            wall = min(ranks[0]["wall"] for ranks in runs)
            cpu = min(sum(rank["cpu"] for rank in ranks) for ranks in runs)
            most = min(max(rank["cpu"] for rank in ranks) for ranks in runs)
            alone = (wall, most) if alone is None else alone
            print(
                f"{case}, {world} ranks: {wall * 1e3:.0f} ms a step ({alone[0] / wall:.2f}x), CPU "
                f"of the busiest rank {most * 1e3:.0f} ms ({alone[1] / most:.2f}x), of all "
                f"{cpu * 1e3:.0f} ms; {max(rank['gib'] for rank in runs[0]):.2f} GiB a rank",
                flush=True,
            )


if __name__ == "__main__":
    main()
