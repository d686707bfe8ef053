r"""The clipped sum for linear layers in a chain, each example on a row of its own.

The gradient of one example at one layer is the outer product of b, the loss's gradient at what
comes out, and a, the row that goes in. So norms and sums need no gradient per example,

    |b a^T|^2 = |b|^2 |a|^2,        \sum_i c_i b_i a_i^T = (c * B)^T A,

and where rows are mostly zeros, the products with the first layer cost what the rows hold. It is
the sum of :class:`~graphveil.grads.clipped.ClippedSum`, many times faster on bags of words.

**Rounding.** Everything is in float64: in float32 rounding alone, on rows laid out for it, moves a
sum of 100,000 terms by many bounds when one of them is left out. Two things are kept:

*A term does not know its company.* Products with a sparse matrix go row by row. Dense ones are
padded so that every row is treated alike (:mod:`graphveil.grads.products`), and so is the number of
rows, for what follows them. Whether rows are kept sparse is decided by the number of columns.

*Leaving one term out moves the sum by the bound, and no more.* A sum adds at most R =
:data:`_ROWS_AT_ONCE` rows and then those sums, through R + n / R roundings for n terms. It errs by
(R + n / R) 2^-53 of what the terms' norms add up to, all layers together, since the norm of errors
is at most the sum of the terms' errors. Twice that, of n bounds, is below 2^-18 for two million
terms, which :data:`~graphveil.grads.rules.PAY_FOR_SUMS` pays for.

A term may be the mean of several rows' losses, clipped as one. Then its gradient may be short while
its rows' are long: a norm is read as no less than 1 / 16 of what these add up to, so that what is
summed is 16 n bounds long at most. For 120,000 terms of two million rows in all that is as much as
above. A term has at most R rows, and the sums of a batch more than R / 2, two by two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from scipy import sparse
from torch import Tensor, nn
from torch.nn import functional as F

from graphveil._errors import InvalidInputError, UnprovenError
from graphveil.grads.clipping import Clipping
from graphveil.grads.company import check_others, check_parts
from graphveil.grads.modules import empty_sum, noise_units, trained_blocks
from graphveil.grads.products import SMALL, RowByRow
from graphveil.grads.recording import Losses, check_losses
from graphveil.grads.rows import Rows
from graphveil.grads.rules import PAY_FOR_SUMS, Call, LinearRule, enlarge
from graphveil.graph.lazy_rows import LazyRows, slices
from graphveil.graph.sparse_rows import MOST_DENSE, as_csr, is_sparse
from graphveil.graph.targets import fill_in, is_live

MOST_DRAWN = 2_000_000  # rows of a step, on average, whose rounding is paid for
MOST_MEANS = 120_000  # the same, of terms that are means of rows
_CANCEL = 1 / 16  # of what rows' gradients add up to: the least that their sum's norm is read as
_ROWS_AT_ONCE = 8192
_IN_MEANS = int(_ROWS_AT_ONCE / _CANCEL)  # roundings of a sum of rows, as parts of its norm
_FEW = 1 << 24  # numbers on disk that are rather held in memory
_TINY = 1e-300  # more than what is lost of squares that underflow
_BY_THEMSELVES = (nn.Tanh, nn.ReLU, nn.Identity)  # modules that treat every number by itself

Function = Callable[[Tensor], Tensor]
Batch = tuple["sparse.csr_array | Tensor", Tensor, Tensor, Tensor | None]


@runtime_checkable
class Chained(Protocol):
    """A module that applies others, and functions of single numbers, one after the other."""

    def chain(self) -> Iterable[nn.Module | Function]:
        """What is applied, in this order."""


@dataclass(frozen=True, eq=False)
class _Link:
    """A linear layer, its name, and the functions of single numbers before it."""

    name: str
    layer: nn.Linear
    before: tuple[Function, ...]

    def activate(self, values: Tensor) -> Tensor:
        """What the layer reads of what the one before it gave."""
        for function in self.before:
            values = function(values)
        return values


class RowExamples:
    """Examples that are rows with a target each; negative ones have no loss.

    ``rows`` are a sparse matrix of scipy, a tensor of any layout, or rows on disk. A row with an
    entry that is not finite counts for nothing. With ``sizes`` the examples are the means of so
    many rows each, one after the other; where all are 1, that is the rows.
    """

    def __init__(
        self,
        rows: sparse.csr_array | Tensor | LazyRows,
        labels: Tensor,
        sizes: Tensor | None = None,
    ) -> None:
        self.sizes = None if sizes is None or bool((sizes == 1).all()) else _check_sizes(sizes)
        if self.sizes is not None and int(self.sizes.sum()) != len(labels):
            raise InvalidInputError(
                f"The sizes of examples must add up to {len(labels)} rows. Got "
                f"{int(self.sizes.sum())} instead."
            )
        if rows.shape[0] != len(labels):
            raise InvalidInputError(
                f"Rows and labels must be as many. Got {rows.shape[0]} and {len(labels)} instead."
            )
        self.labels = labels.clone()
        self.rows: sparse.csr_array | Tensor | LazyRows
        if isinstance(rows, LazyRows) and rows.shape[0] * rows.shape[1] <= _FEW:
            rows = rows[:]
        if isinstance(rows, LazyRows):  # read once for their lengths, and again at every step
            parts = [_measure(rows[place])[1:] for place in slices(len(rows), _ROWS_AT_ONCE)]
            self.rows = rows
            self.squares, broken = (torch.cat(part) for part in zip(*parts, strict=True))
        else:
            self.rows, self.squares, broken = _measure(rows)
        self.labels[broken] = -1

    def __len__(self) -> int:
        return len(self.labels) if self.sizes is None else len(self.sizes)

    @property
    def most_drawn(self) -> float:
        """How many examples a step may draw on average: rounding is paid for so many."""
        if self.sizes is None:
            return MOST_DRAWN
        return min(MOST_MEANS, MOST_DRAWN * len(self) / len(self.labels))

    @cached_property
    def _all(self) -> list[Batch]:
        """Every example, cut up once."""
        return list(self._batches([*slices(len(self), _ROWS_AT_ONCE)], wide=True))

    def batches(self, drawn: Tensor) -> Iterator[Batch]:
        """Rows, their squared lengths, labels, sizes; a few thousand rows at a time."""
        if self.sizes is not None:
            yield from self._means(drawn, self.sizes)
        elif len(drawn) < len(self):
            yield from self._batches(drawn.split(_ROWS_AT_ONCE))
        elif isinstance(self.rows, LazyRows):
            yield from self._batches([*slices(len(self), _ROWS_AT_ONCE)])
        else:
            yield from self._all

    def _batches(self, places: Iterable[slice | Tensor], *, wide: bool = False) -> Iterator[Batch]:
        for some in places:
            rows: sparse.csr_array | Tensor
            if isinstance(self.rows, LazyRows):
                rows = _measure(self.rows[some])[0]
            elif isinstance(self.rows, Tensor) or isinstance(some, slice):
                rows = self.rows[some]
            else:
                rows = self.rows[some.numpy()]
            rows = _widen(rows) if wide and isinstance(rows, Tensor) else rows
            yield rows, self.squares[some], self.labels[some], None

    def _means(self, drawn: Tensor, sizes: Tensor) -> Iterator[Batch]:
        """Examples with all of their rows, as many as fit."""
        first = sizes.cumsum(0) - sizes
        ends, start = sizes[drawn].cumsum(0).numpy(), 0
        while start < len(drawn):
            before = ends[start - 1] if start else 0
            stop = max(start + 1, int(np.searchsorted(ends, before + _ROWS_AT_ONCE, "right")))
            part = drawn[start:stop]
            within = torch.arange(int(sizes[part].sum()))
            within -= (sizes[part].cumsum(0) - sizes[part]).repeat_interleave(sizes[part])
            places = first[part].repeat_interleave(sizes[part]) + within
            for rows, squares, labels, _ in self._batches([places]):
                yield rows, squares, labels, sizes[part]
            start = stop


def _check_sizes(sizes: Tensor) -> Tensor:
    if bool(((sizes < 1) | (sizes > _ROWS_AT_ONCE)).any()):
        raise UnprovenError(
            f"An example must be the mean of at most {_ROWS_AT_ONCE:,} rows, for which rounding is "
            f"paid. Got {int(sizes.max()):,} instead; keep fewer of an owner's records, with "
            "graphveil.cap_owners."
        )
    return sizes


def _measure(
    rows: sparse.csr_array | Tensor,
) -> tuple[sparse.csr_array | Tensor, Tensor, Tensor]:
    """Rows with zeros where one is not finite, their squared lengths, and which were not finite."""
    if isinstance(rows, Tensor) and not is_sparse(rows) and rows.shape[1] <= MOST_DENSE:
        broken = ~rows.isfinite().all(1)
        if bool(broken.any()):
            rows = torch.where(broken.unsqueeze(1), 0.0, rows)
        squares = [part.double().square().sum(1) for part in rows.split(_ROWS_AT_ONCE)]
        return rows, torch.cat(squares), broken
    rows = sparse.csr_array(as_csr(rows), dtype=np.float64, copy=True)
    owner = np.repeat(np.arange(rows.shape[0]), np.diff(rows.indptr))
    broken = torch.zeros(rows.shape[0], dtype=torch.bool)
    broken[torch.from_numpy(owner[~np.isfinite(rows.data)])] = True
    rows.data[broken.numpy()[owner]] = 0.0
    with np.errstate(over="ignore"):  # such a row counts for nothing
        lengths = np.bincount(owner, rows.data**2, minlength=rows.shape[0])
    return rows, torch.from_numpy(lengths), broken


class RowSum:
    """The clipped sum of a module that is linear layers in a chain, over :class:`RowExamples`.

    Between the layers stand functions of single numbers. The module is one linear layer, an
    ``nn.Sequential``, or :class:`Chained`.

    ``losses(module, batch)`` is given the identity and (outputs, labels): an example's loss must be
    a function of its own outputs and its own label, which is tested on the first batch.
    """

    def __init__(self, module: nn.Module, losses: Losses, clipping: Clipping) -> None:
        self.module, self.losses, self.clipping = module, losses, clipping
        self.seen, self.loss = 0, 0.0  # examples in the last sum, and their losses; both private
        self._links = _links(module, trained_blocks(module, clipping))
        self._tested = False

    @property
    def scales(self) -> dict[str, float]:
        """The noise unit of every parameter (see :mod:`graphveil.grads.clipping`)."""
        return noise_units(self.module, self.clipping, [link.name for link in self._links])

    @torch.no_grad()
    def __call__(self, batches: Iterable[Batch]) -> dict[str, Tensor]:
        """The clipped sum over all examples of all ``batches``, by parameter name; float64."""
        total = empty_sum(self.module)
        weights = [(link.layer.weight.double(), link.layer.bias.double()) for link in self._links]
        self.seen, self.loss = 0, 0.0
        for rows, squares, labels, sizes in batches:
            if len(labels):
                with RowByRow(), one_thread():
                    self._add(total, weights, rows, squares, labels, sizes)
        return total

    def _add(
        self,
        total: dict[str, Tensor],
        weights: list[tuple[Tensor, Tensor]],
        rows: sparse.csr_array | Tensor,
        squares: Tensor,
        labels: Tensor,
        sizes: Tensor | None,
    ) -> None:
        """Add the clipped gradients of a few examples to ``total``."""
        count = len(labels)
        whose = None if sizes is None else _Means(sizes)
        hidden, made = self._forward(weights, rows, -count % SMALL)
        shares = None if whose is None else F.pad(whose.shares, (0, -count % SMALL))
        grads = self._backward(weights, hidden, made, _pad_targets(labels, -count % SMALL), shares)
        reads = [None, *hidden]  # the first layer reads the rows themselves
        self.seen += count if sizes is None else len(sizes)
        norms = {}
        for link, read, grad in zip(self._links, reads, grads, strict=True):
            layer = link.layer
            lengths = squares if read is None else read[:count].square().sum(1)
            # A norm is never read too small: rounding makes it larger, if anything.
            roundings = layer.in_features + layer.out_features + len(grads)
            lengths = (lengths + 1.0) * (grad[:count].square().sum(1) + _TINY)
            if whose is not None:
                roundings += _IN_MEANS
                inputs = rows if read is None else read[:count]
                lengths = whose.squared_norms(layer, inputs, grad[:count], lengths)
            norms[link.name] = lengths * (enlarge(roundings, torch.float64) * PAY_FOR_SUMS)
        factors = self.clipping.factors(norms)
        if whose is not None:
            factors = {name: factor[whose.owner] for name, factor in factors.items()}
        for link, read, grad in zip(self._links, reads, grads, strict=True):
            factor = factors[link.name].unsqueeze(1)
            clipped = torch.where(factor > 0, grad[:count] * factor, 0.0)
            within = f"{link.name}." if link.name else ""
            total[f"{within}bias"] += clipped.sum(0)
            weight = total[f"{within}weight"]
            if read is not None:
                weight.addmm_(clipped.t(), torch.where(factor > 0, read[:count], 0.0))
            elif isinstance(rows, Tensor):
                weight += (clipped.t() @ _widen(rows)[:count])[:, : link.layer.in_features]
            else:
                weight += torch.from_numpy(rows.T @ clipped.cpu().numpy()).t().to(weight.device)

    def _forward(
        self, weights: list[tuple[Tensor, Tensor]], rows: sparse.csr_array | Tensor, padding: int
    ) -> tuple[list[Tensor], list[Tensor]]:
        """What goes into every layer but the first, and what comes out of every one."""
        weight, bias = weights[0]
        if isinstance(rows, Tensor):
            wide = _widen(rows)
            wide = F.pad(wide, (0, 0, 0, padding)) if padding else wide
            out = F.linear(wide, F.pad(weight, (0, wide.shape[1] - weight.shape[1])), bias)
        else:
            product = torch.from_numpy(rows @ weight.t().contiguous().cpu().numpy())
            out = F.pad(product.to(bias.device), (0, 0, 0, padding)) + bias
        hidden, made = [], [out]
        for link, (weight, bias) in zip(self._links[1:], weights[1:], strict=True):
            with torch.enable_grad():
                read = link.activate(out.requires_grad_())
            out = F.linear(read.detach(), weight, bias)
            hidden.append(read)
            made.append(out)
        return hidden, made

    def _backward(
        self,
        weights: list[tuple[Tensor, Tensor]],
        hidden: list[Tensor],
        made: list[Tensor],
        labels: Tensor,
        shares: Tensor | None,
    ) -> list[Tensor]:
        """The gradients of the losses at what comes out of every layer.

        Of examples that are means of rows, each row has its share.
        """
        outputs, live = made[-1].requires_grad_(), is_live(labels)
        batch = outputs, fill_in(labels)
        with torch.enable_grad():
            losses = self._lose(batch)
            (grad,) = torch.autograd.grad(losses.sum(), outputs)
        if not self._tested:
            self._tested = True
            plain = outputs.detach(), batch[1]
            for check in (check_others, check_parts):
                check(self._lose, plain, losses.detach(), "the outputs")
        if shares is not None:
            losses, grad = losses.detach() * shares, grad * shares.view(-1, *[1] * (grad.dim() - 1))
        self.loss += float(losses.detach()[live].sum())
        grads = [torch.where(live.unsqueeze(1), grad, 0.0)]
        for (weight, _), read, out in zip(weights[:0:-1], hidden[::-1], made[-2::-1], strict=True):
            back = F.linear(grads[-1], weight.t().contiguous())
            (grad,) = torch.autograd.grad(read, out, back)
            grads.append(grad)
        return grads[::-1]

    def _lose(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        return check_losses(self.losses(_IDENTITY, batch))


class _Means:
    """Examples that are means of several rows: whose the rows are, and how long means are."""

    def __init__(self, sizes: Tensor) -> None:
        self.sizes, self.count = sizes, len(sizes)
        self.owner = torch.arange(self.count).repeat_interleave(sizes)
        self.shares = sizes.double().reciprocal()[self.owner]

    def squared_norms(
        self,
        layer: nn.Linear,
        inputs: sparse.csr_array | Tensor,
        grad: Tensor,
        lengths: Tensor,
    ) -> Tensor:
        """The squared norm of every example's gradient of a layer, and no less than is paid for.

        ``lengths`` are those of the rows' own gradients, squared.
        """
        added = torch.zeros(self.count, dtype=torch.float64)
        added.index_add_(0, self.owner, lengths.sqrt())
        if isinstance(inputs, Tensor):
            call = Call((_widen(inputs)[: len(grad)],), grad, Rows(self.owner, self.count))
            norms = LinearRule(layer, [call], self.count).squared_norms()
        else:
            norms = self._sparse(inputs, grad)
        return torch.maximum(norms, (_CANCEL * added).square())

    def _sparse(self, inputs: sparse.csr_array, grad: Tensor) -> Tensor:
        """One output after the other: its gradients' sums are as sparse as the rows."""
        ends = np.concatenate([[0], self.sizes.cumsum(0).numpy()])
        places, norms = np.arange(len(grad)), np.zeros(self.count)
        for column in grad.t().contiguous().numpy():
            adding = sparse.csr_array((column, places, ends), shape=(self.count, len(grad)))
            total = sparse.csr_array(adding @ inputs)
            whose = np.repeat(np.arange(self.count), np.diff(total.indptr))
            norms += np.bincount(whose, total.data**2, minlength=self.count)
            norms += np.add.reduceat(column, ends[:-1]) ** 2
        return torch.from_numpy(norms)


_IDENTITY = nn.Identity()


@contextmanager
def one_thread() -> Iterator[None]:
    """Work by one thread.

    Several cut a batch where its size says, and treat rows and numbers next to a cut by other
    instructions, which round otherwise: a term would know how many others there are.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _pad_targets(labels: Tensor, padding: int) -> Tensor:
    """With so many more at the end, which have no loss."""
    sides = (0, padding) if labels.dim() == 1 else (0, 0, 0, padding)
    return F.pad(labels, sides, value=-1)


def _widen(rows: Tensor) -> Tensor:
    """Dense rows in float64, with columns of zeros up to a size that products treat alike."""
    if rows.dtype == torch.float64 and rows.shape[1] % SMALL == 0:
        return rows
    return F.pad(rows.double(), (0, -rows.shape[1] % SMALL))


def _links(module: nn.Module, blocks: dict[str, nn.Module]) -> list[_Link]:
    """The layers of a module in their order, each trained as a whole and once."""
    names = {id(layer): name for name, layer in blocks.items()}
    links: list[_Link] = []
    before: list[Function] = []
    alone = len(blocks) == 1 and not isinstance(module, nn.Sequential)
    for part in blocks.values() if alone else _in_turn(module):
        if type(part) is nn.Linear:
            links.append(_Link(names.pop(id(part), ""), part, tuple(before)))
            before = []
        else:
            before.append(part)
    biased = all(link.layer.bias is not None for link in links)
    parameters = [p for link in links for p in link.layer.parameters()]
    trained = all(p.requires_grad for p in parameters)
    once = len(parameters) == len({id(p) for p in parameters}) and not names
    if before or not (links and biased and trained and once) or links[0].before:
        raise _not_a_chain(module)
    return links


def _in_turn(part: Any) -> Iterator[Any]:
    """Linear layers, and functions of single numbers, as a module applies them."""
    if isinstance(part, Chained):
        for inner in part.chain():
            yield from _in_turn(inner)
    elif type(part) is nn.Sequential:
        for inner in part:
            yield from _in_turn(inner)
    elif type(part) in (nn.Linear, *_BY_THEMSELVES) or not isinstance(part, nn.Module):
        yield part
    else:
        raise _not_a_chain(part)


def _not_a_chain(part: Any) -> InvalidInputError:
    return InvalidInputError(
        "The module must be linear layers with a bias, each trained and used once, with functions "
        f"of single numbers between them. Got {type(part).__name__} instead; give its examples as "
        "a tuple of tensors."
    )
