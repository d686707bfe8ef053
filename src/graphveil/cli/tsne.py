"""What trained models see, as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from graphveil.cli import _options as option
from graphveil.cli._output import Result, check_picture, figure, track
from graphveil.cli._runs import run_json

NOTE = {
    "test": "Classes are read off the labels of test records, and every point off a record's own "
    "data: the picture is outside every certificate, and a release if shown.",
    "train": "Every point is read off a training record's own data, which the certificate protects "
    "in the weights alone: nothing is promised about the picture, which is for whoever may see "
    "those records.",
}

_WHICH = {"train": "training ", "test": "test ", "all": ""}
_WHAT = {"hidden": "last hidden states", "output": "log-probabilities"}


@click.command()
@click.argument("runs", nargs=-1, required=True)
@click.option("--out", required=True, help="The picture: .png, .svg or .pdf.")
@option.root
@click.option(
    "--of",
    "what",
    type=click.Choice(["hidden", "output"]),
    help="The last hidden states, or the log-probabilities. Default: hidden where there are some.",
)
@click.option(
    "--nodes",
    type=click.Choice(["train", "test", "all"]),
    default="test",
    help="Which of the labelled ones. Default: test.",
)
@click.option("--most", type=int, default=2000, help="How many of them, at most.")
@option.force
@option.as_json
def tsne(
    runs: tuple[str, ...],
    out: str,
    root: str | None,
    what: str | None,
    nodes: str,
    most: int,
    force: bool,
    as_json: bool,
) -> None:
    """Nodes as trained models see them, as a picture.

    The picture is the t-SNE of what each run's network holds of a node before it decides, side by
    side. Nodes of a class that stand together are told apart. Every run is asked about its own
    nodes in the way it was measured, and their labels give the colours: like the accuracy, the
    picture is outside every certificate.

    \b
    graphveil tsne runs/eps1 runs/eps8 runs/open --out epsilon.png
    graphveil tsne runs/eps1 runs/open --nodes train --of hidden --out training.png
    """
    check_picture(out, force)

    from graphveil import _validate
    from graphveil import runs as trained
    from graphveil.bench.hidden import embeddings
    from graphveil.report import plots

    _validate.integer("most", most, "[10, 1e6]")
    result, panels, described, names = Result("t-SNE"), [], [], []
    for run in track("arranging nodes", runs):
        method, arranged = trained.Run(run).read(), trained.Run(run).arrange(root)
        rows, y, shown = embeddings(method, arranged, nodes, what)
        name = f"{method.name}, not private"
        if method.private:
            name = f"{method.name}, epsilon {figure(method.certificate_.guarantee.epsilon)}"
        panels.append((name, rows, y))
        names.append(trained.Run(run).record().asked.class_names)
        described.append({**run_json(run, method), "of": shown})
        result.row(name, f"{min(len(y), most):,} {_WHICH[nodes]}records, {_WHAT[shown]}")
    panels, common = _join_classes(panels, names)
    plots.neighbourhoods(panels, out, most=most, names=common)
    result.update({"runs": described, "nodes": nodes})
    result.add("out", out, "written to")
    result.add("note", NOTE["test" if nodes == "test" else "train"], "note")
    result.show(as_json)


def _join_classes(
    panels: Sequence[tuple[str, Any, Any]], names: Sequence[Sequence[str] | None]
) -> tuple[list[tuple[str, Any, Any]], list[str] | None]:
    """The panels under one numbering of classes, and its names: one class has one colour.

    Runs whose data left out classes (``--min-class``) number the others anew. Without names of
    every run classes keep their numbers, and have no names unless those fit all of them.
    """
    lists = [list(one) for one in names if one is not None]
    if len(lists) < len(panels):
        largest = max((int(y.max()) for *_, y in panels if len(y)), default=0)
        return list(panels), next((one for one in lists if len(one) > largest), None)
    union = list(dict.fromkeys(name for one in sorted(lists, key=len)[::-1] for name in one))
    joined = [
        (title, rows, y.new_tensor([union.index(own[int(c)]) for c in y.tolist()]))
        for (title, rows, y), own in zip(panels, lists, strict=True)
    ]
    return joined, union
