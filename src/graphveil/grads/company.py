"""Whether an example's loss knows its company: who else is in the batch, and how many.

A batch is a tensor, or a tuple of them, with one row for each example; or it holds objects that can
``take`` rows, such as rooted neighbourhoods. Others, such as ragged batches, are compared with
themselves alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from graphveil._errors import UnprovenError
from graphveil.grads.recording import Batch, as_tuple
from graphveil.graph.neighbourhoods import Rooted
from graphveil.graph.side_by_side import SideBySide

_SAME = 1e-5  # of a loss: what passes of one shape may differ by
_SMALLER = 1e-3  # passes of another shape, in which products round differently
_TESTED = 64  # examples of a batch of several sizes
_IMPOSSIBLE = (RuntimeError, ValueError, IndexError, AssertionError)


def shorten(batch: Batch) -> Batch:
    """Some examples of each size, of a batch of several sizes; others as they are.

    It would be computed dozens of times, padded to its largest size.
    """
    parts = as_tuple(batch)
    mixed = next((x for x in parts if isinstance(x, SideBySide)), None)
    if mixed is None or len(mixed) <= _TESTED:
        return batch
    rows = torch.linspace(0, len(mixed) - 1, _TESTED).long()
    return tuple(x.keep(rows) if isinstance(x, SideBySide) else x[rows] for x in parts)


def check_same(again: Tensor, losses: Tensor, who: str) -> None:
    """Refuse losses that differ for one batch, with everything random as it was."""
    slack = _slack(losses, _SAME)
    if again.shape != losses.shape or _first_difference(again, losses, slack) is not None:
        raise UnprovenError(
            f"The losses of one batch are others when it is seen again, with the same random "
            f"numbers: {who} or the loss keeps a memory of what it saw, or draws from a generator "
            "of its own. Compute losses from the examples and the weights alone, and draw from "
            "torch's generator."
        )


def check_others(run: Callable[[Batch], Tensor], batch: Batch, losses: Tensor, who: str) -> None:
    """Refuse losses that change when the other examples are replaced, in a batch as large.

    ``run`` gives the losses of a batch with the same random numbers every time, so that this says
    something in training mode, too.
    """
    count = len(losses)
    if count < 2 or not _rows_can_be_taken(batch, count):
        return
    places = torch.arange(count)
    for kept in (places == 0, places == count - 1, places % 2 == 0, places % 2 == 1):
        others = places[~kept]
        for by, loud in ((others[0], False), (others[-1], True)):
            rows = torch.where(kept, places, by)
            try:
                again = run(_replace_rows(batch, rows, ~kept, loud=loud))
            except _IMPOSSIBLE:
                continue  # not every module can see such rows
            if again.shape != losses.shape:
                continue
            mask = kept.to(losses.device)
            where = _first_difference(again[mask], losses[mask], _slack(losses[mask], _SAME))
            if where is not None:
                raise UnprovenError(
                    f"The loss of example {int(places[kept][where])} is another one when the other "
                    f"examples are replaced, with the same random numbers: {who} or the loss mixes "
                    "the examples of a batch. Compute it from the example's data alone."
                )


def check_parts(run: Callable[[Batch], Tensor], batch: Batch, losses: Tensor, who: str) -> None:
    """Refuse losses that change in less company, where nothing is random.

    The first example alone, the last one, every other one, and those between them.
    """
    if not _rows_can_be_taken(batch, len(losses)):
        return
    places, slack = torch.arange(len(losses)), _slack(losses, _SMALLER)
    for part in (places[:1], places[-1:], places[::2], places[1::2]):
        if not len(part):
            continue
        try:
            again = run(_take(batch, part))
        except _IMPOSSIBLE:
            continue  # not a function of these tensors alone
        if again.shape != part.shape:
            continue
        rows = part.to(losses.device)
        where = _first_difference(again, losses[rows], slack[rows])
        if where is not None:
            raise UnprovenError(
                f"The loss of example {int(part[where])} is another one when fewer "
                f"examples are in the batch: {who} or the loss mixes the examples of a batch, or "
                "divides by their number. Compute it from the example's data alone."
            )


def _rows_can_be_taken(batch: Batch, count: int) -> bool:
    return all(
        (x.dim() > 0 if isinstance(x, Tensor) else hasattr(x, "take")) and len(x) == count
        for x in as_tuple(batch)
    )


def _take(batch: Batch, rows: Tensor) -> Batch:
    taken = tuple(
        x[rows.to(x.device)] if isinstance(x, Tensor) else x.take(rows) for x in as_tuple(batch)
    )
    return taken if isinstance(batch, (tuple, list)) else taken[0]


def _replace_rows(batch: Batch, rows: Tensor, others: Tensor, *, loud: bool) -> Batch:
    """Row ``rows[i]`` in place i; of ``others`` with numbers as no example has, if ``loud``."""
    taken = _take(batch, rows)
    if not loud:
        return taken

    def change(x: Any) -> Any:
        if isinstance(x, Rooted):  # the rows that no other root than the replaced ones reads
            unread = torch.ones(len(x.table), dtype=torch.bool)
            unread[x.index[~others.to(x.index.device)].flatten().cpu()] = False
            return replace(x, table=_louder(x.table, unread))
        return _louder(x, others) if isinstance(x, Tensor) else x

    louder = tuple(change(x) for x in as_tuple(taken))
    return louder if isinstance(batch, (tuple, list)) else louder[0]


def _louder(rows: Tensor, where: Tensor) -> Tensor:
    """Other numbers in those rows."""
    if not rows.is_floating_point():
        return rows
    return torch.where(
        where.to(rows.device).view(-1, *[1] * (rows.dim() - 1)), 1.0 - 3.0 * rows, rows
    )


def _slack(losses: Tensor, share: float) -> Tensor:
    """What each loss may differ by: a share of itself, or of what is usual among them.

    One very large loss makes no room for others. Small losses round as the numbers they are a
    difference of: these are taken to be as large as 1, or as the largest loss if that is less.
    """
    sizes = torch.where(losses.isfinite(), losses, 0.0).abs()
    usual = sizes[losses.isfinite()].median() if bool(losses.isfinite().any()) else sizes.sum()
    return share * sizes.maximum(usual) + _SAME * sizes.max().clamp(max=1.0)


def _first_difference(again: Tensor, losses: Tensor, most: Tensor) -> int | None:
    """The first loss that differs by more, if there is one; what is not finite must stay so."""
    one, other = again.isfinite(), losses.isfinite()
    apart = torch.where(one & other, (again - losses).abs() > most, one != other)
    where = apart.nonzero().flatten()
    return int(where[0]) if len(where) else None


@contextmanager
def evaluation_mode(module: nn.Module) -> Iterator[None]:
    """The module in evaluation mode, for as long as this lasts."""
    modes = [(layer, layer.training) for layer in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for layer, mode in modes:
            layer.training = mode
