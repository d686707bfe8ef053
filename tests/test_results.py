"""The committed results, and the pages that are made of them and of nothing else."""

import importlib.util
import json
from pathlib import Path

import pytest

from graphveil.bench import page

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/results.md"


@pytest.fixture(scope="module")
def results():
    return page.read_results(ROOT / "results")


def test_every_outcome_belongs_to_a_row_of_todays_descriptions(results):
    assert results
    assert {one.described.name: one.stale for one in results if one.stale} == {}


def test_the_page_is_what_the_files_say(results):
    folder = PAGE.with_suffix("")
    pictures = {path.stem: f"{folder.name}/{path.name}" for path in folder.iterdir()}
    pictures["proven"] = pictures.pop("proven-and-claimed")
    pictures["accuracy"] = pictures.pop("ours-and-published")
    assert PAGE.read_text() == page.make_page(results, pictures)


def test_the_tables_of_the_page_that_helps_to_choose_are_what_the_files_say(results):
    text = (ROOT / "docs/choose-a-method.md").read_text()
    assert text.count("| --- |") > 3
    assert page.refresh(text, results) == text


def test_the_table_of_relations_is_what_the_file_says():
    spec = importlib.util.spec_from_file_location("relations", ROOT / "benchmarks/relations.py")
    relations = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(relations)
    content = json.loads((ROOT / "results/relations.json").read_text())
    text = (ROOT / "docs/relations.md").read_text()
    shown = text.split("<!-- tables -->")[1].split("<!-- end of tables -->")[0]
    assert shown.strip() == relations.table(content)
    charged = [seed for row in content["rows"] for seed in row["seeds"] if "epsilon" in seed]
    assert {(seed["removed"], seed["altered"]) for seed in charged} == {(1, 0)}
    of = {(row["rows"], row["target"]): row for row in content["rows"]}
    for epsilon in (1.0, 4.0, 8.0):  # own lists beat own rows alone, by every figure
        for figure in ("average_precision", "roc_auc"):
            alone = of["own rows", epsilon][figure]
            assert of["own lists: count, mean, sum", epsilon][figure] > alone + 0.02


def test_the_tables_of_other_targets_are_what_the_file_says():
    spec = importlib.util.spec_from_file_location("targets", ROOT / "benchmarks/targets.py")
    targets = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(targets)
    text = (ROOT / "docs/targets.md").read_text()
    shown = text.split("<!-- tables -->")[1].split("<!-- end of tables -->")[0]
    assert shown.strip() == targets.table(json.loads((ROOT / "results/targets.json").read_text()))
