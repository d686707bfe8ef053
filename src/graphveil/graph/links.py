"""Links: who is linked to which target; checked, and read as the lists of their sources.

A ``Data`` is a record "link" where it has ``links``:

==================  ============================================================================
``x``               one row for each source: people
``target_x``        one row for each target, all public; absent where sources and targets are one
                    type, whose rows ``x`` holds
``links``           long (2, links): source and target, no pair twice. Of one type without a
                    direction a pair stands once, the smaller id first
``train_links``     which links are trained on; ``val_links`` and ``test_links`` are withheld
``train_mask``      which sources are trained on: public
``directed``        whether a pair has a direction; of two types it always has
==================  ============================================================================

A source's *own list* is the targets of its training links. Without a direction a pair stands in the
lists of both its ends, as two statements: withholding a person takes that person's away. How many
links there are is private.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch_geometric.data import Data

from graphveil import _validate
from graphveil.graph.caps import cap_receivers, cap_senders
from graphveil.graph.checks import has, refusal, tensor_of
from graphveil.graph.lists import Lists

LINK_MASKS = ("train_links", "val_links", "test_links")
OF_LINKS = ("target_x", "links", "link_time")
# What is said of labels, which links have none of; all else that is said of records stays true.
_OF_LABELS = ("num_classes", "class_names", "task", "value_range", "directed")
MOST_TARGETS = 2**31  # sources and targets share numbers of 32 bits where lists are capped

Pairs = tuple[NDArray[np.int64], NDArray[np.int64]]


def check_links(data: Data, *, masks: bool = True) -> None:
    """Refuse links that a method cannot read; ``masks`` asks for those to train by.

    *Guarantee*: none. It reads private values, and its refusals are for the data's owner.
    """
    sources, targets = len(data["x"]), num_targets(data)
    if has(data, "target_x"):
        _check_targets(data)
    _check_pairs(data, sources, targets)
    _check_masks(data, sources, required=masks)


def is_one_type(data: Data) -> bool:
    """Whether sources and targets are the same rows."""
    return not has(data, "target_x")


def num_targets(data: Data) -> int:
    """How many targets there are; public."""
    return len(data["x"]) if is_one_type(data) else int(data["target_x"].shape[0])


def is_directed(data: Data) -> bool | None:
    """Whether a pair has a direction: of two types it does; of one, as the data states."""
    from graphveil.graph.checks import directed_of

    return directed_of(data) if is_one_type(data) else True


def _check_targets(data: Data) -> None:
    rows = tensor_of(data, "target_x", "a float tensor (targets, columns)", "leave it out")
    if not rows.is_floating_point() or rows.dim() != 2 or 0 in rows.shape:
        got = f"{rows.dtype} of shape {tuple(rows.shape)}"
        way_out = "give every target a row; a constant column will do"
        raise refusal("target_x", "a float tensor (targets, columns)", got, way_out)
    if len(rows) > MOST_TARGETS:
        raise refusal("target_x", f"of at most {MOST_TARGETS:,} rows", len(rows), "merge targets")
    bad = (~torch.isfinite(rows.float())).nonzero()
    if len(bad):
        row, column = bad[0].tolist()
        got = f"{rows[row, column].item()} at target {row}, column {column}"
        raise refusal("target_x", "finite everywhere", got, "put a public constant there")


def _check_pairs(data: Data, sources: int, targets: int) -> None:
    way_out = "a list of pairs is turned by links.t().contiguous()"
    links = tensor_of(data, "links", "a long tensor (2, links)", way_out)
    if links.dtype != torch.long or links.dim() != 2 or len(links) != 2:
        got = f"{links.dtype} of shape {tuple(links.shape)}"
        raise refusal("links", "a long tensor (2, links)", got, way_out)
    for end, count, word in ((0, sources, "source"), (1, targets, "target")):
        ids = links[end]
        if len(ids) and (int(ids.min()) < 0 or int(ids.max()) >= count):
            place = int(((ids < 0) | (ids >= count)).nonzero()[0])
            got = f"the {word} {int(ids[place])} at position {place}"
            way_out = f"drop links to absent {word}s, or add their rows"
            raise refusal("links", f"made of {word}s from 0 to {count - 1}", got, way_out)
    if is_one_type(data):
        _check_one_type(data, links)
    keys = (links[0] * targets + links[1]).sort().values
    if bool((keys[1:] == keys[:-1]).any()):
        raise refusal("links", "made of different pairs", "a pair twice", "keep every pair once")


def _check_one_type(data: Data, links: Tensor) -> None:
    loops = (links[0] == links[1]).nonzero()
    if len(loops):
        got = f"{int(links[0, loops[0]])} linked to itself"
        raise refusal("links", "between two different ones", got, "drop such pairs")
    if is_directed(data) is False and bool((links[0] > links[1]).any()):
        got, way_out = "a larger one first", "sort the ends of every pair, and keep each once"
        raise refusal("links", "the smaller id first where 'directed' is False", got, way_out)


def _check_masks(data: Data, sources: int, *, required: bool) -> None:
    links = data["links"].shape[1]
    for name, count, of in (
        *((name, links, "links") for name in LINK_MASKS),
        ("train_mask", sources, "sources"),
    ):
        if not (required or has(data, name)):
            continue
        way_out = "graphveil.graph.link_splits.split_links draws all four masks"
        mask = tensor_of(data, name, f"a bool tensor ({of},)", way_out)
        if mask.dtype != torch.bool or mask.shape != (count,):
            got = f"{mask.dtype} of shape {tuple(mask.shape)}"
            raise refusal(name, f"a bool tensor ({count},)", got, way_out)
    present = [data[name].int() for name in LINK_MASKS if has(data, name)]
    if present and bool((sum(present, torch.zeros(links, dtype=torch.int)) > 1).any()):
        raise refusal("train_links", "disjoint from the others", "a link in two of them", "put it"
                      " into one part")  # fmt: skip
    if required and not bool(data["train_mask"].any()):
        raise refusal("train_mask", "true somewhere", "nobody to train on", "mark some sources")


def edges_as_links(data: Data) -> Data:
    """A graph whose edges are links between its nodes; labels and masks of nodes are left out.

    Self-loops are dropped, and without a direction a pair stands once. Whether edges have one must
    be stated: measuring it would read private edges.
    """
    from graphveil.graph.checks import OF_ALL, check, directed_of, record_of
    from graphveil.graph.stored import is_stored

    if record_of(data) == "link":
        return data
    check(data, labels=False, masks=False, record="node")
    if is_stored(data):
        way_out = "load the graph from files"
        raise refusal("data", "a graph in memory, for its edges to be links", "a store", way_out)
    directed = directed_of(data)
    if directed is None:
        way_out = "write --directed or --undirected, or set data.directed"
        raise refusal("directed", "stated, for edges to be links", "nothing", way_out)
    ends = data["edge_index"][:, data["edge_index"][0] != data["edge_index"][1]]
    ends = ends if directed else ends.sort(dim=0).values
    names = ("ids", "owner", *(name for name in OF_ALL if name not in _OF_LABELS))
    kept = {name: data[name] for name in names if has(data, name)}
    links = Data(x=data["x"], links=ends.unique(dim=1), directed=directed, **kept)
    links.relation = "edges"
    return links


# --- lists ----------------------------------------------------------------------------------------


def statements(data: Data, mask: Tensor | None = None) -> Pairs:
    """Who names whom, over the links of a mask, by default those trained on.

    Of one type without a direction a pair is two statements, one of each end.
    """
    if mask is None:
        mask = data["train_links"]
    source, target = data["links"][:, mask].numpy()
    if is_one_type(data) and not is_directed(data):
        return np.concatenate([source, target]), np.concatenate([target, source])
    return source, target


def lists_of(sources: NDArray[Any], targets: NDArray[Any], num_sources: int, width: int) -> Lists:
    """The lists that statements make: sorted, so that their order makes no difference."""
    keys = np.sort(sources.astype(np.int64) * width + targets)
    owners, others = np.divmod(keys[np.diff(keys, prepend=-1) != 0], width)
    counts = np.bincount(owners, minlength=num_sources)
    return Lists(np.concatenate([[0], np.cumsum(counts)]), others)


def own_lists(data: Data, mask: Tensor | None = None) -> Lists:
    """The list of every source over the links of a mask, by default those trained on."""
    return lists_of(*statements(data, mask), len(data["x"]), num_targets(data))


def keep_targets(lists: Lists, cap: int, *, num_targets: int, seed: int) -> Pairs:
    """At most ``cap`` targets of each list, by priorities that the pair alone decides.

    *Guarantee conditions*: what is kept of a list is a function of that list, of the public seed
    and of the cap, which was chosen without looking at lists.
    """
    cap = _validate.integer("cap", cap, "[1, inf)")
    sources = lists.num_nodes
    owners = np.repeat(np.arange(sources), np.diff(lists.offsets))
    # Targets have numbers of their own, so that no pair is taken for a self-loop.
    moved = torch.from_numpy(np.stack([owners, lists.others + sources]))
    kept = cap_senders(moved, sources + num_targets, cap, seed=seed).numpy()
    return kept[0], kept[1] - sources


def keep_people(lists: Lists, cap: int, cap_in: int, *, seed: int) -> tuple[Pairs, NDArray[Any]]:
    """Kept pairs of people, and the slot of each in its source's list, from 0 to ``cap`` - 1.

    At most ``cap`` of each list first; then at most ``cap_in`` of those that name one person. A
    pair keeps the slot that it had in its list, whoever drops out.

    *Guarantee conditions* (unit ``node``): both by priorities of the pair; a list's slots are a
    function of that list. What the second cap drops is lost.
    """
    people = lists.num_nodes
    owners = np.repeat(np.arange(people), np.diff(lists.offsets))
    edges = torch.from_numpy(np.stack([owners, lists.others]))
    sent = cap_senders(edges, people, cap, seed=seed)
    source, target = sent.numpy()
    counts = np.bincount(source, minlength=people)
    slot = np.arange(len(source)) - np.repeat(np.cumsum(counts) - counts, counts)
    heard = cap_receivers(sent, people, cap_in, seed=seed).numpy()
    alive = np.isin(source * people + target, heard[0] * people + heard[1])
    return (source[alive], target[alive]), slot[alive]
