"""What an account of a ledger has spent, charge by charge: how the cost of all runs grew.

The figures are those of today's ledger: a charge that was settled to less since it was reserved
counts as settled, at the place where it was reserved.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from markupsafe import Markup

from graphveil._errors import InvalidInputError
from graphveil.privacy.composing import together
from graphveil.privacy.guarantee import ONE, round_up
from graphveil.privacy.ledger import Ledger, percent, round_down
from graphveil.privacy.ledger_state import charges_to_json
from graphveil.report import svg
from graphveil.runs.charging import promise_of, read_note
from graphveil.runs.record import read_reservation

if TYPE_CHECKING:
    from graphveil.privacy.ledger_state import Account, LedgerState
    from graphveil.report.evidence import Evidence


@dataclass(frozen=True, kw_only=True)
class Step:
    """One charge: when it was reserved, what for, by itself, and with all those before it."""

    day: str
    purpose: str
    alone: float
    so_far: float
    settled: bool


@dataclass(frozen=True, kw_only=True)
class Growth:
    """An account's charges in their order, beside its budget for life.

    ``used`` and ``left`` count as the budget does: however later runs were chosen.
    """

    account: str
    who: str | None
    epsilon: float
    delta: float
    unit: str | None
    steps: tuple[Step, ...]
    used: str
    left: str
    overdrawn: bool

    @property
    def protected(self) -> str | None:
        """What a unit of the account is called."""
        return None if self.unit is None else ONE[self.unit]

    @property
    def budget(self) -> str:
        """The budget for life, as a page shows it."""
        return f"{self.epsilon:g}"

    @property
    def spent(self) -> str:
        """What all charges cost together."""
        return round_up(self.steps[-1].so_far) if self.steps else "0"

    @property
    def rows(self) -> list[tuple[str, str, str, str]]:
        """Day, purpose, epsilon by itself, and epsilon of all so far."""
        return [
            (
                step.day,
                step.purpose if step.settled else f"{step.purpose} (not settled)",
                round_up(step.alone),
                round_up(step.so_far),
            )
            for step in self.steps
        ]

    def plot(self, key: str) -> Markup | None:
        """Epsilon of all charges so far, as stairs below the budget; None of no charge."""
        if not self.steps:
            return None
        return svg.stairs(key, [step.so_far for step in self.steps], self.epsilon)


def read_growth(place: str, account: str | None = None, run: Evidence | None = None) -> Growth:
    """How an account of the ledger at ``place`` was spent; the only one where none is named.

    One to which a given ``run`` is not charged is refused: it says nothing about its people.
    """
    book = Ledger(place).read()
    budget = book.account(account)
    if run is not None:
        _check_charged(book, budget, run)
    return growth_of(budget, book.moments)


def _check_charged(book: LedgerState, account: Account, run: Evidence) -> None:
    """Refuse an account of another unit than a run's, or one to which it is not charged."""
    named = (
        f"The account {account.name!r} must be the one to which the run in {run.path} is charged"
    )
    way_out = "name that account of that ledger, or leave '--ledger' out."
    mine = promise_of(run.plan)
    theirs = account.promise
    if account.unit not in (None, mine.unit) or theirs not in (None, mine):
        other = theirs or f"one {account.unit}"
        raise InvalidInputError(
            f"{named}. It is about {other}, and the run about {mine}; {way_out}"
        )
    note = read_note(Path(run.path))
    id = read_reservation(Path(run.path)) if note is None else note["reservation"]
    held = None if id is None else book.reservation(id)
    if held is None or held.account != account.name or not held.charges:
        where = "not in this ledger" if held is None else f"charged to {held.account!r}"
        raise InvalidInputError(f"{named}. It is {where}; {way_out}")
    paid, ran = (charges_to_json(it) for it in (held.charges, run.certificate.charges))
    if held.settled is not None and ran[: len(paid)] != paid:
        raise InvalidInputError(
            f"{named}. Under its reservation other charges stand in this ledger; {way_out}"
        )


def growth_of(account: Account, moments: Mapping[str, str]) -> Growth:
    """The growth of an account whose reservations were made at those ``moments``."""
    charged = account.charged
    events = account.events()
    promise = account.promise
    return Growth(
        account=account.name,
        who=account.who,
        epsilon=account.epsilon,
        delta=account.delta,
        unit=account.unit if promise is None else promise.unit,
        steps=tuple(
            Step(
                day=moments.get(held.id, "")[:10],
                purpose=held.purpose,
                alone=together([held.event], account.delta).epsilon,
                so_far=together(events[: number + 1], account.delta).epsilon,
                settled=held.settled is not None,
            )
            for number, held in enumerate(charged)
        ),
        used=percent(account.used()),
        left=round_down(account.left()),
        overdrawn=account.overdrawn,
    )
