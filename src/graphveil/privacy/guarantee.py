"""What is promised: units, relations, guarantees, and the certificate that states one in full.

The data is one row for each public id: features, label, list of receivers. Neighbouring data sets
are equal except that one row is *withheld*: in one of them it is the null row (no features, no
label, empty list). The relation is symmetric and every guarantee holds in both directions.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from functools import cache, cached_property
from html import escape
from importlib import metadata
from typing import Any

import dp_accounting as dpa

from graphveil import _validate
from graphveil._errors import InvalidInputError, UnprovenError
from graphveil.privacy import events as _events
from graphveil.privacy.accounting import Price, price
from graphveil.privacy.tradeoff import largest_tprs
from graphveil.privacy.units import (
    ONE,
    PUBLIC,
    UNITS,
    Unit,
    all_in_words,
    in_words,
    one_in_words,
    removed_in_words,
    word_of,
)

__all__ = [
    "ALWAYS_PUBLIC", "ALWAYS_VOIDED_BY", "DECLARED_PUBLIC", "ONE", "SIZES_PUBLIC", "TUNED", "UNITS",
    "Certificate", "Charge", "Claimed", "Guarantee", "Unit", "certify", "charges_from_json",
    "check_delta", "default_delta", "round_up", "versions",
]  # fmt: skip


FALSE_POSITIVE_RATES = (0.001, 0.01)  # for which a certificate says what a membership test finds
RELATIONS = ("withhold", "remove")


@dataclass(frozen=True, kw_only=True)
class Guarantee:
    """(epsilon, delta)-differential privacy for one unit under one relation.

    For every pair of neighbouring data sets and every set S of outcomes,
    ``P[M(D) in S] <= exp(epsilon) P[M(D') in S] + delta``, in both directions. Infinite epsilon
    promises nothing and says so. ``record`` is the data owner's word for a record: patient; of the
    unit ``owner``, ``owner`` is that for one, whose records are recordings. Where records are
    links, ``targets`` says that their rows are ``public``, or that they are ``people`` as sources.
    """

    unit: str
    epsilon: float
    delta: float
    relation: str = "withhold"
    owner: str | None = None
    record: str | None = None
    targets: str | None = None

    def __post_init__(self) -> None:
        _validate.choice("unit", self.unit, tuple(UNITS))
        _validate.choice("relation", self.relation, RELATIONS)
        if self.relation == "remove" and self.unit != "node":
            raise InvalidInputError(
                "The 'relation' parameter must be 'withhold' for every unit but 'node'. Got "
                f"'remove' with unit {self.unit!r} instead."
            )
        object.__setattr__(self, "epsilon", _validate.number("epsilon", self.epsilon, "[0, inf]"))
        object.__setattr__(self, "delta", _validate.number("delta", self.delta, "[0, 1)"))

    @property
    def _words(self) -> dict[str, str | None]:
        return {"owner": self.owner, "record": self.record, "targets": self.targets}

    @property
    def one(self) -> str:
        """The unit as a person says it."""
        return one_in_words(self.unit, **self._words)

    @property
    def protects(self) -> str:
        """What is inside the unit."""
        return in_words(self.unit, **self._words).protects

    @property
    def leaves_out(self) -> str | None:
        """What stays outside the unit; nothing under the relation ``remove``."""
        if self.relation != "withhold":
            return None
        return in_words(self.unit, **self._words).leaves_out

    @property
    def difference(self) -> str:
        """How the two data sets differ that the guarantee compares."""
        if self.relation == "withhold":
            return in_words(self.unit, **self._words).withheld
        return removed_in_words(word_of(self.unit, self.record, self.targets))

    def __str__(self) -> str:
        if math.isinf(self.epsilon):
            return f"no guarantee for {self.one}"
        return (
            f"({round_up(self.epsilon)}, {self.delta:g})-differential privacy for "
            f"{self.one}, relation {self.relation!r}"
        )


def round_up(value: float | None, digits: int = 4) -> str:
    """A bound as a person reads it: never a smaller number than what is proven."""
    if value is None:
        return "none"
    if value == 0 or math.isinf(value):
        return f"{value:g}"
    unit = 10.0 ** (math.floor(math.log10(value)) + 1 - digits)
    # 1e-9: a value that already has few digits, give or take its last bit, stays what it is
    return f"{math.ceil(value / unit - 1e-9) * unit:.{digits}g}"


def default_delta(units: int) -> float:
    """The largest power of ten below 1 / ``units``, the *public* number of units."""
    units = _validate.integer("units", units, "[1, 1e300]")
    power = -math.floor(math.log10(units)) - 1
    return float(f"1e{power}")


def check_delta(delta: float, units: int) -> float:
    """Refuse a delta of 1 / ``units`` or more: it would allow publishing somebody's row whole."""
    delta = _validate.number("delta", delta, "(0, 1)")
    if delta * units >= 1:
        raise UnprovenError(
            f"delta must be below 1/n = {1 / units:.3g} for n = {units} units. Got {delta:g} "
            f"instead; {default_delta(units):g} is the default."
        )
    return delta


@dataclass(frozen=True, kw_only=True)
class Charge:
    """One part of what was spent: what it paid for, and the event that prices it."""

    paid_for: str
    event: dpa.DpEvent


def charges_from_json(listed: Sequence[Mapping[str, Any]]) -> tuple[Charge, ...]:
    """Charges of which each was written as ``paid_for`` and the JSON values of its event."""
    return tuple(
        Charge(paid_for=str(item["paid_for"]), event=_events.from_json(item["event"]))
        for item in listed
    )


@dataclass(frozen=True, kw_only=True)
class Claimed:
    """What a paper prints for the same settings (see claims.py); never a guarantee."""

    epsilon: float | None
    source: str
    why_it_differs: str = ""


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """A guarantee together with everything it rests on; make one with :func:`certify`.

    It renders as text (``str``), Markdown (:meth:`to_markdown`), in notebooks as HTML, and as JSON
    (:meth:`to_json`, read back by :meth:`from_json`).

    ``public`` is what the guarantee takes as known to everybody. ``unprotected`` are those lines of
    it that speak of units of the data itself, declared public by somebody: nothing holds for them.

    *Guarantee.* Epsilon is priced from ``charges`` and from nothing else. A certificate with
    ``void_because`` states no epsilon to a reader: its guarantee is infinite.
    """

    guarantee: Guarantee
    released: str
    released_to: str
    pld: float | None
    rdp: float | None
    charges: tuple[Charge, ...]
    public: tuple[str, ...] = ()
    unprotected: tuple[str, ...] = ()
    inference: tuple[str, ...] = ()
    voided_by: tuple[str, ...] = ()
    void_because: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    vouched: tuple[str, ...] = ()
    claim: Claimed | None = None
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def event(self) -> dpa.DpEvent:
        """All charges as one event."""
        return _events.composed(*(charge.event for charge in self.charges))

    @cached_property
    def largest_tpr(self) -> Mapping[float, float]:
        """What no membership test exceeds: a true positive rate for each false positive one.

        Computed from ``charges`` when it is asked for, and empty where no epsilon holds.
        """
        if math.isinf(self.guarantee.epsilon):
            return {}
        rates = largest_tprs(self.event, FALSE_POSITIVE_RATES)
        return dict(zip(FALSE_POSITIVE_RATES, rates, strict=True))

    def __str__(self) -> str:
        return "\n\n".join(
            "\n".join([title.upper(), *(f"  {line}" for line in lines)])
            for title, lines in self._sections()
        )

    def to_markdown(self) -> str:
        """The certificate as Markdown, a heading for each section and a list below it."""
        return "\n".join(
            "\n".join([f"## {title}", "", *(f"- {line}" for line in lines), ""])
            for title, lines in self._sections()
        )

    def _repr_html_(self) -> str:
        """The certificate in a notebook: headings and lists, everything escaped."""
        html = ['<div class="graphveil-certificate">']
        for title, lines in self._sections():
            items = (f"<li>{escape(line)}</li>" for line in lines)
            html += [f"<h4>{escape(title)}</h4><ul>", *items, "</ul>"]
        return "\n".join([*html, "</div>"])

    def to_json(self, indent: int | None = 2) -> str:
        """The certificate as JSON; infinity is the string "inf"."""
        plain = _to_plain(self)
        if self.largest_tpr:
            plain["largest_tpr"] = {f"{fpr:g}": tpr for fpr, tpr in self.largest_tpr.items()}
        return json.dumps(plain, indent=indent, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Certificate:
        """Read what :meth:`to_json` wrote, into an equal object.

        Rates of membership tests are not read: they follow from the charges.
        """
        try:
            raw = json.loads(text)
            # What older certificates lack: such lines, and a word instead of a field.
            raw.setdefault("vouched", [])
            raw.setdefault("unprotected", _declared_public(raw["public"]))
            values = {f.name: raw[f.name] for f in fields(cls)}
            values |= {name: tuple(v) for name, v in values.items() if isinstance(v, list)}
            values["guarantee"] = Guarantee(**_numbers(raw["guarantee"]))
            values["charges"] = charges_from_json(raw["charges"])
            if raw["claim"] is not None:
                values["claim"] = Claimed(**_numbers(raw["claim"]))
            return cls(**values)
        except (json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
            raise InvalidInputError(
                f"This is not a certificate that graphveil wrote: {type(error).__name__}: {error}."
            ) from error

    def _sections(self) -> list[tuple[str, list[str]]]:
        void = [f"VOID: {reason}" for reason in self.void_because]
        sections = [
            ("Certificate of differential privacy", [*void, str(self.guarantee)]),
            ("Released", [f"{self.released}, to {self.released_to}"]),
            ("Unit", self._unit_lines()),
            ("Epsilon", self._epsilon_lines()),
            ("Membership tests", self.membership_lines()),
            ("Charged", [f"{paid.paid_for}: {_one_line(paid.event)}" for paid in self.charges]),
            ("Public by assumption", list(self.public)),
            ("Vouched for", [f"The owner vouches that {line}." for line in self.vouched]),
            ("Inference", list(self.inference)),
            ("Void if", list(self.voided_by)),
            ("Notes", list(self.notes)),
            ("Made with", [f"{name} {version}" for name, version in self.versions.items()]),
        ]
        return [(title, lines) for title, lines in sections if lines]

    def _unit_lines(self) -> list[str]:
        left_out = self.guarantee.leaves_out
        verb = "Would protect" if math.isinf(self.guarantee.epsilon) else "Protects"
        rests = "Rests on the public degree bound named below."
        return [
            f"{verb} {self.guarantee.protects}.",
            f"Relation: {self.guarantee.difference}.",
            rests if left_out is None else f"Leaves out {left_out}.",
            *(f"Not protected: {line}." for line in self.unprotected),
        ]

    def _epsilon_lines(self) -> list[str]:
        void = ["none holds; what the charges alone would cost:"] if self.void_because else []
        lines = [
            *void,
            f"by privacy loss distributions (PLD): {round_up(self.pld)}",
            f"by Renyi divergences (RDP): {round_up(self.rdp)}",
        ]
        if not self.void_because:
            smaller = round_up(self.guarantee.epsilon)
            lines.append(f"the smaller one, at delta {self.guarantee.delta:g}: {smaller}")
        if self.claim is not None:
            lines.append(f"claimed by {self.claim.source}: {round_up(self.claim.epsilon)}")
            if self.claim.why_it_differs:
                lines.append(f"why it differs: {self.claim.why_it_differs}")
        return lines

    def membership_lines(self) -> list[str]:
        """What no membership test exceeds, in words; none where no epsilon holds."""
        units, absent, present = all_in_words(self.guarantee.unit, self.guarantee.targets)
        return [
            f"On average over the noise, whoever falsely accuses {100 * fpr:g} % of the {units} "
            f"that {absent} finds at most {round_up(100 * tpr, 3)} % of those that {present}."
            for fpr, tpr in self.largest_tpr.items()
        ]


SIZES_PUBLIC = "the number of {}, the feature columns and their names, and the number of classes"
SIZES_OF_LINKS = "the number of {}, the feature columns and their names"
ALWAYS_PUBLIC = (
    "which ids are in which split, however it was made, and which are unlabelled",
    "hyper-parameters, steps and caps, chosen without looking at the private data",
    "what was done to the data before it was given: the owner vouches that it looked at one unit's "
    "private data at a time, or at none, or that what it read off them is public",
)
ALWAYS_VOIDED_BY = (
    "the secret random stream was fixed, saved or seen",
    "anything else read off the private data was shown: losses, gradient norms, batch sizes, "
    "degree statistics, refusals and errors, scores on private validation data",
    "settings were chosen by comparing runs on the same private data without charging for it",
    "something was read off the private data of several units before it was given, and is neither "
    "public nor charged: means or ranges by which columns were filled or scaled, categories, "
    "vocabularies, columns that were chosen, records that were left out",
)

TUNED = "TUNED "  # begins the sentence that says how settings were chosen by trials
DECLARED_PUBLIC = "DECLARED PUBLIC"  # in sentences of units of the data, public by somebody's word


def _declared_public(public: Sequence[str]) -> tuple[str, ...]:
    return tuple(line for line in public if DECLARED_PUBLIC in line)


_IF_TUNED = {
    ALWAYS_PUBLIC[1]: "hyper-parameters, steps and caps that were not varied, chosen without "
    "looking at the private data",
    ALWAYS_VOIDED_BY[1]: "anything read off the private data but what is released was shown: "
    "losses, gradient norms, batch sizes, degree statistics, refusals and errors, any other score "
    "on private validation data",
}

_OF_LINKS = {ALWAYS_PUBLIC[0]: "which sources are trained on, however that was decided"}
_RECORDS = {"graph": "graphs", "owner": "records"}
_MOST_PARTS = 8  # of a certificate that says what each would cost by itself


def certify(  # noqa: PLR0913
    charges: Sequence[Charge],
    *,
    unit: str,
    delta: float,
    released: str,
    released_to: str = "anybody",
    relation: str = "withhold",
    public_degree: int | None = None,
    public: Sequence[str] = (),
    unprotected: Sequence[str] = (),
    tuned: bool = False,
    inference: Sequence[str] = (),
    voided_by: Sequence[str] = (),
    void_because: Sequence[str | None] = (),
    vouched: Sequence[str] = (),
    claim: Claimed | None = None,
    owner: str | None = None,
    record: str | None = None,
    targets: str | None = None,
) -> Certificate:
    """Price ``charges`` and write the certificate.

    ``void_because`` takes the ``void_reason`` of every random stream used; a reason that is not
    None makes the guarantee infinite and is printed first. The papers' ``claim`` stands beside the
    proven epsilon and never changes it. The relation ``remove`` rests on a rule that the data
    obeys, ``public_degree``: a node is named in at most so many lists and names at most as many.
    ``vouched`` is what the guarantee rests on and nobody but the data's owner can see to.
    ``unprotected`` are lines about units of the data that somebody declared public; they count
    among the ``public`` ones and need not stand there, too. ``tuned`` says that settings were
    chosen by trials that are charged or made on public data. ``owner``, ``record`` and ``targets``
    are those of :class:`Guarantee`.
    """
    if (relation == "remove") != (public_degree is not None):
        raise UnprovenError(
            "The relation 'remove' needs a 'public_degree', and no other relation takes one. Got "
            f"relation {relation!r} with public_degree={public_degree!r} instead."
        )
    # Until all callers give `unprotected` and `tuned`, the words in `public` count as well.
    unprotected = tuple(dict.fromkeys((*unprotected, *_declared_public(public))))
    tuned = tuned or any(line.startswith(TUNED) for line in public)
    if public_degree is not None:
        bound = f"every node is in at most {public_degree} lists and lists at most as many"
        public = (bound, *public)
    whole = price(_events.composed(*(charge.event for charge in charges)), delta)
    reasons = tuple(reason for reason in void_because if reason)
    epsilon = math.inf if reasons else whole.epsilon
    other = (_IF_TUNED if tuned else {}) | ({} if targets is None else _OF_LINKS)
    always = {line: other.get(line, line) for line in (*ALWAYS_PUBLIC, *ALWAYS_VOIDED_BY)}
    return Certificate(
        guarantee=Guarantee(
            unit=unit,
            relation=relation,
            epsilon=epsilon,
            delta=whole.delta,
            owner=owner,
            record=record,
            targets=targets,
        ),
        released=released,
        released_to=released_to,
        pld=whole.pld,
        rdp=whole.rdp,
        charges=tuple(charges),
        public=(
            _public_sizes(unit, targets),
            *(always[line] for line in ALWAYS_PUBLIC),
            *public,
            *(line for line in unprotected if line not in public),
        ),
        unprotected=unprotected,
        inference=tuple(inference),
        voided_by=(*(always[line] for line in ALWAYS_VOIDED_BY), *voided_by),
        void_because=reasons,
        notes=(*whole.notes, *_prices_alone(charges, whole)),
        vouched=tuple(vouched),
        claim=claim,
        versions=versions(),
    )


def _public_sizes(unit: str, targets: str | None) -> str:
    if targets is None:
        return SIZES_PUBLIC.format(_RECORDS.get(unit, "nodes"))
    return SIZES_OF_LINKS.format("sources and of targets" if targets == PUBLIC else "nodes")


def _prices_alone(charges: Sequence[Charge], whole: Price) -> list[str]:
    """What each of a few charges would cost by itself."""
    if not 1 < len(charges) <= _MOST_PARTS:
        return []
    epsilons = [price(charge.event, whole.delta).epsilon for charge in charges]
    less = " (parts do not add up: together they cost less)"
    return [
        f"{charge.paid_for}, by itself: epsilon {round_up(epsilon)}"
        f"{less if whole.epsilon < sum(epsilons) else ''}"
        for charge, epsilon in zip(charges, epsilons, strict=True)
    ]


def versions() -> dict[str, str]:
    """The library and those of its dependencies on which a printed epsilon rests."""
    from graphveil import __version__

    return {"graphveil": __version__, **_dependencies()}


@cache
def _dependencies() -> dict[str, str]:
    """Read once: what is loaded stays, and a search through all that is installed takes long."""
    installed = {}
    for name in ("dp-accounting", "numpy", "scipy", "torch", "torch-geometric"):
        with suppress(metadata.PackageNotFoundError):  # an accounting-only installation
            installed[name] = metadata.version(name)
    return installed


def _one_line(event: dpa.DpEvent) -> str:
    """An event as a person would say it: ``150 x SampledGaussian(rate=0.3, ...)``."""
    if isinstance(event, dpa.SelfComposedDpEvent):
        return f"{event.count} x {_one_line(event.event)}"
    if isinstance(event, dpa.ComposedDpEvent):
        return " + ".join(_one_line(part) for part in event.events)
    plain = {key: value for key, value in _events.to_json(event).items() if key != "type"}
    if isinstance(inner := getattr(event, "event", None), dpa.DpEvent):
        plain["event"] = _one_line(inner)
    inside = ", ".join(
        f"{key}={value:g}" if isinstance(value, float) else f"{key}={value}"
        for key, value in plain.items()
    )
    return f"{type(event).__name__.removesuffix('DpEvent')}({inside})"


def _to_plain(value: Any) -> Any:
    if isinstance(value, dpa.DpEvent):
        return _events.to_json(value)
    if isinstance(value, (Certificate, Guarantee, Charge, Claimed)):
        plain = {f.name: _to_plain(getattr(value, f.name)) for f in fields(value)}
        if isinstance(value, Guarantee):  # words that nobody gave are left out
            words = ("owner", "record", "targets")
            return {k: v for k, v in plain.items() if k not in words or v is not None}
        return plain
    if isinstance(value, tuple):
        return [_to_plain(item) for item in value]
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, float) and math.isinf(value):
        return "inf"
    return value


def _numbers(raw: Mapping[str, Any]) -> dict[str, Any]:
    return {key: math.inf if value == "inf" else value for key, value in raw.items()}
