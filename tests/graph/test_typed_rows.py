"""Typed graphs by brute force: whoever is withheld, inserted or altered moves no other row."""

import copy
from itertools import combinations

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, HeteroData

from graphveil import GAP, DPLink, LateGraph, UnprovenError, load, release_sums, split
from graphveil._errors import InvalidInputError
from graphveil.graph.link_splits import split_links
from graphveil.graph.links import edges_as_links
from graphveil.graph.own_lists import AGGREGATES, make_lists
from graphveil.graph.typed import flatten, links_of

ALL = list(AGGREGATES)


def make_graph(seed=0, people=6, items=9, codes=4, doctors=3):
    """Patients and doctors who are people, items and codes that are not, and all kinds of ends."""
    rng = np.random.default_rng(seed)
    graph = HeteroData()
    graph.people = ["patient", "doctor"]
    for kind, count, width in (
        ("patient", people, 3), ("doctor", doctors, 2), ("item", items, 4), ("code", codes, 2),
    ):  # fmt: skip
        graph[kind].x = torch.tensor(rng.normal(size=(count, width)), dtype=torch.float32)
        graph[kind].ids = [f"{kind}-{number}" for number in range(count)]
    graph["patient"].y = torch.arange(people) % 2
    for source, word, target, share in (
        ("patient", "takes", "item", 0.5), ("code", "given_to", "patient", 0.4),
        ("doctor", "orders", "item", 0.4), ("item", "has", "code", 0.3),
        ("item", "like", "item", 0.2), ("patient", "meets", "patient", 0.3),
        ("patient", "sees", "doctor", 0.4),
    ):  # fmt: skip
        counts = len(graph[source].x), len(graph[target].x)
        ends = np.stack(np.nonzero(rng.random(counts) < share))
        graph[source, word, target].edge_index = torch.from_numpy(ends)
    graph["patient", "takes", "item"].edge_index = torch.cat(
        [graph["patient", "takes", "item"].edge_index] * 2, 1
    )  # every line twice
    for pair in (("patient", "meets", "patient"), ("patient", "sees", "doctor")):
        graph[pair].directed = False
    return graph


def withhold(graph, kind, number):
    """The neighbour in which one person's row is the null row: no columns, no label, no list."""
    other = copy.deepcopy(graph)
    other[kind].x[number] = 0
    if "y" in other[kind]:
        other[kind].y[number] = -1
    for name in other.edge_types:
        for side in (0, 2):
            if name[side] == kind:
                ends = other[name].edge_index
                other[name].edge_index = ends[:, ends[side // 2] != number]
    return other


def alter(graph, kind, number, seed):
    """The neighbour in which one person's columns and all lists are others."""
    rng = np.random.default_rng(seed)
    other = withhold(graph, kind, number)
    other[kind].x[number] = torch.tensor(rng.normal(size=other[kind].x.shape[1])) * 1e6
    for name in other.edge_types:
        for side in (0, 2):
            if name[side] == kind and name[2 - side] in ("item", "code"):
                named = rng.integers(len(other[name[2 - side]].x), size=rng.integers(0, 12))
                own = np.full(len(named), number)
                more = np.stack([own, named] if side == 0 else [named, own])
                more = torch.from_numpy(more[:, rng.permutation(len(named))])
                other[name].edge_index = torch.cat([more, other[name].edge_index], 1)
    return other


PEOPLE = [("patient", number) for number in range(6)] + [("doctor", number) for number in range(3)]


@pytest.mark.parametrize("kind, number", PEOPLE)
@pytest.mark.parametrize("target", ["patient", "doctor"])
def test_nobody_moves_another_row_to_the_last_bit(kind, number, target):
    graph = make_graph()
    here = flatten(graph, target, lists=ALL)
    names = here.ids
    place = names.index(f"{kind} {kind}-{number}")
    others = torch.arange(len(names)) != place
    neighbours = [withhold(graph, kind, number)]
    neighbours += [alter(graph, kind, number, seed) for seed in range(20)]
    moved = 0
    for neighbour in neighbours:
        there = flatten(neighbour, target, lists=ALL)
        assert there.columns == here.columns
        assert there.ids == names
        assert np.array_equal(here.x[others].numpy().view("i4"), there.x[others].numpy().view("i4"))
        moved += not here.x[place].equal(there.x[place])
    assert moved == len(neighbours)  # the search sees what does move
    null = flatten(neighbours[0], target, lists=ALL).x[place]
    assert int((null != 0).sum()) == 1  # nothing but the public type of the row


def test_a_pair_of_people_moves_its_own_rows_alone():
    graph = make_graph(3)
    here = flatten(graph, "patient", lists=ALL)
    for one, other in combinations(range(6), 2):
        there = flatten(withhold(withhold(graph, "patient", one), "patient", other), lists=ALL,
                        target="patient")  # fmt: skip
        rest = [place for place in range(len(here.x)) if place not in (one, other)]
        assert here.x[rest].equal(there.x[rest])


def test_lists_become_what_they_are_said_to():
    graph = HeteroData()
    graph.people = "user"
    graph["user"].x = torch.tensor([[1.0], [2.0], [3.0]])
    graph["item"].x = torch.tensor([[1.0, -1.0], [2.0, 0.0], [4.0, 8.0]])
    graph["item"].columns, graph["item"].ids = ["price", "taste"], ["a", "b", "c"]
    graph["user", "buys", "item"].edge_index = torch.tensor([[2, 0, 0, 0], [1, 2, 0, 0]])
    data = flatten(graph, lists=ALL)
    price = torch.log1p(torch.tensor([6.0, 0.0, 2.0]))  # a twice and c
    rows = {
        "user-buys-item count": torch.log1p(torch.tensor([3.0, 0.0, 1.0])),
        "user-buys-item mean price": torch.tensor([2.0, 0.0, 2.0]),
        "user-buys-item mean taste": torch.tensor([2.0, 0.0, 0.0]),
        "user-buys-item sum price": price,
        "user-buys-item sum taste": price * torch.tensor([1.0, 0.0, 0.0]),
        "user-buys-item max price": torch.tensor([4.0, 0.0, 2.0]),
        "user-buys-item max taste": torch.tensor([8.0, 0.0, 0.0]),
        "user-buys-item min price": torch.tensor([1.0, 0.0, 2.0]),
        "user-buys-item min taste": torch.tensor([-1.0, 0.0, 0.0]),
        "user-buys-item has a": torch.tensor([1.0, 0.0, 0.0]),
        "user-buys-item has b": torch.tensor([0.0, 0.0, 1.0]),
        "user-buys-item has c": torch.tensor([1.0, 0.0, 0.0]),
    }
    assert data.columns == ["x0", *rows]
    for place, (name, values) in enumerate(rows.items(), start=1):
        torch.testing.assert_close(data.x[:, place], values, msg=name)
    assert flatten(graph).columns == ["x0", *list(rows)[:5]]  # no bag unless asked for
    assert flatten(graph, lists=[]).columns == ["x0"]
    assert flatten(graph, lists=[]).own_lists == []
    graph["user", "buys", "item"].lists = ["bag"]
    assert flatten(graph, lists=["count"]).columns == ["x0", *list(rows)[9:]]
    graph["item"].x = torch.ones(3, 1)
    del graph["user", "buys", "item"].lists, graph["item"].columns
    named = [f"user-buys-item has {name}" for name in "abc"]  # rows that say nothing have names
    assert flatten(graph).columns == ["x0", "user-buys-item count", *named]


def test_public_rows_read_public_rows():
    graph = make_graph()
    alone = copy.deepcopy(graph)
    for name in (("item", "has", "code"), ("item", "like", "item")):
        del alone[name]
    more = set(flatten(graph, "patient").columns) - set(flatten(alone, "patient").columns)
    assert any("mean item-has-code mean" in name for name in more)
    assert any("item-like-item" in name for name in more)


def test_people_of_other_types_come_along_where_relations_lead():
    graph = make_graph()
    data = flatten(graph, "patient")
    assert len(data.x) == 9
    assert data.y.tolist() == [0, 1, 0, 1, 0, 1, -1, -1, -1]
    assert data.unit_name == "patient or doctor"
    assert data.directed is False
    sees, meets = (graph["patient", w, t].edge_index for w, t in (("sees", "doctor"),
                                                                ("meets", "patient")))  # fmt: skip
    pairs = {(a, b + 6) for a, b in sees.t().tolist()} | set(map(tuple, meets.t().tolist()))
    pairs |= {(b, a) for a, b in pairs}
    assert set(map(tuple, data.edge_index.t().tolist())) == pairs
    kinds = data.x[:, [data.columns.index(f"is a {kind}") for kind in ("patient", "doctor")]]
    assert kinds.tolist() == [[1, 0]] * 6 + [[0, 1]] * 3
    own = [name.startswith("patient: ") for name in data.columns]
    assert not data.x[6:, torch.tensor(own)].any()
    del graph["patient", "sees", "doctor"]
    assert flatten(graph, "patient").unit_name == "patient"
    graph["patient", "meets", "patient"].directed = True
    assert flatten(graph, "patient").directed is True


def test_a_relation_reversed_by_pyg_is_one_relation():
    from torch_geometric.transforms import ToUndirected

    graph = make_graph()
    both = ToUndirected()(copy.deepcopy(graph))
    both.people = graph.people
    assert any(name[1].startswith("rev_") for name in both.edge_types)
    assert flatten(both, "patient").columns == flatten(graph, "patient").columns


# --- what is no public type -----------------------------------------------------------------------


def leaky_columns(graph):
    """Item columns that were computed from people: the planted mistakes."""
    ends = graph["patient", "takes", "item"].edge_index
    lists = make_lists(*ends.numpy(), (len(graph["patient"].x), len(graph["item"].x)))
    people = (lists > 0).sum(0)
    own = lists.T @ graph["patient"].x.double().numpy()
    outcome = lists.T @ graph["patient"].y.numpy()
    return {
        "how many people": people,
        "how often": lists.sum(0) * 3.0 - 2,
        "logarithm": np.log1p(people),
        "sum of a column": own[:, 1],
        "outcome": outcome / np.maximum(1, lists.sum(0)),
    }


@pytest.mark.parametrize("mistake", list(leaky_columns(make_graph(1, people=40, items=30))))
def test_a_public_column_that_was_computed_from_people_breaks_rows_and_is_refused(
    mistake, monkeypatch
):
    def derive(of):
        column = torch.tensor(leaky_columns(of)[mistake], dtype=torch.float32)
        other = copy.deepcopy(of)
        other["item"].x = torch.cat([other["item"].x, column[:, None]], 1)
        return other

    graph = make_graph(1, people=40, items=30)
    with pytest.raises(InvalidInputError, match=r"'item' must not depend on people.*'x4'.*takes"):
        flatten(derive(graph), "patient")
    assert flatten(graph, "patient") is not None
    # Without the refusal the rows of others move: the mistake is one.
    monkeypatch.setattr("graphveil.graph.typed._check_public", lambda *_: None)
    here = flatten(derive(graph), "patient").x
    there = flatten(derive(withhold(graph, "patient", 0)), "patient").x
    assert (here[1:] != there[1:]).any(1).sum() > 3


@pytest.mark.parametrize("least", [10, 14])
def test_a_relation_of_what_is_bought_together_breaks_rows_and_is_refused(least, monkeypatch):
    def derive(of):
        ends = of["patient", "takes", "item"].edge_index
        lists = make_lists(*ends.numpy(), (len(of["patient"].x), len(of["item"].x))) > 0
        both = (lists.T.astype(int) @ lists.astype(int)).toarray()
        other = copy.deepcopy(of)
        pairs = np.stack(np.nonzero(np.triu(both, 1) >= least))
        other["item", "like", "item"].edge_index = torch.from_numpy(pairs)
        return other

    graph = make_graph(1, people=40, items=30)
    with pytest.raises(InvalidInputError, match=r"must not depend on people.*item-like-item"):
        flatten(derive(graph), "patient")
    assert flatten(graph, "patient") is not None
    monkeypatch.setattr("graphveil.graph.typed._check_relations", lambda *_: None)
    here = flatten(derive(graph), "patient").x
    there = flatten(derive(withhold(graph, "patient", 0)), "patient").x
    assert (here[1:] != there[1:]).any(1).sum() > 3


@pytest.mark.parametrize("own", ["none", "fewer"])
def test_rows_that_edges_alone_bring_are_refused(own):
    graph = make_graph()
    ends = graph["patient", "takes", "item"].edge_index
    if own == "none":  # PyG takes the number of items from the edges
        del graph["item"].x, graph["item"].ids
    else:
        graph["item"].x = graph["item"].x[: int(ends[1].max())]
        del graph["item", "like", "item"], graph["item", "has", "code"], graph["item"].ids
    with pytest.raises(InvalidInputError, match=r"edges alone bring are read off private lists"):
        flatten(graph, "patient")


def test_lists_are_no_public_rows_of_the_unit_edge():
    graph = make_graph(people=60)
    graph["patient"].y = torch.arange(60) % 2
    data = split(flatten(graph, "patient"))
    with pytest.raises(UnprovenError, match=r"unit 'edge'.*patient-takes-item"):
        GAP(epsilon=4.0, unit="edge").fit(data)
    data = split(flatten(graph, "patient", lists=[]))
    fitted = GAP(epsilon=4.0, unit="edge", steps=2).fit(data)
    assert fitted.certificate_.guarantee.unit == "edge-undirected"


def link_data(graph, how):
    """Who meets whom, by either way to make links."""
    if how == "relation":
        return split_links(links_of(graph, "patient-meets-patient"))
    return split_links(edges_as_links(flatten(graph, "patient")))


def meetings(people=60):
    graph = make_graph(people=people)
    graph["patient"].y = torch.arange(people) % 2
    del graph["patient", "sees", "doctor"]
    return graph


@pytest.mark.parametrize("how", ["relation", "edges"])
def test_lists_are_no_public_rows_of_links_either(how):
    data = link_data(meetings(), how)
    assert data.own_lists
    with pytest.raises(UnprovenError, match=r"unit 'edge'.*patient-takes-item"):
        DPLink(epsilon=4.0, unit="edge").fit(data)
    assert DPLink(epsilon=4.0, steps=2).fit(data).certificate_.guarantee.unit == "node"


@pytest.mark.parametrize("how", ["relation", "edges"])
def test_sums_that_were_released_before_are_charged_to_links(how):
    noisy = release_sums(meetings(), "patient-takes-item", epsilon=3.0, most=4)
    data = link_data(noisy, how)
    fitted = DPLink(epsilon=2.0, steps=2).fit(data)
    assert fitted.certificate_.guarantee.epsilon > 3
    with pytest.raises(UnprovenError, match="unit 'edge'"):
        DPLink(epsilon=2.0, unit="edge", steps=2).fit(data)


@pytest.mark.parametrize("how", ["relation", "edges"])
def test_owners_of_several_sources_are_refused_by_links(how):
    graph = meetings()
    graph["patient"].owner = torch.arange(60) // 4
    with pytest.raises(UnprovenError, match="owner"):
        DPLink(epsilon=2.0, steps=2).fit(link_data(graph, how))


def test_owners_of_two_types_are_refused():
    graph = make_graph(people=60)
    graph["doctor"].owner = torch.arange(3)
    with pytest.raises(UnprovenError, match=r"owner.*'doctor'.*'patient'"):
        flatten(graph, "patient")
    del graph["doctor"].owner
    graph["patient"].owner = torch.arange(60) // 2
    data = flatten(graph, "patient")
    assert data.unit_name == "patient"  # doctors are nobody's record but their own
    assert len(data.owner.unique()) == 33


# --- names, refusals, front doors -----------------------------------------------------------------


def test_certificates_name_people_and_what_was_declared_public():
    graph = make_graph(people=80)
    graph["patient"].y = torch.arange(80) % 2
    drawn = split(load(graph, target="patient"))
    fitted = LateGraph(epsilon=4.0, steps=2).fit(drawn)
    public = "\n".join(fitted.certificate_.public)
    assert "the types that are people: patient, doctor" in public
    assert "declared public, with rows, ids and relations among them: item (9 rows)" in public
    assert "a node is one patient or doctor, whose row holds the lists" in public
    assert fitted.certificate_.guarantee.epsilon <= 4
    assert fitted.predict(drawn).shape == (83,)
    graph.target = "patient"  # a method takes the graph itself, too
    for mask in ("train_mask", "val_mask", "test_mask"):
        graph["patient"][mask] = drawn[mask][:80]
    again = LateGraph(epsilon=4.0, steps=2).fit(graph)
    assert again.certificate_.public == fitted.certificate_.public
    assert fitted.predict(graph).equal(fitted.predict(drawn))


def test_one_relation_is_the_data_of_links():
    graph = make_graph()
    graph["patient", "takes", "item"].time = torch.arange(
        graph["patient", "takes", "item"].edge_index.shape[1]
    )
    links = load(graph, link="takes")
    ends = graph["patient", "takes", "item"].edge_index
    pairs = sorted(set(map(tuple, ends.t().tolist())))
    assert list(map(tuple, links.links.t().tolist())) == pairs
    for pair, time in zip(pairs, links.link_time.tolist(), strict=True):
        assert time == min(place for place, other in enumerate(ends.t().tolist())
                           if tuple(other) == pair)  # fmt: skip
    assert (links.source_name, links.target_name, links.directed) == ("patient", "item", True)
    assert links.target_x.shape[0] == 9
    assert links.target_ids == graph["item"].ids
    assert not any("takes" in name for name in links.columns)  # what is predicted is in no row
    assert any("given_to" in name for name in links.columns)
    assert links.own_lists == ["code-given_to-patient"]
    given = links_of(graph, "code-given_to-patient")
    assert (given.source_name, given.target_name) == ("patient", "code")
    meets = links_of(graph, ("patient", "meets", "patient"))
    assert (meets.links[0] < meets.links[1]).all()
    assert "target_x" not in meets
    assert isinstance(meets, Data)


@pytest.mark.parametrize(
    "change, words",
    [
        (lambda g: setattr(g, "people", ["nurse"]), "'people' parameter must name types"),
        (lambda g: setattr(g, "people", []), "'people' parameter must name the types"),
        (lambda g: g["item"].update({"x": torch.full((9, 4), float("nan"))}), "must be finite"),
        (lambda g: g["item"].update({"x": torch.ones(9, 4).long()}), "'item' must have rows"),
        (lambda g: g["item"].update({"ids": ["a"] * 9}), "different texts"),
        (lambda g: g["item"].update({"columns": ["a"]}), "one for each column"),
        (lambda g: g["patient"].update({"y": torch.ones(2).long()}), "entry for each"),
        (lambda g: g["patient", "takes", "item"].update({"lists": ["median"]}), "median"),
        (lambda g: g["patient", "takes", "item"].update({"edge_index": None}), "edge_index"),
    ],
)
def test_what_makes_no_sense_is_refused_in_a_line(change, words):
    graph = make_graph()
    change(graph)
    with pytest.raises(InvalidInputError, match=words) as refusal:
        load(graph, target="patient")
    assert "\n" not in str(refusal.value)


def test_what_is_asked_for_must_be_there():
    graph = make_graph()
    for asked, words in (
        ({}, "'target' parameter must be a type that is people"),
        ({"target": "item"}, "'target' parameter must be a type that is people"),
        ({"link": "has"}, "ends are both public"),
        ({"link": "sees"}, "two types of people"),
        ({"link": "eats"}, "relation must be one of"),
        ({"link": "takes", "target": "patient"}, "Got both"),
        ({"people": ["patient"], "target": "patient"}, "as the graph says"),
        ({"target": "patient", "classes": 2}, "cannot go with a HeteroData"),
    ):
        with pytest.raises(InvalidInputError, match=words):
            load(graph, **asked)
    plain = Data(x=torch.ones(2, 1), edge_index=torch.empty(2, 0, dtype=torch.long))
    with pytest.raises(InvalidInputError, match="cannot go with a graph without types"):
        load(plain, people=["patient"])


def refusal_of(graph, **stated):
    with pytest.raises(InvalidInputError) as error:
        load(graph, **stated)
    return str(error.value)


def test_what_is_wrong_with_a_hetero_data_is_said_with_its_way_out():
    graph = make_graph()
    graph["item", "has", "code"].edge_index = graph["item", "has", "code"].edge_index.int()
    assert "Got torch.int32 of shape" in refusal_of(graph, target="patient")
    graph = make_graph()
    graph["code"].x = torch.ones(4, 2, dtype=torch.long)
    assert "convert it with x.float()" in refusal_of(graph, target="patient")
    graph = make_graph()
    del graph["doctor"].x
    graph["doctor"].num_nodes = 3
    message = refusal_of(graph, target="patient")
    assert "give it a table, if only of ones." in message
    assert "private lists" not in message
    assert "it has none. Got 'patient'" in refusal_of(HeteroData(), people=["patient"])


@pytest.mark.parametrize("name", ["y", "train_mask", "owner"])
def test_a_public_type_has_nothing_that_people_have(name):
    graph = make_graph()
    graph["item"][name] = torch.arange(9)
    message = refusal_of(graph, target="patient")
    assert f"Got '{name}' of it instead, which people have" in message
