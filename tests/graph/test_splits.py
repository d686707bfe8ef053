"""Splits are functions of public values, and the inductive cut leaves no edge between the parts."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.data import Data

from graphveil._errors import InvalidInputError
from graphveil.graph.checks import MASKS, check
from graphveil.graph.shares import SHARES, part_ends
from graphveil.graph.splits import separate, split, thin
from graphveil.graph.subsets import select_graphs


def graph(num_nodes=200, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return Data(
        x=torch.rand(num_nodes, 4, generator=generator),
        edge_index=torch.randint(num_nodes, (2, 5 * num_nodes), generator=generator),
        y=torch.randint(3, (num_nodes,), generator=generator),
    )


def masks(data):
    return torch.stack([data[name] for name in MASKS])


def test_shares_are_as_asked_for_and_the_original_is_untouched():
    data = graph()
    done = split(data)
    assert masks(done).sum(dim=1).tolist() == [150, 20, 30]
    assert "train_mask" not in data
    assert check(done) is done


@settings(max_examples=50, deadline=None)
@given(
    num_nodes=st.integers(4, 300),
    shares=st.tuples(st.floats(0.3, 0.6), st.floats(0, 0.2), st.floats(0, 0.2)),
    seed=st.integers(0, 2**40),
)
def test_parts_are_disjoint_and_within_one_node_of_their_share(num_nodes, shares, seed):
    counts = masks(split(graph(num_nodes), shares, seed))
    assert counts.sum(dim=0).max() <= 1
    for count, share in zip(counts.sum(dim=1).tolist(), shares, strict=True):
        assert abs(count - share * num_nodes) <= 1


def test_whole_fractions_leave_nobody_out():
    assert masks(split(graph(199), (0.7, 0.1, 0.2))).any(dim=0).all()


def test_the_split_depends_on_ids_and_seed_and_on_nothing_private():
    data, other = graph(seed=0), graph(seed=1)
    assert torch.equal(masks(split(data)), masks(split(other)))
    assert not torch.equal(masks(split(data)), masks(split(data, seed=1)))


def test_an_unlabelled_node_leaves_its_part_and_moves_nobody():
    data = graph()
    before = masks(split(data))
    data.y[7] = -1
    after = masks(split(data))
    assert not after[:, 7].any()
    after[:, 7] = before[:, 7]
    assert torch.equal(before, after)


def test_graphs_without_labels_can_be_split():
    data = graph()
    del data.y
    assert split(data).train_mask.sum() == 150


@pytest.mark.parametrize(
    "fractions, message",
    [
        ((0.5, 0.5), "three numbers"),
        ((0.9, 0.2, 0.2), "sum to 1 at most"),
        ((-0.1, 0.5, 0.5), "number in"),
        ((float("nan"), 0.5, 0.5), "number in"),
        ((0.0, 0.5, 0.5), "somebody to train on"),
    ],
)
def test_odd_fractions_are_refused(fractions, message):
    with pytest.raises(InvalidInputError, match=message):
        split(graph(), fractions)


def test_the_inductive_parts_share_no_node_and_keep_exactly_the_inner_edges():
    data = split(graph())
    data.num_classes, data.class_names = 3, ["a", "b", "c"]
    training, testing = separate(data)
    assert not set(training.node_id.tolist()) & set(testing.node_id.tolist())
    for part, subset in (
        (training, data.train_mask | data.val_mask),
        (testing, data.test_mask),
    ):
        assert torch.equal(part.node_id, subset.nonzero()[:, 0])
        for name in ("x", "y", *MASKS):
            assert torch.equal(part[name], data[name][part.node_id])
        inner = data.edge_index[:, subset[data.edge_index].all(dim=0)]
        assert torch.equal(part.node_id[part.edge_index], inner)
        assert part.num_classes == 3
    assert not training.test_mask.any()
    assert testing.test_mask.all()
    check(training)


def test_the_training_graph_does_not_depend_on_the_test_nodes():
    data, other = split(graph()), split(graph())
    other.x[other.test_mask] = 0
    other.y[other.test_mask] = 0
    keep = ~other.test_mask[other.edge_index].any(dim=0)
    other.edge_index = other.edge_index[:, keep]
    one, two = separate(data)[0], separate(other)[0]
    assert torch.equal(one.x, two.x)
    assert torch.equal(one.edge_index, two.edge_index)


def test_a_list_of_names_as_long_as_the_graph_is_not_cut():
    data = split(graph(10), (0.5, 0.2, 0.3))
    data.class_names = [str(i) for i in range(10)]
    assert separate(data)[1].class_names == data.class_names


def test_separate_needs_masks_and_somebody_to_test():
    with pytest.raises(InvalidInputError, match="'train_mask'"):
        separate(graph())
    with pytest.raises(InvalidInputError, match="'test_mask'"):
        separate(split(graph(), (0.8, 0.2, 0.0)))


def test_a_share_of_the_training_nodes_stays_and_nobody_else_moves():
    data = split(graph(50), (0.6, 0.2, 0.2), seed=1)
    half, fifth = thin(data, 0.5, seed=3), thin(data, 0.2, seed=3)
    assert int(half.train_mask.sum()) == 15
    assert int(fifth.train_mask.sum()) == 6
    assert not (fifth.train_mask & ~half.train_mask).any()
    assert not (half.train_mask & ~data.train_mask).any()
    assert torch.equal(half.test_mask, data.test_mask)
    assert int(data.train_mask.sum()) == 30
    assert not torch.equal(half.train_mask, thin(data, 0.5, seed=4).train_mask)
    assert int(thin(data, 1e-9).train_mask.sum()) == 1
    assert torch.equal(thin(data, 1.0).train_mask, data.train_mask)
    for share in (0.0, 1.5, float("nan")):
        with pytest.raises(InvalidInputError, match="share"):
            thin(data, share)


# --- Many graphs ----------------------------------------------------------------------------------


def graphs(count=40, seed=0):
    """Graphs of 0 to 4 nodes, nodes in no order, whose first feature is their graph."""
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.randint(5, (count,), generator=generator)
    batch = torch.arange(count).repeat_interleave(sizes)
    batch = batch[torch.randperm(len(batch), generator=generator)]
    ends = torch.randint(len(batch), (2, 40 * count), generator=generator)
    edge_index = ends[:, batch[ends[0]] == batch[ends[1]]]
    return Data(
        x=torch.stack([batch.float(), torch.arange(len(batch)).float()], dim=1),
        edge_index=edge_index,
        edge_attr=edge_index.t().float(),
        batch=batch,
        num_graphs=count,
        y=torch.arange(count) % 2,
        num_classes=2,
        class_names=["a", "b"],
    )


def test_graphs_are_split_by_their_ids_alone():
    data = graphs()
    done = split(data, seed=3)
    assert masks(done).sum(dim=1).tolist() == [30, 4, 6]
    assert torch.equal(masks(done), masks(split(graphs(seed=1), seed=3)))
    assert torch.equal(masks(done), masks(split(graph(40), seed=3)))
    assert check(done) is done
    data.y[7] = -1
    assert not masks(split(data, seed=3))[:, 7].any()
    with pytest.raises(InvalidInputError, match="40 graphs"):
        split(graphs(), (0, 0.5, 0.5))


def test_fewer_training_graphs_are_a_part_of_more():
    data = split(graphs())
    half, third = thin(data, 0.5), thin(data, 0.3)
    assert (int(half.train_mask.sum()), int(third.train_mask.sum())) == (15, 9)
    assert (half.train_mask & data.train_mask).equal(half.train_mask)
    assert (third.train_mask & half.train_mask).equal(third.train_mask)


def test_graphs_are_separated_whole():
    data = split(graphs())
    training, testing = separate(data)
    for part, subset in ((training, data.train_mask | data.val_mask), (testing, data.test_mask)):
        assert torch.equal(part.graph_id, subset.nonzero()[:, 0])
        assert part.num_graphs == int(subset.sum())
        assert torch.equal(part.graph_id[part.batch], part.x[:, 0].long())
        assert torch.equal(part.x[:, 1][part.edge_index].t(), part.edge_attr)
        inside = subset[data.batch[data.edge_index[0]]]
        assert part.num_edges == int(inside.sum())
        for name in ("y", *MASKS):
            assert torch.equal(part[name], data[name][part.graph_id])
        assert part.class_names == ["a", "b"]
        check(part, masks=False, labels=False)
    check(training)
    with pytest.raises(InvalidInputError, match="no test graph"):
        separate(split(graphs(), (0.8, 0.2, 0.0)))


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 39), unique=True), st.integers(0, 2**20))
def test_chosen_graphs_are_in_the_order_asked_for(ids, seed):
    data = graphs(seed=seed)
    part = select_graphs(data, torch.tensor(ids, dtype=torch.long))
    assert part.graph_id.tolist() == ids
    assert torch.equal(part.y, data.y[part.graph_id])
    assert torch.equal(part.graph_id[part.batch], part.x[:, 0].long())
    assert torch.equal(part.x[:, 1][part.edge_index].t(), part.edge_attr)
    assert part.num_edges == int(torch.isin(data.batch[data.edge_index[0]], part.graph_id).sum())
    again = select_graphs(part, torch.arange(part.num_graphs).flip(0))
    assert again.graph_id.tolist() == ids[::-1]


@pytest.mark.parametrize(
    "which",
    [
        torch.tensor([0, 0]),
        torch.tensor([40]),
        torch.tensor([-1]),
        torch.ones(3).bool(),
        torch.ones(2),
    ],
)
def test_odd_choices_of_graphs_are_refused(which):
    with pytest.raises(InvalidInputError, match="'which'"):
        select_graphs(graphs(), which)
    with pytest.raises(InvalidInputError, match="no 'batch'"):
        select_graphs(graph(), which)


@pytest.mark.parametrize("count", [4, 6, 7, 10, 99, 2708])
def test_the_sizes_of_a_split_are_known_without_data(count):
    data = Data(x=torch.ones(count, 1), edge_index=torch.empty(2, 0, dtype=torch.long))
    parts = [int(split(data)[name].sum()) for name in MASKS]
    assert list(itertools.accumulate(parts)) == part_ends(count)
    assert sum(SHARES) == 1
