"""Graphs to work with: a catalog of public ones, a user's own, and generated ones."""

from graphveil.data.catalog import (
    CATALOG,
    Entry,
    Sizes,
    available,
    how_to_get,
    load,
    names,
    sizes_of,
)
from graphveil.data.in_memory import from_networkx
from graphveil.data.schema import Schema

__all__ = [
    "CATALOG",
    "Entry",
    "Schema",
    "Sizes",
    "available",
    "from_networkx",
    "how_to_get",
    "load",
    "names",
    "sizes_of",
]
