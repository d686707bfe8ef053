"""Pictures of trained models."""

from __future__ import annotations

from pathlib import Path

import click

from graphveil._errors import InvalidInputError
from graphveil.cli._shared import bar, figure, force_option, json_option, root_option, show
from graphveil.cli.training import check_file


@click.command()
@click.argument("runs", nargs=-1, required=True)
@click.option("--out", required=True, help="The picture: .png, .svg or .pdf.")
@root_option
@click.option(
    "--nodes", type=int, default=2000, show_default=True, help="How many test nodes, at most."
)
@force_option
@json_option
def tsne(
    runs: tuple[str, ...], out: str, root: str | None, nodes: int, force: bool, as_json: bool
) -> None:
    """The test nodes as each run sees them, side by side: t-SNE of its log-probabilities.

    Nodes of a class that stand together are told apart. Every run is asked about its own test nodes
    in the way it was measured, and their labels give the colours: like the accuracy, the picture is
    outside every certificate.

    \b
    graphveil tsne runs/eps1 runs/eps8 runs/open --out epsilon.png
    """
    from graphveil.report import plots

    plots.needed()
    if Path(out).suffix not in plots.ENDINGS:
        raise InvalidInputError(
            f"A plot must end in {', '.join(plots.ENDINGS)}. Got {out!r} instead."
        )
    check_file(out, force)

    from graphveil import _validate
    from graphveil import runs as trained

    _validate.integer("nodes", nodes, "[10, 1e6]")
    panels, said = [], []
    track = bar("arranging nodes")
    for run in runs if track is None else track(runs):
        method = trained.read(run)
        arranged = trained.arranged(run, root)
        testing = arranged.testing
        wanted = (testing.test_mask & (testing.y >= 0)).nonzero().flatten()
        seen = method.predict_proba(testing, mode=arranged.mode)[wanted]
        guarantee = method.certificate_.guarantee
        private = "epsilon" in method.get_params()
        name = f"{method.name}, " + (
            f"epsilon {figure(guarantee.epsilon)}" if private else "not private"
        )
        panels.append((name, seen.clamp_min(1e-12).log(), testing.y[wanted]))
        said.append({"run": run, "method": method.name, "epsilon": guarantee.epsilon})
    plots.neighbourhoods(panels, out, most=nodes)
    result = {"out": out, "runs": said, "note": trained.OUTSIDE}
    rows = [(panel[0], f"{min(len(panel[1]), nodes):,} test nodes") for panel in panels]
    show(result, as_json, "t-SNE", [*rows, ("written to", out), ("note", trained.OUTSIDE)])
