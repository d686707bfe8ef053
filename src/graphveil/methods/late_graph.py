"""Train without edges; use the graph when predicting, or never.

A loss term reads its own node and nothing else, the cheapest step there is (r = 1, a = 0). Only the
weights are charged, so prediction may read the graph: what neighbours' rows say about a node
reaches whoever sees the prediction (`visible`), goes through noise (`noisy`), or is another graph's
(`disjoint`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, final

from graphveil.methods.base import Method
from graphveil.methods.budget import plan_steps
from graphveil.methods.features import Features
from graphveil.methods.inference import OWN_ROW, Disjoint, Noisy, Visible, hear_neighbours
from graphveil.methods.plan import Facts, Plan
from graphveil.methods.settings import (
    Budget,
    FeatureSettings,
    StepSettings,
    check_bound,
    setting,
    settings,
)
from graphveil.nn.descriptions import NodeNetwork

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch_geometric.data import Data

    from graphveil.methods.execution import Execution

_LAYERS = "Layers of the network."
_INFLUENCE = (1, 0)  # a node removes its own loss term, and alters no other


def describe_mlp(method: Any, facts: Facts, dropout: float = 0.0) -> NodeNetwork:
    """A network of each node's own row."""
    return NodeNetwork(
        in_channels=Features.of(method).columns(facts.num_features),
        hidden_channels=method.hidden_channels,
        out_channels=method.task(facts).outputs,
        num_layers=0,
        encoder_layers=method.num_layers - 1,
        decoder_layers=1,
        activation=method.activation,
        dropout=dropout,
    )


def _plan_mlp(method: Any, facts: Facts) -> Plan:
    check_bound(method.max_grad_norm, method.clipping)
    plan = plan_steps(method, facts, influence=_INFLUENCE, units=method.num_units(facts))
    return replace(plan, inference=(method.inferences[0].says(method, "node"),))


def _own_terms(method: Any, data: Data) -> Any:
    from graphveil.methods.terms import own_row_terms

    return own_row_terms(method.prepare(data), data)


def _train_mlp(method: Any, execution: Execution, data: Data) -> nn.Module:
    from graphveil.methods.terms import node_losses

    facts = execution.plan.facts
    network = method.build(facts)
    losses = node_losses(method.task(facts))
    execution.train(execution.plan.part("weights"), network, method.terms(data), losses)
    return network


def _prepare(method: Any, data: Data) -> Tensor:
    """The rows that the network reads."""
    return Features.of(method).prepare(data.x, keep_sparse=True)


@final
@settings()
class DPMLP(Method, FeatureSettings, StepSettings, Budget):
    """A private MLP on each node's own features: the baseline that never reads an edge.

    *Guarantee*: the weights are (epsilon, delta)-private for one node, withheld or removed.
    """

    name: ClassVar[str] = "dp-mlp"
    compared: ClassVar[bool] = True
    inferences = (Visible(OWN_ROW), Disjoint())
    scored_by: ClassVar[str] = "own row"

    num_layers: int = setting(_LAYERS, 2, "[1, 10]")

    def network(self, facts: Facts) -> NodeNetwork:
        return describe_mlp(self, facts)

    def influence(self, facts: Facts) -> tuple[int, int]:
        """A node removes its own loss term."""
        return _INFLUENCE

    def outputs(self, data: Data, mode: str) -> Tensor:
        """From each node's own row."""
        from graphveil.methods.terms import no_messages

        return self.network_.on_graph(self.prepare(data), no_messages(len(data.x)))

    _plan, _train, terms, prepare = _plan_mlp, _train_mlp, _own_terms, _prepare


@final
@settings()
class LateGraph(Method, FeatureSettings, StepSettings, Budget):
    """A private MLP whose predictions are smoothed over the graph.

    *Guarantee*: that of the weights, as for :class:`DPMLP`; prediction has its own line.
    """

    name: ClassVar[str] = "late-graph"
    compared: ClassVar[bool] = True
    inferences = (Visible(), Noisy(), Disjoint())
    scored_by: ClassVar[str] = "own row"

    num_layers: int = setting(_LAYERS, 2, "[1, 10]")
    reading: Literal["smoothing", "inside"] = setting(
        "Where the graph is read: 'smoothing' spreads log-probabilities over it, 'inside' the "
        "hidden states of the network.",
        "smoothing",
        predicts=True,
    )
    smoothing_steps: int = setting(
        "How often means over neighbourhoods are taken.", 2, "[0, 1000]", predicts=True
    )
    teleport: float = setting(
        "The share of a node's own value in such a mean.", 0.3, "[0, 1]", predicts=True
    )

    def network(self, facts: Facts) -> NodeNetwork:
        return describe_mlp(self, facts)

    def influence(self, facts: Facts) -> tuple[int, int]:
        """A node removes its own loss term."""
        return _INFLUENCE

    def outputs(self, data: Data, mode: str) -> Tensor:
        """Personalised PageRank over what the network says, or over its hidden states."""
        from graphveil.graph.propagation import spread_rows
        from graphveil.methods.terms import every_message, no_messages

        x, network = self.prepare(data), self.network_
        messages = every_message(data, self.seed)
        if self.reading == "smoothing":
            own = network.on_graph(x, no_messages(len(x))).log_softmax(1)
            return spread_rows(own, messages, self.smoothing_steps, self.teleport)
        hidden = network.after[0](network.encoder(x))
        hidden = hidden.to_dense() if hidden.is_sparse_csr else hidden
        return network.decoder(spread_rows(hidden, messages, self.smoothing_steps, self.teleport))

    _plan, _train, terms, prepare = _plan_mlp, _train_mlp, _own_terms, _prepare
    noisy_outputs = hear_neighbours
