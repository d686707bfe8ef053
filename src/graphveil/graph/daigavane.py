r"""The sampler of Daigavane et al. (arXiv 2111.15521, Algorithm 2), to reproduce and to compare.

The paper bounds degrees by K before training and claims that one node then stands in at most K + 1
one-layer neighbourhoods, those of two neighbouring graphs being equal otherwise. The first half
holds. The second does not: which edges are kept depends on the other edges, so that removing a node
changes the choices made elsewhere. Two readings are here::

    greedy      Messages are visited in one random order, and one is kept while its sender has sent
                fewer than K and its receiver has read fewer than K. A slot that opens or closes
                moves along: a removed node changes choices any number of hops away.
    bernoulli   As the authors' code does it, but for all receivers, where theirs looks at training
                nodes alone and leaves the lists of the others as they are: each message of u is
                kept by a coin of probability K / (2 x the length of u's list); a node with more
                than K kept messages keeps none.
                A removed node shortens every list that named it and changes all their coins'
                probabilities. Withholding it (its own row only) does not: there the bound holds.

Neither has a proven epsilon under the paper's own relation, and ``greedy`` has none under any.
:func:`graphveil.graph.caps.cap_senders` does the same work with a proof.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from graphveil import _validate
from graphveil.graph.caps import Ids, as_edges, cap_senders, check_edges, priorities, priority_keys

READINGS = ("greedy", "bernoulli")
Kept = NDArray[np.bool_]


def sample_paper(
    edge_index: Tensor, num_nodes: int, cap: int, *, seed: int, reading: str = "greedy"
) -> Tensor:
    """Messages kept by the paper's Algorithm 2, in one of two readings; sorted by sender.

    Self-loops are dropped and repeated edges merged. The random order and the coins are hashes of
    the seed and a message's two ends, so what changes between two graphs is the sampler's doing and
    not that of fresh random numbers.

    *Guarantee*: none. The paper's bound, K + 1 changed terms, fails (docs/guarantees/node.md).
    """
    _validate.choice("reading", reading, READINGS)
    cap = _validate.integer("cap", cap, "[1, inf)")
    simple = cap_senders(edge_index, num_nodes, None, seed=seed)
    senders, receivers = (ends.astype(np.uint32) for ends in check_edges(simple, num_nodes))
    drawn = priorities(senders, receivers, priority_keys(seed, "paper sampler"))
    choose = _greedy if reading == "greedy" else _bernoulli
    kept = choose(senders, receivers, drawn, int(num_nodes), cap)
    return as_edges(senders[kept], receivers[kept], edge_index)


def _greedy(senders: Ids, receivers: Ids, drawn: Ids, num_nodes: int, cap: int) -> Kept:
    order = np.lexsort((receivers, senders, drawn))
    sent, read = [0] * num_nodes, [0] * num_nodes
    kept = np.zeros(len(order), np.bool_)
    ends = zip(order.tolist(), senders[order].tolist(), receivers[order].tolist(), strict=True)
    for message, u, w in ends:
        if sent[u] < cap and read[w] < cap:
            sent[u] += 1
            read[w] += 1
            kept[message] = True
    return kept


def _bernoulli(senders: Ids, receivers: Ids, drawn: Ids, num_nodes: int, cap: int) -> Kept:
    length = np.bincount(senders, minlength=num_nodes)
    kept = drawn * (2.0 * length[senders]) < cap * 2.0**32
    crowded = np.bincount(senders[kept], minlength=num_nodes) > cap
    return kept & ~crowded[senders]
