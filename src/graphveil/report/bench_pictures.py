"""Pictures of measured tables and figures, each in the shape that its description names.

Everywhere full marks are what is proven, or measured in the open; empty marks and broken lines are
what a paper claims, or what nothing is proven for; crosses are what was published, faint where a
stand-in ran.
"""

from __future__ import annotations

import math
import statistics
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from graphveil.report.plots import COLOURS, MARKERS, draw_line, dress, make_figure, save
from graphveil.report.wording import OF_VALUES, SCORES

if TYPE_CHECKING:
    from graphveil.bench import Description, Measured, Place, Row

_PUBLISHED: dict[str, Any] = {"marker": "x", "color": "#222222", "linestyle": "none", "zorder": 5}
_CLASSES = "tab20"


def draw(described: Description, measured: Sequence[Measured], path: str | Path) -> Path | None:
    """Draw what was measured in the description's shape; None where there is nothing to draw."""
    done = [one for one in measured if any("refused" not in outcome for _, outcome in one.outcomes)]
    if not done:
        return None
    return _SHAPES[described.shape](described, done, Path(path))


def _places(done: Sequence[Measured]) -> list[Place]:
    return list(dict.fromkeys(one.place for one in done))


def _name(one: Measured) -> str:
    """A row as a legend calls it."""
    asked = one.row.target_epsilon
    name = one.row.label if asked is None else f"{one.row.label}, epsilon {asked:g}"
    return f"{name}{_caveat(one.row)}"


def _caveat(row: Row) -> str:
    """What a name is followed by where its epsilon is a claim, or where none holds."""
    if row.claimed_epsilon is not None:
        return " (claimed)"
    return "" if _holds(row) else " (none proven)"


def _holds(row: Row) -> bool:
    """Whether a row is drawn as proven, or as in the open: no claim, and nothing that voids it."""
    return row.claimed_epsilon is None and not row.void_because


def _faintly(place: Place) -> dict[str, Any]:
    """How a cross is drawn that is of other data than what ran."""
    return {"alpha": 0.45} if place.stand_in_for else {}


def _title(one: Measured, done: Sequence[Measured]) -> str:
    """Of a panel with one run; the data is left out where there is but one, and no stand-in."""
    plain = len(_places(done)) == 1 and one.place.stand_in_for is None
    return _name(one) if plain else f"{one.place.label}: {_name(one)}"


def _titled(described: Description, width: float) -> str:
    where = described.source if described.paper else ""
    return textwrap.fill(f"{described.title}{f' ({where})' if where else ''}", round(11 * width))


def _panels(
    described: Description, count: int, width: float, height: float
) -> tuple[Any, list[Any]]:
    """A figure with panels side by side that share the axis upwards."""
    whole = max(6.8, 1.2 + width * count)
    figure = make_figure(whole, height, _titled(described, whole))
    return figure, list(figure.subplots(1, count, sharey=True, squeeze=False)[0])


def _axis(metric: str) -> str:
    return f"{SCORES.get(metric, metric.replace('_', ' '))}{' (%)' if _scale(metric) > 1 else ''}"


def _scale(metric: str) -> float:
    """What a score is multiplied by: shares are in percent here, values as they are."""
    return 1.0 if metric in OF_VALUES else 100.0


# --- tables ---------------------------------------------------------------------------------------


def _table(described: Description, done: Sequence[Measured], path: Path) -> Path:
    """A panel for each data set, a line for each row: ours, and a cross for what was published."""
    places, names = _places(done), list(dict.fromkeys(map(_name, done)))
    figure, panels = _panels(described, len(places), 3.4, max(2.6, 1.6 + 0.27 * len(names)))
    for place, axes in zip(places, panels, strict=True):
        dress(axes, textwrap.fill(place.label, 34), _axis(described.metric), "")
        axes.grid(axis="x", alpha=0.3)
        for one in (one for one in done if one.place == place):
            height = names.index(_name(one))
            _draw_point(axes, one, described.metric, height)
            published = one.line.figure(described.metric, place.data)[0]
            if published is not None:
                axes.plot(
                    [_scale(described.metric) * published],
                    [height],
                    **_PUBLISHED,
                    **_faintly(place),
                )
        axes.set_yticks(range(len(names)), [textwrap.shorten(name, 58) for name in names])
        axes.set_ylim(len(names) - 0.4, -0.6)
    _explain_marks(panels[0], any(True for _ in described.figures()))
    return save(figure, panels[0], path)


def _draw_point(axes: Any, one: Measured, metric: str, height: float) -> None:
    mean, deviation = one.row.score(metric)
    if mean is None:
        return
    claimed, private = not _holds(one.row), one.row.private
    colour = COLOURS[1] if claimed else COLOURS[0] if private else "#777777"
    axes.errorbar(
        [_scale(metric) * mean],
        [height],
        xerr=[_scale(metric) * (deviation or 0.0)],
        color=colour,
        marker="s" if claimed else "o" if private else "^",
        markerfacecolor="white" if claimed else colour,
        linestyle="none",
        capsize=2,
    )


def _explain_marks(axes: Any, published: bool) -> None:
    """A legend of the marks, whatever was drawn."""
    axes.plot([], [], "o", color=COLOURS[0], label="ours, proven")
    empty = {"color": COLOURS[1], "markerfacecolor": "white"}
    axes.plot([], [], "s", **empty, label="ours, epsilon claimed or none")
    axes.plot([], [], "^", color="#777777", label="ours, in the open")
    if published:
        axes.plot([], [], **_PUBLISHED, label="published")


# --- lines ----------------------------------------------------------------------------------------


def _lines(described: Description, done: Sequence[Measured], path: Path) -> Path:
    """A panel for each data set, a line for each run; without a value of the axis, level ones."""
    across, metric = described.across or "epsilon", described.metric
    done = [one for one in done if one.row.score(metric)[0] is not None]
    ticks = sorted({t for one in done if (t := _tick(one, across)) is not None}, key=_size)
    places: list[Place | None] = [None] if across == "data" else list(_places(done))
    if across == "data":
        ticks = list(dict.fromkeys(one.place.label for one in done))
    figure, panels = _panels(described, len(places), 4.2, 4.6)
    lines = list(dict.fromkeys(_line(one, across) for one in done))
    for number, (place, axes) in enumerate(zip(places, panels, strict=True)):
        label = "" if place is None else place.label
        dress(axes, textwrap.fill(label, 40), across.replace("_", " "), _axis(metric))
        here = [one for one in done if place in (None, one.place)]
        for kind, line in enumerate(lines):
            points = [one for one in here if _line(one, across) == line]
            _draw_points(axes, kind, line if number == 0 else None, points, described, ticks)
        words = [_tick_text(tick) for tick in ticks]
        axes.set_xticks(range(len(ticks)), words, rotation=30 if across == "data" else 0)
    if any(True for _ in described.figures()):
        panels[0].plot([], [], **_PUBLISHED, label="published")
    return save(figure, panels[0], path)


def _draw_points(
    axes: Any,
    kind: int,
    label: str | None,
    points: Sequence[Measured],
    described: Description,
    ticks: list[Any],
) -> None:
    across, metric = described.across or "epsilon", described.metric
    colour = COLOURS[kind % len(COLOURS)]
    placed = [
        (ticks.index(tick), one) for one in points if (tick := _tick(one, across)) is not None
    ]
    if placed:
        claimed = not all(_holds(one.row) for _, one in placed)
        rows = [one.row for _, one in placed]
        xs, scale = [x for x, _ in placed], _scale(metric)
        draw_line(axes, kind, label, xs, rows, metric, claimed, scale=scale)
    for x, one in placed:
        published = one.line.figure(metric, one.place.data)[0]
        if published is not None:
            looks = {**_PUBLISHED, "color": colour, **_faintly(one.place)}
            axes.plot([x], [_scale(metric) * published], **looks)
    for one in points:
        if _tick(one, across) is None:
            level = _scale(metric) * (one.row.score(metric)[0] or 0.0)
            axes.axhline(level, color=colour, linestyle=":", label=label)


def _tick(one: Measured, across: str) -> Any:
    """Where a row stands on the axis; None if it has no value there."""
    if across == "data":
        return one.place.label
    return one.row.target_epsilon if across == "epsilon" else one.row.setting.get(across)


def _tick_text(tick: Any) -> str:
    return f"{tick:g}" if isinstance(tick, float) else textwrap.fill(str(tick), 16)


def _line(one: Measured, across: str) -> str:
    """Which line a row belongs to."""
    rest = {key: value for key, value in one.row.setting.items() if key != across}
    if across != "epsilon" and one.row.target_epsilon is not None:
        rest = {"epsilon": f"{one.row.target_epsilon:g}", **rest}
    settings = ", ".join(f"{key} {value}" for key, value in rest.items())
    name = f"{one.line.name} ({settings})" if settings else one.line.name
    return f"{name}{_caveat(one.row)}"


def _size(value: Any) -> tuple[bool, Any]:
    """Numbers by size, then words."""
    return (True, str(value)) if isinstance(value, str) else (False, value)


# --- classes --------------------------------------------------------------------------------------


def _bars(described: Description, done: Sequence[Measured], path: Path) -> Path:
    """Accuracy by class, frequent classes first, the runs side by side."""
    places = _places(done)
    classes = max(len(one.row.class_share) for one in done)
    width = min(14.0, max(5.0, 0.28 * classes + 2.0))
    figure, panels = _panels(described, len(places), width, 4.4)
    names = list(dict.fromkeys(map(_name, done)))
    for number, (place, axes) in enumerate(zip(places, panels, strict=True)):
        dress(axes, place.label, "class, by share of the test records", "accuracy (%)")
        here = [one for one in done if one.place == place]
        shares = here[0].row.class_share
        order = sorted(range(len(shares)), key=lambda c: -shares[c])
        order = [c for c in order if here[0].row.class_accuracy[c] is not None]
        thick = 0.85 / len(here)
        for place_in, one in enumerate(here):
            kind = names.index(_name(one))
            axes.bar(
                [x + (place_in - (len(here) - 1) / 2) * thick for x in range(len(order))],
                [100 * (one.row.class_accuracy[c] or 0.0) for c in order],
                thick,
                label=_name(one) if number == 0 else None,
                color=COLOURS[kind % len(COLOURS)],
                hatch=("", "//", "..", "xx")[kind % 4],
                edgecolor="white",
            )
        labels = [f"{c}\n{100 * shares[c]:.0f} %" for c in order]
        axes.set_xticks(range(len(order)), labels if len(order) <= 16 else [""] * len(order))
    return save(figure, panels[0], path)


def _confusion(described: Description, done: Sequence[Measured], path: Path) -> Path:
    """A matrix for each run: a row for each true class, its shares by decided class."""
    columns = min(4, len(done))
    rows = -(-len(done) // columns)
    figure = make_figure(
        0.6 + 3.0 * columns, 0.8 + 3.1 * rows, _titled(described, 0.6 + 3.0 * columns)
    )
    for number, one in enumerate(done):
        axes = figure.add_subplot(rows, columns, number + 1)
        matrices = [outcome["confusion"] for _, outcome in one.outcomes if "confusion" in outcome]
        counts = np.array(matrices).sum(0)
        shares = 100 * counts / np.maximum(1, counts.sum(1, keepdims=True))
        axes.imshow(shares, cmap="Blues", vmin=0, vmax=100)
        if len(shares) <= 8:
            for true, decided in np.ndindex(*shares.shape):
                value = shares[true, decided]
                axes.text(
                    decided,
                    true,
                    f"{value:.0f}",
                    ha="center",
                    va="center",
                    fontsize=8,
                    color="white" if value > 55 else "black",
                )
        axes.set(xlabel="decided", ylabel="true (% of the class)")
        axes.set_title(textwrap.fill(_title(one, done), 34), fontsize=9)
        axes.set_xticks(range(len(shares)) if len(shares) <= 12 else [])
        axes.set_yticks(range(len(shares)) if len(shares) <= 12 else [])
    return save(figure, None, path)


# --- comparisons with a reference -----------------------------------------------------------------


def _hard_cases(described: Description, done: Sequence[Measured], path: Path) -> Path:
    """The share of the reference's wrong records that stay wrong: over an axis, or by run."""
    compared = [one for one in done if one.line.name != described.reference]
    return (_lines if described.across else _table)(described, compared or done, path)


def _explanations(described: Description, done: Sequence[Measured], path: Path) -> Path:
    """How far kept edges meet the graph's own and the reference's: two panels for each data set."""
    places, names = _places(done), list(dict.fromkeys(map(_name, done)))
    wanted = [(place, metric) for place in places for metric in described.metrics]
    figure, panels = _panels(described, len(wanted), 3.2, max(2.6, 1.6 + 0.3 * len(names)))
    for (place, metric), axes in zip(wanted, panels, strict=True):
        dress(axes, textwrap.fill(place.label, 30), _axis(metric), "")
        for one in (one for one in done if one.place == place):
            height = names.index(_name(one))
            _draw_point(axes, one, metric, height)
            published = one.line.figure(metric, place.data)[0]
            if published is not None:
                axes.plot(
                    [_scale(metric) * published],
                    [height],
                    **_PUBLISHED,
                    **_faintly(place),
                )
        axes.set_yticks(range(len(names)), [textwrap.shorten(name, 48) for name in names])
        axes.set_ylim(len(names) - 0.4, -0.6)
        axes.set_xlim(0, 100)
    _explain_marks(panels[0], any(True for _ in described.figures()))
    return save(figure, panels[0], path)


# --- training, and what was learnt ----------------------------------------------------------------


def _curves(described: Description, done: Sequence[Measured], path: Path) -> Path:
    """The loss on test records by step, a line for each run: the mean over the seeds."""
    places = _places(done)
    figure, panels = _panels(described, len(places), 4.4, 4.4)
    names = list(dict.fromkeys(map(_name, done)))
    for number, (place, axes) in enumerate(zip(places, panels, strict=True)):
        dress(axes, place.label, "steps", "loss on test records")
        for one in (one for one in done if one.place == place):
            curves = [outcome["curve"] for _, outcome in one.outcomes if "curve" in outcome]
            if not curves:
                continue
            kind = names.index(_name(one))
            losses = zip(*(curve["loss"] for curve in curves), strict=False)
            axes.plot(
                curves[0]["steps"],
                [statistics.fmean(loss) for loss in losses],
                label=_name(one) if number == 0 else None,
                color=COLOURS[kind % len(COLOURS)],
                linestyle="-" if _holds(one.row) else "--",
            )
        axes.set_ylim(bottom=0)
    return save(figure, panels[0], path)


def _embedding(described: Description, done: Sequence[Measured], path: Path) -> Path:
    """Test records in the plane, a panel for each run: its first seed; classes by colour."""
    columns = min(4, len(done))
    rows = -(-len(done) // columns)
    figure = make_figure(0.6 + 3.2 * columns, 0.8 + 3.4 * rows, _titled(described, 3.2 * columns))
    seen: set[int] = set()
    axes = None
    for number, one in enumerate(done):
        places = next(outcome["places"] for _, outcome in one.outcomes if "places" in outcome)
        axes = figure.add_subplot(rows, columns, number + 1)
        for c in sorted(set(places["class"])):
            chosen = [place for place, own in enumerate(places["class"]) if own == c]
            axes.scatter(
                [places["x"][i] for i in chosen],
                [places["y"][i] for i in chosen],
                s=5,
                color=_colour(c),
                linewidths=0,
                label=None if c in seen else f"class {c}",
            )
            seen.add(c)
        axes.set_title(textwrap.fill(_title(one, done), 36), fontsize=9)
        axes.set(xticks=[], yticks=[])
    first = figure.axes[0] if figure.axes and len(seen) <= 20 else None
    return save(figure, first, path)


def _colour(number: int) -> Any:
    import matplotlib

    return matplotlib.colormaps[_CLASSES](number % 20)


_SHAPES: dict[str, Callable[[Any, Sequence[Any], Path], Path]] = {
    "table": _table,
    "lines": _lines,
    "bars": _bars,
    "confusion": _confusion,
    "hard-cases": _hard_cases,
    "curves": _curves,
    "explanations": _explanations,
    "embedding": _embedding,
}


# --- all papers at once ---------------------------------------------------------------------------

Claimed = tuple[str, float, float | None]  # paper, claimed epsilon, proven one
Published = tuple[str, float, float, bool]  # paper, its figure, ours, whether on a stand-in
Looks = dict[str, tuple[str, str]]


def proven_against_claimed(points: Sequence[Claimed], path: Path) -> Path:
    """By paper: the epsilon that is proven over the one that is claimed; None is none at all."""
    figure = make_figure(6.4, 5.0)
    axes = figure.subplots()
    dress(axes, "What is proven for the noise of a claim", "claimed epsilon", "proven epsilon")
    _draw_claims(axes, points, _looks(points))
    return save(figure, axes, path)


def ours_against_published(points: Sequence[Published], path: Path) -> Path:
    """By paper: our accuracy at a proven epsilon over the published one; stand-ins are empty."""
    figure = make_figure(6.4, 5.4)
    axes = figure.subplots()
    title = "Accuracy at a proven epsilon, and as published at a claimed one of the same size"
    dress(axes, textwrap.fill(title, 56), "published (%)", "ours, proven (%)")
    _draw_accuracies(axes, points, _looks(points))
    return save(figure, axes, path)


def overview(claimed: Sequence[Claimed], published: Sequence[Published], path: Path) -> Path:
    """Both side by side, on the papers' own data: what claims are worth, and what is had anyway."""
    published = [point for point in published if not point[3]]
    figure = make_figure(10.4, 4.6)
    left, right = figure.subplots(1, 2)
    looks = _looks([*claimed, *published])
    dress(left, "What is proven for the noise of a claim", "claimed epsilon", "proven epsilon")
    dress(right, "Test score at an epsilon no larger", "published, claimed (%)", "ours, proven (%)")
    _draw_claims(left, claimed, looks)
    _draw_accuracies(right, published, looks)
    handles: dict[str, Any] = {}
    for axes in (left, right):
        handles |= dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    figure.legend(
        list(handles.values()),
        list(handles),
        loc="outside lower center",
        ncols=4,
        frameon=False,
        fontsize=9,
    )
    return save(figure, None, path)


def _looks(points: Sequence[tuple[Any, ...]]) -> Looks:
    """A colour and a marker for every paper."""
    papers = dict.fromkeys(paper for paper, *_ in points)
    return {
        paper: (COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)])
        for number, paper in enumerate(papers)
    }


def _draw_claims(axes: Any, points: Sequence[Claimed], looks: Looks) -> None:
    finite = [value for _, claimed, proven in points for value in (claimed, proven) if value]
    low, high = min(finite) / 2, max(finite) * 2
    right = 2 * max(claimed for _, claimed, _ in points)
    top = high * 4
    axes.plot([low, high], [low, high], color="#999999", linestyle=":", label="proven = claimed")
    for paper, (colour, marker) in looks.items():
        own = [(claimed, proven) for name, claimed, proven in points if name == paper]
        axes.plot(
            [claimed for claimed, _ in own],
            [top if proven is None else proven for _, proven in own],
            marker,
            color=colour,
            label=paper,
            alpha=0.8,
        )
    axes.set(xscale="log", yscale="log", xlim=(low, right), ylim=(low, top * 2))
    if any(proven is None for _, _, proven in points):
        axes.axhline(top / 2, color="#BBBBBB", linewidth=0.8)
        axes.text(low * 1.1, top * 1.15, "none proven", va="bottom", fontsize=9)


def _draw_accuracies(axes: Any, points: Sequence[Published], looks: Looks) -> None:
    axes.plot([0, 100], [0, 100], color="#999999", linestyle=":", label="as published")
    for paper, (colour, marker) in looks.items():
        for stand_in in (False, True):
            own = [(x, y) for name, x, y, other in points if name == paper and other == stand_in]
            if not own:
                continue
            axes.plot(
                [100 * x for x, _ in own],
                [100 * y for _, y in own],
                marker,
                color=colour,
                markerfacecolor="white" if stand_in else colour,
                label=f"{paper} (stand-in)" if stand_in else paper,
            )
    low = math.floor(10 * min([1.0, *(min(x, y) for _, x, y, _ in points)])) * 10
    axes.set(xlim=(low, 100), ylim=(low, 100))
