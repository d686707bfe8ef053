"""MLPs: what they are made of, and the identity."""

import pytest
import torch
from torch import nn

from graphveil._errors import InvalidInputError
from graphveil.nn import ACTIVATIONS, MLP
from graphveil.nn.mlp import FUNCTIONS


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("num_layers", [1, 2, 3])
def test_layers_with_activations_between(activation, num_layers):
    mlp = MLP(3, 5, 2, num_layers, activation)
    x = torch.randn(4, 7, 3)
    h = mlp.linears[0](x)
    for linear in mlp.linears[1:]:
        h = linear(FUNCTIONS[activation](h))
    torch.testing.assert_close(mlp(x), h)
    assert h.shape == (4, 7, 2)


def test_norm_and_dropout_stand_between_layers_only():
    mlp = MLP(3, 5, 2, 2, dropout=0.5, norm="layer")
    x = torch.randn(40, 3)  # 200 hidden numbers: two masks are never the same
    assert not torch.equal(mlp(x), mlp(x))
    mlp.eval()
    hidden = torch.tanh(nn.functional.layer_norm(mlp.linears[0](x), (5,)))
    torch.testing.assert_close(mlp(x), mlp.linears[1](hidden))
    single = MLP(3, 5, 2, 1, dropout=0.9, norm="layer")
    assert torch.equal(single(x), single.linears[0](x))


def test_no_layers_are_the_identity():
    x = torch.randn(4, 3)
    assert MLP(3, 5, 3, 0)(x) is x
    assert not list(MLP(3, 5, 3, 0, norm="layer").parameters())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((3, 5, 2, 0), "'out_channels' must be 3"),
        ((3, 5, 2, -1), "'num_layers'"),
        ((3, 0, 2, 2), "'channels'"),
        ((3, 5, 2, 2, "sine"), "'activation'"),
        ((3, 5, 2, 2, "tanh", 1.0), "'dropout'"),
        ((3, 5, 2, 2, "tanh", 0.0, "batch"), "'norm'"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments, words):
    with pytest.raises(InvalidInputError, match=words):
        MLP(*arguments)
