"""What a method learns to do: outputs, losses, decisions, figures. Today: classification.

A task says everything about what stands in ``y``: how many outputs a network has, what one record's
loss is, what is decided from the outputs, how well that is done, and what of it must be public.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from torch import Tensor
    from torch_geometric.data import Data

METRICS = (
    "accuracy",
    "micro_f1",
    "macro_f1",
    "f1",
    "roc_auc",
    "micro_auc",
    "sensitivity",
    "specificity",
)
_MOST_CONFUSED = 100  # classes of which a matrix is written down
OUTSIDE = "read off the labels of test nodes: outside the certificate, and a release if shown"


@dataclass(frozen=True, kw_only=True)
class Classification:
    """One of ``num_classes`` for each record.

    With ``binary`` two classes have one logit. ``weights`` multiply the losses of classes.

    *Guarantee conditions*: a record's loss is a function of that record's outputs and label, and of
    the weights, which are public or were released. Public: the number of classes.
    """

    name: ClassVar[str] = "classification"
    public: ClassVar[tuple[str, ...]] = ("the number of classes",)

    num_classes: int
    binary: bool = False

    @property
    def outputs(self) -> int:
        """How many numbers a network gives for each record."""
        return 1 if self.binary else self.num_classes

    def losses(self, outputs: Tensor, y: Tensor, weights: Tensor | None = None) -> Tensor:
        """One loss for each record; a class's weight does not depend on who else is there."""
        from torch.nn import functional as F

        if self.binary:
            logits = outputs.squeeze(1)
            losses = F.binary_cross_entropy_with_logits(logits, y.to(outputs), reduction="none")
        else:
            losses = F.cross_entropy(outputs, y, reduction="none")
        return losses if weights is None else losses * weights[y]

    def probabilities(self, outputs: Tensor) -> Tensor:
        """The probability of every class: (records, classes)."""
        import torch

        if not self.binary:
            return outputs.softmax(1)
        chance = outputs.sigmoid()
        return torch.cat([1 - chance, chance], 1)

    def decide(self, probabilities: Tensor) -> Tensor:
        """The most probable class of every record."""
        return probabilities.argmax(1)

    def count_right(self, probabilities: Tensor, y: Tensor) -> int:
        """How many decisions are right."""
        return int((self.decide(probabilities) == y).sum())

    def measure(self, probabilities: Tensor, y: Tensor) -> dict[str, float | None]:
        """Every figure of :data:`METRICS`; None where it means nothing.

        Micro F1 counts every record alike, and is the accuracy where one has one class. Macro F1
        counts every class alike, those that neither stand in the labels nor are predicted left out.
        ``f1``, ``sensitivity`` and ``specificity`` are those of class 1 where there are two
        classes; with more, ``f1`` is the micro one, and the others are means over the classes, each
        against the rest, those without a record (for ``specificity``: without a record of another)
        left out. ``roc_auc`` is such a mean, too, and None where a class has no record;
        ``micro_auc`` ranks all pairs of a record and a class together. Both are None where weights
        have left the numbers.
        """
        import numpy as np
        from sklearn.metrics import f1_score, roc_auc_score

        figures: dict[str, float | None] = dict.fromkeys(METRICS)
        if not len(y):
            return figures
        true, decided = y.numpy(), self.decide(probabilities).numpy()
        classes = probabilities.shape[1]
        figures["accuracy"] = float(np.mean(true == decided))
        figures["micro_f1"] = float(f1_score(true, decided, average="micro"))
        figures["macro_f1"] = float(f1_score(true, decided, average="macro", zero_division=0.0))
        figures["f1"] = figures["micro_f1"]
        if classes == 2:
            figures["f1"] = float(f1_score(true, decided, zero_division=0.0))
        figures |= _rates(true, decided, classes)
        if not bool(probabilities.isfinite().all()):
            return figures
        hits = true[:, None] == np.arange(classes)
        if hits.any() and not hits.all():
            figures["micro_auc"] = float(roc_auc_score(hits.ravel(), probabilities.numpy().ravel()))
        if len(np.unique(true)) == classes:
            areas = [roc_auc_score(true == c, probabilities[:, c].numpy()) for c in range(classes)]
            figures["roc_auc"] = float(areas[1] if classes == 2 else np.mean(areas))
        return figures

    def measure_test(self, probabilities: Tensor, data: Data, record: str) -> dict[str, Any]:
        """Every figure on the test records, as ``test_NAME``; accuracy by class; ``confusion``.

        The last counts records by their class (row) and by the one decided on (column); None where
        there are more than 100 classes.

        *Guarantee*: none. It reads labels, outside every certificate.
        """
        import torch

        wanted = data.test_mask & (data.y >= 0)
        chances, y = probabilities[wanted], data.y[wanted]
        count = torch.bincount(y, minlength=self.num_classes)
        right = (self.decide(chances) == y).double()
        hits = torch.bincount(y, weights=right, minlength=self.num_classes)
        shares = [float(h / n) if n else None for h, n in zip(hits, count, strict=True)]
        return {
            **{f"test_{name}": value for name, value in self.measure(chances, y).items()},
            f"test_{record}s": len(y),
            "class_accuracy": shares,
            "class_count": count.tolist(),
            "confusion": self._confusion(chances, y),
            "note": OUTSIDE.replace("nodes", f"{record}s"),
        }

    def _confusion(self, probabilities: Tensor, y: Tensor) -> list[list[int]] | None:
        import torch

        classes = self.num_classes
        if classes > _MOST_CONFUSED:
            return None
        cells = torch.bincount(y * classes + self.decide(probabilities), minlength=classes**2)
        return cells.view(classes, classes).tolist()


def _rates(true: Any, decided: Any, classes: int) -> dict[str, float | None]:
    """Sensitivity and specificity: of class 1 of two, else means over classes against the rest."""
    import numpy as np

    wanted = [1] if classes == 2 else range(classes)
    shares: dict[str, list[float]] = {"sensitivity": [], "specificity": []}
    for which in wanted:
        inside, called = true == which, decided == which
        if inside.any():
            shares["sensitivity"].append(float(np.mean(called[inside])))
        if not inside.all():
            shares["specificity"].append(float(np.mean(~called[~inside])))
    return {name: float(np.mean(some)) if some else None for name, some in shares.items()}
