"""Names: a value is called by what it is. See CONTRIBUTING.md."""

import ast
from pathlib import Path

import pytest

import graphveil

SOURCES = sorted(Path(graphveil.__file__).parent.rglob("*.py"))
NO_NAMES = {"found", "each", "said", "told"}


def names_given(tree):
    """Every name that is assigned, looped over or taken as an argument, with its line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_no_value_is_called_by_how_it_was_got(path):
    tree = ast.parse(path.read_text())
    assert [f"{path}:{line} {name}" for name, line in names_given(tree) if name in NO_NAMES] == []


def test_the_search_for_names_finds_them():
    tree = ast.parse("found = 1\nfor each in []: pass\ndef f(said): return [told for told in said]")
    assert {name for name, _ in names_given(tree)} == NO_NAMES
