r"""Which method to take, by public facts alone.

Three things decide: what is protected (``unit``), who sees predictions (``shown_to``), and how much
the budget lets anybody learn from so many training records.

============  =============  =======================================================================
unit          shown to       method
============  =============  =======================================================================
graph         whoever        graph-dpsgd: a record is a whole graph
edge          whoever        gap: rows and labels are public, only the sums over edges are charged
node          owner          late-graph: predictions read neighbours in the open, which costs
                             nothing
node          other-graph    late-graph: predictions read a graph that was not trained on
node          themselves     gap where its noisy sums pay (below), else dp-mlp
node          anybody        dp-mlp: a prediction tells of no other node
============  =============  =======================================================================

**When sums pay.** GAP spends about half of its budget on noisy sums, and the rest teaches its
classifier. What n training nodes teach, seen through Gaussian noise, grows as n mu, where mu is
that of the Gaussian mechanism with this epsilon and delta. Sums pay from n mu = :data:`SUMS_PAY`
on; below, a better classifier of one's own row is worth more than what neighbours say. The figure
was fixed on Cora, Cora-ML, CiteSeer, PubMed, Computers, Facebook pages and the synthetic social
network, at epsilon 1, 2 and 8, with three quarters of the nodes to train on, and on the larger ones
with 30 %. How many neighbours a node has, and how alike they are, is private and matters, too:
where the rule takes gap, dp-mlp may be ahead by about two points (CiteSeer at epsilon 8), or far
behind.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import dp_accounting as dpa

from graphveil import _validate
from graphveil._errors import InvalidInputError
from graphveil.methods import METHODS, Facts, Method, Plan
from graphveil.methods.budget import LOUDEST, choose_delta
from graphveil.privacy.accounting import calibrate

UNITS = ("node", "edge", "graph")
SHOWN_TO = {
    "owner": "people who may see every row of the graph anyway",
    "themselves": "each node sees the prediction of itself alone",
    "anybody": "people who may see no private row",
    "other-graph": "predictions are made on a graph that is not trained on",
}
SUMS_PAY = 2500.0  # training nodes times the mu of the budget, from which on gap beats dp-mlp

_OWN_ROW_SHOWS = (
    "A prediction is a function of its own {record}: whoever sees it learns of that {record}, "
    "which no training can prevent."
)
_MORE_NOISE = "one node alters the loss terms of others, so that its steps need more noise"
_READS_OPENLY = (
    "its predictions read neighbours' rows in the open; noisy ones are charged at every call"
)


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A method for public facts, why it is the one, and why no other is.

    ``mode`` is how it should predict (:mod:`graphveil.methods.inference`); ``why`` are sentences,
    each with the public fact that decided; ``others`` has a reason against every other private
    method.

    *Guarantee*: none needed; it is made of public facts alone. That of a run is on its ``plan``.
    """

    method: str
    mode: str
    why: tuple[str, ...]
    others: Mapping[str, str]
    facts: Facts
    unit: str
    shown_to: str
    epsilon: float
    delta: float | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)

    def make(self, **settings: Any) -> Method:
        """The method, not yet fitted; ``settings`` win over those that were chosen."""
        budget = {"epsilon": self.epsilon, "delta": self.delta}
        return METHODS[self.method](**{**budget, **self.settings, **settings})

    @property
    def plan(self) -> Plan:
        """What it will run and cost. Touches no data."""
        return self.make().plan(self.facts)

    @property
    def prediction(self) -> str:
        """What a prediction in this mode reads, and what it promises."""
        method = self.make()
        inference = method.inferences[method.modes.index(self.mode)]
        return inference.says(method, method.unit_for(self.facts))


def choose(
    known: Any,
    *,
    epsilon: float,
    unit: str | None = None,
    shown_to: str = "owner",
    delta: float | None = None,
) -> Choice:
    """The method to take for ``known``: :class:`Facts`, or split data of which they are taken.

    ``unit`` is what is protected: ``node``, ``edge`` (rows and labels are public) or ``graph``; by
    default the record. ``shown_to`` says who sees predictions:

    - ``owner``: people who may see every row of the graph anyway
    - ``themselves``: each node sees the prediction of itself alone
    - ``anybody``: people who may see no private row
    - ``other-graph``: predictions are made on a graph that is not trained on

    *Guarantee*: none needed. Of data only its :class:`Facts` are read, which are public.
    """
    facts = known if isinstance(known, Facts) else _facts_of(known)
    epsilon = _validate.number("epsilon", epsilon, "(0, inf)")
    if delta is not None:
        _validate.number("delta", delta, "(0, 1)")
    _validate.choice("shown_to", shown_to, tuple(SHOWN_TO))
    unit = _check_unit(facts, unit)
    answer = _decide(facts, unit, shown_to, epsilon, delta)
    return Choice(
        **answer._asdict(), facts=facts, unit=unit, shown_to=shown_to, epsilon=epsilon, delta=delta
    )


def _facts_of(data: Any) -> Facts:
    """The facts of data at hand: of one graph, or of many."""
    from torch_geometric.data import Data

    from graphveil.graph.collate import collate

    return Facts.of(data if isinstance(data, Data) else collate(data))


def _check_unit(facts: Facts, unit: str | None) -> str:
    """The unit, by default the record; many graphs and one graph have different ones."""
    if facts.record == "link":
        raise InvalidInputError(
            "A method must be chosen for records that are labelled. Got links instead, which one "
            "private method learns; take dp-link."
        )
    if unit is None:
        return facts.record
    _validate.choice("unit", unit, UNITS)
    if (unit == "graph") != (facts.record == "graph"):
        kinds = {"node": "'node' or 'edge' for one graph", "graph": "'graph' for many graphs"}
        raise InvalidInputError(
            f"The 'unit' parameter must be {kinds[facts.record]}. Got {unit!r} instead; leave it "
            "out, or take other data."
        )
    return unit


# --- the rules ------------------------------------------------------------------------------------


class _Answer(NamedTuple):
    """What a rule says; the names are those of :class:`Choice`."""

    method: str
    mode: str
    why: tuple[str, ...]
    others: Mapping[str, str]
    settings: Mapping[str, Any]


def _decide(facts: Facts, unit: str, shown_to: str, epsilon: float, delta: float | None) -> _Answer:
    if unit == "graph":
        return _for_graphs(facts, shown_to)
    if unit == "edge":
        return _for_edges(shown_to)
    if shown_to == "themselves":
        return _for_themselves(facts, epsilon, delta)
    return _for_anybody() if shown_to == "anybody" else _for_readers(shown_to)


def _for_graphs(facts: Facts, shown_to: str) -> _Answer:
    """Whole graphs."""
    why = (
        f"Every record is a whole graph, and there are {facts.num_nodes:,}: a graph is one loss "
        "term, which nothing else touches.",
        *([_OWN_ROW_SHOWS.format(record="graph")] if shown_to == "anybody" else []),
    )
    mode = "disjoint" if shown_to == "other-graph" else "visible"
    return _answer("graph-dpsgd", mode, why, {})


def _for_edges(shown_to: str) -> _Answer:
    """Edges of one graph, whose rows and labels are public."""
    why = (
        "The unit is an edge, so that rows and labels are public: only the sums over neighbours "
        "are charged.",
        "Its predictions on another graph read that graph's edges in the open."
        if shown_to == "other-graph"
        else "Predictions read these noisy sums, at no further cost, and may be shown to anybody.",
    )
    rows = (
        "it pays for rows and labels, which are public under this unit; where its predictions may "
        "read edges in the open it may still score higher, and protects more"
    )
    reasons = {
        "dp-gnn": "it reads edges in every step and pays for each; the sums are read once",
        "graph-split": "it cuts the edges between its groups, and its predictions read the others "
        "in the open",
        **dict.fromkeys(("late-graph", "dpar", "dp-mlp"), rows),
    }
    mode = "disjoint" if shown_to == "other-graph" else "cached"
    return _answer("gap", mode, why, reasons, unit="edge")


def _for_readers(shown_to: str) -> _Answer:
    """Nodes, where predictions may read rows of their graph in the open."""
    if shown_to == "owner":
        read = (
            "Predictions are shown to people who may see every row anyway (owner): they read "
            "neighbours in the open, which costs nothing and promises nothing to neighbours."
        )
        gap = "it pays for sums over neighbours, who may be read in the open here"
    else:
        read = (
            "Predictions are made on a graph that is not trained on (other-graph): they read its "
            "edges in the open, and promise nothing to its people."
        )
        gap = "the noisy sums that it pays for are those of the graph that it was trained on"
    why = (
        "The unit is a node, and training without edges is the cheapest: a node removes its own "
        "loss term and alters no other.",
        read,
    )
    reasons = {
        "gap": gap,
        "dp-gnn": _MORE_NOISE,
        "dpar": "without a budget for structure, its default, it is a linear model that reads the "
        "graph in prediction, as late-graph is",
        "graph-split": "by default it trains on single documents, without edges, as late-graph "
        "does; in larger groups one node alters the loss terms of others",
        "dp-mlp": "it trains as late-graph does, and never reads an edge",
    }
    mode = "disjoint" if shown_to == "other-graph" else "visible"
    return _answer("late-graph", mode, why, reasons)


def _for_anybody() -> _Answer:
    """Nodes, where whoever sees a prediction must learn nothing of others."""
    why = (
        "Predictions are shown to people who may see no private row (anybody): they must not read "
        "neighbours, not through noise either.",
        _OWN_ROW_SHOWS.format(record="node"),
    )
    cached = "its predictions are shown to their own nodes only"
    return _answer("dp-mlp", "visible", why, _reading_openly() | {"gap": cached})


def _for_themselves(facts: Facts, epsilon: float, delta: float | None) -> _Answer:
    """Nodes, each of which sees its own prediction."""
    if facts.has_shared_owners:
        shared = (
            "Each node sees the prediction of itself alone (themselves), and some are the same "
            "owner's: an owner of several nodes is one loss term of a model of own rows.",
        )
        unproven = {"gap": "nothing is proven for it of owners of several nodes"}
        return _answer("dp-mlp", "visible", shared, _reading_openly() | unproven)
    mu = gaussian_mu(epsilon, choose_delta(delta, facts.num_nodes))
    signal = mu * facts.num_train
    pays = signal >= SUMS_PAY
    measure = (
        f"{facts.num_train:,} training nodes at epsilon {epsilon:g} (mu {mu:.3g}) make "
        f"{signal:,.0f}, {'not ' if pays else ''}below {SUMS_PAY:,.0f}"
    )
    shown = "Each node sees the prediction of itself alone (themselves): "
    if pays:
        why = (
            shown + "it may read its own row, and of its neighbours the noisy sums that were made "
            "in training.",
            f"{measure}: there is enough to pay for these sums.",
        )
        reasons = {"dp-mlp": "it reads no neighbour, and here noisy sums over them pay"}
        return _answer("gap", "cached", why, _reading_openly() | reasons)
    why = (
        shown + "it may read its own row, and neighbours through noise only.",
        f"{measure}: noisy sums over neighbours cost more than they tell.",
    )
    reasons = {"gap": f"{measure}, from which on its noisy sums pay"}
    return _answer("dp-mlp", "visible", why, _reading_openly() | reasons)


def gaussian_mu(epsilon: float, delta: float) -> float:
    """The mu of the Gaussian mechanism that spends ``epsilon`` at ``delta``: 1 / its noise."""
    return 1 / calibrate(
        dpa.GaussianDpEvent, epsilon=epsilon, delta=delta, safe=LOUDEST, risky=1e-2
    )


# --- the others -----------------------------------------------------------------------------------


def _reading_openly() -> dict[str, str]:
    """Reasons against methods whose predictions read neighbours."""
    return dict.fromkeys(("late-graph", "dp-gnn", "dpar", "graph-split"), _READS_OPENLY)


def _answer(
    method: str, mode: str, why: tuple[str, ...], reasons: Mapping[str, str], **settings: Any
) -> _Answer:
    """The chosen method with a reason against every other private one."""
    record = METHODS[method].record
    kinds = {
        "node": "it classifies nodes of one graph",
        "graph": "it classifies whole graphs",
        "link": "it learns which links there are",
    }
    others = {
        name: reasons[name] if kind.record == record else kinds[kind.record]
        for name, kind in METHODS.items()
        if kind.private and name != method
    }
    return _Answer(method, mode, why, others, settings)
