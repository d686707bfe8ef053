"""The command that lists methods and settings, and the page that it writes."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from graphveil.cli import cli
from graphveil.methods import METHODS
from graphveil.methods.settings import setting_fields

ROOT = Path(__file__).parents[2]


def run(*words):
    result = CliRunner().invoke(cli, ["methods", *words], catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


def test_every_method_is_listed():
    listed = json.loads(run("--json"))["methods"]
    assert list(listed) == list(METHODS)
    assert listed["gap"]["units"] == "node, edge, edge-directed, edge-undirected"
    assert listed["mlp"]["units"] == ""


@pytest.mark.parametrize("name", METHODS)
def test_the_settings_of_a_method_are_those_it_declares(name):
    assert list(json.loads(run(name, "--json"))["settings"]) == list(setting_fields(METHODS[name]))


def test_the_page_of_settings_is_what_the_command_writes():
    assert (ROOT / "docs/settings.md").read_text() == run("--markdown")
