"""Models of whole graphs: linear in counts of each graph's own patterns, or convolutions.

A graph is a record, so that all it tells of itself is free (:mod:`graphveil.graph.counts`). The
rules by which ``graph-dpsgd`` reads it and steps are :func:`choose_rounds` and
:func:`choose_length`, over public numbers alone.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from graphveil._errors import InvalidInputError
from graphveil.graph.counts import LENGTH, count_patterns, num_columns
from graphveil.graph.transforms import GEOMETRIES
from graphveil.methods.own_row import output_noise
from graphveil.methods.parts import Steps
from graphveil.methods.plan import Facts
from graphveil.methods.settings import (
    Activation,
    Normalisation,
    setting,
    setting_fields,
    settings,
)
from graphveil.nn.descriptions import GraphNetwork, Perceptron

if TYPE_CHECKING:
    from scipy import sparse
    from torch import Tensor
    from torch_geometric.data import Data

    from graphveil.methods.task import Task

_CONVOLUTION = (
    "conv", "num_layers", "hidden_channels", "pool", "norm", "norm_first", "head_layers",
    "head_channels", "activation", "normalisation", "heads", "scale", "degree", "geometry", "loss",
)  # fmt: skip
_SIGNALS = (350.0, 500.0)  # graphs for a unit of noise, from which on 2 rounds are heard, and 3
ROUNDS = 3  # at most
_NOISE = 1.2  # in one output, at the end, for two classes
_LONGEST = 5.0  # a learning rate beyond which steps overshoot
_ROWS_AT_ONCE = 512  # that are made dense together


@settings()
class GraphSettings:
    """What a model of whole graphs reads, and what it is.

    By default it reads counts. The other settings are of convolutions, and of columns that are
    added to every node for them: these are inside the graph, and free.
    """

    conv: Literal["sum", "gcn", "sage", "gat", "gin"] | None = setting(
        "The convolution; by default none, and the model is linear in counts of each graph's own "
        "patterns. Where another setting of convolutions is given, it is 'sum'.",
        None,
    )
    rounds: int | None = setting(
        "Of counts: how often colours of nodes are refined (Weisfeiler-Lehman); by default it "
        "follows from graphs and noise.",
        None,
        "[0, 10]",
    )
    hash_columns: int = setting(
        "Of counts: the columns that the colours of a round share, by hash.", 1024, "[1, 1e6]"
    )
    num_layers: int | None = setting("Convolutions; by default 2.", None, "[0, 20]")
    hidden_channels: Any = setting("The width of all layers, or a list with one for each.", 32)
    pool: Literal["mean", "max", "sum"] = setting(
        "How the nodes of a graph become one row.", "mean"
    )
    norm: str | None = setting(
        "'instance': after each convolution, columns are normalised over the graph's nodes.", None
    )
    norm_first: bool = setting("Normalise so the columns before the first convolution.", False)
    head_layers: int | None = setting(
        "Layers after the pool; by default 1, or one more than 'head_channels' has widths.",
        None,
        "[1, inf)",
    )
    head_channels: Any = setting(
        "The width of hidden layers after the pool, or a list with one for each.", None
    )
    activation: Activation = setting("What follows hidden layers.", "tanh")
    normalisation: Normalisation | None = setting(
        "The weights of messages; by default 'none' for the convolution 'sum', else 'symmetric'.",
        None,
    )
    heads: int = setting("Heads of the convolution 'gat'.", 1, "[1, inf)")
    scale: float = setting(
        "What sums of the convolution 'sum' and of the pool 'sum' are multiplied by.",
        0.2,
        "(0, inf)",
    )
    degree: bool = setting("Add the logarithm of every node's degree.", True)
    geometry: Literal["edges", "moments"] | None = setting(
        "Add which way edges point ('edges'), and where in the graph they do so ('moments'), "
        "where the data has places.",
        None,
    )
    loss: Literal["softmax", "binary"] = setting(
        "'binary' has one logit for two classes.", "softmax"
    )


def choose_rounds(facts: Facts, noise: float) -> int:
    """How often colours are refined, by the graphs to train on for one unit of ``noise``.

    ``noise`` is the multiplier of one Gaussian that spends the whole budget. Where few graphs stand
    against it the patterns of many nodes are too rare to be heard.
    """
    signal = facts.num_train / noise
    return ROUNDS - sum(signal < enough for enough in _SIGNALS)


def choose_length(facts: Facts, steps: Steps, bearable: float = 1.0) -> float:
    """The learning rate that the noise in one output allows, more of it where classes are many.

    ``bearable`` is the task's share of the noise that logits bear.
    """
    if steps.noise_multiplier == 0 or not isinstance(steps.max_grad_norm, int | float):
        return _LONGEST
    noise = output_noise(replace(steps, learning_rate=1.0), steps.rate * facts.num_train, LENGTH)
    share = bearable * math.sqrt(max(facts.num_classes, 2) / 2)
    return min(_LONGEST, _NOISE * share / noise)


def reads_counts(method: Any) -> bool:
    """Whether the model is linear in counts: no setting of convolutions was given."""
    usual = setting_fields(GraphSettings)
    paper = getattr(method, "paper", False)
    return not paper and all(getattr(method, name) == usual[name].default for name in _CONVOLUTION)


def describe_model(method: Any, facts: Facts, dropout: float = 0.0) -> GraphNetwork | Perceptron:
    """One linear layer on counts, or convolutions, a pool, a head."""
    if not reads_counts(method):
        return _describe_convolutions(method, facts, dropout)
    width = num_columns(
        facts.num_features, rounds=method.rounds_for(facts), columns=method.hash_columns
    )
    return Perceptron(width, 1, method.task(facts).outputs, 1)


def _describe_convolutions(method: Any, facts: Facts, dropout: float) -> GraphNetwork:
    if method.loss == "binary" and facts.num_classes != 2:
        raise InvalidInputError(
            "The loss 'binary' must have two classes. Got data with "
            f"{facts.num_classes} instead; use the loss 'softmax'."
        )
    added = int(method.degree) + (0 if method.geometry is None else GEOMETRIES[method.geometry])
    return GraphNetwork(
        in_channels=facts.num_features + added,
        hidden_channels=method.hidden_channels,
        out_channels=method.task(facts).outputs,
        conv=method.conv or "sum",
        num_layers=method.num_layers,
        pool=method.pool,
        norm=method.norm,
        norm_first=method.norm_first,
        head_layers=method.head_layers,
        activation=method.activation,
        dropout=dropout,
        head_channels=method.head_channels,
        normalisation=method.normalisation,
        heads=method.heads,
        scale=method.scale,
    )


def count_rows(method: Any, data: Data) -> sparse.csr_array:
    """The rows that a fitted or planned linear model reads."""
    rounds = method.rounds_for(method.plan_.facts)
    return count_patterns(data, rounds=rounds, columns=method.hash_columns)


def count_examples(method: Any, data: Data) -> Any:
    """The loss terms of a linear model: the rows of the training graphs.

    Where data has owners it is one for each owner, of all their training graphs.

    *Guarantee conditions* (unit ``graph``): a term is a function of its own graph alone.
    """
    from graphveil.grads.own_rows import RowExamples
    from graphveil.graph.owners import group_training

    ids, sizes = data.train_mask.nonzero().flatten(), None
    if (grouped := group_training(data)) is not None:
        ids, sizes = ids[grouped.order], grouped.sizes
    return RowExamples(count_rows(method, data)[ids.numpy()], data.y[ids], sizes)


def count_losses(task: Task, weights: Tensor | None) -> Any:
    """One loss for each row; ``weights`` multiply those of classes."""

    def losses(network: Any, batch: tuple[Tensor, Tensor]) -> Tensor:
        rows, labels = batch
        return task.losses(network(rows), labels, weights)

    return losses


def make_dense(rows: sparse.csr_array) -> Tensor:
    """Rows as a network reads them."""
    import torch

    return torch.from_numpy(rows.toarray()).float()


def outputs_of_graphs(method: Any, data: Data) -> Tensor:
    """What the network says of every graph, from that graph alone."""
    import torch

    facts = method.plan_.facts
    if not int(data.num_graphs):
        return torch.empty(0, method.task(facts).outputs)
    if reads_counts(method):
        rows = count_rows(method, data)
        parts = range(0, rows.shape[0], _ROWS_AT_ONCE)
        outputs: Tensor = torch.cat(
            [method.network_(make_dense(rows[at : at + _ROWS_AT_ONCE])) for at in parts]
        )
        return outputs
    graphs = method.graphs(data)
    return graphs.logits(method.network_, torch.arange(len(graphs)))
