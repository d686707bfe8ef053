"""Plans on the command line: of links, in a catalog's sizes or stated; and of every method."""

import json

import pytest

from graphveil.methods import METHODS

DATA = {"node": "pubmed", "graph": "synthetic-er", "link": "shop:1000"}
SHOP = "--sources 1000 --targets 2000 --features 14 --target-features 163"
QUICK = "--epsilon 4 --set steps=2"


def test_what_is_planned_is_what_runs(answer, tmp_path):
    out = tmp_path / "run"
    answer(f"train dp-link --data shop:1000 {QUICK} --out {out}")
    trained = json.loads((out / "plan.json").read_text())["plan"]
    for data in ("--data shop:1000", SHOP):
        planned = answer(f"plan dp-link {data} {QUICK}")
        assert planned["facts"] == trained["facts"], data
        assert planned["epsilon"] == pytest.approx(4, abs=0.01)
        shown = {name: planned[name] for name in trained["details"]}
        assert shown == trained["details"], data
    assert (planned["removed"], planned["altered"]) == (1, 0)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_is_planned(name, answer, run):
    private = "--epsilon 4" if METHODS[name].private else ""
    line = f"plan {name} --data {DATA[METHODS[name].record]} {private}"
    assert answer(line)["method"] == name
    code, out, _ = run(line)
    assert code == 0
    assert "planned for" in out


@pytest.mark.parametrize("name", ["dp-link", "dp-popularity", "open-link"])
@pytest.mark.parametrize("unit", ["node", "edge"])
def test_edges_of_a_graph_are_planned_for(name, unit, answer):
    private = "--epsilon 4" if METHODS[name].private else ""
    facts = answer(f"plan {name} --data social --link edges {private} --set unit={unit}")["facts"]
    assert (facts["record"], facts["task"], facts["target_features"]) == ("link", "link", None)
    assert facts["num_classes"] == facts["num_nodes"] == 20_000


def test_a_plan_speaks_of_sources_and_targets(run):
    _, out, _ = run("plan dp-link --data shop --epsilon 4")
    words = " ".join(out.split())
    assert "20,000 sources, 20,000 to train on" in words
    assert "2,000 targets of 163 features, rows public" in words
    _, out, _ = run("plan dp-link --sources 500 --features 12 --undirected --epsilon 4")
    assert "targets are the sources themselves" in " ".join(out.split())


@pytest.mark.parametrize(
    ("line", "way_out"),
    [
        ("dp-link --data mine.pt", "--sources, --targets, --features and --target-features"),
        ("dp-link --sources 9 --features 3 --targets 4", "go together"),
        ("dp-link --sources 9 --features 3 --classes 4", "write '--targets'"),
        ("dp-link --features 3", "Give --sources,"),
        ("dp-link --sources 9 --features 3 --split given", "give --train"),
        ("dp-gnn --nodes 9 --features 3 --classes 2 --targets 4", "leave them out"),
    ],
)
def test_what_is_missing_or_does_not_fit_is_named(line, way_out, refused):
    assert way_out in refused(f"plan {line} --epsilon 4")


def test_the_help_names_methods_for_links(run):
    _, out, _ = run("plan --help")
    words = " ".join(out.split())
    assert all(name in words for name in ("dp-link", "dp-popularity", "item-item"))
    assert all(option in words for option in ("--sources", "--targets", "--target-features"))
