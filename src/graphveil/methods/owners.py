"""Owners of several records as units: how a method charges for one.

=============  =====================================================================================
``one term``   the losses of an owner's records are one loss term, their mean, clipped as one: an
               owner removes one term and alters as many as one record does. Sums that are released
               add the means of owners, which are no longer than one record's value. How many
               records an owner has makes no difference, to nobody.
``rows``       every record is a loss term. A public rule says how many an owner has at most, k:
               taking them away one after the other removes k r and alters k a terms, if one removes
               r and alters a. A sum moves k times as far.
nothing        neither is proven for the method, which refuses owners of several records.
=============  =====================================================================================

Methods without privacy, and the unit ``edge``, ask for no owner.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from graphveil._errors import UnprovenError
from graphveil.methods.plan import Facts, Plan

if TYPE_CHECKING:
    from torch import Tensor
    from torch_geometric.data import Data

PUBLIC = "which records are the same owner's, and how many owners there are"
_TAKE = {"node": "take late-graph or dp-mlp, or ", "graph": "take graph-dpsgd, or "}
_RULE = "no owner has more than {} records"


def count_owners(method: Any, facts: Facts) -> Facts:
    """The facts as a plan of ``method`` counts them; owners it has no proof for are refused."""
    if facts.num_owners is None:
        return facts
    unit: str = getattr(method, "unit", method.units[0])
    if not method.private or unit == "edge":
        return facts.by_record()
    if method.owners == "one term":
        return facts.by_owner()
    if not facts.has_shared_owners:  # one record each: the record is the unit
        return facts.by_record()
    if method.owners is None:
        raise UnprovenError(
            f"The method '{method.name}' must be given one record of each owner: of several "
            f"nothing is proven for it. Got {facts.num_nodes:,} records of {facts.num_owners:,} "
            f"owners instead; {_TAKE.get(facts.record, '')}keep one each: owner_rows = 1 in the "
            "schema, or graphveil.cap_owners(data, 1)."
        )
    if facts.owner_rows is None:
        raise UnprovenError(
            f"The method '{method.name}' charges for every record of an owner, so that a public "
            "rule must say how many one has at most. Got none instead; cap them with "
            "graphveil.cap_owners(data, k) or 'owner_rows' in the schema, or take late-graph, "
            "which charges for one term."
        )
    return facts.by_row()


def protect_owners(plan: Plan) -> Plan:
    """The plan, which protects owners where its facts know some."""
    facts = plan.facts
    if facts.num_owners is None:
        return plan
    rule = () if facts.owner_rows is None else (_RULE.format(facts.owner_rows),)
    return replace(plan, unit="owner", public=(*plan.public, PUBLIC, *rule))


def leave_owners(facts: Facts, data: Data) -> Data:
    """The data with owners only where their records are one loss term."""
    if facts.pools_owners or "owner" not in data:
        return data
    data = copy.copy(data)
    del data["owner"]
    return data


def scale_influence(facts: Facts, influence: tuple[int, int]) -> tuple[int, int]:
    """Terms that an owner removes and alters, where every record of theirs is charged for.

    Taking a record away removes r terms and alters a, whatever else is gone: of k records all terms
    that differ are at most k r removed and k a altered ones; and never more than there are.
    """
    removed, altered = (records_charged(facts) * terms for terms in influence)
    return (removed, altered) if altered < facts.num_train else (0, facts.num_train)


def records_charged(facts: Facts) -> int:
    """For how many records of a unit is charged: one where no rule of owners says more."""
    return facts.owner_rows or 1


def sum_by_owner(rows: Tensor, data: Data, bound: float = 1.0) -> Tensor:
    """The sum of training records' ``rows``, or of the means of owners where data has some.

    A row is no longer than ``bound``, and so is a mean. On a grid, so that float64 adds them
    exactly, and an owner moves the sum by their own mean alone.
    """
    import torch

    from graphveil.graph.aggregation import bounded_rows
    from graphveil.graph.owners import group_training

    if (grouped := group_training(data)) is None:
        return rows.sum(0, dtype=torch.float64)
    return bounded_rows(grouped.mean(rows) / bound).sum(0, dtype=torch.float64) * bound
