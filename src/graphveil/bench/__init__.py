"""Measuring methods against each other, and against what was published."""

from graphveil.bench.compare import CAUTION, Row, compare, rank, remarks, sweep
from graphveil.bench.contents import content_of
from graphveil.bench.curves import Curve, loss_curves
from graphveil.bench.description import Description, Line, names, read, select
from graphveil.bench.hard_cases import HardCases, hard_cases
from graphveil.bench.places import Place, find_places
from graphveil.bench.results import Notes, results_file, results_files, tidy, write_csv
from graphveil.bench.running import parse_shard
from graphveil.bench.table import Measured, missed, run

__all__ = [
    "CAUTION",
    "Curve",
    "Description",
    "HardCases",
    "Line",
    "Measured",
    "Notes",
    "Place",
    "Row",
    "compare",
    "content_of",
    "find_places",
    "hard_cases",
    "loss_curves",
    "missed",
    "names",
    "parse_shard",
    "rank",
    "read",
    "remarks",
    "results_file",
    "results_files",
    "run",
    "select",
    "sweep",
    "tidy",
    "write_csv",
]
