"""Who is trained on, by options: shares, classes left out, own splits, and what is recorded."""

import json

import pytest

OPTIONS = "--fractions 0.6,0,0.4 --train-share 0.5 --thinned remove"
QUICK = "--epsilon 8 --delta 1e-4 --set steps=2"


def facts(out):
    return json.loads((out / "plan.json").read_text())["plan"]["facts"]


def test_shares_are_trained_on_and_recorded(answer, graph, tmp_path):
    answer(f"train dp-mlp --data {graph} {QUICK} {OPTIONS} --out {tmp_path / 'a'}")
    data = json.loads((tmp_path / "a" / "settings.json").read_text())["data"]
    assert (data["fractions"], data["train_share"], data["thinned"]) == (
        [0.6, 0, 0.4],
        0.5,
        "remove",
    )
    assert data["split"] == "transductive"
    whole = tmp_path / "whole"
    answer(f"train dp-mlp --data {graph} {QUICK} --split transductive --out {whole}")
    nodes = facts(whole)["num_nodes"]
    assert facts(tmp_path / "a")["num_train"] == round(0.3 * nodes)
    assert facts(tmp_path / "a")["num_nodes"] == nodes - round(0.6 * nodes) + round(0.3 * nodes)


def test_a_file_may_say_the_same(answer, graph, tmp_path):
    (tmp_path / "run.toml").write_text(
        'fractions = [0.6, 0, 0.4]\ntrain_share = 0.5\nthinned = "remove"\nmin_class = 2\n'
    )
    line = f"train dp-mlp --data {graph} {QUICK} --config {tmp_path / 'run.toml'}"
    answer(f"{line} --fractions 0.8,0,0.2 --out {tmp_path / 'a'}")
    data = json.loads((tmp_path / "a" / "settings.json").read_text())["data"]
    assert (data["fractions"], data["min_class"]) == ([0.8, 0, 0.2], 2)


def test_classes_left_out_stand_on_the_certificate(answer, graph, tmp_path):
    answer(f"train dp-mlp --data {graph} {QUICK} --min-class 5 --out {tmp_path / 'a'}")
    text = (tmp_path / "a" / "certificate.txt").read_text()
    assert "which classes have at least 5 nodes" in text


def test_compare_trains_on_the_share(answer, graph):
    line = f"compare --data {graph} --epsilon 8 --methods dp-mlp --set steps=2 --seeds 1 {OPTIONS}"
    (row,) = answer(line)["rows"]
    assert row["train_share"] == 0.5


@pytest.mark.parametrize(
    "options, train, nodes",
    [
        ("--data cora:full", 1208, 2708),
        ("--data cora", 2031, 2708),
        ("--data cora --split given", 140, 2708),
        ("--data cora --fractions 0.8,0,0.2", 2166, 2708),
        ("--data cora --fractions 0.8,0,0.2 --train-share 0.5 --thinned remove", 1083, 1625),
        ("--data cora:full --train 1000", 1000, 2708),
        ("--nodes 1000 --features 5 --classes 2 --fractions 0.5,0,0.5", 500, 1000),
        ("--nodes 1000 --features 5 --classes 2 --train-share 0.1", 75, 1000),
        ("--data cora:full --nodes 1000", 750, 1000),  # not the graph that the split is of
    ],
)
def test_a_plan_knows_whom_it_is_for(answer, options, train, nodes):
    planned = answer(f"plan dp-mlp {options} --epsilon 8")["facts"]
    assert (planned["num_train"], planned["num_nodes"]) == (train, nodes)


def test_a_split_of_unknown_size_is_asked_for(run):
    code, _, err = run("plan dp-mlp --data reddit-sample --epsilon 8")
    assert code == 2
    assert "--train" in err


@pytest.mark.parametrize("wrong", ["half", "0.5;0.5", "0.5,0.5", "0.8,0.2,0.2"])
def test_other_fractions_are_one_line(refused, graph, tmp_path, wrong):
    line = f"train dp-mlp --data {graph} {QUICK} --out {tmp_path / 'run'} --fractions {wrong}"
    assert "fractions" in refused(line)
