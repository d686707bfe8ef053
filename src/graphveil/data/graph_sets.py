"""From the original files of sets of graphs to one ``Data``: TU data sets, Fingerprint, molbace.

Each graph is a record; the layout is that of :mod:`graphveil.graph.collate`. Where files are looked
for, and that nothing is written below ``root``, is said in :mod:`graphveil.data._cache`.

**TU files** are text, NAME_A.txt and so on, one line for each node, edge or graph. They are read
here and not by PyG, which loses graphs without nodes or edges at the end of a file.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import torch
from torch_geometric.data import Data
from torch_geometric.utils import coalesce, remove_self_loops

from graphveil._errors import InvalidInputError
from graphveil.data._cache import locate, reading, refuse_variant
from graphveil.data._tables import read_numbers
from graphveil.data.node_sets import put_split
from graphveil.graph.checks import check
from graphveil.graph.shares import MASKS
from graphveil.graph.subsets import select_graphs

_TU = "https://www.chrsmrrs.com/graphkerneldatasets/{}.zip"
_OGB = "https://snap.stanford.edu/ogb/data/graphproppred/csv_mol_download/{}.zip"
_MOST_LABELS = 4096  # different labels that may become columns

# How many values OGB gives each feature of an atom and of a bond, the last for what it never met.
ATOM = {
    "atomic number": 119,
    "chirality": 5,
    "degree": 12,
    "formal charge": 12,
    "hydrogens": 10,
    "radical electrons": 6,
    "hybridisation": 6,
    "aromatic": 2,
    "in a ring": 2,
}
BOND = {"type": 5, "stereo": 6, "conjugated": 2}

# Mueller et al.'s classes, and which of the file's labels each takes; other labels are left out.
FINGERPRINT = {"L": (0, 9), "R": (5, 11), "W": (4,), "A": (2, 3, 6, 10)}
WHORLS = {**FINGERPRINT, "W": (4, 7, 12), "A": (2, 3, 6)}
_CENTRE, _SPREAD = 128.0, 64.0  # of a coordinate, which is a pixel from 0 to 255


def tu(name: str, root: Path, variant: str) -> Data:
    """The TU data set called ``variant``, with every graph of its files.

    Features are the nodes' attributes, then their labels as columns of 0 and 1, or a 1 where there
    is neither; ``edge_attr`` likewise, or nothing. Loops and repeated edges are left out, as PyG
    does. The classes are the different labels of the graphs, in order, ``class_names`` their old
    numbers. Which labels occur, of nodes, edges and graphs, counts as public.
    """
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", variant):
        raise InvalidInputError(
            f"The data set 'tu:NAME' must name one of the TU data sets. Got {name!r} instead; "
            "write 'tu:MUTAG', or see https://chrsmrrs.github.io/datasets."
        )
    needed = [f"{variant}_{part}.txt" for part in ("A", "graph_indicator")]
    place = locate(name, root, Path(variant, "raw"), needed, [_TU.format(variant)])
    labels = place / f"{variant}_graph_labels.txt"
    if not labels.is_file():
        raise InvalidInputError(
            f"The data set {name!r} must have classes. Got no {labels.name} in {place} instead; "
            "sets for regression are not for this."
        )
    with reading(name, place):
        table = {"graph_labels": read_numbers(labels, np.int64)}
        for part, dtype in _TU_PARTS.items():
            if (path := place / f"{variant}_{part}.txt").is_file():
                table[part] = read_numbers(path, dtype)
        y, batch = table["graph_labels"][:, 0], table["graph_indicator"][:, 0] - 1
        ends = table["A"].T - 1
        if table["graph_labels"].shape[1] != 1 or len(ends) != 2:
            raise ValueError(f"labels {table['graph_labels'].shape}, edges {table['A'].shape}")
        x = _columns(table, "node", len(batch))
        of_edges = _columns(table, "edge", ends.shape[1])

    known, classes = np.unique(y, return_inverse=True)
    data = Data(x=torch.from_numpy(np.ones((len(batch), 1), np.float32) if x is None else x))
    data.edge_index = torch.from_numpy(np.ascontiguousarray(ends))
    attributes = None if of_edges is None else torch.from_numpy(of_edges)
    if len(batch) and ends.size and ends.min() >= 0 and ends.max() < len(batch):  # else for checks
        data.edge_index, attributes = coalesce(
            *remove_self_loops(data.edge_index, attributes), num_nodes=len(batch), reduce="mean"
        )
    if attributes is not None:
        data.edge_attr = attributes
    data.batch, data.num_graphs = torch.from_numpy(batch), len(y)
    data.y = torch.from_numpy(classes.astype(np.int64))
    data.num_classes, data.class_names = len(known), [str(label) for label in known]
    data.public = ["which labels of graphs, nodes and edges occur in the files"]
    return data


_TU_PARTS: dict[str, type] = {
    **dict.fromkeys(("A", "graph_indicator", "node_labels", "edge_labels"), np.int64),
    **dict.fromkeys(("node_attributes", "edge_attributes"), np.float32),
}


def _columns(table: dict[str, np.ndarray], of: str, rows: int) -> np.ndarray | None:
    """Attributes, then labels as columns of 0 and 1, for each node or each edge."""
    for part in (f"{of}_attributes", f"{of}_labels"):
        if part in table and len(table[part]) != rows:
            raise ValueError(f"{len(table[part])} rows of {part} for {rows} {of}s")
    columns = [table[part] for part in (f"{of}_attributes",) if part in table]
    for labels in table.get(f"{of}_labels", np.empty((rows, 0))).T:
        known, codes = np.unique(labels, return_inverse=True)
        if len(known) > _MOST_LABELS:
            raise ValueError(f"{len(known)} different labels of {of}s")
        columns.append((codes[:, None] == np.arange(len(known))).astype(np.float32))
    return np.concatenate(columns, axis=1) if columns else None


def fingerprint(name: str, root: Path, variant: str) -> Data:
    """Fingerprints as Mueller et al. take them: 1900 graphs of minutiae, in four classes.

    The classes merge the file's labels as the authors' code does: L (L, LT), R (R, RT), W and A
    (A, TA, T, AT). ``fingerprint:whorls`` has WR and WL in W, too, and AT in no class. Left out are
    prints of other labels and graphs without a node, of which the file has 651. Either is seen in
    the graph itself, so that leaving it out moves no other graph.

    ``pos`` is where a node lies, in pixels; ``x`` the same from the middle, in units of 64 pixels.
    ``edge_attr`` has the sine of an edge's angle, and the angle, as in the file.
    """
    if variant not in ("", "whorls"):
        refuse_variant("fingerprint", "':whorls' and nothing else", name)
    classes = WHORLS if variant else FINGERPRINT
    data = tu(name, root, "Fingerprint")
    with reading(name, root):
        check(data, labels=False, masks=False)
        if data.x.shape[1] != 2:
            raise ValueError(f"{data.x.shape[1]} attributes of nodes, not x and y")
    merged = {label: c for c, labels in enumerate(classes.values()) for label in labels}
    data.y = torch.tensor([merged.get(int(data.class_names[c]), -1) for c in data.y.tolist()])
    data.pos, data.x = data.x, (data.x - _CENTRE) / _SPREAD
    data.num_classes, data.class_names = len(classes), list(classes)
    sizes = torch.bincount(data.batch, minlength=data.num_graphs)
    data = select_graphs(data, (data.y >= 0) & (sizes > 0))
    data.public = ["which prints were left out, by their own label or for want of a node"]
    del data.graph_id
    return data


def molbace(name: str, root: Path, variant: str) -> Data:
    """ogbg-molbace: molecules that inhibit beta-secretase 1 or do not, with OGB's scaffold split.

    An atom is nine codes and a bond three, which OGB gives from public lists; each becomes columns
    of 0 and 1, as many as the list is long: 174 for an atom (:data:`ATOM`), 13 for a bond
    (:data:`BOND`, ``edge_attr``). Bonds go both ways. ``molbace:codes`` has the nine codes of an
    atom as they are, as nine columns.
    """
    if variant not in ("", "codes"):
        refuse_variant("molbace", "':codes' and nothing else", name)
    parts = ("node-feat", "edge-feat", "edge", "num-node-list", "num-edge-list", "graph-label")
    files = {part: f"raw/{part}.csv.gz" for part in parts}
    split = [f"split/scaffold/{part}.csv.gz" for part in ("train", "valid", "test")]
    wanted = [*files.values(), *split]
    base = locate(name, root, "ogbg_molbace", wanted, [_OGB.format("bace")])
    with reading(name, base):
        y = read_numbers(base / files.pop("graph-label"), np.float64)[:, 0]
        read = {part: read_numbers(base / file, np.int64) for part, file in files.items()}
        sizes, bonds = read["num-node-list"][:, 0], read["num-edge-list"][:, 0]
        ends, kinds = read["edge"], read["edge-feat"]
        if len(sizes) != len(y) or len(bonds) != len(y) or ends.shape != (bonds.sum(), 2):
            raise ValueError(f"{len(y)} labels, {len(sizes)} sizes, edges {ends.shape}")
        starts = np.repeat(np.cumsum(sizes) - sizes, bonds)
        if ((ends < 0) | (ends >= np.repeat(sizes, bonds)[:, None])).any():
            raise ValueError("a bond to an atom that is not in the molecule")
        x = _one_hot(read["node-feat"], ATOM, int(sizes.sum()))
        if variant == "codes":
            x = read["node-feat"].astype(np.float32)
        attributes = _one_hot(kinds, BOND, len(ends))
        data = Data(x=torch.from_numpy(x), y=torch.from_numpy(np.nan_to_num(y, nan=-1.0)).long())
        put_split(data, [base / file for file in split])
        for mask in MASKS:
            data[mask] &= data.y >= 0
    edges = torch.from_numpy(np.ascontiguousarray((ends + starts[:, None]).T))
    data.edge_index = torch.cat([edges, edges.flip(0)], dim=1)
    data.edge_attr = torch.from_numpy(np.concatenate([attributes, attributes]))
    data.batch = torch.from_numpy(np.repeat(np.arange(len(y)), sizes))
    data.num_graphs = len(y)
    return data


def _one_hot(codes: np.ndarray, sizes: dict[str, int], rows: int) -> np.ndarray:
    """Each column of codes as columns of 0 and 1."""
    if codes.shape != (rows, len(sizes)):
        raise ValueError(f"codes of shape {codes.shape}, not {(rows, len(sizes))}")
    widths = np.array(list(sizes.values()))
    outside = (codes < 0) | (codes >= widths)
    if outside.any():
        row, column = np.argwhere(outside)[0]
        raise ValueError(f"{list(sizes)[column]} {codes[row, column]} in row {row + 1}")
    result = np.zeros((rows, int(widths.sum())), dtype=np.float32)
    result[np.arange(rows)[:, None], codes + np.cumsum(widths) - widths] = 1
    return result
