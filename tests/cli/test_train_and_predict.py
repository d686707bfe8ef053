"""Training and predicting from the command line; every bad input is one line and writes nothing."""

import json
import os
import signal
import stat
import subprocess
import sys
import time

import numpy as np
import pytest

from graphveil.cli._settings import compared_methods, describe_methods
from graphveil.grads.step import PrivateStep
from graphveil.methods import METHODS
from graphveil.runs import FILES, LOSSES

# Whole batches: their noise is found ten times faster than that of sampled ones.
QUICK = "--epsilon 8 --set steps=3 --set sample_rate=1"


# --- data and plan --------------------------------------------------------------------------------


def test_the_catalog_is_listed_and_shown(answer, run):
    listed = answer("data list")["data"]
    assert {"social", "pubmed", "ogbn-mag"} <= {entry["name"] for entry in listed}
    shown = answer("data show pubmed")
    assert (shown["num_nodes"], shown["unit"]) == (19717, "a paper")
    assert all(shown[key] for key in ("licence", "citation", "url"))
    code, out, _ = run("data show social")
    assert code == 0
    assert "Synthetic" in out


def test_ones_own_files_are_counted(answer, graph):
    shown = answer(f"data show {graph}")
    assert (shown["num_nodes"], shown["num_features"], shown["num_classes"]) == (60, 5, 3)
    assert shown["train"] + shown["val"] + shown["test"] == 60
    assert shown["edges"] == "as they are; direction not stated (--directed, --undirected)"
    assert answer(f"data show {graph} --undirected")["edges"] == "undirected"


def test_data_list_does_not_load_torch():
    code = (
        "import sys\nfrom graphveil.cli import main\n"
        "try:\n    main(['data', 'list'])\nfinally:\n    print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.rstrip().endswith("False")


def test_every_method_is_named_in_the_help():
    # What is there for papers' sake is compared where it is asked for.
    compared = {record: compared_methods(record) for record in ("node", "graph", "link")}
    assert {name for names in compared.values() for name in names} == set(METHODS) - {
        "graph-split",
        "open-gap",
        "open-dpar",
    }
    for record, names in compared.items():
        assert all(METHODS[name].record == record for name in names)
    assert compared["node"][-2:] == ["mlp", "gnn"]
    assert compared["graph"] == ["graph-dpsgd", "graph-gnn"]
    assert all(name in describe_methods() for name in METHODS)


def test_a_plan_says_what_it_costs_and_touches_no_data(answer, run):
    planned = answer("plan dp-gnn --data pubmed --epsilon 8 --set steps=20 --set sample_rate=1")
    assert planned["epsilon"] <= 8
    assert planned["facts"]["num_train"] == round(0.75 * 19717)
    assert planned["noise_multiplier"] > 0
    assert (planned["steps"], planned["removed"], planned["altered"]) == (20, 1, 1)
    assert planned["signal_to_noise"] > 0
    sizes = "--nodes 500 --features 9 --classes 2 --train 100"
    own = answer(f"plan dp-mlp {sizes} --epsilon 2 --set steps=20 --set sample_rate=1")
    assert own["facts"] == {
        "num_nodes": 500,
        "num_features": 9,
        "num_classes": 2,
        "num_train": 100,
        "directed": None,
        "record": "node",
        "task": "multiclass",
        "value_range": None,
        "target_features": None,
        "num_owners": None,
        "train_rows": None,
        "owner_rows": None,
    }
    assert answer("plan mlp --data cora")["epsilon"] == "inf"
    code, out, _ = run("plan dp-gnn --data pubmed --epsilon 8 --set steps=20 --set sample_rate=1")
    assert code == 0
    assert "signal to noise" in out


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("plan", ["METHOD"]),
        ("plan nobody --data cora", ["nobody", "dp-gnn"]),
        ("plan dp-gnn --epsilon 8", ["--nodes"]),
        ("plan dp-gnn --data cora", ["--epsilon"]),
        ("plan dp-gnn --data /some/path --epsilon 8", ["touches no data", "--nodes"]),
        ("plan dp-gnn --data facebook100:A --epsilon 8", ["vary", "--nodes"]),
        ("plan mlp --data cora --epsilon 8", ["no budget"]),
        ("plan dp-gnn --nodes 0 --features 9 --classes 2 --epsilon 8", ["num_nodes", "0"]),
        ("plan dp-gnn --data cora --epsilon nan", ["epsilon", "nan"]),
        ("plan dp-gnn --data cora --epsilon 8 --set steps", ["KEY=VALUE"]),
        ("plan dp-gnn --data cora --epsilon 8 --set steps=many", ["steps", "whole number"]),
        ("plan dp-gnn --data cora --epsilon 8 --set paper=1", ["paper", "true or false"]),
        ("plan dp-gnn --data cora --epsilon 8 --set learning_rate=nan", ["learning_rate"]),
        ("plan dp-gnn --data cora --epsilon 8 --set speed=9", ["speed", "sender_cap"]),
        ("plan dp-gnn --data cora --epsilon 8 --set seed=9", ["--seed"]),
        ("plan dp-gnn --data cora --epsilon 8 --config absent.toml", ["absent.toml"]),
    ],
)
def test_a_plan_that_makes_no_sense_is_one_line(refused, line, words):
    err = refused(line)
    assert all(word in err for word in words), err


def test_a_plan_for_ones_own_files_takes_stated_sizes_and_does_not_look(answer):
    sizes = "--nodes 1000 --features 5 --classes 3"
    found = answer(f"plan dp-gnn --data /some/path {sizes} --epsilon 8")
    assert found["facts"]["num_nodes"] == 1000


# --- train ----------------------------------------------------------------------------------------


def test_a_run_is_a_directory_with_model_certificate_and_metrics(answer, graph, tmp_path):
    out = tmp_path / "deep" / "run"
    result = answer(f"train dp-gnn --data {graph} {QUICK} --out {out}")
    assert 0 <= result["test_accuracy"] <= 1
    assert 0 < result["epsilon"] <= 8
    assert (result["delta"], result["claimed_epsilon"], result["void_because"]) == (0.01, None, [])
    assert (result["method"], result["out"], result["seed"]) == ("dp-gnn", str(out), 0)
    assert {path.name for path in out.iterdir()} == set(FILES)
    certificate = json.loads((out / "certificate.json").read_text())
    assert certificate["guarantee"]["epsilon"] == result["epsilon"]
    assert certificate["charges"][0]["event"]["count"] == 3
    settings = json.loads((out / "settings.json").read_text())
    assert settings["settings"]["steps"] == 3
    assert settings["data"]["split"] == "given"
    metrics = json.loads((out / "metrics.json").read_text())
    assert "outside the certificate" in metrics["note"]


OF_NODES = [name for name, kind in METHODS.items() if kind.record == "node"]


@pytest.mark.parametrize("method", [name for name in OF_NODES if name != "dp-gnn"])
def test_every_method_trains(answer, graph, tmp_path, method):
    budget = QUICK if METHODS[method].private else ""
    steps = "open_steps" if method == "open-gap" else "steps"
    line = f"train {method} --data {graph} {budget} --set {steps}=3 --out {tmp_path / 'run'}"
    result = answer(line)
    assert (result["epsilon"] == "inf") == (not budget)


def test_the_papers_recipe_shows_its_claim_and_no_epsilon(answer, graph, tmp_path):
    recipe = f"{QUICK} --set sample_rate=0.5 --set paper=true"
    result = answer(f"train dp-gnn --data {graph} {recipe} --out {tmp_path / 'run'}")
    assert result["claimed_epsilon"] == pytest.approx(8, rel=1e-2)
    assert result["epsilon"] == "inf"
    assert result["void_because"]


def test_inductive_training_never_sees_the_test_nodes(answer, graph, arrays, tmp_path):
    line = f"train dp-gnn --data {graph} {QUICK} --split inductive --out {tmp_path / 'run'}"
    answer(line)
    plan = json.loads((tmp_path / "run" / "plan.json").read_text())["plan"]
    assert plan["facts"]["num_nodes"] == 60 - arrays["test_mask"].sum()
    assert "disjoint" in (tmp_path / "run" / "certificate.txt").read_text()


def test_the_seed_draws_the_split_of_data_without_masks(answer, save, tmp_path):
    bare = save(train_mask=None, val_mask=None, test_mask=None)
    first = answer(f"train mlp --data {bare} --set steps=20 --seed 3 --out {tmp_path / 'a'}")
    again = answer(f"train mlp --data {bare} --set steps=20 --seed 3 --out {tmp_path / 'b'}")
    assert first["test_accuracy"] == again["test_accuracy"]


def test_a_config_file_says_it_all_and_the_command_line_wins(answer, graph, tmp_path):
    config = tmp_path / "run.toml"
    config.write_text(
        f'method = "dp-mlp"\ndata = "{graph}"\nepsilon = 2\nseed = 5\n'
        '[settings]\nsteps = 3\nsample_rate = 1\noptimizer = "sgd"\n'
    )
    result = answer(f"train --config {config} --epsilon 4 --set steps=2 --out {tmp_path / 'run'}")
    assert (result["method"], result["seed"]) == ("dp-mlp", 5)
    assert 2 < result["epsilon"] <= 4
    settings = json.loads((tmp_path / "run" / "settings.json").read_text())["settings"]
    assert (settings["steps"], settings["optimizer"], settings["epsilon"]) == (2, "sgd", 4.0)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("method = ", ["TOML"]),
        ('colour = "red"', ["colour", "epsilon"]),
        ('epsilon = "much"', ["epsilon", "much"]),
        ("settings = 3", ["settings"]),
        ("[settings]\nspeed = 3", ["speed"]),
    ],
)
def test_a_bad_config_is_one_line(refused, graph, tmp_path, text, words):
    (tmp_path / "run.toml").write_text(text)
    line = f"train dp-mlp --data {graph} --config {tmp_path / 'run.toml'} --out {tmp_path / 'run'}"
    err = refused(f"{line} --epsilon 8" if "epsilon" not in text else line)
    assert all(word in err for word in words), err


# What is wrong with the graph, and the words that say so. None leaves an array out.
BAD_GRAPHS = {
    "NaN features": ({"x": np.full((60, 5), np.nan, np.float32)}, ["'x'", "nan"]),
    "labels out of range": ({"y": np.full(60, 7)}, ["'y'", "7"]),
    "no labels": ({"y": None}, ["'y'"]),
    "masks overlap": ({"val_mask": np.ones(60, bool)}, ["disjoint"]),
    "edges to absent nodes": ({"edge_index": np.array([[0], [99]])}, ["0 -> 99"]),
    "empty training set": ({"train_mask": np.zeros(60, bool)}, ["empty training set"]),
    "one class only": ({"y": np.zeros(60, np.int64)}, ["only class 0"]),
}


@pytest.mark.parametrize("case", BAD_GRAPHS)
def test_a_bad_graph_is_one_line_and_leaves_nothing(refused, save, tmp_path, case):
    changed, words = BAD_GRAPHS[case]
    err = refused(f"train dp-gnn --data {save(**changed)} {QUICK} --out {tmp_path / 'run'}")
    assert all(word in err for word in words), err
    assert not (tmp_path / "run").exists()


def test_missing_masks_are_refused_where_they_are_asked_for(refused, save, tmp_path):
    bare = save(train_mask=None, val_mask=None, test_mask=None)
    err = refused(f"train dp-gnn --data {bare} {QUICK} --split given --out {tmp_path / 'run'}")
    assert "'train_mask'" in err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("how", ["", "--split given", "--split inductive"])
def test_some_masks_without_the_others_are_never_drawn_anew(refused, save, tmp_path, how):
    some = save(val_mask=None)
    err = refused(f"train dp-gnn --data {some} {QUICK} {how} --out {tmp_path / 'run'}")
    assert "'val_mask'" in err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("line", "words", "code"),
    [
        ("train dp-gnn --data GRAPH --epsilon 0 --out OUT", ["'epsilon'", "0.0"], 2),
        ("train dp-gnn --data GRAPH --epsilon -1 --out OUT", ["'epsilon'", "-1.0"], 2),
        ("train dp-gnn --data GRAPH --epsilon nan --out OUT", ["'epsilon'", "nan"], 2),
        ("train dp-gnn --data GRAPH --epsilon inf --out OUT", ["'epsilon'", "inf"], 2),
        ("train dp-gnn --data GRAPH --epsilon 8 --delta nan --out OUT", ["'delta'", "nan"], 2),
        ("train dp-gnn --data social --epsilon -1 --out OUT", ["'epsilon'", "-1.0"], 2),
        ("train dp-gnn --data GRAPH --epsilon 8 --delta 0.5 --out OUT", ["delta", "1/n"], 3),
        ("train dp-gnn --data social --epsilon 8 --delta 1e-4 --out OUT", ["delta", "1/n"], 3),
        ("train dp-gnn --data GRAPH --epsilon 8 --delta 0 --out OUT", ["'delta'"], 2),
        ("train dp-gnn --data GRAPH --out OUT", ["--epsilon"], 2),
        ("train mlp --data GRAPH --epsilon 8 --out OUT", ["no budget", "--epsilon"], 2),
        ("train mlp --data GRAPH --delta 0.001 --out OUT", ["no budget", "--delta"], 2),
        ("train nobody --data GRAPH --epsilon 8 --out OUT", ["nobody", "dp-gnn"], 2),
        ("train dp-gnn --data nowhere --epsilon 8 --out OUT", ["nowhere", "social"], 2),
        ("train dp-gnn --data cora --root /no/root --epsilon 8 --out OUT", ["/no/root"], 2),
        ("train dp-gnn --data GRAPH --epsilon 8 --out OUT --set speed=9", ["'speed'"], 2),
        ("train dp-gnn --data GRAPH --epsilon 8 --out OUT --set clipping=odd", ["clipping"], 2),
        ("train late-graph --data GRAPH --epsilon 8 --out OUT --set teleport=7", ["teleport"], 2),
        ("train dp-gnn --data GRAPH --epsilon 8 --out OUT --seed -1", ["'seed'", "-1"], 2),
        ("train dp-gnn --data GRAPH --epsilon 8 --out GRAPH", ["is a file"], 2),
        ("train dp-gnn --data GRAPH --epsilon 8 --out GRAPH/run", ["cannot"], 2),
        ("train dp-gnn --data GRAPH --epsilon 8", ["--out"], 2),
        ("train dp-gnn --epsilon 8 --out OUT", ["--data"], 2),
        ("train dp-gnn --data GRAPH --epsilon 8 --out OUT --resume --force", ["resume"], 2),
    ],
)
def test_a_bad_request_is_one_line_and_leaves_nothing(refused, graph, tmp_path, line, words, code):
    before = graph.read_bytes()
    out = tmp_path / "run"
    err = refused(line.replace("GRAPH", str(graph)).replace("OUT", str(out)), code)
    assert all(word in err for word in words), err
    assert not out.exists()
    assert graph.read_bytes() == before


# --- what is there is not written over ------------------------------------------------------------


def contents(directory):
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_a_finished_run_is_replaced_with_force_only(refused, answer, graph, tmp_path):
    out = tmp_path / "run"
    answer(f"train mlp --data {graph} --set steps=3 --out {out}")
    before = contents(out)
    assert "--force" in refused(f"train dp-mlp --data {graph} {QUICK} --out {out}")
    assert "--force" in refused(f"train dp-mlp --data {graph} {QUICK} --out {out} --resume")
    refused(f"train dp-mlp --data {graph} --epsilon 0 --out {out} --force")
    refused(f"train dp-mlp --data {graph} {QUICK} --set clipping=odd --out {out} --force")
    assert contents(out) == before
    answer(f"train dp-mlp --data {graph} {QUICK} --out {out} --force")
    assert json.loads((out / "settings.json").read_text())["method"] == "dp-mlp"
    assert {path.name for path in tmp_path.iterdir()} == {"graph.npz", "run"}


def test_a_directory_with_other_things_is_refused_even_with_force(refused, graph, tmp_path):
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "thesis.tex").write_text("all of it")
    line = f"train dp-mlp --data {graph} {QUICK} --out {tmp_path / 'precious'}"
    assert "thesis.tex" in refused(line)
    assert "thesis.tex" in refused(f"{line} --force")
    assert (tmp_path / "precious" / "thesis.tex").read_text() == "all of it"


@pytest.mark.skipif(os.name != "posix", reason="needs SIGKILL")
def test_a_killed_run_goes_on_and_counts_every_step(refused, answer, graph, tmp_path):
    out = tmp_path / "run"
    command = (
        f"train dp-gnn --data {graph} --epsilon 8 --set steps=300 --set sample_rate=1 --out {out}"
    )
    process = subprocess.Popen([sys.executable, "-m", "graphveil", *command.split()])
    steps = out / "checkpoint" / "weights" / "steps"
    deadline = time.monotonic() + 60
    while not (steps.exists() and steps.stat().st_size > 12):
        assert process.poll() is None, "it ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    process.wait()
    begun = steps.stat().st_size
    assert begun < 300
    assert not (out / "certificate.json").exists()

    assert "--resume" in refused(command)
    assert "learning_rate" in refused(f"{command} --resume --set learning_rate=0.3")
    assert "seed" in refused(f"{command} --resume --seed 1")
    assert "There is no finished run" in refused(f"predict {out} --data {graph}")
    result = answer(f"{command} --resume")
    assert {path.name for path in out.iterdir()} == set(FILES)
    charge = json.loads((out / "certificate.json").read_text())["charges"][0]["event"]
    assert charge["count"] == 300
    assert result["epsilon"] <= 8


@pytest.mark.parametrize("method", ["dp-gnn", "late-graph", "gap", "dpar", "dp-mlp", "mlp", "gnn"])
def test_losses_are_written_where_they_are_asked_for(run, refused, graph, tmp_path, method):
    settings = "--set steps=3" if method in ("mlp", "gnn") else QUICK
    line = f"train {method} --data {graph} {settings}"
    assert run(f"{line} --out {tmp_path / 'without'}")[0] == 0
    assert not (tmp_path / "without" / LOSSES).exists()
    out = tmp_path / "with"
    code, shown, _ = run(f"{line} --out {out} --private-losses")
    assert code == 0
    assert LOSSES in shown
    head, *losses = map(json.loads, (out / LOSSES).read_text().splitlines())
    assert "no certificate" in head["private"]
    assert len(losses) >= 3
    assert all(0 < each["loss"] < 10 for each in losses)
    for name in FILES:  # nothing else repeats them
        assert str(losses[0]["loss"]) not in (out / name).read_bytes().decode(errors="replace")
    assert "is finished" in refused(line + f" --out {out}")  # it is still a run
    assert run(f"predict {out} --data {graph}")[0] == 0
    assert run(f"{line} --out {out} --force")[0] == 0
    assert not (out / LOSSES).exists()


def test_losses_of_a_run_that_goes_on_stand_below_those_before(run, graph, tmp_path, monkeypatch):
    line = f"train dp-mlp --data {graph} --epsilon 8 --set steps=30 --set sample_rate=1"
    line += f" --out {tmp_path / 'run'} --private-losses"
    taken = PrivateStep.__call__

    def stopped(step):
        taken(step)
        if step.taken == 13:
            os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patched:
        patched.setattr(PrivateStep, "__call__", stopped)
        assert run(line)[0] == 130
    assert run(f"{line} --resume")[0] == 0
    _, *losses = (tmp_path / "run" / LOSSES).read_text().splitlines()
    assert len(losses) == 30
    assert all(set(json.loads(each)) == {"loss"} for each in losses)


def test_a_large_delta_is_pointed_at(run, graph, tmp_path):
    _, out, _ = run(f"train dp-mlp --data {graph} {QUICK} --out {tmp_path / 'run'}")
    assert "delta 0.01 is large" in " ".join(out.split())
    _, out, _ = run(f"plan dp-mlp --data pubmed {QUICK}")
    assert "is large" not in out


def test_nothing_is_said_of_an_accuracy_that_was_not_measured(run, save, arrays, tmp_path):
    nobody = arrays["y"].copy()
    nobody[arrays["test_mask"]] = -1
    graph = save(y=nobody)
    _, out, _ = run(f"train mlp --data {graph} --set steps=2 --out {tmp_path / 'run'}")
    assert "no labelled record" in out
    assert "The accuracy was" not in out


def test_what_is_no_run_is_not_called_one(refused, tmp_path):
    (tmp_path / "notes.txt").write_text("nothing")
    for line in (f"report {tmp_path} --out {tmp_path / 'page.html'}", f"predict {tmp_path}"):
        assert "is not a run" in refused(f"{line} --data social" if "predict" in line else line)


def test_other_data_cannot_finish_a_run(refused, save, arrays, tmp_path, monkeypatch, run):
    out, graph = tmp_path / "run", save()
    line = f"train dp-mlp --data {graph} {QUICK} --out {out}"
    with monkeypatch.context() as patched:
        patched.setattr("graphveil.runs.training.measure", lambda *_: os.kill(os.getpid(), 2))
        assert run(line)[0] == 130
    other = save("other.npz", x=arrays["x"][::-1].copy())
    err = refused(f"train dp-mlp --data {other} {QUICK} --out {out} --resume")
    assert "other data" in err


# --- predict --------------------------------------------------------------------------------------


@pytest.fixture
def trained(answer, graph, tmp_path):
    answer(f"train late-graph --data {graph} {QUICK} --out {tmp_path / 'run'}")
    return tmp_path / "run"


def test_predictions_are_a_table_of_classes(answer, run, trained, graph, tmp_path):
    out = tmp_path / "classes.csv"
    result = answer(f"predict {trained} --data {graph} --out {out}")
    assert (result["nodes"], result["mode"], result["out"]) == (60, "visible", str(out))
    assert "visible" in result["seen_by"]
    lines = out.read_text().splitlines()
    assert lines[0] == "id,class,probability,probability_0,probability_1,probability_2"
    assert len(lines) == 61
    code, printed, err = run(f"predict {trained} --data {graph}")
    assert code == 0
    assert printed.splitlines() == lines
    assert "visible" in err
    inside = answer(f"predict {trained} --data {graph}")["predictions"]
    assert inside[0]["id"] == "0"


@pytest.mark.parametrize(
    "mode, of, promise",
    [
        ("", "of the weights", "nothing is promised to the nodes whose rows were read"),
        ("--mode disjoint", "of the weights", "it is for whoever may see those rows"),
        (
            "--mode noisy --epsilon 1",
            "of weights and noisy predictions",
            "each prediction is for its own node only",
        ),
    ],
)
def test_epsilon_is_not_printed_over_what_it_does_not_cover(
    run, trained, graph, tmp_path, mode, of, promise
):
    out = tmp_path / "classes.csv"
    code, printed, _ = run(f"predict {trained} --data {graph} --out {out} {mode}")
    assert code == 0
    (line,) = (each for each in printed.splitlines() if each.startswith("epsilon"))
    assert line.startswith(f"epsilon {of} ")
    assert promise in " ".join(printed.split())
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    code, _, err = run(f"predict {trained} --data {graph} {mode}")
    assert (code, promise in err) == (0, True)


def test_predictions_that_a_guarantee_covers_are_no_private_file(run, answer, save, tmp_path):
    data, out = save(directed=False), tmp_path / "classes.csv"
    answer(f"train gap --data {data} --epsilon 8 --set unit=edge --out {tmp_path / 'run'}")
    code, printed, _ = run(f"predict {tmp_path / 'run'} --data {data} --out {out}")
    assert (code, "this epsilon covers it" in printed) == (0, True)
    assert "one undirected edge" in " ".join(printed.split())
    assert stat.S_IMODE(out.stat().st_mode) & 0o044


def test_a_noisy_prediction_needs_an_epsilon(refused, trained, graph):
    assert "give --epsilon" in refused(f"predict {trained} --data {graph} --mode noisy")


def test_ids_and_class_names_are_the_users_own(answer, tmp_path):
    people = tmp_path / "people"
    people.mkdir()
    rows = [f"p{n},{'red' if n % 2 else 'blue'},{n % 2},{n}" for n in range(20)]
    (people / "nodes.csv").write_text("\n".join(["id,label,a,b", *rows]) + "\n")
    (people / "edges.csv").write_text("source,target\np0,p2\np1,p3\n")
    answer(f"train dp-mlp --data {people} {QUICK} --classes public --out {tmp_path / 'run'}")
    found = answer(f"predict {tmp_path / 'run'} --data {people}")["predictions"]
    assert [row["id"] for row in found] == [f"p{n}" for n in range(20)]
    assert {row["name"] for row in found} <= {"red", "blue"}
    assert all(["blue", "red"][row["class"]] == row["name"] for row in found)


def test_a_noisy_prediction_is_charged_before_it_is_written(answer, trained, graph, tmp_path):
    before = json.loads((trained / "certificate.json").read_text())
    line = f"predict {trained} --data {graph} --mode noisy --epsilon 1"
    first = answer(line)
    assert first["epsilon"] > before["guarantee"]["epsilon"]
    assert "own node only" in first["seen_by"]
    second = answer(f"{line} --out {tmp_path / 'p.csv'}")
    assert second["epsilon"] > first["epsilon"]
    after = json.loads((trained / "certificate.json").read_text())
    assert after["guarantee"]["epsilon"] == second["epsilon"]
    assert len(after["charges"]) == len(before["charges"]) + 2
    assert "a noisy prediction" in (trained / "certificate.txt").read_text()


def test_disjoint_on_the_graph_trained_on_is_refused_or_warned_of(run, trained, graph):
    code, _, err = run(f"predict {trained} --data {graph} --mode disjoint --json")
    assert code == 0
    assert "was trained on" in err
    settings = json.loads((trained / "settings.json").read_text())
    settings["data"]["data"] = "social"
    (trained / "settings.json").write_text(json.dumps(settings))
    code, _, err = run(f"predict {trained} --data social --mode disjoint")
    assert code == 2
    assert "another graph" in err


def test_a_charge_that_cannot_be_noted_gives_no_prediction(
    refused, trained, graph, tmp_path, monkeypatch
):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("graphveil.runs.record.write_file", full)
    monkeypatch.setattr("graphveil.runs.files.write_file", full)
    out = tmp_path / "p.csv"
    line = f"predict {trained} --data {graph} --mode noisy --epsilon 1 --out {out}"
    assert "No space left" in refused(line)
    assert not out.exists()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("predict RUN --data GRAPH --mode noisy", ["epsilon"]),
        ("predict RUN --data GRAPH --epsilon 1", ["noisy"]),
        ("predict RUN --data GRAPH --mode loud", ["loud"]),
        ("predict RUN --data GRAPH --mode noisy --epsilon -1", ["epsilon", "-1.0"]),
        ("predict RUN --data GRAPH --out GRAPH", ["not written over"]),
        ("predict RUN --data GRAPH --out /no/such/folder/p.csv", ["cannot be written"]),
        ("predict RUN --data nowhere", ["nowhere"]),
        ("predict /no/run --data GRAPH", ["/no/run"]),
        ("predict /no/run --data GRAPH --mode noisy --epsilon 1", ["/no/run"]),
        ("predict GRAPH --data GRAPH", ["is a file"]),
        ("predict RUN --data social", ["columns"]),
    ],
)
def test_a_prediction_that_makes_no_sense_is_one_line(refused, trained, graph, line, words):
    before = contents(trained)
    err = refused(line.replace("RUN", str(trained)).replace("GRAPH", str(graph)))
    assert all(word in err for word in words), err
    assert contents(trained) == before
