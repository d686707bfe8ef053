"""A page about runs, to hand on."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from typing import TYPE_CHECKING, Any

import click

from graphveil.cli import _options as option
from graphveil.cli._output import Result, check_page, figure, track, write_text
from graphveil.cli._runs import check_account, check_distinct

if TYPE_CHECKING:
    from graphveil.report.evidence import Evidence
    from graphveil.report.owner import Owner


@click.command()
@click.argument("runs", nargs=-1, required=True)
@click.option("--out", required=True, help="The page, an HTML file.")
@click.option(
    "--for",
    "reader",
    type=click.Choice(["analyst", "officer"]),
    default="analyst",
    help="Whom the page is for: who compares figures, or who answers for the data and signs.",
)
@click.option(
    "--facts",
    type=click.Path(dir_okay=False),
    help="For an officer: a TOML file with what only the owner knows; options count more.",
)
@click.option("--name", help="For an officer: what the model is called.")
@click.option("--owner", multiple=True, help="For an officer: who answers for the data; repeat.")
@click.option("--purpose", help="For an officer: what the model is for.")
@click.option("--date", "day", metavar="DAY", help="For an officer: default: today.")
@click.option(
    "--metrics-public", metavar="WHY", help="For an officer: show test scores, and say why."
)
@option.ledger
@option.force
@option.as_json
def report(runs: tuple[str, ...], out: str, force: bool, as_json: bool, **asked: Any) -> None:
    """A page about runs, to hand on: what is promised, and what it costs.

    The page is one HTML file, complete in itself. Several runs are compared, too; open ones (mlp,
    gnn) are the others' baselines. For an officer it is about one run, in words, to be signed, and
    shows no accuracy. With --ledger it ends with what the account has spent over time.

    \b
    graphveil report runs/social --out report.html
    graphveil report runs/eps1 runs/eps8 runs/open --out compared.html
    graphveil report runs/social --for officer --facts owner.toml --out statement.html
    """
    check_page(out, force)
    check_distinct(runs)
    check_account(asked)
    reader = asked["reader"]
    _check_reader(asked)
    from graphveil.report import evidence, growth, officer, page

    stated = _owner(asked)
    read = [evidence.read(run) for run in track("reading runs", runs)]
    spent = None
    if asked["ledger"] is not None:
        signed = officer.only(read) if reader == "officer" else None
        spent = growth.read_growth(asked["ledger"], asked["account"], signed)
    if reader == "officer":
        day, why = asked["day"] or date.today().isoformat(), asked["metrics_public"]
        text = officer.render(officer.only(read), stated, day=day, growth=spent, metrics_public=why)
    else:
        text = page.render(read, spent)
    write_text(out, text, private=reader == "analyst")  # its scores are for nobody else
    result = Result("Report", runs=[_json(run) for run in read])
    result.update({"reader": reader})
    for run in read:
        proven = "no guarantee" if run.epsilon is None else f"epsilon {figure(run.epsilon)}"
        nothing = ", learnt nothing" if run.failed and reader == "analyst" else ""
        result.row(run.path, f"{run.method} on {run.data}, {proven}{nothing}")
    result.add("out", out, "written to")
    shows_scores = reader == "analyst" or asked["metrics_public"] is not None
    result.add("note", page.OUTSIDE if shows_scores else None, "note")
    result.show(as_json)


_FOR_OFFICERS = ("facts", "name", "owner", "purpose", "day", "metrics_public")


def _check_reader(asked: Mapping[str, Any]) -> None:
    """Refuse what an analyst's page does not show."""
    given = [name for name in _FOR_OFFICERS if asked[name] not in (None, ())]
    if asked["reader"] == "analyst" and given:
        option_ = {"day": "date"}.get(given[0], given[0]).replace("_", "-")
        raise click.UsageError(f"'--{option_}' needs '--for officer': no other page shows it.")
    if asked["day"] is not None:
        try:
            date.fromisoformat(asked["day"])
        except ValueError:
            raise click.UsageError(
                f"Write '--date' as a day, e.g. 2026-11-19. Got {asked['day']!r}."
            ) from None


def _owner(asked: Mapping[str, Any]) -> Owner:
    from graphveil.report.owner import check_reason, read_owner

    check_reason(asked["metrics_public"])
    return read_owner(asked["facts"], {key: asked[key] for key in ("name", "owner", "purpose")})


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
