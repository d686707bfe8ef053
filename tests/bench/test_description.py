"""Descriptions in TOML: each combination is a line with its figures; bad files get one line."""

import math
import tomllib

import pytest

from graphveil._errors import InvalidInputError
from graphveil.bench import description as module
from graphveil.bench import names, read, select
from graphveil.bench.places import find_places, make_source
from graphveil.methods.recipes import Recipe

HEAD = 'title = "t"\ndata = ["social"]\n'
RUN = '[[run]]\nmethod = "mlp"\nsettings = { steps = 2 }\n'
PRIVATE = "[[run]]\nmethod = 'dp-mlp'\nvary = { epsilon = [1, 2, 8] }\n"


def test_every_combination_of_what_varies_is_a_line(described_as):
    described = read(
        described_as(
            HEAD + "delta = 1e-4\n[[run]]\nname = 'n'\nmethod = 'graph-split'\n"
            "settings = { steps = 3, splits = 5 }\n"
            "vary = { epsilon = [1, 8], train_share = [0.5, 1.0], splits = [2, 4] }\n"
            "[[run]]\nmethod = 'mlp'\npublished = { social = 0.9 }\n"
        )
    )
    asked = [line.request for line in described.lines]
    assert len(asked) == 9
    assert {(a.epsilon, a.train_share, a.settings["splits"]) for a in asked[:8]} == {
        (e, t, s) for e in (1.0, 8.0) for t in (0.5, 1.0) for s in (2, 4)
    }
    assert all(a.delta == 1e-4 and a.settings["steps"] == 3 for a in asked[:8])
    assert asked[0].varied == {"train_share": 0.5, "splits": 2}
    assert described.lines[0].setting == "epsilon=1, train_share=0.5, splits=2"
    assert asked[8].epsilon is None
    assert asked[8].delta is None
    assert described.lines[8].figure("accuracy", "social") == (0.9, None)


def test_lists_of_figures_stand_with_the_values_they_are_about(described_as):
    text = 'metrics = ["accuracy", "roc_auc"]\n' + PRIVATE
    text += "published = { social = [0.1, nan, 0.3] }\ndeviation = { social = [0.01, nan, nan] }\n"
    text += "at_least = { social = [0.05, nan, nan] }\n"
    text += "[run.published_of]\nroc_auc = { social = [nan, 0.6, 0.7] }\n"
    described = read(described_as(HEAD + text))
    first, second, third = described.lines
    assert first.figure("accuracy", "social") == (0.1, 0.01)
    assert second.figure("accuracy", "social") == (None, None)
    assert third.figure("accuracy", "social") == (0.3, None)
    assert second.figure("roc_auc", "social") == (0.6, None)
    assert [line.at_least for line in described.lines] == [{"social": 0.05}, {}, {}]
    assert [(line.setting, metric, value) for line, _, metric, value, _ in described.figures()] == [
        ("epsilon=1", "accuracy", 0.1),
        ("epsilon=2", "roc_auc", 0.6),
        ("epsilon=8", "accuracy", 0.3),
        ("epsilon=8", "roc_auc", 0.7),
    ]


def test_a_recipe_gives_method_settings_and_epsilon(described_as, monkeypatch):
    recipe = Recipe(
        name="r", title="t", source="s", method="dp-mlp", epsilon=3, delta=1e-3,
        settings={"steps": 7, "num_layers": 1},
    )  # fmt: skip
    monkeypatch.setattr("graphveil.methods.recipes.read", lambda name: recipe)
    text = HEAD + "delta = 1e-5\n[[run]]\nname = 'as published'\nrecipe = 'r'\n"
    (line,) = read(described_as(text + "settings = { steps = 9 }\n")).lines
    assert (line.recipe, line.request.method, line.request.epsilon) == ("r", "dp-mlp", 3.0)
    assert line.request.delta == 1e-3
    assert line.request.settings == {"steps": 9, "num_layers": 1}
    (line,) = read(described_as(text + "epsilon = 8\ndelta = 1e-4\n")).lines
    assert (line.request.epsilon, line.request.delta) == (8.0, 1e-4)
    with pytest.raises(InvalidInputError, match="not both"):
        read(described_as(text + "method = 'dp-mlp'\n"))


@pytest.mark.parametrize(
    ("text", "words"),
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
        ("title = 't'\ndata = ['a', 'a']\n" + RUN, "every data set once"),
        (HEAD + "colour = 1\n" + RUN, "unknown key 'colour'"),
        (HEAD + "metric = 'accuracy'\n" + RUN, "unknown key 'metric'"),
        (HEAD + "seeds = true\n" + RUN, "'seeds' must be a whole number. Got True"),
        (HEAD + "seeds = 0\n" + RUN, "seeds"),
        (HEAD + "metrics = ['luck']\n" + RUN, "luck"),
        (HEAD + "metrics = [1]\n" + RUN, "'metrics' must be a list of words"),
        (HEAD + "metrics = ['stay_hard']\n" + RUN, "stay_hard"),
        (HEAD + "shape = 'cube'\n" + RUN, "cube"),
        (HEAD + "shape = 'lines'\n" + RUN, "must go over something"),
        (HEAD + "shape = 'hard-cases'\nreference = 'gnn'\n" + RUN, "'reference' must name a run"),
        (HEAD + "fractions = [0.5, 0.2]\n" + RUN, "three numbers that sum to 1"),
        (HEAD + "stand_in = { cora = 'social' }\n" + RUN, "'stand_in' must have"),
        (HEAD + "run = [1]\n", "write it as a table"),
        (HEAD + "[[run]]\nmethod = 'nobody'\n", "nobody"),
        (HEAD + "[[run]]\nrecipe = 'nobody'\n", "run.. 1: A recipe must be a name"),
        (HEAD + "[[run]]\nsettings = {}\n", "must have the key 'method'"),
        (HEAD + "[[run]]\nmethod = 'dp-mlp'\n", "must have an 'epsilon'"),
        (HEAD + "[[run]]\nmethod = 'mlp'\nepsilon = 1\n", "trains in the open"),
        (HEAD + "[[run]]\nmethod = 'dp-mlp'\nepsilon = -1\n", "run.. 1: The 'epsilon'"),
        (HEAD + "[[run]]\nmethod = 'mlp'\nsettings = { stepz = 1 }\n", "no setting 'stepz'"),
        (HEAD + RUN + "vary = { steps = 3 }\n", "must have a list"),
        (HEAD + RUN + "vary = { train_share = [0.0] }\n", "train_share"),
        (HEAD + RUN + "published = { 'b' = 0.5 }\n", "not in 'data'"),
        (HEAD + RUN + "published = { social = 55 }\n", "published.social"),
        (HEAD + RUN + "published = { social = true }\n", "published.social"),
        (HEAD + RUN + "published_of = { f1 = { social = 0.5 } }\n", "names in 'metrics'"),
        (HEAD + PRIVATE + "published = { social = 0.5 }\n", "each of the 3 values"),
        (HEAD + PRIVATE + "published = { social = [0.5, 0.6] }\n", "each of the 3 values"),
        (
            HEAD + RUN + "vary = { steps = [1, 2], num_layers = [1, 2] }\n"
            "published = { social = [0.1, 0.2, 0.3, 0.4] }\n",
            "nobody could say which",
        ),
    ],
)  # fmt: skip
def test_a_bad_description_gets_one_line(described_as, text, words):
    with pytest.raises(InvalidInputError, match=words) as error:
        read(described_as(text))
    assert "\n" not in str(error.value)


def test_an_unknown_name_is_told_the_nearest_ones(tmp_path):
    name = names()[0]
    with pytest.raises(InvalidInputError, match=f"did you mean .*{name}"):
        read(f"{name}x")
    with pytest.raises(InvalidInputError, match=r"'graphveil bench list' lists.*instead\.$"):
        read("?")
    with pytest.raises(InvalidInputError, match="Got a directory"):
        read(tmp_path)


def test_names_go_by_paper_tables_first_by_number():
    order = ["zhang-figure10", "daigavane-figure1", "zhang-figure2", "zhang-table1", "other"]
    assert sorted(order, key=module._order) == [
        "daigavane-figure1", "zhang-table1", "zhang-figure2", "zhang-figure10", "other",
    ]  # fmt: skip


def test_a_part_keeps_the_reference(described_as):
    text = HEAD + "shape = 'hard-cases'\nreference = 'mlp'\n" + RUN + PRIVATE
    described = read(described_as(text + "[[run]]\nmethod = 'gnn'\n"))
    assert [line.name for line in select(described, only=["gnn"]).lines] == ["mlp", "gnn"]
    with pytest.raises(InvalidInputError, match="Nothing is left"):
        select(described, only=["xyz"])
    with pytest.raises(InvalidInputError, match="Nothing is left"):
        select(described, data=["cora"])


def test_a_part_may_be_named_by_its_stand_in(described_as):
    text = 'title = "t"\ndata = ["cora", "reddit"]\nstand_in = { reddit = "social" }\n' + RUN
    assert select(read(described_as(text)), data=["social"]).data == ("reddit",)


# --- the small version ----------------------------------------------------------------------------

QUICK = """
title = "t"
data = ["cora", "reddit"]
stand_in = { reddit = "social" }
[quick]
data = ["social"]
only = ["private"]
settings = { steps = 1, splits = 3 }
vary = { epsilon = [2, 5] }
[[run]]
name = "private"
method = "dp-mlp"
settings = { steps = 9 }
vary = { epsilon = [1, 2, 8] }
published = { cora = [0.1, 0.2, 0.3], reddit = [0.4, 0.5, 0.6] }
[[run]]
name = "open"
method = "mlp"
"""


def test_the_small_version_is_what_its_part_says(described_as):
    small = read(described_as(QUICK), quick=True)
    assert (small.data, small.seeds, small.quick) == (("reddit",), 1, True)
    assert [line.request.epsilon for line in small.lines] == [2.0, 5.0]
    assert all(line.request.settings == {"steps": 1} for line in small.lines)
    assert "1 seed, some of the data and runs, runs with steps=1, splits=3. Its" in small.shortened
    assert [line.figure("accuracy", "reddit")[0] for line in small.lines] == [0.5, None]
    (place,) = find_places(small, None)
    assert (place.data, place.runs_on, place.stand_in_for) == ("reddit", "social", "reddit")


def test_without_such_a_part_it_is_one_seed_one_graph_two_epsilons(described_as):
    text = 'title = "t"\ndata = ["nowhere.npz", "social"]\nseeds = 5\n' + PRIVATE
    small = read(described_as(text + "published = { social = [0.1, 0.2, 0.3] }\n"), quick=True)
    assert [line.request.epsilon for line in small.lines] == [1.0, 2.0]
    assert [line.figure("accuracy", "social")[0] for line in small.lines] == [0.1, 0.2]
    assert small.seeds == 1
    assert [place.data for place in find_places(small, None)] == ["social"]


@pytest.mark.parametrize(
    ("part", "words"),
    [
        ("data = ['pubmed']", "must name data of 'data'"),
        ("only = ['nobody']", "must leave a run"),
        ("speed = 1", "unknown key 'speed'"),
        ("vary = { epsilon = [] }", "must have a list"),
    ],
)
def test_a_bad_small_part_gets_one_line(described_as, part, words):
    path = described_as(f"{HEAD}[quick]\n{part}\n{PRIVATE}")
    with pytest.raises(InvalidInputError, match=words):
        read(path, quick=True)
    assert read(path).seeds == 3


# --- stand-ins ------------------------------------------------------------------------------------


def test_a_stand_in_is_never_called_by_the_data_s_own_name(described_as, tmp_path):
    text = 'title = "t"\ndata = ["nowhere.npz", "gone.npz"]\nsplit = "given"\nmin_class = 50\n'
    described = read(described_as(text + "stand_in = { 'nowhere.npz' = 'social' }\n" + RUN))
    first, second = find_places(described, str(tmp_path))
    assert first.label == "social (stand-in for nowhere.npz)"
    assert "nowhere.npz" in first.get
    assert (second.runs_on, second.stand_in_for, second.label) == (None, None, "gone.npz")
    source = make_source(described, first, None, 4)
    assert (source.data, source.split, source.min_class, source.seed) == ("social", None, None, 4)


def test_data_on_disk_needs_no_stand_in(described_as, graph):
    text = (
        f'title = "t"\ndata = ["{graph}"]\nmin_class = 2\nstand_in = {{ "{graph}" = "social" }}\n'
    )
    described = read(described_as(text + RUN))
    (place,) = find_places(described, None)
    assert (place.runs_on, place.get) == (str(graph), "")
    assert make_source(described, place, None, 0).min_class == 2


def test_the_docstring_is_a_description(described_as):
    example = [line[4:] for line in module.__doc__.splitlines() if line.startswith("    ")]
    assert set(tomllib.loads("\n".join(example))) >= {"title", "run", "data"}
    described = read(described_as("\n".join(example)))
    assert len(described.lines) == 4
    assert not any(math.isnan(value) for *_, value, _ in described.figures())
