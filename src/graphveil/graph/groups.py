"""Groups of nodes without an edge between them, drawn without looking at the data.

Each group is one loss term, or bounds how far a node's row can reach: within its group, and no
further, however deep the network is.
"""

from __future__ import annotations

import torch
from torch import Tensor

from graphveil import _validate
from graphveil.graph.caps import cap_senders
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


def within(edge_index: Tensor, groups: Tensor) -> Tensor:
    """The edges whose ends share a group; each once, self-loops not at all."""
    kept = edge_index[:, groups[edge_index[0]] == groups[edge_index[1]]]
    return cap_senders(kept, len(groups), None, seed=0)
