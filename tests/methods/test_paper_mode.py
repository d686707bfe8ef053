"""The mechanism of Daigavane et al.: what it claims, what is proven for it, and what it runs."""

import math

import pytest
import torch
from methods_cases import graph, made, recorded, weights
from torch.nn import functional as F

from graphveil._errors import BudgetError, GraphveilError, InvalidInputError, UnprovenError
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
    return made("dp-gnn", **({"paper": True, "sender_cap": 3, "sample_rate": 0.2} | settings))


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
    "settings, reason",
    [
        ({"sampler": "senders"}, "thresholds"),
        ({"sampler": "released"}, "thresholds"),
        ({}, "sampler"),
    ],
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
    plan = made("dp-gnn", sampler="printed").plan(FACTS)
    assert math.isinf(plan.epsilon)
    assert plan.claim is None


@pytest.mark.parametrize(
    ("unit", "void"),
    [
        ({}, False),
        ({"unit": "edge"}, True),
        ({"relation": "remove", "public_degree": 3}, True),
    ],
)
def test_the_released_sampler_has_a_bound_for_a_withheld_node_alone(unit, void):
    plan = made("dp-gnn", sampler="released", sender_cap=3, **unit).plan(FACTS)
    assert bool(plan.void_because) is math.isinf(plan.epsilon) is void
    with pytest.raises(UnprovenError, match="one layer"):
        made("dp-gnn", sampler="released", num_layers=2).plan(FACTS)


@pytest.mark.parametrize("sampler", ["senders", "released"])
@pytest.mark.parametrize("conv", ["gcn", "gin", "gat", "sage"])
def test_with_capped_senders_and_given_thresholds_there_is_a_proven_epsilon(conv, sampler):
    method = paper(sampler=sampler, conv=conv)
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
    monkeypatch.setattr(terms, "node_losses", lambda task, weights: silent)
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


def test_the_clip_factor_scales_the_quantiles(monkeypatch):
    thresholds_of = {}

    class Noted(PrivateStep):
        def __init__(self, clipped, *args, **named):
            thresholds_of[len(thresholds_of)] = clipped.clipping.max_grad_norm
            super().__init__(clipped, *args, **named)

    monkeypatch.setattr(execution, "PrivateStep", Noted)
    for factor in (1.0, 4.0):
        paper(steps=1, clip_factor=factor).fit(DATA)
    for name, value in thresholds_of[0].items():
        assert thresholds_of[1][name] == pytest.approx(4 * value)


@pytest.mark.parametrize(
    ("settings", "counted"), [({"epsilon": 20.0}, None), ({"epsilon": 20.0, "steps": 2}, 2)]
)
def test_with_a_noise_ratio_steps_end_where_the_budget_does(settings, counted):
    method = paper(**{"noise_ratio": 1.0, "batch_size": 9, "steps": 10_000} | settings)
    plan = method.plan(FACTS)
    taken = plan.part("weights").count
    noise = 2 * (3 + 1) * 1.0

    def claimed(steps):
        return daigavane_epsilon(FACTS.num_train, 9, 3, noise, steps, plan.delta)

    if counted is None:
        assert claimed(taken) <= 20 < claimed(taken + 1)
        assert 2 < taken < 10_000
    else:
        assert taken == counted
    assert plan.details["steps"] == taken
    assert plan.details["noise_ratio"] == pytest.approx(1.0)
    assert plan.claim.epsilon == pytest.approx(claimed(taken))
    assert plan.part("weights").noise_multiplier == pytest.approx(
        noise / len(layers(method)) ** 0.5
    )
    assert plan.part("weights").batch == plan.details["batch_size"] == 9


def test_as_many_steps_run_as_the_noise_ratio_allows(monkeypatch):
    seen = recorded(monkeypatch)
    method = paper(noise_ratio=1.0, steps=1000, epsilon=6.0).fit(DATA)
    taken = method.plan_.part("weights").count
    assert 0 < taken == len(seen.keys) < 1000
    assert method.certificate_.claim.epsilon <= 6


def test_plain_sgd_keeps_nothing_of_the_last_step(monkeypatch):
    rates = []
    make = execution.make_optimizer
    monkeypatch.setattr(
        execution,
        "make_optimizer",
        lambda *args, **named: rates.append(named["momentum"]) or make(*args, **named),
    )
    paper(optimizer="sgd", momentum=0.0, steps=1).fit(DATA)
    assert rates == [0.0]


def test_gin_reads_every_neighbour_where_the_paper_does():
    heard = {}
    for sampler in ("senders", "released"):
        method = made("dp-gnn", conv="gin", sampler=sampler).fit(DATA)
        before = method.predict_proba(DATA)
        method.set_params(receiver_cap=10)  # what was fitted
        capped = method.network_.on_graph(method.prepare(DATA), method.capped_messages(DATA))
        heard[sampler] = torch.allclose(before, capped.softmax(1))
    assert heard == {"senders": True, "released": False}


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
        ({"max_grad_norm": 4.0}, InvalidInputError),
        ({"max_grad_norm": {"decoder": 1.0}, "clip_factor": 2.0}, InvalidInputError),
        ({"batch_size": 46}, InvalidInputError),
        ({"noise_ratio": 0.01}, BudgetError),
        ({"paper": False, "batch_size": 9}, InvalidInputError),
        ({"paper": False, "clip_factor": 2.0}, InvalidInputError),
        ({"paper": False, "noise_ratio": 1.0}, InvalidInputError),
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
    assert DPGNN(epsilon=8.0, paper=True)._sampler == "printed"


def test_the_certificate_names_the_flaw_of_what_ran():
    method = paper(sampler="senders")
    ours = method.set_params(max_grad_norm=thresholds(method)).plan(FACTS)
    assert "sqrt(L)" in ours.claim.why_it_differs
    assert "Algorithm 2" in paper().plan(FACTS).claim.why_it_differs
    assert ours.details["batch_size"] == paper()._batch(FACTS)
    assert "batch_size" not in DPGNN(epsilon=8.0).plan(FACTS).details
