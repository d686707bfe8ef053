"""Is this graph fit to train on? One clear sentence when it is not.

:func:`check` looks at a PyG ``Data`` before anything else does, so that a bad value is reported
by its own name and not by a shape error ten calls later. The sentence goes to whoever holds the
data and may quote a node's id and the bad value; do not print it for others.

A ``Data`` is one graph, whose nodes are the records, or, if it has ``batch``, many graphs side by
side, which then are the records: ``batch`` holds the graph of each node in any order,
``num_graphs`` how many there are, since a graph may have no node, and ``y`` and the masks have one
entry for each graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from itertools import combinations
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from graphveil import _validate
from graphveil._errors import InvalidInputError
from graphveil.graph.public_lines import (
    DECLARED_PUBLIC,
    NUMBER_READ_OFF,
    ClassSource,
    class_source,
    shorten,
)
from graphveil.graph.shares import MASKS
from graphveil.graph.sparse_rows import LAYOUTS, as_csr, is_sound, is_sparse, values_of
from graphveil.graph.stored import is_stored
from graphveil.graph.targets import LINK, OF_CLASSES, RECORDS, TASKS, is_labelled

# What is said of all records together, not of one: a part of the data keeps it.
LINES = ("public", "unprotected", "void_because")
OF_ALL = (
    "num_classes", "class_names", "columns", "directed", "task", "value_range", "unit_name",
    "owner_name", "owner_rows", "schema", "own_lists", "spent", *LINES,
)  # fmt: skip

_CLASSES = "[1, 1e6]"
_ODD = 100  # a label so large, and no smaller than the number of records, is a mistake


def public_of(data: Data) -> tuple[str, ...]:
    """What ``data`` says that its features and classes rest on, and that counts as public.

    ``data.public`` is a list of lines, such as that the vocabulary of its texts was public. Names
    of classes and of feature columns are others, and the number of classes where nobody stated it
    (``data.num_classes``).
    Certificates of what is trained on it repeat them.
    """
    lines, task = _lines(data, "public"), task_of(data)
    of = "labels" if task == "multilabel" else "classes"
    names = {of: class_names_of(data), "feature columns": columns_of(data)}
    named = [f"the names of the {of}: {shorten(some)}" for of, some in names.items() if some]
    counted = task in OF_CLASSES and has(data, "y") and not has(data, "num_classes")
    unstated = [NUMBER_READ_OFF] if counted else []
    declared = [line for line in _lines(data, "unprotected") if line not in lines]
    return (*_describe_task(data), *named, *unstated, *lines, *declared)


def _describe_task(data: Data) -> tuple[str, ...]:
    """The line of a task that somebody stated."""
    task, range_ = task_of(data), value_range_of(data)
    if range_ is not None:
        return (f"the task: {task}, of values from {range_[0]:g} to {range_[1]:g}",)
    return (f"the task: {task}",) if has(data, "task") else ()


def unprotected_of(data: Data) -> tuple[str, ...]:
    """What of the units of ``data`` was declared public, so that nothing holds for it.

    ``data.unprotected`` is a list of lines, each of which :func:`public_of` has, too. Lines of
    ``data.public`` that hold ``DECLARED PUBLIC`` are others: files of version 0.1.0, and a
    ``public.txt``, have them there alone.
    """
    lines = _lines(data, "unprotected")
    marked = [line for line in _lines(data, "public") if DECLARED_PUBLIC in line]
    return (*lines, *(line for line in marked if line not in lines))


def class_source_of(data: Data) -> ClassSource:
    """Where the classes of ``data`` come from: stated, or read off its labels in some way."""
    return class_source(public_of(data))


def void_of(data: Data) -> tuple[str, ...]:
    """Why no guarantee holds for what is trained on ``data``: the lines of ``data.void_because``.

    Data has some where whoever made it read private values of more than one unit, and what came of
    it shows in every release; certificates print them first.
    """
    return _lines(data, "void_because")


def directed_of(data: Data) -> bool | None:
    """Whether edges have a direction, as ``data.directed`` states; None if nobody says.

    It is never measured: whether every edge has its reverse is read off private edges.
    """
    directed = data["directed"] if has(data, "directed") else None
    if directed is not None and not isinstance(directed, bool):
        way_out = "state it, or leave it out"
        raise refusal("directed", "True, False or None", repr(directed), way_out)
    return directed


def task_of(data: Data) -> str:
    """What is learnt, as ``data.task`` states (see :mod:`graphveil.graph.targets`)."""
    if record_of(data) == "link":
        return LINK
    return _validate.choice("task", data["task"] if has(data, "task") else TASKS[0], TASKS)


def value_range_of(data: Data) -> tuple[float, float] | None:
    """Between which numbers a ``regression`` is, as ``data.value_range`` states; None of others."""
    if task_of(data) != "regression":
        return None
    return check_range(data["value_range"] if has(data, "value_range") else None)


def check_range(value_range: Any) -> tuple[float, float]:
    """The two ends of a range, as numbers; anything else is refused."""
    way_out = (
        "state what is known without looking at the values; values outside count as its ends, and "
        "a smallest or largest value read off the data is a release"
    )
    ends = value_range.tolist() if isinstance(value_range, Tensor) else value_range
    if not isinstance(ends, (list, tuple)) or len(ends) != 2:
        got = "nothing" if value_range is None else _validate.shown(value_range)
        raise refusal("value_range", "the two ends of a public range", got, way_out)
    low, high = (_validate.number("value_range", end, "(-inf, inf)") for end in ends)
    if not low < high:
        raise refusal("value_range", "its lower end, then its upper one", f"{ends}", way_out)
    return low, high


def columns_of(data: Data) -> tuple[str, ...] | None:
    """The names of the feature columns, ``data.columns``, or None; they count as public.

    Names that do not fit ``x`` are refused: whoever gives ``x`` another width names it anew.
    """
    names = _names(data, "columns")
    if names is not None and len(names) != data["x"].shape[1]:
        got = f"{len(names)} for {data['x'].shape[1]} columns of x"
        raise refusal("columns", "a name for each feature", got, "correct it, or leave it out")
    return names


def class_names_of(data: Data) -> tuple[str, ...] | None:
    """The names of the classes, ``data.class_names``, or None; they count as public."""
    return _names(data, "class_names")


def ids_of(data: Data) -> Sequence[str] | None:
    """The ids of the records as their owner wrote them, ``data.ids``, or None; they are public.

    Those of a store stay on disk.
    """
    ids = data["ids"] if has(data, "ids") else None
    if ids is None:
        return None
    way_out = "correct it, or leave it out"
    if is_stored(data) and isinstance(ids, Sequence) and len(ids) == num_records(data):
        return ids
    if not isinstance(ids, (list, tuple)) or not all(isinstance(name, str) for name in ids):
        raise refusal("ids", "a list of texts", type(ids).__name__, way_out)
    if len(ids) != num_records(data):
        got = f"{len(ids)} for {num_records(data)}"
        raise refusal("ids", f"one for each {record_of(data)}", got, way_out)
    return list(ids)


def _names(data: Data, name: str) -> tuple[str, ...] | None:
    names = data[name] if has(data, name) else None
    if names is None:
        return None
    way_out = "correct it, or leave it out"
    if not isinstance(names, (list, tuple)) or not all(isinstance(text, str) for text in names):
        raise refusal(name, "a list of texts", type(names).__name__, way_out)
    if not all(map(str.strip, names)):
        raise refusal(name, "a list of names", "an empty one", way_out)
    if len(set(names)) < len(names):
        twice = next(text for text in names if names.count(text) > 1)
        got = f"{_validate.shown(twice)} more than once"
        raise refusal(name, "a list of distinct names", got, way_out)
    return tuple(names)


def _lines(data: Data, name: str) -> tuple[str, ...]:
    lines = getattr(data, name, ())
    if not isinstance(lines, (list, tuple)) or not all(map(_is_plain, lines)):
        rule = "a list of plain lines of at most 500 characters"
        raise refusal(name, rule, repr(lines)[:80], "leave out tags, bars and backquotes")
    return tuple(lines)


def _is_plain(line: Any) -> bool:
    printable = isinstance(line, str) and line.isprintable() and 0 < len(line) <= 500
    return printable and not set(line) & set("<>|`")


def check(
    data: Data,
    *,
    labels: bool = True,
    masks: bool = True,
    num_classes: int | None = None,
    record: str | None = None,
) -> Data:
    """Return ``data`` as it is, or say what is wrong with it.

    ``x`` and ``edge_index`` are always required. ``labels`` requires ``y`` with two classes or
    more, ``masks`` requires the three masks and a training record. What is there is checked even
    where it is not required. A negative label means *unlabelled* and is refused in the training
    set only. ``num_classes`` defaults to :func:`num_classes_of` the data. ``record`` says which
    kind is wanted, ``"node"`` (one graph) or ``"graph"`` (many); None takes both.

    Edges and features of a store are not read again: who built it checked them whole.

    *Guarantee*: none. It reads private values, and its refusals are for the data's owner.
    """
    if not isinstance(data, Data):
        way_out = (
            "take a HeteroData by graphveil.load(graph, people=[...]), join a list of graphs with "
            "graphveil.graph.collate.collate, or load with graphveil.data.load"
        )
        raise refusal("data", "a torch_geometric.data.Data", type(data).__name__, way_out)
    kind = record_of(data)
    if record is not None and kind != _validate.choice("record", record, tuple(RECORDS)):
        raise _wrong_kind(kind, record)
    num_nodes = _features(data)
    columns_of(data)
    class_names_of(data)
    if kind == "link":
        from graphveil.graph.links import check_links

        check_links(data, masks=masks)
        ids_of(data)
        return data
    _edges(data, num_nodes)
    if kind == "graph":
        from graphveil.graph.graph_checks import check_graphs

        check_graphs(data, num_nodes)
    ids_of(data)
    if masks or any(has(data, name) for name in MASKS):
        _masks(data, num_records(data), kind, required=masks)
    if labels or has(data, "y"):
        _labels(data, num_records(data), num_classes, kind, required=labels)
    if any(has(data, name) for name in ("owner", "owner_name", "owner_rows")):
        import_module("graphveil.graph.owners").check_owners(data, parts=masks)  # built on this
    return data


def record_of(data: Data) -> str:
    """What is labelled and split: ``"graph"`` if ``data`` holds many (``batch``), else ``"node"``.

    It is ``"link"`` where there are ``links``, whose sources are counted.

    The word is also the unit of a guarantee for one record.
    """
    if has(data, "links"):
        return "link"
    return "graph" if has(data, "batch") else "node"


def num_records(data: Data) -> int:
    """How many records there are: the length of ``y`` and of the masks."""
    if record_of(data) != "graph":
        return len(data["x"])
    # A PyG Batch has it as a property, a plain Data as an entry.
    number = getattr(data, "num_graphs", None)
    if number is None:
        way_out = "a graph may have no node, so that batch alone does not say it"
        raise refusal("num_graphs", "the number of graphs", "nothing", way_out)
    return _validate.integer("num_graphs", number, "[0, 1e9]")


def num_classes_of(data: Data) -> int:
    """The number of classes: ``data.num_classes`` if it is set, else the largest label plus 1.

    Set ``data.num_classes`` where the number is known: it counts as public, and the largest label
    is a function of the labels. A ``multilabel`` has as many labels as ``y`` has columns, and a
    ``regression`` one value.
    """
    task = task_of(data)
    if task == LINK:  # as many as targets
        return len(data["target_x"] if has(data, "target_x") else data["x"])
    if task == "regression":
        return 1
    if has(data, "num_classes"):
        return _validate.integer("num_classes", data["num_classes"], _CLASSES)
    y = data["y"]
    if task == "multilabel":
        return y.shape[1] if y.dim() == 2 else 0
    return max(int(y.max()) + 1, 0) if y.numel() else 0


def _place_of(data: Data, node: int) -> str:
    """A node as its owner numbers it: in its own graph, where there are many."""
    batch = data["batch"] if has(data, "batch") else None
    if not isinstance(batch, Tensor) or batch.shape != (len(data["x"]),):
        return f"node {node}"
    return f"node {int((batch[:node] == batch[node]).sum())} of graph {int(batch[node])}"


def _features(data: Data) -> int:
    way_out = "give every node a row of features"
    x = tensor_of(data, "x", "a float tensor (nodes, features)", way_out)
    if is_sparse(x) and record_of(data) == "graph":
        way_out = "convert it with x.to_dense(); one graph may have sparse features, many may not"
        raise refusal("x", "a dense tensor", "a sparse one", way_out)
    if not x.is_floating_point():
        raise refusal("x", "a float tensor", str(x.dtype), "convert it with x.float()")
    if x.dim() != 2:
        way_out = "a single feature is a column: x.view(-1, 1)"
        raise refusal("x", "of shape (nodes, features)", shape_of(x), way_out)
    if 0 in x.shape:
        way_out = "an empty graph cannot be trained on, nor can nodes without any feature"
        raise refusal("x", "of at least one node and one feature", shape_of(x), way_out)
    if is_sparse(x) and not _was_checked(data, x) and not is_sound(x):
        way_out = "make it with check_invariants=True, which says where it is wrong"
        raise refusal("x", "a sparse tensor whose entries lie inside it", "one outside", way_out)
    # A sum is finite only if all its terms are, up to overflow: the slow search runs only then.
    # Methods read float32, where what is finite in float64 need not be.
    if not _was_checked(data, x) and not torch.isfinite(values_of(x).sum(dtype=torch.float32)):
        bad, value = _find_broken(x)
        if len(bad):
            node, column = bad[0].tolist()
            got = f"{value} at {_place_of(data, node)}, column {column}"
            way_out = (
                f"put a public constant at each of the {len(bad)} such value(s), and a column of 0 "
                "and 1 that says where; a mean read off the data is a release"
            )
            raise refusal("x", "finite everywhere, also as float32", got, way_out)
    if data.num_nodes != len(x):
        got = f"{len(x)} rows for num_nodes={data.num_nodes}"
        raise refusal("x", "one row for each node", got, "drop num_nodes or add the missing rows")
    return len(x)


def _was_checked(data: Data, x: Tensor) -> bool:
    """Whether features are those of a store, which were checked whole when it was built."""
    return is_stored(data) and x is data.stored.x


def _find_broken(x: Tensor) -> tuple[Tensor, float]:
    """Where what is not finite stands, and the first of it."""
    if not is_sparse(x):
        bad = (~torch.isfinite(x.float())).nonzero()
        return bad, float(x[tuple(bad[0])]) if len(bad) else 0.0
    entries = as_csr(x).tocoo()
    broken = (~torch.isfinite(torch.from_numpy(entries.data).float())).numpy()
    places = np.stack([entries.row[broken], entries.col[broken]], 1)
    return torch.from_numpy(places), float(entries.data[broken][0]) if broken.any() else 0.0


def check_edge_index(edge_index: Tensor, num_nodes: int) -> None:
    """Refuse edges that are not pairs of node ids below ``num_nodes``."""
    if edge_index.dtype != torch.long:
        way_out = "convert it with edge_index.long()"
        raise refusal("edge_index", "a long tensor", str(edge_index.dtype), way_out)
    if edge_index.dim() != 2 or edge_index.size(0) != 2:
        way_out = "a list of pairs is turned by edge_index.t().contiguous()"
        raise refusal("edge_index", "of shape (2, edges)", shape_of(edge_index), way_out)
    if edge_index.numel() and (edge_index.min() < 0 or edge_index.max() >= num_nodes):
        outside = ((edge_index < 0) | (edge_index >= num_nodes)).any(dim=0).nonzero()
        first = int(outside[0])
        source, target = edge_index[:, first].tolist()
        got = f"the edge {source} -> {target} at position {first}"
        way_out = f"drop the {len(outside)} edge(s) to absent nodes or add the nodes"
        raise refusal("edge_index", f"made of node ids from 0 to {num_nodes - 1}", got, way_out)


def _edges(data: Data, num_nodes: int) -> None:
    if is_stored(data):
        if data.stored.lists.num_nodes != num_nodes:
            got = f"{num_nodes} for {data.stored.lists.num_nodes} nodes"
            raise refusal("x", "one row for each node", got, "open the store anew")
        return
    way_out = "a graph without edges has torch.empty(2, 0, dtype=torch.long)"
    edge_index = tensor_of(data, "edge_index", "a long tensor (2, edges)", way_out)
    check_edge_index(edge_index, num_nodes)
    if has(data, "edge_attr"):
        rows, way_out = edge_index.size(1), "give every edge a row, or leave it out"
        value = tensor_of(data, "edge_attr", "a tensor (edges, columns)", way_out)
        if value.dim() == 0 or len(value) != rows:
            raise refusal("edge_attr", f"of {rows} rows", shape_of(value), way_out)


def _wrong_kind(kind: str, wanted: str) -> InvalidInputError:
    if "link" in (kind, wanted):
        return refusal(
            "data", RECORDS[wanted], RECORDS[kind], "take a method for it, or other data"
        )
    if kind == "graph":
        way_out = "take a method for whole graphs, or one of graphveil.graph.collate.uncollate"
        return refusal("data", "one graph, whose nodes are the records", "many graphs", way_out)
    way_out = "take a method for nodes, or join graphs with graphveil.graph.collate.collate"
    return refusal("data", "many graphs, each a record", "one graph (no 'batch')", way_out)


def _masks(data: Data, count: int, kind: str, *, required: bool) -> None:
    present = [name for name in MASKS if has(data, name)]
    for name in MASKS if required else present:
        way_out = "graphveil.split(data) draws the three masks"
        mask = tensor_of(data, name, f"a bool tensor ({kind}s,)", way_out)
        if mask.dtype != torch.bool:
            way_out = "a 0/1 tensor converts with .bool(), a list of ids needs a mask"
            raise refusal(name, "a bool tensor", str(mask.dtype), way_out)
        if mask.shape != (count,):
            way_out = "of several splits take one column"
            raise refusal(name, f"of shape ({count},)", shape_of(mask), way_out)
    for one, other in combinations(present, 2):
        both = (data[one] & data[other]).nonzero()
        if len(both):
            got = f"{kind} {int(both[0])} in both ({len(both)} in all)"
            way_out = f"put each {kind} into one of them"
            raise refusal(one, f"disjoint from '{other}'", got, way_out)
    if required and not data["train_mask"].any():
        way_out = f"mark the {kind}s to train on, or draw them with graphveil.split"
        raise refusal("train_mask", "true somewhere", "an empty training set", way_out)


def _labels(data: Data, count: int, num_classes: int | None, kind: str, *, required: bool) -> None:
    task = task_of(data)
    if task == "regression":
        y = _values(data, count, kind)
    elif task == "multilabel":
        y = _label_columns(data, count, kind)
    else:
        y = _classes(data, count, num_classes, kind)
    labelled = is_labelled(y)
    trained = data["train_mask"] if has(data, "train_mask") else labelled
    if has(data, "withheld"):  # an audit's neighbour: a null row keeps its public place
        trained = trained & labelled
    if bool((trained & ~labelled).any()):
        place = int((trained & ~labelled).nonzero()[0])
        rule = "a number" if task == "regression" else "0 or more"
        means = "NaN" if task == "regression" else "a negative label"
        way_out = f"{means} means unlabelled: take such {kind}s out of train_mask"
        got = f"{_shown(y[place])} at {kind} {place}"
        raise refusal("y", f"{rule} on the training set", got, way_out)
    if required:
        _two_answers(y[trained], kind, task)


def _classes(data: Data, count: int, num_classes: int | None, kind: str) -> Tensor:
    """Class numbers below the number of classes."""
    way_out = f"give every training {kind} a label (in a table, the column 'label')"
    y = tensor_of(data, "y", f"a long tensor ({kind}s,)", way_out)
    if y.dtype != torch.long:
        way_out = "number the classes from 0 and convert with y.long(), or state data.task"
        raise refusal("y", "a long tensor", str(y.dtype), way_out)
    if y.shape != (count,):
        way_out = f"one label a {kind}: squeeze a column, take argmax of a one-hot"
        raise refusal("y", f"of shape ({count},)", shape_of(y), way_out)
    if num_classes is None:
        if not has(data, "num_classes") and len(y) and int(y.max()) >= max(count, _ODD):
            got = f"{int(y.max())} at {kind} {int(y.argmax())}"
            way_out = "correct it, number the classes from 0, or set num_classes"
            raise refusal("y", f"a class number below the number of {kind}s", got, way_out)
        num_classes = num_classes_of(data)
    else:
        num_classes = _validate.integer("num_classes", num_classes, _CLASSES)
    above = (y >= num_classes).nonzero()
    if len(above):
        place = int(above[0])
        got = f"{int(y[place])} at {kind} {place}"
        way_out = "correct the label or raise num_classes"
        raise refusal("y", f"at most {num_classes - 1} (num_classes - 1)", got, way_out)
    if task_of(data) == "binary" and num_classes != 2:
        way_out = "state 'multiclass', or two classes"
        raise refusal("num_classes", "2 for the task 'binary'", num_classes, way_out)
    return y


def _label_columns(data: Data, count: int, kind: str) -> Tensor:
    """0, 1 or -1 for every record and label."""
    rule, way_out = f"a long tensor ({kind}s, labels)", "give every label a column of 0 and 1"
    y = tensor_of(data, "y", rule, way_out)
    if y.dtype != torch.long:
        raise refusal("y", "a long tensor", str(y.dtype), "convert it with y.long()")
    columns = num_classes_of(data)
    if y.dim() != 2 or y.shape != (count, columns) or not columns:
        raise refusal("y", f"of shape ({count}, {columns or 'labels'})", shape_of(y), way_out)
    outside = (y.abs() > 1).any(1).nonzero()
    if len(outside):
        place = int(outside[0])
        got = f"{_shown(y[place])} at {kind} {place}"
        raise refusal("y", "0 or 1 for every label, or -1 where it is not known", got, way_out)
    return y


def _values(data: Data, count: int, kind: str) -> Tensor:
    """A number for every record, or NaN."""
    way_out = f"give every training {kind} a number"
    y = tensor_of(data, "y", f"a float tensor ({kind}s,)", way_out)
    value_range_of(data)
    if not y.is_floating_point():
        raise refusal("y", "a float tensor", str(y.dtype), "convert it with y.float()")
    if y.shape != (count,):
        raise refusal("y", f"of shape ({count},)", shape_of(y), "squeeze a column: y.view(-1)")
    if bool(y.isinf().any()):
        place = int(y.isinf().nonzero()[0])
        got = f"{float(y[place])} at {kind} {place}"
        raise refusal("y", "finite, or NaN where it is not known", got, "correct it")
    return y


def _two_answers(y: Tensor, kind: str, task: str) -> None:
    """Refuse training labels that are all the same."""
    if len(y) and bool((y != y[:1]).any()):
        return
    of = {"regression": "values", "multilabel": "answers"}.get(task, "classes")
    one = "class" if of == "classes" else "answer"
    got = f"only {one} {_shown(y[0])}" if len(y) else "no label at all"
    way_out = f"there is nothing to tell apart: add {kind}s of another {one}"
    raise refusal("y", f"of two {of} or more among the {kind}s to learn from", got, way_out)


def _shown(label: Tensor) -> str:
    return str(label.tolist() if label.dim() else label.item())[:80]


def tensor_of(data: Data, name: str, rule: str, way_out: str) -> Tensor:
    """The tensor ``name`` of ``data``; anything else breaks the ``rule``."""
    if not has(data, name):
        raise refusal(name, rule, "nothing", way_out)
    value = data[name]
    if not isinstance(value, Tensor):
        raise refusal(name, rule, type(value).__name__, "convert it with torch.as_tensor")
    check_layout(name, value, sparse=name == "x")
    return value


def name_tensor(value: Any) -> str:
    """What was given for a tensor, in a few words."""
    if isinstance(value, Tensor):
        return f"{value.dtype} of shape {tuple(value.shape)}"
    return "none" if value is None else type(value).__name__


def check_layout(name: str, value: Tensor, *, sparse: bool = False) -> None:
    """Refuse a tensor whose entries are not all in memory: one of no device, or a sparse one.

    ``sparse`` takes those that are sparse by rows or by coordinates.
    """
    if value.is_meta:
        raise refusal(name, "a tensor with values", "one on the device meta", "save its values")
    if value.layout != torch.strided and not (sparse and value.layout in LAYOUTS):
        got = f"a sparse one ({str(value.layout).removeprefix('torch.')})"
        raise refusal(name, "a dense tensor", got, f"convert it with {name}.to_dense()")


def has(data: Data, name: str) -> bool:
    """Whether ``data`` has a value called ``name``."""
    return name in data and data[name] is not None


def shape_of(value: Tensor) -> str:
    """The shape of a tensor, in words."""
    return f"shape {tuple(value.shape)}"


def refusal(name: str, rule: str, got: Any, way_out: str) -> InvalidInputError:
    """The error about a value ``got`` for ``name`` that is not what the ``rule`` says."""
    return InvalidInputError(
        f"The '{name}' parameter must be {rule}. Got {got} instead; {way_out}."
    )
