"""Which of two values has a binary attribute of a node? A coin sets it before training.

Candidates are training nodes, drawn by a public seed. One column of each is set to the smaller or
to the larger of two values by a fair coin of its own. The attacker knows all else, queries the
model with all candidates at the smaller value and with all at the larger, and compares.

A row with the other value is a row withheld and another put in its place: for a guarantee of the
unit ``node`` the two data sets are two steps apart.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor
from torch_geometric.data import Data

from graphveil._errors import InvalidInputError
from graphveil._progress import Progress
from graphveil.audit.attacks import scores
from graphveil.audit.attacks.curves import judge
from graphveil.audit.attacks.scores import Array, Coins
from graphveil.audit.attacks.training import (
    Victim,
    choose,
    flip_coins,
    flip_shadow_coins,
    scaled_logits,
    train_models,
)
from graphveil.audit.results import Finding
from graphveil.graph.targets import is_labelled
from graphveil.methods import Method

_PURPOSE = "attributes"


def attack_attributes(
    method: Method,
    data: Data,
    *,
    column: int | None = None,
    candidates: int = 400,
    shadows: int = 8,
    seed: int = 0,
    progress: Progress | None = None,
) -> list[Finding]:
    """Attribute inference by margin and LiRA; by default of the column split most evenly."""
    victim = Victim.of(method, data, "attribute")
    data = victim.data
    if data.x.layout != torch.strided:
        data.x = data.x.to_dense()
    column, values = choose_column(data, column)
    trained = data.train_mask & is_labelled(data.y)
    nodes = choose(trained.nonzero().flatten(), candidates, seed, _PURPOSE)
    queries = [
        set_attribute(data, nodes, column, torch.full((len(nodes),), value)) for value in values
    ]

    def train(inside: Coins) -> Method:
        low, high = values
        drawn = torch.where(torch.from_numpy(inside), high, low)
        return victim.train(set_attribute(data, nodes, column, drawn))

    def query(model: Method) -> Array:
        low, high = (scaled_logits(victim.query(model, view), data.y) for view in queries)
        gained: Array = (high - low)[nodes.numpy()]
        return gained

    coins = (
        flip_coins(len(nodes), seed, _PURPOSE),
        flip_shadow_coins(shadows, len(nodes), seed, _PURPOSE),
    )
    models = train_models(train, query, coins, progress)
    allowance = victim.allowance(models.model)
    scored = {
        "margin": models.target,
        "LiRA": scores.lira(models.target, models.shadows, models.shadow_inside),
    }
    note = f"column {column} of candidates set by coins; queried with both values"
    return [
        judge(f"attribute, {kind}", score, models.inside, allowance, note=note)
        for kind, score in scored.items()
    ]


def choose_column(data: Data, column: int | None = None) -> tuple[int, tuple[float, float]]:
    """A column and its smallest and largest value among training nodes.

    By default the one of which most nearly half of the rows lie above the middle.
    """
    rows = data.x[data.train_mask]
    low, high = rows.min(0).values, rows.max(0).values
    if column is None:
        share = (rows > (low + high) / 2).double().mean(0)
        column = int((share - 0.5).abs().where(high > low, torch.inf).argmin())
    if not 0 <= column < rows.shape[1] or not high[column] > low[column]:
        raise InvalidInputError(
            "The 'column' parameter must be one of the features, with two values or more. Got "
            f"{column} instead; name another."
        )
    return column, (float(low[column]), float(high[column]))


def set_attribute(data: Data, nodes: Tensor, column: int, values: Tensor) -> Data:
    """A copy of ``data`` with these values in the ``column`` of ``nodes``."""
    result = copy.copy(data)
    result.x = data.x.clone()
    result.x[nodes, column] = values.to(result.x)
    return result
