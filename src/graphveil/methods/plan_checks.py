"""Whether a plan is the one that its method makes of its settings and of public facts.

    check_plan(plan, DPGNN(epsilon=8.0))     # ValueError where it is another one

A plan that is read back was written by somebody. What it promises, which parts it has, and how they
are bounded follows from the settings and the facts: it is planned again, and compared. Nothing else
can be: facts are the word of whoever holds the data, and so is what they declared of it.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from graphveil import _validate
from graphveil.methods.base import Method
from graphveil.methods.parts import Earlier
from graphveil.methods.plan import Plan
from graphveil.methods.settings import setting_fields
from graphveil.methods.tuned import rests_on
from graphveil.privacy.guarantee import DECLARED_PUBLIC

_CLOSE = 1e-6  # relative: two machines may differ in a last digit
_ABOUT = 0.25  # relative: another version may have found another noise for the same budget
# Numbers that follow from a noise that was found; what it costs is in the events, and charged.
_FOUND = re.compile(
    r"(.*_)?noise(_multiplier|_ratio)?|learning_rate|signal_to_noise|right_choice|rounds"
)
_ADDED = re.compile(
    r"; (it reads rows up to [0-9]+ steps away|a student reads every row of that graph)$"
)
_NAMED = ("node", "graph", "owner")  # the units that data may have a word for
_BY_THEMSELVES = (
    "parts", "settings", "inference", "released", "public", "unprotected", "voided_by",
    "void_because", "tuned", "owner_name", "record_name",
)  # fmt: skip


def check_plan(plan: Plan, method: Method) -> None:
    """Refuse a plan that says anything else than ``method`` plans on the same facts; ValueError.

    Trials that chose its settings add what follows from their line, as
    :mod:`graphveil.methods.tuned` has it.
    Data may add lines of its own to what is public, not protected or void, releases that were made
    before, and what a record and its owner are called. Numbers that follow from a noise that was
    found are compared roughly.

    *Guarantee*: unit, relation, parts, bounds and sentences are those of the method. Facts, and
    what data adds, are the word of whoever wrote the plan.
    """
    again = method.plan(plan.facts)
    added = rests_on(plan.public, method.record, plan.unit) if plan.tuned else {}
    expected = again.resting_on(**added)
    ours, theirs = (json.loads(json.dumps(made.to_json())) for made in (plan, expected))
    for field in fields(Plan):
        if field.name not in _BY_THEMSELVES:
            _compare(field.name, ours[field.name], theirs[field.name])
    _check_settings(ours["settings"], theirs["settings"], type(method))
    _check_parts(plan, ours["parts"], theirs["parts"])
    _compare("inference", *([stem(line) for line in made.inference] for made in (plan, expected)))
    _compare("released", plan.released, expected.released)
    _compare("voided_by", ours["voided_by"], theirs["voided_by"])
    _compare("tuned", plan.tuned, expected.tuned)
    for name in ("public", "unprotected", "void_because"):
        _check_lines(name, ours[name], list(getattr(again, name)), added.get(name, []))
    _check_declared(plan)
    _check_names(plan)


def stem(line: str) -> str:
    """A sentence on inference without what settings of predictions, which may change, add."""
    return _ADDED.sub("", line)


def _check_settings(ours: Mapping[str, Any], theirs: Mapping[str, Any], kind: type) -> None:
    """Of a setting that a plan does not name, as one that is new, the usual value is taken."""
    usual = {name: field.default for name, field in setting_fields(kind).items()}
    for name in sorted(ours.keys() | theirs.keys()):
        value = ours[name] if name in ours else usual.get(name)
        value = list(value) if isinstance(value, tuple) else value
        _compare(f"the setting {name}", value, theirs.get(name))


def _check_parts(plan: Plan, ours: Sequence[Any], theirs: Sequence[Any]) -> None:
    """The same parts in the same order; after them, what was released before stands in the data."""
    kinds = [(part["kind"], part["name"]) for part in theirs]
    _compare("the parts", [(part["kind"], part["name"]) for part in ours[: len(theirs)]], kinds)
    for mine, its in zip(ours, theirs, strict=False):
        _compare(f"the part {its['name']}", mine, its)
    for part in plan.parts[len(theirs) :]:
        if not isinstance(part, Earlier) or plan.unit != "node" or plan.sampled_at < 1:
            raise ValueError(f"it has the part {part.name!r}, which '{plan.method}' does not plan")


def _check_lines(name: str, ours: list[str], first: list[str], last: list[str]) -> None:
    """Lines of the method first, those of a search last; what stands between is the data's."""
    middle = len(ours) - len(first) - len(last)
    if middle < 0 or ours[: len(first)] != first or ours[len(ours) - len(last) :] != last:
        missing = next((line for line in (*first, *last) if line not in ours), None)
        what = "lines in another order" if missing is None else f"not {missing!r}"
        raise ValueError(f"{name} has {what}, as its method has")


def _check_declared(plan: Plan) -> None:
    """What is declared public is not protected, and the other way round."""
    for line in plan.public:
        if DECLARED_PUBLIC in line and line not in plan.unprotected:
            raise ValueError(f"unprotected has not {line!r}, which is declared public")
    for line in plan.unprotected:
        if line not in plan.public:
            raise ValueError(f"public has not {line!r}, which is not protected")


def _check_names(plan: Plan) -> None:
    """A record and its owner are called by words, where the unit is one of them."""
    named = {"owner_name": plan.unit == "owner", "record_name": plan.unit in _NAMED}
    for name, fits in named.items():
        word = getattr(plan, name)
        if word is not None and not (fits and isinstance(word, str) and _validate.is_name(word)):
            raise ValueError(
                f"{name} is {_validate.shown(word)}, and must be a word under a unit that is one"
            )


def _compare(name: str, value: Any, expected: Any) -> None:
    """Refuse a value that is another one; of numbers a last digit may differ."""
    if isinstance(value, Mapping) and isinstance(expected, Mapping):
        for key in (*expected, *(key for key in value if key not in expected)):
            if key not in value or key not in expected:
                which = "lacks" if key not in value else "has"
                raise ValueError(f"{name} {which} {key!r}, and its method makes it otherwise")
            _compare(f"{key} of {name}", value[key], expected[key])
        return
    if _is_number(value) and _is_number(expected):
        follows = _FOUND.fullmatch(name.partition(" of ")[0])
        alike = math.isclose(value, expected, rel_tol=_ABOUT if follows else _CLOSE)
        if alike or value == expected:
            return
    elif type(value) is type(expected) and value == expected:
        return
    raise ValueError(
        f"{name} is {_validate.shown(value)}, and its method makes it {_validate.shown(expected)}"
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
