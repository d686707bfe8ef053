"""The page about one run or several. :mod:`graphveil.report.template` says what kind of page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from graphveil.report.comparison import baselines, groups
from graphveil.report.sections import section
from graphveil.report.template import fill
from graphveil.report.wording import OUTSIDE

if TYPE_CHECKING:
    from graphveil.report.evidence import Evidence
    from graphveil.report.growth import Growth


def render(evidence: Sequence[Evidence], growth: Growth | None = None) -> str:
    """The page: one run's report, or a comparison with a section for each run.

    With the ``growth`` of a ledger's account it ends with what was spent over time.
    """
    sections = [
        section(run, f"run-{number}", baselines(run, evidence))
        for number, run in enumerate(evidence, 1)
    ]
    private = [place for place, run in enumerate(evidence) if run.status != "open"]
    many = len(evidence) > 1
    # One private run, alone or beside open ones, is what the page is about, and comes first.
    place = private[0] if len(private) == 1 else None if many else 0
    about = None if place is None else evidence[place]
    return fill(
        "report.html",
        "report.js",
        title=f"{len(evidence)} runs compared"
        if about is None
        else f"{about.method} on {about.data}",
        groups=groups(evidence) if many else [],
        first=None if place is None else sections[place],
        sections=[*sections[:place], *sections[place + 1 :]] if place is not None else sections,
        outside=OUTSIDE,
        growth=growth,
        growth_plot=None if growth is None else growth.plot("growth"),
    )
