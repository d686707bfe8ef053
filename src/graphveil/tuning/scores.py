"""How good a trial is: right answers on validation records, and how far one unit moves their count.

A *private* score counts predictions that read little, so that one unit moves the count by at most
:func:`sensitivity`:

=======================================  =================================  ====================
method                                   a prediction reads                 one unit moves it by
=======================================  =================================  ====================
dp-mlp, late-graph, dpar, graph-split    its own row: all edges are left    node 1, edge 0
                                         out
graph-dpsgd                              its own graph                      graph 1
dp-gnn                                   its neighbourhood after the caps   r + a, as in training
                                         of training
gap                                      its own row and its noisy sums     node 1, edge 0
=======================================  =================================  ====================

A *public* score is exact, and reads nothing but validation records, each other's edges, and what
training released. Proofs: docs/guarantees/tuning.md.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from graphveil._errors import InvalidInputError, UnprovenError
from graphveil.graph.sparse_rows import take_rows
from graphveil.graph.stored import edges_among, without_edges
from graphveil.graph.targets import is_labelled
from graphveil.methods import METHODS, Facts, Method
from graphveil.methods.measures import SMALLER_IS_BETTER
from graphveil.methods.settings import setting_fields
from graphveil.methods.terms import on_messages


def unseen(method: str) -> tuple[str, ...]:
    """Settings of how the graph is read when predicting, which a score from one row ignores."""
    kind = METHODS[method]
    if kind.scored_by != "own row":
        return ()
    return tuple(n for n, field in setting_fields(kind).items() if field.metadata["predicts"])


def validation(data: Data) -> Tensor:
    """Which records score a trial: labelled ones of the validation mask, of which one must be."""
    wanted = data.val_mask & is_labelled(data.y)
    if not wanted.any():
        raise InvalidInputError(
            "Trials must be scored on labelled validation records. Got none in 'val_mask' instead; "
            "take a split that has some, or choose on another data set (--public-data)."
        )
    return wanted


def sensitivity(method: Method, facts: Facts) -> int:
    """By how much one unit can change the private score of a fitted ``method``, given its weights.

    *Guarantee*: whatever the graph; of the unit and relation that the method's plan names. Public:
    settings and ``facts``. A method whose predictions have no bound here is refused.
    """
    unit = getattr(method, "unit", method.units[0])
    if facts.has_shared_owners and unit != "edge":
        raise UnprovenError(
            "How far one unit moves the score must be proven. Got owners of several records, who "
            "have several answers each; choose on public data (--public-data)."
        )
    if method.scored_by == "neighbourhood":
        # The count of loss terms, with validation records as the roots: at most every node is one.
        influence: Any = method
        return sum(influence.influence(replace(facts, num_train=facts.num_nodes)))
    if method.scored_by in ("own row", "cache"):
        return 1 if unit == "node" else 0
    if method.scored_by == "own graph":
        return 1
    raise UnprovenError(
        "How far one unit moves the score must be proven. Got the method "
        f"'{method.name}', for which it is not; choose on public data (--public-data)."
    )


def private_answers(method: Any, data: Data) -> Tensor:
    """The answers of every record, by the predictions that :func:`sensitivity` speaks of."""
    if method.scored_by != "neighbourhood":
        alone = method.scored_by == "own row"
        answers: Tensor = method.predict_proba(without_edges(data) if alone else data)
        return answers
    data, network = method.readable(data), method.network_.eval()
    with torch.no_grad():
        outputs = on_messages(network, method.prepare(data), method.capped_messages(data))
    return method.answers(outputs)


def private_count(method: Any, data: Data) -> float:
    """Right answers among validation records. Not to be shown without noise.

    An answer that is right in part counts for its share, between 0 and 1.
    """
    wanted = validation(data)
    return add_credit(method, private_answers(method, data)[wanted], data.y[wanted])


def add_credit(method: Any, answers: Tensor, y: Tensor) -> float:
    """How many answers are right, those in part by their share."""
    return float(method.task(method.plan_.facts).credit(answers, y).sum())


def score_openly(method: Any, answers: Tensor, y: Tensor, metric: str | None) -> float:
    """Right answers, or as many records as a figure is a share of; the larger, the better."""
    if metric is None:
        return add_credit(method, answers, y)
    figure = method.task(method.plan_.facts).measure(answers, y)[metric]
    if figure is None:
        raise InvalidInputError(
            "The 'metric' parameter must mean something for the validation records. Got "
            f"{metric!r} instead; name another."
        )
    return len(y) * (-figure if metric in SMALLER_IS_BETTER else figure)


def public_count(method: Any, data: Data, metric: str | None = None) -> float:
    """Right answers, exactly; what is read beside the weights was declared public."""
    wanted = validation(data)
    if method.record == "node" and method.scored_by != "cache":
        # A neighbour outside is private: the edges to it are left out.
        data = _among(data, wanted)
        wanted = torch.ones(len(data.x), dtype=torch.bool)
    return score_openly(method, method.predict_proba(data)[wanted], data.y[wanted], metric)


def _among(data: Data, kept: Tensor) -> Data:
    """The kept nodes with the edges between them, as a graph of its own."""
    number = torch.full((len(kept),), -1)
    number[kept] = torch.arange(int(kept.sum()))
    x, edge_index = take_rows(data.x, kept), number[edges_among(data, kept)]
    stated = {name: data[name] for name in ("task", "value_range") if name in data}
    return Data(x=x, edge_index=edge_index, y=data.y[kept], **stated)
