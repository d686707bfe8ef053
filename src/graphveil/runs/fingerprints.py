"""Keyed hashes of data: what a ledger, or a run that is being trained, keeps of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch_geometric.data import Data

_CONTENT = ("x", "edge_index", "y", "batch")  # what data is, however it may be split


def fingerprint_of(data: Data, digest: Any) -> str:
    """What a ledger keeps of data: a keyed hash of features, edges, labels and graphs, in order.

    The order and repetition of edges, and the masks of a split, make no difference.
    """
    from torch_geometric.data import Data
    from torch_geometric.utils import coalesce

    plain = Data(**{name: data[name] for name in _CONTENT if name in data})
    plain.edge_index = coalesce(data.edge_index, num_nodes=len(data.x))
    return content_hash(plain, _CONTENT, digest)


def content_hash(data: Data, names: Sequence[str], digest: Any) -> str:
    """A hash of some of the tensors of a data set, which goes on with a keyed one."""
    from graphveil.graph.sparse_rows import arrays_of

    for name in names:
        if name in data:
            value = data[name].detach().cpu()
            digest.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
            for part in arrays_of(value):
                digest.update(part.view("uint8").data if part.size else b"")
    return str(digest.hexdigest())
