"""The classifier of ``gap`` as an ONNX graph: encoders, what the head reads, the head.

Each function follows one of :mod:`graphveil.methods.hop_training` or :mod:`graphveil.nn.gap`.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from graphveil._errors import InvalidInputError
from graphveil.export.models import add_features
from graphveil.export.onnx_graph import Graph
from graphveil.methods.hop_training import FAINTEST
from graphveil.nn.gap import Encoder, HopHead, LinearHead, LinearRows, ResidualHead, SumHead
from graphveil.nn.mlp import MLP

_GRID = 2.0**16  # on which encodings lie
_LEAST = -15.0  # what an encoder's log-probability is at least


def add_gap(graph: Graph, method: Any, x: str, sums: str) -> str:
    """What the head says of a node's own row and of the sums cached for it."""
    columns = method.plan_.facts.num_features
    rows = add_features(graph, method.features_for(columns), columns, x)
    return _add_head(graph, method.network_.head, _add_inputs(graph, method, rows, sums))


# --- what the head reads --------------------------------------------------------------------------


def _add_inputs(graph: Graph, method: Any, rows: str, sums: str) -> str:
    network, kind = method.network_, method.messages_in_use
    if kind == "encoding":
        own = _add_unit_rows(graph, _add_encoding(graph, network.encoders[0], rows))
        heard = graph.add("Flatten", graph.normalise(sums, axis=2), axis=1)
        return graph.join([own, heard])
    scaled = graph.times(sums, 1 / method.cache_unit)
    if kind == "belief":
        return _add_belief_inputs(graph, method, rows, scaled)
    own = _add_beliefs(graph, network, rows) if method.encodes else rows
    return graph.join([own, graph.add("Flatten", scaled, axis=1)])


def _add_belief_inputs(graph: Graph, method: Any, rows: str, scaled: str) -> str:
    own = graph.at_least(_add_beliefs(graph, method.network_, rows), FAINTEST)
    own = graph.add("Sub", own, graph.add("ReduceMean", own, axes=[1], keepdims=1))
    half = method.cache_.shape[1] // 2
    heard = graph.times(graph.take(scaled, 0, half), 1 / max(1.0, method.cache_unit))
    read = graph.take(scaled, half, 2 * half)
    flat = [graph.add("Flatten", part, axis=1) for part in (heard, read)]
    return graph.times(graph.join([own, *flat]), 1 / LinearHead.unit)


def _add_beliefs(graph: Graph, network: Any, rows: str) -> str:
    """What the encoders say of a row, on average."""
    said_by = [_add_encoder(graph, encoder, rows) for encoder in network.encoders]
    mean = graph.mean([graph.add("Softmax", logits, axis=1) for logits in said_by])
    return graph.add("LogSoftmax", graph.at_least(graph.add("Log", mean), _LEAST), axis=1)


def _add_encoder(graph: Graph, encoder: nn.Module, rows: str) -> str:
    if isinstance(encoder, LinearRows):
        return graph.linear(rows, encoder.linear)
    assert isinstance(encoder, Encoder)
    return graph.linear(_add_encoding(graph, encoder, rows), encoder.head)


def _add_encoding(graph: Graph, encoder: Encoder, rows: str) -> str:
    return graph.activated(graph.mlp(rows, encoder.body), encoder.after)


def _add_unit_rows(graph: Graph, rows: str) -> str:
    """Length 1, cut to the grid towards zero."""
    rows = graph.normalise(rows)
    size = graph.add("Floor", graph.times(graph.add("Abs", rows), _GRID))
    return graph.times(graph.add("Mul", graph.add("Sign", rows), size), 1 / _GRID)


# --- heads ----------------------------------------------------------------------------------------


def _add_head(graph: Graph, head: nn.Module, rows: str) -> str:
    if isinstance(head, LinearHead):
        return graph.linear(rows, head.linear)
    if isinstance(head, MLP):
        return graph.mlp(rows, head)
    if isinstance(head, HopHead):
        return _add_hop_head(graph, head, rows)
    if isinstance(head, SumHead):
        return _add_sum_head(graph, head, rows)
    if isinstance(head, ResidualHead):
        return _add_residual_head(graph, head, rows)
    raise InvalidInputError(
        f"A head must be one of graphveil's to be exported. Got {type(head).__name__} instead."
    )


def _add_residual_head(graph: Graph, head: ResidualHead, rows: str) -> str:
    classes, width = head.num_classes, head.mlp.linears[0].in_features
    assert isinstance(width, int)
    own, cached = graph.take(rows, 0, classes), graph.take(rows, classes, width)
    inputs = graph.join([graph.times(graph.at_least(own, -10.0), 1 / 3.0), cached])
    return graph.add("Add", own, graph.mlp(inputs, head.mlp))


def _add_sum_head(graph: Graph, head: SumHead, rows: str) -> str:
    classes = head.num_classes
    parts = [
        graph.times(graph.take(rows, place * classes, (place + 1) * classes), scale)
        for place, scale in enumerate(head.scale.tolist())
    ]
    return graph.add("Sum", *parts, graph.constant(head.bias))


def _add_hop_head(graph: Graph, head: HopHead, rows: str) -> str:
    hops, first = [], 0
    for width, layer in zip(head.widths, head.each, strict=True):
        assert isinstance(layer, nn.Linear)
        part = graph.linear(graph.take(rows, first, first + width), layer)
        hops.append(graph.activated(part, head.after))
        first += width
    if head.combine == "concat":
        return graph.linear(graph.join(hops), head.head)
    weights = graph.join([graph.linear(hop, head.score) for hop in hops])
    weights = graph.add("Softmax", weights, axis=1)
    weighed = [
        graph.add("Mul", graph.take(weights, place, place + 1), hop)
        for place, hop in enumerate(hops)
    ]
    return graph.linear(graph.add("Sum", *weighed), head.head)
