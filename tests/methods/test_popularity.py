"""Recommenders to beat: counts with noise and without, and what is like one's own list."""

import itertools

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

from graphveil import Facts
from graphveil.graph.link_splits import split_links
from graphveil.graph.link_terms import count_targets
from graphveil.graph.links import num_targets, own_lists
from graphveil.methods import METHODS
from graphveil.methods.ranking import measure_links
from graphveil.rng import secret
from graphveil.runs import Run


def bought(sources=6, targets=5, seed=0, one_type=False):
    """A few links; every source's list may be of any length."""
    rng = np.random.default_rng(seed)
    targets = sources if one_type else targets
    pairs = np.argwhere(rng.random((sources, targets)) < 0.5)
    pairs = pairs[pairs[:, 0] < pairs[:, 1]] if one_type else pairs
    data = Data(x=torch.ones(sources, 2), links=torch.from_numpy(pairs.T.copy()))
    data.directed = not one_type
    if not one_type:
        data.target_x = torch.ones(targets, 3)
    return split_links(data, (0.7, 0.1, 0.2), seed)


def counts_of(data, *, balanced, without=None, link=None):
    """The counts that are released, with a source's own list taken away, or one link."""
    data = data.clone()
    if without is not None:
        lists = own_lists(data)
        kept = [list(lists.others[a:b]) for a, b in itertools.pairwise(lists.offsets)]
        weights = np.zeros(num_targets(data))
        for source, others in enumerate(kept):
            if source != without and others:
                weights[others] += 1 / np.sqrt(len(others)) if balanced else 1.0
        return weights
    if link is not None:
        mask = torch.ones(data.links.shape[1], dtype=torch.bool)
        mask[link] = False
        data.links = data.links[:, mask]
        for name in ("train_links", "val_links", "test_links"):
            data[name] = data[name][mask]
    return count_targets(own_lists(data), num_targets(data), balanced=balanced).numpy()


@pytest.mark.parametrize("one_type", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_one_unit_moves_the_counts_by_no_more_than_is_charged(one_type, seed):
    data = bought(seed=seed, one_type=one_type)
    facts = Facts.of(data)
    for unit in ("node", "edge"):
        part = METHODS["dp-popularity"](epsilon=1.0, unit=unit).plan(facts).part("popularity")
        whole = counts_of(data, balanced=unit == "node")
        if unit == "node":
            others = [counts_of(data, balanced=True, without=u) for u in range(len(data.x))]
        else:
            count = data.links.shape[1]
            others = [counts_of(data, balanced=False, link=link) for link in range(count)]
        moved = max(np.linalg.norm(whole - other) for other in others)
        # Weights are rounded down to a grid of 2^-28.
        assert 0 < moved <= part.mechanism.sensitivity + 1e-6
        if unit == "edge":
            assert moved == pytest.approx(part.mechanism.sensitivity)


def test_noisy_counts_are_those_of_the_certificate():
    data = bought(seed=1)
    method = METHODS["dp-popularity"](epsilon=1.0).fit(data, progress=False)
    assert method.certificate_.guarantee.epsilon <= 1.0
    assert "noisy counts" in str(method.certificate_)
    assert [part.name for part in method.plan_.parts] == ["popularity"]
    scale = method.plan_.part("popularity").mechanism.noise_multiplier
    plan = method.plan(Facts.of(data)).on(data)
    whole = counts_of(data, balanced=True)
    noise = []
    for seed in range(60):
        fitted = METHODS["dp-popularity"](epsilon=1.0)
        fitted.run(plan, data, rng=secret(fixed_seed=seed))
        noise.append(fitted.network_.popularity.numpy() - whole)
    assert np.std(noise) == pytest.approx(scale, rel=0.2)


def test_scores_are_the_same_for_everybody_and_recommendations_are_not():
    data = bought(sources=40, targets=12, seed=2)
    method = METHODS["popularity"]().fit(data, progress=False)
    scores = method.link_scores(data)(np.arange(40))
    assert (scores == scores[0]).all()
    assert scores[0].tolist() == counts_of(data, balanced=False).tolist()
    assert "no guarantee" in str(method.certificate_).lower()
    best = method.recommend(data, top=3)
    lists = own_lists(data)
    for source, row in enumerate(best.targets):
        mine = set(lists.others[lists.offsets[source] : lists.offsets[source + 1]])
        assert not mine & set(row)


@pytest.mark.parametrize("one_type", [False, True])
def test_item_item_is_the_cosine_of_lists(one_type):
    data = bought(sources=30, targets=9, seed=3, one_type=one_type)
    method = METHODS["item-item"](damping=2.0).fit(data, progress=False)
    lists = own_lists(data)
    table = np.zeros((30, num_targets(data)))
    for source, (a, b) in enumerate(itertools.pairwise(lists.offsets)):
        table[source, lists.others[a:b]] = 1
    lengths = np.sqrt(table.sum(0) + 2)
    likeness = table.T @ table / np.outer(lengths, lengths)
    np.fill_diagonal(likeness, 0)
    assert method.link_scores(data)(np.arange(30)) == pytest.approx(table @ likeness, abs=1e-5)
    few = METHODS["item-item"](damping=2.0, similar=2).fit(data, progress=False)
    kept = few.network_.matrix().toarray()
    assert ((kept == 0) | np.isclose(kept, likeness)).all()
    assert np.sort(kept, 1)[:, -2:] == pytest.approx(np.sort(likeness, 1)[:, -2:], abs=1e-5)
    assert (kept > 0).sum(1).max() == 2


@pytest.mark.parametrize("name", ["popularity", "dp-popularity", "item-item"])
def test_a_run_is_read_back_with_the_same_scores(name, tmp_path):
    data = bought(sources=40, targets=12, seed=4)
    settings = {"epsilon": 2.0} if name.startswith("dp") else {}
    method = METHODS[name](**settings).fit(data, progress=False)
    method.save(tmp_path / "run", data)
    again = Run(tmp_path / "run").read()
    sources = np.arange(40)
    assert (again.link_scores(data)(sources) == method.link_scores(data)(sources)).all()
    whole = measure_links(method.link_scores(data), data)
    drawn = measure_links(again.link_scores(data), data, protocol="sampled", negatives=5)
    assert whole.figures["mrr"] == method.score(data)
    assert drawn.protocol == "sampled(5)"
