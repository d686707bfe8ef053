"""Loss terms to draw from: neighbourhoods of nodes, groups of nodes, whole graphs."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.utils import coalesce, remove_self_loops

from graphveil.devices import CPU, home_of
from graphveil.grads.clipped import Losses
from graphveil.grads.own_rows import RowExamples
from graphveil.grads.rows import grouped, ragged
from graphveil.graph.blocks import Numbered, block_sizes
from graphveil.graph.caps import cap_senders
from graphveil.graph.groups import random_groups, within
from graphveil.graph.lazy_rows import LazyRows, map_rows, pick_rows
from graphveil.graph.lists import Lists
from graphveil.graph.messages import Messages, weigh_messages
from graphveil.graph.neighbourhoods import Rooted, RootedTerms
from graphveil.graph.owners import group_training
from graphveil.graph.side_by_side import SideBySide
from graphveil.graph.sparse_rows import is_sparse
from graphveil.graph.stored import edges_of
from graphveil.graph.stored_messages import weigh_lists
from graphveil.graph.targets import fill_in, is_live
from graphveil.graph.transforms import add_degree, add_edge_geometry
from graphveil.methods.task import Task
from graphveil.rng import SeededStream, seeded

_NODES_AT_ONCE = 20_000  # that go through the network together


# --- one node -------------------------------------------------------------------------------------


def no_messages(num_nodes: int) -> Messages:
    """A graph without messages: every node by itself."""
    return weigh_messages(torch.empty(2, 0, dtype=torch.long), num_nodes)


def every_message(data: Data, seed: int, normalisation: str = "inverse-degree") -> Any:
    """The messages of a graph in the open, each once; those of a store stay on disk."""
    edges, nodes = edges_of(data), len(data.x)
    if isinstance(edges, Lists):
        return weigh_lists(edges, normalisation)
    return weigh_messages(cap_senders(edges, nodes, None, seed=seed), nodes, normalisation)


def on_own_rows(network: Any, rows: Any) -> Tensor:
    """What a network without convolutions says of every row by itself, in blocks of them."""

    def read(some: Tensor) -> Tensor:
        outputs: Tensor = network.on_graph(some, no_messages(some.shape[0]))
        return outputs

    return map_rows(read, rows)


def on_messages(network: Any, rows: Any, messages: Any) -> Tensor:
    """What a network says of every node of a graph, in memory or in a store.

    On an accelerator a graph in memory is sent there as a whole.
    """
    here = home_of(network).type == CPU and not (isinstance(rows, Tensor) and is_sparse(rows))
    outputs: Tensor
    if isinstance(rows, LazyRows) or here:
        outputs = network.in_blocks(rows, messages)
    else:
        outputs = network.on_graph(rows, messages)
    return outputs


def node_terms(
    x: Tensor, data: Data, messages: Messages, hops: int, *, side_by_side: bool = False
) -> RootedTerms:
    """One loss term for each training node, which reads its neighbourhood of so many hops."""
    roots = data.train_mask.nonzero().flatten()
    return RootedTerms(x, data.y, messages, roots, hops, side_by_side=side_by_side)


def own_row_terms(x: Tensor | LazyRows, data: Data) -> RowExamples:
    """One loss term for each training node, which reads its own row and nothing else.

    Where data has owners it is one for each owner, of all their training nodes.
    """
    train, sizes = data.train_mask.nonzero().flatten(), None
    if (grouped := group_training(data)) is not None:
        train, sizes = train[grouped.order], grouped.sizes
    return RowExamples(pick_rows(x, train), data.y[train], sizes)


def node_losses(task: Task, weights: Tensor | None = None) -> Losses:
    """One loss for each root; ``weights`` multiply those of classes."""

    def losses(network: nn.Module, batch: tuple[Rooted | SideBySide, Tensor]) -> Tensor:
        around, labels = batch
        return task.losses(network(around), labels, weights)

    return losses


# --- one group ------------------------------------------------------------------------------------

GroupBatch = tuple[Tensor, Messages, Tensor, int, Tensor, Tensor]


class GroupTerms:
    """Loss terms to draw from, one for each group: its nodes, its edges, its labels.

    ``labels`` are negative where a node has no loss. With ``fresh`` set, groups are drawn anew
    after every so many steps; otherwise they stay. Of a store, whose ``edges`` are lists, the rows
    and the lists of the groups that a step draws are read, and no others.

    *Guarantee conditions*: withholding a node, or an edge, changes what one group holds and nothing
    else: no other term reads its row, whichever groups there are.
    """

    def __init__(
        self,
        x: Tensor | LazyRows,
        labels: Tensor,
        edges: Tensor | Lists,
        count: int,
        stream: SeededStream,
        *,
        normalisation: str = "symmetric",
        fresh: int | None = None,
    ) -> None:
        self.x, self.labels, self.edges = x, labels, edges
        self.count, self.stream, self.fresh = count, stream, fresh
        self.normalisation = normalisation
        self._draw(0)

    def _draw(self, time: int) -> None:
        """The groups of the ``time``-th drawing, whichever others were drawn before."""
        self._time = time
        purpose = f"{self.stream.purpose} {time}" if time else self.stream.purpose
        self.groups = random_groups(len(self.x), self.count, seeded(self.stream.seed, purpose))
        if not isinstance(self.edges, Lists):
            self._cut = within(self.edges, self.groups)

    def __len__(self) -> int:
        return self.count

    def influence(self, unit: str = "node", **_: Any) -> tuple[int, int]:
        """A node or an edge alters one group, whatever else is gone with it."""
        return 0, self.count if unit == "graph" else 1

    def begin(self, step: int) -> None:
        """Draw the groups of a step. They follow its public number alone.

        A count of batches would not do: it stands still where a secret batch was empty.
        """
        if self.fresh is not None and step // self.fresh != self._time:
            self._draw(step // self.fresh)

    def batches(self, drawn: Tensor) -> Iterator[GroupBatch]:
        """Rows, messages, owners, how many groups, labels, ids; whole groups, as many as fit."""
        size = -(-len(self.x) // self.count)
        for part in drawn.split(max(1, _NODES_AT_ONCE // size)):
            place = torch.full((self.count,), -1)
            place[part] = torch.arange(len(part))
            owner = place[self.groups]
            nodes = (owner >= 0).nonzero().flatten()
            number = torch.empty(len(self.x), dtype=torch.long)
            number[nodes] = torch.arange(len(nodes))
            if isinstance(self.edges, Lists):
                edges = within(self.edges, self.groups, nodes)
            else:
                edges = self._cut[:, owner[self._cut[1]] >= 0]
            # Who sends to a node, and to whom it sends, is all in its group: so are its weights.
            messages = weigh_messages(number[edges], len(nodes), self.normalisation)
            yield self.x[nodes], messages, owner[nodes], len(part), self.labels[nodes], nodes


def group_losses(task: Task, weights: Tensor | None = None) -> Losses:
    """One loss for each group: the mean over its labelled nodes, zero if there is none."""

    def losses(network: Any, batch: GroupBatch) -> Tensor:
        x, messages, owner, count, labels, ids = batch
        with ragged(owner, count):
            logits = network.on_graph(x, messages, ids)
        labelled = is_live(labels)
        of_nodes = task.losses(logits, fill_in(labels), weights) * labelled
        total = of_nodes.new_zeros(count).index_add(0, owner, of_nodes)
        return total / torch.bincount(owner[labelled], minlength=count).clamp_min(1)

    return losses


# --- one graph ------------------------------------------------------------------------------------


class Graphs:
    """Graphs to draw from, each with its nodes, its edges and its label.

    *Guarantee conditions*: a batch holds of every graph what that graph itself is.
    """

    def __init__(self, data: Data) -> None:
        order = torch.argsort(data.batch, stable=True)
        number = torch.empty_like(order)
        number[order] = torch.arange(len(order))
        self.x = data.x[order].float()
        count = int(data.num_graphs)
        self.nodes = torch.bincount(data.batch, minlength=count)
        self.first = self.nodes.cumsum(0) - self.nodes
        owner = data.batch[data.edge_index[0]]
        by_owner = torch.argsort(owner, stable=True)
        self.edges = number[data.edge_index[:, by_owner]]
        self.sent = torch.bincount(owner, minlength=count)
        self.first_edge = self.sent.cumsum(0) - self.sent
        self.y = data.y if "y" in data and data.y is not None else torch.full((count,), -1)
        self.ids = torch.arange(count)  # those that are drawn from
        self.sizes: Tensor | None = None  # how many of them, in turn, are one term; None: each

    @classmethod
    def of(cls, data: Data, *, degree: bool, geometry: str | None) -> Graphs:
        """The graphs as a network reads them: every edge once, and none from a node to itself."""
        data = copy.copy(data)
        edges = remove_self_loops(data.edge_index)[0]
        data.edge_index, data.edge_attr = coalesce(edges, num_nodes=len(data.x)), None
        if geometry is not None:
            data = add_edge_geometry(data, moments=geometry == "moments")
        return cls(add_degree(data) if degree else data)

    def __len__(self) -> int:
        return len(self.ids) if self.sizes is None else len(self.sizes)

    def batches(self, drawn: Tensor) -> Iterator[Numbered]:
        """Rows, edges, owners, how many graphs, labels; ascending, as many graphs as fit.

        Where several graphs are a term, also whose each graph is, and how many terms there are.
        """
        drawn = drawn.sort().values
        if self.sizes is not None:
            yield from self._means(drawn, self.sizes)
            return
        sizes = block_sizes(drawn, self.nodes[self.ids[drawn]], _NODES_AT_ONCE)
        for part in drawn.split(sizes):
            yield Numbered(self._batch(self.ids[part]), part)

    def _means(self, drawn: Tensor, sizes: Tensor) -> Iterator[Numbered]:
        first, heights = sizes.cumsum(0) - sizes, self.nodes[self.ids]
        whose = torch.arange(len(sizes)).repeat_interleave(sizes)
        heights = torch.zeros(len(sizes), dtype=torch.long).index_add(0, whose, heights)
        for part in drawn.split(block_sizes(drawn, heights[drawn], _NODES_AT_ONCE)):
            places, owner = _ranges(first[part], sizes[part])
            yield Numbered((*self._batch(self.ids[places]), owner, len(part)), part)

    def logits(self, network: nn.Module, drawn: Tensor) -> Tensor:
        """What a network says of the graphs, in the order in which they are named."""
        logits = torch.cat([network(*batch[:-1]) for batch in self.batches(drawn)])
        return logits[drawn.argsort().argsort()]

    def _batch(self, ids: Tensor) -> tuple[Tensor, Tensor, Tensor, int, Tensor]:
        nodes, sent = self.nodes[ids], self.sent[ids]
        rows, owner = _ranges(self.first[ids], nodes)
        edges, edge_owner = _ranges(self.first_edge[ids], sent)
        # A graph's edges move with its nodes, from where they stand to where they go.
        moved = (nodes.cumsum(0) - nodes - self.first[ids])[edge_owner]
        return self.x[rows], self.edges[:, edges] + moved, owner, len(ids), self.y[ids]


def graph_losses(task: Task, weights: Tensor | None) -> Losses:
    """One loss for each graph, or the mean of each owner's; ``weights`` multiply those of classes.

    A graph without a label adds nothing to its owner's mean.
    """

    def losses(network: Any, batch: tuple[Any, ...]) -> Tensor:
        x, edges, nodes, graphs, y, *owners = batch
        if not owners:
            return task.losses(network(x, edges, nodes, graphs), y, weights)
        owner, count = owners
        with grouped(owner, count):
            logits = network(x, edges, nodes, graphs)
        of_graphs = task.losses(logits, fill_in(y), weights) * is_live(y)
        total = of_graphs.new_zeros(count).index_add(0, owner, of_graphs)
        return total / torch.bincount(owner, minlength=count).clamp_min(1)

    return losses


def _ranges(first: Tensor, length: Tensor) -> tuple[Tensor, Tensor]:
    """The numbers first, first + 1, ... of every range, and whose they are."""
    owner = torch.arange(len(first)).repeat_interleave(length)
    within_range = torch.arange(len(owner)) - (length.cumsum(0) - length)[owner]
    return first[owner] + within_range, owner
