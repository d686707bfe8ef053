"""Tables for stores, and whether a store holds what is loaded in memory."""

from itertools import pairwise

import numpy as np
import pandas as pd
import torch

from graphveil.data.store_format import (
    BUILDING,
    MASK_ARRAYS,
    Manifest,
    array_path,
    open_array,
    verify,
)
from graphveil.graph.checks import OF_ALL
from graphveil.graph.sparse_rows import as_csr, is_sparse


def frames(num_nodes=60, num_lines=300, seed=0, text=True):
    """Nodes with names for ids, three named classes, a split and two features; and edges."""
    rng = np.random.default_rng(seed)
    ids = rng.permutation(num_nodes) * 7 + 3
    ids = [f"user {i:x} é" for i in ids] if text else ids
    nodes = pd.DataFrame(
        {
            "id": ids,
            "label": rng.choice(["red", "blue", "green", None], num_nodes),
            "split": rng.choice(["train", "val", "test", None], num_nodes),
            "age": rng.integers(0, 99, num_nodes),
            "weight": rng.normal(size=num_nodes),
        }
    )
    nodes.loc[nodes["label"].isna() & (nodes["split"] == "train"), "split"] = "test"
    ends = {name: rng.choice(ids, num_lines) for name in ("source", "target")}
    return nodes, pd.DataFrame(ends)


def write_tables(folder, nodes, edges, kind="csv"):
    folder.mkdir(exist_ok=True)
    for name, table in (("nodes", nodes), ("edges", edges)):
        if kind == "csv":
            table.to_csv(folder / f"{name}.csv", index=False)
        else:
            table.to_parquet(folder / f"{name}.parquet", index=False)
    return folder


def ids_of(out, manifest):
    if "ids" in manifest.arrays:
        return [str(number) for number in open_array(out, "ids", manifest)]
    if "id_bytes" not in manifest.arrays:
        return None
    offsets = open_array(out, "id_offsets", manifest)
    content = bytes(open_array(out, "id_bytes", manifest))
    return [content[a:b].decode() for a, b in pairwise(offsets)]


def messages_of(data):
    """The messages of a graph in memory: in order, each once, without self-loops."""
    pairs = np.unique(data.edge_index.numpy().T, axis=0).reshape(-1, 2)
    return pairs[pairs[:, 0] != pairs[:, 1]]


def features_of(out, manifest):
    if not manifest.sparse:
        return np.array(open_array(out, "x", manifest))
    parts = [
        np.array(open_array(out, f"x_{n}", manifest)) for n in ("values", "columns", "offsets")
    ]
    shape = manifest.num_nodes, manifest.num_features
    from scipy import sparse

    return sparse.csr_array(tuple(parts), shape=shape).toarray()


def same(out, data, dtype=np.float32):
    """Assert that the store ``out`` holds ``data``, bit for bit."""
    manifest = verify(out)
    x = as_csr(data.x).toarray() if is_sparse(data.x) else data.x.numpy()
    stored = features_of(out, manifest)
    assert stored.dtype == dtype
    assert stored.tobytes() == x.astype(dtype).tobytes()
    offsets, receivers = (np.array(open_array(out, n, manifest)) for n in ("offsets", "receivers"))
    senders = np.repeat(np.arange(manifest.num_nodes), np.diff(offsets))
    assert np.array_equal(np.stack([senders, receivers], 1), messages_of(data))
    for name in ("y", *MASK_ARRAYS):
        assert (name in manifest.arrays) == (name in data)
        if name in data:
            array = torch.from_numpy(np.array(open_array(out, name, manifest)))
            assert array.dtype == data[name].dtype
            assert torch.equal(array.nan_to_num(-9), data[name].nan_to_num(-9))
    assert ids_of(out, manifest) == getattr(data, "ids", None)
    for name in OF_ALL:
        if name.startswith("owner_"):
            continue  # a store holds one row of each owner, and is about rows
        default = [] if name in ("public", "unprotected", "void_because") else None
        stated = getattr(data, name, default)
        stated = list(stated) if isinstance(stated, tuple) else stated
        assert getattr(manifest, name) == stated, name
    names = {path.name for path in out.iterdir()}
    assert names == {"manifest.json", *(f"{name}.npy" for name in manifest.arrays)}
    assert not (out / BUILDING).exists()
    return manifest


def contents(out):
    """The bytes of every array of a store, and its manifest without the name of its source."""
    manifest = Manifest.read(out)
    files = {name: array_path(out, name).read_bytes() for name in manifest.arrays}
    return files | {"manifest": {**manifest.to_dict(), "source": None}}
