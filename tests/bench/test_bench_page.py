"""The page of results: from files and nothing else; blocks in pages that are written by hand."""

import json

import pytest

from graphveil._errors import InvalidInputError
from graphveil.bench import page, read
from graphveil.bench.places import Place, make_source

TEXT = """
title = "Small"
paper = "gap"
shows = "Table 2"
source = "Nobody, Table 2"
data = ["social", "reddit"]
stand_in = { reddit = "social" }
metrics = ["accuracy", "macro_f1"]
finding = "It is small."
deviations = ["We are smaller."]
[[run]]
name = "open"
method = "mlp"
published = { social = 0.9 }
[[run]]
name = "as published"
method = "dpar"
settings = { paper = true }
epsilon = 2
published = { social = 0.7, reddit = 0.6 }
deviation = { social = 0.01 }
[run.published_of]
macro_f1 = { social = 0.5, reddit = 0.4 }
[[run]]
name = "proven"
method = "dp-mlp"
vary = { epsilon = [2, 8] }
"""


def outcome(accuracy, **more):
    return {
        "unit": "node", "epsilon": None, "delta": 1e-5, "claimed_epsilon": None,
        "noise_multiplier": None, "void_because": [], "class_accuracy": [1.0, 0.0],
        "class_share": [0.5, 0.5], "seconds": 1.0, "machine": "4 cores, X, torch 2",
        "date": "2026-01-02", "version": "0.1.0",
        "scores": {"accuracy": accuracy, "macro_f1": accuracy / 2}, **more,
    }  # fmt: skip


@pytest.fixture
def folder(described_as, tmp_path):
    """A description, and a folder with results of it under two seeds, one in a shard."""
    path = described_as(TEXT)
    described, made = read(path), tmp_path / "results"
    made.mkdir()
    place = Place(data="social", runs_on="social")
    of_line = [
        outcome(0.8),
        outcome(0.65, claimed_epsilon=2.0, epsilon=None, void_because=["it does not hold"]),
        outcome(0.6, epsilon=1.999),
        outcome(0.7, epsilon=7.999),
    ]
    for seed, name in ((0, "gap-table2.jsonl"), (3, "gap-table2.2-of-2.jsonl")):
        lines = []
        for line, result in zip(described.lines, of_line, strict=True):
            key = json.loads(line.request.key(make_source(described, place, None, seed)))
            scores = {name: value + seed / 100 for name, value in result["scores"].items()}
            lines.append(json.dumps({"run": key, "outcome": result | {"scores": scores}}))
        (made / name).write_text("\n".join(lines) + "\n")
    (made / "gap-table2.quick.jsonl").write_text('{"run": {"seed": 0}, "outcome": {}}\n')
    return made, str(path)


def test_rows_are_made_of_files_whatever_their_seeds(folder):
    made, path = folder
    (results,) = page.read_results(made, [path])
    assert results.stale == 0
    assert len(results.measured) == 8  # the stand-in is the same graph
    assert results.measured[0].row.accuracies == pytest.approx((0.8, 0.83))
    table = page.make_table(results)
    lines = table.splitlines()
    assert lines[0] == (
        "| run | data | published | claimed | proven | ours | seeds | macro f1 [published] |"
    )
    assert "| open | social | 90.0 |  | in the open | 81.5 ± 2.1 | 2 | 41.5 ± 2.1 |" in lines
    assert lines[3] == (
        "| as published, epsilon 2 | social | 70.0 ± 1.0 | 2 | none | 66.5 ± 2.1 | 2 "
        "| 34.0 ± 2.1 [50.0] |"
    )
    stand_in = next(line for line in lines if "stand-in" in line and "as published" in line)
    assert "social (stand-in for reddit) | (60.0, of reddit) |" in stand_in
    assert stand_in.endswith("[40.0, of reddit] |")


def test_the_page_says_what_where_and_when(folder):
    made, path = folder
    results = page.read_results(made, [path])
    text = page.make_page(results, {"proven": "p/a.svg", "accuracy": "p/b.svg", "gap-table2": "c"})
    for words in (
        "![Proven against claimed", "(p/a.svg)", "(p/b.svg)", "## gap-table2", "![Small](c)",
        "**What the paper finds**: It is small.", "- Unlike the paper: We are smaller.",
        "- No epsilon holds for as published: it does not hold", "2026-01-02",
        "4 cores, X, torch 2", "Sajadmanesh et al. 2023, Table 2",
    ):  # fmt: skip
        assert words in text, words
    assert text.index("(p/a.svg)") < text.index("(p/b.svg)") < text.index("## gap-table2")


def test_the_two_pictures_of_all_papers_have_their_points(folder):
    made, path = folder
    results = page.read_results(made, [path])
    paper = "Sajadmanesh et al. 2023"
    assert page.claimed_points(results) == [(paper, 2.0, None)] * 2
    # The best that is proven at 2 or less, not the better one at 8.
    assert page.accuracy_points(results) == [
        (paper, 0.7, pytest.approx(0.615), False),
        (paper, 0.6, pytest.approx(0.615), True),
    ]


def test_a_promise_about_another_unit_is_not_set_beside_a_claim(folder):
    made, path = folder
    for file in made.glob("gap-table2*.jsonl"):
        of_nodes = '"unit": "node", "epsilon": 1.999'
        file.write_text(file.read_text().replace(of_nodes, of_nodes.replace("node", "graph")))
    assert page.accuracy_points(page.read_results(made, [path])) == []


def test_results_of_two_versions_are_said_to_be(folder):
    made, path = folder
    assert "Measured by" not in page.make_page(page.read_results(made, [path]), {})
    shard = made / "gap-table2.2-of-2.jsonl"
    shard.write_text(shard.read_text().replace('"0.1.0"', '"0.2.0"'))
    text = page.make_page(page.read_results(made, [path]), {})
    assert "- Measured by graphveil 0.1.0, 0.2.0." in text


def test_results_of_other_settings_are_counted_and_left_out(folder, described_as):
    made, path = folder
    described_as(TEXT.replace("[2, 8]", "[2, 9]"))
    (results,) = page.read_results(made, [path])
    assert results.stale == 2
    assert "epsilon 9" not in page.make_table(results)
    assert "Not measured yet: 2 rows." in page.make_page([results], {})


def test_blocks_in_a_page_are_made_anew(folder):
    made, path = folder
    results = page.read_results(made, [path])
    before = (
        "One.\n\n<!-- bench: gap-table2; only proven; data reddit -->\nold\n<!-- end -->\n\nTwo.\n"
    )
    after = page.refresh(before, results)
    assert after.startswith("One.\n\n<!-- bench: gap-table2; only proven; data reddit -->\n")
    assert after.endswith("<!-- end -->\n\nTwo.\n")
    assert "old" not in after
    rows = [line for line in after.splitlines() if line.startswith("| proven")]
    assert len(rows) == 2
    assert "| open" not in after
    assert page.refresh(after, results) == after


@pytest.mark.parametrize(
    ("mark", "words"),
    [
        ("<!-- bench: nobody -->\n<!-- end -->", "must name a description with results"),
        ("<!-- bench: gap-table2; rows 3 -->\n<!-- end -->", "may say 'only WORDS'"),
        ("<!-- bench: gap-table2; only nobody -->\n<!-- end -->", "Nothing is left"),
        ("<!-- bench: gap-table2 -->\n", "Got one without"),
    ],
)
def test_a_bad_block_gets_one_line(folder, mark, words):
    made, path = folder
    with pytest.raises(InvalidInputError, match=words):
        page.refresh(mark, page.read_results(made, [path]))


def test_a_folder_that_is_none_gets_one_line(tmp_path):
    with pytest.raises(InvalidInputError, match="must be a folder"):
        page.read_results(tmp_path / "no")
