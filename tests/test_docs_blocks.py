"""Every block of every page runs with the site, or says why not; the walk is a notebook."""

import json
import re
import shlex

import click
import pytest

import graphveil
import notebook
import pages
import run_pages
from graphveil import cli


@pytest.fixture(scope="module", params=[*pages.page_names(), *run_pages.READMES])
def page(request):
    return request.param


def shown_commands(page):
    for block in pages.blocks(page):
        if block.is_shell:
            for command in pages.commands(block):
                yield block, command


def find_command(words):
    """The command that words name, and what is left of them."""
    command, context = cli.cli, click.Context(cli.cli)
    while isinstance(command, click.Group) and words:
        below = command.get_command(context, words[0].partition("|")[0])
        if below is None:
            return None, words
        command, words = below, words[1:]
    return command, words


def test_python_is_python(page):
    for block in pages.blocks(page):
        if block.language == "python":
            compile(block.text, block.place, "exec")


def test_what_does_not_run_says_why(page):
    for block in pages.blocks(page):
        if block.directive == "not run":
            assert len(block.reason.split()) > 2, block.place


def test_every_command_and_option_exists_also_of_what_does_not_run(page):
    for block, command in shown_commands(page):
        line = command.line.partition(" | ")[0].replace("[", " ").replace("]", " ")
        words = shlex.split(line.replace("...", " "))
        words = words[next((n for n, word in enumerate(words) if "=" not in word), 0) :]
        if words[:1] != ["graphveil"]:
            continue
        named, rest = find_command(words[1:])
        assert named is not None, f"{block.place}: {command.line}"
        known = {name for one in named.params for name in (*one.opts, *one.secondary_opts)}
        known |= {"--help", "-h"}
        options = {
            part.partition("=")[0]
            for word in rest for part in word.split("|") if part.startswith("--")
        }  # fmt: skip
        assert options <= known, f"{block.place}: {sorted(options - known)}"


def test_no_formula_passes_for_html(page):
    """<x, y> outside code is a tag to a browser, which shows nothing."""
    text = re.sub(r"```.*?```|<!--.*?-->", "", (pages.DOCS / page).read_text(), flags=re.DOTALL)
    lines = [line for line in text.splitlines() if not line.startswith("    ")]
    tags = re.findall(r"<[A-Za-z/][^>\n]*", re.sub(r"`[^`]*`", "", "\n".join(lines)))
    assert set(tags) <= {'<div class="grid cards" markdown', "</div"}


def test_no_block_is_left_out():
    """Blocks are counted by another rule than the one that finds them."""
    for name in pages.page_names():
        text = (pages.DOCS / name).read_text()
        fences = text.count("```python\n")
        blocks = pages.blocks(name)
        assert sum(b.language == "python" and b.directive != "before" for b in blocks) == fences
        lines = sum(line.startswith("    $ graphveil") for line in text.splitlines())
        held = [c for b in blocks if b.is_shell for c in pages.commands(b)]
        assert sum(c.line.startswith("graphveil") for c in held) >= lines


def test_the_rules_of_blocks():
    text = (
        "words\n\n    graphveil methods   all of them\n    graphveil plan METHOD --epsilon E\n\n"
        "<!-- not run: reads what is not there -->\n\n```python\nx = 1\n```\n\n"
        "<!-- before\ngraphveil recipes\n-->\n\n    $ graphveil methods\n    a table\n    b\n"
    )
    first, python, before, last = pages.blocks("page.md", text)
    assert [command.line for command in pages.commands(first)] == [
        "graphveil methods", "graphveil plan METHOD --epsilon E",
    ]  # fmt: skip
    assert [command.is_form for command in pages.commands(first)] == [False, True]
    assert (python.directive, python.reason) == ("not run", "reads what is not there")
    assert (before.directive, before.text) == ("before", "graphveil recipes")
    (command,) = pages.commands(last)
    assert command.shown == ["a table", "b"]


def run_all(text):
    """Run the blocks of a page in this directory."""
    page = run_pages.Page()
    for block in pages.blocks("page.md", text):
        page.run(block)


WRONG = {
    "prints another line": "```python\nprint(1)\n```\n\n<!-- prints -->\n\n    2\n",
    "fails": "```python\nraise KeyError\n```\n",
    "is refused": "    graphveil account --rate 1.5 --noise-multiplier 1 --delta 1e-5\n",
    "shows another figure": "    $ graphveil account --rate 0.3 --noise-multiplier 4 --steps 150 "
    "--delta 1e-5\n    What the run costs\n    epsilon  4.0  at delta 1e-05\n",
    "shows another code": "    $ graphveil account --rate 1.5 --noise-multiplier 1 --delta 1e-5\n"
    "    graphveil: The 'rate' parameter must be a number in [0, 1]. Got 1.5 instead.\n"
    "    $ echo $?\n    3\n",
    "reads a file that is not there": "    head missing.csv\n",
}


@pytest.mark.parametrize("text", WRONG.values(), ids=WRONG)
def test_a_block_that_does_not_do_what_its_page_says_is_noticed(text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(run_pages.PageError):
        run_all(text)


def test_blocks_that_do_what_their_page_says_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    text = (
        "<!-- file: a/b.txt -->\n\n    one\n    two\n\n"
        "```python\nx = open('a/b.txt').read()\n```\n\n"
        "<!-- not run: it would fail -->\n\n```python\nraise KeyError\n```\n\n"
        "```python\nprint(x)\n```\n\n<!-- prints -->\n\n    one\n    two\n\nand\n\n"
        "    $ graphveil account --rate 0.3 --noise-multiplier 4 --steps 150 --delta 1e-5\n"
        "    What the run costs\n    epsilon  4.132  at delta 1e-05\n    ...\n"
    )
    run_all(text)


def test_every_public_name_has_a_place_in_the_reference():
    text = "\n".join(path.read_text() for path in (pages.DOCS / "api").glob("*.md"))
    places = set(re.findall(r"^::: ([\w.]+)$", text, re.MULTILINE))
    for name in set(graphveil.__all__) - {"__version__", "METHODS", "export", "runs"}:
        value = getattr(graphveil, name)
        module = value.__module__
        assert {module, f"{module}.{value.__name__}"} & places, name


def test_the_notebook_is_the_page():
    content = notebook.make()
    assert notebook.NOTEBOOK.read_text() == content
    cells = json.loads(content)["cells"]
    code = "".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    for block in pages.blocks(notebook.PAGE):
        if block.directive != "not run" and (block.is_shell or block.language == "python"):
            for line in block.text.splitlines():
                assert line in code
