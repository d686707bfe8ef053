"""Typed graphs: tables of people and of public things, and relations between them.

A typed graph is PyG's ``HeteroData`` whose ``people`` names the types that are people. Rows of all
other types are public, and so are the relations between those. A relation between a person and a
public thing is a part of that person's own row: the person's list.

:func:`flatten` makes one graph of people out of it, that every method takes: their rows hold their
own columns and what their lists become (:mod:`graphveil.graph.own_lists`), and relations between
people are its edges. :func:`links_of` makes one relation the data of a link task.

A type has ``x``, perhaps ``ids``, ``columns``, and what a ``Data`` says of its records: ``y``,
masks, ``num_classes`` and so on. A relation has ``edge_index``, perhaps ``directed`` (between
people), ``time``, and ``lists``: what lists of it become. A relation whose name begins with
``rev_`` is left out beside the one that it reverses.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.utils import to_undirected

from graphveil import _validate
from graphveil._errors import InvalidInputError, UnprovenError
from graphveil.graph.checks import LINES, MASKS, OF_ALL, check_layout, name_tensor
from graphveil.graph.own_lists import (
    Block,
    aggregate,
    check_aggregates,
    find_copied_column,
    is_copied_relation,
    make_lists,
    usual_aggregates,
)
from graphveil.graph.public_lines import shorten
from graphveil.graph.sparse_rows import MOST_DENSE, as_csr, as_tensor, is_sparse

Relation = tuple[str, str, str]  # the type of the source, what it does, the type of the target

_OF_RECORDS = ("y", "owner", *MASKS)
_ROWS_OF_PEOPLE = 256  # columns of people that public columns are compared with


# --- one graph of people --------------------------------------------------------------------------


def flatten(graph: HeteroData, target: str | None = None, *, lists: Any = None) -> Data:
    """One graph of people, whose records are those of the type ``target``.

    A person's row holds the own columns, and for each relation with a public type what the person's
    list becomes; ``lists`` says what, of all relations that do not say it themselves. Public rows
    hold, beside their columns, means of the public rows that they have relations with. People of
    other types come along where relations between people lead to them, without a label; their rows
    have columns of their own, and one says of which type a row is. Edges have a direction if those
    of all relations between people have.

    *Guarantee*: none is needed. A person's row depends on that person's columns and lists, and on
    public rows, to the last bit; withholding a person moves no other row. Public: what is not a row
    of a person.
    """
    check_typed(graph)
    target = target_of(graph, target)
    types = _types_in_reach(graph, target)
    parts = [people_rows(graph, kind, lists) for kind in types]
    counts = [part.values.shape[0] for part in parts]
    if len(types) == 1:
        data = Data(x=_as_rows(parts[0].values))
        data.columns = parts[0].names
    else:
        data = Data(x=_as_rows(_stack(parts, counts)))
        named = zip(types, parts, strict=True)
        data.columns = [f"{kind}: {name}" for kind, part in named for name in part.names]
        data.columns += [f"is a {kind}" for kind in types]
    _put_edges(data, graph, dict(zip(types, _starts(counts), strict=True)), sum(counts))
    _put_records(data, graph, target, types, counts)
    read = [name for kind in types for name in _list_relations(graph, kind)]
    _put_lines(data, graph, types, [name for name in read if _aggregates_of(graph, name, lists)])
    return data


def _types_in_reach(graph: HeteroData, target: str) -> list[str]:
    """The types of people that relations between people join to the target, itself first."""
    people, types = people_of(graph), [target]
    for kind in types:  # grows on the way
        for source, _, other in _relations(graph):
            pair = {source, other} - {kind}
            if kind in (source, other) and pair <= set(people):
                types += [name for name in pair if name not in types]
    return types


def people_rows(
    graph: HeteroData, kind: str, lists: Any = None, without: Relation | None = None
) -> Block:
    """Rows of people of one type: their own columns, then what their lists become."""
    own = _numbers(rows_of(graph, kind))
    blocks, names = [own], list(columns_of(graph, kind))
    for name in _list_relations(graph, kind):
        if name == without:
            continue
        thing, public = _other_end(name, kind), public_rows(graph, _other_end(name, kind))
        own_lists = _lists_of(graph, name, kind)
        aggregates = _aggregates_of(graph, name, lists)
        of = aggregate(
            own_lists, public.values, public.names, _ids_of(graph, thing), aggregates,
            write_relation(name),
        )  # fmt: skip
        names += [column for block in of for column in block.names]
        blocks += [block.values for block in of]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidInputError(
            f"The columns of {kind!r} must have different names. Got {twice!r} twice instead; "
            "rename one of them."
        )
    return Block(names, _side_by_side(blocks))


def public_rows(graph: HeteroData, kind: str) -> Block:
    """Rows of a public type: their columns, and means over the public rows beside them."""
    people = people_of(graph)
    own, columns = _numbers(rows_of(graph, kind)), list(columns_of(graph, kind))
    blocks, names = [own], list(columns)
    for name in _relations(graph):
        if kind not in (name[0], name[2]) or name[0] in people or name[2] in people:
            continue
        other = _other_end(name, kind)
        rows = _numbers(rows_of(graph, other))
        of = aggregate(
            _lists_of(graph, name, kind), rows, columns_of(graph, other), (), ("count", "mean"),
            write_relation(name),
        )  # fmt: skip
        names += [column for block in of for column in block.names]
        blocks += [block.values for block in of]
    return Block(names, _side_by_side(blocks))


def _put_edges(data: Data, graph: HeteroData, starts: dict[str, int], count: int) -> None:
    """Relations between people; undirected if any of them is, so that no edge is one message."""
    pieces, directions = [], []
    for name in _relations(graph):
        if name[0] in starts and name[2] in starts:
            ends = check_ends(graph, name)
            pieces.append(ends + torch.tensor([[starts[name[0]]], [starts[name[2]]]]))
            directions.append(graph[name].get("directed"))
    data.edge_index = torch.cat([torch.empty(2, 0, dtype=torch.long), *pieces], dim=1)
    if not pieces or None not in directions:
        data.directed = bool(pieces) and all(directions)
        if not data.directed:
            data.edge_index = to_undirected(data.edge_index, num_nodes=count)


def _put_records(
    data: Data, graph: HeteroData, target: str, types: list[str], counts: list[int]
) -> None:
    """Labels, masks and ids: those of the target, and none of the people who come along."""
    store, more = graph[target], sum(counts) - counts[0]
    owned = [kind for kind in types[1:] if graph[kind].get("owner") is not None]
    if owned:
        raise UnprovenError(
            "Owners must be stated of one type of people, whose rows are counted. Got an 'owner' "
            f"of the type {owned[0]!r} beside the people of {target!r} instead, and nobody knows "
            "who is the same in both; leave out the relations between the two types, or one type."
        )
    for name in _OF_RECORDS:
        value = store.get(name)
        if value is None:
            continue
        if len(value) != counts[0]:
            raise InvalidInputError(
                f"The '{name}' of the type {target!r} must have an entry for each of its "
                f"{counts[0]:,} rows. Got {len(value):,} instead; correct it."
            )
        empty = torch.nan if value.is_floating_point() else -float(value.dtype != torch.bool)
        rest = torch.full((more, *value.shape[1:]), empty, dtype=value.dtype)
        if name == "owner":  # people of other types own themselves
            rest = torch.arange(more) + value.max() + 1
            data.unit_name = target
        data[name] = torch.cat([value, rest])
    for name in OF_ALL:
        if name not in (*LINES, "columns", "directed", "own_lists", "spent") and name in store:
            data[name] = store[name]
    if "unit_name" not in data:
        data.unit_name = " or ".join(types)[:60]
    ids = [_ids_of(graph, kind) for kind in types]
    own = len(types) == 1
    data.ids = [
        name if own else f"{kind} {name}"
        for kind, names in zip(types, ids, strict=True)
        for name in names
    ]


def _put_lines(data: Data, graph: HeteroData, types: list[str], read: list[Relation]) -> None:
    """What certificates repeat: who counts as people, what was declared public, what is ``read``.

    Lists that rows hold are named in ``own_lists``, too.
    """
    data.own_lists = list(dict.fromkeys(map(write_relation, read)))
    if getattr(graph, "spent", None):
        data.spent = list(graph.spent)
    for of in LINES:
        lines = [*getattr(graph, of, ()), *(n for k in types for n in graph[k].get(of, ()))]
        if of == "public":
            lines += describe_types(graph)
            if data.own_lists:
                one, called = " or ".join(types), shorten(data.own_lists)
                lines.append(f"a node is one {one}, whose row holds the lists {called}")
        if lines:
            data[of] = list(dict.fromkeys(lines))


def describe_types(graph: HeteroData) -> list[str]:
    """Lines for certificates: the types that are people, and those that were declared public."""
    people = people_of(graph)
    public = [kind for kind in graph.node_types if kind not in people]
    lines = [f"the types that are people: {shorten(people)}"]
    if public:
        rows = shorten([f"{kind} ({rows_of(graph, kind).shape[0]:,} rows)" for kind in public])
        lines.append(f"the types declared public, with rows, ids and relations among them: {rows}")
    return lines


# --- links ----------------------------------------------------------------------------------------


def links_of(graph: HeteroData, relation: str | Sequence[str]) -> Data:
    """One relation of a typed graph as the data of a link task.

    Sources are people; their rows are those of :func:`flatten`, without the lists of this relation.
    Targets are public rows, or people of the same type. ``links`` are pairs without repeats, in the
    order of their numbers: a relation without direction has each pair once, the smaller number
    first. ``link_time`` are the times of a relation that has ``time``, of a repeated pair the first
    one.

    *Guarantee*: none; nothing is released. Rows of a public type count as public.
    """
    check_typed(graph)
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
    directed = source != target or bool(store.get("directed"))
    rows = people_rows(graph, source, without=name)
    data = Data(x=_as_rows(rows.values))
    data.columns, data.ids = rows.names, list(_ids_of(graph, source))
    others = ends[0] != ends[1] if source == target else torch.ones_like(ends[0], dtype=torch.bool)
    pairs = (ends if directed else ends.sort(dim=0).values)[:, others]  # nobody links to itself
    width = max(rows_of(graph, target).shape[0], 1)
    unique, place = (pairs[0] * width + pairs[1]).unique(return_inverse=True)
    data.links = torch.stack([unique // width, unique % width])
    if store.get("time") is not None:
        first = torch.full((len(unique),), torch.inf, dtype=torch.float64)
        data.link_time = first.scatter_reduce(0, place, store["time"][others].double(), "amin")
    data.directed, data.relation = directed, write_relation(name)
    data.source_name, data.target_name = source, target
    if source != target:
        public = public_rows(graph, target)
        data.target_x, data.target_columns = _as_rows(public.values), public.names
        data.target_ids = list(_ids_of(graph, target))
    for mask in MASKS:
        if graph[source].get(mask) is not None:
            data[mask] = graph[source][mask]
    read = [other for other in _list_relations(graph, source) if other != name]
    _put_lines(
        data, graph, [source], [other for other in read if _aggregates_of(graph, other, None)]
    )
    data.unit_name = graph[source].get("unit_name", source)
    for name_of in ("schema", "owner", "owner_name", "owner_rows"):
        if graph[source].get(name_of) is not None:
            data[name_of] = graph[source][name_of]
    return data


# --- what a typed graph says of itself ------------------------------------------------------------


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
                f"{', '.join(graph.node_types) or 'it has none'}. Got {_validate.shown(name)} "
                f"instead; {'correct it' if graph.node_types else 'give it a type with rows'}."
            )
    return tuple(people)


def target_of(graph: HeteroData, target: str | None = None) -> str:
    """The type whose rows are the records: as named, or the only one that is people."""
    people = people_of(graph)
    target = getattr(graph, "target", None) if target is None else target
    if target is None and len(people) == 1:
        return people[0]
    if target not in people:
        got = "nothing" if target is None else _validate.shown(target)
        raise InvalidInputError(
            f"The 'target' parameter must be a type that is people: {', '.join(people)}. Got {got} "
            "instead; name whose label is predicted."
        )
    return str(target)


def relation_of(graph: HeteroData, relation: str | Sequence[str]) -> Relation:
    """A relation by its three names, by its file's words (user-buys-item) or by its own word."""
    names = list(_relations(graph))
    if not isinstance(relation, str):
        fit = [name for name in names if name == tuple(relation)]
    else:
        fit = [name for name in names if write_relation(name) == relation]
        fit = fit or [name for name in names if name[1] == relation]
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


def _relations(graph: HeteroData) -> Iterator[Relation]:
    """All relations in the order of their names, but for those that reverse another."""
    names = sorted(graph.edge_types)
    for source, word, target in names:
        forward = (target, word.removeprefix("rev_"), source)
        if not (word.startswith("rev_") and forward in names):
            yield source, word, target


def _list_relations(graph: HeteroData, kind: str) -> list[Relation]:
    """The relations of people of a type with public types: their lists."""
    people = people_of(graph)
    ends = [(name, {name[0], name[2]} - {kind}) for name in _relations(graph)]
    ends = [(name, other) for name, other in ends if kind in (name[0], name[2])]
    return [name for name, other in ends if other and not other & set(people)]


def _other_end(name: Relation, kind: str) -> str:
    return name[2] if name[0] == kind else name[0]


def _aggregates_of(graph: HeteroData, name: Relation, lists: Any) -> tuple[str, ...]:
    own = graph[name].get("lists")
    chosen = lists if own is None else own
    if chosen is not None:
        return check_aggregates(chosen)
    thing = name[2] if name[0] in people_of(graph) else name[0]
    return usual_aggregates(_numbers(rows_of(graph, thing)))


def _lists_of(graph: HeteroData, name: Relation, kind: str) -> sparse.csr_array:
    """What rows of a type name in a relation; of a type with itself, both ends name each other."""
    ends = check_ends(graph, name).numpy()
    ends = ends if name[0] == kind else ends[::-1]
    if name[0] == name[2]:
        ends = np.concatenate([ends, ends[::-1]], axis=1)
    shape = (rows_of(graph, kind).shape[0], rows_of(graph, _other_end(name, kind)).shape[0])
    return make_lists(ends[0], ends[1], shape)


def lists_to_public(
    graph: HeteroData, relation: str | Sequence[str]
) -> tuple[Relation, str, str, sparse.csr_array]:
    """A relation of people with public rows: its name, both types, and everybody's list."""
    name, people = relation_of(graph, relation), people_of(graph)
    ends = [kind for kind in (name[0], name[2]) if kind in people]
    if len(ends) != 1:
        got = "two types that are people" if ends else "two public types"
        raise InvalidInputError(
            f"A relation of people with public rows is needed. Got {write_relation(name)!r} "
            f"between {got} instead; name another."
        )
    return name, ends[0], _other_end(name, ends[0]), _lists_of(graph, name, ends[0])


def columns_of(graph: HeteroData, kind: str) -> Sequence[str]:
    """The names of a type's columns; numbers where it has none."""
    names, width = graph[kind].get("columns"), rows_of(graph, kind).shape[1]
    if names is None:
        return [f"x{place}" for place in range(width)]
    return _check_names(names, width, f"The 'columns' of the type {kind!r}", "column")


def _ids_of(graph: HeteroData, kind: str) -> Sequence[str]:
    """The ids of a type's rows; numbers where it has none."""
    ids, count = graph[kind].get("ids"), rows_of(graph, kind).shape[0]
    if ids is None:
        return [str(place) for place in range(count)]
    return _check_names(ids, count, f"The 'ids' of the type {kind!r}", "row")


def _check_names(names: Any, count: int, what: str, of: str) -> Sequence[str]:
    fit = isinstance(names, (list, tuple)) and all(isinstance(name, str) for name in names)
    if not fit or len(names) != count or len(set(names)) < count:
        got = f"{len(names):,} names" if fit else type(names).__name__
        raise InvalidInputError(
            f"{what} must be a list of different texts, one for each {of}: {count:,}. Got {got} "
            "instead; correct it, or leave it out."
        )
    return names


# --- checks ---------------------------------------------------------------------------------------


def check_typed(graph: HeteroData) -> HeteroData:
    """Return a typed graph as it is, or say what is wrong with it.

    A public type must have rows of its own: rows that only edges bring are read off private lists.
    A public column that was computed from people's lists or rows is refused where it is a count of
    them, a sum or a mean; so is a relation of what people name together.

    *Guarantee*: none. It reads private values, and its refusals are for the data's owner.
    """
    people = people_of(graph)
    for kind in graph.node_types:
        rows_of(graph, kind)
        _check_roles(graph, kind, is_person=kind in people)
        columns_of(graph, kind)
        _ids_of(graph, kind)
    for name in _relations(graph):
        check_ends(graph, name)
    for kind in people:
        for name in _list_relations(graph, kind):
            _check_public(graph, name, kind)
        _check_relations(graph, kind)
    return graph


def _check_roles(graph: HeteroData, kind: str, *, is_person: bool) -> None:
    """Refuse a public type with what people have: labels, masks or owners."""
    given = [name for name in _OF_RECORDS if graph[kind].get(name) is not None]
    if given and not is_person:
        raise InvalidInputError(
            f"The type {kind!r} is not among 'people', so that all its rows are public. Got "
            f"'{given[0]}' of it instead, which people have; leave it out, or add it to 'people'."
        )


def _check_relations(graph: HeteroData, kind: str) -> None:
    """Refuse a relation between public types that joins what people name together."""
    lists = [(_other_end(n, kind), n) for n in _list_relations(graph, kind)]
    for name in _relations(graph):
        if {name[0], name[2]} & set(people_of(graph)):
            continue
        ends = check_ends(graph, name).numpy()
        for of_source in (own for thing, own in lists if thing == name[0]):
            for of_target in (own for thing, own in lists if thing == name[2]):
                one, other = (_lists_of(graph, own, kind) for own in (of_source, of_target))
                if is_copied_relation(one, other, ends, same=of_source == of_target):
                    raise InvalidInputError(
                        "Relations between public types must not depend on people. Got "
                        f"{write_relation(name)!r} instead, which joins what many have together in "
                        f"{write_relation(of_source)!r}: it was made of their lists, and nothing "
                        "would protect them; leave it out."
                    )


def _check_public(graph: HeteroData, name: Relation, kind: str) -> None:
    """Refuse a public column that was computed from the people of a relation."""
    thing = _other_end(name, kind)
    rows, of_people = _numbers(rows_of(graph, thing)), _numbers(rows_of(graph, kind))
    if sparse.issparse(rows):
        return
    released = set(graph[thing].get("released") or ())  # through noise, and charged
    rows = np.where([name in released for name in columns_of(graph, thing)], 0.0, rows)
    values = [] if sparse.issparse(of_people) else [of_people[:, :_ROWS_OF_PEOPLE]]
    y = graph[kind].get("y")
    if isinstance(y, Tensor) and len(y) == of_people.shape[0]:
        values.append(torch.nan_to_num(y.double()).reshape(len(y), -1).numpy())
    values = values or [np.empty((of_people.shape[0], 0))]
    place = find_copied_column(_lists_of(graph, name, kind), rows, np.concatenate(values, axis=1))
    if place is not None:
        column = columns_of(graph, thing)[place]
        raise InvalidInputError(
            f"Rows of the public type {thing!r} must not depend on people. Got the column "
            f"{column!r} instead, which follows {write_relation(name)!r}: it was computed from "
            f"lists or rows of people, and nothing would protect them; leave it out."
        )


def rows_of(graph: HeteroData, kind: str) -> Tensor:
    """The rows ``x`` of a type; one without any of its own is refused."""
    x = graph[kind].get("x")
    if not isinstance(x, Tensor) or x.dim() != 2 or not x.is_floating_point() or 0 in x.shape:
        raise InvalidInputError(
            f"The type {kind!r} must have rows of its own: x, a float tensor (rows, columns). Got "
            f"{name_tensor(x)} instead; {_way_to_rows(graph, kind, x)}."
        )
    return x


def _way_to_rows(graph: HeteroData, kind: str, x: Any) -> str:
    if isinstance(x, Tensor) and x.dim() == 2 and 0 not in x.shape:
        return "convert it with x.float()"
    why = "rows that edges alone bring are read off private lists"
    return f"give it a table, if only of ones{'' if kind in people_of(graph) else f': {why}'}"


def check_ends(graph: HeteroData, name: Relation) -> Tensor:
    """The (2, edges) of a relation; an end that is no row of its type is refused."""
    ends, called = graph[name].get("edge_index"), write_relation(name)
    if (
        not isinstance(ends, Tensor)
        or ends.dtype != torch.long
        or ends.dim() != 2
        or len(ends) != 2
    ):
        raise InvalidInputError(
            f"The relation {called!r} must have edge_index, a long tensor (2, edges). Got "
            f"{name_tensor(ends)} instead; give one, perhaps by edge_index.long()."
        )
    check_layout("edge_index", ends)
    for kind, side in ((name[0], ends[0]), (name[2], ends[1])):
        rows = rows_of(graph, kind).shape[0]
        if side.numel() and not 0 <= int(side.min()) <= int(side.max()) < rows:
            raise InvalidInputError(
                f"The relation {called!r} must be between rows of the graph. Got a number that is "
                f"no row of {kind!r}, which has {rows:,}, instead; give the type all of its rows, "
                "because rows that edges alone bring are read off private lists."
            )
    return ends


# --- arrays ---------------------------------------------------------------------------------------


def _numbers(x: Tensor) -> Any:
    """Rows in float64: an array, or a sparse one."""
    if is_sparse(x):
        return as_csr(x).astype(np.float64)
    rows: NDArray[np.float64] = x.detach().cpu().numpy().astype(np.float64)
    if not np.isfinite(rows).all():
        raise InvalidInputError(
            "The rows of every type must be finite. Got a value that is not instead; put a public "
            "constant there, and a column of 0 and 1 that says where."
        )
    return rows


def _side_by_side(blocks: list[Any]) -> Any:
    width = sum(block.shape[1] for block in blocks)
    if width <= MOST_DENSE and not sparse.issparse(blocks[0]):
        dense = [block.toarray() if sparse.issparse(block) else block for block in blocks]
        return np.concatenate(dense, axis=1)
    return sparse.csr_array(sparse.hstack([sparse.csr_array(block) for block in blocks], "csr"))


def _starts(counts: list[int]) -> list[int]:
    return [sum(counts[:place]) for place in range(len(counts))]


def _stack(parts: list[Block], counts: list[int]) -> Any:
    """Rows of several types below each other, with columns of their own, and their types."""
    rows = sparse.block_diag([sparse.csr_array(part.values) for part in parts], "csr")
    kinds = np.repeat(np.arange(len(parts)), counts)[:, None] == np.arange(len(parts))
    joined = sparse.csr_array(sparse.hstack([rows, sparse.csr_array(kinds.astype(float))], "csr"))
    return joined.toarray() if joined.shape[1] <= MOST_DENSE else joined


def _as_rows(values: Any) -> Tensor:
    """Float32, dense or sparse as it is."""
    if not sparse.issparse(values):
        return torch.from_numpy(np.ascontiguousarray(values, np.float32))
    rows = sparse.csr_array(values).astype(np.float32)
    rows.sort_indices()
    return as_tensor(rows)
