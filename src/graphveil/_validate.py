"""Range checks that all speak one sentence.

    The 'rate' parameter must be a number in (0, 1]. Got 1.5 instead.

Each check returns the value it was given (as a plain ``int`` or ``float``), so that a check and an
assignment are one line. Booleans are not numbers here, and neither are NaN and infinity unless the
interval says so.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from numbers import Integral, Real
from typing import Any

from graphveil._errors import InvalidInputError


def number(name: str, value: Any, interval: str) -> float:
    """Check that ``value`` is a real number inside ``interval``, written as in a textbook.

    >>> number("rate", 0.5, "(0, 1]")
    0.5
    """
    if not _is_real(value) or not _inside(_float(value), interval):
        raise _refusal(name, f"a number in {interval}", value)
    return float(value)


def integer(name: str, value: Any, interval: str) -> int:
    """Check that ``value`` is a whole number inside ``interval``."""
    whole = isinstance(value, Integral) or (_is_real(value) and _float(value).is_integer())
    if isinstance(value, bool) or not whole or not _inside(_float(value), interval):
        raise _refusal(name, f"a whole number in {interval}", value)
    return int(value)


def choice(name: str, value: Any, allowed: tuple[str, ...]) -> str:
    """Check that ``value`` is one of the words in ``allowed``."""
    if value not in allowed:
        raise _refusal(name, "one of " + ", ".join(repr(word) for word in allowed), value)
    return str(value)


def near(value: str, known: Iterable[str]) -> str:
    """Half a sentence that ends a message about an unknown name: the names most like it."""
    from difflib import get_close_matches

    close = get_close_matches(value, list(known), n=3, cutoff=0.6)
    return f"; did you mean {' or '.join(close)}?" if close else "."


def shown(value: Any, most: int = 80) -> str:
    """A value for an error message: on one line, and never longer than ``most`` or so."""
    if isinstance(value, int) and value.bit_length() > 1000:  # repr refuses the longest
        return f"a whole number of about {int(value.bit_length() * math.log10(2)) + 1} digits"
    text = repr(value)
    return text if len(text) <= most else f"{text[:most]}... ({len(text)} characters)"


_MOST_WORDS = 4
_NAME = re.compile(r"[\w '/-]*\w[\w '/-]*")


def is_name(word: str) -> bool:
    """Whether a word, or a few of them, can stand in a promise for a record or its owner.

    That is at most 60 letters and digits in up to four words, or several such names with "or"
    between them; a sentence is no name.
    """
    names = [name.split() for name in word.split(" or ")]
    short = len(word) <= 60 and all(0 < len(words) <= _MOST_WORDS for words in names)
    return short and word.isprintable() and _NAME.fullmatch(word) is not None


def _is_real(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _float(value: Any) -> float:
    """As a float; NaN, which is in no interval, where it is too large for one."""
    try:
        return float(value)
    except OverflowError:
        return math.nan


def _inside(value: float, interval: str) -> bool:
    low, high = (float(end) for end in interval[1:-1].split(","))
    above = value >= low if interval[0] == "[" else value > low
    below = value <= high if interval[-1] == "]" else value < high
    return not math.isnan(value) and above and below


def _refusal(name: str, rule: str, value: Any) -> InvalidInputError:
    return InvalidInputError(f"The '{name}' parameter must be {rule}. Got {shown(value)} instead.")
