"""A page about runs, to hand on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from graphveil.cli import _options as option
from graphveil.cli._output import Result, check_page, figure, track, write_text
from graphveil.cli._runs import check_distinct

if TYPE_CHECKING:
    from graphveil.report.evidence import Evidence


@click.command()
@click.argument("runs", nargs=-1, required=True)
@click.option("--out", required=True, help="The page, an HTML file.")
@option.force
@option.as_json
def report(runs: tuple[str, ...], out: str, force: bool, as_json: bool) -> None:
    """A page about runs, to hand on: what is promised, and what it costs.

    The page is one HTML file, complete in itself. Several runs are compared, too; open ones (mlp,
    gnn) are the others' baselines.

    \b
    graphveil report runs/social --out report.html
    graphveil report runs/eps1 runs/eps8 runs/open --out compared.html
    """
    check_page(out, force)
    check_distinct(runs)
    from graphveil.report import evidence, page

    read = [evidence.read(run) for run in track("reading runs", runs)]
    write_text(out, page.render(read))
    result = Result("Report", runs=[_json(run) for run in read])
    for run in read:
        proven = "no guarantee" if run.epsilon is None else f"epsilon {figure(run.epsilon)}"
        nothing = ", learnt nothing" if run.failed else ""
        result.row(run.path, f"{run.method} on {run.data}, {proven}{nothing}")
    result.add("out", out, "written to")
    result.add("note", page.OUTSIDE, "note")
    result.show(as_json)


def _json(run: Evidence) -> dict[str, Any]:
    return {
        "run": run.path,
        "method": run.method,
        "data": run.data,
        "guarantee": run.status,
        "unit": run.certificate.guarantee.unit if run.private else None,
        "epsilon": "inf" if run.epsilon is None else run.epsilon,
        "delta": run.certificate.guarantee.delta,
        "test_accuracy": run.metrics["accuracy"],
        "task": run.facts.task,
        "metric": run.metric,
        "figure": run.figure,
        "guess": run.guess,
        "learnt": run.metrics["learnt"],
    }
