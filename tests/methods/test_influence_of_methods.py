"""Brute force through the real pipeline: caps, weights, neighbourhoods and networks of a method.

For a graph and each of its neighbours the logits of all roots are computed as training computes
them, in float64 with the same weights; those that differ are counted against what is charged. Many
graphs lie side by side as parts of one, so that one unit of each is taken away at a time.
"""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from methods_cases import changed, data_for, graph, made
from torch_geometric.data import Data

from graphveil._errors import InvalidInputError, UnprovenError
from graphveil.grads.own_rows import RowExamples
from graphveil.graph.caps import cap_receivers
from graphveil.graph.messages import weigh_messages
from graphveil.graph.neighbourhoods import gather_neighbourhoods
from graphveil.mechanisms import Gaussian
from graphveil.methods import Facts, Method

CONVS = ("gcn", "gin", "gat", "sage")
QUICK = {(1, 1), (1, 2), (2, 2), (3, 1)}  # layers and cap; the other pairs are slow
SETTINGS = [
    pytest.param(
        conv,
        layers,
        cap,
        weights,
        id=f"{conv}-{layers}-{cap}-{weights}",
        marks=[] if (layers, cap) in QUICK else pytest.mark.slow,
    )
    for conv, layers, cap in itertools.product(CONVS, (1, 2, 3), (1, 2))
    for weights in ("inverse-degree", "symmetric", "none")
    if conv == "gcn" or weights == "inverse-degree"  # the others have weights of their own
]


class Parts:
    """Graphs of one size, side by side. ``undirected``: a pair stands for both its messages."""

    def __init__(self, size, graphs, *, undirected):
        self.size, self.count, self.undirected = size, len(graphs), undirected
        self.pairs = [np.array(pairs, dtype=np.int64).reshape(-1, 2) for pairs in graphs]
        self.part = np.concatenate([np.full(len(p), i) for i, p in enumerate(self.pairs)])
        self.place = np.concatenate([np.arange(len(p)) for p in self.pairs])
        self.ends = np.concatenate(self.pairs).T + size * self.part
        self.nodes = size * self.count
        rng = torch.Generator().manual_seed(size)
        self.x = torch.randn(self.nodes, 4, generator=rng)

    def messages(self, kept=slice(None)):
        ends = self.ends[:, kept]
        ends = np.concatenate([ends, ends[::-1]], 1) if self.undirected else ends
        return torch.from_numpy(np.ascontiguousarray(ends))

    def data(self, edges=None, null=None):
        x = self.x if null is None else torch.where(null.unsqueeze(1), 0.0, self.x)
        return Data(x=x, edge_index=self.messages() if edges is None else edges)

    def facts(self):
        """Of one part: every node is a root."""
        return Facts(
            num_nodes=self.size,
            num_features=4,
            num_classes=3,
            num_train=self.size,
            directed=not self.undirected,
        )

    def withheld(self):
        """Each node's row and list gone; others still name it."""
        edges, of = self.messages(), torch.arange(self.nodes) % self.size
        for v in range(self.size):
            yield of == v, self.data(edges[:, of[edges[0]] != v], of == v)

    def removed(self):
        """Each node gone, from others' lists too."""
        edges, of = self.messages(), torch.arange(self.nodes) % self.size
        for v in range(self.size):
            yield of == v, self.data(edges[:, (of[edges] != v).all(0)], of == v)

    def without_edge(self):
        """Each edge deleted."""
        nobody = torch.zeros(self.nodes, dtype=torch.bool)
        for place in range(max(len(p) for p in self.pairs)):
            yield nobody, self.data(self.messages(self.place != place))


def at_random(count, *, undirected, size=30, largest=None, edges=45):
    """Random graphs, some with hubs; with ``largest`` no degree is above it."""
    rng = np.random.default_rng(count)
    graphs = []
    for number in range(count):
        pull = rng.random(size) ** (-0.8 * (number % 2))  # every other graph has hubs
        found, lists, named = [], np.zeros(size, int), np.zeros(size, int)
        for u, w in rng.choice(size, (20 * edges, 2), p=pull / pull.sum()).tolist():
            full = largest is not None and max(lists[u], named[w], named[u], lists[w]) >= largest
            if u == w or (u, w) in found or (undirected and (w, u) in found) or full:
                continue
            found.append((u, w))
            lists[u] += 1
            named[w] += 1
            if undirected:
                lists[w] += 1
                named[u] += 1
            if len(found) == edges:
                break
        graphs.append(found)
    return Parts(size, graphs, undirected=undirected)


def all_graphs(size, *, undirected):
    slots = list((itertools.combinations if undirected else itertools.permutations)(range(size), 2))
    kept = itertools.product([False, True], repeat=len(slots))
    return Parts(
        size, [list(itertools.compress(slots, chosen)) for chosen in kept], undirected=undirected
    )


FAMILIES = [
    at_random(4, undirected=False),
    at_random(4, undirected=True),
    all_graphs(3, undirected=False),
    all_graphs(4, undirected=True),
]


def logits(method, network, data):
    """Every root's, as a training step computes them."""
    nodes = len(data.x)
    every = torch.ones(nodes, dtype=torch.bool)
    terms = method.terms(changed(data, y=torch.zeros(nodes, dtype=torch.long), train_mask=every))
    if isinstance(terms, RowExamples):
        with torch.no_grad():
            return network.on_graph(terms.rows.double(), None)
    assert torch.equal(terms.roots, torch.arange(nodes))
    with torch.no_grad():
        return network(
            gather_neighbourhoods(terms.x.double(), terms.messages, terms.roots, terms.num_layers)
        )


def altered(method, parts, neighbours):
    """For each part, the most roots besides the unit's own that one unit alters."""
    network = method.build(parts.facts()).double().eval()
    with torch.no_grad():  # biases of zero would hide a change of weights on equal rows
        for number, parameter in enumerate(network.parameters()):
            parameter += 0.1 * torch.cos(torch.arange(parameter.numel()) + number).view_as(
                parameter
            )
    before = logits(method, network, parts.data())
    most = np.zeros(parts.count, int)
    for own, data in neighbours:
        differ = ((logits(method, network, data) - before).abs() > 1e-9).any(1) & ~own
        most = np.maximum(most, differ.view(parts.count, parts.size).sum(1).numpy())
    return most


def covered(removed, altered, charged):
    """Whether so many terms are dominated by the pair that is charged (docs/guarantees/node.md)."""
    return removed + altered <= sum(charged) and altered <= charged[1]


def model(conv, layers, **settings):
    shape = {"hidden_channels": 3, "heads": 3 if conv == "gat" else 1}
    return made("dp-gnn", conv=conv, num_layers=layers, **(shape | settings))


# --- training: how many terms a unit changes ------------------------------------------------------


@pytest.mark.parametrize("conv, layers, cap, weights", SETTINGS)
def test_withholding_a_node_changes_no_more_terms_than_are_charged(conv, layers, cap, weights):
    # Receivers are capped where there is something to cap: not in all the smallest graphs.
    for receiver_cap, parts in itertools.product((None, 2), FAMILIES):
        if receiver_cap == 2 and parts.size < 30:
            continue
        method = model(
            conv, layers, sender_cap=cap, receiver_cap=receiver_cap, normalisation=weights
        )
        most = altered(method, parts, parts.withheld())
        charged = method.influence(parts.facts())
        assert covered(1, most.max(), charged)
        if layers == 1 and receiver_cap is None and parts.size == 30:
            assert most.max() == charged[1] == cap  # attained: the count is not blind


@pytest.mark.parametrize("conv", CONVS)
@pytest.mark.parametrize("layers", [1, 2])
def test_deleting_an_edge_changes_no_more_terms_than_are_charged(conv, layers):
    for cap, receiver_cap in ((1, None), (2, 2)):
        for parts in FAMILIES:
            method = model(conv, layers, sender_cap=cap, receiver_cap=receiver_cap, unit="edge")
            most = altered(method, parts, parts.without_edge())
            charged = method.influence(parts.facts())
            assert charged[0] == 0
            assert most.max() <= charged[1]
            if layers == 1 and receiver_cap is None and parts.size == 30:
                assert most.max() == charged[1] == (2 if parts.undirected else 1)


@pytest.mark.parametrize("conv", CONVS)
@pytest.mark.parametrize("layers", [1, 2])
def test_removing_a_node_changes_no_more_terms_than_are_charged(conv, layers):
    for undirected, cap in itertools.product((False, True), (1, None)):
        degree = 3 if cap else 2
        parts = at_random(4, undirected=undirected, largest=degree, edges=30)
        method = model(
            conv,
            layers,
            sender_cap=cap,
            relation="remove",
            public_degree=degree,
            receiver_cap=None if cap else 2,
        )
        most = altered(method, parts, parts.removed())
        assert covered(1, most.max(), method.influence(parts.facts()))


def test_dot_product_attention_stays_within_what_is_charged_too():
    for parts in FAMILIES[:2]:
        method = model("gat", 2, sender_cap=2, attention="dot")
        most = altered(method, parts, parts.withheld())
        assert covered(1, most.max(), method.influence(parts.facts()))


@pytest.mark.parametrize("name", ["dp-mlp", "late-graph"])
def test_methods_trained_without_edges_alter_nobodys_term(name):
    for parts in FAMILIES:
        method = made(name)
        assert method.influence(parts.facts()) == (1, 0)
        assert altered(method, parts, parts.withheld()).max() == 0
        assert altered(method, parts, parts.removed()).max() == 0


# --- training: places are for those that are trained on -------------------------------------------


def altered_terms(method, parts, train, neighbours):
    """Most terms besides the own that change, where ``train`` masks the nodes of every part.

    The mask is public, and the same in both data sets: a withheld node's id stays in it.
    """
    mask = torch.as_tensor(train, dtype=torch.bool).repeat(parts.count)
    network = method.build(parts.facts()).double().eval()

    def by_root(data):
        read = changed(data, y=torch.zeros(parts.nodes, dtype=torch.long), train_mask=mask)
        terms = method.terms(read)
        out = torch.zeros(parts.nodes, 3, dtype=torch.float64)
        with torch.no_grad():
            out[terms.roots] = network(
                gather_neighbourhoods(terms.x.double(), terms.messages, terms.roots, 1)
            )
        return out

    before, most = by_root(parts.data()), 0
    for own, data in neighbours():
        differ = ((by_root(data) - before).abs() > 1e-9).any(1) & ~own
        most = max(most, int(differ.view(parts.count, parts.size).sum(1).max()))
    return most


@pytest.mark.parametrize("sampler", ["senders", "released"])
@pytest.mark.parametrize("weights", ["inverse-degree", "symmetric"])
def test_lists_of_training_nodes_alone_alter_no_more_than_the_cap(sampler, weights):
    for cap, receiver_cap in ((1, None), (2, None), (2, 2)):
        method = model(
            "gcn",
            1,
            sender_cap=cap,
            receiver_cap=receiver_cap,
            sampler=sampler,
            normalisation=weights,
        )
        for parts in FAMILIES[2:] if cap == 1 else ():
            for train in itertools.product([False, True], repeat=parts.size):
                if any(train):
                    assert altered_terms(method, parts, train, parts.withheld) <= cap
        for parts in FAMILIES[:2]:
            some = np.random.default_rng(cap).random(parts.size) < 0.5
            most = altered_terms(method, parts, some, parts.withheld)
            assert most <= cap
            if sampler == "senders" and receiver_cap is None:
                assert most == cap  # attained


@pytest.mark.parametrize("conv", CONVS)
def test_no_place_is_wasted_on_who_is_not_trained_on(conv):
    parts = FAMILIES[1]
    mask = torch.arange(parts.nodes) % 4 == 0
    data = changed(parts.data(), train_mask=mask)
    read = model(conv, 1, sender_cap=1, receiver_cap=None).read_in_training(data).edge_index
    edges = parts.messages()
    able = edges[0][mask[edges[1]]].unique()
    heard = int(mask[read[1]].sum())
    if conv == "gin":  # sums must be as long when predicting
        assert heard < len(able)
    else:
        assert heard == len(able) == read.shape[1]
    deep = model(conv, 2, sender_cap=1, receiver_cap=None).read_in_training(data).edge_index
    assert not mask[deep[1]].all()


def test_a_training_mask_that_follows_the_withheld_node_is_noticed():
    """Lists that lose a withheld node's id are refilled: the ids must be public, and stay."""
    parts = FAMILIES[1]
    method = model("gcn", 1, sender_cap=1, receiver_cap=None)
    every = torch.ones(parts.nodes, dtype=torch.bool)
    network = method.build(parts.facts()).double().eval()

    def states(data, mask):
        terms = method.terms(changed(data, y=every.long(), train_mask=mask))
        out = torch.zeros(parts.nodes, 3, dtype=torch.float64)
        with torch.no_grad():
            out[terms.roots] = network(
                gather_neighbourhoods(terms.x.double(), terms.messages, terms.roots, 1)
            )
        return out

    before, most = states(parts.data(), every), 0
    for own, data in parts.withheld():
        differ = ((states(data, every & ~own) - before).abs() > 1e-9).any(1) & ~own
        most = max(most, int(differ.view(parts.count, parts.size).sum(1).max()))
    assert most > 1


# --- planted mistakes are noticed -----------------------------------------------------------------


def test_capping_receivers_in_place_of_senders_is_noticed(monkeypatch):
    method = model("gcn", 1, sender_cap=2, receiver_cap=None)
    right = max(altered(method, parts, parts.withheld()).max() for parts in FAMILIES[:2])

    def cap_wrongly(edges, nodes, cap, *, seed, readers=None):
        heard = edges if readers is None else edges[:, readers[edges[1]]]
        return cap_receivers(heard, nodes, cap, seed=seed)

    monkeypatch.setattr("graphveil.graph.caps.cap_senders", cap_wrongly)
    wrong = max(altered(method, parts, parts.withheld()).max() for parts in FAMILIES[:2])
    assert right <= 2 < wrong


def test_counting_a_senders_list_after_the_receivers_cap_is_noticed(monkeypatch):
    method = model("gcn", 1, sender_cap=2, receiver_cap=1, normalisation="symmetric")
    right = max(altered(method, parts, parts.withheld()).max() for parts in FAMILIES[:2])
    monkeypatch.setattr(
        "graphveil.graph.messages.weigh_messages",
        lambda read, nodes, how, sender_lists: weigh_messages(read, nodes, how),
    )
    wrong = max(altered(method, parts, parts.withheld()).max() for parts in FAMILIES[:2])
    assert right <= 2 < wrong


def test_the_printed_sampler_changes_more_terms_than_the_cap_says():
    method = model("gcn", 1, sender_cap=2, receiver_cap=None, sampler="printed")
    assert max(altered(method, parts, parts.withheld()).max() for parts in FAMILIES[:2]) > 2


def test_removal_charged_as_withholding_is_noticed():
    method = model("gcn", 1, sender_cap=1, receiver_cap=None)
    assert max(altered(method, parts, parts.removed()).max() for parts in FAMILIES[:2]) > 1


# --- noisy prediction: by how much a unit moves the sum -------------------------------------------

UNITS = {
    "node": ({}, False),
    "node-undirected": ({}, True),
    "remove": ({"relation": "remove", "public_degree": 3}, False),
    "remove-undirected": ({"relation": "remove", "public_degree": 3}, True),
    "edge-directed": ({"unit": "edge"}, False),
    "edge-undirected": ({"unit": "edge"}, True),
}


@pytest.fixture
def handed_over(monkeypatch):
    """What a noisy prediction hands to the Gaussian, with its bound; priced at nothing."""
    found = []

    def release(self, value, rng):
        found.append((value.clone(), self.sensitivity))
        return value

    monkeypatch.setattr(Gaussian, "release", release)
    monkeypatch.setattr("graphveil.methods.inference.calibrate", lambda *_, **__: 1.0)
    monkeypatch.setattr(Method, "certify", lambda self: None)
    return found


def certain(name, facts, **settings):
    """A fitted method that is sure of every answer, so that messages are as long as they get."""
    # Several graphs stand side by side in one; delta is below one in all their pairs.
    method = made(name, hidden_channels=8, delta=1e-6, **settings)
    plan = method.plan(facts)
    method.restore(plan, method.build(facts), [], certificate=plan.certificate())
    with torch.no_grad():
        for parameter in method.network_.parameters():
            parameter *= 60
    return method


@pytest.mark.parametrize(
    "name, kind",
    [("late-graph", "node"), ("late-graph", "node-undirected"), *(("dp-gnn", k) for k in UNITS)],
)
def test_a_unit_moves_the_noisy_sum_by_no_more_than_its_sensitivity(name, kind, handed_over):
    settings, undirected = UNITS[kind]
    largest = settings.get("public_degree")
    found = []
    for parts in (
        at_random(6, undirected=undirected, largest=largest),
        at_random(1, undirected=undirected, size=60, edges=300, largest=largest),
    ):
        method = certain(name, parts.facts(), **settings)
        neighbours = {"node": parts.withheld, "remove": parts.removed, "edge": parts.without_edge}
        method.predict_proba(parts.data(), mode="noisy", epsilon=1.0)
        before, bound = handed_over[-1]
        assert before.dtype == torch.float64
        for own, data in neighbours[kind.split("-")[0]]():
            method.predict_proba(data, mode="noisy", epsilon=1.0)
            after, same_bound = handed_over[-1]
            assert same_bound == bound
            moved = torch.where(own.unsqueeze(1), 0.0, after - before).square()
            found.append(moved.view(parts.count, -1).sum(1).sqrt().max().item() / bound)
    assert max(found) <= 1 + 1e-12
    assert max(found) > 0.99


def test_a_message_is_never_longer_than_charged_however_sure_the_network_is(handed_over):
    """Each of 2000 nodes sends to one other: rows of the sum are the messages themselves."""
    nodes = 2000
    ring = torch.stack([torch.arange(nodes), (torch.arange(nodes) + 1) % nodes])
    data = Data(x=torch.randn(nodes, 4), edge_index=ring)
    facts = Facts(num_nodes=nodes, num_features=4, num_classes=3, num_train=5)
    certain("late-graph", facts).predict_proba(data, mode="noisy", epsilon=1.0)
    lengths = torch.linalg.vector_norm(handed_over[-1][0], dim=1)
    assert lengths.max() <= 1 + 1e-15
    assert lengths.max() > 0.999


def test_weights_of_the_soft_cap_under_removal_would_be_noticed(handed_over):
    """Soft caps hold for withholding alone: a shorter list has heavier messages."""
    parts = at_random(6, undirected=True, largest=3)
    method = certain("late-graph", parts.facts())
    method.predict_proba(parts.data(), mode="noisy", epsilon=1.0)
    before, bound = handed_over[-1]
    worst = 0.0
    for own, data in parts.removed():
        method.predict_proba(data, mode="noisy", epsilon=1.0)
        moved = torch.where(own.unsqueeze(1), 0.0, handed_over[-1][0] - before).square()
        worst = max(worst, moved.view(parts.count, -1).sum(1).sqrt().max().item())
    assert worst > bound


# --- promises on the data -------------------------------------------------------------------------


def test_a_graph_that_breaks_the_promise_on_degrees_is_refused():
    star = torch.stack([torch.zeros(5, dtype=torch.long), torch.arange(1, 6)])
    data = graph()
    for edges in (star, star.flip(0)):
        broken = changed(data, edge_index=edges)
        method = made("dp-gnn", relation="remove", public_degree=4)
        with pytest.raises(InvalidInputError, match="public_degree"):
            method.fit(broken)
        obeyed = changed(data, edge_index=edges[:, :4].repeat(1, 3))  # repeated edges count once
        method.fit(obeyed)
        with pytest.raises(InvalidInputError, match="public_degree"):
            method.predict(broken, mode="noisy", epsilon=1.0)
        assert len(method.charges_) == 1  # refused before anything was released


def test_repeated_edges_do_not_make_an_undirected_graph_a_directed_one():
    """The unit edge would otherwise be one message where a friendship is two."""
    data = graph()
    repeated = changed(data, edge_index=torch.cat([data.edge_index, data.edge_index[:, :1]], 1))
    method, facts = made("dp-gnn", unit="edge"), Facts.of(repeated)
    assert method.unit_for(facts) == "edge-undirected"
    assert method.influence(facts) == (0, 2)


def test_delta_is_counted_in_ordered_pairs_where_edges_have_a_direction():
    # 16 million ordered pairs, half as many others.
    facts = Facts(num_nodes=4000, num_features=2, num_classes=2, num_train=3000, directed=True)
    assert made("dp-gnn", unit="edge").plan(facts).delta == 1e-8
    assert made("dp-gnn", unit="edge").plan(replace(facts, directed=False)).delta == 1e-7


def test_delta_is_counted_in_pairs_under_the_unit_edge():
    facts = Facts.of(graph())
    pairs = facts.num_nodes * (facts.num_nodes - 1) / 2
    assert made("dp-gnn", unit="edge").plan(facts).delta < 1 / pairs
    assert 1 / pairs < made("dp-gnn").plan(facts).delta < 1 / facts.num_nodes
    with pytest.raises(UnprovenError, match="delta"):
        made("dp-gnn", unit="edge", delta=0.01).plan(facts)


# --- a fraction of a message ----------------------------------------------------------------------


def test_by_default_one_layer_delivers_half_of_its_messages_and_is_charged_for_it():
    method = made("dp-gnn", sample_rate=0.5)
    facts = Facts.of(data_for("dp-gnn"))
    steps = method.plan(facts).part("weights")
    assert (steps.delivery, steps.removed, steps.altered) == (0.5, 1, 1)
    assert steps.event.event.altered_rate == pytest.approx(0.5 * 0.5 / (0.5 + 0.5 * 0.5))
    whole = made("dp-gnn", sample_rate=0.5, delivery=1.0).plan(facts).part("weights")
    assert whole.event.event.altered_rate is None
    assert whole.noise_multiplier > steps.noise_multiplier


UNPROVEN_COINS = [
    {"num_layers": 2},
    {"unit": "edge"},
    {"relation": "remove", "public_degree": 30},
    {"sampler": "released"},
    {"sampler": "printed"},
    {"paper": True},
    {"conv": "gin"},
]


@pytest.mark.parametrize("settings", UNPROVEN_COINS, ids=str)
def test_coins_are_refused_where_nothing_is_proven_and_left_out_by_default(settings):
    facts = Facts.of(data_for("dp-gnn"))
    method = made("dp-gnn", **settings)
    assert method.delivery_in_use == 1
    assert method.plan(facts).part("weights").delivery == 1
    with pytest.raises(UnprovenError, match="set delivery=1"):
        made("dp-gnn", delivery=0.5, **settings).plan(facts)


def test_full_batches_deliver_everything():
    assert made("dp-gnn", sample_rate=1.0).delivery_in_use == 1
