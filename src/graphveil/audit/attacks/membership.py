"""Was a node's row in the training data? Coins decide, never the split.

Candidates are training nodes, drawn by a public seed. Each is put in or withheld by a fair coin of
its own. The attacker knows their rows, labels and neighbours, queries the model with the whole
graph as it is, whatever the coins were, and guesses the coins.

Two queries are made: with all edges, and with none. The first says what the model makes of a node
among its neighbours, the second what it makes of its row alone; signals are the means of the two.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from graphveil._progress import Progress
from graphveil.audit.attacks import scores
from graphveil.audit.attacks.curves import judge
from graphveil.audit.attacks.scores import Array, Coins
from graphveil.audit.attacks.training import (
    Models,
    Victim,
    choose,
    flip_coins,
    flip_shadow_coins,
    keep_edges,
    scaled_logits,
    train_models,
    withhold_nodes,
)
from graphveil.audit.results import Finding
from graphveil.graph.targets import is_labelled
from graphveil.methods import Method

_PURPOSE = "node membership"


def attack_nodes(
    method: Method,
    data: Data,
    *,
    candidates: int = 400,
    shadows: int = 8,
    seed: int = 0,
    progress: Progress | None = None,
) -> list[Finding]:
    """Node membership by loss, LiRA, RMIA, BASE and G-BASE, on coin-flipped candidates."""
    victim = Victim.of(method, data, "node")
    data = victim.data
    nodes = choose(
        (data.train_mask & is_labelled(data.y)).nonzero().flatten(), candidates, seed, _PURPOSE
    )

    def train(inside: Coins) -> Method:
        gone = nodes[torch.from_numpy(~inside)]
        return victim.train(withhold_nodes(data, gone, victim.plan.relation), gone)

    models = train_models(
        train,
        lambda model: query_nodes(victim, model),
        (
            flip_coins(len(nodes), seed, _PURPOSE),
            flip_shadow_coins(shadows, len(nodes), seed, _PURPOSE),
        ),
        progress,
    )
    allowance = victim.allowance(models.model)
    note = "candidates by coins; queries on the whole graph, the same whatever the coins"
    return [
        judge(f"node membership, {kind}", score, models.inside, allowance, note=note)
        for kind, score in score_nodes(models, nodes, data).items()
    ]


def query_nodes(victim: Victim, model: Method) -> Array:
    """The signal of every node: the mean of what is said of it among its neighbours and alone."""
    data = victim.data
    nobody = torch.zeros(data.edge_index.shape[1], dtype=torch.bool)
    views = (data, keep_edges(data, nobody))
    signals = [scaled_logits(victim.query(model, view), data.y) for view in views]
    mean: Array = np.mean(signals, axis=0)
    return mean


def score_nodes(models: Models, nodes: Tensor, data: Data) -> dict[str, Array]:
    """Every score of the candidates ``nodes``, from signals of all nodes."""
    ids = nodes.numpy()
    target, shadows = models.target[ids], models.shadows[:, ids]
    population = _population(data, nodes)
    odds = scores.base(models.target, models.shadows)
    return {
        "loss": target,
        "LiRA": scores.lira(target, shadows, models.shadow_inside),
        "LiRA offline": scores.lira_offline(target, shadows, models.shadow_inside),
        "RMIA": scores.rmia(
            target, shadows, (models.target[population], models.shadows[:, population])
        ),
        "BASE": odds[ids],
        "G-BASE": scores.g_base(odds, ids.tolist(), _neighbours(data, nodes)),
    }


def _population(data: Data, nodes: Tensor) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Labelled nodes that nobody trained on, and else those that are no candidates."""
    others = is_labelled(data.y)
    others[nodes] = False
    untrained = others & ~data.train_mask
    population = untrained if untrained.any() else others
    ids: np.ndarray[tuple[int], np.dtype[np.int64]] = population.nonzero().flatten().numpy()
    return ids


def _neighbours(data: Data, nodes: Tensor) -> list[Array]:
    """The nodes that each candidate sends to."""
    source, target = data.edge_index.numpy()
    order = np.argsort(source, kind="stable")
    first = np.searchsorted(source[order], nodes.numpy())
    last = np.searchsorted(source[order], nodes.numpy(), side="right")
    return [target[order[a:b]] for a, b in zip(first, last, strict=True)]
