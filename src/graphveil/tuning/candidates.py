"""What a tuning run may try: lists and ranges of settings, written as on a command line.

steps=50,100,150              one of these
learning_rate=0.001..0.1      any number between, evenly on a logarithmic scale
teleport=0..0.9:even          any number between, evenly
hidden_channels=16..128       whole ends: whole numbers between
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from scipy import special

from graphveil._errors import InvalidInputError
from graphveil._inputs import toml_value
from graphveil.rng import SecretStream

_EVEN = ":even"


@dataclass(frozen=True)
class Listed:
    """One of ``values``, each as likely as the others."""

    values: tuple[Any, ...]

    def at(self, share: float) -> Any:
        """The value below which a ``share`` of the draws lies."""
        return self.values[min(int(share * len(self.values)), len(self.values) - 1)]

    @property
    def looked_at(self) -> tuple[Any, ...]:
        """The values that a plan looks at."""
        return self.values

    def plain(self) -> Any:
        """As JSON and TOML have it."""
        return list(self.values)


@dataclass(frozen=True)
class Between:
    """A number from ``low`` to ``high``, even on a logarithmic scale unless ``even``."""

    low: float
    high: float
    even: bool = False

    @property
    def whole(self) -> bool:
        """Whether it takes whole numbers only."""
        return isinstance(self.low, int) and isinstance(self.high, int)

    def at(self, share: float) -> float:
        """The value below which a ``share`` of the draws lies."""
        if self.whole and self.even:
            return min(self.low + int(share * (self.high - self.low + 1)), self.high)
        if self.even:
            return self.low + share * (self.high - self.low)
        value = self.low * (self.high / self.low) ** share
        value = min(max(value, self.low), self.high)
        return round(value) if self.whole else value

    @property
    def looked_at(self) -> tuple[Any, ...]:
        """The values that a plan looks at."""
        return self.low, self.at(0.5), self.high

    def plain(self) -> str:
        """As JSON and TOML have it."""
        return f"{self.low}..{self.high}{_EVEN if self.even else ''}"


Values = Listed | Between


def values_of(key: str, given: Any) -> Values:
    """What one setting may be: from a word (as above), or from a list."""
    if isinstance(given, str) and ".." in given:
        return _between(key, given)
    values = [toml_value(word) for word in given.split(",")] if isinstance(given, str) else given
    if not isinstance(values, (list, tuple)) or any(value == "" for value in values):
        raise _refused(key, given)
    different = [value for number, value in enumerate(values) if value not in values[:number]]
    if len(different) < 2:
        raise InvalidInputError(
            f"The setting '{key}' must have two values to choose from, or more. Got {given!r} "
            "instead; a setting with one value is set, not varied."
        )
    return Listed(tuple(different))


def _between(key: str, text: str) -> Between:
    ends, even = text.strip(), text.strip().endswith(_EVEN)
    low, high = (toml_value(end) for end in ends.removesuffix(_EVEN).split("..", 1))
    for end in (low, high):
        if isinstance(end, bool) or not isinstance(end, (int, float)) or not math.isfinite(end):
            raise _refused(key, text)
    if not low < high:
        raise InvalidInputError(
            f"The range of '{key}' must go up. Got {text!r} instead; write LOW..HIGH."
        )
    if low <= 0 and not even:
        raise InvalidInputError(
            f"The range of '{key}' must start above 0, as its scale is logarithmic. Got {text!r} "
            f"instead; write {low}..{high}{_EVEN} for an even one."
        )
    return Between(low, high, even)


def _refused(key: str, given: Any) -> InvalidInputError:
    return InvalidInputError(
        f"What '{key}' may be must be a list, e.g. 50,100,150, or a range of numbers, e.g. "
        f"0.001..0.1. Got {given!r} instead."
    )


def drawn(vary: Mapping[str, Values], rng: SecretStream) -> dict[str, Any]:
    """One candidate: every setting by itself.

    From the secret stream: were the sequence of candidates known, the winner would tell in which
    trial it was found, and so of how many.
    """
    shares = special.ndtr(rng.normal(len(vary)))
    return {
        key: values.at(float(share))
        for (key, values), share in zip(vary.items(), shares, strict=True)
    }
