"""Terms that read their own list row by row, by brute force over everybody."""

import copy

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from torch_geometric.data import HeteroData

from graphveil._errors import InvalidInputError, UnprovenError
from graphveil.grads import make_private
from graphveil.graph.list_terms import ListTerms
from graphveil.graph.messages import weigh_messages
from graphveil.nn import NodeClassifier


def make_graph(people=40, items=9, seed=0):
    rng = np.random.default_rng(seed)
    graph = HeteroData()
    graph.people = ["user"]
    graph["user"].x = torch.tensor(rng.normal(size=(people, 3)), dtype=torch.float32)
    graph["user"].y = torch.from_numpy(rng.integers(2, size=people))
    graph["user"].train_mask = torch.arange(people) % 4 > 0
    graph["item"].x = torch.tensor(rng.normal(size=(items, 4)), dtype=torch.float32)
    buys = rng.random((people, items)) < rng.random((people, 1))
    graph["user", "buys", "item"].edge_index = torch.from_numpy(np.stack(np.nonzero(buys)))
    return graph


def withhold(graph, person):
    other = copy.deepcopy(graph)
    ends = graph["user", "buys", "item"].edge_index
    other["user", "buys", "item"].edge_index = ends[:, ends[0] != person]
    other["user"].x[person] = 0
    return other


def make_network(terms, conv="gat", **options):
    torch.manual_seed(0)
    return NodeClassifier(terms.x.shape[1], 8, 2, conv=conv, num_layers=1, **options)


def losses(module, batch):
    around, labels = batch
    return F.cross_entropy(module(around), labels, reduction="none")


def test_attention_reads_the_own_row_and_the_own_list():
    graph = make_graph()
    terms = ListTerms.of(graph, "buys")
    network = make_network(terms).eval()
    logits = network.on_graph(terms.x, terms.messages)[:40]
    for person in range(40):  # anybody alone, with the own list: the same answer
        alone = copy.deepcopy(graph)
        for other in range(40):
            if other != person:
                alone = withhold(alone, other)
        terms_alone = ListTerms.of(alone, "buys")
        own = network.on_graph(terms_alone.x, terms_alone.messages)[person]
        torch.testing.assert_close(own, logits[person])
    conv, x = network.convs[0], network.after[0](network.encoder(terms.x))
    ends = graph["user", "buys", "item"].edge_index
    values = conv.lin_value(x)
    named = torch.cat([torch.tensor([5]), 40 + ends[1, ends[0] == 5]])  # own state, then list
    heads = values[:, None, :]
    scores = conv.att_sender(heads)[named] + conv.att_receiver(heads)[5]
    share = torch.softmax(F.leaky_relu(scores.flatten(), 0.2), 0)
    out = conv.bias((share[:, None] * values[named]).sum(0))
    torch.testing.assert_close(network.decoder(network.after[1](out)[None]), logits[5][None],
                               rtol=1e-3, atol=1e-3)  # fmt: skip


@pytest.mark.parametrize("conv", ["gat", "sage", "gcn"])
def test_withholding_anybody_moves_no_other_term(conv):
    graph = make_graph()
    terms = ListTerms.of(graph, "buys")
    network = make_network(terms, conv).eval()
    here = network.on_graph(terms.x, terms.messages)[:40].detach()
    moved = 0
    for person in range(40):
        there = ListTerms.of(withhold(graph, person), "buys")
        logits = network.on_graph(there.x, there.messages)[:40].detach()
        others = torch.arange(40) != person
        assert logits[others].equal(here[others])
        moved += not logits[person].equal(here[person])
    assert moved == 40


def test_a_weight_by_how_many_name_a_row_would_break_it():
    """The planted mistake: GCN's own weights know how many people have an item."""
    graph = make_graph()
    network = make_network(ListTerms.of(graph, "buys"), "gcn").eval()

    def logits(of):
        terms = ListTerms.of(of, "buys")
        ends = of["user", "buys", "item"].edge_index
        turned = torch.stack([ends[1] + 40, ends[0]])
        return network.on_graph(terms.x, weigh_messages(turned, 49, "symmetric"))[:40].detach()

    here, there = logits(graph), logits(withhold(graph, 0))
    assert (here[1:] != there[1:]).any(1).sum() > 10


def test_the_charge_is_one_term():
    graph = make_graph()
    terms = ListTerms.of(graph, "buys", lists=["count"])
    assert terms.influence() == (1, 0)
    assert terms.influence("edge-directed") == (0, 1)
    assert (len(terms), terms.num_units()) == (30, 40)
    network = make_network(terms)
    step = make_private(
        network, torch.optim.SGD(network.parameters(), lr=0.1), terms, losses=losses,
        sample_rate=0.5, noise_multiplier=2.0, steps=3,
    )  # fmt: skip
    for _ in range(3):
        step()
    text = str(step.certificate(unit="node", delta=1e-3))
    assert "removed=1, altered=0" in text
    assert "vouches that taking one node away" not in text
    with pytest.raises(UnprovenError):  # an entry of a list is another unit than was charged for
        step.certificate(unit="edge-directed", delta=1e-6)


def test_what_makes_no_terms_is_refused():
    graph = make_graph()
    with pytest.raises(InvalidInputError, match="relation must be one of"):
        ListTerms.of(graph, "sells")
    del graph["user"].train_mask
    with pytest.raises(InvalidInputError, match="'train_mask'"):
        ListTerms.of(graph, "buys")
