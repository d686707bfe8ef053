"""The settings of published experiments."""

from __future__ import annotations

import click

from graphveil.cli import _options as option
from graphveil.cli._output import Result


@click.command()
@click.argument("name", required=False)
@option.as_json
def recipes(name: str | None, as_json: bool) -> None:
    """The settings of published experiments, by name.

    Without NAME: the names there are. A recipe runs what a paper did; the certificate says what the
    paper claims, and what of it is proven.

    \b
    graphveil recipes
    graphveil recipes zhang-em1
    graphveil train --recipe zhang-em1 --data cora-ml --out runs/zhang
    """
    from graphveil.methods import recipes as known

    if name is None:
        listed = known.recipes()
        result = Result("Recipes known by name", recipes={k: vars(r) for k, r in listed.items()})
        result.table(
            ["name", "method", "title"], [[r.name, r.method, r.title] for r in listed.values()]
        )
        result.show(as_json)
        return
    recipe = known.read(name)
    result = Result(recipe.title, name=recipe.name, method=recipe.method)
    result.row("method", recipe.method)
    result.add("source", recipe.source, "source")
    result.add("data", recipe.data, "data")
    result.add("epsilon", recipe.epsilon, "claimed epsilon", "{:g}".format)
    result.update({"settings": dict(recipe.settings), "differs": list(recipe.differs)})
    for key, value in recipe.settings.items():
        result.row(key, str(value))
    result.note(*recipe.differs)
    result.show(as_json)
