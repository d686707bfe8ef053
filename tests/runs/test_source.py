"""Where data comes from: what is known of it before it is loaded, and how it is split."""

import dataclasses
import itertools
import warnings

import pytest
import torch
from torch_geometric.data import Data

from graphveil import runs
from graphveil._errors import InvalidInputError
from graphveil.bench.compare import Request
from graphveil.data import CATALOG
from graphveil.data.class_list import Notice
from graphveil.data.synthetic import erdos_renyi, social_network
from graphveil.graph.checks import MASKS, unprotected_of
from graphveil.graph.splits import draw_masks
from graphveil.methods import METHODS, Facts
from graphveil.runs import Source
from graphveil.runs.record import Asked


def test_what_is_expected_is_what_is_loaded():
    for split in (None, "transductive", "inductive"):
        source = Source(data="social", split=split)
        assert source.expected() == Facts.of(source.arrange(source.load()).training)
    assert Source(data="facebook100:A").expected() is None
    assert Source(data="./social").expected() is None
    assert Source(data="social", min_class=10).expected() is None  # which are large, nobody knows


@pytest.mark.parametrize("split", [None, "inductive"])
@pytest.mark.parametrize("thinned", ["keep", "remove"])
@pytest.mark.parametrize("fractions", [None, (0.8, 0.0, 0.2), (0.5, 0.1, 0.1)])
def test_shares_are_expected_as_they_are_drawn(split, thinned, fractions):
    for data, graph in (("social", social_network()), ("synthetic-er", erdos_renyi(10))):
        how = {"split": split, "thinned": thinned, "fractions": fractions}
        source = Source(data=data, train_share=0.3, **how)
        expected = source.expected()
        arranged = source.arrange(graph)
        assert expected == Facts.of(arranged.training)
        first = (600 if fractions is None else 1000 * fractions[0]) / 1000
        if data == "social":
            first = 0.75 if fractions is None else fractions[0]
        records = 20_000 if data == "social" else 1000
        assert expected.num_train == round(0.3 * first * records)


def small(masks=()):
    """Thirty nodes in a ring, of classes 0 (two), 1 (fifteen) and 2 (ten), three unlabelled."""
    y = torch.tensor([0, 1, 1, 2, 1, 2, 1, 2, 1, -1] * 3)
    y[10] = y[0]
    y[20] = 1
    ring = torch.arange(30)
    data = Data(x=torch.eye(30), y=y, num_classes=3, directed=True)
    data.edge_index = torch.stack([ring, ring.roll(-1)])
    for name in masks:
        data[name] = torch.zeros(30, dtype=torch.bool)
    return data


def test_small_classes_are_left_out_and_said_to_be_read_off_labels():
    data = small()
    data.public = ["a line"]
    arranged = Source(data="memory", min_class=9).arrange(data)
    part = arranged.training
    assert part.y.unique().tolist() == [-1, 0, 1]
    assert part.class_names == ["1", "2"]
    assert part.num_classes == 2
    kept = [n for n in range(30) if data.y[n] != 0]
    assert part.node_id.tolist() == kept
    assert part.x.argmax(1).tolist() == kept
    places = {old: new for new, old in enumerate(kept)}
    ring = [(places[n], places[(n + 1) % 30]) for n in kept if (n + 1) % 30 in places]
    assert sorted(map(tuple, part.edge_index.t().tolist())) == sorted(ring)
    (line,) = unprotected_of(part)
    assert "at least 9 nodes" in line
    assert part.public == ["a line", line]
    assert data.num_classes == 3  # what was given stays what it was
    with pytest.raises(InvalidInputError, match="leave two classes"):
        Source(data="memory", min_class=12).arrange(data)
    data.class_names = ["a", "b", "c"]
    assert Source(data="memory", min_class=9).arrange(data).training.class_names == ["b", "c"]


def test_the_certificate_of_a_run_names_the_classes_left_out(tmp_path):
    data = social_network(600, 4, 8)
    torch.save(data, tmp_path / "graph.pt")
    source = Source(data=str(tmp_path / "graph.pt"), min_class=120, fractions=(0.6, 0.0, 0.4))
    method = METHODS["dp-mlp"](epsilon=8.0, delta=1e-4, steps=2)
    run = runs.Run(tmp_path / "run")
    run.train(method, source)
    assert any("at least 120 nodes" in line for line in method.certificate_.unprotected)
    asked = Asked.read(tmp_path / "run")
    assert asked.source == dataclasses.replace(source, split="transductive")
    assert asked.source.fractions == (0.6, 0.0, 0.4)
    again = runs.Run(tmp_path / "run").arrange()
    assert torch.equal(again.training.train_mask, source.arrange(data).training.train_mask)
    # All nodes are predicted, also those of classes that it does not know.
    graph = run.load(source.data)
    assert len(graph.x) == 600
    large = [c for c in range(4) if int((data.y == c).sum()) >= 120]
    assert asked.class_names == [str(c) for c in large]
    expected = [large.index(c) if c in large else -1 for c in data.y.tolist()]
    assert graph.y.tolist() == expected
    _, chances = run.predict(graph)
    assert chances.shape == (600, len(large))


def test_training_records_that_are_left_out_may_be_removed():
    data = social_network(500, 3, 4)
    kept, removed = (
        Source(data="memory", train_share=0.2, thinned=how).arrange(data).training
        for how in ("keep", "remove")
    )
    whole = Source(data="memory").arrange(data).training
    stays = kept.train_mask | ~whole.train_mask
    assert removed.node_id.tolist() == stays.nonzero().flatten().tolist()
    assert torch.equal(removed.x, data.x[stays])
    for name in MASKS:
        assert torch.equal(removed[name], kept[name][stays])
    inside = stays[data.edge_index].all(0)
    assert removed.num_edges == int(inside.sum()) < kept.num_edges
    # A test graph of its own keeps the ids of the data, not of what was left.
    arranged = Source(data="memory", train_share=0.2, thinned="remove", split="inductive")
    testing = arranged.arrange(data).testing
    assert torch.equal(data.x[testing.node_id], testing.x)


def test_of_many_graphs_whole_ones_are_removed():
    data = erdos_renyi(10, num_graphs=100)
    part = Source(data="memory", train_share=0.5, thinned="remove").arrange(data).training
    assert (part.num_graphs, int(part.train_mask.sum())) == (70, 30)
    assert len(part.x) == 700


@pytest.mark.parametrize(
    "wrong, message",
    [
        ({"fractions": (0.5, 0.5)}, "three numbers"),
        ({"fractions": 0.5}, "three numbers"),
        ({"fractions": "0.5"}, "three numbers"),
        ({"fractions": (0.8, 0.2, 0.2)}, "sum to 1"),
        ({"fractions": (0.8, 0.0, 0.2), "split": "given"}, "drawn"),
        ({"min_class": 0}, "min_class"),
        ({"thinned": "drop"}, "thinned"),
    ],
)
def test_bad_shares_are_refused(wrong, message):
    with pytest.raises(InvalidInputError, match=message):
        Source(data="social", **wrong)


def masked():
    data = small(MASKS)
    data.y = data.y.clamp_min(0)
    data.train_mask[:5], data.val_mask[5:8], data.test_mask[8:] = True, True, True
    return data


def test_sets_that_are_defined_by_a_split_take_it():
    data = masked()
    for name in ("ogbn-arxiv", "ogbn-mag:undirected", "reddit", "reddit-sample", "cora:full"):
        arranged = Source(data=name).arrange(data)
        assert (arranged.split, arranged.training.train_mask.sum()) == ("given", 5)
        assert Source(data=name, split="inductive").arrange(data).testing.num_nodes == 22
        drawn = Source(data=name, split="transductive").arrange(data)
        assert drawn.training.train_mask.sum() == 23
        shares = Source(data=name, fractions=(0.8, 0.0, 0.2)).arrange(data)
        assert (shares.split, shares.training.train_mask.sum()) == ("transductive", 24)


def test_planetoid_is_drawn_and_says_so():
    data = masked()
    with pytest.warns(Notice, match="cora brings a split of its own.*--split given"):
        arranged = Source(data="cora").arrange(data)
    assert (arranged.split, arranged.training.train_mask.sum()) == ("transductive", 23)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for how in ({"split": "transductive"}, {"fractions": (0.5, 0.0, 0.5)}):
            assert Source(data="cora", **how).arrange(data).split == "transductive"
        assert Source(data="cora", split="given").arrange(data).training.train_mask.sum() == 5
        assert Source(data="social").arrange(small()).split == "transductive"


def test_a_split_of_its_own_is_planned_with_its_sizes():
    train = {
        "cora:full": 1208,
        "citeseer:full": 1827,
        "pubmed:full": 18_217,
        "ogbn-arxiv": 90_941,
        "molbace": 1210,
        "synthetic-er": 600,
    }
    for name, count in train.items():
        assert Source(data=name).expected().num_train == count
    assert Source(data="cora").expected().num_train == 2031
    assert Source(data="cora", split="given").expected().num_train == 140
    assert Source(data="ogbn-arxiv", split="inductive").expected().num_nodes == 90_941 + 29_799
    assert Source(data="reddit-sample").expected() is None
    entries = [entry for entry in CATALOG.values() if entry.split is not None]
    for entry in entries:
        records = entry.num_graphs if entry.record == "graph" else entry.num_nodes
        assert sum(entry.split) <= records
        assert entry.own_split
    for one, other in itertools.pairwise(entries):
        assert one.split != other.split


def test_links_are_planned_with_the_sizes_they_turn_out_to_have():
    for stated in ({}, {"split": "transductive"}, {"split": "inductive"}, {"split": "given"}):
        source = Source(data="shop:1000", **stated)
        assert source.expected() == Facts.of(source.arrange(source.load()).training)


def test_results_know_their_split_and_old_ones_keep_their_keys():
    request = Request("mlp", None, None, {})
    plain = request.key(Source(data="social"))
    assert not any(name in plain for name in ("fractions", "min_class", "thinned"))
    changed = {"fractions": (0.8, 0.0, 0.2), "min_class": 5, "thinned": "remove"}
    keys = {request.key(Source(data="social", **{name: changed[name]})) for name in changed}
    assert len({plain, *keys}) == 4


def test_a_graph_whose_own_masks_hold_small_classes_is_predicted(tmp_path):
    """Records of classes that were left out lose their label, and with it their place in masks."""
    data = draw_masks(social_network(600, 4, 8), seed=0)
    torch.save(data, tmp_path / "graph.pt")
    source = Source(data=str(tmp_path / "graph.pt"), min_class=120, fractions=(0.6, 0.0, 0.4))
    run = runs.Run(tmp_path / "run")
    run.train(METHODS["dp-mlp"](epsilon=8.0, delta=1e-4, steps=2), source)
    graph = run.load(source.data)
    left_out = graph.y < 0
    assert left_out.any()
    assert not (graph.train_mask & left_out).any()
    _, chances = run.predict(graph)
    assert len(chances) == 600


def test_pokec_is_drawn_in_the_shares_of_its_paper():
    assert Source(data="pokec:hash")._shares == (0.8, 0.1, 0.1)
    assert Source(data="pokec:hash", fractions=(0.5, 0.2, 0.3))._shares == (0.5, 0.2, 0.3)
    assert Source(data="cora")._shares == (0.75, 0.1, 0.15)
