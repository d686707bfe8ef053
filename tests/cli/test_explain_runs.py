"""Explanations from the command line: files, a table, and runs that cannot be compared."""

import json
import sys

import numpy as np
import pytest

from graphveil import runs
from graphveil.data.synthetic import erdos_renyi
from graphveil.explain import agreement, explain, with_edges

# Whole batches: their noise is found ten times faster than that of sampled ones.
PRIVATE = "graph-dpsgd --epsilon 8 --set steps=3 --set sample_rate=1 --set hidden_channels=4"
OPEN = "graph-gnn --set steps=20 --set hidden_channels=4"


@pytest.fixture
def save_graphs(tmp_path):
    """Write thirty graphs of ten nodes, some arrays changed, and return the path."""

    def call(name="graphs.npz", **changed):
        data = erdos_renyi(10, num_graphs=30)
        arrays = {key: np.asarray(data[key]) for key in data.keys()}  # noqa: SIM118
        every = {key: value for key, value in {**arrays, **changed}.items() if value is not None}
        np.savez(tmp_path / name, **every)
        return tmp_path / name

    return call


@pytest.fixture
def train(answer, save_graphs, tmp_path):
    """Train into a directory of that name, on the thirty graphs unless told."""

    def call(name, what, more="", data=None):
        data = save_graphs() if data is None else data
        answer(f"train {what} {more} --data {data} --out {tmp_path / name}")
        return tmp_path / name

    return call


@pytest.fixture
def pair(train):
    return train("private", PRIVATE), train("open", OPEN)


@pytest.fixture
def out(tmp_path):
    pytest.importorskip("matplotlib")
    return tmp_path / "explained"


def test_numbers_are_those_of_the_library(answer, pair, out):
    private, in_the_open = pair
    result = answer(f"explain {private} --against {in_the_open} --out {out} --graphs 4 --epochs 5")
    testing = runs.Run(private).arrange().testing
    wanted = with_edges(testing, testing.test_mask)[:4]
    assert [each["graph"] for each in result["graphs"]] == wanted.tolist()
    assert testing.test_mask[wanted].all()
    mine, theirs, again = (
        explain(runs.Run(run).read(), testing, wanted, epochs=5, seed=seed)
        for run, seed in ((private, 0), (in_the_open, 1), (in_the_open, 2))
    )
    expected = agreement(mine, theirs, again=again)
    for name in ("original_open", "original_private", "private_open", "by_chance", "again"):
        assert result["mean"][name] == pytest.approx(getattr(expected.mean, name))
    written = json.loads((out / "explanations.json").read_text())
    for each, one, other in zip(written["graphs"], mine, theirs, strict=True):
        assert each["label"] == int(testing.y[one.graph])
        assert each["private"]["predicted"] == one.predicted
        assert each["open"]["kept"] == len(other.kept())
        assert [tuple(edge) for edge in each["edges"]] == sorted(one.edges)
        assert each["importance_private"] == list(one.by_edge.values())
        assert each["importance_open"] == list(other.by_edge.values())
    assert "edges" not in result["graphs"][0]
    assert [each["method"] for each in result["runs"]] == ["graph-dpsgd", "graph-gnn"]
    assert result["runs"][1]["epsilon"] == "inf"
    assert "certificate does not cover" in result["note"]
    assert (out / "explanations.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("explainer", ["saliency", "integrated"])
def test_gradients_have_no_second_start(answer, pair, out, explainer):
    line = f"explain {pair[0]} --against {pair[1]} --out {out} --graphs 2 --explainer {explainer}"
    result = answer(f"{line} --threshold 0")
    assert result["mean"]["again"] is None
    assert result["mean"]["private_open"] == 1  # every edge reaches 0
    assert len(result["graphs"]) == 2


def test_a_person_sees_table_and_note(run, pair, out):
    line = f"explain {pair[0]} --against {pair[1]} --out {out} --explainer saliency"
    code, shown, err = run(line)
    assert (code, err) == (0, "")
    text = " ".join(shown.split())
    for words in ("9 test graphs", "mean", "Private: graph-dpsgd at epsilon 8", "Open: graph-gnn"):
        assert words in text, words
    assert "An explanation of a graph reads that graph" in text
    assert "explanations.png" in "".join(shown.split())


def test_what_is_there_is_kept(run, refused, pair, out):
    line = f"explain {pair[0]} --against {pair[1]} --out {out} --graphs 1 --explainer saliency"
    assert run(line)[0] == 0
    assert "--force" in refused(line)
    assert run(f"{line} --force")[0] == 0
    out.joinpath("explanations.png").unlink()
    assert "explanations.json" in refused(line)


def test_two_private_runs_and_graphs_of_another_split(answer, train, out):
    more = "--split inductive --seed 1"
    one, other = train("a", PRIVATE, more), train("b", PRIVATE, f"{more} --set conv=gcn")
    line = f"explain {one} --against {other} --out {out} --graphs 3 --explainer saliency"
    arranged = runs.Run(one).arrange()
    assert "graph_id" in arranged.testing
    tested = arranged.testing.graph_id[arranged.testing.test_mask]
    assert {each["graph"] for each in answer(line)["graphs"]} <= set(tested.tolist())


def test_other_graphs_are_refused(refused, train, save_graphs, out):
    bare = save_graphs("bare.npz", train_mask=None, val_mask=None, test_mask=None)
    private = train("p", PRIVATE, "--seed 1", data=bare)
    in_the_open = train("o", OPEN, "--seed 2", data=bare)
    err = refused(f"explain {private} --against {in_the_open} --out {out}")
    assert "same graphs" in err
    assert "--seed" in err
    assert not out.exists()


def test_the_same_rows_as_other_graphs_are_refused(refused, train, save_graphs, out):
    data = erdos_renyi(10, num_graphs=30)
    nothing = np.zeros((2, 0), dtype=np.int64)
    first = save_graphs("first.npz", edge_index=nothing)
    mixed = save_graphs("mixed.npz", edge_index=nothing, batch=data.batch.numpy()[::-1].copy())
    private, in_the_open = train("p", PRIVATE, data=first), train("o", OPEN, data=mixed)
    assert "same graphs" in refused(f"explain {private} --against {in_the_open} --out {out}")
    in_the_open = train("q", OPEN, data=first)
    err = refused(f"explain {private} --against {in_the_open} --out {out}")
    assert "with an edge" in err


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("explain PRIVATE --out OUT", ["--against"]),
        ("explain PRIVATE --against OPEN", ["--out"]),
        ("explain PRIVATE --against ABSENT --out OUT", ["no finished run"]),
        ("explain PRIVATE --against OPEN --out OUT --graphs 0", ["'graphs'", "0"]),
        ("explain PRIVATE --against OPEN --out OUT --threshold 2", ["'threshold'", "2.0"]),
        ("explain PRIVATE --against OPEN --out OUT --epochs 0", ["'epochs'", "0"]),
        ("explain PRIVATE --against OPEN --out OUT --explainer magic", ["magic"]),
        ("explain PRIVATE --against OPEN --out ABSENT/deep", ["no writable directory"]),
    ],
)
def test_what_makes_no_sense_is_one_line(refused, pair, out, tmp_path, line, words):
    places = {"PRIVATE": pair[0], "OPEN": pair[1], "ABSENT": tmp_path / "no", "OUT": out}
    for name, place in places.items():
        line = line.replace(name, str(place))
    err = refused(line)
    assert all(word in err for word in words), err
    assert not out.exists()


def test_a_run_that_classifies_nodes_is_refused(refused, answer, pair, graph, out, tmp_path):
    answer(f"train mlp --set steps=2 --data {graph} --out {tmp_path / 'nodes'}")
    err = refused(f"explain {pair[0]} --against {tmp_path / 'nodes'} --out {out}")
    assert "whole graphs" in err
    assert "mlp" in err


def test_without_matplotlib_the_extra_is_named(refused, pair, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    line = f"explain {pair[0]} --against {pair[1]} --out {tmp_path / 'explained'}"
    assert "graphveil[report]" in refused(line)
