"""Loss terms of nodes of which only some take part."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from graphveil.graph.neighbourhoods import Rooted, RootedTerms
from graphveil.graph.side_by_side import SideBySide

NO_LABEL = -100  # of loss terms that are zero


class LiveTerms(RootedTerms):
    """Rooted terms, of which those without a label (``NO_LABEL``) are zero and cost no time.

    They are drawn like all others, and add nothing to a sum of gradients: nobody computes them.
    """

    def batches(self, drawn: Tensor) -> Iterator[tuple[Rooted | SideBySide, Tensor]]:
        """Neighbourhoods and labels of the terms drawn that are not zero."""
        targets = self.y[self.roots[drawn]]
        gone = targets == NO_LABEL
        live = drawn[~(gone if gone.dim() == 1 else gone.all(1))]
        if len(live):
            yield from super().batches(live)
