"""Users of Pokec who keep a cat or a dog: a graph of real people, with the texts they wrote."""

from __future__ import annotations

import gzip
import html
import re
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch_geometric.data import Data

from graphveil._errors import InvalidInputError, UnprovenError
from graphveil.data import text_features
from graphveil.data._cache import find, reading, refuse_variant
from graphveil.graph.public_lines import DECLARED_PUBLIC

_VARIANTS = ("hash", "vectors", "sentence", "columns", "bow-public")
_FOLDER = Path("Pokec", "raw")
_MODEL = "bert-base-multilingual-cased"
_NUM_COLUMNS = 59
_PETS = 13  # the column
_PET = {
    **dict.fromkeys(("macka", "mam macku", "kocur"), 0),
    **dict.fromkeys(("pes", "mam psa", "mam psika", "mam psov"), 1),
}
_TEXT_COLUMNS = [column for column in range(9, 58) if column != _PETS]
_PER_PET = 10_000
_WHO = (
    "who is in the graph, the 10,000 fullest profiles each of those who name a cat or a dog, "
    f"read off everybody's profile: {DECLARED_PUBLIC}"
)
_WHICH_WORDS = (
    f"which words occur 15 to 15,000 times in the profiles, read off all of them: {DECLARED_PUBLIC}"
)


def pokec(name: str, root: Path, variant: str) -> Data:
    """Users of Pokec who keep a cat or a dog, as Igamberdiev & Habernal choose them.

    Cat people are those whose profile says exactly that under pets, and so dog people; of each the
    10,000 with the fullest profiles are taken, in the order of their ids. Who they are reads
    everybody's profile; it is declared public, and certificates say so. The text is what they wrote
    in 48 columns, from field of work on; *not* in pets, which is the label (the authors' code
    leaves it in). Friendships go one way. The features are said by the name, see
    :func:`graphveil.data.text.build`:

    ``pokec`` or ``pokec:hash``; ``pokec:vectors``, by Pokec/raw/cc.sk.300.vec; ``pokec:sentence``,
    by Pokec/raw/bert-base-multilingual-cased or the cache's, the profile as one text;
    ``pokec:columns``, by the same model, as the paper does: each column that somebody filled by
    itself, and the mean over these columns; and ``pokec:bow-public``, the authors' bag of words:
    those that occur 15 to 15,000 times in the profiles. Such words are read off private profiles: a
    release. By that name one declares them public; ``pokec:bow`` is refused.
    """
    if variant == "bow":
        raise UnprovenError(
            "The data set 'pokec:bow' takes the words that occur 15 to 15,000 times in the private "
            "profiles: a release that no certificate covers. Use pokec:hash, pokec:vectors or "
            "pokec:sentence; pokec:bow-public declares those words public."
        )
    if variant not in ("", *_VARIANTS):
        refuse_variant("pokec", f"one of {', '.join(_VARIANTS)}", name, "; write 'pokec:hash'")
    raw, profiles, friends = _raw_files(root)
    with reading(name, raw, passing=(InvalidInputError,)):
        people = _pet_owners(profiles)
        ends = _friendships(friends, people["id"].to_numpy())
    data = Data(
        x=torch.from_numpy(_features(people["cells"].tolist(), variant, raw)),
        edge_index=torch.from_numpy(ends),
        y=torch.tensor(people["dog"].tolist()),
    )
    data.unprotected = [_WHO, *([_WHICH_WORDS] if variant == "bow-public" else [])]
    data.public = list(data.unprotected)
    return data


def _raw_files(root: Path) -> tuple[Path, Path, Path]:
    """The folder, the profiles and the friendships, as text or packed."""
    for end in (".txt", ".txt.gz"):
        files = [f"soc-pokec-{part}{end}" for part in ("profiles", "relationships")]
        if (raw := find(root, _FOLDER, files)) is not None:
            return raw, raw / files[0], raw / files[1]
    raise InvalidInputError(
        f"The data set 'pokec' is not in {root / _FOLDER} (looked for soc-pokec-profiles.txt or "
        "soc-pokec-profiles.txt.gz) and not downloaded; get it from "
        "https://snap.stanford.edu/data/."
    )


def _pet_owners(path: Path) -> pd.DataFrame:
    """Id, class and filled text columns of the fullest profiles of cat and dog people, by id."""
    rows = []
    with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            cells = line.decode().rstrip("\r\n").split("\t")
            # Each line of SNAP's file ends in a tab.
            if len(cells) not in (_NUM_COLUMNS, _NUM_COLUMNS + 1):
                raise InvalidInputError(
                    f"{path}: line {number} must have {_NUM_COLUMNS} columns. Got {len(cells)} "
                    "instead; it may be cut short: get it again."
                )
            pet = _PET.get(cells[_PETS].strip().lower())
            if pet is not None:
                filled = [cell for cell in cells if cell not in ("", "null")]
                texts = [cells[n] for n in _TEXT_COLUMNS if cells[n] not in ("", "null")]
                rows.append((int(cells[0]), pet, -len(filled), texts))
    people = pd.DataFrame(rows, columns=["id", "dog", "empty", "cells"])
    if people["dog"].nunique() < 2:
        raise InvalidInputError(f"{path} must have cat people and dog people; it may be cut short.")
    chosen = people.sort_values(["empty", "id"]).groupby("dog").head(_PER_PET)
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


def _features(people: list[list[str]], variant: str, raw: Path) -> np.ndarray:
    """A row for each of the people, who are lists of what they wrote in each column."""
    folder = raw / _MODEL
    model = folder if folder.is_dir() else _MODEL
    if variant == "columns":
        return _mean_columns(people, model)
    texts = [_plain(" ".join(cells)) for cells in people]
    if variant == "vectors":
        return text_features.mean_vectors(texts, raw / "cc.sk.300.vec")
    if variant == "sentence":
        return text_features.sentences(texts, model)
    if variant == "bow-public":
        from sklearn.feature_extraction.text import CountVectorizer

        counter = CountVectorizer(analyzer=text_features.words, dtype=np.float32)
        counts = counter.fit_transform(texts)
        total = np.asarray(counts.sum(axis=0, dtype=np.float64)).ravel()
        band = counts[:, (total >= 15) & (total <= 15_000)]
        return (band > 0).astype(np.float32).toarray()
    return text_features.hash_counts(texts)


def _mean_columns(people: list[list[str]], model: str | Path) -> np.ndarray:
    """The mean over the columns somebody filled, each read by itself; zeros for none.

    Each row is a function of one profile: sums are taken over one person's columns at a time.
    """
    texts = [_plain(cell) for cells in people for cell in cells]
    states = text_features.sentences(texts, model).astype(np.float64)
    rows, start = np.zeros((len(people), states.shape[1]), dtype=np.float32), 0
    for row, cells in zip(rows, people, strict=True):
        if cells:
            row[:] = states[start : start + len(cells)].mean(axis=0)
        start += len(cells)
    return rows
