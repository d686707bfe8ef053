"""Keyed hashes of data: what a ledger, or a run that is being trained, keeps of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch_geometric.data import Data

    from graphveil.graph.lists import Lists

_CONTENT = (
    "x",
    "edge_index",
    "y",
    "batch",
    "target_x",
    "links",
    "link_time",
)  # what data is, however it may be split


def fingerprint_of(data: Data, digest: Any) -> str:
    """What a ledger keeps of data: a keyed hash of features, edges, labels and graphs, in order.

    The order and repetition of edges, and the masks of a split, make no difference. A store has the
    same as the graph of its content in memory, without self-loops.
    """
    from torch_geometric.data import Data
    from torch_geometric.utils import coalesce

    from graphveil.graph.stored import is_stored

    if is_stored(data) or "links" in data:
        return content_hash(data, _CONTENT, digest)
    plain = Data(**{name: data[name] for name in _CONTENT if name in data})
    plain.edge_index = coalesce(data.edge_index, num_nodes=len(data.x))
    return content_hash(plain, _CONTENT, digest)


def content_hash(data: Data, names: Sequence[str], digest: Any) -> str:
    """A hash of some of the tensors of a data set, which goes on with a keyed one."""
    from graphveil.graph.sparse_rows import arrays_of
    from graphveil.graph.stored import is_stored

    for name in names:
        if name == "edge_index" and is_stored(data):
            _hash_lists(data.stored.lists, digest)
        elif name in data:
            value = data[name].detach().cpu()
            digest.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
            for part in arrays_of(value):
                digest.update(part.view("uint8").data if part.size else b"")
    return str(digest.hexdigest())


def _hash_lists(lists: Lists, digest: Any) -> None:
    """What a tensor of all edges, in the order of the lists, would be hashed to."""
    digest.update(f"edge_index torch.int64 {(2, lists.num_messages)}\n".encode())
    for end in range(2):
        for block in lists.blocks():
            digest.update(block[end].astype("int64").view("uint8").data if len(block[end]) else b"")
