"""Descriptions are checked: what is missing, what cannot run, what two readers typed apart."""

import csv
from dataclasses import replace

import pytest

import prices
from graphveil._errors import InvalidInputError
from graphveil.bench import checking, names, read
from graphveil.methods import budget, class_weights, inference

GOOD = """
title = "t"
paper = "gap"
shows = "Table 2"
section = "Section 3"
source = "Nobody, Table 2"
data = ["social", "cora"]
[[run]]
name = "open"
method = "mlp"
published = { social = 0.9, cora = 0.8 }
deviation = { social = 0.02 }
[[run]]
name = "private"
method = "dp-mlp"
settings = { steps = 2 }
vary = { epsilon = [1, 8] }
published = { social = [0.5, nan] }
"""


@pytest.fixture
def reading(tmp_path):
    """Write a second reading of the description above, and return its path."""

    def call(*changes):
        rows = {
            ("open", "", "social"): ["0.9", "0.02"],
            ("open", "", "cora"): ["0.8", ""],
            ("private", "epsilon=1", "social"): ["0.5", ""],
        } | dict(changes)
        path = tmp_path / "again.csv"
        with path.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(checking.COLUMNS)
            for (run, setting, data), figures in rows.items():
                writer.writerow(["gap-table2", run, setting, data, "accuracy", *figures])
        return path

    return call


def check(path, reading=None, **more):
    return checking.check([str(path)], reading=reading, **more)


def test_a_good_description_has_no_problem(described_as, reading):
    findings = check(described_as(GOOD), reading())
    assert findings.figures == 3
    assert not findings.problems
    assert not findings.differences
    assert not findings.unread
    assert not findings.unknown
    assert not findings.refused


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (('paper = "gap"\nshows = "Table 2"\nsection = "Section 3"\n', ""), ""),
        (('paper = "gap"\nshows = "Table 2"', 'paper = "mine"\nshows = "my page"'), ""),
        (('"Table 2"\nsection', '"Tab. 2"\nsection'), "'shows' must be"),
        (('"Table 2"\nsection', '"Table 3"\nsection'), "name must begin with 'gap-table3'"),
        (('section = "Section 3"\n', ""), "'section' must say"),
        (('source = "Nobody, Table 2"', ""), "'source' must name"),
        (('"social", "cora"', '"social", "cora", "atlantis"'), "'atlantis'"),
        (("[[run]]", 'across = "colour"\n[[run]]'), "must be what a run varies"),
        (("[[run]]", 'stand_in = { cora = "atlantis" }\n[[run]]'), "'stand_in' must name"),
        (('name = "private"\nmethod = "dp-mlp"\nsettings = { steps = 2 }\nvary = { epsilon = [1, 8]'
          " }\npublished = { social = [0.5, nan] }", 'name = "open"\nmethod = "mlp"'),
         "two rows are called 'open'"),
        (("deviation = { social", "deviation = { cora = 0.1, social"), ""),
        (("published = { social = 0.9, cora = 0.8 }", "published = { cora = 0.8 }"),
         "no figure that it is the deviation of"),
        (("settings = { steps = 2 }", "settings = { stepz = 2 }"), "no setting 'stepz'"),
        (("published = { social = 0.9,", "published = { social = 9,"), "published.social"),
        (("published = { social = [0.5, nan] }", "published = { social = [0.5] }"), "2 values"),
        (("[[run]]", "[quick]\ndata = ['pubmed']\n[[run]]"), "[quick] must name data"),
        (('method = "mlp"', 'method = "graph-gnn"'), "many graphs"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said(described_as, change, words):
    old, new = change
    assert old in GOOD
    findings = check(described_as(GOOD.replace(old, new, 1)), plans="graphs" in words)
    if words:
        assert any(words in sentence for sentence in findings.problems), findings.problems
    else:
        assert findings.problems == []


def test_a_description_of_the_package_is_of_a_paper():
    made = replace(read(names()[0]), paper="nobody")
    assert any("'paper' must be one of" in sentence for sentence in checking.find_problems(made))


def test_a_plan_that_is_refused_is_a_remark(described_as):
    text = GOOD + "[[run]]\nmethod = 'dp-gnn'\nepsilon = 1\nsettings = { sender_cap = 'none' }\n"
    findings = check(described_as(text))
    assert not findings.problems
    assert len(findings.refused) == 2  # whole and small
    assert not check(described_as(text), plans=False).refused


def test_a_wrong_figure_a_missing_one_and_one_too_many_are_told_apart(described_as, reading):
    wrong = reading(
        (("open", "", "social"), ["0.91", "0.02"]),
        (("open", "", "cora"), ["0.8", "0.01"]),
        (("private", "epsilon=1", "social"), ["", ""]),
        (("private", "epsilon=8", "social"), ["0.7", ""]),
    )
    findings = check(described_as(GOOD), wrong, plans=False)
    assert findings.differences == [
        "gap-table2 / open / social / accuracy: published 0.9 here, 0.91 there.",
        "gap-table2 / open / cora / accuracy: deviation none here, 0.01 there.",
    ]
    assert findings.unread == ["gap-table2 / private / epsilon=1 / social / accuracy"]
    assert findings.unknown == ["gap-table2 / private / epsilon=8 / social / accuracy"]


def test_the_form_has_every_key_and_no_figure(described_as):
    described = read(described_as(GOOD))
    rows = list(csv.DictReader(checking.make_form([described]).splitlines()))
    assert [tuple(row[key] for key in checking.KEYS) for row in rows] == list(
        checking.figures_of([described])
    )
    assert all(row["published"] == row["deviation"] == "" for row in rows)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a,b\n", "must have the columns"),
        (",".join(checking.COLUMNS) + "\na,b,c,d,e,many,\n", "numbers in 'published'"),
        (",".join(checking.COLUMNS) + "\na,b,c,d,e,1,\na,b,c,d,e,1,\n", "twice"),
    ],
)
def test_a_bad_second_reading_gets_one_line(tmp_path, text, words):
    path = tmp_path / "again.csv"
    path.write_text(text)
    with pytest.raises(InvalidInputError, match=words):
        checking.read_reading(path)


def of_papers():
    """The descriptions that say which paper they are of."""
    return [name for name in names() if read(name).paper]


def test_descriptions_of_the_package_hold():
    """Their schema, their small versions, and no figure that was read otherwise the second time."""
    findings = checking.check(of_papers(), plans=False)
    assert findings.problems == []
    assert findings.differences == []
    assert findings.unknown == []


@pytest.mark.slow
def test_runs_of_the_package_can_be_planned():
    with prices.remembered(budget, inference, class_weights):
        assert checking.check(of_papers()).problems == []
