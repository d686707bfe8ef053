"""Noisy sums at public rows: their sensitivity by brute force, and that everybody is charged."""

import copy
import math

import numpy as np
import pytest
import torch
from torch_geometric.data import HeteroData

from graphveil import DPMLP, GAP, UnprovenError, epsilon_of, split
from graphveil._errors import InvalidInputError
from graphveil.graph.own_lists import make_lists
from graphveil.graph.typed import flatten
from graphveil.methods.parts import Earlier
from graphveil.methods.plan import Plan
from graphveil.methods.public_sums import add_up, release_sums
from graphveil.rng import secret


def make_graph(people=200, items=12, seed=0, share=0.5):
    rng = np.random.default_rng(seed)
    graph = HeteroData()
    graph.people = ["user"]
    graph["user"].x = torch.tensor(rng.normal(size=(people, 3)), dtype=torch.float32)
    graph["user"].y = torch.from_numpy(rng.integers(2, size=people))
    graph["user"].num_classes = 2
    drawn = rng.random(people)
    for name, inside in (("train", drawn < 0.7), ("val", drawn > 0.9), ("test", None)):
        inside = (drawn >= 0.7) & (drawn <= 0.9) if inside is None else inside
        graph["user"][f"{name}_mask"] = torch.from_numpy(inside)
    graph["item"].x = torch.tensor(rng.normal(size=(items, 2)), dtype=torch.float32)
    buys = rng.random((people, items)) < share * rng.random((people, 1)) * 2
    graph["user", "buys", "item"].edge_index = torch.from_numpy(np.stack(np.nonzero(buys)))
    return graph


def everybody(lists, messages, most, add=add_up):
    """How far the sums move when somebody is withheld: for everybody."""
    whole = add(lists, messages, most)
    moves = []
    for person in range(lists.shape[0]):
        kept = lists.tocoo()
        others = kept.row != person
        without = make_lists(kept.row[others], kept.col[others], lists.shape)
        null = messages.clone()
        null[person] = 0
        moves.append(float((whole - add(without, null, most)).norm()))
    return moves


def unweighted(lists, messages, most):
    """The planted mistake: long lists send as much a row as short ones."""
    return torch.from_numpy((lists > 0).astype(float).T @ messages.double().numpy())


@pytest.mark.parametrize("most", [1, 2, 5, 30])
@pytest.mark.parametrize("seed", range(3))
def test_nobody_moves_the_sums_further_than_is_charged(most, seed):
    rng = np.random.default_rng(seed)
    people, items = 14, 20
    pairs = np.stack(np.nonzero(rng.random((people, items)) < rng.random((people, 1))))
    pairs = np.concatenate([pairs, [[0] * items, range(items)], pairs[:, :9]], 1)  # some twice
    lists = make_lists(pairs[0], pairs[1], (people, items))
    messages = torch.tensor(rng.normal(size=(people, 4)))
    messages /= messages.norm(dim=1, keepdim=True)
    messages[1] *= 1e6  # cut to length 1
    moves = everybody(lists, messages, most)
    assert max(moves) <= math.sqrt(most) * (1 + 1e-9)
    assert max(moves) > 0.99 * math.sqrt(min(most, items))  # who names all reaches the bound
    lengths = np.diff(lists.indptr)
    for length, move in zip(lengths, moves, strict=True):
        assert move == pytest.approx(math.sqrt(min(length, most)), rel=1e-3)
    wrong = everybody(lists, messages / messages.norm(dim=1, keepdim=True), most, unweighted)
    assert (max(wrong) > math.sqrt(most) * 1.01) == (most < items)


def test_a_person_moves_the_sums_by_the_own_terms_alone():
    rng = np.random.default_rng(0)
    pairs = np.stack(np.nonzero(rng.random((30, 8)) < 0.5))
    lists = make_lists(pairs[0], pairs[1], (30, 8))
    messages = torch.tensor(rng.normal(size=(30, 4)))
    order = rng.permutation(30)
    place = np.argsort(order)
    turned = make_lists(place[pairs[0]], pairs[1], (30, 8))
    # On the grid sums are exact: the same bits in any order.
    assert add_up(lists, messages, 3).equal(add_up(turned, messages[order], 3))


@pytest.mark.parametrize("sends", ["columns", "label"])
def test_the_sums_are_charged_by_every_certificate(sends):
    graph = make_graph()
    before = copy.deepcopy(graph)
    released = release_sums(graph, "buys", epsilon=1.0, most=4, sends=sends)
    assert graph["item"].x.equal(before["item"].x)  # what is given stays as it is
    assert not hasattr(graph, "spent")
    data = flatten(released)
    more = {"columns": 4, "label": 3}[sends]  # three columns or two classes, and who sent
    assert data.x.shape[1] == flatten(graph).x.shape[1] + 2 * more  # mean and sum of each
    fitted = DPMLP(epsilon=2.0, steps=3).fit(data)
    charges = fitted.certificate_.charges
    assert any("noisy sums at public rows over user-buys-item" in c.paid_for for c in charges)
    alone = DPMLP(epsilon=2.0, steps=3).fit(flatten(graph))
    assert alone.certificate_.guarantee.epsilon < 2.001
    total = fitted.certificate_.guarantee.epsilon
    assert 2.1 < total < 3.0
    part = next(part for part in fitted.plan_.parts if isinstance(part, Earlier))
    assert epsilon_of(part.event, fitted.plan_.delta) == pytest.approx(1.0, abs=0.01)
    assert Plan.from_json(fitted.plan_.plain().to_json()) == fitted.plan_
    again = split(data, seed=3)  # parts of the data keep what it cost
    assert DPMLP(epsilon=2.0, steps=3).fit(again).certificate_.guarantee.epsilon > 2.1
    with pytest.raises(InvalidInputError, match="released once"):
        release_sums(released, "buys", epsilon=1.0, most=4)


def test_noise_is_on_every_row_and_as_large_as_is_charged():
    graph = make_graph(people=40, items=400, share=0.0)
    graph["user", "buys", "item"].edge_index = torch.tensor([[0], [0]])
    draws = [release_sums(graph, "buys", epsilon=1.0, most=4)["item"].x[:, 2:] for _ in range(2)]
    assert (draws[0][:, :-1] != draws[1][:, :-1]).all()
    lists, messages = make_lists(np.array([0]), np.array([0]), (40, 400)), torch.zeros(40, 4)
    assert not add_up(lists, messages, 4).any()


def test_paths_through_public_rows_go_through_noise_alone():
    """Withheld people move no other row, once the sums are drawn."""
    graph = make_graph()
    released = release_sums(graph, "buys", epsilon=1.0, most=4)
    here = flatten(released)
    for person in range(0, 200, 17):
        other = copy.copy(released)
        ends = released["user", "buys", "item"].edge_index
        other["user", "buys", "item"].edge_index = ends[:, ends[0] != person]
        other["user"].x = released["user"].x.clone()
        other["user"].x[person] = 0
        there = flatten(other)
        kept = torch.arange(200) != person
        assert here.x[kept].equal(there.x[kept])


def test_what_the_charge_does_not_cover_is_refused():
    graph = make_graph()
    released = release_sums(graph, "buys", epsilon=1.0, most=4)
    bare = flatten(released, lists=[])
    bare.directed = False
    with pytest.raises(UnprovenError, match="Sums that were released before"):
        GAP(epsilon=1.0, unit="edge").fit(bare)
    for change, words in (
        ({"most": 0}, "'most' parameter"),
        ({"sends": "ids"}, "'sends' parameter"),
        ({"epsilon": -1.0}, "epsilon"),
    ):
        with pytest.raises(InvalidInputError, match=words):
            release_sums(graph, "buys", **{"epsilon": 1.0, "most": 2, **change})
    with pytest.raises(InvalidInputError, match="relation must be one of"):
        release_sums(graph, "sells", epsilon=1.0, most=2)
    graph["user", "knows", "user"].edge_index = torch.empty(2, 0, dtype=torch.long)
    with pytest.raises(InvalidInputError, match="two types that are people"):
        release_sums(graph, "knows", epsilon=1.0, most=2)
    del graph["user"].num_classes
    with pytest.raises(InvalidInputError, match="'num_classes'"):
        release_sums(graph, "buys", epsilon=1.0, most=2, sends="label")


def test_a_seeded_stream_voids_what_is_trained_on_its_sums():
    from graphveil.rng import secret

    released = release_sums(make_graph(), "buys", epsilon=1.0, most=4, rng=secret(fixed_seed=1))
    fitted = DPMLP(epsilon=2.0, steps=2).fit(flatten(released))
    assert fitted.certificate_.void_because


def test_sums_find_what_items_have_in_common():
    rng = np.random.default_rng(0)
    graph = make_graph(people=4000, items=20, share=0.2)
    taste = rng.normal(size=20)
    ends = graph["user", "buys", "item"].edge_index
    score = torch.zeros(4000).index_add_(0, ends[0], torch.tensor(taste)[ends[1]].float())
    graph["user"].y = (score > score.median()).long()
    released = release_sums(graph, "buys", epsilon=2.0, most=4, sends="label")
    shares = released["item"].x[:, 2:4]
    assert np.corrcoef((shares[:, 1] - shares[:, 0]).numpy(), taste)[0, 1] > 0.8
    assert secret().void_reason is None


def test_audits_know_what_was_released_before():
    from graphveil.audit.mechanism import audit_plan
    from graphveil.audit.replay import replay
    from graphveil.methods.plan import Facts

    data = flatten(release_sums(make_graph(), "buys", epsilon=1.0, most=4))
    method = DPMLP(epsilon=2.0, steps=3)
    finding = replay(method, data, most=2)
    assert finding.holds, finding.violations
    plan = method.plan(Facts.of(data)).on(data)
    findings = audit_plan(plan, draws=1000)
    assert all(finding.holds for finding in findings)
    assert any("sums of user-buys-item" in finding.name for finding in findings)
    bare = flatten(make_graph())
    assert method.plan(Facts.of(bare)).on(bare).epsilon < plan.epsilon


def test_a_method_that_is_saved_keeps_what_was_released_before(tmp_path):
    from graphveil import read

    data = flatten(release_sums(make_graph(), "buys", epsilon=1.0, most=4))
    fitted = DPMLP(epsilon=2.0, steps=3).fit(data)
    fitted.save(tmp_path / "saved", data)
    again = read(tmp_path / "saved")
    assert again.certificate_.guarantee == fitted.certificate_.guarantee
    assert again.plan_ == fitted.plan_
    resumed = DPMLP(epsilon=2.0, steps=3).fit(data, directory=tmp_path / "noted")
    assert resumed.certificate_.guarantee.epsilon == fitted.certificate_.guarantee.epsilon
