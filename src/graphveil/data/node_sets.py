"""From the original files of one graph to a PyG ``Data``: PyG's sets, OGB's and Facebook100.

Where files are looked for is said in :mod:`graphveil.data._cache`. PyG's loaders keep their
processed files beside the raw ones, so they run in a temporary folder that links to the raw files.
What they build is not cached: two roots may hold two versions of a name.
"""

from __future__ import annotations

import contextlib
import io
import re
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
import torch_geometric.datasets
from torch_geometric.data import Data

from graphveil._errors import InvalidInputError
from graphveil.data._cache import PLANETOID, cache, find, locate, reading, refuse_variant
from graphveil.data._tables import read_numbers
from graphveil.graph.shares import MASKS
from graphveil.graph.sparse_rows import as_csr, as_tensor
from graphveil.rng import seeded

_REDDIT = "https://data.dgl.ai/dataset/reddit.zip"
_OGB = "https://snap.stanford.edu/ogb/data/nodeproppred/{}.zip"
_FACEBOOK_FOLDERS = ("facebook100/raw", "facebook100")
DEBIAN = ("packages.csv.gz", "links.csv.gz")
_WIDEST_DENSE = 4096  # columns; the features of wider sets are a sparse tensor
_LEAST_SECTION = 1000  # packages
_FACEBOOK_WIDTHS = (8, 2, 128, 128, 256)  # features for each of the first columns of local_info


def pyg(
    name: str,
    root: Path,
    variant: str,
    kind: str,
    folder: str,
    *urls: str,
    member: str | None = None,
    files: Sequence[str] = (),
) -> Data:
    """Load PyG's data set class ``kind``, or ``member`` of it; its raw files are in ``folder``.

    Their names are the last parts of the ``urls``, or else ``files``.
    """
    files = files or [url.rpartition("/")[2] for url in urls]
    raw = locate(name, root, Path(folder, "raw"), files, urls)
    # The class reads and builds the graph as always, but hands it over instead of saving it.
    built: list[Data] = []
    hand_over = {
        "save": staticmethod(lambda graphs, path: built.extend(graphs)),
        "load": lambda self, path: None,
    }
    dataset = type(kind, (getattr(torch_geometric.datasets, kind),), hand_over)
    with tempfile.TemporaryDirectory(prefix="graphveil-") as work:
        links = Path(work, folder, "raw")
        links.mkdir(parents=True)
        for file in files:
            _link(links / file, (raw / file).resolve())
        with reading(name, raw), contextlib.redirect_stderr(io.StringIO()):
            # A class of one data set takes the folder itself as its root.
            dataset(work, member) if member else dataset(str(links.parent))
            (data,) = built
    if data.x.shape[1] > _WIDEST_DENSE:
        data.x = as_tensor(as_csr(data.x))
    return data


def _link(link: Path, file: Path) -> None:
    try:
        link.symlink_to(file)
    except OSError:  # Windows without the right to make links
        shutil.copyfile(file, link)


def facebook100(name: str, root: Path, variant: str) -> Data:
    """One school of Facebook100: people, friendships, and the class year to predict.

    Columns do not depend on who is in the file: status, gender, major, second major and dorm are
    codes, and a code c sets column (c - 1) modulo 8, 2, 128, 128 and 256. A school's codes are
    consecutive, so that they collide only where there are more of them than columns. The code 0
    (not given) sets none. High school is left out, as in GAP. Classes are the years 2004 to 2009;
    any other year, or none, is unlabelled (-1).

    ``SCHOOL:gap`` is what GAP's authors train on: without the unlabelled, and without those who
    then have no friend left. Leaving these out reads private edges: one friendship less, and
    somebody may be gone from every release. Certificates of this variant are void and say so.
    """
    school, _, how = variant.partition(":")
    if how not in ("", "gap"):
        refuse_variant("facebook100:SCHOOL", "':gap' and nothing else", name)
    from scipy.io import loadmat

    folders = [place / part for place in (root, cache()) for part in _FACEBOOK_FOLDERS]
    schools = {path.stem: path for folder in folders[::-1] for path in folder.glob("*.mat")}
    if not school and len(schools) == 1:
        school = next(iter(schools))
    if school not in schools:
        listed = ", ".join(sorted(schools)) or "none"
        raise InvalidInputError(
            f"The data set 'facebook100:SCHOOL' must name a school whose .mat file is in "
            f"{folders[0]}. Got {name!r} instead, and found there: {listed}; get the files from "
            "https://archive.org/details/oxford-2005-facebook-matrix."
        )
    with reading(name, schools[school]):
        file = loadmat(schools[school], variable_names=["A", "local_info"])
        info, friends = np.asarray(file["local_info"]).astype(np.int64), file["A"].tocoo()
        if info.ndim != 2 or info.shape[1] != 7 or friends.shape != (len(info), len(info)):
            raise ValueError(f"A is {friends.shape}, local_info {info.shape}, not (n, n), (n, 7)")

    # The code 0 gives column -1, which no column is.
    columns = [
        (np.where(codes > 0, (codes - 1) % width, -1)[:, None] == np.arange(width))
        for codes, width in zip(info.T, _FACEBOOK_WIDTHS, strict=False)
    ]
    year = info[:, 5]
    y = np.where((year >= 2004) & (year <= 2009), year - 2004, -1)
    data = Data(x=torch.from_numpy(np.concatenate(columns, axis=1).astype(np.float32)))
    data.edge_index = torch.from_numpy(np.stack([friends.row, friends.col]).astype(np.int64))
    data.y = torch.from_numpy(y)
    if how == "gap":
        data = data.subgraph(data.y >= 0)
        friendless = torch.bincount(data.edge_index.flatten(), minlength=len(data.y)) == 0
        data = data.subgraph(~friendless)
        data.void_because = [
            "people without a friend were left out of this data, which reads private edges: one "
            "edge less, and somebody is gone from it"
        ]
    return data


def planetoid(name: str, root: Path, variant: str, folder: str) -> Data:
    """A citation graph of Planetoid. ``NAME:full``: whoever is not in validation or test trains.

    That is how Igamberdiev & Habernal split them, and PyG's split of that name: 500 validation and
    1000 test nodes as Planetoid has them, and 1208 (Cora), 1827 (CiteSeer), 18217 (PubMed) others.
    The test nodes are not drawn from the ids, so that the split counts as public by assumption.
    """
    if variant not in ("", "full"):
        refuse_variant(folder.lower(), "':full' and nothing else", name)
    parts = ("x", "tx", "allx", "y", "ty", "ally", "graph", "test.index")
    urls = [f"{PLANETOID}/ind.{folder.lower()}.{part}" for part in parts]
    data = pyg(name, root, variant, "Planetoid", folder, *urls, member=folder)
    if variant == "full":
        data.train_mask = ~(data.val_mask | data.test_mask)
    return data


def reddit(name: str, root: Path, variant: str) -> Data:
    """Posts of Reddit, joined where somebody commented on both."""
    files = ("reddit_data.npz", "reddit_graph.npz")
    return pyg(name, root, variant, "Reddit", "Reddit", _REDDIT, files=files)


def reddit_sample(name: str, root: Path, variant: str) -> Data:
    """A tenth of Reddit's posts, drawn from their ids by a public seed: ``NAME:SEED``, 0 if none.

    Posts keep the part of the split they had. Igamberdiev & Habernal draw a tenth of each class,
    which reads labels; this does not.
    """
    if variant and not re.fullmatch(r"[0-9]{1,18}", variant):
        refuse_variant("reddit-sample", "':SEED', a whole number", name)
    data = reddit(name, root, "")
    size = data.num_nodes
    order = seeded(int(variant or 0), "reddit-sample").generator().permutation(size)
    drawn = torch.zeros(size, dtype=torch.bool)
    drawn[torch.from_numpy(order[: max(1, (size + 5) // 10)])] = True
    return data.subgraph(drawn)


def ogb(
    name: str, root: Path, variant: str, split: str, *, papers: bool = False, mirror: bool = False
) -> Data:
    """A node property prediction set of OGB, from its own csv.gz files, with OGB's split.

    ``papers`` reduces ogbn-mag to its papers and the citations between them; ``mirror`` adds each
    edge's other direction, for the undirected sets. ``NAME:undirected`` makes a directed one
    undirected, each edge once in either direction, as Daigavane et al. train on them. OGB's loader
    is not used: it keeps a pickle, reads it with a bare ``torch.load`` and asks the network for its
    own newest version.
    """
    name, _, _ = name.partition(":")
    if variant not in ("", "undirected"):
        refuse_variant(name, "':undirected' and nothing else", f"{name}:{variant}")
    kind, folders = "", ("", "", "")
    if papers:
        kind = "/paper"
        folders = ("node-feat/paper/", "node-label/paper/", "relations/paper___cites___paper/")
    files = zip(folders, ("node-feat", "node-label", "edge"), strict=True)
    raw = [f"raw/{folder}{file}.csv.gz" for folder, file in files]
    masks = [f"split/{split}{kind}/{part}.csv.gz" for part in ("train", "valid", "test")]
    url = _OGB.format(name.removeprefix("ogbn-"))
    base = locate(name, root, name.replace("-", "_"), [*raw, *masks], [url])
    with reading(name, base):
        x = read_numbers(base / raw[0], np.float32)
        y = read_numbers(base / raw[1], np.float64)[:, 0]
        edges = read_numbers(base / raw[2], np.int64)
        if len(x) != len(y) or edges.shape[1] != 2:
            raise ValueError(f"features {x.shape}, labels {y.shape}, edges {edges.shape}")
        data = Data(x=torch.from_numpy(x), y=torch.from_numpy(np.nan_to_num(y, nan=-1.0)).long())
        put_split(data, [base / file for file in masks])
    if variant == "undirected":
        edges = np.unique(np.concatenate([edges, edges[:, ::-1]]), axis=0)
    elif mirror:
        edges = np.concatenate([edges, edges[:, ::-1]])
    data.edge_index = torch.from_numpy(np.ascontiguousarray(edges.T))
    return data


def debian(name: str, root: Path, variant: str) -> Data:
    """Debian's packages: the words of a one-line description, and the packages depended on.

    Built by :func:`graphveil.data.text.build` with hashed words, in seconds; links go both ways.
    The classes are the sections with 1,000 packages or more, which certificates say is declared
    public, and so is who was left out with the others.
    """
    from graphveil.data import text

    place = find(root, Path("debian"), DEBIAN)
    if place is None:
        raise InvalidInputError(
            f"The data set 'debian' is not in {root / 'debian'} (looked for {DEBIAN[0]} and "
            f"{DEBIAN[1]}) and not downloaded; make the tables from Debian's package list, or pass "
            "the root folder that holds them."
        )
    with reading(name, place, passing=(InvalidInputError,)):
        data = text.build(
            place / DEBIAN[0],
            place / DEBIAN[1],
            "hash",
            label="section",
            classes="public",
            min_class=_LEAST_SECTION,
        )
    del data.ids
    return data


def put_split(data: Data, files: Sequence[Path]) -> None:
    """Give ``data`` the masks of OGB's three lists of ids."""
    for mask, file in zip(MASKS, files, strict=True):
        data[mask] = torch.zeros(len(data.y), dtype=torch.bool)
        data[mask][torch.from_numpy(read_numbers(file, np.int64)[:, 0])] = True
