"""The best targets of every source, by a run that learnt links."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from graphveil._errors import InvalidInputError
from graphveil.cli import _options as option
from graphveil.cli._graphs import load_graph
from graphveil.cli._output import Result, check_file, csv_pieces, say, write_text
from graphveil.cli._runs import add_cost

if TYPE_CHECKING:
    from graphveil.methods.link_scoring import Recommendations

_COLUMNS = ("id", "rank", "target", "score")


@click.command()
@click.argument("run")
@option.data
@option.root
@click.option("--top", type=int, default=10, help="How many targets of each source.")
@click.option("--of", "wanted", multiple=True, metavar="ID", help="Only this source; repeatable.")
@click.option("--out", help="A CSV file; without it the table goes to stdout.")
@option.force
@option.as_json
def recommend(
    run: str,
    data: str,
    root: str | None,
    top: int,
    wanted: tuple[str, ...],
    out: str | None,
    force: bool,
    as_json: bool,
) -> None:
    """The best targets of every source, by a model of links.

    A row has the source's id, the rank, the target's id and its score. Targets that a source is
    linked to already are left out. It costs nothing beyond the run; the answer says who may see
    which rows.

    \b
    graphveil recommend runs/shop --data shop --top 10 --out list.csv
    """
    from graphveil import runs

    check_file(out, force)
    trained = runs.Run(run)
    record = trained.record().plan.facts.record
    if record != "link":
        raise InvalidInputError(
            f"The run must have learnt links to recommend by. Got {run}, whose records are "
            f"{record}s, instead; 'graphveil predict' says what it says of them."
        )
    links = load_graph(trained, data, root)
    method, best = trained.recommend(links, top=top, sources=_find_sources(links, wanted))
    sources, targets = _ids_of(links)
    rows = _rows(best, sources, targets)
    result = Result(f"Recommendations of {method.name}", run=run, data=data)
    result.add("sources", len(best.sources), _name_of(links, "source"), "{:,}".format)
    result.add("top", best.targets.shape[1], "targets each")
    add_cost(result, method.certificate_, "of the weights")
    result.add("seen_by", best.seen_by, "who may see them")
    result.add("out", out, "written to")
    if out is not None:
        write_text(out, csv_pieces(_COLUMNS, rows), private=True)
    elif as_json:
        result.add("recommendations", [dict(zip(_COLUMNS, row, strict=True)) for row in rows])
    else:
        for piece in csv_pieces(_COLUMNS, rows):
            click.echo(piece, nl=False)
        say(f"who may see them: {best.seen_by}")
        return
    result.show(as_json)


def _name_of(links: Any, end: str) -> str:
    """What a source or a target is, in the owner's word."""
    name = getattr(links, f"{end}_name", None)
    return f"{name or end}s"


def _find_sources(links: Any, wanted: Sequence[str]) -> list[int] | None:
    """The numbers of the sources asked for; None for all of them."""
    if not wanted:
        return None
    ids, _ = _ids_of(links)
    place = {str(number) if ids is None else ids[number]: number for number in range(len(links.x))}
    for name in wanted:
        if name not in place:
            raise InvalidInputError(
                f"The option '--of' must name a source of the data. Got {name!r}, which is none, "
                "instead; look at its table."
            )
    return [place[name] for name in wanted]


def _ids_of(links: Any) -> tuple[Sequence[str] | None, Sequence[str] | None]:
    """The ids of sources and targets as their owner wrote them; None where they are numbers."""
    sources = getattr(links, "ids", None)
    return sources, sources if "target_x" not in links else getattr(links, "target_ids", None)


def _rows(
    best: Recommendations, sources: Sequence[str] | None, targets: Sequence[str] | None
) -> Iterator[list[Any]]:
    """A row for each source and rank; where there are fewer targets, fewer rows."""
    for number, chosen, scores in zip(best.sources, best.targets, best.scores, strict=True):
        source = str(int(number)) if sources is None else sources[int(number)]
        for rank, (target, score) in enumerate(
            zip(chosen.tolist(), scores.tolist(), strict=True), 1
        ):
            if target >= 0:
                name = str(target) if targets is None else targets[target]
                yield [source, rank, name, round(score, 6)]
