"""A run as a record for the OpenDP Deployments Registry, in its terms.

The registry is at https://github.com/opendp/deployments-registry-data. What the run knows is
written down from its certificate; what only the owner knows is the owner's to state, and is never
invented. Where NIST SP 800-226 has a term for something (privacy unit, privacy parameters, trust
model, privacy hazards), the card uses it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from graphveil._errors import InvalidInputError, UnprovenError
from graphveil.methods.inference import PAID_FOR_PREDICTION
from graphveil.privacy.guarantee import ALWAYS_PUBLIC, ONE, round_up
from graphveil.report import wording
from graphveil.report.owner import Owner, require
from graphveil.report.statement import fingerprint_of

if TYPE_CHECKING:
    from graphveil.report.evidence import Evidence

TODO = "TODO by owner"
REQUIRED = ("name", "owner", "purpose", "region", "published", "authors", "releases", "data_source")
_SECOND_TIER = ("releases", "data_source")
_THIRD_TIER = ("actors", "justification", "preprocessing")
_FILE_NAME = re.compile(r"[a-z0-9_]+\.yaml")


def check_name(name: str) -> None:
    """Refuse a file that the registry would not take."""
    if not _FILE_NAME.fullmatch(name):
        raise InvalidInputError(
            "A card's file must be named by small letters, digits and underscores, and end in "
            f".yaml. Got {name!r} instead."
        )


def check_proven(run: Evidence, what: str) -> None:
    """Refuse a run that promises nothing."""
    if run.status != "proven":
        raise UnprovenError(
            f"{what} must be about a run with a proven guarantee. The run in {run.path} is "
            f"{wording.STATUS[run.status]}; name another."
        )


def card(run: Evidence, owner: Owner, *, draft: bool = False) -> dict[str, Any]:
    """The record of a run, as plain values in the registry's order.

    What is missing of what only the owner knows is refused; in a ``draft`` it is :data:`TODO`.

    *Guarantee.* None is needed: of the data the card has what the certificate counts as public.
    """
    check_proven(run, "A deployment card")
    if not draft:
        require(owner, REQUIRED, "A deployment card")
    record = {
        "url_slug": owner.slug or _slug(owner.name or TODO),
        "status": "Draft",
        "tier": _tier(owner),
        "deployment": {
            "basic": _basic(run, owner),
            "dp_variant": {
                "variant_name": "Approximate DP" if run.certificate.guarantee.delta else "Pure DP",
                "data_domain": _domain(run),
                "unprotected_quantities": _list_lines(_unprotected_lines(run)),
            },
            "privacy_loss": _privacy_loss(run),
            "deployment_model": _model(run, owner),
            "accounting": _accounting(run),
            "implementation": _implementation(run, owner),
            "administrative": _administrative(run, owner),
        },
    }
    cleaned: dict[str, Any] = _clean(record)
    return cleaned


def to_yaml(record: dict[str, Any]) -> str:
    """A card as YAML; text of several lines as a block, as the registry asks."""
    try:
        import yaml
    except ImportError as error:
        raise InvalidInputError(
            "Cards need pyyaml, which is not installed: pip install 'graphveil[evidence]'."
        ) from error

    class Dumper(yaml.SafeDumper):
        """Writes text of several lines as a block."""

    def write(dumper: Any, text: str) -> Any:
        style = "|" if "\n" in text else None
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)

    Dumper.add_representer(str, write)
    written: str = yaml.dump(
        record, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=float("inf")
    )
    return written


# --- parts of the record --------------------------------------------------------------------------


def _basic(run: Evidence, owner: Owner) -> dict[str, Any]:
    return {
        "name": owner.name or TODO,
        "data_curators": list(owner.owner) or [TODO],
        "intended_use": owner.purpose or TODO,
        "data_product_type": "Machine learning model",
        "data_product_region": owner.region or TODO,
        "description": owner.description or describe(run),
        "publication_date": owner.published or TODO,
        "data_product_sector": owner.sector,
    }


def describe(run: Evidence) -> str:
    """What the model is, in a sentence of public facts."""
    version = run.environment["versions"].get("graphveil", "")
    learnt = wording.TASK_WORDS[run.facts.task]
    return (
        f"{run.certificate.released[:1].upper()}{run.certificate.released[1:]} of a network that "
        f"predicts {learnt} for each {wording.RECORD_WORDS[run.facts.record]}, trained with "
        f"differential privacy by the method {run.method} of graphveil {version}".rstrip()
        + "."
    )


def _domain(run: Evidence) -> str:
    facts = run.facts
    of = {
        "node": f"Every graph with {facts.num_nodes:,} nodes",
        "graph": f"Every data set of {facts.num_nodes:,} graphs, whose nodes",
        "link": f"Every set of links of {facts.num_nodes:,} sources",
    }[facts.record]
    classes = "" if facts.task == "regression" else f", {facts.num_classes} classes or labels"
    if facts.record == "link":
        classes = f" to {facts.num_classes:,} targets"
    return f"{of} of {facts.num_features:,} features each{classes}, whatever else they hold."


def _unprotected_lines(run: Evidence) -> list[str]:
    lines = [] if run.leaves_out is None else [f"{run.leaves_out} (left out by the privacy unit)"]
    return [*lines, *run.certificate.public]


def _privacy_loss(run: Evidence) -> dict[str, Any]:
    certificate = run.certificate
    guarantee = certificate.guarantee
    named = "" if (world := _world(run)) is None else f", here {world}"
    return {
        "privacy_unit": f"{guarantee.one}{named}: {guarantee.protects.partition(': ')[2]}"
        if guarantee.owner is not None
        else f"{ONE[guarantee.unit]}{named}: {guarantee.protects}",
        "privacy_unit_details": f"Adjacent data sets: {guarantee.difference} (relation "
        f"{guarantee.relation!r}).",
        "privacy_parameters": {
            "epsilon": float(round_up(guarantee.epsilon)),
            "delta": guarantee.delta,
        },
        "privacy_parameters_details": _list_lines(
            [
                f"By privacy loss distributions epsilon is {round_up(certificate.pld)}, by Renyi "
                f"divergences {round_up(certificate.rdp)}; the smaller one holds. Figures are "
                "rounded up.",
                *certificate.membership_lines(),
            ]
        ),
    }


def _world(run: Evidence) -> str | None:
    """What a unit is in the world, with its article, where the owner or the catalog says."""
    if run.unit_name is not None:
        return wording.name_with_article(run.unit_name)
    known = run.entry is not None and run.unit.name == run.facts.record
    return run.entry.unit if known and run.entry is not None else None


def _model(run: Evidence, owner: Owner) -> dict[str, Any]:
    charged = "This run is charged to an account with a budget for life, in a privacy ledger."
    return {
        "model_name": "Central",
        "model_name_details": "Trust model: central. Whoever trains holds the data as they are; "
        f"{run.certificate.released} may be given to: {run.certificate.released_to}.",
        "actors": owner.actors,
        "release_type": owner.releases or TODO,
        "release_type_details": charged if run.charged else None,
        "data_source_type": owner.data_source or TODO,
        "access_type": "Interactive" if _answers_calls(run) else "Non-interactive",
        "access_type_details": _list_lines(run.certificate.inference),
    }


def _answers_calls(run: Evidence) -> bool:
    """Whether the run made predictions that were charged at their calls."""
    return any(charge.paid_for == PAID_FOR_PREDICTION for charge in run.certificate.charges)


def _accounting(run: Evidence) -> dict[str, Any]:
    return {
        "post_processing": "Whatever is computed from what was released, and from nothing else, "
        "costs nothing more. What a prediction reads besides is said under access_type_details.",
        "composition": _list_lines(
            [
                "All charges are composed as one, by privacy loss distributions and by Renyi "
                "divergences of the whole, not by adding epsilons:",
                *(
                    f"{charge.paid_for}: {release.times} x {release.kind}, {release.figures}"
                    for charge in run.certificate.charges
                    for release in wording.releases(charge.event)
                ),
            ]
        ),
    }


def _implementation(run: Evidence, owner: Owner) -> dict[str, Any]:
    chosen = (
        "Settings were chosen by trials that are charged, or made on public data: see "
        "unprotected_quantities."
        if run.tuned
        else "Hyper-parameters, steps and caps were chosen without looking at the private data, by "
        "the certificate's assumption."
    )
    before = [owner.preprocessing] if owner.preprocessing else []
    versions = ", ".join(f"{name} {text}" for name, text in run.environment["versions"].items())
    return {
        "preprocessing_and_hyperparameter_tuning": _list_lines(
            [*before, chosen, f"By assumption: {ALWAYS_PUBLIC[2]}."]
        ),
        "mechanisms": _list_lines(
            [
                f"Implemented by {versions}.",
                "Noise and batch coins come from the operating system's generator; Gaussian and "
                "Laplace noise and what it is added to are whole steps of one public grid, against "
                "floating-point attacks; no rejection loop could be timed.",
                f"SHA-256 of the weights: {run.weights_sha256}.",
            ]
        ),
        "justification": owner.justification,
    }


def _administrative(run: Evidence, owner: Owner) -> dict[str, Any]:
    hazards = [f"Void if {line}." for line in run.certificate.voided_by]
    lines = [
        "In the terms of NIST SP 800-226 the privacy unit, the privacy parameters and the trust "
        "model (central) stand above; the privacy hazards follow.",
        *hazards,
        f"Fingerprint of the certificate: {fingerprint_of(run)}.",
    ]
    return {
        "sources": owner.sources,
        "notes": "\n\n".join([*([owner.notes] if owner.notes else []), _list_lines(lines) or ""]),
        "registry_authors": list(owner.authors) or [TODO],
    }


# --- words ----------------------------------------------------------------------------------------


def _tier(owner: Owner) -> int:
    """How much is stated: the second tier with what a deployment is, the third with why."""
    if owner.missing(_SECOND_TIER):
        return 1
    return 2 if owner.missing(_THIRD_TIER) else 3


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_") or "model"


def _list_lines(lines: Sequence[str]) -> str | None:
    """One line as it is, several as a list of Markdown; None for none."""
    if len(lines) < 2:
        return lines[0] if lines else None
    return "".join(f"- {line}\n" for line in lines)


def _clean(value: Any) -> Any:
    """Without what is not there, and without characters that hide or reorder text."""
    from graphveil.report.template import replace_hidden

    if isinstance(value, dict):
        return {key: _clean(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_clean(item) for item in value]
    return replace_hidden(value)
