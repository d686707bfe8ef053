"""Range checks that all speak one sentence.

    The 'rate' parameter must be a number in (0, 1]. Got 1.5 instead.

Each check returns the value it was given (as a plain ``int`` or ``float``), so that a check and an
assignment are one line. Booleans are not numbers here, and neither are NaN and infinity unless the
interval says so.
"""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any

from graphveil._errors import InvalidInputError


def number(name: str, value: Any, interval: str) -> float:
    """Check that ``value`` is a real number inside ``interval``, written as in a textbook.

    >>> number("rate", 0.5, "(0, 1]")
    0.5
    """
    if not _is_real(value) or not _inside(float(value), interval):
        raise _refusal(name, f"a number in {interval}", value)
    return float(value)


def integer(name: str, value: Any, interval: str) -> int:
    """Check that ``value`` is a whole number inside ``interval``."""
    whole = isinstance(value, Integral) or (_is_real(value) and float(value).is_integer())
    if isinstance(value, bool) or not whole or not _inside(float(value), interval):
        raise _refusal(name, f"a whole number in {interval}", value)
    return int(value)


def choice(name: str, value: Any, allowed: tuple[str, ...]) -> str:
    """Check that ``value`` is one of the words in ``allowed``."""
    if value not in allowed:
        raise _refusal(name, "one of " + ", ".join(repr(word) for word in allowed), value)
    return str(value)


def _is_real(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _inside(value: float, interval: str) -> bool:
    low, high = (float(end) for end in interval[1:-1].split(","))
    above = value >= low if interval[0] == "[" else value > low
    below = value <= high if interval[-1] == "]" else value < high
    return not math.isnan(value) and above and below


def _refusal(name: str, rule: str, value: Any) -> InvalidInputError:
    return InvalidInputError(f"The '{name}' parameter must be {rule}. Got {value!r} instead.")
