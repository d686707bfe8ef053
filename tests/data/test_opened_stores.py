"""A store is opened without reading it, says what it is, and is refused in one line if damaged."""

import json
import pickle

import numpy as np
import pytest
import torch

import graphveil
from graphveil import InvalidInputError
from graphveil.data.store import write_store
from graphveil.graph.checks import check
from graphveil.graph.columns import put_in_order
from graphveil.graph.splits import separate, split
from graphveil.methods.plan import Facts
from graphveil.privacy.ledger_state import keyed_hash
from graphveil.runs.fingerprints import fingerprint_of


@pytest.fixture(scope="module")
def graph():
    data = split(graphveil.load("social"), seed=1)
    nodes = 500
    small = data.subgraph(torch.arange(nodes))
    small.num_classes, small.directed = data.num_classes, False
    small.class_names = [f"kind {number}" for number in range(data.num_classes)]
    small.columns = [f"column {number}" for number in range(data.x.shape[1])]
    small.ids = [f"größe-{number}" for number in range(nodes)]
    return small


@pytest.fixture
def store(graph, tmp_path):
    return write_store(graph, tmp_path / "store")


def test_a_store_says_what_the_graph_says(graph, store):
    data = graphveil.load(store)
    assert Facts.of(data) == Facts.of(graph)
    for name in ("x", "y", "train_mask", "val_mask", "test_mask"):
        assert torch.equal(data[name], graph[name])
    for name in ("class_names", "columns", "directed", "num_classes"):
        assert data[name] == graph[name]
    assert list(data.ids) == graph.ids
    assert data.ids[3:5] == graph.ids[3:5]
    assert data.ids[-1] == graph.ids[-1]
    assert data.num_nodes == len(graph.x)
    assert "500" in repr(data)


def test_features_stay_on_disk(store):
    """What is written to the file is there in the tensor: it was not copied."""
    data = graphveil.load(store)
    again = np.load(store / "x.npy", mmap_mode="r+")
    again[7, 3] = 123.0
    again.flush()
    assert data.x[7, 3] == 123.0


def test_ids_may_be_numbers(graph, tmp_path):
    plain = graph.clone()
    del plain.ids
    path = write_store(plain, tmp_path / "store")
    np.save(path / "ids.npy", np.arange(500) * 10)
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["arrays"]["ids"] = {"dtype": "int64", "shape": [500], "sha256": ""}
    (path / "manifest.json").write_text(json.dumps(manifest))
    assert graphveil.load(path).ids[2] == "20"


@pytest.mark.parametrize("sparse", [False, True])
def test_fingerprints_are_those_of_the_graph(graph, tmp_path, sparse):
    data = graph.clone()
    data.x = data.x.to_sparse_csr() if sparse else data.x
    stored = graphveil.load(write_store(data, tmp_path / "store"))
    key = "ab" * 32
    assert fingerprint_of(stored, keyed_hash(key)) == fingerprint_of(data, keyed_hash(key))
    data.y = data.y.clone()
    data.y[0] = (data.y[0] + 1) % 2
    assert fingerprint_of(stored, keyed_hash(key)) != fingerprint_of(data, keyed_hash(key))


def test_a_graph_without_edges(graph, tmp_path):
    data = graph.clone()
    data.edge_index = data.edge_index[:, :0]
    stored = graphveil.load(write_store(data, tmp_path / "store"))
    assert stored.stored.lists.num_messages == 0
    assert stored.stored.lists.transposed.num_messages == 0


def test_labels_of_a_store_are_checked(graph, tmp_path):
    path = write_store(graph, tmp_path / "store")
    np.load(path / "y.npy", mmap_mode="r+")[0] = 99
    with pytest.raises(InvalidInputError, match="99 at node 0"):
        graphveil.load(path)


def test_new_features_are_checked(store):
    """Those of the store were; what somebody put in their place was not."""
    data = graphveil.load(store)
    data.x = torch.full(data.x.shape, torch.nan)
    with pytest.raises(InvalidInputError, match="finite"):
        check(data)


def damage(path, how):
    manifest = json.loads((path / "manifest.json").read_text())
    if how == "format":
        manifest["format"] = 7
    elif how == "absent":
        (path / "receivers.npy").unlink()
    elif how == "shape":
        manifest["arrays"]["x"]["shape"] = [1, 2]
    elif how == "cut":
        whole = (path / "x.npy").read_bytes()
        (path / "x.npy").write_bytes(whole[: len(whole) // 2])
    elif how == "pickle":
        (path / "y.npy").write_bytes(pickle.dumps([1, 2]))
    elif how == "outside":
        manifest["arrays"]["../x"] = manifest["arrays"]["x"]
    elif how == "offsets":
        np.load(path / "offsets.npy", mmap_mode="r+")[-1] += 1
    elif how == "field":
        del manifest["num_nodes"]
    text = "{" if how == "text" else json.dumps(manifest)
    (path / "manifest.json").write_text(text)


@pytest.mark.parametrize(
    "how", ["format", "absent", "shape", "cut", "pickle", "outside", "offsets", "field", "text"]
)
def test_a_damaged_store_is_refused_in_one_line(store, how):
    damage(store, how)
    with pytest.raises(InvalidInputError, match="build the store again") as refused:
        graphveil.load(store)
    assert "\n" not in str(refused.value)
    assert str(store) in str(refused.value)


def test_what_reads_all_edges_is_refused(store):
    data = graphveil.load(store)
    for ask in (lambda: data.edge_index, lambda: data["edge_index"]):
        with pytest.raises(InvalidInputError, match="a block of nodes at a time"):
            ask()
    with pytest.raises(InvalidInputError, match="in memory"):
        separate(data)
    with pytest.raises(InvalidInputError, match="another order"):
        put_in_order(data, data.columns[::-1], "this")
    assert put_in_order(data, data.columns, "this") is data


def test_what_is_stated_of_a_store_stands_in_it(store):
    with pytest.raises(InvalidInputError, match="'classes'"):
        graphveil.load(store, classes=6)
    with pytest.raises(InvalidInputError, match="'directed'"):
        graphveil.load(store, directed=True)
    assert graphveil.load(store, directed=False).directed is False


def test_masks_are_drawn_as_of_the_graph(graph, store):
    one, other = split(graph, seed=9), split(graphveil.load(store), seed=9)
    assert torch.equal(one.train_mask, other.train_mask)
    assert other.x.data_ptr() != one.x.data_ptr()
