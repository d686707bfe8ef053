"""What names of tables with a target say after the colon; torch is not loaded.

    graphland:NAME[:SPLIT][:TARGET]         graphland:hm-prices:RH:0..10
    relbench:DATABASE:TASK[:TARGET]         relbench:rel-f1:driver-position:1..40

A TARGET is the public statement that the files lack: a number of classes (``21``), or the two ends
of a range (``0..10``), which makes it a regression.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

_FOLDER = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_NUMBER = r"[+-]?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?"
_RANGE = re.compile(rf"({_NUMBER})\.\.({_NUMBER})")
_CLASSES = re.compile(r"[1-9][0-9]{0,5}")

SPLITS = ("RL", "RH", "TH")

# Nodes, whether links have a direction, and the task, as PyG's documentation lists them.
GRAPHLAND: dict[str, tuple[int, bool, str]] = {
    "hm-categories": (46_563, False, "multiclass"),
    "pokec-regions": (1_632_803, True, "multiclass"),
    "web-topics": (2_890_331, True, "multiclass"),
    "tolokers-2": (11_758, False, "binary"),
    "city-reviews": (148_801, False, "binary"),
    "artnet-exp": (50_405, False, "binary"),
    "web-fraud": (2_890_331, True, "binary"),
    "hm-prices": (46_563, False, "regression"),
    "avazu-ctr": (76_269, False, "regression"),
    "city-roads-M": (57_073, True, "regression"),
    "city-roads-L": (142_257, True, "regression"),
    "twitch-views": (168_114, False, "regression"),
    "artnet-views": (50_405, False, "regression"),
    "web-traffic": (2_890_331, True, "regression"),
}


@dataclass(frozen=True)
class Target:
    """What a name states of a target: how many classes, between which values, or nothing."""

    num_classes: int | None = None
    value_range: tuple[float, float] | None = None


@dataclass(frozen=True)
class GraphLand:
    """Which data set of GraphLand, by which of its splits, with what stated of the target."""

    name: str
    split: str
    target: Target


@dataclass(frozen=True)
class RelBench:
    """Which task of which database, with what stated of the target."""

    database: str
    task: str
    target: Target


def parse_target(text: str) -> Target | None:
    """What ``21`` or ``0..10`` states; None if it is neither."""
    if ends := _RANGE.fullmatch(text):
        low, high = float(ends[1]), float(ends[2])
        return Target(value_range=(low, high)) if low < high < math.inf else None
    if _CLASSES.fullmatch(text) and int(text) >= 2:
        return Target(num_classes=int(text))
    return None if text else Target()


def parse_graphland(variant: str) -> GraphLand | None:
    """What follows ``graphland:``; None if it is not of that form."""
    name, *rest = variant.split(":")
    split = rest.pop(0) if rest and rest[0] in SPLITS else SPLITS[0]
    target = parse_target(rest.pop(0)) if rest else Target()
    if rest or target is None or not _FOLDER.fullmatch(name):
        return None
    return GraphLand(name, split, target)


def parse_relbench(variant: str) -> RelBench | None:
    """What follows ``relbench:``; None if it is not of that form."""
    database, *rest = variant.split(":")
    task = rest.pop(0) if rest else ""
    target = parse_target(rest.pop(0)) if rest else Target()
    if rest or target is None or not all(map(_FOLDER.fullmatch, (database, task))):
        return None
    return RelBench(database, task, target)


def describe_graphland(variant: str) -> dict[str, Any]:
    """What an entry knows beforehand of a data set of GraphLand."""
    parsed = parse_graphland(variant)
    if parsed is None or parsed.name not in GRAPHLAND:
        return {}
    nodes, directed, task = GRAPHLAND[parsed.name]
    known = {"num_nodes": nodes, "directed": directed, "task": task}
    classes = 2 if task == "binary" else parsed.target.num_classes or 0
    return {**known, "num_classes": 0 if task == "regression" else classes}


def describe_relbench(variant: str) -> dict[str, Any]:
    """What an entry knows beforehand of a task of RelBench: what its name states, or binary."""
    parsed = parse_relbench(variant)
    if parsed is None:
        return {}
    if parsed.target.value_range is not None:
        return {"task": "regression"}
    classes = parsed.target.num_classes or 2
    return {"task": "binary" if classes == 2 else "multiclass", "num_classes": classes}
