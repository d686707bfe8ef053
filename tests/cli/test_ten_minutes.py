"""The walk of docs/ten-minutes.md: its commands, copied from the page, in their order."""

import csv
import io
import re
import shlex
import shutil
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

import pages
from graphveil import cli

PAGE = (Path(__file__).parents[2] / "docs" / "ten-minutes.md").read_text()


def commands():
    """The commands of the page, as a person would type them."""
    blocks = [block for block in pages.blocks("ten-minutes.md") if block.directive != "not run"]
    return [command.line for block in blocks if block.is_shell for command in pages.commands(block)]


def run(line):
    """One line of the page; what it prints."""
    words = shlex.split(line)
    if words[0] == "mv":
        shutil.move(words[1], words[2])
        return ""
    if words[0] in ("cat", "head"):
        return Path(words[-1]).read_text()
    assert words[0] == "graphveil"
    code, out, err = call(words[1:])
    assert code == 0, err
    return out


def call(words):
    """Exit code, stdout and stderr of a command in this process."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as left:
        cli.main(words)
    return left.value.code, out.getvalue(), err.getvalue()


@pytest.fixture(scope="module")
def walked(tmp_path_factory):
    """The folder after the whole walk, and what every command printed."""
    place = tmp_path_factory.mktemp("walk")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        printed = {}
        for line in commands():
            printed[line] = run(line)
            if line.startswith("graphveil data schema"):
                draft = Path("ward/schema.toml").read_text()
                assert "?" in draft
                tried = "train late-graph --data ward --epsilon 2 --out early"
                code, _, err = call(tried.split())
                assert code == 2
                assert err.count("\n") == 1
                Path("ward/schema.toml").unlink()
        yield place, printed


def of(printed, start):
    return next(text for line, text in printed.items() if line.startswith(start))


def test_the_page_has_the_whole_walk():
    kinds = [line.split()[:3] for line in commands() if line.startswith("graphveil")]
    for wanted in (
        ["data", "export"], ["data", "schema"], ["data", "show"],
        ["plan", "late-graph"], ["train", "late-graph"],
        ["predict", "runs/ward"], ["report", "runs/ward"], ["certificate", "sign"],
    ):  # fmt: skip
        assert any(words[1:] == wanted for words in kinds), wanted


def test_the_table_is_messy_and_the_outcome_rare(walked):
    place, _ = walked
    with (place / "ward" / "nodes.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 5000
    assert any("" in row.values() or "NA" in row.values() for row in rows)
    assert 0.02 < sum(row["died"] == "yes" for row in rows) / 5000 < 0.04


def test_training_tells_the_figure_beside_the_guess(walked):
    _, printed = walked
    trained = of(printed, "graphveil train late-graph --data ward --epsilon 2 --out")
    assert "test average precision" in trained
    assert "guess" in trained
    compared = of(printed, "graphveil compare")
    assert "Test average precision on hospital" in compared


def test_the_certificate_lists_the_schema(walked):
    _, printed = walked
    certificate = of(printed, "cat runs/ward/certificate.txt")
    for words in ("age", "0 to 110", "postcode", "the task: binary", "patient"):
        assert words in certificate, words


def test_predictions_have_the_owner_s_ids_names_and_ranks(walked):
    place, _ = walked
    with (place / "risk.csv").open() as file:
        rows = list(csv.DictReader(file))
    with (place / "ward" / "nodes.csv").open() as file:
        patients = {row["patient_id"]: row["died"] for row in csv.DictReader(file)}
    assert {row["id"] for row in rows} == set(patients)
    assert {row["name"] for row in rows} <= {"no", "yes"}
    assert [int(row["rank"]) for row in rows] == list(range(1, 5001))
    ranked = rows
    chances = [float(row["probability_yes"]) for row in ranked]
    assert chances == sorted(chances, reverse=True)
    # Of the riskiest hundred more died than of a hundred drawn by lot.
    died = sum(patients[row["id"]] == "yes" for row in ranked[:100])
    assert died > 2 * 3.5


def test_the_officers_page_names_the_unit_and_no_score(walked):
    place, _ = walked
    page = (place / "ward.html").read_text()
    assert "patient" in page
    assert "Ward 3" in page
    assert "average precision" not in page


def test_the_signed_certificate_verifies(walked):
    place, printed = walked
    assert "Ann, Ward 3" in of(printed, "graphveil certificate verify")
    assert (place / "ward.json").exists()


def test_the_walk_in_python(walked, monkeypatch, capsys):
    place, _ = walked
    monkeypatch.chdir(place)
    (block,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(compile(block, "ten-minutes.md", "exec"), {"__name__": "walk"})
    said = capsys.readouterr().out
    assert "P-" in said
    assert "differential privacy for one patient" in said
    assert (place / "runs" / "from-python" / "certificate.txt").exists()
