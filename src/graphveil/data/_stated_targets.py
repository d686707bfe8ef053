"""Targets with what a name states of them: classes, or values of a range."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch_geometric.data import Data

from graphveil._errors import InvalidInputError
from graphveil.data._variants import Target


def put_targets(data: Data, name: str, values: NDArray[np.float64], stated: Target) -> None:
    """Give ``data`` its ``y``, the task, and what is public of it; NaN has no label.

    A range makes it a regression, two classes binary, more of them multiclass. Classes must be
    whole numbers below the stated one; values outside a range stay, and count as its ends.
    """
    if stated.value_range is not None:
        data.task, data.value_range = "regression", stated.value_range
        data.y = torch.from_numpy(values.astype(np.float32))
        return
    number = stated.num_classes or 2
    classes = np.where(np.isnan(values), -1.0, values)
    wrong = (classes != np.floor(classes)) | (classes >= number)
    wrong |= (classes < 0) & ~np.isnan(values)
    if wrong.any():
        row = int(np.argmax(wrong))
        raise InvalidInputError(
            f"The targets of {name!r} must be classes from 0 to {number - 1}. Got {values[row]:g} "
            f"at node {row} instead; write the public number of classes behind the name (':21'), "
            "or the public range of a regression (':0..10')."
        )
    data.task, data.num_classes = "binary" if number == 2 else "multiclass", number
    data.y = torch.from_numpy(classes.astype(np.int64))
