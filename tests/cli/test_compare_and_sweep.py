"""Tables of several methods and several settings, and the plots of them."""

import json
import sys

import pytest

from graphveil.bench import Row
from graphveil.cli.compare import _table

QUICK = "--set steps=3 --set sample_rate=1 --seeds 2"


def test_all_methods_stand_in_one_table(answer, run, learnable, tmp_path):
    line = f"compare --data {learnable} --epsilon 4 --epsilon 8 {QUICK} --out {tmp_path / 'r.json'}"
    result = answer(line)
    rows = {(row["method"], row["target_epsilon"]): row for row in result["rows"]}
    assert set(rows) == {
        *(
            (name, e)
            for name in ("dp-gnn", "late-graph", "gap", "dpar", "dp-mlp")
            for e in (4.0, 8.0)
        ),
        ("mlp", None),
        ("gnn", None),
    }
    for (_, budget), row in rows.items():
        assert len(row["accuracies"]) == 2
        assert row["mean"] == pytest.approx(sum(row["accuracies"]) / 2)
        assert row["epsilon"] == "inf" if budget is None else row["epsilon"] <= budget
    assert {row["target_epsilon"] for row in result["rows"] if row["best"]} == {4.0, 8.0}
    verdicts = [r for r in result["remarks"] if "dp-mlp" in r and not r.startswith("dp-mlp")]
    assert len(verdicts) == 6  # of dp-gnn, gap and dpar
    assert "no certificate covers" in result["note"]
    assert json.loads((tmp_path / "r.json").read_text()) == result


def test_a_person_sees_the_table_the_marks_and_the_caution(run, learnable):
    line = f"compare --data {learnable} --epsilon 8 --methods gap,mlp {QUICK}"
    code, out, err = run(line)
    assert (code, err) == (0, "")
    assert "best private" in out
    assert "not private" in out
    assert "itself a release" in out


def test_plots_are_drawn(answer, learnable, tmp_path):
    pytest.importorskip("matplotlib")
    folder = tmp_path / "plots"
    line = f"compare --data {learnable} --epsilon 4 --epsilon 8 --methods gap,mlp {QUICK}"
    result = answer(f"{line} --plots {folder}")
    assert [path.rsplit("/", 1)[1] for path in result["plots"]] == [
        "privacy-utility.png",
        "class-accuracy.png",
    ]
    assert all((folder / name).stat().st_size > 1000 for name in ("privacy-utility.png",))


def test_a_sweep_has_a_row_for_each_value(answer, run, graph, tmp_path):
    pytest.importorskip("matplotlib")
    plot = tmp_path / "sweep.svg"
    line = f"sweep dp-gnn --data {graph} --epsilon 8 {QUICK} --vary sender_cap=1,3"
    result = answer(f"{line} --plot {plot}")
    assert [row["setting"] for row in result["rows"]] == [{"sender_cap": 1}, {"sender_cap": 3}]
    noise = [row["noise_multiplier"] for row in result["rows"]]
    assert noise[0] < noise[1]
    assert "<svg" in plot.read_text()
    assert "itself a release" in result["note"]


def test_one_refused_value_keeps_its_row(run, graph):
    line = (
        f"sweep dp-gnn --data {graph} --epsilon 8 --set steps=3 --seeds 1 --vary sender_cap=1,none"
    )
    code, out, _ = run(line)
    assert code == 0
    assert "refused" in out
    assert "no bound is proven" in " ".join(out.split())


@pytest.mark.parametrize(
    ("line", "words", "code"),
    [
        ("compare --data GRAPH", ["--epsilon"], 2),
        ("compare --data GRAPH --epsilon 0", ["'epsilon'", "0.0"], 2),
        ("compare --data GRAPH --epsilon 8 --delta 0.9", ["delta", "1/n"], 3),
        ("compare --data social --epsilon 8 --delta 0.9", ["delta", "1/n"], 3),
        ("compare --data GRAPH --epsilon 8 --methods dp-gnn,nobody", ["nobody"], 2),
        ("compare --data GRAPH --epsilon 8 --methods ,", ["--methods"], 2),
        ("compare --data GRAPH --epsilon 8 --set speed=1", ["speed"], 2),
        ("compare --data GRAPH --epsilon 8 --seeds 0", ["'seeds'", "0"], 2),
        ("compare --data GRAPH --epsilon 8 --out GRAPH", ["not written over"], 2),
        ("compare --data GRAPH --epsilon 8 --plots GRAPH", ["plots"], 2),
        ("compare --data nowhere --epsilon 8", ["nowhere"], 2),
        ("sweep dp-gnn --data GRAPH --epsilon 8", ["--vary"], 2),
        ("sweep dp-gnn --data GRAPH --epsilon 8 --vary sender_cap", ["KEY=V1"], 2),
        ("sweep dp-gnn --data GRAPH --epsilon 8 --vary speed=1,2", ["speed"], 2),
        ("sweep dp-gnn --data GRAPH --epsilon 8 --vary epsilon=1,2", ["--epsilon"], 2),
        ("sweep dp-gnn --data GRAPH --vary sender_cap=1,2", ["--epsilon"], 2),
        ("sweep mlp --data GRAPH --epsilon 1 --vary steps=1,2", ["no budget"], 2),
        ("sweep dp-gnn --data GRAPH --epsilon 8 --vary steps=1 --plot x.doc", [".svg"], 2),
    ],
)
def test_what_makes_no_sense_is_one_line(refused, graph, line, words, code):
    before = graph.read_bytes()
    err = refused(line.replace("GRAPH", str(graph)), code)
    assert all(word in err for word in words), err
    assert graph.read_bytes() == before


def test_without_matplotlib_plots_are_refused_before_training(refused, graph, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    err = refused(f"compare --data {graph} --epsilon 8 --plots plots")
    assert "graphveil[report]" in err


def test_one_method_stands_there_under_several_settings(answer, graph):
    methods = "gap:weighting=none,gap:weighting=similarity+similarity=half,mlp"
    result = answer(
        f"compare --data {graph} --epsilon 8 {QUICK} --methods {methods} --set unit=edge "
        "--undirected"
    )
    settings = [row["setting"] for row in result["rows"] if row["method"] == "gap"]
    assert [each["weighting"] for each in settings] == ["none", "similarity"]
    assert settings[1]["similarity"] == "half"
    assert {row["unit"] for row in result["rows"]} == {"edge-undirected", None}
    assert sum("weighting=similarity" in remark for remark in result["remarks"]) == 1


@pytest.mark.parametrize("methods", [",", ""])
def test_no_method_at_all_is_refused(run, graph, methods):
    line = ["compare", "--data", str(graph), "--epsilon", "8", "--methods", methods]
    code, out, err = run(line)
    assert (code, out) == (2, "")
    assert "'--methods' names none" in err


def test_a_claim_has_a_column_of_its_own():
    proven = Row(method="dp-mlp", private=True, epsilon=4.0, scores={"accuracy": (0.5,)})
    claim = Row(
        method="dpar",
        private=True,
        epsilon=30.0,
        claimed_epsilon=4.0,
        scores={"accuracy": (0.6,)},
    )
    columns, (_, cells) = _table([proven, claim])
    assert columns[2:4] == ["claimed", "proven"]
    assert cells[2:4] == ["4", "30"]
    columns, _ = _table([proven])
    assert columns[2] == "epsilon"


def test_a_sweep_under_a_claim_says_so(run, graph):
    line = f"sweep dpar --data {graph} --epsilon 4 --set paper=true --set steps=3 --seeds 1"
    code, out, _ = run(f"{line} --vary hidden_channels=4")
    assert code == 0
    assert "claimed" in " ".join(out.split())
