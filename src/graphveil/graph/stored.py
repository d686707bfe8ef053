"""Graphs that are larger than memory: edges as lists on disk, read a block of nodes at a time.

A store (:mod:`graphveil.data.store`) keeps who sends to whom as lists, one for each sender, in two
arrays that the operating system maps into memory and takes out of it again. Nothing here makes a
table of all edges: what asks for ``edge_index`` of such a graph is refused.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from graphveil._errors import InvalidInputError
from graphveil.graph.lists import Lists


@dataclass(frozen=True, eq=False)
class Stored:
    """What is in a store beside labels: where it is, its edges by sender, its features.

    Whoever built it checked both whole.
    """

    path: str
    lists: Lists
    x: Tensor

    def __repr__(self) -> str:
        return f"Stored({self.path!r}, {self.lists.num_messages:,} messages)"


class StoredGraph(Data):
    """A PyG ``Data`` whose arrays are on disk; ``stored`` holds its edges.

    ``x``, ``y`` and masks are tensors over files that are mapped for reading.
    """

    @property
    def edge_index(self) -> Any:
        """Refused: it would not fit."""
        raise whole_refusal(self)

    @edge_index.setter
    def edge_index(self, edges: Any) -> None:
        raise whole_refusal(self)

    def __getitem__(self, key: str) -> Any:
        if key == "edge_index":
            raise whole_refusal(self)
        return super().__getitem__(key)


def whole_refusal(data: StoredGraph) -> InvalidInputError:
    """The error of what needs all edges of a store together."""
    return InvalidInputError(
        "A graph in a store must be read a block of nodes at a time: methods for nodes train and "
        f"predict so. Got {data.stored.path} for something that needs all edges at once instead; "
        "take a graph in files that fit in memory."
    )


def is_stored(data: Any) -> bool:
    """Whether a graph's edges and features are on disk."""
    return isinstance(data, StoredGraph)


def edges_of(data: Data) -> Tensor | Lists:
    """The messages of a graph: a tensor (2, messages), or of a store its lists."""
    return data.stored.lists if is_stored(data) else data.edge_index


def without_edges(data: Data) -> Data:
    """The same nodes, of which nobody sends anything."""
    alone = copy.copy(data)
    if is_stored(data):
        lists = data.stored.lists
        none = Lists(np.zeros_like(lists.offsets), np.empty(0, lists.others.dtype))
        alone.stored = replace(data.stored, lists=none)
    else:
        alone.edge_index = data.edge_index[:, :0]
    return alone


def edges_among(data: Data, kept: Tensor) -> Tensor:
    """The messages whose ends are both kept, in their order; ids are those of all nodes."""
    if not is_stored(data):
        return data.edge_index[:, kept[data.edge_index].all(0)]
    inside, nodes = kept.numpy(), kept.nonzero().flatten().numpy()
    parts = [np.empty((2, 0), np.int64)]
    for owners, others in data.stored.lists.lists_of(nodes):
        some = inside[others]
        parts.append(np.stack([owners[some], others[some]]).astype(np.int64))
    return torch.from_numpy(np.concatenate(parts, 1))


def has_same_edges(one: Data, other: Data) -> bool:
    """Whether two graphs, both in memory or both in stores, have the same edges in one order."""
    first, second = edges_of(one), edges_of(other)
    if isinstance(first, Lists) or isinstance(second, Lists):
        return isinstance(first, Lists) and isinstance(second, Lists) and first.equals(second)
    return first.dtype == second.dtype and torch.equal(first, second)
