"""The list of checked facts: each is what the program says, and what every page named says."""

import re

import pytest

import pages
from graphveil import processes
from graphveil._errors import BrokenPromiseError, InvalidInputError, RefusedError
from graphveil.cli import predict
from graphveil.data import sizes_of
from graphveil.methods import METHODS, choosing, own_row
from graphveil.privacy.guarantee import default_delta

TEXT = (pages.DOCS / "checked-facts.md").read_text()


def method(name):
    """A method with nothing said but epsilon."""
    return METHODS[name](epsilon=1.0)


def planted_mistakes():
    """How many mistakes the first table of the page on audits has."""
    page = (pages.DOCS / "guarantees" / "audits.md").read_text()
    table = page.split("| mistake | rule that catches it | seconds |")[1].split("\n\n")[0]
    return table.count("\n|") - 1


def onnx_opset():
    """The opset that files are written in; read, as the module needs onnx."""
    source = (pages.ROOT / "src/graphveil/export/onnx_graph.py").read_text()
    return int(re.search(r"^OPSET, IR_VERSION = (\d+),", source, re.MULTILINE)[1])


NAMES = {
    "BrokenPromiseError": BrokenPromiseError, "InvalidInputError": InvalidInputError,
    "RefusedError": RefusedError, "choosing": choosing, "default_delta": default_delta,
    "method": method, "onnx_opset": onnx_opset, "own_row": own_row,
    "planted_mistakes": planted_mistakes, "predict": predict, "processes": processes,
    "sizes_of": sizes_of,
}  # fmt: skip


def rows():
    """Fact, value, source, and the words that stand on pages."""
    table = TEXT.split("## Facts")[1].split("## Figures")[0]
    for line in table.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if len(cells) == 4 and "`" in cells[3]:
            fact, value, source, places = cells
            yield fact, value, source.strip("`"), re.findall(r"([\w/-]+\.md): `([^`]+)`", places)


def test_there_are_facts():
    assert len(list(rows())) > 15


@pytest.mark.parametrize("fact, value, source, places", list(rows()))
def test_the_program_and_every_page_say_it(fact, value, source, places):
    assert eval(source, {"__builtins__": {}}, NAMES) == float(value), fact
    assert places
    for page, words in places:
        text = re.sub(r"\s+", " ", (pages.DOCS / page).read_text())
        assert words in text, f"{fact}: {page} does not say {words!r}"


def test_the_tests_named_are_there():
    for path in re.findall(r"`(tests/[\w/]+\.py)`", TEXT):
        assert (pages.ROOT / path).exists(), path
