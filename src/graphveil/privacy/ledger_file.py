"""A ledger's entries in one SQLite file, safe with many processes of one machine at once."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import tempfile
import urllib.parse
from collections.abc import Iterator, Sequence
from pathlib import Path

from graphveil._errors import InvalidInputError
from graphveil._files import link
from graphveil.privacy.ledger_entries import Check, Note, broken
from graphveil.privacy.ledger_state import Row

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


class FileEntries:
    """Entries in a file.

    *Guarantee*: that of :class:`~graphveil.privacy.ledger_entries.Entries`; what was written is on
    disk when the call returns.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.name, self.place = path, str(path), str(path.absolute())

    def exists(self) -> bool:
        """Whether there is a file."""
        return self.path.is_file()

    def read(self, *, check: bool = False) -> tuple[list[Row], list[Note]]:
        """All entries and notes; SQLite checks its own structure of the file on request."""
        with self._connection() as connection:
            if check:
                _check_pages(connection)
            query = "SELECT seq, body, previous, hash FROM entries ORDER BY seq"
            rows: list[Row] = connection.execute(query).fetchall()
            if not connection.execute(_HAS_PROGRESS).fetchone():
                return rows, []
            notes = connection.execute("SELECT id, place, noted FROM progress")
            return rows, [(str(id), str(place), int(count)) for id, place, count in notes]

    def append(self, rows: Sequence[Row], after: tuple[int, str]) -> bool:
        """Add entries if the last one has this number and hash; False if another is the last."""
        with self._connection() as connection:
            connection.execute("BEGIN IMMEDIATE")
            last = connection.execute("SELECT max(seq), hash FROM entries").fetchone()
            if last != after:
                return False
            connection.executemany("INSERT INTO entries VALUES (?, ?, ?, ?)", rows)
            connection.execute("COMMIT")
            return True

    def note(self, note: Note, check: Check) -> None:
        """Write down how far a part of a run goes, if ``check`` does not refuse; never less."""
        with self._connection() as connection:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute(_PROGRESS)
            query = "SELECT total(noted) FROM progress WHERE id = ? AND place != ?"
            others = connection.execute(query, note[:2]).fetchone()[0]
            bodies = connection.execute("SELECT body FROM entries ORDER BY seq DESC")
            check((text for (text,) in bodies), others)
            connection.execute(
                "INSERT INTO progress VALUES (?, ?, ?) ON CONFLICT (id, place) DO UPDATE SET "
                "noted = max(noted, excluded.noted)",
                note,
            )
            connection.execute("COMMIT")

    # --- a new file ------------------------------------------------------------------------------

    def create(self, rows: Sequence[Row], notes: Sequence[Note], *, rehearse: bool = False) -> bool:
        """Make the file with its first entries, whole or not at all; False if one is there.

        It is made under another name, and gets its own when it is whole: a disk that is full, or a
        kill, leaves nothing in the way. A rehearsal does not get that far.
        """
        if self.path.exists() and not self.path.is_file():
            kind = "directory" if self.path.is_dir() else "pipe or a device"
            raise InvalidInputError(f"A ledger must be a file. {self.path} is a {kind}.")
        if self.path.is_symlink() and not self.path.exists():
            raise InvalidInputError(
                f"{self.path} is a link that leads nowhere; remove it, or give the file's own path."
            )
        if self.path.exists():
            return not rehearse and self._fill(rows, notes)
        if not self.path.absolute().parent.is_dir():
            raise InvalidInputError(f"{self.path} cannot be made: its directory is not there.")
        try:
            # As private as the data: nobody else may read or write it, nor what SQLite puts beside.
            handle, name = tempfile.mkstemp(prefix=f".{self.path.name}.", dir=self.path.parent)
        except OSError as error:
            raise InvalidInputError(f"{self.path} cannot be made: {error.strerror}.") from None
        os.close(handle)
        made = FileEntries(Path(name))
        try:
            made._fill(rows, notes)
            made.read()
            return rehearse or link(made.path, self.path)
        except InvalidInputError as error:
            raise InvalidInputError(str(error).replace(name, str(self.path))) from None
        finally:
            for path in (made.path, _journal_of(made.path)):
                path.unlink(missing_ok=True)

    def _fill(self, rows: Sequence[Row], notes: Sequence[Note]) -> bool:
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
                connection.executemany("INSERT INTO progress VALUES (?, ?, ?)", notes)
            connection.execute("COMMIT")
        return bool(empty)

    # --- the file --------------------------------------------------------------------------------

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
            raise broken(self.name, "it was cut short")  # SQLite takes what is missing for zeros
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
            raise broken(self.name, str(error)) from None


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
