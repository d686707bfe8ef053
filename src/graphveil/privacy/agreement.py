"""Whether a certificate promises what its charges bear out."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from graphveil.privacy.guarantee import Certificate

_AGREES = 1e-6  # relative: two machines may differ in a last digit, not in more
_FIGURES: Mapping[str, Callable[[Certificate], float | None]] = {
    "epsilon": lambda certificate: certificate.guarantee.epsilon,
    "pld": lambda certificate: certificate.pld,
    "rdp": lambda certificate: certificate.rdp,
    "claim": lambda certificate: None if certificate.claim is None else certificate.claim.epsilon,
}


def check_agreement(written: Certificate, again: Certificate) -> None:
    """Refuse a certificate that promises anything else than the one made again; ValueError."""
    for name in ("unit", "relation", "delta"):
        check_same(name, getattr(written.guarantee, name), getattr(again.guarantee, name))
    check_same("void_because", written.void_because, again.void_because)
    check_same("claim", written.claim is None, again.claim is None)
    for name, of in _FIGURES.items():
        check_close(name, of(written), of(again))


def check_close(name: str, value: float | None, expected: float | None) -> None:
    """Refuse a figure that is another one, but for a last digit; none is none."""
    if value is None or expected is None or not math.isclose(value, expected, rel_tol=_AGREES):
        check_same(name, value, expected)


def check_same(name: str, value: Any, expected: Any) -> None:
    """Refuse a value that is another one."""
    if value != expected:
        raise ValueError(f"{name} is {value!r}, and what it rests on makes it {expected!r}")
