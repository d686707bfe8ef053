"""The generated graphs: repeatable, of the asked size, and worth having edges in."""

import time

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression

from graphveil._errors import InvalidInputError
from graphveil.data import CATALOG, load, sizes_of
from graphveil.data.synthetic import citation_like, social_network
from graphveil.graph.checks import MASKS, check
from graphveil.graph.splits import split


@pytest.fixture(scope="module")
def social():
    return load("social")


def neighbours_mean(data):
    senders, receivers = data.edge_index
    total = torch.zeros_like(data.x).index_add_(0, receivers, data.x[senders])
    return total / torch.bincount(receivers, minlength=len(data.x)).clamp(min=1)[:, None]


def accuracy(x, data):
    train, test = data.train_mask.numpy(), data.test_mask.numpy()
    model = LogisticRegression(C=0.1).fit(x.numpy()[train], data.y.numpy()[train])
    return model.score(x.numpy()[test], data.y.numpy()[test])


def test_the_example_is_what_the_catalog_says(social):
    entry = CATALOG["social"]
    assert social.x.shape == (entry.num_nodes, entry.num_features)
    assert social.num_classes == entry.num_classes == int(social.y.max()) + 1
    assert "ynthetic" in entry.note
    assert social.is_undirected()
    assert not social.has_self_loops()
    assert social.num_edges == 12 * entry.num_nodes
    assert social.coalesce().num_edges == social.num_edges
    check(split(social))


def test_degrees_are_uneven(social):
    degree = torch.bincount(social.edge_index[0], minlength=len(social.x)).float()
    assert degree.max() > 8 * degree.mean()
    assert degree.median() < 0.9 * degree.mean()


def test_the_graph_clearly_helps(social):
    data = split(social)
    own, around = accuracy(data.x, data), accuracy(neighbours_mean(data), data)
    assert 0.55 < own < 0.65
    assert around > 0.85


def test_without_homophily_the_graph_says_nothing():
    data = split(social_network(4000, homophily=0.0))
    assert accuracy(neighbours_mean(data), data) < 0.35


def test_the_seed_decides_everything():
    one, same, other = (social_network(500, seed=seed) for seed in (3, 3, 4))
    for name in ("x", "edge_index", "y"):
        assert torch.equal(one[name], same[name])
        assert not torch.equal(one[name], other[name])


def test_a_graph_of_the_size_of_arxiv_in_seconds():
    start = time.process_time()
    data = citation_like()
    assert time.process_time() - start < 10  # about 1.5 seconds
    assert data.x.shape == (169_343, 128)
    assert data.edge_index.shape == (2, 1_170_000)
    assert data.num_classes == 40
    assert len(data.y.unique()) == 40
    assert data.is_directed()
    check(data, masks=False)


@settings(max_examples=30, deadline=None)
@given(
    num_nodes=st.integers(10, 200),
    num_classes=st.integers(2, 5),
    mean_degree=st.floats(0.1, 300),
    homophily=st.floats(0, 1),
    seed=st.integers(0, 1000),
)
def test_every_setting_gives_a_simple_undirected_graph(
    num_nodes, num_classes, mean_degree, homophily, seed
):
    data = social_network(
        num_nodes, num_classes, 3, mean_degree=mean_degree, homophily=homophily, seed=seed
    )
    check(data, labels=False, masks=False)
    assert data.edge_index.unique(dim=1).size(1) == data.num_edges
    assert data.is_undirected() or data.num_edges == 0
    assert not data.has_self_loops()
    assert data.num_edges <= max(mean_degree * num_nodes + 1, 0)


@pytest.mark.parametrize(
    "setting",
    [
        dict(num_nodes=3),
        dict(num_classes=1),
        dict(num_features=0),
        dict(homophily=1.1),
        dict(mean_degree=0),
        dict(tilt=float("nan")),
        dict(seed=-1),
    ],
)
def test_odd_settings_are_refused(setting):
    with pytest.raises(InvalidInputError, match=next(iter(setting))):
        social_network(**setting)


def test_synthetic_citations_are_undirected_with_the_shares_of_arxiv():
    data = check(load("synthetic-citations:3000"))
    entry, sizes = CATALOG["synthetic-citations"], sizes_of("synthetic-citations:3000")
    assert data.x.shape == (3000, entry.num_features) == (sizes.num_records, sizes.num_features)
    assert (data.num_classes, data.directed) == (40, False)
    assert data.is_undirected()
    assert data.coalesce().num_edges == data.num_edges == 2 * round(3000 * 1_170_000 / 169_343)
    assert tuple(int(data[mask].sum()) for mask in MASKS) == sizes.split == (1611, 528, 861)
    assert sizes_of("synthetic-citations").split == sizes_of("ogbn-arxiv").split
    assert torch.equal(load("synthetic-citations:3000:0").x, data.x)
    assert not torch.equal(load("synthetic-citations:3000:1").x, data.x)
    for wrong in ("999", "1000001", "many", "2000:x"):
        with pytest.raises(InvalidInputError, match="synthetic-citations:20000"):
            load(f"synthetic-citations:{wrong}")


def test_of_synthetic_citations_neighbours_say_more_than_features():
    data = load("synthetic-citations:6000")
    assert accuracy(neighbours_mean(data), data) > accuracy(data.x, data) + 0.2
