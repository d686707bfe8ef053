"""The small version of a description: what ``--quick`` runs.

    [quick]
    data = ["cora:full"]                 # a part of the data, or stand-ins
    only = ["DP-GNN"]                    # runs whose names contain one of these
    settings = { steps = 20 }            # over every run's settings, where the method has them
    recipe_settings = { epochs = 2 }     # over those of runs by a recipe
    vary = { epsilon = [1, 8] }          # instead of lists of the same key
    seeds = 1

Without such a part: one seed, the first data set at hand, the first two epsilons.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from graphveil._errors import InvalidInputError
from graphveil._schema import Schema, check_table

_KEYS: Schema = {
    **dict.fromkeys(("data", "only"), list),
    **dict.fromkeys(("settings", "recipe_settings", "vary"), dict),
    "seeds": int,
}
_FIGURES = ("published", "deviation", "at_least")


def make_quick(content: Mapping[str, Any], place: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The content of the small description, and what a description is told besides."""
    part = content.get("quick")
    small = {key: value for key, value in content.items() if key != "quick"}
    if part is None:
        small |= {"seeds": 1, "run": [_shorten(dict(run)) for run in content["run"]]}
        return small, {"first_only": True, "shortened": _describe({})}
    check_table(part, _KEYS, f"{place}: [quick]")
    data, replaced = _data(content, part, place)
    runs = [run for run in content["run"] if _is_wanted(run, content, part)]
    if not runs:
        raise InvalidInputError(f"{place}: [quick] must leave a run or more by 'only'. Got none.")
    runs = [_put(dict(run), part, data) for run in runs]
    small |= {"seeds": part.get("seeds", 1), "run": runs, "data": data}
    small["stand_in"] = {
        name: other for name, other in content.get("stand_in", {}).items() if name in data
    }
    return small, {"replaced": frozenset(replaced), "shortened": _describe(part)}


def _describe(part: Mapping[str, Any]) -> str:
    """What the small version runs otherwise, as a sentence."""
    seeds = part.get("seeds", 1)
    shown = [
        f"{of} with " + ", ".join(f"{key}={value}" for key, value in part[key_of].items())
        for key_of, of in (("settings", "runs"), ("recipe_settings", "recipes"))
        if part.get(key_of)
    ]
    shorter = f", {' and '.join(shown)}. Its figures are those of shorter runs" if shown else ""
    return (
        f"The small version: {seeds} seed{'' if seeds == 1 else 's'}, some of the data and runs"
        f"{shorter}."
    )


def _data(
    content: Mapping[str, Any], part: Mapping[str, Any], place: str
) -> tuple[list[str], list[str]]:
    """Which of the description's data run, and whose stand-ins run in their place."""
    stand_in = content.get("stand_in", {})
    of_stand_in = {other: name for name, other in reversed(list(stand_in.items()))}
    data, replaced = [], []
    for name in part.get("data", content["data"]):
        if name not in content["data"] and name not in of_stand_in:
            raise InvalidInputError(
                f"{place}: [quick] must name data of 'data', or stand-ins of 'stand_in'. Got "
                f"{name!r} instead."
            )
        if name not in content["data"]:
            name = of_stand_in[name]
            replaced.append(name)
        data.append(name)
    return list(dict.fromkeys(data)), replaced


def _is_wanted(run: Mapping[str, Any], content: Mapping[str, Any], part: Mapping[str, Any]) -> bool:
    name = str(run.get("name", run.get("method", "")))
    only = part.get("only", [])
    return not only or name == content.get("reference") or any(str(word) in name for word in only)


def _put(run: dict[str, Any], part: Mapping[str, Any], data: list[str]) -> dict[str, Any]:
    """The run with the small description's settings and lists, and its own figures for them."""
    from graphveil.bench.description import follow_recipe
    from graphveil.methods import METHODS
    from graphveil.methods.settings import setting_fields

    kind = METHODS.get(follow_recipe(run, "[quick]")["method"])
    known = {} if kind is None else setting_fields(kind)
    small = {
        **part.get("settings", {}),
        **(part.get("recipe_settings", {}) if "recipe" in run else {}),
    }
    wanted = {key: value for key, value in small.items() if key in known}
    run["settings"] = {**run.get("settings", {}), **wanted}
    run = _vary(
        run, {key: part["vary"][key] for key in part.get("vary", {}) if key in run.get("vary", {})}
    )
    for kind_of in _FIGURES:
        if kind_of in run:
            run[kind_of] = {name: value for name, value in run[kind_of].items() if name in data}
        if f"{kind_of}_of" in run:
            run[f"{kind_of}_of"] = {
                metric: {name: value for name, value in by_data.items() if name in data}
                for metric, by_data in run[f"{kind_of}_of"].items()
            }
    return run


def _shorten(run: dict[str, Any]) -> dict[str, Any]:
    """The run with its first two epsilons."""
    epsilons = run.get("vary", {}).get("epsilon")
    if not isinstance(epsilons, list) or len(epsilons) < 3:
        return run
    return _vary(run, {"epsilon": epsilons[:2]})


def _vary(run: dict[str, Any], changes: Mapping[str, list[Any]]) -> dict[str, Any]:
    """The run with other lists to vary; figures stay with the values they are about."""
    for key, values in changes.items():
        before = run["vary"][key]
        run["vary"] = {**run["vary"], key: list(values)}
        for kind in _FIGURES:
            if kind in run:
                run[kind] = _align(run[kind], before, values)
            if f"{kind}_of" in run:
                run[f"{kind}_of"] = {
                    metric: _align(by_data, before, values)
                    for metric, by_data in run[f"{kind}_of"].items()
                }
    return run


def _align(by_data: Mapping[str, Any], before: list[Any], values: list[Any]) -> dict[str, Any]:
    """Figures in the order of other values; nan for values that there were none for."""
    return {
        name: _pick(figures if isinstance(figures, list) else [figures], before, values)
        for name, figures in by_data.items()
    }


def _pick(figures: list[Any], before: list[Any], values: list[Any]) -> list[Any]:
    if len(figures) != len(before):  # of another key, or wrong: reading says so
        return figures
    return [figures[before.index(one)] if one in before else math.nan for one in values]
