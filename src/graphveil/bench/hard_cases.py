"""Do private models fail where open ones fail? Igamberdiev and Habernal, Appendix E.

    cases = hard_cases(wrong_private, wrong_open)     # a list of masks for each side, one a run
    print(cases.both, cases.stay_hard, cases.over_expected)

*Guarantee*: none. Who is wrong is read off the labels of test nodes: outside every certificate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from graphveil import _validate
from graphveil._errors import InvalidInputError

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class HardCases:
    """How many test nodes are hard for both sides, for one of them, for none.

    A node is hard for a side if at least a share ``often`` of its runs get it wrong. A share of
    nothing is None. ``by_class`` has the same for each class that occurs, if classes were given.
    """

    both: int
    only_private: int
    only_open: int
    neither: int
    often: float = 0.5
    private_runs: int = 1
    open_runs: int = 1
    by_class: Mapping[int, HardCases] = field(default_factory=dict)

    @property
    def nodes(self) -> int:
        """All test nodes."""
        return self.both + self.only_private + self.only_open + self.neither

    @property
    def stay_hard(self) -> float | None:
        """The share of the open side's hard cases that are hard under privacy, too."""
        return _share(self.both, self.both + self.only_open)

    @property
    def hard_in_the_open(self) -> float | None:
        """The share of the private side's hard cases that are hard in the open, too."""
        return _share(self.both, self.both + self.only_private)

    @property
    def jaccard(self) -> float | None:
        """Hard for both, over hard for either."""
        return _share(self.both, self.both + self.only_private + self.only_open)

    @property
    def expected_both(self) -> float | None:
        """How many would be hard for both if one side's errors told nothing of the other's."""
        return _share((self.both + self.only_private) * (self.both + self.only_open), self.nodes)

    @property
    def over_expected(self) -> float | None:
        """``both`` over ``expected_both``: 1 if errors are independent, above 1 if shared."""
        expected = self.expected_both
        return None if expected is None else _share(self.both, expected)


def hard_cases(
    wrong_private: Sequence[Tensor],
    wrong_open: Sequence[Tensor],
    *,
    often: float = 0.5,
    classes: Tensor | None = None,
) -> HardCases:
    """Count the nodes that are hard for a private side, for an open one, for both.

    Each side is a list of bool tensors over the same test nodes, one for each run, true where the
    run is wrong. A node is hard for a side if at least a share ``often`` of the runs get it wrong:
    1.0 is all of them, 0.5 with two runs is one. ``classes`` are the nodes' labels.

    *Guarantee*: none. It reads labels.
    """
    often = _validate.number("often", often, "(0, 1]")
    private = _stack("wrong_private", wrong_private, None)
    in_the_open = _stack("wrong_open", wrong_open, private.shape[1])
    hard = _hard(private, often), _hard(in_the_open, often)
    whole = HardCases(
        **_counts(*hard), often=often, private_runs=len(private), open_runs=len(in_the_open)
    )
    if classes is None:
        return whole
    by_class = {}
    _check_classes(classes, private.shape[1])
    for number in classes.unique().tolist():
        members = classes == number
        by_class[number] = replace(whole, **_counts(hard[0][members], hard[1][members]))
    return replace(whole, by_class=by_class)


def _hard(wrong: Tensor, often: float) -> Tensor:
    runs = len(wrong)
    # Not ceil(often * runs): 0.07 * 100 is above 7.
    least = next(count for count in range(1, runs + 1) if count / runs >= often)
    return wrong.sum(0) >= least


def _counts(private: Tensor, in_the_open: Tensor) -> dict[str, Any]:
    return {
        "both": int((private & in_the_open).sum()),
        "only_private": int((private & ~in_the_open).sum()),
        "only_open": int((~private & in_the_open).sum()),
        "neither": int((~private & ~in_the_open).sum()),
    }


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _stack(name: str, masks: Sequence[Tensor], nodes: int | None) -> Tensor:
    import torch

    rule = "be a list of bool tensors (nodes,), one for each run"
    if not isinstance(masks, (Sequence, torch.Tensor)):
        raise _refusal(name, rule, type(masks).__name__)
    if not len(masks):
        raise _refusal(name, "hold a run or more", "none")
    for mask in masks:
        if not isinstance(mask, torch.Tensor):
            raise _refusal(name, rule, f"{type(mask).__name__} in it")
        if mask.dtype != torch.bool or mask.dim() != 1:
            raise _refusal(name, rule, f"{mask.dtype} of shape {tuple(mask.shape)}")
        if not len(mask):
            raise _refusal(name, "be over a test node or more", "none")
        nodes = len(mask) if nodes is None else nodes
        if len(mask) != nodes:
            raise _refusal(name, f"be over the same {nodes} test nodes everywhere", len(mask))
    return torch.stack(list(masks))


def _check_classes(classes: Tensor, nodes: int) -> None:
    import torch

    if not isinstance(classes, torch.Tensor) or classes.dtype != torch.long:
        kind = classes.dtype if isinstance(classes, torch.Tensor) else type(classes).__name__
        raise _refusal("classes", "be a long tensor (nodes,)", kind)
    if classes.shape != (nodes,):
        raise _refusal("classes", f"be of shape ({nodes},)", f"shape {tuple(classes.shape)}")
    if classes.min() < 0:
        raise _refusal("classes", "be 0 or more everywhere", int(classes.min()))


def _refusal(name: str, rule: str, got: object) -> InvalidInputError:
    return InvalidInputError(f"The '{name}' parameter must {rule}. Got {got} instead.")
