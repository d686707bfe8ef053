"""Recipes: their files, what they make, and how a command line changes them."""

import pytest

from graphveil._errors import InvalidInputError
from graphveil.cli import _settings
from graphveil.methods import METHODS, recipes

TEXT = """
[one]
title = "An experiment"
source = "Somebody 2020, Table 1"
method = "dp-mlp"
epsilon = 2
delta = 1e-6
differs = ["Another seed."]
settings = { steps = 7, optimizer = "sgd", momentum = 0.0 }
"""


@pytest.fixture
def one(monkeypatch):
    made = recipes._read_file("own.toml", TEXT)
    monkeypatch.setattr(recipes, "_RECIPES", made)
    return made["one"]


def test_a_recipe_makes_its_method(one):
    method = one.make()
    assert (method.name, method.epsilon, method.delta, method.steps) == ("dp-mlp", 2, 1e-6, 7)
    assert one.make(epsilon=1, steps=3).steps == 3


def test_options_and_settings_go_before_a_recipe(one):
    asked = _settings.merge(None, {"recipe": "one", "epsilon": 5.0}, ["steps=9"])
    assert (asked["method"], asked["epsilon"], asked["delta"]) == ("dp-mlp", 5.0, 1e-6)
    assert asked["settings"] == {"steps": 9, "optimizer": "sgd", "momentum": 0.0}


def test_a_recipe_of_another_method_is_refused(one):
    with pytest.raises(InvalidInputError, match="is one of the method 'dp-mlp'"):
        _settings.merge(None, {"recipe": "one", "method": "gap"}, [])


def test_an_unknown_recipe_is_told_the_nearest_one(one):
    with pytest.raises(InvalidInputError, match=r"Got 'ones' instead; did you mean one\?"):
        recipes.read("ones")
    with pytest.raises(InvalidInputError, match=r"'graphveil recipes' lists\. Got 'x' instead\."):
        recipes.read("x")


@pytest.mark.parametrize("line", ['title = "x"', "steps = 3"])
def test_a_damaged_recipe_is_refused(line):
    with pytest.raises(InvalidInputError, match=r"own.toml: \[one\]"):
        recipes._read_file("own.toml", f"[one]\n{line}\n")


@pytest.mark.parametrize("recipe", recipes.recipes().values(), ids=lambda recipe: recipe.name)
def test_a_recipe_can_be_made(recipe):
    method = recipe.make()
    assert isinstance(method, METHODS[recipe.method])
    assert method.private == (recipe.epsilon is not None)
    assert all(sentence.endswith(".") for sentence in recipe.differs)


def test_a_recipe_may_stand_in_the_place_of_a_method(one):
    ((word, kind, settings),) = _settings.parse_methods("one:steps=3")
    assert (word, kind) == ("one:steps=3", METHODS["dp-mlp"])
    assert settings == {"steps": 3, "optimizer": "sgd", "momentum": 0.0}
    with pytest.raises(InvalidInputError, match="'method'"):
        _settings.parse_methods("nobody")


def test_a_recipe_names_its_own_data_unless_other_data_is_asked_for(monkeypatch):
    text = TEXT.replace('method = "dp-mlp"', 'method = "dp-mlp"\ndata = "social"')
    monkeypatch.setattr(recipes, "_RECIPES", recipes._read_file("own.toml", text))
    assert _settings.merge(None, {"recipe": "one"}, [])["data"] == "social"
    assert _settings.merge(None, {"recipe": "one", "data": "cora"}, [])["data"] == "cora"
