"""What was ever spent on which data: an append-only file, safe with many processes at once.

A ledger is one SQLite file with one table of *entries*. An entry is a JSON body, the hash of the
entry before it, and the hash of both; everything else is folded from the entries
(:mod:`graphveil.privacy.book`). Their kinds:

=========  ======================================================================================
ledger     the first: format, and the salt of fingerprints
open       an account: name, lifetime epsilon and delta, perhaps the unit
reserve    what a run may release, before it touches data; again under the same id, it replaces
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
import secrets
import sqlite3
import urllib.parse
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from graphveil._errors import BudgetError, InvalidInputError, UnprovenError
from graphveil.privacy._wal import damaged
from graphveil.privacy.book import (
    FORMAT,
    NOTHING,
    Account,
    Book,
    Promise,
    Row,
    canonical,
    chained,
    charges_to_json,
    fold,
)
from graphveil.privacy.composing import together
from graphveil.privacy.events import composed, to_json
from graphveil.privacy.guarantee import Charge, round_up

_APPLICATION = 0x67766C67  # in the header of the file: what kind of SQLite file it is
_PATIENCE = 60.0  # seconds that a writer waits for others, each of which takes milliseconds
_SHORTLY = 100  # milliseconds that a writer waits to tidy up
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

    def open(self, name: str, epsilon: float, delta: float, unit: str | None = None) -> Book:
        """Make an account, and the file if there is none."""
        body = {"kind": "open", "account": name, "epsilon": epsilon, "delta": delta}
        body |= {} if unit is None else {"unit": unit}
        Book(accounts={}, salt="none", entries=()).after(
            body
        )  # refuse what makes no sense before there is a file
        self._create([_first_row()])
        return self._append(lambda book: body)

    def read(self) -> Book:
        """The whole ledger; a chain that does not hold is refused."""
        with self._connection(write=False) as connection:
            return self._folded(connection)

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
        would_fit: WouldFit | None = None,
    ) -> None:
        """Charge ``charges`` to an account in advance; over budget is refused.

        Under an id that is reserved and not settled the reservation is replaced, and nothing is
        written if it would stay what it is. ``would_fit`` is asked, with a function that tells
        whether charges fit and with what is left, for a sentence on what could be had instead.
        """
        body: dict[str, Any] = {
            "kind": "reserve",
            "id": id,
            "account": account,
            "charges": charges_to_json(charges),
            "promise": {key: value for key, value in vars(promise).items() if value is not None},
            "purpose": purpose,
            "run": run,
        }
        body |= {} if facts is None else {"facts": dict(facts)}
        body |= {} if fingerprint is None else {"fingerprint": fingerprint}

        def decide(book: Book) -> dict[str, Any] | None:
            after = book.after(body)
            if after.reservation(id) == book.reservation(id):
                return None
            self._check_budget(book.account(account), id, charges, would_fit)
            return body

        self._append(decide)

    def _check_budget(
        self,
        account: Account,
        id: str,
        charges: Sequence[Charge],
        would_fit: WouldFit | None,
    ) -> None:
        event, others = composed(*(charge.event for charge in charges)), account.counted(id)
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
            return account.share([*others, composed(*(each.event for each in offered))]) <= 1

        left = account.left(id)
        hint = f" {would_fit(fits, left)}" if would_fit is not None else ""
        raise BudgetError(
            f"The account {account.name!r} has epsilon {account.epsilon:g} at delta "
            f"{account.delta:g}, of which {round_up(account.spent(id))} is spent "
            f"({in_percent(account.used(id))} of the budget). This costs epsilon "
            f"{round_up(alone)} by itself and would bring it to {in_percent(whole)}; left is "
            f"epsilon {rounded_down(left)} for one Gaussian release.{hint}"
        )

    def settle(self, id: str, charges: Sequence[Charge]) -> None:
        """Write down what a reserved run released; once and for all."""
        listed = charges_to_json(charges)

        def decide(book: Book) -> dict[str, Any] | None:
            found = book.reservation(id)
            settled = None if found is None else found.settled
            if settled is not None and charges_to_json(settled) == listed:
                return None
            return {"kind": "settle", "id": id, "charges": listed}

        self._append(decide)

    # --- checking, and moving --------------------------------------------------------------------

    def verify(self, head: str | None = None, at_least: int | None = None) -> Book:
        """Check all that can be checked: the file, the chain, the entries, every budget again.

        A chain does not know that its end was cut off. ``head``, a hash noted earlier, must be
        that of some entry, and there must be ``at_least`` so many entries.
        """
        with self._connection(write=False) as connection:
            said = [str(row[0]) for row in connection.execute("PRAGMA integrity_check")]
            if said != ["ok"]:
                raise self._broken(" ".join(said[0].split()))
            book = self._folded(connection)
        if at_least is not None and len(book.entries) < at_least:
            raise self._broken(f"it has {len(book.entries)} entries, not {at_least} or more")
        if head is not None and head not in [digest for _, digest in book.entries]:
            raise self._broken(f"no entry has the hash {head!r}: its end was cut off or rewritten")
        self._check_history(book)
        return book

    def _check_history(self, book: Book) -> None:
        """Price every account again as it was after each of its entries."""
        now, moments = Book(accounts={}, salt="", entries=()), []
        for number, (text, _) in enumerate(book.entries, 1):
            body = json.loads(text)
            now = now.after(body)
            found = now.reservation(body["id"]) if "id" in body else None
            if found is not None:
                moments.append((number, body["kind"], now.accounts[found.account]))
        priced: dict[str, Counter[str]] = {}
        overdrawn: str | None = None
        for number, kind, account in reversed(moments):
            events = Counter(json.dumps(to_json(event)) for event in account.counted())
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
                    f"{number}, which settles, {in_percent(account.used())} of its epsilon "
                    f"{account.epsilon:g} is used. The file holds; charge nothing more to it."
                )
        if overdrawn is not None:
            raise BudgetError(overdrawn)

    def export(self) -> str:
        """The ledger as JSON, from which :meth:`restore` makes one."""
        rows = [{"body": json.loads(text), "hash": digest} for text, digest in self.read().entries]
        return json.dumps({"graphveil_ledger": FORMAT, "entries": rows}, indent=1) + "\n"

    def restore(self, text: str) -> Book:
        """Make this file from an export; the chain must hold, and no file may be there."""
        try:
            content = json.loads(text)
            before, rows = NOTHING, []
            for number, each in enumerate(content["entries"], 1):
                rows.append((number, canonical(each["body"]), before, str(each["hash"])))
                before = rows[-1][3]
            book = fold(rows)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            said = f"{error} is missing" if isinstance(error, KeyError) else str(error)
            raise InvalidInputError(
                f"An import must be what 'graphveil ledger export' wrote: {said[:200].rstrip('.')}."
            ) from None
        if self.path.exists():
            raise InvalidInputError(f"{self.path} is there already; import to a new file.")
        self._create(rows)
        return book

    # --- the file --------------------------------------------------------------------------------

    def _create(self, rows: Sequence[Row]) -> None:
        """Make the file with its first entries, whole or not at all; leave one that is there."""
        if self.path.is_dir():
            raise InvalidInputError(f"A ledger must be a file. {self.path} is a directory.")
        if self.path.exists() and (not self.path.is_file() or self.path.stat().st_size):
            return
        if not self.path.absolute().parent.is_dir():
            raise InvalidInputError(f"{self.path} cannot be made: its directory is not there.")
        with self._connection(write=True, create=True) as connection:
            connection.execute("BEGIN IMMEDIATE")
            if not connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                connection.execute(f"PRAGMA application_id = {_APPLICATION}")
                for statement in _SCHEMA:
                    connection.execute(statement)
                connection.executemany("INSERT INTO entries VALUES (?, ?, ?, ?)", rows)
            connection.execute("COMMIT")

    def _append(self, decide: Callable[[Book], dict[str, Any] | None]) -> Book:
        """Append what ``decide`` makes of the ledger, if nobody wrote in the meantime; else again.

        Pricing may take a second; no lock is held then, and nobody waits for it.
        """
        while True:
            book = self.read()
            body = decide(book)
            if body is None:
                return book
            text = canonical({**body, "at": datetime.now(UTC).isoformat(timespec="seconds")})
            digest = chained(book.head, text)
            after = book.after(json.loads(text)).noted(text, digest)  # refuses what does not fit
            with self._connection(write=True) as connection:
                connection.execute("BEGIN IMMEDIATE")
                last = connection.execute("SELECT max(seq), hash FROM entries").fetchone()
                if last == (len(book.entries), book.head):
                    row = (len(after.entries), text, book.head, digest)
                    connection.execute("INSERT INTO entries VALUES (?, ?, ?, ?)", row)
                    connection.execute("COMMIT")
                    _tidied(connection)
                    return after

    def _folded(self, connection: sqlite3.Connection) -> Book:
        rows = connection.execute("SELECT seq, body, previous, hash FROM entries ORDER BY seq")
        try:
            return fold(rows.fetchall())
        except InvalidInputError as error:
            raise self._broken(str(error)) from None

    @contextlib.contextmanager
    def _connection(self, *, write: bool, create: bool = False) -> Iterator[sqlite3.Connection]:
        """A connection for one transaction; whatever the file may be instead is one line."""
        if not create and not self.path.is_file():
            raise InvalidInputError(
                f"There is no ledger {self.path}; make one with 'graphveil ledger open'."
            )
        log = self._log()
        if damaged(log):  # before SQLite sees it, which takes it for ended there
            raise self._broken(f"{log.name} is damaged, and its newest entries would be lost")
        with contextlib.ExitStack() as opened:
            try:
                connection = self._connected(write, create)
                yield opened.enter_context(contextlib.closing(connection))
            except sqlite3.OperationalError as error:
                raise InvalidInputError(
                    f"The ledger {self.path} cannot be used: {error}; nothing was written. Make "
                    "room, or see that the file and its directory can be written."
                ) from None
            except (sqlite3.Error, UnicodeDecodeError) as error:
                raise self._broken(str(error)) from None

    def _log(self) -> Path:
        """Where SQLite keeps the newest entries: beside the file, not beside a link to it."""
        file = Path(os.path.realpath(self.path))
        return file.with_name(f"{file.name}-wal")

    def _connected(self, write: bool, create: bool) -> sqlite3.Connection:
        place = f"file:{urllib.parse.quote(os.fsencode(self.path.absolute()))}"
        try:
            # To read, too: the last to leave tidies up what SQLite keeps beside the file.
            connection = _opened(f"{place}?mode={'rwc' if create else 'rw'}")
        except sqlite3.OperationalError:
            # Where nobody can write, reading needs no lock, which SQLite cannot make there.
            log = self._log()
            if write or (log.exists() and log.stat().st_size):
                raise
            connection = _opened(f"{place}?mode=ro&immutable=1")
        kind = connection.execute("PRAGMA application_id").fetchone()[0]
        tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if kind != _APPLICATION and not (create and kind == tables == 0):
            connection.close()
            raise sqlite3.DatabaseError("it is another kind of file than a ledger")
        if write:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
        return connection

    def _broken(self, why: str) -> InvalidInputError:
        return InvalidInputError(
            f"The ledger {self.path} does not hold: {why}; go back to a copy or an export of it."
        )


def _tidied(connection: sqlite3.Connection) -> None:
    """Move what was written from the log to the file, unless others read: it is safe in both."""
    with contextlib.suppress(sqlite3.OperationalError):
        connection.execute(f"PRAGMA busy_timeout = {_SHORTLY}")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()


def _opened(place: str) -> sqlite3.Connection:
    connection = sqlite3.connect(place, uri=True, timeout=_PATIENCE, isolation_level=None)
    try:
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except BaseException:
        connection.close()
        raise
    return connection


def _first_row() -> Row:
    body = {"kind": "ledger", "format": FORMAT, "salt": secrets.token_hex(16)}
    return 1, canonical(body), NOTHING, chained(NOTHING, canonical(body))


def in_percent(share: float) -> str:
    """A share as a person reads it: never less than it is."""
    return "more than all" if share > 100 else f"{math.ceil(1000 * share - 1e-6) / 10:g} %"


def rounded_down(value: float) -> str:
    """What is left, as a person reads it: never more than there is."""
    if value <= 0:
        return "0"
    unit = 10.0 ** (math.floor(math.log10(value)) - 2)
    return f"{math.floor(value / unit + 1e-9) * unit:.3g}"
