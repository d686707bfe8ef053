"""Which edges models look at."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from graphveil._errors import InvalidInputError
from graphveil.cli._shared import bar, force_option, json_option, root_option, show_table
from graphveil.cli.drawing import _called
from graphveil.cli.training import check_file, write_json

if TYPE_CHECKING:
    from graphveil.explain import Agreement, Explanation, Ious
    from graphveil.methods import Method

NOTE = (
    "An explanation of a graph reads that graph. These are test graphs, about which no certificate "
    "says anything; of a training graph it would be a release that the certificate does not cover."
)


@click.command()
@click.argument("run")
@click.option("--against", required=True, metavar="RUN", help="The run to compare with; best open.")
@click.option("--out", required=True, help="A directory for explanations.json and .png.")
@click.option(
    "--graphs",
    type=int,
    default=10,
    show_default=True,
    help="How many test graphs: the first that have an edge.",
)
@click.option(
    "--threshold",
    type=float,
    default=0.2,
    show_default=True,
    help="The importance from which an edge is kept.",
)
@click.option(
    "--explainer",
    type=click.Choice(["gnn", "saliency", "integrated"]),
    default="gnn",
    show_default=True,
    help="GNNExplainer, or gradients by the edges: at the graph, or all the way to it.",
)
@click.option("--epochs", type=int, help="Steps of gnn (200), points of integrated (50).")
@click.option("--seed", type=int, default=0, show_default=True, help="Draws where gnn starts.")
@root_option
@force_option
@json_option
def explain(
    run: str,
    against: str,
    out: str,
    graphs: int,
    threshold: float,
    explainer: str,
    epochs: int | None,
    seed: int,
    root: str | None,
    force: bool,
    as_json: bool,
) -> None:
    """Which edges a private model looks at, and whether an open one looks at the same.

    Both runs must classify whole graphs and be tested on the same ones: one --seed, or --split
    given. Edges that reach the threshold are kept, and compared by intersection over union (IoU):
    of the graph's own edges, of what the run --against keeps, and of what RUN keeps. "By chance" is
    the last IoU had both kept as many edges at random, and "again" that of two starts of gnn on the
    run --against. Below them an IoU says little.

    \b
    graphveil explain runs/eps5 --against runs/open --out explained
    """
    pictured, written = _check_out(out, force)

    from graphveil import _validate, explain
    from graphveil import runs as trained
    from graphveil.report import plots

    _validate.integer("graphs", graphs, "[1, 1e9]")
    _validate.number("threshold", threshold, "[0, 1]")
    methods = [_method(run), _method(against)]
    testing = _testing(run, against, root)
    wanted = explain.with_edges(testing, testing.test_mask)[:graphs]
    if not len(wanted):
        raise InvalidInputError(f"The test graphs of {run} must hold one with an edge. Got none.")

    def explained(place: int, number: int) -> list[Explanation]:
        found = explain.explain(
            methods[place],
            testing,
            wanted,
            explainer=explainer,
            epochs=epochs,
            seed=seed + number,
            progress=bar(f"explaining {methods[place].name}"),
        )
        if "graph_id" not in testing:
            return found
        return [replace(one, graph=int(testing.graph_id[one.graph])) for one in found]

    # Other starts for each: from the same one, gnn would find alike edges for unlike models.
    again = explained(1, 2) if explainer == "gnn" else None
    found = explain.agreement(explained(0, 0), explained(1, 1), threshold=threshold, again=again)
    data, names = trained.trained_on(run), trained.class_names(run)
    sides = _called(methods[0]), _called(methods[1])
    result: dict[str, Any] = {
        "data": data,
        "explainer": explainer,
        "epochs": explain.ROUNDS[explainer] if epochs is None else epochs,
        "threshold": threshold,
        "seed": seed,
        "runs": [
            {
                "run": path,
                "method": method.name,
                "epsilon": method.certificate_.guarantee.epsilon,
            }
            for path, method in zip((run, against), methods, strict=True)
        ],
        "graphs": [_graph_json(found, place) for place in range(len(found.ious))],
        "mean": asdict(found.mean),
        "mean_same_class": None if found.mean_same_class is None else asdict(found.mean_same_class),
        "out": {"json": str(written), "picture": str(pictured)},
        "note": NOTE,
    }
    _make(out)
    plots.explanations(
        found,
        pictured,
        f"{data}: edges kept by {explainer} from {threshold:g}",
        sides=sides,
        names=names,
        places=_places(testing, wanted),
    )
    edges = [
        {"edges": list(one.by_edge), **_importance(one, other)}
        for one, other in zip(found.private, found.open, strict=True)
    ]
    told = zip(result["graphs"], edges, strict=True)
    write_json(str(written), {**result, "graphs": [each | more for each, more in told]})
    show_table(
        result,
        as_json,
        f"IoU of the edges that matter in {len(wanted)} test graphs of {data}",
        ["graph", "edges", *_COLUMNS[: 5 if again is None else 6]],
        _rows(found, names),
        [
            f"Private: {sides[0]}. Open: {sides[1]}. An edge is kept if {explainer} gives it "
            f"{threshold:g} or more.",
            *_differing(found),
            f"Written to {written} and {pictured}.",
            NOTE,
        ],
    )


def _check_out(out: str, force: bool) -> tuple[Path, Path]:
    """The picture and the numbers, if they can be written; before anything is loaded."""
    from graphveil.report import plots

    plots.require_matplotlib()
    directory = Path(out)
    files = directory / "explanations.png", directory / "explanations.json"
    if directory.is_dir():
        for file in files:
            check_file(str(file), force)
    else:
        check_file(out, False)
    return files


def _make(out: str) -> None:
    try:
        Path(out).mkdir(exist_ok=True)
    except OSError as error:
        raise InvalidInputError(f"{out} cannot be made: {error.strerror}.") from None


def _method(run: str) -> Method:
    from graphveil import runs as trained

    method = trained.read(run)
    if method.record != "graph":
        raise InvalidInputError(
            f"A run must classify whole graphs to be explained. Got {run}, by {method.name}, "
            "instead; train graph-dpsgd or graph-gnn."
        )
    return method


def _testing(run: str, against: str, root: str | None) -> Any:
    """The graphs that both runs are tested on."""
    from graphveil import runs as trained

    one, other = (trained.arranged(each, root).testing for each in (run, against))
    pairs = [(one[name], other[name]) for name in ("x", "edge_index", "batch", "y", "test_mask")]
    same = all(a.dtype == b.dtype and a.equal(b) for a, b in pairs)
    if not same or one.num_graphs != other.num_graphs:
        raise InvalidInputError(
            f"Both runs must be tested on the same graphs. Got others in {against} than in {run} "
            "instead; train them on the same data with one --seed, or with --split given."
        )
    return one


def _places(testing: Any, wanted: Any) -> list[Any]:
    """Where the nodes of each graph stand in the plane, if the data says so."""
    if "pos" not in testing or testing.pos.shape[1] != 2:
        return [None] * len(wanted)
    return [testing.pos[testing.batch == number] for number in wanted]


_COLUMNS = (
    "original open",
    "original private",
    "private open",
    "by chance",
    "classes",
    "again",
)


def _rows(found: Agreement, names: list[str] | None) -> list[list[str]]:
    def called(number: int) -> str:
        return str(number) if names is None else names[number]

    rows = []
    for mine, theirs, each in zip(found.private, found.open, found.ious, strict=True):
        same = mine.predicted == theirs.predicted
        said = called(mine.predicted)
        classes = said if same else f"{called(theirs.predicted)}, {said}"
        rows.append([str(mine.graph), str(len(mine.edges)), *_cells(each, classes)])
    rows.append(["mean", "", *_cells(found.mean, f"{_same(found)} of {len(rows)}")])
    if found.mean_same_class is not None and found.mean.same_class < 1:
        rows.append(["same class", "", *_cells(found.mean_same_class, "")])
    return rows


def _cells(ious: Ious, classes: str) -> list[str]:
    values = (ious.original_open, ious.original_private, ious.private_open, ious.by_chance)
    again = [] if ious.again is None else [f"{ious.again:.3f}"]
    return [*(f"{value:.3f}" for value in values), classes, *again]


def _same(found: Agreement) -> int:
    return sum(bool(each.same_class) for each in found.ious)


def _differing(found: Agreement) -> list[str]:
    differ = len(found.ious) - _same(found)
    if not differ:
        return []
    return [
        f"For {differ} of {len(found.ious)} graphs the two predict different classes (open, "
        "private): there the explanations answer different questions."
    ]


def _graph_json(found: Agreement, place: int) -> dict[str, Any]:
    mine, theirs = found.private[place], found.open[place]
    return {
        "graph": mine.graph,
        "label": mine.label if mine.label >= 0 else None,
        "num_edges": len(mine.edges),
        **asdict(found.ious[place]),
        "private": _side_json(mine, found.threshold),
        "open": _side_json(theirs, found.threshold),
    }


def _side_json(one: Explanation, threshold: float) -> dict[str, Any]:
    return {
        "predicted": one.predicted,
        "probability": one.probability,
        "kept": len(one.kept(threshold)),
    }


def _importance(private: Explanation, in_the_open: Explanation) -> dict[str, Any]:
    return {
        "importance_private": list(private.by_edge.values()),
        "importance_open": list(in_the_open.by_edge.values()),
    }
