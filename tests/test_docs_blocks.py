"""Every block of every page runs with the site, or says why not; the walk is a notebook."""

import json
import re
import shlex

import click
import pytest

import notebook
import pages
from graphveil import cli


@pytest.fixture(scope="module", params=pages.page_names())
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


def test_the_notebook_is_the_page():
    content = notebook.make()
    assert notebook.NOTEBOOK.read_text() == content
    cells = json.loads(content)["cells"]
    code = "".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    for block in pages.blocks(notebook.PAGE):
        if block.directive != "not run" and (block.is_shell or block.language == "python"):
            for line in block.text.splitlines():
                assert line in code
