"""Recommendations on the command line: from a trained run to a table with the owner's ids."""

import csv
import json

import pytest

from graphveil.data.catalog import load
from graphveil.data.synthetic import social_network
from graphveil.graph.splits import split
from graphveil.methods import METHODS
from graphveil.runs import Run


@pytest.fixture(scope="module")
def shop():
    return load("shop:1000")


@pytest.fixture(scope="module")
def trained(shop, tmp_path_factory):
    """A private run on the small shop."""
    directory = tmp_path_factory.mktemp("runs") / "shop"
    method = METHODS["dp-popularity"](epsilon=2.0).fit(shop, progress=False)
    method.save(directory)
    return directory


def test_a_table_has_the_owner_s_ids_and_says_who_may_see_it(shop, trained, answer, tmp_path):
    out = tmp_path / "list.csv"
    said = answer(f"recommend {trained} --data shop:1000 --top 4 --out {out}")
    assert (said["sources"], said["top"], said["out"]) == (1000, 4, str(out))
    assert "each source's list to that source" in said["seen_by"]
    assert said["epsilon"] <= 2.0
    assert out.stat().st_mode & 0o077 == 0
    with out.open() as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["id", "rank", "target", "score"]
    assert len(rows) == 4000
    bought = {
        (shop.ids[source], shop.target_ids[target])
        for source, target in shop.links[:, shop.train_links].t().tolist()
    }
    assert bought
    assert not bought & {(row["id"], row["target"]) for row in rows}
    first = [row for row in rows if row["id"] == shop.ids[0]]
    assert [row["rank"] for row in first] == ["1", "2", "3", "4"]
    scores = [float(row["score"]) for row in first]
    assert scores == sorted(scores, reverse=True)
    method = Run(trained).read()
    best = method.recommend(shop, top=4)
    assert [row["target"] for row in first] == [shop.target_ids[t] for t in best.targets[0]]


def test_one_source_may_be_asked_for(trained, answer, run, refused):
    said = answer(f"recommend {trained} --data shop:1000 --top 2 --of P-000007")
    assert [row["id"] for row in said["recommendations"]] == ["P-000007"] * 2
    code, out, err = run(f"recommend {trained} --data shop:1000 --top 2 --of P-000007")
    assert code == 0
    assert out.count("\n") == 3
    assert "who may see them: each source's list" in err
    assert "Got 'nobody', which is none" in refused(
        f"recommend {trained} --data shop:1000 --of nobody"
    )


def test_what_has_no_recommendations_is_refused(trained, refused, shop, tmp_path):
    assert "[1, inf)" in refused(f"recommend {trained} --data shop:1000 --top 0")
    graph = tmp_path / "graph"
    method = METHODS["dp-mlp"](epsilon=4.0, steps=2)
    method.fit(split(social_network(60, 3, 5, seed=1)), progress=False).save(graph)
    assert "must have learnt links" in refused(f"recommend {graph} --data social")
    there = tmp_path / "there.csv"
    there.write_text("mine")
    assert "there.csv" in refused(f"recommend {trained} --data shop:1000 --out {there}")


def test_train_and_recommend(answer, tmp_path):
    directory, out = tmp_path / "run", tmp_path / "list.csv"
    said = answer(
        f"train dp-link --data shop:1000 --epsilon 8 --out {directory} --set steps=3 "
        "--set links_kept=2 --set negatives=8"
    )
    assert said["metric"] == "mrr"
    answer(f"recommend {directory} --data shop:1000 --top 3 --out {out}")
    assert out.read_text().startswith("id,rank,target,score\nP-000000,1,I-")
    assert json.loads((directory / "metrics.json").read_text())["protocol"] == "full"


def test_edges_of_a_graph_are_links_again(answer, tmp_path):
    directory = tmp_path / "run"
    stated = "--data social --link edges --split transductive --epsilon 8"
    answer(f"train dp-link {stated} --out {directory} --set steps=2 --set negatives=1")
    said = answer(f"recommend {directory} --data social --top 2 --of 5")
    social = load("social")
    friends = set(social.edge_index[1][social.edge_index[0] == 5].tolist())
    targets = [int(row["target"]) for row in said["recommendations"]]
    assert len(targets) == 2
    assert not set(targets) & (friends | {5})
    assert "nothing is promised to a target" in said["seen_by"]
