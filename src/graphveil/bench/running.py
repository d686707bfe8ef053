"""Runs are run: those whose outcome is not known yet, all of them or a shard, by some processes.

What a run comes to depends on its request and its source alone, chance apart: neither on how many
processes there are, nor on the order in which they end.

*Guarantee*: none for outcomes, which are read off the labels of test records.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypedDict

from graphveil._errors import GraphveilError, InvalidInputError
from graphveil._jobs import Failures, check_jobs, do_all, show_progress
from graphveil._progress import Progress
from graphveil.bench.contents import content_of
from graphveil.bench.measuring import measure_outcome, try_outcome
from graphveil.bench.requests import Memory, Outcome, Request
from graphveil.bench.results import Notes, stamp

if TYPE_CHECKING:
    from torch_geometric.data import Data

    from graphveil.runs import Source

Shard = tuple[int, int]  # (2, 4): the second of four


class How(TypedDict, total=False):
    """How runs are run; nothing of it changes what they come to.

    ``jobs`` is the number of processes. Outcomes that ``memory`` holds are not measured again; of
    a ``shard`` (i, n) every n-th run is done, from the i-th on.
    """

    jobs: int
    shard: Shard | None
    memory: Memory | None
    progress: Progress | None


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One run that is wanted.

    ``key`` is what its outcome is noted under. After a plan that was refused, the other cells of
    its ``row`` are not tried.
    """

    key: str
    row: Hashable
    request: Request
    source: Source
    extra: str | None = None
    start: int = 0

    @property
    def name(self) -> str:
        """What it is called in a line about it."""
        budget = self.request.epsilon
        epsilon = "" if budget is None else f" at epsilon {budget:g}"
        varied = ", ".join(f"{key}={value}" for key, value in self.request.varied.items())
        setting = f" ({varied})" if varied else ""
        label = f"{self.request.name or self.request.method}{setting}"
        return f"{label}{epsilon} on {self.source.data}, seed {self.source.seed}"


class Attempt:
    """Measures cells, one after the other; the graph that was loaded last stays.

    ``data`` is the graph of all of them; without it, each is loaded from its source, and must have
    the content of the results that are ``known``, if they say so. If it is ``tolerant``, whatever
    graphveil refuses is an outcome, and else what a plan refuses.
    """

    def __init__(
        self, data: Data | None = None, known: Memory | None = None, *, tolerant: bool = False
    ) -> None:
        self._data, self._given, self._name = data, data is not None, ""
        self._tolerant = tolerant
        named = known if isinstance(known, Notes) else None
        self._content = None if named is None else named.content
        self._folder = None if named is None else named.path.parent

    def __call__(self, cell: Cell) -> Outcome:
        """The outcome of a cell."""
        try:
            data = self._load(cell.source)
        except GraphveilError as error:
            if not self._tolerant:
                raise
            return {"refused": str(error)}
        measure = try_outcome if self._tolerant else measure_outcome
        return measure(cell.request, cell.source, data, cell.extra, cell.start)

    def _load(self, source: Source) -> Data:
        if not self._given and (self._data is None or source.data != self._name):
            self._data = None  # before the next one takes its place
            data = source.load()
            if self._has_changed(data):
                raise InvalidInputError(
                    f"{source.data} must stay what it is while it is measured. Got other content "
                    "than before; start the command again."
                )
            self._data, self._name = data, source.data
        assert self._data is not None
        return self._data

    def _has_changed(self, data: Data) -> bool:
        if self._content is None or self._folder is None:
            return False
        return content_of(data, self._folder) != self._content


def parse_shard(text: str) -> Shard:
    """``2/4``: the second of four."""
    number, slash, count = text.partition("/")
    if not (slash and number.isdigit() and count.isdigit() and 1 <= int(number) <= int(count)):
        raise InvalidInputError(
            f"A shard must be written as I/N with I from 1 to N, e.g. 2/4. Got {text!r} instead."
        )
    return int(number), int(count)


def share(cells: Sequence[Cell], shard: Shard | None) -> list[Cell]:
    """Every n-th of the runs that differ."""
    distinct = list({cell.key: cell for cell in cells}.values())
    return distinct if shard is None else distinct[shard[0] - 1 :: shard[1]]


def measure_cells(
    cells: Sequence[Cell],
    known: Memory,
    attempt: Attempt,
    *,
    jobs: int = 1,
    progress: Progress | None = None,
) -> None:
    """Measure what ``known`` does not hold yet, and note each outcome as it comes.

    Where outcomes are kept in a file, a run that fails stops no other: its error is raised when all
    are done. Else it is raised at once.
    """
    check_jobs(jobs)
    if not isinstance(known, Notes):
        _measure(cells, known, attempt, jobs, progress)
        return
    with closing(known):  # which lets others write, however this ends
        _measure(cells, known, attempt, jobs, progress)


def _measure(
    cells: Sequence[Cell], known: Memory, attempt: Attempt, jobs: int, progress: Progress | None
) -> None:
    failures = Failures(go_on=isinstance(known, Notes))
    places = {cell.key: number for number, cell in enumerate(cells)}
    refused: set[Hashable] = set()
    with show_progress(progress, len(cells)) as advance:

        def wanted() -> Iterator[Cell]:
            for cell in cells:
                if cell.row not in refused and not is_known(known, cell):
                    if isinstance(known, Notes):
                        known.hold()
                    if not is_known(known, cell):  # now that nobody else writes there
                        yield cell
                        continue
                advance()

        left = sum(not is_known(known, cell) for cell in cells)
        most = max(1, min(jobs, left))
        results = do_all(attempt, wanted(), jobs=most, name=lambda cell: cell.name)
        with closing(results):
            for done in results:
                if done.error is not None:
                    failures.add(places[done.item.key], done.error)
                else:
                    _note(known, done.item, done.take(), refused)
                advance()
    failures.raise_first()


def is_known(known: Memory, cell: Cell) -> bool:
    """Whether an outcome has all that is asked for; a refusal may be another one today."""
    outcome = known.get(cell.key)
    if outcome is None or "refused" in outcome or not cell.request.made(outcome):
        return False
    return cell.extra is None or cell.extra in outcome


def _note(known: Memory, cell: Cell, outcome: Outcome, refused: set[Hashable]) -> None:
    if "refused" in outcome:
        refused.add(cell.row)
        if known.get(cell.key, {}).get("refused") == outcome["refused"]:
            return
    known[cell.key] = stamp(outcome)
