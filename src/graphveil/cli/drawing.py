"""Pictures of trained models."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from graphveil._errors import InvalidInputError
from graphveil.cli._shared import (
    bar,
    figure,
    force_option,
    json_option,
    root_option,
    show,
    show_table,
)
from graphveil.cli.training import check_file

if TYPE_CHECKING:
    from graphveil.bench import HardCases
    from graphveil.methods import Method


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
    _check_picture(out, force)

    from graphveil import _validate
    from graphveil import runs as trained
    from graphveil.report import plots

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
    rows = [(panel[0], f"{min(len(panel[1]), nodes):,} test records") for panel in panels]
    show(result, as_json, "t-SNE", [*rows, ("written to", out), ("note", trained.OUTSIDE)])


@click.command()
@click.argument("runs", nargs=-1, required=True)
@click.option(
    "--against", multiple=True, required=True, metavar="RUN", help="A run in the open; repeat."
)
@click.option("--out", help="A picture: .png, .svg or .pdf.")
@click.option(
    "--often",
    type=float,
    default=0.5,
    show_default=True,
    help="A node is hard for a side if at least this share of its runs get it wrong.",
)
@root_option
@force_option
@json_option
def hard_cases(
    runs: tuple[str, ...],
    against: tuple[str, ...],
    out: str | None,
    often: float,
    root: str | None,
    force: bool,
    as_json: bool,
) -> None:
    """The test nodes that private runs get wrong, those that open runs do, and how far they meet.

    All runs must be tested on the same nodes of the same graph: one --seed, or --split given. Each
    is asked in the way it was measured. Like the accuracy, the counts are outside every
    certificate.

    \b
    graphveil hard-cases runs/eps1 --against runs/open --out hard.png
    graphveil hard-cases runs/a runs/b --against runs/c --against runs/d --often 1
    """
    if out is not None:
        _check_picture(out, force)

    from graphveil import _validate, bench
    from graphveil import runs as trained

    _validate.number("often", often, "(0, 1]")
    every = [*runs, *against]
    if len({os.path.realpath(run) for run in every}) < len(every):
        raise InvalidInputError("Each run must be named once. Got one of them twice instead.")
    methods = {run: trained.read(run) for run in every}
    for run, method in methods.items():
        if _is_private(method) != (run in runs):
            rule = "before --against must be private" if run in runs else "--against must be open"
            raise InvalidInputError(f"A run {rule}. Got {run}, by {method.name}, instead.")
    wrong, classes = _wrong(methods, root)
    counted = bench.hard_cases(wrong[: len(runs)], wrong[len(runs) :], often=often, classes=classes)
    data, names = trained.trained_on(every[0]), trained.class_names(every[0])
    sides = [
        " and ".join(dict.fromkeys(_called(methods[run]) for run in side))
        for side in (runs, against)
    ]
    if out is not None:
        from graphveil.report import plots

        plots.hard_cases(counted, out, f"{data}: {sides[0]}, against {sides[1]}", names)
    result = {
        "data": data,
        "often": often,
        "runs": [
            {
                "run": run,
                "private": run in runs,
                "method": methods[run].name,
                "epsilon": methods[run].certificate_.guarantee.epsilon,
            }
            for run in every
        ],
        **_counts_json(counted),
        "by_class": [
            {
                "class": number,
                "name": None if names is None else names[number],
                **_counts_json(each),
            }
            for number, each in counted.by_class.items()
        ],
        "out": out,
        "note": trained.OUTSIDE,
    }
    rows = [("all", counted)] + [
        (f"class {number}" if names is None else names[number], each)
        for number, each in counted.by_class.items()
    ]
    show_table(
        result,
        as_json,
        f"Hard cases among the test records of {data}",
        ["", "records", "both", "only private", "only open", "neither"],
        [[name, f"{each.nodes:,}", *_cells(each)] for name, each in rows],
        [
            f"Private: {sides[0]}, {_number_of(runs)}. Open: {sides[1]}, {_number_of(against)}."
            + _rule(counted),
            *_said(counted),
            *([] if out is None else [f"Written to {out}."]),
            f"The counts were {trained.OUTSIDE}.",
        ],
    )


def _check_picture(out: str, force: bool) -> None:
    """Refuse a picture that cannot be drawn or written; before anything is loaded."""
    from graphveil.report import plots

    plots.require_matplotlib()
    if Path(out).suffix not in plots.ENDINGS:
        raise InvalidInputError(
            f"A plot must end in {', '.join(plots.ENDINGS)}. Got {out!r} instead."
        )
    check_file(out, force)


def _is_private(method: Method) -> bool:
    return "epsilon" in method.get_params()


def _called(method: Method) -> str:
    """A method as a person calls it, with what is proven for it."""
    if not _is_private(method):
        return method.name
    if method.certificate_.void_because:
        return f"{method.name} (void certificate)"
    return f"{method.name} at epsilon {figure(method.certificate_.guarantee.epsilon)}"


def _wrong(methods: dict[str, Method], root: str | None) -> tuple[list[Any], Any]:
    """Where each run is wrong among the labelled test nodes that all share; and their labels."""
    from graphveil import runs as trained

    wrong: list[Any] = []
    track = bar("predicting")
    for run in methods if track is None else track(methods):
        arranged = trained.arranged(run, root)
        testing = arranged.testing
        if not wrong:
            first, shared = run, testing
            wanted = testing.test_mask & (testing.y >= 0)
            if not wanted.any():
                raise InvalidInputError(
                    f"The test nodes of {run} must hold a labelled one. Got none instead."
                )
        elif not _same_tests(shared, testing):
            raise InvalidInputError(
                "All runs must be tested on the same nodes of the same graph. Got others in "
                f"{run} than in {first} instead; train them on the same data with one --seed, or "
                "with --split given."
            )
        found = methods[run].predict(testing, mode=arranged.mode)
        wrong.append((found != testing.y)[wanted])
    return wrong, shared.y[wanted]


def _same_tests(one: Any, other: Any) -> bool:
    """Whether two graphs are one, with the same test nodes."""
    pairs = [(one[name], other[name]) for name in ("x", "edge_index", "y", "test_mask")]
    return all(a.dtype == b.dtype and a.equal(b) for a, b in pairs)


def _counts_json(found: HardCases) -> dict[str, Any]:
    return {
        "nodes": found.nodes,
        "both": found.both,
        "only_private": found.only_private,
        "only_open": found.only_open,
        "neither": found.neither,
        "stay_hard": found.stay_hard,
        "hard_in_the_open": found.hard_in_the_open,
        "jaccard": found.jaccard,
        "expected_both": found.expected_both,
        "over_expected": found.over_expected,
    }


def _cells(found: HardCases) -> list[str]:
    counts = (found.both, found.only_private, found.only_open, found.neither)
    return [f"{count:,} ({100 * count / found.nodes:.1f} %)" for count in counts]


def _number_of(runs: tuple[str, ...]) -> str:
    return f"{len(runs)} run{'s' if len(runs) > 1 else ''}"


def _rule(found: HardCases) -> str:
    if max(found.private_runs, found.open_runs) == 1:
        return " Hard is what a run gets wrong."
    return f" Hard is what at least {100 * found.often:g} % of a side's runs get wrong."


def _said(found: HardCases) -> list[str]:
    """The shares, in words; nothing is said of a side without a hard case."""
    said = []
    if found.stay_hard is not None:
        said.append(
            f"{100 * found.stay_hard:.1f} % of the open side's hard cases stay hard under privacy."
        )
    if found.hard_in_the_open is not None:
        said.append(
            f"{100 * found.hard_in_the_open:.1f} % of the private side's hard cases are hard in "
            "the open, too."
        )
    if found.over_expected is not None:
        said.append(
            f"Jaccard overlap {found.jaccard:.3f}. Were errors independent, "
            f"{found.expected_both:.1f} records would be hard for both: there are "
            f"{found.over_expected:.2f} times as many."
        )
    return [" ".join(said)] if said else []
