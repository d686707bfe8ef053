"""Plots: files of the right kind, with what they are about in them."""

import sys

import pytest

from graphveil._errors import InvalidInputError
from graphveil.bench import Row
from graphveil.report import plots

OPEN = Row(
    method="gnn",
    private=False,
    accuracies=(0.9, 0.92),
    class_accuracy=(0.95, 0.8, None),
    class_share=(0.3, 0.7, 0.0),
)


def private(budget, mean):
    return Row(
        method="dp-gnn",
        private=True,
        budget=budget,
        epsilon=budget - 1e-6,
        accuracies=(mean, mean + 0.01),
        class_accuracy=(0.9, 0.4, None),
        class_share=(0.3, 0.7, 0.0),
        setting={"sender_cap": 3},
    )


def test_three_plots_are_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    rows = [private(1.0, 0.5), private(8.0, 0.7), OPEN]
    drawn = [
        plots.privacy_utility(rows, tmp_path / "a.svg", "social"),
        plots.class_accuracy(rows[1], OPEN, tmp_path / "b.svg"),
        plots.over_setting(rows[:2], tmp_path / "c.svg"),
    ]
    assert all("<svg" in path.read_text() for path in drawn)
    assert plots.privacy_utility(rows[:1], tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_classes_go_by_their_names_where_these_are_short(tmp_path):
    pytest.importorskip("matplotlib")
    short, long = ["red", "blue", "green"], ["red" * 20, "blue" * 20, "green" * 20]
    for names, shown in ((short, True), (long, False)):
        drawn = plots.class_accuracy(private(8.0, 0.7), OPEN, tmp_path / "n.svg", "", names)
        assert (f"<!-- {names[0]} -->" in drawn.read_text()) is shown


def test_an_unknown_ending_or_place_is_one_line(tmp_path):
    pytest.importorskip("matplotlib")
    with pytest.raises(InvalidInputError, match=r"\.svg"):
        plots.privacy_utility([OPEN], tmp_path / "a.doc")
    with pytest.raises(InvalidInputError, match="cannot be written"):
        plots.privacy_utility([OPEN], tmp_path / "no" / "a.svg")


def test_without_matplotlib_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(InvalidInputError, match=r"graphveil\[report\]"):
        plots.needed()
