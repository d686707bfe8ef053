"""What was ever spent on which data: an append-only file, safe with many processes at once.

A ledger is one SQLite file with one table of *entries*. An entry is a JSON body, the hash of the
entry before it, and the hash of both; everything else is folded from the entries
(:mod:`graphveil.privacy.ledger_state`). Their kinds:

=========  ======================================================================================
ledger     the first: format, and the secret that fingerprints are keyed with
format     a newer format from here on
open       an account: name, lifetime epsilon and delta, perhaps the unit and who is in it
reserve    what a run may release, before it touches data; again under the same id, it replaces
begin      an attempt to release it, before the first release: it is never given back from here on
settle     what the run really released: from here on this is charged, and no more can be
=========  ======================================================================================

An account is charged for all it ever settled, and for what is reserved and not settled. The price
is that of all events together (:mod:`graphveil.privacy.composing`), not a sum of epsilons. What
fits is decided by a filter (:mod:`graphveil.privacy.filters`), for runs are chosen by people who
have seen others. Proofs and sharp edges: docs/guarantees/ledger.md.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import sqlite3
import tempfile
import urllib.parse
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from graphveil import _validate
from graphveil._errors import BudgetError, InvalidInputError, UnprovenError
from graphveil._files import link
from graphveil.privacy import ledger_state
from graphveil.privacy.composing import together
from graphveil.privacy.events import to_json
from graphveil.privacy.guarantee import Charge, charges_from_json, round_up
from graphveil.privacy.ledger_state import FORMAT, NO_HASH, Account, LedgerState, Promise, Row

_APPLICATION = 0x67766C67  # in the header of the file: what kind of SQLite file it is
_BLOCK = 512  # bytes: every page of SQLite's is a multiple
_PATIENCE = 60.0  # seconds that a writer waits for others, each of which takes milliseconds
_PROGRESS = (
    "CREATE TABLE IF NOT EXISTS progress "
    "(id TEXT, place TEXT, noted INTEGER, PRIMARY KEY (id, place)) WITHOUT ROWID"
)
_HAS_PROGRESS = "SELECT 1 FROM sqlite_master WHERE name = 'progress'"
_SCHEMA = (
    "CREATE TABLE entries (seq INTEGER PRIMARY KEY, body TEXT, previous TEXT, hash TEXT)",
    "CREATE TRIGGER no_update BEFORE UPDATE ON entries BEGIN SELECT RAISE(ABORT, 'fixed'); END",
    "CREATE TRIGGER no_delete BEFORE DELETE ON entries BEGIN SELECT RAISE(ABORT, 'fixed'); END",
)

Fits = Callable[[Sequence[Charge]], bool]
WouldFit = Callable[[Fits, float], str]


class Ledger:
    """A ledger on disk.

    *Guarantee*: an entry that was written is never changed or lost, not by a crash either; two
    processes cannot both spend what is left. An account's events, reserved ones included, cost at
    most its epsilon at its delta, for the unit and relation of the account, however each run was
    chosen by the results before it; should a run settle to more than it reserved, that is written
    down all the same, shown, and no ``verify`` passes.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def open(
        self,
        name: str,
        epsilon: float,
        delta: float,
        unit: str | None = None,
        who: str | None = None,
    ) -> LedgerState:
        """Make an account, and the file if there is none.

        ``who`` is a public statement of whose data is charged to it, such as "patients of ward 3".
        """
        body = {"kind": "open", "account": name, "epsilon": epsilon, "delta": delta}
        body |= _stated({"unit": unit, "who": who})
        LedgerState(key="none").apply(body)  # refuse what makes no sense before there is a file
        state, rows = _add_entry(*_add_entry(LedgerState(), [], ledger_state.first_entry()), body)
        if self._create(rows):
            return state
        return self._append(lambda state: body)

    def read(self) -> LedgerState:
        """The whole ledger; a chain that does not hold is refused."""
        with self._connection() as connection:
            return self._read(connection)

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
        with self._connection() as connection:
            connection.execute("BEGIN IMMEDIATE")
            if not self._has_turn(connection, id, turn):
                raise InvalidInputError(
                    f"The run of the reservation {id} went on elsewhere: a copy of it has the "
                    "turn, or is settled. This one stops; what was released stays charged."
                )
            connection.execute(_PROGRESS)
            self._check_reserved(connection, id, place, count)
            connection.execute(
                "INSERT INTO progress VALUES (?, ?, ?) ON CONFLICT (id, place) DO UPDATE SET "
                "noted = max(noted, excluded.noted)",
                (id, place, count),
            )
            connection.execute("COMMIT")

    def _has_turn(self, connection: sqlite3.Connection, id: str, turn: str) -> bool:
        """Whether the newest entry about a reservation gives it this turn."""
        with self._refuse_unreadable():
            last = next(_entries_about(connection, id), {})
            return bool(last.get("kind") == "begin" and last["turn"] == turn)

    def _check_reserved(
        self, connection: sqlite3.Connection, id: str, place: str, count: int
    ) -> None:
        """Refuse a note by which the parts of a run would begin more than it reserved."""
        query = "SELECT total(noted) FROM progress WHERE id = ? AND place != ?"
        begun = connection.execute(query, (id, place)).fetchone()[0] + count
        with self._refuse_unreadable():
            bodies = _entries_about(connection, id)
            reserved = next(body for body in bodies if body["kind"] == "reserve")
            paid = ledger_state.count_releases(charges_from_json(reserved["charges"]))
        if begun > paid:
            raise InvalidInputError(
                f"The run of the reservation {id} must begin at most the {paid:g} releases that it "
                f"reserved. Got {begun:g} instead, as where its files were changed; it stops here."
            )

    @contextlib.contextmanager
    def _refuse_unreadable(self) -> Iterator[None]:
        """Take what cannot be read in an entry for a ledger that does not hold."""
        try:
            yield
        except (ValueError, KeyError, TypeError, AttributeError, StopIteration) as error:
            raise self._broken(str(error)) from None

    # --- checking, and moving --------------------------------------------------------------------

    def verify(self, head: str | None = None, at_least: int | None = None) -> LedgerState:
        """Check all that can be checked: the file, the chain, the entries, every budget again.

        A chain does not know that its end was cut off. ``head``, a hash noted earlier, must be
        that of some entry, and there must be ``at_least`` so many entries.
        """
        with self._connection() as connection:
            _check_pages(connection)
            state = self._read(connection)
        if at_least is not None and len(state.entries) < at_least:
            raise self._broken(f"it has {len(state.entries)} entries, not {at_least} or more")
        if head is not None and head not in [digest for _, digest in state.entries]:
            raise self._broken(f"no entry has the hash {head!r}: its end was cut off or rewritten")
        for id in state.progress:
            held = state.reservation(id)
            if held is None or ledger_state.count_releases(held.charges) < state.releases_begun(id):
                raise self._broken(f"the reservation {id} is charged less than the run began")
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
                raise self._broken(f"entry {number} reserves more than {account.name!r} had left")
            elif kind == "reserve":
                overdrawn = (
                    f"The account {account.name!r} of {self.path} holds for runs fixed beforehand "
                    f"only: entry {number} was admitted by its price, and not by the filter that "
                    "covers runs chosen by others' results. Charge nothing more to it."
                )
            else:
                overdrawn = (
                    f"The account {account.name!r} of {self.path} is overdrawn: since entry "
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
        """Make this file from an export; the chain must hold, and no file may be there."""
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
        if self.path.exists():
            raise InvalidInputError(f"{self.path} is there already; import to a new file.")
        self._create(rows, progress)
        return state

    # --- the file --------------------------------------------------------------------------------

    def _create(self, rows: Sequence[Row], progress: Sequence[tuple[str, str, int]] = ()) -> bool:
        """Make the file with its first entries, whole or not at all; False if one is there.

        It is made under another name, and gets its own when it is whole: a disk that is full, or a
        kill, leaves nothing in the way.
        """
        if self.path.exists() and not self.path.is_file():
            kind = "directory" if self.path.is_dir() else "pipe or a device"
            raise InvalidInputError(f"A ledger must be a file. {self.path} is a {kind}.")
        if self.path.is_symlink() and not self.path.exists():
            raise InvalidInputError(
                f"{self.path} is a link that leads nowhere; remove it, or give the file's own path."
            )
        if self.path.exists():
            return self._fill(rows, progress)
        if not self.path.absolute().parent.is_dir():
            raise InvalidInputError(f"{self.path} cannot be made: its directory is not there.")
        try:
            # As private as the data: nobody else may read or write it, nor what SQLite puts beside.
            handle, name = tempfile.mkstemp(prefix=f".{self.path.name}.", dir=self.path.parent)
        except OSError as error:
            raise InvalidInputError(f"{self.path} cannot be made: {error.strerror}.") from None
        os.close(handle)
        made = Ledger(name)
        try:
            made._fill(rows, progress)
            made.read()
            return link(made.path, self.path)
        except InvalidInputError as error:
            raise InvalidInputError(str(error).replace(name, str(self.path))) from None
        finally:
            for path in (made.path, _journal_of(made.path)):
                path.unlink(missing_ok=True)

    def _fill(self, rows: Sequence[Row], progress: Sequence[tuple[str, str, int]]) -> bool:
        """Write the first entries, if there is nothing in the file yet; False if there is."""
        with self._connection(create=True) as connection:
            connection.execute("BEGIN IMMEDIATE")
            empty = not connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
            if empty:
                with contextlib.suppress(OSError):  # somebody else's, who says who may read it
                    self.path.chmod(0o600)
                connection.execute(f"PRAGMA application_id = {_APPLICATION}")
                for statement in (*_SCHEMA, _PROGRESS):
                    connection.execute(statement)
                connection.executemany("INSERT INTO entries VALUES (?, ?, ?, ?)", rows)
                connection.executemany("INSERT INTO progress VALUES (?, ?, ?)", progress)
            connection.execute("COMMIT")
        return bool(empty)

    def _append(self, decide: Callable[[LedgerState], dict[str, Any] | None]) -> LedgerState:
        """Append what ``decide`` makes of the ledger, if nobody wrote in the meantime; else again.

        Pricing may take a second; no lock is held then, and nobody waits for it.
        """
        while True:
            before = self.read()
            state, rows = before, list[Row]()
            if state.format != FORMAT:
                state, rows = _add_entry(state, rows, {"kind": "format", "format": FORMAT})
            body = decide(state)
            if body is None:
                return before
            state, rows = _add_entry(state, rows, body)
            with self._connection() as connection:
                connection.execute("BEGIN IMMEDIATE")
                last = connection.execute("SELECT max(seq), hash FROM entries").fetchone()
                if last == (len(before.entries), before.head):
                    connection.executemany("INSERT INTO entries VALUES (?, ?, ?, ?)", rows)
                    connection.execute("COMMIT")
                    return state

    def _read(self, connection: sqlite3.Connection) -> LedgerState:
        rows = connection.execute("SELECT seq, body, previous, hash FROM entries ORDER BY seq")
        try:
            state = ledger_state.fold(rows.fetchall())
        except InvalidInputError as error:
            raise self._broken(str(error)) from None
        progress: dict[str, dict[str, int]] = {}
        if connection.execute(_HAS_PROGRESS).fetchone():
            for id, place, count in connection.execute("SELECT id, place, noted FROM progress"):
                progress.setdefault(str(id), {})[str(place)] = int(count)
        return replace(state, progress=progress)

    @contextlib.contextmanager
    def _connection(self, *, create: bool = False) -> Iterator[sqlite3.Connection]:
        """A connection for one transaction; whatever the file may be instead is one line.

        What a kill left half written is rolled back first, by SQLite. Where it cannot be, since
        nothing may be written there, nothing is read.
        """
        if not create and not self.path.is_file():
            raise InvalidInputError(
                f"There is no ledger {self.path}; make one with 'graphveil ledger open'."
            )
        file = Path(os.path.realpath(self.path))  # SQLite's journal is beside it, not a link to it
        if (count := _count_names(file)) > 1:
            raise InvalidInputError(
                f"The ledger {self.path} must have one name. Got a file of {count} (hard links), "
                "each of which would miss what a kill left of the others; remove all but one, or "
                "make links by 'ln -s'."
            )
        half_written = _journal_of(file).exists()
        if not half_written and file.stat().st_size % _BLOCK:
            raise self._broken("it was cut short")  # SQLite takes what is missing for zeros
        place = f"file:{urllib.parse.quote(os.fsencode(self.path.absolute()))}?mode=rw"
        try:
            with contextlib.closing(_connect(place)) as connection:
                kind = connection.execute("PRAGMA application_id").fetchone()[0]
                tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
                if kind != _APPLICATION and not (create and kind == tables == 0):
                    raise sqlite3.DatabaseError("it is another kind of file than a ledger")
                # An earlier version's write-ahead log stays, and does no harm, while one uses it.
                with contextlib.suppress(sqlite3.OperationalError):
                    connection.execute("PRAGMA journal_mode = DELETE")
                # EXTRA: that the journal is gone, which is what commits, is on disk as well.
                connection.execute("PRAGMA synchronous = EXTRA")
                if half_written:  # a journal that was damaged may have put back other pages
                    _check_pages(connection)
                yield connection
        except sqlite3.OperationalError as error:
            raise InvalidInputError(
                f"The ledger {self.path} cannot be used: {error}; nothing was written. Make "
                "room, or see that the file and its directory can be written."
            ) from None
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise self._broken(str(error)) from None

    def _broken(self, why: str) -> InvalidInputError:
        return InvalidInputError(
            f"The ledger {self.path} does not hold: {why}; go back to a copy or an export of it."
        )


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


def _entries_about(connection: sqlite3.Connection, id: str) -> Iterator[dict[str, Any]]:
    """The entries about a reservation, the newest first."""
    bodies = connection.execute("SELECT body FROM entries ORDER BY seq DESC")
    return (body for (text,) in bodies if (body := json.loads(text)).get("id") == id)


def _connect(place: str) -> sqlite3.Connection:
    connection = sqlite3.connect(place, uri=True, timeout=_PATIENCE, isolation_level=None)
    try:
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except BaseException:
        connection.close()
        raise
    return connection


def _check_pages(connection: sqlite3.Connection) -> None:
    """Have SQLite check its own structure of the file."""
    answer = str(connection.execute("PRAGMA integrity_check").fetchone()[0])
    if answer != "ok":
        raise sqlite3.DatabaseError(" ".join(answer.split()))


def _journal_of(file: Path) -> Path:
    """What SQLite keeps beside a file while it writes: the pages as they were before."""
    return file.with_name(f"{file.name}-journal")


def _count_names(file: Path) -> int:
    """How many names a file has; with two, what a kill left beside one is missed by the other.

    The name that a ledger was made under is one that a kill may have left; it is removed.
    """
    if not file.exists() or file.stat().st_nlink == 1:
        return 1
    for other in file.parent.iterdir():
        if other.name.startswith(f".{file.name}."):
            with contextlib.suppress(OSError):
                if other.samefile(file):
                    other.unlink()
    return file.stat().st_nlink


def percent(share: float) -> str:
    """A share as a person reads it: never less than it is."""
    return "more than all" if share > 100 else f"{math.ceil(1000 * share - 1e-6) / 10:g} %"


def round_down(value: float) -> str:
    """What is left, as a person reads it: never more than there is."""
    if value < 1e-300:
        return "0"
    unit = 10.0 ** (math.floor(math.log10(value)) - 2)
    return f"{math.floor(value / unit + 1e-9) * unit:.3g}"
