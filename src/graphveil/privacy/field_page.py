"""The field as a page: docs/guarantees/field.md, written from field.toml and never by hand."""

from __future__ import annotations

from collections.abc import Mapping

from graphveil.privacy.field import BY_READING, Statement, Work
from graphveil.privacy.guarantee import round_up

_HEAD = """# Claims of the field, 2021 to 2026

What works on private graph neural networks claim, what holds of it, and what graphveil proves for
the same noise. Only what was read in a paper or in its code stands here, with the place; what was
not read is *not checked*. A test is named where one shows it; the others are *by reading*. Figures
are those of the commands, the claimed one by the published formula and the proven one for a run
that is as the command's note says: where nothing is proven it says none, and where graphveil has no
formula the cell is empty. How the formulas go is in [claims.md](claims.md).

This page is written by `graphveil claims list --markdown` from `src/graphveil/privacy/field.toml`;
a test compares the two. `graphveil claims show NAME` prints one work.
"""


def figures(statement: Statement) -> tuple[str, str]:
    """Claimed and proven epsilon of a statement's example, as people read them.

    *Guarantee.* None but the proven one, rounded up, for a run as the claim's note says.
    """
    if statement.example is None:
        return "", ""
    proven = statement.example.proven.proven_epsilon
    claimed = f"{statement.example.claimed.claimed_epsilon:.4g}"
    return claimed, "none" if proven is None else round_up(proven)


def written(works: Mapping[str, Work]) -> str:
    """The whole page."""
    return "\n".join([_HEAD, *_table(works), *(_section(work) for work in works.values())])


def _table(works: Mapping[str, Work]) -> list[str]:
    lines = [
        _row("work", "year", "unit", "holds", "claimed epsilon", "proven epsilon", "checked"),
        _row(*["---"] * 7),
    ]
    for work in works.values():
        for statement in work.statements:
            link = f"[{work.name}](#{work.name})"
            cells = [link, str(work.year or ""), statement.unit, statement.holds]
            lines.append(_row(*cells, *figures(statement), work.checked))
    return lines


def _section(work: Work) -> str:
    reference = ", ".join(
        str(part) for part in (work.authors, work.year, work.reference) if part is not None
    )
    code = "" if work.code is None else f" Code: {work.code}."
    blocks = [f"\n## {work.name}", f"*{work.title}*. {reference}.{code} Checked: {work.checked}."]
    blocks += [_paragraphs(statement) for statement in work.statements]
    return "\n\n".join(blocks)


def _paragraphs(statement: Statement) -> str:
    shown = ", ".join(text if text == BY_READING else f"`{text}`" for text in statement.shown_by)
    lines = [
        f"- **{statement.unit}** ({statement.relation}). {statement.claimed}",
        f"  *Holds: {statement.holds}.* {statement.because}",
        f"  *Read in:* {'; '.join(statement.places)}. *Shown by:* {shown}.",
    ]
    if statement.example is not None:
        claimed, proven = figures(statement)
        commands = " and ".join(f"`{line}`" for line in statement.example.commands)
        lines.append(
            f"  *Example* ({statement.example.source}): claimed {claimed}, proven {proven}, by "
            f"{commands}."
        )
    return "\n".join(lines)


def _row(*cells: str) -> str:
    return "| " + " | ".join(cells) + " |"
