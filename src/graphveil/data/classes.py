"""Which classes there are: public knowledge, because labels are private.

A run publishes how many classes it tells apart, and may publish their names. What of that is public
is stated by whoever holds the data (``classes``), and certificates list it:

=================== ================================================================================
3                   three classes; no names
red,blue            their names, in this order: a label is one of them, or its number
public              whatever names, or numbers, the labels have: the owner says that they are public
nothing             no names; the number is read off the labels, and said to be
=================== ================================================================================

Without a list, labels are class numbers from 0, or names that are numbered in their order; which
names occur decides the numbers, and certificates say so. Unless they are stated to be public, names
go no further than this module. What is read off labels must look like classes: see
:func:`check_number`.
"""

from __future__ import annotations

import re
import warnings
from typing import NoReturn

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch_geometric.data import Data

from graphveil import _validate
from graphveil._errors import InvalidInputError
from graphveil.data._tables import Where, check_cells, floats
from graphveil.data.class_list import PUBLIC, Notice, Stated
from graphveil.graph.checks import class_names_of
from graphveil.graph.public_lines import DECLARED, NUMBER_READ_OFF, UNNAMED

MOST, LEAST = 1000, 10  # classes that may be read off labels, and labelled records for one
_WHOLE = re.compile(r"[+-]?[0-9]+")
_WAY_OUT = (
    "correct it, leave it empty, or state the public list of names with --classes a,b,c, or the "
    "task regression in a schema ('graphveil data schema' writes a first one)"
)


def put(
    data: Data,
    path: Where,
    labels: pd.Series,
    classes: Stated,
    of: str = "nodes",
    *,
    numbers: bool = True,
    counts: NDArray[np.int64] | None = None,
) -> None:
    """Give ``data`` the classes of a column of ``labels``: ``y``, their number, names if any.

    Without a list whole numbers are class numbers, or names like others without ``numbers``. With
    ``counts``, ``labels`` are the different cells of a column, and this is how often each is there.
    """
    weights = np.ones(len(labels), np.int64) if counts is None else counts
    labelled = int(weights[labels.notna().to_numpy(bool)].sum())
    whole = numbers and _all_whole(labels)
    if isinstance(classes, tuple):
        y = _look_up(path, labels, classes)
        data.class_names, data.num_classes = list(classes), len(classes)
    elif not whole:
        if numbers and classes != PUBLIC:
            _check_no_numbers(path, labels)
        y, names = _sort_names(labels)
        if isinstance(classes, int):
            if len(names) != classes:
                _refuse_contradiction(path, f"{len(names)} names where --classes states {classes}")
            _warn_if_few(path, classes, labelled)
        else:
            check_number(path, len(names), labelled)
        data.num_classes = len(names)
        if classes == PUBLIC:
            data.class_names = names
        declare(data, DECLARED if classes == PUBLIC else UNNAMED)
    else:
        most = classes if isinstance(classes, int) else int(weights.sum())
        y = _take_numbers(path, labels, most, of, stated=isinstance(classes, int))
        if isinstance(classes, int):
            data.num_classes = classes
            _warn_if_few(path, classes, int(weights[y >= 0].sum()))
        else:
            _read_off(data, path, y, classes, weights)
    data.y = torch.from_numpy(y)


def settle(data: Data, path: Where, classes: Stated) -> None:
    """Compare what is stated with the arrays of a file, whose labels are numbers already.

    The file's own ``class_names`` and ``num_classes`` are statements, too.
    """
    names, number = class_names_of(data), getattr(data, "num_classes", None)
    if number is not None:
        number = _validate.integer("num_classes", number, "[1, 1e6]")
    if names is not None and number is not None and len(names) != number:
        _refuse_contradiction(path, f"{len(names)} names for num_classes={number}")
    if isinstance(classes, tuple):
        if names is not None and list(names) != list(classes):
            _refuse_contradiction(path, "class_names that are not those stated by --classes")
        data.class_names, names, classes = list(classes), classes, len(classes)
    y, in_file = _labels(data), number if names is None else len(names)
    labelled = 0 if y is None else int((y >= 0).sum())
    if isinstance(classes, int):
        if in_file not in (None, classes):
            _refuse_contradiction(path, f"{in_file} classes where --classes states {classes}")
        data.num_classes = classes
        _warn_if_few(path, classes, labelled)
    elif y is not None:
        if names is not None:
            check_number(path, len(names), labelled)
            data.num_classes = len(names)
        elif number is not None:
            _warn_if_few(path, number, labelled)
        else:
            _read_off(data, path, y, classes)


def _labels(data: Data) -> NDArray[np.int64] | None:
    """The labels, or None if there are none or the checks say what is wrong with them."""
    y = getattr(data, "y", None)
    if not isinstance(y, torch.Tensor) or y.dtype != torch.long or y.dim() != 1:
        return None
    return y.numpy()


def _sort_names(labels: pd.Series) -> tuple[NDArray[np.int64], list[str]]:
    """The names that occur, sorted (as numbers if all are), and their places; -1 for none."""
    texts = labels.astype("str").where(labels.notna())
    names = sorted(texts.dropna().unique())
    if all(re.fullmatch(r"-?[0-9]{1,18}", name) for name in names):
        names.sort(key=int)
    y = pd.Index(names, dtype=object).get_indexer(texts.astype(object))
    return y.astype(np.int64), [str(name) for name in names]


def declare(data: Data, line: str) -> None:
    """Add a line to what certificates of ``data`` take as public."""
    before = getattr(data, "public", ())
    if isinstance(before, (list, tuple)):  # else for the checks
        data.public = list(before) if line in before else [*before, line]


def _read_off(
    data: Data,
    path: Where,
    y: NDArray[np.int64],
    classes: Stated,
    weights: NDArray[np.int64] | None = None,
) -> None:
    number = int(y.max()) + 1 if len(y) else 0
    if number <= 0:
        return
    labelled = (y >= 0).sum() if weights is None else weights[y >= 0].sum()
    check_number(path, number, int(labelled))
    data.num_classes = number
    declare(data, DECLARED if classes == PUBLIC else NUMBER_READ_OFF)


def check_number(path: Where, number: int, labelled: int) -> None:
    """Refuse labels that look like identifiers or measurements: too many classes, too few each.

    The way out does not repeat the number: it was counted in private labels.
    """
    if number > MOST or number > max(2, labelled // LEAST):
        raise InvalidInputError(
            f"{path}: classes read off labels must be at most {MOST:,}, and one for every {LEAST} "
            "labelled records. Got more instead, as identifiers or measurements have; group them "
            "by a public rule, or state what is public of them, known without counting labels, "
            "with --classes N or --classes a,b,c, or in a schema, which takes measurements as a "
            "regression ('graphveil data schema' writes a first one)."
        )


def _warn_if_few(path: Where, number: int, labelled: int) -> None:
    """Ask whoever states a number of classes whether labels are what they should be."""
    if labelled and number > max(2, labelled // LEAST):
        warnings.warn(
            f"{path}: fewer than ten records for each class: is 'label' an identifier?",
            Notice,
            stacklevel=2,
        )


def _all_whole(labels: pd.Series) -> bool:
    known = labels.dropna()
    if pd.api.types.is_bool_dtype(known):
        return False
    numbers = floats(known)
    return bool((np.isfinite(numbers) & (numbers % 1 == 0)).all())


def _check_no_numbers(path: Where, labels: pd.Series) -> None:
    """Refuse numbers among names: a slip among class numbers, or measurements."""
    if pd.api.types.is_bool_dtype(labels.dropna()):
        return
    numbers = floats(labels)
    whole = numbers.notna() & np.isfinite(numbers) & (numbers % 1 == 0)
    if whole.any():
        wrong = labels.notna() & ~whole
        check_cells(path, labels, wrong, "a class number, as others are", _WAY_OUT)
    check_cells(path, labels, numbers.notna(), "a class number from 0, or a name", _WAY_OUT)


def _take_numbers(
    path: Where, labels: pd.Series, most: int, of: str, *, stated: bool
) -> NDArray[np.int64]:
    """Labels that are class numbers below ``most``; negative is unlabelled."""
    known = labels.notna()
    numbers = floats(labels)
    large = known & ((numbers >= most) | (numbers < -(2.0**63)))
    rule = f"a class number below {most}, as stated"
    way_out = "correct it, leave it empty, or state another number with --classes"
    if not stated:
        rule = f"a class number below the number of {of}, {most}"
        way_out = "number the classes from 0, or write names and state them with --classes"
    check_cells(path, labels, large, rule, way_out)
    return np.where(known, np.maximum(numbers.fillna(-1.0), -1.0), -1.0).astype(np.int64)


def _look_up(path: Where, labels: pd.Series, names: tuple[str, ...]) -> NDArray[np.int64]:
    """Labels that are among the stated names or, where no name is a number, their numbers."""
    known = labels.notna()
    if pd.api.types.is_float_dtype(labels) and _all_whole(labels):
        labels = labels.astype("Int64")  # a column of whole numbers with a gap
    y = pd.Index(names, dtype=object).get_indexer(labels.astype("str").astype(object))
    y = np.where(known, y, -1).astype(np.int64)
    missing = known & (y < 0)
    if missing.any() and not any(_WHOLE.fullmatch(name) for name in names):
        numbers = floats(labels.where(missing))
        whole = (missing & (numbers % 1 == 0) & (numbers < len(names))).to_numpy(bool)
        y[whole] = np.maximum(numbers[whole], -1.0).astype(np.int64)
        missing = missing & ~whole
    listed = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
    way_out = "correct it, leave it empty, or state another public list"
    check_cells(path, labels, missing, f"one of the stated classes, {listed}", way_out)
    return y


def _refuse_contradiction(path: Where, got: str) -> NoReturn:
    raise InvalidInputError(
        f"{path}: what is stated of its classes must agree. Got {got} instead; correct either, "
        "or leave the labels out to predict."
    )
