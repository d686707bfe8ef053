"""The task of links: which targets a source will be linked to, by scores of pairs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from graphveil._errors import InvalidInputError
from graphveil.methods.chance import is_beyond_chance
from graphveil.methods.measures import METRICS, Figures
from graphveil.methods.task import Task

if TYPE_CHECKING:
    from torch import Tensor
    from torch_geometric.data import Data

OUTSIDE = "read off withheld links: outside the certificate, and a release if shown"


@dataclass(frozen=True, kw_only=True)
class LinkTask(Task):
    """Scores of every source with ``num_classes`` targets, set against each other.

    Public: the number of targets, and under a person's unit their rows.
    """

    name: ClassVar[str] = "link"
    main: ClassVar[str] = "mrr"
    public: ClassVar[tuple[str, ...]] = ("the number of targets",)

    def losses(self, outputs: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:
        """Cross-entropy among the targets that are scored."""
        from torch.nn import functional as F

        return F.cross_entropy(outputs, targets, reduction="none")

    def answers(self, outputs: Tensor) -> Tensor:
        """The scores."""
        return outputs

    def decide(self, answers: Tensor) -> Tensor:
        """The target with the best score."""
        return answers.argmax(1)

    def credit(self, answers: Tensor, y: Tensor) -> Tensor:
        """1 where the best target is the right one."""
        return (self.decide(answers) == y).double()

    def guess(self, y: Tensor) -> Tensor:
        """How often each target is linked."""
        import torch

        return torch.bincount(y, minlength=self.num_classes).double()

    def measure(self, answers: Tensor, y: Tensor) -> Figures:
        """None: figures of links come of rankings, see :meth:`measure_scores`."""
        raise InvalidInputError(
            "Links must be measured by how they are ranked among others. Got a table of answers "
            "instead; take measure_scores."
        )

    def measure_scores(
        self, score: Callable[..., Any], data: Data, part: str = "test"
    ) -> dict[str, Any]:
        """Every figure on withheld links, as ``test_NAME``, beside that of popularity.

        ``learnt`` says whether the MRR is better than that, and by more than chance
        (:mod:`graphveil.methods.chance`). ``score`` gives the scores of some
        sources with all targets, or with given ones.

        *Guarantee*: none. It reads links, outside every certificate.
        """
        from graphveil.graph.link_terms import count_targets
        from graphveil.graph.links import num_targets, own_lists
        from graphveil.methods.ranking import measure_links

        counts = count_targets(own_lists(data), num_targets(data), balanced=False).numpy()

        def popular(sources: Any, targets: Any = None) -> Any:
            import numpy as np

            if targets is None:
                return np.broadcast_to(counts, (len(sources), len(counts)))
            return counts[targets]

        ranking = measure_links(score, data, part=part)
        baseline = measure_links(
            popular, data, part=part, protocol=ranking.protocol[:7].rstrip("(")
        )
        figures = {**dict.fromkeys(METRICS), **ranking.figures}
        known = {name: value for name, value in baseline.figures.items() if value is not None}
        mine, theirs = figures[self.main], known.get(self.main)
        learnt = None
        if mine is not None and theirs is not None:
            learnt = mine > theirs and is_beyond_chance(ranking.credit, baseline.credit)
        return {
            "task": self.name,
            "metric": self.main,
            **{f"test_{name}": value for name, value in figures.items()},
            "test_links": ranking.links,
            "protocol": ranking.protocol,
            "baseline": known,
            "learnt": learnt,
            "constant": False,
            **self._details(None, None),  # type: ignore[arg-type]
            "note": OUTSIDE,
        }


def measure_fitted(method: Any, data: Data, mask: str = "test_mask") -> dict[str, Any]:
    """The figures of a fitted method on the links of ``test_mask``, or of ``val_mask``.

    *Guarantee*: none. It reads links, outside every certificate.
    """
    part = mask.removesuffix("_mask").removesuffix("_links")
    task = method.task(method.plan_.facts)
    figures: dict[str, Any] = task.measure_scores(method.link_scores(data), data, part)
    return figures
