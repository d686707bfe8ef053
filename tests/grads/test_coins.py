"""What a module draws inside a step: from the secret stream, whatever order it is drawn in."""

import random

import numpy as np
import pytest
import torch
from step_cases import CLASSES, FEATURES, data, network, parameters, private
from torch import nn
from torch.nn import functional as F

from graphveil._errors import InvalidInputError
from graphveil.grads import make_private
from graphveil.grads.coins import Dropout, _twister, generator_states, secret_coins, set_generators
from graphveil.rng import secret


class Augmented(nn.Module):
    """Draws from one of the generators that all code shares."""

    def __init__(self, source):
        super().__init__()
        self.lin, self.source = nn.Linear(FEATURES, CLASSES), source

    def forward(self, x):
        return self.lin(x * (0.5 + self.drawn(x)))

    def drawn(self, x):
        if self.source == "torch":
            return torch.rand(x.shape)
        if self.source == "numpy":
            return torch.from_numpy(np.random.random(x.shape)).float()
        return torch.tensor([[random.random() for _ in row] for row in x])


def dropping():
    torch.manual_seed(0)
    hidden = nn.Linear(FEATURES, 8)
    return nn.Sequential(hidden, nn.Tanh(), nn.Dropout(0.5), nn.Linear(8, CLASSES))


def seed_all(seed):
    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)


def shared():
    numpy = np.random.get_state(legacy=True)[1].tobytes()
    return torch.get_rng_state().numpy().tobytes(), numpy, random.getstate()


def after_a_step(module, public, fixed_seed):
    """The weights after a step without noise, with a public seed in every shared generator."""
    step = private(module, noise_multiplier=0, rng=secret(fixed_seed=fixed_seed), sample_rate=1.0)
    seed_all(public)
    step()
    return parameters(step)


MODULES = {
    "dropout": dropping,
    **{name: lambda name=name: Augmented(name) for name in ("torch", "numpy", "python")},
}


@pytest.mark.parametrize("kind", MODULES)
def test_a_public_seed_does_not_reach_what_a_module_draws(kind):
    def weights(public, fixed_seed):
        torch.manual_seed(7)
        return after_a_step(MODULES[kind](), public, fixed_seed)

    same = weights(1, 5)
    assert torch.equal(weights(2, 5), same)  # whatever the seed
    assert not torch.allclose(weights(1, 6), same, atol=1e-6)  # the secret stream decides


def test_the_shared_generators_go_on_as_if_nothing_had_happened():
    seed_all(3)
    step = private(dropping())
    before = shared()
    step()
    assert shared() == before


def test_a_step_that_fails_leaves_the_shared_generators_as_they_were():
    class Failing(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(FEATURES, CLASSES)

        def forward(self, x):
            torch.rand(3)
            raise RuntimeError("no")

    step = private(Failing(), sample_rate=1.0)
    before = shared()
    with pytest.raises(RuntimeError, match="no"):
        step()
    assert shared() == before


def test_what_making_a_batch_draws_is_secret_too():
    class Thinned:
        def __len__(self):
            return 60

        def batches(self, drawn):
            x, y = data()
            yield x[drawn] * torch.rand(len(drawn), FEATURES), y[drawn]

    def weights(public):
        module = network()
        step = make_private(
            module, torch.optim.SGD(module.parameters(), lr=1.0), Thinned(), sample_rate=1.0,
            noise_multiplier=0, rng=secret(fixed_seed=1),
        )  # fmt: skip
        seed_all(public)
        step()
        return parameters(step)

    assert torch.equal(weights(1), weights(2))


def test_all_words_of_the_twister_are_filled():
    """The state is laid out as torch reads it: its numbers are those of numpy's twister."""
    words = np.random.RandomState(1).randint(0, 2**32, 624, dtype=np.uint32)
    theirs = np.random.RandomState()
    theirs.set_state(("MT19937", words, 624, 0, 0.0))
    expected = theirs.randint(0, 2**32, 1500, dtype=np.uint32) & (2**24 - 1)
    before = generator_states()
    try:
        torch.set_rng_state(_twister(words))
        found = torch.rand(1500)
    finally:
        set_generators(before)
    assert (found.double() * 2**24).long().tolist() == expected.tolist()


def test_two_steps_draw_other_numbers():
    found = []
    for _ in range(2):
        with secret_coins(secret()):
            found.append((torch.rand(4).tolist(), np.random.random(), random.random()))
    for one, other in zip(*found, strict=True):
        assert one != other


# --- masks that follow ids ------------------------------------------------------------------------


def masks(layer, ids, width=64):
    return layer(torch.ones(*ids.shape, width), ids)


def test_a_row_has_its_mask_in_any_company_and_any_place():
    layer, ids = Dropout(0.5), torch.arange(100)
    order = torch.randperm(100, generator=torch.Generator().manual_seed(1))
    with secret_coins(secret(fixed_seed=1)):
        whole = masks(layer, ids)
        assert torch.equal(masks(layer, ids[order]), whole[order])
        assert torch.equal(masks(layer, ids[:1]), whole[:1])
        assert torch.equal(masks(layer, ids.view(20, 5)), whole.view(20, 5, 64))


def test_layers_and_steps_have_masks_of_their_own():
    one, other, ids = Dropout(0.5), Dropout(0.5), torch.arange(50)
    stream = secret(fixed_seed=1)
    with secret_coins(stream):
        first, second = masks(one, ids), masks(other, ids)
    with secret_coins(stream):
        later = masks(one, ids)
    assert not torch.equal(first, second)
    assert not torch.equal(first, later)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_keyed_masks_look_like_independent_coins(share):
    with secret_coins(secret(fixed_seed=2)):
        found = masks(Dropout(share), torch.arange(1000), 512)
    kept = (found > 0).double()
    assert set(found.unique().tolist()) == {0.0, float(torch.tensor(1 / (1 - share)))}
    error = 5 * (share * (1 - share) / kept.numel()) ** 0.5
    assert abs(float(kept.mean()) - (1 - share)) < error
    for table in (kept, kept.t()):  # neither rows nor channels follow each other
        centred = table - table.mean(1, keepdim=True)
        centred = centred / centred.norm(dim=1, keepdim=True).clamp_min(1e-9)
        alike = (centred @ centred.t()).triu(1)
        assert float(alike.abs().max()) < 7 / table.shape[1] ** 0.5


def test_outside_a_step_dropout_is_torch_s_own():
    layer, x, ids = Dropout(0.3), torch.ones(20, 6), torch.arange(20)
    torch.manual_seed(1)
    found = layer(x, ids)
    torch.manual_seed(1)
    assert torch.equal(found, F.dropout(x, 0.3))
    assert torch.equal(layer.eval()(x, ids), x)


def test_a_share_that_is_no_probability_is_refused():
    for share in (-0.1, 1.0, float("nan")):
        with pytest.raises(InvalidInputError, match="dropout"):
            Dropout(share)
