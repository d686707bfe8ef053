"""The list of the field's claims: its file, its page, its figures and the tests that it names."""

from __future__ import annotations

import copy
import json
import re
import shlex
import tomllib
from pathlib import Path

import pytest

from graphveil import cli
from graphveil._errors import InvalidInputError
from graphveil.privacy import field, field_page

ROOT = Path(__file__).parents[2]
FILE = ROOT / "src/graphveil/privacy/field.toml"
NAMES = {
    "daigavane", "igamberdiev", "mueller", "shpilevskiy", "dpar", "gap", "progap", "dpdgc",
    "heterpoisson", "caribou", "node-dp", "sparsegnn",
}  # fmt: skip


@pytest.fixture(scope="module")
def works():
    return field.works()


def statements(works):
    return [(work, statement) for work in works.values() for statement in work.statements]


def printed(capsys, line):
    with pytest.raises(SystemExit) as left:
        cli.main(shlex.split(line))
    assert left.value.code == 0
    return capsys.readouterr().out


def test_every_work_is_there(works):
    assert set(works) == NAMES


def test_every_test_that_is_named_exists(works):
    for _, statement in statements(works):
        for shown in statement.shown_by:
            if shown != field.BY_READING:
                file, name = shown.split("::")
                assert f"def {name}(" in (ROOT / file).read_text(), shown


def test_what_was_not_read_is_not_judged(works):
    for work, statement in statements(works):
        if work.checked == "not checked":
            assert statement.holds == "not checked"
        if work.checked in ("code", "paper and code"):
            assert re.search(r"commits? [0-9a-f]{7}", work.code)
        if statement.holds == "no":
            assert statement.because


def test_a_figure_is_the_commands(works, capsys):
    for _, statement in statements(works):
        if statement.example is not None:
            claimed, proven = field_page.figures(statement)
            lines = statement.example.commands
            first, last = (
                json.loads(printed(capsys, f"{line.removeprefix('graphveil ')} --json"))
                for line in (lines[0], lines[-1])
            )
            assert claimed == f"{first['claimed_epsilon']:.4g}"
            if last["proven_epsilon"] is None:
                assert proven == "none"
            else:
                assert float(proven) >= last["proven_epsilon"]
                assert float(proven) == pytest.approx(last["proven_epsilon"], rel=2e-3)


def test_a_run_with_less_noise_than_was_claimed_for_it_is_charged_for_what_it_had(works):
    example = works["mueller"].statements[0].example
    assert example.claimed.claimed_epsilon < 5
    assert example.proven.proven_epsilon > 10 * example.claimed.proven_epsilon


def test_the_page_is_what_the_command_writes(capsys):
    page = (ROOT / "docs/guarantees/field.md").read_text()
    assert printed(capsys, "claims list --markdown") == page
    for link in re.findall(r"\(#([^)]*)\)", page):
        assert f"\n## {link}\n" in page
    for index in ("docs/README.md", "docs/guarantees/claims.md"):
        assert "field.md" in (ROOT / index).read_text()


def test_the_list_and_one_of_it(capsys, works):
    listed = json.loads(printed(capsys, "claims list --json"))["works"]
    assert {work["name"] for work in listed} == NAMES
    for work in listed:
        assert json.loads(printed(capsys, f"claims show {work['name']} --json")) == work
        assert len(work["statements"]) == len(works[work["name"]].statements)
    assert "caribou" in printed(capsys, "claims list")
    assert "by reading" in printed(capsys, "claims show heterpoisson")


def test_an_unknown_work_is_refused():
    with pytest.raises(InvalidInputError, match="The 'name' parameter must be one of 'daigavane'"):
        field.find("nobody")


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda work: work.update(cheked="code"), "unknown key 'cheked'"),
        (lambda work: work.update(checked="half"), "'checked' must be one of paper"),
        (lambda work: work.pop("reference"), "must have the key 'reference'"),
        (lambda work: work.update(year="2023"), "'year' must be a whole number"),
        (lambda work: work.update(statement=[]), "a statement or more"),
        (lambda work: work["statement"][0].update(holds="maybe"), "'holds' must be one of yes"),
        (lambda work: work["statement"][0].update(unit="person"), "'unit' must be one of node"),
        (lambda work: work["statement"][0].update(places=[]), "'places' must be a list of texts"),
        (lambda work: work["statement"][0]["example"].pop("source"), "the key 'source'"),
        (lambda work: work["statement"][0]["example"].update(claim="x"), "'claim' must be one of"),
    ],
)
def test_a_file_that_says_less_or_other_than_it_must_is_refused(change, message):
    content = copy.deepcopy(tomllib.loads(FILE.read_text()))
    change(content["gap"])
    with pytest.raises(InvalidInputError, match=re.escape(message)):
        field.parse(content)
