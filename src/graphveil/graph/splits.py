"""Who is trained on, who is tested: splits drawn from public ids alone.

A split that looks at the labels, to have each class in each part, is a function of private data and
would have to be paid for. :func:`split` draws from the ids 0..n-1 and a seed, both public.

*Transductive*: one graph, and the masks say who is in which part::

    data = split(data, seed=1)

*Inductive*: two graphs without an edge between them, so that nothing about the tested nodes is seen
in training::

    training, testing = separate(split(data, seed=1))

Where the records are whole graphs (a ``Data`` with ``batch``), all of this is about graphs: the
masks, and the two sets that :func:`separate` gives.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor
from torch_geometric.data import Data

from graphveil import _validate
from graphveil._errors import InvalidInputError
from graphveil.graph.checks import (
    MASKS,
    OF_ALL,
    check,
    class_names_of,
    has,
    ids_of,
    num_classes_of,
    num_records,
    record_of,
    task_of,
)
from graphveil.graph.owners import owners_of, rank_owners
from graphveil.graph.public_lines import LEFT_OUT
from graphveil.graph.shares import SHARES, check_fractions, part_ends, thinned_size
from graphveil.graph.sparse_rows import take_rows
from graphveil.graph.stored import is_stored
from graphveil.graph.subsets import select_graphs
from graphveil.graph.targets import OF_CLASSES, is_labelled
from graphveil.rng import seeded


def split(data: Data, fractions: Sequence[float] = SHARES, seed: int = 0) -> Data:
    """A copy of ``data`` with random ``train_mask``, ``val_mask`` and ``test_mask``.

    ``fractions`` are the three parts' shares of the nodes; what they leave of 1 is in no part. The
    part of a node depends on its id, the number of nodes and ``seed``. Where records have owners
    (``data.owner``), owners are drawn, each with all that is theirs, and shares are of owners.
    Afterwards each unlabelled node (negative ``y``) is taken out of its part, which moves no other
    node. Many graphs are split in the same way, graph by graph.

    *Guarantee*: no cost. The split is a function of public values; *who is unlabelled* counts as
    public too where there are such nodes.
    """
    return draw_masks(check(data, labels=False, masks=False), fractions, seed)


def draw_masks(data: Data, fractions: Sequence[float] = SHARES, seed: int = 0) -> Data:
    """As :func:`split`, of data that was checked when it was read."""
    shares, owner = check_fractions(fractions), owners_of(data)
    whose = torch.arange(num_records(data)) if owner is None else rank_owners(owner)
    count = len(whose) if owner is None else int(whose.max()) + 1
    order = torch.from_numpy(seeded(seed, "split").generator().permutation(count))

    result = copy.copy(data)
    start = 0
    for name, end in zip(MASKS, part_ends(count, shares), strict=True):
        drawn = torch.zeros(count, dtype=torch.bool)
        drawn[order[start:end]] = True
        mask = drawn[whose]
        result[name] = mask if data.y is None else mask & is_labelled(data.y)
        start = end
    if not result.train_mask.any():
        raise InvalidInputError(
            f"The 'fractions' parameter must leave somebody to train on. Got {tuple(fractions)} of "
            f"{len(whose)} {record_of(data)}s instead; take a larger first share, or label more of "
            "them."
        )
    return result


def thin(data: Data, share: float, seed: int = 0, *, remove: bool = False) -> Data:
    """A copy of ``data`` with a random ``share`` of its training records left in ``train_mask``.

    Where records have owners it is a share of the owners, each with all that is theirs.
    The others stay in the data, without a part in training. With ``remove`` they and their edges
    are gone from it, and what is left is numbered afresh, with its old ids as ``node_id`` (of
    graphs ``graph_id``). Smaller shares of the same ``seed`` are subsets of larger ones.

    *Guarantee*: no cost. Who stays depends on the ids, the mask and ``seed``.
    """
    share = _validate.number("share", share, "(0, 1]")
    training = check(data, labels=False, masks=True).train_mask.nonzero().flatten()
    owner = owners_of(data)
    whose = torch.arange(len(training)) if owner is None else rank_owners(owner[training])
    count = int(whose.max()) + 1
    order = torch.from_numpy(seeded(seed, "training share").generator().permutation(count))
    drawn = torch.zeros(count, dtype=torch.bool)
    drawn[order[: thinned_size(count, share)]] = True
    result = copy.copy(data)
    result.train_mask = torch.zeros_like(data.train_mask)
    result.train_mask[training[drawn[whose]]] = True
    return _select(result, result.train_mask | ~data.train_mask) if remove else result


def cap_owners(data: Data, most: int, seed: int = 0) -> Data:
    """A copy of ``data`` in which nobody owns more than ``most`` records, which is a public rule.

    The others are gone, with their edges. Which ones stay is drawn by ``seed`` among an owner's
    records, without a look at them. What is left is numbered afresh, with its old ids as
    ``node_id`` (of graphs ``graph_id``), and ``data.owner_rows`` states the rule. Methods that
    charge for every row of an owner need it.

    *Guarantee*: no cost. Who stays depends on the ids, on whose they are and on ``seed``.
    """
    most = _validate.integer("most", most, "[1, 1e9]")
    owner = owners_of(check(data, labels=False, masks=False))
    if owner is None:
        raise InvalidInputError(
            "The data must say whose its records are, 'owner'. Got none instead; give owners with "
            "graphveil.set_owners, or name their column in the schema."
        )
    priority = torch.from_numpy(seeded(seed, "owner rows").generator().permutation(len(owner)))
    drawn = priority.argsort()
    drawn = drawn[owner[drawn].argsort(stable=True)]  # an owner's together, by priority
    sizes = owner.unique(return_counts=True)[1]
    place = torch.arange(len(owner)) - (sizes.cumsum(0) - sizes).repeat_interleave(sizes)
    kept = torch.zeros(len(owner), dtype=torch.bool)
    kept[drawn[place < most]] = True
    result = _select(data, kept)
    result.owner_rows = most
    return result


def leave_out_small_classes(data: Data, least: int) -> Data:
    """A copy of ``data`` without the records of classes with fewer than ``least`` labelled ones.

    Their edges go with them; unlabelled records stay. Classes and records are numbered afresh:
    ``class_names`` are the names of the classes that are left, or their old numbers where they
    have no names, and ``node_id`` (of graphs ``graph_id``) the old ids of the records.

    *Guarantee*: none. Which classes are large, and who is in the others, is read off the labels:
    it is declared public, and certificates of what is trained on it name it as not protected.
    """
    least = _validate.integer("min_class", least, "[1, 1e9]")
    check(data, masks=False)
    if task_of(data) not in OF_CLASSES:
        raise InvalidInputError(
            "The 'min_class' parameter must go with records that are in one class each. Got the "
            f"task {task_of(data)!r} instead; leave it out."
        )
    classes, labelled = num_classes_of(data), data.y >= 0
    sizes = torch.bincount(data.y[labelled], minlength=classes)
    large = (sizes >= least).nonzero().flatten()
    if len(large) < 2:
        raise InvalidInputError(
            f"The 'min_class' parameter must leave two classes. Got {least} instead, and the "
            f"second largest class has {int(sizes.sort(descending=True)[0][1])} labelled "
            f"{record_of(data)}s; take that or less."
        )
    new = torch.full((classes,), -1)
    new[large] = torch.arange(len(large))
    kept = ~labelled | (new[data.y.clamp_min(0)] >= 0)
    names = class_names_of(data) or [str(number) for number in range(classes)]
    part = _select(data, kept)
    part.y = torch.where(part.y >= 0, new[part.y.clamp_min(0)], part.y)
    part.num_classes, part.class_names = len(large), [names[c] for c in large.tolist()]
    line = LEFT_OUT.format(least, record_of(data))
    part.public = [*getattr(data, "public", ()), line]
    part.unprotected = [*getattr(data, "unprotected", ()), line]
    return part


def take_classes(data: Data, names: Sequence[str]) -> Data:
    """A copy of ``data`` whose labels are places in ``names``; records of other classes have none.

    Those are in no mask, either.

    ``names`` are those of :func:`leave_out_small_classes`, which says where they come from.

    *Guarantee*: none is needed: a label becomes another, or none, by ``names`` alone.
    """
    result = copy.copy(data)
    if has(data, "y"):
        known = class_names_of(data) or [str(number) for number in range(num_classes_of(data))]
        places = [names.index(name) if name in names else -1 for name in known]
        y = torch.tensor(places)[data.y.clamp_min(0)]
        result.y = torch.where(data.y >= 0, y, data.y)
        for name in (name for name in MASKS if has(data, name)):
            result[name] = data[name] & (result.y >= 0)
    result.num_classes, result.class_names = len(names), list(names)
    return result


def separate(data: Data) -> tuple[Data, Data]:
    """Two graphs out of one: training and validation nodes, and test nodes. Edges between are cut.

    Works on any masks, drawn or given. Each part is numbered afresh and keeps its old ids as
    ``node_id``. Nodes in no mask are in neither part. Many graphs become two sets of graphs, with
    their old ids as ``graph_id``, and no edge is cut.

    *Guarantee*: no cost. An edge is kept or cut by which masks its ends are in, nothing else.
    """
    check(data, labels=False, masks=True)
    testing = data.test_mask
    if not testing.any():
        raise InvalidInputError(
            "The 'test_mask' parameter must be true somewhere. Got no test "
            f"{record_of(data)} instead; draw a split with a third share above 0."
        )
    return _select(data, data.train_mask | data.val_mask), _select(data, testing)


def _select(data: Data, subset: Tensor) -> Data:
    """The records of a mask, and the edges between them."""
    if record_of(data) == "graph":
        return select_graphs(data, subset)
    if is_stored(data):
        raise InvalidInputError(
            "A part of a graph must be taken of one that is in memory. Got the store "
            f"{data.stored.path} instead; keep all its nodes and mask them (the split given or "
            "transductive), or build a store of the part."
        )
    part = copy.copy(data)
    # PyG takes a list as long as the graph for a node's own.
    of_all = {name: data[name] for name in OF_ALL if name in data}
    ids = ids_of(data)
    for name in (*of_all, "ids"):
        if name in part:
            del part[name]
    if "node_id" not in part:
        part.node_id = torch.arange(len(subset))
    part.x = torch.arange(len(subset))  # rows may be sparse, which PyG does not take parts of
    part = part.subgraph(subset)
    if ids is not None:
        part.ids = [ids[node] for node in part.x.tolist()]
    part.x = take_rows(data.x, part.x)
    for name, value in of_all.items():
        part[name] = value
    return part
