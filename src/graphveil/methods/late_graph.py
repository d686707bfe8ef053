"""Train without edges; use the graph when predicting, or never.

Only the weights and two noisy sums are released, so prediction may read the graph: what neighbours'
rows say about a node reaches whoever sees the prediction (`visible`), goes through noise (`noisy`),
or is another graph's (`disjoint`). How training goes stands in :mod:`graphveil.methods.own_row`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar, Literal, final

from graphveil.methods import own_row
from graphveil.methods.base import Method
from graphveil.methods.inference import OWN_ROW, Disjoint, Noisy, Visible, hear_neighbours
from graphveil.methods.own_row import OwnRowSettings, describe_network
from graphveil.methods.plan import Facts
from graphveil.methods.settings import Budget, setting, settings
from graphveil.methods.task import has_classes
from graphveil.nn.descriptions import NodeNetwork

if TYPE_CHECKING:
    from torch import Tensor
    from torch_geometric.data import Data


@final
@settings()
class DPMLP(Method, OwnRowSettings, Budget):
    """A private model of each node's own features: the baseline that never reads an edge.

    It is linear unless told otherwise; public facts decide the rest, and ``plan`` shows it.

    *Guarantee*: the weights are (epsilon, delta)-private for one node, withheld or removed.
    """

    name: ClassVar[str] = "dp-mlp"
    compared: ClassVar[bool] = True
    inferences = (Visible(OWN_ROW), Disjoint())
    scored_by: ClassVar[str] = "own row"
    owners: ClassVar[str | None] = "one term"
    reads_stores: ClassVar[bool] = True
    reads_prior: ClassVar[bool] = False

    def network(self, facts: Facts) -> NodeNetwork:
        return describe_network(self, facts)

    def influence(self, facts: Facts) -> tuple[int, int]:
        """A node removes its own loss term."""
        return own_row.INFLUENCE

    def outputs(self, data: Data, mode: str) -> Tensor:
        """From each node's own row."""
        from graphveil.methods.terms import on_own_rows

        return on_own_rows(self.network_, self.prepare(data))

    _plan, _train = own_row.plan_own_rows, own_row.train_own_rows
    terms, prepare = own_row.own_terms, own_row.prepare


@final
@settings()
class LateGraph(Method, OwnRowSettings, Budget):
    """A private model of each node's own features, whose beliefs are passed over the graph.

    Training is that of :class:`DPMLP`. When predicting, a node hears what its neighbours believe,
    beyond how common each class is, and they what theirs do: ``rounds`` times, so that a prediction
    reads rows that many steps away. On a graph that was not trained on (``disjoint``) a student
    then learns the beliefs from that graph's own rows.

    *Guarantee*: that of the weights, as for :class:`DPMLP`; prediction has its own line.
    """

    name: ClassVar[str] = "late-graph"
    compared: ClassVar[bool] = True
    inferences = (Visible(reach="rounds"), Noisy(), Disjoint(student="student"))
    scored_by: ClassVar[str] = "own row"
    owners: ClassVar[str | None] = "one term"
    reads_stores: ClassVar[bool] = True
    reads_prior: ClassVar[bool] = True

    reading: Literal["beliefs", "smoothing", "inside"] = setting(
        "Where the graph is read: 'beliefs' are passed on; 'smoothing' spreads log-probabilities, "
        "'inside' the hidden states of the network.",
        "beliefs",
        predicts=True,
    )
    rounds: int = setting(
        "How often nodes hear their neighbours; how far a prediction reads.",
        3,
        "[0, 1000]",
        predicts=True,
    )
    likeness: float | None = setting(
        "Of 'beliefs': how often neighbours are taken to be of one class, beyond chance, or how "
        "strongly their values go together; by default 0.85 for the task multiclass, 0.3 for "
        "others, in which neighbours are often little alike.",
        None,
        "[0, 1)",
        predicts=True,
    )
    teleport: float = setting(
        "Of 'smoothing' and 'inside': the share of a node's own value in a mean.",
        0.3,
        "[0, 1]",
        predicts=True,
    )
    student: bool = setting(
        "Whether a student learns predictions on a disjoint graph.", True, predicts=True
    )

    def network(self, facts: Facts) -> NodeNetwork:
        return describe_network(self, facts)

    @property
    def likeness_in_use(self) -> float:
        """How far neighbours are taken to be alike."""
        if self.likeness is not None:
            return self.likeness
        return 0.85 if self.plan_.facts.task == "multiclass" else 0.3

    def influence(self, facts: Facts) -> tuple[int, int]:
        """A node removes its own loss term."""
        return own_row.INFLUENCE

    def outputs(self, data: Data, mode: str) -> Tensor:
        """What nodes believe after hearing their neighbours; a student's view of it if disjoint."""
        from graphveil.methods.distillation import follow_beliefs
        from graphveil.methods.terms import every_message

        messages = every_message(data, self.seed)
        heard = self._hear(data, messages)
        if mode != "disjoint" or not self.student or not has_classes(self.plan_.facts):
            return heard
        steps = self.plan_.part("weights")
        noise = steps.noise_multiplier / (steps.rate * math.sqrt(steps.count))
        own = self._own_beliefs(data)
        return follow_beliefs(own, heard, self.prepare(data), messages, noise)

    def _own_beliefs(self, data: Data) -> Tensor:
        """What each node's own row says: log-probabilities, of labels log-odds, or a value."""
        from graphveil.methods.terms import on_own_rows

        outputs = on_own_rows(self.network_, self.prepare(data))
        return self.task(self.plan_.facts).beliefs(outputs)

    def _hear(self, data: Data, messages: Any) -> Tensor:
        """Log-beliefs of nodes that read their neighbours."""
        from graphveil.graph.beliefs import (
            pass_beliefs,
            pass_label_beliefs,
            pass_value_beliefs,
        )
        from graphveil.graph.lazy_rows import map_rows
        from graphveil.graph.propagation import spread_rows

        network, task = self.network_, self.plan_.facts.task
        if self.reading == "inside":

            def hide(rows: Tensor) -> Tensor:
                hidden: Tensor = network.encode(rows)
                return hidden.to_dense() if hidden.is_sparse_csr else hidden

            hidden = map_rows(hide, self.prepare(data))
            return network.decoder(spread_rows(hidden, messages, self.rounds, self.teleport))
        own = self._own_beliefs(data)
        if self.reading == "smoothing":
            return spread_rows(own, messages, self.rounds, self.teleport)
        prior, likeness = network.log_prior.cpu(), self.likeness_in_use
        if task == "regression":
            return pass_value_beliefs(own, prior, messages, self.rounds, likeness)
        if task == "multilabel":
            odds = prior - (-prior.expm1()).log()
            doubted = odds + own_row.trust(self) * (own - odds)
            return pass_label_beliefs(doubted, odds, messages, self.rounds, likeness)
        doubted = (prior + own_row.trust(self) * (own - prior)).log_softmax(1)
        return pass_beliefs(doubted, prior, messages, self.rounds, likeness)

    _plan, _train = own_row.plan_own_rows, own_row.train_own_rows
    terms, prepare = own_row.own_terms, own_row.prepare
    noisy_outputs = hear_neighbours
