"""Who is trained on, who is tested: splits drawn from public ids alone.

A split that looks at the labels, to have each class in each part, is a function of private data and
would have to be paid for. :func:`split` draws from the ids 0..n-1 and a seed, both public.

*Transductive*: one graph, and the masks say who is in which part::

    data = split(data, seed=1)

*Inductive*: two graphs without an edge between them, so that nothing about the tested nodes is seen
in training::

    training, testing = separate(split(data, seed=1))

Where the records are whole graphs (a ``Data`` with ``batch``), all of this is about graphs: the
masks, and the two sets that :func:`separate` gives.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch_geometric.data import Data

from graphveil import _validate
from graphveil._errors import InvalidInputError
from graphveil.graph.checks import MASKS, OF_ALL, check, num_records, record_of
from graphveil.graph.shares import SHARES, part_ends
from graphveil.graph.subsets import select_graphs
from graphveil.rng import seeded


def split(data: Data, fractions: Sequence[float] = SHARES, seed: int = 0) -> Data:
    """A copy of ``data`` with random ``train_mask``, ``val_mask`` and ``test_mask``.

    ``fractions`` are the three parts' shares of the nodes; what they leave of 1 is in no part. The
    part of a node depends on its id, the number of nodes and ``seed``. Afterwards each unlabelled
    node (negative ``y``) is taken out of its part, which moves no other node. Many graphs are
    split in the same way, graph by graph.

    *Guarantee*: no cost. The split is a function of public values; *who is unlabelled* counts as
    public too where there are such nodes.
    """
    return draw_masks(check(data, labels=False, masks=False), fractions, seed)


def draw_masks(data: Data, fractions: Sequence[float] = SHARES, seed: int = 0) -> Data:
    """As :func:`split`, of data that was checked when it was read."""
    shares, count = _check_fractions(fractions), num_records(data)
    order = torch.from_numpy(seeded(seed, "split").generator().permutation(count))

    result = copy.copy(data)
    start = 0
    for name, end in zip(MASKS, part_ends(count, shares), strict=True):
        mask = torch.zeros(count, dtype=torch.bool)
        mask[order[start:end]] = True
        result[name] = mask if data.y is None else mask & (data.y >= 0)
        start = end
    if not result.train_mask.any():
        raise InvalidInputError(
            f"The 'fractions' parameter must leave somebody to train on. Got {tuple(fractions)} of "
            f"{count} {record_of(data)}s instead; take a larger first share, or label more of them."
        )
    return result


def thin(data: Data, share: float, seed: int = 0) -> Data:
    """A copy of ``data`` with a random ``share`` of its training records left in ``train_mask``.

    The others stay in the data, without a part in training. Smaller shares of the same ``seed``
    are subsets of larger ones.

    *Guarantee*: no cost. Who stays depends on the ids, the mask and ``seed``.
    """
    share = _validate.number("share", share, "(0, 1]")
    training = check(data, labels=False, masks=True).train_mask.nonzero().flatten()
    order = torch.from_numpy(seeded(seed, "training share").generator().permutation(len(training)))
    result = copy.copy(data)
    result.train_mask = torch.zeros_like(data.train_mask)
    result.train_mask[training[order[: max(1, math.floor(share * len(training) + 0.5))]]] = True
    return result


def separate(data: Data) -> tuple[Data, Data]:
    """Two graphs out of one: training and validation nodes, and test nodes. Edges between are cut.

    Works on any masks, drawn or given. Each part is numbered afresh and keeps its old ids as
    ``node_id``. Nodes in no mask are in neither part. Many graphs become two sets of graphs, with
    their old ids as ``graph_id``, and no edge is cut.

    *Guarantee*: no cost. An edge is kept or cut by which masks its ends are in, nothing else.
    """
    check(data, labels=False, masks=True)
    testing = data.test_mask
    if not testing.any():
        raise InvalidInputError(
            "The 'test_mask' parameter must be true somewhere. Got no test "
            f"{record_of(data)} instead; draw a split with a third share above 0."
        )
    if record_of(data) == "graph":
        return select_graphs(data, data.train_mask | data.val_mask), select_graphs(data, testing)
    return _induce(data, data.train_mask | data.val_mask), _induce(data, testing)


def _induce(data: Data, subset: Tensor) -> Data:
    part = copy.copy(data)
    # PyG takes a list as long as the graph for a node's own.
    of_all = {name: data[name] for name in OF_ALL if name in data}
    for name in of_all:
        del part[name]
    part.node_id = torch.arange(len(subset))
    part = part.subgraph(subset)
    for name, value in of_all.items():
        part[name] = value
    return part


def _check_fractions(fractions: Sequence[float]) -> list[float]:
    if len(fractions) != 3:
        raise InvalidInputError(
            "The 'fractions' parameter must be three numbers: train, val, test. "
            f"Got {tuple(fractions)} instead; write 0 for a part that is not wanted."
        )
    shares = [_validate.number("fractions", share, "[0, 1]") for share in fractions]
    if sum(shares) > 1 + 1e-9:
        raise InvalidInputError(
            "The 'fractions' parameter must sum to 1 at most. "
            f"Got {tuple(fractions)} instead; divide each by {sum(shares):g}."
        )
    return shares
