"""Run directories against the ledger they were charged to: it must know all that they say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from graphveil._errors import InvalidInputError
from graphveil.privacy.ledger import Ledger
from graphveil.privacy.ledger_state import (
    FORMAT,
    LedgerState,
    Reservation,
    canonical,
    charges_to_json,
    count_releases,
)
from graphveil.runs.charging import noted_in, reserved_by
from graphveil.runs.directory import state_of_run, steps_noted
from graphveil.runs.files import read_json, reading


def check_charged(ledger: str | Path, directories: Sequence[str | Path]) -> int:
    """Refuse a ledger that charges less than some runs' files say; how many charges they made.

    *Guarantee*: what the events.json of a trained run charges for is charged, and settled if it is
    finished, each noisy prediction once; what an unfinished run began is reserved, begun and not
    given back. Of runs that are not given, or whose files say less than they released, nothing is
    known.
    """
    book = Ledger(ledger).read()
    found = {_reservation(book, Path(each)).id: Path(each) for each in directories}
    if len(found) < len(directories):
        raise InvalidInputError(
            "Each run must have a reservation of its own. Got two with one, as where a run was "
            "copied; name one of them, and do not use the other."
        )
    predicted: Counter[str] = Counter()
    for id, directory in found.items():
        reservation = book.reservation(id)
        assert reservation is not None
        predicted += _check_run(book, reservation, directory)
    charged = [each for account in book.accounts.values() for each in account.charged]
    known = Counter(
        canonical(charge)
        for each in charged
        if each.prediction
        for charge in charges_to_json(each.charges)
    )
    if lost := predicted - known:
        raise _less(f"{sum(lost.values())} noisy predictions of these runs are not in it")
    return len(found) + sum(predicted.values())


def _reservation(book: LedgerState, directory: Path) -> Reservation:
    """What a run reserved, by its own files; what names none, or one that is not known, is refused.

    A copy without ledger.json has it in events.json.
    """
    state_of_run(directory)
    ids = {None if (noted := noted_in(directory)) is None else noted["reservation"]}
    if (directory / "events.json").exists():
        ids.add(reserved_by(directory))
    if not (named := {id for id in ids if id is not None}):
        raise InvalidInputError(
            f"The run in {directory} must be one that was charged to a ledger. It was not; leave "
            "it out."
        )
    known = [book.reservation(id) for id in named]
    if len(known) > 1 or known[0] is None:
        raise _less(f"it does not know the run in {directory}, or knows it as another's")
    return known[0]


def _check_run(book: LedgerState, reservation: Reservation, directory: Path) -> Counter[str]:
    """Compare one run; the noisy predictions it was charged for since."""
    if not (directory / "events.json").exists():
        steps = max(steps_noted(directory), book.releases_begun(reservation.id))
        unnoted = not reservation.begun and book.format == FORMAT  # the first format had no notes
        if count_releases(reservation.charges) < steps or (steps and unnoted):
            raise _less(f"the run in {directory} began {steps} steps that it does not charge")
        return Counter()
    with reading(directory, "events.json"):
        charges = [canonical(each) for each in _events(directory)["charges"]]
    paid = [canonical(each) for each in charges_to_json(reservation.charges)]
    if not paid or charges[: len(paid)] != paid:
        raise _less(f"the run in {directory} released other charges than these")
    if reservation.settled is None and (directory / "certificate.json").exists():
        raise _less(f"the run in {directory} is finished, and is not settled in it")
    return Counter(charges[len(paid) :])


def _events(directory: Path) -> dict[str, Any]:
    with reading(directory, "events.json"):
        return read_json(directory / "events.json")


def _less(why: str) -> InvalidInputError:
    return InvalidInputError(
        f"The ledger charges less than was released: {why}. Its end was cut off, rewritten or "
        "forged; go back to a copy of it, and charge nothing more to this one."
    )
