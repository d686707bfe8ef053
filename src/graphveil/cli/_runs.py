"""What several commands ask of runs, and how they show it."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import click

from graphveil._errors import InvalidInputError
from graphveil._inputs import at_home
from graphveil.cli._output import Result, figure

if TYPE_CHECKING:
    from graphveil.methods import Method
    from graphveil.privacy.guarantee import Certificate, Guarantee
    from graphveil.runs import Source

_LARGE_DELTA = 1e-3


# --- data -----------------------------------------------------------------------------------------


def make_source(asked: Mapping[str, Any]) -> Source:
    """Where data comes from, by the values of ``_options.source``."""
    from graphveil import runs

    names = [field.name for field in fields(runs.Source) if field.name not in ("data", "seed")]
    known = {name: asked[name] for name in names if asked.get(name) is not None}
    return runs.Source(data=asked["data"], seed=asked.get("seed") or 0, **known)


def is_same_place(one: str, other: str) -> bool:
    """Whether two names of data, or paths, say the same."""
    return one == other or at_home(one).absolute() == at_home(other).absolute()


def is_cataloged(data: str) -> bool:
    """Whether data has a name of the catalog."""
    from graphveil.data.catalog import CATALOG

    return data.partition(":")[0] in CATALOG


def has_same_tests(one: Any, other: Any, *names: str) -> bool:
    """Whether two graphs are one, with the same test records; ``names`` are compared, too."""
    from graphveil.graph.stored import has_same_edges

    pairs = [(one[name], other[name]) for name in ("x", "y", "test_mask", *names)]
    same = all(a.dtype == b.dtype and a.equal(b) for a, b in pairs)
    return same and has_same_edges(one, other)


# --- runs -----------------------------------------------------------------------------------------


def check_distinct(runs: Sequence[str]) -> None:
    """Refuse a run that is named twice."""
    if len({os.path.realpath(run) for run in runs}) < len(runs):
        raise InvalidInputError("Each run must be named once. Got one of them twice instead.")


def describe(method: Method) -> str:
    """A trained method as a person calls it, with what is proven for it."""
    if not method.private:
        return method.name
    if method.certificate_.void_because:
        return f"{method.name} (void certificate)"
    return f"{method.name} at epsilon {figure(method.certificate_.guarantee.epsilon)}"


def run_json(run: str, method: Method) -> dict[str, Any]:
    """A trained run, for programs."""
    return {"run": run, "method": method.name, "epsilon": method.certificate_.guarantee.epsilon}


# --- what a run cost ------------------------------------------------------------------------------


def price(guarantee: Guarantee) -> str:
    """What is promised, and to whom."""

    epsilon, delta = figure(guarantee.epsilon), f"{guarantee.delta:g}"
    return f"{epsilon}  at delta {delta}, for {guarantee.one} ({guarantee.relation})"


def add_cost(result: Result, certificate: Certificate, of: str = "") -> None:
    """Epsilon and delta, what a paper claims, and what voids the certificate."""
    guarantee, claim = certificate.guarantee, certificate.claim
    proven = not math.isinf(guarantee.epsilon)
    text = price(guarantee) if proven else "none: no guarantee"
    result.add("epsilon", guarantee.epsilon, f"epsilon {of}".strip(), lambda _: text)
    result.add("delta", guarantee.delta)
    if proven and guarantee.delta > _LARGE_DELTA:
        result.row(
            "caution",
            f"delta {guarantee.delta:g} is large: with such a probability nothing is promised. "
            "Give a smaller one, such as --delta 1e-5",
        )
    claimed = None if claim is None else claim.epsilon
    paper = "" if claim is None else f"  ({claim.source})"
    result.add("claimed_epsilon", claimed, "claimed epsilon", lambda value: figure(value) + paper)
    result.add("void_because", list(certificate.void_because), "void")


def add_ledger(result: Result, charged: Mapping[str, str] | None) -> None:
    """Whom a run was charged to, if there is a ledger."""
    result.add(
        "ledger", charged, "charged to", lambda to: f"account {to['account']!r} of {to['ledger']}"
    )


def add_out(result: Result, out: str) -> None:
    """The directory of a run."""
    end = "certificate.txt says what is promised, and to whom"
    result.add("out", out, "written to", lambda path: f"{path}: {end}")


def check_account(asked: Mapping[str, Any]) -> None:
    """Refuse an account without the file that it is in."""
    if asked.get("account") is not None and asked.get("ledger") is None:
        raise click.UsageError("'--account' needs '--ledger': the file that the account is in.")
