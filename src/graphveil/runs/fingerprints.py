"""Keyed hashes of data: what a ledger, or a run that is being trained, keeps of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch_geometric.data import Data


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

    from graphveil.graph.contents import content_hash
    from graphveil.graph.stored import is_stored

    if is_stored(data) or "links" in data:
        return content_hash(data, _CONTENT, digest)
    plain = Data(**{name: data[name] for name in _CONTENT if name in data})
    plain.edge_index = coalesce(data.edge_index, num_nodes=len(data.x))
    return content_hash(plain, _CONTENT, digest)
