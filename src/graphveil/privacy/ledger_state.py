"""What the entries of a ledger say: accounts, and what was reserved and settled on them.

Everything here is folded from entries, one after the other; an entry that does not fit those before
it is refused. Where they come from is :mod:`graphveil.privacy.ledger_entries`'s.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import math
import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import dp_accounting as dpa

from graphveil import _validate
from graphveil._errors import InvalidInputError
from graphveil.privacy.composing import together
from graphveil.privacy.event_tree import parts
from graphveil.privacy.events import composed, to_json
from graphveil.privacy.filters import Filter
from graphveil.privacy.guarantee import RELATIONS, UNITS, Charge, charges_from_json

FORMAT = 2
_FIRST = 1  # of ledgers in which nobody noted what had begun
NO_HASH = "0" * 64  # what stands before the first entry
_PREDICTION = "a noisy prediction"  # the purpose of one, before there was a field for it

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
    ``purpose`` is for people to read; ``prediction`` says whether it is a noisy prediction.
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
    prediction: bool = False

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
        return event_of(self.charges)

    @property
    def reserved_event(self) -> dpa.DpEvent:
        """All that was reserved as one event."""
        return event_of(self.reserved)


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
        return [held for held in self.reservations.values() if held.charges]

    @property
    def waiting(self) -> list[Reservation]:
        """Those that have not been settled."""
        return [held for held in self.reservations.values() if held.settled is None]

    @property
    def promise(self) -> Promise | None:
        """For whom the account's events are priced, once there is one."""
        return next((held.promise for held in self.charged), None)

    @property
    def seen(self) -> Reservation | None:
        """The last charge that has seen data: its sizes are known before data is opened."""
        return next((held for held in reversed(self.charged) if held.fingerprint), None)

    @property
    def versions(self) -> dict[str, Reservation]:
        """Every version of the data by its fingerprint, with the first charge that has seen it."""
        first: dict[str, Reservation] = {}
        for held in self.charged:
            if held.fingerprint:
                first.setdefault(held.fingerprint, held)
        return first

    def events(self, without: str | None = None) -> list[dpa.DpEvent]:
        """Every event that counts, perhaps without those of one reservation."""
        return [held.event for held in self.charged if held.id != without]

    def spent(self, without: str | None = None) -> float:
        """Epsilon of all events together, at the account's delta, had they been fixed at first."""
        return together(self.events(without), self.delta).epsilon

    def budget_events(self, without: str | None = None) -> list[dpa.DpEvent]:
        """Every event as the budget counts it, perhaps without those of one reservation.

        A run that was priced alone, since the filter would have refused it, counts as reserved:
        whether it releases less may be decided by what it has released.
        """
        return [
            held.reserved_event if self._filter.used([held.reserved_event]) > 1 else held.event
            for held in self.charged
            if held.id != without
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
            self.share(self.budget_events(without)),
            self.share(self.events(without)),
            self.spent(without) / self.epsilon,
        )

    @property
    def overdrawn(self) -> bool:
        """Whether more was settled than there was."""
        return self.used() > 1 + 1e-6

    def left(self, without: str | None = None) -> float:
        """Epsilon of the largest single Gaussian release that would still fit."""
        others = self.budget_events(without)
        return min(self._filter.left(others), self.epsilon) if others else self.epsilon

    def plain_sum(self) -> float:
        """The sum of what every run costs by itself, for comparison."""
        return sum(together([event], self.delta).epsilon for event in self.events())


@dataclass(frozen=True, kw_only=True)
class LedgerState:
    """A ledger as its entries tell it: accounts by name, and the entries themselves.

    ``key`` is the ledger's secret; before the first entry there is none. ``format`` is that of its
    last entries, and ``first_format`` of its first one. ``moved_to`` is where the ledger goes on;
    None where it is this one. ``progress`` stands beside the chain: how many releases each part of
    a run has begun.
    """

    accounts: Mapping[str, Account] = field(default_factory=dict)
    key: str = ""
    first_format: int = FORMAT
    format: int = FORMAT
    moved_to: str | None = None
    entries: tuple[tuple[str, str], ...] = ()  # body and hash
    progress: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    def releases_begun(self, id: str) -> int:
        """How many releases a reserved run has begun, as far as was noted."""
        return sum(self.progress.get(id, {}).values())

    @property
    def head(self) -> str:
        """The hash of the last entry, which depends on all of them."""
        return self.entries[-1][1] if self.entries else NO_HASH

    @property
    def moments(self) -> dict[str, str]:
        """When each reservation was first made, by its id."""
        bodies = [json.loads(text) for text, _ in reversed(self.entries)]
        return {body["id"]: body.get("at", "") for body in bodies if body["kind"] == "reserve"}

    def fingerprint_hash(self) -> Any:
        """A hash with the ledger's secret in it, for fingerprints: nobody without it can guess."""
        if self.first_format == _FIRST:
            return hashlib.sha256(self.key.encode())
        return keyed_hash(self.key)

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
        accounts = self.accounts.values()
        return next((a.reservations[id] for a in accounts if id in a.reservations), None)

    # --- one entry more --------------------------------------------------------------------------

    def apply(self, body: Mapping[str, Any]) -> LedgerState:
        """The state after one entry more, which must fit; its text is the caller's to add."""
        kind = body["kind"]
        if (kind == "ledger") != (not self.key):
            raise InvalidInputError("The first entry, and no other, names the format.")
        if self.moved_to is not None and kind != "arrive":
            raise moved(self.moved_to)
        steps: dict[str, Callable[[], LedgerState]] = {
            "ledger": lambda: self._start(body),
            "format": lambda: self._change_format(body["format"]),
            "open": lambda: self._open(_account_of(body)),
            "reserve": lambda: self._reserve(_reservation_of(body)),
            "begin": lambda: self._begin(body["id"], body["turn"], body.get("follows")),
            "settle": lambda: self._settle(body["id"], charges_from_json(body["charges"])),
            "move": lambda: self._move(body["to"]),
            "arrive": self._arrive,
        }
        if kind not in steps:
            raise InvalidInputError(f"The kind of an entry is not known: {kind!r}.")
        return steps[kind]()

    def _start(self, body: Mapping[str, Any]) -> LedgerState:
        format = body["format"]
        if format not in (_FIRST, FORMAT):
            raise InvalidInputError(
                f"The format must be {_FIRST} or {FORMAT}. Got {format!r} instead; use the version "
                "of graphveil that wrote it."
            )
        key = body["salt" if format == _FIRST else "key"]
        if not isinstance(key, str) or not 16 <= len(key) <= 64:
            raise InvalidInputError("The key must be a word of 16 letters or more.")
        return replace(self, key=key, first_format=format, format=format)

    def _change_format(self, format: int) -> LedgerState:
        """From here on what begins is noted; of what is not settled nobody knows, and so it has."""
        if (self.format, format) != (_FIRST, FORMAT):
            raise InvalidInputError(f"The format cannot go from {self.format} to {format!r}.")
        state = replace(self, format=format)
        for account in self.accounts.values():
            for held in account.waiting:
                state = state._with_reservation(replace(held, turn=""))
        return state

    def _open(self, account: Account) -> LedgerState:
        if account.name in self.accounts:
            raise InvalidInputError(
                f"The account {account.name!r} is there already, and a budget is not changed; "
                "choose another name."
            )
        return replace(self, accounts={**self.accounts, account.name: account})

    def _reserve(self, asked: Reservation) -> LedgerState:
        account, before = self.account(asked.account), self.reservation(asked.id)
        if before is not None and (before.settled is not None or before.account != asked.account):
            raise InvalidInputError(f"The reservation {asked.id} is settled, or another account's.")
        if before is not None and before.begun:
            raise InvalidInputError(f"The reservation {asked.id} has begun, and is not changed.")
        others = {id: held for id, held in account.reservations.items() if id != asked.id}
        self._check_bound(replace(account, reservations=others), asked)
        return self._with_reservation(asked)

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
        for other in self.accounts.values():
            seen = other.versions.get(asked.fingerprint or "")
            same = seen is not None and seen.promise.unit == asked.promise.unit
            if same and other.name != account.name:
                raise InvalidInputError(
                    f"This data has an account already, {other.name!r}, for the same unit: two "
                    f"budgets would add up. Charge it with --account {other.name}."
                )

    def _begin(self, id: str, turn: str, follows: str | None) -> LedgerState:
        waiting = self._waiting(id)
        if not isinstance(turn, str) or not turn:
            raise InvalidInputError("The turn must be a word.")
        if waiting.turn != follows:
            raise InvalidInputError(
                f"The reservation {id} went on elsewhere: another attempt, or a copy of the run, "
                "has the turn. What it may have released stays charged."
            )
        return self._with_reservation(replace(waiting, turn=turn))

    def _settle(self, id: str, charges: tuple[Charge, ...]) -> LedgerState:
        waiting = self._waiting(id)
        released, reserved = count_events(charges), count_events(waiting.reserved)
        if waiting.begun and not released:
            raise InvalidInputError(
                f"The reservation {id} has begun: what it may have released is not given back."
            )
        if waiting.begun and not (released <= reserved or released >= reserved):
            raise InvalidInputError(
                f"The reservation {id} must be settled to the events that it reserved, each as "
                "often as it was released. Got other events instead; it stays charged with all "
                "that it reserved."
            )
        return self._with_reservation(replace(waiting, settled=charges))

    def _move(self, to: str) -> LedgerState:
        if not isinstance(to, str) or not to:
            raise InvalidInputError("Where a ledger goes on must be a word.")
        return replace(self, moved_to=to)

    def _arrive(self) -> LedgerState:
        if self.moved_to is None:
            raise InvalidInputError("A ledger arrives where it was moved.")
        return replace(self, moved_to=None)

    def _waiting(self, id: str) -> Reservation:
        """The reservation of that id, which must not be settled."""
        held = self.reservation(id)
        if held is None or held.settled is not None:
            raise InvalidInputError(f"The reservation {id} is not there, or is settled already.")
        return held

    def _with_reservation(self, now: Reservation) -> LedgerState:
        """The same with a reservation that is new, or takes the place of the one of its id."""
        account = self.accounts[now.account]
        account = replace(account, reservations={**account.reservations, now.id: now})
        return replace(self, accounts={**self.accounts, account.name: account})


def fold(rows: Iterable[Row], before: LedgerState | None = None) -> LedgerState:
    """The state after all entries; one that does not follow from those before it is refused.

    ``before`` is the state after those that are not among the ``rows``.
    """
    state = LedgerState() if before is None else before
    entries, head = list(state.entries), state.head
    for number, (seq, text, previous, digest) in enumerate(rows, len(entries) + 1):
        held = isinstance(text, str) and (seq, previous) == (number, head)
        if not held or digest != entry_hash(head, text):
            raise InvalidInputError(f"entry {number} is not what was written: its hash differs")
        try:
            state = state.apply(json.loads(text))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise InvalidInputError(f"entry {number} cannot be: {str(error).rstrip('.')}") from None
        entries.append((text, digest))
        head = digest
    if not entries:
        raise InvalidInputError("it has no entries")
    return replace(state, entries=tuple(entries))


def moved(to: str) -> InvalidInputError:
    """The refusal of a ledger that goes on elsewhere."""
    return InvalidInputError(
        f"The ledger was moved, and goes on at {to}; name that one (--ledger {to})."
    )


def entry_hash(previous: str, text: str) -> str:
    """The hash of an entry."""
    return hashlib.sha256(f"{previous}\n{text}".encode()).hexdigest()


def first_entry() -> dict[str, Any]:
    """The first entry of a new ledger, which holds its secret."""
    return {"kind": "ledger", "format": FORMAT, "key": secrets.token_hex(32)}


def keyed_hash(key: str) -> Any:
    """A hash that nobody makes without the key."""
    return hmac.new(key.encode(), digestmod="sha256")


def event_of(charges: Sequence[Charge]) -> dpa.DpEvent:
    """All that charges pay for as one event."""
    return composed(*(charge.event for charge in charges))


def count_releases(charges: Sequence[Charge]) -> float:
    """How many releases charges pay for, one step being one; a search pays for any number."""
    return sum(_count_releases(to_json(charge.event)) for charge in charges)


def _count_releases(event: Mapping[str, Any]) -> float:
    if event["type"] == "RepeatAndSelectDpEvent":
        return math.inf
    if "count" in event:
        return float(event["count"] * _count_releases(event["event"]))
    if "events" in event:
        return sum(map(_count_releases, event["events"]))
    if "event" in event:
        return _count_releases(event["event"])
    return 0 if event["type"] == "NoOpDpEvent" else 1


def count_events(charges: Sequence[Charge]) -> Counter[str]:
    """How often charges pay for each event, however they are put together."""
    counts: Counter[str] = Counter()
    for event, times in parts(event_of(charges)):
        if not isinstance(event, dpa.NoOpDpEvent):
            # A rate of 1 is one of 1.0.
            alike = json.loads(canonical(to_json(event)), parse_int=float)
            counts[canonical(alike)] += times
    return +counts


def canonical(body: Mapping[str, Any]) -> str:
    """The one way to write an entry's body."""
    return json.dumps(body, sort_keys=True, separators=(",", ":"), allow_nan=False)


def charges_to_json(charges: Sequence[Charge]) -> list[dict[str, Any]]:
    """Charges as plain JSON values."""
    return [{"paid_for": charge.paid_for, "event": to_json(charge.event)} for charge in charges]


def _account_of(body: Mapping[str, Any]) -> Account:
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


def _reservation_of(body: Mapping[str, Any]) -> Reservation:
    return Reservation(
        id=str(body["id"]),
        account=str(body["account"]),
        purpose=str(body["purpose"]),
        run=str(body["run"]),
        promise=Promise(**body["promise"]),
        reserved=charges_from_json(body["charges"]),
        facts=body.get("facts"),
        fingerprint=body.get("fingerprint"),
        prediction=bool(body.get("prediction", body["purpose"] == _PREDICTION)),
    )
