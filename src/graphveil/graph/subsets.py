"""Some of many graphs: those of a part of the split, a class, or a batch.

Many graphs are one PyG ``Data`` with ``batch``, see :mod:`graphveil.graph.checks`. Each graph's
nodes and edges are its own, so that taking graphs out changes nothing about those that stay.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch_geometric.data import Data

from graphveil._errors import InvalidInputError
from graphveil.graph.checks import MASKS, OF_ALL, ids_of, num_records, record_of

OF_NODES = ("x", "pos")
OF_EDGES = ("edge_attr",)
OF_GRAPHS = ("y", *MASKS, "owner", "graph_id")


def select_graphs(data: Data, which: Tensor) -> Data:
    """The graphs ``which`` of ``data``, numbered afresh in that order: a mask, or different ids.

    Old numbers are kept as ``graph_id``, those of the first time if it is done twice. Nodes and
    edges stay in the order they had. What is not named in this module is left behind.

    *Guarantee*: no cost, where ``which`` is public.
    """
    ids = _check_ids(data, which)
    number = num_records(data)
    new = torch.full((number,), -1)
    new[ids] = torch.arange(len(ids))
    batch = new[data.batch]
    kept = batch >= 0
    place = torch.cumsum(kept, dim=0) - 1
    inside = kept[data.edge_index[1]]

    part = Data(x=data.x[kept], edge_index=place[data.edge_index[:, inside]])
    part.batch, part.num_graphs = batch[kept], len(ids)
    for names, rows in ((OF_NODES, kept), (OF_EDGES, inside), (OF_GRAPHS, ids)):
        for name in names:
            if name in data and data[name] is not None:
                part[name] = data[name][rows]
    for name in OF_ALL:
        if name in data:
            part[name] = data[name]
    names_of_graphs = ids_of(data)
    if names_of_graphs is not None:
        part.ids = [names_of_graphs[graph] for graph in ids.tolist()]
    if "graph_id" not in part:
        part.graph_id = ids
    return part


def _check_ids(data: Data, which: Tensor) -> Tensor:
    if record_of(data) != "graph":
        raise InvalidInputError(
            "The 'data' parameter must be many graphs. Got one graph (no 'batch') instead; join a "
            "list with graphveil.graph.collate.collate."
        )
    number = num_records(data)
    if which.dtype == torch.bool and which.shape == (number,):
        return which.nonzero().flatten()
    inside = which.dtype == torch.long and which.dim() == 1
    if not inside or ((which < 0) | (which >= number)).any() or len(which.unique()) < len(which):
        raise InvalidInputError(
            f"The 'which' parameter must be a bool tensor ({number},) or different ids of graphs "
            f"from 0 to {number - 1}. Got {which.dtype} of shape {tuple(which.shape)} instead."
        )
    return which
