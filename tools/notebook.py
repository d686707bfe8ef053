"""The ten-minute walk as a notebook: ``python tools/notebook.py`` writes it from the page."""

from __future__ import annotations

import json
import re

import pages

PAGE = "ten-minutes.md"
NOTEBOOK = pages.ROOT / "examples" / "ten-minutes.ipynb"


def make() -> str:
    """The notebook's content: what runs is a cell of code, all else is text."""
    text = (pages.DOCS / PAGE).read_text()
    cells = []
    for place, part in enumerate(_parts(text)):
        kind, source = part
        cell = {"cell_type": kind, "id": f"cell-{place}", "metadata": {}, "source": source}
        if kind == "code":
            cell |= {"execution_count": None, "outputs": []}
        cells.append(cell)
    python = {"display_name": "Python 3", "language": "python", "name": "python3"}
    content = {
        "cells": cells,
        "metadata": {"kernelspec": python, "language_info": {"name": "python"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def _parts(text: str) -> list[tuple[str, list[str]]]:
    """Text and code in turn, each as lines."""
    lines = text.splitlines()
    parts: list[tuple[str, list[str]]] = []
    begins = 0
    for block in pages.blocks(PAGE, text):
        runs = block.directive != "not run" and (block.is_shell or block.language == "python")
        if not runs:
            continue
        _add(parts, "markdown", lines[begins : block.line - 1])
        if block.is_shell:
            _add(parts, "code", [f"!{command.line}" for command in pages.commands(block)])
            begins = block.line - 1 + len(block.text.splitlines())
        else:
            _add(parts, "code", block.text.splitlines())
            begins = block.line + 1 + len(block.text.splitlines())
    _add(parts, "markdown", lines[begins:])
    return parts


def _add(parts: list[tuple[str, list[str]]], kind: str, lines: list[str]) -> None:
    text = "\n".join(lines).strip("\n")
    text = re.sub(r"<!-- not run: .*? -->\n\n", "", text)
    # Links of the page lead from docs/, those of the notebook from examples/.
    text = (
        re.sub(r"\]\((?!http|#)([^)]+)\)", r"](../docs/\1)", text) if kind == "markdown" else text
    )
    if text:
        parts.append((kind, text.splitlines(keepends=True)))


if __name__ == "__main__":
    NOTEBOOK.write_text(make())
