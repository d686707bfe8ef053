"""What a page of the documentation shows: its blocks of Python and its commands, in their order.

A block runs unless a comment right before it says otherwise:

``<!-- not run: why -->``    the block illustrates; the reason is for readers of the source
``<!-- file: name -->``      the block is the content of a file, which the commands below read
``<!-- prints -->``          the block is what the Python before it prints
``<!-- before ... -->``      commands that a reader has run already, elsewhere
``<!-- before in Python ... -->``  the same for names that the Python below uses

A line with a word in capitals (``--data NAME``), square brackets or three dots is a *form*: it does
not run, but its command and all its options must exist. Behind two spaces a command ends.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"

_DIRECTIVE = re.compile(
    r"<!-- *(not run|file|prints|before in Python|before)\b:? *(.*?) *-->", re.DOTALL
)
_WORDS = (
    "graphveil", "mv", "cp", "cat", "mkdir", "head", "python", "pip", "make", "pytest", "psql",
    "torchrun", "sbatch", "parallel", "git", "export", "huggingface-cli",
)  # fmt: skip
_COMMAND = re.compile(rf"(?:[A-Z_]+=\S+ +)*(?:\.venv/bin/)?(?:{'|'.join(_WORDS)})\b")
_CAPITALS = re.compile(r"(?<![\w./=-])[A-Z][A-Z0-9]+(?![\w=-])|=[A-Z]{2,}\b|[A-Z]{3,}\.")


@dataclass(frozen=True)
class Block:
    """A block of a page, with the comment before it."""

    page: str
    line: int
    language: str  # of a fence; "shell" for indented commands, "" for other indented text
    text: str
    directive: str = ""
    reason: str = ""

    @property
    def place(self) -> str:
        """Where it stands, as editors open it."""
        return f"{self.page}:{self.line}"

    @property
    def is_shell(self) -> bool:
        """Whether it holds commands."""
        return self.language in ("shell", "bash", "console")


@dataclass
class Command:
    """A command of a block, and what the page shows below it."""

    place: str
    line: str
    shown: list[str] = field(default_factory=list)

    @property
    def is_form(self) -> bool:
        """Whether a reader has to fill something in."""
        line = re.sub(r'"[^"]*"', "", self.line)
        return bool(_CAPITALS.search(line) or re.search(r"\[|\.\.\.| \||\bN\b", line))


def page_names() -> list[str]:
    """Every page, as a path below ``docs``."""
    return sorted(str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md"))


def blocks(page: str, text: str | None = None) -> list[Block]:
    """The blocks of a page in their order, those in comments among them."""
    if text is None:
        text = (DOCS / page).read_text()
    return list(_scan(page, text.splitlines()))


def _scan(page: str, lines: list[str]) -> Iterator[Block]:
    directive, reason, number = "", "", 0
    while number < len(lines):
        line, start = lines[number], number + 1
        if line.startswith("<!--"):
            comment, number = _take_comment(lines, number)
            match = _DIRECTIVE.fullmatch(comment)
            if match and match[1].startswith("before"):
                language = "python" if "Python" in match[1] else "shell"
                yield Block(page, start, language, match[2].strip("\n"), "before")
            elif match:
                directive, reason = match[1], match[2]
            continue
        fence = re.match(r"( *)```(\w*)", line)
        if fence:
            body, number = _take_fence(lines, number, fence[1])
            yield Block(page, start, fence[2] or "text", body, directive, reason)
            directive = reason = ""
            continue
        if line.startswith("    ") and (not number or not lines[number - 1].strip()):
            body, number = _take_indented(lines, number)
            language = "shell" if _holds_commands(body) else ""
            yield Block(page, start, language, body, directive, reason)
            directive = reason = ""
            continue
        if line.strip():
            directive = reason = ""
        number += 1


def _take_comment(lines: list[str], number: int) -> tuple[str, int]:
    taken = [lines[number]]
    while "-->" not in taken[-1]:
        number += 1
        taken.append(lines[number])
    return "\n".join(taken).strip(), number + 1


def _take_fence(lines: list[str], number: int, indent: str) -> tuple[str, int]:
    taken: list[str] = []
    while not lines[number + 1].startswith(f"{indent}```"):
        number += 1
        taken.append(lines[number].removeprefix(indent))
    return "\n".join(taken), number + 2


def _take_indented(lines: list[str], number: int) -> tuple[str, int]:
    taken: list[str] = []
    while number < len(lines) and (lines[number].startswith("    ") or not lines[number].strip()):
        taken.append(lines[number][4:])
        number += 1
    return textwrap.dedent("\n".join(taken)).strip("\n"), number


def _holds_commands(text: str) -> bool:
    first = text.lstrip()
    return first.startswith("$ ") or bool(_COMMAND.match(first))


def commands(block: Block) -> list[Command]:
    """The commands of a block, each with the lines that are shown below it."""
    shown: list[Command] = []
    dollars = any(line.startswith("$ ") for line in block.text.splitlines())
    text = block.text.replace("\\\n", " ")
    for line in text.splitlines():
        if line.startswith("$ ") if dollars else _COMMAND.match(line):
            bare = re.split(r" {2,}(?!-)(?=[#A-Za-z])", line.removeprefix("$ "), maxsplit=1)[0]
            bare = re.sub(r" +", " ", bare.partition(" # ")[0]).strip()
            shown.append(Command(block.place, bare))
        elif shown and not line.startswith("#"):
            shown[-1].shown.append(line)
    return shown
