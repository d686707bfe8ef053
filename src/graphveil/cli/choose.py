"""Which method to take."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from graphveil.cli import _choosing, _plans, _settings
from graphveil.cli import _options as option
from graphveil.cli._output import Result

if TYPE_CHECKING:
    from graphveil.methods.choosing import Choice


@click.command()
@_plans.known_data
@click.option("--nodes", type=int, help="How many nodes the graph has.")
@click.option("--graphs", type=int, help="How many graphs there are, each a record.")
@_plans.sizes
@_choosing.questions
@click.option("--epsilon", type=float, help="What may be spent.")
@option.delta
@option.as_json
def choose(as_json: bool, **given: Any) -> None:
    """The method to take, its plan and why, by public facts alone.

    \b
    graphveil choose
    graphveil choose --data pubmed --epsilon 1
    graphveil choose --nodes 50000 --features 64 --classes 5 --epsilon 1 --shown-to themselves

    What is missing is asked for where there is a terminal.
    """
    asked = {key: value for key, value in given.items() if value is not None}
    if {"nodes", "graphs"} <= asked.keys():
        raise click.UsageError("Give '--nodes' for one graph or '--graphs' for many, not both.")
    if not as_json and _has_terminal():
        asked = _ask(asked)
    _settings.require(asked, "epsilon")
    record = "graph" if "graphs" in asked or asked.get("unit") == "graph" else "node"
    sizes = {key: asked.get(key) for key in (*_plans.SIZES, "train", "directed")}
    sizes["nodes"] = asked.get("graphs", sizes["nodes"])
    choice = _choosing.choose_asked(asked, _plans.planned_facts(asked, sizes, record))
    _result(choice, asked).show(as_json)


def _result(choice: Choice, asked: Mapping[str, Any]) -> Result:
    """The method, why, its plan, the others, and how to go on."""
    plan = choice.plan
    shown = _plans.plan_result(plan, plan.certificate())
    result = Result(f"Take {choice.method}")
    result.add("method", choice.method)
    result.add("why", list(choice.why), "why")
    result.update({"unit": choice.unit, "shown_to": choice.shown_to, "mode": choice.mode})
    result.update({"settings": dict(choice.settings)})
    result.row("predictions", choice.prediction)
    result.add("plan", shown.json())
    for label, text in shown.rows():
        result.row(label, text)
    result.add("others", dict(choice.others))
    for name, reason in choice.others.items():
        result.row(f"not {name}", reason)
    result.add("command", _command(choice, asked), "next")
    return result


def _command(choice: Choice, asked: Mapping[str, Any]) -> str:
    """The command that trains what was chosen."""
    words = ["graphveil", "train", choice.method, "--data", asked.get("data", "PATH")]
    for name in ("epsilon", "delta", "split", "train_share", "thinned"):
        if name in asked:
            value = asked[name]
            text = value if isinstance(value, str) else f"{value:g}"
            words += [f"--{name.replace('_', '-')}", text]
    if "fractions" in asked:
        words += ["--fractions", ",".join(f"{share:g}" for share in asked["fractions"])]
    if "directed" in asked:
        words.append("--directed" if asked["directed"] else "--undirected")
    for name, value in choice.settings.items():
        words += ["--set", f"{name}={value}"]
    return shlex.join([*words, "--out", f"runs/{choice.method}"])


# --- questions ------------------------------------------------------------------------------------


def _has_terminal() -> bool:
    """Whether somebody is there to answer."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def _ask(asked: dict[str, Any]) -> dict[str, Any]:
    """What was given, and the answers to what was not."""
    from graphveil.data.catalog import sizes_of
    from graphveil.methods.choosing import SHOWN_TO

    answers = dict(asked)
    if "data" not in answers:
        _ask_sizes(answers)
    known = None if "data" not in answers else sizes_of(answers["data"])
    of_graphs = "graphs" in answers or (known is not None and known.record == "graph")
    if "unit" not in answers and not of_graphs:
        click.echo("node: with its row, label and edges.", err=True)
        click.echo("edge: rows and labels are public.", err=True)
        answers["unit"] = _prompt("What is protected", click.Choice(["node", "edge"]), "node")
    if answers.get("unit") == "edge" and known is None and "directed" not in answers:
        answers["directed"] = click.confirm("Do edges have a direction", default=False, err=True)
    if "shown_to" not in answers and answers.get("split") != "inductive":
        for word, meaning in SHOWN_TO.items():
            click.echo(f"{word}: {meaning}.", err=True)
        answers["shown_to"] = _prompt("Who sees predictions", click.Choice(list(SHOWN_TO)), "owner")
    if "epsilon" not in answers:
        answers["epsilon"] = _prompt("What may be spent (epsilon)", float)
    return answers


def _ask_sizes(answers: dict[str, Any]) -> None:
    """Add the sizes that are missing."""
    if not {"nodes", "graphs"} & answers.keys():
        graphs = answers.get("unit") == "graph" or (
            "unit" not in answers
            and _prompt("What gets a class", click.Choice(["node", "graph"]), "node") == "graph"
        )
        answers["graphs" if graphs else "nodes"] = _prompt("How many are there", int)
    for name, question in (
        ("features", "How many feature columns"),
        ("classes", "How many classes"),
    ):
        if name not in answers:
            answers[name] = _prompt(question, int)
    drawn = {"train", "split", "fractions", "train_share"} & answers.keys()
    if not drawn:
        count = answers["graphs"] if "graphs" in answers else answers["nodes"]
        answers["train"] = _prompt("How many are trained on", int, max(1, count * 3 // 4))


def _prompt(question: str, kind: Any, default: Any = None) -> Any:
    return click.prompt(question, type=kind, default=default, err=True)
