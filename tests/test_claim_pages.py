"""What the pages say that ``graphveil claims`` prints is what it prints."""

import json
import re
import shlex
from pathlib import Path

import pytest

from graphveil import cli
from graphveil.privacy.guarantee import round_up

ROOT = Path(__file__).parents[1]
PAGES = [
    "docs/accounting.md",
    "docs/cli.md",
    "docs/guarantees/claims.md",
    "docs/guarantees/step.md",
]


def outputs(page):
    """Every claims command on a page that is followed by its output, and that output."""
    lines = (ROOT / page).read_text().splitlines()
    for place, line in enumerate(lines):
        if re.match(r"    (\$ )?graphveil claims \S+ --", line):
            shown = []
            for following in lines[place + 1 :]:
                if following.startswith("    $") or not (
                    following.startswith("    ") or not following
                ):
                    break
                shown.append(following.removeprefix("    "))
            yield line.strip().removeprefix("$ "), "\n".join(shown).strip()


def figures():
    """The table of figures: the command, delta, claimed, proven."""
    for line in (ROOT / "docs/guarantees/claims.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 4 and "--" in cells[0] and cells[0].startswith("`"):
            yield cells


@pytest.fixture
def printed(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")

    def call(line):
        with pytest.raises(SystemExit) as left:
            cli.main(shlex.split(line)[1:])
        assert left.value.code == 0
        return "\n".join(each.rstrip() for each in capsys.readouterr().out.splitlines()).strip()

    return call


@pytest.mark.parametrize("page", PAGES)
def test_outputs_are_those_of_the_commands(page, printed):
    found = list(outputs(page))
    assert found
    for line, shown in found:
        assert printed(line) == shown, line


def test_the_table_of_graph_splits_is_what_the_command_says(printed):
    """Claimed to two digits behind the point, as the paper prints it; proven as it is shown."""
    page = (ROOT / "docs/guarantees/graph-split.md").read_text()
    table = (
        page.split("## Claimed and proven")[1]
        .split("| --- | --- | --- | --- |")[1]
        .split("\n\n")[0]
    )
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    rows = [row for row in rows if row[0].isdigit()]
    assert len(rows) == 4
    for noise, claimed, *proven in rows:
        for splits, shown in zip((1, 10), proven, strict=True):
            command = f"igamberdiev --noise-multiplier {noise} --steps 2000 --delta 1e-5"
            said = json.loads(printed(f"graphveil claims {command} --splits {splits} --json"))
            assert round_up(said["proven_epsilon"]) == shown
            if splits == 1:
                assert said["claimed_epsilon"] == pytest.approx(float(claimed), abs=0.006)


def test_the_table_of_figures_is_what_the_commands_say(printed):
    found = list(figures())
    assert len(found) > 15
    for command, delta, claimed, proven in found:
        result = json.loads(printed(f"graphveil claims {command.strip('`')} --json"))
        assert delta == ("" if result["delta"] is None else f"{result['delta']:g}"), command
        assert claimed == f"{result['claimed_epsilon']:.4g}", command
        said = "none" if result["proven_epsilon"] is None else round_up(result["proven_epsilon"])
        assert proven == said, command
