"""What stands in ``y``: the task, as the owner of data states it, and who has a label.

=============  =====================================================  ==========================
task           ``y``                                                  no label
=============  =====================================================  ==========================
``multiclass``  one of several classes: long (records,)                negative
``binary``     one of two, the second is looked for: long (records,)  negative
``ordinal``    one of several in their order: long (records,)         negative
``multilabel``  of every label 0 or 1: long (records, labels)          negative; of all: no label
``regression``  a number in a public range: float (records,)           NaN
=============  =====================================================  ==========================

The task (``data.task``), the number and names of classes or labels (``data.num_classes``,
``data.class_names``) and the range (``data.value_range``) are public statements, never read off
``y``. Without a task, two classes are ``binary`` and more ``multiclass``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

TASKS = ("multiclass", "binary", "multilabel", "ordinal", "regression")
OF_CLASSES = ("multiclass", "binary", "ordinal")  # a record is in one of several classes


def default_task(num_classes: int) -> str:
    """What data is taken to be about if nobody says so."""
    return "binary" if num_classes == 2 else "multiclass"


def is_labelled(y: Tensor) -> Tensor:
    """Which records have a label: bool (records,)."""
    if y.is_floating_point():
        return ~y.isnan()
    return y >= 0 if y.dim() == 1 else (y >= 0).any(1)


def take_labels_away(y: Tensor, gone: Tensor | Any) -> Tensor:
    """A copy of ``y`` in which the records ``gone`` (a mask, ids or one id) have no label."""
    y = y.clone()
    y[gone] = float("nan") if y.is_floating_point() else -1
    return y
