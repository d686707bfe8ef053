"""The recipe of Daigavane et al.: what it claims, what is proven for it, and what it runs."""

import math

import pytest
import torch
from methods_cases import graph, made, recorded, weights
from torch.nn import functional as F

from graphveil._errors import BudgetError, GraphveilError, UnprovenError
from graphveil.grads.clipping import PerLayer
from graphveil.grads.step import PrivateStep
from graphveil.graph.neighbourhoods import RootedTerms
from graphveil.methods import DPGNN, Facts, execution, terms
from graphveil.privacy.accounting import epsilon_of
from graphveil.privacy.claims import daigavane_epsilon
from graphveil.privacy.events import RevealedCountGaussianDpEvent, repeated

DATA = graph()
FACTS = Facts.of(DATA)


def paper(**settings):
    return made("dp-gnn", paper=True, **({"sender_cap": 3, "sample_rate": 0.2} | settings))


def layers(method, facts=FACTS):
    """The names of a network's layers, and how many parameters each has."""
    found = {}
    for name, parameter in method.build(facts).named_parameters():
        found.setdefault(name.rpartition(".")[0], []).append(parameter.numel())
    return found


def thresholds(method, facts=FACTS):
    return {name: 0.3 * (place + 1) for place, name in enumerate(layers(method, facts))}


@pytest.mark.parametrize("target", [1.0, 8.0, 20.0])
def test_the_claim_is_the_epsilon_that_was_asked_for(target):
    method = paper(epsilon=target)
    plan = method.plan(FACTS)
    assert plan.claim.epsilon == pytest.approx(target, abs=1e-3)
    assert "Daigavane" in plan.claim.source
    # And it is the theorem's, for the noise of the run.
    again = daigavane_epsilon(
        FACTS.num_train,
        round(0.2 * FACTS.num_train),
        3,
        plan.details["noise_multiplier"] * len(layers(method)) ** 0.5,
        method.steps,
        plan.delta,
    )
    assert again == pytest.approx(target, abs=1e-3)


def test_the_papers_recipe_has_no_proven_epsilon_and_says_why():
    certificate = paper().fit(DATA).certificate_
    assert math.isinf(certificate.guarantee.epsilon)
    sampler, clipping = certificate.void_because
    assert "sampler" in sampler
    assert "thresholds" in clipping
    assert certificate.claim.epsilon == pytest.approx(8, abs=1e-3)
    assert "claimed by Daigavane" in str(certificate)
    assert "no guarantee" in str(certificate)


@pytest.mark.parametrize(
    "settings, reason", [({"sampler": "senders"}, "thresholds"), ({}, "sampler")]
)
def test_either_of_the_two_flaws_is_enough(settings, reason):
    method = paper(**settings)
    if not settings:
        method.set_params(max_grad_norm=thresholds(method))
    plan = method.plan(FACTS)
    assert math.isinf(plan.epsilon)
    (why,) = plan.void_because
    assert reason in why


def test_the_papers_sampler_is_void_outside_the_paper_mode_too():
    plan = made("dp-gnn", sampler="paper").plan(FACTS)
    assert math.isinf(plan.epsilon)
    assert plan.claim is None


@pytest.mark.parametrize("conv", ["gcn", "gin", "gat", "sage"])
def test_with_capped_senders_and_given_thresholds_there_is_a_proven_epsilon(conv):
    method = paper(sampler="senders", conv=conv)
    method.set_params(max_grad_norm=thresholds(method)).fit(DATA)
    certificate, count = method.certificate_, len(layers(method))
    sigma = method._paper_noise(FACTS, method.plan_.delta)
    step = RevealedCountGaussianDpEvent(
        noise_multiplier=sigma / count**0.5,
        removed=1,
        altered=3,
        population=FACTS.num_train,
        batch=round(0.2 * FACTS.num_train),
    )
    assert not certificate.void_because
    assert certificate.event == repeated(step, method.steps)
    proven = epsilon_of(repeated(step, method.steps), certificate.guarantee.delta)
    assert certificate.guarantee.epsilon == pytest.approx(proven, rel=1e-9)
    assert certificate.guarantee.epsilon == method.plan_.epsilon
    assert certificate.claim.epsilon == pytest.approx(8, abs=1e-3)


def test_batches_have_a_fixed_size_and_are_drawn_anew(monkeypatch):
    drawn, draw = [], PrivateStep._draw
    monkeypatch.setattr(PrivateStep, "_draw", lambda self: drawn.append(draw(self)) or drawn[-1])
    seen = recorded(monkeypatch)
    paper(steps=20).fit(DATA)
    assert {len(batch) for batch in drawn} == {9}
    assert all(len(batch.unique()) == 9 for batch in drawn)
    assert len({tuple(sorted(batch.tolist())) for batch in drawn}) > 15
    assert not seen.coins
    assert len(seen.keys) == 20


def silent(network, batch):
    around, labels = batch
    return 0 * F.cross_entropy(network(around), labels, reduction="none")


def test_the_noise_on_each_layer_is_the_papers(monkeypatch):
    """One step of SGD without a gradient: layer l moves by noise of deviation sigma C_l."""
    data = graph(features=60)
    facts = Facts.of(data)
    shape = {"steps": 1, "optimizer": "sgd", "learning_rate": 0.5, "hidden_channels": 64}
    method = paper(sampler="senders", decoder_layers=2, **shape)
    bounds = thresholds(method, facts)
    monkeypatch.setattr(terms, "node_losses", lambda task: silent)
    method.set_params(max_grad_norm=bounds).fit(data)
    sigma = method._paper_noise(facts, method.plan_.delta)
    batch = round(0.2 * facts.num_train)
    first = dict(method.build(facts).named_parameters())
    moved = {}
    for name, parameter in method.network_.named_parameters():
        change = (parameter - first[name]).detach().flatten() * batch / 0.5
        moved.setdefault(name.rpartition(".")[0], []).append(change)
    assert len(moved) == 3
    for name, parts in moved.items():
        noise = torch.cat(parts)
        tolerance = 5 / (2 * len(noise)) ** 0.5
        assert noise.std().item() == pytest.approx(sigma * bounds[name], rel=tolerance), name


def test_thresholds_are_quantiles_of_the_first_gradients(monkeypatch):
    found = []

    class Noted(PrivateStep):
        def __init__(self, clipped, *args, sampling, **named):
            found.append((clipped.clipping, sampling))
            super().__init__(clipped, *args, sampling=sampling, **named)

    monkeypatch.setattr(execution, "PrivateStep", Noted)
    method = paper(steps=1).fit(DATA)
    ((clipping, sampling),) = found
    assert sampling.fixed_batch == round(0.2 * FACTS.num_train)
    assert isinstance(clipping, PerLayer)
    assert clipping.max_grad_norm.keys() == layers(method).keys()
    # By hand: a gradient for each term alone.
    network = method.build(FACTS)
    by_hand = RootedTerms(
        method.prepare(DATA),
        DATA.y,
        method.read_in_training(DATA),
        DATA.train_mask.nonzero().flatten(),
        1,
    )
    losses = terms.node_losses(method.task(FACTS))
    norms = {name: [] for name in layers(method)}
    for term in range(len(by_hand)):
        network.zero_grad()
        for batch in by_hand.batches(torch.tensor([term])):
            losses(network, batch).sum().backward()
        for name in norms:
            squares = [p.grad.square().sum() for p in network.get_submodule(name).parameters()]
            norms[name].append(sum(squares).sqrt())
    for name, values in norms.items():
        expected = torch.stack(values).quantile(0.75).item()
        assert clipping.max_grad_norm[name] == pytest.approx(expected, rel=1e-4)


def test_the_first_weights_are_not_touched_by_looking_for_thresholds():
    method = paper(steps=1, learning_rate=1e-12).fit(DATA)
    first = torch.cat([p.detach().flatten() for p in method.build(FACTS).parameters()])
    torch.testing.assert_close(weights(method), first, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    "settings, error",
    [
        ({"num_layers": 2}, UnprovenError),
        ({"unit": "edge"}, UnprovenError),
        ({"relation": "remove", "public_degree": 3}, UnprovenError),
        ({"sender_cap": None}, GraphveilError),
        ({"sender_cap": 45}, GraphveilError),
        ({"sample_rate": 2.0}, GraphveilError),
        ({"steps": 0}, GraphveilError),
        ({"epsilon": 1e-9}, BudgetError),
        ({"epsilon": 1e300}, BudgetError),
        ({"epsilon": -1}, GraphveilError),
    ],
)
def test_what_the_theorem_does_not_cover_is_refused(settings, error):
    with pytest.raises(error) as refusal:
        paper(**settings).plan(FACTS)
    assert "\n" not in str(refusal.value)


def test_a_paper_mode_is_no_default():
    assert DPGNN(epsilon=8.0).plan(FACTS).claim is None
    assert DPGNN(epsilon=8.0)._sampler == "senders"
    assert DPGNN(epsilon=8.0, paper=True)._sampler == "paper"


def test_the_certificate_names_the_flaw_of_what_ran():
    method = paper(sampler="senders")
    ours = method.set_params(max_grad_norm=thresholds(method)).plan(FACTS)
    assert "sqrt(L)" in ours.claim.why_it_differs
    assert "Algorithm 2" in paper().plan(FACTS).claim.why_it_differs
    assert ours.details["batch_size"] == paper()._batch(FACTS)
    assert "batch_size" not in DPGNN(epsilon=8.0).plan(FACTS).details
