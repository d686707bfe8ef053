"""Networks that read noisy sums of several hops: encoders, attention over pairs, heads.

Each works on rows by themselves: an encoder on a node's features, a head on a node's own row and on
what was cached for it. :class:`PairAttention` reads the two ends of a message.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, cast

import scipy.sparse
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from graphveil import _validate
from graphveil.devices import CPU, at_home
from graphveil.graph.neighbourhoods import Rooted
from graphveil.graph.sparse_rows import as_csr
from graphveil.nn.descriptions import COMBINATIONS
from graphveil.nn.mlp import MLP, Activated
from graphveil.nn.smooth import sigmoid


class SparseRows:
    """Rows of mostly zeros, such as bags of words; for training in the open.

    Products with them have a gradient, at the price of what they hold. (torch's own sparse products
    take five times as long, most of it to transpose the rows at every backward pass.)
    """

    def __init__(self, rows: Tensor | scipy.sparse.csr_array) -> None:
        self.rows = as_csr(rows)

    def __len__(self) -> int:
        return self.rows.shape[0]

    def __getitem__(self, some: Tensor | slice) -> SparseRows:
        return SparseRows(self.rows[some.numpy() if isinstance(some, Tensor) else some])

    def drop(self, share: float) -> SparseRows:
        """With some of the entries set to 0, and the others enlarged by as much."""
        rows = self.rows.copy()
        rows.data = F.dropout(torch.from_numpy(rows.data), share).numpy()
        return SparseRows(rows)

    def times(self, weight: Tensor) -> Tensor:
        """Every row times ``weight`` (columns, out)."""
        return _SparseProduct.apply(weight, self.rows)


class _SparseProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, rows: scipy.sparse.csr_array) -> Tensor:
        ctx.rows = rows
        return torch.from_numpy(rows @ weight.detach().cpu().numpy()).to(weight.device)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        product = torch.from_numpy(ctx.rows.T @ grad.contiguous().cpu().numpy())
        return product.to(grad.device), None


Rows = Tensor | SparseRows


class Encoder(nn.Module):
    """``num_layers`` layers that end in an activation, and a linear layer that gives logits.

    The last of the layers is ``last_channels`` wide, by default as all others. Dropout, on the
    input too, is for training in the open, which may give it :class:`SparseRows`.
    """

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        out_channels: int,
        num_layers: int = 1,
        activation: str = "tanh",
        dropout: float = 0.0,
        last_channels: int | None = None,
    ) -> None:
        super().__init__()
        _validate.integer("num_layers", num_layers, "[1, 10]")
        last = hidden_channels if last_channels is None else last_channels
        self.body = MLP(in_channels, hidden_channels, last, num_layers, activation, dropout)
        self.after = Activated(last, activation, dropout)
        self.head = nn.Linear(last, out_channels)
        self.dropout = dropout
        for linear in (*self.body.linears, self.head):
            nn.init.xavier_uniform_(linear.weight)
            nn.init.zeros_(linear.bias)

    @at_home
    def encode(self, x: Rows) -> Tensor:
        """What may be sent: the last hidden state."""
        return self._encode(x)

    @at_home
    def forward(self, x: Rows) -> Tensor:
        """Logits from a node's own features."""
        return self.head(self._encode(x))

    def _encode(self, x: Rows) -> Tensor:
        drops = self.training and self.dropout > 0
        if isinstance(x, SparseRows):
            first, *rest = cast("list[nn.Linear]", list(self.body.linears))
            x = x.drop(self.dropout) if drops else x
            h = x.times(first.weight.t()) + first.bias
            for between, linear in zip(self.body.between, rest, strict=True):
                h = linear(between(h))
            return self.after(h)
        return self.after(self.body(F.dropout(x, self.dropout) if drops else x))


class LinearRows(nn.Module):
    """One linear layer on a node's own features, from zero: it has no weights to start from."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.linear = nn.Linear(in_channels, out_channels)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    @at_home
    def forward(self, x: Rows) -> Tensor:
        """Logits from a node's own features."""
        if isinstance(x, SparseRows):
            return x.times(self.linear.weight.t()) + self.linear.bias
        return self.linear(x)


class LinearHead(nn.Module):
    """One linear layer on own log-probabilities and ``sums`` sums, each of so many classes.

    The input is (b, (1 + sums) classes). It starts as the log-probabilities and a little of every
    sum: those who are alike are linked, unless training says otherwise.
    """

    unit: ClassVar[float] = 3.0  # what its input is measured in, so that gradients are short
    _LITTLE: ClassVar[float] = 0.1

    def __init__(self, num_classes: int, sums: int) -> None:
        super().__init__()
        self.linear = nn.Linear((1 + sums) * num_classes, num_classes)
        same = torch.eye(num_classes)
        start = torch.cat([self.unit * same, *[self._LITTLE * same] * sums], 1)
        with torch.no_grad():
            self.linear.weight.copy_(start)
            self.linear.bias.zero_()

    @at_home
    def forward(self, rows: Tensor) -> Tensor:
        return self.linear(rows)


class HopHead(nn.Module):
    """A layer for each hop, the hops side by side or weighed by attention, and a linear layer.

    Its input has the hops' rows one after the other, ``widths`` wide: (b, sum of widths).
    """

    def __init__(
        self,
        widths: Sequence[int],
        hidden_channels: int,
        out_channels: int,
        combine: str = "concat",
        activation: str = "tanh",
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.widths = list(widths)
        self.combine = _validate.choice("combine", combine, COMBINATIONS)
        self.each = nn.ModuleList(nn.Linear(width, hidden_channels) for width in widths)
        self.after = Activated(hidden_channels, activation, dropout)
        if combine == "attention":
            self.score = nn.Linear(hidden_channels, 1, bias=False)
            self.head = nn.Linear(hidden_channels, out_channels)
        else:
            self.head = nn.Linear(hidden_channels * len(self.widths), out_channels)

    @at_home
    def forward(self, rows: Tensor) -> Tensor:
        parts = rows.split(self.widths, dim=1)
        layers = zip(self.each, parts, strict=True)
        hops = torch.stack([self.after(layer(part)) for layer, part in layers], 1)
        if self.combine == "concat":
            return self.head(hops.flatten(1))
        return self.head((torch.softmax(self.score(hops), 1) * hops).sum(1))


class ResidualHead(nn.Module):
    """A node's own log-probabilities, corrected by an MLP of them and of what was cached.

    The input is (b, (1 + hops) classes), own log-probabilities first. The correction starts at 0.
    """

    def __init__(
        self,
        num_classes: int,
        hops: int,
        hidden_channels: int,
        activation: str = "tanh",
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.num_classes = num_classes
        ends = (1 + hops) * num_classes, hidden_channels, num_classes
        self.mlp = MLP(*ends, 2, activation, dropout)
        for parameter in self.mlp.linears[-1].parameters():
            nn.init.zeros_(parameter)

    @at_home
    def forward(self, rows: Tensor) -> Tensor:
        own, cached = rows[:, : self.num_classes], rows[:, self.num_classes :]
        return own + self.mlp(torch.cat([own.clamp_min(-10.0) / 3.0, cached], 1))


class SumHead(nn.Module):
    """``b`` times a node's own log-probabilities, ``a`` times each hop's sums, and a bias.

    For graphs where little reaches a node: few numbers to learn, and nothing to over-fit. Trained
    in the open only; the engine has no rule for its scalars.
    """

    def __init__(self, num_classes: int, hops: int) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.scale = nn.Parameter(torch.cat([torch.ones(1), torch.full((hops,), 0.1)]))
        self.bias = nn.Parameter(torch.zeros(num_classes))

    @at_home
    def forward(self, rows: Tensor) -> Tensor:
        parts = rows.unflatten(1, (-1, self.num_classes))
        return (parts * self.scale.unsqueeze(1)).sum(1) + self.bias


class PairAttention(nn.Module):
    """The weight of a message: a two-layer MLP of its two ends' rows, and a sigmoid.

    The first layer acts on each end by itself before the sum, which is what it does to the pair.
    """

    def __init__(self, channels: int, hidden_channels: int, activation: str = "tanh") -> None:
        super().__init__()
        self.sender = nn.Linear(channels, hidden_channels)
        self.receiver = nn.Linear(channels, hidden_channels, bias=False)
        self.after = Activated(hidden_channels, activation)
        self.out = nn.Linear(hidden_channels, 1)

    def forward(self, senders: Tensor, receivers: Tensor) -> Tensor:
        """A number in [0, 1] for each pair of rows, which broadcast: (..., pairs)."""
        hidden = self.after(self.sender(senders) + self.receiver(receivers))
        return sigmoid(self.out(hidden)).squeeze(-1)

    def between(self, rows: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
        """A function of ids of senders and receivers among ``rows``, in float64.

        Everything that mixes channels is done for each node, whoever it sends to, or by a sum over
        one pair's channels: the weight of a message does not depend on which others there are.
        """
        exact, rows = copy.deepcopy(self).to(CPU, torch.float64), rows.double()
        sender, receiver = exact.sender(rows), exact.receiver(rows)
        last, bias = exact.out.weight.squeeze(0), exact.out.bias

        def weigh(senders: Tensor, receivers: Tensor) -> Tensor:
            hidden = exact.after(sender[senders] + receiver[receivers])
            return sigmoid((hidden * last).sum(-1) + bias)

        return weigh


class AttentionTerms(nn.Module):
    """What attention is trained on: a root's label from its own row and its weighted sum.

    The sum is scaled to length 1, as it is after a noisy aggregation. ``noise`` is the deviation of
    Gaussian noise on its entries, which every pass draws anew; nothing is paid for by it, nor for
    it: it stays inside the loss terms.
    """

    def __init__(
        self, attention: PairAttention, channels: int, num_classes: int, noise: float = 0.0
    ) -> None:
        super().__init__()
        self.attention = attention
        self.readout = nn.Linear(2 * channels, num_classes)
        self.noise = noise

    def forward(self, around: Rooted) -> Tensor:
        rows = F.embedding(around.index, around.table)
        own, (messages,) = rows[:, :1], around.layers()
        weight = messages.weight.to(rows.dtype) * self.attention(rows, own).unsqueeze(1)
        summed = (weight.masked_fill(~messages.sent, 0.0) @ rows).squeeze(1)
        if self.noise:
            summed = summed + self.noise * torch.randn_like(summed)
        summed = summed / (summed.square().sum(1, keepdim=True) + 1e-6).sqrt()
        return self.readout(torch.cat([own.squeeze(1), summed], 1))


class GAPNetwork(nn.Module):
    """Encoders, attention for each hop and a head; which of them there are depends on the method.

    Several encoders were trained on different folds, and are averaged. Several heads are
    alternatives, of which ``chosen`` is used.
    """

    encoders: Any
    attention: Any
    heads: Any
    chosen: Tensor

    def __init__(
        self, encoders: Sequence[nn.Module], attention: list[PairAttention], heads: list[nn.Module]
    ) -> None:
        super().__init__()
        self.encoders = nn.ModuleList(encoders)
        self.attention = nn.ModuleList(attention)
        self.heads = nn.ModuleList(heads)
        self.register_buffer("chosen", torch.zeros((), dtype=torch.long))

    @property
    def head(self) -> nn.Module:
        """The head in use."""
        return self.heads[int(self.chosen)]

    def log_probabilities(self, x: Rows, unseen: Tensor | None = None) -> Tensor:
        """What the encoders say of each node by itself, on average.

        ``unseen`` names one encoder for each node that is to be asked alone, -1 for all of them.
        """
        beliefs = torch.stack([encoder(x).softmax(1) for encoder in self.encoders])
        mean = beliefs.mean(0)
        if unseen is not None:
            one = beliefs[unseen.clamp_min(0), torch.arange(len(unseen))]
            mean = torch.where((unseen >= 0).unsqueeze(1), one, mean)
        # Of a node whose features overflow nothing is believed: it must not stop the others.
        mean = mean.where(mean.isfinite().all(1, keepdim=True), 1.0 / mean.shape[1])
        return mean.log().clamp_min(-15.0).log_softmax(1)
