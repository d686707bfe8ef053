"""DPAR without privacy: exact rows of PageRank, trained on in the open (the paper's DPARNoDP)."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar, final

from graphveil import _validate
from graphveil.methods.base import Method
from graphveil.methods.baselines import OpenSettings, plan_openly
from graphveil.methods.features import Features
from graphveil.methods.inference import NOTHING_PROMISED, Disjoint, Visible
from graphveil.methods.rows import (
    RowSettings,
    Sample,
    count_rows,
    describe_network,
    rank_nodes,
    read_by_rows,
    smooth_predictions,
)
from graphveil.methods.settings import FeatureSettings, settings

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch_geometric.data import Data

    from graphveil.graph.messages import Messages
    from graphveil.methods.execution import Execution
    from graphveil.methods.plan import Facts, Plan
    from graphveil.nn.descriptions import NodeNetwork

_RANKED_AT_ONCE = 4096  # rows
_ROWS_AT_ONCE = 1 << 14  # that go through the network together


@final
@settings(project_above=1_000_000, activation="relu", num_layers=2, steps=600, batch_size=256)
class OpenDPAR(Method, RowSettings, FeatureSettings, OpenSettings):
    """What ``dpar`` would be without noise: the exact neighbours of each row, training in the open.

    *Guarantee*: none; the certificate says so.
    """

    name: ClassVar[str] = "open-dpar"
    private: ClassVar[bool] = False
    inferences = (Visible(NOTHING_PROMISED), Disjoint())
    reads_stores: ClassVar[bool] = True

    def network(self, facts: Facts) -> NodeNetwork:
        return describe_network(self, facts, self.dropout)

    def _plan(self, facts: Facts) -> Plan:
        _validate.integer("neighbours", self.neighbours, f"[1, {facts.num_nodes}]")
        count_rows(self, facts)
        return plan_openly(self, facts)

    def _train(self, execution: Execution, data: Data) -> nn.Module:
        """Batches of rows, or of all nodes; the weights that do best on the validation nodes."""
        import torch

        from graphveil.graph.neighbourhoods import gather_neighbourhoods
        from graphveil.methods.open_training import OpenTraining, make_optimizer

        facts = execution.plan.facts
        drawn = self._draw(data, facts)
        messages = self._read(data, drawn)
        x, network = self.prepare(data), self.build(facts)
        train = torch.zeros_like(drawn.sample)
        train[drawn.rows] = True
        if self.train_on == "nodes":
            train = drawn.sample & data.train_mask
        training = OpenTraining(
            steps=self._num_steps(int(train.sum())),
            seed=self.seed,
            task=self.task(facts),
            weights=execution.class_weights,
            batch_size=self.batch_size,
            at_once=_ROWS_AT_ONCE,
            on_loss=execution.on_loss,
            on_step=execution.on_step,
            progress=execution.progress,
        )
        optimizer = make_optimizer(
            self.optimizer,
            network.parameters(),
            self.learning_rate,
            self.weight_decay,
            self.momentum,
        )
        execution.train_openly(
            execution.plan.part("weights"),
            lambda: training(
                network,
                optimizer,
                lambda ids: network(gather_neighbourhoods(x, messages, ids, 1)),
                data,
                train,
            ),
        )
        return network

    def _num_steps(self, terms: int) -> int:
        """As many as there are, or as pass over the terms so often."""
        if self.epochs is None:
            return self.steps
        batch = terms if self.batch_size is None else min(self.batch_size, terms)
        return max(1, self.epochs * -(-terms // batch))

    def _draw(self, data: Data, facts: Facts) -> Sample:
        """Who takes part, and who has a row; nothing of it is secret."""
        import torch

        from graphveil.rng import seeded

        rate = 1.0 if self.graph_rate is None else self.graph_rate
        sample = torch.from_numpy(
            seeded(self.seed, "sample").generator().random(len(data.x)) < rate
        )
        live = (sample & data.train_mask).nonzero().flatten()
        if not len(live):  # one at least, however rare nodes are
            live = data.train_mask.nonzero().flatten()[:1]
            sample[live] = True
        order = torch.from_numpy(seeded(self.seed, "rows").generator().permutation(len(live)))
        return Sample(sample, live[order[: count_rows(self, facts)]])

    def _read(self, data: Data, drawn: Sample) -> Messages:
        """What each row reads: its own node, and the nodes that matter most to it."""
        import numpy as np
        import torch

        rank = rank_nodes(self, data, drawn.sample)
        chosen = drawn.rows.numpy()[:, None].repeat(self.neighbours, 1)
        weight = np.zeros(chosen.shape)
        for start in range(0, len(chosen), _RANKED_AT_ONCE):
            scores = rank(drawn.rows[start : start + _RANKED_AT_ONCE])
            for row, (first, last) in enumerate(pairwise(scores.indptr), start):
                best = np.argsort(-scores.data[first:last], kind="stable")[: self.neighbours]
                chosen[row, : len(best)] = scores.indices[first:last][best]
                weight[row, : len(best)] = scores.data[first:last][best]
        weight /= np.maximum(weight.sum(1, keepdims=True), 1e-300)
        return read_by_rows(
            torch.from_numpy(chosen),
            torch.from_numpy(weight).float(),
            torch.from_numpy(weight > 0),
            drawn.rows,
            self.own_weight,
            len(data.x),
        )

    def prepare(self, data: Data) -> Any:
        """The rows that the network reads."""
        return Features.of(self).read(data)

    def outputs(self, data: Data, mode: str) -> Tensor:
        """Power iteration over log-probabilities."""
        return smooth_predictions(self, data)[1]
