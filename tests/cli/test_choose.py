"""``graphveil choose``, and the method ``auto`` of ``plan`` and ``train``."""

import json
import shlex

import pytest
from click.testing import CliRunner

from graphveil import cli
from graphveil.cli import _choosing
from graphveil.methods import METHODS
from graphveil.methods.choosing import SHOWN_TO, UNITS

SIZES = "--features 5 --classes 3"


def test_the_options_take_the_words_of_the_library():
    options = {option.name: option for option in cli.cli.get_command(None, "choose").params}
    assert tuple(options["unit"].type.choices) == UNITS
    assert tuple(options["shown_to"].type.choices) == tuple(SHOWN_TO)
    assert set(_choosing.CONFIG) == {"unit", "shown_to"}


def test_the_json_of_a_choice(answer):
    choice = answer("choose --data cora --epsilon 1 --shown-to themselves")
    assert set(choice) == {
        "method", "why", "unit", "shown_to", "mode", "settings", "plan", "others", "command",
    }  # fmt: skip
    assert (choice["method"], choice["mode"], choice["unit"]) == ("dp-mlp", "visible", "node")
    assert choice["plan"] == answer("plan dp-mlp --data cora --epsilon 1")
    assert set(choice["others"]) | {"dp-mlp"} == {k for k, v in METHODS.items() if v.private}
    assert choice["command"] == "graphveil train dp-mlp --data cora --epsilon 1 --out runs/dp-mlp"


def test_a_person_reads_method_reasons_plan_and_the_next_command(run):
    code, out, err = run("choose --data social --epsilon 1")
    assert (code, err) == (0, "")
    words = " ".join(out.split())
    for text in ("Take late-graph", "why", "visible: a prediction", "noise multiplier", "not gap"):
        assert text in words
    assert "graphveil train late-graph --data social --epsilon 1 --out runs/late-graph" in words


def test_sizes_stand_for_data_that_is_not_named(answer):
    nodes = answer(f"choose --nodes 400 {SIZES} --epsilon 8 --train 100")
    assert nodes["plan"]["facts"]["num_train"] == 100
    assert "--data PATH" in nodes["command"]
    graphs = answer(f"choose --graphs 400 {SIZES} --epsilon 8")
    assert (graphs["method"], graphs["unit"]) == ("graph-dpsgd", "graph")
    edges = answer(f"choose --nodes 400 {SIZES} --epsilon 8 --unit edge --directed")
    assert edges["plan"]["unit"] == "edge-directed"
    assert "--directed --set unit=edge" in edges["command"]


def test_the_next_command_says_what_was_asked(answer, tmp_path):
    """It runs as it is printed, up to the place of the run."""
    asked = "--epsilon 8 --delta 1e-06 --fractions 0.5,0.1,0.4 --train-share 0.5"
    command = answer(f"choose --data social {asked}")["command"]
    words = shlex.split(command)
    assert words[:3] == ["graphveil", "train", "late-graph"]
    context = cli.cli.get_command(None, "train").make_context("train", words[2:])
    assert context.params["fractions"] == (0.5, 0.1, 0.4)
    assert (context.params["delta"], context.params["train_share"]) == (1e-6, 0.5)


def test_inductive_splits_predict_on_another_graph(answer, refused):
    line = "choose --data cora-ml --epsilon 8 --split inductive"
    choice = answer(line)
    assert (choice["shown_to"], choice["mode"]) == ("other-graph", "disjoint")
    assert "--shown-to other-graph" in refused(f"{line} --shown-to themselves")


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("choose", "--epsilon"),
        ("choose --epsilon 1", "Give --nodes, --features, --classes"),
        ("choose --data cora", "Missing option '--epsilon'"),
        ("choose --data cora --json", "Missing option '--epsilon'"),
        ("choose --data nowhere/graph.npz --epsilon 1", "touches no data"),
        ("choose --data cora --epsilon -1", "'epsilon'"),
        ("choose --data cora --epsilon 1 --delta 0.5", "delta"),
        ("choose --data cora --epsilon 1 --unit graph", "'node' or 'edge'"),
        ("choose --data cora --epsilon 1 --shown-to everybody", "--shown-to"),
        (f"choose --nodes 4 --graphs 4 {SIZES} --epsilon 1", "not both"),
        (f"choose --nodes 400 {SIZES} --epsilon 1 --unit edge", "--undirected"),
        ("plan auto --data cora", "Missing option '--epsilon'"),
        ("plan auto --data cora --epsilon 1 --set unit=edge", "'--unit' in place of"),
        ("plan auto --data cora --epsilon 1 --set conv=gat", "no setting 'conv'"),
        ("plan gap --data cora --epsilon 1 --unit edge", "goes with the method 'auto'"),
        ("train dp-mlp --data social --epsilon 1 --shown-to owner --out x", "method 'auto'"),
        ("train auto --data social --out x", "Missing option '--epsilon'"),
        ("train auto --epsilon 1 --out x", "Missing option '--data'"),
        ("train auto --recipe zhang-em1 --data cora --out x", "leave out the method"),
        ("compare --methods auto --data social --epsilon 1", "'auto'"),
    ],
)
def test_bad_questions_are_one_line(line, text, refused):
    code = 3 if "--delta 0.5" in line else 2
    assert text in refused(line, code)


def test_plan_auto_is_the_plan_of_the_chosen_method(answer):
    plan = answer("plan auto --data cora --epsilon 1 --shown-to anybody --set steps=10")
    assert "(anybody)" in plan.pop("why")[0]
    assert plan == answer("plan dp-mlp --data cora --epsilon 1 --set steps=10")
    graphs = answer(f"plan auto --graphs 400 {SIZES} --epsilon 8 --unit graph")
    assert graphs["method"] == "graph-dpsgd"


# --- questions on a terminal ----------------------------------------------------------------------


@pytest.fixture
def converse(monkeypatch):
    """Run ``choose`` before somebody who answers."""
    monkeypatch.setattr("graphveil.cli.choose._has_terminal", lambda: True)

    def call(line, answers):
        return CliRunner().invoke(cli.cli, ["choose", *line.split()], input="\n".join(answers))

    return call


def test_everything_is_asked_for(converse):
    answers = ["node", "400", "5", "3", "", "edge", "y", "anybody", "2", ""]
    talk = converse("", answers)
    assert talk.exit_code == 0
    assert talk.stdout.startswith("Take gap")
    assert "one directed edge" in talk.stdout
    assert "400 nodes, 300 to train on, 5 features, 3 classes" in " ".join(talk.stdout.split())
    assert "Who sees predictions" in talk.stderr
    assert "Who sees predictions" not in talk.stdout


def test_only_what_is_missing_is_asked_for(converse):
    talk = converse("--data cora --unit node --epsilon 1", ["nobody", "themselves", ""])
    assert talk.exit_code == 0
    assert talk.stdout.startswith("Take dp-mlp")
    assert talk.stderr.count("Who sees predictions") == 2  # a wrong word is asked for again
    assert "epsilon" not in talk.stderr
    whole = converse("--data synthetic-er --shown-to owner", ["1", ""])
    assert whole.stdout.startswith("Take graph-dpsgd")
    assert "What is protected" not in whole.stderr
    graphs = converse(f"{SIZES} --shown-to owner --epsilon 1", ["graph", "400", "200", ""])
    assert "400 graphs, 200 to train on" in " ".join(graphs.stdout.split())


def test_programs_are_asked_nothing(converse):
    talk = converse("--data cora --json --epsilon 1", [])
    assert json.loads(talk.stdout)["shown_to"] == "owner"
    assert talk.stderr == ""


# --- training -------------------------------------------------------------------------------------

QUICK = "--epsilon 8 --set steps=3"


def test_train_auto_is_a_run_of_the_chosen_method(run, answer, graph, tmp_path):
    out = tmp_path / "run"
    code, _, err = run(f"train auto --data {graph} {QUICK} --out {out}")
    assert code == 0
    assert err.startswith("graphveil: auto takes late-graph. ")
    assert err.count("\n") == 1
    assert json.loads((out / "settings.json").read_text())["method"] == "late-graph"
    classes = tmp_path / "classes.csv"
    answer(f"predict {out} --data {graph} --out {classes}")
    assert len(classes.read_text().splitlines()) == 61


def test_train_auto_by_a_file(answer, graph, tmp_path):
    config = tmp_path / "run.toml"
    config.write_text(
        f'method = "auto"\ndata = "{graph}"\nepsilon = 8\nunit = "edge"\nshown_to = "anybody"\n'
        "directed = false\n[settings]\nopen_steps = 2\nhead_steps = 2\n"
    )
    trained = answer(f"train --config {config} --out {tmp_path / 'run'}")
    assert trained["method"] == "gap"
    assert "The unit is an edge" in trained["why"][0]
    settings = json.loads((tmp_path / "run" / "settings.json").read_text())["settings"]
    assert settings["unit"] == "edge"


def test_a_named_method_has_no_reasons(answer, graph, tmp_path):
    assert "why" not in answer(f"train dp-mlp --data {graph} {QUICK} --out {tmp_path / 'run'}")


def test_own_data_is_refused_in_a_line_without_the_whole_catalog(refused):
    message = refused("choose --data nowhere/graph.npz --epsilon 1")
    assert "graphveil data list" in message
    assert "--nodes" in message
    assert "synthetic-citations" not in message
    assert "plan" not in message
