"""Plots as SVG inside a page: drawn here, coloured by the page's style sheet, read out by title.

All are 440 units wide, so that their text stays readable at the width of a phone. Colours are the
classes ``c0`` to ``c5`` (Okabe and Ito's palette, see page.css); every series has a shape of its
own besides. Text is escaped by :class:`markupsafe.Markup`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from graphveil.privacy.guarantee import round_up
from graphveil.report.wording import after, at_most, percent

WIDTH = 440
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 12, 12, 44
_COLOURS = 6


@dataclass(frozen=True, kw_only=True)
class Series:
    """Points (epsilon, share) of one method, or a level line if it has no epsilon."""

    label: str
    points: tuple[tuple[float, float], ...] = ()
    level: float | None = None


def belief(key: str, epsilon: float) -> Markup:
    """How sure a guesser can be afterwards, at most and at least, over how sure before."""
    height = 300
    plot = _Plot(height, (0, 1), (0, 1))
    steps = [number / 60 for number in range(61)]
    most = [(p, after(p, epsilon) if 0 < p < 1 else p) for p in steps]
    # Where the odds are divided: the mirror image of the upper bound.
    least = [(1 - p, 1 - q) for p, q in reversed(most)]
    return _svg(
        key,
        height,
        f"How far a guess can move at epsilon {round_up(epsilon)}",
        f"A guess of 50 % can become at most {at_most(after(0.5, epsilon))}. The shaded area lies "
        "between the least and the most that a probability can become.",
        plot.axes(
            [(share, f"{100 * share:.0f}") for share in (0, 0.25, 0.5, 0.75, 1)],
            [(share, f"{100 * share:.0f}") for share in (0, 0.25, 0.5, 0.75, 1)],
            "before, %",
            "afterwards, %",
        ),
        Markup('<path class="area" d="{}"/>').format(plot.path([*most, *reversed(least)]) + "Z"),
        Markup('<path class="line c0" d="{}"/>').format(plot.path(most)),
        Markup('<path class="line c0" d="{}"/>').format(plot.path(least)),
        Markup('<path class="rule dashed" d="{}"/>').format(plot.path([(0, 0), (1, 1)])),
        _marker(0, *plot.at(0.5, after(0.5, epsilon))),
    )


def curve(key: str, series: Sequence[Series]) -> Markup:
    """Accuracy over the proven epsilon; what is trained in the open is a level line."""
    height = 320
    private = [each for each in series if each.points]
    spent = [x for each in private for x, _ in each.points]
    values = [y for each in private for _, y in each.points]
    values += [each.level for each in series if each.level is not None]
    low, high = _around(values)
    ticks = _decades(min(spent), max(spent))
    plot = _Plot(height, (math.log(ticks[0]), math.log(ticks[-1])), (low, high))
    said = "; ".join(
        f"{each.label}: "
        + (
            f"level at {percent(each.level)}"
            if not each.points
            else ", ".join(f"{percent(y)} at epsilon {round_up(x)}" for x, y in each.points)
        )
        for each in series
    )
    drawn = []
    for number, each in enumerate(each for each in series if not each.points):
        ends = [(math.log(ticks[0]), each.level or 0.0), (math.log(ticks[-1]), each.level or 0.0)]
        drawn.append(
            Markup('<path class="rule level{}" d="{}"/>').format(number % 3, plot.path(ends))
        )
    for number, each in enumerate(private):
        places = [(math.log(x), y) for x, y in sorted(each.points)]
        drawn.append(
            Markup('<path class="line c{}" d="{}"/>').format(number % _COLOURS, plot.path(places))
        )
        drawn += [_marker(number, *plot.at(x, y)) for x, y in places]
    every = max(1, math.ceil(len(ticks) / 6))
    marks = [
        (math.log(tick), f"{tick:g}" if number % every == 0 else "")
        for number, tick in enumerate(ticks)
    ]
    return _svg(
        key,
        height,
        "Test accuracy over proven epsilon",
        said,
        plot.axes(
            marks,
            [(share, f"{100 * share:.0f}") for share in _steps(low, high)],
            "proven epsilon (less is more private)",
            "test accuracy, %",
        ),
        *drawn,
    )


def bars(
    key: str, title: str, rows: Sequence[tuple[str, Sequence[float | None]]], texts: Sequence[str]
) -> Markup:
    """Level bars in [0, 1], as many for each row as there are ``texts``, which name them."""
    thick, gap, left = 13, 10, 118
    each = thick * len(texts) + gap
    height = each * len(rows) + 34
    span = WIDTH - left - 52
    drawn = []
    for tick in (0, 0.25, 0.5, 0.75, 1):
        x = left + tick * span
        drawn.append(
            Markup(
                '<path class="grid" d="M{0:.1f} 4V{1}"/><text class="mid" x="{0:.1f}" y="{2}">'
                "{3:.0f} %</text>"
            ).format(x, height - 26, height - 10, 100 * tick)
        )
    for number, (name, values) in enumerate(rows):
        top = number * each + 8
        drawn.append(
            Markup('<text class="end" x="{}" y="{:.1f}">{}</text>').format(
                left - 8, top + thick * len(texts) / 2 + 4, _short(name, 17)
            )
        )
        for place, value in enumerate(values):
            if value is None:
                continue
            y = top + place * thick
            drawn.append(
                Markup(
                    '<rect class="bar b{}" x="{}" y="{:.1f}" width="{:.1f}" height="{}"/>'
                    '<text class="small" x="{:.1f}" y="{:.1f}">{}</text>'
                ).format(
                    place,
                    left,
                    y,
                    max(1.0, value * span),
                    thick - 1,
                    left + value * span + 4,
                    y + thick - 2,
                    f"{100 * value:.1f}",
                )
            )
    said = "; ".join(
        f"{name}: "
        + ", ".join(f"{text} {percent(v)}" for text, v in zip(texts, values, strict=True))
        for name, values in rows
    )
    return _svg(key, height, title, said, *drawn)


def parts(key: str, rows: Sequence[tuple[str, float]], together: float) -> Markup:
    """What each part would cost by itself, and what all of them cost together."""
    every = [*rows, ("together", together)]
    most, left, each = max(value for _, value in every), 12, 40
    height = each * len(every) + 4
    span = WIDTH - left - 70
    drawn = []
    for number, (name, value) in enumerate(every):
        top = number * each
        drawn.append(
            Markup(
                '<text x="{}" y="{}">{}</text>'
                '<rect class="bar b{}" x="{}" y="{}" width="{:.1f}" height="13"/>'
                '<text class="small" x="{:.1f}" y="{}">{}</text>'
            ).format(
                left,
                top + 15,
                _short(name, 58),
                0 if number == len(rows) else 1,
                left,
                top + 20,
                max(1.0, span * value / most),
                left + span * value / most + 5,
                top + 31,
                round_up(value),
            )
        )
    said = "; ".join(f"{name}: epsilon {round_up(value)}" for name, value in every)
    return _svg(key, height, "What each part would cost by itself, and all together", said, *drawn)


def legend_mark(number: int) -> Markup:
    """The line and shape of a series, for a legend in HTML."""
    return Markup(
        '<svg class="mark" viewBox="0 0 28 14" aria-hidden="true"><path class="line c{}" '
        'd="M0 7H28"/>{}</svg>'
    ).format(number % _COLOURS, _marker(number, 14, 7))


def legend_level(number: int) -> Markup:
    """The level line of what is trained in the open."""
    return Markup(
        '<svg class="mark" viewBox="0 0 28 14" aria-hidden="true"><path class="rule level{}" '
        'd="M0 7H28"/></svg>'
    ).format(number % 3)


def legend_bar(number: int) -> Markup:
    """The fill of a bar."""
    return Markup(
        '<svg class="mark" viewBox="0 0 28 14" aria-hidden="true"><rect class="bar b{}" x="6" '
        'y="1" width="16" height="12"/></svg>'
    ).format(number)


class Trade:
    """A figure over epsilon, on scales fixed for all plans of a grid; redrawn by plan.js."""

    HEIGHT = 260

    def __init__(self, budgets: Sequence[float], values: Sequence[float]) -> None:
        self.budgets = budgets
        self.ticks = _decades(min(values), max(values))
        room = math.log(1.15)
        ends = (math.log(budgets[0]) - room, math.log(budgets[-1]) + room)
        self.plot = _Plot(self.HEIGHT, ends, (math.log(self.ticks[0]), math.log(self.ticks[-1])))

    @property
    def places(self) -> list[float]:
        """Where on the page each budget stands."""
        return [round(self.plot.at(math.log(each), 0)[0], 1) for each in self.budgets]

    def height_of(self, value: float) -> float:
        """Where on the page a value stands."""
        return round(self.plot.at(0, math.log(value))[1], 1)

    def drawn(self, key: str, label: str, heights: Sequence[float | None]) -> Markup:
        """The plot with one row of plans, no line between them, and a marker for the chosen one."""
        dots = "".join(
            f"M{x} {y}{_DOT}" for x, y in zip(self.places, heights, strict=True) if y is not None
        )
        every = max(1, math.ceil(len(self.ticks) / 7))
        return _svg(
            key,
            self.HEIGHT,
            f"{label}, over epsilon",
            "The plans of the grid that share the other settings; the table below has them all.",
            self.plot.axes(
                [(math.log(each), f"{each:g}") for each in self.budgets],
                [
                    (math.log(tick), f"{tick:g}" if number % every == 0 else "")
                    for number, tick in enumerate(self.ticks)
                ],
                "epsilon",
                label,
            ),
            Markup('<path class="ring c0" id="{}-dots" data-dot="{}" d="{}"/>').format(
                key, _DOT, dots
            ),
            Markup('<path class="dot c0" id="{}-dot" d="{}"/>').format(key, _SHAPES[0]),
        )


# --- parts ----------------------------------------------------------------------------------------


class _Plot:
    """The rectangle inside the axes."""

    def __init__(self, height: int, x: tuple[float, float], y: tuple[float, float]) -> None:
        self.height, self.x, self.y = height, x, y

    def at(self, x: float, y: float) -> tuple[float, float]:
        across = (x - self.x[0]) / ((self.x[1] - self.x[0]) or 1)
        up = (y - self.y[0]) / ((self.y[1] - self.y[0]) or 1)
        bottom = self.height - _BOTTOM
        return _LEFT + across * (WIDTH - _LEFT - _RIGHT), bottom - up * (bottom - _TOP)

    def path(self, points: Sequence[tuple[float, float]]) -> str:
        return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in (self.at(*point) for point in points))

    def axes(
        self,
        across: Sequence[tuple[float, str]],
        up: Sequence[tuple[float, str]],
        x_label: str,
        y_label: str,
    ) -> Markup:
        bottom, drawn = self.height - _BOTTOM, Markup("")
        for value, text in across:
            x, _ = self.at(value, self.y[0])
            drawn += Markup(
                '<path class="grid" d="M{0:.1f} {1}V{2}"/><text class="mid" x="{0:.1f}" y="{3}">{4}'
                "</text>"
            ).format(x, _TOP, bottom, bottom + 16, text)
        for value, text in up:
            _, y = self.at(self.x[0], value)
            drawn += Markup(
                '<path class="grid" d="M{} {:.1f}H{}"/><text class="end" x="{}" y="{:.1f}">{}'
                "</text>"
            ).format(_LEFT, y, WIDTH - _RIGHT, _LEFT - 7, y + 4, text)
        drawn += Markup('<path class="axis" d="M{} {}V{}H{}"/>').format(
            _LEFT, _TOP, bottom, WIDTH - _RIGHT
        )
        drawn += Markup('<text class="mid label" x="{}" y="{}">{}</text>').format(
            (_LEFT + WIDTH - _RIGHT) / 2, self.height - 6, x_label
        )
        return drawn + Markup(
            '<text class="mid label" transform="translate(13 {:.1f}) rotate(-90)">{}</text>'
        ).format((_TOP + bottom) / 2, y_label)


def _svg(key: str, height: int, title: str, said: str, *parts: Markup) -> Markup:
    return Markup(
        '<svg class="plot" viewBox="0 0 {width} {height}" role="img" '
        'aria-labelledby="{key}-title {key}-desc"><title id="{key}-title">{title}</title>'
        '<desc id="{key}-desc">{said}</desc>{inside}</svg>'
    ).format(
        width=WIDTH, height=height, key=key, title=title, said=said, inside=Markup("").join(parts)
    )


_DOT = "m-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0Z"  # around where the pen stands
_SHAPES = (
    "M-4.5 0a4.5 4.5 0 1 0 9 0a4.5 4.5 0 1 0 -9 0Z",
    "M-4 -4H4V4H-4Z",
    "M0 -5L5 4H-5Z",
    "M0 -5.5L5.5 0L0 5.5L-5.5 0Z",
    "M0 5L5 -4H-5Z",
    "M-1.6 -5H1.6V-1.6H5V1.6H1.6V5H-1.6V1.6H-5V-1.6H-1.6Z",
)


def _marker(number: int, x: float, y: float) -> Markup:
    shape = _SHAPES[number % len(_SHAPES)]
    return Markup('<path class="dot c{}" transform="translate({:.1f} {:.1f})" d="{}"/>').format(
        number % _COLOURS, x, y, shape
    )


def _around(values: Sequence[float]) -> tuple[float, float]:
    """Round ends around shares, a tenth apart at least."""
    low, high = math.floor(10 * min(values)) / 10, math.ceil(10 * max(values)) / 10
    return (low, high) if high > low else (max(0.0, low - 0.1), min(1.0, high + 0.1))


def _steps(low: float, high: float) -> list[float]:
    wide = 0.1 if high - low <= 0.61 else 0.2
    first = math.ceil(low / wide - 1e-9)
    return [round(wide * n, 2) for n in range(first, math.floor(high / wide + 1e-9) + 1)]


def _decades(low: float, high: float) -> list[float]:
    """Ticks 1, 2, 5, 10, ... (or powers of ten, if wide) from at most ``low`` to ``high``."""
    heads = (1, 2, 5) if high / low < 1e4 else (1,)
    first, last = math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1
    every = [head * 10.0**power for power in range(first, last + 1) for head in heads]
    # A point on an end of the axis is half hidden: leave room.
    begin = max(tick for tick in every if tick < low / 1.05)
    end = min(tick for tick in every if tick > high * 1.05)
    return [tick for tick in every if begin <= tick <= end]


def _short(text: str, most: int) -> Markup:
    """A label that fits; the whole of it stands in the table beside the plot."""
    return escape(text if len(text) <= most else text[: most - 1] + "…")
