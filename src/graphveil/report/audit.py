"""An audit's results as a file of a run: what an attack shows to be revealed at least.

::

    {"format": 1, "results": [
      {"attack": "loss threshold", "epsilon_at_least": 0.42, "confidence": 0.95, "trials": 1000}
    ]}

``trials`` and ``note`` may be left out; docs/report.md says what the figures mean.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graphveil import _validate
from graphveil.runs.files import read_json, reading

FILE = "audit.json"
FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class Attack:
    """One audit: an attack, and the epsilon below which the run's true one cannot be.

    ``at_least`` is that epsilon. It holds with probability ``confidence``, for the unit, relation
    and delta of the run's certificate. ``trials`` says on how many trials it rests.
    """

    attack: str
    at_least: float
    confidence: float
    trials: int | None = None
    note: str = ""

    @classmethod
    def from_json(cls, result: Mapping[str, Any]) -> Attack:
        """One entry of ``results``; a figure outside its range is refused."""
        trials = result.get("trials")
        return cls(
            attack=str(result["attack"]),
            at_least=_validate.number("epsilon_at_least", result["epsilon_at_least"], "[0, inf)"),
            confidence=_validate.number("confidence", result["confidence"], "(0, 1)"),
            trials=None if trials is None else _validate.integer("trials", trials, "[1, 1e15]"),
            note=str(result.get("note", "")),
        )


def read(directory: Path) -> tuple[Attack, ...]:
    """The attacks that audit.json names; none where a run was not audited."""
    if not (directory / FILE).exists():
        return ()
    with reading(directory, FILE):
        content = read_json(directory / FILE)
        if content["format"] != FORMAT:
            raise ValueError(f"format {content['format']!r} is not {FORMAT}")
        return tuple(map(Attack.from_json, content["results"]))
