"""Figures of rankings, against plain loops over sources and candidates."""

import math

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score, roc_auc_score
from torch_geometric.data import Data

from graphveil._errors import InvalidInputError
from graphveil.methods import ranking
from graphveil.methods.link_task import LinkTask
from graphveil.methods.ranking import measure_links


def random_links(seed=0, sources=12, targets=17, one_type=False, directed=True):
    """Links of three parts; some sources have none to test."""
    rng = np.random.default_rng(seed)
    if one_type:
        targets = sources
        one, other = np.triu_indices(sources, 1)
        pairs = np.stack([one, other], 1)
        if directed:
            pairs = np.concatenate([pairs, pairs[:, ::-1]])
    else:
        pairs = np.stack(np.divmod(np.arange(sources * targets), targets), 1)
    pairs = pairs[rng.random(len(pairs)) < 0.3]
    part = rng.integers(3, size=len(pairs))
    data = Data(x=torch.zeros(sources, 1), links=torch.from_numpy(pairs.T.copy()))
    if not one_type:
        data.target_x = torch.zeros(targets, 1)
    data.directed = directed
    for number, name in enumerate(("train_links", "val_links", "test_links")):
        data[name] = torch.from_numpy(part == number)
    scores = rng.integers(0, 8, size=(sources, targets)).astype(float)  # with ties
    return data, scores


def look_up(scores):
    return lambda some, columns: (
        scores[some] if columns is None else np.take_along_axis(scores[some], columns, 1)
    )


def lists_of(data, mask):
    lists = {}
    for one, other in data.links[:, mask].t().tolist():
        lists.setdefault(one, set()).add(other)
        if "target_x" not in data and not data.directed:
            lists.setdefault(other, set()).add(one)
    return lists


def by_loops(data, scores, part, top):
    """Every figure by its definition; no ties."""
    withheld = lists_of(data, data[f"{part}_links"])
    known = lists_of(data, ~(data[f"{part}_links"] | data.test_links))
    rows = []
    links = {"mrr": [], "hits": [], "auc": []}
    for source, wanted in withheld.items():
        out = known.get(source, set()) | ({source} if "target_x" not in data else set())
        others = [t for t in range(scores.shape[1]) if t not in out | wanted]
        for target in wanted:
            rank = 1 + sum(scores[source, t] > scores[source, target] for t in others)
            links["mrr"].append(1 / rank)
            links["hits"].append(rank <= top)
            mine = [0] * len(others) + [1]
            if others:
                values = scores[source, [*others, target]]
                links["auc"].append(roc_auc_score(mine, values))
        order = sorted([*others, *wanted], key=lambda t: -scores[source, t])
        hits = [target in wanted for target in order]
        dcg = sum(hit / math.log2(place + 2) for place, hit in enumerate(hits[:top]))
        best = sum(1 / math.log2(place + 2) for place in range(min(top, len(wanted))))
        precision = average_precision_score(hits, -np.arange(len(hits)))
        rows.append((sum(hits[:top]) / len(wanted), dcg / best, precision))
    recall, ndcg, precision = np.mean(rows, 0)
    return {
        "mrr": np.mean(links["mrr"]),
        f"hits@{top}": np.mean(links["hits"]),
        f"ndcg@{top}": ndcg,
        f"recall@{top}": recall,
        "roc_auc": np.mean(links["auc"]),
        "average_precision": precision,
    }


@pytest.mark.parametrize("part", ["val", "test"])
@pytest.mark.parametrize(
    "kind", [{}, {"one_type": True}, {"one_type": True, "directed": False}], ids=str
)
def test_figures_are_those_of_plain_loops(kind, part):
    data, scores = random_links(seed=3, **kind)
    scores = scores + np.random.default_rng(1).random(scores.shape)  # no ties
    ranking_ = measure_links(look_up(scores), data, part=part, top=4)
    assert ranking_.figures == pytest.approx(by_loops(data, scores, part, 4))
    assert ranking_.protocol == "full"
    assert ranking_.figures.keys() == set(ranking.ranking_metrics(4))


def test_pieces_change_nothing(monkeypatch):
    data, scores = random_links(seed=5)
    whole = measure_links(look_up(scores), data)
    drawn = measure_links(look_up(scores), data, protocol="sampled", negatives=30)
    monkeypatch.setattr(ranking, "_AT_ONCE", 1)
    assert measure_links(look_up(scores), data) == whole
    assert drawn.protocol == "sampled(30)"


def test_a_constant_score_ranks_in_the_middle():
    data, scores = random_links(seed=6)
    figures = measure_links(look_up(np.ones_like(scores)), data).figures
    assert figures["roc_auc"] == 0.5
    assert figures["mrr"] < 0.3


def test_perfect_scores_have_perfect_figures():
    data, scores = random_links(seed=7)
    scores[:] = 0
    one, other = data.links[:, data.test_links]
    scores[one, other] = 1
    for protocol in ("full", "sampled"):
        figures = measure_links(look_up(scores), data, protocol=protocol, top=17).figures
        assert set(figures.values()) == {1.0}


def test_drawn_negatives_are_no_links_and_repeat_by_seed():
    data, scores = random_links(seed=8, sources=40, targets=300)
    scores = np.random.default_rng(2).random((40, 300))
    once, again, other = (
        measure_links(look_up(scores), data, protocol="sampled", negatives=50, seed=seed)
        for seed in (1, 1, 2)
    )
    assert once == again != other
    full = measure_links(look_up(scores), data)
    assert once.figures["mrr"] > full.figures["mrr"]
    assert once.figures["roc_auc"] == pytest.approx(full.figures["roc_auc"], abs=0.03)


def test_a_large_ranking_is_sampled_unless_somebody_asks(monkeypatch):
    data, scores = random_links(seed=9)
    monkeypatch.setattr(ranking, "_MOST_SCORES", 10)
    assert measure_links(look_up(scores), data).protocol == "sampled(100)"
    assert measure_links(look_up(scores), data, protocol="full").protocol == "full"


def test_bad_scores_and_parts_are_refused():
    data, scores = random_links(seed=10)
    scores[:, 0] = np.nan
    with pytest.raises(InvalidInputError, match="Scores must be finite"):
        measure_links(look_up(scores), data)
    with pytest.raises(InvalidInputError, match="'part' parameter"):
        measure_links(look_up(scores), data, part="train")
    data.test_links = torch.zeros_like(data.test_links)
    with pytest.raises(InvalidInputError, match="links to rank"):
        measure_links(look_up(scores), data)


def test_scores_that_know_nobody_have_not_learnt():
    """Links that are drawn alike: one score is better than popularity half the time, by chance."""
    task, better, credited = LinkTask(num_classes=17), 0, 0
    for seed in range(100):
        data, _ = random_links(seed, sources=40)
        scores = np.random.default_rng(1000 + seed).random((40, 17))
        measured = task.measure_scores(look_up(scores), data)
        better += measured["test_mrr"] > measured["baseline"]["mrr"]
        credited += bool(measured["learnt"])
    assert better > 25
    assert credited <= 6  # of a law with mean 1: above in 1 of 10,000 seeds


def test_scores_that_know_everybody_have_learnt_and_popularity_has_not():
    data, _ = random_links(3, sources=40)
    truth = np.zeros((40, 17))
    truth[tuple(data.links[:, data.test_links].numpy())] = 1.0
    counts = np.zeros(17)
    np.add.at(counts, data.links[1, data.train_links].numpy(), 1.0)
    task = LinkTask(num_classes=17)
    assert task.measure_scores(look_up(truth), data)["learnt"] is True
    popular = np.broadcast_to(counts, (40, 17))
    assert task.measure_scores(look_up(popular), data)["learnt"] is False
