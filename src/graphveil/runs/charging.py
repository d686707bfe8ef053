"""A run's place in a ledger: reserved before data is touched, settled to what was released.

The run's directory holds ``ledger.json``: which ledger, which account, and the id of the
reservation. It is written *before* the reservation is, so that whenever a run is killed, its id
leads to what it reserved; going on with the run reserves nothing a second time.

Before the first release the ledger notes that the run has begun, under a *turn*: a word that stands
in the run's checkpoint, beside its journal. Whoever goes on shows the last turn and gets a new one.
So a run whose checkpoint is gone, was put back from a copy, or went on elsewhere cannot go on here.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import secrets
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphveil._errors import (
    BudgetError,
    GraphveilError,
    InvalidInputError,
    RefusedError,
    UnprovenError,
)
from graphveil._files import write_file
from graphveil.methods import METHODS, Facts, Method, Plan
from graphveil.methods.inference import PAID_FOR_PREDICTION
from graphveil.privacy.guarantee import Charge, default_delta
from graphveil.privacy.ledger import Fits, Ledger
from graphveil.privacy.ledger_state import Account, Promise, Reservation, charges_to_json
from graphveil.runs.files import read_json, reading, write_json
from graphveil.runs.fingerprints import fingerprint_of
from graphveil.runs.record import CHECKPOINT, EVENTS, LEDGER, SETTINGS, read_reservation
from graphveil.runs.source import Source

if TYPE_CHECKING:
    from torch_geometric.data import Data

TURN = "turn.json"  # in the checkpoint of a run that has begun
_LEAST_OFFER = 0.01  # an epsilon below which nothing is offered


class Plans:
    """The plans of one method, each made once: for facts, or for data at hand."""

    def __init__(self, method: Any) -> None:
        self.method = method
        self._plans: dict[Facts, Plan] = {}
        self._seen: tuple[int, Facts] | None = None

    def for_facts(self, facts: Facts) -> Plan:
        """The plan for these facts, which takes a second to make."""
        if facts not in self._plans:
            self._plans[facts] = self.method.plan(facts)
        return self._plans[facts]

    def know(self, plan: Plan) -> None:
        """Take a plan that was made before for that of its facts."""
        self._plans[plan.facts] = plan

    def facts_of(self, data: Data) -> Facts:
        """The facts of data at hand, which is checked once."""
        if self._seen is None or self._seen[0] != id(data):
            self._seen = id(data), Facts.of(data)
        return self._seen[1]

    def on(self, data: Data) -> Plan:
        """The plan for data at hand."""
        return self.for_facts(self.facts_of(data)).on(data)


@dataclass(kw_only=True)
class Spending:
    """What one run, or one noisy prediction, reserves and settles."""

    ledger: Ledger
    account: str
    id: str
    run: str
    purpose: str
    notify: Callable[[str], None] = warnings.warn
    _turn: str | None = None  # of this attempt, once it has begun

    # --- before data, and after it was loaded ----------------------------------------------------

    def reserve_unseen(self, plans: Plans, source: Source) -> None:
        """Reserve what a method will spend, as far as it can be known before data is opened."""
        if self.reservation() is not None:
            return  # by an earlier attempt, which was killed before it released anything
        account = self._account()
        _check_unit(plans.method, account)
        facts = source.expected(None if account.seen is None else known_facts(account.seen))
        if facts is None or _unit_of(account) == "owner":  # who owns what stands in the data
            _check_first(plans.method, account)
            return
        self._reserve(plans, plans.for_facts(facts), account)

    def reserve_seen(self, plans: Plans, facts: Facts, data: Data) -> None:
        """Reserve again, now for the data at hand; an equal reservation stays what it is."""
        from graphveil.graph.checks import (
            num_classes_of,
            num_records,
            record_of,
            task_of,
            value_range_of,
            void_of,
        )

        _refuse_void(void_of(data))
        state = self.ledger.read()
        fingerprint = fingerprint_of(data, state.fingerprint_hash())
        self._notice(state.account(self.account), fingerprint)
        whole = {
            "num_nodes": num_records(data),
            "num_features": int(data.x.shape[1]),
            "num_classes": num_classes_of(data),
            "directed": facts.directed,
            "record": record_of(data),
            "task": task_of(data),
            "value_range": value_range_of(data),
        }
        if facts.target_features is not None:
            whole["target_features"] = facts.target_features
        self._reserve(
            plans,
            plans.for_facts(facts),
            state.account(self.account),
            facts=whole,
            fingerprint=fingerprint,
        )

    def check_same(self, plan: Plan, data: Data) -> None:
        """Refuse to go on with a run on other data, or at another price, than was reserved."""
        state = self.ledger.read()
        reservation = state.reservation(self.id)
        if reservation is None or reservation.fingerprint != fingerprint_of(
            data, state.fingerprint_hash()
        ):
            raise InvalidInputError(
                f"The run in {self.run} was charged for other data than this; resume with the "
                "same data, or start anew with --force."
            )
        if charges_to_json(reservation.reserved) != charges_to_json(plan.charges):
            raise InvalidInputError(
                f"The run in {self.run} reserved other charges than its plan has; put the right "
                "plan.json back, or start anew with --force."
            )

    def _notice(self, account: Account, fingerprint: str) -> None:
        """Say so where data is new to an account: its owner knows whether the people are."""
        if account.versions and fingerprint not in account.versions:
            who = f" ({account.who})" if account.who else ""
            self.notify(
                f"The account {account.name!r}{who} has seen other data than this: it is noted as "
                f"version {len(account.versions) + 1} and charged to the same budget. If other "
                "people are in it, they need an account of their own."
            )

    def _account(self) -> Account:
        return self.ledger.read().account(self.account)

    def _reserve(self, plans: Plans, plan: Plan, account: Account, **seen: Any) -> None:
        method = plans.method
        _refuse_void(plan.void_because)
        _check_delta(account, method.num_units(plan.facts))
        self.ledger.reserve(
            self.id,
            self.account,
            plan.charges,
            promise_of(plan),
            purpose=self.purpose,
            run=self.run,
            would_fit=lambda fits, left: _offer(method, plan.facts, fits, left),
            **seen,
        )

    def reserve_prediction(self, method: Method, epsilon: float, data: Data | None = None) -> None:
        """Reserve a noisy prediction of a trained method; again when its data is at hand."""
        seen: dict[str, Any] = {}
        facts = method.plan_.facts
        if data is not None:
            facts = replace(facts, num_nodes=len(data.x))
            state = self.ledger.read()
            seen["fingerprint"] = fingerprint_of(data, state.fingerprint_hash())
            self._notice(state.account(self.account), seen["fingerprint"])
        _check_delta(self._account(), method.num_units(facts))

        def charges(epsilon: float) -> list[Charge]:
            part = method.plan_prediction(epsilon)
            return [Charge(paid_for=part.paid_for, event=part.event)]

        self.ledger.reserve(
            self.id,
            self.account,
            charges(epsilon),
            promise_of(method.plan_),
            purpose=self.purpose,
            run=self.run,
            prediction=True,
            would_fit=lambda fits, left: _largest(epsilon, left, lambda less: fits(charges(less))),
            **seen,
        )

    # --- while it releases -----------------------------------------------------------------------

    def begin(self, directory: Path | None = None) -> None:
        """Note in the ledger that something may be released from here on.

        The new turn is in the checkpoint before the ledger has it, beside the last one: killed in
        between, the run has one that is known.
        """
        reserved, self._turn = self.reservation(), secrets.token_hex(8)
        follows = None if reserved is None else reserved.turn
        held = [] if directory is None else _turns(directory)
        if follows is not None and follows not in held:
            follows = held[-1] if held else None  # which the ledger refuses: it is another's turn
        if directory is not None:
            turns = [turn for turn in (follows, self._turn) if turn]
            content = {"reservation": self.id, "turns": turns}
            write_file(directory / CHECKPOINT / TURN, json.dumps(content).encode(), private=True)
        self.ledger.begin(self.id, self._turn, follows)

    def known(self, place: Path) -> int:
        """How many releases a part of the run has begun, as far as the ledger knows."""
        return self.ledger.read().progress.get(self.id, {}).get(self._part(place), 0)

    def note(self, place: Path, count: int) -> None:
        """Have the ledger know that a part of the run begins its releases up to ``count``."""
        assert self._turn is not None
        self.ledger.note(self.id, self._turn, self._part(place), count)

    def _part(self, place: Path) -> str:
        """A part by its place in the run, which may be moved; wherever links inside it lead."""
        return os.path.relpath(place.absolute(), self.run)

    # --- afterwards ------------------------------------------------------------------------------

    def settle(self, charges: Sequence[Charge]) -> None:
        """Charge what was released."""
        self.ledger.settle(self.id, charges, self._turn)

    def give_back(self) -> bool:
        """Settle to nothing, if nothing can have been released; False if that is not possible."""
        try:
            reserved = self.reservation()
            if reserved is not None and reserved.settled is None:
                self.ledger.settle(self.id, ())
        except GraphveilError:
            return False
        return True

    def place(self) -> dict[str, str]:
        """Where it is charged, as ledger.json says it."""
        return _place(self.ledger, self.account, self.id)

    def reservation(self) -> Reservation | None:
        """What the ledger says of it."""
        return self.ledger.read().reservation(self.id)


def begun(
    directory: Path,
    purpose: str,
    ledger: str | Path | None,
    account: str | None,
    released: bool,
    notify: Callable[[str], None] = warnings.warn,
) -> Spending | None:
    """The spending of the run in ``directory``; a new one is noted there before it is reserved.

    None for a run without a ledger. ``released`` says whether the run's files know of a release.
    """
    note = read_note(directory)
    if note is None:
        return _begin_new(directory, purpose, ledger, account, released, notify)
    if account not in (None, note["account"]):
        raise InvalidInputError(
            f"The run in {directory} is charged to the account {note['account']!r}. Got "
            f"{account!r} instead; leave --account out, or start anew with --force."
        )
    book = Ledger(note["ledger"] if ledger is None else ledger)
    _check_there(book, directory)
    spending = Spending(
        ledger=book,
        account=note["account"],
        id=note["reservation"],
        run=str(directory.absolute()),
        purpose=purpose,
        notify=notify,
    )
    reserved, trained = spending.reservation(), (directory / EVENTS).exists()
    if reserved is None and (released or trained):
        raise InvalidInputError(
            f"The ledger {book.name} does not know what the run in {directory} reserved; name the "
            "right one with --ledger."
        )
    if reserved is not None and reserved.settled == () and not (released or trained):
        return _note(directory, purpose, book, note["account"], notify)  # it was given back
    if reserved is not None:
        _check_turn(directory, reserved, trained)
    if ledger is not None:
        _write(directory, book, spending.account, spending.id)
    return spending


def _begin_new(
    directory: Path,
    purpose: str,
    ledger: str | Path | None,
    account: str | None,
    released: bool,
    notify: Callable[[str], None],
) -> Spending | None:
    """The spending of a run that says nothing of a ledger; None if it is given none."""
    if (directory / CHECKPOINT / TURN).exists():
        raise InvalidInputError(
            f"The run in {directory} is charged to a ledger, and its {LEDGER} is gone; put it "
            "back, or start anew with --force and --ledger."
        )
    if ledger is None:
        if account is not None:
            raise InvalidInputError(
                f"The run in {directory} was begun without a ledger. Got the account "
                f"{account!r} instead; leave it out, or start anew with --force and --ledger."
            )
        refuse_uncharged(directory, kept_beside(directory))
        return None
    if released or (directory / SETTINGS).exists():
        raise InvalidInputError(
            f"The run in {directory} was begun without a ledger, and cannot be charged "
            "halfway; go on without --ledger, or start anew with --force."
        )
    book = Ledger(ledger)
    return _note(directory, purpose, book, book.read().account(account).name, notify)


def _check_turn(directory: Path, reserved: Reservation, trained: bool) -> None:
    """Refuse to go on with a run whose releases are counted elsewhere, or nowhere any more."""
    stays = "What it may have released stays charged; start anew with --force."
    if reserved.settled is not None and not trained:
        raise InvalidInputError(
            f"The run in {directory} cannot go on: its reservation {reserved.id} is settled, as by "
            f"a copy of it that was trained. {stays}"
        )
    if reserved.settled is None and reserved.begun and reserved.turn not in _turns(directory):
        raise InvalidInputError(
            f"The run in {directory} cannot go on: its {CHECKPOINT} is gone, or is not the one "
            f"that the ledger knows, as where a copy of the run went on. {stays}"
        )


def _turns(directory: Path) -> list[str]:
    """The turns that a run has: its last one, and the one it was about to take."""
    try:
        return [str(turn) for turn in read_json(directory / CHECKPOINT / TURN)["turns"]]
    except (OSError, ValueError, KeyError, TypeError):
        return []  # as good as none


def kept_beside(directory: Path) -> Path:
    """Where a run that is being replaced is kept until the new one is finished."""
    return directory.absolute().with_name(f".{directory.absolute().name}.replaced")


def refuse_uncharged(directory: Path, before: Path | None = None) -> None:
    """Refuse to replace the run in ``before``, or in ``directory``, without the ledger it has."""
    before = directory if before is None else before
    noted = read_note(before)
    trained = (before / EVENTS).exists()
    if noted is not None or (trained and read_reservation(before) is not None):
        whose = "a ledger" if noted is None else f"{noted['account']!r} of {noted['ledger']}"
        raise InvalidInputError(
            f"The run in {directory} is charged to {whose}, and must not be replaced by one that "
            "is not; name the ledger with --ledger, or choose another directory."
        )


def read_note(directory: Path) -> dict[str, str] | None:
    """What a run says of its ledger; None where it has none."""
    if not (directory / LEDGER).exists():
        return None
    with reading(directory, LEDGER):
        note = read_json(directory / LEDGER)
        if note["format"] != 1:
            raise ValueError(f"format {note['format']!r} is not 1")
        names = ("ledger", "account", "reservation")
        if not all(isinstance(note[name], str) for name in names):
            raise ValueError("it must hold three words")
        return {name: note[name] for name in names}


def give_up(directory: Path) -> None:
    """Give back what a run reserved that goes before it began to release.

    What has begun stays charged, which the ledger sees to; so does what nobody can find any more.
    """
    with contextlib.suppress(InvalidInputError):
        noted = read_note(directory)
        if noted is None:
            return
        Spending(
            ledger=Ledger(noted["ledger"]),
            account=noted["account"],
            id=noted["reservation"],
            run=str(directory),
            purpose="",
        ).give_back()


def for_prediction(
    directory: Path,
    ledger: str | Path | None,
    account: str | None,
    notify: Callable[[str], None] = warnings.warn,
) -> Spending | None:
    """A new spending for a noisy prediction of a finished run; None if nothing is charged."""
    noted, reserved = read_note(directory), read_reservation(directory)
    if noted is None and ledger is None:
        if reserved is not None:
            raise InvalidInputError(
                f"The run in {directory} was charged to a ledger, and so is what is predicted "
                "through noise; name the ledger with --ledger."
            )
        if account is not None:
            raise InvalidInputError(f"The account {account!r} needs a ledger; name it by --ledger.")
        return None
    book = Ledger(noted["ledger"] if ledger is None and noted is not None else ledger or "")
    ids = {id for id in (noted and noted["reservation"], reserved) if id}
    if ids:
        _check_there(book, directory)
    state = book.read()
    known = [state.reservation(id) for id in ids]
    if None in known:
        raise InvalidInputError(
            f"The ledger {book.name} does not know what the run in {directory} reserved; name the "
            "right one with --ledger."
        )
    own = next((one.account for one in known if one is not None), None)
    return Spending(
        ledger=book,
        account=state.account(account or own).name,
        id=secrets.token_hex(8),
        run=str(directory.absolute()),
        purpose=PAID_FOR_PREDICTION,
        notify=notify,
    )


def _check_there(ledger: Ledger, directory: Path) -> None:
    """Where the ledger of a run is not, no other may be made in its place."""
    if not ledger.exists():
        raise InvalidInputError(
            f"There is no ledger {ledger.name}, which the run in {directory} is charged to; was it "
            "moved? Name it with --ledger."
        )


def _note(
    directory: Path, purpose: str, ledger: Ledger, account: str, notify: Callable[[str], None]
) -> Spending:
    id = secrets.token_hex(8)
    _write(directory, ledger, account, id)
    return Spending(
        ledger=ledger,
        account=account,
        id=id,
        run=str(directory.absolute()),
        purpose=purpose,
        notify=notify,
    )


def _write(directory: Path, ledger: Ledger, account: str, id: str) -> None:
    content = {"format": 1, **_place(ledger, account, id)}
    write_json(directory / LEDGER, content, private=True)


def _place(ledger: Ledger, account: str, id: str) -> dict[str, str]:
    return {"ledger": ledger.place, "account": account, "reservation": id}


# --- what is known, and what would fit ------------------------------------------------------------


def promise_of(plan: Plan) -> Promise:
    """For whom a plan's charges are priced."""
    return Promise(unit=plan.unit, relation=plan.relation, public_degree=plan.public_degree)


def known_facts(seen: Reservation) -> Facts | None:
    """The facts of an account's whole data, as far as it has seen some."""
    facts = seen.facts
    return None if facts is None else Facts(**facts, num_train=1)


def _refuse_void(reasons: Sequence[str]) -> None:
    if reasons:
        raise UnprovenError(
            f"What is charged to a ledger must have a proven epsilon. Got none instead: "
            f"{reasons[0]}; train without --ledger, or with settings and data that are proven."
        )


def _check_first(method: Method, account: Account) -> None:
    """Before the first look at files of one's own, whose sizes nobody knows yet."""
    asked = getattr(method, "epsilon", math.inf)
    if math.isinf(asked):
        raise UnprovenError(
            f"What is charged to a ledger must have a proven epsilon. The method '{method.name}' "
            "trains in the open; train it without --ledger."
        )
    if asked > account.epsilon and not getattr(method, "paper", False):
        raise BudgetError(
            f"The account {account.name!r} has epsilon {account.epsilon:g} at delta "
            f"{account.delta:g} for its lifetime. Got a run of epsilon {asked:g} instead; at most "
            f"--epsilon {account.epsilon:g} would fit."
        )


def _unit_of(account: Account) -> str | None:
    """The unit that an account is for, where that is settled."""
    return account.unit if account.promise is None else account.promise.unit


def _check_unit(method: Method, account: Account) -> None:
    """Refuse a method for another kind of unit; before a plan, which would refuse something else.

    Whether edges are directed is not known yet, and left to the ledger.
    """
    unit, kind = _unit_of(account), METHODS[method.name]
    if kind.record == "graph":
        asked = "graph"
    elif isinstance(method, Method):
        asked = getattr(method, "unit", kind.units[0])
    else:  # a search, which has many settings; nodes or edges are not graphs
        asked = "node" if unit == "graph" else unit
    if unit == "owner" and asked != "edge":
        return  # whether the data has owners is not known yet
    if unit is not None and unit.partition("-")[0] != str(asked).partition("-")[0]:
        raise InvalidInputError(
            f"The account {account.name!r} is for the unit {unit!r}. Got the method "
            f"'{method.name}', which protects one {asked}, instead; charge another account, which "
            "'graphveil ledger open' makes."
        )


def _check_delta(account: Account, units: int) -> None:
    """Refuse an account whose delta would allow publishing somebody's row whole."""
    if account.delta * units >= 1:
        raise UnprovenError(
            f"The account {account.name!r} has delta {account.delta:g}, which must be below 1/n = "
            f"{1 / units:.3g} for the {units} units of this data; open another account with delta "
            f"{default_delta(units):g}."
        )


def _offer(method: Method, facts: Facts, fits: Fits, left: float) -> str:
    """What epsilon the same method, with the same settings, could still have."""

    def could_have(epsilon: float) -> bool:
        try:
            settings = {**method.get_params(), "epsilon": epsilon}
            return fits(type(method)(**settings).plan(facts).charges)
        except RefusedError:  # settings that no noise makes affordable
            return False

    return _largest(float(method.get_params()["epsilon"]), left, could_have)


def _largest(asked: float, left: float, could_have: Callable[[float], bool]) -> str:
    """The largest epsilon that could be had, but for a hundredth; below ``asked``, near ``left``.

    A plan may take a second, and few are needed: the price of a run is much like a Gaussian's.
    """
    low, high = 0.95 * min(asked, left), min(asked, 1.05 * left)
    low = max(low, _LEAST_OFFER)
    high = max(high, low)
    while not could_have(low):
        if low == _LEAST_OFFER:
            return f"With these settings not even --epsilon {_LEAST_OFFER:g} would fit."
        low, high = max(low / 2, _LEAST_OFFER), low
    while high < asked and could_have(high):
        low, high = high, min(asked, 1.5 * high)
    while high > 1.01 * low:
        middle = (low + high) / 2
        low, high = (middle, high) if could_have(middle) else (low, middle)
    unit = 10.0 ** (math.floor(math.log10(low)) - 3)
    return f"With these settings --epsilon {math.floor(low / unit) * unit:.4g} would fit."
