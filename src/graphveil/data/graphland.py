"""GraphLand: graphs of industry with columns of several kinds, and classes or numbers to predict.

A data set is a folder with ``info.yaml`` (kinds of columns, task, direction), ``features.csv``,
``targets.csv`` and ``split_masks_RL.csv`` (RH, TH), whose first column numbers the nodes, and
``edgelist.csv``, two columns of such numbers. A folder of one's own may have any name.

What is needed and not in the files is stated by name, see :mod:`graphveil.data._variants`: the
number of classes, or the range of a regression. It is never read off the targets.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch_geometric.data import Data

from graphveil._errors import InvalidInputError
from graphveil._inputs import read_text
from graphveil.data._cache import find, locate, reading, refuse_variant
from graphveil.data._ends import check_ends, go_both_ways
from graphveil.data._places import graphland_files
from graphveil.data._plain_yaml import parse_yaml
from graphveil.data._row_columns import (
    CODE_WIDTH,
    SQUASHED,
    Columns,
    as_numbers,
    code_columns,
    join_columns,
    number_columns,
)
from graphveil.data._stated_targets import put_targets
from graphveil.data._tables import read_table
from graphveil.data._variants import GRAPHLAND, GraphLand, Target, parse_graphland
from graphveil.graph.shares import MASKS

_URL = "https://zenodo.org/records/16895532"
_TASKS = {
    "regression": "regression",
    "binary_classification": "binary",
    "multiclass_classification": "multiclass",
}
_KINDS = ("numerical", "fraction", "categorical")
_CODES = f"no list of categories: a code sets one of {CODE_WIDTH} columns by itself"
_SIZES = "how many categories a column has, as info.yaml states"
_SPLIT = "the split {}, which the makers of the files drew with a look at targets or times"


def graphland(name: str, root: Path, variant: str) -> Data:
    """A data set of GraphLand: ``graphland:NAME[:SPLIT][:TARGET]``.

    Features are made of a node's own cells. Fractions are cut to 0 and 1. Of other numbers no range
    is published, so that each is squashed by itself; where info.yaml does not say that none is
    missing, an empty cell is 0 and a column says so. Categories are codes: columns of 0 and 1, as
    many as ``num_categories`` in info.yaml states (a table that an owner may add), or else
    hashed. Links have the direction that info.yaml states.
    """
    parsed = parse_graphland(variant)
    if parsed is None:
        rule = "':NAME', ':NAME:RL' (RH, TH), and a public ':CLASSES' or ':LOW..HIGH'"
        refuse_variant("graphland", rule, name, "; write 'graphland:tolokers-2'")
    place = _find(name, root, variant, parsed)
    with reading(name, place, passing=(InvalidInputError,)):
        info = _read_info(place)
        table = _read_nodes(place / "features.csv")
        columns = _features(info, table)
        ids = table.iloc[:, 0]
        targets = _read_nodes(place / "targets.csv", ids)
        values = as_numbers(info["target_name"], _column(targets, info["target_name"]))
        masks = _read_nodes(place / f"split_masks_{parsed.split}.csv", ids)
        ends = _read_edges(place / "edgelist.csv", len(ids))
        data = Data(x=torch.from_numpy(columns.values))
        data.edge_index = torch.from_numpy(
            ends if info["graph_is_directed"] else go_both_ways(ends, len(ids))
        )
        put_targets(data, name, values, _stated(name, info, parsed.target))
        for mask, column in zip(MASKS, ("train", "val", "test"), strict=True):
            data[mask] = torch.from_numpy(_flags(_column(masks, column)) & ~np.isnan(values))
    data.columns, data.directed = columns.names, info["graph_is_directed"]
    data.public = _public_lines(info, parsed.split)
    return data


def _find(name: str, root: Path, variant: str, parsed: GraphLand) -> Path:
    """The folder with the files; those of the benchmark are downloaded if they are nowhere."""
    *others, (folder, files) = graphland_files(variant)
    for other, needed in others:
        if (place := find(root, Path(other), needed)) is not None:
            return place
    if parsed.name in GRAPHLAND:
        return locate(name, root, folder, files, [f"{_URL}/files/{parsed.name}.zip"])
    if (place := find(root, Path(folder), files)) is not None:
        return place
    raise InvalidInputError(
        f"The data set {name!r} is not in {root / folder} (looked for {', '.join(files)}), and no "
        f"data set of GraphLand is called so; name one of {', '.join(GRAPHLAND)}, or pass the root "
        "folder that holds yours."
    )


def _read_info(place: Path) -> dict[str, Any]:
    """What info.yaml says, with the keys that are read here."""
    info = parse_yaml(read_text(place / "info.yaml"))
    for kind in _KINDS:
        key = f"{kind}_features_names"
        if not isinstance(info.setdefault(key, [] if kind == "fraction" else None), list):
            raise ValueError(f"info.yaml must have the list {key}")
        info[key] = [str(column) for column in info[key]]
    if info.get("task") not in _TASKS:
        raise ValueError(f"info.yaml must have a task of {', '.join(_TASKS)}")
    if not isinstance(info.get("graph_is_directed"), bool):
        raise ValueError("info.yaml must say graph_is_directed: true or false")
    if not isinstance(info.get("target_name"), str):
        raise ValueError("info.yaml must have a target_name")
    sizes = info.setdefault("num_categories", {})
    if not isinstance(sizes, dict) or not all(_is_size(size) for size in sizes.values()):
        raise ValueError("num_categories in info.yaml must give whole numbers from 1 to 4096")
    return info


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 4096


def _read_nodes(path: Path, ids: pd.Series | None = None) -> pd.DataFrame:
    """A table whose first column numbers the nodes, as in ``ids`` where they are given."""
    table = read_table(path, (), text=())
    if table.shape[1] < 2:
        raise ValueError(f"{path.name} must have a column of nodes and others")
    if ids is not None and not np.array_equal(table.iloc[:, 0].to_numpy(), ids.to_numpy()):
        raise ValueError(f"{path.name} must have the nodes of features.csv, in their order")
    return table


def _column(table: pd.DataFrame, name: str) -> pd.Series:
    if name not in table.columns[1:]:
        raise ValueError(f"there is no column {name!r}")
    return table[name]


def _features(info: dict[str, Any], table: pd.DataFrame) -> Columns:
    """Numbers, fractions and categories, in the order of info.yaml."""
    fractions = set(info["fraction_features_names"])
    numbers = dict.fromkeys([*info["numerical_features_names"], *info["fraction_features_names"]])
    gaps = info.get("has_nans_in_numerical_features") is not False
    blocks = []
    for name in numbers:
        values = as_numbers(name, _column(table, name))
        blocks.append(number_columns(name, values, gaps=gaps, fraction=name in fractions))
    for name in info["categorical_features_names"]:
        values = as_numbers(name, _column(table, name))
        blocks.append(code_columns(name, values, info["num_categories"].get(name)))
    return join_columns(blocks, len(table))


def _read_edges(path: Path, nodes: int) -> NDArray[np.int64]:
    table = read_table(path, (), text=())
    if table.shape[1] != 2:
        raise ValueError(f"{path.name} must have two columns, got {table.shape[1]}: no weights")
    numbers = [as_numbers(f"{path.name}: {name}", table[name]) for name in table.columns]
    if any(np.isnan(column).any() for column in numbers):
        raise ValueError(f"{path.name} has an empty cell")
    ends = np.stack(numbers).astype(np.int64)
    check_ends(ends, nodes, path.name)
    return ends


def _flags(column: pd.Series) -> NDArray[np.bool_]:
    texts = column.astype("str").str.lower()
    if not texts.isin(["true", "false", "0", "1"]).all():
        raise ValueError(f"the mask {column.name} must be True or False")
    return texts.isin(["true", "1"]).to_numpy(bool)


def _stated(name: str, info: dict[str, Any], target: Target) -> Target:
    """What the name or info.yaml states of the target, as much as its task needs."""
    task = _TASKS[info["task"]]
    if task == "regression":
        if target.value_range is None:
            _refuse_unstated(name, "the range of its target", "0..10")
        return target
    if target.value_range is not None:
        raise ValueError(f"info.yaml says {info['task']}, of which there is no range")
    stated = 2 if task == "binary" else info.get("num_classes")
    if stated is not None and target.num_classes not in (None, stated):
        raise ValueError(f"info.yaml says {stated} classes, the name {target.num_classes}")
    classes = target.num_classes if stated is None else stated
    if not isinstance(classes, int):
        _refuse_unstated(name, "its number of classes", "21")
    return Target(num_classes=classes)


def _refuse_unstated(name: str, what: str, example: str) -> NoReturn:
    raise InvalidInputError(
        f"The data set {name!r} must come with {what}, which its files do not state and which is "
        f"not read off private values; write what is publicly known behind the name, as in "
        f"'{name}:{example}'."
    )


def _public_lines(info: dict[str, Any], split: str) -> list[str]:
    """What features and split rest on."""
    categories = info["categorical_features_names"]
    hashed = [name for name in categories if name not in info["num_categories"]]
    plain = set(info["numerical_features_names"]) - set(info["fraction_features_names"])
    lines = [
        ("the kinds of columns, as info.yaml states", True),
        (SQUASHED, bool(plain)),
        (_CODES, bool(hashed)),
        (_SIZES, len(hashed) < len(categories)),
        (_SPLIT.format(split), True),
    ]
    return [line for line, holds in lines if holds]
