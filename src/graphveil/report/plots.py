"""Plots: accuracy over epsilon, over class frequency, over a setting; what models see.

They need matplotlib, the extra ``report``. The ending of the path is the format: .png, .svg, .pdf.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from graphveil._errors import InvalidInputError
from graphveil.privacy.guarantee import round_up

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Tensor

    from graphveil.bench import Curve, HardCases, Row
    from graphveil.explain import Agreement, Explanation

ENDINGS = (".png", ".svg", ".pdf")

# Told apart without colour too: Okabe and Ito's palette, a marker for each.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARKERS = ("o", "s", "^", "D", "v", "P")


def require_matplotlib() -> None:
    """Refuse in one line where matplotlib is missing; before anything is trained."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        raise InvalidInputError(
            "Plots need matplotlib; pip install 'graphveil[report]', or leave the plots out."
        ) from None


def check_path(path: str | Path) -> Path:
    """The path of a plot, if it can be drawn: matplotlib is there, and knows the ending."""
    require_matplotlib()
    if Path(path).suffix not in ENDINGS:
        raise InvalidInputError(
            f"A plot must end in {', '.join(ENDINGS)}. Got {str(path)!r} instead."
        )
    return Path(path)


def privacy_utility(rows: Iterable[Row], path: str | Path, title: str = "") -> Path:
    """Accuracy over epsilon, a line for each private method; those in the open are level lines.

    What is proven has full marks and lines. A paper's claim is drawn apart, at the epsilon that it
    claims, with empty marks and a broken line. Daigavane et al., Figure 1.
    """
    rows = [row for row in rows if row.mean is not None]
    private = [row for row in rows if row.private]
    proven = [row for row in private if not row.void_because]
    claimed = [row for row in private if row.claimed_epsilon is not None]
    across = "epsilon (proven)" if not claimed else "epsilon (proven; empty marks: claimed)"
    figure, axes = _canvas(title, across, "test accuracy (%)")
    for number, name in enumerate(dict.fromkeys(row.label for row in private)):
        points = sorted((row for row in proven if row.label == name), key=lambda row: row.epsilon)
        if points:
            draw_line(axes, number, name, [row.epsilon for row in points], points)
        stated = [row for row in claimed if row.label == name]
        if stated:
            places = [row.claimed_epsilon for row in stated]
            draw_line(axes, number, f"{name} (claimed)", places, stated, claimed=True)
    for number, row in enumerate(row for row in rows if not row.private):
        axes.axhline(
            100 * (row.mean or 0.0),
            label=f"{row.label}, not private",
            color="#555555",
            linestyle=("--", ":", "-.")[number % 3],
        )
    budgets = sorted({row.target_epsilon for row in private if row.target_epsilon is not None})
    if len(budgets) > 1:
        axes.set_xscale("log")
        axes.set_xticks(budgets, [f"{value:g}" for value in budgets])
        axes.minorticks_off()
    return save(figure, axes, path)


def draw_line(
    axes: Any,
    number: int,
    label: str | None,
    places: Sequence[Any],
    rows: Sequence[Row],
    metric: str = "accuracy",
    claimed: bool = False,
) -> None:
    """A line through the mean scores of rows, with bars for their deviations, in percent.

    What is ``claimed`` alone has empty marks and a broken line.
    """
    scores = [row.score(metric) for row in rows]
    looks = {"markerfacecolor": "white", "linestyle": "--"} if claimed else {}
    axes.errorbar(
        places,
        [100 * (mean or 0.0) for mean, _ in scores],
        [100 * (deviation or 0.0) for _, deviation in scores],
        label=label,
        color=COLOURS[number % len(COLOURS)],
        marker=MARKERS[number % len(MARKERS)],
        capsize=3,
        **looks,
    )


def class_accuracy(
    private: Row,
    in_the_open: Row,
    path: str | Path,
    title: str = "",
    names: Sequence[str] | None = None,
) -> Path:
    """Accuracy by class, frequent classes first, of a private and a non-private method.

    Daigavane et al., Figure 3: privacy costs rare classes most. Classes go by their ``names`` where
    these are short enough to stand side by side, else by their numbers.
    """
    figure, axes = _canvas(title, "class, by share of the test nodes", "test accuracy (%)")
    order = sorted(range(len(private.class_share)), key=lambda c: -private.class_share[c])
    order = [c for c in order if private.class_accuracy[c] is not None]
    drawn: Sequence[tuple[Row, str, float]] = (
        (in_the_open, "not private", -0.2),
        (private, f"epsilon {round_up(private.epsilon, 3)}", 0.2),
    )
    for number, (row, what, shift) in enumerate(drawn):
        axes.bar(
            [place + shift for place in range(len(order))],
            [100 * (row.class_accuracy[c] or 0.0) for c in order],
            0.4,
            label=f"{row.method}, {what}",
            color=COLOURS[number],
            hatch="" if number == 0 else "//",
            edgecolor="white",
        )
    called = [str(c) for c in order]
    if names is not None and sum(len(names[c]) for c in order) <= 60:
        called = [names[c] for c in order]
    shares = [f"{100 * private.class_share[c]:.0f} %" for c in order]
    labels = [f"{name}\n{share}" for name, share in zip(called, shares, strict=True)]
    axes.set_xticks(range(len(order)), labels if len(order) <= 20 else [""] * len(order))
    return save(figure, axes, path)


def over_setting(rows: Sequence[Row], path: str | Path, title: str = "") -> Path:
    """Accuracy over the values of one setting: an ablation. Marks are empty under a claim."""
    (name,) = rows[0].setting
    rows = [row for row in rows if row.mean is not None]
    figure, axes = _canvas(title, name.replace("_", " "), "test accuracy (%)")
    claimed = any(row.claimed_epsilon is not None for row in rows)
    label = f"{rows[0].method}{' (claimed)' if claimed else ''}" if rows else None
    draw_line(axes, 0, label, range(len(rows)), rows, claimed=claimed)
    axes.set_xticks(range(len(rows)), [str(row.setting[name]) for row in rows])
    return save(figure, axes, path)


def loss_curves(curves: Sequence[Curve], path: str | Path, title: str = "") -> Path:
    """The loss on test records over the steps, a line for each method."""
    figure, axes = _canvas(title, "steps", "loss on test records")
    for number, curve in enumerate(curves):
        axes.plot(curve.steps, curve.loss, label=curve.label, color=COLOURS[number % len(COLOURS)])
    axes.set_ylim(bottom=0)
    return save(figure, axes, path)


def neighbourhoods(
    panels: Sequence[tuple[str, Tensor, Tensor]],
    path: str | Path,
    most: int = 2000,
    names: Sequence[str] | None = None,
) -> Path:
    """Who stands beside whom: t-SNE of rows, a panel for each title, coloured by class.

    Every panel is ``(title, rows, classes)``; more than ``most`` rows are thinned out evenly. A
    legend names up to 20 classes, by ``names`` or by number. Zhang et al., Figure 9.
    """
    from sklearn.manifold import TSNE

    figure = make_figure(4.0 * len(panels), 4.2)
    for number, (title, rows, classes) in enumerate(panels):
        step = max(1, -(-len(rows) // most))
        rows, classes = rows[::step], classes[::step]
        spread = min(30.0, (len(rows) - 1) / 3)
        if len(rows) < 4:
            raise InvalidInputError(f"A picture needs four nodes or more. Got {len(rows)} instead.")
        places = TSNE(perplexity=spread, init="pca", random_state=0).fit_transform(rows.numpy())
        axes = figure.add_subplot(1, len(panels), number + 1)
        axes.scatter(
            places[:, 0],
            places[:, 1],
            s=4,
            c=classes.numpy() % _CLASS_COLOURS,
            cmap="tab20",
            vmin=0,
            vmax=_CLASS_COLOURS - 1,
            linewidths=0,
        )
        axes.set(title=title, xticks=[], yticks=[])
    _name_classes(figure, sorted({int(c) for *_, y in panels for c in y.tolist()}), names)
    return save(figure, None, path)


_CLASS_COLOURS = 20


def _name_classes(figure: Any, classes: Sequence[int], names: Sequence[str] | None) -> None:
    """A legend below the panels, unless there are more classes than colours."""
    from matplotlib import colormaps
    from matplotlib.lines import Line2D

    if not classes or classes[-1] >= _CLASS_COLOURS:
        return
    colours = colormaps["tab20"]
    marks = [
        Line2D(
            [], [], linestyle="", marker="o", markersize=4, color=colours(c / (_CLASS_COLOURS - 1))
        )
        for c in classes
    ]
    labels = [f"class {c}" if names is None else names[c] for c in classes]
    columns = min(len(labels), 7)
    figure.legend(marks, labels, loc="outside lower center", ncols=columns, frameon=False)


def hard_cases(
    cases: HardCases,
    path: str | Path,
    title: str = "",
    names: Sequence[str] | None = None,
    sides: tuple[str, str] = ("private", "open"),
) -> Path:
    """Who fails where: a table of right and wrong on both sides, and bars for each class.

    ``sides`` are what the two are called. Bars stand beside the table if ``cases`` has classes,
    frequent ones first, 25 at most; they go by their ``names`` if given. Igamberdiev and Habernal,
    Appendix E.
    """
    order = sorted(cases.by_class, key=lambda c: (-cases.by_class[c].nodes, c))
    shown = order[:25]
    height = max(4.2, 1.6 + 0.26 * len(shown))
    figure = make_figure(10.0 if shown else 4.6, height, title)
    grid = figure.add_gridspec(1, 2 if shown else 1, width_ratios=[4, 5] if shown else None)
    _table(figure.add_subplot(grid[0]), cases, sides)
    if not shown:
        return save(figure, None, path)

    axes = figure.add_subplot(grid[1])
    left = [0.0] * len(shown)
    for part, (label, colour, hatch) in _PARTS.items():
        width = [100 * getattr(cases.by_class[c], part) / cases.by_class[c].nodes for c in shown]
        axes.barh(
            range(len(shown)),
            width,
            left=left,
            label=label.format(*sides),
            color=colour,
            hatch=hatch,
            edgecolor="white",
        )
        left = [start + more for start, more in zip(left, width, strict=True)]
    called = [_short(str(c) if names is None else str(names[c])) for c in shown]
    sizes = [cases.by_class[c].nodes for c in shown]
    labels = [f"{name} ({size:,})" for name, size in zip(called, sizes, strict=True)]
    axes.set_yticks(range(len(shown)), labels)
    axes.set_ylim(len(shown) - 0.4, -0.6)
    rest = "" if len(shown) == len(order) else f", the {len(shown)} largest of {len(order):,}"
    axes.set_ylabel(f"class (test records){rest}")
    axes.set_xlabel("wrong, share of the class's test records (%)")
    axes.set_xlim(0, max(1.0, 1.05 * max(left)))
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    return save(figure, axes, path)


# The hard cases of either side: what they are called, their colour, their hatch.
_PARTS = {
    "both": ("both wrong", COLOURS[1], "xx"),
    "only_private": ("only {0} wrong", COLOURS[0], "//"),
    "only_open": ("only {1} wrong", COLOURS[4], ".."),
}


def _table(axes: Any, cases: HardCases, sides: tuple[str, str]) -> None:
    """Two rows, two columns: one side right and wrong, the other right and wrong."""
    cells = (("neither", 0, 0), ("only_open", 1, 0), ("only_private", 0, 1), ("both", 1, 1))
    for part, column, row in cells:
        _, colour, hatch = _PARTS.get(part, ("", "#E8E8E8", ""))
        axes.bar(
            column, 1.0, 1.0, row - 0.5, color=colour, hatch=hatch, edgecolor="white", linewidth=2
        )
        count = getattr(cases, part)
        axes.text(
            column,
            row,
            f"{count:,}\n{100 * count / cases.nodes:.1f} %" if cases.nodes else "0",
            ha="center",
            va="center",
            fontsize=13,
            bbox={"facecolor": "white", "edgecolor": "none", "boxstyle": "round,pad=0.35"},
        )
    axes.set(xlim=(-0.5, 1.5), ylim=(1.5, -0.5))
    axes.set_xticks((0, 1), ("right", "wrong"))
    axes.set_yticks((0, 1), ("right", "wrong"), rotation=90, va="center")
    axes.tick_params(length=0)
    runs = cases.private_runs, cases.open_runs
    sizes = [f"{count} run{'s' if count > 1 else ''}" for count in runs]
    note = f"\nwrong: in {100 * cases.often:g} % of the runs or more" if max(runs) > 1 else ""
    axes.set(xlabel=f"{sides[1]} ({sizes[1]}){note}", ylabel=f"{sides[0]} ({sizes[0]})")
    axes.spines[:].set_visible(False)
    axes.set_box_aspect(0.8)


def make_figure(width: float, height: float, title: str = "") -> Figure:
    """An empty figure of so many inches."""
    require_matplotlib()
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    if title:
        figure.suptitle(title)
    return figure


def _canvas(title: str, across: str, up: str) -> tuple[Figure, Any]:
    figure = make_figure(6.4, 4.2)
    axes = figure.subplots()
    dress(axes, title, across, up)
    return figure, axes


def dress(axes: Any, title: str, across: str, up: str) -> None:
    """Give axes their words, a grid, and no frame."""
    axes.set(title=title, xlabel=across, ylabel=up)
    axes.grid(axis="y", alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def save(figure: Figure, axes: Any, path: str | Path) -> Path:
    """Write a figure, with the legend of ``axes`` below it."""
    path = check_path(path)
    if axes is not None and (labels := axes.get_legend_handles_labels()[1]):
        # Below the axes: inside, it would lie on lines and bars.
        columns = 3 if max(map(len, labels)) < 22 else 2 if max(map(len, labels)) < 38 else 1
        figure.legend(loc="outside lower center", ncols=columns, frameon=False)
    import matplotlib

    # The same picture is the same file: an SVG has neither its date nor ids by chance.
    more: dict[str, Any] = {"metadata": {"Date": None}} if path.suffix == ".svg" else {}
    try:
        with matplotlib.rc_context({"svg.hashsalt": "graphveil"}):
            figure.savefig(path, dpi=150, **more)
    except OSError as error:
        raise InvalidInputError(f"{path} cannot be written: {error.strerror}.") from None
    return path


def explanations(
    agreement: Agreement,
    path: str | Path,
    title: str = "",
    *,
    sides: tuple[str, str] = ("private", "not private"),
    names: Sequence[str] | None = None,
    places: Sequence[Tensor | None] | None = None,
    most: int = 6,
) -> Path:
    """Graphs as they are, and the edges that the open and the private model keep, side by side.

    A row for each of the first ``most`` graphs. Edges that both models keep are thick, those that
    one of them keeps are dashed where it does and dotted where it does not, all others are thin.
    ``places`` has where each graph's nodes stand (nodes, 2), or None for a layout by their edges.
    ``sides`` are the names of the private and of the open model; classes go by their ``names``.
    Mueller et al., Figures 5 and 8.
    """
    rows = list(zip(agreement.private, agreement.open, agreement.ious, strict=True))[:most]
    figure = make_figure(9.0, 1.1 + 2.6 * len(rows), title)
    panels = figure.subplots(len(rows), 3, squeeze=False)
    for number, (private, in_the_open, ious) in enumerate(rows):
        given = None if places is None else places[number]
        where = _layout(private) if given is None else np.asarray(given, dtype=float)
        kept = [one.kept(agreement.threshold) for one in (in_the_open, private)]
        truth = f", truly {_class(private.label, names)}" if private.label >= 0 else ""
        counts = [f"keeps {len(one)} of {len(private.edges)} edges" for one in kept]
        drawn = (
            (f"graph {private.graph}{truth}", "", dict.fromkeys(private.edges, "given")),
            (_says(in_the_open, private, names), counts[0], _styles(private.edges, *kept)),
            (
                _says(private, in_the_open, names),
                f"{counts[1]}, IoU {ious.private_open:.2f}",
                _styles(private.edges, *reversed(kept)),
            ),
        )
        for axes, (above, below, styles) in zip(panels[number], drawn, strict=True):
            _draw_graph(axes, where, styles)
            axes.set_title(above, fontsize=9)
            axes.set_xlabel(below, fontsize=8)
    for axes, head in zip(panels[0], ("original", *reversed(sides)), strict=True):
        axes.annotate(
            head,
            (0.5, 1.0),
            xycoords="axes fraction",
            xytext=(0, 24),
            textcoords="offset points",
            ha="center",
            fontsize=10,
            fontweight="bold",
        )
    for style, label in _EDGE_LABELS.items():
        panels[0][0].plot([], [], label=label, **_EDGES[style])
    return save(figure, panels[0][0], path)


# Edges in a drawing: of the graph, of both models, of this one or the other alone, of neither.
_EDGES: dict[str, dict[str, Any]] = {
    "given": {"color": "#444444", "linewidth": 1.4, "zorder": 1},
    "both": {"color": COLOURS[0], "linewidth": 3.4, "zorder": 3},
    "this": {"color": COLOURS[1], "linewidth": 3.0, "linestyle": (0, (2.2, 0.9)), "zorder": 3},
    "other": {"color": COLOURS[1], "linewidth": 1.1, "linestyle": (0, (1, 2)), "zorder": 2},
    "neither": {"color": "#AAAAAA", "linewidth": 0.9, "zorder": 1},
}
_EDGE_LABELS = {
    "both": "kept by both",
    "this": "kept by this model alone",
    "other": "kept by the other alone",
    "neither": "kept by neither",
}


def _styles(edges: Iterable[Any], this: Any, other: Any) -> dict[Any, str]:
    """How each edge is drawn in the panel of ``this`` model."""
    kinds = {(True, True): "both", (True, False): "this", (False, True): "other"}
    return {edge: kinds.get((edge in this, edge in other), "neither") for edge in edges}


def _draw_graph(axes: Any, where: np.ndarray, styles: dict[Any, str]) -> None:
    thin = min(1.0, max(0.45, (15 / max(len(styles), 1)) ** 0.5))  # many edges need fine lines
    for (one, other), style in styles.items():
        look = {**_EDGES[style], "linewidth": thin * _EDGES[style]["linewidth"]}
        if one == other:  # a ring around the node
            look |= {"edgecolor": look.pop("color"), "facecolor": "none", "zorder": 4}
            axes.scatter(*where[one], s=130, **look)
        else:
            axes.plot(*where[[one, other]].T, solid_capstyle="round", **look)
    axes.scatter(*where.T, s=26, color="#222222", edgecolor="white", linewidth=0.8, zorder=5)
    axes.set(xticks=[], yticks=[])
    axes.margins(0.12)
    axes.set_aspect("equal", adjustable="datalim")
    axes.spines[:].set_color("#DDDDDD")


def _says(one: Explanation, other: Explanation, names: Sequence[str] | None) -> str:
    differs = "" if one.predicted == other.predicted else f", not {_class(other.predicted, names)}"
    return f"says {_class(one.predicted, names)}{differs} ({100 * one.probability:.0f} %)"


def _class(number: int, names: Sequence[str] | None) -> str:
    return _short(f"class {number}" if names is None else str(names[number]))


def _short(name: str) -> str:
    return name if len(name) <= 24 else f"{name[:23]}…"


def _layout(one: Explanation) -> np.ndarray:
    """Nodes as far apart as there are edges between them; parts that nothing joins stay in view."""
    import networkx

    graph = networkx.empty_graph(one.num_nodes)
    graph.add_edges_from(one.edges)
    lengths, apart = dict(networkx.all_pairs_shortest_path_length(graph)), one.num_nodes**0.5
    lengths = {node: {to: lengths[node].get(to, apart) for to in graph} for node in graph}
    places = networkx.kamada_kawai_layout(graph, dist=lengths)
    return np.array([places[node] for node in range(one.num_nodes)])
