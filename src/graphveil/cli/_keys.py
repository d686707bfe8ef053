"""Passphrases of keys: from a file, or from whoever sits at the terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable

import click

from graphveil._errors import InvalidInputError
from graphveil._inputs import read_text

passphrase_file = click.option(
    "--passphrase-file",
    type=click.Path(dir_okay=False),
    help="A file whose first line is the key's passphrase; else it is asked at the terminal.",
)


def ask(path: str, passphrase_file: str | None) -> Callable[[], str] | None:
    """How to get a passphrase, if there is a way; it is called only where one is needed."""
    if passphrase_file is None and not sys.stdin.isatty():
        return None
    return lambda: read_passphrase(f"Passphrase of {path}", True, passphrase_file) or ""


def read_passphrase(prompt: str, ask: bool, file: str | None, confirm: bool = False) -> str | None:
    """A passphrase from a file or the terminal; None where none is asked for."""
    if file is not None:
        try:
            lines = read_text(file).splitlines()
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is no text"
            raise InvalidInputError(f"{file} cannot be read: {reason}; check the path.") from None
        return lines[0] if lines else ""
    if not ask:
        return None
    return str(click.prompt(prompt, hide_input=True, confirmation_prompt=confirm, err=True))
