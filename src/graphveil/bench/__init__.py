"""Measuring methods against each other."""

from graphveil.bench.compare import CAUTION, Row, compare, rank, remarks, sweep
from graphveil.bench.hard_cases import HardCases, hard_cases
from graphveil.bench.table import Notes, Table, chosen, described, read

__all__ = [
    "CAUTION",
    "HardCases",
    "Notes",
    "Row",
    "Table",
    "chosen",
    "compare",
    "described",
    "hard_cases",
    "rank",
    "read",
    "remarks",
    "sweep",
]
