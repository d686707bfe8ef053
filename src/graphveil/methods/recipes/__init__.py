"""Recipes: the settings of published experiments, by name.

    recipe = read("daigavane-arxiv-adam")
    recipe.make().fit(data)                 # the epsilon that the paper claims
    recipe.make(epsilon=8, steps=500)       # with changes

A recipe is a table in one of the TOML files beside this one, a file for each paper::

    [daigavane-arxiv-adam]
    title = "DP-GNN on ogbn-arxiv, Adam"
    source = "Daigavane et al. 2021, Table 6"
    method = "dp-gnn"
    data = "ogbn-arxiv:undirected"
    epsilon = 30
    differs = ["Weights start from another seed."]
    settings = { paper = true, steps = 3000 }

*Guarantee*: a recipe promises nothing; the certificate of its run says what is claimed, and what is
proven.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from typing import TYPE_CHECKING, Any

from graphveil import _validate
from graphveil._errors import InvalidInputError
from graphveil._inputs import toml_of
from graphveil._schema import NUMBER, Schema, check_table

if TYPE_CHECKING:
    from graphveil.methods.base import Method

_KEYS: Schema = {
    **dict.fromkeys(("title", "source", "method", "data"), str),
    **dict.fromkeys(("epsilon", "delta"), NUMBER),
    "differs": list,
    "settings": dict,
}
_FOLDER = resources.files("graphveil.methods") / "recipes"


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A published experiment's method and settings.

    ``data`` is what the paper ran it on, ``epsilon`` what the paper claims for it, None in the
    open. ``differs`` says in a sentence each what the paper did otherwise.
    """

    name: str
    title: str
    source: str
    method: str
    data: str | None = None
    epsilon: float | None = None
    delta: float | None = None
    differs: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)

    def make(self, **changes: Any) -> Method:
        """The method, not yet fitted; ``changes`` go before the recipe's settings."""
        from graphveil.methods import METHODS

        return METHODS[self.method](**{**self.budget, **self.settings, **changes})

    @property
    def budget(self) -> dict[str, float]:
        """What the paper spends, as far as the recipe says so."""
        stated = {"epsilon": self.epsilon, "delta": self.delta}
        return {name: value for name, value in stated.items() if value is not None}


_RECIPES: dict[str, Recipe] = {}


def recipes() -> dict[str, Recipe]:
    """Every recipe, by its name."""
    if not _RECIPES:
        for path in sorted(_FOLDER.iterdir(), key=lambda path: path.name):
            if path.name.endswith(".toml"):
                _RECIPES.update(_read_file(path.name, path.read_text(encoding="utf-8")))
    return dict(_RECIPES)


def read(name: str) -> Recipe:
    """The recipe of that name, or one line with all names."""
    known = recipes()
    if name not in known:
        raise InvalidInputError(
            "A recipe must be a name that 'graphveil recipes' lists. Got "
            f"{_validate.shown(name)} instead{_validate.near(name, known)}"
        )
    return known[name]


def _read_file(file: str, text: str) -> dict[str, Recipe]:
    made = {}
    for name, table in toml_of(text).items():
        check_table(table, _KEYS, f"{file}: [{name}]", required=("title", "source", "method"))
        made[name] = Recipe(name=name, **{**table, "differs": tuple(table.get("differs", ()))})
    return made
