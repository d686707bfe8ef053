"""What would be possible without privacy: an MLP and a GNN in the open.

No guarantee: their certificates say so. They are here because a private figure means little without
the honest ones beside it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal, final

from graphveil import _validate
from graphveil._errors import InvalidInputError
from graphveil.methods.base import Method
from graphveil.methods.features import Features
from graphveil.methods.inference import NOTHING_PROMISED, Disjoint, Visible
from graphveil.methods.own_row import describe_network
from graphveil.methods.parts import Open
from graphveil.methods.plan import Facts, Plan
from graphveil.methods.settings import FeatureSettings, Normalisation, Optimizer, setting, settings
from graphveil.methods.task import check_released_task
from graphveil.nn.descriptions import NodeNetwork
from graphveil.privacy.guarantee import default_delta

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch_geometric.data import Data

    from graphveil.graph.messages import Messages
    from graphveil.methods.execution import Execution


@settings()
class OpenSettings:
    """Training without privacy."""

    steps: int = setting("Steps.", 150, "[1, 1e9]")
    optimizer: Optimizer = setting("What steps with the gradients.", "adam")
    momentum: float = setting("Of 'sgd': what is kept of the last step.", 0.9, "[0, 1)")
    learning_rate: float = setting("The length of steps.", 0.01, "(0, inf)")
    dropout: float = setting("The share of hidden values dropped.", 0.5, "[0, 1)")
    weight_decay: float = setting("Shrinks weights at every step.", 5e-4, "[0, inf)")


def plan_openly(method: Any, facts: Facts) -> Plan:
    """The plan of a method that trains in the open."""
    _ = method.network(facts)  # settings that make no network are refused here
    return Plan(
        method=method.name,
        facts=facts,
        unit=method.units[0],
        delta=default_delta(facts.num_nodes),
        parts=(Open(),),
        inference=(NOTHING_PROMISED,),
    )


_COMPARED = 50  # how often batches of nodes are interrupted to look at the validation nodes
_AT_ONCE = {"mlp": 1 << 14, "gnn": 1024}  # nodes that are read by themselves, or with others
_BATCH_OF_STORE = 1024  # training nodes, whose neighbourhoods a step of a GNN reads


def _train_nodes(method: Any, execution: Execution, data: Data) -> nn.Module:
    """All training nodes at every step, or a batch; the weights that do best on validation."""
    from graphveil.graph.stored import is_stored
    from graphveil.methods.open_training import OpenTraining, make_optimizer
    from graphveil.methods.terms import on_messages

    x, network = method.prepare(data), method.build(execution.plan.facts)
    in_training, messages = method.read_in_training(data), method.messages(data)
    batch, spreads = method.batch_size, len(network.convs) > 0
    if spreads and batch is None and is_stored(data):
        batch = _BATCH_OF_STORE
    whole = spreads and batch is None  # one pass over the graph

    def logits(ids: Tensor) -> Tensor:
        read = in_training if network.training else messages
        if not whole:
            return _on_roots(network, x, read, ids)
        outputs: Tensor = network.on_graph(x, read)
        return outputs[ids]

    def predict(ids: Tensor) -> Tensor:
        return on_messages(network, x, messages)[ids]

    at_once = None if whole else max(_AT_ONCE[method.name], batch or 0)
    # Neighbourhoods of many overlap: all nodes are predicted sooner than those by themselves.
    many = spreads and at_once is not None and int(data.val_mask.sum()) > at_once
    optimizer = make_optimizer(
        method.optimizer,
        network.parameters(),
        method.learning_rate,
        method.weight_decay,
        method.momentum,
    )
    training = OpenTraining(
        steps=method.steps,
        seed=method.seed,
        task=method.task(execution.plan.facts),
        weights=execution.class_weights,
        batch_size=batch,
        at_once=at_once,
        answer=predict if many else None,
        every=5 if batch is None else max(5, method.steps // _COMPARED),
        on_loss=execution.on_loss,
        on_step=execution.on_step,
        progress=execution.progress,
    )
    execution.train_openly(
        execution.plan.part("weights"), lambda: training(network, optimizer, logits, data)
    )
    return network


def _on_roots(network: Any, x: Any, messages: Any, roots: Tensor) -> Tensor:
    """The logits of some nodes, from the part of the graph that they read."""
    from graphveil.graph.lazy_rows import read_rows
    from graphveil.graph.surroundings import surround

    read = surround(messages, roots, len(network.convs))
    outputs: Tensor = network.on_graph(read_rows(x, read.nodes), read.messages)
    return outputs[read.readers]


def _prepare(method: Any, data: Data) -> Any:
    """The rows that the network reads."""
    # The first layer of an encoder reads sparse rows; convolutions and groups do not.
    sparse = method.name == "mlp" or (method.encoder_layers > 0 and method.epochs is None)
    return Features.of(method).read(data, keep_sparse=sparse)


# Without noise there is nothing to gain from fewer columns.
@final
@settings(project_above=1_000_000, activation="relu")
class MLPBaseline(Method, FeatureSettings, OpenSettings):
    """An MLP on each node's own features, trained without privacy."""

    name: ClassVar[str] = "mlp"
    private: ClassVar[bool] = False
    compared: ClassVar[bool] = True
    inferences = (Visible(NOTHING_PROMISED), Disjoint())
    reads_prior: ClassVar[bool] = False
    reads_stores: ClassVar[bool] = True

    num_layers: int = setting("Layers of the network.", 2, "[1, 10]")
    batch_size: int | None = setting(
        "Training nodes that a step reads; by default all of them.", None, "[1, 1e9]"
    )

    def network(self, facts: Facts) -> NodeNetwork:
        return describe_network(self, facts, self.dropout)

    def messages(self, data: Data) -> Messages:
        """None: every node by itself."""
        from graphveil.methods.terms import no_messages

        return no_messages(len(data.x))

    def outputs(self, data: Data, mode: str) -> Tensor:
        """From each node's own row."""
        from graphveil.methods.terms import on_own_rows

        return on_own_rows(self.network_, self.prepare(data))

    read_in_training = messages
    _plan, _train, prepare = plan_openly, _train_nodes, _prepare


@final
@settings(project_above=1_000_000, activation="relu")
class GNNBaseline(Method, FeatureSettings, OpenSettings):
    """A GNN trained without privacy; predictions read the whole graph, and so does training.

    Caps are for comparisons with private methods: they bound what training reads, and nothing is
    promised for them.
    """

    name: ClassVar[str] = "gnn"
    private: ClassVar[bool] = False
    compared: ClassVar[bool] = True
    inferences = (Visible(NOTHING_PROMISED), Disjoint())
    reads_stores: ClassVar[bool] = True

    conv: Literal["gcn", "gin", "gat", "sage", "sum"] = setting("The convolution.", "gcn")
    num_layers: int = setting("Convolutions.", 2, "[1, 10]")
    encoder_layers: int = setting("Layers on each node before them.", 1, "[0, 10]")
    decoder_layers: int = setting("Layers on each node after them.", 0, "[0, 10]")
    normalisation: Normalisation = setting("The weights of messages.", "symmetric")
    heads: int = setting("Heads of the convolution 'gat'.", 1, "[1, inf)")
    attention: Literal["additive", "dot"] = setting("Scores of the convolution 'gat'.", "additive")
    sender_cap: int | None = setting(
        "Messages that a node may send in training; of one layer, to training nodes.",
        None,
        "[1, inf)",
    )
    receiver_cap: int | None = setting(
        "Messages that a node may read in training.", None, "[1, inf)"
    )
    batch_size: int | None = setting(
        "Training nodes that a step reads; by default all of them, of a store 1,024.",
        None,
        "[1, 1e9]",
    )
    splits: int = setting(
        "Train on as many random groups without an edge between them, as graph-split does.",
        1,
        "[1, inf)",
    )
    epochs: int | None = setting(
        "Leave the edges in and visit the groups in turn, so many times, a step each, until the "
        "validation loss has not fallen for 20 epochs, as the code of Igamberdiev and Habernal "
        "does; 'steps' and 'momentum' are not read then.",
        None,
        "[1, 1e9]",
    )

    def network(self, facts: Facts) -> NodeNetwork:
        _validate.integer("splits", self.splits, f"[1, {facts.num_nodes}]")
        self._check_epochs(facts)
        return NodeNetwork(
            in_channels=Features.of(self).columns(facts.num_features),
            hidden_channels=self.hidden_channels,
            out_channels=self.task(facts).outputs,
            conv=self.conv,
            num_layers=self.num_layers,
            encoder_layers=self.encoder_layers,
            decoder_layers=self.decoder_layers,
            activation=self.activation,
            dropout=self.dropout,
            heads=self.heads,
            attention=self.attention,
        )

    def read_in_training(self, data: Data) -> Any:
        """Messages inside groups, under the caps; of a store without either they stay there."""
        from graphveil.graph.caps import cap_receivers, cap_senders
        from graphveil.graph.groups import random_groups, within
        from graphveil.graph.lists import Lists
        from graphveil.graph.messages import weigh_messages
        from graphveil.graph.stored import edges_of
        from graphveil.graph.stored_messages import weigh_lists
        from graphveil.rng import seeded

        nodes, edges = len(data.x), edges_of(data)
        if self.splits > 1:
            edges = within(edges, random_groups(nodes, self.splits, seeded(self.seed, "groups")))
        if self.sender_cap is not None:
            readers = data.train_mask if self.num_layers == 1 else None
            edges = cap_senders(edges, nodes, self.sender_cap, seed=self.seed, readers=readers)
        if self.receiver_cap is not None:
            edges = cap_receivers(edges, nodes, self.receiver_cap, seed=self.seed)
        if isinstance(edges, Lists):
            return weigh_lists(edges, self.normalisation)
        if self.sender_cap is None and self.receiver_cap is None:  # each once
            edges = cap_senders(edges, nodes, None, seed=0)
        return weigh_messages(edges, nodes, self.normalisation)

    def messages(self, data: Data) -> Any:
        """All of them."""
        from graphveil.methods.terms import every_message

        return every_message(data, self.seed, self.normalisation)

    def _check_epochs(self, facts: Facts) -> None:
        if self.epochs is None:
            return
        check_released_task(facts)
        if self.conv != "gcn" or self.encoder_layers or self.decoder_layers:
            raise InvalidInputError(
                "With 'epochs' the network must be convolutions 'gcn' and nothing else. Got "
                f"conv={self.conv!r}, encoder_layers={self.encoder_layers}, "
                f"decoder_layers={self.decoder_layers} instead; leave out 'epochs', or set "
                "conv='gcn' and no such layers."
            )
        capped = ("batch_size", "sender_cap", "receiver_cap", "class_weights")
        if stated := [name for name in capped if getattr(self, name) is not None]:
            raise InvalidInputError(
                f"With 'epochs' every step reads the whole graph. Got {stated[0]}="
                f"{getattr(self, stated[0])!r} instead; leave out one of the two."
            )
        _validate.integer("splits", self.splits, f"[1, {facts.num_train}]")

    def _train(self, execution: Execution, data: Data) -> nn.Module:
        if self.epochs is None:
            return _train_nodes(self, execution, data)
        from graphveil.methods.released_training import ReleasedTraining

        training = ReleasedTraining(
            epochs=self.epochs,
            groups=self.splits,
            optimizer=self.optimizer,
            learning_rate=self.learning_rate,
            weight_decay=self.weight_decay,
            patience=20,
            seed=self.seed,
        )
        network = self.build(execution.plan.facts)
        training(network, self.prepare(data), self.messages(data), data, execution)
        return network

    def outputs(self, data: Data, mode: str) -> Tensor:
        """Every neighbour is read."""
        from graphveil.methods.terms import on_messages

        return on_messages(self.network_, self.prepare(data), self.messages(data))

    _plan, prepare = plan_openly, _prepare
