"""Descriptions are run: every line, on every data set, under every seed; all of it or a shard.

    table = read("igamberdiev-table2")
    measured = run(table, root="data", memory=Notes("table2.jsonl"))
    for one in measured:
        print(one.place.label, one.row.label, one.row.score(table.metric), one.row.epsilon)

*Guarantee*: none for a table as a whole; see :mod:`graphveil.bench.compare`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from graphveil import _validate
from graphveil._progress import Progress
from graphveil.bench.compare import Row, make_row
from graphveil.bench.description import Description, Line
from graphveil.bench.measuring import EXTRAS, compare_outcomes
from graphveil.bench.places import Place, find_places, make_source
from graphveil.bench.requests import Memory, Outcome
from graphveil.bench.running import Attempt, Cell, Shard, measure_cells, share

if TYPE_CHECKING:
    from graphveil.runs import Source


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One line on one data set: its row, and the outcome of every seed that was run."""

    line: Line
    place: Place
    row: Row
    outcomes: tuple[tuple[int, Outcome], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Single:
    """One run of a description: a line, on one data set, under one seed."""

    line: Line
    place: Place
    source: Source

    @property
    def key(self) -> str:
        """What its outcome is noted under."""
        return self.line.request.key(self.source)


def plan_singles(
    description: Description, places: Sequence[Place], root: str | None, seed: int
) -> list[Single]:
    """Every single run of a description, in the order in which they are run."""
    return [
        Single(
            line=line,
            place=place,
            source=replace(
                make_source(description, place, root, seed + number),
                train_share=line.request.train_share,
            ),
        )
        for place in places
        if place.runs_on is not None
        for line in description.lines
        for number in range(description.seeds)
    ]


def run(
    description: Description,
    *,
    root: str | None = None,
    seed: int = 0,
    shard: Shard | None = None,
    jobs: int = 1,
    progress: Progress | None = None,
    memory: Memory | None = None,
) -> list[Measured]:
    """Measure what ``memory`` does not hold yet, and return every line on every data set.

    Of a ``shard`` (i, n) every n-th single run is done; the rest is returned as far as ``memory``
    holds it. A run that is refused is noted, and does not stop the others; it is tried again by the
    next call. ``jobs`` processes share the work.
    """
    _validate.integer("seed", seed, "[0, 1e18]")
    _validate.integer("seeds", description.seeds, "[1, 1000]")
    places = find_places(description, root)
    singles = plan_singles(description, places, root, seed)
    known: Memory = {} if memory is None else memory
    cells = share(_cells(description, singles), shard)
    measure_cells(cells, known, Attempt(tolerant=True), jobs=jobs, progress=progress)
    return gather(description, places, singles, known)


def _cells(description: Description, singles: Sequence[Single]) -> list[Cell]:
    extra = EXTRAS.get(description.shape)
    return [
        Cell(
            key=single.key,
            row=(single.place, id(single.line)),  # a line is known by its identity
            request=single.line.request,
            source=single.source,
            extra=extra,
            start=int(single.line.name == description.reference),
        )
        for single in singles
    ]


# --- rows -----------------------------------------------------------------------------------------


def gather(
    description: Description,
    places: Sequence[Place],
    singles: Sequence[Single],
    known: Memory,
) -> list[Measured]:
    """Every line on every data set, with the outcomes that are known."""
    outcomes: dict[tuple[Place, int, int], Outcome] = {}
    numbers = {id(line): number for number, line in enumerate(description.lines)}
    for single in singles:
        outcome = known.get(single.key)
        if outcome is not None and single.line.request.made(outcome):
            where = single.place, numbers[id(single.line)], single.source.seed
            outcomes[where] = _plain(outcome)
    _compare(description, outcomes)
    measured = []
    for place in places:
        for number, line in enumerate(description.lines):
            seeds = [
                (seed, outcome)
                for (other, which, seed), outcome in outcomes.items()
                if other == place and which == number
            ]
            measured.append(_gather_one(line, place, seeds))
    return measured


def _plain(outcome: Outcome) -> Outcome:
    """A copy whose scores can be added to."""
    return outcome | {"scores": dict(outcome.get("scores", {}))}


def _compare(description: Description, outcomes: dict[tuple[Place, int, int], Outcome]) -> None:
    """Set every outcome beside that of the reference on the same data, under the same seed."""
    if description.reference is None:
        return
    names = [line.name for line in description.lines]
    references = {
        (place, seed): outcome
        for (place, number, seed), outcome in outcomes.items()
        if names[number] == description.reference and "refused" not in outcome
    }
    for (place, number, seed), outcome in outcomes.items():
        reference = references.get((place, seed))
        if reference is None or "refused" in outcome:
            continue
        scores = compare_outcomes(description.shape, outcome, reference)
        if names[number] == description.reference:  # which says nothing of itself
            scores = {key: value for key, value in scores.items() if key == "iou_original"}
        outcome["scores"] |= scores


def _gather_one(line: Line, place: Place, seeds: Sequence[tuple[int, Outcome]]) -> Measured:
    name = place.runs_on or place.data
    row = make_row(line.request, name, [outcome for _, outcome in seeds])
    if place.runs_on is None:
        row = replace(row, refused=f"{place.data} is not on disk. {place.get}".strip())
    return Measured(line=line, place=place, row=row, outcomes=tuple(seeds))


def missed(description: Description, measured: Sequence[Measured]) -> list[str]:
    """Every figure below what the description demands of it, in words.

    Nothing is demanded of stand-ins, nor of a small version, whose runs are shorter.
    """
    if description.quick:
        return []
    sentences = []
    for one in measured:
        least = one.line.at_least.get(one.place.data)
        if least is None or one.place.runs_on != one.place.data:
            continue
        mean = one.row.score(description.metric)[0]
        if mean is None or mean < least:
            got = "no figure" if mean is None else f"{100 * mean:.1f}"
            sentences.append(
                f"{one.line.whole_name} on {one.place.data} must reach {100 * least:.3g} %. "
                f"Got {got} instead."
            )
    return sentences
