"""Random graphs, and the slow, obvious way to what the networks and the engine compute."""

import torch
from hypothesis import strategies as st
from torch.nn import functional as F

from graphveil.grads import ClippedSum, Flat, Off, PerLayer
from graphveil.graph.messages import weigh_messages

FEATURES, CLASSES = 3, 5
HOWS = ("inverse-degree", "symmetric", "none")


def random_graph(seed, nodes, edges, features=FEATURES):
    """Float64 features, and edges without self-loops; nodes may be isolated."""
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(nodes, features, generator=rng, dtype=torch.float64)
    if nodes < 2:
        return x, torch.empty(2, 0, dtype=torch.long)
    source = torch.randint(nodes, (edges,), generator=rng)
    shift = torch.randint(1, nodes, (edges,), generator=rng)
    return x, torch.stack([source, (source + shift) % nodes]).unique(dim=1)


@st.composite
def graphs(draw, max_nodes=8, max_edges=16):
    """Features, messages with some normalisation."""
    nodes = draw(st.integers(1, max_nodes))
    x, edges = random_graph(draw(st.integers(0, 999)), nodes, draw(st.integers(0, max_edges)))
    return x, weigh_messages(edges, nodes, draw(st.sampled_from(HOWS)))


def copied(layer, **parameters):
    """``layer`` in float64 with the given parameters, by name."""
    layer.double()
    state = dict(layer.named_parameters())
    with torch.no_grad():
        for name, value in parameters.items():
            state[name.replace("__", ".")].copy_(value.view_as(state[name.replace("__", ".")]))
    return layer


def losses(module, batch):
    """One loss for each example; a batch is what the module takes, and labels."""
    inputs, labels = batch
    return F.cross_entropy(module(*inputs), labels, reduction="none")


def gradients(module, batch):
    """The gradient of a batch of one example, by parameter name; zeros where it has no part."""
    named = {name: p for name, p in module.named_parameters() if p.requires_grad}
    values = torch.autograd.grad(
        losses(module, batch).sum(), list(named.values()), allow_unused=True
    )
    return {
        name: torch.zeros_like(p) if value is None else value
        for (name, p), value in zip(named.items(), values, strict=True)
    }


def norm(gradient, block=None):
    """The norm of a gradient, or of one layer's part of it."""
    parts = [v for n, v in gradient.items() if block in (None, n.rpartition(".")[0])]
    return float(sum((v * v).sum() for v in parts)) ** 0.5


def clipped_by_hand(each, bound, per_layer):
    """Clip each gradient, then add them up."""
    total = {name: torch.zeros_like(value) for name, value in each[0].items()}
    for gradient in each:
        for name, value in gradient.items():
            size = norm(gradient, name.rpartition(".")[0] if per_layer else None)
            total[name] += value * min(1.0, bound / max(size, 1e-30))
    return total


def assert_clipped_sums_are_right(module, batch, examples):
    """The engine on a batch against a loop over its examples, each a batch of one."""
    each = [gradients(module, example) for example in examples]
    plain = ClippedSum(module, losses, Off())
    assert not plain.by_example
    assert_same(plain([batch]), {name: sum(g[name] for g in each) for name in each[0]}, 1e-10)
    # A bound that some gradients meet and others do not. The engine enlarges norms on
    # purpose, most where rows cancel, so a clipped gradient may be a little shorter than by hand.
    bound = sorted(norm(g) for g in each)[len(each) // 2] * 0.9 + 1e-3
    for per_layer, clipping in ((False, Flat(bound)), (True, PerLayer(bound))):
        expected = clipped_by_hand(each, bound, per_layer)
        assert_same(
            ClippedSum(module, losses, clipping)([batch]), expected, 1e-4 * bound * len(each)
        )


def assert_same(found, expected, tolerance):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=tolerance, msg=name)
