"""What a run would cost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from graphveil.cli import _choosing, _plans
from graphveil.cli import _options as option
from graphveil.cli._output import bar, check_page, write_text
from graphveil.cli._plans import plan_rows
from graphveil.cli._settings import MethodCommand, make_asked, merge, method_named

if TYPE_CHECKING:
    from graphveil.methods import Facts, Method


@click.command(cls=MethodCommand)
@click.argument("method", required=False, shell_complete=option.complete_method)
@_plans.known_data
@click.option(
    "--nodes",
    "--graphs",
    "--sources",
    type=int,
    help="How many: nodes, graphs as records, or sources of links.",
)
@_plans.sizes
@_plans.of_links
@click.option("--epsilon", type=float, help="What may be spent.")
@option.delta
@_choosing.questions
@option.recipe
@option.sets
@option.config
@click.option("--html", help="A page with sliders around this plan.")
@option.force
@option.as_json
def plan(
    method: str | None,
    config: str | None,
    sets: tuple[str, ...],
    html: str | None,
    force: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """What a method will run and cost, before any data is touched.

    \b
    graphveil plan dp-gnn --data pubmed --epsilon 8
    graphveil plan auto --data pubmed --epsilon 8 --shown-to themselves
    graphveil plan dp-gnn --nodes 50000 --features 64 --classes 5 --epsilon 4 --set sender_cap=3
    graphveil plan dp-gnn --data pubmed --epsilon 8 --html plan.html
    graphveil plan dp-link --data shop --epsilon 4
    graphveil plan dp-link --sources 5000 --features 12 --targets 900 --target-features 30 \
        --epsilon 4
    """
    check_page(html, force)
    sizes = {key: given.pop(key) for key in (*_plans.SIZES, "train", "directed", "targets")}
    sizes["target-features"] = given.pop("target_features")
    asked = merge(config, {"method": method, **given}, sets, _choosing.CONFIG)
    record = "graph" if asked.get("unit") == "graph" else "node"
    asked, choice = _choosing.resolve(asked, lambda: _plans.planned_facts(asked, sizes, record))
    made = make_asked(method_named(asked.get("method"), or_recipe=True), asked)
    facts = _plans.planned_facts(asked, sizes, made.record)
    planned = made.plan(facts)
    result = _plans.plan_result(planned, planned.certificate())
    if choice is not None:
        result.add("why", list(choice.why), "chosen because")
    if html is not None:
        _write_page(html, made, facts)
        result.add("html", html, "written to")
    result.show(as_json)


def _write_page(path: str, method: Method, facts: Facts) -> None:
    """The page with sliders around a plan."""
    from graphveil.report import plan_page

    axes, points = plan_page.grid(method, facts, bar("planning"))
    write_text(path, plan_page.render(method, facts, axes, points, plan_rows))
