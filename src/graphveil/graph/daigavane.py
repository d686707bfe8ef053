r"""The samplers of Daigavane et al. (arXiv 2111.15521), to reproduce and to compare.

The paper bounds degrees by K before training and claims that one node then stands in at most K + 1
one-layer neighbourhoods, those of two neighbouring graphs being equal otherwise. The first half
holds. The second depends on how edges are chosen, and on what a neighbouring graph is::

    printed     Algorithm 2. Training nodes v are visited in a random order, and those that v reads
                one by one: u is kept while neither has been counted K times, and then each reads
                the other. Who is counted depends on who came before: a change travels any number
                of hops.
    released    The authors' code. The training nodes that would read u are u's list; each is kept
                by a coin of probability K / (2 x the length of that list), and a node with more
                than K successes sends nothing. A removed node shortens every list that named it
                and changes all their coins' probabilities. Withholding it (its own row and list)
                does not: there the bound holds, as u chooses from its own list.

``printed`` has no proven epsilon. ``released`` has one for a withheld node, and none under the
paper's own relation. :func:`graphveil.graph.caps.cap_senders` keeps K where ``released`` keeps half
of K on average.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from graphveil import _validate
from graphveil._errors import InvalidInputError
from graphveil.graph.caps import Ids, as_edges, cap_senders, check_edges, priorities, priority_keys

READINGS = ("printed", "released")
Ends = tuple[Ids, Ids]


def sample_paper(
    edge_index: Tensor,
    num_nodes: int,
    cap: int,
    *,
    seed: int,
    reading: str = "printed",
    train: Tensor | None = None,
) -> Tensor:
    """Messages that reach the training nodes, kept as the paper prints or as its code does.

    ``train`` masks the training nodes; by default all nodes are. Self-loops are dropped and
    repeated edges merged. The random orders and the coins are hashes of the seed and of ids, so
    what changes between two graphs is the sampler's doing and not that of fresh random numbers.

    *Guarantee conditions*: ``released`` alone, for a node withheld, with ids of training nodes that
    are public: at most ``cap`` other neighbourhoods change. In all else the paper's bound fails
    (docs/guarantees/node.md).
    """
    _validate.choice("reading", reading, READINGS)
    cap = _validate.integer("cap", cap, "[1, inf)")
    simple = cap_senders(edge_index, num_nodes, None, seed=seed)
    senders, receivers = (ends.astype(np.uint32) for ends in check_edges(simple, num_nodes))
    trained = np.ones(num_nodes, np.bool_) if train is None else train.cpu().numpy()
    if trained.shape != (num_nodes,):
        raise InvalidInputError(
            f"The 'train' parameter must be a mask of {num_nodes} nodes. Got one of "
            f"{len(trained)} instead."
        )
    drawn = priorities(senders, receivers, priority_keys(seed, "paper sampler"))
    if reading == "released":
        kept = _keep_by_coins(senders, trained[receivers], drawn, int(num_nodes), cap)
        return as_edges(senders[kept], receivers[kept], edge_index)
    visited = _visit_in_turn(senders, receivers, drawn, trained, seed)
    pairs = _count_both_ends(visited, int(num_nodes), cap)
    # Each of a pair reads the other; of training nodes alone there is a neighbourhood.
    ends = np.concatenate([pairs, pairs[::-1]], axis=1)
    ends = np.unique(ends[:, trained[ends[1]]], axis=1)
    return as_edges(ends[0], ends[1], edge_index)


def _keep_by_coins(
    senders: Ids, read: NDArray[np.bool_], drawn: Ids, num_nodes: int, cap: int
) -> NDArray[np.bool_]:
    """Of the messages that training nodes ``read``, each by a coin; of a crowded sender none."""
    length = np.bincount(senders[read], minlength=num_nodes)
    kept = read & (drawn * (2.0 * length[senders]) < cap * 2.0**32)
    crowded = np.bincount(senders[kept], minlength=num_nodes) > cap
    return kept & ~crowded[senders]


def _visit_in_turn(
    senders: Ids, receivers: Ids, drawn: Ids, trained: NDArray[np.bool_], seed: int
) -> Ends:
    """The messages of training nodes: nodes in one random order, and what each reads in another."""
    read = trained[receivers]
    senders, receivers, drawn = senders[read], receivers[read], drawn[read]
    turn = priorities(receivers, receivers, priority_keys(seed, "paper order"))
    order = np.lexsort((senders, drawn, receivers, turn))
    return senders[order], receivers[order]


def _count_both_ends(visited: Ends, num_nodes: int, cap: int) -> NDArray[np.uint32]:
    """Algorithm 2's one counter a node, which either end of a kept pair raises."""
    count, kept = [0] * num_nodes, []
    for place, (u, v) in enumerate(zip(*(ends.tolist() for ends in visited), strict=True)):
        if count[u] < cap and count[v] < cap:
            count[u] += 1
            count[v] += 1
            kept.append(place)
    return np.stack(visited)[:, kept]
