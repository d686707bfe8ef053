"""What a run directory says, read back and checked before a page repeats it.

The certificate is made again from the settings and the charges in events.json: a page shows no
epsilon that the accountant does not give for what ran, and no sentence but the library's. Metrics,
environment and audit are only read, and typed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graphveil import _validate, runs
from graphveil._errors import RefusedError, VerificationError
from graphveil.audit import results
from graphveil.data.catalog import CATALOG, Entry
from graphveil.data.schema import Schema
from graphveil.data.schema_lines import public_lines
from graphveil.graph.public_lines import shorten
from graphveil.graph.targets import OF_CLASSES
from graphveil.methods import Facts, Plan
from graphveil.methods.measures import (
    METRICS,
    OF_LINKS,
    ONE_SIDED,
    SMALLER_IS_BETTER,
    is_better,
)
from graphveil.methods.plan_checks import check_plan
from graphveil.methods.settings import setting_fields
from graphveil.methods.task import make_task
from graphveil.privacy.accounting import price
from graphveil.privacy.agreement import (
    check_agreement,
    check_charges,
    check_same,
    check_trials,
)
from graphveil.privacy.guarantee import UNITS, Certificate, Unit
from graphveil.privacy.ledger_entries import identity
from graphveil.report.wording import is_private, status_of
from graphveil.runs.files import read_json, reading
from graphveil.runs.record import EVENTS, PLAN, SETTINGS, Record

FORMATS = (1, 2)  # of every file of a run that has a format number
_SCORES = (*METRICS, *OF_LINKS)
_RANGES = {"brier": "[0, 2.001]", "r2": "(-inf, 1]", "mae": "[0, inf)", "rmse": "[0, inf)"}
_RANGES["validation_accuracy"] = "(-inf, inf)"  # it has noise


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """A finished run, as a page needs it.

    ``alone`` is what each charge would cost by itself; it is empty where nothing holds. ``usual``
    has the settings that the method takes where nobody says otherwise, ``planned`` what the plan
    made of the run's. ``metrics`` has None for a score that was not measured, and ``schema`` what
    the owner of tables stated of them. ``account`` and ``ledger`` name what the run was ``charged``
    to; a copy of a run need not name them.
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
    plan: Plan
    weights_sha256: str
    names: tuple[str, ...] | None
    metrics: Mapping[str, Any]
    environment: Mapping[str, Any]
    audit: tuple[results.Finding, ...]
    account: str | None
    ledger: str | None = None
    charged: bool
    schema: Mapping[str, Any] | None = None

    @property
    def facts(self) -> Facts:
        """What is public of the data: its sizes, and what is predicted."""
        return self.plan.facts

    @property
    def status(self) -> str:
        """``proven``, ``void``, ``unproven``, or ``open`` for a method without a budget."""
        return status_of(self.plan, self.certificate)

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
        return self.certificate.guarantee.leaves_out

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
        return int(self.metrics["tests"])

    @property
    def has_classes(self) -> bool:
        """Whether every record is in one of several classes."""
        return self.facts.task in OF_CLASSES

    @property
    def unit_name(self) -> str | None:
        """What the owner of the data calls a record, where that is what is protected."""
        return self.plan.record_name if self.unit.name == self.facts.record else None

    @property
    def metric(self) -> str:
        """The name of the figure by which this run is compared."""
        return str(self.metrics["metric"])

    @property
    def figure(self) -> float | None:
        """How well the run does, by its ``metric``."""
        value: float | None = self.metrics[self.metric]
        return value

    @property
    def charged_score(self) -> float | None:
        """The score of the chosen settings, where the certificate says that it is released."""
        released = self.tuned and "score" in self.certificate.released
        value: float | None = self.metrics["validation_accuracy"] if released else None
        return value

    @property
    def guess(self) -> float | None:
        """The same figure of the best answer that reads no row."""
        value: float | None = self.metrics["baseline"].get(self.metric)
        return value

    @property
    def merit(self) -> float:
        """What runs are sorted by: the larger, the better, whatever the metric is."""
        if self.figure is None:
            return -math.inf
        return -self.figure if self.metric in SMALLER_IS_BETTER else self.figure

    @property
    def beats_guess(self) -> bool:
        """Whether the figure is better than the guess's."""
        known = self.figure is not None and self.guess is not None
        return known and is_better(self.metric, self.figure or 0.0, self.guess or 0.0)

    @property
    def failed(self) -> bool:
        """Whether it is known that the run learnt nothing."""
        return self.metrics["learnt"] is False

    @property
    def target(self) -> tuple[Any, ...]:
        """Runs that agree in this predict the same, and are compared by the same figure."""
        label = json.dumps((self.schema or {}).get("label"), sort_keys=True)
        return (self.facts.task, self.metric, self.facts.num_classes, label)

    @property
    def trained_alike(self) -> tuple[Any, ...]:
        """Runs that agree in this were trained and tested on records of the same data."""
        source = self.source
        fractions, least = source.get("fractions") or (), source.get("min_class")
        share = source.get("train_share", 1.0)
        place = (self.data, source["split"], share, *fractions, least, self.facts.num_nodes)
        return (*place, *self.target)


def read(path: str) -> Evidence:
    """The run at ``path``; a file that is missing, damaged or not its own is refused in one line.

    *Guarantee*: epsilon is what the charges in events.json cost by the accountant of today. Against
    somebody who rewrites events.json, too, it says nothing.
    """
    directory = Path(path)
    record, certificate, usual = _record(directory)
    plan, written = record.plan, record.certificate or certificate
    with reading(directory, "certificate.json"):
        check_agreement(written, certificate)
    with reading(directory, "events.json"):
        _content(directory, "events.json")
    with reading(directory, "settings.json"):
        saved = _content(directory, "settings.json")
        tuned = saved.get("tuning") is not None
        source, settings = dict(saved["data"]), dict(saved["settings"])
        schema = saved.get("schema")
        names = _class_names(saved["class_names"], plan.facts.num_classes)
        _check_releases(directory, plan, certificate, tuned=tuned and plan.tuned)
    _check_plan(directory, record)
    with reading(directory, "metrics.json"):
        metrics = _metrics(_content(directory, "metrics.json"), plan.facts)
    with reading(directory, "environment.json"):
        environment = _content(directory, "environment.json")
        environment["versions"] = {str(k): str(v) for k, v in environment["versions"].items()}
    delta, proven = certificate.guarantee.delta, math.isfinite(certificate.guarantee.epsilon)
    ledger = runs.Run(directory).charged_to() or {}
    return Evidence(
        path=path,
        method=plan.method,
        private=is_private(plan),
        certificate=certificate,
        alone=tuple(price(charge.event, delta).epsilon for charge in certificate.charges)
        if proven
        else (),
        settings=settings,
        usual=usual,
        planned=dict(plan.details),
        tuned=tuned,
        source=source,
        plan=plan,
        weights_sha256=record.hashes["model_sha256"],
        names=names,
        metrics=metrics,
        environment=environment,
        audit=results.read(directory),
        account=ledger.get("account"),
        ledger=identity(ledger["ledger"]) if ledger else None,
        charged=bool(ledger) or runs.Run(directory).was_charged(),
        schema=schema,
    )


def _record(directory: Path) -> tuple[Record, Certificate, dict[str, Any]]:
    """A run's record, the certificate that it bears out, and usual settings.

    That is all this package asks ``runs`` and ``methods`` for, beside whole files of JSON. The
    certificate is made from the plan, the charges and the streams of the run.
    """
    record = runs.Run(directory).record()
    certificate = record.plan.certificate(
        record.charges, void_because=record.void_because, inference=record.inference
    )
    usual = {name: field.default for name, field in setting_fields(record.kind).items()}
    return record, certificate, usual


def _content(directory: Path, name: str) -> dict[str, Any]:
    """What a JSON file of a run holds; a format number that is not ours is refused."""
    content = read_json(directory / name)
    if content.get("format", FORMATS[-1]) not in FORMATS:
        raise ValueError(f"format {content['format']!r} is not {FORMATS[-1]}")
    return content


def _check_releases(directory: Path, plan: Plan, certificate: Certificate, *, tuned: bool) -> None:
    """Refuse a run whose plan, by its hash the one that ran, has other charges; of trials fewer."""
    try:
        if tuned:
            check_trials(plan.charges, certificate)
        else:
            check_charges(plan.charges, certificate.charges)
    except ValueError as error:
        raise VerificationError(
            f"The charges in {directory / EVENTS} are not those of the plan that ran: "
            f"{str(error).rstrip('.')}; put the right file back, or train again."
        ) from None


def _check_plan(directory: Path, record: Record) -> None:
    """Refuse a plan that the method does not make of the run's settings, or that says less."""
    try:
        check_plan(record.plan, record.asked.make())
        _check_stated(record)
    except (ValueError, TypeError, KeyError, AttributeError, RefusedError) as error:
        raise VerificationError(
            f"The plan in {directory / PLAN} is not the one that its settings make: "
            f"{' '.join(str(error).split())[:400].rstrip('.')}; put the right file back, read it "
            "with the version that trained it, or train again."
        ) from None


def _check_stated(record: Record) -> None:
    """Refuse a plan that leaves out what settings.json says was public, or names a record else."""
    asked, plan = record.asked, record.plan
    of = "labels" if plan.facts.task == "multilabel" else "classes"
    lines = [
        f"the names of the {what}: {shorten(names)}"
        for what, names in ((of, asked.class_names), ("feature columns", asked.columns))
        if names
    ]
    schema = None if asked.schema is None else Schema.from_dict(asked.schema)
    if schema is not None and schema.typed is None:
        lines += public_lines(schema)
        if schema.unit is not None and plan.unit in ("node", "graph", "owner"):
            check_same("record_name", plan.record_name, schema.unit)
    for line in lines:
        if line not in plan.public:
            raise ValueError(f"public has not {line!r}, which {SETTINGS} states")


def _class_names(names: Sequence[Any] | None, classes: int) -> tuple[str, ...] | None:
    if names is None:
        return None
    check_same("class_names", len(names), classes)
    return tuple(map(str, names))


def _metrics(content: Mapping[str, Any], facts: Facts) -> dict[str, Any]:
    """The figures a page shows, each in its range or none; of classes a count for each.

    A run need not have every score: one that came later is None. What an older run does not say of
    the best guess and of what it learnt is made of what it says of classes.
    """
    check_same("task", content.get("task", facts.task), facts.task)
    counts = [_validate.integer("class_count", n, "[0, 1e12]") for n in content["class_count"]]
    shares = [_figure("class_accuracy", share) for share in content["class_accuracy"]]
    classes = facts.num_classes if facts.task in OF_CLASSES else 0
    check_same("the number of classes", (len(counts), len(shares)), (classes, classes))
    confusion = _confusion(content.get("confusion"), counts)
    tests = content.get(f"test_{facts.record}s", sum(counts))
    tests = _validate.integer(f"test_{facts.record}s", tests, "[0, 1e12]")
    if classes:
        check_same("class_count, summed", sum(counts), tests)
    scores = {name: _figure(name, content.get(f"test_{name}")) for name in _SCORES}
    main = content.get("metric", make_task(facts).main)
    main = _validate.choice("metric", main, _SCORES)
    baseline = _baseline(content.get("baseline"), counts)
    constant = content.get("constant", _is_constant(confusion))
    learnt = None
    if (mine := scores[main]) is not None and (guess := baseline.get(main)) is not None:
        learnt = is_better(main, mine, guess) and not constant
    return {
        "tests": tests,
        "validation_accuracy": _figure("validation_accuracy", content.get("validation_accuracy")),
        "class_count": counts,
        "class_accuracy": shares,
        "confusion": confusion,
        "metric": main,
        "baseline": baseline,
        "constant": _flag("constant", constant),
        "learnt": _flag("learnt", content.get("learnt", learnt)),
        **scores,
    }


def _baseline(content: Mapping[str, Any] | None, counts: Sequence[int]) -> dict[str, float]:
    """Figures of the best guess; older runs had that of the commonest class among those tested."""
    if content is None:
        return {"accuracy": max(counts) / sum(counts)} if sum(counts) else {}
    figures = {name: _figure(name, content.get(name)) for name in _SCORES}
    return {
        name: value
        for name, value in figures.items()
        if value is not None and name not in ONE_SIDED
    }


def _is_constant(confusion: Sequence[Sequence[int]] | None) -> bool | None:
    """Whether one class was decided on for everybody; None where that is not known."""
    if confusion is None or not any(map(any, confusion)):
        return None
    return sum(map(any, zip(*confusion, strict=True))) == 1


def _confusion(table: Any, counts: Sequence[int]) -> list[list[int]] | None:
    """Counts by class and decision, whose rows sum to what each class has; None in older runs."""
    if table is None:
        return None
    rows = [[_validate.integer("confusion", n, "[0, 1e12]") for n in row] for row in table]
    check_same("the width of confusion", {len(row) for row in rows}, {len(counts)})
    check_same("confusion, summed by class", [sum(row) for row in rows], list(counts))
    return rows


def _figure(name: str, value: Any) -> float | None:
    return None if value is None else _validate.number(name, value, _RANGES.get(name, "[0, 1]"))


def _flag(name: str, value: Any) -> bool | None:
    if not (value is None or isinstance(value, bool)):
        raise TypeError(f"'{name}' cannot be {value!r}")
    return value
