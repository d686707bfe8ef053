"""The two bounds on what a tree of events costs: by privacy loss distributions, and by RDP.

Each returns the bound, or None and the reason why there is none. Trees must be validated, release
nothing raw, and not run on a sample of the units as a whole (see event_tree.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import dp_accounting as dpa

from graphveil._errors import UnprovenError
from graphveil.privacy import _pld
from graphveil.privacy._dp_accounting import is_supported
from graphveil.privacy._rdp import SparseRdpAccountant
from graphveil.privacy.event_tree import Counted, leaves, renyi_only
from graphveil.privacy.events import RevealedCountGaussianDpEvent, SampledGaussianDpEvent

_TOLERANCE = 3e-4  # of epsilon, what rounding losses up to the grid may cost
_CELLS = 100  # of the grid of losses between 0 and epsilon, at least
_MAX_STEPS = 10_000_000  # beyond this the Fourier transform's rounding eats the advantage of PLD


def pld_problem(event: dpa.DpEvent) -> str | None:
    """Why there is no PLD bound, or None if there is one."""
    if (name := renyi_only(event)) is not None:
        return f"PLD: {name} is bounded by its Renyi divergences only."
    try:
        costs = leaves(event)
    except TypeError:  # an event with an unhashable field (a list) cannot be counted
        return f"PLD: an event in {type(event).__name__} cannot be composed."
    for leaf, _ in costs:
        if isinstance(leaf, (SampledGaussianDpEvent, RevealedCountGaussianDpEvent)):
            if _pld.loss_range(leaf) > 0:
                continue
            return f"PLD: hardly any loss of {leaf} is below {_pld.MAX_LOSS:g}."
        if isinstance(leaf, _pld.CurveDpEvent):
            continue
        if not is_supported(leaf):
            return f"PLD: {type(leaf).__name__} is not supported: {leaf}."
    if sum(count for _, count in costs) > _MAX_STEPS:
        return f"PLD: more than {_MAX_STEPS:,} steps are left to RDP."
    return None


def epsilon_by_pld(
    event: dpa.DpEvent, delta: float, interval: float | None
) -> tuple[float | None, str | None]:
    """Epsilon at ``delta``, on a grid of ``interval`` or, if None, of one that is fine enough."""
    if (problem := pld_problem(event)) is not None:
        return None, problem
    costs = leaves(event)
    if not costs:
        return 0.0, None
    directions = compositions(costs, interval, lambda direction: direction.chernoff(delta))
    expected = max(direction.chernoff(delta)[0] for direction in directions)
    value = max(direction.epsilon(delta) for direction in directions)
    while interval is None and 0 < value < 0.6 * expected:
        # Where large losses are rare, epsilon is far below what the moments say of it, and a grid
        # fit for those is too coarse.
        expected = value

        def likely(direction: _pld.Composition, value: float = value) -> tuple[float, float]:
            # Beyond all losses of the cheaper direction the best tilt is endless.
            return value, min(direction.tilt_for(value), 100 / value)

        directions = compositions(costs, None, likely)
        value = min(value, max(direction.epsilon(delta) for direction in directions))
    if math.isinf(value):
        return None, f"PLD: losses above {_pld.MAX_LOSS:g} are likelier than delta."
    return value, None


def delta_by_pld(event: dpa.DpEvent, epsilon: float) -> float:
    """Delta at ``epsilon`` of an event without a :func:`pld_problem`."""
    costs = leaves(event)
    if not costs:
        return 0.0

    def likely(direction: _pld.Composition) -> tuple[float, float]:
        # Far beyond all losses the best tilt is endless, and delta does not depend on the grid.
        return direction.spread, min(direction.tilt_for(epsilon), 1e3)

    directions = compositions(costs, None, likely)
    return max(direction.delta(epsilon) for direction in directions)


def compositions(
    costs: Counted, interval: float | None, scale: Callable[[_pld.Composition], tuple[float, float]]
) -> list[_pld.Composition]:
    r"""Both directions' losses on a grid fine enough for what is asked of them.

    Moving losses to the ends of cells of width d adds at most d^2 / 4 to the variance of one event,
    d^2 / 6 on average, so that epsilon grows by about ``order * steps * d^2 / 12``. The grid starts
    coarse; ``scale`` reads epsilon and the order off it; finer grids follow until they suffice.
    """
    steps = sum(count for _, count in costs)
    widest = max(_pld.loss_range(leaf) for leaf, _ in costs)
    width = interval or widest / 2000
    for _ in range(20):
        losses = [(_pld.discretise(leaf, width), count) for leaf, count in costs]
        directions = [_pld.Composition([(sides[0], count) for sides, count in losses])]
        if any(len(sides) > 1 for sides, _ in losses):
            directions.append(_pld.Composition([(sides[-1], count) for sides, count in losses]))
        if interval is not None:
            break
        value, tilt = max(scale(direction) for direction in directions)
        if not 0 < value < math.inf:
            break
        wanted = min(math.sqrt(12 * _TOLERANCE * value / ((1 + tilt) * steps)), value / _CELLS)
        wanted = max(wanted, widest / _pld.MAX_POINTS)
        if width <= 1.5 * wanted:
            break
        width = wanted
    return directions


def epsilon_by_rdp(event: dpa.DpEvent, delta: float) -> tuple[float | None, str | None]:
    """Epsilon at ``delta`` by the best order."""
    try:
        value = SparseRdpAccountant().compose(event).get_epsilon(delta)
    except dpa.UnsupportedEventError as error:
        return None, f"RDP: {error}"
    if math.isnan(value):
        raise UnprovenError(f"RDP: the divergences of {event} could not be computed.")
    return (value, None) if math.isfinite(value) else (None, "RDP: no order gives a finite bound.")
