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
from graphveil.runs.charging import read_note
from graphveil.runs.files import read_json, reading
from graphveil.runs.record import CERTIFICATES, EVENTS, read_reservation
from graphveil.runs.run import Run


def check_charged(ledger: str | Path, directories: Sequence[str | Path]) -> int:
    """Refuse a ledger that charges less than some runs' files say; how many charges they made.

    *Guarantee*: what the events.json of a trained run charges for is charged, and settled if it is
    finished, each noisy prediction once; what an unfinished run began is reserved, begun and not
    given back. Of runs that are not given, or whose files say less than they released, nothing is
    known.
    """
    state = Ledger(ledger).read()
    runs = {_reservation(state, Path(path)).id: Path(path) for path in directories}
    if len(runs) < len(directories):
        raise InvalidInputError(
            "Each run must have a reservation of its own. Got two with one, as where a run was "
            "copied; name one of them, and do not use the other."
        )
    predicted: Counter[str] = Counter()
    for id, directory in runs.items():
        reservation = state.reservation(id)
        assert reservation is not None
        predicted += _check_run(state, reservation, directory)
    charged = [paid for account in state.accounts.values() for paid in account.charged]
    known = Counter(
        canonical(charge)
        for paid in charged
        if paid.prediction
        for charge in charges_to_json(paid.charges)
    )
    if lost := predicted - known:
        raise _less(f"{sum(lost.values())} noisy predictions of these runs are not in it")
    return len(runs) + sum(predicted.values())


def _reservation(state: LedgerState, directory: Path) -> Reservation:
    """What a run reserved, by its own files; what names none, or one that is not known, is refused.

    A copy without ledger.json has it in events.json.
    """
    _ = Run(directory).state_of_run
    ids = {None if (noted := read_note(directory)) is None else noted["reservation"]}
    if (directory / EVENTS).exists():
        ids.add(read_reservation(directory))
    if not (named := {id for id in ids if id is not None}):
        raise InvalidInputError(
            f"The run in {directory} must be one that was charged to a ledger. It was not; leave "
            "it out."
        )
    known = [state.reservation(id) for id in named]
    if len(known) > 1 or known[0] is None:
        raise _less(f"it does not know the run in {directory}, or knows it as another's")
    return known[0]


def _check_run(state: LedgerState, reservation: Reservation, directory: Path) -> Counter[str]:
    """Compare one run; the noisy predictions it was charged for since."""
    if not (directory / EVENTS).exists():
        steps = max(_count_steps(directory), state.releases_begun(reservation.id))
        unnoted = not reservation.begun and state.format == FORMAT  # the first format had no notes
        if count_releases(reservation.charges) < steps or (steps and unnoted):
            raise _less(f"the run in {directory} began {steps} steps that it does not charge")
        return Counter()
    with reading(directory, EVENTS):
        charges = [canonical(charge) for charge in _events(directory)["charges"]]
    paid = [canonical(charge) for charge in charges_to_json(reservation.charges)]
    if not paid or charges[: len(paid)] != paid:
        raise _less(f"the run in {directory} released other charges than these")
    if reservation.settled is None and (directory / CERTIFICATES[-1]).exists():
        raise _less(f"the run in {directory} is finished, and is not settled in it")
    return Counter(charges[len(paid) :])


def _count_steps(directory: Path) -> int:
    """Steps in all journals of an unfinished run, whether or not an index names them."""
    journals = Run(directory).checkpoint.directory.rglob("steps")
    return sum(path.stat().st_size for path in journals)


def _events(directory: Path) -> dict[str, Any]:
    with reading(directory, EVENTS):
        return read_json(directory / EVENTS)


def _less(why: str) -> InvalidInputError:
    return InvalidInputError(
        f"The ledger charges less than was released: {why}. Its end was cut off, rewritten or "
        "forged; go back to a copy of it, and charge nothing more to this one."
    )
