"""Parts of a plan: the only things that can release anything, each with the event it costs.

====================  ==========================================================================
:class:`Steps`        sampled, clipped, noisy steps of one network
:class:`Release`      one value through a mechanism: noisy sums, counts, private rows, a prediction
:class:`Search`       the best of several trainings, and how it was found
:class:`Earlier`      what was released before, and stands in the data
:class:`Open`         training in the open: nothing is promised
:class:`Unclipped`    noisy steps on gradients that nothing bounds: nothing is promised
====================  ==========================================================================

A part is frozen. It is planned, written to the run, run by
:class:`~graphveil.methods.execution.Execution` and charged; there is no other description of it.
A mechanism of one's own is made known by :func:`register`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, Protocol, TypeVar

import dp_accounting as dpa

from graphveil._errors import InvalidInputError
from graphveil.grads.settings import Sampling
from graphveil.graph.private_rows import PrivateRows
from graphveil.mechanisms import Gaussian
from graphveil.privacy import events
from graphveil.privacy.events import repeated


class Mechanism(Protocol):
    """A frozen dataclass that adds the noise and names the event."""

    def event(self) -> dpa.DpEvent:
        """What one release costs."""


M = TypeVar("M", bound=type)
_MECHANISMS: dict[str, type] = {"Gaussian": Gaussian, "PrivateRows": PrivateRows}


def register(mechanism: M) -> M:
    """Make a mechanism known, so that plans that hold it can be written and read back."""
    _MECHANISMS[mechanism.__name__] = mechanism
    return mechanism


@dataclass(frozen=True, kw_only=True)
class Steps:
    """Private steps of one network.

    A unit removes at most ``removed`` loss terms and alters at most ``altered`` others. Terms are
    drawn at ``rate``, or exactly ``batch`` of the ``population``. ``max_grad_norm`` is None where
    thresholds are read off the training gradients, for which nothing is proven. The learning rate
    falls to ``decay`` of itself by the end. What a unit sends to the altered terms is delivered
    with probability ``delivery``.
    """

    kind: ClassVar[str] = "steps"

    name: str
    paid_for: str = "training of the weights"
    count: int
    rate: float
    noise_multiplier: float
    removed: int
    altered: int
    batch: int | None = None
    population: int = 0
    clipping: str = "flat"
    max_grad_norm: Any = 1.0
    optimizer: str = "adam"
    momentum: float = 0.9  # of 'sgd'
    learning_rate: float = 0.01
    decay: float = 1.0
    averaged: float = 0.0
    delivery: float = 1.0

    @property
    def sampling(self) -> Sampling:
        """How one step draws, how much noise it adds, and what one unit touches."""
        return Sampling(
            sample_rate=self.rate,
            noise_multiplier=self.noise_multiplier,
            removed=self.removed,
            altered=self.altered,
            fixed_batch=self.batch,
            delivery=self.delivery,
        )

    @property
    def event(self) -> dpa.DpEvent:
        """What all of them cost."""
        return repeated(self.sampling.event(self.population), self.count)


@dataclass(frozen=True, kw_only=True)
class Release:
    """Values through a ``mechanism``, as many ``times`` as are charged."""

    kind: ClassVar[str] = "release"

    name: str
    paid_for: str
    mechanism: Any
    times: int = 1

    @property
    def event(self) -> dpa.DpEvent:
        """What it costs."""
        return repeated(self.mechanism.event(), self.times)


@dataclass(frozen=True, kw_only=True)
class Open:
    """Training in the open."""

    kind: ClassVar[str] = "open"

    name: str = "weights"
    paid_for: str = "training in the open"

    @property
    def event(self) -> dpa.DpEvent:
        """No epsilon holds."""
        return dpa.NonPrivateDpEvent()


@dataclass(frozen=True, kw_only=True)
class Unclipped:
    """Steps with N(0, noise^2) on every coordinate of gradients that nothing bounds.

    Every one of the ``groups`` of loss terms is visited once an epoch. No noise makes up for a
    gradient of any length, so this is training in the open to whoever charges for it.
    """

    kind: ClassVar[str] = "unclipped"

    name: str = "weights"
    paid_for: str = "training with noise on gradients that nothing bounds"
    epochs: int
    groups: int
    noise: float
    optimizer: str = "adam"
    learning_rate: float = 0.01

    @property
    def count(self) -> int:
        """How many steps there are."""
        return self.epochs * self.groups

    @property
    def event(self) -> dpa.DpEvent:
        """No epsilon holds."""
        return dpa.NonPrivateDpEvent()


@dataclass(frozen=True, kw_only=True)
class Search:
    """Trials, of which one is released; ``event`` prices all of them together."""

    kind: ClassVar[str] = "search"

    name: str = "search"
    paid_for: str
    event: dpa.DpEvent


@dataclass(frozen=True, kw_only=True)
class Earlier:
    """A release that was made before the plan, of which the data holds what came of it."""

    kind: ClassVar[str] = "earlier"

    name: str
    paid_for: str
    event: dpa.DpEvent


Part = Steps | Release | Search | Earlier | Open | Unclipped
_KINDS: dict[str, type[Any]] = {
    kind.kind: kind for kind in (Steps, Release, Search, Earlier, Open, Unclipped)
}


def to_json(part: Part) -> dict[str, Any]:
    """A part as plain JSON values."""
    plain = {field.name: getattr(part, field.name) for field in fields(part)}
    if isinstance(part, Release):
        mechanism = part.mechanism
        plain["mechanism"] = {"type": type(mechanism).__name__, **asdict(mechanism)}
    if isinstance(part, (Search, Earlier)):
        plain["event"] = events.to_json(part.event)
    return {"kind": part.kind, **plain}


def from_json(plain: Mapping[str, Any]) -> Part:
    """The part that :func:`to_json` wrote; only known kinds and mechanisms are ever made."""
    values = dict(plain)
    kind = _KINDS[values.pop("kind")]
    if kind is Release:
        mechanism = dict(values["mechanism"])
        if (name := mechanism.pop("type")) not in _MECHANISMS:
            raise InvalidInputError(
                f"The mechanism of a release must be one of {', '.join(_MECHANISMS)}. Got {name!r} "
                "instead; make one of your own known by graphveil.methods.parts.register."
            )
        values["mechanism"] = _MECHANISMS[name](**mechanism)
    if kind in (Search, Earlier):
        values["event"] = events.from_json(values["event"])
    part: Part = kind(**values)
    return part
