"""What several runs on the same data cost together, whatever kinds of release they are.

The accountant prices a tree of events by privacy loss distributions (PLD) where all of them have
one, and by Renyi divergences (RDP) where all of them have those. Between runs more is needed: one
run with RDP alone would take away the sharper bound of all others, and one on a secret sample of
the units, which is priced as a whole only, would leave none. So whatever has no PLD is handed over
as a *curve*, the (epsilon, delta) pairs that hold for it, which has one. Proof and figures:
docs/guarantees/ledger.md.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from functools import lru_cache

import dp_accounting as dpa
import numpy as np

from graphveil._errors import UnsupportedEventError
from graphveil.privacy import _pld, event_tree
from graphveil.privacy._bounds import compositions, epsilon_by_pld, pld_problem
from graphveil.privacy._mixture import Array
from graphveil.privacy._rdp import RdpAccountant
from graphveil.privacy.accounting import Price, price, undo_amplify
from graphveil.privacy.event_tree import Counted, outer_sampling
from graphveil.privacy.events import composed, from_json, repeated, to_json

_POINTS = 128  # of a curve
_BEYOND = 1e-3  # of delta: what the end of a curve leaves to infinity
_LEAST = 1e-6  # length of a curve


def together(events: Sequence[dpa.DpEvent], delta: float) -> Price:
    """Price ``events``, run one after the other on the same data, at ``delta``.

    *Guarantee.* Never below the true epsilon, and never above what :func:`price` says of the
    composed event, where that says anything.
    """
    return _together(json.dumps([to_json(event) for event in events]), delta)


@lru_cache(maxsize=256)
def _together(events: str, delta: float) -> Price:
    whole = composed(*map(from_json, json.loads(events)))
    plain, renyi, sampled = _sort(whole)
    if event_tree.releases_raw(whole):
        return Price.of_raw_data(delta)
    if not (sampled or renyi) or (_counts(sampled) == 1 and not (plain or renyi)):
        return price(whole, delta)
    rdp = None if sampled else price(whole, delta).epsilon
    pld, note = epsilon_by_pld(_with_curves(whole, delta, _BEYOND * delta), delta, None)
    bounds = [bound for bound in (pld, rdp) if bound is not None]
    if not bounds:
        raise UnsupportedEventError(f"No bound covers these events together. {note}")
    return Price(epsilon=min(bounds), delta=delta, pld=pld, rdp=rdp, notes=(_CURVES,))


_CURVES = "PLD: what has no loss distribution entered as its curve of (epsilon, delta)."


# --- curves ---------------------------------------------------------------------------------------


def _sort(event: dpa.DpEvent) -> tuple[Counted, Counted, Counted]:
    """The parts that have a PLD, those with RDP alone, and those that run on a sample."""
    event_tree.validate(event)
    plain: Counted = []
    renyi: Counted = []
    sampled: Counted = []
    for part, count in event_tree.parts(event):
        if outer_sampling(part) is not None:
            sampled.append((part, count))
        else:
            (plain if pld_problem(part) is None else renyi).append((part, count))
    return plain, renyi, sampled


def _counts(counted: Counted) -> int:
    return sum(count for _, count in counted)


def _with_curves(event: dpa.DpEvent, delta: float, tail: float) -> dpa.DpEvent:
    """The same parts, each with a PLD; curves leave about ``tail`` to infinity, all together."""
    plain, renyi, sampled = _sort(event)
    curves = _counts(sampled) + bool(renyi)
    if curves:
        tail /= 4.0 ** math.ceil(math.log(curves, 4))  # seldom another one, so that caches help
    events = [repeated(part, count) for part, count in plain]
    if renyi:
        whole = composed(*(repeated(part, count) for part, count in renyi))
        events.append(_curve_of(whole, delta, tail))
    for part, count in sampled:
        events.append(repeated(_cached_curve(json.dumps(to_json(part)), delta, tail), count))
    return composed(*events)


@lru_cache(maxsize=256)
def _cached_curve(event: str, delta: float, tail: float) -> dpa.DpEvent:
    return _curve_of(from_json(json.loads(event)), delta, tail)


def _curve_of(event: dpa.DpEvent, delta: float, tail: float) -> dpa.DpEvent:
    """What is known of an event at all epsilons up to where a delta of ``tail`` is left."""
    end = max(price(event, tail).epsilon, _LEAST)
    epsilons = np.linspace(0.0, end, _POINTS)
    deltas = _deltas(event, epsilons, delta)
    return _pld.CurveDpEvent(epsilons=tuple(epsilons.tolist()), deltas=tuple(deltas.tolist()))


def _deltas(event: dpa.DpEvent, epsilons: Array, delta: float) -> Array:
    """The smallest proven deltas of an event at many epsilons, all read off one composition."""
    if (sampled := outer_sampling(event)) is not None:
        rate, inner = sampled
        apart = np.array([undo_amplify(epsilon, rate) for epsilon in epsilons])
        return rate * _deltas(inner, apart, min(delta / rate, 0.5))
    deltas = np.ones_like(epsilons)
    if pld_problem(event) is None:
        directions = compositions(
            event_tree.leaves(event), None, lambda losses: losses.chernoff(delta)
        )
        deltas = np.max([direction.deltas(epsilons, delta) for direction in directions], axis=0)
    accountant = RdpAccountant()
    if accountant.supports(event):
        accountant.compose(event)
        deltas = np.minimum(deltas, [accountant.get_delta(epsilon) for epsilon in epsilons])
    return deltas
