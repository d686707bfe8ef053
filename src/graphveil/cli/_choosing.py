"""The method ``auto``: what was asked of it, and the method that public facts choose."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import click

from graphveil._schema import Schema
from graphveil.cli import _options as option
from graphveil.cli import _settings

if TYPE_CHECKING:
    from graphveil.methods import Facts
    from graphveil.methods.choosing import Choice

AUTO = "auto"
CONFIG: Schema = {"unit": str, "shown_to": str}  # what a file may say besides

questions = option.together(
    click.option(
        "--unit",
        type=click.Choice(["node", "edge", "graph"]),
        help="What 'auto' protects. Default: the record, a node or a graph.",
    ),
    click.option(
        "--shown-to",
        type=click.Choice(["owner", "themselves", "anybody", "other-graph"]),
        help="Who sees predictions, for 'auto': people who may see every row anyway, each node its "
        "own, people who may see no private row; or they are made on another graph. Default: "
        "owner, and other-graph with --split inductive.",
    ),
)


def choose_asked(asked: Mapping[str, Any], facts: Facts) -> Choice:
    """The choice for what was asked."""
    from graphveil.methods.choosing import choose

    shown_to = asked.get("shown_to")
    if asked.get("split") == "inductive":
        if shown_to not in (None, "other-graph"):
            raise click.UsageError(
                "'--split inductive' predicts on another graph than it trains on. Got --shown-to "
                f"{shown_to}; write --shown-to other-graph, or take another split."
            )
        shown_to = "other-graph"
    return choose(
        facts,
        unit=asked.get("unit"),
        shown_to="owner" if shown_to is None else shown_to,
        epsilon=asked["epsilon"],
        delta=asked.get("delta"),
    )


def resolve(
    asked: dict[str, Any], know: Callable[[], Facts]
) -> tuple[dict[str, Any], Choice | None]:
    """What was asked for with the chosen method in the place of ``auto``, and the choice.

    ``know`` gives the public facts, where they are needed. No choice is made of a method that is
    named.
    """
    method = asked.get("method")
    if method != AUTO:
        given = [name for name in CONFIG if asked.get(name) is not None]
        if given and method is not None:
            raise click.UsageError(
                f"'--{given[0].replace('_', '-')}' goes with the method 'auto'. Got the method "
                f"{method!r}; leave it out, or set what the method has by '--set'."
            )
        return asked, None
    _settings.require(asked, "epsilon")
    if "unit" in asked["settings"]:
        raise click.UsageError("With the method 'auto' write '--unit' in place of '--set unit'.")
    choice = choose_asked(asked, know())
    settings = {**choice.settings, **asked["settings"]}
    return {**asked, "method": choice.method, "settings": settings}, choice


def describe(choice: Choice) -> str:
    """Which method was chosen and why, in one line."""
    return f"auto takes {choice.method}. {' '.join(choice.why)}"
