"""Units of privacy, in words: what is inside one, what is left out, how neighbours differ.

Names of units are for programs and stay as they are. Words follow the data: what its owner calls a
record, and whether records are links.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Unit:
    """One person's share of the data, and what stays outside it."""

    name: str
    protects: str
    leaves_out: str
    withheld: str  # how two neighbouring data sets differ


_BUT_EDGES = (
    "node features, labels and ids, and whether edges have a direction, which are public under "
    "this unit"
)
UNITS: Mapping[str, Unit] = {
    unit.name: unit
    for unit in (
        Unit(
            "node",
            "one node's row: its features, its label and the list of nodes it sends to",
            "that somebody else's list may still name the node",
            "the node's row is the null row in one of two otherwise equal data sets",
        ),
        Unit(
            "edge-directed",
            "the presence of one directed edge (one message)",
            _BUT_EDGES,
            "the edge is missing from one of two otherwise equal graphs",
        ),
        Unit(
            "edge-undirected",
            "the presence of one undirected edge (two messages)",
            _BUT_EDGES,
            "the edge, with both its messages, is missing from one of two otherwise equal graphs",
        ),
        Unit(
            "graph",
            "one whole graph of a data set of graphs",
            "how many graphs there are",
            "the graph is missing, and its place empty, in one of two otherwise equal data sets",
        ),
        Unit(
            "owner",
            "one owner with every record of theirs: features, labels, whole graphs, and the lists "
            "of nodes that they send to",
            "how many owners there are, which records are the same owner's, and that somebody "
            "else's list may still name a node of theirs",
            "all records of the owner are null rows, or empty graphs, in one of two otherwise "
            "equal data sets",
        ),
    )
}

ONE = {  # as a person says it
    "node": "one node",
    "edge-directed": "one directed edge",
    "edge-undirected": "one undirected edge",
    "graph": "one graph",
    "owner": "one owner",
}

_ALL = {
    "node": "nodes",
    "edge-directed": "edges",
    "edge-undirected": "edges",
    "graph": "graphs",
    "owner": "owners",
}
_ABSENT = {
    "nodes": ("took no part (their rows are empty)", "did"),
    "sources": ("took no part (their rows and lists are empty)", "did"),
    "edges": ("are not there", "are"),
    "links": ("are not there", "are"),
    "graphs": ("took no part (their places are empty)", "did"),
    "owners": ("took no part (all their records are empty)", "did"),
}
PUBLIC, PEOPLE = "public", "people"  # of links: what targets are


def removed_in_words(word: str) -> str:
    """How two data sets differ under the relation ``remove``."""
    return (
        f"the {word} and every mention of it are gone in one of two otherwise equal data sets, "
        "which all obey a public bound on degrees"
    )


def word_of(unit: str, record: str | None, targets: str | None) -> str:
    """What one unit is called: by the data's owner, or else by what it is."""
    if unit.startswith("edge"):
        return "edge" if targets is None else "link"
    usual = "source" if targets == PUBLIC else unit
    return record or usual


def one_in_words(
    unit: str, *, owner: str | None = None, record: str | None = None, targets: str | None = None
) -> str:
    """One unit, as a person says it."""
    if owner is not None:
        return f"one {owner} with every {record or 'record'} of theirs"
    if unit == "owner" or (unit.startswith("edge") and targets is None):
        return ONE[unit]
    return f"one {word_of(unit, record, targets)}"


def in_words(
    unit: str, *, owner: str | None = None, record: str | None = None, targets: str | None = None
) -> Unit:
    """The unit of that name in the words of the data.

    ``owner`` and ``record`` are what its owner calls one and a record. ``targets`` is of links:
    ``public`` where rows of targets are, ``people`` where targets are what sources are.
    """
    one = one_in_words(unit, owner=owner, record=record, targets=targets)
    usual, word = UNITS[unit], word_of(unit, record, targets)
    if owner is not None:
        return replace(usual, protects=f"{one}:{usual.protects.partition(':')[2]}")
    if unit.startswith("edge") and targets is not None:
        return Unit(
            unit,
            "the presence of one link"
            + (" between two nodes, both ways" if unit == "edge-undirected" else ""),
            "the rows and ids of both ends, and whether links have a direction, which are public "
            "under this unit",
            "the link is missing from one of two otherwise equal data sets",
        )
    if unit == "node" and targets is not None:
        public = targets == PUBLIC
        return Unit(
            unit,
            f"{one}'s row and {'whole list of targets' if public else 'own list'}, however long",
            "the rows of targets, which are public"
            if public
            else f"that somebody else's list may still name the {word}",
            f"the {word}'s row is the null row, and its list is empty, in one of two otherwise "
            "equal data sets",
        )
    if unit == "node" and record is not None:
        return Unit(
            unit,
            usual.protects.replace("one node", one),
            f"that somebody else's list may still name the {word}",
            f"the {word}'s row is the null row in one of two otherwise equal data sets",
        )
    if unit == "graph" and record is not None:
        return replace(usual, protects=f"{one}, which is {usual.protects}")
    return usual


def all_in_words(unit: str, targets: str | None) -> tuple[str, str, str]:
    """All units, those that were not in the data, and those that were."""
    if targets is not None and unit.startswith("edge"):
        units = "links"
    else:
        units = "sources" if targets is not None and unit == "node" else _ALL[unit]
    return (units, *_ABSENT[units])
