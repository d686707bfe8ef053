"""Graphs to work with: a catalog of public ones, a user's own, and generated ones."""

from graphveil.data.catalog import CATALOG, Entry, Sizes, load, names, sizes_of

__all__ = ["CATALOG", "Entry", "Sizes", "load", "names", "sizes_of"]
