"""Replays: the same secret stream on a data set and on its neighbours, step by step.

    for finding in replay(DPGNN(epsilon=8.0), data):
        print(finding.name, finding.holds, *finding.violations)

A replay proves nothing for data it does not see, and is exact on what it sees: it counts the loss
terms that one unit changes, to the last bit, and compares them with what the steps are charged for;
it measures how far each released value moves; it asks that batches, draws, shapes and all that
follows a release are the same in both worlds. It needs the data, and shows only whether rules
hold; violations name terms, so show them to whoever may see the data.
"""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from graphveil import _validate
from graphveil._errors import GraphveilError, InvalidInputError, UnprovenError
from graphveil._progress import Progress
from graphveil.audit.charged import check_charged
from graphveil.audit.neighbours import Neighbour, neighbours
from graphveil.audit.noise import Noises, check_noise
from graphveil.audit.predictions import (
    Answers,
    check_prediction,
    compare_predictions,
    modes_of,
    predict,
)
from graphveil.audit.recording import (
    Follower,
    Recorder,
    Recording,
    WithoutTerms,
    record,
    tensor_sizes,
    weights_of,
)
from graphveil.audit.results import Finding, Violation
from graphveil.grads.clipping import Off
from graphveil.grads.own_rows import RowExamples
from graphveil.mechanisms import GumbelTopK, Laplace
from graphveil.methods.base import Method
from graphveil.methods.parts import Release, Steps
from graphveil.methods.plan import Facts, Plan
from graphveil.privacy.guarantee import ONE
from graphveil.rng import secret

_NOTE = "deterministic: exact on these neighbours, silent about others"
_ROUNDING = 1e-6  # of a sensitivity
_SEED = 20_261_118


def replay(
    method: Method,
    data: Data,
    *,
    name: str = "data",
    most: int = 12,
    seed: int = 0,
    progress: Progress | None = None,
) -> Finding:
    """Run ``method`` on ``data`` and on at most ``most`` of its neighbours, with one stream.

    *Guarantee*: none. Nothing of it is released: weights are thrown away.
    """
    plan = method.plan(Facts.of(data)).on(data)
    _validate.integer("most", most, "[1, 1e6]")
    gone = list(neighbours(data, plan.unit, plan.relation, most=most, seed=seed))
    if not gone:
        raise InvalidInputError(
            f"The data must have {ONE[plan.unit]} at least to take away. Got none instead; replay "
            "other data."
        )
    fitted, first = _record(method, plan, data)
    violations = [*first.violations, *check_charged(plan, first, fitted)]
    violations += _run_again(method, plan, data, first)
    asked: dict[str, Answers] = {}
    for mode in modes_of(method, plan):
        with contextlib.suppress(UnprovenError):  # a mode that the method refuses for the task
            asked[mode], seen = check_prediction(fitted, data, mode)
            violations += seen
    changed: list[tuple[int, int]] = []
    for neighbour in gone if progress is None else progress(gone):
        seen, counts, other = _follow(method, plan, data, neighbour, first)
        for mode, answers in asked.items():
            if other is not None:
                seen += _follow_prediction(plan, other, neighbour, mode, answers)
        violations += [replace(one, rule=f"{neighbour.name}: {one.rule}") for one in seen]
        changed += counts
    figures = {
        "neighbours": len(gone),
        "steps": len(first.steps),
        "releases": len(first.released),
        "removed": max((removed for removed, _ in changed), default=0),
        "altered": max((altered for _, altered in changed), default=0),
        "charged": "; ".join(
            f"{part.name} ({part.removed}, {part.altered})"
            for part in plan.parts
            if isinstance(part, Steps)
        ),
    }
    return Finding(
        kind="replay",
        name=f"{method.name} on {name}, unit {plan.unit}",
        holds=not violations,
        trials=len(gone),
        figures=figures,
        violations=tuple(violations),
        note=_NOTE,
    )


# --- the worlds -----------------------------------------------------------------------------------


def _record(method: Method, plan: Plan, data: Data) -> tuple[Method, Recording]:
    fitted, observer = copy.copy(method), Recorder()
    with record(observer, seed=1):
        fitted.run(plan, data, rng=secret(fixed_seed=_SEED))
    observer.recording.weights = weights_of(fitted.network_)
    return fitted, observer.recording


def _run_again(method: Method, plan: Plan, data: Data, first: Recording) -> list[Violation]:
    """The same world under other public seeds: nothing may change."""
    fitted, observer = copy.copy(method), Follower(first, None)
    with record(observer, seed=2):
        fitted.run(plan, data, rng=secret(fixed_seed=_SEED))
    second = observer.recording
    violations = [
        Violation(
            rule="the same data gives another sum under another public seed",
            part=one.part,
            step=one.number,
        )
        for one, two in zip(first.steps, second.steps, strict=False)
        if not torch.equal(one.vector, two.vector)
    ]
    return violations[:1] + second.violations[:1]


def _follow(
    method: Method, plan: Plan, data: Data, neighbour: Neighbour, first: Recording
) -> tuple[list[Violation], list[tuple[int, int]], Method | None]:
    """What one neighbour shows, and the method that was trained there, unless it was refused."""
    fitted = copy.copy(method)
    observer = Follower(first, _own_terms(data, neighbour.record))
    try:
        with record(observer, seed=3):
            fitted.run(plan, neighbour.data, rng=secret(fixed_seed=_SEED))
    except GraphveilError as error:
        return [Violation(rule=f"refused, which tells who is there: {error}")], [], None
    second = observer.recording
    second.weights = weights_of(fitted.network_)
    violations = list(second.violations)
    violations += _compare_released(plan, first, second, neighbour)
    violations += _compare_ends(first, second)
    return violations, list(observer.changed.values()), fitted


def _follow_prediction(
    plan: Plan, fitted: Method, neighbour: Neighbour, mode: str, first: Answers
) -> list[Violation]:
    """What one neighbour shows of answers in a mode."""
    try:
        _, second = predict(fitted, neighbour.data, mode, first)
    except GraphveilError as error:
        rule = f"refused, which tells who is there: {error}"
        return [Violation(rule=rule, part=f"prediction, {mode}")]
    return compare_predictions(first, second, neighbour.record, own_rows=plan.unit == "node")


def _own_terms(data: Data, record_gone: int | list[int] | None) -> Callable[[Any], Tensor]:
    """Which of some examples are the loss terms of the record that is gone."""
    train = data.train_mask.nonzero().flatten()

    def own(examples: Any) -> Tensor:
        nothing = torch.empty(0, dtype=torch.long)
        if record_gone is None or isinstance(examples, RowExamples) or hasattr(examples, "groups"):
            return nothing  # a record without a label has no loss there
        roots = getattr(examples, "roots", getattr(examples, "ids", None))
        if roots is not None and len(roots) > len(examples):
            return nothing  # nor has an owner of several
        if roots is None:
            roots = train if len(examples) == len(train) else nothing
        return torch.isin(roots, torch.tensor(record_gone)).nonzero().flatten()

    return own


def _compare_released(
    plan: Plan, first: Recording, second: Recording, neighbour: Neighbour
) -> list[Violation]:
    """How far what is released moves, part by part, against the sensitivity that is charged."""
    violations = []
    for part in plan.parts:
        if not isinstance(part, Release):
            continue
        ones = [one for one in first.released if one.part == part.name]
        twos = [two for two in second.released if two.part == part.name]
        if [one.value.shape for one in ones] != [two.value.shape for two in twos]:
            violations.append(Violation(rule="values of other shapes", part=part.name))
            continue
        moved = _moved(ones, twos, plan, part, neighbour)
        for mechanism, distance in moved.items():
            most = mechanism.sensitivity
            if not distance <= most * (1 + _ROUNDING):
                violations.append(
                    Violation(
                        rule="a released value moves further than its sensitivity",
                        part=part.name,
                        value=f"{distance:.6g}",
                        allowed=f"{most:.6g}",
                    )
                )
    return violations


def _moved(
    ones: Sequence[Any], twos: Sequence[Any], plan: Plan, part: Release, neighbour: Neighbour
) -> dict[Any, float]:
    """The distance between the values of a part, by mechanism: l2 of Gaussians, l1 of Laplace.

    Under the unit node a node's own row of a hop is shown to nobody but that node (joint privacy).
    """
    squares: dict[Any, float] = {}
    row = 0
    rows = sum(len(one.value) for one in ones if one.value.ndim == 2)
    own = plan.unit == "node" and rows == plan.facts.num_nodes and part.name.startswith("hop")
    for one, two in zip(ones, twos, strict=True):
        if isinstance(one.mechanism, GumbelTopK):
            continue  # scores may change in any way
        apart = np.abs(one.value - two.value)
        if own and isinstance(neighbour.record, int) and row <= neighbour.record < row + len(apart):
            apart[neighbour.record - row] = 0
        row += len(apart) if apart.ndim == 2 else 0
        power = 1 if isinstance(one.mechanism, Laplace) else 2
        # Laplace noise is charged for each call, Gaussian noise for all blocks of a part together.
        distance = float((apart**power).sum())
        before = squares.get(one.mechanism, 0.0)
        joint = power == 2 and part.times == 1
        squares[one.mechanism] = before + distance if joint else max(before, distance)
    return {
        mechanism: total if isinstance(mechanism, Laplace) else math.sqrt(total)
        for mechanism, total in squares.items()
    }


def _compare_ends(first: Recording, second: Recording) -> list[Violation]:
    """Given the same releases, all that follows must be the same."""
    violations = []
    if [part.name for part in first.parts] != [part.name for part in second.parts]:
        violations.append(Violation(rule="other parts run"))
    if len(first.released) != len(second.released):
        violations.append(
            Violation(
                rule="another number of releases",
                value=str(len(second.released)),
                allowed=str(len(first.released)),
            )
        )
    if first.draws != second.draws:
        violations.append(
            Violation(
                rule="another number of draws from the secret stream",
                value=f"{len(second.draws)} of {sum(second.draws)} bytes",
                allowed=f"{len(first.draws)} of {sum(first.draws)} bytes",
            )
        )
    for name, value in first.weights.items():
        other = second.weights.get(name)
        if other is None or not torch.equal(value, other):
            apart = math.nan if other is None else float((value - other).abs().max())
            violations.append(
                Violation(
                    rule=f"weights '{name}' differ although all releases are the same: something "
                    "else is let out",
                    value=f"{apart:.3g} apart",
                    allowed="0",
                )
            )
            break
    return violations


# --- a module of one's own ------------------------------------------------------------------------


def replay_steps(
    make: Callable[[Any, Any], Any],
    data: Any,
    others: Iterable[tuple[str, Any, Sequence[int]]],
    *,
    steps: int = 3,
) -> Finding:
    """Replay a :func:`~graphveil.grads.step.make_private` of one's own.

    ``make(data, rng)`` builds the private step anew, with the secret stream ``rng`` and the same
    first weights every time. ``others`` are neighbours of ``data``, one at least: a name, the data
    without one unit, which keeps its place and holds nothing, and the numbers of the loss terms
    that are the unit's own, which are left out.

    Looked at are the rules of :func:`replay` that need no plan: batches, terms, company, public
    seeds, sums, noise, draws, what the optimiser gets, and the weights at the end.
    """
    steps, gone = _validate.integer("steps", steps, "[1, 1e9]"), list(others)
    if not gone:
        raise InvalidInputError(
            "The 'others' parameter must hold a neighbour of the data. Got none instead; name at "
            "least one data set without one unit."
        )
    for name, neighbour, _ in gone:
        if _is_same(data, neighbour):
            raise InvalidInputError(
                "A neighbour must differ from the data. Got the data itself as "
                f"{name!r} instead; take away a unit that holds something."
            )
    first = Recorder()
    step, before = _make(make, data, (), "the data", None)
    _take(step, first, steps, seed=1)
    scale = step.noise_multiplier
    first.recording.weights = weights_of(step.module)
    violations, count = list(first.recording.violations), 0
    if scale and not isinstance(step.clipped.clipping, Off):
        noises = Noises("", first.recording.released, lambda _: scale, tensor_sizes(step.module))
        violations += check_noise([noises])
    again = Follower(first.recording, None)
    _take(_make(make, data, (), "the data, once more", before)[0], again, steps, seed=2)
    for one, two in zip(first.recording.steps, again.recording.steps, strict=True):
        if not torch.equal(one.vector, two.vector):
            rule = "the same data gives another sum under another public seed"
            violations.append(Violation(rule=rule, step=one.number))
            break
    for name, neighbour, own in gone:
        observer = Follower(first.recording, None)
        other, _ = _make(make, neighbour, own, name, before)
        _take(other, observer, steps, seed=3)
        observer.recording.weights = weights_of(other.module)
        seen = [*observer.recording.violations, *_compare_ends(first.recording, observer.recording)]
        violations += [replace(one, rule=f"{name}: {one.rule}") for one in seen]
        count += 1
    return Finding(
        kind="replay",
        name="a module of one's own",
        holds=not violations,
        trials=count,
        figures={"neighbours": count, "steps": steps},
        violations=tuple(violations),
        note=_NOTE,
    )


def _make(
    make: Callable[[Any, Any], Any], data: Any, gone: Sequence[int], name: str, before: Any
) -> tuple[Any, tuple[int, dict[str, Tensor]]]:
    """A step that begins as the one ``before`` did, and how many terms and which weights it has."""
    stream = secret(fixed_seed=_SEED)
    step = make(data, stream)
    if step.rng is not stream:
        raise InvalidInputError(
            "The 'make' parameter must give the stream on: make_private(..., rng=rng). Got a step "
            "with a stream of its own instead."
        )
    begun = len(step.examples), weights_of(step.module)
    if before is not None and begun[0] != before[0]:
        raise InvalidInputError(
            f"A neighbour must have as many loss terms as the data, {before[0]}. Got {begun[0]} of "
            f"{name!r} instead; leave the unit its place, and put nothing there."
        )
    if before is not None and not _is_same(begun[1], before[1]):
        raise InvalidInputError(
            "The 'make' parameter must begin with the same weights every time, whatever the data. "
            f"Got others for {name!r} instead; call torch.manual_seed before the module is made."
        )
    step.examples = WithoutTerms(step.examples, torch.as_tensor(list(gone), dtype=torch.long))
    return step, begun


def _is_same(one: Any, other: Any) -> bool:
    """Whether data is equal, as far as it is made of tensors, arrays and containers of them."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, Tensor):
        return one.shape == other.shape and one.dtype == other.dtype and bool((one == other).all())
    if isinstance(one, np.ndarray):
        return np.array_equal(one, other)
    if isinstance(one, Data):
        return _is_same(one.to_dict(), other.to_dict())
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_is_same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(_is_same, one, other))
    return False


def _take(step: Any, observer: Recorder, steps: int, seed: int) -> None:
    if not isinstance(observer, Follower):
        observer.watch(step)
    with record(observer, seed=seed):
        for _ in range(steps):
            step()
