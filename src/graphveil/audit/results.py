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

import contextlib
import json
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from graphveil import _validate
from graphveil._errors import InvalidInputError
from graphveil._files import write_file
from graphveil.runs.files import locked, read_json, reading

FILE = "audit.json"
FORMAT = 2
DETAILS = " | "  # between what a task is, and under which settings it was done
_TRIES = 200  # to lock a directory
KINDS = ("replay", "mechanism", "run", "attack")
ASYMPTOTIC = "asymptotic Gauss"
CONDITIONS = {
    "agnostic one-run": "for any mechanism",
    "ordered one-run": "for any mechanism",
    "one run, ordered guesses": "for any mechanism",
    "Clopper-Pearson at fixed thresholds": "for any mechanism",
    "normal scores": "if every step adds Gaussian noise",
    "family of the event": "if the steps are as charged, but for the size of their noise",
    "known law, noise by DKW": "if the law is as charged, but for the size of its noise",
    ASYMPTOTIC: "for many canaries: not a proof",
}
"""Under what a bound holds, by its name."""


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
    ``bound`` by which argument. ``figures`` are further numbers, by name. ``task`` is the piece of
    work that it came from, by which an audit that was cut short goes on. ``suspect`` is True where
    what is no proof is above what is promised.
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
    task: str = ""
    suspect: bool = False

    @property
    def condition(self) -> str:
        """Under what ``epsilon_at_least`` holds."""
        return CONDITIONS.get(self.bound, "")

    @property
    def is_proof(self) -> bool:
        """Whether ``epsilon_at_least`` is proven for samples of any size."""
        return self.bound != ASYMPTOTIC

    @property
    def proven(self) -> Any:
        """The epsilon that is promised for the very part that was tried, where it is known."""
        return self.figures.get("proven", self.figures.get("epsilon_of_part"))

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values, without what is empty."""
        plain = asdict(self)
        if not self.suspect:
            del plain["suspect"]
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
            violations=tuple(map(_violation, plain.get("violations", ()))),
            task=str(plain.get("task", "")),
            suspect=bool(plain.get("suspect", False)),
        )


def read(directory: Path) -> tuple[Finding, ...]:
    """What audit.json says; nothing where a run was not audited."""
    if not (directory / FILE).exists():
        return ()
    with reading(directory, FILE):
        return _read(directory / FILE)


def read_file(file: Path) -> tuple[Finding, ...]:
    """What a file of findings says; one that is something else is refused."""
    try:
        return _read(file)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        reason = " ".join(str(error).split())[:200].rstrip(".") or "empty"
        raise InvalidInputError(
            f"The findings in {file} cannot be read: {reason}; name another file, or move it away."
        ) from None


def _read(file: Path) -> tuple[Finding, ...]:
    content = read_json(file)
    if content["format"] == 1:
        return tuple(map(_from_format_1, content["results"]))
    if content["format"] != FORMAT:
        raise ValueError(f"format {content['format']!r} is neither 1 nor {FORMAT}")
    return tuple(map(Finding.from_json, content["results"]))


def write(file: Path, findings: Iterable[Finding], *, private: bool = False) -> None:
    """Write all findings, whole or not at all; a ``private`` file is its owner's alone."""
    content = {"format": FORMAT, "results": [finding.to_json() for finding in findings]}
    write_file(file, (json.dumps(content, indent=1) + "\n").encode(), private=private)


def add(file: Path, findings: Iterable[Finding], *, private: bool = False) -> None:
    """Put findings beside those of other audits.

    Earlier ones of the same name and task are replaced, under whatever settings they were made.
    """
    fresh = list(findings)
    names = {_key(finding) for finding in fresh}
    with _lock(file.absolute().parent):
        known = read_file(file) if file.exists() else ()
        kept = [old for old in known if _key(old) not in names]
        write(file, [*kept, *fresh], private=private)


def _key(finding: Finding) -> tuple[str, ...]:
    return finding.kind, finding.name, finding.bound, finding.task.partition(DETAILS)[0]


@contextlib.contextmanager
def _lock(directory: Path) -> Iterator[None]:
    """Wait for shards that write to the same directory; they take a moment each."""
    with contextlib.ExitStack() as stack:
        for left in range(_TRIES, -1, -1):
            try:
                stack.enter_context(locked(directory))
                break
            except InvalidInputError:
                if not left:
                    raise
                time.sleep(0.05)
        yield


def _violation(plain: Mapping[str, Any]) -> Violation:
    """One entry of ``violations``; what it does not have is refused."""
    known = {one.name for one in fields(Violation)}
    if "rule" not in plain or not known.issuperset(plain):
        raise ValueError(f"a violation must have a rule, and of {', '.join(sorted(known))} only")
    return Violation(**plain)


def _from_format_1(plain: Mapping[str, Any]) -> Finding:
    return Finding.from_json({**plain, "kind": "attack", "name": plain["attack"], "holds": True})
