"""What an audit found, as a file of a run.

::

    {"format": 2, "results": [
      {"kind": "run", "name": "removed canaries", "holds": true, "epsilon_at_least": 5.4,
       "confidence": 0.95, "trials": 1000, "bound": "agnostic one-run", "note": "", "figures": {}}
    ]}

All but ``kind``, ``name`` and ``holds`` may be left out; docs/guarantees/audits.md says what the
figures mean. Files of format 1 had attacks alone and are read as well. Loads no torch.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from graphveil import _validate
from graphveil._files import write_file
from graphveil.runs.files import read_json, reading

FILE = "audit.json"
FORMAT = 2
KINDS = ("replay", "mechanism", "run", "attack")


@dataclass(frozen=True, kw_only=True)
class Violation:
    """Where a replay saw what was not paid for: the part, the step, the term, the two values."""

    rule: str
    part: str = ""
    step: int | None = None
    term: int | None = None
    value: str = ""
    allowed: str = ""

    def __str__(self) -> str:
        places = [
            f"part '{self.part}'" if self.part else "",
            "" if self.step is None else f"step {self.step}",
            "" if self.term is None else f"term {self.term}",
        ]
        place = ", ".join(place for place in places if place)
        values = f": {self.value}, allowed: {self.allowed}" if self.value else ""
        return f"{place + ': ' if place else ''}{self.rule}{values}"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One result of an audit.

    ``holds`` is False where the promise was seen broken. ``epsilon_at_least`` is the epsilon below
    which the true one cannot be, with probability ``confidence``, for the unit, relation and delta
    of the certificate; None where no such number was sought. ``trials`` says on how many it rests,
    ``bound`` by which argument. ``figures`` are further numbers, by name.
    """

    kind: str
    name: str
    holds: bool
    epsilon_at_least: float | None = None
    confidence: float | None = None
    trials: int | None = None
    bound: str = ""
    note: str = ""
    figures: Mapping[str, Any] = field(default_factory=dict)
    violations: tuple[Violation, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values, without what is empty."""
        plain = asdict(self)
        kept = ("kind", "name", "holds")
        return {k: v for k, v in plain.items() if k in kept or v not in (None, "", {}, ())}

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> Finding:
        """One entry of ``results``; a figure outside its range is refused."""
        at_least, trials = plain.get("epsilon_at_least"), plain.get("trials")
        confidence = plain.get("confidence")
        if at_least is not None:
            at_least = _validate.number("epsilon_at_least", at_least, "[0, inf)")
            confidence = _validate.number("confidence", plain["confidence"], "(0, 1)")
        return cls(
            kind=_validate.choice("kind", plain["kind"], KINDS),
            name=str(plain["name"]),
            holds=bool(plain["holds"]),
            epsilon_at_least=at_least,
            confidence=confidence,
            trials=None if trials is None else _validate.integer("trials", trials, "[1, 1e15]"),
            bound=str(plain.get("bound", "")),
            note=str(plain.get("note", "")),
            figures=dict(plain.get("figures", {})),
            violations=tuple(Violation(**one) for one in plain.get("violations", ())),
        )


def read(directory: Path) -> tuple[Finding, ...]:
    """What audit.json says; nothing where a run was not audited."""
    if not (directory / FILE).exists():
        return ()
    with reading(directory, FILE):
        content = read_json(directory / FILE)
        if content["format"] == 1:
            return tuple(map(_from_format_1, content["results"]))
        if content["format"] != FORMAT:
            raise ValueError(f"format {content['format']!r} is neither 1 nor {FORMAT}")
        return tuple(map(Finding.from_json, content["results"]))


def write(file: Path, findings: Iterable[Finding]) -> None:
    """Write all findings, whole or not at all."""
    content = {"format": FORMAT, "results": [finding.to_json() for finding in findings]}
    write_file(file, (json.dumps(content, indent=1) + "\n").encode())


def add(directory: Path, findings: Iterable[Finding]) -> None:
    """Put findings beside those of other audits; one of the same kind and name is replaced."""
    fresh = list(findings)
    names = {(finding.kind, finding.name) for finding in fresh}
    kept = [old for old in read(directory) if (old.kind, old.name) not in names]
    write(directory / FILE, [*kept, *fresh])


def _from_format_1(plain: Mapping[str, Any]) -> Finding:
    return Finding.from_json({**plain, "kind": "attack", "name": plain["attack"], "holds": True})
