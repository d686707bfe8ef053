"""Neighbouring data sets: one unit's data withheld, removed or deleted (privacy units, made flesh).

    for neighbour in neighbours(data, unit="node", relation="withhold", most=8, seed=0):
        neighbour.name, neighbour.data, neighbour.record

A withheld record keeps its public place: its id, and its place in the masks. Its row is zeros, its
label -1, its list empty; other lists go on naming it. Under ``remove`` these forget it, too.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch_geometric.data import Data

from graphveil.graph.sparse_rows import is_sparse
from graphveil.graph.targets import take_labels_away
from graphveil.rng import seeded


@dataclass(frozen=True)
class Neighbour:
    """A data set without one unit. ``record`` is the node or graph that is gone; None of edges.

    Of an owner it is a list of all their records.
    """

    name: str
    data: Data
    record: int | list[int] | None = None


def neighbours(
    data: Data, unit: str, relation: str = "withhold", *, most: int = 12, seed: int = 0
) -> Iterator[Neighbour]:
    """Neighbours of ``data``: extreme units first, then units drawn by ``seed``."""
    if unit == "graph":
        for graph, why in _graphs(data, most, seed):
            yield Neighbour(f"graph {graph} left ({why})", leave(data, graph), graph)
    elif unit == "owner":
        for owner, why in _owners(data, most, seed):
            rows = (data.owner == owner).nonzero().flatten().tolist()
            yield Neighbour(f"owner {owner} withheld ({why})", withhold_all(data, rows), rows)
    elif unit == "node":
        for node, why in _nodes(data, most, seed):
            gone = remove(data, node) if relation == "remove" else withhold(data, node)
            verb = "removed" if relation == "remove" else "withheld"
            yield Neighbour(f"node {node} {verb} ({why})", gone, node)
    else:
        directed = unit == "edge-directed"
        for (source, target), why in _edges(data, most, seed):
            gone = delete_edge(data, source, target, directed=directed)
            yield Neighbour(f"edge {source}-{target} deleted ({why})", gone)


# --- one unit gone --------------------------------------------------------------------------------


def withhold(data: Data, node: int) -> Data:
    """``data`` with the null row in the place of ``node``'s: no features, no label, no list."""
    return _replace(data, node, data.edge_index[0] != node)


def withhold_all(data: Data, records: list[int]) -> Data:
    """``data`` with null rows, or graphs without a node, in the places of ``records``."""
    for record in records:
        data = leave(data, record) if "batch" in data else withhold(data, record)
    return data


def remove(data: Data, node: int) -> Data:
    """As :func:`withhold`, and nobody's list names ``node`` any more."""
    return _replace(data, node, (data.edge_index != node).all(0))


def delete_edge(data: Data, source: int, target: int, *, directed: bool) -> Data:
    """``data`` without the edge, however often it stands there, and in both directions."""
    first, second = data.edge_index
    gone = (first == source) & (second == target)
    if not directed:
        gone |= (first == target) & (second == source)
    return _keep_edges(copy.copy(data), ~gone)


def leave(data: Data, graph: int) -> Data:
    """A set of graphs in the place of one of which is nothing: no node, no edge, no label."""
    stays = data.batch != graph
    place = torch.cumsum(stays, 0) - 1
    result = _keep_edges(copy.copy(data), stays[data.edge_index[0]])
    result.edge_index = place[result.edge_index]
    for name in ("x", "pos", "batch"):
        if name in data and data[name] is not None:
            result[name] = data[name][stays]
    result.y = take_labels_away(data.y, graph)
    result.withheld = graph
    return result


def _replace(data: Data, node: int, kept: Tensor) -> Data:
    result = _keep_edges(copy.copy(data), kept)
    if is_sparse(data.x):
        keep = torch.ones(data.x.shape[0], dtype=data.x.dtype)
        keep[node] = 0
        diagonal = torch.sparse.spdiags(keep, torch.tensor([0]), (len(keep), len(keep)))
        result.x = (diagonal.to_sparse_csr() @ data.x.to_sparse_csr()).to_sparse_csr()
    else:
        result.x = data.x.clone()
        result.x[node] = 0
    result.y = take_labels_away(data.y, node)
    result.withheld = node
    return result


def _keep_edges(data: Data, kept: Tensor) -> Data:
    count = data.edge_index.shape[1]
    data.edge_index = data.edge_index[:, kept]
    for name in ("edge_attr", "edge_weight"):
        if name in data and data[name] is not None and len(data[name]) == count:
            data[name] = data[name][kept]
    return data


# --- which units ----------------------------------------------------------------------------------


def _nodes(data: Data, most: int, seed: int) -> Iterator[tuple[int, str]]:
    """The loudest and the quietest, trained on and not, then others by lot."""
    nodes = data.x.shape[0]
    sent = torch.bincount(data.edge_index[0], minlength=nodes)
    named = torch.bincount(data.edge_index[1], minlength=nodes)
    train = data.train_mask
    extremes = [(sent.where(train, torch.tensor(-1)).argmax(), "trained on, longest list")]
    if not train.all():
        extremes.append((sent.where(~train, torch.tensor(-1)).argmax(), "not trained on, hub"))
    extremes.append((named.argmax(), "named most"))
    for mask, why in (
        ((sent + named == 0) & train, "isolated"),
        ((sent == 1) & train, "leaf"),
        (train, "trained on"),
        (~train, "not trained on"),
    ):
        if mask.any():
            extremes.append((mask.nonzero()[0, 0], why))
    lot = seeded(seed, "neighbours").generator().permutation(nodes).tolist()
    yield from _first(([*extremes, *((node, "by lot") for node in lot)]), most)


def _graphs(data: Data, most: int, seed: int) -> Iterator[tuple[int, str]]:
    size = torch.bincount(data.batch, minlength=len(data.y))
    train = data.train_mask
    extremes = [
        (size.where(train, torch.tensor(-1)).argmax(), "trained on, largest"),
        (size.where(train, size.max() + 1).argmin(), "trained on, smallest"),
    ]
    lot = seeded(seed, "neighbours").generator().permutation(len(data.y)).tolist()
    yield from _first([*extremes, *((graph, "by lot") for graph in lot)], most)


def _owners(data: Data, most: int, seed: int) -> Iterator[tuple[int, str]]:
    """Those with the most and the fewest records, trained on and not, then others by lot."""
    owners, rows = data.owner.unique(return_counts=True)
    trained = torch.isin(owners, data.owner[data.train_mask])
    extremes = [
        (owners[rows.where(trained, torch.tensor(-1)).argmax()], "trained on, most records"),
        (owners[rows.where(trained, rows.max() + 1).argmin()], "trained on, fewest records"),
    ]
    if not trained.all():
        extremes.append((owners[~trained][0], "not trained on"))
    lot = seeded(seed, "neighbours").generator().permutation(owners.numpy()).tolist()
    yield from _first([*extremes, *((owner, "by lot") for owner in lot)], most)


def _edges(data: Data, most: int, seed: int) -> Iterator[tuple[tuple[int, int], str]]:
    first, second = data.edge_index
    plain = (first != second).nonzero().flatten()
    if not len(plain):
        return
    degree = torch.bincount(data.edge_index.flatten(), minlength=data.x.shape[0])
    weight = degree[first[plain]] + degree[second[plain]]
    order = [int(plain[weight.argmax()]), int(plain[weight.argmin()])]
    order += plain[seeded(seed, "neighbours").generator().permutation(len(plain))].tolist()
    words = ["between hubs", "between leaves"]
    seen: set[frozenset[int]] = set()
    for number, place in enumerate(order):
        edge = (int(first[place]), int(second[place]))
        if frozenset(edge) not in seen and len(seen) < most:
            seen.add(frozenset(edge))
            yield edge, words[number] if number < len(words) else "by lot"


def _first(units: list[tuple[Tensor | int, str]], most: int) -> Iterator[tuple[int, str]]:
    """Each unit once, and no more than ``most``."""
    seen: set[int] = set()
    for unit, why in units:
        if int(unit) not in seen and len(seen) < most:
            seen.add(int(unit))
            yield int(unit), why
