"""Grids of plans that take no time, and forgeries of runs."""

import hashlib
import json
from dataclasses import replace

from graphveil.graph.public_lines import shorten
from graphveil.methods import Plan
from graphveil.privacy.guarantee import charges_from_json


def trimmed(axes, names, most=2):
    """Sliders of some names with few values, among them the one asked for: plans take a while."""
    short = []
    for axis in axes:
        first = max(0, axis.asked + 1 - most)
        values = axis.values[first : first + most]
        if axis.name in names:
            short.append(replace(axis, values=values, asked=axis.asked - first))
    return short


def edit_plan(directory, edit):
    """Edit the plan of a run, and make anew all that was written of it, so that it agrees."""
    plan, settings = directory / "plan.json", directory / "settings.json"
    content, asked = json.loads(plan.read_text()), json.loads(settings.read_text())
    edit(content["plan"])
    plan.write_text(json.dumps(content))
    asked["plan_sha256"] = hashlib.sha256(plan.read_bytes()).hexdigest()
    asked["settings"].update(content["plan"]["settings"])
    settings.write_text(json.dumps(asked))
    events = json.loads((directory / "events.json").read_text())
    certificate = Plan.from_json(content["plan"]).certificate(
        charges_from_json(events["charges"]),
        void_because=events["void_because"],
        inference=events["inference"],
    )
    (directory / "certificate.json").write_text(certificate.to_json())


def rename_classes(directory, names):
    """Call the classes of a run otherwise, wherever they are named."""
    settings = directory / "settings.json"
    content = json.loads(settings.read_text())
    settings.write_text(json.dumps({**content, "class_names": list(names)}))
    start = "the names of the classes: "

    def edit(plan):
        plan["public"] = [
            f"{start}{shorten(names)}" if line.startswith(start) else line
            for line in plan["public"]
        ]

    edit_plan(directory, edit)
