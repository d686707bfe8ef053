"""What was ever spent on which data: an append-only list, safe with many processes at once.

A ledger is a list of *entries*, in a file of its own or on a server that a team shares
(:mod:`graphveil.privacy.ledger_entries`). An entry is a JSON body, the hash of the entry before it,
and the hash of both; everything else is folded from the entries
(:mod:`graphveil.privacy.ledger_state`). Their kinds:

=========  ======================================================================================
ledger     the first: format, and the secret that fingerprints are keyed with
format     a newer format from here on
open       an account: name, lifetime epsilon and delta, perhaps the unit and who is in it
reserve    what a run may release, before it touches data; again under the same id, it replaces
begin      an attempt to release it, before the first release: it is never given back from here on
settle     what the run really released: from here on this is charged, and no more can be
move       the ledger goes on elsewhere: nothing is written here any more
arrive     it goes on here, after the entry that moved it
=========  ======================================================================================

An account is charged for all it ever settled, and for what is reserved and not settled. The price
is that of all events together (:mod:`graphveil.privacy.composing`), not a sum of epsilons. What
fits is decided by a filter (:mod:`graphveil.privacy.filters`), for runs are chosen by people who
have seen others. Proofs and sharp edges: docs/guarantees/ledger.md.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from graphveil import _validate
from graphveil._errors import BudgetError, InvalidInputError, UnprovenError
from graphveil.privacy import ledger_state
from graphveil.privacy.composing import together
from graphveil.privacy.events import to_json
from graphveil.privacy.guarantee import Charge, charges_from_json, round_up
from graphveil.privacy.ledger_entries import broken, entries_at, is_url
from graphveil.privacy.ledger_state import FORMAT, NO_HASH, Account, LedgerState, Promise, Row

Fits = Callable[[Sequence[Charge]], bool]
WouldFit = Callable[[Fits, float], str]


class Ledger:
    """A ledger in a file, or at the URL of a PostgreSQL server.

    *Guarantee*: an entry that was written is never changed or lost, not by a crash either; two
    processes cannot both spend what is left. (On a server: as far as its owner lets it keep what it
    has; see docs/guarantees/ledger.md.) An account's events, reserved ones included, cost at
    most its epsilon at its delta, for the unit and relation of the account, however each run was
    chosen by the results before it; should a run settle to more than it reserved, that is written
    down all the same, shown, and no ``verify`` passes.
    """

    def __init__(self, place: str | Path) -> None:
        self._entries = entries_at(place)
        self.name = self._entries.name  # as messages have it
        self.place = self._entries.place  # as a run notes it: whole, and without a password
        self._last: tuple[list[Row], LedgerState] = ([], LedgerState())  # what was read last

    @property
    def path(self) -> Path:
        """The file of a ledger that is one."""
        if is_url(self.place):
            raise InvalidInputError(f"The ledger {self.name} has no path: it is on a server.")
        return Path(self.name)

    def exists(self) -> bool:
        """Whether there is a ledger."""
        return self._entries.exists()

    def open(
        self,
        name: str,
        epsilon: float,
        delta: float,
        unit: str | None = None,
        who: str | None = None,
    ) -> LedgerState:
        """Make an account, and the ledger if there is none.

        ``who`` is a public statement of whose data is charged to it, such as "patients of ward 3".
        """
        body = {"kind": "open", "account": name, "epsilon": epsilon, "delta": delta}
        body |= _stated({"unit": unit, "who": who})
        LedgerState(key="none").apply(body)  # refuse what makes no sense before there is a ledger
        state, rows = _add_entry(*_add_entry(LedgerState(), [], ledger_state.first_entry()), body)
        if self._entries.create(rows, []):
            return state
        return self._append(lambda state: body)

    def read(self) -> LedgerState:
        """The whole ledger; a chain that does not hold is refused."""
        return self._read()

    def _read(self, *, check: bool = False) -> LedgerState:
        rows, notes = self._entries.read(check=check)
        known, before = self._last
        try:
            if not known or check or rows[: len(known)] != known:
                state = ledger_state.fold(rows)
            else:  # the same entries make the same state: what is new is folded on top of it
                state = ledger_state.fold(rows[len(known) :], before)
        except InvalidInputError as error:
            raise broken(self.name, str(error)) from None
        self._last = rows, state
        progress: dict[str, dict[str, int]] = {}
        for id, place, count in notes:
            progress.setdefault(id, {})[place] = count
        return replace(state, progress=progress)

    def _append(self, decide: Callable[[LedgerState], dict[str, Any] | None]) -> LedgerState:
        """Append what ``decide`` makes of the ledger, if nobody wrote in the meantime; else again.

        Pricing may take a second; no lock is held then, and nobody waits for it.
        """
        while True:
            before = self.read()
            state, rows = before, list[Row]()
            if state.format != FORMAT and state.moved_to is None:
                state, rows = _add_entry(state, rows, {"kind": "format", "format": FORMAT})
            body = decide(state)
            if body is None:
                return before
            state, rows = _add_entry(state, rows, body)
            if self._entries.append(rows, (len(before.entries), before.head)):
                return state

    # --- spending --------------------------------------------------------------------------------

    def reserve(
        self,
        id: str,
        account: str,
        charges: Sequence[Charge],
        promise: Promise,
        *,
        purpose: str,
        run: str = "",
        facts: Mapping[str, Any] | None = None,
        fingerprint: str | None = None,
        prediction: bool = False,
        would_fit: WouldFit | None = None,
    ) -> None:
        """Charge ``charges`` to an account in advance; over budget is refused.

        Under an id that is reserved and not settled the reservation is replaced, and nothing is
        written if it would stay what it is. ``purpose`` and ``run`` are for people to read, and
        ``prediction`` marks a noisy prediction of a run. ``would_fit`` is asked, with a function
        that tells whether charges fit and with what is left, for a sentence on what could be had
        instead.
        """
        facts = None if facts is None else dict(facts)
        body: dict[str, Any] = {
            "kind": "reserve",
            "id": id,
            "account": account,
            "charges": ledger_state.charges_to_json(charges),
            "promise": _stated(vars(promise)),
            "purpose": purpose,
            "run": run,
            **_stated(
                {"facts": facts, "fingerprint": fingerprint, "prediction": prediction or None}
            ),
        }

        def decide(state: LedgerState) -> dict[str, Any] | None:
            if state.apply(body).reservation(id) == state.reservation(id):
                return None
            self._check_budget(state.account(account), id, charges, would_fit)
            return body

        self._append(decide)

    def _check_budget(
        self, account: Account, id: str, charges: Sequence[Charge], would_fit: WouldFit | None
    ) -> None:
        event, others = ledger_state.event_of(charges), account.budget_events(id)
        alone = together([event], account.delta).epsilon
        if math.isinf(alone):
            raise UnprovenError(
                "What is charged to a ledger must have a proven epsilon. Got a run without one "
                "instead; train without --ledger, or with a private method and proven settings."
            )
        whole = account.share([*others, event])
        if whole <= 1:
            return

        def fits(offered: Sequence[Charge]) -> bool:
            return account.share([*others, ledger_state.event_of(offered)]) <= 1

        left = account.left(id)
        hint = f" {would_fit(fits, left)}" if would_fit is not None else ""
        raise BudgetError(
            f"The account {account.name!r} has epsilon {account.epsilon:g} at delta "
            f"{account.delta:g}, of which {round_up(account.spent(id))} is spent "
            f"({percent(account.used(id))} of the budget). This costs epsilon "
            f"{round_up(alone)} by itself and would bring it to {percent(whole)}; left is "
            f"epsilon {round_down(left)} for one Gaussian release.{hint}"
        )

    def begin(self, id: str, turn: str, follows: str | None = None) -> None:
        """Note that a reserved run may release something from here on, before it does.

        ``turn`` is a new word of this attempt, and ``follows`` that of the attempt before it. Of
        two copies of a run that both follow the same one, the first has the turn.
        """
        self._append(lambda state: {"kind": "begin", "id": id, "turn": turn, "follows": follows})

    def settle(self, id: str, charges: Sequence[Charge], turn: str | None = None) -> None:
        """Write down what a reserved run released; once and for all.

        To settle the same again changes nothing, unless whoever settles has just released it and
        says so by its ``turn``: then it must be the one that has it, and nobody settled before.
        """
        listed = ledger_state.charges_to_json(charges)

        def decide(state: LedgerState) -> dict[str, Any] | None:
            held = state.reservation(id)
            settled = None if held is None else held.settled
            if (
                turn is None
                and settled is not None
                and ledger_state.charges_to_json(settled) == listed
            ):
                return None
            lost = held is not None and (settled is not None or held.turn != turn)
            if turn is not None and lost:
                raise InvalidInputError(
                    f"The reservation {id} went on elsewhere while this run trained: a copy of it "
                    "has the turn, or is settled. What this one released is not charged to it; do "
                    "not use it."
                )
            begun, paid = state.releases_begun(id), ledger_state.count_releases(charges)
            if begun > paid:
                raise InvalidInputError(
                    f"The reservation {id} must be settled to the {begun} releases that it began "
                    f"or more. Got {paid:g} instead; it stays charged with all that it reserved."
                )
            return {"kind": "settle", "id": id, "charges": listed}

        self._append(decide)

    # --- how far a run has come ------------------------------------------------------------------

    def note(self, id: str, turn: str, place: str, count: int) -> None:
        """Note that a part of a run begins its releases up to ``count``; before it does.

        Beside the chain, for there are many: whoever has lost the turn is refused, and so is what
        goes beyond the releases that were reserved.
        """

        def check(texts: Iterator[str], others: float) -> None:
            with self._refuse_unreadable():
                newest = json.loads(next(texts))
                bodies = itertools.chain([newest], map(json.loads, texts))
                about = (body for body in bodies if body.get("id") == id)
                last: dict[str, Any] = next(about, {})
                has_turn = last.get("kind") == "begin" and last["turn"] == turn
            if newest["kind"] == "move":
                raise ledger_state.moved(newest["to"])
            if not has_turn:
                raise InvalidInputError(
                    f"The run of the reservation {id} went on elsewhere: a copy of it has the "
                    "turn, or is settled. This one stops; what was released stays charged."
                )
            with self._refuse_unreadable():
                reserved = next(body for body in about if body["kind"] == "reserve")
                paid = ledger_state.count_releases(charges_from_json(reserved["charges"]))
            if others + count > paid:
                raise InvalidInputError(
                    f"The run of the reservation {id} must begin at most the {paid:g} releases "
                    f"that it reserved. Got {others + count:g} instead, as where its files were "
                    "changed; it stops here."
                )

        self._entries.note((id, place, count), check)

    @contextlib.contextmanager
    def _refuse_unreadable(self) -> Iterator[None]:
        """Take what cannot be read in an entry for a ledger that does not hold."""
        try:
            yield
        except (ValueError, KeyError, TypeError, AttributeError, StopIteration) as error:
            raise broken(self.name, str(error)) from None

    # --- checking, and moving --------------------------------------------------------------------

    def verify(self, head: str | None = None, at_least: int | None = None) -> LedgerState:
        """Check all that can be checked: the place, the chain, the entries, every budget again.

        A chain does not know that its end was cut off. ``head``, a hash noted earlier, must be
        that of some entry, and there must be ``at_least`` so many entries.
        """
        state = self._read(check=True)
        if at_least is not None and len(state.entries) < at_least:
            raise broken(self.name, f"it has {len(state.entries)} entries, not {at_least} or more")
        if head is not None and head not in [digest for _, digest in state.entries]:
            raise broken(
                self.name, f"no entry has the hash {head!r}: its end was cut off or rewritten"
            )
        for id in state.progress:
            held = state.reservation(id)
            if held is None or ledger_state.count_releases(held.charges) < state.releases_begun(id):
                raise broken(self.name, f"the reservation {id} is charged less than the run began")
        self._check_history(state)
        return state

    def _check_history(self, state: LedgerState) -> None:
        """Price every account again as it was after each of its entries."""
        then, moments = LedgerState(), []
        for number, (text, _) in enumerate(state.entries, 1):
            body = json.loads(text)
            then = then.apply(body)
            held = then.reservation(body["id"]) if "id" in body else None
            if held is not None:
                moments.append((number, body["kind"], then.accounts[held.account]))
        priced: dict[str, Counter[str]] = {}
        overdrawn: str | None = None
        for number, kind, account in reversed(moments):
            events = Counter(json.dumps(to_json(event)) for event in account.budget_events())
            if account.name in priced and events <= priced[account.name]:
                continue  # fewer events cost no more than those that were priced
            if not account.overdrawn:
                priced[account.name] = events
            elif kind == "reserve" and account.spent() > account.epsilon * (1 + 1e-6):
                raise broken(
                    self.name, f"entry {number} reserves more than {account.name!r} had left"
                )
            elif kind == "reserve":
                overdrawn = (
                    f"The account {account.name!r} of {self.name} holds for runs fixed beforehand "
                    f"only: entry {number} was admitted by its price, and not by the filter that "
                    "covers runs chosen by others' results. Charge nothing more to it."
                )
            else:
                overdrawn = (
                    f"The account {account.name!r} of {self.name} is overdrawn: since entry "
                    f"{number}, which settles, {percent(account.used())} of its epsilon "
                    f"{account.epsilon:g} is used. The file holds; charge nothing more to it."
                )
        if overdrawn is not None:
            raise BudgetError(overdrawn)

    def export(self) -> str:
        """The ledger as JSON, from which :meth:`restore` makes one."""
        state = self.read()
        rows = [{"body": json.loads(text), "hash": digest} for text, digest in state.entries]
        content = {"graphveil_ledger": FORMAT, "entries": rows, "progress": state.progress}
        return json.dumps(content, indent=1) + "\n"

    def restore(self, text: str) -> LedgerState:
        """Make this ledger from an export; the chain must hold, and none may be there."""
        try:
            content = json.loads(text)
            json.dumps(content, ensure_ascii=False).encode()  # half a letter cannot be written
            previous, rows = NO_HASH, []
            for number, entry in enumerate(content["entries"], 1):
                rows.append(
                    (number, ledger_state.canonical(entry["body"]), previous, str(entry["hash"]))
                )
                previous = rows[-1][3]
            state = ledger_state.fold(rows)
            progress = [
                (id, place, _validate.integer("noted", count, "[0, 1e12]"))
                for id, parts in content.get("progress", {}).items()
                for place, count in parts.items()
            ]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            why = f"{error} is missing" if isinstance(error, KeyError) else str(error)
            raise InvalidInputError(
                f"An import must be what 'graphveil ledger export' wrote: {why[:200].rstrip('.')}."
            ) from None
        if not self._entries.create(rows, progress):
            raise InvalidInputError(f"{self.name} is there already; import to a new place.")
        return state

    def move(self, to: Ledger) -> LedgerState:
        """Have this ledger go on at another place, where none may be; here it has ended.

        The entries keep their hashes. The end is written here before anything is there: whatever
        is killed in between, at most one of the two goes on, and to move once more finishes it.
        """
        self._copy(to, rehearse=True)  # refuse what cannot be while this one goes on
        end = {"kind": "move", "to": to.place}
        self._append(lambda state: None if state.moved_to == to.place else end)
        self._copy(to)
        return to.read()

    def _copy(self, to: Ledger, *, rehearse: bool = False) -> None:
        """Make the other ledger, of all entries and one that says that they have arrived."""
        state = self.read()
        if state.moved_to not in (None, to.place):
            raise ledger_state.moved(str(state.moved_to))
        rows = _rows_of(state)
        notes = [
            (id, at, count) for id, parts in state.progress.items() for at, count in parts.items()
        ]
        if state.moved_to is None:
            state, rows = _add_entry(state, rows, {"kind": "move", "to": to.place})
        state, rows = _add_entry(state, rows, {"kind": "arrive"})
        if not to._entries.create(rows, notes, rehearse=rehearse):
            raise InvalidInputError(f"{to.name} is there already; move to a new place.")


def _stated(values: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the ``values`` that are not None."""
    return {name: value for name, value in values.items() if value is not None}


def _add_entry(
    state: LedgerState, rows: Sequence[Row], body: Mapping[str, Any]
) -> tuple[LedgerState, list[Row]]:
    """The state and the rows to write with one entry more; what does not fit is refused."""
    text = ledger_state.canonical({**body, "at": datetime.now(UTC).isoformat(timespec="seconds")})
    digest = ledger_state.entry_hash(state.head, text)
    row = (len(state.entries) + 1, text, state.head, digest)
    after = state.apply(json.loads(text))
    return replace(after, entries=(*state.entries, (text, digest))), [*rows, row]


def _rows_of(state: LedgerState) -> list[Row]:
    """The entries of a ledger as they are written."""
    rows, previous = list[Row](), NO_HASH
    for number, (text, digest) in enumerate(state.entries, 1):
        rows.append((number, text, previous, digest))
        previous = digest
    return rows


def percent(share: float) -> str:
    """A share as a person reads it: never less than it is."""
    return "more than all" if share > 100 else f"{math.ceil(1000 * share - 1e-6) / 10:g} %"


def round_down(value: float) -> str:
    """What is left, as a person reads it: never more than there is."""
    if value < 1e-300:
        return "0"
    unit = 10.0 ** (math.floor(math.log10(value)) - 2)
    return f"{math.floor(value / unit + 1e-9) * unit:.3g}"
