r"""Convolutions: how a node's new state comes from its own and from the messages that reach it.

Each is written once, as a map of states ``h`` and of who hears whom, a
:class:`~graphveil.graph.messages.DenseMessages` of small graphs or the
:class:`~graphveil.graph.messages.Messages` of a large one; both give the same numbers.

All of them are local: a receiver's new state is a function of the messages that reach it and of its
own state, so that L of them read the L-hop kept sub-graph and nothing else. Sums come before linear
layers where the algebra allows it, which is T times cheaper for T senders.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, final

from torch import Tensor, nn

from graphveil.grads.layers import Affine, HeadDot, SelfWeight
from graphveil.graph.messages import Neighbourhoods
from graphveil.nn.descriptions import Convolution
from graphveil.nn.mlp import MLP
from graphveil.nn.smooth import leaky_relu


class Conv(nn.Module, ABC):
    """A convolution: (..., senders, in) to (..., receivers, out), for either layout.

    One that ``adds_first`` does nothing to states before messages are added up: it may be given
    those of a whole graph for a few receivers.
    """

    adds_first: ClassVar[bool] = True

    @abstractmethod
    def forward(self, h: Tensor, via: Neighbourhoods) -> Tensor:
        """States of senders to new states of receivers."""


@final
class GCN(Conv):
    r"""``W (\sum_j w_ij h_j) + b``, own state included; the weights are the normalisation's."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.lin = nn.Linear(in_channels, out_channels)

    def forward(self, h: Tensor, via: Neighbourhoods) -> Tensor:
        return self.lin(via.weighted(h))


@final
class SAGE(Conv):
    """``W mean_j(h_j) + b + V h_i``; with ``aggregation="max"`` the largest, channel by channel.

    Weights are not used. A node that no message reaches has zeros in the place of the mean. The
    gradient of the largest jumps where messages tie (see :mod:`graphveil.nn.smooth`); no method
    here trains with it.
    """

    def __init__(self, in_channels: int, out_channels: int, aggregation: str = "mean") -> None:
        super().__init__()
        Convolution("sage", in_channels, out_channels, aggregation=aggregation)  # checks it
        self.aggregation = aggregation
        self.lin_neighbours = nn.Linear(in_channels, out_channels)
        self.lin_self = nn.Linear(in_channels, out_channels, bias=False)

    def forward(self, h: Tensor, via: Neighbourhoods) -> Tensor:
        own, rest = via.own_and_rest(h)
        summary = via.mean(rest) if self.aggregation == "mean" else via.largest(rest)
        return self.lin_neighbours(summary) + self.lin_self(own)


@final
class GIN(Conv):
    r"""``MLP((1 + eps) h_i + \sum_j h_j)``; weights are not used."""

    def __init__(
        self, in_channels: int, out_channels: int, num_layers: int = 2, activation: str = "tanh"
    ) -> None:
        super().__init__()
        self.own = SelfWeight()
        self.mlp = MLP(in_channels, out_channels, out_channels, num_layers, activation)

    def forward(self, h: Tensor, via: Neighbourhoods) -> Tensor:
        own, rest = via.own_and_rest(h)
        return self.mlp(self.own(own) + via.total(rest))


@final
class Sum(Conv):
    r"""``W (h_i + \sum_j w_ij h_j) scale + b``: sees how many messages reach a node.

    A normalised convolution cannot tell a dense graph from a sparse one; this one can. A ``scale``
    of about one over a typical degree keeps states in the activation's range; choose it without
    looking at the private graphs.
    """

    def __init__(self, in_channels: int, out_channels: int, scale: float = 1.0) -> None:
        super().__init__()
        Convolution("sum", in_channels, out_channels, scale=scale)  # checks it
        self.scale = float(scale)
        self.lin = nn.Linear(in_channels, out_channels)

    def forward(self, h: Tensor, via: Neighbourhoods) -> Tensor:
        own, rest = via.own_and_rest(h)
        return self.lin((own + via.total(rest, weighted=True)) * self.scale)


@final
class GAT(Conv):
    r"""``\sum_j softmax_j(score_ij) V h_j`` over the messages and the node's own state.

    ``attention="additive"``: score = leaky_relu(<s, V h_j> + <r, V h_i>), and a bias at the end
    (Velickovic et al. 2018). ``attention="dot"``: score = <K h_j, Q h_i> / sqrt(channels a head),
    each projection with a bias. ``out_channels`` are those that come out: with ``concat`` each of
    the ``heads`` has its share of them, otherwise every head has all and their mean is taken.
    Weights are not used.
    """

    adds_first: ClassVar[bool] = False

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        heads: int = 1,
        attention: str = "additive",
        *,
        concat: bool = True,
    ) -> None:
        super().__init__()
        ends = in_channels, out_channels
        Convolution("gat", *ends, concat=concat, heads=heads, attention=attention)  # checks it
        self.heads, self.attention, self.concat = int(heads), attention, concat
        self.channels = out_channels // heads if concat else out_channels
        width = heads * self.channels
        if attention == "dot":
            self.lin_query = nn.Linear(in_channels, width)
            self.lin_key = nn.Linear(in_channels, width)
            self.lin_value = nn.Linear(in_channels, width)
        else:
            self.lin_value = nn.Linear(in_channels, width, bias=False)
            self.att_sender = HeadDot(heads, self.channels)
            self.att_receiver = HeadDot(heads, self.channels)
            self.bias = Affine(out_channels)
            self.bias.weight.requires_grad_(False)  # a shift alone

    def forward(self, h: Tensor, via: Neighbourhoods) -> Tensor:
        values = self._split(self.lin_value(h))
        if self.attention == "dot":
            query = self._split(self.lin_query(via.own_and_rest(h)[0]))
            scores = via.products(self._split(self.lin_key(h)), query) / self.channels**0.5
        else:
            receivers = self.att_receiver(via.own_and_rest(values)[0])
            scores = leaky_relu(via.pairs(self.att_sender(values), receivers), 0.2)
        out = via.attend(scores, values)
        out = out.flatten(-2) if self.concat else out.mean(-2)
        return out if self.attention == "dot" else self.bias(out)

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, self.channels))


CLASSES: dict[str, type[Conv]] = {"gcn": GCN, "sage": SAGE, "gin": GIN, "gat": GAT, "sum": Sum}
OPTIONS = {
    "gcn": (),
    "sage": ("aggregation",),
    "gin": ("activation",),
    "gat": ("heads", "attention", "concat"),
    "sum": ("scale",),
}
