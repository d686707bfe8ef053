"""One run, several processes: rank 0 has the directory and the ledger, the others the same data.

Rank 0 reserves and loads first: a ledger knows of the run before any process opens its data, and
whatever is fetched or built on the way is there for the others. Before anything is charged for good
all of them compare what they loaded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from graphveil import processes
from graphveil.methods import Method, Plan
from graphveil.runs.record import as_plain
from graphveil.runs.source import Source

if TYPE_CHECKING:
    from pathlib import Path

    from torch_geometric.data import Data


def lead(plan: Plan | None, data: Data | None = None) -> None:
    """On rank 0: have the others load the same data for a plan; None if nothing is to be run."""
    ranks = processes.current()
    if plan is None or data is None:
        ranks.tell(lambda: None)
        return
    if ranks.world > 1:
        from graphveil.graph.contents import compare_data
        from graphveil.methods.execution import check_shared

        check_shared(plan, ranks)
        ranks.tell(lambda: {"plan": as_plain(plan.to_json())})
        compare_data(data)


def follow(directory: Path, method: Method, source: Source) -> None:
    """On another rank: wait for rank 0, load what it loaded, and take part in its plan."""
    from graphveil.graph.contents import compare_data

    try:
        order: dict[str, Any] | None = processes.current().tell(lambda: None)
        if order is None:
            return
        data = source.arrange(source.load()).training
        compare_data(data)
        method.run(Plan.from_json(order["plan"]), data)
    except processes.LostRankError as error:
        error.add_note(f"What the run in {directory} began stays counted; see --resume.")
        raise
