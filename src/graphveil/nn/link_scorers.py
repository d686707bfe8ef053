r"""Scores of pairs of a source and a target: a dot product, or a perceptron beside it.

    z = A h + c,        score = z . f        (+ head([z * f, f]) of the scorer 'mlp')

h is what is known of the source: its row, and perhaps the mean of f over its list. f are the
target's numbers: up to 64 of its features, of length 1, and perhaps how popular it is. A begins at
the *content prior*: whoever has a list is matched with what is like it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from graphveil.devices import at_home
from graphveil.grads.rows import ragged
from graphveil.graph.link_terms import PairBatch
from graphveil.nn.link_descriptions import LinkNetwork

_POPULAR = 4.0  # a unit of log popularity, in the column that holds it: 1 / so much


class LinkScorer(nn.Module):
    """A scorer, and what makes numbers of targets' features: public, or made by rows alone.

    ``centre`` and ``components`` turn features into content, ``popularity`` is the logarithm of how
    often a target is linked, through noise. None of the three is trained.
    """

    centre: Tensor
    components: Tensor
    popularity: Tensor

    def __init__(self, description: LinkNetwork) -> None:
        super().__init__()
        columns, content = description.target_columns, description.content
        self.register_buffer("centre", torch.zeros(columns))
        self.register_buffer("components", torch.eye(columns, content))
        self.register_buffer(
            "popularity", torch.zeros(description.num_targets if description.popularity else 0)
        )
        self.linear = nn.Linear(description.in_channels, description.width)
        head = description.head
        self.head: Any = None if head is None else head.build()
        with torch.no_grad():
            self.linear.weight.zero_()
            self.linear.bias.zero_()
            like = slice(description.in_channels - content, None)
            if description.in_channels >= content:
                self.linear.weight[:content, like] = description.prior * torch.eye(content)
            if description.popularity:
                self.linear.bias[content] = _POPULAR
            if self.head is not None:
                for value in self.head.linears[-1].parameters():
                    value.zero_()

    @property
    def is_linear(self) -> bool:
        """Whether one linear layer is all that is learnt."""
        return self.head is None

    @property
    def knows_targets(self) -> bool:
        """Whether it has a number for each target, by its place."""
        return len(self.popularity) > 0

    @at_home
    def content(self, rows: Tensor) -> Tensor:
        """What is read of targets' features: rows of length 1, in float64."""
        columns = (rows.double() - self.centre.double()) @ self.components.double()
        return F.normalize(columns, dim=1)

    @at_home
    def table(self, content: Tensor) -> Tensor:
        """The numbers of all targets, by which sources are matched with them."""
        if not len(self.popularity):
            return content
        return torch.cat([content, self.popularity.double().unsqueeze(1) / _POPULAR], 1)

    @at_home
    def represent(self, rows: Tensor) -> Tensor:
        """What sources are matched by."""
        z: Tensor = self.linear(rows.to(self.linear.weight))
        return z

    @at_home
    def score(self, z: Tensor, table: Tensor) -> Tensor:
        """The scores of some sources with all targets of a table: (sources, targets)."""
        table = table.to(z)
        scores = z @ table.t()
        if self.head is None:
            return scores
        wide = table.unsqueeze(0).expand(len(z), -1, -1)
        return scores + self._add(z.unsqueeze(1) * wide, wide)

    @at_home
    def score_some(self, z: Tensor, targets: Tensor) -> Tensor:
        """The scores of sources with targets of their own: (sources, n, columns) of these."""
        both = z.unsqueeze(1) * targets.to(z)
        scores = both.sum(2)
        return scores if self.head is None else scores + self._add(both, targets.to(z))

    def _add(self, both: Tensor, targets: Tensor) -> Tensor:
        added: Tensor = self.head(torch.cat([both, targets], 2)).squeeze(2)
        return added

    @at_home
    def forward(self, batch: PairBatch) -> Tensor:
        """The scores of pairs, and of their negatives: (pairs, 1 + n)."""
        with ragged(batch.owner, batch.count):
            z = self.represent(batch.rows)
        negative = batch.negative
        if self.head is None and negative.dim() == 1:
            table = batch.table.to(z)
            own = (z * table[batch.positive]).sum(1, keepdim=True)
            return torch.cat([own, z @ table[negative].t()], 1)
        if negative.dim() == 1:
            negative = negative.unsqueeze(0).expand(len(z), -1)
        targets = batch.table[torch.cat([batch.positive.unsqueeze(1), negative], 1)].to(z)
        if self.head is None:
            return (z.unsqueeze(1) * targets).sum(2)
        pairs, places, width = targets.shape
        both = (z.unsqueeze(1) * targets).view(-1, width)
        with ragged(batch.owner.repeat_interleave(places), batch.count):
            added = self.head(torch.cat([both, targets.view(-1, width)], 1))
        return both.sum(1).view(pairs, places) + added.view(pairs, places)


def link_losses(network: nn.Module, batch: PairBatch) -> Tensor:
    """One loss for each term: the mean over its pairs of -log softmax at the target."""
    losses = -network(batch).log_softmax(1)[:, 0]
    means = losses.new_zeros(batch.count)
    return means.index_add(0, batch.owner, losses * batch.share.to(losses))
