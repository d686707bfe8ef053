"""The records that private and open models get wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from graphveil._errors import InvalidInputError
from graphveil.cli import _options as option
from graphveil.cli._output import Result, check_picture, plural, track
from graphveil.cli._runs import check_distinct, describe, has_same_tests, run_json
from graphveil.graph.targets import is_labelled

if TYPE_CHECKING:
    from graphveil.bench import HardCases
    from graphveil.methods import Method

_COUNTS = ("both", "only_private", "only_open", "neither")
_SHARES = ("stay_hard", "hard_in_the_open", "jaccard", "expected_both", "over_expected")


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
    help="A node is hard for a side if at least this share of its runs get it wrong.",
)
@option.root
@option.force
@option.as_json
def hard_cases(
    runs: tuple[str, ...],
    against: tuple[str, ...],
    out: str | None,
    often: float,
    root: str | None,
    force: bool,
    as_json: bool,
) -> None:
    """The test nodes that private and open models get wrong.

    Runs before --against are private ones, or open ones that are set beside others. The table says
    how far they meet. All runs must be tested on the same nodes of the same graph: one --seed, or
    --split given. Each is asked in the way it was measured. Like the accuracy, the counts are
    outside every certificate.

    \b
    graphveil hard-cases runs/eps1 --against runs/open --out hard.png
    graphveil hard-cases runs/a runs/b --against runs/c --against runs/d --often 1
    """
    check_picture(out, force)

    from graphveil import _validate, bench
    from graphveil import runs as trained
    from graphveil.methods.task import OUTSIDE

    _validate.number("often", often, "(0, 1]")
    both_sides = [*runs, *against]
    check_distinct(both_sides)
    methods = {run: trained.Run(run).read() for run in both_sides}
    for run in against:
        if methods[run].private:
            raise InvalidInputError(
                f"A run --against must be open. Got {run}, by {methods[run].name}, instead."
            )
    private_side = all(methods[run].private for run in runs)
    sides = ("private", "open") if private_side else ("first", "reference")
    wrong, labels = _wrong(methods, root)
    cases = bench.hard_cases(wrong[: len(runs)], wrong[len(runs) :], often=often, classes=labels)
    asked = trained.Run(runs[0]).record().asked
    data, names = asked.source.data, asked.class_names
    private, in_the_open = (
        " and ".join(dict.fromkeys(describe(methods[run]) for run in side))
        for side in (runs, against)
    )
    if out is not None:
        from graphveil.report import plots

        title = f"{data}: {private}, against {in_the_open}"
        plots.hard_cases(cases, out, title, names, sides)
    result = Result(f"Hard cases among the test records of {data}", data=data, often=often)
    described = [
        run_json(run, methods[run]) | {"private": methods[run].private} for run in both_sides
    ]
    result.update({"runs": described, "sides": sides, **_json(cases)})
    result.add(
        "by_class",
        [
            {"class": number, "name": None if names is None else names[number], **_json(part)}
            for number, part in cases.by_class.items()
        ],
    )
    parts = {
        f"class {number}" if names is None else names[number]: part
        for number, part in cases.by_class.items()
    }
    result.table(
        ["", "records", "both", f"only {sides[0]}", f"only {sides[1]}", "neither"],
        [_cells("all", cases), *(_cells(name, part) for name, part in parts.items())],
    )
    called = f"{sides[0].capitalize()}: {private}, {plural(len(runs), 'run')}."
    called += f" {sides[1].capitalize()}: {in_the_open}, {plural(len(against), 'run')}."
    result.note(called + _rule(cases), *_sentences(cases, sides))
    result.add("out", out, "note", "Written to {}.".format)
    result.add("note", OUTSIDE, "note", "The counts were {}.".format)
    result.show(as_json)


def _wrong(methods: dict[str, Method], root: str | None) -> tuple[list[Any], Any]:
    """Where each run is wrong among the labelled test nodes that all share; and their labels."""
    from graphveil import runs as trained

    wrong: list[Any] = []
    for run in track("predicting", methods):
        arranged = trained.Run(run).arrange(root)
        testing = arranged.testing
        if not wrong:
            first, shared = run, testing
            tested = testing.test_mask & is_labelled(testing.y)
            if not tested.any():
                raise InvalidInputError(
                    f"The test nodes of {run} must hold a labelled one. Got none instead."
                )
        elif not has_same_tests(shared, testing):
            raise InvalidInputError(
                "All runs must be tested on the same nodes of the same graph. Got others in "
                f"{run} than in {first} instead; train them on the same data with one --seed, or "
                "with --split given."
            )
        predicted = methods[run].predict(testing, mode=arranged.mode)
        wrong.append((predicted != testing.y)[tested])
    return wrong, shared.y[tested]


def _json(cases: HardCases) -> dict[str, Any]:
    return {name: getattr(cases, name) for name in ("nodes", *_COUNTS, *_SHARES)}


def _cells(name: str, cases: HardCases) -> list[str]:
    counts = [getattr(cases, count) for count in _COUNTS]
    shares = [f"{count:,} ({100 * count / cases.nodes:.1f} %)" for count in counts]
    return [name, f"{cases.nodes:,}", *shares]


def _rule(cases: HardCases) -> str:
    if max(cases.private_runs, cases.open_runs) == 1:
        return " Hard is what a run gets wrong."
    return f" Hard is what at least {100 * cases.often:g} % of a side's runs get wrong."


def _sentences(cases: HardCases, sides: tuple[str, str]) -> list[str]:
    """The shares, in words; nothing is said of a side without a hard case."""
    sentences = []
    if cases.stay_hard is not None:
        sentences.append(
            f"{100 * cases.stay_hard:.1f} % of the {sides[1]} side's hard cases stay hard "
            f"{'under privacy' if sides[0] == 'private' else 'for the first'}."
        )
    if cases.hard_in_the_open is not None:
        sentences.append(
            f"{100 * cases.hard_in_the_open:.1f} % of the {sides[0]} side's hard cases are hard "
            f"{'in the open' if sides[0] == 'private' else 'for the reference'}, too."
        )
    if cases.over_expected is not None:
        sentences.append(
            f"Jaccard overlap {cases.jaccard:.3f}. Were errors independent, "
            f"{cases.expected_both:.1f} records would be hard for both: there are "
            f"{cases.over_expected:.2f} times as many."
        )
    return [" ".join(sentences)] if sentences else []
