"""Graphs to work with: a catalog of public ones, a user's own, and generated ones."""

from graphveil.data.catalog import CATALOG, Entry, load, names

__all__ = ["CATALOG", "Entry", "load", "names"]
