"""Every piece of a message on the page of messages is one that the source has."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text()


def pieces(page):
    """What stands in the first cell of a row, as code."""
    return re.findall(r"^\| `([^`]+)` \|", page, re.MULTILINE)


@pytest.fixture(scope="module")
def messages():
    """Every text in the source, with marks where values go."""
    texts = []
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                parts = (
                    part.value if isinstance(part, ast.Constant) else "\0" for part in node.values
                )
                texts.append("".join(map(str, parts)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.append(node.value)
    return "\n".join(texts)


def test_the_page_has_messages():
    assert len(pieces(PAGE)) > 40
    assert len(set(pieces(PAGE))) == len(pieces(PAGE))


@pytest.mark.parametrize("piece", pieces(PAGE))
def test_the_source_says_it(piece, messages):
    assert piece in messages


def test_what_the_source_does_not_say_is_noticed(messages):
    assert "the moon is made of green cheese" not in messages
