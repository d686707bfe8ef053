"""From words on a command line, and a TOML file, to a method with its settings."""

from __future__ import annotations

import math
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from graphveil import _validate
from graphveil._errors import InvalidInputError
from graphveil._inputs import toml_value
from graphveil._schema import NUMBER, Schema, read_table

if TYPE_CHECKING:
    from graphveil.methods import Method

# Settings with an option of their own, which --set leaves alone.
OWN_OPTIONS = ("epsilon", "delta", "seed")
CONFIG: Schema = {
    "method": str,
    "data": str,
    "root": str,
    "epsilon": NUMBER,
    "delta": NUMBER,
    "seed": int,
    "split": str,
    "out": str,
    "ledger": str,
    "account": str,
    "private_losses": bool,
    "classes": (int, str, list),
    "directed": bool,
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
    return asked


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
        methods.append((word, method_named(name.strip()), parse(pairs.split("+")) if pairs else {}))
    if not methods:
        raise click.UsageError("'--methods' names none; leave it out, or name one.")
    return methods


def require(asked: Mapping[str, Any], *names: str) -> None:
    """Refuse where an option is missing that a file may give, too."""
    for name in names:
        if asked.get(name) in (None, ""):
            raise click.UsageError(f"Missing option '--{name}'.")


# --- methods --------------------------------------------------------------------------------------


def method_named(name: str | None) -> type[Method]:
    """The method of that name, or one line with all names."""
    from graphveil.methods import METHODS

    if name is None:
        raise click.UsageError(f"Missing argument 'METHOD': one of {', '.join(METHODS)}.")
    if name not in METHODS:
        raise InvalidInputError(
            f"The method must be one of {', '.join(METHODS)}. Got {name!r} instead."
        )
    return METHODS[name]


def is_private(kind: type[Method]) -> bool:
    """Whether a method has a budget."""
    return getattr(kind, "private", "epsilon" in settings_of(kind))


def compared_methods(record: str) -> list[str]:
    """The methods that ``compare`` takes for such records: private ones, then those in the open."""
    from graphveil.methods import METHODS

    # Others are compared where they are asked for.
    compared = {
        name: kind
        for name, kind in METHODS.items()
        if kind.record == record and getattr(kind, "compared", name != "graph-split")
    }
    return sorted(compared, key=lambda name: not is_private(compared[name]))


def describe_methods() -> str:
    """Every method, by what it classifies and whether it is private, in one sentence."""
    from graphveil.methods import METHODS

    def names(record: str, private: bool) -> str:
        return ", ".join(
            name
            for name, kind in METHODS.items()
            if kind.record == record and is_private(kind) == private
        )

    nodes, graphs = (
        f"{names(record, True)} (private), {names(record, False)} (in the open)"
        for record in ("node", "graph")
    )
    return f"{nodes}; for whole graphs {graphs}"


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
    if not is_private(kind):
        if epsilon is not None or delta is not None:
            name = "epsilon" if epsilon is not None else "delta"
            raise InvalidInputError(
                f"The method '{kind.name}' trains in the open and has no budget. Got --{name} "
                "instead of none; leave it out, or train a private method."
            )
    else:
        if epsilon is None:
            raise click.UsageError(f"Missing option '--epsilon': what '{kind.name}' may spend.")
        values |= {"epsilon": _validate.number("epsilon", epsilon, "(0, inf)"), "delta": delta}
        if delta is not None:
            _validate.number("delta", delta, "(0, 1)")
    if seed is not None:
        values["seed"] = seed
    return kind(**values)


def make_asked(kind: type[Method], asked: Mapping[str, Any]) -> Method:
    """The method that :func:`merge` was asked for."""
    return make(kind, asked["settings"], **{name: asked.get(name) for name in OWN_OPTIONS})


# --- settings -------------------------------------------------------------------------------------


def settings_of(kind: type[Method]) -> dict[str, Field[Any]]:
    """The settings of a method, those with an option of their own among them."""
    return {field.name: field for field in fields(kind) if field.init}


def check_settings(kind: type[Method], settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings as a method takes them, if it has them and they take such values."""
    return {key: check_setting(kind, key, value) for key, value in settings.items()}


def check_setting(kind: type[Method], key: str, value: Any) -> Any:
    """The value of one setting, if there is such a setting and it takes such a value."""
    if key in OWN_OPTIONS:
        raise InvalidInputError(f"The setting {key!r} has an option of its own; write --{key}.")
    if key not in settings_of(kind):
        listed = ", ".join(name for name in settings_of(kind) if name not in OWN_OPTIONS)
        raise InvalidInputError(
            f"The method '{kind.name}' has no setting {key!r}; its settings are {listed}."
        )
    hint = typing.get_type_hints(kind)[key]
    members, optional = _members(hint)
    if optional and (value is None or str(value).lower() == "none"):
        return None
    if not any(_fits(value, member) for member in members):
        raise InvalidInputError(
            f"The setting '{key}' must be {_rule(hint)}. Got {_validate.shown(value)} instead."
        )
    return value


_KINDS: dict[Any, tuple[tuple[type, ...], str]] = {
    int: ((int,), "a whole number"),
    float: ((int, float), "a number"),
    str: ((str,), "a word"),
    bool: ((bool,), "true or false"),
}
_ANY = ((int, float, dict, list, str), "a number, a word, or a list or table of numbers")


def _members(hint: Any) -> tuple[list[Any], bool]:
    """What a type hint allows, one by one, and whether it allows none, too."""
    union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    members = typing.get_args(hint) if union else (hint,)
    return [member for member in members if member is not type(None)], type(None) in members


def _fits(value: Any, member: Any) -> bool:
    if typing.get_origin(member) is Literal:
        return value in typing.get_args(member)
    allowed, _ = _KINDS.get(member, _ANY)
    if not isinstance(value, allowed) or isinstance(value, bool) != (member is bool):
        return False
    numbers = value if isinstance(value, list) else [value]
    numbers = list(value.values()) if isinstance(value, dict) else numbers
    return isinstance(value, str) or all(
        isinstance(number, (int, float)) and math.isfinite(number) for number in numbers
    )


def _rule(hint: Any, within: str | None = None) -> str:
    """What a setting must be, in words."""
    members, optional = _members(hint)
    words = [
        "one of " + ", ".join(map(repr, typing.get_args(member)))
        if typing.get_origin(member) is Literal
        else _KINDS.get(member, _ANY)[1]
        for member in members
    ]
    interval = f" in {within}" if within else ""
    return " or ".join(words) + interval + (", or none" if optional else "")


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
                formatter.write_dl(describe_settings(METHODS[name]))
            return
        with formatter.section("Methods"):
            formatter.write_text(f"{describe_methods()}.")
            formatter.write_text("graphveil train NAME --help lists the settings of one.")


def describe_settings(kind: type[Method]) -> list[tuple[str, str]]:
    """Every setting of a method: what it is, what it may be, and its default."""
    hints = typing.get_type_hints(kind)
    return [
        (name, _describe(field, hints[name]))
        for name, field in settings_of(kind).items()
        if name not in OWN_OPTIONS
    ]


def _describe(field: Field[Any], hint: Any) -> str:
    rule = _rule(hint, field.metadata.get("within"))
    default = field.default if field.default_factory is MISSING else field.default_factory()
    end = "required" if default is MISSING else f"default {str(default).lower()}"
    return f"{field.metadata.get('doc', '')} {rule[0].upper()}{rule[1:]}; {end}.".strip()
