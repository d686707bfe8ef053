"""How many steps were begun: on disk before each of them, and with a witness elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from graphveil._files import append_file, write_file


class Witness(Protocol):
    """Who remembers releases apart from the files of a run; see docs/guarantees/ledger.md."""

    def known(self, place: Path) -> int:
        """How many releases were begun at a place."""

    def note(self, place: Path, count: int) -> None:
        """Remember that releases up to ``count`` begin; whoever must not go on is refused."""


class Nobody:
    """The witness of a run without a ledger: it remembers nothing, and files alone count."""

    def known(self, place: Path) -> int:
        return 0

    def note(self, place: Path, count: int) -> None:
        return


class Journal:
    """How many steps were begun: the length of a file, one byte longer before every step.

    With ``steps`` it is written anew with so many; without, it is the one in ``directory``.
    """

    def __init__(self, directory: Path, steps: int | None = None) -> None:
        self.directory, self.path = directory, directory / "steps"
        if steps is not None:
            write_file(self.path, b"." * steps, private=True)

    @property
    def steps(self) -> int:
        """Steps begun so far."""
        return self.path.stat().st_size

    def note(self) -> None:
        """Put the beginning of a step on disk."""
        append_file(self.path, b".", private=True)
