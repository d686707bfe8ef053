"""Whether a certificate promises what its charges bear out."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from graphveil.privacy.accounting import price
from graphveil.privacy.events import composed
from graphveil.privacy.guarantee import Certificate, Charge
from graphveil.privacy.ledger_state import count_events, count_releases

_AGREES = 1e-6  # relative: two machines may differ in a last digit, not in more
_FIGURES: Mapping[str, Callable[[Certificate], float | None]] = {
    "epsilon": lambda certificate: certificate.guarantee.epsilon,
    "pld": lambda certificate: certificate.pld,
    "rdp": lambda certificate: certificate.rdp,
    "claim": lambda certificate: None if certificate.claim is None else certificate.claim.epsilon,
}

_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?")
_ROUNDED = 2e-3  # relative: figures in sentences have four digits, and a last one may differ


def check_agreement(written: Certificate, again: Certificate) -> None:
    """Refuse a certificate that promises anything else than the one made again; ValueError."""
    for name in ("unit", "relation", "delta", "owner", "record", "targets"):
        check_same(name, getattr(written.guarantee, name), getattr(again.guarantee, name))
    check_same("void_because", written.void_because, again.void_because)
    check_same("claim", written.claim is None, again.claim is None)
    for name, of in _FIGURES.items():
        check_close(name, of(written), of(again))


def check_whole(written: Certificate, again: Certificate) -> None:
    """Refuse a certificate that says anything else than the one made again; ValueError.

    Versions are those of whoever made it, and figures may differ in a last digit.
    """
    check_agreement(written, again)
    for field in fields(Certificate):
        if field.name not in ("guarantee", "pld", "rdp", "claim", "notes", "versions"):
            check_same(field.name, getattr(written, field.name), getattr(again, field.name))
    if written.claim is not None and again.claim is not None:
        for name in ("source", "why_it_differs"):
            check_same(name, getattr(written.claim, name), getattr(again.claim, name))
    if not _are_alike(written.notes, again.notes):
        check_same("notes", written.notes, again.notes)


def _are_alike(written: Sequence[str], again: Sequence[str]) -> bool:
    """Whether sentences are the same, but for a last digit of figures in them."""
    mine, theirs = "\n".join(written), "\n".join(again)
    figures = [[float(number) for number in _NUMBER.findall(text)] for text in (mine, theirs)]
    return _NUMBER.sub("#", mine) == _NUMBER.sub("#", theirs) and all(
        math.isclose(a, b, rel_tol=_ROUNDED) for a, b in zip(*figures, strict=True)
    )


def check_charges(planned: Sequence[Charge], charged: Sequence[Charge]) -> None:
    """Refuse charges that are not those of the plan, with predictions after them; ValueError.

    Each pays for the same, for the same event, and as often.
    """
    own = charged[: len(planned)]
    if (made := count_releases(own)) != (due := count_releases(planned)):
        raise ValueError(f"the plan has {due:g} releases, and what is charged for is {made:g}")
    check_same("the number of charges", len(own), len(planned))
    for ours, theirs in zip(planned, own, strict=True):
        check_same("paid_for", theirs.paid_for, ours.paid_for)
        if count_events([theirs]) != count_events([ours]):
            raise ValueError(
                f"the charge for {ours.paid_for} is {_in_words(theirs)}, and the plan makes it "
                f"{_in_words(ours)}"
            )


def check_trials(planned: Sequence[Charge], certificate: Certificate) -> None:
    """Refuse trials that cost less than the training they chose, which is one of them; ValueError.

    ``planned`` are the charges of that training alone.
    """
    guarantee = certificate.guarantee
    one = price(composed(*(charge.event for charge in planned)), guarantee.delta).epsilon
    if one > guarantee.epsilon * (1 + _AGREES):
        raise ValueError(
            f"epsilon is {guarantee.epsilon!r} for all trials, and the training that was chosen "
            f"costs {one!r} by itself"
        )


def _in_words(charge: Charge) -> str:
    """The events of a charge, with how often each happens."""
    counts = count_events([charge])
    return " and ".join(f"{times} x {event}" for event, times in counts.items()) or "nothing"


def check_close(name: str, value: float | None, expected: float | None) -> None:
    """Refuse a figure that is another one, but for a last digit; none is none."""
    if value is None or expected is None or not math.isclose(value, expected, rel_tol=_AGREES):
        check_same(name, value, expected)


def check_same(name: str, value: Any, expected: Any) -> None:
    """Refuse a value that is another one."""
    if value != expected:
        raise ValueError(f"{name} is {value!r}, and what it rests on makes it {expected!r}")
