"""Predict with a run; what that costs is charged first."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

from torch import Tensor
from torch_geometric.data import Data

from graphveil._errors import InvalidInputError
from graphveil.methods import Method
from graphveil.methods.node import PrivateNodeMethod
from graphveil.runs.charging import Spending, for_prediction
from graphveil.runs.directory import (
    in_order,
    read,
    state_of_run,
    write_certificate,
    write_events,
)
from graphveil.runs.files import locked, log, read_json, unusable


def predict(
    directory: str | Path,
    data: Data | Callable[[], Data],
    *,
    mode: str | None = None,
    epsilon: float | None = None,
    ledger: str | Path | None = None,
    account: str | None = None,
    on_charge: Callable[[dict[str, str]], None] | None = None,
    notify: Callable[[str], None] = warnings.warn,
) -> tuple[Method, Tensor]:
    """A run's method and its class probabilities; a charge is on disk before they are returned.

    Without a ``mode``, what the method does on the graph it was trained on. ``data`` may be a
    function that loads it. A noisy prediction of a run that was charged to a ledger is charged to
    the same account, unless another is named: reserved before data is loaded. ``on_charge`` is told
    which ``ledger``, ``account`` and ``reservation`` it was, if it was one, and ``notify`` what its
    owner should know.

    *Guarantee*: what the mode promises stands on the run's certificate afterwards.
    """
    directory = Path(directory)
    given = (lambda: data) if isinstance(data, Data) else data

    def loaded() -> Data:
        return in_order(directory, given())

    if mode != "noisy" and (ledger is not None or account is not None):
        raise InvalidInputError(
            f"Only the mode 'noisy' is charged to a ledger. Got {mode!r} with one instead; leave "
            "--ledger and --account out."
        )
    if mode is None:  # what the certificate says from the start
        method = read(directory)
        return method, method.predict_proba(loaded(), epsilon=epsilon)
    state_of_run(directory)  # a path that is no run is refused by name
    try:
        with locked(directory):
            method = read(directory)
            before = method.certificate_
            spending = (
                for_prediction(directory, ledger, account, notify) if mode == "noisy" else None
            )
            with _charged(method, epsilon, spending, loaded) as graph:
                probabilities = method.predict_proba(graph, mode=mode, epsilon=epsilon)
                if method.certificate_ != before:
                    events = read_json(directory / "events.json")
                    hashes = {
                        key: each
                        for key, each in events.items()
                        if key.endswith("_sha256") or key == "reservation"
                    }
                    write_events(directory, method, hashes)
                    write_certificate(directory, method.certificate_)
            if spending is not None:
                log(directory, f"noisy prediction, settled {spending.id}")
                if on_charge is not None:
                    on_charge(spending.place())
    except FileNotFoundError:
        raise InvalidInputError(f"There is no run in {directory}; check the path.") from None
    except OSError as error:
        raise unusable(directory, error) from error
    return method, probabilities


@contextlib.contextmanager
def _charged(
    method: Method,
    epsilon: float | None,
    spending: Spending | None,
    loaded: Callable[[], Data],
) -> Iterator[Data]:
    """Reserve a noisy prediction, load its data, and settle to what was charged for it."""
    if spending is None or epsilon is None or not isinstance(method, PrivateNodeMethod):
        yield loaded()  # nothing to charge, or refused in words of its own
        return
    before = len(method.charges_)
    spending.reserve_prediction(method, epsilon)
    try:
        graph = loaded()
        method._readable(graph)  # refused while it costs nothing
        spending.reserve_prediction(method, epsilon, graph)
        spending.begin()
        yield graph
    except (Exception, KeyboardInterrupt) as error:
        if spending.give_back():  # which what has begun is not
            error.add_note("Nothing was released or charged.")
        else:
            stays = f"stays charged to the account {spending.account!r}"
            error.add_note(f"The noisy prediction may have been released: it {stays}.")
        raise
    spending.settle(method.charges_[before:])
