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
from graphveil.privacy import _pld, accounting
from graphveil.privacy._mixture import Array
from graphveil.privacy._rdp import RdpAccountant
from graphveil.privacy.accounting import Account, account
from graphveil.privacy.events import composed, from_json, repeated, to_json

_POINTS = 128  # of a curve
_BEYOND = 1e-3  # of delta: what the end of a curve leaves to infinity
_LEAST = 1e-6  # length of a curve


def together(events: Sequence[dpa.DpEvent], delta: float) -> Account:
    """Price ``events``, run one after the other on the same data, at ``delta``.

    *Guarantee.* Never below the true epsilon, and never above what :func:`account` says of the
    composed event, where that says anything.
    """
    return _together(json.dumps([to_json(event) for event in events]), delta)


@lru_cache(maxsize=256)
def _together(events: str, delta: float) -> Account:
    whole = composed(*map(from_json, json.loads(events)))
    plain, renyi, sampled = _sorted(whole)
    if accounting._releases_raw(whole):
        return Account(epsilon=math.inf, delta=delta, pld=None, rdp=None, notes=(accounting._RAW,))
    alone = not sampled or (len(sampled) == 1 and sampled[0][1] == 1 and not (plain or renyi))
    found = account(whole, delta) if alone else None
    if not (sampled or renyi) or (alone and sampled):
        assert found is not None
        return found
    pld, note = accounting._by_pld(_with_curves(whole, delta, _BEYOND * delta), delta, None)
    rdp = None if found is None else found.epsilon
    bounds = [bound for bound in (pld, rdp) if bound is not None]
    if not bounds:
        raise UnsupportedEventError(f"No bound covers these events together. {note}")
    return Account(epsilon=min(bounds), delta=delta, pld=pld, rdp=rdp, notes=(_CURVES,))


_CURVES = "PLD: what has no loss distribution entered as its curve of (epsilon, delta)."


# --- curves ---------------------------------------------------------------------------------------

_Counted = list[tuple[dpa.DpEvent, int]]


def _sorted(event: dpa.DpEvent) -> tuple[_Counted, _Counted, _Counted]:
    """The parts that have a PLD, those with RDP alone, and those that run on a sample."""
    plain: _Counted = []
    renyi: _Counted = []
    sampled: _Counted = []

    def visit(node: dpa.DpEvent, times: int) -> None:
        if isinstance(node, dpa.ComposedDpEvent):
            for part in node.events:
                visit(part, times)
        elif isinstance(node, dpa.SelfComposedDpEvent):
            visit(node.event, times * node.count)
        elif accounting._outer_sampling(node) is not None:
            sampled.append((node, times))
        else:
            kind = plain if accounting._pld_problem(node) is None else renyi
            kind.append((node, times))

    accounting._check(event)
    visit(event, 1)
    return plain, renyi, sampled


def _with_curves(event: dpa.DpEvent, delta: float, tail: float) -> dpa.DpEvent:
    """The same parts, each with a PLD; curves leave about ``tail`` to infinity, all together."""
    plain, renyi, sampled = _sorted(event)
    curves = sum(count for _, count in sampled) + bool(renyi)
    if curves:
        tail /= 4.0 ** math.ceil(math.log(curves, 4))  # seldom another one, so that caches help
    parts = [repeated(each, count) for each, count in plain]
    if renyi:
        whole = composed(*(repeated(each, count) for each, count in renyi))
        parts.append(_curve_of(whole, delta, tail))
    for each, count in sampled:
        parts.append(repeated(_cached_curve(json.dumps(to_json(each)), delta, tail), count))
    return composed(*parts)


@lru_cache(maxsize=256)
def _cached_curve(event: str, delta: float, tail: float) -> dpa.DpEvent:
    return _curve_of(from_json(json.loads(event)), delta, tail)


def _curve_of(event: dpa.DpEvent, delta: float, tail: float) -> dpa.DpEvent:
    """What is known of an event at all epsilons up to where a delta of ``tail`` is left."""
    end = max(account(event, tail).epsilon, _LEAST)
    epsilons = np.linspace(0.0, end, _POINTS)
    deltas = _deltas(event, epsilons, delta)
    return _pld.CurveDpEvent(epsilons=tuple(epsilons.tolist()), deltas=tuple(deltas.tolist()))


def _deltas(event: dpa.DpEvent, epsilons: Array, delta: float) -> Array:
    """The smallest proven deltas of an event at many epsilons, all read off one composition."""
    sampled = accounting._outer_sampling(event)
    if sampled is not None:
        rate, inner = sampled
        apart = np.array([accounting._undo_amplify(each, rate) for each in epsilons])
        return rate * _deltas(inner, apart, min(delta / rate, 0.5))
    found = np.ones_like(epsilons)
    if accounting._pld_problem(event) is None:
        leaves = accounting._leaves(event)
        directions = accounting._composed(leaves, None, lambda each: each.chernoff(delta))
        found = np.max([direction.deltas(epsilons, delta) for direction in directions], axis=0)
    accountant = RdpAccountant()
    if accountant.supports(event):
        accountant.compose(event)
        renyi = [float(accountant.get_delta(each)) for each in epsilons]
        found = np.minimum(found, renyi)
    return found
