"""Plots: files of the right kind, with what they are about in them."""

import re
import sys

import numpy as np
import pytest
import torch

from graphveil._errors import InvalidInputError
from graphveil.bench import HardCases, Row
from graphveil.explain import Explanation, agreement
from graphveil.report import plots

OPEN = Row(
    method="gnn",
    private=False,
    scores={"accuracy": (0.9, 0.92)},
    class_accuracy=(0.95, 0.8, None),
    class_share=(0.3, 0.7, 0.0),
)


def private(budget, mean):
    return Row(
        method="dp-gnn",
        private=True,
        target_epsilon=budget,
        epsilon=budget - 1e-6,
        scores={"accuracy": (mean, mean + 0.01)},
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


class Judged(Row):
    """A row that knows by what it is compared, what a guess reaches, and whether it learnt."""

    def __init__(self, metric="accuracy", baseline=None, learnt=None, **given):
        super().__init__(**given)
        for name, value in (("metric", metric), ("baseline", baseline or {}), ("learnt", learnt)):
            object.__setattr__(self, name, value)


def judged(name, budget, *scores, metric="r2", **given):
    return Judged(
        method=name,
        private=budget is not None,
        target_epsilon=budget,
        epsilon=float("inf") if budget is None else budget,
        scores={metric: scores},
        metric=metric,
        **given,
    )


def test_the_axis_is_that_of_the_metric(tmp_path):
    pytest.importorskip("matplotlib")
    rows = [judged("dp-mlp", 1.0, 0.31), judged("dp-mlp", 8.0, 0.34)]
    text = plots.privacy_utility(rows, tmp_path / "a.svg").read_text()
    assert "<!-- test R² -->" in text
    assert "<!-- 0.310 -->" in text
    assert "%" not in "".join(line for line in text.splitlines() if "<!--" in line)
    error = [judged("dp-mlp", 1.0, 3.1, metric="mae"), judged("dp-mlp", 8.0, 2.9, metric="mae")]
    text = plots.privacy_utility(error, tmp_path / "b.svg").read_text()
    assert "<!-- test mean absolute error (less is better) -->" in text
    both = [private(1.0, 0.5), private(8.0, 0.7)]
    text = plots.privacy_utility(both, tmp_path / "c.svg", metric="accuracy").read_text()
    assert "<!-- test accuracy (%) -->" in text
    assert re.search(r"<!-- 60(\.0)? -->", text)


def test_one_epsilon_is_a_bar_for_each_method(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    from matplotlib.axes import Axes

    drawn, bar = [], Axes.bar

    def note(axes, place, height, *given, **looks):
        drawn.append((place, round(height, 6), looks["facecolor"] == "white", looks["hatch"]))
        return bar(axes, place, height, *given, **looks)

    monkeypatch.setattr(Axes, "bar", note)
    guess = {"r2": -0.01}
    rows = [
        judged("late-graph", 8.0, 0.3, 0.4, learnt=True, baseline=guess),
        judged("dp-mlp", 8.0, -0.5, learnt=False, baseline=guess),
        judged("dpar", 8.0, 0.2, void_because=("no",), claimed_epsilon=8.0),
        judged("gnn", None, 0.6),
    ]
    text = plots.privacy_utility(rows, tmp_path / "a.svg", "lab").read_text()
    assert drawn == [
        (0, 0.35, False, ""),
        (1, -0.5, True, ""),
        (2, 0.2, True, "//"),
    ]
    for words in (
        "late-graph", "proven 8", "claimed 8", "learnt nothing", "hatched: claimed",
        "gnn, not private", "best guess that reads no row", "method, each to spend epsilon 8",
    ):  # fmt: skip
        assert f"<!-- {words} -->" in text, words
    drawn.clear()
    two = [*rows, judged("late-graph", 1.0, 0.1, learnt=True)]
    assert "<!-- epsilon (proven; empty marks: claimed) -->" in (
        plots.privacy_utility(two, tmp_path / "b.svg").read_text()
    )
    assert drawn == []


def test_what_learnt_nothing_is_grey_and_off_the_line(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    from matplotlib.axes import Axes

    drawn, errorbar = [], Axes.errorbar

    def note(axes, places, *given, **looks):
        drawn.append((list(places), looks["label"], looks.get("linestyle"), looks["color"]))
        return errorbar(axes, places, *given, **looks)

    monkeypatch.setattr(Axes, "errorbar", note)
    rows = [
        judged("dp-mlp", budget, budget / 10, learnt=budget > 0.5, setting={"steps": budget})
        for budget in (0.5, 1.0, 8.0)
    ]
    for row in rows:
        object.__setattr__(row, "name", "mine")
    plots.over_setting(rows, tmp_path / "a.svg")
    assert drawn == [
        ([1, 2], "dp-mlp", None, plots.COLOURS[0]),
        ([0], "dp-mlp, learnt nothing", "none", plots._GREY),
    ]
    drawn.clear()
    for row in rows:
        object.__setattr__(row, "setting", {})
    plots.privacy_utility(rows, tmp_path / "b.svg")
    assert drawn == [
        ([1.0, 8.0], "mine", None, plots.COLOURS[0]),
        ([0.5], "mine, learnt nothing", "none", plots._GREY),
    ]
    gone = judged("gnn", None, 0.1, learnt=False)
    text = plots.privacy_utility([*rows, gone], tmp_path / "c.svg").read_text()
    assert "<!-- gnn, not private, learnt nothing -->" in text
    assert "best guess" not in text


def test_claims_are_drawn_apart_from_what_is_proven(tmp_path):
    """A row whose certificate is void is drawn at the epsilon that is claimed, and called so."""
    pytest.importorskip("matplotlib")
    claim = Row(
        method="dpar",
        private=True,
        target_epsilon=2.0,
        claimed_epsilon=2.0,
        void_because=("nothing is proven",),
        scores={"accuracy": (0.6,)},
    )
    drawn = plots.privacy_utility([private(1.0, 0.5), claim], tmp_path / "a.svg").read_text()
    assert "<!-- dpar (claimed) -->" in drawn
    assert "<!-- dpar -->" not in drawn
    assert "empty marks: claimed" in drawn
    assert (
        "claimed" not in plots.privacy_utility([private(1.0, 0.5)], tmp_path / "b.svg").read_text()
    )


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
        plots.require_matplotlib()


def of_classes(*sizes):
    """Hard cases of classes of such sizes: two for both, one for private, all others for none."""
    by_class = {
        c: HardCases(both=2, only_private=1, only_open=0, neither=size - 3)
        for c, size in enumerate(sizes)
    }
    both, only_private = 2 * len(sizes), len(sizes)
    return HardCases(
        both=both,
        only_private=only_private,
        only_open=0,
        neither=sum(sizes) - both - only_private,
        private_runs=3,
        by_class=by_class,
    )


def test_hard_cases_are_a_table_and_bars(tmp_path):
    pytest.importorskip("matplotlib")
    cases = of_classes(1003, 40)
    text = plots.hard_cases(cases, tmp_path / "a.svg", "social", ["red", "b" * 40]).read_text()
    # Four of 1,043 nodes for both; 3 runs on the private side; a long name is cut.
    for words in ("social", "1,037", "0.4 %", "private (3 runs)", "open (1 run)", "red (1,003)"):
        assert f"<!-- {words} -->" in text, words
    assert f"<!-- {'b' * 23}… (40) -->" in text
    assert "<!-- class (test records) -->" in text
    assert "<!-- only private wrong -->" in text
    numbered = plots.hard_cases(cases, tmp_path / "b.svg").read_text()
    assert "<!-- 1 (40) -->" in numbered
    png = plots.hard_cases(cases, tmp_path / "c.png", "social")
    assert png.read_bytes().startswith(b"\x89PNG")


def test_hard_cases_without_classes_or_with_many(tmp_path):
    pytest.importorskip("matplotlib")
    bare = HardCases(both=1, only_private=2, only_open=3, neither=4)
    text = plots.hard_cases(bare, tmp_path / "a.svg").read_text()
    assert "40.0 %" in text
    assert "class (test records)" not in text
    many = plots.hard_cases(of_classes(*range(10, 50)), tmp_path / "b.svg").read_text()
    assert "the 25 largest of 40" in many
    assert "<!-- 39 (49) -->" in many
    assert "<!-- 0 (10) -->" not in many


def explained(graph, *importance, label=1, predicted=1):
    """A ring with as many edges, each with its importance, and a loop of none."""
    nodes = torch.arange(len(importance))
    edges = torch.stack([nodes, (nodes + 1) % len(importance)])
    return Explanation(
        graph=graph,
        num_nodes=len(importance) + 1,
        edge_index=torch.cat([edges, edges.flip(0), torch.tensor([[0], [0]])], 1),
        importance=torch.tensor([*importance, *importance, 0.0]),
        predicted=predicted,
        probability=0.75,
        label=label,
    )


def test_explanations_are_drawn_side_by_side(tmp_path):
    pytest.importorskip("matplotlib")
    private = [explained(3, 0.9, 0.9, 0.1, 0.1), explained(8, 0.5, 0.5, 0.5, label=-1)]
    in_the_open = [explained(3, 0.9, 0.1, 0.9, 0.1, predicted=0), explained(8, 0.5, 0.5, 0.5)]
    compared = agreement(private, in_the_open)
    names = ["red", "b" * 40]
    text = plots.explanations(
        compared, tmp_path / "a.svg", "rings", sides=("dp", "gnn"), names=names
    ).read_text()
    cut = "b" * 23 + "…"
    for words in (
        "rings", "original", "dp", "gnn", f"graph 3, truly {cut}", "graph 8",
        f"says red, not {cut} (75 %)", f"says {cut}, not red (75 %)", f"says {cut} (75 %)",
        "keeps 2 of 5 edges", "keeps 2 of 5 edges, IoU 0.33", "keeps 3 of 4 edges, IoU 1.00",
        "kept by both", "kept by this model alone", "kept by neither",
    ):  # fmt: skip
        assert f"<!-- {words} -->" in text, words
    first = plots.explanations(compared, tmp_path / "b.svg", most=1).read_text()
    assert "graph 3" in first
    assert "graph 8" not in first


def test_explanations_differ_in_colour_and_line(tmp_path):
    """Of a triangle: an edge for both, one for each alone, none for the other loop."""
    pytest.importorskip("matplotlib")
    one, other = explained(0, 0.9, 0.9, 0.1), explained(0, 0.9, 0.1, 0.9)
    both = plots._styles(one.edges, one.kept(), other.kept())
    assert both == {(0, 1): "both", (1, 2): "this", (0, 2): "other", (0, 0): "neither"}
    looks = [(look["color"], look.get("linestyle")) for look in plots._EDGES.values()]
    assert len(set(looks)) == len(looks)


def test_nodes_stand_where_they_are_said_to_or_apart(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    drawn = []
    monkeypatch.setattr(plots, "_draw_graph", lambda axes, where, styles: drawn.append(where))
    one = explained(0, *[0.5] * 6)
    places = torch.rand(7, 2)
    plots.explanations(agreement([one], [one]), tmp_path / "a.svg", places=[places])
    plots.explanations(agreement([one], [one]), tmp_path / "b.svg", places=[None])
    assert all(np.allclose(where, places) for where in drawn[:3])
    layout = drawn[3]
    apart = np.linalg.norm(layout[:, None] - layout[None], axis=-1) + 9 * np.eye(7)
    assert apart.min() > 0.1
    for nodes in (1, 2, 3):  # nothing to draw a layout from
        few = explained(0, *[0.5] * nodes)
        assert np.isfinite(plots._layout(few)).all()
