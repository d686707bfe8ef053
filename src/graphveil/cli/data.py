"""The graphs known by name, and a look at one's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from graphveil.cli._shared import json_option, root_option, show, show_table


@click.group()
def data() -> None:
    """The graphs known by name, and your own."""


@data.command("list")
@json_option
def list_(as_json: bool) -> None:
    """Every data set of the catalog: its size, and what a node is."""
    from graphveil.data.catalog import CATALOG

    entries = [_described(name) for name in CATALOG]
    rows = [
        [
            entry["name"],
            _size(entry["num_nodes"]),
            _size(entry["num_features"]),
            str(entry["num_classes"]),
            entry["unit"],
            entry["edges"],
            entry["split"],
        ]
        for entry in entries
    ]
    columns = ["name", "nodes", "features", "classes", "a node is", "edges", "split"]
    note = (
        "graphveil data show NAME gives licence and citation. Wherever a name goes, a path to "
        "files of your own goes too."
    )
    show_table({"data": entries}, as_json, "Graphs known by name", columns, rows, [note])


@data.command("show")
@click.argument("source", metavar="NAME|PATH")
@root_option
@json_option
def show_(source: str, root: str | None, as_json: bool) -> None:
    """What is known of a data set, or what is in the files at a path.

    For a name nothing is loaded. For a path the files are read and counted; the counts are for
    whoever holds the data, since most of them are private.
    """
    from graphveil.data.catalog import CATALOG

    name = source.partition(":")[0]
    result = _described(name) if name in CATALOG else _counted(source, root)
    labels = {"num_nodes": "nodes", "num_features": "features", "num_classes": "classes"}
    rows = [(labels.get(key, key.replace("_", " ")), _text(value)) for key, value in result.items()]
    show(result, as_json, source, [row for row in rows if row[1]])


def _described(name: str) -> dict[str, Any]:
    from graphveil.data.catalog import CATALOG

    entry = CATALOG[name]
    return {
        "name": entry.name,
        "title": entry.title,
        "unit": entry.unit,
        "num_nodes": entry.num_nodes,
        "num_features": entry.num_features,
        "num_classes": entry.num_classes,
        "edges": "directed" if entry.directed else "undirected",
        "split": "own" if entry.own_split else "none",
        "licence": entry.licence,
        "citation": entry.citation,
        "url": entry.url,
        "note": entry.note,
    }


def _counted(source: str, root: str | None) -> dict[str, Any]:
    from graphveil.data import load
    from graphveil.graph.checks import MASKS, num_classes_of

    found = load(source, root)
    labelled = None if found.y is None else int((found.y >= 0).sum())
    return {
        "path": str(Path(source)),
        "num_nodes": len(found.x),
        "num_features": found.x.shape[1],
        "num_classes": None if found.y is None else num_classes_of(found),
        "class_names": getattr(found, "class_names", None),
        "messages": found.edge_index.shape[1],
        "edges": "undirected" if found.is_undirected() else "directed",
        "labelled": labelled,
        **{name.removesuffix("_mask"): int(found[name].sum()) for name in MASKS if name in found},
    }


def _size(value: int | None) -> str:
    return "varies" if value is None else f"{value:,}"


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return f"{value:,}" if isinstance(value, int) else str(value)
