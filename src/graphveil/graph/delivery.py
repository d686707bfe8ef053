r"""Messages that arrive by coins: a cap on senders that may be a fraction of a message.

Every kept message has a slot of its own: its sender, and its place in the sender's list. In every
step each slot has a secret coin, which says with probability p that the message is delivered. One
that is not is nowhere: receivers choose, and weights are counted, among what was delivered. So a
loss term to which a message is not delivered is, to the last bit, the term without that message.

There are as many coins as public ids times the cap, whatever the graph is, and they come fresh from
the secret stream at every step. Proof of what this costs: docs/guarantees/node.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from graphveil import processes
from graphveil._errors import UnprovenError
from graphveil.graph.caps import cap_receivers, cap_senders
from graphveil.graph.lazy_rows import LazyRows
from graphveil.graph.lists import Lists
from graphveil.graph.messages import Messages, weigh_messages
from graphveil.graph.neighbourhoods import Rooted, RootedTerms
from graphveil.graph.side_by_side import SideBySide
from graphveil.rng import SecretStream


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """How messages of one layer are capped, and with what ``probability`` each is delivered.

    *Guarantee conditions*: all fields are public, and chosen without looking at the graph.
    """

    sender_cap: int
    probability: float
    receiver_cap: int | None = None
    normalisation: str = "inverse-degree"
    seed: int = 0
    side_by_side: bool = False


class DeliveredTerms:
    """Loss terms of one layer to draw from: each root reads what a step delivers to it.

    Of ``edges`` those to roots are read alone (:mod:`graphveil.graph.caps`); ``rng`` gives the
    coins.

    *Guarantee conditions*: withholding a node removes one term at most and alters at most as many
    others as the cap says, those to which its message was delivered. A row, a label and a list are
    of one person; ids and roots are public.
    """

    def __init__(
        self,
        x: Tensor | LazyRows,
        y: Tensor,
        edges: Tensor | Lists,
        roots: Tensor,
        how: Delivery,
        rng: SecretStream,
    ) -> None:
        self.x, self.y, self.roots, self.how, self.rng = x, y, roots, how, rng
        # A list holds roots alone, so no place beyond their number is ever taken.
        self.places = min(how.sender_cap, len(roots))
        readers = torch.zeros(len(x), dtype=torch.bool)
        readers[roots] = True
        self.kept = cap_senders(edges, len(x), self.places, seed=how.seed, readers=readers)
        sent = torch.bincount(self.kept[0], minlength=len(x))
        first = torch.cumsum(sent, 0) - sent
        place = torch.arange(self.kept.shape[1]) - first[self.kept[0]]
        self.slot = self.kept[0] * self.places + place
        # The messages to root r are kept[:, by_root[start[r] : start[r + 1]]].
        self._by_root = torch.argsort(self.kept[1].int(), stable=True)
        self._start = F.pad(torch.bincount(self.kept[1], minlength=len(x)).cumsum(0), (1, 0))
        self.coins: Tensor | None = None

    @property
    def delivery(self) -> float:
        """The probability with which a step delivers each message."""
        return self.how.probability

    def influence(
        self, unit: str = "node", relation: str = "withhold", **_: object
    ) -> tuple[int, int]:
        """One term removed, and as many altered as there are places, at a rate of their own."""
        if unit != "node" or relation != "withhold":
            raise UnprovenError(
                "Messages that arrive by coins must protect the unit 'node' under the relation "
                f"'withhold'. Got {unit!r} and {relation!r} instead; deliver every message."
            )
        return 1, self.places

    def num_units(self, unit: str = "node") -> int:
        """Nodes that there are, with a loss or without."""
        return len(self.x)

    def __len__(self) -> int:
        return len(self.roots)

    def begin(self, step: int) -> None:
        """Throw the coins of a step, fresh ones every time, and the same for all processes."""
        count = len(self.x) * self.places
        self.deliver(
            processes.current().once(
                lambda: torch.from_numpy(self.rng.bernoulli(self.delivery, count))
            )
        )

    def deliver(self, coins: Tensor) -> None:
        """Take the messages whose slots' ``coins`` are true, and no others."""
        self.coins = coins

    def batches(self, drawn: Tensor) -> Iterator[tuple[Rooted | SideBySide, Tensor]]:
        """Neighbourhoods and labels of the terms drawn, as this step's coins have them."""
        if self.coins is None:
            self.begin(0)
        assert self.coins is not None
        messages = self._messages_to(self.roots[drawn], self.coins)
        mixed = self.how.side_by_side
        terms = RootedTerms(self.x, self.y, messages, self.roots, 1, side_by_side=mixed)
        return terms.batches(drawn)

    def _messages_to(self, roots: Tensor, coins: Tensor) -> Messages:
        """What is delivered to some roots: what reaches one is a function of its own messages."""
        how, nodes = self.how, len(self.x)
        first, sizes = self._start[roots], self._start[roots + 1] - self._start[roots]
        before = torch.cumsum(sizes, 0) - sizes
        place = torch.arange(int(sizes.sum())) + torch.repeat_interleave(first - before, sizes)
        which = self._by_root[place]
        read = self.kept[:, which[coins[self.slot[which]]]]
        if how.receiver_cap is not None:
            read = cap_receivers(read, nodes, how.receiver_cap, seed=how.seed)
        return weigh_messages(read, nodes, how.normalisation, sender_lists=self.kept)
