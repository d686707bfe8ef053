"""Whose a record is: several rows, or whole graphs, of one person are one unit.

``data.owner`` is an int64 tensor with the number of its owner for each record, any number; a record
is a node, or one of many graphs. ``data.owner_name`` is what an owner is (``patient``), and
``data.owner_rows`` a public rule: nobody owns more records than that. Which records are one
owner's is public, as ids and masks are.

    data = set_owners(data, patient_of_each_recording, name="patient")

An owner is in one part of a split at most: nobody is trained on and tested, too.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from graphveil import _validate
from graphveil._errors import InvalidInputError
from graphveil.graph.checks import (
    check,
    has,
    ids_of,
    num_records,
    record_of,
    refusal,
    tensor_of,
)
from graphveil.graph.shares import MASKS

OWNER = "owner"  # what an owner is called where nobody says


def set_owners(data: Data, owner: Any, *, name: str = OWNER) -> Data:
    """A copy of ``data`` that knows whose its records are: a number, or a name, for each.

    ``name`` is what an owner is, in the singular, for certificates: ``patient``, ``customer``.
    What is trained on it protects an owner with everything that is theirs. Training refuses masks
    that part an owner's records; :func:`graphveil.split` draws some that do not.

    *Guarantee*: no cost. Whose a record is counts as public.
    """
    result = copy.copy(data)
    if not isinstance(owner, Tensor):
        numbers: dict[Any, int] = {}
        owner = torch.tensor([numbers.setdefault(one, len(numbers)) for one in owner]).long()
    result.owner, result.owner_name = owner, name
    return check(result, labels=False, masks=False)


def owners_of(data: Data) -> Tensor | None:
    """The owner of each record, ``data.owner``, or None where nobody says."""
    return data["owner"] if has(data, "owner") else None


def owner_name_of(data: Data) -> str:
    """What an owner is, in the singular."""
    return str(data["owner_name"]) if has(data, "owner_name") else OWNER


def is_plain_word(name: str) -> bool:
    """Whether certificates can print a name for owners."""
    return _validate.is_name(name)


def owner_rows_of(data: Data) -> int | None:
    """How many records an owner has at most, by the public rule ``data.owner_rows``, if any."""
    rows = data["owner_rows"] if has(data, "owner_rows") else None
    return None if rows is None else _validate.integer("owner_rows", rows, "[1, 1e9]")


def count_owners(data: Data, mask: str | None = None) -> int | None:
    """How many owners there are, or how many have a record in a mask; None where nobody says."""
    owner = owners_of(data)
    if owner is None:
        return None
    return len(owner.unique() if mask is None else owner[data[mask]].unique())


@dataclass(frozen=True, eq=False)
class Grouped:
    """Rows in an ``order`` in which an owner's follow each other, and how many each owner has.

    Owners stand in the order of their first rows: where all have one row, nothing moves.
    """

    order: Tensor
    sizes: Tensor

    def mean(self, values: Tensor) -> Tensor:
        """The mean over each owner's rows: (owners, ...), in float64.

        A mean of vectors of norm 1 at most is one, so that an owner moves a sum of means no
        further than a row moves a sum of rows.
        """
        whose = torch.arange(len(self.sizes)).repeat_interleave(self.sizes)
        total = torch.zeros(len(self.sizes), *values.shape[1:], dtype=torch.float64)
        total.index_add_(0, whose, values[self.order].double())
        return total / self.sizes.view(-1, *[1] * (values.dim() - 1))


def group(owner: Tensor) -> Grouped:
    """The rows of each owner, one owner after the other."""
    rank = rank_owners(owner)
    return Grouped(torch.argsort(rank, stable=True), torch.bincount(rank))


def group_training(data: Data) -> Grouped | None:
    """The training records of each owner; None where nobody says whose they are."""
    owner = owners_of(data)
    return None if owner is None else group(owner[data.train_mask])


def rank_owners(owner: Tensor) -> Tensor:
    """Owners numbered from 0 by their first rows: for each row its owner's number."""
    _, number = owner.unique(return_inverse=True)
    count = int(number.max()) + 1 if len(number) else 0
    first = torch.full((count,), len(number)).scatter_reduce(
        0, number, torch.arange(len(number)), "amin"
    )
    return first.argsort().argsort()[number]


def check_owners(data: Data, *, parts: bool) -> None:
    """Refuse owners that are not one for each record or break their rule, and with ``parts`` masks
    that have an owner in two.
    """
    kind, count = record_of(data), num_records(data)
    name, rows = owner_name_of(data), owner_rows_of(data)
    if not is_plain_word(name):
        got = _validate.shown(name)
        raise refusal("owner_name", "a plain word such as 'patient'", got, "correct it")
    if not has(data, "owner"):
        return
    way_out = f"give every {kind} the number of its owner, with graphveil.set_owners"
    owner = tensor_of(data, "owner", f"a long tensor ({kind}s,)", way_out)
    if owner.dtype != torch.long:
        raise refusal("owner", "a long tensor", str(owner.dtype), "convert it with owner.long()")
    if owner.shape != (count,):
        raise refusal("owner", f"of shape ({count},)", f"shape {tuple(owner.shape)}", way_out)
    most = int(owner.unique(return_counts=True)[1].max()) if count else 0
    if rows is not None and most > rows:
        rule = f"a rule that the data obeys: no {name} has more {kind}s"
        way_out = "state the rule as it is, or cap the data with graphveil.cap_owners"
        raise refusal("owner_rows", rule, f"{rows} for one of {most}", way_out)
    if parts:
        _check_parts(data, owner, name)


def check_one_each(data: Data) -> None:
    """Refuse owners of several records."""
    owner = owners_of(data)
    if owner is not None and len(owner.unique()) < len(owner):
        raise InvalidInputError(
            f"A store must hold one {record_of(data)} of each {owner_name_of(data)}. Got "
            f"{len(owner):,} of {len(owner.unique()):,} instead; keep the graph in memory, where "
            "all of one owner's are one unit, or keep one each with graphveil.cap_owners(data, 1)."
        )


def _check_parts(data: Data, owner: Tensor, name: str) -> None:
    """Refuse masks that part an owner's records."""
    present = [mask for mask in MASKS if has(data, mask)]
    for place, one in enumerate(present):
        for other in present[place + 1 :]:
            both = torch.isin(owner[data[one]], owner[data[other]])
            if bool(both.any()):
                split = owner[data[one]][both].unique()
                shown = _name_records(data, owner == split[0], (one, other))
                raise InvalidInputError(
                    f"Every {name} must be in one part of the split. Got {name} {int(split[0])} in "
                    f"{shown} ({len(split)} such) instead; draw a split (--split transductive, or "
                    "graphveil.split), or put all their records into one part."
                )


def _name_records(data: Data, own: Tensor, masks: tuple[str, str]) -> str:
    """Two parts of the split, each with an owner's first record in it, where those have ids."""
    ids = ids_of(data)
    first = [int((own & data[mask]).nonzero()[0]) for mask in masks]
    shown = [
        f"'{mask}'" + ("" if ids is None else f" (as {_validate.shown(ids[place])})")
        for mask, place in zip(masks, first, strict=True)
    ]
    return " and in ".join(shown)
