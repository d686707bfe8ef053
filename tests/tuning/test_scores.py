"""How far one unit moves a score: by brute force, with the labels that make it worst."""

import copy

import pytest
import torch
from tuning_cases import QUICK, drawn_graph

from graphveil._errors import InvalidInputError, UnprovenError
from graphveil.data.synthetic import erdos_renyi
from graphveil.graph.splits import split
from graphveil.methods import METHODS, Facts
from graphveil.tuning import scores

OWN_ROW = ["dp-mlp", "late-graph", "dpar", "graph-split"]


def hubs(seed, nodes=24):
    """A small graph in which everybody knows the first two nodes; the last six are trained on."""
    data = drawn_graph(seed, nodes=nodes, edges=20)
    others = torch.arange(2, nodes)
    hub = torch.stack([torch.arange(nodes - 2) % 2, others])
    data.edge_index = torch.cat([data.edge_index, hub, hub.flip(0)], 1).unique(dim=1)
    data.train_mask = torch.arange(nodes) >= nodes - 6
    data.val_mask, data.test_mask = ~data.train_mask, torch.zeros(nodes, dtype=torch.bool)
    return data


def fitted(name, data, **settings):
    """A method with weights that were drawn: the bound must hold for any."""
    known = METHODS[name](epsilon=50.0).get_params()
    quick = {key: value for key, value in QUICK.items() if key in known}
    method = METHODS[name](**{**quick, "epsilon": 50.0, **settings}).fit(data)
    return redrawn(method, 0)


def decisions(method, data):
    """What is decided of every record by what a private score reads."""
    return method.task(method.plan_.facts).decide(scores.private_answers(method, data))


def redrawn(method, seed):
    """The same with other weights."""
    rng = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in method.network_.parameters():
            size = 1.0 if seed % 2 else 0.3
            parameter.copy_(size * torch.randn(parameter.shape, generator=rng))
    return method


def withheld(data, node):
    """The node's row is the null row: no features, no label, an empty list."""
    other = copy.copy(data)
    other.x, other.y = data.x.clone(), data.y.clone()
    other.x[node] = 0.0
    other.y[node] = data.y[node] if data.train_mask[node] else -1  # no score reads it either way
    other.edge_index = data.edge_index[:, data.edge_index[0] != node]
    return other


def removed(data, node):
    """The row is gone, and so is every mention of it."""
    other = withheld(data, node)
    other.edge_index = other.edge_index[:, other.edge_index[1] != node]
    return other


def small_degrees(seed, nodes=24):
    """A ring with chords: nobody has more than three neighbours."""
    data, ring = hubs(seed, nodes), torch.arange(nodes)
    ends = [torch.stack([ring, (ring + 1) % nodes]), torch.stack([ring[:12], ring[12:]])]
    ends = torch.cat(ends, 1)
    data.edge_index = torch.cat([ends, ends.flip(0)], 1)
    return data


def without_edge(data, number):
    """One undirected edge deleted."""
    u, v = data.edge_index[:, number]
    source, target = data.edge_index
    gone = ((source == u) & (target == v)) | ((source == v) & (target == u))
    other = copy.copy(data)
    other.edge_index = data.edge_index[:, ~gone]
    return other


def moved(method, data, others):
    """The largest change of the count, over labels too: what changes is who is answered otherwise.

    With the labels that all answers on ``data`` give, each of these costs one.
    """
    before, largest = decisions(method, data), 0
    for other in others:
        changed = (decisions(method, other) != before) | (other.y != data.y)
        largest = max(largest, int((changed & data.val_mask).sum()))
        if changed.any():  # and so does the score itself
            right, left = copy.copy(data), copy.copy(other)
            right.y, left.y = before, torch.where(other.y >= 0, before, -1)
            counts = [scores.private_count(method, each) for each in (right, left)]
            assert counts[0] - counts[1] == int((changed & data.val_mask).sum())
    return largest


@pytest.mark.parametrize("name", OWN_ROW)
def test_a_score_from_own_rows_moves_by_one(name):
    data = hubs(1)
    method = fitted(name, data)
    bound = scores.sensitivity(method, Facts.of(data))
    assert bound == 1
    others = [withheld(data, node) for node in range(len(data.x))]
    assert moved(method, data, others) == bound  # a node's own answer goes with its label


@pytest.mark.parametrize(
    "expected, settings",
    [
        (2, {"conv": "gcn"}),
        (3, {"conv": "gcn", "sender_cap": 2}),
        (3, {"conv": "sage", "sender_cap": 2, "receiver_cap": 3}),
        (3, {"conv": "gcn", "num_layers": 2, "sender_cap": 1}),
        (7, {"conv": "gin", "num_layers": 2, "sender_cap": 2}),
        (3, {"conv": "gat", "sender_cap": 2}),
        (4, {"conv": "gcn", "relation": "remove", "public_degree": 3}),
    ],
    ids=str,
)
def test_a_score_from_capped_neighbourhoods_moves_by_the_influence_of_training(expected, settings):
    largest, strict = 0, settings.get("relation") == "remove"
    for seed in range(2):
        data = small_degrees(seed) if strict else hubs(seed)
        method = fitted("dp-gnn", data, **settings)
        bound = scores.sensitivity(method, Facts.of(data))
        assert bound == expected
        away = removed if strict else withheld
        others = [away(data, node) for node in range(len(data.x))]
        for other in range(3):
            found = moved(redrawn(method, other), data, others)
            assert found <= bound
            largest = max(largest, found)
    assert largest > 1  # neighbours are read: a bound of 1 would not do


@pytest.mark.parametrize("name, settings", [
    ("graph-split", {"unit": "edge"}),
    ("gap", {"unit": "edge", "open_steps": 4, "folds": 2}),
    ("dp-gnn", {"unit": "edge"}),
    ("dp-gnn", {"unit": "edge", "num_layers": 2, "sender_cap": 1}),
], ids=str)  # fmt: skip
def test_what_an_edge_moves(name, settings):
    data = hubs(2)
    method = fitted(name, data, **settings)
    bound = scores.sensitivity(method, Facts.of(data))
    assert bound == (sum(method.influence(Facts.of(data))) if name == "dp-gnn" else 0)
    others = [without_edge(data, number) for number in range(0, data.edge_index.shape[1], 3)]
    assert moved(method, data, others) <= bound


def test_a_score_from_noisy_sums_moves_by_one_whatever_happens_to_a_nodes_own():
    """All rows of the cache but the node's own are what training released to it."""
    data = hubs(3)
    method = fitted("gap", data)
    assert scores.sensitivity(method, Facts.of(data)) == 1
    cache, records = method.cache_, int(data.val_mask.sum())
    for node in range(records):
        labels = method.predict(data)
        right = copy.copy(data)
        right.y = labels
        assert scores.private_count(method, right) == records
        other = withheld(right, node)
        method.cache_ = cache.clone()
        method.cache_[node] = 100 * torch.randn(cache[node].shape)
        assert scores.private_count(method, other) == records - 1
        method.cache_ = cache


def test_a_graph_moves_a_score_by_its_own_answer():
    data = split(erdos_renyi(num_graphs=30), seed=0)
    data.val_mask = ~data.train_mask
    data.test_mask[:] = False
    judged = data.val_mask.nonzero().flatten()
    method = METHODS["graph-dpsgd"](steps=4, epsilon=50.0).fit(data)
    assert scores.sensitivity(method, Facts.of(data)) == 1
    right = copy.copy(data)
    right.y = method.predict(data)
    for graph in judged:
        other = copy.copy(right)
        other.x, other.y = right.x.clone(), right.y.clone()
        other.x[right.batch == graph] = 0.0
        other.y[graph] = -1
        assert scores.private_count(method, other) == len(judged) - 1


def test_a_score_that_reads_neighbours_in_the_open_would_have_no_bound():
    """Why the private score of late-graph reads own rows: the visible one moves by many."""
    data, largest = hubs(0), 0
    data.x[:2] *= 20
    visible = {"reading": "smoothing", "rounds": 1, "teleport": 0.0}
    method = fitted("late-graph", data, features="raw", **visible)
    for other in range(10):
        found = redrawn(method, other).predict(data)
        for hub in (0, 1):
            changed = method.predict(withheld(data, hub)) != found
            largest = max(largest, int(changed.sum()))
    assert largest > 3


def test_settings_that_a_score_from_own_rows_does_not_see():
    """They say how neighbours are read, which it leaves out: a choice by it would be by chance."""
    seen = {name: scores.unseen(name) for name in METHODS if scores.unseen(name)}
    assert seen == {
        "late-graph": ("reading", "rounds", "likeness", "teleport", "student"),
        "dpar": ("smoothing_steps", "teleport", "student"),
    }
    data = hubs(5)
    method = fitted("late-graph", data, likeness=0.1)
    answers = scores.private_answers(method, data)
    visible = method.predict_proba(data)
    method.likeness = 0.9
    assert torch.equal(scores.private_answers(method, data), answers)
    assert not torch.equal(method.predict_proba(data), visible)


@pytest.mark.parametrize("name", [*OWN_ROW, "dp-gnn"])
def test_a_public_score_reads_no_row_but_those_declared_public(name):
    data = hubs(4)
    data.val_mask[1::2] = False
    method = fitted(name, data)
    count = scores.public_count(method, data)
    for node in (~data.val_mask).nonzero().flatten():
        assert scores.public_count(method, withheld(data, node)) == count
    shuffled = copy.copy(data)
    shuffled.x = torch.where(data.val_mask.unsqueeze(1), data.x, torch.randn(data.x.shape))
    shuffled.y = torch.where(data.val_mask, data.y, 0)
    assert scores.public_count(method, shuffled) == count


def test_what_has_no_bound_is_refused():
    data = hubs(0)
    with pytest.raises(UnprovenError, match="--public-data"):
        scores.sensitivity(METHODS["mlp"](), Facts.of(data))
    data.val_mask[:] = False
    with pytest.raises(InvalidInputError, match="labelled validation records"):
        scores.validation(data)


@pytest.mark.parametrize("task", ["multilabel", "ordinal", "regression"])
def test_one_record_moves_a_private_score_of_any_task_by_one_at_most(task):
    """The worst label of a record against the best one, whatever is answered."""
    data = hubs(0)
    data.task = task
    if task == "multilabel":
        data.y = torch.stack([data.y == 0, data.y > 0], 1).long()
        data.num_classes = 2
        ends = [torch.zeros(2, dtype=torch.long), torch.ones(2, dtype=torch.long)]
    elif task == "regression":
        data.y, data.value_range = data.y.float(), (0.0, 2.0)
        ends = [torch.tensor(-1e9), torch.tensor(1e9)]
    else:
        ends = [torch.tensor(0), torch.tensor(int(data.num_classes) - 1)]
    method = fitted("dp-mlp", data)
    moves = []
    for place in data.val_mask.nonzero().flatten().tolist():
        counts = []
        for end in ends:
            other = copy.copy(data)
            other.y = data.y.clone()
            other.y[place] = end
            counts.append(scores.private_count(method, other))
        moves.append(abs(counts[0] - counts[1]))
    assert 0 < max(moves) <= 1 + 1e-9
