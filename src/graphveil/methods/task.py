"""What a method learns to do: outputs, losses, answers, decisions, figures.

A task says everything about what stands in ``y``: how many outputs a network has, what one record's
loss is, what is answered and decided from the outputs, how well that is done, and what of it must
be public. It is made of public facts alone (:func:`make_task`).

*Guarantee conditions*, of every task: a record's loss is a function of that record's outputs and
target, and of weights, which are public or were released. Clipping bounds its gradient, whatever
the loss is.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from graphveil._errors import InvalidInputError
from graphveil.graph.targets import LINK, OF_CLASSES, is_labelled
from graphveil.methods.chance import best_by_chance
from graphveil.methods.measures import METRICS as METRICS
from graphveil.methods.measures import (
    ONE_SIDED,
    RANKINGS,
    Figures,
    is_better,
    measure_classes,
    measure_labels,
    measure_order,
    measure_values,
)

if TYPE_CHECKING:
    from torch import Tensor
    from torch_geometric.data import Data

    from graphveil.methods.plan import Facts

_MOST_CONFUSED = 100  # classes of which a matrix is written down
_SAME = 1e-3  # of the range: values that differ by less are one value
OUTSIDE = "read off the labels of test nodes: outside the certificate, and a release if shown"


@dataclass(frozen=True, kw_only=True)
class Task(ABC):
    """What every task has.

    ``main`` is the figure by which models are set side by side unless somebody names another.
    ``noise`` says how much noise an output bears, in outputs that are logits.
    """

    name: ClassVar[str]
    main: ClassVar[str]
    public: ClassVar[tuple[str, ...]]
    noise: ClassVar[float] = 1.0

    num_classes: int = 1

    @property
    def outputs(self) -> int:
        """How many numbers a network gives for each record."""
        return self.num_classes

    def targets(self, y: Tensor) -> Tensor:
        """Labels as losses read them; negative where there is none."""
        return y

    @abstractmethod
    def losses(self, outputs: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:
        """One loss for each record; a class's weight does not depend on who else is there."""

    @abstractmethod
    def answers(self, outputs: Tensor) -> Tensor:
        """What is said of every record: (records, columns)."""

    def beliefs(self, outputs: Tensor) -> Tensor:
        """What neighbours may average: log-probabilities of classes, else the outputs."""
        return outputs

    @abstractmethod
    def decide(self, answers: Tensor) -> Tensor:
        """One decision for each record, in the shape of ``y``."""

    @abstractmethod
    def credit(self, answers: Tensor, y: Tensor) -> Tensor:
        """How right each answer is, between 0 and 1."""

    @abstractmethod
    def guess(self, y: Tensor) -> Tensor:
        """The best answer that reads no row, by the labels ``y``: (columns,)."""

    @abstractmethod
    def measure(self, answers: Tensor, y: Tensor) -> Figures:
        """Every figure of :data:`METRICS`; None where it means nothing."""

    def columns(self, names: list[str] | tuple[str, ...] | None) -> list[str]:
        """What the columns of answers are called."""
        return [str(n) for n in range(self.num_classes)] if names is None else list(names)

    def is_constant(self, answers: Tensor) -> bool:
        """Whether the same is decided of everybody."""
        decided = self.decide(answers)
        return len(decided) > 0 and bool((decided == decided[:1]).all())

    def measure_test(self, answers: Tensor, data: Data, record: str) -> dict[str, Any]:
        """Every figure on the test records, as ``test_NAME``, beside that of the best guess.

        ``baseline`` has, of each figure, the best that is had without reading a row, by training
        labels: no one guess need be the best by all of them. It has neither of :data:`ONE_SIDED`,
        of which one guess has all of one or of the other. ``learnt`` says whether the main figure
        is better than that and than chance (:mod:`graphveil.methods.chance`), and, unless it is
        about a ranking, not everybody is decided alike. ``constant`` says whether everybody is.

        *Guarantee*: none. It reads labels, outside every certificate.
        """
        wanted = data.test_mask & is_labelled(data.y)
        tested, y = answers[wanted], data.y[wanted]
        figures = self.measure(tested, y)
        baseline = self._measure_guesses(data.y[self._known(data)], tested, y)
        constant = self.is_constant(tested)
        return {
            "task": self.name,
            "metric": self.main,
            **{f"test_{name}": value for name, value in figures.items()},
            f"test_{record}s": len(y),
            "baseline": baseline,
            "learnt": self._has_learnt(tested, y, figures, baseline),
            "constant": constant,
            **self._details(tested, y),
            "note": OUTSIDE.replace("nodes", f"{record}s"),
        }

    def constants(self, y: Tensor) -> list[Tensor]:
        """Answers that read no row, by the labels ``y``, one of which is the best by any figure."""
        return [self.guess(y)]

    def _measure_guesses(self, known: Tensor, like: Tensor, y: Tensor) -> dict[str, float]:
        """Of each figure the best one of a constant answer."""
        best: dict[str, float] = {}
        for answer in self.constants(known):
            for name, value in self.measure(answer.to(like).expand(len(y), -1), y).items():
                if value is None or name in ONE_SIDED:
                    continue
                if name not in best or is_better(name, value, best[name]):
                    best[name] = value
        return best

    def _has_learnt(
        self, answers: Tensor, y: Tensor, figures: Figures, baseline: dict[str, float]
    ) -> bool | None:
        """Whether the main figure is better than any constant answer's, and than chance."""
        mine, theirs = figures[self.main], baseline.get(self.main)
        if mine is None or theirs is None:
            return None
        # Who is looked for may be too rare for anybody to be decided on, and still be ranked.
        if self.is_constant(answers) and self.main not in RANKINGS:
            return False
        decided = self.decide(answers).numpy()
        luck = best_by_chance(self.main, answers.numpy(), decided, y.numpy())
        bars = [theirs] if luck is None else [theirs, luck]
        return all(is_better(self.main, mine, bar) for bar in bars)

    def _known(self, data: Data) -> Tensor:
        """Whose labels a guess may read: those trained on; of a graph without any, all others."""
        labelled = is_labelled(data.y)
        for name in ("train_mask", "val_mask"):
            known = data[name] & labelled if name in data else labelled[:0]
            if bool(known.any()):
                return known
        return labelled

    def _details(self, answers: Tensor, y: Tensor) -> dict[str, Any]:
        """What else is written down of the test records."""
        return {"class_accuracy": [], "class_count": [], "confusion": None}


# --- one class ------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Classification(Task):
    """One of ``num_classes`` for each record.

    With ``binary`` two classes have one logit. ``weights`` multiply the losses of classes. Public:
    the number of classes.
    """

    name: ClassVar[str] = "multiclass"
    main: ClassVar[str] = "accuracy"
    public: ClassVar[tuple[str, ...]] = ("the number of classes",)

    binary: bool = False

    @property
    def outputs(self) -> int:
        """One for each class, or one for both."""
        return 1 if self.binary else self.num_classes

    def losses(self, outputs: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:
        """Cross-entropy."""
        from torch.nn import functional as F

        if self.binary:
            logits = outputs.squeeze(1)
            losses = F.binary_cross_entropy_with_logits(
                logits, targets.to(outputs), reduction="none"
            )
        else:
            losses = F.cross_entropy(outputs, targets, reduction="none")
        return losses if weights is None else losses * weights.to(losses)[targets]

    def answers(self, outputs: Tensor) -> Tensor:
        """The probability of every class: (records, classes)."""
        import torch

        if not self.binary:
            return outputs.softmax(1)
        chance = outputs.sigmoid()
        return torch.cat([1 - chance, chance], 1)

    def beliefs(self, outputs: Tensor) -> Tensor:
        """Log-probabilities; of one logit it is itself."""
        return outputs if self.binary else outputs.log_softmax(1)

    def decide(self, answers: Tensor) -> Tensor:
        """The most probable class of every record."""
        return answers.argmax(1)

    def credit(self, answers: Tensor, y: Tensor) -> Tensor:
        """1 for what is right."""
        return (self.decide(answers) == y).double()

    def guess(self, y: Tensor) -> Tensor:
        """The shares of the classes."""
        import torch

        counts = torch.bincount(y, minlength=self.num_classes).double()
        return counts / counts.sum().clamp_min(1)

    def constants(self, y: Tensor) -> list[Tensor]:
        """The shares of the classes, the commonest class, and of two the second."""
        import torch

        guess, sure = self.guess(y), torch.eye(self.num_classes, dtype=torch.double)
        constants = [guess, sure[guess.argmax()]]
        return [*constants, sure[1]] if self.num_classes == 2 else constants

    def measure(self, answers: Tensor, y: Tensor) -> Figures:
        """See :func:`graphveil.methods.measures.measure_classes`."""
        return measure_classes(answers.numpy(), y.numpy(), self.decide(answers).numpy())

    def _details(self, answers: Tensor, y: Tensor) -> dict[str, Any]:
        """Accuracy by class, and counts by class (row) and decision (column).

        The last is None where there are more than 100 classes.
        """
        import torch

        classes, decided = self.num_classes, self.decide(answers)
        count = torch.bincount(y, minlength=classes)
        hits = torch.bincount(y, weights=(decided == y).double(), minlength=classes)
        confusion = None
        if classes <= _MOST_CONFUSED:
            cells = torch.bincount(y * classes + decided, minlength=classes**2)
            confusion = cells.view(classes, classes).tolist()
        return {
            "class_accuracy": [
                float(h / n) if n else None for h, n in zip(hits, count, strict=True)
            ],
            "class_count": count.tolist(),
            "confusion": confusion,
        }


@dataclass(frozen=True, kw_only=True)
class Binary(Classification):
    """One of two classes, of which the second is looked for, and may be rare.

    Models are compared by how well they rank: always saying the first class is no achievement.
    """

    name: ClassVar[str] = "binary"
    main: ClassVar[str] = "average_precision"


@dataclass(frozen=True, kw_only=True)
class Ordinal(Classification):
    r"""One of several classes in their order.

    The loss is that of every question "above class k?", by what the class probabilities add up to,
    so that a far class costs more than the next one. What is decided is the median.
    """

    name: ClassVar[str] = "ordinal"
    main: ClassVar[str] = "mae"

    def losses(self, outputs: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:
        """The mean cross-entropy of the questions."""
        import torch

        log_chances = outputs.log_softmax(1)
        # log P(y > k) and log P(y <= k), for k = 0, ..., classes - 2.
        above = log_chances.flip(1).logcumsumexp(1).flip(1)[:, 1:]
        below = log_chances.logcumsumexp(1)[:, :-1]
        places = torch.arange(self.num_classes - 1, device=outputs.device)
        losses = -torch.where(targets.unsqueeze(1) > places, above, below).mean(1)
        return losses if weights is None else losses * weights.to(losses)[targets]

    def decide(self, answers: Tensor) -> Tensor:
        """The median class of every record."""
        # At 1/2 all but the rounding of a sum of probabilities.
        below = (answers.cumsum(1) < 0.5 - 1e-6).sum(1)
        return below.clamp_max(self.num_classes - 1)

    def credit(self, answers: Tensor, y: Tensor) -> Tensor:
        """1 less the share of the classes that a decision is off by."""
        off = (self.decide(answers) - y).abs().double()
        return 1 - off / (self.num_classes - 1)

    def measure(self, answers: Tensor, y: Tensor) -> Figures:
        """Those of classes, and how many classes decisions are off."""
        figures = super().measure(answers, y)
        return figures | measure_order(y.numpy(), self.decide(answers).numpy())


# --- several labels -------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Labels(Task):
    """Of every label whether it applies. Public: the number of labels."""

    name: ClassVar[str] = "multilabel"
    main: ClassVar[str] = "average_precision"
    public: ClassVar[tuple[str, ...]] = ("the number of labels",)

    def losses(self, outputs: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:
        """The sum of the labels' cross-entropies, over the root of how many there are.

        A label that is not known has none. So scaled, a gradient is about as long as of one label.
        """
        from graphveil.nn.smooth import softplus

        # Not torch's own: that treats the last places of a tensor by other instructions, which
        # round otherwise, and a loss would know how many others there are.
        known = (targets >= 0).to(outputs)
        losses = known * (softplus(outputs) - outputs * targets.clamp_min(0).to(outputs))
        if weights is not None:
            losses = losses * weights.to(losses)
        return losses.sum(1) / math.sqrt(self.num_classes)

    def answers(self, outputs: Tensor) -> Tensor:
        """The probability of every label."""
        return outputs.sigmoid()

    def decide(self, answers: Tensor) -> Tensor:
        """The labels that are more probable than not."""
        return (answers > 0.5).long()

    def credit(self, answers: Tensor, y: Tensor) -> Tensor:
        """The share of right answers among the labels that are known."""
        known = (y >= 0).double()
        right = (self.decide(answers) == y).double() * known
        return right.sum(1) / known.sum(1).clamp_min(1)

    def guess(self, y: Tensor) -> Tensor:
        """The share of every label."""
        known = (y >= 0).double()
        return (y.clamp_min(0) * known).sum(0) / known.sum(0).clamp_min(1)

    def measure(self, answers: Tensor, y: Tensor) -> Figures:
        """See :func:`graphveil.methods.measures.measure_labels`."""
        return measure_labels(answers.numpy(), y.numpy(), self.decide(answers).numpy())


# --- a number -------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Regression(Task):
    """A number in a public range, to which values are cut, row by row.

    Networks answer in half ranges from its middle. Errors beyond ``huber``, a share of the range,
    count by their size and not by its square. Public: the range.
    """

    name: ClassVar[str] = "regression"
    main: ClassVar[str] = "r2"
    public: ClassVar[tuple[str, ...]] = ("the range of values",)
    noise: ClassVar[float] = 0.15

    low: float
    high: float
    huber: float | None = None

    def targets(self, y: Tensor) -> Tensor:
        """Where in the range a value is, from 0 to 1; -1 where there is none."""
        share = ((y.double() - self.low) / (self.high - self.low)).clamp(0.0, 1.0)
        return share.nan_to_num(-1.0).float()

    def losses(self, outputs: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:
        """Half the squared error in half ranges, or Huber's loss."""
        from torch.nn import functional as F

        values, wanted = outputs.squeeze(1), (2 * targets - 1).to(outputs)
        if self.huber is None:
            return (values - wanted).square() / 2
        return F.huber_loss(values, wanted, reduction="none", delta=2 * self.huber)

    def answers(self, outputs: Tensor) -> Tensor:
        """The value of every record, in the range: (records, 1)."""
        share = (outputs.double().clamp(-1.0, 1.0) + 1) / 2
        return (self.low + share * (self.high - self.low)).to(outputs.dtype)

    def decide(self, answers: Tensor) -> Tensor:
        """The value of every record."""
        return answers.squeeze(1)

    def credit(self, answers: Tensor, y: Tensor) -> Tensor:
        """1 less the share of the range that a value is off by."""
        wanted = y.double().clamp(self.low, self.high)
        off = (answers.squeeze(1).double() - wanted).abs() / (self.high - self.low)
        return 1 - off.nan_to_num(1.0).clamp(0.0, 1.0)

    def guess(self, y: Tensor) -> Tensor:
        """The mean."""
        return y.double().clamp(self.low, self.high).mean().view(1)

    def measure(self, answers: Tensor, y: Tensor) -> Figures:
        """See :func:`graphveil.methods.measures.measure_values`."""
        return measure_values(answers.squeeze(1).numpy(), y.numpy())

    def columns(self, names: list[str] | tuple[str, ...] | None) -> list[str]:
        """One column."""
        return ["value"]

    def is_constant(self, answers: Tensor) -> bool:
        """Whether all values are the same, but for a thousandth of the range."""
        if not len(answers):
            return False
        return float(answers.max() - answers.min()) < _SAME * (self.high - self.low)


# --- by facts -------------------------------------------------------------------------------------


def make_task(facts: Facts, *, binary: bool = False, huber: float | None = None) -> Task:
    """The task that data of such facts is about."""
    if facts.task == LINK:
        from graphveil.methods.link_task import LinkTask

        return LinkTask(num_classes=facts.num_classes)
    if facts.task == "multilabel":
        return Labels(num_classes=facts.num_classes)
    if facts.task == "regression":
        assert facts.value_range is not None
        low, high = facts.value_range
        return Regression(low=low, high=high, huber=huber)
    kinds = {"multiclass": Classification, "binary": Binary, "ordinal": Ordinal}
    # Questions about an order need a probability for each class.
    one_logit = binary and facts.task != "ordinal"
    return kinds[facts.task](num_classes=facts.num_classes, binary=one_logit)


def has_classes(facts: Facts) -> bool:
    """Whether a record is in one of several classes."""
    return facts.task in OF_CLASSES


def check_released_task(facts: Facts) -> None:
    """Refuse tasks that the released code does not have."""
    if not has_classes(facts):
        raise InvalidInputError(
            "The released code must have records that are in one class each. Got the task "
            f"{facts.task!r} instead; leave out what it decides ('paper', 'epochs')."
        )
