"""Was a whole graph in the training data? Coins decide, never the split.

Candidates are training graphs, drawn by a public seed. Each is put in or withheld by a fair coin of
its own; the attacker knows all of it, queries the model with it, and guesses the coin.
"""

from __future__ import annotations

from typing import Any

import torch

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
    scaled_logits,
    train_models,
    withhold_graphs,
)
from graphveil.audit.results import Finding
from graphveil.graph.targets import is_labelled
from graphveil.methods import Method

_PURPOSE = "graph membership"


def attack_graphs(
    method: Method,
    data: Any,
    *,
    candidates: int = 400,
    shadows: int = 8,
    seed: int = 0,
    progress: Progress | None = None,
) -> list[Finding]:
    """Graph membership by loss, LiRA and BASE, on coin-flipped candidates.

    F1 is that of a threshold chosen on other candidates; accusing everybody has an F1 of 2/3.
    """
    victim = Victim.of(method, data, "graph")
    data = victim.data
    trained = data.train_mask & is_labelled(data.y)
    graphs = choose(trained.nonzero().flatten(), candidates, seed, _PURPOSE)

    def train(inside: Coins) -> Method:
        gone = graphs[torch.from_numpy(~inside)]
        return victim.train(withhold_graphs(data, gone), gone)

    def query(model: Method) -> Array:
        return scaled_logits(victim.query(model, data), data.y)[graphs.numpy()]

    coins = (
        flip_coins(len(graphs), seed, _PURPOSE),
        flip_shadow_coins(shadows, len(graphs), seed, _PURPOSE),
    )
    models = train_models(train, query, coins, progress)
    allowance = victim.allowance(models.model)
    note = "candidates by coins; queries with whole graphs, the same whatever the coins"
    return [
        judge(f"graph membership, {kind}", score, models.inside, allowance, note=note)
        for kind, score in score_graphs(models).items()
    ]


def score_graphs(models: Models) -> dict[str, Array]:
    """Every score of the candidates, from their signals."""
    laws = models.target, models.shadows, models.shadow_inside
    return {
        "loss": models.target,
        "LiRA": scores.lira(*laws),
        "LiRA offline": scores.lira_offline(*laws),
        "BASE": scores.base(models.target, models.shadows),
    }
