"""What one recorded run must show by itself: parts, noise, batches and price as charged."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from scipy import stats

from graphveil.audit.noise import FALSE_ALARM, Noises, check_noise
from graphveil.audit.recording import Recording, tensor_sizes
from graphveil.audit.results import Violation
from graphveil.mechanisms import Gaussian, GumbelTopK, Laplace
from graphveil.methods.base import Method
from graphveil.methods.parts import Earlier, Release, Steps
from graphveil.methods.plan import Plan
from graphveil.privacy.accounting import epsilon_of
from graphveil.privacy.events import composed


def check_charged(plan: Plan, first: Recording, fitted: Method) -> list[Violation]:
    """All rules of this file."""
    return [
        *_check_parts(plan, first),
        *check_noise(_noises_of(plan, first)),
        *_check_batches(plan, first),
        *_check_price(plan, fitted),
    ]


def _check_parts(plan: Plan, first: Recording) -> list[Violation]:
    """Every release belongs to a part of the plan, and every part runs that did not run before."""
    violations = []
    planned = [part.name for part in plan.parts if not isinstance(part, Earlier)]
    ran = [part.name for part in first.parts]
    if sorted(planned) != sorted(ran):
        violations.append(
            Violation(
                rule="the parts that ran are not the plan's", value=str(ran), allowed=str(planned)
            )
        )
    for number, released in enumerate(first.released):
        part = next((part for part in plan.parts if part.name == released.part), None)
        if part is None or not _belongs(released.mechanism, part):
            violations.append(
                Violation(
                    rule=f"release {number} is not in the plan",
                    part=released.part,
                    value=str(released.mechanism),
                    allowed="" if part is None else str(getattr(part, "mechanism", part.name)),
                )
            )
    for part in plan.parts:
        count = sum(released.part == part.name for released in first.released)
        if isinstance(part, Steps) and count != part.count:
            violations.append(
                Violation(
                    rule="another number of releases than are charged",
                    part=part.name,
                    value=str(count),
                    allowed=str(part.count),
                )
            )
    return violations


def _belongs(mechanism: Any, part: Any) -> bool:
    """Whether a mechanism is the one that a part is charged for."""
    if isinstance(part, Steps):
        return bool(mechanism == Gaussian(noise_multiplier=part.noise_multiplier, sensitivity=1.0))
    if not isinstance(part, Release):
        return False
    planned = part.mechanism
    if isinstance(planned, (Gaussian, Laplace, GumbelTopK)):
        return bool(mechanism == planned)
    return any(
        replace(mechanism, rows=1) == replace(other, rows=1)
        if isinstance(mechanism, GumbelTopK) and isinstance(other, GumbelTopK)
        else mechanism == other
        for other in planned.inner()
    )


def _noises_of(plan: Plan, first: Recording) -> Iterator[Noises]:
    """The noise of every part, with the scale that is charged."""
    for part in plan.parts:
        if isinstance(part, Earlier):
            continue
        live = first.live.get(part.name)
        yield Noises(
            part=part.name,
            released=[one for one in first.released if one.part == part.name],
            scale=partial(_charged_scale, part),
            sizes=() if live is None else tensor_sizes(live.module),
        )


def _charged_scale(part: Any, mechanism: Any) -> float:
    """The scale of the noise that the part's event speaks of, where the part says it."""
    if isinstance(part, Steps):
        return float(part.noise_multiplier)
    planned = part.mechanism if hasattr(part.mechanism, "sensitivity") else mechanism
    return float(planned.noise_multiplier * planned.sensitivity)


def _check_batches(plan: Plan, first: Recording) -> list[Violation]:
    """Batches are of the size that the rate gives, and fresh at every step."""
    violations = []
    for part in plan.parts:
        if not isinstance(part, Steps) or part.rate >= 1 or part.batch is not None:
            continue
        steps = [step for step in first.steps if step.part == part.name]
        live = first.live.get(part.name)
        if live is None:
            continue
        terms = len(live.examples)
        total, of = sum(len(step.drawn) for step in steps), terms * len(steps)
        law = stats.binom(of, part.rate)
        if min(law.cdf(total), law.sf(total - 1)) < FALSE_ALARM:
            violations.append(
                Violation(
                    rule="terms are drawn at another rate than is charged",
                    part=part.name,
                    value=f"{total / of:.4g}",
                    allowed=f"{part.rate:.4g}",
                )
            )
        again = [two for one, two in itertools.pairwise(steps) if torch.equal(one.drawn, two.drawn)]
        # Two batches are equal by chance with this probability; all of these, at most its power.
        alike = terms * math.log(part.rate**2 + (1 - part.rate) ** 2)
        if again and len(again) * alike + math.log(len(steps)) * len(again) < math.log(FALSE_ALARM):
            violations.append(
                Violation(
                    rule="the batch is the one of the step before: coins are not fresh",
                    part=part.name,
                    step=again[0].number,
                )
            )
    return violations


def _check_price(plan: Plan, fitted: Method) -> list[Violation]:
    """The certificate is not below what the parts cost, amplified by the law."""
    # That the stream was fixed voids the run's own certificate; its charges are what a run's are.
    certificate = plan.certificate(fitted.charges_).guarantee
    events = [part.event for part in plan.parts]
    rate = plan.sampled_at
    if not math.isfinite(certificate.epsilon) or rate == 0:
        return []
    inside = epsilon_of(composed(*events), plan.delta / rate)
    cost = math.log1p(rate * math.expm1(min(inside, 700.0)))
    if certificate.epsilon >= cost * (1 - 1e-6):
        return []
    return [
        Violation(
            rule="the certificate says less than its parts cost",
            value=f"epsilon {certificate.epsilon:.6g}",
            allowed=f"{cost:.6g} or more",
        )
    ]
