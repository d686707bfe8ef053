"""Which graph a run is asked about: whether it can be, and the ids of its records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from graphveil._errors import InvalidInputError
from graphveil._inputs import at_home
from graphveil.cli._notices import notices
from graphveil.cli._output import say
from graphveil.cli._runs import is_cataloged, is_same_place

if TYPE_CHECKING:
    from graphveil.runs import Run


def check_graph(data: str, run: str, mode: str | None, *, noisy: bool = True) -> None:
    """Refuse a mode that the graph is wrong for, where the name alone tells.

    ``noisy`` says whether the mode of that name is a way out.
    """
    from graphveil import runs

    trained = runs.Run(run)
    cached = mode is None and trained.has(runs.CACHE)
    if trained.state_of_run != "finished" or not (cached or mode == "disjoint"):
        return
    trained_on = trained.record().asked.source.data
    others = "noisy, visible or disjoint" if noisy else "visible or disjoint"
    same = "'visible' or 'noisy'" if noisy else "'visible'"
    if cached and not is_same_place(data, trained_on):
        raise InvalidInputError(
            f"The run {run} has noisy sums for the nodes of {trained_on!r}, in their order. Got "
            f"{data!r} instead; for another graph name a --mode: {others} "
            "(cached says that it is the same one under another name)."
        )
    if not cached and is_cataloged(data) and data == trained_on:
        raise InvalidInputError(
            "The mode 'disjoint' must have another graph than the one trained on. Got "
            f"{data!r} again; use the mode {same}."
        )
    if not cached and not is_cataloged(data) and is_same_place(data, trained_on):
        say(
            f"the run was trained on {data}, too: 'disjoint' is true only if another graph is "
            f"there now; otherwise use the mode {same}."
        )


@notices()
def load_graph(trained: Run, data: str, root: str | None) -> Any:
    """The graph that a run is asked about, read as the run says."""
    return trained.load(data, root)


def read_ids(trained: Run, data: str, record: str) -> Sequence[str] | None:
    """The ids as the user's own table has them; None where nodes or graphs are numbered from 0.

    Those of a store stay on disk.
    """
    from graphveil.data import files, graph_tables, store
    from graphveil.data.store_format import is_store
    from graphveil.data.typed_schema import is_typed_place

    if is_cataloged(data) or not at_home(data).is_dir():
        return None
    if is_typed_place(at_home(data)):
        return load_graph(trained, data, None).ids
    if is_store(data):
        return getattr(store.open_store(at_home(data)), "ids", None)
    column = (trained.record().asked.schema or {}).get("id", "id")
    read = graph_tables.graph_ids if record == "graph" else files.node_ids
    return read(data, column)
