"""A person's own list of public rows, as columns of that person's row.

A list is one row of a sparse matrix: how often a person names each public row. All that is made of
it here is read off that one row and off public rows, so that a list of any length costs nothing
beyond its person's row. Neither torch nor pandas is loaded.

==========  ================================================================================
count       how long the list is, squashed to log(1 + n)
mean        the mean of every public column over the list
sum         their sums, squashed to sign(x) log(1 + abs(x))
max, min    the largest and the smallest value of every column on the list; 0 of an empty one
bag         a 1 for each public row that is on the list: a network's first layer makes of it
            the sum of embeddings that it learns
==========  ================================================================================
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from graphveil import _validate
from graphveil._errors import InvalidInputError

AGGREGATES = ("count", "mean", "sum", "max", "min", "bag")
MOST_IN_BAG = 1024  # public rows, above which nobody gets a bag who does not ask for it
_LEAST_ROWS = 8  # below which any two columns may be alike by chance
_PEOPLE_AT_ONCE = 4096
_MOST_PAIRS = 25_000_000  # of public rows, above which nobody counts who names both
_ALIKE = 0.9999  # a correlation


class Block(NamedTuple):
    """Names of columns, and their values (people, names): an array, or a sparse one."""

    names: list[str]
    values: Any


def check_aggregates(aggregates: Any) -> tuple[str, ...]:
    """What lists become, in the usual order; anything else is refused."""
    if not isinstance(aggregates, (list, tuple)):
        raise InvalidInputError(
            f"The 'lists' parameter must be a list of {', '.join(AGGREGATES)}. Got "
            f"{_validate.shown(aggregates)} instead; an empty one leaves lists out."
        )
    for name in aggregates:
        _validate.choice("lists", name, AGGREGATES)
    return tuple(name for name in AGGREGATES if name in aggregates)


def usual_aggregates(rows: Any) -> tuple[str, ...]:
    """What lists of such public rows become where nobody says: few columns, hence little noise.

    A bag, which has a column for each row, is made where rows say nothing of their own.
    """
    same = not sparse.issparse(rows) and bool((rows == rows[:1]).all())
    if same and rows.shape[0] <= MOST_IN_BAG:
        return ("count", "bag")
    return ("count", "mean", "sum")


def make_lists(
    people: NDArray[np.int64], things: NDArray[np.int64], shape: tuple[int, int]
) -> sparse.csr_array:
    """How often each person names each thing, in the order of their numbers.

    Lines may come in any order: a list is the same.
    """
    keys, times = np.unique(people * max(shape[1], 1) + things, return_counts=True)
    owners, named = np.divmod(keys, max(shape[1], 1))
    starts = np.concatenate([[0], np.cumsum(np.bincount(owners, minlength=shape[0]))])
    parts = times.astype(np.float64), named, starts
    return sparse.csr_array(parts, shape=shape)


def aggregate(
    lists: sparse.csr_array,
    rows: Any,
    columns: Sequence[str],
    ids: Sequence[str],
    aggregates: Sequence[str],
    called: str,
) -> list[Block]:
    """The columns that lists become: ``rows`` are the public ones, with their ``columns``.

    *Guarantee*: no cost. Row i of every block is a function of list i and of public rows, to the
    last bit: a product of sparse rows adds up one row at a time, in the order of its entries.
    """
    lengths = lists.sum(axis=1)
    sums = lists @ rows if {"mean", "sum"} & set(aggregates) else None
    blocks = []
    for name in aggregates:
        if name == "count":
            blocks.append(Block([f"{called} count"], np.log1p(lengths)[:, None]))
        elif name == "mean":
            shares = 1 / np.maximum(lengths, 1)
            means = _scale(sums, shares)
            blocks.append(Block([f"{called} mean {column}" for column in columns], means))
        elif name == "sum":
            squashed = _squash(sums)
            blocks.append(Block([f"{called} sum {column}" for column in columns], squashed))
        elif name in ("max", "min"):
            extremes = _reduce(lists, rows, np.maximum if name == "max" else np.minimum)
            blocks.append(Block([f"{called} {name} {column}" for column in columns], extremes))
        else:
            blocks.append(Block([f"{called} has {name}" for name in ids], _once(lists)))
    return blocks


def _reduce(lists: sparse.csr_array, rows: Any, by: np.ufunc) -> NDArray[np.float64]:
    """The largest or smallest row of every list, column by column; zeros of an empty one."""
    if sparse.issparse(rows):
        raise InvalidInputError(
            f"The largest and smallest values are of dense rows. Got {rows.shape[1]:,} sparse "
            "columns instead; leave 'max' and 'min' out of 'lists'."
        )
    extremes = np.zeros((lists.shape[0], rows.shape[1]))
    filled = np.flatnonzero(np.diff(lists.indptr))
    for some in np.array_split(filled, len(filled) // _PEOPLE_AT_ONCE + 1):
        if len(some):
            start, end = lists.indptr[some[0]], lists.indptr[some[-1] + 1]
            starts = lists.indptr[some] - start
            extremes[some] = by.reduceat(rows[lists.indices[start:end]], starts, axis=0)
    return extremes


def _scale(rows: Any, by: NDArray[np.float64]) -> Any:
    """Every row times a number of its own."""
    if not sparse.issparse(rows):
        return rows * by[:, None]
    scaled = sparse.csr_array(rows)
    data = scaled.data * np.repeat(by, np.diff(scaled.indptr))
    return sparse.csr_array((data, scaled.indices, scaled.indptr), shape=scaled.shape)


def _squash(rows: Any) -> Any:
    if not sparse.issparse(rows):
        return np.sign(rows) * np.log1p(np.abs(rows))
    squashed = sparse.csr_array(rows).copy()
    squashed.data = np.sign(squashed.data) * np.log1p(np.abs(squashed.data))
    return squashed


def find_copied_column(
    lists: sparse.csr_array, rows: NDArray[np.float64], of_people: NDArray[np.float64]
) -> int | None:
    """The first column of public rows that was computed from people, if one can be told.

    It rises and falls with how many people name a row, how often they do, or with a sum or mean of
    the people's columns over those who do. What was computed otherwise is not noticed.

    *Guarantee*: none. It reads private lists, and its answer is for whoever holds the data.
    """
    if rows.shape[0] < _LEAST_ROWS or not rows.shape[1]:
        return None
    once = _once(lists)
    people, times = once.sum(axis=0), lists.sum(axis=0)
    counts = [people, times, np.log1p(people), np.log1p(times), np.sqrt(people)]
    sums = once.T @ of_people
    means = sums / np.maximum(people, 1)[:, None]
    candidates = _standardise(np.concatenate([np.stack(counts, 1), sums, means], axis=1))
    alike = np.abs(_standardise(rows).T @ candidates).max(axis=1, initial=0.0) > _ALIKE
    return int(np.argmax(alike)) if alike.any() else None


def is_copied_relation(
    one: sparse.csr_array, other: sparse.csr_array, pairs: NDArray[np.int64], *, same: bool
) -> bool:
    """Whether a relation between public rows was made of people's lists, if it can be told.

    It can where it joins exactly the rows that so many people or more name together. ``same`` says
    that both ends are of one type.

    *Guarantee*: none. It reads private lists, and its answer is for whoever holds the data.
    """
    if one.shape[1] * other.shape[1] > _MOST_PAIRS:
        return False
    counts = (_once(one).T @ _once(other)).toarray()
    joined = np.zeros(counts.shape, dtype=bool)
    joined[pairs[0], pairs[1]] = True
    considered = ~np.eye(len(counts), dtype=bool) if same else np.ones_like(joined)
    joined |= joined.T if same else False
    inside, outside = counts[joined & considered], counts[~joined & considered]
    enough = min(len(inside), len(outside)) >= _LEAST_ROWS
    return enough and bool(inside.min() > outside.max())


def _once(lists: sparse.csr_array) -> sparse.csr_array:
    """The same lists, in which nothing stands twice."""
    return sparse.csr_array((np.ones(lists.nnz), lists.indices, lists.indptr), lists.shape)


def _standardise(columns: NDArray[np.float64]) -> NDArray[np.float64]:
    """Columns of mean 0 and length 1; of those with fewer than four values, zeros."""
    centred = columns - columns.mean(axis=0)
    lengths = np.sqrt((centred**2).sum(axis=0))
    few = np.array([len(np.unique(column)) < 4 for column in columns.T], dtype=bool)
    flat = few | (lengths <= 1e-12 * (1 + np.abs(columns).max(axis=0, initial=0.0)))
    return np.where(flat, 0.0, centred / np.where(flat, 1.0, lengths))
