"""Links on the command line: trained from files and from the edges of a graph; what is refused."""

import sys
from pathlib import Path

import pytest
import torch

from graphveil.data.synthetic import social_network
from graphveil.runs import Run

sys.path.insert(0, str(Path(__file__).parents[1] / "methods"))
from methods_cases import links

QUICK = "--epsilon 8 --set steps=2 --set negatives=2"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Links and a graph in files."""
    place = tmp_path_factory.mktemp("links")
    torch.save(links(), place / "links.pt")
    graph = social_network(num_nodes=60, num_classes=3, num_features=5, seed=1)
    graph.directed = None
    torch.save(graph, place / "graph.pt")
    return place


def test_links_of_a_file_are_trained_on(folder, answer):
    out = folder / "run"
    result = answer(f"train dp-link --data {folder}/links.pt {QUICK} --out {out}")
    assert result["task"] == "link"
    assert result["metric"] == "mrr"
    assert 0 < result["metrics"]["mrr"] <= 1
    assert result["baseline"].keys() >= {"mrr", "recall@10"}
    assert Run(out).read().certificate_.guarantee.unit == "node"


@pytest.mark.parametrize("unit", ["node", "edge"])
def test_edges_of_a_graph_are_links(unit, folder, answer):
    out = folder / f"edges-{unit}"
    answer(
        f"train dp-link --data {folder}/graph.pt --link edges --undirected {QUICK} "
        f"--set unit={unit} --out {out}"
    )
    plan = Run(out).read().plan_
    assert plan.unit == ("node" if unit == "node" else "edge-undirected")
    assert plan.facts.num_classes == plan.facts.num_nodes == 60
    asked = Run(out).arrange()
    assert "links" in asked.training


def test_what_is_no_better_than_popularity_learnt_nothing(folder, run):
    out = folder / "idle"
    code, table, _ = run(f"train popularity --data {folder}/links.pt --out {out}")
    assert code == 0
    assert "learnt nothing" in table


def test_a_direction_must_be_stated(folder, refused):
    line = f"train dp-link --data {folder}/graph.pt --link edges {QUICK} --out {folder}/none"
    assert "--directed or --undirected" in refused(line)


def test_a_method_for_nodes_does_not_take_links(folder, refused):
    line = f"train dp-mlp --data {folder}/graph.pt --link edges --undirected --epsilon 8 --out none"
    assert "links between sources and targets" in refused(line)
    line = f"train dp-link --data {folder}/graph.pt {QUICK} --out none"
    assert "one graph of nodes" in refused(line)


@pytest.mark.parametrize(
    "line",
    [
        "predict {run} --data {data} --out {folder}/out.csv",
        "embed {run} --data {data} --out {folder}/out.parquet",
        "export {run} --out {folder}/out.onnx",
    ],
)
def test_commands_that_are_about_answers_refuse_links(line, folder, answer, refused):
    out = folder / "refused"
    if not out.exists():
        answer(f"train dp-link --data {folder}/links.pt {QUICK} --out {out}")
    message = refused(line.format(run=out, data=folder / "links.pt", folder=folder))
    assert "must be of" in message
    assert "links" in message


def test_methods_for_links_are_compared(folder, answer):
    result = answer(
        f"compare --data {folder}/links.pt --methods dp-link,open-link --epsilon 8 --seeds 1"
    )
    assert {row["method"] for row in result["rows"]} == {"dp-link", "open-link"}
