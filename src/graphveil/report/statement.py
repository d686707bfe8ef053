"""What of a run is signed, and what is checked of it: the certificate, what ran, which weights.

    statement = statement_of(evidence.read("runs/ward"))
    signed = signing.sign(statement, key, signer="Ann", date=today())
    verify(signing.read_signed("ward.signed.json"), trusted, run="runs/ward")

Nothing private is in it: the plan was made without looking at data, the certificate is made to be
shown, and of data it has what the certificate counts as public, with a name that the catalog knows
or none. No path of anybody's machine, no metric, no trial is in it.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphveil import _validate
from graphveil._errors import InvalidInputError, RefusedError, VerificationError
from graphveil.data.catalog import CATALOG, sizes_of
from graphveil.methods import METHODS, Facts, Plan
from graphveil.methods.plan_checks import check_plan, stem
from graphveil.privacy.agreement import (
    check_charges,
    check_close,
    check_same,
    check_trials,
    check_whole,
)
from graphveil.privacy.guarantee import Certificate, check_delta
from graphveil.privacy.signing import Signed, canonical, check_signature, fingerprint
from graphveil.report.model_files import (
    Compared,
    compare,
    hash_files,
    hash_of,
    hash_settings,
    list_others,
)
from graphveil.report.wording import status_of
from graphveil.runs.record import MODEL

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    from graphveil.report.evidence import Evidence

_STATEMENT = ("certificate", "run", "weights_sha256", "folder")
_RUN = ("method", "status", "plan", "settings_tuned", "settings_sha256", "data")
_PLAIN = re.compile(r"[0-9A-Za-z.+!_-]{1,64}")
_HASH = re.compile(r"[0-9a-f]{64}")


def certificate_of(run: Evidence) -> Certificate:
    """The certificate with the versions that the run was trained with, not those of its reader."""
    return replace(run.certificate, versions=dict(run.environment["versions"]))


def statement_of(run: Evidence) -> dict[str, Any]:
    """The statement about a run, as plain JSON; the same run gives the same one.

    *Guarantee.* None is needed: it is made of what the certificate counts as public.
    """
    statement = {
        "certificate": json.loads(certificate_of(run).to_json()),
        "run": {
            "method": run.method,
            "status": run.status,
            "plan": run.plan.to_json(),
            "settings_tuned": run.tuned,
            "settings_sha256": hash_settings(Path(run.path)),
            "data": {
                "name": run.data if fits_catalog(run.data, run.facts) else None,
                "unit": run.unit_name,
                **asdict(run.facts),
            },
        },
        "weights_sha256": run.weights_sha256,
    }
    plain: dict[str, Any] = json.loads(json.dumps(statement, allow_nan=False))
    return plain


def of_folder(statement: Mapping[str, Any], files: Mapping[str, bytes]) -> dict[str, Any]:
    """The statement about a run with the hashes of the files of a published folder."""
    return {**statement, "folder": hash_files(files)}


def fingerprint_of(run: Evidence) -> str:
    """The fingerprint of the statement about a run, which its signed certificate has, too."""
    return fingerprint(statement_of(run))


def today() -> str:
    """When something is signed: by the clock of whoever signs."""
    return datetime.now(UTC).isoformat(timespec="seconds")


@dataclass(frozen=True, kw_only=True)
class Verified:
    """What was checked of a signed certificate, and holds.

    ``has_weights`` says whether weights were given; then they are those it is about. ``compared``
    names the files beside them that are those it is about, ``not_compared`` all else in their
    directory, of which the signature says nothing. ``now`` is what the run's files say it costs
    where more was charged since it was signed.
    """

    certificate: Certificate
    method: str
    signer: str
    date: str
    public_key: str
    fingerprint: str
    weights_sha256: str
    has_weights: bool
    compared: tuple[str, ...] = ()
    not_compared: tuple[str, ...] = ()
    now: Certificate | None = None


def verify(
    signed: Signed, trusted: Ed25519PublicKey | None, run: str | Path | None = None
) -> Verified:
    """Check who signed, what the charges cost today, and whose weights these are.

    ``run`` is a run, a published folder, or a file of weights. What does not hold is refused.

    *Guarantee.* The epsilon that is returned is what the listed charges cost by the accountant of
    today. That they are all that ran is the signer's word.
    """
    check_signature(signed, trusted)
    statement = signed.statement
    try:
        certificate = Certificate.from_json(json.dumps(statement["certificate"]))
        plan, weights = Plan.from_json(statement["run"]["plan"]), str(statement["weights_sha256"])
        method = str(statement["run"]["method"])
        run_facts = dict(statement["run"])
        data = dict(run_facts["data"])
        tprs = dict(statement["certificate"].get("largest_tpr", {}))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InvalidInputError(
            "The signed statement cannot be read by this version: "
            f"{type(error).__name__}: {' '.join(str(error).split())[:200]}; take the version that "
            "signed it."
        ) from None
    try:
        again = _make_again(certificate, plan)
        _check_price(certificate, again, tprs)
        _check_names(statement, again)
        check_same("method", method, plan.method)
        _check_run(run_facts, data, plan, again)
        _check_plan(plan, certificate)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RefusedError) as error:
        made = certificate.versions.get("graphveil")
        raise VerificationError(
            "The certificate does not follow from its charges and its plan: "
            f"{' '.join(str(error).split())[:400].rstrip('.')}; ask the signer how it was made, by "
            f"version {_validate.shown(made)} of graphveil as it says."
        ) from None
    if run is not None and (here := weights_of(run)) != weights:
        raise VerificationError(
            f"The weights in {run} are others than the certificate is about: their SHA-256 is "
            f"{here}, not {weights}; ask for those that were certified."
        )
    comparison = Compared(names=())
    others: tuple[str, ...] = ()
    if run is not None and Path(run).is_dir():
        comparison = compare(Path(run), statement, certificate)
        others = list_others(Path(run), comparison.names, signed)
    return Verified(
        certificate=certificate,
        method=method,
        signer=signed.content["signer"],
        date=signed.content["date"],
        public_key=signed.public_key,
        fingerprint=fingerprint({k: v for k, v in statement.items() if k != "folder"}),
        weights_sha256=weights,
        has_weights=run is not None,
        compared=comparison.names,
        not_compared=others,
        now=comparison.now,
    )


def _make_again(certificate: Certificate, plan: Plan) -> Certificate:
    """The certificate of the plan with those charges, and what may have come since."""
    return plan.certificate(
        certificate.charges,
        void_because=certificate.void_because[len(plan.void_because) :],
        inference=certificate.inference[len(plan.inference) :],
    )


def _check_price(certificate: Certificate, again: Certificate, tprs: Mapping[str, float]) -> None:
    """Refuse a certificate that says anything else than the one made again."""
    check_whole(certificate, again)
    largest = {f"{fpr:g}": tpr for fpr, tpr in again.largest_tpr.items()}
    check_same("the rates of largest_tpr", sorted(tprs), sorted(largest))
    for fpr, tpr in largest.items():
        check_close(f"largest_tpr at {fpr}", tprs[fpr], tpr)


def _check_names(statement: Mapping[str, Any], again: Certificate) -> None:
    """Refuse names that nothing here reads, and nothing has checked."""
    expected = json.loads(again.to_json())
    written = statement["certificate"]
    check_same("what is unknown", sorted(set(statement) - set(_STATEMENT)), [])
    check_same("what is unknown in run", sorted(set(statement["run"]) - set(_RUN)), [])
    check_same("what is unknown in certificate", sorted(set(written) - set(expected)), [])
    for word in (*written["versions"], *written["versions"].values()):
        if not (isinstance(word, str) and _PLAIN.fullmatch(word)):
            raise ValueError(f"versions has {_validate.shown(word)}, which is no version")
    hashes = statement.get("folder", {})
    if not (isinstance(hashes, dict) and all(isinstance(it, str) for it in hashes.values())):
        raise TypeError("the hashes of its folder must be words")
    check_same("charges", written["charges"], json.loads(canonical(expected["charges"])))


def _check_run(
    run: Mapping[str, Any], data: Mapping[str, Any], plan: Plan, again: Certificate
) -> None:
    """Refuse what is said of the run and its data, and is not what the plan says."""
    facts = json.loads(json.dumps(asdict(plan.facts)))
    check_same("data", {k: v for k, v in data.items() if k not in ("name", "unit")}, facts)
    for name in ("name", "unit"):
        if not (data.get(name) is None or isinstance(data[name], str)):
            raise TypeError(f"the {name} of the data must be a word")
    if data.get("name") is not None and not fits_catalog(data["name"], plan.facts):
        raise ValueError(f"no data of these sizes is called {_validate.shown(data['name'])}")
    if data.get("unit") is not None:
        check_same("the unit of the data", data["unit"], plan.record_name)
    hashed = run.get("settings_sha256")
    if hashed is not None and not (isinstance(hashed, str) and _HASH.fullmatch(hashed)):
        raise TypeError("settings_sha256 must be 64 hexadecimal digits")
    tuned = run["settings_tuned"]
    if not isinstance(tuned, bool) or tuned > plan.tuned:
        raise ValueError(f"settings_tuned is {tuned!r}, and its plan makes it {plan.tuned!r}")
    if tuned:
        check_trials(plan.charges, again)
    else:
        check_charges(plan.charges, again.charges)
    check_same("status", run["status"], status_of(plan, again))


def _check_plan(plan: Plan, certificate: Certificate) -> None:
    """Refuse a method that there is not, and a unit, a delta or an inference that it has not."""
    if plan.method not in METHODS:
        raise ValueError(f"there is no method {_validate.shown(plan.method)}")
    settings: Any = plan.settings
    method = METHODS[plan.method](**settings)
    check_same("record", plan.facts.record, method.record)
    owned = plan.facts.num_owners is not None
    check_same("unit", plan.unit, "owner" if owned else method.unit_for(plan.facts))
    if math.isfinite(certificate.guarantee.epsilon):
        check_delta(plan.delta, method.num_units(plan.facts))
    if not plan.inference:
        raise ValueError("inference is empty, and every method says what a prediction reads")
    known = {stem(inference.says(method, plan.unit)) for inference in method.inferences}
    for line in certificate.inference[len(plan.inference) :]:
        if stem(line) not in known:
            raise ValueError(f"inference has {line!r}, which {plan.method} does not say")
    check_plan(plan, method)


def fits_catalog(name: str, facts: Facts) -> bool:
    """Whether the catalog knows data of that name, and it may have these sizes.

    Records and classes may have been left out of it, and its edges taken for links.
    """
    sizes = None if name.partition(":")[0] not in CATALOG else sizes_of(name)
    if sizes is None:
        return False
    if sizes.num_features not in (None, facts.num_features):
        return False
    if sizes.num_records is not None and sizes.num_records < facts.num_nodes:
        return False
    if facts.record != sizes.record:
        return facts.record == "link" and sizes.record == "node"
    return sizes.num_classes is None or sizes.num_classes >= facts.num_classes


def weights_of(run: str | Path) -> str:
    """The SHA-256 of the weights in a run, in a published folder, or in a file."""
    return hash_of(Path(run) / MODEL if Path(run).is_dir() else Path(run))
