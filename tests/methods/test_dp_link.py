"""Private link prediction: units and charges of a plan, what is released, what is recommended."""

import copy
import math

import numpy as np
import pytest
import torch
from methods_cases import NODES, changed, links, links_of_people, recorded

from graphveil._errors import GraphveilError, InvalidInputError, UnprovenError
from graphveil.graph.link_splits import split_links
from graphveil.graph.links import own_lists
from graphveil.methods import Facts, link_models
from graphveil.methods.dp_link import DPLink, _least_divisor
from graphveil.methods.link_scoring import ITS_OWN, PUBLIC_ROWS, READS_TARGETS
from graphveil.methods.open_link import OpenLink
from graphveil.methods.parts import Steps
from graphveil.nn.link_descriptions import LinkNetwork
from graphveil.rng import secret

QUICK = {"epsilon": 8.0, "steps": 4, "negatives": 8}
PEOPLE = {"epsilon": 8.0, "steps": 4}
KINDS = {
    "public targets": (links(), QUICK),
    "people": (links_of_people(), PEOPLE),
    "people, directed": (links_of_people(directed=True), PEOPLE),
    "edges": (links(), {**QUICK, "unit": "edge"}),
    "edges of people": (links_of_people(), {**QUICK, "unit": "edge"}),
}
every_kind = pytest.mark.parametrize("kind", KINDS)


def fitted(kind, **settings):
    data, quick = KINDS[kind]
    return DPLink(**{**quick, **settings}).fit(data), data


def test_a_certificate_speaks_of_sources_and_their_lists():
    data = copy.copy(KINDS["public targets"][0])
    data.source_name = "customer"
    certificate = DPLink(**QUICK).fit(data).certificate_
    assert certificate.guarantee.unit == "node"
    assert "one customer's row and whole list of targets, however long" in str(certificate)
    assert "list may still name" not in str(certificate)
    page = str(fitted("people")[0].certificate_)
    assert "'s row and own list, however long" in page
    assert "somebody else's list may still name" in page
    assert "the presence of one link" in str(fitted("edges")[0].certificate_)


def test_there_is_no_class_of_a_link_to_predict():
    method, data = fitted("public targets")
    for ask in (method.predict, method.predict_frame):
        with pytest.raises(InvalidInputError, match="recommend"):
            ask(data)


# --- plan -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind, unit, touched, sensitivity",
    [
        ("public targets", "node", (1, 0), 1.0),
        ("people", "node", (0, 6), 1.0),
        ("people, directed", "node", (0, 6), 1.0),
        ("edges", "edge-directed", (1, 0), 1.0),
        ("edges of people", "edge-undirected", (1, 0), math.sqrt(2)),
    ],
)
def test_what_a_unit_is_charged_for(kind, unit, touched, sensitivity):
    data, quick = KINDS[kind]
    plan = DPLink(**quick).plan(Facts.of(data))
    steps = plan.part("weights")
    assert plan.unit == unit
    assert (steps.removed, steps.altered) == touched
    assert plan.part("popularity").mechanism.sensitivity == sensitivity
    names = [part.name for part in plan.parts]
    assert ("links" in names) == (unit != "node")
    assert plan.epsilon <= 8.0


def test_caps_and_negatives_of_people_are_charged_for():
    facts = Facts.of(links_of_people())
    plan = DPLink(epsilon=1.0, links_kept=3, links_in=5, negatives=2).plan(facts)
    assert plan.part("weights").altered == 3 + 5 + 2 * 3


def test_the_number_of_links_is_no_fact():
    data = links()
    fewer = changed(data, links=data.links[:, ::2], **{
        name: data[name][::2] for name in ("train_links", "val_links", "test_links")
    })  # fmt: skip
    assert Facts.of(fewer) == Facts.of(data)
    for settings in (QUICK, {**QUICK, "unit": "edge"}):
        assert DPLink(**settings).plan(Facts.of(fewer)) == DPLink(**settings).plan(Facts.of(data))


def test_delta_of_an_edge_stays_below_one_in_all_pairs():
    data = links(items=20)
    plan = DPLink(**QUICK, unit="edge").plan(Facts.of(data))
    assert plan.delta < 1 / (NODES * 20)
    with pytest.raises(GraphveilError, match="delta"):
        DPLink(**QUICK, unit="edge", delta=1 / (NODES * 20)).plan(Facts.of(data))
    assert DPLink(**QUICK, unit="edge", public_edges=70).plan(Facts.of(data)).delta > plan.delta


def test_a_direction_that_nobody_states_is_asked_for():
    data = changed(links_of_people(directed=True), directed=None)
    with pytest.raises(InvalidInputError, match="directed"):
        DPLink(**QUICK, unit="edge").fit(data)


def test_a_count_of_those_who_name_a_public_target_is_refused():
    with pytest.raises(UnprovenError, match="links_in"):
        DPLink(**QUICK, links_in=2).plan(Facts.of(links()))


def test_more_pairs_than_rounding_is_paid_for_are_refused():
    facts = Facts(
        num_nodes=10**6, num_features=5, num_classes=100, num_train=10**6, directed=True,
        record="link", task="link", target_features=4,
    )  # fmt: skip
    assert DPLink(**QUICK).plan(facts).part("weights").rate == 0.05
    with pytest.raises(UnprovenError, match="sample_rate"):
        DPLink(**QUICK, sample_rate=1.0).plan(facts)


def test_a_plan_for_other_targets_is_not_run():
    data = links()
    plan = DPLink(**QUICK).plan(Facts.of(data))
    for other in (links(items=13), links_of_people()):
        with pytest.raises(InvalidInputError, match="plan"):
            DPLink(**QUICK).run(plan, other)


def test_a_plan_says_what_is_public_of_targets():
    lines = DPLink(**QUICK).plan(Facts.of(links())).public
    assert "the rows of all 12 targets" in lines


# --- what is released -----------------------------------------------------------------------------


@every_kind
def test_what_leaves_the_data_goes_through_the_parts_that_are_charged(kind, monkeypatch):
    seen = recorded(monkeypatch)
    method, _ = fitted(kind)
    steps = method.plan_.part("weights")
    others = [part for part in method.plan_.parts if not isinstance(part, Steps)]
    mechanisms = [mechanism for mechanism, _, _ in seen.releases]
    assert mechanisms[: len(others)] == [part.mechanism for part in others]
    assert len(mechanisms) == len(others) + steps.count
    assert all(m.noise_multiplier == steps.noise_multiplier for m in mechanisms[len(others) :])
    assert all(float(v.norm()) <= len(seen.coins[0][1]) for _, v, _ in seen.releases[len(others) :])


def _state_before_noise(data, network=None):
    """All that a network holds beside its weights, where every release is the same."""
    method = DPLink(**QUICK, popularity=False)
    method.fit(data, rng=secret(fixed_seed=1))
    trained = {name for name, _ in method.network_.named_parameters()}
    return {n: v for n, v in method.network_.state_dict().items() if n not in trained}


def _withhold(data, person):
    stays = data.links[0] != person
    masks = {name: data[name][stays] for name in ("train_links", "val_links", "test_links")}
    x = data.x.clone()
    x[person] = 0
    return changed(data, x=x, links=data.links[:, stays], **masks)


def test_nothing_but_noisy_weights_knows_who_is_there():
    data = links()
    before = _state_before_noise(data)
    for person in range(0, NODES, 12):
        after = _state_before_noise(_withhold(data, person))
        assert all(torch.equal(value, after[name]) for name, value in before.items())


def test_embeddings_of_people_that_were_released_would_be_noticed(monkeypatch):
    """The mistake of a table of people: a row for each, made from that person's list."""
    plain = link_models.fit_content

    def with_table(method, facts, network, data):
        plain(method, facts, network, data)
        content = network.content(data.target_x)
        table = torch.zeros(len(data.x), content.shape[1], dtype=torch.float64)
        source, target = data.links[:, data.train_links]
        network.register_buffer("people", table.index_add_(0, source, content[target]))

    monkeypatch.setattr(link_models, "fit_content", with_table)
    data = links()
    before, after = (_state_before_noise(some) for some in (data, _withhold(data, 3)))
    assert not torch.equal(before["people"], after["people"])


def test_steps_on_edges_are_divided_by_a_noisy_number(monkeypatch):
    divisors = []
    plain = link_models.make_terms

    def note(*given, divisor, **named):
        divisors.append(divisor)
        return plain(*given, divisor=divisor, **named)

    monkeypatch.setattr(link_models, "make_terms", note)
    (_, data), (method, _) = fitted("edges"), fitted("edges")
    least = _least_divisor(method, method.plan_.facts, method.plan_.part("weights"))
    number = float(data.train_links.sum())
    for divisor in divisors:
        assert divisor != number
        assert (
            divisor == least
            or abs(divisor - number) < 60 * method.plan_.part("links").mechanism.noise_multiplier
        )
    fitted("public targets")
    assert divisors[-1] is None


@every_kind
def test_a_fit_goes_on_from_a_directory(kind, tmp_path):
    data, quick = KINDS[kind]
    method = DPLink(**{**quick, "steps": 25})

    def stop(steps):
        for step in steps:
            if step == 15:
                raise KeyboardInterrupt
            yield step

    with pytest.raises(KeyboardInterrupt):
        method.fit(data, directory=tmp_path / "run", progress=stop)
    method.fit(data, directory=tmp_path / "run")
    spent = method.certificate_.guarantee.epsilon
    assert spent <= 8.0
    assert len(method.predict_proba(data)) == NODES


# --- learning -------------------------------------------------------------------------------------


def test_links_are_learnt_with_little_noise():
    data = links(people=400)
    method = DPLink(epsilon=1e6, steps=40, negatives=12).fit(data)
    guess = DPLink(epsilon=1e6, steps=1, negatives=12, prior=0.0, learning_rate=1e-9).fit(data)
    assert method.score(data) > guess.score(data) + 0.03


def test_without_noise_links_are_learnt_too():
    data = links(people=400)
    assert OpenLink(negatives=12, batch_size=128, steps=200).fit(data).score(data) > 0.4


@every_kind
@pytest.mark.parametrize("scorer", ["dot", "mlp"])
def test_every_scorer_is_trained(kind, scorer):
    method, data = fitted(kind, scorer=scorer)
    scores = method.predict_proba(data)
    assert scores.shape == (NODES, 12 if "target_x" in data else NODES)
    assert bool(scores.isfinite().all())


@pytest.mark.parametrize("scorer", ["dot", "mlp"])
def test_scores_of_some_targets_are_those_of_the_table(scorer):
    method, data = fitted("public targets", scorer=scorer)
    score = method.link_scores(data)
    sources, targets = np.array([3, 5]), np.array([[0, 4, 4], [11, 2, 0]])
    whole = score(np.arange(NODES))
    np.testing.assert_allclose(score(sources, targets), whole[sources[:, None], targets], atol=1e-5)


def test_parameters_are_as_many_as_the_plan_says():
    for scorer in ("dot", "mlp"):
        method, _ = fitted("public targets", scorer=scorer)
        counted = sum(p.numel() for p in method.network_.parameters())
        assert counted == method.plan_.details["parameters"]
        assert isinstance(method.network(method.plan_.facts), LinkNetwork)


def test_popularity_that_is_noise_is_flat_and_popularity_that_is_not_stays():
    network = DPLink(**QUICK).build(Facts.of(links(items=400)))
    rng = torch.Generator().manual_seed(0)
    noise = 30 * torch.randn(400, generator=rng, dtype=torch.float64)
    link_models.set_popularity(network, 20 + noise, 30.0)
    assert float(network.popularity.std()) < 0.3
    counts = torch.arange(400, dtype=torch.float64) * 100 + 1000
    link_models.set_popularity(network, counts + noise, 30.0)
    logs = counts.log() - counts.log().mean()
    torch.testing.assert_close(network.popularity, logs.float(), atol=0.1, rtol=0.0)


# --- recommendations ------------------------------------------------------------------------------


@every_kind
def test_nobody_is_recommended_what_is_in_the_own_list(kind):
    method, data = fitted(kind)
    best = method.recommend(data, top=5)
    assert best.targets.shape == best.scores.shape == (NODES, 5)
    lists = own_lists(data)
    whole = method.link_scores(data)(np.arange(NODES))
    for source in range(NODES):
        own = lists.others[lists.offsets[source] : lists.offsets[source + 1]]
        named = best.targets[source][best.targets[source] >= 0]
        assert not set(own.tolist()) & set(named.tolist())
        assert "target_x" in data or source not in named
        left = np.ones(whole.shape[1], dtype=bool)
        left[own] = False
        if "target_x" not in data:
            left[source] = False
        most = np.sort(whole[source][left])[::-1][: len(named)]
        np.testing.assert_allclose(best.scores[source][: len(named)], most, atol=1e-5)


def test_a_list_of_everything_leaves_nothing_to_recommend():
    data = copy.copy(links())
    data.links = torch.cat([torch.cartesian_prod(torch.tensor([0]), torch.arange(12)).t(),
                            data.links[:, data.links[0] > 0]], 1)  # fmt: skip
    data = split_links(data, (1.0, 0.0, 0.0))
    best = DPLink(**QUICK).fit(data).recommend(data, top=20, sources=[0, 1])
    assert best.targets[0].tolist() == [-1] * 20
    assert (best.targets[1] >= 0).sum() == 12 - 6
    assert bool(np.isneginf(best.scores[0]).all())


@pytest.mark.parametrize(
    "kind, sentence",
    [("public targets", ITS_OWN), ("people", READS_TARGETS), ("edges", PUBLIC_ROWS)],
)
def test_who_may_see_recommendations_is_said(kind, sentence):
    method, data = fitted(kind)
    assert method.recommend(data, top=1).seen_by == sentence


def test_what_a_source_is_recommended_is_its_own_affair():
    """Another person's row and list change nothing of it, where targets are public."""
    method, data = fitted("public targets")
    before = method.recommend(data, top=3)
    after = method.recommend(_withhold(data, 7), top=3)
    others = np.arange(NODES) != 7
    assert (before.targets[others] == after.targets[others]).all()
    assert (before.scores[others] == after.scores[others]).all()


@pytest.mark.parametrize("sources", [[-1], [NODES], [0.5], [[1]]])
def test_sources_that_are_none_are_refused(sources):
    method, data = fitted("public targets")
    with pytest.raises(InvalidInputError, match="sources"):
        method.recommend(data, sources=sources)


def test_other_targets_than_those_of_training_are_refused():
    method, _ = fitted("public targets")
    with pytest.raises(InvalidInputError, match="targets"):
        method.predict_proba(links(items=13))


def test_one_table_of_very_many_scores_is_refused(monkeypatch):
    from graphveil.methods import link_scoring

    method, data = fitted("public targets")
    monkeypatch.setattr(link_scoring, "MOST_SCORES", 100)
    with pytest.raises(InvalidInputError, match="recommend"):
        method.predict_proba(data)


@pytest.mark.parametrize("ask", ["predict_frame", "embed"])
def test_what_links_have_no_table_of_is_refused(ask):
    method, data = fitted("public targets")
    with pytest.raises(InvalidInputError, match="recommend"):
        getattr(method, ask)(data)


# --- data -----------------------------------------------------------------------------------------

REFUSED = {
    "no links": lambda data: changed(data, links=None, edge_index=torch.zeros(2, 1).long()),
    "links as rows": lambda data: changed(data, links=data.links.t()),
    "an absent source": lambda data: changed(data, links=data.links + torch.tensor([[NODES], [0]])),
    "an absent target": lambda data: changed(data, links=data.links + torch.tensor([[0], [12]])),
    "a pair twice": lambda data: changed(data, links=data.links[:, :1].repeat(1, 360)),
    "no mask of links": lambda data: changed(data, train_links=None),
    "a mask of numbers": lambda data: changed(data, train_links=data.train_links.long()),
    "a short mask": lambda data: changed(data, test_links=data.test_links[1:]),
    "masks that overlap": lambda data: changed(data, test_links=data.train_links),
    "nobody to train on": lambda data: changed(
        data, train_mask=torch.zeros(NODES, dtype=torch.bool)
    ),
    "targets of NaN": lambda data: changed(data, target_x=data.target_x * math.nan),
    "whole-number targets": lambda data: changed(data, target_x=data.target_x.long()),
}


@pytest.mark.parametrize("why", REFUSED)
def test_links_unfit_to_train_on_are_refused_in_one_line(why):
    with pytest.raises(InvalidInputError) as refusal:
        DPLink(**QUICK).fit(REFUSED[why](links()))
    message = str(refusal.value)
    assert "must be" in message or "must have" in message
    assert "Got" in message
    assert ";" in message
    assert "\n" not in message


@pytest.mark.parametrize(
    "broken, word",
    [
        (lambda pairs: pairs.flip(0), "smaller"),
        (lambda pairs: torch.cat([pairs[:1], pairs[:1]]), "itself|different"),
    ],
)
def test_pairs_of_one_type_have_an_order_and_two_ends(broken, word):
    data = links_of_people()
    with pytest.raises(InvalidInputError, match=word):
        DPLink(**PEOPLE).fit(changed(data, links=broken(data.links)))


def test_methods_for_nodes_refuse_links_and_the_other_way_round():
    from graphveil.methods import METHODS

    with pytest.raises(InvalidInputError, match="links between sources and targets"):
        METHODS["dp-mlp"](epsilon=1.0).fit(links())


@pytest.mark.parametrize("by", ["random", "source", "time"])
def test_every_split_is_trained_on_and_scored(by):
    data = copy.copy(links(people=200))
    data.link_time = torch.rand(data.links.shape[1], dtype=torch.float64)
    times = (0.6, 0.8) if by == "time" else None
    data = split_links(data, (0.6, 0.2, 0.2), by=by, times=times)
    method = DPLink(**{**QUICK, "epsilon": 100.0}).fit(data)
    assert 0 < method.score(data) <= 1
    assert 0 < method.score(data, mask="val_mask") <= 1
