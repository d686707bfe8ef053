"""What a run says of itself, in files: written whole or not at all, read without torch.

A finished run is read from its JSON files. Nothing is planned again, and nothing is priced again:
the plan that ran stands in plan.json, what it was charged in events.json, and what holds in
certificate.json. The weights are checked by their hash alone;
:class:`~graphveil.runs.run.Run` loads them.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from graphveil import devices
from graphveil._errors import InvalidInputError
from graphveil._files import write_file
from graphveil.data.schema import Schema
from graphveil.methods import METHODS, Method, Plan
from graphveil.privacy.events import from_json, to_json
from graphveil.privacy.guarantee import Certificate, Charge, versions
from graphveil.runs.files import LOG, read_json, reading, write_json
from graphveil.runs.source import Source

FORMAT = 2
SETTINGS, PLAN, EVENTS, METRICS_FILE = "settings.json", "plan.json", "events.json", "metrics.json"
MODEL, ENVIRONMENT = "model.safetensors", "environment.json"
CERTIFICATES = ("certificate.txt", "certificate.md", "certificate.json")
FILES = (SETTINGS, PLAN, MODEL, EVENTS, METRICS_FILE, ENVIRONMENT, LOG, *CERTIFICATES)
CACHE = "cache.safetensors"  # of methods that have one
AUDIT = "audit.json"  # of runs that were attacked, see docs/report.md
LOSSES = "private-losses.jsonl"  # of runs that were asked for them
LEDGER = "ledger.json"
README, CONFIG, SIGNED = "README.md", "config.json", "certificate.signed.json"  # if published
HUB = (".gitattributes", ".cache")  # what huggingface_hub adds to a folder
PUBLISHED = (README, CONFIG, SIGNED, *HUB)
CHECKPOINT = "checkpoint"


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What was asked for: all that settings.json says, and all that must be equal to go on.

    ``schema`` is the content of the one by which tables were read, and by which others are.
    ``tuning`` says how the settings were chosen, if trials chose them. ``plan_sha256`` is the hash
    of the plan that runs: no other one is gone on with, or read.
    """

    method: str
    settings: Mapping[str, Any]
    source: Source
    split: str | None = None
    class_names: list[str] | None = None
    columns: list[str] | None = None
    schema: Mapping[str, Any] | None = None
    tuning: Mapping[str, Any] | None = None
    plan_sha256: str | None = None

    def to_json(self) -> dict[str, Any]:
        """As JSON gives it back: tuples are lists, so that what is read equals what was written."""
        return as_plain(
            {
                "format": FORMAT,
                "method": self.method,
                "settings": dict(self.settings),
                "data": {**asdict(self.source), "split": self.split or self.source.split},
                "class_names": self.class_names,
                "columns": self.columns,
                "schema": None if self.schema is None else dict(self.schema),
                "tuning": None if self.tuning is None else dict(self.tuning),
                "plan_sha256": self.plan_sha256,
            }
        )

    @classmethod
    def read(cls, directory: Path) -> Asked:
        """What was asked for in a directory."""
        with reading(directory, SETTINGS):
            content = read_json(directory / SETTINGS)
            version = content["format"]
        if version == 1:
            raise InvalidInputError(
                f"The run in {directory} was written by an earlier version, which kept no plan; "
                "read it with that version, or train again."
            )
        with reading(directory, SETTINGS):
            if version != FORMAT:
                raise ValueError(f"format {version!r} is not {FORMAT}")
            if content["method"] not in METHODS:
                raise ValueError(f"there is no method {content['method']!r}")
            tuning, names = content.get("tuning"), content.get("class_names")
            if not (tuning is None or isinstance(tuning, dict)):
                raise TypeError(f"'tuning' cannot be {tuning!r}")
            return cls(
                method=content["method"],
                settings=dict(content.get("settings", {})),
                source=Source(**content["data"]),
                split=content["data"].get("split"),
                class_names=None if names is None else [str(name) for name in names],
                columns=content.get("columns"),
                schema=_schema_of(content.get("schema")),
                tuning=tuning,
                plan_sha256=content.get("plan_sha256"),
            )

    def make(self) -> Method:
        """The method, with its settings."""
        return METHODS[self.method](**self.settings)


def _schema_of(content: Any) -> dict[str, Any] | None:
    """A schema as it was written, checked."""
    return None if content is None else Schema.from_dict(content).to_dict()


@dataclass(frozen=True, kw_only=True)
class Record:
    """A finished run, as its files tell it."""

    directory: Path
    asked: Asked
    plan: Plan
    charges: tuple[Charge, ...]
    void_because: tuple[str, ...]
    inference: tuple[str, ...]
    hashes: Mapping[str, str]
    certificate: Certificate | None  # None where a crash came before it, after a new charge
    reservation: str | None

    @property
    def kind(self) -> type[Method]:
        """The class of the method."""
        return METHODS[self.asked.method]

    def metrics(self) -> dict[str, Any]:
        """What was measured; a figure that is new has no entry in an older run."""
        with reading(self.directory, METRICS_FILE):
            return read_json(self.directory / METRICS_FILE)

    def environment(self) -> dict[str, Any]:
        """The versions it was made with."""
        with reading(self.directory, ENVIRONMENT):
            return read_json(self.directory / ENVIRONMENT)


def read_plan(directory: Path) -> Plan:
    """The plan that was, or is being, run."""
    with reading(directory, PLAN):
        content = read_json(directory / PLAN)
        if content["format"] != FORMAT:
            raise ValueError(f"format {content['format']!r} is not {FORMAT}")
        plan = Plan.from_json(content["plan"])
        words = (plan.released, plan.released_to, *plan.public, *plan.unprotected, *plan.voided_by)
        if not all(isinstance(word, str) for word in words):
            raise TypeError("what is released, public or not protected must be said in words")
        if as_plain(plan.to_json()) != content["plan"]:
            raise ValueError("it is not what a plan is written as")
        if _hash(directory / PLAN) != Asked.read(directory).plan_sha256:
            raise ValueError(f"it is another plan than the one that {SETTINGS} names")
        return plan


def write_plan(directory: Path, plan: Plan) -> str:
    """Write the plan, before anything of it is run; its hash, by which the settings name it."""
    write_json(directory / PLAN, {"format": FORMAT, "plan": as_plain(plan.to_json())})
    return _hash(directory / PLAN)


def read_record(directory: Path, *, finished: bool = True) -> Record:
    """The files of a trained run, each checked; one that is not ``finished`` has no certificate."""
    asked, plan = Asked.read(directory), read_plan(directory)
    with reading(directory, SETTINGS):
        names = asked.class_names
        if names is not None and len(names) != plan.facts.num_classes:
            raise ValueError(f"it has {len(names)} names for {plan.facts.num_classes} classes")
        if plan.method != asked.method:
            raise ValueError(f"it is about '{asked.method}', and {PLAN} about '{plan.method}'")
        asked.make()  # refuses settings that the method does not have
    with reading(directory, PLAN):
        for name, value in plan.settings.items():
            if asked.settings.get(name) != value:
                raise ValueError(f"it was made with another {name} than {SETTINGS} has")
    with reading(directory, EVENTS):
        events = read_json(directory / EVENTS)
        charges = tuple(
            Charge(paid_for=str(paid["paid_for"]), event=from_json(paid["event"]))
            for paid in events["charges"]
        )
        if not charges:
            raise ValueError("it charges for nothing")
        void = tuple(str(reason) for reason in events["void_because"])
        inference = tuple(str(line) for line in events["inference"])
        hashes = {name: str(value) for name, value in events.items() if name.endswith("_sha256")}
        reservation = _reservation_of(events)
    _check_hash(directory, MODEL, hashes.get("model_sha256"), "weights")
    if "cache_sha256" in hashes:
        _check_hash(directory, CACHE, hashes["cache_sha256"], "noisy sums")
    certificate = _read_certificate(directory, plan, charges, void) if finished else None
    return Record(
        directory=directory,
        asked=asked,
        plan=plan,
        charges=charges,
        void_because=void,
        inference=inference,
        hashes=hashes,
        certificate=certificate,
        reservation=reservation,
    )


def read_reservation(directory: Path) -> str | None:
    """The reservation that a trained run was charged under, which a copy of it has, too."""
    with reading(directory, EVENTS):
        return _reservation_of(read_json(directory / EVENTS))


def _reservation_of(events: Mapping[str, Any]) -> str | None:
    reservation = events.get("reservation")
    if not (reservation is None or isinstance(reservation, str)):
        raise TypeError(f"'reservation' cannot be {reservation!r}")
    return reservation


def _read_certificate(
    directory: Path, plan: Plan, charges: tuple[Charge, ...], void: tuple[str, ...]
) -> Certificate | None:
    """The certificate, unless a crash came between a new charge and it: then the charges hold."""
    with reading(directory, CERTIFICATES[-1]):
        certificate = Certificate.from_json((directory / CERTIFICATES[-1]).read_text())
        if certificate.charges != charges[: len(certificate.charges)]:
            raise ValueError(f"it is not about the charges in {EVENTS}")
    with reading(directory, PLAN):
        _check_promise(plan, void, certificate)
    return certificate if certificate.charges == charges else None


def _check_promise(plan: Plan, void: tuple[str, ...], certificate: Certificate) -> None:
    """Refuse a plan that promises something else than the certificate, which it would renew."""
    guarantee = certificate.guarantee
    then = (guarantee.unit, guarantee.relation, guarantee.delta)
    voided = (*plan.void_because, *void)
    if (
        then != (plan.unit, plan.relation, plan.delta)
        or certificate.void_because != voided
        or certificate.claim != plan.claim
    ):
        raise ValueError(f"it promises something else than {CERTIFICATES[-1]}")


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _check_hash(directory: Path, name: str, expected: str | None, what: str) -> None:
    with reading(directory, name):
        if _hash(directory / name) != expected:
            raise ValueError(f"these are not the {what} that {EVENTS} charges for")


# --- writing --------------------------------------------------------------------------------------


def write_events(directory: Path, method: Method, hashes: Mapping[str, str]) -> None:
    """Every charge of a method, with the hashes of the files it paid for.

    Among them is the id of the reservation, if the run was charged to a ledger.
    """
    write_json(
        directory / EVENTS,
        {
            "format": FORMAT,
            **hashes,
            "void_because": list(method.void_because_),
            "inference": list(method.inference_),
            "charges": [
                {"paid_for": charge.paid_for, "event": to_json(charge.event)}
                for charge in method.charges_
            ],
        },
    )


def write_certificate(directory: Path, certificate: Certificate) -> None:
    """A certificate in all its forms; the last of them makes a run finished."""
    text, markdown, plain = CERTIFICATES
    write_file(directory / text, f"{certificate}\n".encode())
    write_file(directory / markdown, certificate.to_markdown().encode())
    write_file(directory / plain, f"{certificate.to_json()}\n".encode())


def write_results(directory: Path, method: Method, reservation: str | None = None) -> None:
    """The weights, the cache if there is one, and the charges for them."""
    import safetensors.torch

    weights = {name: value.contiguous() for name, value in method.network_.state_dict().items()}
    model = safetensors.torch.save(weights)
    write_file(directory / MODEL, model)
    hashes = {"model_sha256": hashlib.sha256(model).hexdigest()}
    if (cache := getattr(method, "cache_", None)) is not None:
        sums = safetensors.torch.save({"sums": cache.contiguous(), **_ids_as_bytes(method)})
        write_file(directory / CACHE, sums, private=method.plan_.unit == "node")
        hashes["cache_sha256"] = hashlib.sha256(sums).hexdigest()
    if reservation is not None:
        hashes["reservation"] = reservation  # a copy without ledger.json tells, too
    write_events(directory, method, hashes)


def _ids_as_bytes(method: Any) -> dict[str, Any]:
    """The ids whose sums are cached, as a tensor; nothing where they have none."""
    import torch

    if (ids := getattr(method, "cache_ids_", None)) is None:
        return {}
    return {"ids": torch.frombuffer(bytearray(json.dumps(ids).encode()), dtype=torch.uint8)}


def describe_environment() -> dict[str, Any]:
    """The versions that run here."""
    import safetensors
    import torch

    return {
        "versions": {**versions(), "safetensors": safetensors.__version__},
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "threads": torch.get_num_threads(),
        "device": devices.describe(),
    }


def as_plain(content: Mapping[str, Any]) -> dict[str, Any]:
    """As JSON gives it back."""
    return dict(json.loads(json.dumps(content, allow_nan=False)))
