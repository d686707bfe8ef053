"""Attacks on a trained model: what an attacker gets, beside what the certificate allows.

=================================================  ===============================================
:mod:`~graphveil.audit.attacks.membership`         was a node's row there? (loss, LiRA, RMIA, BASE)
:mod:`~graphveil.audit.attacks.links`              are two nodes linked? (link stealing, LinkTeller)
:mod:`~graphveil.audit.attacks.graphs`             was a whole graph there?
:mod:`~graphveil.audit.attacks.attributes`         which value has an attribute?
:mod:`~graphveil.audit.attacks.training`           coins, targets and shadows
:mod:`~graphveil.audit.attacks.scores`             what is made of signals
:mod:`~graphveil.audit.attacks.curves`             rates, their limits, the certificate beside them
=================================================  ===============================================

    for finding in attack(method, data, candidates=400, shadows=8):
        print(finding.name, finding.holds, finding.figures["auc"])

Every candidate is in or out by a fair coin that was thrown before training; nobody compares the
training nodes with the test nodes, which differ anyway. The target and all shadows are trained for
the attack alone, with the settings of the method. An attack that fails proves nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from graphveil import _validate

if TYPE_CHECKING:
    from graphveil._progress import Progress
    from graphveil.audit.results import Finding
    from graphveil.methods import Method

KINDS = ("nodes", "links", "attributes", "graphs")
_OF_UNIT = {"node": KINDS[:3], "edge": ("links",), "graph": ("graphs",)}


def attack(
    method: Method,
    data: Any,
    kinds: Iterable[str] | None = None,
    *,
    candidates: int = 400,
    shadows: int = 8,
    seed: int = 0,
    progress: Progress | bool | None = None,
) -> list[Finding]:
    """Train ``method`` on ``data`` with canaries, attack it, and say what came of it.

    ``kinds`` are of :data:`KINDS`, by default those that speak of the method's unit. A target and
    so many ``shadows`` are trained for each kind, on at most so many ``candidates``. ``seed``
    draws candidates and coins, no noise. ``progress`` is as of ``fit``.

    *Guarantee*: none. The findings are of models that were trained for the attack; they read
    private data, and are for its owner.
    """
    from importlib import import_module

    from graphveil._errors import InvalidInputError
    from graphveil._progress import choose_progress
    from graphveil.graph.checks import task_of
    from graphveil.graph.targets import OF_CLASSES

    if task_of(data) not in OF_CLASSES:
        raise InvalidInputError(
            "Attacks must be on models of classes: they read the probability of a record's own "
            f"class. Got the task {task_of(data)!r} instead; replay, mechanism and run take it."
        )
    chosen = kinds_of(method) if kinds is None else tuple(kinds)
    findings: list[Finding] = []
    modules = {kind: "membership" if kind == "nodes" else kind for kind in KINDS}
    for kind in chosen:
        _validate.choice("kinds", kind, KINDS)
        run = getattr(import_module(f"{__name__}.{modules[kind]}"), f"attack_{kind}")
        findings += run(
            method,
            data,
            candidates=candidates,
            shadows=shadows,
            seed=seed,
            progress=choose_progress(progress, f"attacking {kind}"),
        )
    return findings


def kinds_of(method: Method) -> tuple[str, ...]:
    """The attacks that speak of what a method protects, or would."""
    unit = str(getattr(method, "unit", method.units[0]))
    return _OF_UNIT[unit.partition("-")[0]]
