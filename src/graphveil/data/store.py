"""Stores: graphs that may be larger than memory, as plain arrays in a directory.

    data = load("products-store/")           # arrays are mapped, not read
    DPGNN(epsilon=8.0).fit(split(data))

What a store holds stands in :mod:`graphveil.data.store_format`.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch_geometric.data import Data

from graphveil.data.store_format import (
    ArrayFacts,
    Manifest,
    array_path,
    damage,
    open_array,
    sha256_of,
)
from graphveil.graph.checks import LINES, MASKS, check
from graphveil.graph.lists import Lists
from graphveil.graph.sparse_rows import as_csr, is_sparse
from graphveil.graph.stored import Stored, StoredGraph

_STATED = (
    "num_classes", "class_names", "columns", "schema", "task", "value_range", "directed",
    "unit_name", "own_lists", "spent", *LINES,
)  # fmt: skip


def open_store(path: Path) -> StoredGraph:
    """The graph of a store; nothing is read but the manifest and the arrays' headers.

    What the manifest says was checked when the store was built, every array whole: edges are
    between its nodes, features are finite. Here sizes and kinds are compared with it.

    *Guarantee*: none; opening is not releasing.
    """
    manifest = Manifest.read(path)
    arrays = {name: open_array(path, name, manifest) for name in manifest.arrays}
    offsets, receivers = arrays["offsets"], arrays["receivers"]
    if int(offsets[0]) or int(offsets[-1]) != manifest.num_messages:
        got = f"offsets end at {int(offsets[-1])} of {manifest.num_messages} messages"
        raise damage(array_path(path, "offsets"), got)
    x = _features(path, arrays, manifest)
    data = StoredGraph(x=x, stored=Stored(str(path), Lists(offsets, receivers), x))
    for name in ("y", *MASKS):
        if name in arrays:
            data[name] = _tensor(arrays[name])
    for name in _STATED:
        if getattr(manifest, name) not in (None, []):
            data[name] = getattr(manifest, name)
    if "ids" in arrays or "id_bytes" in arrays:
        data.ids = StoredIds(arrays)
    return check(data, labels=False, masks=False)


def _features(path: Path, arrays: dict[str, NDArray[Any]], manifest: Manifest) -> Tensor:
    if not manifest.sparse:
        return _tensor(arrays["x"])
    offsets, columns, values = (arrays[f"x_{part}"] for part in ("offsets", "columns", "values"))
    count = int(offsets[-1])
    if not len(columns) == len(values) == count:
        raise damage(array_path(path, "x_offsets"), f"{len(columns)} columns of {count} numbers")
    # torch wants both of one kind; the shorter array follows the longer.
    if count > np.iinfo(columns.dtype).max:
        raise damage(array_path(path, "x_columns"), f"{columns.dtype} for {count} numbers")
    starts = _tensor(offsets.astype(columns.dtype))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch calls the layout new
        return torch.sparse_csr_tensor(
            starts,
            _tensor(columns),
            _tensor(values),
            size=(manifest.num_nodes, manifest.num_features),
            check_invariants=False,
        )


def _tensor(array: NDArray[Any]) -> Tensor:
    """A tensor over the same memory, which nothing here writes to."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch has no tensors for reading alone
        return torch.from_numpy(array)


class StoredIds(Sequence[str]):
    """Ids as their owner wrote them, read one by one."""

    def __init__(self, arrays: dict[str, NDArray[Any]]) -> None:
        self._numbers = arrays.get("ids")
        self._offsets, self._bytes = arrays.get("id_offsets"), arrays.get("id_bytes")

    def __len__(self) -> int:
        if self._numbers is not None:
            return len(self._numbers)
        assert self._offsets is not None
        return len(self._offsets) - 1

    @overload
    def __getitem__(self, place: int) -> str: ...
    @overload
    def __getitem__(self, place: slice) -> list[str]: ...
    def __getitem__(self, place: int | slice) -> str | list[str]:
        if isinstance(place, slice):
            return [self[number] for number in range(*place.indices(len(self)))]
        if self._numbers is not None:
            return str(int(self._numbers[place]))
        assert self._offsets is not None
        assert self._bytes is not None
        place = range(len(self))[place]
        text = self._bytes[self._offsets[place] : self._offsets[place + 1]]
        return text.tobytes().decode()

    def __iter__(self) -> Iterator[str]:
        return (self[place] for place in range(len(self)))


# --- from memory ----------------------------------------------------------------------------------


def write_store(data: Data, path: str | Path) -> Path:
    """Write a graph that is in memory as a store: for graphs that grow, and for tests.

    Self-loops are dropped and repeated edges merged. ``path`` must not be there.

    *Guarantee*: none; it is the data.
    """
    from torch_geometric.utils import coalesce, remove_self_loops

    path = Path(path)
    check(data, labels=False, masks=False, record="node")
    path.mkdir(parents=True)
    nodes = len(data.x)
    edges = coalesce(remove_self_loops(data.edge_index)[0], num_nodes=nodes)
    counts = torch.bincount(edges[0], minlength=nodes)
    kind = np.int32 if nodes < 2**31 else np.int64
    arrays: dict[str, NDArray[Any]] = {
        "offsets": np.concatenate([[0], counts.cumsum(0).numpy()]).astype(np.int64),
        "receivers": edges[1].numpy().astype(kind),
    }
    if is_sparse(data.x):
        rows = as_csr(data.x)
        arrays |= {
            "x_offsets": rows.indptr.astype(np.int64),
            "x_columns": rows.indices.astype(np.int32),
            "x_values": rows.data.astype(np.float32),
        }
    else:
        x = data.x.numpy()
        arrays["x"] = x if x.dtype in (np.float16, np.float32) else x.astype(np.float32)
    arrays |= {name: data[name].numpy() for name in ("y", *MASKS) if name in data}
    if "ids" in data:
        texts = [name.encode() for name in data.ids]
        ends = np.cumsum([0, *map(len, texts)])
        arrays["id_offsets"] = ends.astype(np.int64)
        arrays["id_bytes"] = np.frombuffer(b"".join(texts), np.uint8)
    for name, array in arrays.items():
        np.save(array_path(path, name), np.ascontiguousarray(array), allow_pickle=False)
    Manifest(
        num_nodes=nodes,
        num_features=data.x.shape[1],
        num_messages=edges.shape[1],
        arrays={
            name: ArrayFacts(str(array.dtype), array.shape, sha256_of(array_path(path, name)))
            for name, array in arrays.items()
        },
        **{name: _plain(data[name]) for name in _STATED if name in data},
    ).write(path)
    return path


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
