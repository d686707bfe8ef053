"""A seat for one observer of everything that is drawn and released: audits take it.

    with observe(observer):
        method.fit(data, rng=secret(fixed_seed=1))

Nobody sits there otherwise, and then it costs one look-up. What an observer is shown is private.
An observer may answer a release with an earlier result, and add loss terms of its own to a part;
whoever sits there knows what that means for the certificate.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any


class Observer:
    """Is shown everything, and changes nothing; an audit overrides what it looks at."""

    def begin(self, part: Any) -> None:
        """A part of the plan begins."""

    def equip(self, part: Any, clipped: Any, examples: Any) -> tuple[Any, Any]:
        """The clipped sum and the examples that the steps of a part will use."""
        return clipped, examples

    def draw(self, count: int) -> None:
        """So many bytes are read from a fixed secret stream."""

    def step(self, step: Any, drawn: Any, vector: Any) -> None:
        """A step has summed its drawn terms: ``vector``, in units of its noise, before noise.

        The step's coins are still in use, so that ``step.sum_terms`` gives other terms' sums.
        """

    def release(self, mechanism: Any, value: Any, result: Any) -> Any:
        """What a mechanism shall release: ``result``, which it made of the private ``value``."""
        return result


_seat: ContextVar[Observer | None] = ContextVar("observer", default=None)


def current() -> Observer | None:
    """Who looks on, if anybody does."""
    return _seat.get()


@contextmanager
def observe(observer: Observer) -> Iterator[None]:
    """Let ``observer`` look on, in this thread and context."""
    token = _seat.set(observer)
    try:
        yield
    finally:
        _seat.reset(token)
