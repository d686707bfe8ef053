"""Training as the code of Igamberdiev and Habernal was released: noise, and nothing that bounds.

    the training nodes fall into groups; in every epoch each group is visited once, in a new order:
        loss = mean over the group's nodes, from a pass over the whole graph with all its edges
        gradient + N(0, noise^2) on every coordinate, then a step of plain SGD or of Adam

In the open it is the same without noise, with weight decay and early stopping.

Three details of the code (trusthlt/privacy-preserving-gcn) matter. Its clipping is given copies
without a gradient and leaves them as they are. Its groups mask the loss and no edge. It calls
``eval()`` after the first epoch and never ``train()`` again, so that dropout ends there.

What a group's loss does not read is left out of its pass; the gradient is that of the whole graph.

*Guarantee*: none. Noise comes from an ordinary generator, since nothing is to be hidden by it; the
secret stream gives its seed.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.data import Data

from graphveil import devices
from graphveil._errors import InvalidInputError
from graphveil.graph.messages import Messages
from graphveil.graph.stored_messages import read_all
from graphveil.methods.execution import Execution
from graphveil.methods.open_training import make_optimizer, seeded_weights
from graphveil.rng import SecretStream, seeded

Loss = Callable[[Any], Tensor]  # of a network

_DENSE = 0.4  # the share of entries above which a table is faster than a list of them
_COPIES = 12  # of the graph's rows, beyond which groups share one pass over all of them


@dataclass(frozen=True, kw_only=True)
class ReleasedTraining:
    """How the released code trains: ``noise`` is 0 and ``patience`` 20 in the open.

    With a ``patience`` it stops when the validation loss has not fallen for so many epochs. The
    last weights are kept, not the best.
    """

    epochs: int
    groups: int
    optimizer: str
    learning_rate: float
    seed: int
    noise: float = 0.0
    weight_decay: float = 0.0
    patience: int | None = None

    def __call__(
        self, network: Any, x: Any, messages: Any, data: Data, execution: Execution
    ) -> None:
        """Train ``network``, a GCN and nothing before or after it."""
        messages = read_all(messages, "The released code ('paper', or 'epochs' of gnn)")
        if any(list(part.parameters()) for part in (network.encoder, network.decoder)):
            raise InvalidInputError(
                "The released code has convolutions and no layers before or after them. Got a "
                "network with some instead; set encoder_layers and decoder_layers to 0."
            )
        groups = group_training_nodes(data.train_mask, self.groups, self.seed)
        compared = (data.val_mask & (data.y >= 0)).nonzero().flatten()
        passes = prepare_passes(x, messages, [*groups, compared], len(network.convs))
        labels = [data.y[ids] for ids in [*groups, compared]]
        losses = [
            partial(_mean_loss, *devices.move((one, y), devices.current()))
            for one, y in zip(passes, labels, strict=True)
            if len(y)
        ]
        execution.train_openly(
            execution.plan.part("weights"),
            lambda: self._take_steps_there(
                network, losses[: self.groups], losses[self.groups :], execution
            ),
        )

    def _take_steps_there(self, network: Any, *rest: Any) -> None:
        with devices.placed(network):
            self._take_steps(network, *rest)

    def _take_steps(
        self, network: Any, losses: Sequence[Loss], compared: Sequence[Loss], execution: Execution
    ) -> None:
        parameters = list(network.parameters())
        optimizer = make_optimizer(
            self.optimizer, parameters, self.learning_rate, self.weight_decay, momentum=0.0
        )
        noise, order = _generator(execution.rng), _in_turn(self.groups, self.seed)
        steps, stop = range(self.epochs * self.groups), _Patience(self.patience)
        network.train()
        with seeded_weights(self.seed):  # and the dropout of the first epoch
            _draw_weights(network)
            if execution.on_step is not None:
                execution.on_step(network, 0)
            for taken in steps if execution.progress is None else execution.progress(steps):
                optimizer.zero_grad()
                loss = losses[next(order)](network)
                loss.backward()
                self._add_noise(parameters, noise)
                optimizer.step()
                if execution.on_loss is not None:
                    execution.on_loss(float(loss.detach()))
                if execution.on_step is not None:
                    execution.on_step(network, taken + 1)
                if (taken + 1) % self.groups == 0:
                    network.eval()  # for good: dropout ends with the first epoch
                    if stop.after(network, compared):
                        break
        network.eval()

    def _add_noise(self, parameters: list[nn.Parameter], generator: torch.Generator) -> None:
        for parameter in parameters if self.noise else ():
            # On the processor, wherever the network is.
            drawn = torch.empty(parameter.shape).normal_(generator=generator)
            assert parameter.grad is not None
            parameter.grad.add_(drawn.to(parameter.grad), alpha=self.noise)


class _Patience:
    """Says when the validation loss has not fallen for so many epochs."""

    def __init__(self, patience: int | None) -> None:
        self.patience, self.best, self.waited = patience, math.inf, 0

    def after(self, network: Any, compared: Sequence[Loss]) -> bool:
        """Whether to stop after this epoch."""
        if self.patience is None or not compared:
            return False
        with torch.no_grad():
            loss = float(compared[0](network))
        self.waited = self.waited + 1 if loss > self.best else 0
        self.best = min(self.best, loss)
        return self.waited >= self.patience


def _draw_weights(network: Any) -> None:
    """The first weights of PyG's GCN: Glorot's, and biases of zero."""
    for conv in network.convs:
        nn.init.xavier_uniform_(conv.lin.weight)
        nn.init.zeros_(conv.lin.bias)


def _mean_loss(one: Pass, labels: Tensor, network: Any) -> Tensor:
    return F.cross_entropy(one(network), labels)


def group_training_nodes(train_mask: Tensor, count: int, seed: int) -> list[Tensor]:
    """The training nodes in ``count`` random groups of equal size, give or take one."""
    ids = train_mask.nonzero().flatten().numpy()
    order = seeded(seed, "groups").generator().permutation(ids)
    return [torch.from_numpy(np.sort(some)) for some in np.array_split(order, count)]


def _in_turn(groups: int, seed: int) -> Iterator[int]:
    """Every group once an epoch, in a new order each time."""
    generator = seeded(seed, "order").generator()
    while True:
        yield from generator.permutation(groups).tolist()


def _generator(rng: SecretStream) -> torch.Generator:
    return torch.Generator().manual_seed(int.from_bytes(rng.bytes(7), "little"))


# --- one pass -------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Product:
    """A matrix that is multiplied from the left, and its transpose, for the gradient."""

    matrix: Tensor
    transposed: Tensor

    @classmethod
    def of(cls, matrix: sp.csr_matrix) -> Product:
        """Listed or as a table, whichever is faster."""
        if matrix.nnz > _DENSE * np.prod(matrix.shape):
            table = torch.from_numpy(matrix.toarray())
            return cls(table, table.t())
        return cls(_listed(matrix), _listed(matrix.T.tocsr()))

    def __matmul__(self, h: Tensor) -> Tensor:
        return _LeftProduct.apply(h, self.matrix, self.transposed)


@dataclass(frozen=True, eq=False)
class Pass:
    """The logits of one group: ``first`` are the sums of raw rows, ``then`` sum hidden ones."""

    first: Product
    then: list[Product]

    def __call__(self, network: Any) -> Tensor:
        """What a GCN of as many layers says of the group's nodes."""
        for place, (conv, after) in enumerate(zip(network.convs, network.after[1:], strict=True)):
            if place == 0:
                h = self.first @ conv.lin.weight.t() + conv.lin.bias
            else:
                h = conv.lin(self.then[place - 1] @ h)
            h = h if isinstance(after, nn.Identity) else after(h)
        return h


def prepare_passes(
    x: Tensor, messages: Messages, groups: list[Tensor], num_layers: int
) -> list[Pass]:
    """For each group the sums that its logits are made of, and no others."""
    sums = _matrix(messages)
    first = (sums @ sp.csr_matrix(x.numpy())).tocsr()
    read = [_rows_read(sums, ids.numpy(), num_layers) for ids in groups]
    shared = None
    if num_layers > 1 and sum(len(rows[0]) for rows in read) > _COPIES * len(x):
        shared = Product.of(first)
        read = [[np.arange(len(x)), *rows[1:]] for rows in read]
    return [
        Pass(
            Product.of(first[rows[0]]) if shared is None else shared,
            [Product.of(sums[after][:, before].tocsr()) for before, after in pairwise(rows)],
        )
        for rows in read
    ]


def _rows_read(sums: sp.csr_matrix, ids: Any, num_layers: int) -> list[Any]:
    """The nodes whose states are needed after the first layer, after the second, ..., the last."""
    rows = [ids]
    for _ in range(num_layers - 1):
        rows.insert(0, np.unique(sums[rows[0]].indices))
    return rows


def _matrix(messages: Messages) -> sp.csr_matrix:
    """Row w sums what reaches w, its own state included."""
    nodes, (source, target) = messages.num_nodes, messages.edge_index.numpy()
    sent = sp.csr_matrix((messages.weight.numpy(), (target, source)), shape=(nodes, nodes))
    return (sent + sp.diags(messages.self_weight.numpy())).tocsr().astype(np.float32)


def _listed(matrix: sp.csr_matrix) -> Tensor:
    with warnings.catch_warnings():  # torch calls its compressed matrices a beta
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support")
        return torch.sparse_csr_tensor(
            torch.from_numpy(matrix.indptr),
            torch.from_numpy(matrix.indices),
            torch.from_numpy(matrix.data),
            matrix.shape,
            check_invariants=False,  # scipy keeps them
        )


class _LeftProduct(torch.autograd.Function):
    """A constant matrix times ``h``; the gradient is the transpose times what comes back."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, matrix: Tensor, transposed: Tensor) -> Tensor:
        ctx.transposed = transposed
        return matrix @ h

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return ctx.transposed @ grad, None, None
