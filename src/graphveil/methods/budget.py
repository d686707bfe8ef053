"""How much noise fits a budget: the least with which all parts fit, or what a paper claims.

Shares of a budget are shares of a squared Gaussian mu. That is how a budget is *split*; what the
parts cost together is accounted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from graphveil._errors import BudgetError, InvalidInputError
from graphveil.methods.parts import Part, Steps
from graphveil.methods.plan import Facts, Plan, charge
from graphveil.privacy.accounting import calibrate
from graphveil.privacy.events import composed
from graphveil.privacy.guarantee import check_delta, default_delta

LOUDEST = 1e8  # a noise multiplier beyond which a plan does not look


def choose_delta(delta: float | None, units: int) -> float:
    """The delta asked for, or the default for the public number of units."""
    return default_delta(units) if delta is None else check_delta(delta, units)


def share_out(usual: Mapping[str, float], asked: Mapping[str, float | None]) -> dict[str, float]:
    """Shares of a budget that add up to 1: those ``asked`` for, and of the rest the ``usual``.

    ``usual`` has a weight for everything that costs something, and for nothing else.
    """
    given = {name: share for name, share in asked.items() if share is not None}
    for name, share in given.items():
        if name not in usual:
            raise InvalidInputError(
                f"The '{name}_share' must be left out where there is no such part to pay for. "
                f"Got {share!r} instead; this method pays for {', '.join(sorted(usual))}."
            )
    rest = {name: weight for name, weight in usual.items() if name not in given}
    left = 1.0 - sum(given.values())
    if (left <= 1e-9) != (not rest) or left < -1e-9:
        stated = ", ".join(f"{name}_share={share:g}" for name, share in given.items())
        raise InvalidInputError(
            "The shares of the budget must add up to 1 with what is left for "
            f"{', '.join(rest) or 'no other part'}. Got {stated} instead; "
            + (f"leave some for {', '.join(rest)}." if rest else "leave the shares out.")
        )
    return given | {name: left * weight / sum(rest.values()) for name, weight in rest.items()}


def scale_within(
    make_parts: Callable[[float], Sequence[Part]],
    *,
    epsilon: float,
    delta: float,
    loudest: float = 1e7,
    sampled_at: float = 1.0,
) -> float:
    """The least noise that fits a budget; ``make_parts`` takes the noise's scale."""

    def event(scale: float) -> Any:
        parts = make_parts(scale)
        charges = charge(parts, {part.name: part.event for part in parts}, sampled_at)
        return composed(*(paid.event for paid in charges))

    return calibrate(event, epsilon=epsilon, delta=delta, safe=loudest, risky=1e-2)


def claimed_noise(
    claim: Callable[[float], float],
    epsilon: float,
    quietest: float,
    loudest: float,
    refusal: str,
    *,
    tolerance: float = 1e-6,
) -> float:
    """The noise for which a paper claims ``epsilon``; ``claim`` gives its epsilon for a noise."""
    from scipy import optimize

    def excess(noise: float) -> float:
        return claim(noise) - epsilon

    try:
        bracketed = excess(loudest) < 0 < excess(quietest)
    except InvalidInputError:  # noise beyond what the claim's formula takes
        bracketed = False
    if not bracketed:
        raise BudgetError(refusal)
    return float(optimize.brentq(excess, quietest, loudest, xtol=tolerance))


def least_noise(epsilon: float, delta: float) -> float:
    """The noise multiplier of a Gaussian that spends all of (epsilon, delta)."""
    from scipy import optimize, special

    def excess(log_mu: float) -> float:
        mu = math.exp(log_mu)
        far, near = (special.log_ndtr(sign * mu / 2 - epsilon / mu) for sign in (-1, 1))
        return math.exp(near) - math.exp(epsilon + far) - delta

    return math.exp(-optimize.brentq(excess, math.log(1e-9), math.log(1e6)))


def noise_of_steps(
    strength: float, sample_rate: float, steps: int, influence: tuple[int, int]
) -> float:
    """The noise with which sampled steps are about as strong as one Gaussian of mu^2 = strength.

    By the central limit (Bu et al. 2020): good for splitting a budget, not for stating a price.
    """
    removed, altered = influence
    squared = math.log1p(strength / (sample_rate**2 * steps))
    return min((removed + 2 * altered) / math.sqrt(squared), LOUDEST) if squared else LOUDEST


def signal_to_noise(batch: float, noise: float, parameters: int) -> float:
    """The largest a step's clipped sum can be, over the size of its noise.

    Were all gradients of a batch to agree, their sum would be ``batch`` bounds long; the noise on
    ``parameters`` coordinates is ``noise * sqrt(parameters)`` bounds long.
    """
    return math.inf if noise == 0 else batch / (noise * math.sqrt(parameters))


def plan_steps(
    method: Any,
    facts: Facts,
    *,
    influence: tuple[int, int],
    units: int,
    unit: str = "node",
    noise: Callable[[float], float] | None = None,
    batch: int | None = None,
    terms: int | None = None,
    before: Callable[[float], Sequence[Part]] = lambda delta: (),
    delivery: float = 1.0,
) -> Plan:
    """The plan of a method whose private steps are all that is released, or all but ``before``.

    ``noise`` gives another noise than the least that fits the budget, for a delta. ``batch`` is the
    number of terms where it is fixed, ``terms`` how many there are to draw from, ``delivery`` the
    probability with which a message reaches a term that it alters.
    """
    parameters = method.network(facts).num_parameters  # refuses what makes no network
    delta = choose_delta(method.delta, units)
    removed, altered = influence
    first = tuple(before(delta))

    def parts(multiplier: float) -> tuple[Part, ...]:
        return (
            *first,
            Steps(
                name="weights",
                count=method.steps,
                rate=method.sample_rate if batch is None else batch / facts.num_train,
                noise_multiplier=multiplier,
                removed=removed,
                altered=altered,
                batch=batch,
                population=facts.num_train,
                clipping=method.clipping,
                max_grad_norm=method.max_grad_norm,
                optimizer=method.optimizer,
                momentum=method.momentum,
                learning_rate=method.learning_rate or 0.0,
                averaged=method.averaged,
                delivery=delivery,
            ),
        )

    if noise is None:
        multiplier = scale_within(parts, epsilon=method.epsilon, delta=delta)
    else:
        multiplier = noise(delta)
    drawn = facts.num_train if terms is None else terms
    return Plan(
        method=method.name,
        facts=facts,
        unit=unit,
        delta=delta,
        parts=parts(multiplier),
        details={
            "noise_multiplier": multiplier,
            "sample_rate": method.sample_rate,
            "steps": method.steps,
            "removed": removed,
            "altered": altered,
            "parameters": parameters,
            "signal_to_noise": signal_to_noise(method.sample_rate * drawn, multiplier, parameters),
        },
    )
