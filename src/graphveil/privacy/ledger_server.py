"""A ledger's entries on a PostgreSQL server, for writers on many machines.

**One writer at a time.** Whoever writes takes an advisory lock first, in a READ COMMITTED
transaction, and then asks what stands: each statement sees all that was committed by whoever held
the lock before. That is SQLite's ``BEGIN IMMEDIATE``, and the same total order of all writes. A
SERIALIZABLE transaction would have to be tried again at each conflict, and here every two writers
conflict, at the end of the chain; with a lock, its snapshot would be older than the lock. To lock
the table itself would take more rights than to append. Whoever does not take the lock is stopped by
the tables (:mod:`graphveil.privacy.ledger_tables`).

**Lost connections.** A transaction is tried again, after a random pause, until patience ends; each
time with a new connection, to whichever server of the URL is the primary by then. If the connection
was lost at COMMIT nobody knows whether it was done. Then the next attempt first looks for the very
entries: they are told by their hashes, hence by all that they say. It cannot be too early: the lock
is held until the lost transaction has ended, one way or the other. So nothing is written twice.

There is no pool: a connection that is opened for each transaction survives no fork, and goes to
whoever is the primary now.
"""

from __future__ import annotations

import functools
import random
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import psycopg
import psycopg.conninfo
import sqlalchemy as sql
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from graphveil._errors import GraphveilError, InvalidInputError
from graphveil.privacy.ledger_entries import Check, Note, broken, public_url
from graphveil.privacy.ledger_state import Row
from graphveil.privacy.ledger_tables import CHECK, CREATE, GUARDS, LOCK

T = TypeVar("T")
Work = Callable[[sql.Connection, bool], T]

_PATIENCE = 60.0  # seconds for others who write, and for a server that is away
_FIRST = 5.0  # seconds for a server that was never there: it may have another name
_PAUSE = 0.05  # seconds before the second attempt, and twice as long before each one after it
_LONGEST = 2.0  # seconds between two attempts
_PORTION = 100  # entries that are asked for at once, of which the newest are usually enough
_IDLE = 20.0  # seconds after which the server ends a transaction whose client has vanished

# What passes by itself: a lost connection, a server that stops, starts or is full, a conflict.
_PASSING = ("08", "57P01", "57P02", "57P03", "40001", "40P01", "53300", "25P03")
_MISSING, _FORBIDDEN = "42P01", ("42501", "25006")
# Of a connection that was refused there are words only; in another language it is tried longer.
_FOR_GOOD = (
    "authentication", "does not exist", "pg_hba", "password", "certificate", "not found",
    "not permitted", "does not support",
)  # fmt: skip

_ENTRIES = sql.Table(
    "graphveil_entries",
    sql.MetaData(),
    sql.Column("seq", sql.BigInteger, primary_key=True, autoincrement=False),
    sql.Column("body", sql.Text),
    sql.Column("previous", sql.Text),
    sql.Column("hash", sql.Text),
)
_PROGRESS = sql.Table(
    "graphveil_progress",
    sql.MetaData(),
    sql.Column("id", sql.Text, primary_key=True),
    sql.Column("place", sql.Text, primary_key=True),
    sql.Column("noted", sql.BigInteger, primary_key=True),
)
_LAST = sql.select(_ENTRIES.c.seq, _ENTRIES.c.hash).order_by(_ENTRIES.c.seq.desc()).limit(1)
_NOTED = sql.func.max(_PROGRESS.c.noted)


class ServerEntries:
    """Entries in tables of a PostgreSQL server.

    *Guarantee*: that of :class:`~graphveil.privacy.ledger_entries.Entries`, as long as the server
    keeps what it says that it has committed; one that is set not to is refused. What fails may be
    tried again: nothing is written twice.
    """

    def __init__(self, url: str) -> None:
        self.name = self.place = public_url(url)
        self._server = _server(url)

    def exists(self) -> bool:
        """Whether the server has a ledger of that name."""
        return self._run(lambda connection, unsure: _is_there(connection), writes=False)

    def read(self, *, check: bool = False) -> tuple[list[Row], list[Note]]:
        """All entries and notes, of one moment; the tables' guards are searched on request."""

        def work(connection: sql.Connection, unsure: bool) -> tuple[list[Row], list[Note]]:
            if check:
                self._check_guards(connection)
            rows = connection.execute(sql.select(_ENTRIES).order_by(_ENTRIES.c.seq))
            part = (_PROGRESS.c.id, _PROGRESS.c.place)
            notes = connection.execute(sql.select(*part, _NOTED).group_by(*part).order_by(*part))
            return [(*row,) for row in rows], [(*note,) for note in notes]

        return self._run(work, writes=False)

    def create(self, rows: Sequence[Row], notes: Sequence[Note], *, rehearse: bool = False) -> bool:
        """Make the tables with the first entries, whole or not at all; False if there are some."""

        def work(connection: sql.Connection, unsure: bool) -> bool:
            if _is_there(connection):
                if connection.execute(_LAST).first() is not None:
                    return unsure and _stand(connection, rows)
            else:
                for statement in CREATE:
                    connection.exec_driver_sql(statement.replace("%", "%%"))
            _insert(connection, rows)
            if notes:
                connection.execute(
                    sql.insert(_PROGRESS), [{"id": i, "place": p, "noted": n} for i, p, n in notes]
                )
            if rehearse:
                connection.rollback()
            return True

        return self._run(work, writes=True)

    def append(self, rows: Sequence[Row], after: tuple[int, str]) -> bool:
        """Add entries if the last one has this number and hash; False if another is the last."""

        def work(connection: sql.Connection, unsure: bool) -> bool:
            last = connection.execute(_LAST).first()
            if last is None or tuple(last) != after:
                return unsure and _stand(connection, rows)
            _insert(connection, rows)
            return True

        return self._run(work, writes=True)

    def note(self, note: Note, check: Check) -> None:
        """Write down how far a part of a run goes, if ``check`` does not refuse; never less."""
        id, place, count = note

        def work(connection: sql.Connection, unsure: bool) -> None:
            parts = sql.select(_NOTED.label("noted")).where(
                _PROGRESS.c.id == id, _PROGRESS.c.place != place
            )
            each_part = parts.group_by(_PROGRESS.c.place).subquery()
            others = connection.execute(sql.select(sql.func.sum(each_part.c.noted))).scalar()
            check(_newest_bodies(connection), float(others or 0))
            values = {"id": id, "place": place, "noted": count}
            connection.execute(insert(_PROGRESS).values(values).on_conflict_do_nothing())

        self._run(work, writes=True)

    # --- transactions ----------------------------------------------------------------------------

    def _run(self, work: Work[T], *, writes: bool) -> T:
        """One transaction; again where what failed passes by itself, until patience ends.

        ``work`` is told whether an earlier attempt was lost when it may have been committed.
        """
        server, began, pause, unsure = self._server, time.monotonic(), _PAUSE, False
        if writes and server.on_standby:
            raise self._unusable("its URL asks for a standby, where nothing is written", unsure)
        while True:
            committing = False
            try:
                with server.connect(writes) as connection:
                    if writes:
                        self._take_turn(connection, unsure)
                    result = work(connection, unsure)
                    committing = True
                    connection.commit()
                return result
            except DBAPIError as error:
                unsure = unsure or committing
                # A server that is full or starts is there, and says so.
                server.was_there = server.was_there or "FATAL" in str(error.orig)
                waited = time.monotonic() - began
                if not _passes(error) or waited > (_PATIENCE if server.was_there else _FIRST):
                    raise self._refusal(error, unsure) from None
            time.sleep(pause * random.uniform(0.5, 1.5))  # apart from others who wait
            pause = min(2 * pause, _LONGEST)

    def _take_turn(self, connection: sql.Connection, unsure: bool) -> None:
        """Wait for other writers; refuse a server that may forget what it has committed."""
        wait = {
            "lock_timeout": 1000 * _PATIENCE,
            "idle_in_transaction_session_timeout": 1000 * _IDLE,
        }
        settings = ("synchronous_commit", "fsync", "full_page_writes")
        query = sql.select(
            *(sql.func.current_setting(name).label(name) for name in settings),
            *(sql.func.set_config(name, f"{value:.0f}", True) for name, value in wait.items()),
        )
        row = connection.execute(query).one()
        for name, value in zip(settings, row, strict=False):
            if value == "off":
                raise self._unusable(
                    f"its server has {name} = off, and may lose entries in a crash; set it to on",
                    unsure,
                )
        connection.execute(sql.select(sql.func.pg_advisory_xact_lock(LOCK)))

    def _check_guards(self, connection: sql.Connection) -> None:
        if not _is_there(connection):
            return
        guards = {tuple(row) for row in connection.exec_driver_sql(CHECK)}
        for table, names in GUARDS.items():
            for name in names:
                if (table, name) not in guards:
                    raise broken(
                        self.name,
                        f"the trigger {name} of {table} is gone or off, or the table is not logged",
                    )

    # --- refusals --------------------------------------------------------------------------------

    def _refusal(self, error: DBAPIError, unsure: bool) -> GraphveilError:
        """What went wrong as one line, without a password."""
        state, why = _state_of(error), self._server.without_secrets(_reason(error))
        if unsure:
            return self._unusable(why, unsure)
        if state == _MISSING and _PROGRESS.name in why:
            return broken(self.name, why)
        if state == _MISSING:
            return InvalidInputError(
                f"There is no ledger {self.name}; make one with 'graphveil ledger open'."
            )
        if state in _FORBIDDEN:
            return InvalidInputError(
                f"The ledger {self.name} cannot be used so by this user: {why}; nothing was "
                "written. Log in as somebody who may: see 'graphveil ledger roles'."
            )
        if state is not None and state.startswith(("22", "23")):
            return broken(self.name, why)
        return self._unusable(why, unsure)

    def _unusable(self, why: str, unsure: bool) -> InvalidInputError:
        outcome = "nothing was written"
        if unsure:
            outcome = "whether the last entry was written is not known: 'graphveil ledger show'"
        return InvalidInputError(
            f"The ledger {self.name} cannot be used: {why}; {outcome}. See that the server has "
            "room, is the primary, and can be reached with this URL."
        )


class _Server:
    """How the server of a URL is reached, and whether it ever was."""

    def __init__(self, url: str) -> None:
        try:
            given = psycopg.conninfo.conninfo_to_dict(url)
        except psycopg.Error as error:
            why = "" if public_url(url) != url else f": {_one_line(str(error))}"
            raise InvalidInputError(
                f"The ledger {public_url(url)} must be a URL that PostgreSQL's library reads{why}."
            ) from None
        self._secrets = [str(given[name]) for name in given if "password" in name or "key" in name]
        # To writers a standby shows what was, not what is; and a dead connection is noticed.
        usual = {
            "target_session_attrs": "primary",
            "connect_timeout": "10",
            "keepalives_idle": "10",
            "keepalives_interval": "5",
            "keepalives_count": "3",
            "tcp_user_timeout": "30000",
            "application_name": "graphveil",
        }
        self._fields: dict[str, Any] = {**usual, **given, "client_encoding": "UTF8"}
        self.on_standby = self._fields["target_session_attrs"] not in ("primary", "read-write")
        self.was_there = False
        self._engine = sql.create_engine(
            "postgresql+psycopg://",
            creator=self._open,
            poolclass=NullPool,
            use_native_hstore=False,
            hide_parameters=True,
        )

    def _open(self) -> psycopg.Connection[Any]:
        # Prepared statements outlive a transaction, which poolers between here and there dislike.
        connection = psycopg.connect(**self._fields, prepare_threshold=None)
        self.was_there = True
        return connection

    def connect(self, writes: bool) -> sql.Connection:
        """A connection for one transaction: a reader's is of one moment."""
        if writes:
            return self._engine.connect().execution_options(isolation_level="READ COMMITTED")
        return self._engine.connect().execution_options(
            isolation_level="REPEATABLE READ", postgresql_readonly=True
        )

    def without_secrets(self, text: str) -> str:
        """The text, if there is no password in it."""
        return "it did not answer" if any(word in text for word in self._secrets if word) else text


@functools.lru_cache(maxsize=64)
def _server(url: str) -> _Server:
    return _Server(url)


def _is_there(connection: sql.Connection) -> bool:
    query = sql.select(sql.func.to_regclass("graphveil_entries").is_not(None))
    return bool(connection.execute(query).scalar())


def _insert(connection: sql.Connection, rows: Sequence[Row]) -> None:
    names = ("seq", "body", "previous", "hash")
    values = [dict(zip(names, row, strict=True)) for row in rows]
    connection.execute(sql.insert(_ENTRIES), values)


def _stand(connection: sql.Connection, rows: Sequence[Row]) -> bool:
    """Whether the chain has these very entries."""
    last = connection.execute(sql.select(_ENTRIES).where(_ENTRIES.c.seq == rows[-1][0])).first()
    return last is not None and tuple(last) == rows[-1]


def _newest_bodies(connection: sql.Connection) -> Iterator[str]:
    """The bodies of all entries, the newest first."""
    before: int | None = None
    while True:
        query = sql.select(_ENTRIES.c.seq, _ENTRIES.c.body).order_by(_ENTRIES.c.seq.desc())
        if before is not None:
            query = query.where(_ENTRIES.c.seq < before)
        rows = connection.execute(query.limit(_PORTION)).all()
        yield from (row.body for row in rows)
        if not rows:
            return
        before = rows[-1].seq


def _passes(error: DBAPIError) -> bool:
    """Whether what failed may go well the next time."""
    state = _state_of(error)
    if state is not None:
        return state.startswith(_PASSING)
    lost = isinstance(error.orig, psycopg.OperationalError | psycopg.InterfaceError)
    return lost and not any(word in str(error.orig) for word in _FOR_GOOD)


def _state_of(error: DBAPIError) -> str | None:
    """The five letters by which a server says what is wrong; None where it said nothing."""
    return getattr(error.orig, "sqlstate", None)


def _reason(error: DBAPIError) -> str:
    stated = getattr(getattr(error.orig, "diag", None), "message_primary", None)
    return _one_line(str(stated or error.orig))


def _one_line(text: str) -> str:
    return " ".join(text.split()).rstrip(".")
