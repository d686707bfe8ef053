"""Stores: graphs that may be larger than memory, as plain arrays in a directory.

    data = load("products-store/")           # arrays are mapped, not read
    DPGNN(epsilon=8.0).fit(split(data))

A directory with a ``manifest.json`` is a finished store: sizes, what is public of classes and
edges, and ``.npy`` arrays. ``offsets`` and ``receivers`` list whom each node sends to; ``x`` is
dense, or ``x_offsets``, ``x_columns`` and ``x_values`` are sparse rows; ``y``, the three masks and
ids may be there.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch_geometric.data import Data

from graphveil._errors import InvalidInputError
from graphveil._files import write_file
from graphveil._inputs import json_of, read_text, regular
from graphveil.graph.checks import LINES, MASKS, check
from graphveil.graph.lists import Lists
from graphveil.graph.sparse_rows import as_csr, is_sparse
from graphveil.graph.stored import Stored, StoredGraph

MANIFEST, FORMAT = "manifest.json", 1
_STATED = (
    "num_classes", "class_names", "columns", "schema", "task", "value_range", "directed",
    "unit_name", *LINES,
)  # fmt: skip
_ARRAYS = (
    "offsets", "receivers", "x", "x_offsets", "x_columns", "x_values", "y", *MASKS,
    "ids", "id_offsets", "id_bytes",
)  # fmt: skip
_NEEDED = ("num_nodes", "num_features", "num_messages", "arrays")


def is_store(path: Path) -> bool:
    """Whether a finished store is there."""
    return (path / MANIFEST).is_file()


def open_store(path: Path) -> StoredGraph:
    """The graph of a store; nothing is read but the manifest and the arrays' headers.

    What the manifest says was checked when the store was built, every array whole: edges are
    between its nodes, features are finite. Here sizes and kinds are compared with it.

    *Guarantee*: none; opening is not releasing.
    """
    manifest = _read_manifest(path)
    arrays = {name: _map_array(path, name, manifest) for name in manifest["arrays"]}
    nodes, messages = manifest["num_nodes"], manifest["num_messages"]
    offsets = _take(path, arrays, "offsets", (nodes + 1,), "i")
    receivers = _take(path, arrays, "receivers", (messages,), "i")
    if int(offsets[0]) or int(offsets[-1]) != messages:
        raise _damaged(path, f"offsets end at {int(offsets[-1])} of {messages} messages")
    x = _features(path, arrays, manifest)
    data = StoredGraph(x=x, stored=Stored(str(path), Lists(offsets, receivers), x))
    for name in ("y", *MASKS):
        if name in arrays:
            data[name] = _tensor(arrays[name])
    for name in _STATED:
        if manifest.get(name) not in (None, []):
            data[name] = manifest[name]
    if "ids" in arrays or "id_bytes" in arrays:
        data.ids = StoredIds(arrays)
    return check(data, labels=False, masks=False)


def _read_manifest(path: Path) -> dict[str, Any]:
    try:
        manifest = json_of(read_text(path / MANIFEST))
    except (OSError, ValueError) as error:
        raise _damaged(path, f"{MANIFEST} cannot be read: {error}") from None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        got = manifest.get("format") if isinstance(manifest, dict) else manifest
        raise _damaged(path, f"the format {got!r}, of which this version knows {FORMAT}")
    if missing := [name for name in _NEEDED if name not in manifest]:
        raise _damaged(path, f"no {missing[0]!r} in {MANIFEST}")
    if unknown := [name for name in manifest["arrays"] if name not in _ARRAYS]:
        raise _damaged(path, f"the unknown array {unknown[0]!r} in {MANIFEST}")
    return manifest


def _map_array(path: Path, name: str, manifest: dict[str, Any]) -> NDArray[Any]:
    """An array as it is on disk, if it is what the manifest says."""
    stated = manifest["arrays"][name]
    how: Any = None if 0 in stated["shape"] else "r"  # of nothing there is no map
    try:
        array = np.load(regular(path / f"{name}.npy"), mmap_mode=how, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise _damaged(path, f"{name}.npy cannot be read: {error}") from None
    shape, kind = tuple(stated["shape"]), np.dtype(stated["dtype"])
    if array.shape != shape or array.dtype != kind or not array.flags.c_contiguous:
        got = f"{name}.npy of {array.dtype} {array.shape}, where {MANIFEST} has {kind} {shape}"
        raise _damaged(path, got)
    return array


def _take(
    path: Path, arrays: dict[str, NDArray[Any]], name: str, shape: tuple[int, ...], kind: str
) -> NDArray[Any]:
    """An array that must be there, of this shape and kind."""
    array = arrays.get(name)
    if array is None or array.shape != shape or array.dtype.kind != kind:
        got = "no such array" if array is None else f"{array.dtype} {array.shape}"
        raise _damaged(path, f"{name}: {got}, where {shape} is wanted")
    return array


def _features(path: Path, arrays: dict[str, NDArray[Any]], manifest: dict[str, Any]) -> Tensor:
    shape = manifest["num_nodes"], manifest["num_features"]
    if not manifest.get("sparse"):
        return _tensor(_take(path, arrays, "x", shape, "f"))
    offsets = _take(path, arrays, "x_offsets", (shape[0] + 1,), "i")
    count = (int(offsets[-1]),)
    columns = _take(path, arrays, "x_columns", count, "i")
    values = _take(path, arrays, "x_values", count, "f")
    # torch wants both of one kind; the shorter array follows the longer.
    if offsets.dtype != columns.dtype and count[0] > np.iinfo(columns.dtype).max:
        raise _damaged(path, f"x_columns of {columns.dtype} for {count[0]} numbers, too many")
    starts = _tensor(offsets.astype(columns.dtype))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch calls the layout new
        return torch.sparse_csr_tensor(
            starts, _tensor(columns), _tensor(values), size=shape, check_invariants=False
        )


def _tensor(array: NDArray[Any]) -> Tensor:
    """A tensor over the same memory, which nothing here writes to."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch has no tensors for reading alone
        return torch.from_numpy(array)


def _damaged(path: Path, got: str) -> InvalidInputError:
    return InvalidInputError(
        f"{path} must be a finished store, as its {MANIFEST} says. Got {got}; build it anew."
    )


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
        np.save(path / f"{name}.npy", np.ascontiguousarray(array), allow_pickle=False)
    manifest = {
        "format": FORMAT,
        "num_nodes": nodes,
        "num_features": data.x.shape[1],
        "num_messages": edges.shape[1],
        "sparse": is_sparse(data.x),
        "arrays": {
            name: {
                "dtype": str(array.dtype),
                "shape": list(array.shape),
                "sha256": hashlib.sha256((path / f"{name}.npy").read_bytes()).hexdigest(),
            }
            for name, array in arrays.items()
        },
        **{name: data[name] for name in _STATED if name in data},
    }
    write_file(path / MANIFEST, json.dumps(manifest, indent=2).encode())
    return path
