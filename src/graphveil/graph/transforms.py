"""Features that a graph has of itself: degrees, and how its edges lie in the plane.

    data = add_edge_geometry(add_degree(data))

They read one graph each, so that they cost nothing where a graph is a record. torch is loaded by
the functions: :data:`GEOMETRIES` is public knowledge that a plan needs without it.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

from graphveil import _validate
from graphveil._errors import InvalidInputError

if TYPE_CHECKING:
    from torch import Tensor
    from torch_geometric.data import Data

GEOMETRIES = {"edges": 4, "moments": 27}  # the columns that add_edge_geometry adds
_REACH = 2.0  # edges from a graph's middle to a usual node of it


def add_degree(data: Data) -> Data:
    """A copy of ``data`` with one more column: log(1 + the number of edges that lead to the node).

    In an undirected graph that is the number of neighbours. The logarithm keeps a crowded node
    from drowning the rest.

    *Guarantee*: no cost where the records are graphs: a node's degree is inside its graph. On one
    graph of many people a degree tells of others, so that is refused.
    """
    import torch

    from graphveil.graph.checks import check

    check(data, labels=False, masks=False, record="graph")
    degree = torch.bincount(data.edge_index[1], minlength=len(data.x))
    return _widen(data, torch.log1p(degree.to(data.x.dtype)).unsqueeze(1))


def add_edge_geometry(data: Data, scale: float = 16.0, *, moments: bool = False) -> Data:
    """A copy of ``data`` with more columns: how the edges at a node lie in the plane.

    Needs ``pos`` (nodes, 2). For an edge with difference (dx, dy) of its ends and angle
    a = atan2(dy, dx), four columns are the sums over the edges that lead to the node of

        cos 2a,  sin 2a,  dx dy / scale^2,  (dx^2 - dy^2) / scale^2

    None depends on which end comes first. An edge of length 0 adds nothing. ``scale`` is the length
    of a usual edge, a public number; that of Fingerprint is 16.

    With ``moments`` there are 23 more, for where in its graph all this is: with (u, v) the node's
    place, from the mean of its graph's places and in units of 2 ``scale``, halves of u^2, v^2 and
    uv, and each of the four times u, v, and these halves. Summed over a graph they are its moments.

    *Guarantee*: no cost where the records are graphs: all of it is inside one graph.
    """
    import torch

    from graphveil.graph.checks import check

    check(data, labels=False, masks=False, record="graph")
    scale = _validate.number("scale", scale, "(0, 1e30]")
    if "pos" not in data or data.pos.shape[1] != 2:
        got = f"shape {tuple(data.pos.shape)}" if "pos" in data else "nothing"
        raise InvalidInputError(
            f"The 'pos' parameter must be of shape (nodes, 2). Got {got} instead; edge geometry "
            "needs to know where in the plane each node lies."
        )
    places = data.pos.double()
    source, target = data.edge_index
    dx, dy = (places[target] - places[source]).unbind(dim=1)
    squares, product = dx * dx - dy * dy, dx * dy
    length = (dx * dx + dy * dy).clamp_min(torch.finfo(torch.float64).tiny)
    terms = torch.stack(
        [squares / length, 2 * product / length, product / scale**2, squares / scale**2], dim=1
    )
    columns = torch.zeros(len(places), 4, dtype=torch.float64).index_add(0, target, terms)
    if moments:
        sizes = torch.bincount(data.batch, minlength=data.num_graphs).clamp_min(1)
        total = places.new_zeros(data.num_graphs, 2).index_add(0, data.batch, places)
        middle = (total / sizes.unsqueeze(1))[data.batch]
        u, v = ((places - middle) / (_REACH * scale)).unbind(dim=1)
        second = torch.stack([u * u, v * v, u * v], dim=1) / 2
        by = torch.cat([u.unsqueeze(1), v.unsqueeze(1), second], dim=1)
        weighted = (columns.unsqueeze(1) * by.unsqueeze(2)).flatten(1)
        columns = torch.cat([columns, second, weighted], dim=1)
    return check(_widen(data, columns.to(data.x.dtype)), labels=False, masks=False)


def _widen(data: Data, columns: Tensor) -> Data:
    import torch

    result = copy.copy(data)
    result.x = torch.cat([data.x, columns], dim=1)
    return result
