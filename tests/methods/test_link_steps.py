"""How long steps on links are: public rows of targets say when steps would overshoot."""

import pytest
import torch
from methods_cases import links
from torch.nn import functional as F

from graphveil import Facts
from graphveil.graph.link_terms import count_targets
from graphveil.graph.links import num_targets, own_lists
from graphveil.methods import METHODS, link_models
from graphveil.methods.execution import Execution


def scorer(data, **settings):
    """A scorer that has content and exact popularity, and its loss terms."""
    method, facts = METHODS["dp-link"](epsilon=4.0, prior=0.0, **settings), Facts.of(data)
    network = method.build(facts)
    counts = count_targets(own_lists(data), num_targets(data), balanced=False)
    link_models.set_popularity(network, counts, least=1.0)
    link_models.fit_content(method, facts, network, data)
    return network, link_models.make_terms(method, facts, network, data, rate=1.0)


def steepest(network, terms):
    """The largest curvature of the mean loss in the scorer's weights, by autograd."""
    batches = list(terms.batches(torch.arange(len(terms))))
    start = (
        torch.cat([network.linear.weight, network.linear.bias.unsqueeze(1)], 1).detach().double()
    )

    def loss(weights):
        total = 0.0
        for batch in batches:
            rows = torch.cat([batch.rows, torch.ones(len(batch.rows), 1)], 1).double()
            scores = rows @ weights.view_as(start).t() @ batch.table[batch.negative].t()
            losses = F.cross_entropy(scores, batch.positive, reduction="none")
            total = total + (losses * batch.share).sum()
        return total / len(terms)

    curves = torch.autograd.functional.hessian(loss, start.flatten())
    return float(torch.linalg.eigvalsh(curves)[-1])


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("popularity", [True, False])
def test_the_longest_step_is_stable_where_training_begins(seed, popularity):
    data = links(seed, people=40, items=8, each=4)
    network, terms = scorer(data, negatives=8, popularity=True)
    if not popularity:
        network.popularity.zero_()
        terms.table[:, -1] = 0
    curvature = steepest(network, terms)
    longest = link_models.longest_step(network, terms.table)
    # Steps of SGD with momentum 0.9 are stable up to 2 (1 + 0.9) / curvature.
    assert longest * curvature < 3.8
    assert longest * curvature > 0.3  # and are not ten times too short


def test_targets_in_one_direction_shorten_steps(monkeypatch):
    """Rows that differ along one line alone: every step moves all scores together."""
    shares = []
    train = Execution.train
    monkeypatch.setattr(
        Execution,
        "train",
        lambda self, *rest, shortened=1.0: (
            shares.append(shortened),
            train(self, *rest, shortened=shortened),
        ),
    )
    data = links(people=40, items=8, each=4)
    data.target_x = (torch.arange(8) % 2 * 2.0 - 1).unsqueeze(1).repeat(1, 3)
    method = METHODS["dp-link"](epsilon=1e4, steps=2).fit(data, progress=False)
    planned = method.plan_.part("weights").learning_rate
    assert 0 < shares[0] * planned < 5
    assert shares[0] < 0.2
    METHODS["dp-link"](epsilon=1e4, steps=2, learning_rate=0.01).fit(data, progress=False)
    assert shares[1] == 1.0
