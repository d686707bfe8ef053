"""Canaries in one run: they take the real path, and tell honest runs from broken ones."""

import math

import audit_cases
import numpy as np
import pytest
import torch
from torch import nn

from graphveil._observing import Observer, observe
from graphveil.audit import bounds
from graphveil.audit.canaries import Canaries, Law, block_sizes, draw_directions
from graphveil.audit.one_run import audit_run, audit_steps, count_correct, plan_guesses
from graphveil.grads import step as steps_module
from graphveil.grads.examples import TensorExamples
from graphveil.grads.step import PrivateStep, make_private
from graphveil.mechanisms import Gaussian
from graphveil.methods import METHODS
from graphveil.privacy.accounting import delta_of
from graphveil.privacy.events import SampledGaussianDpEvent, repeated
from graphveil.rng import secret, seeded

DELTA = 1e-5


def make_step(*, hidden=40, seed=3, clipping="flat", **settings):
    """A step on made-up rows; ``hidden`` decides how many canaries there is room for."""
    generator = torch.Generator().manual_seed(1)
    rows = torch.randn(30, 6, generator=generator), torch.arange(30) % 3
    torch.manual_seed(2)
    module = nn.Sequential(nn.Linear(6, hidden), nn.Tanh(), nn.Linear(hidden, 3))
    settings = {"sample_rate": 1.0, "steps": 3, "target_epsilon": 8.0, **settings}
    if settings["target_epsilon"]:
        settings["target_delta"] = DELTA
    return make_private(
        module,
        torch.optim.SGD(module.parameters(), lr=0.1),
        rows,
        clipping=clipping,
        rng=secret(fixed_seed=seed),
        **settings,
    )


def equip(step, **settings):
    """The same step with canaries, and their observer."""
    how = {"canaries": 50, "kinds": ("removed", "altered"), "seed": 4} | settings
    observer = Canaries(**how)

    class Part:
        name, sampling, noise_multiplier = "steps", step._sampling, step.noise_multiplier

    step.clipped, step.examples = observer.equip(Part, step.clipped, step.examples)
    return observer


def by_bound(findings, kind="removed"):
    """The findings of one kind of canaries, by their bounds."""
    return {finding.bound: finding for finding in findings if finding.name.startswith(kind)}


# --- the path -------------------------------------------------------------------------------------


@pytest.mark.parametrize("clipping", ["flat", "per_layer", "automatic", "quantile"])
def test_canaries_outside_add_nothing(clipping):
    plain, step = make_step(clipping=clipping), make_step(clipping=clipping)
    (trial,) = equip(step, kinds=["removed"]).trials
    for group in trial.groups:
        group.inside[:] = False
    step.examples._deliver()
    drawn = torch.arange(len(step.examples))
    total, vector = step.sum_terms(drawn)
    expected, expected_vector = plain.sum_terms(torch.arange(len(plain.examples)))
    assert torch.equal(vector, expected_vector)
    assert all(torch.equal(total[name], value) for name, value in expected.items())
    assert step.clipped.loss == plain.clipped.loss
    assert step.clipped.seen == len(drawn)


@pytest.mark.parametrize("clipping", ["flat", "per_layer", "automatic", "quantile"])
def test_gradients_of_canaries_are_orthogonal_and_as_long_as_the_bound(clipping):
    step = make_step(clipping=clipping, removed=1, altered=2)
    (trial,) = equip(step, canaries=30).trials
    real = len(step.examples.inner)
    vectors = []
    for number, (group, own) in enumerate([(trial.groups[0], 1), (trial.groups[1], 3)]):
        start = real + number * len(trial.groups[0])  # own terms come first
        for canary in range(len(group)):
            _, vector = step.sum_terms(torch.tensor([start + canary * own + (own == 3)]))
            vectors.append(vector.numpy())
    vectors = np.array(vectors)
    inside = np.concatenate([trial.groups[0].inside, np.ones(len(trial.groups[1]), bool)])
    norms = np.linalg.norm(vectors, axis=1)
    assert np.allclose(norms[inside], 1.0, atol=1e-6)
    assert norms[inside].max() <= 1 + 1e-12
    assert not norms[~inside].any()
    if clipping == "quantile":
        vectors = vectors[:, :-1]  # all are beyond the bound, and are counted so
    gram = vectors @ vectors.T
    assert np.abs(gram - np.diag(np.diag(gram))).max() < 1e-12


def test_altered_canaries_have_the_worst_pair():
    step = make_step(removed=1, altered=2)
    (trial,) = equip(step, kinds=["altered"]).trials
    (group,), (law,) = trial.groups, trial.laws
    assert (law.own, law.receivers) == (1, 2)
    _, vector = step.sum_terms(torch.arange(len(step.examples)))
    _, others = step.sum_terms(torch.arange(30))
    seen = trial.sum.directions.project((vector - others).numpy())
    assert np.allclose(seen, np.where(group.inside, 3.0, -2.0), atol=1e-9)


def test_a_delivery_throws_a_coin_for_every_receiver_and_step():
    step = make_step(sample_rate=0.5, removed=1, altered=3, target_epsilon=None, noise_multiplier=1)
    object.__setattr__(step._sampling, "delivery", 0.25)
    (trial,) = equip(step, canaries=100, kinds=["altered"]).trials
    signs = []
    for number in range(200):
        step.examples.begin(number)
        signs.append(step.examples.signs.reshape(100, 4))
    signs = np.array(signs)
    inside = trial.groups[0].inside
    assert (signs[:, :, 0] == inside).all()
    assert set(np.unique(signs[:, inside, 1:])) == {0.0, 1.0}
    assert set(np.unique(signs[:, ~inside, 1:])) == {-1.0, 0.0}
    share = np.abs(signs[:, :, 1:]).mean()
    assert abs(share - 0.25) < 4 * math.sqrt(0.25 * 0.75 / 60_000)
    assert trial.laws[0].receiver_rate == 0.125


@pytest.mark.parametrize("apart", [False, True])
def test_directions_are_orthonormal(apart):
    sizes = {"first": 12, "second": 7}
    rows = draw_directions(sizes, apart=apart, rng=seeded(1).generator())
    dense = np.zeros((len(rows.places), 19))
    np.put_along_axis(dense, rows.places, rows.values, 1)
    assert np.allclose(dense @ dense.T, np.eye(len(dense)))
    assert len(dense) == (7 if apart else 19)
    if apart:
        assert np.allclose((dense[:, :12] ** 2).sum(1), 0.5)


def test_steps_with_canaries_are_still_of_their_kind():
    step = make_step()
    equip(step)
    assert isinstance(step.examples, TensorExamples)
    assert len(step.examples) == 30 + 50
    assert step.clipped.module is step.module
    assert block_sizes(step.module) == {"0": 280, "2": 123}


@pytest.mark.parametrize(("rate", "removed", "altered"), [(1.0, 1, 0), (0.3, 1, 0), (0.4, 1, 2)])
def test_scores_have_the_law_that_is_charged(rate, removed, altered):
    step = make_step(hidden=200, sample_rate=rate, removed=removed, altered=altered, steps=10)
    kinds = ["altered" if altered else "removed"]
    observer = equip(step, canaries=2000, kinds=kinds)
    with observe(observer):
        for _ in range(10):
            step()
    (trial,) = observer.trials
    (group,), (law,) = trial.groups, trial.laws
    assert trial.taken == 10
    for inside, mean, variance in zip((True, False), law.means, law.variances, strict=True):
        sums = group.sums[group.inside == inside]
        assert abs(sums.mean() - 10 * mean) < 4 * math.sqrt(10 * variance / len(sums))
        assert abs(sums.var() / (10 * variance) - 1) < 4 * math.sqrt(2 / len(sums))
    event = repeated(
        SampledGaussianDpEvent(
            rate=rate, noise_multiplier=law.noise, removed=removed, altered=altered
        ),
        10,
    )
    right = ((group.likelihoods > 0) == group.inside).mean()
    best = (1 + delta_of(event, 0.0)) / 2  # of all tests there are
    assert abs(right - best) < 4 * math.sqrt(best * (1 - best) / len(group))


def test_the_likelihood_ratio_of_all_terms_is_linear():
    law = Law(own=1, receivers=2, rate=1.0, receiver_rate=1.0, noise=2.0)
    x = np.linspace(-3, 3, 7)
    assert np.allclose(law.log_ratio(x), (x - 0.5) * 5 / 4, atol=1e-9)
    assert math.isclose(law.separation(16), 5 / 2 * 4, rel_tol=1e-3)


# --- guesses --------------------------------------------------------------------------------------


def test_guesses_are_made_at_both_ends():
    scores = np.array([3.0, -2.0, 1.0, -1.0, 0.5])
    inside = np.array([True, False, True, True, False])
    assert count_correct(scores, inside, 2) == 2
    assert count_correct(scores, inside, 4) == 3
    assert count_correct(scores, inside, 5) == 3


def test_the_number_of_guesses_is_known_before_the_run():
    few = plan_guesses(5000, 1.7, DELTA, 0.95)
    assert few < 1000
    assert few == plan_guesses(5000, 1.7, DELTA, 0.95)
    assert plan_guesses(5000, 0.2, DELTA, 0.95) > few


# --- honest runs ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", audit_cases.PRIVATE)
def test_honest_methods_hold(name):
    findings = audit_run(
        audit_cases.make(name),
        audit_cases.data_of(name),
        rng=secret(fixed_seed=5),
        progress=False,
    )
    assert findings
    assert all(finding.holds for finding in findings), findings
    assert all(finding.kind == "run" for finding in findings)
    assert len({finding.name for finding in findings}) == len(findings)


@pytest.mark.parametrize("seed", range(4))
def test_an_honest_step_is_bounded_from_below_and_above(seed):
    findings = by_bound(audit_steps(make_step(hidden=300, seed=seed), delta=DELTA, seed=seed))
    assert all(finding.holds for finding in findings.values())
    assert findings["normal scores"].epsilon_at_least > 7
    assert findings["agnostic one-run"].epsilon_at_least > 2
    assert findings["normal scores"].figures["proven"] <= 8


def test_altered_canaries_show_more_than_half():
    step = make_step(hidden=200, sample_rate=0.5, removed=1, altered=2)
    findings = by_bound(audit_steps(step, delta=DELTA), "altered")
    assert all(finding.holds for finding in findings.values())
    assert findings["family of the event"].epsilon_at_least > 4


def test_batches_of_a_fixed_size_hold():
    step = make_step(batch_size=10, sample_rate=None, fixed_size=True)
    findings = audit_steps(step, delta=DELTA)
    assert all(finding.holds for finding in findings)


def test_a_method_stays_as_it_is():
    method = audit_cases.make("dp-mlp")
    audit_run(method, audit_cases.data_of("dp-mlp"), progress=False)
    assert not hasattr(method, "network_")


def test_a_fitted_certificate_is_the_same_with_canaries():
    data = audit_cases.data_of("dp-gnn")
    plain, watched = audit_cases.make("dp-gnn"), audit_cases.make("dp-gnn")
    plain.fit(data, progress=False)
    with observe(Canaries(canaries=50, kinds=("removed", "altered"), seed=1)):
        watched.fit(data, progress=False)
    assert watched.certificate_.guarantee == plain.certificate_.guarantee


def test_methods_without_steps_have_no_findings():
    data = audit_cases.data_of("gap")
    assert audit_run(audit_cases.make("gap", unit="edge"), data, progress=False) == []
    mlp = audit_cases.make("dp-mlp")
    assert audit_run(mlp, data, kinds=["altered"], progress=False) == []
    assert audit_steps(make_step(), delta=DELTA, kinds=["altered"]) == []


def test_what_promises_nothing_is_refused():
    data = audit_cases.data_of("mlp")
    with pytest.raises(ValueError, match="private method"):
        audit_run(METHODS["mlp"](), data)
    with pytest.raises(ValueError, match="must be private"):
        audit_steps(make_step(target_epsilon=None, noise_multiplier=0.0), delta=DELTA)
    step = make_step()
    step()
    with pytest.raises(ValueError, match="fresh"):
        audit_steps(step, delta=DELTA)
    with pytest.raises(ValueError, match="kinds"):
        audit_steps(make_step(), delta=DELTA, kinds=["other"])


# --- planted bugs ---------------------------------------------------------------------------------


def halve_noise(step):
    """The noise that is drawn is half of what is charged."""
    return Gaussian(noise_multiplier=step.noise_multiplier / 2, sensitivity=1.0)


def test_half_of_the_noise_is_seen(monkeypatch):
    monkeypatch.setattr(PrivateStep, "_noise", property(halve_noise))
    findings = by_bound(audit_steps(make_step(hidden=400, target_epsilon=1.0), delta=DELTA))
    broken = findings["normal scores"]
    assert not broken.holds
    assert broken.epsilon_at_least > broken.figures["proven"]


def test_half_of_the_noise_is_seen_in_a_method(monkeypatch):
    monkeypatch.setattr(PrivateStep, "_noise", property(halve_noise))
    method = audit_cases.make("graph-split", unit="edge", epsilon=8.0, hidden_channels=400)
    data, rng = audit_cases.data_of("graph-split"), secret(fixed_seed=1)
    findings = audit_run(method, data, rng=rng, progress=False)
    assert not by_bound(findings, "altered")["family of the event"].holds


def test_no_noise_is_seen_whatever_the_mechanism(monkeypatch):
    monkeypatch.setattr(
        steps_module.Gaussian, "release", lambda self, value, rng: show(self, value)
    )
    findings = by_bound(audit_steps(make_step(target_epsilon=1.0), delta=DELTA))
    assert not findings["agnostic one-run"].holds
    assert not findings["ordered one-run"].holds


def show(mechanism, value):
    """What an observer is shown of a release without noise."""
    from graphveil import _observing

    observer = _observing.current() or Observer()
    return torch.as_tensor(observer.release(mechanism, value.numpy(), value.numpy()))


def test_frozen_batches_are_seen(monkeypatch):
    frozen = {}

    def draw(step):
        coins = np.random.default_rng(0).random(len(step.examples)) < step.sample_rate
        return frozen.setdefault(len(coins), torch.from_numpy(coins).nonzero().flatten())

    monkeypatch.setattr(PrivateStep, "_draw", draw)
    step = make_step(hidden=200, sample_rate=0.1, steps=100, target_epsilon=1.0)
    findings = by_bound(audit_steps(step, delta=DELTA))
    assert not findings["ordered one-run"].holds


def test_a_bound_that_clips_to_twice_as_much_is_seen(monkeypatch):
    from graphveil.grads.clipping import Flat

    real = Flat.factors

    def twice(self, squared_norms):
        return {name: 2 * factor for name, factor in real(self, squared_norms).items()}

    monkeypatch.setattr(Flat, "factors", twice)
    findings = by_bound(audit_steps(make_step(hidden=400, target_epsilon=1.0), delta=DELTA))
    assert not findings["normal scores"].holds


# --- many runs ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_bounds_are_too_high_as_rarely_as_they_say():
    too_high, runs = 0, 100
    for seed in range(runs):
        step = make_step(hidden=20, seed=seed, steps=2)
        findings = by_bound(audit_steps(step, delta=DELTA, seed=seed))
        assert all(finding.holds for finding in findings.values())
        exact = findings["normal scores"]
        too_high += exact.epsilon_at_least > exact.figures["proven"]
    assert too_high <= bounds.stats.binom.ppf(0.9999, runs, 0.05)


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [1.0, 4.0, 8.0])
@pytest.mark.parametrize("name", audit_cases.PRIVATE)
def test_every_method_and_unit_holds(name, epsilon):
    data = audit_cases.data_of(name)
    for unit in METHODS[name].units:
        settings = {"unit": unit} if len(METHODS[name].units) > 1 else {}
        if unit in ("edge-directed", "edge-undirected"):
            continue
        method = audit_cases.make(name, epsilon=epsilon, **settings)
        findings = audit_run(method, data, progress=False)
        assert all(finding.holds for finding in findings), findings
