"""A run's page for whoever answers for the data: what may be published, and why, to be signed.

It says in words what :mod:`graphveil.report.sections` says in figures. Nothing on it is read off
the data but what the certificate counts as public: no accuracy, unless it was charged or somebody
says why it may be shown; of an audit only what it was and whether it held.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from graphveil._errors import InvalidInputError
from graphveil.privacy.guarantee import ONE, round_up
from graphveil.report import wording
from graphveil.report.owner import Owner, check_reason
from graphveil.report.sections import Pairs, Promise, contradictions, predicted, promise
from graphveil.report.statement import fingerprint_of
from graphveil.report.template import fill

if TYPE_CHECKING:
    from markupsafe import Markup

    from graphveil.privacy.guarantee import Certificate
    from graphveil.report.evidence import Evidence
    from graphveil.report.growth import Growth

NOBODY = "nobody"
HOLDERS = "those who may see the data"
_TRIALS = {  # what an audit of each kind is, in words
    "replay": "The training was repeated on neighbouring data with the same randomness, and "
    "everything that it released was compared with what was paid for.",
    "mechanism": "Releases were drawn many times, and their law was compared with the one that is "
    "charged for.",
    "run": "Made-up records were put into the data, and it was measured how well the release tells "
    "which of them took part.",
    "attack": "Known attacks were run against the release.",
}
_OWNERS_WORD = (  # audit.json names no weights, and nobody signs it
    "That is the statement of whoever holds the run: nothing ties these findings to the weights, "
    "and the signature of a certificate does not cover them."
)
_READ_NO_ROW = ("mechanism", "run")  # their findings depend on noise and coins alone
GLOSSARY = {
    "Differential privacy": "A promise about a release: it would have come out almost the same, "
    "had one unit's data been withheld. It holds against everybody, whatever they know or compute.",
    "Privacy unit": "Whose data, and how much of it, the promise is about. NIST SP 800-226 calls "
    "it the unit of privacy.",
    "Epsilon and delta": "The privacy parameters. Epsilon bounds how far something can move the "
    "odds of a guess; but for a failure of probability at most delta, the release behaves like "
    "something for which that always holds. Less is more private.",
    "Membership test": "A guess, from what was released, whether somebody took part.",
    "Certificate": "The list of what was released, what was charged for it, what it costs, what is "
    "assumed, and what would void it.",
    "Trust model": "Who sees the data as they are. Here it is central: whoever trains the model "
    "does, and everybody else sees the release alone.",
    "Privacy hazard": "Something outside the mathematics by which the promise would fail.",
    "Fingerprint": "A number that belongs to this certificate alone. The signed certificate has "
    "the same one; another one means another certificate.",
    "Audit": "A promise put on trial. It can show that a promise is broken; it cannot prove one.",
    "Ledger": "A list of everything that was ever spent on some people's data, with a budget for "
    "life.",
}


@dataclass(frozen=True, kw_only=True)
class Share:
    """Something that could be handed on: to whom it may go, and why."""

    what: str
    to: str
    why: str

    @property
    def verdict(self) -> str:
        """``yes`` for everybody, ``no`` for nobody, ``some`` for a few."""
        if self.to == "anybody":
            return "yes"
        return "no" if self.to == NOBODY else "some"


@dataclass(frozen=True, kw_only=True)
class Statement:
    """What an officer's page says of a run; ``promise`` is None where nothing holds."""

    run: Evidence
    title: str
    conclusion: str
    unit: str
    facts: Pairs
    promise: Promise | None
    shares: list[Share]
    assumed: list[str]
    hazards: list[str]
    alarms: list[str]
    audit: list[str]
    scores: Pairs
    scores_why: str | None
    glossary: Mapping[str, str]
    fingerprint: str
    growth: Growth | None
    growth_plot: Markup | None


def render(
    run: Evidence,
    owner: Owner,
    *,
    day: str,
    growth: Growth | None = None,
    metrics_public: str | None = None,
) -> str:
    """The officer's page about one run, dated ``day``."""
    statement = state(run, owner, day=day, growth=growth, metrics_public=metrics_public)
    return fill("officer.html", "report.js", title=statement.title, s=statement)


def only(evidence: Sequence[Evidence]) -> Evidence:
    """The one run that a page for a signature is about."""
    if len(evidence) != 1:
        raise InvalidInputError(
            "A page for an officer must be about one run, which is what is signed. Got "
            f"{len(evidence)} runs instead; name one, or take --for analyst."
        )
    return evidence[0]


def state(
    run: Evidence,
    owner: Owner,
    *,
    day: str,
    growth: Growth | None = None,
    metrics_public: str | None = None,
) -> Statement:
    """What the page says; see :class:`Statement`."""
    check_reason(metrics_public)
    meant = None if run.epsilon is None else promise("run-1", run)
    return Statement(
        run=run,
        title=owner.name or f"A model of the method {run.method}",
        conclusion=_conclude(run, meant),
        unit=_unit(run),
        facts=_facts(run, owner, day),
        promise=meant,
        shares=_shares(run, metrics_public is not None, growth is not None),
        assumed=_assumptions(run),
        hazards=list(run.certificate.voided_by),
        alarms=contradictions(run),
        audit=_audit(run),
        scores=_scores(run, metrics_public),
        scores_why=metrics_public,
        glossary=GLOSSARY,
        fingerprint=fingerprint_of(run),
        growth=growth,
        growth_plot=None if growth is None else growth.plot("growth"),
    )


def _conclude(run: Evidence, meant: Promise | None) -> str:
    """The whole page in one sentence."""
    if meant is None:
        return (
            "Nothing is promised for this model: it may reveal anything about the data it was "
            f"trained on, and belongs into the hands of {HOLDERS} alone."
        )
    took_part = _in_owners_words(run, meant.took_part)
    bound = (
        f"whoever sees it, and thought it as likely as not that {took_part}, can become at most "
        f"{meant.most} sure of it."
    )
    if run.unit.name.startswith("edge"):
        bound += " Nothing is promised for what the rows at its ends hold, which count as public."
    if not (delta := run.certificate.guarantee.delta):
        return f"Of this model this always holds: {bound}"
    return (
        f"But for a failure of probability at most delta, {wording.one_in(delta)}, this model "
        f"behaves like something for which this always holds: {bound}"
    )


def _in_owners_words(run: Evidence, took_part: str) -> str:
    """The same with what the owner calls a unit: "the data of one patient was used"."""
    word = run.unit_name or run.certificate.guarantee.owner
    return took_part if word is None else took_part.replace(ONE[run.unit.name], f"one {word}")


def _unit(run: Evidence) -> str:
    """The privacy unit, in the owner's words where there are some."""
    return f"one {run.unit_name}" if run.unit_name else run.certificate.guarantee.one


def _facts(run: Evidence, owner: Owner, day: str) -> Pairs:
    guarantee = run.certificate.guarantee
    rows = [
        ("date", day),
        ("owner", ", ".join(owner.owner)),
        ("purpose", owner.purpose or ""),
        (
            "model",
            f"{run.method}; it predicts {predicted(run)}, for each {_record(run)}",
        ),
        ("data", _data(run)),
        ("privacy unit", _unit_in_full(run)),
    ]
    if run.epsilon is not None:
        parameters = f"epsilon {round_up(run.epsilon)}, delta {guarantee.delta:g}"
        rows.append(("privacy parameters", parameters))
        rows.append(("trust model", "central: whoever trains holds the data as they are"))
    return [(name, text) for name, text in rows if text]


def _record(run: Evidence) -> str:
    return wording.RECORD_WORDS[run.facts.record]


def _data(run: Evidence) -> str:
    name = "the owner's" if run.entry is None else run.data
    return f"{name}: {run.facts.num_nodes:,} {_record(run)}s, which counts as public"


def _unit_in_full(run: Evidence) -> str:
    named = f"one {run.unit_name}, which is " if run.unit_name else ""
    left_out = "" if run.leaves_out is None else f". Left out: {run.leaves_out}"
    open_ = [f". Not protected: {line}" for line in run.certificate.unprotected]
    guarantee = run.certificate.guarantee
    whole = f"{named}{ONE[run.unit.name]}: {guarantee.protects}"
    if guarantee.owner is not None:  # it begins with the owner's words
        whole = guarantee.protects
    return f"{whole}{left_out}{''.join(open_)}"


# --- what may be published ------------------------------------------------------------------------


def _shares(run: Evidence, metrics_public: bool, ledger_shown: bool) -> list[Share]:
    """What could be handed on, and to whom it may go."""
    if run.epsilon is None:
        why = "nothing is promised for it"
        weights = [
            Share(what="the weights", to=HOLDERS, why=why),
            Share(what="predictions and embeddings", to=HOLDERS, why=why),
        ]
    else:
        weights = _releases(run)
    figures = (
        Share(what="scores on test records", to="anybody", why="declared public, see below")
        if metrics_public
        else Share(
            what="scores on test records, and plots of them",
            to=NOBODY,
            why="they are read off labels, outside the certificate; showing one is a release of "
            "its own",
        )
    )
    charged = (
        []
        if run.charged_score is None
        else [Share(what="the validation score", to="anybody", why="it was charged for")]
    )
    return [
        *weights,
        *charged,
        figures,
        Share(
            what="the certificate",
            to="anybody",
            why="it holds what counts as public, and nothing else of the data",
        ),
        _this_page(run, metrics_public, ledger_shown),
        Share(
            what="the data, logs, losses, audits that read the data (replay, attack), the ledger",
            to=HOLDERS,
            why="they are read off the data, or tell of it",
        ),
    ]


def _this_page(run: Evidence, metrics_public: bool, ledger_shown: bool) -> Share:
    """What the page itself tells besides the certificate."""
    shown = ["the validation score, which was charged"] if run.charged_score is not None else []
    shown += ["scores on test records, which were declared public"] if metrics_public else []
    besides = f", and shows {' and '.join(shown)}" if shown else ""
    reads = any(finding.kind not in _READ_NO_ROW for finding in run.audit)
    tells_of = ["an audit, which was read off the data"] if reads else []
    tells_of += ["what else was charged to the ledger"] if ledger_shown else []
    if tells_of:
        why = f"it tells of {' and of '.join(tells_of)}{besides}"
        return Share(what="this page", to=f"{HOLDERS}, and whoever they trust with it", why=why)
    return Share(what="this page", to="anybody", why=f"it says what the certificate says{besides}")


def _releases(run: Evidence) -> list[Share]:
    certificate = run.certificate
    to, *further = certificate.released_to.split("; ")
    why = "the promise is against everybody who sees it"
    return [
        Share(what=certificate.released, to=to, why=why),
        *_further(further),
        *(
            Share(what="predictions", to=_shown_to(line, certificate.guarantee.unit), why=line)
            for line in certificate.inference
        ),
        *([] if run.facts.record == "link" else [_embeddings(certificate)]),
    ]


def _embeddings(certificate: Certificate) -> Share:
    """Rows of a network about nodes or graphs; models of links write none."""
    return Share(
        what="embeddings",
        to=_shown_to(_most_read(certificate.inference), certificate.guarantee.unit),
        why="the promise is for the weights; an embedding tells of what it reads",
    )


def _most_read(lines: Sequence[str]) -> str:
    """The way to predict that an embedding is made in: from cached sums where there are some."""
    return next((line for line in lines if line.startswith("cached: ")), "")


def _shown_to(line: str, unit: str) -> str:
    """Who may see predictions of which a certificate says this; whoever sees the rows, in doubt."""
    if unit == "node" and line.startswith(("cached: ", "noisy: ")):
        return "its own node, each"
    if unit != "node" and line.startswith(("cached: ", "noisy: ")):
        return "anybody"
    return "whoever may see the rows that they are read from"


def _further(limits: Sequence[str]) -> list[Share]:
    """What a certificate says beside to whom the weights go: "the noisy sums to nobody"."""
    shares = []
    for limit in limits:
        what, _, to = limit.rpartition(" to ")
        if what == "each prediction":  # stands with the ways to predict
            continue
        shares.append(Share(what=what, to=to, why="so the certificate says"))
    return shares


def _assumptions(run: Evidence) -> list[str]:
    """What the promise rests on, and nobody can prove."""
    vouched = [f"{line} (the owner vouches for it)" for line in run.certificate.vouched]
    return [*run.certificate.public, *vouched]


# --- audit, scores --------------------------------------------------------------------------------


def _audit(run: Evidence) -> list[str]:
    """What was put on trial, and whether it held, without a figure."""
    if not run.audit:
        return ["This run was not put on trial. The promise rests on its proof, not on a trial."]
    kinds = dict.fromkeys(finding.kind for finding in run.audit)
    lines = [_TRIALS[kind] for kind in kinds if kind in _TRIALS]
    broken = [finding.name for finding in run.audit if not finding.holds]
    if broken:
        verdict = f"The promise was seen broken by: {'; '.join(broken)}."
    else:
        verdict = "Nothing was seen that contradicts the promise. That is no proof of it."
    suspects = [finding.name for finding in run.audit if finding.suspect]
    if suspects:
        verdict += (
            f" An estimate is above what is proven, and asks for more: {'; '.join(suspects)}."
        )
    return [*lines, verdict, _OWNERS_WORD]


def _scores(run: Evidence, metrics_public: str | None) -> Pairs:
    """Figures that were charged, or that somebody says may be shown; none without a reason."""
    rows = []
    if run.charged_score is not None:
        rows.append(("validation score, charged", f"{run.charged_score:.4g}"))
    if metrics_public is not None:
        rows += [
            (f"test {wording.SCORES[name]}", wording.score(name, run.metrics[name]))
            for name in wording.scores_of(run.facts.task, run.metric)
            if run.metrics[name] is not None
        ]
    return rows
