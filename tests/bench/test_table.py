"""Tables in TOML: every combination is a row, results outlive a crash, bad files get one line."""

import json
import tomllib

import numpy as np
import pytest

from graphveil._errors import InvalidInputError
from graphveil.bench import Notes, Row, read, select, titles
from graphveil.bench.table import Table
from graphveil.data.synthetic import social_network
from graphveil.graph.splits import split
from graphveil.methods import METHODS

HEAD = 'title = "t"\ndata = ["a.npz"]\n'
RUN = '[[run]]\nmethod = "mlp"\nsettings = { steps = 2 }\n'


@pytest.fixture
def described_as(tmp_path):
    """Write a description, and return its path."""

    def call(text):
        path = tmp_path / "table.toml"
        path.write_text(text)
        return path

    return call


@pytest.fixture
def graph(tmp_path):
    """The path of a small graph with masks."""
    data = split(social_network(num_nodes=60, num_classes=3, num_features=5, seed=1), seed=0)
    names = ("x", "edge_index", "y", "train_mask", "val_mask", "test_mask")
    path = tmp_path / "a.npz"
    np.savez(path, num_classes=np.int64(3), **{name: data[name].numpy() for name in names})
    return path


def test_every_combination_of_what_varies_is_a_row(described_as):
    table = read(
        described_as(
            HEAD + "delta = 1e-4\n[[run]]\nname = 'n'\nmethod = 'graph-split'\n"
            "settings = { steps = 3, splits = 5 }\n"
            "vary = { epsilon = [1, 8], train_share = [0.5, 1.0], splits = [2, 4] }\n"
            "[[run]]\nmethod = 'mlp'\npublished = { 'a.npz' = 0.9 }\n"
        )
    )
    asked = [line.request for line in table.lines]
    assert len(asked) == 9
    assert {(a.epsilon, a.train_share, a.settings["splits"]) for a in asked[:8]} == {
        (e, t, s) for e in (1.0, 8.0) for t in (0.5, 1.0) for s in (2, 4)
    }
    assert all(a.delta == 1e-4 and a.settings["steps"] == 3 for a in asked[:8])
    assert asked[0].varied == {"train_share": 0.5, "splits": 2}
    assert asked[8].epsilon is None
    assert asked[8].delta is None
    assert table.lines[8].published == {"a.npz": 0.9}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("title = ", "is no TOML file"),
        (
            HEAD + "delta = nan\n" + RUN + "[[run]]\nmethod = 'dp-mlp'\nepsilon = 1\n",
            "'delta' parameter must be",
        ),
        (HEAD, "must have the key 'run'"),
        ("data = ['a']\n" + RUN, "must have the key 'title'"),
        ("title = 't'\ndata = []\n" + RUN, "must name graphs in 'data'"),
        ("title = 't'\ndata = [1]\n" + RUN, "must name graphs in 'data'"),
        (HEAD + "colour = 1\n" + RUN, "unknown key 'colour'"),
        (HEAD + "seeds = true\n" + RUN, "'seeds' cannot be True"),
        (HEAD + "seeds = 0\n" + RUN, "seeds"),
        (HEAD + "metric = 'luck'\n" + RUN, "metric"),
        (HEAD + "run = [1]\n", "write it as a table"),
        (HEAD + "[[run]]\nmethod = 'nobody'\n", "nobody"),
        (HEAD + "[[run]]\nsettings = {}\n", "must have the key 'method'"),
        (HEAD + "[[run]]\nmethod = 'dp-mlp'\n", "must have an 'epsilon'"),
        (HEAD + "[[run]]\nmethod = 'mlp'\nepsilon = 1\n", "trains in the open"),
        (HEAD + "[[run]]\nmethod = 'dp-mlp'\nepsilon = -1\n", "epsilon"),
        (HEAD + RUN + "vary = { steps = 3 }\n", "must have a list"),
        (HEAD + RUN + "vary = { train_share = [0.0] }\n", "train_share"),
        (HEAD + RUN + "published = { 'b' = 0.5 }\n", "not in 'data'"),
        (HEAD + RUN + "published = { 'a.npz' = 55 }\n", "published.a.npz"),
        (
            HEAD + RUN + "vary = { steps = [1, 2] }\nat_least = { 'a.npz' = 0.5 }\n",
            "nobody could say which",
        ),
    ],
)
def test_a_bad_description_gets_one_line(described_as, text, said):
    with pytest.raises(InvalidInputError, match=said) as error:
        read(described_as(text))
    assert "\n" not in str(error.value)


def test_an_unknown_name_lists_the_known_ones(tmp_path):
    with pytest.raises(InvalidInputError, match="splits-table2"):
        read("splits-table3")
    with pytest.raises(InvalidInputError, match="Got a directory"):
        read(tmp_path)


@pytest.mark.parametrize("name", titles())
def test_descriptions_of_the_package_hold(name):
    """Every run of every description is one that its method takes."""
    table = read(name)
    for line in table.lines:
        method = line.request.make(0)
        assert method.get_params()["seed"] == 0
    if table.across == "data":
        assert len(table.data) > 1
    elif table.across is not None:
        assert any(
            table.across in (*line.request.varied, "epsilon" if line.request.epsilon else "")
            for line in table.lines
        )


def test_published_figures_are_those_of_the_paper():
    """Igamberdiev and Habernal, Table 2: spot checks of what was typed in."""
    lines = {line.request.name: line.published for line in read("splits-table2").lines}
    assert lines["GCN in the open, Adam"]["cora:full"] == 0.88
    assert lines["the paper's noise, whole graph, claimed 2, SGD"]["pubmed:full"] == 0.38
    assert lines["the paper's noise, 10 groups, claimed 2, Adam"]["citeseer:full"] == 0.36
    assert lines["the paper's noise, 10 groups, claimed 1, SGD"]["cora:full"] == 0.55


def test_results_are_noted_and_not_run_again(described_as, graph, tmp_path, monkeypatch):
    text = f'title = "t"\ndata = ["{graph}"]\nseeds = 2\n' + RUN
    text += '[[run]]\nmethod = "dp-mlp"\nepsilon = 8\nsettings = { steps = 2 }\n'
    table = read(described_as(text))
    notes = Notes(tmp_path / "r.jsonl")
    ((opened, private),) = table.run(memory=notes)
    assert len(notes) == 4
    assert opened.epsilon == float("inf")
    assert private.epsilon <= 8
    for line in (tmp_path / "r.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))

    monkeypatch.setattr(METHODS["mlp"], "fit", lambda *a, **k: pytest.fail("was run again"))
    monkeypatch.setattr(METHODS["dp-mlp"], "fit", lambda *a, **k: pytest.fail("was run again"))
    assert table.run(memory=Notes(tmp_path / "r.jsonl")) == [[opened, private]]


def test_a_line_cut_short_is_run_again_and_others_are_kept(described_as, graph, tmp_path):
    table = read(described_as(f'title = "t"\ndata = ["{graph}"]\nseeds = 3\n' + RUN))
    path = tmp_path / "r.jsonl"
    before = table.run(memory=Notes(path))
    path.write_bytes(path.read_bytes()[:-20])
    notes = Notes(path)
    assert len(notes) == 2
    ((row,),) = table.run(memory=notes)
    assert row.scores == before[0][0].scores  # in the open everything is seeded
    assert len(Notes(path)) == 3


@pytest.mark.parametrize("text", ["what\n", "[]\n", '{"run": {}}\n', '{"outcome": 1}\n'])
def test_a_file_of_something_else_is_left_alone(tmp_path, text):
    path = tmp_path / "r.jsonl"
    path.write_text(text)
    with pytest.raises(InvalidInputError, match="in line 1"):
        Notes(path)
    assert path.read_text() == text


def test_notes_are_never_taken_away(tmp_path):
    notes = Notes(tmp_path / "r.jsonl")
    notes["{}"] = {"refused": "no"}
    with pytest.raises(InvalidInputError, match="never taken away"):
        del notes["{}"]


def test_a_figure_below_what_is_demanded_is_named(described_as):
    table = read(described_as(HEAD + RUN + "at_least = { 'a.npz' = 0.8 }\n"))

    def rows(*accuracies):
        return [[Row(method="mlp", private=False, scores={"accuracy": accuracies})]]

    assert table.missed(rows(0.8, 0.9)) == []
    assert "must reach 80. Got 70.0" in table.missed(rows(0.7))[0]
    assert "no figure" in table.missed(rows())[0]


def test_part_of_a_table(described_as):
    table = read("splits-table2")
    part = select(table, data=["cora:full"], only=["late"])
    assert part.data == ("cora:full",)
    assert {line.request.method for line in part.lines} == {"late-graph"}
    with pytest.raises(InvalidInputError, match="Nothing is left"):
        select(table, only=["xyz"])
    with pytest.raises(InvalidInputError, match="Nothing is left"):
        select(table, data=["cora"])


def test_the_training_share_is_trained_on(described_as, graph):
    seen = []
    table = read(described_as(f'title = "t"\ndata = ["{graph}"]\nseeds = 1\n' + RUN))
    assert isinstance(table, Table)
    fit = METHODS["mlp"].fit

    def noted(self, data, **more):
        seen.append(int(data.train_mask.sum()))
        return fit(self, data, **more)

    text = f'title = "t"\ndata = ["{graph}"]\nseeds = 1\n' + RUN
    shares = read(described_as(text + "vary = { train_share = [0.2, 0.6, 1.0] }\n"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(METHODS["mlp"], "fit", noted)
        ((first, *_),) = shares.run()
    assert seen == [9, 27, 45]
    assert first.train_share == 0.2


def test_the_docstring_is_a_description(described_as):
    import graphveil.bench.table as module

    example = [line[4:] for line in module.__doc__.splitlines() if line.startswith("    ")]
    assert set(tomllib.loads("\n".join(example))) >= {"title", "run", "data"}
    assert len(read(described_as("\n".join(example))).lines) == 4
