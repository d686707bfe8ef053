"""What a run directory says, read back and checked before a page repeats it.

The certificate is made again from the settings and the charges in events.json: a page shows no
epsilon that the accountant does not give for what ran, and no sentence but the library's. Metrics,
environment and audit are only read, and typed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graphveil import _validate, runs
from graphveil.audit import results
from graphveil.data.catalog import CATALOG, Entry
from graphveil.methods import Facts, Plan
from graphveil.methods.settings import setting_fields
from graphveil.privacy.accounting import account
from graphveil.privacy.guarantee import UNITS, Certificate, Charge, Unit
from graphveil.privacy.ledger_state import count_releases
from graphveil.report.wording import SCORES, trains_in_the_open
from graphveil.runs.files import read_json, reading

FORMATS = (1, 2)  # of every file of a run that has a format number
_AGREES = 1e-6  # relative: two machines may differ in a last digit, not in more
_FIGURES: Mapping[str, Callable[[Certificate], float | None]] = {
    "epsilon": lambda certificate: certificate.guarantee.epsilon,
    "pld": lambda certificate: certificate.pld,
    "rdp": lambda certificate: certificate.rdp,
    "claim": lambda certificate: None if certificate.claim is None else certificate.claim.epsilon,
}


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """A finished run, as a page needs it.

    ``alone`` is what each charge would cost by itself; it is empty where nothing holds. ``usual``
    has the settings that the method takes where nobody says otherwise, ``planned`` what the plan
    made of the run's. ``metrics`` has None for a score that was not measured. ``account`` and
    ``ledger`` name what the run was ``charged`` to; a copy of a run need not name them.
    """

    path: str
    method: str
    private: bool
    certificate: Certificate
    alone: tuple[float, ...]
    settings: Mapping[str, Any]
    usual: Mapping[str, Any]
    planned: Mapping[str, Any]
    tuned: bool
    source: Mapping[str, Any]
    facts: Facts
    names: tuple[str, ...] | None
    metrics: Mapping[str, Any]
    environment: Mapping[str, Any]
    audit: tuple[results.Finding, ...]
    account: str | None
    ledger: str | None = None
    charged: bool

    @property
    def status(self) -> str:
        """``proven``, ``void``, ``unproven``, or ``open`` for a method without a budget."""
        if not self.private:
            return "open"
        if self.certificate.void_because:
            return "void"
        return "unproven" if math.isinf(self.certificate.guarantee.epsilon) else "proven"

    @property
    def epsilon(self) -> float | None:
        """The proven epsilon; None where there is none, whatever the charges would cost."""
        return self.certificate.guarantee.epsilon if self.status == "proven" else None

    @property
    def unit(self) -> Unit:
        """Whom the certificate is about."""
        return UNITS[self.certificate.guarantee.unit]

    @property
    def leaves_out(self) -> str | None:
        """What stays outside the unit; nothing under the strict relation."""
        withheld = self.certificate.guarantee.relation == "withhold"
        return self.unit.leaves_out if withheld else None

    @property
    def data(self) -> str:
        """The name or path of the data."""
        return str(self.source["data"])

    @property
    def entry(self) -> Entry | None:
        """What the catalog knows of the data."""
        return CATALOG.get(self.data.partition(":")[0])

    @property
    def degree(self) -> int | None:
        """The public bound on degrees that the strict relation rests on."""
        strict = self.certificate.guarantee.relation == "remove"
        return self.settings.get("public_degree") if strict else None

    @property
    def promise(self) -> tuple[Any, ...]:
        """Runs that agree in this promise the same to the same: their epsilons may be composed."""
        guarantee = self.certificate.guarantee
        return (guarantee.unit, guarantee.relation, self.degree, self.certificate.unprotected)

    def shares_people(self, other: Evidence) -> bool:
        """Whether both are known to be about the same people: one data set, or one account."""
        mine, theirs = ((run.ledger, run.account) for run in (self, other))
        return self.data == other.data or (self.account is not None and mine == theirs)

    @property
    def tests(self) -> int:
        """How many labelled test records there were."""
        return sum(self.metrics["class_count"])

    @property
    def constant(self) -> float | None:
        """The accuracy of whoever always names the commonest class of the test records."""
        return max(self.metrics["class_count"]) / self.tests if self.tests else None

    @property
    def trained_alike(self) -> tuple[Any, ...]:
        """Runs that agree in this were trained and tested on records of the same data."""
        source = self.source
        fractions, least = source.get("fractions") or (), source.get("min_class")
        share = source.get("train_share", 1.0)
        return (self.data, source["split"], share, *fractions, least, self.facts.num_nodes)


def read(path: str) -> Evidence:
    """The run at ``path``; a file that is missing, damaged or not its own is refused in one line.

    *Guarantee*: epsilon is what the charges in events.json cost by the accountant of today. Against
    somebody who rewrites events.json, too, it says nothing.
    """
    directory = Path(path)
    plan, written, certificate, usual = _record(directory)
    with reading(directory, "certificate.json"):
        _check_certificate(written, certificate)
    with reading(directory, "events.json"):
        _content(directory, "events.json")
    with reading(directory, "settings.json"):
        saved = _content(directory, "settings.json")
        tuned = saved.get("tuning") is not None
        source, settings = dict(saved["data"]), dict(saved["settings"])
        names = _class_names(saved["class_names"], plan.facts.num_classes)
        if not tuned:
            _check_releases(plan.charges, certificate.charges)
    with reading(directory, "metrics.json"):
        metrics = _metrics(_content(directory, "metrics.json"), plan.facts.num_classes)
    with reading(directory, "environment.json"):
        environment = _content(directory, "environment.json")
        environment["versions"] = {str(k): str(v) for k, v in environment["versions"].items()}
    delta, proven = certificate.guarantee.delta, math.isfinite(certificate.guarantee.epsilon)
    ledger = runs.Run(directory).charged_to() or {}
    return Evidence(
        path=path,
        method=plan.method,
        private=plan.claim is not None or not trains_in_the_open(plan.charges),
        certificate=certificate,
        alone=tuple(account(charge.event, delta).epsilon for charge in certificate.charges)
        if proven
        else (),
        settings=settings,
        usual=usual,
        planned=dict(plan.details),
        tuned=tuned,
        source=source,
        facts=plan.facts,
        names=names,
        metrics=metrics,
        environment=environment,
        audit=results.read(directory),
        account=ledger.get("account"),
        ledger=ledger.get("ledger"),
        charged=bool(ledger) or runs.Run(directory).was_charged(),
    )


def _record(directory: Path) -> tuple[Plan, Certificate, Certificate, dict[str, Any]]:
    """A run's plan, the certificate in its file, the one that it bears out, and usual settings.

    That is all this package asks ``runs`` and ``methods`` for, beside whole files of JSON. The
    second certificate is made from the plan, the charges and the streams of the run.
    """
    record = runs.Run(directory).record()
    certificate = record.plan.certificate(
        record.charges, void_because=record.void_because, inference=record.inference
    )
    written = record.certificate or certificate
    usual = {name: field.default for name, field in setting_fields(record.kind).items()}
    return record.plan, written, certificate, usual


def _content(directory: Path, name: str) -> dict[str, Any]:
    """What a JSON file of a run holds; a format number that is not ours is refused."""
    content = read_json(directory / name)
    if content.get("format", FORMATS[-1]) not in FORMATS:
        raise ValueError(f"format {content['format']!r} is not {FORMATS[-1]}")
    return content


def _check_certificate(written: Certificate, again: Certificate) -> None:
    """Refuse a file that promises anything else than what the run's other files bear out."""
    for name in ("unit", "relation", "delta"):
        _check_same(name, getattr(written.guarantee, name), getattr(again.guarantee, name))
    _check_same("void_because", written.void_because, again.void_because)
    _check_same("claim", written.claim is None, again.claim is None)
    for name, of in _FIGURES.items():
        in_file, expected = of(written), of(again)
        pair = [value for value in (in_file, expected) if value is not None]
        if len(pair) < 2 or not math.isclose(*pair, rel_tol=_AGREES):
            _check_same(name, in_file, expected)


def _check_releases(planned: Sequence[Charge], charged: Sequence[Charge]) -> None:
    """Refuse settings that plan another number of releases than the run was charged for."""
    made = count_releases(charged[: len(planned)])
    if made != count_releases(planned):
        raise ValueError(
            f"its settings plan {count_releases(planned):g} releases, and events.json charges for "
            f"{made:g}"
        )


def _check_same(name: str, value: Any, expected: Any) -> None:
    if value != expected:
        raise ValueError(f"{name} is {value!r}, and the run's other files make it {expected!r}")


def _class_names(names: Sequence[Any] | None, classes: int) -> tuple[str, ...] | None:
    if names is None:
        return None
    _check_same("class_names", len(names), classes)
    return tuple(map(str, names))


def _metrics(content: Mapping[str, Any], classes: int) -> dict[str, Any]:
    """The figures a page shows: shares in [0, 1] or none, a count for each class.

    A run need not have every score: one that came later is None.
    """
    counts = [_validate.integer("class_count", n, "[0, 1e12]") for n in content["class_count"]]
    shares = [_share("class_accuracy", share) for share in content["class_accuracy"]]
    _check_same("the number of classes", (len(counts), len(shares)), (classes, classes))
    scores = {name: _share(name, content.get(f"test_{name}")) for name in SCORES}
    confusion = _confusion(content.get("confusion"), counts)
    return {"class_count": counts, "class_accuracy": shares, "confusion": confusion, **scores}


def _confusion(table: Any, counts: Sequence[int]) -> list[list[int]] | None:
    """Counts by class and decision, whose rows sum to what each class has; None in older runs."""
    if table is None:
        return None
    rows = [[_validate.integer("confusion", n, "[0, 1e12]") for n in row] for row in table]
    _check_same("the width of confusion", {len(row) for row in rows}, {len(counts)})
    _check_same("confusion, summed by class", [sum(row) for row in rows], list(counts))
    return rows


def _share(name: str, value: Any) -> float | None:
    return None if value is None else _validate.number(name, value, "[0, 1]")
