"""Tables of targets as data: what ranks targets without a trained layer. Nothing imports torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from graphveil import _validate

if TYPE_CHECKING:
    from graphveil.nn.target_modules import PopularTargets, SimilarTargets


@dataclass(frozen=True, kw_only=True)
class PopularityTable:
    """One number for each target."""

    num_targets: int

    def __post_init__(self) -> None:
        _validate.integer("num_targets", self.num_targets, "[1, 1e9]")

    @property
    def num_parameters(self) -> int:
        """How many numbers are learnt."""
        return self.num_targets

    def build(self) -> PopularTargets:
        """The module, all zeros."""
        from graphveil.nn.target_modules import PopularTargets

        return PopularTargets(self.num_targets)


@dataclass(frozen=True, kw_only=True)
class SimilarityTable:
    """For each target the ``similar`` others that are most often in the same lists."""

    num_targets: int
    similar: int

    def __post_init__(self) -> None:
        _validate.integer("num_targets", self.num_targets, "[1, 1e9]")
        _validate.integer("similar", self.similar, "[1, 1e6]")

    @property
    def num_parameters(self) -> int:
        """How many numbers are learnt."""
        return self.num_targets * self.similar

    def build(self) -> SimilarTargets:
        """The module, all zeros."""
        from graphveil.nn.target_modules import SimilarTargets

        return SimilarTargets(self.num_targets, self.similar)
