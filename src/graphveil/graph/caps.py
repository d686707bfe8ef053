r"""Caps: how many messages a node sends, and how many it reads.

A message is a pair (sender, receiver), row 0 and row 1 of ``edge_index``. What bounds a node's
influence is the number of messages it *sends*: :func:`cap_senders` keeps at most K of each node's
own list. :func:`cap_receivers` may follow; it costs no privacy and keeps neighbourhoods small.

**Priorities.** A node keeps the messages of smallest priority. The priority of (u, w) is a keyed
hash of u and w under the seed, and of nothing else: the same in every graph that holds the pair.
Withholding a node therefore leaves all other nodes' choices as they were. For a fixed u the hash
permutes the 32-bit numbers, so two receivers never tie, and a receiver can be computed back from
its priority. That makes a cap one sort of one array of words::

    sender (32 bits) | priority of the receiver (32 bits)

in which equal words are repeated edges, and a word is among its sender's first K if the word K
places before it belongs to another sender.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from graphveil import _validate
from graphveil._errors import InvalidInputError
from graphveil.graph.lists import Lists
from graphveil.rng import seeded

Ids = NDArray[np.uint32]
Words = NDArray[np.uint64]

_BLOCK = 2**16  # messages hashed at a time, so that intermediate arrays stay in the cache
_HALF = np.uint64(32)

# Constants of the 32-bit finaliser of MurmurHash3, and their inverses modulo 2^32.
_FIRST, _SECOND = np.uint32(0x85EBCA6B), np.uint32(0xC2B2AE35)
_FIRST_INVERSE, _SECOND_INVERSE = np.uint32(0xA5CB9243), np.uint32(0x7ED1B41D)
_S13, _S16, _S26 = np.uint32(13), np.uint32(16), np.uint32(26)


def cap_senders(
    edge_index: Tensor | Lists,
    num_nodes: int,
    cap: int | None,
    *,
    seed: int,
    readers: Tensor | None = None,
) -> Tensor:
    """At most ``cap`` of the messages each node sends; with None, all of them.

    Edges may be the lists of a store, which are read a block at a time: what is kept is in memory.
    With ``readers``, a mask, a list holds these alone before it is capped.

    First self-loops are dropped (a layer reads a node's own state anyway) and repeated edges are
    merged. The result is sorted by sender, each sender's messages by priority: a smaller cap keeps
    a prefix of each list.

    *Guarantee conditions* (unit ``node``): one list for all layers of a step. It may be drawn
    anew, by another seed, between steps. The seed may be public; it and the cap were chosen without
    looking at the graph.
    """
    keys, taken = priority_keys(seed, "cap senders"), None
    if readers is not None:
        taken = readers.numpy()
    if isinstance(edge_index, Lists):
        return _cap_lists(edge_index, cap, keys, taken)
    senders, receivers = check_edges(edge_index, num_nodes)
    if taken is not None:
        senders, receivers = senders[taken[receivers]], receivers[taken[receivers]]
    source, target = _smallest(senders, receivers, cap, keys)
    return as_edges(source, target, edge_index)


def _cap_lists(
    lists: Lists, cap: int | None, keys: tuple[int, ...], taken: NDArray[np.bool_] | None
) -> Tensor:
    """As of a table of edges: a sender's list stands in one block, and is capped by itself."""
    parts = []
    for senders, receivers in lists.blocks():
        if taken is not None:
            inside = taken[receivers]
            senders, receivers = senders[inside], receivers[inside]
        parts.append(_smallest(senders, receivers, cap, keys))
    edges = torch.empty(2, sum(len(source) for source, _ in parts), dtype=torch.long)
    first = 0
    for source, target in parts:
        some = slice(first, first + len(source))
        edges[0, some] = torch.from_numpy(source.astype(np.int64))
        edges[1, some] = torch.from_numpy(target.astype(np.int64))
        first = some.stop
    return edges


def cap_receivers(
    edge_index: Tensor | Lists, num_nodes: int, cap: int | None, *, seed: int, layer: int = 0
) -> Tensor:
    """At most ``cap`` of the messages that reach each node, after the senders were capped.

    Edges may be the lists of a store, as for :func:`cap_senders`. Priorities are independent of
    those of the senders, and of other layers'. The result is sorted by receiver, each receiver's
    messages by priority.

    *Guarantee conditions*: comes last. A message dropped here is lost; to offer its sender another
    one in its place would make the sender's choice depend on others. For the same reason a weight
    that uses the number of messages a node sends counts them *before* this cap.
    """
    layer = _validate.integer("layer", layer, "[0, inf)")
    keys = priority_keys(seed, f"cap receivers {layer}")
    if isinstance(edge_index, Lists):
        return _cap_lists(edge_index.transposed, cap, keys, None).flip(0)
    senders, receivers = check_edges(edge_index, num_nodes)
    target, source = _smallest(receivers, senders, cap, keys)
    return as_edges(source, target, edge_index)


def _smallest(
    owners: NDArray[Any], others: NDArray[Any], cap: int | None, keys: tuple[int, ...]
) -> tuple[Ids, Ids]:
    """Each owner's ``cap`` smallest priorities: owners, others."""
    if cap is not None:
        cap = _validate.integer("cap", cap, "[1, inf)")
    words = _words(owners, others, keys)
    words.sort()
    words = words[_differ(words, 1, bits=64)]
    if cap is not None:
        words = words[_differ(words, cap, bits=32)]
    owner = (words >> _HALF).astype(np.uint32)
    return owner, _other(owner, words.astype(np.uint32), keys)  # the lower half


def _differ(words: Words, places: int, *, bits: int) -> NDArray[np.bool_]:
    """Which words differ in their upper ``bits`` from the word so many places before."""
    result = np.ones(len(words), np.bool_)
    for start in range(places, len(words), _BLOCK):
        stop = min(start + _BLOCK, len(words))
        changes = words[start:stop] ^ words[start - places : stop - places]
        result[start:stop] = changes >= np.uint64(2 ** (64 - bits))
    return result


def _words(owners: NDArray[Any], others: NDArray[Any], keys: tuple[int, ...]) -> Words:
    """Owner and priority of every message that is not a self-loop."""
    words = np.empty(len(owners), np.uint64)
    size = 0
    for start in range(0, len(owners), _BLOCK):
        owner = owners[start : start + _BLOCK].astype(np.uint32)
        other = others[start : start + _BLOCK].astype(np.uint32)
        if (loops := owner == other).any():
            owner, other = owner[~loops], other[~loops]
        block = words[size : size + len(owner)]
        block[:] = owner
        block <<= _HALF
        block |= priorities(owner, other, keys)
        size += len(owner)
    return words[:size]


# --- priorities -----------------------------------------------------------------------------------


def priority_keys(seed: int, purpose: str) -> tuple[int, ...]:
    """Two words of 32 bits for each seed and purpose."""
    return tuple(seeded(seed, purpose).generator().integers(0, 2**32, size=2).tolist())


def priorities(owner: Ids, other: Ids, keys: tuple[int, ...]) -> Ids:
    """For each owner a permutation of the 32-bit numbers, taken at ``other``."""
    for key in keys:
        other = _mix(other ^ _mix(owner ^ np.uint32(key)))
    return other


def _other(owner: Ids, priority: Ids, keys: tuple[int, ...]) -> Ids:
    """The inverse of :func:`priorities`."""
    for key in reversed(keys):
        priority = _unmix(priority) ^ _mix(owner ^ np.uint32(key))
    return priority


def _mix(x: Ids) -> Ids:
    x = x ^ (x >> _S16)
    x *= _FIRST
    x ^= x >> _S13
    x *= _SECOND
    x ^= x >> _S16
    return x


def _unmix(x: Ids) -> Ids:
    x = x ^ (x >> _S16)
    x *= _SECOND_INVERSE
    x ^= (x >> _S13) ^ (x >> _S26)
    x *= _FIRST_INVERSE
    x ^= x >> _S16
    return x


# --- in and out -----------------------------------------------------------------------------------


def check_edges(edge_index: Tensor, num_nodes: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Senders and receivers as arrays, every one of them a node."""
    num_nodes = _validate.integer("num_nodes", num_nodes, "[0, 4294967296]")
    whole = edge_index.dtype in (torch.int64, torch.int32)
    if edge_index.dim() != 2 or len(edge_index) != 2 or not whole:
        raise InvalidInputError(
            "The 'edge_index' parameter must be a tensor of whole numbers with two rows, senders "
            f"and receivers. Got {edge_index.dtype} of shape {tuple(edge_index.shape)} instead."
        )
    if edge_index.numel():
        low, high = (int(end) for end in torch.aminmax(edge_index))
        if low < 0 or high >= num_nodes:
            raise InvalidInputError(
                f"The 'edge_index' parameter must name nodes 0 to {num_nodes - 1}. Got "
                f"{low if low < 0 else high} instead; 'num_nodes' counts isolated nodes, too."
            )
    senders, receivers = edge_index.detach().cpu().numpy()
    return senders, receivers


def as_edges(senders: Ids, receivers: Ids, like: Tensor) -> Tensor:
    """Two rows, on the device of ``like``."""
    edges = torch.empty(2, len(senders), dtype=torch.long)
    array = edges.numpy()
    array[0], array[1] = senders, receivers
    return edges.to(like.device)
