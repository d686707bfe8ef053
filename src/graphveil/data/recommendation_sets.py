"""Files of recommenders, as their authors hand them out: MovieLens, Last.fm, co-purchases.

===================  ===========================================================================
movielens-100k       u.data, u.item, u.user: who rated which film
movielens-1m         ratings.dat, movies.dat, users.dat
lastfm               user_artists.dat, artists.dat (HetRec 2011): who listened to which artist
amazon-copurchase    Amazon0302.txt, or com-amazon.ungraph.txt, and amazon-meta.txt if it is there:
                     which product is bought with which
===================  ===========================================================================

Nothing is downloaded: their terms ask that one gets them oneself. What each says is one ``Data`` of
links. Films, artists and products are public, by the list that comes with the files; what a user
gave to them (ratings, plays, tags) is not, and nothing of it is in ``target_x``. So tags of Last.fm
are left out, and an artist's row is its name.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch_geometric.data import Data

from graphveil._errors import InvalidInputError
from graphveil.data._cache import find, reading, refuse_variant
from graphveil.data.text_features import hash_counts

_GENRES = (
    "Action", "Adventure", "Animation", "Children's", "Comedy", "Crime", "Documentary", "Drama",
    "Fantasy", "Film-Noir", "Horror", "Musical", "Mystery", "Romance", "Sci-Fi", "Thriller", "War",
    "Western",
)  # fmt: skip
_JOBS = (
    "administrator", "artist", "doctor", "educator", "engineer", "entertainment", "executive",
    "healthcare", "homemaker", "lawyer", "librarian", "marketing", "none", "other", "programmer",
    "retired", "salesman", "scientist", "student", "technician", "writer",
)  # fmt: skip
_DECADES = tuple(range(1920, 2010, 10))
_AGES = (18, 25, 35, 45, 50, 56)  # the first years of MovieLens' age groups
_JOBS_OF_1M = 21
_GROUPS = ("Book", "CE", "DVD", "Music", "Software", "Sports", "Toy", "Video", "Video Games")
_NAME_COLUMNS = 256  # of a hashed name or title
_LEAST_RATING = "[1-5]"

Rows = NDArray[np.float32]


def movielens_100k(name: str, root: Path, variant: str) -> Data:
    """MovieLens 100K; ``variant`` is the least rating that makes a link, by default any."""
    return _movielens(name, root, variant, "100k")


def movielens_1m(name: str, root: Path, variant: str) -> Data:
    """MovieLens 1M, likewise."""
    return _movielens(name, root, variant, "1m")


def _movielens(name: str, root: Path, variant: str, size: str) -> Data:
    if variant and not re.fullmatch(_LEAST_RATING, variant):
        kind = f"movielens-{size}"
        refuse_variant(kind, "':1' to ':5', the least rating", name, f"; write '{kind}:4'")
    small = size == "100k"
    folder = "ml-100k" if small else "ml-1m"
    names = ("u.data", "u.item", "u.user") if small else ("ratings.dat", "movies.dat", "users.dat")
    raw = _folder(name, root, folder, names, "https://grouplens.org/datasets/movielens/")
    with reading(name, raw, passing=(InvalidInputError,)):
        ratings = _split_lines(raw / names[0], "\t" if small else "::", 4)
        films = _split_lines(raw / names[1], "|" if small else "::", 24 if small else 3)
        users = _split_lines(raw / names[2], "|" if small else "::", 5)
        rows = [_film_of_100k(film) if small else _film_of_1m(film) for film in films]
        people = [_user_of_100k(user) if small else _user_of_1m(user) for user in users]
        rated = [line for line in ratings if not variant or int(line[2]) >= int(variant)]
        data = _links(
            ([user[0] for user in users], [film[0] for film in films]),
            ([line[0] for line in rated], [line[1] for line in rated]),
            [float(line[3]) for line in rated],
        )
        data.x = torch.from_numpy(np.array(people, dtype=np.float32))
        data.target_x = torch.from_numpy(np.array(rows, dtype=np.float32))
    data.columns = [
        "female",
        *_age_names(),
        *(_JOBS if small else _numbers_of("job", _JOBS_OF_1M)),
    ]
    data.target_columns = [*_GENRES, *(f"from {year}" for year in _DECADES)]
    data.relation, data.source_name, data.target_name = "rates", "user", "film"
    if variant:
        data.relation = f"rates {variant} or more"
    return data


def lastfm(name: str, root: Path, variant: str) -> Data:
    """Last.fm of HetRec 2011: 1,892 users, and the artists that they listened to."""
    names = ("user_artists.dat", "artists.dat")
    folder = "hetrec2011-lastfm-2k"
    raw = _folder(name, root, folder, names, "https://grouplens.org/datasets/hetrec-2011/")
    with reading(name, raw, passing=(InvalidInputError,)):
        plays = _split_lines(raw / names[0], "\t", 3)[1:]
        artists = _split_lines(raw / names[1], "\t", 4)[1:]
        users = list(dict.fromkeys(line[0] for line in plays))
        data = _links(
            (users, [artist[0] for artist in artists]),
            ([line[0] for line in plays], [line[1] for line in plays]),
            None,
        )
        data.x = torch.ones(len(users), 1)
        data.target_x = torch.from_numpy(hash_counts([a[1] for a in artists], _NAME_COLUMNS))
    data.columns, data.target_columns = ["user"], _numbers_of("name", _NAME_COLUMNS)
    data.relation, data.source_name, data.target_name = "listens to", "user", "artist"
    return data


def amazon(name: str, root: Path, variant: str) -> Data:
    """Products of Amazon, and which are bought with which; rows are groups and titles.

    ``amazon-copurchase`` is the directed list of 2 March 2003, ``amazon-copurchase:undirected`` the
    one of com-Amazon.
    """
    if variant not in ("", "undirected"):
        refuse_variant("amazon-copurchase", "':undirected'", name)
    file = "com-amazon.ungraph.txt" if variant else "Amazon0302.txt"
    raw = _folder(name, root, "amazon", (file,), "https://snap.stanford.edu/data/#amazon")
    with reading(name, raw, passing=(InvalidInputError,)):
        lines = [line.split("\t") for line in _lines(raw / file) if not line.startswith("#")]
        ends = np.array([line[:2] for line in lines], dtype=np.int64).T.reshape(2, -1)
        ids = np.unique(ends)
        pairs = np.searchsorted(ids, ends[:, ends[0] != ends[1]])
        pairs = np.sort(pairs, axis=0) if variant else pairs
        data = Data(x=torch.from_numpy(_product_rows(raw, ids)))
        data.links = torch.from_numpy(np.unique(pairs, axis=1))
    data.ids = [str(product) for product in ids.tolist()]
    data.public = ["which products there are: those that stand in the file of links"]
    data.columns = [*_GROUPS, *_numbers_of("title", _NAME_COLUMNS)]
    data.directed = not variant
    data.relation = "is bought with"
    data.source_name = data.target_name = "product"
    return data


# --- files ----------------------------------------------------------------------------------------


def _folder(name: str, root: Path, folder: str, files: Sequence[str], url: str) -> Path:
    """The folder that has all files, each as it is or packed."""
    for ends in ("", ".gz"):
        place = find(root, Path(folder), [f"{file}{ends}" for file in files])
        if place is not None:
            return place
    raise InvalidInputError(
        f"The data set {name!r} is not in {root / folder} (looked for {', '.join(files)}) and is "
        f"not downloaded; get it from {url}."
    )


def _lines(path: Path) -> Iterator[str]:
    """The lines of a file that are not empty, in UTF-8 or else in Latin-1."""
    packed = path.with_name(f"{path.name}.gz")
    with path.open("rb") if path.exists() else gzip.open(packed, "rb") as file:
        for line in file:
            if line.strip():
                yield _decode(line).rstrip("\r\n")


def _decode(line: bytes) -> str:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError:
        return line.decode("latin-1")


def _split_lines(path: Path, by: str, cells: int) -> list[list[str]]:
    """The cells of every line."""
    lines = [line.split(by) for line in _lines(path)]
    for number, line in enumerate(lines, start=1):
        if len(line) < cells:
            raise InvalidInputError(
                f"{path}: line {number} must have {cells} cells. Got {len(line)} instead; it may "
                "be cut short: get it again."
            )
    return lines


def _links(
    ids: tuple[list[str], list[str]], ends: tuple[list[str], list[str]], times: list[float] | None
) -> Data:
    """Links between ids, each pair once, at the first time it stands in the files."""
    places = []
    for names, side in zip(ids, ends, strict=True):
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise InvalidInputError(
                f"Every id must stand in its list once. Got {twice!r} more than once instead; get "
                "the files again."
            )
        place = pd.Index(names).get_indexer(pd.Index(side))
        places.append(place)
        if (place < 0).any():
            unknown = side[int(np.argmax(place < 0))]
            raise InvalidInputError(
                f"Every end of a link must be in the list of ids. Got {unknown!r}, which is not, "
                "instead; the files may be cut short: get them again."
            )
    width = len(ids[1])
    keys = places[0] * width + places[1]
    order = np.lexsort((np.zeros(len(keys)) if times is None else np.array(times), keys))
    unique, first = np.unique(keys[order], return_index=True)
    data = Data(links=torch.from_numpy(np.stack(np.divmod(unique, width)).astype(np.int64)))
    if times is not None:
        data.link_time = torch.from_numpy(np.array(times, dtype=np.float64)[order][first])
    data.ids, data.target_ids, data.directed = ids[0], ids[1], True
    return data


# --- rows -----------------------------------------------------------------------------------------


def _film_of_100k(film: list[str]) -> list[float]:
    """Genres stand in columns, the first of which is 'unknown'."""
    return [*map(float, film[6:24]), *_decade(film[2][-4:])]


def _film_of_1m(film: list[str]) -> list[float]:
    """Genres stand in words, the year at the end of the title."""
    genres = film[2].split("|")
    return [*(float(genre in genres) for genre in _GENRES), *_decade(film[1].strip()[-5:-1])]


def _decade(year: str) -> list[float]:
    """1 at the decade of a year; of another text nothing."""
    decade = int(year) // 10 * 10 if year.isdigit() else None
    return [float(decade == first) for first in _DECADES]


def _user_of_100k(user: list[str]) -> list[float]:
    """Sex, age and job."""
    return [float(user[2] == "F"), *_age(int(user[1])), *(float(user[3] == job) for job in _JOBS)]


def _user_of_1m(user: list[str]) -> list[float]:
    """Sex, age and job; the job is a number."""
    jobs = [float(int(user[3]) == number) for number in range(_JOBS_OF_1M)]
    return [float(user[1] == "F"), *_age(int(user[2])), *jobs]


def _age(years: int) -> list[float]:
    """1 at the group of an age."""
    group = int(np.searchsorted(_AGES, years, side="right"))
    return [float(group == number) for number in range(len(_AGES) + 1)]


def _age_names() -> list[str]:
    between = [f"age {low} to {high - 1}" for low, high in pairwise(_AGES)]
    return [f"age below {_AGES[0]}", *between, f"age {_AGES[-1]} or more"]


def _numbers_of(word: str, count: int) -> list[str]:
    return [f"{word} {number}" for number in range(count)]


def _product_rows(raw: Path, ids: NDArray[np.int64]) -> Rows:
    """The group and the hashed title of every product; zeros without amazon-meta.txt."""
    rows = np.zeros((len(ids), len(_GROUPS) + _NAME_COLUMNS), dtype=np.float32)
    file = raw / "amazon-meta.txt"
    if not file.exists() and not file.with_name("amazon-meta.txt.gz").exists():
        return rows
    place = {int(product): row for row, product in enumerate(ids)}
    titles: dict[int, str] = {}
    row: Any = None
    for line in _lines(file):
        key, _, value = line.strip().partition(":")
        value = value.strip()
        if key == "Id":
            row = place.get(int(value))
        elif row is not None and key == "title":
            titles[row] = value
        elif row is not None and key == "group" and value in _GROUPS:
            rows[row, _GROUPS.index(value)] = 1.0
    if titles:
        rows[list(titles), len(_GROUPS) :] = hash_counts(list(titles.values()), _NAME_COLUMNS)
    return rows
