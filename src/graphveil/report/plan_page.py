"""A page on which a person turns the knobs of a plan, before anything is spent.

Every point of the page is a plan of its own, made by ``method.plan`` and priced by its certificate
when the page is written: sliders go from one such point to the next, and nothing in between is ever
shown. Without a script the page is a table of them.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from graphveil._errors import GraphveilError, InvalidInputError
from graphveil._progress import Progress
from graphveil.privacy.guarantee import Certificate, round_up
from graphveil.report import svg
from graphveil.report.template import fill
from graphveil.report.wording import trains_in_the_open

if TYPE_CHECKING:
    from graphveil.methods import Facts, Method, Plan

Rows = Callable[["Plan", Certificate], Sequence[tuple[str, str]]]


@dataclass(frozen=True, kw_only=True)
class Axis:
    """One slider: a setting, its values, and which of them was asked for."""

    name: str
    label: str
    values: tuple[Any, ...]
    asked: int

    @property
    def texts(self) -> list[str]:
        """The values as a person reads them."""
        return [f"{value:g}" for value in self.values]


@dataclass(frozen=True, kw_only=True)
class Point:
    """One plan of the grid with its certificate, or why there is none."""

    place: tuple[int, ...]
    plan: Plan | None = None
    certificate: Certificate | None = None
    refused: str = ""


def grid(
    method: Method, facts: Facts, progress: Progress | None = None
) -> tuple[list[Axis], list[Point]]:
    """Plans around the one asked for: each slider that changes anything, by its few values.

    *Guarantee*: each point's epsilon is that of a certificate for the plan that ``method`` would
    run with these settings.
    """
    axes = _axes(method)
    asked = {axis.name: axis.values[axis.asked] for axis in axes}

    @functools.cache
    def plan(**settings: Any) -> Plan:
        return type(method)(**{**method.get_params(), **settings}).plan(facts)

    def plan_with(**settings: Any) -> Plan:
        return plan(**{**asked, **settings})

    if trains_in_the_open(plan_with().charges):  # settings that are refused are refused here
        what = "trains in the open" if plan_with().claim is None else "bounds nothing as it is set"
        raise InvalidInputError(
            f"The method '{method.name}' {what}: there is no budget to plan with. Take a private "
            "method."
        )
    track: Progress = (lambda places: places) if progress is None else progress
    axes = [axis for axis in track(axes) if _matters(plan_with, axis)]
    places = list(itertools.product(*(range(len(axis.values)) for axis in axes)))
    # Epsilon changes fastest: plans that share the rest share much of what the accountant computes.
    places.sort(key=lambda place: (*place[1:], place[0]))
    points = [_point(plan_with, axes, place) for place in track(places)]
    return axes, sorted(points, key=lambda point: point.place)


def render(
    method: Method, facts: Facts, axes: Sequence[Axis], points: Sequence[Point], rows: Rows
) -> str:
    """The page; ``rows`` says of a plan what ``graphveil plan`` would print."""
    asked = tuple(axis.asked for axis in axes)
    first = next(point for point in points if point.place == asked)
    assert first.plan is not None
    assert first.certificate is not None
    measure, values = _measured(first.plan, points)
    scale = svg.Trade(axes[0].values, [value for value in values if value is not None])
    shown = [
        {
            "rows": [] if point.plan is None else _rows(point, rows),
            "refused": point.refused,
            "epsilon": _epsilon(point),
            "noise": _noise(point),
            "measure": "–" if value is None else f"{value:.3g}",
            "y": None if value is None else scale.height_of(value),
        }
        for point, value in zip(points, values, strict=True)
    ]
    start = points.index(first)
    return fill(
        "plan.html",
        "plan.js",
        title=f"What {method.name} will cost",
        method=method.name,
        facts=facts,
        one=first.plan.unit,
        axes=axes,
        points=shown,
        places=[point.place for point in points],
        start=start,
        measure=measure,
        plot=scale.draw("trade", measure, [point["y"] for point in _along(shown, axes, start)]),
        grid={
            "sizes": [len(axis.values) for axis in axes],
            "texts": [axis.texts for axis in axes],
            "asked": list(asked),
            "measure": measure,
            "x": scale.places,
            "points": shown,
        },
        # More noise than planned costs no more; of several releases one figure does not say that.
        inverse=len(first.plan.charges) == 1 and not first.certificate.void_because,
        noise=round_up(_noise(first), 6),
    )


def _axes(method: Method) -> list[Axis]:
    settings = method.get_params()
    axes = []
    if (budget := settings.get("epsilon")) is not None:
        axes.append(_axis("epsilon", "epsilon", budget, [budget * f for f in (0.25, 0.5, 2)]))
    # A cap that is left out is the method's own.
    cap = getattr(method, "sender_cap_in_use", settings.get("sender_cap"))
    if cap is not None:
        axes.append(_axis("sender_cap", "messages a node may send (sender cap)", cap, [3 * cap]))
    if (rate := settings.get("sample_rate")) is not None:
        others = [rate / 4, min(1.0, 4 * rate), *([0.5] if rate == 1 else [])]
        axes.append(_axis("sample_rate", "sampling rate", rate, others))
    if (steps := settings.get("steps")) is not None:
        axes.append(_axis("steps", "steps", steps, [max(1, round(steps / 3)), 3 * steps]))
    return axes


def _axis(name: str, label: str, asked: Any, others: Iterable[Any]) -> Axis:
    values = tuple(sorted({asked, *others}))
    return Axis(name=name, label=label, values=values, asked=values.index(asked))


def _matters(plan_with: Callable[..., Plan], axis: Axis) -> bool:
    """Whether another value of a setting is another plan; epsilon always is."""
    if axis.name == "epsilon":
        return True
    other = next(value for value in axis.values if value != axis.values[axis.asked])
    try:
        plan = plan_with(**{axis.name: other})
    except GraphveilError:
        return True
    asked = plan_with()
    return plan.charges != asked.charges or dict(plan.details) != dict(asked.details)


def _point(plan_with: Callable[..., Plan], axes: Sequence[Axis], place: tuple[int, ...]) -> Point:
    settings = {axis.name: axis.values[at] for axis, at in zip(axes, place, strict=True)}
    try:
        plan = plan_with(**settings)
        return Point(place=place, plan=plan, certificate=plan.certificate())
    except GraphveilError as error:
        return Point(place=place, refused=str(error))


def _rows(point: Point, rows: Rows) -> list[tuple[str, str]]:
    assert point.plan is not None
    assert point.certificate is not None
    pairs = [(name, " ".join(text.split())) for name, text in rows(point.plan, point.certificate)]
    details = point.plan.details
    if "steps" in details and "sample_rate" in details:
        terms = details["sample_rate"] * point.plan.facts.num_train * details["steps"]
        pairs.append(("work", f"about {terms:,.0f} clipped gradients, over all steps"))
    return pairs


def _epsilon(point: Point) -> str | None:
    """The proven epsilon; None where nothing holds."""
    if point.certificate is None or math.isinf(point.certificate.guarantee.epsilon):
        return None
    return round_up(point.certificate.guarantee.epsilon)


def _noise(point: Point) -> float | None:
    return None if point.plan is None else point.plan.details.get("noise_multiplier")


def _measured(first: Plan, points: Sequence[Point]) -> tuple[str, list[float | None]]:
    """What stands for the quality of a plan, and its value at every point."""
    name, factors = "signal to noise, at most", ["signal_to_noise"]
    if "signal_to_noise" not in first.details:
        name, factors = "noise on every entry of the sums", ["noise_multiplier", "sensitivity"]
    return name, [
        None if point.plan is None else math.prod(point.plan.details[key] for key in factors)
        for point in points
    ]


def _along(points: Sequence[Any], axes: Sequence[Axis], start: int) -> list[Any]:
    """The points that differ from one in epsilon, the first axis, only."""
    apart = math.prod(len(axis.values) for axis in axes[1:])
    return list(points[start % apart :: apart])
