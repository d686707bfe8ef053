"""Quick settings of methods, for audits."""

import dataclasses

from graphveil.audit import cases
from graphveil.methods import METHODS

QUICK = {"steps": 4, "hidden_channels": 4, "open_steps": 4}
PRIVATE = [name for name, kind in METHODS.items() if kind.private and kind.record != "link"]


def make(name, **settings):
    """A method with quick settings, as far as it has them."""
    known = {field.name for field in dataclasses.fields(METHODS[name])}
    quick = {key: value for key, value in QUICK.items() if key in known}
    quick |= {"epsilon": 8.0} if METHODS[name].private else {}
    return METHODS[name](**(quick | settings))


def make_short(name, **settings):
    """With two steps: enough for what shows in every step."""
    known = {field.name for field in dataclasses.fields(METHODS[name])}
    return make(name, **({key: 2 for key in ("steps", "open_steps") if key in known} | settings))


def data_of(name, case=None):
    """A graph, or graphs, that a method can be trained on."""
    known = cases.graph_cases() if METHODS[name].record == "graph" else cases.node_cases()
    return known[next(iter(known)) if case is None else case]
