"""Loss terms that read their own person's list, row by row: for attention over one's own items.

Where :func:`graphveil.graph.typed.flatten` makes a few columns of a list, a network may read all of
it: a term is the neighbourhood of one person, in which every public row on the list sends to the
person. Convolutions do the rest; ``gat`` weighs what is on the list by attention::

    terms = ListTerms.of(graph, "patient-takes-drug")
    module = NodeClassifier(terms.x.shape[1], 32, 2, conv="gat", num_layers=1)
    step = make_private(module, optimizer, terms, losses=losses, ...)

Public rows send to whoever names them, and nobody sends to them, so that no term reads another
person's row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import torch
from torch_geometric.data import HeteroData

from graphveil._errors import InvalidInputError
from graphveil.graph.influence import count_units
from graphveil.graph.messages import weigh_messages
from graphveil.graph.neighbourhoods import RootedTerms
from graphveil.graph.typed import lists_to_public, people_rows, public_rows

_UNKNOWN = -1  # the label of a public row


class ListTerms(RootedTerms):
    """One loss term for each training person: the own row, and the public rows on the own list.

    Nodes are people, then public rows. ``x`` has columns for either, and zeros in those of the
    other.

    *Guarantee*: (1, 0) for one person, at any length of the lists: a term reads its own person's
    row and public rows. Public: what is not a row of a person.
    """

    num_people: int

    @classmethod
    def of(cls, graph: HeteroData, relation: str | Sequence[str], *, lists: Any = ()) -> Self:
        """Terms over one relation of a typed graph, for people whom ``train_mask`` names.

        ``lists`` says what the people's other lists become, as for
        :func:`~graphveil.graph.typed.flatten`.
        """
        name, kind, thing, named = lists_to_public(graph, relation)
        y, mask = graph[kind].get("y"), graph[kind].get("train_mask")
        if y is None or mask is None or not bool(mask.any()):
            raise InvalidInputError(
                f"The type {kind!r} must have labels 'y' and a 'train_mask' that names somebody. "
                "Got none instead; draw masks with graphveil.split, and put them there."
            )
        own = people_rows(graph, kind, lists, without=name).values
        public = public_rows(graph, thing).values
        if not (isinstance(own, np.ndarray) and isinstance(public, np.ndarray)):
            raise InvalidInputError(
                "Rows of lists must be dense. Got sparse ones instead; leave bags out, or take "
                "fewer columns."
            )
        people, things = len(own), len(public)
        x = np.zeros((people + things, own.shape[1] + public.shape[1]), np.float32)
        x[:people, : own.shape[1]], x[people:, own.shape[1] :] = own, public
        owners, names = np.repeat(np.arange(people), np.diff(named.indptr)), named.indices
        ends = torch.from_numpy(np.stack([people + names.astype(np.int64), owners]))
        # A weight by the length of the own list; by how many name a public row it would be private.
        messages = weigh_messages(ends, people + things, "inverse-degree")
        unknown = torch.full((things, *y.shape[1:]), _UNKNOWN, dtype=y.dtype)
        roots = mask.nonzero().flatten()
        terms = cls(torch.from_numpy(x), torch.cat([y, unknown]), messages, roots, num_layers=1)
        terms.num_people = people
        return terms

    @property
    def vouched(self) -> bool:
        """Nobody's word: public rows are all that a term reads beside its own."""
        return False

    def influence(self, unit: str = "node", **relation: Any) -> tuple[int, int]:
        """A person removes the own term; an entry of a list alters it."""
        return (1, 0) if unit == "node" else (0, 1)

    def num_units(self, unit: str = "node") -> int:
        """People, with a loss or without; for edges, the pairs of nodes."""
        return self.num_people if unit == "node" else count_units(unit, len(self.x))
