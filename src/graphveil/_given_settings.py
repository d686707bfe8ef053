"""Settings as a command line or a file gives them, checked before a method is made.

Methods are imported when a setting is checked: help answers before.
"""

from __future__ import annotations

import math
import typing
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from graphveil import _validate
from graphveil._errors import InvalidInputError

if TYPE_CHECKING:
    from graphveil.methods.base import Method

# Settings with an option of their own, which --set leaves alone.
OWN_OPTIONS = ("epsilon", "delta", "seed")


def check_settings(kind: type[Method], settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings as a method takes them, if it has them and they take such values."""
    return {key: check_setting(kind, key, value) for key, value in settings.items()}


def check_setting(kind: type[Method], key: str, value: Any) -> Any:
    """The value of one setting, if there is such a setting and it takes such a value."""
    if key in OWN_OPTIONS:
        raise InvalidInputError(f"The setting {key!r} has an option of its own; write --{key}.")
    from graphveil.methods.settings import check_value, setting_fields, setting_types

    known = setting_fields(kind)
    if key not in known:
        listed = ", ".join(name for name in known if name not in OWN_OPTIONS)
        raise InvalidInputError(
            f"The method '{kind.name}' has no setting {key!r}; its settings are {listed}."
        )
    hint = setting_types(kind)[key]
    if str(value).lower() == "none" and type(None) in typing.get_args(hint):
        return None
    if hint is Any and not _is_plain(value):
        raise InvalidInputError(
            f"The '{key}' parameter must be a number, a word, or a list or table of numbers. Got "
            f"{_validate.shown(value)} instead."
        )
    check_value(key, value, hint, known[key].metadata.get("within"))
    return value


def _is_plain(value: Any) -> bool:
    """Whether a value is a word, or one or several finite numbers."""
    values = value.values() if isinstance(value, dict) else value
    return isinstance(value, str) or all(
        type(number) in (int, float) and math.isfinite(number)
        for number in (values if isinstance(value, (dict, list)) else [value])
    )
