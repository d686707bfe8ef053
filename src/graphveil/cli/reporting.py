"""Pages to hand on: what runs promise and reach, and what a run would cost."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from graphveil._errors import InvalidInputError
from graphveil.cli._shared import bar, figure, force_option, json_option, show
from graphveil.cli.training import check_page

if TYPE_CHECKING:
    from graphveil.methods import Facts, Method


@click.command()
@click.argument("runs", nargs=-1, required=True)
@click.option("--out", required=True, help="The page, an HTML file.")
@force_option
@json_option
def report(runs: tuple[str, ...], out: str, force: bool, as_json: bool) -> None:
    """One HTML page about runs, complete in itself: what is promised, and what it costs.

    Several runs are compared, too; open ones (mlp, gnn) are the others' baselines.

    \b
    graphveil report runs/social --out report.html
    graphveil report runs/eps1 runs/eps8 runs/open --out compared.html
    """
    check_page(out, force)
    if len({os.path.realpath(run) for run in runs}) < len(runs):
        raise InvalidInputError("Each run must be named once. Got one of them twice instead.")
    from graphveil.report import evidence, page
    from graphveil.runs import write_text

    track = bar("reading runs")
    read = [evidence.read(run) for run in (runs if track is None else track(runs))]
    write_text(out, page.render(read))
    said: list[dict[str, Any]] = [
        {
            "run": each.path,
            "method": each.method,
            "data": each.data,
            "guarantee": each.status,
            "unit": each.certificate.guarantee.unit if each.private else None,
            "epsilon": "inf" if each.epsilon is None else each.epsilon,
            "delta": each.certificate.guarantee.delta,
            "test_accuracy": each.metrics["accuracy"],
        }
        for each in read
    ]
    rows = [
        (
            each.path,
            f"{each.method} on {each.data}, "
            + ("no guarantee" if each.epsilon is None else f"epsilon {figure(each.epsilon)}"),
        )
        for each in read
    ]
    show(
        {"out": out, "runs": said, "note": page.OUTSIDE},
        as_json,
        "Report",
        [*rows, ("written to", out), ("note", page.OUTSIDE)],
    )


def write_plan(path: str, method: Method, facts: Facts, rows: Any) -> None:
    """The page with sliders around a plan; ``rows`` are what ``graphveil plan`` prints of one."""
    from graphveil.report import plan_page
    from graphveil.runs import write_text

    axes, points = plan_page.grid(method, facts, bar("planning"))
    write_text(path, plan_page.render(method, facts, axes, points, rows))
