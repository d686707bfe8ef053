"""Scorers of links as data: their sizes, and what is refused. Nothing here imports torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from graphveil import _validate
from graphveil.nn.descriptions import Perceptron

if TYPE_CHECKING:
    from graphveil.nn.link_scorers import LinkScorer

SCORERS = ("dot", "mlp")


@dataclass(frozen=True, kw_only=True)
class LinkNetwork:
    """A scorer of pairs: see :class:`~graphveil.nn.link_scorers.LinkScorer`.

    A source has ``source_columns`` of its own, and with ``reads_list`` the mean of the ``content``
    columns of its list; ``target_columns`` are what ``content`` is made of. With ``popularity``
    every one of the ``num_targets`` has a number of its own, which is not learnt.
    """

    source_columns: int
    target_columns: int
    content: int
    num_targets: int
    reads_list: bool
    popularity: bool
    prior: float
    scorer: str = "dot"
    hidden_channels: int = 16
    activation: str = "tanh"

    def __post_init__(self) -> None:
        _validate.choice("scorer", self.scorer, SCORERS)
        for name in ("source_columns", "target_columns", "content", "num_targets"):
            _validate.integer(name, getattr(self, name), "[1, 1e9]")
        _ = self.head

    @property
    def in_channels(self) -> int:
        """How many numbers are read of a source."""
        return self.source_columns + (self.content if self.reads_list else 0)

    @property
    def width(self) -> int:
        """How many numbers a source is matched with a target by."""
        return self.content + int(self.popularity)

    @property
    def head(self) -> Perceptron | None:
        """What 'mlp' adds to the dot product."""
        if self.scorer == "dot":
            return None
        return Perceptron(2 * self.width, self.hidden_channels, 1, 2, self.activation)

    @property
    def num_parameters(self) -> int:
        """How many numbers are learnt."""
        linear = (self.in_channels + 1) * self.width
        return linear + (0 if self.head is None else self.head.num_parameters)

    def build(self) -> LinkScorer:
        """The module."""
        from graphveil.nn.link_scorers import LinkScorer

        return LinkScorer(self)
