"""Hooks of the documentation site: the page that is made at build time."""

from __future__ import annotations

import logging

import click
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

logger = logging.getLogger("mkdocs.plugins.graphveil")

COMMANDS_PAGE = "reference/commands.md"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the page of commands, which is what ``--help`` prints."""
    files.append(File.generated(config, COMMANDS_PAGE, content=commands_page()))
    return files


def commands_page() -> str:
    """Every command and sub-command with its help, in the order of ``graphveil --help``."""
    from graphveil import cli

    parts = [
        "# Commands, as `--help` prints them",
        "This page is made from the program when the site is built. [The command line](../cli.md)"
        " explains what the commands do and what their JSON holds.",
        block(cli.cli, ["graphveil"]),
    ]
    context = click.Context(cli.cli, info_name="graphveil")
    for name in cli.cli.list_commands(context):
        command = cli.cli.get_command(context, name)
        assert command is not None
        parts += [f"## graphveil {name}", block(command, ["graphveil", name])]
        if isinstance(command, click.Group):
            inner = click.Context(command, info_name=name, parent=context)
            for word in command.list_commands(inner):
                below = command.get_command(inner, word)
                assert below is not None
                words = ["graphveil", name, word]
                parts += [f"### {' '.join(words)}", block(below, words)]
    return "\n\n".join(parts) + "\n"


def block(command: click.Command, words: list[str]) -> str:
    """The help of one command as a block of text."""
    context = None
    for word in words[:-1]:
        context = click.Context(click.Command(word), info_name=word, parent=context)
    settings = {"terminal_width": 80, "max_content_width": 80}
    own = command.make_context(words[-1], [], parent=context, resilient_parsing=True, **settings)
    return f"```text\n{command.get_help(own)}\n```"
