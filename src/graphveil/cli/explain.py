"""Which edges models look at."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from graphveil._errors import InvalidInputError
from graphveil.cli import _options as option
from graphveil.cli._output import Result, bar, check_folder, write_json
from graphveil.cli._runs import describe, has_same_tests, run_json

if TYPE_CHECKING:
    from graphveil.explain import Agreement, Explanation, Ious
    from graphveil.methods import Method

NOTE = (
    "An explanation of a graph reads that graph. These are test graphs, about which no certificate "
    "says anything; of a training graph it would be a release that the certificate does not cover."
)
_COLUMNS = (
    "graph", "edges", "original open", "original private", "private open", "by chance", "classes",
    "again",
)  # fmt: skip


@click.command()
@click.argument("run")
@click.option("--against", required=True, metavar="RUN", help="The run to compare with; best open.")
@click.option("--out", required=True, help="A directory for explanations.json and .png.")
@click.option(
    "--graphs", type=int, default=10, help="How many test graphs: the first that have an edge."
)
@click.option(
    "--threshold", type=float, default=0.2, help="The importance from which an edge is kept."
)
@click.option(
    "--explainer",
    type=click.Choice(["gnn", "saliency", "integrated"]),
    default="gnn",
    help="GNNExplainer, or gradients by the edges: at the graph, or all the way to it.",
)
@click.option("--epochs", type=int, help="Steps of gnn (200), points of integrated (50).")
@click.option("--seed", type=int, default=0, help="Draws where gnn starts.")
@option.root
@option.force
@option.as_json
def explain(
    run: str,
    against: str,
    out: str,
    graphs: int,
    threshold: float,
    root: str | None,
    force: bool,
    as_json: bool,
    **how: Any,
) -> None:
    """The edges that private and open models of graphs look at.

    Both runs must classify whole graphs and be tested on the same ones: one --seed, or --split
    given. Edges that reach the threshold are kept, and compared by intersection over union (IoU):
    of the graph's own edges, of what the run --against keeps, and of what RUN keeps. "By chance" is
    the last IoU had both kept as many edges at random, and "again" that of two starts of gnn on the
    run --against. Below them an IoU says little.

    \b
    graphveil explain runs/eps5 --against runs/open --out explained
    """
    picture, file = check_folder(out, ("explanations.png", "explanations.json"), force)

    from graphveil import _validate
    from graphveil import explain as explaining
    from graphveil import runs as trained
    from graphveil.report import plots

    _validate.integer("graphs", graphs, "[1, 1e9]")
    _validate.number("threshold", threshold, "[0, 1]")
    private, in_the_open = _read(run), _read(against)
    testing = _testing(run, against, root)
    numbers = explaining.with_edges(testing, testing.test_mask)[:graphs]
    if not len(numbers):
        raise InvalidInputError(f"The test graphs of {run} must hold one with an edge. Got none.")
    # Other starts for each: from the same one, gnn would find alike edges for unlike models.
    again = _explain(in_the_open, testing, numbers, 2, **how) if how["explainer"] == "gnn" else None
    agreement = explaining.agreement(
        _explain(private, testing, numbers, 0, **how),
        _explain(in_the_open, testing, numbers, 1, **how),
        threshold=threshold,
        again=again,
    )
    asked = trained.Run(run).record().asked
    data, names = asked.source.data, asked.class_names
    explainer, sides = how["explainer"], (describe(private), describe(in_the_open))
    result = Result(f"IoU of the edges that matter in {len(numbers)} test graphs of {data}")
    epochs = explaining.ROUNDS[explainer] if how["epochs"] is None else how["epochs"]
    result.update({"data": data, **how, "epochs": epochs, "threshold": threshold})
    result.add("runs", [run_json(run, private), run_json(against, in_the_open)])
    result.add("graphs", [_graph_json(agreement, place) for place in range(len(numbers))])
    same_class = agreement.mean_same_class
    result.add("mean", asdict(agreement.mean))
    result.add("mean_same_class", None if same_class is None else asdict(same_class))
    result.add("out", {"json": str(file), "picture": str(picture)})
    differ = sum(not ious.same_class for ious in agreement.ious)
    different = (
        f"For {differ} of {len(numbers)} graphs the two predict different classes (open, private): "
        "there the explanations answer different questions."
    )
    result.table(_COLUMNS[: 7 if again is None else 8], _rows(agreement, names))
    result.note(
        f"Private: {sides[0]}. Open: {sides[1]}. An edge is kept if {explainer} gives it "
        f"{threshold:g} or more.",
        *([different] if differ else []),
        f"Written to {file} and {picture}.",
    )
    result.add("note", NOTE, "note")
    Path(out).mkdir(exist_ok=True)
    plots.explanations(
        agreement,
        picture,
        f"{data}: edges kept by {explainer} from {threshold:g}",
        sides=sides,
        names=names,
        places=_places(testing, numbers),
    )
    content = result.json()
    for graph, mine, theirs in zip(
        content["graphs"], agreement.private, agreement.open, strict=True
    ):
        graph["edges"] = list(mine.by_edge)
        graph["importance_private"] = list(mine.by_edge.values())
        graph["importance_open"] = list(theirs.by_edge.values())
    write_json(str(file), content)
    result.show(as_json)


def _read(run: str) -> Method:
    from graphveil import runs as trained

    method = trained.Run(run).read()
    if method.record != "graph":
        raise InvalidInputError(
            f"A run must classify whole graphs to be explained. Got {run}, by {method.name}, "
            "instead; train graph-dpsgd or graph-gnn."
        )
    return method


def _testing(run: str, against: str, root: str | None) -> Any:
    """The graphs that both runs are tested on."""
    from graphveil import runs as trained

    one, other = (trained.Run(path).arrange(root).testing for path in (run, against))
    if not has_same_tests(one, other, "batch") or one.num_graphs != other.num_graphs:
        raise InvalidInputError(
            f"Both runs must be tested on the same graphs. Got others in {against} than in {run} "
            "instead; train them on the same data with one --seed, or with --split given."
        )
    return one


def _explain(
    method: Method, testing: Any, numbers: Any, start: int, *, seed: int, **how: Any
) -> list[Explanation]:
    """Explanations of some graphs, by the numbers that the data has for them."""
    from graphveil import explain as explaining

    label = f"explaining {method.name}"
    explanations = explaining.explain(
        method, testing, numbers, seed=seed + start, progress=bar(label), **how
    )
    if "graph_id" not in testing:
        return explanations
    return [replace(one, graph=int(testing.graph_id[one.graph])) for one in explanations]


def _places(testing: Any, numbers: Any) -> list[Any]:
    """Where the nodes of each graph stand in the plane, if the data says so."""
    if "pos" not in testing or testing.pos.shape[1] != 2:
        return [None] * len(numbers)
    return [testing.pos[testing.batch == number] for number in numbers]


def _rows(agreement: Agreement, names: list[str] | None) -> list[list[str]]:
    rows = []
    for mine, theirs, ious in zip(agreement.private, agreement.open, agreement.ious, strict=True):
        classes = dict.fromkeys((theirs.predicted, mine.predicted))
        labels = ", ".join(str(label) if names is None else names[label] for label in classes)
        rows.append([str(mine.graph), str(len(mine.edges)), *_cells(ious, labels)])
    alike = sum(bool(ious.same_class) for ious in agreement.ious)
    rows.append(["mean", "", *_cells(agreement.mean, f"{alike} of {len(rows)}")])
    if agreement.mean_same_class is not None and agreement.mean.same_class < 1:
        rows.append(["same class", "", *_cells(agreement.mean_same_class, "")])
    return rows


def _cells(ious: Ious, classes: str) -> list[str]:
    values = (ious.original_open, ious.original_private, ious.private_open, ious.by_chance)
    again = [] if ious.again is None else [f"{ious.again:.3f}"]
    return [*(f"{value:.3f}" for value in values), classes, *again]


def _graph_json(agreement: Agreement, place: int) -> dict[str, Any]:
    private, in_the_open = agreement.private[place], agreement.open[place]
    return {
        "graph": private.graph,
        "label": private.label if private.label >= 0 else None,
        "num_edges": len(private.edges),
        **asdict(agreement.ious[place]),
        "private": _side_json(private, agreement.threshold),
        "open": _side_json(in_the_open, agreement.threshold),
    }


def _side_json(explanation: Explanation, threshold: float) -> dict[str, Any]:
    return {
        "predicted": explanation.predicted,
        "probability": explanation.probability,
        "kept": len(explanation.kept(threshold)),
    }
