"""Embeddings: what a fitted method holds of a record before it decides, and who may see it.

======================================  ==========================================================
method                                  an embedding is
======================================  ==========================================================
with a hidden layer                     what the last layer reads (``hidden``)
``gap``, ``open-gap``                   what the head reads: the own row as encoded, and the sums
whole graphs, convolutions              what the last layer reads; with one, the pooled row
linear in a record's own row or counts  what the decision is made of (``output``): logits, beliefs
======================================  ==========================================================

It is a function of the weights and of the rows that it reads. The weights were paid for; rows are
read in the open, as in a prediction: who sees an embedding sees the row. See docs/export.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from graphveil import _validate, devices
from graphveil._errors import InvalidInputError
from graphveil.methods.given_data import refuse_links
from graphveil.methods.inference import Visible, take_cache

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch_geometric.data import Data

KINDS = ("hidden", "output")

_OF_WEIGHTS = (
    "nothing beyond the run, whose epsilon is of the weights alone: what the rows tell is not in it"
)
_IN_THE_OPEN = (
    "whoever may see all that the model was trained on, and what it reads here: no epsilon is "
    "proven for its weights, and nothing is promised to anybody"
)


@dataclass(frozen=True, eq=False, kw_only=True)
class Embedding:
    """One row of numbers for each record, with who may see it and what it costs.

    ``of`` is ``hidden`` or ``output``. A ``private`` one is for some eyes only.

    *Guarantee*: what ``seen_by`` and ``costs`` say.
    """

    rows: Tensor
    of: str
    mode: str
    seen_by: str
    costs: str
    private: bool


@dataclass(frozen=True)
class _Layer:
    """The layer whose input is the last hidden state, which has read so many ``steps`` away."""

    module: nn.Module
    steps: int


def embed(method: Any, data: Data, mode: str, of: str | None = None) -> Embedding:
    """The embeddings of data that was checked already; without ``of`` hidden ones if there are.

    *Guarantee*: see :class:`Embedding`; nothing is charged, as nothing new is released.
    """
    import torch

    refuse_links(method.record, "An embedding")
    if of is not None:
        _validate.choice("of", of, KINDS)
    layer = None if of == "output" else _last_layer(method)
    if of == "hidden" and layer is None:
        raise InvalidInputError(
            "An embedding of 'hidden' states must come from a network with a hidden layer. Got "
            f"'{method.name}' with one layer instead; take of='output' (--of output)."
        )
    method.network_.eval()
    with torch.no_grad(), devices.placed(method.network_):
        rows = _outputs(method, data, mode) if layer is None else _watch(method, data, mode, layer)
    steps = _steps_of_prediction(method) if layer is None else layer.steps
    taught = layer is None and mode == "disjoint" and getattr(method, "student", False)
    seen_by, costs, private = _say_who(method, mode, math.inf if taught else steps)
    return Embedding(
        rows=rows.float(),
        of="output" if layer is None else "hidden",
        mode=mode,
        seen_by=seen_by,
        costs=costs,
        private=private,
    )


# --- rows -----------------------------------------------------------------------------------------


def _outputs(method: Any, data: Data, mode: str) -> Tensor:
    """What the decision is made of."""
    if mode != "cached":
        outputs: Tensor = method.outputs(data, mode)
        return outputs
    cached: Tensor = method.outputs_from(data, take_cache(method, data))
    return cached


def _watch(method: Any, data: Data, mode: str, layer: _Layer) -> Tensor:
    """What the layer reads, of every record, while a prediction is made."""
    import torch

    from graphveil.graph.checks import num_records
    from graphveil.graph.stored import is_stored
    from graphveil.nn.convs import Conv

    if is_stored(data) and isinstance(layer.module, Conv):
        raise InvalidInputError(
            "An embedding of nodes in a store must not be what a convolution reads, which is read "
            f"in overlapping parts. Got {data.stored.path} with no layer after the convolutions "
            "instead; take of='output' (--of output)."
        )
    read: list[Tensor] = []
    hook = layer.module.register_forward_pre_hook(
        lambda _, given: read.append(given[0].detach().cpu())
    )
    try:
        # On a disjoint graph a student would follow the outputs; it has no part in hidden states.
        outputs = _outputs(method, data, "cached" if mode == "cached" else "visible")
    finally:
        hook.remove()
    if not read:  # there is no record
        return outputs.new_empty(0, 0)
    # They are read in their order, in one part or several, and perhaps once more after that.
    rows = read[0] if len(read) == 1 else torch.cat(read)
    assert len(rows) % num_records(data) == 0
    return rows[: num_records(data)]


def _last_layer(method: Any) -> _Layer | None:
    """The last layer of a network, if another comes before it."""
    from graphveil.nn.gap import GAPNetwork
    from graphveil.nn.graph_classifier import GraphClassifier
    from graphveil.nn.node_classifier import NodeClassifier

    network = method.network_
    if isinstance(network, GAPNetwork):
        return _Layer(network.head, _steps_of_prediction(method))
    if isinstance(network, GraphClassifier):
        return _Layer(network.head.linears[-1], 0)
    if not isinstance(network, NodeClassifier):
        return None
    inside = getattr(method, "rounds", 0) if getattr(method, "reading", "") == "inside" else 0
    layers = [
        *(_Layer(linear, 0) for linear in network.encoder.linears),
        *(_Layer(conv, before) for before, conv in enumerate(network.convs)),
        *(_Layer(linear, inside or len(network.convs)) for linear in network.decoder.linears),
    ]
    return layers[-1] if len(layers) > 1 else None


def _steps_of_prediction(method: Any) -> int:
    """How many steps away a prediction in the open reads rows; 0 where it reads its own record."""
    visible = next(way for way in method.inferences if isinstance(way, Visible))
    return 0 if visible.reach is None else int(getattr(method, visible.reach))


# --- who may see them -----------------------------------------------------------------------------


def _say_who(method: Any, mode: str, steps: float) -> tuple[str, str, bool]:
    """Who may see an embedding, what it costs, and whether it is for some eyes only.

    ``steps`` is how far away it reads; infinite where every row of the graph is read.
    """
    certificate = method.certificate_
    if math.isinf(certificate.guarantee.epsilon) or certificate.void_because:
        return _IN_THE_OPEN, "nothing: there is no guarantee to spend from", True
    edges = certificate.guarantee.unit.startswith("edge")
    if mode == "cached":
        costs = "nothing beyond the run: the noisy sums were paid for in training"
        if edges:
            return "anybody: rows are public under this unit, and sums are noisy", costs, False
        who = "its own node only: it holds that node's row in the open, and noisy sums made for it"
        return who, costs, True
    if edges and not steps and mode == "visible":
        costs = "nothing beyond the run: it is made of released weights and public rows"
        return "anybody: it reads its own row, which is public under this unit", costs, False
    return _whose_rows(method.record, mode, steps, edges), _OF_WEIGHTS, True


def _whose_rows(record: str, mode: str, steps: float, edges: bool) -> str:
    """Who may see what is read in the open."""
    there = " of that other graph" if mode == "disjoint" else ""
    if record == "graph":
        return "whoever may see the graph itself: its embedding is read off it in the open"
    if not steps:
        return (
            f"its own node{there}, and whoever may see that node's row: it is read off the row in "
            "the open"
        )
    what = "edges" if edges else "rows and edges"
    if math.isinf(steps):
        return f"whoever may see all {what}{there}: a student read every one of them"
    far = f"up to {steps:g} step{'' if steps == 1 else 's'} away"
    return (
        f"whoever may see the {what}{there} {far}: they are read in the open, and nothing is "
        "promised to them"
    )
