"""PPI: small files of the same shape, read as PyG reads them."""

import io
import json
import zipfile

import networkx as nx
import numpy as np
import pytest
import torch
from networkx.readwrite import json_graph
from torch_geometric.datasets import PPI

from graphveil._errors import InvalidInputError
from graphveil.data import CATALOG, sizes_of
from graphveil.data.ppi import ppi
from graphveil.graph.shares import MASKS

TISSUES = {"train": {1: 5, 2: 4, 3: 6}, "valid": {21: 4}, "test": {22: 3, 23: 5}}


def write_part(folder, part, tissues, seed, directed=False):
    rng = np.random.default_rng(seed)
    of = np.repeat(list(tissues), list(tissues.values()))
    graph = nx.DiGraph() if directed else nx.Graph()
    graph.add_nodes_from(range(len(of)))
    start = 0
    for size in tissues.values():
        for a in range(size - 1):
            graph.add_edge(start + a, start + a + 1)
            if directed:
                graph.add_edge(start + a + 1, start + a)
        graph.add_edge(start, start)
        start += size
    text = json.dumps(json_graph.node_link_data(graph, edges="links"))
    (folder / f"{part}_graph.json").write_text(text)
    np.save(folder / f"{part}_feats.npy", rng.normal(size=(len(of), 50)))
    np.save(folder / f"{part}_labels.npy", rng.integers(0, 2, size=(len(of), 121)))
    np.save(folder / f"{part}_graph_id.npy", of)


@pytest.fixture
def folder(root):
    folder = root / "PPI" / "raw"
    folder.mkdir(parents=True)
    for seed, (part, tissues) in enumerate(TISSUES.items()):
        write_part(folder, part, tissues, seed)
    return folder


def refusal(root):
    with pytest.raises(InvalidInputError) as caught:
        ppi("ppi", root, "")
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_tissues_are_one_graph_split_by_tissue(root, folder):
    data = ppi("ppi", root, "")
    assert data.x.shape == (27, 50)
    assert data.x.dtype == torch.float32
    assert (data.y.shape, data.y.dtype) == ((27, 121), torch.long)
    assert [int(data[mask].sum()) for mask in MASKS] == [15, 4, 8]
    assert data.train_mask[:15].all()
    assert data.test_mask[19:].all()
    assert data.is_undirected()
    assert not data.has_self_loops()
    assert data.num_edges == 2 * sum(
        size - 1 for part in TISSUES.values() for size in part.values()
    )
    of = torch.tensor([0] * 5 + [1] * 4 + [2] * 6 + [3] * 4 + [4] * 3 + [5] * 5)
    assert (of[data.edge_index[0]] == of[data.edge_index[1]]).all()
    assert "batch" not in data
    assert any("scaled" in line for line in data.public)


def test_pyg_reads_the_same(root, folder):
    data = ppi("ppi", root, "")
    parts = zip(MASKS, ("train", "val", "test"), strict=True)
    for mask, part in parts:
        graphs = list(PPI(str(root / "PPI"), split=part))
        ours = data.subgraph(data[mask])
        assert torch.equal(ours.x, torch.cat([graph.x for graph in graphs]))
        assert torch.equal(ours.y, torch.cat([graph.y for graph in graphs]).long())
        starts = np.cumsum([0, *(graph.num_nodes for graph in graphs)])
        edges = [
            (a + start, b + start)
            for graph, start in zip(graphs, starts, strict=False)
            for a, b in graph.edge_index.t().tolist()
        ]
        assert sorted(map(tuple, ours.edge_index.t().tolist())) == sorted(edges)


def test_links_listed_both_ways_are_the_same_graph(root, folder):
    before = ppi("ppi", root, "")
    for seed, (part, tissues) in enumerate(TISSUES.items()):
        write_part(folder, part, tissues, seed, directed=True)
    assert torch.equal(ppi("ppi", root, "").edge_index, before.edge_index)


def test_a_protein_moves_no_other_row(root, folder):
    before = ppi("ppi", root, "")
    for file in ("feats", "labels"):
        values = np.load(folder / f"train_{file}.npy")
        values[3] = 1 - values[3]
        np.save(folder / f"train_{file}.npy", values)
    after = ppi("ppi", root, "")
    others = torch.arange(27) != 3
    assert torch.equal(before.x[others], after.x[others])
    assert torch.equal(before.y[others], after.y[others])
    assert not torch.equal(before.x[3], after.x[3])
    assert torch.equal(before.edge_index, after.edge_index)


def test_absent_and_damaged_files_are_one_line(root, folder):
    whole = (folder / "train_graph.json").read_text()
    for text, reason in (
        (whole[:100], "JSONDecodeError"),
        ("[]", "cannot be read"),
        (whole.replace('"id": 14', '"id": 15'), "0 to 14, each once"),
        (whole.replace('"target": 14', '"target": 99'), "not there"),
    ):
        (folder / "train_graph.json").write_text(text)
        assert reason in refusal(root)
    (folder / "train_graph.json").write_text(whole)
    labels = np.load(folder / "test_labels.npy")
    for wrong, reason in (
        (labels[:, :120], "121 labels"),
        (labels[:-1], "121 labels"),
        (labels + 1, "other than 0 and 1"),
    ):
        np.save(folder / "test_labels.npy", wrong)
        assert reason in refusal(root)
    np.save(folder / "test_labels.npy", labels)
    np.save(folder / "test_feats.npy", np.ones((8, 49)))
    assert "49 and 50 columns" in refusal(root)
    np.save(folder / "test_feats.npy", np.array([{}], dtype=object), allow_pickle=True)
    assert "cannot be read" in refusal(root)
    (folder / "test_feats.npy").unlink()
    assert "could not be downloaded" in refusal(root)


def test_it_is_downloaded_as_pyg_does(root, folder, tmp_path, serve):
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        for path in folder.iterdir():
            file.write(path, path.name)
            path.unlink()
    asked = serve(lambda url: archive.getvalue())
    assert len(ppi("ppi", root, "").x) == 27
    assert asked == ["https://data.dgl.ai/dataset/ppi.zip"]
    assert not list(folder.iterdir())


def test_the_catalog_knows_its_sizes():
    sizes = sizes_of("ppi")
    assert sum(sizes.split) == sizes.num_records == 56_944
    assert (sizes.num_features, sizes.num_classes) == (50, 121)
    assert CATALOG["ppi"].task == "multilabel"
