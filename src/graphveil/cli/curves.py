"""How models learn, step by step."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import click

from graphveil.cli import _options as option
from graphveil.cli._notices import notices
from graphveil.cli._output import Result, bar, check_picture
from graphveil.cli._runs import make_source
from graphveil.cli._settings import MethodCommand, make, parse_methods

NOTE = (
    "The curves are read off the labels of test records: outside every certificate, and a release "
    "if shown."
)


@click.command(cls=MethodCommand)
@option.data
@click.option("--methods", required=True, help="NAME or NAME:KEY=VALUE+KEY=VALUE, with commas.")
@click.option("--epsilon", type=float, help="What each private run may spend.")
@option.delta
@click.option("--every", type=int, default=5, help="Steps between two looks.")
@click.option("--seed", type=int, default=0)
@option.source
@click.option("--out", required=True, help="A file for the picture: .png, .svg or .pdf.")
@option.force
@option.as_json
@notices()
def curves(
    methods: str,
    epsilon: float | None,
    delta: float | None,
    every: int,
    out: str,
    force: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """The loss on test records while models learn, as a picture.

    \b
    graphveil curves --data synthetic-er --epsilon 5 --out curves.png \\
        --methods graph-dpsgd:conv=gcn,graph-dpsgd:conv=gat,graph-dpsgd:conv=sage
    """
    check_picture(out, force)
    chosen, budget = parse_methods(methods), {"epsilon": epsilon, "delta": delta}
    made = [
        make(kind, own, seed=given["seed"], **(budget if kind.private else {}))
        for _, kind, own in chosen
    ]

    from graphveil import bench
    from graphveil.report import plots

    source = make_source(given)
    arranged = replace(source.arrange(source.load()), mode=None)
    labels = [text for text, _, _ in chosen]
    drawn = bench.loss_curves(arranged, made, labels, every=every, progress=bar("learning"))
    result = Result(f"Loss on the test records of {source.data}", data=source.data, epsilon=epsilon)
    result.add("curves", [asdict(curve) for curve in drawn])
    result.table(
        ["method", "steps", "first loss", "last loss", "last accuracy"],
        [
            [
                curve.label,
                str(curve.steps[-1]),
                f"{curve.loss[0]:.3f}",
                f"{curve.loss[-1]:.3f}",
                f"{curve.accuracy[-1]:.1%}",
            ]
            for curve in drawn
        ],
    )
    path = str(plots.loss_curves(drawn, out, source.data))
    result.add("out", path, "note", "Written to {}.".format)
    result.add("note", NOTE, "note")
    result.show(as_json)
