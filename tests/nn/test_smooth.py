"""Values are the usual ones; gradients never jump, so that last bits cannot flip them."""

import pytest
import torch
from torch.func import grad, vmap
from torch.nn import functional as F

from graphveil.grads import Flat
from graphveil.grads.clipped import ClippedSum
from graphveil.nn import GraphClassifier, graph_classifier, smooth
from graphveil.nn.smooth import WIDTH, largest, leaky_relu, relu, selu

BENT = {
    "relu": (relu, F.relu),
    "leaky_relu": (leaky_relu, F.leaky_relu),
    "selu": (selu, F.selu),
    "steep": (lambda x: leaky_relu(x, 0.2), lambda x: F.leaky_relu(x, 0.2)),
}
LAST_BITS = 1e-6


def plain_largest(x, owner, count):
    zeros = x.new_zeros(count, x.shape[1])
    places = owner.unsqueeze(1).expand_as(x)
    return zeros.scatter_reduce(0, places, x, "amax", include_self=False)


def slope(function, x):
    x = x.detach().requires_grad_()
    return torch.autograd.grad(function(x).sum(), x)[0]


@pytest.mark.parametrize("name", BENT)
def test_a_bend_has_the_usual_values_and_far_from_it_the_usual_slope(name):
    ours, usual = BENT[name]
    x = torch.cat([torch.randn(1000), torch.tensor([0.0, -0.0, WIDTH, -WIDTH, 1e30, -1e30])])
    torch.testing.assert_close(ours(x), usual(x), rtol=3e-7, atol=0)
    far = x[(x < 0) | (x >= WIDTH)]
    torch.testing.assert_close(slope(ours, far), slope(usual, far))


@pytest.mark.parametrize("name", BENT)
def test_a_bend_s_slope_moves_as_little_as_what_goes_in(name):
    ours, usual = BENT[name]
    x = torch.linspace(-2 * WIDTH, 2 * WIDTH, 4001, dtype=torch.float64)

    def moved(function):
        return float((slope(function, x + LAST_BITS) - slope(function, x)).abs().max())

    assert 0 < moved(ours) <= 1.1 * LAST_BITS / WIDTH
    assert moved(usual) > 0.5  # the plain one jumps


def test_a_bend_can_be_run_one_example_at_a_time():
    x = torch.randn(50, 3) * WIDTH
    found = vmap(grad(lambda row: leaky_relu(row, 0.2).sum()))(x)
    torch.testing.assert_close(found, slope(lambda x: leaky_relu(x, 0.2), x))


def test_the_largest_is_the_largest():
    x, owner = torch.randn(40, 3), torch.randint(0, 7, (40,))
    owner[owner == 4] = 5  # nobody is the fourth's
    assert torch.equal(largest(x, owner, 7), plain_largest(x, owner, 7))
    apart = torch.arange(8.0).view(4, 2) - 3.5
    at = torch.tensor([0, 0, 1, 1])
    usual = slope(lambda x: plain_largest(x, at, 2), apart)
    assert torch.equal(slope(lambda x: largest(x, at, 2), apart), usual)


def test_the_largest_shares_among_those_that_tie():
    x = torch.tensor([[1.0], [1.0], [0.0], [1.0 - WIDTH]])
    found = slope(lambda x: largest(x, torch.zeros(4, dtype=torch.long), 1), x)
    torch.testing.assert_close(found.flatten(), torch.tensor([0.4, 0.4, 0.0, 0.2]))


@pytest.mark.parametrize("how", [{"pool": "max"}, {"activation": "relu"}])
def test_last_bits_do_not_turn_a_clipped_gradient_round(how, monkeypatch):
    """Two nodes, unlike each other, whose states are both 0: they tie, and stand at a bend."""
    model = GraphClassifier(2, 1, 2, conv="sum", num_layers=1, **how)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(0.5)
        model.head.linears[0].weight.copy_(torch.tensor([[3.0], [-3.0]]))
        model.convs[0].lin.bias.zero_()
    first = torch.tensor([[4.0, -4.0], [-4.0, 4.0]])
    edges = torch.empty(2, 0, dtype=torch.long)

    def losses(module, batch):
        found = module(batch, edges, torch.zeros(2, dtype=torch.long), 1)
        return F.cross_entropy(found, torch.zeros(1, dtype=torch.long), reduction="none")

    def clipped(x):
        found = ClippedSum(model, losses, Flat(1e-4))([x])
        return torch.cat([value.flatten() for value in found.values()]) / 1e-4

    def moved():
        bits = torch.tensor([[LAST_BITS, 0.0], [0.0, 0.0]])
        return float((clipped(first + bits) - clipped(first - bits)).norm())

    assert moved() < 10 * LAST_BITS / WIDTH
    monkeypatch.setattr(graph_classifier, "largest", plain_largest)
    monkeypatch.setattr(smooth, "WIDTH", 1e-30)
    assert moved() > 0.5  # plain ones do
