"""Proteins that interact, in 24 tissues: a graph whose nodes have 121 labels, each yes or no.

Files are those that PyG and DGL read: of ``train``, ``valid`` and ``test`` each ``_graph.json``
(lists of nodes and links), ``_feats.npy``, ``_labels.npy`` and ``_graph_id.npy`` (a node's tissue).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch_geometric.data import Data

from graphveil.data._cache import locate, reading
from graphveil.data._ends import check_ends, go_both_ways
from graphveil.data._places import PPI
from graphveil.graph.shares import MASKS

_URL = "https://data.dgl.ai/dataset/ppi.zip"
_FOLDER, _FILES = PPI
_LABELS = 121
_PARTS = ("train", "valid", "test")
_SCALED = "how the makers of the files scaled the features, over many proteins"


def ppi(name: str, root: Path, variant: str) -> Data:
    """Proteins in tissues, as one graph whose parts are the tissues, split by tissue.

    20 tissues are to train on, 2 to validate and 2 to test. Links go both ways, each once; loops,
    and links between tissues if there were any, are left out, as PyG does. The features of the
    files are no longer a protein's own numbers: their makers scaled them over many proteins, which
    certificates name as public.
    """
    place = locate(name, root, _FOLDER, _FILES, [_URL])
    with reading(name, place):
        parts = [_read_part(place, part) for part in _PARTS]
        widths = {x.shape[1] for x, _, _ in parts}
        if len(widths) > 1:
            raise ValueError(f"features of {' and '.join(map(str, sorted(widths)))} columns")
    sizes = [len(x) for x, _, _ in parts]
    starts = np.cumsum(sizes) - sizes
    data = Data(x=torch.from_numpy(np.concatenate([x for x, _, _ in parts])))
    data.y = torch.from_numpy(np.concatenate([y for _, y, _ in parts]))
    ends = np.concatenate(
        [links + start for (_, _, links), start in zip(parts, starts, strict=True)], axis=1
    )
    data.edge_index = torch.from_numpy(ends)
    part_of = torch.from_numpy(np.repeat(np.arange(len(parts)), sizes))
    for number, mask in enumerate(MASKS):
        data[mask] = part_of == number
    data.public = [_SCALED]
    return data


def _read_part(place: Path, part: str) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Features, labels and links of the tissues to train, validate or test on."""
    x = np.load(place / f"{part}_feats.npy").astype(np.float32)
    y = np.load(place / f"{part}_labels.npy")
    tissue = np.load(place / f"{part}_graph_id.npy")
    if x.ndim != 2 or y.shape != (len(x), _LABELS) or tissue.shape != (len(x),):
        shapes = f"features {x.shape}, labels {y.shape}, graph ids {tissue.shape}"
        raise ValueError(f"{part}: {shapes}, not one row of {_LABELS} labels for each protein")
    if not np.isin(y, (0, 1)).all():
        raise ValueError(f"{part}: labels other than 0 and 1")
    links = _read_links(place / f"{part}_graph.json", len(x))
    inside = (links[0] != links[1]) & (tissue[links[0]] == tissue[links[1]])
    return x, y.astype(np.int64), go_both_ways(links[:, inside], len(x))


def _read_links(path: Path, nodes: int) -> NDArray[np.int64]:
    """(2, links): the ends of each link in a node-link text of networkx, whose ids are rows."""
    with path.open(encoding="utf-8") as file:
        content = json.load(file)
    ids = sorted(node["id"] for node in content["nodes"])
    if ids != list(range(nodes)):
        raise ValueError(f"{path.name} must have the nodes 0 to {nodes - 1}, each once")
    ends = [(link["source"], link["target"]) for link in content["links"]]
    links = np.array(ends, dtype=np.int64).reshape(-1, 2).T
    check_ends(links, nodes, path.name)
    return links
