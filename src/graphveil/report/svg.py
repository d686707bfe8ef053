"""Plots as SVG inside a page: drawn here, coloured by the page's style sheet, read out by title.

All are 440 units wide, so that their text stays readable at the width of a phone. Colours are the
classes ``c0`` to ``c5`` (Okabe and Ito's palette, see page.css); every series has a shape of its
own besides. Text is escaped by :class:`markupsafe.Markup`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from graphveil.privacy.guarantee import round_up
from graphveil.report.wording import (
    IN_PERCENT,
    LEARNT_NOTHING,
    OF_VALUES,
    SCORES,
    after,
    at_most,
    percent,
    score,
    score_axis,
)

WIDTH = 440
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 12, 12, 44
_COLOURS = 6
_GREY = 2  # the fill of bars of what learnt nothing
_QUARTERS = (0, 0.25, 0.5, 0.75, 1)
Point = tuple[float, float]
Ticks = Sequence[tuple[float, str]]


@dataclass(frozen=True, kw_only=True)
class Series:
    """Points (epsilon, score) of one method, or a level line if it has no epsilon.

    Those that ``failed`` learnt nothing.
    """

    label: str
    points: tuple[Point, ...] = ()
    failed: tuple[Point, ...] = ()
    level: float | None = None


_DOT = "m-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0Z"  # around where the pen stands
_SHAPES = (
    "M-4.5 0a4.5 4.5 0 1 0 9 0a4.5 4.5 0 1 0 -9 0Z",
    "M-4 -4H4V4H-4Z",
    "M0 -5L5 4H-5Z",
    "M0 -5.5L5.5 0L0 5.5L-5.5 0Z",
    "M0 5L5 -4H-5Z",
    "M-1.6 -5H1.6V-1.6H5V1.6H1.6V5H-1.6V1.6H-5V-1.6H-1.6Z",
)


def belief(key: str, epsilon: float) -> Markup:
    """How sure a guesser can be afterwards, at most and at least, over how sure before."""
    plot = _Plot(300, (0, 1), (0, 1))
    most = [(p, after(p, epsilon) if 0 < p < 1 else p) for p in (n / 60 for n in range(61))]
    # Where the odds are divided: the mirror image of the upper bound.
    least = [(1 - p, 1 - q) for p, q in reversed(most)]
    ticks = [(share, f"{100 * share:.0f}") for share in _QUARTERS]
    return _svg(
        key,
        plot.height,
        f"How far a guess can move at epsilon {round_up(epsilon)}",
        f"A guess of 50 % can become at most {at_most(after(0.5, epsilon))}. The shaded area lies "
        "between the least and the most that a probability can become.",
        plot.axes(ticks, ticks, "before, %", "afterwards, %"),
        _path("area", plot.path([*most, *reversed(least)]) + "Z"),
        _path("line c0", plot.path(most)),
        _path("line c0", plot.path(least)),
        _path("rule dashed", plot.path([(0, 0), (1, 1)])),
        _marker(0, *plot.at(0.5, after(0.5, epsilon))),
    )


def curve(key: str, series: Sequence[Series], metric: str = "accuracy") -> Markup:
    """A score over the proven epsilon; what is trained in the open is a level line.

    A run that learnt nothing is an empty mark beside the line of its method, never on it.
    """
    curves = [line for line in series if line.level is None]
    levels = [line.level for line in series if line.level is not None]
    points = [point for line in curves for point in (*line.points, *line.failed)]
    spent = [x for x, _ in points]
    up = _steps([*levels, *(y for _, y in points)], least=None if metric in OF_VALUES else 0.1)
    ticks = _decades(min(spent), max(spent))
    ends = (math.log(ticks[0]), math.log(ticks[-1]))
    plot = _Plot(320, ends, (up[0], up[-1]))
    marks = [
        _path(f"rule level{number % 3}", plot.path([(end, level) for end in ends]))
        for number, level in enumerate(levels)
    ]
    for number, line in enumerate(curves):
        places, failed = (
            [(math.log(x), y) for x, y in some] for some in (line.points, line.failed)
        )
        if places:
            marks.append(_path(f"line c{number % _COLOURS}", plot.path(places)))
        marks += [_marker(number, *plot.at(*place)) for place in places]
        marks += [_marker(number, *plot.at(*place), failed=True) for place in failed]
    scale = 100 if metric in IN_PERCENT else 1
    return _svg(
        key,
        plot.height,
        f"Test {SCORES[metric]} over proven epsilon",
        "; ".join(f"{line.label}: {_description(line, metric)}" for line in series),
        plot.axes(
            _log_ticks(ticks, 6),
            [(value, f"{scale * value:g}") for value in up],
            "proven epsilon (less is more private)",
            score_axis(metric),
        ),
        *marks,
    )


def _description(line: Series, metric: str) -> str:
    if line.level is not None:
        return f"level at {score(metric, line.level)}"
    texts = [
        f"{score(metric, y)} at epsilon {round_up(x)}{rest}"
        for some, rest in ((line.points, ""), (line.failed, f" ({LEARNT_NOTHING})"))
        for x, y in some
    ]
    return ", ".join(texts)


def stairs(key: str, spent: Sequence[float], budget: float) -> Markup:
    """What was spent after each charge, as stairs, and the budget as a level line.

    An epsilon that is infinite is above everything: the stairs end there.
    """
    known = list(itertools.takewhile(math.isfinite, spent))
    ticks = _steps([0.0, budget, *known], least=None)
    plot = _Plot(260, (0, len(spent)), (ticks[0], ticks[-1]))
    places: list[Point] = [(0.0, 0.0)]
    for number, value in enumerate(known):
        places += [(number, value), (number + 1, value)]
    every = max(1, math.ceil(len(spent) / 8))
    across = [
        (number + 0.5, str(number + 1) if number % every == 0 else "")
        for number in range(len(spent))
    ]
    filled = [*places, (len(known), 0.0)]
    return _svg(
        key,
        plot.height,
        "Epsilon of all charges so far",
        f"After {len(spent)} charges epsilon is {round_up(spent[-1])}; the budget for life is "
        f"{budget:g}.",
        plot.axes(across, [(tick, f"{tick:g}") for tick in ticks], "charge", "epsilon so far"),
        _path("area", plot.path(filled) + "Z"),
        _path("line c0", plot.path(places)),
        _path("rule dashed", plot.path([(0, budget), (len(spent), budget)])),
    )


def bars(
    key: str,
    title: str,
    rows: Sequence[tuple[str, Sequence[float | None]]],
    texts: Sequence[str],
    failed: Sequence[bool] = (),
) -> Markup:
    """Level bars in [0, 1], as many for each row as there are ``texts``, which name them.

    Those of what ``failed`` are grey.
    """
    fills = [_GREY if any(failed[n : n + 1]) else n for n in range(len(texts))]
    thick, left = 13, 118
    room = thick * len(texts) + 10
    height, span = room * len(rows) + 34, WIDTH - left - 52
    marks = []
    for tick in _QUARTERS:
        x = f"{left + tick * span:.1f}"
        marks.append(_path("grid", f"M{x} 4V{height - 26}"))
        marks.append(_text("mid", x, height - 10, f"{100 * tick:.0f} %"))
    for number, (name, values) in enumerate(rows):
        top = number * room + 8
        middle = f"{top + thick * len(texts) / 2 + 4:.1f}"
        marks.append(_text("end", left - 8, middle, _short(name, 17)))
        for place, value in enumerate(values):
            if value is not None:
                y = top + place * thick
                marks.append(_bar(fills[place], left, f"{y:.1f}", value * span, thick - 1))
                x, bottom = f"{left + value * span + 4:.1f}", f"{y + thick - 2:.1f}"
                marks.append(_text("small", x, bottom, f"{100 * value:.1f}"))
    description = "; ".join(
        f"{name}: "
        + ", ".join(f"{text} {percent(v)}" for text, v in zip(texts, values, strict=True))
        for name, values in rows
    )
    return _svg(key, height, title, description, *marks)


def parts(key: str, rows: Sequence[tuple[str, float]], together: float) -> Markup:
    """What each part would cost by itself, and what all of them cost together."""
    rows = [*rows, ("together", together)]
    left, room = 12, 40
    scale = (WIDTH - left - 70) / max(value for _, value in rows)
    marks = []
    for number, (name, value) in enumerate(rows):
        top, kind = number * room, 0 if number == len(rows) - 1 else 1
        marks.append(_text("", left, top + 15, _short(name, 58)))
        marks.append(_bar(kind, left, top + 20, scale * value, 13))
        marks.append(_text("small", f"{left + scale * value + 5:.1f}", top + 31, round_up(value)))
    title = "What each part would cost by itself, and all together"
    description = "; ".join(f"{name}: epsilon {round_up(value)}" for name, value in rows)
    return _svg(key, room * len(rows) + 4, title, description, *marks)


def legend_mark(number: int, *, failed: bool = False) -> Markup:
    """The line and shape of a series, for a legend in HTML; of one that ``failed`` the shape."""
    if failed:
        return _legend(_marker(number, 14, 7, failed=True))
    return _legend(_path(f"line c{number % _COLOURS}", "M0 7H28") + _marker(number, 14, 7))


def legend_level(number: int) -> Markup:
    """The level line of what is trained in the open."""
    return _legend(_path(f"rule level{number % 3}", "M0 7H28"))


def legend_failed() -> Markup:
    """The mark of what learnt nothing."""
    return legend_mark(0, failed=True)


def legend_bar(number: int, *, failed: bool = False) -> Markup:
    """The fill of a bar; grey of what ``failed``."""
    return _legend(_bar(_GREY if failed else number, 6, 1, 16, 12))


class Trade:
    """A figure over epsilon, on scales fixed for all plans of a grid; redrawn by plan.js."""

    def __init__(self, budgets: Sequence[float], values: Sequence[float]) -> None:
        self.budgets = budgets
        self.ticks = _decades(min(values), max(values))
        room = math.log(1.15)
        ends = (math.log(budgets[0]) - room, math.log(budgets[-1]) + room)
        self.plot = _Plot(260, ends, (math.log(self.ticks[0]), math.log(self.ticks[-1])))

    @property
    def places(self) -> list[float]:
        """Where on the page each budget stands."""
        return [round(self.plot.at(math.log(budget), 0)[0], 1) for budget in self.budgets]

    def height_of(self, value: float) -> float:
        """Where on the page a value stands."""
        return round(self.plot.at(0, math.log(value))[1], 1)

    def draw(self, key: str, label: str, heights: Sequence[float | None]) -> Markup:
        """The plot with one row of plans, no line between them, and a marker for the chosen one."""
        dots = "".join(
            f"M{x} {y}{_DOT}" for x, y in zip(self.places, heights, strict=True) if y is not None
        )
        budgets = [(math.log(budget), f"{budget:g}") for budget in self.budgets]
        return _svg(
            key,
            self.plot.height,
            f"{label}, over epsilon",
            "The plans of the grid that share the other settings; the table below has them all.",
            self.plot.axes(budgets, _log_ticks(self.ticks, 7), "epsilon", label),
            Markup('<path class="ring c0" id="{}-dots" data-dot="{}" d="{}"/>').format(
                key, _DOT, dots
            ),
            Markup('<path class="dot c0" id="{}-dot" d="{}"/>').format(key, _SHAPES[0]),
        )


# --- marks ----------------------------------------------------------------------------------------


class _Plot:
    """The rectangle inside the axes."""

    def __init__(self, height: int, x: Point, y: Point) -> None:
        self.height, self.x, self.y = height, x, y

    def at(self, x: float, y: float) -> Point:
        across = (x - self.x[0]) / ((self.x[1] - self.x[0]) or 1)
        up = (y - self.y[0]) / ((self.y[1] - self.y[0]) or 1)
        bottom = self.height - _BOTTOM
        return _LEFT + across * (WIDTH - _LEFT - _RIGHT), bottom - up * (bottom - _TOP)

    def path(self, points: Iterable[Point]) -> str:
        return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in (self.at(*point) for point in points))

    def axes(self, across: Ticks, up: Ticks, x_label: str, y_label: str) -> Markup:
        bottom, right, marks = self.height - _BOTTOM, WIDTH - _RIGHT, []
        for value, text in across:
            x = f"{self.at(value, self.y[0])[0]:.1f}"
            marks += [_path("grid", f"M{x} {_TOP}V{bottom}"), _text("mid", x, bottom + 16, text)]
        for value, text in up:
            y = self.at(self.x[0], value)[1]
            marks.append(_path("grid", f"M{_LEFT} {y:.1f}H{right}"))
            marks.append(_text("end", _LEFT - 7, f"{y + 4:.1f}", text))
        marks.append(_path("axis", f"M{_LEFT} {_TOP}V{bottom}H{right}"))
        marks.append(_text("mid label", (_LEFT + right) / 2, self.height - 6, x_label))
        upright = '<text class="mid label" transform="translate(13 {:.1f}) rotate(-90)">{}</text>'
        marks.append(Markup(upright).format((_TOP + bottom) / 2, y_label))
        return Markup("").join(marks)


def _svg(key: str, height: int, title: str, description: str, *marks: Markup) -> Markup:
    return Markup(
        '<svg class="plot" viewBox="0 0 {width} {height}" role="img" '
        'aria-labelledby="{key}-title {key}-desc"><title id="{key}-title">{title}</title>'
        '<desc id="{key}-desc">{description}</desc>{marks}</svg>'
    ).format(
        width=WIDTH,
        height=height,
        key=key,
        title=title,
        description=description,
        marks=Markup("").join(marks),
    )


def _legend(mark: Markup) -> Markup:
    frame = '<svg class="mark" viewBox="0 0 28 14" aria-hidden="true">{}</svg>'
    return Markup(frame).format(mark)


def _path(kind: str, pen: str) -> Markup:
    return Markup('<path class="{}" d="{}"/>').format(kind, pen)


def _text(kind: str, x: float | str, y: float | str, text: str) -> Markup:
    style = Markup(' class="{}"').format(kind) if kind else ""
    return Markup('<text{} x="{}" y="{}">{}</text>').format(style, x, y, text)


def _bar(kind: int, x: float, y: float | str, width: float, height: int) -> Markup:
    """A bar one unit wide at least; ``kind`` is its fill."""
    return Markup('<rect class="bar b{}" x="{}" y="{}" width="{:.1f}" height="{}"/>').format(
        kind, x, y, max(1.0, width), height
    )


def _marker(number: int, x: float, y: float, *, failed: bool = False) -> Markup:
    """The shape of a series, one for each colour; of what ``failed`` it is empty and grey."""
    shape = _SHAPES[number % len(_SHAPES)]
    kind = "failed" if failed else f"dot c{number % _COLOURS}"
    return Markup('<path class="{}" transform="translate({:.1f} {:.1f})" d="{}"/>').format(
        kind, x, y, shape
    )


def _steps(values: Sequence[float], least: float | None) -> list[float]:
    """Round values on an axis, from below all ``values`` to above; shares ``least`` apart.

    Without ``least`` they are as near to each other as about five of them need.
    """
    low, high = min(values), max(values)
    wide = _round_width((high - low or abs(high) or 1.0) / 5)
    if least is not None:
        wide = max(wide, least)
    first, last = math.floor(low / wide + 1e-9), math.ceil(high / wide - 1e-9)
    if first == last:
        first, last = first - 1, last + 1
    if least is not None:
        first, last = max(first, 0), min(last, math.ceil(1 / wide - 1e-9))
    return [round(wide * n, 12) for n in range(first, last + 1)]


def _round_width(width: float) -> float:
    """The next of 1, 2, 5, 10, ... times a power of ten."""
    power = 10.0 ** math.floor(math.log10(width))
    return next(head * power for head in (1, 2, 5, 10) if head * power >= width * (1 - 1e-9))


def _decades(low: float, high: float) -> list[float]:
    """Ticks 1, 2, 5, 10, ... (or powers of ten, if wide) from at most ``low`` to ``high``."""
    heads = (1, 2, 5) if high / low < 1e4 else (1,)
    first, last = math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1
    ticks = [head * 10.0**power for power in range(first, last + 1) for head in heads]
    # A point on an end of the axis is half hidden: leave room.
    begin = max(tick for tick in ticks if tick < low / 1.05)
    end = min(tick for tick in ticks if tick > high * 1.05)
    return [tick for tick in ticks if begin <= tick <= end]


def _log_ticks(ticks: Sequence[float], most: int) -> Ticks:
    """Ticks on a logarithmic axis, about ``most`` of them with a number."""
    every = max(1, math.ceil(len(ticks) / most))
    return [
        (math.log(tick), f"{tick:g}" if number % every == 0 else "")
        for number, tick in enumerate(ticks)
    ]


def _short(text: str, most: int) -> str:
    """A label that fits; the whole of it stands in the table beside the plot."""
    return text if len(text) <= most else text[: most - 1] + "…"
