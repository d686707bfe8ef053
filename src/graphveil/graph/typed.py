"""Typed graphs: tables of people and of public things, and relations between them.

A typed graph is PyG's ``HeteroData`` whose ``people`` names the types that are people. Rows of all
other types are public, and so are the relations between those. A relation between a person and a
public thing is a part of that person's own row: the person's list.

:func:`links_of` makes one relation the data of a link task: who will buy, connect, be prescribed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from graphveil import _validate
from graphveil._errors import InvalidInputError

Relation = tuple[str, str, str]  # the type of the source, what it does, the type of the target


def links_of(graph: HeteroData, relation: str | Sequence[str]) -> Data:
    """One relation of a typed graph as the data of a link task.

    Sources are people. Targets are public rows, or people of the same type. ``links`` are pairs
    without repeats, in the order of their numbers: a relation without direction has each pair once,
    the smaller number first. ``link_time`` are the times of a relation that has ``time``, of a
    repeated pair the first one.

    *Guarantee*: none; nothing is released. Rows of a public type count as public.
    """
    people, name = people_of(graph), relation_of(graph, relation)
    source, _, target = name
    ends, store = check_ends(graph, name), graph[name]
    if source not in people and target in people:
        source, target, ends = target, source, ends.flip(0)
    if source not in people:
        raise InvalidInputError(
            f"The 'link' parameter must be a relation of people. Got {write_relation(name)!r} "
            "instead, whose ends are both public, so that nothing is private in it; name another."
        )
    if target in people and target != source:
        raise InvalidInputError(
            "The 'link' parameter must lead from people to a public type, or to people of the same "
            f"type. Got {write_relation(name)!r} between two types of people instead, for which no "
            "bound is proven; name another relation."
        )
    directed = source != target or bool(getattr(store, "directed", False))
    data = Data(x=rows_of(graph, source))
    others = ends[0] != ends[1] if source == target else torch.ones_like(ends[0], dtype=torch.bool)
    pairs = (ends if directed else ends.sort(dim=0).values)[:, others]  # nobody links to itself
    numbers = rows_of(graph, target).shape[0]
    keys = pairs[0] * numbers + pairs[1]
    unique, place = keys.unique(return_inverse=True)
    data.links = torch.stack([unique // max(numbers, 1), unique % max(numbers, 1)])
    if getattr(store, "time", None) is not None:
        first = torch.full((len(unique),), torch.inf, dtype=torch.float64)
        data.link_time = first.scatter_reduce(0, place, store.time[others].double(), "amin")
    data.directed, data.relation = directed, write_relation(name)
    data.source_name, data.target_name = source, target
    _copy_names(graph[source], data, "")
    if source != target:
        data.target_x = rows_of(graph, target)
        _copy_names(graph[target], data, "target_")
    return data


def people_of(graph: HeteroData) -> tuple[str, ...]:
    """The types that are people, as ``graph.people`` names them."""
    people = getattr(graph, "people", None)
    people = [people] if isinstance(people, str) else people
    if not isinstance(people, (list, tuple)) or not people:
        got = "nothing" if people is None else _validate.shown(people)
        raise InvalidInputError(
            "The 'people' parameter must name the types that are people. Got "
            f"{got} instead; name them: rows of all other types count as public."
        )
    for name in people:
        if name not in graph.node_types:
            raise InvalidInputError(
                f"The 'people' parameter must name types of the graph: "
                f"{', '.join(graph.node_types)}. Got {_validate.shown(name)} instead; correct it."
            )
    return tuple(people)


def relation_of(graph: HeteroData, relation: str | Sequence[str]) -> Relation:
    """A relation by its three names, by its file's words (user-buys-item) or by its own word."""
    names = graph.edge_types
    if not isinstance(relation, str):
        fit = [name for name in names if name == tuple(relation)]
    else:
        fit = [name for name in names if relation in (write_relation(name), name[1])]
    if len(fit) != 1:
        listed = ", ".join(map(write_relation, names)) or "none"
        raise InvalidInputError(
            f"A relation must be one of {listed}. Got {_validate.shown(relation)} instead; write "
            "all of its name."
        )
    return fit[0]


def write_relation(name: Relation) -> str:
    """A relation as files are named after it: user-buys-item."""
    return "-".join(name)


def rows_of(graph: HeteroData, kind: str) -> Tensor:
    """The rows ``x`` of a type; one without any is refused."""
    x = graph[kind].get("x")
    if not isinstance(x, Tensor) or x.dim() != 2 or not x.is_floating_point():
        got = "nothing" if x is None else type(x).__name__
        raise InvalidInputError(
            f"The type {kind!r} must have rows: x, a float tensor (rows, columns). Got {got} "
            "instead; give each row its columns, if only one of ones."
        )
    return x


def check_ends(graph: HeteroData, name: Relation) -> Tensor:
    """The (2, edges) of a relation; an end that is no row of its type is refused."""
    ends = graph[name].get("edge_index")
    if not isinstance(ends, Tensor) or ends.dtype != torch.long or ends.dim() != 2 or len(ends) > 2:
        raise InvalidInputError(
            f"The relation {write_relation(name)!r} must have edge_index, a long tensor (2, edges)."
            f" Got {type(ends).__name__} instead; give one."
        )
    for kind, side in ((name[0], ends[0]), (name[2], ends[1])):
        rows = len(rows_of(graph, kind))
        if side.numel() and not 0 <= int(side.min()) <= int(side.max()) < rows:
            raise InvalidInputError(
                f"The relation {write_relation(name)!r} must be between rows of the graph. Got a "
                f"number that is no row of {kind!r}, which has {rows:,}; give the type its own "
                "rows, because ids that edges bring are private."
            )
    return ends


def _copy_names(store: Any, data: Data, before: str) -> None:
    """Ids, names of columns and masks of a type, as the data of a task calls them."""
    for name in ("ids", "columns"):
        if store.get(name) is not None:
            data[before + name] = list(store[name])
    if not before and store.get("train_mask") is not None:
        data.train_mask = store.train_mask
