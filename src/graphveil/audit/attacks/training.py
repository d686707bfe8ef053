"""Targets and shadows: training on data of which candidates were put in by coins.

A candidate that is out is withheld as the unit says, and keeps its public place: a node has a row
of zeros, no label and no list, a graph has no node, an edge is deleted. Who is out has no loss.
Where a certificate promises nothing for such candidates, they leave the training mask besides.

Shadows are trained by the attacker on data that it knows, with the settings of the target and coins
of its own. They are a simulation: nothing of them is released and no budget is charged for them.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from graphveil import _validate
from graphveil._errors import InvalidInputError
from graphveil._observing import Observer, observe
from graphveil._progress import Progress
from graphveil.audit.attacks.curves import Allowance
from graphveil.audit.attacks.scores import Array, Coins
from graphveil.audit.recording import WithoutTerms
from graphveil.graph.checks import num_classes_of
from graphveil.graph.sparse_rows import mask_rows
from graphveil.graph.targets import take_labels_away
from graphveil.methods import Facts, Method, Plan
from graphveil.methods.parts import Open, Unclipped
from graphveil.rng import SecretStream, seeded

_LEAST = 1e-30  # of a probability
_FEWEST = 8  # candidates: each half has some in and some out

Change = Callable[[Coins], Data]  # the data of which candidates with a coin are in


# --- data without some units ----------------------------------------------------------------------


def withhold_nodes(data: Data, nodes: Tensor, relation: str = "withhold") -> Data:
    """``data`` with the null row in the place of ``nodes``; by ``remove`` nobody lists them."""
    gone = torch.zeros(data.x.shape[0], dtype=torch.bool)
    gone[nodes] = True
    sent, received = gone[data.edge_index]
    result = keep_edges(data, ~(sent | received) if relation == "remove" else ~sent)
    result.x = mask_rows(data.x, ~gone)
    result.y = take_labels_away(data.y, gone)
    result.withheld = nodes.tolist()
    return result


def withhold_graphs(data: Data, graphs: Tensor) -> Data:
    """``data`` with nothing in the place of ``graphs``: no node, no edge, no label."""
    gone = torch.zeros(len(data.y), dtype=torch.bool)
    gone[graphs] = True
    stays = ~gone[data.batch]
    place = torch.cumsum(stays, 0) - 1
    result = keep_edges(data, stays[data.edge_index[0]])
    result.edge_index = place[result.edge_index]
    for name in ("x", "pos", "batch"):
        if name in data and data[name] is not None:
            result[name] = data[name][stays]
    result.y = take_labels_away(data.y, gone)
    result.withheld = graphs.tolist()
    return result


def delete_edges(data: Data, pairs: Tensor, *, directed: bool) -> Data:
    """``data`` without the edges ``pairs`` (2, edges), however often they stand there."""
    gone = _numbers(pairs, data.x.shape[0])
    if not directed:
        gone = torch.cat([gone, _numbers(pairs.flip(0), data.x.shape[0])])
    return keep_edges(data, ~torch.isin(_numbers(data.edge_index, data.x.shape[0]), gone))


def keep_edges(data: Data, kept: Tensor) -> Data:
    """A copy of ``data`` with some of its edges."""
    result, count = copy.copy(data), data.edge_index.shape[1]
    result.edge_index = data.edge_index[:, kept]
    for name in ("edge_attr", "edge_weight"):
        if name in data and data[name] is not None and len(data[name]) == count:
            result[name] = data[name][kept]
    return result


def _numbers(pairs: Tensor, nodes: int) -> Tensor:
    return pairs[0] * nodes + pairs[1]


# --- coins ----------------------------------------------------------------------------------------


def choose(records: Tensor, count: int, seed: int, purpose: str) -> Tensor:
    """``count`` of the records, or all if there are fewer, in an order that ``seed`` draws."""
    count = _validate.integer("candidates", count, f"[{_FEWEST}, 1e9]")
    if len(records) < _FEWEST:
        raise InvalidInputError(
            f"There must be at least {_FEWEST} records to choose candidates from. Got "
            f"{len(records)} instead; attack a larger data set."
        )
    order = seeded(seed, f"{purpose} candidates").generator().permutation(len(records))
    return records[torch.from_numpy(order[:count])]


def flip_coins(count: int, seed: int, purpose: str) -> Coins:
    """A fair coin for each candidate, fixed before anything is trained."""
    coins: Coins = seeded(seed, f"{purpose} coins").generator().random(count) < 0.5
    return coins


def flip_shadow_coins(shadows: int, count: int, seed: int, purpose: str) -> Coins:
    """Fresh coins for every shadow; every second one has the opposite coins of the one before.

    So each candidate is in half of the shadows.
    """
    shadows = _validate.integer("shadows", shadows, "[2, 10000]")
    generator = seeded(seed, f"{purpose} shadow coins").generator()
    first = generator.random((-(-shadows // 2), count)) < 0.5
    coins: Coins = np.stack([first, ~first], 1).reshape(-1, count)[:shadows]
    return coins


# --- models ---------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Victim:
    """A method, its data, and what its certificate says of candidates of a ``unit``.

    ``distance`` is that of :class:`~graphveil.audit.attacks.curves.Allowance`.
    """

    method: Method
    data: Data
    plan: Plan
    distance: int | None

    @classmethod
    def of(cls, method: Method, data: Any, unit: str) -> Victim:
        """The method, on data whose classes are stated, for candidates of ``unit``.

        ``unit`` is ``node``, ``edge``, ``graph`` or ``attribute``.
        """
        data = copy.copy(method.take(data, to_train=True))
        data.num_classes = num_classes_of(data)
        plan = method.plan(Facts.of(data)).on(data)
        return cls(method, data, plan, _distance(plan, unit))

    @property
    def mode(self) -> str:
        """How is queried: from the weights and the rows of the query alone."""
        return "visible" if "visible" in self.method.modes else self.method.modes[0]

    @property
    def keeps_places(self) -> bool:
        """Whether withheld records stay in the training mask: where something is promised them."""
        silent = self.distance is None or _trains_openly(self.plan)
        return not silent and math.isfinite(self.plan.epsilon)

    def allowance(self, target: Method) -> Allowance:
        """What the certificate of a trained target allows."""
        return Allowance(target.certificate_, self.distance)

    def train(
        self, data: Data, gone: Tensor | None = None, rng: SecretStream | None = None
    ) -> Method:
        """A fresh model on ``data``, in which the records ``gone`` are withheld.

        ``rng`` is for tests: noise is drawn afresh otherwise.
        """
        fitted = copy.copy(self.method)
        if gone is None or self.keeps_places:
            with observe(_Withholding(self.data, gone)):
                return fitted.run(self.plan, data, rng=rng)
        data = copy.copy(data)
        data.train_mask = data.train_mask.clone()
        data.train_mask[gone] = False
        return fitted.run(self.method.plan(Facts.of(data)).on(data), data, rng=rng)

    def query(self, model: Method, data: Data) -> Tensor:
        """What a model says of every record of ``data``."""
        return model.infer(data, self.mode)


def _trains_openly(plan: Plan) -> bool:
    return any(isinstance(part, Open | Unclipped) for part in plan.parts)


def _distance(plan: Plan, unit: str) -> int | None:
    """How many units lie between a candidate that is in and one that is out."""
    if _trains_openly(plan):
        return 1 if unit == plan.unit else None
    own = plan.unit.partition("-")[0]
    if unit == own:
        return 1
    # A list or a row that differs is one row withheld and another put in its place.
    rows = {"attribute": 1, "edge": 1 if plan.facts.directed else 2}
    return 2 * rows[unit] if own == "node" and unit in rows else None


class _Withholding(Observer):
    """Has the loss terms of records that are gone add nothing."""

    def __init__(self, data: Data, gone: Tensor | None) -> None:
        self.train = data.train_mask.nonzero().flatten()
        self.gone = torch.empty(0, dtype=torch.long) if gone is None else gone

    def equip(self, part: Any, clipped: Any, examples: Any) -> tuple[Any, Any]:
        """Leave their terms out, wherever the examples are records."""
        if not len(self.gone) or hasattr(examples, "groups"):
            return clipped, examples  # a group leaves unlabelled nodes out itself
        roots = getattr(examples, "roots", getattr(examples, "ids", None))
        if roots is None:
            if len(examples) != len(self.train):
                return clipped, examples
            roots = self.train
        return clipped, WithoutTerms(examples, torch.isin(roots, self.gone).nonzero().flatten())


@dataclass(frozen=True, eq=False)
class Models:
    """A target with its coins, and shadows with theirs: what queries of them gave.

    ``target`` is (...), ``shadows`` (models, ...), as the query answers.
    """

    model: Method
    inside: Coins
    target: Array
    shadow_inside: Coins
    shadows: Array


def train_models(
    train: Callable[[Coins], Method],
    query: Callable[[Method], Array],
    coins: tuple[Coins, Coins],
    progress: Progress | None = None,
) -> Models:
    """Train the target and then the shadows, and query each of them in the same way.

    ``coins`` are the target's, and a row for each shadow.
    """
    inside, shadow_inside = coins
    worlds = list(np.concatenate([inside[None], shadow_inside]))
    target, answers = None, []
    for world in worlds if progress is None else progress(worlds):
        model = train(world)
        target = model if target is None else target
        answers.append(query(model))
    assert target is not None
    return Models(target, inside, answers[0], shadow_inside, np.stack(answers[1:]))


def scaled_logits(probabilities: Tensor, y: Tensor) -> Array:
    """log p - log(1 - p) for the probability p of each record's class; nan without a label."""
    chances = probabilities.double()
    labels = y.clamp_min(0).unsqueeze(1)
    own = chances.gather(1, labels).squeeze(1)
    others = chances.scatter(1, labels, 0.0).sum(1)  # 1 - p, to more digits
    logits = own.clamp_min(_LEAST).log() - others.clamp_min(_LEAST).log()
    signals: Array = torch.where(y >= 0, logits, torch.nan).numpy()
    return signals
