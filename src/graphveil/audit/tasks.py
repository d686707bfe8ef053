"""The audits of one method on one data set, as named pieces of work: they resume, and shard.

    for task in list_tasks("replay", method, data, name="social", how={"most": 12}):
        findings = task.run()

A task's name holds all that its findings follow from, so that one that was done is known again:
the method's settings, the audit's own, the plan, the version of graphveil, and for audits that read
data a digest of it. What does not read data has no digest: its findings may be shown to others.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import graphveil
from graphveil import _validate
from graphveil._errors import InvalidInputError
from graphveil._jobs import Failures, do_all, show_progress
from graphveil._progress import Progress
from graphveil.audit.results import DETAILS, Finding
from graphveil.methods.parts import Steps

if TYPE_CHECKING:
    from torch_geometric.data import Data

    from graphveil.methods import Method
    from graphveil.methods.plan import Plan

_STEPS = ("steps", "open_steps", "head_steps")
_TENSORS = (
    *("x", "edge_index", "y", "batch", "pos", "edge_attr", "edge_weight"),
    *("train_mask", "val_mask", "test_mask"),
)
READS_DATA = ("replay", "attack")
"""Kinds of audits whose results are functions of the data, and not of noise alone."""
_COUNTS = {
    "most": ("neighbours", "[1, 1e6]"),
    "steps": ("steps", "[1, 1e9]"),
    "draws": ("draws", "[100, 1e9]"),
    "canaries": ("canaries", "[1, 1e7]"),
    "candidates": ("candidates", "[8, 1e9]"),
    "shadows": ("shadows", "[2, 10000]"),
}


@dataclass(frozen=True)
class Task:
    """One piece of an audit; ``what`` tells it from others of the same audit."""

    name: str
    work: Callable[[], list[Finding]]
    what: str = ""

    def run(self) -> list[Finding]:
        """Do it; the findings know what they came from."""
        return [replace(finding, task=self.name) for finding in self.work()]


def check_kind(kind: str, method: type[Method], how: Mapping[str, Any]) -> None:
    """Refuse what no data is needed to refuse: a method without a promise, counts of nothing."""
    if not method.private and kind != "attack":
        raise InvalidInputError(
            f"A method must promise something for its promise to be tried by '{kind}'. Got "
            f"'{method.name}', which trains in the open, instead; attack it, or take another."
        )
    for name, value in how.items():
        if name in _COUNTS:
            _validate.integer(_COUNTS[name][0], value, _COUNTS[name][1])


def list_tasks(
    kind: str, method: Method, data: Data | None, plan: Plan, *, name: str, how: Mapping[str, Any]
) -> list[Task]:
    """The tasks of one kind, at least one; ``how`` are the settings that the kind takes.

    A ``plan`` is all that draws of single releases need; the other kinds read ``data``.
    """
    check_kind(kind, type(method), how)
    if method.record == "link":
        raise InvalidInputError(
            "An audit must be of a method for nodes or graphs: it withholds these. Got "
            f"'{method.name}', which learns links, instead; its charges are checked by brute force "
            "(docs/guarantees/links.md)."
        )
    named = {what: work for what, work in _LISTS[kind](method, data, plan, name, dict(how)).items()}
    where, details = f"{kind} of {method!r} on {name}", _details(kind, data, plan, how)
    return [Task(f"{where}: {what}{details}", work, what) for what, work in named.items()]


@dataclass(kw_only=True)
class Audit:
    """All of one kind of audit, as other processes can be given it: they list its tasks anew."""

    kind: str
    method: Method
    data: Data | None
    plan: Plan
    name: str
    how: Mapping[str, Any]

    def __post_init__(self) -> None:
        self._tasks: dict[str, Task] = {}

    def list_tasks(self) -> list[Task]:
        """Its tasks, in order."""
        return list_tasks(
            self.kind, self.method, self.data, self.plan, name=self.name, how=self.how
        )

    def __call__(self, name: str) -> list[Finding]:
        """What the task of that name finds."""
        if not self._tasks:
            self._tasks = {task.name: task for task in self.list_tasks()}
        return self._tasks[name].run()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_tasks": {}}


def run_tasks(
    audit: Audit,
    tasks: Sequence[Task],
    *,
    keep: Callable[[list[Finding]], None] | None = None,
    jobs: int = 1,
    progress: Progress | None = None,
) -> list[Finding]:
    """The findings of ``tasks`` in their order, on however many processes they were run.

    ``keep`` is given those of a task as it ends. Where there is one, a task that fails stops no
    other: its error is raised when all are done.
    """
    names = [task.name for task in tasks]
    called = {task.name: f"{audit.kind} {task.what}" for task in tasks}
    findings: dict[str, list[Finding]] = {}
    failures = Failures(go_on=keep is not None)
    most = max(1, min(jobs, len(names)))
    with (
        show_progress(progress, len(names)) as advance,
        closing(do_all(audit, names, jobs=most, name=called.__getitem__)) as results,
    ):
        for done in results:
            if done.error is not None:
                failures.add(names.index(done.item), done.error)
            else:
                findings[done.item] = done.take()
                if keep is not None:
                    keep(findings[done.item])
            advance()
    failures.raise_first()
    return [finding for name in names for finding in findings[name]]


def _details(kind: str, data: Data | None, plan: Plan, how: Mapping[str, Any]) -> str:
    """What else findings follow from."""
    planned = repr((plan.unit, plan.relation, plan.delta, plan.facts, plan.parts))
    digests = [f"plan {hashlib.blake2b(planned.encode(), digest_size=8).hexdigest()}"]
    if kind in READS_DATA and data is not None:
        from graphveil.graph.contents import content_hash

        there = [name for name in _TENSORS if name in data and data[name] is not None]
        digests.append(f"data {content_hash(data, there, hashlib.blake2b(digest_size=8))}")
    settings = [f"{key} {value}" for key, value in sorted(how.items())]
    return DETAILS + "; ".join([*settings, *digests, f"graphveil {graphveil.__version__}"])


Works = dict[str, Callable[[], list[Finding]]]


def _replays(method: Method, data: Any, plan: Plan, name: str, how: dict[str, Any]) -> Works:
    from graphveil.audit import cases
    from graphveil.audit.replay import replay
    from graphveil.audit.resuming import replay_resume

    method = _shorten(method, how.pop("steps", 5))

    def on(case: str, graph: Any) -> Callable[[], list[Finding]]:
        return lambda: [replay(method, graph, name=case, **how)]

    def killed() -> list[Finding]:
        with tempfile.TemporaryDirectory() as place:
            return [replay_resume(method, data, Path(place) / "run", name=name)]

    works: Works = {"data": on(name, data)}
    directed = bool(plan.facts.directed)
    made = cases.graph_cases() if method.record == "graph" else cases.node_cases(directed=directed)
    works |= {case: on(case, graph) for case, graph in made.items()}
    if plan.sampled_at == 1:  # a run on a secret sample is not resumed
        works["killed and resumed"] = killed
    return works


def _shorten(method: Method, steps: int) -> Method:
    """The method with so many steps at most: the first ones show what all do."""
    settings = method.get_params()
    short = {name: steps for name in _STEPS if settings.get(name, 0) is None}
    short |= {name: min(steps, settings[name]) for name in _STEPS if settings.get(name)}
    return type(method)(**{**settings, **short})


def _mechanisms(method: Method, data: Any, plan: Plan, name: str, how: dict[str, Any]) -> Works:
    from graphveil.audit.mechanism import audit_plan

    return {"parts": lambda: audit_plan(plan, **how)}


def _runs(method: Method, data: Any, plan: Plan, name: str, how: dict[str, Any]) -> Works:
    from graphveil.audit.one_run import audit_run

    def canaries(kind: str) -> Callable[[], list[Finding]]:
        return lambda: audit_run(method, data, kinds=(kind,), **how)

    private = [
        part
        for part in plan.parts
        if isinstance(part, Steps) and part.noise_multiplier > 0 and part.clipping != "off"
    ]
    if not private:
        raise InvalidInputError(
            f"Canaries must have private steps to take part in. Got '{method.name}' under the unit "
            f"{plan.unit} instead, which has none; audit it by 'mechanism' or 'replay'."
        )
    altered = any(part.altered for part in private)
    return {kind: canaries(kind) for kind in ("removed", "altered")[: 1 + altered]}


def _attacks(method: Method, data: Any, plan: Plan, name: str, how: dict[str, Any]) -> Works:
    from graphveil.audit.attacks import attack, kinds_of

    def by(kind: str) -> Callable[[], list[Finding]]:
        return lambda: attack(method, data, kinds=(kind,), **how)

    return {kind: by(kind) for kind in kinds_of(method)}


_LISTS: dict[str, Callable[[Method, Any, Plan, str, dict[str, Any]], Works]] = {
    "replay": _replays,
    "mechanism": _mechanisms,
    "run": _runs,
    "attack": _attacks,
}
