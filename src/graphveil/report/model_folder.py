"""A folder with a model for others: weights, what they are, the certificate, and a model card.

The folder is a run without what is private or nobody's business: it is read by
``graphveil.read(folder)``, and ``huggingface_hub`` can upload it as it is.

================================  ================================================================
README.md                         the model card, with the front matter of Hugging Face
model.safetensors                 the weights
config.json                       method, settings, sizes, names that are public
plan.json, settings.json,         what graphveil reads: the plan that ran, what was asked for
events.json                       without paths, what was charged
certificate.txt, .md, .json       the certificate, made again from what was charged
certificate.signed.json           the same, signed, where a key was given
================================  ================================================================

Left out: metrics, unless somebody says why they may be public; logs, checkpoints, losses, the
ledger, audits; noisy sums that are for nobody, and with them the predictions that read them.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphveil._errors import InvalidInputError, UnprovenError
from graphveil._files import write_file
from graphveil.privacy.guarantee import Certificate
from graphveil.report import citations, wording
from graphveil.report.deployment import describe, to_yaml
from graphveil.report.owner import Owner, check_reason, require
from graphveil.report.statement import certificate_of, of_folder, statement_of
from graphveil.runs.files import read_json, unusable
from graphveil.runs.record import (
    CACHE,
    CERTIFICATES,
    CONFIG,
    EVENTS,
    MODEL,
    PLAN,
    README,
    SETTINGS,
    SIGNED,
)
from graphveil.runs.source import MEMORY

if TYPE_CHECKING:
    from graphveil.report.evidence import Evidence

_LICENSE = re.compile(r"[a-z0-9][a-z0-9.+-]{1,60}")
_MARKS = re.compile(r"[\\`*_\[\]]|^[-#>+=~]")  # links, images, code, headings, lists
_FREE_SETTINGS = ("split", "seed", "train_share", "directed", "fractions", "min_class", "thinned")


@dataclass(frozen=True, kw_only=True)
class Folder:
    """What is in a folder, by the names of files; ``metrics_shown`` says whether scores are."""

    files: Mapping[str, bytes]
    metrics_shown: bool


def build(
    run: Evidence,
    owner: Owner,
    *,
    in_the_open: bool = False,
    metrics_public: str | None = None,
    sign: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None,
) -> Folder:
    """The files of a folder about a run.

    A run without a proven guarantee is refused unless it is published ``in_the_open``.
    ``metrics_public`` says why the scores on test records may be shown; without it none are.
    ``sign`` makes a signed certificate of a statement, which has the hash of every file here.

    *Guarantee.* The weights have that of the certificate. Scores are outside it.
    """
    check_reason(metrics_public)
    require(owner, ["license"], "A model card")
    _check(run, owner, in_the_open)
    certificate = certificate_of(run)
    directory = Path(run.path)
    weights = (directory / MODEL).read_bytes()
    if hashlib.sha256(weights).hexdigest() != run.weights_sha256:
        raise InvalidInputError(
            f"The weights in {run.path} changed while they were read; publish again."
        )
    statement = statement_of(run)
    signed = None if sign is None else sign(statement)  # the card names who signs
    files = {
        README: _readme(run, owner, metrics_public, signed).encode(),
        MODEL: weights,
        CONFIG: _json(_config(run)),
        PLAN: (directory / PLAN).read_bytes(),
        SETTINGS: _json(_settings(run)),
        EVENTS: _json(_events(run)),
        **_certificates(certificate),
    }
    if sign is not None:
        files[SIGNED] = _json(sign(of_folder(statement, files)))
    return Folder(files=files, metrics_shown=metrics_public is not None)


def _check(run: Evidence, owner: Owner, in_the_open: bool) -> None:
    if owner.license is not None and not _LICENSE.fullmatch(owner.license):
        raise InvalidInputError(
            "The 'license' parameter must be an identifier such as apache-2.0, mit or other. Got "
            f"{owner.license!r} instead."
        )
    if run.status != "proven" and not in_the_open:
        raise UnprovenError(
            f"The run in {run.path} is {wording.STATUS[run.status]}: whoever has its weights may "
            "read the data off them. Publish another run, or say --open if the data is public."
        )
    to = run.certificate.released_to
    if not to.startswith("anybody"):
        raise UnprovenError(
            f"The weights of the run in {run.path} are released to {to}, and to nobody else; "
            "publish another run."
        )


def write(folder: Folder, out: str | Path) -> None:
    """Write a folder whole or not at all; one that holds anything is refused."""
    check_new(out)
    path = Path(out)
    aside = path.absolute().parent / f".{path.name}.{secrets.token_hex(4)}.partial"
    try:
        aside.mkdir()
        for name, content in folder.files.items():
            write_file(aside / name, content)
        if path.exists():
            path.rmdir()
        aside.rename(path)
    except OSError as error:
        shutil.rmtree(aside, ignore_errors=True)
        raise unusable(path, error) from error


def check_new(out: str | Path) -> None:
    """Refuse a folder that is there and holds anything, before anything is read."""
    path = Path(out)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise InvalidInputError(
            f"{out} must be a new folder, or an empty one; choose another name."
        )
    if not path.absolute().parent.is_dir():
        raise InvalidInputError(
            f"{out} cannot be written: {path.absolute().parent} is no directory."
        )


# --- files for programs ---------------------------------------------------------------------------


def _json(content: Mapping[str, Any]) -> bytes:
    return (json.dumps(content, indent=2, allow_nan=False) + "\n").encode()


def _certificates(certificate: Certificate) -> dict[str, bytes]:
    text, markdown, plain = CERTIFICATES
    return {
        text: f"{certificate}\n".encode(),
        markdown: certificate.to_markdown().encode(),
        plain: f"{certificate.to_json()}\n".encode(),
    }


def _config(run: Evidence) -> dict[str, Any]:
    """What the model is, for programs that know nothing of runs."""
    guarantee = run.certificate.guarantee
    return {
        "library_name": "graphveil",
        "graphveil_version": run.environment["versions"].get("graphveil"),
        "model_type": run.method,
        "settings": dict(run.settings),
        "facts": asdict(run.facts),
        "class_names": None if run.names is None else list(run.names),
        "unit": guarantee.unit,
        "epsilon": None if run.epsilon is None else run.epsilon,
        "delta": guarantee.delta,
        "weights_sha256": run.weights_sha256,
    }


def _settings(run: Evidence) -> dict[str, Any]:
    """What was asked for, without paths, and of trials only that there were some."""
    content = read_json(Path(run.path) / SETTINGS)
    data = content["data"]
    tuning = content.get("tuning")
    return {
        **content,
        "data": {
            "data": MEMORY if run.entry is None else run.data,
            **{name: data[name] for name in _FREE_SETTINGS if name in data},
        },
        "tuning": None if tuning is None else {"scores": tuning.get("scores")},
    }


def _events(run: Evidence) -> dict[str, Any]:
    """What was charged, and for which weights.

    The id of a reservation stays: it tells nobody anything, and whoever predicts with noise from
    the folder on the same people's data is asked for their ledger.
    """
    content = read_json(Path(run.path) / EVENTS)
    kept = ("format", "model_sha256", "reservation", "void_because", "inference", "charges")
    return {name: content[name] for name in kept if name in content}


# --- the model card -------------------------------------------------------------------------------


def _readme(
    run: Evidence, owner: Owner, metrics_public: str | None, signed: Mapping[str, Any] | None
) -> str:
    from graphveil.report.template import replace_hidden

    name = owner.name or f"{run.method} for {run.facts.record}s"
    scores = {} if metrics_public is None else _scores(run)
    sections = [
        _front_matter(run, owner, name, scores),
        f"# {_plain(name)}\n",
        _opening(run, owner),
        _promise(run),
        _use(run),
        _figures(run, metrics_public, scores),
        _check_it(run, signed),
        f"## Cite\n\n```bibtex\n{citations.bibtex(run.method)}```\n",
    ]
    return str(replace_hidden("\n".join(section for section in sections if section)))


def _plain(text: str) -> str:
    """Text of an owner on a line of Markdown, which it cannot leave, and in which it is text."""
    return _MARKS.sub(lambda mark: f"\\{mark[0]}", " ".join(text.split())).replace("<", "&lt;")


def _front_matter(
    run: Evidence, owner: Owner, name: str, scores: Mapping[str, tuple[str, float]]
) -> str:
    tags = ["graphveil", "graph-neural-network", run.method]
    if run.status == "proven":
        tags.insert(1, "differential-privacy")
    matter: dict[str, Any] = {
        "library_name": "graphveil",
        "license": owner.license,
        "pipeline_tag": "graph-ml",
        "tags": tags,
    }
    if scores:
        task = {"type": "graph-ml", "name": wording.TASK_WORDS[run.facts.task]}
        dataset = "data of its owner" if run.entry is None else run.data
        results = [{"type": key, "name": label, "value": v} for key, (label, v) in scores.items()]
        source = {"type": dataset.partition(":")[0].replace(" ", "-"), "name": dataset}
        matter["metrics"] = list(scores)
        matter["model-index"] = [
            {"name": name, "results": [{"task": task, "dataset": source, "metrics": results}]}
        ]
    return f"---\n{to_yaml(matter)}---\n"


def _scores(run: Evidence) -> dict[str, tuple[str, float]]:
    """What was measured on test records, by the names of metrics."""
    names = wording.scores_of(run.facts.task, run.metric)
    values = {name: run.metrics[name] for name in names}
    return {name: (wording.SCORES[name], v) for name, v in values.items() if v is not None}


def _opening(run: Evidence, owner: Owner) -> str:
    lines = []
    if run.status != "proven":
        lines.append(
            "**No privacy guarantee.** Whoever has these weights may read off them what they were "
            f"trained on. The certificate is {wording.STATUS[run.status]}."
        )
        version = run.environment["versions"].get("graphveil", "")
        lines.append(f"Weights of the method {run.method} of graphveil {version}.")
    else:
        lines.append(_plain(owner.description or describe(run)))
    if owner.purpose:
        lines.append(f"**Intended use.** {_plain(owner.purpose)}")
    if owner.owner:
        lines.append(f"**Published by** {_plain(', '.join(owner.owner))}.")
    return "\n\n".join(lines) + "\n"


def _promise(run: Evidence) -> str:
    if run.status != "proven":
        return ""
    certificate = run.certificate
    lines = [
        "## Privacy\n",
        f"- **{certificate.guarantee}.**",
        f"- Protects {certificate.guarantee.protects}.",
        *([] if run.leaves_out is None else [f"- Leaves out {run.leaves_out}."]),
        *(f"- Not protected: {line}." for line in certificate.unprotected),
        *(f"- {line}" for line in certificate.membership_lines()),
        f"- May be shown to: {certificate.released_to}.",
        f"- Rests on what [{CERTIFICATES[1]}]({CERTIFICATES[1]}) lists under *Public by "
        "assumption*, and is void if anything is so that it lists under *Void if*.",
    ]
    return "\n".join(lines) + "\n"


def _use(run: Evidence) -> str:
    reads = [f"- {line}." for line in run.certificate.inference]
    if (Path(run.path) / CACHE).exists():
        reads.append("- The noisy sums that training made are not in this folder.")
    own = "\n".join(["What a prediction reads, and who may see it:\n", *reads, ""])
    return (
        '## Use\n\n```python\nimport graphveil\n\nmethod = graphveil.read("FOLDER")  # where '
        "this folder is\n```\n\n```sh\ngraphveil predict FOLDER --data my-graph/ --out "
        f"predictions.csv\n```\n\n{own if reads else ''}"
    )


def _figures(
    run: Evidence, metrics_public: str | None, scores: Mapping[str, tuple[str, float]]
) -> str:
    lines = []
    if run.charged_score is not None:
        lines.append(
            f"- Validation score {run.charged_score:.4g}: released with the settings, and charged."
        )
    if metrics_public is not None:
        lines += [
            f"- Test {label}: {wording.score(name, value)}"
            for name, (label, value) in scores.items()
        ]
        lines.append(
            f"\nTest figures are outside the certificate, and declared public: "
            f"{_plain(metrics_public)}"
        )
    return "\n".join(["## Figures\n", *lines, ""]) if lines else ""


def _check_it(run: Evidence, signed: Mapping[str, Any] | None) -> str:
    lines = [f"## Check\n\nSHA-256 of the weights: `{run.weights_sha256}`"]
    if signed is not None:
        lines += [
            f"\nSigned by {_plain(signed['signer'])} with the key `{signed['public_key']}`. Get "
            "that key another way, too: a key that only this page names may be anybody's.\n",
            f"```sh\ngraphveil certificate verify FOLDER/{SIGNED} --trusted KEY --run FOLDER\n```",
        ]
    return "\n".join(lines) + "\n"
