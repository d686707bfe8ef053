"""Which edges of a graph does a classifier look at, and does a private one look at the same?

    test = with_edges(data, data.test_mask)[:10]
    private, in_the_open = explain(method, data, test), explain(baseline, data, test, seed=1)
    print(agreement(private, in_the_open).mean)

An explanation gives every edge of a graph an importance for the class that the model predicts.
Edges above a threshold are kept; two models are compared by the intersection over union (IoU) of
what they keep (Mueller et al. 2022, Table 3).

*Guarantee*: an explanation is a function of the weights and of the graph explained. Of a graph
outside of training it says no more about the training graphs than the weights do. Of a training
graph it is a release of that graph, which the certificate does not cover.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.explain import Explainer, GNNExplainer, ModelConfig
from torch_geometric.nn import MessagePassing

from graphveil import _validate
from graphveil._errors import InvalidInputError
from graphveil._progress import Progress
from graphveil.graph.subsets import select_graphs
from graphveil.methods import Method
from graphveil.methods.graph_models import reads_counts
from graphveil.methods.open_training import seeded_weights

EXPLAINERS = ("gnn", "saliency", "integrated")
ROUNDS = {"gnn": 200, "saliency": 1, "integrated": 50}
THRESHOLD = 0.2

Edges = frozenset[tuple[int, int]]


@dataclass(frozen=True, kw_only=True, eq=False)
class Explanation:
    """How much each edge of one graph matters to the class that a model predicts for it.

    ``edge_index`` is the graph's own, with nodes from 0, and ``importance`` has a number in [0, 1]
    for each of its edges. Edges between the same two nodes, the two directions among them, have one
    value: the mean of theirs. ``label`` is -1 where none is known.
    """

    graph: int
    num_nodes: int
    edge_index: Tensor
    importance: Tensor
    predicted: int
    probability: float
    label: int = -1

    @cached_property
    def by_edge(self) -> dict[tuple[int, int], float]:
        """The importance of each edge, directions taken together: the smaller node first."""
        ends = self.edge_index.sort(0).values.t().tolist()
        named = zip(map(tuple, ends), self.importance.tolist(), strict=True)
        return dict(sorted(named))

    @property
    def edges(self) -> Edges:
        """All edges of the graph, directions taken together."""
        return frozenset(self.by_edge)

    def kept(self, threshold: float = THRESHOLD) -> Edges:
        """The edges whose importance reaches the threshold."""
        return frozenset(edge for edge, value in self.by_edge.items() if value >= threshold)


def explain(
    method: Method,
    data: Any,
    graphs: Sequence[int] | Tensor,
    *,
    explainer: str = "gnn",
    epochs: int | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> list[Explanation]:
    """Explain what ``method`` predicts for ``graphs``, numbers of graphs in ``data``.

    ``gnn`` is PyG's GNNExplainer: gates on the edges, found by ``epochs`` steps of Adam so that few
    open ones keep the prediction. The importance is the gate itself, as the paper thresholds it.
    Its outcome depends on where the gates start, which ``seed`` draws for each graph anew.
    ``saliency`` is the size of the gradient of the predicted class's log-odds by the gates, where
    all are open; ``integrated`` its mean from closed to open gates, at ``epochs`` points. These two
    draw nothing, count edges that speak against the class as well as those for it, and are scaled
    so that a graph's most important edge has 1; if no edge matters, all have 0.

    Columns that a method computes from the edges beforehand (``degree``, ``geometry``) are taken as
    they are: an explanation does not see what they tell of an edge.

    The method is left as it was. The same seed gives the same numbers.

    *Guarantee*: none for the graphs explained; see the top of this module.
    """
    if not (isinstance(method, Method) and method.record == "graph"):
        raise InvalidInputError(
            "The 'method' parameter must classify whole graphs, as graph-dpsgd and graph-gnn do. "
            f"Got {getattr(method, 'name', method)!r} instead."
        )
    _validate.choice("explainer", explainer, EXPLAINERS)
    rounds = ROUNDS[explainer] if epochs is None else epochs
    rounds = _validate.integer("epochs", rounds, "[1, 1e6]")
    _validate.integer("seed", seed, "[0, 1e18]")
    numbers = torch.as_tensor(graphs, dtype=torch.long).flatten()
    inside: Any = method
    some = select_graphs(inside.take(data), numbers)
    probabilities, classes = inside.predict_proba(some).max(1)  # refused if it is not fitted
    if reads_counts(inside):
        raise InvalidInputError(
            "The 'method' parameter must have convolutions, whose messages can be turned down edge "
            f"by edge. Got a '{inside.name}' that is linear in counts of patterns instead; train "
            "it with conv='sum' (--set conv=sum), or another convolution."
        )
    network = copy.deepcopy(inside.network_).eval().requires_grad_(False)
    terms = inside.graphs(some)
    labels = [-1] * len(numbers) if some.y is None else some.y.tolist()

    explanations = []
    places = range(len(numbers))
    for place in places if progress is None else progress(places):
        ((x, edge_index, *_),) = terms.batches(torch.tensor([place]))
        importance = torch.zeros(edge_index.shape[1])
        if edge_index.shape[1] and len(network.convs):
            with seeded_weights(seed):
                importance = _importance(network, x, edge_index, explainer, rounds)
        explanations.append(
            Explanation(
                graph=int(numbers[place]),
                num_nodes=len(x),
                edge_index=edge_index,
                importance=importance,
                predicted=int(classes[place]),
                probability=float(probabilities[place]),
                label=int(labels[place]),
            )
        )
    return explanations


def with_edges(data: Data, mask: Tensor) -> Tensor:
    """The graphs of a mask that have an edge, in order: those that there is something to say of."""
    source, target = data.edge_index
    sent = torch.bincount(data.batch[source[source != target]], minlength=int(data.num_graphs))
    return (mask & (sent > 0)).nonzero().flatten()


# --- explainers -----------------------------------------------------------------------------------


class _Holder(MessagePassing):
    """A class of its own: PyG writes into the class of every layer that is made."""


class Masked(nn.Module):
    """A classifier of one graph that PyG's explainers can put edge masks on.

    They look for layers of PyG's and set a mask on each; ours are none. So there is one here that
    passes no messages, whose mask becomes the gates of the network.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.holder = _Holder()

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Logits (1, out) of one graph."""
        gate = self.holder._edge_mask
        if gate is not None and self.holder._apply_sigmoid:
            gate = gate.sigmoid()
        return self.network(x, edge_index, _one_graph(x), 1, gate=gate)


def _importance(
    network: nn.Module, x: Tensor, edge_index: Tensor, explainer: str, rounds: int
) -> Tensor:
    if explainer == "gnn":
        return _by_edge(edge_index, _gnn_explainer(network, x, edge_index, rounds))
    # The middles of as many parts of the way from closed to open, or its end.
    parts = (torch.arange(rounds) + 0.5) / rounds
    slopes = _slopes(network, x, edge_index, parts if explainer == "integrated" else torch.ones(1))
    size = _by_edge(edge_index, slopes).abs()
    return size / size.max() if bool(size.max() > 0) else size


def _gnn_explainer(network: nn.Module, x: Tensor, edge_index: Tensor, epochs: int) -> Tensor:
    model = Masked(network).eval()  # PyG puts a model back into the mode it was given in
    with torch.no_grad():
        binary = model(x, edge_index).shape[1] == 1
    explainer = Explainer(
        model,
        GNNExplainer(epochs=epochs),
        explanation_type="model",
        edge_mask_type="object",
        model_config=ModelConfig(
            mode="binary_classification" if binary else "multiclass_classification",
            task_level="graph",
            return_type="raw",
        ),
    )
    return explainer(x, edge_index).edge_mask


def _slopes(network: nn.Module, x: Tensor, edge_index: Tensor, openings: Tensor) -> Tensor:
    """The gradient by the gates of the predicted class's log-odds, its mean over ``openings``."""
    with torch.no_grad():
        predicted = int(_log_odds(network(x, edge_index, _one_graph(x), 1)).argmax())
    total = torch.zeros(edge_index.shape[1])
    for opening in openings.tolist():
        gate = torch.full((edge_index.shape[1],), opening, requires_grad=True)
        logits = network(x, edge_index, _one_graph(x), 1, gate=gate)
        total += torch.autograd.grad(_log_odds(logits)[predicted], gate)[0]
    return total / len(openings)


def _log_odds(logits: Tensor) -> Tensor:
    """Of each class against all others: unlike a probability, it is never flat."""
    if logits.shape[1] == 1:
        return torch.cat([-logits[0], logits[0]])
    others = [torch.cat([logits[0, :c], logits[0, c + 1 :]]) for c in range(logits.shape[1])]
    return logits[0] - torch.stack([rest.logsumexp(0) for rest in others])


def _one_graph(x: Tensor) -> Tensor:
    return torch.zeros(len(x), dtype=torch.long)


def _by_edge(edge_index: Tensor, values: Tensor) -> Tensor:
    """Edges between the same two nodes share the mean of their values."""
    _, edge = edge_index.sort(0).values.unique(dim=1, return_inverse=True)
    total = torch.zeros(int(edge.max()) + 1).index_add(0, edge, values)
    return (total / torch.bincount(edge))[edge]


# --- agreement ------------------------------------------------------------------------------------


def iou(one: Edges, other: Edges) -> float:
    """Intersection over union; two empty sets agree: 1."""
    return len(one & other) / len(one | other) if one | other else 1.0


def iou_by_chance(edges: int, one: int, other: int) -> float:
    """The expected IoU of two sets of such sizes, drawn at random among ``edges``."""
    if one + other == 0:
        return 1.0
    ways = math.comb(edges, other)
    return sum(
        math.comb(one, both) * math.comb(edges - one, other - both) / ways * both / union
        for both in range(max(0, one + other - edges), min(one, other) + 1)
        if (union := one + other - both)
    )


@dataclass(frozen=True, kw_only=True)
class Ious:
    """How far explanations meet, on one graph or on average over several.

    ``by_chance`` is what ``private_open`` would be, had both kept as many edges at random.
    ``again`` is the IoU of the open model's explanation and of one from another start: what the
    explainer's own draw leaves. ``same_class`` says whether both models predict one class, or for
    how many graphs: explanations of different classes answer different questions.
    """

    original_open: float
    original_private: float
    private_open: float
    by_chance: float
    same_class: float
    again: float | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Agreement:
    """Explanations of a private and an open model for the same graphs, side by side."""

    private: Sequence[Explanation]
    open: Sequence[Explanation]
    threshold: float
    ious: Sequence[Ious] = field(repr=False)  # of each graph

    @property
    def mean(self) -> Ious:
        """Every graph counts alike."""
        return _mean(self.ious)

    @property
    def mean_same_class(self) -> Ious | None:
        """The mean over the graphs for which both predict one class; None if there is none."""
        same = [ious for ious in self.ious if ious.same_class]
        return _mean(same) if same else None


def agreement(
    private: Sequence[Explanation],
    open: Sequence[Explanation],
    *,
    threshold: float = THRESHOLD,
    again: Sequence[Explanation] | None = None,
) -> Agreement:
    """Compare explanations of the same graphs, in the same order, by two models.

    ``gnn`` starts at random, and the same start draws two models' explanations together: give them
    different seeds. ``again`` explains the open model once more, under yet another seed.

    *Guarantee*: none; see the top of this module.
    """
    _validate.number("threshold", threshold, "[0, 1]")
    sides = [private, open, *([] if again is None else [again])]
    graphs = [[(one.graph, one.edges) for one in side] for side in sides]
    if not private or any(side != graphs[0] for side in graphs):
        raise InvalidInputError(
            "Explanations must be of the same graphs, one or more, in the same order. Got "
            f"{' and '.join(str([one.graph for one in side]) for side in sides)} instead."
        )
    starts: Sequence[Explanation | None] = [None] * len(private) if again is None else again
    rows = zip(private, open, starts, strict=True)
    ious = [_compare(*row, threshold=threshold) for row in rows]
    return Agreement(private=private, open=open, threshold=threshold, ious=ious)


def _compare(
    private: Explanation, open: Explanation, again: Explanation | None, threshold: float
) -> Ious:
    edges, mine, theirs = private.edges, private.kept(threshold), open.kept(threshold)
    return Ious(
        original_open=iou(edges, theirs),
        original_private=iou(edges, mine),
        private_open=iou(mine, theirs),
        by_chance=iou_by_chance(len(edges), len(mine), len(theirs)),
        same_class=float(private.predicted == open.predicted),
        again=None if again is None else iou(theirs, again.kept(threshold)),
    )


def _mean(ious: Sequence[Ious]) -> Ious:
    def mean(name: str) -> Any:
        values = [getattr(one, name) for one in ious]
        return None if None in values else sum(values) / len(values)

    return Ious(**{part.name: mean(part.name) for part in fields(Ious)})
