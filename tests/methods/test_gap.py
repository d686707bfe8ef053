"""GAP: what runs is what is charged, who can change what, where the cache comes from."""

import copy
import itertools
import math
import shutil
from types import SimpleNamespace

import dp_accounting as dpa
import pytest
import safetensors.torch
import torch
from methods_cases import CLASSES, changed, graph, recorded

from graphveil import runs
from graphveil._errors import BudgetError, GraphveilError, InvalidInputError, UnprovenError
from graphveil.grads.own_rows import RowExamples
from graphveil.grads.step import PrivateStep
from graphveil.graph.aggregation import Sent
from graphveil.graph.neighbourhoods import gather_neighbourhoods
from graphveil.methods import (
    GAP,
    Facts,
    Method,
    OpenGAP,
    checkpoint,
    hop_rules,
    hop_training,
    own_row,
    recipes,
    sending,
)
from graphveil.methods.terms import node_losses
from graphveil.nn.gap import AttentionTerms, Encoder, PairAttention
from graphveil.privacy.accounting import epsilon_of
from graphveil.privacy.claims import CLAIMS
from graphveil.privacy.events import SampledGaussianDpEvent, composed, repeated
from graphveil.rng import secret

QUICK = {"steps": 3, "open_steps": 5, "head_steps": 5, "folds": 2, "hidden_channels": 4}
DATA, DIRECTED = graph(), graph(directed=True)
FACTS = Facts.of(DATA)
MESSAGES = ("encoding", "label", "evidence")
WEIGHTINGS = ("none", "similarity", "attention")
SIGMOID = 1 / (1 + math.exp(-1))


def made(**settings):
    if settings.get("weighting") == "attention" and not settings.get("paper"):
        settings = {"sender_cap": 3} | settings
    return GAP(**({"epsilon": 8.0} | QUICK | settings))


def weights(method):
    return torch.cat([value.flatten().double() for value in method.network_.state_dict().values()])


def other_edges(data, seed=5):
    """The same nodes, other edges, as many of them."""
    return changed(data, edge_index=graph(seed).edge_index)


# --- what runs is what is charged -----------------------------------------------------------------


def steps_seen(monkeypatch):
    """Every private step: what it trains and the event that it says it is."""
    seen, take = [], PrivateStep.__call__

    def note(self):
        seen.append((type(self.module), self.one_step, len(self.examples)))
        return take(self)

    monkeypatch.setattr(PrivateStep, "__call__", note)
    return seen


BOUNDS = {"edge": math.sqrt(2), "directed": 1.0, "node": 1.0}  # of a weight of 1


@pytest.mark.parametrize(
    "weighting, hops",
    [("none", 1), ("none", 2), ("similarity", 2), ("attention", 1), ("attention", 2)],
)
@pytest.mark.parametrize(
    "unit, messages", [*itertools.product(("edge", "node"), MESSAGES), ("directed", "evidence")]
)
def test_the_events_seen_are_the_events_charged(unit, messages, weighting, hops, monkeypatch):
    data = DIRECTED if unit == "directed" else DATA
    method = made(
        unit="node" if unit == "node" else "edge",
        messages=messages,
        weighting=weighting,
        hops=hops,
    )
    seen, steps = recorded(monkeypatch), steps_seen(monkeypatch)
    method.fit(data)
    assert all(rng.void_reason is None for *_, rng in seen.releases)
    summed = [(m, value) for m, value, _ in seen.releases if value.dim() == 2]
    stepped = [(m, value) for m, value, _ in seen.releases if value.dim() == 1]
    assert len(summed) + len(stepped) == len(seen.releases)

    # The sums: one release for each hop, all rows at once, with the noise of the plan.
    width = 4 if messages == "encoding" else CLASSES
    assert [value.shape for _, value in summed] == [(len(data.x), width)] * hops
    details = method.plan_.details
    bound = BOUNDS[unit] * (SIGMOID if weighting == "similarity" else 1.0)
    bound *= math.sqrt(3) if unit == "node" and weighting == "attention" else 1.0
    for mechanism, _ in summed:
        assert mechanism.sensitivity == details["sensitivity"] == pytest.approx(bound, rel=1e-12)
        assert mechanism.noise_multiplier == details["noise_multiplier"]
    charged = {"aggregation": [dpa.GaussianDpEvent(m.noise_multiplier) for m, _ in summed]}

    # The steps: of bound 1, each with the influence of what it trains.
    influence = {"edge": (0, 2), "directed": (0, 1), "node": (1, 3)}[unit]
    for (mechanism, _), (rate, coins), (kind, event, terms) in zip(
        stepped, seen.coins, steps, strict=True
    ):
        part = {Encoder: "encoder", AttentionTerms: "attention"}.get(kind, "classifier")
        removed, altered = influence if part == "attention" else (1, 0)
        assert mechanism.sensitivity == 1.0
        assert mechanism.noise_multiplier == details[f"{part}_noise"]
        assert len(coins) == terms == FACTS.num_train
        assert event == SampledGaussianDpEvent(
            rate=rate,
            noise_multiplier=mechanism.noise_multiplier,
            removed=removed,
            altered=altered,
        )
        charged.setdefault(part, []).append(event)

    paid = ["aggregation"]
    if unit == "node":
        paid += ["classifier"] if messages == "label" else ["classifier", "encoder"]
    paid += ["attention"] if weighting == "attention" else []
    assert sorted(charged) == sorted(paid)
    certificate = method.certificate_
    assert certificate.charges == method.plan_.charges
    names = {hop_rules.PAID_FOR[part]: events for part, events in charged.items()}
    assert sorted(charge.paid_for for charge in certificate.charges) == sorted(names)
    for charge in certificate.charges:
        events = names[charge.paid_for]
        if isinstance(events[0], SampledGaussianDpEvent):
            passes = hops if charge.paid_for == hop_rules.PAID_FOR["attention"] else 1
            assert len(events) == 3 * passes
            assert len(set(events)) == 1
            events = [repeated(events[0], 3)] * passes
        assert charge.event == composed(*events)
    assert certificate.guarantee.unit == (
        "node" if unit == "node" else f"edge-{'un' * (unit == 'edge')}directed"
    )
    assert 0.99 * 8 < certificate.guarantee.epsilon <= 8


@pytest.mark.parametrize("unit, asked", [("edge", 0.3), ("edge", 20.0), ("node", 8.0)])
def test_no_more_is_spent_than_was_asked_for(unit, asked):
    plan = made(unit=unit, epsilon=asked, messages="encoding").plan(FACTS)
    assert 0.99 * asked < plan.epsilon <= asked
    together = composed(*(charge.event for charge in plan.charges))
    assert plan.epsilon == pytest.approx(epsilon_of(together, plan.delta), rel=1e-9)


@pytest.mark.parametrize(
    "settings", [{"unit": "edge"}, {"unit": "node"}, {"unit": "edge", "hops": 2}]
)
def test_the_noise_in_the_cache_is_the_noise_of_the_plan(settings, monkeypatch):
    exact, noisy = [], Sent.noisy_sums

    def note(self, mechanism, rng, ranks):
        exact.append(self.sums())
        return noisy(self, mechanism, rng, ranks)

    monkeypatch.setattr(Sent, "noisy_sums", note)
    data = graph(nodes=900, edges=600)
    assert torch.bincount(data.edge_index[1], minlength=900).min() == 0
    method = made(**settings).fit(data)
    cache = method.cache_.double()[:, : len(exact)]  # then come, with beliefs, sums of lists
    drawn = cache - torch.stack(exact, 1)
    assert (drawn != 0).all()
    details = method.plan_.details
    deviation = details["noise_multiplier"] * details["sensitivity"]
    assert drawn.std().item() == pytest.approx(deviation, rel=5 / (2 * drawn.numel()) ** 0.5)
    assert abs(drawn.mean().item()) < 5 * deviation / drawn.numel() ** 0.5


def test_a_fixed_stream_repeats_the_run_and_voids_its_certificate():
    fits = [made(unit="node").fit(DATA, rng=secret(fixed_seed=1)) for _ in range(2)]
    assert torch.equal(fits[0].cache_, fits[1].cache_)
    assert torch.equal(weights(fits[0]), weights(fits[1]))
    assert math.isinf(fits[0].certificate_.guarantee.epsilon)
    assert not torch.equal(made(unit="node").fit(DATA).cache_, fits[0].cache_)


# --- how the budget is split ----------------------------------------------------------------------


def strengths(method, facts=FACTS):
    """The squared Gaussian mu of each part, sampled steps by the central limit."""
    found = {}
    names = {paid_for: part for part, paid_for in hop_rules.PAID_FOR.items()}
    for charge in method.plan(facts).charges:
        parts = getattr(charge.event, "events", [charge.event])
        total = 0.0
        for event in parts:
            if isinstance(event, dpa.GaussianDpEvent):
                total += event.noise_multiplier**-2
            else:
                one = event.event
                moves = (one.removed + 2 * one.altered) / one.noise_multiplier
                total += event.count * one.rate**2 * math.expm1(moves**2)
        found[names[charge.paid_for]] = total
    return found


@pytest.mark.parametrize(
    "settings",
    [
        {"messages": "encoding", "encoder_share": 0.2, "aggregation_share": 0.5},
        {"messages": "label", "aggregation_share": 0.9},
        {
            "messages": "evidence",
            "weighting": "attention",
            "encoder_share": 0.1,
            "attention_share": 0.3,
            "aggregation_share": 0.4,
            "hops": 2,
        },
        {"unit": "edge", "weighting": "attention", "attention_share": 0.3},
        {"unit": "edge", "weighting": "attention", "aggregation_share": 0.6},
        {"unit": "edge", "aggregation_share": 1.0},
    ],
)
def test_the_shares_given_are_the_shares_used(settings):
    method = made(**settings)
    given = {name[:-6]: value for name, value in settings.items() if name.endswith("_share")}
    found = strengths(method)
    assert given.keys() <= found.keys()
    left = {"classifier"} if method.unit == "node" else {"attention", "aggregation"}
    assert found.keys() - given.keys() <= left
    whole = sum(found.values())
    for part, share in given.items():
        assert found[part] / whole == pytest.approx(share, rel=1e-6)
    details = method.plan(FACTS).details
    assert sum(details[f"{part}_share"] for part in found) == pytest.approx(1)


@pytest.mark.parametrize(
    "settings, parts",
    [
        ({"unit": "edge"}, ["aggregation"]),
        ({"unit": "edge", "weighting": "attention"}, ["attention", "aggregation"]),
        ({}, ["mean", "encoder", "aggregation", "classifier"]),
        ({"centred": False}, ["encoder", "aggregation", "classifier"]),
        ({"messages": "label"}, ["aggregation", "classifier"]),
        ({"messages": "encoding"}, ["encoder", "aggregation", "classifier"]),
        ({"messages": "evidence"}, ["encoder", "aggregation", "classifier"]),
        ({"weighting": "attention"}, ["attention", "aggregation", "classifier"]),
        (
            {"messages": "encoding", "weighting": "attention"},
            ["encoder", "attention", "aggregation", "classifier"],
        ),
    ],
)
def test_every_part_that_reads_private_data_is_a_charge(settings, parts):
    plan = made(**settings).plan(FACTS)
    assert [charge.paid_for for charge in plan.charges] == [
        hop_rules.PAID_FOR[part] for part in parts
    ]


@pytest.mark.parametrize(
    "settings, said",
    [
        ({"aggregation_share": 1.0}, "leave some for classifier"),
        ({"unit": "edge", "aggregation_share": 0.5}, "leave the shares out"),
        ({"messages": "encoding", "encoder_share": 0.5, "aggregation_share": 0.6}, "leave some"),
        ({"messages": "label", "encoder_share": 0.5}, "no such part to pay for"),
        ({"attention_share": 0.5}, "no such part to pay for"),
        ({"unit": "edge", "encoder_share": 0.5}, "no such part to pay for"),
        ({"aggregation_share": 0.0}, r"must be a number in \(0, 1\]"),
        ({"aggregation_share": math.nan}, r"must be a number in \(0, 1\]"),
    ],
)
def test_shares_that_do_not_add_up_or_pay_for_nothing_are_refused(settings, said):
    with pytest.raises(InvalidInputError, match=said) as refusal:
        made(**settings).plan(FACTS)
    assert "Got" in str(refusal.value)
    assert "\n" not in str(refusal.value)


# --- one unit more or less, through the real pipeline ---------------------------------------------


def small_world(*, directed, nodes=40):
    """A hub that everybody hears and one that hears everybody; the rest at random."""
    data = graph(3, nodes=nodes, edges=50, directed=True)
    every = torch.arange(2, nodes - 2)
    hubs = [torch.stack([0 * every, every]), torch.stack([every, 0 * every + 1])]
    edges = torch.cat([data.edge_index, *hubs], 1)
    edges = edges if directed else torch.cat([edges, edges.flip(0)], 1)
    return changed(data, edge_index=edges.unique(dim=1), directed=directed)


def worlds(data, unit, count=8, *, ids_stay=False):
    """Neighbouring data: the unit's own node (or None), and the data without it.

    A withheld node leaves the training mask, or with ``ids_stay`` it does not: who is in which
    part is public by the certificate. Its own term, which is then still there, is not compared.
    """
    edges = data.edge_index
    if unit == "node":
        for v in (0, 1, *range(2, len(data.x), len(data.x) // count)):
            x, y, train = data.x.clone(), data.y.clone(), data.train_mask.clone()
            x[v], y[v] = 0.0, 0 if ids_stay and train[v] else -1
            train[v] &= ids_stay
            kept = edges[:, edges[0] != v]
            yield v, changed(data, x=x, y=y, train_mask=train, edge_index=kept)
        return
    ends = edges if unit == "edge-directed" else edges.sort(0).values
    pairs = ends.unique(dim=1)
    for u, w in pairs[:, :: max(1, pairs.shape[1] // count)].t():
        yield None, changed(data, edge_index=edges[:, ~((ends[0] == u) & (ends[1] == w))])


def watched(monkeypatch, method, plan):
    """Fits that train nothing and whose noisy sums are given: what each part would have read."""
    given = torch.randn(3, len(small_world(directed=True).x), 8)
    seen = SimpleNamespace(own=None)

    def noisy(self, mechanism, rng, ranks):
        seen.sums.append(self.sums())
        found = given[len(seen.sums) - 1, :, : self.rows.shape[1]].clone()
        if seen.own is not None and method.messages_in_use != "belief":
            found[seen.own] = 7.0  # nothing is promised about a node's own row
        return found

    def trained(self, execution, name, network, terms):
        seen.terms.append((name.rstrip("123"), network, terms))
        execution.spent[name] = dpa.NoOpDpEvent()

    def mean(recipe, execution, data):
        execution.spent["mean"] = dpa.NoOpDpEvent()
        return given[2, 0, : data.x.shape[1]]

    monkeypatch.setattr(Sent, "noisy_sums", noisy)
    monkeypatch.setattr(hop_training, "step", trained)
    monkeypatch.setattr(own_row, "release_mean", mean)
    monkeypatch.setattr(
        hop_training, "fit_openly", lambda method, module, *_, **__: module.eval() and 0.0
    )
    monkeypatch.setattr(Method, "plan", lambda self, facts: plan)
    monkeypatch.setattr(Method, "_check_plan", lambda *_: None)  # one plan for both of two worlds
    monkeypatch.setattr(Method, "restore", lambda *_: None)

    def fit(data, own=None):
        seen.own, seen.sums, seen.terms = own, [], []
        method.fit(data)
        return seen.sums, seen.terms

    return fit


def settings_of(unit, messages, weighting, **more):
    unit = "node" if unit == "node" else "edge"
    return {"unit": unit, "messages": messages, "weighting": weighting, "hops": 2, **more}


VARIANTS = [
    pytest.param(unit, settings_of(unit, messages, weighting, **more), id=f"{unit}-{name}")
    for unit in ("edge-directed", "edge-undirected", "node")
    for messages, weighting in itertools.product(MESSAGES, WEIGHTINGS)
    for name, more in [
        (f"{messages}-{weighting}", {}),
        (f"{messages}-{weighting}-half", {"similarity": "half"}),
        (f"{messages}-{weighting}-hard", {"capping": "hard", "sender_cap": 2}),
        (f"{messages}-{weighting}-soft", {"capping": "soft", "sender_cap": 4}),
    ]
    if (not more)
    or ("similarity" in more and weighting == "similarity")
    or ("capping" in more and unit == "node" and weighting == "none")
] + [
    pytest.param("node", settings_of("node", "belief", "none", **more), id=f"node-belief-{name}")
    for name, more in [
        ("usual", {}),
        ("uncentred", {"centred": False}),
        ("hard", {"capping": "hard", "sender_cap": 2}),
        ("soft", {"capping": "soft", "sender_cap": 4}),
    ]
]


@pytest.mark.parametrize("unit, settings", VARIANTS)
def test_no_unit_moves_the_sums_that_get_noise_further_than_is_charged(unit, settings, monkeypatch):
    """For each hop given the noisy rows of the hop before, a node's own row left out."""
    data = small_world(directed=unit == "edge-directed")
    method = made(**settings)
    plan = method.plan(Facts.of(data))
    assert plan.unit == ("node" if unit == "node" else unit)
    bound, fit = plan.details["sensitivity"], watched(monkeypatch, method, plan)
    before, terms = fit(data)
    assert len(before) == 2
    most, beliefs = [0.0, 0.0], method.messages_in_use == "belief"
    both = (False, True) if beliefs else (False,)  # whether a withheld id stays a training id
    for own, other in itertools.chain(*(worlds(data, unit, ids_stay=stay) for stay in both)):
        after, fewer = fit(other, own)
        for hop, (a, b) in enumerate(zip(before, after, strict=True)):
            change = b - a
            if own is not None and not beliefs:  # of beliefs a node's own sum is bounded, too
                change[own] = 0.0
            most[hop] = max(most[hop], change.norm().item())
        if own is not None:
            assert_no_other_term_changes(data, own, terms, fewer)
    assert max(most) <= bound * (1 + 1e-9)
    assert min(most) > 0.05 * bound  # not blind
    if method.weighting == "none" and method.messages != "label":
        assert max(most) > 0.97 * bound


def assert_no_other_term_changes(data, own, terms, fewer):
    """Encoder and classifier: the withheld node's term is gone, all others are what they were."""
    train = data.train_mask.nonzero().flatten()
    for (part, _, before), (again, _, after) in zip(terms, fewer, strict=True):
        assert part == again
        if part == "attention":
            continue
        if isinstance(before, RowExamples):
            assert len(before) == len(train)
            others = (train != own).nonzero().flatten()
            left = others if len(after) == len(train) else torch.arange(len(after))
            for name in ("rows", "squares", "labels"):
                assert torch.equal(getattr(before, name)[others], getattr(after, name)[left])
            continue
        assert len(before[0]) == len(train)
        for a, b in zip(before, after, strict=True):
            assert torch.equal(a[train != own], b)


@pytest.mark.parametrize(
    "messages, read", [("encoding", 50), ("label", 3), ("evidence", 50), ("evidence", 3)]
)
@pytest.mark.parametrize(
    "unit, altered", [("edge-directed", 1), ("edge-undirected", 2), ("node", 3)]
)
def test_no_unit_alters_more_terms_of_the_attention_than_are_charged(
    unit, altered, messages, read, monkeypatch
):
    monkeypatch.setattr(sending, "_READ_AT_ONCE", read)
    data = small_world(directed=unit == "edge-directed")
    data = changed(data, train_mask=~(data.val_mask & data.test_mask))  # everybody is a root
    data = changed(data, val_mask=~data.train_mask, test_mask=~data.train_mask)
    method = made(**settings_of(unit, messages, "attention"))
    plan = method.plan(Facts.of(data))
    attention = plan.charges[
        [c.paid_for for c in plan.charges].index(hop_rules.PAID_FOR["attention"])
    ]
    charged = attention.event.events[0].event
    assert (charged.removed, charged.altered) == (int(unit == "node"), altered)
    fit = watched(monkeypatch, method, plan)
    before = attention_terms(fit(data))
    networks, old = [each for each, _ in before], [outputs(*each) for each in before]
    most = 0
    for own, other in worlds(data, unit, count=12):
        after = attention_terms(fit(other, own), networks)
        for one, each in zip(old, after, strict=True):
            differ = altered_terms(one, outputs(*each), own)
            assert differ <= altered
            most = max(most, differ)
    assert most == altered


def attention_terms(found, networks=None):
    _, terms = found
    kept = [(network, each) for part, network, each in terms if part == "attention"]
    assert len(kept) == 2
    if networks is None:
        return [(copy.deepcopy(network).double(), each) for network, each in kept]
    return [(network, each) for network, (_, each) in zip(networks, kept, strict=True)]


def outputs(network, terms):
    """The loss of each root's term; infinite where there is no such term."""
    around = gather_neighbourhoods(terms.x.double(), terms.messages, terms.roots, terms.num_layers)
    found = torch.full((len(terms.x),), torch.inf, dtype=torch.float64)
    losses = node_losses(made().task(FACTS))
    with torch.no_grad():
        found[terms.roots] = losses(network, (around, terms.y[terms.roots]))
    return found


def altered_terms(old, new, own):
    """How many differ, the unit's own left out, which is the only one that is gone."""
    gone = (old.isfinite() & new.isinf()).nonzero().flatten().tolist()
    assert gone == ([] if own is None else [own])
    kept = new.isfinite()
    return int(((new - old).abs()[kept] > 1e-9).sum())


def test_a_soft_cap_would_alter_the_term_of_every_receiver(monkeypatch):
    """The reason why attention refuses it under the unit node."""
    data = small_world(directed=False)
    data = changed(data, train_mask=torch.ones_like(data.train_mask))
    method = made(**settings_of("node", "label", "attention"))
    plan = method.plan(
        Facts.of(changed(data, val_mask=~data.train_mask, test_mask=~data.train_mask))
    )
    monkeypatch.setattr(Facts, "of", classmethod(lambda cls, data: plan.facts))
    fit = watched(monkeypatch, method.set_params(capping="soft"), plan)
    before = attention_terms(fit(data))
    own, other = next(worlds(data, "node"))
    after = attention_terms(fit(other, own), [network for network, _ in before])
    assert altered_terms(outputs(*before[0]), outputs(*after[0]), own) > 20


# --- edges are read for the cache and never again -------------------------------------------------

EDGE_LEVEL = [
    pytest.param({"messages": messages, "weighting": weighting, "hops": hops}, id=str(number))
    for number, (messages, weighting, hops) in enumerate(
        [("evidence", "none", 1), ("label", "similarity", 2), ("encoding", "attention", 2)]
    )
]


@pytest.mark.parametrize("settings", EDGE_LEVEL)
def test_nobody_reads_an_edge_after_the_cache(settings, monkeypatch):
    method = made(unit="edge", **settings).fit(DATA, rng=secret(fixed_seed=1))
    classify = hop_training.classify

    def swapped(self, network, own, cache, data, execution):
        data.edge_index = other_edges(data).edge_index
        return classify(self, network, own, cache, data, execution)

    monkeypatch.setattr(hop_training, "classify", swapped)
    again = made(unit="edge", **settings).fit(copy.copy(DATA), rng=secret(fixed_seed=1))
    assert torch.equal(weights(again), weights(method))
    assert torch.equal(again.cache_, method.cache_)


@pytest.mark.parametrize("settings", EDGE_LEVEL)
def test_given_the_noisy_sums_other_edges_train_the_same_network(settings, monkeypatch):
    """Attention apart, whose steps read edges and are charged."""
    monkeypatch.setattr(
        Sent, "noisy_sums", lambda self, *_: self.rows + torch.arange(len(self.rows)).unsqueeze(1)
    )
    fits = [made(unit="edge", **settings).fit(data) for data in (DATA, other_edges(DATA))]
    assert torch.equal(fits[0].cache_[:, 0], fits[1].cache_[:, 0])
    states = [
        {
            name: value
            for name, value in each.network_.state_dict().items()
            if "attention" not in name
        }
        for each in fits
    ]
    for name, value in states[0].items():
        assert torch.equal(value, states[1][name]), name
    assert torch.equal(fits[0].predict_proba(DATA), fits[1].predict_proba(DATA))


def test_another_cache_trains_another_network():
    """So that the two tests above are not blind."""
    fits = [
        made(unit="edge").fit(data, rng=secret(fixed_seed=1)) for data in (DATA, other_edges(DATA))
    ]
    assert not torch.equal(fits[0].cache_, fits[1].cache_)
    heads = [weights(SimpleNamespace(network_=each.network_.heads)) for each in fits]
    assert not torch.equal(*heads)
    encoders = [weights(SimpleNamespace(network_=each.network_.encoders)) for each in fits]
    assert torch.equal(*encoders)


@pytest.mark.parametrize(
    "unit, messages", [*itertools.product(("edge", "node"), MESSAGES), ("node", "belief")]
)
def test_cached_predictions_read_no_edge(unit, messages):
    method = made(unit=unit, messages=messages, hidden_channels=16).fit(DATA)
    found = method.predict_proba(DATA)
    assert torch.equal(method.predict_proba(other_edges(DATA)), found)
    assert torch.equal(method.predict_proba(other_edges(DATA), mode="cached"), found)
    x = DATA.x.clone()
    x[7] *= -1
    moved = (method.predict_proba(changed(DATA, x=x)) != found).any(1)
    assert moved.nonzero().flatten().tolist() == [7]  # a prediction reads its own row alone
    assert not torch.equal(method.predict_proba(DATA, mode="visible"), found)


# --- modes ----------------------------------------------------------------------------------------

BARE = {"y": None, "train_mask": None, "val_mask": None, "test_mask": None}


@pytest.mark.parametrize("unit", ["edge", "node"])
def test_cached_costs_nothing_and_belongs_to_the_graph_trained_on(unit, monkeypatch):
    method = made(unit=unit).fit(DATA)
    seen, before = recorded(monkeypatch), method.certificate_
    for mode in (None, "cached", "visible", "disjoint"):
        found = method.predict_proba(DATA, mode=mode)
        torch.testing.assert_close(found.sum(1), torch.ones(len(DATA.x)))
    assert not seen.releases
    assert method.certificate_.charges == before.charges
    lines = [line.split(":")[0] for line in method.certificate_.inference]
    assert lines == ["cached", "visible", "disjoint"]
    for mode in (None, "cached"):
        with pytest.raises(InvalidInputError, match=r"no other mode takes one.*leave it out"):
            method.predict(DATA, mode=mode, epsilon=1.0)
        with pytest.raises(InvalidInputError, match=r"60 nodes .* Got 50 nodes") as refusal:
            method.predict(graph(nodes=50), mode=mode)
        assert "\n" not in str(refusal.value)
    with pytest.raises(InvalidInputError, match="epsilon"):
        method.predict(DATA, mode="visible", epsilon=1.0)
    with pytest.raises(InvalidInputError, match="mode"):
        method.predict(DATA, mode="x")


@pytest.mark.parametrize("weighting, hops", [("none", 1), ("similarity", 2), ("attention", 2)])
@pytest.mark.parametrize("unit", ["edge", "node"])
def test_every_noisy_prediction_is_charged_for_every_hop(unit, weighting, hops, monkeypatch):
    method = made(unit=unit, weighting=weighting, hops=hops).fit(DATA)
    trained, seen = method.certificate_, recorded(monkeypatch)
    for _ in range(2):
        method.predict(DATA, mode="noisy", epsilon=2.0)
    assert len(seen.releases) == 2 * hops
    for mechanism, value, rng in seen.releases:
        assert rng.void_reason is None
        assert value.shape == (len(DATA.x), CLASSES)
        assert mechanism.sensitivity == method.plan_.details["sensitivity"]
    noise = {mechanism.noise_multiplier for mechanism, *_ in seen.releases}
    one = repeated(dpa.GaussianDpEvent(noise.pop()), hops)
    assert not noise
    assert 1.98 < epsilon_of(one, method.plan_.delta) <= 2.0
    certificate = method.certificate_
    assert [charge.event for charge in certificate.charges[len(trained.charges) :]] == [one, one]
    assert certificate.guarantee.epsilon > trained.guarantee.epsilon
    assert [line.split(":")[0] for line in certificate.inference] == ["cached", "noisy"]


def test_a_noisy_prediction_is_charged_even_if_it_fails_after_the_release(monkeypatch):
    method = made(unit="edge").fit(DATA)

    def failing(*_):
        raise MemoryError

    monkeypatch.setattr(Sent, "noisy_sums", failing)
    with pytest.raises(MemoryError):
        method.predict(DATA, mode="noisy", epsilon=1.0)
    assert len(method.certificate_.charges) == 2


@pytest.mark.parametrize("unit", ["edge", "node"])
def test_a_noisy_prediction_on_a_graph_too_large_for_delta_is_refused_and_not_charged(unit):
    method = made(unit=unit).fit(DATA)
    with pytest.raises(UnprovenError, match="delta"):
        method.predict(graph(nodes=2000), mode="noisy", epsilon=1.0)
    assert method.certificate_.charges == method.plan_.charges


@pytest.mark.parametrize(
    "unit, messages", [*itertools.product(("edge", "node"), MESSAGES), ("node", "belief")]
)
def test_a_graph_without_labels_or_masks_is_predicted_on(unit, messages):
    method = made(unit=unit, messages=messages).fit(DATA)
    bare = changed(graph(9, nodes=50), **BARE)
    for settings in ({"mode": "visible"}, {"mode": "disjoint"}, {"mode": "noisy", "epsilon": 1.0}):
        found = method.predict_proba(bare, **settings)
        assert found.shape == (50, CLASSES)
        assert found.isfinite().all()
        method.predict(changed(graph(9, nodes=50), y=None), **settings)
    moved = method.predict_proba(changed(bare, edge_index=other_edges(bare).edge_index % 50),
                                 mode="visible")  # fmt: skip
    assert not torch.equal(moved, method.predict_proba(bare, mode="visible"))


def test_the_certificate_says_who_may_see_what():
    node, edge = (made(unit=unit).fit(DATA).certificate_ for unit in ("node", "edge"))
    assert "its own node only" in node.released_to
    assert "own node only" in node.inference[0]
    assert node.released == "model weights"
    assert edge.released_to == "anybody"
    assert "noisy sums" in edge.released
    assert "whether edges have a direction" in str(edge)
    assert "whether edges have a direction" not in str(node)


# --- the papers -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "asked, unit, weighting",
    [*itertools.product([8.0], BOUNDS, WEIGHTINGS), (1.0, "edge", "none")],
)
def test_the_paper_claims_what_was_asked_and_what_is_proven_stands_beside_it(
    unit, weighting, asked
):
    facts = Facts.of(DIRECTED if unit == "directed" else DATA)
    node = unit == "node"
    method = made(unit="node" if node else "edge", weighting=weighting, paper=True, epsilon=asked)
    plan = method.plan(facts)
    assert plan.claim.epsilon == pytest.approx(asked, abs=1e-3)
    assert plan.details["hops"] == 2
    # Again, from the noise that runs and nothing else.
    details = plan.details
    settings = {
        "unit": "node" if node else "edge",
        "hops": 2,
        "noise_multiplier": details["noise_multiplier"] * details["sensitivity"],
        "delta": plan.delta,
        "directed": facts.directed,
    }
    assert details.get("encoder_noise", details["noise_multiplier"]) == details["noise_multiplier"]
    if node:
        settings |= {
            "max_degree": 50,
            "encoder_noise": details["encoder_noise"],
            "classifier_noise": details["classifier_noise"],
            "rate": 0.5,
            "steps": 3,
        }
    if weighting == "attention":
        assert details["attention_noise"] == 1.3
        settings |= {"attention_noise": 1.3, "attention_steps": 3}
        settings |= {"rate": 0.5}
    if weighting == "none":
        claim = CLAIMS["gap"](**settings)
    else:
        claim = CLAIMS["shpilevskiy"](weighting=weighting, **settings)
    assert claim.claimed_epsilon == pytest.approx(asked, abs=1e-3)
    assert ("Theorem 2" in claim.formula) == (weighting == "attention")
    assert plan.claim.why_it_differs == claim.flaw
    assert ("Shpilevskiy" in plan.claim.source) == (weighting != "none")
    # What the claims module calls proven is what the plan charges.
    assert plan.epsilon == pytest.approx(epsilon_of(claim.proven, plan.delta), rel=1e-3)
    if weighting == "none":
        assert (plan.epsilon > asked) == (unit == "edge")  # two messages charged as one


def test_a_run_of_the_paper_shows_both_figures():
    method = made(unit="edge", paper=True).fit(DATA)
    certificate = method.certificate_
    assert certificate.charges == method.plan_.charges
    assert certificate.claim.epsilon == pytest.approx(8, abs=1e-3)
    assert certificate.guarantee.epsilon > 8.5
    assert not certificate.void_because
    assert "claimed by Sajadmanesh" in str(certificate)
    assert method.messages_in_use == "encoding"
    assert made(unit="edge").plan(FACTS).claim is None


@pytest.mark.parametrize(
    "nodes, trainable", [(17_976, {1: False, 2: False, 4: True}), (11_001, {4: False, 8: True})]
)
def test_the_published_attention_cannot_be_trained_at_small_epsilon(nodes, trainable):
    """Figure 3 of Shpilevskiy et al.: 80 % of Facebook's pages, and of Amazon's computers."""
    facts = Facts(
        num_nodes=nodes * 5 // 4, num_features=128, num_classes=4, num_train=nodes, directed=False
    )
    for epsilon, possible in trainable.items():
        method = recipes.read("shpilevskiy-attention").make(epsilon=epsilon)
        if not possible:
            with pytest.raises(BudgetError, match=r"Theorem 2.* take .* cannot be trained") as no:
                method.plan(facts)
            assert "\n" not in str(no.value)
            continue
        plan = method.plan(facts)
        assert plan.claim.epsilon == pytest.approx(epsilon, abs=1e-3)
        assert "at delta 1e-05" in plan.claim.source
        assert plan.details["steps"] == 1000
        assert plan.details["sample_rate"] == pytest.approx(300 / nodes)
        # No pass that nobody sees is charged; terms altered by an edge, two of 2C, outweigh that.
        assert plan.delta < 1e-7
        assert plan.epsilon > 2 * epsilon
    # Without the T noisy passes there is something to train with at any epsilon.
    assert made(unit="edge", weighting="attention", epsilon=1.0).plan(facts).epsilon <= 1


def test_the_claim_has_the_delta_of_its_paper_and_the_proof_its_own():
    plans = [made(unit="edge", paper=True, claimed_delta=d).plan(FACTS) for d in (None, 1e-2)]
    assert plans[0].delta == plans[1].delta == 1e-4
    assert [plan.claim.epsilon for plan in plans] == pytest.approx([8, 8], abs=1e-3)
    assert plans[1].details["noise_multiplier"] < plans[0].details["noise_multiplier"]
    assert plans[1].epsilon > plans[0].epsilon
    assert ["at delta 0.01" in plan.claim.source for plan in plans] == [False, True]


def test_batches_and_epochs_stand_for_rate_and_steps():
    details = made(batch_size=9, epochs=4).plan(FACTS).details
    assert details["sample_rate"] == 9 / FACTS.num_train
    assert details["steps"] == 4 * FACTS.num_train // 9
    half = made(messages="label", epochs=4).plan(FACTS)
    assert half.details["steps"] == 8  # at a rate of a half
    whole = made(batch_size=10**6, epochs=4).plan(FACTS).details
    assert (whole["sample_rate"], whole["steps"]) == (1.0, 4)


def test_a_given_attention_noise_leaves_the_rest_to_the_sums():
    plan = made(unit="edge", weighting="attention", attention_noise=20.0).plan(FACTS)
    assert plan.part("attention1").noise_multiplier == 20.0
    assert 7.9 < plan.epsilon <= 8
    assert "attention_share" not in plan.details


def test_published_passes_are_noisy_and_read_every_message(monkeypatch):
    seen = []
    start = AttentionTerms.__init__

    def note(self, attention, channels, classes, noise=0.0):
        seen.append(noise)
        start(self, attention, channels, classes, noise)

    monkeypatch.setattr(AttentionTerms, "__init__", note)
    monkeypatch.setattr(sending, "_READ_AT_ONCE", 1)
    reads, gather = [], sending.node_terms

    def terms(rows, data, messages, layers):
        reads.append(messages.edge_index.shape[1])
        return gather(rows, data, messages, layers)

    monkeypatch.setattr(sending, "node_terms", terms)
    for paper in (True, False):
        method = made(unit="edge", weighting="attention", messages="encoding", hops=1, paper=paper)
        method.fit(DATA)
    mechanism = method.plan_.part("hop1").mechanism
    assert seen[0] > 0 == seen[1]
    assert mechanism.sensitivity == pytest.approx(math.sqrt(2))
    messages = DATA.edge_index[:, DATA.edge_index[0] != DATA.edge_index[1]].unique(dim=1).shape[1]
    assert reads[0] == messages > reads[1]


def test_the_noise_of_a_published_pass_has_its_deviation_before_the_sum_is_scaled():
    torch.manual_seed(0)
    terms = AttentionTerms(PairAttention(8, 4), 8, 3, noise=1e6)
    exact = AttentionTerms(terms.attention, 8, 3)
    exact.load_state_dict(terms.state_dict())
    x = torch.nn.functional.normalize(torch.randn(len(DATA.x), 8))
    read = sending.attention_terms(
        sending.Sending(sending.incoming(DATA.edge_index, len(x), seed=0), x, x), DATA, 0
    )
    around = gather_neighbourhoods(read.x, read.messages, read.roots, 1)
    with torch.no_grad():
        own = terms.readout.weight[:, :8] @ x[read.roots].T
        drowned = terms(around) - own.T - terms.readout.bias
        clear = exact(around) - own.T - terms.readout.bias
    # A direction drawn anew for every root: the sum's own is lost, its length stays 1.
    weight = terms.readout.weight[:, 8:].detach()
    directions = torch.linalg.lstsq(weight, drowned.T).solution
    assert not torch.allclose(drowned, clear, atol=0.05)
    assert directions.norm(dim=0).max().item() <= 1.001


def test_an_encoder_that_halves_its_columns():
    method = made(unit="edge", paper=True, halved=True, encoder_layers=2, weighting="attention")
    facts = Facts(num_nodes=60, num_features=40, num_classes=3, num_train=45, directed=False)
    network = method.build(facts)
    encoder, attention = network.encoders[0], network.attention[0]
    assert [tuple(linear.weight.shape) for linear in encoder.body.linears] == [(20, 40), (10, 20)]
    assert attention.sender.weight.shape == attention.receiver.weight.shape == (10, 10)
    assert network.heads[0].each[1].weight.shape == (4, 10)
    counted = sum(parameter.numel() for parameter in network.parameters())
    assert counted == method.network(facts).num_parameters
    with pytest.raises(InvalidInputError, match="1 or 2 layers"):
        made(unit="edge", halved=True, encoder_layers=3).plan(facts)


# --- without noise --------------------------------------------------------------------------------

OPEN = {"open_steps": 5, "head_steps": 5, "hidden_channels": 4}


@pytest.mark.parametrize("weighting", ["none", "similarity"])
def test_open_gap_reads_exact_sums_and_promises_nothing(weighting):
    method = OpenGAP(weighting=weighting, **OPEN).fit(DATA)
    assert method.certificate_.guarantee.epsilon == math.inf
    assert not method.private
    network, rows = method.network_, method.prepare(DATA)
    with torch.no_grad():
        own = torch.nn.functional.normalize(network.encoders[0].encode(rows))
        adjacency = torch.zeros(len(rows), len(rows))
        adjacency[DATA.edge_index[1], DATA.edge_index[0]] = 1.0
        adjacency.fill_diagonal_(0.0)
        if weighting == "similarity":
            adjacency = adjacency * torch.sigmoid(own @ own.T)
        first = torch.nn.functional.normalize(adjacency @ own)
        second = torch.nn.functional.normalize(adjacency @ first)
        expected = network.head(torch.cat([own, first, second], 1)).softmax(1)
    assert torch.allclose(method.predict_proba(DATA), expected, atol=2e-3)
    again = OpenGAP(weighting=weighting, **OPEN).fit(DATA)
    assert torch.equal(weights(again), weights(method))
    assert not torch.equal(method.predict_proba(other_edges(DATA)), method.predict_proba(DATA))


def test_the_paper_caps_senders_hard():
    method = made(paper=True)
    assert (method.capping_in_use, method.sender_cap_in_use) == ("hard", 50)
    assert method.plan(FACTS).details["sensitivity"] == pytest.approx(math.sqrt(50))
    assert (made().capping_in_use, made().sender_cap_in_use) == ("soft", 1)


# --- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings, error, said",
    [
        ({"weighting": "attention", "capping": "soft"}, UnprovenError, "needs capping='hard'"),
        ({"paper": True, "messages": "label"}, UnprovenError, "send encodings"),
        ({"paper": True, "aggregation_share": 0.5}, InvalidInputError, "nothing is shared"),
        ({"claimed_delta": 1e-5}, InvalidInputError, "'claimed_delta'"),
        ({"attention_noise": 1.0}, InvalidInputError, "'attention_noise'"),
        ({"paper": True, "messages": "evidence", "unit": "edge"}, UnprovenError, "send encodings"),
        ({"unit": "x"}, InvalidInputError, "'unit'"),
        ({"messages": "x"}, InvalidInputError, "'messages'"),
        ({"weighting": "x"}, InvalidInputError, "'weighting'"),
        ({"similarity": "x"}, InvalidInputError, "'similarity'"),
        ({"combine": "x"}, InvalidInputError, "'combine'"),
        ({"capping": "x"}, InvalidInputError, "'capping'"),
        ({"hops": 0}, InvalidInputError, "'hops'"),
        ({"sender_cap": 0}, InvalidInputError, "'sender_cap'"),
        ({"delta": 1 / 60}, UnprovenError, "delta must be below"),
        ({"unit": "edge", "delta": 1e-3}, UnprovenError, "delta must be below"),
        ({"unit": "edge", "epsilon": -1}, InvalidInputError, "'epsilon'"),
        ({"paper": True, "unit": "edge", "epsilon": 1e9}, BudgetError, "'epsilon'"),
    ],
)
def test_what_is_unknown_or_unproven_is_refused_in_one_line(settings, error, said):
    with pytest.raises(error, match=said) as refusal:
        made(**settings).plan(FACTS)
    assert "\n" not in str(refusal.value)


def test_attention_with_a_soft_cap_is_fine_where_nothing_is_capped():
    plan = made(unit="edge", weighting="attention", capping="soft").plan(FACTS)
    assert plan.details["sensitivity"] == pytest.approx(math.sqrt(2))


@pytest.mark.parametrize("directed", [False, True])
def test_the_delta_of_edges_comes_from_all_pairs_or_from_a_public_bound(directed):
    facts = Facts(num_nodes=60, num_features=5, num_classes=3, num_train=45, directed=directed)
    pairs = 60 * 59 if directed else 30 * 59

    def delta(**settings):
        return made(unit="edge", **settings).plan(facts).delta

    assert delta() == 1e-4  # the largest power of ten below one in 1770, or in 3540
    assert delta(public_edges=120) == 1e-3
    assert delta(public_edges=10**9) == 1e-4
    assert delta(delta=0.999 / pairs) == 0.999 / pairs
    assert delta(delta=5e-3, public_edges=120) == 5e-3
    for settings in ({"delta": 1 / pairs}, {"delta": 1 / 120, "public_edges": 120}):
        with pytest.raises(UnprovenError, match="delta must be below"):
            delta(**settings)
    assert made(public_edges=10**9).plan(facts).delta == 1e-2  # of 60 nodes, whatever their edges


# --- run directories ------------------------------------------------------------------------------

SOURCE = runs.Source(data="memory", split="given")
ARRANGED = runs.Arranged(training=DATA, testing=DATA, mode=None, split="given")
KINDS = [
    pytest.param({"unit": "edge", "hops": 2}, id="edge"),
    pytest.param({"unit": "node", "messages": "encoding", "hops": 2}, id="node"),
    pytest.param(
        {"unit": "node", "messages": "label", "weighting": "attention"},
        id="attention",
    ),
]


class Crash(BaseException):
    """Not an Exception: what a kill looks like from inside."""


def crash(*_, **__):
    raise Crash


def train(directory, method, **how):
    runs.Run(directory).train(method, SOURCE, arranged=ARRANGED, **how)
    return method


def killed(run, settings, monkeypatch, owner, name, how=crash):
    """A run that ends where ``owner.name`` would have been called."""
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, how)
        with pytest.raises(Crash):
            train(run, made(**settings))


@pytest.mark.parametrize("settings", KINDS)
def test_a_run_killed_after_the_cache_reads_it_back_and_draws_it_never_again(
    settings, tmp_path, monkeypatch
):
    run = tmp_path / "run"
    killed(run, settings, monkeypatch, hop_training, "classify")
    files = sorted((run / "checkpoint").glob("hop*.safetensors"))
    assert len(files) == settings.get("hops", 1)
    cached = torch.stack([safetensors.torch.load_file(file)["sums"] for file in files], 1)
    before = {path: path.read_bytes() for path in (run / "checkpoint").rglob("finished.*")}
    seen, steps = recorded(monkeypatch), steps_seen(monkeypatch)
    method = train(run, made(**settings), resume=True)
    assert torch.equal(method.cache_, cached)
    assert not [value for _, value, _ in seen.releases if value.dim() == 2]
    assert len(steps) == (3 if method.unit == "node" else 0)  # the classifier's
    assert method.certificate_ == method.plan_.certificate()
    assert method.certificate_.guarantee.epsilon <= 8
    if method.unit == "node" and method.encodes:  # the cache is of this encoder, and of no other
        state = safetensors.torch.load(before[run / "checkpoint/encoder/finished.safetensors"])
        for name, value in method.network_.encoders[0].state_dict().items():
            assert torch.equal(value, state[name])
    assert not (run / "checkpoint").exists()
    again = runs.Run(run).read()
    assert torch.equal(again.cache_, cached)
    assert again.certificate_ == method.certificate_


@pytest.mark.parametrize(
    "where, name",
    [
        (sending, "prepare_to_send"),
        (hop_training, "train_attention"),
        (hop_training, "head_inputs"),
    ],
)
def test_a_run_killed_between_parts_takes_no_step_twice(where, name, tmp_path, monkeypatch):
    run = tmp_path / "run"
    settings = {"messages": "encoding", "weighting": "attention", "hops": 2}
    seen, steps = recorded(monkeypatch), steps_seen(monkeypatch)
    killed(run, settings, monkeypatch, where, name)
    method = train(run, made(**settings), resume=True)
    assert len(steps) == 3 + 3 * 2 + 3
    assert len([value for _, value, _ in seen.releases if value.dim() == 2]) == 2
    assert method.certificate_.charges == method.plan_.charges


def test_a_cache_that_was_not_on_disk_is_drawn_anew_and_charged_once(tmp_path, monkeypatch):
    run, seen, write = tmp_path / "run", recorded(monkeypatch), checkpoint.write_file

    def crash_at_the_sums(path, content, **how):
        if path.name == "hop1.safetensors":
            raise Crash
        write(path, content, **how)

    killed(run, {"unit": "edge"}, monkeypatch, checkpoint, "write_file", crash_at_the_sums)
    assert len(seen.releases) == 1
    method = train(run, made(unit="edge"), resume=True)
    assert len(seen.releases) == 2
    assert method.certificate_.charges == method.plan_.charges


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    method, directory = made(unit="edge", hops=2), tmp_path_factory.mktemp("gap") / "run"
    return train(directory, method), directory


def test_a_run_keeps_its_cache_and_predicts_from_it(finished):
    method, directory = finished
    found = method.predict_proba(DATA)
    again = runs.Run(directory).read()
    assert torch.equal(again.cache_, method.cache_)
    assert torch.equal(again.predict_proba(DATA), found)
    assert torch.equal(runs.Run(directory).predict(DATA)[1], found)
    assert torch.equal(runs.Run(directory).predict(other_edges(DATA))[1], found)
    assert again.certificate_ == method.certificate_


def test_a_noisy_prediction_of_a_run_stays_on_its_certificate(finished, tmp_path):
    run = shutil.copytree(finished[1], tmp_path / "run")
    before = runs.Run(run).read().certificate_
    method, _ = runs.Run(run).predict(DATA, mode="noisy", epsilon=1.0)
    after = runs.Run(run).read()
    assert len(after.charges_) == len(before.charges) + 1
    assert after.certificate_ == method.certificate_
    assert torch.equal(after.cache_, finished[0].cache_)


@pytest.mark.parametrize("damage", ["missing", "empty", "cut short", "garbled", "another run's"])
def test_a_damaged_cache_is_one_clear_line(damage, finished, tmp_path):
    run = shutil.copytree(finished[1], tmp_path / "run")
    file = run / "cache.safetensors"
    content = file.read_bytes()
    sums = safetensors.torch.load(content)["sums"]
    if damage == "missing":
        file.unlink()
    else:
        file.write_bytes(
            {
                "empty": b"",
                "cut short": content[:-7],
                "garbled": content[:-1] + bytes([content[-1] ^ 1]),
                "another run's": safetensors.torch.save({"sums": sums + 1}),
            }[damage]
        )
    with pytest.raises(InvalidInputError, match=r"cache\.safetensors") as caught:
        runs.Run(run).read()
    assert str(run) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "first, then",
    [
        ({"unit": "edge", "epsilon": 50.0}, {"unit": "edge", "epsilon": 0.1}),
        ({"unit": "edge"}, {"unit": "node"}),
        ({"unit": "node"}, {"unit": "edge"}),
        ({"unit": "edge", "messages": "label"}, {"unit": "edge", "messages": "encoding"}),
        ({"unit": "edge", "weighting": "similarity"}, {"unit": "edge"}),
    ],
)
def test_a_cache_made_at_another_price_or_promise_is_not_sold_at_this_one(first, then, tmp_path):
    made(**first).fit(DATA, directory=tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.safetensors")}
    paid = r"hop1'? was made|hop1\.safetensors was made|'classifier', which this plan does not pay"
    paid += "|without 'encoder', which comes before"
    with pytest.raises(UnprovenError, match=paid) as refusal:
        made(**then).fit(DATA, directory=tmp_path)
    assert "\n" not in str(refusal.value)
    assert tmp_path / "hop1.safetensors" in before
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.safetensors")} == before


# --- defects that were reported and wait for a repair ---------------------------------------------


@pytest.mark.parametrize("unit", ["edge", "node"])
def test_a_row_that_overflows_in_the_encoder_stops_nobody(unit):
    x = DATA.x.clone()
    x[3] = 3e38
    method = made(unit=unit, messages="evidence", features="raw", activation="relu")
    method.fit(changed(DATA, x=x))
    others = torch.arange(len(x)) != 3
    assert method.cache_[others].isfinite().all()


def test_a_directory_that_is_not_there_is_made(tmp_path):
    made(unit="edge").fit(DATA, directory=tmp_path / "new" / "run")
    assert (tmp_path / "new" / "run" / "hop1.safetensors").exists()


def test_a_damaged_sum_of_an_unfinished_run_is_one_clear_line(tmp_path):
    made(unit="edge").fit(DATA, directory=tmp_path)
    file = tmp_path / "hop1.safetensors"
    file.write_bytes(file.read_bytes()[:50])
    with pytest.raises(InvalidInputError, match=r"hop1\.safetensors"):
        made(unit="edge").fit(DATA, directory=tmp_path)


def test_a_label_of_no_known_class_is_one_clear_line():
    method = made(unit="edge").fit(DATA)
    y = DATA.y.clone()
    y[DATA.train_mask.nonzero()[0]] = CLASSES
    with pytest.raises(InvalidInputError, match="'y'"):
        method.predict(changed(DATA, y=y), mode="visible")


def test_an_epsilon_too_small_for_the_paper_is_refused_by_name():
    with pytest.raises(BudgetError, match="epsilon"):
        made(paper=True, epsilon=1e-9).plan(FACTS)


def test_a_graph_with_more_edges_than_the_public_bound_is_refused():
    edges = DATA.edge_index.shape[1] // 2
    method = made(unit="edge", public_edges=edges).fit(DATA)
    with pytest.raises(InvalidInputError, match="public_edges") as refusal:
        made(unit="edge", public_edges=edges - 1).fit(DATA)
    assert str(edges) not in str(refusal.value)
    found, certificate = method.predict_proba(DATA), method.certificate_
    with pytest.raises(InvalidInputError, match="public_edges"):
        method.fit(graph(seed=9, edges=600))
    assert torch.equal(method.predict_proba(DATA), found)  # an earlier fit is left alone
    assert method.certificate_ == certificate


# --- what attacks found -------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [{"unit": "edge"}, {}, {"messages": "encoding"}])
def test_a_run_begun_with_fixed_noise_is_not_gone_on_with(settings, tmp_path, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(hop_training, "head_inputs", stop)
        with pytest.raises(KeyboardInterrupt):
            made(**settings).fit(DATA, directory=tmp_path, rng=secret(fixed_seed=1))
    with pytest.raises(GraphveilError, match=r"fixed|other noise"):
        made(**settings).fit(DATA, directory=tmp_path)


@pytest.mark.parametrize("unit", ["node", "edge", "edge-directed", "edge-undirected"])
@pytest.mark.parametrize("weighting", ["none", "similarity", "attention"])
def test_every_default_can_be_planned(unit, weighting):
    facts = Facts(
        num_nodes=50_000, num_features=10, num_classes=4, num_train=30_000, directed=False
    )
    plan = GAP(unit=unit, weighting=weighting, epsilon=4.0).plan(facts)
    assert 3.9 < plan.epsilon <= 4.0


def test_settings_changed_after_the_fit_are_refused():
    method = made().fit(DATA).set_params(unit="edge")
    for mode, more in [(None, None), ("noisy", 1.0), ("visible", None)]:
        with pytest.raises(InvalidInputError, match="unit"):
            method.predict_proba(DATA, mode=mode, epsilon=more)


def test_an_edge_without_its_reverse_is_covered_by_the_undirected_unit():
    one_way = changed(DATA, edge_index=DATA.edge_index[:, 1:])
    plan = made(unit="edge-undirected").fit(one_way).plan_
    assert made(unit="edge").fit(one_way).plan_.unit == plan.unit  # as is stated of the graph
    assert plan.unit == "edge-undirected"
    assert plan.details["sensitivity"] == pytest.approx(2**0.5)
    assert plan.public == ()


def test_the_public_bound_on_edges_binds_noisy_predictions():
    edges = DATA.edge_index.shape[1] // 2
    method = made(unit="edge", public_edges=edges).fit(DATA)
    before = method.certificate_
    with pytest.raises(InvalidInputError, match="public_edges"):
        method.predict_proba(graph(seed=9, edges=600), mode="noisy", epsilon=1.0)
    assert method.certificate_ == before


def test_the_weight_of_a_message_does_not_depend_on_the_others():
    torch.manual_seed(0)
    rows = torch.randn(300, 16)
    weigh = PairAttention(16, 32).between(rows)
    senders, receivers = torch.randint(300, (2, 4001))
    found = weigh(senders, receivers)
    for left_out in (0, 7, 2000, 4000):
        kept = torch.arange(4001) != left_out
        assert torch.equal(weigh(senders[kept], receivers[kept]), found[kept])
    network = PairAttention(16, 32)
    exact = copy.deepcopy(network).double()(rows[senders].double(), rows[receivers].double())
    torch.testing.assert_close(network.between(rows)(senders, receivers), exact)


def test_the_paper_has_one_map_of_the_cosine():
    with pytest.raises(UnprovenError, match="sigmoid"):
        made(unit="edge", paper=True, weighting="similarity", similarity="half").plan(FACTS)
