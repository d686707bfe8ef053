"""How models learn, step by step."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import click

from graphveil.cli._asked import check_setting, is_private, made
from graphveil.cli._shared import (
    bar,
    classes_option,
    delta_option,
    directed_option,
    force_option,
    json_option,
    root_option,
    show_table,
    split_option,
)
from graphveil.cli.comparing import METHOD_NAMES, _spec
from graphveil.cli.training import check_file

NOTE = (
    "The curves are read off the labels of test records: outside every certificate, and a release "
    "if shown."
)


@click.command(epilog=f"Methods: {METHOD_NAMES}.")
@click.option("--data", required=True, help="A name of the catalog, or a path.")
@root_option
@click.option("--methods", required=True, help="NAME or NAME:KEY=VALUE+KEY=VALUE, with commas.")
@click.option("--epsilon", type=float, help="What each private run may spend.")
@delta_option
@click.option("--every", type=int, default=5, show_default=True, help="Steps between two looks.")
@click.option("--seed", type=int, default=0, show_default=True)
@split_option
@classes_option
@directed_option
@click.option("--out", required=True, help="A file for the picture: .png, .svg or .pdf.")
@force_option
@json_option
def curves(
    data: str,
    root: str | None,
    methods: str,
    epsilon: float | None,
    delta: float | None,
    every: int,
    seed: int,
    split: str | None,
    classes: str | None,
    directed: bool | None,
    out: str,
    force: bool,
    as_json: bool,
) -> None:
    """The loss on test records while models learn, as a picture.

    \b
    graphveil curves --data synthetic-er --epsilon 5 --out curves.png \\
        --methods graph-dpsgd:conv=gcn,graph-dpsgd:conv=gat,graph-dpsgd:conv=sage
    """
    from graphveil.report import plots

    plots.require_matplotlib()
    check_file(out, force)
    asked, labels = [], []
    for text in (each.strip() for each in methods.split(",") if each.strip()):
        kind, own = _spec(text)
        settings = {key: check_setting(kind, key, value) for key, value in own.items()}
        private: dict[str, Any] = {"epsilon": epsilon, "delta": delta} if is_private(kind) else {}
        asked.append(made(kind, settings, seed=seed, **private))
        labels.append(text)

    from graphveil import bench, runs

    source = runs.Source(
        data=data, root=root, split=split, seed=seed, classes=classes, directed=directed
    )
    arranged = source.arrange(source.load())
    found = bench.loss_curves(
        replace(arranged, mode=None), asked, labels, every=every, progress=bar("learning")
    )
    path = plots.loss_curves(found, out, data)
    result = {
        "data": data,
        "epsilon": epsilon,
        "curves": [asdict(curve) for curve in found],
        "out": str(path),
        "note": NOTE,
    }
    show_table(
        result,
        as_json,
        f"Loss on the test records of {data}",
        ["method", "steps", "first loss", "last loss", "last accuracy"],
        [
            [
                curve.label,
                str(curve.steps[-1]),
                f"{curve.loss[0]:.3f}",
                f"{curve.loss[-1]:.3f}",
                f"{curve.accuracy[-1]:.1%}",
            ]
            for curve in found
        ],
        [f"Written to {path}.", NOTE],
    )
