"""Graphs made to break a promise: hubs, leaves, repeated edges, outliers, all small graphs.

Each is small, labelled and split, and can be trained on by every method of its kind of record.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch
from torch import Tensor
from torch_geometric.data import Data

from graphveil.graph.collate import collate
from graphveil.graph.splits import split

FEATURES, CLASSES = 4, 3
Pairs = list[tuple[int, int]]


def node_cases(*, directed: bool = False) -> dict[str, Data]:
    """Graphs of nodes, by name."""
    made: dict[str, Callable[[], tuple[int, Pairs]]] = {
        "hub": _hub,
        "chain": lambda: (30, [(i, i + 1) for i in range(29)]),
        "isolated": lambda: (24, [(0, 1), (2, 3)]),
        "crowd": lambda: (16, list(itertools.combinations(range(16), 2))),
        "small": _small_graphs,
    }
    cases = {name: _graph(*make(), directed=directed) for name, make in made.items()}
    cases["repeated"] = _graph(24, 3 * [(i, (i + 5) % 24) for i in range(24)], directed=directed)
    outlier = _graph(*_hub(), directed=directed)
    outlier.x[0] *= 1e6
    outlier.x[5] *= 1e-6
    cases["outlier"] = outlier
    mislabelled = _graph(*_hub(), directed=directed)
    mislabelled.y[:6] = (mislabelled.y[:6] + 1) % CLASSES
    cases["mislabelled"] = mislabelled
    return cases


def graph_cases() -> dict[str, Data]:
    """Sets of graphs, by name."""
    generator = torch.Generator().manual_seed(5)
    plain = [_small_graph(1 + number % 6, number, generator) for number in range(36)]
    large = [_small_graph(1 + 39 * (number == 0), number, generator) for number in range(24)]
    outliers = [_small_graph(3, number, generator) for number in range(24)]
    outliers[0].x *= 1e6
    named = {"graphs": plain, "one large": large, "outlier": outliers}
    return {name: _split_graphs(graphs) for name, graphs in named.items()}


def _split_graphs(graphs: list[Data]) -> Data:
    data = collate(graphs, num_classes=CLASSES)
    data.directed = False
    return split(data, seed=1)


def _small_graph(size: int, number: int, generator: torch.Generator) -> Data:
    x = torch.randn(size, FEATURES, generator=generator) + number % CLASSES
    ends = torch.randint(size, (2, 2 * size), generator=generator)
    ends = ends[:, ends[0] != ends[1]]
    edges = torch.cat([ends, ends.flip(0)], 1).unique(dim=1)
    return Data(x=x, edge_index=edges, y=torch.tensor([number % CLASSES]))


def _hub() -> tuple[int, Pairs]:
    """A hub that all know, two that share leaves, and pairs."""
    pairs = [(0, i) for i in range(1, 30)] + [(1, i) for i in range(2, 16)]
    return 36, [*pairs, (30, 31), (32, 33)]


def _small_graphs() -> tuple[int, Pairs]:
    """One of every graph of four nodes, side by side: one for each way to join them, but for names.

    Two graphs are one if their sorted degrees and triangles are.
    """
    slots = list(itertools.combinations(range(4), 2))
    kinds: dict[tuple[tuple[int, ...], int], Pairs] = {}
    for chosen in itertools.product([False, True], repeat=len(slots)):
        pairs = list(itertools.compress(slots, chosen))
        degrees = tuple(sorted(sum(node in pair for pair in pairs) for node in range(4)))
        triangles = sum(
            all(pair in pairs for pair in itertools.combinations(three, 2))
            for three in itertools.combinations(range(4), 3)
        )
        kinds.setdefault((degrees, triangles), pairs)
    joined = [
        (4 * place + u, 4 * place + w)
        for place, pairs in enumerate(kinds.values())
        for u, w in pairs
    ]
    return 4 * len(kinds), joined


def _graph(nodes: int, pairs: Pairs, *, directed: bool) -> Data:
    generator = torch.Generator().manual_seed(nodes)
    y = torch.arange(nodes) % CLASSES
    x = torch.randn(nodes, FEATURES, generator=generator) + y.unsqueeze(1)
    edges: Tensor = torch.tensor(pairs, dtype=torch.long).T
    data = Data(x=x, edge_index=edges if directed else torch.cat([edges, edges.flip(0)], 1), y=y)
    data.num_classes, data.directed = CLASSES, directed
    return split(data, seed=1)
