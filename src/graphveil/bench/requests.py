"""One run that is asked for, and what came of it."""

from __future__ import annotations

import json
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphveil import _validate
from graphveil._errors import GraphveilError
from graphveil.methods import METHODS, Method
from graphveil.methods.settings import setting_fields

if TYPE_CHECKING:
    from graphveil.runs import Source

Outcome = dict[str, Any]  # of one run; plain values, so that it can be written down
Memory = MutableMapping[str, Outcome]  # outcomes by the key of a request


def is_private(name: str) -> bool:
    """Whether the method of that name has a budget."""
    return METHODS[_validate.choice("method", name, tuple(METHODS))].private


@dataclass(frozen=True)
class Request:
    """One row to be measured: a method, its settings and what it may spend."""

    method: str
    epsilon: float | None
    delta: float | None
    settings: Mapping[str, Any]
    train_share: float = 1.0
    name: str | None = None
    varied: Mapping[str, Any] = field(default_factory=dict)

    def make(self, seed: int) -> Method:
        """The method, not yet fitted."""
        budget = {"epsilon": self.epsilon, "delta": self.delta} if is_private(self.method) else {}
        return METHODS[self.method](**self.settings, **budget, seed=seed)

    def key(self, source: Source, content: str | None = None) -> str:
        """All that decides one run's outcome, chance apart, in one line of JSON.

        Data is known by its name, or by its ``content``, and then not by where its file is.
        """
        run = {name: getattr(source, name) for name in ("data", "split", "train_share", "seed")}
        if content is not None:
            run |= {"data": Path(source.data).name, "content": content}
        run |= {name: getattr(self, name) for name in ("method", "epsilon", "delta")}
        # Only where they are set: results that were written without them keep their keys.
        drawn = {name: getattr(source, name) for name in _UNSET}
        run |= {name: value for name, value in drawn.items() if value != _UNSET[name]}
        return json.dumps(run | {"settings": dict(sorted(self.settings.items()))})

    def made(self, outcome: Outcome) -> bool:
        """Whether an outcome of this key is of what would run today.

        A key holds the settings that were stated; the others are what the method has them be, which
        may have changed since. A setting that is new since then is taken to leave all as it was.
        Outcomes that do not say what they were made with are taken.
        """
        before = outcome.get("made_with", {})
        try:
            now = unstated(self.make(0), self.settings)
        except GraphveilError:  # such settings are no longer there
            return False
        return all(now.get(name, value) == value for name, value in before.items())


def unstated(method: Method, stated: Mapping[str, Any]) -> dict[str, str]:
    """The settings of a method that nobody stated, as text; seed and budget are in the key."""
    known = setting_fields(type(method)).keys() - stated.keys() - {"seed", "epsilon", "delta"}
    return {name: repr(getattr(method, name)) for name in sorted(known)}


_UNSET = {"fractions": None, "min_class": None, "thinned": "keep"}  # of a source
