"""Networks as data: what they are made of, how many numbers they learn, and what is refused.

Nothing here imports torch, so a plan counts parameters and refuses settings at once. ``build``
does import it, and returns the module with fresh weights. The modules take the fields of their
description and check them here: what a description refuses, its module refuses in the same words.

============  ==========================================================================
NodeNetwork   :class:`~graphveil.nn.node_classifier.NodeClassifier`
GraphNetwork  :class:`~graphveil.nn.graph_classifier.GraphClassifier`
HopNetwork    :class:`~graphveil.nn.gap.GAPNetwork`
Perceptron    :class:`~graphveil.nn.mlp.MLP`, a part of all three
Convolution   a class of :mod:`graphveil.nn.convs`
Follow        :class:`~graphveil.nn.mlp.Activated`, what follows a hidden layer
============  ==========================================================================
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, fields
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from graphveil import _validate
from graphveil._errors import InvalidInputError, UnprovenError
from graphveil.graph.choices import NORMALISATIONS

if TYPE_CHECKING:
    from graphveil.nn.convs import Conv
    from graphveil.nn.gap import GAPNetwork
    from graphveil.nn.graph_classifier import GraphClassifier
    from graphveil.nn.mlp import MLP, Activated
    from graphveil.nn.node_classifier import NodeClassifier

ACTIVATIONS = ("tanh", "relu", "elu", "selu", "gelu", "leaky_relu", "softplus")
AGGREGATIONS = ("mean", "max")
ATTENTIONS = ("additive", "dot")
COMBINATIONS = ("concat", "attention")
CONVS = ("gcn", "sage", "gin", "gat", "sum")
MESSAGES = ("encoding", "label", "belief", "evidence")
NORMS = ("layer",)
POOLS = ("mean", "max", "sum")


@dataclass(frozen=True)
class Follow:
    """What follows a hidden layer: normalisation of each row by itself, activation, dropout."""

    channels: int
    activation: str
    dropout: float = 0.0
    norm: str | None = None

    def __post_init__(self) -> None:
        _validate.choice("activation", self.activation, ACTIVATIONS)
        if self.norm is not None:
            _validate.choice("norm", self.norm, NORMS)
        _validate.number("dropout", self.dropout, "[0, 1)")

    @property
    def num_parameters(self) -> int:
        """Scale and shift of the normalisation."""
        return 2 * self.channels if self.norm else 0

    @property
    def num_blocks(self) -> int:
        """Layers that hold parameters: what clipping by layer bounds one by one."""
        return 1 if self.norm else 0

    def build(self) -> Activated:
        """The module."""
        from graphveil.nn.mlp import Activated

        return Activated(**_fields(self))


@dataclass(frozen=True)
class Perceptron:
    """``num_layers`` linear layers, all but the last followed by norm, activation and dropout.

    ``hidden_channels`` is one width for all hidden layers, or a list with one for each. With
    ``num_layers=0`` it is the identity, and ``in_channels`` must be ``out_channels``.
    """

    in_channels: int
    hidden_channels: int | Sequence[int]
    out_channels: int
    num_layers: int
    activation: str = "tanh"
    dropout: float = 0.0
    norm: str | None = None

    def __post_init__(self) -> None:
        _validate.integer("num_layers", self.num_layers, "[0, inf)")
        if self.num_layers == 0 and self.in_channels != self.out_channels:
            raise InvalidInputError(
                "An MLP of 0 layers is the identity: 'out_channels' must be "
                f"{self.in_channels}, as 'in_channels' is. Got {self.out_channels} instead."
            )
        for width in self.widths:
            _validate.integer("channels", width, "[1, inf)")
        _ = self.between  # checks its settings

    @property
    def widths(self) -> list[int]:
        """Channels before the first layer and after every one."""
        if not self.num_layers:
            return [self.in_channels]
        hidden = self.num_layers - 1
        return [
            self.in_channels,
            *_widths("channels", self.hidden_channels, hidden, f"{hidden} hidden layers"),
            self.out_channels,
        ]

    @property
    def between(self) -> list[Follow]:
        """What follows every layer but the last."""
        options = self.activation, self.dropout, self.norm
        return [Follow(width, *options) for width in self.widths[1:-1]]

    @property
    def num_parameters(self) -> int:
        """Weights and biases, and what the norms learn."""
        return sum(_linear(*ends) for ends in pairwise(self.widths)) + _count(self.between)

    @property
    def num_blocks(self) -> int:
        """Layers that hold parameters."""
        return self.num_layers + sum(follow.num_blocks for follow in self.between)

    def build(self) -> MLP:
        """The module, with fresh weights."""
        from graphveil.nn.mlp import MLP

        return MLP(**_fields(self))


@dataclass(frozen=True, kw_only=True)
class ConvolutionSettings:
    """Settings that a convolution and a network of convolutions have alike."""

    heads: int = 1
    attention: str = "additive"
    aggregation: str = "mean"
    scale: float = 1.0


@dataclass(frozen=True)
class Convolution(ConvolutionSettings):
    """A convolution by name; it reads those of the settings that it has.

    ``sage`` reads ``aggregation``, ``gin`` ``activation``, ``sum`` ``scale``, and ``gat`` reads
    ``heads``, ``attention`` and ``concat``.
    """

    kind: str
    in_channels: int
    out_channels: int
    activation: str = "tanh"
    concat: bool = True

    def __post_init__(self) -> None:
        _validate.choice("conv", self.kind, CONVS)
        if self.kind == "sage":
            _validate.choice("aggregation", self.aggregation, AGGREGATIONS)
        elif self.kind == "gin":
            _ = self.perceptron
        elif self.kind == "sum":
            _validate.number("scale", self.scale, "(0, inf)")
        elif self.kind == "gat":
            _validate.integer("heads", self.heads, "[1, inf)")
            _validate.choice("attention", self.attention, ATTENTIONS)
            if self.concat and self.out_channels % self.heads:
                raise InvalidInputError(
                    f"The channels of a layer must be a multiple of its {self.heads} heads. Got "
                    f"{self.out_channels} instead."
                )

    @property
    def perceptron(self) -> Perceptron:
        """What ``gin`` gives its sums to."""
        out = self.out_channels
        return Perceptron(self.in_channels, out, out, 2, self.activation)

    @property
    def num_parameters(self) -> int:
        """Frozen ones included: the scale of GAT's last shift is one."""
        before, after = self.in_channels, self.out_channels
        if self.kind == "sage":
            return _linear(before, after) + _linear(before, after, bias=False)
        if self.kind == "gin":
            return 1 + self.perceptron.num_parameters
        if self.kind == "gat":
            width = after if self.concat else self.heads * after
            if self.attention == "dot":
                return 3 * _linear(before, width)
            return _linear(before, width, bias=False) + 2 * width + 2 * after
        return _linear(before, after)

    @property
    def num_blocks(self) -> int:
        """Layers that hold parameters."""
        of_gat = 3 if self.attention == "dot" else 4
        return {"sage": 2, "gin": 3, "gat": of_gat}.get(self.kind, 1)

    def build(self) -> Conv:
        """The module, with fresh weights."""
        from graphveil.nn.convs import CLASSES, OPTIONS

        options = {name: getattr(self, name) for name in OPTIONS[self.kind]}
        return CLASSES[self.kind](self.in_channels, self.out_channels, **options)


class _Part(NamedTuple):
    """An encoder, a convolution or a decoder: its channels, its layers, and if layers follow."""

    before: int
    after: int
    layers: int
    inner: bool


@dataclass(frozen=True)
class NodeNetwork(ConvolutionSettings):
    """An encoder of each node by itself, ``num_layers`` convolutions, a decoder of the root.

    Its module is a :class:`~graphveil.nn.node_classifier.NodeClassifier`, and explains itself
    there. Any of the three parts may have no layers, but not all of them.
    """

    in_channels: int
    hidden_channels: int
    out_channels: int
    conv: str = "gcn"
    num_layers: int = 1
    encoder_layers: int = 1
    decoder_layers: int = 1
    activation: str = "tanh"
    dropout: float = 0.0
    norm: str | None = None
    prior: int = 0

    def __post_init__(self) -> None:
        _validate.integer("hidden_channels", self.hidden_channels, "[1, inf)")
        _validate.choice("activation", self.activation, ACTIVATIONS)
        for name in ("encoder_layers", "num_layers", "decoder_layers"):
            _validate.integer(name, getattr(self, name), "[0, inf)")
        if not any(part.layers for part in self._parts):
            raise InvalidInputError(
                "A network must have a layer. Got 'encoder_layers', 'num_layers' and "
                "'decoder_layers' of 0 instead."
            )
        _ = self.encoder, self.convs, self.decoder, self.after  # each checks its own settings

    @cached_property
    def _parts(self) -> list[_Part]:
        """The encoder, every convolution, the decoder; the last with layers gives the logits."""
        layers = [self.encoder_layers, *[1] * self.num_layers, self.decoder_layers]
        parts, width = [], self.in_channels
        for place, size in enumerate(layers):
            inner, before = any(layers[place + 1 :]), width
            if size:
                width = self.hidden_channels if inner else self.out_channels
            parts.append(_Part(before, width, size, inner))
        return parts

    def _perceptron(self, part: _Part) -> Perceptron:
        hidden, options = self.hidden_channels, (self.activation, self.dropout, self.norm)
        return Perceptron(part.before, hidden, part.after, part.layers, *options)

    @cached_property
    def encoder(self) -> Perceptron:
        """What reads a node's own columns."""
        return self._perceptron(self._parts[0])

    @cached_property
    def convs(self) -> tuple[Convolution, ...]:
        """One for each layer; the last of the network takes the mean of its heads."""
        parts = self._parts[1:-1]
        return tuple(_convolution(self, part.before, part.after, part.inner) for part in parts)

    @cached_property
    def decoder(self) -> Perceptron:
        """What gives the logits of a root, if it has layers."""
        return self._perceptron(self._parts[-1])

    @cached_property
    def after(self) -> tuple[Follow | None, ...]:
        """What follows the encoder and each convolution: nothing after columns and logits."""
        options = self.activation, self.dropout, self.norm
        return tuple(
            Follow(part.after, *options) if part.layers and part.inner else None
            for part in self._parts[:-1]
        )

    @property
    def _all(self) -> list[Follow | Perceptron | Convolution]:
        return [self.encoder, *self.convs, self.decoder, *filter(None, self.after)]

    @property
    def num_parameters(self) -> int:
        """Of all parts, frozen ones included."""
        return _count(self._all)

    @property
    def num_blocks(self) -> int:
        """Layers that hold parameters: what clipping by layer bounds one by one."""
        return sum(part.num_blocks for part in self._all)

    def build(self) -> NodeClassifier:
        """The module, with fresh weights."""
        from graphveil.nn.node_classifier import NodeClassifier

        return NodeClassifier(**_fields(self))


@dataclass(frozen=True)
class GraphNetwork(ConvolutionSettings):
    """Convolutions on the nodes, a pool over each graph, an MLP on what it gives.

    Its module is a :class:`~graphveil.nn.graph_classifier.GraphClassifier`, and explains its
    settings there.
    """

    in_channels: int
    hidden_channels: int | Sequence[int]
    out_channels: int
    conv: str = "gcn"
    num_layers: int | None = None
    pool: str = "mean"
    norm: str | None = None
    head_layers: int | None = None
    activation: str = "tanh"
    dropout: float = 0.0
    _: KW_ONLY
    head_channels: int | Sequence[int] | None = None
    norm_first: bool = False
    normalisation: str | None = None

    def __post_init__(self) -> None:
        _validate.choice("pool", self.pool, POOLS)
        _validate.number("scale", self.scale, "(0, inf)")
        if self.norm is not None and self.norm != "instance":
            raise UnprovenError(
                "The 'norm' parameter must be 'instance', over the nodes of one graph, or none. "
                f"Got {self.norm!r} instead; BatchNorm and its like mix the graphs of a batch, so "
                "that one graph would move the loss of all others."
            )
        _validate.choice("normalisation", self.weights, NORMALISATIONS)
        _ = self.convs, self.after, self.head  # each checks its own settings

    @property
    def weights(self) -> str:
        """The normalisation of messages, by default the convolution's own."""
        return self.normalisation or ("none" if self.conv == "sum" else "symmetric")

    @cached_property
    def widths(self) -> list[int]:
        """Channels after each convolution."""
        layers, widths = self.num_layers, self.hidden_channels
        if layers is None:
            layers = len(widths) if isinstance(widths, Sequence) else 2
        _validate.integer("num_layers", layers, "[0, inf)")
        return _widths("hidden_channels", widths, layers, f"{layers} layers")

    @cached_property
    def convs(self) -> tuple[Convolution, ...]:
        """One for each layer."""
        ends = pairwise([self.in_channels, *self.widths])
        return tuple(_convolution(self, *pair) for pair in ends)

    @cached_property
    def after(self) -> tuple[Follow, ...]:
        """What follows each convolution and its norm."""
        return tuple(Follow(width, self.activation, self.dropout) for width in self.widths)

    @cached_property
    def head(self) -> Perceptron:
        """What reads the pool."""
        last = [self.in_channels, *self.widths][-1]
        hidden, layers = self.head_channels, self.head_layers
        if layers is None:  # a layer for each hidden width, and the one that gives the logits
            layers = 1 + (len(hidden) if isinstance(hidden, Sequence) else int(hidden is not None))
        _validate.integer("head_layers", layers, "[1, inf)")
        inner = f"{layers - 1} hidden layers after the pool"
        widths = _widths("head_channels", last if hidden is None else hidden, layers - 1, inner)
        return Perceptron(last, widths, self.out_channels, layers, self.activation, self.dropout)

    @property
    def normalised(self) -> list[int]:
        """Channels of every norm over a graph's nodes: before the layers, and after each."""
        return [
            *([self.in_channels] if self.norm_first else []),
            *(self.widths if self.norm else []),
        ]

    @property
    def num_parameters(self) -> int:
        """Of all parts, frozen ones included."""
        return _count([*self.convs, self.head]) + 2 * sum(self.normalised)

    def build(self) -> GraphClassifier:
        """The module, with fresh weights."""
        from graphveil.nn.graph_classifier import GraphClassifier

        return GraphClassifier(**_fields(self))


@dataclass(frozen=True, kw_only=True)
class HopNetwork:
    """Encoders, a head that reads noisy sums of ``hops`` hops, attention for each hop.

    ``messages`` says what was summed. A head of encodings has a layer for each hop and puts them
    together as ``combine`` says. A head of labels or evidence corrects what the ``encoders``
    believe; without encoders (0 of them) it is an MLP of the columns and the sums. With beliefs
    encoder and head are linear, and the head reads two sums for each hop. Where features
    are public (``public_features``: the edge units) training is open: there is dropout, and a
    second head, with few numbers to learn, to choose from. ``attention`` weighs every message by
    its two ends' rows. With ``halved`` every layer of an encoder is half as wide as what it reads,
    and so is the hidden layer of the attention; all else is ``hidden_channels`` wide.
    """

    in_channels: int
    hidden_channels: int
    out_channels: int
    halved: bool = False
    messages: str = "encoding"
    hops: int = 1
    encoders: int = 1
    encoder_layers: int = 1
    combine: str = "concat"
    attention: bool = False
    public_features: bool = False
    activation: str = "tanh"
    dropout: float = 0.0

    def __post_init__(self) -> None:
        for name in ("in_channels", "hidden_channels", "out_channels"):
            _validate.integer(name, getattr(self, name), "[1, inf)")
        _validate.choice("activation", self.activation, ACTIVATIONS)
        _validate.number("dropout", self.dropout, "[0, 1)")
        _validate.choice("messages", self.messages, MESSAGES)
        _validate.choice("combine", self.combine, COMBINATIONS)
        _validate.integer("hops", self.hops, "[1, 100]")
        _validate.integer("encoders", self.encoders, "[0, 100]")
        _validate.integer("encoder_layers", self.encoder_layers, "[1, 10]")
        if self.halved and self.encoder_layers > 2:
            raise InvalidInputError(
                "An encoder that halves its columns must have 1 or 2 layers. Got "
                f"{self.encoder_layers} instead; take fewer, or let all be equally wide."
            )
        if not self.encoders and self.messages != "label":
            raise InvalidInputError(
                f"The 'encoders' parameter must be at least 1 for messages {self.messages!r}. Got "
                "0 instead; labels alone need no encoder."
            )

    @property
    def _encoder_channels(self) -> tuple[int, int]:
        """Columns after an encoder's first layer and after its last."""
        if not self.halved:
            return self.hidden_channels, self.hidden_channels
        first = max(1, self.in_channels // 2)
        return first, first if self.encoder_layers == 1 else max(1, first // 2)

    @property
    def _message_channels(self) -> int:
        return self._encoder_channels[1] if self.messages == "encoding" else self.out_channels

    @property
    def _attention_channels(self) -> int:
        return self._message_channels if self.halved else self.hidden_channels

    @property
    def num_parameters(self) -> int:
        """Of all parts, alternative heads included."""
        if self.messages == "belief":
            classes = self.out_channels
            head = _linear((1 + 2 * self.hops) * classes, classes)
            return self.encoders * _linear(self.in_channels, classes) + head
        inner, last = self._encoder_channels
        body = Perceptron(self.in_channels, inner, last, self.encoder_layers)
        encoder = body.num_parameters + _linear(last, self.out_channels)
        weighing = self._attention_channels
        pair = _linear(2 * self._message_channels, weighing) + _linear(weighing, 1)
        attention = self.hops * pair if self.attention else 0
        return self.encoders * encoder + self._head_parameters() + attention

    def _head_parameters(self) -> int:
        hidden, classes, hops = self.hidden_channels, self.out_channels, self.hops
        if self.messages == "encoding":
            layers = (1 + hops) * _linear(self._message_channels, hidden)
            if self.combine == "attention":
                return layers + _linear(hidden, 1, bias=False) + _linear(hidden, classes)
            return layers + _linear(hidden * (1 + hops), classes)
        own = classes if self.encoders else self.in_channels
        head = Perceptron(own + hops * classes, hidden, classes, 2).num_parameters
        sum_head = 1 + hops + classes if self.encoders and self.public_features else 0
        return head + sum_head

    def build(self) -> GAPNetwork:
        """The module, with fresh weights."""
        from graphveil.nn import gap
        from graphveil.nn.mlp import MLP

        hidden, classes, hops = self.hidden_channels, self.out_channels, self.hops
        if self.messages == "belief":
            rows = [gap.LinearRows(self.in_channels, classes) for _ in range(self.encoders)]
            return gap.GAPNetwork(rows, [], [gap.LinearHead(classes, 2 * hops)])
        activation, dropout = self.activation, self.dropout if self.public_features else 0.0
        inner, last = self._encoder_channels
        ends = self.in_channels, inner, classes
        encoders = [
            gap.Encoder(*ends, self.encoder_layers, activation, dropout, last)
            for _ in range(self.encoders)
        ]
        heads: list[Any]
        if self.messages == "encoding":
            widths = [self._message_channels] * (1 + hops)
            heads = [gap.HopHead(widths, hidden, classes, self.combine, activation, dropout)]
        elif not self.encoders:
            heads = [MLP(self.in_channels + hops * classes, hidden, classes, 2, activation)]
        else:
            heads = [gap.ResidualHead(classes, hops, hidden, activation, 0.75 * dropout)]
            heads += [gap.SumHead(classes, hops)] if self.public_features else []
        attention = [
            gap.PairAttention(self._message_channels, self._attention_channels, activation)
            for _ in range(hops if self.attention else 0)
        ]
        return gap.GAPNetwork(encoders, attention, heads)


def _widths(name: str, channels: int | Sequence[int], layers: int, what: str) -> list[int]:
    """One width for each layer: those listed, or the same for all."""
    if isinstance(channels, Sequence) and not isinstance(channels, str):
        if len(channels) != layers:
            raise InvalidInputError(
                f"'{name}' must have one width for each of the {what}. Got {list(channels)} "
                "instead; list as many, or write one number for all."
            )
        return [_validate.integer(name, width, "[1, inf)") for width in channels]
    return [_validate.integer(name, channels, "[1, inf)")] * layers


def _linear(before: int, after: int, *, bias: bool = True) -> int:
    """Parameters of a linear layer."""
    return before * after + (after if bias else 0)


def _count(parts: Sequence[Follow | Perceptron | Convolution]) -> int:
    return sum(part.num_parameters for part in parts)


def _convolution(
    network: NodeNetwork | GraphNetwork, before: int, after: int, concat: bool = True
) -> Convolution:
    alike = {field.name: getattr(network, field.name) for field in fields(ConvolutionSettings)}
    return Convolution(network.conv, before, after, network.activation, concat, **alike)


def _fields(description: Any) -> dict[str, Any]:
    return {field.name: getattr(description, field.name) for field in fields(description)}
