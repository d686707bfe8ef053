"""What loss terms are drawn from, and how many of them one unit touches."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from graphveil._errors import InvalidInputError, UnprovenError
from graphveil.graph.lazy_rows import LazyRows


@runtime_checkable
class Examples(Protocol):
    """What loss terms are drawn from: how many there are, and batches of those drawn."""

    def __len__(self) -> int:
        """The number of loss terms; public."""

    def batches(self, drawn: Tensor) -> Iterable[Any]:
        """The drawn ones, cut into batches that fit in memory. Every one, exactly once.

        Not called when none was drawn: what changes from step to step follows the public number of
        the step, which a method ``begin(step)`` is told first, if there is one.
        """


@runtime_checkable
class Stepped(Protocol):
    """Examples that change from step to step."""

    def begin(self, step: int) -> None:
        """Be told the public number of the step that is about to be taken, from 0 on."""


@runtime_checkable
class Influential(Protocol):
    """Examples that know how many of their loss terms one unit touches."""

    def influence(self, unit: str = "node", **relation: Any) -> tuple[int, int]:
        """Terms removed and terms altered, at most, whatever the data is."""


class TensorExamples:
    """Examples that are rows of tensors, in memory or on disk; a batch is a tuple of them."""

    def __init__(self, *tensors: Tensor | LazyRows, batch_rows: int = 1024) -> None:
        for tensor in tensors:
            if not isinstance(tensor, (Tensor, LazyRows)) or not len(tensor.shape):
                raise InvalidInputError(
                    "The 'examples' parameter must be a tuple of tensors with one row for each "
                    "example, or an object with a length and a 'batches' method. Got "
                    f"{'a number' if isinstance(tensor, Tensor) else type(tensor).__name__} among "
                    "the tensors instead."
                )
        lengths = {len(tensor) for tensor in tensors}
        if len(lengths) != 1:
            raise InvalidInputError(
                "The 'examples' parameter must be tensors of one length. Got lengths "
                f"{[len(tensor) for tensor in tensors]} instead."
            )
        self.tensors, self.batch_rows = tensors, batch_rows

    def __len__(self) -> int:
        return len(self.tensors[0])

    def batches(self, drawn: Tensor) -> Iterable[tuple[Tensor, ...]]:
        """At most ``batch_rows`` examples at a time."""
        for part in drawn.split(self.batch_rows):
            yield tuple(tensor[part] for tensor in self.tensors)


def count_units(terms: Examples, unit: str = "node") -> int:
    """How many units there are, all public: as many as examples, unless these know better."""
    known = getattr(terms, "num_units", None)
    return max(len(terms), known(unit)) if callable(known) else len(terms)


def influence_of(terms: Examples, removed: int | None, altered: int | None) -> tuple[int, int]:
    """How many terms one unit removes and alters: what was given, or what the terms state."""
    if removed is not None or altered is not None:
        given = 1 if removed is None else removed, 0 if altered is None else altered
        check_influence(terms, given)
        return given
    if not isinstance(terms, Influential):
        if getattr(terms, "num_layers", 0):
            raise InvalidInputError(
                "Neighbourhoods overlap: give 'altered', in how many other loss terms one unit may "
                "be read (K + ... + K^L for senders capped at K and L layers)."
            )
        return 1, 0
    stated = terms.influence()
    if stated[1] >= len(terms) and not getattr(terms, "vouched", False):
        raise UnprovenError(
            f"One unit may alter all {len(terms)} loss terms: nothing bounds how many of them read "
            "its row. Cap the messages with RootedTerms.capped(..., max_sent=K), or give "
            f"removed=0, altered={len(terms)} to be charged for all."
        )
    return stated


def check_delivery(terms: Examples, charged: float) -> None:
    """Refuse to charge for fewer deliveries than the terms make."""
    delivered = getattr(terms, "delivery", 1.0)
    if charged < delivered:
        raise UnprovenError(
            f"The steps must be charged for a delivery of {delivered:g}, as the loss terms read so "
            f"many of the messages. Got {charged:g} instead; charge for it, or make the terms by "
            "DeliveredTerms."
        )


def check_influence(
    terms: Examples, charged: tuple[int, int], *, unit: str = "node", **relation: Any
) -> None:
    """Refuse to charge for fewer terms than one unit touches."""
    if not isinstance(terms, Influential):
        return
    (removed, altered), stated = charged, terms.influence(unit, **relation)
    if altered >= stated[1] and removed + altered >= sum(stated):
        return
    raise UnprovenError(
        f"The steps must be charged for removed={stated[0]}, altered={stated[1]} or more, as one "
        f"{unit} touches so many of these {len(terms)} loss terms. Got removed={removed}, "
        f"altered={altered} instead; leave them out, cap the messages with RootedTerms.capped(..., "
        "max_sent=K), or, if they were capped elsewhere, make the terms with touched=(1, a), which "
        "the certificate names as your word."
    )
