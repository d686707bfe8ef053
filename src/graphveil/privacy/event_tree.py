"""Trees of events: what is in them, whether they make sense, and what they are to an accountant.

What there is to know of a type of event stands in one row of a table (``_KINDS``). A new event that
is neither checked nor composed of others needs no row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import attr
import dp_accounting as dpa
from dp_accounting import dp_event

from graphveil import _validate
from graphveil._errors import InvalidInputError
from graphveil.privacy import events
from graphveil.privacy.events import RevealedCountGaussianDpEvent, SampledGaussianDpEvent

_LEAST_RATE = 1e-12  # below this one plus a loss is hardly more than one
Counted = list[tuple[dpa.DpEvent, int]]


@dataclass(frozen=True, kw_only=True)
class _Kind:
    """What is known of one type of event.

    ``ranges`` are the fields to check, with their intervals: dp_accounting's events take any value,
    and a negative count would hand budget back. ``inside`` names the field that holds an event or a
    list of events, ``times`` the one that says how often or how likely they happen. A ``sequence``
    is nothing but its parts. ``raw`` tells a release without noise. ``renyi_only`` events have a
    bound on their Renyi divergences and no pair of laws.
    """

    ranges: Sequence[tuple[str, str]] = ()
    inside: str | None = None
    times: str | None = None
    sequence: bool = False
    raw: Callable[[Any], bool] = lambda event: False
    renyi_only: bool = False


_NOISE = (("noise_multiplier", "[1e-9, 1e9]"),)  # beyond, its square leaves double precision


def _noiseless(event: Any) -> bool:
    return bool(event.noise_multiplier == 0)


# dp_accounting notes a raw release of some events beside their loss distribution, which would pass
# for that of a release that costs nothing: hence `raw` for events that need no other entry.
_KINDS: dict[type[dpa.DpEvent], _Kind] = {
    dpa.ComposedDpEvent: _Kind(inside="events", sequence=True),
    dpa.SelfComposedDpEvent: _Kind(
        ranges=(("count", "[0, 1e12]"),), inside="event", times="count", sequence=True
    ),
    dpa.PoissonSampledDpEvent: _Kind(
        ranges=(("sampling_probability", "[0, 1]"),), inside="event", times="sampling_probability"
    ),
    events.OneOfDpEvent: _Kind(inside="events", renyi_only=True),
    dp_event.RepeatAndSelectDpEvent: _Kind(
        ranges=(("mean", "[1, 1e9]"), ("shape", "[0, inf]")), inside="event", renyi_only=True
    ),
    dpa.ZCDpEvent: _Kind(ranges=(("rho", "[0, inf)"), ("xi", "[0, inf)")), renyi_only=True),
    events.GumbelTopKDpEvent: _Kind(ranges=_NOISE, renyi_only=True),
    SampledGaussianDpEvent: _Kind(ranges=_NOISE),
    RevealedCountGaussianDpEvent: _Kind(ranges=_NOISE),
    dpa.GaussianDpEvent: _Kind(ranges=_NOISE, raw=_noiseless),
    dpa.LaplaceDpEvent: _Kind(ranges=_NOISE, raw=_noiseless),
    dpa.TruncatedSubsampledGaussianDpEvent: _Kind(raw=_noiseless),
    dpa.RandomizedResponseDpEvent: _Kind(
        raw=lambda event: event.noise_parameter == 0 and event.num_buckets > 1
    ),
    dp_event.MixtureOfGaussiansDpEvent: _Kind(raw=lambda event: event.standard_deviation == 0),
    dp_event.DiscreteLaplaceDpEvent: _Kind(raw=lambda event: event.noise_parameter == 0),
    dpa.NonPrivateDpEvent: _Kind(raw=lambda event: True),
}
_OTHER = _Kind()


def _kind(event: dpa.DpEvent) -> _Kind:
    return next((_KINDS[base] for base in type(event).__mro__ if base in _KINDS), _OTHER)


def _inside(event: dpa.DpEvent) -> Sequence[dpa.DpEvent]:
    kind = _kind(event)
    if kind.inside is None:
        return ()
    value = getattr(event, kind.inside)
    return value if kind.inside == "events" else (value,)


def _times(event: dpa.DpEvent) -> Any:
    times = _kind(event).times
    return 1 if times is None else getattr(event, times)


def validate(event: dpa.DpEvent) -> None:
    """Refuse a tree that holds what makes no sense, such as a negative count.

    graphveil's own events check themselves; here only that their noise can be computed with.
    """
    if not isinstance(event, dpa.DpEvent):
        raise InvalidInputError(f"An event must be a DpEvent. Got {event!r} instead.")
    for name, interval in _kind(event).ranges:
        value = getattr(event, name)
        if name == "count":
            _validate.integer(name, value, interval)
        elif name != "noise_multiplier" or value != 0:
            _validate.number(name, value, interval)
    if not isinstance(_inside(event), (list, tuple)):
        raise InvalidInputError(f"Composed events are a list. Got {_inside(event)!r} instead.")
    for part in _inside(event):
        validate(part)


def releases_raw(event: dpa.DpEvent) -> bool:
    """Whether anything in the tree is released without noise, so that no epsilon holds."""
    if _kind(event).raw(event):
        return True
    return bool(_times(event)) and any(releases_raw(part) for part in _inside(event))


def outer_sampling(event: dpa.DpEvent) -> tuple[float, dpa.DpEvent] | None:
    """The rate and inner event if the whole of ``event`` runs on a sample of the units."""
    if not isinstance(event, dpa.PoissonSampledDpEvent):
        return None
    if events.as_sampled_gaussian(event) or isinstance(
        event.event, (dpa.GaussianDpEvent, dpa.LaplaceDpEvent)
    ):
        return None
    rate = _validate.number("sampling_probability", event.sampling_probability, "(0, 1]")
    return rate, event.event


def parts(event: dpa.DpEvent, times: int = 1) -> Iterator[tuple[dpa.DpEvent, int]]:
    """The events that are run one after the other, in order, with how often each happens."""
    if not _kind(event).sequence:
        yield event, times
    elif count := times * _times(event):
        for part in _inside(event):
            yield from parts(part, count)


def renyi_only(event: dpa.DpEvent) -> str | None:
    """The name of a part that has a bound on its Renyi divergences and no pair of laws."""
    return next((type(part).__name__ for part, _ in parts(event) if _kind(part).renyi_only), None)


def leaves(event: dpa.DpEvent) -> Counted:
    """The events that make up the tree and cost something, each once, with how often it happens.

    Plain Gaussians, however many, are one Gaussian: squared inverse multipliers add up.
    """
    counts: dict[dpa.DpEvent, int] = {}
    inverse_square = 0.0
    for part, times in parts(event):
        leaf = events.as_sampled_gaussian(part) or part
        if isinstance(leaf, dpa.GaussianDpEvent):
            inverse_square += times / leaf.noise_multiplier**2
        elif isinstance(leaf, SampledGaussianDpEvent) and leaf.rate == 1:
            reach = leaf.removed + 2 * leaf.altered
            inverse_square += times * (reach / leaf.noise_multiplier) ** 2
        elif (leaf := _at_cost(leaf)) is not None:
            counts[leaf] = counts.get(leaf, 0) + times
    if inverse_square:
        one = SampledGaussianDpEvent(rate=1.0, noise_multiplier=inverse_square**-0.5)
        counts[one] = 1
    return list(counts.items())


def _at_cost(leaf: dpa.DpEvent) -> dpa.DpEvent | None:
    """None if it costs nothing; with the least rate that can be computed with, if it has one."""
    if isinstance(leaf, dpa.NoOpDpEvent):
        return None
    if isinstance(leaf, (SampledGaussianDpEvent, RevealedCountGaussianDpEvent)):
        if not (leaf.removed + leaf.altered) * (1 if leaf.rate is None else leaf.rate):
            return None
        if leaf.rate is not None and leaf.rate < _LEAST_RATE:
            return attr.evolve(leaf, rate=_LEAST_RATE, altered_rate=None)  # costs no less
        if leaf.altered_rate is not None and leaf.altered_rate < _LEAST_RATE:
            return attr.evolve(leaf, altered_rate=_LEAST_RATE)
    return leaf
