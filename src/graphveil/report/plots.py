"""Plots: accuracy over epsilon, over class frequency, over a setting; nodes as a model sees them.

They need matplotlib, the extra ``report``. The ending of the path is the format: .png, .svg, .pdf.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphveil._errors import InvalidInputError
from graphveil.bench.compare import Row
from graphveil.privacy.guarantee import round_up

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Tensor

ENDINGS = (".png", ".svg", ".pdf")

# Told apart without colour too: Okabe and Ito's palette, a marker for each.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_MARKERS = ("o", "s", "^", "D", "v", "P")


def needed() -> None:
    """Refuse in one line where matplotlib is missing; before anything is trained."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        raise InvalidInputError(
            "Plots need matplotlib; pip install 'graphveil[report]', or leave the plots out."
        ) from None


def privacy_utility(rows: Iterable[Row], path: str | Path, title: str = "") -> Path:
    """Accuracy over epsilon, a line for each private method; those in the open are level lines.

    Daigavane et al., Figure 3.
    """
    figure, axes = _canvas(title, "epsilon (proven)", "test accuracy (%)")
    rows = [row for row in rows if row.mean is not None]
    private = [row for row in rows if row.private and not row.void_because]
    for number, name in enumerate(dict.fromkeys(row.label for row in private)):
        points = sorted((row for row in private if row.label == name), key=lambda row: row.epsilon)
        axes.errorbar(
            [row.epsilon for row in points],
            [100 * (row.mean or 0.0) for row in points],
            [100 * (row.deviation or 0.0) for row in points],
            label=name,
            color=_COLOURS[number % len(_COLOURS)],
            marker=_MARKERS[number % len(_MARKERS)],
            capsize=3,
        )
    for number, row in enumerate(row for row in rows if not row.private):
        axes.axhline(
            100 * (row.mean or 0.0),
            label=f"{row.label}, not private",
            color="#555555",
            linestyle=("--", ":", "-.")[number % 3],
        )
    budgets = sorted({row.budget for row in private if row.budget is not None})
    if len(budgets) > 1:
        axes.set_xscale("log")
        axes.set_xticks(budgets, [f"{value:g}" for value in budgets])
        axes.minorticks_off()
    return _save(figure, axes, path)


def class_accuracy(
    private: Row,
    in_the_open: Row,
    path: str | Path,
    title: str = "",
    names: Sequence[str] | None = None,
) -> Path:
    """Accuracy by class, frequent classes first, of a private and a non-private method.

    Daigavane et al., Figure 1: privacy costs rare classes most. Classes go by their ``names`` where
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
            color=_COLOURS[number],
            hatch="" if number == 0 else "//",
            edgecolor="white",
        )
    called = [str(c) if names is None else names[c] for c in order]
    if sum(map(len, called)) > 60:
        called = [str(c) for c in order]
    shares = [f"{100 * private.class_share[c]:.0f} %" for c in order]
    labels = [f"{name}\n{share}" for name, share in zip(called, shares, strict=True)]
    axes.set_xticks(range(len(order)), labels if len(order) <= 20 else [""] * len(order))
    return _save(figure, axes, path)


def over_setting(rows: Sequence[Row], path: str | Path, title: str = "") -> Path:
    """Accuracy over the values of one setting: an ablation."""
    (name,) = rows[0].setting
    rows = [row for row in rows if row.mean is not None]
    figure, axes = _canvas(title, name.replace("_", " "), "test accuracy (%)")
    axes.errorbar(
        range(len(rows)),
        [100 * (row.mean or 0.0) for row in rows],
        [100 * (row.deviation or 0.0) for row in rows],
        label=rows[0].method if rows else None,
        color=_COLOURS[0],
        marker=_MARKERS[0],
        capsize=3,
    )
    axes.set_xticks(range(len(rows)), [str(row.setting[name]) for row in rows])
    return _save(figure, axes, path)


def neighbourhoods(
    panels: Sequence[tuple[str, Tensor, Tensor]], path: str | Path, most: int = 2000
) -> Path:
    """Who stands beside whom: t-SNE of rows, a panel for each title, coloured by class.

    Every panel is ``(title, rows, classes)``; more than ``most`` rows are thinned out evenly. Zhang
    et al., Figure 9.
    """
    from sklearn.manifold import TSNE

    needed()
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.0 * len(panels), 4.2), layout="constrained")
    for number, (title, rows, classes) in enumerate(panels):
        step = max(1, -(-len(rows) // most))
        rows, classes = rows[::step], classes[::step]
        spread = min(30.0, (len(rows) - 1) / 3)
        if len(rows) < 4:
            raise InvalidInputError(f"A picture needs four nodes or more. Got {len(rows)} instead.")
        places = TSNE(perplexity=spread, init="pca", random_state=0).fit_transform(rows.numpy())
        axes = figure.add_subplot(1, len(panels), number + 1)
        axes.scatter(places[:, 0], places[:, 1], s=4, c=classes.numpy(), cmap="tab20", linewidths=0)
        axes.set_title(title)
        axes.set_xticks([])
        axes.set_yticks([])
    return _save(figure, None, path)


def _canvas(title: str, across: str, up: str) -> tuple[Figure, Any]:
    needed()
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    axes = figure.subplots()
    axes.set_title(title)
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    axes.grid(axis="y", alpha=0.3)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return figure, axes


def _save(figure: Figure, axes: Any, path: str | Path) -> Path:
    path = Path(path)
    if path.suffix not in ENDINGS:
        raise InvalidInputError(
            f"A plot must end in {', '.join(ENDINGS)}. Got {path.name!r} instead."
        )
    if axes is not None and (labels := axes.get_legend_handles_labels()[1]):
        # Below the axes: inside, it would lie on lines and bars.
        columns = 3 if max(map(len, labels)) < 22 else 2 if max(map(len, labels)) < 38 else 1
        figure.legend(loc="outside lower center", ncols=columns, frameon=False)
    try:
        figure.savefig(path, dpi=150)
    except OSError as error:
        raise InvalidInputError(f"{path} cannot be written: {error.strerror}.") from None
    return path
