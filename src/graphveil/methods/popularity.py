"""What every recommender must beat: the same list for everybody, and what is like one's own list.

===============  ==================================================  ===========================
popularity       how often each target is linked                     exact counts: no guarantee
dp-popularity    the same, through noise                             one Gaussian release
item-item        what is in the same lists as one's own targets      exact counts: no guarantee
===============  ==================================================  ===========================

A person's list counts as a vector of length 1 (each entry weighs 1 / sqrt(its length)), so that the
noise of ``dp-popularity`` is the same at any length of lists. Under the unit edge every link counts
one. What is like a list is private in every number; there is no private ``item-item``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, final

from graphveil.methods.base import Method
from graphveil.methods.baselines import plan_openly
from graphveil.methods.budget import choose_delta, scale_within
from graphveil.methods.dp_link import plan_popularity, release_popularity
from graphveil.methods.inference import NOTHING_PROMISED, Disjoint, Visible
from graphveil.methods.plan import Facts, Plan
from graphveil.methods.settings import Budget, setting, settings
from graphveil.nn.target_tables import PopularityTable, SimilarityTable

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch_geometric.data import Data

    from graphveil.methods.execution import Execution
    from graphveil.methods.link_scoring import Recommendations

_AT_ONCE = 1 << 22  # scores in memory
_COMPARED = 1 << 25  # pairs of targets that are compared together
SAME_FOR_ALL = (
    "visible: scores are the same for every source; a list of targets leaves out what its own "
    "source is linked to, and is shown to that source only"
)
NOBODY_MAY = "whoever may see all links: nothing is promised"
ITS_OWN = (
    "each source's list to that source, or to whoever holds its data: it leaves out what the "
    "source is linked to"
)


@dataclass(frozen=True, eq=False)
class PopularScores:
    """The same scores for every source."""

    table: Any  # (targets,)

    def __call__(self, sources: Any, targets: Any = None) -> Any:
        import numpy as np

        if targets is None:
            return np.tile(self.table, (len(sources), 1))
        return self.table[targets]


@dataclass(frozen=True, eq=False)
class SimilarScores:
    """How much a target is like the list of a source, all entries added up."""

    lists: Any  # sparse (sources, targets)
    table: Any  # sparse (targets, targets)

    def __call__(self, sources: Any, targets: Any = None) -> Any:
        import numpy as np

        step = max(1, _AT_ONCE // self.table.shape[0])
        parts = []
        for first in range(0, len(sources), step):
            some = slice(first, first + step)
            scores = (self.lists[sources[some]] @ self.table).toarray()
            parts.append(
                scores if targets is None else np.take_along_axis(scores, targets[some], 1)
            )
        return np.concatenate(parts)


# --- what they share ------------------------------------------------------------------------------


def _recommend(method: Any, data: Any, top: int = 10, sources: Any = None) -> Recommendations:
    """The ``top`` best targets of each source that are not in its own list, best first."""
    from graphveil.graph.links import is_one_type, own_lists
    from graphveil.methods import link_scoring

    data = method.readable(data)
    lists = own_lists(data, link_scoring.known_links(data))
    return link_scoring.recommend(
        method.link_scores(data),
        lists,
        ITS_OWN if method.private else NOBODY_MAY,
        top,
        sources,
        one_type=is_one_type(data),
    )


def _outputs(method: Any, data: Data, mode: str) -> Tensor:
    from graphveil.methods.link_scoring import score_all

    return score_all(method.link_scores(data), len(data.x), method.plan_.facts.num_classes)


def _popular_scores(method: Any, data: Data) -> PopularScores:
    return PopularScores(method.network_.popularity.cpu().numpy())


def _popular_network(method: Any, facts: Facts) -> PopularityTable:
    return PopularityTable(num_targets=facts.num_classes)


# --- methods --------------------------------------------------------------------------------------


@final
@settings()
class Popularity(Method):
    """The targets that are linked most often, for everybody, counted in the open.

    *Guarantee*: none.
    """

    name: ClassVar[str] = "popularity"
    record: ClassVar[str] = "link"
    private: ClassVar[bool] = False
    compared: ClassVar[bool] = True
    tasks: ClassVar[tuple[str, ...]] = ("link",)
    inferences = (Visible(NOTHING_PROMISED), Disjoint())

    def _train(self, execution: Execution, data: Data) -> nn.Module:
        from graphveil.graph.link_terms import count_targets
        from graphveil.graph.links import num_targets, own_lists

        network = self.build(execution.plan.facts)

        def count() -> None:
            counts = count_targets(own_lists(data), num_targets(data), balanced=False)
            network.popularity.copy_(counts)

        execution.train_openly(execution.plan.part("weights"), count)
        return network

    _plan, network, outputs = plan_openly, _popular_network, _outputs
    link_scores, recommend = _popular_scores, _recommend


@final
@settings()
class DPPopularity(Method, Budget):
    """The targets that are linked most often, for everybody, counted through noise.

    *Guarantee*: the counts are (epsilon, delta)-private for one node withheld, with its own list,
    or for one edge.
    """

    name: ClassVar[str] = "dp-popularity"
    record: ClassVar[str] = "link"
    compared: ClassVar[bool] = True
    tasks: ClassVar[tuple[str, ...]] = ("link",)
    units: ClassVar[tuple[str, ...]] = ("node", "edge")
    inferences = (Visible(SAME_FOR_ALL), Disjoint())

    unit: Literal["node", "edge"] = setting(
        "What is protected: a 'node' with its own list, or one 'edge'.", "node"
    )

    def _plan(self, facts: Facts) -> Plan:
        delta = choose_delta(self.delta, self.num_units(facts))
        scale = scale_within(
            lambda noise: (plan_popularity(self, facts, noise),), epsilon=self.epsilon, delta=delta
        )
        part = plan_popularity(self, facts, scale)
        return Plan(
            method=self.name,
            facts=facts,
            unit=self.unit_for(facts),
            delta=delta,
            parts=(part,),
            released="noisy counts of targets",
            inference=(SAME_FOR_ALL,),
            details={"noise_multiplier": scale, "sensitivity": part.mechanism.sensitivity},
        )

    def _train(self, execution: Execution, data: Data) -> nn.Module:
        network = self.build(execution.plan.facts)
        network.popularity.copy_(release_popularity(execution, data))
        return network

    network, outputs = _popular_network, _outputs
    link_scores, recommend = _popular_scores, _recommend


@final
@settings()
class ItemItem(Method):
    """Targets that stand in the same lists as one's own, by the cosine of who is linked to them.

    *Guarantee*: none.
    """

    name: ClassVar[str] = "item-item"
    record: ClassVar[str] = "link"
    private: ClassVar[bool] = False
    compared: ClassVar[bool] = True
    tasks: ClassVar[tuple[str, ...]] = ("link",)
    inferences = (Visible(NOTHING_PROMISED), Disjoint())

    similar: int = setting("How many others each target is compared with.", 100, "[1, 1e6]")
    damping: float = setting(
        "Sources that each target is taken to have besides its own: what few are linked to is "
        "less like anything.",
        1.0,
        "[0, inf)",
    )

    def network(self, facts: Facts) -> SimilarityTable:
        return SimilarityTable(
            num_targets=facts.num_classes, similar=min(self.similar, facts.num_classes)
        )

    def _train(self, execution: Execution, data: Data) -> nn.Module:
        network = self.build(execution.plan.facts)
        execution.train_openly(
            execution.plan.part("weights"), lambda: _compare_targets(self, network, data)
        )
        return network

    def link_scores(self, data: Data) -> SimilarScores:
        """How much targets are like the list of each source."""
        from graphveil.methods.link_scoring import known_links

        return SimilarScores(_list_matrix(data, known_links(data)), self.network_.matrix())

    _plan, outputs, recommend = plan_openly, _outputs, _recommend


def _list_matrix(data: Data, mask: Tensor | None = None) -> Any:
    """A one for each entry of each source's list."""
    import numpy as np
    from scipy import sparse

    from graphveil.graph.links import num_targets, own_lists

    lists = own_lists(data, mask)
    parts = np.ones(len(lists.others), dtype=np.float32), lists.others, lists.offsets
    return sparse.csr_array(parts, shape=(lists.num_nodes, num_targets(data)))


def _compare_targets(method: ItemItem, network: Any, data: Data) -> None:
    """For each target the most similar others, some targets at a time."""
    import numpy as np
    import torch

    lists = _list_matrix(data)
    by_target = lists.T.tocsr()
    counts = np.diff(by_target.indptr).astype(np.float32)
    length = np.sqrt(counts + method.damping)
    length[length == 0] = 1.0
    kept, step = network.others.shape[1], max(1, _COMPARED // len(counts))
    for first in range(0, len(counts), step):
        some = slice(first, min(first + step, len(counts)))
        likeness = (by_target[some] @ lists).toarray()
        likeness /= length[some, None] * length
        rows = np.arange(some.stop - first)
        likeness[rows, rows + first] = 0.0  # a target says nothing about itself
        value, place = torch.from_numpy(likeness).topk(kept, dim=1)
        network.others[some], network.likeness[some] = place, value
