"""The page of plans: every figure on it is a plan's, the first one what `graphveil plan` says."""

import json
import sys

import pytest
from report_html import assert_only_our_own

from graphveil import cli
from graphveil.methods import DPAR, DPGNN, GAP, Facts
from graphveil.privacy.guarantee import round_up
from graphveil.report import plan_page

FACTS = Facts(num_nodes=1000, num_features=10, num_classes=3, num_train=700, directed=False)
SIZES = "--nodes 1000 --features 10 --classes 3 --train 700 --undirected"


@pytest.fixture
def run(capsys):
    def call(line):
        with pytest.raises(SystemExit) as left:
            cli.main(line.split())
        captured = capsys.readouterr()
        return left.value.code, captured.out, captured.err

    return call


@pytest.fixture
def page(run, tmp_path):
    """The page of a plan as a tree, with the grid in it, and what the command printed as JSON."""

    def call(method, options=""):
        out = tmp_path / "plan.html"
        line = f"plan {method} {SIZES} --epsilon 4 {options} --html {out} --force --json"
        code, printed, err = run(line)
        assert (code, err) == (0, "")
        tree = assert_only_our_own(out.read_text())
        (data,) = tree.one("script", id="grid").inside
        return tree, json.loads(data), json.loads(printed)

    return call


def at(grid, places):
    number = 0
    for size, place in zip(grid["sizes"], places, strict=True):
        number = number * size + place
    return grid["points"][number]


@pytest.mark.parametrize(
    "method, options",
    [
        ("dpar", ""),
        ("gap", "--set unit=edge"),
        ("gap", "--set steps=3 --set sample_rate=1.0"),
        ("dp-gnn", "--set sample_rate=0.1 --set steps=4"),
    ],
)
def test_the_page_begins_with_what_the_command_says(page, run, few, method, options):
    few("epsilon", "sender_cap")
    tree, grid, answer = page(method, options)
    shown = tree.one(id="rows").pairs()
    code, printed, _ = run(f"plan {method} {SIZES} --epsilon 4 {options}")
    assert code == 0
    printed = " ".join(printed.split())
    extra = {"work"}
    assert len(shown) > 3
    for name, text in shown.items():
        assert name in extra or f"{name} {text}" in printed
    first = at(grid, grid["asked"])
    assert first["noise"] == answer["noise_multiplier"]
    assert first["epsilon"] == round_up(answer["epsilon"])
    assert tree.one(id="headline").text == f"ε = {round_up(answer['epsilon'])}"
    assert [tuple(row) for row in first["rows"]] == list(shown.items())
    if "signal_to_noise" in answer:
        assert first["measure"] == f"{answer['signal_to_noise']:.3g}"


def test_every_point_is_a_plan_of_its_own(page, few):
    few("epsilon", "sample_rate", "steps")
    tree, grid, _ = page("dpar")
    rows = tree.one("table", id="plans").table()
    assert len(rows) == len(grid["points"]) == 2 * 2 * 2
    for number in range(8):
        epsilon, rate, steps, *cells = rows[number]
        plan = DPAR(epsilon=float(epsilon), sample_rate=float(rate), steps=int(steps)).plan(FACTS)
        assert cells == [
            round_up(plan.epsilon),
            f"{plan.details['noise_multiplier']:.6g}",
            f"{plan.details['signal_to_noise']:.3g}",
        ]
        assert grid["points"][number]["noise"] == plan.details["noise_multiplier"]
        assert plan.epsilon <= float(epsilon)
    assert [row for row in rows if row[:3] == ["4", "1", "40"]] == [  # what was asked for
        [cell.text for cell in tree.one("tr", class_="asked").all("td")]
    ]


def test_the_degree_cap_has_a_slider_and_costs(few):
    method = DPGNN(epsilon=4.0, steps=5, sample_rate=1.0, sender_cap=2)
    assert [axis.values for axis in plan_page._axes(method)] == [
        (1.0, 2.0, 4.0, 8.0),
        (2, 6),
        (0.25, 0.5, 1.0),
        (2, 5, 15),
    ]
    few("epsilon", "sender_cap")
    axes, points = plan_page.grid(method, FACTS)
    assert [axis.name for axis in axes] == ["epsilon", "sender_cap"]
    assert axes[1].values == (2, 6)
    noise = {point.place: point.plan.details["noise_multiplier"] for point in points}
    assert noise[1, 0] < noise[1, 1]
    assert noise[0, 1] > noise[1, 1]


def test_no_plan_is_made_twice(few, monkeypatch):
    few("epsilon", "steps")
    made = []
    plan = DPAR.plan
    monkeypatch.setattr(
        DPAR, "plan", lambda self, facts: made.append(repr(self)) or plan(self, facts)
    )
    _, points = plan_page.grid(DPAR(epsilon=4.0), FACTS)
    assert len(points) == len(made) == len(set(made)) == 4


def test_a_slider_that_changes_nothing_is_left_out():
    axes, points = plan_page.grid(GAP(epsilon=4.0, unit="edge"), FACTS)
    assert [axis.name for axis in axes] == ["epsilon"]
    assert axes[0].values == (1.0, 2.0, 4.0, 8.0)
    assert len(points) == 4


def test_a_cap_left_to_the_method_is_its_own():
    caps = {axis.name: axis.values[axis.asked] for axis in plan_page._axes(GAP(epsilon=4.0))}
    assert caps["sender_cap"] == 1
    paper = {
        axis.name: axis.values[axis.asked] for axis in plan_page._axes(GAP(epsilon=4.0, paper=True))
    }
    assert paper["sender_cap"] == 50


def test_a_plan_that_is_refused_keeps_its_place_and_says_why(monkeypatch, page):
    monkeypatch.setattr(
        plan_page,
        "_axes",
        lambda m: [
            plan_page.Axis(name="epsilon", label="epsilon", values=(1e-9, 4.0), asked=1),
            plan_page.Axis(name="steps", label="steps", values=(40, 10**9), asked=0),
        ],
    )
    tree, grid, _ = page("dpar")
    refused = [point for point in grid["points"] if point["refused"]]
    assert refused
    assert all(point["epsilon"] is None and point["rows"] == [] for point in refused)
    assert f"refused: {refused[0]['refused']}" in tree.one("table", id="plans").text


def test_a_plan_without_a_guarantee_shows_none(few, page):
    few("epsilon")
    tree, grid, answer = page("dp-gnn", "--set paper=true --set steps=3 --set sample_rate=0.1")
    assert answer["epsilon"] == "inf"
    assert all(point["epsilon"] is None for point in grid["points"])
    assert tree.one(id="headline").text == "No guarantee"
    assert "ε =" not in tree.text.split("All plans")[1].split("{")[0]
    assert {row[1] for row in tree.one("table", id="plans").table()} == {"none"}
    assert not tree.all(id="noise")  # nothing to look up the other way round


def test_the_other_way_round_needs_one_release_only(page, few):
    few("epsilon")
    several = page("gap", "--set steps=3 --set sample_rate=1.0")[0]
    assert not several.all(id="noise")
    tree, grid, answer = page("gap", "--set unit=edge")
    assert float(tree.one(id="noise").attributes["value"]) >= answer["noise_multiplier"]
    # What the script rests on: more noise, less epsilon.
    noises = [point["noise"] for point in grid["points"]]
    assert noises == sorted(noises, reverse=True)


def test_what_trains_in_the_open_has_nothing_to_plan(run, tmp_path):
    code, out, err = run(f"plan mlp {SIZES} --html {tmp_path / 'plan.html'}")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "in the open" in err
    assert not (tmp_path / "plan.html").exists()


def test_what_bounds_nothing_has_nothing_to_plan(run, tmp_path):
    line = f"plan graph-split {SIZES} --epsilon 2 --set paper=true"
    code, _, err = run(f"{line} --html {tmp_path / 'plan.html'}")
    assert code == 2
    assert "bounds nothing" in err
    code, out, _ = run(line)
    assert code == 0
    assert "500 epochs of 10 groups in turn" in out
    assert "no guarantee" in out


def test_a_page_that_is_there_is_kept_without_force(run, tmp_path):
    out = tmp_path / "plan.html"
    out.write_text("mine")
    code, _, err = run(f"plan dpar {SIZES} --epsilon 4 --html {out}")
    assert (code, out.read_text()) == (2, "mine")
    assert "--force" in err
    assert run(f"plan dpar {SIZES} --epsilon 4 --html {tmp_path / 'plan.txt'}")[0] == 2


def test_the_page_says_that_nothing_is_interpolated(page):
    tree, _, _ = page("gap", "--set unit=edge")
    assert "nothing in between is guessed" in tree.text


def test_a_terminal_sees_that_plans_are_being_made(run, few, tmp_path, monkeypatch):
    few("epsilon")
    command = f"plan gap {SIZES} --epsilon 4 --set unit=edge --html {tmp_path}/"
    assert "planning" not in run(f"{command}quiet.html")[2]
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    code, _, err = run(f"{command}seen.html")
    assert code == 0
    assert "planning" in err
    assert (tmp_path / "seen.html").read_bytes() == (tmp_path / "quiet.html").read_bytes()
