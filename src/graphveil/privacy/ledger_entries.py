"""Where a ledger keeps its entries: in a file of its own, or in tables of a PostgreSQL server.

What may be written is decided by :mod:`graphveil.privacy.ledger`; a place keeps the order. It adds
entries after the one that was priced, or none; and it has one writer at a time.
"""

from __future__ import annotations

import re
import urllib.parse
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from graphveil._errors import InvalidInputError

if TYPE_CHECKING:
    from graphveil.privacy.ledger_state import Row

Note = tuple[str, str, int]  # a reservation's id, a part of its run, the releases that it begins

# Asked before a note is written: the bodies of all entries, the newest first, and how many releases
# the other parts of the run have begun.
Check = Callable[[Iterator[str], float], None]

_URL = re.compile(
    r"(?P<scheme>postgres(?:ql)?://)(?:(?P<user>[^:@/?#\s]*)(?::[^@/?#\s]*)?@)?"
    r"(?P<hosts>[^@/?#\s]*)(?P<database>/[^@/?#\s]*)?(?:\?(?P<query>[^@?#\s]*))?"
)
_SECRETS = (
    "password", "sslpassword", "oauth_client_secret", "scram_client_key", "scram_server_key",
)  # fmt: skip
_WHERE = ("host", "hostaddr", "port", "dbname", "service", "options")


class Entries(Protocol):
    """The entries of one ledger, and beside them how far its runs have come.

    *Guarantee* of every place: what was written is not changed, and not lost by a kill of whoever
    writes. ``append`` adds to the very entries that were priced, whole or not at all; while
    ``note`` asks its check and writes, nothing is appended.
    """

    name: str  # as messages have it
    place: str  # as whoever comes later finds it; without a password

    def exists(self) -> bool:
        """Whether there is a ledger."""

    def read(self, *, check: bool = False) -> tuple[list[Row], list[Note]]:
        """All entries and the largest note of each part; the place is searched on request."""

    def create(self, rows: Sequence[Row], notes: Sequence[Note], *, rehearse: bool = False) -> bool:
        """Make the ledger with its first entries, whole or not at all; False if one is there.

        A rehearsal does all of it and leaves nothing.
        """

    def append(self, rows: Sequence[Row], after: tuple[int, str]) -> bool:
        """Add entries if the last one has this number and hash; False if another is the last."""

    def note(self, note: Note, check: Check) -> None:
        """Write down how far a part of a run goes, if ``check`` does not refuse; never less."""


def entries_at(place: str | Path) -> Entries:
    """The entries at a path, or at the URL of a server, whose driver is loaded here."""
    text = str(place)
    if "://" not in text:
        from graphveil.privacy.ledger_file import FileEntries

        return FileEntries(Path(place))
    public_url(text)  # refuse what is none
    try:
        from graphveil.privacy.ledger_server import ServerEntries
    except ImportError:
        raise InvalidInputError(
            "A ledger on PostgreSQL needs SQLAlchemy and psycopg. Got an installation without; "
            "install them with pip install 'graphveil[postgres]'."
        ) from None
    return ServerEntries(text)


def is_url(place: str | Path) -> bool:
    """Whether a ledger is on a server."""
    return "://" in str(place)


def public_url(url: str) -> str:
    """The URL of a ledger without what is secret in it; what might hide a secret is refused."""
    fields = _URL.fullmatch(url)
    if fields is None:
        raise InvalidInputError(
            "A ledger must be a file, or postgresql://USER@HOST/DATABASE, with any other sign as "
            "%XX. Got another URL, which is not printed: it may hold a password."
        )
    user = "" if fields["user"] is None else f"{fields['user']}@"
    query = _without(fields["query"] or "", lambda name: name in _SECRETS)
    return f"{fields['scheme']}{user}{fields['hosts']}{fields['database'] or ''}{query}"


def identity(place: str) -> str:
    """The same for everybody who uses the same ledger, under whatever name they log in."""
    fields = _URL.fullmatch(place)
    if fields is None:
        return place
    query = _without(fields["query"] or "", lambda name: name not in _WHERE)
    return f"postgresql://{fields['hosts']}{fields['database'] or ''}{query}"


def hide_passwords(text: str) -> str:
    """A message without the passwords of the URLs in it, whether they are right or not."""
    text = re.sub(r"(postgres(?:ql)?://[^\s:@/?#]*):[^\s@]*@", r"\1@", text)
    return re.sub(r"(?<=[?&])([^\s=&]+)=[^\s&'\"]*", _hide_value, text)


def _hide_value(parameter: re.Match[str]) -> str:
    is_secret = urllib.parse.unquote(parameter[1]) in _SECRETS
    return f"{parameter[1]}=..." if is_secret else parameter[0]


def _without(query: str, is_left_out: Callable[[str], bool]) -> str:
    """The query of a URL without some of its parameters."""
    names = ((part, urllib.parse.unquote(part.partition("=")[0])) for part in query.split("&"))
    kept = [part for part, name in names if part and not is_left_out(name)]
    return f"?{'&'.join(kept)}" if kept else ""


def broken(name: str, why: str) -> InvalidInputError:
    """The refusal of a ledger that is not what was written."""
    return InvalidInputError(
        f"The ledger {name} does not hold: {why}; go back to a copy or an export of it."
    )
