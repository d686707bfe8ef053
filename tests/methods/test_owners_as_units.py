"""Owners of several records: one unit, brute force over what is theirs, and what is refused."""

import copy
import math
import re

import pytest
import torch
from methods_cases import CLASSES, NODES, changed, graph, graphs, made, weights

import graphveil
from graphveil import Facts, cap_owners, set_owners, split
from graphveil._errors import InvalidInputError, UnprovenError
from graphveil.audit.neighbours import neighbours, withhold_all
from graphveil.audit.recording import covers
from graphveil.audit.replay import replay
from graphveil.grads.clipped import ClippedSum
from graphveil.grads.clipping import Flat
from graphveil.grads.own_rows import RowExamples, RowSum
from graphveil.methods import METHODS
from graphveil.methods.class_weights import release_counts
from graphveil.methods.execution import Execution
from graphveil.methods.graph_models import count_examples, count_losses, reads_counts
from graphveil.methods.moments import release_errors, release_moments
from graphveil.methods.own_row import release_mean
from graphveil.methods.owners import leave_owners
from graphveil.methods.parts import Steps
from graphveil.methods.terms import graph_losses, node_losses
from graphveil.privacy.guarantee import Certificate
from graphveil.rng import secret

PEOPLE = 17
COUNTS = {"hidden_channels": 32}  # the usual width, so that no convolution is asked for


def owned(data, people=PEOPLE, seed=0):
    """Of so many people: one has a single record, others up to several; masks by owner."""
    generator = torch.Generator().manual_seed(seed)
    owner = torch.randint(1, people, (len(data.y),), generator=generator)
    owner[7] = 0
    return split(set_owners(data, 100 - 3 * owner, name="patient"), seed=seed)


GRAPH, GRAPHS = owned(graph()), owned(graphs())
ONE_TERM = [("late-graph", {}), ("dp-mlp", {}), ("dp-mlp", {"num_layers": 2})]
ONE_TERM += [("graph-dpsgd", COUNTS), ("graph-dpsgd", {"conv": "gcn"})]
one_term = pytest.mark.parametrize(("name", "settings"), ONE_TERM, ids=str)


def data_of(name):
    return GRAPHS if METHODS[name].record == "graph" else GRAPH


def altered(data, rows):
    """Other features and labels in the places of ``rows``, and another list."""
    data = copy.copy(data)
    data.x, data.y = data.x.clone(), data.y.clone()
    inside = torch.isin(data.batch, torch.tensor(rows)) if "batch" in data else torch.tensor(rows)
    data.x[inside] = data.x[inside].flip(1) * 1e3 + 1.0
    data.y[rows] = (data.y[rows] + 1) % CLASSES
    return data


def worlds(data):
    """Every owner's records, and the data without them, and with others in their places."""
    for owner in data.owner.unique().tolist():
        rows = (data.owner == owner).nonzero().flatten().tolist()
        yield owner, withhold_all(data, rows), altered(data, rows)


# --- (b) one term ---------------------------------------------------------------------------------


def terms_of(method, data, facts, drawn=None):
    """Every term's clipped gradient, in units of the bound: (terms, parameters)."""
    torch.manual_seed(0)
    network = method.network(facts).build()
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    data = leave_owners(facts, data)
    method.plan_ = method.plan(facts)
    graph_terms = METHODS[method.name].record == "graph"
    if graph_terms and reads_counts(method):
        terms, losses = count_examples(method, data), count_losses(method.task(facts), None)
    elif graph_terms:
        terms, losses = method.terms(data), graph_losses(method.task(facts), None)
    else:
        terms, losses = method.terms(data), node_losses(method.task(facts))
    kind = RowSum if isinstance(terms, RowExamples) else ClippedSum
    summed = kind(network, losses, Flat(0.05))
    out = []
    for number in range(len(terms)) if drawn is None else drawn.tolist():
        total = summed(terms.batches(torch.tensor([number])))
        out.append(torch.cat([value.flatten().double() for value in total.values()]) / 0.05)
    return torch.stack(out)


@one_term
def test_an_owner_removes_one_term_and_alters_no_other(name, settings):
    """Brute force: deletion (and, read backwards, insertion) and alteration of all their rows."""
    data, method = data_of(name), made(name, **settings)
    facts = method.plan(Facts.of(data)).facts
    whole = terms_of(method, data, facts)
    assert len(whole) == facts.num_train < facts.train_rows
    furthest = 0.0
    for owner, without, other in worlds(data):
        trained = bool((data.train_mask & (data.owner == owner)).any())
        for world, most in ((without, 1.0), (other, 2.0)):
            terms = terms_of(method, world, facts)
            differ = (terms != whole).any(1)
            assert int(differ.sum()) == trained
            moved = float((terms - whole).sum(0).norm())
            assert moved <= most * (1 + 1e-6)
            if most == 1:
                assert not terms[differ].any()  # removed, not altered
                furthest = max(furthest, moved)
    assert furthest > 0.99


@pytest.mark.parametrize("bound", [0.05, 1e3], ids=["clipped", "whole"])
def test_the_graphs_of_an_owner_are_clipped_as_one(bound):
    """The fast path of convolutions against autograd, an owner at a time."""
    method = made("graph-dpsgd", conv="gcn")
    facts = method.plan(Facts.of(GRAPHS)).facts
    torch.manual_seed(2)
    network, terms = method.network(facts).build(), method.terms(GRAPHS)
    losses = graph_losses(method.task(facts), None)
    total = ClippedSum(network, losses, Flat(bound))(terms.batches(torch.arange(len(terms))))
    plain = {name: torch.zeros_like(value) for name, value in network.named_parameters()}
    everyone = method.graphs(GRAPHS)
    for owner in GRAPHS.owner[GRAPHS.train_mask].unique().tolist():
        ids = (GRAPHS.owner == owner).nonzero().flatten()
        logits = everyone.logits(network, ids)
        loss = torch.nn.functional.cross_entropy(logits, GRAPHS.y[ids])
        gradient = torch.autograd.grad(loss, list(network.parameters()))
        norm = torch.cat([part.flatten() for part in gradient]).norm()
        for value, part in zip(plain.values(), gradient, strict=True):
            value += part * (bound / norm).clamp_max(1.0)
    for name, value in plain.items():
        slack = (2.0**-7 if bound < 1 else 1e-5) * float(value.abs().max())
        torch.testing.assert_close(total[name].float(), value, rtol=0, atol=slack)


def test_rows_clipped_one_by_one_while_one_is_charged_are_caught(monkeypatch):
    """A planted mistake: an owner of several rows has as many terms, each of length one."""
    held = replay(made("dp-mlp"), GRAPH, most=4)
    assert held.holds, held.violations
    assert (held.figures["removed"], held.figures["altered"]) == (1, 0)

    def by_row(rows, data):
        train = data.train_mask.nonzero().flatten()
        return RowExamples(rows[train], data.y[train])

    monkeypatch.setattr("graphveil.methods.terms.own_row_terms", by_row)
    finding = replay(made("dp-mlp", sample_rate=1.0), GRAPH, most=3)
    rules = {violation.rule.partition(": ")[2] for violation in finding.violations}
    assert "more terms change than are charged" in rules
    assert "the sum moves further than is charged" in rules


@pytest.mark.parametrize(
    ("name", "settings"),
    [("late-graph", {}), ("graph-dpsgd", COUNTS), ("graph-dpsgd", {"conv": "gcn"})],
    ids=str,
)
def test_a_replay_of_owners_holds(name, settings):
    method = made(name, class_weights="noisy", steps=2, **settings)
    finding = replay(method, data_of(name), most=4)
    assert finding.holds, finding.violations
    assert (finding.figures["removed"], finding.figures["altered"]) == (1, 0)


def test_every_owner_can_be_withheld():
    names = [one.name for one in neighbours(GRAPH, "owner", most=100)]
    assert len(names) == len(set(names)) == PEOPLE
    first = next(neighbours(GRAPHS, "owner"))
    rows = GRAPHS.owner == int(first.name.split()[1])
    assert first.record == rows.nonzero().flatten().tolist()
    assert not rows[first.data.batch].any()
    assert (first.data.y[rows] == -1).all()


# --- sums that are released -----------------------------------------------------------------------


def sums(monkeypatch, data, settings, task):
    """What goes to the Gaussians, by part, before noise."""
    method = made("late-graph", **settings)
    plan = method.plan(Facts.of(data))
    values = []

    def release(mechanism, value, rng):
        values.append((mechanism.sensitivity, torch.as_tensor(value)))
        return torch.zeros_like(values[-1][1])

    with monkeypatch.context() as patch:
        patch.setattr("graphveil.mechanisms.Gaussian.release", release)
        execution = Execution(plan, rng=secret(fixed_seed=1))
        method.plan_ = plan
        encoded = method._encode(data)
        if task == "regression":
            release_moments(execution, encoded)
            release_errors(execution, torch.zeros(int(data.train_mask.sum()), 1), encoded)
        else:
            release_counts(execution, encoded)
        release_mean(method, execution, encoded)
    return values


def about(task):
    if task == "regression":
        return changed(GRAPH, task=task, y=GRAPH.y.float(), value_range=(0.0, 2.0))
    if task == "multilabel":
        return changed(GRAPH, task=task, y=torch.stack([GRAPH.y == 0, GRAPH.y > -1], 1).long())
    return GRAPH


@pytest.mark.parametrize("task", ["multiclass", "multilabel", "regression"])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_an_owner_moves_each_sum_by_its_sensitivity_at_most(task, monkeypatch):
    data = about(task)
    if task == "multilabel":
        data.num_classes = 2
    whole = sums(monkeypatch, data, {}, task)
    furthest = [0.0] * len(whole)
    for owner in data.owner.unique().tolist():
        rows = (data.owner == owner).nonzero().flatten().tolist()
        other = changed(withhold_all(data, rows), withheld=rows[0])
        for place, (one, two) in enumerate(
            zip(whole, sums(monkeypatch, other, {}, task), strict=True)
        ):
            assert one[0] == two[0]
            moved = float((one[1] - two[1]).norm())
            assert moved <= one[0]
            furthest[place] = max(furthest[place], moved / one[0])
    assert min(furthest) > 0.3  # they move, all of them
    assert max(furthest) > 0.9


# --- one record each ------------------------------------------------------------------------------


@one_term
def test_owners_of_one_record_each_change_nothing_to_the_last_bit(name, settings):
    plain = split(graphs() if METHODS[name].record == "graph" else graph())
    numbers = torch.randperm(NODES, generator=torch.Generator().manual_seed(3)) - 20
    singles = split(set_owners(plain, numbers, name="patient"))
    for mask in ("train_mask", "val_mask", "test_mask"):
        assert torch.equal(plain[mask], singles[mask])
    one = made(name, **settings).fit(plain, rng=secret(fixed_seed=5))
    two = made(name, **settings).fit(singles, rng=secret(fixed_seed=5))
    assert torch.equal(weights(one), weights(two))
    assert one.plan_.parts == two.plan_.parts
    assert one.plan_.epsilon == two.plan_.epsilon
    assert two.certificate_.guarantee.unit == "owner"
    assert torch.equal(one.predict(plain), two.predict(singles))


def test_methods_without_a_proof_take_owners_of_one_record_each():
    singles = set_owners(graph(), torch.arange(NODES))
    for name in ("gap", "dpar", "graph-split"):
        method = made(name)
        assert method.plan(Facts.of(singles)) == method.plan(Facts.of(graph()))


# --- (a) every record is charged ------------------------------------------------------------------

FEW = split(cap_owners(owned(graph(2, 40, 60), 13), 3), (0.8, 0.0, 0.2))
BY_ROWS = [
    {"sender_cap": 2},
    {"sender_cap": 1, "num_layers": 2},
    {"sender_cap": 2, "conv": "gat", "normalisation": "symmetric"},
]


def count_changes(method, facts):
    """Of every owner, the terms that are theirs, and how many others differ without their rows."""
    whole = terms_of(method, FEW, facts)
    trained = FEW.train_mask.nonzero().flatten()
    for _, without, _ in worlds(FEW):
        gone = without.y[trained] < 0
        other = terms_of(method, without, facts, drawn=(~gone).nonzero().flatten())
        yield int(gone.sum()), int((other != whole[~gone]).any(1).sum())


@pytest.mark.parametrize("settings", BY_ROWS, ids=str)
def test_an_owner_of_k_rows_changes_no_more_terms_than_are_charged(settings):
    method = made("dp-gnn", **settings)
    plan = method.plan(Facts.of(FEW))
    steps, rows = plan.part("weights"), plan.facts.num_train
    one = METHODS["dp-gnn"](epsilon=8.0, delivery=1.0, **settings)
    removed, altered = one.influence(Facts.of(FEW).by_record())
    assert (steps.removed, steps.altered) == (
        (3 * removed, 3 * altered) if 3 * altered < rows else (0, rows)
    )
    assert steps.delivery == 1
    assert plan.epsilon <= 8.0
    counts = list(count_changes(method, plan.facts))
    for own, others in counts:
        assert covers((steps.removed, steps.altered), (own, others))
    # A charge for one row, which would be a mistake, is caught.
    assert not all(covers((removed, altered), count) for count in counts)
    assert max(own for own, _ in counts) == 3


def test_a_charge_for_one_of_k_rows_is_caught(monkeypatch):
    method = made("dp-gnn", steps=1, sender_cap=2)
    finding = replay(method, FEW, most=2)
    assert finding.holds, finding.violations
    assert finding.figures["removed"] == 3
    monkeypatch.setattr("graphveil.methods.dp_gnn.scale_influence", lambda facts, one: (1, 0))
    finding = replay(method, FEW, most=1)
    assert any("more terms change than are charged" in one.rule for one in finding.violations)


def test_the_price_grows_with_the_rows_an_owner_may_have():
    sizes = {"num_nodes": 9000, "num_features": 5, "num_classes": 3, "num_train": 3000}

    def noise(rows):
        owned = Facts(**sizes, num_owners=4000, train_rows=6000, owner_rows=rows)
        return made("dp-gnn").plan(owned).part("weights").noise_multiplier

    noises = [noise(rows) for rows in (1, 2, 4, 8)]
    assert noises == sorted(noises)
    assert noises[-1] > 2 * noises[0]


def test_noisy_counts_of_classes_are_charged_for_every_row():
    data = split(cap_owners(GRAPH, 2))
    plan = made("dp-gnn", class_weights="noisy").plan(Facts.of(data))
    assert plan.part("counts").mechanism.sensitivity == 2.0
    method = made("dp-gnn", class_weights="noisy", steps=2)
    finding = replay(method, data, most=2)
    assert finding.holds, finding.violations


# --- what is refused ------------------------------------------------------------------------------


def refused(call, *args, **settings):
    with pytest.raises((UnprovenError, InvalidInputError)) as caught:
        call(*args, **settings)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_what_is_not_proven_is_refused_with_a_way_out():
    facts = Facts.of(GRAPH)
    for name in ("gap", "dpar", "graph-split"):
        message = refused(made(name).plan, facts)
        fitting = re.search(r"take ([\w-]+) or ([\w-]+), or", message)
        assert "owner_rows = 1 in the schema" in message
        for other in fitting.groups():
            kind = METHODS[other]
            assert (kind.record, kind.owners, kind.private) == ("node", "one term", True)
    assert "cap_owners" in refused(made("dp-gnn").plan, facts)
    capped = Facts.of(split(cap_owners(GRAPH, 2)))
    for settings in (
        {"relation": "remove", "public_degree": 5},
        {"delivery": 0.5},
        {"sampler": "printed"},
    ):
        assert next(iter(settings)) in refused(made("dp-gnn", **settings).plan, capped)
    paper = made(
        "graph-dpsgd", paper=True, conv="gcn", noise_multiplier=1.0, batch_size=4, delta=1e-3
    )
    assert "leave out 'paper'" in refused(paper.plan, Facts.of(GRAPHS))


def test_a_noisy_prediction_is_refused_before_anything_is_released():
    method = made("late-graph").fit(GRAPH)
    before = list(method.charges_)
    assert "'visible'" in refused(method.predict, GRAPH, mode="noisy", epsilon=1.0)
    assert method.charges_ == before


def test_private_scores_of_trials_are_refused():
    from graphveil.tuning.scores import sensitivity

    assert "--public-data" in refused(sensitivity, made("late-graph"), Facts.of(GRAPH))
    assert sensitivity(made("late-graph"), Facts.of(graph())) == 1


def test_a_plan_for_other_owners_is_refused():
    method = made("dp-mlp")
    plan = method.plan(Facts.of(GRAPH))
    other = changed(GRAPH, owner=GRAPH.owner.clone())
    other.owner[other.train_mask.nonzero()[0, 0]] = 999
    assert "plan anew" in refused(method.run, plan, other)


@pytest.mark.parametrize("shown_to", ["owner", "themselves", "anybody", "other-graph"])
def test_a_method_that_is_chosen_can_be_planned_for_owners(shown_to):
    sizes = {"num_nodes": 90_000, "num_features": 50, "num_classes": 5, "num_train": 30_000}
    facts = Facts(**sizes, num_owners=40_000, train_rows=60_000)
    chosen = graphveil.choose(facts, epsilon=4.0, shown_to=shown_to)
    assert chosen.plan.unit == "owner"
    record = Facts(**sizes)
    assert graphveil.choose(record, epsilon=4.0, shown_to=shown_to).plan.unit == "node"


def test_open_methods_and_edges_ask_for_no_owner():
    for name, settings in (("mlp", {}), ("gnn", {}), ("gap", {"unit": "edge"})):
        method = made(name, **settings)
        plan = method.plan(Facts.of(GRAPH))
        assert plan == method.plan(Facts.of(changed(GRAPH, owner=None)))
        method.fit(GRAPH)
        assert "owner" in GRAPH


# --- what is said ---------------------------------------------------------------------------------


def test_certificates_name_the_unit_in_the_owners_words():
    data = changed(GRAPHS, unit_name="recording")
    method = made("graph-dpsgd").fit(data)
    text = str(method.certificate_)
    assert "privacy for one patient with every recording of theirs" in text
    assert "Protects one patient with every recording of theirs: features, labels" in text
    assert "which records are the same owner's, and how many owners there are" in text
    again = Certificate.from_json(method.certificate_.to_json())
    assert again == method.certificate_
    assert again.guarantee.owner == "patient"
    assert method.plan_.from_json(method.plan_.to_json()) == method.plan_
    unnamed = made("graph-dpsgd").plan(Facts.of(GRAPHS)).certificate()
    assert "privacy for one owner" in str(unnamed)


def test_facts_count_owners():
    facts = Facts.of(GRAPH)
    trained = GRAPH.owner[GRAPH.train_mask].unique()
    assert (facts.num_owners, facts.num_train) == (PEOPLE, len(trained))
    assert (facts.num_nodes, facts.train_rows) == (NODES, int(GRAPH.train_mask.sum()))
    plan = made("dp-mlp", epsilon=1.0).plan(facts)
    assert plan.delta == 10.0 ** -(math.floor(math.log10(PEOPLE)) + 1)
    steps = next(part for part in plan.parts if isinstance(part, Steps))
    assert steps.population == len(trained)
    assert "'num_owners'" in refused(Facts, **vars(facts) | {"num_owners": None})


def test_predictions_and_metrics_are_of_rows():
    method = made("late-graph").fit(GRAPH)
    assert len(method.predict(GRAPH)) == NODES
    assert 0 <= method.score(GRAPH) <= 1
    assert graphveil.set_owners is set_owners
