r"""The events dp_accounting lacks, each with its law.

An event holds what is needed, and no more, to price one release. Everything graphveil releases is
a tree of these and of dp_accounting's own events (`ComposedDpEvent`, `SelfComposedDpEvent`,
`GaussianDpEvent`, `LaplaceDpEvent`, `PoissonSampledDpEvent`, `RepeatAndSelectDpEvent`, ...), which
:mod:`graphveil.privacy.accounting` turns into epsilon and delta.

All events speak of one unit whose data is withheld (see :mod:`graphveil.privacy.guarantee`); noise
is given as a multiple of the clipping bound ``C`` of one loss term.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import attr
import dp_accounting as dpa
from dp_accounting import dp_event

from graphveil import _validate
from graphveil._errors import InvalidInputError


def _check_field(check: Any, interval: str) -> Any:
    """An attrs converter is blind to the field's name, a validator is not."""
    return lambda event, field, value: check(field.name, value, interval)


def _check_altered_rate(altered_rate: float | None, rate: float) -> None:
    """Altered terms are drawn no more often than others, and certainly where all are."""
    if altered_rate is not None:
        _validate.number("altered_rate", altered_rate, "[1, 1]" if rate == 1 else f"(0, {rate!r}]")


@attr.s(frozen=True, slots=True, auto_attribs=True, kw_only=True)
class SampledGaussianDpEvent(dpa.DpEvent):
    r"""One step of noisy, clipped, Poisson-sampled gradients in which one unit has *influence*.

    Every loss term is drawn independently with probability ``rate``, its gradient is clipped to
    norm ``C``, the sum gets ``N(0, (noise_multiplier C)^2)`` on every coordinate. Withholding the
    unit removes at most ``removed`` terms and alters at most ``altered`` others. The step is
    dominated, in both directions and under adaptive composition, by the pair (in units of C)

        P = \sum_i Bin(i; removed + altered, rate) N(+i, noise_multiplier^2)    unit present
        Q = \sum_j Bin(j; altered, rate)           N(-j, noise_multiplier^2)    unit withheld

    ``removed=1, altered=0`` is the ordinary Poisson-sampled Gaussian; ``removed=0, altered=1`` is
    its replace-one form; ``rate=1`` is a Gaussian of sensitivity ``removed + 2 altered``.
    Schuchardt et al. (NeurIPS 2024), Theorem 3.8; proof in docs/guarantees/step.md.

    With an ``altered_rate`` the altered terms are drawn at that rate, at most ``rate``: the counts
    are then Bin(removed, rate) + Bin(altered, altered_rate) and Bin(altered, altered_rate).
    """

    rate: float = attr.field(validator=_check_field(_validate.number, "[0, 1]"))
    noise_multiplier: float = attr.field(validator=_check_field(_validate.number, "(0, inf)"))
    removed: int = attr.field(default=1, validator=_check_field(_validate.integer, "[0, 1e6]"))
    altered: int = attr.field(default=0, validator=_check_field(_validate.integer, "[0, 1e6]"))
    altered_rate: float | None = None

    def __attrs_post_init__(self) -> None:
        _check_altered_rate(self.altered_rate, self.rate)

    @property
    def altered_at(self) -> float:
        """The rate at which altered terms are drawn."""
        return self.rate if self.altered_rate is None else self.altered_rate


@attr.s(frozen=True, slots=True, auto_attribs=True, kw_only=True)
class RevealedCountGaussianDpEvent(dpa.DpEvent):
    r"""The same step with the number of affected terms *revealed*: the coupled bound.

    An adversary who is also told how many of the unit's terms were drawn faces, for each count, a
    plain Gaussian: drawn altered terms weigh 2C each, drawn removed terms C. Knowing more cannot
    help privacy, so this is never below :class:`SampledGaussianDpEvent`; it is the cross-check of
    that event and the only bound here for batches of a *fixed size*.

    Poisson batches: give ``rate``; the counts are Bin(altered, rate) and Bin(removed, rate), or
    Bin(altered, altered_rate) where altered terms are drawn at a rate of their own.
    Fixed batches, ``batch`` drawn out of ``population`` without replacement: the number of affected
    terms is hypergeometric, and each of them is equally likely to be a removed one. A removed term
    of a fixed-size batch is one that turns into the zero gradient, not one whose place is refilled.
    """

    noise_multiplier: float = attr.field(validator=_check_field(_validate.number, "(0, inf)"))
    removed: int = attr.field(default=1, validator=_check_field(_validate.integer, "[0, 1e6]"))
    altered: int = attr.field(default=0, validator=_check_field(_validate.integer, "[0, 1e6]"))
    rate: float | None = None
    population: int | None = None
    batch: int | None = None
    altered_rate: float | None = None

    def __attrs_post_init__(self) -> None:
        if self.rate is not None and self.population is None and self.batch is None:
            _check_altered_rate(self.altered_rate, _validate.number("rate", self.rate, "[0, 1]"))
        elif self.rate is None and self.population is not None and self.batch is not None:
            if self.altered_rate is not None:
                raise InvalidInputError(
                    "The 'altered_rate' must go with a 'rate'. Got "
                    f"{self.altered_rate!r} with batches of a fixed size instead; leave it out."
                )
            _validate.integer("population", self.population, "[1, 1e12]")
            _validate.integer("batch", self.batch, f"[0, {self.population}]")
            affected = self.removed + self.altered
            _validate.integer("removed + altered", affected, f"[0, {self.population}]")
        else:
            raise InvalidInputError(
                "A revealed-count event needs either 'rate' (Poisson batches) or both 'population' "
                f"and 'batch' (fixed-size batches). Got rate={self.rate!r}, "
                f"population={self.population!r}, batch={self.batch!r} instead."
            )


@attr.s(frozen=True, slots=True, auto_attribs=True, kw_only=True)
class GumbelTopKDpEvent(dpa.DpEvent):
    r"""The ``k`` largest of noisy scores, names only: one-shot Gumbel top-k.

    Each score of a vector lies in [0, B] and withholding the unit may change all of them in any
    way. Every score gets Gumbel noise of scale ``noise_multiplier * B`` and the *names* of the
    ``k`` largest are released, in order. This is k exponential mechanisms peeled one after the
    other (Durfee and Rogers 2019), each of range at most 2 / noise_multiplier, hence
    1 / (2 noise_multiplier^2)-zCDP each (Cesar and Rogers 2021). RDP only: no PLD line.
    """

    noise_multiplier: float = attr.field(validator=_check_field(_validate.number, "(0, inf)"))
    k: int = attr.field(default=1, validator=_check_field(_validate.integer, "[1, 1e9]"))

    @property
    def rho(self) -> float:
        """The zCDP parameter of the whole release."""
        return self.k / (2 * self.noise_multiplier**2)


@attr.s(frozen=True, slots=True, auto_attribs=True)
class OneOfDpEvent(dpa.DpEvent):
    r"""One of ``events`` happens; which one does not depend on the data, and may be told.

    The choice may be drawn by any law, and may depend on what was released before. At each order
    the Renyi divergence is at most the largest of theirs: with weights w_c it is

        log(\sum_c w_c exp((order - 1) D_order(c))) / (order - 1).

    RDP only: no PLD line.
    """

    events: tuple[dpa.DpEvent, ...] = attr.field(converter=tuple)

    def __attrs_post_init__(self) -> None:
        if not self.events:
            raise InvalidInputError("One of several events must be one of one at least. Got none.")


def one_of(*events: dpa.DpEvent) -> dpa.DpEvent:
    """One of ``events``, whichever it may be; equal ones count once, a single one stays itself."""
    different = [event for place, event in enumerate(events) if event not in events[:place]]
    return different[0] if len(different) == 1 else OneOfDpEvent(different)


def composed(*events: dpa.DpEvent) -> dpa.DpEvent:
    """All of ``events``, one after the other; a single one stays itself."""
    kept = [event for event in events if not isinstance(event, dpa.NoOpDpEvent)]
    if not kept:
        return dpa.NoOpDpEvent()
    return kept[0] if len(kept) == 1 else dpa.ComposedDpEvent(kept)


def repeated(event: dpa.DpEvent, count: int) -> dpa.DpEvent:
    """``event``, ``count`` times."""
    count = _validate.integer("steps", count, "[0, 1e12]")
    if count == 0:
        return dpa.NoOpDpEvent()
    return event if count == 1 else dpa.SelfComposedDpEvent(event, count)


def as_sampled_gaussian(event: dpa.DpEvent) -> SampledGaussianDpEvent | None:
    """A Poisson sample of the units, and nothing but Gaussians on it, as one event; else None.

    Gaussians on one sample are one Gaussian: their squared inverse multipliers add up.
    """
    if not isinstance(event, dpa.PoissonSampledDpEvent):
        return None
    inverse_square = _inverse_square(event.event)
    if not inverse_square:
        return None
    return SampledGaussianDpEvent(
        rate=event.sampling_probability, noise_multiplier=inverse_square**-0.5
    )


def _inverse_square(event: dpa.DpEvent) -> float:
    """The sum of 1 / multiplier^2 over a tree of noisy Gaussians; 0 for any other tree."""
    if isinstance(event, dpa.GaussianDpEvent):
        noise = float(event.noise_multiplier)
        return noise**-2 if noise > 0 else 0.0
    if isinstance(event, dpa.SelfComposedDpEvent):
        return int(event.count) * _inverse_square(event.event)
    if isinstance(event, dpa.ComposedDpEvent):
        parts = [_inverse_square(part) for part in event.events]
        return sum(parts) if all(parts) else 0.0
    return 0.0


_OWN = (SampledGaussianDpEvent, RevealedCountGaussianDpEvent, GumbelTopKDpEvent, OneOfDpEvent)
_BY_NAME: dict[str, type[dpa.DpEvent]] = {
    cls.__name__: cls
    for cls in (*_OWN, *vars(dp_event).values())
    if isinstance(cls, type) and issubclass(cls, dpa.DpEvent) and cls is not dpa.DpEvent
}


def to_json(event: dpa.DpEvent) -> dict[str, Any]:
    """The event tree as plain JSON values: ``{"type": class name, field: value, ...}``."""
    if type(event).__name__ not in _BY_NAME:
        raise InvalidInputError(
            f"The event {type(event).__name__} is not one graphveil can write down; use an event "
            "of dp_accounting or of graphveil.privacy.events."
        )
    fields = attr.asdict(event, recurse=False).items()
    return {"type": type(event).__name__} | {k: _plain(v) for k, v in fields if v is not None}


def _plain(value: Any) -> Any:
    if isinstance(value, dpa.DpEvent):
        return to_json(value)
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float) and math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return value.item() if hasattr(value, "item") else value


def from_json(fields: Mapping[str, Any]) -> dpa.DpEvent:
    """The event :func:`to_json` wrote down. Only known event classes are ever made."""
    name = fields.get("type") if isinstance(fields, Mapping) else None
    if not isinstance(name, str) or name not in _BY_NAME:
        raise InvalidInputError(
            f"An event must name one of {', '.join(sorted(_BY_NAME))}. Got {name!r} instead."
        )
    try:
        values = {key: _unplain(value) for key, value in fields.items() if key != "type"}
        return _BY_NAME[name](**values)
    except TypeError as error:
        raise InvalidInputError(f"The fields of {name} do not fit it: {error}.") from error


def _unplain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return from_json(value)
    if isinstance(value, list):
        return [_unplain(item) for item in value]
    return float(value) if value in ("inf", "-inf") else value
