"""What trained models see, as a picture."""

from __future__ import annotations

import click

from graphveil.cli import _options as option
from graphveil.cli._output import Result, check_picture, figure, track
from graphveil.cli._runs import run_json


@click.command()
@click.argument("runs", nargs=-1, required=True)
@click.option("--out", required=True, help="The picture: .png, .svg or .pdf.")
@option.root
@click.option("--nodes", type=int, default=2000, help="How many test nodes, at most.")
@option.force
@option.as_json
def tsne(
    runs: tuple[str, ...], out: str, root: str | None, nodes: int, force: bool, as_json: bool
) -> None:
    """The test nodes as trained models see them, as a picture.

    The picture is the t-SNE of each run's log-probabilities, side by side. Nodes of a class that
    stand together are told apart. Every run is asked about its own test nodes in the way it was
    measured, and their labels give the colours: like the accuracy, the picture is outside every
    certificate.

    \b
    graphveil tsne runs/eps1 runs/eps8 runs/open --out epsilon.png
    """
    check_picture(out, force)

    from graphveil import _validate
    from graphveil import runs as trained
    from graphveil.methods.task import OUTSIDE
    from graphveil.report import plots

    _validate.integer("nodes", nodes, "[10, 1e6]")
    result, panels, described = Result("t-SNE"), [], []
    for run in track("arranging nodes", runs):
        method, arranged = trained.Run(run).read(), trained.Run(run).arrange(root)
        testing = arranged.testing
        tested = (testing.test_mask & (testing.y >= 0)).nonzero().flatten()
        chances = method.predict_proba(testing, mode=arranged.mode)[tested]
        name = f"{method.name}, not private"
        if method.private:
            name = f"{method.name}, epsilon {figure(method.certificate_.guarantee.epsilon)}"
        panels.append((name, chances.clamp_min(1e-12).log(), testing.y[tested]))
        described.append(run_json(run, method))
        result.row(name, f"{min(len(tested), nodes):,} test records")
    plots.neighbourhoods(panels, out, most=nodes)
    result.update({"runs": described})
    result.add("out", out, "written to")
    result.add("note", OUTSIDE, "note")
    result.show(as_json)
