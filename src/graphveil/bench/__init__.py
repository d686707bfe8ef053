"""Measuring methods against each other."""

from graphveil.bench.compare import CAUTION, Row, compare, rank, remarks, sweep
from graphveil.bench.curves import Curve, loss_curves
from graphveil.bench.hard_cases import HardCases, hard_cases
from graphveil.bench.table import Notes, Table, chosen, described, read

__all__ = [
    "CAUTION",
    "Curve",
    "HardCases",
    "Notes",
    "Row",
    "Table",
    "chosen",
    "compare",
    "described",
    "hard_cases",
    "loss_curves",
    "rank",
    "read",
    "remarks",
    "sweep",
]
