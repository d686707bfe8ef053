"""From a data set's original files to a PyG ``Data``.

Files are looked for below ``root`` and then in the cache, in the folders PyG and OGB give them.
What is in neither place is downloaded into the cache. **Nothing is ever written below** ``root``:
PyG's loaders keep their processed files beside the raw ones, so they run in a temporary folder that
links to the raw files. What they build is not cached: two roots may hold two versions of a name.
"""

from __future__ import annotations

import contextlib
import gzip
import html
import io
import os
import re
import shutil
import tempfile
import urllib.request
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import pandas as pd

from graphveil._errors import InvalidInputError, UnprovenError

if TYPE_CHECKING:
    from torch_geometric.data import Data

_OGB = "https://snap.stanford.edu/ogb/data/nodeproppred/{}.zip"
_TIMEOUT = 30  # seconds without an answer


def cache() -> Path:
    """Where downloads go: ``$XDG_CACHE_HOME/graphveil`` or ``~/.cache/graphveil``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "graphveil"


def pyg(
    name: str, root: Path, kind: str, member: str | None, folder: str, files: list[str]
) -> Data:
    """Load ``member`` of PyG's data set class ``kind``; its raw ``files`` are in ``folder``."""
    import torch_geometric.datasets

    raw = _find(root, Path(folder, "raw"), files)
    # The class reads and builds the graph as always, but hands it over instead of saving it.
    built: list[Data] = []
    hand_over = {
        "save": staticmethod(lambda graphs, path: built.extend(graphs)),
        "load": lambda self, path: None,
    }
    dataset = type(kind, (getattr(torch_geometric.datasets, kind),), hand_over)
    with _workplace(None if raw else cache()) as work:
        if raw:
            (work / folder / "raw").mkdir(parents=True)
            for file in files:
                _link(work / folder / "raw" / file, (raw / file).resolve())
        try:
            with contextlib.redirect_stderr(io.StringIO()):
                # A class of one data set takes the folder itself as its root.
                dataset(str(work), member) if member else dataset(str(work / folder))
            (data,) = built
        except Exception as error:  # pickle, zip, value, network: PyG passes all of them on
            if raw:
                _unreadable(name, raw, error)
            _absent(name, root, f"{folder}/raw/{files[0]}", error)
        if not raw:
            _keep(work / folder, cache() / folder)
    return data


def facebook100(name: str, root: Path, school: str) -> Data:
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
    school, _, how = school.partition(":")
    if how not in ("", "gap"):
        raise InvalidInputError(
            "The data set 'facebook100:SCHOOL' may be followed by ':gap' and nothing else. Got "
            f"{name!r} instead."
        )
    import torch
    from scipy.io import loadmat
    from torch_geometric.data import Data

    folders = [place / part for place in (root, cache()) for part in _FACEBOOK_FOLDERS]
    found = {path.stem: path for folder in folders[::-1] for path in folder.glob("*.mat")}
    if not school and len(found) == 1:
        school = next(iter(found))
    if school not in found:
        listed = ", ".join(sorted(found)) or "none"
        raise InvalidInputError(
            f"The data set 'facebook100:SCHOOL' must name a school whose .mat file is in "
            f"{folders[0]}. Got {name!r} instead, and found there: {listed}; get the files from "
            "https://archive.org/details/oxford-2005-facebook-matrix."
        )
    try:
        file = loadmat(found[school], variable_names=["A", "local_info"])
        info, friends = np.asarray(file["local_info"]).astype(np.int64), file["A"].tocoo()
        if info.ndim != 2 or info.shape[1] != 7 or friends.shape != (len(info), len(info)):
            raise ValueError(f"A is {friends.shape}, local_info {info.shape}, not (n, n), (n, 7)")
    except Exception as error:  # loadmat and odd contents raise many kinds
        _unreadable(name, found[school], error)

    blocks = []
    for column, width in _FACEBOOK_COLUMNS.items():
        codes = info[:, column]
        block = np.zeros((len(info), width), dtype=np.float32)
        given = np.flatnonzero(codes > 0)
        block[given, (codes[given] - 1) % width] = 1
        blocks.append(block)
    year = info[:, 5]
    y = np.where((year >= 2004) & (year <= 2009), year - 2004, -1)
    edge_index = torch.from_numpy(np.stack([friends.row, friends.col]).astype(np.int64))
    data = Data(
        x=torch.from_numpy(np.concatenate(blocks, axis=1)),
        edge_index=edge_index,
        y=torch.from_numpy(y),
    )
    if how == "gap":
        data = data.subgraph(data.y >= 0)
        friendless = torch.bincount(data.edge_index.flatten(), minlength=len(data.y)) == 0
        data = data.subgraph(~friendless)
        data.void_because = [
            "people without a friend were left out of this data, which reads private edges: one "
            "edge less, and somebody is gone from it"
        ]
    return data


def planetoid(name: str, root: Path, folder: str, variant: str) -> Data:
    """A citation graph of Planetoid. ``NAME:full``: whoever is not in validation or test trains.

    That is how Igamberdiev & Habernal split them, and PyG's split of that name: 500 validation and
    1000 test nodes as Planetoid has them, and 1208 (Cora), 1827 (CiteSeer), 18217 (PubMed) others.
    The test nodes are not drawn from the ids, so that the split counts as public by assumption.
    """
    if variant not in ("", "full"):
        raise InvalidInputError(
            f"The data set {folder.lower()!r} may be followed by ':full' and nothing else. Got "
            f"{name!r} instead."
        )
    parts = ("x", "tx", "allx", "y", "ty", "ally", "graph", "test.index")
    files = [f"ind.{folder.lower()}.{part}" for part in parts]
    data = pyg(name, root, "Planetoid", folder, folder, files)
    if variant == "full":
        data.train_mask = ~(data.val_mask | data.test_mask)
    return data


def reddit_sample(name: str, root: Path, variant: str) -> Data:
    """A tenth of Reddit's posts, drawn from their ids by a public seed: ``NAME:SEED``, 0 if none.

    Posts keep the part of the split they had. Igamberdiev & Habernal draw a tenth of each class,
    which reads labels; this does not.
    """
    import torch

    from graphveil.rng import seeded

    if variant and not re.fullmatch(r"[0-9]{1,18}", variant):
        raise InvalidInputError(
            "The data set 'reddit-sample' may be followed by ':SEED', a whole number. Got "
            f"{name!r} instead."
        )
    data = pyg(name, root, "Reddit", None, "Reddit", ["reddit_data.npz", "reddit_graph.npz"])
    size = data.num_nodes
    order = seeded(int(variant or 0), "reddit-sample").generator().permutation(size)
    drawn = torch.zeros(size, dtype=torch.bool)
    drawn[torch.from_numpy(order[: max(1, (size + 5) // 10)])] = True
    return data.subgraph(drawn)


def pokec(name: str, root: Path, variant: str) -> Data:
    """Users of Pokec who keep a cat or a dog, as Igamberdiev & Habernal choose them.

    Cat people are those whose profile says exactly that under pets, and so dog people; of each the
    10,000 with the fullest profiles are taken, in the order of their ids. Who they are reads
    everybody's profile; it is declared public, and certificates say so. The text is what they wrote
    in 48 columns, from field of work on; *not* in pets, which is the label (the authors' code
    leaves it in). Friendships go one way. The features are said by the name, see
    :func:`graphveil.data.text.build`:

    ``pokec`` or ``pokec:hash``; ``pokec:vectors``, by Pokec/raw/cc.sk.300.vec; ``pokec:sentence``,
    by Pokec/raw/bert-base-multilingual-cased or the cache's; and ``pokec:bow-public``, the authors'
    bag of words: those that occur 15 to 15,000 times in the profiles. Such words are read off
    private profiles: a release. By that name one declares them public; ``pokec:bow`` is refused.
    """
    if variant == "bow":
        raise UnprovenError(
            "The data set 'pokec:bow' takes the words that occur 15 to 15,000 times in the private "
            "profiles: a release that no certificate covers. Use pokec:hash, pokec:vectors or "
            "pokec:sentence; pokec:bow-public declares those words public."
        )
    if variant not in ("", *_POKEC):
        raise InvalidInputError(
            f"The data set 'pokec' may be followed by one of {', '.join(_POKEC)}. Got {name!r} "
            "instead; write 'pokec:hash'."
        )
    import torch
    from torch_geometric.data import Data

    from graphveil.privacy.guarantee import DECLARED_PUBLIC

    files = [
        [f"soc-pokec-{part}.txt{end}" for part in ("profiles", "relationships")]
        for end in ("", ".gz")
    ]
    raw = next((place for each in files if (place := _find(root, _POKEC_FOLDER, each))), None)
    if raw is None:
        raise InvalidInputError(
            f"The data set 'pokec' is not in {root / _POKEC_FOLDER} (looked for {files[0][0]} or "
            f"{files[1][0]}) and not downloaded; get it from https://snap.stanford.edu/data/."
        )
    profiles, friends = (
        next(raw / each[part] for each in files if (raw / each[part]).is_file()) for part in (0, 1)
    )
    try:
        people = _pet_owners(profiles)
        ends = _friendships(friends, people["id"].to_numpy())
    except InvalidInputError:
        raise
    except Exception as error:  # gzip, unicode, parser errors
        _unreadable(name, raw, error)
    data = Data(
        x=torch.from_numpy(_pokec_features(people["text"].tolist(), variant, raw)),
        edge_index=torch.from_numpy(ends),
        y=torch.tensor(people["dog"].tolist()),
    )
    data.public = [
        "who is in the graph, the 10,000 fullest profiles each of those who name a cat or a dog, "
        f"read off everybody's profile: {DECLARED_PUBLIC}"
    ]
    if variant == "bow-public":
        data.public.append(
            "which words occur 15 to 15,000 times in the profiles, read off all of them: "
            f"{DECLARED_PUBLIC}"
        )
    return data


_POKEC = ("hash", "vectors", "sentence", "bow-public")
_POKEC_FOLDER = Path("Pokec", "raw")
_POKEC_COLUMNS = 59
_PETS = 13  # the column
_PET = {
    **dict.fromkeys(("macka", "mam macku", "kocur"), 0),
    **dict.fromkeys(("pes", "mam psa", "mam psika", "mam psov"), 1),
}
_POKEC_TEXT = [column for column in range(9, 58) if column != _PETS]
_POKEC_EACH = 10_000


def _pet_owners(path: Path) -> pd.DataFrame:
    """Id, class and text of the fullest profiles of cat and of dog people, by id."""
    found = []
    with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            cells = line.decode().rstrip("\r\n").split("\t")
            # Each line of SNAP's file ends in a tab.
            if len(cells) not in (_POKEC_COLUMNS, _POKEC_COLUMNS + 1):
                raise InvalidInputError(
                    f"{path}: line {number} must have {_POKEC_COLUMNS} columns. Got {len(cells)} "
                    "instead; it may be cut short: get it again."
                )
            pet = _PET.get(cells[_PETS].strip().lower())
            if pet is not None:
                said = [cell for cell in cells if cell not in ("", "null")]
                text = " ".join(cells[n] for n in _POKEC_TEXT if cells[n] not in ("", "null"))
                found.append((int(cells[0]), pet, -len(said), _plain(text)))
    people = pd.DataFrame(found, columns=["id", "dog", "empty", "text"])
    if people["dog"].nunique() < 2:
        raise InvalidInputError(f"{path} must have cat people and dog people; it may be cut short.")
    chosen = people.sort_values(["empty", "id"]).groupby("dog").head(_POKEC_EACH)
    return chosen.sort_values("id", ignore_index=True)


def _plain(text: str) -> str:
    """A text without the tags and entities of HTML, which some columns have."""
    return html.unescape(re.sub(r"<[^>]*>", " ", text))


def _friendships(path: Path, ids: np.ndarray) -> np.ndarray:
    """The lines whose two ends are among the sorted ``ids``, as positions there."""
    parts = []
    for lines in pd.read_csv(path, sep="\t", header=None, dtype=np.int64, chunksize=2_000_000):
        ends = lines.to_numpy().T
        if len(ends) != 2:
            raise ValueError(f"{path.name} has {len(ends)} columns, not 2")
        parts.append(ends[:, np.isin(ends, ids).all(axis=0)])
    return np.searchsorted(ids, np.concatenate(parts, axis=1)).astype(np.int64)


def _pokec_features(texts: list[str], variant: str, raw: Path) -> np.ndarray:
    from graphveil.data import text

    if variant == "vectors":
        return text.mean_vectors(texts, raw / "cc.sk.300.vec")
    if variant == "sentence":
        model = "bert-base-multilingual-cased"
        return text.sentences(texts, raw / model if (raw / model).is_dir() else model)
    if variant == "bow-public":
        from sklearn.feature_extraction.text import CountVectorizer

        counts = CountVectorizer(analyzer=text.words, dtype=np.float32).fit_transform(texts)
        total = np.asarray(counts.sum(axis=0, dtype=np.float64)).ravel()
        band = counts[:, (total >= 15) & (total <= 15_000)]
        return (band > 0).astype(np.float32).toarray()
    return text.hashed(texts)


_FACEBOOK_FOLDERS = ("facebook100/raw", "facebook100")
_FACEBOOK_COLUMNS = {0: 8, 1: 2, 2: 128, 3: 128, 4: 256}  # column of local_info: features


def ogb(name: str, root: Path, split: str, *, papers: bool = False, mirror: bool = False) -> Data:
    """A node property prediction set of OGB, from its own csv.gz files, with OGB's split.

    ``papers`` reduces ogbn-mag to its papers and the citations between them; ``mirror`` adds each
    edge's other direction, for the undirected sets. OGB's loader is not used: it keeps a pickle,
    reads it with a bare ``torch.load`` and asks the network for its own newest version.
    """
    import torch
    from torch_geometric.data import Data

    folder = name.replace("-", "_")
    of_papers = "/paper" if papers else ""
    files = {
        "x": f"raw/node-feat{of_papers}/node-feat.csv.gz" if papers else "raw/node-feat.csv.gz",
        "y": f"raw/node-label{of_papers}/node-label.csv.gz" if papers else "raw/node-label.csv.gz",
        "edges": f"raw/{'relations/paper___cites___paper/' if papers else ''}edge.csv.gz",
        **{part: f"split/{split}{of_papers}/{part}.csv.gz" for part in ("train", "valid", "test")},
    }
    base = _find(root, Path(folder), list(files.values()))
    if base is None:
        url = _OGB.format(name.removeprefix("ogbn-"))
        base = _download(name, root, Path(folder), url, files["edges"])
    try:
        x = _csv(base / files["x"], np.float32)
        y = _csv(base / files["y"], np.float64)[:, 0]
        edges = _csv(base / files["edges"], np.int64)
        if len(x) != len(y) or edges.shape[1] != 2:
            raise ValueError(f"features {x.shape}, labels {y.shape}, edges {edges.shape}")
        data = Data(x=torch.from_numpy(x), y=torch.from_numpy(np.nan_to_num(y, nan=-1.0)).long())
        for part, mask in (("train", "train_mask"), ("valid", "val_mask"), ("test", "test_mask")):
            data[mask] = torch.zeros(len(x), dtype=torch.bool)
            data[mask][torch.from_numpy(_csv(base / files[part], np.int64)[:, 0])] = True
    except Exception as error:  # gzip, parser, index errors
        _unreadable(name, base, error)
    if mirror:
        edges = np.concatenate([edges, edges[:, ::-1]])
    data.edge_index = torch.from_numpy(np.ascontiguousarray(edges.T))
    return data


def _csv(path: Path, dtype: Any) -> np.ndarray:
    # A copy, row by row: what pandas hands out is read-only and lies column by column.
    table = pd.read_csv(path, header=None, dtype=dtype, compression="gzip")
    return np.array(table.to_numpy(), order="C")


def _download(name: str, root: Path, folder: Path, url: str, wanted: str) -> Path:
    """Fetch a zip with one folder in it, which becomes ``folder`` in the cache."""
    with _workplace(cache()) as work:
        try:
            with (
                urllib.request.urlopen(url, timeout=_TIMEOUT) as answer,
                (work / "file.zip").open("wb") as file,
            ):
                shutil.copyfileobj(answer, file)
            with zipfile.ZipFile(work / "file.zip") as archive:
                archive.extractall(work / "out")
            (unpacked,) = (work / "out").iterdir()
        except Exception as error:
            _absent(name, root, f"{folder}/{wanted}", error)
        _keep(unpacked, cache() / folder)
    return cache() / folder


def _find(root: Path, folder: Path, files: list[str]) -> Path | None:
    for place in (root / folder, cache() / folder):
        if all((place / file).is_file() for file in files):
            return place
    return None


@contextlib.contextmanager
def _workplace(near: Path | None) -> Iterator[Path]:
    """A temporary folder, ``near`` the place its contents are to be moved to."""
    if near:
        try:
            near.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidInputError(
                f"The cache {near} cannot be made ({error.strerror}); set XDG_CACHE_HOME to a "
                "folder that can be written to."
            ) from None
    with tempfile.TemporaryDirectory(prefix="graphveil-", dir=near) as work:
        yield Path(work)


def _link(link: Path, file: Path) -> None:
    try:
        link.symlink_to(file)
    except OSError:  # Windows without the right to make links
        shutil.copyfile(file, link)


def _keep(source: Path, target: Path) -> None:
    """Move a finished download into the cache: half a file never gets there."""
    shutil.rmtree(source / "processed", ignore_errors=True)
    if target.exists():
        shutil.rmtree(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    source.rename(target)


def _unreadable(name: str, place: Path, error: Exception) -> NoReturn:
    raise InvalidInputError(
        f"The files of {name!r} in {place} cannot be read ({_reason(error)}); they may be cut "
        "short or of another version: get them again."
    ) from None


def _absent(name: str, root: Path, file: str, error: Exception) -> NoReturn:
    places = f"{root}" if root == cache() else f"{root} or {cache()}"
    raise InvalidInputError(
        f"The data set {name!r} is not in {places} (looked for {file}) and could not be downloaded "
        f"({_reason(error)}); connect to the network, or pass the root folder that holds it."
    ) from None


def _reason(error: Exception) -> str:
    text = re.sub(r"\s+", " ", str(error)).strip().rstrip(".")[:120]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
