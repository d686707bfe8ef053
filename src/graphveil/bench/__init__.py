"""Measuring methods against each other."""

from graphveil.bench.compare import CAUTION, Row, compare, rank, remarks, sweep
from graphveil.bench.curves import Curve, loss_curves
from graphveil.bench.hard_cases import HardCases, hard_cases
from graphveil.bench.table import Notes, Table, read, select, titles

__all__ = [
    "CAUTION",
    "Curve",
    "HardCases",
    "Notes",
    "Row",
    "Table",
    "compare",
    "hard_cases",
    "loss_curves",
    "rank",
    "read",
    "remarks",
    "select",
    "sweep",
    "titles",
]
