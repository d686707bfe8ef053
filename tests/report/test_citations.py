"""Every method has its papers, and the library is cited as its own file says."""

import re

import pytest

from graphveil import InvalidInputError, __version__
from graphveil.methods import METHODS
from graphveil.privacy.field import works
from graphveil.report import citations


def test_every_method_has_an_entry_and_no_other_one():
    assert set(citations.methods()) == set(METHODS)
    every = set(citations._content()["papers"])
    assert every == {key for method in METHODS for key in citations.papers(method)}


@pytest.mark.parametrize("method", [None, *METHODS])
def test_entries_are_bibtex(method):
    text = citations.bibtex(method)
    keys = re.findall(r"^@(\w+)\{(\w+),$", text, re.MULTILINE)
    expected = [] if method is None else list(citations.papers(method))
    assert [key for _, key in keys] == [*expected, "graphveil"]
    assert text.count("{") == text.count("}")
    assert text.isascii()
    for entry in text.strip().split("\n\n"):
        lines = entry.splitlines()
        assert lines[-1] == "}"
        assert all(re.fullmatch(r"  [a-z]+ = \{.+\},", line) for line in lines[1:-1])
        names = {line.split(" = ")[0].strip() for line in lines[1:-1]}
        assert {"title", "author"} <= names


def test_private_methods_with_a_paper_name_it():
    for method in ("dp-gnn", "gap", "dpar", "graph-split", "graph-dpsgd", "dp-mlp", "late-graph"):
        assert citations.papers(method)


def test_titles_and_numbers_are_those_of_the_field_s_table():
    papers = {key: p for method in METHODS for key, p in citations.papers(method).items()}
    plain = {p["title"].replace("{", "").replace("}", ""): p for p in papers.values()}
    shared = [work for work in works().values() if work.title in plain]
    assert len(shared) == 6
    for work in shared:
        paper = plain[work.title]
        assert work.year == (int(paper["year"]) if "year" in paper else None)
        assert paper["author"].startswith(work.authors.split()[0])
        if "eprint" in paper:
            assert work.reference == f"arXiv {paper['eprint']}"


def test_the_library_is_cited_as_its_file_says(request):
    yaml = pytest.importorskip("yaml")
    stated = yaml.safe_load((request.config.rootpath / "CITATION.cff").read_text())
    library = citations.library()
    for name in ("title", "license", "abstract"):
        assert library[name] == stated[name]
    assert library["author"] == f"{{{stated['authors'][0]['name']}}}"
    assert library["version"] == __version__ == stated.get("version", __version__)


def test_a_method_that_is_none_is_refused():
    with pytest.raises(InvalidInputError, match="'method'"):
        citations.bibtex("gpa")
