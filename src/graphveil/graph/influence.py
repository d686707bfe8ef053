r"""How many loss terms one unit can touch: the two numbers the accountant asks for.

Taking a unit away *removes* r loss terms and *alters* a more. Both follow from the caps alone; the
count on the graph at hand is private. With T(m) = 1 + K + ... + K^m for a sender cap K, and L >= 1
layers::

    node, withhold              r = 1   a = K + ... + K^L
    node, remove, no cap        r = 1   a = D + ... + D^L         (K >= D never acts: the same)
    node, remove, K < D         r = 1   a = (K + D) T(L - 1)
    edge-directed, no cap       r = 0   a = 1                     (one layer only)
    edge-directed, cap K        r = 0   a = 2 T(L - 1)
    edge-undirected, no cap     r = 0   a = 2                     (one layer only)
    edge-undirected, cap K      r = 0   a = 2 T(L - 1) + 2 K^(L - 1)

D is the public promise that every node lists at most D others and stands in at most D lists. A
network without layers reads no edge: (1, 0) for a node, (0, 0) for an edge. The proofs are in
docs/guarantees/node.md; tests/graph/test_influence.py counts on all small graphs.

*Guarantee conditions*, of every row: (1) all layers of a step use one kept list; (2) the weight of
a message depends on the two ends' states, on the messages that reach the receiver after all caps
and, for a node withheld only, on how many messages the sender keeps, counted before any receiver
cap; (3) a loss term reads the L-hop kept neighbourhood of its root and nothing else. Receiver caps
are free.
"""

from __future__ import annotations

import math

from graphveil import _validate
from graphveil._errors import InvalidInputError, UnprovenError
from graphveil.graph.choices import NORMALISATIONS

UNITS = ("node", "edge-directed", "edge-undirected")


def influence(
    *,
    unit: str,
    num_layers: int,
    sender_cap: int | None,
    num_train: int,
    normalisation: str,
    relation: str = "withhold",
    public_degree: int | None = None,
) -> tuple[int, int]:
    """Removed and altered terms, for what runs: these layers, this sender cap (None: no cap).

    ``normalisation`` is that of messages; ``symmetric`` uses the length of the sender's kept list.
    ``num_train`` is the number of ids that may have a loss term.

    *Guarantee*: under the conditions above, whatever the graph, taking one unit away changes the
    sampled sum no more than ``removed`` and ``altered`` terms do in the law of
    :class:`~graphveil.privacy.events.SampledGaussianDpEvent`. Public: all arguments.
    """
    unit = _validate.choice("unit", unit, UNITS)
    relation = _validate.choice("relation", relation, ("withhold", "remove"))
    _validate.choice("normalisation", normalisation, NORMALISATIONS)
    layers = _validate.integer("num_layers", num_layers, "[0, 1000]")
    terms = _validate.integer("num_train", num_train, "[1, inf)")
    cap = None if sender_cap is None else _validate.integer("sender_cap", sender_cap, "[1, inf)")
    degree = _check_promise(public_degree, unit, relation)
    if not layers:
        return (1, 0) if unit == "node" else (0, 0)
    if normalisation == "symmetric" and (unit != "node" or relation == "remove"):
        raise UnprovenError(
            f"Weights 'symmetric' use the length of the sender's list, which unit {unit!r} with "
            f"relation {relation!r} changes, and no bound for that is proven; use 'inverse-degree' "
            "or 'none'."
        )
    if unit != "node":
        return 0, min(_altered_by_edge(unit, layers, cap), terms)
    altered = _altered_by_node(layers, cap, degree)
    # A node without a loss term removes none and may alter them all: (1, terms - 1) is not enough.
    return (1, altered) if altered < terms else (0, terms)


def sensitivity(unit: str, largest_weight: float = 1.0, sender_cap: int = 1) -> float:
    """How far taking away one unit moves an aggregate of neighbours, a node's own row left out.

    ``largest_weight`` bounds every message's weight. The table and its proof stand in
    :mod:`graphveil.graph.aggregation`.
    """
    if unit == "node":
        return math.sqrt(_validate.integer("sender_cap", sender_cap, "[1, inf)")) * largest_weight
    return largest_weight if unit == "edge-directed" else math.sqrt(2) * largest_weight


def cap_under_removal(num_layers: int, sender_cap: int | None, public_degree: int) -> int | None:
    """The cheaper of ``sender_cap`` and no cap, under relation ``remove``.

    A cap below the public degree refills the slots of a removed node, which may cost more than it
    saves; with one layer it always does.
    """
    layers = _validate.integer("num_layers", num_layers, "[0, 1000]")
    degree = _validate.integer("public_degree", public_degree, "[1, inf)")
    cap = None if sender_cap is None else _validate.integer("sender_cap", sender_cap, "[1, inf)")
    if _altered_by_node(layers, None, degree) <= _altered_by_node(layers, cap, degree):
        return None
    return cap


def _altered_by_node(layers: int, cap: int | None, degree: int | None) -> int:
    if degree is not None and (cap is None or cap >= degree):
        return degree * _within(layers - 1, degree)  # nothing is ever refilled
    if cap is None:
        raise UnprovenError(
            "Without a cap a node may reach any number of loss terms, and no bound is proven; give "
            "'sender_cap' ('max_sent' of terms), a public promise on degrees (relation 'remove' "
            "with 'public_degree'), or train without edges (late-graph, dp-mlp)."
        )
    if degree is None:
        return cap * _within(layers - 1, cap)
    # What the node sent to, and one refilled slot in each list that named it.
    return (cap + degree) * _within(layers - 1, cap)


def _altered_by_edge(unit: str, layers: int, cap: int | None) -> int:
    directed = unit == "edge-directed"
    if cap is None:
        if layers > 1:
            raise UnprovenError(
                f"Without a cap an edge may reach any number of loss terms through {layers} "
                "layers, and no bound is proven; give 'sender_cap' ('max_sent' of terms), or use "
                "one layer."
            )
        return 1 if directed else 2
    # A message that is gone and one that takes its slot: two receivers, and all they reach.
    reached = 2 * _within(layers - 1, cap)
    if directed:
        return reached
    # The other way round two more. But u and v are receivers themselves, and two of the messages
    # that each sends lead to receivers already counted: T(L - 1) - T(L - 2) for each.
    return reached + 2 * cap ** (layers - 1)


def _within(hops: int, cap: int) -> int:
    """1 + cap + ... + cap^hops."""
    return sum(cap**hop for hop in range(hops + 1))


def _check_promise(public_degree: int | None, unit: str, relation: str) -> int | None:
    if relation == "remove" and unit != "node":
        raise InvalidInputError(
            "The 'relation' parameter must be 'withhold' for every unit but 'node'. Got 'remove' "
            f"with unit {unit!r} instead."
        )
    if relation == "withhold":
        if public_degree is not None:
            raise InvalidInputError(
                "The 'public_degree' parameter must be None under relation 'withhold', which needs "
                f"no such promise. Got {public_degree!r} instead; give 'sender_cap' alone."
            )
        return None
    if public_degree is None:
        raise UnprovenError(
            "Relation 'remove' has no bound without 'public_degree', a rule that every admissible "
            "graph obeys; give one, or use relation 'withhold'."
        )
    return _validate.integer("public_degree", public_degree, "[1, inf)")


def count_units(unit: str, nodes: int) -> int:
    """How many units a graph of so many nodes may have: for edges all pairs, never those it has."""
    pairs = nodes * (nodes - 1)
    if not unit.startswith("edge"):
        return nodes
    return max(nodes, pairs if unit == "edge-directed" else pairs // 2)
