"""Beliefs that are passed on: against a slow reference, and by hand."""

import math

import pytest
import torch

from graphveil.graph import beliefs as passing
from graphveil.graph.messages import weigh_messages


def pass_beliefs(own, log_prior, edges, rounds, likeness):
    """Along edges, none of which stands there twice."""
    messages = weigh_messages(edges, len(own))
    return passing.pass_beliefs(own, log_prior, messages, rounds, likeness)


def slowly(own, log_prior, edges, rounds, likeness):
    """The formula, node by node and class by class."""
    nodes, classes = own.shape
    prior = log_prior.double().exp().tolist()
    own = own.double().tolist()
    beliefs = [list(row) for row in own]
    for _ in range(rounds):
        chances = []
        for row in beliefs:
            weights = [math.exp(value - max(row)) for value in row]
            chances.append([weight / sum(weights) for weight in weights])
        heard = []
        for node in range(nodes):
            senders = [int(s) for s, t in edges.t().tolist() if t == node]
            row = list(own[node])
            for sender in senders:
                for c in range(classes):
                    ratio = 1 - likeness + likeness * chances[sender][c] / prior[c]
                    row[c] += math.log(ratio) / math.sqrt(len(senders))
            heard.append(row)
        beliefs = heard
    return torch.tensor(beliefs)


def drawn(seed, nodes=12, classes=3, edges=30):
    generator = torch.Generator().manual_seed(seed)
    own = torch.randn(nodes, classes, generator=generator).mul(2).log_softmax(1)
    prior = torch.randn(classes, generator=generator).log_softmax(0)
    ends = torch.randint(nodes - 2, (2, edges), generator=generator)  # two nodes are by themselves
    ends = ends[:, ends[0] != ends[1]].unique(dim=1)
    return own, prior, ends


@pytest.mark.parametrize("classes", [2, 3, 7])
@pytest.mark.parametrize("rounds", [0, 1, 3])
@pytest.mark.parametrize("likeness", [0.0, 0.5, 0.99])
def test_they_are_the_formula(classes, rounds, likeness):
    own, prior, edges = drawn(classes, classes=classes)
    beliefs = pass_beliefs(own, prior, edges, rounds, likeness)
    reference = slowly(own, prior, edges, rounds, likeness)
    torch.testing.assert_close(beliefs, reference.float(), rtol=1e-4, atol=1e-4)


def test_who_hears_nobody_keeps_its_own():
    own, prior, edges = drawn(0)
    beliefs = pass_beliefs(own, prior, edges, 5, 0.9)
    assert torch.equal(beliefs[-2:], own[-2:])
    assert not torch.allclose(beliefs[:-2], own[:-2])
    none = pass_beliefs(own, prior, edges[:, :0], 5, 0.9)
    assert torch.equal(none, own)


@pytest.mark.parametrize(("rounds", "likeness"), [(0, 0.9), (4, 0.0)])
def test_no_rounds_or_no_likeness_leave_everybody_its_own(rounds, likeness):
    own, prior, edges = drawn(1)
    assert torch.equal(pass_beliefs(own, prior, edges, rounds, likeness), own)


def test_a_neighbour_that_knows_no_more_than_the_prior_says_nothing():
    _, prior, edges = drawn(2)
    own = prior.expand(12, 3)
    torch.testing.assert_close(pass_beliefs(own, prior, edges, 3, 0.9), own)


def test_one_sure_neighbour_by_hand():
    """Odds of an even prior are multiplied by 1 + l and 1 - l."""
    own = torch.tensor([[0.5, 0.5], [1.0 - 1e-7, 1e-7]]).log()
    prior = torch.tensor([0.5, 0.5]).log()
    beliefs = pass_beliefs(own, prior, torch.tensor([[1], [0]]), 1, 0.8).softmax(1)
    assert beliefs[0].tolist() == pytest.approx([0.9, 0.1], abs=1e-6)
    assert torch.equal(beliefs[1], own[1].softmax(0))  # edges go one way


def test_four_neighbours_that_agree_are_worth_two():
    prior = torch.tensor([0.5, 0.5]).log()
    own = torch.tensor([[0.5, 0.5]] + [[0.8, 0.2]] * 4).log()
    one = pass_beliefs(own[:2], prior, torch.tensor([[1], [0]]), 1, 0.7)[0] - own[0]
    four = torch.tensor([[1, 2, 3, 4], [0, 0, 0, 0]])
    torch.testing.assert_close(pass_beliefs(own, prior, four, 1, 0.7)[0] - own[0], 2 * one)


def test_a_prediction_reads_rows_so_many_steps_away_and_no_further():
    path = torch.tensor([[0, 1, 2, 3, 4], [1, 2, 3, 4, 5]])
    own, prior, _ = drawn(3, nodes=6)
    other = own.clone()
    other[0] = other[0].flip(0)
    for rounds in (1, 2, 4):
        apart = pass_beliefs(own, prior, path, rounds, 0.9) - pass_beliefs(
            other, prior, path, rounds, 0.9
        )
        moved = (apart.abs().amax(1) > 0).nonzero().flatten().tolist()
        assert moved == list(range(rounds + 1))


def test_a_class_that_the_prior_hardly_knows_stays_finite():
    prior = torch.tensor([1 - 1e-6, 1e-6]).log()
    own = torch.tensor([[1e-9, 1.0], [0.5, 0.5]]).log()
    beliefs = pass_beliefs(own, prior, torch.tensor([[0, 1], [1, 0]]), 50, 0.999)
    assert torch.isfinite(beliefs).all()


def test_beliefs_that_are_not_numbers_are_heard_by_nobody():
    own, prior, edges = drawn(4)
    broken = own.clone()
    broken[int(edges[0, 0])] = torch.nan
    beliefs = pass_beliefs(broken, prior, edges, 3, 0.9)
    others = torch.arange(12) != edges[0, 0]
    assert torch.isfinite(beliefs[others]).all()
