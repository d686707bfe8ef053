"""Older names of :mod:`graphveil.graph.collate` and :mod:`graphveil.graph.transforms`."""

from graphveil.graph.collate import collate as collated
from graphveil.graph.collate import uncollate as separated
from graphveil.graph.transforms import GEOMETRIES
from graphveil.graph.transforms import add_degree as with_degree
from graphveil.graph.transforms import add_edge_geometry as with_edge_geometry

__all__ = ["GEOMETRIES", "collated", "separated", "with_degree", "with_edge_geometry"]
