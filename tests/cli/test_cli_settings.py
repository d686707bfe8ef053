"""Settings by their type hints: what fits, what is refused in one line, and what help says."""

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import pytest

from graphveil._errors import InvalidInputError
from graphveil.cli._settings import check_setting, describe_own
from graphveil.methods import METHODS
from graphveil.methods.settings import setting_fields


@dataclass
class Toy:
    """Looks like a method."""

    name: ClassVar[str] = "toy"
    epsilon: float
    conv: Literal["gcn", "gin"] = field(default="gcn", metadata={"doc": "Which convolution."})
    rate: float | None = field(default=None, metadata={"doc": "How often.", "within": "(0, 1]"})
    steps: int = 10
    paper: bool = False
    cap: Literal["out", "in"] | None = None
    word: str = "x"
    shares: Any = 0.5
    seed: int = 0


@pytest.mark.parametrize(
    ("key", "value", "taken"),
    [
        ("conv", "gin", "gin"),
        ("rate", 1, 1),
        ("rate", 0.5, 0.5),
        ("rate", "none", None),
        ("rate", None, None),
        ("steps", 3, 3),
        ("paper", True, True),
        ("cap", "in", "in"),
        ("shares", 3, 3),
        ("cap", "None", None),
        ("word", "none", "none"),
        ("shares", {"a": 1}, {"a": 1}),
        ("shares", [1, 2.5], [1, 2.5]),
        ("shares", "even", "even"),
    ],
)
def test_what_fits_a_hint_is_taken(key, value, taken):
    assert check_setting(Toy, key, value) == taken


@pytest.mark.parametrize(
    ("key", "value", "rule"),
    [
        ("conv", "gat", "one of 'gcn', 'gin'. Got 'gat'"),
        ("conv", "none", "one of 'gcn', 'gin'. Got 'none'"),
        ("rate", "often", "a number in (0, 1]. Got 'often'"),
        ("rate", True, "a number in (0, 1]. Got True"),
        ("rate", float("nan"), "a number in (0, 1]. Got nan"),
        ("rate", 2, "a number in (0, 1]. Got 2"),
        ("steps", 1.5, "a whole number. Got 1.5 instead; write it without a point."),
        ("steps", "none", "a whole number in (-inf, inf). Got 'none'"),
        ("steps", True, "a whole number in (-inf, inf). Got True"),
        ("paper", 1, "true or false. Got 1"),
        ("cap", "up", "one of 'out', 'in'. Got 'up'"),
        ("word", 3, "a word. Got 3"),
        ("shares", True, "a number, a word, or a list or table of numbers. Got True"),
        ("shares", ["a"], "a number, a word, or a list or table of numbers. Got ['a']"),
        ("shares", [float("inf")], "a number, a word, or a list or table of numbers. Got [inf]"),
    ],
)
def test_what_does_not_fit_is_one_line_with_the_rule(key, value, rule):
    with pytest.raises(InvalidInputError) as error:
        check_setting(Toy, key, value)
    sentence = rule if rule.endswith(".") else f"{rule} instead."
    assert str(error.value) == f"The '{key}' parameter must be {sentence}"


def test_help_has_documentation_kind_interval_and_default():
    assert dict(describe_own(Toy)) == {
        "conv": "Which convolution. gcn | gin, default 'gcn'.",
        "rate": "How often. float | None in (0, 1], default None.",
        "steps": "int, default 10.",
        "paper": "bool, default False.",
        "cap": "out | in | None, default None.",
        "word": "str, default 'x'.",
        "shares": "any, default 0.5.",
    }


@pytest.mark.parametrize("name", METHODS)
def test_every_setting_of_every_method_is_described(name):
    own = set(setting_fields(METHODS[name])) - {"epsilon", "delta", "seed"}
    assert set(dict(describe_own(METHODS[name]))) == own


@pytest.mark.parametrize("command", ["plan", "train", "tune", "sweep"])
def test_help_teaches_methods_and_then_settings(run, command):
    code, out, err = run(f"{command} --help")
    assert (code, err) == (0, "")
    assert all(name in out for name in METHODS)
    assert "sender_cap " not in out.partition("Methods:")[2]
    for line in (f"{command} dp-gnn --help", f"{command} --help dp-gnn"):
        code, out, err = run(line)
        assert (code, err) == (0, "")
        settings = out.partition("Settings of dp-gnn, by --set KEY=VALUE:")[2]
        assert all(key in settings for key, _ in describe_own(METHODS["dp-gnn"]))
        assert "Private steps. int in [1, 1e9], default " in " ".join(settings.split())
