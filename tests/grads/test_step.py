"""The training step: what runs is what is charged, and every step is charged once."""

import math

import dp_accounting as dpa
import numpy as np
import pytest
import torch
from scipy import stats
from step_cases import COUNT, FEATURES, data, network, parameters, private, silent
from torch import nn
from torch.nn import functional as F

from graphveil._errors import BudgetError, InvalidInputError, RefusedError, UnprovenError
from graphveil.grads import (
    ClippedSum,
    Flat,
    Off,
    PerLayer,
    PrivateStep,
    Quantile,
    Sampling,
    TensorExamples,
    make_clipping,
    make_private,
)
from graphveil.grads import step as step_module
from graphveil.privacy import accounting
from graphveil.privacy.events import SampledGaussianDpEvent, repeated
from graphveil.rng import secret, seeded


def clipped_mean(module, drawn, max_grad_norm, expected):
    """The oracle: one example at a time by autograd, divided by the expected batch size."""
    total = torch.zeros(sum(p.numel() for p in module.parameters()))
    x, y = data()
    for i in drawn:
        loss = F.cross_entropy(module(x[i : i + 1]), y[i : i + 1])
        grads = torch.autograd.grad(loss, list(module.parameters()))
        flat = torch.cat([g.flatten() for g in grads])
        total += flat * min(1.0, max_grad_norm / float(flat.norm()))
    return total / expected


# --- what a step does -------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, 1, 2, 4])
def test_a_step_moves_by_the_clipped_sum_over_the_expected_batch_size(seed):
    step = private(rng=secret(fixed_seed=seed), noise_multiplier=1e-7)
    coins = secret(fixed_seed=seed).bernoulli(0.3, COUNT)
    wanted = clipped_mean(step.module, np.nonzero(coins)[0], 0.5, expected=0.3 * COUNT)
    before = parameters(step)
    step()
    torch.testing.assert_close(before - parameters(step), wanted, atol=1e-6, rtol=1e-5)
    assert coins.sum() != 0.3 * COUNT  # or the test could not tell the divisors apart


@pytest.mark.parametrize("by_example", [False, True])
def test_who_asks_is_told_the_loss_of_every_batch(by_example):
    step = private(sample_rate=1.0)
    step.clipped.by_example = by_example
    wanted, told = [], []
    step.on_loss = told.append
    x, y = data()
    for _ in range(3):
        wanted.append(F.cross_entropy(step.module(x), y).item())
        step()
    np.testing.assert_allclose(told, wanted, rtol=1e-6)
    assert len(set(told)) == 3


def test_the_loss_of_nobody_is_no_number():
    step, told = private(sample_rate=1e-9), []
    step.on_loss = told.append
    step()
    assert len(told) == 1
    assert math.isnan(told[0])


def test_a_step_is_made_of_its_parts_as_make_private_makes_it():
    losses = []

    def steps():
        module = network()
        optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
        yield make_private(
            module,
            optimizer,
            data(),
            sample_rate=0.3,
            noise_multiplier=1.5,
            max_grad_norm=0.5,
            altered=2,
            steps=2,
            rng=secret(fixed_seed=3),
        )
        module = network()
        yield PrivateStep(
            ClippedSum(module, step_module.cross_entropy, make_clipping("flat", 0.5)),
            torch.optim.SGD(module.parameters(), lr=1.0),
            TensorExamples(*data()),
            sampling=Sampling(sample_rate=0.3, noise_multiplier=1.5, altered=2),
            max_steps=2,
            rng=secret(fixed_seed=3),
            on_loss=losses.append,
        )  # fmt: skip

    one, other = steps()
    for step in (one, other):
        step()
        step()
        with pytest.raises(BudgetError, match="2 steps"):
            step()
    assert one.event == other.event
    assert torch.equal(parameters(one), parameters(other))
    assert len(losses) == 2


class Halving(Flat):
    """An adaptive clipping that is no Quantile: it halves its bound after every step."""

    def __init__(self):
        object.__setattr__(self, "max_grad_norm", 1.0)
        object.__setattr__(self, "told", [])

    __setattr__ = object.__setattr__

    def start(self):
        self.told.append("start")

    def count(self):
        return 0.0

    def learn(self, noisy_count, expected_batch):
        self.told.append(expected_batch)
        self.max_grad_norm /= 2


def test_whatever_clipping_adapts_is_started_and_told_the_noisy_count(tmp_path):
    clipping = Halving()
    step = private(clipping=clipping, directory=tmp_path)
    step()
    assert clipping.told == ["start", 0.3 * COUNT]
    step.save(tmp_path)
    again = private(clipping=Halving())
    again.resume(tmp_path)
    assert again.clipped.clipping.max_grad_norm == 0.5


def test_batches_are_fresh_at_every_step():
    step = private(noise_multiplier=1e-7)
    moves = []
    for _ in range(4):
        before = parameters(step)
        step()
        moves.append(before - parameters(step))
        with torch.no_grad():  # back to where it was: the same batch would give the same move
            for p, saved in zip(step.module.parameters(), _split(before, step.module), strict=True):
                p.copy_(saved)
    for i in range(4):
        for j in range(i):
            assert (moves[i] - moves[j]).abs().max() > 1e-4


def _split(flat, module):
    pieces = flat.split([p.numel() for p in module.parameters()])
    return [piece.view_as(p) for piece, p in zip(pieces, module.parameters(), strict=True)]


def noise_of(step, rounds):
    """The noise of each step in units of its standard deviation, (rounds, parameters)."""
    expected = step.sample_rate * COUNT
    scales = torch.cat(
        [
            torch.full((value.numel(),), step.clipped.scales[name])
            for name, value in step.clipped.zeros().items()
        ]
    )
    draws = []
    for _ in range(rounds):
        before = parameters(step)
        step()
        draws.append((before - parameters(step)) * expected / (scales * step.noise_multiplier))
    return torch.stack(draws).double().numpy()


@pytest.mark.parametrize(
    "clipping", [Flat(0.5), PerLayer(0.5), PerLayer({"0": 0.2, "2": 3.0}), Quantile(0.5)]
)
def test_noise_has_the_right_size_on_every_coordinate_and_is_independent(clipping):
    step = private(clipping=clipping, losses=silent, rng=secret(fixed_seed=5))
    if isinstance(clipping, Quantile):
        clipping.learning_rate = 1e-12  # the scale must hold still to be measured
    noise = noise_of(step, 400)
    rounds, coordinates = noise.shape
    assert stats.kstest(noise.flatten(), "norm").pvalue > 1e-3
    spread = (noise**2).sum(axis=0)
    low, high = stats.chi2.ppf([1e-6, 1 - 1e-6], rounds)
    assert ((spread > low) & (spread < high)).all()
    correlation = np.corrcoef(noise.T) - np.eye(coordinates)
    assert np.abs(correlation).max() < 5.5 / math.sqrt(rounds)
    lagged = (noise[1:] * noise[:-1]).mean()
    assert abs(lagged) < 5 / math.sqrt(noise.size)


def test_per_layer_noise_grows_with_the_root_of_the_number_of_layers():
    bounds = {"0": 0.2, "2": 3.0}
    scales = private(clipping=PerLayer(bounds)).clipped.scales
    assert scales["0.weight"] == scales["0.bias"] == pytest.approx(0.2 * math.sqrt(2))
    assert scales["2.weight"] == pytest.approx(3.0 * math.sqrt(2))


def test_an_empty_batch_still_releases_noise():
    step = private(sample_rate=1e-9, rng=secret(fixed_seed=1))
    before = parameters(step)
    step()
    assert step.taken == 1
    assert ((parameters(step) - before) != 0).all()


def test_examples_are_not_asked_for_a_batch_of_none():
    """Most ways to put a batch together fail without a single example."""

    class Stacked(TensorExamples):
        def batches(self, drawn):
            x, y = self.tensors
            yield torch.stack([x[i] for i in drawn]), y[drawn]

    module = network()
    step = make_private(
        module, torch.optim.SGD(module.parameters(), lr=1.0), Stacked(*data()),
        sample_rate=1e-9, noise_multiplier=1.0,
    )  # fmt: skip
    before = parameters(step)
    step()
    assert (parameters(step) != before).all()


def test_a_batch_is_never_truncated():
    seen = []

    class Noted(TensorExamples):
        def batches(self, drawn):
            for batch in super().batches(drawn):
                seen.append(len(batch[0]))
                yield batch

    module = network()
    step = make_private(
        module, torch.optim.SGD(module.parameters(), lr=0.1), Noted(*data(), batch_rows=7),
        sample_rate=1.0, noise_multiplier=1.0,
    )  # fmt: skip
    step()
    assert sum(seen) == COUNT
    assert max(seen) <= 7


def test_cutting_a_batch_into_pieces_changes_nothing():
    moves = []
    for rows in (3, 1000):
        module = network()
        step = make_private(
            module, torch.optim.SGD(module.parameters(), lr=1.0),
            TensorExamples(*data(), batch_rows=rows),
            sample_rate=1.0, noise_multiplier=1e-7, max_grad_norm=0.5, rng=secret(fixed_seed=2),
        )  # fmt: skip
        before = parameters(step)
        step()
        moves.append(before - parameters(step))
    torch.testing.assert_close(moves[0], moves[1], atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        lambda p: torch.optim.Adam(p, lr=0.05),
        lambda p: torch.optim.AdamW(p, lr=0.05),
        lambda p: torch.optim.RMSprop(p, lr=0.05),
    ],
)
def test_any_optimiser_steps_and_learns(optimizer):
    x = torch.randn(500, 2, generator=torch.Generator().manual_seed(0))
    y = (x[:, 0] > 0).long()
    module = nn.Linear(2, 2)
    step = make_private(
        module, optimizer(module.parameters()), (x, y),
        sample_rate=0.5, noise_multiplier=1.0, max_grad_norm=1.0,
    )  # fmt: skip
    for _ in range(60):
        step()
    assert (module(x).argmax(1) == y).float().mean() > 0.9
    assert all(p.grad is None for p in module.parameters())


def test_without_clipping_and_noise_it_is_plain_training():
    step = private(clipping=Off(), noise_multiplier=0.0, sample_rate=1.0)
    x, y = data()
    plain = network()
    optimizer = torch.optim.SGD(plain.parameters(), lr=1.0)
    for _ in range(3):
        step()
        optimizer.zero_grad()
        F.cross_entropy(plain(x), y).backward()
        optimizer.step()
    torch.testing.assert_close(
        parameters(step), torch.cat([p.detach().flatten() for p in plain.parameters()])
    )
    assert accounting.epsilon_of(step.event, 1e-5) == math.inf


def test_the_quantile_is_learnt_from_noisy_counts():
    clipping = Quantile(10.0, quantile=0.5, learning_rate=0.3)
    step = private(clipping=clipping, sample_rate=1.0, noise_multiplier=0.1)
    for p in step.optimizer.param_groups:
        p["lr"] = 1e-6  # the norms stay what they are
    for _ in range(60):
        step()
    x, y = data()
    norms = []
    for i in range(COUNT):
        loss = F.cross_entropy(step.module(x[i : i + 1]), y[i : i + 1])
        grads = torch.autograd.grad(loss, list(step.module.parameters()))
        norms.append(float(torch.cat([g.flatten() for g in grads]).norm()))
    below = np.mean(np.array(norms) <= clipping.max_grad_norm)
    assert 0.35 < below < 0.65


def test_the_count_of_a_quantile_fits_in_the_vector_that_is_charged():
    """Gradient and count of one example, in the units of the noise: norm at most one."""
    clipping = Quantile(0.5, share=0.2)
    clipping.start()
    factor = clipping.factors({"a": torch.tensor([9.0])})["a"]
    gradient = 3.0 * float(factor) / clipping.scales(["a"])["a"]
    assert math.hypot(gradient, clipping.count()) == pytest.approx(1.0, rel=1e-5)


# --- what it is charged -------------------------------------------------------------------------


def test_the_events_of_a_run_add_up_to_its_certificate(monkeypatch):
    released = []
    plain = step_module.Gaussian.release

    def watched(self, value, rng):
        released.append(self.event())
        return plain(self, value, rng)

    monkeypatch.setattr(step_module.Gaussian, "release", watched)
    step = private(removed=1, altered=3)
    for _ in range(12):
        step()
    certificate = step.certificate(unit="node", delta=1e-4)
    assert released == [dpa.GaussianDpEvent(1.5)] * 12
    one = SampledGaussianDpEvent(rate=0.3, noise_multiplier=1.5, removed=1, altered=3)
    assert step.event == certificate.event == repeated(one, 12)
    priced = accounting.epsilon_of(dpa.ComposedDpEvent([one] * 12), 1e-4)
    assert certificate.guarantee.epsilon == pytest.approx(priced, rel=1e-9)


def test_a_target_is_met_and_then_the_budget_is_spent():
    step = private(noise_multiplier=None, target_epsilon=2.0, target_delta=1e-3, steps=5)
    for _ in range(5):
        step()
    assert 1.98 < step.certificate(unit="node", delta=1e-3).guarantee.epsilon <= 2.0
    with pytest.raises(BudgetError, match="covers 5 steps"):
        step()
    assert step.taken == 5


def test_epochs_are_steps_times_rate():
    step = private(noise_multiplier=None, target_epsilon=2.0, target_delta=1e-3, epochs=3)
    assert step.max_steps == 10


def test_a_fixed_stream_voids_the_certificate():
    step = private(rng=secret(fixed_seed=0))
    step()
    certificate = step.certificate(unit="node", delta=1e-3)
    assert certificate.guarantee.epsilon == math.inf
    assert "fixed" in certificate.void_because[0]


def test_a_step_that_fails_halfway_is_charged():
    def losses(module, batch):
        raise ArithmeticError

    step = private(losses=losses, sample_rate=1.0)
    with pytest.raises(ArithmeticError):
        step()
    assert step.taken == 1


# --- planted mistakes: each must show in the tests above ------------------------------------------


def _halve_the_noise(monkeypatch):
    plain = step_module.Gaussian.release

    def halved(self, value, rng):
        return plain(
            type(self)(noise_multiplier=self.noise_multiplier / 2, sensitivity=1), value, rng
        )

    monkeypatch.setattr(step_module.Gaussian, "release", halved)


def _use_the_batch_s_own_size(monkeypatch):
    plain = step_module.PrivateStep._release

    def shrunk(self, drawn):
        expected = self.sample_rate * len(self.examples)
        return {k: v * expected / max(len(drawn), 1) for k, v in plain(self, drawn).items()}

    monkeypatch.setattr(step_module.PrivateStep, "_release", shrunk)


def _drop_the_clip(monkeypatch):
    monkeypatch.setattr(Flat, "factors", Off.factors)


def _reuse_a_batch(monkeypatch):
    coins = secret().bernoulli(0.3, COUNT)
    monkeypatch.setattr("graphveil.rng.SecretStream.bernoulli", lambda *_: coins)


def _skip_empty_batches(monkeypatch):
    plain = step_module.PrivateStep._release

    def skipping(self, drawn):
        return plain(self, drawn) if len(drawn) else self.clipped.zeros()

    monkeypatch.setattr(step_module.PrivateStep, "_release", skipping)


@pytest.mark.parametrize(
    ("mistake", "test"),
    [
        (
            _halve_the_noise,
            lambda: test_noise_has_the_right_size_on_every_coordinate_and_is_independent(Flat(0.5)),
        ),
        (
            _use_the_batch_s_own_size,
            lambda: test_a_step_moves_by_the_clipped_sum_over_the_expected_batch_size(0),
        ),
        (
            _drop_the_clip,
            lambda: test_a_step_moves_by_the_clipped_sum_over_the_expected_batch_size(0),
        ),
        (_reuse_a_batch, test_batches_are_fresh_at_every_step),
        (_skip_empty_batches, test_an_empty_batch_still_releases_noise),
    ],
    ids=["half the noise", "own batch size", "no clip", "same batch", "empty batch skipped"],
)
def test_a_planted_mistake_is_caught(monkeypatch, mistake, test):
    mistake(monkeypatch)
    with pytest.raises(AssertionError):
        test()


# --- beside Opacus ----------------------------------------------------------------------------


def test_the_same_clipped_sums_and_epsilon_as_opacus():
    pytest.importorskip("opacus")
    from opacus import GradSampleModule
    from opacus.accountants import PRVAccountant

    step = private(sample_rate=1.0, noise_multiplier=1e-7)
    x, y = data()
    theirs = GradSampleModule(network(), loss_reduction="sum")
    F.cross_entropy(theirs(x), y, reduction="sum").backward()
    samples = torch.cat([p.grad_sample.flatten(1) for p in theirs.parameters()], 1)
    factor = (0.5 / samples.norm(dim=1)).clamp(max=1.0)
    wanted = factor @ samples
    ours = step.clipped([(x, y)])
    found = torch.cat([value.flatten() for value in ours.values()])
    assert float((found - wanted).abs().max() / wanted.abs().max()) < 1e-5

    accountant = PRVAccountant()
    accountant.history = [(1.5, 0.1, 200)]
    event = repeated(SampledGaussianDpEvent(rate=0.1, noise_multiplier=1.5), 200)
    assert accounting.epsilon_of(event, 1e-5) == pytest.approx(
        accountant.get_epsilon(1e-5), rel=0.01
    )


# --- wrong arguments ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"sample_rate": None}, ["sample_rate", "batch_size"]),
        ({"batch_size": 5}, ["sample_rate", "batch_size"]),
        ({"sample_rate": None, "batch_size": 61}, ["'batch_size'", "61", "[1, 60]"]),
        ({"sample_rate": 1.5}, ["'sample_rate'", "1.5"]),
        ({"sample_rate": 0.0}, ["'sample_rate'", "0.0"]),
        ({"noise_multiplier": None}, ["noise_multiplier", "target_epsilon"]),
        ({"noise_multiplier": -1.0}, ["'noise_multiplier'", "-1.0"]),
        ({"noise_multiplier": None, "target_epsilon": 1.0}, ["target_delta", "steps"]),
        ({"max_grad_norm": 0.0}, ["'max_grad_norm'", "0.0"]),
        ({"clipping": "ghost"}, ["'clipping'", "'ghost'", "'flat'"]),
        ({"removed": -1}, ["'removed'", "-1"]),
        ({"removed": 0}, ["'removed'", "'altered'", "0"]),
        ({"steps": 0}, ["'steps'", "0"]),
        ({"steps": 3, "epochs": 2}, ["'steps'", "'epochs'"]),
        ({"clipping": None}, ["'clipping'", "None", "'flat'"]),
        ({"clipping": Flat}, ["'clipping'", "Flat(1.0)"]),
    ],
)
def test_a_wrong_argument_is_named(settings, words):
    with pytest.raises(InvalidInputError) as caught:
        private(**settings)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_an_optimiser_of_another_module_is_refused():
    with pytest.raises(InvalidInputError, match=r"Missing: 0\.weight"):
        private(optimizer=torch.optim.SGD(network().parameters(), lr=1.0))


def test_an_optimiser_with_other_parameters_is_refused():
    """Also where as many of the module's own are frozen."""
    module = network()
    module[0].requires_grad_(False)
    both = [*module[2].parameters(), *nn.Linear(2, 2).parameters()]
    with pytest.raises(InvalidInputError, match="not the module's: 2"):
        private(module, torch.optim.SGD(both, lr=1.0))


def test_parameters_unfrozen_later_must_be_the_optimiser_s():
    module = network()
    module[0].requires_grad_(False)
    step = private(module, torch.optim.SGD(module[2].parameters(), lr=1.0))
    step()
    module[0].requires_grad_(True)
    with pytest.raises(InvalidInputError, match=r"Missing: 0\.weight"):
        step()
    assert step.taken == 1
    step.optimizer.add_param_group({"params": list(module[0].parameters())})
    before = module[0].weight.clone()
    step()
    assert not torch.equal(module[0].weight, before)


@pytest.mark.parametrize("optimizer", [torch.optim.LBFGS, torch.optim.SparseAdam])
def test_optimisers_that_need_more_than_a_gradient_are_refused(optimizer):
    module = network()
    with pytest.raises(InvalidInputError, match=f"Got {optimizer.__name__}"):
        private(module, optimizer(list(module.parameters())))


def test_gradients_from_elsewhere_are_never_applied():
    module = network()
    module(data()[0]).sum().backward()
    module[0].requires_grad_(False)
    before = module[0].weight.clone()
    private(module, torch.optim.SGD(module.parameters(), lr=1.0))()
    assert torch.equal(module[0].weight, before)


def test_batches_that_repeat_an_example_are_refused():
    class Twice(TensorExamples):
        def batches(self, drawn):
            yield from super().batches(torch.cat([drawn, drawn]))

    module = network()
    step = make_private(
        module, torch.optim.SGD(module.parameters(), lr=1.0), Twice(*data()),
        sample_rate=1.0, noise_multiplier=1.0,
    )  # fmt: skip
    before = parameters(step)
    with pytest.raises(UnprovenError, match="more than once"):
        step()
    assert torch.equal(parameters(step), before)


@pytest.mark.parametrize("name", ["sample_rate", "noise_multiplier"])
def test_what_is_charged_for_cannot_be_changed(name):
    with pytest.raises(AttributeError):
        setattr(private(), name, 0.5)


def test_a_seeded_stream_is_refused():
    with pytest.raises(RefusedError, match="secret stream"):
        private(rng=seeded(1))


@pytest.mark.parametrize("delta", [1 / COUNT, 0.5])
def test_a_delta_of_one_over_the_examples_is_refused(delta):
    with pytest.raises(UnprovenError, match="below 1/n"):
        private(noise_multiplier=None, target_epsilon=2.0, target_delta=delta, steps=2)
    with pytest.raises(UnprovenError, match="below 1/n"):
        private().certificate(unit="node", delta=delta)


def test_a_single_tensor_is_refused():
    module = network()
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    with pytest.raises(InvalidInputError, match="tuple of tensors"):
        make_private(module, optimizer, data()[0], sample_rate=0.1, noise_multiplier=1.0)


@pytest.mark.parametrize(
    "wrong",
    [torch.utils.data.TensorDataset(*data()), {"x": data()[0]}, [data()], (data()[0].numpy(),),
     (data()[0], torch.tensor(1))],
    ids=lambda wrong: type(wrong).__name__,
)  # fmt: skip
def test_examples_that_are_not_tensors_are_refused(wrong):
    module = network()
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    with pytest.raises(InvalidInputError, match="tuple of tensors"):
        make_private(module, optimizer, wrong, sample_rate=0.1, noise_multiplier=1.0)


def test_tensors_of_different_lengths_are_refused():
    with pytest.raises(InvalidInputError, match=r"\[3, 2\]"):
        TensorExamples(torch.zeros(3, 1), torch.zeros(2))


def test_no_examples_are_refused():
    module = network()
    with pytest.raises(InvalidInputError, match="'examples'"):
        make_private(
            module, torch.optim.SGD(module.parameters(), lr=1.0),
            (torch.zeros(0, FEATURES), torch.zeros(0, dtype=torch.long)),
            sample_rate=0.1, noise_multiplier=1.0,
        )  # fmt: skip
