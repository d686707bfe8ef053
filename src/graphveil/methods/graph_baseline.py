"""What would be possible on whole graphs without privacy.

No guarantee: its certificate says so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Literal, final

from graphveil.methods.base import Method
from graphveil.methods.baselines import OpenSettings, plan_openly
from graphveil.methods.graph_models import (
    ROUNDS,
    GraphSettings,
    count_rows,
    describe_model,
    outputs_of_graphs,
    reads_counts,
)
from graphveil.methods.inference import NOTHING_PROMISED, Disjoint, Visible
from graphveil.methods.plan import Facts
from graphveil.methods.settings import Optimizer, setting, settings
from graphveil.nn.descriptions import GraphNetwork, Perceptron

if TYPE_CHECKING:
    from scipy import sparse
    from torch import Tensor, nn
    from torch_geometric.data import Data

    from graphveil.methods.execution import Execution


def _row_logits(network: nn.Module, rows: sparse.csr_array) -> Callable[[Tensor], Tensor]:
    """What one linear layer says of some rows, at the price of what they hold."""
    import torch

    from graphveil.nn.gap import SparseRows

    (layer,) = (part for part in network.modules() if isinstance(part, torch.nn.Linear))
    whole = SparseRows(rows.astype("float32"))
    taken: dict[int, tuple[Tensor, SparseRows]] = {}  # the training and the validation graphs

    def logits(ids: Tensor) -> Tensor:
        kept, some = taken.get(len(ids), (None, None))
        if some is None or kept is None or not torch.equal(kept, ids):
            some = whole[ids]
            taken[len(ids)] = ids, some
        return some.times(layer.weight.t()) + layer.bias

    return logits


@final
@settings(dropout=0.0, weight_decay=0.0)
class GraphBaseline(Method, GraphSettings, OpenSettings):
    """A classifier of whole graphs trained without privacy.

    It reads what graph-dpsgd reads: counts of each graph's own patterns, or convolutions where one,
    or a setting of one, is given.
    """

    name: ClassVar[str] = "graph-gnn"
    record: ClassVar[str] = "graph"
    private: ClassVar[bool] = False
    compared: ClassVar[bool] = True
    units: ClassVar[tuple[str, ...]] = ("graph",)
    inferences = (Visible(NOTHING_PROMISED), Disjoint())
    scored_by: ClassVar[str] = "own graph"

    steps: int | None = setting(  # type: ignore[assignment]
        "Steps; by default 600 on counts and 400 with convolutions.", None, "[1, 1e9]"
    )
    optimizer: Optimizer | None = setting(  # type: ignore[assignment]
        "What steps with the gradients; by default 'sgd' on counts and 'adam' with convolutions.",
        None,
    )
    learning_rate: float | None = setting(  # type: ignore[assignment]
        "The length of steps; by default 0.01, and 0.3 of 'sgd' on counts.", None, "(0, inf)"
    )
    batch_size: int | None = setting(
        "Graphs that a step reads; by default all on counts and 64 with convolutions.",
        None,
        "[1, 1e9]",
    )
    keep: Literal["best", "last"] = setting(
        "Which weights are kept: the best on the validation graphs (on counts by their loss, with "
        "convolutions by decisions), or the last.",
        "best",
    )
    cycles: int = setting(
        "How often the learning rate goes up and down, between a tenth of it and all of it.",
        0,
        "[0, 1e6]",
    )

    def network(self, facts: Facts) -> GraphNetwork | Perceptron:
        return describe_model(self, facts, self.dropout)

    def rounds_for(self, facts: Facts) -> int:
        """How often colours are refined."""
        return ROUNDS if self.rounds is None else self.rounds

    def _train(self, execution: Execution, data: Data) -> nn.Module:
        """Batches of graphs; the last weights, or those that do best on the validation graphs."""
        import torch

        from graphveil.methods.open_training import OpenTraining, make_optimizer

        facts = execution.plan.facts
        network, task = self.build(facts), self.task(facts)
        logits = self._logits(network, data)
        counts = reads_counts(self)
        steps = self.steps or (600 if counts else 400)
        kind = self.optimizer or ("sgd" if counts else "adam")
        usual_rate = 0.3 if counts and kind == "sgd" else 0.01
        if counts:
            for parameter in network.parameters():
                torch.nn.init.zeros_(parameter)
        optimizer = make_optimizer(
            kind,
            network.parameters(),
            self.learning_rate or usual_rate,
            self.weight_decay,
            self.momentum,
        )
        training = OpenTraining(
            steps=steps,
            seed=self.seed,
            batch_size=self.batch_size or (None if counts else 64),
            every=5 if self.keep == "best" else steps + 1,  # never compared
            by_loss=counts,
            rate=self.rate,
            task=task,
            weights=execution.class_weights,
            on_loss=execution.on_loss,
            on_step=execution.on_step,
            progress=execution.progress,
        )
        execution.train_openly(
            execution.plan.part("weights"),
            lambda: training(network, optimizer, logits, data),
        )
        return network

    def _logits(self, network: nn.Module, data: Data) -> Callable[[Tensor], Tensor]:
        """What the network says of some graphs, by their numbers."""
        if not reads_counts(self):
            graphs = self.graphs(data)
            return lambda ids: graphs.logits(network, ids)
        return _row_logits(network, count_rows(self, data))

    def rate(self, done: float) -> float:
        """The share of the learning rate when a share of the steps is done."""
        if not self.cycles:
            return 1.0
        place = done * self.cycles % 1
        return 0.1 + 0.9 * (1 - abs(2 * place - 1))

    def graphs(self, data: Data) -> Any:
        """The graphs as convolutions read them."""
        from graphveil.methods.terms import Graphs

        return Graphs.of(data, degree=self.degree, geometry=self.geometry)

    def outputs(self, data: Data, mode: str) -> Tensor:
        """From each graph alone."""
        return outputs_of_graphs(self, data)

    _plan = plan_openly
