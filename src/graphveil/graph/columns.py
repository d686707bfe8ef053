"""Feature columns by their names: a model reads those it was trained on, in any order."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING

from graphveil._errors import InvalidInputError

if TYPE_CHECKING:
    from torch_geometric.data import Data


def put_in_order(data: Data, wanted: Sequence[str] | None, trained: str) -> Data:
    """``data`` with its feature columns in the order of ``wanted``, by their names.

    Where either has no names columns are taken as they come. ``trained`` is what was trained on
    them, for refusals.
    """
    from graphveil.graph.checks import columns_of
    from graphveil.graph.sparse_rows import take_columns
    from graphveil.graph.stored import is_stored

    names = columns_of(data)
    if wanted is None or names is None or list(names) == list(wanted):
        return data
    missing = [name for name in wanted if name not in names]
    unknown = [name for name in names if name not in wanted]
    if missing or unknown:
        got = (
            f"no {missing[0]!r} instead; name them alike"
            if missing
            else f"one more, {unknown[0]!r}; leave it out"
        )
        raise InvalidInputError(
            f"The feature columns must be those that {trained} was trained on: {len(wanted)}, by "
            f"their names. Got {got}."
        )
    if is_stored(data):
        raise InvalidInputError(
            f"The feature columns of a store must stand as {trained} was trained on them. Got "
            f"{data.stored.path} with the same in another order instead; build it in that order."
        )
    data = copy.copy(data)
    data.x = take_columns(data.x, [names.index(name) for name in wanted])
    data.columns = list(wanted)
    return data
