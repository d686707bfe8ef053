"""Measuring methods against each other."""

from graphveil.bench.compare import CAUTION, Row, compare, rank, remarks, sweep

__all__ = ["CAUTION", "Row", "compare", "rank", "remarks", "sweep"]
