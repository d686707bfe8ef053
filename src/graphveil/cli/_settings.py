"""From words on a command line, and a TOML file, to a method with its settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from graphveil import _validate
from graphveil._errors import InvalidInputError
from graphveil._given_settings import OWN_OPTIONS, check_setting, check_settings
from graphveil._inputs import toml_value
from graphveil._schema import NUMBER, Schema, read_table

if TYPE_CHECKING:
    from graphveil.methods import Method

__all__ = [
    "OWN_OPTIONS", "MethodCommand", "check_setting", "check_settings", "compared_methods",
    "describe_methods", "describe_own", "make", "make_asked", "merge", "method_named", "parse",
    "parse_methods", "require",
]  # fmt: skip

CONFIG: Schema = {
    **dict.fromkeys(
        (
            "method",
            "recipe",
            "data",
            "root",
            "split",
            "out",
            "ledger",
            "account",
            "thinned",
            "schema",
            "device",
            "target",
            "link",
        ),
        str,
    ),
    **dict.fromkeys(("epsilon", "delta", "train_share"), NUMBER),
    **dict.fromkeys(("private_losses", "directed"), bool),
    **dict.fromkeys(("seed", "min_class"), int),
    "fractions": list,
    "people": (str, list),
    "classes": (int, str, list),
    "settings": dict,
}


# --- what was asked for ---------------------------------------------------------------------------


def merge(
    config: str | None, given: Mapping[str, Any], sets: Sequence[str], more: Schema | None = None
) -> dict[str, Any]:
    """A file's values, replaced by those given on the command line; ``settings`` is a dict.

    ``more`` are keys that a command's file may hold beside CONFIG, and what they must be.
    """
    asked = {} if config is None else read_table(Path(config), {**CONFIG, **(more or {})})
    asked |= {key: value for key, value in given.items() if value is not None}
    asked["settings"] = {**asked.get("settings", {}), **parse(sets)}
    return asked if asked.get("recipe") is None else _follow(asked)


def _follow(asked: dict[str, Any]) -> dict[str, Any]:
    """What a recipe says, replaced by what was asked for besides."""
    from graphveil.methods.recipes import read

    recipe = read(asked["recipe"])
    if asked.get("method", recipe.method) != recipe.method:
        raise InvalidInputError(
            f"The recipe {recipe.name!r} is one of the method '{recipe.method}'. Got "
            f"{asked['method']!r} instead; leave out the method, or the recipe."
        )
    settings = {**recipe.settings, **asked["settings"]}
    own = {} if recipe.data is None else {"data": recipe.data}
    return {**own, **recipe.budget, **asked, "method": recipe.method, "settings": settings}


def parse(sets: Sequence[str]) -> dict[str, Any]:
    """``key=value`` pairs; values as in TOML, words may stand without quotes."""
    settings = {}
    for pair in sets:
        key, equals, text = pair.partition("=")
        if not equals or not key.strip():
            raise click.UsageError(f"Write '--set' as KEY=VALUE, e.g. steps=100. Got {pair!r}.")
        settings[key.strip()] = toml_value(text)
    return settings


def parse_methods(text: str) -> list[tuple[str, type[Method], dict[str, Any]]]:
    """Methods with commas between them, as they were written and as NAME:KEY=VALUE+KEY=VALUE."""
    methods = []
    for word in filter(None, map(str.strip, text.split(","))):
        name, colon, pairs = word.partition(":")
        if colon and not all("=" in pair for pair in pairs.split("+")):
            raise click.UsageError(
                f"Write a method in '--methods' as NAME or NAME:KEY=VALUE+KEY=VALUE. Got {word!r}."
            )
        kind, settings = _method_or_recipe(name.strip())
        methods.append((word, kind, settings | (parse(pairs.split("+")) if pairs else {})))
    if not methods:
        raise click.UsageError("'--methods' names none; leave it out, or name one.")
    return methods


def _method_or_recipe(name: str) -> tuple[type[Method], dict[str, Any]]:
    """A method, or that of a recipe with its settings."""
    from graphveil.methods import METHODS
    from graphveil.methods.recipes import read, recipes

    if name in METHODS or name not in recipes():
        return method_named(name), {}
    recipe = read(name)
    return METHODS[recipe.method], dict(recipe.settings)


def require(asked: Mapping[str, Any], *names: str) -> None:
    """Refuse where an option is missing that a file may give, too."""
    for name in names:
        if asked.get(name) in (None, ""):
            raise click.UsageError(f"Missing option '--{name}'.")


# --- methods --------------------------------------------------------------------------------------


def method_named(name: str | None, or_recipe: bool = False) -> type[Method]:
    """The method of that name, or one line with all names."""
    from graphveil.methods import METHODS

    if name is None:
        other = ", or '--recipe' in its place" if or_recipe else ""
        raise click.UsageError(f"Missing argument 'METHOD': one of {', '.join(METHODS)}{other}.")
    return METHODS[_validate.choice("method", name, tuple(METHODS))]


def compared_methods(record: str) -> list[str]:
    """The methods that ``compare`` takes for such records: private ones, then those in the open."""
    from graphveil.methods import METHODS

    # Others are compared where they are asked for.
    compared = [kind for kind in METHODS.values() if kind.record == record and kind.compared]
    return [kind.name for kind in sorted(compared, key=lambda kind: not kind.private)]


def describe_methods() -> str:
    """Every method, by what it learns from and whether it is private; a line for each kind."""
    from graphveil.methods import METHODS

    def names(record: str, private: bool) -> str:
        kinds = [kind for kind in METHODS.values() if kind.record == record]
        return ", ".join(kind.name for kind in kinds if kind.private == private)

    kinds = {"node": "nodes", "graph": "whole graphs", "link": "links"}
    return "\n".join(
        f"of {what}, {how}: {names(record, private)}"
        for record, what in kinds.items()
        for private, how in ((True, "private"), (False, "in the open"))
    )


def make(
    kind: type[Method],
    settings: Mapping[str, Any],
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    seed: int | None = None,
) -> Method:
    """A method with checked settings; ``epsilon`` exactly where there is something to spend."""
    values = check_settings(kind, settings)
    budget = {"epsilon": epsilon, "delta": delta}
    if kind.private:
        if epsilon is None:
            raise click.UsageError(f"Missing option '--epsilon': what '{kind.name}' may spend.")
        values |= budget | {"epsilon": _validate.number("epsilon", epsilon, "(0, inf)")}
    elif name := next((name for name, value in budget.items() if value is not None), None):
        raise InvalidInputError(
            f"The method '{kind.name}' trains in the open and has no budget. Got --{name} "
            "instead of none; leave it out, or train a private method."
        )
    return kind(**values, **({} if seed is None else {"seed": seed}))


def make_asked(kind: type[Method], asked: Mapping[str, Any]) -> Method:
    """The method that :func:`merge` was asked for."""
    return make(kind, asked["settings"], **{name: asked.get(name) for name in OWN_OPTIONS})


# --- help -----------------------------------------------------------------------------------------


class MethodCommand(click.Command):
    """A command about methods. Its help lists them, or the settings of the one that is named."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Keep the words: help is asked for before an argument has a value."""
        ctx.meta["graphveil.words"] = tuple(args)
        return super().parse_args(ctx, args)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Methods, or settings."""
        from graphveil.methods import METHODS

        super().format_epilog(ctx, formatter)
        name = next((word for word in ctx.meta.get("graphveil.words", ()) if word in METHODS), None)
        if name is not None:
            with formatter.section(f"Settings of {name}, by --set KEY=VALUE"):
                formatter.write_dl(describe_own(METHODS[name]))
            return
        with formatter.section("Methods"):
            for line in describe_methods().splitlines():
                formatter.write_text(line)
            formatter.write_text("graphveil train NAME --help lists the settings of one.")


def describe_own(kind: type[Method]) -> list[tuple[str, str]]:
    """Every setting that ``--set`` takes: what it is, what it may be, and its default."""
    from graphveil.methods.settings import describe_settings

    return [
        (name, f"{doc} {rule}.".strip())
        for name, (doc, rule) in describe_settings(kind).items()
        if name not in OWN_OPTIONS
    ]
