"""What the entries of a ledger say: accounts, and what was reserved and settled on them.

Everything here is folded from entries, one after the other; an entry that does not fit those before
it is refused. The file they come from is :mod:`graphveil.privacy.ledger`.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import math
import secrets
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import dp_accounting as dpa

from graphveil import _validate
from graphveil._errors import InvalidInputError
from graphveil.privacy.composing import together
from graphveil.privacy.events import composed, from_json, to_json
from graphveil.privacy.filters import Filter
from graphveil.privacy.guarantee import RELATIONS, UNITS, Charge

FORMAT = 2
_FIRST = 1  # of ledgers in which nobody noted what had begun
NOTHING = "0" * 64  # the hash before the first entry

Row = tuple[int, str, str, str]  # number, body, hash of the entry before, hash


@dataclass(frozen=True, kw_only=True)
class Promise:
    """For whom events are priced: those of another unit or relation do not compose with them."""

    unit: str
    relation: str = "withhold"
    public_degree: int | None = None

    def __post_init__(self) -> None:
        _validate.choice("unit", self.unit, tuple(UNITS))
        _validate.choice("relation", self.relation, RELATIONS)

    def __str__(self) -> str:
        degree = "" if self.public_degree is None else f", public degree {self.public_degree}"
        return f"one {self.unit} ({self.relation}{degree})"


@dataclass(frozen=True, kw_only=True)
class Reservation:
    """What a run reserved, and what it settled to; None while it has not.

    ``facts`` are those of the whole data, and ``fingerprint`` is its keyed hash; None as long as
    the run has not seen it. ``turn`` names the attempt that may release: None while nothing can
    have been released. Only whoever holds it goes on, and every attempt gets a new one.
    """

    id: str
    account: str
    purpose: str
    run: str
    promise: Promise
    reserved: tuple[Charge, ...]
    settled: tuple[Charge, ...] | None = None
    turn: str | None = None
    facts: Mapping[str, Any] | None = None
    fingerprint: str | None = None

    @property
    def begun(self) -> bool:
        """Whether anything may have been released: it is not given back any more."""
        return self.turn is not None

    @property
    def charges(self) -> tuple[Charge, ...]:
        """What is charged now."""
        return self.reserved if self.settled is None else self.settled

    @property
    def event(self) -> dpa.DpEvent:
        """All of it as one event."""
        return composed(*(charge.event for charge in self.charges))

    @property
    def reserved_event(self) -> dpa.DpEvent:
        """All that was reserved as one event."""
        return composed(*(charge.event for charge in self.reserved))


@dataclass(frozen=True, kw_only=True)
class Account:
    """The lifetime budget of some people, and everything that was charged to it.

    ``who`` is the owner's public statement of who they are; None where nothing was said.
    """

    name: str
    epsilon: float
    delta: float
    unit: str | None = None
    who: str | None = None
    reservations: Mapping[str, Reservation] = field(default_factory=dict)

    @property
    def charged(self) -> list[Reservation]:
        """Those that count: settled to something, or not settled."""
        return [each for each in self.reservations.values() if each.charges]

    @property
    def waiting(self) -> list[Reservation]:
        """Those that have not been settled."""
        return [each for each in self.reservations.values() if each.settled is None]

    @property
    def promise(self) -> Promise | None:
        """For whom the account's events are priced, once there is one."""
        return next((each.promise for each in self.charged), None)

    @property
    def seen(self) -> Reservation | None:
        """The last charge that has seen data: its sizes are known before data is opened."""
        return next((each for each in reversed(self.charged) if each.fingerprint), None)

    @property
    def versions(self) -> dict[str, Reservation]:
        """Every version of the data by its fingerprint, with the first charge that has seen it."""
        found: dict[str, Reservation] = {}
        for each in self.charged:
            if each.fingerprint:
                found.setdefault(each.fingerprint, each)
        return found

    def events(self, without: str | None = None) -> list[dpa.DpEvent]:
        """Every event that counts, perhaps without those of one reservation."""
        return [each.event for each in self.charged if each.id != without]

    def spent(self, without: str | None = None) -> float:
        """Epsilon of all events together, at the account's delta, had they been fixed at first."""
        return together(self.events(without), self.delta).epsilon

    def counted(self, without: str | None = None) -> list[dpa.DpEvent]:
        """Every event as the budget counts it, perhaps without those of one reservation.

        A run that was priced alone, since the filter would have refused it, counts as reserved:
        whether it releases less may be decided by what it has released.
        """
        return [
            each.reserved_event if self._filter.used([each.reserved_event]) > 1 else each.event
            for each in self.charged
            if each.id != without
        ]

    def share(self, events: Sequence[dpa.DpEvent]) -> float:
        """How much of the budget the ``events`` of some runs take; above 1 they do not fit.

        It holds if each run is chosen by looking at those before it. One run alone is not.
        """
        if len(events) > 1:
            return self._filter.used(events)
        alone = together(events, self.delta).epsilon / self.epsilon
        # It fits by its price, and may all the same leave no room for another.
        return alone if alone > 1 else max(alone, min(self._filter.used(events), 1.0))

    @cached_property
    def _filter(self) -> Filter:
        return Filter(epsilon=self.epsilon, delta=self.delta)

    def used(self, without: str | None = None) -> float:
        """How much of the budget is taken, by the filter or by price; above 1 it is overdrawn."""
        return max(
            self.share(self.counted(without)),
            self.share(self.events(without)),
            self.spent(without) / self.epsilon,
        )

    @property
    def overdrawn(self) -> bool:
        """Whether more was settled than there was."""
        return self.used() > 1 + 1e-6

    def left(self, without: str | None = None) -> float:
        """Epsilon of the largest single Gaussian release that would still fit."""
        others = self.counted(without)
        return min(self._filter.left(others), self.epsilon) if others else self.epsilon

    def plain_sum(self) -> float:
        """The sum of what every run costs by itself, for comparison."""
        return sum(together([event], self.delta).epsilon for event in self.events())


@dataclass(frozen=True, kw_only=True)
class Book:
    """A ledger as its entries tell it: accounts by name, and the entries themselves.

    ``key`` is the ledger's secret; before the first entry there is none. ``format`` is that of its
    last entries, and ``made_as`` of its first one. ``progress`` stands beside the chain: how many
    releases each part of a run has begun.
    """

    accounts: Mapping[str, Account] = field(default_factory=dict)
    key: str = ""
    made_as: int = FORMAT
    format: int = FORMAT
    entries: tuple[tuple[str, str], ...] = ()  # body and hash
    progress: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    def least(self, id: str) -> int:
        """How many releases a reserved run has begun, as far as was noted."""
        return sum(self.progress.get(id, {}).values())

    @property
    def head(self) -> str:
        """The hash of the last entry, which depends on all of them."""
        return self.entries[-1][1] if self.entries else NOTHING

    def digest(self) -> Any:
        """A hash with the ledger's secret in it, for fingerprints: nobody without it can guess."""
        if self.made_as == _FIRST:
            return hashlib.sha256(self.key.encode())
        return keyed(self.key)

    def account(self, name: str | None) -> Account:
        """The account of that name; the only one where no name is given."""
        known = ", ".join(map(repr, self.accounts)) or "none"
        if name is None:
            if len(self.accounts) == 1:
                return next(iter(self.accounts.values()))
            raise InvalidInputError(f"The ledger's accounts are {known}; say which by --account.")
        if name not in self.accounts:
            raise InvalidInputError(
                f"The account must be one of the ledger's: {known}. Got {name!r} instead; open it "
                "with 'graphveil ledger open'."
            )
        return self.accounts[name]

    def reservation(self, id: str) -> Reservation | None:
        """The reservation of that id, in whichever account it is."""
        found = (each.reservations.get(id) for each in self.accounts.values())
        return next((each for each in found if each is not None), None)

    # --- one entry more --------------------------------------------------------------------------

    def after(self, body: Mapping[str, Any]) -> Book:
        """This book with one entry more, which must fit it; its text is added by :meth:`noted`."""
        kind = body["kind"]
        if (kind == "ledger") != (not self.key):
            raise InvalidInputError("The first entry, and no other, names the format.")
        if kind == "ledger":
            if body["format"] not in (_FIRST, FORMAT):
                raise InvalidInputError(
                    f"The format must be {_FIRST} or {FORMAT}. Got {body['format']!r} instead; use "
                    "the version of graphveil that wrote it."
                )
            key = body["salt" if body["format"] == _FIRST else "key"]
            if not isinstance(key, str) or not 16 <= len(key) <= 64:
                raise InvalidInputError("The key must be a word of 16 letters or more.")
            return replace(self, key=key, made_as=body["format"], format=body["format"])
        if kind == "format":
            return self._moved_on(body["format"])
        if kind == "open":
            return self._with(_opened(body), new=True)
        if kind == "reserve":
            return self._reserved(_reservation(body))
        if kind == "begin":
            return self._began(body["id"], body["turn"], body.get("follows"))
        if kind == "settle":
            return self._settled(body["id"], charges_from_json(body["charges"]))
        raise InvalidInputError(f"The kind of an entry is not known: {kind!r}.")

    def noted(self, text: str, digest: str) -> Book:
        """This book with the text of its last entry."""
        return replace(self, entries=(*self.entries, (text, digest)))

    def _moved_on(self, format: int) -> Book:
        """From here on what begins is noted; of what is not settled nobody knows, and so it has."""
        if (self.format, format) != (_FIRST, FORMAT):
            raise InvalidInputError(f"The format cannot go from {self.format} to {format!r}.")
        accounts = {
            name: replace(
                account,
                reservations={
                    id: replace(each, turn="") if each.settled is None else each
                    for id, each in account.reservations.items()
                },
            )
            for name, account in self.accounts.items()
        }
        return replace(self, accounts=accounts, format=format)

    def _with(self, account: Account, new: bool = False) -> Book:
        if new and account.name in self.accounts:
            raise InvalidInputError(
                f"The account {account.name!r} is there already, and a budget is not changed; "
                "choose another name."
            )
        return replace(self, accounts={**self.accounts, account.name: account})

    def _reserved(self, asked: Reservation) -> Book:
        account = self.account(asked.account)
        before = self.reservation(asked.id)
        if before is not None and (before.settled is not None or before.account != asked.account):
            raise InvalidInputError(f"The reservation {asked.id} is settled, or another account's.")
        if before is not None and before.begun:
            raise InvalidInputError(f"The reservation {asked.id} has begun, and is not changed.")
        others = {key: each for key, each in account.reservations.items() if key != asked.id}
        self._check_bound(replace(account, reservations=others), asked)
        reservations = {**account.reservations, asked.id: asked}
        return self._with(replace(account, reservations=reservations))

    def _check_bound(self, account: Account, asked: Reservation) -> None:
        """Refuse another unit or relation than the account's, and data of another account."""
        elsewhere = "charge another account, which 'graphveil ledger open' makes"
        if account.unit not in (None, asked.promise.unit):
            raise InvalidInputError(
                f"The account {account.name!r} is for the unit {account.unit!r}. Got a run that "
                f"protects {asked.promise} instead; {elsewhere}."
            )
        if account.promise not in (None, asked.promise):
            same = account.promise is not None and account.promise.unit == asked.promise.unit
            way = "take settings that protect the same" if same else elsewhere
            raise InvalidInputError(
                f"The account {account.name!r} protects {account.promise}. Got a run that protects "
                f"{asked.promise} instead, and the two do not add up; {way}."
            )
        if asked.fingerprint is None:
            return
        for other in self.accounts.values():
            found = other.versions.get(asked.fingerprint)
            if other.name == account.name or found is None:
                continue
            if found.promise.unit == asked.promise.unit:
                raise InvalidInputError(
                    f"This data has an account already, {other.name!r}, for the same unit: two "
                    f"budgets would add up. Charge it with --account {other.name}."
                )

    def _began(self, id: str, turn: str, follows: str | None) -> Book:
        found = self._waiting(id)
        if not isinstance(turn, str) or not turn:
            raise InvalidInputError("The turn must be a word.")
        if found.turn != follows:
            raise InvalidInputError(
                f"The reservation {id} went on elsewhere: another attempt, or a copy of the run, "
                "has the turn. What it may have released stays charged."
            )
        return self._changed(replace(found, turn=turn))

    def _settled(self, id: str, charges: tuple[Charge, ...]) -> Book:
        found = self._waiting(id)
        released, reserved = tally(charges), tally(found.reserved)
        if found.begun and not released:
            raise InvalidInputError(
                f"The reservation {id} has begun: what it may have released is not given back."
            )
        if found.begun and not (released <= reserved or released >= reserved):
            raise InvalidInputError(
                f"The reservation {id} must be settled to the events that it reserved, each as "
                "often as it was released. Got other events instead; it stays charged with all "
                "that it reserved."
            )
        return self._changed(replace(found, settled=charges))

    def _waiting(self, id: str) -> Reservation:
        found = self.reservation(id)
        if found is None or found.settled is not None:
            raise InvalidInputError(f"The reservation {id} is not there, or is settled already.")
        return found

    def _changed(self, now: Reservation) -> Book:
        account = self.accounts[now.account]
        return self._with(replace(account, reservations={**account.reservations, now.id: now}))


def fold(rows: Iterable[Row]) -> Book:
    """The book of all entries; one that does not follow from those before it is refused."""
    book, entries, head = Book(), [], NOTHING
    for number, (seq, text, before, digest) in enumerate(rows, 1):
        held = isinstance(text, str) and (seq, before) == (number, head)
        if not held or digest != chained(head, text):
            raise InvalidInputError(f"entry {number} is not what was written: its hash differs")
        try:
            book = book.after(json.loads(text))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise InvalidInputError(f"entry {number} cannot be: {str(error).rstrip('.')}") from None
        entries.append((text, digest))
        head = digest
    if not entries:
        raise InvalidInputError("it has no entries")
    return replace(book, entries=tuple(entries))


def chained(before: str, text: str) -> str:
    """The hash of an entry."""
    return hashlib.sha256(f"{before}\n{text}".encode()).hexdigest()


def first_entry() -> dict[str, Any]:
    """The first entry of a new ledger, which holds its secret."""
    return {"kind": "ledger", "format": FORMAT, "key": secrets.token_hex(32)}


def keyed(key: str) -> Any:
    """A hash that nobody makes without the key."""
    return hmac.new(key.encode(), digestmod="sha256")


def releases(charges: Sequence[Charge]) -> float:
    """How many releases charges pay for, one step being one; a search pays for any number."""
    return sum(_releases(to_json(charge.event)) for charge in charges)


def _releases(event: Mapping[str, Any]) -> float:
    if event["type"] == "RepeatAndSelectDpEvent":
        return math.inf
    if "count" in event:
        return float(event["count"] * _releases(event["event"]))
    if "events" in event:
        return sum(map(_releases, event["events"]))
    if "event" in event:
        return _releases(event["event"])
    return 0 if event["type"] == "NoOpDpEvent" else 1


def tally(charges: Sequence[Charge]) -> Counter[str]:
    """How often charges pay for each event, however they are put together."""
    found: Counter[str] = Counter()
    for charge in charges:
        _count(to_json(charge.event), 1, found)
    return +found


def _count(event: Mapping[str, Any], times: int, found: Counter[str]) -> None:
    if event["type"] == "SelfComposedDpEvent":
        _count(event["event"], times * event["count"], found)
    elif event["type"] == "ComposedDpEvent":
        for each in event["events"]:
            _count(each, times, found)
    elif event["type"] != "NoOpDpEvent":
        alike = json.loads(canonical(event), parse_int=float)  # a rate of 1 is one of 1.0
        found[canonical(alike)] += times


def canonical(body: Mapping[str, Any]) -> str:
    """The one way to write an entry's body."""
    return json.dumps(body, sort_keys=True, separators=(",", ":"), allow_nan=False)


def charges_to_json(charges: Sequence[Charge]) -> list[dict[str, Any]]:
    """Charges as plain JSON values."""
    return [{"paid_for": each.paid_for, "event": to_json(each.event)} for each in charges]


def charges_from_json(listed: Sequence[Mapping[str, Any]]) -> tuple[Charge, ...]:
    """What :func:`charges_to_json` wrote."""
    return tuple(
        Charge(paid_for=str(each["paid_for"]), event=from_json(each["event"])) for each in listed
    )


def _opened(body: Mapping[str, Any]) -> Account:
    name, unit, who = body["account"], body.get("unit"), body.get("who")
    if not isinstance(name, str) or not 0 < len(name) <= 200 or not name.isprintable():
        raise InvalidInputError(
            f"The account's name must be 1 to 200 letters on one line. Got {name!r} instead."
        )
    if who is not None and (not isinstance(who, str) or not who.isprintable() or not who.strip()):
        raise InvalidInputError(
            f"Who is in the account must be said in words on one line. Got {who!r} instead."
        )
    return Account(
        name=name,
        who=who,
        epsilon=_validate.number("epsilon", body["epsilon"], "(0, inf)"),
        delta=_validate.number("delta", body["delta"], "(0, 1)"),
        unit=None if unit is None else _validate.choice("unit", unit, tuple(UNITS)),
    )


def _reservation(body: Mapping[str, Any]) -> Reservation:
    return Reservation(
        id=str(body["id"]),
        account=str(body["account"]),
        purpose=str(body["purpose"]),
        run=str(body["run"]),
        promise=Promise(**body["promise"]),
        reserved=charges_from_json(body["charges"]),
        facts=body.get("facts"),
        fingerprint=body.get("fingerprint"),
    )
