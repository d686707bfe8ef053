"""Groups of nodes without an edge between them, drawn without looking at the data.

Each group is one loss term, or bounds how far a node's row can reach: within its group, and no
further, however deep the network is.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from graphveil import _validate
from graphveil.graph.caps import cap_senders
from graphveil.graph.lists import Lists
from graphveil.rng import SeededStream


def random_groups(num_nodes: int, count: int, stream: SeededStream) -> Tensor:
    """The group of every node: ``count`` of them, of equal size give or take one.

    *Guarantee*: no cost. It is a function of the ids and of a public seed.
    """
    _validate.integer("count", count, f"[1, {num_nodes}]")
    order = torch.from_numpy(stream.generator().permutation(num_nodes))
    groups = torch.empty(num_nodes, dtype=torch.long)
    groups[order] = torch.arange(num_nodes) % count
    return groups


def within(edges: Tensor | Lists, groups: Tensor, nodes: Tensor | None = None) -> Tensor:
    """The edges whose ends share a group; each once, self-loops not at all.

    Of a store lists are read a block at a time, or with ``nodes`` those of these senders alone.
    """
    if isinstance(edges, Lists):
        kept = _within_lists(edges, groups, nodes)
    else:
        kept = edges[:, groups[edges[0]] == groups[edges[1]]]
    return cap_senders(kept, len(groups), None, seed=0)


def _within_lists(lists: Lists, groups: Tensor, nodes: Tensor | None) -> Tensor:
    group, parts = groups.numpy(), [np.empty((2, 0), np.int64)]
    for owners, others in lists.blocks() if nodes is None else lists.lists_of(nodes.numpy()):
        same = group[owners] == group[others]
        parts.append(np.stack([owners[same], others[same]]).astype(np.int64))
    return torch.from_numpy(np.concatenate(parts, 1))
