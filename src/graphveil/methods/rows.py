"""Rows: who takes part, whom each row reads, and the loss terms that come of it.

``dpar`` chooses through noise whom a row reads, ``open-dpar`` does so in the open; the rest of the
two is the same, and here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from graphveil import _validate
from graphveil.methods.features import Features
from graphveil.methods.settings import setting, settings
from graphveil.nn.descriptions import NodeNetwork

if TYPE_CHECKING:
    from torch import Tensor
    from torch_geometric.data import Data

    from graphveil.graph.messages import Messages
    from graphveil.methods.plan import Facts
    from graphveil.rng import SecretStream, SeededStream


@settings()
class RowSettings:
    """Which rows there are, what they read, and how predictions are smoothed."""

    num_layers: int = setting("Layers of the network.", 1, "[1, 10]")
    rows: int | None = setting(
        "Training nodes that have a row (M); by default all of them.", None, "[1, inf)"
    )
    train_on: Literal["rows", "nodes"] = setting(
        "Whom to train on where not every training node has a row: 'rows' alone, or all 'nodes', "
        "those without a row by themselves.",
        "rows",
    )
    neighbours: int = setting("Nodes chosen for each row (K).", 2, "[1, 1e9]")
    own_weight: float = setting("The weight of a row's own node.", 0.5, "[0, 1)")
    ranking: Literal["ista", "push"] = setting("How PageRank is approximated.", "ista")
    ranking_teleport: float = setting(
        "PageRank's probability of a jump back (its alpha).", 0.25, "(0, 1)"
    )
    rho: float = setting("What PageRank gives up for locality.", 1e-4, "(0, 1)")
    graph_rate: float | None = setting(
        "Train on a random part of the nodes; it is secret, which amplifies what is private. By "
        "default all.",
        None,
        "(0, 1]",
    )
    epochs: int | None = setting(
        "How often steps pass over the loss terms, in place of 'steps'.", None, "[1, 1e9]"
    )
    batch_size: int | None = setting(
        "Loss terms that a step reads; of private steps on average, in place of 'sample_rate'.",
        None,
        "[1, 1e9]",
    )
    smoothing_steps: int = setting(
        "How often means over neighbourhoods are taken.", 2, "[0, 1000]", predicts=True
    )
    teleport: float = setting(
        "The share of a node's own value in such a mean.", 0.25, "[0, 1]", predicts=True
    )


def describe_network(method: Any, facts: Facts, dropout: float = 0.0) -> NodeNetwork:
    """Hidden layers of each node, their weighted sum, logits: the same as summing logits."""
    return NodeNetwork(
        in_channels=Features.of(method).columns(facts.num_features),
        hidden_channels=method.hidden_channels,
        out_channels=method.task(facts).outputs,
        num_layers=1,
        encoder_layers=method.num_layers - 1,
        decoder_layers=0,
        activation=method.activation,
        dropout=dropout,
    )


@dataclass(frozen=True)
class Pace:
    """How many loss terms a step draws, and how many steps there are.

    ``live`` is about how many terms are not zero, ``terms`` how many there are to draw from, both
    public; ``rate`` is that of each, ``count`` the number of steps.
    """

    live: float
    terms: int
    rate: float
    count: int


def pace(method: Any, live: float, terms: int) -> Pace:
    """What the settings of a method come to on so many loss terms."""
    rate, count = method.sample_rate, method.steps
    if method.batch_size is not None:
        rate = min(1.0, method.batch_size / live)
    if method.epochs is not None:
        count = max(1, round(method.epochs / rate))
    return Pace(live, terms, rate, count)


@dataclass(frozen=True, eq=False)
class Sample:
    """Which nodes take part, and which training nodes have a row."""

    sample: Tensor
    rows: Tensor


def draw_sample(
    train: Tensor,
    num_nodes: int,
    rows: int,
    *,
    rate: float,
    public: SeededStream,
    rng: SecretStream,
) -> Sample:
    """Who takes part, and who has a row; from public ids and secret coins.

    Without sampling the rows are public, and so they are if every training node has one. Else they
    are drawn from the sample, in secret; should it be too small, others make up the number, whose
    terms are zero. Which row stands in which place is secret, too: a node that joins the sample
    must not push others from their places.
    """
    import numpy as np
    import torch

    sample = torch.ones(num_nodes, dtype=torch.bool)
    order = public.generator().permutation(len(train))
    if rate < 1:
        sample = torch.from_numpy(rng.bernoulli(rate, num_nodes))
        if rows < len(train):
            live_first = np.lexsort((rng.normal(len(train)), ~sample[train].numpy()))[:rows]
            order = live_first[np.argsort(rng.normal(rows))]
    return Sample(sample, train[torch.from_numpy(order[:rows].copy())])


def rank_nodes(method: Any, data: Data, sample: Tensor) -> Callable[[Tensor], Any]:
    """A function of rows that says how much every node matters to each, inside the sample.

    A row's own node is read for nothing, so it need not be chosen: its score is 0. A row outside
    the sample has no scores at all.

    *Guarantee*: none. Every edge inside the sample is read in the open.
    """
    import numpy as np

    from graphveil.graph.pagerank import make_ranker
    from graphveil.graph.stored import edges_of

    rank = make_ranker(
        edges_of(data),
        len(data.x),
        inside=sample,
        how=method.ranking,
        alpha=method.ranking_teleport,
        rho=method.rho,
    )

    def score(rows: Tensor) -> Any:
        scores = rank(rows)
        own = np.repeat(rows.numpy(), np.diff(scores.indptr))
        scores.data[scores.indices == own] = 0.0
        return scores

    return score


def read_by_rows(
    chosen: Tensor, weight: Tensor, kept: Tensor, rows: Tensor, own_weight: float, num_nodes: int
) -> Messages:
    """What each row reads: its own node, and of those ``chosen`` for it the ones that are ``kept``.

    A row of which nothing is left reads its own node.
    """
    import torch

    from graphveil.graph.messages import Messages

    kept = kept & (chosen != rows.unsqueeze(1))  # its own node is read anyway
    read = torch.where(kept, (1 - own_weight) * weight, 0.0)
    others = read.sum(1)
    itself = torch.where(others > 0, own_weight, 1.0)
    total = itself + others
    own = torch.ones(num_nodes)
    own[rows] = itself / total
    receivers = rows.unsqueeze(1).expand_as(chosen)
    edges = torch.stack([chosen[kept], receivers[kept]])
    return Messages(edges, (read / total.unsqueeze(1))[kept], own)


def row_terms(method: Any, data: Data, drawn: Sample, messages: Messages) -> Any:
    """The loss terms: those of the rows, or of all training nodes. Outside the sample all is zero.

    A linear network may sum features first.
    """
    from torch import Tensor

    from graphveil.grads.own_rows import RowExamples
    from graphveil.graph.lazy_rows import LazyRows
    from graphveil.graph.live_terms import NO_LABEL, LiveTerms

    x = _mask(method.prepare(data), drawn.sample)
    y = data.y.clone()
    y[~drawn.sample] = NO_LABEL
    roots = drawn.rows
    if method.train_on == "nodes":
        roots = data.train_mask.nonzero().flatten()
    if method.num_layers == 1:
        return RowExamples(_sum_rows(x, messages, roots), y[roots])
    dense = x.then(Tensor.to_dense) if isinstance(x, LazyRows) else x.to_dense()
    return LiveTerms(dense, y, messages, roots, 1)


def _mask(x: Any, kept: Tensor) -> Any:
    """The same rows, with zeros in those that are not kept; those of a store stay there."""
    import torch

    from graphveil.graph.lazy_rows import LazyRows
    from graphveil.graph.sparse_rows import mask_rows

    if not isinstance(x, LazyRows):
        return mask_rows(x, kept)
    if bool(kept.all()):
        return x
    return LazyRows(torch.arange(len(x)), lambda ids: mask_rows(x[ids], kept[ids]), x.columns)


def _sum_rows(x: Any, messages: Messages, roots: Tensor) -> Any:
    """The weighted sums that roots read; of a store they are made when they are asked for."""
    from graphveil.graph.lazy_rows import LazyRows
    from graphveil.graph.sparse_rows import take_rows
    from graphveil.graph.surroundings import surround

    if not isinstance(x, LazyRows):
        return take_rows(messages.weighted(x), roots)

    def sum_here(ids: Tensor) -> Tensor:
        read = surround(messages, ids, 1)
        return take_rows(read.messages.weighted(x[read.nodes]), read.readers)

    return LazyRows(roots, sum_here, x.columns)


def count_rows(method: Any, facts: Facts, *, usual: int | None = None) -> int:
    """M: so many as were asked for, by default every training node, or the ``usual`` number."""
    if method.rows is not None:
        return _validate.integer("rows", method.rows, f"[1, {facts.num_train}]")
    return facts.num_train if usual is None else min(usual, facts.num_train)


def smooth_predictions(method: Any, data: Data) -> tuple[Tensor, Tensor, Messages]:
    """Log-probabilities from each node alone, the same after power iteration, and over what.

    Equation 4 of the paper, over a graph with self-loops. Over logits it would decide alike: a
    node's log-probabilities are its logits but for one number, which every step carries along.
    """
    from graphveil.graph.propagation import spread_rows
    from graphveil.methods.terms import every_message, on_own_rows

    task = method.task(method.plan_.facts)
    own = task.beliefs(on_own_rows(method.network_, method.prepare(data)))
    messages = every_message(data, method.seed)
    return own, spread_rows(own, messages, method.smoothing_steps, method.teleport), messages
