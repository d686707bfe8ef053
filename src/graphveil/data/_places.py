"""Which files of a data set must be there, without reading one: torch is not loaded.

Loaders look for the same files; a test compares what they ask for with what is said here.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from graphveil.data._cache import cache
from graphveil.data._variants import parse_graphland, parse_relbench

Files = tuple[str, tuple[str, ...]]  # a folder, and patterns of files that must be in it

_NPZ = {
    "cora-ml": ("cora_ml/raw", ("cora_ml.npz",)),
    "cs": ("CS/raw", ("ms_academic_cs.npz",)),
    "physics": ("Physics/raw", ("ms_academic_phy.npz",)),
    "computers": ("Computers/raw", ("amazon_electronics_computers.npz",)),
    "photo": ("Photo/raw", ("amazon_electronics_photo.npz",)),
    "facebook-pages": ("FacebookPagePage/raw", ("facebook.npz",)),
    "reddit": ("Reddit/raw", ("reddit_data.npz", "reddit_graph.npz")),
    "debian": ("debian", ("packages.csv.gz", "links.csv.gz")),
}
_PPI_PARTS = ("feats.npy", "graph_id.npy", "graph.json", "labels.npy")
PPI: Files = (
    "PPI/raw",
    tuple(f"{part}_{file}" for part in ("train", "valid", "test") for file in _PPI_PARTS),
)
_NPZ["ppi"] = PPI
_NPZ["reddit-sample"] = _NPZ["reddit"]
_PLANETOID = {"cora": "Cora", "citeseer": "CiteSeer", "pubmed": "PubMed"}
_OGB = {"ogbn-arxiv": "time", "ogbn-products": "sales_ranking", "ogbn-mag": "time/paper"}
_GENERATED = ("social", "hospital", "shop", "synthetic-er", "synthetic-citations")


def is_generated(name: str) -> bool:
    """Whether a data set needs no files."""
    return name in _GENERATED


def is_there(name: str, variant: str, root: Path) -> bool:
    """Whether a data set is generated, or one set of its files is below ``root`` or cached."""
    if is_generated(name):
        return True
    return any(
        all(any(place.joinpath(folder).glob(pattern)) for pattern in patterns)
        for place in (root, cache())
        for folder, patterns in files_of(name, variant)
    )


def files_of(name: str, variant: str) -> Iterable[Files]:
    """The files of a data set; of several such sets, one is enough."""
    if name in _NPZ:
        return [_NPZ[name]]
    if name in _PLANETOID:
        parts = ("x", "tx", "allx", "y", "ty", "ally", "graph", "test.index")
        return [(f"{_PLANETOID[name]}/raw", tuple(f"ind.{name}.{part}" for part in parts))]
    if name in _OGB:
        return [_ogb(name)]
    return _OTHERS[name](variant)


def _ogb(name: str) -> Files:
    folders = ("", "", "")
    if name == "ogbn-mag":
        folders = ("node-feat/paper/", "node-label/paper/", "relations/paper___cites___paper/")
    parts = zip(folders, ("node-feat", "node-label", "edge"), strict=True)
    split = (f"split/{_OGB[name]}/{part}.csv.gz" for part in ("train", "valid", "test"))
    raw = (f"raw/{folder}{part}.csv.gz" for folder, part in parts)
    return name.replace("-", "_"), (*raw, *split)


def _school(variant: str) -> list[Files]:
    school = variant.partition(":")[0] or "*"
    return [(folder, (f"{school}.mat",)) for folder in ("facebook100/raw", "facebook100")]


def _pokec(variant: str) -> list[Files]:
    more = ("cc.sk.300.vec",) if variant == "vectors" else ()
    ends = (".txt", ".txt.gz")
    return [
        ("Pokec/raw", (f"soc-pokec-profiles{end}", f"soc-pokec-relationships{end}", *more))
        for end in ends
    ]


def _tu(variant: str) -> list[Files]:
    parts = ("A", "graph_indicator")
    return [(f"{variant}/raw", tuple(f"{variant}_{part}.txt" for part in parts))]


def _molbace(variant: str) -> list[Files]:
    parts = ("node-feat", "edge-feat", "edge", "num-node-list", "num-edge-list", "graph-label")
    split = (f"split/scaffold/{part}.csv.gz" for part in ("train", "valid", "test"))
    return [("ogbg_molbace", (*(f"raw/{part}.csv.gz" for part in parts), *split))]


def _ecg(variant: str) -> list[Files]:
    if variant.partition(":")[0] == "cpsc":
        # The last of its 6,877 records: some of them load, and are not the data set.
        return [("CPSC2018", ("**/A6877.hea",))]
    return [("PTBXL", ("ptbxl_2s5_1987.npz",))]


def graphland_files(variant: str) -> list[Files]:
    """The tables of a data set of GraphLand, as it is unpacked and as PyG keeps it."""
    if (parsed := parse_graphland(variant)) is None:
        return []
    files = ("info.yaml", "features.csv", "targets.csv", "edgelist.csv")
    split = f"split_masks_{parsed.split}.csv"
    name = parsed.name
    return [(folder, (*files, split)) for folder in (f"{name}/raw/{name}", name)]


def _relbench(variant: str) -> list[Files]:
    if (parsed := parse_relbench(variant)) is None:
        return []
    tables = (f"tasks/{parsed.task}/{part}.parquet" for part in ("train", "val", "test"))
    return [(parsed.database, ("db/*.parquet", *tables))]


def _find_files(folder: str, *files: str) -> list[Files]:
    return [(folder, tuple(f"{file}{end}" for file in files)) for end in ("", ".gz")]


def _amazon(variant: str) -> list[Files]:
    return _find_files("amazon", "com-amazon.ungraph.txt" if variant else "Amazon0302.txt")


_OTHERS = {
    "movielens-100k": lambda _: _find_files("ml-100k", "u.data", "u.item", "u.user"),
    "movielens-1m": lambda _: _find_files("ml-1m", "ratings.dat", "movies.dat", "users.dat"),
    "lastfm": lambda _: _find_files("hetrec2011-lastfm-2k", "user_artists.dat", "artists.dat"),
    "amazon-copurchase": _amazon,
    "graphland": graphland_files,
    "relbench": _relbench,
    "facebook100": _school,
    "pokec": _pokec,
    "tu": _tu,
    "fingerprint": lambda variant: _tu("Fingerprint"),
    "molbace": _molbace,
    "ecg": _ecg,
}
