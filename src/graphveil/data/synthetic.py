"""Generated graphs: an example that needs no download, one of the size of ogbn-arxiv, and many.

Nothing here describes real people or papers. In the two large graphs, nodes belong to communities
(the classes); a few have many contacts and most have few, and contacts are mostly within the
community. Features are yes/no answers that each community gives a little more or less often, so
that one node's own answers say little and those of its neighbours together say much.
:func:`erdos_renyi` makes many small graphs, each a record.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch_geometric.data import Data

from graphveil import _validate
from graphveil.data._cache import refuse_variant
from graphveil.data.catalog import citations_split, citations_variant
from graphveil.graph.checks import MASKS
from graphveil.rng import seeded

_PAPERS, _CITATIONS = 169_343, 1_170_000  # of ogbn-arxiv, about
_SIZES = "[10, 1e8]"
_ROUNDS = 20  # attempts to find enough different pairs; only tiny dense graphs need them all


def social_network(
    num_nodes: int = 20_000,
    num_classes: int = 6,
    num_features: int = 64,
    *,
    mean_degree: float = 12.0,
    homophily: float = 0.75,
    tilt: float = 0.4,
    seed: int = 0,
) -> Data:
    """A synthetic social network: people, friendships, interests, and a community to predict.

    ``homophily`` is the share of friendships that look for somebody of the same community; the rest
    take anybody. ``tilt`` is how far a community's interests lie from the average, in log-odds.
    Friendships stand in ``edge_index`` in both directions. The same seed gives the same network.

    *Guarantee*: none needed, nobody in it is real.
    """
    count = round(_validate.number("mean_degree", mean_degree, "(0, 1e4]") * num_nodes / 2)
    rng, sizes = seeded(seed, "social").generator(), (num_nodes, num_classes, num_features)
    pairs, y, x = _generate(rng, sizes, count, homophily, tilt)
    edges = torch.from_numpy(np.concatenate([pairs, pairs[::-1]], axis=1))
    return _graph(x, edges, y, num_classes, directed=False)


def citation_like(
    num_nodes: int = _PAPERS,
    num_edges: int = _CITATIONS,
    num_features: int = 128,
    num_classes: int = 40,
    *,
    homophily: float = 0.75,
    tilt: float = 0.4,
    seed: int = 0,
) -> Data:
    """A synthetic directed graph of the size of ogbn-arxiv, for measuring speed and memory.

    Made as :func:`social_network`, each pair once and in a random direction.

    *Guarantee*: none needed, nothing in it is real.
    """
    count = _validate.integer("num_edges", num_edges, "[1, 1e10]")
    rng, sizes = seeded(seed, "citations").generator(), (num_nodes, num_classes, num_features)
    pairs, y, x = _generate(rng, sizes, count, homophily, tilt)
    swap = seeded(seed, "citations directions").generator().random(pairs.shape[1]) < 0.5
    edges = torch.from_numpy(np.where(swap, pairs[::-1], pairs))
    return _graph(x, edges, y, num_classes, directed=True)


def erdos_renyi(num_nodes: int = 20, *, num_graphs: int = 1000, seed: int = 0) -> Data:
    """Many random graphs of two classes: the synthetic set of Mueller et al.

    Each has ``num_nodes`` nodes; each pair of them is joined with probability .2 in class 0 and .3
    in class 1, independently; each node has 9 normal features of standard deviation .5 and mean 0
    in class 0, .1 in class 1. Half of the graphs are of either class, in random order; the first
    600 of each 1000 are to train on, 100 to validate, 300 to test. Edges stand in both directions.
    The same seed gives the same graphs. With 500 nodes, 1000 graphs take 1 GB.

    *Guarantee*: none needed, nothing in it is real.
    """
    num_nodes = _validate.integer("num_nodes", num_nodes, "[2, 5000]")
    num_graphs = _validate.integer("num_graphs", num_graphs, "[10, 1e7]")
    rng = seeded(seed, "erdos-renyi").generator()
    y = rng.permutation(np.arange(num_graphs, dtype=np.int64) % 2)
    x = rng.normal(size=(num_graphs, num_nodes, _ER_FEATURES)) * 0.5 + 0.1 * y[:, None, None]

    # The number of a pair is kept in 4 bytes, until the size of edge_index is known.
    one, other = np.triu_indices(num_nodes, k=1)
    chance = np.where(y == 1, 0.3, 0.2)
    joined = [np.flatnonzero(rng.random(len(one)) < p).astype(np.int32) for p in chance]
    edges = np.empty((2, 2 * sum(map(len, joined))), dtype=np.int64)
    end = 0
    for graph, pairs in enumerate(joined):
        start, end = end, end + 2 * len(pairs)
        both = np.stack([one[pairs], other[pairs]]) + graph * num_nodes
        edges[:, start:end] = np.concatenate([both, both[::-1]], axis=1)

    flat = x.reshape(-1, _ER_FEATURES).astype(np.float32)
    data = _graph(flat, torch.from_numpy(edges), y, 2, directed=False)
    data.batch = torch.arange(num_graphs).repeat_interleave(num_nodes)
    data.num_graphs = num_graphs
    train, left = 6 * num_graphs // 10, 7 * num_graphs // 10
    put_masks(data, (train, left - train, num_graphs - left))
    return data


def put_masks(data: Data, sizes: Sequence[int]) -> None:
    """Masks of parts of these ``sizes``, one after the other."""
    start = 0
    for name, size in zip(MASKS, sizes, strict=True):
        data[name] = torch.zeros(sum(sizes), dtype=torch.bool)
        data[name][start : start + size] = True
        start += size


_ER_FEATURES = 9


def social(name: str, root: Path, variant: str) -> Data:
    """The data set ``social`` of the catalog."""
    return social_network()


def synthetic_citations(name: str, root: Path, variant: str) -> Data:
    """The data set ``synthetic-citations``: :func:`citation_like`, undirected, with a split.

    ``variant`` is NODES or NODES:SEED; there are as many links for each node as in ogbn-arxiv. The
    first nodes are to train on, the next to validate, the last to test; ids say nothing.
    """
    sizes = citations_variant(variant)
    if sizes is None:
        rule = "':NODES' from 1,000 to 1,000,000, and that by ':SEED'"
        way_out = "; write 'synthetic-citations:20000' or 'synthetic-citations:20000:7'"
        refuse_variant("synthetic-citations", rule, name, way_out)
    nodes, seed = sizes
    data = citation_like(nodes, round(nodes * _CITATIONS / _PAPERS), seed=seed)
    data.edge_index = torch.cat([data.edge_index, data.edge_index.flip(0)], dim=1)
    data.directed = False
    put_masks(data, citations_split(nodes))
    return data


def synthetic_er(name: str, root: Path, variant: str) -> Data:
    """The data set ``synthetic-er`` of the catalog; ``variant`` is NODES or NODES:SEED."""
    nodes, _, seed = (variant or "20").partition(":")
    if not re.fullmatch(r"[1-9][0-9]{1,2}", nodes) or not re.fullmatch(r"[0-9]{0,18}", seed):
        nodes = "0"
    if not 10 <= int(nodes) <= 500:
        way_out = "; write 'synthetic-er:50' or 'synthetic-er:20:7'"
        refuse_variant(
            "synthetic-er", "':NODES' from 10 to 500, and that by ':SEED'", name, way_out
        )
    return erdos_renyi(int(nodes), seed=int(seed or 0))


def _graph(
    x: NDArray, edge_index: torch.Tensor, y: NDArray, num_classes: int, *, directed: bool
) -> Data:
    data = Data(x=torch.from_numpy(x), edge_index=edge_index, y=torch.from_numpy(y))
    data.num_classes, data.directed = int(num_classes), directed
    return data


def _generate(
    rng: np.random.Generator,
    sizes: tuple[int, int, int],
    num_pairs: int,
    homophily: float,
    tilt: float,
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]:
    num_nodes = _validate.integer("num_nodes", sizes[0], _SIZES)
    num_classes = _validate.integer("num_classes", sizes[1], f"[2, {num_nodes // 2}]")
    num_features = _validate.integer("num_features", sizes[2], "[1, 1e5]")
    homophily = _validate.number("homophily", homophily, "[0, 1]")
    tilt = _validate.number("tilt", tilt, "[0, 10]")

    # The k-th class has a share proportional to 1/sqrt(k): some are rarer, none is tiny.
    share = 1 / np.sqrt(np.arange(1, num_classes + 1))
    y = rng.choice(num_classes, size=num_nodes, p=share / share.sum())
    # Expected degrees: Pareto with exponent 2, cut at 30 times the least.
    weight = np.minimum((1 - rng.random(num_nodes)) ** -0.5, 30.0)
    pairs = _pairs(rng, y, weight, num_pairs, homophily)
    return pairs, y, _answers(rng, y, num_classes, num_features, tilt)


def _pairs(
    rng: np.random.Generator,
    y: NDArray[np.int64],
    weight: NDArray[np.float64],
    count: int,
    homophily: float,
) -> NDArray[np.int64]:
    """About ``count`` different pairs (2, count), the smaller id first."""
    # Sorted by class, the weights of each class are one stretch of a running sum, so that a node of
    # a class is found by one uniform number within the stretch.
    by_class = np.argsort(y, kind="stable")
    running = np.cumsum(weight[by_class])
    ends = running[np.cumsum(np.bincount(y)) - 1]
    starts = np.concatenate([[0.0], ends[:-1]])

    def draw(low: NDArray, high: NDArray) -> NDArray[np.int64]:
        at = np.searchsorted(running, low + (high - low) * rng.random(len(low)), side="right")
        return by_class[np.minimum(at, len(y) - 1)]

    count = min(count, len(y) * (len(y) - 1) // 2)
    keys = np.empty(0, dtype=np.int64)
    for _ in range(_ROUNDS):
        wanted = int(1.1 * (count - len(keys))) + 16
        one = draw(np.zeros(wanted), np.full(wanted, running[-1]))
        alike = rng.random(wanted) < homophily
        other = draw(
            np.where(alike, starts[y[one]], 0.0), np.where(alike, ends[y[one]], running[-1])
        )
        low, high = np.minimum(one, other), np.maximum(one, other)
        keys = np.concatenate([keys, (low * len(y) + high)[low != high]])
        # First occurrences in the order of drawing: cutting a sorted list would drop the last ids.
        keys = keys[np.sort(np.unique(keys, return_index=True)[1])][:count]
        if len(keys) == count:
            break
    return np.stack([keys // len(y), keys % len(y)])


def _answers(
    rng: np.random.Generator, y: NDArray[np.int64], num_classes: int, num_features: int, tilt: float
) -> NDArray[np.float32]:
    """Yes (1) or no (0) to each question, more or less often according to the class."""
    average = rng.normal(-1.0, 0.5, size=num_features)
    log_odds = average + tilt * rng.normal(size=(num_classes, num_features))
    probability = (1 / (1 + np.exp(-log_odds))).astype(np.float32)
    return (rng.random((len(y), num_features), dtype=np.float32) < probability[y]).astype(
        np.float32
    )
