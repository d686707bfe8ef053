"""From words on a command line, and a TOML file, to a method with its settings."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

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

_KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    "int": ((int,), "a whole number"),
    "float": ((int, float), "a number"),
    "str": ((str,), "a word"),
    "bool": ((bool,), "true or false"),
    "Any": ((int, float, dict, list, str), "a number, a word, or a list or table of numbers"),
}


def merged(
    config: str | None, given: Mapping[str, Any], sets: Sequence[str], more: Schema | None = None
) -> dict[str, Any]:
    """A file's values, replaced by those given on the command line; ``settings`` is a dict.

    ``more`` are keys that a command's file may hold beside CONFIG, and what they must be.
    """
    asked: dict[str, Any] = {}
    if config is not None:
        asked = read_table(Path(config), {**CONFIG, **(more or {})})
    asked |= {key: value for key, value in given.items() if value is not None}
    asked["settings"] = {**asked.get("settings", {}), **parsed(sets)}
    return asked


def parsed(sets: Sequence[str]) -> dict[str, Any]:
    """``key=value`` pairs; values as in TOML, words may stand without quotes."""
    found = {}
    for each in sets:
        key, equals, text = each.partition("=")
        if not equals or not key.strip():
            raise click.UsageError(f"Write '--set' as KEY=VALUE, e.g. steps=100. Got {each!r}.")
        found[key.strip()] = toml_value(text)
    return found


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
    return "epsilon" in _settings(kind)


def made(
    kind: type[Method],
    settings: Mapping[str, Any],
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    seed: int | None = None,
) -> Method:
    """A method with checked settings; ``epsilon`` exactly where there is something to spend."""
    checked = {key: check_setting(kind, key, value) for key, value in settings.items()}
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
        checked |= {"epsilon": _validate.number("epsilon", epsilon, "(0, inf)"), "delta": delta}
        if delta is not None:
            _validate.number("delta", delta, "(0, 1)")
    if seed is not None:
        checked["seed"] = seed
    return kind(**checked)


def check_setting(kind: type[Method], key: str, value: Any) -> Any:
    """The value of one setting, if there is such a setting and it takes such a value."""
    known = _settings(kind)
    if key in OWN_OPTIONS:
        raise InvalidInputError(f"The setting {key!r} has an option of its own; write --{key}.")
    if key not in known:
        listed = ", ".join(name for name in known if name not in OWN_OPTIONS)
        raise InvalidInputError(
            f"The method '{kind.name}' has no setting {key!r}; its settings are {listed}."
        )
    word, _, rest = known[key].partition(" | ")
    if rest == "None" and (value is None or str(value).lower() == "none"):
        return None
    allowed, rule = _KINDS[word]
    numbers = value.values() if isinstance(value, dict) else value
    numbers = numbers if isinstance(value, (dict, list)) else [value]
    fits = isinstance(value, allowed) and (word == "bool" or not isinstance(value, bool))
    if fits and not isinstance(value, str):
        fits = all(isinstance(each, (int, float)) and math.isfinite(each) for each in numbers)
    if not fits:
        rule += ", or none" if rest else ""
        got = _validate.shown(value)
        raise InvalidInputError(f"The setting '{key}' must be {rule}. Got {got} instead.")
    return value


def has_setting(kind: type[Method], key: str) -> bool:
    """Whether the method has such a setting."""
    return key in _settings(kind)


def _settings(kind: type[Method]) -> dict[str, str]:
    return {each.name: str(each.type) for each in fields(kind) if each.init}
