"""What runs is what is charged: real fits, with every draw and every release written down."""

import signal
import subprocess
import sys

import dp_accounting as dpa
import numpy as np
import pytest
import torch
from methods_cases import PRIVATE, changed, graph, made, recorded, weights
from torch.nn import functional as F

from graphveil._errors import (
    BudgetError,
    GraphveilError,
    InvalidInputError,
    RefusedError,
    UnprovenError,
)
from graphveil.grads.step import PrivateStep
from graphveil.graph.neighbourhoods import RootedTerms
from graphveil.mechanisms import Gaussian
from graphveil.methods import Facts, terms
from graphveil.methods.checkpoint import Checkpoint
from graphveil.privacy.accounting import epsilon_of
from graphveil.privacy.events import SampledGaussianDpEvent, composed, repeated
from graphveil.rng import secret, seeded

DATA = graph()
FACTS = Facts.of(DATA)
VARIANTS = {
    "dp-gnn": {"delivery": 1.0},
    "dp-gnn, two layers": {"num_layers": 2, "sender_cap": 2},
    "dp-gnn, edges": {"unit": "edge"},
    "dp-gnn, removal": {"relation": "remove", "public_degree": 20},
    "late-graph": {},
    "late-graph, sampled": {"num_layers": 2, "sample_rate": 0.5},
    "dp-mlp": {"optimizer": "sgd", "sample_rate": 1.0},
}
SUMS = {"late-graph": ["counts", "mean"], "dp-mlp": ["mean"]}  # released before the steps
# Steps of two layers, and nothing else that is released.
STEPS_ALONE = {"centred": False, "num_layers": 2}


def variant(key, **settings):
    return made(key.split(",")[0], **(VARIANTS[key] | settings))


# --- steps ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", VARIANTS)
def test_the_events_seen_are_the_events_charged(key, monkeypatch):
    seen = recorded(monkeypatch)
    method = variant(key).fit(DATA)
    *sums, _ = method.plan_.parts
    assert [part.name for part in sums] == SUMS.get(method.name, [])
    for part, (mechanism, _, rng) in zip(sums, seen.releases, strict=False):
        assert rng.void_reason is None
        assert mechanism == part.mechanism
    steps = seen.releases[len(sums) :]
    assert len(steps) == len(seen.coins) == method.steps
    removed, altered = method.influence(FACTS)
    events = []
    for (mechanism, value, rng), (rate, coins) in zip(steps, seen.coins, strict=True):
        assert rng.void_reason is None
        assert mechanism.sensitivity == 1.0  # in units of the clipping bound
        assert len(value) == weights(method).numel()  # noise on every coordinate, in one release
        assert len(coins) == FACTS.num_train
        events.append(
            SampledGaussianDpEvent(
                rate=rate,
                noise_multiplier=mechanism.noise_multiplier,
                removed=removed,
                altered=altered,
            )
        )
    assert len(set(events)) == 1
    certificate = method.certificate_
    released = [dpa.GaussianDpEvent(part.mechanism.noise_multiplier) for part in sums]
    charged = [charge.event for charge in certificate.charges]
    assert charged == [*released, repeated(events[0], len(events))]
    spent = epsilon_of(composed(*released, *events), certificate.guarantee.delta)
    assert certificate.guarantee.epsilon == pytest.approx(spent, rel=1e-9)


def test_only_the_drawn_terms_are_read(monkeypatch):
    seen, read = recorded(monkeypatch), []
    batches = RootedTerms.batches

    def note(self, drawn):
        read.append(sorted(drawn.tolist()))
        return batches(self, drawn)

    monkeypatch.setattr(RootedTerms, "batches", note)
    made("dp-gnn", delivery=1.0).fit(DATA)
    assert read == [coins.nonzero()[0].tolist() for _, coins in seen.coins]


@pytest.mark.parametrize("name", PRIVATE)
def test_batches_are_poisson_with_the_planned_rate(name, monkeypatch):
    seen = recorded(monkeypatch)
    # Coins of terms alone, and of groups where there are some.
    alone = {"dp-gnn": {"delivery": 1.0}, "graph-split": {"clip_by": "group"}}.get(name, {})
    made(name, steps=100, sample_rate=0.3, **alone).fit(DATA)
    assert {rate for rate, _ in seen.coins} == {0.3}
    coins = np.stack([drawn for _, drawn in seen.coins])
    deviation = (0.3 * 0.7 / coins.size) ** 0.5
    assert abs(coins.mean() - 0.3) < 5 * deviation
    sizes = coins.sum(1)
    expected = coins.shape[1] * 0.3 * 0.7
    assert coins.shape[1] == (10 if name == "graph-split" else FACTS.num_train)  # its groups
    assert 0.5 * expected < sizes.var() < 1.8 * expected  # neither fixed nor all together
    each = coins.mean(0)  # nobody is always in, nobody never
    assert each.min() > 0.05
    assert each.max() < 0.6


def test_an_empty_batch_releases_noise_like_any_other(monkeypatch):
    seen = recorded(monkeypatch)
    method = made("dp-gnn", sample_rate=1e-9).fit(DATA)
    assert len(seen.releases) == method.steps
    assert all((value == 0).all() for _, value, _ in seen.releases)
    assert not torch.equal(weights(method), initial(method))


def test_fewer_steps_taken_are_fewer_steps_charged():
    method = made("dp-mlp", centred=False).fit(DATA, progress=lambda steps: list(steps)[:2])
    assert method.certificate_.event.count == 2
    assert method.certificate_.guarantee.epsilon < method.plan_.epsilon


# --- noise ----------------------------------------------------------------------------------------


def initial(method):
    return torch.cat([p.detach().flatten() for p in method.build(method.plan_.facts).parameters()])


def silent(network, batch):
    around, labels = batch
    return 0 * F.cross_entropy(network(around), labels, reduction="none")


@pytest.mark.parametrize("name", ["dp-gnn", "dp-mlp"])
@pytest.mark.parametrize(
    "clipping, scale",
    [("flat", 1.0), ("per_layer", 2**0.5), ("automatic", 1.0), ("quantile", 0.99**-0.5)],
)
def test_the_noise_in_the_weights_is_the_noise_of_the_plan(name, clipping, scale, monkeypatch):
    """One step of SGD without a gradient: weights move by the noise, a known multiple of it."""
    monkeypatch.setattr(terms, "node_losses", lambda task, weights: silent)
    data = graph(features=60)
    method = made(
        name,
        clipping=clipping,
        max_grad_norm=0.7,
        steps=1,
        optimizer="sgd",
        learning_rate=0.5,
        hidden_channels=64,
        **(STEPS_ALONE if name == "dp-mlp" else {}),
    ).fit(data)
    plan = method.plan_.details
    expected_batch = plan["sample_rate"] * method.plan_.facts.num_train
    moved = (weights(method) - initial(method)) * expected_batch / 0.5
    charged = plan["noise_multiplier"] * 0.7 * scale
    assert len(moved) > 3800  # standard error 1.2 %
    assert moved.std().item() == pytest.approx(charged, rel=0.06)
    assert abs(moved.mean().item()) < 5 * charged / len(moved) ** 0.5


@pytest.mark.parametrize("clipping", ["flat", "per_layer", "automatic", "quantile"])
def test_what_one_node_adds_to_the_sum_is_within_the_bound(clipping, monkeypatch):
    """The sum handed to the mechanism, over all terms and without one of them."""
    monkeypatch.setattr(PrivateStep, "_draw", lambda self: torch.arange(len(self.examples)))
    seen = recorded(monkeypatch)
    method = made("dp-mlp", clipping=clipping, max_grad_norm=0.01, steps=1, **STEPS_ALONE)
    method.fit(DATA)
    for place in range(5):
        train_mask = DATA.train_mask.clone()
        train_mask[train_mask.nonzero()[place]] = False
        method.fit(changed(DATA, train_mask=train_mask))
    (_, whole, _), *others = seen.releases
    apart = [(whole - value).norm().item() for _, value, _ in others]
    assert max(apart) <= 1 + 1e-5
    assert max(apart) > 0.9  # all gradients are longer than 0.01


def test_per_layer_thresholds_may_differ():
    network = made("dp-mlp", **STEPS_ALONE).build(FACTS)
    names = sorted({name.rpartition(".")[0] for name, _ in network.named_parameters()})
    bounds = {name: 0.1 * (place + 1) for place, name in enumerate(names)}
    by_layer = {"clipping": "per_layer"} | STEPS_ALONE
    method = made("dp-mlp", max_grad_norm=bounds, **by_layer).fit(DATA)
    assert method.certificate_.guarantee.epsilon <= 8
    with pytest.raises(GraphveilError, match=r"max_grad_norm"):
        made("dp-mlp", max_grad_norm={names[0]: 1.0}, **by_layer).fit(DATA)


def test_averaging_costs_nothing_and_is_over_the_last_steps(monkeypatch):
    plans = {made("dp-mlp", averaged=share).plan(FACTS).epsilon for share in (0.0, 0.5, 1.0)}
    assert len(plans) == 1
    after, take = [], PrivateStep.__call__

    def note(self):
        take(self)
        after.append(torch.cat([p.detach().flatten() for p in self.module.parameters()]))

    monkeypatch.setattr(PrivateStep, "__call__", note)
    for share, last in ((0.0, 1), (0.5, 2), (1.0, 4)):
        after.clear()
        method = made("dp-mlp", averaged=share, steps=4, centred=False).fit(DATA)
        assert len(after) == 4
        torch.testing.assert_close(weights(method), torch.stack(after[-last:]).mean(0))
        assert share == 0 or not torch.allclose(weights(method), after[-1])


# --- streams --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PRIVATE)
def test_a_fixed_stream_voids_the_certificate(name):
    fits = [made(name).fit(DATA, rng=secret(fixed_seed=3)) for _ in range(2)]
    assert torch.equal(weights(fits[0]), weights(fits[1]))
    certificate = fits[0].certificate_
    assert certificate.guarantee.epsilon == float("inf")
    assert any("fixed" in reason for reason in certificate.void_because)


@pytest.mark.parametrize("rng", [seeded(1), np.random.default_rng(1), torch.Generator()])
def test_noise_from_another_stream_is_refused(rng):
    with pytest.raises(RefusedError, match="secret stream"):
        made("dp-mlp").fit(DATA, rng=rng)


# --- noisy prediction -----------------------------------------------------------------------------


@pytest.mark.parametrize("key", [key for key in VARIANTS if key != "dp-mlp"])
def test_every_noisy_prediction_is_one_more_release_and_one_more_charge(key, monkeypatch):
    method = variant(key).fit(DATA)
    trained = method.certificate_
    seen = recorded(monkeypatch)
    for _ in range(2):
        method.predict_proba(DATA, mode="noisy", epsilon=2.0)  # thrown away, and charged
    (first, value, rng), (second, *_) = seen.releases
    assert rng.void_reason is None
    assert value.shape == (FACTS.num_nodes, FACTS.num_classes)
    one = dpa.GaussianDpEvent(first.noise_multiplier)
    assert first == second
    assert epsilon_of(one, method.plan_.delta) <= 2.0
    certificate = method.certificate_
    assert certificate.charges[:-2] == trained.charges
    assert [charge.event for charge in certificate.charges[-2:]] == [one, one]
    spent = epsilon_of(composed(trained.event, one, one), method.plan_.delta)
    assert certificate.guarantee.epsilon == pytest.approx(spent, rel=1e-9)
    assert certificate.guarantee.epsilon > trained.guarantee.epsilon


def test_the_noise_of_a_prediction_is_the_noise_charged():
    nodes = 3000
    data = graph(nodes=nodes, edges=1)
    data.edge_index = torch.empty(2, 0, dtype=torch.long)
    method = made("late-graph").fit(data)
    with torch.no_grad():
        for parameter in method.network_.parameters():
            parameter.zero_()
    found = method.predict_proba(data, mode="noisy", epsilon=1.0).double().log()
    charged = method.certificate_.charges[-1].event.noise_multiplier  # of sensitivity 1
    heard = (found - found.mean(1, keepdim=True)) * (1 + charged**2) / 2
    # Centring takes one of three degrees of freedom away.
    assert heard.square().sum().item() / (2 * nodes) == pytest.approx(charged**2, rel=0.08)


def test_a_prediction_in_the_open_is_no_release(monkeypatch):
    method = made("late-graph").fit(DATA)
    seen, before = recorded(monkeypatch), method.certificate_
    for mode in ("visible", "disjoint"):
        method.predict(DATA, mode=mode)
    method.score(DATA)
    assert not seen.releases
    assert method.certificate_.charges == before.charges


def test_a_noisy_prediction_is_charged_even_if_it_fails_after_the_release(monkeypatch):
    method = made("late-graph").fit(DATA)

    def failing(self, value, rng):
        raise MemoryError

    monkeypatch.setattr(Gaussian, "release", failing)
    trained = method.certificate_.charges
    with pytest.raises(MemoryError):
        method.predict(DATA, mode="noisy", epsilon=1.0)
    assert len(method.certificate_.charges) == len(trained) + 1
    assert method.certificate_.charges[:-1] == trained


def test_a_noisy_prediction_of_a_void_run_stays_void():
    method = made("late-graph").fit(DATA, rng=secret(fixed_seed=3))
    method.predict(DATA, mode="noisy", epsilon=1.0)
    assert method.certificate_.guarantee.epsilon == float("inf")


# --- killed and resumed ---------------------------------------------------------------------------

KILLED = """
import os, signal, sys
sys.path.insert(0, {here!r})
from graphveil.mechanisms import Gaussian
from methods_cases import graph, made

release, calls = Gaussian.release, []

def kill(self, value, rng):
    calls.append(1)
    if len(calls) == {at}:
        os.kill(os.getpid(), signal.SIGKILL)
    return release(self, value, rng)

Gaussian.release = kill
made({name!r}, steps=25).fit(graph(), directory={directory!r})
"""


def killed(name, directory, at):
    """A run in a process of its own, killed in the middle of step ``at``."""
    here = str(__file__).rpartition("/")[0]
    program = KILLED.format(here=here, at=at, name=name, directory=str(directory))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()


class StoppedError(Exception):
    pass


def stopped(directory, *, after=3, **settings):
    """A run that ends before its last step."""

    def few(steps):
        for number, step in enumerate(steps):
            if number == after:
                raise StoppedError
            yield step

    with pytest.raises(StoppedError):
        made("dp-gnn", **settings).fit(DATA, directory=directory, progress=few)


@pytest.mark.parametrize(
    ("first", "then"),
    [
        ({"unit": "edge"}, {}),
        ({}, {"unit": "edge"}),
        ({}, {"relation": "remove", "public_degree": 60}),
        (
            {"relation": "remove", "public_degree": 40},
            {"relation": "remove", "public_degree": 60},
        ),
        ({"sampler": "printed"}, {}),
        ({"paper": True}, {}),
    ],
)
def test_steps_charged_for_another_promise_are_not_counted_for_this_one(tmp_path, first, then):
    """One message for an edge is not one message for a node, and no proof comes afterwards."""
    stopped(tmp_path, **first)
    with pytest.raises(UnprovenError, match="another promise"):
        made("dp-gnn", **then).fit(DATA, directory=tmp_path)


def test_steps_begun_are_not_forgotten_where_the_checkpoint_is_lost(tmp_path):
    stopped(tmp_path)
    (tmp_path / "weights" / "checkpoint.pt").unlink()
    with pytest.raises(InvalidInputError, match=r"checkpoint\.pt"):
        made("dp-gnn").fit(DATA, directory=tmp_path)
    assert (tmp_path / "weights" / "steps").stat().st_size == 3
    assert Checkpoint(tmp_path).steps_begun() == 3


def test_a_noisy_prediction_on_a_graph_too_large_for_delta_is_refused_and_not_charged():
    method = made("late-graph").fit(DATA)
    trained = list(method.charges_)
    with pytest.raises(UnprovenError, match="delta"):
        method.predict(graph(nodes=2000), mode="noisy", epsilon=1.0)
    assert method.charges_ == trained


def test_a_row_that_overflows_in_the_network_stops_no_noisy_prediction():
    method = made("late-graph", features="raw", activation="relu").fit(DATA)
    x = DATA.x.clone()
    x[3] = 3e38
    found = method.predict_proba(changed(DATA, x=x), mode="noisy", epsilon=1.0)
    assert found[torch.arange(len(x)) != 3].isfinite().all()


def test_a_killed_run_goes_on_and_every_step_ever_begun_is_charged(tmp_path, monkeypatch):
    killed("dp-gnn", tmp_path, at=14)
    seen = recorded(monkeypatch)
    method = made("dp-gnn", steps=25).fit(DATA, directory=tmp_path)
    assert len(seen.releases) == 25 - 14  # 14 were begun, the last of them perhaps released
    assert method.certificate_ == method.plan_.certificate()
    assert method.certificate_.event.count == 25
    # All of them are spent: another fit from there takes no step, and says so.
    again = made("dp-gnn", steps=25).fit(DATA, directory=tmp_path)
    assert len(seen.releases) == 25 - 14
    assert again.certificate_.event.count == 25


def interrupted(method, directory, after):
    def progress(steps):
        for step in steps:
            if step == after:
                raise KeyboardInterrupt
            yield step

    with pytest.raises(KeyboardInterrupt):
        method.fit(DATA, directory=directory, progress=progress)


def test_other_settings_on_resuming_get_what_the_budget_has_left(tmp_path, monkeypatch):
    interrupted(made("dp-mlp", steps=25, centred=False), tmp_path, 13)
    first = made("dp-mlp", steps=25, centred=False).plan(FACTS).charges[0].event
    seen = recorded(monkeypatch)
    method = made("dp-mlp", steps=10, centred=False).fit(DATA, directory=tmp_path)
    second = method.plan_.charges[0].event
    taken = len(seen.releases)
    assert 0 < taken < 10
    assert method.certificate_.event == composed(
        repeated(first.event, 13), repeated(second.event, taken)
    )
    assert method.certificate_.guarantee.epsilon <= method.epsilon


def test_a_fixed_stream_does_not_go_on(tmp_path):
    interrupted(made("dp-mlp", steps=25), tmp_path, 3)
    with pytest.raises(RefusedError, match="fixed"):
        made("dp-mlp", steps=25).fit(DATA, directory=tmp_path, rng=secret(fixed_seed=1))


def test_another_network_cannot_go_on_from_a_checkpoint(tmp_path):
    interrupted(made("dp-mlp", steps=25, **STEPS_ALONE), tmp_path, 3)
    with pytest.raises(GraphveilError, match="checkpoint"):
        made("dp-mlp", steps=25, hidden_channels=9, **STEPS_ALONE).fit(DATA, directory=tmp_path)


def test_a_finished_run_is_read_back_from_its_directory(tmp_path):
    method = made("dp-mlp", steps=13, averaged=0.0).fit(DATA, directory=tmp_path)
    again = made("dp-mlp", steps=13, averaged=0.0).fit(DATA, directory=tmp_path)
    assert torch.equal(weights(again), weights(method))
    assert again.certificate_ == method.certificate_


def test_a_step_beyond_the_plan_is_refused():
    with pytest.raises(BudgetError):
        made("dp-mlp").fit(DATA, progress=lambda steps: [*steps, 99])
