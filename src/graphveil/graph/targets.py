"""What stands in ``y``: the task, as the owner of data states it, and who has a label.

==============  ======================================================  =========================
task            ``y``                                                   no label
==============  ======================================================  =========================
``multiclass``  one of several classes: long (records,)                 negative
``binary``      one of two, the second is looked for: long (records,)   negative
``ordinal``     one of several, in their order: long (records,)         negative
``multilabel``  of every label 0 or 1: long (records, labels)           negative; in all of them
``regression``  a number in a public range: float (records,)            NaN
==============  ======================================================  =========================

The task (``data.task``, by default ``multiclass``), the number and names of classes or labels
(``data.num_classes``, ``data.class_names``) and the range (``data.value_range``) are public
statements, never read off ``y``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

RECORDS = {  # what data may be about
    "node": "one graph of nodes",
    "graph": "many graphs",
    "link": "links between sources and targets",
}
LINK = "link"  # the one task of a record "link", which has no labels
TASKS = ("multiclass", "binary", "multilabel", "ordinal", "regression")
OF_CLASSES = ("multiclass", "binary", "ordinal")  # a record is in one of several classes


def is_labelled(y: Tensor) -> Tensor:
    """Which records have a label: bool (records,)."""
    if y.is_floating_point():
        return ~y.isnan()
    return y >= 0 if y.dim() == 1 else (y >= 0).any(1)


def is_live(targets: Tensor) -> Tensor:
    """Which loss terms are not zero, by targets as losses read them: negative ones say nothing."""
    return targets >= 0 if targets.dim() == 1 else (targets >= 0).any(1)


def take_labels_away(y: Tensor, gone: Tensor | Any) -> Tensor:
    """A copy of ``y`` in which the records ``gone`` (a mask, ids or one id) have no label."""
    y = y.clone()
    y[gone] = float("nan") if y.is_floating_point() else -1
    return y


def fill_in(targets: Tensor) -> Tensor:
    """Targets that losses can read, also of terms that are zero; labels know of unknown ones."""
    return targets.clamp_min(0) if targets.dim() == 1 else targets


def hide_targets(targets: Tensor, hidden: Tensor) -> Tensor:
    """A copy of ``targets`` in which the records ``hidden`` have none."""
    targets = targets.clone()
    targets[hidden] = -1
    return targets
