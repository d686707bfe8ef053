"""What a paper prints, beside what can be proven."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from graphveil.cli import _options as option
from graphveil.cli._output import Result, figure

if TYPE_CHECKING:
    from graphveil.privacy.field import Statement, Work


@click.group()
def claims() -> None:
    """What a paper prints for a setting, beside what can be proven for it.

    A claimed figure is the published formula's and never a guarantee; so is any other that has
    "claim" in its name. The proven one assumes what the note says. `list` and `show` are about the
    whole field: what each work claims, what holds, and where that was read.
    """


@claims.command("list")
@click.option("--markdown", is_flag=True, help="Print docs/guarantees/field.md.")
@option.as_json
def list_field(markdown: bool, as_json: bool) -> None:
    """What the works of 2021 to 2026 claim, what holds of it, and what shows it."""
    from graphveil.privacy import field, field_page

    works = field.works()
    if markdown and not as_json:
        click.echo(field_page.written(works), nl=False)
        return
    result = Result("Claims of the field", works=[_facts(work) for work in works.values()])
    columns = ["work", "year", "unit", "holds", "claimed", "proven", "checked"]
    cells = [
        [
            work.name if number == 0 else "",
            str(work.year or "") if number == 0 else "",
            statement.unit,
            statement.holds,
            *field_page.figures(statement),
            work.checked if number == 0 else "",
        ]
        for work in works.values()
        for number, statement in enumerate(work.statements)
    ]
    result.table(columns, cells)
    result.note(
        "Epsilons are those of an example: what is claimed, and what is proven for the same noise "
        "in a run that clips and samples as the proof needs, which the released code may not do. "
        "graphveil claims show NAME has the setting, the reasons, the places and the tests."
    )
    result.show(as_json)


@claims.command()
@click.argument("name")
@option.as_json
def show(name: str, as_json: bool) -> None:
    """One work of the list: its statements, why they hold or not, and what shows it."""
    from graphveil.privacy import field

    work = field.find(name)
    result = Result(work.title)
    result.update(_facts(work))
    result.row("by", work.authors if work.year is None else f"{work.authors}, {work.year}")
    result.row("reference", work.reference)
    result.row("code", work.code)
    result.row("checked", work.checked)
    for statement in work.statements:
        for label, text in _rows(statement):
            result.row(label, text)
    result.show(as_json)


def _facts(work: Work) -> dict[str, Any]:
    facts = {key: getattr(work, key) for key in ("name", "title", "authors", "year")}
    facts |= {key: getattr(work, key) for key in ("reference", "code", "checked")}
    return facts | {"statements": [_said(statement) for statement in work.statements]}


def _said(statement: Statement) -> dict[str, Any]:
    keys = ("unit", "relation", "claimed", "holds", "because", "places", "shown_by")
    facts: dict[str, Any] = {key: getattr(statement, key) for key in keys}
    example = statement.example
    facts["example"] = example and {
        "commands": example.commands,
        "source": example.source,
        "claimed_epsilon": example.claimed.claimed_epsilon,
        "proven_epsilon": example.proven.proven_epsilon,
        "delta": example.claimed.delta,
    }
    return facts


def _rows(statement: Statement) -> list[tuple[str, str]]:
    from graphveil.privacy.field_page import figures

    rows = [
        ("", ""),
        ("unit", f"{statement.unit}: {statement.relation}"),
        ("claimed", statement.claimed),
        ("holds", f"{statement.holds}. {statement.because}"),
        ("read in", "; ".join(statement.places)),
        ("shown by", "\n".join(statement.shown_by)),
    ]
    if statement.example is not None:
        claimed, proven = figures(statement)
        rows += [
            ("claimed epsilon", f"{claimed} ({statement.example.source})"),
            ("proven epsilon", proven),
            ("by", "\n".join(statement.example.commands)),
        ]
    return rows


_HELP: dict[str, tuple[Any, str]] = {
    "nodes": (int, "Training nodes."),
    "graphs": (int, "Training graphs."),
    "batch": (int, "Loss terms in a batch."),
    "max-degree": (int, "Cap on the messages of a node (K or D)."),
    "noise-ratio": (float, "The paper's sigma / (2 (K + 1) C)."),
    "noise-multiplier": (float, "Noise, in units of the clipping bound or of one message."),
    "mechanism": (click.Choice(["gm", "em0", "em1"]), "How rows are made private."),
    "rows": (int, "Private rows (M)."),
    "neighbours": (int, "Names chosen in a row (K), for em0 and em1."),
    "value-noise": (float, "Laplace scale of em1's values, in units of the clipping bound."),
    "steps": (int, "Training steps."),
    "splits": (int, "Groups the graph is split into; 1 is the whole graph."),
    "hops": (int, "Aggregation hops."),
    "unit": (click.Choice(["edge", "node"]), "What is protected."),
    "directed": (bool, "Edges are directed: one message each instead of two."),
    "weighting": (click.Choice(["similarity", "attention"]), "How messages are weighted."),
    "encoder-noise": (float, "Noise multiplier of the encoder's DP-SGD (unit node)."),
    "classifier-noise": (float, "Noise multiplier of the classifier's DP-SGD (unit node)."),
    "attention-noise": (float, "Noise multiplier of the attention's DP-SGD."),
    "attention-steps": (int, "Steps of the attention's DP-SGD."),
    "rate": (float, "Sampling rate of DP-SGD."),
    "epsilon": (float, "The epsilon the paper prints."),
    "graph-rate": (float, "Probability with which a node is kept in the sampled graph."),
    "delta": (float, "The delta of the guarantee."),
}

# Paper: what it is about, and its options; a ? marks those that may be left out.
_PAPERS = {
    "daigavane": (
        "Node-level DP-GNN: Theorem 1 for one layer.",
        "nodes batch max-degree noise-ratio steps delta",
    ),
    "igamberdiev": (
        "Graph splits for text: the moments accountant of Table 3.",
        "noise-multiplier steps splits delta",
    ),
    "mueller": (
        "Graph classification: Opacus's RDP accountant.",
        "graphs batch noise-multiplier steps delta",
    ),
    "gap": (
        "GAP: noisy aggregation over hops.",
        "hops noise-multiplier delta unit? directed? max-degree? encoder-noise? classifier-noise? "
        "rate? steps?",
    ),
    "shpilevskiy": (
        "GAP with weighted messages.",
        "weighting hops noise-multiplier delta unit? directed? attention-noise? attention-steps? "
        "rate? max-degree? encoder-noise? classifier-noise? steps?",
    ),
    "dpar": ("DPAR: the sampling rate times epsilon.", "epsilon graph-rate delta?"),
    "dpar-rows": (
        "DPAR's private rows, before sampling: Theorems 1 and 3, Corollary 1.",
        "mechanism noise-multiplier rows delta neighbours? value-noise?",
    ),
    "dpar-steps": (
        "DPAR's steps, before sampling: Theorem 2 with the released code's accountant.",
        "rate noise-multiplier steps delta",
    ),
}


def _claim_command(name: str, summary: str, words: str) -> click.Command:
    def command(as_json: bool, **settings: Any) -> None:
        from graphveil.privacy.claims import CLAIMS

        claim = CLAIMS[name](**{key: value for key, value in settings.items() if value is not None})
        result = Result("Claimed and proven")
        result.add(
            "claimed_epsilon",
            claim.claimed_epsilon,
            "claimed epsilon",
            lambda value: f"{value:.4g}  ({claim.paper})",
        )
        result.add("proven_epsilon", claim.proven_epsilon, "proven epsilon", figure)
        if claim.proven_epsilon is None:
            result.row("proven epsilon", "none")
        for key, value in claim.further.items():
            result.add(key, value, key.replace("_", " "), "{:.4g}".format)
        result.update({"delta": claim.delta, "paper": claim.paper})
        result.add("formula", claim.formula, "formula")
        result.add("flaw", claim.flaw, "flaw")
        result.add("as_run", claim.as_run, "as run")
        result.add("proven_note", claim.proven_note, "proven for")
        result.show(as_json)

    options: list[click.Parameter] = []
    for word in words.split():
        option_name, required = word.rstrip("?"), not word.endswith("?")
        kind, text = _HELP[option_name]
        flag = {"is_flag": True, "default": None} if kind is bool else {"type": kind}
        options.append(click.Option([f"--{option_name}"], required=required, help=text, **flag))
    return option.as_json(click.Command(name, callback=command, params=options, help=summary))


for _name, _paper in _PAPERS.items():
    claims.add_command(_claim_command(_name, *_paper))
