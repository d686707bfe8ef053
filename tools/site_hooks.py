"""Hooks of the documentation site: a page made at build time, and links that read well."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import click
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

COMMANDS_PAGE = "reference/commands.md"
_FILE_AS_TEXT = re.compile(r"\[(?:[\w-]+/)*([\w-]+)\.md\]\(")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the page of commands, which is what ``--help`` prints."""
    files.append(File.generated(config, COMMANDS_PAGE, content=commands_page()))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """A link that is called by its file, as on a disk, is called by its page here."""
    return _FILE_AS_TEXT.sub(lambda match: f"[{match[1].replace('-', ' ')}](", markdown)


def commands_page() -> str:
    """Every command and sub-command with its help, in the order of ``graphveil --help``."""
    from graphveil import cli

    opening = (
        "# Commands, as `--help` prints them\n\n"
        "This page is made from the program when the site is built. [The command line](../cli.md)"
        " explains what the commands do and what their JSON holds."
    )
    return "\n\n".join([opening, *_sections(cli.cli, click.Context(cli.cli, None, "graphveil"))])


def _sections(command: click.Command, context: click.Context) -> Iterator[str]:
    """A command's help as a block, and those of the commands in it below headings."""
    own = command.make_context(
        context.info_name, [], parent=context.parent, resilient_parsing=True,
        terminal_width=80, max_content_width=80,
    )  # fmt: skip
    yield f"```text\n{command.get_help(own)}\n```\n"
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            inner = click.Context(below, context, name)
            path = inner.command_path
            yield f"{'#' * min(path.count(' ') + 1, 3)} {path}"
            yield from _sections(below, inner)
