"""Is this graph fit to train on? One clear sentence when it is not.

:func:`checked` looks at a PyG ``Data`` before anything else does, so that a bad value is reported
by its own name and not by a shape error ten calls later. The sentence goes to whoever holds the
data and may quote a node's id and the bad value; do not print it for others.
"""

from __future__ import annotations

from itertools import combinations
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from graphveil import _validate
from graphveil._errors import InvalidInputError

MASKS = ("train_mask", "val_mask", "test_mask")

_CLASSES = "[1, 1e6]"


def checked(
    data: Data, *, labels: bool = True, masks: bool = True, num_classes: int | None = None
) -> Data:
    """Return ``data`` as it is, or say what is wrong with it.

    ``x`` and ``edge_index`` are always required. ``labels`` requires ``y`` with two classes or
    more, ``masks`` requires the three masks and a training node. What is there is checked even
    where it is not required. A negative label means *unlabelled* and is refused in the training
    set only. ``num_classes`` defaults to :func:`num_classes_of` the data.

    *Guarantee*: none. It reads private values, and its refusals are for the data's owner.
    """
    if not isinstance(data, Data):
        raise _refusal(
            "data",
            "a torch_geometric.data.Data",
            type(data).__name__,
            "reduce a heterogeneous graph to one type of node, or load with graphveil.data.load",
        )
    num_nodes = _features(data)
    _edges(data, num_nodes)
    if masks or any(_has(data, name) for name in MASKS):
        _masks(data, num_nodes, required=masks)
    if labels or _has(data, "y"):
        _labels(data, num_nodes, num_classes, required=labels)
    return data


def num_classes_of(data: Data) -> int:
    """The number of classes: ``data.num_classes`` if it is set, else the largest label plus 1.

    Set ``data.num_classes`` where the number is known: it counts as public, and the largest label
    is a function of the labels.
    """
    if _has(data, "num_classes"):
        return _validate.integer("num_classes", data["num_classes"], _CLASSES)
    y = data["y"]
    return max(int(y.max()) + 1, 0) if y.numel() else 0


def _features(data: Data) -> int:
    x = _tensor(data, "x", "a float tensor (nodes, features)", "give every node a row of features")
    if not x.is_floating_point():
        raise _refusal("x", "a float tensor", str(x.dtype), "convert it with x.float()")
    if x.dim() != 2:
        way_out = "a single feature is a column: x.view(-1, 1)"
        raise _refusal("x", "of shape (nodes, features)", _shape(x), way_out)
    if 0 in x.shape:
        way_out = "an empty graph cannot be trained on, nor can nodes without any feature"
        raise _refusal("x", "of at least one node and one feature", _shape(x), way_out)
    # A sum is finite only if all its terms are, up to overflow: the slow search runs only then.
    # Methods read float32, where what is finite in float64 need not be.
    if not torch.isfinite(x.sum(dtype=torch.float32)):
        bad = (~torch.isfinite(x.float())).nonzero()
        if len(bad):
            node, column = bad[0].tolist()
            got = f"{x[node, column].item()} at node {node}, column {column}"
            way_out = f"fill in or drop the {len(bad)} such value(s)"
            raise _refusal("x", "finite everywhere, also as float32", got, way_out)
    if data.num_nodes != len(x):
        got = f"{len(x)} rows for num_nodes={data.num_nodes}"
        raise _refusal("x", "one row for each node", got, "drop num_nodes or add the missing rows")
    return len(x)


def _edges(data: Data, num_nodes: int) -> None:
    way_out = "a graph without edges has torch.empty(2, 0, dtype=torch.long)"
    edge_index = _tensor(data, "edge_index", "a long tensor (2, edges)", way_out)
    if edge_index.dtype != torch.long:
        way_out = "convert it with edge_index.long()"
        raise _refusal("edge_index", "a long tensor", str(edge_index.dtype), way_out)
    if edge_index.dim() != 2 or edge_index.size(0) != 2:
        way_out = "a list of pairs is turned by edge_index.t().contiguous()"
        raise _refusal("edge_index", "of shape (2, edges)", _shape(edge_index), way_out)
    if edge_index.numel() and (edge_index.min() < 0 or edge_index.max() >= num_nodes):
        outside = ((edge_index < 0) | (edge_index >= num_nodes)).any(dim=0).nonzero()
        first = int(outside[0])
        source, target = edge_index[:, first].tolist()
        raise _refusal(
            "edge_index",
            f"made of node ids from 0 to {num_nodes - 1}",
            f"the edge {source} -> {target} at position {first}",
            f"drop the {len(outside)} edge(s) to absent nodes or add the nodes",
        )


def _masks(data: Data, num_nodes: int, *, required: bool) -> None:
    present = [name for name in MASKS if _has(data, name)]
    for name in MASKS if required else present:
        way_out = "graphveil.graph.splits.split(data) draws the three masks"
        mask = _tensor(data, name, "a bool tensor (nodes,)", way_out)
        if mask.dtype != torch.bool:
            way_out = "a 0/1 tensor converts with .bool(), a list of ids needs a mask"
            raise _refusal(name, "a bool tensor", str(mask.dtype), way_out)
        if mask.shape != (num_nodes,):
            way_out = "of several splits take one column"
            raise _refusal(name, f"of shape ({num_nodes},)", _shape(mask), way_out)
    for one, other in combinations(present, 2):
        both = (data[one] & data[other]).nonzero()
        if len(both):
            got = f"node {int(both[0])} in both ({len(both)} in all)"
            way_out = "put each node into one of them"
            raise _refusal(one, f"disjoint from '{other}'", got, way_out)
    if required and not data["train_mask"].any():
        way_out = "mark the nodes to train on, or draw them with graphveil.graph.splits.split(data)"
        raise _refusal("train_mask", "true somewhere", "an empty training set", way_out)


def _labels(data: Data, num_nodes: int, num_classes: int | None, *, required: bool) -> None:
    y = _tensor(data, "y", "a long tensor (nodes,)", "give every training node a label")
    if y.dtype != torch.long:
        way_out = "number the classes from 0 and convert with y.long()"
        raise _refusal("y", "a long tensor", str(y.dtype), way_out)
    if y.shape != (num_nodes,):
        way_out = "one label a node: squeeze a column, take argmax of a one-hot"
        raise _refusal("y", f"of shape ({num_nodes},)", _shape(y), way_out)
    if num_classes is None:
        num_classes = num_classes_of(data)
    else:
        num_classes = _validate.integer("num_classes", num_classes, _CLASSES)
    above = (y >= num_classes).nonzero()
    if len(above):
        node = int(above[0])
        got = f"{int(y[node])} at node {node}"
        way_out = "correct the label or raise num_classes"
        raise _refusal("y", f"at most {num_classes - 1} (num_classes - 1)", got, way_out)

    trained = y[data["train_mask"]] if _has(data, "train_mask") else y[y >= 0]
    if len(trained) and trained.min() < 0:
        node = int((data["train_mask"] & (y < 0)).nonzero()[0])
        got = f"{int(y[node])} at node {node}"
        way_out = "a negative label means unlabelled: take such nodes out of train_mask"
        raise _refusal("y", "0 or more on the training set", got, way_out)
    if required and (len(trained) == 0 or trained.min() == trained.max()):
        got = f"only class {int(trained[0])}" if len(trained) else "no label at all"
        way_out = "there is nothing to tell apart: add nodes of another class"
        raise _refusal("y", "of two classes or more among the nodes to learn from", got, way_out)


def _tensor(data: Data, name: str, rule: str, way_out: str) -> Tensor:
    if not _has(data, name):
        raise _refusal(name, rule, "nothing", way_out)
    value = data[name]
    if not isinstance(value, Tensor):
        raise _refusal(name, rule, type(value).__name__, "convert it with torch.as_tensor")
    return value


def _has(data: Data, name: str) -> bool:
    return name in data and data[name] is not None


def _shape(value: Tensor) -> str:
    return f"shape {tuple(value.shape)}"


def _refusal(name: str, rule: str, got: Any, way_out: str) -> InvalidInputError:
    return InvalidInputError(
        f"The '{name}' parameter must be {rule}. Got {got} instead; {way_out}."
    )
