"""Are two nodes linked? From the weights, from what a service answers, from how answers move.

Candidates are edges at training nodes, drawn by a public seed. Each is kept or deleted by a fair
coin of its own. Three questions are asked, and the name of a finding says which:

===========  =====================================================================================
weights      the attacker has the model and the graph but for the candidates, and asks with
             all of them in place: are they fitted better than by shadows? This is what a guarantee
             of the unit ``edge`` is about.
served       the owner answers from the graph it trained on, which the coins changed. Answers to two
             linked nodes are alike (link stealing, He et al. 2021), and one moves when the other's
             row is blanked (LinkTeller, Wu et al. 2022). A certificate of the weights is silent
             about that; where the first mode reads noisy sums alone, it is not.
any pair     edges against random pairs without one, as those papers measure it. Nothing was put in
             by a coin, and friends are alike without any model: an inference about the graph, which
             no certificate forbids, and no test of one.
===========  =====================================================================================
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from graphveil._errors import InvalidInputError
from graphveil._progress import Progress
from graphveil.audit.attacks import scores
from graphveil.audit.attacks.curves import Allowance, judge
from graphveil.audit.attacks.scores import Array, Coins
from graphveil.audit.attacks.training import (
    Models,
    Victim,
    choose,
    delete_edges,
    flip_coins,
    flip_shadow_coins,
    scaled_logits,
    train_models,
)
from graphveil.audit.results import Finding
from graphveil.methods import Method
from graphveil.rng import seeded

_PURPOSE = "links"
_LEAST = 1e-30  # of a probability
_MOST_INFLUENCES = 200  # pairs of which one row is blanked, a prediction each
_NOTES = {
    "weights": "edges by coins; queries with every candidate in place, whatever the coins",
    "served": "edges by coins; predictions are served from the graph that was trained on, and "
    "the certificate promises nothing for what they show of it",
    "cached": "edges by coins; predictions are served from noisy sums, which the certificate "
    "covers",
    "any pair": "edges against random pairs, no coins: an inference about the graph, which also "
    "works where neighbours are alike by nature; not a test of the certificate",
}


def attack_links(
    method: Method,
    data: Data,
    *,
    candidates: int = 400,
    shadows: int = 8,
    seed: int = 0,
    progress: Progress | None = None,
) -> list[Finding]:
    """Canary edges by weights and as served, and edges against other pairs."""
    victim = Victim.of(method, data, "edge")
    data, directed = victim.data, bool(victim.plan.facts.directed)
    pairs = _choose_edges(data, candidates, seed, directed=directed)

    def train(inside: Coins) -> Method:
        return victim.train(_without(data, pairs, inside, directed=directed))

    coins = (
        flip_coins(pairs.shape[1], seed, _PURPOSE),
        flip_shadow_coins(shadows, pairs.shape[1], seed, _PURPOSE),
    )
    models = train_models(train, lambda model: query_ends(victim, model, pairs), coins, progress)
    findings = _judge_all(
        "links by weights",
        score_weights(models),
        models.inside,
        victim.allowance(models.model),
        _NOTES["weights"],
    )
    served = _without(data, pairs, models.inside, directed=directed)
    cached = method.modes[0] == "cached" and victim.distance == 1
    findings += _judge_all(
        "links as served",
        score_served(models.model, served, pairs),
        models.inside,
        victim.allowance(models.model) if cached else Allowance(None, None),
        _NOTES["cached" if cached else "served"],
    )
    known, linked = _pair_up(data, served, pairs, seed)
    findings += _judge_all(
        "links against any pair",
        score_served(models.model, served, known),
        linked,
        Allowance(None, None),
        _NOTES["any pair"],
    )
    return findings


def _judge_all(
    name: str, scored: Mapping[str, Array], inside: Coins, allowance: Allowance, note: str
) -> list[Finding]:
    # A score of fewer pairs is one of the first of them, whose order is random.
    return [
        judge(f"{name}, {kind}", score, inside[: len(score)], allowance, note=note)
        for kind, score in scored.items()
    ]


# --- which pairs ----------------------------------------------------------------------------------


def _choose_edges(data: Data, count: int, seed: int, *, directed: bool) -> Tensor:
    """Edges that a training node receives from; one direction of undirected ones."""
    source, target = data.edge_index
    read = data.train_mask[target] & (source != target)
    edges = data.edge_index[:, read]
    edges = (edges if directed else edges.sort(dim=0).values).unique(dim=1)
    places = choose(torch.arange(edges.shape[1]), count, seed, _PURPOSE)
    return edges[:, places]


def _without(data: Data, pairs: Tensor, inside: Coins, *, directed: bool) -> Data:
    return delete_edges(data, pairs[:, torch.from_numpy(~inside)], directed=directed)


def _pair_up(data: Data, served: Data, candidates: Tensor, seed: int) -> tuple[Tensor, Coins]:
    """As many pairs as there are candidates: a coin says whether one is an edge of ``served``.

    Edges are no candidates, if there are enough others; the other pairs are none in ``data``.
    """
    generator = seeded(seed, "any pair").generator()
    nodes, count = data.x.shape[0], candidates.shape[1]
    edges, there, apart = (
        _as_set(some) for some in (data.edge_index, served.edge_index, candidates)
    )
    if 2 * len(edges) > nodes * (nodes - 1) // 2:
        raise InvalidInputError(
            "Fewer than half of all pairs must be edges, to draw others beside them. Got "
            f"{len(edges)} edges among {nodes} nodes instead; attack a sparser graph."
        )
    left = there - apart
    linked: Coins = generator.random(min(count, len(there))) < 0.5
    listed = sorted(left if len(left) >= linked.sum() else there)
    order = iter(generator.permutation(len(listed)).tolist())
    pairs = []
    for link in linked:
        pair = listed[next(order)] if link else (0, 0)
        while not link and (pair in edges or pair[0] == pair[1]):
            first, second = sorted(generator.integers(nodes, size=2).tolist())
            pair = (first, second)
        pairs.append(pair)
    return torch.tensor(pairs).T, linked


def _as_set(edges: Tensor) -> set[tuple[int, int]]:
    """Pairs without a direction, and none of a node with itself."""
    return {(u, w) for u, w in edges.sort(dim=0).values.T.tolist() if u != w}


# --- scores ---------------------------------------------------------------------------------------


def query_ends(victim: Victim, model: Method, pairs: Tensor) -> Array:
    """The signal of every pair: the mean of its ends', with all candidates in place."""
    signals = scaled_logits(victim.query(model, victim.data), victim.data.y)
    ends = signals[pairs.numpy()]
    known = np.isfinite(ends)
    mean: Array = np.where(known, ends, 0.0).sum(0) / np.maximum(known.sum(0), 1)
    return mean


def score_weights(models: Models) -> dict[str, Array]:
    """Scores of the candidates from the weights alone."""
    return {
        "loss": models.target,
        "LiRA": scores.lira(models.target, models.shadows, models.shadow_inside),
    }


def score_served(model: Method, served: Data, pairs: Tensor) -> dict[str, Array]:
    """Likeness of the two answers of every pair, and influence of one end on the other."""
    answers = model.infer(served)
    return {
        "cosine": compare_answers(answers, pairs, centred=False),
        "correlation": compare_answers(answers, pairs, centred=True),
        "LinkTeller": measure_influence(model, served, pairs[:, :_MOST_INFLUENCES]),
    }


def compare_answers(answers: Tensor, pairs: Tensor, *, centred: bool) -> Array:
    """The cosine of the two answers of every pair, each less its mean if ``centred``."""
    rows = answers.double()
    if centred:
        rows = rows - rows.mean(1, keepdim=True)
    rows = torch.nn.functional.normalize(rows, dim=1)
    cosine: Array = (rows[pairs[0]] * rows[pairs[1]]).sum(1).numpy()
    return cosine


def measure_influence(model: Method, served: Data, pairs: Tensor) -> Array:
    """How far the answer to the second of a pair moves when the row of the first is blanked.

    LinkTeller scales the row a little; a method that scales rows itself would not notice.
    Logarithms of probabilities are compared: of a sure answer probabilities hardly move.
    """
    before = _logarithms(model.infer(served))
    probed = served.clone()
    probed.x = (served.x if served.x.layout == torch.strided else served.x.to_dense()).clone()
    moved = np.zeros(pairs.shape[1])
    for node in pairs[0].unique().tolist():
        row = probed.x[node].clone()
        probed.x[node] = 0
        after = _logarithms(model.infer(probed))
        probed.x[node] = row
        places = (pairs[0] == node).nonzero().flatten()
        ends = pairs[1, places]
        moved[places.numpy()] = (after[ends] - before[ends]).norm(dim=1).numpy()
    return moved


def _logarithms(probabilities: Tensor) -> Tensor:
    return probabilities.double().clamp_min(_LEAST).log()
