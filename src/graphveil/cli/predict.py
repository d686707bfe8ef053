"""Predict with a run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from graphveil import devices
from graphveil._errors import InvalidInputError
from graphveil.cli import _options as option
from graphveil.cli._graphs import check_graph, load_graph, read_ids
from graphveil.cli._output import Result, check_file, csv_pieces, say, write_text
from graphveil.cli._runs import add_cost, add_ledger

if TYPE_CHECKING:
    from graphveil.methods import Method
    from graphveil.methods.plan import Facts

_AT_ONCE = 1 << 13  # rows of the table that are made together


@click.command()
@click.argument("run")
@option.data
@option.root
@click.option(
    "--mode",
    type=click.Choice(["cached", "visible", "noisy", "disjoint"]),
    help="visible: neighbours are read in the open. noisy: through noise, for --epsilon more. "
    "disjoint: --data is another graph than the one trained on. cached: the noisy sums that gap "
    "made in training, at no cost; --data is the graph trained on. Default: cached for gap, "
    "visible for the others.",
)
@click.option("--epsilon", type=float, help="What a noisy prediction may spend.")
@click.option(
    "--sort",
    type=click.Choice(["rank"]),
    help="Order rows by 'rank', the most probable first, where there are two classes. Default: as "
    "in the data.",
)
@click.option("--out", help="A CSV file; without it the table goes to stdout.")
@option.device
@option.ledger
@option.force
@option.as_json
def predict(
    run: str,
    data: str,
    root: str | None,
    mode: str | None,
    epsilon: float | None,
    sort: str | None,
    out: str | None,
    device: str | None,
    force: bool,
    as_json: bool,
    **where: str | None,
) -> None:
    """The class of every node, or of every graph, by a trained model.

    A noisy prediction is charged to the run's certificate before anything is written, and to the
    account that the run was charged to, if there is one, before data is opened.

    \b
    graphveil predict runs/social --data social --out classes.csv
    """
    from graphveil import runs
    from graphveil.methods import moments
    from graphveil.methods.given_data import refuse_links

    check_file(out, force)
    if mode == "noisy" and epsilon is None:
        raise click.UsageError("The mode 'noisy' spends a budget of its own: give --epsilon.")
    check_graph(data, run, mode)
    charged: dict[str, str] = {}
    trained = runs.Run(run)
    refuse_links(trained.record().plan.facts.record, "Predictions")
    if sort is not None:
        _check_ranked(run, trained.record().plan.facts)
    with devices.use(device):
        method, answers = trained.predict(
            lambda: load_graph(trained, data, root),
            mode=mode,
            epsilon=epsilon,
            on_charge=charged.update,
            notify=say,
            **where,
        )
    mode = mode or method.modes[0]
    ids = read_ids(trained, data, method.record)
    columns, table = _columns(method), _rows(method, answers, ids, sort=sort is not None)
    of, promise, private = _of_file(method, mode)
    level = moments.LEVEL if "low" in columns else None
    result = Result(f"Predictions of {method.name}, {mode}", run=run, data=data, mode=mode)
    result.add(f"{method.record}s", len(answers), f"{method.record}s", "{:,}".format)
    add_cost(result, method.certificate_, of)
    add_ledger(result, charged or None)
    result.add("seen_by", _seen_by(method, mode), "mode")
    result.add("interval", level, "interval", _say_interval)
    result.row("of this file", promise)
    result.add("out", out, "written to")
    if out is not None:
        write_text(out, csv_pieces(columns, table), private=private)
    elif as_json:
        result.add("predictions", [dict(zip(columns, row, strict=True)) for row in table])
    else:
        for piece in csv_pieces(columns, table):
            click.echo(piece, nl=False)
        rows = dict(result.rows())
        say(rows["mode"])
        say(f"of this table: {promise}")
        if level is not None:
            say(f"interval: {_say_interval(level)}")
        if charged:
            say(f"charged to {rows['charged to']}")
        return
    result.show(as_json)


def _check_ranked(run: str, facts: Facts) -> None:
    """Refuse to sort by a rank that there is not; before anything is charged."""
    if not _is_ranked(facts):
        raise InvalidInputError(
            f"The option '--sort rank' must go with a run that tells two classes apart. Got {run} "
            f"with the task {facts.task!r} instead; leave it out, and sort by another column."
        )


def _is_ranked(facts: Facts) -> bool:
    from graphveil.methods.task import has_classes

    return has_classes(facts) and facts.num_classes == 2


def _say_interval(level: float) -> str:
    share = f"{100 * level:g} %"
    return f"low to high holds {share} of true values, if errors are normal and as in training"


def _seen_by(method: Method, mode: str) -> str:
    """Who may see a prediction."""
    return method.inferences[method.modes.index(mode)].says(method, method.plan_.unit)


def _of_file(method: Method, mode: str) -> tuple[str, str, bool]:
    """What epsilon is of, what holds of a file of predictions, and whether it is private."""
    unit = method.certificate_.guarantee.unit
    if mode in ("cached", "noisy"):
        of = "of weights and noisy sums" if mode == "cached" else "of weights and noisy predictions"
        if unit == "node":
            return of, "each prediction is for its own node only", True
        return of, "this epsilon covers it", mode == "noisy"
    edges = unit.startswith("edge")
    read, them = ("edges that", "them") if edges else (f"{method.record}s whose rows", "those rows")
    promise = f"nothing is promised to the {read} were read; it is for whoever may see {them}"
    return "of the weights", promise, True


def _columns(method: Method) -> list[str]:
    """What the table says of each record: its class, how probable it and every other class is.

    Of two classes also the rank by the second one. Of several labels it is the probability of each,
    of a regression the value.
    """
    from graphveil.methods.moments import has_interval
    from graphveil.methods.task import has_classes

    facts, names = method.plan_.facts, method.class_names_
    columns = method.task(facts).columns(names)
    if not has_classes(facts):
        return ["id", *columns, *(["low", "high"] if has_interval(method) else [])]
    named = [] if names is None else ["name"]
    chances = [f"probability_{column}" for column in columns]
    ranked = ["rank"] if _is_ranked(facts) else []
    return ["id", "class", *named, "probability", *chances, *ranked]


def _rows(
    method: Method, answers: Any, ids: Sequence[str] | None, *, sort: bool
) -> Iterator[list[Any]]:
    """The rows of the table, made a few thousand at a time; sorted by rank, or as in the data."""
    from graphveil.methods.task import has_classes

    facts = method.plan_.facts
    ranks = _rank(answers[:, 1]) if _is_ranked(facts) else None
    if sort and ranks is not None:
        order = sorted(range(len(answers)), key=ranks.__getitem__)
        answers, ranks = answers[order], sorted(ranks)
        ids = [str(number) if ids is None else ids[number] for number in order]
    for first in range(0, len(answers), _AT_ONCE):
        some = slice(first, first + _AT_ONCE)
        numbers = range(len(answers))[some]
        names = [str(number) for number in numbers] if ids is None else list(ids[some])
        if has_classes(facts):
            ranked = None if ranks is None else ranks[some]
            yield from _class_rows(method, answers[some], names, ranked)
        else:
            yield from _value_rows(method, answers[some], names)


def _class_rows(
    method: Method, answers: Any, ids: list[str], ranks: list[int] | None
) -> Iterator[list[Any]]:
    names = method.class_names_
    decided = method.task(method.plan_.facts).decide(answers).tolist()
    for number, (name, label, chances) in enumerate(
        zip(ids, decided, answers.tolist(), strict=True)
    ):
        row = [round(value, 6) for value in chances]
        named = [] if names is None else [names[label]]
        yield [name, label, *named, row[label], *row, *([] if ranks is None else [ranks[number]])]


def _value_rows(method: Method, answers: Any, ids: list[str]) -> Iterator[list[Any]]:
    from graphveil.methods.moments import interval_of

    ends = interval_of(method, answers)
    bounds = [[]] * len(ids) if ends is None else zip(*(end.tolist() for end in ends), strict=True)
    for name, row, around in zip(ids, answers.tolist(), bounds, strict=True):
        yield [name, *(round(value, 6) for value in (*row, *around))]


def _rank(chances: Any) -> list[int]:
    """From 1, the most probable first; equal ones in their order."""
    order = chances.argsort(descending=True, stable=True).tolist()
    ranks = [0] * len(order)
    for rank, place in enumerate(order, 1):
        ranks[place] = rank
    return ranks
