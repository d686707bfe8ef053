r"""Noisy sums at public rows: what people who name a row have in common, released once.

A path from a person over a public row to another person mixes people. It goes through noise here:

    S_p = \sum_{u names p} w_u m_u        w_u = min(1, sqrt(K / n_u))        |m_u| <= 1

n_u is how many rows u names, and m_u what u sends, a function of u's own row. Withholding u takes
n_u terms of length w_u at most out of the whole array and changes no other: the sensitivity is
sqrt(n_u) w_u <= sqrt(K), at any n_u. Noise goes on every coordinate, also of rows that nobody
names. What is read from the sums afterwards costs nothing more, so that public rows that carry them
are public, and lists of them stay a part of their person's row.

    graph = release_sums(graph, "patient-takes-drug", epsilon=1.0, most=8)
    method.fit(split(flatten(graph)))       # its certificate charges the sums, too

Sums are on a grid on which float64 adds exactly, so that a person moves them by the own terms
alone.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from graphveil import _validate
from graphveil._errors import InvalidInputError
from graphveil.mechanisms import Gaussian
from graphveil.methods.budget import choose_delta, scale_within
from graphveil.methods.parts import Release
from graphveil.privacy import events

if TYPE_CHECKING:
    from scipy import sparse
    from torch import Tensor
    from torch_geometric.data import HeteroData

    from graphveil.rng import SecretStream

SENDS = ("columns", "label")
_ROUNDED = 1 + 1e-9  # of a sensitivity: square roots of floats are no larger


def plan_sums(called: str, most: int, noise: float) -> Release:
    """The release of the sums of a relation, with such a noise multiplier."""
    return Release(
        name=f"sums of {called}",
        paid_for=f"noisy sums at public rows over {called}, at most {most} of a person's at full "
        "weight",
        mechanism=Gaussian(noise_multiplier=noise, sensitivity=math.sqrt(most) * _ROUNDED),
    )


def release_sums(
    graph: HeteroData,
    relation: str,
    *,
    epsilon: float,
    most: int,
    delta: float | None = None,
    sends: str = "columns",
    rng: SecretStream | None = None,
) -> HeteroData:
    """A copy of a typed graph whose public rows hold what people who name them have in common.

    People send their own ``columns``, or their ``label``: the latter of training people alone, whom
    ``train_mask`` names. ``most`` (K) is a public number: who names more rows sends each less. New
    columns are the mean of what was sent, as far as it stands out of the noise, and how many sent.
    What it cost stands in ``graph.spent``: every certificate of what is trained on it charges it,
    beside the method's own epsilon.

    *Guarantee*: (``epsilon``, ``delta``) for one person, relation ``withhold``; the new rows may be
    shown to anybody. Public: ids, split, ``most`` and what :func:`~graphveil.graph.typed.flatten`
    takes as public.
    """
    import copy

    import torch

    from graphveil.graph.typed import check_typed, lists_to_public, write_relation
    from graphveil.rng import secret

    _validate.choice("sends", sends, SENDS)
    most = _validate.integer("most", most, "[1, 1e6]")
    check_typed(graph)
    name, kind, thing, lists = lists_to_public(graph, relation)
    called = write_relation(name)
    if any(part["name"] == f"sums of {called}" for part in getattr(graph, "spent", ())):
        raise InvalidInputError(
            f"The sums of a relation are released once. Got {called!r} again instead; take the "
            "graph as it was before, or another relation."
        )
    messages, columns = _messages(graph, kind, sends)
    delta = choose_delta(delta, lists.shape[0])
    scale = scale_within(
        lambda scale: (plan_sums(called, most, scale),), epsilon=epsilon, delta=delta
    )
    part, stream = plan_sums(called, most, scale), secret() if rng is None else rng
    noisy = part.mechanism.release(add_up(lists, messages, most), stream)
    result = copy.copy(graph)
    result[thing].x = torch.cat([graph[thing].x, _read(noisy, scale * math.sqrt(most))], 1)
    names = [f"{called} {sends} {column}" for column in (*columns, "sent")]
    result[thing].columns = [*_names(graph, thing), *names]
    result[thing].released = [*(graph[thing].get("released") or ()), *names]
    charge = {"name": part.name, "paid_for": part.paid_for, "event": events.to_json(part.event)}
    result.spent = [*getattr(graph, "spent", ()), charge]
    if stream.void_reason is not None:
        result.void_because = [*getattr(graph, "void_because", ()), stream.void_reason]
    return result


def add_up(lists: sparse.csr_array, messages: Tensor, most: int) -> Tensor:
    """The sums at public rows, before noise: (public rows, columns), in float64.

    Messages longer than 1 are cut to it.

    *Guarantee*: the sensitivity is sqrt(``most``), for one person, relation ``withhold``.
    """
    import numpy as np
    import torch
    from scipy import sparse

    from graphveil.graph.aggregation import bounded_rows

    lengths = np.diff(lists.indptr)
    weights = torch.from_numpy(np.minimum(1.0, np.sqrt(most / np.maximum(lengths, 1))))
    weighed = bounded_rows(messages).double() * weights[:, None]  # cut first, then weighed
    rows = bounded_rows(weighed).double().numpy()  # onto the grid: no size grows
    once = sparse.csr_array((np.ones(lists.nnz), lists.indices, lists.indptr), lists.shape)
    return torch.from_numpy(np.ascontiguousarray(once.T.tocsr() @ rows))


def _messages(graph: HeteroData, kind: str, sends: str) -> tuple[Tensor, list[str]]:
    """What everybody sends: a row of length 1 at most, the last column saying that it was sent."""
    import torch
    from torch.nn import functional as F

    x, store = graph[kind].x, graph[kind]
    if sends == "columns":
        if x.layout != torch.strided:
            raise InvalidInputError(
                f"Rows that are sent must be dense. Got sparse ones of {kind!r} instead; send the "
                "label, or convert them with x.to_dense()."
            )
        rows, columns = F.normalize(x.double(), dim=1), list(_names(graph, kind))
        sent = torch.ones(len(rows), 1, dtype=torch.float64)
    else:
        y, mask = store.get("y"), store.get("train_mask")
        if y is None or mask is None or y.dim() != 1 or y.is_floating_point():
            raise InvalidInputError(
                f"Labels that are sent must be classes, of training people alone. Got {kind!r} "
                "without 'y' of classes or without 'train_mask' instead; give both, or send "
                "the columns."
            )
        number = store.get("num_classes")
        if number is None:
            raise InvalidInputError(
                f"The number of classes must be public. Got {kind!r} without 'num_classes' "
                "instead; state it."
            )
        known = mask & (y >= 0)
        rows = F.one_hot(y.clamp_min(0), number).double() * known[:, None]
        columns, sent = [f"class {place}" for place in range(number)], known.double()[:, None]
    return torch.cat([rows, sent], 1) / math.sqrt(2), columns


def _read(noisy: Tensor, noise: float) -> Tensor:
    """Means of what was sent, shrunk where few sent, and how many did: post-processing."""
    import torch

    counts = math.sqrt(2) * noisy[:, -1:].clamp_min(0.0)
    means = math.sqrt(2) * noisy[:, :-1] / (counts + 2 * noise)
    return torch.cat([means, torch.log1p(counts)], 1).float()


def _names(graph: HeteroData, kind: str) -> Any:
    from graphveil.graph.typed import columns_of

    return columns_of(graph, kind)
