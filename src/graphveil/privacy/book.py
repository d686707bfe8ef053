"""What the entries of a ledger say: accounts, and what was reserved and settled on them.

Everything here is folded from entries, one after the other; an entry that does not fit those before
it is refused. The file they come from is :mod:`graphveil.privacy.ledger`.
"""

from __future__ import annotations

import hashlib
import json
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

FORMAT = 1
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

    ``facts`` are those of the whole data, and ``fingerprint`` is its salted hash; None as long as
    the run has not seen it.
    """

    id: str
    account: str
    purpose: str
    run: str
    promise: Promise
    reserved: tuple[Charge, ...]
    settled: tuple[Charge, ...] | None = None
    facts: Mapping[str, Any] | None = None
    fingerprint: str | None = None

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
    """A data set's lifetime budget, and everything that was charged to it."""

    name: str
    epsilon: float
    delta: float
    unit: str | None = None
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
        """The first charge that has seen data: the account is about that data."""
        return next((each for each in self.charged if each.fingerprint), None)

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
        return self._filter.left(others) if others else self.epsilon

    def plain_sum(self) -> float:
        """The sum of what every run costs by itself, for comparison."""
        return sum(together([event], self.delta).epsilon for event in self.events())


@dataclass(frozen=True, kw_only=True)
class Book:
    """A ledger as its entries tell it: accounts by name, and the entries themselves."""

    accounts: Mapping[str, Account]
    salt: str
    entries: tuple[tuple[str, str], ...]  # body and hash

    @property
    def head(self) -> str:
        """The hash of the last entry, which depends on all of them."""
        return self.entries[-1][1] if self.entries else NOTHING

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
        if (kind == "ledger") != (not self.salt):
            raise InvalidInputError("The first entry, and no other, names the format.")
        if kind == "ledger":
            if body["format"] != FORMAT:
                raise InvalidInputError(
                    f"The format must be {FORMAT}. Got {body['format']!r} instead; use the version "
                    "of graphveil that wrote it."
                )
            if not isinstance(body["salt"], str) or not body["salt"]:
                raise InvalidInputError("The salt must be a word.")
            return replace(self, salt=body["salt"])
        if kind == "open":
            return self._with(_opened(body), new=True)
        if kind == "reserve":
            return self._reserved(_reservation(body))
        if kind == "settle":
            return self._settled(body["id"], charges_from_json(body["charges"]))
        raise InvalidInputError(f"The kind of an entry is not known: {kind!r}.")

    def noted(self, text: str, digest: str) -> Book:
        """This book with the text of its last entry."""
        return replace(self, entries=(*self.entries, (text, digest)))

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
        others = {key: each for key, each in account.reservations.items() if key != asked.id}
        self._check_bound(replace(account, reservations=others), asked)
        reservations = {**account.reservations, asked.id: asked}
        return self._with(replace(account, reservations=reservations))

    def _check_bound(self, account: Account, asked: Reservation) -> None:
        """Refuse another unit, relation or data than the account's."""
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
        if account.seen is not None and account.seen.fingerprint != asked.fingerprint:
            raise InvalidInputError(
                f"The account {account.name!r} is about other data than this (features, edges, "
                f"labels or their order differ); take the data it has seen, or {elsewhere}."
            )
        for other in self.accounts.values():
            if other.name == account.name or other.seen is None:
                continue
            same = other.seen.fingerprint == asked.fingerprint
            if same and other.seen.promise.unit == asked.promise.unit:
                raise InvalidInputError(
                    f"This data has an account already, {other.name!r}, for the same unit: two "
                    f"budgets would add up. Charge it with --account {other.name}."
                )

    def _settled(self, id: str, charges: tuple[Charge, ...]) -> Book:
        found = self.reservation(id)
        if found is None or found.settled is not None:
            raise InvalidInputError(f"The reservation {id} is not there, or is settled already.")
        account = self.accounts[found.account]
        reservations = {**account.reservations, id: replace(found, settled=charges)}
        return self._with(replace(account, reservations=reservations))


def fold(rows: Iterable[Row]) -> Book:
    """The book of all entries; one that does not follow from those before it is refused."""
    book, entries, head = Book(accounts={}, salt="", entries=()), [], NOTHING
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
    name, unit = body["account"], body.get("unit")
    if not isinstance(name, str) or not 0 < len(name) <= 200 or not name.isprintable():
        raise InvalidInputError(
            f"The account's name must be 1 to 200 letters on one line. Got {name!r} instead."
        )
    return Account(
        name=name,
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
