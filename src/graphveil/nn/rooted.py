r"""Networks whose loss terms each read one root's neighbourhood, and nothing else.

A :class:`Tree` is a batch of rooted neighbourhoods as padded tables. A node that several roots can
reach, or one root in several ways, stands in several places: every loss term has its own copies,
and so its own gradient. Level l holds the senders of each node of level l - 1, that node first::

    roots (b, 1) -> level 1 (b, T_1) -> level 2 (b, T_1 T_2) -> ... -> level L, rows of a table

:class:`RootedGNN` runs from the deepest level up, or over a whole graph with the same weights.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from graphveil import _validate
from graphveil._errors import InvalidInputError
from graphveil.nn.convs import make_conv
from graphveil.nn.messages import Fan, Messages
from graphveil.nn.mlp import MLP, Activated


@dataclass(frozen=True, eq=False)
class Tree:
    """b rooted neighbourhoods of depth L.

    ``table`` is (nodes, features); ``index`` (b, T_1 ... T_L) names its rows at the deepest level;
    ``masks[l]`` and ``weights[l]`` are (b, T_1 ... T_l, T_{l+1}) for l = 0 ... L-1. False in a mask
    is padding; place 0 is the receiver itself, and never padding.
    """

    table: Tensor
    index: Tensor
    masks: list[Tensor] = field(default_factory=list)
    weights: list[Tensor] = field(default_factory=list)

    def __len__(self) -> int:
        """How many roots there are."""
        return len(self.index)

    @property
    def num_layers(self) -> int:
        """The depth L."""
        return len(self.masks)


def grow_tree(x: Tensor, messages: Messages, roots: Tensor, num_layers: int) -> Tree:
    """The neighbourhoods of ``roots``, ``num_layers`` deep, with the weights of ``messages``.

    Every level is as wide as the largest number of messages that reach a node met there, and one
    more. Padding repeats the receiver: a neighbourhood holds no row that its root may not read, be
    it to multiply it by zero.

    *Guarantee conditions*: ``messages`` are the kept ones, the same list at every level. How many
    reach one node has no bound unless receivers were capped, too: a hub makes a wide table.
    """
    _validate.integer("num_layers", num_layers, "[0, inf)")
    nodes = roots.unsqueeze(1)
    masks, weights = [], []
    for _ in range(num_layers):
        reached = messages.in_degree[nodes]
        place = torch.arange(int(reached.max()) if reached.numel() else 0, device=roots.device)
        inside = place < reached.unsqueeze(-1)
        position = (messages.start[nodes].unsqueeze(-1) + place) * inside
        receivers = nodes.unsqueeze(-1)
        senders = torch.where(inside, messages.senders[position], receivers)
        sent = torch.where(inside, messages.weights[position], 0.0)
        masks.append(torch.cat([torch.ones_like(receivers, dtype=torch.bool), inside], -1))
        weights.append(torch.cat([messages.self_weight[receivers], sent], -1))
        nodes = torch.cat([receivers, senders], -1).flatten(1)
    return Tree(x, nodes, masks, weights)


class RootedGNN(nn.Module):
    """An encoder of each node by itself, ``num_layers`` convolutions, a decoder of the root.

    Norm, activation and dropout follow every layer but the last. Any of the three parts may have no
    layers: without convolutions it is an MLP on the root's own row, without a decoder the last
    convolution gives the logits (the mean over its heads, for GAT).

    *Guarantee conditions*: a root's logits are a function of the tree of that root alone. ``norm``
    is a LayerNorm of one row at a time.
    """

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        out_channels: int,
        conv: str = "gcn",
        num_layers: int = 1,
        encoder_layers: int = 1,
        decoder_layers: int = 1,
        activation: str = "tanh",
        dropout: float = 0.0,
        norm: str | None = None,
        *,
        heads: int = 1,
        attention: str = "additive",
        aggregation: str = "mean",
        scale: float = 1.0,
    ) -> None:
        super().__init__()
        parts = [
            _validate.integer("encoder_layers", encoder_layers, "[0, inf)"),
            *[1] * _validate.integer("num_layers", num_layers, "[0, inf)"),
            _validate.integer("decoder_layers", decoder_layers, "[0, inf)"),
        ]
        if not any(parts):
            raise InvalidInputError(
                "A network must have a layer. Got 'encoder_layers', 'num_layers' and "
                "'decoder_layers' of 0 instead."
            )
        # Channels before and after each part: the last part that has layers gives the logits.
        inner = [any(parts[place + 1 :]) for place in range(len(parts))]
        widths = [in_channels]
        for size, more in zip(parts, inner, strict=True):
            widths.append((hidden_channels if more else out_channels) if size else widths[-1])
        options = (activation, dropout, norm)
        self.encoder = MLP(in_channels, hidden_channels, widths[1], encoder_layers, *options)
        self.convs = nn.ModuleList(
            make_conv(
                conv, widths[place], widths[place + 1], activation=activation, heads=heads,
                attention=attention, concat=inner[place], aggregation=aggregation, scale=scale,
            )
            for place in range(1, num_layers + 1)
        )  # fmt: skip
        self.decoder = MLP(widths[-2], hidden_channels, out_channels, decoder_layers, *options)
        # Nothing follows raw features and logits.
        self.after = nn.ModuleList(
            Activated(width, *options) if size and more else nn.Identity()
            for width, size, more in zip(widths[1:-1], parts, inner, strict=False)
        )

    def forward(self, tree: Tree) -> Tensor:
        """Logits of the roots: (b, out)."""
        if tree.num_layers != len(self.convs):
            raise InvalidInputError(
                f"The tree must be as deep as the network, {len(self.convs)} layers. Got "
                f"{tree.num_layers} instead; grow it with that many."
            )
        h = self.after[0](self.encoder(F.embedding(tree.index, tree.table)))
        levels = zip(tree.weights[::-1], tree.masks[::-1], strict=True)
        for conv, after, (weight, mask) in zip(self.convs, self.after[1:], levels, strict=True):
            h = after(conv(h.unflatten(1, mask.shape[1:]), Fan(weight, mask)))
        return self.decoder(h.squeeze(1))

    def on_graph(self, x: Tensor, messages: Messages) -> Tensor:
        """Logits of every node of a graph: (nodes, out), the same as from their whole trees."""
        h = self.after[0](self.encoder(x))
        for conv, after in zip(self.convs, self.after[1:], strict=True):
            h = after(conv(h, messages))
        return self.decoder(h)
