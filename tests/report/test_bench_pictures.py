"""Pictures of descriptions: each shape draws what it is about; claims are told apart."""

from dataclasses import replace

import pytest

from graphveil.bench.compare import make_row
from graphveil.bench.description import SHAPES, parse
from graphveil.bench.measuring import compare_outcomes
from graphveil.bench.places import Place
from graphveil.bench.table import Measured
from graphveil.report import bench_pictures

pytest.importorskip("matplotlib")

CONTENT = {
    "title": "A shape",
    "paper": "gap",
    "source": "Nobody, Figure 1",
    "data": ["cora", "reddit"],
    "stand_in": {"reddit": "social"},
    "across": "epsilon",
    "reference": "open",
    "run": [
        {"name": "open", "method": "mlp", "published": {"cora": 0.9}},
        {"name": "paper", "method": "dpar", "settings": {"paper": True}, "epsilon": 2,
         "published": {"reddit": 0.6}},
        {"name": "ours", "method": "dp-mlp", "vary": {"epsilon": [1, 8]}},
    ],
}  # fmt: skip


def outcome(line, seed):
    private = line.request.epsilon is not None
    return {
        "unit": "node", "delta": 1e-5, "noise_multiplier": 1.0, "seconds": 1.0,
        "claimed_epsilon": 2.0 if line.name == "paper" else None,
        "epsilon": line.request.epsilon if private and line.name != "paper" else None,
        "void_because": ["it does not hold"] if line.name == "paper" else [],
        "scores": {"accuracy": 0.5 + seed / 10, "loss": 1.0},
        "class_accuracy": [0.9, 0.2, None], "class_share": [0.3, 0.7, 0.0],
        "confusion": [[3, 1, 0], [2, 2, 0], [0, 0, 0]],
        "wrong": {"records": 4, "bits": "b0"},
        "curve": {"steps": [0, 1], "loss": [1.5, 1.0]},
        "kept": {"graphs": [1], "bits": ["10"]},
        "places": {"of": "hidden states", "x": [0, 1], "y": [1, 0], "class": [0, 1]},
    }  # fmt: skip


def measured_of(shape):
    described = parse({**CONTENT, "shape": shape}, "gap-figure1")
    places = [Place(data="cora", runs_on="cora"), Place(data="reddit", runs_on="social")]
    measured = []
    for place in places:
        for line in described.lines:
            outcomes = [(seed, outcome(line, seed)) for seed in (0, 1)]
            for _, one in outcomes:
                one["scores"] |= compare_outcomes(shape, one, one)
            row = make_row(line.request, place.runs_on, [one for _, one in outcomes])
            measured.append(Measured(line=line, place=place, row=row, outcomes=tuple(outcomes)))
    return described, measured


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_is_drawn_and_claims_are_called_so(shape, tmp_path):
    described, measured = measured_of(shape)
    text = bench_pictures.draw(described, measured, tmp_path / "a.svg").read_text()
    assert "(claimed)" in text or "epsilon claimed" in text
    assert "stand-in for reddit" in text
    assert "A shape (Nobody, Figure 1)" in text


@pytest.mark.parametrize("shape", SHAPES)
def test_a_stand_in_alone_is_called_so(shape, tmp_path):
    described, measured = measured_of(shape)
    alone = [one for one in measured if one.place.stand_in_for]
    text = bench_pictures.draw(described, alone, tmp_path / "a.svg").read_text()
    assert "stand-in for reddit" in " ".join(text.split())


@pytest.mark.parametrize("shape", ["table", "lines", "bars", "curves"])
def test_what_is_void_without_a_claim_is_not_drawn_as_proven(shape, tmp_path):
    described, measured = measured_of(shape)
    void = [
        replace(one, row=replace(one.row, void_because=("it does not hold",)))
        for one in measured
        if one.line.name == "ours"
    ]
    text = bench_pictures.draw(described, void, tmp_path / "a.svg").read_text()
    assert "(none proven)" in text
    if shape == "table":
        assert not any(bench_pictures._holds(one.row) for one in void)


def test_the_same_picture_is_the_same_file(tmp_path):
    described, measured = measured_of("table")
    one, other = (
        bench_pictures.draw(described, measured, tmp_path / name) for name in ("a.svg", "b.svg")
    )
    assert one.read_bytes() == other.read_bytes()


def test_nothing_measured_is_nothing_drawn(tmp_path):
    described, measured = measured_of("table")
    empty = [
        Measured(line=one.line, place=one.place, row=one.row, outcomes=((0, {"refused": "no"}),))
        for one in measured
    ]
    assert bench_pictures.draw(described, empty, tmp_path / "a.svg") is None
    assert not (tmp_path / "a.svg").exists()


def test_lines_over_data_are_one_panel(tmp_path):
    described, measured = measured_of("lines")
    described = parse({**CONTENT, "shape": "lines", "across": "data"}, "gap-figure1")
    text = bench_pictures.draw(described, measured, tmp_path / "a.svg").read_text()
    assert "ours (epsilon 8)" in text


def test_the_pictures_of_all_papers(tmp_path):
    points = [("One", 2.0, 30.0), ("One", 4.0, None), ("Two", 1.0, 1.0)]
    text = bench_pictures.proven_against_claimed(points, tmp_path / "a.svg").read_text()
    assert all(f"<!-- {words} -->" in text for words in ("One", "Two", "none proven"))
    bench_pictures.proven_against_claimed([("One", 2.0, None)], tmp_path / "c.svg")
    drawn = [("One", 0.7, 0.6, False), ("Two", 0.7, 0.65, True)]
    text = bench_pictures.ours_against_published(drawn, tmp_path / "b.svg").read_text()
    assert "<!-- Two (stand-in) -->" in text
    assert "<!-- One -->" in text
    text = bench_pictures.overview(points, drawn, tmp_path / "d.svg").read_text()
    assert all(f"<!-- {words} -->" in text for words in ("One", "Two", "none proven"))
    assert "stand-in" not in text
