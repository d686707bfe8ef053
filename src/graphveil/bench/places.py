"""Where a description runs: on its data where they are on disk, else on their stand-ins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from graphveil._inputs import at_home
from graphveil.data import catalog

if TYPE_CHECKING:
    from graphveil.bench.description import Description
    from graphveil.runs import Source


def _fallback_available(name: str, root: str | None) -> bool:
    entry = catalog.CATALOG[name.partition(":")[0]]
    if "Synthetic" in entry.title:
        return True
    folder = catalog._root(root)
    word = name.partition(":")[0].replace("-", "").lower()
    known = folder.rglob("*") if folder.is_dir() else []
    return any(word in str(path.name).replace("_", "").lower() for path in known)


def _fallback_how(name: str) -> str:
    return f"Download it from {catalog.CATALOG[name.partition(':')[0]].url}."


_available = getattr(catalog, "available", _fallback_available)
_how_to_get = getattr(catalog, "how_to_get", _fallback_how)


@dataclass(frozen=True, kw_only=True)
class Place:
    """A data set of a description, and what runs for it.

    ``runs_on`` is the data set itself, its stand-in, or None where there is neither. ``get`` says
    how to get what is not on disk.
    """

    data: str
    runs_on: str | None
    get: str = ""

    @property
    def stand_in_for(self) -> str | None:
        """The data set that is not what runs; None where it is."""
        return None if self.runs_on in (None, self.data) else self.data

    @property
    def label(self) -> str:
        """What a table calls it: a stand-in is never called by the data's own name alone."""
        if self.stand_in_for is None:
            return self.data
        return f"{self.runs_on} (stand-in for {self.data})"


def is_known(name: str) -> bool:
    """Whether a data set is one of the catalog, or a path where something is."""
    return name.partition(":")[0] in catalog.CATALOG or at_home(name).exists()


def is_available(name: str, root: str | None) -> bool:
    """Whether the files of a data set are on disk, or none are needed."""
    if name.partition(":")[0] not in catalog.CATALOG:
        return at_home(name).exists()
    return bool(_available(name, root))


def find_places(description: Description, root: str | None) -> list[Place]:
    """What runs for each data set of a description."""
    places = [_place(description, name, root) for name in description.data]
    if not description.first_only:
        return places
    here = [place for place in places if place.runs_on == place.data]
    return [*here, *(place for place in places if place.runs_on), places[0]][:1]


def _place(description: Description, name: str, root: str | None) -> Place:
    here = is_available(name, root)
    if here and name not in description.replaced:
        return Place(data=name, runs_on=name)
    get = "" if here else how_to_get(name)
    other = description.stand_in.get(name)
    if other is None or not is_available(other, root):
        return Place(data=name, runs_on=None, get=get)
    return Place(data=name, runs_on=other, get=get)


def how_to_get(name: str) -> str:
    """One sentence on how to get a data set."""
    if name.partition(":")[0] not in catalog.CATALOG:
        return f"There is no file or directory {name!r}; give the path of one."
    return str(_how_to_get(name))


def make_source(description: Description, place: Place, root: str | None, seed: int) -> Source:
    """How the data of a place is loaded and split.

    A stand-in that has no masks of its own has them drawn, and all its classes stay.
    """
    from graphveil.runs import Source

    name, split = place.runs_on or place.data, description.split
    more: dict[str, Any] = {"fractions": description.fractions, "thinned": description.thinned}
    if place.stand_in_for is None:
        more["min_class"] = description.min_class
    else:
        entry = catalog.CATALOG.get(name.partition(":")[0])
        if split == "given" and entry is not None and not entry.own_split:
            split = None
    more = {key: value for key, value in more.items() if value is not None}
    return Source(data=name, root=root, split=split, seed=seed, **more)


def describe_missing(places: Sequence[Place]) -> list[str]:
    """A sentence for each data set that is not on disk, and for what runs in its place."""
    sentences = []
    for place in places:
        if place.runs_on is None:
            sentences.append(f"{place.data} is not on disk, and nothing runs for it. {place.get}")
        elif place.stand_in_for is not None and place.get:
            sentences.append(
                f"{place.data} is not on disk: {place.runs_on} runs as a stand-in, and published "
                f"figures beside it are of {place.data}. {place.get}"
            )
        elif place.stand_in_for is not None:
            sentences.append(
                f"{place.runs_on} runs as a stand-in for {place.data}; published figures beside it "
                f"are of {place.data}."
            )
    return sentences
