"""What a run directory says, read back and checked before a page repeats it.

The certificate is made again from the settings and the charges in events.json: a page shows no
epsilon that the accountant does not give for what ran, and no sentence but the library's. Metrics,
environment and audit are only read, and typed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graphveil import _validate, runs
from graphveil.data.catalog import CATALOG, Entry
from graphveil.methods import Facts, Method
from graphveil.methods.private import PrivateMethod
from graphveil.privacy.accounting import account
from graphveil.privacy.guarantee import Certificate
from graphveil.privacy.ledger_state import count_releases
from graphveil.runs.files import read_json, reading

AUDIT_FORMAT = 1
_AGREES = 1e-6  # relative: two machines may differ in a last digit, not in more


@dataclass(frozen=True, kw_only=True)
class Attack:
    """One audit: an attack, and the epsilon below which the run's true one cannot be."""

    attack: str
    at_least: float
    confidence: float
    trials: int | None = None
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """A finished run, as a page needs it."""

    path: str
    method: str
    private: bool
    certificate: Certificate
    alone: tuple[float, ...]  # what each charge would cost by itself; none where nothing holds
    settings: Mapping[str, Any]
    planned: Mapping[str, Any]  # what the plan made of the settings
    tuned: bool
    source: Mapping[str, Any]
    facts: Facts
    names: tuple[str, ...] | None
    metrics: Mapping[str, Any]
    environment: Mapping[str, Any]
    audit: tuple[Attack, ...]
    account: str | None  # of the ledger that it was charged to
    ledger: str | None = None  # which one, where it is known
    charged: bool  # to a ledger, which a copy of a run need not name

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
    def data(self) -> str:
        """The name or path of the data."""
        return str(self.source["data"])

    @property
    def entry(self) -> Entry | None:
        """What the catalog knows of the data."""
        return CATALOG.get(self.data.partition(":")[0])

    @property
    def promise(self) -> tuple[Any, ...]:
        """Runs that agree in this promise the same to the same: their epsilons may be composed."""
        guarantee = self.certificate.guarantee
        degree = self.settings.get("public_degree") if guarantee.relation == "remove" else None
        return (guarantee.unit, guarantee.relation, degree, self.certificate.unprotected)

    def shares_people(self, other: Evidence) -> bool:
        """Whether both are known to be about the same people: one data set, or one account."""
        accounts = [(run.ledger, run.account) for run in (self, other) if run.account is not None]
        return self.data == other.data or (len(accounts) == 2 and accounts[0] == accounts[1])

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
        return (self.data, source["split"], source.get("train_share", 1.0), self.facts.num_nodes)


def read(path: str) -> Evidence:
    """The run at ``path``; a file that is missing, damaged or not its own is refused in one line.

    *Guarantee*: epsilon is what the charges in events.json cost by the accountant of today. Against
    somebody who rewrites events.json, too, it says nothing.
    """
    directory = Path(path)
    method = runs.read(directory)
    with reading(directory, "certificate.json"):
        certificate = _priced_again(method)
    with reading(directory, "settings.json"):
        saved = read_json(directory / "settings.json")
        names = saved["class_names"]
        facts = method.plan_.facts
        if names is not None:
            names = tuple(str(name) for name in names)
            _same("class_names", len(names), facts.num_classes)
        source = dict(saved["data"])
        settings = dict(saved["settings"])
        if saved.get("tuning") is None:
            _check_planned(method)
    with reading(directory, "metrics.json"):
        metrics = _metrics(read_json(directory / "metrics.json"), facts.num_classes)
    with reading(directory, "environment.json"):
        environment = read_json(directory / "environment.json")
        environment["versions"] = {str(k): str(v) for k, v in environment["versions"].items()}
    charged = runs.charged_to(directory)
    held = math.isfinite(certificate.guarantee.epsilon)
    delta = certificate.guarantee.delta
    return Evidence(
        path=path,
        method=method.name,
        private="epsilon" in method.get_params(),
        certificate=certificate,
        alone=tuple(account(each.event, delta).epsilon for each in certificate.charges)
        if held
        else (),
        settings=settings,
        planned=dict(method.plan_.details),
        tuned=saved.get("tuning") is not None,
        source=source,
        facts=facts,
        names=names,
        metrics=metrics,
        environment=environment,
        audit=_audit(directory),
        account=None if charged is None else charged["account"],
        ledger=None if charged is None else charged["ledger"],
        charged=charged is not None or runs.was_charged(directory),
    )


def _priced_again(method: Method) -> Certificate:
    """The certificate that a run's settings, charges and streams bear out; its file must agree.

    A page shows this one: its sentences are the library's, whatever the file says.
    """
    written = method.certificate_
    if isinstance(method, PrivateMethod):
        method._certify()
        again = method.certificate_
    else:
        again = method.plan_.certificate(method.charges_)
    for name in ("unit", "relation", "delta"):
        _same(name, getattr(written.guarantee, name), getattr(again.guarantee, name))
    _same("void_because", written.void_because, again.void_because)
    _same("claim", written.claim is None, again.claim is None)
    for name, found, expected in (
        ("epsilon", written.guarantee.epsilon, again.guarantee.epsilon),
        ("pld", written.pld, again.pld),
        ("rdp", written.rdp, again.rdp),
        ("claim", _claimed(written), _claimed(again)),
    ):
        if found is None or expected is None or not math.isclose(found, expected, rel_tol=_AGREES):
            _same(name, found, expected)
    return again


def _check_planned(method: Method) -> None:
    """Refuse settings that plan another number of releases than the run was charged for."""
    planned = method.plan_.charges
    found = count_releases(method.charges_[: len(planned)])
    if found != count_releases(planned):
        raise ValueError(
            f"its settings plan {count_releases(planned):g} releases, and events.json charges for "
            f"{found:g}"
        )


def _claimed(certificate: Certificate) -> float | None:
    return None if certificate.claim is None else certificate.claim.epsilon


def _same(name: str, found: Any, expected: Any) -> None:
    if found != expected:
        raise ValueError(f"{name} is {found!r}, and the run's other files make it {expected!r}")


def _metrics(found: dict[str, Any], classes: int) -> dict[str, Any]:
    """The figures a page shows: shares in [0, 1] or none, a count for each class."""
    counts = [_validate.integer("class_count", each, "[0, 1e12]") for each in found["class_count"]]
    shares = [_share("class_accuracy", each) for each in found["class_accuracy"]]
    _same("the number of classes", (len(counts), len(shares)), (classes, classes))
    metrics: dict[str, Any] = {"class_count": counts, "class_accuracy": shares}
    for name in runs.METRICS:
        metrics[name] = _share(name, found[f"test_{name}"])
    seconds = found.get("seconds")
    metrics["seconds"] = (
        None if seconds is None else _validate.number("seconds", seconds, "[0, inf)")
    )
    return metrics


def _share(name: str, value: Any) -> float | None:
    return None if value is None else _validate.number(name, value, "[0, 1]")


def _audit(directory: Path) -> tuple[Attack, ...]:
    """What audit.json says, where there is one: see docs/report.md for its format."""
    if not (directory / "audit.json").exists():
        return ()
    with reading(directory, "audit.json"):
        found = read_json(directory / "audit.json")
        if found["format"] != AUDIT_FORMAT:
            raise ValueError(f"format {found['format']!r} is not {AUDIT_FORMAT}")
        return tuple(
            Attack(
                attack=str(each["attack"]),
                at_least=_validate.number("epsilon_at_least", each["epsilon_at_least"], "[0, inf)"),
                confidence=_validate.number("confidence", each["confidence"], "(0, 1)"),
                trials=None
                if each.get("trials") is None
                else _validate.integer("trials", each["trials"], "[1, 1e15]"),
                note=str(each.get("note", "")),
            )
            for each in found["results"]
        )
