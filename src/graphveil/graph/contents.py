"""Hashes of what a data set holds, and their comparison among processes.

*Guarantee conditions*: a step's terms are shared among processes by their numbers, so that all of
them must hold the same rows in the same order. Else one person would be summed by two of them.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from graphveil import processes
from graphveil.graph.sparse_rows import arrays_of
from graphveil.graph.stored import is_stored
from graphveil.privacy.ledger_state import keyed_hash

if TYPE_CHECKING:
    from torch_geometric.data import Data

    from graphveil.graph.lists import Lists


def content_hash(data: Data, names: Sequence[str], digest: Any) -> str:
    """A hash of some of the tensors of a data set, which goes on with a keyed one."""
    for name in names:
        if name == "edge_index" and is_stored(data):
            _hash_lists(data.stored.lists, digest)
        elif name in data:
            _hash_tensor(name, data[name], digest)
    return str(digest.hexdigest())


def compare_data(data: Data) -> None:
    """Refuse data that differs among the processes, in any of its tensors."""
    if processes.current().world == 1:
        return
    held = {name for name, value in data.to_dict().items() if isinstance(value, Tensor)}
    names = sorted(held | {"edge_index"})
    _agree("data", lambda digest: content_hash(data, names, digest))


def compare_tensors(what: str, tensors: Sequence[Any]) -> None:
    """Refuse examples that differ among the processes; rows of a store are compared elsewhere."""
    if processes.current().world == 1:
        return

    def hash_all(digest: Any) -> str:
        for place, value in enumerate(tensors):
            if isinstance(value, Tensor):
                _hash_tensor(str(place), value, digest)
        return str(digest.hexdigest())

    _agree(what, hash_all)


def _agree(what: str, hash_with: Any) -> None:
    """Compare hashes with a fresh key, which travels: it is no run's own."""
    ranks = processes.current()
    digest = keyed_hash(ranks.tell(lambda: secrets.token_hex(32)))
    ranks.agree(what, hash_with(digest).encode())


def _hash_tensor(name: str, value: Tensor, digest: Any) -> None:
    value = value.detach().cpu()
    digest.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
    for part in arrays_of(value):
        digest.update(part.view("uint8").data if part.size else b"")


def _hash_lists(lists: Lists, digest: Any) -> None:
    """What a tensor of all edges, in the order of the lists, would be hashed to."""
    digest.update(f"edge_index torch.int64 {(2, lists.num_messages)}\n".encode())
    for end in range(2):
        for block in lists.blocks():
            digest.update(block[end].astype("int64").view("uint8").data if len(block[end]) else b"")
